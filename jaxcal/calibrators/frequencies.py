"""Outcomes counted at each distinct score: what calibrators without a formula are made of."""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.binary import BinaryFit, Rows
from jaxcal.solvers import argsort, run_totals, runs


class FrequencyFit(BinaryFit):
    """Base of the calibrators that return frequencies."""

    def __call__(self, score) -> jax.Array:
        return self._apply(self._pair, score, lambda zero, one: one)

    __call__.__doc__ = BinaryFit.__call__.__doc__

    @abc.abstractmethod
    def _pair(self, score) -> tuple[jax.Array, jax.Array]:
        """Probabilities of 0 and of 1, each a sum over its own outcomes, so that neither is 1 minus the other."""

    def _log_pair(self, score):
        zero, one = self._pair(score)
        return _log(zero, one), _log(one, zero)


# Near 1 the logarithm takes its digits from 1 - p. Not earlier: XLA's log1p in float64 is off by 100 eps below -0.3.
_NEAR_1 = 0.75


def _log(p, rest):
    """log p of probabilities that sum to 1; the derivative of log 0 is 0, not NaN."""
    near = p > _NEAR_1
    usual = jnp.log(jnp.where((p > 0) & ~near, p, 1))
    return jnp.where(p == 0, -jnp.inf, jnp.where(near, jnp.log1p(-jnp.where(near, rest, 0)), usual))


class Levels(NamedTuple):
    """The distinct scores in increasing order, arrays `(..., n)`; +inf and weight 0 where there are no more."""

    score: jax.Array
    zeros: jax.Array  # weight of the rows with outcome 0
    ones: jax.Array  # and with outcome 1

    @property
    def weight(self) -> jax.Array:
        return self.zeros + self.ones


def in_order(rows: Rows) -> Rows:
    """The rows by increasing score, absent ones at +inf; those of equal scores move with their weighted mean.

    Differentiable in scores and weights with the order held fixed. Cost O(n log n).
    """
    score = jnp.where(rows.weight > 0, rows.score, jnp.inf)
    order = argsort(score)
    moved = (jnp.take_along_axis(a, order, axis=-1) for a in (score, rows.outcome, rows.weight))
    s, y, w = lax.optimization_barrier(tuple(moved))  # else each reader gathers again: a third of an isotonic fit
    return Rows(_with_mean_of_ties(s, w), y, w, rows.ok)


@jax.custom_jvp
def _with_mean_of_ties(score, weight):
    """Sorted scores, with the derivative of the weighted mean of those that are equal."""
    return score


@_with_mean_of_ties.defjvp
def _(primals, tangents):
    score, weight = primals
    run, n = runs(lax.stop_gradient(score)), score.shape[-1]
    mass = run_totals(weight, run, n)
    moved = run_totals(weight * jnp.where(jnp.isfinite(score), tangents[0], 0), run, n)
    change = jnp.take_along_axis(moved / jnp.where(mass > 0, mass, 1), run, axis=-1)
    return _with_mean_of_ties(score, weight), change


def levels(rows: Rows) -> Levels:
    """Sort the rows and add up those of equal scores; absent rows are no level. Differentiable as `in_order`."""
    s, y, w, _ = in_order(rows)
    run, n = runs(lax.stop_gradient(s)), s.shape[-1]
    zeros, ones = run_totals(jnp.where(y == 0, w, 0), run, n), run_totals(jnp.where(y == 1, w, 0), run, n)

    def first(s, run):
        return jnp.full(n, jnp.inf, s.dtype).at[run].set(s, indices_are_sorted=True)

    level = jax.vmap(first)(s.reshape(-1, n), run.reshape(-1, n)).reshape(s.shape)
    return Levels(level, zeros, ones)


def usable(rows: Rows) -> jax.Array:
    """Whether a lane `(...)` is valid and its weights have sums that neither overflow nor vanish."""
    largest, limits = jnp.max(rows.weight, axis=-1), jnp.finfo(rows.weight.dtype)
    n = rows.weight.shape[-1]
    return rows.ok & (largest >= limits.tiny / limits.eps**2) & (largest <= limits.max * limits.eps**2 / n)


def count_up_to(table: jax.Array, score: jax.Array, *, equal: bool) -> jax.Array:
    """How many entries of the sorted `table` (..., n) are below each score (..., m), or `equal` to it; int32.

    The batch axes broadcast; NaN counts nothing.
    """
    side = "right" if equal else "left"
    score = lax.stop_gradient(jnp.where(jnp.isnan(score), -jnp.inf, score))
    table = lax.stop_gradient(table)
    if table.ndim == 1:
        return jnp.searchsorted(table, score, side=side).astype(jnp.int32)
    table, score = _share_batch(table, score)
    batch = score.shape
    flat = (a.reshape(-1, a.shape[-1]) for a in (table, score))
    return jax.vmap(lambda a, v: jnp.searchsorted(a, v, side=side).astype(jnp.int32))(*flat).reshape(batch)


def read(table: jax.Array, place: jax.Array) -> jax.Array:
    """Entries of `table` (..., n) at `place` (..., m); the batch axes broadcast."""
    if table.ndim == 1:
        return table[place]
    table, place = _share_batch(table, place)
    return jnp.take_along_axis(table, place, axis=-1)


def _share_batch(a, b):
    batch = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    return tuple(jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in checks.align(len(batch) + 1, a, b))
