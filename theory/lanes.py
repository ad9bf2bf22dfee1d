"""Many problems at once: one compiled function for a lane, run over lanes in chunks of a few fixed sizes."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from theory.precision import inside_trace

# Lanes that share a loop: enough to amortize its overhead, few enough that the slowest holds up only these. A call is
# filled up to one of these sizes, so that the number of problems makes at most four compilations.
_SIZES = (1, 8, 24, 64)
# Atoms of all lanes of a chunk: 2 MB an array, of which a Newton step holds about ten.
_CHUNK_ATOMS = 2**18
# Chunks that run at the same time, since the loops inside a compiled lane use one core; more than 8 wait for memory.
_THREADS = min(8, os.cpu_count() or 1)


def over_lanes(function: Callable, static: tuple, arrays: tuple, spectrum) -> tuple:
    """`function(*static, *lane, valid, values, weights)` for every element of the broadcast shape.

    Args:
        function: one lane; a module-level function, so that it is compiled once.
        static: its hashable options.
        arrays: float64 arrays that broadcast with each other and with the spectrum.
        spectrum: its atoms and validity are the last three arguments.

    Returns:
        The function's tuple, each in the broadcast shape.
    """
    shape = jnp.broadcast_shapes(*(np.shape(x) for x in arrays), spectrum.batch_shape)
    if inside_trace(arrays, spectrum):
        return _traced(function, static, arrays, spectrum, shape)
    lanes = tuple(np.broadcast_to(np.asarray(x), shape).reshape(-1) for x in arrays)
    batched = spectrum.batch_shape != ()
    spectrum = spectrum.padded()
    if batched:
        lanes = (*lanes, spectrum.lanes(shape, np))
    count = max(math.prod(shape), 1)
    sizes = _sizes(spectrum)
    size = next((s for s in sizes if s >= count), sizes[-1])
    # an empty batch is filled with ones, for the dtypes of the result
    if math.prod(shape) == 0:
        lanes = jax.tree.map(lambda x: np.ones((1, *x.shape[1:])), lanes)
    starts = range(0, count, size)

    device = jax.config.jax_default_device

    def run(start):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        chunk = jax.tree.map(lambda x: x[rows], lanes)
        with jax.enable_x64(True), jax.default_device(device):  # a thread starts without the caller's context
            result = _chunk(function, static, batched, chunk, None if batched else spectrum)
            return jax.tree.map(np.asarray, result)

    if len(starts) == 1:
        parts = [run(0)]
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            parts = list(pool.map(run, starts))
    whole = (np.concatenate(column)[: math.prod(shape)].reshape(shape) for column in zip(*parts, strict=True))
    return tuple(jnp.asarray(x) for x in whole)


def _sizes(spectrum) -> tuple[int, ...]:
    """The sizes of chunks that fit the spectrum's number of atoms."""
    return tuple(s for s in _SIZES if s == 1 or s * spectrum.num_atoms <= _CHUNK_ATOMS)


@jax.jit(static_argnums=(0, 1, 2))
def _chunk(function, static, batched, lanes, spectrum):
    if not batched:
        valid, atoms = spectrum.valid(), spectrum._atoms()
        return jax.vmap(lambda *lane: function(*static, *lane, valid, *atoms))(*lanes)

    def one(*lane):
        *rest, own = lane
        return function(*static, *rest, own.valid(), *own._atoms())

    return jax.vmap(one)(*lanes)


def _traced(function, static, arrays, spectrum, shape):
    """The same inside a transformation, where the number of lanes is part of the program."""
    lanes = tuple(jnp.broadcast_to(x, shape).reshape(-1) for x in arrays)
    batched = spectrum.batch_shape != ()
    if batched:
        lanes = (*lanes, spectrum.lanes(shape, jnp))
    count, size = math.prod(shape), _sizes(spectrum)[-1]
    if count <= size:
        result = _chunk(function, static, batched, lanes, None if batched else spectrum)
    else:
        rows = jnp.minimum(jnp.arange(-(-count // size) * size), count - 1)
        padded = jax.tree.map(lambda x: x[rows].reshape(-1, size, *x.shape[1:]), lanes)
        result = _chunks(function, static, batched, padded, None if batched else spectrum)
        result = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], result)
    return tuple(x.reshape(shape) for x in result)


@jax.jit(static_argnums=(0, 1, 2))
def _chunks(function, static, batched, lanes, spectrum):
    return lax.map(lambda chunk: _chunk(function, static, batched, chunk, spectrum), lanes)
