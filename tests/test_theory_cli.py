"""`python -m theory curve` and `map`: numbers against the library, tables that survive a kill, errors in one line."""

import csv
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxcal.losses import brier_loss, log_loss
from jaxcal.status import Status
from theory.cli import curve as curve_command
from theory.cli import map as map_command
from theory.cli.main import main
from theory.cli.table import COLUMNS, RESULTS
from theory.curves import learning_curve
from theory.minima import Minimizers, minimizers
from theory.simulation import simulate
from theory.spectra import BetaSpectrum, DiscreteSpectrum

pytestmark = pytest.mark.once

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

RATIOS, ERRORS = [0.5, 2.0], [0.05, 0.1, 0.2]
MAP = ["map", "--spectrum", "beta:1,1", "--ratios", "0.5", "2", "--bayes-errors", "0.05", "0.1", "0.2"]

# `map` in a process of its own, with results that cost nothing and a third Bayes error that never ends
CHILD = """
import sys, time
import numpy as np
from theory.cli import map as command
from theory.cli.main import main
from theory.minima import Minimizers

def made_up(ratios, bayes_error, spectrum, **options):
    if bayes_error == 0.2:
        time.sleep(600)
    return Minimizers(*[bayes_error + ratios] * 7, np.ones(2, int), np.zeros(2, int))

command.minimizers = made_up
sys.exit(main())
"""


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def made_up(calls):
    """Results that are not computed; the Bayes errors asked for are noted."""

    def compute(ratios, bayes_error, spectrum, **options):
        calls.append(float(bayes_error))
        values = [np.asarray(bayes_error + ratios)] * 7
        return Minimizers(*values, np.ones(len(ratios), int), np.zeros(len(ratios), int))

    return compute


@pytest.fixture
def calls(monkeypatch):
    noted = []
    monkeypatch.setattr(map_command, "minimizers", made_up(noted))
    return noted


@pytest.fixture
def compiled_once(monkeypatch):
    """`curve` asks for one problem, `map` for several ratios; here both have the shape of two."""

    def compute(ratio, bayes_error, spectrum, **options):
        return jax.tree.map(lambda x: x[0], minimizers(np.array([ratio, 2.0]), bayes_error, spectrum, **options))

    monkeypatch.setattr(curve_command, "minimizers", compute)


# map


def test_map_writes_what_the_library_finds_to_all_digits(tmp_path, capsys):
    path = tmp_path / "maps.csv"
    assert main([*MAP, "--csv", str(path), "--plot", str(tmp_path / "maps.png")]) == 0
    rows = read(path)
    assert tuple(rows[0]) == COLUMNS
    cells = iter(rows)
    for error in ERRORS:
        found = minimizers(np.array(RATIOS), error, BetaSpectrum(1.0, 1.0))
        for i, ratio in enumerate(RATIOS):
            row = next(cells)
            assert (row["spectrum"], row["model"], row["loss"]) == ("beta:1,1,0.001", "logistic", "log")
            assert [float(row[name]) for name in ("squeeze", "ratio", "bayes_error")] == [1, ratio, error]
            for name in RESULTS[:-1]:
                assert float(row[name]) == getattr(found, name)[i], name
            assert row["status"] == "CONVERGED"
    assert next(cells, None) is None
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "logistic regression, log loss: 6 cells" in out and "beta:1,1 " in out
    assert f"{100 * max(float(row['gain']) for row in rows):.2f}" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["maps.csv", "maps.png"]


def test_map_writes_limits_and_failures(tmp_path, monkeypatch, capsys):
    def limits(ratios, bayes_error, spectrum, **options):
        values = [np.array([v, np.nan]) for v in (0.1, np.inf, 0.0, 0.2, 0.0, 0.1, 0.5)]
        return Minimizers(*values, np.array([1, 0]), np.array([Status.CONVERGED, Status.NOT_CONVERGED]))

    monkeypatch.setattr(map_command, "minimizers", limits)
    command = [*MAP, "--csv", str(tmp_path / "a.csv"), "--plot", str(tmp_path / "a.pdf")]
    for _ in range(2):  # computed, and read back
        assert main(command) == 0
        first, second = read(tmp_path / "a.csv")[:2]
        assert [first[name] for name in RESULTS] == ["0.1", "inf", "0", "0.2", "0", "0.1", "0.5", "1", "CONVERGED"]
        assert [second[name] for name in RESULTS] == ["nan"] * 7 + ["0", "NOT_CONVERGED"]
        assert "3 cells NOT_CONVERGED" in capsys.readouterr().out


def test_map_passes_model_loss_and_squeeze_on(tmp_path, monkeypatch, capsys):
    seen = []

    def compute(ratios, bayes_error, spectrum, **options):
        seen.append((spectrum, options))
        return made_up([])(ratios, bayes_error, spectrum)

    monkeypatch.setattr(map_command, "minimizers", compute)
    np.save(tmp_path / "s.npy", np.array([2.0, 0.5, 1.0]))
    words = ["--model", "ridge", "--loss", "brier", "--squeeze", "0.99", "--bayes-errors", "0.1"]
    words += ["--spectrum", "beta:2,3,0.5", "--eigenvalues", str(tmp_path / "s.npy"), "--csv", str(tmp_path / "a.csv")]
    assert main(["map", "--ratios", "1", "2", *words]) == 0
    (beta, options), (discrete, _) = seen
    assert beta == BetaSpectrum(2, 3, 0.5) and isinstance(discrete, DiscreteSpectrum)
    np.testing.assert_array_equal(discrete.values, [0.5, 1, 2])
    assert options == {"model": "ridge", "loss": brier_loss, "squeeze": 0.99}
    names = {row["spectrum"] for row in read(tmp_path / "a.csv")}
    assert "beta:2,3,0.5" in names and any(name.startswith("eigenvalues:s.npy#") for name in names)
    assert "ridge regression, Brier loss, squeezed by 0.99" in capsys.readouterr().out
    # a file of other eigenvalues under the same name is another spectrum
    np.save(tmp_path / "s.npy", np.array([2.0, 0.5, 1.1]))
    assert main(["map", "--ratios", "1", "2", *words]) == 2
    assert "has rows of spectrum eigenvalues:s.npy#" in capsys.readouterr().err


@pytest.fixture
def child(tmp_path):
    """A running `map`, given back as soon as two of three blocks are in its table."""
    path = tmp_path / "maps.csv"
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *MAP, "--csv", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not path.exists() or len(read(path)) < 4:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    yield process, path
    process.kill()
    process.communicate()


def test_after_a_kill_the_same_command_computes_only_what_is_missing(child, calls, capsys):
    process, path = child
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = read(path)
    assert [(row["ratio"], row["bayes_error"]) for row in rows] == [
        (r, e) for e in ("0.05", "0.1") for r in ("0.5", "2")
    ]
    # a mark that would not survive a second computation
    path.write_text(path.read_text().replace("0.55,", "0.1234,", 1))
    assert main([*MAP, "--csv", str(path)]) == 0
    assert calls == [0.2]
    after = read(path)
    assert len(after) == 6 and after[1:4] == rows[1:] and after[0]["lambda_risk"] == "0.1234"
    assert after[4]["lambda_risk"] == "0.7"
    assert "6 cells, of which" in capsys.readouterr().out
    # and once more: nothing to do, and the file stays as it is
    stamp = path.stat().st_mtime_ns
    assert main([*MAP, "--csv", str(path)]) == 0
    assert calls == [0.2] and path.stat().st_mtime_ns == stamp


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another mechanism there")
def test_ctrl_c_ends_with_130_and_says_what_is_kept(child):
    process, path = child
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"4 of 6 cells are in {path}; the same command continues there\ntheory: interrupted\n"
    assert len(read(path)) == 4


def test_a_larger_map_takes_up_a_smaller_one(tmp_path, calls):
    path = str(tmp_path / "maps.csv")
    base = ["map", "--spectrum", "beta:1,1", "--csv", path]
    assert main([*base, "--ratios", "2", "--bayes-errors", "0.1"]) == 0
    first = read(path)[0]
    assert main([*base, "--ratios", "2", "0.5", "--bayes-errors", "0.1", "0.05"]) == 0
    rows = read(path)
    assert [(row["bayes_error"], row["ratio"]) for row in rows] == [
        (e, r) for e in ("0.05", "0.1") for r in ("0.5", "2")
    ]
    assert rows[3] == first and calls == [0.1, 0.05, 0.1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--model", "ridge"], "has rows of model logistic, not ridge"),
        (["--loss", "brier"], "has rows of loss log, not brier"),
        (["--squeeze", "0.99"], "has rows of squeeze 1.0, not 0.99"),
        (["--spectrum", "beta:1,1,0.01"], "has rows of spectrum beta:1,1,0.001, not beta:1,1,0.01"),
        (["--ratios", "0.5", "3"], "has rows of ratio 2.0, not asked for"),
        (["--bayes-errors", "0.1"], "has rows of bayes_error 0.05, not 0.1"),
    ],
)
def test_a_table_of_other_options_is_refused_and_kept(changes, message, tmp_path, calls, capsys):
    path = tmp_path / "maps.csv"
    assert main([*MAP, "--csv", str(path)]) == 0
    before, done = path.read_bytes(), len(calls)
    capsys.readouterr()
    assert main([*MAP, *changes, "--csv", str(path)]) == 2
    out, err = capsys.readouterr()
    assert message in err and str(path) in err and "--overwrite" in err and err.count("\n") == 1 and out == ""
    assert path.read_bytes() == before and len(calls) == done
    assert main([*MAP, *changes, "--csv", str(path), "--overwrite"]) == 0
    assert path.read_bytes() != before


@pytest.mark.parametrize("damage", [lambda t: "", lambda t: "a,b\n1,2\n", lambda t: t[:-30], lambda t: t + "x,y\n"])
def test_a_file_that_is_no_such_table_is_refused(damage, tmp_path, calls, capsys):
    path = tmp_path / "maps.csv"
    assert main([*MAP, "--csv", str(path)]) == 0
    text = damage(path.read_text())
    path.write_text(text)
    capsys.readouterr()
    assert main([*MAP, "--csv", str(path)]) == 2
    err = capsys.readouterr().err
    assert ("not a table" in err or "is damaged" in err) and err.count("\n") == 1
    assert path.read_text() == text


# curve


def test_curve_writes_what_the_library_says(tmp_path, compiled_once, capsys):
    path = tmp_path / "curve.csv"
    words = ["--lambdas", "0", "-2", "3", "--simulate", "2", "--samples", "60", "--seed", "4", "--design", "random"]
    assert main(["curve", *words, "--csv", str(path), "--plot", str(tmp_path / "curve.png")]) == 0
    rows, lam = read(path), [1.0, 0.1, 0.01]
    spectrum = BetaSpectrum(1.0, 1.0)
    # as many lambdas as the command asks for, so that nothing more is compiled
    many = np.resize(lam, len(lam) + curve_command.LINE_POINTS + 3)
    exact = learning_curve(many, ratio=0.5, bayes_error=0.1, spectrum=spectrum)
    fits = simulate(
        jax.random.key(4),
        num_samples=60,
        ratio=0.5,
        bayes_error=0.1,
        spectrum=spectrum,
        regularizations=lam,
        num_seeds=2,
        design="random",
    )
    assert [float(row["regularization"]) for row in rows] == lam
    for name in ("risk", "calibration", "refinement", "error_rate"):
        np.testing.assert_allclose([float(row[name]) for row in rows], getattr(exact, name)[:3], rtol=1e-12)
        values = np.asarray(getattr(fits, name))
        np.testing.assert_allclose([float(row[f"simulated_{name}"]) for row in rows], values.mean(0), rtol=1e-12)
        np.testing.assert_allclose(
            [float(row[f"simulated_{name}_sd"]) for row in rows], values.std(0, ddof=1), rtol=1e-9
        )
    assert {row["design"] for row in rows} == {"random"} and {row["num_samples"] for row in rows} == {"60"}
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    # the published problem: lambda .0702, .0531 and .0044, gain 2.23 %
    for number in ("0.07021", "0.05311", "0.004403", "0.572051", "0.559318", "2.23 %"):
        assert number in out
    assert "2 simulations, n = 60, p = 30\ntheir means differ from the theory by at most risk" in out


def test_curve_of_eigenvalues_passes_options_on(tmp_path, monkeypatch, capsys):
    seen = {}

    def compute(ratio, bayes_error, spectrum, **options):
        seen.update(options, ratio=ratio, bayes_error=bayes_error, spectrum=spectrum)
        return Minimizers(0.1, 0.2, np.array(0.0), 0.3, 0.0, 0.2, 0.4, 1, int(Status.NOT_CONVERGED))

    monkeypatch.setattr(curve_command, "minimizers", compute)
    for text, values in (("s\n3\n1\n4\n", [1, 3, 4]), ("3\n1\n2\n", [1, 2, 3])):
        (tmp_path / "s.csv").write_text(text)
        words = ["--ratio", "2", "--bayes-error", "0.2", "--model", "lda", "--lambdas", "0", "0", "1"]
        assert main(["curve", *words, "--eigenvalues", str(tmp_path / "s.csv")]) == 0
        np.testing.assert_array_equal(seen.pop("spectrum").values, values)
    assert seen == {"ratio": 2, "bayes_error": 0.2, "model": "lda", "loss": log_loss, "squeeze": 1.0}
    out = capsys.readouterr().out
    assert "LDA, log loss; r = 2, e* = 0.2, spectrum eigenvalues:s.csv#" in out and "NOT_CONVERGED" in out


# what is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: COMMAND"),
        (["curves"], "invalid choice"),
        (["curve", "--ratio", "0"], "--ratio must lie in (0, inf), got 0"),
        (["curve", "--ratio", "nan"], "--ratio must lie in (0, inf), got nan"),
        (["curve", "--bayes-error", "0.6"], "--bayes-error must lie in (0, 0.5], got 0.6"),
        (["curve", "--squeeze", "2"], "--squeeze must lie in (0, 1], got 2"),
        (["curve", "--spectrum", "beta:1"], "--spectrum beta:1: a spectrum is written beta:A,B or beta:A,B,SHIFT"),
        (["curve", "--spectrum", "gamma:1,1"], "a spectrum is written beta:A,B"),
        (["curve", "--spectrum", "beta:0,1"], "alpha must be positive and finite"),
        (["curve", "--spectrum", "beta:1,1,0"], "E[1/s]"),
        (["curve", "--spectrum", "beta:1,1", "--eigenvalues", "s.npy"], "--spectrum or --eigenvalues, not both"),
        (["curve", "--eigenvalues", "nowhere.npy"], "there is no file nowhere.npy"),
        (["curve", "--lambdas", "0", "-3", "2.5"], "NUM must be a whole number"),
        (["curve", "--lambdas", "0", "-300", "3"], "exponents must lie in [-100, 100]"),
        (["curve", "--model", "svm"], "invalid choice"),
        (["curve", "--samples", "100"], "--samples is for --simulate"),
        (["curve", "--simulate", "0"], "--simulate must be from 1 to"),
        (["curve", "--simulate", "2", "--seed", "-1"], "--seed must be from 0 to"),
        (["curve", "--simulate", "2", "--model", "lda"], "--simulate fits logistic regression"),
        (["curve", "--csv", "curve.txt"], "curve.txt: the name must end in .csv"),
        (["curve", "--plot", "nowhere/curve.png"], "there is no directory nowhere"),
        (["map", "--ratios", "1", "1"], "--ratios holds a value twice"),
        (["map", "--ratios", "inf"], "--ratios must lie in (0, inf), got inf"),
        (["map", "--bayes-errors", "0"], "--bayes-errors must lie in (0, 0.5], got 0"),
        (["map", "--spectrum", "beta:1,1", "beta:1,1,0.001"], "a spectrum is named twice"),
        (["map", "--spectrum", "beta:1,1,0"], "E[1/s]"),
        (["map", "--csv", "map.parquet"], "the name must end in .csv"),
    ],
)
def test_bad_arguments_end_with_one_line_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("theory: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1.0, -1.0]), "values must be positive and finite"),
        (np.ones((2, 3)), "numbers with one axis, got float64 of shape (2, 3)"),
        (np.array(["a", "b"]), "numbers with one axis, got <U1 of shape (2,)"),
        (np.array(1j), "got complex128"),
        (np.empty(0), "N >= 1"),
    ],
)
def test_bad_eigenvalues(values, message, tmp_path, capsys):
    np.save(tmp_path / "s.npy", values)
    assert main(["map", "--eigenvalues", str(tmp_path / "s.npy")]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_one_eigenvalue_in_a_column_is_a_spectrum(tmp_path, calls):
    np.save(tmp_path / "s.npy", np.array([[2]]))
    assert main(["map", "--eigenvalues", str(tmp_path / "s.npy"), "--ratios", "1", "--bayes-errors", "0.1"]) == 0


def test_an_eigenvalue_table_has_one_column_or_a_second_of_weights(tmp_path, capsys):
    (tmp_path / "three.csv").write_text("a,b,c\n1,2,3\n")
    assert main(["curve", "--eigenvalues", str(tmp_path / "three.csv")]) == 2
    assert "with one column or a second one of weights" in capsys.readouterr().err
    (tmp_path / "repeated.csv").write_text("s\n3\n1\n1\n1\n")
    (tmp_path / "weighted.csv").write_text("3,1\n1,3\n")
    np.save(tmp_path / "weighted.npy", [[1.0, 3.0], [3.0, 1.0]])
    printed = []
    for name in ("repeated.csv", "weighted.csv", "weighted.npy"):
        assert main(["curve", "--eigenvalues", str(tmp_path / name), "--lambdas", "0", "-3", "3"]) == 0
        printed.append([line for line in capsys.readouterr().out.splitlines() if "eigenvalues" not in line])
    assert printed[0] == printed[1] == printed[2]


@pytest.mark.parametrize("command", ["curve", "map"])
def test_help_names_every_option(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--spectrum", "--eigenvalues", "--model", "--loss", "--squeeze", "--csv", "--plot", "examples:"):
        assert option in out
    assert max(len(line) for line in out.splitlines()) <= 120
