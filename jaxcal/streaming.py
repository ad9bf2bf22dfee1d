"""Temperature and refinement of logits that come in chunks and are never held together.

With gaps d = z - max z and p = softmax(u z), the derivatives of the loss in log u are made of moments of the gaps.
`update` adds up four of them at five temperatures around that of a first chunk; between two of those the slope is then
known to the eighth order of their distance, so that one pass over the data finds the optimum.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.temperature import TemperatureFit, fit_temperature, prepare
from jaxcal.decomposition import Decomposition
from jaxcal.losses import hide_absent, log_loss, own_class
from jaxcal.solvers import add_pairs, has_softmax, log_softmax, scaled, segment_totals, total
from jaxcal.status import Status

# Nodes in x = log u, from half to twice the temperature of the first chunk. The error of the slope between two is
# (h / 2)^8 / 8! of its eighth derivative, 1e-8 for logits of ordinary classifiers.
_NODES = np.log(2) * np.array([-1, -0.5, 0, 0.5, 1])
_STEP = _NODES[1] - _NODES[0]

# Of log T: where it is not known so well there is no answer.
_ACCURACY = 1e-6

# Halvings of the interval between two nodes, far below its rounding.
_HALVINGS = 40

_UNUSABLE = (
    "streaming.decompose: no usable data: either no row of positive weight has entered by streaming.update, or one "
    "that entered in compiled code was invalid (NaN, +inf, a label out of range or on a masked class, a bad weight)"
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StreamingState:
    """Sums over the rows so far, each as a number and what is left of its rounding (`..., 2`); batch axes in front.

    Attributes:
        centre: u = 1/T around which the nodes lie, `(...)`.
        slopes: first to fourth derivative of the loss in log u at the nodes, `(..., 4, 5, 2)`.
        losses: loss at the nodes, of the forecasts as they are and at u = 0, `(..., 7, 2)`.
        slope_at_zero: derivative of the loss in u at u = 0, `(..., 2)`.
        counts: weight of each class, `(..., k, 2)`.
        invalid: whether a row was NaN, had a label out of range or a bad weight, bool `(...)`.
        impossible: whether a label had probability 0, bool `(...)`.
    """

    centre: jax.Array
    slopes: jax.Array
    losses: jax.Array
    slope_at_zero: jax.Array
    counts: jax.Array
    invalid: jax.Array
    impossible: jax.Array


def init(logits, labels, *, weights=None) -> StreamingState:
    """An empty state for data like a first chunk, which says where the temperature will be and is not counted.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k); weights: counts `(..., n)`. A few hundred rows:
            the temperature of all data must lie between half and twice theirs.

    Raises:
        ValueError: eagerly, naming the first bad row, if no lane is usable. A lane that is not usable among others, or
            in compiled code, stays so: `decompose` gives it NaN and its status.
    """
    logits, labels, weights = prepare(logits, labels, weights, "streaming.init")
    state = _init(logits, labels, weights)
    if not checks.is_traced(state):
        checks.raise_if_unusable(
            np.asarray(state.invalid | state.impossible),
            lambda: checks.explain_multiclass(logits, labels, weights, call="streaming.init"),
        )
    return state


def update(state: StreamingState, logits, labels, *, weights=None) -> StreamingState:
    """The state after one more chunk.

    Args:
        state: of `init` or the update before; under `jax.jit`, `jax.lax.scan` or in a loop.
        logits: `(..., n, k)`, any n >= 1; batch axes as in `init`. labels: `(..., n)`. weights: counts `(..., n)`.

    Raises:
        ValueError: eagerly, naming the first bad row, if with this chunk no lane is usable any more.

    Cost: that of about 13 log-loss passes over the chunk; memory: a few times the chunk, whatever the number of chunks.
    """
    logits, labels, weights = prepare(logits, labels, weights, "streaming.update")
    k = state.counts.shape[-2]
    if logits.shape[-1] != k:
        raise ValueError(f"the state is for {k} classes, got logits of shape {logits.shape}")
    batch = np.broadcast_shapes(checks.rows(logits, labels), () if weights is None else weights.shape)[:-1]
    if batch != state.centre.shape:
        raise ValueError(f"the chunk must have the batch shape of the state, {state.centre.shape}, got {batch}")
    new = _update(state, logits, labels, weights)
    if not checks.is_traced(new):
        before, failed = (np.asarray(s.invalid | s.impossible) for s in (state, new))
        if (failed & ~before).any():
            checks.raise_if_unusable(
                failed, lambda: checks.explain_multiclass(logits, labels, weights, call="streaming.update")
            )
    return new


def decompose(state: StreamingState) -> Decomposition:
    """Risk, calibration and refinement of all rows so far under the log loss, and the fitted temperature.

    Returns:
        `jaxcal.Decomposition`, as `jaxcal.decompose` of all rows together: its `fit` is a `TemperatureFit`. NaN and
        NOT_CONVERGED where the best temperature is not between half and twice that of the first chunk, or not known to
        1e-6 (of labels that are hardly ever wrong, the first chunk has more or fewer than the rest): start again from
        a larger one, or with other rows. AT_LOWER_BOUND, u = 0, for logits that point away from the labels.
        INVALID_INPUT, NaN, for NaN and +inf logits, labels out of range, bad weights and no rows; IMPOSSIBLE_EVENT,
        T NaN and risks inf, for a label with logit -inf; NOT_IDENTIFIED, T = 1, where every row is constant. Where
        every label is the arg max of its row no temperature is the best: NOT_CONVERGED.

    Agrees with the fit to all rows to 1e-6 relative in T, in float32 and float64.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> from jaxcal import streaming
        >>> def chunk(i):  # of over-confident next-token logits, T = 1.5
        ...     z = jax.random.normal(jax.random.key(i), (500, 1000))
        ...     return 3.0 * z, jax.random.categorical(jax.random.key(100 + i), 2.0 * z)
        >>> state = streaming.init(*chunk(0))
        >>> for i in range(10):
        ...     state = streaming.update(state, *chunk(i))
        >>> parts = streaming.decompose(state)
        >>> print(f"{parts.fit.temperature:.1f}")
        1.5
    """
    result = _decompose(state)
    if not checks.is_traced(result):
        checks.raise_if_unusable(np.asarray(result.status) >= Status.INVALID_INPUT, lambda: _UNUSABLE)
    return result


@jax.jit
def _init(logits, labels, weights):
    found = fit_temperature(logits, labels, weights=weights)
    u = found.inverse_temperature
    dtype = checks.compute_dtype(logits)
    usable = (found.status == Status.CONVERGED) | (found.status == Status.AT_UPPER_BOUND)
    zeros = lambda *shape: jnp.zeros((*u.shape, *shape, 2), dtype)  # noqa: E731
    return StreamingState(
        centre=jnp.where(usable & (u > 0), u, 1).astype(dtype),
        slopes=zeros(4, len(_NODES)),
        losses=zeros(len(_NODES) + 2),
        slope_at_zero=zeros(),
        counts=zeros(logits.shape[-1]),
        invalid=found.status == Status.INVALID_INPUT,
        impossible=found.status == Status.IMPOSSIBLE_EVENT,
    )


@jax.jit
def _update(state, logits, labels, weights):
    dtype, batch = state.centre.dtype, state.centre.shape
    z = hide_absent(logits.astype(dtype), weights)
    n, k = z.shape[-2:]
    w = jnp.ones(n, dtype) if weights is None else weights.astype(dtype)
    used = w > 0
    peak = jnp.max(z, axis=-1)
    own_gap = own_class(z, labels) - peak
    some = lambda bad: jnp.broadcast_to(jnp.any(bad, axis=-1), batch)  # noqa: E731
    wrong = used & ~(has_softmax(z) & (labels >= 0) & (labels < k))
    gaps = z - peak[..., None]

    def summed(values):
        return jnp.broadcast_to(total(jnp.where(used, w * jnp.where(used, values, 0), 0)), batch)

    def at(u):
        """Sums of the loss and of its first four derivatives in log u."""
        log_p = log_softmax(scaled(gaps, u[..., None]))
        p, g = jnp.exp(log_p), u[..., None, None] * gaps
        first = jnp.sum(jnp.where(p > 0, p * g, 0), axis=-1)
        centred = jnp.where(p > 0, g - first[..., None], 0)
        second, third, fourth = (jnp.sum(p * centred**m, axis=-1) for m in (2, 3, 4))
        # cumulants of scaled gaps are u^m times derivatives in u; Stirling's numbers make derivatives in log u of them
        one, two, three, four = first - u[..., None] * own_gap, second, third, fourth - 3 * second**2
        slopes = one, one + two, one + 3 * two + three, one + 7 * two + 6 * three + four
        return jnp.stack([summed(-own_class(log_p, labels)), *map(summed, slopes)])

    nodes = jnp.exp(jnp.asarray(_NODES, dtype)).reshape(-1, *(1,) * len(batch)) * state.centre
    sums = jnp.moveaxis(lax.map(at, jnp.concatenate([nodes, jnp.ones_like(nodes[:1])])), (1, 0), (-2, -1))
    allowed = z > -jnp.inf
    size = jnp.sum(allowed, axis=-1, dtype=dtype)
    slope_at_zero = summed(jnp.sum(jnp.where(allowed, gaps, 0), axis=-1) / size - own_gap)
    losses = jnp.concatenate([sums[..., 0, :], summed(jnp.log(size))[..., None]], axis=-1)
    counts = jnp.broadcast_to(segment_totals(jnp.where(used, w, 0), labels, k), (*batch, k))

    def add(pair, more):
        return jnp.stack(add_pairs(pair[..., 0], pair[..., 1], more, jnp.zeros_like(more)), axis=-1)

    return replace(
        state,
        slopes=add(state.slopes, sums[..., 1:, :-1]),
        losses=add(state.losses, losses),
        slope_at_zero=add(state.slope_at_zero, slope_at_zero),
        counts=add(state.counts, counts),
        invalid=state.invalid | some(wrong | ~(w >= 0) | (w == jnp.inf)) | jnp.isnan(losses[..., -2]),
        impossible=state.impossible | some(used & (own_gap == -jnp.inf) & ~wrong),
    )


# Bernstein coefficients 0 to 3 of a polynomial of degree 7 from its value and three derivatives at 0: none is large, so
# that no rounding is amplified. Those at 1, the other way round, have derivatives of the other sign.
_BERNSTEIN = np.array([[math.comb(j, m) / math.perm(7, m) for m in range(4)] for j in range(4)])


def _bernstein(coefficients, t):
    degree = len(coefficients) - 1
    return sum(math.comb(degree, j) * t**j * (1 - t) ** (degree - j) * b for j, b in enumerate(coefficients))


@jax.jit
def _decompose(state):
    counts, slopes, losses = (jnp.sum(a, axis=-1) for a in (state.counts, state.slopes, state.losses))
    mass = jnp.sum(counts, axis=-1)
    slopes, losses = slopes / mass[..., None, None], losses / mass[..., None]
    dtype = losses.dtype

    # the interval of the slope's change of sign, and the slope in it
    before = jnp.sum(slopes[..., 0, 1:-1] <= 0, axis=-1)
    take = lambda a, i: jnp.take_along_axis(a, i[..., None], axis=-1)[..., 0]  # noqa: E731
    unit = _STEP ** np.arange(4)
    left, right = (jnp.take_along_axis(slopes, (before + i)[..., None, None], axis=-1)[..., 0] for i in (0, 1))
    left = left @ jnp.asarray((_BERNSTEIN * unit).T, dtype)
    right = right @ jnp.asarray((_BERNSTEIN * unit * (-1) ** np.arange(4)).T[:, ::-1], dtype)
    control = jnp.moveaxis(jnp.concatenate([left, right], axis=-1), -1, 0)
    slope = partial(_bernstein, control)
    integral = partial(_bernstein, _STEP / 8 * jnp.concatenate([0 * control[:1], jnp.cumsum(control, axis=0)]))

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        beyond = slope(middle) > 0
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    zero = jnp.zeros_like(mass)
    low, high = lax.fori_loop(0, _HALVINGS, halve, (zero, zero + 1))
    t = (low + high) / 2
    x = jnp.asarray(_NODES, dtype)[before] + t * _STEP
    from_left = take(losses, before) + integral(t)
    from_right = take(losses, before + 1) - (integral(zero + 1) - integral(t))
    # The losses at both ends tell the error of the slope's integral, and so, for it goes as t^4 (1 - t)^4, that of x.
    steepness = partial(_bernstein, 7 * jnp.diff(control, axis=0))(t)
    missing = jnp.abs(take(losses, before + 1) - take(losses, before) - integral(zero + 1))
    rounding = 16 * jnp.finfo(dtype).eps * take(losses, before)
    known = 630 * (t * (1 - t)) ** 4 * jnp.maximum(missing - rounding, 0) <= _ACCURACY * steepness
    risk, uniform = losses[..., -2], losses[..., -1]
    constant = jnp.all(slopes == 0, axis=(-2, -1))
    inside = (slopes[..., 0, 0] <= 0) & (slopes[..., 0, -1] >= 0)
    at_zero = ~inside & (jnp.sum(state.slope_at_zero, axis=-1) >= 0)  # the loss is convex in u

    status = jnp.where(inside & known, Status.CONVERGED, Status.NOT_CONVERGED)
    status = jnp.where(at_zero, Status.AT_LOWER_BOUND, status)
    status = jnp.where(constant, Status.NOT_IDENTIFIED, status)
    status = jnp.where(state.impossible, Status.IMPOSSIBLE_EVENT, status)
    status = jnp.where(state.invalid | ~(mass > 0), Status.INVALID_INPUT, status).astype(jnp.int32)
    failed = status >= Status.NOT_CONVERGED
    u = jnp.where(at_zero, 0, jnp.where(constant, 1, state.centre * jnp.exp(x)))
    found = jnp.where(at_zero, uniform, jnp.where(constant, risk, jnp.where(t < 0.5, from_left, from_right)))
    gradient = jnp.where(at_zero | constant, 0, jnp.abs(slope(t)))
    bad = jnp.where(status == Status.IMPOSSIBLE_EVENT, jnp.inf, jnp.nan)
    refinement = jnp.where(failed, bad, jnp.minimum(found, risk))
    risk = jnp.where(status >= Status.INVALID_INPUT, bad, risk)
    u, gradient = (jnp.where(failed, jnp.nan, a) for a in (u, gradient))
    fit = TemperatureFit(u, refinement, status, jnp.ones_like(status), gradient)

    share = counts / mass[..., None]
    entropy = log_loss._entropy(jnp.where(share > 0, jnp.log(jnp.where(share > 0, share, 1)), -jnp.inf))
    uncertainty = jnp.where(status == Status.INVALID_INPUT, jnp.nan, entropy)
    return Decomposition(risk, risk - refinement, refinement, uncertainty - refinement, uncertainty, status, fit)
