"""Beta calibration: a linear map of log p and log(1 - p)."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxcal.calibrators.binary import BinaryFit, by_lane, fit_log_odds, log_sigmoids, prepare_binary, report_binary
from jaxcal.calibrators.one_vs_rest import binary_calibrator

_VARIANTS = ("abm", "ab", "am")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BetaFit(BinaryFit):
    """logit P(1 | p) = c + a log p - b log(1 - p), non-decreasing; certain forecasts stay certain. Arrays `(...)`.

    Attributes:
        a, b: >= 0; both 1 for the identity.
        level: the log-odds that p = 1/2 is mapped to, 0 for the identity; the property `c` is the intercept above.
        risk: the minimized mean log loss.
        status: `jaxcal.Status`, int32.
        num_steps: Newton steps, int32.
        gradient_norm: of the mean loss in an orthonormal basis of the features, before the last step; of the features
            whose coefficient is not held at 0.
    """

    a: jax.Array
    b: jax.Array
    level: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    @property
    def c(self) -> jax.Array:
        """Intercept c = level + (a - b) log 2."""
        return self.level + (self.a - self.b) * math.log(2)

    def _log_pair(self, score):
        return _log_pair(self, score)


def fit_beta(score, outcomes, *, weights=None, variant: str = "abm") -> BetaFit:
    r"""Beta calibration: the maps that are exact where forecasts have a beta law in each class.

    min over a, b >= 0 and c of the mean log loss of sigmoid(c + a log p - b log(1 - p)),   p = sigmoid(score)

    "abm" has all three parameters, "am" a = b (affine in the log-odds), "ab" keeps 1/2 where it is: features log 2p and
    log 2(1 - p), so that c = (a - b) log 2. Where the free optimum has a negative coefficient, the best one with
    coefficients at 0 is taken, the optimum under the constraint.

    Args:
        score: log-odds `(..., n)` (`jaxcal.log_odds` of a probability); outcomes: `(..., n)` in {0, 1}.
        weights: counts `(..., n)`.
        variant: "abm", "am" or "ab", static.

    Returns:
        `BetaFit` over the broadcast of the leading axes. Scores of inf or -inf, certain forecasts, count with loss 0 if
        they came true and are IMPOSSIBLE_EVENT, NaN, if not. NOT_IDENTIFIED where too few distinct scores occur to tell
        the coefficients apart (those that can be told are fitted, the others 0), or where a feature is lost in
        rounding, as in float32 where all log-odds are below -14; AT_UPPER_BOUND where the outcomes are separated, or
        all the same: some coefficients whose loss is below one rounding. INVALID_INPUT, NaN, for NaN scores, other
        outcomes and bad weights; an eager call raises `ValueError` if no lane is usable.

    Consistent where the map is of this form. Differentiable in scores and weights (first order; a coefficient at 0
    stays there). Cost: about 6 Newton steps, O(n) each; up to four times that where a constraint is active.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> fit = jaxcal.fit_beta(jaxcal.log_odds(p), jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1]))
        >>> print(f"{fit.a:.3f} {fit.b:.3f} {fit.c:.3f}")
        0.968 0.920 0.325

    References:
        Kull, Silva Filho and Flach, "Beta calibration", AISTATS 2017.
    """
    if variant not in _VARIANTS:
        raise ValueError(f"variant must be one of {_VARIANTS}, got {variant!r}")
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    return report_binary(_fit(score, outcomes, weights, variant), score, outcomes, weights, "fit_beta")


binary_calibrator(fit_beta)


def _log_twice(score):
    """log 2p of log-odds, without cancellation near 0."""
    near = jnp.abs(score) < 1
    small = jnp.log1p(jnp.tanh(jnp.where(near, score, 0) / 2))
    return jnp.where(near, small, math.log(2) - jax.nn.softplus(-score))


def _features(score, variant):
    if variant == "am":
        return [jnp.ones_like(score), score]
    features = [_log_twice(score), -_log_twice(-score)]
    return features if variant == "ab" else [jnp.ones_like(score), *features]


@jax.jit(static_argnums=3)
def _fit(score, outcomes, weights, variant):
    features = partial(_features, variant=variant)
    signed = (variant == "ab", True) if variant != "abm" else (False, True, True)
    found, status = fit_log_odds(features, score, outcomes, weights, not_negative=signed)
    theta = [found.coefficients[..., j] for j in range(len(signed))]
    if variant == "am":
        theta.append(theta[1])  # b = a
    level, a, b = theta if variant != "ab" else (0 * theta[0], *theta)
    return BetaFit(a, b, level, found.risk, status, found.num_steps, found.gradient_norm)


@jax.jit
def _log_pair(fit, score):
    certain = jnp.isinf(score)
    s = jnp.where(certain, 0, score)
    a, b, level = (by_lane(value, score) for value in (fit.a, fit.b, fit.level))
    return log_sigmoids(jnp.where(certain, score, level + a * _log_twice(s) - b * _log_twice(-s)))
