"""Gaussian smoothing of point masses on [0, 1] with reflecting ends, exact to far below the width of a grid cell.

Masses enter a grid as Taylor moments about the nearest node, become a cosine series by the Fourier transform, and are
smoothed there by exp(-(k pi s)^2 / 2) for any number of bandwidths s. With j moments and cells of width d the smoothed
density is wrong by at most E|He_j| / (j! 2^j) (d/s)^j of the mass in L1: for j = 6, 3e-4 (d/s)^6, 7e-8 for s = 4 d.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.solvers import run_totals, total

# 7e-8 of the mass at the smallest bandwidth of a grid, and below rounding of float64 from 100 cells on.
_MOMENTS = 6
CELLS_A_BANDWIDTH = 4

# Masses that are 12 bandwidths apart share no more than 2e-9 of their mass beyond the middle between them.
_REACH = 12.0

# Lengths are cut out in whole multiples of this, so that positions stay exact in float32.
_QUANTUM = 2.0**-22


class Layout(NamedTuple):
    """Where points lie on a grid after gaps that no kernel crosses have been shortened."""

    shift: jax.Array  # (..., n), what has been cut out to the left of a point
    node: jax.Array  # (..., n), nearest node, int
    cell: jax.Array  # (...), width of a cell, a power of 2
    num_cells: int

    @property
    def length(self) -> jax.Array:
        """Length of the grid `(...)`, 1 if nothing was cut out."""
        return self.cell * self.num_cells

    @property
    def smallest_bandwidth(self) -> jax.Array:
        """The smallest bandwidth `(...)` the grid resolves."""
        return self.cell * CELLS_A_BANDWIDTH


def lay_out(position, num_cells: int, largest_bandwidth) -> Layout:
    """Grid of `num_cells` (a power of 2) for increasing positions `(..., n)` and bandwidths up to one `(...)`.

    A gap between neighbours, or to an end, is shortened to 12 bandwidths, which changes nothing there is to see.
    """
    position, largest = lax.stop_gradient((position, largest_bandwidth))
    ends = [(0, 0)] * (position.ndim - 1)
    left, right = jnp.pad(position, [*ends, (1, 0)]), jnp.pad(position, [*ends, (0, 1)], constant_values=1)
    excess = jnp.maximum(right - left - _REACH * largest[..., None], 0)
    cut = jnp.cumsum(jnp.floor(excess / _QUANTUM).astype(jnp.int32), axis=-1).astype(position.dtype) * _QUANTUM
    mantissa, exponent = jnp.frexp((1 - cut[..., -1]) / num_cells)
    cell = jnp.ldexp(jnp.ones_like(mantissa), exponent - (mantissa == 0.5))  # round up to a power of 2
    # cut less where a full grid is longer than needed
    shift = jnp.minimum(cut[..., :-1], (1 - num_cells * cell)[..., None])
    node = jnp.clip(jnp.round((position - shift) / cell[..., None]), 0, num_cells)
    return Layout(shift, node.astype(jnp.int32), cell, num_cells)


def spectrum(layout: Layout, position, mass) -> jax.Array:
    """Cosine coefficients sum mass cos(k pi x / length), k = 0..num_cells; `(..., n)` twice to `(..., num_cells + 1)`.

    Differentiable in positions and masses. Cost O(n + num_cells log num_cells).
    """
    cells = layout.num_cells
    offset = (position - layout.shift) / layout.cell[..., None] - layout.node
    angle = jnp.arange(cells + 1, dtype=mass.dtype) * (math.pi / cells)
    # real part of sum_j (i angle)^j / j! times the conjugate transform of the j-th moment
    result, factor = 0, jnp.ones_like(angle)
    for j in range(_MOMENTS):
        transform = jnp.fft.rfft(run_totals(mass, layout.node, cells + 1), n=2 * cells, axis=-1)
        part = transform.imag if j % 2 else transform.real
        result = result + (-factor if j % 4 >= 2 else factor) * part
        mass, factor = mass * offset, factor * angle / (j + 1)
    return result


def smoothed_mass(layout: Layout, coefficients, bandwidth) -> jax.Array:
    """Integral of the absolute value of the smoothed density `(...)`, for bandwidths `(...)`.

    The density between nodes is the quadratic with its values there and its integral over the cell (from the
    Euler-Maclaurin formula, error of order (cell / bandwidth)^4), split exactly where it changes sign.
    """
    cells = layout.num_cells
    sigma = jnp.minimum(bandwidth / layout.length, 10.0)[..., None]  # beyond, nothing but the mean is left
    wave = jnp.arange(cells + 1, dtype=sigma.dtype) * (math.pi * sigma)
    damped = coefficients * jnp.exp(-(wave**2) / 2)
    # density (even) and sigma times its derivative (odd) in one transform
    both = 2 * cells * jnp.fft.irfft(lax.complex(damped, damped * wave), n=2 * cells, axis=-1)
    mirrored = jnp.concatenate([both[..., :1], jnp.flip(both, -1)[..., :cells]], axis=-1)
    value, slope = (both[..., : cells + 1] + mirrored) / 2, (both[..., : cells + 1] - mirrored) / 2
    start, end = value[..., :-1], value[..., 1:]
    mean = (start + end) / 2 + (slope[..., :-1] - slope[..., 1:]) / (12 * cells * sigma)
    return total(_absolute_mean(start, end, mean)) / cells


def _absolute_mean(start, end, mean):
    """Mean of |q| over [0, 1] of the quadratic q with q(0) = start, q(1) = end and the given mean."""
    square, linear = 3 * (start + end) - 6 * mean, 6 * mean - 4 * start - 2 * end
    first, last = lax.stop_gradient(_roots(square, linear, start))  # q = 0 there: they do not enter the derivative

    def integral(t):
        return t * (start + t * (linear / 2 + t * square / 3))

    return jnp.abs(integral(first)) + jnp.abs(integral(last) - integral(first)) + jnp.abs(mean - integral(last))


def _roots(a, b, c):
    """The roots of a t^2 + b t + c in increasing order, moved into [0, 1]; 0 where there are none."""
    discriminant = b**2 - 4 * a * c
    real = discriminant >= 0
    large = -(b + jnp.where(b < 0, -1, 1) * jnp.sqrt(jnp.where(real, discriminant, 0))) / 2
    one = jnp.where(a == 0, 0, large / jnp.where(a == 0, 1, a))
    two = jnp.where(large == 0, 0, c / jnp.where(large == 0, 1, large))
    one, two = (jnp.where(real, jnp.clip(t, 0, 1), 0) for t in (one, two))
    return jnp.minimum(one, two), jnp.maximum(one, two)


def enough_cells(n: int, limit: int, before: int) -> int:
    """Cells that do for n points what `limit` cells do, for bandwidths below what `before` cells resolve."""
    needed = _REACH * CELLS_A_BANDWIDTH * (n + 1) * limit / before
    return min(limit, 1 << math.ceil(math.log2(needed)))
