"""jaxcal: measure, decompose and repair the calibration of classifiers, in JAX."""

from jaxcal.bootstrap import BootstrapResult as BootstrapResult
from jaxcal.bootstrap import bootstrap as bootstrap
from jaxcal.calibrators import LaplaceFit as LaplaceFit
from jaxcal.calibrators import OneVsRestFit as OneVsRestFit
from jaxcal.calibrators import TemperatureFit as TemperatureFit
from jaxcal.calibrators import fit_temperature as fit_temperature
from jaxcal.calibrators import laplace as laplace
from jaxcal.calibrators import load as load
from jaxcal.calibrators import one_vs_rest as one_vs_rest
from jaxcal.cross_fit import cross_fit as cross_fit
from jaxcal.decomposition import Decomposition as Decomposition
from jaxcal.decomposition import decompose as decompose
from jaxcal.early_stopping import select_epoch as select_epoch
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
from jaxcal.metrics import ReliabilityCurve as ReliabilityCurve
from jaxcal.metrics import SweepResult as SweepResult
from jaxcal.metrics import TestResult as TestResult
from jaxcal.metrics import accuracy as accuracy
from jaxcal.metrics import ace as ace
from jaxcal.metrics import debiased_ece as debiased_ece
from jaxcal.metrics import ece as ece
from jaxcal.metrics import ece_sweep as ece_sweep
from jaxcal.metrics import rank_ece as rank_ece
from jaxcal.metrics import rank_ece_interval as rank_ece_interval
from jaxcal.metrics import rank_ece_test as rank_ece_test
from jaxcal.metrics import reliability_curve as reliability_curve
from jaxcal.savage import proper_loss as proper_loss
from jaxcal.status import Status as Status

__version__ = "0.1.0"

__all__ = [
    "BootstrapResult",
    "Decomposition",
    "LaplaceFit",
    "OneVsRestFit",
    "ProperLoss",
    "ReliabilityCurve",
    "Status",
    "SweepResult",
    "TemperatureFit",
    "TestResult",
    "accuracy",
    "ace",
    "binary_event",
    "binary_logits",
    "bootstrap",
    "brier_loss",
    "class_wise",
    "cross_fit",
    "debiased_ece",
    "decompose",
    "ece",
    "ece_sweep",
    "fit_temperature",
    "half_brier_loss",
    "laplace",
    "load",
    "log_loss",
    "log_odds",
    "logits_from_probs",
    "one_vs_rest",
    "proper_loss",
    "rank_ece",
    "rank_ece_interval",
    "rank_ece_test",
    "reliability_curve",
    "risk",
    "select_epoch",
    "spherical_loss",
    "top_label",
]
