"""Estimators and tests of calibration, and the data behind reliability diagrams."""

from jaxcal.metrics.accuracy import accuracy as accuracy
from jaxcal.metrics.auroc import auroc as auroc
from jaxcal.metrics.binned import ace as ace
from jaxcal.metrics.binned import ece as ece
from jaxcal.metrics.clinical import CalibrationLine as CalibrationLine
from jaxcal.metrics.clinical import calibration_intercept as calibration_intercept
from jaxcal.metrics.clinical import calibration_slope as calibration_slope
from jaxcal.metrics.clinical import observed_expected_ratio as observed_expected_ratio
from jaxcal.metrics.clinical import weak_calibration_test as weak_calibration_test
from jaxcal.metrics.corp import CorpCurve as CorpCurve
from jaxcal.metrics.corp import CorpDecomposition as CorpDecomposition
from jaxcal.metrics.corp import corp_consistency_band as corp_consistency_band
from jaxcal.metrics.corp import corp_decomposition as corp_decomposition
from jaxcal.metrics.corp import corp_reliability_curve as corp_reliability_curve
from jaxcal.metrics.cutoff import cutoff_calibration_error as cutoff_calibration_error
from jaxcal.metrics.debiased import debiased_ece as debiased_ece
from jaxcal.metrics.ici import CalibrationIndex as CalibrationIndex
from jaxcal.metrics.ici import ici as ici
from jaxcal.metrics.kolmogorov_smirnov import kolmogorov_smirnov_calibration as kolmogorov_smirnov_calibration
from jaxcal.metrics.murphy import MurphyDecomposition as MurphyDecomposition
from jaxcal.metrics.murphy import murphy_decomposition as murphy_decomposition
from jaxcal.metrics.rank import rank_ece as rank_ece
from jaxcal.metrics.rank import rank_ece_interval as rank_ece_interval
from jaxcal.metrics.rank_test import rank_ece_test as rank_ece_test
from jaxcal.metrics.reliability import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics.reliability import reliability_curve as reliability_curve
from jaxcal.metrics.results import Interval as Interval
from jaxcal.metrics.results import TestResult as TestResult
from jaxcal.metrics.skce import skce as skce
from jaxcal.metrics.skce import skce_multiclass as skce_multiclass
from jaxcal.metrics.skce_test import skce_multiclass_test as skce_multiclass_test
from jaxcal.metrics.skce_test import skce_test as skce_test
from jaxcal.metrics.smooth_ece import smooth_ece as smooth_ece
from jaxcal.metrics.smooth_reliability import SmoothReliabilityCurve as SmoothReliabilityCurve
from jaxcal.metrics.smooth_reliability import smooth_reliability_curve as smooth_reliability_curve
from jaxcal.metrics.spiegelhalter import spiegelhalter_test as spiegelhalter_test
from jaxcal.metrics.sweep import SweepResult as SweepResult
from jaxcal.metrics.sweep import ece_sweep as ece_sweep
from jaxcal.metrics.variational import ConfidenceError as ConfidenceError
from jaxcal.metrics.variational import variational_calibration_error as variational_calibration_error
from jaxcal.metrics.variational import variational_confidence_error as variational_confidence_error

__all__ = [
    "CalibrationIndex",
    "CalibrationLine",
    "ConfidenceError",
    "CorpCurve",
    "CorpDecomposition",
    "Interval",
    "MurphyDecomposition",
    "ReliabilityCurve",
    "SmoothReliabilityCurve",
    "SweepResult",
    "TestResult",
    "accuracy",
    "ace",
    "auroc",
    "calibration_intercept",
    "calibration_slope",
    "corp_consistency_band",
    "corp_decomposition",
    "corp_reliability_curve",
    "cutoff_calibration_error",
    "debiased_ece",
    "ece",
    "ece_sweep",
    "ici",
    "kolmogorov_smirnov_calibration",
    "murphy_decomposition",
    "observed_expected_ratio",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
    "skce",
    "skce_multiclass",
    "skce_multiclass_test",
    "skce_test",
    "smooth_ece",
    "smooth_reliability_curve",
    "spiegelhalter_test",
    "variational_calibration_error",
    "variational_confidence_error",
    "weak_calibration_test",
]
