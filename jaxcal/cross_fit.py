"""Out-of-fold calibration: every row is calibrated by a fit that has not seen it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.calibrators.one_vs_rest import reject_binary
from jaxcal.calibrators.temperature import prepare, raise_if_failed
from jaxcal.losses import risk
from jaxcal.solvers import has_softmax
from jaxcal.status import Status


class Split(NamedTuple):
    """A random partition of n rows into K folds."""

    fold: jax.Array  # (n,), fold of each row
    rows: jax.Array  # (K, m), rows of each fold, m = ceil(n / K); the last entry repeats where a fold is shorter
    place: jax.Array  # (n,), position of each row in `rows.reshape(-1)`


@partial(jax.jit, static_argnums=(1, 2))
def split_rows(key, n: int, folds: int) -> Split:
    """Random folds whose sizes differ by at most one."""
    order = jax.random.permutation(key, n).astype(jnp.int32)
    size = -(-n // folds)
    slot = jnp.minimum(jnp.arange(size)[None, :] * folds + jnp.arange(folds)[:, None], n - 1)
    position = jnp.arange(n)
    fold = jnp.zeros(n, jnp.int32).at[order].set(position.astype(jnp.int32) % folds)
    place = jnp.zeros(n, jnp.int32).at[order].set((position % folds * size + position // folds).astype(jnp.int32))
    return Split(fold, order[slot], place)


def cross_fit(calibrator: Callable, logits, labels, *, folds: int, key, weights=None) -> jax.Array:
    """Out-of-fold calibrated log-probabilities: the rows of each fold, mapped by a fit on the other folds.

    Args:
        calibrator: called once as `calibrator(logits, labels, weights=w)` with a batch axis of size K in front of n, w
            being 0 on the held-out fold; returns a map from logits to log-probabilities.
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        folds: number of folds K, 2 <= K <= n (static).
        key: `jax.random` key; the same split is used in every lane. Folds are of rows, whatever their weights.
        weights: counts `(..., n)`.

    Returns:
        `(..., n, k)` log-probabilities in the dtype of the logits, rows in their order. A lane is NaN if one of its
        folds has status `INVALID_INPUT` or `IMPOSSIBLE_EVENT`; an eager call raises `ValueError` if no lane is usable.

    Differentiable through the calibrator. Cost: K fits as one stacked fit, one application.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> z = 3.0 * jax.random.normal(jax.random.key(0), (100, 4))
        >>> y = jax.random.categorical(jax.random.key(1), z)
        >>> jaxcal.cross_fit(jaxcal.fit_temperature, z, y, folds=5, key=jax.random.key(2)).shape
        (100, 4)
    """
    reject_binary(calibrator)
    logits, labels, weights = prepare(logits, labels, weights, "cross_fit")
    split, fits = fit_folds(calibrator, logits, labels, weights, folds=folds, key=key, call="cross_fit")
    if not hasattr(fits, "status"):  # the fits say nothing, so the data are asked
        judged = risk(logits, labels, weights=weights)
        return jnp.where(jnp.isnan(judged)[..., None, None], jnp.nan, out_of_fold(split, fits, logits))
    worst = jnp.max(fits.status, axis=-1)  # a bad row spoils the folds it is not in
    if not checks.is_traced(worst):
        raise_if_failed(worst, logits, labels, weights, "cross_fit")
    failed = worst >= Status.INVALID_INPUT
    return jnp.where(failed[..., None, None], jnp.nan, out_of_fold(split, fits, logits))


def fit_folds(calibrator, logits, labels, weights, *, folds, key, call) -> tuple[Split, Any]:
    """The split and the stacked fits, batch shape `(..., K)`."""
    split = split_of(logits, folds=folds, key=key, call=call)
    return split, fit_split(calibrator, split, logits, labels, weights)


def split_of(logits, *, folds, key, call) -> Split:
    """Random folds of the rows of `logits`, after checks of `folds` and `key`."""
    n = logits.shape[-2]
    if not isinstance(folds, int | np.integer) or isinstance(folds, bool) or not 2 <= folds <= n:
        raise ValueError(f"{call}: folds must be an integer in [2, n = {n}], got {folds!r}")
    if key is None:
        raise ValueError(f"{call}: folds need a key for the random split, e.g. key=jax.random.key(0)")
    checks.require_key(key, call)
    return split_rows(key, n, int(folds))


def fit_split(calibrator, split: Split, logits, labels, weights):
    """A stack of fits, batch shape `(..., K)`, each on the rows outside its fold."""
    kept = _training_weights(split, weights, checks.compute_dtype(logits))
    ahead = lambda a, axis: a if a.ndim == -axis - 1 else jnp.expand_dims(a, axis)  # noqa: E731
    return calibrator(ahead(logits, -3), ahead(labels, -2), weights=kept)


@partial(jax.jit, static_argnums=2)
def _training_weights(split, weights, dtype):
    """Weights `(..., K, n)` that are 0 on the fold left out."""
    kept = split.fold != jnp.arange(len(split.rows), dtype=jnp.int32)[:, None]
    if weights is None:
        return kept.astype(dtype)
    weights = weights[..., None, :]
    return jnp.where(kept | ~(weights >= 0), weights, 0)  # bad weights stay bad in every fold


def out_of_fold(split: Split, fits, logits) -> jax.Array:
    """Apply fit f of the stack to the rows of fold f and put the rows back in their order; invalid rows are NaN."""
    return _in_order(split, fits(_by_fold(split, logits)), logits)


def _usable(logits):
    return has_softmax(logits)[..., None]


@jax.jit
def _by_fold(split, logits):
    """Rows `(..., K, m, k)`; one that is no forecast, as a row of weight 0 may be, is 0 lest the fits raise."""
    return jnp.take(jnp.where(_usable(logits), logits, 0), split.rows, axis=-2)


@jax.jit
def _in_order(split, mapped, logits):
    flat = mapped.reshape(*mapped.shape[:-3], -1, mapped.shape[-1])
    return jnp.where(_usable(logits), jnp.take(flat, split.place, axis=-2), jnp.nan)
