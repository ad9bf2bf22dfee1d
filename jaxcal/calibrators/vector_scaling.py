"""Vector scaling: a factor and a shift for the logit of each class."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxcal.calibrators.affine import AffineFit, apply_scale, as_raw_logits, fit_lanes, own, prepare_raw, report, start
from jaxcal.status import Status

# From here on, in temperatures, a logit is a mask: a hundredth of it is a probability of 0 in single precision.
_FAR = 1.1e4


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VectorScalingFit(AffineFit):
    """log softmax(v z + b).

    Attributes:
        scale: v, `(..., k)`.
        bias: b, `(..., k)`, of sum 0.
        risk: the minimized mean log loss on the fitting data, `(...)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: Newton steps, int32 `(...)`.
        gradient_norm: of the mean loss at the fit, in features of variance one, `(...)`.
    """

    scale: jax.Array
    bias: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    _as_logits = staticmethod(as_raw_logits)

    def _log_probabilities(self, logits):
        return apply_scale(self.scale, self.bias, logits)


def fit_vector_scaling(logits, labels, *, weights=None) -> VectorScalingFit:
    r"""Vector scaling: temperature scaling with a temperature and a shift for each class.

    min over v, b of  sum_i w_i CE(softmax(v z_i + b), y_i) / sum_i w_i

    2k - 1 parameters, of which the shifts are given with sum 0. It corrects classes that are forecast too often and
    too rarely, and may change the predicted class. The logits are read as they are: unlike for other calibrators an
    offset added to a row changes the map, which is why it folds into the last layer of a network
    (`jaxcal.fold_affine`).

    Args:
        logits: `(..., n, k)`, k >= 2, natural log scale, `-inf` on masked classes, which stay masked. Finite masks,
            10^4 temperatures and more below the largest logit of their row, are fitted as if they were -inf.
        labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`.

    Returns:
        `VectorScalingFit` over the broadcast of the leading axes. AT_UPPER_BOUND where the loss has no minimum because
        classes are separable: some coefficients whose loss is within about 1e-4 (float32) or 1e-6 (float64) of its
        infimum, relatively. NOT_IDENTIFIED where the logit of a class is constant (its factor is 1/T of temperature
        scaling) or those of all are affine functions of one, as (-s, s): one of the optima. NOT_CONVERGED, NaN, where
        the best factor of a class would unmask its finite masks. IMPOSSIBLE_EVENT, NaN, for a label that is masked.
        INVALID_INPUT, NaN, for NaN, +inf, labels out of range and bad weights; an eager call
        raises `ValueError` if no lane is usable.

    Consistent where the map is of this form. Differentiable in logits and weights, to every order (0 at a bound
    and where not identified).
    Equivariant to permutations of the classes where the optimum is unique. Cost: 4 to 8 Newton steps, O(n k^2) each.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.normal(0, 2, (5000, 3))
        >>> labels = (truth + rng.gumbel(size=truth.shape)).argmax(-1)
        >>> fit = jaxcal.fit_vector_scaling((truth * [2, 1, 0.5]).astype("float32"), labels)
        >>> print([f"{v:.1f}" for v in fit.scale])
        ['0.5', '0.9', '2.0']

    References:
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017, section 4.2.
    """
    logits, labels, weights = prepare_raw(logits, labels, weights, "fit_vector_scaling")
    return report(_fit(logits, labels, weights), logits, labels, weights, "fit_vector_scaling")


@jax.jit
def _fit(logits, labels, weights):
    u = start(logits, labels, weights)
    masked, far = _mask_far(logits, labels, u)
    found = fit_lanes(own, lambda n, k, dtype: jnp.zeros((k, 2), dtype), masked, labels, weights, u, masks=True)
    scale = u[..., None] + found.coefficients[..., 0]
    # what is far for the temperature is none for a factor of a hundredth
    lost = (found.status < Status.NOT_CONVERGED) & jnp.any(jnp.any(far, axis=-2) & (scale < 0.01 * u[..., None]), -1)
    mark = jnp.where(lost, jnp.nan, 1).astype(scale.dtype)
    _, risk, status, *rest = found
    status = jnp.where(lost, Status.NOT_CONVERGED, status)
    return VectorScalingFit(
        scale * mark[..., None], found.coefficients[..., 1] * mark[..., None], risk * mark, status, *rest
    )


def _mask_far(logits, labels, u):
    """Logits with -inf for finite masks such as -1e9, beside which the others of a class would be rounding.

    Returns also where they are.
    """
    logits = logits.astype(u.dtype)
    gap = jnp.max(logits, axis=-1, keepdims=True) - logits
    far = (gap < jnp.inf) & (u[..., None, None] * gap > _FAR)
    far &= labels[..., None] != jnp.arange(logits.shape[-1])
    return jnp.where(far, -jnp.inf, logits), far
