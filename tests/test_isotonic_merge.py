"""The isotonic regression of accelerators, run here on any machine, against SciPy and the loop of the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcal.solvers import isotonic_frequencies, isotonic_regression
from jaxcal.solvers.isotonic_merge import merged_fit

many = jax.jit(jax.vmap(merged_fit))


def merged(values, weights):
    return many(values, weights, jnp.zeros(values.shape, bool))[::2]


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


@pytest.mark.once  # float32 whatever the precision
def test_float32_holds_the_means_of_long_blocks():
    """Two blocks of 200,000 outcomes: a running sum of them alone would lose seven bits."""
    rng = np.random.default_rng(0)
    values = (rng.random(400_000) < np.repeat([0.3, 0.6], 200_000)).astype(np.float32)
    fit = np.asarray(merged(values[None], jnp.ones((1, 400_000), jnp.float32))[0][0], float)
    expected = scipy.optimize.isotonic_regression(values.astype(float)).x
    np.testing.assert_allclose(fit, expected, rtol=4 * jnp.finfo(jnp.float32).eps, atol=1e-300)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_tied_entries_count_as_one(n, eps):
    """Against fits of the weighted means of runs, which both forms must give; 1 - fit keeps its digits."""
    rng = np.random.default_rng(n)
    outcomes = (rng.random((60, n)) < rng.beta(0.3, 0.3, (60, 1))).astype(float)
    weights = rng.integers(0, 3, (60, n)) * 0.3
    weights[:, rng.integers(n)] = 1
    tied = rng.random((60, n)) < 0.5
    tied[:, 0] = False
    found = isotonic_frequencies(*map(jnp.asarray, (outcomes, weights, tied)))
    for forms in (found, many(*map(jnp.asarray, (outcomes, weights, tied)))):
        one, zero, block = (np.asarray(a) for a in forms)
        for lane in range(60):
            run = np.cumsum(~tied[lane]) - 1
            mass, ones = np.bincount(run, weights[lane]), np.bincount(run, weights[lane] * outcomes[lane])
            zeros = np.bincount(run, weights[lane] * (1 - outcomes[lane]))
            used = mass > 0
            place = np.maximum(np.cumsum(used) - 1, 0)[run]
            for result, part, sign in ((one, ones, 1), (zero, zeros, -1)):
                fit = scipy.optimize.isotonic_regression(sign * part[used] / mass[used], weights=mass[used]).x
                np.testing.assert_allclose(result[lane], sign * fit[place], rtol=16 * eps, atol=eps**2)
        np.testing.assert_array_equal(block, found.block)
