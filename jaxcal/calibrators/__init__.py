"""Post-hoc calibrators: fit on held-out data, then call on logits."""

from jaxcal.calibrators.temperature import TemperatureFit as TemperatureFit
from jaxcal.calibrators.temperature import fit_temperature as fit_temperature
