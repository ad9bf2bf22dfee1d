"""The proper loss of an entropy: Savage's representation, with derivatives that survive the boundary of the simplex."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.losses import ProperLoss
from jaxcal.solvers import log_softmax


def proper_loss(entropy: Callable[[jax.Array], jax.Array], *, name: str = "proper_loss") -> ProperLoss:
    r"""The proper loss of any differentiable concave entropy on the simplex (Savage 1971).

    l(p, y) = e(p) + <grad e(p), delta_y - p>,    d(p, q) = e(p) + <grad e(p), q - p> - e(q)

    Args:
        entropy: maps probabilities `(k,)` to a scalar; concave on the simplex and finite at its boundary, where its
            slope may be infinite (write 0 log 0 as `jax.scipy.special.xlogy` does). It is not checked for concavity.
        name: shown in messages.

    Returns:
        A `ProperLoss`. An event of probability 0 costs inf where the slope is infinite. Probabilities below the dtype's
        smallest number count as 0 (the built-in losses work in log space and do not have this limit). Two calls with
        the same function give equal losses, so nothing recompiles.

    Differentiable wherever the entropy is differentiable twice as often. Cost: one gradient of `entropy` an example.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> gini = jaxcal.proper_loss(lambda p: 1 - jnp.sum(p**2))
        >>> z, y = jnp.array([[2.0, 0.0, -1.0]]), jnp.array([1])
        >>> bool(jnp.allclose(gini(z, y), jaxcal.brier_loss(z, y)))
        True
    """
    return ProperLoss(name, _Savage(entropy), _SavageEntropy(entropy), _SavageDivergence(entropy))


def _tangent(entropy, p, direction, mass):
    """<grad e(p), direction> where a class of direction 0 adds 0, and an infinite slope at p_j = 0 counts as +inf."""
    slope = jax.grad(entropy)(p)
    edge = (p == 0) & ~jnp.isfinite(slope)
    term = jnp.where(edge, 0, slope) * direction
    term = jnp.where(direction == 0, 0, term)
    # the other slopes may be NaN there, as inf * 0 is in the gradient of sqrt(p_0 p_1)
    return jnp.where(jnp.any(edge & (mass > 0)), jnp.inf, jnp.sum(term))


def _inside(p, mass):
    """p with the classes that are as good as absent moved off the boundary, and which those are.

    An entropy with an infinite slope has no finite derivatives at 0. A class of probability below tiny^(1/3) adds less
    than rounding to those of the loss; the cube keeps third derivatives finite.
    """
    least = float(jnp.finfo(p.dtype).tiny) ** (1 / 3)
    absent = (p == 0) | ((p < least) & (mass == 0))
    return jnp.where(absent, least, p), absent


def _with_derivative_of(value, smooth):
    """`value`, with the derivatives of `smooth`."""
    value = lax.stop_gradient(value)
    return jnp.where(jnp.isfinite(smooth), value + (smooth - lax.stop_gradient(smooth)), value)


def _savage(entropy, p, mass, truth):
    """e(p) + <grad e(p), truth - p>; classes without mass do not happen."""
    value = entropy(p) + _tangent(entropy, p, truth - p, mass)
    inner, absent = _inside(p, mass)
    smooth = entropy(inner) + jnp.sum(jax.grad(entropy)(inner) * jnp.where(absent, 0, truth - p))
    return _with_derivative_of(value, smooth)


def _smooth_entropy(entropy, q):
    return _with_derivative_of(entropy(q), entropy(_inside(q, jnp.zeros_like(q))[0]))


@dataclass(frozen=True)
class _Savage:
    entropy: Callable

    def __call__(self, logits, labels):
        log_p = log_softmax(logits)
        k = log_p.shape[-1]

        def one(log_p, label):
            happened = jax.nn.one_hot(label, k, dtype=log_p.dtype)
            return _savage(self.entropy, jnp.exp(log_p), happened, happened)

        shape = jnp.broadcast_shapes(log_p.shape[:-1], labels.shape)
        log_p, labels = jnp.broadcast_to(log_p, (*shape, k)), jnp.broadcast_to(labels, shape)
        return jax.vmap(one)(log_p.reshape(-1, k), labels.reshape(-1)).reshape(shape)


@dataclass(frozen=True)
class _SavageEntropy:
    entropy: Callable

    def __call__(self, log_q):
        q = jnp.exp(log_q)
        one = partial(_smooth_entropy, self.entropy)
        return jax.vmap(one)(q.reshape(-1, q.shape[-1])).reshape(q.shape[:-1])


@dataclass(frozen=True)
class _SavageDivergence:
    entropy: Callable

    def __call__(self, log_p, log_q):
        def one(log_p, log_q):
            p, q = jnp.exp(log_p), jnp.exp(log_q)
            return _savage(self.entropy, p, q, q) - _smooth_entropy(self.entropy, q)

        log_p, log_q = jnp.broadcast_arrays(log_p, log_q)
        k = log_p.shape[-1]
        return jax.vmap(one)(log_p.reshape(-1, k), log_q.reshape(-1, k)).reshape(log_p.shape[:-1])
