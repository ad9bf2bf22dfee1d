"""Bootstrap resamples as counts: how often each row is drawn."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.solvers import scaled_to, threefry

# Counts start as independent Poisson variables whose total is this many standard deviations below the number of draws,
# so that it is above it 3 times in 100,000, and are filled up in steps of twice that many: mostly one.
_MARGIN = 4.0

# With counts a lane that starts anew may have far more draws to make than there are rows: with this margin none does
# (1e-15), and at least so many rows are drawn in a step.
_WIDE_MARGIN, _LEAST_STEP = 8.0, 1024

# A Poisson variable of mean 1 exceeds 12, and one of mean 8 exceeds 32, with probability 1e-10; beyond that the general
# generator is called, which is a hundred times slower.
_TERMS, _FEW, _TERMS_OF_FEW = 12, 8, 32

# Draws are counted in int32, and a float32 sum of counts is right to a fraction of that.
MOST_DRAWS = 2**30

# From this mean on a Poisson variable is drawn from the normal law, bent to its skewness: what that leaves out of the
# distribution function is of the order 1 / mean. The generator of `jax.random` has the wrong variance from 10^8 on.
_MANY = 10_000


def without_bootstrap(remedy: str, *, unless: str | None = None) -> Callable[[Callable], Callable]:
    """Mark an estimate whose resamples do not scatter as its samples do: `jaxcal.bootstrap` names the remedy.

    `unless` is the keyword of an option with which the estimate has an interval.
    """

    def mark(metric: Callable) -> Callable:
        metric.instead_of_bootstrap = (remedy, unless)
        return metric

    return mark


def reject_unfit(metric: Callable) -> None:
    """Raise `ValueError` for an estimate of this package that has no bootstrap interval, also with options bound."""
    options, seen = {}, set()
    while isinstance(metric, partial) or not hasattr(metric, "instead_of_bootstrap"):
        if id(metric) in seen:  # wraps itself
            return
        seen.add(id(metric))
        if isinstance(metric, partial):
            metric, options = metric.func, {**metric.keywords, **options}
        elif hasattr(metric, "__wrapped__"):  # as `jax.jit` of a partial
            metric = metric.__wrapped__
        else:
            return
    remedy, unless = metric.instead_of_bootstrap
    if not options.get(unless):
        raise ValueError(f"no bootstrap interval of {metric.__name__} is valid: {remedy}")


def units(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is drawn from `weights (n,)`: how many units each row holds, int32, and what a unit weighs.

    Whole weights are counts of rows of weight 1. Other weights belong to their row, which is one unit.
    """
    weights = jnp.where(weights > 0, weights, 0)
    whole = jnp.all(weights == jnp.floor(weights)) & (jnp.sum(weights) <= MOST_DRAWS)
    count = jnp.where(whole, weights, weights > 0).astype(jnp.int32)
    return count, jnp.where(whole, 1, weights)


def multinomial(words: jax.Array, n: int, count: jax.Array | None) -> jax.Array:
    """Draw as many rows as there are, with replacement: how often each came, int32 `(b, n)` for words `(b, 2)`.

    The sum of `count (n,)` rows is drawn, row i with probability count_i / sum; None is one of each.

    Independent Poisson counts, given their sum N, are a multinomial draw of N rows; rows drawn one by one make up what
    is missing. A lane with N too large starts from nothing. So the counts are exactly multinomial, up to the resolution
    2^-24 of the uniform numbers and, for counts above 10,000, the normal law, at a fraction of the price of drawing
    every row.
    """
    total = jnp.uint32(n) if count is None else jnp.sum(count, dtype=jnp.uint32)
    key = (words[:, :1], words[:, 1:])
    margin = _MARGIN if count is None else _WIDE_MARGIN
    rate = jnp.maximum(1 - margin / jnp.sqrt(total.astype(jnp.float32)), 0)
    if count is None:
        drawn = _poisson(key, rate, n, _TERMS)
    else:
        few = jnp.max(count) <= _FEW
        sparse, dense = (
            lambda: _poisson(key, rate * count, n, _TERMS_OF_FEW),
            lambda: _poisson_of_many(words, rate * count),
        )
        drawn = lax.cond(few, sparse, dense)
    missing = total.astype(jnp.int32) - jnp.sum(drawn, axis=-1, dtype=jnp.int32)
    too_many = missing < 0
    drawn = jnp.where(too_many[:, None], 0, drawn)
    missing = jnp.where(too_many, total.astype(jnp.int32), missing)
    ends = None if count is None else jnp.cumsum(count, dtype=jnp.int32)
    size = min(n, math.ceil(2 * margin * math.sqrt(n))) if count is None else max(_LEAST_STEP, math.isqrt(n))

    def fill_up(state):
        step, drawn, missing = state
        row = jnp.concatenate([scaled_to(words, total) for words in _words(key, step, size)], axis=-1)
        row = row[:, :size].astype(jnp.int32)
        row = row if ends is None else jnp.searchsorted(ends, row, side="right").astype(jnp.int32)
        one = (jnp.arange(size) < missing[:, None]).astype(drawn.dtype)
        drawn = jax.vmap(lambda d, r, o: d.at[r].add(o, mode="drop"))(drawn, row, one)
        return step + 1, drawn, jnp.maximum(missing - size, 0)

    # ends: every step draws `size` of the missing rows
    return lax.while_loop(lambda state: jnp.any(state[2] > 0), fill_up, (jnp.uint32(1), drawn, missing))[1]


def _words(key, step, n: int):
    """Uniform uint32, two arrays `(b, ceil(n / 2))`, other ones for every step. What follows treats them apart: each
    element of one long array would be computed twice, once for either half."""
    return threefry(key, (step, jnp.arange(-(-n // 2), dtype=jnp.uint32)[None]))


def _poisson(key, rate, n: int, num_terms: int):
    """Poisson variables `(b, n)`: how many steps of their distribution function are at or below a uniform number."""
    half = -(-n // 2)
    rates = (rate, rate) if jnp.ndim(rate) == 0 else (rate[:half], jnp.pad(rate[half:], (0, 2 * half - n)))
    words = _words(key, jnp.uint32(0), n)
    return jnp.concatenate([_steps(w, r, num_terms) for w, r in zip(words, rates, strict=True)], axis=-1)[:, :n]


def _steps(words, rate, num_terms: int):
    uniform = (words >> 8).astype(jnp.float32) * 2.0**-24
    mass = below = jnp.exp(-rate)
    count = jnp.zeros(uniform.shape, jnp.int32)
    for k in range(1, num_terms + 1):
        count += uniform >= below
        mass *= rate / k
        below += mass
    return count


def _poisson_of_many(words, rate):
    def one(words):
        few_key, many_key = jax.random.split(jax.random.wrap_key_data(words, impl="threefry2x32"))
        few = jax.random.poisson(few_key, jnp.minimum(rate, _MANY), dtype=jnp.int32)
        whole = jnp.round(rate)
        z = jax.random.normal(many_key, rate.shape)
        bent = jnp.sqrt(rate) * z + (z**2 - 1) / 6 + (rate - whole)
        return jnp.where(rate < _MANY, few, whole.astype(jnp.int32) + jnp.round(bent).astype(jnp.int32))

    return jax.vmap(one)(words)
