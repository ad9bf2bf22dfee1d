"""theory: exact high-dimensional limits of calibration and refinement.

What regularized logistic regression, ridge regression and linear discriminant analysis do on Gaussian classes as
samples and features grow together: risk, calibration and refinement on the regularization path, and where each is
smallest.
"""

from theory.curves import LearningCurve as LearningCurve
from theory.curves import learning_curve as learning_curve
from theory.gaussian import GaussianDecomposition as GaussianDecomposition
from theory.gaussian import gaussian_decomposition as gaussian_decomposition
from theory.limits import separability_threshold as separability_threshold
from theory.limits import separation as separation
from theory.logistic import solve_logistic as solve_logistic
from theory.minima import Minimizers as Minimizers
from theory.minima import minimizer_map as minimizer_map
from theory.minima import minimizers as minimizers
from theory.simulation import Simulation as Simulation
from theory.simulation import simulate as simulate
from theory.solution import Solution as Solution
from theory.spectra import BetaSpectrum as BetaSpectrum
from theory.spectra import DiscreteSpectrum as DiscreteSpectrum
from theory.square_loss import solve_lda as solve_lda
from theory.square_loss import solve_ridge as solve_ridge

__all__ = [
    "BetaSpectrum",
    "DiscreteSpectrum",
    "GaussianDecomposition",
    "LearningCurve",
    "Minimizers",
    "Simulation",
    "Solution",
    "gaussian_decomposition",
    "learning_curve",
    "minimizer_map",
    "minimizers",
    "separability_threshold",
    "separation",
    "simulate",
    "solve_lda",
    "solve_logistic",
    "solve_ridge",
]
