"""Where along the regularization path risk, calibration and refinement are smallest."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal.losses import ProperLoss, log_loss
from jaxcal.solvers import bracketed_root
from jaxcal.status import Status
from theory.continuation import Model, newton
from theory.curves import find_model
from theory.fixed_point import alignment_and_norm_at_zero, path_begin
from theory.gaussian import balanced
from theory.lanes import over_lanes
from theory.limits import alignment_at_infinity, separation
from theory.precision import as_reals, in_float64, inside_trace
from theory.spectra import check_spectrum

# The path is bracketed from 10^3 times the place where the penalty dominates down to 10^-16 of it, further for spectra
# that spread, in 76 steps (a quarter of a decade), and then in long steps over 24 decades more, where every path is a
# straight line in logarithms.
_TOP, _BOTTOM, _TAIL = np.log(10.0) * 3, np.log(10.0) * 16, np.log(10.0) * 24
_STEPS, _TAIL_STEPS = 76, 12
# The grid only brackets; 128 nodes give its losses to 1e-6 or better.
_COARSE_NODES = 128
_COARSE = 1e-4
# Valleys of the same function that are refined; two that differ by less than the grid can tell are both.
_VALLEYS = 2
# The tangent is that of the point before the last Newton step, so that step should be small; where norms diverge,
# rounding keeps it from becoming so.
_CLOSE, _ARRIVED = 1e-9, 1e-6
_MAX_NEWTON = 25
_MAX_ROOT_STEPS = 40
# Slopes in log(lambda) below this are rounding.
_FLAT = 1e-13
# An end of the path wins over a minimum inside it that is not lower by more than rounding.
_TIE = 1e-13


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
    if not isinstance(loss, ProperLoss):
        raise TypeError(f"loss must be a jaxcal.ProperLoss, got {loss!r}")
    if not 0 < squeeze <= 1:
        raise ValueError(f"squeeze must lie in (0, 1], got {squeeze}")
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
            return 2 * found.mean / jnp.sqrt(found.variance), self.model.scale * jnp.sqrt(found.variance)

        (alignment, norm), slopes = jax.jvp(shape, (point, place), (tangent, jnp.ones_like(place)))
        values, slopes = jax.jvp(lambda a, n: self.losses(a, n, nodes), (alignment, norm), slopes)
        return values, jnp.append(-slopes, jnp.log(norm / alignment))


# Which function each refined bracket belongs to.
_KINDS = np.append(np.repeat(np.arange(3), _VALLEYS), 3)


def _lane(model, loss, squeeze, ratio, c, valid, values, weights):
    valid = valid & (ratio > 0) & (ratio < jnp.inf) & (c >= 0)
    blank = c == 0
    ratio, c = jnp.where(valid, ratio, 1.0), jnp.where(valid & ~blank, c, 1.0)
    values, weights = jnp.where(valid, values, 1.0), jnp.where(valid, weights, 1 / values.shape[-1])
    unit = jnp.sum(weights * values)  # lambda in units of the mean eigenvalue, until the end
    values = values / unit
    theta = (ratio, c**2 / unit, values, weights)
    functions = _Functions(model, loss, squeeze, theta)
    places = _grid(*theta)
    width = places[:-1] - places[1:]

    def advance(carry, place):
        point, tangent, last = carry
        point, tangent, arrived = functions.point(point + tangent * (place - last), place)
        return (point, tangent, place), (point, tangent, arrived)

    start = jnp.asarray(model.start) + 0.0 * places[0]
    _, (points, tangents, arrived) = lax.scan(advance, (start, jnp.zeros_like(start), places[0]), places)
    # where norms grow beyond all bounds, close to the edge of separability, the path ends early
    reached = jnp.cumprod(arrived) > 0
    last = jnp.sum(reached) - 1
    at = jax.vmap(functions.at, in_axes=(0, 0, 0, None))
    heights, descents = at(points, tangents, places, _COARSE_NODES)

    # bracket i lies between places i (above) and i + 1 (below); the foot is where a straight descent would be 0
    falls = (descents[1:] > 0) & (descents[:-1] <= 0) & reached[1:, None]
    # where a function has reached its limit its slope is rounding
    falls = falls & (jnp.maximum(descents[1:], -descents[:-1]) > _FLAT)
    drop = descents[:-1] - descents[1:]
    foot = jnp.clip(descents[1:] / jnp.where(falls, -drop, 1.0), 0, 1)
    below, above = (-d[:, :3] * width[:, None] for d in (descents[1:], descents[:-1]))
    floor = jnp.where(falls[:, :3], _hermite(foot[:, :3], heights[1:], heights[:-1], below, above), jnp.inf)
    valleys = lax.top_k(-floor.T, _VALLEYS)[1]
    bracket = jnp.append(valleys.reshape(-1), jnp.argmax(falls[:, 3]))
    real = falls[bracket, _KINDS]
    base, span = places[bracket + 1], width[bracket]

    def on_unit(x):
        ends = [(points[i], tangents[i] * span[:, None]) for i in (bracket + 1, bracket)]
        guess = _hermite(x[:, None], ends[0][0], ends[1][0], ends[0][1], ends[1][1])
        place = base + span * x
        point, tangent, _ = jax.vmap(functions.point)(guess, place)
        heights, descents = at(point, tangent, place, None)
        rows = np.arange(len(_KINDS))
        return descents[rows, _KINDS], heights[rows, np.minimum(_KINDS, 2)]

    root = bracketed_root(
        on_unit,
        foot[bracket, _KINDS],
        drop[bracket, _KINDS],
        0.0,
        1.0,
        accept=lambda value, step, aux: jnp.abs(step) < 1e-12,
        active=real,
        max_steps=_MAX_ROOT_STEPS,
    )
    lam = jnp.exp(base + span * root.x)[: 3 * _VALLEYS].reshape(3, _VALLEYS)
    height = jnp.where(real, root.aux, jnp.inf)[: 3 * _VALLEYS].reshape(3, _VALLEYS)

    # the limits at both ends
    alignment, norm, known = alignment_and_norm_at_zero(model, points[last], jnp.exp(places[last]), theta)
    at_zero = functions.losses(jnp.where(known, alignment, 1.0), jnp.where(known, norm, 1.0), None)
    at_zero = jnp.where(known, at_zero, heights[last])
    at_inf = functions.losses(alignment_at_infinity(*theta), 0.0 * c, None)
    best, where = jnp.min(height, axis=1), jnp.take_along_axis(lam, jnp.argmin(height, axis=1)[:, None], axis=1)[:, 0]
    for value, place in ((at_inf, jnp.inf), (at_zero, 0.0)):
        wins = value <= best + _TIE * jnp.array([best[0], best[1], 1.0])
        best, where = jnp.where(wins, value, best), jnp.where(wins, place, where)
    unsure = jnp.any(wins) & ~known
    # calibration is 0, not small, where norm and alignment meet; the first bracket is that of the largest lambda
    meets = real[-1]
    count = jnp.sum(((descents[:-1, 3] < 0) != (descents[1:, 3] < 0)) & reached[1:])
    best = best.at[1].set(jnp.where(meets, 0.0, best[1]))
    where = where.at[1].set(jnp.where(meets, jnp.exp(base + span * root.x)[-1], where[1]))
    refinement = balanced(loss, squeeze, jnp.exp(-best[2]), jnp.ones_like(c))[1]

    # a valley that opens below the last place has no bracket; nothing found may be higher than what was seen
    lowest = jnp.min(jnp.where(reached[:, None], heights, jnp.inf), axis=0)
    overlooked = jnp.any(lowest < best - _COARSE * jnp.array([best[0], best[1], 1.0]) - 1e-12)
    failed = (last < _STEPS - 1) | overlooked | jnp.any(real & ~root.converged) | unsure
    status = jnp.where(failed, Status.NOT_CONVERGED, Status.CONVERGED)
    # without a signal the best forecast is 1/2, everywhere equally refined
    flat = balanced(loss, squeeze, 0.0 * c, 0.0 * c)[1]
    best = jnp.where(blank, jnp.stack([flat, 0.0 * flat, flat]), best.at[2].set(refinement))
    where = jnp.where(blank, jnp.inf, where)
    count = jnp.where(blank, 0, count)
    status = jnp.where(blank, Status.NOT_IDENTIFIED, status)
    status = jnp.where(valid, status, Status.INVALID_INPUT).astype(jnp.int32)
    usable = status < Status.NOT_CONVERGED
    fields = (jnp.where(usable, x, jnp.nan) for x in (*(unit * where), *best, 1 - best[2] / best[0]))
    return (*fields, jnp.where(usable, count, 0).astype(jnp.int32), status)


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
