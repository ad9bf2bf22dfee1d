"""Data sets that several test files share; see the sections of each for where the expected numbers come from."""

import csv
import os

import jax
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

# Eight rows of three classes and ten forecasts of a binary event: small enough for mpmath and exact fractions.
M8_LOGITS = np.array(
    [
        (2, 0.5, -1),
        (0.2, 1.5, 0.3),
        (-0.5, 0.1, 2.2),
        (1, 1.2, -0.3),
        (0, 3, 1),
        (2.5, -1, 0.4),
        (-1.5, 0.5, 1),
        (0.8, 0.6, 0.7),
    ]
)
M8_LABELS = np.array([0, 1, 2, 0, 2, 0, 1, 2])
D10_PROBABILITIES = np.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
D10_OUTCOMES = np.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1])


@pytest.fixture
def m8():
    """Logits (8, 3) and labels, in the default float dtype of the run."""
    return jax.numpy.asarray(M8_LOGITS), jax.numpy.asarray(M8_LABELS)


@pytest.fixture
def d10():
    """Probabilities and outcomes of a binary event, n = 10, no ties."""
    return jax.numpy.asarray(D10_PROBABILITIES), jax.numpy.asarray(D10_OUTCOMES)


def pytest_collection_modifyitems(items):
    """Tests marked `once` would show in the run with x64 on what they show in the other."""
    if jax.config.jax_enable_x64:
        skip = pytest.mark.skip(reason="marked once: tested with x64 off")
        for item in items:
            if item.get_closest_marker("once"):
                item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled():
    """A process may map some 65,000 pieces of memory; a few thousand compiled programs use them up and it crashes."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Whether the run is in float64."""
    return jax.config.jax_enable_x64


@pytest.fixture
def eps(x64):
    """Machine epsilon of the default float dtype of the run."""
    return float(np.finfo(np.float64 if x64 else np.float32).eps)


@pytest.fixture(scope="session")
def store_rows():
    """`store_rows(table, key, rows)`: put rows into a CSV table, in the place of those with the same key columns."""

    def store(table, key, rows):
        merged = {}
        if table.exists():
            with table.open(encoding="utf-8", newline="") as file:
                merged = {tuple(row[k] for k in key): row for row in csv.DictReader(file)}
        merged |= {tuple(str(row[k]) for k in key): row for row in rows}
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(merged.values())

    return store


@pytest.fixture(scope="module")
def measured(request, store_rows):
    """Rows that a module measures by simulation; with JAXCAL_STORE_LEVELS=1 they end up in its TABLE, by its KEY."""
    rows = []
    yield rows
    if os.environ.get("JAXCAL_STORE_LEVELS") and rows:
        store_rows(request.module.TABLE, request.module.KEY, rows)
