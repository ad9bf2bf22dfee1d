"""rankECE: the squared calibration error without bins, from products of neighbouring residuals."""

import math

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import Groups, group, without_empty
from jaxcal.metrics.results import Interval
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import total


@without_bootstrap("copies of a row are neighbours that correlate; take rank_ece_interval")
def rank_ece(p, y, *, weights=None) -> jax.Array:
    r"""Rank estimate of the squared l2 calibration error E[(E[y|p] - p)^2].

    R = (1/n) sum_{i<n} r_(i) r_(i+1), r = y - p in the order of p: neighbours have nearly the same conditional residual
    and independent noise. Under ties it is the mean of R over all orders of the tied rows, exactly: for groups of m_k
    equal scores, S_k the sum and Q_k the sum of squares of their residuals,

    R = (1/n) [ sum_k (S_k^2 - Q_k) / m_k + sum_k S_k S_{k+1} / (m_k m_{k+1}) ].

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: whole counts `(..., n)`; a row of weight w is w equal rows. Other weights are invalid.

    Returns:
        `(...)`, in squared units of probability, possibly negative; float32 for half-precision input. NaN for
        fewer than two rows. Invalid lanes are NaN; an eager call raises `ValueError` if no lane is valid. Independent
        of the order of the rows.

    Estimates rankECE_n = E R, which lies between 0 and the squared l2 calibration error and approaches it as
    (TV + 1)/n, TV the variation of E[y - p | p]: biased downwards, by much only where that oscillates faster than n
    can see. Its mean is 0 if, and for n >= 3 only if, the forecasts are calibrated. Do not bootstrap it: copies of a
    row are neighbours whose noise is not independent. Differentiable in p (order fixed). Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jnp.array([0.2, 0.5, 0.5, 0.5, 0.9]), jnp.array([0, 1, 0, 1, 1])
        >>> print(f"{jaxcal.rank_ece(p, y):.6f}")  # mean of the six orders of the tied rows, -11/300
        -0.036667

    References:
        "A Ranking Approach for Measuring Calibration", equation 2.1 and Appendix F.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_rank_ece(p, y, weights), p, y, weights, "rank_ece", whole=True)


@without_bootstrap("it is an interval already, of the mean of rank_ece")
def rank_ece_interval(p, y, *, level: float = 0.95, weights=None) -> Interval:
    r"""Interval for the mean of `rank_ece` that holds for every law and every n.

    R -+ sqrt(81 log(2 / delta) / (32 n)), delta = 1 - level: changing one row changes R by at most 9 / (4 n).

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        level: probability of covering, static.
        weights: whole counts `(..., n)`.

    Returns:
        `Interval(lower, upper)`, each `(...)`; lower is not cut at 0. Conservative: its coverage is far above `level`.
        It holds rankECE_n; the squared l2 calibration error itself is only bounded from below by `lower`.

    Examples:
        >>> import jaxcal
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(100_000)
        >>> y = rng.random(p.shape) < p**2
        >>> lower, upper = jaxcal.rank_ece_interval(p, y)
        >>> print(f"{lower:.3f} {upper:.3f}")  # E (p^2 - p)^2 = 1/30
        0.025 0.044

    References:
        "A Ranking Approach for Measuring Calibration", Proposition 2.1.
    """
    level = checks.require_level(level)
    p, y, weights = as_events(p, y, weights)
    return report(_interval(p, y, weights, math.log(2 / (1 - level))), p, y, weights, "rank_ece_interval", whole=True)


# Where both forms of the sum within a group have the same rounding error.
_FEW_ROWS = 32


def rank_sum(groups: Groups) -> jax.Array:
    """n R of groups without empty ones between them."""
    z, m, s = groups
    safe = jnp.where(m > 0, m, 1)
    mean = groups.gap / safe
    f = m - s
    # S^2 - Q over pairs is exactly 0 for one row; as a difference of sums it keeps the digits of large groups
    pairs = (s * (s - 1) * (1 - z) ** 2 + f * (f - 1) * z**2 - 2 * s * f * z * (1 - z)) / safe
    sums = mean * groups.gap - (s * (1 - z) ** 2 + f * z**2) / safe
    within = jnp.where(m > 0, jnp.where(m < _FEW_ROWS, pairs, sums), 0)
    return total(within + mean * previous(mean))


def previous(values: jax.Array) -> jax.Array:
    """The value of the group before, 0 for the first."""
    return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(1, 0)])[..., :-1]


@jax.jit
def _rank_ece(p, y, weights):
    events = clean(p, y, weights, whole=True)
    return _estimate(events)


@jax.jit
def _interval(p, y, weights, log_term):
    events = clean(p, y, weights, whole=True)
    estimate = _estimate(events)
    half = jnp.sqrt(81 * log_term / (32 * events.mass))
    return Interval(estimate - half, estimate + half)


def _estimate(events) -> jax.Array:
    n = events.mass
    return rank_sum(ordered_groups(events)) / jnp.where(n > 1, n, jnp.nan) * events.poison


def ordered_groups(events) -> Groups:
    """Groups whose neighbours are neighbours: none of weight 0 in between."""
    groups = group(events)
    return groups if events.weights is None else without_empty(groups)
