"""What became of a fit or a solve: one small integer a lane, and the sentence that goes with it."""

from enum import IntEnum

import numpy as np


class Status(IntEnum):
    """Outcome of a fit, a solve or a decomposition, one value a lane (an element of the batch shape).

    0 is an optimum. 1 to 3 are answers, too: where there is no optimum within the bounds, and what calibrators and
    `theory` return is usable; a `CalibrationLine`, whose numbers have no bounds, has none and is NaN. 4 to 6 are
    failures whose numbers are NaN or unfinished.

    Examples:
        >>> int(Status.AT_UPPER_BOUND), Status(0).name
        (2, 'CONVERGED')
    """

    CONVERGED = 0
    AT_LOWER_BOUND = 1
    AT_UPPER_BOUND = 2
    NOT_IDENTIFIED = 3
    NOT_CONVERGED = 4
    INVALID_INPUT = 5
    IMPOSSIBLE_EVENT = 6

    @property
    def message(self) -> str:
        """A sentence for a person."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "converged to the optimum",
    Status.AT_LOWER_BOUND: "the optimum is the lower bound of the parameter (logits that carry no usable information)",
    Status.AT_UPPER_BOUND: "the optimum is the upper bound of the parameter (every label is an arg max of its row)",
    Status.NOT_IDENTIFIED: "every value of the parameter gives the same loss",
    Status.NOT_CONVERGED: "the step limit was reached before the optimum",
    Status.INVALID_INPUT: "the input holds invalid values (NaN, +inf, bad weights, labels or parameters out of range)",
    Status.IMPOSSIBLE_EVENT: "a label has probability zero, so that the loss is infinite for every parameter",
}


def check_status(status) -> None:
    """Raise `ValueError` with a written message if any lane of a concrete `status` failed (4 to 6)."""
    values = np.asarray(status)
    failed = values >= Status.NOT_CONVERGED
    if not failed.any():
        return
    first = tuple(int(i) for i in np.argwhere(failed)[0])
    where = f" in lane {first}" if first else ""
    raise ValueError(f"{Status(int(values[first])).name}{where}: {Status(int(values[first])).message}")
