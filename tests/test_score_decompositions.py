"""Murphy and CORP decompositions against exact fractions, enumeration, SciPy and independent NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxcal

N = 60
RNG = np.random.default_rng(5)
# three lanes with many ties, no score on an edge of 15 or 5 bins
P = RNG.choice(np.arange(1, 100) / 101, (3, N)).round(2)
Y = (RNG.random((3, N)) < P**1.5).astype(int)
COUNTS = RNG.integers(0, 4, (3, N))
TERMS = ("brier", "reliability", "resolution", "uncertainty", "within_bin_variance", "within_bin_covariance")
LOSSES = [
    jaxcal.half_brier_loss,
    jaxcal.log_loss,
    jaxcal.spherical_loss,
    jaxcal.proper_loss(lambda q: 1 - jnp.sum(q**2)),
]


def _murphy(p, y, index):
    """One lane from the formulas; bins in `index`."""
    n, overall = len(p), y.mean()
    parts = dict.fromkeys(TERMS, 0.0)
    parts["brier"], parts["uncertainty"] = np.mean((p - y) ** 2), overall * (1 - overall)
    noise = 0
    for b in np.unique(index):
        q, o = p[index == b], y[index == b]
        parts["reliability"] += len(q) * (q.mean() - o.mean()) ** 2 / n
        parts["resolution"] += len(q) * (o.mean() - overall) ** 2 / n
        parts["within_bin_variance"] += np.sum((q - q.mean()) ** 2) / n
        parts["within_bin_covariance"] += 2 * np.sum((q - q.mean()) * (o - o.mean())) / n
        noise += o.var() * len(q) / (len(q) - 1) / n if len(q) > 1 else 0
    corrected = dict(parts)
    corrected["reliability"] -= noise
    corrected["resolution"] -= noise - parts["uncertainty"] / (n - 1)
    corrected["uncertainty"] *= n / (n - 1)
    return parts, corrected


def _values(parts, names=TERMS):
    return np.stack([np.asarray(getattr(parts, name)) for name in names])


# --- Murphy ---


def test_murphy_of_ten_forecasts(d10, eps):
    """Exact rationals, five bins, one of which holds a single row."""
    parts = jaxcal.murphy_decomposition(*d10, num_bins=5)
    expected = [9351 / 50000, 18421 / 300000, 2 / 15, 1 / 4, 157 / 60000, -19 / 3000]
    np.testing.assert_allclose(_values(parts), expected, rtol=8 * eps, atol=eps)
    np.testing.assert_allclose(parts.generalized_resolution, 2 / 15 - 157 / 60000 - 19 / 3000, rtol=8 * eps)
    corrected = jaxcal.murphy_decomposition(*d10, num_bins=5, bias_corrected=True)
    expected = [18421 / 300000 - 1 / 12, 2 / 15 - 1 / 12 + 1 / 36, 10 / 36]
    np.testing.assert_allclose(_values(corrected, TERMS[1:4]), expected, rtol=8 * eps)


@pytest.mark.parametrize("bins", ["width", "mass"])
def test_murphy_is_its_formulas_and_adds_up(bins, eps):
    index = (P * 15).astype(int)
    if bins == "mass":
        index = np.array([[15 * np.sum(q < x) // N for x in q] for q in P])
    lanes = [_murphy(*lane) for lane in zip(P, Y, index, strict=True)]
    for corrected in (False, True):
        parts = jaxcal.murphy_decomposition(P, Y, bins=bins, bias_corrected=corrected)
        expected = np.array([[lane[corrected][name] for lane in lanes] for name in TERMS])
        np.testing.assert_allclose(_values(parts), expected, rtol=0, atol=4 * eps)
        brier, rel, res, unc, var, cov = _values(parts)
        np.testing.assert_allclose(brier, rel - res + unc + var - cov, rtol=0, atol=4 * eps)
    assert (_values(jaxcal.murphy_decomposition(P, Y, bins=bins))[:5] >= 0).all()


def test_murphy_with_one_forecast_a_bin_is_murphys(eps):
    """Nothing is left inside a bin then; forecasts are exact in binary, so their bin mean is exact."""
    p = np.round(P * 8) / 8
    parts = jaxcal.murphy_decomposition(p, Y, num_bins=16)
    np.testing.assert_array_equal(_values(parts)[4:], 0)
    np.testing.assert_allclose(parts.brier, parts.reliability - parts.resolution + parts.uncertainty, atol=4 * eps)


def test_corrected_murphy_is_unbiased():
    """The mean over all 2^7 outcomes of two bins of equal forecasts, exactly weighted."""
    p = np.repeat([0.3, 0.8], [3, 4])
    truth = np.repeat([0.45, 0.7], [3, 4])
    y = np.array(list(itertools.product([0, 1], repeat=7)))
    chance = np.prod(np.where(y == 1, truth, 1 - truth), axis=1)
    parts = jaxcal.murphy_decomposition(p, y, num_bins=5, bias_corrected=True)
    rows = np.array([3, 4]) / 7
    difference = np.array([0.3 - 0.45, 0.8 - 0.7])
    exact = np.sum(rows * difference**2)
    np.testing.assert_allclose(chance @ np.asarray(parts.reliability, float), exact, rtol=1e-5)
    plain = jaxcal.murphy_decomposition(p, y, num_bins=5).reliability
    noise = (0.45 * 0.55 + 0.7 * 0.3) / 7  # each bin adds the variance of its frequency, (n_b / n) q (1 - q) / n_b
    np.testing.assert_allclose(chance @ np.asarray(plain, float), exact + noise, rtol=1e-5)


def test_murphy_of_all_classes_sums_to_the_brier_loss(m8, eps):
    parts = jaxcal.murphy_decomposition(*jaxcal.class_wise(*m8), num_bins=5)
    np.testing.assert_allclose(parts.brier.sum(0), jaxcal.risk(*m8, loss=jaxcal.brier_loss), rtol=8 * eps)


def test_corrected_murphy_of_one_row_does_not_exist():
    one = (np.array([0.4]), np.array([1]))
    corrected = _values(jaxcal.murphy_decomposition(*one, bias_corrected=True))
    np.testing.assert_array_equal(np.isnan(corrected), [False, True, True, True, False, False])
    assert np.isfinite(_values(jaxcal.murphy_decomposition(*one))).all()


def test_float32_keeps_the_sum_of_a_million():
    rng = np.random.default_rng(0)
    p = rng.random(1_000_000, np.float32)
    y = rng.random(1_000_000) < p
    parts = _values(jaxcal.murphy_decomposition(p, y)).astype(float)
    exact, _ = _murphy(p.astype(float), y.astype(float), np.minimum((p.astype(float) * 15).astype(int), 14))
    np.testing.assert_allclose(parts, [exact[name] for name in TERMS], rtol=2e-6, atol=1e-8)
    brier, rel, res, unc, var, cov = parts
    np.testing.assert_allclose(brier, rel - res + unc + var - cov, rtol=0, atol=2e-7)


# --- CORP ---


def _recalibrated(p, y, w):
    """Isotonic fit by SciPy, ties pooled first."""
    x, group = np.unique(p, return_inverse=True)
    weight = np.bincount(group, w)
    frequency = np.bincount(group, w * y) / weight
    return scipy.optimize.isotonic_regression(frequency, weights=weight).x[group]


def _mean_loss(name, q, y, w):
    with np.errstate(divide="ignore", invalid="ignore"):
        right = np.where(y == 1, q, 1 - q)
        loss = {
            "half_brier_loss": (1 - right) ** 2,
            "log_loss": -np.log(right),
            "spherical_loss": 1 - right / np.sqrt(q**2 + (1 - q) ** 2),
            "proper_loss": 2 * (1 - right) ** 2,
        }[name]
    return np.sum(w * loss) / np.sum(w)


def _corp(name, p, y, w):
    p, y, w = p[w > 0], y[w > 0], w[w > 0].astype(float)
    overall = np.full(len(p), np.sum(w * y) / np.sum(w))
    score, best, constant = (_mean_loss(name, q, y, w) for q in (p, _recalibrated(p, y, w), overall))
    return score, score - best, constant - best, constant


def _corp_values(parts):
    return np.stack([parts.score, parts.miscalibration, parts.discrimination, parts.uncertainty])


def test_corp_of_ten_forecasts(d10, eps):
    """Exact rationals for the Brier score, mpmath with 18 digits for the log loss."""
    values = _corp_values(jaxcal.corp_decomposition(*d10))
    np.testing.assert_allclose(values, [9351 / 50000, 8053 / 150000, 7 / 60, 1 / 4], rtol=16 * eps)
    values = _corp_values(jaxcal.corp_decomposition(*d10, loss=jaxcal.log_loss))
    expected = [0.537507205362175935, 0.155598704385288244, 0.311238679583057618, 0.693147180559945309]
    np.testing.assert_allclose(values, expected, rtol=16 * eps)


def test_corp_of_four_forecasts(eps):
    values = _corp_values(jaxcal.corp_decomposition(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 0, 1])))
    np.testing.assert_allclose(values, [0.275, 0.15, 0.125, 0.25], rtol=16 * eps)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_corp_is_its_definition_for_every_loss(loss, eps):
    for weights in (None, COUNTS):
        parts = jaxcal.corp_decomposition(P, Y, loss=loss, weights=weights)
        counts = np.ones((3, N)) if weights is None else weights
        expected = np.array([_corp(loss.name, *lane) for lane in zip(P, Y, counts, strict=True)]).T
        np.testing.assert_allclose(_corp_values(parts), expected, rtol=0, atol=16 * eps)
        score, mcb, dsc, unc = _corp_values(parts)
        np.testing.assert_allclose(score, mcb - dsc + unc, rtol=0, atol=16 * eps)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_forecasts_that_are_their_own_fit_are_calibrated_exactly(loss):
    curve = jaxcal.corp_reliability_curve(P, Y)
    fit = np.array(
        [[f[np.flatnonzero(x == q)[0]] for q in np.asarray(lane, x.dtype)] for x, f, lane in
         zip(np.asarray(curve.confidence), np.asarray(curve.frequency), P, strict=True)]
    )  # fmt: skip
    parts = jaxcal.corp_decomposition(fit, Y, loss=loss)
    np.testing.assert_array_equal(parts.miscalibration, 0)
    assert (jaxcal.corp_decomposition(P, Y, loss=loss).miscalibration > 0).all()
    # constant forecasts discriminate nothing
    constant = jaxcal.corp_decomposition(np.full((3, N), 0.3), Y, loss=loss)
    np.testing.assert_array_equal(constant.discrimination, 0)


def test_one_outcome_has_no_uncertainty():
    """0, and not -0."""
    parts = jaxcal.corp_decomposition(jnp.array([0.2, 0.7]), [1, 1])
    assert parts.uncertainty == 0 and not np.signbit(parts.uncertainty)


def test_certain_forecasts(eps):
    """Certain and right costs nothing; certain and wrong is infinitely miscalibrated, and nothing else breaks."""
    p, y = np.repeat([0.0, 0.5, 1.0], [20, 20, 20]), np.repeat([0, 1, 0, 1], [20, 10, 10, 20])
    right = _corp_values(jaxcal.corp_decomposition(p, y, loss=jaxcal.log_loss))
    np.testing.assert_allclose(right, [np.log(2) / 3, 0, 2 * np.log(2) / 3, np.log(2)], rtol=8 * eps, atol=eps)
    y[0] = 1
    score, mcb, dsc, unc = _corp_values(jaxcal.corp_decomposition(p, y, loss=jaxcal.log_loss))
    assert score == np.inf == mcb and 0 < dsc < unc < 1
    assert np.isfinite(_corp_values(jaxcal.corp_decomposition(p, y))).all()
    one_class = _corp_values(jaxcal.corp_decomposition(P, np.ones((3, N)), loss=jaxcal.log_loss))
    np.testing.assert_array_equal(one_class[2:], 0)
    np.testing.assert_allclose(one_class[0], -np.log(P).mean(-1), rtol=16 * eps)


def test_corp_refuses_what_is_not_a_loss(d10):
    with pytest.raises(TypeError, match="ProperLoss"):
        jaxcal.corp_decomposition(*d10, loss=lambda p, y: p)


def test_corp_curve(eps):
    for weights in (None, COUNTS):
        curve = jaxcal.corp_reliability_curve(P, Y, weights=weights)
        for lane in range(3):
            w = np.ones(N) if weights is None else weights[lane].astype(float)
            p, y, w = P[lane][w > 0], Y[lane][w > 0], w[w > 0]
            x, first, group = np.unique(p, return_index=True, return_inverse=True)
            k = len(x)
            np.testing.assert_array_equal(curve.count[lane], np.append(np.bincount(group, w), np.zeros(N - k)))
            np.testing.assert_allclose(curve.confidence[lane, :k], x, rtol=eps)
            np.testing.assert_allclose(curve.frequency[lane, :k], _recalibrated(p, y, w)[first], rtol=4 * eps)
            assert np.isnan(curve.confidence[lane, k:]).all() and np.isnan(curve.frequency[lane, k:]).all()
    invalid = jaxcal.corp_reliability_curve(np.where(np.arange(3)[:, None] == 1, 2.0, P), Y)
    assert np.isnan(invalid.count).any(-1).tolist() == [False, True, False]
    np.testing.assert_array_equal(
        jax.vmap(jaxcal.corp_reliability_curve)(P, Y).count, jaxcal.corp_reliability_curve(P, Y).count
    )


def test_consistency_band_of_one_forecast_is_binomial():
    """All rows at one forecast: the fit is the frequency, whose quantiles are those of the binomial law."""
    from scipy.stats import binom

    for weights in (None, np.full(N, 5)):
        n = N if weights is None else 5 * N
        band = jaxcal.corp_consistency_band(jax.random.key(0), np.full(N, 0.3), weights=weights, num_resamples=3999)
        ends = np.array([band.lower[0], band.upper[0]]) * n
        np.testing.assert_allclose(ends, binom.ppf([0.05, 0.95], n, 0.3), atol=1.01)  # one count of Monte Carlo error
        assert np.isnan(band.lower[1:]).all() and np.isnan(band.upper[1:]).all()


def test_consistency_band_covers_calibrated_curves():
    """Coverage at each forecast over 400 data sets, within 4 standard errors of at least the level."""
    p = np.repeat(np.linspace(0.05, 0.95, 6), N // 6)
    band = jaxcal.corp_consistency_band(jax.random.key(1), p, level=0.8, num_resamples=499)
    y = np.random.default_rng(2).random((400, N)) < p
    curve = jaxcal.corp_reliability_curve(np.broadcast_to(p, y.shape), y)
    frequency = np.asarray(curve.frequency)[:, :6]
    inside = ((frequency >= band.lower[:6]) & (frequency <= band.upper[:6])).mean(0)
    assert (inside >= 0.8 - 4 * np.sqrt(0.16 / 400)).all() and inside.min() < 0.95
    assert (np.asarray(band.lower)[:6] <= p[:: N // 6]).all() and (p[:: N // 6] <= np.asarray(band.upper)[:6]).all()


def test_consistency_band_lanes_and_bad_input():
    key = jax.random.key(3)
    p = P.copy()
    p[1, 4] = np.nan
    band = jaxcal.corp_consistency_band(key, p, num_resamples=19)
    assert np.isnan(band.lower).all(-1).tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"corp_consistency_band: probabilities must be in \[0, 1\]"):
        jaxcal.corp_consistency_band(key, p[1], num_resamples=3999)
    with pytest.raises(ValueError, match="num_resamples >= 19"):
        jaxcal.corp_consistency_band(key, P, num_resamples=18)
    with pytest.raises(ValueError, match="level must be in"):
        jaxcal.corp_consistency_band(key, P, level=1.0)
