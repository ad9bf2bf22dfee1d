"""The table behind a map: finished cells survive an interruption, and only cells of the same question are taken up."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from jaxcal.cli.console import UserError
from jaxcal.status import Status
from theory.cli.problem import Problem, write_csv
from theory.minima import Minimizers

RESULTS = tuple(field.name for field in fields(Minimizers))
COLUMNS = ("spectrum", *Problem._fields, "ratio", "bayes_error", *RESULTS)
_REMEDY = "write to another file or add --overwrite"


class MapTable:
    """Results by spectrum, Bayes error and ratio, kept in a file that is replaced as a whole whenever a block is done.

    Args:
        path: the CSV, or None to keep the results in memory only. Rows that it holds already are taken up.
        problem: model, loss and squeeze, the same in every row.
        spectra: names.
        ratios, bayes_errors: the axes of the map.
        overwrite: forget what is in the file.

    Raises:
        UserError: the file is no such table, or a row of it does not belong to the map.
    """

    def __init__(self, path: Path | None, problem: Problem, spectra, ratios, bayes_errors, *, overwrite: bool = False):
        self.path, self.problem = path, problem
        self.spectra, self.ratios, self.bayes_errors = list(spectra), list(ratios), list(bayes_errors)
        self._cells: dict[tuple, tuple] = {}
        if path is not None and path.exists() and not overwrite:
            self._cells = dict(self._read())

    def __len__(self) -> int:
        return len(self._cells)

    def missing(self) -> list[tuple[str, float]]:
        """Blocks with a cell that is not known: (spectrum, Bayes error), over all ratios."""
        blocks = [(name, error) for name in self.spectra for error in self.bayes_errors]
        return [(n, e) for n, e in blocks if any((n, e, r) not in self._cells for r in self.ratios)]

    def add(self, spectrum: str, bayes_error: float, found: Minimizers) -> None:
        """Take in a block, results of shape `(ratios,)`, and replace the file. Known cells stay as they are."""
        for row in zip(self.ratios, *(np.asarray(getattr(found, name)) for name in RESULTS), strict=True):
            ratio, *values, count, status = row
            cell = (*map(float, values), int(count), int(status))
            self._cells.setdefault((spectrum, bayes_error, ratio), cell)
        if self.path is not None:
            write_csv(self.path, COLUMNS, self._rows())

    def minimizers(self, spectrum: str) -> Minimizers:
        """Everything about one spectrum, `(bayes_errors, ratios)`."""
        cells = [self._cells[spectrum, e, r] for e in self.bayes_errors for r in self.ratios]
        shape = (len(self.bayes_errors), len(self.ratios))
        return Minimizers(*(np.reshape(column, shape) for column in zip(*cells, strict=True)))

    def _rows(self) -> Iterator[Sequence]:
        for spectrum in self.spectra:
            for error in self.bayes_errors:
                for ratio in self.ratios:
                    cell = self._cells.get((spectrum, error, ratio))
                    if cell is not None:
                        *values, status = cell
                        yield spectrum, *self.problem, ratio, error, *values, Status(status).name

    def _read(self) -> Iterator[tuple[tuple, tuple]]:
        try:
            with open(self.path, newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}") from error
        if not rows or tuple(rows[0]) != COLUMNS:
            raise UserError(f"{self.path} exists and is not a table of this command; {_REMEDY}")
        for line, row in enumerate(rows[1:], start=2):
            try:
                spectrum, model, loss, *rest, status = row
                squeeze, ratio, bayes_error, *values, count = map(float, rest)
                cell = (*values, int(count), int(Status[status]))
                if len(row) != len(COLUMNS):
                    raise ValueError(f"{len(row)} fields")
            except (ValueError, KeyError) as error:
                raise UserError(f"{self.path}, line {line} is damaged; {_REMEDY}") from error
            found = {"spectrum": spectrum, "model": model, "loss": loss, "squeeze": squeeze}
            self._check(found | {"ratio": ratio, "bayes_error": bayes_error})
            yield (spectrum, bayes_error, ratio), cell

    def _check(self, found: dict) -> None:
        """Refuse a row of another question."""
        asked = {name: [value] for name, value in self.problem._asdict().items()}
        asked |= {"spectrum": self.spectra, "ratio": self.ratios, "bayes_error": self.bayes_errors}
        for name, value in found.items():
            if value not in asked[name]:
                wanted = f"not {asked[name][0]}" if len(asked[name]) == 1 else "not asked for"
                raise UserError(f"{self.path} has rows of {name} {value}, {wanted}; {_REMEDY}")
