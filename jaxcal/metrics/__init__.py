"""Estimators and tests of calibration, and the data behind reliability diagrams."""

from jaxcal.metrics.accuracy import accuracy as accuracy
from jaxcal.metrics.binned import ece as ece
from jaxcal.metrics.rank import rank_ece as rank_ece
from jaxcal.metrics.rank import rank_ece_interval as rank_ece_interval
from jaxcal.metrics.rank_test import rank_ece_test as rank_ece_test
from jaxcal.metrics.reliability import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics.reliability import reliability_curve as reliability_curve
from jaxcal.metrics.test_result import TestResult as TestResult
from jaxcal.metrics.variational import ConfidenceError as ConfidenceError
from jaxcal.metrics.variational import variational_calibration_error as variational_calibration_error
from jaxcal.metrics.variational import variational_confidence_error as variational_confidence_error

__all__ = [
    "ConfidenceError",
    "ReliabilityCurve",
    "TestResult",
    "accuracy",
    "ece",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
    "variational_calibration_error",
    "variational_confidence_error",
]
