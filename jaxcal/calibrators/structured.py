"""Structured scaling: an affine map of tempered log-probabilities, drawn to the identity as the data are few."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators.affine import (
    AffineFit,
    apply_matrix,
    apply_scale,
    fit_lanes,
    matrix_from,
    own,
    report,
    require_penalty,
    shared,
)
from jaxcal.calibrators.laplace import LaplaceFit, laplace
from jaxcal.calibrators.temperature import fit_temperature, prepare
from jaxcal.status import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StructuredMatrixFit(AffineFit):
    """log softmax(W x + b), x the log-probabilities after temperature scaling and Laplace smoothing.

    Attributes:
        tempered: the temperature, `tempered.fit.temperature`, and the smoothing, a `LaplaceFit`.
        matrix: W, `(..., k, k)`: row a makes the logit of class a.
        bias: b, `(..., k)`.
        risk: mean log loss on the fitting data, without the penalty, `(...)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: Newton steps, int32 `(...)`.
        gradient_norm: of the objective at the fit, in uncorrelated features of variance one, `(...)`.
    """

    tempered: LaplaceFit
    matrix: jax.Array
    bias: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    def _log_probabilities(self, logits):
        return _after(apply_matrix, self.matrix, self.bias, self.tempered, logits)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StructuredVectorFit(AffineFit):
    """log softmax(v x + b), x the log-probabilities after temperature scaling and Laplace smoothing.

    Attributes:
        tempered: the temperature, `tempered.fit.temperature`, and the smoothing, a `LaplaceFit`.
        scale: v, `(..., k)`.
        bias: b, `(..., k)`.
        risk, status, num_steps, gradient_norm: as of `StructuredMatrixFit`.
    """

    tempered: LaplaceFit
    scale: jax.Array
    bias: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    def _log_probabilities(self, logits):
        return _after(apply_scale, self.scale, self.bias, self.tempered, logits)


def _after(apply, slope, bias, tempered, logits):
    """The map of tempered logits; what is between the two is not rounded to half precision."""
    x = tempered(logits.astype(checks.compute_dtype(logits)))
    return apply(slope, bias, x).astype(logits.dtype)


def fit_structured_matrix(
    logits, labels, *, weights=None, strength: float = 1.0, rho: float = 1.0, tau: float = 1.0
) -> StructuredMatrixFit:
    r"""Structured matrix scaling (SMS): matrix scaling whose freedom grows with the data.

    min over W, b of  mean CE(softmax(W x + b), y) + l |b|^2 + l |diag(W - I)|^2 + m |offdiag(W)|^2,
    l = strength k^rho / n^tau,   m = strength (k (k - 1))^rho / n^tau,

    where x = log(n/(n+1) softmax(z/T) + 1/((n+1) k)): the forecasts after temperature scaling and Laplace smoothing.
    The optimum exists, is unique and starts from temperature scaling, which few data leave as it is. AT_UPPER_BOUND
    where the penalty of it is below one rounding of the loss, as for separable classes at a tiny strength.

    Args:
        logits: `(..., n, k)`, k >= 2, natural log scale, any finite offset a row; a masked class has the probability
            that smoothing gives it.
        labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`; n above is their sum.
        strength: > 0 or 0, rho, tau: >= 0, static.

    Returns:
        `StructuredMatrixFit` over the broadcast of the leading axes. IMPOSSIBLE_EVENT, NaN, for a label that is masked;
        INVALID_INPUT, NaN, for NaN, +inf, labels out of range and bad weights; an eager call raises `ValueError` if no
        lane is usable.

    Consistent where the map is of this form; shrunk towards the identity by about 1/n. Differentiable in logits and
    weights, to every order. Equivariant to permutations of the classes where the optimum is unique. Cost: 5 to 8 Newton
    steps, O(n k^4) each up to k = 16, of 5 to 20 conjugate gradient steps, O(n k^2) each, beyond.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.normal(0, 2, (2000, 3))
        >>> labels = (truth + rng.gumbel(size=truth.shape)).argmax(-1)
        >>> fit = jaxcal.fit_structured_matrix((2 * truth).astype("float32"), labels)
        >>> print(f"{fit.tempered.fit.temperature:.1f} {abs(fit.matrix - np.eye(3)).max():.2f}")
        1.9 0.07

    References:
        Berta, Holzmueller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025.
    """
    return _fit(True, logits, labels, weights, (strength, rho, tau), "fit_structured_matrix")


def fit_structured_vector(
    logits, labels, *, weights=None, strength: float = 1.0, rho: float = 1.0, tau: float = 1.0
) -> StructuredVectorFit:
    r"""Structured vector scaling (SVS): vector scaling whose freedom grows with the data.

    min over v, b of  mean CE(softmax(v x + b), y) + l |b|^2 + l |v - 1|^2,   l = strength k^rho / n^tau,

    x as for `jaxcal.fit_structured_matrix`, of which it is the diagonal case: 2k parameters.

    Args:
        logits, labels, weights, strength, rho, tau: as there.

    Returns:
        `StructuredVectorFit` over the broadcast of the leading axes, with the statuses and errors named there.

    Consistent where the map is of this form; shrunk towards the identity by about 1/n. Differentiable in logits and
    weights, to every order. Equivariant to permutations of the classes where the optimum is unique. Cost: 4 to 6 Newton
    steps, O(n k^2) each.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.normal(0, 2, (5000, 3))
        >>> labels = (truth + rng.gumbel(size=truth.shape)).argmax(-1)
        >>> fit = jaxcal.fit_structured_vector((truth + [1, 0, -1]).astype("float32"), labels)
        >>> print([f"{b:.1f}" for b in fit.bias])
        ['-0.9', '-0.1', '0.9']

    References:
        Berta, Holzmueller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025.
    """
    return _fit(False, logits, labels, weights, (strength, rho, tau), "fit_structured_vector")


def _fit(matrix, logits, labels, weights, options, call):
    names = ("strength", "rho", "tau")
    options = tuple(require_penalty(value, name) for value, name in zip(options, names, strict=True))
    logits, labels, weights = prepare(logits, labels, weights, call)
    return report(_solve(matrix, logits, labels, weights, options), logits, labels, weights, call)


@partial(jax.jit, static_argnums=(0, 4))
def _solve(matrix, logits, labels, weights, options):
    logits = logits.astype(checks.compute_dtype(logits))
    tempered = laplace(fit_temperature)(logits, labels, weights=weights)
    x = tempered(logits)

    def penalty(n, k, dtype):
        strength, rho, tau = options
        single, pair = (strength * size**rho / n**tau for size in (k, k * (k - 1)))
        if not matrix:
            return jnp.broadcast_to(single, (k, 2)).astype(dtype)
        return jnp.where(jnp.eye(k, k + 1, dtype=bool) | (jnp.arange(k + 1) == k), single, pair).astype(dtype)

    features = (lambda x, _: shared(x)) if matrix else own
    theta, risk, status, *rest = fit_lanes(features, penalty, x, labels, weights, masks=False)
    failed = tempered.status >= Status.NOT_CONVERGED
    status = jnp.where(failed, tempered.status, status)
    if matrix:
        return StructuredMatrixFit(tempered, matrix_from(1, theta), theta[..., -1], risk, status, *rest)
    return StructuredVectorFit(tempered, 1 + theta[..., 0], theta[..., 1], risk, status, *rest)
