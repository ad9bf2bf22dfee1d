"""The temperature that minimizes the log loss: a convex problem in u = 1/T, solved in three or four passes.

With gaps d = z - max z <= 0 and p = softmax(u z), the stationary point balances two mean gaps,

    A(u) = -mean sum_j p_j d_j  (expected),      B = -mean d_y  (observed),      dL/du = B - A(u),

so the root of F = log(A / B), taken in x = log(1 + u s), is sought: nearly linear in x from uninformative logits to
nearly perfect ones and for any unit of the logits. A strided sample of the rows gives the start and the slope.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal.losses import own_class, weighted_mean
from jaxcal.solvers import bracketed_root, row_sums
from jaxcal.status import Status

# The start is found on a sixteenth of the rows, but on no fewer than 512: its error is about 1/sqrt(rows), and the
# whole search on the sample costs half a pass.
_SAMPLE_FRACTION, _SAMPLE_ROWS = 16, 512

_MAX_STEPS = 100  # bisection from one end of the float32 range to the other takes fewer


class Optimum(NamedTuple):
    """The minimizer of a mean loss in u = 1/T; every leaf has the batch shape."""

    inverse_temperature: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    def flagged(self, *, impossible: jax.Array, invalid: jax.Array) -> "Optimum":
        """The same with lanes that have no optimum marked: u NaN, the risk inf or NaN."""
        status = jnp.where(impossible, Status.IMPOSSIBLE_EVENT, self.status)
        failed = impossible | invalid
        return Optimum(
            jnp.where(failed, jnp.nan, self.inverse_temperature),
            jnp.where(invalid, jnp.nan, jnp.where(impossible, jnp.inf, self.risk)),
            jnp.where(invalid, Status.INVALID_INPUT, status).astype(jnp.int32),
            self.num_steps,
            jnp.where(failed, jnp.nan, self.gradient_norm),
        )


def minimize_log_loss(logits: jax.Array, labels: jax.Array, weights: jax.Array | None) -> Optimum:
    """Minimize the weighted mean of logsumexp(u z) - u z_y over u >= 0.

    Args:
        logits: `(..., n, k)`, labels: `(..., n)`, weights: `(..., n)` or None, with batch axes aligned
            (`checks.align`).
    """
    n, k = logits.shape[-2:]
    info = jnp.finfo(logits.dtype)
    batch = jnp.broadcast_shapes(*(a.shape[:-1] for a in (logits[..., 0], labels, weights) if a is not None))
    lanes = lambda a: jnp.broadcast_to(a, batch)  # noqa: E731

    peak = jnp.max(logits, axis=-1)
    known = (labels >= 0) & (labels < k)
    own_gap = jnp.where(known, own_class(logits, labels) - peak, jnp.nan)
    observed = lanes(weighted_mean(-own_gap, weights))

    stride = max(1, n // max(_SAMPLE_ROWS, n // _SAMPLE_FRACTION))
    sample = _Rows(logits, peak, own_gap, weights).every(stride)
    scale = _gap_scale(sample, batch)
    lower, upper = float(info.tiny) ** 0.8, 0.9 * float(np.log(info.max))  # of x; u = lower / s is 0 for most purposes
    start = _solve_on_sample(sample, scale, batch, lower, upper)

    rows = _Rows(logits, peak, own_gap, weights)

    def balance(x):
        u = _inverse_temperature(x, scale)
        mass, first = _row_sums(rows.logits, rows.peak, u)
        expected_gap = first / mass  # in units of 1/u, as all that follows
        own = u[..., None] * own_gap
        value = weighted_mean(jnp.log(mass) - own, weights)
        slope = weighted_mean(expected_gap - own, weights)  # u dL/du
        # rounding must not take the expected gap below 0
        return jnp.log1p(jnp.maximum(-slope / (u * observed), -1)), (value, slope, slope * _dlogu_dx(x))

    def accept(value, step, aux):
        risk, _, slope_x = aux
        # the decrease that a further step would bring is far below what the loss resolves, or F is rounding already;
        # the step is still taken, for the sake of T. Masks of -1e9 make F steep, and steps short, far from the root
        # of the other gaps: what F lacks counts by the slope of those, -1 to -100.
        step = jnp.maximum(jnp.abs(step), 0.01 * jnp.abs(value))
        small = 0.5 * jnp.abs(slope_x) * step <= info.eps**1.25 * risk
        return small | (jnp.abs(value) <= 2 * info.eps) | (observed == 0)

    root = bracketed_root(
        balance,
        start.x,
        start.slope,
        lower,
        upper,
        accept=accept,
        active=jnp.ones(batch, bool),
        max_steps=_MAX_STEPS,
    )
    risk, slope, _ = root.aux
    last_step = -root.value / root.slope
    last_step = jnp.where(root.converged & (jnp.abs(last_step) < 1e-2 * root.x), last_step, 0)
    u = _inverse_temperature(root.x + last_step, scale)

    at_lower = (root.x <= lower) & (root.value <= 8 * info.eps)
    # gaps that are balanced at u = 0: the root found is the rounding of that
    near = root.converged & (root.x < info.eps**0.5)
    lowest = lax.cond(
        jnp.any(near), lambda: balance(jnp.full(batch, lower, u.dtype))[0], lambda: jnp.ones(batch, u.dtype)
    )
    at_lower |= near & (lowest <= 8 * info.eps)
    at_upper = observed == 0
    status = jnp.where(root.converged | at_lower, Status.CONVERGED, Status.NOT_CONVERGED)
    status = jnp.where(at_lower, Status.AT_LOWER_BOUND, status)
    # masks of -1e35 are masks at the lower end, and none at u = 0: that may be worse or, where labels have them, better
    uniform = lax.cond(jnp.any(at_lower), lambda: _uniform_loss(rows, batch), lambda: jnp.zeros(batch, u.dtype))
    at_zero = uniform <= risk * (1 + 8 * info.eps)
    least = _inverse_temperature(jnp.full(batch, lower, u.dtype), scale)
    u = jnp.where(at_lower, jnp.where(at_zero, 0, least), u)
    risk = jnp.where(at_lower & at_zero, uniform, risk)

    saturated = lax.cond(
        jnp.any(at_upper),
        lambda: _saturate(rows, at_upper, batch),
        lambda: (jnp.zeros(batch, u.dtype), jnp.zeros(batch, u.dtype), jnp.zeros(batch, bool)),
    )
    u = jnp.where(at_upper, jnp.where(saturated[2], saturated[0], 1), u)
    risk = jnp.where(at_upper, saturated[1], risk)
    slope = jnp.where(at_upper, 0, slope)
    status = jnp.where(at_upper, jnp.where(saturated[2], Status.AT_UPPER_BOUND, Status.NOT_IDENTIFIED), status)

    found = Optimum(u, risk, status, root.num_steps, jnp.abs(slope))
    return found.flagged(impossible=observed == jnp.inf, invalid=jnp.isnan(observed) | jnp.isnan(root.aux[0]))


class _Rows(NamedTuple):
    logits: jax.Array  # (..., n, k)
    peak: jax.Array  # (..., n)
    own_gap: jax.Array  # (..., n)
    weights: jax.Array | None

    def every(self, stride: int) -> "_Rows":
        weights = None if self.weights is None else self.weights[..., ::stride]
        return _Rows(self.logits[..., ::stride, :], self.peak[..., ::stride], self.own_gap[..., ::stride], weights)


def _inverse_temperature(x, scale):
    info = jnp.finfo(x.dtype)
    return jnp.clip(jnp.expm1(x) / scale, info.tiny, info.max)


def _dlogu_dx(x):
    """x = log(1 + u s): d log u / dx = (1 + u s) / (u s)."""
    return 1 / -jnp.expm1(-x)


def _apart(sums, logits, peak, u):
    """sums(logits, peak, u), compiled apart from its surroundings; `u` gets the axes of `logits`.

    The condition is always true. It keeps what follows out of the reductions, whose fast form takes no epilogue (2 to 6
    times), and loops from storing the part that does not change.
    """
    u = u[..., None, None]
    shapes = jax.eval_shape(sums, logits, peak, u)
    blank = lambda *_: tuple(jnp.full(a.shape, jnp.nan, a.dtype) for a in shapes)  # noqa: E731
    return lax.cond(jnp.any(u > 0), sums, blank, logits, peak, u)


def _row_sums(logits, peak, u):
    """sum_j e^t and sum_j t e^t of each row, t = u (z - max z); two arrays `(..., n)`."""
    # below the logarithm of the smallest subnormal, e^t is 0: the clamp makes 0 * -inf a 0; e^t itself has none, for
    # vectorized maxima may forget NaN
    floor = float(np.log(jnp.finfo(logits.dtype).smallest_subnormal)) - 1

    def sums(logits, peak, u):
        def terms():
            t = u * (logits - peak[..., None])
            return jnp.exp(t), jnp.maximum(t, floor) * jnp.exp(t)

        def first_moment():  # the same, with the signs turned
            t = -u * (logits + -peak[..., None])
            return -jnp.minimum(t, -floor) * jnp.exp(-t)

        return row_sums(terms, jnp.broadcast_shapes(logits.shape, u.shape), first_moment)

    return _apart(sums, logits, peak, u)


def _gap_scale(rows: _Rows, batch) -> jax.Array:
    """Harmonic mean of the gaps of a lane: a unit for u that neither masks of -1e9 nor outliers move."""
    info = jnp.finfo(rows.logits.dtype)

    def terms():
        gap = rows.peak[..., None] - rows.logits
        counted = (gap > info.tiny) & (gap < jnp.inf)
        return jnp.where(counted, 1 / jnp.where(counted, gap, 1), 0), jnp.where(counted, jnp.ones_like(gap), 0)

    inverse, count = row_sums(terms, rows.logits.shape)
    if rows.weights is not None:
        used = rows.weights > 0
        inverse, count = jnp.where(used, inverse, 0), jnp.where(used, count, 0)
    inverse, count = jnp.sum(inverse, axis=-1), jnp.sum(count, axis=-1)
    scale = jnp.where(inverse > 0, count / jnp.where(inverse > 0, inverse, 1), 1)
    return jnp.broadcast_to(jnp.clip(scale, info.tiny, info.max), batch)


def _uniform_loss(rows: _Rows, batch) -> jax.Array:
    """Mean loss at u = 0."""
    unmasked = jnp.sum(rows.logits > -jnp.inf, axis=-1).astype(rows.logits.dtype)
    return jnp.broadcast_to(weighted_mean(jnp.log(unmasked), rows.weights), batch)


def _solve_on_sample(sample: _Rows, scale, batch, lower, upper):
    """A start for the search on all rows: the same root on the sample, with one made-up row so that it is finite."""
    rows = sample.own_gap.shape[-1]
    most = 30 * scale[..., None, None]  # of a gap: one of 1e9 is a mask, too

    def terms():
        gap = sample.peak[..., None] - sample.logits
        return jnp.where(gap < most, gap, 0), jnp.where(gap < most, jnp.ones_like(gap), 0)

    gaps, classes = row_sums(terms, jnp.broadcast_shapes(sample.logits.shape, most.shape))
    uniform = weighted_mean(gaps / classes, sample.weights)
    observed = weighted_mean(-sample.own_gap, sample.weights)
    # the made-up row has the gaps of an average row and a label half-way between the best and a random class
    observed = jnp.broadcast_to((rows * observed + 0.5 * uniform) / (rows + 1), batch)

    def balance(x):
        u = _inverse_temperature(x, scale)
        mass, first = _row_sums(sample.logits, sample.peak, u)
        return jnp.log(-weighted_mean(first / mass, sample.weights) / (u * observed)), ()

    guess = jnp.full(batch, np.log1p(2.0), scale.dtype)
    root = bracketed_root(
        balance,
        guess,
        -jnp.ones_like(guess),
        lower,
        upper,
        # the step is taken below: its error is the square, except where masks or rounding made F steep
        accept=lambda value, step, aux: (jnp.abs(step) <= 3e-2) & (jnp.abs(value) <= 0.3),
        active=jnp.ones(batch, bool),
        max_steps=12,
    )
    step = jnp.clip(-root.value / root.slope, -1, 1)
    x = jnp.clip(root.x + jnp.where(jnp.isnan(step), 0, step), lower, upper)
    failed = jnp.isnan(root.value)
    return root._replace(x=jnp.where(failed, guess, x), slope=jnp.where(failed, -1, root.slope))


def _saturate(rows: _Rows, lanes, batch):
    """For lanes whose labels all are arg maxima: the smallest u with L(u) within one rounding of its infimum.

    Returns u, L(u), and whether the loss depends on u at all.
    """
    logits, peak = rows.logits, rows.peak
    eps = jnp.finfo(logits.dtype).eps
    below = logits < peak[..., None]
    nearest, ties = lax.reduce(
        (jnp.where(below, peak[..., None] - logits, jnp.inf), jnp.where(below, 0.0, 1.0).astype(logits.dtype)),
        (jnp.full((), jnp.inf, logits.dtype), jnp.zeros((), logits.dtype)),
        lambda a, b: (jnp.minimum(a[0], b[0]), a[1] + b[1]),
        (logits.ndim - 1,),
    )
    used = True if rows.weights is None else rows.weights > 0
    smallest = jnp.broadcast_to(jnp.min(jnp.where(used, nearest, jnp.inf), axis=-1), batch)
    infimum = jnp.broadcast_to(weighted_mean(jnp.log(ties), rows.weights), batch)
    identified = smallest < jnp.inf
    # 0.99: the root is found to 0.5 %, the excess must not end above one eps
    target = 0.99 * eps * jnp.maximum(infimum, 1)
    largest = jnp.log(logits.shape[-1] / eps) / jnp.where(identified, smallest, 1)

    def others_and_ties(logits, peak, u):
        def terms():
            below, t = logits < peak[..., None], u * (logits - peak[..., None])
            return jnp.where(below, jnp.exp(t), 0), jnp.where(below, jnp.zeros_like(t), 1)

        return row_sums(terms, jnp.broadcast_shapes(logits.shape, u.shape))

    def excess(u):
        others, ties = _apart(others_and_ties, logits, peak, u)
        return weighted_mean(jnp.log1p(others / ties), rows.weights)

    root = bracketed_root(
        lambda x: (jnp.log(excess(x * largest) / target), ()),
        jnp.full(batch, 0.5, logits.dtype),
        jnp.full(batch, -10.0, logits.dtype),
        float(jnp.finfo(logits.dtype).tiny),
        1.0,
        accept=lambda value, step, aux: jnp.abs(value) <= 5e-3,
        active=lanes & identified,
        max_steps=_MAX_STEPS,
        max_stride=1.0,
    )
    u = root.x * largest
    return u, infimum + jnp.where(identified, excess(u), 0), identified
