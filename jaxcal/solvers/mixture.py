"""Maximum likelihood of the weights of a mixture whose components are known."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve

from jaxcal.solvers.sums import total

# 4 to 10 steps on ordinary data; each lowers the loss, and the certified gap says what is left.
_MAX_STEPS = 100

# Steps of the interior point method on one quadratic program: 8 to 15, whatever the number of components.
_MAX_INNER_STEPS = 60

# A mean of ratios has a rounding error of a few eps: below 2 there is nothing to gain, above 64 it is no rounding.
_ENOUGH, _ROUNDING = 2, 64

# Rows whose products are added at once: a few MB for 1,000 components.
_ROWS_A_PRODUCT = 1024

# Rows that are added in turn, as in `total`: equal terms drift by an eps or two.
_ROWS_A_SUM = 64

_matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)  # accelerators would round float32 to 10 bits


class MixtureOptimum(NamedTuple):
    """Weights `(..., m)` of the components and what is known of them; the other arrays `(...)`."""

    weights: jax.Array
    gap: jax.Array  # the mean log-likelihood is at most this far below its maximum
    num_steps: jax.Array  # int32
    converged: jax.Array  # bool
    identified: jax.Array  # bool: no other weights are as likely


def mixture_weights(log_density: jax.Array, counts: jax.Array, start: jax.Array) -> MixtureOptimum:
    r"""Maximum likelihood of mixture weights.

    max over w >= 0, sum w = 1 of  sum_i c_i log(sum_j w_j q_ij) / sum_i c_i

    Args:
        log_density: log q, `(..., n, m)`, any offset a row, -inf allowed but not for a whole row.
        counts: c, `(..., n)`, >= 0; rows of count 0 are absent.
        start: weights `(..., m)`, returned as they are where they are optimal.

    Without the constraint on the sum, min over w >= 0 of  sum_j w_j - mean_i log(sum_j w_j q_ij)  has the same optimum.
    A step minimizes its second-order model over w >= 0, by an interior point method, and goes the fraction of the way
    that makes the loss fall whatever the data: all of it once no row's density shrinks by half. Weights of 0 are exact.
    With g_j = mean_i q_ij / sum_l w_l q_il no weights are better by more than max_j g_j - 1, the gap; where the optimum
    is not unique one of them is returned. Differentiable to any order (implicit function theorem): weights of 0 stay 0.
    Cost: a step is O(n m^2 + m^3); memory m^2 a lane.
    """
    ndim = max(log_density.ndim - 2, counts.ndim - 1, start.ndim - 1)
    cores = ((log_density, 2), (counts, 1), (start, 1))
    arrays = [a.reshape((1,) * (ndim + core - a.ndim) + a.shape) for a, core in cores]
    batch = np.broadcast_shapes(*(a.shape[:ndim] for a in arrays))
    arrays[2] = jnp.broadcast_to(arrays[2], (*batch, start.shape[-1]))
    mapped = [[size > 1 or a is arrays[2] for size in a.shape[:ndim]] for a in arrays]
    solve = _optimum
    for axis in reversed(range(ndim)):  # what lanes share is not copied
        solve = jax.vmap(solve, in_axes=tuple(0 if m[axis] else None for m in mapped))
    shared = [tuple(i for i, m in enumerate(ms) if not m) for ms in mapped]
    return solve(*(a.squeeze(axes) for a, axes in zip(arrays, shared, strict=True)))


def log_mixture(log_density: jax.Array, weights: jax.Array) -> jax.Array:
    """log sum_j w_j q_j over the last axis, by position; components of weight 0 or density 0 have no derivative."""
    present = (weights > 0) & (log_density != -jnp.inf)
    terms = jnp.where(present, log_density + jnp.log(jnp.where(weights > 0, weights, 1)), -jnp.inf)
    peak = lax.stop_gradient(jnp.max(terms, axis=-1))
    peak = jnp.where(peak == -jnp.inf, 0, peak)
    sums = jnp.sum(jnp.where(present, jnp.exp(jnp.where(present, terms - peak[..., None], 0)), 0), axis=-1)
    return jnp.where(sums == 0, -jnp.inf, peak + jnp.log(jnp.where(sums == 0, 1, sums)))


@jax.custom_jvp
def _optimum(log_density, counts, start) -> MixtureOptimum:
    q, v = _prepared(log_density, counts)
    return _solve(q, v, start)


@_optimum.defjvp
def _optimum_jvp(primals, tangents):
    log_density, counts, start = primals
    found = _optimum(log_density, counts, start)  # differentiable again: second order follows
    weights = found.weights

    def slopes_at(log_density, counts):
        q, v = _prepared(log_density, counts)
        return _slopes(q, v, weights)

    _, slopes_dot = jax.jvp(slopes_at, primals[:2], tangents[:2])
    q, v = _prepared(log_density, counts)
    free = lax.stop_gradient(weights) > 0
    # slopes are 1 on the face of the optimum, and stay it as the weights move by the inverse of the information
    weights_dot = _inverse(_information(q, v, weights), free) @ jnp.where(free, slopes_dot, 0)
    none = np.zeros((), jax.dtypes.float0)
    return found, MixtureOptimum(weights_dot, jnp.zeros_like(found.gap), none, none, none)


def _prepared(log_density, counts):
    """Densities relative to the largest of each row, and counts that sum to 1."""
    peak = lax.stop_gradient(jnp.max(log_density, axis=-1, keepdims=True))
    unit = lax.stop_gradient(jnp.max(counts))
    counts = counts / jnp.where(unit > 0, unit, 1)
    mass = total(counts)
    masked = log_density == -jnp.inf
    q = jnp.where(masked, 0, jnp.exp(jnp.where(masked, 0, log_density - peak)))
    return q, counts / jnp.where(mass > 0, mass, 1)


def _ratio(q, v, w):
    """v_i / sum_j w_j q_ij, and the sums."""
    mixed = _matmul(q, w)
    used = v > 0
    mixed = jnp.where(used, mixed, 1)
    return jnp.where(used, v, 0) / mixed, mixed


def _parts(a, size):
    """Rows in parts of equal size, zeros after the last."""
    size = min(size, a.shape[0])
    padded = jnp.pad(a, [(0, -a.shape[0] % size)] + [(0, 0)] * (a.ndim - 1))
    return padded.reshape(-1, size, *a.shape[1:])


def _slopes(q, v, w):
    """g_j = sum_i v_i q_ij / sum_l w_l q_il; divided by sum w g, which is 1 but for rounding."""
    ratio, _ = _ratio(q, v, w)
    parts = jnp.sum(_parts(q, _ROWS_A_SUM) * _parts(ratio, _ROWS_A_SUM)[..., None], axis=1)
    slopes = total(parts.T)
    mean = jnp.sum(w * slopes)
    return slopes / jnp.where(mean > 0, mean, 1)


def _information(q, v, w):
    """H_jl = sum_i v_i q_ij q_il / (sum w q_i)^2, minus the derivative of the slopes; H w = g."""
    _, mixed = _ratio(q, v, w)
    root = jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0) / mixed

    def add(sums, part):
        scaled = part[0] * part[1][:, None]
        return sums + _matmul(scaled.T, scaled), None

    zero = jnp.zeros((q.shape[1], q.shape[1]), q.dtype)
    return lax.scan(add, zero, (_parts(q, _ROWS_A_PRODUCT), _parts(root, _ROWS_A_PRODUCT)))[0]


def _solve(q, v, start) -> MixtureOptimum:
    eps, m = jnp.finfo(q.dtype).eps, q.shape[-1]
    start = start / jnp.sum(start)
    gap = jnp.max(_slopes(q, v, start)) - 1
    best_at_once = gap <= _ENOUGH * eps
    # otherwise from nearer the centre, where no density is small
    first = jnp.where(best_at_once, start, 0.5 * (start + 1 / m))

    def advance(state):
        count, w, best, best_gap, _ = state
        slopes = _slopes(q, v, w)
        gap = jnp.max(slopes) - 1
        better = gap < best_gap
        rounding = ~better & (best_gap <= _ROUNDING * eps)
        best, best_gap = jnp.where(better, w, best), jnp.where(better, gap, best_gap)
        done = (best_gap <= _ENOUGH * eps) | rounding | jnp.isnan(gap)
        target = _nonnegative_minimum(_information(q, v, w), 2 * slopes - 1, w)
        downhill = jnp.sum((slopes - 1) * (target - w)) > 0  # False for NaN
        target = jnp.where(downhill, target, w * slopes)  # a step of EM
        _, mixed = _ratio(q, v, w)
        shrink = jnp.max(jnp.where(v > 0, -_matmul(q, target - w) / mixed, 0), initial=0)
        moved = w + (target - w) / jnp.where(shrink <= 0.5, 1, 1 + shrink)
        moved = moved / jnp.sum(moved)
        return count + 1, jnp.where(done, w, moved), best, best_gap, done

    def unfinished(state):
        return (state[0] < _MAX_STEPS) & ~state[-1]

    state = (jnp.int32(0), first, start, jnp.where(best_at_once, gap, jnp.inf), best_at_once)
    count, _, w, gap, _ = lax.while_loop(unfinished, advance, state)
    face, _ = _on_face(_information(q, v, w), w > 0)
    pivots = jnp.diagonal(jnp.linalg.cholesky(face))
    identified = jnp.min(pivots) ** 2 > _least(m, q.dtype)  # False for NaN
    return MixtureOptimum(w, gap, count, gap <= _ROUNDING * eps, identified)


def _nonnegative_minimum(information, slope, near):
    """argmin over y >= 0 of y'Hy / 2 - c'y, by Mehrotra's predictor and corrector; of several, one near `near`.

    At the end the components whose slack exceeds them are set to 0 and the equations of the others solved; where that
    makes some negative, which a slack of the size of their weight hides, these are set to 0, too, if it helps.
    """
    eps, m = jnp.finfo(slope.dtype).eps, slope.shape[-1]
    # units in which diagonal and slope are near 1; a component of weight > 0 has g = 1 <= H_jj
    scale = 1 / jnp.sqrt(jnp.maximum(jnp.diagonal(information), 1))
    ridge = 4 * eps * m  # what rounding may have done to the least eigenvalue
    h = information * scale[:, None] * scale + ridge * jnp.eye(m, dtype=slope.dtype)
    c = slope * scale + ridge * near / scale

    def barrier(x, s):
        return jnp.linalg.cholesky(h + jnp.diag(s / x))

    def reach(x, dx):
        return jnp.min(jnp.where(dx < 0, -x / jnp.where(dx < 0, dx, 1), jnp.inf))

    def advance(state):
        count, x, s, _ = state
        residual = _matmul(h, x) - c - s
        mu = jnp.mean(x * s)
        factor = (barrier(x, s), True)
        dx = cho_solve(factor, -residual - s)
        ds = -s - s / x * dx
        step = jnp.minimum(1, jnp.minimum(reach(x, dx), reach(s, ds)))
        centring = (jnp.mean((x + step * dx) * (s + step * ds)) / mu) ** 3
        aim = centring * mu - x * s - dx * ds
        dx = cho_solve(factor, -residual + aim / x)
        ds = (aim - s * dx) / x
        step = jnp.minimum(1, 0.995 * jnp.minimum(reach(x, dx), reach(s, ds)))
        new_x, new_s = x + step * dx, s + step * ds
        good = jnp.isfinite(jnp.sum(new_x) + jnp.sum(new_s)) & (jnp.min(new_x) > 0) & (jnp.min(new_s) > 0)
        x, s = jnp.where(good, new_x, x), jnp.where(good, new_s, s)
        # on the way from there to the optimum no component changes sides
        done = (m * jnp.mean(x * s) <= 0.1 * eps) & (jnp.max(jnp.abs(residual)) * (1 - step) <= eps)
        return count + 1, x, s, done | ~good

    start = (jnp.int32(0), 0.5 * (near + 1 / m) / scale, scale, False)
    _, x, s, _ = lax.while_loop(lambda state: (state[0] < _MAX_INNER_STEPS) & ~state[-1], advance, start)

    def solve(state):
        free, exact, _ = state
        free &= exact >= 0  # False for NaN
        face = jnp.where(free[:, None] & free, h, jnp.eye(m, dtype=h.dtype))
        exact = cho_solve((jnp.linalg.cholesky(face), True), jnp.where(free, c, 0))
        return free, exact, jnp.any(free & ~(exact >= 0))

    inside = jnp.where(x > s, x, 0)
    free, exact, _ = lax.while_loop(lambda state: state[-1], solve, (x > s, x, True))
    exact = jnp.where(free, exact, 0)
    # where several are as good the one inside says so; the decrease by differences, of which no digit cancels
    change = inside - exact
    gain = jnp.sum(change * (_matmul(h, 0.5 * (inside + exact)) - c))
    better = jnp.all(free == (x > s)) | (gain > 4 * eps * jnp.sum(jnp.abs(change)))
    return jnp.where(better, exact, inside) * scale


def _on_face(information, free):
    """Information of the free components with unit diagonal, that of the others the identity."""
    diagonal = jnp.diagonal(information)
    free = free & (diagonal > 0)
    scale = jnp.where(free, 1 / jnp.sqrt(jnp.where(free, diagonal, 1)), 1)
    eye = jnp.eye(len(scale), dtype=scale.dtype)
    return jnp.where(free[:, None] & free, information * scale[:, None] * scale, eye), scale


def _least(m, dtype):
    """Eigenvalues below it are rounding."""
    return 16 * m * jnp.finfo(dtype).eps


def _inverse(information, free):
    """Inverse on the face, 0 along directions that the data do not tell; differentiable."""
    face, scale = _on_face(information, free)
    values, vectors = jnp.linalg.eigh(lax.stop_gradient(face))
    told = values > _least(len(values), values.dtype)
    inverse = _matmul(vectors * jnp.where(told, 1 / jnp.where(told, values, 1), 0), vectors.T)
    # the same number, with the derivative of an inverse
    inverse = 2 * inverse - _matmul(_matmul(inverse, face), inverse)
    return jnp.where(free[:, None] & free, inverse * scale[:, None] * scale, 0)
