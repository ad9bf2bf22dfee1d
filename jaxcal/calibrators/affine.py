"""What the affine calibrators share: how logits come in, how the fit is solved, how the map is applied."""

import abc
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.temperature import aligned, optimum
from jaxcal.losses import log_loss
from jaxcal.solvers import Own, Shared, class_losses, has_softmax, log_softmax, scaled, softmax_regression, total
from jaxcal.status import Status


class AffineFit(Fit, abc.ABC):
    """Base of the calibrators softmax(W x + b), x the logits or the log-probabilities `(..., n, k)`."""

    _as_logits = staticmethod(checks.as_logits)

    def __call__(self, logits) -> jax.Array:
        """Calibrated log-probabilities.

        Args:
            logits: `(..., n, k)`, or `(..., k)` for a single fit; the batch shape of the fit broadcasts against the
                leading axes.

        Returns:
            Log-probabilities of the broadcast shape, in the dtype of the logits; rows sum to 1. NaN for invalid rows
            and failed lanes; an eager call raises `ValueError` if no lane is usable.
        """
        logits = self._as_logits(logits)
        k, batch = self.bias.shape[-1], self.bias.shape[:-1]
        if logits.shape[-1] != k:
            raise ValueError(f"fitted for {k} classes, got logits of shape {logits.shape}")
        checks.require_batch(batch, logits)
        result = self._log_probabilities(logits)
        if not checks.is_traced(result):
            bad = np.isnan(np.asarray(result)).any(-1)
            checks.raise_if_unusable(bad.any(-1) if bad.ndim else bad, lambda: self._explain(logits))
        return result

    @abc.abstractmethod
    def _log_probabilities(self, logits) -> jax.Array:
        """The map, compiled."""

    def _explain(self, logits) -> str:
        self.check()
        return explain(logits, np.asarray(logits).argmax(-1), None, type(self).__name__)


def as_raw_logits(logits):
    """Logits as they are, for maps that read the offsets of their rows."""
    return checks.as_classes(logits, "logits")


class Rows(NamedTuple):
    """Rows of one lane in the dtype of the work; those that are absent or invalid hold 0 and weigh nothing."""

    logits: jax.Array  # (n, k)
    labels: jax.Array  # (n,)
    weights: jax.Array  # (n,), the largest is 1
    mass: jax.Array  # sum of the weights as they came
    ok: jax.Array  # whether the lane is valid
    impossible: jax.Array  # whether a label is masked


class AffineOptimum(NamedTuple):
    """Coefficients `(..., k, d)`, deviations from those of the start, and what is known of them."""

    coefficients: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array


def start(logits, labels, weights):
    """1/T of temperature scaling, `(...)`, where a fit begins whatever the unit of the logits; 1 for failed lanes."""
    found = optimum(log_loss, *aligned(logits, labels, weights))
    # at a bound, where it has derivative 0, it is a number like any other
    return jnp.where(found.status < Status.NOT_CONVERGED, found.inverse_temperature, 1)


def fit_lanes(features: Callable, penalty: Callable, logits, labels, weights, u=1, *, masks: bool) -> AffineOptimum:
    """The fits of all lanes, for the compiled part of a calibrator.

    Args:
        features: logits `(n, k)` of one lane, and which of them are masked, to features of `softmax_regression`.
        penalty: the number of rows, k and the dtype to the penalties `(k, d)`.
        logits, labels, weights: with batch axes that broadcast.
        u: `(...)`, the coefficients are deviations from those of u times the logits.
        masks: whether a class may have the logit -inf.
    """
    dtype = checks.compute_dtype(logits)
    if weights is None:
        weights = jnp.ones(logits.shape[-2], dtype)
    lane = partial(_fit_lane, features, penalty, masks)
    fit = jnp.vectorize(lane, signature="(n,k),(n),(n),()->(k,d),(),(),(),()")
    found = AffineOptimum(*fit(logits.astype(dtype), labels, weights, jnp.asarray(u, dtype)))
    mark = jnp.where(found.status < Status.NOT_CONVERGED, 1, jnp.nan).astype(dtype)
    return found._replace(coefficients=found.coefficients * mark[..., None, None], risk=found.risk * mark)


def _fit_lane(features, penalty, masks, logits, labels, weights, u):
    rows = _clean(logits, labels, weights, masks)
    k = logits.shape[-1]
    masked = rows.logits == -jnp.inf
    x = features(rows.logits, masked)
    base = scaled(rows.logits, u).T
    active = rows.ok & ~rows.impossible
    strength = penalty(jnp.where(active, rows.mass, 1), k, rows.logits.dtype)
    found = softmax_regression(base, x, rows.labels, rows.weights, strength, active)
    loss = class_losses(base + x.predict(found.coefficients), rows.labels)
    share = rows.weights / jnp.where(active, jnp.sum(rows.weights), 1)
    status = jnp.where(found.identified, Status.CONVERGED, Status.NOT_IDENTIFIED)
    status = jnp.where(found.unbounded, Status.AT_UPPER_BOUND, status)
    status = jnp.where(found.converged, status, Status.NOT_CONVERGED)
    status = jnp.where(rows.impossible, Status.IMPOSSIBLE_EVENT, status)
    status = jnp.where(rows.ok, status, Status.INVALID_INPUT).astype(jnp.int32)
    return found.coefficients, total(share * loss), status, found.num_steps, found.gradient_norm


def _clean(logits, labels, weights, masks) -> Rows:
    k = logits.shape[-1]
    readable = has_softmax(logits) if masks else jnp.all(jnp.isfinite(logits), axis=-1)
    valid = readable & (labels >= 0) & (labels < k)
    fine = jnp.all((weights >= 0) & (weights < jnp.inf)) & jnp.any(weights > 0)
    ok = fine & jnp.all(valid | (weights == 0))
    present = valid & (weights > 0) & (weights < jnp.inf)
    labels = jnp.where(present, labels, 0)
    logits = jnp.where(present[:, None], logits, 0)
    ok &= _in_range(logits)
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0] if masks else 0
    weights = jnp.where(present, weights, 0)
    mass = jnp.minimum(jnp.sum(weights), jnp.finfo(weights.dtype).max)
    unit = lax.stop_gradient(jnp.max(weights))  # of large ones sums overflow, and their inverses vanish
    return Rows(logits, labels, weights / jnp.where(unit > 0, unit, 1), mass, ok, ok & jnp.any(own == -jnp.inf))


def _in_range(logits):
    """Whether the squares of the logits neither overflow nor vanish, and have a few bits to spare."""
    limits = jnp.finfo(logits.dtype)
    largest = jnp.max(jnp.where(logits == -jnp.inf, 0, jnp.abs(logits)))
    least, most = 16 * limits.tiny**0.5, limits.max**0.5 / 16
    return (largest == 0) | ((largest >= least) & (largest <= most))


def shared(x):
    """Features of `softmax_regression` that all classes see, `(n, k)` and a constant."""
    return Shared(jnp.concatenate([x.T, jnp.ones_like(x.T[:1])]))


def own(x, masked):
    """For each class its own value, `(n, k)`, and a constant, absent where it is masked."""
    return Own(jnp.stack([jnp.where(masked, 0, x).T, jnp.where(masked, 0, jnp.ones_like(x)).T]))


def matrix_from(u, theta):
    """W, `(..., k, k)`, from its deviations from u I."""
    k = theta.shape[-2]
    return jnp.asarray(u, theta.dtype)[..., None, None] * jnp.eye(k, dtype=theta.dtype) + theta[..., :k]


def off_diagonal_penalty(off_diagonal: float, intercept: float) -> Callable:
    """Penalties of ODIR: the means of the squares off the diagonal and of the squared intercepts."""

    def penalty(n, k, dtype):
        del n
        matrix = jnp.where(jnp.eye(k, dtype=bool), 0, off_diagonal / (k * (k - 1)))
        return jnp.concatenate([matrix, jnp.full((k, 1), intercept / k)], axis=1).astype(dtype)

    return penalty


@partial(jax.jit, static_argnames="log")
def apply_matrix(matrix, bias, logits, *, log=False):
    """log softmax(W x + b), x the logits or their log-probabilities; NaN for rows with a masked class."""
    x = logits.astype(checks.compute_dtype(logits))
    usable = jnp.all(jnp.isfinite(x), axis=-1, keepdims=True)
    x = jnp.where(usable, x, 0)
    x = log_softmax(x) if log else x
    matrix, bias = matrix.astype(x.dtype), bias.astype(x.dtype)
    if x.ndim == 1:
        mapped = jnp.matmul(matrix, x, precision=lax.Precision.HIGHEST) + bias
    else:
        mapped = jnp.matmul(x, jnp.swapaxes(matrix, -1, -2), precision=lax.Precision.HIGHEST) + bias[..., None, :]
    return jnp.where(usable, log_softmax(mapped), jnp.nan).astype(logits.dtype)


@jax.jit
def apply_scale(scale, bias, logits):
    """log softmax(v z + b), classes that are masked staying so."""
    z = logits.astype(checks.compute_dtype(logits))
    if z.ndim > 1:
        scale, bias = scale[..., None, :], bias[..., None, :]
    masked = z == -jnp.inf
    mapped = scale.astype(z.dtype) * jnp.where(masked, 0, z) + bias.astype(z.dtype)
    return log_softmax(jnp.where(masked, -jnp.inf, mapped)).astype(logits.dtype)


def prepare_raw(logits, labels, weights, call: str):
    """Static checks of a multi-class data set whose logits are taken as they are, with the offsets of their rows."""
    logits = as_raw_logits(logits)
    if logits.ndim < 2:
        raise ValueError(f"{call} needs logits of shape (..., n, k), got {logits.shape}")
    labels = checks.as_labels(labels, logits)
    return logits, labels, checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))


def report(fit, logits, labels, weights, call: str):
    """`fit`, after an eager call whose every lane failed on its input has raised and named the row."""
    if not checks.is_traced(fit):
        failed = np.asarray(fit.status) >= Status.INVALID_INPUT
        checks.raise_if_unusable(failed, lambda: explain(logits, labels, weights, call))
    return fit


def explain(logits, labels, weights, call: str) -> str:
    """What is wrong with the data, for an error."""
    fault = checks.find_multiclass_fault(logits, labels, weights)
    if fault is not None:
        return f"{call}: {fault}"
    z = np.asarray(logits).astype(np.float64)
    used = True if weights is None else np.asarray(weights) > 0
    finite = np.abs(np.where(np.isfinite(z) & (used if weights is None else used[..., None]), z, 0))
    if not np.asarray(_in_range(jnp.asarray(finite, checks.compute_dtype(logits)))):
        return f"{call}: squares of logits overflow or vanish, the largest is {finite.max():.3g}; take another unit"
    masked = (z == -np.inf).any(-1) & ~(z == -np.inf).all(-1) & used
    if masked.any():
        where = checks.first(np.broadcast_to(z.min(-1), masked.shape), masked)
        return (
            f"{call}: a matrix needs finite logits, got {where}; raise zero probabilities by "
            "jaxcal.logits_from_probs(p, floor=...), or use fit_structured_matrix, which smooths them"
        )
    return checks.explain_multiclass(logits, labels, weights, call=call)


def require_penalty(value, name: str) -> float:
    """A static strength of a penalty."""
    if not isinstance(value, int | float | np.integer | np.floating) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
    return float(value)
