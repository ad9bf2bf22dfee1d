"""Binned calibration error of a binary event, and the bins it stands on."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.metrics.events import Events, as_events, clean, report
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import argsort, bin_rule, mass_bin, segment_totals

_NORMS = ("l1", "l2", "max")

_NO_BOOTSTRAP = "its bias is of the order of its spread; take debiased_ece with method='centred'"


class Bins(NamedTuple):
    """Sums over the bins of a binary event; arrays are `(..., b)`."""

    weight: jax.Array  # sum of weights
    confidence: jax.Array  # sum of weight * probability
    frequency: jax.Array  # sum of weight * outcome
    gap: jax.Array  # sum of weight * (outcome - probability), summed as differences


@without_bootstrap(_NO_BOOTSTRAP)
def ece(
    p, y, *, num_bins: int = 15, norm: str = "l1", bins: str | Sequence[float] = "width", weights=None
) -> jax.Array:
    r"""Expected calibration error (ECE), the plug-in estimate from bins.

    l1: sum_b (n_b/n) |ybar_b - pbar_b|,   l2: sqrt(sum_b (n_b/n) (ybar_b - pbar_b)^2),   max: max_b |ybar_b - pbar_b|

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}, bool, int or float. From logits:
            `ece(*jaxcal.top_label(logits, labels))`, `ece(*jaxcal.class_wise(logits, labels))` (one value a class) or
            `ece(*jaxcal.binary_event(logits, labels, 1))`. These are different quantities.
        num_bins: number of bins b, static.
        norm: "l1" (ECE), "l2" (RMSCE) or "max" (MCE), static.
        bins: "width": b bins [i/b, (i+1)/b), the last closed at 1, edges exact in the dtype of p. "mass": equal
            weight a bin; equal scores stay together, in bin floor(b * weight of smaller scores / n). Or increasing
            edges from 0 to 1, the same half-open convention.
        weights: counts `(..., n)`; rows of weight 0 are absent.

    Returns:
        `(...)`, float32 for half-precision input. Invalid lanes are NaN; an eager call raises `ValueError` if no lane
        is valid.

    Estimates the binned calibration error, a lower bound of the true one; its bias as an estimate of that is
    positive, up to about sqrt(b/n), also for calibrated forecasts, so it gets no interval: `debiased_ece` does.
    Differentiable in p and weights with the bins held fixed. Cost O(n), "mass" a sort.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> round(float(jaxcal.ece(jnp.array([0.92, 1.0]), jnp.array([1, 0]), num_bins=10)), 4)
        0.46

    References:
        Naeini, Cooper and Hauskrecht, AAAI 2015. Guo et al., ICML 2017.
    """
    require_norm(norm)
    p, y, weights = as_events(p, y, weights)
    return report(_ece(p, y, weights, bin_rule(bins, num_bins), norm), p, y, weights, "ece")


@without_bootstrap(_NO_BOOTSTRAP)
def ace(p, y, *, num_bins: int = 15, weights=None) -> jax.Array:
    r"""Adaptive calibration error (ACE): the mean gap of ranges of equal weight.

    (1/R) sum_r |ybar_r - pbar_r| over the R occupied of `num_bins` equal-mass ranges

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}. Of several classes it is the mean over
            classes: `ace(*jaxcal.class_wise(logits, labels)).mean(0)`.
        num_bins: number of ranges, static. Those of `ece(bins="mass")`: equal scores stay together.
        weights: counts `(..., n)`; rows of weight 0 are absent.

    Returns:
        `(...)`, float32 for half-precision input. Invalid lanes are NaN; an eager call raises `ValueError` if no lane
        is valid.

    It differs from `ece(bins="mass")`, which weights each range by its rows, only where ties or n / num_bins make
    ranges unequal. Biased upwards like `ece`. Other software gives the name to the mean gap of equal-width bins
    (average calibration error). Differentiable in p and weights with the ranges held fixed. Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jnp.array([0.1, 0.1, 0.1, 0.8]), jnp.array([0, 0, 0, 1])
        >>> print(f"{jaxcal.ace(p, y, num_bins=2):.3f} {jaxcal.ece(p, y, num_bins=2, bins='mass'):.3f}")
        0.150 0.125

    References:
        Nixon, Dusenberry, Zhang, Jerfel and Tran, "Measuring Calibration in Deep Learning", CVPR Workshops 2019.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_ace(p, y, weights, bin_rule("mass", num_bins)), p, y, weights, "ace")


def require_norm(norm: str) -> None:
    """Raise unless `norm` is one of those of `norm_of`."""
    if norm not in _NORMS:
        raise ValueError(f"norm must be one of {_NORMS}, got {norm!r}")


def assign(p: jax.Array, weights: jax.Array | None, rule: tuple) -> tuple[jax.Array, int]:
    """Bin of each probability and the number of bins. For "mass" p and weights must have the same batch shape."""
    if rule[0] == "mass":
        return _mass_bin(p, weights, rule[1]), rule[1]
    p, num_bins = jax.lax.stop_gradient(p), len(rule) - 2
    edges = np.asarray(rule[1:])
    equal = np.array_equal(edges, np.arange(num_bins + 1) / num_bins)
    edges = edges.astype(p.dtype)  # rounded on the host: the float nearest to i/b
    # a score that is rounded to p.dtype, as its edge is, is less than one bin from floor(p b)
    if equal and num_bins * float(jnp.finfo(p.dtype).eps) < 0.5:
        return _width_bin(p, edges), num_bins
    return jnp.searchsorted(jnp.asarray(edges[1:-1]), p, side="right").astype(jnp.int32), num_bins


def _width_bin(p, edges):
    """floor(p b), corrected where rounding took it over an edge: five times faster than a binary search."""
    num_bins = len(edges) - 1
    guess = (p.astype(checks.compute_dtype(p)) * num_bins).astype(jnp.int32)
    guess = jnp.clip(guess, 0, num_bins - 1)
    lower, upper = edges[:-1], np.append(edges[1:-1], np.inf).astype(edges.dtype)
    lower, upper = (jnp.asarray(a).at[guess].get(mode="promise_in_bounds") for a in (lower, upper))
    return guess + (p >= upper).astype(jnp.int32) - (p < lower).astype(jnp.int32)


def _mass_bin(p, weights, num_bins):
    weights = jnp.ones(p.shape, p.dtype) if weights is None else weights
    order = argsort(p)
    sorted_p = jnp.take_along_axis(p, order, axis=-1)
    sorted_w = jax.lax.stop_gradient(jnp.take_along_axis(weights, order, axis=-1))
    before = jnp.cumsum(sorted_w, axis=-1) - sorted_w
    first = jnp.concatenate([jnp.ones_like(sorted_p[..., :1], bool), sorted_p[..., 1:] != sorted_p[..., :-1]], axis=-1)
    # the weight before the first of a group of equal scores, carried along the group: it never decreases
    smaller = jax.lax.cummax(jnp.where(first, before, 0), axis=before.ndim - 1)
    bin_sorted = mass_bin(smaller, jnp.sum(sorted_w, axis=-1, keepdims=True), num_bins)
    inverse = argsort(order)
    return jnp.take_along_axis(bin_sorted, inverse, axis=-1)


def bin_by(p, y, weights, rule: tuple, *, whole: bool = False) -> tuple[Events, Callable[[jax.Array], jax.Array]]:
    """The cleaned events, and the function that adds values `(..., n)` up to `(..., b)`; NaN in invalid lanes."""
    events = clean(p, y, weights, whole=whole)
    q, w = events.p, events.weights
    if rule[0] == "mass" and w is not None:
        q, w = jnp.broadcast_arrays(q, w)
    # half-precision scores are compared with edges of their own dtype, everything else is float32
    index, num_bins = assign(q if rule[0] == "mass" else q.astype(p.dtype), w, rule)

    def add(values):
        return segment_totals(values, index, num_bins).astype(q.dtype) * events.poison[..., None]  # in derivatives too

    return events, add


def bin_sums(p: jax.Array, y: jax.Array, weights: jax.Array | None, rule: tuple) -> Bins:
    """Sums a bin, NaN lanes where a row of weight > 0 is invalid. What of them is not used costs nothing under jit."""
    (q, o, w, _), add = bin_by(p, y, weights, rule)
    if w is None:
        return Bins(add(jnp.ones(q.shape[-1:], jnp.int32)), add(q), add(o), add(o - q))
    return Bins(add(w), add(w * q), add(w * o), add(w * (o - q)))


def norm_of(weight, gap, mass, norm: str) -> jax.Array:
    """The l1, l2 or max norm of bins `(..., b)` with these sums of weights and of weight * (outcome - probability)."""
    if norm == "l1":
        return jnp.sum(jnp.abs(gap), axis=-1) / mass
    gap = gap / jnp.where(weight == 0, 1, weight)
    if norm == "max":
        return jnp.max(jnp.abs(gap), axis=-1)
    square = jnp.sum(weight * gap**2, axis=-1) / mass
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))


@jax.jit(static_argnums=(3, 4))
def _ece(p, y, weights, rule, norm):
    sums = bin_sums(p, y, weights, rule)
    return norm_of(sums.weight, sums.gap, clean(p, y, weights).mass, norm)


@jax.jit(static_argnums=3)
def _ace(p, y, weights, rule):
    sums = bin_sums(p, y, weights, rule)
    occupied = sums.weight > 0
    gap = jnp.abs(sums.gap) / jnp.where(occupied, sums.weight, 1)
    return jnp.sum(gap, axis=-1) / jnp.sum(occupied, axis=-1)
