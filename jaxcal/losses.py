"""Proper losses: what a probability vector pays for what happened, and the entropy and divergence of each."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.solvers import log_normalizer, log_softmax, total


@dataclass(frozen=True)
class ProperLoss:
    """A proper loss l(p, y) with its entropy e(q) = l(q, q) and divergence d(p, q) = l(p, q) - l(q, q).

    Calling it on `(logits, labels)` gives the loss of each example, `(..., n)`: take a mean and it is a training
    objective. It holds functions only, is hashable, and may be a static argument of `jax.jit`.

    Attributes:
        name: for messages and tables.
    """

    name: str
    _per_example: Callable[[jax.Array, jax.Array], jax.Array]
    _entropy: Callable[[jax.Array], jax.Array]
    _divergence: Callable[[jax.Array, jax.Array], jax.Array]

    def __call__(self, logits, labels) -> jax.Array:
        """Loss of each example.

        Args:
            logits: `(..., k)`, natural log scale, any offset a row, `-inf` on a masked class.
            labels: integers `(...)` in [0, k).

        Returns:
            `(...)` in the dtype of the logits; `inf` where a strictly proper log-type loss meets an impossible event,
            NaN for invalid rows. An eager call without batch axes raises `ValueError` on the first invalid row.
        """
        logits = checks.as_logits(logits)
        labels = checks.as_labels(labels, logits)
        losses = _evaluate(self, logits, labels)
        if not checks.is_traced(losses):
            checks.raise_if_unusable(
                checks.lanes(np.isnan(losses)), lambda: checks.explain_multiclass(logits, labels, call=self.name)
            )
        return losses

    def entropy(self, log_probabilities) -> jax.Array:
        """e(q), the expected loss of the forecast q when q is the truth; `(..., k)` log-probabilities to `(...)`."""
        return _entropy(self, checks.as_classes(log_probabilities, "log_probabilities"))

    def divergence(self, forecast_log_probabilities, truth_log_probabilities) -> jax.Array:
        """d(p, q) >= 0, the expected loss that the forecast p adds when q is the truth; both `(..., k)`, log scale."""
        log_p = checks.as_classes(forecast_log_probabilities, "forecast_log_probabilities")
        log_q = checks.as_classes(truth_log_probabilities, "truth_log_probabilities")
        if log_p.shape[-1] != log_q.shape[-1]:
            raise ValueError(f"forecast and truth differ in the number of classes: {log_p.shape} and {log_q.shape}")
        return _divergence(self, log_p, log_q)

    def __repr__(self) -> str:
        return self.name


def per_example(loss: ProperLoss, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """`loss(logits, labels)` without checks of the arguments, in the dtype of the logits; invalid rows are NaN."""
    return jnp.where((labels >= 0) & (labels < logits.shape[-1]), loss._per_example(logits, labels), jnp.nan)


@jax.jit(static_argnums=0)
def _evaluate(loss, logits, labels):
    return per_example(loss, logits.astype(checks.compute_dtype(logits)), labels).astype(logits.dtype)


@jax.jit(static_argnums=0)
def _entropy(loss, log_q):
    return loss._entropy(log_q.astype(checks.compute_dtype(log_q))).astype(log_q.dtype)


@jax.jit(static_argnums=0)
def _divergence(loss, log_p, log_q):
    dtype = checks.compute_dtype(log_p, log_q)
    return loss._divergence(log_p.astype(dtype), log_q.astype(dtype)).astype(jnp.result_type(log_p, log_q))


def own_class(values: jax.Array, labels: jax.Array) -> jax.Array:
    """values[..., label]: `(..., k)` and `(...)` to `(...)`; batch axes of size 1 broadcast, labels are clipped."""
    labels = jnp.clip(labels, 0, values.shape[-1] - 1)
    ndim = max(values.ndim - 1, labels.ndim)
    values, labels = checks.align(ndim + 1, values, labels[..., None])
    return jnp.take_along_axis(values, labels, axis=-1)[..., 0]


def _is_own(shape_like: jax.Array, labels: jax.Array) -> jax.Array:
    return lax.broadcasted_iota(labels.dtype, shape_like.shape, shape_like.ndim - 1) == labels[..., None]


def _xlogy_sum(log_q, log_ratio):
    """sum q * log_ratio with absent classes (q = 0) contributing exactly 0 to value and derivative."""
    q = jnp.exp(log_q)
    present = q > 0
    return jnp.sum(
        jnp.where(present, q * jnp.where(present, log_ratio, 0), jnp.where(jnp.isnan(log_q), jnp.nan, 0)), -1
    )


def _safe(log_q):
    return jnp.where(log_q > -jnp.inf, log_q, 0)


def _log(logits, labels):
    # not own_class(log_softmax(z)): the gather would make the compiler store all log-probabilities
    peak = lax.stop_gradient(jnp.max(logits, axis=-1))
    return log_normalizer(logits - peak[..., None]) - (own_class(logits, labels) - peak)


def _log_entropy(log_q):
    return -_xlogy_sum(log_q, _safe(log_q))


def _log_divergence(log_p, log_q):
    impossible = log_p == -jnp.inf
    ratio = _safe(log_q) - jnp.where(impossible, 0, log_p)
    value = _xlogy_sum(log_q, jnp.where(impossible, jnp.inf, ratio))
    return jnp.where(jnp.isnan(log_p).any(-1), jnp.nan, value)


def _brier(logits, labels):
    log_p = log_softmax(logits)
    own = _is_own(log_p, labels)
    # 1 - p_y by expm1: the loss of a confident right row is not lost to cancellation
    others = jnp.sum(jnp.where(own, 0, jnp.exp(log_p)) ** 2, axis=-1)
    return others + jnp.expm1(own_class(log_p, labels)) ** 2


def _brier_entropy(log_q):
    q = jnp.exp(log_q)
    return -jnp.sum(q * jnp.expm1(log_q), axis=-1)


def _brier_divergence(log_p, log_q):
    return jnp.sum((jnp.exp(log_p) - jnp.exp(log_q)) ** 2, axis=-1)


def _half_brier(logits, labels):
    return 0.5 * _brier(logits, labels)


def _half_brier_entropy(log_q):
    return 0.5 * _brier_entropy(log_q)


def _half_brier_divergence(log_p, log_q):
    return 0.5 * _brier_divergence(log_p, log_q)


def _spherical(logits, labels):
    # p_y / |p| is the square root of the softmax of twice the logits
    return -jnp.expm1(0.5 * own_class(log_softmax(2 * logits), labels))


def _log_norm(log_q):
    return 0.5 * jax.nn.logsumexp(2 * log_q, axis=-1)


def _spherical_entropy(log_q):
    return -jnp.expm1(_log_norm(log_q))


def _spherical_divergence(log_p, log_q):
    unit_p = jnp.exp(log_p - _log_norm(log_p)[..., None])
    q = jnp.exp(log_q)
    norm_q = jnp.exp(_log_norm(log_q))
    # |q| - <q, u> = |q| |q/|q| - u|^2 / 2, a sum of squares instead of a difference
    return 0.5 * norm_q * jnp.sum((q / norm_q[..., None] - unit_p) ** 2, axis=-1)


log_loss = ProperLoss("log_loss", _log, _log_entropy, _log_divergence)
brier_loss = ProperLoss("brier_loss", _brier, _brier_entropy, _brier_divergence)

half_brier_loss = ProperLoss("half_brier_loss", _half_brier, _half_brier_entropy, _half_brier_divergence)

spherical_loss = ProperLoss("spherical_loss", _spherical, _spherical_entropy, _spherical_divergence)


def require_loss(loss) -> None:
    """Raise `TypeError` for what is not a `ProperLoss`."""
    if not isinstance(loss, ProperLoss):
        raise TypeError(
            f"loss must be a jaxcal.ProperLoss such as jaxcal.log_loss or jaxcal.proper_loss(entropy), got {loss!r}"
        )


def rescaled(weights: jax.Array) -> jax.Array:
    """Weights times a power of two that brings the largest near 1: means stay, and 1e-30 or 3e38 do not overflow."""
    exponent = jnp.frexp(lax.stop_gradient(jnp.max(weights, axis=-1, keepdims=True)))[1]
    return weights * jnp.ldexp(jnp.ones((), weights.dtype), -jnp.clip(exponent, -100, 125))


def weighted_mean(values: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Mean over the last axis; rows of weight 0 are absent in value and derivative; NaN for invalid weights."""
    if weights is None:
        return _poisoned(total(values) / values.shape[-1])
    present = weights > 0
    good = jnp.all((weights >= 0) & (weights < jnp.inf), axis=-1, keepdims=True)
    scaled = rescaled(weights)
    mass = total(jnp.where(good, jnp.where(present, scaled, 0), jnp.nan))
    sums = total(jnp.where(present, jnp.where(present, values, 0) * scaled, 0))
    return _poisoned(sums / jnp.where(mass == 0, jnp.nan, mass))


def _poisoned(values):
    """NaN values with NaN derivatives: a training step must not look healthy where the risk is NaN."""
    return values * jnp.where(jnp.isnan(values), jnp.nan, 1)


def risk(logits, labels, *, loss: ProperLoss = log_loss, weights=None) -> jax.Array:
    """Mean loss of a classifier, sum_i w_i l(z_i, y_i) / sum_i w_i.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        loss: any `ProperLoss`.
        weights: counts `(..., n)`, non-negative; a row of weight 0 is absent and may hold anything.

    Returns:
        `(...)`, the broadcast of the leading axes, in nats for the log loss; float32 for half-precision logits. Lanes
        with invalid rows or weights are NaN; an eager call raises `ValueError` if no lane is valid. `inf` if an
        event of weight > 0 has probability 0 under the log loss.

    Unbiased for the expected loss. Differentiable in logits and weights. Cost O(nk).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> round(float(jaxcal.risk(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([0, 0]))), 4)
        1.2201
    """
    require_loss(loss)
    logits = checks.as_logits(logits)
    if logits.ndim < 2:
        raise ValueError(f"risk needs logits of shape (..., n, k), got {logits.shape}; for one example call the loss")
    labels = checks.as_labels(labels, logits)
    weights = checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))
    value = _risk(loss, logits, labels, weights)
    if not checks.is_traced(value):
        checks.raise_if_unusable(
            np.isnan(value), lambda: checks.explain_multiclass(logits, labels, weights, call="risk")
        )
    return value


@jax.jit(static_argnums=0)
def _risk(loss, logits, labels, weights):
    return mean_loss(loss, logits.astype(checks.compute_dtype(logits)), labels, weights)


def mean_loss(loss: ProperLoss, logits: jax.Array, labels: jax.Array, weights: jax.Array | None) -> jax.Array:
    """`risk` for arrays that passed the static checks; logits in their compute dtype."""
    return weighted_mean(per_example(loss, hide_absent(logits, weights), labels), weights)


def hide_absent(logits: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Logits with 0 in the rows that no lane uses, so that what they hold reaches neither values nor derivatives."""
    if weights is None:
        return logits
    absent = weights == 0
    extra = absent.ndim - (logits.ndim - 1)
    absent = jnp.all(absent, axis=tuple(range(max(extra, 0))))
    offset = logits.ndim - 1 - absent.ndim
    shared = [i for i in range(absent.ndim - 1) if logits.shape[i + offset] == 1]
    absent = jnp.all(absent, axis=tuple(shared), keepdims=True)
    return jnp.where(absent[..., None], 0, logits)
