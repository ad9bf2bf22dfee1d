"""Regularized logistic regression on simulated data: what the limits of `theory` look like at a finite size."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid

from jaxcal.losses import ProperLoss, log_loss, require_loss
from jaxcal.status import Status, check_status
from theory.gaussian import gaussian_decomposition
from theory.limits import separation
from theory.precision import in_float64, inside_trace
from theory.spectra import check_spectrum

# A fit has converged at a gradient norm of 1e-8. By strong convexity |w - w*| <= |gradient| / lambda, which for a tiny
# lambda would say nothing, so the relative error |gradient| / (lambda |w|) has to be small as well; 1e-13 is what
# rounding leaves of the gradient for spectra of order one.
_GRADIENT_NORM = 1e-8
_RELATIVE_ERROR = 1e-5
_ROUNDING = 1e-13
# 6 Newton steps are usual for lambda >= 1e-3, 31 the most that was seen down to lambda = 1e-12. A Newton system that
# 100 steps of conjugate gradients do not solve is nearly singular, and the next Newton step continues it.
_NEWTON_STEPS = 100
_LINEAR_STEPS = 100
# Newton's method in one variable from step length 1, which is within a factor of 2 of the best: converged after 4.
_SEARCH_STEPS = 4
# 32 GB; a few arrays of this size are held at a time.
_LARGEST = 4 * 10**9


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Simulation:
    """Simulated fits, one a seed and regularization; every field but the first is `(num_seeds, L)`.

    Attributes:
        regularizations: lambda, `(L,)`.
        mean: m = w.mu, so that the score of a new sample of class y is N(y m, v).
        variance: v = w' Sigma w.
        risk, calibration, refinement: expected losses of sigma(w.x) on the population, risk = calibration + refinement.
        error_rate: probability that the predicted class is wrong, Phi(-m / sqrt(v)).
        gradient_norm: 2-norm of the gradient of the objective at the returned weights, at most 1e-8 if converged.
        status: `jaxcal.Status` as int32. Fits that did not converge are NaN in all fields but `gradient_norm`.
    """

    regularizations: jax.Array
    mean: jax.Array
    variance: jax.Array
    risk: jax.Array
    calibration: jax.Array
    refinement: jax.Array
    error_rate: jax.Array
    gradient_norm: jax.Array
    status: jax.Array

    def check(self) -> None:
        """Raise `ValueError` with a written message if any fit failed."""
        check_status(self.status)


def simulate(
    key,
    *,
    num_samples: int,
    ratio: float,
    bayes_error: float,
    spectrum,
    regularizations,
    num_seeds: int = 50,
    design: str = "quantile",
    loss: ProperLoss = log_loss,
    on_seed: Callable[[int], object] | None = None,
) -> Simulation:
    r"""Draw data sets, fit regularized logistic regression and evaluate the fits on the population.

    y = +-1,  x | y ~ N(y mu, Sigma),  Sigma = diag(s_1, ..., s_p),  p = round(ratio * n),
    w = argmin (1/n) sum_i log(1 + exp(-y_i w.x_i)) + lambda/2 |w|^2   (scikit-learn: C = 1/(lambda n), no intercept)

    What a fit is worth on the population depends on m = w.mu and v = w' Sigma w alone and is computed exactly, by
    `theory.gaussian_decomposition(2 m / sqrt(v), sqrt(v))`. As n grows with p/n fixed, the values tend to the limits
    of `theory.learning_curve`.

    Args:
        key: `jax.random` key. Seed i uses `fold_in(key, i)`, so more seeds leave the first ones as they are.
        num_samples: n. The paper draws exactly n/2 samples a class; since only y_i x_i ~ N(mu, Sigma) enters the
            objective, the labels change nothing in law, none are drawn, and n may be odd.
        ratio: r = p/n > 0.
        bayes_error: e* in (0, 1/2], error rate of the best classifier. It sets the signal |mu|^2 ~ c^2, with
            c = -Phi^{-1}(e*) / sqrt(E[1/s]) and the expectation that of the spectrum, in both designs.
        spectrum: unbatched `theory.BetaSpectrum` or `theory.DiscreteSpectrum`, the law of s.
        regularizations: lambda > 0, `(L,)` in any order; all are fitted to the same data.
        num_seeds: independent data sets.
        design: "quantile": s_i are the quantiles of the spectrum at (i + 1/2)/p and mu_i = +-c/sqrt(p) with random
            signs, so that only the samples vary.
            "random", as in the paper: s_i from the spectrum and mu_i from N(0, c^2/p), anew in every seed. With
            eigenvalues down to 1e-3 the signal mu' Sigma^{-1} mu then varies by a quarter at p = 1000.
        loss: any proper loss of `jaxcal`, for the evaluation only; the fit minimizes the log loss.
        on_seed: called after every seed with the number of seeds done, for example to show progress.

    Returns:
        `Simulation`. Means over seeds estimate the limits with a bias of order 1/n; near the lambda where calibration
        vanishes its mean stays above by the variance between seeds. The quantiles miss the smallest eigenvalues, so
        that their E[1/s] is too small (by half a percent for 1e-3 + U(0, 1) at p = 1000). The fits see only
        1/(lambda + tau s), which is not affected: c from the quantiles would bias m by that half percent.

    An eager function with a loop over seeds, in float64 whatever the caller's setting, not differentiable. One data
    set is held at a time. Cost: 0.15 s a seed on two cores for n = 2000, p = 1000 and 20 lambdas >= 1e-3.

    Raises:
        ValueError, TypeError: for arguments out of range, batched spectra, and calls inside jit, vmap or grad.

    Examples:
        >>> import jax
        >>> import theory
        >>> fits = theory.simulate(jax.random.key(0), num_samples=200, ratio=0.5, bayes_error=0.1,
        ...                        spectrum=theory.BetaSpectrum(1.0, 1.0), regularizations=[1.0, 0.01], num_seeds=3)
        >>> fits.refinement.shape, bool(fits.gradient_norm.max() <= 1e-8)
        ((3, 2), True)

    Source: Berta et al. (2025), Section 7 and Figure 7.
    """
    if inside_trace(key, ratio, bayes_error, spectrum, regularizations):
        raise TypeError("simulate loops over seeds in Python and cannot run inside jit, vmap or grad: call it eagerly")
    if not isinstance(key, jax.Array):
        raise TypeError(f"key must be a JAX key, e.g. jax.random.key(0), got {key!r}")
    num_samples, num_seeds = _count(num_samples, "num_samples"), _count(num_seeds, "num_seeds")
    if not 0 < ratio < np.inf or round(ratio * num_samples) < 1:
        raise ValueError(f"ratio must be positive, finite and give at least one feature, got {ratio} * {num_samples}")
    check_spectrum(spectrum)
    c = separation(bayes_error, spectrum)
    if np.ndim(c):
        raise ValueError(f"simulate takes one Bayes error and one spectrum, got a batch of shape {np.shape(c)}")
    lam = np.asarray(regularizations, float)
    if lam.ndim != 1 or lam.size == 0 or not np.all((lam > 0) & (lam < np.inf)):
        raise ValueError(f"regularizations must be positive and finite, of shape (L,), got {regularizations}")
    if design not in ("quantile", "random"):
        raise ValueError(f'design must be "quantile" or "random", got {design!r}')
    require_loss(loss)
    p = round(ratio * num_samples)
    if num_samples * p > _LARGEST:
        raise ValueError(
            f"one data set of {num_samples} x {p} needs {8e-9 * num_samples * p:.0f} GB; at most 32 are allowed"
        )
    return _simulate(key, num_samples, p, float(c), spectrum, lam, num_seeds, design, loss, on_seed)


def _count(value, name: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    return count


@in_float64
def _simulate(key, n, p, c, spectrum, lam, num_seeds, design, loss, on_seed) -> Simulation:
    fits = []
    for seed in range(num_seeds):
        key_sigma, key_mu, key_samples = jax.random.split(jax.random.fold_in(key, seed), 3)
        mu = c / np.sqrt(p) * np.asarray(jax.random.normal(key_mu, (p,)))
        if design == "quantile":
            sigma, mu = spectrum.quantiles(p), np.copysign(c / np.sqrt(p), mu)
        else:
            sigma = np.asarray(spectrum.sample(key_sigma, (p,)))
        # fetched, which waits: with several seeds under way there would be several data sets in memory
        weights, gradient_norm, converged = jax.device_get(fit(draw(key_samples, sigma, mu, n), sigma, lam))
        fits.append((weights @ mu, weights**2 @ sigma, gradient_norm, converged))
        if on_seed is not None:
            on_seed(seed + 1)
    mean, variance, gradient_norm, converged = (np.stack(values) for values in zip(*fits, strict=True))
    m, v = np.where(converged, mean, 0), np.where(converged, variance, 1)
    parts = gaussian_decomposition(2 * m / np.sqrt(v), np.sqrt(v), loss=loss)
    values = m, v, parts.risk, parts.calibration, parts.refinement, parts.error_rate
    values = (np.where(converged, value, np.nan) for value in values)
    status = np.where(converged, Status.CONVERGED, Status.NOT_CONVERGED).astype(np.int32)
    return Simulation(*(jnp.asarray(value) for value in (lam, *values, gradient_norm, status)))


@partial(jax.jit, static_argnums=3)
def draw(key, sigma, mu, num_samples):
    """y_i x_i, independent N(mu, Sigma), `(n, p)`."""
    return mu + jnp.sqrt(sigma) * jax.random.normal(key, (num_samples, sigma.size))


@jax.jit
def fit(samples, sigma, lam):
    r"""w(lambda) = argmin (1/n) sum_i log(1 + exp(-w.x_i)) + lambda/2 |w|^2 for all lambdas at once: Newton's method.

    Side by side the products with the data are matrix products, six times faster than one lambda after another. The
    Hessian X' D X / n + lambda I is only ever applied, and in float32: twice as fast, and harmless, since it decides
    on the steps only and the gradients are float64. In this model its inverse resembles (tau Sigma + lambda I)^{-1},
    which is the preconditioner, as Sigma is known; the mean of D stands for tau.

    Args:
        samples: y_i x_i, `(n, p)`; sigma: diagonal of Sigma, `(p,)`; lam: `(L,)`. float64.

    Returns:
        weights: `(L, p)`.
        gradient_norm: `(L,)`, computed anew at these weights.
        converged: whether it is small enough, `(L,)`.
    """
    lam = lam[:, None]
    rounded = samples.astype(jnp.float32)

    def gradient(weights, margins):
        return lam * weights - sigmoid(-margins) @ samples / len(samples)

    def unfinished(state):
        step, weights, _, slope = state
        return (step < _NEWTON_STEPS) & jnp.any(_norm(slope) > _tolerance(weights, lam))

    def newton_step(state):
        step, weights, margins, slope = state
        size, tolerance = _norm(slope), _tolerance(weights, lam)
        active = size > tolerance
        curvature = sigmoid(margins) * sigmoid(-margins)
        preconditioner = 1 / (jnp.mean(curvature, axis=-1, keepdims=True) * sigma + lam)
        # a relative residual of sqrt |gradient| makes the steps converge with order 1.5
        accuracy = jnp.minimum(0.1, jnp.maximum(jnp.sqrt(size / first), 0.3 * tolerance / size))
        target = jnp.where(active, -slope / size, 0)  # of norm 1: gradients of 1e-13 squared are small for float32
        system = (a.astype(jnp.float32) for a in (curvature, preconditioner, lam, target, accuracy))
        direction = size * _conjugate_gradients(rounded, *system)
        along = direction @ samples.T
        length = _line_search(weights, margins, direction, along, lam)
        weights, margins = (jnp.where(active, a + length * b, a) for a, b in ((weights, direction), (margins, along)))
        return step + 1, weights, margins, gradient(weights, margins)

    weights, margins = jnp.zeros((lam.size, sigma.size)), jnp.zeros((lam.size, len(samples)))
    slope = gradient(weights, margins)
    first = _norm(slope)
    _, weights, _, _ = jax.lax.while_loop(unfinished, newton_step, (0, weights, margins, slope))
    reached = _norm(gradient(weights, weights @ samples.T))
    return weights, reached[:, 0], (reached <= _tolerance(weights, lam))[:, 0]


def _tolerance(weights, lam):
    return jnp.clip(_RELATIVE_ERROR * lam * _norm(weights), _ROUNDING, _GRADIENT_NORM)


def _conjugate_gradients(samples, curvature, preconditioner, lam, target, accuracy):
    """Solve (X' D X / n + lambda) x = target for all lambdas, to a residual norm of `accuracy`."""

    def unfinished(state):
        step, _, residual, _, _ = state
        return (step < _LINEAR_STEPS) & jnp.any(_norm(residual) > accuracy)

    def improve(state):
        step, solution, residual, direction, decrease = state
        active = _norm(residual) > accuracy
        image = (direction @ samples.T * curvature) @ samples / len(samples) + lam * direction
        length = jnp.where(active, decrease / _dot(direction, image), 0)
        solution, residual = solution + length * direction, residual - length * image
        scaled = preconditioner * residual
        following = _dot(residual, scaled)
        direction = jnp.where(active, scaled + following / decrease * direction, direction)
        return step + 1, solution, residual, direction, jnp.where(active, following, decrease)

    scaled = preconditioner * target
    start = (0, jnp.zeros_like(target), target, scaled, _dot(target, scaled))
    with jax.default_matmul_precision("highest"):  # accelerators would round float32 to fewer digits
        return jax.lax.while_loop(unfinished, improve, start)[1]


def _line_search(weights, margins, direction, along, lam):
    """The step length that minimizes the objective along the direction, from margins alone."""
    linear, quadratic = lam * _dot(weights, direction), lam * _dot(direction, direction)

    def improve(_, length):
        miss = sigmoid(-margins - length * along)
        slope = linear + quadratic * length - jnp.mean(miss * along, axis=-1, keepdims=True)
        curvature = quadratic + jnp.mean(miss * (1 - miss) * along**2, axis=-1, keepdims=True)
        return jnp.clip(length - slope / curvature, length / 4, 4 * length)

    return jax.lax.fori_loop(0, _SEARCH_STEPS, improve, jnp.ones_like(linear))


def _norm(a):
    return jnp.linalg.norm(a, axis=-1, keepdims=True)


def _dot(a, b):
    return jnp.sum(a * b, axis=-1, keepdims=True)
