"""The isotonic regression of accelerators, run here on any machine, against SciPy and the loop of the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcal.solvers import isotonic_regression
from jaxcal.solvers.isotonic_merge import merged_fit

merged = jax.jit(jax.vmap(merged_fit))


def _lanes(n, seed):
    """Trends of any sign with noise, half of them rounded; weights of many magnitudes, a quarter of them 0."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(150, n)) + rng.uniform(-3, 3, (150, 1)) * np.linspace(0, 1, n)
    values[::2] = values[::2].round()
    weights = rng.integers(0, 4, (150, n)) * np.where(np.arange(150) % 3, 1, 1000 * rng.random((n, 150))).T
    weights[:, rng.integers(n)] = 1
    return values, weights


@pytest.mark.parametrize("n", [1, 2, 3, 31, 32, 33, 200])
def test_is_scipys_and_has_the_blocks_of_the_loop(n, eps):
    values, weights = (jnp.asarray(a) for a in _lanes(n, n))
    fit, block = (np.asarray(a) for a in merged(values, weights))
    for lane, (v, w) in enumerate(zip(np.asarray(values, float), np.asarray(weights, float), strict=True)):
        expected = scipy.optimize.isotonic_regression(v[w > 0], weights=w[w > 0]).x
        np.testing.assert_allclose(fit[lane, w > 0], expected, rtol=0, atol=16 * eps * max(1, abs(v).max()))
        # what weighs nothing has the value before it, at the front the first
        np.testing.assert_array_equal(fit[lane], fit[lane, w > 0][np.maximum(np.cumsum(w > 0) - 1, 0)])
        starts = np.flatnonzero(np.append(True, np.diff(fit[lane]) > 0))
        np.testing.assert_array_equal(block[lane], starts[np.searchsorted(starts, np.arange(n), side="right") - 1])
    np.testing.assert_allclose(fit, isotonic_regression(values, weights), rtol=0, atol=16 * eps * 6)


def test_blocks_of_exact_sums_are_right_bit_for_bit():
    rng = np.random.default_rng(5)
    values, weights = rng.integers(-8, 9, (100, 64)) / 4, rng.integers(1, 4, (100, 64)) + 0.0
    # the loop is tested against fractions
    np.testing.assert_array_equal(merged(values, weights)[0], isotonic_regression(*map(jnp.asarray, (values, weights))))


def test_sorted_values_stay_and_reversed_ones_are_one_block(eps):
    line = jnp.linspace(-1, 1, 100)
    fit, block = merged(jnp.stack([line, -line]), jnp.ones((2, 100)))
    np.testing.assert_array_equal(fit[0], line)
    np.testing.assert_array_equal(block[0], np.arange(100))
    np.testing.assert_allclose(fit[1], 0, atol=4 * eps)
    np.testing.assert_array_equal(block[1], 0)


def test_float32_holds_the_means_of_long_blocks():
    """Two blocks of 200,000 outcomes: a running sum of them alone would lose seven bits."""
    rng = np.random.default_rng(0)
    values = (rng.random(400_000) < np.repeat([0.3, 0.6], 200_000)).astype(np.float32)
    fit = np.asarray(jax.jit(merged_fit)(values, jnp.ones(400_000, jnp.float32))[0], float)
    expected = scipy.optimize.isotonic_regression(values.astype(float)).x
    np.testing.assert_allclose(fit, expected, rtol=4 * jnp.finfo(jnp.float32).eps, atol=1e-300)
