"""The temperature that minimizes any other proper loss: a global search, because the mean loss may have several minima.

As a function of log u every row changes within a few units around 1/gap, so a geometric grid over all gaps sees every
valley; each of the three best is then refined to rounding.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.calibrators.temperature_log_loss import Optimum
from jaxcal.losses import ProperLoss, hide_absent, mean_loss
from jaxcal.solvers import bracketed_root, scaled, shifted
from jaxcal.status import Status

# Ordinary gaps span seven decades at n = 10,000, so that neighbours differ by a factor of 1.2; a valley of two rows of
# opposite sign is wider than a factor of 2.
_KNOTS = 96
_VALLEYS = 3
_MAX_STEPS = 60


def minimize_loss(loss: ProperLoss, logits: jax.Array, labels: jax.Array, weights: jax.Array | None) -> Optimum:
    """Globally minimize the weighted mean of loss(u z, y) over u in [0, inf]; arguments as for `minimize_log_loss`."""
    info = jnp.finfo(logits.dtype)
    batch = jnp.broadcast_shapes(*(a.shape[:-1] for a in (logits[..., 0], labels, weights) if a is not None))
    logits = hide_absent(logits, weights)
    gap = -shifted(logits)
    smallest, largest = _gap_range(gap, weights, batch)
    identified = largest > 0

    def objective(u):
        return mean_loss(loss, scaled(logits, u[..., None]), labels, weights)

    def value_and_slope(u, unit):
        """The slope times the unit, which near u does not overflow, as dL/du itself does for masks of -1e38."""
        return jax.jvp(objective, (u,), (unit,))

    # below 0.01 / largest gap every row is linear in u, above log(k / eps^2) / smallest gap every row is saturated
    log_low = jnp.log(0.01) - jnp.log(jnp.where(identified, largest, 1))
    log_high = jnp.log(jnp.log(logits.shape[-1] / info.eps**2) / jnp.where(identified, smallest, 1))

    def knot(j):
        u = jnp.exp(log_low + (log_high - log_low) * (j - 1) / (_KNOTS - 2))
        return jnp.where(j == 0, 0, jnp.clip(u, info.tiny, info.max))

    knots = jax.vmap(knot)(jnp.arange(_KNOTS, dtype=logits.dtype))  # (knots, ...), first one 0
    units = knots.at[0].set(knots[1])
    values, slopes = lax.map(lambda at: value_and_slope(*at), (knots, units))

    valley = (slopes[:-1] < 0) & (slopes[1:] >= 0)
    depth = jnp.where(valley, jnp.minimum(values[:-1], values[1:]), jnp.inf)
    best = jnp.moveaxis(lax.top_k(-jnp.moveaxis(depth, 0, -1), _VALLEYS)[1], -1, 0)

    def refine(index):
        at = lambda a: jnp.take_along_axis(a, index[None], axis=0)[0]  # noqa: E731
        left, right = at(knots[:-1]), at(knots[1:])
        width = right - left

        def descent(x):
            value, slope = value_and_slope(left + width * x, width)
            return -slope, (value, slope)

        steepness = width / at(units[:-1]) * at(slopes[:-1]) - width / at(units[1:]) * at(slopes[1:])
        root = bracketed_root(
            descent,
            jnp.full(batch, 0.5, logits.dtype),
            jnp.where(steepness < 0, steepness, -1),
            0.0,
            1.0,
            accept=lambda value, step, aux: 0.5 * jnp.abs(value * step) <= info.eps**1.5 * aux[0],
            active=at(valley) & identified,
            max_steps=_MAX_STEPS,
            max_stride=1.0,
        )
        u = left + width * root.x
        value = jnp.where(at(valley) & identified, root.aux[0], jnp.inf)
        return u, value, u / width * root.aux[1], root.converged, root.num_steps

    u, value, slope, converged, steps = lax.map(refine, best)
    winner = jnp.argmin(value, axis=0)[None]
    pick = lambda a: jnp.take_along_axis(a, winner, axis=0)[0]  # noqa: E731
    u, value, slope, converged, steps = map(pick, (u, value, slope, converged, steps))

    at_lower = values[0] <= value
    value = jnp.where(at_lower, values[0], value)
    u, slope = jnp.where(at_lower, 0, u), jnp.where(at_lower, 0, slope)
    status = jnp.where(converged, Status.CONVERGED, Status.NOT_CONVERGED)
    status = jnp.where(at_lower, Status.AT_LOWER_BOUND, status)

    limit = mean_loss(loss, jnp.where(gap == 0, 0, jnp.where(jnp.isnan(gap), jnp.nan, -jnp.inf)), labels, weights)
    limit = jnp.broadcast_to(limit, batch)
    # an infinite limit (a confident error under an unbounded loss) is no limit to stay near
    rounding = info.eps * jnp.where(limit < jnp.inf, jnp.maximum(limit, 1), 1)
    at_upper = (limit <= value + rounding) & ~(at_lower & (values[0] <= limit)) & identified
    saturation = _saturate(objective, knots, values, limit, rounding, at_upper)
    u = jnp.where(at_upper, saturation, u)
    value = jnp.where(at_upper, objective(jnp.where(at_upper, saturation, 1)), value)
    slope = jnp.where(at_upper, 0, slope)
    status = jnp.where(at_upper, Status.AT_UPPER_BOUND, status)

    u = jnp.where(identified, u, 1)
    value = jnp.where(identified, value, values[0])
    status = jnp.where(identified, status, Status.NOT_IDENTIFIED)
    found = Optimum(u, value, status, steps, jnp.where(at_lower | ~identified, 0, jnp.abs(slope)))
    return found.flagged(
        impossible=jnp.all(values == jnp.inf, axis=0), invalid=jnp.isnan(values[0]) | jnp.isnan(smallest)
    )


def _gap_range(gap, weights, batch):
    """Smallest positive and largest finite gap of each lane, over the rows it uses."""
    finite = gap < jnp.inf
    used = True if weights is None else weights > 0
    low = jnp.where(used, jnp.min(jnp.where(finite & (gap > 0), gap, jnp.inf), axis=-1), jnp.inf)
    high = jnp.where(used, jnp.max(jnp.where(finite, gap, 0), axis=-1), 0)
    return jnp.broadcast_to(jnp.min(low, axis=-1), batch), jnp.broadcast_to(jnp.max(high, axis=-1), batch)


def _saturate(objective, knots, values, limit, rounding, lanes):
    """The smallest u from which the loss stays within one rounding of its limit at infinity."""
    above = jnp.abs(values - limit) > 0.99 * rounding  # (knots, ...)
    last = jnp.max(jnp.where(above, jnp.arange(len(knots)).reshape(-1, *[1] * limit.ndim), 0), axis=0)[None]
    left = jnp.take_along_axis(knots, last, axis=0)[0]
    right = jnp.take_along_axis(knots, jnp.minimum(last + 1, len(knots) - 1), axis=0)[0]
    width = right - left

    def excess(x):
        ratio = jnp.abs(objective(left + width * x) - limit) / (0.99 * rounding)
        return jnp.log(jnp.maximum(ratio, jnp.finfo(ratio.dtype).tiny)), ()

    start = jnp.full(limit.shape, 0.5, limit.dtype)
    root = bracketed_root(
        excess,
        start,
        -jnp.ones_like(start),
        0.0,
        1.0,
        accept=lambda value, step, aux: jnp.abs(value) <= 5e-3,
        active=lanes & (width > 0),
        max_steps=_MAX_STEPS,
        max_stride=1.0,
    )
    return left + width * root.x
