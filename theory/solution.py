"""What a solver of `theory` returns."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from jaxcal.losses import ProperLoss, log_loss
from jaxcal.status import check_status
from theory.gaussian import GaussianDecomposition, decompose
from theory.precision import in_float64


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Solution:
    """The limit of a regularized linear classifier; every field has the broadcast shape of the arguments.

    Attributes:
        eta, gamma, tau, kappa: the fixed point. For ridge regression and LDA eta and gamma are those for which `mean`
            and `variance` have the form they have in logistic regression.
        mean: m, limit of w.mu.
        variance: v, limit of w' Sigma w.
        alignment: a = 2 m / sqrt(v); the error rate is Phi(-a/2) and the refinement error depends on a alone.
        norm: sqrt(v).
        status: `jaxcal.Status`. AT_UPPER_BOUND: regularization 0, and the estimate does not exist because its norm is
            infinite; the values are the limits as the regularization tends to 0, with the alignment of the maximum
            margin (logistic) or the interpolating (LDA) direction. Lanes that failed are NaN.
        residual: largest relative error of the equations at the solution.
        num_steps: evaluations of the equations, int32.
        scale: the forecast is sigma(scale w.x), 1 for logistic regression and 2 for ridge regression and LDA.
    """

    eta: jax.Array
    gamma: jax.Array
    tau: jax.Array
    kappa: jax.Array
    mean: jax.Array
    variance: jax.Array
    alignment: jax.Array
    norm: jax.Array
    status: jax.Array
    residual: jax.Array
    num_steps: jax.Array
    scale: float = field(default=1.0, metadata={"static": True})

    @in_float64
    def decompose(self, *, loss: ProperLoss = log_loss, squeeze: float = 1.0) -> GaussianDecomposition:
        """Risk, calibration, refinement and error rate of the forecast, see `theory.gaussian_decomposition`."""
        return decompose(self.alignment, self.scale * jnp.asarray(self.norm, float), loss=loss, squeeze=squeeze)

    def check(self) -> None:
        """Raise `ValueError` with a written message if any lane failed."""
        check_status(self.status)
