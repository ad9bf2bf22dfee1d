"""Bayesian binning into quantiles: histogram binning averaged over the number of bins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import log_sigmoid
from jax.scipy.special import gammaln

from jaxcal import checks
from jaxcal.calibrators.binary import clean_rows, prepare_binary, report_binary
from jaxcal.calibrators.frequencies import FrequencyFit, Levels, count_up_to, levels, read, usable
from jaxcal.calibrators.histogram import bounded, edge_below
from jaxcal.calibrators.one_vs_rest import binary_calibrator
from jaxcal.solvers import add_pairs, argsort, running_totals, segment_totals, total
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BBQFit(FrequencyFit):
    """The average over K binnings, by the m edges of all of them together.

    Attributes:
        edges: in log-odds, increasing, `(..., m)`; where bins are without rows, some are equal or inf.
        values: probability of outcome 1 below the first edge, between two, and above the last, `(..., m + 1)`.
        complements: probability of outcome 0, `(..., m + 1)`.
        num_bins: number of bins of each binning, int32 `(..., K)`.
        log_scores: log marginal likelihood of the outcomes under each binning, `(..., K)`.
        posterior: probability of each binning, `(..., K)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: 0, for the fit is exact.
        gradient_norm: 0.
    """

    edges: jax.Array
    values: jax.Array
    complements: jax.Array
    num_bins: jax.Array
    log_scores: jax.Array
    posterior: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    def _pair(self, score):
        return _look_up(self, score)


def fit_bbq(
    score, outcomes, *, weights=None, num_bins: Sequence[int] | None = None, prior_count: float = 2.0
) -> BBQFit:
    r"""Bayesian binning into quantiles (BBQ).

    P(1 | s) = sum_B P(B | data) (pos + alpha) / (N + N'/B),   of the bin of s among B bins of equal weight

    with N rows in the bin, pos of outcome 1, and N' = `prior_count`. A bin has the prior Beta(alpha, beta), where alpha
    = m N'/B, beta = (1 - m) N'/B, and m is the midpoint of the bin in p = sigmoid(score). Under a uniform prior on B

    P(B | data) prop. to  prod_bins  G(N'/B) / G(N + N'/B)  G(pos + alpha) / G(alpha)  G(N - pos + beta) / G(beta)

    where G is the gamma function. Of n rows, the first n mod B bins have one more than the others, as in
    `numpy.array_split` (`fit_histogram` spreads them; where B divides n both have the same bins). Equal scores stay
    together, in the bin of the first of them. The edge between two bins is halfway between their nearest p.

    Args:
        score: `(..., n)`, log-odds, infinite ones included; a probability becomes one by `jaxcal.log_odds`.
        outcomes: `(..., n)` in {0, 1}.
        weights: counts `(..., n)`; rows of weight 0 are absent.
        num_bins: numbers of bins B to average over, all different, static. By default all with n^(1/3) / 10 <= B <=
            min(n / 5, 10 n^(1/3)), and 1 where n < 5. With weights n is their sum, and no B is tried that is too large
            for as many rows as the axis has; numbers out of the range of a lane have posterior 0.
        prior_count: N' > 0, the rows that the prior of a whole binning counts for, static.

    Returns:
        `BBQFit` over the broadcast of the leading axes. INVALID_INPUT, NaN, for NaN scores, other outcomes and bad
        weights; an eager call raises `ValueError` if no lane is usable.

    Probabilities are strictly between 0 and 1 (as far as numbers next to 0 exist), so that log losses are finite. They
    are posterior means, biased towards the midpoints by O(N'/n); some software averages frequencies. Neither monotone
    nor continuous in the score. Log scores are right to about two roundings of their size: in float32 that is 0.001 at
    10,000 rows and 0.1 at a million, the relative error of the odds of two binnings. Differentiable in the weights with
    the bins held fixed; the derivative by scores is 0. Cost: a sort of the rows and one of all bins, about 50 n^(2/3)
    of them; a new score is one binary search.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> y = jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1])
        >>> fit = jaxcal.fit_bbq(jaxcal.log_odds(p), y)
        >>> [(int(b), f"{p:.3f}") for b, p in zip(fit.num_bins, fit.posterior)]
        [(1, '0.318'), (2, '0.682')]
        >>> [f"{p:.3f}" for p in fit(jaxcal.log_odds(jnp.array([0.1, 0.6])))]
        ['0.297', '0.695']

    References:
        Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015.
    """
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    by_mass = num_bins is None and weights is not None
    if num_bins is None:
        num_bins = _default_bins(score.shape[-1])
        num_bins = tuple(range(1, num_bins[-1] + 1)) if by_mass else num_bins
    else:
        num_bins = _required_bins(num_bins)
    if not isinstance(prior_count, int | float | np.number) or not 0 < prior_count < math.inf:
        raise ValueError(f"prior_count must be a number > 0, got {prior_count!r}")
    fit = _fit(score, outcomes, weights, num_bins, float(prior_count), by_mass)
    return report_binary(fit, score, outcomes, weights, "fit_bbq")


binary_calibrator(fit_bbq)


def _default_bins(n: int) -> tuple[int, ...]:
    fewest = next(b for b in range(1, n + 1) if 1000 * b**3 >= n)
    most = min(n // 5, round(10 * n ** (1 / 3)))
    most -= most**3 > 1000 * n  # the root is rounded, powers of integers are not
    return tuple(range(fewest, max(fewest, most) + 1))


def _required_bins(num_bins) -> tuple[int, ...]:
    if isinstance(num_bins, str) or not np.iterable(num_bins):
        raise ValueError(f"num_bins must be a sequence of integers >= 1, got {num_bins!r}")
    required = tuple(checks.require_count(b, "each of num_bins", 1) for b in num_bins)
    if not required or len(set(required)) < len(required):
        raise ValueError(f"num_bins must be some integers, all different, got {required}")
    return required


def _in_default_range(num_bins: tuple[int, ...], n):
    """Which of the numbers `_default_bins` has for n rows, `(..., K)` for `(...)`; the last if it has larger ones."""
    b, n = jnp.asarray(num_bins, n.dtype), n[..., None]
    enough = 1000 * b**3 >= n
    fewest = enough & (1000 * (b - 1) ** 3 < n)
    most = (5 * b <= n) & (b**3 <= 1000 * n)
    none_is = ~jnp.any(enough, axis=-1, keepdims=True)
    return (enough & (fewest | most)) | (none_is & (b == b[-1]))


@jax.jit(static_argnums=(3, 4, 5))
def _fit(score, outcomes, weights, num_bins, prior_count, by_mass):
    rows = clean_rows(score, outcomes, weights)
    ok = usable(rows)
    groups = levels(rows._replace(score=bounded(lax.stop_gradient(rows.score))))
    # all bins of all K binnings in a row, (..., m + K); what there is of both outcomes has an axis in front
    of = np.repeat(np.arange(len(num_bins), dtype=np.int32), num_bins)
    prior = jnp.asarray(prior_count / np.repeat(num_bins, num_bins), rows.score.dtype)
    start, counts = _bins(groups, num_bins)
    low = jnp.where(start == 0, -jnp.inf, edge_below(groups, start))
    ends = jnp.stack([low, _following(low, num_bins, jnp.inf)])
    log_p = log_sigmoid(jnp.stack([-ends, ends]))
    middle = jnp.logaddexp(log_p[:, 0], log_p[:, 1]) - math.log(2)
    log_scores = segment_totals(_log_marginal(counts, middle, prior), of, len(num_bins))
    usual = _in_default_range(num_bins, total(rows.weight)) if by_mass else True
    posterior = _softmax(jnp.where(usual, log_scores, -jnp.inf))
    terms = posterior[..., of] * (counts + prior * jnp.exp(middle)) / (counts[0] + counts[1] + prior)
    order = argsort(start)
    edges = jnp.take_along_axis(low, order, axis=-1)
    complements, values = _replaced_in_turn(terms, order, num_bins)

    mark = lambda a: jnp.where(ok[..., None], a, jnp.nan)  # noqa: E731
    floats = map(mark, (edges[..., len(num_bins) :], values, complements))
    tried = jnp.broadcast_to(jnp.asarray(num_bins, jnp.int32), log_scores.shape)
    status = jnp.where(ok, Status.CONVERGED, Status.INVALID_INPUT).astype(jnp.int32)
    nothing = jnp.zeros_like(status)
    return BBQFit(*floats, tried, mark(log_scores), mark(posterior), status, nothing, nothing.astype(edges.dtype))


def _replaced_in_turn(terms, order, num_bins):
    """Sums over the binnings, `(2, ..., m + K)` to `(2, ..., m + 1)`: a term replaces that of the bin before.

    The steps and their sums are pairs, so that what was replaced leaves nothing.
    """
    terms = lax.optimization_barrier(terms)  # a product rounded in one place and fused in another would leave something
    first = np.cumsum((0, *num_bins[:-1]))
    step, rest = add_pairs(terms, 0, -jnp.roll(terms, 1, axis=-1).at[..., first].set(0), 0)
    order = jnp.broadcast_to(order, terms.shape)
    sums, _ = running_totals(*(jnp.take_along_axis(a, order, axis=-1) for a in (step, rest)))
    return jnp.maximum(sums[..., len(num_bins) - 1 :], 0)


def _bins(groups: Levels, num_bins: tuple[int, ...]):
    """First level of each bin, and the weights of both outcomes in it."""
    place = np.concatenate([np.arange(b) for b in num_bins])
    size = np.repeat(num_bins, num_bins).astype(groups.score.dtype)
    count = jnp.stack([groups.zeros, groups.ones])
    some = lax.cumsum((count > 0).astype(jnp.int32), axis=count.ndim - 1)
    high, rest, some = (
        jnp.concatenate([jnp.zeros_like(a[..., :1]), a], axis=-1) for a in (*running_totals(count), some)
    )
    smaller = lax.stop_gradient(high[0] + high[1])
    n = smaller[..., -1:]
    whole = jnp.floor(n / size)
    # compilers divide by a multiplication, 147 / 147 < 1; products of counts are exact
    whole = whole + ((whole + 1) * size <= n) - (whole * size > n)
    start = count_up_to(smaller[..., :-1], place * whole + jnp.minimum(place, n - whole * size), equal=False)
    end = _following(start, num_bins, groups.score.shape[-1])
    inside = lambda a: read(a, end) - read(a, start)  # noqa: E731
    # exactly 0 without a level of this outcome, whatever sums of fractions round to
    return start, jnp.where(inside(some) > 0, jnp.maximum(inside(high) + inside(rest), 0), 0)


def _following(values, num_bins, end):
    """The value of the next bin, `end` for the last of a binning."""
    last = np.cumsum(num_bins) - 1
    return jnp.roll(values, -1, axis=-1).at[..., last].set(end)


def _log_marginal(counts, middle, prior):
    """log of the probability of the outcomes of a bin, in their order, under its Beta prior; 0 for a bin without rows.

    log B(ones + alpha, zeros + beta) - log B(alpha, beta), of which no term of size N log N is formed: with s = x + y
    log B(x, y) = x log(x/s) + y log(y/s) + h(x) + h(y) - h(s), where h(x) = log Gamma(x) - x log x + x.
    """
    log_prior = jnp.log(prior) + middle
    a = jnp.exp(log_prior)  # may be 0 in floating point, which its logarithm is not
    x, n = counts + a, counts[0] + counts[1]
    share, others = jnp.where(x > 0, x, 1) / (n + prior), x[::-1] / (n + prior)
    near_1 = share > others  # where the logarithm takes its digits from 1 - share
    log_share = jnp.where(near_1, jnp.log1p(-jnp.where(near_1, others, 0)), jnp.log(share))
    some = counts > 0
    # h(x) - log Gamma(a), where Gamma(a) = Gamma(1 + a) / a
    seen = _rest_of_log_gamma(jnp.where(some, x, 1)) - gammaln(1 + a) + log_prior
    terms = x * log_share + jnp.where(some, seen, a - a * log_prior)
    return jnp.where(n > 0, terms[0] + terms[1] - _rest_of_log_gamma(n + prior) + gammaln(prior), 0)


def _rest_of_log_gamma(x):
    """log Gamma(x) - x log x + x for x > 0, from 16 on by Stirling's series, whose sixth term is below 1e-16 there."""
    large = x >= 16
    z = jnp.where(large, x, 16)
    q = 1 / z**2
    series = (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q * (1 / 1680 - q / 1188)))) / z
    small = jnp.where(large, 1, x)
    return jnp.where(
        large, (math.log(2 * math.pi) - jnp.log(z)) / 2 + series, gammaln(small) - small * jnp.log(small) + small
    )


def _softmax(log_scores):
    top = jnp.max(log_scores, axis=-1, keepdims=True)
    odds = jnp.exp(jnp.where(log_scores == top, 0, log_scores - top))  # all may be -inf
    return odds / jnp.sum(odds, axis=-1, keepdims=True)


@jax.jit
def _look_up(fit, score):
    index = count_up_to(fit.edges, bounded(score), equal=True)
    return read(fit.complements, index), read(fit.values, index)
