"""Files of predictions in (.npz, .npy, .csv, .parquet) and results out, whole or not at all."""

import os
import re
import shlex
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from jaxcal.cli.console import UserError, require

SUFFIXES = (".npz", ".npy", ".csv", ".parquet")


class NpzFile:
    """Named arrays. Only those asked for are read, and none is unpickled."""

    def __init__(self, path: Path):
        self.path = path
        with _explained(path), zipfile.ZipFile(path) as archive:
            self.names = tuple(info.filename.removesuffix(".npy") for info in archive.infolist())

    def array(self, name: str) -> np.ndarray:
        """The array called `name`."""
        if name not in self.names:
            raise UserError(f"{self.path} has no array {name!r}; it holds {self.describe()}")
        with _explained(self.path, f"array {name!r} of "), np.load(self.path, allow_pickle=False) as archive:
            array = archive[name]
        if not isinstance(array, np.ndarray):
            raise UserError(f"{name!r} in {self.path} is not an array")
        return array

    numbers = array

    def scores(self, names: Sequence[str]) -> tuple[np.ndarray, None]:
        """The array of logits or probabilities; an npz has no column names."""
        if len(names) != 1:
            raise UserError(f"name one array of {self.path}, not {len(names)}; it holds {self.describe()}")
        return self.array(names[0]), None

    def describe(self) -> str:
        """What there is, for messages: names, shapes and dtypes from the headers alone."""
        return ", ".join(f"{name} {_header(self.path, name)}" for name in self.names) or "no arrays"

    def suggestion(self) -> dict[str, list[str]]:
        """Options that would suit the contents, to be shown and typed by the user, never used."""
        arrays = {}
        for name in self.names:
            try:
                arrays[name] = self.array(name)
            except UserError:
                continue
        scores = [a for a in arrays if arrays[a].ndim == 2 and arrays[a].dtype.kind == "f"]
        labels = [a for a in arrays if arrays[a].ndim == 1 and arrays[a].dtype.kind in "biuU"]
        kind = _kind(arrays[scores[0]]) if scores else "--logits"
        return {kind: scores[:1] or ["NAME"], "--labels": labels[:1] or ["NAME"]}


class NpyFile:
    """One array; labels and weights come from .npy files of their own."""

    def __init__(self, path: Path):
        self.path = path
        self._array = _load_npy(path)
        self.names = ()

    def array(self, name: str) -> np.ndarray:
        """The array in the .npy file `name`."""
        if Path(name).suffix.lower() != ".npy":
            raise UserError(f"{self.path} holds one array, so labels and weights are .npy files too, got {name!r}")
        return _load_npy(Path(name))

    numbers = array

    def scores(self, names: Sequence[str]) -> tuple[np.ndarray, None]:
        """The array of the file itself."""
        if names:
            raise UserError(f"{self.path} holds one array without a name: write --logits or --probs without names")
        return self._array, None

    def describe(self) -> str:
        """Shape and dtype."""
        return f"one array {self._array.shape} {self._array.dtype}"

    def suggestion(self) -> dict[str, list[str]]:
        """Options that would suit the contents."""
        return {_kind(self._array): [], "--labels": ["LABELS.npy"]}


class TableFile:
    """Columns of a CSV (kept as text, so that what is not used passes through unchanged) or of a Parquet file."""

    def __init__(self, path: Path):
        pandas = require("pandas", "cli")
        self.path = path
        with _explained(path):
            if path.suffix.lower() == ".csv":
                _check_header(path)
                frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
                if not isinstance(frame.index, pandas.RangeIndex):
                    raise UserError(f"{path}: rows have more fields than the first line names")
            else:
                require("pyarrow", "cli")
                frame = pandas.read_parquet(path)
        self.frame = frame
        self.names = tuple(str(name) for name in frame.columns)
        if len(set(self.names)) < len(self.names):
            raise UserError(f"{path}: column names must differ, got {abbreviate(self.names)}")
        frame.columns = list(self.names)
        if not len(frame):
            raise UserError(f"{path} has {'no rows' if self.names else 'no columns'}")

    def array(self, name: str) -> np.ndarray:
        """A column as it is: text of a CSV as str, otherwise the column's own numbers."""
        self._check(name)
        column = self.frame[name]
        if column.dtype.kind in "biuf" and isinstance(column.dtype, np.dtype):
            return column.to_numpy()
        if column.dtype.kind in "biuf":  # pandas' own dtypes, which may have missing values
            return self._numbers(name)
        return column.astype(object).where(column.notna(), "").astype(str).to_numpy(dtype=np.str_)

    def scores(self, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """The numbers of the named columns, `(n, m)` or `(n,)` for a single one, and the columns' names in order."""
        columns = self.expand(names)
        values = np.stack([self._numbers(name) for name in columns], axis=-1)
        return (values[:, 0] if len(columns) == 1 else values), columns

    def numbers(self, name: str) -> np.ndarray:
        """The numbers of a column."""
        self._check(name)
        return self._numbers(name)

    def expand(self, names: Sequence[str]) -> list[str]:
        """Names and patterns such as `p_*` to column names; what a pattern matches comes in natural order."""
        if not names:
            raise UserError(f"name the columns of {self.path}, which has {abbreviate(self.names)}")
        found = []
        for name in names:
            if name in self.names:
                found.append(name)
                continue
            matches = sorted((c for c in self.names if fnmatchcase(c, name)), key=_natural)
            if not matches:
                self._check(name)
            found += matches
        repeated = [name for name in found if found.count(name) > 1]
        if repeated:
            raise UserError(f"column {repeated[0]!r} is named twice")
        return found

    def describe(self) -> str:
        """The columns."""
        return f"columns {abbreviate(self.names)}"

    def suggestion(self) -> dict[str, list[str]]:
        """Options that would suit the contents."""
        groups: dict[str, list[str]] = {}
        for name in self.names:
            prefix = re.match(r".*[_.-]|\D*", name)[0]
            groups.setdefault(prefix, []).append(name)
        prefix = max(groups, key=lambda p: (len(groups[p]) > 1 and p != "") * len(groups[p]))
        labels = [c for c in self.names if c.lower() in ("label", "labels", "y", "y_true", "target", "class")]
        if prefix == "" or len(groups[prefix]) < 2:
            return {"--probs": ["NAME"], "--labels": labels[:1] or ["NAME"]}
        try:
            kind = _kind(self.scores(groups[prefix])[0])
        except UserError:
            kind = "--probs"
        return {kind: [prefix + "*"], "--labels": labels[:1] or ["NAME"]}

    def _check(self, name: str) -> None:
        if name not in self.names:
            raise UserError(f"{self.path} has no column {name!r}; it has {abbreviate(self.names)}")

    def _numbers(self, name: str) -> np.ndarray:
        pandas = require("pandas", "cli")
        column = self.frame[name]
        try:
            values = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError) as error:  # a column of lists, for example
            raise UserError(
                f"{self.path}: column {name!r} must hold one number a row; row 0 is {column.iloc[0]}"
            ) from error
        missing = column.isna() | column.astype(str).str.strip().str.lower().isin(("", "nan", "na", "null", "none"))
        text = np.isnan(values) & ~missing.to_numpy(dtype=bool)
        if text.any():
            row = int(np.argmax(text))
            raise UserError(f"{self.path}: column {name!r} must hold numbers; {nth(row)} is {column.iloc[row]!r}")
        return values


def read(path: str) -> NpzFile | NpyFile | TableFile:
    """Open a file of predictions by its suffix."""
    file = Path(path)
    reader = {".npz": NpzFile, ".npy": NpyFile, ".csv": TableFile, ".parquet": TableFile}.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"{path}: predictions are read from files whose names end in {', '.join(SUFFIXES)}")
    return reader(file)


def check_output(path: str, suffixes: Sequence[str], inputs: Sequence[str]) -> Path:
    """The path of a file to be written, refused before any work if it could not or should not be written."""
    out = Path(path)
    if out.suffix.lower() not in suffixes:
        raise UserError(f"{path}: the name must end in {' or '.join(suffixes)}")
    if not out.parent.is_dir():
        raise UserError(f"{path}: there is no directory {out.parent}")
    if out.exists() and not out.is_file():
        raise UserError(f"{path} exists and is not a file")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"{path}: the directory {out.parent} is not writable")
    if any(os.path.realpath(out) == os.path.realpath(name) for name in inputs):
        raise UserError(f"{path} is also an input or another output; write to another name")
    return Path(os.path.realpath(out))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; it takes the place of `path` if the block ends well and is gone if not."""
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def abbreviate(names: Sequence[str], most: int = 8) -> str:
    """A list for a message: long runs of names keep their ends."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 2])}, ..., {names[-1]} ({len(names)} in all)"


def nth(row: int) -> str:
    """How messages name a row of data."""
    return f"row {row} (counted from 0)"


def command_line(command: str, options: dict[str, list[str]]) -> str:
    """A command as it would be typed, quoted for the shell."""
    words = [word for name, values in options.items() for word in (name, *map(shlex.quote, values))]
    return " ".join([command, *words])


@contextmanager
def _explained(path: Path, what: str = "") -> Iterator[None]:
    """Turn the many ways in which a file can be unreadable into one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory") from error
    except OSError as error:
        raise UserError(f"cannot read {what}{path}: {error.strerror or _line(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file in UTF-8") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if "allow_pickle" in str(error) or "pickle" in str(error).lower():
            raise UserError(f"{what}{path} is not a plain array (pickled Python objects are not read)") from error
        raise UserError(f"cannot read {what}{path}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _load_npy(path: Path) -> np.ndarray:
    with _explained(path):
        with path.open("rb") as file:
            if file.read(2) == b"PK":  # of zip, which is what NumPy would look at instead of the name
                raise UserError(f"{path} is not a single array (an archive of arrays is named .npz)")
        return np.load(path, allow_pickle=False)


def _header(path: Path, name: str) -> str:
    """Shape and dtype of one array of an archive, without reading it."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name + ".npy") as file:
            first = np.lib.format.read_magic(file) == (1, 0)
            read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, _, dtype = read_header(file)
        return f"{shape} {dtype}"
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, zlib.error):
        return "(unreadable)"


def _check_header(path: Path) -> None:
    """Refuse another separator than the comma, and names repeated in a CSV's first line, which pandas would rename."""
    with path.open(encoding="utf-8") as file:
        lines = file.readline(), file.readline()
    for sign, spelled in ((";", "semicolons"), ("\t", "tabs")):
        # one column of numbers holds neither
        if "," not in lines[0] and all(sign in line for line in lines):
            raise UserError(f"{path}: fields must be separated by commas, and those of the first line are by {spelled}")
    pandas = require("pandas", "cli")
    header = pandas.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [str(name) for name in header.iloc[0]]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"{path}: column names must differ, {repeated[0]!r} stands twice in the first line")


def _kind(scores: np.ndarray) -> str:
    """The option to suggest for an array: rows in [0, 1] that sum to 1 look like probabilities."""
    head = np.asarray(scores[:1000], dtype=np.float64)
    unit = np.all((head >= 0) & (head <= 1))
    sums = head.ndim < 2 or np.all(np.abs(head.sum(-1) - 1) <= 1e-3)
    return "--probs" if unit and sums else "--logits"


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which p_10 follows p_9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
