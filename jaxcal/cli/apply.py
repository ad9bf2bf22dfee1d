"""`jaxcal apply CALIBRATOR FILE --out OUT`: calibrated probabilities from a saved calibrator."""

import argparse
import shlex

import numpy as np

import jaxcal
from jaxcal.cli import files, predictions
from jaxcal.cli.console import UserError, require, write
from jaxcal.cli.labels import class_names

DESCRIPTION = """\
Apply a calibrator saved by `jaxcal audit --fit` (or by `fit.save` in Python) to predictions and write calibrated
probabilities.

OUT is .npy (one array), .npz (array "probs"), .csv or .parquet (columns p_0 ... p_{k-1}, classes in the order of the
predictions). If FILE and OUT are both tables, or both .npz, everything else in FILE is kept and the predictions are
replaced by the calibrated ones; of columns z_cat and z_dog these are p_cat and p_dog."""

EXAMPLES = """\
examples:
  jaxcal apply t.npz test.npz --logits logits --out test_p.npz
  jaxcal apply t.npz test.csv --probs 'p_*' --out test_p.csv
  jaxcal apply t.npz test.npy --logits --out test_p.npy"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `jaxcal apply`."""
    parser.add_argument("calibrator", metavar="CALIBRATOR", help="file written by `jaxcal audit --fit`")
    predictions.add_arguments(parser)
    parser.add_argument("--out", metavar="OUT", required=True, help="file to write: .npz, .npy, .csv or .parquet")
    parser.add_argument("--prefix", default="p_", help="of the new columns of a table (default p_)")


def run(args: argparse.Namespace) -> int:
    """Apply `args.calibrator` to `args.file` and write `args.out`."""
    out = files.check_output(args.out, files.SUFFIXES, [args.file, args.calibrator])
    if out.suffix.lower() in (".csv", ".parquet"):
        require("pandas", "cli")
    if out.suffix.lower() == ".parquet":
        require("pyarrow", "cli")
    fit = _load(args.calibrator)
    command = f"jaxcal apply {shlex.quote(args.calibrator)} {shlex.quote(args.file)} --out {shlex.quote(args.out)}"
    data = predictions.read_predictions(args, command, labelled=False)
    try:
        log_probabilities = np.asarray(fit(data.logits))
    except ValueError as error:
        raise UserError(f"{args.calibrator} does not fit {args.file}: {' '.join(str(error).split())}") from error
    if log_probabilities.shape != data.logits.shape:
        raise UserError(
            f"{args.calibrator} holds a stack of calibrators, which maps {data.logits.shape} to "
            f"{log_probabilities.shape}; save a single one"
        )
    probabilities = np.exp(log_probabilities.astype(np.float64))
    probabilities = (probabilities / probabilities.sum(-1, keepdims=True)).astype(log_probabilities.dtype)
    content = _content(out, data, args, probabilities)
    with files.replacing(out) as temporary:
        _write(temporary, content)
    for note in data.notes:
        write(note)
    if isinstance(fit, jaxcal.TemperatureFit):
        write(f"temperature {float(fit.temperature):#.4g}")
    write(f"wrote {args.out}: {len(probabilities):,} rows, {probabilities.shape[1]} classes")
    return 0


def _load(path: str):
    try:
        return jaxcal.load(path)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error


def _content(out, data, args, probabilities: np.ndarray):
    """An array for .npy, named arrays for .npz, a table otherwise."""
    suffix = out.suffix.lower()
    source = data.source
    if suffix == ".npy":
        return probabilities
    if suffix == ".npz":
        kept = {}
        if isinstance(source, files.NpzFile):
            replaced = args.probs or args.logits
            kept = {name: source.array(name) for name in source.names if name not in replaced}
            if "probs" in kept:
                raise UserError(f"{args.file} has another array named 'probs'; write to .npy instead")
        return {**kept, "probs": probabilities}
    pandas = require("pandas", "cli")
    k = probabilities.shape[1]
    named = data.columns is not None and len(data.columns) == k
    new = [f"{args.prefix}{name}" for name in (class_names(data.columns) if named else range(k))]
    columns = pandas.DataFrame(probabilities, columns=new)
    if not isinstance(source, files.TableFile):
        return columns
    kept = source.frame.drop(columns=data.columns)
    clash = [name for name in new if name in kept.columns]
    if clash:
        raise UserError(f"{args.file} has another column {clash[0]!r}; name the new columns with --prefix")
    if named and data.columns != new:
        data.notes.append(files.abbreviate([f"{name} from {old}" for name, old in zip(new, data.columns, strict=True)]))
    columns.index = kept.index
    return pandas.concat([kept, columns], axis=1)


def _write(path, content) -> None:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        np.save(path, content)
    elif suffix == ".npz":
        np.savez(path, **content)
    elif suffix == ".csv":
        content.to_csv(path, index=False)
    else:
        content.to_parquet(path, index=False)
