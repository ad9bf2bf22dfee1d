"""Smooth calibration error and its curve against mpmath references and the reflected kernel summed row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import jaxcal

RNG = np.random.default_rng(3)
N = 60


def _kernel(t, z, s):
    """Reflected Gaussian kernel (t, z) and its antiderivative in t, from images on both sides."""
    density, integral = np.zeros((2, len(t), len(z)))
    for j in range(-int(4 * s + 2), int(4 * s + 3)):
        for centre in (z + 2 * j, -z + 2 * j):
            u = (t[:, None] - centre) / s
            density += np.exp(-(u**2) / 2) / (s * np.sqrt(2 * np.pi))
            integral += erf(u / np.sqrt(2)) / 2
    return density, integral


def _smooth_ece(p, y, w, s):
    """int |(1/n) sum r K_s|: the antiderivative between sign changes, which 40 bisections find."""
    z, place = np.unique(p, return_inverse=True)
    r = np.bincount(place, w * (y - p)) / np.sum(w)
    t = np.unique(np.clip((z[:, None] + s * np.arange(-8, 8.01, 0.1)).ravel(), 0, 1))
    t = np.unique(np.concatenate([t, np.linspace(0, 1, 2 + int(min(10 / s, 2000)))]))
    density, integral = (k @ r for k in _kernel(t, z, s))
    change = np.nonzero(density[1:] * density[:-1] < 0)[0]
    low, high = t[change], t[change + 1]
    for _ in range(40):
        middle = (low + high) / 2
        same = (_kernel(middle, z, s)[0] @ r) * density[change] > 0
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    pieces = np.abs(np.diff(integral))
    at = _kernel(low, z, s)[1] @ r
    pieces[change] = np.abs(at - integral[change]) + np.abs(integral[change + 1] - at)
    return pieces.sum()


def _groups_of_atoms(width):
    """Calibrated groups at .1 to .6, ten rows each, with scores moved by up to `width`."""
    k = np.repeat(np.arange(1, 7), 10)
    return k / 10 + RNG.uniform(-width, width, N), (np.tile(np.arange(10), 6) < k) * 1.0


HOSTILE = {
    "calibrated": (p := RNG.random(N), RNG.random(N) < p),
    "overconfident": (p := RNG.random(N), RNG.random(N) < 0.3 + 0.4 * p),
    "all equal": (np.full(N, 0.3), np.arange(N) % 2),
    "certain and wrong": (np.tile([0.0, 1.0], N // 2), np.tile([1, 0], N // 2)),
    "half of them certain": (np.where(np.arange(N) % 2, 1, RNG.random(N)), RNG.random(N) < 0.9),
    "rare": (RNG.uniform(0, 1e-5, N), np.zeros(N)),
    "rarer": (RNG.uniform(0, 1e-7, N), np.zeros(N)),
    "rare with one event": (RNG.uniform(0, 1e-3, N), np.arange(N) == 7),
    "two outcomes close together": (0.5 + 1e-6 * np.arange(N), np.arange(N) % 2),
    "calibrated groups": _groups_of_atoms(0),
    "nearly calibrated groups": _groups_of_atoms(1e-5),
    "wider groups": _groups_of_atoms(1e-3),
    # alternating outcomes a hair apart, spread out: much cancels, and only below 1e-4
    "fine cancellation": (
        np.repeat(np.linspace(0.49, 0.51, N // 2), 2) + np.tile([0, 1e-5], N // 2),
        np.arange(N) % 2,
    ),
}


def _lanes():
    p, y = (np.array([np.asarray(lane[i], float) for lane in HOSTILE.values()]) for i in range(2))
    return np.asarray(jnp.asarray(p)), y


@pytest.mark.parametrize("counts", [False, True])
def test_within_1e_6_of_the_fixed_point_on_hostile_data(counts):
    """smECE_s - s decreases, so its signs 1e-6 to the left and to the right prove the value; float32 and float64."""
    p, y = _lanes()
    w = RNG.integers(0, 1000, p.shape) if counts else np.ones(p.shape, int)
    values = jaxcal.smooth_ece(p, y, weights=w if counts else None)
    for lane, value in enumerate(np.asarray(values, float)):
        data = p[lane].astype(float), y[lane], w[lane]
        assert _smooth_ece(*data, value + 1e-6) <= value + 1e-6
        assert value <= 1e-6 or _smooth_ece(*data, value - 1e-6) >= value - 1e-6


def test_bandwidths(x64):
    """From 2e-6 to 10, on one data set; the accuracy does not change where one grid hands over."""
    p, y = np.asarray(jnp.asarray(RNG.random(N))), RNG.random(N) < 0.5
    s = np.array([2.1e-6, 1e-5, 4.8e-4, 4.9e-4, 1e-3, 9.7e-3, 0.03, 0.1, 0.3, 1, 10])
    expected = [_smooth_ece(p.astype(float), y, np.ones(N), b) for b in s]
    np.testing.assert_allclose(jaxcal.smooth_ece(p, y, bandwidth=s), expected, rtol=0, atol=1e-7 if x64 else 1e-6)
    np.testing.assert_allclose(expected[-1], abs(np.mean(y - p)), rtol=1e-6)
    assert np.isnan(jaxcal.smooth_ece(p, y, bandwidth=np.full(11, 1e-12))).all()  # no grid resolves it


def test_ten_forecasts(d10, eps, x64):
    """mpmath, erf form with isolated roots, 15 digits."""
    tolerance = 1e-11 if x64 else 5 * eps
    np.testing.assert_allclose(jaxcal.smooth_ece(*d10), 0.094973158431249, atol=tolerance)
    expected = [0.230263576712320674, 0.0871974122574422024, 0.052]
    value = jaxcal.smooth_ece(*d10, bandwidth=np.array([0.05, 0.1, 0.2]))
    np.testing.assert_allclose(value, expected, atol=tolerance)


def test_many_rows_of_float32():
    """200,000 rows of 50 saturated scores: sums of equal terms must not drift. Brute force with counts, float64."""
    scores = np.sort(RNG.random(50, dtype=np.float32)) ** 0.1
    p = RNG.choice(scores, 200_000)
    y = RNG.random(p.size) < 0.9 * p
    value = float(jaxcal.smooth_ece(p, y))
    both = np.concatenate([scores, scores])
    counts = np.array([np.sum((p == a) & (y == b)) for b in (0, 1) for a in scores])
    data = both.astype(float), np.repeat([0, 1], 50), counts
    assert abs(_smooth_ece(*data, value) - value) < 1e-6


def test_vmap_of_a_lane_that_needs_the_fine_grid():
    p, y = (a[-2:] for a in _lanes())
    np.testing.assert_allclose(jax.vmap(jaxcal.smooth_ece)(p, y), jaxcal.smooth_ece(p, y), rtol=1e-5)


def test_derivatives_with_ties_and_in_the_bandwidth(d10, x64):
    """Against central differences. Tied rows are moved one at a time: the value is smooth in each."""
    if not x64:
        pytest.skip("finite differences need float64")
    p, y = d10
    p = p.at[3].set(p[2]).at[4].set(p[2])
    h = 1e-6
    slope = jax.grad(jaxcal.smooth_ece)(p, y)
    rows = p + h * jnp.eye(10), p - h * jnp.eye(10)
    up, down = (jaxcal.smooth_ece(a, y) for a in rows)
    np.testing.assert_allclose(slope, (up - down) / (2 * h), atol=1e-7)
    slope = jax.grad(lambda s: jaxcal.smooth_ece(p, y, bandwidth=s))(0.08)
    up, down = (jaxcal.smooth_ece(p, y, bandwidth=s) for s in (0.08 + h, 0.08 - h))
    np.testing.assert_allclose(slope, (up - down) / (2 * h), atol=1e-7)


def test_a_derivative_at_0_is_nan():
    """Groups that are calibrated exactly, also in float32: whatever moves, the value rises."""
    p, y = jnp.repeat(jnp.array([0.25, 0.5, 0.75]), 20), np.tile(np.arange(20), 3) < np.repeat([5, 10, 15], 20)
    assert jaxcal.smooth_ece(p, y) == 0
    assert jnp.isnan(jax.grad(jaxcal.smooth_ece)(p, y)).all()


@pytest.mark.parametrize("call", [jaxcal.smooth_ece, jaxcal.smooth_reliability_curve])
@pytest.mark.parametrize(
    "bandwidth, error, message",
    [
        (0, ValueError, "> 0"),
        (np.nan, ValueError, "> 0"),
        (1j, TypeError, "real"),
        ("wide", TypeError, "array of numbers"),
        (np.ones(3), ValueError, "broadcast"),
    ],
)
def test_bandwidths_that_raise(call, bandwidth, error, message):
    with pytest.raises(error, match=message):
        call(np.full((2, 4), 0.5), np.ones(4), bandwidth=bandwidth)


def test_curve_is_a_kernel_regression(x64):
    p, y = np.asarray(jnp.asarray(RNG.random((2, N)) ** 2)), (RNG.random((2, N)) < 0.5).astype(float)
    w = RNG.integers(0, 4, (2, N))
    s = np.array([0.05, 0.002])
    curve = jaxcal.smooth_reliability_curve(p, y, bandwidth=s, num_points=101, weights=w)
    tolerance = 1e-9 if x64 else 2e-6
    for lane in range(2):
        kernel = _kernel(np.arange(101) / 100, p[lane].astype(float), s[lane])[0]
        mass, positive = kernel @ w[lane], kernel @ (w[lane] * y[lane])
        share = mass * s[lane] * np.sqrt(2 * np.pi) / w[lane].sum()
        np.testing.assert_allclose(curve.density[lane] * s[lane], mass / w[lane].sum() * s[lane], atol=tolerance)
        far, near = share < 0.99e-5, share > 1.01e-5
        assert np.isnan(curve.frequency[lane][far]).all()
        error = np.abs(curve.frequency[lane] - positive / np.where(near, mass, 1))[near] * share[near]
        assert error.max() < tolerance
    assert np.isnan(curve.frequency[1]).any() and not np.isnan(curve.frequency[0][:50]).any()
    np.testing.assert_array_equal(curve.points[0], jnp.asarray(np.arange(101) / 100))


def test_curve_counts_its_rows():
    p, y = RNG.random((3, 1, N)), RNG.random(N) < 0.5
    p[2, 0, 3] = 2
    w = RNG.integers(0, 4, (2, N))
    curve = lambda p, w: jaxcal.smooth_reliability_curve(p, y, bandwidth=0.1, num_points=2, weights=w).count  # noqa: E731
    expected = np.where(np.arange(3)[:, None] == 2, np.nan, w.sum(-1))
    np.testing.assert_array_equal(curve(p, w), expected)
    np.testing.assert_array_equal(jax.jit(jax.vmap(curve, (0, None)))(p, w), expected)
    np.testing.assert_array_equal(curve(p, None), [[N], [N], [np.nan]])


def test_curve_takes_smooth_ece_for_its_bandwidth():
    p, y = (a[:2] for a in _lanes())
    curve = jaxcal.smooth_reliability_curve(p, y)
    np.testing.assert_allclose(curve.bandwidth, jaxcal.smooth_ece(p, y), rtol=1e-6)
    assert curve.frequency.shape == (2, 201)
    # trapezoids on the even extension are exact
    d = np.asarray(curve.density)
    np.testing.assert_allclose((d.sum(-1) - (d[:, 0] + d[:, -1]) / 2) / 200, 1, rtol=1e-6)
    smallest = jaxcal.smooth_reliability_curve(p, y, bandwidth=1e-5, num_points=2).bandwidth
    np.testing.assert_array_equal(smallest, [2.0**-10] * 2)


@pytest.mark.once
def test_curve_at_the_limits_of_the_bandwidth():
    """0 and less have none, also where it is not known when it is compiled; inf is the mean at every point."""
    p, y = RNG.random(N), RNG.random(N) < 0.5
    curve = jax.jit(lambda s: jaxcal.smooth_reliability_curve(p, y, bandwidth=s, num_points=2))
    for bandwidth in (-1.0, 0.0, np.nan):
        found = curve(bandwidth)
        assert np.isnan(found.frequency).all() and np.isnan(found.density).all() and np.isnan(found.bandwidth)
    found = curve(np.inf)
    np.testing.assert_allclose(found.frequency, [y.mean()] * 2, rtol=1e-6)
    np.testing.assert_allclose(found.density, [1, 1], rtol=1e-6)
    assert found.bandwidth == np.inf


@pytest.mark.parametrize("num_points", [1, 2.0, True])
def test_number_of_points(num_points):
    with pytest.raises(ValueError, match="num_points must be an integer >= 2"):
        jaxcal.smooth_reliability_curve(np.full(4, 0.5), np.ones(4), num_points=num_points)
