"""Logistic regression on a few features, by damped Newton steps."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.solvers.sums import total

# 5 to 8 steps in ordinary lanes; some 40 to where separated outcomes are predicted to rounding.
_MAX_STEPS = 400


class LogisticOptimum(NamedTuple):
    """Coefficients `(..., d)` of the features and what is known of them; arrays `(...)`."""

    coefficients: jax.Array
    risk: jax.Array  # mean loss at the coefficients
    gradient_norm: jax.Array  # of the mean loss, in the orthonormal basis of the features, before the last step
    num_steps: jax.Array  # int32
    converged: jax.Array  # bool
    separated: jax.Array  # bool: the loss is within a rounding of 0, its infimum
    identified: jax.Array  # bool: no feature is a combination of those before it


def logistic_regression(
    features: Sequence[jax.Array],
    target: jax.Array,
    weights: jax.Array,
    active: jax.Array,
    used: jax.Array,
    ridge: tuple[float, Sequence[float]] | None = None,
) -> LogisticOptimum:
    r"""Maximum likelihood of P(y = 1) = sigmoid(sum_j theta_j x_j), for targets between 0 and 1.

    min over theta of  sum_i w_i [softplus(eta_i) - t_i eta_i] / sum_i w_i + lambda sum_j (theta_j - c_j)^2

    Args:
        features: d arrays `(..., n)`, finite, few: a step makes d^2 passes. A constant one is the intercept, and first.
        target: `(..., n)` in [0, 1]; weights: `(..., n)`, >= 0.
        active: bool `(...)`; other lanes stay at 0.
        used: bool `(..., d)`; the coefficients of other features are 0.
        ridge: lambda > 0 and c, static; None for lambda = 0. `risk` is without it.

    Features are made orthonormal first, and again in the metric of the information in every step, so that neither their
    units nor their correlation costs digits; one that depends on those before it gets the coefficient 0. A step is
    shortened to log(1 + r) / r of Newton's, r the largest change it makes to a predictor, with which the logistic loss
    falls from any start; near the optimum that is 1. Once the predicted decrease is below one rounding of the loss, one
    more step gives the coefficients to rounding, and carries their derivatives: the optimum moves by the inverse
    information times the change of the score. Where outcomes are separated it ends when the loss is below eps.
    """
    d = len(features)
    eps = jnp.finfo(target.dtype).eps
    x, t, w = ([jnp.where(active[..., None], a, 0) for a in group] for group in (features, [target], [weights]))
    t, w = t[0], w[0]
    unit = lax.stop_gradient(jnp.max(w, axis=-1, keepdims=True))
    w = w / jnp.where(unit > 0, unit, 1)  # the optimum does not depend on the size of the weights
    mass = jnp.where(active, total(w), 1)
    basis = _orthonormal(lax.stop_gradient(x), lax.stop_gradient(w / mass[..., None]), used)
    u = _transformed(x, basis)
    normal = None
    if ridge is not None:  # d more rows, whose target is normal: the coefficients themselves
        u, t, w, normal = _with_ridge(u, t, w, mass, basis, ridge)

    def newton(theta, u, t, w):
        """Step, predicted decrease, predictor, gradient."""
        predictor = _predictor(theta, u)
        q, rest = jax.nn.sigmoid(predictor), jax.nn.sigmoid(-predictor)
        score, information = w * (t * rest - (1 - t) * q), w * q * rest
        if normal is not None:
            score, information = jnp.where(normal, w * (t - predictor), score), jnp.where(normal, w, information)
        step, decrease = _solve(u, information, score)
        return step, decrease, predictor, score

    def losses(predictor, t):
        loss = t * jax.nn.softplus(-predictor) + (1 - t) * jax.nn.softplus(predictor)
        return loss if normal is None else jnp.where(normal, (t - predictor) ** 2 / 2, loss)

    fixed = lax.stop_gradient((u, t, w))
    fixed_u, fixed_t, fixed_w = fixed

    def advance(state):
        count, theta, steps, done, separated, norm = state
        step, decrease, predictor, score = newton(theta, *fixed)
        counts = fixed_w > 0 if normal is None else (fixed_w > 0) & ~normal
        reach = jnp.max(jnp.where(counts, jnp.abs(_predictor(step, fixed_u)), 0), axis=-1)
        damping = jnp.where(reach > 0, jnp.log1p(reach) / jnp.where(reach > 0, reach, 1), 1)
        loss = total(fixed_w * losses(predictor, fixed_t))
        apart = loss <= eps * mass
        gradient = jnp.sqrt(sum(total(score * column) ** 2 for column in fixed_u)) / mass
        moved = theta + jnp.where(done | apart, 0, damping)[..., None] * step
        ended = done | apart | (decrease <= eps * loss)
        norm, steps = jnp.where(done, norm, gradient), jnp.where(done, steps, count + 1)
        return count + 1, moved, steps, ended, separated | (apart & ~done), norm

    def unfinished(state):
        return (state[0] < _MAX_STEPS) & ~jnp.all(state[3])

    none = jnp.zeros(mass.shape, bool)
    start = (jnp.int32(0), jnp.zeros((*mass.shape, d), t.dtype), none.astype(jnp.int32), ~active, none, 0 * mass)
    _, theta, steps, done, separated, norm = lax.while_loop(unfinished, advance, start)
    step, *_ = newton(theta, u, t, w)
    theta = theta + jnp.where(separated[..., None], 0, step)
    loss = w * losses(_predictor(theta, u), t)
    return LogisticOptimum(
        jnp.stack(_transposed(theta, basis), axis=-1),
        total(loss if normal is None else jnp.where(normal, 0, loss)) / mass,
        norm,
        steps,
        done & active,
        separated,
        jnp.all(basis.kept | ~used, axis=-1),
    )


def _predictor(theta, u):
    return sum(theta[..., j : j + 1] * column for j, column in enumerate(u))


class _Basis(NamedTuple):
    """u_j = (x_j / scale_j - sum_{i<j} mix_ij u_i) / length_j, or 0 for one that depends on others."""

    scale: list[jax.Array]
    mix: list[list[jax.Array]]
    length: list[jax.Array]
    kept: jax.Array  # bool (..., d)


def _orthonormal(x, share, used) -> _Basis:
    """Gram-Schmidt in the weighted inner product, each column twice, which is enough for all digits."""
    eps = jnp.finfo(share.dtype).eps
    scale, mix, length, kept, columns = [], [], [], [], []
    for j, column in enumerate(x):
        largest = jnp.max(jnp.where(share > 0, jnp.abs(column), 0), axis=-1)
        size = jnp.where(largest > 0, largest, 1)
        column = jnp.where(share > 0, column, 0) / size[..., None]
        before = jnp.sqrt(total(share * column**2))
        coefficients = [jnp.zeros_like(size) for _ in columns]
        for _ in range(2):
            for i, other in enumerate(columns):
                part = total(share * column * other)
                column = column - part[..., None] * other
                coefficients[i] = coefficients[i] + part
        after = jnp.sqrt(total(share * column**2))
        keep = (after > 64 * eps * before) & used[..., j]
        after = jnp.where(keep, after, 1)
        columns.append(jnp.where(keep[..., None], column / after[..., None], 0))
        scale.append(size)
        mix.append(coefficients)
        length.append(after)
        kept.append(keep)
    return _Basis(scale, mix, length, jnp.stack(kept, axis=-1))


def _transformed(x, basis: _Basis):
    """The features in the basis, which is held fixed."""
    columns = []
    for j, column in enumerate(x):
        column = column / basis.scale[j][..., None]
        for other, part in zip(columns, basis.mix[j], strict=True):
            column = column - part[..., None] * other
        columns.append(jnp.where(basis.kept[..., j : j + 1], column / basis.length[j][..., None], 0))
    return columns


def _transposed(theta, basis: _Basis):
    """Coefficients of the features from those of the basis."""
    d = theta.shape[-1]
    on_basis = [theta[..., j] for j in range(d)]
    result = [None] * d
    for j in reversed(range(d)):
        kept = basis.kept[..., j]
        value = jnp.where(kept, on_basis[j] / basis.length[j], 0)
        for i, part in enumerate(basis.mix[j]):
            on_basis[i] = on_basis[i] - part * value
        result[j] = value / basis.scale[j]
    return result


def _with_ridge(u, t, w, mass, basis: _Basis, ridge):
    """d more rows with theta_j as predictor, c_j as target and 2 lambda as weight, and which they are."""
    strength, centre = ridge
    d, n = len(u), t.shape[-1]
    units = jnp.eye(d, dtype=t.dtype)
    # column i: coefficients of the features for the i-th unit vector of the basis
    rows = [jnp.stack(_transposed(jnp.broadcast_to(e, (*mass.shape, d)), basis), axis=-1) for e in units]
    put = lambda a, more: jnp.concatenate([jnp.broadcast_to(a, (*mass.shape, n)), more], axis=-1)  # noqa: E731
    shape = (*mass.shape, d)
    t = put(t, jnp.broadcast_to(jnp.asarray(centre, t.dtype), shape))
    w = put(w, jnp.broadcast_to(2 * strength * mass[..., None], shape))
    return [put(a, row) for a, row in zip(u, rows, strict=True)], t, w, jnp.arange(n + d) >= n


def _solve(u, h, score):
    """Newton's step H^-1 g for H = sum h u u', g = sum score u, and g' H^-1 g, by Gram-Schmidt in the metric h."""
    columns, mix, step, decrease = [], [], [], 0
    for column in u:
        parts = []
        for other, square in columns:
            part = total(h * column * other) / square
            column = column - part[..., None] * other
            parts.append(part)
        square = total(h * column**2)
        square = jnp.where(square > 0, square, 1)
        slope = total(score * column)
        columns.append((column, square))
        mix.append(parts)
        step.append(slope / square)
        decrease = decrease + slope * step[-1]
    for j in reversed(range(len(u))):
        for i, part in enumerate(mix[j]):
            step[i] = step[i] - part * step[j]
    return jnp.stack(step, axis=-1), decrease
