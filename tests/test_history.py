"""The record of a training: its numbers, its budget, and the file after a killed process."""

import json
import math
import signal
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

import jaxcal
from jaxcal.history import FIELDS, read_history

N, K, EPOCHS = 200, 4, 6


def _epochs(lanes=(), epochs=EPOCHS):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, N)
    signal_ = np.eye(K)[labels] + rng.normal(size=(*lanes, N, K))
    z = np.stack([(1 + e) * (signal_ + 0.1 * e * rng.normal(size=signal_.shape)) for e in range(epochs)])
    return z.astype(np.float32), labels


@pytest.mark.parametrize("lanes", [(), (2,)])
def test_numbers_of_every_epoch(lanes, tmp_path):
    z, labels = _epochs(lanes)
    weights = np.arange(N) % 3
    history = jaxcal.History(labels, weights=weights, path=tmp_path / "run.jsonl")
    returned = [history.record(logits, train_loss=0.5 - 0.1 * e) for e, logits in enumerate(z)]
    stacked = np.moveaxis(z, 0, -3)
    expected = jaxcal.decompose(stacked, labels, weights=weights)
    want = {name: getattr(expected, name) for name in ("risk", "calibration", "refinement")}
    want |= {"temperature": expected.fit.temperature, "accuracy": jaxcal.accuracy(stacked, labels, weights=weights)}
    for name in FIELDS:
        assert history.array(name).shape == (*lanes, EPOCHS)
        np.testing.assert_allclose(history.array(name), want[name], rtol=2e-6, atol=1e-6)
        last = [returned[-1][name + (f"/{i}" if lanes else "")] for i in range(2 if lanes else 1)]
        np.testing.assert_array_equal(last, np.ravel(history.array(name)[..., -1]))
    assert all(isinstance(value, float) for value in returned[0].values()) and returned[1]["train_loss"] == 0.4
    np.testing.assert_array_equal(history.select(), jaxcal.select_epoch(history.array("refinement")))
    np.testing.assert_array_equal(history.logits(), stacked)
    other = np.arange(N) % 2
    found = history.decompose(weights=other)
    np.testing.assert_allclose(found.refinement, jaxcal.decompose(stacked, labels, weights=other).refinement)
    brier = history.decompose(loss=jaxcal.brier_loss).refinement
    np.testing.assert_allclose(
        brier, jaxcal.decompose(stacked, labels, weights=weights, loss=jaxcal.brier_loss).refinement
    )

    frame = history.to_pandas()
    assert len(frame) == EPOCHS * math.prod(lanes) and ("lane" in frame) == bool(lanes)
    np.testing.assert_allclose(np.sort(frame.refinement), np.sort(history.array("refinement").ravel()))
    header, rows = read_history(tmp_path / "run.jsonl")
    assert header["rows"] == N and [row["step"] for row in rows] == list(range(EPOCHS))
    np.testing.assert_array_equal(np.moveaxis([row["refinement"] for row in rows], 0, -1), history.array("refinement"))


@pytest.mark.once
def test_xarray():
    pytest.importorskip("xarray", reason="needs xarray")
    z, labels = _epochs((2,))
    history = jaxcal.History(labels)
    for e, logits in enumerate(z):
        history.record(logits, step=10 * e, rate=0.1)
    data = history.to_xarray()
    assert data.refinement.dims == ("lane", "step") and data.rate.dims == ("step",)
    np.testing.assert_array_equal(data.refinement.sel(step=30), history.array("refinement")[:, 3])


def test_the_budget_takes_half_precision_and_then_nothing():
    z, labels = _epochs()
    z[0, 3, 1] = -np.inf  # a masked class, and a gap far beyond the others
    labels[3], labels[5] = 0, 2
    z[1, 5] = [-1e6, 0, 3, 0]
    history = jaxcal.History(labels, budget=4 * z[0].nbytes)
    for logits in z[:4]:
        history.record(logits)
    assert history.kept == "float32"
    history.record(z[4])
    assert history.kept == "float16" and history.logits().dtype == np.float32
    for found, exact in zip(history.logits(), z, strict=False):
        gaps = exact - exact.max(-1, keepdims=True)
        mask = np.isneginf(gaps)
        np.testing.assert_array_equal(np.isneginf(found), mask)
        np.testing.assert_allclose(found[~mask], gaps[~mask], rtol=5e-4, atol=1e-6)
    np.testing.assert_allclose(history.decompose().refinement, history.array("refinement"), rtol=1e-3)
    small = jaxcal.History(labels, budget=z[0].nbytes + 8)  # two halves and their units
    small.record(z[0])
    small.record(z[1])
    with pytest.warns(UserWarning, match="logits exceed the budget"):
        small.record(z[2])
    assert small.kept == "nothing" and small.steps == [0, 1, 2]
    for empty in (small, jaxcal.History(labels, budget=0)):
        with pytest.raises(ValueError, match="logits are not kept"):
            empty.decompose()


@pytest.mark.once
@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1.0, 1e5, 1e15])
def test_half_precision_in_any_unit_of_the_logits(scale):
    z, labels = _epochs((2,))
    z = (z * np.array([scale, 1])[:, None, None]).astype(np.float32)  # of the first seed
    history = jaxcal.History(labels, budget=int(0.75 * z[0].nbytes))
    history.record(z[0])
    assert history.kept == "float16"
    found = history.decompose()
    np.testing.assert_allclose(found.refinement, history.array("refinement"), rtol=1e-4)
    np.testing.assert_allclose(found.fit.temperature, history.array("temperature"), rtol=2e-3)


@pytest.mark.once
@pytest.mark.parametrize("mask", [-1e4, -1e9, -3e38, -np.inf])
def test_half_precision_where_most_classes_are_masked(mask):
    z, labels = _epochs((2,))
    z = np.concatenate([z, np.full((*z.shape[:-1], 9), mask, np.float32)], axis=-1)
    history = jaxcal.History(labels, budget=int(0.75 * z[0].nbytes))
    history.record(z[0])
    assert history.kept == "float16"
    np.testing.assert_allclose(history.decompose().refinement, history.array("refinement"), rtol=1e-4)


@pytest.mark.once
def test_decompose_is_of_the_loss_and_calibrator_of_the_history():
    z, labels = _epochs()
    options = {"loss": jaxcal.brier_loss, "calibrator": jaxcal.fit_identity}
    history = jaxcal.History(labels, **options)
    for logits in z[:2]:
        history.record(logits)
    for name in ("risk", "refinement"):
        np.testing.assert_allclose(getattr(history.decompose(), name), history.array(name), rtol=1e-5)
    expected = jaxcal.decompose(np.moveaxis(z[:2], 0, -3), labels).refinement
    found = history.decompose(loss=jaxcal.log_loss, calibrator=None).refinement
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, value in options.items():
        history = jaxcal.History(labels, top=2, **{name: value})
        history.record(z[0])
        with pytest.raises(ValueError, match=f"{name}: of the 2 largest"):
            history.decompose()


@pytest.mark.once
def test_half_precision_of_a_few_rows_far_from_the_others():
    z, labels = _epochs((3,))
    labels[:2] = 1
    z[0, 0, :3] *= 1e6  # of the first seed
    z[0, 1, 0] = [-1e9, 0, 0, 0]  # masked classes, by numbers that are used for that
    z[0, 2, 1] = [-3e38, 0, 3e38, 0]
    history = jaxcal.History(labels, budget=int(0.75 * z[0].nbytes))
    history.record(z[0])
    assert history.kept == "float16"
    found = history.decompose()
    np.testing.assert_allclose(found.risk[:2], history.array("risk")[:2], rtol=1e-3)
    np.testing.assert_allclose(found.refinement[:2], history.array("refinement")[:2], rtol=1e-4)
    assert np.isfinite(history.logits()).all()
    ordinary = z[0, 2, 5:]
    gaps = ordinary - ordinary.max(-1, keepdims=True)
    np.testing.assert_allclose(history.logits()[2, 0, 5:], gaps, rtol=5e-4, atol=2e-4)


@pytest.mark.once
def test_memory_of_the_caller_may_be_used_again():
    z, labels = _epochs()
    place = np.zeros(z[0].size + 16, np.float32)
    start = (-place.ctypes.data % 64) // 4  # where JAX takes memory without a copy
    buffer = place[start : start + z[0].size].reshape(z[0].shape)
    own, weights = labels.copy(), np.ones(N)

    class Tensor:
        dtype, __dlpack__, __dlpack_device__ = buffer.dtype, buffer.__dlpack__, buffer.__dlpack_device__

    for again in (buffer, Tensor()):
        history = jaxcal.History(own, weights=weights)
        for logits in z[:3]:
            buffer[:] = logits
            history.record(again)
        buffer[:], own[:], weights[:] = 0, 0, 0
        np.testing.assert_array_equal(history.logits(), z[:3])
        np.testing.assert_allclose(history.decompose().risk, history.array("risk"), rtol=1e-6)
        own[:], weights[:] = labels, 1


@pytest.mark.once
def test_a_killed_process_loses_nothing(tmp_path):
    path = tmp_path / "run.jsonl"
    program = f"""
        import itertools, numpy as np, jaxcal
        labels = np.arange({N}) % {K}
        history = jaxcal.History(labels, path={str(path)!r})
        for e in itertools.count():
            history.record(np.random.default_rng(e).normal(size=({N}, {K})).astype("float32"))
            print(e, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        seen = next(int(line) for line in process.stdout if int(line) >= 5)
        process.send_signal(signal.SIGKILL)
    header, rows = read_history(path)
    assert len(rows) > seen and [row["step"] for row in rows] == list(range(len(rows)))

    with path.open("a") as file:
        file.write('{"step": 99, "ris')  # as a process that is killed while it writes leaves it
    labels = np.arange(N) % K
    history = jaxcal.History(labels, path=path)
    assert history.steps == list(range(len(rows))) and history.kept == "nothing"
    history.record(np.zeros((N, K), np.float32), step=3)  # from a checkpoint of epoch 2
    assert history.steps == [0, 1, 2, 3] and [row["step"] for row in read_history(path)[1]] == [0, 1, 2, 3]
    assert history.array("temperature")[-1] == 1  # constant rows
    with pytest.raises(ValueError, match="is the history of other validation rows"):
        jaxcal.History(labels[::-1].copy(), path=path)


@pytest.mark.once
def test_a_resumed_history_has_as_many_classes(tmp_path):
    path = tmp_path / "run.jsonl"
    z, labels = _epochs()
    jaxcal.History(labels, path=path).record(z[0])
    history = jaxcal.History(labels, path=path)
    with pytest.raises(ValueError, match="logits of 7 classes, those before had 4"):
        history.record(np.zeros((N, 7), np.float32))
    history.record(z[1])
    assert read_history(path)[0]["classes"] == K and history.steps == [0, 1]


@pytest.mark.once
@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines, "[1, 2]"],
        lambda lines: [*lines, "{}"],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines + lines,
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], lines[1][:40], lines[2]],
    ],
)
def test_damaged_files_are_refused_and_left(damage, tmp_path):
    path = tmp_path / "run.jsonl"
    z, labels = _epochs()
    history = jaxcal.History(labels, path=path)
    for logits in z[:2]:
        history.record(logits)
    text = "".join(line + "\n" for line in damage(path.read_text().splitlines()))
    path.write_text(text)
    with pytest.raises(ValueError, match="run.jsonl holds a line that is no (JSON object|epoch after step)"):
        jaxcal.History(labels, path=path)
    assert path.read_text() == text


@pytest.mark.once
def test_a_second_process_is_noticed(tmp_path):
    path = tmp_path / "run.jsonl"
    z, labels = _epochs()
    first = jaxcal.History(labels, path=path)
    first.record(z[0])
    second = jaxcal.History(labels, path=path)
    second.record(z[1])
    written = path.read_text()
    for again in (z[2], z[2]):
        with pytest.raises(RuntimeError, match="run.jsonl was changed by another process"):
            first.record(again)
    with pytest.raises(RuntimeError, match="run.jsonl was changed by another process"):
        first.record(z[2], step=0)  # would write the file anew
    assert first.steps == [0] and path.read_text() == written
    second.record(z[2])
    assert [row["step"] for row in read_history(path)[1]] == [0, 1, 2]
    path.unlink()
    with pytest.raises(RuntimeError, match="run.jsonl was changed"):
        second.record(z[3])


def test_a_diverged_epoch_is_null_in_the_file(tmp_path):
    z, labels = _epochs()
    history = jaxcal.History(labels, path=tmp_path / "run.jsonl")
    numbers = history.record(np.full_like(z[0], np.nan))
    history.record(z[1])
    assert math.isnan(numbers["refinement"]) and numbers["status"] == jaxcal.Status.INVALID_INPUT
    assert history.select() == 1
    line = (tmp_path / "run.jsonl").read_text().splitlines()[1]
    assert json.loads(line)["refinement"] is None and "NaN" not in line
    assert math.isnan(jaxcal.History(labels, path=tmp_path / "run.jsonl").array("refinement")[0])


def test_an_impossible_event_is_infinite_in_the_file(tmp_path):
    z, y = np.random.default_rng(0).normal(size=(2, 50, 3)), np.arange(50) % 3
    z[1, 4, y[4]] = -np.inf
    path = tmp_path / "run.jsonl"
    history = jaxcal.History(y, path=path)
    for logits in z:
        history.record(np.stack([logits, z[0]]), mine=-math.inf)
    again = jaxcal.History(y, path=path)
    for name in ("risk", "refinement", "calibration", "mine"):
        np.testing.assert_array_equal(again.array(name), history.array(name))
    assert again.array("risk")[0, 1] == math.inf and (again.array("mine") == -math.inf).all()
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # plain JSON: no Infinity, no NaN


@pytest.mark.parametrize("step", [-1, 2.5, True, "2"])
def test_a_step_is_a_number_of_an_epoch(step):
    z, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 3
    history = jaxcal.History(y)
    history.record(z)
    with pytest.raises(ValueError, match="step must be an integer >= 0"):
        history.record(z, step=step)
    assert history.steps == [0]
    history.record(z, step=jax.numpy.int32(7))
    assert history.steps == [0, 7]


@pytest.mark.once
def test_other_losses_and_calibrators_and_one_trace():
    z, labels = _epochs()
    calls = []

    def calibrator(logits, labels, weights):
        calls.append(1)
        return jaxcal.fit_vector_scaling(logits, labels, weights=weights)

    history = jaxcal.History(labels, loss=jaxcal.brier_loss, calibrator=calibrator)
    for logits in z[:3]:
        history.record(logits)
    expected = jaxcal.decompose(z[:3], labels, loss=jaxcal.brier_loss, calibrator=jaxcal.fit_vector_scaling)
    np.testing.assert_allclose(history.array("refinement"), expected.refinement, rtol=1e-5)
    assert np.isnan(history.array("temperature")).all() and len(calls) == 1


def test_bad_arguments(tmp_path):
    z, labels = _epochs()
    history = jaxcal.History(labels)
    history.record(z[0])
    with pytest.raises(ValueError, match=r"logits of batch shape \(6,\), those before had \(\)"):
        history.record(z)
    with pytest.raises(ValueError, match="labels must have shape"):
        history.record(z[0][:-1])
    with pytest.raises(ValueError, match="logits of 5 classes, those before had 4"):
        history.record(np.zeros((N, 5), np.float32))
    with pytest.raises(ValueError, match="no 'loss' in this history"):
        history.array("loss")
    with pytest.raises(ValueError, match=r"labels must be integers in \[0, 4\)"):
        jaxcal.History(labels + 1).record(z[0])
    with pytest.raises(ValueError, match="risk, time is measured here"):
        history.record(z[1], risk=0.1, time=3.0)
    for name in ("lane", "lane 1", "risk/0"):
        with pytest.raises(ValueError, match=f"{name} is measured here"):
            history.record(z[1], **{name: 1.0})
    with pytest.raises(ValueError, match=r"History.record needs logits of shape"):
        history.record(z[1][0])
    for budget in ("1GB", float("nan"), -1):
        with pytest.raises(ValueError, match="budget must be a number of bytes"):
            jaxcal.History(labels, budget=budget)
    with pytest.raises(ValueError, match="nothing has been recorded yet"):
        jaxcal.History(labels).select()
    with pytest.raises(ValueError, match="exists and is no file"):
        jaxcal.History(labels, path=tmp_path)
    jaxcal.History(labels, path=tmp_path / "log_loss.jsonl")
    with pytest.raises(ValueError, match="choose another path"):
        jaxcal.History(labels, path=tmp_path / "log_loss.jsonl", loss=jaxcal.brier_loss)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    jaxcal.History(labels, path=tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink() and (tmp_path / "elsewhere.jsonl").stat().st_size
    with pytest.raises(ValueError, match=r"labels must have shape \(n,\)"):
        jaxcal.History(np.zeros((2, 3), int))
    with pytest.raises(ValueError, match=r"labels must have shape \(n,\) and not be empty"):
        jaxcal.History([])
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="is no history of jaxcal"):
        jaxcal.History(labels, path=tmp_path / "other.jsonl")
    assert jax.tree.leaves(history.record(z[1]))[0] == history.array("accuracy")[1]
