"""The Brier score of binned forecasts in parts: reliability, resolution, uncertainty, and what the bins hide."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxcal.metrics.binned import assign
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import bin_rule, segment_totals, total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MurphyDecomposition:
    """brier = reliability - resolution + uncertainty + within_bin_variance - within_bin_covariance; arrays `(...)`.

    Attributes:
        brier: mean of (p - y)^2, the half Brier scale of `jaxcal.half_brier_loss`.
        reliability: mean squared distance of forecast and frequency of the bins; 0 is best.
        resolution: variance of the frequency between the bins; large is good.
        uncertainty: variance of the outcomes.
        within_bin_variance: mean variance of the forecasts inside a bin, 0 if a bin holds one value.
        within_bin_covariance: twice the mean covariance of forecasts and outcomes inside a bin.
    """

    brier: jax.Array
    reliability: jax.Array
    resolution: jax.Array
    uncertainty: jax.Array
    within_bin_variance: jax.Array
    within_bin_covariance: jax.Array

    @property
    def generalized_resolution(self) -> jax.Array:
        """resolution - within_bin_variance + within_bin_covariance: brier = reliability - this + uncertainty."""
        return self.resolution - self.within_bin_variance + self.within_bin_covariance


@without_bootstrap(
    "the bias of its reliability is of the order of its spread; bind bias_corrected=True and take method='centred'",
    unless="bias_corrected",
)
def murphy_decomposition(
    p, y, *, num_bins: int = 15, bins="width", bias_corrected: bool = False, weights=None
) -> MurphyDecomposition:
    r"""Decomposition of the (half) Brier score over bins, which adds up whatever the bins are.

    With n_b rows, mean forecast pbar_b and frequency ybar_b in bin b, and frequency ybar of all,

    reliability = sum_b (n_b/n) (pbar_b - ybar_b)^2,   resolution = sum_b (n_b/n) (ybar_b - ybar)^2,
    uncertainty = ybar (1 - ybar),   within-bin variance = (1/n) sum_b sum_{i in b} (p_i - pbar_b)^2,
    within-bin covariance = (2/n) sum_b sum_{i in b} (p_i - pbar_b) (y_i - ybar_b).

    `bias_corrected` subtracts c = (1/n) sum_{b: n_b > 1} n_b ybar_b (1 - ybar_b) / (n_b - 1) from the reliability and
    c - uncertainty / (n - 1) from the resolution, and multiplies the uncertainty by n / (n - 1): the sum stays.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}. Of several classes:
            `murphy_decomposition(*jaxcal.class_wise(logits, labels))`, one decomposition a class, whose sum over the
            classes (axis 0) decomposes `jaxcal.brier_loss`.
        num_bins, bins: as for `jaxcal.ece`: "width" bins [i/b, (i+1)/b) with the last closed at 1, "mass", or edges.
        bias_corrected: the Ferro-Fricker correction, static.
        weights: counts `(..., n)`; n and n_b are sums of weights.

    Returns:
        `MurphyDecomposition`, arrays `(...)`, float32 for half-precision input. Every part is computed from its own
        formula and right to a few eps, and so is their sum. Invalid lanes are NaN; an eager call raises `ValueError` if
        no lane is valid. Corrected parts are NaN where n <= 1.

    The plug-in reliability and resolution are biased upwards, by about the number of occupied bins / n times the
    outcome variance; the uncertainty downwards, and the within-bin variance by about bins / n of itself. The corrected
    uncertainty is unbiased; the corrected reliability and resolution are where all forecasts of a bin are equal and it
    holds two rows or more (a bin with one row is left uncorrected, as in the source), and the reliability may then be
    negative. Differentiable in p and weights with the bins held fixed. Intervals: `bootstrap(..., method="centred")` of
    corrected terms; the others are refused. Cost O(n), "mass" a sort.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> parts = jaxcal.murphy_decomposition(p, jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]), num_bins=5)
        >>> print(f"{parts.brier:.5f} = {parts.reliability:.5f} - {parts.generalized_resolution:.5f}"
        ...       f" + {parts.uncertainty:.5f}")
        0.18702 = 0.06140 - 0.12438 + 0.25000

    References:
        Murphy, J. Applied Meteorology 1973. Stephenson, Coelho and Jolliffe, Weather and Forecasting 2008 (terms within
        bins). Ferro and Fricker, QJRMS 2012 (correction).
    """
    p, y, weights = as_events(p, y, weights)
    rule = bin_rule(bins, num_bins)
    return report(_murphy(p, y, weights, rule, bool(bias_corrected)), p, y, weights, "murphy_decomposition")


@jax.jit(static_argnums=(3, 4))
def _murphy(p, y, weights, rule, bias_corrected):
    events = clean(p, y, weights)
    q, o, w = jnp.broadcast_arrays(events.p, events.y, events.w)
    if rule[0] == "mass":
        index, num_bins = assign(q, w, rule)
    else:  # half-precision scores are compared with edges of their own dtype
        index, num_bins = assign(q.astype(p.dtype), None, rule)
    mass = total(w)
    weight = segment_totals(w, index, num_bins)
    safe = jnp.where(weight > 0, weight, 1)
    mean = lambda values: segment_totals(w * values, index, num_bins) / safe  # noqa: E731
    average = lambda terms: total(terms) / mass * events.poison  # noqa: E731

    frequency, gap = mean(o), mean(o - q)
    overall = (total(w * o) / mass)[..., None]
    forecast_part = q - jnp.take_along_axis(mean(q), index, axis=-1)
    outcome_part = o - jnp.take_along_axis(frequency, index, axis=-1)
    reliability = average(weight * gap**2)
    resolution = average(weight * (frequency - overall) ** 2)
    uncertainty = average(w * (o - overall) ** 2)
    if bias_corrected:
        many = weight > 1
        noise = jnp.where(many, weight * frequency * (1 - frequency) / jnp.where(many, weight - 1, 1), 0)
        inflation = uncertainty / jnp.where(mass > 1, mass - 1, jnp.nan)
        reliability = reliability - average(noise) + 0 * inflation  # NaN with it
        resolution = resolution - average(noise) + inflation
        uncertainty = uncertainty + inflation
    return MurphyDecomposition(
        average(w * (q - o) ** 2),
        reliability,
        resolution,
        uncertainty,
        average(w * forecast_part**2),
        2 * average(w * forecast_part * outcome_part),
    )
