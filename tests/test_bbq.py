"""Bayesian binning into quantiles against bins made one by one in NumPy; test_frequency_fits.py has the contract.

Compilation is what takes time here: data sets are filled up with rows of weight 0 to one size.
"""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.special import gammaln

import jaxcal

N = 24
BINS = (1, 2, 3, 4, 5)
fit_bbq = functools.partial(jaxcal.fit_bbq, num_bins=BINS)
fit_four = functools.partial(jaxcal.fit_bbq, num_bins=[4], prior_count=50.0)


def _logit(p):
    return np.log(p) - np.log1p(-np.asarray(p, float))


def _data(seed):
    """Tied scores that float32 holds exactly, whole weights with zeros."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-8, 9, N) / 4
    return score, (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int), rng.integers(0, 4, N).astype(float)


def _filled(score, outcomes):
    """Arguments of a fit to these rows and absent ones, N in all."""
    absent = N - len(score)
    weights = np.append(np.ones(len(score)), np.zeros(absent))
    score, outcomes = np.append(score, np.full(absent, np.nan)), np.append(outcomes, np.full(absent, -1))
    return {"score": score, "outcomes": outcomes, "weights": weights}


def _at(fit, score, pair=False):
    """Calibrated `score`, or both log-probabilities, by a call of N scores."""
    calibrated = (fit.log_probabilities if pair else fit)(np.resize(score, N))
    return np.asarray(calibrated)[: len(score)]


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


TEN = [-7.927324360309796, -7.162996652690781, -10.113851375863373, -9.771952518598141, -8.573590102935883]


def test_ten_rows_by_hand(d10, eps):
    """The formulas evaluated in float64; 10 is no multiple of 3 or 4, so the bins are those of numpy.array_split."""
    score, outcomes = _logit(np.asarray(d10[0], np.float64)), np.asarray(d10[1])
    fit = fit_bbq(**_filled(score, outcomes))
    np.testing.assert_allclose(fit.log_scores, TEN, rtol=16 * eps)
    expected = [0.316901862498247, 0.6629586275367874]
    np.testing.assert_allclose(_at(fit, _logit(np.array([0.25, 0.6]))), expected, rtol=16 * eps)
    assert fit.num_bins.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(np.sum(fit.posterior), 1, rtol=4 * eps)
    default = jaxcal.fit_bbq(score, outcomes)
    assert default.num_bins.tolist() == [1, 2]
    np.testing.assert_allclose(default.log_scores, TEN[:2], rtol=16 * eps)


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
    np.testing.assert_allclose(np.exp(_at(fit, new, pair=True)[:, 0]), 1 - predictions, rtol=16 * 32 * eps)


def test_strength_of_the_prior(eps):
    score, outcomes, _ = _data(5)
    fit = fit_four(score, outcomes, weights=np.ones(N))
    log_scores, predictions = _by_hand(score, outcomes, score, [4], 50.0)
    np.testing.assert_allclose(fit.log_scores, log_scores, rtol=32 * eps)
    np.testing.assert_allclose(fit(score), predictions, rtol=64 * eps)


def test_bins_of_fit_histogram_where_they_divide_the_rows():
    rng = np.random.default_rng(0)
    score, outcomes = rng.normal(size=N), rng.integers(0, 2, N)
    one = fit_four(score, outcomes, weights=np.ones(N))
    histogram = jaxcal.fit_histogram(score, outcomes, num_bins=4, bins="mass")
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
    fit, many = fit_bbq(**_filled(score, outcomes)), fit_four(**_filled(score, outcomes))
    with mpmath.workdps(400):
        p = [1 / (1 + mpmath.exp(-s)) for s in (-400, -300, 300, 400)]
        edges = [mpmath.mpf(0), *((a + b) / 2 for a, b in zip(p[:-1], p[1:], strict=True)), mpmath.mpf(1)]

        def by_hand(prior):
            """Log score and values of four bins of two rows."""
            log_score, values = mpmath.mpf(0), []
            for low, high, ones, zeros in zip(edges[:-1], edges[1:], (1, 0, 2, 2), (1, 2, 0, 0), strict=True):
                alpha, beta = (low + high) / 2 * prior, (2 - low - high) / 2 * prior
                log_score += mpmath.log(mpmath.beta(ones + alpha, zeros + beta) / mpmath.beta(alpha, beta))
                values.append((ones + alpha) / (2 + alpha + beta))
            return float(log_score), values

        single = float(mpmath.log(mpmath.beta(5 + 1, 3 + 1) / mpmath.beta(1, 1)))
        (expected, _), (strong, values) = by_hand(mpmath.mpf(2) / 4), by_hand(mpmath.mpf(50) / 4)
        # sums of logarithms of size 30, those of gamma functions good to a few eps
        close = functools.partial(np.testing.assert_allclose, rtol=4 * eps, atol=8 * 30 * eps)
        close(fit.log_scores[np.array([0, 3])], [single, expected])
        close(many.log_scores, [strong])
        close = functools.partial(np.testing.assert_allclose, rtol=16 * eps, atol=1e-38)
        close(_at(many, score[::2]), [float(v) for v in values])
        close(np.exp(_at(many, score[::2], pair=True)[:, 0]), [float(1 - v) for v in values])
    # with three copies of the first two rows there is a surprise in all binnings but that of one bin: 3 + 4 ones of 12
    rows = _filled(score, outcomes)
    rows["weights"][:2] = 3
    fit = fit_bbq(**rows)
    assert fit.posterior[0] == 1
    np.testing.assert_allclose(_at(fit, np.array([-500.0, 500.0])), (7 + 1) / (12 + 2), rtol=8 * eps)
    infinite = fit_bbq(**_filled(np.array([-np.inf, -np.inf, np.inf, np.inf]), np.array([0, 1, 1, 1])))
    assert np.isfinite(_at(infinite, np.array([-np.inf, np.inf]))).all()


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


def test_rows_of_weight_0_do_not_change_the_default_bins(d10, eps):
    """Numbers of bins are chosen by the sum of the weights: padding is as if it were not there."""
    rng = np.random.default_rng(4)
    score, outcomes = rng.normal(size=400), rng.integers(0, 2, 400)
    score[:10], outcomes[:10] = _logit(np.asarray(d10[0], np.float64)), np.asarray(d10[1])
    padded = jaxcal.fit_bbq(score, outcomes, weights=np.where(np.arange(400) < 10, 1.0, 0))
    used = np.asarray(padded.posterior) > 0
    assert np.asarray(padded.num_bins)[used].tolist() == [1, 2]
    np.testing.assert_allclose(np.asarray(padded.log_scores)[used], TEN[:2], rtol=64 * eps)
    posterior = np.exp(np.array(TEN[:2])) / np.exp(TEN[:2]).sum()
    np.testing.assert_allclose(np.asarray(padded.posterior)[used], posterior, rtol=64 * eps)
    _, predictions = _by_hand(score[:10], outcomes[:10], score, [1, 2])
    np.testing.assert_allclose(padded(score), predictions, rtol=64 * eps)
    twice = jaxcal.fit_bbq(score, outcomes, weights=np.full(400, 2.0))  # never more bins than 400 rows have
    assert np.asarray(twice.num_bins)[np.asarray(twice.posterior) > 0].max() <= 74


def test_derivatives_by_weights(x64):
    if not x64:
        pytest.skip("finite differences need float64")
    score, outcomes, _ = _data(6)
    rng = np.random.default_rng(7)
    weights, direction = rng.uniform(0.5, 2, N), rng.normal(size=N)

    @jax.jit
    def all_of(w):
        """The calibrated scores, their Jacobians by scores and weights, and their derivative along `direction`."""
        calibrated = lambda s, w: fit_bbq(s, outcomes, weights=w)(score)  # noqa: E731
        value, pull = jax.vjp(calibrated, score, w)
        along = jax.jvp(lambda w: calibrated(score, w), (w,), (jnp.asarray(direction),))[1]
        return value, *jax.vmap(pull)(jnp.eye(N)), along

    h = 1e-6
    differences = np.stack(
        [np.subtract(all_of(weights + h * d)[0], all_of(weights - h * d)[0]) / (2 * h) for d in np.eye(N)], -1
    )
    _, by_score, reverse, along = all_of(weights)
    np.testing.assert_allclose(reverse, differences, atol=1e-8)
    np.testing.assert_allclose(along, reverse @ direction, atol=1e-13)
    np.testing.assert_array_equal(by_score, np.zeros((N, N)))


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
