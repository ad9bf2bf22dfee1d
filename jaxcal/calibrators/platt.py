"""Platt scaling: a sigmoid of the score."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxcal.calibrators.binary import (
    BinaryFit,
    by_lane,
    clean_rows,
    in_range,
    log_sigmoids,
    prepare_binary,
    report_binary,
    status_of,
)
from jaxcal.calibrators.one_vs_rest import binary_calibrator
from jaxcal.solvers import logistic_regression, total
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PlattFit(BinaryFit):
    """P(1 | s) = sigmoid(slope (s - centre) + level); arrays `(...)`.

    Attributes:
        slope: a, per unit of the score; below 0 where high scores speak against outcome 1.
        centre: mean score of the calibration set, which keeps the digits of scores with an offset.
        level: log-odds at the centre; `intercept` is that at the score 0, b.
        risk: the minimized mean log loss against the targets.
        status: `jaxcal.Status`, int32.
        num_steps: Newton steps, int32.
        gradient_norm: of the mean loss by the coefficients of the standardized score, before the last step.
    """

    slope: jax.Array
    centre: jax.Array
    level: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    @property
    def intercept(self) -> jax.Array:
        """b = level - slope centre: log-odds at the score 0."""
        return self.level - self.slope * self.centre

    def _log_pair(self, score):
        return _log_pair(self, score)


def fit_platt(score, outcomes, *, weights=None, smooth: bool = True) -> PlattFit:
    r"""Platt scaling: logistic regression of the outcomes on the score.

    min over a, b of  sum_i w_i [softplus(eta_i) - t_i eta_i] / sum_i w_i,   eta_i = a s_i + b

    With `smooth` the targets t are (N_1 + 1)/(N_1 + 2) for outcome 1 and 1/(N_0 + 2) for outcome 0, N the sums of
    weights: the optimum is then finite for separated outcomes, too. Without, t = y, the maximum likelihood.

    Args:
        score: `(..., n)`, any finite real numbers; outcomes: `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.
        smooth: Platt's targets, static.

    Returns:
        `PlattFit` over the broadcast of the leading axes. NOT_IDENTIFIED where all scores are equal: slope 0 and the
        level of the targets. Without smoothing AT_UPPER_BOUND where the scores separate the outcomes, or all are the
        same: no finite optimum exists, and the coefficients are some whose loss is below one rounding.
        INVALID_INPUT, NaN, for NaN or infinite scores, other outcomes and bad weights; an eager call raises
        `ValueError` if no lane is usable.

    Consistent where log-odds are linear in the score; with smooth targets biased towards 1/2 by O(1/n). Differentiable
    in scores and weights (first order). Cost: about 6 Newton steps, O(n) each.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> score = jnp.array([-2.9, -2.0, -1.3, -0.8, -0.5, -0.1, 0.2, 0.8, 1.3, 2.6])
        >>> fit = jaxcal.fit_platt(score, jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]))
        >>> print(f"{fit.slope:.2f} {fit.intercept:.2f}")
        0.56 0.16
        >>> [f"{p:.2f}" for p in fit(jnp.array([0.0, 3.0]))]
        ['0.54', '0.86']

    References:
        Platt, "Probabilistic outputs for support vector machines", 1999. Lin, Lin and Weng, Machine Learning 2007.
    """
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    return report_binary(_fit(score, outcomes, weights, smooth), score, outcomes, weights, "fit_platt")


binary_calibrator(fit_platt)


@jax.jit(static_argnums=3)
def _fit(score, outcomes, weights, smooth):
    s, y, w, ok = clean_rows(score, outcomes, weights, finite=True)
    share = w / jnp.where(ok, total(w), 1)[..., None]
    centre = jax.lax.stop_gradient(total(share * s))
    distance = s - centre[..., None]
    ok &= in_range(distance)
    if smooth:
        ones, zeros = total(w * y), total(w * (1 - y))
        targets = jnp.where(y == 1, ((ones + 1) / (ones + 2))[..., None], (1 / (zeros + 2))[..., None])
    else:
        targets = y
    features = [jnp.ones_like(s), jnp.where(ok[..., None], distance, 0)]
    found = logistic_regression(features, targets, w, ok)
    status = status_of(found, ok)
    mark = jnp.where(status < Status.NOT_CONVERGED, 1, jnp.nan).astype(s.dtype)
    level, slope = found.coefficients[..., 0] * mark, found.coefficients[..., 1] * mark
    return PlattFit(slope, centre * mark, level, found.risk * mark, status, found.num_steps, found.gradient_norm)


@jax.jit
def _log_pair(fit, score):
    slope, centre, level = (by_lane(value, score) for value in (fit.slope, fit.centre, fit.level))
    distance = jnp.where(slope == 0, 0, score - centre)  # an infinite score does not matter there
    return log_sigmoids(slope * distance + level)
