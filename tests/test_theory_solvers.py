"""The fixed points of logistic regression, ridge and LDA: references, limits, lanes, statuses, float64."""

import json
import pathlib

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

import jaxcal
import theory
from jaxcal import Status
from theory.continuation import newton, solve_small
from theory.lanes import _chunk
from theory.logistic import LOGISTIC
from theory.square_loss import LDA, RIDGE

# mpmath, see the description inside; the case "hard margin" was solved to 12 digits
POINTS = json.loads((pathlib.Path(__file__).parent / "data" / "theory_points.json").read_text())
UNIFORM = theory.BetaSpectrum(1.0, 1.0)
SOLVERS = [theory.solve_logistic, theory.solve_ridge, theory.solve_lda]


def _columns(points, *names):
    return [np.array([float(p[name]) for p in points]) for name in names]


def test_logistic_regression_reference_points():
    points = POINTS["points"]
    lam, r, error, alpha, beta = _columns(points, "lam", "r", "e_star", "alpha", "beta")
    spectrum = theory.BetaSpectrum(alpha, beta)
    c = theory.separation(error, spectrum)
    solution = theory.solve_logistic(lam, r, c, spectrum)
    log, brier = solution.decompose(), solution.decompose(loss=jaxcal.brier_loss)
    squeezed = solution.decompose(squeeze=0.99)
    found = {
        "c": c,
        **{name: getattr(solution, name) for name in ("eta", "gamma", "tau", "kappa", "norm")},
        **{"m": solution.mean, "v": solution.variance, "a_w": solution.alignment, "error_rate": log.error_rate},
        **{f"{part}_logloss": getattr(log, part) for part in ("risk", "calibration", "refinement")},
        **{f"{part}_brier_sum": getattr(brier, part) for part in ("risk", "calibration", "refinement")},
    }
    for name, values in found.items():
        # the smallest calibration errors, 1e-4, are differences of numbers near 1
        rtol = 1e-12 if name.startswith("calibration") else 2e-14
        np.testing.assert_allclose(values, *_columns(points, name), rtol=rtol, err_msg=name)
    for part in ("calibration", "refinement"):
        # given to 13 digits
        np.testing.assert_allclose(getattr(squeezed, part), *_columns(points, f"clipped099_{part}_logloss"), rtol=5e-12)
    assert (solution.status == Status.CONVERGED).all() and (solution.residual < 1e-13).all()
    assert (solution.num_steps < 20).all() and solution.num_steps.dtype == np.int32


def test_ridge_and_lda_reference_points():
    points = POINTS["ridge_lda_points"]
    lam, r, error, alpha, beta = _columns(points, "lam", "r", "e_star", "alpha", "beta")
    spectrum = theory.BetaSpectrum(alpha, beta)
    c = theory.separation(error, spectrum)
    ridge, lda = theory.solve_ridge(lam, r, c, spectrum), theory.solve_lda(lam, r, c, spectrum)
    found = {
        **{"tau": ridge.tau, "kappa": lda.kappa, "ridge_factor": ridge.eta},
        **{"m_ridge": ridge.mean, "v_ridge": ridge.variance, "m_lda": lda.mean, "v_lda": lda.variance},
        **{"a_w": ridge.alignment, "error_rate": lda.decompose().error_rate},
        "refinement_brier_sum": lda.decompose(loss=jaxcal.brier_loss).refinement,
        "refinement_logloss": ridge.decompose().refinement,
        "calibration_logloss_lda_sigmoid2": lda.decompose().calibration,
        "calibration_logloss_sigmoid2ridge": ridge.decompose().calibration,
    }
    for name, values in found.items():
        np.testing.assert_allclose(values, *_columns(points, name), rtol=2e-13, err_msg=name)
    # eta and gamma give mean and variance the form they have in logistic regression
    for solution in (ridge, lda):
        h1, q1, q2 = (spectrum.moment(j, k, lam, solution.tau) for j, k in ((0, 1), (1, 2), (2, 2)))
        np.testing.assert_allclose(solution.eta * c**2 * h1, solution.mean, rtol=1e-13)
        np.testing.assert_allclose(solution.eta**2 * c**2 * q1 + solution.gamma * r * q2, solution.variance, rtol=1e-13)


def test_ridge_with_identity_covariance_has_a_closed_form():
    lam, r, c = np.array([1e-6, 0.1, 3.0, 1e5]), 0.7, 1.3
    tau = (1 - r - lam + np.sqrt((lam + r - 1) ** 2 + 4 * lam)) / 2
    np.testing.assert_allclose(theory.solve_ridge(lam, r, c, theory.DiscreteSpectrum([1.0])).tau, tau, rtol=1e-10)


@pytest.mark.parametrize("ratio", [1 - 1e-6, 1 - 1e-12, 1.0, 1 + 1e-12, 1 + 1e-6, 2.0])
@pytest.mark.parametrize("lam", [1e-120, 1e-60, 1e-30, 1e-12, 1e-3])
def test_ridge_and_lda_around_interpolation(ratio, lam):
    """Identity covariance, where tau solves a quadratic: mpmath with enough digits for its cancellation."""
    c = 0.7
    with mpmath.workdps(300):
        r, t, c2 = mpmath.mpf(ratio), mpmath.mpf(lam), mpmath.mpf(c) ** 2
        b = t + r - 1
        tau = (-b + mpmath.sqrt(b * b + 4 * t)) / 2
        h1, q1 = 1 / (t + tau), 1 / (t + tau) ** 2
        mean, variance = c2 * h1, (c2 * q1 + r * q1) / (1 - r * tau**2 * q1)
        factor = tau / (1 + tau * c2 * h1)
        exact = [float(x) for x in (mean, variance, factor * mean, factor**2 * variance)]
    identity = theory.DiscreteSpectrum([1.0])
    lda, ridge = theory.solve_lda(lam, ratio, c, identity), theory.solve_ridge(lam, ratio, c, identity)
    np.testing.assert_allclose([lda.mean, lda.variance, ridge.mean, ridge.variance], exact, rtol=1e-12)


@pytest.mark.once
def test_maximum_likelihood_below_the_threshold():
    points = POINTS["mle_points"]
    error, r = _columns(points, "e_star", "r")
    for spectrum in (UNIFORM, theory.DiscreteSpectrum([1e-3, 1.0, 50.0])):  # the limit does not depend on it
        solution = theory.solve_logistic(0.0, r, theory.separation(error, spectrum), spectrum)
        for name, key in (("mean", "m"), ("variance", "v"), ("alignment", "a_w"), ("kappa", "kappa"), ("tau", "tau")):
            np.testing.assert_allclose(getattr(solution, name), *_columns(points, key), rtol=3e-14)
        assert (solution.status == Status.CONVERGED).all()


@pytest.mark.once
@pytest.mark.parametrize(
    # hard-margin fixed points, mpmath; agree with LinearSVC on 20 seeds (n = 300, p = 1500) within its error of 2 %
    ("error", "shapes", "ratio", "alignment"),
    [
        (0.1, (1.0, 1.0), 0.5, 1.02644536744),
        (0.1, (1.0, 1.0), 5.0, 0.344075913501),
        (0.3, (5.0, 1.0), 2.0, 0.280142767404),
    ],
)
def test_no_maximum_likelihood_above_it(error, shapes, ratio, alignment):
    spectrum = theory.BetaSpectrum(*shapes)
    c = theory.separation(error, spectrum)
    solution = theory.solve_logistic([0.0, 1e-90], ratio, c, spectrum)
    assert solution.status.tolist() == [Status.AT_UPPER_BOUND, Status.CONVERGED]
    assert solution.norm[0] == solution.mean[0] == solution.variance[0] == np.inf
    np.testing.assert_allclose(solution.alignment[0], alignment, rtol=1e-11)
    np.testing.assert_allclose(solution.alignment[1], alignment, rtol=5e-3)  # the approach is logarithmic
    parts = solution.decompose()
    assert parts.risk[0] == np.inf and abs(parts.refinement[0] - parts.refinement[1]) < 2e-3


def test_separability_threshold():
    points = POINTS["separability_threshold"]
    error, expected = _columns(points, "e_star", "r_star")
    np.testing.assert_allclose(theory.separability_threshold(error), expected, rtol=1e-13)
    np.testing.assert_allclose(theory.separability_threshold([0.5, 0.49999999]), 0.5, rtol=1e-7)
    # both sides of it: the alignment is continuous, the norm diverges
    edge = float(theory.separability_threshold(0.2))
    c = theory.separation(0.2, UNIFORM)
    sides = theory.solve_logistic(0.0, [edge * 0.9999, edge * 1.0001], c, UNIFORM)
    assert sides.status.tolist() == [Status.CONVERGED, Status.AT_UPPER_BOUND]
    np.testing.assert_allclose(*sides.alignment, rtol=2e-3)
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(theory.separability_threshold))
        near = [theory.separability_threshold(0.1 + k * 1e-4) for k in (-2, -1, 1, 2)]
        np.testing.assert_allclose(slope(0.1), (near[0] - 8 * near[1] + 8 * near[2] - near[3]) / 12e-4, rtol=1e-8)
        np.testing.assert_allclose(jax.jit(jax.grad(slope))(0.1), (slope(0.1001) - slope(0.0999)) / 2e-4, rtol=1e-5)


def test_limits_of_ridge_and_lda_without_regularization():
    c, r = 0.9, 0.4
    rho2 = c**2 * float(UNIFORM.inverse_mean())
    lda = theory.solve_lda(0.0, r, c, UNIFORM)
    np.testing.assert_allclose([lda.mean, lda.variance], [rho2 / (1 - r), (rho2 + r) / (1 - r) ** 3], rtol=1e-13)
    # minimal-norm interpolation; by continuity from small lambda, with errors of order lambda
    wide = theory.solve_ridge([0.0, 1e-9], 3.0, c, UNIFORM)
    assert wide.status.tolist() == [Status.CONVERGED] * 2
    np.testing.assert_allclose(wide.mean[0], wide.mean[1], rtol=1e-7)
    np.testing.assert_allclose(wide.variance[0], wide.variance[1], rtol=1e-7)
    diverging = theory.solve_lda([0.0, 1e-9], 3.0, c, UNIFORM)
    assert diverging.status.tolist() == [Status.AT_UPPER_BOUND, Status.CONVERGED] and diverging.norm[0] == np.inf
    np.testing.assert_allclose(*diverging.alignment, rtol=1e-7)
    interpolation = theory.solve_ridge(0.0, 1.0, c, UNIFORM)  # infinite variance
    assert np.isnan(interpolation.mean) and interpolation.status == Status.NOT_CONVERGED


@pytest.mark.parametrize("solver", SOLVERS)
def test_limit_of_large_regularization(solver):
    solution = solver([1e9, np.inf], 0.5, theory.separation(0.1, UNIFORM), UNIFORM)
    np.testing.assert_allclose(solution.alignment, 0.8886217943, rtol=1e-8)  # math: 2 c^2 / sqrt(c^2 E s + r E s^2)
    assert solution.norm[1] == solution.mean[1] == 0 and (solution.status == Status.CONVERGED).all()


def test_population_limit_of_many_samples():
    # r -> 0, mpmath: eta 0.3890077073296306, tau 0.22036449166306987, m 0.4879607516258183, v 0.3532944392485415
    solution = theory.solve_logistic(0.1, 1e-13, theory.separation(0.1, UNIFORM), UNIFORM)
    found = [solution.eta, solution.tau, solution.mean, solution.variance]
    np.testing.assert_allclose(
        found, [0.3890077073296306, 0.22036449166306987, 0.4879607516258183, 0.3532944392485415], rtol=1e-11
    )


@pytest.mark.once
@pytest.mark.parametrize("solver", SOLVERS)
def test_random_box(solver):
    rng = np.random.default_rng(5)
    n = 700
    lam, r = 10 ** rng.uniform(-10, 6, n), 10 ** rng.uniform(-2, 2, n)
    error = np.exp(rng.uniform(np.log(1e-4), np.log(0.49), n))
    spectrum = theory.BetaSpectrum(*(0.3 * 100 ** rng.uniform(0, 1, (2, n))))
    solution = solver(lam, r, theory.separation(error, spectrum), spectrum)
    assert (solution.status == Status.CONVERGED).all()
    assert (solution.residual < 1e-12).all() and (solution.num_steps <= 40).all()
    assert (solution.alignment <= -2 * ndtri(error) * (1 + 1e-12)).all()  # nobody beats Bayes


def test_hostile_problems():
    scales = theory.DiscreteSpectrum(np.logspace(-12, 0, 13))
    c = theory.separation(0.1, scales)
    solution = theory.solve_logistic([1e-15, 1e-8, 1e-3, 1e6], 0.5, c, scales)
    assert (solution.status == Status.CONVERGED).all()
    single = theory.DiscreteSpectrum([2.0])
    assert theory.solve_logistic(1e-3, 1.0, theory.separation(0.3, single), single).status == Status.CONVERGED
    narrow = theory.BetaSpectrum(0.05, 1.0)
    assert theory.solve_logistic(1e-6, 1.0, theory.separation(0.01, narrow), narrow).status == Status.CONVERGED
    # no signal: alignment 0, norm not
    blind = theory.solve_logistic(0.1, 0.5, theory.separation(0.5, UNIFORM), UNIFORM)
    assert blind.alignment == 0 and blind.norm > 0 and blind.status == Status.CONVERGED
    # units do not matter, however extreme
    for solver in SOLVERS:
        tiny = theory.DiscreteSpectrum(1e-160 * np.array([0.5, 1.0, 2.0]))
        usual = theory.DiscreteSpectrum([0.5, 1.0, 2.0])
        found = solver(1e-162, 0.8, theory.separation(0.1, tiny), tiny)
        np.testing.assert_allclose(found.alignment, solver(0.01, 0.8, theory.separation(0.1, usual), usual).alignment)
        far = solver([1e152, 1e200, 1e300], 0.5, 0.5, UNIFORM)
        assert (far.status == Status.NOT_CONVERGED).all() and np.isnan(far.alignment).all()
    # what cannot be represented is refused, not guessed
    extreme = theory.solve_logistic([1e-300, 1e200], 0.5, 0.5, UNIFORM)
    assert (extreme.status == Status.NOT_CONVERGED).all() and np.isnan(extreme.mean).all()
    with pytest.raises(ValueError, match="NOT_CONVERGED in lane"):
        extreme.check()


@pytest.mark.once
@pytest.mark.parametrize(
    ("values", "lam", "ratio", "error"),
    [(np.logspace(-12, 0, 13), 1e-14, 0.5, 0.1), ([2.0], 1e-3, 1.0, 0.3), ([1e-4, 1.0], 1e-9, 3.0, 0.01)],
)
def test_equations_hold_in_mpmath_for_hostile_spectra(values, lam, ratio, error):
    """The three expectations as integrals over R = x - kappa s(x), with s(x) solved for, by adaptive quadrature."""
    spectrum = theory.DiscreteSpectrum(values)
    c = float(theory.separation(error, spectrum))
    found = theory.solve_logistic(lam, ratio, c, spectrum)
    assert found.status == Status.CONVERGED
    with mpmath.workdps(25):
        eta, gamma, tau = (mpmath.mpf(float(x)) for x in (found.eta, found.gamma, found.tau))
        terms = [(mpmath.mpf(float(s)), lam + tau * mpmath.mpf(float(s))) for s in values]
        mean_of = lambda f: mpmath.fsum(f(s, d) for s, d in terms) / len(terms)  # noqa: E731
        kappa, mean = ratio * mean_of(lambda s, d: s / d), eta * c**2 * mean_of(lambda s, d: 1 / d)
        variance = eta**2 * c**2 * mean_of(lambda s, d: s / d**2) + gamma * ratio * mean_of(lambda s, d: (s / d) ** 2)
        sd = mpmath.sqrt(variance)
        np.testing.assert_allclose(
            [found.kappa, found.mean, found.variance], [float(x) for x in (kappa, mean, variance)]
        )

        def s_of(t):  # x - kappa s(x) = t by bisection, then Newton's method
            low, high = t, t + kappa
            for _ in range(60):
                x = (low + high) / 2
                low, high = (x, high) if x - kappa / (1 + mpmath.exp(x)) < t else (low, x)
            for _ in range(3):
                s = 1 / (1 + mpmath.exp(x))
                x -= (x - kappa * s - t) / (1 + kappa * s * (1 - s))
            return 1 / (1 + mpmath.exp(x))

        def integral(f):
            points = [-13, -8, -4, -2, 0, 2, 4, 8, 13] + [(k - mean) / sd for k in (-20, -5, 0, 5, 20)]
            points = sorted(p for p in points if -13 <= p <= 13)
            return float(mpmath.quad(lambda z: mpmath.npdf(z) * f(s_of(mean + sd * z)), points))

        expected = [
            integral(lambda s: s),
            integral(lambda s: s * s),
            integral(lambda s: s * (1 - s) / (1 + kappa * s * (1 - s))),
        ]
    np.testing.assert_allclose([found.eta, found.gamma, found.tau], expected, rtol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_scale_invariance(solver):
    """Features times k: eigenvalues and lambda times k^2, separation times k; alignment and norm stay."""
    lam, r, k = 0.03, 0.6, 1e5
    spectrum = theory.DiscreteSpectrum([0.2, 1.0, 3.0])
    big = theory.DiscreteSpectrum(k**2 * np.array([0.2, 1.0, 3.0]))
    a, b = solver(lam, r, 0.8, spectrum), solver(lam * k**2, r, 0.8 * k, big)
    np.testing.assert_allclose([a.alignment, a.norm, a.kappa], [b.alignment, b.norm, b.kappa], rtol=1e-12)


@pytest.mark.once
def test_linearizations_are_what_differentiation_gives():
    atoms = (np.array([0.01, 0.5, 2.0]), np.array([0.3, 0.3, 0.4]))
    cases = [
        (LOGISTIC, np.log([0.3, 0.12, 0.15])),
        (LOGISTIC, np.log([1e-3, 3e-6, 1e-4])),
        (RIDGE, np.log([0.3])),
        (LDA, np.log([0.9])),
    ]
    with jax.enable_x64(True):
        for model, point in cases:
            for lam in (1e-4, 0.3):
                theta = (0.7, 0.2, *map(jnp.asarray, atoms))

                def residual(z, model=model, theta=theta):
                    return model.residual(z[:-1], jnp.exp(z[-1]), *theta)

                z = jnp.append(jnp.asarray(point), jnp.log(lam))
                jacobian = jax.jit(jax.jacfwd(residual))(z)
                value, inner, slope = jax.jit(model.linearize)(jnp.asarray(point), lam, *theta)
                np.testing.assert_allclose(value, residual(z), atol=1e-14)
                np.testing.assert_allclose(jnp.column_stack([inner, slope]), jacobian, rtol=1e-9, atol=1e-11)
                step, tangent = newton(lambda p, t, m=model, th=theta: m.linearize(p, t, *th), jnp.asarray(point), lam)
                np.testing.assert_allclose(step, -np.linalg.solve(jacobian[:, :-1], value), rtol=1e-8)
                np.testing.assert_allclose(tangent, -np.linalg.solve(jacobian[:, :-1], jacobian[:, -1]), rtol=1e-8)


def test_small_systems():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for d in (1, 3):
            matrix, right = rng.standard_normal((d, d)) * 10 ** rng.uniform(-8, 8, (d, 1)), rng.standard_normal((d, 2))
            np.testing.assert_allclose(
                solve_small(jnp.asarray(matrix), jnp.asarray(right)), np.linalg.solve(matrix, right), rtol=1e-10
            )


@pytest.mark.once
@pytest.mark.parametrize("solver", SOLVERS)
def test_derivatives_at_the_ends_and_under_vmap(solver):
    with jax.enable_x64(True):
        c = theory.separation(0.2, UNIFORM)

        @jax.jit
        def alignment(lam, r):
            return solver(lam, r, c, UNIFORM).alignment

        slopes = jax.jit(jax.vmap(jax.grad(alignment, argnums=(0, 1))))
        lam, r = jnp.array([0.0, 0.1, 0.0, jnp.inf]), jnp.array([0.2, 0.7, 2.0, 0.7])
        in_lam, in_ratio = slopes(lam, r)
        h = 1e-4
        sides = [jax.vmap(alignment)(lam, r * (1 + k * h)) for k in (-2, -1, 1, 2)]
        np.testing.assert_allclose(
            in_ratio, (sides[0] - 8 * sides[1] + 8 * sides[2] - sides[3]) / (12 * h * r), rtol=1e-7
        )
        near = [alignment(k * 1e-7, 0.2) for k in (0, 1, 2)]  # one-sided at 0
        np.testing.assert_allclose(in_lam[0], (-3 * near[0] + 4 * near[1] - near[2]) / 2e-7, rtol=1e-4)
        assert jnp.isfinite(in_lam[jnp.array([0, 1])]).all() and in_lam[3] == 0
        assert jnp.isnan(in_lam[2])  # beyond the edge the slope at 0 is infinite, or not known


def test_broadcasting_and_types(x64):
    spectrum = theory.BetaSpectrum(np.array([1.0, 5.0]), 1.0)
    c = theory.separation(np.float32(0.1), spectrum)
    solution = theory.solve_logistic(np.array([[0.1], [1.0], [2.0]], np.float32), 1, c, spectrum)
    assert solution.mean.shape == (3, 2) and solution.mean.dtype == np.float64 and solution.status.dtype == np.int32
    assert isinstance(solution.mean, jax.Array if x64 else np.ndarray)
    alone = theory.solve_logistic(
        np.float32(0.1),
        1,
        theory.separation(np.float32(0.1), theory.BetaSpectrum(5.0, 1.0)),
        theory.BetaSpectrum(5.0, 1.0),
    )
    np.testing.assert_allclose(solution.mean[0, 1], alone.mean, rtol=1e-13)
    atoms = theory.DiscreteSpectrum(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert theory.solve_lda(0.1, 0.5, 1.0, atoms).mean.shape == (2,)
    assert theory.solve_ridge(np.zeros((0, 3)), 0.5, 1.0, UNIFORM).mean.shape == (0, 3)
    chunks = theory.solve_ridge(np.logspace(-3, 3, 131), 0.5, 1.0, UNIFORM)  # more than two chunks of lanes
    np.testing.assert_allclose(
        np.asarray(chunks.mean)[[0, 70, 130]],
        theory.solve_ridge(np.logspace(-3, 3, 131)[[0, 70, 130]], 0.5, 1.0, UNIFORM).mean,
        rtol=1e-13,
    )


def test_bad_lanes_stay_nan_and_bad_calls_raise():
    solution = theory.solve_logistic([0.1, -1.0, np.nan], [0.5, 0.5, 0.5], 0.5, UNIFORM)
    assert solution.status.tolist() == [Status.CONVERGED, Status.INVALID_INPUT, Status.INVALID_INPUT]
    assert np.isfinite(solution.mean[0]) and np.isnan(solution.mean[1:]).all() and np.isnan(solution.norm[1:]).all()
    for bad in ((0.1, 0.0, 0.5), (0.1, np.inf, 0.5), (0.1, 0.5, -1.0), (np.nan, 0.5, 0.5)):
        with pytest.raises(ValueError, match="ratio positive"):
            theory.solve_logistic(*bad, UNIFORM)
    with pytest.raises(TypeError, match="takes eigenvalues"):
        theory.solve_ridge(0.1, 0.5, 0.5, np.ones(3))
    with pytest.raises(TypeError, match="separation must be real"):
        theory.solve_ridge(0.1, 0.5, "c", UNIFORM)
    with pytest.raises(ValueError, match="do not broadcast"):
        theory.solve_lda(np.ones(2), np.ones(3), 0.5, UNIFORM)
    for error in (0.0, 0.6, np.nan):
        with pytest.raises(ValueError, match="bayes_error"):
            theory.separation(error, UNIFORM)
        with pytest.raises(ValueError, match="bayes_error"):
            theory.separability_threshold(error)
    assert np.isnan(theory.separation([0.1, 0.7], UNIFORM)).tolist() == [False, True]


def test_float32_transformations_are_refused_with_the_remedy(x64):
    if x64:
        pytest.skip("float64 is on")
    for call in (jax.jit, jax.grad, jax.vmap):
        argument = jnp.ones(2) if call is jax.vmap else 0.1
        with pytest.raises(TypeError, match=r"jax.enable_x64\(True\)"):
            call(lambda lam: theory.solve_logistic(lam, 0.5, 0.5, UNIFORM).mean)(argument)
    with pytest.raises(TypeError, match="enable_x64"):  # nothing but constants inside
        jax.jit(lambda x: x + theory.solve_logistic(0.1, 0.5, 0.5, UNIFORM).mean)(1.0)


def test_numbers_of_problems_and_atoms_and_types_compile_nothing_anew():
    def solve(count, atoms, kind=float):
        spectrum = theory.DiscreteSpectrum(np.linspace(1, 2, atoms)) if atoms else theory.BetaSpectrum(kind(2), kind(3))
        return theory.solve_ridge(np.linspace(0.1, 1, count), 0.5, 0.5, spectrum).mean

    with jax.enable_x64(True):  # chunks run in this context, whose compilations are counted
        solve(5, 17), solve(5, 0)
        before = _chunk._cache_size()
        for count, atoms, kind in ((7, 30, float), (8, 20, float), (2, 0, np.float64), (3, 0, int)):
            solve(count, atoms, kind)
        assert _chunk._cache_size() == before
        solve(9, 17)  # the next size
        assert _chunk._cache_size() == before + 1


@pytest.mark.once
@pytest.mark.parametrize("solver", SOLVERS)
def test_derivatives_in_the_spectrum_without_regularization(solver):
    """On both sides of the edge, in one batch: neither side may poison the other."""
    with jax.enable_x64(True):
        ratios = jnp.array([0.05, 3.0])

        def alignments(p):
            spectrum = theory.BetaSpectrum(p[0], p[1], p[2])
            return solver(0.0, ratios, 0.4, spectrum).alignment

        p, h = jnp.array([1.5, 2.0, 0.05]), 1e-4
        forward, reverse = jax.jit(jax.jacfwd(alignments))(p), jax.jit(jax.jacrev(alignments))(p)
        value = jax.jit(alignments)
        steps = h * p * jnp.eye(3)
        near = [[value(p + k * s) for k in (-2, -1, 1, 2)] for s in steps]
        central = [(n[0] - 8 * n[1] + 8 * n[2] - n[3]) / (12 * h * x) for n, x in zip(near, p, strict=True)]
        np.testing.assert_allclose(forward, jnp.stack(central, axis=-1), rtol=1e-6)
        np.testing.assert_allclose(reverse, forward, rtol=1e-9)


def test_failed_lanes_have_derivatives_nan():
    """Forward and reverse alike, and nothing of it in the lanes that are right or in directions that play no part."""
    with jax.enable_x64(True):

        def refinement(lam, r):
            curve = theory.learning_curve(lam, ratio=r, bayes_error=0.1, spectrum=UNIFORM, model="ridge")
            return curve.refinement

        lam = jnp.array([0.01, -1.0])
        forward, reverse = (jax.jit(d(lambda r: refinement(lam, r)))(0.5) for d in (jax.jacfwd, jax.jacrev))
        assert jnp.isnan(forward).tolist() == jnp.isnan(reverse).tolist() == [False, True]
        np.testing.assert_allclose(forward[0], reverse[0], rtol=1e-12)
        alone = jax.jit(jax.grad(lambda r: refinement(lam[0], r)))(0.5)
        np.testing.assert_allclose(forward[0], alone, rtol=1e-12)

        def beyond(lam, r):  # at 0 on separable data only the slope in lambda is unknown
            return theory.solve_logistic(lam, r, 0.4, UNIFORM).alignment

        primal, slope_in_ratio = jax.jit(lambda: jax.jvp(beyond, (0.0, 0.8), (0.0, 1.0)))()
        _, slope_in_lam = jax.jit(lambda: jax.jvp(beyond, (0.0, 0.8), (1.0, 0.0)))()
        assert jnp.isnan(slope_in_lam) and jnp.isfinite(primal)
        np.testing.assert_allclose(slope_in_ratio, jax.jit(jax.grad(beyond, argnums=1))(0.0, 0.8), rtol=1e-12)
