"""Cutoff calibration error, the Kolmogorov-Smirnov test and Spiegelhalter's, against exact arithmetic and mpmath."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxcal
from jaxcal.metrics.kolmogorov_smirnov import brownian_tail

RNG = np.random.default_rng(5)
N = 24


def _data(lanes=6):
    """Lanes with ties, in the default dtype, so that the fractions below are the numbers the code sees."""
    p = RNG.choice([0, 0.07, 0.13, 0.31, 0.5, 0.71, 0.88, 1.0], (lanes, N))
    return np.asarray(jnp.asarray(p)), (RNG.random((lanes, N)) < 0.5).astype(int), RNG.integers(0, 4, (lanes, N))


def _largest_bias(p, y, w):
    """max |sum of w (y - p)| / n over all intervals with ends among the scores, in exact fractions."""
    rows = [(Fraction(float(a)), int(b), int(c)) for a, b, c in zip(p, y, w, strict=True)]
    scores = sorted({a for a, _, _ in rows})
    sums = [
        sum(c * (b - a) for a, b, c in rows if low <= a <= high) for i, low in enumerate(scores) for high in scores[i:]
    ]
    return float(max(map(abs, sums)) / sum(c for _, _, c in rows))


def test_cutoff_of_ten_forecasts(d10, eps):
    np.testing.assert_allclose(jaxcal.cutoff_calibration_error(*d10), 0.109, rtol=8 * eps)  # exact by hand


def test_cutoff_is_the_largest_bias_of_an_interval(eps):
    p, y, w = _data()
    expected = [_largest_bias(*lane) for lane in zip(p, y, w, strict=True)]
    np.testing.assert_allclose(jaxcal.cutoff_calibration_error(p, y, weights=w), expected, rtol=0, atol=8 * eps)


@pytest.mark.parametrize("outcome", ["drawn", 1])
def test_a_million_float32_rows(outcome):
    """Against float64 sums; running float32 sums are off by 1e-5 and more."""
    p = RNG.random(1_000_000, dtype=np.float32)
    y = (RNG.random(p.size) < p) if outcome == "drawn" else np.ones(p.size, bool)
    order = np.argsort(p, kind="stable")
    sums = np.cumsum(np.where(y, 1.0, 0.0)[order] - p.astype(np.float64)[order])
    ends = np.append(p[order][1:] != p[order][:-1], True)
    sums = np.append(0, sums[ends])
    error = jaxcal.cutoff_calibration_error(p, y)
    np.testing.assert_allclose(error, (sums.max() - sums.min()) / p.size, atol=3e-7)
    test = jaxcal.kolmogorov_smirnov_calibration(p, y)
    np.testing.assert_allclose(test.statistic, abs(sums).max() / p.size, atol=3e-7)


def _brownian_tail(x):
    """P(sup |B| >= x) by images, in 60 digits."""
    with mpmath.workdps(60):
        return float(4 * mpmath.nsum(lambda k: (-1) ** int(k) * mpmath.ncdf(-(2 * k + 1) * mpmath.mpf(x)), [0, 200]))


def test_law_of_the_largest_brownian_deviation(x64):
    """In relative terms down to 1e-30 (float32: as accurate as its exponential allows, x^2 eps)."""
    x = np.array([0.3, 0.5, 0.8, 0.99, 1, 1.01, 1.3, 2, 4, 7, 11.5], np.float64 if x64 else np.float32)
    expected = np.array([_brownian_tail(float(a)) for a in x])
    tolerance = np.finfo(x.dtype).eps * (16 + 4 * x**2)
    assert (abs(np.asarray(brownian_tail(x), float) / expected - 1) < tolerance).all()
    assert brownian_tail(jnp.zeros(())) == 1


def test_kolmogorov_smirnov_with_ties_and_counts(eps):
    p, y, w = _data()
    result = jaxcal.kolmogorov_smirnov_calibration(p, y, weights=w)
    for lane in range(len(p)):
        z = [Fraction(float(a)) for a in p[lane]]
        rows = list(zip(z, y[lane], w[lane], strict=True))
        sums = [sum(int(c) * (int(b) - a) for a, b, c in rows if a <= end) for end in set(z)]
        largest, variance = max(map(abs, sums)), sum(int(c) * a * (1 - a) for a, _, c in rows)
        np.testing.assert_allclose(result.statistic[lane], float(largest / int(w[lane].sum())), rtol=16 * eps)
        expected = _brownian_tail(float(largest) / float(variance) ** 0.5)
        np.testing.assert_allclose(result.p_value[lane], expected, rtol=300 * eps)


def test_spiegelhalter_with_counts(eps):
    p, y, w = _data()
    result = jaxcal.spiegelhalter_test(p, y, weights=w)
    for lane in range(len(p)):
        rows = [(Fraction(float(a)), int(b), int(c)) for a, b, c in zip(p[lane], y[lane], w[lane], strict=True)]
        variance = sum(c * (1 - 2 * a) ** 2 * a * (1 - a) for a, _, c in rows)
        z = float(sum(c * (b - a) * (1 - 2 * a) for a, b, c in rows)) / float(variance) ** 0.5
        np.testing.assert_allclose(result.statistic[lane], z, rtol=32 * eps, atol=8 * eps)
        np.testing.assert_allclose(result.p_value[lane], float(mpmath.erfc(abs(z) / mpmath.sqrt(2))), rtol=1000 * eps)


def test_spiegelhalter_in_the_tail(eps):
    p, y = np.full(N, 0.25), np.ones(N)
    z = mpmath.mpf(N) * 3 / 8 / mpmath.sqrt(mpmath.mpf(N) * 3 / 64)  # 8.5
    result = jaxcal.spiegelhalter_test(p, y)
    np.testing.assert_allclose(result.p_value, float(mpmath.erfc(z / mpmath.sqrt(2))), rtol=300 * eps)


@pytest.mark.parametrize(
    "test, p", [(jaxcal.kolmogorov_smirnov_calibration, [0.0, 1.0]), (jaxcal.spiegelhalter_test, [0.0, 0.5, 1.0])]
)
def test_no_random_outcome_no_test(test, p):
    result = test(np.resize(p, N), np.ones(N))
    assert jnp.isnan(result.statistic) and jnp.isnan(result.p_value) and not result.reliable


@pytest.mark.parametrize("test", [jaxcal.kolmogorov_smirnov_calibration, jaxcal.spiegelhalter_test])
def test_size_and_power(test):
    """4,000 calibrated data sets of 200 rows: 5 % rejections with four standard errors; overconfident ones: most."""
    p = jax.random.beta(jax.random.key(0), 0.3, 0.7, (4000, 200))
    y = jax.random.bernoulli(jax.random.key(1), p)
    result = test(p, y)
    assert 0.03 < jnp.mean(result.p_value < 0.05) < 0.064 and result.reliable.mean() > 0.99
    assert jnp.mean(test(p, jax.random.bernoulli(jax.random.key(2), 0.2 + 0.6 * p)).p_value < 0.05) > 0.9


@pytest.mark.parametrize("test", [jaxcal.kolmogorov_smirnov_calibration, jaxcal.spiegelhalter_test])
def test_extreme_forecasts_are_not_reliable(test):
    p = np.linspace(0.98, 0.999, N)
    assert not test(p, np.ones(N)).reliable
