"""Dirichlet calibration: an affine map of the log-probabilities."""

from dataclasses import dataclass
from functools import partial

import jax

from jaxcal.calibrators.affine import (
    AffineFit,
    apply_matrix,
    fit_lanes,
    matrix_from,
    off_diagonal_penalty,
    report,
    require_penalty,
    shared,
    start,
)
from jaxcal.calibrators.temperature import prepare
from jaxcal.solvers import log_softmax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DirichletFit(AffineFit):
    """log softmax(W log p + b).

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

    def _log_probabilities(self, logits):
        return apply_matrix(self.matrix, self.bias, logits, log=True)


def fit_dirichlet(logits, labels, *, weights=None, off_diagonal: float = 1e-3, intercept: float = 1e-3) -> DirichletFit:
    r"""Dirichlet calibration: the maps that are exact where forecasts have a Dirichlet law in each class.

    min over W, b of  sum_i w_i CE(softmax(W log p_i + b), y_i) / sum_i w_i
                      + off_diagonal mean_{a != j} W_aj^2 + intercept mean_a b_a^2

    The penalty is ODIR, "off-diagonal and intercept regularization", with means over the coefficients; the diagonal is
    free. It is the k-class form of beta calibration; W = I and b = 0 is the identity. The best strengths depend on the
    data: choose among several by `jaxcal.cross_fit`.

    Args:
        logits: `(..., n, k)`, k >= 2, finite, natural log scale, any offset a row; p = softmax(logits).
        labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`.
        off_diagonal, intercept: strengths >= 0 of the penalties, static.

    Returns:
        `DirichletFit` over the broadcast of the leading axes. AT_UPPER_BOUND where the loss has no minimum because
        classes are separable by their own probabilities, which no penalty prevents, as where a class is missing from
        the labels: some coefficients whose loss is within about 1e-4 (float32) or 1e-6 (float64) of its infimum,
        relatively. NOT_IDENTIFIED where all rows are equal, or, without penalty, where some log-probability is an
        affine function of the others: one of the optima. INVALID_INPUT, NaN, for NaN and infinite logits, labels out of
        range and bad weights; an eager call raises `ValueError` if no lane is usable. A probability of 0 is no number
        here: `logits_from_probs(p, floor=...)`.

    float32 suffices for logits that differ by 1e-3 and for columns of very different scales. It does not where a row is
    many thousand times as large as the others. AT_UPPER_BOUND, for logits of 30 and more, may be 1e-2 above the
    infimum, relatively, and rarely more. Use float64.

    Consistent where the map is of this form, for strengths that fall with n. Differentiable in logits and weights, to
    every order (0 at a bound). Equivariant to permutations of the classes where the optimum is unique. Cost: 4 to 8
    Newton steps, O(n k^4) each up to k = 16, of 5 to 30 conjugate gradient steps, O(n k^2) each, beyond.

    Examples:
        >>> import numpy as np
        >>> import jaxcal
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 20000)
        >>> p = np.array([rng.dirichlet(np.where(np.arange(3) == y, 3.0, 1.0)) for y in labels])  # P(y | p) = p^2 / ...
        >>> logits = jaxcal.logits_from_probs(p.astype("float32"))
        >>> fit = jaxcal.fit_dirichlet(logits, labels)
        >>> print(fit.matrix.round().astype(int))
        [[2 0 0]
         [0 2 0]
         [0 0 2]]

    References:
        Kull, Perello-Nieto, Kaengsepp, Silva Filho, Song and Flach, "Beyond temperature scaling: obtaining
        well-calibrated multiclass probabilities with Dirichlet calibration", NeurIPS 2019.
    """
    strengths = require_penalty(off_diagonal, "off_diagonal"), require_penalty(intercept, "intercept")
    logits, labels, weights = prepare(logits, labels, weights, "fit_dirichlet")
    return report(_fit(logits, labels, weights, strengths), logits, labels, weights, "fit_dirichlet")


@partial(jax.jit, static_argnums=3)
def _fit(logits, labels, weights, strengths):
    u = start(logits, labels, weights)
    features = lambda z, _: shared(log_softmax(z))  # noqa: E731
    theta, *rest = fit_lanes(features, off_diagonal_penalty(*strengths), logits, labels, weights, u, masks=False)
    return DirichletFit(matrix_from(u, theta), theta[..., -1], *rest)
