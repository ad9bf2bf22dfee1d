"""`jaxcal audit` and `jaxcal apply`: every printed number against the library, and files in and out."""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest

import jaxcal
from jaxcal.cli import bootstrap, choice, event, report
from jaxcal.cli.audit import LOSSES
from jaxcal.cli.main import main
from jaxcal.selection import known_calibrators

N, K = 300, 4
TERMS = ("risk", "calibration", "refinement", "sharpness", "uncertainty")  # the last has no interval in these data


@contextmanager
def silent(description, total):
    yield lambda steps: None


@pytest.fixture(scope="module")
def data():
    """Over-confident float32 logits (T = 1.6), labels, whole weights."""
    rng = np.random.default_rng(3)
    z = (2.5 * rng.normal(size=(N, K))).astype(np.float32)
    p = np.exp(z / 1.6)
    p /= p.sum(1, keepdims=True)
    y = (rng.random(N)[:, None] > p.cumsum(1)).sum(1)
    return z, y.clip(0, K - 1), rng.integers(1, 4, N)


@pytest.fixture
def npz(data, tmp_path):
    z, y, w = data
    np.savez(tmp_path / "val.npz", z=z, y=y, w=w)
    return str(tmp_path / "val.npz")


def call(capsys, *args):
    code = main([str(a) for a in args])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def audit(capsys, *args):
    def no_constants(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(call(capsys, "audit", *args, "--json"), parse_constant=no_constants)


def values(report):
    return {name: entry["value"] for name, entry in report["estimates"].items()}


@pytest.mark.parametrize(("loss", "folds"), [("log", None), ("log", 3), ("half-brier", None)])
def test_json_is_what_the_library_says(capsys, data, npz, loss, folds):
    z, y, w = data
    options = [] if folds is None else ["--folds", folds]
    report = audit(
        capsys,
        npz,
        "--logits",
        "z",
        "--labels",
        "y",
        "--weights",
        "w",
        "--loss",
        loss,
        "--resamples",
        0,
        "--seed",
        7,
        *options,
    )
    library_loss = getattr(jaxcal, f"{loss.replace('-', '_')}_loss")
    key = {} if folds is None else {"folds": folds, "key": jax.random.key(7)}
    parts = jaxcal.decompose(z, y, loss=library_loss, weights=w, **key)
    fit = parts.fit or jaxcal.fit_temperature(z, y, loss=library_loss, weights=w)
    got = values(report)
    for term in TERMS:
        assert got[term] == pytest.approx(float(getattr(parts, term)), rel=1e-12)
    assert got["temperature"] == pytest.approx(float(fit.temperature), rel=1e-12)
    assert got["accuracy"] == pytest.approx(float(jaxcal.accuracy(z, y, weights=w)), rel=1e-12)
    event = jaxcal.top_label(z, y)
    assert got["ece"] == pytest.approx(float(jaxcal.ece(*event, weights=w)), rel=1e-12)
    assert got["smooth_ece"] == pytest.approx(float(jaxcal.smooth_ece(*event, weights=w)), rel=1e-12)
    assert got["cutoff"] == pytest.approx(float(jaxcal.cutoff_calibration_error(*event, weights=w)), rel=1e-12)
    if np.all(w == np.round(w)):
        assert got["rank_ece"] == pytest.approx(float(jaxcal.rank_ece(*event, weights=w)), rel=1e-12)
    else:
        assert "rank_ece" not in got and "debiased_ece" not in got
    assert got["slope"] == pytest.approx(float(jaxcal.calibration_slope(*event, weights=w).slope), rel=1e-12)
    for name, test in (
        ("rank", jaxcal.rank_ece_test),
        ("cumulative", jaxcal.kolmogorov_smirnov_calibration),
        ("line", jaxcal.weak_calibration_test),
    ):
        if name == "rank" and not np.all(w == np.round(w)):
            assert name not in report["tests"]
            continue
        found = test(*event, weights=w)
        assert report["tests"][name]["p_value"] == pytest.approx(float(found.p_value), rel=1e-12)
        assert report["tests"][name]["reliable"] == bool(found.reliable)
    assert (report["n"], report["k"], report["total_weight"], report["folds"]) == (N, K, float(w.sum()), folds)
    assert report["estimates"]["risk"]["lower"] is None
    assert report["status"] == "CONVERGED"


@pytest.mark.once
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_event_of_one_class(capsys, data, tmp_path, kind):
    """Columns and labels are names, and so is the event."""
    z, y, _ = data
    values_of = {"logits": z, "probs": jax.nn.softmax(z, axis=-1)}[kind]
    names = np.array(["cat", "dog", "emu", "fox"])
    path = tmp_path / "named.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "animal"])
        writer.writerows([*map(repr, map(float, row)), names[label]] for row, label in zip(values_of, y, strict=True))
    options = [f"--{kind}", *names, "--labels", "animal", "--resamples", 100]
    report = audit(capsys, path, *options, "--event", "dog")
    p, outcome = jaxcal.binary_event(z, y, 1)
    got = values(report)
    assert report["event"] == "dog"
    assert got["auroc"] == pytest.approx(float(jaxcal.auroc(p, outcome)), rel=1e-6)
    assert got["observed_expected"] == pytest.approx(float(jaxcal.observed_expected_ratio(p, outcome)), rel=1e-5)
    assert got["ece"] == pytest.approx(float(jaxcal.ece(p, outcome)), rel=1e-4)
    assert got["slope"] == pytest.approx(float(jaxcal.calibration_slope(p, outcome).slope), rel=1e-4)
    test = jaxcal.rank_ece_test(p, outcome)
    assert report["tests"]["rank"]["p_value"] == pytest.approx(float(test.p_value), rel=1e-3)
    for name in ("auroc", "observed_expected"):
        entry = report["estimates"][name]
        assert entry["lower"] < entry["value"] < entry["upper"]
    assert "auroc" not in values(audit(capsys, path, *options))
    assert main(["audit", str(path), *map(str, options), "--event", "cow"]) == 2
    assert "--event must be the label of a class, cat, dog" in capsys.readouterr().err


@pytest.mark.once
@pytest.mark.parametrize(
    ("loss", "folds", "weighted"),
    [(jaxcal.log_loss, None, False), (jaxcal.log_loss, 3, True), (jaxcal.half_brier_loss, None, True)],
)
def test_resamples_agree_with_decompose_on_the_same_counts(data, monkeypatch, loss, folds, weighted):
    z, y, w = data
    monkeypatch.setattr(bootstrap, "_CHUNK_ROWS", 70)  # several chunks, the last one not full
    weights = w.astype(float) if weighted else None
    key = {} if folds is None else {"folds": folds, "key": jax.random.key(1)}
    fit = jaxcal.fit_temperature(z, y, weights=w)
    got, at_bound = bootstrap.resample(
        z, y, weights, fit, loss=loss, folds=folds, resamples=12, seed=1, progress=silent
    )
    assert not at_bound.any()
    fold = np.zeros(N, int) if folds is None else np.asarray(bootstrap.split_rows(key["key"], N, folds).fold)
    chunks = bootstrap.row_chunks(fold)
    counts = np.zeros((12, N), np.float32)
    for rows, drawn in zip(chunks, bootstrap.draw(np.random.default_rng(1), 12, chunks, weights), strict=True):
        counts[:, rows] = drawn
    for i in range(12):
        want = jaxcal.decompose(z, y, loss=loss, weights=counts[i], **key)
        # out of fold the loss is not at its minimum, so that it feels the error of T to first order
        atol = 5e-5 if folds else 5e-6
        for term in TERMS:
            assert getattr(got, term)[i] == pytest.approx(float(getattr(want, term)), rel=2e-5, abs=atol)
        # the grid's promise at n = 300, 4 % between temperatures: an eighth of the squared spacing, times O(1)
        if want.fit is not None:
            assert got.temperature[i] == pytest.approx(float(want.fit.temperature), rel=1e-3)
        assert got.accuracy[i] == pytest.approx(float(jaxcal.accuracy(z, y, weights=counts[i])), rel=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("weighted", [False, True])
def test_draws_are_multinomial_across_chunks(data, monkeypatch, weighted):
    w = data[2].astype(float)
    share = w / w.sum() if weighted else np.full(N, 1 / N)
    total = w.sum() if weighted else N
    monkeypatch.setattr(bootstrap, "_CHUNK_ROWS", 64)
    chunks = bootstrap.row_chunks(np.zeros(N, int))
    counts = np.concatenate(
        list(bootstrap.draw(np.random.default_rng(0), 4000, chunks, w if weighted else None)), axis=1
    )
    assert len(chunks) == 5
    assert (counts.sum(1) == total).all()
    deviation = (counts.mean(0) - total * share) / np.sqrt(total * share / 4000)
    assert np.abs(deviation).max() < 4.5
    assert deviation.var() == pytest.approx(1, abs=0.35)
    assert counts.var(0).mean() == pytest.approx((total * share * (1 - share)).mean(), rel=0.02)
    pairs = np.cov(counts[:, [0, 1, 150, 299]].T)  # within and across chunks: -total p_i p_j
    assert pairs[np.triu_indices(4, 1)].mean() == pytest.approx(0, abs=0.03)


@pytest.mark.once
def test_other_weights_stay_with_their_rows():
    w = np.array([0.5, 2.0, 1.25])
    (counts,) = bootstrap.draw(np.random.default_rng(0), 100, [np.arange(3)], w)
    np.testing.assert_array_equal((counts / w).sum(1), 3)
    np.testing.assert_array_equal(counts / w, np.round(counts / w))


@pytest.mark.once
def test_small_blocks_of_resamples_draw_from_the_same_law(data, monkeypatch):
    z, y, _ = data
    _, fit = bootstrap.estimate(z, y, None, loss=jaxcal.log_loss, folds=None, seed=0)
    draw = partial(bootstrap.resample, z, y, None, fit, loss=jaxcal.log_loss, folds=None, seed=0, progress=silent)
    whole, _ = draw(resamples=300)
    monkeypatch.setattr(bootstrap, "_BLOCK_BYTES", 64 * 16 * 200)
    blocks, _ = draw(resamples=300)
    assert blocks.risk.shape == (300,)
    assert len(np.unique(blocks.risk)) > 290
    assert blocks.risk.std() == pytest.approx(whole.risk.std(), rel=0.25)


@pytest.mark.once
def test_intervals_are_order_statistics_and_their_width_is_right(capsys, data, npz):
    z, y, _ = data
    args = (npz, "--logits", "z", "--labels", "y", "--resamples", 800)
    report = audit(capsys, *args)
    assert report == audit(capsys, *args)  # a seed gives the same numbers
    assert report["estimates"] != audit(capsys, *args, "--seed", 1)["estimates"]
    estimates = report["estimates"]
    assert estimates["ece"]["lower"] is None and estimates["ece"]["upper"] is None
    for name in (*TERMS[:-1], "temperature", "accuracy", "debiased_ece", "rank_ece", "slope", "intercept"):
        assert estimates[name]["lower"] < estimates[name]["upper"]
    losses = np.asarray(jaxcal.log_loss(z, y), np.float64)
    hits = (z.argmax(1) == y).astype(float)
    for name, sample in (("risk", losses), ("accuracy", hits)):
        width = estimates[name]["upper"] - estimates[name]["lower"]
        assert width == pytest.approx(2 * 1.96 * sample.std() / np.sqrt(N), rel=0.15)
        assert estimates[name]["lower"] < estimates[name]["value"] < estimates[name]["upper"]


@pytest.mark.parametrize("change", ["scale", "offset", "mask", "outlier"])
def test_intervals_of_awkward_logits(data, change):
    z, y, _ = data
    z = z.copy()
    match change:
        case "scale":
            z *= 1e-6
        case "offset":
            z += np.float32(1024) * np.arange(N, dtype=np.float32)[:, None] % 8192
        case "mask":
            z[np.arange(N), (y + 1) % K] = np.finfo(np.float32).min
        case "outlier":
            z[0, (y[0] + 1) % K] = 1e30
    estimates, fit = bootstrap.estimate(z, y, None, loss=jaxcal.log_loss, folds=None, seed=0)
    drawn = bootstrap.resample(
        z, y, None, fit, loss=jaxcal.log_loss, folds=None, resamples=200, seed=0, progress=silent
    )
    found = bootstrap.intervals(estimates, *drawn)
    assert found.failed == 0
    for name in TERMS[:-1]:
        assert np.isfinite([getattr(found.lower, name), getattr(found.upper, name)]).all()
    inside = found.lower.temperature <= float(estimates.temperature) <= found.upper.temperature
    assert inside and (found.lower.temperature < np.inf)


@pytest.mark.once
def test_intervals_leave_out_what_does_not_exist_and_keep_infinity():
    column = np.arange(100.0)
    temperature = np.where(column > 90, np.inf, column)
    risk = np.where(column < 10, np.nan, column)
    estimates = bootstrap.Estimates(risk, *[column] * 4, temperature, column)
    sample = bootstrap.Estimates(*[np.float32(51.5)] * 7)
    result = bootstrap.intervals(sample, estimates, column > 90)
    assert (result.lower.refinement, result.upper.refinement) == (2, 97)
    assert (result.lower.calibration, result.upper.calibration) == (4, 99)  # the mean of the draws is 49.5
    assert (result.lower.risk, result.upper.risk) == (12, 97)
    assert (result.lower.temperature, result.upper.temperature) == (2, np.inf)
    assert (result.failed, result.at_bound) == (10, 9)


@pytest.mark.once
def test_table_shows_the_numbers_of_the_json(capsys, npz):
    args = (npz, "--logits", "z", "--labels", "y", "--resamples", 50)
    report = audit(capsys, *args)
    out = call(capsys, "audit", *args)
    for name, entry in report["estimates"].items():
        line = next(line for line in out.splitlines() if line.strip().lower().startswith(name.replace("_", " ")))
        numbers = [float(text) for text in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", line)]
        assert numbers[0] == pytest.approx(entry["value"], rel=6e-4)
        if entry["lower"] is not None:
            assert numbers[1:3] == pytest.approx([entry["lower"], entry["upper"]], rel=6e-4)
    assert "300 rows, 4 classes" in out
    assert "biased upward" in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.once
def test_weights_are_counts(capsys, data, tmp_path):
    z, y, _ = data
    w = np.where(np.arange(N) % 2, 2, 0)
    dirty_z, dirty_y = z.copy(), y.copy()
    dirty_z[::2], dirty_y[::2] = np.nan, -1  # absent rows may hold anything
    np.savez(tmp_path / "w.npz", z=dirty_z, y=dirty_y, w=w)
    np.savez(tmp_path / "repeated.npz", z=np.repeat(z, w, 0), y=np.repeat(y, w))
    weighted = audit(capsys, tmp_path / "w.npz", "--logits", "z", "--labels", "y", "--weights", "w", "--resamples", 300)
    repeated = audit(capsys, tmp_path / "repeated.npz", "--logits", "z", "--labels", "y", "--resamples", 300)
    assert values(weighted) == pytest.approx(values(repeated), rel=2e-5)
    for name in ("risk", "temperature"):
        a, b = (r["estimates"][name]["upper"] - r["estimates"][name]["lower"] for r in (weighted, repeated))
        assert a == pytest.approx(b, rel=0.2)
    assert any("150 rows of weight 0" in note for note in weighted["notes"])


@pytest.mark.once
def test_all_formats_give_the_same_numbers(capsys, data, npz, tmp_path):
    z, y, w = data
    frame = pd.DataFrame(z, columns=[f"z_{j}" for j in range(K)]).assign(label=y, count=w)
    frame.to_csv(tmp_path / "val.csv", index=False)
    frame.to_parquet(tmp_path / "val.parquet")
    for name, array in (("z", z), ("y", y), ("w", w)):
        np.save(tmp_path / f"{name}.npy", array)
    end = ("--resamples", 0)
    want = values(audit(capsys, npz, "--logits", "z", "--labels", "y", "--weights", "w", *end))
    for file in ("val.csv", "val.parquet"):
        table = ("--labels", "label", "--weights", "count", *end)
        assert values(audit(capsys, tmp_path / file, "--logits", "z_*", *table)) == pytest.approx(want, rel=1e-6)
        columns = ("--logits", "z_0", "z_1", "z_2", "z_3")
        assert values(audit(capsys, tmp_path / file, *columns, *table)) == pytest.approx(want, rel=1e-6)
    labels = ("--labels", tmp_path / "y.npy", "--weights", tmp_path / "w.npy")
    assert values(audit(capsys, tmp_path / "z.npy", "--logits", *labels, *end)) == want


@pytest.mark.once
def test_probabilities_are_renormalized_and_the_distance_is_told(capsys, data, tmp_path):
    z, y, _ = data
    p = np.exp(z.astype(float) - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    scale = 1 + 9e-4 * np.linspace(-1, 1, N)[:, None]
    np.savez(tmp_path / "p.npz", p=p * scale, y=y)
    report = audit(capsys, tmp_path / "p.npz", "--probs", "p", "--labels", "y", "--resamples", 0)
    assert any("within 9.0e-04 and were renormalized" in note for note in report["notes"])
    assert values(report)["risk"] == pytest.approx(float(jaxcal.risk(z, y)), rel=1e-5)


@pytest.mark.once
def test_floor_is_that_of_the_library(capsys, tmp_path):
    p = np.tile([[1.0, 0.0, 0, 0], [0.2, 0.7, 0.05, 0.05], [0.7, 0.1, 0.1, 0.1]], (N // 3, 1))
    y = np.tile([1, 1, 0], N // 3)
    np.savez(tmp_path / "p.npz", p=p, y=y)
    report = audit(capsys, tmp_path / "p.npz", "--probs", "p", "--labels", "y", "--floor", "1e-3", "--resamples", 0)
    want = jaxcal.risk(jaxcal.logits_from_probs(p, floor=1e-3), y)
    assert values(report)["risk"] == pytest.approx(float(want), rel=1e-6)
    assert any("300 probabilities below 0.001 were raised" in note for note in report["notes"])


@pytest.mark.once
def test_the_floor_reaches_every_number(capsys, tmp_path):
    """Certain forecasts, some of which were wrong: they have a calibration line once they are raised."""
    rng = np.random.default_rng(0)
    p = np.round(rng.random(N), 1)
    y = (rng.random(N) < 0.1 + 0.8 * p).astype(int)
    assert (y[p == 0] == 1).any()
    np.savez(tmp_path / "p.npz", p=p, y=y)
    report = audit(
        capsys, *(tmp_path / "p.npz", "--probs", "p", "--labels", "y", "--event", 1, "--floor", 0.02, "--resamples", 0)
    )
    # the other class was raised to .02, and the row divided by its sum
    raised = np.where(p == 0, 0.02 / 1.02, np.where(p == 1, 1 / 1.02, p)).astype(np.float32)
    line = jaxcal.calibration_slope(raised, y)
    want = {"ece": jaxcal.ece(raised, y), "slope": line.slope, "intercept": line.intercept}
    for name, value in want.items():
        assert values(report)[name] == pytest.approx(float(value), rel=1e-5)
    p_value = float(jaxcal.weak_calibration_test(raised, y).p_value)
    assert report["tests"]["line"]["p_value"] == pytest.approx(p_value, rel=1e-4)


@pytest.mark.once
@pytest.mark.once
def test_80_columns_are_enough(monkeypatch):
    """Numbers as long as they come, in the tables of a pipe."""
    monkeypatch.setenv("COLUMNS", "80")
    small, names = -1.2345e-05, bootstrap.Estimates._fields
    everything = bootstrap.Estimates(*[small] * len(names))
    rng = np.random.default_rng(0)
    p = rng.random(300).astype(np.float32)
    found = event.estimates(p, rng.random(300) < p, None, num_bins=15, resamples=0, seed=0)[0]
    found |= event.discrimination(p, rng.random(300) < p, None, resamples=0, seed=0)
    found = {name: event.Estimate(small, small, small, entry.meaning) for name, entry in found.items()}
    tests = event.tests(p, rng.random(300) < p, None)
    tests = {name: tests[name]._replace(p_value=p) for name, p in zip(tests, (1.2345e-4, 1.2345e-20, 0.0), strict=True)}
    intervals = bootstrap.Intervals(everything, everything, 0, 0)
    args = argparse.Namespace(file="f", loss="half-brier")
    rows = argparse.Namespace(logits=np.zeros((300, 4)), weights=None)
    for name in ("temperature", "ensemble-temperature"):
        chosen = choice.Choice(name, None, None, None)
        result = report.Result(everything, None, chosen, intervals, found, tests, "class 1", [])
        for text, number in (
            (report.overview(args, rows, result), len(report.quantities(result))),
            (report.event_table(result), len(found) + len(tests)),
        ):
            lines = text.splitlines()[2:]
            assert max(map(len, lines)) <= 80 and len(lines) == 2 + number  # head, rule and a line a row


def test_the_printed_bins_are_told_apart(capsys, npz):
    out = call(capsys, "audit", npz, "--logits", "z", "--labels", "y", "--resamples", 0)
    lines = {line.strip().split("  ")[0]: line for line in out.splitlines()}
    assert lines["ECE"].rstrip().endswith("15 equal-width bins")
    assert lines["debiased ECE"].rstrip().endswith("squared, mass bins")
    assert "debiased ECE: 15 bins" in out


@pytest.mark.once
@pytest.mark.parametrize("share, exists", [(0.5, False), (0.52, False), (0.7, True)])
def test_equally_frequent_classes_have_no_interval_of_the_uncertainty(capsys, tmp_path, share, exists):
    """It is the largest there is: all resamples lie below it. 0.52 is 0.7 standard errors from 1/2, 0.7 is 6.9."""
    y = (np.arange(N) < share * N).astype(int)
    np.savez(tmp_path / "p.npz", z=np.random.default_rng(0).normal(size=N) + y, y=y)
    args = (tmp_path / "p.npz", "--logits", "z", "--labels", "y", "--resamples", 400)
    report = audit(capsys, *args)
    entry = report["estimates"]["uncertainty"]
    assert (entry["lower"] is not None) == exists and report["estimates"]["sharpness"]["lower"] is not None
    assert any("uncertainty: no interval" in note for note in report["notes"]) != exists
    line = next(line for line in call(capsys, "audit", *args).splitlines() if line.strip().startswith("uncertainty "))
    assert ("[" in line) == exists


@pytest.mark.once
def test_one_column_is_class_1_of_2(capsys, tmp_path):
    rng = np.random.default_rng(0)
    score = rng.normal(size=60)
    y = (rng.random(60) < 1 / (1 + np.exp(-2 * score))).astype(int)
    probability = 1 / (1 + np.exp(-score))
    pd.DataFrame({"s": score, "p": probability, "y": y.astype(bool)}).to_csv(tmp_path / "b.csv", index=False)
    np.savez(tmp_path / "b.npz", s=score, y=y.astype(bool))
    want = jaxcal.fit_temperature(jaxcal.binary_logits(score), y)
    for args in (("b.csv", "--logits", "s"), ("b.csv", "--probs", "p"), ("b.npz", "--logits", "s")):
        report = audit(capsys, tmp_path / args[0], *args[1:], "--labels", "y", "--resamples", 0)
        assert values(report)["temperature"] == pytest.approx(float(want.temperature), rel=1e-4)
        assert values(report)["risk"] == pytest.approx(float(jaxcal.risk(jaxcal.binary_logits(score), y)), rel=1e-5)
        assert report["k"] == 2


@pytest.mark.once
@pytest.mark.parametrize(
    ("scores", "labels", "status", "temperature"),
    [
        ("z", "worst", "AT_LOWER_BOUND", "Infinity"),
        ("z", "best", "AT_UPPER_BOUND", None),
        ("constant", "best", "NOT_IDENTIFIED", 1.0),
    ],
)
def test_degenerate_predictions_are_explained(capsys, data, tmp_path, scores, labels, status, temperature):
    z, _, _ = data
    np.savez(tmp_path / "d.npz", z=z, constant=np.ones_like(z), worst=z.argmin(1), best=z.argmax(1))
    args = (tmp_path / "d.npz", "--logits", scores, "--labels", labels, "--resamples", 40)
    report = audit(capsys, *args)
    assert report["status"] == status
    entry = report["estimates"]["temperature"]
    if temperature is not None:
        assert entry == {"value": temperature, "lower": temperature, "upper": temperature}
    else:
        assert 0 < entry["lower"] <= entry["upper"] < 0.1
        assert values(report)["refinement"] < 1e-5
    lines = [line for line in call(capsys, "audit", *args).splitlines() if line.startswith(status)]
    assert len(lines) == 1


@pytest.mark.once
def test_one_class_in_the_labels(capsys, data, tmp_path):
    z, _, _ = data
    np.savez(tmp_path / "one.npz", z=z, y=np.zeros(N, int))
    report = audit(capsys, tmp_path / "one.npz", "--logits", "z", "--labels", "y", "--resamples", 20)
    assert values(report)["uncertainty"] == 0
    assert values(report)["sharpness"] == -values(report)["refinement"]


@pytest.mark.once
@pytest.mark.parametrize("suffix", ["npz", "npy", "csv", "parquet"])
@pytest.mark.parametrize("source", ["npz", "npy", "csv", "parquet"])
def test_fit_and_apply_round_trip(capsys, data, npz, tmp_path, source, suffix):
    z, y, _ = data
    calibrator, out = tmp_path / "t.npz", tmp_path / f"out.{suffix}"
    call(capsys, "audit", npz, "--logits", "z", "--labels", "y", "--resamples", 0, "--fit", calibrator)
    fit = jaxcal.load(calibrator)
    assert float(fit.temperature) == float(jaxcal.fit_temperature(z, y).temperature)
    frame = pd.DataFrame(z, columns=[f"z_{j}" for j in range(K)]).assign(id=[f"{i:04d}" for i in range(N)])
    file, names = tmp_path / f"test.{source}", {"npz": ["z"], "npy": []}.get(source, ["z_*"])
    match source:
        case "npz":
            np.savez(file, z=z, y=y)
        case "npy":
            np.save(file, z)
        case "csv":
            frame.to_csv(file, index=False)
        case "parquet":
            frame.to_parquet(file)
    said = call(capsys, "apply", calibrator, file, "--logits", *names, "--out", out)
    assert f"{N} rows, {K} classes" in said
    want = np.exp(np.asarray(fit(z), np.float64))
    match suffix:
        case "npz":
            with np.load(out) as archive:
                got = archive["probs"]
                assert sorted(archive.files) == (["probs", "y"] if source == "npz" else ["probs"])
        case "npy":
            got = np.load(out)
        case _:
            table = pd.read_csv(out, dtype={"id": str}) if suffix == "csv" else pd.read_parquet(out)
            new = [f"p_{j}" for j in range(K)]
            assert list(table) == (["id", *new] if source in ("csv", "parquet") else new)
            if "id" in table:
                assert table["id"].tolist() == frame["id"].tolist()  # 0007 stays 0007
            got = table[new].to_numpy()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-12)
    assert np.abs(got.sum(1) - 1).max() < 1e-6
    assert jaxcal.logits_from_probs(got).shape == (N, K)


@pytest.mark.once
def test_apply_replaces_columns_of_the_same_name_and_refuses_to_overwrite_others(capsys, data, npz, tmp_path):
    z, _, _ = data
    call(capsys, "audit", npz, "--logits", "z", "--labels", "y", "--resamples", 0, "--fit", tmp_path / "t.npz")
    frame = pd.DataFrame(np.exp(np.asarray(jax.nn.log_softmax(z, -1))), columns=[f"p_{j}" for j in range(K)])
    frame.assign(x=1).to_csv(tmp_path / "p.csv", index=False)
    call(capsys, "apply", tmp_path / "t.npz", tmp_path / "p.csv", "--probs", "p_*", "--out", tmp_path / "q.csv")
    assert list(pd.read_csv(tmp_path / "q.csv")) == ["x", "p_0", "p_1", "p_2", "p_3"]
    frame.assign(p_0=1.0).rename(columns={"p_0": "a", "p_1": "b"}).assign(p_a=0).to_csv(tmp_path / "p.csv", index=False)
    args = ("apply", tmp_path / "t.npz", tmp_path / "p.csv", "--logits", "a", "b", "--out", tmp_path / "r.csv")
    assert main([str(a) for a in args]) == 2
    assert "--prefix" in capsys.readouterr().err
    out = call(capsys, *args, "--prefix", "new_")
    assert "new_a from a, new_b from b" in out
    assert list(pd.read_csv(tmp_path / "r.csv")) == ["p_2", "p_3", "p_a", "new_a", "new_b"]


@pytest.mark.once
@pytest.mark.parametrize(
    "columns, names",
    [
        ("p_ontime p_late", "p_ontime p_late"),
        ("z.car z.cat", "p_car p_cat"),
        ("car cat", "p_car p_cat"),
        ("p9 p10", "p_9 p_10"),
        ("p_10 p_11", "p_10 p_11"),
        ("p_1st p_2nd", "p_1st p_2nd"),
        ("p_-1 p_-2", "p_-1 p_-2"),
        ("p_.5 p_.7", "p_.5 p_.7"),
        ("problem_1 problem_2", "p_problem_1 p_problem_2"),
        ("p_0.5 p_0.75", "p_0.5 p_0.75"),
        ("p_very_good p_very_bad", "p_very_good p_very_bad"),
        ("very_good very_bad", "p_very_good p_very_bad"),
        ("p_ p_late", "p_p_ p_p_late"),
        ("score", "p_0 p_1"),
    ],
)
def test_apply_keeps_the_names_of_the_classes(capsys, tmp_path, columns, names):
    z = np.array([[0.0, 1.0], [0.0, -2.0], [0.0, 0.5]])
    fit = jaxcal.fit_temperature(np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), np.array([1, 0, 0]))
    fit.save(tmp_path / "t.npz")
    columns = columns.split()
    pd.DataFrame(z[:, -len(columns) :], columns=columns).to_csv(tmp_path / "z.csv", index=False)
    call(capsys, "apply", tmp_path / "t.npz", tmp_path / "z.csv", "--logits", *columns, "--out", tmp_path / "p.csv")
    got = pd.read_csv(tmp_path / "p.csv")
    assert list(got) == names.split()
    np.testing.assert_allclose(got.to_numpy(), np.exp(np.asarray(fit(z))), rtol=1e-6)


@pytest.mark.once
def test_apply_takes_other_calibrators_but_no_stacks(capsys, data, npz, tmp_path):
    z, y, _ = data
    fit = jaxcal.laplace(jaxcal.fit_temperature)(z, y)
    fit.save(tmp_path / "laplace.npz")
    call(capsys, "apply", tmp_path / "laplace.npz", npz, "--logits", "z", "--out", tmp_path / "p.npy")
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), np.exp(np.asarray(fit(z), np.float64)), rtol=1e-5)
    jaxcal.fit_temperature(np.stack([z, 2 * z]), y).save(tmp_path / "stack.npz")
    args = ["apply", tmp_path / "stack.npz", npz, "--logits", "z", "--out", tmp_path / "q.npy"]
    assert main([str(a) for a in args]) == 2
    assert "stack" in capsys.readouterr().err
    assert not (tmp_path / "q.npy").exists()


@pytest.mark.once
@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_plot_is_a_picture(capsys, npz, tmp_path, suffix):
    out = tmp_path / f"r.{suffix}"
    said = call(capsys, "audit", npz, "--logits", "z", "--labels", "y", "--resamples", 0, "--plot", out)
    assert f"wrote reliability diagram {out}" in said
    start = {"png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert out.read_bytes().startswith(start)
    assert out.stat().st_size > 5000


@pytest.mark.once
def test_outputs_have_ordinary_permissions_and_replace_older_ones(capsys, npz, tmp_path):
    out = tmp_path / "t.npz"
    out.write_text("old")
    mask = os.umask(0o022)
    try:
        call(capsys, "audit", npz, "--logits", "z", "--labels", "y", "--resamples", 0, "--fit", out)
    finally:
        os.umask(mask)
    assert out.stat().st_mode & 0o777 == 0o644
    assert jaxcal.load(out).temperature > 1


@pytest.mark.once
def test_every_loss_has_its_name():
    assert {name: loss.name for name, loss in LOSSES.items()} == {
        "log": "log_loss",
        "brier": "brier_loss",
        "half-brier": "half_brier_loss",
        "spherical": "spherical_loss",
    }


@pytest.mark.once
def test_from_the_shell(npz):
    command = [sys.executable, "-m", "jaxcal", "audit", npz, "--logits", "z", "--labels"]
    bad = subprocess.run([*command, "x"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("jaxcal: ") and bad.stderr.count("\n") == 1


@pytest.mark.once
def test_probabilities_on_bin_edges_keep_their_bins(tmp_path, capsys):
    # frequencies of ten votes lie on the edges k/15 at 0.4, 0.6 and 0.8; exact value by integer arithmetic
    rng = np.random.default_rng(0)
    votes = 1 + rng.multinomial(7, [0.5, 0.3, 0.2], size=200)
    labels = rng.integers(0, 3, 200)
    table = pd.DataFrame(votes / 10, columns=["p_0", "p_1", "p_2"]).assign(y=labels)
    table.to_csv(tmp_path / "votes.csv", index=False)
    top, hit = votes.max(-1), votes.argmax(-1) == labels
    bins = top * 15 // 10
    exact = sum(abs((top[bins == b] / 10 - hit[bins == b]).sum()) for b in range(15)) / 200
    arguments = ["audit", str(tmp_path / "votes.csv"), "--probs", "p_*", "--labels", "y", "--json", "--resamples", "0"]
    assert main(arguments) == 0
    assert abs(json.loads(capsys.readouterr().out)["estimates"]["ece"]["value"] - exact) < 1e-6


def test_float64_logits_lose_nothing_to_an_offset(tmp_path, capsys):
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((100, 3)), rng.integers(0, 3, 100)
    reports = []
    for offset in (0.0, 1e8):
        np.savez(tmp_path / "z.npz", z=z + offset, y=y)
        assert (
            main(["audit", str(tmp_path / "z.npz"), "--logits", "z", "--labels", "y", "--json", "--resamples", "0"])
            == 0
        )
        reports.append(json.loads(capsys.readouterr().out)["estimates"])
    # z + 1e8 has been rounded to 1.5e-8 in the file
    assert all(abs(reports[0][name]["value"] - reports[1][name]["value"]) < 1e-6 for name in ("risk", "accuracy"))


@pytest.mark.once
def test_a_space_before_the_class_is_part_of_the_prefix(tmp_path, capsys):
    frame = pd.DataFrame([[0.2, 0.8, 1], [0.7, 0.3, 0], [0.6, 0.4, 1]], columns=["prob class 0", "prob class 1", "y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    command = ["audit", str(tmp_path / "t.csv"), "--probs", "prob class *", "--labels", "y", "--resamples", "0"]
    assert main(command) == 0
    assert "0 = prob class 0" in capsys.readouterr().out


@pytest.mark.once
def test_auto_shows_what_select_calibrator_finds(capsys, data, npz, tmp_path, monkeypatch):
    z, y, w = data
    few = {name: known_calibrators()[name] for name in ("none", "temperature", "isotonic")}  # quicker to compile
    monkeypatch.setattr(choice, "default_calibrators", lambda k, loss: few)
    fit = tmp_path / "fit.npz"
    args = (
        npz,
        "--logits",
        "z",
        "--labels",
        "y",
        "--weights",
        "w",
        "--calibrator",
        "auto",
        "--resamples",
        0,
        "--seed",
        4,
    )
    report = audit(capsys, *args, "--fit", fit)
    want = jaxcal.select_calibrator(few, z, y, key=jax.random.key(4), weights=w)
    assert [entry["calibrator"] for entry in report["comparison"]] == list(few)
    for name in ("risk", "standard_error", "difference", "difference_error"):
        got = [entry[name] for entry in report["comparison"]]
        np.testing.assert_allclose(got, getattr(want, name), rtol=1e-6)
    assert [entry["parameters"] for entry in report["comparison"]] == [0, 1, None]
    assert report["calibrator"] == want.name == "temperature" and report["folds"] == 5
    assert values(report)["refinement"] == pytest.approx(float(want.risk[1]), rel=1e-6)
    assert float(jaxcal.load(fit).temperature) == float(want.fit.temperature)
    lines = call(capsys, "audit", *args).splitlines()
    assert max(map(len, lines[1:])) <= 120  # the first holds the path
    (marked,) = [line.split() for line in lines if line.endswith("chosen")]
    assert marked[0] == "temperature" and float(marked[1]) == pytest.approx(float(want.risk[1]), rel=6e-4)
    assert any(line.startswith("temperature: the least loss") for line in lines)


@pytest.mark.once
@pytest.mark.parametrize(("name", "folds"), [("none", None), ("isotonic", 3)])
def test_a_named_calibrator_is_that_of_the_library(capsys, data, npz, tmp_path, name, folds):
    z, y, w = data
    fit, out = tmp_path / "fit.npz", tmp_path / "p.npy"
    rows = (npz, "--logits", "z", "--labels", "y", "--weights", "w", "--calibrator", name, "--seed", 2)
    args = (*rows, *(() if folds is None else ("--folds", folds)), "--resamples", 400, "--fit", fit)
    report = audit(capsys, *args)
    key = {} if folds is None else {"folds": folds, "key": jax.random.key(2)}
    calibrator = known_calibrators()[name]
    parts = jaxcal.decompose(z, y, weights=w, calibrator=calibrator, **key)
    got = values(report)
    for term in TERMS:
        assert got[term] == pytest.approx(float(getattr(parts, term)), rel=1e-6, abs=1e-7)
    assert report["estimates"]["temperature"] == {"value": None, "lower": None, "upper": None}
    assert (report["calibrator"], report["comparison"], report["failed_resamples"]) == (name, None, 0)
    # the width of a normal 95 % interval for the mean of the losses that were measured, weights as counts
    mapped = calibrator(z, y, weights=w)(z) if folds is None else jaxcal.cross_fit(calibrator, z, y, weights=w, **key)
    for term, logits in (("risk", z), ("refinement", mapped)):
        losses = np.repeat(np.asarray(jaxcal.log_loss(logits, y), np.float64), w)
        entry = report["estimates"][term]
        width = 2 * 1.96 * losses.std() / np.sqrt(len(losses))
        assert entry["upper"] - entry["lower"] == pytest.approx(width, rel=0.2)
        assert entry["lower"] < entry["value"] < entry["upper"]
    call(capsys, "apply", fit, npz, "--logits", "z", "--out", out)
    want = np.exp(np.asarray(calibrator(z, y, weights=w)(z), np.float64))
    np.testing.assert_allclose(np.load(out), want, rtol=2e-6)
    plot = tmp_path / "r.png"
    said = call(capsys, "audit", *rows, "--resamples", 0, "--plot", plot)
    assert "removed by the calibrator" in said and f"calibrator {name}\n" in said and "temperature " not in said
    assert plot.stat().st_size > 5000


@pytest.mark.once
def test_an_unknown_calibrator_is_refused(capsys, npz):
    args = ["audit", npz, "--logits", "z", "--labels", "y", "--calibrator", "magic"]
    assert main(args) == 2
    said = capsys.readouterr().err
    assert "invalid choice: 'magic'" in said and "venn-abers" in said
