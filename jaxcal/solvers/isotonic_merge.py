"""Isotonic regression in logarithmic depth, for accelerators: fits of neighbouring stretches are joined in pairs."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.solvers.sums import add_pairs, run_totals

# Levels that share a loop, and with it the number of pairs of its first one: fewer waste less, more compile faster.
_LEVELS_A_LOOP = 5


def merged_fit(values: jax.Array, weights: jax.Array, tied: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The isotonic fit of one lane, 1 minus that, and for each entry where its block begins; `(n,)` each.

    Fits of stretches of 1, 2, 4, ... entries are joined. Where the last value of the left one is above the first of the
    right one, a tail of the left and a head of the right become one block. The mean of that is the root in t of

        sum over the tail with fit >= t of w (fit - t)  -  sum over the head with fit <= t of w (t - fit),

    which decreases: bisection finds the tail, then the head, from running sums of the data. Depth O(log^3 n), work
    O(n log n), most of it one pass over the entries a level. Values finite, weights >= 0 and not all 0; entries that
    are `tied` have the value of the one before.
    """
    n = values.shape[0]
    num_levels = (n - 1).bit_length()
    size = 1 << num_levels
    # tied entries become one and those of weight 0 leave; behind the others everything is in order
    run = jnp.cumsum(~tied.at[0].set(False), dtype=jnp.int32) - 1
    mass = run_totals(weights, run, size)
    product = run_totals(jnp.where(weights > 0, weights * values, 0), run, size)
    alone = run_totals((weights > 0).astype(jnp.int32), run, size) == 1
    own = jnp.zeros(size, values.dtype).at[jnp.where(weights > 0, run, size)].set(values, mode="drop")
    place = jnp.cumsum(mass > 0, dtype=jnp.int32) - 1
    slot = jnp.where(mass > 0, place, size)
    value = jnp.where(alone, own, product / jnp.where(mass > 0, mass, 1))
    fit = jnp.full(size, jnp.inf, values.dtype).at[slot].set(value, mode="drop")
    products, masses = (jnp.zeros_like(a).at[slot].set(a, mode="drop") for a in (product, mass))
    row = jnp.arange(size, dtype=jnp.int32)
    totals = [_running_totals(a, 0 * row) for a in (products, masses)]
    state = (fit, row, row + 1)
    for level in range(0, num_levels, _LEVELS_A_LOOP):
        step = partial(_join, size >> (level + 1), *totals)
        state = lax.fori_loop(level, min(level + _LEVELS_A_LOOP, num_levels), step, state)
    fit, start, stop = state
    # once more from the sums of each block alone: differences of running sums have the rounding of all before them
    (high, high_rest), (low, low_rest) = ([a[stop] for a in _running_totals(b, start)] for b in (products, masses))
    total = jnp.where(low > 0, low + low_rest, 1)
    fit = lax.cummax(jnp.where(stop - start > 1, (high + high_rest) / total, fit))
    rest = ((low - high) + (low_rest - high_rest)) / total
    fit, rest = (a[jnp.maximum(place[run], 0)] for a in (fit, rest))
    new = jnp.concatenate([jnp.ones(1, bool), fit[1:] != fit[:-1]])
    return fit, rest, lax.cummax(jnp.where(new, jnp.arange(n, dtype=jnp.int32), 0))


def _running_totals(values, first):
    """Sums of the values from `first` on before the entries 0, 1, ..., n, as pairs of `add_pairs`; by doubling."""
    n = values.shape[0]
    row = jnp.arange(n, dtype=jnp.int32)

    def double(step, sums):
        before = row - (1 << step)
        return add_pairs(*sums, *(jnp.where(before >= first, a[jnp.maximum(before, 0)], 0) for a in sums))

    sums = lax.fori_loop(0, n.bit_length(), double, (values, jnp.zeros_like(values)))
    return tuple(jnp.concatenate([jnp.zeros(1, a.dtype), a]) for a in sums)


def _between(totals, start, stop):
    high, rest = add_pairs(*(a[stop] for a in totals), *(-a[start] for a in totals))
    return high + rest


def _join(num_pairs, sums, masses, level, state):
    """Join the stretches of 2^level entries in pairs; the state has each entry's fit and the ends of its block."""
    fit, start, stop = state
    half = jnp.int32(1) << level
    middle = half + 2 * half * jnp.arange(num_pairs, dtype=jnp.int32)
    middle = jnp.where(middle < len(fit), middle, half)  # levels above the first of a loop have fewer pairs

    def excess(i, j, t):
        """Sum of w (v - t) over the entries i to j - 1."""
        return _between(sums, i, j) - t * _between(masses, i, j)

    def first(holds, low, high):
        """The first place from `low` on where it holds, as it does from there on; `high` if there is none."""

        def halve(_, ends):
            low, high = ends
            place = (low + high) // 2
            found, open_ = holds(place), low < high
            return jnp.where(open_ & ~found, place + 1, low), jnp.where(open_ & found, place, high)

        return lax.fori_loop(0, level + 1, halve, (low, high))[0]

    def in_tail(i):
        head = first(lambda j: fit[j] > fit[i], middle, middle + half)
        return ~(excess(start[i], head, fit[i]) > 0)  # NaN where the fit is infinite, behind all entries

    tail = first(in_tail, middle - half, middle)
    head = first(lambda j: ~(excess(tail, start[j], fit[j]) >= 0), middle, middle + half)
    mean = _between(sums, tail, head) / _between(masses, tail, head)
    pair = jnp.arange(len(fit), dtype=jnp.int32) >> (level + 1)
    low, mid, high, level_of = (a[pair] for a in (tail, middle, head, mean))
    row = jnp.arange(len(fit), dtype=jnp.int32)
    pooled = (low < mid) & (mid < high) & (low <= row) & (row < high)
    return tuple(jnp.where(pooled, new, old) for new, old in ((level_of, fit), (low, start), (high, stop)))
