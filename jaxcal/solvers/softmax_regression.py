"""Softmax regression on many features: damped Newton steps, solved directly or by conjugate gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jaxcal.solvers.softmax import log_normalizer, shifted
from jaxcal.solvers.sums import total

# Ordinary fits take 5 to 10 steps; separable ones one a unit of the logits, 37 until exp(-eta) < eps in float64.
_MAX_STEPS = 150

# Up to here the matrix of second derivatives is built and factored; beyond, a conjugate gradient step, which costs two
# passes, is cheaper than a row of it (measured at k = 10 to 30).
_DIRECT = 300

# Conjugate gradients inside one Newton step. With the preconditioner 5 to 30 do; hostile problems may use all.
_MAX_INNER = 200

# Rows of the second derivatives handled at once: 2^21 numbers stay near the cache.
_BLOCK = 1 << 21

# A fit that takes more steps may have its optimum at infinity, where a penalty can make Newton's steps ever shorter: it
# tries steps up to 2^10 times as long, which cost others nothing.
_ORDINARY = 15
_LONGEST = 1 << 10

# Predictors that the last step still moves by this much have their optimum at infinity: at a finite one it moves them
# by about the root of eps, at an infinite one by 1.
_STILL_MOVING = 0.25

# A fit ends when the predicted decrease, relative to the objective, is at most this many eps: the rounding of its sum.
_END = 4

# Below this many the sums of two steps cannot be compared, and the step that is safe in theory is taken.
_HIDDEN = 64

# Ridge after a step that had to be shortened, eight times as much if that does not help: 8^6 of it are nothing.
_RIDGE = 1e-3

_dot = lambda a, b: jnp.dot(a, b, precision=lax.Precision.HIGHEST)  # noqa: E731


class SoftmaxOptimum(NamedTuple):
    """Coefficients `(k, d)` and what is known of them."""

    coefficients: jax.Array
    gradient_norm: jax.Array  # of the objective at the coefficients, in features of variance one
    num_steps: jax.Array  # int32
    converged: jax.Array  # bool
    unbounded: jax.Array  # bool: the loss has no smallest value; the coefficients are near its infimum
    identified: jax.Array  # bool: no feature is a combination of the others, or penalties decide


class Shared(NamedTuple):
    """Features `(n, d)` that all classes see, the last one constant."""

    values: jax.Array

    def predict(self, theta):
        return _dot(self.values, theta.T)

    def collect(self, residual):
        return _dot(residual.T, self.values)

    def information(self, p, rest, w):
        """sum_i w_i (diag p_i - p_i p_i') (x) x_i x_i', `(k, d, k, d)`."""
        del rest
        k, d = p.shape[1], self.values.shape[1]
        cross = _gram(lambda p, x: (p[:, :, None] * x[:, None, :]).reshape(-1, k * d), (p, self.values), w)
        cross = cross.reshape(k, d, k, d)
        same = jnp.eye(k, dtype=p.dtype)[:, None, :, None]
        # probabilities sum to 1: what a class shares with itself is what it shares with all others, no difference
        apart = cross * (1 - same)
        return same * jnp.sum(apart, axis=2)[:, :, None, :] - apart

    def standardized(self, w, penalized):
        """The same features uncorrelated and of variance one, and B, `(d, d)`, with x_new = x B."""
        eps = jnp.finfo(w.dtype).eps
        x, d = self.values[:, :-1], self.values.shape[1]
        mean = jnp.sum(w[:, None] * x, axis=0)
        centred = jnp.where((w > 0)[:, None], x - mean, 0)
        spread = jnp.sqrt(jnp.sum(w[:, None] * centred**2, axis=0))
        scale = jnp.where(spread > d * eps * jnp.max(jnp.abs(x), axis=0, initial=0), spread, jnp.inf)
        unit = centred / scale
        size, axes = jnp.linalg.eigh(_dot(unit.T * w, unit))
        floor = d * eps * jnp.max(size)
        kept = size > floor
        # a direction that the data do not tell from rounding is left out, unless a penalty decides about it
        unit_length = jnp.where(kept, 1 / jnp.sqrt(jnp.maximum(size, floor)), 0)
        unit_length = jnp.where(penalized & ~kept, 1 / jnp.sqrt(jnp.where(floor > 0, floor, 1)), unit_length)
        scale = jnp.where(jnp.isinf(scale) & penalized, 1, scale)
        linear = (axes * unit_length) / scale[:, None]
        basis = jnp.zeros((d, d), w.dtype).at[:-1, :-1].set(linear)
        basis = basis.at[-1, :-1].set(-_dot(mean, linear)).at[-1, -1].set(1)
        new = jnp.concatenate([_dot(jnp.where((w > 0)[:, None], x - mean, 0), linear), self.values[:, -1:]], axis=1)
        return Shared(new), basis, jnp.all(kept)

    def preconditioner(self, p, rest, w, ridge):
        """Solves (S (x) I + ridge), S the mean of diag p - p p': the truth for p that do not depend on x."""
        k = p.shape[1]
        same = jnp.eye(k, dtype=bool)
        share = jnp.where(same, jnp.diag(_dot(w, p * rest)), -_dot(p.T * w, p))
        share = share + jnp.trace(share) / k**2  # differences of classes are all that counts
        size, axes = jnp.linalg.eigh(share)
        size = jnp.maximum(size, jnp.finfo(p.dtype).eps * size[-1])[:, None] + jnp.mean(ridge, axis=0)
        return lambda g: _dot(axes, _dot(axes.T, g) / jnp.where(size > 0, size, 1))


class Own(NamedTuple):
    """Features `(d, n, k)` of each class its own, the last one constant; 0 where a class is masked."""

    values: jax.Array

    def predict(self, theta):
        return sum(self.values[j] * theta[:, j] for j in range(len(self.values)))

    def collect(self, residual):
        return jnp.stack([jnp.sum(residual * x, axis=0) for x in self.values], axis=-1)

    def information(self, p, rest, w):
        d, _, k = self.values.shape
        cross = _gram(lambda p, *x: jnp.concatenate([p * x[j] for j in range(d)], axis=-1), (p, *self.values), w)
        cross = cross.reshape(d, k, d, k).transpose(1, 0, 3, 2)
        same = jnp.eye(k, dtype=p.dtype)[:, None, :, None]
        return same * self._blocks(p * rest, w)[:, :, None, :] - cross * (1 - same)

    def _blocks(self, variance, w):
        """sum_i w_i p_i (1 - p_i) x_i x_i' of each class, `(k, d, d)`."""
        d = len(self.values)
        h = w[:, None] * variance
        rows = [[jnp.sum(h * self.values[i] * self.values[j], axis=0) for j in range(d)] for i in range(d)]
        return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)

    def standardized(self, w, penalized):
        eps = jnp.finfo(w.dtype).eps
        x, one = self.values
        weight = w[:, None] * one
        mass = jnp.sum(weight, axis=0)
        mean = jnp.sum(weight * x, axis=0) / jnp.where(mass > 0, mass, 1)
        centred = jnp.where(weight > 0, x - mean, 0)
        spread = jnp.sqrt(jnp.sum(weight * centred**2, axis=0))
        kept = spread > 8 * eps * jnp.max(jnp.abs(x), axis=0, initial=0)  # 8: the rounding of mean and differences
        linear = jnp.where(kept, 1 / jnp.where(kept, spread, 1), jnp.where(penalized, 1.0, 0.0))
        zero = jnp.zeros_like(linear)
        basis = jnp.stack([jnp.stack([linear, zero], -1), jnp.stack([-mean * linear, zero + 1], -1)], -2)
        return Own(jnp.stack([centred * linear, one])), basis, jnp.all(kept)

    def preconditioner(self, p, rest, w, ridge):
        """Solves the blocks of the single classes."""
        d = len(self.values)
        blocks = self._blocks(p * rest, w) + ridge[:, :, None] * jnp.eye(d, dtype=p.dtype)
        size = jnp.trace(blocks, axis1=-2, axis2=-1)
        size = jnp.where(size > 0, size, 1) * jnp.finfo(p.dtype).eps
        inverse = jnp.linalg.inv(blocks + size[:, None, None] * jnp.eye(d, dtype=p.dtype))
        return lambda g: jnp.einsum("aij,aj->ai", inverse, g, precision=lax.Precision.HIGHEST)


def _gram(rows: Callable, arrays, w):
    """G' diag(w) G of the rows that `rows` makes from a block of the arrays."""
    n = w.shape[0]
    width = jax.eval_shape(rows, *(a[:1] for a in arrays)).shape[-1]
    size = max(1, min(n, _BLOCK // width))
    blocks = -(-n // size)

    def block(a):
        return jnp.pad(a, [(0, blocks * size - n)] + [(0, 0)] * (a.ndim - 1)).reshape(blocks, size, *a.shape[1:])

    def add(gram, part):
        *arrays, w = part
        g = rows(*arrays)
        return gram + _dot((g * w[:, None]).T, g), None

    return lax.scan(add, jnp.zeros((width, width), w.dtype), tuple(block(a) for a in (*arrays, w)))[0]


def softmax_regression(base, features, labels, weights, penalty, active) -> SoftmaxOptimum:
    r"""Maximum likelihood of P(y = a) proportional to exp(base_a + sum_j theta_aj x_aj), with a quadratic penalty.

    min over theta of  sum_i w_i CE(softmax(base_i + theta x_i), y_i) / sum_i w_i + sum_aj penalty_aj theta_aj^2

    Args:
        base: `(n, k)`, finite, or -inf for a class that is masked in its row.
        features: `Shared` by the classes or `Own` of each; finite.
        labels: `(n,)` in [0, k), none of them masked; weights: `(n,)` >= 0.
        penalty: `(k, d)` >= 0; on the features before the last one all 0, all positive, or 0 on the diagonal.
        active: bool; if False the coefficients are 0.

    A vector added to the coefficients of all classes changes nothing: where no penalty decides, they sum to 0 over the
    classes. Features are made uncorrelated first. A step is taken in full if the objective falls by it, else shortened,
    at most to log(1 + r) / r of Newton's, with which it falls from any start: r is the largest change of a difference
    of two classes' predictors. Once the predicted decrease is a rounding of the objective a last step follows. Where
    classes are separable the loss has no minimum; it ends within a rounding of the infimum, `unbounded`.

    Differentiable in base, features, weights and penalty, to every order (implicit function theorem); the derivatives
    are 0 where `unbounded` or not `identified`. Under `jax.vmap` lanes run one after another on CPU. Cost: two passes
    over the data a step and, up to 300 coefficients, their matrix of second derivatives, O(n k^2 d^2) for shared
    features; beyond, 5 to 30 conjugate gradient steps of O(n k d).
    """
    theta, norm, steps, flags = _optimum(base, features, labels, weights, penalty, active)
    return SoftmaxOptimum(theta, norm, steps.astype(jnp.int32), *(flags > 0))


def _objective(theta, base, features, labels, weights, penalty):
    """In the features as they came."""
    share = weights / jnp.sum(weights)
    return total(share * _losses(base + features.predict(theta), labels)) + jnp.sum(penalty * theta**2)


def _losses(predictor, labels):
    gaps = shifted(predictor)
    return log_normalizer(gaps) - jnp.take_along_axis(gaps, labels[:, None], axis=1)[:, 0]


def _gauge(features, penalty):
    """Strength, `(d,)`, of the term that holds the sum over the classes at 0 where no penalty does; any would do.

    It is one in the standardized features, so that their units do not matter: they mix all columns but the constant,
    and of those a penalty acts on all or none.
    """
    free = jnp.all(penalty == 0, axis=0)
    if isinstance(features, Own):  # only the constant is shared
        free &= jnp.arange(penalty.shape[1]) == penalty.shape[1] - 1
    return free.astype(penalty.dtype) / penalty.shape[0]


@jax.custom_jvp
def _optimum(base, features, labels, weights, penalty, active):
    kind = type(features)
    return _minimize(kind, base, features.values, labels, weights, penalty, active)


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
    basis, gauge = problem.basis, problem.gauge
    pair = _probabilities(fixed[1] + fixed[2].predict(fixed[0]))
    size = _curvature(pair, problem.weights)

    def slope(theta, base, features, weights, penalty):
        return jax.grad(_objective)(theta, base, features, labels, weights, penalty)

    _, change = jax.jvp(lambda *data: slope(theta, *data), data, (base_dot, features_dot, weights_dot, penalty_dot))

    def curve(v):
        curved = jax.jvp(lambda theta: slope(theta, *data), (theta,), (_from_basis(basis, v),))[1]
        return _to_basis(basis, curved) + size * gauge * jnp.sum(v, axis=0)

    # to all digits that rounding leaves
    solve = _inverse(problem, pair, 0, 64 * jnp.finfo(base.dtype).eps)
    moved = lax.custom_linear_solve(curve, -_to_basis(basis, change), lambda _, b: solve(b), symmetric=True)
    moved = _centred(_from_basis(basis, moved), gauge)
    return found, (jnp.where(smooth, moved, 0), *(jnp.zeros_like(a) for a in rest))


def _centred(theta, gauge):
    """Coefficients with sum 0 over the classes where no penalty decides: no probability changes."""
    return theta - jnp.where(gauge > 0, jnp.mean(theta, axis=0), 0)


class _Problem(NamedTuple):
    features: Shared | Own  # standardized
    basis: jax.Array  # coefficients of the features as they came from those of the standardized ones
    identified: jax.Array
    weights: jax.Array  # that sum to 1
    penalty: jax.Array
    gauge: jax.Array


def _standardized(base, features, labels, weights, penalty):
    share = weights / jnp.sum(weights)
    new, basis, full = features.standardized(share, jnp.any(penalty > 0))
    return _Problem(new, basis, _identified(features, share, penalty, full), share, penalty, _gauge(features, penalty))


def _identified(features, share, penalty, full):
    """Whether one set of coefficients attains the optimum, apart from a vector added to those of all classes.

    `full` says that no feature is constant or an affine function of others. Where only the coefficients of each class's
    own feature, column a for class a, are free it takes two that are not multiples of each other (up to a constant, if
    that is free): else some multiples of them add the same to all predictors.
    """
    constant = jnp.all(penalty[:, -1] == 0)
    if isinstance(features, Own):
        x, seen = features.values
        found = full & _apart(x, share[:, None] * seen, constant)
    else:
        x = features.values[:, :-1]
        found = full
        if x.shape[1] == penalty.shape[0]:
            own = _apart(x, jnp.broadcast_to(share[:, None], x.shape), constant)
            found = jnp.where(jnp.all(penalty[:, :-1] == 0), full, own)
    return found | jnp.all(penalty > 0)


def _apart(x, weight, centred):
    """Whether no column is 0 and two are no multiples of each other, where their weights `(n, k)` are not 0.

    With `centred` of their deviations from the mean.
    """
    used = weight > 0
    mass = jnp.sum(weight, axis=0)
    mean = jnp.where(centred, jnp.sum(weight * x, axis=0) / jnp.where(mass > 0, mass, 1), 0)
    c = jnp.where(used, x - mean, 0)
    # what rounding makes of 0: that of the mean, of the differences and of the slope
    floor = 16 * jnp.finfo(x.dtype).eps * jnp.max(jnp.where(used, jnp.abs(x), 0), axis=0)
    norm = lambda a: jnp.sqrt(jnp.sum(weight * a**2, axis=0))  # noqa: E731
    largest = jnp.argmax(norm(c))
    other = jnp.take(c, largest, axis=1)[:, None]
    square = jnp.sum(weight * other**2, axis=0)
    slope = jnp.sum(weight * c * other, axis=0) / jnp.where(square > 0, square, 1)
    both = used & jnp.take(used, largest, axis=1)[:, None]
    rest = norm(jnp.where(both, c - slope * other, 0))
    return jnp.all(norm(c) > floor) & jnp.any(rest > floor)


def _from_basis(basis, theta):
    return _dot(theta, basis.T) if basis.ndim == 2 else jnp.einsum("aij,aj->ai", basis, theta)


def _to_basis(basis, gradient):
    return _dot(gradient, basis) if basis.ndim == 2 else jnp.einsum("aij,ai->aj", basis, gradient)


def _probabilities(predictor):
    """p and 1 - p, which of the likeliest class is the sum of the others: separable data end where it has no digits."""
    gaps = shifted(predictor)
    p = jnp.exp(gaps - log_normalizer(gaps)[:, None])
    top = jnp.arange(p.shape[1]) == jnp.argmax(gaps, axis=1)[:, None]
    return p, jnp.where(top, jnp.sum(jnp.where(top, 0, p), axis=1, keepdims=True), 1 - p)


def _quadratic(problem, size, ridge, v):
    """Second derivatives of penalty, gauge and ridge, times v, in the standardized features."""
    raw = _from_basis(problem.basis, v)
    held = size * problem.gauge * jnp.sum(v, axis=0)
    return _to_basis(problem.basis, 2 * problem.penalty * raw) + held + ridge * size * v


def _curvature(pair, share):
    """The largest second derivative that a standardized feature can have, the unit of gauge and ridge."""
    p, rest = pair
    return jnp.max(_dot(share, p * rest))


def _inverse(problem, pair, ridge, tolerance):
    """A function that solves with the second derivatives of the objective at probabilities p.

    `ridge` is added to them, as a share of their size.
    """
    k, d = problem.penalty.shape
    features, w = problem.features, problem.weights
    p, size = pair[0], _curvature(pair, w)
    if k * d <= _DIRECT:
        units = jnp.eye(k * d, dtype=p.dtype).reshape(k * d, k, d)
        matrix = features.information(*pair, w).reshape(k * d, k * d)
        matrix = matrix + jax.vmap(lambda v: _quadratic(problem, size, ridge, v).reshape(-1))(units)
        scale = jnp.sqrt(jnp.where(jnp.diag(matrix) > 0, jnp.diag(matrix), 1))
        # rounding makes a matrix of this size indefinite by at most this much
        ridge = k * d * jnp.finfo(p.dtype).eps * jnp.eye(k * d, dtype=p.dtype)
        factor = jax.scipy.linalg.cho_factor(matrix / scale / scale[:, None] + ridge)
        return lambda g: (jax.scipy.linalg.cho_solve(factor, g.reshape(-1) / scale) / scale).reshape(k, d)

    def product(v):
        t = features.predict(v)
        t = jnp.where(p > 0, t, 0)
        return features.collect(w[:, None] * p * (t - jnp.sum(p * t, axis=-1, keepdims=True))) + _quadratic(
            problem, size, ridge, v
        )

    square = problem.basis**2
    precondition = features.preconditioner(*pair, w, 2 * _to_basis(square, problem.penalty) + ridge * size)
    return lambda g: _conjugate_gradient(product, precondition, g, tolerance)


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


def _minimize(kind, base, values, labels, weights, penalty, active):
    """Lanes of a batch one after another on CPU, where a vectorized loop waits for the slowest; together elsewhere."""

    @custom_vmap
    def run(*operands):
        return _newton(kind, *operands)

    @run.def_vmap
    def _(axis_size, batched, *operands):
        def one(lane):
            lane = iter(lane)
            return run(*(next(lane) if b else a for a, b in zip(operands, batched, strict=True)))

        lanes = tuple(a for a, b in zip(operands, batched, strict=True) if b)
        axes = tuple(0 if b else None for b in batched)
        results = lax.platform_dependent(
            lanes,
            cpu=lambda lanes: lax.map(one, lanes),
            default=lambda _: jax.vmap(lambda *lane: _newton(kind, *lane), in_axes=axes)(*operands),
        )
        return results, (True,) * len(results)

    return run(base, values, labels, weights, penalty, active)


def _newton(kind, base, values, labels, weights, penalty, active):
    eps = jnp.finfo(base.dtype).eps
    weights = jnp.where(active, weights, 1)  # of a lane that takes no step
    problem = _standardized(base, kind(values), labels, weights, penalty)
    features, w = problem.features, problem.weights
    k, d = penalty.shape
    open_ = (w > 0)[:, None] & (base > -jnp.inf)

    def value(theta, predictor):
        return total(w * _losses(predictor, labels)) + jnp.sum(penalty * _from_basis(problem.basis, theta) ** 2)

    def slope(theta, pair):
        p, rest = pair
        residual = w[:, None] * jnp.where(labels[:, None] == jnp.arange(k), -rest, p)
        raw = _from_basis(problem.basis, theta)
        return features.collect(residual) + _to_basis(problem.basis, 2 * penalty * raw)

    def advance(state):
        count, theta, before, ridge, *_ = state
        predictor = base + features.predict(theta)
        objective = value(theta, predictor)
        pair = _probabilities(predictor)
        gradient = slope(theta, pair)
        # conjugate gradients are as exact as the step deserves
        tolerance = jnp.clip(jnp.sqrt(before / objective), 0.01, 0.3)
        step = -_inverse(problem, pair, ridge, tolerance)(gradient)
        decrease = -jnp.sum(gradient * step)
        change = features.predict(step)
        high = jnp.max(jnp.where(open_, change, -jnp.inf), axis=1)
        low = jnp.min(jnp.where(open_, change, jnp.inf), axis=1)
        reach = jnp.max(jnp.where(w > 0, high - low, 0))
        safe = jnp.where(reach > 0, jnp.log1p(reach) / jnp.where(reach > 0, reach, 1), 1)
        last, apart = (decrease <= _END * eps * objective) & (ridge == 0), objective <= eps
        hidden = decrease <= _HIDDEN * eps * objective

        late = count >= _ORDINARY

        def look(state):
            t, lowest, candidate, _ = state
            found = value(theta + candidate * step, predictor + candidate * change)
            enough = found <= objective - 1e-4 * candidate * decrease  # Armijo's rule with its usual share
            better = enough & (found < lowest)
            longer = better & late & (candidate >= 1) & (candidate < _LONGEST)
            shorter = ~enough & (candidate <= 1) & (candidate / 4 > safe)
            following = jnp.where(longer, 2 * candidate, candidate / 4)
            return jnp.where(better, candidate, t), jnp.where(better, found, lowest), following, longer | shorter

        one = jnp.ones_like(safe)
        t = lax.while_loop(lambda state: state[3], look, (safe, one * jnp.inf, one, ~hidden & (safe < 1)))[0]
        theta = jnp.where(apart | ~jnp.isfinite(decrease), theta, theta + t * step)
        # where the full step is of no use, directions that hardly count spoil it: a ridge stops these for a while
        useful = (t >= 1) | hidden
        ridge = jnp.where(useful, jnp.where(ridge > _RIDGE / 8**6, ridge / 8, 0), jnp.maximum(8 * ridge, _RIDGE))
        return count + 1, theta, jnp.maximum(decrease, 0), ridge, last | apart, apart | (reach > _STILL_MOVING)

    def unfinished(state):
        return (state[0] < _MAX_STEPS) & ~state[4]

    zero = jnp.zeros((), base.dtype)
    start = (jnp.int32(0), jnp.zeros((k, d), base.dtype), zero + jnp.inf, zero, ~active, jnp.asarray(False))
    count, theta, *_, done, unbounded = lax.while_loop(unfinished, advance, start)
    norm = jnp.sqrt(jnp.sum(slope(theta, _probabilities(base + features.predict(theta))) ** 2))
    flags = jnp.stack([done & active, unbounded & done, problem.identified]).astype(base.dtype)
    return _centred(_from_basis(problem.basis, theta), problem.gauge), norm, count.astype(base.dtype), flags
