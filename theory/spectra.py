"""Laws of the eigenvalues of the covariance, as atoms with weights."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from theory.precision import in_float64

# An integrand is left out where it has fallen below exp(-42), 6e-19, of its peak.
_DECAY = 42.0
# A spectrum that reaches closer to 0 has mass of E[1/s] beyond the left end of the nodes.
_LEAST_SHIFT, _LEAST_ALPHA = 1e-9, 1.1
# With 384 nodes every moment of the tests is right to 3e-13, for shapes from 0.05 to 700 and shifts from 1e-9; with 256
# nodes to 1e-9 in the worst case. Shapes of 1e-3 cost digits of E[1/s]: 7e-10 at shift 1e-9.
_BETA_NODES = 384
# The nodes are uniform within this distance of the mode of logit(u) and spread out beyond; 9 does as well.
_STRETCH = 6.0
# Discrete spectra with fewer atoms share one compilation.
_LEAST_ATOMS = 16


class _Spectrum:
    """What all spectra share: expectations over their atoms."""

    @in_float64
    def moment(self, power: int, order: int, regularization=0.0, tau=1.0):
        r"""E[s^j / (lambda + tau s)^k], with j = `power` and k = `order`; `regularization` and `tau` broadcast."""
        values, weights = self._atoms()
        lam, tau = (jnp.asarray(a, float)[..., None] for a in (regularization, tau))
        return self._checked(jnp.sum(weights * values**power / (lam + tau * values) ** order, axis=-1))

    @in_float64
    def mean(self):
        """E[s]."""
        values, weights = self._atoms()
        return self._checked(jnp.sum(weights * values, axis=-1))

    @in_float64
    def inverse_mean(self):
        """E[1/s], which scales the signal: c = -Phi^{-1}(e*) / sqrt(E[1/s])."""
        return self._checked(inverse_mean(self))

    def _checked(self, value):
        """NaN where the parameters are not those of a spectrum, as they can be under a transformation."""
        return jnp.where(self.valid(), value, jnp.nan)

    @in_float64
    def atoms(self):
        """Values `(..., N)` and weights `(..., N)` that sum to 1 and give the moments of the spectrum to rounding."""
        return self._atoms()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BetaSpectrum(_Spectrum):
    r"""Eigenvalues s = shift + u with u ~ Beta(alpha, beta), the family of Figure 8 of Berta et al. (2025).

    Its moments are hypergeometric, e.g. E[1/(lambda + tau s)] = 2F1(1, alpha; alpha + beta; z) / (lambda + tau shift)
    with z = -tau / (lambda + tau shift). They are computed by the trapezoid rule in log(u / (1 - u)), where all their
    poles lie at distance pi from the real line however close to 0 the spectrum comes: relative error below 3e-13, for
    shapes below 0.01 with a shift below 1e-6 up to 1e-9.

    Args:
        alpha, beta: positive shapes; arrays broadcast with every other argument of the functions that take a spectrum.
        shift: smallest eigenvalue, at least 1e-9, or 0 if alpha >= 1.1: closer to that E[1/s] is infinite, or its mass
            lies where floating point cannot see it, and `ValueError` is raised.

    Differentiable in all three.

    Examples:
        >>> import theory
        >>> spectrum = theory.BetaSpectrum(1.0, 5.0)  # most directions easy
        >>> print(f"{spectrum.mean():.6f} {spectrum.moment(1, 2, regularization=0.1, tau=0.5):.6f}")
        0.167667 3.932946
    """

    alpha: Any
    beta: Any
    shift: Any = 1e-3

    def __post_init__(self):
        _lists_to_arrays(self)
        _reject(self.alpha, lambda a: (a > 0) & (a < np.inf), "alpha", "positive and finite")
        _reject(self.beta, lambda b: (b > 0) & (b < np.inf), "beta", "positive and finite")
        _reject(self.shift, lambda s: (s == 0) | ((s >= _LEAST_SHIFT) & (s < np.inf)), "shift", "0 or at least 1e-9")
        if _concrete(self.alpha) and _concrete(self.shift):
            touches = (np.asarray(self.shift) == 0) & (np.asarray(self.alpha) < _LEAST_ALPHA)
            if np.any(touches):
                raise ValueError(
                    f"shift 0 needs alpha >= {_LEAST_ALPHA}, got alpha={self.alpha}: E[1/s] is infinite for alpha <= 1 "
                    "and lies beyond floating point just above"
                )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Broadcast shape of the parameters."""
        return jnp.broadcast_shapes(*(np.shape(a) for a in (self.alpha, self.beta, self.shift)))

    @property
    def num_atoms(self) -> int:
        """Number of atoms that stand for the law."""
        return _BETA_NODES

    def lanes(self, shape, xp):
        """The spectrum with flat parameters, one entry for each element of `shape`; `xp` is NumPy or jax.numpy."""
        parameters = (xp.asarray(a, dtype=float) for a in (self.alpha, self.beta, self.shift))
        return BetaSpectrum(*(xp.broadcast_to(a, shape).reshape(-1) for a in parameters))

    def _atoms(self):
        alpha, beta, shift = (jnp.asarray(a, float)[..., None] for a in (self.alpha, self.beta, self.shift))
        # the density of y = logit(u) is u^alpha (1-u)^beta; 1/(shift + u)^k moves its left tail to log(shift)
        mode = jnp.log(alpha / beta)
        # flanks of the peak, for large shapes; exponential tails follow
        gauss = jnp.sqrt(2 * _DECAY * (1 / jnp.maximum(alpha, 1) + 1 / jnp.maximum(beta, 1)))
        # the integrand of 1/(shift + u)^k falls like u^alpha below log(shift), and at least like u^(alpha - 2) above
        tail = jnp.log(jnp.clip(shift, _LEAST_SHIFT, 1)) - _DECAY / alpha
        tail = jnp.maximum(tail, -_DECAY / jnp.maximum(alpha - 2, 1e-3))
        # at shift 0 that of E[1/s] falls like u^(alpha - 1)
        tail = jnp.where(shift == 0, -_DECAY / jnp.maximum(alpha - 1, _LEAST_ALPHA - 1), tail)
        left = jnp.minimum(mode, 0) + jnp.minimum(tail, -_DECAY / alpha) - gauss
        right = mode + _DECAY / beta + gauss
        ends = [_STRETCH * jnp.arcsinh((end - mode) / _STRETCH) for end in (left, right)]
        node = ends[0] + (ends[1] - ends[0]) * jnp.linspace(0, 1, _BETA_NODES)
        y = lax.stop_gradient(mode + _STRETCH * jnp.sinh(node / _STRETCH))
        jacobian = lax.stop_gradient(jnp.log(jnp.cosh(node / _STRETCH)))
        log_weights = alpha * jax.nn.log_sigmoid(y) + beta * jax.nn.log_sigmoid(-y) + jacobian
        return shift + jax.nn.sigmoid(y), jax.nn.softmax(log_weights, axis=-1)

    def valid(self):
        """Whether the parameters are those of a spectrum, `batch_shape`."""
        alpha, beta, shift = (jnp.asarray(a, float) for a in (self.alpha, self.beta, self.shift))
        shapes = (alpha > 0) & (alpha < jnp.inf) & (beta > 0) & (beta < jnp.inf)
        return shapes & (((shift >= _LEAST_SHIFT) & (shift < jnp.inf)) | ((shift == 0) & (alpha >= _LEAST_ALPHA)))

    def padded(self) -> "BetaSpectrum":
        """Itself, with parameters of one type: the number of atoms is always the same."""
        return BetaSpectrum(*(np.asarray(a, float) for a in (self.alpha, self.beta, self.shift)))

    def quantiles(self, size: int) -> np.ndarray:
        """The quantiles at (i + 1/2)/size, `(size,)`, of an unbatched spectrum: a deterministic sample of its law."""
        from scipy.special import betaincinv  # scipy loads slowly

        return float(self.shift) + betaincinv(float(self.alpha), float(self.beta), (np.arange(size) + 0.5) / size)

    @in_float64
    def sample(self, key, shape=()):
        """Independent eigenvalues, `shape`."""
        return self.shift + jax.random.beta(key, self.alpha, self.beta, shape, dtype=jnp.float64)

    def density(self, values) -> np.ndarray:
        """Density of the law at eigenvalues, for figures; 0 outside the support."""
        from scipy.special import betaln, xlog1py, xlogy

        a, b, u = float(self.alpha), float(self.beta), np.asarray(values, float) - float(self.shift)
        inside = (u >= 0) & (u <= 1)
        u = np.where(inside, u, 0.5)
        return np.where(inside, np.exp(xlogy(a - 1, u) + xlog1py(b - 1, -u) - betaln(a, b)), 0.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiscreteSpectrum(_Spectrum):
    """A finite set of eigenvalues, for example those of a covariance you know.

    Args:
        values: positive eigenvalues `(..., N)`, in any order.
        weights: non-negative `(..., N)`, normalized to sum to 1; equal if None.

    Differentiable in both.

    Examples:
        >>> import theory
        >>> spectrum = theory.DiscreteSpectrum([1.0, 4.0], weights=[3, 1])
        >>> print(spectrum.mean(), spectrum.inverse_mean())
        1.75 0.8125
    """

    values: Any
    weights: Any = None

    def __post_init__(self):
        _lists_to_arrays(self)
        if np.ndim(self.values) == 0 or np.shape(self.values)[-1] == 0:
            raise ValueError(f"values must have shape (..., N) with N >= 1, got {np.shape(self.values)}")
        _reject(self.values, lambda s: (s > 0) & (s < np.inf), "values", "positive and finite")
        if self.weights is not None:
            if np.ndim(self.weights) == 0 or np.shape(self.weights)[-1] != np.shape(self.values)[-1]:
                raise ValueError(
                    f"weights must have as many entries as values, got {np.shape(self.weights)} and "
                    f"{np.shape(self.values)}"
                )
            _reject(self.weights, lambda w: (w >= 0) & (w < np.inf), "weights", "non-negative and finite")
            if _concrete(self.weights) and not np.all(np.sum(self.weights, axis=-1) > 0):
                raise ValueError("weights must not be all zero")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the atoms."""
        return jnp.broadcast_shapes(np.shape(self.values)[:-1], np.shape(self.weights)[:-1])

    @property
    def num_atoms(self) -> int:
        """Number of eigenvalues."""
        return np.shape(self.values)[-1]

    def lanes(self, shape, xp):
        """The spectrum with one row of atoms for each element of `shape`; `xp` is NumPy or jax.numpy."""
        rows = (xp.asarray(a) for a in self._atoms())
        return DiscreteSpectrum(*(xp.broadcast_to(a, (*shape, a.shape[-1])).reshape(-1, a.shape[-1]) for a in rows))

    def _atoms(self):
        values = jnp.asarray(self.values, float)
        if self.weights is None:
            return values, jnp.full(values.shape, 1 / values.shape[-1])
        weights = jnp.asarray(self.weights, float)
        shape = jnp.broadcast_shapes(values.shape, weights.shape)
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return jnp.broadcast_to(values, shape), jnp.broadcast_to(weights, shape)

    def valid(self):
        """Whether the eigenvalues are those of a spectrum, `batch_shape`."""
        values, weights = self._atoms()
        return jnp.all((values > 0) & (values < jnp.inf) & (weights >= 0) & (weights < jnp.inf), axis=-1)

    def padded(self) -> "DiscreteSpectrum":
        """The same law, with atoms of weight 0 up to a power of two: other numbers of atoms compile nothing anew."""
        values, weights = (np.asarray(a) for a in self._atoms())
        size = values.shape[-1]
        width = [(0, 0)] * (values.ndim - 1) + [(0, max(_LEAST_ATOMS, 1 << (size - 1).bit_length()) - size)]
        return DiscreteSpectrum(np.pad(values, width, mode="edge"), np.pad(weights, width))

    def quantiles(self, size: int) -> np.ndarray:
        """The quantiles at (i + 1/2)/size, `(size,)`, of an unbatched spectrum."""
        values, weights = (np.asarray(a) for a in self.atoms())
        order = np.argsort(values)
        # a level that meets a step of the distribution function up to rounding belongs to the lower atom
        reached = np.cumsum(weights[order]) * (1 + 1e-12)
        return values[order][np.searchsorted(reached, (np.arange(size) + 0.5) / size).clip(max=len(order) - 1)]

    @in_float64
    def sample(self, key, shape=()):
        """Independent eigenvalues, `shape`."""
        values, weights = self._atoms()
        return jax.random.choice(key, values, shape, p=weights)

    @classmethod
    def from_data(cls, X, *, labels=None, num_atoms: int | None = None) -> "DiscreteSpectrum":
        """The population's spectrum estimated from features `(n, p)`.

        The eigenvalues of a sample covariance spread around those of the population unless p << n, and inverting that
        (Marchenko and Pastur, Silverstein) is what this does. With labels the covariance is that within the classes.
        The atoms have unequal weights (`quantiles(p)` gives equally weighted eigenvalues). Arguments, method, measured
        accuracy and errors: `theory.sample_spectrum.population_eigenvalues`.
        """
        from theory.sample_spectrum import population_eigenvalues

        return cls(*population_eigenvalues(X, labels=labels, num_atoms=num_atoms))


def inverse_mean(spectrum):
    """E[1/s]."""
    values, weights = spectrum._atoms()
    return jnp.sum(weights / values, axis=-1)


def check_spectrum(spectrum) -> None:
    """Raise `TypeError` unless it is a spectrum; eigenvalues alone are the likely mistake."""
    if not isinstance(spectrum, _Spectrum):
        raise TypeError(
            "spectrum must be a theory.BetaSpectrum or a theory.DiscreteSpectrum, which takes eigenvalues; "
            f"got {type(spectrum).__name__}"
        )


def _lists_to_arrays(spectrum) -> None:
    """A list would be a pytree of scalars."""
    for name, value in vars(spectrum).items():
        if isinstance(value, (list, tuple)):
            object.__setattr__(spectrum, name, np.asarray(value))


def _concrete(value) -> bool:
    """Whether it is the caller's number or array, not a tracer or the placeholder of a transformation."""
    known = isinstance(value, (int, float, complex, str, list, tuple, np.ndarray, np.generic, jax.Array))
    return known and not isinstance(value, jax.core.Tracer)


def _reject(value, allowed, name: str, what: str) -> None:
    """Refuse concrete parameters of no spectrum, naming the first bad one."""
    if not _concrete(value):
        return
    array = np.asarray(value)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    good = np.broadcast_to(allowed(array), array.shape) if array.ndim else allowed(array)
    if not np.all(good):
        where = tuple(int(i) for i in np.argwhere(~good)[0])
        raise ValueError(f"{name} must be {what}, got {array[where]}" + (f" at {where}" if where else ""))
