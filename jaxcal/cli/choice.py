"""Which calibrator an audit uses: the one that was named, or the one that out-of-fold losses speak for."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

import jaxcal
from jaxcal.calibrators.temperature import prepare
from jaxcal.cli.console import table
from jaxcal.cross_fit import split_of
from jaxcal.selection import CalibratorSelection, decide, default_calibrators, held_out_losses, known_calibrators

AUTO = "auto"
NAMES = tuple(known_calibrators())
_FOLDS = 5

# Numbers a calibrator learns from the data, k classes; the others are maps without a form.
_PARAMETERS: dict[str, Callable[[int], int]] = {
    "none": lambda k: 0,
    "temperature": lambda k: 1,
    "ensemble-temperature": lambda k: 3,
    "structured-vector": lambda k: 2 * k,
    "vector": lambda k: 2 * k - 1,
    "structured-matrix": lambda k: k * k + k,
    "dirichlet": lambda k: k * k + k,
    "matrix": lambda k: k * k + k,
    "platt": lambda k: 2 if k == 2 else 2 * k,
    "beta": lambda k: 3 if k == 2 else 3 * k,
    "quadratic": lambda k: 3 if k == 2 else 3 * k,
}


class Choice(NamedTuple):
    """A calibrator by name, and the comparison that chose it."""

    name: str
    calibrator: Callable
    folds: int | None  # of the refinement
    selection: CalibratorSelection | None

    @property
    def scales(self) -> bool:
        """Whether it is temperature scaling, whose resamples are fitted anew."""
        return self.name == "temperature"


def choose(args, data, loss, progress: Callable) -> Choice:
    """The calibrator of `--calibrator`; `auto` compares the default ones, in the folds that the refinement gets."""
    if args.calibrator != AUTO:
        return Choice(args.calibrator, known_calibrators(loss)[args.calibrator], args.folds, None)
    folds = args.folds or min(_FOLDS, len(data.labels))
    logits, labels, weights = prepare(data.logits, data.labels, data.weights, "audit")
    calibrators = default_calibrators(logits.shape[-1], loss=loss)
    split, losses = split_of(logits, folds=folds, key=jax.random.key(args.seed), call="audit"), []
    with progress("comparing calibrators", len(calibrators)) as advance:
        for calibrator in calibrators.values():
            found = held_out_losses(calibrator, loss, split, logits, labels, weights)
            losses.append(jax.block_until_ready(found))
            advance(1)
    selection = decide(losses, tuple(calibrators), weights, "one-standard-error")
    return Choice(selection.name, calibrators[selection.name], folds, selection)


def parameters(name: str, num_classes: int) -> int | None:
    """How many numbers a calibrator learns; None for a map without a form."""
    count = _PARAMETERS.get(name)
    return None if count is None else count(num_classes)


def shown(choice: Choice, num_classes: int, loss: str) -> str:
    """The comparison as a table and a sentence that says why."""
    s, rows, best = choice.selection, [], _best(choice.selection)
    for i, name in enumerate(s.names):
        risk = f"{float(s.risk[i]):#.4g} +- {float(s.standard_error[i]):.2g}"
        above = "" if i == best else f"{float(s.difference[i]):#.3g} +- {float(s.difference_error[i]):.2g}"
        count, status = parameters(name, num_classes), jaxcal.Status(int(s.status[i]))
        said = "chosen" if name == choice.name else status.name if status else ""
        rows.append((name, risk, above, "" if count is None else str(count), said))
    title = f"calibrators by their {loss} on rows they have not seen, {choice.folds} folds, +- standard errors"
    columns = ("", "out of fold", "above the best", "params", "")
    return "\n\n".join((title, table(columns, rows, left=(0, 4)), sentence(choice)))


def sentence(choice: Choice) -> str:
    """Why this one."""
    s, i, best = choice.selection, int(choice.selection.selected), _best(choice.selection)
    if i == best:
        return f"{choice.name}: the least loss, and nothing simpler is within one standard error of it"
    return (
        f"{choice.name}: the simplest within one standard error of the difference to {s.names[best]}, which has the "
        "least loss"
    )


def _best(selection: CalibratorSelection) -> int:
    return int(np.argmin(np.where(np.isfinite(selection.risk), selection.risk, np.inf)))
