"""What published software gives on three fixed data sets, next to what jaxcal gives.

`data/parity.csv` holds the numbers of other packages, copied from one run of each on the data sets
`data/{binary_over_1000,binary_ties_500,multi4_800}.npz`: scikit-learn 1.9.1, torchmetrics 1.9.0, netcal 1.4.0,
relplot 1.0.3, uncertainty-calibration 0.1.4 (uc), probmetrics 1.3.0 (pm) and the sources of the others. Rows "ref",
"EXACT", "own ref", "exact" and "sum over classes (def)" are computations made then for comparison. The `verdict` is

equal    jaxcal gives the number within `rtol`, the accuracy of the peer: 1e-9 or so for sums in float64, 1e-5 or so
         where it computes in float32 or its solver stops early, more for small differences of two float32 losses.
differs  jaxcal gives another number, for the `reason`; it is the one of the definition, written out in NumPy here.
above    a risk that the peer did not minimise: it is not below that of jaxcal.
"""

import csv
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, isotonic_regression

import jaxcal

HERE = pathlib.Path(__file__).parent / "data"
DATA = ("binary_over_1000", "binary_ties_500", "multi4_800")
CLASS_WISE = "class-wise"
with (HERE / "parity.csv").open(encoding="utf-8", newline="") as file:
    TABLE = list(csv.DictReader(file))

# How far apart numbers that differ must be, relatively: five times the tightest stopping rule of a solver among peers.
APART = 5e-7


@functools.cache
def load(data):
    """Logits (n, k) that are log p for two classes, labels, and the events (p, y) by name; all float64 of NumPy."""
    with np.load(HERE / f"{data}.npz") as file:
        p, y = file["p"], file["y"]
    if p.ndim == 1:
        events = {"positive": (p, y), "top label": (np.maximum(p, 1 - p), (p > 0.5) == y)}
        return np.log(np.stack([1 - p, p], -1)), y, events
    events = {"top label": (p.max(-1), p.argmax(-1) == y), CLASS_WISE: (p.T, y == np.arange(p.shape[-1])[:, None])}
    return np.log(p), y, events


# ---------------------------------------------------------------------------------------------------------- jaxcal


@functools.cache
def ours():
    """Every quantity of the table by data set: each function runs once, on all data sets as lanes of one array."""
    values = {data: {} for data in DATA}
    lanes = [
        (data, name, p, y)
        for data in DATA
        for name, event in load(data)[2].items()
        for p, y in zip(*map(np.atleast_2d, event), strict=True)
    ]
    p, y, weights = _pad([lane[2] for lane in lanes]), _pad([lane[3] for lane in lanes]), _present(lanes)
    whole = sum(name != CLASS_WISE for _, name, _, _ in lanes)  # those of classes come last
    table = _of_events(p, y, weights) | _smooth_of_events(p[:whole], y[:whole], weights[:whole])
    for data, name in dict.fromkeys(lane[:2] for lane in lanes):
        of_name = [i for i, lane in enumerate(lanes) if lane[:2] == (data, name)]
        values[data] |= {
            f"{name}: {key}": np.mean(np.asarray(v)[of_name]) for key, v in table.items() if len(v) > max(of_name)
        }

    binary = [lane for lane in lanes if lane[1] == "positive"]
    p, y, weights = _pad([lane[2] for lane in binary]), _pad([lane[3] for lane in binary]), _present(binary)
    log_p, labels, _ = load("multi4_800")
    several = jaxcal.logits_from_probs(np.exp(log_p))[None]
    pair = _of_logits(jaxcal.logits_from_probs(np.stack([1 - p, p], -1)), y.astype(int), weights)
    pair |= _of_binary(p, y, weights)
    for names, table in ((DATA[:2], pair), (DATA[2:], _of_logits(several, labels[None], np.ones(several.shape[:2])))):
        for i, data in enumerate(names):
            values[data] |= {key: np.asarray(v)[i] for key, v in table.items()}
    for data, _, p, y in binary:
        fit, confidence = values[data].pop("fit"), values[data].pop("confidence")
        distinct, place = np.unique(np.asarray(p, fit.dtype), return_inverse=True)
        np.testing.assert_array_equal(confidence[: len(distinct)], distinct)
        values[data] |= _of_isotonic(fit[place], y, values[data]["log loss"])
    return {data: {key: float(v) for key, v in table.items()} for data, table in values.items()}


def _pad(rows):
    """Rows of several lengths as one array, with 1/2 in rows that are absent."""
    length = max(map(len, rows))
    return np.stack([np.pad(np.asarray(row, float), (0, length - len(row)), constant_values=0.5) for row in rows])


def _present(lanes):
    """Weights: 1 in the rows of a lane, 0 after them."""
    length = max(len(lane[2]) for lane in lanes)
    return np.stack([np.arange(length) < len(lane[2]) for lane in lanes]).astype(float)


@jax.jit
def _of_events(p, y, weights):
    ece = functools.partial(jaxcal.ece, p, y, weights=weights)
    values = {f"ece {bins} {b}": ece(num_bins=b, bins=bins) for bins in ("width", "mass") for b in (10, 15)}
    values |= {f"rmsce {bins} 15": ece(norm="l2", bins=bins) for bins in ("width", "mass")}
    values |= {"mce width 15": ece(norm="max"), "ace 15": jaxcal.ace(p, y, weights=weights)}
    values |= {"debiased mass 15": jaxcal.debiased_ece(p, y, bins="mass", weights=weights)}
    return values | {"cutoff_calibration_error": jaxcal.cutoff_calibration_error(p, y, weights=weights)}


def _smooth_of_events(p, y, weights):
    values = {"smooth_ece": jaxcal.smooth_ece(p, y, weights=weights)}
    at_bandwidth = jaxcal.smooth_ece(p, y, bandwidth=np.array([[0.05], [0.1]]), weights=weights)
    return values | {f"smooth_ece, bandwidth {s}": v for s, v in zip((0.05, 0.1), at_bandwidth, strict=True)}


@jax.jit
def _of_logits(logits, y, weights):
    brier = functools.partial(jaxcal.risk, labels=y, loss=jaxcal.brier_loss, weights=weights)
    split = jaxcal.decompose(logits, y, calibrator=jaxcal.laplace(jaxcal.fit_temperature), weights=weights)
    values = {"log loss": split.risk, "Brier": brier(logits), "temperature": split.fit.fit.temperature}
    values |= {"half Brier": jaxcal.risk(logits, y, loss=jaxcal.half_brier_loss, weights=weights)}
    values |= {"error rate": 1 - jaxcal.accuracy(logits, y, weights=weights)}
    values |= {"temperature: log loss": split.fit.fit.risk, "Laplace temperature: log loss": split.refinement}
    values |= {"Laplace temperature: calibration": split.calibration}
    for name, fit in (("temperature", split.fit.fit), ("Laplace temperature", split.fit)):
        calibrated = fit(logits)
        q = jnp.exp(calibrated)
        values |= {f"{name}: row 0, class {j}": q[:, 0, j] for j in range(q.shape[-1])}
        values |= {
            f"{name}: Brier": brier(calibrated),
            f"{name}: Brier calibration": values["Brier"] - brier(calibrated),
        }
        values |= {f"{name}: half Brier": brier(calibrated) / 2}
        values |= {f"{name}: mean forecast": jnp.average(q[..., -1], axis=-1, weights=weights)}
    return values


@jax.jit
def _of_binary(p, y, weights):
    line = jaxcal.calibration_slope(p, y, weights=weights)
    values = {"calibration slope": line.slope, "calibration intercept": line.intercept}
    for loss, key in ((jaxcal.log_loss, "log loss"), (jaxcal.half_brier_loss, "half Brier")):
        corp = jaxcal.corp_decomposition(p, y, loss=loss, weights=weights)
        values[f"isotonic: {key}"] = corp.score - corp.miscalibration
    curve = jaxcal.corp_reliability_curve(p, y, weights=weights)
    return values | {"fit": curve.frequency, "confidence": curve.confidence}


def _of_isotonic(fit, y, log_loss):
    """The fit itself, and after Laplace smoothing: n/(n + 1) fit + 1/(n + 1) 1/2."""
    q = (len(y) * fit + 0.5) / (len(y) + 1)
    risk = -np.mean(np.where(y == 1, np.log(q), np.log1p(-q)))
    return {
        "isotonic: mean forecast": fit.mean(),
        "Laplace isotonic: log loss": risk,
        "Laplace isotonic: calibration": log_loss - risk,
        "Laplace isotonic: Brier": 2 * np.mean((q - y) ** 2),
    } | {f"isotonic: row {i}": fit[i] for i in range(10)}


# ------------------------------------------------------------------------------------ the definitions, in NumPy


@functools.cache
def defined(data):
    """Every quantity of the table by its definition, in float64."""
    log_p, y, events = load(data)
    p, hot = np.exp(log_p), np.eye(log_p.shape[-1])[y]
    values = {}
    for name, event in events.items():
        parts = [_define_event(*lane) for lane in zip(*event, strict=True)] if name == CLASS_WISE else [None]
        parts = parts if name == CLASS_WISE else [_define_event(*event, smooth=True)]
        values |= {f"{name}: {key}": np.mean([part[key] for part in parts]) for key in parts[0]}
    values |= {"log loss": -log_p[hot == 1].mean(), "Brier": ((p - hot) ** 2).sum(-1).mean()}
    values |= {"half Brier": values["Brier"] / 2, "error rate": np.mean(p.argmax(-1) != y)}
    slope = lambda beta: np.mean((_softmax(beta * log_p) * log_p).sum(-1) - log_p[hot == 1])  # noqa: E731
    beta = brentq(slope, 0.01, 100, xtol=1e-16, rtol=1e-15)
    values["temperature"] = 1 / beta
    n, k = p.shape
    scaled = _softmax(beta * log_p)
    for name, q in (("temperature", scaled), ("Laplace temperature", (n * scaled + 1 / k) / (n + 1))):
        risk, brier = -np.log(q[hot == 1]).mean(), ((q - hot) ** 2).sum(-1).mean()
        values |= {f"{name}: row 0, class {j}": q[0, j] for j in range(k)}
        values[f"{name}: log loss"] = risk
        values |= {f"{name}: calibration": values["log loss"] - risk} if name != "temperature" else {}
        values |= {f"{name}: Brier": brier, f"{name}: Brier calibration": values["Brier"] - brier}
        values |= {f"{name}: half Brier": brier / 2, f"{name}: mean forecast": q[:, -1].mean()}
    if k == 2:
        _, place, count = np.unique(events["positive"][0], return_inverse=True, return_counts=True)
        frequency = np.bincount(place, y) / count
        fit = isotonic_regression(frequency, weights=count).x[place]
        values |= _of_isotonic(fit, y, values["log loss"])
        of_label = np.where(y == 1, fit, 1 - fit)  # positive: the fit of a block holds its labels
        values |= {"isotonic: log loss": -np.log(of_label).mean(), "isotonic: half Brier": ((fit - y) ** 2).mean()}
        intercept, slope = _logistic_regression(log_p[:, 1] - log_p[:, 0], y)
        values |= {"calibration slope": slope, "calibration intercept": intercept}
    return {key: float(value) for key, value in values.items()} | _roots(values)


def _roots(values):
    """sqrt of the debiased squared error, of the mean over classes for class-wise: what uc reports."""
    mass = " debiased mass 15"
    return {key.replace(mass, " root" + mass): float(np.sqrt(v)) for key, v in values.items() if key.endswith(mass)}


def _softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _logistic_regression(x, y):
    x, theta = np.stack([np.ones_like(x), x], -1), np.zeros(2)
    for _ in range(30):  # Newton from 0, twice as many steps as it takes
        q = 1 / (1 + np.exp(-x @ theta))
        theta = theta + np.linalg.solve((x.T * (q * (1 - q))) @ x, x.T @ (y - q))
    return theta


def _width(p, num_bins):
    """floor(b p), with the edges i/b as the nearest floats."""
    return np.searchsorted(np.arange(1, num_bins) / num_bins, p, side="right")


def _mass(p, num_bins):
    """floor(b rows of smaller scores / n): equal scores stay together."""
    return np.searchsorted(np.sort(p), p) * num_bins // len(p)


def _binned(p, y, index):
    """Rows and mean gap of each occupied bin, and its frequency."""
    rows = [index == b for b in np.unique(index)]
    return tuple(np.array([f(r) for r in rows]) for f in (np.sum, lambda r: np.mean((y - p)[r]), lambda r: y[r].mean()))


def _debiased(p, y, index):
    count, gap, frequency = _binned(p, y, index)
    return count @ (gap**2 - frequency * (1 - frequency) / (count - 1)) / len(p)


def _define_event(p, y, smooth=False):
    y, n = y.astype(float), len(p)
    values = {"debiased mass 15": _debiased(p, y, _mass(p, 15))}
    for bins, rule in (("width", _width), ("mass", _mass)):
        for num_bins in (10, 15):
            count, gap, _ = _binned(p, y, rule(p, num_bins))
            values[f"ece {bins} {num_bins}"] = count @ abs(gap) / n
            values[f"rmsce {bins} {num_bins}"] = np.sqrt(count @ gap**2 / n)
            values[f"mce {bins} {num_bins}"] = abs(gap).max()
    values["ace 15"] = abs(gap).mean()
    score, place = np.unique(p, return_inverse=True)
    mass = np.bincount(place, y - p) / n
    values["cutoff_calibration_error"] = np.ptp(np.append(0, np.cumsum(mass)))
    if smooth:
        smoothed = functools.partial(_smooth, score, mass)
        values |= {f"smooth_ece, bandwidth {s}": smoothed(s) for s in (0.05, 0.1)}
        values["smooth_ece"] = brentq(lambda s: smoothed(s) - s, 0.02, 0.165, xtol=1e-8)
    return values


def _smooth(score, mass, bandwidth):
    """int_0^1 |sum_i mass_i K(t, score_i)| dt by the trapezoidal rule, the reflected kernel as its images."""
    t = np.linspace(0, 1, 1001)[:, None]
    # the next images are a distance of 1 away: six bandwidths where it is largest, 0.165
    kernel = sum(np.exp(-0.5 * (gap / bandwidth) ** 2) for gap in (t - score, t + score, t + score - 2))
    return np.trapezoid(abs(kernel @ mass), dx=1e-3) / (bandwidth * np.sqrt(2 * np.pi))


# ------------------------------------------------------------------------------------------------- what peers do


def _split(p, num_bins, kind):
    """Bins of `np.array_split` of the sorted scores, which ties do not stop."""
    index = np.empty(len(p), int)
    for b, rows in enumerate(np.array_split(np.argsort(p, kind=kind), num_bins)):
        index[rows] = b
    return index


def _peer(data, quantity, reason):
    """The numbers that the reason explains, of which that of the peer must be one."""
    log_p, labels, events = load(data)
    name, _, rest = quantity.partition(": ")
    if reason == "sum instead of mean":
        return [defined(data)[quantity] * len(labels)]
    if reason == "class index as outcome":
        return [np.ptp(np.append(0, np.cumsum((labels - np.exp(log_p[:, 1]))[np.argsort(log_p[:, 1])]))) / len(labels)]
    p, y = events[name]
    y = y.astype(float)
    num_bins = int(rest.split()[-1]) if rest[-1].isdigit() else 0
    if reason == "array_split bins" and "debiased" in rest:
        lanes = zip(p, y, strict=True) if name == CLASS_WISE else [(p, y)]
        value = np.mean([_debiased(q, o, _split(q, num_bins, "stable")) for q, o in lanes])
        return [np.sqrt(value) if "root" in rest else value]
    indices = {
        "array_split bins": lambda: [_split(p, num_bins, "stable")],
        "bins split ties": lambda: [_split(p, num_bins, kind) for kind in ("stable", "quicksort")],
        "bins of equal width": lambda: [_width(p, num_bins)],
        "edge rounded up": lambda: [np.searchsorted(np.linspace(0, 1, num_bins + 1)[1:-1], p, side="right")],
        "interpolated quantiles": lambda: [
            np.digitize(p, np.unique(np.quantile(p, np.linspace(0, 1, num_bins + 1)))[1:-1])
        ],
    }[reason]()
    values = []
    for index in indices:
        count, gap, _ = _binned(p, y, index)
        of_norm = {"ece": count @ abs(gap) / len(p), "rmsce": np.sqrt(count @ gap**2 / len(p)), "ace": abs(gap).mean()}
        values.append(of_norm[rest.split()[0]])
    return values


# --------------------------------------------------------------------------------------------------------- tests


def _rows(data, verdict, *reasons):
    rows = [row for row in TABLE if (row["data"], row["verdict"]) == (data, verdict)]
    return [row for row in rows if not reasons or row["reason"] in reasons]


def _value(data, quantity):
    """That of jaxcal; the square root is taken here."""
    return np.sqrt(ours()[data][quantity.replace("root ", "")]) if "root " in quantity else ours()[data][quantity]


def assert_close(value, expected, quantity, rtol, x64):
    """Within rtol, the accuracy of smooth_ece as documented, and the rounding of float32 and of small differences."""
    atol = 1e-6 if "smooth_ece" in quantity else 1e-15 if x64 else 1e-6
    np.testing.assert_allclose(value, expected, rtol if x64 else max(rtol, 1e-5), atol, err_msg=quantity)


@pytest.mark.parametrize("data", DATA)
def test_values_are_those_of_the_definitions(data, x64):
    for quantity, value in ours()[data].items():
        assert_close(value, defined(data)[quantity], quantity, 1e-10, x64)


@pytest.mark.parametrize("data", DATA)
def test_peers_that_agree(data, x64):
    rows = _rows(data, "equal")
    assert len(rows) > 100
    for row in rows:
        assert_close(_value(data, row["quantity"]), float(row["value"]), row["quantity"], float(row["rtol"]), x64)


@pytest.mark.parametrize("data", DATA)
def test_peers_that_differ(data, x64):
    rows = _rows(data, "differs")
    assert {row["reason"] for row in rows} >= {"grid kernel", "not converged"}
    for row in rows:
        peer, quantity, definition = float(row["value"]), row["quantity"], defined(data)[row["quantity"]]
        assert_close(_value(data, quantity), definition, quantity, 1e-10, x64)
        assert abs(peer - definition) > APART * abs(definition), row


@pytest.mark.once
@pytest.mark.parametrize("data", DATA)
def test_reasons(data):
    """The reason gives the number of the peer; probmetrics' Kuiper statistic is float32."""
    for row in _rows(data, "differs"):
        if row["reason"] == "grid kernel":
            # 1001 points, of which the outer two count half and are not doubled again: up to two percent
            np.testing.assert_allclose(float(row["value"]), defined(data)[row["quantity"]], rtol=0.02)
        elif row["reason"] == "ties in some order":  # cumulative sums of single rows: between ties together and apart
            p, y = load(data)[2]["positive"]
            apart = np.ptp(np.append(0, np.cumsum((y - p)[np.lexsort((y, p))]))) / len(p)
            assert defined(data)[row["quantity"]] < float(row["value"]) < apart
        elif row["reason"] != "not converged":
            of_reason = _peer(data, row["quantity"], row["reason"])
            apart = min(abs(value / float(row["value"]) - 1) for value in of_reason)
            assert apart < (1e-6 if "probmetrics" in row["version"] else 1e-9), (row, of_reason)


@pytest.mark.parametrize("data", DATA)
def test_risks_that_peers_did_not_minimise(data, x64, eps):
    """Risks at the temperatures of peers, in NumPy, and as they report them, some of them in float32."""
    log_p, y, _ = load(data)
    least = ours()[data]["temperature: log loss"]
    rows = [row for row in TABLE if row["data"] == data and row["quantity"] == "temperature"]
    for row in rows:
        at_peer = -np.log(_softmax(log_p / float(row["value"]))[np.arange(len(y)), y]).mean()
        assert at_peer >= least - 4 * eps, row
        assert (at_peer > least + 1e-13) or row["verdict"] == "equal" or not x64, row
    above = _rows(data, "above")
    assert len(above) > 10
    for row in above:
        assert float(row["value"]) >= least - 4 * eps, row
