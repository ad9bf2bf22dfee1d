"""Calibration error in any Lp norm, from how far a fitted recalibration moves the forecasts in the right direction."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators import fit_temperature
from jaxcal.calibrators.temperature import aligned, prepare
from jaxcal.cross_fit import cross_fit
from jaxcal.losses import weighted_mean
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import has_softmax, log_softmax

_NO_BOOTSTRAP = "copies of a row are on both sides of a split; take the calibration of decompose with method='centred'"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConfidenceError:
    """Calibration error of the predicted class in two parts; arrays `(...)`.

    Attributes:
        error: estimate of E |f - P(correct | f)|, f the confidence; the sum of the two parts.
        over_confidence: the part where f is too far from 1/2.
        under_confidence: the part where f is too close to 1/2.
    """

    error: jax.Array
    over_confidence: jax.Array
    under_confidence: jax.Array


@without_bootstrap(_NO_BOOTSTRAP)
def variational_calibration_error(
    logits, labels, *, norm: float = 1.0, calibrator: Callable = fit_temperature, folds: int = 5, key, weights=None
) -> jax.Array:
    r"""Calibration error E ||f - E[Y | f]||_p of the whole probability vector, from below.

    With f the forecasts, Y the one-hot labels and g the out-of-fold forecasts of a calibrator,

    CE_p = (1/n) sum_i <s_i, Y_i - f_i>,   s_i the gradient of ||.||_p at g_i - f_i (0 where g_i = f_i),

    which is how much g lowers the proper loss -||g - f||_p - <s, Y - g>, whose infimum is -E ||f - E[Y | f]||_p.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        norm: p >= 1, `math.inf` allowed, static. At p = inf the first of the largest coordinates counts.
        calibrator: called as by `jaxcal.cross_fit`. The better it finds E[Y | f], the tighter the bound; no g makes the
            mean of the estimate larger than the calibration error.
        folds: number of folds of the cross-fitting, static; key: JAX random key of the split.
        weights: counts `(..., n)`.

    Returns:
        `(...)`, possibly negative, float32 for half-precision logits. Invalid lanes are NaN; an eager call raises
        `ValueError` if no lane is usable.

    Its mean is a lower bound of the calibration error for every n and calibrator, tight at g = E[Y | f]: biased
    downwards. For two classes it is 2 (p = 1), sqrt(2) (p = 2) or 1 (p = inf) times the error of the event. Bootstrap
    intervals by counts would put copies of a row into both sides of a split. Differentiable in logits and weights with
    the directions s held fixed. Cost: that of `jaxcal.cross_fit`.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = 2.0 * rng.standard_normal((20_000, 3))
        >>> y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=-1)  # the law is softmax(z / 2)
        >>> print(f"{jaxcal.variational_calibration_error(z, y, key=jax.random.key(2)):.2f}")  # exactly: 0.292
        0.29

    References:
        Braun et al., "Variational calibration errors", 2026.
    """
    if not checks.is_number(norm) or not norm >= 1:
        raise ValueError(f"norm must be a number >= 1, got {norm!r}")
    logits, labels, weights = prepare(logits, labels, weights, "variational_calibration_error")
    mapped = cross_fit(calibrator, logits, labels, folds=folds, key=key, weights=weights)
    return _vector_error(logits, labels, weights, mapped, float(norm))


@without_bootstrap(_NO_BOOTSTRAP)
def variational_confidence_error(
    logits, labels, *, calibrator: Callable = fit_temperature, folds: int = 5, key, weights=None
) -> ConfidenceError:
    r"""Calibration error of the confidence from below, E |f - P(correct | f)|, in an over- and an under-confident part.

    f is the probability of the predicted class, C whether it was right, g the out-of-fold probability of that class:
    error = (1/n) sum_i sign(g_i - f_i) (C_i - f_i). The over-confident part counts the rows that g moves towards 1/2
    (or beyond), the under-confident part those that it moves away, also from f = 1/2.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        calibrator, folds, key: as for `variational_calibration_error`.
        weights: counts `(..., n)`.

    Returns:
        `ConfidenceError`, arrays `(...)`, possibly negative. Invalid lanes are NaN; an eager call raises `ValueError`
        if no lane is usable.

    Bias, derivatives and cost as for `variational_calibration_error`.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = 2.0 * rng.standard_normal((20_000, 3))
        >>> y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=-1)  # the law is softmax(z / 2)
        >>> found = jaxcal.variational_confidence_error(z, y, key=jax.random.key(2))
        >>> print(f"{found.over_confidence:.2f} {found.under_confidence:.2f}")
        0.14 0.01

    References:
        Braun et al., "Variational calibration errors", 2026.
    """
    logits, labels, weights = prepare(logits, labels, weights, "variational_confidence_error")
    mapped = cross_fit(calibrator, logits, labels, folds=folds, key=key, weights=weights)
    return _confidence_error(logits, labels, weights, mapped)


def _directions(change, norm):
    """Gradient of the norm at `change`, `(..., k)`; 0 at 0."""
    size = jnp.max(jnp.abs(change), axis=-1, keepdims=True)
    unit = change / jnp.where(size > 0, size, 1)
    if math.isinf(norm):
        first = jnp.argmax(jnp.abs(unit), axis=-1)
        return jnp.sign(unit) * (jnp.arange(change.shape[-1]) == first[..., None])
    power = jnp.where(unit == 0, 0, jnp.abs(jnp.where(unit == 0, 1, unit)) ** (norm - 1))
    length = jnp.sum(jnp.abs(unit) ** norm, axis=-1, keepdims=True) ** (1 - 1 / norm)
    return jnp.sign(unit) * power / jnp.where(size > 0, length, 1)


def _pair(logits, labels, weights, mapped):
    """Forecasts and recalibrated ones, labels and weights; NaN in rows that hold no forecast."""
    z, y, w = aligned(logits, labels, weights)
    usable = has_softmax(z)[..., None]
    f = jnp.where(usable, jnp.exp(log_softmax(jnp.where(usable, z, 0))), jnp.nan)
    g = jnp.exp(aligned(mapped, labels, weights)[0].astype(z.dtype))
    f = jnp.where((y[..., None] >= 0) & (y[..., None] < z.shape[-1]), f, jnp.nan)
    return f, jax.lax.stop_gradient(g), y, w


@partial(jax.jit, static_argnums=4)
def _vector_error(logits, labels, weights, mapped, norm):
    f, g, y, w = _pair(logits, labels, weights, mapped)
    s = _directions(jax.lax.stop_gradient(g - f), norm)
    own = jnp.take_along_axis(s, jnp.clip(y, 0, f.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return weighted_mean(own - jnp.sum(s * f, axis=-1), w)


@jax.jit
def _confidence_error(logits, labels, weights, mapped):
    f, g, y, w = _pair(logits, labels, weights, mapped)
    top = jnp.argmax(aligned(logits, labels, weights)[0], axis=-1, keepdims=True)  # also where exp rounds to a tie
    f, g = (jnp.take_along_axis(a, top, axis=-1)[..., 0] for a in (f, g))
    term = jax.lax.stop_gradient(jnp.sign(g - f)) * ((top[..., 0] == y) - f)
    over = (f - 0.5) * (g - f) < 0
    return ConfidenceError(
        *(weighted_mean(t, w) for t in (term, jnp.where(over, term, 0 * f), jnp.where(over, 0 * f, term)))
    )
