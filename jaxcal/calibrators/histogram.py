"""Histogram binning: every bin of scores has its frequency as probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import log_sigmoid, sigmoid

from jaxcal.calibrators.binary import clean_rows, prepare_binary, report_binary
from jaxcal.calibrators.frequencies import FrequencyFit, Levels, count_up_to, levels, read, usable
from jaxcal.calibrators.one_vs_rest import binary_calibrator
from jaxcal.solvers import bin_rule, mass_bin, segment_totals
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HistogramFit(FrequencyFit):
    """Bins of log-odds, [edge, next edge), and their probabilities.

    Attributes:
        edges: of the bins in log-odds, `(..., b + 1)`, from -inf to inf; bins without rows may have no width.
        values: probability of outcome 1 in each bin, `(..., b)`.
        complements: probability of outcome 0, `(..., b)`.
        counts: rows (sum of weights) of each bin, `(..., b)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: 0, for the fit is exact.
        gradient_norm: 0.
    """

    edges: jax.Array
    values: jax.Array
    complements: jax.Array
    counts: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    def _pair(self, score):
        return _look_up(self, score)


def fit_histogram(
    score, outcomes, *, num_bins: int = 15, bins: str | Sequence[float] = "width", weights=None
) -> HistogramFit:
    r"""Histogram binning: the frequency of outcome 1 in the bin of a score.

    The score is read as log-odds, and the bins are those of p = sigmoid(score). They are compared as log-odds, where
    nothing is rounded to 0 or 1.

    Args:
        score: `(..., n)`, log-odds, infinite ones included; a probability becomes one by `jaxcal.log_odds`.
        outcomes: `(..., n)` in {0, 1}.
        num_bins: number of bins b, static.
        bins: "width": b bins [i/b, (i+1)/b) of p. "mass": equal weight a bin; equal scores stay together, in bin
            floor(b * weight of smaller scores / n), and the edge between two bins is halfway between their nearest
            p. Or increasing edges of p from 0 to 1, the same half-open convention. Static.
        weights: counts `(..., n)`; rows of weight 0 are absent.

    Returns:
        `HistogramFit` over the broadcast of the leading axes. A bin without rows has its midpoint as probability, that
        is, what the score says on average; with "mass" no score falls into such a bin. INVALID_INPUT, NaN, for NaN
        scores, other outcomes and bad weights; an eager call raises `ValueError` if no lane is usable.

    Probabilities are exactly 0 or 1 in bins of one outcome, where a log loss of new data may be infinite;
    `jaxcal.laplace` guards against that. Frequencies are unbiased for the mean probability of their bin, with variance
    p (1 - p) / (rows of the bin): a few dozen rows a bin are few. What varies inside a bin is lost, and scores become
    tied. Differentiable in the weights with the bins held fixed; the derivative by scores is 0. Cost O(n log b), "mass"
    a sort; a new score O(log b).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jnp.array([0.1, 0.2, 0.3, 0.6, 0.7, 0.9]), jnp.array([0, 0, 1, 0, 1, 1])
        >>> fit = jaxcal.fit_histogram(jaxcal.log_odds(p), y, num_bins=3, bins="mass")
        >>> print(fit(jaxcal.log_odds(jnp.array([0.05, 0.4, 0.99]))))
        [0.  0.5 1. ]

    References:
        Zadrozny and Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian
        classifiers", ICML 2001.
    """
    rule = bin_rule(bins, num_bins)
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    return report_binary(_fit(score, outcomes, weights, rule), score, outcomes, weights, "fit_histogram")


binary_calibrator(fit_histogram)


@jax.jit(static_argnums=3)
def _fit(score, outcomes, weights, rule):
    rows = clean_rows(score, outcomes, weights)
    ok = usable(rows)
    rows = rows._replace(score=bounded(lax.stop_gradient(rows.score)))
    if rule[0] == "mass":
        groups = levels(rows)
        edges, index = _mass_edges(groups, rule[1])
        zeros, ones = (segment_totals(a, index, rule[1]) for a in (groups.zeros, groups.ones))
        middle = [(sigmoid(sign * edges[..., 1:]) + sigmoid(sign * edges[..., :-1])) / 2 for sign in (-1, 1)]
    else:
        p = np.asarray(rule[1:])
        with np.errstate(divide="ignore"):
            edges = jnp.asarray(np.log(p) - np.log1p(-p), rows.score.dtype)
        index = count_up_to(edges[1:-1], rows.score, equal=True)
        w, y = rows.weight, rows.outcome
        zeros, ones = (segment_totals(jnp.where(y == event, w, 0), index, len(p) - 1) for event in (0, 1))
        middle = [jnp.asarray((q[1:] + q[:-1]) / 2, edges.dtype) for q in (1 - p, p)]
    mass = zeros + ones
    share = lambda a, empty: jnp.where(mass > 0, a / jnp.where(mass > 0, mass, 1), empty)  # noqa: E731
    mark = lambda a: jnp.where(ok[..., None], a, jnp.nan)  # noqa: E731
    status = jnp.where(ok, Status.CONVERGED, Status.INVALID_INPUT).astype(jnp.int32)
    nothing = jnp.zeros_like(status)
    parts = (edges, share(ones, middle[1]), share(zeros, middle[0]), mass)
    return HistogramFit(*map(mark, parts), status, nothing, nothing.astype(mass.dtype))


def bounded(score):
    """Infinite scores as the largest finite ones: the same probability, and below an edge at +inf."""
    largest = jnp.finfo(score.dtype).max
    return jnp.clip(score, -largest, largest)


def _mass_edges(groups: Levels, num_bins: int):
    """Edges of bins of equal weight, and the bin of each level; `num_bins` for levels that do not exist."""
    weight = lax.stop_gradient(groups.weight)
    smaller = lax.cumsum(weight, axis=weight.ndim - 1) - weight
    index = mass_bin(smaller, jnp.sum(weight, axis=-1, keepdims=True), num_bins)
    index = jnp.where(weight > 0, index, num_bins)
    # how many levels lie below each bin; the first one is in bin 0
    first = count_up_to(
        index, jnp.broadcast_to(jnp.arange(1, num_bins), (*index.shape[:-1], num_bins - 1)), equal=False
    )
    edge = edge_below(groups, first)
    ends = jnp.full((*edge.shape[:-1], 1), jnp.inf, edge.dtype)
    return jnp.concatenate([-ends, edge, ends], axis=-1), index


def edge_below(groups: Levels, first) -> jax.Array:
    """Log-odds halfway in p between level `first` > 0, the first of a bin, and the one below; inf where it is none."""
    last = groups.score.shape[-1] - 1
    score = lax.stop_gradient(groups.score)
    low = read(score, jnp.maximum(first - 1, 0))
    high = jnp.where(first <= last, read(score, jnp.minimum(first, last)), jnp.inf)
    # log-odds of the mean of the two probabilities, from logarithms: 1 - p may be smaller than any rounding
    mean = lambda sign: jnp.logaddexp(log_sigmoid(sign * low), log_sigmoid(sign * high))  # noqa: E731
    edge = mean(1) - mean(-1)
    return jnp.where((edge > low) & (edge < high) & (high < jnp.inf), edge, high)


@jax.jit
def _look_up(fit, score):
    index = count_up_to(fit.edges[..., 1:-1], bounded(score), equal=True)
    return read(fit.complements, index), read(fit.values, index)
