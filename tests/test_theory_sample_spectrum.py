"""Population eigenvalues from data, against populations that are known; fixed seeds, small p and n."""

import jax.numpy as jnp
import numpy as np
import pytest

from theory.sample_spectrum import _centred, _degrees_of_freedom, _sample_eigenvalues, population_eigenvalues

LEVELS = np.array([0.1, 1.0, 10.0])  # lambda / tau


def _features(population, n, seed):
    """Gaussian features with a diagonal covariance and a mean that is not zero."""
    noise = np.random.default_rng(seed).standard_normal((n, len(population)))
    return noise * np.sqrt(population) + 3.0


def _moments(values, weights, levels=LEVELS):
    """E[1/(u + s)] and E[s/(u + s)] at the levels u, what the theory reads of a spectrum."""
    inverse = weights @ (1 / (levels + values[:, None]))
    return np.concatenate([inverse, 1 - levels * inverse])


def _of(population):
    return np.asarray(population, float), np.full(len(population), 1 / len(population))


def _raw(X):
    return np.maximum(np.linalg.eigvalsh(np.cov(X.T)), 0), np.full(X.shape[1], 1 / X.shape[1])


def _assert_same(result, expected, rtol):
    """Equal as spectra: their moments at and between all scales (the weights of single atoms may round apart)."""
    scale = expected[1] @ expected[0]
    levels = scale * np.geomspace(1e-3, 1e2, 11)
    np.testing.assert_allclose(_moments(*result, levels), _moments(*expected, levels), rtol=rtol)


GRID = (np.arange(200) + 0.5) / 200
POPULATIONS = {
    "identity": np.ones(200),
    "two-point": np.where(GRID < 0.5, 1.0, 4.0),
    "uniform": 1e-3 + GRID,
    "power law": 10 ** (-3 * GRID),
    "spiked": np.r_[np.ones(197), 10, 30, 100],
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_moments_at_half_as_many_features_as_rows(name):
    population = POPULATIONS[name]
    truth = np.append(_moments(*_of(population)), np.mean(1 / population))
    estimates = []
    for seed in range(6):
        values, weights = population_eigenvalues(_features(population, 400, seed))
        estimates.append(np.append(_moments(values, weights), weights @ (1 / values)))
    error = np.mean(estimates, axis=0) - truth
    # unbiased up to 1/p^2 terms: five standard errors of the mean of 6, and each seed within a few percent
    assert np.all(np.abs(error) < 5 * np.std(estimates, axis=0, ddof=1) / np.sqrt(6) + 2e-3 * truth)
    np.testing.assert_allclose(estimates, np.broadcast_to(truth, (6, 7)), rtol=0.08)


@pytest.mark.parametrize("name", POPULATIONS)
def test_closer_than_the_sample_eigenvalues_at_as_many_features_as_rows(name):
    population = POPULATIONS[name]
    truth = _moments(*_of(population))
    ours, raw = [], []
    for seed in range(4):
        X = _features(population, 200, seed)
        ours.append(_moments(*population_eigenvalues(X)) / truth - 1)
        raw.append(_moments(*_raw(X)) / truth - 1)
    error, before = (np.sqrt(np.mean(np.square(e), axis=0)) for e in (ours, raw))
    # E[1/(u + s)] at u = 0.1 and 1, where the spread of the sample eigenvalues matters; at 10 little but the mean does
    assert np.all(error[:2] < 0.1 * before[:2])
    assert np.all(error < 0.6 * before)


def test_identity_covariance_is_one_cluster():
    values, weights = population_eigenvalues(_features(np.ones(200), 400, 0))
    mean = weights @ values
    # tr S / p has standard deviation sqrt(2 / (n p)) = 0.005; the unbiased estimate of the spectrum's second moment
    # has about 2 / n = 0.005, so that a variance up to 3 of these cannot be told from zero
    assert abs(mean - 1) < 3 * 0.005
    assert weights @ (values - mean) ** 2 < 3 * 0.005
    assert np.sum(weights[(values > 0.5) & (values < 2)]) > 0.99


def test_bias_and_standard_error_of_the_equation():
    population = POPULATIONS["two-point"][::4]  # 50 eigenvalues
    scores = []
    for seed in range(200):
        sample, scale, p, dof = _sample_eigenvalues(*_centred(_features(population, 100, seed), None))
        kappa, freedom, rest, error = _degrees_of_freedom(sample, p, dof)
        truth = np.mean(population / (population + scale * kappa[:, None]), axis=1)
        np.testing.assert_allclose(freedom + rest, 1, atol=1e-12)
        scores.append(((freedom - truth) / error)[[0, len(kappa) // 2, -1]])
    # standardized residuals: mean 0 +- 1/sqrt(200), standard deviation 1 +- 1/sqrt(400), next order in 1/p allowed
    np.testing.assert_allclose(np.mean(scores, axis=0), 0, atol=4 / np.sqrt(200))
    np.testing.assert_allclose(np.std(scores, axis=0), 1, atol=4 / np.sqrt(400) + 0.05)


def test_spikes():
    population = POPULATIONS["spiked"]
    levels = np.array([5.0, 20.0, 100.0])  # where they dominate
    truth = _moments(*_of(population), levels)[3:]
    estimates = [
        _moments(*population_eigenvalues(_features(population, 400, seed)), levels)[3:] / truth for seed in range(8)
    ]
    # E[s / (u + s)] moves by 1/4 of the relative error sqrt(2/n) of an eigenvalue at u, by all of it far below u
    standard_error = np.sqrt(2 / 400)
    assert np.all(np.abs(np.array(estimates) - 1) < 3 * standard_error)
    np.testing.assert_allclose(np.mean(estimates, axis=0), 1, atol=3 * standard_error / np.sqrt(8))


def test_few_features_give_the_sample_eigenvalues():
    X = _features(np.array([1.0, 2, 3, 10, 40]), 50_000, 0)
    values, weights = population_eigenvalues(X)
    for eigenvalue in _raw(X)[0]:
        assert np.sum(weights[np.isclose(values, eigenvalue, rtol=1e-12)]) > 0.19


@pytest.mark.parametrize("n", [2, 5, 40, 100])
def test_more_features_than_rows(n):
    population = np.where(np.arange(150) < 75, 1.0, 4.0)
    values, weights = population_eigenvalues(_features(population, n, 3))
    assert np.all(values > 0) and np.all(weights > 0) and np.all(np.isfinite(values))
    # the trace of a Wishart matrix of n - 1 degrees: relative variance 2 sum s^2 / ((n - 1) (sum s)^2)
    spread = np.sqrt(2 * np.sum(population**2) / (n - 1)) / np.sum(population)
    assert abs(weights @ values / np.mean(population) - 1) < 4 * spread + 0.05
    if n == 100:  # p / n = 1.5; 7 % is one standard error of E[1/s] over seeds
        np.testing.assert_allclose(weights @ (1 / values), np.mean(1 / population), rtol=0.25)


def test_one_feature_is_its_variance():
    X = _features(np.array([2.0]), 50, 0)
    values, weights = population_eigenvalues(X)
    np.testing.assert_allclose(values, np.var(X, axis=0, ddof=1), rtol=1e-12)
    assert weights.tolist() == [1.0]


@pytest.mark.parametrize("n", [60, 160])
def test_equivariance_and_invariance(n):
    rng = np.random.default_rng(5)
    X = _features(POPULATIONS["uniform"][::2], n, 5)
    values, weights = population_eigenvalues(X)
    for power in (2.0**-40, 2.0**30):  # powers of two do not round
        scaled = population_eigenvalues(power * X)
        np.testing.assert_array_equal(scaled[0], power**2 * values)
        np.testing.assert_array_equal(scaled[1], weights)
    scaled = population_eigenvalues(3.7 * X)
    _assert_same((scaled[0] / 3.7**2, scaled[1]), (values, weights), rtol=1e-9)
    rotation, _ = np.linalg.qr(rng.standard_normal((100, 100)))
    _assert_same(population_eigenvalues(X @ rotation), (values, weights), rtol=1e-9)
    _assert_same(population_eigenvalues(rng.permutation(X)), (values, weights), rtol=1e-9)
    _assert_same(population_eigenvalues(X + 100.0), (values, weights), rtol=1e-9)


def test_labels_remove_the_class_means():
    labels = np.repeat([7, 0, 3], [200, 150, 50])  # any integers
    means = 5 * np.random.default_rng(1).standard_normal((8, 100))
    X = _features(np.ones(100), 400, 2)
    within = population_eigenvalues(X + means[labels], labels=labels)
    _assert_same(within, population_eigenvalues(X, labels=labels), rtol=1e-9)
    np.testing.assert_allclose(within[1] @ (1 / within[0]), 1, rtol=0.03)  # sd 1 %
    overall = population_eigenvalues(X + means[labels])
    assert np.max(overall[0]) > 100 > 2 > np.max(within[0])
    # n - k degrees of freedom: the pooled variance
    one = population_eigenvalues(X[:, :1], labels=labels)
    pooled = sum(np.sum((x - x.mean()) ** 2) for x in (X[labels == c, 0] for c in (0, 3, 7))) / (400 - 3)
    np.testing.assert_allclose(one[0], pooled, rtol=1e-12)


def test_one_class_is_no_labels():
    X = _features(np.ones(20), 60, 0)
    for a, b in zip(population_eigenvalues(X, labels=np.ones(60, int)), population_eigenvalues(X), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shapes_types_and_determinism():
    X = np.round(10 * _features(np.ones(30), 100, 0))
    values, weights = population_eigenvalues(X)
    assert type(values) is type(weights) is np.ndarray and values.dtype == weights.dtype == np.float64
    assert np.all(np.diff(values) > 0) and abs(weights.sum() - 1) < 1e-14
    before = X.copy()
    for same in (X, X.astype(int), X.astype(np.float32), jnp.asarray(X)):  # whole numbers, exact in all of them
        again = population_eigenvalues(same)
        np.testing.assert_array_equal(again[0], values)
        np.testing.assert_array_equal(again[1], weights)
    np.testing.assert_array_equal(X, before)
    coarse = population_eigenvalues(X, num_atoms=20)
    assert len(coarse[0]) <= 20 + 30
    np.testing.assert_allclose(_moments(*coarse), _moments(values, weights), rtol=0.01)


def test_features_of_different_scales():
    X = _features(np.ones(20), 2000, 0)
    values, weights = population_eigenvalues(X * np.repeat([1e-3, 1e3], 10))
    small = values < 1
    np.testing.assert_allclose(np.sum(weights[small]), 0.5, atol=1e-3)
    np.testing.assert_allclose(weights[small] @ values[small], 0.5e-6, rtol=0.05)
    # rotated, no column shows it: correlations close to one are not dependence
    rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((20, 20)))
    mixed = population_eigenvalues((X * np.repeat([1e-4, 1e3], 10)) @ rotation)
    np.testing.assert_allclose(mixed[1] @ (1 / mixed[0]), 0.5e8, rtol=0.05)


X = _features(np.ones(6), 30, 0)


def _with(row, column, value):
    changed = X.copy()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"X": _with(4, 1, np.nan)}, ValueError, "X must be finite: row 4"),
        ({"X": _with(7, 0, -np.inf)}, ValueError, "row 7"),
        ({"X": X[0]}, ValueError, r"shape \(n, p\).*\(6,\)"),
        ({"X": X[None]}, ValueError, r"\(1, 30, 6\)"),
        ({"X": X[:, :0]}, ValueError, "p >= 1"),
        ({"X": X[:1]}, ValueError, "n = 1 rows, 1 class"),
        ({"X": X[:0]}, ValueError, "n = 0 rows"),
        ({"X": X + 1j}, TypeError, "complex128"),
        ({"X": X.astype(str)}, TypeError, "real numbers"),
        ({"X": _with(slice(None), 2, 0.1)}, ValueError, r"1 column\(s\) of X are constant \(columns 2\)"),
        ({"X": np.ones((30, 9))}, ValueError, r"9 column\(s\).*columns 0, 1, 2, 3, 4, \.\.\."),
        ({"X": np.c_[X, X[:, 0] - X[:, 3]]}, ValueError, "linearly dependent"),
        ({"X": np.c_[X, X[:, 0] - X[:, 3]].astype(np.float32)}, ValueError, "linearly dependent"),
        ({"X": (1e3 + np.c_[X, X[:, 0] - X[:, 3]]).astype(np.float32)}, ValueError, "linearly dependent"),
        ({"X": np.c_[X, np.eye(3)[np.arange(30) % 3]]}, ValueError, "one-hot"),
        ({"X": np.repeat(X[:4], 2, axis=0).repeat(3, axis=1)}, ValueError, "rows repeated"),
        ({"X": X, "labels": np.zeros(29, int)}, ValueError, r"labels must have shape \(30,\)"),
        ({"X": X, "labels": np.zeros((30, 1), int)}, ValueError, r"\(30, 1\)"),
        ({"X": X, "labels": np.zeros(30)}, TypeError, "labels must be integers, got dtype float64"),
        ({"X": X, "labels": np.zeros(30, bool)}, TypeError, "astype"),
        ({"X": X, "labels": np.where(np.arange(30) == 9, -1, 0)}, ValueError, "row 9 is -1"),
        ({"X": X, "labels": np.arange(30)}, ValueError, "n = 30 rows, 30 class"),
        (
            {"X": _with(slice(None), 5, np.arange(30) % 2), "labels": np.arange(30) % 2},
            ValueError,
            "within every class",
        ),
        ({"X": X * 1e160}, ValueError, "X must be rescaled"),
        ({"X": X * 1e-160}, ValueError, "X must be rescaled"),
        ({"X": X, "num_atoms": 1}, ValueError, "num_atoms"),
        ({"X": X, "num_atoms": 20.0}, ValueError, "num_atoms"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        population_eigenvalues(**arguments)
