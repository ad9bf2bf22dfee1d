"""The one place that sorts."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def argsort(values: jax.Array) -> jax.Array:
    """Stable ascending permutation of the last axis, int32, a constant for derivatives; NaN last.

    On CPU the sort is NumPy's through a callback, 10 to 25 times faster than XLA's there; on other platforms it is
    `jnp.argsort`. Both are stable, so they return the same permutation.

    Examples:
        >>> import jax.numpy as jnp
        >>> argsort(jnp.array([0.3, 0.1, 0.2])).tolist()
        [1, 2, 0]
    """
    values = lax.stop_gradient(values)
    result = jax.ShapeDtypeStruct(values.shape, jnp.int32)

    def on_host(x):
        def call(array):
            array = np.asarray(array)
            if array.dtype.itemsize == 2:  # NumPy does not know that NaN of bfloat16 goes last
                array = array.astype(np.float32)
            return np.argsort(array, axis=-1, kind="stable").astype(np.int32)

        return jax.pure_callback(call, result, x, vmap_method="broadcast_all")

    def on_device(x):
        return jnp.argsort(x, axis=-1, stable=True).astype(jnp.int32)

    return lax.platform_dependent(values, cpu=on_host, default=on_device)
