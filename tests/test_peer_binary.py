"""Binary calibrators beside those of other Python packages: their predictions, and no loss of ours is above theirs.

The numbers are what the peers return in float64 for these 40 rows and `NEW`, with scikit-learn 1.9.1, betacal 1.1.0,
venn-abers 1.5.4, netcal 1.4.0 and probmetrics 1.3.0 (which computes in float32). scikit-learn and isotonic regression
got the log-odds, the others the probabilities.
"""

import functools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import jaxcal

N = 40
_rng = np.random.default_rng(3)
SCORE = _rng.normal(0, 2, N).round(3)
OUTCOMES = (_rng.random(N) < 1 / (1 + np.exp(-0.6 * SCORE - 0.4))).astype(int)
NEW = np.array([-3.0, -1.0, -0.2, 0.5, 1.4, 2.6])
LOGISTIC = {  # the calibrator, what kind of map it is, and the predictions of the peer
    "scikit-learn, sigmoid": (
        jaxcal.fit_platt,
        "platt",
        [0.23337323074824592, 0.42858785187175413, 0.518262723283342, 0.595968391896123, 0.6887925139182466]
        + [0.7917535378376176],
    ),
    "betacal, abm": (
        jaxcal.fit_beta,
        "beta",
        [0.21785952019701432, 0.31219382664116446, 0.43430468944760936, 0.605697849946731, 0.8350302055893734]
        + [0.9723778960498117],
    ),
    "betacal, am": (
        functools.partial(jaxcal.fit_beta, variant="am"),
        "affine",
        [0.1946964876460975, 0.41251512752268404, 0.5182175024752235, 0.609704957838537, 0.716235037711855]
        + [0.8271528650011475],
    ),
    "netcal, beta": (
        jaxcal.fit_beta,
        "beta",
        [0.21787534688376814, 0.31221248005147156, 0.4343244422165715, 0.6057150122449946, 0.8350380826189187]
        + [0.9723787906923549],
    ),
    "netcal, logistic": (
        functools.partial(jaxcal.fit_platt, smooth=False),
        "affine",
        [0.19468716900418323, 0.4125059219728221, 0.5182101609115398, 0.6096997469138767, 0.7162325489225865]
        + [0.8271529542897429],
    ),
    "probmetrics, affine": (
        functools.partial(jaxcal.fit_platt, smooth=False),
        "affine",
        [0.19469648599624634, 0.41251516342163086, 0.5182175040245056, 0.6097049713134766, 0.7162350416183472]
        + [0.8271528482437134],
    ),
    "probmetrics, quadratic": (
        jaxcal.fit_quadratic,
        "quadratic",
        [0.20125438272953033, 0.30259832739830017, 0.43236640095710754, 0.594376266002655, 0.8092777132987976]
        + [0.9627265334129333],
    ),
}


def _loss(kind, predictions):
    """Coefficients of the log-odds of predictions at NEW, and the mean log loss over the rows."""

    def features(score):
        up, down = np.logaddexp(0, score), np.logaddexp(0, -score)  # -log(1 - p), -log p
        one = np.ones_like(score)
        return {
            "beta": [one, -down, up],
            "ab": [np.log(2) - down, up - np.log(2)],
            "quadratic": [one, score, score**2],
        }.get(kind, [one, score])

    p = np.asarray(predictions, np.float64)
    theta, residue, *_ = np.linalg.lstsq(np.stack(features(NEW), 1), np.log(p) - np.log1p(-p), rcond=None)
    assert residue.sum() < 1e-9  # the predictions are of this kind
    eta = np.stack(features(SCORE), 1) @ theta
    ones = OUTCOMES.sum()
    targets = np.where(OUTCOMES == 1, (ones + 1) / (ones + 2), 1 / (N - ones + 2)) if kind == "platt" else OUTCOMES
    return theta, np.mean(np.logaddexp(0, eta) - targets * eta)


@pytest.mark.parametrize("name", LOGISTIC)
def test_loss_is_not_above_that_of_the_peer(name, eps):
    fit_binary, kind, theirs = LOGISTIC[name]
    ours = fit_binary(SCORE, OUTCOMES)(NEW)
    loss, bound = _loss(kind, ours)[1], _loss(kind, theirs)[1]
    assert loss <= bound * (1 + max(1e-9, 4 * eps))
    np.testing.assert_allclose(ours, theirs, rtol=2e-4)  # netcal and probmetrics stop at 1e-4


def test_isotonic_regression_of_scikit_learn_and_netcal(eps):
    expected = [0.2631578947368421, 0.2631578947368421, 0.625, 0.625, 1.0, 1.0]
    np.testing.assert_allclose(jaxcal.fit_isotonic(SCORE, OUTCOMES)(NEW), expected, rtol=4 * eps)


def test_venn_abers(eps):
    fit = jaxcal.fit_venn_abers(SCORE, OUTCOMES)
    merged = [0.2857142857142857, 0.2857142857142857, 0.5714285714285715, 0.6, 0.8, 0.8888888888888888]
    lower = [0.25, 0.25, 0.5, 0.5555555555555556, 0.75, 0.875]
    upper = [0.3, 0.3, 0.6666666666666666, 0.6666666666666666, 1.0, 1.0]
    for ours, theirs in zip((*fit.interval(NEW), fit(NEW)), (lower, upper, merged), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=8 * eps)


def test_histogram_of_netcal(eps):
    expected = [0.375, 0.15384615384615385, 0.75, 0.7142857142857143, 1.0, 1.0]
    np.testing.assert_allclose(jaxcal.fit_histogram(SCORE, OUTCOMES, num_bins=5)(NEW), expected, rtol=4 * eps)


def test_bbq_of_netcal_is_another_average(eps):
    """Bins of equal width, their frequencies, and weights from AIC: that average, not the posterior mean of BBQ."""
    theirs = [0.3519792494733562, 0.2517088524900292, 0.369431418553251, 0.6919264191954628, 0.9152694164541347]
    theirs += [0.9165694741773102]
    weights = {2: 0.4057390140480282, 4: 0.343528035519023, 5: 0.18438422556199005, 3: 0.051889378057864595}
    weights |= {1: 0.00929843168346423, 6: 0.003422554793385047, 7: 0.0009552367522825862, 8: 0.0007831235839624221}
    average = 0.0
    for num_bins, weight in weights.items():
        fit = jaxcal.fit_histogram(SCORE, OUTCOMES, num_bins=num_bins)
        average = average + weight * np.asarray(fit(NEW), np.float64)
    np.testing.assert_allclose(average, theirs, rtol=8 * eps)
    fit = jaxcal.fit_bbq(SCORE, OUTCOMES, num_bins=sorted(weights))
    assert not np.allclose(fit.posterior, [weights[b] for b in sorted(weights)], atol=0.1)


def test_beta_calibration_without_signs(eps):
    """probmetrics, and betacal for "ab", take the free optimum, here with a < 0: a map that decreases for small p.

    Ours is the best that does not, with a = 0: for "ab" that is b >= 0 alone, which SciPy finds.
    """
    probmetrics = [0.26663556694984436, 0.2712525725364685, 0.38374629616737366, 0.582755446434021, 0.862078845500946]
    probmetrics += [0.9874500036239624]
    betacal = [0.28264313121368656, 0.3218209221667465, 0.4503538134188532, 0.6485132646406985, 0.8895119897797095]
    betacal += [0.9895369637545479]
    assert _loss("beta", probmetrics)[0][1] < -0.1 and _loss("ab", betacal)[0][0] < -0.1
    fit = jaxcal.fit_beta(SCORE, OUTCOMES, variant="ab")
    feature = np.log1p(np.exp(SCORE)) - np.log(2)
    loss = lambda b: np.mean(np.logaddexp(0, b * feature) - OUTCOMES * b * feature)  # noqa: E731
    assert fit.a == 0
    best = minimize_scalar(loss, bounds=(0, 10), method="bounded", options={"xatol": 1e-10})
    assert loss(float(fit.b)) <= best.fun * (1 + max(1e-12, 4 * eps))
