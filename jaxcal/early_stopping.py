"""Which epoch to keep: as training goes on, or offline on a whole curve; one rule for both."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.decomposition import decompose
from jaxcal.losses import ProperLoss, log_loss

_NEVER = np.iinfo(np.int32).max  # patience that no training uses up


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EarlyStoppingState:
    """What an early-stopping rule has seen; arrays have the batch shape of `init`, `()` for one training.

    Attributes:
        best_value: value at the last improvement, inf before the first.
        best_step: its update, int32, counted from 0; -1 before the first.
        step: number of updates, int32.
        waited: updates in a row without an improvement, int32; 0 before the first.
        patience: how many end the training, int32; the largest int32 for a rule that never does.
        min_delta: how much smaller counts, in the units of the value.
        sizes: rows and classes of the logits of `update`, int32 `(2,)`; 0 before the first.
        best_params: parameters at the last improvement, those of `init` before the first; None without.
    """

    best_value: jax.Array
    best_step: jax.Array
    step: jax.Array
    waited: jax.Array
    patience: jax.Array
    min_delta: jax.Array
    sizes: jax.Array
    best_params: Any

    @property
    def stopped(self) -> jax.Array:
        """Whether patience has run out, bool; from then on no update changes what is best."""
        return self.waited >= self.patience

    @property
    def improved(self) -> jax.Array:
        """Whether the last update was an improvement, bool."""
        return (self.best_step >= 0) & (self.best_step == self.step - 1)


def init(
    params=None, *, patience: int | None = None, min_delta: float = 0.0, batch_shape: tuple[int, ...] = ()
) -> EarlyStoppingState:
    """The state before the first epoch.

    Args:
        params: a pytree whose best version is to be kept (parameters, or parameters and optimizer state), or None. Its
            arrays are copied, so that a training step may donate its own, in JAX's dtypes: without x64 float64 is kept
            as float32, and whole numbers beyond int32 raise. Functions, names and other objects of the last improvement
            are kept as they are; under tracing those of the last update. Tensors, modules and estimators of other
            libraries raise, for they change in place: copy them yourself where `state.improved`.
        patience: epochs without improvement after which the rule stops, >= 1; None never does.
        min_delta: how much smaller counts, >= 0, in the units of the metric.
        batch_shape: of trainings side by side, each of which stops for itself; arrays of `params` begin with it. Not
            needed under `jax.vmap`.

    Returns:
        `EarlyStoppingState`, a pytree of arrays for `jax.jit`, `jax.lax.scan` and checkpoints.
    """
    patience, min_delta = _require_rule(patience, min_delta)
    if isinstance(params, int | float | complex | np.generic):
        raise TypeError(
            f"params must be a pytree of arrays or None, got {params!r}; patience is a keyword: patience=10"
        )
    full = lambda value, dtype: jnp.full(batch_shape, value, dtype)  # noqa: E731
    _require_leaves(params)
    kept = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True) if _is_array(leaf) else leaf, params)
    _require_lanes(kept, batch_shape)
    return EarlyStoppingState(
        best_value=full(jnp.inf, float),
        best_step=full(-1, jnp.int32),
        step=jnp.int32(0),
        waited=full(0, jnp.int32),
        patience=jnp.int32(patience),
        min_delta=jnp.asarray(min_delta, float),
        sizes=jnp.zeros(2, jnp.int32),
        best_params=kept,
    )


def refinement(
    logits,
    labels,
    *,
    weights=None,
    loss: ProperLoss = log_loss,
    calibrator: Callable | None = None,
    folds=None,
    key=None,
) -> jax.Array:
    """Mean loss after calibration, `(...)`: the metric of `update`, and `jaxcal.decompose(...).refinement`.

    Arguments are those of `jaxcal.decompose`; bind options once, before training, with `functools.partial`.
    """
    options = {"loss": loss, "calibrator": calibrator, "weights": weights, "folds": folds, "key": key}
    return decompose(logits, labels, **options).refinement


def update(
    state: EarlyStoppingState, logits, labels, params=None, *, weights=None, metric: Callable = refinement
) -> EarlyStoppingState:
    """Judge one more epoch by its validation logits.

    Args:
        state: of `init` or the update before.
        logits: `(..., n, k)`, the leading axes those of the state; labels: integers `(..., n)` in [0, k).
        params: of this epoch, as `init` has them.
        weights: counts `(..., n)`.
        metric: `metric(logits, labels, weights=weights)` to the value `(...)`, smaller is better. The default is the
            refinement after temperature scaling. Others: `jaxcal.risk` for the validation loss,
            `functools.partial(early_stopping.refinement, folds=5, key=key)`, your own. It is compiled, once if it is
            the same object in every epoch.

    Returns:
        The new state. Break where `state.stopped`; keep `state.best_params`.

    A network that has diverged, whose logits are NaN or infinite, is no improvement and raises nothing; in an eager
    call with finite logits, labels and weights that are wrong raise `ValueError`, and so do logits with another number
    of rows or classes than before. Patience runs from the first improvement: a training without any finite value does
    not stop. Decisions are those of `jaxcal.select_epoch`. Cost: that of the metric (of the refinement about four
    log-loss passes) and a copy of the parameters.

    Examples:
        >>> import jax
        >>> from jaxcal import early_stopping
        >>> labels = jax.random.randint(jax.random.key(0), (1000,), 0, 3)
        >>> noise = jax.random.normal(jax.random.key(1), (1000, 3))
        >>> state = early_stopping.init({"epoch": 0}, patience=2)
        >>> for epoch in range(10):  # ever more over-confident, and most informative after epoch 3
        ...     logits = (epoch + 1.0) * (jax.nn.one_hot(labels, 3) + (0.5 + 0.1 * abs(epoch - 3)) * noise)
        ...     state = early_stopping.update(state, logits, labels, {"epoch": epoch})
        ...     if state.stopped:
        ...         break
        >>> int(state.step), int(state.best_step), int(state.best_params["epoch"])
        (6, 3, 3)

    References:
        Berta, Holzmueller, Jordan and Bach, "Rethinking early stopping: refine, then calibrate", arXiv 2501.19195.
    """
    if not callable(metric):
        raise TypeError(
            "metric must be a function metric(logits, labels, weights=weights) such as early_stopping.refinement or "
            f"jaxcal.risk, got {metric!r}"
        )
    logits = checks.as_logits(logits)
    checks.require_rows(logits, "early_stopping.update")
    labels = checks.as_labels(labels, logits)
    weights = checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))
    sizes = np.array(logits.shape[-2:], np.int32)
    if not checks.is_traced(state.sizes):
        before = np.asarray(state.sizes).reshape(-1, 2)
        if before.any() and (before != sizes).any():
            n, k = before[0].tolist()
            raise ValueError(f"validation logits had n = {n} rows and k = {k} classes before, got shape {logits.shape}")
    value = _compiled(metric)(logits, labels, weights)
    if not checks.is_traced(value) and np.isnan(value).all() and np.isfinite(logits).all():
        metric(logits, labels, weights=weights)  # raises, and says why
    new = update_value(state, value, params)
    return replace(new, sizes=jnp.broadcast_to(jnp.asarray(sizes), state.sizes.shape))


def update_value(state: EarlyStoppingState, value, params=None) -> EarlyStoppingState:
    """Judge one more epoch by a value that you have, `(...)` as the state; smaller is better. See `update`."""
    value = checks.as_floats(value, "value")
    shape = state.best_value.shape
    if value.shape != shape:
        raise ValueError(f"value must have the batch shape of the state, {shape}, got {value.shape}")
    _require_lanes(params, shape)
    _require_leaves(params)
    kept, structure = jax.tree.flatten(state.best_params)
    given, other = jax.tree.flatten(params)
    if structure != other:
        raise ValueError(f"params must be a pytree as init has it, {structure}, got {other}")
    arrays = [i for i, leaf in enumerate(given) if _is_array(leaf)]
    for i in arrays:
        if jnp.shape(given[i]) != jnp.shape(kept[i]):
            name = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(params)[i][0])
            raise ValueError(f"params{name} has shape {jnp.shape(given[i])}, init had {jnp.shape(kept[i])}")
    rule = replace(state, best_params=[kept[i] for i in arrays])
    new = _update(rule, value, [given[i] for i in arrays])
    for i, leaf in zip(arrays, new.best_params, strict=True):
        given[i] = leaf
    others = [i for i in set(range(len(given))) - set(arrays) if given[i] is not kept[i]]
    if others and not checks.is_traced(new.step) and not np.any(new.improved):
        for i in others:
            given[i] = kept[i]
    return replace(new, best_params=jax.tree.unflatten(structure, given))


def select_epoch(curve, *, patience: int | None = None, min_delta: float = 0.0) -> jax.Array:
    """The epoch an early-stopping rule keeps: the last improvement of a curve before patience ran out.

    Read left to right, epoch e is an improvement if curve[e] < best - min_delta, where best is the value at the
    last improvement; the first finite value always is one. The rule stops after `patience` consecutive epochs without.

    Args:
        curve: `(..., epochs)`, smaller is better: risk, refinement, 1 - accuracy. NaN and +inf never improve.
        patience: epochs without improvement after which the rule stops, >= 1; None reads to the end.
        min_delta: how much smaller counts, >= 0, in the units of the curve.

    Returns:
        int32 index along the last axis, `(...)`; -1 if no value is finite. With the defaults it is the first arg min.

    Piecewise constant in the curve, so not differentiable. Cost O(size), one scan.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> curve = jnp.array([0.9, 0.5, 0.6, 0.7, 0.4])
        >>> int(jaxcal.select_epoch(curve)), int(jaxcal.select_epoch(curve, patience=2))
        (4, 1)
    """
    curve = checks.as_floats(curve, "curve")
    if curve.ndim == 0 or curve.shape[-1] == 0:
        raise ValueError(f"curve must have shape (..., epochs) with at least one epoch, got {curve.shape}")
    patience, min_delta = _require_rule(patience, min_delta)
    return _scan(curve, jnp.asarray(min_delta, checks.compute_dtype(curve)), jnp.int32(patience))


def _require_rule(patience, min_delta):
    """Patience as an integer, and min_delta, checked."""
    if patience is not None and (
        not isinstance(patience, int | np.integer) or isinstance(patience, bool) or patience < 1
    ):
        raise ValueError(f"patience must be an integer >= 1 or None, got {patience!r}")
    if not checks.is_traced(min_delta) and not (float(min_delta) >= 0 and math.isfinite(float(min_delta))):
        raise ValueError(f"min_delta must be finite and >= 0, got {min_delta}")
    return _NEVER if patience is None else min(int(patience), _NEVER), min_delta


def _is_array(leaf) -> bool:
    """What can be selected: not the functions and names that a model's pytree may hold."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | int | float | complex)


def _require_leaves(params):
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = f"params{jax.tree_util.keystr(path)}"
        if isinstance(leaf, np.ndarray | np.generic | int) and _is_array(leaf):
            dtype = jax.dtypes.canonicalize_dtype(np.result_type(leaf))
            if dtype.kind in "iu" and not np.array_equal(np.asarray(leaf).astype(dtype), leaf):
                raise ValueError(f"{name} holds whole numbers beyond {dtype}; set JAX_ENABLE_X64=1, or leave it out")
        elif not _is_array(leaf) and not isinstance(leaf, type) and _is_mutable(leaf):
            raise TypeError(
                f"{name} is a {type(leaf).__module__}.{type(leaf).__name__}, which may change in place; give no "
                "params, and copy it yourself where state.improved"
            )


def _is_mutable(leaf) -> bool:
    """Whether it looks like a tensor, a module of PyTorch or an estimator of scikit-learn."""
    signs = ("__dlpack__", "__array__", "state_dict", "get_params")
    return not isinstance(leaf, np.ndarray | np.generic) and any(hasattr(leaf, name) for name in signs)


def _require_lanes(params, batch_shape):
    for leaf in jax.tree.leaves(params):
        if batch_shape and _is_array(leaf) and jnp.shape(leaf)[: len(batch_shape)] != tuple(batch_shape):
            raise ValueError(f"arrays of params must begin with the batch shape {batch_shape}, got {jnp.shape(leaf)}")


@lru_cache(maxsize=64)
def _compiled(metric):
    return jax.jit(lambda logits, labels, weights: metric(logits, labels, weights=weights))


def _advance(best, chosen, waited, epoch, value, patience, min_delta):
    """The rule, for one value: whether it improves, and the best value, its epoch and the epochs without one since."""
    improves = (waited < patience) & jnp.isfinite(value) & ((chosen < 0) | (value < best - min_delta))
    waited = jnp.where(improves, 0, waited + (chosen >= 0))
    return improves, (jnp.where(improves, value, best), jnp.where(improves, epoch, chosen), waited)


@jax.jit
def _update(state, value, params):
    dtype = checks.compute_dtype(value)  # that of the curve, so that both decide alike
    best, chosen, waited = state.best_value, state.best_step, state.waited
    rule = (best.astype(dtype), chosen, waited, state.step, value.astype(dtype), state.patience)
    improves, (new, chosen, waited) = _advance(*rule, state.min_delta.astype(dtype))

    def select(kept, given):
        given = jnp.asarray(given)
        return jnp.where(improves.reshape(improves.shape + (1,) * (given.ndim - improves.ndim)), given, kept)

    return replace(
        state,
        best_value=jnp.where(improves, new.astype(best.dtype), best),
        best_step=chosen,
        step=state.step + 1,
        waited=waited,
        best_params=jax.tree.map(select, state.best_params, params),
    )


@jax.jit
def _scan(curve, min_delta, patience):
    values = jnp.moveaxis(curve.astype(min_delta.dtype), -1, 0)

    def step(state, inputs):
        epoch, value = inputs
        return _advance(*state, epoch, value, patience, min_delta)[1], None

    shape = values.shape[1:]
    start = (jnp.full(shape, jnp.inf, values.dtype), jnp.full(shape, -1, jnp.int32), jnp.zeros(shape, jnp.int32))
    (_, chosen, _), _ = lax.scan(step, start, (jnp.arange(curve.shape[-1], dtype=jnp.int32), values))
    return chosen
