"""Post-hoc calibrators: fit on held-out data, then call on logits."""

from jaxcal.calibrators.bbq import BBQFit as BBQFit
from jaxcal.calibrators.bbq import fit_bbq as fit_bbq
from jaxcal.calibrators.beta import BetaFit as BetaFit
from jaxcal.calibrators.beta import fit_beta as fit_beta
from jaxcal.calibrators.dirichlet import DirichletFit as DirichletFit
from jaxcal.calibrators.dirichlet import fit_dirichlet as fit_dirichlet
from jaxcal.calibrators.ensemble import CalibratedEnsembleFit as CalibratedEnsembleFit
from jaxcal.calibrators.ensemble import calibrate_ensemble as calibrate_ensemble
from jaxcal.calibrators.ensemble_temperature import EnsembleTemperatureFit as EnsembleTemperatureFit
from jaxcal.calibrators.ensemble_temperature import fit_ensemble_temperature as fit_ensemble_temperature
from jaxcal.calibrators.fit import load as load
from jaxcal.calibrators.folding import fold_affine as fold_affine
from jaxcal.calibrators.folding import fold_temperature as fold_temperature
from jaxcal.calibrators.histogram import HistogramFit as HistogramFit
from jaxcal.calibrators.histogram import fit_histogram as fit_histogram
from jaxcal.calibrators.identity import IdentityFit as IdentityFit
from jaxcal.calibrators.identity import fit_identity as fit_identity
from jaxcal.calibrators.isotonic import IsotonicFit as IsotonicFit
from jaxcal.calibrators.isotonic import fit_isotonic as fit_isotonic
from jaxcal.calibrators.isotonic import isotonic_regression as isotonic_regression
from jaxcal.calibrators.laplace import LaplaceFit as LaplaceFit
from jaxcal.calibrators.laplace import laplace as laplace
from jaxcal.calibrators.matrix_scaling import MatrixScalingFit as MatrixScalingFit
from jaxcal.calibrators.matrix_scaling import fit_matrix_scaling as fit_matrix_scaling
from jaxcal.calibrators.one_vs_one import OneVsOneFit as OneVsOneFit
from jaxcal.calibrators.one_vs_one import one_vs_one as one_vs_one
from jaxcal.calibrators.one_vs_rest import OneVsRestFit as OneVsRestFit
from jaxcal.calibrators.one_vs_rest import one_vs_rest as one_vs_rest
from jaxcal.calibrators.platt import PlattFit as PlattFit
from jaxcal.calibrators.platt import fit_platt as fit_platt
from jaxcal.calibrators.prior_shift import PriorFit as PriorFit
from jaxcal.calibrators.prior_shift import adjust_prior as adjust_prior
from jaxcal.calibrators.prior_shift import estimate_prior as estimate_prior
from jaxcal.calibrators.quadratic import QuadraticFit as QuadraticFit
from jaxcal.calibrators.quadratic import fit_quadratic as fit_quadratic
from jaxcal.calibrators.structured import StructuredMatrixFit as StructuredMatrixFit
from jaxcal.calibrators.structured import StructuredVectorFit as StructuredVectorFit
from jaxcal.calibrators.structured import fit_structured_matrix as fit_structured_matrix
from jaxcal.calibrators.structured import fit_structured_vector as fit_structured_vector
from jaxcal.calibrators.temperature import TemperatureFit as TemperatureFit
from jaxcal.calibrators.temperature import fit_temperature as fit_temperature
from jaxcal.calibrators.vector_scaling import VectorScalingFit as VectorScalingFit
from jaxcal.calibrators.vector_scaling import fit_vector_scaling as fit_vector_scaling
from jaxcal.calibrators.venn_abers import VennAbersFit as VennAbersFit
from jaxcal.calibrators.venn_abers import fit_venn_abers as fit_venn_abers

__all__ = [
    "BBQFit",
    "BetaFit",
    "CalibratedEnsembleFit",
    "DirichletFit",
    "EnsembleTemperatureFit",
    "HistogramFit",
    "IdentityFit",
    "IsotonicFit",
    "LaplaceFit",
    "MatrixScalingFit",
    "OneVsOneFit",
    "OneVsRestFit",
    "PlattFit",
    "PriorFit",
    "QuadraticFit",
    "StructuredMatrixFit",
    "StructuredVectorFit",
    "TemperatureFit",
    "VectorScalingFit",
    "VennAbersFit",
    "adjust_prior",
    "calibrate_ensemble",
    "estimate_prior",
    "fit_bbq",
    "fit_beta",
    "fit_dirichlet",
    "fit_ensemble_temperature",
    "fit_histogram",
    "fit_identity",
    "fit_isotonic",
    "fit_matrix_scaling",
    "fit_platt",
    "fit_quadratic",
    "fit_structured_matrix",
    "fit_structured_vector",
    "fit_temperature",
    "fit_vector_scaling",
    "fit_venn_abers",
    "fold_affine",
    "fold_temperature",
    "isotonic_regression",
    "laplace",
    "load",
    "one_vs_one",
    "one_vs_rest",
]
