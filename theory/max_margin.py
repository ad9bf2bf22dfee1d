"""The hard-margin classifier: the limit of logistic regression on separable data as the penalty vanishes."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from theory.continuation import Point


def moments(unknowns, lam, ratio, signal, values, weights):
    """kappa, mean and variance of one lane; `signal` is c^2, the unknowns are log(eta, gamma, tau)."""
    eta, gamma, tau = jnp.exp(unknowns)
    inverse = 1 / (lam + tau * values)
    share = values * inverse
    kappa = ratio * jnp.sum(weights * share)
    mean = eta * signal * jnp.sum(weights * inverse)
    variance = eta**2 * signal * jnp.sum(weights * share * inverse) + gamma * ratio * jnp.sum(weights * share**2)
    return kappa, mean, variance


def residual(unknowns, ratio, signal, values, weights):
    """The fixed point of the classifier with margin 1: that of logistic regression with (1 - R)_+ / kappa for s(x)."""
    kappa, mean, variance = moments(unknowns, 1.0, ratio, signal, values, weights)
    sd = jnp.sqrt(variance)
    u = (1 - mean) / sd
    normal = jnp.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
    first = sd * (u * ndtr(u) + normal)
    second = variance * ((1 + u * u) * ndtr(u) + u * normal)
    sums = jnp.stack([first / kappa, second / kappa**2, ndtr(u) / kappa])
    return jnp.log(sums) - unknowns


def guess(unknowns, lam):
    """From logistic regression at a tiny lam, where margins gather around log(1/tau); there they are 1."""
    margin = jnp.maximum(-unknowns[2], 1.0)
    return unknowns - jnp.stack([jnp.log(lam * margin), 2 * jnp.log(lam * margin), jnp.log(lam)])


def readout(unknowns, ratio, signal, values, weights):
    """What tends to 0 and to infinity with lambda, and the alignment, which has a limit."""
    kappa, mean, variance = moments(unknowns, 1.0, ratio, signal, values, weights)
    alignment = Point(*jnp.exp(unknowns), kappa, mean, variance).alignment
    zero, inf = jnp.zeros_like(mean), jnp.full_like(mean, jnp.inf)
    return Point(zero, zero, zero, inf, inf, inf), alignment
