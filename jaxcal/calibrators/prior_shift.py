"""Prior shift: forecasts for a population with other class frequencies, which may have to be estimated."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.fit import Fit
from jaxcal.losses import weighted_mean
from jaxcal.solvers import has_softmax, log_mixture, log_softmax, mixture_weights, shifted
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PriorFit(Fit):
    """An estimated prior. Calling it on logits gives the log-probabilities under it, as `adjust_prior` does.

    Attributes:
        prior: class frequencies that the forecasts are made for, `(..., k)`, sum 1.
        new_prior: estimated frequencies `(..., k)`, sum 1; 0 for classes that would only lower the likelihood.
        gain: mean log-likelihood of the rows above that of no shift, `(...)`, in nats.
        gap: the mean log-likelihood is at most this far below its maximum, `(...)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: Newton steps, int32 `(...)`.
    """

    prior: jax.Array
    new_prior: jax.Array
    gain: jax.Array
    gap: jax.Array
    status: jax.Array
    num_steps: jax.Array

    def __call__(self, logits) -> jax.Array:
        """Log-probabilities of the shape of the logits `(..., n, k)`, or `(..., k)` for a single fit."""
        logits = checks.as_logits(logits)
        old, new = (_as_prior(p, "the prior of the fit", logits) for p in (self.prior, self.new_prior))
        result = _adjusted(logits, old, new)
        return result if checks.is_traced(result) else _checked(result, logits, old, new, self.check)


def adjust_prior(logits, prior, new_prior) -> jax.Array:
    r"""Forecasts for a population in which the classes have other frequencies and look the same as before.

    log p'_j = log p_j + log(prior'_j / prior_j) + const

    Args:
        logits: `(..., n, k)`, or `(..., k)` with priors `(k,)`.
        prior: class frequencies that the forecasts are made for, `(..., k)`; its batch axes and those of the logits
            broadcast. Counts will do: only ratios within a prior matter.
        new_prior: class frequencies of the new population, `(..., k)`. A class of frequency 0 gets -inf.

    Returns:
        Log-probabilities of the broadcast shape, in the dtype of the logits; masked classes stay masked. NaN for
        invalid logits and priors, for rows with a finite logit on a class of old frequency 0, and where no class is
        left; an eager call raises `ValueError` if no lane is usable.

    Exact for calibrated forecasts under label shift, p(x | y) unchanged; it does not repair anything else.
    Differentiable in all three. Cost O(n k).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> log_p = jaxcal.adjust_prior(jnp.log(jnp.array([0.8, 0.2])), jnp.array([0.5, 0.5]), jnp.array([0.1, 0.9]))
        >>> [f"{p:.4f}" for p in jnp.exp(log_p)]
        ['0.3077', '0.6923']

    References:
        Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities",
        Neural Computation 2002, eq. 2.4.
    """
    logits = checks.as_logits(logits)
    prior, new_prior = _as_prior(prior, "prior", logits), _as_prior(new_prior, "new_prior", logits)
    result = _adjusted(logits, prior, new_prior)
    return result if checks.is_traced(result) else _checked(result, logits, prior, new_prior, lambda: None)


def estimate_prior(logits, prior, *, weights=None) -> PriorFit:
    r"""Class frequencies of a new population from forecasts alone, by maximum likelihood.

    max over prior' >= 0, sum prior' = 1 of  sum_i w_i log(sum_j prior'_j p_ij / prior_j) / sum_i w_i

    The likelihood is concave. EM (prior'_j <- mean_i p'_ij) has the same limit and takes thousands of steps where
    classes overlap; Newton steps on the simplex take about 8, and end with a bound of what is left, `gap`.

    Args:
        logits: `(..., n, k)` on the new population; no labels are needed.
        prior: class frequencies that the forecasts are made for, `(..., k)`, those of the calibration set; counts will
            do. A class of frequency 0 must be masked in every row.
        weights: counts `(..., n)`.

    Returns:
        `PriorFit` over the broadcast of the leading axes, called on logits like a calibrator. NOT_IDENTIFIED where
        several priors are as likely, as for forecasts that tell two classes by their frequencies only: one of them
        (`prior` itself if it is among them). INVALID_INPUT, NaN, for invalid logits, priors and weights; an eager call
        raises `ValueError` if no lane is usable.

    Consistent and efficient if the forecasts are calibrated for `prior` and p(x | y) has not changed; else wrong
    without a sign: calibrate first, and do not trust it where the inputs themselves are new. Bias O(1/n). A rare class
    may be set to 0 and is then impossible. Differentiable in logits, prior and weights (implicit function theorem, to
    second order); a frequency of 0 has derivative 0. Cost: about 8 steps of O(n k^2 + k^3), memory k^2 a lane.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> y = rng.random(4000) < 0.2  # while the forecasts are made for equal frequencies
        >>> z = jaxcal.binary_logits((rng.normal(np.where(y, 1.0, -1.0)) * 2).astype("float32"))
        >>> fit = jaxcal.estimate_prior(z, np.array([0.5, 0.5]))
        >>> [f"{p:.1f}" for p in fit.new_prior], fit(z).shape
        (['0.8', '0.2'], (4000, 2))

    References:
        Saerens, Latinne and Decaestecker, Neural Computation 2002. Alexandari, Kundaje and Shrikumar, "Maximum
        likelihood with bias-corrected calibration is hard-to-beat at label shift adaptation", ICML 2020.
    """
    logits = checks.as_logits(logits)
    checks.require_rows(logits, "estimate_prior")
    prior = _as_prior(prior, "prior", logits)
    weights = checks.as_weights(weights, logits.shape[:-1], checks.compute_dtype(logits))
    fit = _fit(logits, prior, weights)
    if not checks.is_traced(fit):
        bad = np.asarray(fit.status) == Status.INVALID_INPUT
        checks.raise_if_unusable(bad, lambda: _explain("estimate_prior", logits, prior, prior, weights))
    return fit


def _as_prior(prior, name: str, logits: jax.Array) -> jax.Array:
    array = checks.as_array(prior, name)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real, got dtype {array.dtype}")
    k = logits.shape[-1]
    if array.ndim == 0 or array.shape[-1] != k:
        raise ValueError(f"{name} must have shape (..., k) with the k = {k} of the logits, got {array.shape}")
    if array.ndim > 1 and logits.ndim < 2:
        raise ValueError(f"a stack of priors {array.shape} needs logits (..., n, k), got {logits.shape}")
    try:
        np.broadcast_shapes(array.shape[:-1], logits.shape[:-2])
    except ValueError as error:
        raise ValueError(
            f"the leading axes of {name} {array.shape} do not broadcast against logits {logits.shape}"
        ) from error
    return array.astype(checks.compute_dtype(logits))


def _is_prior(prior):
    return jnp.all((prior >= 0) & (prior < jnp.inf), axis=-1) & jnp.any(prior > 0, axis=-1)


def _by_row(prior):
    return prior[..., None, :] if prior.ndim > 1 else prior


def _log(p):
    return jnp.log(jnp.where(p > 0, p, 1))


def _log_ratio(prior):
    """log of the prior to the largest one: of large counts the logarithm itself would cost digits."""
    return _log(prior / lax.stop_gradient(jnp.max(prior, axis=-1, keepdims=True)))


@jax.jit
def _adjusted(logits, prior, new_prior):
    z = shifted(logits.astype(prior.dtype))
    old, new = _by_row(prior), _by_row(new_prior)
    moved = jnp.where((new == 0) | (z == -jnp.inf), -jnp.inf, z + (_log_ratio(new) - _log_ratio(old)))
    good = _is_prior(old) & _is_prior(new) & ~jnp.any((old == 0) & (z > -jnp.inf), axis=-1)
    return log_softmax(jnp.where(good[..., None], moved, jnp.nan)).astype(logits.dtype)


@jax.jit
def _fit(logits, prior, weights):
    dtype = prior.dtype
    weights = jnp.ones(logits.shape[-2:-1], dtype) if weights is None else weights
    ndim = max(logits.ndim - 1, prior.ndim, weights.ndim)
    (logits,), (prior, weights) = checks.align(ndim + 1, logits.astype(dtype)), checks.align(ndim, prior, weights)
    good = _is_prior(prior)
    mass = jnp.sum(prior, axis=-1, keepdims=True)
    prior = jnp.where(good[..., None], prior / jnp.where(good[..., None], mass, 1), 1 / prior.shape[-1])
    old = prior[..., None, :]

    usable = has_softmax(logits)[..., None]
    log_p = log_softmax(jnp.where(usable, logits, 0))
    valid = usable[..., 0] & ~jnp.any((old == 0) & (logits > -jnp.inf), axis=-1)
    density = jnp.where((log_p == -jnp.inf) | (old == 0), -jnp.inf, log_p - _log(old))
    density = jnp.where(valid[..., None], density, 0)
    proper = jnp.all((weights >= 0) & (weights < jnp.inf), axis=-1) & jnp.any(weights > 0, axis=-1)
    ok = good & proper & jnp.all(valid | ~(weights > 0), axis=-1)
    counts = jnp.where(ok[..., None] & (weights > 0), weights, 0)

    found = mixture_weights(density, counts, prior)
    status = jnp.where(found.identified, Status.CONVERGED, Status.NOT_IDENTIFIED)
    status = jnp.where(found.converged, status, Status.NOT_CONVERGED)
    status = jnp.where(ok, status, Status.INVALID_INPUT).astype(jnp.int32)
    mark = jnp.where(status < Status.NOT_CONVERGED, 1, jnp.nan).astype(dtype)
    gain = weighted_mean(log_mixture(density, found.weights[..., None, :]), counts)
    new = found.weights * mark[..., None]
    return PriorFit(jnp.broadcast_to(prior, new.shape), new, gain * mark, found.gap * mark, status, found.num_steps)


def _checked(result, logits, prior, new_prior, check):
    bad = checks.lanes(np.isnan(np.asarray(result)).any(-1))

    def explain():
        check()
        return _explain("adjust_prior", logits, prior, new_prior, None)

    checks.raise_if_unusable(bad, explain)
    return result


def _explain(call, logits, prior, new_prior, weights) -> str:
    for name, p in (("prior", np.asarray(prior)), ("new_prior", np.asarray(new_prior))):
        bad = ~((p >= 0) & (p < np.inf))
        if bad.any():
            return f"{call}: {name} must be finite and >= 0, got {p[tuple(np.argwhere(bad)[0])]}"
        if (p.sum(-1) == 0).all():
            return f"{call}: {name} is 0 for every class"
    z = np.asarray(logits).astype(np.float64)
    fault = checks.explain_multiclass(z, np.argmax(z, axis=-1), weights, call=call)
    contradiction = (np.asarray(_by_row(prior)) == 0) & (z > -np.inf)
    if "the result is NaN" not in fault:
        return fault
    if contradiction.any():
        j = np.argwhere(contradiction)[0][-1]
        return f"{call}: prior is 0 for class {j}, which has a finite logit; mask it by -inf, or correct the prior"
    return f"{call}: new_prior is 0 for every class that a row allows"
