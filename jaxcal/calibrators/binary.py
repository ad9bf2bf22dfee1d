"""What binary calibrators share: how scores, outcomes and weights come in, and how probabilities go out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.status import Status


class BinaryFit(Fit):
    """Base of the fitted binary calibrators. A subclass has `_log_pair(score)`: log-probabilities of 0 and of 1.

    That function gets scores in their compute dtype, with the batch axes of the fit in front of the axis of the rows.
    """

    def __call__(self, score) -> jax.Array:
        """Calibrated probability of outcome 1.

        Args:
            score: `(..., n)`, or a number for a single fit; the batch shape of the fit broadcasts against the leading
                axes.

        Returns:
            Probabilities of the broadcast shape, in the dtype of the scores. NaN for NaN scores and failed lanes; an
            eager call raises `ValueError` if nothing is usable.
        """
        return self._apply(self._log_pair, score, lambda log_0, log_1: jnp.exp(log_1))

    def log_probabilities(self, score) -> jax.Array:
        """Log-probabilities of outcome 0 and 1, `(..., n, 2)`, each without cancellation; -inf for certain ones."""
        return self._apply(self._log_pair, score, lambda *pair: jnp.stack(pair, axis=-1))

    def _apply(self, evaluate, score, finish):
        score = checks.as_floats(score, "score")
        batch = jnp.shape(self.status)
        if batch and score.ndim == 0:
            raise ValueError(f"a stack of fits {batch} needs scores (..., n), got a number")
        try:
            np.broadcast_shapes(batch, score.shape[:-1])
        except ValueError as error:
            raise ValueError(f"fits of batch shape {batch} do not broadcast against scores {score.shape}") from error
        pair = evaluate(score.astype(checks.compute_dtype(score)))
        failed = jnp.asarray(self.status) >= Status.NOT_CONVERGED
        failed = failed[..., None] if batch else failed
        result = finish(*(jnp.where(failed | jnp.isnan(score), jnp.nan, a).astype(score.dtype) for a in pair))
        if not checks.is_traced(result) and result.size and np.isnan(result).all():
            self.check()
            raise ValueError(
                f"{type(self).__name__}: scores must not be NaN, got {checks.first(score, np.isnan(score))}"
            )
        return result

    def _log_pair(self, score) -> tuple[jax.Array, jax.Array]:
        raise NotImplementedError


class Rows(NamedTuple):
    """Rows of a binary data set in the dtype of the work; those that are absent or invalid weigh 0 and hold 0."""

    score: jax.Array  # (..., n)
    outcome: jax.Array  # (..., n), 0 or 1
    weight: jax.Array  # (..., n), >= 0
    ok: jax.Array  # (...), whether the lane is valid


def prepare_binary(score, outcomes, weights, call: str):
    """Static checks of `(score, outcomes, weights)`, each `(..., n)`."""
    score, outcomes = checks.as_floats(score, "score"), checks.as_array(outcomes, "outcomes")
    if jnp.issubdtype(outcomes.dtype, jnp.complexfloating):
        raise TypeError(f"outcomes must be 0 or 1, got dtype {outcomes.dtype}")
    if score.ndim == 0 or score.size == 0:
        raise ValueError(f"{call}: score must have shape (..., n) and not be empty, got {score.shape}")
    if outcomes.ndim == 0 or outcomes.shape[-1] != score.shape[-1]:
        raise ValueError(
            f"{call}: outcomes must have shape (..., n) with the n of score, got score {score.shape} and outcomes "
            f"{outcomes.shape}; logits (n, 2) are no scores: pass z[..., 1] - z[..., 0], of which "
            "jaxcal.binary_logits is the inverse, or fit logits by jaxcal.one_vs_rest"
        )
    try:
        rows = np.broadcast_shapes(score.shape, outcomes.shape)
    except ValueError as error:
        raise ValueError(
            f"{call}: the leading axes of score {score.shape} and outcomes {outcomes.shape} do not broadcast"
        ) from error
    return score, outcomes, checks.as_weights(weights, rows, checks.compute_dtype(score), "score")


def clean_rows(score, outcomes, weights) -> Rows:
    """For the compiled part of a fit: invalid rows marked, leading axes aligned and broadcast.

    Scores may be infinite; what that means is for the calibrator to say.
    """
    dtype = checks.compute_dtype(score)
    ndim = max(a.ndim for a in (score, outcomes, weights) if a is not None)
    s, y, w = checks.align(ndim, score.astype(dtype), outcomes.astype(dtype), weights)
    w = jnp.ones(s.shape[-1:], dtype) if w is None else w
    s, y, w = jnp.broadcast_arrays(s, y, w)
    valid = ~jnp.isnan(s) & ((y == 0) | (y == 1))
    ok = jnp.all(valid | ~(w > 0), axis=-1) & jnp.all((w >= 0) & (w < jnp.inf), axis=-1) & jnp.any(w > 0, axis=-1)
    present = valid & (w > 0) & (w < jnp.inf)
    return Rows(jnp.where(present, s, 0), jnp.where(present, y, 0), jnp.where(present, w, 0), ok)


def report_binary(fit, score, outcomes, weights, call: str):
    """`fit`, after an eager call whose every lane failed on its input has raised and named the row."""
    if checks.is_traced(fit):
        return fit
    failed = np.asarray(fit.status) == Status.INVALID_INPUT
    checks.raise_if_unusable(failed, lambda: f"{call}: {_explain(score, outcomes, weights)}")
    return fit


def _explain(score, outcomes, weights) -> str:
    s, w = np.asarray(score).astype(np.float64), 1 if weights is None else np.asarray(weights)
    bad = np.isnan(s) & (w > 0)
    if bad.any():
        return f"score must not be NaN, got {checks.first(np.broadcast_to(s, bad.shape), bad)}"
    return checks.find_event_fault(np.zeros(s.shape), outcomes, weights) or "scores or weights overflow"
