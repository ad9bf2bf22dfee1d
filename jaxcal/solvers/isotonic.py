"""Isotonic regression by pooling adjacent violators."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.solvers.isotonic_merge import merged_fit
from jaxcal.solvers.lanes import lane_by_lane
from jaxcal.solvers.sums import add_pairs, run_totals


def isotonic_regression(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Non-decreasing sequence closest to `values` in weighted squares; `(..., n)` twice to `(..., n)`.

    The fit is constant on blocks of neighbours and equals the weighted mean of each; it minimizes every Bregman
    divergence at once. An entry of weight 0 has no influence, may hold anything and takes the value of the block it
    lies in (between two blocks: of the one before, at the front: of the first). Lanes whose values are not finite, or
    whose weights are negative, not finite or all 0, are NaN. Fits increase exactly; block means are right to a few eps
    also where a block has a million entries.

    Differentiable in both with the blocks held fixed, to every order: each entry of a block moves with the weighted
    mean of the block's tangents, and weight i moves it by (v_i - fit) / (weight of the block).

    Cost O(n) on CPU, about 40 ns an entry; lanes run one after another, under `jax.vmap` too: a vectorized loop would
    take as long as its slowest lane at every step. Accelerators join fits of neighbours, all lanes at once: O(n log n).
    """
    shape = jnp.broadcast_shapes(values.shape, weights.shape)
    present = weights > 0
    values = jnp.where(present, values, 0)
    ok = jnp.all(jnp.isfinite(values) & (weights >= 0) & (weights < jnp.inf), axis=-1, keepdims=True)
    ok &= jnp.any(present, axis=-1, keepdims=True)
    weights = jnp.where(ok, weights, 1)
    lanes = [jnp.broadcast_to(lax.stop_gradient(a), shape).reshape(-1, shape[-1]) for a in (values, weights)]
    fit, block = (a.reshape(shape) for a in jax.vmap(lane_by_lane(_lane))(*lanes))
    return _block_mean(fit, block, values, weights) * jnp.where(ok, 1, jnp.nan).astype(fit.dtype)


def _lane(values, weights):
    return lax.platform_dependent(values, weights, cpu=_pool, default=merged_fit)


def _pool(values, weights):
    """Fit of one lane, and for each entry where its block begins.

    The blocks so far are a chain with increasing means, each stored at its first entry. A new entry opens a block,
    which swallows the last of the chain as long as that is not below it. Every entry joins the chain once and leaves it
    at most once, which bounds the loops: n turns of the outer, n of the inner one altogether.
    """
    n, dtype = values.shape[0], values.dtype
    zero, infinity = jnp.zeros((), dtype), jnp.asarray(jnp.inf, dtype)

    def mean(high, low, mass_high, mass_low):
        mass = mass_high + mass_low
        return jnp.where(mass > 0, (high + low) / mass, infinity)  # at the front, to be swallowed by the next

    def add(i, state):
        last, chain = state
        *sums, means, before = chain

        def violated(block):
            return (block[0] >= 0) & (means[jnp.maximum(block[0], 0)] >= block[2])

        def merge(block):
            other, _, _, *own = block
            parts = [a[other] for a in sums]
            own = (*add_pairs(*own[:2], *parts[:2]), *add_pairs(*own[2:], *parts[2:]))
            return before[other], other, mean(*own), *own

        v, w = values[i], weights[i]
        # an entry of weight 0 is swallowed by whatever is before it. The product is rounded, once an entry
        level = jnp.where(w > 0, v, -infinity)
        previous, first, level, *own = lax.while_loop(violated, merge, (last, i, level, v * w, zero, w, zero))
        level = jnp.where(own[2] > 0, level, infinity)
        return first, tuple(a.at[first].set(x) for a, x in zip(chain, (*own, level, previous), strict=True))

    nothing = jnp.full(n, -1, jnp.int32)
    last, chain = lax.fori_loop(0, n, add, (jnp.int32(-1), (*[jnp.zeros(n, dtype)] * 5, nothing)))
    *_, means, before = chain

    def read(k, state):
        block, fit, first = state
        i = n - 1 - k
        block = jnp.where(i < block, before[block], block)
        return block, fit.at[i].set(means[block]), first.at[i].set(block)

    return lax.fori_loop(0, n, read, (last, jnp.zeros(n, dtype), nothing))[1:]


@jax.custom_jvp
def _block_mean(fit, block, values, weights):
    """`fit`, with the derivatives of the weighted mean over each block."""
    return fit


@_block_mean.defjvp
def _(primals, tangents):
    fit, block, values, weights = primals
    n = fit.shape[-1]
    fit = _block_mean(fit, block, values, weights)
    change = weights * tangents[2] + jnp.where(weights > 0, values - fit, 0) * tangents[3]
    mass = run_totals(weights, block, n)
    slope = run_totals(change, block, n) / jnp.where(mass > 0, mass, 1)
    return fit, jnp.take_along_axis(slope, block, axis=-1)
