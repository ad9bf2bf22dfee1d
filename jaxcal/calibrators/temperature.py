"""Temperature scaling: one number that makes probabilities sharper or softer and never changes the predicted class."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.temperature_log_loss import Optimum, minimize_log_loss
from jaxcal.calibrators.temperature_search import minimize_loss
from jaxcal.losses import ProperLoss, log_loss, mean_loss, require_loss
from jaxcal.solvers import log_softmax, scaled
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TemperatureFit(Fit):
    """A fitted temperature, or a stack of them. Calling it on logits gives calibrated log-probabilities.

    Attributes:
        inverse_temperature: u = 1/T in [0, inf), `(...)`; 0 makes every forecast uniform over the unmasked classes.
        risk: the minimized mean loss on the fitting data, `(...)`: the in-sample refinement.
        status: `jaxcal.Status` as int32, `(...)`; the bounds are those of u.
        num_steps: full passes over the data, int32 `(...)`.
        gradient_norm: |d risk / d log T| at the last point that was evaluated, `(...)`; the last step is taken without
            another pass, so that it bounds the gradient at the returned temperature.
    """

    inverse_temperature: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    @property
    def temperature(self) -> jax.Array:
        """T = 1/u, `(...)`; inf where u = 0."""
        u = self.inverse_temperature
        return jnp.where(u == 0, jnp.inf, 1 / jnp.where(u == 0, 1, u))

    def __call__(self, logits) -> jax.Array:
        """Calibrated log-probabilities log softmax(z / T).

        Args:
            logits: `(..., n, k)`, or `(..., k)` for a single fit; the batch shape of the fit broadcasts against the
                leading axes.

        Returns:
            Log-probabilities of the broadcast shape, in the dtype of the logits; rows sum to 1. NaN for invalid rows
            and failed lanes; an eager call raises `ValueError` if no lane is usable.
        """
        logits = checks.as_logits(logits)
        u = self.inverse_temperature
        checks.require_batch(u.shape, logits)
        result = _apply(u, logits)
        if not checks.is_traced(result):
            self.check_output(result, logits)
        return result


@jax.jit
def _apply(u, logits):
    z = logits.astype(checks.compute_dtype(logits))
    u = u.astype(z.dtype)
    return log_softmax(scaled(z, u[..., None] if u.ndim else u)).astype(logits.dtype)


def fit_temperature(logits, labels, *, weights=None, loss: ProperLoss = log_loss) -> TemperatureFit:
    r"""Temperature scaling: the T that minimizes a mean proper loss of softmax(z / T).

    min over u = 1/T >= 0 of  sum_i w_i loss(u z_i, y_i) / sum_i w_i

    The log loss is convex in u and solved to rounding in about four passes over the data, whatever the unit or offset
    of the logits. Other losses can have several minima (the Brier loss has two on simple data); the global one is
    returned, found on a grid over all gaps and refined.

    Args:
        logits: `(..., n, k)`, k >= 2, natural log scale, any finite offset a row, `-inf` on masked classes.
        labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`, non-negative; doubling a weight equals repeating the row, weight 0 removes it.
        loss: `jaxcal.log_loss`, `jaxcal.brier_loss`, ... (static under `jax.jit`).

    Returns:
        `TemperatureFit` over the broadcast of the leading axes. Special cases, flagged in `.status`:

        - logits that point away from the labels (`AT_LOWER_BOUND`): u = 0, T = inf, uniform forecasts; beside finite
          masks near the largest float a u > 0 under which these stay masks;
        - every label is an arg max, "100 % accuracy" (`AT_UPPER_BOUND`): the smallest u whose loss is within one
          rounding of its infimum, so that everything stays finite; `jaxcal.laplace` guards the forecasts;
        - every row constant (`NOT_IDENTIFIED`): T = 1;
        - a label on a class with logit `-inf` under the log loss (`IMPOSSIBLE_EVENT`): T NaN, risk inf;
        - NaN, +inf, a label out of range, bad weights (`INVALID_INPUT`): NaN.

    Raises:
        ValueError, TypeError: for shapes and dtypes; and, eagerly, `ValueError` naming the first bad row if no lane
            could be fitted.

    Differentiable in logits and weights (implicit function theorem: forward, reverse, second order); at a bound or when
    not identified the derivative of T is 0. Estimator of the best temperature: consistent, error O(1/sqrt n); its
    risk is optimistic by about 1/(2n). Cost: 3 to 4 log-loss passes; memory that of the logits and a few rows.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import jaxcal
        >>> z = 3.0 * jax.random.normal(jax.random.key(0), (2000, 5))
        >>> y = jax.random.categorical(jax.random.key(1), z / 1.5)
        >>> fit = jaxcal.fit_temperature(z, y)
        >>> round(float(fit.temperature), 1), jaxcal.Status(int(fit.status)).name
        (1.5, 'CONVERGED')
        >>> fit(z).shape
        (2000, 5)

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. Berta, Holzmueller, Jordan and Bach,
        "Rethinking Early Stopping: Refine, Then Calibrate", arXiv 2501.19195, eq. 3.
    """
    require_loss(loss)
    logits, labels, weights = prepare(logits, labels, weights, "fit_temperature")
    fit = _fit(loss, logits, labels, weights)
    if not checks.is_traced(fit):
        raise_if_failed(fit.status, logits, labels, weights, "fit_temperature")
    return fit


def prepare(logits, labels, weights, call: str):
    """Static checks of a multi-class data set."""
    logits = checks.as_logits(logits)
    checks.require_rows(logits, call)
    labels = checks.as_labels(labels, logits)
    return logits, labels, checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))


def raise_if_failed(status, logits, labels, weights, call: str) -> None:
    """For concrete results: raise, naming the first bad row, if the (only) lane or every lane failed on its input."""
    bad = np.asarray(status) >= Status.INVALID_INPUT
    checks.raise_if_unusable(bad, lambda: checks.explain_multiclass(logits, labels, weights, call=call))


@partial(jax.jit, static_argnums=0)
def _fit(loss, logits, labels, weights):
    return TemperatureFit(*optimum(loss, *aligned(logits, labels, weights)))


def aligned(logits, labels, weights):
    """Batch axes lined up by position, logits in their compute dtype."""
    ndim = max(a.ndim for a in (logits[..., 0], labels, weights) if a is not None)
    (logits,) = checks.align(ndim + 1, logits.astype(checks.compute_dtype(logits)))
    return logits, *checks.align(ndim, labels, weights)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def optimum(loss: ProperLoss, logits: jax.Array, labels: jax.Array, weights: jax.Array | None) -> Optimum:
    """The minimizing u and its risk, with exact derivatives of both to any order; arguments `aligned`."""
    minimize = minimize_log_loss if loss is log_loss else partial(minimize_loss, loss)
    return minimize(logits, labels, weights)


@optimum.defjvp
def _optimum_jvp(loss, primals, tangents):
    logits, labels, weights = primals
    logits_dot, _, weights_dot = tangents
    found = optimum(loss, logits, labels, weights)  # differentiable again: second order follows
    interior = found.status == Status.CONVERGED
    u = jnp.where(interior, found.inverse_temperature, jax.lax.stop_gradient(found.inverse_temperature))

    def objective(u, logits, weights):
        return mean_loss(loss, scaled(logits, u[..., None]), labels, weights)

    def slope(u, logits, weights):
        return jax.jvp(lambda v: objective(v, logits, weights), (u,), (jnp.ones_like(u),))[1]

    _, slope_dot = jax.jvp(partial(slope, u), (logits, weights), (logits_dot, weights_dot))
    _, curvature = jax.jvp(lambda v: slope(v, logits, weights), (u,), (jnp.ones_like(u),))
    # implicit function theorem where the optimum is a stationary point, 0 where it sits on a bound
    curvature = jnp.where(interior, jnp.where(curvature > 0, curvature, jnp.nan), 1)
    u_dot = jnp.where(interior, -slope_dot / curvature, 0)
    # envelope theorem: the optimum's own motion does not change the risk to first order
    _, risk_dot = jax.jvp(partial(objective, u), (logits, weights), (logits_dot, weights_dot))
    no_tangent = np.zeros(found.status.shape, jax.dtypes.float0)
    return found, Optimum(u_dot, risk_dot, no_tangent, no_tangent, jnp.zeros_like(found.gradient_norm))
