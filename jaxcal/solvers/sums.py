"""Sums that keep float32 honest and fast."""

import jax
import jax.numpy as jnp

# 64 partial sums: the rounding error of a running float32 sum grows with its length, and 64 interleaved ones cut it by
# that factor; more gain nothing at n < 1e7, where the error already is that of the terms.
_PARTIAL_SUMS = 64


def total(values: jax.Array) -> jax.Array:
    """Sum over the last axis by a tree of 64 interleaved partial sums; `(..., n)` to `(...)`.

    Written as explicit additions because the compiler folds a reduction of a reduction back into one running sum.
    """
    n = values.shape[-1]
    if n <= _PARTIAL_SUMS:
        return jnp.sum(values, axis=-1)
    padding = [(0, 0)] * (values.ndim - 1) + [(0, -n % _PARTIAL_SUMS)]
    parts = jnp.pad(values, padding).reshape(*values.shape[:-1], _PARTIAL_SUMS, -1)
    while parts.shape[-2] > 1:
        half = parts.shape[-2] // 2
        parts = parts[..., :half, :] + parts[..., half:, :]
    return jnp.sum(parts[..., 0, :], axis=-1)


def segment_totals(values: jax.Array, segment: jax.Array, num_segments: int) -> jax.Array:
    """Sum of `values` by segment over the last axis; `(..., n)` and int `(..., n)` to `(..., num_segments)`.

    Each segment is summed in 64 interleaved parts, for the rounding as in `total`, and so that parallel additions to
    one address do not queue up. Segments outside [0, num_segments) are dropped.
    """
    values, segment = jnp.broadcast_arrays(values, segment)
    n = values.shape[-1]
    inside = (segment >= 0) & (segment < num_segments)
    slot = jnp.where(inside, segment, num_segments) * _PARTIAL_SUMS + jnp.arange(n, dtype=segment.dtype) % _PARTIAL_SUMS

    def one(values, slot):
        parts = jnp.zeros(num_segments * _PARTIAL_SUMS, values.dtype).at[slot].add(values, mode="drop")
        return total(parts.reshape(num_segments, _PARTIAL_SUMS))

    flat = jax.vmap(one)(values.reshape(-1, n), slot.reshape(-1, n))
    return flat.reshape(*values.shape[:-1], num_segments)
