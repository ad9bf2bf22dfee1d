"""Figures of the theory: each takes `ax=None`, returns Axes and leaves matplotlib's settings alone. Extra: `plot`."""

from theory.plots.curves import learning_curve as learning_curve
from theory.plots.maps import minimizer_gap as minimizer_gap
from theory.plots.maps import minimizer_map as minimizer_map
from theory.plots.maps import minimizer_maps as minimizer_maps

__all__ = ["learning_curve", "minimizer_gap", "minimizer_map", "minimizer_maps"]
