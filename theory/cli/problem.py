"""What both commands are asked about: spectra, model, loss, and the numbers that go with them."""

import argparse
import csv
import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcal.cli import files
from jaxcal.cli.audit import LOSSES
from jaxcal.cli.console import UserError
from theory.curves import MODELS
from theory.spectra import BetaSpectrum, DiscreteSpectrum

_MODEL_NAMES = {"logistic": "logistic regression", "ridge": "ridge regression", "lda": "LDA"}
LOSS_NAMES = {name: name.replace("-", " ").replace("brier", "Brier") for name in LOSSES}
SPECTRUM_HELP = """\
spectra: beta:A,B[,SHIFT] is the law of SHIFT + Beta(A, B), SHIFT 0.001 unless given. --eigenvalues reads those of the
  covariance from an .npy array or a .csv with one column (with or without a heading), equally weighted unless a second
  column holds weights."""


class Problem(NamedTuple):
    """Options that both commands share, as they are written into tables."""

    model: str
    loss: str
    squeeze: float

    def options(self) -> dict:
        """Keyword arguments of `theory.learning_curve` and `theory.minimizers`."""
        return {"model": self.model, "loss": LOSSES[self.loss], "squeeze": self.squeeze}

    def describe(self) -> str:
        """One phrase."""
        squeezed = f", squeezed by {number(self.squeeze)}" if self.squeeze < 1 else ""
        return f"{_MODEL_NAMES[self.model]}, {LOSS_NAMES[self.loss]} loss{squeezed}"


def add_arguments(parser: argparse.ArgumentParser, *, several: bool) -> None:
    """Spectrum, model, loss and squeeze; with `several` any number of spectra."""
    many = {"nargs": "+"} if several else {}
    default = "beta:1,5 beta:2,2 beta:5,1" if several else "beta:1,1"
    parser.add_argument("--spectrum", metavar="SPEC", **many, help=f"beta:A,B[,SHIFT] (default {default})")
    parser.add_argument("--eigenvalues", metavar="FILE", **many, help=".npy or .csv of eigenvalues (and weights)")
    parser.set_defaults(default_spectra=default.split())
    parser.add_argument("--model", choices=MODELS, default="logistic", help="default: logistic")
    parser.add_argument("--loss", choices=LOSSES, default="log", help="proper loss (default: log)")
    parser.add_argument(
        "--squeeze", type=float, default=1.0, metavar="Q", help="0.99 reproduces published tables (default 1)"
    )


def problem(args: argparse.Namespace) -> Problem:
    """The checked options."""
    if not 0 < args.squeeze <= 1:
        raise UserError(f"--squeeze must lie in (0, 1], got {args.squeeze:g}")
    return Problem(args.model, args.loss, args.squeeze)


def spectra(args: argparse.Namespace) -> dict[str, BetaSpectrum | DiscreteSpectrum]:
    """The spectra asked for, under the names by which tables know them, in the order of the command line."""
    laws, paths = ([value] if isinstance(value, str) else value or [] for value in (args.spectrum, args.eigenvalues))
    if not laws and not paths:
        laws = args.default_spectra
    named = [_beta(text) for text in laws] + [_eigenvalues(path) for path in paths]
    if len(dict(named)) < len(named):
        raise UserError("a spectrum is named twice")
    return dict(named)


def in_range(values: Sequence[float], option: str, most: float) -> list[float]:
    """Values in increasing order, all in (0, most], none twice."""
    for value in values:
        if not 0 < value <= most or value == np.inf:
            raise UserError(f"{option} must lie in (0, {'0.5]' if most < 1 else 'inf)'}, got {value:g}")
    if len(set(values)) < len(values):
        raise UserError(f"{option} holds a value twice")
    return sorted(values)


def number(value: float) -> str:
    """The fewest digits that give back the same float: 0, 0.1, 1e-09, inf, nan."""
    return repr(float(value)).removesuffix(".0")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence]) -> None:
    """A table, whole or not at all; floats as `number` writes them."""
    with files.replacing(path) as beside, open(beside, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([number(x) if isinstance(x, float) else x for x in row] for row in rows)


def _beta(text: str) -> tuple[str, BetaSpectrum]:
    kind, _, rest = text.partition(":")
    try:
        parameters = [float(word) for word in rest.split(",")]
        if kind != "beta" or len(parameters) not in (2, 3):
            raise ValueError("a spectrum is written beta:A,B or beta:A,B,SHIFT")
        spectrum = BetaSpectrum(*parameters)
    except ValueError as error:
        raise UserError(f"--spectrum {text}: {error}") from error
    return f"beta:{number(spectrum.alpha)},{number(spectrum.beta)},{number(spectrum.shift)}", spectrum


def _eigenvalues(path: str) -> tuple[str, DiscreteSpectrum]:
    """The spectrum in a file, named by the file and a digest of its contents, so that a changed file is noticed."""
    file = files.read(path)
    if isinstance(file, files.NpyFile):
        values = file.scores([])[0]
    elif isinstance(file, files.TableFile) and len(file.names) == 1:
        values = file.numbers(file.names[0])
        with suppress(ValueError):  # a table without a heading: its first eigenvalue was taken for one
            values = np.append(float(file.names[0]), values)
    elif isinstance(file, files.TableFile) and len(file.names) == 2:
        values = np.stack([file.numbers(name) for name in file.names], axis=-1)
        with suppress(ValueError):
            values = np.vstack([[float(name) for name in file.names], values])
    else:
        raise UserError(f"{path}: eigenvalues are one .npy array or a .csv, with one column or a second one of weights")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    weights = None
    if values.ndim == 2 and values.shape[1] == 2:
        values, weights = values.T
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise UserError(f"{path}: eigenvalues are numbers with one axis, got {values.dtype} of shape {values.shape}")
    order = np.argsort(values, kind="stable")
    values = values[order].astype(np.float64)
    weights = None if weights is None else weights[order].astype(np.float64)
    contents = values.tobytes() + (b"" if weights is None else weights.tobytes())
    try:
        spectrum = DiscreteSpectrum(values, weights)
    except ValueError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    return f"eigenvalues:{Path(path).name}#{hashlib.sha256(contents).hexdigest()[:8]}", spectrum
