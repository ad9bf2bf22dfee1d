"""Numerical building blocks without statistics: roots, isotonic fits, mixtures, softmax, sorting, bins, sums, bits."""

from jaxcal.solvers.bins import bin_rule as bin_rule
from jaxcal.solvers.bins import mass_bin as mass_bin
from jaxcal.solvers.bits import scaled_to as scaled_to
from jaxcal.solvers.bits import threefry as threefry
from jaxcal.solvers.class_features import Own as Own
from jaxcal.solvers.class_features import Shared as Shared
from jaxcal.solvers.inserted import inserted_steps as inserted_steps
from jaxcal.solvers.isotonic import isotonic_frequencies as isotonic_frequencies
from jaxcal.solvers.isotonic import isotonic_regression as isotonic_regression
from jaxcal.solvers.logistic import LogisticOptimum as LogisticOptimum
from jaxcal.solvers.logistic import logistic_regression as logistic_regression
from jaxcal.solvers.mixture import MixtureOptimum as MixtureOptimum
from jaxcal.solvers.mixture import log_mixture as log_mixture
from jaxcal.solvers.mixture import mixture_weights as mixture_weights
from jaxcal.solvers.root import Root as Root
from jaxcal.solvers.root import bracketed_root as bracketed_root
from jaxcal.solvers.softmax import has_softmax as has_softmax
from jaxcal.solvers.softmax import log_normalizer as log_normalizer
from jaxcal.solvers.softmax import log_softmax as log_softmax
from jaxcal.solvers.softmax import row_sums as row_sums
from jaxcal.solvers.softmax import scaled as scaled
from jaxcal.solvers.softmax import shifted as shifted
from jaxcal.solvers.softmax_regression import class_losses as class_losses
from jaxcal.solvers.softmax_regression import softmax_regression as softmax_regression
from jaxcal.solvers.sort import argsort as argsort
from jaxcal.solvers.sort import sort as sort
from jaxcal.solvers.sums import add_pairs as add_pairs
from jaxcal.solvers.sums import run_totals as run_totals
from jaxcal.solvers.sums import running_totals as running_totals
from jaxcal.solvers.sums import runs as runs
from jaxcal.solvers.sums import segment_totals as segment_totals
from jaxcal.solvers.sums import total as total

__all__ = [
    "LogisticOptimum",
    "MixtureOptimum",
    "Own",
    "Root",
    "Shared",
    "add_pairs",
    "argsort",
    "bin_rule",
    "bracketed_root",
    "class_losses",
    "has_softmax",
    "inserted_steps",
    "isotonic_frequencies",
    "isotonic_regression",
    "log_mixture",
    "log_normalizer",
    "log_softmax",
    "logistic_regression",
    "mass_bin",
    "mixture_weights",
    "row_sums",
    "run_totals",
    "running_totals",
    "runs",
    "scaled",
    "scaled_to",
    "segment_totals",
    "shifted",
    "softmax_regression",
    "sort",
    "threefry",
    "total",
]
