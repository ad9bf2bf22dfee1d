"""A multi-class calibrator from a binary one: calibrate each class against the rest, then renormalize."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.temperature import prepare
from jaxcal.losses import hide_absent
from jaxcal.solvers import log_softmax, shifted
from jaxcal.status import Status


def binary_calibrator(fit_binary: Callable) -> Callable:
    """Mark a function `(score, outcomes, *, weights)` as binary, so that multi-class callers can name the remedy."""
    fit_binary.is_binary = True
    return fit_binary


def reject_binary(calibrator: Callable) -> None:
    """Raise `TypeError` for a bare binary calibrator where a multi-class one is called."""
    bare = calibrator
    while isinstance(bare, partial):
        bare = bare.func
    if getattr(bare, "is_binary", False):
        name = getattr(bare, "__name__", repr(bare))
        raise TypeError(f"{name} calibrates binary scores; pass jaxcal.one_vs_rest({name}) for logits (..., n, k)")
    if not callable(calibrator):
        raise TypeError(f"calibrator must be a function (logits, labels, *, weights), got {type(calibrator).__name__}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneVsRestFit(Fit):
    """Binary fits, one a class (a single one for k = 2); called on logits, gives log-probabilities.

    Attributes:
        fit: the binary fits, batch shape `(..., k)`, or `(...)` for k = 2.
        status: worst `jaxcal.Status` over the classes, int32 `(...)`.
        num_classes: k, static.
    """

    fit: Any
    status: jax.Array
    num_classes: int = jax.tree.static()

    def __call__(self, logits) -> jax.Array:
        """Calibrated log-probabilities `(..., n, k)`; uniform where every class was calibrated to probability 0."""
        logits = checks.as_logits(logits)
        if logits.shape[-1] != self.num_classes:
            raise ValueError(f"fitted for {self.num_classes} classes, got logits of shape {logits.shape}")
        if logits.ndim == 1:
            return self(logits[None])[..., 0, :]
        if self.num_classes == 2:
            result = self.fit.log_probabilities(difference(logits))
        else:
            result = _combined(self.fit.log_probabilities(_against_rest(logits)))
        result = result.astype(logits.dtype)
        if not checks.is_traced(result):
            self.check_output(result, logits)
        return result


def one_vs_rest(fit_binary: Callable) -> Callable:
    """Turn a binary calibrator into a multi-class one.

    For k = 2 it is one fit on the score z1 - z0. For k > 2 class c is fitted on its log-odds log p_c - log(1 - p_c)
    against the outcome y = c, all classes in one stacked fit, and the k probabilities are divided by their sum.

    Args:
        fit_binary: `(score, outcomes, *, weights=None)`, both `(..., n)`, returning a fit with
            `log_probabilities(score) -> (..., n, 2)`. Bind options with `functools.partial`.

    Returns:
        `calibrator(logits, labels, *, weights=None) -> OneVsRestFit`.

    Differentiable where the binary calibrator is. Cost: k binary fits.

    Examples:
        >>> import jaxcal
        >>> jaxcal.one_vs_rest(lambda score, outcomes, *, weights=None: None).__name__
        'fit_one_vs_rest'

    References:
        Zadrozny and Elkan, "Transforming classifier scores into accurate multiclass probability estimates", KDD 2002.
    """
    if not callable(fit_binary):
        raise TypeError(f"fit_binary must be a function (score, outcomes, *, weights), got {type(fit_binary).__name__}")

    def fit_one_vs_rest(logits, labels, *, weights=None) -> OneVsRestFit:
        logits, labels, given = prepare(logits, labels, weights, "one_vs_rest")
        score, outcomes, weights = _events(logits, labels, given)
        fit = fit_binary(score, outcomes, weights=weights)
        status = jnp.asarray(getattr(fit, "status", Status.CONVERGED), jnp.int32)
        k = logits.shape[-1]
        status = jnp.max(status, axis=-1) if k > 2 and status.ndim else status
        raise_if_invalid(status, logits, labels, given, "one_vs_rest")
        return OneVsRestFit(fit, status, k)

    return fit_one_vs_rest


def raise_if_invalid(status, logits, labels, weights, call: str) -> None:
    """After an eager fit of binary events, of which some may be invalid: an error that names the row."""
    if not checks.is_traced(status):
        failed = np.asarray(status) >= Status.INVALID_INPUT
        checks.raise_if_unusable(failed, lambda: _explain(logits, labels, weights, call))


def _explain(logits, labels, weights, call: str) -> str:
    if checks.find_multiclass_fault(logits, labels, weights) is None and np.isneginf(np.asarray(logits)).any():
        return (
            f"{call}: masked classes make infinite scores, which this calibrator refuses; raise zero probabilities by "
            "jaxcal.logits_from_probs(p, floor=...)"
        )
    sentence = checks.explain_multiclass(logits, labels, weights, call=call)
    return sentence.removesuffix(" or smooth with jaxcal.laplace")  # which comes after the fit


@jax.jit
def _events(logits, labels, weights):
    """Score, outcomes and weights of one binary event a class, `(..., k, n)`, or of the only one for k = 2."""
    k = logits.shape[-1]
    logits = hide_absent(logits, weights)
    known = (labels >= 0) & (labels < k)
    labels = jnp.where(known, labels, jnp.nan).astype(checks.compute_dtype(logits))  # no outcome for an unknown class
    if k == 2:
        return difference(logits), labels, weights
    each = lambda a: a[..., None, :]  # the axis of the classes, last of the batch axes  # noqa: E731
    outcomes = jnp.where(each(known), each(labels) == jnp.arange(k)[:, None], jnp.nan)
    return _against_rest(logits), outcomes.astype(labels.dtype), None if weights is None else each(weights)


def normalized(log_p):
    """Log-probabilities divided by their sum; uniform where all are 0."""
    impossible = jnp.all(log_p == -jnp.inf, axis=-1, keepdims=True)
    return log_softmax(jnp.where(impossible, 0, log_p))


@jax.jit
def _combined(log_events):
    return normalized(jnp.swapaxes(log_events[..., 1], -1, -2))


@jax.jit
def difference(logits):
    """The score z1 - z0 of two classes, in the compute dtype."""
    gaps = shifted(logits.astype(checks.compute_dtype(logits)))
    return gaps[..., 1] - gaps[..., 0]


@jax.jit
def _against_rest(logits):
    """log p_c - log(1 - p_c), `(..., n, k)` to `(..., k, n)`; 1 - p_c is the sum of the others, not a difference."""
    log_p = log_softmax(logits.astype(checks.compute_dtype(logits)))
    k = log_p.shape[-1]

    def one(c):
        others = jnp.where(jnp.arange(k) == c, -jnp.inf, log_p)
        alone = jnp.max(others, axis=-1) == -jnp.inf  # logsumexp has NaN derivatives there
        rest = jax.nn.logsumexp(jnp.where(alone[..., None], 0, others), axis=-1)
        return jnp.take(log_p, c, axis=-1) - jnp.where(alone, -jnp.inf, rest)

    return jnp.moveaxis(lax.map(one, jnp.arange(k)), 0, -2)
