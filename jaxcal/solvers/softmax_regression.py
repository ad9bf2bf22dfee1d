"""Softmax regression on many features: damped Newton steps, solved directly or by conjugate gradients."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.solvers.class_features import Own, Shared, dot, over_classes
from jaxcal.solvers.lanes import lane_by_lane
from jaxcal.solvers.newton import Direction, damped_newton
from jaxcal.solvers.softmax import log_normalizer, shifted

# Up to here the matrix of second derivatives is built and factored; beyond, a conjugate gradient step, which costs two
# passes, is cheaper than a row of it (measured at k = 10 to 30).
_DIRECT = 300

# Rows a coefficient from which the second derivatives of the first step are estimated, to about a quarter: where there
# are at least four times as many the step is as good, and much cheaper.
_ROWS_AT_FIRST = 16

# Conjugate gradients inside one Newton step. With the preconditioner 5 to 30 do; hostile problems may use all.
_MAX_INNER = 200


class SoftmaxOptimum(NamedTuple):
    """Coefficients `(k, d)` and what is known of them."""

    coefficients: jax.Array
    gradient_norm: jax.Array  # of the objective at the coefficients, in features of variance one
    num_steps: jax.Array  # int32
    converged: jax.Array  # bool
    unbounded: jax.Array  # bool: the loss has no smallest value; the coefficients are near its infimum
    identified: jax.Array  # bool: no feature is a combination of the others, or penalties decide


def softmax_regression(base, features, labels, weights, penalty, active) -> SoftmaxOptimum:
    r"""Maximum likelihood of P(y = a) proportional to exp(base_a + sum_j theta_aj x_aj), with a quadratic penalty.

    min over theta of  sum_i w_i CE(softmax(base_i + theta x_i), y_i) / sum_i w_i + sum_aj penalty_aj theta_aj^2

    Args:
        base: `(k, n)`, finite, or -inf for a class that is masked in its row.
        features: `Shared` by the classes or `Own` of each; finite.
        labels: `(n,)` in [0, k), none of them masked; weights: `(n,)` >= 0.
        penalty: `(k, d)` >= 0; on the features before the last one all 0, all positive, or 0 on the diagonal.
        active: bool; if False the coefficients are 0.

    Arrays have the rows last, where passes over them are vectorized whatever k.

    A vector added to the coefficients of all classes changes no probability: where no penalty decides, they sum to 0
    over the classes. Where one does, Newton's method leaves that vector out, and it is found in closed form: of
    features that are small beside their mean it is large, and ill-determined. Features are standardized first; the
    reach of a step of `damped_newton` is the largest change of a difference of two classes' predictors. The loss of
    separable classes has no minimum: `unbounded`.

    Differentiable in base, features, weights and penalty, to every order (implicit function theorem); the derivatives
    are 0 where `unbounded` or not `identified`. Under `jax.vmap` lanes run one after another on CPU. Cost: two passes
    over the data a step and, up to 300 coefficients, their matrix of second derivatives, O(n k^2 d^2) for shared
    features; beyond, 5 to 30 conjugate gradient steps of O(n k d).
    """
    # An intercept under a strong penalty is its gradient over twice that. It is found under a weaker one, which does
    # not hide the other coefficients in rounding, and scaled: the objective is off by the square of the difference.
    given = penalty[:, -1]
    held = jnp.minimum(given, float(jnp.finfo(penalty.dtype).eps) ** -0.5)
    penalty = penalty.at[:, -1].set(held)
    theta, norm, steps, flags = _optimum(base, features, labels, weights, penalty, active)
    theta = theta.at[:, -1].multiply(held / jnp.where(given > 0, given, 1) + (given == 0))
    return SoftmaxOptimum(theta, norm, steps.astype(jnp.int32), *(flags > 0))


def _objective(theta, base, features, labels, weights, penalty):
    """In the features as they came."""
    share = weights / jnp.sum(weights)
    theta = _settled(theta, features, penalty)
    return jnp.sum(share * class_losses(base + features.predict(theta), labels)) + jnp.sum(penalty * theta**2)


def class_losses(predictor, labels):
    """Cross-entropy of each row, `(n,)`, at predictors `(k, n)`, differentiable to every order."""
    gaps = shifted(predictor.T)
    return log_normalizer(gaps) - jnp.take_along_axis(gaps, labels[:, None], axis=1)[:, 0]


def _shares(features, penalty):
    """Weights, `(k, d)`, of the mean over the classes of which penalties want 0; 0 in columns of each class's own."""
    d = penalty.shape[1]
    strength = jnp.sum(penalty, axis=0)
    share = jnp.where(strength > 0, penalty / jnp.where(strength > 0, strength, 1), 1 / penalty.shape[0])
    return share * (jnp.arange(d) == d - 1) if isinstance(features, Own) else share


def _settled(theta, features, penalty):
    """Of the coefficients that differ by a vector added to all classes, and give the same probabilities, the best.

    Penalties alone decide about that vector: their sum is least where the mean weighted by them is 0. Where there are
    none the mean is held at 0.
    """
    return theta - jnp.sum(_shares(features, penalty) * theta, axis=0)


@jax.custom_jvp
def _optimum(base, features, labels, weights, penalty, active):
    solve = lane_by_lane(partial(_newton, type(features)))
    return solve(base, features.values, labels, weights, penalty, active)


@_optimum.defjvp
def _optimum_jvp(primals, tangents):
    base, features, labels, weights, penalty, active = primals
    base_dot, features_dot, _, weights_dot, penalty_dot, _ = tangents
    found = _optimum(*primals)  # differentiable again: higher orders follow
    theta, *rest = found
    converged, unbounded, identified = found[3] > 0
    smooth = active & converged & ~unbounded & identified

    data = (base, features, weights, penalty)
    fixed = lax.stop_gradient((theta, *data))
    problem = _standardized(*fixed[1:3], labels, *fixed[3:])
    basis = problem.basis
    forecast = _forecast(fixed[1] + fixed[2].predict(fixed[0]), _hot(labels, len(base)))
    size = _curvature(forecast, problem.weights)

    def slope(theta, base, features, weights, penalty):
        return jax.grad(_objective)(theta, base, features, labels, weights, penalty)

    _, change = jax.jvp(lambda *data: slope(theta, *data), data, (base_dot, features_dot, weights_dot, penalty_dot))

    def curve(v):
        curved = jax.jvp(lambda theta: slope(theta, *data), (theta,), (_from_basis(basis, v),))[1]
        return _to_basis(basis, curved) + size * _held(problem, v)

    # to all digits that rounding leaves
    solve = _inverse(problem, forecast, 0, 64 * jnp.finfo(base.dtype).eps)
    moved = lax.custom_linear_solve(curve, -_to_basis(basis, change), lambda _, b: solve(b), symmetric=True)
    _, moved = jax.jvp(
        lambda theta, penalty: _settled(theta, features, penalty),
        (theta, penalty),
        (_from_basis(basis, moved), penalty_dot),
    )
    return found, (jnp.where(smooth, moved, 0), *(jnp.zeros_like(a) for a in rest))


class _Problem(NamedTuple):
    features: Shared | Own  # standardized
    basis: jax.Array  # coefficients of the features as they came from those of the standardized ones
    identified: jax.Array
    weights: jax.Array  # that sum to 1
    penalty: jax.Array
    gauge: jax.Array  # (k, d), weights of the mean over the classes that is held at 0

    def raw(self, theta):
        """Coefficients of the features as they came, which penalties see."""
        return _settled(_from_basis(self.basis, theta), self.features, self.penalty)


def _standardized(base, features, labels, weights, penalty):
    share = weights / jnp.sum(weights)
    new, basis, full = features.standardized(share, penalty)
    # beside free diagonals, features whose penalty is strong are not mixed: there raw coefficients need no correction
    shares = _shares(features, penalty)
    gauge = jnp.where(jnp.any(shares == 0) | (shares == 0), shares, 1 / len(penalty))
    return _Problem(new, basis, _identified(features, share, penalty, full), share, penalty, gauge)


def _identified(features, share, penalty, full):
    """Whether one set of coefficients attains the optimum, apart from a vector added to those of all classes.

    `full` says that no feature is constant or an affine function of others. Where only the coefficients of each class's
    own feature, column a for class a, are free it takes two that are not multiples of each other (up to a constant, if
    that is free): else some multiples of them add the same to all predictors.
    """
    constant = jnp.all(penalty[:, -1] == 0)
    if isinstance(features, Own):
        x, seen = features.values
        found = full & _apart(x, share * seen, constant)
    else:
        x = features.values[:-1]
        found = full
        if x.shape[0] == penalty.shape[0]:
            apart = lambda: _apart(x, jnp.broadcast_to(share, x.shape), constant)  # noqa: E731
            found = lax.cond(jnp.all(penalty[:, :-1] == 0), lambda: full, apart)
    return found | jnp.all(penalty > 0)


def _apart(x, weight, centred):
    """Whether no row is 0 and two are no multiples of each other, where their weights `(k, n)` are not 0.

    With `centred` of their deviations from the mean.
    """
    used = weight > 0
    mass = jnp.sum(weight, axis=1)
    mean = jnp.where(centred, jnp.sum(weight * x, axis=1) / jnp.where(mass > 0, mass, 1), 0)
    c = jnp.where(used, x - mean[:, None], 0)
    # what rounding makes of 0: that of the mean, of the differences and of the slope
    floor = 16 * jnp.finfo(x.dtype).eps * jnp.max(jnp.where(used, jnp.abs(x), 0), axis=1)
    norm = lambda a: jnp.sqrt(jnp.sum(weight * a**2, axis=1))  # noqa: E731
    largest = jnp.argmax(norm(c))
    other = c[largest]
    square = jnp.sum(weight * other**2, axis=1)
    slope = jnp.sum(weight * c * other, axis=1) / jnp.where(square > 0, square, 1)
    rest = norm(jnp.where(used & used[largest], c - slope[:, None] * other, 0))
    return jnp.all(norm(c) > floor) & jnp.any(rest > floor)


def _from_basis(basis, theta):
    return (
        dot(theta, basis.T)
        if basis.ndim == 2
        else jnp.einsum("aij,aj->ai", basis, theta, precision=lax.Precision.HIGHEST)
    )


def _to_basis(basis, gradient):
    return (
        dot(gradient, basis)
        if basis.ndim == 2
        else jnp.einsum("aij,ai->aj", basis, gradient, precision=lax.Precision.HIGHEST)
    )


class _Forecast(NamedTuple):
    """What a pass over the predictors `(k, n)` gives."""

    p: jax.Array
    rest: jax.Array  # 1 - p, of the likeliest class the sum of the others: separable data end where it has no digits
    losses: jax.Array  # (n,)


def _forecast(predictor, hot) -> _Forecast:
    """`hot` marks the labels."""
    (peak,) = over_classes(jnp.maximum, lambda x: (x,), predictor)

    def terms(x, hot):
        gap = x - peak
        top = gap == 0
        return jnp.where(top, 0, jnp.exp(gap)), top.astype(x.dtype), jnp.where(hot, gap, 0)

    others, ties, own = over_classes(jnp.add, terms, predictor, hot)
    gaps, whole = predictor - peak, others + ties
    p = jnp.exp(gaps) / whole
    rest = jnp.where(gaps == 0, (others + (ties - 1)) / whole, 1 - p)
    return _Forecast(p, rest, jnp.log(ties) + jnp.log1p(others / ties) - own)


def _hot(labels, k):
    return labels == jnp.arange(k)[:, None]


def _held(problem, v):
    """Second derivatives, times v, of the term that holds the mean over the classes at 0; any strength would do."""
    return len(v) * problem.gauge * jnp.sum(problem.gauge * v, axis=0)


def _quadratic(problem, size, ridge, v):
    """Second derivatives of penalty, gauge and ridge, times v, in the standardized features."""
    return _to_basis(problem.basis, 2 * problem.penalty * problem.raw(v)) + size * (_held(problem, v) + ridge * v)


def _curvature(forecast, share):
    """The largest second derivative that a standardized feature can have, the unit of gauge and ridge."""
    return jnp.max(dot(forecast.p * forecast.rest, share))


def _inverse(problem, forecast, ridge, tolerance):
    """A function that solves with the second derivatives of the objective at a forecast.

    `ridge` is added to them, as a share of their size.
    """
    k, d = problem.penalty.shape
    features, w = problem.features, problem.weights
    p, rest, _ = forecast
    size = _curvature(forecast, w)
    if k * d <= _DIRECT:
        units = jnp.eye(k * d, dtype=p.dtype).reshape(k * d, k, d)
        matrix = _information(features, p, rest, w, tolerance).reshape(k * d, k * d)
        matrix = matrix + jax.vmap(lambda v: _quadratic(problem, size, ridge, v).reshape(-1))(units)
        scale = jnp.sqrt(jnp.where(jnp.diag(matrix) > 0, jnp.diag(matrix), 1))
        # rounding makes a matrix of this size indefinite by at most this much
        ridge = k * d * jnp.finfo(p.dtype).eps * jnp.eye(k * d, dtype=p.dtype)
        factor = jax.scipy.linalg.cho_factor(matrix / scale / scale[:, None] + ridge)
        return lambda g: (jax.scipy.linalg.cho_solve(factor, g.reshape(-1) / scale) / scale).reshape(k, d)

    def product(v):
        t = features.predict(v)
        t = jnp.where(p > 0, t, 0)
        mean = over_classes(jnp.add, lambda p, t: (p * t,), p, t)[0]
        return features.collect(w * p * (t - mean)) + _quadratic(problem, size, ridge, v)

    square = problem.basis**2
    precondition = features.preconditioner(p, rest, w, 2 * _to_basis(square, problem.penalty) + ridge * size)
    return lambda g: _conjugate_gradient(product, precondition, g, jnp.minimum(tolerance, 0.3))


def _information(features, p, rest, w, tolerance):
    """Second derivatives of the loss, `(k, d, k, d)`; where any error will do, tolerance inf, from some of the rows."""
    k, n = p.shape
    stride = n // (_ROWS_AT_FIRST * k * len(features.values))

    def whole():
        return features.information(p, rest, w)

    if isinstance(features, Own) or stride < 4:  # of its own features there are too few to gain
        return whole()
    some = type(features)(features.values[..., ::stride])
    mass = stride * jnp.sum(w[::stride])  # of all rows 1

    def sampled():
        return some.information(p[:, ::stride], rest[:, ::stride], w[::stride] * (stride / mass))

    return lax.cond(jnp.isinf(tolerance) & (mass > 0.5) & (mass < 2), sampled, whole)


def _conjugate_gradient(product, precondition, rhs, tolerance):
    """Solution of `product(x) = rhs` to a relative residual, in the metric of the preconditioner."""

    def advance(state):
        count, x, residual, direction, size = state
        image = product(direction)
        curvature = jnp.sum(direction * image)
        step = jnp.where(curvature > 0, size / jnp.where(curvature > 0, curvature, 1), 0)
        x, residual = x + step * direction, residual - step * image
        new = precondition(residual)
        size_new = jnp.where(curvature > 0, jnp.sum(residual * new), 0)
        return count + 1, x, residual, new + size_new / size * direction, size_new

    first = precondition(rhs)
    start = jnp.sum(rhs * first)

    def unfinished(state):
        return (state[0] < _MAX_INNER) & (state[4] > tolerance**2 * start)

    return lax.while_loop(unfinished, advance, (jnp.int32(0), jnp.zeros_like(rhs), rhs, first, start))[1]


def _newton(kind, base, values, labels, weights, penalty, active):
    weights = jnp.where(active, weights, 1)  # of a lane that takes no step
    problem = _standardized(base, kind(values), labels, weights, penalty)
    features, w = problem.features, problem.weights
    k, d = penalty.shape
    hot, open_ = _hot(labels, k), (w > 0) & (base > -jnp.inf)

    def value(theta, losses):
        return jnp.sum(w * losses) + jnp.sum(penalty * problem.raw(theta) ** 2)

    def slope(theta, forecast):
        residual = w * jnp.where(hot, -forecast.rest, forecast.p)
        return features.collect(residual) + _to_basis(problem.basis, 2 * penalty * problem.raw(theta))

    def look(theta, ridge, tolerance):
        predictor = base + features.predict(theta)
        forecast = _forecast(predictor, hot)
        gradient = slope(theta, forecast)
        step = -_inverse(problem, forecast, ridge, tolerance)(gradient)
        change = features.predict(step)
        ends = lambda x, seen: (jnp.where(seen, x, -jnp.inf), jnp.where(seen, -x, -jnp.inf))  # noqa: E731
        high, low = over_classes(jnp.maximum, ends, change, open_)
        reach = jnp.max(jnp.where(w > 0, high + low, 0))
        along = lambda t: value(theta + t * step, _forecast(predictor + t * change, hot).losses)  # noqa: E731
        return Direction(value(theta, forecast.losses), step, -jnp.sum(gradient * step), reach, along)

    found = damped_newton(look, jnp.zeros((k, d), base.dtype), active)
    theta = found.point
    norm = jnp.sqrt(jnp.sum(slope(theta, _forecast(base + features.predict(theta), hot)) ** 2))
    flags = jnp.stack([found.converged, found.unbounded, problem.identified]).astype(base.dtype)
    return problem.raw(theta), norm, found.num_steps.astype(base.dtype), flags
