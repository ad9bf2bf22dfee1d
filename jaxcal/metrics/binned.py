"""Binned calibration error of a binary event, and the bins it stands on."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.metrics.events import as_events, report
from jaxcal.solvers import argsort, segment_totals

_NORMS = ("l1", "l2", "max")


class Bins(NamedTuple):
    """Sums over the bins of a binary event; arrays are `(..., b)`."""

    weight: jax.Array  # sum of weights
    confidence: jax.Array  # sum of weight * probability
    frequency: jax.Array  # sum of weight * outcome
    gap: jax.Array  # sum of weight * (outcome - probability), summed as differences


def ece(
    p, y, *, num_bins: int = 15, norm: str = "l1", bins: str | Sequence[float] = "width", weights=None
) -> jax.Array:
    r"""Expected calibration error (ECE), the plug-in estimate from bins.

    l1: sum_b (n_b/n) |ybar_b - pbar_b|,   l2: sqrt(sum_b (n_b/n) (ybar_b - pbar_b)^2),   max: max_b |ybar_b - pbar_b|

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}, bool, int or float. From logits:
            `ece(*jaxcal.top_label(logits, labels))`, `ece(*jaxcal.class_wise(logits, labels))` (one value a class) or
            `ece(*jaxcal.binary_event(logits, labels, 1))`. These are different quantities.
        num_bins: number of bins b, static.
        norm: "l1" (ECE), "l2" (RMSCE) or "max" (MCE), static.
        bins: "width": b bins [i/b, (i+1)/b), the last closed at 1, edges exact in the dtype of p. "mass": equal
            weight a bin; equal scores stay together, in bin floor(b * weight of smaller scores / n). Or increasing
            edges from 0 to 1, the same half-open convention.
        weights: counts `(..., n)`; rows of weight 0 are absent.

    Returns:
        `(...)`, float32 for half-precision input. Invalid lanes are NaN; an eager call raises `ValueError` if no lane
        is valid.

    Estimates the binned calibration error, a lower bound of the true one; its bias as an estimate of that is
    positive, up to about sqrt(b/n), also for calibrated forecasts, so it gets no interval. Differentiable in p and
    weights with the bins held fixed. Cost O(n), "mass" a sort.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> round(float(jaxcal.ece(jnp.array([0.92, 1.0]), jnp.array([1, 0]), num_bins=10)), 4)
        0.46

    References:
        Naeini, Cooper and Hauskrecht, AAAI 2015. Guo et al., ICML 2017.
    """
    if norm not in _NORMS:
        raise ValueError(f"norm must be one of {_NORMS}, got {norm!r}")
    p, y, weights = as_events(p, y, weights)
    return report(_ece(p, y, weights, bin_rule(bins, num_bins), norm), p, y, weights, "ece")


def bin_rule(bins, num_bins: int) -> tuple:
    """A hashable description of the bins: ("mass", b) or ("edges", e_0, ..., e_b)."""
    if isinstance(bins, str):
        if not isinstance(num_bins, int) or isinstance(num_bins, bool) or num_bins < 1:
            raise ValueError(f"num_bins must be an integer >= 1, got {num_bins!r}")
        if bins not in ("width", "mass"):
            raise ValueError(f'bins must be "width", "mass" or a sequence of edges, got {bins!r}')
        return ("mass", num_bins) if bins == "mass" else ("edges", *(np.arange(num_bins + 1) / num_bins).tolist())
    edges = np.asarray(bins, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or not (np.diff(edges) > 0).all():
        raise ValueError(f"edges must increase strictly from 0 to 1, got {edges.tolist()}")
    return ("edges", *edges.tolist())


def assign(p: jax.Array, weights: jax.Array | None, rule: tuple) -> tuple[jax.Array, int]:
    """Bin of each probability and the number of bins. For "mass" p and weights must have the same batch shape."""
    if rule[0] == "mass":
        return _mass_bin(p, weights, rule[1]), rule[1]
    inner = jnp.asarray(np.asarray(rule[2:-1]).astype(p.dtype))  # rounded on the host: the float nearest to i/b
    return jnp.searchsorted(inner, jax.lax.stop_gradient(p), side="right").astype(jnp.int32), len(rule) - 2


def _mass_bin(p, weights, num_bins):
    weights = jnp.ones(p.shape, p.dtype) if weights is None else weights
    order = argsort(p)
    sorted_p = jnp.take_along_axis(p, order, axis=-1)
    sorted_w = jax.lax.stop_gradient(jnp.take_along_axis(weights, order, axis=-1))
    before = jnp.cumsum(sorted_w, axis=-1) - sorted_w
    first = jnp.concatenate([jnp.ones_like(sorted_p[..., :1], bool), sorted_p[..., 1:] != sorted_p[..., :-1]], axis=-1)
    # the weight before the first of a group of equal scores, carried along the group: it never decreases
    smaller = jax.lax.cummax(jnp.where(first, before, 0), axis=before.ndim - 1)
    mass = jnp.sum(sorted_w, axis=-1, keepdims=True)
    rank = num_bins * smaller
    below = jnp.floor(rank / mass)
    # compilers divide by a multiplication, 147 / 147 < 1; products of counts are exact
    below = below + ((below + 1) * mass <= rank) - (below * mass > rank)
    bin_sorted = jnp.clip(below, 0, num_bins - 1).astype(jnp.int32)
    inverse = argsort(order)
    return jnp.take_along_axis(bin_sorted, inverse, axis=-1)


def bin_sums(p: jax.Array, y: jax.Array, weights: jax.Array | None, rule: tuple) -> Bins:
    """Sums a bin, NaN lanes where a row of weight > 0 is invalid."""
    dtype = checks.compute_dtype(p)
    y = y.astype(dtype)
    valid = (p >= 0) & (p <= 1) & ((y == 0) | (y == 1))
    w = jnp.ones(p.shape[-1:], dtype) if weights is None else weights
    present = w > 0
    lane_ok = jnp.all(valid | ~present, axis=-1, keepdims=True)
    lane_ok &= jnp.all((w >= 0) & (w < jnp.inf), axis=-1, keepdims=True) & jnp.any(present, axis=-1, keepdims=True)
    shape = jnp.broadcast_shapes(valid.shape, w.shape)
    w = jnp.where(present, w, 0)
    q = jnp.where(present & valid, p, 0.0)
    o = jnp.where(present & valid, y, 0.0)
    q, o, w = (jnp.broadcast_to(a, shape) for a in (q, o, w))
    # half-precision scores are compared with edges of their own dtype, everything else is float32
    index, num_bins = assign(q.astype(dtype), w, rule) if rule[0] == "mass" else assign(q, None, rule)
    q = q.astype(dtype)
    sums = [segment_totals(v, index, num_bins) for v in (w, w * q, w * o, w * (o - q))]
    return Bins(*(s * jnp.where(lane_ok, 1, jnp.nan) for s in sums))  # NaN in derivatives too


@jax.jit(static_argnums=(3, 4))
def _ece(p, y, weights, rule, norm):
    sums = bin_sums(p, y, weights, rule)
    mass = jnp.sum(sums.weight, axis=-1)
    if norm == "l1":
        return jnp.sum(jnp.abs(sums.gap), axis=-1) / mass
    gap = sums.gap / jnp.where(sums.weight == 0, 1, sums.weight)
    if norm == "max":
        return jnp.max(jnp.abs(gap), axis=-1)
    square = jnp.sum(sums.weight * gap**2, axis=-1) / mass
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))
