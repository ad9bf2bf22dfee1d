"""Cutoff calibration error: the largest bias on any interval of forecasts."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import Groups, group
from jaxcal.resampling import without_bootstrap


@without_bootstrap("its bias is of the order of its spread; take kolmogorov_smirnov_calibration for a test")
def cutoff_calibration_error(p, y, *, weights=None) -> jax.Array:
    r"""Cutoff calibration error, the largest |mean residual| over intervals: sup_I |E[(y - p) 1{p in I}]|.

    Delta = (max_k C_k - min_k C_k) / n,   C_k = sum of y - p over the k smallest distinct forecasts, C_0 = 0.

    It bounds what miscalibration can cost a decision: for every threshold t, whoever acts when p >= t has a risk (the
    loss t for a false alarm, 1 - t for a miss) at most Delta above that of the best increasing recalibration of p.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.

    Returns:
        `(...)` in [0, 1], between |mean residual| and the l1 calibration error. Invalid lanes are NaN; an eager call
        raises `ValueError` if no lane is valid. Independent of the order of the rows.

    Estimates the supremum for the law of the data without bins or smoothness, uniformly at rate n^(-1/2); its bias is
    positive, about 1.6 sqrt(mean(p (1 - p)) / n) for calibrated forecasts. Also known as ECCE-R. Differentiable in p
    (order and interval fixed) and weights. Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jnp.array([0.1, 0.2, 0.6, 0.9]), jnp.array([0, 1, 1, 1])
        >>> print(f"{jaxcal.cutoff_calibration_error(p, y):.4f}")  # (0.8 + 0.4 + 0.1) / 4
        0.3250

    References:
        Rossellini et al., "Can a calibration metric be both testable and actionable?", COLT 2025. Arrieta-Ibarra et
        al., "Metrics of calibration for probabilistic predictions", JMLR 2022.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_cutoff(p, y, weights), p, y, weights, "cutoff_calibration_error")


def running_gap(groups: Groups) -> jax.Array:
    """C_0 = 0, C_1, ..., C_n: sums of residuals up to each distinct score `(..., n + 1)`.

    Added in a tree, whose rounding grows with log n: a running float32 sum would be off by 1e-4 n at n = 1e6.
    """
    gap = groups.gap
    sums = lax.cumsum(gap, axis=gap.ndim - 1)
    return jnp.concatenate([jnp.zeros_like(sums[..., :1]), sums], axis=-1)


@jax.jit
def _cutoff(p, y, weights):
    events = clean(p, y, weights)
    sums = running_gap(group(events))
    return (jnp.max(sums, axis=-1) - jnp.min(sums, axis=-1)) / events.mass * events.poison
