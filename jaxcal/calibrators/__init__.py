"""Post-hoc calibrators: fit on held-out data, then call on logits."""

from jaxcal.calibrators.fit import load as load
from jaxcal.calibrators.laplace import LaplaceFit as LaplaceFit
from jaxcal.calibrators.laplace import laplace as laplace
from jaxcal.calibrators.one_vs_rest import OneVsRestFit as OneVsRestFit
from jaxcal.calibrators.one_vs_rest import one_vs_rest as one_vs_rest
from jaxcal.calibrators.temperature import TemperatureFit as TemperatureFit
from jaxcal.calibrators.temperature import fit_temperature as fit_temperature

__all__ = [
    "LaplaceFit",
    "OneVsRestFit",
    "TemperatureFit",
    "fit_temperature",
    "laplace",
    "load",
    "one_vs_rest",
]
