"""What binary calibrators share: how scores, outcomes and weights come in, and how probabilities go out."""

import abc
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.solvers import LogisticOptimum, logistic_regression
from jaxcal.status import Status


class BinaryFit(Fit, abc.ABC):
    """Base of the fitted binary calibrators: checks what comes in, marks what failed, and leaves the map to each."""

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
            bad = np.isnan(score)
            fault = f"scores must not be NaN, got {checks.first(score, bad)}" if bad.any() else "its map is NaN there"
            raise ValueError(f"{type(self).__name__}: {fault}")
        return result

    @abc.abstractmethod
    def _log_pair(self, score) -> tuple[jax.Array, jax.Array]:
        """Log-probabilities of 0 and of 1, from scores in their compute dtype, the axis of the rows last."""


class Rows(NamedTuple):
    """Rows of a binary data set in the dtype of the work; those that are absent or invalid weigh 0 and hold 0."""

    score: jax.Array  # (..., n)
    outcome: jax.Array  # (..., n), 0 or 1
    weight: jax.Array  # (..., n), >= 0
    ok: jax.Array  # (...), whether the lane is valid


def prepare_binary(score, outcomes, weights):
    """Static checks of `(score, outcomes, weights)`, each `(..., n)`."""
    remedy = (
        "logits (n, 2) are no scores: pass z[..., 1] - z[..., 0], of which jaxcal.binary_logits is the inverse, or fit "
        "logits by jaxcal.one_vs_rest"
    )
    return checks.as_binary(score, outcomes, weights, name="score", outcomes_name="outcomes", remedy=remedy)


def clean_rows(score, outcomes, weights, *, finite: bool = False) -> Rows:
    """For the compiled part of a fit: invalid rows marked, leading axes aligned and broadcast.

    Infinite scores are invalid with `finite`; else what they mean is for the calibrator to say.
    """
    dtype = checks.compute_dtype(score)
    ndim = max(a.ndim for a in (score, outcomes, weights) if a is not None)
    s, y, w = checks.align(ndim, score.astype(dtype), outcomes.astype(dtype), weights)
    w = jnp.ones(s.shape[-1:], dtype) if w is None else w
    s, y, w = jnp.broadcast_arrays(s, y, w)
    valid = (jnp.isfinite(s) if finite else ~jnp.isnan(s)) & ((y == 0) | (y == 1))
    ok = jnp.all(valid | ~(w > 0), axis=-1) & jnp.all(w >= 0, axis=-1)
    mass = jnp.sum(w, axis=-1)
    ok &= (mass > 0) & (mass < jnp.inf)  # inf: a weight or their sum
    present = valid & (w > 0) & (w < jnp.inf)
    return Rows(jnp.where(present, s, 0), jnp.where(present, y, 0), jnp.where(present, w, 0), ok)


def in_range(feature) -> jax.Array:
    """Whether `(...)` the coefficient of a feature `(..., n)` has all its digits: of larger ones it is subnormal."""
    limits = jnp.finfo(feature.dtype)
    return jnp.max(jnp.abs(feature), axis=-1) <= limits.eps / limits.tiny


def report_binary(fit, score, outcomes, weights, call: str):
    """`fit`, after an eager call whose every lane failed on its input has raised and named the row."""
    if checks.is_traced(fit):
        return fit
    failed = np.asarray(fit.status) >= Status.INVALID_INPUT
    impossible = bool((np.asarray(fit.status) == Status.IMPOSSIBLE_EVENT).all())
    checks.raise_if_unusable(failed, lambda: f"{call}: {_explain(score, outcomes, weights, impossible)}")
    return fit


def _explain(score, outcomes, weights, impossible: bool) -> str:
    s, w = np.asarray(score).astype(np.float64), 1 if weights is None else np.asarray(weights)
    fault = checks.find_event_fault(np.zeros(s.shape), outcomes, weights)
    if fault is not None:
        return fault
    bad = ~np.isfinite(s) & (w > 0)
    bad = np.isnan(s) & (w > 0) if (np.isnan(s) & (w > 0)).any() else bad
    if impossible:
        bad = bad & ((s > 0) != (np.asarray(outcomes) == 1))
    if not bad.any():
        return "scores or weights are too large or too small for sums and squares"
    where = checks.first(np.broadcast_to(s, bad.shape), bad)
    if impossible:
        return (
            f"score {where} is certain of what did not happen, so that the log loss is infinite for every parameter; "
            "keep probabilities from 0 and 1, for instance by jaxcal.logits_from_probs(p, floor=...)"
        )
    return f"score must be a finite number, got {where}"


def log_sigmoids(log_odds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of outcome 0 and 1, neither of which cancels."""
    return jax.nn.log_sigmoid(-log_odds), jax.nn.log_sigmoid(log_odds)


def by_lane(value: jax.Array, score: jax.Array) -> jax.Array:
    """A parameter of the fits with an axis for the rows, in the dtype of the scores."""
    value = jnp.asarray(value)
    return (value[..., None] if value.ndim else value).astype(score.dtype)


def fit_log_odds(features: Callable, score, outcomes, weights, *, not_negative=None, ridge=None):
    """Logistic regression on features of the log-odds, for the compiled part of a fit: `(optimum, status)`.

    Certain forecasts that came true cost nothing whatever the parameters: they count in the mean loss alone. Options
    are those of `logistic_regression`.
    """
    s, y, w, ok = clean_rows(score, outcomes, weights)
    certain = jnp.isinf(s)
    impossible = jnp.any(certain & ((s > 0) != (y == 1)) & (w > 0), axis=-1)
    mass, left = jnp.sum(w, axis=-1), jnp.sum(jnp.where(certain, 0, w), axis=-1)
    some = (left > 0) | (ridge is not None)
    x = lax.optimization_barrier(tuple(features(jnp.where(certain, 0, s))))  # see `logistic_regression`
    if ridge is None:
        w = jnp.where(certain, 0, w)
    else:  # beside the penalty a mean counts all its rows: these stay at even odds, and their loss is taken off again
        x, y = tuple(jnp.where(certain, 0, feature) for feature in x), jnp.where(certain, 0.5, y)
    for feature in x:  # a square may overflow
        ok &= in_range(feature)
    active = ok & ~impossible & some
    found = logistic_regression(x, y, w, active, not_negative=not_negative, ridge=ridge)
    status = status_of(found, ok)
    status = jnp.where(some, status, Status.NOT_IDENTIFIED)
    status = jnp.where(impossible, Status.IMPOSSIBLE_EVENT, status)
    status = jnp.where(ok, status, Status.INVALID_INPUT).astype(jnp.int32)
    mark = jnp.where(status < Status.NOT_CONVERGED, 1, jnp.nan).astype(s.dtype)
    share = left / jnp.where(ok, mass, 1)
    risk = found.risk * share if ridge is None else jnp.maximum(found.risk - math.log(2) * (1 - share), 0)
    return found._replace(coefficients=found.coefficients * mark[..., None], risk=risk * mark), status


def status_of(found: LogisticOptimum, ok) -> jax.Array:
    """Status of a logistic regression; `ok` says which lanes are valid."""
    status = jnp.where(found.identified, Status.CONVERGED, Status.NOT_IDENTIFIED)
    status = jnp.where(found.separated, Status.AT_UPPER_BOUND, status)
    status = jnp.where(found.converged, status, Status.NOT_CONVERGED)
    return jnp.where(ok, status, Status.INVALID_INPUT).astype(jnp.int32)
