"""Squared kernel calibration error (SKCE) of binary events and of whole probability vectors."""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import group
from jaxcal.metrics.kernels import (
    check_kernel,
    evaluate,
    median_distance,
    median_gap,
    positive_or_nan,
    scalar_product,
    vector_product,
)
from jaxcal.metrics.results import TestResult
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import has_softmax, log_softmax, total

ESTIMATORS = ("unbiased", "biased", "linear")


@without_bootstrap("copies of a row correlate; take skce_test, which centres its resamples")
def skce(p, y, *, kernel: str = "laplace", estimator: str = "unbiased", bandwidth=None, weights=None) -> jax.Array:
    r"""Squared kernel calibration error of a binary event, E[k(p, p') (y - p) (y' - p')] of two independent rows.

    h_ij = k(p_i, p_j) (y_i - p_i) (y_j - p_j).
    "unbiased": sum_{i != j} h_ij / (n (n - 1)), "biased": sum_{ij} h_ij / n^2 >= 0,
    "linear": mean of h_12, h_34, ... over the pairs of neighbours in the order of the rows (an odd last row is left).

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        kernel: "laplace", exp(-|p - p'| / nu), or "gaussian", exp(-(p - p')^2 / (2 nu^2)), static.
        estimator: "unbiased", "biased" or "linear", static.
        bandwidth: nu > 0, one number. None: the median of |p_i - p_j| over all pairs i < j, exact (1 if that is 0).
        weights: whole counts `(..., n)`; not for "linear", which reads the rows in their order.

    Returns:
        `(...)`; float32 for half-precision input. Invalid lanes are NaN, and so is an estimate without a pair of rows;
        an eager call raises `ValueError` if no lane is valid.

    0 for calibrated forecasts and only for them. "biased" is too large by about E[p (1 - p)] / n; with the median
    "unbiased" is so up to the dependence of nu on the rows. Differentiable in p, weights and a given bandwidth; the
    median is held fixed. Cost O(n log n) for Laplace, O(n^2) in blocks of O(n) memory for Gaussian.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jnp.array([0.1, 0.4, 0.6, 0.9]), jnp.array([0, 1, 0, 1])
        >>> print(f"{jaxcal.skce(p, y, bandwidth=0.5):.6f}")
        -0.044174

    References:
        Widmann, Lindsten and Zachariah, NeurIPS 2019, table 1.
    """
    _check_estimator(estimator, weights)
    bandwidth = check_kernel(kernel, bandwidth)
    p, y, weights = as_events(p, y, weights)
    return report(_skce(p, y, weights, bandwidth, kernel, estimator), p, y, weights, "skce", whole=True)


@without_bootstrap("copies of a row correlate; take skce_multiclass_test, which centres its resamples")
def skce_multiclass(
    logits, labels, *, kernel: str = "laplace", estimator: str = "unbiased", bandwidth=None, weights=None
) -> jax.Array:
    r"""Squared kernel calibration error of the whole probability vector (canonical calibration).

    h_ij = k(p_i, p_j) <e_i, e_j>, p = softmax(logits), e = indicator of the label - p; estimators as in `skce`. For two
    classes it is twice `skce` with the bandwidth divided by sqrt(2), because ||p - p'|| = sqrt(2) |p_1 - p'_1|.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        kernel: "laplace", exp(-d / nu), or "gaussian", exp(-d^2 / (2 nu^2)), d = ||p - p'||_2, static.
        estimator: "unbiased", "biased" or "linear", static.
        bandwidth: nu > 0, one number. None: the median of d over all pairs of at most 2048 rows; of more rows, over the
            pairs of 2048 that divide them evenly in the order of a fixed projection (1 if that is 0).
        weights: whole counts `(..., n)`; not for "linear", which reads the rows in their order.

    Returns:
        `(...)`; float32 for half-precision logits. Invalid lanes are NaN, and so is an estimate without a pair of rows;
        an eager call raises `ValueError` if no lane is valid.

    Bias as in `skce`. Differentiable in logits, weights and a given bandwidth (derivative 0 of a distance 0); the
    median is held fixed. Cost O(n^2 k), in blocks of O(nk) memory, lane after lane.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> logits = jnp.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
        >>> print(f"{jaxcal.skce_multiclass(logits, jnp.array([0, 1, 0]), bandwidth=1.0):.6f}")
        0.068565

    References:
        Widmann, Lindsten and Zachariah, NeurIPS 2019, table 1.
    """
    _check_estimator(estimator, weights)
    bandwidth = check_kernel(kernel, bandwidth)
    logits, labels, weights = as_rows(logits, labels, weights, "skce_multiclass")
    value, poison = _skce_multiclass(logits, labels, weights, bandwidth, kernel, estimator)
    return report_rows(value, poison, logits, labels, weights, "skce_multiclass")


def _check_estimator(estimator, weights):
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {ESTIMATORS}, got {estimator!r}")
    refuse_linear_weights(estimator, weights)


def refuse_linear_weights(estimator, weights) -> None:
    """The linear estimator pairs rows by their place, where copies have none."""
    if estimator == "linear" and weights is not None:
        raise ValueError('estimator="linear" pairs the rows in their order and takes no weights; repeat or drop rows')


def estimate(estimator: str, pairs: jax.Array, squares: jax.Array, n: jax.Array) -> jax.Array:
    """From sum_{ij} h_ij and sum_i h_ii over n rows; NaN where there is no pair."""
    if estimator == "biased":
        return jnp.where(pairs < 0, 0, pairs) / n**2  # a square but for rounding
    return (pairs - squares) / jnp.where(n > 1, n * (n - 1), jnp.nan)


# --- binary events ---


@partial(jax.jit, static_argnums=(4, 5))
def _skce(p, y, weights, bandwidth, kernel, estimator):
    events = clean(p, y, weights, whole=True)  # the median distance counts pairs of copies, too
    if estimator == "linear":
        h = neighbour_terms(events, kernel, bandwidth)
        return total(h) / (h.shape[-1] or jnp.nan) * events.poison
    return quadratic_estimate(events, kernel, bandwidth, estimator)


def quadratic_estimate(events, kernel, bandwidth, estimator) -> jax.Array:
    """The unbiased or the biased estimate, `(...)`."""
    groups = group(events)
    z, m, s = groups
    nu = gap_bandwidth(groups, bandwidth)
    pairs = total(groups.gap * scalar_product(kernel, z, groups.gap, nu))
    squares = total(s * (1 - z) ** 2 + (m - s) * z**2)
    return estimate(estimator, pairs, squares, events.mass) * events.poison


def gap_bandwidth(groups, bandwidth) -> jax.Array:
    """The given bandwidth or the median of each lane, with as many axes as lanes have."""
    if bandwidth is None:
        return median_gap(groups)
    return positive_or_nan(bandwidth, groups.score.dtype).reshape((1,) * (groups.score.ndim - 1))


def neighbour_terms(events, kernel, bandwidth) -> jax.Array:
    """h of rows (1, 2), (3, 4), ... in their order, `(..., n // 2)`."""
    nu = gap_bandwidth(group(events), bandwidth)[..., None]
    m = events.p.shape[-1] // 2
    r = events.y - events.p
    gap = events.p[..., 0 : 2 * m : 2] - events.p[..., 1 : 2 * m : 2]
    return evaluate(kernel, gap**2, nu) * r[..., 0 : 2 * m : 2] * r[..., 1 : 2 * m : 2]


# --- probability vectors ---


class Rows(NamedTuple):
    """One lane of cleaned forecasts of k classes; rows that cannot be read weigh 0 or poison the lane."""

    p: jax.Array  # (n, k)
    residuals: jax.Array  # (n, k), indicator of the label - p
    w: jax.Array  # (n,)
    poison: jax.Array  # (), 1 or NaN


def as_rows(logits, labels, weights, call: str):
    """Static checks of logits `(..., n, k)`, labels and weights `(..., n)`."""
    logits = checks.as_logits(logits)
    checks.require_rows(logits, call)
    labels = checks.as_labels(labels, logits)
    return logits, labels, checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))


def report_rows(result, poison, logits, labels, weights, call: str):
    """`result`, after an eager call without any valid lane has raised."""
    if not checks.is_traced(result, poison):
        explain = lambda: checks.explain_multiclass(logits, labels, weights, call=call, whole=True)  # noqa: E731
        checks.raise_if_unusable(np.isnan(poison), explain)
    if isinstance(result, TestResult):
        result = replace(result, reliable=result.reliable & ~jnp.isnan(result.p_value))
    return result


def lane_shape(logits, labels, weights) -> tuple[int, ...]:
    """The broadcast of the leading axes."""
    return jnp.broadcast_shapes(*_leads(logits, labels, weights))


def _leads(logits, labels, weights):
    return [logits.shape[:-2], labels.shape[:-1], () if weights is None else weights.shape[:-1]]


def map_rows(fn, logits, labels, weights, *others):
    """`fn(rows, *others)` of each lane, one after the other; others have the lanes on their first axis.

    A lane finds its logits by their number, so that nothing of size k is copied by broadcasting.
    """
    lanes = lane_shape(logits, labels, weights)
    numbers = [
        jnp.broadcast_to(jnp.arange(math.prod(lead)).reshape(lead), lanes).reshape(-1)
        for lead in _leads(logits, labels, weights)
    ]
    n, k = logits.shape[-2:]
    dtype = checks.compute_dtype(logits)
    logits, labels = logits.reshape(-1, n, k), labels.reshape(-1, n)
    weights = jnp.ones((1, n), dtype) if weights is None else weights.reshape(-1, n)

    def one(lane):
        (row, label, weight), other = lane
        return fn(_clean_rows(logits[row].astype(dtype), labels[label], weights[weight]), *other)

    results = lax.map(one, (numbers, others))
    return jax.tree.map(lambda a: a.reshape(*lanes, *a.shape[1:]), results)


def _clean_rows(logits, labels, weights) -> Rows:
    k = logits.shape[-1]
    present = weights > 0
    valid = (labels >= 0) & (labels < k) & has_softmax(logits)
    ok = jnp.all(valid | ~present) & jnp.all((weights >= 0) & (weights < jnp.inf)) & jnp.any(present)
    ok &= jnp.all(weights == jnp.round(weights))  # pairs of copies count
    usable = valid & present
    log_p = log_softmax(jnp.where(usable[:, None], logits, 0))
    p = jnp.exp(log_p)
    own = labels[:, None] == jnp.arange(k)
    # 1 - p of a confident row keeps its digits
    residuals = jnp.where(own, -jnp.expm1(log_p), -p)
    dtype = logits.dtype
    return Rows(p, residuals, jnp.where(present, weights, 0), jnp.where(ok, 1, jnp.nan).astype(dtype))


@partial(jax.jit, static_argnums=(4, 5))
def _skce_multiclass(logits, labels, weights, bandwidth, kernel, estimator):
    def one(rows):
        nu = distance_bandwidth(rows, bandwidth)
        if estimator == "linear":
            h = neighbour_products(rows, kernel, nu)
            return total(h) / (h.shape[-1] or jnp.nan) * rows.poison, rows.poison
        return quadratic_estimate_of_rows(rows, kernel, nu, estimator) * rows.poison, rows.poison

    return map_rows(one, logits, labels, weights)


def quadratic_estimate_of_rows(rows: Rows, kernel, bandwidth, estimator) -> jax.Array:
    """The unbiased or the biased estimate of one lane."""
    products = vector_product(kernel, rows.p, rows.residuals, rows.w[:, None], bandwidth)[:, 0]
    squares = total(rows.w * jnp.sum(rows.residuals**2, axis=-1))
    return estimate(estimator, total(rows.w * products), squares, total(rows.w))


def distance_bandwidth(rows: Rows, bandwidth) -> jax.Array:
    """The given bandwidth or the median of the lane, `()`."""
    return median_distance(rows.p, rows.w) if bandwidth is None else positive_or_nan(bandwidth, rows.p.dtype)


def neighbour_products(rows: Rows, kernel, bandwidth) -> jax.Array:
    """h of rows (1, 2), (3, 4), ... in their order, `(n // 2,)`."""
    m = len(rows.p) // 2
    first, second = (Rows(*(a[start : 2 * m : 2] for a in rows[:3]), rows.poison) for start in (0, 1))
    squares = jnp.sum((first.p - second.p) ** 2, axis=-1)
    return evaluate(kernel, squares, bandwidth) * jnp.sum(first.residuals * second.residuals, axis=-1)
