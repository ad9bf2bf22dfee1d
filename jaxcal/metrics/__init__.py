"""Estimators and tests of calibration, and the data behind reliability diagrams."""

from jaxcal.metrics.accuracy import accuracy as accuracy
from jaxcal.metrics.binned import ace as ace
from jaxcal.metrics.binned import ece as ece
from jaxcal.metrics.debiased import debiased_ece as debiased_ece
from jaxcal.metrics.rank import rank_ece as rank_ece
from jaxcal.metrics.rank import rank_ece_interval as rank_ece_interval
from jaxcal.metrics.rank_test import rank_ece_test as rank_ece_test
from jaxcal.metrics.reliability import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics.reliability import reliability_curve as reliability_curve
from jaxcal.metrics.sweep import SweepResult as SweepResult
from jaxcal.metrics.sweep import ece_sweep as ece_sweep
from jaxcal.metrics.test_result import TestResult as TestResult

__all__ = [
    "ReliabilityCurve",
    "SweepResult",
    "TestResult",
    "accuracy",
    "ace",
    "debiased_ece",
    "ece",
    "ece_sweep",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
]
