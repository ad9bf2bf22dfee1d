"""Logistic regression on a few features, by damped Newton steps."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal.solvers.lanes import lane_by_lane
from jaxcal.solvers.newton import Direction, damped_newton


class LogisticOptimum(NamedTuple):
    """Coefficients `(..., d)` of the features and what is known of them; arrays `(...)`."""

    coefficients: jax.Array
    risk: jax.Array  # mean loss at the coefficients, without the penalty
    gradient_norm: jax.Array  # of the objective at the coefficients, in the orthonormal basis of the features
    num_steps: jax.Array  # int32
    converged: jax.Array  # bool
    separated: jax.Array  # bool: the loss has no smallest value; the coefficients are near its infimum
    identified: jax.Array  # bool: no feature is a combination of those before it, or a penalty decides


class _Rules(NamedTuple):
    """What is static: which coefficients must not be negative, and strength and centre of the penalty."""

    not_negative: tuple[bool, ...]
    strength: float
    centre: tuple[float, ...]

    def faces(self) -> np.ndarray:
        """Which coefficients are free, `(f, d)`: all of them first, then all choices of those that may be held at 0."""
        d = len(self.not_negative)
        choices = np.indices((2,) * d).reshape(d, -1).T == 0
        return choices[(choices | np.asarray(self.not_negative)).all(axis=1)]


def logistic_regression(
    features: Sequence[jax.Array],
    target: jax.Array,
    weights: jax.Array,
    active: jax.Array,
    *,
    not_negative: Sequence[bool] | None = None,
    ridge: tuple[float, Sequence[float]] | None = None,
) -> LogisticOptimum:
    r"""Maximum likelihood of P(y = 1) = sigmoid(sum_j theta_j x_j), for targets between 0 and 1.

    min over theta of  sum_i w_i [softplus(eta_i) - t_i eta_i] / sum_i w_i + lambda sum_j (theta_j - c_j)^2

    Args:
        features: d arrays `(..., n)`, finite, few: a step makes d^2 / 2 sums. A constant one comes first.
        target: `(..., n)` in [0, 1]; weights: `(..., n)`, >= 0, of finite sum.
        active: bool `(...)`; other lanes stay at 0.
        not_negative: which coefficients are at least 0, static; not together with a penalty.
        ridge: lambda > 0 and c, static; None for lambda = 0.

    Features are made orthonormal first, so that neither their units nor their correlation costs digits; one that
    depends on those before it gets the coefficient 0, or with a penalty what that demands. Steps are those of
    `damped_newton`, the reach of one being the largest change of a predictor. Where the free optimum has a negative
    coefficient that must not be, all choices of coefficients at 0 are tried: the best of the optima on faces of the
    cone that lie in it is that of the cone.

    Differentiable in features, target and weights to every order (implicit function theorem; a coefficient held at 0
    stays there); the derivatives are 0 where separated. Lanes run one after another on CPU.
    """
    d = len(features)
    # the compiler would take seconds to sum up a long constant feature by itself
    features = lax.optimization_barrier(tuple(features))
    x, t, w = jnp.stack(jnp.broadcast_arrays(*features), axis=-2), target, weights
    shape = jnp.broadcast_shapes(x[..., 0, :].shape, t.shape, w.shape, (*active.shape, 1))
    lanes, n = shape[:-1], shape[-1]
    strength, centre = (0.0, (0.0,) * d) if ridge is None else ridge
    rules = _Rules((False,) * d if not_negative is None else tuple(not_negative), strength, tuple(centre))
    x = jnp.broadcast_to(x, (*lanes, d, n)).reshape(-1, d, n)
    t, w = (jnp.broadcast_to(a, shape).reshape(-1, n) for a in (t, w))
    found = jax.vmap(partial(_fit, rules))(x, t, w, jnp.broadcast_to(active, lanes).reshape(-1))
    return jax.tree.map(lambda a: a.reshape(*lanes, *a.shape[1:]), found)


class _Basis(NamedTuple):
    """u_j = (x_j / scale_j - sum_{i<j} mix_ji u_i) / length_j; 0 for one that depends on others, or is not used."""

    scale: jax.Array  # (d,)
    mix: jax.Array  # (d, d)
    length: jax.Array  # (d,)
    kept: jax.Array  # (d,): 1, or 0 where u_j is 0

    def columns(self, x):
        """The features in the basis, which is held fixed."""
        columns = []
        for j, column in enumerate(x):
            column = column / self.scale[j]
            for i, other in enumerate(columns):
                column = column - self.mix[j, i] * other
            columns.append(jnp.where(self.kept[j] > 0, column / self.length[j], 0))
        return columns

    def coefficients(self, theta):
        """Coefficients of the features from those of the basis."""
        on_basis, result = [theta[..., j] for j in range(len(self.scale))], []
        for j in reversed(range(len(on_basis))):
            value = on_basis[j] / self.length[j]
            for i in range(j):
                on_basis[i] = on_basis[i] - self.mix[j, i] * value
            result.append(value / self.scale[j])
        return jnp.stack(result[::-1], axis=-1)


def _orthonormal(x, share, used, penalized: bool) -> _Basis:
    """Gram-Schmidt in the weighted inner product, each column twice, which is enough for all digits."""
    d = len(x)
    eps = jnp.finfo(share.dtype).eps
    scale, length, kept, columns = [], [], [], []
    mix = [[jnp.zeros((), share.dtype)] * d for _ in range(d)]
    for j, column in enumerate(x):
        largest = jnp.max(jnp.where(share > 0, jnp.abs(column), 0))
        # the unit of a coefficient that is penalized is its own: a tiny column would make it overflow
        size = jnp.maximum(largest, 1) if penalized else jnp.where(largest > 0, largest, 1)
        column = jnp.where(share > 0, column, 0) / size
        before = jnp.sqrt(jnp.sum(share * column**2))
        for _ in range(2):
            for i, other in enumerate(columns):
                part = jnp.sum(share * column * other)
                column = column - part * other
                mix[j][i] = mix[j][i] + part
        after = jnp.sqrt(jnp.sum(share * column**2))
        told = after > 64 * eps * before  # what is left of a dependent column is the rounding of some products
        keep = told & used[j]
        # with a penalty the coefficient of a dependent column counts, though its column does not
        after = jnp.where(told, after, jnp.where((before > 0) & penalized, before, 1))
        columns.append(jnp.where(keep, column / after, 0))
        scale.append(size)
        length.append(after)
        kept.append(keep)
    rows = jnp.stack([jnp.stack(row) for row in mix])
    return _Basis(jnp.stack(scale), rows, jnp.stack(length), jnp.stack(kept).astype(share.dtype))


class _Lane(NamedTuple):
    """Where the solver ended: all floats, as derivatives want it."""

    theta: jax.Array  # (d,), of the basis
    basis: _Basis
    norm: jax.Array
    steps: jax.Array
    flags: jax.Array  # converged, separated, identified


def _fit(rules, x, t, w, active) -> LogisticOptimum:
    x, t, w = (jnp.where(active, a, fill) for a, fill in ((x, 0), (t, 0), (w, 1)))
    unit = lax.stop_gradient(jnp.max(w))
    w = w / jnp.where(unit > 0, unit, 1)  # the optimum does not depend on the size of the weights
    share = w / jnp.sum(w)
    found = _optimum(rules, x, t, share, active)
    eta = _predictor(found.theta, found.basis.columns(x))
    risk = jnp.sum(share * _losses(eta, t))
    coefficients = found.basis.coefficients(found.theta)
    return LogisticOptimum(coefficients, risk, found.norm, found.steps.astype(jnp.int32), *(found.flags > 0))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _optimum(rules, x, t, share, active) -> _Lane:
    theta, *basis, norm, steps, flags = lane_by_lane(partial(_solve, rules))(x, t, share, active)
    return _Lane(theta, _Basis(*basis), norm, steps, flags)


@_optimum.defjvp
def _optimum_jvp(rules, primals, tangents):
    x, t, share, active = primals
    found = _optimum(rules, x, t, share, active)  # differentiable again: higher orders follow
    basis = lax.stop_gradient(found.basis)
    free = basis.kept > 0 if rules.strength == 0 else jnp.ones_like(basis.kept, bool)

    def slope(theta, x, t, share):
        return jax.grad(partial(_objective, rules, basis))(theta, x, t, share)

    _, change = jax.jvp(partial(slope, found.theta), primals[:3], tangents[:3])
    curve = jax.jacfwd(slope)(found.theta, x, t, share)
    curve = jnp.where(free & free[:, None], curve, jnp.eye(len(free), dtype=curve.dtype))
    moved = -jnp.linalg.solve(curve, jnp.where(free, change, 0))
    smooth = active & (found.flags[0] > 0) & ~(found.flags[1] > 0)
    still = jax.tree.map(jnp.zeros_like, found)
    return found, still._replace(theta=jnp.where(smooth & free, moved, 0))


def _objective(rules, basis, theta, x, t, share):
    loss = jnp.sum(share * _losses(_predictor(theta, basis.columns(x)), t))
    return loss + _penalty(rules, basis.coefficients(theta))


def _penalty(rules, coefficients):
    return rules.strength * jnp.sum((coefficients - jnp.asarray(rules.centre, coefficients.dtype)) ** 2)


def _predictor(theta, u):
    return sum(theta[j] * column for j, column in enumerate(u))


def _losses(eta, t):
    return t * jnp.maximum(-eta, 0) + (1 - t) * jnp.maximum(eta, 0) + jnp.log1p(jnp.exp(-jnp.abs(eta)))


def _solve(rules, x, t, share, active):
    """The lane's optimum, on the faces of the cone in turn until the free one lies in it."""
    faces = jnp.asarray(rules.faces())
    signed = jnp.asarray(rules.not_negative)

    def attempt(used):
        basis = _orthonormal(x, share, used, rules.strength > 0)
        theta, norm, steps, converged, separated, objective = _climb(rules, basis, x, t, share, active)
        inside = jnp.all((basis.coefficients(theta) >= 0) | ~signed)
        identified = jnp.all((basis.kept > 0) | ~used) | (rules.strength > 0)
        flags = jnp.stack([converged, separated, identified]).astype(x.dtype)
        return (theta, *basis, norm, steps, flags), jnp.where(inside, objective, jnp.inf), inside

    if len(faces) == 1:
        return attempt(faces[0])[0]

    def look(state):
        face, best, objective, identified, _ = state
        found, value, inside = attempt(faces[face])
        free = face == 0
        best = jax.tree.map(lambda new, old: jnp.where(free | (value < objective), new, old), found, best)
        done = (free & inside) | (face + 1 == len(faces)) | ~active
        return face + 1, best, jnp.minimum(value, objective), jnp.where(free, found[-1][2], identified), done

    one = jnp.ones((), x.dtype)
    shapes = jax.eval_shape(lambda used: attempt(used)[0], faces[0])
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    state = (jnp.int32(0), nothing, one * jnp.inf, one, jnp.asarray(False))
    _, best, _, identified, _ = lax.while_loop(lambda state: ~state[-1], look, state)
    return (*best[:-1], best[-1].at[2].set(identified))


def _climb(rules, basis, x, t, share, active):
    u = basis.columns(x)
    d, dtype = len(u), share.dtype
    linear = basis.coefficients(jnp.eye(d, dtype=dtype))  # row i: coefficients of the i-th of the basis
    extra = jnp.concatenate([jnp.eye(d, dtype=dtype), linear], axis=1)

    def slope(theta):
        eta = _predictor(theta, u)
        small = jnp.exp(-jnp.abs(eta))
        small, large = small / (1 + small), 1 / (1 + small)
        q, rest = jnp.where(eta >= 0, large, small), jnp.where(eta >= 0, small, large)
        residual = share * ((1 - t) * q - t * rest)
        gradient = jnp.stack([jnp.sum(residual * column) for column in u])
        if rules.strength > 0:
            away = basis.coefficients(theta) - jnp.asarray(rules.centre, dtype)
            gradient = gradient + 2 * rules.strength * (linear @ away)
        return eta, share * q * rest, gradient

    def value(theta, eta):
        loss = jnp.sum(share * _losses(eta, t))
        return loss + _penalty(rules, basis.coefficients(theta)) if rules.strength > 0 else loss

    def look(theta, ridge, tolerance):
        del tolerance
        eta, information, gradient = slope(theta)
        size = jnp.sum(information)
        # what is not of the data counts as more rows: the ridge has one a coefficient, and so has the penalty
        more = jnp.concatenate([jnp.full(d, ridge * size), jnp.full(d, 2 * rules.strength, dtype)])
        columns = [(column, row) for column, row in zip(u, extra, strict=True)]
        step = -_solved(columns, (information, more), gradient)
        change = _predictor(step, u)
        reach = jnp.max(jnp.where(share > 0, jnp.abs(change), 0))
        along = lambda f: value(theta + f * step, eta + f * change)  # noqa: E731
        return Direction(value(theta, eta), step, -jnp.sum(gradient * step), reach, along)

    found = damped_newton(look, jnp.zeros(d, dtype), active)
    eta, _, gradient = slope(found.point)
    norm = jnp.sqrt(jnp.sum(gradient**2))
    return found.point, norm, found.num_steps.astype(dtype), found.converged, found.unbounded, value(found.point, eta)


def _solved(columns, weights, g):
    """H^-1 g for H_ij = sum of weights times column i times column j, by Gram-Schmidt in that inner product.

    Squares of what is left of a column resolve eps^2 of it, where the factors of H would resolve eps. Columns and
    weights come in parts.
    """

    def inner(a, b):
        return sum(jnp.sum(w * x * y) for w, x, y in zip(weights, a, b, strict=True))

    d, rest, mix, result = len(columns), [], [], []
    for j, column in enumerate(columns):
        parts = []
        for i, (other, square) in enumerate(rest):
            part = inner(column, other) / square
            column = tuple(x - part * y for x, y in zip(column, other, strict=True))
            parts.append(part)
            g = g.at[j].add(-part * g[i])  # of the new column
        square = inner(column, column)
        told = square > 0
        rest.append((column, jnp.where(told, square, 1)))
        mix.append(parts)
        result.append(jnp.where(told, g[j] / rest[-1][1], 0))
    for j in reversed(range(d)):
        for i, part in enumerate(mix[j]):
            result[i] = result[i] - part * result[j]
    return jnp.stack(result)
