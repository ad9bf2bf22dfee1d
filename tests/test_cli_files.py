"""What the command line refuses, in one line and with exit code 2, and that it leaves no file behind."""

import os
import re
import signal
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

import jaxcal
from jaxcal.cli import audit, files
from jaxcal.cli.console import UserError, table
from jaxcal.cli.labels import class_indices
from jaxcal.cli.main import main

GOOD_Z = np.array([[2.0, 0.5], [0.1, 1.0], [0.3, 0.2], [1.0, 2.0]])
GOOD_Y = np.array([0, 1, 1, 0])


def listing(folder):
    return sorted(path.name for path in folder.rglob("*"))


def refused(capsys, folder, *args):
    """Run the command, expect one line on stderr and nothing new in the folder, return the line."""
    before = listing(folder)
    code = main([str(a) for a in args])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("jaxcal: ") and err.endswith("\n") and err.count("\n") == 1
    assert listing(folder) == before
    return err


@pytest.fixture
def folder(tmp_path):
    """A good file, `good.npz`, and many bad ones."""
    z, y = GOOD_Z, GOOD_Y
    np.savez(
        tmp_path / "good.npz",
        z=z,
        y=y,
        scores=z[:, 1],
        one=z[:, :1],
        deep=z[None],
        empty=z[:0],
        nan=np.where(np.arange(8).reshape(4, 2) == 5, np.nan, z),
        plus=np.where(np.arange(8).reshape(4, 2) == 5, np.inf, z),
        masked=np.where(np.arange(8).reshape(4, 2) // 2 == 1, -np.inf, z),
        text=np.array(["a", "b", "a", "b"]),
        complex=z + 1j,
        half=y + 0.5,
        high=np.array([0, 1, 2, 0]),
        low=np.array([0, -1, 1, 0]),
        onehot=np.eye(2)[y],
        short=y[:3],
        minus=np.array([1, 1, -1, 1]),
        zeros=np.zeros(4),
        probs=np.array([[0.5, 0.5], [1.0, 0.0], [0.3, 0.7], [0.4, 0.6]]),
        sums=np.array([[0.5, 0.5], [0.9, 0.0], [0.3, 0.7], [0.4, 0.6]]),
        above=np.array([0.5, 0.1, 1.0, 1.0000001], np.float32),
        off=np.array([[0.5, 0.5], [0.50100001, 0.5], [0.3, 0.7], [0.4, 0.6]]),
        negative=np.array([[0.5, 0.5], [1.2, -0.2], [0.3, 0.7], [0.4, 0.6]]),
    )
    np.savez(tmp_path / "pickled.npz", z=np.array([[1, "a"]], dtype=object), y=y, fine=z)
    np.save(tmp_path / "pickled.npy", np.array([1, "a"], dtype=object), allow_pickle=True)
    np.save(tmp_path / "z.npy", z)
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "archive.npy").write_bytes(whole)
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04 and nothing more")
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "flipped.npz").write_bytes(whole.replace(np.float64(2.0).tobytes(), np.float64(2.5).tobytes(), 1))
    for suffix in files.SUFFIXES:
        (tmp_path / f"junk{suffix}").write_bytes(b"\xff\xfe\x00 not a file of predictions")
    (tmp_path / "folder.npz").mkdir()
    for name, text in {
        "empty": "",
        "header": "p_0,p_1,y\n",
        "ragged": "p_0,p_1,y\n.5,.5,0\n.5,.5,0,9\n",
        "shifted": "p_0,p_1,y\n9,.5,.5,0\n9,.5,.5,0\n",
        "semicolons": "p_0;p_1;y\n.5;.5;0\n",
        "european": "p_0;p_1;y\n0,5;0,5;0\n",
        "tabs": "p_0\tp_1\ty\n.5\t.5\t0\n",
        "semicolon": "a;b\n.5\n",
        "above": "p,y\n.5,1\n1.0000001,0\n",
        "twice": "p,p,y\n.5,.5,0\n",
        "gap": "p_0,p_1,y\n.5,.5,0\n.4,,1\n",
        "word": "p_0,p_1,y\n.5,.5,0\n.4,abc,1\n",
        "label": "p_0,p_1,y\n.5,.5,0\n.4,.6,7\n",
        "cow": "p_cat,p_dog,y\n.5,.5,cat\n.4,.6,cow\n",
        "from1": "p_1,p_2,p_3,y\n.5,.2,.3,0\n.4,.3,.3,2\n",
        "good": "p_cat,p_dog,y\n.5,.5,cat\n.4,.6,dog\n.3,.7,cat\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("missing.npz --logits z --labels y", "there is no file"),
        ("folder.npz --logits z --labels y", "directory"),
        ("z.txt --logits z --labels y", r"names end in \.npz, \.npy, \.csv, \.parquet"),
        ("cut.npz --logits z --labels y", "cannot read .*not a zip file"),
        ("flipped.npz --logits z --labels y", "array 'z' of .*CRC"),
        ("junk.npz --logits z --labels y", "cannot read"),
        ("junk.npy --logits --labels y.npy", "not a plain array"),
        ("junk.csv --probs p --labels y", "not a text file"),
        ("junk.parquet --probs p --labels y", "cannot read"),
        ("archive.npy --logits --labels y.npy", r"archive\.npy is not a single array \(an archive of arrays is named"),
        ("zip.npy --logits --labels y.npy", r"zip\.npy is not a single array"),
        ("semicolons.csv --probs p_* --labels y", "separated by commas, and those of the first line are by semicolons"),
        ("european.csv --probs p_* --labels y", "separated by commas, and those of the first line are by semicolons"),
        ("tabs.csv --probs p_* --labels y", "separated by commas, and those of the first line are by tabs"),
        ("semicolon.csv --logits a;b --labels y", "no column 'y'; it has a;b"),
        ("good.npz --probs above --labels y", r"in \[0, 1\] .*; row 3 \(counted from 0\) is 1\.0000001$"),
        ("good.npz --probs off --labels y", r"within 1e-3; row 1 .* sums to 1\.00100001$"),
        ("above.csv --probs p --labels y", r"in \[0, 1\] .*; row 1 \(counted from 0\) is 1\.0000001$"),
        ("pickled.npz --logits z --labels y", "array 'z' of .*pickled"),
        ("pickled.npy --logits --labels y.npy", "pickled"),
        ("good.npz --logits nothing --labels y", r"no array 'nothing'; it holds z \(4, 2\) float64, y \(4,\) int64"),
        ("good.npz --logits z --labels nothing", "no array 'nothing'"),
        ("good.npz --logits z scores --labels y", "name one array"),
        ("z.npy --logits z --labels y.npy", "write --logits or --probs without names"),
        ("z.npy --logits --labels y", "labels and weights are .npy files too"),
        ("z.npy --logits --labels nowhere.npy", "there is no file"),
        ("good.npz --logits one --labels y", "one class"),
        ("good.npz --logits deep --labels y", r"must have shape \(n, k\).*got \(1, 4, 2\)"),
        ("good.npz --logits empty --labels y", r"got \(0, 2\)"),
        ("good.npz --logits nan --labels y", r"must not be NaN or missing; row 2 \(counted from 0\) is 0.3, nan"),
        ("good.npz --logits plus --labels y", r"must not be \+inf .*row 2"),
        ("good.npz --logits masked --labels y", "row of logits must not be -inf for every class; row 1"),
        ("good.npz --logits text --labels y", "must be real numbers, got an array of dtype <U1"),
        ("good.npz --logits complex --labels y", "complex128"),
        ("good.npz --logits z --labels half", "row 0 .* has label '0.5'; labels are the integers 0 to 1$"),
        ("good.npz --logits z --labels high", "row 2 .* has label '2'; labels are the integers 0 to 1$"),
        ("good.npz --logits z --labels low", "row 1 .* has label '-1'"),
        ("good.npz --logits z --labels text", "row 0 .* has label 'a'; .*--classes"),
        ("good.npz --logits z --labels text --classes a,c", "row 1 .* has label 'b', not one of --classes a,c"),
        ("good.npz --logits z --labels text --classes a,b,c", "--classes must give 2 different names"),
        ("good.npz --logits z --labels onehot", r"one_hot.argmax\(-1\)"),
        ("good.npz --logits z --labels short", r"must have shape \(4,\) .*got \(3,\)"),
        ("good.npz --logits z --labels y --weights minus", "row 2 .* has -1"),
        ("good.npz --logits z --labels y --weights zeros", "all weights are 0"),
        ("good.npz --logits z --labels y --weights short", r"weights must have shape \(4,\)"),
        ("good.npz --logits z --labels y --floor 1e-3", "--floor is for --probs"),
        ("good.npz --probs probs --labels y --floor 0.5", "--floor must be .* below 1/k = 0.5, got 0.5"),
        (
            "good.npz --probs probs --labels y",
            "row 1 .* own class 1 the probability 0, .*infinite.*--floor 1e-6.*brier",
        ),
        ("good.npz --probs sums --labels y", r"sum to 1 within 1e-3; row 1 .* sums to 0.9"),
        ("good.npz --probs negative --labels y", r"in \[0, 1\] \(are these logits\? then --logits\); row 1"),
        ("good.npz --probs scores --labels y", r"in \[0, 1\] .*; row 3 .* is 2"),
        ("empty.csv --probs p --labels y", "cannot read"),
        ("header.csv --probs p_* --labels y", "has no rows"),
        ("ragged.csv --probs p_* --labels y", "line 3"),
        ("shifted.csv --probs p_* --labels y", "more fields than the first line"),
        ("twice.csv --probs p --labels y", "column names must differ, 'p'"),
        ("gap.csv --probs p_* --labels y", "NaN or missing; row 1"),
        ("word.csv --probs p_* --labels y", r"column 'p_1' must hold numbers; row 1 \(counted from 0\) is 'abc'"),
        ("label.csv --probs p_* --labels y", "row 1 .* has label '7', which is not among the columns p_0, p_1"),
        ("cow.csv --probs p_* --labels y", "row 1 .* has label 'cow'"),
        ("from1.csv --probs p_* --labels y", "--classes 0,1,2"),
        ("good.csv --probs q_* --labels y", r"no column 'q_\*'; it has p_cat, p_dog, y"),
        ("good.csv --probs p_cat p_* --labels y", "'p_cat' is named twice"),
        ("good.csv --probs * --labels y", "column 'y' must hold numbers"),
        ("good.csv --probs p_cat p_dog y --labels y", "column 'y' must hold numbers"),
        ("good.npz --logits z --labels y --folds 9", "--folds must be from 2 to n = 4, got 9"),
        ("good.npz --logits z --labels y --folds many", "invalid int value: 'many'"),
        ("good.npz --logits z --labels y --resamples -3", "--resamples must be"),
        ("good.npz --logits z --labels y --seed -3", "--seed must be"),
        ("good.npz --logits z --labels y --loss hinge", "invalid choice: 'hinge'"),
        ("good.npz --logits z --probs probs --labels y", "not allowed with argument --logits"),
        ("good.npz --logits z --labels y --plot nowhere/r.png", "there is no directory"),
        ("good.npz --logits z --labels y --plot r.txt", "must end in .png or .pdf or .svg"),
        ("good.npz --logits z --labels y --fit good.npz", "is also an input"),
        ("good.npz --logits z --labels y --fit folder.npz", "exists and is not a file"),
        ("good.npz --logits z --labels y --fit t.pkl", "must end in .npz"),
        ("good.npz --labels y --logits z good.npz", "name one array of good.npz, not 2"),
        ("--labels y --logits z good.npz", "FILE comes before the options"),
        ("good.npz --logit z --labels y", r"unrecognized arguments: --logit z \(see jaxcal audit --help\)$"),
    ],
)
def test_bad_input_ends_with_one_line(capsys, folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    line = refused(capsys, folder, "audit", *arguments.split(), "--json")
    assert re.search(message, line.strip()), line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("missing.npz good.npz --logits z --out o.npz", "there is no file missing.npz"),
        ("good.npz good.npz --logits z --out o.npz", "not a calibrator"),
        ("junk.npz good.npz --logits z --out o.npz", "not a calibrator"),
        ("folder.npz good.npz --logits z --out o.npz", "cannot read folder.npz"),
        ("t.npz good.npz --logits z", "required: --out"),
        ("t.npz good.npz --logits z --out o.txt", "must end in .npz or .npy or .csv or .parquet"),
        ("t.npz good.npz --logits z --out nowhere/o.npz", "there is no directory nowhere"),
        ("t.npz good.npz --logits z --out good.npz", "is also an input"),
        ("t.npz good.npz --logits z --out t.npz", "is also an input"),
        ("t.npz good.npz --logits nan --out o.npz", "row 2"),
        ("t.npz good.npz --out o.npz", "jaxcal apply t.npz good.npz --out o.npz --logits z$"),
        ("t.npz pickled.npz --logits fine --out o.npz", "array 'z' of .*pickled"),
        ("t.npz cow.csv --probs p_* --prefix y --out o.csv", None),
    ],
)
def test_apply_refuses(capsys, folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    jaxcal.fit_temperature(GOOD_Z, GOOD_Y).save("t.npz")
    if message is None:
        assert main(["apply", *arguments.split()]) == 0
        assert list(pd.read_csv("o.csv")) == ["y", "ycat", "ydog"]
        return
    assert re.search(message, refused(capsys, folder, "apply", *arguments.split()).strip())


@pytest.mark.parametrize(
    ("file", "given", "shown"),
    [
        ("good.npz", [], "jaxcal audit good.npz --logits z --labels y"),
        ("good.npz", ["--probs", "probs"], "jaxcal audit good.npz --probs probs --labels y"),
        ("good.npz", ["--probs"], "jaxcal audit good.npz --logits z --labels y"),
        ("z.npy", [], "jaxcal audit z.npy --logits --labels LABELS.npy"),
        ("good.csv", [], "jaxcal audit good.csv --probs 'p_*' --labels y"),
        ("label.csv", ["--labels", "y"], "jaxcal audit label.csv --probs 'p_*' --labels y"),
    ],
)
def test_missing_options_show_what_there_is_and_what_to_type(capsys, folder, monkeypatch, file, given, shown):
    monkeypatch.chdir(folder)
    line = refused(capsys, folder, "audit", file, *given)
    assert line.strip().endswith(shown)
    assert "holds" in line


def test_command_errors(capsys, tmp_path):
    assert "required: COMMAND" in refused(capsys, tmp_path)
    assert "'demo', 'audit', 'apply'" in refused(capsys, tmp_path, "frobnicate")


@pytest.mark.parametrize("arguments", [["--help"], ["audit", "--help"], ["apply", "--help"], ["--version"]])
def test_help_and_version_end_well(capsys, arguments):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert ("examples:" in out) == (arguments[0] in ("audit", "apply"))


def test_float64_that_overflows_float32(capsys, folder, x64):
    np.savez(folder / "big.npz", z=np.where(GOOD_Z == 2, -1e300, GOOD_Z), y=GOOD_Y)
    args = ("audit", folder / "big.npz", "--logits", "z", "--labels", "y", "--resamples", 0)
    if x64:
        assert main([str(a) for a in args]) == 0
    else:
        assert "logits overflow float32" in refused(capsys, folder, *args)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("pandas", "good.csv --probs p_* --labels y --json", "cli"),
        ("pyarrow", "junk.parquet --probs p_* --labels y --json", "cli"),
        ("rich.table", "good.npz --logits z --labels y", "cli"),
        ("matplotlib.figure", "good.npz --logits z --labels y --json --plot r.png", "plot"),
    ],
)
def test_missing_packages_name_the_extra(capsys, folder, monkeypatch, missing, arguments, extra):
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, missing, None)
    line = refused(capsys, folder, "audit", *arguments.split())
    assert line.strip().endswith(f"pip install 'jaxcal[{extra}]'")


def test_json_on_arrays_needs_no_optional_package(capsys, folder, monkeypatch):
    for name in ("pandas", "pyarrow", "rich", "rich.console", "rich.progress", "rich.table", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    assert (
        main(["audit", str(folder / "good.npz"), "--logits", "z", "--labels", "y", "--json", "--resamples", "5"]) == 0
    )
    assert capsys.readouterr().err == ""


def full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv", "parquet"])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(capsys, folder, monkeypatch, suffix):
    def half(path, *args, **kwargs):
        with open(path, "wb") as file:
            file.write(b"half")
        full_disk()

    jaxcal.fit_temperature(GOOD_Z, GOOD_Y).save(folder / "t.npz")
    out = folder / f"out.{suffix}"
    out.write_text("old")
    monkeypatch.setattr(np, "save", half)
    monkeypatch.setattr(np, "savez", half)
    monkeypatch.setattr(pd.DataFrame, "to_csv", lambda self, path, **options: half(path))
    monkeypatch.setattr(pd.DataFrame, "to_parquet", lambda self, path, **options: half(path))
    line = refused(capsys, folder, "apply", folder / "t.npz", folder / "z.npy", "--logits", "--out", out)
    assert "cannot write" in line and "No space left" in line
    assert out.read_text() == "old"


def test_ctrl_c_ends_with_130_and_no_file(capsys, folder, monkeypatch):
    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)

    before = listing(folder)
    monkeypatch.setattr(audit.bootstrap, "resample", interrupted)
    args = ("--logits", "z", "--labels", "y", "--fit", str(folder / "t.npz"))
    assert main(["audit", str(folder / "good.npz"), *args]) == 130
    assert capsys.readouterr().err == "jaxcal: interrupted\n"
    assert listing(folder) == before


def test_replacing_removes_the_temporary_file_whatever_happens(tmp_path):
    for error in (KeyboardInterrupt, ValueError, UserError):
        with pytest.raises(error), files.replacing(tmp_path / "a.csv") as temporary:
            temporary.write_text("half")
            raise error
        assert listing(tmp_path) == []
    with files.replacing(tmp_path / "a.csv") as temporary:
        assert temporary.suffix == ".csv" and temporary.parent == tmp_path
        temporary.write_text("all")
        assert not (tmp_path / "a.csv").exists()
    assert listing(tmp_path) == ["a.csv"]


def test_a_link_is_written_through_and_counts_as_the_input(folder):
    os.symlink(folder / "good.npz", folder / "link.npz")
    with pytest.raises(UserError, match="also an input"):
        files.check_output(str(folder / "link.npz"), (".npz",), [str(folder / "good.npz")])


def test_patterns_expand_in_natural_order(tmp_path):
    names = [f"p_{j}" for j in (10, 2, 0, 1, 9, 11, 3, 4, 5, 6, 7, 8)]
    pd.DataFrame([np.arange(12.0)], columns=names).to_csv(tmp_path / "n.csv", index=False)
    source = files.read(str(tmp_path / "n.csv"))
    assert source.expand(["p_*"]) == [f"p_{j}" for j in range(12)]
    assert source.expand(["p_11", "p_?"]) == ["p_11", *(f"p_{j}" for j in range(10))]


def test_csv_numbers_are_read_exactly_and_a_byte_order_mark_is_skipped(tmp_path):
    numbers = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-150, 150, 0.3)
    text = "\ufeffa,b\n" + "".join(f"{value!r},NA\n" for value in numbers.tolist())
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    source = files.read(str(tmp_path / "x.csv"))
    np.testing.assert_array_equal(source.scores(["a"])[0], numbers)
    assert set(source.array("b")) == {"NA"}  # a class may be called NA


def test_only_the_arrays_asked_for_are_read(folder):
    source = files.read(str(folder / "pickled.npz"))
    np.testing.assert_array_equal(source.scores(["fine"])[0], GOOD_Z)
    with zipfile.ZipFile(folder / "pickled.npz") as archive:
        assert "z (1, 2) object" in source.describe()
        assert len(archive.namelist()) == 3


def classes(raw, columns=None, named=None, k=3):
    raw = np.asarray(raw)
    index, _, sentence = class_indices(raw, k, columns, named, np.arange(len(raw)))
    return index.tolist(), sentence


@pytest.mark.parametrize(
    ("raw", "columns", "named", "want"),
    [
        ([2, 0, 1], None, None, [2, 0, 1]),
        ([2.0, 0.0, 1.0], None, None, [2, 0, 1]),
        (["2", "0", "1.0"], None, None, [2, 0, 1]),
        (
            ["cow", "cat"],
            ["p_cat", "p_cow", "p_dog"],
            None,
            [1, 0],
        ),  # the common prefix of the names is "p_", not "p_c"
        (["dog", "cat"], ["cat", "cow", "dog"], None, [2, 0]),
        ([0, 2], ["p_2", "p_1", "p_0"], None, [2, 0]),  # by name, whatever the order
        ([1, 3], ["p_1", "p_2", "p_3"], None, [0, 2]),
        ([10, 12], ["p_10", "p_11", "p_12"], None, [0, 2]),
        ([0, 1, 2], ["p_cat", "p_cow", "p_dog"], None, [0, 1, 2]),  # by place
        ([0, 1, 2], ["p_1", "p_2", "p_3"], ["0", "1", "2"], [0, 1, 2]),
        (["x", "z"], ["p_1", "p_2", "p_3"], ["z", "y", "x"], [2, 0]),
        ([7, -1], None, ["-1", "3", "7"], [2, 0]),
    ],
)
def test_labels_are_matched_by_name_or_by_number(raw, columns, named, want):
    assert classes(raw, columns, named)[0] == want


def test_label_mapping_is_told():
    assert classes(["dog", "cat"], ["p_cat", "p_dog"], k=2)[1] == "labels: cat = p_cat, dog = p_dog"
    assert classes([True, False], k=2) == ([1, 0], "labels: False = class 0, True = class 1")
    assert classes(["True", "False"], ["p_false", "p_true"], k=2)[0] == [1, 0]


def test_labels_that_fit_in_two_ways_or_by_number_only_are_refused():
    with pytest.raises(UserError, match="more than one way"):
        classes(["a"], ["a", "aa"], k=2)
    with pytest.raises(UserError, match="--classes 0,1,2"):
        classes([0, 1], ["p_1", "p_2", "p_3"])
    with pytest.raises(UserError, match=r"row 1 \(counted from 0\) has label ''"):
        classes(["a", ""], ["p_a", "p_b"], k=2)


def test_table_escapes_markup():
    text = table(("", "x"), [("[bold]", "[0.1, 0.2]")])
    assert "[bold]" in text and "[0.1, 0.2]" in text
