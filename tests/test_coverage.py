"""Coverage of every interval at n = 2000, and means of the estimators that are called unbiased, by simulation.

The laws have finitely many forecasts, so that what is estimated is an exact finite sum, computed here in NumPy. The
coverage is slow: `pytest -m slow tests/test_coverage.py`, a quarter of an hour. With JAXCAL_STORE_LEVELS=1 what was
measured is merged into tests/data/coverage.csv, which the quick test reads.
"""

import csv
import math
import pathlib
from functools import partial

import jax
import numpy as np
import pytest
from jax import lax
from scipy.optimize import brentq
from scipy.special import expit, log_softmax, logit, softmax

import jaxcal

TABLE = pathlib.Path(__file__).parent / "data" / "coverage.csv"
KEY = ("quantity", "law", "outcomes")
N = 2000
LEVEL = 0.95
BLOCK = 50  # data sets in one compiled call

# Equally likely forecasts, as float32 holds them. Most of the thousand are below 1/2: where both outcomes are equally
# frequent, the variance of the outcomes is stationary and its estimate not normal.
LAWS = {
    "thousand atoms": (((np.arange(1000) + 0.5) / 1000) ** 1.5).astype(np.float32).astype(np.float64),
    "nine atoms": (np.arange(1, 10) / 10).astype(np.float32).astype(np.float64),
}
OUTCOMES = {"calibrated": lambda p: p, "miscalibrated": lambda p: p**2}  # P(y = 1 | p)

# A thousand logits of three classes, the first twice as frequent as the others; miscalibrated: far too extreme, and no
# temperature makes them right.
LOGITS = np.random.default_rng(0).normal(0, 2, (1000, 3)) + [1.5, 0, 0]
LOGITS = LOGITS.astype(np.float32).astype(np.float64)
BALANCED = 2 * np.eye(3)  # three rows of logits: all classes are equally frequent
CLASSES = {"calibrated": lambda z: softmax(z, -1), "miscalibrated": lambda z: softmax(z / 3 + [0.5, 0, 0], -1)}


def draw(rng, law, outcomes, shape):
    """Forecasts, the probabilities of their outcomes, and outcomes."""
    p = rng.choice(LAWS[law], shape)
    probability = OUTCOMES[outcomes](p)
    return p.astype(np.float32), probability, rng.random(shape) < probability


def draw_classes(rng, logits, probability, shape):
    atom = rng.integers(0, len(logits), shape)
    labels = (rng.random((*shape, 1)) > np.cumsum(probability, -1)[atom][..., :-1]).sum(-1)
    return logits[atom].astype(np.float32), labels.astype(np.int32)


def bins_of(p, num_bins=15):
    """Numbers of the bins [i/b, (i+1)/b), the last closed, with edges as float32 holds them."""
    edges = (np.arange(1, num_bins) / num_bins).astype(np.float32)
    return np.searchsorted(edges, p.astype(np.float32), side="right")


# --- what is estimated: exact sums over the atoms ---


def expected_rank_ece(delta, n):
    """Mean of R over n draws from equally likely forecasts in increasing order with mean residuals delta.

    Group k with m_k rows adds (m_k - 1) delta_k^2 on average if it is there, two groups delta_j delta_k if both are and
    none between them.
    """
    k = len(delta)
    empty = np.append((1 - np.arange(k + 1) / k) ** n, 0)  # probability that so many given atoms do not occur
    value = (n / k - (1 - empty[1])) * np.sum(delta**2)
    for gap in range(1, k):
        both = empty[gap - 1] - 2 * empty[gap] + empty[gap + 1]
        value += both * np.sum(delta[gap:] * delta[:-gap])
    return value / n


def binned(p, probability, num_bins=15):
    """The parts of the Brier score of the law, and the variance of p within the bins, summed over them."""
    index = bins_of(p, num_bins)
    share = np.bincount(index, minlength=num_bins) / len(p)
    mean = lambda v: np.bincount(index, v, num_bins) / len(p) / np.where(share > 0, share, 1)  # noqa: E731
    forecast, frequency, overall = mean(p), mean(probability), probability.mean()
    within = mean(p**2) - forecast**2
    return {
        "brier": np.mean(probability * (1 - p) ** 2 + (1 - probability) * p**2),
        "reliability": np.sum(share * (forecast - frequency) ** 2),
        "resolution": np.sum(share * (frequency - overall) ** 2),
        "uncertainty": overall * (1 - overall),
        "within_bin_variance": np.sum(share * within),
        "within_bin_covariance": 2 * np.sum(share * (mean(p * probability) - forecast * frequency)),
        "share": share,
        "gap": forecast - frequency,
        "spread": np.sum(within),
    }


def area(p, probability):
    """P(s_1 > s_0) + P(s_1 = s_0) / 2 of an event and a non-event."""
    order = (p[:, None] > p) + (p[:, None] == p) / 2
    return probability @ order @ (1 - probability) / (probability.sum() * (1 - probability).sum())


def line(p, probability, *, slope):
    """Maximum of the expected logistic likelihood, by Newton's method."""
    x = np.stack([np.ones_like(p), logit(p)])
    free = 2 if slope else 1
    theta = np.array([0.0, 1.0])
    for _ in range(50):
        q = expit(theta @ x)
        score, information = x[:free] @ (probability - q), (x[:free] * q * (1 - q)) @ x[:free].T
        theta[:free] += np.linalg.solve(information, score)
    assert np.abs(score).max() < 1e-9
    return theta


def class_truths(logits, probability):
    def loss(u):
        return -np.mean(np.sum(probability * log_softmax(u * logits, -1), -1))

    def slope(u):
        return np.mean(np.sum((softmax(u * logits, -1) - probability) * logits, -1))

    u = brentq(slope, 0.01, 10, xtol=1e-14)
    frequency = probability.mean(0)
    uncertainty = -np.sum(frequency * np.log(frequency))
    return {
        "risk": loss(1),
        "accuracy": np.mean(np.take_along_axis(probability, logits.argmax(-1)[:, None], -1)),
        "fit_temperature": 1 / u,
        "decompose, calibration": loss(1) - loss(u),
        "decompose, calibration, centred": loss(1) - loss(u),
        "decompose, refinement": loss(u),
        "decompose, sharpness": uncertainty - loss(u),
        "decompose, uncertainty": uncertainty,
    }


def event_truths(p, probability):
    parts = binned(p, probability)
    intercept, slope = line(p, probability, slope=True)
    return {
        "auroc": area(p, probability),
        "calibration_slope, slope": slope,
        "calibration_slope, intercept": intercept,
        "calibration_intercept": line(p, probability, slope=False)[0],
        "observed_expected_ratio": probability.mean() / p.mean(),
        **{f"murphy_decomposition, {name}": parts[name] for name in MURPHY},
        "murphy_decomposition, corrected resolution, centred": parts["resolution"],
        "debiased_ece, centred": parts["reliability"],
    }


def bootstrap_truths(family, outcomes):
    if family == "classes":
        return class_truths(LOGITS, CLASSES[outcomes](LOGITS))
    p = LAWS["thousand atoms"]
    return event_truths(p, OUTCOMES[outcomes](p))


# --- intervals with a formula ---


def rank_interval(key, p, probability, y, law, outcomes):
    """Ends, what they should hold, and the place in the table of the least coverage; rows are data sets."""
    lower, upper = _rank_interval(p, y)
    target = expected_rank_ece(OUTCOMES[outcomes](LAWS[law]) - LAWS[law], N)
    return lower[:, None], upper[:, None], np.full((len(p), 1), target), np.zeros((len(p), 1), int)


def wilson(key, p, probability, y, law, outcomes):
    """The mean probability of the rows of a bin, where 5 or more are expected."""
    curve = _reliability(p, y)
    place = np.broadcast_to(np.arange(15), curve.count.shape)
    index = bins_of(p) + 15 * np.arange(len(p))[:, None]
    size = place.size
    assert (np.bincount(index.ravel(), minlength=size).reshape(place.shape) == curve.count).all()
    target = np.bincount(index.ravel(), probability.ravel(), size).reshape(place.shape) / np.maximum(curve.count, 1)
    enough = (curve.count > 0) & (binned(LAWS[law], LAWS[law])["share"] * N >= 5)
    return curve.lower, curve.upper, np.where(enough, target, np.nan), place


def consistency_band(key, p, probability, y, law, outcomes):
    """The curve itself at every forecast; places are tenths."""
    curve, band = _band(key, p, y)
    place = np.where(np.isnan(curve.confidence), 0, 10 * curve.confidence + 1e-6).astype(int)
    return band.lower, band.upper, np.asarray(curve.frequency), place


@jax.jit
def _rank_interval(p, y):
    return jaxcal.rank_ece_interval(p, y, level=LEVEL)


@jax.jit
def _reliability(p, y):
    return jaxcal.reliability_curve(p, y)


@jax.jit
def _band(key, p, y):
    def one(data):
        key, p, y = data
        # the fifth of 199 from either end: 2.5 % of the draws and the curve itself are beyond
        band = jaxcal.corp_consistency_band(key, p, level=LEVEL, num_resamples=199)
        return jaxcal.corp_reliability_curve(p, y), band

    return lax.map(one, (jax.random.split(key, len(p)), p, y))


# function, number of data sets, cases, and what is claimed
INTERVALS = {
    "rank_ece_interval": (rank_interval, 2000, tuple(OUTCOMES), "at least"),
    "reliability_curve": (wilson, 2000, tuple(OUTCOMES), "asymptotic"),
    "corp_consistency_band": (consistency_band, 500, ("calibrated",), "at least"),
}


# --- percentile intervals ---

MURPHY = ("brier", "reliability", "resolution", "uncertainty", "within_bin_variance", "within_bin_covariance")
RESAMPLES = 199  # ends are the fifth from either side: an exchangeable estimate is outside 2 * 5 / 200 of the time
BOOTSTRAPS = 1000


def class_parts(logits, labels, weights):
    parts = jaxcal.decompose(logits, labels, weights=weights)
    return {
        "risk": jaxcal.risk(logits, labels, weights=weights),
        "accuracy": jaxcal.accuracy(logits, labels, weights=weights),
        "fit_temperature": parts.fit.temperature,
        **{f"decompose, {f}": getattr(parts, f) for f in ("calibration", "refinement", "sharpness", "uncertainty")},
    }


def class_centred(logits, labels, weights):
    parts = jaxcal.decompose(logits, labels, weights=weights)
    return {"decompose, calibration, centred": parts.calibration}


def event_parts(p, y, weights):
    fitted = jaxcal.calibration_slope(p, y, weights=weights)
    murphy = jaxcal.murphy_decomposition(p, y, weights=weights)
    return {
        "auroc": jaxcal.auroc(p, y, weights=weights),
        "calibration_slope, slope": fitted.slope,
        "calibration_slope, intercept": fitted.intercept,
        "calibration_intercept": jaxcal.calibration_intercept(p, y, weights=weights).intercept,
        "observed_expected_ratio": jaxcal.observed_expected_ratio(p, y, weights=weights),
        **{f"murphy_decomposition, {name}": getattr(murphy, name) for name in MURPHY},
    }


def event_centred(p, y, weights):
    corrected = jaxcal.murphy_decomposition(p, y, bias_corrected=True, weights=weights)
    return {
        "debiased_ece, centred": jaxcal.debiased_ece(p, y, weights=weights),
        "murphy_decomposition, corrected resolution, centred": corrected.resolution,
    }


FAMILIES = {"classes": (class_parts, class_centred), "event": (event_parts, event_centred)}


@partial(jax.jit, static_argnums=0)
def bootstrap_ends(family, key, *arrays):
    percentile, centred = FAMILIES[family]

    def one(data):
        kw = {"num_resamples": RESAMPLES, "level": LEVEL}
        results = (jaxcal.bootstrap(percentile, *data, **kw), jaxcal.bootstrap(centred, *data, method="centred", **kw))
        lower, upper = ([getattr(r, end) for r in results] for end in ("lower", "upper"))
        return lower[0] | lower[1], upper[0] | upper[1]

    # one data set after the other: its resamples stay in the cache
    return lax.map(one, (jax.random.split(key, len(arrays[0])), *arrays))


def uncertainty(logits, labels, weights):
    return jaxcal.decompose(logits, labels, weights=weights).uncertainty


@jax.jit
def uncertainty_ends(key, logits, labels):
    def one(data):
        result = jaxcal.bootstrap(uncertainty, *data, num_resamples=RESAMPLES, level=LEVEL)
        return result.lower, result.upper

    return lax.map(one, (jax.random.split(key, len(labels)), logits, labels))


# --- the table ---


def band_of(claim, number):
    """Coverage that is as claimed, with three standard errors of `number` data sets on either side."""
    low, high = (0.93, 0.97) if claim == "asymptotic" else (LEVEL, 1.0)
    error = lambda share: 3 * math.sqrt(share * (1 - share) / number)  # noqa: E731
    return low - error(low), high + error(high)


def to_row(quantity, law, outcomes, claim, lower, upper, target, place):
    """Shares of the intervals that are too high, too low and right; arrays (data sets, places), NaN where there is
    nothing to cover."""
    there = ~np.isnan(target)
    assert not np.isnan(lower[there]).any() and not np.isnan(upper[there]).any()
    too_high, too_low = (target < lower)[there], (target > upper)[there]
    covered = ~(too_high | too_low)
    rows = np.bincount(place[there])
    each = np.bincount(place[there], covered)[rows > 0] / rows[rows > 0]
    coverage = covered.mean()
    low, high = band_of(claim, len(target))
    return {
        "quantity": quantity,
        "law": law,
        "outcomes": outcomes,
        "n": N,
        "data_sets": len(target),
        "claim": claim,
        "truth": "" if np.ptp(target[there]) else f"{round(target[there][0], 12) + 0.0:.6g}",
        "too_high": round(float(too_high.mean()), 4),
        "too_low": round(float(too_low.mean()), 4),
        "coverage": round(float(coverage), 4),
        "least": round(float(each.min()), 4),
        "holds": "yes" if low <= coverage <= high else "no",
    }


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("quantity, outcomes", [(q, o) for q, (_, _, cases, _) in INTERVALS.items() for o in cases])
def test_interval(quantity, outcomes, law, measured):
    interval, number, _, claim = INTERVALS[quantity]
    found = []
    for block in range(number // BLOCK):
        rng = np.random.default_rng([1, block])
        found.append(interval(jax.random.key(block), *draw(rng, law, outcomes, (BLOCK, N)), law, outcomes))
    measured.append(to_row(quantity, law, outcomes, claim, *map(np.concatenate, zip(*found, strict=True))))
    assert_as_claimed(measured[-1])


@pytest.mark.slow
@pytest.mark.parametrize("outcomes", OUTCOMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_bootstrap(family, outcomes, measured):
    ends = []
    for block in range(BOOTSTRAPS // BLOCK):
        rng = np.random.default_rng([2, block])
        if family == "classes":
            arrays = draw_classes(rng, LOGITS, CLASSES[outcomes](LOGITS), (BLOCK, N))
        else:
            p, _, y = draw(rng, "thousand atoms", outcomes, (BLOCK, N))
            arrays = p, y
        ends.append(jax.tree.map(np.asarray, bootstrap_ends(family, jax.random.key(block), *arrays)))
    lower, upper = jax.tree.map(lambda *blocks: np.concatenate(blocks)[:, None], *ends)
    truths = bootstrap_truths(family, outcomes)
    assert truths.keys() == lower.keys()
    rows = []
    for quantity, truth in truths.items():
        target = np.full((BOOTSTRAPS, 1), truth)
        arrays = lower[quantity], upper[quantity], target, np.zeros(target.shape, int)
        rows.append(to_row(quantity, "thousand atoms", outcomes, "asymptotic", *arrays))
    measured.extend(rows)
    for row in rows:
        assert_as_claimed(row)


@pytest.mark.slow
def test_bootstrap_of_balanced_classes(measured):
    """The entropy of equal frequencies is the largest there is: no estimate and no resample reaches it."""
    probability = CLASSES["calibrated"](BALANCED)
    ends = []
    for block in range(BOOTSTRAPS // BLOCK):
        data = draw_classes(np.random.default_rng([5, block]), BALANCED, probability, (BLOCK, N))
        ends.append(uncertainty_ends(jax.random.key(block), *data))
    target = np.full((BOOTSTRAPS, 1), math.log(3))
    arrays = (*(np.concatenate(end)[:, None] for end in zip(*ends, strict=True)), target, np.zeros(target.shape, int))
    measured.append(to_row(*BALANCED_KEY, "asymptotic", *arrays))
    assert_as_claimed(measured[-1])


BALANCED_KEY = ("decompose, uncertainty", "balanced classes", "calibrated")

# What the usual intervals do not cover, and why.
ON_THE_EDGE = "the least value there is, which resamples hardly reach"
EXCEPTIONS = {
    ("decompose, calibration", "thousand atoms", "calibrated"): ON_THE_EDGE,
    (
        "decompose, calibration, centred",
        "thousand atoms",
        "calibrated",
    ): "too wide: half of it is below the least value",
    ("murphy_decomposition, reliability", "thousand atoms", "calibrated"): ON_THE_EDGE,
    ("debiased_ece, centred", "thousand atoms", "calibrated"): "too wide: the noise of the bins comes in twice",
    **{
        ("murphy_decomposition, within_bin_variance", "thousand atoms", outcomes): "biased down, by bins / n of itself"
        for outcomes in OUTCOMES
    },
    BALANCED_KEY: "the largest value there is",
}


def assert_as_claimed(row):
    """The coverage is in the band of its claim, except where it is known not to be; then the row says so."""
    low, high = band_of(row["claim"], int(row["data_sets"]))
    assert (row["holds"] == "yes") == (low <= float(row["coverage"]) <= high), row
    assert (row["holds"] == "no") == (tuple(row[k] for k in KEY) in EXCEPTIONS), row
    if row["quantity"] == "corp_consistency_band":  # at each forecast; tenths are pooled, hence one error more
        assert float(row["least"]) > LEVEL - 4 * math.sqrt(LEVEL * (1 - LEVEL) / int(row["data_sets"])), row


def test_stored_table():
    with TABLE.open(encoding="utf-8") as file:
        stored = list(csv.DictReader(file))
    expected = {(q, law, o): number for q, (_, number, cases, _) in INTERVALS.items() for law in LAWS for o in cases}
    truths = {o: bootstrap_truths("classes", o) | bootstrap_truths("event", o) for o in OUTCOMES}
    expected |= {(q, "thousand atoms", o): BOOTSTRAPS for o in OUTCOMES for q in truths[o]} | {BALANCED_KEY: BOOTSTRAPS}
    assert {tuple(row[k] for k in KEY): int(row["data_sets"]) for row in stored} == expected
    assert len(stored) == len(expected)
    for row in stored:
        assert_as_claimed(row)
        if row["law"] == "thousand atoms" and row["quantity"] in truths["calibrated"]:
            np.testing.assert_allclose(float(row["truth"]), truths[row["outcomes"]][row["quantity"]], 1e-5, 1e-12)


def test_rows_are_stored_by_their_key(store_rows, tmp_path):
    table = tmp_path / "table.csv"
    store_rows(table, ("a", "b"), [{"a": "x, y", "b": 1, "c": 0.1}, {"a": "z", "b": 1, "c": 0.2}])
    store_rows(table, ("a", "b"), [{"a": "z", "b": 2, "c": 0.3}, {"a": "x, y", "b": 1, "c": 0.4}])
    assert table.read_text(encoding="utf-8") == 'a,b,c\n"x, y",1,0.4\nz,1,0.2\nz,2,0.3\n'


# --- estimators that are called unbiased ---

DRAWS = 20_000  # data sets
SMALL, LARGER = 50, 200  # rows; of 200 rows each of nine atoms has two or more but once in 10^7 data sets
BANDWIDTH = 0.3
FEW_LOGITS = np.array([[2.0, 0, -1], [0, 1.5, 0.5], [-1, 0, 2], [0.5, 0.5, 0], [3, 1, 0]])


def kernel_truth(p, delta, kernel):
    """The exact double sum over equally likely atoms, p and delta `(atoms, classes)`."""
    square = np.sum((p[:, None] - p) ** 2, -1)
    weight = np.exp(-np.sqrt(square) / BANDWIDTH if kernel == "laplace" else -square / (2 * BANDWIDTH**2))
    return np.mean(weight * (delta @ delta.T))


def binary_truths(outcomes):
    p = LAWS["nine atoms"]
    probability = OUTCOMES[outcomes](p)
    delta, noise = probability - p, probability * (1 - probability)
    one, three = (binned(p, probability, b) for b in (10, 3))
    kernels = {k: kernel_truth(p[:, None], delta[:, None], k) for k in ("laplace", "gaussian")}
    occupied = 1 - (1 - three["share"]) ** LARGER
    truths = {f"skce, {k}, {e}": kernels[k] for k in kernels for e in ("unbiased", "linear")}
    truths |= {f"murphy_decomposition, {f}": one[f] for f in ("brier", "reliability", "resolution", "uncertainty")}
    truths |= {
        "rank_ece": expected_rank_ece(delta, SMALL),
        # what is added on average: the terms i = j, E (y - p)^2 / n
        "skce, laplace, biased": ((SMALL - 1) * kernels["laplace"] + np.mean(noise + delta**2)) / SMALL,
        "debiased_ece, u": three["reliability"],
        "debiased_ece, kumar, one forecast a bin": one["reliability"],
        "debiased_ece, tcal": np.sum((three["share"] - occupied / LARGER) * three["gap"] ** 2),
        "auroc": area(p, probability),
    }
    if outcomes == "calibrated":
        truths["debiased_ece, kumar"] = -three["spread"] / LARGER
        truths["observed_expected_ratio"] = 1.0
    return truths


def class_means(outcomes):
    probability = CLASSES[outcomes](FEW_LOGITS)
    p = softmax(FEW_LOGITS, -1)
    kernels = {k: kernel_truth(p, probability - p, k) for k in ("laplace", "gaussian")}
    truths = {f"skce_multiclass, {k}, {e}": kernels[k] for k in kernels for e in ("unbiased", "linear")}
    truths["accuracy"] = np.mean(np.take_along_axis(probability, FEW_LOGITS.argmax(-1)[:, None], -1))
    truths["risk"] = -np.mean(np.sum(probability * log_softmax(FEW_LOGITS, -1), -1))
    truths["risk, Brier"] = np.mean(np.sum(p**2 - 2 * p * probability, -1)) + 1
    return truths


@jax.jit
def binary_estimates(p, y):
    """Of 200 rows; the first 50 where that is enough."""
    few = p[..., :SMALL], y[..., :SMALL]
    murphy = jaxcal.murphy_decomposition(p, y, num_bins=10, bias_corrected=True)
    found = {
        f"skce, {k}, {e}": jaxcal.skce(*few, kernel=k, estimator=e, bandwidth=BANDWIDTH)
        for k, e in (*((k, e) for k in ("laplace", "gaussian") for e in ("unbiased", "linear")), ("laplace", "biased"))
    }
    found |= {f"debiased_ece, {e}": jaxcal.debiased_ece(p, y, estimator=e, num_bins=3) for e in ("u", "kumar", "tcal")}
    found |= {
        f"murphy_decomposition, {f}": getattr(murphy, f) for f in ("brier", "reliability", "resolution", "uncertainty")
    }
    return found | {
        "rank_ece": jaxcal.rank_ece(*few),
        "debiased_ece, kumar, one forecast a bin": jaxcal.debiased_ece(p, y, num_bins=10),
        "auroc": jaxcal.auroc(*few),
        "observed_expected_ratio": jaxcal.observed_expected_ratio(*few),
    }


@jax.jit
def class_estimates(logits, labels):
    found = {
        f"skce_multiclass, {k}, {e}": jaxcal.skce_multiclass(logits, labels, kernel=k, estimator=e, bandwidth=BANDWIDTH)
        for k in ("laplace", "gaussian")
        for e in ("unbiased", "linear")
    }
    return found | {
        "accuracy": jaxcal.accuracy(logits, labels),
        "risk": jaxcal.risk(logits, labels),
        "risk, Brier": jaxcal.risk(logits, labels, loss=jaxcal.brier_loss),
    }


def assert_means(found, truths):
    """Mean over the data sets within four standard errors of the truth."""
    off = {}
    for name, truth in truths.items():
        values = np.asarray(found[name], np.float64)
        z = (values.mean() - truth) / (values.std() / math.sqrt(len(values)))
        if not abs(z) < 4:
            off[name] = f"mean {values.mean():.6g}, truth {truth:.6g}, {z:.1f} standard errors"
    assert not off


@pytest.mark.parametrize("outcomes", OUTCOMES)
def test_means_of_binary_estimates(outcomes):
    p, _, y = draw(np.random.default_rng(3), "nine atoms", outcomes, (DRAWS, LARGER))
    found = binary_estimates(p, y)
    assert_means(found, binary_truths(outcomes))
    # the test can tell: at 50 rows the terms i = j are seen
    biased, truth = np.asarray(found["skce, laplace, biased"]), binary_truths(outcomes)["skce, laplace, unbiased"]
    assert biased.mean() - truth > 20 * biased.std() / math.sqrt(DRAWS)


@pytest.mark.parametrize("outcomes", OUTCOMES)
def test_means_of_class_estimates(outcomes):
    probability = CLASSES[outcomes](FEW_LOGITS)
    logits, labels = draw_classes(np.random.default_rng(4), FEW_LOGITS, probability, (DRAWS, SMALL))
    assert_means(class_estimates(logits, labels), class_means(outcomes))
