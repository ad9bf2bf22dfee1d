"""The scale of the signal, where the data separate, and the direction at infinite regularization."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr, ndtri

from theory.precision import as_reals, in_float64, inside_trace, nan_unless
from theory.spectra import check_spectrum, inverse_mean


@in_float64
def separation(bayes_error, spectrum):
    r"""Signal scale c of a problem with a given Bayes error: c = -Phi^{-1}(e*) / sqrt(E[1/s]).

    Args:
        bayes_error: e* in (0, 1/2], error rate of the best linear classifier; at 1/2 there is no signal, c = 0.
        spectrum: `BetaSpectrum` or `DiscreteSpectrum`. Both broadcast.

    Returns:
        c, float64; NaN for values outside, or `ValueError` for an eager call without a valid lane. Differentiable.

    Examples:
        >>> import theory
        >>> print(f"{theory.separation(0.1, theory.BetaSpectrum(1.0, 1.0)):.12f}")
        0.487569125094

    Source: Berta et al. (2025), Proposition 7.3.
    """
    check_spectrum(spectrum)
    c = _separation(as_reals(bayes_error, "bayes_error"), spectrum)
    if not inside_trace(c) and c.size and np.all(np.isnan(c)):
        raise ValueError(f"bayes_error must lie in (0, 0.5], got {bayes_error}")
    return c


@jax.jit
def _separation(error, spectrum):
    ok = (error > 0) & (error <= 0.5) & spectrum.valid()
    return nan_unless(ok, -ndtri(jnp.where(ok, error, 0.25)) / jnp.sqrt(inverse_mean(spectrum)), error)


@in_float64
def separability_threshold(bayes_error):
    r"""Ratio r* = p/n above which two Gaussian classes are linearly separable, whatever the spectrum.

    r* = min over t >= 0 of E[(t rho + sqrt(1 + t^2) G)_-^2], G ~ N(0, 1), rho = -Phi^{-1}(e*). It decreases from 1/2 at
    e* = 1/2 (Cover 1965) to 0. Below r* the maximum-likelihood estimate exists, above it the data separate, with
    probability -> 1.

    Args:
        bayes_error: e* in (0, 1/2], any shape.

    Returns:
        r*, float64, relative error below 1e-13 for e* >= 1e-3; NaN outside, or `ValueError` for an eager call without
        a valid lane. Differentiable.

    Examples:
        >>> import theory
        >>> print(f"{theory.separability_threshold(0.1):.12f}")
        0.184821489132

    Source: Candes and Sur (2020); Berta et al. (2025), Section 7.
    """
    error = as_reals(bayes_error, "bayes_error")
    ok = (error > 0) & (error <= 0.5)
    rho = -ndtri(jnp.where(ok, error, 0.25))
    ratio = nan_unless(ok, threshold(rho**2), error)
    if not inside_trace(ratio) and ratio.size and np.all(np.isnan(ratio)):
        raise ValueError(f"bayes_error must lie in (0, 0.5], got {bayes_error}")
    return ratio


@jax.jit
def threshold(squared_rho):
    """r* of rho^2, elementwise."""
    rho2 = lax.stop_gradient(squared_rho)
    t = _minimizing_slope(jnp.sqrt(rho2))
    # a Newton step outside the stop_gradient makes second derivatives right as well (the first need no derivative of t)
    rho = jnp.sqrt(jnp.where(squared_rho > 0, squared_rho, 1.0))
    slope = jax.vmap(jax.grad(_separable_mass))
    flat_t, flat_rho = t.reshape(-1), rho.reshape(-1)
    curvature = jax.vmap(jax.grad(jax.grad(_separable_mass)))(flat_t, flat_rho)
    flat_t = flat_t - slope(flat_t, flat_rho) / lax.stop_gradient(curvature)
    mass = jax.vmap(_separable_mass)(flat_t, flat_rho).reshape(rho.shape)
    # to second order in rho, for the derivatives at e* = 1/2
    return jnp.where(squared_rho > 0, mass, 0.5 - squared_rho / np.pi)


def _separable_mass(t, rho):
    """E[(t rho + sqrt(1 + t^2) G)_-^2]."""
    size = jnp.sqrt(1 + t * t)
    k = t * rho / size
    return (1 + t * t) * ((1 + k * k) * ndtr(-k) - k * jnp.exp(-0.5 * k * k) / np.sqrt(2 * np.pi))


def _minimizing_slope(rho):
    """Root in t of the derivative, by bisection of its sign in log t: it is negative below the minimum only.

    t* is proportional to rho for small rho and grows slowly: between exp(-30) and exp(5) for every Bayes error that is
    not 1/2 to rounding. 60 halvings leave one unit in the last place.
    """
    slope = jax.grad(_separable_mass)
    flat = rho.reshape(-1)
    low, high = jnp.full(flat.shape, -30.0), jnp.full(flat.shape, 5.0)

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        below = jax.vmap(slope)(jnp.exp(middle), flat) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = lax.fori_loop(0, 60, halve, (low, high))
    return jnp.exp(0.5 * (low + high)).reshape(rho.shape)


def alignment_at_infinity(ratio, signal, values, weights):
    """2 c^2 / sqrt(c^2 E[s] + r E[s^2]): every model points along the difference of the means there."""
    first, second = jnp.sum(weights * values), jnp.sum(weights * values**2)
    return 2 * signal / jnp.sqrt(signal * first + ratio * second)
