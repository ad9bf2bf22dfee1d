"""Calibration and refinement of a linear score on two Gaussians, against mpmath (30 digits) and Monte Carlo."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.scipy.special import xlogy

import jaxcal
import theory

# alignment, norm: calibration and refinement for log loss, the same for the Brier loss, error rate; two forms of the
# integrals in mpmath agreed to 1e-40
BALANCED = [
    (1, 1, 0, 0.58172569837520913, 0, 0.397972867183249844, 0.308537538725986896),
    (
        1,
        3,
        0.189544697826107666,
        0.58172569837520913,
        0.0591379827782600744,
        0.397972867183249844,
        0.308537538725986896,
    ),
    (
        2,
        1,
        0.0505399228744172868,
        0.356316360213113697,
        0.0258441447795660849,
        0.224799754603336415,
        0.158655253931457051,
    ),
    (
        2,
        5,
        0.139635599876747289,
        0.356316360213113697,
        0.0253919299791186633,
        0.224799754603336415,
        0.158655253931457051,
    ),
    (
        0.5,
        4,
        0.632364404014427069,
        0.662835880039106329,
        0.171054170176856866,
        0.470527012229704417,
        0.401293674317076276,
    ),
    (
        4,
        2,
        0.0255187084844910707,
        0.0604269868230783278,
        0.00668795895462308958,
        0.034298704395369407,
        0.0227501319481792072,
    ),
]
# prior, m1, m0, v: the same five, and the Bayes error; mpmath, calibration also by integrating over the score
SHIFTED = [
    (0.2, 1, -1, 1, 0.1390568936690594, 0.2677993894184716, 0.08746929534325223, 0.1631746040396503, 0.15865525393146),
    (
        0.1,
        0.5,
        -1.5,
        2,
        0.1369377823549315,
        0.2445303748941245,
        0.09820632509183991,
        0.1412734786430094,
        0.16616364534751,
    ),
    (0.3, 2, -1, 4, 0.1359619335030809, 0.4206797332310368, 0.09329260475566133, 0.2706327760769019, 0.26357285328763),
]


@pytest.mark.parametrize("case", BALANCED)
def test_reference_values(case):
    a, norm, *expected = case
    log, brier = theory.gaussian_decomposition(a, norm), theory.gaussian_decomposition(a, norm, loss=jaxcal.brier_loss)
    found = [log.calibration, log.refinement, brier.calibration, brier.refinement, log.error_rate]
    np.testing.assert_allclose(found, expected, rtol=2e-14, atol=1e-16)
    np.testing.assert_allclose(log.slope, a / norm)
    assert log.offset == 0


@pytest.mark.parametrize("case", SHIFTED)
def test_intercept_and_unequal_priors(case):
    prior, m1, m0, v, *expected = case
    sd, options = np.sqrt(v), {"intercept": (m1 + m0) / 2, "prior": prior}
    log = theory.gaussian_decomposition((m1 - m0) / sd, sd, **options)
    brier = theory.gaussian_decomposition((m1 - m0) / sd, sd, loss=jaxcal.brier_loss, **options)
    found = [log.calibration, log.refinement, brier.calibration, brier.refinement, log.error_rate]
    # the error rates of the table are given to 14 digits
    np.testing.assert_allclose(found, expected, rtol=3e-14)
    # the affine map is the posterior: log-odds of the two Gaussian densities at any score
    score = 0.7
    posterior = np.log(prior / (1 - prior)) + ((score - m0) ** 2 - (score - m1) ** 2) / (2 * v)
    np.testing.assert_allclose(log.slope * score + log.offset, posterior, rtol=1e-14)


def test_the_calibrated_score_has_no_calibration_error():
    a, prior, b = 1.7, 0.2, 0.6
    log = theory.gaussian_decomposition(a, 3.0, intercept=b, prior=prior)
    slope = float(log.slope)
    mapped = theory.gaussian_decomposition(a, 3.0 * slope, intercept=b * slope + float(log.offset), prior=prior)
    np.testing.assert_allclose(mapped.calibration, 0, atol=1e-15)
    np.testing.assert_allclose(mapped.refinement, log.refinement, rtol=1e-14)


@pytest.mark.parametrize(("a", "norm"), [(1e-3, 1e-2), (1, 1e-6), (3, 1e4), (8, 1e8), (8, 0.1), (20, 3), (-1, 2)])
def test_extreme_scales_against_mpmath(a, norm):
    with mpmath.workdps(30):
        za, zn = mpmath.mpf(a), mpmath.mpf(norm)

        def softplus(x):
            return mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x))

        kinks = [-za / 2 + k / s for s in (zn, abs(za)) for k in (-40, -10, -3, 0, 3, 10, 40)]
        points = sorted({mpmath.mpf(p) for p in range(-16, 17, 2)} | {max(-16, min(16, k)) for k in kinks})
        risk = mpmath.quad(lambda z: mpmath.npdf(z) * softplus(-zn * (z + za / 2)), points)
        refinement = mpmath.quad(lambda z: mpmath.npdf(z) * softplus(-za * (z + za / 2)), points)
    found = theory.gaussian_decomposition(a, norm)
    np.testing.assert_allclose(found.refinement, float(refinement), rtol=1e-13)
    np.testing.assert_allclose(found.calibration, float(risk - refinement), rtol=5e-12)


def test_limits_of_the_norm():
    limit = theory.gaussian_decomposition(1.0, [0.0, 1e-9, np.inf], loss=jaxcal.brier_loss)
    np.testing.assert_allclose(limit.risk[:2], 0.5, rtol=1e-9)  # every forecast 1/2
    # every forecast 0 or 1: the Brier score is twice the error rate
    np.testing.assert_allclose(limit.risk[2], 2 * limit.error_rate[2], rtol=1e-14)
    assert theory.gaussian_decomposition(1.0, np.inf).calibration == np.inf


def test_any_proper_loss_even_one_that_treats_classes_differently():
    lopsided = jaxcal.proper_loss(lambda p: -xlogy(p[1], p[1]) - p[1] ** 2 / 4)
    a, norm, n = 1.3, 2.2, 400_000
    z = np.random.default_rng(0).standard_normal((2, n))
    draws = []
    for label, mean in ((1, a / 2), (0, -a / 2)):
        logits = jnp.stack([jnp.zeros(n), jnp.asarray(norm * (z[label] + mean))], -1)
        draws.append(np.asarray(lopsided(logits, jnp.full(n, label)), dtype=np.float64))
    both = 0.5 * (draws[0] + draws[1])
    found = theory.gaussian_decomposition(a, norm, loss=lopsided)
    assert abs(found.risk - both.mean()) < 4 * both.std() / np.sqrt(n)


def test_squeeze_moves_both_probabilities():
    a, norm = 1.5, 4.0
    t, w = np.polynomial.hermite_e.hermegauss(180)
    t, w = t + a / 2, w / np.sqrt(2 * np.pi)
    f, c = (0.5 + 0.99 * (1 / (1 + np.exp(-s)) - 0.5) for s in (norm * t, a * t))
    refinement = w @ -(c * np.log(c) + (1 - c) * np.log1p(-c))
    calibration = w @ (c * np.log(c / f) + (1 - c) * np.log((1 - c) / (1 - f)))
    found = theory.gaussian_decomposition(a, norm, squeeze=0.99)
    np.testing.assert_allclose([found.refinement, found.calibration], [refinement, calibration], rtol=2e-6)


@pytest.mark.parametrize("loss", [jaxcal.log_loss, jaxcal.brier_loss, jaxcal.spherical_loss])
def test_gradients_forward_reverse_second(loss):
    @jax.jit
    def risk(x):
        return theory.gaussian_decomposition(x[0], x[1], loss=loss).risk

    with jax.enable_x64(True):
        x, h = jnp.array([1.2, 2.5]), 1e-4
        steps = h * jnp.eye(2)
        central = jnp.array(
            [(8 * (risk(x + s) - risk(x - s)) - risk(x + 2 * s) + risk(x - 2 * s)) / (12 * h) for s in steps]
        )
        slope = jax.jit(jax.grad(risk))
        np.testing.assert_allclose(slope(x), central, rtol=1e-9)
        np.testing.assert_allclose(jax.jit(jax.jacfwd(risk))(x), central, rtol=1e-9)
        second = jnp.stack([(slope(x + s) - slope(x - s)) / (2 * h) for s in steps])
        np.testing.assert_allclose(jax.jit(jax.hessian(risk))(x), second, rtol=1e-6)


def test_derivatives_in_intercept_and_prior():
    """At intercept 0 as well, where error rate and offset have a slope although they are simple there."""

    @jax.jit
    def fields(x):
        found = theory.gaussian_decomposition(1.2, 2.0, intercept=x[0], prior=x[1])
        return jnp.stack([found.risk, found.refinement, found.error_rate, found.offset])

    with jax.enable_x64(True):
        x, h = jnp.array([0.0, 0.2]), 1e-3
        steps = h * jnp.eye(2)
        near = [[fields(x + k * s) for k in (-2, -1, 1, 2)] for s in steps]
        central = jnp.stack([(n[0] - 8 * n[1] + 8 * n[2] - n[3]) / (12 * h) for n in near], axis=-1)
        np.testing.assert_allclose(jax.jit(jax.jacrev(fields))(x), central, rtol=1e-8, atol=1e-11)


def test_broadcasting_dtypes_and_lanes(x64):
    found = theory.gaussian_decomposition(np.ones((3, 1), np.float32), [0.5, np.nan, -1.0, 2.0])
    assert found.risk.shape == (3, 4) and found.risk.dtype == np.float64
    assert isinstance(found.risk, jax.Array if x64 else np.ndarray)
    assert np.isnan(found.risk[:, 1:3]).all() and np.isfinite(found.risk[:, [0, 3]]).all()


def test_many_lanes_in_parts():
    a, norm = np.linspace(-2, 5, 3000), np.linspace(0.1, 9, 3000)
    many = theory.gaussian_decomposition(a.reshape(3, 1000), norm.reshape(3, 1000))
    few = theory.gaussian_decomposition(a[::500], norm[::500])
    np.testing.assert_allclose(many.risk.reshape(-1)[::500], few.risk, rtol=1e-13)
    shifted = theory.gaussian_decomposition(a[::10], norm[::10], prior=0.3)
    alone = theory.gaussian_decomposition(a[500], norm[500], prior=0.3)
    np.testing.assert_allclose(shifted.calibration[50], alone.calibration, rtol=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="norm >= 0"):
        theory.gaussian_decomposition(1.0, -1.0)
    with pytest.raises(ValueError, match="squeeze"):
        theory.gaussian_decomposition(1.0, 1.0, squeeze=0.0)
    with pytest.raises(TypeError, match="ProperLoss"):
        theory.gaussian_decomposition(1.0, 1.0, loss="log")
