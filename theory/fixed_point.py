"""One solver for every model: lanes, limits at both ends, status, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal.status import Status
from theory.continuation import Model, Point, follow, implicit, settle
from theory.lanes import over_lanes
from theory.limits import alignment_at_infinity
from theory.precision import as_reals, inside_trace
from theory.solution import Solution
from theory.spectra import check_spectrum

# The hardest of 10,000 points of the box of the tests needs 25 steps.
_MAX_STEPS = 300
# The path begins where the penalty is this many times the largest other term, and for lambda = 0 it ends this far below
# it.
_BEGIN, _VANISHING = 4.0, 1e-40
# The equations hold to about 1e-13; a larger residual is reported as not converged.
_RESIDUAL = 1e-10
# Smaller variances, at regularizations beyond 1e140 mean eigenvalues, are about to underflow.
_LEAST_VARIANCE = 1e-280


def solve(model: Model, regularization, ratio, separation, spectrum) -> Solution:
    """The public solvers: broadcast, solve, explain."""
    check_spectrum(spectrum)
    names = ("regularization", "ratio", "separation")
    arrays = [as_reals(x, name) for x, name in zip((regularization, ratio, separation), names, strict=True)]
    try:
        jnp.broadcast_shapes(*(x.shape for x in arrays), spectrum.batch_shape)
    except ValueError as error:
        shapes = ", ".join(f"{name} {x.shape}" for x, name in zip(arrays, names, strict=True))
        raise ValueError(f"shapes do not broadcast: {shapes}, spectrum {spectrum.batch_shape}") from error
    vanishing = inside_trace(arrays) or bool(np.any(np.asarray(arrays[0]) == 0))
    solution = Solution(*over_lanes(solve_lane, (model, vanishing), arrays, spectrum), scale=model.scale)
    status = solution.status
    if not inside_trace(status) and status.size and np.all(np.asarray(status) == Status.INVALID_INPUT):
        raise ValueError(
            "regularization must be >= 0, ratio positive and finite, separation >= 0 and finite, spectrum positive; "
            f"got {regularization=}, {ratio=}, {separation=}, {spectrum}"
        )
    return solution


def path_begin(ratio, signal, values, weights):
    """log(lambda) where the penalty dominates."""
    first, second = jnp.sum(weights * values), jnp.sum(weights * values**2)
    return jnp.log(_BEGIN * jnp.maximum(ratio * first, jnp.sqrt(signal * first + ratio * second)))


def alignment_and_norm_at_zero(model: Model, guess, lam, theta: tuple) -> tuple:
    """Limits for lambda -> 0 from the unknowns at a tiny lam: alignment, forecast norm, whether they are known."""
    ratio, signal, values, weights = theta
    beyond = ratio >= model.edge(signal * jnp.sum(weights / values))
    point = settle(lambda p: model.linearize(p, 0.0, *theta)[:2], guess)
    inside = model.readout(point, 0.0, *theta)
    miss = jnp.max(jnp.abs(model.residual(point, 0.0, *theta)))
    limit = settle(_with_jacobian(lambda p: model.limit_residual(p, *theta)), model.limit_start(guess, lam))
    outside, alignment = model.limit_readout(limit, *theta)
    miss_limit = jnp.max(jnp.abs(model.limit_residual(limit, *theta)))
    alignment = jnp.where(beyond, alignment, 2 * inside.mean / jnp.sqrt(inside.variance))
    norm = model.scale * jnp.sqrt(jnp.where(beyond, outside.variance, inside.variance))
    return alignment, norm, jnp.where(beyond, miss_limit, miss) < _RESIDUAL


def _with_jacobian(residual):
    def linearize(point):
        jacobian, value = jax.jacfwd(lambda p: (residual(p),) * 2, has_aux=True)(point)
        return value, jacobian

    return linearize


def solve_lane(model: Model, vanishing: bool, lam, ratio, separation, valid, values, weights) -> tuple:
    """The fields of `Solution` for one lane; `vanishing` says whether lam may be 0, which costs a second solve."""
    received = lam + ratio + separation
    valid = valid & (lam >= 0) & (ratio > 0) & (ratio < jnp.inf) & (separation >= 0) & (separation < jnp.inf)
    infinite = lam == jnp.inf
    lam, ratio, signal = (jnp.where(valid, x, 1.0) for x in (lam, ratio, separation**2))
    lam = jnp.where(infinite, 1.0, lam)
    values, weights = jnp.where(valid, values, 1.0), jnp.where(valid, weights, 1 / values.shape[-1])
    given = lam
    # in units of the mean eigenvalue, which changes none of the results
    unit = jnp.sum(weights * values)
    lam, signal, values = lam / unit, signal / unit, values / unit
    theta = (ratio, signal, values, weights)
    tiny = lax.stop_gradient(_VANISHING * jnp.exp(path_begin(*theta)))
    beyond = (lam == 0) & (ratio >= lax.stop_gradient(model.edge(signal * jnp.sum(weights / values))))
    # beyond the edge there is no root at 0: the path stops just before
    used = jnp.where(beyond, tiny, lam) if vanishing else lam

    def trace(used, *theta):
        begin = path_begin(*theta)
        end = jnp.log(jnp.where(used == 0, _VANISHING * jnp.exp(begin), used))
        linearize = lambda p, t: model.linearize(p, t, *theta)  # noqa: E731
        point, steps, done = follow(linearize, model.start, begin, end, used, _MAX_STEPS)
        return point, (steps.astype(float), done.astype(float))

    unknowns, (steps, done) = implicit(model.residual, trace)(used, *theta)
    point = model.readout(unknowns, used, *theta)
    residual = jnp.max(jnp.abs(lax.stop_gradient(model.residual(unknowns, used, *theta))))
    alignment = 2 * point.mean / jnp.sqrt(point.variance)
    sound = (done > 0) & (residual < _RESIDUAL) & jnp.isfinite(alignment) & (point.variance > _LEAST_VARIANCE)
    status = jnp.where(sound, Status.CONVERGED, Status.NOT_CONVERGED)
    if vanishing:

        def limit(guess, *theta):
            return settle(_with_jacobian(lambda p: model.limit_residual(p, *theta)), guess), ()

        # other lanes solve some problem that has a solution, with derivatives that cannot become NaN
        guess = jnp.where(beyond, lax.stop_gradient(model.limit_start(unknowns, jnp.where(beyond, used, 1.0))), 0.0)
        safe = (2.0, 1.0, 1.0, 1 / weights.shape[-1])
        inner = tuple(jnp.where(beyond, x, other) for x, other in zip(theta, safe, strict=True))
        at_zero, _ = implicit(lambda p, guess, *theta: model.limit_residual(p, *theta), limit)(guess, *inner)
        limit_point, limit_alignment = model.limit_readout(at_zero, *inner)
        miss = jnp.max(jnp.abs(lax.stop_gradient(model.limit_residual(at_zero, *inner))))
        reached = Status.CONVERGED if model.limit_is_estimate else Status.AT_UPPER_BOUND
        # the path reaches its limit with an infinite slope, or one that is not computed: its derivative is NaN, not 0
        unknown_slope = 0.0 * jnp.sqrt(jnp.where(beyond, given, 1.0))
        point = jax.tree.map(lambda a, b: jnp.where(beyond, a + unknown_slope, b), limit_point, point)
        alignment = jnp.where(beyond, limit_alignment + unknown_slope, alignment)
        status = jnp.where(beyond, jnp.where(miss < _RESIDUAL, reached, Status.NOT_CONVERGED), status)
        residual = jnp.where(beyond, miss, residual)
    start = jnp.exp(jnp.asarray(model.start))
    far = Point(*_ends(start), 0.0, 0.0, 0.0)
    point = jax.tree.map(lambda a, b: jnp.where(infinite, a, b), far, point)
    alignment = jnp.where(infinite, alignment_at_infinity(*theta), alignment)
    status = jnp.where(infinite, Status.CONVERGED, status)
    residual = jnp.where(infinite, 0.0, residual)
    status = jnp.where(valid, status, Status.INVALID_INPUT).astype(jnp.int32)
    norm = jnp.sqrt(jnp.where(point.variance > 0, point.variance, 1.0))
    norm = jnp.where(point.variance > 0, norm, 0.0)
    usable = status < Status.NOT_CONVERGED
    # NaN with NaN derivatives, and nothing of it in the lanes that are right
    poison = jnp.where(usable, 0.0, jnp.nan) * jnp.where(usable, 0.0, received)
    floats = [jnp.where(usable, x, jnp.nan) + poison for x in (*point, alignment, norm)]
    residual = jnp.where(valid, residual, jnp.nan)
    return (*floats, status, residual, jnp.where(infinite | ~valid, 0, steps).astype(jnp.int32))


def _ends(start):
    """eta, gamma and tau at infinite regularization, from however many unknowns the model has."""
    return start if start.shape[0] == 3 else (1.0, 1.0, start[0])
