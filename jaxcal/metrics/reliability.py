"""The data of a reliability diagram: what was said against what happened, bin by bin."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.metrics.binned import assign, bin_rule, bin_sums
from jaxcal.metrics.events import as_events, clean, report

_Z95 = 1.959963984540054  # 97.5 % point of the normal law


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReliabilityCurve:
    """Binned reliability of a binary event; arrays are `(..., b)`, NaN in empty bins but for `count` and `edges`.

    Attributes:
        count: rows (sum of weights) a bin.
        confidence: mean probability a bin.
        frequency: mean outcome a bin.
        lower, upper: 95 % Wilson interval of the frequency, honest also where all outcomes of a bin are equal.
        edges: from 0 to 1 `(..., b + 1)`; bin i holds the probabilities in [edges[i], edges[i + 1]), the last also 1.
            Bins "mass" begin at their smallest probability, the first at 0; empty ones have no width.
    """

    count: jax.Array
    confidence: jax.Array
    frequency: jax.Array
    lower: jax.Array
    upper: jax.Array
    edges: jax.Array


def reliability_curve(p, y, *, num_bins: int = 15, bins="width", weights=None) -> ReliabilityCurve:
    """Mean forecast, observed frequency and its interval in bins; what `jaxcal.plots.reliability_diagram` draws.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        num_bins, bins: as for `jaxcal.ece`: "width" bins [i/b, (i+1)/b) with the last closed at 1, "mass", or edges.
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
    p, y, weights = as_events(p, y, weights)
    return report(_curve(p, y, weights, bin_rule(bins, num_bins)), p, y, weights, "reliability_curve")


@jax.jit(static_argnums=3)
def _curve(p, y, weights, rule):
    sums = bin_sums(p, y, weights, rule)
    n = sums.weight
    occupied = n > 0
    safe = jnp.where(occupied, n, 1)
    blank = lambda a: jnp.where(occupied, a, jnp.nan)  # noqa: E731
    f = sums.frequency / safe
    shrink = 1 + _Z95**2 / safe
    centre = (f + _Z95**2 / (2 * safe)) / shrink
    half = _Z95 * jnp.sqrt(f * (1 - f) / safe + _Z95**2 / (4 * safe**2)) / shrink
    return ReliabilityCurve(
        n,
        blank(sums.confidence / safe),
        blank(f),
        blank(jnp.maximum(centre - half, 0)),
        blank(jnp.minimum(centre + half, 1)),
        _edges(p, y, weights, rule, n.shape[:-1]),
    )


def _edges(p, y, weights, rule, batch):
    events = clean(p, y, weights)
    if rule[0] == "edges":
        edges = jnp.asarray(np.asarray(rule[1:]).astype(p.dtype), events.p.dtype)  # as rounded for the comparison
    else:
        q, w = jnp.broadcast_arrays(jax.lax.stop_gradient(events.p), events.w)
        index, num_bins = assign(q, w, rule)
        least = jnp.vectorize(lambda *rows: jax.ops.segment_min(*rows, num_bins), signature="(n),(n)->(b)")
        # of a bin and those above it, so that an empty bin ends where it begins; absent rows begin none
        begin = jax.lax.cummin(least(jnp.where(w > 0, q, 1), index), axis=q.ndim - 1, reverse=True)
        ends = [(0, 0)] * (q.ndim - 1)
        edges = jnp.pad(jnp.minimum(begin[..., 1:], 1), [*ends, (1, 1)], constant_values=[*ends, (0, 1)])
    return jnp.broadcast_to(edges * events.poison[..., None], (*batch, edges.shape[-1]))
