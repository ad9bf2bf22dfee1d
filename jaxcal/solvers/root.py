"""Roots of decreasing scalar functions, one a lane, by a safeguarded secant iteration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Root(NamedTuple):
    """Where the iteration stood when it stopped; every leaf has the batch shape."""

    x: jax.Array
    value: jax.Array
    slope: jax.Array
    aux: Any
    converged: jax.Array
    at_lower: jax.Array
    num_steps: jax.Array


class _State(NamedTuple):
    step: jax.Array  # scalar, counts evaluations of the whole batch
    x: jax.Array  # next point to evaluate
    low: jax.Array  # largest point known to have value > 0 (the lower end before one is known)
    high: jax.Array  # smallest point known to have value < 0
    seen_low: jax.Array
    seen_high: jax.Array
    last_x: jax.Array
    last_value: jax.Array
    stride: jax.Array  # |step| two evaluations ago, for the halving test
    previous_stride: jax.Array
    root: Root
    done: jax.Array


def bracketed_root(
    fn: Callable[[jax.Array], tuple[jax.Array, Any]],
    guess: jax.Array,
    slope: jax.Array,
    lower: jax.Array | float,
    upper: jax.Array | float,
    *,
    accept: Callable[[jax.Array, jax.Array, Any], jax.Array],
    active: jax.Array,
    max_steps: int,
    max_stride: float = 4.0,
) -> Root:
    """Find the root of a decreasing function in [lower, upper], elementwise over the batch shape.

    A secant step is taken where it stays inside the bracket and at least halves the step before last (Brent's rule);
    bisection otherwise, of the logarithm where the ends are positive and far apart. The first step uses `slope`. Up,
    without a bracket, steps that do not halve the value grow. The loop runs until every active lane is done.

    Args:
        fn: maps points `(...)` to `(values (...), aux)`; `aux` is a pytree of leaves `(...)`.
        guess: first points, `(...)`.
        slope: estimate of the derivative at `guess`, negative, `(...)`.
        lower, upper: ends of the search interval. `lower` is evaluated when a step wants to go below it: a value <= 0
            there ends the lane with `at_lower`.
        accept: `(value, step, aux) -> bool (...)`: the evaluated point is good enough, given the next secant step.
        active: lanes to solve, bool `(...)`; the others come back as they went in, `converged` False.
        max_steps: limit of evaluations.
        max_stride: longest step while no bracket is known.

    Returns:
        The best point of each lane with the value, slope and aux found there.
    """
    eps = jnp.finfo(guess.dtype).eps
    shape = guess.shape
    lower = jnp.broadcast_to(jnp.asarray(lower, guess.dtype), shape)
    upper = jnp.broadcast_to(jnp.asarray(upper, guess.dtype), shape)
    no = jnp.zeros(shape, bool)
    inf = jnp.full(shape, jnp.inf, guess.dtype)

    aux = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), jax.eval_shape(fn, guess)[1])
    root = Root(guess, inf, slope, aux, no, no, jnp.zeros(shape, jnp.int32))
    start = _State(jnp.int32(0), guess, lower, upper, no, no, guess, inf, inf, inf, root, ~active)

    def keep_going(state):
        return jnp.any(~state.done) & (state.step < max_steps)

    def advance(state):
        x, first = state.x, state.root.num_steps == 0
        value, aux = fn(x)
        secant = (value - state.last_value) / jnp.where(x == state.last_x, 1, x - state.last_x)
        slope = jnp.where(~first & (secant < 0) & (secant > -jnp.inf), secant, state.root.slope)
        step = -value / slope
        on_lower = (x <= lower) & (value <= 0)
        accepted = accept(value, step, aux) | (value == 0) | on_lower

        seen_low, seen_high = state.seen_low | (value > 0), state.seen_high | (value < 0)
        low, high = jnp.where(value > 0, x, state.low), jnp.where(value < 0, x, state.high)
        target = x + step
        inside = (target > low) & (target < high)
        halving = jnp.abs(step) <= 0.5 * state.stride
        # between ends of different order, halve the logarithm
        far = (low > 0) & (high > 16 * low)
        middle = jnp.where(far, jnp.sqrt(jnp.where(far, low, 1)) * jnp.sqrt(high), low + 0.5 * (high - low))
        bracketed = jnp.where(inside & halving, target, middle)
        # without a bracket: down, straight to the lower end when the step asks for it; up, by bounded strides
        down = jnp.where(target > lower, jnp.maximum(target, x - max_stride), lower)
        slow = ~first & (state.last_value > 0) & (value > 0.5 * state.last_value) & (x > state.last_x)
        up = jnp.where(slow, jnp.maximum(target, x + 4 * (x - state.last_x)), target)
        up = jnp.minimum(jnp.where(inside, jnp.minimum(up, x + max_stride), x + max_stride), upper)
        following = jnp.where(seen_low & seen_high, bracketed, jnp.where(value > 0, up, down))
        # rounding: no point left between the ends, no movement, or nothing to compare
        stuck = (following == x) | (seen_low & seen_high & (high - low <= 2 * eps * jnp.abs(x))) | jnp.isnan(value)

        better = ~state.done & ((jnp.abs(value) <= jnp.abs(state.root.value)) | first | accepted)
        pick = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        live = ~state.done
        root = Root(
            pick(x, state.root.x),
            pick(value, state.root.value),
            jnp.where(live, slope, state.root.slope),
            jax.tree.map(pick, aux, state.root.aux),
            state.root.converged | (live & (accepted | (stuck & ~jnp.isnan(value)))),
            state.root.at_lower | (live & on_lower),
            state.root.num_steps + live,
        )
        done = state.done | accepted | stuck
        return _State(
            state.step + 1,
            jnp.where(done, x, following),
            low,
            high,
            seen_low,
            seen_high,
            x,
            value,
            state.previous_stride,
            jnp.where(first, inf, jnp.abs(following - x)),
            root,
            done,
        )

    return lax.while_loop(keep_going, advance, start).root
