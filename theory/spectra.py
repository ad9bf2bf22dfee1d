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
# 256 nodes under the map below give every moment to 1e-13 for shapes from 0.05 to 1e3 and any shift, see the tests.
_BETA_NODES = 256
_STRETCH = 6.0


class _Spectrum:
    """What all spectra share: expectations over their atoms."""

    @in_float64
    def moment(self, power: int, order: int, regularization=0.0, tau=1.0):
        r"""E[s^j / (lambda + tau s)^k], with j = `power` and k = `order`; `regularization` and `tau` broadcast."""
        values, weights = self._atoms()
        lam, tau = (jnp.asarray(a, float)[..., None] for a in (regularization, tau))
        return jnp.sum(weights * values**power / (lam + tau * values) ** order, axis=-1)

    @in_float64
    def mean(self):
        """E[s]."""
        values, weights = self._atoms()
        return jnp.sum(weights * values, axis=-1)

    @in_float64
    def inverse_mean(self):
        """E[1/s], which scales the signal: c = -Phi^{-1}(e*) / sqrt(E[1/s])."""
        return inverse_mean(self)

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
    poles lie at distance pi from the real line however close to 0 the spectrum comes: relative error below 1e-13.

    Args:
        alpha, beta: positive shapes; arrays broadcast with every other argument of the functions that take a spectrum.
        shift: smallest eigenvalue, >= 0. E[1/s] is infinite for shift = 0 and alpha <= 1.

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
        _reject(self.shift, lambda s: (s >= 0) & (s < np.inf), "shift", "non-negative and finite")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Broadcast shape of the parameters."""
        return jnp.broadcast_shapes(*(np.shape(a) for a in (self.alpha, self.beta, self.shift)))

    def lanes(self, shape, xp):
        """The spectrum with flat parameters, one entry for each element of `shape`; `xp` is NumPy or jax.numpy."""
        parameters = (xp.asarray(a, dtype=float) for a in (self.alpha, self.beta, self.shift))
        return BetaSpectrum(*(xp.broadcast_to(a, shape).reshape(-1) for a in parameters))

    def _atoms(self):
        alpha, beta, shift = (jnp.asarray(a, float)[..., None] for a in (self.alpha, self.beta, self.shift))
        # the density of y = logit(u) is u^alpha (1-u)^beta; 1/(shift + u)^k moves its left tail to log(shift)
        mode = jnp.log(alpha / beta)
        gauss = jnp.sqrt(2 * _DECAY * (1 / alpha + 1 / beta))
        left = jnp.minimum(mode, jnp.log(jnp.clip(shift, 1e-18, 1))) - _DECAY / alpha - gauss
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
        return (alpha > 0) & (alpha < jnp.inf) & (beta > 0) & (beta < jnp.inf) & (shift >= 0) & (shift < jnp.inf)

    def inverse_mean_exists(self):
        """Whether E[1/s] is finite."""
        return (jnp.asarray(self.shift) > 0) | (jnp.asarray(self.alpha) > 1)

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
            _reject(self.weights, lambda w: np.sum(w, -1) > 0, "weights", "not all zero")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the atoms."""
        return jnp.broadcast_shapes(np.shape(self.values)[:-1], np.shape(self.weights)[:-1])

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

    def inverse_mean_exists(self):
        """Whether E[1/s] is finite: always."""
        return jnp.ones(self.batch_shape, bool)

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
        Arguments,
        method, measured accuracy and errors: `theory.sample_spectrum.population_eigenvalues`.
        """
        from theory.sample_spectrum import population_eigenvalues

        return cls(*population_eigenvalues(X, labels=labels, num_atoms=num_atoms))


def inverse_mean(spectrum):
    """E[1/s]; inf where it does not exist."""
    values, weights = spectrum._atoms()
    return jnp.where(spectrum.inverse_mean_exists(), jnp.sum(weights / values, axis=-1), jnp.inf)


def _lists_to_arrays(spectrum) -> None:
    """A list would be a pytree of scalars."""
    for name, value in vars(spectrum).items():
        if isinstance(value, (list, tuple)):
            object.__setattr__(spectrum, name, np.asarray(value))


def _reject(value, allowed, name: str, what: str) -> None:
    """Refuse concrete parameters of no spectrum; leaves of a transformation (tracers, placeholders) pass."""
    if not isinstance(value, jax.core.Tracer) and isinstance(value, (int, float, list, tuple, np.ndarray, jax.Array)):
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" or not np.all(allowed(array)):
            raise ValueError(f"{name} must be {what}, got {value}")
