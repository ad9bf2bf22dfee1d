"""The calibration line of clinical prediction: intercept, slope, their test, and observed over expected."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.results import TestResult, test_without_bootstrap
from jaxcal.solvers import total
from jaxcal.status import Status

# Newton steps: 5 to 8 in ordinary lanes, up to 200 were seen where one row keeps the outcomes from being separated.
_MAX_STEPS = 400

# Variance of the number of events, sum p (1 - p), from which on the size at 5 % of the chi-square law was between 0.048
# and 0.057 (beta forecasts, 20,000 data sets each); 0.063 at 4.4, and lines that do not exist at 2.6.
_ENOUGH_VARIANCE = 10.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CalibrationLine:
    """log-odds of the event = intercept + slope * log-odds of the forecast; arrays `(...)`.

    Attributes:
        intercept: 0 for calibrated forecasts; > 0: risks are too low.
        slope: 1 for calibrated forecasts; < 1: risks are too extreme. Exactly 1 where it was held fixed.
        intercept_se, slope_se: standard errors, from the Fisher information at the fit, right if the log-odds are on a
            line (else too small by some ten per cent, seen with 5 % of wrong labels: `jaxcal.bootstrap` is not); the
            slope's is 0 where it was held fixed.
        status: `jaxcal.Status`. Numbers are NaN but for CONVERGED, as no finite optimum exists: AT_UPPER_BOUND or
            AT_LOWER_BOUND: the slope (held fixed: the intercept) goes to inf or -inf, because the forecasts separate
            the outcomes (only one outcome occurs). NOT_IDENTIFIED: a slope from one outcome, or from equal forecasts.
            IMPOSSIBLE_EVENT: a forecast of 0 or 1 was wrong. NOT_CONVERGED, INVALID_INPUT.
    """

    intercept: jax.Array
    slope: jax.Array
    intercept_se: jax.Array
    slope_se: jax.Array
    status: jax.Array


def calibration_intercept(p, y, *, weights=None) -> CalibrationLine:
    r"""Calibration in the large: the shift of all log-odds that makes the mean forecast the frequency.

    The intercept a solves sum_i (y_i - sigma(a + logit p_i)) = 0, the maximum likelihood with slope 1.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.

    Returns:
        `CalibrationLine` with slope 1, arrays `(...)`, float32 for half-precision input. Forecasts of exactly 0 or 1
        that came true say nothing about a shift and drop out; if one did not, no shift explains it: NaN,
        IMPOSSIBLE_EVENT. NaN too where one outcome is missing. Invalid lanes are NaN; an eager call raises `ValueError`
        if no lane is valid.

    Consistent, its bias is of order 1/n. Differentiable in p and weights (first order). Cost O(n) a Newton step, about
    6 of them.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> line = jaxcal.calibration_intercept(p, jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]))
        >>> print(f"{line.intercept:.4f} +- {line.intercept_se:.4f}")
        0.3019 +- 0.7604

    References:
        Cox, Biometrika 1958. Van Calster et al., "Calibration: the Achilles heel of predictive analytics", BMC Medicine
        2019.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_line(p, y, weights, False), p, y, weights, "calibration_intercept")


def calibration_slope(p, y, *, weights=None) -> CalibrationLine:
    r"""Logistic regression of the outcomes on the log-odds of the forecasts (Cox recalibration).

    Maximum likelihood of y_i ~ Bernoulli(sigma(intercept + slope * logit p_i)).

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.

    Returns:
        `CalibrationLine`, arrays `(...)`, float32 for half-precision input. Forecasts of exactly 0 or 1 that came true
        drop out (any slope > 0 explains them; NaN, NOT_IDENTIFIED, where that of the others is not); if one did not
        come true: NaN, IMPOSSIBLE_EVENT. NaN too where the forecasts separate the outcomes, are all equal, or one
        outcome is missing: no finite slope is best, see `status`. Invalid lanes are NaN; an eager call raises
        `ValueError` if no lane is valid.

    The intercept is not calibration in the large, which is `calibration_intercept`. Consistent for the logit-linear
    part of miscalibration; the slope is biased away from 0 by order 1/n. Differentiable in p and weights (first order).
    Cost O(n) a Newton step, about 6 of them.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> line = jaxcal.calibration_slope(p, jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]))
        >>> print(f"{line.slope:.4f} +- {line.slope_se:.4f}, intercept {line.intercept:.4f}")
        0.9463 +- 0.6557, intercept 0.2849

    References:
        Cox, Biometrika 1958. Van Calster et al., "Calibration: the Achilles heel of predictive analytics", BMC Medicine
        2019.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_line(p, y, weights, True), p, y, weights, "calibration_slope")


@test_without_bootstrap
def weak_calibration_test(p, y, *, weights=None) -> TestResult:
    r"""Likelihood ratio test that intercept and slope of the calibration line are 0 and 1 ("weak calibration").

    T = 2 (log L(intercept, slope) - log L(0, 1)), compared with the chi-square law of 2 degrees: p-value exp(-T/2).

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.

    Returns:
        `TestResult`, arrays `(...)`. T is inf where a forecast of 0 or 1 was wrong, and NaN where the calibration line
        does not exist (see `calibration_slope`). `reliable` is False where sum p (1 - p), the variance of the number of
        events, is below 10; above, the size at 5 % was found between 0.048 and 0.057. Invalid lanes are NaN; an eager
        call raises `ValueError` if no lane is valid.

    It has power against shifts and stretches of the log-odds only: forecasts that pass may be far from calibrated.
    Differentiable in p and weights. Cost O(n) a Newton step, about 6.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> result = jaxcal.weak_calibration_test(p, jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]))
        >>> print(f"T = {result.statistic:.4f}, p = {result.p_value:.4f}, {result.reliable}")
        T = 0.1638, p = 0.9214, False

    References:
        Miller, Hui and Tierney, Statistics in Medicine 1991. Van Calster et al., BMC Medicine 2019.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_test(p, y, weights), p, y, weights, "weak_calibration_test")


def observed_expected_ratio(p, y, *, weights=None) -> jax.Array:
    r"""Observed over expected number of events, sum_i y_i / sum_i p_i; 1 for calibrated forecasts, > 1: risks too low.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.

    Returns:
        `(...)`, float32 for half-precision input; inf where events happened and all forecasts are 0, NaN where none
        did. Invalid lanes are NaN; an eager call raises `ValueError` if no lane is valid.

    Unbiased given the forecasts, if they are calibrated. Differentiable in p and weights. Cost O(n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> float(jaxcal.observed_expected_ratio(jnp.array([0.25, 0.5, 0.25]), jnp.array([0, 1, 1])))
        2.0
    """
    p, y, weights = as_events(p, y, weights)
    return report(_ratio(p, y, weights), p, y, weights, "observed_expected_ratio")


@jax.jit
def _ratio(p, y, weights):
    events = clean(p, y, weights)
    observed, expected = total(events.w * events.y), total(events.w * events.p)
    # no events expected and none observed: no ratio
    ratio = observed / jnp.where(expected > 0, expected, 1)
    return jnp.where(expected > 0, ratio, jnp.where(observed > 0, jnp.inf, jnp.nan)) * events.poison


@jax.jit
def _test(p, y, weights):
    line, x, y, w, impossible, poison = _fit(p, y, weights, True)
    moved = line.intercept[..., None] + line.slope[..., None] * x
    softplus, sign = jax.nn.softplus, 1 - 2 * y
    gain = jnp.where(w > 0, w * (softplus(sign * x) - softplus(sign * moved)), 0)
    statistic = 2 * total(gain)
    statistic = jnp.where(statistic < 0, 0, statistic)  # by rounding alone
    statistic = jnp.where(impossible, jnp.inf, statistic + 0 * line.slope) * poison  # NaN without a line
    q = jax.nn.sigmoid(x)
    return TestResult(statistic, jnp.exp(-statistic / 2), total(w * q * (1 - q)) >= _ENOUGH_VARIANCE)


@partial(jax.jit, static_argnums=3)
def _line(p, y, weights, with_slope):
    return _fit(p, y, weights, with_slope)[0]


def _fit(p, y, weights, with_slope):
    """The line, and what it stands on: log-odds, outcomes, weights (0 in certain rows), impossible lanes, poison."""
    events = clean(p, y, weights)
    shape = jnp.broadcast_shapes(events.p.shape, events.y.shape, events.w.shape)
    p, y, w = (jnp.broadcast_to(a, shape) for a in (events.p, events.y, events.w))
    certain = (p == 0) | (p == 1)
    impossible = jnp.any(certain & (p != y) & (w > 0), axis=-1)
    has_certain = jnp.any(certain & (w > 0), axis=-1)
    w = jnp.where(certain, 0, w)
    q = jnp.where(certain, 0.5, p)
    x = jnp.log(q) - jnp.log1p(-q)

    status = _existence(x, y, w, with_slope)
    status = jnp.where(impossible, Status.IMPOSSIBLE_EVENT, status)
    status = jnp.where(jnp.isnan(events.poison), Status.INVALID_INPUT, status)
    ok = status == Status.CONVERGED
    (intercept, slope), errors, converged = _newton(x, y, w, ok, with_slope)
    status = jnp.where(ok & ~converged, Status.NOT_CONVERGED, status)
    if with_slope:
        status = jnp.where((status == Status.CONVERGED) & has_certain & (slope <= 0), Status.NOT_IDENTIFIED, status)
    # NaN in derivatives too, by a product
    mark = jnp.where(status == Status.CONVERGED, 1, jnp.nan).astype(p.dtype)
    line = CalibrationLine(intercept * mark, slope * mark, *(e * mark for e in errors), status)
    return line, x, y, w, impossible, events.poison


def _existence(x, y, w, with_slope):
    """Whether a finite optimum exists. Of a slope: the log-odds of the two outcomes overlap on both sides."""

    def ends(rows):
        low = jnp.min(jnp.where(rows, x, jnp.inf), axis=-1)
        return low, jnp.max(jnp.where(rows, x, -jnp.inf), axis=-1)

    events, others = (w > 0) & (y == 1), (w > 0) & (y == 0)
    some, rest = jnp.any(events, axis=-1), jnp.any(others, axis=-1)
    both = some & rest
    one = jnp.where(some, Status.AT_UPPER_BOUND, jnp.where(rest, Status.AT_LOWER_BOUND, Status.NOT_IDENTIFIED))
    if not with_slope:
        return jnp.where(both, Status.CONVERGED, one)
    (low_1, high_1), (low_0, high_0) = ends(events), ends(others)
    up, down = low_1 >= high_0, high_1 <= low_0
    status = jnp.where(up, Status.AT_UPPER_BOUND, jnp.where(down, Status.AT_LOWER_BOUND, Status.CONVERGED))
    return jnp.where(~both | (up & down), Status.NOT_IDENTIFIED, status)


def _newton(x, y, w, active, with_slope):
    """Maximum likelihood of y ~ sigma(a + b x): `((a, b), standard errors, converged)`, b = 1 fixed without slope.

    x is centred and scaled, so that the steps do not depend on its units. A step is shortened to log(1 + r) / r of
    Newton's, r the largest change it makes to a predictor, with which the logistic loss falls from any start; near the
    optimum that is 1. After a step whose predicted decrease is below one rounding of the loss, the error of the
    parameters is its square: the rounding of the parameters. The last step carries the derivatives: the optimum moves
    by the inverse information times the change of the score.
    """
    x, y, w = (jnp.where(active[..., None], a, 0) for a in (x, y, w))
    eps = jnp.finfo(x.dtype).eps
    unit = lax.stop_gradient(jnp.max(w, axis=-1, keepdims=True))
    unit = jnp.where(unit > 0, unit, 1)
    v = w / unit  # the optimum does not depend on the size of the weights
    mass = jnp.where(active, total(v), 1)
    if with_slope:
        centre = lax.stop_gradient(total(v * x) / mass)[..., None]
        spread = lax.stop_gradient(jnp.sqrt(total(v * (x - centre) ** 2) / mass))[..., None]
        spread = jnp.where(spread > 0, spread, 1)
        u, offset = (x - centre) / spread, jnp.zeros_like(x)
        start = jnp.stack([centre[..., 0], spread[..., 0]], axis=-1)  # intercept 0, slope 1
    else:
        u, offset = jnp.zeros_like(x), x
        start = jnp.zeros((*mass.shape, 2), x.dtype)

    def newton_step(theta, u, offset, v):
        """The step, the squared length that the information gives it, the information, the predictor."""
        predictor = theta[..., :1] + theta[..., 1:] * u + offset
        q, rest = jax.nn.sigmoid(predictor), jax.nn.sigmoid(-predictor)
        score, h = v * jnp.where(y == 1, rest, -q), v * q * rest
        g0, h00 = total(score), total(h)
        level = g0 / jnp.where(h00 > 0, h00, 1)
        if not with_slope:
            return jnp.stack([level, 0 * level], axis=-1), g0 * level, (h00, 0 * h00, h00), predictor
        # slopes about the mean of u in the metric of the information, where the two steps do not mix
        middle = total(h * u) / jnp.where(h00 > 0, h00, 1)
        about = u - middle[..., None]
        g1, h11 = total(score * about), total(h * about**2)
        slope = g1 / jnp.where(h11 > 0, h11, 1)
        step = jnp.stack([level - middle * slope, slope], axis=-1)
        return step, g0 * level + g1 * slope, (h00, middle, h11), predictor

    data = (u, offset, v)
    fixed_u, _, fixed_v = fixed = lax.stop_gradient(data)

    def advance(state):
        count, theta, done = state
        step, decrement, _, predictor = newton_step(theta, *fixed)
        change = jnp.abs(step[..., :1] + step[..., 1:] * fixed_u)
        reach = jnp.max(jnp.where(fixed_v > 0, change, 0), axis=-1)
        damping = jnp.where(reach > 0, jnp.log1p(reach) / jnp.where(reach > 0, reach, 1), 1)
        loss = total(fixed_v * jax.nn.softplus(jnp.where(y == 1, -predictor, predictor)))
        new = theta + jnp.where(done, 0, damping)[..., None] * step
        return count + 1, new, done | (decrement <= eps * loss)

    def unfinished(state):
        return (state[0] < _MAX_STEPS) & ~jnp.all(state[2])

    _, theta, done = lax.while_loop(unfinished, advance, (jnp.int32(0), start, ~active))
    theta = theta + newton_step(theta, *data)[0]
    _, _, (h00, middle, h11), _ = newton_step(theta, *data)
    level_variance, slope_variance = (1 / jnp.where(active, h * unit[..., 0], 1) for h in (h00, h11))
    if not with_slope:
        one = jnp.ones_like(level_variance)
        return (theta[..., 0], one), (jnp.sqrt(level_variance), 0 * one), done
    centre, spread = centre[..., 0], spread[..., 0]
    slope = theta[..., 1] / spread
    far = middle + centre / spread  # from log-odds 0 to where the fitted line is known best, in units of u
    errors = jnp.sqrt(level_variance + far**2 * slope_variance), jnp.sqrt(slope_variance) / spread
    return (theta[..., 0] - slope * centre, slope), errors, done
