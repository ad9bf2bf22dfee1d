"""Binned calibration error without the bias of the plug-in estimate: squared, and negative as often as it must be."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxcal.metrics.binned import bin_by
from jaxcal.metrics.events import as_events, report
from jaxcal.solvers import bin_rule

_ESTIMATORS = ("kumar", "u", "tcal")


def debiased_ece(
    p,
    y,
    *,
    estimator: str = "kumar",
    num_bins: int = 15,
    bins: str | Sequence[float] = "width",
    weights=None,
) -> jax.Array:
    r"""Debiased estimate of the squared binned calibration error sum_b (n_b/n) mu_b^2, mu_b = E[y - p | bin b].

    With n_b rows in bin b, their frequency ybar_b, mean probability pbar_b and residuals r = y - p,

    "kumar": sum_b (n_b/n) [(ybar_b - pbar_b)^2 - ybar_b (1 - ybar_b) / (n_b - 1)]
    "u":     (1/n) sum_b [(sum_b r)^2 - sum_b r^2] / (n_b - 1)
    "tcal":  (1/n) sum_b [(sum_b r)^2 - sum_b r^2] / n_b

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        estimator: "kumar", "u" or "tcal", static.
        num_bins, bins: as for `jaxcal.ece`: "width" bins [i/b, (i+1)/b) with the last closed at 1, "mass", or edges.
        weights: whole counts `(..., n)`; rows of weight 0 are absent. Other weights are invalid.

    Returns:
        `(...)`, signed, in squared units of probability; float32 for half-precision input. About half of all values are
        negative for calibrated forecasts. For an error on the scale of `ece(norm="l2")` take `sqrt(max(value, 0))`,
        which is biased upwards again. "kumar" and "u" are NaN where an occupied bin has n_b <= 1: its noise cannot
        be told from its error. Invalid lanes are NaN; an eager call raises `ValueError` if no lane is valid.

    "u" is unbiased given which bins the rows fall in. "kumar" is unbiased where the forecasts of a bin are equal; else
    it is too low by the spread of the forecasts in the bins over n, at most 1/(4 b n) for b bins of equal width if they
    are calibrated. "tcal" is shrunk towards 0 by (n_b - 1)/n_b and exists for every bin. All underestimate the
    calibration error, which bins average away. Intervals: `jaxcal.bootstrap(..., method="centred")`. Differentiable in
    p with the bins held fixed. Cost O(n), "mass" a sort.

    Examples:
        >>> import jaxcal
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(10_000)
        >>> y = rng.random(p.shape) < p
        >>> print(f"{jaxcal.ece(p, y, norm='l2') ** 2:.5f} {jaxcal.debiased_ece(p, y):.5f}")
        0.00019 -0.00007

    References:
        Brocker, "Estimating reliability and resolution of probability forecasts through decomposition of the empirical
        score", Climate Dynamics 2012. Ferro and Fricker, QJRMS 2012. Kumar, Liang and Ma, NeurIPS 2019. Lee, Huang,
        Hassani and Dobriban, "T-Cal", JMLR 2023.
    """
    if estimator not in _ESTIMATORS:
        raise ValueError(f"estimator must be one of {_ESTIMATORS}, got {estimator!r}")
    p, y, weights = as_events(p, y, weights)
    return report(
        _debiased(p, y, weights, bin_rule(bins, num_bins), estimator), p, y, weights, "debiased_ece", whole=True
    )


@jax.jit(static_argnums=(3, 4))
def _debiased(p, y, weights, rule, estimator):
    events, add = bin_by(p, y, weights, rule, whole=True)
    residual, w = events.y - events.p, events.w
    count = add(jnp.ones(events.p.shape[-1:], jnp.int32) if events.weights is None else w)
    gap = add(w * residual)
    occupied = count > 0
    safe = jnp.where(occupied, count, 1)
    if estimator == "kumar":
        frequency = add(w * events.y) / safe
        noise = frequency * (1 - frequency) * safe
    else:
        noise = add(w * residual**2)
    square = gap**2 / safe
    if estimator == "tcal":
        terms = square - noise / safe
    else:
        more = count > 1
        rest = jnp.where(more, safe - 1, 1)
        # the same order of operations as in the formulas: equal terms cancel
        terms = square - noise / rest if estimator == "kumar" else (gap**2 - noise) / rest
        terms = jnp.where(more | ~occupied, terms, jnp.nan)
    return jnp.sum(jnp.where(occupied | jnp.isnan(count), terms, 0), axis=-1) / events.mass
