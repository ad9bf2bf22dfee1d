"""What `jaxcal audit` says of the confidence: every estimate with the interval it can have, and tests."""

import functools
from typing import NamedTuple

import jax
import numpy as np

import jaxcal

# Resamples of the debiased error together draw about this many rows: a few seconds.
_DRAWS = 200_000_000
_FEWEST = 100

_Z95 = 1.959963984540054  # 97.5 % point of the normal law


class Estimate(NamedTuple):
    """A number, the ends of its 95 % interval (None where no honest one is known), and its meaning in three words."""

    value: float
    lower: float | None
    upper: float | None
    meaning: str


class Test(NamedTuple):
    """A test that the confidence is calibrated."""

    __test__ = False  # not a test case

    statistic: float
    p_value: float
    reliable: bool
    meaning: str


def estimates(confidence, correct, weights, *, num_bins: int, resamples: int, seed: int) -> dict[str, Estimate]:
    """Estimates of the calibration error of the event "the predicted class is right"."""
    event = {"weights": weights}
    found = {
        "ece": _alone(jaxcal.ece(confidence, correct, num_bins=num_bins, **event), f"plug-in, {num_bins} bins"),
        "smooth_ece": _alone(jaxcal.smooth_ece(confidence, correct, **event), "kernel, no bins"),
        "cutoff": _alone(jaxcal.cutoff_calibration_error(confidence, correct, **event), "worst interval"),
    }
    if counts(weights):
        found |= _of_pairs(confidence, correct, event, num_bins, resamples, seed)
    line = jaxcal.calibration_slope(confidence, correct, **event)
    for name, value, error, ideal in (
        ("slope", line.slope, line.slope_se, "ideal 1; < 1: extreme"),
        ("intercept", line.intercept, line.intercept_se, "ideal 0"),
    ):
        found[name] = Estimate(float(value), float(value - _Z95 * error), float(value + _Z95 * error), ideal)
    return found


def counts(weights) -> bool:
    """Whether the weights are whole, so that copies of a row can be told from one heavy row."""
    return weights is None or bool(np.all(weights == np.round(weights)))


def _of_pairs(confidence, correct, event, num_bins, resamples, seed) -> dict[str, Estimate]:
    """Estimates that compare rows with each other."""
    found = {}
    squared = jaxcal.debiased_ece(confidence, correct, num_bins=num_bins, bins="mass", **event)
    found["debiased_ece"] = _alone(squared, f"squared, {num_bins} bins")
    if resamples and np.isfinite(squared):
        count = max(min(resamples, _FEWEST), min(resamples, _DRAWS // len(confidence)))
        options = {"num_resamples": max(count, 2), "method": "centred", **event}
        draws = jaxcal.bootstrap(_debiased(num_bins), jax.random.key(seed), confidence, correct, **options)
        found["debiased_ece"] = found["debiased_ece"]._replace(lower=float(draws.lower), upper=float(draws.upper))
    lower, upper = jaxcal.rank_ece_interval(confidence, correct, **event)
    rank = jaxcal.rank_ece(confidence, correct, **event)
    found["rank_ece"] = Estimate(float(rank), float(lower), float(upper), "squared, no bins")
    return found


def tests(confidence, correct, weights) -> dict[str, Test]:
    """Tests of the hypothesis that confidences are frequencies."""
    chosen = {
        "rank": (jaxcal.rank_ece_test, "any departure"),
        "cumulative": (jaxcal.kolmogorov_smirnov_calibration, "runs of residuals"),
        "line": (jaxcal.weak_calibration_test, "slope, intercept"),
    }
    if not counts(weights):
        del chosen["rank"]
    found = {}
    for name, (test, meaning) in chosen.items():
        result = test(confidence, correct, weights=weights)
        found[name] = Test(float(result.statistic), float(result.p_value), bool(result.reliable), meaning)
    return found


def _alone(value, meaning: str) -> Estimate:
    return Estimate(float(value), None, None, meaning)


@functools.cache  # the bootstrap compiles once for each function object
def _debiased(num_bins: int):
    return functools.partial(jaxcal.debiased_ece, num_bins=num_bins, bins="mass")
