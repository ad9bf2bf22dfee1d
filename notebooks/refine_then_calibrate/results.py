"""Results as CSV files that grow unit by unit: what was interrupted is continued, nothing is half written."""

import os
from pathlib import Path

import pandas as pd


class Results:
    """Rows of a stage, `<stage>.csv`, and its finished units with their sizes and times, `<stage>_units.csv`.

    A unit is a dictionary of what tells it from the others (data, split, ...); its columns come first in both files.
    """

    def __init__(self, folder: Path, stage: str):
        self._paths = {"rows": folder / f"{stage}.csv", "units": folder / f"{stage}_units.csv"}
        folder.mkdir(parents=True, exist_ok=True)
        self._tables = {name: pd.read_csv(p) if p.exists() else pd.DataFrame() for name, p in self._paths.items()}

    def has(self, unit: dict) -> bool:
        """Is this unit among the finished ones?"""
        return bool(self._of(self._tables["units"], unit).any())

    def add(self, unit: dict, rows: list[dict], facts: dict) -> None:
        """Write the rows of a unit, then that it is finished."""
        kept = self._tables["rows"]
        kept = kept[~self._of(kept, unit)]  # those of a unit that was interrupted between the two files
        self._write("rows", pd.concat([kept, pd.DataFrame([unit | row for row in rows])], ignore_index=True))
        self._write("units", pd.concat([self._tables["units"], pd.DataFrame([unit | facts])], ignore_index=True))

    def _of(self, table: pd.DataFrame, unit: dict) -> pd.Series:
        same = pd.Series(True, index=table.index)
        for name, value in unit.items():
            same &= table[name] == value if name in table else False
        return same

    def _write(self, name: str, table: pd.DataFrame) -> None:
        self._tables[name] = table
        path = self._paths[name]
        beside = path.with_suffix(".part")
        table.to_csv(beside, index=False, float_format="%.5g")
        os.replace(beside, path)
