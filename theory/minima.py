"""Where along the regularization path risk, calibration and refinement are smallest."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal.losses import ProperLoss, log_loss
from jaxcal.solvers import bracketed_root
from jaxcal.status import Status, check_status
from theory.continuation import Model, newton
from theory.curves import find_model
from theory.fixed_point import alignment_and_norm_at_zero, path_begin, standardize
from theory.gaussian import balanced, check_options
from theory.lanes import over_lanes
from theory.limits import alignment_at_infinity, separation
from theory.precision import as_reals, in_float64, inside_trace
from theory.spectra import check_spectrum

# The path is bracketed from 10^3 times the place where the penalty dominates down to 10^-16 of it, further for spectra
# that spread, in 76 steps (a quarter of a decade), and then in long steps over 24 decades more, where every path is a
# straight line in logarithms.
_TOP, _BOTTOM, _TAIL = np.log(10.0) * 3, np.log(10.0) * 16, np.log(10.0) * 24
_STEPS, _TAIL_STEPS = 76, 12
# The grid only brackets; 128 nodes give its losses to 1e-6 or better, and 1e-4 is more than that.
_COARSE_NODES = 128
_COARSE = 1e-4
# Valleys of the same function that are refined; two that differ by less than the grid can tell are both.
_VALLEYS = 2
# The tangent is that of the point before the last Newton step, so that step should be small; where norms diverge,
# rounding keeps it from becoming so.
_CLOSE, _ARRIVED = 1e-9, 1e-6
# Three Newton steps and eight root steps are usual.
_MAX_NEWTON, _MAX_ROOT_STEPS = 25, 40
# Slopes in log(lambda) below this are rounding.
_FLAT = 1e-13
# An end of the path wins over a minimum inside it that is not lower by more than rounding.
_TIE = 1e-13
# What rounding leaves of a place in its bracket, and of a loss.
_NOISE = 1e-12


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Minimizers:
    """Where each part of the loss is smallest, and how small; every field has the broadcast shape of the arguments.

    Attributes:
        lambda_risk, lambda_calibration, lambda_refinement: minimizers; 0 or inf where the infimum is the limit there.
            `lambda_calibration` is the largest lambda with calibration error 0 if there is one.
        risk, calibration, refinement: the minima, each at its own lambda.
        gain: 1 - refinement / risk, what is gained by tuning for refinement and then calibrating.
        num_calibrated: number of lambda with calibration error 0, as seen at a quarter of a decade, int32.
        status: `jaxcal.Status`; failed lanes are NaN. NOT_IDENTIFIED: Bayes error 1/2, all forecasts are equally
            refined.
    """

    lambda_risk: jax.Array
    lambda_calibration: jax.Array
    lambda_refinement: jax.Array
    risk: jax.Array
    calibration: jax.Array
    refinement: jax.Array
    gain: jax.Array
    num_calibrated: jax.Array
    status: jax.Array

    def check(self) -> None:
        """Raise `ValueError` with a written message if any problem failed."""
        check_status(self.status)


@in_float64
def minimizers(
    ratio, bayes_error, spectrum, *, model: str = "logistic", loss: ProperLoss = log_loss, squeeze: float = 1.0
) -> Minimizers:
    r"""The regularization strengths that minimize risk, calibration and refinement, by roots of exact derivatives.

    The path is traced over 43 decades of lambda and bracketed, in quarters of a decade where it bends. The two deepest
    valleys of each function are refined to rounding and compared with the limits lambda -> 0 and lambda -> inf.
    Calibration is 0 exactly where v = 2 m (v = m for ridge regression and LDA); only if that has no root its stationary
    points are searched.

    Args:
        ratio: r = p / n > 0.
        bayes_error: e* in (0, 1/2].
        spectrum: `BetaSpectrum` or `DiscreteSpectrum`. All three broadcast.
        model: "logistic", "ridge" or "lda".
        loss: any proper loss of `jaxcal`. The refinement minimizer does not depend on it.
        squeeze: 0.99 reproduces the published tables, see `theory.gaussian_decomposition`.

    Returns:
        `Minimizers`, float64; lambda to about 1e-9 relative, values to 1e-12. Not differentiable. Cost: about 10 ms.

    Examples:
        >>> import theory
        >>> best = theory.minimizers(0.5, 0.1, theory.BetaSpectrum(1.0, 1.0))
        >>> print(f"{best.lambda_calibration:.4f} {best.lambda_risk:.4f} {best.lambda_refinement:.4f} {best.gain:.4f}")
        0.0702 0.0531 0.0044 0.0223

    Source: Berta et al. (2025), Section 7.
    """
    found = find_model(model)
    check_options(loss, squeeze)
    ratio, c = as_reals(ratio, "ratio"), separation(bayes_error, spectrum)
    if inside_trace(ratio, c):
        raise TypeError("minimizers is computed eagerly; call it outside jit, vmap and grad (arguments broadcast)")
    if ratio.size and not np.any((np.asarray(ratio) > 0) & (np.asarray(ratio) < np.inf)):
        raise ValueError(f"ratio must be positive and finite, got {ratio}")
    result = Minimizers(*over_lanes(_lane, (found, loss, float(squeeze)), (ratio, c), spectrum))
    if result.status.size and np.all(np.asarray(result.status) == Status.INVALID_INPUT):
        raise ValueError(
            f"no problem has both a positive ratio and a Bayes error in (0, 0.5]: got {ratio}, {bayes_error}"
        )
    return result


def minimizer_map(ratios, bayes_errors, spectrum, **options) -> Minimizers:
    """`minimizers` for every pair: fields of shape `(len(bayes_errors), len(ratios))`, one column of Figure 8.

    Args:
        ratios: `(R,)` values of r = p / n.
        bayes_errors: `(E,)` values of e*.
        spectrum: without batch shape.
        **options: `model`, `loss` and `squeeze` of `theory.minimizers`.

    Returns:
        `Minimizers` with fields `(E, R)`. Cost: 252 cells in about 2 s on 2 cores.

    Examples:
        >>> import numpy as np, theory
        >>> found = theory.minimizer_map([0.1, 1.0], [0.05, 0.1, 0.2], theory.BetaSpectrum(5.0, 1.0))
        >>> print(np.round(np.log10(found.lambda_calibration / found.lambda_refinement), 2)[1])
        [-1.67 -2.06]
    """
    if np.ndim(ratios) != 1 or np.ndim(bayes_errors) != 1:
        raise ValueError(
            f"ratios and bayes_errors must have one axis each, got shapes {np.shape(ratios)} "
            f"and {np.shape(bayes_errors)}"
        )
    check_spectrum(spectrum)
    if spectrum.batch_shape:
        raise ValueError(f"the spectrum of a map must have no batch shape, got {spectrum.batch_shape}")
    return minimizers(np.asarray(ratios)[None, :], np.asarray(bayes_errors)[:, None], spectrum, **options)


class _Functions:
    """The functions of log(lambda) to be minimized, at one problem: risk, calibration and -log(alignment)."""

    def __init__(self, model: Model, loss: ProperLoss, squeeze: float, theta: tuple):
        self.model, self.loss, self.squeeze, self.theta = model, loss, squeeze, theta

    def point(self, guess, place):
        """Root of the equations from a near guess, its tangent, and whether Newton's method arrived."""

        def body(state):
            point, _, _, count = state
            step, tangent = newton(lambda p, lam: self.model.linearize(p, lam, *self.theta), point, jnp.exp(place))
            return point + jnp.clip(step, -0.5, 0.5), tangent, jnp.max(jnp.abs(step)), count + 1

        start = (guess, jnp.zeros_like(guess), jnp.inf + 0.0 * place, 0)
        point, tangent, size, _ = lax.while_loop(lambda s: (s[2] > _CLOSE) & (s[3] < _MAX_NEWTON), body, start)
        return point, tangent, size < _ARRIVED

    def losses(self, alignment, norm, nodes):
        """Risk, calibration and -log(alignment), `(3,)`."""
        calibration, refinement = balanced(self.loss, self.squeeze, alignment, norm, nodes)
        return jnp.stack([calibration + refinement, calibration, -jnp.log(alignment)])

    def at(self, point, tangent, place, nodes):
        """Values `(3,)`; minus the slopes, and log(norm / alignment), `(4,)`: each falls through 0 where it should."""

        def shape(point, place):
            found = self.model.readout(point, jnp.exp(place), *self.theta)
            return found.alignment, self.model.scale * jnp.sqrt(found.variance)

        (alignment, norm), slopes = jax.jvp(shape, (point, place), (tangent, jnp.ones_like(place)))
        values, slopes = jax.jvp(lambda a, n: self.losses(a, n, nodes), (alignment, norm), slopes)
        return values, jnp.append(-slopes, jnp.log(norm / alignment))

    def at_all(self, points, tangents, places, nodes):
        """`at` for many places."""
        return jax.vmap(self.at, in_axes=(0, 0, 0, None))(points, tangents, places, nodes)


# Which function each refined bracket belongs to: the three, and the excess log(norm / alignment).
_KINDS = np.append(np.repeat(np.arange(3), _VALLEYS), 3)


class _Path(NamedTuple):
    """A traced path; rows run from large lambda to small."""

    places: jax.Array  # log(lambda)
    points: jax.Array
    tangents: jax.Array
    heights: jax.Array  # (places, 3)
    descents: jax.Array  # (places, 4)
    reached: jax.Array  # False where norms grow beyond all bounds, close to the edge of separability
    last: jax.Array  # index of the last place that was reached


class _Brackets(NamedTuple):
    """Where to look for roots, one entry for each of `_KINDS`."""

    upper: jax.Array  # index of the place above; the one below is the next
    real: jax.Array  # whether there is a root
    guess: jax.Array  # fraction of the way from the place below where a straight descent is 0
    drop: jax.Array  # its slope, from the place below to the place above


def _lane(model, loss, squeeze, ratio, c, valid, values, weights):
    valid = valid & (ratio > 0) & (ratio < jnp.inf) & (c >= 0)
    blank = c == 0
    theta, unit = standardize(ratio, jnp.where(blank, 1.0, c), valid, values, weights)  # lambda is in units of it
    functions = _Functions(model, loss, squeeze, theta)
    path = _trace(functions)
    brackets = _bracket(path)
    place, height, converged = _refine(functions, path, brackets)
    best, where, unsure = _choose(functions, path, brackets, place, height)

    # a valley that opens below the last place has no bracket; nothing found may be higher than what was seen
    lowest = jnp.min(jnp.where(path.reached[:, None], path.heights, jnp.inf), axis=0)
    overlooked = jnp.any(lowest < best - _COARSE * jnp.array([best[0], best[1], 1.0]) - _NOISE)
    failed = (path.last < _STEPS - 1) | overlooked | jnp.any(brackets.real & ~converged) | unsure
    signs = path.descents[:, 3] < 0
    count = jnp.sum((signs[:-1] != signs[1:]) & path.reached[1:])
    best = best.at[2].set(balanced(loss, squeeze, jnp.exp(-best[2]), jnp.ones_like(unit))[1])

    # without a signal the best forecast is 1/2, everywhere equally refined
    flat = balanced(loss, squeeze, jnp.zeros_like(unit), jnp.zeros_like(unit))[1]
    best = jnp.where(blank, jnp.stack([flat, 0.0 * flat, flat]), best)
    where = jnp.where(blank, jnp.inf, where)
    status = jnp.where(failed, Status.NOT_CONVERGED, Status.CONVERGED)
    status = jnp.where(blank, Status.NOT_IDENTIFIED, status)
    status = jnp.where(valid, status, Status.INVALID_INPUT).astype(jnp.int32)
    usable = status < Status.NOT_CONVERGED
    fields = (jnp.where(usable, x, jnp.nan) for x in (*(unit * where), *best, 1 - best[2] / best[0]))
    return (*fields, jnp.where(usable & ~blank, count, 0).astype(jnp.int32), status)


def _trace(functions: _Functions) -> _Path:
    """Newton's method from place to place, each from the tangent at the one before."""
    places = _grid(*functions.theta)

    def advance(carry, place):
        point, tangent, last = carry
        point, tangent, arrived = functions.point(point + tangent * (place - last), place)
        return (point, tangent, place), (point, tangent, arrived)

    start = jnp.asarray(functions.model.start) + 0.0 * places[0]
    _, (points, tangents, arrived) = lax.scan(advance, (start, jnp.zeros_like(start), places[0]), places)
    heights, descents = functions.at_all(points, tangents, places, _COARSE_NODES)
    reached = jnp.cumprod(arrived) > 0
    return _Path(places, points, tangents, heights, descents, reached, jnp.sum(reached) - 1)


def _bracket(path: _Path) -> _Brackets:
    """The two deepest valleys of each function, judged by cubics, and the first zero of the excess."""
    above, below = path.descents[:-1], path.descents[1:]
    # where a function has reached its limit its slope is rounding
    falls = (below > 0) & (above <= 0) & path.reached[1:, None] & (jnp.maximum(below, -above) > _FLAT)
    drop = above - below
    foot = jnp.clip(below / jnp.where(falls, -drop, 1.0), 0, 1)
    width = (path.places[:-1] - path.places[1:])[:, None]
    ends = path.heights[1:], path.heights[:-1], -below[:, :3] * width, -above[:, :3] * width
    floor = jnp.where(falls[:, :3], _hermite(foot[:, :3], *ends), jnp.inf)
    valleys = lax.top_k(-floor.T, _VALLEYS)[1]
    upper = jnp.append(valleys.reshape(-1), jnp.argmax(falls[:, 3]))
    return _Brackets(upper, falls[upper, _KINDS], foot[upper, _KINDS], drop[upper, _KINDS])


def _refine(functions: _Functions, path: _Path, brackets: _Brackets):
    """The roots to rounding: log(lambda), the height of each one's function, and whether it converged."""
    upper, lower = brackets.upper, brackets.upper + 1
    base, span = path.places[lower], path.places[upper] - path.places[lower]
    slopes = (path.tangents[i] * span[:, None] for i in (lower, upper))
    ends = (path.points[lower], path.points[upper], *slopes)
    rows = np.arange(len(_KINDS))

    def on_unit(x):
        place = base + span * x
        point, tangent, _ = jax.vmap(functions.point)(_hermite(x[:, None], *ends), place)
        heights, descents = functions.at_all(point, tangent, place, None)
        return descents[rows, _KINDS], heights[rows, np.minimum(_KINDS, 2)]

    root = bracketed_root(
        on_unit,
        brackets.guess,
        brackets.drop,
        0.0,
        1.0,
        accept=lambda value, step, aux: jnp.abs(step) < _NOISE,
        active=brackets.real,
        max_steps=_MAX_ROOT_STEPS,
    )
    return base + span * root.x, jnp.where(brackets.real, root.aux, jnp.inf), root.converged


def _choose(functions: _Functions, path: _Path, brackets: _Brackets, place, height):
    """The smallest of the valleys and of both limits: heights `(3,)`, lambda `(3,)`, and whether a limit is missing."""
    valley, height = (x[: 3 * _VALLEYS].reshape(3, _VALLEYS) for x in (place, height))
    deepest = jnp.argmin(height, axis=1)[:, None]
    best = jnp.take_along_axis(height, deepest, axis=1)[:, 0]
    where = jnp.exp(jnp.take_along_axis(valley, deepest, axis=1)[:, 0])

    alignment, norm, known = alignment_and_norm_at_zero(
        functions.model, path.points[path.last], jnp.exp(path.places[path.last]), functions.theta
    )
    at_zero = functions.losses(jnp.where(known, alignment, 1.0), jnp.where(known, norm, 1.0), None)
    at_zero = jnp.where(known, at_zero, path.heights[path.last])
    at_inf = functions.losses(alignment_at_infinity(*functions.theta), 0.0 * alignment, None)
    for value, end in ((at_inf, jnp.inf), (at_zero, 0.0)):
        wins = value <= best + _TIE * jnp.array([best[0], best[1], 1.0])
        best, where = jnp.where(wins, value, best), jnp.where(wins, end, where)
    # calibration is 0, not small, where norm and alignment meet; the first bracket is that of the largest lambda
    meets = brackets.real[-1]
    best = best.at[1].set(jnp.where(meets, 0.0, best[1]))
    where = where.at[1].set(jnp.where(meets, jnp.exp(place[-1]), where[1]))
    return best, where, jnp.any(where == 0) & ~known


def _grid(ratio, signal, values, weights):
    """Places of log(lambda), falling. The smallest eigenvalues matter down to E[s] E[1/s] below the mean one."""
    spread = jnp.log(jnp.sum(weights * values) * jnp.sum(weights / values))
    begin = path_begin(ratio, signal, values, weights)
    fine = _TOP - (_TOP + _BOTTOM + spread) * np.arange(_STEPS) / (_STEPS - 1)
    return begin + jnp.append(fine, fine[-1] - _TAIL * np.arange(1, _TAIL_STEPS + 1) / _TAIL_STEPS)


def _hermite(x, low, high, low_slope, high_slope):
    """Cubic on [0, 1] with given values and slopes at its ends."""
    rest = 1 - x
    return rest**2 * ((1 + 2 * x) * low + x * low_slope) + x**2 * ((1 + 2 * rest) * high - rest * high_slope)
