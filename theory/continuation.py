"""Newton's method along the path of a regularization parameter, and the derivatives of where it ends."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# A Newton step larger than this in a logarithm is not trusted: the path is re-entered with a stride of a third.
_TRUST = 0.5
# First stride, one decade of regularization. After a Newton step below the first number strides double, below the
# second they grow a little, above it they shrink: 8 steps a problem in the median. Only their number depends on these.
_STRIDE, _SMALL, _MIDDLING = 2.3, 0.05, 0.2
# A step below rounding ends the solve; so does one that no longer shrinks, once it is this small.
_ROUNDING, _STALLED = 1e-14, 1e-8
# Steps of `settle`: at most this long, until this short, which its starts reached after 20 at most.
_LONGEST, _SHORTEST, _SETTLE_STEPS = 0.5, 1e-13, 60


class Model(NamedTuple):
    """The equations of a classifier, one lane. `theta` stands for `(ratio, signal, values, weights)`, signal = c^2.

    Attributes:
        name: for messages.
        scale: the forecast is sigma(scale w.x).
        start: logarithms of the unknowns at infinite regularization.
        far: eta, gamma and tau there.
        residual: `(unknowns, lam, *theta)` to the differences of the logarithms of both sides, `(d,)`.
        linearize: the same arguments to the residual, its derivatives in the unknowns `(d, d)` and in log(lam) `(d,)`:
            what automatic differentiation gives, several times faster.
        readout: `(unknowns, lam, *theta)` to `Point`.
        edge: signal * E[1/s] to the largest ratio for which the estimate exists without regularization.
        limit_start: unknowns at a tiny lam, and lam, to a first guess of the unknowns of the limit beyond the edge.
        limit_residual: `(unknowns, *theta)`, the equations of that limit.
        limit_readout: `(unknowns, *theta)` to `Point` and alignment.
        limit_is_estimate: whether the limit is an estimate with a finite norm.
    """

    name: str
    scale: float
    start: tuple[float, ...]
    far: tuple[float, float, float]
    residual: Callable
    linearize: Callable
    readout: Callable
    edge: Callable
    limit_start: Callable
    limit_residual: Callable
    limit_readout: Callable
    limit_is_estimate: bool


class Point(NamedTuple):
    """Values of one lane."""

    eta: jax.Array
    gamma: jax.Array
    tau: jax.Array
    kappa: jax.Array
    mean: jax.Array
    variance: jax.Array

    @property
    def alignment(self) -> jax.Array:
        """a = 2 m / sqrt(v)."""
        return 2 * self.mean / jnp.sqrt(self.variance)


class _Path(NamedTuple):
    point: jax.Array  # logarithms of the unknowns at `place`
    place: jax.Array  # log regularization
    accepted: jax.Array  # last trusted point, its place and the tangent there
    accepted_place: jax.Array
    tangent: jax.Array
    stride: jax.Array
    size: jax.Array  # last Newton step at the target
    entered: jax.Array  # whether any point was trusted yet
    done: jax.Array
    num_steps: jax.Array


def newton(linearize: Callable, point, lam) -> tuple[jax.Array, jax.Array]:
    """Newton step and tangent d point / d log(lam) at `point`."""
    value, jacobian, slope = linearize(point, lam)
    both = -solve_small(jacobian, jnp.stack([value, slope], axis=-1))
    return both[:, 0], both[:, 1]


def follow(linearize: Callable, start: tuple[float, ...], begin, end, target_lam, max_steps: int) -> tuple:
    """Trace the root of the equations from log(lam) = `begin` down to `end`, where lam becomes `target_lam`.

    One Newton step a point, an Euler predictor between points, strides that grow while the steps stay small. At the end
    Newton runs until a step is below rounding or stops shrinking.

    Returns:
        `(point, num_steps, done)`.
    """

    def lam(place):
        return jnp.where(place == end, target_lam, jnp.exp(place))

    def body(path: _Path) -> _Path:
        step, tangent = newton(linearize, path.point, lam(path.place))
        size = jnp.max(jnp.abs(step))
        trusted = size < _TRUST  # False for NaN
        arrived = trusted & (path.place == end)
        # rounding in the equations may keep the steps from ever becoming zero
        done = arrived & ((size < _ROUNDING) | ((size < _STALLED) & (size >= path.size / 2)))
        growth = jnp.where(size < _SMALL, 2.0, jnp.where(size < _MIDDLING, 1.2, 0.8))
        stride = path.stride * jnp.where(trusted, growth, jnp.where(path.entered, 1 / 3, 1.0))
        point = jnp.where(trusted, path.point + step, path.accepted)
        place = jnp.where(trusted, path.place, path.accepted_place)
        tangent = jnp.where(trusted, tangent, path.tangent)
        ahead = jnp.maximum(end, place - stride)
        # before the first trusted point: damped Newton where the path begins
        lost = ~trusted & ~path.entered
        damped = path.point + jnp.clip(jnp.nan_to_num(step), -1, 1)
        stay = lost | arrived
        return _Path(
            point=jnp.where(lost, damped, jnp.where(arrived, point, point + tangent * (ahead - place))),
            place=jnp.where(stay, path.place, ahead),
            accepted=point,
            accepted_place=place,
            tangent=tangent,
            stride=stride,
            size=jnp.where(arrived, size, jnp.inf),
            entered=path.entered | trusted,
            done=done,
            num_steps=path.num_steps + 1,
        )

    point = jnp.asarray(start, float)
    zero = 0.0 * (begin + end)
    path = _Path(
        point=point + zero,
        place=jnp.maximum(begin, end),
        accepted=point + zero,
        accepted_place=jnp.maximum(begin, end),
        tangent=jnp.zeros_like(point) + zero,
        stride=_STRIDE + zero,
        size=jnp.inf + zero,
        entered=zero != 0,
        done=jnp.isnan(zero),
        num_steps=jnp.zeros_like(zero, jnp.int32),
    )
    path = lax.while_loop(lambda p: ~p.done & (p.num_steps < max_steps), body, path)
    return path.point, path.num_steps, path.done


def solve_small(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solution `(d, c)` of a d x d system with d = 1 or 3, by Cramer's rule: inlined by the compiler, unlike LAPACK."""
    if matrix.shape[0] == 1:
        return right / matrix
    # equilibrated, so that the products below are of one scale
    size = jnp.max(jnp.abs(matrix), axis=1, keepdims=True)
    size = lax.stop_gradient(jnp.where(size > 0, size, 1.0))
    matrix, right = matrix / size, right / size
    a, b, c = matrix[:, 0], matrix[:, 1], matrix[:, 2]
    rows = jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)])
    return jnp.matmul(rows, right, precision="highest") / jnp.dot(a, rows[0])


def implicit(residual: Callable, solve: Callable) -> Callable:
    """`solve(*theta)` -> `(point, extras)` with the derivatives of the root of `residual(point, *theta)`.

    The rule calls the differentiable function itself, so it holds to any order, forward and reverse. `extras` are
    constants.
    """

    @jax.custom_jvp
    def root(*theta):
        return solve(*theta)

    @root.defjvp
    def _(theta, tangents):
        point, extras = root(*theta)
        jacobian = jax.jacfwd(lambda p: residual(p, *theta))(point)
        _, change = jax.jvp(lambda *t: residual(point, *t), theta, tangents)
        return (point, extras), (-solve_small(jacobian, change[:, None])[:, 0], jax.tree.map(jnp.zeros_like, extras))

    return root


def settle(linearize: Callable, start) -> jax.Array:
    """Root by Newton's method with short steps, from a start that is known to be near.

    `linearize(point)` gives the residual and its Jacobian.
    """

    def body(state):
        point, _, count = state
        value, jacobian = linearize(point)
        step = -solve_small(jacobian, value[:, None])[:, 0]
        return point + jnp.clip(step, -_LONGEST, _LONGEST), jnp.max(jnp.abs(step)), count + 1

    first = (start, jnp.inf + 0.0 * jnp.sum(start), 0)
    # NaN ends the loop
    return lax.while_loop(lambda s: (s[1] > _SHORTEST) & (s[2] < _SETTLE_STEPS), body, first)[0]


def with_jacobian(residual: Callable) -> Callable:
    """The form that `settle` wants, by differentiation."""

    def linearize(point):
        jacobian, value = jax.jacfwd(lambda p: (residual(p),) * 2, has_aux=True)(point)
        return value, jacobian

    return linearize
