"""CORP: miscalibration, discrimination and uncertainty from isotonic recalibration, without bins or parameters."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal import checks
from jaxcal.losses import ProperLoss, half_brier_loss, per_example, require_loss
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import Groups, calibrated_outcomes, group
from jaxcal.metrics.rank import ordered_groups
from jaxcal.metrics.results import Interval
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import isotonic_regression, sort, total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CorpDecomposition:
    """score = miscalibration - discrimination + uncertainty; arrays `(...)`, in units of the loss.

    Attributes:
        score: mean loss of the forecasts.
        miscalibration: what isotonic recalibration on the same data takes off it, >= 0.
        discrimination: how much better the recalibrated forecasts are than the constant frequency, >= 0.
        uncertainty: mean loss of the constant frequency.
    """

    score: jax.Array
    miscalibration: jax.Array
    discrimination: jax.Array
    uncertainty: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CorpCurve:
    """The distinct forecasts in increasing order and the isotonic estimate of their frequencies; arrays `(..., n)`.

    There are as many entries as rows; those after the last distinct forecast have count 0 and are NaN else.

    Attributes:
        count: rows (sum of weights) of a forecast.
        confidence: the forecast.
        frequency: isotonic estimate of the probability of the event, non-decreasing.
    """

    count: jax.Array
    confidence: jax.Array
    frequency: jax.Array


@without_bootstrap(
    "its bias is of the order of its spread; take the corrected murphy_decomposition with method='centred'"
)
def corp_decomposition(p, y, *, loss: ProperLoss = half_brier_loss, weights=None) -> CorpDecomposition:
    r"""Decomposition of a mean proper loss by isotonic recalibration (CORP).

    With c the isotonic (pooled adjacent violators) fit of the outcomes on the forecasts, rows of equal forecasts pooled
    first, ybar the frequency, S(.) the mean loss of forecasts and d, e divergence and entropy of the loss,

    miscalibration = S(p) - S(c),  discrimination = S(ybar) - S(c) = mean d(ybar, c),  uncertainty = S(ybar) = e(ybar).

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}. From logits by `jaxcal.top_label`,
            `class_wise` (one decomposition a class) or `binary_event`.
        loss: any `jaxcal.ProperLoss`. The default is the half Brier score (p - y)^2, as in the source.
        weights: counts `(..., n)`.

    Returns:
        `CorpDecomposition`, arrays `(...)`, float32 for half-precision input. Invalid lanes are NaN; an eager call
        raises `ValueError` if no lane is valid. Where a certain forecast was wrong, score and miscalibration of the log
        loss are inf and the rest is finite: c is 0 or 1 only where all outcomes are.

    Miscalibration and discrimination are never negative: c is best among all non-decreasing maps of the forecasts, for
    every proper loss at once; what rounding would take below 0 is 0. Miscalibration is 0 if, and for a strictly proper
    loss only if, the forecasts are their own isotonic fit. It is in-sample: its bias as an estimate of the calibration
    error is positive, of order n^(-2/3). Independent of the order of the rows. Differentiable in p and weights with
    order and blocks held fixed. Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> parts = jaxcal.corp_decomposition(jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0, 1, 0, 1]))
        >>> print(f"{parts.score:.3f} = {parts.miscalibration:.3f} - {parts.discrimination:.3f}"
        ...       f" + {parts.uncertainty:.3f}")
        0.275 = 0.150 - 0.125 + 0.250

    References:
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS 2021.
    """
    require_loss(loss)
    p, y, weights = as_events(p, y, weights)
    return report(_decompose(loss, p, y, weights), p, y, weights, "corp_decomposition")


@without_bootstrap("its entries are other forecasts in every resample; take corp_consistency_band")
def corp_reliability_curve(p, y, *, weights=None) -> CorpCurve:
    r"""Data of the CORP reliability diagram: every distinct forecast and its isotonic frequency.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.

    Returns:
        `CorpCurve`, arrays `(..., n)`: the distinct forecasts first, in increasing order; the entries that are left
        have count 0 and NaN, which plots leave out. Invalid lanes are NaN; an eager call raises `ValueError` if no lane
        is valid.

    The frequency is the maximum likelihood estimate among non-decreasing ones, biased towards 0 and 1 at the ends.
    Differentiable in p and weights with order and blocks held fixed. Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> curve = jaxcal.corp_reliability_curve(jnp.array([0.25, 0.5, 0.5, 0.5, 0.75]), jnp.array([1, 0, 1, 0, 1]))
        >>> print(curve.count, curve.confidence, curve.frequency)
        [1. 3. 1. 0. 0.] [0.25 0.5  0.75  nan  nan] [0.5 0.5 1.  nan nan]

    References:
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS 2021.
    """
    p, y, weights = as_events(p, y, weights)
    return report(_curve(p, y, weights), p, y, weights, "corp_reliability_curve")


@without_bootstrap("it is an interval already, of the curve that calibrated forecasts would have")
def corp_consistency_band(key, p, *, level: float = 0.9, num_resamples: int = 999, weights=None) -> Interval:
    r"""Where the frequencies of `corp_reliability_curve` would lie if the forecasts were calibrated.

    Outcomes are drawn from the forecasts, y* ~ Bernoulli(p), and recalibrated; the ends are the k-th smallest and the
    k-th largest of the fits at a forecast, k = floor((1 - level) / 2 * (num_resamples + 1)).

    Args:
        key: JAX random key; lanes get draws of their own.
        p: probabilities `(..., n)` in [0, 1].
        level: probability of each interval, static.
        num_resamples: static, at least 2 / (1 - level) - 1.
        weights: whole counts `(..., n)`: a row of weight w has w outcomes.

    Returns:
        `Interval(lower, upper)`, each `(..., n)`, for the forecasts of `corp_reliability_curve(p, y, weights=weights)`
        in their order, NaN after the last. Invalid lanes are NaN; an eager call raises `ValueError` if no lane is
        valid.

    Under calibration the curve lies inside with probability at least `level` at each forecast, for every n; not at all
    of them together. Cost num_resamples times a fit of O(n), and num_resamples * n numbers in memory.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> band = jaxcal.corp_consistency_band(jax.random.key(0), jnp.full(100, 0.3))
        >>> print(f"{band.lower[0]:.1f} {band.upper[0]:.1f}")  # one forecast, so the others are NaN
        0.2 0.4

    References:
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS 2021.
    """
    level = checks.require_level(level)
    num_resamples = checks.require_count(num_resamples, "num_resamples", 1)
    # (1 - 0.9) / 2 * 1000 is 49.999...
    rank = math.floor((1 - level) / 2 * (num_resamples + 1) + 1e-9)
    if rank < 1:
        raise ValueError(
            f"level={level} needs num_resamples >= {math.ceil(2 / (1 - level) - 1 - 1e-9)}, got {num_resamples}"
        )
    checks.require_key(key, "corp_consistency_band")
    p, y, weights = as_events(p, jnp.zeros(jnp.shape(p)[-1:]), weights)
    band = _band(key, p, y, weights, num_resamples, rank)
    return report(band, p, y, weights, "corp_consistency_band", whole=True)


def recalibrated(groups: Groups) -> jax.Array:
    """Isotonic estimate of the frequency of each group."""
    frequency = groups.positive / jnp.where(groups.weight > 0, groups.weight, 1)
    return isotonic_regression(frequency, groups.weight)


@jax.jit(static_argnums=0)
def _decompose(loss, p, y, weights):
    events = clean(p, y, weights)
    groups = group(events)
    z, m, s = groups
    n, fit = total(m), recalibrated(groups)
    forecast, truth = _log_pair(z), _log_pair(fit)
    constant = (total(s) / n)[..., None]
    overall = _log_pair(constant)

    def excess(event, count):
        """Loss of the forecasts, and how much of it recalibration takes off, where the event came out so."""
        label = jnp.full((), event, jnp.int32)
        before, after = (per_example(loss, q, jnp.broadcast_to(label, q.shape[:-1])) for q in (forecast, truth))
        # an outcome that never came costs nothing, also where it was impossible; selected before it is multiplied by 0
        seen = count > 0
        gain = jnp.where(seen & (z != fit), before - after, 0)
        return count * jnp.where(seen, before, 0), count * gain

    (losses_1, gains_1), (losses_0, gains_0) = excess(1, s), excess(0, m - s)
    spread = m * loss._divergence(jnp.broadcast_to(overall, truth.shape), truth)
    spread = jnp.where((m > 0) & (fit != constant), spread, 0)
    mean = lambda terms: total(terms) / n * events.poison  # noqa: E731
    return CorpDecomposition(
        mean(losses_1 + losses_0),
        _not_negative(mean(gains_1 + gains_0)),
        _not_negative(mean(spread)),
        _not_negative(loss._entropy(overall)[..., 0] * events.poison),
    )


def _log_pair(q):
    """Log-probabilities of 0 and 1, `(..., 2)`; certain ones have derivative 0."""
    log_0 = jnp.where(q < 1, jnp.log1p(-jnp.where(q < 1, q, 0)), -jnp.inf)
    log_1 = jnp.where(q > 0, jnp.log(jnp.where(q > 0, q, 1)), -jnp.inf)
    return jnp.stack([log_0, log_1], axis=-1)


def _not_negative(x):
    return jnp.where(x <= 0, 0, x)  # NaN stays NaN, -0 does not


@jax.jit
def _curve(p, y, weights):
    events = clean(p, y, weights)
    groups = ordered_groups(events)
    poison = events.poison[..., None]
    full = groups.weight > 0
    blank = lambda values: jnp.where(full, values, jnp.nan) * poison  # noqa: E731
    return CorpCurve(groups.weight * poison, blank(groups.score), blank(recalibrated(groups)))


@partial(jax.jit, static_argnums=(4, 5))
def _band(key, p, y, weights, num_resamples, rank):
    events = clean(p, y, weights, whole=True)
    groups = ordered_groups(events)
    z, m, _ = groups
    outcomes = calibrated_outcomes(groups, weighted=weights is not None)
    fit = lambda key: recalibrated(Groups(z, m, outcomes(key)))  # noqa: E731
    fits = sort(jnp.moveaxis(lax.map(fit, jax.random.split(key, num_resamples)), 0, -1))
    ends = (fits[..., rank - 1], fits[..., num_resamples - rank])
    return Interval(*(jnp.where(m > 0, end, jnp.nan) * events.poison[..., None] for end in ends))
