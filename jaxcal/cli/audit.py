"""`jaxcal audit FILE`: what a user's own predictions lose to calibration and to refinement, with intervals."""

import argparse
import json
import math
import shlex
from pathlib import Path

import numpy as np

import jaxcal
from jaxcal.cli import bootstrap, choice, event, predictions, report
from jaxcal.cli.console import UserError, progress, require, write
from jaxcal.cli.files import check_output, nth, replacing
from jaxcal.cli.labels import class_of

DESCRIPTION = """\
Measure the calibration of predictions you have: risk (mean proper loss) split into calibration error, which temperature
scaling or another --calibrator removes, and refinement error, which it does not; temperature and accuracy; and for the
confidence of the predicted class, or the probability of one class (--event), ECE, its successors without that bias, the
calibration line, and tests.

What is a logit, a probability or a label is named by you and never guessed. Leave the names out to see what a file
holds and a complete command to type."""

EXAMPLES = """\
examples:
  jaxcal audit val.npz --logits logits --labels labels         arrays of an .npz
  jaxcal audit val.npy --probs --labels labels.npy             an .npy holds one array
  jaxcal audit val.csv --probs 'p_*' --labels label            columns p_0, p_1, ..., p_10 in natural order
  jaxcal audit val.csv --probs p_cat p_dog --labels animal     labels cat and dog, matched by name
  jaxcal audit val.csv --logits score --labels y --event 1     one column: the score of class 1 of 2
  jaxcal audit val.npz --logits z --labels y --calibrator auto  compares calibrators and keeps one
  jaxcal audit val.npz --logits z --labels y --fit t.npz && jaxcal apply t.npz test.npz --logits z --out test_p.npz

labels: whole numbers from 0 to k - 1 in the order of the columns; or whatever follows the prefix common to all column
  names (p_cat: cat, p_3: 3) when every label is found there; or anything, named in order by --classes A,B,C. The
  mapping that was used is printed.
weights: counts; a row of weight 2 equals two rows, a row of weight 0 is left out and not checked. If all are whole
  numbers, a resample draws sum(weights) rows; otherwise each row keeps its weight when it is drawn.
intervals: 95 % percentile bootstrap over rows, centred for calibration; temperature (and folds) are fitted anew in
  every resample, other calibrators are not. The uncertainty of nearly equally frequent classes gets none.
bins: of equal width for the (plug-in) ECE; the mass bins of the debiased ECE hold equally many rows.
--calibrator auto: the first calibrator of a list from simple to complex whose out-of-fold loss is within one standard
  error of the least, the error being that of the difference row by row; the refinement is then out of fold, too.
--json prints one object: n, k, loss, ..., in "estimates" a {"value", "lower", "upper"} for each quantity, in "tests" a
  {"statistic", "p_value", "reliable"} for each test. Infinite numbers are the strings "Infinity" and "-Infinity"; what
  does not exist is null.
exit code: 0, or 2 with one line on stderr when the file or the arguments are at fault."""

LOSSES = {
    "log": jaxcal.log_loss,
    "brier": jaxcal.brier_loss,
    "half-brier": jaxcal.half_brier_loss,
    "spherical": jaxcal.spherical_loss,
}

_NUM_BINS = 15
# The ends of a 95 % interval are the 5th of 200 draws from either side.
_FEWEST_RESAMPLES = 200

_STATUS_LINES = {
    jaxcal.Status.AT_LOWER_BOUND: "the predictions point away from the labels, so the best temperature is infinite "
    "and calibrated predictions are uniform (are the labels those of these rows?)",
    jaxcal.Status.AT_UPPER_BOUND: "every label is the most probable class, so the loss falls as long as T does; T is "
    "where it stops changing, and says nothing about new data",
    jaxcal.Status.NOT_IDENTIFIED: "every temperature gives the same loss: no row has two possible classes that "
    "differ; T is set to 1",
    jaxcal.Status.NOT_CONVERGED: "the step limit was reached before the optimum; do not rely on T",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `jaxcal audit`."""
    predictions.add_arguments(parser)
    parser.add_argument("--labels", metavar="NAME", help="array or column of labels; for .npy the file that holds them")
    parser.add_argument("--weights", metavar="NAME", help="array, column or .npy file of weights (counts)")
    parser.add_argument("--classes", metavar="A,B,...", help="the label of each class, in the order of the predictions")
    parser.add_argument(
        "--event",
        metavar="CLASS",
        help="measure the probability of this class, by its label, instead of the confidence of the predicted class; "
        "adds AUROC and observed over expected",
    )
    parser.add_argument("--loss", choices=LOSSES, default="log", help="proper loss, also for fitting T (default: log)")
    parser.add_argument(
        "--calibrator",
        choices=(choice.AUTO, *choice.NAMES),
        default="temperature",
        metavar="NAME",
        help=f"what removes the calibration error (default temperature): {', '.join(choice.NAMES)}; "
        "auto compares some and keeps one",
    )
    parser.add_argument(
        "--folds",
        type=int,
        metavar="K",
        help="refinement by K-fold cross-validation instead of in-sample (with --calibrator auto always, default 5)",
    )
    parser.add_argument(
        "--resamples", type=int, default=1000, metavar="B", help="bootstrap resamples (default 1000; 0: no bootstrap)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the resamples and folds (default 0)")
    parser.add_argument(
        "--plot",
        metavar="OUT.png",
        help="write a reliability diagram before and after calibration (.png, .pdf, .svg)",
    )
    parser.add_argument("--fit", metavar="OUT.npz", help="save the calibrator fitted on all rows, for `jaxcal apply`")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else on stdout")


def run(args: argparse.Namespace) -> int:
    """Audit `args.file`, write what was asked for, and print the result."""
    plot, fit_file = _outputs(args)
    if not 0 <= args.resamples <= 10**6:
        raise UserError(f"--resamples must be from 0 to 1,000,000, got {args.resamples}")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed must be from 0 to 2^31 - 1, got {args.seed}")
    data = predictions.read_predictions(args, f"jaxcal audit {shlex.quote(args.file)}", labelled=True)
    loss = LOSSES[args.loss]
    if args.calibrator == choice.AUTO and len(data.labels) < 2:
        raise UserError("--calibrator auto needs at least two rows")
    chosen = None if args.event is None else class_of(args.event, data.names)
    n, k = data.logits.shape
    if args.folds is not None and not 2 <= args.folds <= n:
        raise UserError(f"--folds must be from 2 to n = {n}, got {args.folds}")
    _refuse_impossible(data, args)
    try:
        calibrator = choice.choose(args, data, loss, progress)
        estimates, fit, intervals = _decomposition(args, data, loss, calibrator)
        p, y = data.top_label() if chosen is None else data.event(chosen)
        drawing = {"resamples": args.resamples, "seed": args.seed}
        measured, remarks = event.estimates(p, y, data.weights, num_bins=_NUM_BINS, **drawing)
        if chosen is not None:
            measured |= event.discrimination(p, y, data.weights, **drawing)
        tests = event.tests(p, y, data.weights)
        if fit_file is not None:
            fit.check()
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error
    if plot is not None:
        _draw(plot, args, data, fit, calibrator, chosen, measured["ece"].value)
    if fit_file is not None:
        with replacing(fit_file) as temporary:
            fit.save(temporary)
    subject = "the top label" if chosen is None else f"class {data.names[chosen]}"
    result = report.Result(estimates, fit, calibrator, intervals, measured, tests, subject, remarks)
    notes = data.notes + _notes(args, result, data)
    present = np.unique(data.labels)
    if chosen is None and k == 2:
        notes.append(f"the probability of class {data.names[1]} itself: --event {shlex.quote(data.names[1])}")
    if len(present) == 1:
        notes.append(f"every label is class {present[0]}: there is nothing to tell apart, and sharpness means little")
    if args.json:
        write(json.dumps(report.as_json(args, data, result, notes), indent=2, allow_nan=False))
        return 0
    write(report.overview(args, data, result))
    write("")
    if calibrator.selection is not None:
        write(choice.shown(calibrator, k, f"{args.loss.replace('-', ' ')} loss"))
        write("")
    write(report.event_table(result))
    write("")
    for note in notes:
        write(note)
    for path, what in ((args.plot, "reliability diagram"), (args.fit, "calibrator")):
        if path is not None:
            write(f"wrote {what} {path}")
    return 0


def _decomposition(args, data, loss, calibrator: choice.Choice):
    """Estimates, the calibrator fitted to all rows, and intervals."""
    rows = (data.logits, data.labels, data.weights)
    how = {"loss": loss, "folds": calibrator.folds, "seed": args.seed}
    drawing = {"resamples": args.resamples, "progress": progress}
    if calibrator.scales:
        estimates, fit = bootstrap.estimate(*rows, **how)
        draw = lambda: bootstrap.resample(*rows, fit, **drawing, **how)  # noqa: E731
    else:
        estimates, fit, losses = bootstrap.estimate_of(calibrator.calibrator, *rows, **how)
        draw = lambda: bootstrap.resample_losses(*rows, losses, loss=loss, seed=args.seed, **drawing)  # noqa: E731
    return estimates, fit, bootstrap.intervals(estimates, *draw()) if args.resamples else None


def _outputs(args):
    """Checked paths of the diagram and the calibrator, and the packages this run will need."""
    inputs = [args.file, *(name for name in (args.labels, args.weights) if name)]
    plot = fit_file = None
    if args.plot is not None:
        plot = check_output(args.plot, (".png", ".pdf", ".svg"), inputs)
        require("matplotlib.figure", "plot")
    if args.fit is not None:
        fit_file = check_output(args.fit, (".npz",), inputs)
    if not args.json:
        require("rich.table", "cli")
    return plot, fit_file


def _refuse_impossible(data, args) -> None:
    """A label on a class of probability 0 makes the log loss infinite whatever the temperature."""
    if args.loss != "log":
        return
    own = np.take_along_axis(np.asarray(data.logits), data.labels[:, None], axis=1)[:, 0]
    impossible = np.flatnonzero(own == -np.inf)
    if len(impossible):
        i = impossible[0]
        remedy = "raise zeros with --floor 1e-6, or choose" if args.probs is not None else "choose"
        raise UserError(
            f"{nth(int(data.rows[i]))} gives its own class {data.labels[i]} the probability 0, so the log loss is "
            f"infinite at every temperature ({len(impossible):,} such rows); {remedy} a bounded loss, --loss brier"
        )


def _notes(args, result: report.Result, data) -> list[str]:
    notes, weights = [], data.weights
    status = jaxcal.Status(int(result.fit.status))
    if status != jaxcal.Status.CONVERGED:
        notes.append(f"{status.name}: {_STATUS_LINES[status] if result.choice.scales else status.message}")
    intervals = result.intervals
    if intervals is not None:
        whole = weights is not None and np.all(weights == np.round(weights))
        rows = "rows" if weights is None else "rows, weights as counts" if whole else "rows, each with its weight"
        notes.append(
            f"intervals: percentile (calibration: centred) bootstrap over {rows}, {args.resamples:,} resamples, "
            f"seed {args.seed}"
        )
        if not result.choice.scales:
            notes.append(f"intervals take {result.choice.name} as it is: resamples do not fit it anew")
        outside = [q for q in report.quantities(result) if not _inside(*report.ends(result, q))]
        if outside:
            notes.append(
                f"{', '.join(outside)}: outside its interval, because resamples lie on one side of an extreme value"
            )
        if math.isnan(intervals.lower.uncertainty):
            notes.append("uncertainty: no interval, as classes are (nearly) equally frequent, its largest value")
        if intervals.failed:
            notes.append(f"{intervals.failed:,} resamples gave no number for some quantity and are left out there")
        if intervals.at_bound and status == jaxcal.Status.CONVERGED:
            notes.append(f"in {intervals.at_bound:,} resamples T is at a bound, so its interval is not reliable")
    notes.append("ECE, smooth ECE and cutoff: biased upward, so they get no interval")
    if not event.counts(weights):
        notes.append("debiased ECE, rank ECE and the rank test need weights that are whole numbers")
    else:
        how = ", centred bootstrap" if args.resamples else ""
        notes.append(
            f"debiased ECE: {_NUM_BINS} bins{how}; rank ECE: for every law, wide; slope and intercept: normal law"
        )
    count = event.resamples_together(len(data.rows), args.resamples)
    if args.resamples > count:
        notes.append(
            f"{'debiased ECE' if args.event is None else 'debiased ECE, AUROC, observed/expected'}: "
            f"{count:,} resamples, as there are many rows"
        )
    notes += result.remarks
    if 0 < args.resamples < _FEWEST_RESAMPLES:
        notes.append(f"{args.resamples} resamples are too few for the ends of a 95 % interval")
    poor = [name.replace("_", " ") for name, test in result.tests.items() if not test.reliable]
    if poor:
        notes.append(f"test of {', '.join(poor)}: too few rows or too extreme forecasts for a p-value to be trusted")
    return notes


def _inside(value: float, lower: float, upper: float) -> bool:
    rounding = 1e-5 * abs(value)  # the estimate is computed in float32, the ends mostly in float64
    return not (value < lower - rounding or value > upper + rounding)


def _draw(path, args, data, fit, calibrator: choice.Choice, chosen: int | None, ece: float) -> None:
    """Reliability of the event before and after calibration, on one Axes."""
    from jaxcal.plots import reliability_diagram

    figure = require("matplotlib.figure", "plot").Figure(figsize=(4.8, 5.6), layout="constrained")
    ax = figure.subplots()
    if chosen is None:
        before, after, what = data.top_label(), jaxcal.top_label(fit(data.logits), data.labels), "top label"
    else:
        before, what = data.event(chosen), f"class {data.names[chosen]}"
        after = jaxcal.binary_event(fit(data.logits), data.labels, chosen)
    after_ece = float(jaxcal.ece(*after, num_bins=_NUM_BINS, weights=data.weights))
    how = f"scaling, T = {float(fit.temperature):#.3g}" if calibrator.scales else calibrator.name
    for (confidence, correct), label in (
        (before, f"as given, ECE {ece:.3f}"),
        (after, f"after {how}, ECE {after_ece:.3f}"),
    ):
        curve = jaxcal.reliability_curve(confidence, correct, num_bins=_NUM_BINS, weights=data.weights)
        reliability_diagram(curve, ax=ax, label=label)
    figure.suptitle(f"{Path(args.file).name}: {what}, {len(data.rows):,} rows", fontsize="medium")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
