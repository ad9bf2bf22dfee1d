"""Bayesian binning into quantiles against bins made one by one in NumPy; test_frequency_fits.py has the contract."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.special import gammaln

import jaxcal

N = 24
BINS = (1, 2, 3, 5, 7)
fit_bbq = functools.partial(jaxcal.fit_bbq, num_bins=BINS)


def _logit(p):
    return np.log(p) - np.log1p(-np.asarray(p, float))


def _data(seed):
    """Tied scores that float32 holds exactly, whole weights with zeros."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-8, 9, N) / 4
    return score, (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int), rng.integers(0, 4, N).astype(float)


def _by_hand(score, outcomes, new, num_bins, prior_count=2.0):
    """Log scores and predictions, from rows of weight 1 and numpy.array_split."""
    order = np.argsort(score)
    p, y = 1 / (1 + np.exp(-score[order])), outcomes[order]
    log_scores, predictions = [], []
    for num in num_bins:
        split = np.concatenate([np.full(len(rows), b) for b, rows in enumerate(np.array_split(p, num))])
        bins = split[np.searchsorted(p, p)]  # equal scores go where the first of them goes
        cuts = np.searchsorted(bins, np.arange(1, num))
        edges = [0.0, *(np.inf if c == len(p) else (p[c - 1] + p[c]) / 2 for c in cuts), 1.0]
        log_score, values = 0.0, []
        for b in range(num):
            inside, prior = y[bins == b], prior_count / num
            middle = (min(edges[b], 1) + min(edges[b + 1], 1)) / 2
            alpha, beta, ones, zeros = prior * middle, prior * (1 - middle), inside.sum(), (1 - inside).sum()
            if len(inside):
                log_score += gammaln(prior) - gammaln(len(inside) + prior)
                log_score += gammaln(ones + alpha) - gammaln(alpha) + gammaln(zeros + beta) - gammaln(beta)
            values.append((ones + alpha) / (len(inside) + prior))
        log_scores.append(log_score)
        predictions.append(np.array(values)[np.searchsorted(edges[1:-1], 1 / (1 + np.exp(-new)), side="right")])
    posterior = np.exp(log_scores - np.max(log_scores))
    return np.array(log_scores), posterior / posterior.sum() @ np.array(predictions)


def test_ten_rows_by_hand(d10, eps):
    """The formulas evaluated in float64; 10 is no multiple of 3 or 4, so the bins are those of numpy.array_split."""
    score = _logit(np.asarray(d10[0], np.float64))
    fit = jaxcal.fit_bbq(score, d10[1], num_bins=range(1, 6))
    expected = [-7.927324360309796, -7.162996652690781, -10.113851375863373, -9.771952518598141, -8.573590102935883]
    np.testing.assert_allclose(fit.log_scores, expected, rtol=16 * eps)
    np.testing.assert_allclose(
        fit(_logit(np.array([0.25, 0.6]))), [0.316901862498247, 0.6629586275367874], rtol=16 * eps
    )
    assert fit.num_bins.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(np.sum(fit.posterior), 1, rtol=4 * eps)
    default = jaxcal.fit_bbq(score, d10[1])
    assert default.num_bins.tolist() == [1, 2]
    np.testing.assert_allclose(default.log_scores, expected[:2], rtol=16 * eps)


@pytest.mark.parametrize("seed", range(4))
def test_ties_and_weights_bin_by_bin(seed, eps):
    score, outcomes, weights = _data(seed)
    new = np.linspace(-3, 3, N) + 0.001  # on no edge
    fit = fit_bbq(score, outcomes, weights=weights)
    copies = np.repeat(np.arange(N), weights.astype(int))
    log_scores, predictions = _by_hand(score[copies], outcomes[copies], new, BINS)
    np.testing.assert_allclose(fit.log_scores, log_scores, rtol=32 * eps)
    # what the log scores, of size 16, are off by is a relative error of the posterior
    np.testing.assert_allclose(fit(new), predictions, rtol=16 * 32 * eps)
    np.testing.assert_allclose(np.exp(fit.log_probabilities(new)[:, 0]), 1 - predictions, rtol=16 * 32 * eps)


def test_strength_of_the_prior(eps):
    score, outcomes, _ = _data(5)
    fit = fit_bbq(score, outcomes, prior_count=50.0)
    np.testing.assert_allclose(fit(score), _by_hand(score, outcomes, score, BINS, 50.0)[1], rtol=64 * eps)


def test_bins_of_fit_histogram_where_they_divide_the_rows():
    rng = np.random.default_rng(0)
    score, outcomes = rng.normal(size=N), rng.integers(0, 2, N)
    one = jaxcal.fit_bbq(score, outcomes, num_bins=[6])
    histogram = jaxcal.fit_histogram(score, outcomes, num_bins=6, bins="mass")
    np.testing.assert_array_equal(one.edges, histogram.edges[1:-1])
    assert one.posterior.tolist() == [1]


@pytest.mark.once
@pytest.mark.parametrize("n", [1, 4, 5, 10, 11, 100, 999, 1000, 1001, 8000, 10_000, 27_001])
def test_numbers_of_bins_tried(n):
    """All B with n^(1/3) / 10 <= B <= min(n / 5, 10 n^(1/3)), told from the shapes by whole numbers."""
    tried = [b for b in range(1, n + 1) if 1000 * b**3 >= n and 5 * b <= n and b**3 <= 1000 * n] or [1]
    shapes = jax.eval_shape(jaxcal.fit_bbq, jnp.zeros(n), jnp.zeros(n))
    assert shapes.posterior.shape == (len(tried),)
    assert shapes.edges.shape == (sum(tried) - len(tried),)


def test_certain_forecasts_and_one_surprise(eps):
    """Midpoints that are no floating-point numbers: alpha = e^-400 N'/B, and one outcome that had it as its odds."""
    score = np.array([-400.0, -400.0, -300.0, -300.0, 300.0, 300.0, 400.0, 400.0])
    outcomes = np.array([0, 1, 0, 0, 1, 1, 1, 1])
    fit = jaxcal.fit_bbq(score, outcomes, num_bins=[1, 4])
    with mpmath.workdps(400):
        p = [1 / (1 + mpmath.exp(-s)) for s in (-400, -300, 300, 400)]
        edges = [mpmath.mpf(0), *((a + b) / 2 for a, b in zip(p[:-1], p[1:], strict=True)), mpmath.mpf(1)]
        expected, values = mpmath.mpf(0), []
        for low, high, ones, zeros in zip(edges[:-1], edges[1:], (1, 0, 2, 2), (1, 2, 0, 0), strict=True):
            alpha, beta = (low + high) / 4, (2 - low - high) / 4
            expected += mpmath.log(mpmath.beta(ones + alpha, zeros + beta) / mpmath.beta(alpha, beta))
            values.append((ones + alpha) / (2 + alpha + beta))
        single = mpmath.log(mpmath.beta(5 + 1, 3 + 1) / mpmath.beta(1, 1))
        # sums of logarithms of size 30, those of gamma functions good to a few eps
        np.testing.assert_allclose(fit.log_scores, [float(single), float(expected)], rtol=4 * eps, atol=8 * 30 * eps)
        # both binnings, or nearly all of the one without a surprise
        assert fit.posterior[0] == 1
        np.testing.assert_allclose(fit(np.array([-500.0, 500.0])), 0.6, rtol=8 * eps)
    many = jaxcal.fit_bbq(score, outcomes, num_bins=[4])
    np.testing.assert_allclose(many(score[::2]), [float(v) for v in values], rtol=16 * eps, atol=1e-38)
    pair = many.log_probabilities(score[::2])
    np.testing.assert_allclose(np.exp(pair[:, 0]), [float(1 - v) for v in values], rtol=16 * eps, atol=1e-38)
    infinite = jaxcal.fit_bbq(np.array([-np.inf, -np.inf, np.inf, np.inf]), np.array([0, 1, 1, 1]), num_bins=[2])
    assert np.isfinite(infinite(np.array([-np.inf, np.inf]))).all()


def test_small_probabilities_keep_their_digits(eps):
    """Values that fall from 1/2 to 1e-6 along the scores are no differences of large ones."""
    score, outcomes = np.arange(N) / 8.0, np.zeros(N, int)
    outcomes[1::2] = 1
    outcomes[12:], weights = 0, np.where(np.arange(N) < 12, 1.0, 2.0**17)
    fit = fit_bbq(score, outcomes, weights=weights)
    copies = np.repeat(np.arange(N), weights.astype(int))
    log_scores, predictions = _by_hand(score[copies], outcomes[copies], score, BINS)
    assert 1e-8 < predictions.min() < 1e-4
    # 1.6 million rows, in float32 too, where logarithms of size n log n would be wrong by 1 or 2; in float64 those of
    # SciPy, of size 2e7, are rounded
    np.testing.assert_allclose(fit.log_scores, log_scores, rtol=16 * eps, atol=2e-8)
    np.testing.assert_allclose(fit(score), predictions, rtol=max(16 * 100 * eps, 2e-8))


def test_rows_of_weight_0_do_not_change_the_default_bins(eps):
    """Numbers of bins are chosen by the sum of the weights: padding is as if it were not there."""
    rng = np.random.default_rng(4)
    score, outcomes = rng.normal(size=400), rng.integers(0, 2, 400)
    weights = np.where(np.arange(400) < 30, 1.0, 0)
    padded, short = jaxcal.fit_bbq(score, outcomes, weights=weights), jaxcal.fit_bbq(score[:30], outcomes[:30])
    used = np.asarray(padded.posterior) > 0
    np.testing.assert_array_equal(padded.num_bins[used], short.num_bins)
    np.testing.assert_allclose(padded.posterior[used], short.posterior, rtol=64 * eps)
    np.testing.assert_allclose(padded(score), short(score), rtol=64 * eps)
    twice = jaxcal.fit_bbq(score, outcomes, weights=np.full(400, 2.0))  # never more bins than 400 rows have
    assert twice.num_bins[np.asarray(twice.posterior) > 0].max() <= 74


def test_derivatives_by_weights(x64):
    if not x64:
        pytest.skip("finite differences need float64")
    score, outcomes, _ = _data(6)
    rng = np.random.default_rng(7)
    weights = jnp.asarray(rng.uniform(0.5, 2, N))
    calibrated = jax.jit(lambda w: fit_bbq(score, outcomes, weights=w)(score))

    def differences(f, h=1e-6):
        return np.stack([(f(weights + h * d) - f(weights - h * d)) / (2 * h) for d in np.eye(N)], -1)

    reverse = jax.jit(jax.jacrev(calibrated))(weights)
    np.testing.assert_allclose(reverse, differences(calibrated), atol=1e-8)
    direction = jnp.asarray(rng.normal(size=N))
    np.testing.assert_allclose(jax.jvp(calibrated, (weights,), (direction,))[1], reverse @ direction, atol=1e-13)
    by_score = jax.grad(lambda s: jnp.sum(fit_bbq(s, outcomes)(score)))(jnp.asarray(score))
    np.testing.assert_array_equal(by_score, np.zeros(N))


def test_options():
    for options, message in (
        ({"num_bins": 5}, "num_bins must be a sequence"),
        ({"num_bins": []}, "num_bins must be some integers"),
        ({"num_bins": [2, 2]}, "all different"),
        ({"num_bins": [0, 1]}, "each of num_bins must be an integer >= 1"),
        ({"prior_count": 0}, "prior_count must be a number > 0"),
        ({"prior_count": np.inf}, "prior_count must be a number > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            jaxcal.fit_bbq(np.arange(4.0), np.array([0, 1, 0, 1]), **options)
