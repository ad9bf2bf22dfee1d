"""Tests of calibration on the rank estimator."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaincc, ndtr

from jaxcal import checks
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import Groups, calibrated_outcomes
from jaxcal.metrics.rank import ordered_groups, previous, rank_sum
from jaxcal.metrics.results import TestResult, test_without_bootstrap
from jaxcal.solvers import total

_METHODS = ("asymptotic", "finite", "simulation")
_VARIANCES = ("exact", "paper")

# Below this skewness the cube root of a gamma variable is as normal (Wilson and Hilferty 1931), to 1.5e-5 and 1e-7, as
# the gamma law itself is evaluated with the digits of the dtype.
_NEARLY_NORMAL = {"float32": 0.1, "float64": 0.01}

# Skewness of n R that is left out, and by how much the paper's variance may be off, before the size at 5 % leaves 0.045
# to 0.057 (10,000 simulated data sets each, see the docstring).
_LARGEST_SKEWNESS = 0.3
_LARGEST_ERROR = 0.1

# Of fewer rows the law of n R is visibly discrete: sizes at 5 % from 0.03 to 0.14 by enumeration for n = 3 to 10.
_FEWEST_ROWS = 30

# Simulated outcomes that are in memory together.
_BLOCK = 1 << 22


@test_without_bootstrap
def rank_ece_test(
    p, y, *, method: str = "asymptotic", variance: str = "exact", key=None, num_simulations: int = 999, weights=None
) -> TestResult:
    r"""Test that forecasts are calibrated, E[y | p] = p, on the rank estimator R of `rank_ece`; large R rejects.

    "asymptotic": T = n R / sqrt(V), V the exact variance of n R given p under calibration,
    V = sum_k 2 v_k^2 (m_k - 1)/m_k + sum_k v_k v_{k+1} / (m_k m_{k+1}), v = p (1 - p), groups of m_k equal scores. The
    p-value is that of the gamma law with this variance and the third moment that ties give to n R; without ties it is
    the normal law. `variance="paper"` takes V = sum v^2 and the normal law (for scores without ties).
    "finite": valid for every n and law, by Bernstein's inequality: min(1, 2 exp(-x^2)) with x > 0 solving
    2 sqrt(s/n) x + 2 x^2 / (3 n) = R, s = (1/n) sum_{i<n} v_(i) v_(i+1). Little power before n = 1000.
    "simulation": outcomes drawn from the forecasts; (1 + #{R* >= R}) / (1 + num_simulations), valid for every n.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        method: "asymptotic", "finite" or "simulation", static.
        variance: "exact" or "paper", for the asymptotic method, static.
        key: JAX random key, for the simulation; lanes get draws of their own.
        num_simulations: for the simulation, static.
        weights: whole counts `(..., n)`; a row of weight w is w equal rows. Other weights are invalid.

    Returns:
        `TestResult`, arrays `(...)`. Its statistic is T for the asymptotic method and R else. `reliable` is False for
        the asymptotic method for fewer than 30 rows, or so extreme forecasts that n R is skewed by more than 0.3, and
        for the paper's variance where ties put it off by more than a tenth. NaN in invalid lanes and, asymptotic, where
        V is 0: for one row, and where no two neighbours have random outcomes.

    Size at 5 % of the asymptotic method, 10,000 data sets each, n = 50, 200, 2000: uniform forecasts .053 .051 .051;
    Beta(.3, .7) .053 .055 .050; nine atoms .052 .047 .047 (paper's variance .009 .000 .000). Within .02 of 0 or 1,
    where `reliable` is False, .006 .024 .055, and .12 at n = 1000.

    Its strength are local departures, which change sign within a few forecasts; every departure is seen in the end. It
    is weak against smooth ones, for which take `weak_calibration_test`, `skce_test` or
    `kolmogorov_smirnov_calibration`. Power at 5 %, p uniform, n = 5000: y = p + .1 sin(60 pi p) .54 (those tests: .39,
    .07, .06); log-odds times .85 .09 (1.00, .92, .65); y = p - .03 .11 (1.00, 1.00, 1.00). Cost O(n log n), times
    num_simulations for the simulation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> result = jaxcal.rank_ece_test(p, jnp.array([0, 1, 1, 1, 0, 1, 1, 1, 1, 1]))
        >>> print(f"T = {result.statistic:.4f}, p = {result.p_value:.4f}")
        T = 2.0976, p = 0.0180

    References:
        "A Ranking Approach for Measuring Calibration", Proposition 3.4, Theorem 3.2 and Corollary 3.1.
    """
    if method not in _METHODS:
        raise ValueError(f"method must be one of {_METHODS}, got {method!r}")
    if variance not in _VARIANCES:
        raise ValueError(f"variance must be one of {_VARIANCES}, got {variance!r}")
    if method == "simulation" and key is None:
        raise ValueError('method="simulation" draws outcomes and needs a key, e.g. jax.random.key(0)')
    if method == "simulation":
        checks.require_key(key, "rank_ece_test")
    num_simulations = checks.require_count(num_simulations, "num_simulations", 1)
    p, y, weights = as_events(p, y, weights)
    if method == "simulation":
        result = _simulation(p, y, weights, key, num_simulations)
    else:
        result = _finite(p, y, weights) if method == "finite" else _asymptotic(p, y, weights, variance)
    return report(result, p, y, weights, "rank_ece_test", whole=True)


@partial(jax.jit, static_argnums=3)
def _asymptotic(p, y, weights, variance):
    events = clean(p, y, weights, whole=True)
    groups = ordered_groups(events)
    z, m, _ = groups
    v = jnp.where(m > 0, z * (1 - z), 0)
    safe, many = jnp.where(m > 0, m, 1), jnp.maximum(m - 1, 0)
    mean = v / safe
    second = total(2 * v**2 * many / safe + mean * previous(mean))
    # what the third moments of the residuals add to that of n R, which the laws used here leave out
    cube = v * (1 - 2 * z)
    left_out = total(4 * cube**2 * many / safe**2 + (cube / safe**2) * previous(cube / safe**2))
    reliable = (left_out < _LARGEST_SKEWNESS * second**1.5) & (events.mass >= _FEWEST_ROWS)
    if variance == "exact":
        third = total(8 * v**3 * many * jnp.maximum(m - 2, 0) / safe**2)
    else:
        paper, third = total(m * v**2), jnp.zeros_like(second)
        reliable &= jnp.abs(second - paper) < _LARGEST_ERROR * paper
        second = paper
    second = jnp.where(second > 0, second, jnp.nan)
    statistic = rank_sum(groups) / jnp.sqrt(second) * events.poison
    return TestResult(statistic, gamma_tail(statistic, third / second**1.5), reliable)


def gamma_tail(x, skewness):
    """P(X >= x) for the gamma law of mean 0, variance 1 and the given skewness >= 0, the normal law at 0."""
    nearly = skewness < _NEARLY_NORMAL[x.dtype.name]
    s = jnp.where(nearly, 1, skewness)
    gamma = gammaincc(4 / s**2, jnp.maximum(4 / s**2 + 2 * x / s, 0))
    s = jnp.where(nearly & (skewness > 0), skewness, 1)
    root = 6 / s * jnp.expm1(jnp.log1p(jnp.maximum(s * x / 2, -1)) / 3) + s / 6
    return jnp.where(nearly, ndtr(-jnp.where(skewness > 0, root, x)), gamma)


@jax.jit
def _finite(p, y, weights):
    events = clean(p, y, weights, whole=True)
    groups = ordered_groups(events)
    z, m, _ = groups
    n = events.mass
    v = jnp.where(m > 0, z * (1 - z), 0)
    s = total(jnp.maximum(m - 1, 0) * v**2 + v * previous(v)) / n
    statistic = rank_sum(groups) / n * events.poison
    # the positive root of (2/3) x^2 + 2 sqrt(s n) x = n R, without cancellation
    scaled = n * jnp.maximum(statistic, 0)
    root = jnp.sqrt(s * n + 2 * scaled / 3)
    x = jnp.where(scaled > 0, scaled / jnp.where(scaled > 0, jnp.sqrt(s * n) + root, 1), 0)
    p_value = jnp.minimum(1, 2 * jnp.exp(-(x**2))) + 0 * statistic
    return TestResult(statistic, p_value, jnp.ones_like(p_value, bool))


@partial(jax.jit, static_argnums=4)
def _simulation(p, y, weights, key, num_simulations):
    events = clean(p, y, weights, whole=True)
    groups = ordered_groups(events)
    z, m, _ = groups
    observed = rank_sum(groups)
    # outcomes are whole: equal values of R must not be told apart by rounding
    slack = 64 * jnp.finfo(z.dtype).eps * jnp.maximum(total(m * z * (1 - z)), 1)
    outcomes = calibrated_outcomes(groups, weighted=weights is not None)
    draw = lambda key: rank_sum(Groups(z, m, outcomes(key)))  # noqa: E731
    batch = max(1, min(num_simulations, _BLOCK // max(1, z.size)))
    draws = lax.map(lambda k: draw(k) >= observed - slack, jax.random.split(key, num_simulations), batch_size=batch)
    p_value = (1 + jnp.sum(draws, axis=0)) / (1 + num_simulations) * events.poison
    return TestResult(observed / events.mass * events.poison, p_value, jnp.ones_like(p_value, bool))
