"""float64 for everything in `theory`, whatever the caller has set."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_REMEDY = (
    "{name} computes in float64, and inside jit, vmap or grad it cannot switch by itself. "
    "Wrap the outermost call: `with jax.enable_x64(True): jax.grad(...)`"
)


def in_float64(function: Callable) -> Callable:
    """Run an eager call inside `jax.enable_x64(True)`.

    With the caller's x64 off the leaves of the result are float64 NumPy arrays, since a float64 `jax.Array` would turn
    into float32 at its next operation; with x64 on they stay `jax.Array`. Tracers with x64 off raise `TypeError`.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if jax.config.jax_enable_x64:
            return function(*args, **kwargs)
        if inside_trace(args, kwargs):
            raise TypeError(_REMEDY.format(name=function.__name__))
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*args, **kwargs))

    return wrapper


def inside_trace(*values) -> bool:
    """Whether a transformation is at work: in the arguments, or around a call whose arguments are all concrete."""
    leaves = jax.tree.leaves(values)
    return any(isinstance(leaf, jax.core.Tracer) for leaf in [*leaves, lax.neg(np.float32(0))])


def as_reals(value, name: str) -> jax.Array:
    """The caller's numbers in float64."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    return jnp.asarray(array, float)


def nan_unless(ok, values, *received):
    """`values` where `ok`, elsewhere NaN with NaN derivatives in what was `received`."""
    slope = without_slope(~ok, sum(received))
    return jax.tree.map(lambda x: jnp.where(ok, x, jnp.nan) + slope, values)


@jax.custom_jvp
def without_slope(where, x):
    """0, whose derivative in `x` is NaN `where` and 0 elsewhere, forward and reverse.

    A zero tangent or cotangent stays zero, unlike under a product with NaN: a failed lane that takes no part spoils
    nothing.
    """
    return _zero_like(where, x)


def _zero_like(where, x):
    # 0 computed from both: a constant would lack the batch axis of its tangent, which vmap of jvp does not mend
    return jnp.where(where, 0.0, jnp.where(x == x, 0.0, 0.0))


@without_slope.defjvp
def _(primals, tangents):
    where, x = primals

    def mark(_, tangent):
        return jnp.where(where & (tangent != 0), jnp.nan, 0.0)

    # the one linear operation whose two directions JAX lets a caller define
    return _zero_like(where, x), lax.custom_linear_solve(lambda v: v, tangents[1], mark, mark)
