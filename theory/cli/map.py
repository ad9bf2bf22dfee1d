"""`python -m theory map`: minimizers of risk, calibration and refinement over ratios, Bayes errors and spectra."""

import argparse

import numpy as np

from jaxcal.cli.console import UserError, progress, require, table, write
from jaxcal.cli.files import check_output, replacing
from jaxcal.status import Status
from theory.cli import problem
from theory.cli.table import COLUMNS, MapTable
from theory.minima import minimizers
from theory.plots.maps import minimizer_gap, minimizer_maps

DESCRIPTION = """\
For every spectrum, dimension ratio r = p/n and Bayes error e*: the regularization at which risk, calibration and
refinement are smallest, these minima, and what is gained by tuning for refinement and then calibrating. The defaults
are the problems of Figure 8 of Berta et al. (2025); its published numbers are those of --squeeze 0.99."""

EXAMPLES = f"""\
examples:
  python -m theory map --csv maps.csv --plot maps.png
  python -m theory map --spectrum beta:1,1 --ratios 0.5 1 2 --bayes-errors 0.05 0.1 0.2
  python -m theory map --eigenvalues covariance.npy --model ridge --loss brier --csv ridge.csv

{problem.SPECTRUM_HELP}
--csv: a row a cell with the columns
  {", ".join(COLUMNS[:9])},
  {", ".join(COLUMNS[9:])}.
  Numbers have all their digits; lambda is 0 or inf where the infimum is the limit there. The file is replaced whenever
  the ratios of one Bayes error are done. After an interruption, even a kill, the same command computes what is missing;
  a larger map with the same options takes up a smaller one. A file of other options is refused without --overwrite.
exit code: 0, 2 with one line on stderr when the file or the arguments are at fault, 130 after Ctrl-C."""

BAYES_ERRORS = (0.001, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
RATIOS = tuple(float(10 ** (k / 10)) for k in range(-10, 11))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `map`."""
    problem.add_arguments(parser, several=True)
    parser.add_argument(
        "--ratios", type=float, nargs="+", metavar="R", default=RATIOS, help="p/n (default 21 from 0.1 to 10)"
    )
    parser.add_argument(
        "--bayes-errors", type=float, nargs="+", metavar="E", default=BAYES_ERRORS, help="default 12, 0.001 to 0.45"
    )
    parser.add_argument("--csv", metavar="OUT.csv", help="table to write, and to continue if it exists")
    parser.add_argument("--overwrite", action="store_true", help="begin the table anew")
    parser.add_argument("--plot", metavar="OUT.png", help="figure to write (.png, .pdf, .svg)")


def run(args: argparse.Namespace) -> int:
    """Compute the cells that are missing, report and draw."""
    asked, laws = problem.problem(args), problem.spectra(args)
    ratios = problem.in_range(args.ratios, "--ratios", np.inf)
    errors = problem.in_range(args.bayes_errors, "--bayes-errors", 0.5)
    inputs = args.eigenvalues or []
    path = None if args.csv is None else check_output(args.csv, (".csv",), inputs)
    plot = None if args.plot is None else check_output(args.plot, (".png", ".pdf", ".svg"), inputs)
    require("rich.table", "cli")
    if plot is not None:
        require("matplotlib.figure", "plot")
    cells = MapTable(path, asked, laws, ratios, errors, overwrite=args.overwrite)
    total = len(laws) * len(ratios) * len(errors)
    write(f"{asked.describe()}: {total} cells" + (f", of which {args.csv} has {len(cells)}" if len(cells) else ""))
    try:
        _compute(cells, laws, asked.options())
    except KeyboardInterrupt:
        if path is not None and len(cells):
            write(f"{len(cells)} of {total} cells are in {args.csv}; the same command continues there", error=True)
        raise
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error
    write(_report(cells))
    if path is not None:
        write(f"wrote table {args.csv}")
    if plot is not None:
        _draw(plot, cells, laws)
        write(f"wrote figure {args.plot}")
    return 0


def _compute(cells: MapTable, laws: dict, options: dict) -> None:
    """Block by block, all of one shape, so that only the first has to be compiled."""

    def compute(block):
        spectrum, error = block
        cells.add(spectrum, error, minimizers(np.array(cells.ratios), error, laws[spectrum], **options))

    blocks = cells.missing()
    if not blocks:
        return
    with progress("compiling (about 20 s)", 1):
        compute(blocks[0])
    with progress("Bayes errors", len(blocks)) as advance:
        advance(1)
        for block in blocks[1:]:
            compute(block)
            advance(1)


def _report(cells: MapTable) -> str:
    """A line a spectrum, and what became of cells without a result."""
    rows, failures = [], []
    for name in cells.spectra:
        found = cells.minimizers(name)
        gap, gain = minimizer_gap(found), np.nan_to_num(found.gain, nan=-1.0)
        error, ratio = np.unravel_index(np.argmax(gain), gain.shape)
        rows.append(
            [
                name.removesuffix(",0.001"),
                f"{np.sum(gap > 0)}",
                f"{np.sum(gap < 0)}",
                f"{np.sum(found.lambda_refinement == 0)}",
                f"{100 * found.gain[error, ratio]:.2f}",
                f"{cells.ratios[ratio]:.3g}",
                f"{cells.bayes_errors[error]:.3g}",
            ]
        )
        for status in np.unique(found.status[found.status != Status.CONVERGED]):
            failures.append(f"{name}: {np.sum(found.status == status)} cells {Status(status).name}")
    columns = ("spectrum", "calibration\nfirst", "refinement\nfirst", "refinement\nat 0", "gain\n%", "at r", "at e*")
    notes = (
        "",
        "calibration first, refinement first: number of cells where it is smallest at the larger lambda;",
        "refinement at 0: where it is smallest as lambda -> 0. gain: largest 1 - min refinement / min risk, and where.",
    )
    return "\n".join(("", table(columns, rows), *notes, *failures))


def _draw(path, cells: MapTable, laws: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.4 + 2.0 * len(laws), 5.8), layout="constrained")
    maps = [cells.minimizers(name) for name in laws]
    minimizer_maps(cells.ratios, cells.bayes_errors, laws.values(), maps, ax=figure.add_subplot())
    with replacing(path) as beside:
        figure.savefig(beside, dpi=200)
