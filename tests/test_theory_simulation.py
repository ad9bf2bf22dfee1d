"""Simulated logistic regression: fits are minimizers, and what is reported of them is true of the population."""

from dataclasses import FrozenInstanceError, fields

import jax
import numpy as np
import pytest
from scipy.special import expit, log_expit, ndtr

import jaxcal
from jaxcal.status import Status
from theory import simulation
from theory.simulation import simulate
from theory.spectra import BetaSpectrum, DiscreteSpectrum

UNIFORM = BetaSpectrum(1.0, 1.0)
SMALL = {
    "num_samples": 60,
    "ratio": 0.5,
    "bayes_error": 0.1,
    "spectrum": UNIFORM,
    "regularizations": [0.5, 0.01],
    "num_seeds": 3,
}
VALUES = ["mean", "variance", "risk", "calibration", "refinement", "error_rate"]

# E[1/s] = log 1001 for 1e-3 + U(0, 1), and Phi^{-1}(0.1) = -1.2815515655446
SIGNAL = 1.2815515655446 / np.sqrt(np.log(1001))

# lambda: m, v, risk, calibration, refinement, error rate of the limit for r = 1/2, e* = 0.1, s ~ 1e-3 + U(0, 1): mpmath
LIMITS = {
    1.0: (0.096558190523804, 0.04348727186023145, 0.0553144935318031 + 0.5961129691720762, 0.0553144935318031)
    + (0.5961129691720762, 0.3216718495427035),
    0.1: (0.4528352396465034, 0.780296607869591, 0.001700330161660947 + 0.576660305856934, 0.001700330161660947)
    + (0.576660305856934, 0.3041024645551),
    0.01: (1.260522102893777, 5.22139006235196, 0.07428950717777375 + 0.5605996097647784, 0.07428950717777375)
    + (0.5605996097647784, 0.2905967961690427),
}


def reference(samples: np.ndarray, lam: float) -> np.ndarray:
    """The minimizer, by Newton's method with the dense Hessian and halved steps, to the rounding of the gradient."""
    n, p = samples.shape

    def objective(w):
        return -log_expit(samples @ w).mean() + lam / 2 * w @ w

    w = np.zeros(p)
    for _ in range(100):
        miss = expit(-samples @ w)
        gradient = lam * w - miss @ samples / n
        hessian = (samples.T * (miss * (1 - miss))) @ samples / n + lam * np.eye(p)
        step, length = np.linalg.solve(hessian, gradient), 1.0
        while length > 1e-3 and objective(w - length * step) > objective(w):
            length /= 2
        w = w - length * step
        if np.linalg.norm(length * step) < 1e-12 * np.linalg.norm(w):
            break
    return w


def problem(seed: int, n: int, p: int, lams):
    """Samples of the model from NumPy, and what `fit` makes of them, as NumPy arrays."""
    rng = np.random.default_rng(seed)
    sigma = UNIFORM.quantiles(p)
    samples = SIGNAL / np.sqrt(p) * rng.choice([-1, 1], p) + np.sqrt(sigma) * rng.standard_normal((n, p))
    return samples, solve(samples, sigma, lams)


def solve(samples, sigma, lams):
    with jax.enable_x64(True):
        fitted = simulation.fit(*(jax.numpy.asarray(a, float) for a in (samples, sigma, lams)))
        return tuple(np.asarray(a) for a in fitted)


def drawn(monkeypatch, **options):
    """The simulation, and sigma, mu and the samples of every seed."""
    seen, original = [], simulation.draw

    def draw(key, sigma, mu, num_samples):
        samples = original(key, sigma, mu, num_samples)
        seen.append(tuple(np.asarray(a) for a in (sigma, mu, samples)))
        return samples

    monkeypatch.setattr(simulation, "draw", draw)
    return simulate(jax.random.key(0), **(SMALL | options)), seen


# --- the fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "p", "lams"),
    [
        (120, 60, [10, 1, 0.1, 0.01, 1e-3, 1e-4, 1e-6, 1e-8]),
        (40, 120, [1e-1, 1e-3, 1e-6, 1e-9]),
        (200, 10, [1e-6, 1e-12]),
        (7, 1, [1e3, 1e-2]),
    ],
    ids=["separable", "p > n", "not separable", "p = 1"],
)
def test_fits_are_the_minimizers(n, p, lams):
    samples, (weights, gradient_norm, converged) = problem(1, n, p, lams)
    assert converged.all() and weights.shape == (len(lams), p)
    for lam, w, norm in zip(lams, weights, gradient_norm, strict=True):
        gradient = lam * w - expit(-samples @ w) @ samples / n
        assert np.linalg.norm(gradient) <= 1e-8 and np.isclose(norm, np.linalg.norm(gradient), rtol=1e-2, atol=1e-15)
        exact = reference(samples, lam)
        assert np.linalg.norm(w - exact) <= 1.01e-5 * np.linalg.norm(exact), lam


def test_fits_are_those_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    lams = [1.0, 0.05, 1e-3]
    samples, (weights, _, _) = problem(2, 120, 60, lams)
    labels = np.where(np.arange(120) % 2, 1, -1)
    for lam, w in zip(lams, weights, strict=True):
        model = linear_model.LogisticRegression(
            C=1 / (lam * 120), fit_intercept=False, solver="newton-cholesky", tol=1e-10
        )
        other = model.fit(samples * labels[:, None], labels).coef_[0]
        np.testing.assert_allclose(w, other, atol=1e-5 * np.linalg.norm(other))


def test_lambdas_side_by_side_do_not_disturb_each_other():
    lams = [1e-5, 3.0, 1e-2]
    samples, (together, _, _) = problem(3, 120, 60, lams)
    for lam, w in zip(lams, together, strict=True):
        (alone, _, _), _, _ = solve(samples, UNIFORM.quantiles(60), [lam] * 3)
        assert np.linalg.norm(w - alone) <= 2e-5 * np.linalg.norm(w)


def test_strong_regularization_gives_the_mean_direction():
    samples, (weights, _, converged) = problem(4, 120, 60, [1e6, 1e12, 1.0])
    assert converged.all()
    np.testing.assert_allclose(1e6 * weights[0], samples.mean(axis=0) / 2, rtol=1e-4)


def test_a_wrong_covariance_only_costs_time():
    lams = [1.0, 0.1, 0.01]
    samples, (weights, _, _) = problem(5, 120, 60, lams)
    other, gradient_norm, converged = solve(samples, np.geomspace(1e3, 1e-3, 60), lams)
    assert converged.all() and np.all(gradient_norm <= 1e-8)
    np.testing.assert_allclose(other, weights, atol=2e-6)


# --- what is reported of them ----------------------------------------------------------------------------------------


def test_the_population_is_the_model_of_the_quantile_design(monkeypatch):
    fits, seen = drawn(monkeypatch)
    for seed, (sigma, mu, samples) in enumerate(seen):
        np.testing.assert_allclose(sigma, 1e-3 + (np.arange(30) + 0.5) / 30, rtol=1e-12)
        np.testing.assert_allclose(np.abs(mu), SIGNAL / np.sqrt(30), rtol=1e-12)
        assert samples.shape == (60, 30) and samples.dtype == np.float64 and np.unique(np.sign(mu)).size == 2
        for lane, lam in enumerate(SMALL["regularizations"]):
            w = reference(samples, lam)
            np.testing.assert_allclose(fits.mean[seed, lane], w @ mu, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(fits.variance[seed, lane], w**2 @ sigma, rtol=1e-4)


def test_the_population_is_the_model_of_the_random_design(monkeypatch):
    spectrum = DiscreteSpectrum([0.25, 1.0], weights=[3, 1])
    _, seen = drawn(monkeypatch, spectrum=spectrum, design="random", num_seeds=20)
    sigma, mu, samples = (np.concatenate(a, axis=-1) for a in zip(*seen, strict=True))  # 20 seeds of 30 features
    assert set(sigma) == {0.25, 1.0} and np.unique(mu).size == 600
    assert abs((sigma == 0.25).mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 600)
    squared = 30 * mu**2 / (1.2815515655446**2 / 3.25)  # chi^2 of one degree
    assert abs(squared.mean() - 1) < 4 * np.sqrt(2 / 600)
    standardized = (samples - mu) / np.sqrt(sigma)
    assert abs(standardized.mean()) < 4 / np.sqrt(36000) and abs(standardized.std() - 1) < 4 / np.sqrt(72000)


def test_values_are_those_of_new_data(monkeypatch):
    fits, seen = drawn(monkeypatch)
    rng = np.random.default_rng(0)
    for seed, (sigma, mu, samples) in enumerate(seen):
        new = mu + np.sqrt(sigma) * rng.standard_normal((40_000, 30))
        for lane, lam in enumerate(SMALL["regularizations"]):
            margins = new @ reference(samples, lam)
            losses, wrong = -log_expit(margins), margins < 0
            assert abs(losses.mean() - fits.risk[seed, lane]) < 4 * losses.std() / 200
            assert abs(wrong.mean() - fits.error_rate[seed, lane]) < 4 * wrong.std() / 200


def test_parts_add_up_and_follow_the_loss():
    fits = simulate(jax.random.key(1), **SMALL)
    brier = simulate(jax.random.key(1), **SMALL, loss=jaxcal.brier_loss)
    np.testing.assert_allclose(fits.risk, fits.calibration + fits.refinement, rtol=1e-14)
    np.testing.assert_allclose(fits.error_rate, ndtr(-fits.mean / np.sqrt(fits.variance)), rtol=1e-12)
    np.testing.assert_array_equal(fits.mean, brier.mean)
    assert np.all(np.asarray(brier.risk) < np.asarray(fits.risk))


def test_means_over_seeds_agree_with_the_limits():
    fits = simulate(
        jax.random.key(0), **(SMALL | {"num_samples": 400, "num_seeds": 20, "regularizations": list(LIMITS)})
    )
    for lane, limit in enumerate(LIMITS.values()):
        for name, expected in zip(VALUES, limit, strict=True):
            values = np.asarray(getattr(fits, name))[:, lane]
            assert abs(values.mean() - expected) < 4 * values.std(ddof=1) / np.sqrt(20), (lane, name)
    # close, too, not only within wide errors
    assert np.all(np.asarray(fits.refinement).std(axis=0, ddof=1) < 0.02)


def test_the_random_design_agrees_with_the_limits():
    options = {"num_samples": 400, "num_seeds": 20, "regularizations": list(LIMITS), "design": "random"}
    fits = simulate(jax.random.key(0), **(SMALL | options))
    for lane, limit in enumerate(LIMITS.values()):
        for name, expected in zip(VALUES[:2], limit[:2], strict=True):
            values = np.asarray(getattr(fits, name))[:, lane]
            assert abs(values.mean() - expected) < 4 * values.std(ddof=1) / np.sqrt(20), (lane, name)


def test_no_signal():
    fits = simulate(jax.random.key(0), **(SMALL | {"bayes_error": 0.5}))
    np.testing.assert_array_equal(fits.mean, 0)
    np.testing.assert_allclose(fits.error_rate, 0.5, rtol=1e-15)
    np.testing.assert_allclose(fits.refinement, np.log(2), rtol=1e-12)


# --- seeds, types and failures ---------------------------------------------------------------------------------------


def test_seeds_are_reproducible_and_independent_of_their_number():
    done = []
    three = simulate(jax.random.key(0), **SMALL, on_seed=done.append)
    one = simulate(jax.random.key(0), **(SMALL | {"num_seeds": 1}))
    assert done == [1, 2, 3]
    for name in [*VALUES, "gradient_norm", "status"]:
        ours = np.asarray(getattr(three, name))
        assert ours.shape == (3, 2)
        np.testing.assert_array_equal(ours[:1], getattr(one, name))
    assert np.unique(three.mean).size == 6
    other = simulate(jax.random.key(1), **SMALL)
    assert not np.isin(other.mean, three.mean).any()


def test_types_follow_the_setting_and_values_do_not(x64):
    fits = simulate(jax.random.key(0), **SMALL)
    for field in fields(fits):
        leaf = getattr(fits, field.name)
        assert leaf.dtype == (np.int32 if field.name == "status" else np.float64)
        assert isinstance(leaf, jax.Array if x64 else np.ndarray)
    with jax.enable_x64(not x64):
        other = simulate(jax.random.key(0), **SMALL)
    for a, b in zip(jax.tree.leaves(fits), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(jax.tree.leaves(fits)) == 9 and jax.config.jax_enable_x64 == x64
    fits.check()
    with pytest.raises(FrozenInstanceError):
        fits.mean = 0


def test_one_failure_is_no_failure_of_the_others():
    lams = [0.5, 1e300, 0.01]  # the second is inf in float32
    _, (weights, _, converged) = problem(1, 120, 60, lams)
    np.testing.assert_array_equal(converged, [True, False, True])
    assert np.all(np.isfinite(weights[[0, 2]]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1, got 0"),
        ({"num_samples": 60.0}, TypeError, "num_samples must be an integer, got 60.0"),
        ({"num_seeds": 0}, ValueError, "num_seeds must be at least 1"),
        ({"num_seeds": "3"}, TypeError, "num_seeds must be an integer"),
        ({"ratio": 0.0}, ValueError, "ratio must be positive"),
        ({"ratio": np.nan}, ValueError, "ratio must be positive"),
        ({"ratio": np.inf}, ValueError, "ratio must be positive"),
        ({"ratio": 0.001}, ValueError, "at least one feature"),
        ({"bayes_error": 0.0}, ValueError, "bayes_error must lie in"),
        ({"bayes_error": 0.6}, ValueError, "bayes_error must lie in"),
        ({"bayes_error": np.nan}, ValueError, "bayes_error must lie in"),
        ({"bayes_error": [0.1, 0.2]}, ValueError, r"one Bayes error and one spectrum, got a batch of shape \(2,\)"),
        ({"spectrum": BetaSpectrum(np.array([1.0, 2.0]), 1.0)}, ValueError, "one Bayes error and one spectrum"),
        ({"spectrum": [1.0, 2.0]}, TypeError, "spectrum must be a theory.BetaSpectrum"),
        ({"regularizations": 0.1}, ValueError, r"regularizations must be positive and finite, of shape \(L,\)"),
        ({"regularizations": []}, ValueError, "regularizations must be"),
        ({"regularizations": [0.1, 0.0]}, ValueError, "regularizations must be"),
        ({"regularizations": [0.1, -1.0]}, ValueError, "regularizations must be"),
        ({"regularizations": [0.1, np.nan]}, ValueError, "regularizations must be"),
        ({"regularizations": [np.inf]}, ValueError, "regularizations must be"),
        ({"design": "fixed"}, ValueError, "design must be"),
        ({"loss": "log"}, TypeError, "loss must be a jaxcal.ProperLoss"),
        ({"num_samples": 10**6, "ratio": 0.5}, ValueError, "needs 4000 GB; at most 32"),
    ],
)
def test_bad_input_is_named(options, error, message):
    with pytest.raises(error, match=message):
        simulate(jax.random.key(0), **(SMALL | options))


@pytest.mark.parametrize("key", [0, None, np.random.default_rng(0)])
def test_a_key_is_needed(key):
    with pytest.raises(TypeError, match="key must be a JAX key"):
        simulate(key, **SMALL)


def test_one_key_is_needed():
    with pytest.raises(ValueError, match="single key"):
        simulate(jax.random.split(jax.random.key(0)), **SMALL)


def test_transformations_are_refused():
    def mean(bayes_error):
        return simulate(jax.random.key(0), **(SMALL | {"bayes_error": bayes_error})).mean.sum()

    for transformed in (jax.jit(mean), jax.grad(mean), jax.jit(lambda e: mean(0.1))):
        with pytest.raises(TypeError, match="simulate loops over seeds in Python"):
            transformed(0.1)
    with pytest.raises(TypeError, match="simulate loops over seeds in Python"):
        jax.vmap(lambda key: simulate(key, **SMALL).mean)(jax.random.split(jax.random.key(0)))


def test_a_fit_that_stops_early_is_flagged(monkeypatch):
    monkeypatch.setattr(simulation, "_NEWTON_STEPS", 3)
    try:  # at a size of its own, which is compiled with the limit of 3
        fits = simulate(jax.random.key(0), **(SMALL | {"regularizations": [1e3, 1e-4], "num_samples": 61}))
    finally:
        simulation.fit.clear_cache()
    status, norms = np.asarray(fits.status), np.asarray(fits.gradient_norm)
    assert np.all(status == [Status.CONVERGED, Status.NOT_CONVERGED])
    assert np.all(norms[:, 0] <= 1e-8) and np.all(norms[:, 1] > 1e-8)
    for name in VALUES:
        assert np.all(np.isnan(getattr(fits, name)) == [False, True]), name
    with pytest.raises(ValueError, match=r"NOT_CONVERGED in lane \(0, 1\)"):
        fits.check()
