"""Integrated calibration index: distance of forecasts from a local regression of the outcomes on them."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal import checks
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import Groups
from jaxcal.metrics.rank import ordered_groups
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import argsort, total

# Points of the regression that are computed together: vectorized on CPU, and a few parallel rows on an accelerator.
_POINTS_TOGETHER = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CalibrationIndex:
    """Summaries of |s(p_i) - p_i| over the rows, s the local regression of the outcomes; arrays `(...)`.

    Attributes:
        ici: mean.
        e50, e90: median and 90th percentile.
        emax: largest value.
    """

    ici: jax.Array
    e50: jax.Array
    e90: jax.Array
    emax: jax.Array


@without_bootstrap("its bias is of the order of its spread; take debiased_ece with method='centred'")
def ici(p, y, *, span: float = 0.75, num_points: int = 128, weights=None) -> CalibrationIndex:
    r"""Integrated calibration index (ICI): mean distance of the forecasts from a smooth calibration curve.

    The curve s is the local quadratic regression (loess) of y on p: at x the least squares parabola with tricube
    weights (1 - (|p_i - x| / h)^3)^3, h the distance to the floor(span * n)-th nearest row, without robustness
    iterations; the direct computation of what R's `loess` with its defaults approximates. Where fewer than three
    distinct forecasts are in reach the degree is lowered.

    s is computed at `num_points` distinct forecasts, evenly spaced in their order, and linear between them: at all of
    them if there are no more.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        span: share of the rows in a neighbourhood, in (0, 1], static.
        num_points: static, at least 2.
        weights: counts `(..., n)`; a row of weight w is w equal rows, also in the percentiles, which are linear between
            order statistics.

    Returns:
        `CalibrationIndex`, arrays `(...)`, in units of probability; float32 for half-precision input. The curve is not
        cut at 0 and 1. NaN where floor(span * n) < 1. Invalid lanes are NaN; an eager call raises `ValueError` if no
        lane is valid.

    It estimates the l1 calibration error of the smoothed outcomes. Its bias is positive, of order n^(-1/2) for
    calibrated forecasts; no interval. Differentiable in p with the order held fixed, not in the weights: it jumps where
    a neighbourhood takes in another row. Cost O(num_points * n), 40 ns each on CPU.

    Examples:
        >>> import jaxcal
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(100_000)
        >>> y = rng.random(p.shape) < p**2
        >>> print(f"{jaxcal.ici(p, y).ici:.2f}")  # E |p^2 - p| = 1/6
        0.17

    References:
        Austin and Steyerberg, "The Integrated Calibration Index (ICI) and related metrics", Statistics in Medicine
        2019. Cleveland and Devlin, JASA 1988.
    """
    if not checks.is_number(span) or not 0 < span <= 1:
        raise ValueError(f"span must be in (0, 1], got {span!r}")
    num_points = checks.require_count(num_points, "num_points", 2)
    p, y, weights = as_events(p, y, weights)
    return report(_index(p, y, weights, float(span), num_points), p, y, weights, "ici")


@partial(jax.jit, static_argnums=(3, 4))
def _index(p, y, weights, span, num_points):
    events = clean(p, y, weights)
    groups = ordered_groups(events)
    shape = jnp.broadcast_shapes(*(a.shape for a in groups))
    groups = Groups(*(jnp.broadcast_to(a, shape) for a in groups))
    full = groups.weight > 0
    distance = jnp.where(full, jnp.abs(local_fit(groups, span, num_points) - groups.score), 0)
    n = total(groups.weight)
    order = argsort(jnp.where(full, distance, jnp.inf))
    sorted_distance, sorted_weight = (jnp.take_along_axis(a, order, axis=-1) for a in (distance, groups.weight))
    quantile = partial(_quantile, sorted_distance, lax.cumsum(sorted_weight, axis=full.ndim - 1), n)
    values = (total(groups.weight * distance) / n, quantile(0.5), quantile(0.9), jnp.max(distance, axis=-1))
    return CalibrationIndex(*(value * events.poison for value in values))


def _quantile(values, upto, n, q):
    """Quantile of rows with counts: linear between the order statistics floor(h) and floor(h) + 1, h = q (n - 1)."""
    position = jnp.maximum(q * (n - 1), 0)
    low = jnp.floor(position)

    def order_statistic(k):  # the first value with more than k rows up to it
        index = jnp.sum(upto <= k[..., None], axis=-1, keepdims=True)
        return jnp.take_along_axis(values, jnp.minimum(index, values.shape[-1] - 1), axis=-1)[..., 0]

    first, second = order_statistic(low), order_statistic(jnp.minimum(low + 1, jnp.maximum(n - 1, 0)))
    return first + (position - low) * (second - first)


def local_fit(groups: Groups, span: float, num_points: int) -> jax.Array:
    """Local quadratic regression of the outcomes at the score of each group, `(..., n)`; no empty groups between."""
    score, weight, _ = groups
    n = score.shape[-1]
    m = min(num_points, n)
    count = jnp.sum(weight > 0, axis=-1, keepdims=True)
    # i (count - 1) / (m - 1), rounded down, without a product that overflows
    steps, rest = jnp.divmod(count - 1, max(m - 1, 1))
    places = jnp.arange(m) * steps + jnp.arange(m) * rest // max(m - 1, 1)
    points = jnp.take_along_axis(score, places, axis=-1)
    upto = lax.cumsum(lax.stop_gradient(weight), axis=weight.ndim - 1)
    reach = jnp.floor(span * upto[..., -1:] * (1 + 4 * jnp.finfo(score.dtype).eps))  # 0.29 * 100 = 28.999...
    reach = jnp.minimum(reach, upto[..., -1:])
    needed = upto - weight + reach
    # the first group up to which a neighbourhood that begins at each group is full; n where there is none
    last = jax.vmap(partial(jnp.searchsorted, side="left"))(upto.reshape(-1, n), needed.reshape(-1, n)).reshape(
        upto.shape
    )
    exists = (last < n) & (weight > 0)
    end = jnp.take_along_axis(score, jnp.minimum(last, n - 1), axis=-1)

    @jax.checkpoint
    def at(x):
        radius = jnp.min(jnp.where(exists, jnp.maximum(x[..., None] - score, end - x[..., None]), jnp.inf), axis=-1)
        return _parabola(groups, x, radius)

    values = lax.map(at, jnp.moveaxis(points, -1, 0), batch_size=_POINTS_TOGETHER)
    values = jnp.where(reach >= 1, jnp.moveaxis(values, 0, -1), jnp.nan)
    lanes = (a.reshape(-1, a.shape[-1]) for a in (score, points, values))
    return jax.vmap(jnp.interp)(*lanes).reshape(score.shape)


def _parabola(groups, x, radius):
    """Value at x of the weighted least squares parabola around it, by orthogonal polynomials."""
    score, weight, positive = groups
    scale = jnp.where(radius > 0, radius, 1)[..., None]
    t = (score - x[..., None]) / scale
    inside = jnp.where(radius[..., None] > 0, jnp.abs(t) < 1, t == 0)
    t = jnp.where(inside, t, 0)
    kernel = jnp.where(inside, (1 - jnp.abs(t) ** 3) ** 3, 0)
    w, wy = kernel * weight, kernel * positive
    mass = total(w)
    safe = jnp.where(mass > 0, mass, 1)
    value = total(wy) / safe
    # below this share of the square of a term, what the lower terms leave of it is their rounding
    tolerance = 64 * jnp.finfo(t.dtype).eps
    residual = wy - w * value[..., None]

    def project(term, value, residual, at_x):
        norm, size = total(w * term**2), jnp.max(jnp.where(w > 0, jnp.abs(term), 0), axis=-1)
        use = (norm > 0) & (size > tolerance)
        factor = jnp.where(use, total(residual * term) / jnp.where(use, norm, 1), 0)
        return value + factor * at_x, residual - w * factor[..., None] * term

    middle = total(w * t) / safe
    linear = t - middle[..., None]
    value, residual = project(linear, value, residual, -middle)
    norm = total(w * linear**2)
    slope = jnp.where(norm > 0, total(w * t**2 * linear) / jnp.where(norm > 0, norm, 1), 0)
    level = total(w * t**2) / safe
    square = t**2 - level[..., None] - slope[..., None] * linear
    value, _ = project(square, value, residual, -level + slope * middle)
    return value
