"""Ridge classification and regularized LDA in high dimension: one direction, two norms."""

import jax.numpy as jnp

from theory.continuation import Model, Point
from theory.fixed_point import solve
from theory.precision import in_float64
from theory.solution import Solution


@in_float64
def solve_ridge(regularization, ratio, separation, spectrum) -> Solution:
    r"""Limit of ridge regression on labels +-1: min_w (1/2n) sum (1 - y_i w.x_i)^2 + (lambda/2) |w|^2.

    The data, the arguments, the shapes, errors and derivatives are those of `theory.solve_logistic`. tau in (0, 1) is
    the root of

        tau (1 + r E[s / (lambda + tau s)]) = 1,    kappa = 1/tau - 1,

    the direction is that of `theory.solve_lda`, and w is shorter by the factor
    eta = 1 / (1 + kappa + c^2 E[1 / (lambda + tau s)]). The posterior of the labels that the model stands for is
    sigma(2 w.x); `Solution.scale` is 2.

    Args:
        regularization: lambda >= 0; at 0 least squares for ratio < 1 and the interpolator of minimal norm for ratio > 1
            (tau = 0, kappa = inf). At ratio = 1 the variance of that is infinite: NaN with status NOT_CONVERGED.
        ratio, separation, spectrum: as in `theory.solve_logistic`.

    Returns:
        `Solution`, float64.

    Examples:
        >>> import theory
        >>> spectrum = theory.BetaSpectrum(1.0, 1.0)
        >>> solution = theory.solve_ridge(0.01, 0.5, theory.separation(0.1, spectrum), spectrum)
        >>> print(f"{solution.tau:.12f} {solution.mean:.12f} {solution.decompose().calibration:.12f}")
        0.536794180136 0.484283886214 0.001524881186

    Source: Dobriban and Wager (2018); Berta et al. (2025), Remark 7.2.
    """
    return solve(RIDGE, regularization, ratio, separation, spectrum)


@in_float64
def solve_lda(regularization, ratio, separation, spectrum) -> Solution:
    r"""Limit of regularized linear discriminant analysis: w = (S + lambda I)^{-1} (mean_+ - mean_-) / 2.

    S is the pooled sample covariance. The data, the arguments, the shapes, errors and derivatives are those of
    `theory.solve_logistic`, tau that of `theory.solve_ridge`, and

        m = c^2 E[1 / (lambda + tau s)],
        v = (c^2 E[s / (lambda + tau s)^2] + r E[s^2 / (lambda + tau s)^2]) / (1 - r tau^2 E[s^2 / (lambda + tau s)^2]).

    The plug-in posterior is sigma(2 w.x); `Solution.scale` is 2. It is calibrated where v = m.

    Args:
        regularization: lambda >= 0; at 0 classical LDA for ratio < 1. For ratio > 1 the norm diverges: status
            AT_UPPER_BOUND with the alignment of the limit.
        ratio, separation, spectrum: as in `theory.solve_logistic`.

    Returns:
        `Solution`, float64.

    Examples:
        >>> import theory
        >>> spectrum = theory.BetaSpectrum(1.0, 1.0)
        >>> solution = theory.solve_lda(0.01, 0.5, theory.separation(0.1, spectrum), spectrum)
        >>> print(f"{solution.mean:.12f} {solution.variance:.12f} {solution.decompose().refinement:.12f}")
        1.749369372968 7.082333657267 0.514462180474

    Source: Dobriban and Wager (2018); Berta et al. (2025), Remark 7.2.
    """
    return solve(LDA, regularization, ratio, separation, spectrum)


def _sides(tau, lam, ratio, values, weights):
    """The equation as r E[lambda / (lambda + tau s)] + (1 - r)_+ = tau + (r - 1)_+.

    Written as tau (1 + r E[s / (lambda + tau s)]) = 1 it loses tau to rounding where tau is small, which is near r = 1
    and beyond. Both sides are sums of positive terms.
    """
    left = ratio * jnp.sum(weights * (lam / (lam + tau * values))) + jnp.maximum(1 - ratio, 0)
    return left, tau + jnp.maximum(ratio - 1, 0)


def _residual(unknowns, lam, ratio, signal, values, weights):
    left, right = _sides(jnp.exp(unknowns[0]), lam, ratio, values, weights)
    return (jnp.log(left) - jnp.log(right))[None]


def _linearize(unknowns, lam, ratio, signal, values, weights):
    tau = jnp.exp(unknowns[0])
    left, right = _sides(tau, lam, ratio, values, weights)
    inverse = 1 / (lam + tau * values)
    in_lam = ratio * jnp.sum(weights * (lam * inverse) * (tau * values * inverse)) / left
    return (jnp.log(left) - jnp.log(right))[None], (-in_lam - tau / right)[None, None], in_lam[None]


def _lda(unknowns, lam, ratio, signal, values, weights):
    tau = jnp.exp(unknowns[0])
    inverse = 1 / (lam + tau * values)
    share = values * inverse
    kappa = ratio * jnp.sum(weights * share)
    mean = signal * jnp.sum(weights * inverse)
    spread = jnp.sum(weights * share * inverse)
    # 1 - r tau^2 E[s^2 / (.)^2], by the equation of tau a sum of positive terms
    rest = tau * (1 + ratio * lam * spread)
    variance = (signal * spread + ratio * jnp.sum(weights * share**2)) / rest
    return Point(jnp.ones_like(tau), (1 + tau**2 * signal * spread) / rest, tau, kappa, mean, variance)


def _ridge(unknowns, lam, ratio, signal, values, weights):
    lda = _lda(unknowns, lam, ratio, signal, values, weights)
    factor = 1 / (1 + lda.kappa + lda.mean)
    return Point(factor, factor**2 * lda.gamma, lda.tau, lda.kappa, factor * lda.mean, factor**2 * lda.variance)


def _guess(unknowns, lam):
    """log(theta) of the interpolating limit, theta = tau / lambda."""
    return unknowns - jnp.log(lam)


def _limit_residual(unknowns, ratio, signal, values, weights):
    """E[1 / (1 + theta s)] = 1 - 1/r; without a root at r = 1."""
    theta = jnp.exp(unknowns[0])
    return jnp.log(jnp.sum(weights / (1 + theta * values)) * ratio / (ratio - 1))[None]


def _limit_moments(unknowns, ratio, signal, values, weights):
    """Mean, variance and alignment of the LDA direction times lambda; ridge divides it by 1 + its mean."""
    theta = jnp.exp(unknowns[0])
    inverse = 1 / (1 + theta * values)
    mean = signal * theta * jnp.sum(weights * inverse)
    spread = jnp.sum(weights * values * inverse**2)
    variance = theta * (signal * spread + ratio * jnp.sum(weights * (values * inverse) ** 2)) / (ratio * spread)
    return mean, variance, 2 * mean / jnp.sqrt(variance)


def _limit_lda(unknowns, *theta):
    mean, _, alignment = _limit_moments(unknowns, *theta)
    inf = jnp.full_like(mean, jnp.inf)
    return Point(jnp.ones_like(mean), inf, jnp.zeros_like(mean), inf, inf, inf), alignment


def _limit_ridge(unknowns, *theta):
    mean, variance, alignment = _limit_moments(unknowns, *theta)
    zero, inf = jnp.zeros_like(mean), jnp.full_like(mean, jnp.inf)
    return Point(zero, zero, zero, inf, mean / (1 + mean), variance / (1 + mean) ** 2), alignment


def _model(name, readout, limit_readout, limit_is_estimate):
    return Model(
        name=name,
        scale=2.0,
        start=(0.0,),
        far=(1.0, 1.0, 1.0),
        residual=_residual,
        linearize=_linearize,
        readout=readout,
        edge=lambda squared_rho: jnp.ones_like(squared_rho),
        limit_start=_guess,
        limit_residual=_limit_residual,
        limit_readout=limit_readout,
        limit_is_estimate=limit_is_estimate,
    )


RIDGE = _model("ridge", _ridge, _limit_ridge, True)
LDA = _model("lda", _lda, _limit_lda, False)
