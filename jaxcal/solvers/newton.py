"""Newton's method for convex losses of classification, from any start, whether or not there is a smallest value."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Ordinary fits take 5 to 10 steps; separable ones one a unit of the logits, 37 until exp(-eta) < eps in float64, and
# the worst that were met three times as many.
_MAX_STEPS = 200

# A fit that takes more steps may have its optimum at infinity, where a penalty can make Newton's steps ever shorter: it
# tries steps up to 2^30 times as long, which cost others nothing.
_ORDINARY = 15
_LONGEST = 1 << 30

# A fit ends when the predicted decrease, relative to the objective, is at most this many eps: the rounding of its sum.
_END = 4

# A full step of this reach r lowers the objective by a share of the prediction that is enough: it falls by at least
# decrease (1 - (exp(r) - r - 1) / r^2), so that its value need not be looked at.
_SURE = 1.75

# Below this many the sums of two steps cannot be compared, and the step that is safe in theory is taken.
_HIDDEN = 64

# A fit that takes this many steps has directions that go to infinity beside others that do not. Its loss may be tiny
# and need thousands of steps for digits relative to itself: from here on digits relative to a loss of 0.25 are enough.
# Where predictors still move by much, the loss may crawl to its infimum: seven digits are enough there. After twice as
# many a ridge that would not go counts no more.
_PATIENCE, _SIZE, _CRAWL = 50, 0.25, 1e-7

# After a step that had to be shortened the ridge is eps, or this many times what it was; after others it shrinks by the
# fourth root, to nothing below eps / 16. So it stays near the level where steps are useful, anything from eps to 1.
_RIDGE = 256

# Predictors that the last step still moves by this much have their optimum at infinity: at a finite one it moves them
# by about the root of eps, at an infinite one by 1.
_STILL_MOVING = 0.25


class Direction(NamedTuple):
    """What is known at a point, and of Newton's step from there."""

    objective: jax.Array
    step: jax.Array
    decrease: jax.Array  # gradient times step, twice the decrease that the quadratic model predicts
    reach: jax.Array  # the largest change of a log-odds that the step makes
    along: Callable  # fraction of the step -> objective there


class Descent(NamedTuple):
    """Where it ended."""

    point: jax.Array
    num_steps: jax.Array  # int32
    converged: jax.Array  # bool
    unbounded: jax.Array  # bool: the loss has no smallest value; the point is near its infimum


def damped_newton(look: Callable, start: jax.Array, active: jax.Array) -> Descent:
    """Minimize a convex objective whose curvature along a step changes at most by exp(reach).

    Args:
        look: (point, ridge, tolerance) to the `Direction`; `ridge` is to be added to the second derivatives, in units
            of their size, and `tolerance` is the relative error that the step may have, inf for the first one.
        start: a point.
        active: bool; if False the start is returned.

    A step is taken in full if the objective falls by it, else shortened, at most to log(1 + r) / r of it, r the reach:
    with that the logistic losses fall from any start. Where directions that hardly count spoil the step, a ridge stops
    these for a while. Once the predicted decrease is a rounding of the objective a last step follows. Where classes are
    separable the loss has no minimum: it ends near the infimum, the last steps longer than Newton's.
    After 50 steps a predicted decrease of 16 eps ends it, too, or of 2.5e-8 where it has no minimum.
    """
    eps = jnp.finfo(start.dtype).eps

    def advance(state):
        count, point, before, ridge, *_ = state
        tolerance = jnp.maximum(jnp.sqrt(before), 0.01)  # as exact as the step deserves
        objective, step, decrease, reach, along = look(point, ridge, tolerance)
        safe = jnp.where(reach > 0, jnp.log1p(reach) / jnp.where(reach > 0, reach, 1), 1)
        sure = reach <= _SURE
        last, apart = (decrease <= _END * eps * objective) & (ridge == 0), objective <= eps
        hidden = decrease <= _HIDDEN * eps * objective
        late = count >= _ORDINARY
        enough = jnp.where(reach > _STILL_MOVING, max(_HIDDEN * float(eps), _CRAWL), _HIDDEN * eps)
        tired = (count >= _PATIENCE) & ((ridge == 0) | (count >= 2 * _PATIENCE))
        last |= tired & (decrease <= enough * jnp.maximum(objective, _SIZE))

        def search(state):
            t, lowest, candidate, _ = state
            value = along(candidate)
            lower = value <= objective - 1e-4 * candidate * decrease  # Armijo's rule with its usual share
            better = lower & (value < lowest)
            longer = better & late & (candidate >= 1) & (candidate < _LONGEST)
            shorter = ~lower & (candidate <= 1) & (candidate / 4 > safe)
            following = jnp.where(longer, 2 * candidate, candidate / 4)
            return jnp.where(better, candidate, t), jnp.where(better, value, lowest), following, longer | shorter

        one = jnp.ones((), start.dtype)
        undecided = ~hidden & ~apart & (~sure | late)
        t = lax.while_loop(lambda state: state[3], search, (jnp.where(sure, 1, safe), one * jnp.inf, one, undecided))[0]
        point = jnp.where(apart | ~jnp.isfinite(decrease), point, point + t * step)
        useful = (t >= 1) | hidden
        less = jnp.where(ridge > eps / 16, ridge / _RIDGE**0.25, 0)
        ridge = jnp.where(useful, less, jnp.maximum(_RIDGE * ridge, eps))
        relative = jnp.maximum(decrease, 0) / jnp.where(objective > 0, objective, 1)
        return count + 1, point, relative, ridge, last | apart, apart | (reach > _STILL_MOVING)

    def unfinished(state):
        return (state[0] < _MAX_STEPS) & ~state[4]

    zero = jnp.zeros((), start.dtype)
    state = (jnp.int32(0), start, zero + jnp.inf, zero, ~active, jnp.asarray(False))
    count, point, *_, done, unbounded = lax.while_loop(unfinished, advance, state)
    return Descent(point, count, done & active, unbounded & done & active)
