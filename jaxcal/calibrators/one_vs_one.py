"""A multi-class calibrator from a binary one: calibrate each pair of classes, then combine the pairs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.one_vs_rest import difference, normalized, raise_if_invalid
from jaxcal.calibrators.temperature import prepare
from jaxcal.losses import hide_absent
from jaxcal.solvers import log_normalizer, shifted
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneVsOneFit(Fit):
    """Binary fits, one a pair of classes; called on logits, gives log-probabilities.

    Attributes:
        fit: the binary fits, batch shape `(..., k (k - 1) / 2)`, pairs in the order (0, 1), (0, 2), ..., (1, 2), ...;
            `(...)` for k = 2. The second class of a pair is the outcome 1.
        observed: whether a pair has rows, `(..., k (k - 1) / 2)`, or `(...)` for k = 2. Of one that has none the fit is
            INVALID_INPUT and not used.
        status: worst `jaxcal.Status` over the observed pairs, int32 `(...)`; at least NOT_IDENTIFIED if a pair is not.
        num_classes: k, static.
    """

    fit: Any
    observed: jax.Array
    status: jax.Array
    num_classes: int = jax.tree.static()

    def __call__(self, logits) -> jax.Array:
        """Calibrated log-probabilities `(..., n, k)`; uniform where every class has 0 against some other."""
        logits = checks.as_logits(logits)
        if logits.shape[-1] != self.num_classes:
            raise ValueError(f"fitted for {self.num_classes} classes, got logits of shape {logits.shape}")
        if logits.ndim == 1:
            return self(logits[None])[..., 0, :]
        if self.num_classes == 2:
            result = self.fit.log_probabilities(difference(logits))
        else:
            score = _pair_scores(logits)
            # what a fit of no rows makes of its scores must not reach their derivatives
            seen = self.fit.log_probabilities(jnp.where(self.observed[..., None], score, 0))
            result = _combined(seen, score, self.observed, self.num_classes)
            # pairs without rows have odds, and a class that cannot be has none, also where nothing was fitted
            failed = jnp.asarray(self.status) >= Status.NOT_CONVERGED
            result = jnp.where(failed[..., None, None], jnp.nan, result)
        result = result.astype(logits.dtype)
        if not checks.is_traced(result):
            self.check_output(result, logits)
        return result


def one_vs_one(fit_binary: Callable) -> Callable:
    r"""Turn a binary calibrator into a multi-class one by pairs of classes.

    p_i prop. to  1 / (sum_{j != i} 1 / r_ij - (k - 2)) = 1 / (1 + sum_{j != i} r_ji / r_ij),   r_ij = P(i | i or j)

    Each pair i < j is calibrated on the score z_j - z_i with the rows of these two classes, all pairs in one stacked
    fit; for k = 2 this is `one_vs_rest`. Where the r_ij are those of one vector of probabilities, p is this vector.

    Args:
        fit_binary: `(score, outcomes, *, weights=None)`, both `(..., n)`, returning a fit with
            `log_probabilities(score) -> (..., n, 2)`. Bind options with `functools.partial`.

    Returns:
        `calibrator(logits, labels, *, weights=None) -> OneVsOneFit`.

    A class that has probability 0 against another has probability 0; if all have, the row is uniform. Of a pair without
    rows, neither class of which was seen, nothing can be learned: its odds are left as the logits have them, and the
    status is NOT_IDENTIFIED (or worse). Where one class of a pair was not seen, the binary calibrator has a single
    outcome to fit: isotonic regression gives the other class probability 1, `fit_platt` with its smooth targets less.

    A pair uses the rows of two classes only, where `one_vs_rest` uses all: with many classes and few rows a class it is
    the noisier. Differentiable where the binary calibrator is. Cost: k (k - 1) / 2 binary fits of n rows, in time and
    memory.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> z = 3.0 * jax.random.normal(jax.random.key(0), (500, 3))
        >>> y = jax.random.categorical(jax.random.key(1), z / 2)
        >>> fit = jaxcal.one_vs_one(jaxcal.fit_platt)(z, y)
        >>> fit.fit.slope.shape
        (3,)
        >>> bool(jaxcal.risk(fit(z), y) < jaxcal.risk(z, y))
        True

    References:
        Price, Knerr, Personnaz and Dreyfus, "Pairwise neural network classifiers with probabilistic outputs", NIPS
        1994.
        Manokhin, "Multi-class probabilistic classification using inductive and cross Venn-Abers predictors", COPA 2017.
    """
    if not callable(fit_binary):
        raise TypeError(f"fit_binary must be a function (score, outcomes, *, weights), got {type(fit_binary).__name__}")

    def fit_one_vs_one(logits, labels, *, weights=None) -> OneVsOneFit:
        logits, labels, given = prepare(logits, labels, weights, "one_vs_one")
        score, outcomes, weights, observed = _events(logits, labels, given)
        fit = fit_binary(score, outcomes, weights=weights)
        status = jnp.asarray(getattr(fit, "status", Status.CONVERGED), jnp.int32)
        observed, status = jnp.broadcast_arrays(observed, status)
        k = logits.shape[-1]
        status = _worst(status, observed) if k > 2 else status
        raise_if_invalid(status, logits, labels, given, "one_vs_one")
        return OneVsOneFit(fit, observed, status, k)

    return fit_one_vs_one


def _pairs(k: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(k, 1)


@jax.jit
def _events(logits, labels, weights):
    """Score, outcomes and weights of the rows of each pair of classes, `(..., pairs, n)`, and whether it has any.

    A label that is no class is one of every pair, without an outcome, so that no fit of them is valid.
    """
    k = logits.shape[-1]
    logits = hide_absent(logits, weights)
    known = (labels >= 0) & (labels < k)
    dtype = checks.compute_dtype(logits)
    if k == 2:
        counts = jnp.ones(labels.shape, dtype) if weights is None else weights
        return difference(logits), jnp.where(known, labels, jnp.nan).astype(dtype), weights, jnp.any(counts != 0, -1)
    low, high = (c[:, None] for c in _pairs(k))
    label, known = labels[..., None, :], known[..., None, :]
    own = ~known | (label == low) | (label == high)
    outcomes = jnp.where(known, label == high, jnp.nan).astype(dtype)
    weights = jnp.where(own, 1 if weights is None else weights[..., None, :], 0).astype(dtype)
    score = jnp.where(own, _pair_scores(logits), 0)
    return score, outcomes, weights, jnp.any(weights != 0, axis=-1)


@jax.jit
def _pair_scores(logits):
    """z_j - z_i, `(..., n, k)` to `(..., pairs, n)`; 0 for two impossible classes: the row says nothing."""
    gaps = jnp.swapaxes(shifted(logits.astype(checks.compute_dtype(logits))), -1, -2)
    low, high = (jnp.take(gaps, c, axis=-2) for c in _pairs(logits.shape[-1]))
    neither = (low == -jnp.inf) & (high == -jnp.inf)
    return jnp.where(neither, 0, jnp.where(neither, 0, high) - jnp.where(neither, 0, low))


@jax.jit
def _worst(status, observed):
    """Of the pairs with rows; a lane without any has the status of its fits."""
    used = jnp.where(observed, status, Status.NOT_IDENTIFIED)
    return jnp.max(jnp.where(jnp.any(observed, axis=-1, keepdims=True), used, status), axis=-1)


@jax.jit(static_argnums=3)
def _combined(log_pairs, score, observed, k):
    """log p_i = -log(1 + sum_j r_ji / r_ij), renormalized; the odds of pairs without rows are those of the score."""
    log_odds = jnp.where(observed[..., None], log_pairs[..., 1] - log_pairs[..., 0], score)
    pair = np.zeros((k, k), np.int32)
    pair[_pairs(k)] = pair.T[_pairs(k)] = np.arange(log_odds.shape[-2])
    others = np.array([np.delete(np.arange(k), i) for i in range(k)])
    sign = np.where(others > np.arange(k)[:, None], 1, -1).astype(log_odds.dtype)

    def one(against):
        rows, sign = against
        odds = jnp.take(log_odds, rows, axis=-2) * sign[:, None]  # log r_ji / r_ij
        never = jnp.any(odds == jnp.inf, axis=-2)
        odds = jnp.where(never[..., None, :], 0, odds)
        terms = jnp.moveaxis(jnp.concatenate([jnp.zeros_like(odds[..., :1, :]), odds], axis=-2), -2, -1)
        top = lax.stop_gradient(jnp.max(terms, axis=-1))
        return jnp.where(never, -jnp.inf, -top - log_normalizer(shifted(terms)))

    log_p = jnp.moveaxis(lax.map(one, (np.take_along_axis(pair, others, axis=1), sign)), 0, -1)
    return normalized(log_p)
