"""Ensemble temperature scaling: the scaled forecast, the original one and the uniform one, mixed."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.temperature import TemperatureFit, aligned, optimum, prepare, raise_if_failed
from jaxcal.losses import hide_absent, log_loss, per_example, weighted_mean
from jaxcal.solvers import log_mixture, log_softmax, mixture_weights, scaled
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EnsembleTemperatureFit(Fit):
    """p' = w_1 softmax(z / T) + w_2 softmax(z) + w_3 / k. Calling it on logits gives log p'.

    Attributes:
        fit: the `TemperatureFit` of the first component.
        mixture: w, `(..., 3)`, sum 1.
        risk: the minimized mean log loss, `(...)`; never above that of `fit`.
        gap: the risk is at most this far above the minimum over w, `(...)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: Newton steps for w, int32 `(...)`.
    """

    fit: TemperatureFit
    mixture: jax.Array
    risk: jax.Array
    gap: jax.Array
    status: jax.Array
    num_steps: jax.Array

    @property
    def temperature(self) -> jax.Array:
        """T of the first component, `(...)`."""
        return self.fit.temperature

    def __call__(self, logits) -> jax.Array:
        """Calibrated log-probabilities.

        Args:
            logits: `(..., n, k)`, or `(..., k)` for a single fit; the batch shape of the fit broadcasts against the
                leading axes.

        Returns:
            Log-probabilities of the broadcast shape, in the dtype of the logits; a masked class has w_3 / k. NaN for
            invalid rows and failed lanes; an eager call raises `ValueError` if no lane is usable.
        """
        logits = checks.as_logits(logits)
        if checks.is_traced(self, logits):
            return _apply(self.mixture, self.fit(logits), logits)
        self._raise_if_all_failed()
        result = _apply(self.mixture, self.fit(logits), logits)
        self.check_output(result, logits)
        return result

    def _raise_if_all_failed(self):
        if bool(jnp.all(self.status >= Status.NOT_CONVERGED)):
            self.check()


@jax.jit
def _apply(mixture, log_scaled, logits):
    dtype = checks.compute_dtype(logits)
    log_p = log_softmax(logits.astype(dtype))
    parts = jnp.broadcast_arrays(log_scaled.astype(dtype), log_p, -jnp.log(jnp.asarray(log_p.shape[-1], dtype)))
    w = mixture.astype(dtype)
    result = log_mixture(jnp.stack(parts, axis=-1), w[..., None, None, :] if w.ndim > 1 else w)
    broken = jnp.any(jnp.isnan(parts[0] + parts[1]), axis=-1, keepdims=True)
    broken = broken | jnp.isnan(w[..., None, None, 0] if w.ndim > 1 else w[0])
    return jnp.where(broken, jnp.nan, result).astype(logits.dtype)


def fit_ensemble_temperature(logits, labels, *, weights=None) -> EnsembleTemperatureFit:
    r"""Ensemble temperature scaling (Mix-n-Match): temperature scaling mixed with no change and with no information.

    p' = w_1 softmax(z / T) + w_2 softmax(z) + w_3 u,   w >= 0, w_1 + w_2 + w_3 = 1, u = 1/k for all k classes

    T is that of `fit_temperature`; then w minimizes the mean log loss, a convex problem that is solved to rounding. The
    order of the classes is kept (w_3 = 1, where the logits carry no information, makes them equal).

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`.

    Returns:
        `EnsembleTemperatureFit` over the broadcast of the leading axes. The uniform part covers masked classes, too, as
        in `jaxcal.laplace`. AT_LOWER_BOUND and AT_UPPER_BOUND are those of the temperature, and w is optimal for it.
        NOT_IDENTIFIED where several w give the same risk, as for T = 1. IMPOSSIBLE_EVENT, NaN, for a label on a masked
        class, where no temperature exists; INVALID_INPUT, NaN, for invalid logits, labels and weights; an eager call
        raises `ValueError` if no lane is usable.

    Consistent for the best w at that T. Its risk is optimistic by at most about 3/(2n): three parameters. Of the
    original authors' code, which minimizes the squared error for T in [0.05, 5] and for w, it differs by the loss.
    Differentiable in logits and weights (implicit function theorem); a component of weight 0 has derivative 0. Cost:
    that of `fit_temperature` and about 8 passes over three numbers a row.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> z = 2 * rng.standard_normal((4000, 3)).astype("float32")
        >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
        >>> y[:800] = rng.integers(0, 3, 800)  # a fifth of the labels is noise
        >>> fit = jaxcal.fit_ensemble_temperature(z, y)
        >>> fit.mixture.shape, bool(fit.risk < fit.fit.risk)
        ((3,), True)

    References:
        Zhang, Kailkhura and Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep
        Learning", ICML 2020.
    """
    logits, labels, weights = prepare(logits, labels, weights, "fit_ensemble_temperature")
    fit = _fit(logits, labels, weights)
    if not checks.is_traced(fit):
        raise_if_failed(fit.status, logits, labels, weights, "fit_ensemble_temperature")
    return fit


@jax.jit
def _fit(logits, labels, weights):
    logits, labels, weights = aligned(logits, labels, weights)
    fit = TemperatureFit(*optimum(log_loss, logits, labels, weights))
    ok = fit.status < Status.NOT_CONVERGED
    logits = hide_absent(logits, weights)
    u = jnp.where(ok, fit.inverse_temperature, 1)[..., None]
    mixed = -per_example(log_loss, scaled(logits, u), labels)
    original = -per_example(log_loss, logits, labels)
    density = jnp.stack(jnp.broadcast_arrays(mixed, original, -math.log(logits.shape[-1])), axis=-1)
    counts = jnp.ones(density.shape[-2:-1], density.dtype) if weights is None else weights
    counts = jnp.where(ok[..., None] & (counts > 0), counts, 0)
    density = jnp.where((counts > 0)[..., None], density, 0)

    found = mixture_weights(density, counts, jnp.asarray([1, 0, 0], density.dtype))
    status = jnp.where(found.identified | (fit.status != Status.CONVERGED), fit.status, Status.NOT_IDENTIFIED)
    status = jnp.where(found.converged | ~ok, status, Status.NOT_CONVERGED)
    mark = jnp.where(status < Status.NOT_CONVERGED, 1, jnp.nan).astype(density.dtype)
    risk = -weighted_mean(log_mixture(density, found.weights[..., None, :]), counts)
    risk = jnp.where(status == Status.IMPOSSIBLE_EVENT, jnp.inf, risk * mark)
    mixture = found.weights * mark[..., None]
    return EnsembleTemperatureFit(fit, mixture, risk, found.gap * mark, status.astype(jnp.int32), found.num_steps)
