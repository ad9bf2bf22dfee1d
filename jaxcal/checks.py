"""What every public function does with its arguments before and after the compiled part.

Static facts (shapes, dtypes) raise at once. Facts of the values are seen by the compiled core, which makes the lane
NaN; an eager call looks at the result once and, if nothing usable came back, explains it here on the host.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

_INT32 = np.iinfo(np.int32)


def is_traced(*values) -> bool:
    """Whether any leaf is a tracer, that is, the caller is inside jit, vmap, grad, scan, ..."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def as_array(values, name: str) -> jax.Array:
    """The caller's numbers as a JAX array. Where x64 is off, 64-bit integers saturate instead of wrapping round."""
    values = _exchanged(values, name)
    if isinstance(values, jax.Array):
        return values
    try:
        if not is_traced(values):
            values = np.asarray(values)
            if values.dtype in (np.int64, np.uint64) and not jax.config.jax_enable_x64:
                low = max(_INT32.min, np.iinfo(values.dtype).min)
                values = np.clip(values, low, _INT32.max)  # 2**32 + 1 must not become class 1
        return jnp.asarray(values)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be an array of numbers, got {getattr(values, 'dtype', type(values).__name__)}"
        ) from error


def _exchanged(values, name: str):
    """A tensor of another library, such as PyTorch, as a JAX array in the same memory, through DLPack.

    64-bit numbers stay as they are: what is said about them elsewhere is about NumPy's.
    """
    if isinstance(values, jax.Array | np.ndarray) or not hasattr(values, "__dlpack__"):
        return values
    if str(values.dtype).rpartition(".")[2] not in ("float16", "bfloat16", "float32"):
        return values
    try:
        return jnp.from_dlpack(values)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from error


def as_floats(values, name: str) -> jax.Array:
    """A floating array of the caller's dtype; integers, booleans and complex numbers raise."""
    array = as_array(values, name)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{name} must be floating point, got dtype {array.dtype}; convert it, e.g. {name}.astype('float32')"
        )
    return array


def compute_dtype(*arrays: jax.Array):
    """The dtype the work is done in: the inputs' own, but half precision is computed in float32."""
    dtype = jnp.result_type(*(a.dtype for a in arrays))
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


def _as_integers(values, name: str) -> jax.Array:
    array = as_array(values, name)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers in [0, k), got dtype {array.dtype}; use {name}.astype('int32')")
    return array if array.dtype.itemsize >= 4 else array.astype(jnp.int32)


def as_logits(logits) -> jax.Array:
    """Logits `(..., k)` with k >= 2, floating. Rows of float64 on the host are centred before they lose digits."""
    logits = _exchanged(logits, "logits")
    if not isinstance(logits, jax.Array) and not is_traced(logits) and not jax.config.jax_enable_x64:
        host = np.asarray(logits)
        if host.dtype == np.float64 and host.ndim and host.size:
            peak = np.max(host, axis=-1, keepdims=True)
            gaps = host - np.where(np.isfinite(peak), peak, 0)
            # what overflows float32 is not a mask
            logits = np.where((gaps < np.finfo(np.float32).min) & (gaps > -np.inf), np.nan, gaps)
    return as_classes(logits, "logits")


def as_classes(values, name: str) -> jax.Array:
    """Floating values with k >= 2 classes on the last axis."""
    array = as_floats(values, name)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} must have shape (..., n, k) and not be empty, got shape {array.shape}")
    if array.shape[-1] < 2:
        raise ValueError(
            f"{name} must have k >= 2 classes on the last axis, got shape {array.shape}; "
            "a binary score s becomes logits by jaxcal.binary_logits(s)"
        )
    return array


def require_rows(logits: jax.Array, call: str) -> None:
    """Raise for logits of a single example, or what may be scores `(n,)`."""
    if logits.ndim < 2:
        raise ValueError(
            f"{call} needs logits of shape (..., n, k), got {logits.shape}; binary scores (..., n) become logits by "
            "jaxcal.binary_logits"
        )


def as_labels(labels, logits: jax.Array) -> jax.Array:
    """Integer labels that broadcast against the leading axes of `logits` and share its rows."""
    array = _as_integers(labels, "labels")
    rows = logits.shape[:-1]
    if array.shape == logits.shape and array.shape != rows:
        raise ValueError(
            f"labels have the shape of the logits, {array.shape}; pass class indices of shape {rows}, "
            "e.g. one_hot.argmax(-1) (a distribution over classes goes to loss.divergence and loss.entropy)"
        )
    _broadcast("labels", array, "logits", rows)
    return array


def rows(logits: jax.Array, labels: jax.Array) -> tuple[int, ...]:
    """The shape `(..., n)` of the examples of logits and labels together."""
    return np.broadcast_shapes(logits.shape[:-1], labels.shape)


def as_weights(weights, shape: tuple[int, ...], dtype, name: str = "logits") -> jax.Array | None:
    """Weights in `dtype`, or None; they must share the rows of `shape` and broadcast against its leading axes."""
    if weights is None:
        return None
    if not isinstance(weights, jax.Array) and not is_traced(weights) and np.asarray(weights).dtype.kind in "iu":
        weights = np.asarray(weights, np.float64)  # counts beyond int32 are counts
    array = as_array(weights, "weights")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"weights must be real, got dtype {array.dtype}")
    _broadcast("weights", array, name, shape)
    return array.astype(dtype)


def as_binary(values, outcomes, weights, *, name: str, outcomes_name: str, remedy: str):
    """A binary data set: floating `values` and `outcomes` `(..., n)`, weights or None. `remedy` ends the error for
    what has another shape."""
    values, outcomes = as_floats(values, name), as_array(outcomes, outcomes_name)
    if jnp.issubdtype(outcomes.dtype, jnp.complexfloating):
        raise TypeError(f"{outcomes_name} must be 0 or 1, got dtype {outcomes.dtype}")
    if values.ndim == 0 or values.size == 0:
        raise ValueError(f"{name} must have shape (..., n) and not be empty, got {values.shape}")
    shapes = f"{name} {values.shape} and {outcomes_name} {outcomes.shape}"
    if outcomes.ndim == 0 or outcomes.shape[-1] != values.shape[-1]:
        raise ValueError(f"{outcomes_name} must have shape (..., n) with the n of {name}, got {shapes}; {remedy}")
    try:
        rows = np.broadcast_shapes(values.shape, outcomes.shape)
    except ValueError as error:
        raise ValueError(f"the leading axes of {shapes} do not broadcast") from error
    return values, outcomes, as_weights(weights, rows, compute_dtype(values), name)


def _broadcast(name: str, array: jax.Array, other: str, rows: tuple[int, ...]) -> None:
    if array.ndim == 0 and rows == ():
        return
    if array.ndim == 0 or rows == () or array.shape[-1] != rows[-1]:
        raise ValueError(
            f"{name} must have shape (..., n) with the n of {other}, {rows or 'one example'}; got {array.shape}"
        )
    try:
        np.broadcast_shapes(array.shape, rows)
    except ValueError as error:
        raise ValueError(
            f"the leading axes of {name} {array.shape} do not broadcast against those of {other} {rows}"
        ) from error


def align(ndim: int, *arrays: jax.Array | None) -> tuple[jax.Array | None, ...]:
    """Leading axes of size 1 up to `ndim` axes, so that batch axes broadcast by position; None stays None."""
    return tuple(a if a is None else a.reshape((1,) * (ndim - a.ndim) + a.shape) for a in arrays)


def require_batch(batch: tuple[int, ...], logits: jax.Array) -> None:
    """Raise unless fits of shape `batch` can be called on the logits, `(..., n, k)` or `(k,)` for a single fit."""
    if batch and logits.ndim < 2:
        raise ValueError(f"a stack of fits {batch} needs logits (..., n, k), got {logits.shape}")
    try:
        np.broadcast_shapes(batch, logits.shape[:-2])
    except ValueError as error:
        raise ValueError(f"fits of batch shape {batch} do not broadcast against logits {logits.shape}") from error


def lanes(bad) -> np.ndarray:
    """Which lanes of a concrete mask `(..., n)` hold a bad row; one example is a lane of its own."""
    bad = np.asarray(bad)
    return bad.any(-1) if bad.ndim else bad


def raise_if_unusable(bad, explain: Callable[[], str]) -> None:
    """Raise `ValueError(explain())` if the (only) lane, or every lane, of the concrete mask `bad` is bad."""
    bad = np.asarray(bad)
    if bad.size and bad.all():
        raise ValueError(explain())


def explain_multiclass(logits, labels, weights=None, *, call: str, whole: bool = False) -> str:
    """What is wrong with `(logits, labels, weights)`, for an error of `call`."""
    fault = find_multiclass_fault(logits, labels, weights, whole=whole)
    return f"{call}: {fault or f'the result is NaN (an overflow in dtype {np.asarray(logits).dtype}?)'}"


def find_multiclass_fault(logits, labels, weights=None, *, whole: bool = False) -> str | None:
    """The first bad row of `(logits, labels, weights)`, searched on the host, and what is wrong with it, or None."""
    z = np.asarray(logits).astype(np.float64)
    y = np.asarray(labels)
    k = z.shape[-1]
    if weights is not None:
        w = np.asarray(weights).astype(np.float64)
        bad = ~(w >= 0) | (w == np.inf)
        if bad.any():
            return f"weights must be finite and >= 0, got {first(w, bad)}"
        if (w.sum(-1) == 0).all():
            return "weights are all zero, so there is nothing to average"
        if whole and (w != np.round(w)).any():
            return _not_whole(w)
    else:
        w = np.ones(z.shape[:-1])
    shape = np.broadcast_shapes(z.shape[:-1], y.shape, w.shape)
    z, y, used = np.broadcast_to(z, (*shape, k)), np.broadcast_to(y, shape), np.broadcast_to(w, shape) > 0
    for bad, what in (
        (np.isnan(z).any(-1), "logits must not be NaN"),
        ((z == np.inf).any(-1), "logits must not be +inf (a certain class has -inf on all others)"),
        ((z == -np.inf).all(-1), "a row of logits must not be -inf for every class"),
    ):
        if (bad & used).any():
            return f"{what}; {_row(bad & used)} is {z[tuple(np.argwhere(bad & used)[0])]}"
    bad = ((y < 0) | (y >= k)) & used
    if bad.any():
        return (
            f"labels must be integers in [0, {k}) for logits with {k} classes; {_row(bad)} has label "
            f"{_as_given(y[tuple(np.argwhere(bad)[0])])} (rows to ignore get weight 0)"
        )
    own = np.take_along_axis(z, np.clip(y, 0, k - 1)[..., None], -1)[..., 0]
    bad = (own == -np.inf) & used
    if bad.any():
        return (
            f"{_row(bad)} gives its own class {y[tuple(np.argwhere(bad)[0])]} the logit -inf, so the log loss "
            "is infinite for every calibrator that keeps zeros; use jaxcal.logits_from_probs(p, floor=...) or smooth "
            "with jaxcal.laplace"
        )
    return None


def find_event_fault(probabilities, outcomes, weights=None, *, whole: bool = False, scores: bool = False) -> str | None:
    """As `find_multiclass_fault`, for `(probabilities, outcomes)`, or scores on the whole line; None if nothing is
    wrong with them."""
    p, y = (np.asarray(a).astype(np.float64) for a in (probabilities, outcomes))
    w = np.ones(p.shape) if weights is None else np.asarray(weights).astype(np.float64)
    if (~(w >= 0) | (w == np.inf)).any():
        return f"weights must be finite and >= 0, got {first(w, ~(w >= 0) | (w == np.inf))}"
    if (w.sum(-1) == 0).all():
        return "weights are all zero, so there is nothing to average"
    if whole and (w != np.round(w)).any():
        return _not_whole(w)
    p, y, w = np.broadcast_arrays(p, y, w)
    bad = (np.isnan(p) if scores else ~((p >= 0) & (p <= 1))) & (w > 0)
    if bad.any():
        rule = "scores must not be NaN" if scores else "probabilities must be in [0, 1]"
        return f"{rule}, got {first(p, bad)}"
    bad = ~((y == 0) | (y == 1)) & (w > 0)
    if bad.any():
        return f"outcomes must be 0 or 1, got {first(y, bad)}"
    return None


def _not_whole(w: np.ndarray) -> str:
    return f"weights must be whole numbers, since pairs of copies count; got {first(w, w != np.round(w))}"


def require_count(value, name: str, least: int) -> int:
    """The static option `name` as an int; `ValueError` for what is no integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    return int(value)


def is_number(value) -> bool:
    """Whether a static option is a real number of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating)


def require_level(level) -> float:
    """The static option `level`, a probability between 0 and 1."""
    if not is_number(level) or not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level!r}")
    return float(level)


def require_key(key, call: str) -> None:
    """Raise for what is not one JAX random key, of the new kind or of the old one, uint32 `(2,)`."""
    shape = None
    if isinstance(key, jax.Array | np.ndarray):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            shape = key.shape
        elif key.dtype == np.uint32 and key.ndim:
            shape = key.shape[:-1]
    if shape is None:
        raise TypeError(f"{call}: key must be a JAX random key, e.g. jax.random.key(0), got {key!r}")
    if shape:
        raise ValueError(f"{call}: key must be a single key, got {shape} of them; take one, e.g. keys[0]")


def _row(bad: np.ndarray) -> str:
    index = [int(i) for i in np.argwhere(bad)[0]]
    if not index:
        return "the example"
    lane = f" of lane {tuple(index[:-1])}" if len(index) > 1 else ""
    return f"row {index[-1]}{lane}"


def first(values, bad) -> str:
    """The first value of a concrete array that is bad, and where it stands."""
    values, bad = np.asarray(values), np.asarray(bad)
    return f"{_as_given(values[tuple(np.argwhere(bad)[0])])} in {_row(bad)}"


def _as_given(value) -> str:
    """A value for a message: 64-bit integers that `as_array` cut to the ends of int32 were perhaps beyond them."""
    if not jax.config.jax_enable_x64 and value in (_INT32.min, _INT32.max):
        return f"{int(value)} or {'more' if value > 0 else 'less'}"
    return str(value)
