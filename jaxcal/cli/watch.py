"""`jaxcal watch FILE`: the record of a training that goes on, as a table that renews itself."""

import argparse
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import jaxcal
from jaxcal.cli import files
from jaxcal.cli.console import UserError, require, table, write
from jaxcal.history import FIELDS, read_history

DESCRIPTION = """\
Show the history of a training, a JSON-lines file written by jaxcal.History, and renew it whenever an epoch is added.
Curves are means over the seeds. Ctrl-C ends it."""

EXAMPLES = """\
examples:
  jaxcal watch run.jsonl
  jaxcal watch run.jsonl --plot run.png
  jaxcal watch run.jsonl --once"""

_BARS = "▁▂▃▄▅▆▇█"
_CLEAR = "\x1b[H\x1b[2J"
_LARGER_IS_BETTER = ("accuracy",)
_HIDDEN = ("step", "time", "status")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `jaxcal watch`."""
    parser.add_argument("file", metavar="FILE", help="file of a jaxcal.History")
    parser.add_argument("--plot", metavar="FIGURE", help="also draw the curves, .png, .svg or .pdf, and redraw them")
    parser.add_argument("--once", action="store_true", help="show what is there and end")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two looks at the file (default 1)"
    )


def run(args: argparse.Namespace) -> int:
    """Show `args.file`, again after every change."""
    require("rich", "cli")
    if not args.interval > 0:
        raise UserError(f"--interval must be > 0 seconds, got {args.interval}")
    plot = None
    if args.plot is not None:
        require("matplotlib", "plot")
        plot = files.check_output(args.plot, (".png", ".svg", ".pdf"), [args.file])
    seen = None
    try:
        while True:
            state = _state(args.file)
            if state != seen:
                seen = state
                _show(args.file, plot, clear=not args.once and sys.stdout.isatty())
            if args.once:
                return 0
            time.sleep(args.interval)
    except KeyboardInterrupt:
        return 0


def _state(path: str):
    try:
        found = Path(path).stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _show(path, plot, *, clear):
    try:
        header, rows = read_history(path)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    text = page(path, header, rows)
    write(_CLEAR + text if clear else text)
    if plot is not None and rows and np.isfinite(_curve(rows, "risk")).any():
        with files.replacing(plot) as temporary:
            _draw(rows, temporary)


def page(path: str, header: dict, rows: list[dict]) -> str:
    """What `jaxcal watch` shows of a history."""
    if not rows:
        return f"{path}: no epoch yet ({header['rows']:,} validation rows)"
    names = [n for n in dict.fromkeys([*FIELDS, *(n for row in rows for n in row)]) if n not in _HIDDEN]
    steps = [row["step"] for row in rows]
    curves = {name: _curve(rows, name) for name in names}
    lines = []
    for name, curve in curves.items():
        mean = _mean(curve)
        best = _best(name, mean)
        at = "" if best is None else f"{steps[best]}"
        lines.append([name, _number(mean[-1]), "" if best is None else _number(mean[best]), at, sparkline(mean)])
    lanes = curves["risk"].shape[0]
    seeds = f", mean of {lanes} seeds" if lanes > 1 else ""
    title = f"{path}: {len(rows)} epochs, the last one is {steps[-1]}; {header['rows']:,} validation rows{seeds}"
    chosen = {name: _choice(curves[name], steps) for name in ("risk", "refinement")}
    verdict = f"smallest so far: risk at {chosen['risk']}, refinement at {chosen['refinement']}"
    return "\n".join([title, "", table(("", "last", "best", "at", "course"), lines, left=(0, 4)), "", verdict])


def sparkline(values, width: int = 32) -> str:
    """A curve in one line of text: means of as many stretches as fit, a blank where none is finite."""
    values = np.asarray(values, float)
    parts = np.array_split(values, min(width, len(values)))
    means = np.array([np.mean(p[np.isfinite(p)]) if np.isfinite(p).any() else np.nan for p in parts])
    finite = np.isfinite(means)
    if not finite.any():
        return " " * len(means)
    low, high = means[finite].min(), means[finite].max()
    level = np.zeros(len(means)) if high == low else (means - low) / (high - low) * (len(_BARS) - 1)
    return "".join(_BARS[round(x)] if ok else " " for x, ok in zip(level, finite, strict=True))


def _curve(rows, name) -> np.ndarray:
    """`(seeds, epochs)`; seeds of several axes in one."""
    return np.stack([np.ravel(np.asarray(row.get(name, np.nan), float)) for row in rows], axis=-1)


def _mean(curve) -> np.ndarray:
    finite = np.isfinite(curve)
    return np.where(finite.any(0), np.where(finite, curve, 0).sum(0) / np.maximum(finite.sum(0), 1), np.nan)


def _best(name, mean):
    if name not in ("risk", "calibration", "refinement", *_LARGER_IS_BETTER) or not np.isfinite(mean).any():
        return None
    mean = np.where(np.isfinite(mean), mean, np.nan)
    return int(np.nanargmax(mean) if name in _LARGER_IS_BETTER else np.nanargmin(mean))


def _choice(curve, steps) -> str:
    chosen = np.asarray(jaxcal.select_epoch(curve))
    found = sorted({steps[i] for i in chosen if i >= 0})
    if not found:
        return "no epoch"
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _number(value) -> str:
    return "" if np.isnan(value) else f"{value:#.4g}"


def _draw(rows, path):
    from matplotlib.figure import Figure

    from jaxcal.plots import decomposition_curves

    parts = {name: _curve(rows, name) for name in ("risk", "calibration", "refinement")}
    chosen = {}
    for name in ("risk", "refinement"):
        picks = np.asarray(jaxcal.select_epoch(parts[name]))
        if (picks >= 0).all():
            chosen[name] = picks
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    steps = [row["step"] for row in rows]
    decomposition_curves(SimpleNamespace(**parts), chosen=chosen, steps=steps, ax=figure.add_subplot())
    figure.savefig(path, dpi=150)
