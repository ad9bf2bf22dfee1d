"""Isotonic regression against SciPy, the max-min formula and central differences."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxcal
from jaxcal.solvers import isotonic_regression

N = 40
fit = jax.jit(isotonic_regression)


def _scipy(values, weights):
    """One lane after another; SciPy wants positive weights."""
    rows = zip(np.asarray(values, float).reshape(-1, N), np.asarray(weights, float).reshape(-1, N), strict=True)
    return np.array([scipy.optimize.isotonic_regression(v, weights=w).x for v, w in rows]).reshape(np.shape(values))


def _data(lanes, seed=0):
    """Tied values around a trend of any sign, and tied weights."""
    rng = np.random.default_rng(seed)
    trend = rng.uniform(-1, 1, (lanes, 1)) * np.linspace(0, 1, N)
    return (rng.normal(size=(lanes, N)) + trend).round(1), rng.integers(1, 30, (lanes, N)) / 10


def test_a_thousand_random_lanes_are_scipys(eps):
    values, weights = _data(1000)
    result = np.asarray(fit(values, weights))
    np.testing.assert_allclose(result, _scipy(values, weights), rtol=0, atol=max(8 * eps, 1e-15))
    assert (np.diff(result, axis=-1) >= 0).all()


def test_small_dyadic_numbers_are_exact():
    """Block sums are exact, so the fit is a quotient of two exact numbers; by the max-min formula in fractions."""
    rng = np.random.default_rng(1)
    values, weights = rng.integers(-8, 9, (40, N)) / 4, rng.integers(0, 4, (40, N))
    weights[:, 0] = 1
    result = np.asarray(fit(values, weights.astype(float)))
    v, w = ([[Fraction(float(x)) for x in lane] for lane in a] for a in (values, weights))
    for lane in range(40):
        rows = np.flatnonzero(weights[lane])

        def mean(a, b, rows=rows, lane=lane):
            return sum(v[lane][i] * w[lane][i] for i in rows[a : b + 1]) / sum(w[lane][i] for i in rows[a : b + 1])

        means = [[mean(a, b) for b in range(a, len(rows))] for a in range(len(rows))]
        expected = [max(min(means[a][i - a :]) for a in range(i + 1)) for i in range(len(rows))]
        expected = [result.dtype.type(x.numerator) / result.dtype.type(x.denominator) for x in expected]
        np.testing.assert_array_equal(result[lane, rows], expected)


def test_shapes_of_the_sequence():
    line, ones = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
    np.testing.assert_array_equal(fit(line, ones), line)
    np.testing.assert_array_equal(fit(-line, ones), np.full(N, -(N - 1) / 2))
    np.testing.assert_array_equal(fit(7 * ones, ones), 7 * ones)
    zigzag = np.where(line % 2 == 0, 1, 0)
    np.testing.assert_array_equal(fit(zigzag.astype(np.float32), ones), 0.5 * ones)
    # each new entry takes back all blocks but one: the most merges there can be
    late = np.where(line < N - 1, line, -np.float32(1e6))
    np.testing.assert_allclose(fit(late, ones), np.full(N, late.mean()), rtol=1e-6)
    np.testing.assert_array_equal(isotonic_regression(jnp.array([3.0]), jnp.array([2.0])), [3])
    np.testing.assert_array_equal(isotonic_regression(jnp.array([[3.0], [1.0]]), jnp.array([2.0])), [[3], [1]])


def test_entries_of_weight_0_take_the_value_of_their_block():
    values = jnp.array([jnp.nan, 2.0, 9.0, 1.0, jnp.inf, 5.0, -7.0])
    weights = jnp.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(isotonic_regression(values, weights), [1.5, 1.5, 1.5, 1.5, 1.5, 5, 5])
    for slopes in jax.jacobian(isotonic_regression, (0, 1))(values, weights):
        assert np.isfinite(slopes).all() and (slopes[:, weights == 0] == 0).all()


def test_lanes_that_make_no_sense_are_nan():
    values, weights = np.ones((5, N), np.float32), np.ones((5, N), np.float32)
    values[0, 3], weights[1, 3], weights[2, 3], weights[3] = np.nan, -1, np.inf, 0
    result = np.asarray(fit(values, weights))
    assert np.isnan(result[:4]).all() and (result[4] == 1).all()


def test_lanes_broadcast_and_nest_under_vmap(eps):
    values, weights = _data(6, seed=2)
    together = fit(values, weights)
    np.testing.assert_array_equal(jax.vmap(isotonic_regression)(values, weights), together)
    nested = jax.jit(jax.vmap(jax.vmap(isotonic_regression, in_axes=(0, None)), in_axes=(0, 0)))
    np.testing.assert_array_equal(
        nested(values.reshape(2, 3, N), weights[:2]), fit(values.reshape(2, 3, N), weights[:2, None])
    )
    # the loop over the entries stays one lane's: no batch axis in its state
    loops = str(jax.make_jaxpr(jax.vmap(isotonic_regression))(values, weights))
    assert f"[6,{N}] = while" not in loops and "scan" in loops


def test_float32_holds_the_mean_of_a_million():
    """One block of equal thirds, and rounded weights: a running float32 sum is off by 1e-3 there."""
    n = 1 << 20
    values = np.where(np.arange(n) < n // 2, np.float32(1 / 3), np.float32(0.25))
    weights = np.full(n, 0.1, np.float32)
    result = np.asarray(fit(values, weights))
    exact = (np.float64(np.float32(1 / 3)) + 0.25) / 2
    np.testing.assert_allclose(result, np.full(n, exact), rtol=2 * np.finfo(np.float32).eps)
    outcomes = (np.random.default_rng(3).random(n) < np.linspace(0, 1, n)).astype(np.float32)
    reference = scipy.optimize.isotonic_regression(outcomes.astype(float)).x
    np.testing.assert_allclose(fit(outcomes, np.ones(n, np.float32)), reference, rtol=np.finfo(np.float32).eps)


@pytest.mark.parametrize("argument", [0, 1])
def test_derivatives(argument, x64):
    if not x64:
        pytest.skip("finite differences need float64")
    rng = np.random.default_rng(4)
    data = [jnp.asarray(rng.normal(size=N)), jnp.asarray(rng.uniform(0.5, 2, N))]
    moved = lambda x: fit(*(x if i == argument else a for i, a in enumerate(data)))  # noqa: E731
    x, h = data[argument], 1e-6
    forward, reverse = jax.jacfwd(moved)(x), jax.jacrev(moved)(x)
    differences = np.stack([(moved(x.at[i].add(h)) - moved(x.at[i].add(-h))) / (2 * h) for i in range(N)], -1)
    np.testing.assert_allclose(forward, differences, atol=1e-8)
    np.testing.assert_allclose(reverse, forward, atol=1e-14)
    scalar = lambda x: jnp.sum(jnp.sin(3 * moved(x)))  # noqa: E731
    second = jax.hessian(scalar)(x)
    slope = jax.jit(jax.grad(scalar))
    differences = np.stack([(slope(x.at[i].add(h)) - slope(x.at[i].add(-h))) / (2 * h) for i in range(N)], -1)
    np.testing.assert_allclose(second, differences, atol=1e-7)


# --- the public function ---


@pytest.mark.parametrize("seed", range(4))
def test_public_function_is_scipys_bit_for_bit_where_sums_are_exact(seed, x64):
    rng = np.random.default_rng(seed)
    values, weights = rng.integers(-64, 65, N) / 8, rng.integers(1, 5, N).astype(float)
    for w in (None, weights):
        result = jaxcal.isotonic_regression(values, weights=w)
        expected = scipy.optimize.isotonic_regression(values, weights=w).x
        # a block mean is one division of exact sums, in either precision
        np.testing.assert_array_equal(result, expected.astype(result.dtype))
        negated = -jaxcal.isotonic_regression(-values, weights=w)
        decreasing = scipy.optimize.isotonic_regression(values, weights=w, increasing=False).x
        np.testing.assert_array_equal(negated, decreasing.astype(result.dtype))
    if x64:
        values, weights = rng.normal(size=N), rng.uniform(0.1, 2, N)
        expected = scipy.optimize.isotonic_regression(values, weights=weights).x
        np.testing.assert_allclose(jaxcal.isotonic_regression(values, weights=weights), expected, rtol=0, atol=1e-12)


def test_public_function_checks_its_arguments():
    values = np.ones(N, np.float32)
    bad = values.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="values must be finite, got nan in row 3"):
        jaxcal.isotonic_regression(bad)
    with pytest.raises(ValueError, match="weights must be finite and >= 0, got -1.0 in row 2"):
        jaxcal.isotonic_regression(values, weights=np.where(np.arange(N) == 2, -1.0, 1))
    with pytest.raises(ValueError, match="all zero"):
        jaxcal.isotonic_regression(values, weights=np.zeros(N))
    with pytest.raises(ValueError, match="not be empty"):
        jaxcal.isotonic_regression(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="weights must have shape"):
        jaxcal.isotonic_regression(values, weights=np.ones(N - 1))
    with pytest.raises(TypeError, match="floating point"):
        jaxcal.isotonic_regression(np.arange(N))
    both = jaxcal.isotonic_regression(np.stack([bad, values]))
    assert np.isnan(both[0]).all() and (both[1] == 1).all()
    absent = jaxcal.isotonic_regression(bad, weights=~np.isnan(bad))
    np.testing.assert_array_equal(absent, values)
    assert jaxcal.isotonic_regression(jnp.ones(N, jnp.bfloat16)).dtype == jnp.bfloat16
    lanes = jaxcal.isotonic_regression(np.arange(N, 0, -1.0), weights=np.ones((2, N)))
    np.testing.assert_array_equal(lanes, np.full((2, N), (N + 1) / 2))
