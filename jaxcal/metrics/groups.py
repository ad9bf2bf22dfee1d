"""The distinct scores of a binary data set in increasing order: what every metric that respects ties is made of."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.metrics.events import Events
from jaxcal.solvers import argsort, run_totals, runs, sort


class Groups(NamedTuple):
    """Groups of equal scores, increasing; arrays `(..., n)`. Groups that do not exist have weight 0 and score 1, last.

    With weights a group whose rows all weigh 0 keeps its place, with weight 0.
    """

    score: jax.Array
    weight: jax.Array  # number of rows, sum of weights
    positive: jax.Array  # those with outcome 1

    @property
    def gap(self) -> jax.Array:
        """Sum of weight * (outcome - score)."""
        return self.positive - self.weight * self.score


@jax.jit  # several metrics of the same events, compiled together, then sort once
def group(events: Events) -> Groups:
    """Sort the scores and add up the rows of each. Independent of the order of the rows, differentiable in scores and
    weights with the order held fixed (rows of one group share their derivative). Cost O(n log n)."""
    return Groups(*_group(events.p, events.y, events.weights))


@jax.custom_jvp
def _group(p, y, weights):
    if weights is None:
        return _count(p, y)
    order = argsort(p)
    p, y, weights = (_take(a, order) for a in (p, y, weights))
    run, n = runs(p), p.shape[-1]
    mass = run_totals(weights, run, n)
    # one score for each lane of the weights, as its derivative depends on them; the sort above is shared
    return jnp.broadcast_to(_scores(p, run), mass.shape), mass, run_totals(weights * y, run, n)


@_group.defjvp
def _(primals, tangents):
    p, y, weights = primals
    order = argsort(p)
    w = jnp.ones_like(p) if weights is None else weights
    p, y, w, dp = (_take(a, order) for a in (p, y, w, tangents[0]))
    run, n = runs(p), p.shape[-1]
    values = _group(*primals)
    mass = values[1]
    slope = run_totals(w * dp, run, n) / jnp.where(mass > 0, mass, 1)
    if weights is None:
        return values, (slope, jnp.zeros_like(mass), jnp.zeros_like(mass))
    dw = _take(tangents[2], order)
    return values, (slope, run_totals(dw, run, n), run_totals(dw * y, run, n))


def _count(p, y):
    """Without weights score and outcome fit one integer, and sorting integers is all there is to do."""
    p, y = jnp.broadcast_arrays(p, y)
    bits = jnp.uint32 if p.dtype.itemsize == 4 else jnp.uint64
    # floats in [0, 1] are ordered as their bits, of which the first is 0; abs because of -0
    keys = sort((lax.bitcast_convert_type(jnp.abs(p), bits) << 1) | y.astype(bits))
    p, y = lax.bitcast_convert_type(keys >> 1, p.dtype), (keys & 1).astype(jnp.int32)
    run, n = runs(p), p.shape[-1]
    weight, positive = (run_totals(a, run, n).astype(p.dtype) for a in (jnp.ones_like(y), y))
    return _scores(p, run), weight, positive


def _take(values, order):
    return jnp.take_along_axis(values, order, axis=-1)


def _scores(p, run):
    n = p.shape[-1]

    def one(p, run):
        return jnp.ones(n, p.dtype).at[run].set(p, indices_are_sorted=True)

    return jax.vmap(one)(p.reshape(-1, n), run.reshape(-1, n)).reshape(p.shape)


def without_empty(groups: Groups) -> Groups:
    """The groups with weight first, in their order, so that neighbours are next to each other."""
    full = groups.weight > 0
    place = lax.cumsum(full.astype(jnp.int32), axis=full.ndim - 1) - 1
    n = full.shape[-1]

    def one(values, place, full):
        return jnp.zeros(n, values.dtype).at[jnp.where(full, place, n)].set(values, mode="drop")

    def move(values):
        values = jnp.broadcast_to(values, full.shape)
        return jax.vmap(one)(*(a.reshape(-1, n) for a in (values, place, full))).reshape(full.shape)

    score, weight, positive = (move(a) for a in groups)
    return Groups(jnp.where(weight > 0, score, 1), weight, positive)


def calibrated_outcomes(groups: Groups, *, weighted: bool) -> Callable[[jax.Array], jax.Array]:
    """A function of a key that draws the number of outcomes 1 of each group as if the forecasts were calibrated.

    Weights, if any, are whole. Without, the rows of a group are drawn one by one, which is a hundred times faster than
    a binomial variable.
    """
    score, weight, _ = groups
    shape, n = jnp.broadcast_shapes(score.shape, weight.shape), score.shape[-1]
    if weighted:
        return lambda key: jax.random.binomial(key, weight, score, shape, score.dtype)
    upto = lax.cumsum(weight.astype(jnp.int32), axis=weight.ndim - 1).reshape(-1, n)
    run = jax.vmap(lambda upto: jnp.searchsorted(upto, jnp.arange(n), side="right"))(upto).reshape(weight.shape)
    run = jnp.broadcast_to(run.astype(jnp.int32), shape)
    of_row = jnp.take_along_axis(jnp.broadcast_to(score, shape), run, axis=-1)

    def draw(key):
        hits = jax.random.uniform(key, shape, score.dtype) < of_row
        return run_totals(hits.astype(jnp.int32), run, n).astype(score.dtype)

    return draw
