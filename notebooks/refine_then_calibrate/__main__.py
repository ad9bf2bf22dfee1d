"""The study of `refine_then_calibrate.ipynb`: `python notebooks/refine_then_calibrate` runs what is missing of it.

Stages may run one after another or side by side (`... trees`, `... networks`, ...). A unit of a stage, a data set and a
split, say, is written when it is finished; what was interrupted or ran out of `--minutes` goes on where it was.
"""

import argparse
import importlib
import importlib.metadata
import os
import sys
import time
from pathlib import Path

from results import Results

# stage: module, prefix of its function, what is installed for it beyond the packages of the notebooks
STAGES = {
    "trees": ("tabular", "run_trees"),
    "networks": ("tabular", "run_networks"),
    "vision": ("vision", "run"),
    "objectives": ("objectives", "run"),
    "temperatures": ("temperatures", "run"),
}
_VERSIONS = ("jax", "numpy", "scikit-learn", "xgboost-cpu")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python notebooks/refine_then_calibrate", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"default all: {', '.join(STAGES)}")
    parser.add_argument("--minutes", type=float, default=45, help="start no unit later than this, each stage (45)")
    parser.add_argument("--quick", action="store_true", help="a small version of every stage, in about two minutes")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", help="folder of CSV files")
    given = parser.parse_args()
    unknown = sorted(set(given.stages) - set(STAGES))
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    if given.quick and given.results == parser.get_default("results"):
        parser.error("--quick needs --results FOLDER: it would mix with the stored results")
    missing = sum(run_stage(stage, given) for stage in given.stages or STAGES)
    print(f"{missing} units are missing; the same command goes on" if missing else "complete")
    return 0


def run_stage(stage: str, given: argparse.Namespace) -> int:
    """Run what is missing of a stage within the time; the number of units that still are."""
    module, function = (importlib.import_module(STAGES[stage][0]), STAGES[stage][1])
    results = Results(given.results, stage)
    units = module.units(given.quick)
    todo = [unit for unit in units if not results.has(unit)]
    start = time.monotonic()
    versions = {"versions": " ".join(f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS)}
    while todo and time.monotonic() - start < 60 * given.minutes:
        unit = todo.pop(0)
        began = time.monotonic()
        rows, facts = getattr(module, function)(unit, given.quick)
        seconds = time.monotonic() - began
        results.add(unit, rows, facts | {"seconds": round(seconds, 1)} | versions)
        what = ", ".join(map(str, unit.values()))
        print(f"{stage} {len(units) - len(todo)}/{len(units)}  {what}: {seconds:.0f} s", flush=True)
    return len(todo)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
