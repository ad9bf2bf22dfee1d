"""Moments of spectra against hypergeometric functions in mpmath, and their derivatives."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import theory


def _exact(alpha, beta, shift, lam, tau, power, order):
    """E[s^j / (lam + tau s)^k] for s = shift + Beta(alpha, beta), by 2F1 after expanding s^j in u."""
    with mpmath.workdps(40):
        a, b, eps, lam, tau = (mpmath.mpf(x) for x in (alpha, beta, shift, lam, tau))
        z, base, total = -tau / (lam + tau * eps), lam + tau * eps, mpmath.mpf(0)
        for i in range(power + 1):
            ratio = mpmath.rf(a, i) / mpmath.rf(a + b, i)
            term = ratio * mpmath.hyp2f1(order, a + i, a + b + i, z) / base**order
            total += mpmath.binomial(power, i) * eps ** (power - i) * term
        return float(total)


@pytest.mark.parametrize(
    "shapes",
    [
        (1, 1),
        (0.05, 1),
        (0.3, 30),
        (30, 0.3),
        (5, 1),
        (1, 5),
        (2, 2),
        (0.3, 0.3),
        (30, 30),
        (300, 700),
        (0.05, 0.05),
        (1.1, 0.01),
    ],
)
@pytest.mark.parametrize("shift", [1e-3, 1e-9, 2.0])
def test_beta_moments(shapes, shift):
    spectrum = theory.BetaSpectrum(*shapes, shift)
    for lam, tau in ((0.1, 0.5), (1e-7, 0.2), (3.0, 1e-4)):
        for power, order in ((0, 1), (1, 1), (1, 2), (2, 2), (0, 2), (3, 3)):
            found = spectrum.moment(power, order, lam, tau)
            np.testing.assert_allclose(found, _exact(*shapes, shift, lam, tau, power, order), rtol=1e-12)
    np.testing.assert_allclose(spectrum.inverse_mean(), _exact(*shapes, shift, 0, 1, 0, 1), rtol=1e-12)
    np.testing.assert_allclose(spectrum.mean(), shift + shapes[0] / sum(shapes), rtol=1e-13)


@pytest.mark.parametrize("shapes", [(0.01, 1), (1e-3, 1e-3), (3e3, 3e3), (1e6, 1e6), (0.05, 1e4), (1e4, 3)])
def test_extreme_shapes(shapes):
    (a, b), shift = shapes, 1e-9
    first, second = a / (a + b), a * (a + 1) / ((a + b) * (a + b + 1))
    spectrum = theory.BetaSpectrum(a, b, shift)
    np.testing.assert_allclose(spectrum.mean(), shift + first, rtol=1e-13)
    np.testing.assert_allclose(spectrum.moment(2, 0), shift**2 + 2 * shift * first + second, rtol=1e-13)


def test_parameters_that_cannot_be_checked_give_nan():
    with jax.enable_x64(True):
        moments = jax.jit(lambda a, s: theory.BetaSpectrum(a, 1.0, s).inverse_mean())
        assert jnp.isnan(moments(1.0, 0.0)) and jnp.isnan(moments(1.0, 1e-10)) and jnp.isfinite(moments(1.0, 1e-3))


@pytest.mark.parametrize(("alpha", "beta"), [(2.5, 1.5), (1.1, 1.0), (1.2, 50.0), (1.1, 1e-3), (30.0, 2.0)])
def test_spectrum_that_touches_zero(alpha, beta):
    """E[1/u] = (alpha + beta - 1) / (alpha - 1); what reaches closer to 0 is refused."""
    exact = (alpha + beta - 1) / (alpha - 1)
    np.testing.assert_allclose(theory.BetaSpectrum(alpha, beta, 0.0).inverse_mean(), exact, rtol=1e-12)
    for closer in ({"alpha": 1.05, "shift": 0.0}, {"alpha": 1.0, "shift": 0.0}, {"alpha": 2.0, "shift": 1e-10}):
        with pytest.raises(ValueError, match="shift"):
            theory.BetaSpectrum(beta=beta, **closer)


def test_derivatives_in_all_three_parameters():
    def moment(p):
        return theory.BetaSpectrum(p[0], p[1], p[2]).moment(1, 2, 0.1, 0.4)

    point = [1.5, 2.5, 0.01]

    def exact(*p):
        return mpmath.mpf(_exact(*p, 0.1, 0.4, 1, 2))

    with jax.enable_x64(True):
        p = jnp.array(point)
        gradient, hessian = jax.jit(jax.grad(moment))(p), jax.jit(jax.hessian(moment))(p)
    h = 1e-4
    for i in range(3):
        step = np.eye(3)[i] * h
        near = [exact(*(np.array(point) + k * step)) for k in (-2, -1, 0, 1, 2)]
        first = (near[0] - 8 * near[1] + 8 * near[3] - near[4]) / (12 * h)
        second = (-near[0] + 16 * near[1] - 30 * near[2] + 16 * near[3] - near[4]) / (12 * h * h)
        np.testing.assert_allclose(gradient[i], float(first), rtol=1e-8)
        np.testing.assert_allclose(hessian[i, i], float(second), rtol=1e-5)


def test_discrete_spectrum():
    values, weights = np.array([0.5, 2.0, 1e-9]), np.array([1.0, 2.0, 1.0])
    spectrum = theory.DiscreteSpectrum(values, weights)
    w = weights / 4
    np.testing.assert_allclose(spectrum.moment(2, 2, 0.3, 0.7), w @ (values**2 / (0.3 + 0.7 * values) ** 2), rtol=1e-15)
    np.testing.assert_allclose(spectrum.inverse_mean(), w @ (1 / values), rtol=1e-15)
    equal = theory.DiscreteSpectrum([3.0, 1.0])
    np.testing.assert_allclose(equal.mean(), 2.0)
    np.testing.assert_array_equal(theory.DiscreteSpectrum([3.0, 1.0], [1, 3]).quantiles(8), [1] * 6 + [3] * 2)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda v: theory.DiscreteSpectrum(v, jnp.array([1.0, 3.0])).inverse_mean())(
            jnp.array([2.0, 4.0])
        )
        np.testing.assert_allclose(gradient, [-0.25 / 4, -0.75 / 16], rtol=1e-15)


def test_quantiles_samples_and_density_follow_the_law():
    spectrum, law = theory.BetaSpectrum(2.0, 3.0, 0.1), stats.beta(2, 3, loc=0.1)
    np.testing.assert_allclose(spectrum.quantiles(7), law.ppf((np.arange(7) + 0.5) / 7), rtol=1e-10)
    draws = np.asarray(spectrum.sample(jax.random.key(0), (4000,)))
    assert draws.dtype == np.float64 and stats.kstest(draws, law.cdf).pvalue > 1e-3
    x = np.array([0.05, 0.1, 0.4, 1.05, 1.2])
    np.testing.assert_allclose(spectrum.density(x), law.pdf(x), rtol=1e-12)
    atoms = theory.DiscreteSpectrum([1.0, 2.0], [1, 3]).sample(jax.random.key(0), (4000,))
    assert abs(np.mean(np.asarray(atoms) == 2) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)


def test_parameters_broadcast():
    spectrum = theory.BetaSpectrum(np.array([1.0, 5.0]), np.array([[1.0], [2.0], [3.0]]))
    assert spectrum.batch_shape == (3, 2) and spectrum.mean().shape == (3, 2)
    assert theory.DiscreteSpectrum(np.ones((4, 6))).batch_shape == (4,)
    table = spectrum.moment(1, 1, 0.5, 0.5)
    np.testing.assert_allclose(table[2, 1], theory.BetaSpectrum(5.0, 3.0).moment(1, 1, 0.5, 0.5), rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theory.BetaSpectrum(0.0, 1.0), "alpha must be positive"),
        (lambda: theory.BetaSpectrum(1.0, np.nan), "beta must be positive"),
        (lambda: theory.BetaSpectrum(1.0, 1.0, -1e-9), "shift must be 0 or at least 1e-9"),
        (lambda: theory.DiscreteSpectrum([1.0, 0.0]), "values must be positive"),
        (lambda: theory.DiscreteSpectrum([1.0, np.inf]), "values must be positive"),
        (lambda: theory.DiscreteSpectrum([]), "N >= 1"),
        (lambda: theory.DiscreteSpectrum([1.0, 2.0], [1.0]), "as many entries"),
        (lambda: theory.DiscreteSpectrum([1.0, 2.0], [0.0, 0.0]), "not be all zero"),
        (lambda: theory.DiscreteSpectrum([1.0, 2.0], [2.0, -1.0]), "non-negative"),
    ],
)
def test_bad_spectra(make, message):
    with pytest.raises(ValueError, match=message):
        make()
