"""Known and unknown prior shift, held to Bayes' rule in fractions, to EM in mpmath and to NumPy.

Compilation is what takes time here: single data sets have N rows, some of weight 0, and three classes, one masked.
"""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxcal
from jaxcal import Status
from jaxcal.solvers import mixture_weights

N, K = 40, 3
PRIOR = np.array([0.5, 0.3, 0.2])


@pytest.fixture
def data():
    """Logits of three lanes and whole weights; the labels come mostly from the last class."""
    rng = np.random.default_rng(0)
    labels = rng.choice(K, (3, N), p=[0.15, 0.25, 0.6])
    logits = rng.normal(0, 1, (3, N, K)) + 1.5 * (labels[..., None] == np.arange(K))
    return jnp.asarray(logits), rng.integers(0, 4, (3, N)).astype(float)


def slopes(logits, prior, weights, new):
    """mean_i q_ij / sum_l new_l q_il in NumPy: 1 where new > 0 and at most 1 elsewhere is the optimum."""
    z = np.asarray(logits, np.float64)
    p = np.exp(z - z.max(-1, keepdims=True))
    q = p / p.sum(-1, keepdims=True) / prior
    w = weights / weights.sum()
    return (w / (q @ np.asarray(new, np.float64))) @ q


# --- known shift ---


def test_bayes_rule(eps):
    p, old, new = ([Fraction(a, 10) for a in row] for row in ((6, 3, 1), (5, 3, 2), (1, 3, 6)))
    joint = [a * b / c for a, b, c in zip(p, new, old, strict=True)]
    expected = [float(a / sum(joint)) for a in joint]
    to_array = lambda row: jnp.asarray([float(a) for a in row])  # noqa: E731
    result = jaxcal.adjust_prior(jnp.log(to_array(p)) + 7, to_array(old), to_array(new))
    np.testing.assert_allclose(np.exp(result), expected, rtol=16 * eps)
    counts = jaxcal.adjust_prior(jnp.log(to_array(p)), np.array([5, 3, 2]), np.array([10, 30, 60]))
    np.testing.assert_allclose(np.exp(counts), expected, rtol=16 * eps)


def test_binary_shift_moves_the_log_odds(eps):
    s = jnp.linspace(-3, 3, 7)
    moved = jaxcal.adjust_prior(jaxcal.binary_logits(s), np.array([0.5, 0.5]), np.array([0.9, 0.1]))
    np.testing.assert_allclose(moved[:, 1] - moved[:, 0], s - np.log(9), rtol=16 * eps, atol=16 * eps)


def test_shift_in_lanes_and_dtypes(data):
    logits, _ = data
    news = np.stack([PRIOR[::-1], PRIOR, [0.1, 0.1, 0.8]])
    stacked = jaxcal.adjust_prior(logits, PRIOR, news)
    shared = jaxcal.adjust_prior(logits[0], PRIOR, news)
    for i in range(3):
        np.testing.assert_array_equal(stacked[i], jaxcal.adjust_prior(logits[i], PRIOR, news[i]))
        np.testing.assert_array_equal(shared[i], jaxcal.adjust_prior(logits[0], PRIOR, news[i]))
    mapped = jax.vmap(jaxcal.adjust_prior, (0, None, 0))(logits, jnp.asarray(PRIOR), jnp.asarray(news))
    np.testing.assert_array_equal(mapped, stacked)
    half = jaxcal.adjust_prior(logits[0].astype(jnp.bfloat16), PRIOR, news[2])
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), stacked[0] * 0 + shared[2], rtol=2e-2, atol=2e-2)


def test_impossible_classes_stay_impossible():
    logits = jnp.array([[0.0, 1.0, -jnp.inf], [2.0, -jnp.inf, 1.0]])
    result = jaxcal.adjust_prior(logits, np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.0, 0.5]))
    np.testing.assert_array_equal(np.isneginf(result), [[False, True, True], [False, True, False]])
    assert result[0, 0] == 0
    masked = jaxcal.adjust_prior(logits[:1], np.array([0.5, 0.5, 0.0]), np.array([0.1, 0.3, 0.6]))
    np.testing.assert_allclose(np.exp(masked[0, :2]), np.array([1, 3 * np.e]) / (1 + 3 * np.e), rtol=1e-6)
    gradient = jax.grad(lambda z: jaxcal.adjust_prior(z, PRIOR, jnp.array([0.5, 0.0, 0.5]))[0, 0])(logits)
    assert np.isfinite(gradient).all()


@pytest.mark.once
@pytest.mark.parametrize(
    ("logits", "prior", "new", "error"),
    [
        ([0.0, 1.0, 2.0], [0.5, 0.5, 0.0], [1.0, 1.0, 1.0], "prior is 0 for class 2, which has a finite logit"),
        ([0.0, 1.0, 2.0], [0.5, -0.5, 1.0], [1.0, 1.0, 1.0], "prior must be finite and >= 0, got -0.5"),
        ([0.0, 1.0, 2.0], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0], "new_prior is 0 for every class"),
        ([0.0, 1.0, -np.inf], [0.5, 0.3, 0.2], [0.0, 0.0, 1.0], "new_prior is 0 for every class that a row allows"),
        ([0.0, np.nan, 1.0], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], "logits must not be NaN"),
        ([0.0, 1.0, 2.0], [0.5, 0.5], [0.5, 0.5], "shape \\(..., k\\) with the k = 3"),
        ([0.0, 1.0, 2.0], [[0.5, 0.3, 0.2]], [0.5, 0.3, 0.2], "a stack of priors"),
    ],
)
def test_bad_priors(logits, prior, new, error):
    with pytest.raises(ValueError, match=error):
        jaxcal.adjust_prior(jnp.array(logits), np.array(prior), np.array(new))


@pytest.mark.once
def test_broken_lanes_are_nan(data):
    logits, _ = data
    news = np.stack([PRIOR, [np.nan, 0.5, 0.5], PRIOR])
    result = jaxcal.adjust_prior(logits, PRIOR, news)
    np.testing.assert_array_equal(np.isnan(result).all((-1, -2)), [False, True, False])
    with pytest.raises(ValueError, match="do not broadcast against logits"):
        jaxcal.adjust_prior(logits, PRIOR, news[:2])


# --- unknown shift ---


def test_em_in_forty_digits(m8, eps):
    """The fixed point of 3,000 steps of EM."""
    logits, _ = m8
    with mpmath.workdps(40):
        z = [[mpmath.mpf(float(a)) for a in row] for row in np.asarray(logits)]
        p = [[mpmath.exp(a) for a in row] for row in z]
        prior = [mpmath.mpf(1) / 4, mpmath.mpf(1) / 4, mpmath.mpf(1) / 2]
        q = [[a / sum(row) / b for a, b in zip(row, prior, strict=True)] for row in p]
        new = list(prior)
        for _ in range(3000):
            mixed = [sum(a * b for a, b in zip(row, new, strict=True)) for row in q]
            step = [b * sum(row[j] / m for row, m in zip(q, mixed, strict=True)) / 8 for j, b in enumerate(new)]
            moved, new = max(abs(a - b) for a, b in zip(step, new, strict=True)), step
        assert moved < 1e-20
        gain = float(sum(mpmath.log(sum(a * b for a, b in zip(row, new, strict=True))) for row in q) / 8)
    filled, weights = np.full((N, K), np.nan), np.where(np.arange(N) < 8, 1.0, 0.0)
    filled[:8] = logits
    fit = jaxcal.estimate_prior(filled, np.array([0.25, 0.25, 0.5]), weights=weights)
    np.testing.assert_allclose(fit.new_prior, [float(a) for a in new], rtol=64 * eps, atol=1e-100)
    assert fit.new_prior[2] == 0  # where EM has come to 4e-141
    np.testing.assert_allclose(fit.gain, gain, rtol=256 * eps)
    np.testing.assert_allclose(fit.prior, [0.25, 0.25, 0.5])
    assert fit.status == Status.CONVERGED and fit.gap <= 16 * eps


def test_optimum_of_lanes_by_its_conditions(data, eps):
    logits, weights = data
    fit = jaxcal.estimate_prior(logits, PRIOR, weights=weights)
    assert (fit.status == Status.CONVERGED).all() and (fit.gap <= 16 * eps).all()
    for i in range(3):
        slope = slopes(logits[i], PRIOR, weights[i], fit.new_prior[i])
        assert slope.max() <= 1 + 32 * eps
        np.testing.assert_allclose(slope[np.asarray(fit.new_prior[i]) > 0], 1, rtol=64 * eps)
    np.testing.assert_allclose(fit.new_prior.sum(-1), 1, rtol=4 * eps)
    np.testing.assert_array_equal(fit(logits), jaxcal.adjust_prior(logits, fit.prior, fit.new_prior))


def test_weights_are_counts_and_absent_rows_hold_anything(data, eps):
    logits = np.array(data[0][0])
    weights = np.random.default_rng(0).multinomial(N, np.full(N, 1 / N))
    dirty = np.where(weights[:, None] == 0, np.nan, logits)
    weighted = jaxcal.estimate_prior(dirty, PRIOR, weights=weights)
    repeated = jaxcal.estimate_prior(np.repeat(logits, weights, 0), PRIOR, weights=np.ones(N))
    np.testing.assert_allclose(weighted.new_prior, repeated.new_prior, rtol=64 * eps, atol=8 * eps)
    np.testing.assert_allclose(weighted.gain, repeated.gain, rtol=256 * eps)
    gradient = jax.grad(lambda z: jaxcal.estimate_prior(z, PRIOR, weights=weights).new_prior[0])(dirty)
    assert np.isfinite(gradient).all() and (gradient[weights == 0] == 0).all()


def test_jit_vmap_and_shared_logits(data, eps):
    logits, weights = data
    one = [jaxcal.estimate_prior(z, PRIOR, weights=w).new_prior for z, w in zip(logits, weights, strict=True)]
    close = functools.partial(np.testing.assert_allclose, rtol=64 * eps, atol=8 * eps)
    count = 0

    @jax.jit
    def compiled(logits, weights):
        nonlocal count
        count += 1
        return jax.vmap(lambda z, w: jaxcal.estimate_prior(z, PRIOR, weights=w).new_prior)(logits, weights)

    close(compiled(logits, weights), one)
    compiled(logits + 1, weights)
    assert count == 1
    priors = np.stack([PRIOR, PRIOR[::-1], PRIOR])
    shared = jaxcal.estimate_prior(logits[0], priors, weights=weights)
    for i in range(3):
        close(shared.new_prior[i], jaxcal.estimate_prior(logits[0], priors[i], weights=weights[i]).new_prior)


@pytest.mark.once
def test_half_precision(data):
    logits, weights = data[0][0].astype(jnp.bfloat16), data[1][0]
    fit = jaxcal.estimate_prior(logits, PRIOR, weights=weights)
    assert fit.new_prior.dtype == jnp.float32 and fit(logits).dtype == jnp.bfloat16
    full = jaxcal.estimate_prior(logits.astype(jnp.float32), PRIOR, weights=weights)
    np.testing.assert_array_equal(fit.new_prior, full.new_prior)


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="finite differences need float64")
def test_derivatives(data):
    logits, prior, weights = data[0][0], jnp.asarray(PRIOR), jnp.linspace(0.5, 2, N)

    def value(logits, prior, weights):
        fit = jaxcal.estimate_prior(logits, prior, weights=weights)
        return jnp.array([1.0, -2.0, 0.5]) @ fit.new_prior + fit.gain

    first = jax.jit(jax.value_and_grad(value, (0, 1, 2)))
    gradients = first(logits, prior, weights)[1]
    rng = np.random.default_rng(1)
    for j, gradient in enumerate(gradients):
        way = jnp.asarray(rng.standard_normal(gradient.shape))
        step = lambda s: first(*[a + s * way if i == j else a for i, a in enumerate((logits, prior, weights))])[0]  # noqa: E731, B023
        difference = (step(1e-5) - step(-1e-5)) / 2e-5
        np.testing.assert_allclose(jnp.vdot(gradient, way), difference, rtol=1e-7)
    way = jnp.asarray(rng.standard_normal((N, K)))
    second = jax.jit(jax.grad(jax.grad(lambda s: value(logits + s * way, prior, weights))))(0.0)
    slope = lambda s: jnp.vdot(first(logits + s * way, prior, weights)[1][0], way)  # noqa: E731
    np.testing.assert_allclose(second, (slope(1e-5) - slope(-1e-5)) / 2e-5, rtol=1e-6)


def test_classes_that_only_lower_the_likelihood_get_zero(eps):
    """No row speaks for class 2: its frequency is 0, exactly, and its derivative too."""
    rng = np.random.default_rng(0)
    logits, ones = jnp.asarray(rng.normal(0, 1, (N, K)) + np.array([0, 0.3, -6])), np.ones(N)
    fit = jaxcal.estimate_prior(logits, np.array([0.1, 0.1, 0.8]), weights=ones)
    assert fit.new_prior[2] == 0 and fit.status == Status.CONVERGED and fit.gap <= 16 * eps
    assert slopes(logits, [0.1, 0.1, 0.8], ones, fit.new_prior)[2] < 0.5
    assert np.isneginf(fit(logits)[:, 2]).all()
    gradient = jax.grad(lambda z: jaxcal.estimate_prior(z, PRIOR, weights=ones).new_prior[2])(logits)
    np.testing.assert_array_equal(gradient, 0)


def test_degenerate_data(eps):
    rng = np.random.default_rng(0)
    z, ones = rng.normal(0, 1, (N, 2)), np.ones(N)
    first = np.zeros((N, K))
    first[0] = [0, 1, 0.5]
    one = jaxcal.estimate_prior(first, np.array([0.2, 0.7, 0.1]), weights=np.eye(N)[0])
    np.testing.assert_array_equal(one.new_prior, [0, 0, 1])  # the largest p / prior
    np.testing.assert_allclose(one.gain, np.log(np.exp(0.5) / np.exp([0, 1, 0.5]).sum() / 0.1), rtol=8 * eps)
    same = jaxcal.estimate_prior(np.tile(np.log(PRIOR), (N, 1)), PRIOR, weights=ones)
    assert same.status == Status.NOT_IDENTIFIED
    np.testing.assert_allclose(same.new_prior, PRIOR, rtol=4 * eps)
    # two classes that no row tells apart share what the one of both gets
    twins = jaxcal.estimate_prior(np.concatenate([z, z[:, 1:]], 1), np.array([0.5, 0.25, 0.25]), weights=ones)
    assert twins.status == Status.NOT_IDENTIFIED
    masked = lambda z: jaxcal.estimate_prior(  # noqa: E731
        np.insert(z, 2, -np.inf, axis=1), np.array([0.5, 0.5, 0.0]), weights=ones
    )
    merged, plain = masked(z + [0, np.log(2)]), masked(z)
    np.testing.assert_allclose(twins.new_prior[0], merged.new_prior[0], rtol=64 * eps)
    # a masked class is as if it were not there: the optimum of the other two
    assert plain.status == Status.CONVERGED and plain.new_prior[2] == 0 and (np.asarray(plain.new_prior[:2]) > 0).all()
    np.testing.assert_allclose(slopes(z, np.array([0.5, 0.5]), ones, plain.new_prior[:2]), 1, rtol=64 * eps)


def test_hostile_mixtures(eps):
    """More components than rows, densities over hundreds of decades, one row for a rare component, near twins."""
    rng = np.random.default_rng(0)
    n, m = 60, 80
    usual = rng.normal(0, 1.5, (n, m))
    spread = 100 * rng.normal(size=(n, m))
    rare = np.where((np.arange(n) == 7)[:, None] & (np.arange(m) == 3), 9.0, usual - 8 * (np.arange(m) == 3))
    twins = np.concatenate([usual[:, :40], usual[:, :40] + 1e-3 * rng.normal(size=(n, 40))], axis=1)
    density = jnp.asarray(np.stack([usual, spread, rare, twins]))
    counts = 10.0 ** rng.uniform(-3, 3, n)
    found = jax.jit(mixture_weights)(density, jnp.asarray(counts), jnp.full(m, 1 / m))
    assert found.converged.all() and (found.gap <= 64 * eps).all() and (found.num_steps <= 30).all()
    for log_q, w in zip(np.asarray(density, np.float64), np.asarray(found.weights, np.float64), strict=True):
        q = np.exp(log_q - log_q.max(-1, keepdims=True))
        slope = (counts / counts.sum() / (q @ (w / w.sum()))) @ q
        assert slope.max() <= 1 + 64 * eps and (w >= 0).all() and (w == 0).any()


@pytest.mark.once
def test_adapting_lowers_the_loss_on_the_new_population():
    rng = np.random.default_rng(0)
    labels = rng.choice(K, 4000, p=[0.1, 0.2, 0.7])
    x = rng.normal(0, 1, (4000, K)) + 1.5 * (labels[:, None] == np.arange(K))
    logits = jnp.asarray(1.5 * x + np.log(PRIOR))  # exact for the old frequencies
    fit = jaxcal.estimate_prior(logits, PRIOR)
    frequencies = np.bincount(labels) / 4000
    np.testing.assert_allclose(fit.new_prior, frequencies, atol=4 * 0.5 / np.sqrt(4000))
    known = jaxcal.risk(jaxcal.adjust_prior(logits, PRIOR, frequencies), labels)
    assert jaxcal.risk(fit(logits), labels) < known + 1e-3 < jaxcal.risk(logits, labels) - 0.1


def test_bad_input(data):
    logits, weights = data
    broken = logits.at[1, 3, 0].set(jnp.nan)
    weights[1, 3] = 1
    fit = jaxcal.estimate_prior(broken, PRIOR, weights=weights)
    whole = jaxcal.estimate_prior(logits, PRIOR, weights=weights)
    assert fit.status.tolist() == [0, Status.INVALID_INPUT, 0] and np.isnan(fit.new_prior[1]).all()
    np.testing.assert_array_equal(fit.new_prior[0], whole.new_prior[0])
    assert np.isnan(fit(logits)[1]).all() and np.isfinite(fit(logits)[0]).all()
    with pytest.raises(ValueError, match="estimate_prior: logits must not be NaN; row 3"):
        jaxcal.estimate_prior(broken[1], PRIOR, weights=weights[1])
    with pytest.raises(ValueError, match="weights must be finite"):
        jaxcal.estimate_prior(logits[0], PRIOR, weights=-weights[0] - 1)
    with pytest.raises(ValueError, match="prior is 0 for class 2"):
        jaxcal.estimate_prior(logits[0], np.array([0.5, 0.5, 0.0]), weights=weights[0])
    with pytest.raises(ValueError, match=r"\(..., n, k\)"):
        jaxcal.estimate_prior(logits[0, 0], PRIOR)
    failed = jax.tree.map(lambda a: a[1], fit)
    with pytest.raises(ValueError, match="INVALID_INPUT"):
        failed(logits[0])


def test_saved_fits_predict_the_same(data, tmp_path):
    fit = jaxcal.estimate_prior(data[0], PRIOR, weights=data[1])
    fit.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(jaxcal.load(tmp_path / "fit.npz")(data[0]), fit(data[0]))


def test_only_ratios_of_counts_matter(data, eps):
    logits = data[0]
    large = PRIOR * 2.0**100
    expected = jaxcal.adjust_prior(logits, np.ones(3), PRIOR)
    np.testing.assert_allclose(jaxcal.adjust_prior(logits, np.full(3, 2.0**100), large), expected, atol=8 * eps)
