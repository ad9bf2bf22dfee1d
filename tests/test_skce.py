"""Kernel calibration errors and their tests, against mpmath values and brute force over all pairs of rows.

The expected values on the ten forecasts and the eight rows of conftest were computed with mpmath at 50 digits from the
definition; everything else is compared with the plain NumPy written here.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.metrics import kernels
from jaxcal.resampling import multinomial

RNG = np.random.default_rng(5)
ESTIMATORS = ("unbiased", "biased", "linear")
# estimates on D10 with the median bandwidth .32, in the order of ESTIMATORS
D10 = {
    "laplace": (-0.0137975090944538619, 0.0062842418149915243, -0.10408989152132474),
    "gaussian": (-0.0181673668258525162, 0.0023513698567327354, -0.136789121921176271),
}
# Laplace's kernel of the Euclidean distance, bandwidth 1
M8 = (-0.03311010932079052, 0.03181470961032794, -0.1109717249183933)
N, K = 12, 3
P = RNG.choice([0.05, 0.2, 0.35, 0.6, 0.9], N)
Y = (RNG.random(N) < 0.5).astype(int)
LOGITS = RNG.normal(size=(N, K)).round(1) * 2
LABELS = RNG.integers(0, K, N)
COUNTS = RNG.integers(0, 4, N)


def _brute(points, residuals, kernel, estimator, bandwidth=None):
    """The definition, pair by pair; points and residuals (n, k)."""
    distance = np.sqrt(((points[:, None] - points) ** 2).sum(-1))
    n = len(points)
    nu = np.median(distance[np.triu_indices(n, 1)]) or 1.0 if bandwidth is None else bandwidth
    k = np.exp(-distance / nu) if kernel == "laplace" else np.exp(-(distance**2) / (2 * nu**2))
    h = k * (residuals @ residuals.T)
    if estimator == "linear":
        return np.mean([h[2 * i, 2 * i + 1] for i in range(n // 2)])
    return h.mean() if estimator == "biased" else (h.sum() - np.trace(h)) / (n * (n - 1))


def _binary(p, y):
    return p[:, None], (y - p)[:, None]


def _vectors(logits, labels):
    p = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    return p, np.eye(logits.shape[-1])[labels] - p


def assert_close(value, expected, eps, units=64):
    np.testing.assert_allclose(value, expected, rtol=units * eps, atol=units * eps / 16)


# --- estimates ---


@pytest.mark.parametrize("kernel", kernels.KERNELS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_published_definitions_on_ten_forecasts(d10, kernel, estimator, eps):
    value = jaxcal.skce(*d10, kernel=kernel, estimator=estimator)
    assert_close(value, D10[kernel][ESTIMATORS.index(estimator)], eps, 16)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_published_definitions_on_eight_rows(m8, estimator, eps):
    value = jaxcal.skce_multiclass(*m8, estimator=estimator, bandwidth=1.0)
    assert_close(value, M8[ESTIMATORS.index(estimator)], eps, 16)


@pytest.mark.parametrize("kernel", kernels.KERNELS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ties_and_weights_are_pairs_of_rows(kernel, estimator, eps):
    """The data have ties, an odd number of repeated rows and the median bandwidth."""
    weights = {} if estimator == "linear" else {"weights": COUNTS}
    repeats = np.ones(N, int) if estimator == "linear" else COUNTS
    expected = _brute(*_binary(np.repeat(P, repeats), np.repeat(Y, repeats)), kernel, estimator)
    assert_close(jaxcal.skce(P, Y, kernel=kernel, estimator=estimator, **weights), expected, eps)
    expected = _brute(*_vectors(np.repeat(LOGITS, repeats, 0), np.repeat(LABELS, repeats)), kernel, estimator)
    assert_close(jaxcal.skce_multiclass(LOGITS, LABELS, kernel=kernel, estimator=estimator, **weights), expected, eps)


def test_two_classes_are_twice_the_binary_event(d10, eps):
    p, y = d10
    logits = jaxcal.binary_logits(jaxcal.log_odds(p))
    for kernel in kernels.KERNELS:
        assert_close(jaxcal.skce_multiclass(logits, y, kernel=kernel), 2 * jaxcal.skce(p, y, kernel=kernel), eps)


def test_lanes_of_vectors():
    """Logits, labels and weights have leading axes of their own; absent rows hold anything; a bad lane is NaN alone."""
    labels, weights = np.stack([LABELS, (LABELS + 1) % K]), np.stack([COUNTS, np.ones(N, int), 2 * COUNTS])[:, None]
    value = jaxcal.skce_multiclass(LOGITS, labels, weights=weights)
    assert value.shape == (3, 2)
    one = [[jaxcal.skce_multiclass(LOGITS, y, weights=w) for y in labels] for w in weights[:, 0]]
    np.testing.assert_allclose(value, one, rtol=1e-5, atol=1e-6)
    bad = LOGITS.copy()
    bad[COUNTS == 0] = np.nan
    np.testing.assert_allclose(jaxcal.skce_multiclass(bad, LABELS, weights=COUNTS), one[0][0], rtol=1e-5)
    lanes = jaxcal.skce_multiclass(bad, labels, weights=weights)
    np.testing.assert_array_equal(np.isnan(lanes), [[False] * 2, [True] * 2, [False] * 2])
    np.testing.assert_allclose(lanes[::2], value[::2], rtol=1e-5)
    with pytest.raises(ValueError, match="logits must not be NaN"):
        jaxcal.skce_multiclass(bad, LABELS)


def test_an_estimate_without_a_pair_does_not_exist():
    for estimator in ("unbiased", "linear"):
        assert np.isnan(jaxcal.skce([0.3], [1], estimator=estimator))
        assert np.isnan(jaxcal.skce_multiclass([[0.3, 0.0]], [1], estimator=estimator))
    np.testing.assert_allclose(jaxcal.skce([0.3], [1], estimator="biased"), 0.49, rtol=1e-6)
    # one class is certain of an event that does not happen: residuals of 1, nothing infinite
    certain = jaxcal.skce_multiclass([[0.0, -np.inf], [0.0, -np.inf]], [1, 1])
    np.testing.assert_allclose(certain, 2, rtol=1e-6)


def test_derivatives_in_logits_weights_and_bandwidth(x64):
    """Against central differences, in the weights of the formula with the matrix of h, as only counts have a value; a
    distance of 0 has derivative 0."""
    if not x64:
        pytest.skip("finite differences need float64")
    logits, weights, nu, h = jnp.asarray(LOGITS), jnp.asarray(COUNTS + 1.0), jnp.asarray(0.4), 1e-6
    p, e = _vectors(LOGITS, LABELS)
    distance = np.sqrt(((p[:, None] - p) ** 2).sum(-1))
    for kernel in kernels.KERNELS:
        pairs = (np.exp(-distance / 0.4) if kernel == "laplace" else np.exp(-(distance**2) / 0.32)) * (e @ e.T)
        of_weights = lambda w: (w @ pairs @ w - w @ np.diag(pairs)) / (w.sum() * (w.sum() - 1))  # noqa: B023, E731
        f = lambda z, w, b: jaxcal.skce_multiclass(z, LABELS, weights=w, bandwidth=b, kernel=kernel)  # noqa: B023, E731
        slopes = jax.grad(f, (0, 1, 2))(logits, weights, nu)
        directions = (jnp.cos(jnp.arange(N * K).reshape(N, K)), jnp.sin(jnp.arange(N)), jnp.ones(()))
        for i, direction in enumerate(directions):
            ends = []
            for sign in (1, -1):
                x = [logits, weights, nu]
                x[i] = x[i] + sign * h * direction
                ends.append(of_weights(np.asarray(x[1])) if i == 1 else f(*x))
            np.testing.assert_allclose(jnp.sum(slopes[i] * direction), (ends[0] - ends[1]) / (2 * h), rtol=2e-7)
    equal = jnp.zeros((4, K))
    assert jnp.isfinite(jax.grad(lambda z: jaxcal.skce_multiclass(z, LABELS[:4]))(equal)).all()


# --- kernels and bandwidths ---


def test_median_of_forecasts_that_are_neighbouring_floats():
    """Near 1 a float32 and a distance have no float32 sum, but the 28 differences are floats: the middle two are 12
    and 16 times 2^-24."""
    steps = np.array([1, 2, 4, 8, 13, 20, 29, 40])
    gaps = np.abs(np.subtract.outer(steps, steps))[np.triu_indices(8, 1)]
    assert np.median(gaps) == 14
    p, y = np.float32(1) - steps.astype(np.float32) * np.float32(2**-24), [1, 1, 0, 1, 1, 0, 1, 1]
    assert jaxcal.skce(p, y) == jaxcal.skce(p, y, bandwidth=14 * 2**-24)
    # a group at 1, where the places of groups that do not exist are, and counts
    steps, weights = np.array([0, 1, 2, 4, 4, 9, 9, 20]), np.array([2, 1, 2, 1, 0, 1, 1, 0])
    p, repeated = np.float32(1) - steps.astype(np.float32) * np.float32(2**-24), np.repeat(steps, weights)
    nu = np.median(np.abs(np.subtract.outer(repeated, repeated))[np.triu_indices(8, 1)]) * 2.0**-24
    assert jaxcal.skce(p, y, weights=weights) == jaxcal.skce(p, y, weights=weights, bandwidth=nu)


def test_limits_of_the_bandwidth(eps):
    """Of a tiny one only pairs of equal forecasts are left, of an infinite one all pairs, in both kernels."""
    r, e = Y - P, _vectors(LOGITS, LABELS)[1]
    for kernel in kernels.KERNELS:
        for bandwidth, near in ((1e-30, P[:, None] == P), (np.inf, True)):
            for estimator in ESTIMATORS:
                value = jaxcal.skce(P, Y, kernel=kernel, estimator=estimator, bandwidth=bandwidth)
                h = near * np.outer(r, r)
                expected = {
                    "unbiased": (h.sum() - np.trace(h)) / (N * (N - 1)),
                    "biased": h.mean(),
                    "linear": np.mean([h[2 * i, 2 * i + 1] for i in range(N // 2)]),
                }[estimator]
                assert_close(value, expected, eps)
        near = (LOGITS[:, None] == LOGITS).all(-1)
        value = jaxcal.skce_multiclass(LOGITS, LABELS, kernel=kernel, estimator="biased", bandwidth=1e-30)
        assert_close(value, (near * (e @ e.T)).mean(), eps)


@pytest.mark.once
def test_weights_that_are_no_counts_have_no_pairs():
    half, key = COUNTS + 0.5, jax.random.key(0)
    for estimator in ("unbiased", "biased"):
        for call, data in ((jaxcal.skce, (P, Y)), (jaxcal.skce_multiclass, (LOGITS, LABELS))):
            with pytest.raises(ValueError, match="weights must be whole numbers, since pairs of copies count; got"):
                call(*data, estimator=estimator, weights=half)
            lanes = call(*data, estimator=estimator, weights=np.stack([half, COUNTS]))
            np.testing.assert_array_equal(np.isnan(lanes), [True, False])
    with pytest.raises(ValueError, match="weights must be whole numbers"):
        jaxcal.skce_multiclass_test(LOGITS, LABELS, key=key, num_resamples=9, weights=half)


def test_blocks_do_not_change_values(eps):
    p, e = (jnp.asarray(a) for a in _vectors(LOGITS, LABELS))
    v = jnp.asarray(RNG.normal(size=(N, 2)))
    for kernel in kernels.KERNELS:
        whole = kernels.vector_product(kernel, p, e, v, jnp.asarray(0.3, p.dtype))
        for rows in (1, 5):
            parts = kernels.vector_product(kernel, p, e, v, jnp.asarray(0.3, p.dtype), block=rows * N)
            assert_close(parts, whole, eps)


def test_medians_are_those_of_all_distances(eps):
    for values in (RNG.random(N), RNG.random(N - 1), P, np.full(N, 0.3)):  # an odd number of pairs, ties, all equal
        gaps = np.abs(np.subtract.outer(values, values))[np.triu_indices(len(values), 1)]
        y = np.zeros(len(values), int)
        with_median = jaxcal.skce(values, y, estimator="biased")
        given = jaxcal.skce(values, y, estimator="biased", bandwidth=np.median(gaps) or 1.0)
        assert_close(with_median, given, eps)


def test_median_of_many_vectors_is_that_of_2048_of_them():
    """Whatever the order of the rows. Copies have distance 0."""
    # tolerances are 4 standard errors, measured over 20 data sets: 0.35 %, and 1.3 % where half of the rows are one
    points = np.random.default_rng(11).dirichlet(np.ones(3), 3000)
    distances = np.concatenate([np.sqrt(((points[i + 1 :] - p) ** 2).sum(-1)) for i, p in enumerate(points)])
    median = jax.jit(kernels.median_distance)
    value = median(jnp.asarray(points), jnp.ones(3000))
    np.testing.assert_allclose(value, np.median(distances), rtol=0.014)
    np.testing.assert_allclose(median(jnp.asarray(points[::-1].copy()), jnp.ones(3000)), value, rtol=1e-5)
    # half of the rows are one row: a quarter of the pairs are at distance 0, and half go from it to the others
    weights = jnp.ones(3000).at[0].set(3000.0)
    copies = np.repeat(3000.0, 2999)
    distances = np.concatenate([[0.0], distances])
    mass = np.concatenate([[3000 * 2999 / 2], copies, np.ones(len(distances) - 3000)])  # pairs of row 0 come first
    order = np.argsort(distances)
    below = np.cumsum(mass[order])
    expected = distances[order][np.searchsorted(below, below[-1] / 2)]
    np.testing.assert_allclose(median(jnp.asarray(points), weights), expected, rtol=0.052)


# --- tests ---


def _bootstrap_p_value(points, residuals, nu, counts):
    """The resampled statistic from the matrix of h with the rows gathered, resample by resample."""
    h = np.exp(-np.sqrt(((points[:, None] - points) ** 2).sum(-1)) / nu) * (residuals @ residuals.T)
    n = len(h)
    upper = np.triu_indices(n, 1)
    statistic = n * 2 / (n * (n - 1)) * h[upper].sum()
    centred = h - h.mean(0) - h.mean(1)[:, None] + h.mean()
    draws = [2 / n * centred[np.ix_(rows, rows)][upper].sum() for rows in (np.repeat(np.arange(n), c) for c in counts)]
    return statistic, (1 + np.sum(np.array(draws) >= statistic)) / (1 + len(counts))


def test_bootstrap_counts_the_resamples_of_the_definition(m8, d10):
    """With the counts that the key gives, in the order in which the rows stand there (binary rows are sorted)."""
    key, num = jax.random.key(3), 99
    for n, test, arrays, points in (
        (8, jaxcal.skce_multiclass_test, m8, _vectors(*(np.asarray(a) for a in m8))),
        (10, jaxcal.skce_test, d10, _binary(*(np.asarray(a) for a in d10))),
    ):
        lane = jax.random.split(key, 1)[0]
        counts = multinomial(jax.random.bits(lane, (num, 2), jnp.uint32), n, None)
        assert (counts.sum(-1) == n).all()
        result = test(*arrays, key=key, num_resamples=num, bandwidth=1.0)
        statistic, p_value = _bootstrap_p_value(*points, 1.0, np.asarray(counts))
        np.testing.assert_allclose(result.statistic, statistic, rtol=1e-5)
        np.testing.assert_allclose(result.p_value, p_value, rtol=1e-6)
        # rows of weight 0 are absent, other rows are drawn in the ratio of their weights
        padded = [np.concatenate([a, a[:1]]) for a in arrays]
        padded = test(*padded, key=key, num_resamples=num, bandwidth=1.0, weights=[1] * n + [0])
        np.testing.assert_allclose(padded.statistic, statistic, rtol=1e-5)
        # two Monte-Carlo errors of both together: 2 sqrt(2 p (1 - p) / num)
        assert abs(padded.p_value - p_value) < 2 * math.sqrt(2 * p_value * (1 - p_value) / num)


def test_bootstrap_has_power_and_lanes(eps):
    p = jnp.asarray(RNG.random((3, 300)))
    y = jnp.asarray(RNG.random((3, 300)) < p.at[0].set(p[0] ** 2)).astype(int)
    p = p.at[2, 5].set(jnp.nan)
    result = jaxcal.skce_test(p, y, key=jax.random.key(0), num_resamples=99)
    assert result.p_value[0] == pytest.approx(0.01) and result.p_value[1] > 0.01 and jnp.isnan(result.p_value[2])
    again = jaxcal.skce_test(p, y, key=jax.random.key(0), num_resamples=99)
    np.testing.assert_array_equal(result.p_value, again.p_value)
    assert_close(result.statistic[1], 300 * jaxcal.skce(p[1], y[1]), eps, 1000)


def test_linear_test(d10, eps):
    """-2.25521195871738 by mpmath, divisor m - 1."""
    result = jaxcal.skce_test(*d10, estimator="linear")
    assert_close(result.statistic, -2.25521195871738, eps)
    np.testing.assert_allclose(result.p_value, 0.5 * math.erfc(-2.25521195871738 / math.sqrt(2)), rtol=64 * eps)
    assert not result.reliable  # five terms
    assert np.isnan(jaxcal.skce_test([0.2, 0.3], [0, 1], estimator="linear").p_value)  # one term has no variance
    p = RNG.random(400)
    assert jaxcal.skce_test(p, RNG.random(400) < p, estimator="linear").reliable


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_row_has_no_test(estimator):
    for p in (0.3, 1.0):
        result = jaxcal.skce_test(jnp.array([p]), [1], estimator=estimator, method="distribution_free")
        assert np.isnan(result.p_value) and not result.reliable


def test_bounds(d10, eps):
    """exp(-(sqrt(n S / B) - 1)^2 / 2) and exp(-floor(n/2) S^2 / (2 B^2)); both scalings of h give one p-value."""
    p, y = d10
    far = jnp.where(y == 1, 0.1, 0.9)
    logits = jaxcal.binary_logits(jaxcal.log_odds(far))
    for estimator in ESTIMATORS:
        value = float(jaxcal.skce(far, y, estimator=estimator))
        expected = math.exp(-((math.sqrt(10 * value) - 1) ** 2) / 2)
        if estimator != "biased":
            expected = math.exp(-5 * max(value, 0) ** 2 / 2)
        result = jaxcal.skce_test(far, y, estimator=estimator, method="distribution_free")
        assert 0 < expected <= 1 and result.reliable
        assert_close(result.p_value, expected, eps)
        assert_close(result.statistic, value, eps)
        multi = jaxcal.skce_multiclass_test(logits, y, estimator=estimator, method="distribution_free")
        assert_close(multi.p_value, expected, eps)
        assert jaxcal.skce_test(p, y, estimator=estimator, method="distribution_free").p_value == 1


@pytest.mark.parametrize("call", [jaxcal.skce, jaxcal.skce_multiclass, jaxcal.skce_test, jaxcal.skce_multiclass_test])
def test_options_are_checked(call):
    data = (LOGITS, LABELS) if "multiclass" in call.__name__ else (P, Y)
    for options, message in (
        ({"kernel": "cosine"}, "kernel must be one of"),
        ({"estimator": "median"}, "estimator must be one of"),
        ({"bandwidth": 0.0}, "bandwidth must be > 0"),
        ({"bandwidth": np.ones(2)}, "one number"),
        ({"estimator": ["biased"]}, "estimator must be one of"),
        ({"bandwidth": 1j}, "bandwidth must be real"),
        ({"estimator": "linear", "weights": COUNTS}, "takes no weights"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call(*data, **({"key": jax.random.key(0)} if "test" in call.__name__ else {}), **options)
    if "test" in call.__name__:
        for options, message in (
            ({}, "needs a key"),
            ({"method": "asymptotic"}, "method for estimator='unbiased' must be one of"),
            ({"key": jax.random.key(0), "num_resamples": 0}, "num_resamples"),
        ):
            with pytest.raises(ValueError, match=message):
                call(*data, **options)
    if "multiclass" in call.__name__:
        with pytest.raises(ValueError, match=r"logits of shape \(\.\.\., n, k\)"):
            call(LOGITS[0], 1, **({"key": jax.random.key(0)} if "test" in call.__name__ else {}))
