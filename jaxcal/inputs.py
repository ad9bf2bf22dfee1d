"""From what people hold (probabilities, scores, classes) to logits, and from logits to binary events."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal import checks
from jaxcal.solvers import has_softmax, log_softmax


def logits_from_probs(p, *, atol: float | None = None, floor: float | None = None) -> jax.Array:
    r"""Logits of a probability vector: log p, with log 0 = -inf (a class that cannot happen).

    Args:
        p: probabilities `(..., k)`, k >= 2, rows summing to 1.
        atol: allowed |sum - 1|; default k times the machine epsilon of float32 (of the dtype for half precision).
        floor: if given, probabilities below it are raised to it and rows renormalized, so that no loss is infinite. Off
            by default: what is clipped here decides the value of every log loss computed later.

    Returns:
        Log-probabilities of the shape and dtype of `p`, valid as logits everywhere in the package. Rows that are not
        probability vectors are NaN; an eager call raises `ValueError` instead, naming the first.

    Differentiable in p (derivative 0 at p = 0). Cost O(size).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> print(jaxcal.logits_from_probs(jnp.array([0.25, 0.75, 0.0])).round(4))
        [-1.3863 -0.2877    -inf]
    """
    p = checks.as_classes(p, "p")
    k = p.shape[-1]
    eps32 = float(jnp.finfo(jnp.float32).eps)  # float64 probabilities usually were float32 once
    tolerance = k * max(float(jnp.finfo(p.dtype).eps), eps32) if atol is None else float(atol)
    if not tolerance >= 0:
        raise ValueError(f"atol must be >= 0, got {atol}")
    if floor is not None and not 0 < floor < 1 / k:
        raise ValueError(f"floor must be in (0, 1/k) = (0, {1 / k:.4g}), got {floor}")
    logits, sums, bad = _log_probabilities(p, tolerance, floor)
    if not checks.is_traced(logits):
        checks.raise_if_unusable(checks.lanes(bad), lambda: _explain_probs(p, sums, bad, tolerance))
    return logits


@partial(jax.jit, static_argnums=(1, 2))
def _log_probabilities(p, tolerance, floor):
    sums = jnp.sum(p.astype(checks.compute_dtype(p)), axis=-1)
    good = jnp.all((p >= 0) & (p <= 1 + tolerance), axis=-1) & (jnp.abs(sums - 1) <= tolerance)
    q = p.astype(sums.dtype)
    if floor is not None:
        q = jnp.maximum(q, floor)
        q = q / jnp.sum(q, axis=-1, keepdims=True)
    logs = jnp.where(q > 0, jnp.log(jnp.where(q > 0, q, 1)), -jnp.inf)
    return jnp.where(good[..., None], logs, jnp.nan).astype(p.dtype), sums, ~good


def _explain_probs(p, sums, bad, tolerance):
    where = tuple(int(i) for i in jnp.argwhere(bad)[0])
    row = f"row {where[-1]}" + (f" of lane {where[:-1]}" if len(where) > 1 else "") if where else "the row"
    values = p[where]
    if not bool(jnp.all((values >= 0) & (values <= 1 + tolerance))):
        return f"logits_from_probs: probabilities must be in [0, 1]; {row} is {values.tolist()}"
    return (
        f"logits_from_probs: rows must sum to 1 within {tolerance:.2g}; {row} sums to {float(sums[where]):.8g} "
        "(pass atol=... if that is rounding, divide by the sum if it is a scale)"
    )


def binary_logits(s) -> jax.Array:
    """Two-class logits [0, s] of a binary score (log-odds of class 1); `+inf` becomes [-inf, 0].

    Args:
        s: scores `(...)`, on the log-odds scale, +-inf allowed.

    Returns:
        Logits `(..., 2)` with sigmoid(s) as the probability of class 1. NaN scores give NaN rows; an eager call raises
        `ValueError` when no lane (all axes but the last) is valid.

    Differentiable in s. A peer's two-sided form (-s, s) has half our inverse temperature.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> jaxcal.binary_logits(jnp.array([1.5, jnp.inf])).tolist()
        [[0.0, 1.5], [-inf, 0.0]]
    """
    s = checks.as_floats(s, "s")
    logits, bad = _binary_logits(s)
    if not checks.is_traced(logits):
        explain = lambda: f"binary_logits: scores must not be NaN, got {checks.first(s, bad)}"  # noqa: E731
        checks.raise_if_unusable(checks.lanes(bad), explain)
    return logits


@jax.jit
def _binary_logits(s):
    certain, bad = s == jnp.inf, jnp.isnan(s)
    zero = jnp.where(bad, jnp.nan, jnp.zeros_like(s))
    return jnp.stack([jnp.where(certain, -jnp.inf, zero), jnp.where(certain, 0, s)], axis=-1), bad


def log_odds(p) -> jax.Array:
    """Log-odds log(p / (1 - p)) of probabilities; 0 gives -inf and 1 gives +inf.

    Args:
        p: probabilities `(...)` in [0, 1].

    Returns:
        Scores of the same shape and dtype. Values outside [0, 1] are NaN; an eager call raises `ValueError` when no
        lane (all axes but the last) is valid.

    Differentiable in p on (0, 1).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> print(jaxcal.log_odds(jnp.array([0.5, 0.75])).round(4))
        [0.     1.0986]
    """
    p = checks.as_floats(p, "p")
    scores, bad = _log_odds(p)
    if not checks.is_traced(scores):
        explain = lambda: f"log_odds: probabilities must be in [0, 1], got {checks.first(p, bad)}"  # noqa: E731
        checks.raise_if_unusable(checks.lanes(bad), explain)
    return scores


@jax.jit
def _log_odds(p):
    q = p.astype(checks.compute_dtype(p))
    good = (q >= 0) & (q <= 1)
    return jnp.where(good, jnp.log(q) - jnp.log1p(-q), jnp.nan).astype(p.dtype), ~good


def _event(call, event, logits, labels, weights, positive=None):
    logits = checks.as_logits(logits)
    labels = checks.as_labels(labels, logits)
    if positive is not None and not 0 <= positive < logits.shape[-1]:
        raise ValueError(f"positive must be a class index in [0, {logits.shape[-1]}), got {positive}")
    weights = checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))
    p, y, bad = _evaluate(event, logits, labels, weights, positive)
    if not checks.is_traced(p):
        checks.raise_if_unusable(
            checks.lanes(bad), lambda: checks.explain_multiclass(logits, labels, weights, call=call)
        )
    return p, y


@partial(jax.jit, static_argnums=0)
def _evaluate(event, logits, labels, weights, positive):
    """Probabilities (NaN in invalid rows) and outcomes of an event, and which rows of weight > 0 are invalid."""
    # rows that hold NaN or +inf, or nothing but -inf: 0 in their place keeps them out of the derivatives of the others
    usable = has_softmax(logits)
    log_p = log_softmax(jnp.where(usable[..., None], logits, 0).astype(checks.compute_dtype(logits)))
    valid = (labels >= 0) & (labels < logits.shape[-1]) & usable
    log_p, hit = event(logits, log_p, labels, valid, positive)
    bad = ~valid if weights is None else ~valid & (weights > 0)
    return jnp.where(valid, jnp.exp(log_p), jnp.nan).astype(logits.dtype), hit & valid, bad


def top_label(logits, labels, *, weights=None) -> tuple[jax.Array, jax.Array]:
    """The binary event "the predicted class is right": its confidence and whether it happened.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        weights: optional `(..., n)`; rows of weight 0 are not checked (pass the same weights to the metric).

    Returns:
        `(confidence, correct)`, both `(..., n)`: the largest softmax probability (dtype of the logits) and a bool. Ties
        go to the lowest class. Confidence is NaN in invalid rows.

    Differentiable: confidence in the logits.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> confidence, correct = jaxcal.top_label(jnp.array([[0.0, 1.0], [2.0, 0.0]]), jnp.array([1, 1]))
        >>> [f"{c:.3f}" for c in confidence], correct.tolist()
        (['0.731', '0.881'], [True, False])
    """
    return _event("top_label", _top_label, logits, labels, weights)


def _top_label(logits, log_p, labels, valid, positive):
    # arg max of the logits, as in `accuracy`: log-probabilities of close logits round to ties
    return jnp.max(log_p, axis=-1), jnp.argmax(logits, axis=-1) == labels


def binary_event(logits, labels, positive: int, *, weights=None) -> tuple[jax.Array, jax.Array]:
    """The binary event "the class is `positive`": `(probability, outcome)`, both `(..., n)`.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        positive: class index, 0 <= positive < k.
        weights: optional `(..., n)`; rows of weight 0 are not checked.

    Returns:
        The softmax probability of `positive` (NaN in invalid rows) and a bool outcome.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jaxcal.binary_event(jnp.array([[0.0, 1.0, 0.0]]), jnp.array([2]), 2)
        >>> f"{p[0]:.3f}", y.tolist()
        ('0.212', [True])
    """
    return _event("binary_event", _positive, logits, labels, weights, positive)


def _positive(logits, log_p, labels, valid, positive):
    return log_p[..., positive], labels == positive


def class_wise(logits, labels, *, weights=None) -> tuple[jax.Array, jax.Array]:
    """All k one-against-rest events at once, class axis first: `(probabilities, outcomes)`, both `(k, ..., n)`.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        weights: optional `(..., n)`; rows of weight 0 are not checked.

    Returns:
        Softmax probabilities (NaN in invalid rows) and bool outcomes; a binary metric applied to them gives one value a
        class, e.g. `jaxcal.ece(*jaxcal.class_wise(logits, labels)).mean(0)` is the class-wise ECE.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jaxcal.class_wise(jnp.zeros((4, 3)), jnp.array([0, 1, 2, 2]))
        >>> p.shape, y.sum(-1).tolist()
        ((3, 4), [1, 1, 2])
    """
    return _event("class_wise", _each_class, logits, labels, weights)


def _each_class(logits, log_p, labels, valid, positive):
    shape = (*valid.shape, log_p.shape[-1])
    log_p = jnp.moveaxis(jnp.broadcast_to(log_p, shape), -1, 0)
    return log_p, lax.broadcasted_iota(jnp.int32, log_p.shape, 0) == labels
