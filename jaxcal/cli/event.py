"""What `jaxcal audit` says of a binary event: every estimate with the interval it can have, and tests."""

import functools
from statistics import NormalDist
from typing import NamedTuple

import jax
import numpy as np

import jaxcal

# Resamples of the debiased error together draw about this many rows: a few seconds.
_DRAWS = 200_000_000
_FEWEST = 100

_Z95 = NormalDist().inv_cdf(0.975)


class Estimate(NamedTuple):
    """A number, the ends of its 95 % interval (None where no honest one is known), and its meaning in a few words."""

    value: float
    lower: float | None
    upper: float | None
    meaning: str


class Test(NamedTuple):
    """A test that the forecasts are calibrated."""

    __test__ = False  # not a test case

    statistic: float
    p_value: float
    reliable: bool
    meaning: str


def estimates(p, y, weights, *, num_bins: int, resamples: int, seed: int) -> tuple[dict[str, Estimate], list[str]]:
    """Estimates of the calibration error of forecasts p of outcomes y, and remarks on what does not exist."""
    remarks = []
    event = {"weights": weights}
    found = {
        "ece": _alone(jaxcal.ece(p, y, num_bins=num_bins, **event), f"{num_bins} equal-width bins"),
        "smooth_ece": _alone(jaxcal.smooth_ece(p, y, **event), "kernel, no bins"),
        "cutoff": _alone(jaxcal.cutoff_calibration_error(p, y, **event), "worst interval"),
    }
    if counts(weights):
        found |= _of_pairs(p, y, event, num_bins, resamples, seed, remarks)
    line = jaxcal.calibration_slope(p, y, **event)
    for name, value, error, ideal in (
        ("slope", line.slope, line.slope_se, "below 1: extreme"),
        ("intercept", line.intercept, line.intercept_se, "ideal 0"),
    ):
        found[name] = Estimate(float(value), float(value - _Z95 * error), float(value + _Z95 * error), ideal)
    status = jaxcal.Status(int(line.status))
    if status == jaxcal.Status.IMPOSSIBLE_EVENT:
        digits = "" if jax.config.jax_enable_x64 else " (or within 3e-8 of it: JAX_ENABLE_X64=1 keeps more digits)"
        remarks.append(f"slope, intercept: a forecast of 0 or 1{digits} was wrong, so that no line exists")
    elif status != jaxcal.Status.CONVERGED:
        remarks.append(f"slope, intercept: {status.name}, no finite line is best")
    return found, remarks


def counts(weights) -> bool:
    """Whether the weights are whole, so that copies of a row can be told from one heavy row."""
    return weights is None or bool(np.all(weights == np.round(weights)))


def resamples_together(n: int, resamples: int) -> int:
    """How many resamples an estimate gets whose every resample passes over all rows: fewer where these are many."""
    return max(2, min(resamples, max(_FEWEST, _DRAWS // n)))


def discrimination(p, y, weights, *, resamples: int, seed: int) -> dict[str, Estimate]:
    """How well the forecasts of one class rank, and whether they come true as often as they say in all."""
    found = {}
    for name, metric, meaning in (
        ("auroc", jaxcal.auroc, "ranking alone"),
        ("observed_expected", jaxcal.observed_expected_ratio, "above 1: low"),
    ):
        found[name] = _alone(metric(p, y, weights=weights), meaning)
        if resamples and np.isfinite(found[name].value):
            options = {"num_resamples": resamples_together(len(p), resamples), "weights": weights}
            draws = jaxcal.bootstrap(metric, jax.random.key(seed), p, y, **options)
            found[name] = found[name]._replace(lower=float(draws.lower), upper=float(draws.upper))
    return found


def _of_pairs(p, y, event, num_bins, resamples, seed, remarks) -> dict[str, Estimate]:
    """Estimates that compare rows with each other."""
    found = {}
    squared = jaxcal.debiased_ece(p, y, num_bins=num_bins, bins="mass", **event)
    found["debiased_ece"] = _alone(squared, "squared, mass bins")
    if resamples and np.isfinite(squared):
        options = {"num_resamples": resamples_together(len(p), resamples), "method": "centred", **event}
        draws = jaxcal.bootstrap(_debiased(num_bins), jax.random.key(seed), p, y, **options)
        found["debiased_ece"] = found["debiased_ece"]._replace(lower=float(draws.lower), upper=float(draws.upper))
        if draws.num_failed:
            remarks.append(f"debiased ECE: {int(draws.num_failed):,} resamples with a bin of one row are left out")
    elif not np.isfinite(squared):
        remarks.append("debiased ECE: a bin holds one row, whose noise cannot be told from its error")
    lower, upper = jaxcal.rank_ece_interval(p, y, **event)
    rank = jaxcal.rank_ece(p, y, **event)
    found["rank_ece"] = Estimate(float(rank), float(lower), float(upper), "squared, no bins")
    return found


def tests(p, y, weights) -> dict[str, Test]:
    """Tests of the hypothesis that forecasts are frequencies."""
    chosen = {
        "rank": (jaxcal.rank_ece_test, "local departures"),
        "cumulative": (jaxcal.kolmogorov_smirnov_calibration, "runs of residuals"),
        "line": (jaxcal.weak_calibration_test, "slope, intercept"),
    }
    if not counts(weights):
        del chosen["rank"]
    found = {}
    for name, (test, meaning) in chosen.items():
        result = test(p, y, weights=weights)
        found[name] = Test(float(result.statistic), float(result.p_value), bool(result.reliable), meaning)
    return found


def _alone(value, meaning: str) -> Estimate:
    return Estimate(float(value), None, None, meaning)


@functools.cache  # the bootstrap compiles once for each function object
def _debiased(num_bins: int):
    return functools.partial(jaxcal.debiased_ece, num_bins=num_bins, bins="mass")
