"""jaxcal: measure, decompose and repair the calibration of classifiers, in JAX."""

from jaxcal.calibrators import TemperatureFit as TemperatureFit
from jaxcal.calibrators import fit_temperature as fit_temperature
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
from jaxcal.losses import proper_loss as proper_loss
from jaxcal.losses import risk as risk
from jaxcal.losses import spherical_loss as spherical_loss
from jaxcal.status import Status as Status
