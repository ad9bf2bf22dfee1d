"""Metrics and estimators of calibration error; binary ones take `(probabilities, outcomes)`."""

from jaxcal.metrics.accuracy import accuracy as accuracy
from jaxcal.metrics.binned import ece as ece
from jaxcal.metrics.reliability import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics.reliability import reliability_curve as reliability_curve

__all__ = ["ReliabilityCurve", "accuracy", "ece", "reliability_curve"]
