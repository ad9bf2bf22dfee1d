"""Regularized logistic regression in high dimension: the fixed point of Mai, Liao and Couillet (2019)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from theory import max_margin
from theory.continuation import Model, Point
from theory.fixed_point import solve
from theory.limits import threshold
from theory.max_margin import moments
from theory.precision import in_float64
from theory.solution import Solution

# 320 trapezoid nodes under the map of `_nodes` give the integrals to 1e-13 (against 20,000 nodes, 3,000 random points)
# for kappa from 1e-6 to 1e12 and standard deviations from 0.1 to 3e5; 256 nodes, or a stretch of 1.5 or 5, give 3e-11
# or worse.
_NODES = 320
_STRETCH = 3.0
# Twice the exponent at which an integrand is dropped: exp(-42.3) = 4e-19.
_REACH = 84.6
# The end points of the grid need no more than a few digits; Newton's method reaches them in six steps from the start
# below.
_PROX_STEPS = 6


@in_float64
def solve_logistic(regularization, ratio, separation, spectrum) -> Solution:
    r"""Limit of ridge-penalized logistic regression as n, p -> infinity with p / n -> ratio.

    Data: y = +-1 balanced, x | y ~ N(y mu, Sigma), eigenvalues of Sigma drawn from `spectrum`, mu_i independent of them
    with variance separation^2 / p. Estimator: min_w (1/n) sum log(1 + exp(-y_i w.x_i)) + (lambda/2) |w|^2, without
    intercept (scikit-learn: `C = 1 / (lambda n)`). With s(x) = sigma(-x) the fixed point reads

        kappa = r E[s / (lambda + tau s)],    m = eta c^2 E[1 / (lambda + tau s)],
        v = eta^2 c^2 E[s / (lambda + tau s)^2] + gamma r E[s^2 / (lambda + tau s)^2],
        eta = E s(x),    gamma = E s(x)^2,    tau = E[s s' / (1 + kappa s s')],    s' = 1 - s,

    where x - kappa s(x) = R ~ N(m, v). The expectations are integrals over x, so that nothing is solved inside them.

    Args:
        regularization: lambda >= 0. At 0 the maximum-likelihood estimate, which exists for ratios below
            `separability_threshold`; above it the status is AT_UPPER_BOUND and the values are the limits for lambda ->
            0. inf gives the limit of large lambda.
        ratio: r = p / n > 0.
        separation: c >= 0, from `theory.separation(bayes_error, spectrum)`.
        spectrum: `BetaSpectrum` or `DiscreteSpectrum`. All arguments broadcast.

    Returns:
        `Solution`, float64, in the broadcast shape. Invalid lanes are NaN with status INVALID_INPUT; without a valid
        lane an eager call raises `ValueError`. Differentiable in every argument to any order by the implicit function
        theorem. Cost: about 10 Newton steps of 20 microseconds a lane.

    Examples:
        >>> import jax, theory
        >>> spectrum = theory.BetaSpectrum(1.0, 1.0)
        >>> c = theory.separation(0.1, spectrum)
        >>> solution = theory.solve_logistic([1.0, 0.01], 0.5, c, spectrum)
        >>> print(solution.mean, solution.variance)
        [0.09655819 1.2605221 ] [0.04348727 5.22139006]
        >>> with jax.enable_x64(True):  # transformations need float64 around them
        ...     print(f"{jax.grad(lambda lam: theory.solve_logistic(lam, 0.5, c, spectrum).alignment)(0.01):.6f}")
        -1.518898

    Source: Mai, Liao and Couillet (2019); Berta et al. (2025), Section 7.
    """
    return solve(LOGISTIC, regularization, ratio, separation, spectrum)


def _residual(unknowns, lam, ratio, signal, values, weights):
    kappa, mean, variance = moments(unknowns, lam, ratio, signal, values, weights)
    return jnp.log(_expectations(kappa, mean, variance)) - unknowns


def _linearize(unknowns, lam, ratio, signal, values, weights):
    """The residual with its derivatives, written out: expectations share their sums."""
    eta, gamma, tau = jnp.exp(unknowns)
    inverse = 1 / (lam + tau * values)
    share = values * inverse
    a1, a2, b0, b1, b2, c0, c1, c3 = (
        jnp.sum(weights * f)
        for f in (
            inverse,
            inverse**2,
            share,
            share * inverse,
            share * inverse**2,
            share**2,
            share**2 * inverse,
            share**3,
        )
    )
    between = eta**2 * signal
    within = gamma * ratio
    kappa, mean, variance = ratio * b0, eta * signal * a1, between * b1 + within * c0
    # rows: kappa, mean, variance; columns: log eta, log gamma, log tau, log lambda
    zero = jnp.zeros_like(tau)
    inner = jnp.stack(
        [
            jnp.stack([zero, zero, -tau * ratio * c0, -lam * ratio * b1]),
            jnp.stack([mean, zero, -tau * eta * signal * b1, -lam * eta * signal * a2]),
            jnp.stack(
                [
                    2 * between * b1,
                    within * c0,
                    -2 * tau * (between * c1 + within * c3),
                    -2 * lam * (between * b2 + within * c1),
                ]
            ),
        ]
    )
    x, width = _nodes(kappa, mean, variance)
    s = jax.nn.sigmoid(-x)
    bend = s * jax.nn.sigmoid(x)
    z = (x - kappa * s - mean) / variance
    density = width * jnp.exp(-0.5 * variance * z * z)
    mass = s * density * (1 + kappa * bend)
    sums, outer = [], []
    for f, in_kappa in ((mass, s * bend * density), (s * mass, s * s * bend * density), (bend * density, None)):
        fz = f * z
        total = jnp.sum(f)
        pull = jnp.sum(fz * s) if in_kappa is None else jnp.sum(fz * s + in_kappa)
        sums.append(total)
        outer.append(jnp.stack([pull, jnp.sum(fz), 0.5 * jnp.sum(fz * z) - 0.5 * total / variance]) / total)
    value = jnp.log(jnp.stack(sums) / jnp.sqrt(2 * jnp.pi * variance)) - unknowns
    slopes = jnp.matmul(jnp.stack(outer), inner, precision="highest")
    return value, slopes[:, :3] - jnp.eye(3), slopes[:, 3]


def _readout(unknowns, lam, ratio, signal, values, weights):
    return Point(*jnp.exp(unknowns), *moments(unknowns, lam, ratio, signal, values, weights))


def _expectations(kappa, mean, variance):
    """E s(x), E s(x)^2 and E[s s' / (1 + kappa s s')] for x - kappa s(x) ~ N(mean, variance), integrated over x."""
    x, width = lax.stop_gradient(_nodes(kappa, mean, variance))
    s = jax.nn.sigmoid(-x)
    bend = s * jax.nn.sigmoid(x)
    density = width * jnp.exp(-0.5 * (x - kappa * s - mean) ** 2 / variance)
    mass = s * density * (1 + kappa * bend)
    sums = jnp.stack([jnp.sum(mass), jnp.sum(s * mass), jnp.sum(bend * density)])
    return sums / jnp.sqrt(2 * jnp.pi * variance)


def _nodes(kappa, mean, variance):
    """Nodes x and weights of the integrals, relative to their own mass, however small or far out that is.

    Right end: s decays like exp(-x) beyond x0 = log(1 + kappa), so s times the Gaussian peaks at mean - variance or x0.
    Left end: s^2 moves the peak to mean - 2 variance, but not below x = -3, where s is 1 to 5 %.
    The sinh is centred where s and kappa s bend, so that steps are 0.1 there and long in the tails.
    """
    bend = jnp.log1p(kappa)
    tilted = mean - variance
    right = tilted + jnp.sqrt(jnp.minimum(tilted - bend, 0) ** 2 + _REACH * variance)
    right = jnp.minimum(right, mean + jnp.sqrt(_REACH * variance))
    peak = jnp.minimum(mean, jnp.maximum(mean - 2 * variance, -3 - kappa * jax.nn.sigmoid(3.0)))
    left = mean - jnp.sqrt((mean - peak) ** 2 + _REACH * variance)
    left, right = _prox(left, kappa), _prox(right, kappa)
    place = jnp.clip(left + 1, 0, bend)
    low, high = (_STRETCH * jnp.arcsinh((end - place) / _STRETCH) for end in (left, right))
    u = low + (high - low) * np.linspace(0, 1, _NODES)
    return place + _STRETCH * jnp.sinh(u / _STRETCH), (high - low) / (_NODES - 1) * jnp.cosh(u / _STRETCH)


def _prox(t, kappa):
    """x with x - kappa s(x) = t, to a few digits: Newton in log(x - t), concave there, so monotone from above."""
    log_kappa = jnp.log(kappa)
    y = jnp.log(jnp.minimum(kappa * jax.nn.sigmoid(-t), jnp.log1p(kappa) + jnp.maximum(-t, 0)))
    for _ in range(_PROX_STEPS):
        x = t + jnp.exp(y)
        y = y + (log_kappa - jax.nn.softplus(x) - y) / (1 + jax.nn.sigmoid(x) * jnp.exp(y))
    return t + jnp.exp(y)


LOGISTIC = Model(
    name="logistic",
    scale=1.0,
    start=(np.log(0.5), np.log(0.25), np.log(0.25)),
    far=(0.5, 0.25, 0.25),
    residual=_residual,
    linearize=_linearize,
    readout=_readout,
    edge=threshold,
    limit_start=max_margin.guess,
    limit_residual=max_margin.residual,
    limit_readout=max_margin.readout,
    limit_is_estimate=False,
)
