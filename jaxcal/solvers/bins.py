"""The bins of [0, 1]: of equal width, of equal weight, or between edges of the caller's."""

import jax.numpy as jnp
import numpy as np

from jaxcal import checks


def bin_rule(bins, num_bins: int) -> tuple:
    """A hashable description of the bins: ("mass", b) or ("edges", e_0, ..., e_b)."""
    if isinstance(bins, str):
        num_bins = checks.require_count(num_bins, "num_bins", 1)
        if bins not in ("width", "mass"):
            raise ValueError(f'bins must be "width", "mass" or a sequence of edges, got {bins!r}')
        return ("mass", num_bins) if bins == "mass" else ("edges", *(np.arange(num_bins + 1) / num_bins).tolist())
    try:
        edges = np.asarray(bins, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f'bins must be "width", "mass" or a sequence of edges, got {bins!r}') from error
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or not (np.diff(edges) > 0).all():
        raise ValueError(f"bins: edges must increase strictly from 0 to 1, got {edges.tolist()}")
    return ("edges", *edges.tolist())


def mass_bin(smaller, mass, num_bins):
    """floor(num_bins * smaller / mass), int32: the bin of a score with the weight `smaller`, of `mass`, below it."""
    rank = num_bins * smaller
    below = jnp.floor(rank / mass)
    # compilers divide by a multiplication, 147 / 147 < 1; products of counts are exact
    below = below + ((below + 1) * mass <= rank) - (below * mass > rank)
    return jnp.clip(below, 0, num_bins - 1).astype(jnp.int32)
