"""One solver for every model: lanes, limits at both ends, status, derivatives."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal.status import Status
from theory.continuation import Model, Point, follow, implicit, settle, with_jacobian
from theory.lanes import over_lanes
from theory.limits import alignment_at_infinity
from theory.precision import as_reals, inside_trace, nan_unless, without_slope
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


def standardize(ratio, separation, valid, values, weights) -> tuple[tuple, jax.Array]:
    """`theta` of a lane in units of the mean eigenvalue, and that unit; invalid lanes become some valid problem.

    Features times k multiply eigenvalues and lambda by k^2 and the separation by k, and change none of the results.
    """
    ratio, signal = jnp.where(valid, ratio, 1.0), jnp.where(valid, separation**2, 1.0)
    values, weights = jnp.where(valid, values, 1.0), jnp.where(valid, weights, 1 / values.shape[-1])
    unit = jnp.sum(weights * values)
    return (ratio, signal / unit, values / unit, weights), unit


def path_begin(ratio, signal, values, weights):
    """log(lambda) where the penalty dominates."""
    first, second = jnp.sum(weights * values), jnp.sum(weights * values**2)
    return jnp.log(_BEGIN * jnp.maximum(ratio * first, jnp.sqrt(signal * first + ratio * second)))


def beyond_edge(model: Model, theta: tuple):
    """Whether there is no estimate without regularization."""
    ratio, signal, values, weights = theta
    return ratio >= lax.stop_gradient(model.edge(signal * jnp.sum(weights / values)))


def alignment_and_norm_at_zero(model: Model, guess, lam, theta: tuple) -> tuple:
    """Limits for lambda -> 0 from the unknowns at a tiny lam: alignment, forecast norm, whether they are known."""
    beyond = beyond_edge(model, theta)
    point = settle(lambda p: model.linearize(p, 0.0, *theta)[:2], guess)
    inside = model.readout(point, 0.0, *theta)
    miss = jnp.max(jnp.abs(model.residual(point, 0.0, *theta)))
    limit = settle(with_jacobian(lambda p: model.limit_residual(p, *theta)), model.limit_start(guess, lam))
    outside, alignment = model.limit_readout(limit, *theta)
    miss_limit = jnp.max(jnp.abs(model.limit_residual(limit, *theta)))
    norm = model.scale * jnp.sqrt(jnp.where(beyond, outside.variance, inside.variance))
    known = jnp.where(beyond, miss_limit, miss) < _RESIDUAL
    return jnp.where(beyond, alignment, inside.alignment), norm, known


class _State(NamedTuple):
    """What is known of a lane."""

    point: Point
    alignment: jax.Array
    status: jax.Array
    residual: jax.Array


def solve_lane(model: Model, vanishing: bool, lam, ratio, separation, valid, values, weights) -> tuple:
    """The fields of `Solution` for one lane; `vanishing` says whether lam may be 0, which costs a second solve."""
    received = lam + ratio + separation
    valid = valid & (lam >= 0) & (ratio > 0) & (ratio < jnp.inf) & (separation >= 0) & (separation < jnp.inf)
    infinite = lam == jnp.inf
    given = jnp.where(valid & ~infinite, lam, 1.0)
    theta, unit = standardize(ratio, separation, valid, values, weights)
    lam = given / unit
    if vanishing:
        # beyond the edge there is no root at 0: the path stops just before
        beyond = (lam == 0) & beyond_edge(model, theta)
        lam = jnp.where(beyond, lax.stop_gradient(_VANISHING * jnp.exp(path_begin(*theta))), lam)
    unknowns, steps, state = _on_path(model, lam, theta)
    if vanishing:
        state = _select(beyond, _at_zero(model, unknowns, lam, given, beyond, theta), state)
    zero = jnp.zeros_like(lam)
    end = _State(Point(*model.far, zero, zero, zero), alignment_at_infinity(*theta), Status.CONVERGED, zero)
    point, alignment, status, residual = _select(infinite, end, state)

    positive = point.variance > 0
    norm = jnp.where(positive, jnp.sqrt(jnp.where(positive, point.variance, 1.0)), 0.0)
    status = jnp.where(valid, status, Status.INVALID_INPUT).astype(jnp.int32)
    fields = nan_unless(status < Status.NOT_CONVERGED, (*point, alignment, norm), received)
    residual = jnp.where(valid, residual, jnp.nan)
    return (*fields, status, residual, jnp.where(infinite | ~valid, 0, steps).astype(jnp.int32))


def _select(which, first: _State, second: _State) -> _State:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), first, second)


def _on_path(model: Model, lam, theta: tuple):
    """The unknowns at lam > 0, or at 0 where the estimate exists, the number of steps, and what follows from them."""

    def trace(lam, *theta):
        begin = path_begin(*theta)
        end = jnp.log(jnp.where(lam == 0, _VANISHING * jnp.exp(begin), lam))
        linearize = lambda p, t: model.linearize(p, t, *theta)  # noqa: E731
        unknowns, steps, done = follow(linearize, model.start, begin, end, lam, _MAX_STEPS)
        return unknowns, (steps.astype(float), done.astype(float))

    unknowns, (steps, done) = implicit(model.residual, trace)(lam, *theta)
    point = model.readout(unknowns, lam, *theta)
    residual = jnp.max(jnp.abs(lax.stop_gradient(model.residual(unknowns, lam, *theta))))
    sound = (done > 0) & (residual < _RESIDUAL) & (point.variance > _LEAST_VARIANCE) & jnp.isfinite(point.alignment)
    status = jnp.where(sound, Status.CONVERGED, Status.NOT_CONVERGED)
    return unknowns, steps, _State(point, point.alignment, status, residual)


def _at_zero(model: Model, unknowns, lam, given, beyond, theta: tuple) -> _State:
    """The limit lambda -> 0 beyond the edge, from the unknowns at a tiny lam; `given` is 0 there."""

    def solve(guess, *theta):
        return settle(with_jacobian(lambda p: model.limit_residual(p, *theta)), guess), ()

    # other lanes solve some problem that has a solution, with derivatives that cannot become NaN
    guess = jnp.where(beyond, lax.stop_gradient(model.limit_start(unknowns, jnp.where(beyond, lam, 1.0))), 0.0)
    safe = (2.0, 1.0, 1.0, 1 / theta[-1].shape[-1])
    theta = tuple(jnp.where(beyond, x, other) for x, other in zip(theta, safe, strict=True))
    limit, _ = implicit(lambda p, guess, *theta: model.limit_residual(p, *theta), solve)(guess, *theta)
    point, alignment = model.limit_readout(limit, *theta)
    residual = jnp.max(jnp.abs(lax.stop_gradient(model.limit_residual(limit, *theta))))
    reached = Status.CONVERGED if model.limit_is_estimate else Status.AT_UPPER_BOUND
    status = jnp.where(residual < _RESIDUAL, reached, Status.NOT_CONVERGED)
    # the path reaches its limit with an infinite slope, or one that is not computed: its derivative is NaN, not 0
    point, alignment = jax.tree.map(lambda x: x + without_slope(beyond, given), (point, alignment))
    return _State(point, alignment, status, residual)
