"""jaxcal: measure, decompose and repair the calibration of classifiers, in JAX."""

from jaxcal import boosting as boosting
from jaxcal import early_stopping as early_stopping
from jaxcal import streaming as streaming
from jaxcal.bootstrap import BootstrapResult as BootstrapResult
from jaxcal.bootstrap import bootstrap as bootstrap
from jaxcal.calibrators import BBQFit as BBQFit
from jaxcal.calibrators import BetaFit as BetaFit
from jaxcal.calibrators import CalibratedEnsembleFit as CalibratedEnsembleFit
from jaxcal.calibrators import DirichletFit as DirichletFit
from jaxcal.calibrators import EnsembleTemperatureFit as EnsembleTemperatureFit
from jaxcal.calibrators import HistogramFit as HistogramFit
from jaxcal.calibrators import IdentityFit as IdentityFit
from jaxcal.calibrators import IsotonicFit as IsotonicFit
from jaxcal.calibrators import LaplaceFit as LaplaceFit
from jaxcal.calibrators import MatrixScalingFit as MatrixScalingFit
from jaxcal.calibrators import OneVsOneFit as OneVsOneFit
from jaxcal.calibrators import OneVsRestFit as OneVsRestFit
from jaxcal.calibrators import PlattFit as PlattFit
from jaxcal.calibrators import PriorFit as PriorFit
from jaxcal.calibrators import QuadraticFit as QuadraticFit
from jaxcal.calibrators import StructuredMatrixFit as StructuredMatrixFit
from jaxcal.calibrators import StructuredVectorFit as StructuredVectorFit
from jaxcal.calibrators import TemperatureFit as TemperatureFit
from jaxcal.calibrators import VectorScalingFit as VectorScalingFit
from jaxcal.calibrators import VennAbersFit as VennAbersFit
from jaxcal.calibrators import adjust_prior as adjust_prior
from jaxcal.calibrators import calibrate_ensemble as calibrate_ensemble
from jaxcal.calibrators import estimate_prior as estimate_prior
from jaxcal.calibrators import fit_bbq as fit_bbq
from jaxcal.calibrators import fit_beta as fit_beta
from jaxcal.calibrators import fit_dirichlet as fit_dirichlet
from jaxcal.calibrators import fit_ensemble_temperature as fit_ensemble_temperature
from jaxcal.calibrators import fit_histogram as fit_histogram
from jaxcal.calibrators import fit_identity as fit_identity
from jaxcal.calibrators import fit_isotonic as fit_isotonic
from jaxcal.calibrators import fit_matrix_scaling as fit_matrix_scaling
from jaxcal.calibrators import fit_platt as fit_platt
from jaxcal.calibrators import fit_quadratic as fit_quadratic
from jaxcal.calibrators import fit_structured_matrix as fit_structured_matrix
from jaxcal.calibrators import fit_structured_vector as fit_structured_vector
from jaxcal.calibrators import fit_temperature as fit_temperature
from jaxcal.calibrators import fit_vector_scaling as fit_vector_scaling
from jaxcal.calibrators import fit_venn_abers as fit_venn_abers
from jaxcal.calibrators import fold_affine as fold_affine
from jaxcal.calibrators import fold_temperature as fold_temperature
from jaxcal.calibrators import isotonic_regression as isotonic_regression
from jaxcal.calibrators import laplace as laplace
from jaxcal.calibrators import load as load
from jaxcal.calibrators import one_vs_one as one_vs_one
from jaxcal.calibrators import one_vs_rest as one_vs_rest
from jaxcal.cross_fit import cross_fit as cross_fit
from jaxcal.decomposition import Decomposition as Decomposition
from jaxcal.decomposition import decompose as decompose
from jaxcal.early_stopping import select_epoch as select_epoch
from jaxcal.history import History as History
from jaxcal.inputs import binary_event as binary_event
from jaxcal.inputs import binary_logits as binary_logits
from jaxcal.inputs import class_wise as class_wise
from jaxcal.inputs import log_odds as log_odds
from jaxcal.inputs import logits_from_probs as logits_from_probs
from jaxcal.inputs import top_label as top_label
from jaxcal.losses import ProperLoss as ProperLoss
from jaxcal.losses import brier_loss as brier_loss
from jaxcal.losses import half_brier_loss as half_brier_loss
from jaxcal.losses import log_loss as log_loss
from jaxcal.losses import risk as risk
from jaxcal.losses import spherical_loss as spherical_loss
from jaxcal.metrics import CalibrationIndex as CalibrationIndex
from jaxcal.metrics import CalibrationLine as CalibrationLine
from jaxcal.metrics import ConfidenceError as ConfidenceError
from jaxcal.metrics import CorpCurve as CorpCurve
from jaxcal.metrics import CorpDecomposition as CorpDecomposition
from jaxcal.metrics import Interval as Interval
from jaxcal.metrics import MurphyDecomposition as MurphyDecomposition
from jaxcal.metrics import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics import SmoothReliabilityCurve as SmoothReliabilityCurve
from jaxcal.metrics import SweepResult as SweepResult
from jaxcal.metrics import TestResult as TestResult
from jaxcal.metrics import accuracy as accuracy
from jaxcal.metrics import ace as ace
from jaxcal.metrics import auroc as auroc
from jaxcal.metrics import calibration_intercept as calibration_intercept
from jaxcal.metrics import calibration_slope as calibration_slope
from jaxcal.metrics import corp_consistency_band as corp_consistency_band
from jaxcal.metrics import corp_decomposition as corp_decomposition
from jaxcal.metrics import corp_reliability_curve as corp_reliability_curve
from jaxcal.metrics import cutoff_calibration_error as cutoff_calibration_error
from jaxcal.metrics import debiased_ece as debiased_ece
from jaxcal.metrics import ece as ece
from jaxcal.metrics import ece_sweep as ece_sweep
from jaxcal.metrics import ici as ici
from jaxcal.metrics import kolmogorov_smirnov_calibration as kolmogorov_smirnov_calibration
from jaxcal.metrics import murphy_decomposition as murphy_decomposition
from jaxcal.metrics import observed_expected_ratio as observed_expected_ratio
from jaxcal.metrics import rank_ece as rank_ece
from jaxcal.metrics import rank_ece_interval as rank_ece_interval
from jaxcal.metrics import rank_ece_test as rank_ece_test
from jaxcal.metrics import reliability_curve as reliability_curve
from jaxcal.metrics import skce as skce
from jaxcal.metrics import skce_multiclass as skce_multiclass
from jaxcal.metrics import skce_multiclass_test as skce_multiclass_test
from jaxcal.metrics import skce_test as skce_test
from jaxcal.metrics import smooth_ece as smooth_ece
from jaxcal.metrics import smooth_reliability_curve as smooth_reliability_curve
from jaxcal.metrics import spiegelhalter_test as spiegelhalter_test
from jaxcal.metrics import variational_calibration_error as variational_calibration_error
from jaxcal.metrics import variational_confidence_error as variational_confidence_error
from jaxcal.metrics import weak_calibration_test as weak_calibration_test
from jaxcal.savage import proper_loss as proper_loss
from jaxcal.selection import CalibratorSelection as CalibratorSelection
from jaxcal.selection import default_calibrators as default_calibrators
from jaxcal.selection import select_calibrator as select_calibrator
from jaxcal.status import Status as Status

__version__ = "0.1.0"

__all__ = [
    "BBQFit",
    "BetaFit",
    "BootstrapResult",
    "CalibratedEnsembleFit",
    "CalibrationIndex",
    "CalibrationLine",
    "CalibratorSelection",
    "ConfidenceError",
    "CorpCurve",
    "CorpDecomposition",
    "Decomposition",
    "DirichletFit",
    "EnsembleTemperatureFit",
    "HistogramFit",
    "History",
    "IdentityFit",
    "Interval",
    "IsotonicFit",
    "LaplaceFit",
    "MatrixScalingFit",
    "MurphyDecomposition",
    "OneVsOneFit",
    "OneVsRestFit",
    "PlattFit",
    "PriorFit",
    "ProperLoss",
    "QuadraticFit",
    "ReliabilityCurve",
    "SmoothReliabilityCurve",
    "Status",
    "StructuredMatrixFit",
    "StructuredVectorFit",
    "SweepResult",
    "TemperatureFit",
    "TestResult",
    "VectorScalingFit",
    "VennAbersFit",
    "accuracy",
    "ace",
    "adjust_prior",
    "auroc",
    "binary_event",
    "binary_logits",
    "boosting",
    "bootstrap",
    "brier_loss",
    "calibrate_ensemble",
    "calibration_intercept",
    "calibration_slope",
    "class_wise",
    "corp_consistency_band",
    "corp_decomposition",
    "corp_reliability_curve",
    "cross_fit",
    "cutoff_calibration_error",
    "debiased_ece",
    "decompose",
    "default_calibrators",
    "early_stopping",
    "ece",
    "ece_sweep",
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
    "half_brier_loss",
    "ici",
    "isotonic_regression",
    "kolmogorov_smirnov_calibration",
    "laplace",
    "load",
    "log_loss",
    "log_odds",
    "logits_from_probs",
    "murphy_decomposition",
    "observed_expected_ratio",
    "one_vs_one",
    "one_vs_rest",
    "proper_loss",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
    "risk",
    "select_calibrator",
    "select_epoch",
    "skce",
    "skce_multiclass",
    "skce_multiclass_test",
    "skce_test",
    "smooth_ece",
    "smooth_reliability_curve",
    "spherical_loss",
    "spiegelhalter_test",
    "streaming",
    "top_label",
    "variational_calibration_error",
    "variational_confidence_error",
    "weak_calibration_test",
]
