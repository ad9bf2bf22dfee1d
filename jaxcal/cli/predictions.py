"""Logits, labels and weights of the command line, checked row by row before anything is computed."""

import argparse
import csv
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from jaxcal.cli import files
from jaxcal.cli.console import UserError
from jaxcal.cli.files import abbreviate, command_line, nth
from jaxcal.cli.labels import class_indices

_SUM_TOLERANCE = 1e-3  # probabilities printed with three or four digits


@dataclass(frozen=True)
class Predictions:
    """What a file says.

    Attributes:
        logits: `(n, k)`, rows of weight 0 left out.
        labels: int32 `(n,)`, or None where they are not asked for.
        names: the label of each class as it stands in the file, or None.
        weights: `(n,)` positive, or None.
        rows: `(n,)` their row numbers in the file.
        notes: sentences about what was done to the input.
        columns: the columns of a table that held the predictions, or None.
        source: the opened file.
        probabilities: `(n, k)` as they stand in the file, but for a floor, or None if it holds logits.
    """

    logits: jax.Array
    labels: np.ndarray | None
    names: list[str] | None
    weights: np.ndarray | None
    rows: np.ndarray
    notes: list[str]
    columns: list[str] | None
    source: files.NpzFile | files.NpyFile | files.TableFile
    probabilities: np.ndarray | None = None

    def top_label(self) -> tuple:
        """Confidence of the predicted class and whether it is right.

        From the probabilities where these are what the file holds: through logits 0.6 may come back as 0.59999996, in
        another bin.
        """
        if self.probabilities is None:
            return jaxcal.top_label(self.logits, self.labels)
        return self.probabilities.max(-1), self.probabilities.argmax(-1) == self.labels

    def event(self, index: int) -> tuple:
        """Probability of one class and whether it came."""
        if self.probabilities is None:
            return jaxcal.binary_event(self.logits, self.labels, index)
        return self.probabilities[:, index], self.labels == index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE and what in it the predictions are."""
    parser.add_argument("file", metavar="FILE", help="predictions: .npz, .npy, .csv or .parquet")
    kind = parser.add_mutually_exclusive_group()
    names = "array of an .npz; columns of a table, or a quoted pattern such as 'p_*' (natural order); none for .npy"
    kind.add_argument("--logits", nargs="*", metavar="NAME", help=f"the predictions are logits: {names}")
    kind.add_argument(
        "--probs",
        nargs="*",
        metavar="NAME",
        help="the same for probabilities; rows must sum to 1 within 1e-3, and are then renormalized. "
        "A single column or 1-d array is the score or probability of class 1 of 2",
    )
    parser.add_argument(
        "--floor", type=float, metavar="P", help="raise probabilities below P to P, for files that hold zeros (off)"
    )


def read_predictions(args: argparse.Namespace, command: str, *, labelled: bool) -> Predictions:
    """Read and check `args.file`; what is wrong ends in a `UserError` that names the row.

    Args:
        args: parsed arguments: file, logits, probs, floor and, if `labelled`, labels, weights, classes.
        command: how the command line begins, for the complete command shown when options are missing.
        labelled: whether labels are needed.
    """
    source = files.read(args.file)
    option = "--probs" if args.probs is not None else "--logits" if args.logits is not None else None
    chosen = args.probs if args.probs is not None else args.logits
    unnamed = option is not None and not chosen and not isinstance(source, files.NpyFile)
    if option is None or unnamed or (labelled and args.labels is None):
        raise UserError(_what_to_type(source, command, option if not unnamed else None, chosen, args, labelled))
    scores, columns = source.scores(chosen)
    scores = _numeric(scores, option[2:])
    if scores.ndim not in (1, 2) or scores.size == 0:
        raise UserError(f"{option[2:]} must have shape (n, k), or (n,) for two classes, got {scores.shape}")
    if scores.ndim == 2 and scores.shape[1] < 2:
        raise UserError(
            f"{option[2:]} of shape {scores.shape} have one class; for two classes save the score or probability of "
            "class 1 as a 1-d array"
        )
    n, k = len(scores), scores.shape[1] if scores.ndim == 2 else 2
    weights = _weights(source, args, n) if labelled else None
    rows = np.arange(n) if weights is None else np.flatnonzero(weights > 0)
    if len(rows) < n:
        scores, weights = scores[rows], weights[rows]
    notes = [] if len(rows) == n else [f"{n - len(rows):,} rows of weight 0 were left out"]
    if columns and len(columns) == 1:
        notes.append(f"{columns[0]} is the {'probability' if option == '--probs' else 'score'} of class 1 of 2")
    probabilities = None
    if option == "--probs":
        probabilities = _raised(_probabilities(scores, rows, notes), args.floor, notes)
        logits = jaxcal.logits_from_probs(jnp.asarray(probabilities))
    else:
        logits = _from_logits(scores, rows, args)
    labels = names = None
    if labelled:
        raw = _labels(source, args, n, scores)[rows]
        classes = None if args.classes is None else next(csv.reader([args.classes], skipinitialspace=True), [])
        named = columns if columns and len(columns) == k else None
        if columns and args.labels in columns:
            raise UserError(f"column {args.labels!r} is named both as a label and as a prediction")
        labels, names, mapping = class_indices(raw, k, named, classes, rows)
        if columns or classes is not None:
            notes.append(mapping)
    if probabilities is not None:
        probabilities = probabilities.astype(logits.dtype)
    return Predictions(logits, labels, names, weights, rows, notes, columns, source, probabilities)


def _what_to_type(source, command, option, names, args, labelled) -> str:
    suggestion = source.suggestion()
    if option is not None:
        suggestion = {option: names, "--labels": suggestion["--labels"]}
    if not labelled:
        suggestion.pop("--labels")
    elif args.labels is not None:
        suggestion["--labels"] = [args.labels]
    return (
        f"say what is what in {args.file}, which holds {source.describe()}; for example (check it): "
        f"{command_line(command, suggestion)}"
    )


def _numeric(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise UserError(f"{what} must be real numbers, got an array of dtype {array.dtype}; save them as float32")
    if array.dtype.kind in "iub" or array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _weights(source, args, n: int) -> np.ndarray | None:
    if args.weights is None:
        return None
    weights = _numeric(source.numbers(args.weights), "weights").astype(np.float64)
    if weights.shape != (n,):
        raise UserError(f"weights must have shape ({n},) as there are {n} rows of predictions, got {weights.shape}")
    bad = ~((weights >= 0) & (weights < np.inf))
    if bad.any():
        row = int(np.argmax(bad))
        raise UserError(f"weights must be finite and >= 0; {nth(row)} has {weights[row]}")
    if not weights.any():
        raise UserError("all weights are 0, so there is nothing to audit")
    return weights


def _labels(source, args, n: int, scores: np.ndarray) -> np.ndarray:
    labels = source.array(args.labels)
    if labels.dtype.kind not in "biufU":
        raise UserError(f"labels must be integers or text, got an array of dtype {labels.dtype}")
    if labels.ndim == 2 and labels.shape[0] == n and labels.shape[1:] == scores.shape[1:]:
        raise UserError(
            f"labels have the shape {labels.shape} of the predictions; save class indices, one_hot.argmax(-1)"
        )
    if labels.shape != (n,):
        raise UserError(f"labels must have shape ({n},) as there are {n} rows of predictions, got {labels.shape}")
    return labels


def _refuse(bad: np.ndarray, rows: np.ndarray, scores: np.ndarray, message: str) -> None:
    bad = bad if bad.ndim == 1 else bad.any(-1)
    if bad.any():
        i = int(np.argmax(bad))
        shown = abbreviate([str(value) for value in np.atleast_1d(scores[i])])  # all digits: 1.0000001 is not 1
        raise UserError(f"{message}; {nth(int(rows[i]))} is {shown}")


def _from_logits(scores: np.ndarray, rows: np.ndarray, args) -> jax.Array:
    if args.floor is not None:
        raise UserError("--floor is for --probs")
    _refuse(np.isnan(scores), rows, scores, "logits must not be NaN or missing")
    dtype = jax.dtypes.canonicalize_dtype(scores.dtype)  # of the array that jax will make of it
    _refuse(
        np.isfinite(scores) & (np.abs(scores) > jnp.finfo(dtype).max),
        rows,
        scores,
        f"logits overflow {dtype}; divide them by a constant or set JAX_ENABLE_X64=1",
    )
    if scores.ndim == 1:
        return jaxcal.binary_logits(jnp.asarray(scores))
    # an offset a row means nothing, and in float64 it can be removed without loss
    peak = scores.max(-1, keepdims=True)
    scores = np.where(np.isfinite(peak), scores - np.where(np.isfinite(peak), peak, 0), scores)
    _refuse(scores == np.inf, rows, scores, "logits must not be +inf (a certain class has -inf on all others)")
    _refuse((scores == -np.inf).all(-1), rows, scores, "a row of logits must not be -inf for every class")
    return jnp.asarray(scores)


def _probabilities(scores: np.ndarray, rows: np.ndarray, notes: list[str]) -> np.ndarray:
    """Checked probabilities `(n, k)`, float64, rows summing to 1."""
    p = scores.astype(np.float64)
    _refuse(np.isnan(p), rows, scores, "probabilities must not be NaN or missing")
    if p.ndim == 1:
        _refuse((p < 0) | (p > 1), rows, scores, "probabilities must be in [0, 1] (are these scores? then --logits)")
        p = np.stack([1 - p, p], axis=-1)
    else:
        outside = (p < 0) | (p > 1 + _SUM_TOLERANCE)
        _refuse(outside, rows, scores, "probabilities must be in [0, 1] (are these logits? then --logits)")
        sums = p.sum(-1)
        off = np.abs(sums - 1)
        if off.max() > _SUM_TOLERANCE:
            i = int(np.argmax(off > _SUM_TOLERANCE))
            raise UserError(
                f"rows of probabilities must sum to 1 within 1e-3; {nth(int(rows[i]))} sums to {sums[i]:.9g}"
            )
        # dividing by a sum that is 1 but for rounding would only move the values off their digits
        exact = off <= 0.5 * p.shape[1] * np.finfo(scores.dtype).eps
        how_far = f"within {off.max():.1e}" if off.max() > 0 else "exactly"
        notes.append(f"rows of probabilities summed to 1 {how_far}{'' if exact.all() else ' and were renormalized'}")
        p = np.where(exact[:, None], p, p / sums[:, None])
    return p


def _raised(p: np.ndarray, floor: float | None, notes: list[str]) -> np.ndarray:
    """Probabilities below the floor raised to it, and rows that hold such renormalized."""
    if floor is None:
        return p
    k = p.shape[1]
    smallest = float(jnp.finfo(jnp.result_type(float)).tiny)
    if not smallest <= floor < 1 / k:
        raise UserError(f"--floor must be at least {smallest:.2g} and below 1/k = {1 / k:.4g}, got {floor:g}")
    low = p < floor
    notes.append(f"{int(low.sum()):,} probabilities below {floor:g} were raised to it")
    raised = np.maximum(p, floor)
    return np.where(low.any(-1, keepdims=True), raised / raised.sum(-1, keepdims=True), p)
