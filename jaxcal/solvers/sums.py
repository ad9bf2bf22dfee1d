"""Sums that keep float32 honest and fast."""

import math

import jax
import jax.numpy as jnp
from jax import lax

# 64 partial sums: the rounding error of a running float32 sum grows with its length, and 64 interleaved ones cut it by
# that factor; more gain nothing at n < 1e7, where the error already is that of the terms.
_PARTIAL_SUMS = 64

# An addition to a segment is not vectorized: equal terms, as those of saturated forecasts, drift by 3e-4 over 30,000 of
# them. 256 a part keep 3e-6 at no cost in time.
_TERMS_A_PART = 256

# An addition waits for the last one to the same address; with 8 parts few do.
_FEWEST_PARTS = 8


def total(values: jax.Array) -> jax.Array:
    """Sum over the last axis by a tree of 64 interleaved partial sums; `(..., n)` to `(...)`.

    Written as explicit additions because the compiler folds a reduction of a reduction back into one running sum.
    """
    n = values.shape[-1]
    if n <= _PARTIAL_SUMS:
        return jnp.sum(values, axis=-1, dtype=values.dtype)
    padding = [(0, 0)] * (values.ndim - 1) + [(0, -n % _PARTIAL_SUMS)]
    parts = jnp.pad(values, padding).reshape(*values.shape[:-1], _PARTIAL_SUMS, -1)
    while parts.shape[-2] > 1:
        half = parts.shape[-2] // 2
        parts = parts[..., :half, :] + parts[..., half:, :]
    return jnp.sum(parts[..., 0, :], axis=-1, dtype=values.dtype)


def segment_totals(values: jax.Array, segment: jax.Array, num_segments: int) -> jax.Array:
    """Sum of `values` by segment over the last axis; `(..., n)` and int `(..., n)` to `(..., num_segments)`.

    Each segment is summed in 8 to 64 interleaved parts for each block of rows, for the rounding, and so that parallel
    additions to one address do not queue up. Segments outside [0, num_segments) are dropped.
    """
    values, segment = jnp.broadcast_arrays(values, segment)
    n = values.shape[-1]
    # few parts where there are few terms: they must be added up in turn
    num_parts = min(_PARTIAL_SUMS, max(_FEWEST_PARTS, 1 << (n // _TERMS_A_PART).bit_length()))
    if num_segments * num_parts > max(n, 1 << 16):  # segments hold few terms each
        num_parts = 1
    block = max(num_parts * _TERMS_A_PART, num_segments)  # the parts of a block are in cache while its rows are added
    num_blocks = max(1, n // block)
    row = jnp.arange(n, dtype=jnp.int32)
    part = jnp.minimum(row // block, num_blocks - 1) * (num_segments * num_parts) + row % num_parts
    num_slots = num_blocks * num_segments * num_parts
    inside = (segment >= 0) & (segment < num_segments)
    slot = jnp.where(inside, segment * num_parts + part, num_slots)

    def one(values, slot):
        parts = jnp.zeros(num_slots, values.dtype).at[slot].add(values, mode="drop")
        parts = parts.reshape(num_blocks, num_segments, num_parts).swapaxes(0, 1)
        return total(parts.reshape(num_segments, -1))

    flat = jax.vmap(one)(values.reshape(-1, n), slot.reshape(-1, n))
    return flat.reshape(*values.shape[:-1], num_segments)


def runs(ordered: jax.Array) -> jax.Array:
    """Number of the run of equal values that each entry of the last axis is in, from 0; int32.

    Examples:
        >>> import jax.numpy as jnp
        >>> runs(jnp.array([0.1, 0.1, 0.4, 0.7, 0.7])).tolist()
        [0, 0, 1, 2, 2]
    """
    first = jnp.zeros_like(ordered[..., :1], jnp.int32)
    new = jnp.concatenate([first, (ordered[..., 1:] != ordered[..., :-1]).astype(jnp.int32)], -1)
    return lax.cumsum(new, axis=new.ndim - 1)


def run_totals(values: jax.Array, run: jax.Array, num_runs: int) -> jax.Array:
    """Sum of `values` over each run of equal `run` (non-decreasing from 0); `(..., n)` twice to `(..., num_runs)`.

    The leading axes of both broadcast. Floats of a run longer than 256 are added in parts, for the rounding.
    """
    shape = jnp.broadcast_shapes(values.shape, run.shape)
    n = shape[-1]
    values, run = (jnp.broadcast_to(a, shape).reshape(-1, n) for a in (values, run))

    def add(size):
        return jax.vmap(lambda v, r: jnp.zeros(size, v.dtype).at[r].add(v, indices_are_sorted=True, mode="drop"))

    if jnp.issubdtype(values.dtype, jnp.floating) and n > _TERMS_A_PART:
        # a part never goes beyond its run or a block of rows, so both numbers increase along the rows
        num_parts = num_runs + n // _TERMS_A_PART
        part = run + jnp.arange(n, dtype=run.dtype) // _TERMS_A_PART
        owner = jax.vmap(lambda r, p: jnp.full(num_parts, num_runs, r.dtype).at[p].set(r, indices_are_sorted=True))
        values, run = add(num_parts)(values, part), owner(run, part)
    return add(num_runs)(values, run).reshape(*shape[:-1], num_runs)


def add_pairs(a, a_rest, b, b_rest):
    """Sum of two numbers, each stored as what fits the dtype and the remainder."""
    high = a + b
    part = high - a
    rest = (a - (high - part)) + (b - part) + (a_rest + b_rest)
    total = high + rest  # the remainder must stay small, or its own rounding adds up
    return total, rest - (total - high)


def running_totals(values: jax.Array, rests: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Sums up to each entry of the last axis, `(..., n)`, as pairs of `add_pairs`, so that they may cancel later.

    `rests` are remainders of the values. Two loops of sqrt(n) steps: within blocks, all at once, and over blocks.
    """
    n = values.shape[-1]
    size = math.isqrt(n - 1) + 1
    rests = jnp.zeros_like(values) if rests is None else rests
    padding = [(0, 0)] * (values.ndim - 1) + [(0, -n % size)]
    blocks = [jnp.moveaxis(jnp.pad(a, padding).reshape(*a.shape[:-1], -1, size), -1, 0) for a in (values, rests)]

    def add(sums, more):
        following = add_pairs(*sums, *more)
        return following, (sums, following)

    zero = jnp.zeros_like(blocks[0][0])
    totals, (_, inside) = lax.scan(add, (zero, zero), tuple(blocks))  # (..., blocks) and (size, ..., blocks)
    first = jnp.zeros_like(zero[..., 0])
    _, (before, _) = lax.scan(add, (first, first), tuple(jnp.moveaxis(a, -1, 0) for a in totals))
    sums = add_pairs(*(jnp.moveaxis(a, 0, -1) for a in before), *inside)
    return tuple(jnp.moveaxis(a, 0, -1).reshape(*values.shape[:-1], -1)[..., :n] for a in sums)
