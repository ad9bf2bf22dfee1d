"""Loops that every lane of a batch runs by itself."""

from collections.abc import Callable

import jax
from jax import lax
from jax.custom_batching import custom_vmap


def lane_by_lane(solve: Callable, elsewhere: Callable | None = None) -> Callable:
    """`solve`, a function from arrays to a tuple of arrays, whose lanes run one after another under `jax.vmap` on CPU.

    A vectorized loop takes every lane through as many steps as the slowest needs, and both branches of every choice. On
    accelerators, which have no use for one lane at a time, it stays vectorized, and may be another function,
    `elsewhere`. Arrays that all lanes share are not copied. Not differentiable: it is what a derivative rule stands
    around.
    """
    other = elsewhere or solve

    @custom_vmap
    def run(*operands):
        return solve(*operands) if other is solve else lax.platform_dependent(*operands, cpu=solve, default=other)

    @run.def_vmap
    def _(axis_size, batched, *operands):
        del axis_size
        lanes = tuple(a for a, b in zip(operands, batched, strict=True) if b)

        def one(lane):
            own = iter(lane)
            return run(*(next(own) if b else a for a, b in zip(operands, batched, strict=True)))

        def together(lanes):
            own = iter(lanes)
            arrays = [next(own) if b else a for a, b in zip(operands, batched, strict=True)]
            return jax.vmap(other, in_axes=tuple(0 if b else None for b in batched))(*arrays)

        results = lax.platform_dependent(lanes, cpu=lambda lanes: lax.map(one, lanes), default=together)
        return results, (True,) * len(results)

    return run
