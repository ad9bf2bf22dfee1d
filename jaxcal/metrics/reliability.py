"""The data of a reliability diagram: what was said against what happened, bin by bin."""

from dataclasses import dataclass
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.metrics.binned import bin_by
from jaxcal.metrics.events import as_events, report
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import bin_rule, sort


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReliabilityCurve:
    """Binned reliability of a binary event; arrays are `(..., b)`, NaN in empty bins but for `count` and `edges`.

    Attributes:
        count: rows (sum of weights) a bin.
        confidence: mean probability a bin.
        frequency: mean outcome a bin.
        lower, upper: Wilson interval of the frequency, honest also where all outcomes of a bin are equal.
        edges: from 0 to 1 `(..., b + 1)`; bin i holds the probabilities in [edges[i], edges[i + 1]), the last also 1.
            Bins "mass" begin at their smallest probability, the first at 0; empty ones have no width.
    """

    count: jax.Array
    confidence: jax.Array
    frequency: jax.Array
    lower: jax.Array
    upper: jax.Array
    edges: jax.Array


@without_bootstrap("its bins may move with the resample; its frequencies have intervals already, lower and upper")
def reliability_curve(p, y, *, num_bins: int = 15, bins="width", level: float = 0.95, weights=None) -> ReliabilityCurve:
    """Mean forecast, observed frequency and its interval in bins; what `jaxcal.plots.reliability_diagram` draws.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        num_bins, bins: as for `jaxcal.ece`: "width" bins [i/b, (i+1)/b) with the last closed at 1, "mass", or edges.
        level: probability of covering of the intervals, static.
        weights: counts `(..., n)`; the interval takes their sum as the number of rows.

    Returns:
        `ReliabilityCurve`, NaN in invalid lanes; an eager call raises `ValueError` if no lane is valid. The interval is
        that of a binomial proportion: asymptotic, one bin at a time, without correction for looking at b of them.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> curve = jaxcal.reliability_curve(jnp.array([0.1, 0.2, 0.9]), jnp.array([0, 1, 1]), num_bins=2)
        >>> curve.count.tolist(), curve.frequency.tolist()
        ([2.0, 1.0], [0.5, 1.0])

    References:
        Wilson, JASA 1927.
    """
    level = checks.require_level(level)
    p, y, weights = as_events(p, y, weights)
    z = NormalDist().inv_cdf((1 + level) / 2)
    return report(_curve(p, y, weights, bin_rule(bins, num_bins), z), p, y, weights, "reliability_curve")


@jax.jit(static_argnums=3)
def _curve(p, y, weights, rule, z):
    events, add = bin_by(p, y, weights, rule)
    w = jnp.ones(events.p.shape[-1:], jnp.int32) if events.weights is None else events.weights
    n = add(w)
    edges = _edges(p.dtype, events, add, rule)
    occupied = n > 0
    safe = jnp.where(occupied, n, 1)
    blank = lambda a: jnp.where(occupied, a, jnp.nan)  # noqa: E731
    f = add(w * events.y) / safe
    shrink = 1 + z**2 / safe
    centre = (f + z**2 / (2 * safe)) / shrink
    half = z * jnp.sqrt(f * (1 - f) / safe + z**2 / (4 * safe**2)) / shrink
    return ReliabilityCurve(
        n,
        blank(add(w * events.p) / safe),
        blank(f),
        blank(jnp.maximum(centre - half, 0)),
        blank(jnp.minimum(centre + half, 1)),
        jnp.broadcast_to(edges, (*n.shape[:-1], edges.shape[-1])),
    )


def _edges(dtype, events, add, rule):
    """Those that scores of this dtype were compared with, or where bins of equal mass begin."""
    if rule[0] == "edges":
        edges = np.asarray(rule[1:]).astype(dtype).astype(events.p.dtype)
        return edges * events.poison[..., None]
    # a bin begins at the first score after those of the bins below; absent rows are none
    present = events.w > 0
    below = jnp.cumsum(add(present.astype(jnp.int32)).astype(jnp.int32), axis=-1)[..., :-1]
    scores = sort(jnp.where(present, events.p, 1))
    scores = jnp.broadcast_to(scores, (*below.shape[:-1], scores.shape[-1]))
    begin = jnp.take_along_axis(scores, jnp.minimum(below, scores.shape[-1] - 1), axis=-1)
    begin = jnp.where(below < scores.shape[-1], begin, 1)
    ends = jnp.zeros_like(begin[..., :1])
    return lax.stop_gradient(jnp.concatenate([ends, begin, ends + 1], axis=-1)) * events.poison[..., None]
