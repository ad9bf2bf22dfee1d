"""Features of a softmax regression, shared by the classes or of each its own, and what Newton's method asks of them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Rows of the second derivatives handled at once: 2^21 numbers stay near the cache.
_BLOCK = 1 << 21


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Matrix product with all digits: accelerators would round float32 to 10 bits."""
    return jnp.dot(a, b, precision=lax.Precision.HIGHEST)


class Shared(NamedTuple):
    """Features `(n, d)` that all classes see, the last one constant."""

    values: jax.Array

    def predict(self, theta):
        return dot(self.values, theta.T)

    def collect(self, residual):
        return dot(residual.T, self.values)

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
        size, axes = jnp.linalg.eigh(dot(unit.T * w, unit))
        floor = d * eps * jnp.max(size)
        kept = size > floor
        # a direction that the data do not tell from rounding is left out, unless a penalty decides about it
        unit_length = jnp.where(kept, 1 / jnp.sqrt(jnp.maximum(size, floor)), 0)
        unit_length = jnp.where(penalized & ~kept, 1 / jnp.sqrt(jnp.where(floor > 0, floor, 1)), unit_length)
        scale = jnp.where(jnp.isinf(scale) & penalized, 1, scale)
        linear = (axes * unit_length) / scale[:, None]
        basis = jnp.zeros((d, d), w.dtype).at[:-1, :-1].set(linear)
        basis = basis.at[-1, :-1].set(-dot(mean, linear)).at[-1, -1].set(1)
        new = jnp.concatenate([dot(jnp.where((w > 0)[:, None], x - mean, 0), linear), self.values[:, -1:]], axis=1)
        return Shared(new), basis, jnp.all(kept)

    def preconditioner(self, p, rest, w, ridge):
        """Solves (S (x) I + ridge), S the mean of diag p - p p': the truth for p that do not depend on x."""
        k = p.shape[1]
        same = jnp.eye(k, dtype=bool)
        share = jnp.where(same, jnp.diag(dot(w, p * rest)), -dot(p.T * w, p))
        share = share + jnp.trace(share) / k**2  # differences of classes are all that counts
        size, axes = jnp.linalg.eigh(share)
        size = jnp.maximum(size, jnp.finfo(p.dtype).eps * size[-1])[:, None] + jnp.mean(ridge, axis=0)
        return lambda g: dot(axes, dot(axes.T, g) / jnp.where(size > 0, size, 1))


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
        return gram + dot((g * w[:, None]).T, g), None

    return lax.scan(add, jnp.zeros((width, width), w.dtype), tuple(block(a) for a in (*arrays, w)))[0]
