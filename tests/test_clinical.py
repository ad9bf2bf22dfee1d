"""Calibration line, its test, observed over expected and integrated calibration index, against independent NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status

N = 40
RNG = np.random.default_rng(9)
P = RNG.choice(np.arange(1, 40) / 40, (3, N))
Y = (RNG.random((3, N)) < P**1.5).astype(int)
COUNTS = RNG.integers(0, 4, (3, N))
POINTS = ("ici", "e50", "e90", "emax")


def _logistic(p, y, w):
    """Maximum likelihood of intercept and slope by undamped Newton steps, and their standard errors."""
    x = np.stack([np.ones_like(p), np.log(p) - np.log1p(-p)], -1)
    theta = np.array([0.0, 1.0])
    for _ in range(50):
        q = 1 / (1 + np.exp(-x @ theta))
        information = (x * (w * q * (1 - q))[:, None]).T @ x
        theta = theta + np.linalg.solve(information, x.T @ (w * (y - q)))
    return *theta, *np.sqrt(np.diag(np.linalg.inv(information)))


def _log_likelihood(p, y, w, a, b):
    z = a + b * (np.log(p) - np.log1p(-p))
    return -np.sum(w * np.logaddexp(0, np.where(y == 1, -z, z)))


# --- the line ---


def test_line_of_ten_forecasts(d10, x64):
    """Newton in mpmath, 16 digits; standard errors from the inverse information there."""
    rtol = 1e-10 if x64 else 1e-6
    shift, line = jaxcal.calibration_intercept(*d10), jaxcal.calibration_slope(*d10)
    np.testing.assert_allclose(shift.intercept, 0.3018961075811675, rtol=rtol)
    np.testing.assert_allclose([line.slope, line.intercept], [0.946328155739028, 0.2849119443218132], rtol=rtol)
    assert shift.slope == 1 and shift.slope_se == 0 and shift.status == line.status == Status.CONVERGED
    # log likelihoods a row from the same source: -.5375072053621759 at (0, 1), -.5293164114630393 at the optimum
    result = jaxcal.weak_calibration_test(*d10)
    statistic = 20 * (0.5375072053621759 - 0.5293164114630393)
    np.testing.assert_allclose(result.statistic, statistic, rtol=100 * rtol if not x64 else rtol)
    np.testing.assert_allclose(result.p_value, np.exp(-statistic / 2), rtol=10 * rtol)
    assert not result.reliable


def test_line_of_random_data_with_counts(eps):
    line = jaxcal.calibration_slope(P, Y, weights=COUNTS)
    expected = np.array([_logistic(*lane) for lane in zip(P, Y, COUNTS, strict=True)]).T
    values = [line.intercept, line.slope, line.intercept_se, line.slope_se]
    np.testing.assert_allclose(values, expected, rtol=200 * eps)
    result = jaxcal.weak_calibration_test(P, Y, weights=COUNTS)
    null = [_log_likelihood(*lane, 0, 1) for lane in zip(P, Y, COUNTS, strict=True)]
    best = [
        _log_likelihood(*lane, *theta[:2])
        for lane, theta in zip(zip(P, Y, COUNTS, strict=True), expected.T, strict=True)
    ]
    np.testing.assert_allclose(result.statistic, 2 * (np.array(best) - null), rtol=500 * eps, atol=100 * eps)
    np.testing.assert_array_equal(result.reliable, np.sum(COUNTS * P * (1 - P), -1) >= 10)


def test_intercept_makes_the_mean_forecast_the_frequency(eps):
    shift = jaxcal.calibration_intercept(P, Y, weights=COUNTS)
    q = 1 / (1 + (1 - P) / P * np.exp(-np.asarray(shift.intercept, float))[:, None])
    np.testing.assert_allclose(np.sum(COUNTS * q, -1), np.sum(COUNTS * Y, -1), rtol=32 * eps)
    np.testing.assert_allclose(shift.intercept_se, np.sum(COUNTS * q * (1 - q), -1) ** -0.5, rtol=64 * eps)


def test_the_line_does_not_depend_on_the_scale_of_the_log_odds():
    """Forecasts within 1e-3 of 1/2, and some beyond 1 - 1e-6: slopes and errors change by the units alone."""
    z = np.linspace(-1, 1, N)
    y = (np.arange(N) * 7 % 10 < 4 + 2 * z).astype(int)
    base = _logistic(1 / (1 + np.exp(-z)), y, np.ones(N))
    for scale in (4e-3, 0.5, 14.0):
        p = 1 / (1 + np.exp(-scale * z))
        line = jaxcal.calibration_slope(p, y)
        # near 1 a float32 probability holds its log-odds to 5 %, near 1/2 to 1e-5 of 4e-3
        tolerance = 0.05 if p.dtype != line.slope.dtype or scale == 14.0 else 1e-4
        np.testing.assert_allclose(line.slope * scale, base[1], rtol=tolerance, atol=tolerance)
        assert line.status == Status.CONVERGED


def test_lines_that_do_not_exist():
    """Separated outcomes, one outcome, equal forecasts: NaN with the reason, and no error."""
    p, y = np.linspace(0.1, 0.9, N), np.arange(N) >= N // 2
    p = np.stack([p, p, p, p, np.full(N, 0.3), p])
    y = np.stack([y, ~y, np.ones(N, bool), np.zeros(N, bool), y, np.arange(N) % 3 == 0])
    line = jaxcal.calibration_slope(p, y)
    up, down, flat = Status.AT_UPPER_BOUND, Status.AT_LOWER_BOUND, Status.NOT_IDENTIFIED
    np.testing.assert_array_equal(line.status, [up, down, flat, flat, flat, Status.CONVERGED])
    for values in (line.slope, line.intercept, line.slope_se, line.intercept_se):
        np.testing.assert_array_equal(np.isnan(values), [True] * 5 + [False])
    shift = jaxcal.calibration_intercept(p, y)
    np.testing.assert_array_equal(shift.status, [0, 0, up, down, 0, 0])
    np.testing.assert_array_equal(np.isnan(shift.intercept), [False, False, True, True, False, False])
    result = jaxcal.weak_calibration_test(p, y)
    np.testing.assert_array_equal(np.isnan(result.p_value), [True] * 5 + [False])
    # one row beyond the border is enough for an optimum, however far
    y[0, [N // 2 - 1, N // 2]] = True, False
    assert jaxcal.calibration_slope(p, y).status[0] == Status.CONVERGED


def test_certain_forecasts(eps):
    p, y = P.copy(), Y.copy()
    p[:, :2], y[:, :2] = [0, 1], [0, 1]
    rest = [_logistic(*lane, np.ones(N - 2)) for lane in zip(p[:, 2:], y[:, 2:], strict=True)]
    line = jaxcal.calibration_slope(p, y)
    np.testing.assert_allclose([line.intercept, line.slope], np.array(rest).T[:2], rtol=200 * eps)
    y[0, 0] = 1
    for call in (jaxcal.calibration_slope, jaxcal.calibration_intercept):
        line = call(p, y)
        np.testing.assert_array_equal(line.status, [Status.IMPOSSIBLE_EVENT, 0, 0])
        assert np.isnan(line.intercept[0]) and np.isfinite(line.intercept[1:]).all()
    result = jaxcal.weak_calibration_test(p, y)
    assert result.statistic[0] == np.inf and result.p_value[0] == 0 and (result.p_value[1:] > 0).all()
    # a falling line does not explain a certain forecast that came true
    falling = jaxcal.calibration_slope(np.where((p > 0) & (p < 1), 1 - p, p), y)
    np.testing.assert_array_equal(falling.status, [Status.IMPOSSIBLE_EVENT] + [Status.NOT_IDENTIFIED] * 2)


def test_invalid_lanes_have_their_status():
    p = P.copy()
    p[1, 3] = 1.5
    line = jaxcal.calibration_slope(p, Y)
    np.testing.assert_array_equal(line.status, [0, Status.INVALID_INPUT, 0])
    assert np.isnan(line.slope[1]) and np.isfinite(line.slope[::2]).all()


def test_the_test_has_its_size():
    """2,000 calibrated data sets of 100 rows: the share below 5 % within 4 standard errors of 0.0525, its size."""
    rng = np.random.default_rng(1)
    p = rng.random((2000, 100))
    result = jaxcal.weak_calibration_test(p, rng.random(p.shape) < p)
    assert abs(np.mean(result.p_value < 0.05) - 0.0525) < 4 * np.sqrt(0.05 * 0.95 / 2000)
    assert np.mean(result.reliable) > 0.99
    power = jaxcal.weak_calibration_test(p, rng.random(p.shape) < p**2).p_value
    assert np.mean(power < 0.05) > 0.9


def test_observed_expected_ratio(eps):
    np.testing.assert_allclose(
        jaxcal.observed_expected_ratio(P, Y, weights=COUNTS), np.sum(COUNTS * Y, -1) / np.sum(COUNTS * P, -1), 8 * eps
    )
    zero = np.zeros((2, N))
    np.testing.assert_array_equal(jaxcal.observed_expected_ratio(zero, zero + [[0], [1]]), [np.nan, np.inf])


# --- integrated calibration index ---


def _loess(p, y, span, points):
    """Local quadratic regression at each point by least squares (minimum norm where it is singular)."""
    k, values = int(np.floor(span * len(p) + 1e-9)), []
    for x in points:
        distance = np.abs(p - x)
        h = np.sort(distance)[k - 1]
        kernel = (1 - np.minimum(distance / h, 1) ** 3) ** 3 if h > 0 else (distance == 0).astype(float)
        root = np.sqrt(kernel)
        terms = np.stack([np.ones_like(p), p - x, (p - x) ** 2], -1)
        values.append(np.linalg.lstsq(terms * root[:, None], y * root, rcond=1e-10)[0][0])
    return np.array(values)


def _summary(p, s):
    e = np.abs(s - p)
    return e.mean(), np.quantile(e, 0.5), np.quantile(e, 0.9), e.max()


def _index(result):
    return np.stack([np.asarray(getattr(result, name)) for name in POINTS])


@pytest.mark.parametrize("span", [0.75, 0.3])
def test_ici_is_a_local_regression_at_every_forecast(span, eps):
    expected = np.array([_summary(p, _loess(p, y, span, p)) for p, y in zip(P, Y, strict=True)]).T
    # parabolas through neighbourhoods of 12 rows have condition numbers of some hundred
    np.testing.assert_allclose(_index(jaxcal.ici(P, Y, span=span)), expected, rtol=0, atol=1000 * eps)


def test_ici_with_counts_is_that_of_repeated_rows(eps):
    lanes = [(np.repeat(p, c), np.repeat(y, c)) for p, y, c in zip(P, Y, COUNTS, strict=True)]
    expected = np.array([_summary(p, _loess(p, y, 0.75, p)) for p, y in lanes]).T
    np.testing.assert_allclose(_index(jaxcal.ici(P, Y, weights=COUNTS)), expected, rtol=0, atol=200 * eps)


def test_ici_between_its_points_is_linear(eps):
    """Nine points, evenly spaced in the order of the distinct forecasts."""
    expected = []
    for p, y in zip(P, Y, strict=True):
        distinct = np.unique(p)
        points = distinct[np.arange(9) * (len(distinct) - 1) // 8]
        expected.append(_summary(p, np.interp(p, points, _loess(p, y, 0.75, points))))
    result = jaxcal.ici(P, Y, num_points=9)
    np.testing.assert_allclose(_index(result), np.array(expected).T, rtol=0, atol=200 * eps)


def test_ici_of_few_distinct_forecasts_is_that_of_their_frequencies(eps):
    p = np.tile([0.2, 0.7], (3, N // 2))
    frequency = np.stack([Y[:, ::2].mean(-1), Y[:, 1::2].mean(-1)], -1)
    np.testing.assert_allclose(jaxcal.ici(p, Y).ici, np.abs(frequency - [0.2, 0.7]).mean(-1), rtol=0, atol=32 * eps)


def test_ici_that_does_not_exist():
    assert np.isnan(_index(jaxcal.ici(P, Y, span=0.02))).all()  # no row in a neighbourhood
    for options in ({"span": 0.0}, {"span": 1.5}, {"span": "a"}, {"span": None}, {"num_points": 1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            jaxcal.ici(P, Y, **options)


def test_ici_of_many_rows_finds_the_distance():
    """E|p^2 - p| = 1/6 with quartiles of p - p^2: median 3/16, largest 1/4; the smoother's bias is below 0.01 there."""
    rng = np.random.default_rng(2)
    p = rng.random(20_000).astype(np.float32)
    result = _index(jaxcal.ici(p, rng.random(p.size) < p**2, num_points=32))
    np.testing.assert_allclose(result, [1 / 6, 3 / 16, 0.2475, 0.25], atol=0.02)


def test_derivatives_of_the_ici(x64):
    """Against central differences; every forecast is a point of the regression."""
    if not x64:
        pytest.skip("finite differences need float64")
    p = jnp.asarray(np.sort(np.random.default_rng(4).uniform(0.03, 0.97, N)))
    value = jax.jit(lambda p: sum(getattr(jaxcal.ici(p, Y[0]), name) for name in POINTS))
    differences = [(value(p.at[i].add(1e-6)) - value(p.at[i].add(-1e-6))) / 2e-6 for i in range(N)]
    np.testing.assert_allclose(jax.grad(value)(p), differences, rtol=1e-6, atol=1e-7)
