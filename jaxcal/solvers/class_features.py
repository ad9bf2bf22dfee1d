"""Features of a softmax regression, shared by the classes or of each its own, and what Newton's method asks of them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Numbers of the products of features handled at once: 2^21 stay near the cache.
_BLOCK = 1 << 21

# Below this share of the largest variance a direction is measured again: an eigenvalue of float32 has 3 digits there.
_NEARLY_DEPENDENT = 1e-4

# The share of the largest variance, times the number of features, that is rounding whatever the dtype: logits in
# float64 may have been float32 before.
_HANDED_OVER = 2.0**-52

# Penalized directions are stretched as if they had this share of the variance at least: more stretching rounds the
# coefficients that penalties hold near 0 (float32, separable classes), less leaves what depends nearly ill-conditioned.
_LEAST_MIXED = 1e-3


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Matrix product with all digits: accelerators would round float32 to 10 bits."""
    return jnp.dot(a, b, precision=lax.Precision.HIGHEST)


def over_classes(op: Callable, terms: Callable, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Sums or maxima, `(n,)`, over the first axis of the terms that are made from arrays `(k, n)`.

    Args:
        op: `jnp.add` or `jnp.maximum`.
        terms: from the arrays, or from a row of each, to a tuple of arrays of that shape.

    On CPU a loop of vectorized passes: a reduction of columns takes 2 to 12 times as long (k = 10 to 100).
    """
    loop, at_once = (partial(form, op, terms) for form in (_class_by_class, _at_once))
    return lax.platform_dependent(*arrays, cpu=loop, default=at_once)


def _class_by_class(op, terms, *arrays):
    initial = {jnp.add: 0, jnp.maximum: -jnp.inf}[op]
    start = tuple(jnp.full(t.shape, initial, t.dtype) for t in jax.eval_shape(terms, *(a[0] for a in arrays)))
    return lax.scan(lambda found, rows: (tuple(map(op, found, terms(*rows))), None), start, arrays)[0]


def _at_once(op, terms, *arrays):
    reduce = {jnp.add: jnp.sum, jnp.maximum: jnp.max}[op]
    return tuple(reduce(t, axis=0) for t in terms(*arrays))


class Shared(NamedTuple):
    """Features `(d, n)` that all classes see, the last one constant."""

    values: jax.Array

    def predict(self, theta):
        return dot(theta, self.values)

    def collect(self, residual):
        return dot(residual, self.values.T)

    def information(self, p, rest, w):
        """sum_i w_i (diag p_i - p_i p_i') (x) x_i x_i', `(k, d, k, d)`, from the pairs of classes and of features."""
        del rest
        k, d = len(p), len(self.values)
        first, second = np.triu_indices(k, 1)
        left, right = np.triu_indices(d)
        products = _summed_products(
            lambda p, x, w: (w * p[first] * p[second], x[left] * x[right]), (p, self.values, w), len(first) + len(left)
        )
        cross = products[_pair_numbers(k, 1)][..., _pair_numbers(d, 0)].transpose(0, 2, 1, 3)
        same = jnp.eye(k, dtype=p.dtype)[:, None, :, None]
        # probabilities sum to 1: what a class shares with itself is what it shares with all others, no difference
        apart = cross * (1 - same)
        return same * jnp.sum(apart, axis=2)[:, :, None, :] - apart

    def standardized(self, w, penalty):
        """The same features of mean 0 and variance one, and B, `(d, d)`, with x_new = B' x.

        They are made uncorrelated, too. Where coefficients are penalized, the mean over the classes of the second
        derivatives that features and penalties make is diagonal instead, apart from features whose penalty is the
        larger part. A direction that is constant up to rounding is 0 in the new features; in B it stays, for a penalty
        may decide about it. Third, whether there is none.
        """
        eps = jnp.finfo(w.dtype).eps
        x, d = self.values[:-1], len(self.values)
        mean = jnp.sum(w * x, axis=1)
        centred = jnp.where(w > 0, x - mean[:, None], 0)
        spread = jnp.sqrt(jnp.sum(w * centred**2, axis=1))
        largest = jnp.max(jnp.where(w > 0, jnp.abs(x), 0), axis=1, initial=0)
        least = jnp.where(
            jnp.any(penalty > 0), jnp.finfo(w.dtype).tiny ** 0.4, 0
        )  # a penalty over its square overflows
        constant = spread <= d * eps * largest
        told = ~constant & (spread > least)
        # a constant stays, in its own unit; what is so small that it is left out, but no constant, must not act as one
        unit_of = jnp.where(told, spread, jnp.where(constant & (largest > least), largest, 1))
        unit = jnp.where(told[:, None], centred / unit_of[:, None], 0)
        turn, kept = _uncorrelated(unit, w, d * eps * jnp.where(told, largest / unit_of, 0))
        full = jnp.all(kept)

        held = jnp.any(penalty[:, :-1] > 0)
        turn = jnp.where(
            held,
            _conditioned(unit, w, jnp.where(told, 2 * jnp.mean(penalty[:, :-1], axis=0) / unit_of**2, jnp.inf)),
            turn,
        )
        kept |= held
        linear = jnp.where(told | constant, 1 / unit_of, 0)[:, None] * turn
        shift = -dot(mean, linear)
        # a direction that is left out has a spread up to sqrt(d eps): what it adds to the intercept must be far above
        size = dot(jnp.abs(mean) + spread, jnp.abs(linear))
        shift = jnp.where(kept | (jnp.abs(shift) > 100 * (d * eps) ** 0.5 * size), shift, 0)
        basis = jnp.zeros((d, d), w.dtype).at[:-1, :-1].set(linear)
        basis = basis.at[-1, :-1].set(shift).at[-1, -1].set(1)
        new = jnp.where(kept[:, None], dot(linear.T, jnp.where(told[:, None], centred, 0)), 0)
        return Shared(jnp.concatenate([new, self.values[-1:]])), basis, full

    def preconditioner(self, p, rest, w, ridge):
        """Solves (S (x) I + ridge), S the mean of diag p - p p': the truth for p that do not depend on x."""
        k = len(p)
        same = jnp.eye(k, dtype=bool)
        share = jnp.where(same, jnp.diag(dot(p * rest, w)), -dot(p * w, p.T))
        share = share + jnp.trace(share) / k**2  # differences of classes are all that counts
        size, axes = jnp.linalg.eigh(share)
        size = jnp.maximum(size, jnp.finfo(p.dtype).eps * size[-1])[:, None] + jnp.mean(ridge, axis=0)
        return lambda g: dot(axes, dot(axes.T, g) / jnp.where(size > 0, size, 1))


class Own(NamedTuple):
    """Features `(d, k, n)` of each class its own, the last one constant; 0 where a class is masked."""

    values: jax.Array

    def predict(self, theta):
        return sum(self.values[j] * theta[:, j, None] for j in range(len(self.values)))

    def collect(self, residual):
        return jnp.stack([jnp.sum(residual * x, axis=1) for x in self.values], axis=-1)

    def information(self, p, rest, w):
        d, k = self.values.shape[:2]

        def rows(p, w, *x):
            g = jnp.concatenate([p * x for x in x])
            return w * g, g

        cross = _summed_products(rows, (p, w, *self.values), d * k)
        cross = cross.reshape(d, k, d, k).transpose(1, 0, 3, 2)
        same = jnp.eye(k, dtype=p.dtype)[:, None, :, None]
        return same * self._blocks(p * rest, w)[:, :, None, :] - cross * (1 - same)

    def _blocks(self, variance, w):
        """sum_i w_i p_i (1 - p_i) x_i x_i' of each class, `(k, d, d)`."""
        d = len(self.values)
        h = w * variance
        rows = [[jnp.sum(h * self.values[i] * self.values[j], axis=1) for j in range(d)] for i in range(d)]
        return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)

    def standardized(self, w, penalty):
        eps = jnp.finfo(w.dtype).eps
        x, one = self.values
        weight = w * one
        mass = jnp.sum(weight, axis=1)
        mean = jnp.sum(weight * x, axis=1) / jnp.where(mass > 0, mass, 1)
        centred = jnp.where(weight > 0, x - mean[:, None], 0)
        spread = jnp.sqrt(jnp.sum(weight * centred**2, axis=1))
        kept = spread > 8 * eps * jnp.max(jnp.abs(x), axis=1, initial=0)  # 8: the rounding of mean and differences
        linear = jnp.where(kept, 1 / jnp.where(kept, spread, 1), jnp.where(jnp.any(penalty > 0), 1.0, 0.0))
        zero = jnp.zeros_like(linear)
        basis = jnp.stack([jnp.stack([linear, zero], -1), jnp.stack([-mean * linear, zero + 1], -1)], -2)
        return Own(jnp.stack([centred * linear[:, None], one])), basis, jnp.all(kept)

    def preconditioner(self, p, rest, w, ridge):
        """Solves the blocks of the single classes."""
        d = len(self.values)
        blocks = self._blocks(p * rest, w) + ridge[:, :, None] * jnp.eye(d, dtype=p.dtype)
        size = jnp.trace(blocks, axis1=-2, axis2=-1)
        size = jnp.where(size > 0, size, 1) * jnp.finfo(p.dtype).eps
        inverse = jnp.linalg.inv(blocks + size[:, None, None] * jnp.eye(d, dtype=p.dtype))
        return lambda g: jnp.einsum("aij,aj->ai", inverse, g, precision=lax.Precision.HIGHEST)


def _uncorrelated(unit, w, noise):
    """A, `(d, d)`, that makes rows A' unit of covariance I from rows of mean 0, and which of those are not rounding.

    `noise` is the rounding of each row. The eigenvectors of small eigenvalues have no digits where rows almost depend
    on each other, as logits with large offsets do: these are measured again along the axes, and turned once more.
    """
    d, eps = len(noise) + 1, jnp.finfo(w.dtype).eps
    size, axes = jnp.linalg.eigh(dot(unit * w, unit.T))
    most = jnp.max(size, initial=0)

    def once():
        kept = size > d * eps * most
        return axes / jnp.where(kept, jnp.sqrt(jnp.maximum(size, 0)), 1), kept

    def twice():
        rows = dot(axes.T, unit)
        spread = jnp.sqrt(jnp.sum(w * rows**2, axis=1))
        floor = jnp.maximum(dot(noise, jnp.abs(axes)), (d * _HANDED_OVER * most) ** 0.5)
        told = spread > floor
        scale = jnp.where(told, spread, 1)
        rows = jnp.where(told[:, None], rows / scale[:, None], 0)
        size, turn = jnp.linalg.eigh(dot(rows * w, rows.T))
        kept = size > d * eps * jnp.max(size)
        return dot(axes / scale, turn) / jnp.where(kept, jnp.sqrt(jnp.maximum(size, 0)), 1), kept

    return lax.cond(jnp.all(size > _NEARLY_DEPENDENT * most), once, twice)


def _conditioned(unit, w, penalty):
    """A, `(d, d)`, with A' (C + penalty) A near I for the covariance C of rows of mean 0 and variance one.

    But rows whose penalty is above what they tell stay as they are: coefficients of them that are free must not be
    mixed with others that are held.
    """
    d = len(penalty)
    mixed = penalty <= 1
    penalty = jnp.where(mixed, penalty, 0)
    scale = jnp.sqrt(1 + penalty)
    rows = jnp.where(mixed[:, None], unit / scale[:, None], 0)
    size, axes = jnp.linalg.eigh(dot(rows * w, rows.T) + jnp.diag(jnp.where(mixed, penalty / scale**2, 1)))
    size = jnp.maximum(size, _LEAST_MIXED)
    own = jnp.eye(d, dtype=w.dtype)
    both = mixed[:, None] & mixed
    turn = jnp.where(both, dot(axes / jnp.sqrt(size), axes.T), own)  # symmetric: rows that stay are not moved
    return turn / scale[:, None]


def _pair_numbers(m: int, offset: int) -> np.ndarray:
    """`(m, m)`, where each pair stands in `np.triu_indices(m, offset)`, in either order; 0 for others."""
    number = np.zeros((m, m), int)
    rows, columns = np.triu_indices(m, offset)
    number[rows, columns] = number[columns, rows] = np.arange(len(rows))
    return number


def _summed_products(factors: Callable, arrays, width: int):
    """A B' of the two arrays `(., n)` that `factors` makes from `arrays`, whose last axes are the rows, block by block.

    `width` is how many numbers a row has in them.
    """
    n = arrays[0].shape[-1]
    size = max(1, min(n, _BLOCK // width))
    blocks = -(-n // size)

    def block(arrays):
        a, b = factors(*arrays)
        return dot(a, b.T)

    if blocks == 1:
        return block(arrays)
    padded = [jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, blocks * size - n)]) for a in arrays]

    def add(i, gram):
        return gram + block([lax.dynamic_slice_in_dim(a, i * size, size, axis=-1) for a in padded])

    shape = jax.eval_shape(block, arrays)
    return lax.fori_loop(0, blocks, add, jnp.zeros(shape.shape, shape.dtype))
