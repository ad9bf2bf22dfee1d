"""Matrix scaling: an affine map of the logits."""

from dataclasses import dataclass
from functools import partial

import jax

from jaxcal.calibrators.affine import (
    AffineFit,
    apply_matrix,
    as_raw_logits,
    fit_lanes,
    matrix_from,
    off_diagonal_penalty,
    prepare_raw,
    report,
    require_penalty,
    shared,
    start,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MatrixScalingFit(AffineFit):
    """log softmax(W z + b).

    Attributes:
        matrix: W, `(..., k, k)`: row a makes the logit of class a.
        bias: b, `(..., k)`.
        risk: mean log loss on the fitting data, without the penalty, `(...)`.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: Newton steps, int32 `(...)`.
        gradient_norm: of the objective at the fit, in uncorrelated features of variance one, `(...)`.
    """

    matrix: jax.Array
    bias: jax.Array
    risk: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array

    _as_logits = staticmethod(as_raw_logits)

    def _log_probabilities(self, logits):
        return apply_matrix(self.matrix, self.bias, logits)


def fit_matrix_scaling(
    logits, labels, *, weights=None, off_diagonal: float = 0.0, intercept: float = 0.0
) -> MatrixScalingFit:
    r"""Matrix scaling: multinomial logistic regression of the labels on the logits.

    min over W, b of  sum_i w_i CE(softmax(W z_i + b), y_i) / sum_i w_i
                      + off_diagonal mean_{a != j} W_aj^2 + intercept mean_a b_a^2

    k^2 + k parameters, k + 1 of which no data can tell: where no penalty decides, b has sum 0 and each column of W the
    sum 1/T, T that of temperature scaling. Without penalty it needs many rows a class, and separates small data sets;
    `jaxcal.fit_structured_matrix` has penalties that fit n and k. The logits are read as they are: an offset added to a
    row changes the map, which is why it folds into the last layer of a network (`jaxcal.fold_affine`);
    `jaxcal.fit_dirichlet` is the same map of log-probabilities.

    Args:
        logits: `(..., n, k)`, k >= 2, finite, natural log scale.
        labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`.
        off_diagonal, intercept: strengths >= 0 of the penalties ("ODIR"), static.

    Returns:
        `MatrixScalingFit` over the broadcast of the leading axes. AT_UPPER_BOUND where the loss has no minimum because
        classes are separable: some coefficients whose loss is within about 1e-4 (float32) or 1e-6 (float64) of its
        infimum, relatively. NOT_IDENTIFIED where, without off-diagonal penalty, the logits of some class are an affine
        function of those of the others, as for `binary_logits`, or, with one, those of all classes are multiples of
        one: one of the optima; without any penalty the one where W differs from I/T the least. INVALID_INPUT, NaN, for
        NaN and infinite logits, labels out of range and bad weights; an eager call raises `ValueError` if no lane is
        usable.

    float32 suffices for offsets of rows up to 10,000 times what tells the classes. It does not where a row is many
    thousand times as large as the others: the loss may end far above its minimum whatever the status. Use float64.

    Consistent where the map is of this form. Differentiable in logits and weights, to every order (0 at a bound
    and where not identified).
    Equivariant to permutations of the classes where the optimum is unique. Cost: 4 to 8 Newton steps, O(n k^4) each up
    to k = 16, of 5 to 30 conjugate gradient steps, O(n k^2) each, beyond.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.normal(0, 2, (20000, 3))
        >>> labels = (truth + rng.gumbel(size=truth.shape)).argmax(-1)
        >>> mixed = truth @ np.linalg.inv([[1, 0.3, -0.3], [0, 1, 0], [0, -0.3, 1.3]]).T
        >>> fit = jaxcal.fit_matrix_scaling(mixed.astype("float32"), labels)
        >>> print((10 * fit.matrix).round().astype(int))
        [[10  3 -3]
         [ 0 10  0]
         [ 0 -3 13]]

    References:
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017, section 4.2. Kull et
        al., "Beyond temperature scaling", NeurIPS 2019 (ODIR).
    """
    strengths = require_penalty(off_diagonal, "off_diagonal"), require_penalty(intercept, "intercept")
    logits, labels, weights = prepare_raw(logits, labels, weights, "fit_matrix_scaling")
    return report(_fit(logits, labels, weights, strengths), logits, labels, weights, "fit_matrix_scaling")


@partial(jax.jit, static_argnums=3)
def _fit(logits, labels, weights, strengths):
    u = start(logits, labels, weights)
    features = lambda z, _: shared(z)  # noqa: E731
    theta, *rest = fit_lanes(features, off_diagonal_penalty(*strengths), logits, labels, weights, u, masks=False)
    return MatrixScalingFit(matrix_from(u, theta), theta[..., -1], *rest)
