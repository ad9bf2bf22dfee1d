"""Figures: each takes `ax=None`, returns the Axes and leaves matplotlib's settings alone. Extra: `plot`."""

from jaxcal.plots.epochs import decomposition_curves as decomposition_curves
from jaxcal.plots.reliability import reliability_diagram as reliability_diagram

__all__ = ["decomposition_curves", "reliability_diagram"]
