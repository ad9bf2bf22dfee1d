"""Minimizers of risk, calibration and refinement: published table, dense grids, limits, hostile problems; curves."""

import csv
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
import theory
from jaxcal import Status

pytestmark = pytest.mark.once

UNIFORM = theory.BetaSpectrum(1.0, 1.0)
# Figure 8 of Berta et al. (2025), Beta(1, 5): the published table, made with squeeze 0.99 and steps of 0.01 in log10
PUBLISHED = pathlib.Path(__file__).parent / "data" / "published_map_beta_1_5.csv"
# the cells where they differ, with both losses by mpmath: see make_published_exceptions.py beside it
EXCEPTIONS = PUBLISHED.with_name("published_exceptions.csv")


@pytest.fixture(scope="module")
def published():
    with PUBLISHED.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def squeezed(published):
    ratios = sorted({float(row["log_r"]) for row in published})
    errors = sorted({float(row["sep"]) for row in published})
    found = theory.minimizer_map(10 ** np.array(ratios), errors, theory.BetaSpectrum(1.0, 5.0), squeeze=0.99)
    return {
        (e, r): {name: getattr(found, name)[i, j] for name in ("risk", "calibration", "refinement", "status")}
        | {f"lambda_{name}": getattr(found, f"lambda_{name}")[i, j] for name in ("risk", "calibration", "refinement")}
        for i, e in enumerate(errors)
        for j, r in enumerate(ratios)
    }


def test_published_map(published, squeezed):
    """Every cell, but for the refinement minimizers that the published search missed."""
    missed = []
    for row in published:
        cell = squeezed[float(row["sep"]), float(row["log_r"])]
        assert cell["status"] == Status.CONVERGED
        for name, column in (("calibration", "cal_min"), ("refinement", "ref_min"), ("risk", "ce_min")):
            assert abs(cell[name] - float(row[column])) < 2e-5
        for name, column in (("calibration", "cal_mzr"), ("risk", "ce_mzr")):
            assert abs(np.log10(cell[f"lambda_{name}"]) - float(row[column])) < 0.011
        lam, listed = cell["lambda_refinement"], float(row["ref_mzr"])
        if lam == 0 or abs(np.log10(lam) - listed) > 0.011:
            missed.append((row["sep"], row["log_r"]))
    with EXCEPTIONS.open() as file:
        exceptions = list(csv.DictReader(file))
    assert missed == [(row["bayes_error"], row["log_r"]) for row in exceptions]
    columns = ("bayes_error", "log_r", "published_log_lambda", "published_at", "our_lambda", "ours_at")
    error, log_r, listed, at_listed, ours, at_ours = (np.array([float(row[c]) for row in exceptions]) for c in columns)
    # 38 infima at lambda -> 0, where the published sweep ends near 1e-9; in 4 cells it ends before the minimum
    assert np.sum(ours == 0) == 38 and len(ours) == 42
    assert (at_ours < at_listed).all()
    spectrum = theory.BetaSpectrum(1.0, 5.0)
    lam = np.stack([10**listed, ours])
    curve = theory.learning_curve(lam, ratio=10**log_r, bayes_error=error, spectrum=spectrum, squeeze=0.99)
    np.testing.assert_allclose(curve.refinement, [at_listed, at_ours], rtol=1e-12)


@pytest.mark.parametrize("model", ["logistic", "ridge", "lda"])
@pytest.mark.parametrize("loss", [jaxcal.log_loss, jaxcal.brier_loss])
def test_dense_grid(model, loss):
    ratio, error = np.array([0.05, 0.6, 4.0]), 0.15
    spectrum = theory.BetaSpectrum(2.0, 1.0)
    best = theory.minimizers(ratio, error, spectrum, model=model, loss=loss)
    assert (best.status == Status.CONVERGED).all()
    grid = np.logspace(-9, 4, 1301)[:, None]
    curve = theory.learning_curve(grid, ratio=ratio, bayes_error=error, spectrum=spectrum, model=model, loss=loss)
    for name in ("risk", "calibration", "refinement"):
        values, least, where = getattr(curve, name), getattr(best, name), getattr(best, f"lambda_{name}")
        assert (least <= values.min(0) + 1e-14).all()
        assert (least >= values.min(0) - 2e-4).all()  # what a grid of 0.01 can miss
        inner = (where > 0) & (where < np.inf)
        closest = grid[np.argmin(values, 0), 0]
        np.testing.assert_allclose(np.log10(where[inner]), np.log10(closest[inner]), atol=0.0101)
    np.testing.assert_allclose(best.gain, 1 - best.refinement / best.risk, rtol=1e-14)
    # ridge regression on many samples is under-confident on the whole path
    calibrated = [False, True, True] if model == "ridge" else [True] * 3
    np.testing.assert_array_equal(best.calibration == 0, calibrated)
    np.testing.assert_array_equal(best.num_calibrated >= 1, calibrated)


def test_minimizers_are_stationary():
    many = theory.minimizers([0.5, 0.7, 3.0], 0.1, UNIFORM)
    best = jax.tree.map(lambda x: x[0], many)
    with jax.enable_x64(True):

        @jax.jit
        def slopes(log_lam):
            def values(x):
                curve = theory.learning_curve(jnp.exp(x), ratio=0.5, bayes_error=0.1, spectrum=UNIFORM)
                return jnp.stack([curve.risk, curve.refinement])

            return jax.jvp(values, (log_lam,), (jnp.ones_like(log_lam),))[1]

        for i, lam in enumerate((best.lambda_risk, best.lambda_refinement)):
            x = np.log(float(lam))
            bend = (slopes(x + 1e-3)[i] - slopes(x - 1e-3)[i]) / 2e-3
            assert bend > 0 and abs(slopes(x)[i] / bend) < 1e-9
    solution = theory.solve_logistic(best.lambda_calibration, 0.5, theory.separation(0.1, UNIFORM), UNIFORM)
    np.testing.assert_allclose(solution.variance, 2 * solution.mean, rtol=1e-11)


def test_exact_maps_gain_twice_what_the_squeezed_show():
    # Beta(5, 1), e* = 0.001, r = 0.1, 1, 10: recomputed with a grid of 0.05 and parabolas in an independent program
    exact = theory.minimizer_map([0.1, 1.0, 10.0], [0.001], theory.BetaSpectrum(5.0, 1.0))
    np.testing.assert_allclose(100 * exact.gain[0], [43.6, 50.8, 16.2], atol=0.06)
    np.testing.assert_allclose(np.log10(exact.lambda_calibration[0]), [-4.89, -6.05, -7.28], atol=0.006)
    np.testing.assert_allclose(np.log10(exact.lambda_refinement[0]), [-0.53, 0.79, 1.71], atol=0.006)
    np.testing.assert_allclose(np.log10(exact.lambda_risk[0]), [-4.30, -5.33, -7.08], atol=0.006)


def test_minima_at_the_ends():
    # identity covariance: the difference of the means is the best direction, so refinement wants lambda = inf
    identity = theory.DiscreteSpectrum([1.0])
    best = theory.minimizers([0.1, 2.0], 0.1, identity)
    assert (best.lambda_refinement == np.inf).all()
    c = float(theory.separation(0.1, identity))
    limit = theory.gaussian_decomposition(2 * c**2 / np.sqrt(c**2 + np.array([0.1, 2.0])), 1.0)
    np.testing.assert_allclose(best.refinement, limit.refinement, rtol=1e-13)
    # few easy directions and many samples: LDA needs no regularization
    low = theory.minimizers([0.2, 0.1], 0.2, theory.BetaSpectrum(1.0, 5.0), model="lda")
    assert (low.lambda_refinement == 0).all()
    plain = theory.solve_lda(
        0.0, 0.2, theory.separation(0.2, theory.BetaSpectrum(1.0, 5.0)), theory.BetaSpectrum(1.0, 5.0)
    )
    np.testing.assert_allclose(low.refinement[0], plain.decompose().refinement, rtol=1e-13)


def test_hostile_problems():
    blind = theory.minimizers([0.5, 5.0], 0.5, UNIFORM)
    assert (blind.status == Status.NOT_IDENTIFIED).all() and (blind.gain == 0).all() and (blind.calibration == 0).all()
    np.testing.assert_allclose([blind.risk, blind.refinement], np.log(2), rtol=1e-14)
    edge = float(theory.separability_threshold(0.1))
    around = theory.minimizers(edge * np.array([1 - 1e-4, 1 - 1e-12, 1, 1 + 1e-12, 1 + 1e-4]), 0.1, UNIFORM)
    assert (around.status == Status.CONVERGED).all() and np.ptp(around.refinement) < 1e-4
    # problems so easy that the risk falls to the end of the path: found, or refused, but never log 2
    easy = theory.minimizers(0.5, [1e-6, 1e-9, 1e-13, 1e-100], theory.BetaSpectrum(5.0, 1.0))
    assert easy.status[:2].tolist() == [Status.CONVERGED] * 2 and not (easy.risk > 1e-3).any()
    mixed = theory.minimizers([0.5, -1.0], 0.1, UNIFORM)
    assert mixed.status.tolist() == [Status.CONVERGED, Status.INVALID_INPUT] and np.isnan(mixed.risk[1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: theory.minimizers(-1.0, 0.1, UNIFORM), ValueError, "ratio must be"),
        (lambda: theory.minimizers(0.5, 0.9, UNIFORM), ValueError, "bayes_error"),
        (lambda: theory.minimizers(0.5, 0.1, UNIFORM, model="svm"), ValueError, "logistic, ridge, lda"),
        (lambda: theory.minimizers(0.5, 0.1, UNIFORM, loss="log"), TypeError, "ProperLoss"),
        (lambda: theory.minimizers(0.5, 0.1, UNIFORM, squeeze=2.0), ValueError, "squeeze"),
        (lambda: theory.minimizer_map(0.5, [0.1], UNIFORM), ValueError, "one axis"),
        (
            lambda: theory.minimizer_map([0.5], [0.1], theory.BetaSpectrum(np.ones(2), 1.0)),
            ValueError,
            "no batch shape",
        ),
        (
            lambda: theory.learning_curve([0.1], ratio=0.5, bayes_error=0.1, spectrum=UNIFORM, model=3),
            ValueError,
            "model",
        ),
    ],
)
def test_bad_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_learning_curve_of_figure_7():
    # expected values to 9 decimals, independent solver (mpmath)
    grid = 10 ** np.array([0, -0.45, -0.9, -1.35, -1.8, -2.25, -2.7])
    curve = theory.learning_curve(grid, ratio=0.5, bayes_error=0.1, spectrum=UNIFORM)
    calibration = [0.055314494, 0.027606039, 0.004452366, 0.003164191, 0.040199922, 0.137610623, 0.327655939]
    refinement = [0.596112969, 0.588631037, 0.578877970, 0.569423094, 0.562482156, 0.559426734, 0.560268657]
    error = [0.321671850, 0.314736632, 0.306032991, 0.297917182, 0.292139442, 0.289640752, 0.290326637]
    np.testing.assert_allclose(curve.calibration, calibration, atol=6e-10)
    np.testing.assert_allclose(curve.refinement, refinement, atol=6e-10)
    np.testing.assert_allclose(curve.error_rate, error, atol=6e-10)
    np.testing.assert_allclose(curve.risk, curve.calibration + curve.refinement, rtol=1e-15)


def test_curves_that_fail_are_nan_with_a_status():
    curve = theory.learning_curve(0.0, ratio=1.0, bayes_error=0.1, spectrum=UNIFORM, model="ridge")
    assert np.isnan(curve.risk) and curve.status == Status.NOT_CONVERGED
    with pytest.raises(ValueError, match="NOT_CONVERGED"):
        curve.check()
    assert theory.learning_curve([], ratio=0.5, bayes_error=0.1, spectrum=UNIFORM).risk.shape == (0,)
