"""The data of a reliability diagram: what was said against what happened, bin by bin."""

from dataclasses import dataclass
from statistics import NormalDist

import jax
import jax.numpy as jnp

from jaxcal.metrics.binned import bin_rule, bin_sums
from jaxcal.metrics.events import as_events, report


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReliabilityCurve:
    """Binned reliability of a binary event; arrays are `(..., b)`, NaN in empty bins but for `count`.

    Attributes:
        count: rows (sum of weights) a bin.
        confidence: mean probability a bin.
        frequency: mean outcome a bin.
        lower, upper: Wilson interval of the frequency, honest also where all outcomes of a bin are equal.
    """

    count: jax.Array
    confidence: jax.Array
    frequency: jax.Array
    lower: jax.Array
    upper: jax.Array


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
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    p, y, weights = as_events(p, y, weights)
    z = NormalDist().inv_cdf((1 + level) / 2)
    return report(_curve(p, y, weights, bin_rule(bins, num_bins), z), p, y, weights, "reliability_curve")


@jax.jit(static_argnums=3)
def _curve(p, y, weights, rule, z):
    sums = bin_sums(p, y, weights, rule)
    n = sums.weight
    occupied = n > 0
    safe = jnp.where(occupied, n, 1)
    blank = lambda a: jnp.where(occupied, a, jnp.nan)  # noqa: E731
    f = sums.frequency / safe
    shrink = 1 + z**2 / safe
    centre = (f + z**2 / (2 * safe)) / shrink
    half = z * jnp.sqrt(f * (1 - f) / safe + z**2 / (4 * safe**2)) / shrink
    return ReliabilityCurve(
        n,
        blank(sums.confidence / safe),
        blank(f),
        blank(jnp.maximum(centre - half, 0)),
        blank(jnp.minimum(centre + half, 1)),
    )
