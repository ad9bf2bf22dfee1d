"""`python -m theory curve`: the learning curve of one problem, its minimizers, and simulations beside it."""

import argparse
from typing import NamedTuple

import jax
import numpy as np

from jaxcal.cli.console import UserError, progress, require, table, write
from jaxcal.cli.files import check_output, replacing
from jaxcal.status import Status
from theory.cli import problem
from theory.curves import LearningCurve, learning_curve
from theory.limits import separability_threshold
from theory.minima import Minimizers, minimizers
from theory.plots.curves import learning_curve as draw_learning_curve
from theory.simulation import Simulation, simulate

DESCRIPTION = """\
Exact risk, calibration and refinement of a regularized linear classifier in high dimension, for each strength of
regularization lambda, and where each is smallest. The default is the problem of Figure 7 of Berta et al. (2025)."""

EXAMPLES = f"""\
examples:
  python -m theory curve --csv curve.csv --plot curve.png
  python -m theory curve --ratio 2 --bayes-error 0.05 --spectrum beta:5,1 --lambdas 1 -6 41
  python -m theory curve --simulate 50 --design random --plot figure7.png      as in the paper, about half a minute
  python -m theory curve --eigenvalues covariance.csv --model ridge --loss brier

{problem.SPECTRUM_HELP}
--lambdas START STOP NUM: NUM strengths from 10^START to 10^STOP, both included. They are the rows of --csv and the
  points of --simulate; the lines of --plot are drawn through more.
--simulate: fits logistic regression to SEEDS data sets of N samples, see `theory.simulate`.
exit code: 0, 2 with one line on stderr when the file or the arguments are at fault, 130 after Ctrl-C."""

QUANTITIES = ("risk", "calibration", "refinement", "error_rate")
LINE_POINTS = 201  # of the figure's lines, smooth to the eye
_SIMULATION = {"samples": 2000, "seed": 0, "design": "quantile"}


class _Result(NamedTuple):
    lambdas: np.ndarray
    curve: LearningCurve
    fine_lambdas: np.ndarray
    fine_curve: LearningCurve
    best: Minimizers
    at_best: LearningCurve
    simulation: Simulation | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `curve`."""
    parser.add_argument("--ratio", type=float, default=0.5, metavar="R", help="p/n (default 0.5)")
    parser.add_argument("--bayes-error", type=float, default=0.1, metavar="E", help="in (0, 0.5] (default 0.1)")
    problem.add_arguments(parser, several=False)
    parser.add_argument(
        "--lambdas",
        type=float,
        nargs=3,
        metavar=("START", "STOP", "NUM"),
        default=(0.0, -3.0, 21.0),
        help="log10 of the regularization (default 0 -3 21)",
    )
    parser.add_argument("--simulate", type=int, metavar="SEEDS", help="number of simulated data sets (default none)")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of each (default 2000)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the simulations (default 0)")
    parser.add_argument("--design", choices=("quantile", "random"), help="of the eigenvalues (default quantile)")
    parser.add_argument("--csv", metavar="OUT.csv", help="table to write, a row a lambda")
    parser.add_argument("--plot", metavar="OUT.png", help="figure to write (.png, .pdf, .svg)")


def run(args: argparse.Namespace) -> int:
    """Compute, write what was asked for, and print the minimizers."""
    asked, (name, spectrum) = problem.problem(args), _spectrum(args)
    lambdas = _lambdas(args.lambdas)
    problem.in_range([args.ratio], "--ratio", np.inf)
    problem.in_range([args.bayes_error], "--bayes-error", 0.5)
    _check_simulation(args, asked)
    inputs = [args.eigenvalues] if args.eigenvalues else []
    path = None if args.csv is None else check_output(args.csv, (".csv",), inputs)
    plot = None if args.plot is None else check_output(args.plot, (".png", ".pdf", ".svg"), inputs)
    require("rich.table", "cli")
    if plot is not None:
        require("matplotlib.figure", "plot")
    try:
        result = _compute(args, asked, spectrum, lambdas)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error
    write(_report(args, asked, name, result))
    if path is not None:
        problem.write_csv(path, *_table(args, asked, name, result))
        write(f"wrote table {args.csv}")
    if plot is not None:
        _draw(plot, args, result)
        write(f"wrote figure {args.plot}")
    return 0


def _spectrum(args):
    """Name and spectrum, of which there is one."""
    if args.spectrum is not None and args.eigenvalues is not None:
        raise UserError("give --spectrum or --eigenvalues, not both")
    return next(iter(problem.spectra(args).items()))


def _lambdas(words) -> np.ndarray:
    start, stop, count = words
    if not (count.is_integer() and 1 <= count <= 10**6):
        raise UserError(f"--lambdas START STOP NUM: NUM must be a whole number from 1 to 1,000,000, got {count:g}")
    if not max(abs(start), abs(stop)) <= 100:
        raise UserError(f"--lambdas START STOP NUM: exponents must lie in [-100, 100], got {start:g} and {stop:g}")
    return 10.0 ** np.linspace(start, stop, int(count))


def _check_simulation(args, asked: problem.Problem) -> None:
    """Fill in what simulations need, and refuse what they cannot do or what is said without them."""
    for name, default in _SIMULATION.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif args.simulate is None:
            raise UserError(f"--{name} is for --simulate")
    if args.simulate is None:
        return
    for name, low in (("simulate", 1), ("samples", 2), ("seed", 0)):
        if not low <= getattr(args, name) < 2**31:
            raise UserError(f"--{name} must be from {low} to 2^31 - 1, got {getattr(args, name)}")
    if asked.model != "logistic" or asked.squeeze != 1:
        raise UserError("--simulate fits logistic regression and does not squeeze: leave out --model and --squeeze")


def _compute(args, asked: problem.Problem, spectrum, lambdas: np.ndarray) -> _Result:
    options = asked.options()
    fine = np.geomspace(lambdas[0], lambdas[-1], LINE_POINTS)
    with progress("compiling (about 30 s)", 2) as advance:
        best = minimizers(args.ratio, args.bayes_error, spectrum, **options)
        advance(1)
        places = [best.lambda_risk, best.lambda_calibration, best.lambda_refinement]
        every = np.concatenate([lambdas, fine, np.stack(places)])
        curve = learning_curve(every, ratio=args.ratio, bayes_error=args.bayes_error, spectrum=spectrum, **options)
        advance(1)
    simulation = None
    if args.simulate is not None:
        with progress("simulating", args.simulate) as advance:
            simulation = simulate(
                jax.random.key(args.seed),
                num_samples=args.samples,
                ratio=args.ratio,
                bayes_error=args.bayes_error,
                spectrum=spectrum,
                regularizations=lambdas,
                num_seeds=args.simulate,
                design=args.design,
                loss=options["loss"],
                on_seed=lambda done: advance(1),
            )
    fields = zip(
        *(np.split(np.asarray(v), np.cumsum([len(lambdas), len(fine)])) for v in jax.tree.leaves(curve)), strict=True
    )
    own, smooth, at_best = (LearningCurve(*part) for part in fields)
    return _Result(lambdas, own, fine, smooth, best, at_best, simulation)


def _report(args, asked: problem.Problem, name: str, result: _Result) -> str:
    best, at = result.best, result.at_best
    places = [float(getattr(best, f"lambda_{term}")) for term in QUANTITIES[:3]]
    rows = [
        [term, f"{place:.4g}", *(_fixed(getattr(at, quantity)[i]) for quantity in QUANTITIES)]
        for i, (term, place) in enumerate(zip(QUANTITIES, places, strict=False))
    ]
    threshold = float(separability_threshold(args.bayes_error))
    lines = [
        f"{asked.describe()}; r = {args.ratio:g}, e* = {args.bayes_error:g}, spectrum {name}",
        f"(for r above {threshold:.4g} the classes of the training data are separable)",
        "",
        table(("smallest", "at lambda", "risk", "calibration", "refinement", "error rate"), rows),
        "",
    ]
    status = Status(int(best.status))
    if status == Status.CONVERGED:
        lines.append(
            f"tuned for refinement and then calibrated: {float(best.refinement):.6f} instead of "
            f"{float(best.risk):.6f}, a gain of {100 * float(best.gain):.2f} %"
        )
    else:
        lines.append(f"minimizers: {status.name}, {status.message}")
    failed = int(np.sum(result.curve.status >= Status.NOT_CONVERGED))
    if failed:
        lines.append(f"{failed} of {len(result.lambdas)} lambdas have no result (nan)")
    if result.simulation is not None:
        lines += _distance(args, result)
    return "\n".join(lines)


def _fixed(value) -> str:
    return f"{round(float(value), 6) + 0.0:.6f}"  # rounding can leave -0


def _distance(args, result: _Result) -> list[str]:
    """How far simulations are from the theory."""
    sentence = f"{args.simulate} simulations, n = {args.samples}, p = {round(args.ratio * args.samples)}"
    words = []
    for name in QUANTITIES[:3]:
        away = np.abs(np.mean(getattr(result.simulation, name), axis=0) - getattr(result.curve, name))
        words.append(f"{name} {np.max(away, initial=0.0, where=np.isfinite(away)):.2g}")
    lines = [sentence, f"their means differ from the theory by at most {', '.join(words)}"]
    failed = int(np.sum(np.asarray(result.simulation.status) >= Status.NOT_CONVERGED))
    return lines + ([f"{failed} fits did not converge (nan)"] if failed else [])


def _table(args, asked: problem.Problem, name: str, result: _Result) -> tuple[list[str], list[list]]:
    """Columns and rows of the CSV: the problem, lambda, the theory, and means and standard deviations over seeds."""
    key = {"spectrum": name, **asked._asdict(), "ratio": args.ratio, "bayes_error": args.bayes_error}
    columns = {"regularization": result.lambdas, **{q: getattr(result.curve, q) for q in QUANTITIES}}
    columns["status"] = [Status(status).name for status in result.curve.status]
    if result.simulation is not None:
        key |= {"design": args.design, "num_samples": args.samples, "num_seeds": args.simulate, "seed": args.seed}
        for quantity in QUANTITIES:
            values = np.asarray(getattr(result.simulation, quantity))
            columns[f"simulated_{quantity}"] = values.mean(axis=0)
            sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], np.nan)
            columns[f"simulated_{quantity}_sd"] = sd
    rows = [[*key.values(), *cells] for cells in zip(*columns.values(), strict=True)]
    return [*key, *columns], rows


def _draw(path, args, result: _Result) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    draw_learning_curve(
        result.fine_lambdas,
        result.fine_curve,
        simulation=result.simulation,
        minimizers=result.best,
        unit="nats" if args.loss == "log" else problem.LOSS_NAMES[args.loss],
        ax=figure.add_subplot(),
    )
    with replacing(path) as beside:
        figure.savefig(beside, dpi=200)
