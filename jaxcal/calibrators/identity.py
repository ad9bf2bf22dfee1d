"""No calibration, as a calibrator: what the others are compared with."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.temperature import aligned, prepare, raise_if_failed
from jaxcal.losses import half_brier_loss, mean_loss
from jaxcal.solvers import log_softmax
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IdentityFit(Fit):
    """Forecasts as they are. Calling it on logits gives their log-probabilities.

    Attributes:
        status: `jaxcal.Status` as int32, `(...)`: CONVERGED, or INVALID_INPUT for invalid data.
    """

    status: jax.Array

    def __call__(self, logits) -> jax.Array:
        """Log-probabilities log softmax(z), `(..., n, k)`; NaN for invalid rows and failed lanes.

        Args:
            logits: `(..., n, k)`, or `(..., k)` for a single fit; the batch shape of the fit broadcasts against the
                leading axes. An eager call raises `ValueError` if no lane is usable.
        """
        logits = checks.as_logits(logits)
        checks.require_batch(jnp.shape(self.status), logits)
        result = _apply(self.status, logits)
        if not checks.is_traced(result):
            self.check_output(result, logits)
        return result


@jax.jit
def _apply(status, logits):
    failed = jnp.asarray(status) >= Status.NOT_CONVERGED
    log_p = log_softmax(logits.astype(checks.compute_dtype(logits)))
    return jnp.where(failed[..., None, None] if failed.ndim else failed, jnp.nan, log_p).astype(logits.dtype)


def fit_identity(logits, labels, *, weights=None) -> IdentityFit:
    """No calibration: log softmax(z), whatever the labels say.

    For where a calibrator is asked for and leaving the forecasts alone is one of the choices, as in
    `jaxcal.select_calibrator`.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`.

    Returns:
        `IdentityFit` over the broadcast of the leading axes. INVALID_INPUT, NaN, for invalid logits, labels and
        weights, as of any calibrator; an eager call raises `ValueError` if no lane is usable. A label on a masked class
        is valid: the map exists, although its log loss is infinite.

    Cost: one pass, which checks the data.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> z = jnp.array([[2.0, 0.0], [1.0, 0.0]])
        >>> fit = jaxcal.fit_identity(z, jnp.array([0, 1]))
        >>> [f"{p:.3f}" for p in jnp.exp(fit(z))[0]]
        ['0.881', '0.119']
    """
    logits, labels, weights = prepare(logits, labels, weights, "fit_identity")
    fit = _fit(logits, labels, weights)
    if not checks.is_traced(fit):
        raise_if_failed(fit.status, logits, labels, weights, "fit_identity")
    return fit


@jax.jit
def _fit(logits, labels, weights):
    # a bounded loss is NaN for invalid data only
    invalid = jnp.isnan(mean_loss(half_brier_loss, *aligned(logits, labels, weights)))
    return IdentityFit(jnp.where(invalid, Status.INVALID_INPUT, Status.CONVERGED).astype(jnp.int32))
