"""Multi-class calibrators beside those of other Python packages: no objective of ours is above theirs.

The numbers are what the peers return for these 60 rows and `NEW`, with probmetrics 1.3.0 (which computes in float32),
netcal 1.4.0 and scikit-learn 1.9.1. scikit-learn got the logits, the others the probabilities. dirichletcal, and
so the Dirichlet calibration of probmetrics, cannot be installed: its list of requirements is malformed.
"""

import jax
import numpy as np
import pytest

import jaxcal

pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="the bound of 1e-9 needs float64")
N, K = 60, 3
_rng = np.random.default_rng(5)
LOGITS = (2 * _rng.normal(size=(N, K))).round(3)
_MAP = np.array([[0.8, 0.2, 0], [0, 0.5, -0.2], [0, 0, 0.7]])
LABELS = np.argmax(LOGITS @ _MAP + [0.3, 0, -0.3] + _rng.gumbel(size=(N, K)), axis=1)
NEW = np.array([[2.0, 0.5, -1.0], [-0.5, 1.5, 0.3], [0.0, -2.0, 1.2], [1.0, 1.0, 1.0]])
VECTOR = {
    "probmetrics": [
        [0.763070323640323, 0.19648488215835658, 0.040444794201320335],
        [0.18513493349733887, 0.5718207599078906, 0.24304430659477042],
        [0.32442217500131154, 0.10821090854528438, 0.5673669164534041],
        [0.42111932295305105, 0.3081415173144152, 0.2707391597325339],
    ],
    "netcal": [
        [0.7630780354423049, 0.19647472319368248, 0.040447241364012704],
        [0.18512651206535582, 0.5718471563824101, 0.2430263315522342],
        [0.32445142562097645, 0.1081983165498076, 0.567350257829216],
        [0.42112669652055884, 0.30814938890607413, 0.27072391457336703],
    ],
}
MATRIX = {
    "scikit-learn": [
        [0.8328088915517878, 0.1416897376192927, 0.025501370828919463],
        [0.1604878948476101, 0.6288238800155045, 0.2106882251368854],
        [0.23218655518138548, 0.1502977398164385, 0.6175157050021759],
        [0.37065084271692056, 0.39662217968592633, 0.23272697759715316],
    ],
}
STRUCTURED = {
    "structured vector": [
        [0.7169619798660278, 0.22607654333114624, 0.056961480528116226],
        [0.17674101889133453, 0.6028342843055725, 0.22042465209960938],
        [0.3253892958164215, 0.08404409140348434, 0.5905665755271912],
        [0.3827049136161804, 0.33780449628829956, 0.27949056029319763],
    ],
    "structured matrix": [
        [0.783007327430086, 0.17163864629715483, 0.04535402627275899],
        [0.17358859525030518, 0.5966487746787621, 0.22976263007093287],
        [0.2866912952894418, 0.1093285796780509, 0.6039801250325073],
        [0.37052747941690173, 0.3537373768985995, 0.27573514368449875],
    ],
}


def _log_softmax(z):
    z = np.asarray(z, np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def _coefficients(forecasts, matrix, new):
    """W and b of the map that gives these forecasts at `new`, those of class 0 being 0 where W is a matrix."""
    log_p = np.log(np.asarray(forecasts, np.float64))
    right = log_p - log_p[:, :1]
    if matrix:
        theta = np.linalg.solve(np.concatenate([new, np.ones((len(new), 1))], axis=1), right).T
        return theta[:, :K], theta[:, K]
    rows = np.zeros((len(new), K - 1, 2 * K))  # v_j x_j - v_0 x_0 + b_j
    for j in range(1, K):
        rows[:, j - 1, j], rows[:, j - 1, 0], rows[:, j - 1, K + j] = new[:, j], -new[:, 0], 1
    rows, right = rows.reshape(-1, 2 * K), right[:, 1:].reshape(-1)
    theta = np.linalg.lstsq(rows, right, rcond=None)[0]
    assert abs(rows @ theta - right).max() < 1e-5  # the forecasts are of this kind
    return np.diag(theta[:K]), theta[K:] - theta[K:].mean()


def _loss(forecasts, matrix, x, new):
    """Mean log loss over the rows of the map that gives these forecasts at `new`."""
    w, b = _coefficients(forecasts, matrix, new)
    return -_log_softmax(x @ w.T + b)[np.arange(N), LABELS].mean()


@pytest.mark.parametrize("name", VECTOR)
def test_vector_scaling(name):
    """Both peers calibrate log-probabilities, as vector scaling does where it is given these."""
    x, new = _log_softmax(LOGITS), _log_softmax(NEW)
    fit = jaxcal.fit_vector_scaling(x, LABELS)
    ours = np.exp(np.asarray(fit(new), np.float64))
    bound = _loss(VECTOR[name], False, x, new)
    assert _loss(ours, False, x, new) <= bound * (1 + 1e-9)
    np.testing.assert_allclose(fit.risk, bound, rtol=1e-6)
    np.testing.assert_allclose(ours, VECTOR[name], rtol=1e-3)  # both stop early


def test_matrix_scaling_is_the_logistic_regression_of_scikit_learn():
    fit = jaxcal.fit_matrix_scaling(LOGITS, LABELS)
    ours = np.exp(np.asarray(fit(NEW), np.float64))
    bound = _loss(MATRIX["scikit-learn"], True, LOGITS, NEW)
    assert _loss(ours, True, LOGITS, NEW) <= bound * (1 + 1e-9)
    np.testing.assert_allclose(ours, MATRIX["scikit-learn"], rtol=1e-4)


def test_matrix_scaling_of_probmetrics_depends_on_the_probabilities():
    """It maps log-probabilities: Dirichlet calibration without penalty."""
    theirs = [
        [0.8346404214625047, 0.13266770440544265, 0.03269187413205254],
        [0.13494145622885556, 0.6878084791018323, 0.177250064669312],
        [0.2577670617835607, 0.11287779671638451, 0.6293551415000548],
        [0.3123764776885664, 0.47334153378065563, 0.21428198853077796],
    ]
    x, new = _log_softmax(LOGITS), _log_softmax(NEW)
    ours = jax.device_get(jaxcal.fit_dirichlet(LOGITS, LABELS, off_diagonal=0, intercept=0)(NEW))
    ours = np.exp(ours.astype(np.float64))
    bound = _loss(theirs, True, x, new)
    assert _loss(ours, True, x, new) <= bound * (1 + 1e-9)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_scaling_of_probmetrics(name):
    """The same objective; its BFGS, in float32, ends with three digits of the forecasts, whatever its `tol`.

    Of the coefficients that give forecasts those with the smallest penalty count.
    """
    matrix = name == "structured matrix"
    fit = (jaxcal.fit_structured_matrix if matrix else jaxcal.fit_structured_vector)(LOGITS, LABELS)
    ours = np.exp(np.asarray(fit(NEW), np.float64))
    temperature = float(fit.tempered.fit.temperature)
    smooth = lambda z: np.log(N / (N + 1) * np.exp(_log_softmax(z / temperature)) + 1 / (N + 1) / K)  # noqa: E731
    strength = np.where(np.eye(K), K / N, K * (K - 1) / N)

    def objective(forecasts):
        w, b = _coefficients(forecasts, matrix, smooth(NEW))
        away = w - np.eye(K)
        if matrix:
            away = away - np.sum(strength * away, axis=0) / np.sum(strength, axis=0)
        penalty = np.sum(strength * away**2) + K / N * np.sum((b - b.mean()) ** 2)
        return _loss(forecasts, matrix, smooth(LOGITS), smooth(NEW)) + penalty

    assert objective(ours) <= objective(STRUCTURED[name]) * (1 + 1e-9)
    np.testing.assert_allclose(objective(ours), objective(STRUCTURED[name]), rtol=1e-5)
    np.testing.assert_allclose(ours, STRUCTURED[name], rtol=2e-3)


def test_temperature_of_scikit_learn():
    """CalibratedClassifierCV(method="temperature") on a frozen estimator whose decision function is the logits."""
    fit = jaxcal.fit_temperature(LOGITS, LABELS)
    np.testing.assert_allclose(fit.inverse_temperature, 0.7037246535222881, rtol=1e-5)
    loss = lambda u: -_log_softmax(u * LOGITS)[np.arange(N), LABELS].mean()  # noqa: E731
    assert loss(float(fit.inverse_temperature)) <= loss(0.7037246535222881) * (1 + 1e-12)
