"""Venn-Abers calibration against two isotonic fits for every new score, as it is defined."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

import jaxcal
from jaxcal.solvers import inserted_steps

N = 24
NEW = np.arange(-12, 12) / 4  # on calibration scores, between them and outside


def _refits(score, outcomes, weights, new):
    """p0 and p1 by scikit-learn, with the new row among the others."""
    kept = weights > 0
    rows = [a[kept] for a in (score, outcomes, weights)]

    def one(t, outcome):
        x, y, w = (np.append(a, v) for a, v in zip(rows, (t, outcome, 1), strict=True))
        return IsotonicRegression().fit(x, y, sample_weight=w).predict([t])[0]

    return np.array([[one(t, outcome) for t in new] for outcome in (0, 1)])


def test_ten_rows_in_fractions(d10, eps):
    score, outcomes = d10
    new = np.array([0.01, 0.25, 0.30, 0.50, 0.72, 0.99])
    fit = jaxcal.fit_venn_abers(score, outcomes)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=4 * eps)  # noqa: E731
    close(fit.interval(new)[0], [0, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 2 / 3])
    close(fit.interval(new)[1], [1 / 3, 1 / 2, 1 / 2, 3 / 4, 1, 1])
    close(fit(new), [1 / 4, 2 / 5, 2 / 5, 3 / 5, 2 / 3, 3 / 4])
    close(
        jaxcal.fit_venn_abers(score, outcomes, merge="brier")(new), [5 / 18, 13 / 32, 13 / 32, 19 / 32, 5 / 8, 13 / 18]
    )


def test_ten_tied_rows_in_fractions(eps):
    score = np.array([0.1, 0.2, 0.2, 0.3, 0.4, 0.4, 0.5, 0.6, 0.7, 0.9])
    fit = jaxcal.fit_venn_abers(score, np.array([0, 1, 0, 0, 1, 0, 1, 0, 1, 1]))
    lower, upper = fit.interval(np.array([0.2, 0.4, 0.45]))
    np.testing.assert_allclose(lower, [1 / 4, 1 / 3, 1 / 3], rtol=4 * eps)
    np.testing.assert_allclose(upper, [1 / 2, 3 / 5, 2 / 3], rtol=4 * eps)


@pytest.mark.parametrize("seed", range(24))
def test_every_new_score_by_two_refits(seed, eps):
    """Tied scores that predict the outcomes, do not, or predict the opposite; whole and fractional weights with 0."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-8, 9, N) / 4
    outcomes = (rng.random(N) < 1 / (1 + np.exp((-2, 0, 2)[seed % 3] * score))).astype(int)
    weights = rng.integers(0, 5, N) * (1, 0.25, 0.1, 100)[seed % 4]
    weights[0] = 1
    fit = jaxcal.fit_venn_abers(score, outcomes, weights=weights)
    expected = _refits(score, outcomes, weights, NEW)
    np.testing.assert_allclose(fit.interval(NEW), expected, rtol=16 * eps, atol=4 * eps)
    assert (np.diff(fit.lower) >= -eps).all() and (np.diff(fit.upper) >= -eps).all()
    p0, p1 = expected
    np.testing.assert_allclose(fit(NEW), p1 / (1 - p0 + p1), rtol=32 * eps)


def test_complements_and_merges(eps):
    rng = np.random.default_rng(0)
    score, outcomes = rng.normal(size=N), rng.integers(0, 2, N)
    for merge in ("log", "brier"):
        fit = jaxcal.fit_venn_abers(score, outcomes, merge=merge)
        np.testing.assert_allclose(fit.lower + fit.lower_complement, 1, rtol=4 * eps)
        np.testing.assert_allclose(fit.upper + fit.upper_complement, 1, rtol=4 * eps)
        pair = np.exp(np.asarray(fit.log_probabilities(NEW), np.float64))
        np.testing.assert_allclose(pair.sum(-1), 1, rtol=4 * eps)
        # the same regret against p0 if the outcome is 0 as against p1 if it is 1
        p0, p1 = (np.asarray(a, np.float64) for a in fit.interval(NEW))
        p = np.asarray(fit(NEW), np.float64)
        if merge == "log":
            regret_0, regret_1 = (1 - p0) / (1 - p), p1 / p
        else:
            regret_0, regret_1 = p**2 - p0**2, (1 - p) ** 2 - (1 - p1) ** 2
        np.testing.assert_allclose(regret_0, regret_1, rtol=32 * eps, atol=32 * eps)


def test_infinite_scores():
    score, outcomes = np.array([-np.inf, -1.0, 1.0, np.inf]), np.array([0, 1, 0, 1])
    finite = np.array([-9.0, -1.0, 1.0, 9.0])
    new = np.array([-np.inf, -1.0, 0.0, 1.0, np.inf])
    result = jaxcal.fit_venn_abers(score, outcomes).interval(new)
    same = jaxcal.fit_venn_abers(finite, outcomes).interval(np.array([-9.0, -1, 0, 1, 9]))
    np.testing.assert_array_equal(result, same)
    # beyond the last score, where the arrays are padded
    tied = jaxcal.fit_venn_abers(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 1, 1, 1]))
    np.testing.assert_array_equal(tied.interval(np.array([np.inf])), tied.interval(np.array([5.0])))


def test_blocks_of_a_few_rows_among_millions_keep_their_digits():
    """A running float32 sum of a million weights of 0.1 has lost the next row's weight to 1e-2."""
    n = 1 << 17
    rng = np.random.default_rng(1)
    score = np.arange(n, dtype=np.float32)
    outcomes = (rng.random(n) < (np.arange(n) + 0.5) / n).astype(int)
    weights = rng.uniform(0.05, 20, n).astype(np.float32)
    fit = jaxcal.fit_venn_abers(score, outcomes, weights=weights)
    places = np.concatenate([np.arange(5), [n // 2], np.arange(n - 5, n)])
    new = places.astype(np.float32) + np.float32(0.25)
    expected = _refits(score.astype(float), outcomes, weights.astype(float), new.astype(float))
    np.testing.assert_allclose(fit.interval(new), expected, rtol=1e-6, atol=1e-7)


def test_cost_is_linear():
    """A million rows in seconds: no table of all pairs, and no sequence whose sweeps go back and forth."""
    n = 1 << 18
    sweep = jax.jit(inserted_steps)
    rng = np.random.default_rng(0)
    ramp = np.arange(n) < n // 2
    for ones in (rng.random(n) < 0.5, ramp, ~ramp, np.sort(rng.random(n)), -np.sort(-rng.random(n))):
        lane = jnp.asarray(1 - ones, jnp.float32), jnp.asarray(ones, jnp.float32)
        jax.block_until_ready(sweep(*lane))
        start = time.perf_counter()
        jax.block_until_ready(sweep(*lane))
        assert time.perf_counter() - start < 5  # 0.03 s on an idle core; quadratic cost would be an hour


def test_lanes_are_swept_one_by_one(eps):
    rng = np.random.default_rng(2)
    zeros, ones = rng.integers(0, 3, (2, 6, N)).astype(float)
    lanes = jnp.asarray(zeros), jnp.asarray(ones)
    sweep = jax.jit(inserted_steps)
    alone = [sweep(z, a) for z, a in zip(*lanes, strict=True)]
    together, mapped = sweep(*lanes), jax.jit(jax.vmap(inserted_steps))(*lanes)
    for a, b, c in zip(together, zip(*alone, strict=True), mapped, strict=True):
        np.testing.assert_array_equal(a, np.stack(b))
        np.testing.assert_array_equal(c, np.stack(b))
    assert f"[6,{N + 1}] = while" not in str(jax.make_jaxpr(jax.vmap(inserted_steps))(zeros, ones))


def test_derivatives_by_weights(x64):
    if not x64:
        pytest.skip("finite differences need float64")
    rng = np.random.default_rng(3)
    score, weights = rng.normal(size=N), jnp.asarray(rng.uniform(0.5, 2, N))
    outcomes = (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int)

    @jax.jit
    def calibrated(weights):
        fit = jaxcal.fit_venn_abers(score, outcomes, weights=weights)
        return jnp.concatenate([*fit.interval(NEW), fit(NEW), fit.log_probabilities(NEW).reshape(-1)])

    def differences(f, h=1e-6):
        return np.stack([(f(weights + h * d) - f(weights - h * d)) / (2 * h) for d in np.eye(N)], -1)

    reverse = jax.jit(jax.jacrev(calibrated))(weights)
    np.testing.assert_allclose(reverse, differences(calibrated), atol=1e-8)
    direction = jnp.asarray(rng.normal(size=N))
    np.testing.assert_allclose(jax.jvp(calibrated, (weights,), (direction,))[1], reverse @ direction, atol=1e-13)
    slope = jax.jit(jax.grad(lambda w: jnp.sum(jnp.sin(3 * calibrated(w)))))
    np.testing.assert_allclose(jax.jacfwd(slope)(weights), differences(slope), atol=1e-7)
    by_score = jax.grad(lambda s: jnp.sum(jaxcal.fit_venn_abers(s, outcomes)(NEW)))(jnp.asarray(score))
    np.testing.assert_array_equal(by_score, np.zeros(N))


def test_options():
    with pytest.raises(ValueError, match="merge must be one of"):
        jaxcal.fit_venn_abers(np.arange(3.0), np.array([0, 1, 1]), merge="mean")
    fit = jaxcal.fit_venn_abers(np.arange(3.0), np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="NaN"):
        fit.interval(np.array([np.nan]))
