"""Size of every test at 5 %, by simulation. Slow: `pytest -m slow tests/test_levels.py`.

With JAXCAL_STORE_LEVELS=1 the measured rows are merged into tests/data/levels.csv, which the quick test here reads.
"""

import csv
import pathlib

import jax
import numpy as np
import pytest
from scipy.stats import binom

import jaxcal

TABLE = pathlib.Path(__file__).parent / "data" / "levels.csv"
KEY = ("test", "law", "n")
LAWS = {
    "uniform": lambda rng, shape: rng.random(shape),
    "Beta(.3, .7)": lambda rng, shape: rng.beta(0.3, 0.7, shape),
    "nine atoms": lambda rng, shape: rng.integers(1, 10, shape) / 10,
    "near 0 and 1": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, 0.98) + 0.02 * rng.random(shape),
}
SIZES = (50, 200, 2000)
BLOCK = 250  # data sets in one compiled call


def _simulation(p, y, key):
    return jaxcal.rank_ece_test(p, y, method="simulation", key=key, num_simulations=99)


# test, number of data sets, sizes, and whether it must hold its level without the flag
TESTS = {
    "rank_ece_test": (lambda p, y, key: jaxcal.rank_ece_test(p, y), 10_000, SIZES, False),
    "rank_ece_test, finite": (lambda p, y, key: jaxcal.rank_ece_test(p, y, method="finite"), 10_000, SIZES, True),
    "rank_ece_test, simulation": (_simulation, 10_000, SIZES[:2], True),
    "kolmogorov_smirnov_calibration": (
        lambda p, y, key: jaxcal.kolmogorov_smirnov_calibration(p, y),
        10_000,
        SIZES,
        False,
    ),
    "spiegelhalter_test": (lambda p, y, key: jaxcal.spiegelhalter_test(p, y), 10_000, SIZES, False),
    "weak_calibration_test": (lambda p, y, key: jaxcal.weak_calibration_test(p, y), 10_000, SIZES, False),
    "skce_test, linear": (lambda p, y, key: jaxcal.skce_test(p, y, estimator="linear"), 10_000, SIZES, False),
    "skce_test": (lambda p, y, key: jaxcal.skce_test(p, y, key=key, num_resamples=100), 1000, SIZES, False),
}


def upper_end(num_draws, level=0.05):
    """What a test of the right size exceeds once in 2,000 tables of `num_draws` data sets."""
    return binom.ppf(0.9995, num_draws, level) / num_draws


def lower_end(num_draws, level=0.05):
    return binom.ppf(0.0005, num_draws, level) / num_draws


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", TESTS)
def test_size(name, law, measured):
    test, draws, sizes, _ = TESTS[name]
    call = jax.jit(test)
    for n in sizes:
        p_values, reliable = [], []
        for block in range(draws // BLOCK):
            rng = np.random.default_rng([n, block])
            p = LAWS[law](rng, (BLOCK, n)).astype(np.float32)
            y = rng.random((BLOCK, n)) < p
            result = call(p, y, jax.random.key(block))
            p_values.append(np.asarray(result.p_value))
            reliable.append(np.asarray(result.reliable))
        p_values, reliable = np.concatenate(p_values), np.concatenate(reliable)
        exists = ~np.isnan(p_values)
        measured.append(
            {
                "test": name,
                "law": law,
                "n": n,
                "data_sets": draws,
                "exists": round(float(exists.mean()), 4),
                "size": round(float((p_values <= 0.05).mean()), 4),
                "reliable": round(float(reliable.mean()), 4),
                "upper_end": round(float(upper_end(draws)), 4),
            }
        )
        assert_level_held(measured[-1])


def assert_level_held(row):
    """No size above the upper end of the binomial 99.9 % interval, but where the result says so."""
    assert float(row["size"]) <= float(row["upper_end"]) or float(row["reliable"]) < 0.5, row
    if row["test"] == "rank_ece_test, simulation":
        assert float(row["reliable"]) == 1
        # 99 simulations: p-values of 1/100, 2/100, ..., so 5 % can be met; discrete statistics stay below it
        if row["law"] != "near 0 and 1":
            assert float(row["size"]) >= lower_end(int(row["data_sets"]))


def test_stored_table():
    with TABLE.open(encoding="utf-8") as file:
        stored = list(csv.DictReader(file))
    assert {(row["test"], row["law"], int(row["n"])) for row in stored} == {
        (name, law, n) for name, (_, _, sizes, _) in TESTS.items() for law in LAWS for n in sizes
    }
    for row in stored:
        assert int(row["data_sets"]) == TESTS[row["test"]][1]
        assert_level_held(row)
        if TESTS[row["test"]][3]:
            assert float(row["reliable"]) == 1
