"""Quadratic scaling of the log-odds."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxcal.calibrators.binary import BinaryFit, by_lane, fit_log_odds, log_sigmoids, prepare_binary, report_binary
from jaxcal.calibrators.one_vs_rest import binary_calibrator


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuadraticFit(BinaryFit):
    """logit P(1 | l) = c_0 + c_1 l + c_2 l^2 for log-odds l; certain forecasts stay certain.

    Attributes:
        coefficients: c, `(..., 3)`.
        risk: the minimized mean log loss, without the penalty, `(...)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: Newton steps, int32 `(...)`.
        gradient_norm: of the mean loss in an orthonormal basis of the features, before the last step, `(...)`.
    """

    coefficients: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    def _log_pair(self, score):
        return _log_pair(self.coefficients, score)


def fit_quadratic(score, outcomes, *, weights=None, ridge: float = 0.0) -> QuadraticFit:
    r"""Quadratic scaling: logistic regression of the outcomes on the log-odds and their square.

    min over c of  mean log loss of sigmoid(c_0 + c_1 l + c_2 l^2)  +  ridge [c_0^2 + (c_1 - 1)^2 + c_2^2]

    It is the exact map where the log-odds are normal in each class, with unequal variances. It is not monotone: it may
    change the ranking. The penalty draws it towards the identity.

    Args:
        score: log-odds `(..., n)` (`jaxcal.log_odds` of a probability); outcomes: `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.
        ridge: strength >= 0 of the penalty, static.

    Returns:
        `QuadraticFit` over the broadcast of the leading axes. Certain forecasts, scores of inf or -inf, count with loss
        0 if they came true and are IMPOSSIBLE_EVENT, NaN, if not. Without a penalty NOT_IDENTIFIED where fewer than
        three distinct scores occur (the coefficients that can be told are fitted, the others 0), or where their squares
        are lost in rounding (float32: a spread below a 300th of the offset), and AT_UPPER_BOUND where the outcomes are
        separated: some coefficients whose loss is below one rounding. INVALID_INPUT, NaN, for NaN scores, other
        outcomes and bad weights; an eager call raises `ValueError` if no lane is usable.

    Consistent where the map is quadratic. Differentiable in scores and weights (first order). Cost: about 6 Newton
    steps, O(n) each.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> fit = jaxcal.fit_quadratic(jaxcal.log_odds(p), jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]))
        >>> [f"{c:.3f}" for c in fit.coefficients]
        ['0.303', '0.939', '-0.015']

    References:
        Berta, Holzmueller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025.
    """
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"ridge must be >= 0 and finite, got {ridge}")
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    return report_binary(_fit(score, outcomes, weights, float(ridge)), score, outcomes, weights, "fit_quadratic")


binary_calibrator(fit_quadratic)


@jax.jit(static_argnums=3)
def _fit(score, outcomes, weights, ridge):
    penalty = (ridge, (0.0, 1.0, 0.0)) if ridge else None
    found, status = fit_log_odds(lambda s: [jnp.ones_like(s), s, s**2], score, outcomes, weights, ridge=penalty)
    return QuadraticFit(found.coefficients, found.risk, status, found.num_steps, found.gradient_norm)


@jax.jit
def _log_pair(coefficients, score):
    certain = jnp.isinf(score)
    s = jnp.where(certain, 0, score)
    c0, c1, c2 = (by_lane(coefficients[..., j], score) for j in range(3))
    return log_sigmoids(jnp.where(certain, score, c0 + (c1 + c2 * s) * s))
