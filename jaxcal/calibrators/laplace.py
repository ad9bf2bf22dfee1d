"""Laplace smoothing: the guard against forecasts that are too certain because the calibration set was small."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.one_vs_rest import reject_binary
from jaxcal.calibrators.temperature import prepare
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LaplaceFit(Fit):
    """A fit whose forecasts are mixed with the uniform one.

    Attributes:
        fit: the fitted calibrator.
        num_samples: n, the size of the calibration set (sum of its weights), `(...)`.
        status: that of `fit`.
    """

    fit: Any
    num_samples: jax.Array
    status: jax.Array

    def __call__(self, logits) -> jax.Array:
        """Smoothed log-probabilities log(n/(n+1) p + 1/((n+1) k)), `(..., n, k)`; no class has probability 0."""
        return _smoothed(self.fit(logits), self.num_samples)


@jax.jit
def _smoothed(log_p, n):
    work = log_p.astype(checks.compute_dtype(log_p))
    n = n.astype(work.dtype)
    n = n[..., None, None] if n.ndim else n
    kept, uniform = -jnp.log1p(1 / n), -jnp.log1p(n) - math.log(work.shape[-1])
    return jnp.logaddexp(work + kept, uniform.astype(work.dtype)).astype(log_p.dtype)


def laplace(calibrator: Callable) -> Callable:
    """Smooth a calibrator: p' = n/(n+1) p + 1/(n+1) u, n the calibration set's size and u uniform over all k classes.

    Keeps the log loss finite when the calibration set was classified without error or a class is masked, at a price of
    order 1/n otherwise. The fit itself is unchanged.

    Args:
        calibrator: multi-class, `(logits, labels, *, weights=None) -> fit`.

    Returns:
        `calibrator(logits, labels, *, weights=None) -> LaplaceFit`; n is the sum of the weights.

    Differentiable where the calibrator is.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> z, y = jnp.array([[3.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
        >>> fit = jaxcal.laplace(jaxcal.fit_temperature)(z, y)
        >>> [f"{p:.3f}" for p in jnp.exp(fit(z))[0]]
        ['0.833', '0.167']

    References:
        Berta, Holzmueller, Jordan and Bach, arXiv 2501.19195, appendix D.
    """
    reject_binary(calibrator)

    def fit_laplace(logits, labels, *, weights=None) -> LaplaceFit:
        given = logits  # with the offsets of its rows, which some calibrators read
        logits, labels, weights = prepare(logits, labels, weights, "laplace")
        fit = calibrator(given, labels, weights=weights)
        n = (
            jnp.asarray(logits.shape[-2], checks.compute_dtype(logits))
            if weights is None
            else jnp.sum(weights, axis=-1)
        )
        status = jnp.asarray(getattr(fit, "status", Status.CONVERGED), jnp.int32)
        return LaplaceFit(fit, *jnp.broadcast_arrays(n, status))

    return fit_laplace
