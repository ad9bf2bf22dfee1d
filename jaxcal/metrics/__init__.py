"""Estimators and tests of calibration, and the data behind reliability diagrams."""

from jaxcal.metrics.accuracy import accuracy as accuracy
from jaxcal.metrics.binned import ece as ece
from jaxcal.metrics.cutoff import cutoff_calibration_error as cutoff_calibration_error
from jaxcal.metrics.kolmogorov_smirnov import kolmogorov_smirnov_calibration as kolmogorov_smirnov_calibration
from jaxcal.metrics.rank import rank_ece as rank_ece
from jaxcal.metrics.rank import rank_ece_interval as rank_ece_interval
from jaxcal.metrics.rank_test import rank_ece_test as rank_ece_test
from jaxcal.metrics.reliability import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics.reliability import reliability_curve as reliability_curve
from jaxcal.metrics.smooth_ece import smooth_ece as smooth_ece
from jaxcal.metrics.smooth_reliability import SmoothReliabilityCurve as SmoothReliabilityCurve
from jaxcal.metrics.smooth_reliability import smooth_reliability_curve as smooth_reliability_curve
from jaxcal.metrics.spiegelhalter import spiegelhalter_test as spiegelhalter_test
from jaxcal.metrics.test_result import TestResult as TestResult

__all__ = [
    "ReliabilityCurve",
    "SmoothReliabilityCurve",
    "TestResult",
    "accuracy",
    "cutoff_calibration_error",
    "ece",
    "kolmogorov_smirnov_calibration",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
    "smooth_ece",
    "smooth_reliability_curve",
    "spiegelhalter_test",
]
