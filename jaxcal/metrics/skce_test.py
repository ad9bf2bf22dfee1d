"""Tests of calibration on the squared kernel calibration error."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr

from jaxcal import checks
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import group
from jaxcal.metrics.kernels import check_kernel, evaluate, scalar_product, vector_product
from jaxcal.metrics.results import TestResult, test_without_bootstrap
from jaxcal.metrics.skce import (
    as_rows,
    distance_bandwidth,
    estimate,
    gap_bandwidth,
    lane_shape,
    map_rows,
    neighbour_products,
    neighbour_terms,
    quadratic_estimate,
    quadratic_estimate_of_rows,
    refuse_linear_weights,
    report_rows,
)
from jaxcal.resampling import MOST_DRAWS, multinomial
from jaxcal.solvers import argsort, total

# The first method is the estimator's own.
_METHODS = {
    "unbiased": ("bootstrap", "distribution_free"),
    "linear": ("asymptotic", "distribution_free"),
    "biased": ("distribution_free",),
}

# Fewer terms that count than this make the linear test reject too often: its docstring has the measured sizes.
_LEAST_TERMS = 5

# With less variance of the number of events resamples know nothing of the events that might have been: the docstring
# of the test has the sizes.
_LEAST_NOISE = 5.0

# Counts (resamples x rows) that are in memory together: 64 MB in float32.
_BLOCK = 1 << 24

# Up to so many rows the kernel matrix is stored, 4 MB in float32: a product with it is faster than running sums.
_MATRIX_ROWS = 1024


@test_without_bootstrap
def skce_test(
    p,
    y,
    *,
    kernel: str = "laplace",
    estimator: str = "unbiased",
    method: str | None = None,
    key=None,
    num_resamples: int = 1000,
    bandwidth=None,
    weights=None,
) -> TestResult:
    r"""Test that forecasts are calibrated, E[y | p] = p, on an estimate of `skce`; large values reject.

    "bootstrap" (unbiased): T = n SKCE_u against the same sum over rows resampled with replacement, h centred,
    T* = (2/n) sum_{i<j} [h(*i, *j) - hbar(*i) - hbar(*j) + hbar]; p-value (1 + #{T* >= T}) / (1 + num_resamples).
    "asymptotic" (linear): T = sqrt(m) mean(h) / sd(h) over the m = n // 2 pairs of neighbours, divisor m - 1;
    p-value from the normal law. The order of the rows must not depend on the outcomes.
    "distribution_free": valid for every n and law, conservative: exp(-max(0, sqrt(n SKCE_b) - 1)^2 / 2) for the
    biased, exp(-floor(n/2) max(0, SKCE)^2 / 2) for the unbiased and the linear estimate.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        kernel, bandwidth: as in `skce`; the bandwidth may depend on the forecasts, not on the outcomes.
        estimator: "unbiased", "linear" or "biased", static.
        method: static. None is the estimator's own: "bootstrap" for "unbiased", "asymptotic" for "linear",
            "distribution_free" for "biased"; that one goes with every estimator.
        key: JAX random key, for the bootstrap; lanes get draws of their own.
        num_resamples: for the bootstrap, static.
        weights: whole counts `(..., n)`, not for "linear"; the bootstrap draws their sum, at most 2^30.

    Returns:
        `TestResult`, arrays `(...)`. Its statistic is T, or the estimate itself for the distribution-free method. NaN
        in invalid lanes, without a pair of rows, and for the asymptotic method where h does not vary.

    `reliable` is False where sum p (1 - p), the variance of the number of events, is below 5 (bootstrap, asymptotic),
    and for the asymptotic method where (sum h^2)^2 / sum h^4, the number of terms that count, is at most 5. Size at 5 %
    of the asymptotic method: .03 to .05 for uniform, Beta(.3, .7) and nine atoms, .02 within .02 of 0 or 1 at n = 2000;
    flagged: .46, .35 there at n = 50 and 200, .11 for Beta(.1, .9) at n = 100. Of the bootstrap (Laplace, 1,000 data
    sets each, standard error .007): .051 to .071 for uniform, Beta(.3, .7) and nine atoms at n = 50, 200 and 2000, .048
    within .02 of 0 or 1 at n = 2000, .03 for Beta(.1, .9); flagged: .59 and .14 there at n = 50 and 200.

    Not differentiable. Cost a resample: O(n) for Laplace, O(n^2) as a matrix product with all resamples for Gaussian;
    memory O(n) times the resamples of a batch, below 100 MB.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> p = jax.random.uniform(jax.random.key(0), (500,))
        >>> y = jax.random.bernoulli(jax.random.key(1), p**1.5)
        >>> result = jaxcal.skce_test(p, y, key=jax.random.key(2), num_resamples=199)
        >>> float(result.p_value) <= 0.01, bool(result.reliable)
        (True, True)

    References:
        Widmann, Lindsten and Zachariah, NeurIPS 2019, section 5; Arcones and Gine, Annals of Statistics 1992, for the
        bootstrap.
    """
    _check_method(estimator, method, key, num_resamples, weights, "skce_test")
    bandwidth = check_kernel(kernel, bandwidth)
    p, y, weights = as_events(p, y, weights)
    method = method or _METHODS[estimator][0]
    if method == "bootstrap":
        result = _bootstrap(p, y, weights, bandwidth, key, kernel, num_resamples)
    else:
        result = _closed_form(p, y, weights, bandwidth, kernel, estimator, method)
    return report(result, p, y, weights, "skce_test", whole=True)


@test_without_bootstrap
def skce_multiclass_test(
    logits,
    labels,
    *,
    kernel: str = "laplace",
    estimator: str = "unbiased",
    method: str | None = None,
    key=None,
    num_resamples: int = 1000,
    bandwidth=None,
    weights=None,
) -> TestResult:
    r"""Test that whole probability vectors are calibrated, on an estimate of `skce_multiclass`; large values reject.

    The methods of `skce_test`; |h| <= 2 makes the distribution-free p-values exp(-max(0, sqrt(n SKCE_b / 2) - 1)^2 / 2)
    and exp(-floor(n/2) max(0, SKCE)^2 / 8).

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        kernel, bandwidth: as in `skce_multiclass`.
        estimator, method, key, num_resamples: as in `skce_test`.
        weights: whole counts `(..., n)`, not for "linear"; the bootstrap draws their sum, at most 2^30.

    Returns:
        `TestResult`, arrays `(...)`, as `skce_test`; for two classes the p-value of that test, with the same draws for
        sorted rows.

    Not differentiable. Cost O(n^2 (k + num_resamples)), lane after lane, in blocks; memory O(n) times the resamples of
    a batch.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> logits = 2 * jax.random.normal(jax.random.key(0), (300, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits / 2)  # overconfident by a factor of 2
        >>> result = jaxcal.skce_multiclass_test(logits, labels, key=jax.random.key(2), num_resamples=199)
        >>> float(result.p_value) <= 0.01
        True

    References:
        Widmann, Lindsten and Zachariah, NeurIPS 2019, section 5.
    """
    _check_method(estimator, method, key, num_resamples, weights, "skce_multiclass_test")
    bandwidth = check_kernel(kernel, bandwidth)
    logits, labels, weights = as_rows(logits, labels, weights, "skce_multiclass_test")
    method = method or _METHODS[estimator][0]
    arguments = (logits, labels, weights, bandwidth)
    if method == "bootstrap":
        result, poison = _bootstrap_multiclass(*arguments, key, kernel, num_resamples)
    else:
        result, poison = _closed_form_multiclass(*arguments, kernel, estimator, method)
    return report_rows(result, poison, logits, labels, weights, "skce_multiclass_test")


def _check_method(estimator, method, key, num_resamples, weights, call):
    if estimator not in tuple(_METHODS):  # what cannot be hashed is no estimator either
        raise ValueError(f"estimator must be one of {tuple(_METHODS)}, got {estimator!r}")
    if method is not None and method not in _METHODS[estimator]:
        raise ValueError(f"method for estimator={estimator!r} must be one of {_METHODS[estimator]}, got {method!r}")
    refuse_linear_weights(estimator, weights)
    if (method or _METHODS[estimator][0]) == "bootstrap":
        if key is None:
            raise ValueError('method="bootstrap" draws resamples and needs a key, e.g. jax.random.key(0)')
        checks.require_key(key, call)
        checks.require_count(num_resamples, "num_resamples", 1)


# --- laws in closed form ---


@partial(jax.jit, static_argnums=(4, 5, 6))
def _closed_form(p, y, weights, bandwidth, kernel, estimator, method):
    events = clean(p, y, weights, whole=True)
    if estimator != "linear":
        value = quadratic_estimate(events, kernel, bandwidth, estimator)
        return _free_of_distribution(value, estimator, events.mass, 1)
    h = neighbour_terms(events, kernel, bandwidth) * events.poison[..., None]
    return _of_terms(h, method, events.mass, total(events.p * (1 - events.p)), 1)


@partial(jax.jit, static_argnums=(4, 5, 6))
def _closed_form_multiclass(logits, labels, weights, bandwidth, kernel, estimator, method):
    def one(rows):
        nu, n = distance_bandwidth(rows, bandwidth), total(rows.w)
        if estimator != "linear":
            value = quadratic_estimate_of_rows(rows, kernel, nu, estimator) * rows.poison
            return _free_of_distribution(value, estimator, n, 2), rows.poison
        h = neighbour_products(rows, kernel, nu) * rows.poison
        return _of_terms(h, method, n, total(_noise(rows.p)), 2), rows.poison

    return map_rows(one, logits, labels, weights)


def _noise(p):
    """Variance of the outcome of a row, p (1 - p) for two classes."""
    return (1 - jnp.sum(p**2, axis=-1)) / 2


def _of_terms(h, method, n, noise, bound) -> TestResult:
    m = h.shape[-1]
    mean = total(h) / (m or jnp.nan)
    if method == "distribution_free":
        return _free_of_distribution(mean, "linear", n, bound)
    variance = total((h - mean[..., None]) ** 2) / (m - 1 if m > 1 else jnp.nan)
    # equal terms have no law, and a variance that is the rounding of their mean
    rounding = (8 * jnp.finfo(h.dtype).eps) ** 2 * total(h**2) / (m or 1)
    statistic = mean / jnp.sqrt(jnp.where(variance > rounding, variance, jnp.nan) / m)
    return TestResult(statistic, ndtr(-statistic), _enough_terms(h) & (noise >= _LEAST_NOISE))


def _enough_terms(h):
    """Whether the terms that count, m if all |h| are equal and 1 if one has all the variance, are enough."""
    return total(h**2) ** 2 > _LEAST_TERMS * total(h**4)


def _free_of_distribution(value, estimator, n, bound) -> TestResult:
    """Hoeffding's and McDiarmid's inequalities for |h| <= bound."""
    if estimator == "biased":
        exponent = jnp.maximum(0, jnp.sqrt(n * value / bound) - 1) ** 2 / 2
    else:
        exponent = jnp.floor(n / 2) * jnp.maximum(value, 0) ** 2 / (2 * bound**2)
    # not the NaN of the estimate: compiled for n = 1 it is a constant, and what maximum(NaN, 0) gives then is undefined
    p_value = jnp.where(n > 1, jnp.exp(-exponent), jnp.nan)
    return TestResult(value, p_value, ~jnp.isnan(p_value))


# --- bootstrap ---


@partial(jax.jit, static_argnums=(5, 6))
def _bootstrap(p, y, weights, bandwidth, key, kernel, num_resamples):
    events = clean(p, y, weights, whole=True)
    lanes = jnp.broadcast_shapes(*(a.shape[:-1] for a in (events.p, events.y, events.w)))
    n = events.p.shape[-1]
    nu = jnp.broadcast_to(gap_bandwidth(group(events), bandwidth), lanes).reshape(-1)
    order = jnp.broadcast_to(argsort(events.p), (*lanes, n))
    arrays = (events.p, events.y - events.p, events.w)
    arrays = (jnp.take_along_axis(jnp.broadcast_to(a, order.shape), order, axis=-1).reshape(-1, n) for a in arrays)
    poison = jnp.broadcast_to(events.poison, lanes).reshape(-1)

    def one(lane):
        nu, z, r, w, poison, key = lane
        if n <= _MATRIX_ROWS:  # the resamples share the matrix
            matrix = evaluate(kernel, (z[:, None] - z) ** 2, nu)
            product = lambda v: r * jnp.dot(matrix, r * v, precision=lax.Precision.HIGHEST)  # noqa: E731
        else:
            product = lambda v: r * scalar_product(kernel, z, r * v, nu)  # noqa: E731
        return _resample(product, r**2, z * (1 - z), w, weights is not None, poison, key, num_resamples)

    keys = jax.random.split(key, nu.size)
    return jax.tree.map(lambda a: a.reshape(lanes), lax.map(one, (nu, *arrays, poison, keys)))


@partial(jax.jit, static_argnums=(5, 6))
def _bootstrap_multiclass(logits, labels, weights, bandwidth, key, kernel, num_resamples):
    def one(rows, key):
        nu = distance_bandwidth(rows, bandwidth)
        product = lambda v: vector_product(kernel, rows.p, rows.residuals, v[:, None], nu)[:, 0]  # noqa: E731
        squares = jnp.sum(rows.residuals**2, axis=-1)
        weighted = weights is not None
        return _resample(
            product, squares, _noise(rows.p), rows.w, weighted, rows.poison, key, num_resamples
        ), rows.poison

    keys = jax.random.split(key, math.prod(lane_shape(logits, labels, weights)))
    return map_rows(one, logits, labels, weights, keys)


def _resample(product, squares, noise, w, weighted, poison, key, num_resamples) -> TestResult:
    """The test of one lane: `product` gives H v for the matrix of h_ij, `squares` is its diagonal, `w` the counts.

    `noise` is the variance of the outcome of each row.

    T* = (2/n) sum_{i<j} (h - hbar_i - hbar_j + hbar) over resampled rows, written for counts c with d = c - w:
    T* = (d'Hd + c'(2 hbar - diag H) - w'hbar) / n, where nothing of order n^2 cancels.
    """
    w = jnp.where(jnp.isnan(poison), 1, w)  # draws of an invalid lane must end
    n = total(w)
    products = product(w)
    statistic = n * estimate("unbiased", total(w * products), total(w * squares), n)
    means = products / n
    constant = total(w * means)

    poison = jnp.where(n <= MOST_DRAWS, poison, jnp.nan)
    count = jnp.where(n <= MOST_DRAWS, w, 1).astype(jnp.int32) if weighted else None

    def exceeds(c):
        d = c - w
        return (total(d * product(d)) + total(c * (2 * means - squares)) - constant) / n >= statistic

    # resamples of a batch share one pass over the kernel; spare ones of the last batch are not counted
    num_batches = -(-num_resamples * w.size // _BLOCK)
    size = -(-num_resamples // num_batches)
    words = jax.random.bits(key, (num_batches * size, 2), jnp.uint32).reshape(num_batches, size, 2)
    batch = lambda words: jax.vmap(exceeds)(multinomial(words, w.size, count).astype(w.dtype))  # noqa: E731
    exceed = lax.map(batch, words).reshape(-1)[:num_resamples]
    p_value = (1 + jnp.sum(exceed)) / (1 + num_resamples) + 0 * statistic
    return TestResult(statistic * poison, p_value * poison, total(w * noise) >= _LEAST_NOISE)
