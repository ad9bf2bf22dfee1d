"""Estimators and tests of calibration, and the data behind reliability diagrams."""

from jaxcal.metrics.accuracy import accuracy as accuracy
from jaxcal.metrics.binned import ece as ece
from jaxcal.metrics.rank import rank_ece as rank_ece
from jaxcal.metrics.rank import rank_ece_interval as rank_ece_interval
from jaxcal.metrics.rank_test import rank_ece_test as rank_ece_test
from jaxcal.metrics.reliability import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics.reliability import reliability_curve as reliability_curve
from jaxcal.metrics.skce import skce as skce
from jaxcal.metrics.skce import skce_multiclass as skce_multiclass
from jaxcal.metrics.skce_test import skce_multiclass_test as skce_multiclass_test
from jaxcal.metrics.skce_test import skce_test as skce_test
from jaxcal.metrics.test_result import TestResult as TestResult

__all__ = [
    "ReliabilityCurve",
    "TestResult",
    "accuracy",
    "ece",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
    "skce",
    "skce_multiclass",
    "skce_multiclass_test",
    "skce_test",
]
