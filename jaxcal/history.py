"""The record of a training: what every epoch's validation logits say, in memory and in a file that outlives it."""

import hashlib
import json
import math
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.decomposition import Decomposition, decompose
from jaxcal.early_stopping import select_epoch
from jaxcal.losses import ProperLoss, log_loss
from jaxcal.metrics import accuracy
from jaxcal.top_logits import TopLogits, thin

# What stands in the file for numbers that JSON does not have.
_WORDS = {None: math.nan, "inf": math.inf, "-inf": -math.inf}

_HALF_MAX = float(np.finfo(np.float16).max)

FIELDS = ("risk", "calibration", "refinement", "temperature", "accuracy")


class History:
    """Risk, calibration, refinement, temperature and accuracy of every epoch, and its logits as long as they fit.

    Args:
        labels: integers `(n,)` of the validation rows; weights: counts `(n,)`.
        path: JSON-lines file that gets a line with every `record`, on disk before it returns: a killed process loses
            nothing. An existing file of the same rows is continued; a file of others raises `ValueError`. One process
            writes at a time: where another has written since, `record` raises `RuntimeError`.
        budget: bytes for logits. They are kept in float32, then, lest they exceed it, in float16 (as gaps to the
            largest of a row, with errors of 5e-4 of a gap and 5e-8 of m, the median gap to the second largest, or
            5e-5 m for gaps above 4e4 m to fit; above 4e7 m they are cut), then dropped with a warning; the numbers of
            each epoch stay. 0 keeps none.
        top: keep of each row, in float32, the `top` largest logits with their classes, the label's, and a summary of
            the others: 8 top + 20 bytes a row instead of 4 k, for thousands of classes. The numbers of each epoch are
            of all logits, whatever is kept.
        loss, calibrator: of `jaxcal.decompose`. A file knows them by their names alone.

    Attributes:
        steps: list of the steps recorded.
        kept: "float32", "float16", "top" or "nothing", what there is of the logits. Those of an earlier process are
            gone: a file that is continued keeps nothing.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> labels = jax.random.randint(jax.random.key(0), (500,), 0, 3)
        >>> noise = jax.random.normal(jax.random.key(1), (2, 500, 3))  # two seeds
        >>> history = jaxcal.History(labels)
        >>> for epoch in range(5):
        ...     numbers = history.record((epoch + 1.0) * (jax.nn.one_hot(labels, 3) + noise))
        >>> sorted(numbers)[:3]
        ['accuracy/0', 'accuracy/1', 'calibration/0']
        >>> history.array("risk").shape, history.decompose(loss=jaxcal.brier_loss).refinement.shape
        ((2, 5), (2, 5))
    """

    def __init__(
        self,
        labels,
        *,
        weights=None,
        path=None,
        budget: int = 1 << 30,
        top: int | None = None,
        loss: ProperLoss = log_loss,
        calibrator: Callable | None = None,
    ):
        self._labels = np.array(labels)
        self._weights = None if weights is None else np.array(weights)
        if self._labels.ndim != 1 or not self._labels.size:
            raise ValueError(f"labels must have shape (n,) and not be empty, got {self._labels.shape}")
        if not isinstance(budget, int | float | np.integer | np.floating) or not budget >= 0:
            raise ValueError(f"budget must be a number of bytes >= 0, got {budget!r}")
        if top is not None and (not isinstance(top, int | np.integer) or isinstance(top, bool) or top < 1):
            raise ValueError(f"top must be an integer >= 1 or None, got {top!r}")
        self._top = None if top is None else int(top)
        self._budget, self._logits = budget, []
        self.kept = "nothing" if not budget else "float32" if top is None else "top"
        self._loss, self._calibrator = loss, calibrator
        self._numbers = partial(_numbers, loss, calibrator)
        self._rows: list[dict[str, Any]] = []
        self._of = {"loss": _name(loss), "calibrator": "temperature" if calibrator is None else _name(calibrator)}
        self._path = None if path is None else Path(os.path.realpath(path))
        self._classes = None
        self._size = None  # of the file as it was written last
        if self._path is not None and self._path.exists() and not self._path.is_file():
            raise ValueError(f"{path} exists and is no file")
        if self._path is not None and self._path.exists() and self._path.stat().st_size:
            header, self._rows = read_history(self._path)
            if header.get("data") != self._fingerprint():
                raise ValueError(f"{path} is the history of other validation rows; choose another path")
            found = {name: header.get(name) for name in self._of}
            if found != self._of:
                raise ValueError(f"{path} is a history of {found}, not of {self._of}; choose another path")
            self._classes = header.get("classes")
            if self._rows:
                self.kept = "nothing"
            self._rewrite()  # without what a killed process left of a line
        elif self._path is not None:
            self._rewrite()

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in self._rows]

    def record(self, logits, *, step: int | None = None, **scalars: float) -> dict[str, float]:
        """Add an epoch.

        Args:
            logits: `(..., n, k)`, the leading axes those of trainings side by side.
            step: of the epoch; default the one after the last. Records from this step on, of a run that was continued
                from an earlier checkpoint, are replaced.
            scalars: numbers of your own for the file: train_loss=..., learning_rate=...

        Returns:
            Plain floats by name, for TensorBoard, Weights & Biases and the like: "risk", "refinement", ..., "status" (a
            `jaxcal.Status`, which says why others are NaN) and your scalars; with batch axes "risk/0", "risk/1", ...
        """
        taken = {*FIELDS, "step", "time", "status", "lane"}
        reserved = sorted(name for name in scalars if name.replace("/", " ").partition(" ")[0] in taken)
        if reserved:
            raise ValueError(f"{', '.join(reserved)} is measured here; give your numbers other names")
        logits = checks.as_logits(logits)
        checks.require_rows(logits, "History.record")
        labels = checks.as_labels(self._labels, logits)
        found = {name: np.asarray(a) for name, a in self._numbers(logits, labels, self._weights).items()}
        if np.isnan(found["risk"]).all() and np.isfinite(logits).all():
            decompose(logits, labels, weights=self._weights)  # raises, and names the row
        if step is None:
            step = self.steps[-1] + 1 if self._rows else 0
        elif isinstance(step, bool) or not hasattr(step, "__index__") or jnp.ndim(step) or operator.index(step) < 0:
            raise ValueError(f"step must be an integer >= 0, got {step!r}")
        step = operator.index(step)
        shape = found["risk"].shape
        if self._rows and np.shape(self._rows[-1]["risk"]) != shape:
            raise ValueError(f"logits of batch shape {shape}, those before had {np.shape(self._rows[-1]['risk'])}")
        if self._top is not None and self._top >= logits.shape[-1]:
            raise ValueError(f"top must be less than the number of classes, {logits.shape[-1]}, got {self._top}")
        if self._classes not in (None, logits.shape[-1]):
            raise ValueError(f"logits of {logits.shape[-1]} classes, those before had {self._classes}")
        self._require_unchanged()
        again = self._classes is None or (bool(self._rows) and step <= self._rows[-1]["step"])
        self._classes = logits.shape[-1]  # in the header from now on
        row = {"step": step, "time": time.time()} | {name: a.tolist() for name, a in found.items()}
        row |= {name: float(value) for name, value in scalars.items()}
        self._keep(step, logits, labels, found["temperature"])
        self._rows = [r for r in self._rows if r["step"] < step] + [row]
        if again:
            self._rewrite()
        elif self._path is not None:
            with self._path.open("a") as file:
                self._size = _write(file, [row])
        flat = {}
        for name in (*FIELDS, "status"):
            values = found[name]
            flat |= {name + "".join(f"/{i}" for i in at): float(values[at]) for at in np.ndindex(values.shape)}
        return flat | {name: row[name] for name in scalars}

    def array(self, name: str) -> np.ndarray:
        """A number of every epoch, `(..., epochs)`: one of "risk", "calibration", "refinement", "temperature",
        "accuracy", "step", "time" or your scalars, NaN where one was not given."""
        if not self._rows:
            raise ValueError("nothing has been recorded yet")
        if not any(name in row for row in self._rows):
            raise ValueError(f"no {name!r} in this history; there are {sorted(set().union(*self._rows))}")
        return np.stack([np.asarray(row.get(name, math.nan), float) for row in self._rows], axis=-1)

    def select(self, name: str = "refinement", *, patience: int | None = None, min_delta: float = 0.0) -> np.ndarray:
        """Step that `jaxcal.select_epoch` chooses by one of the numbers, smaller is better, `(...)`; -1 where none is
        finite."""
        index = np.asarray(select_epoch(self.array(name), patience=patience, min_delta=min_delta))
        return np.where(index < 0, -1, np.asarray(self.steps)[index])

    def logits(self) -> np.ndarray:
        """Logits of all epochs, `(..., epochs, n, k)`, float32, while they are kept; from float16 those of every row
        are shifted so that the largest is 0."""
        if self.kept == "top":
            raise ValueError(f"only the {self._top} largest logits of a row are kept: history.top() has them")
        self._require_kept()
        return np.moveaxis(np.stack([z.whole() if isinstance(z, _Half) else z for _, z in self._logits]), 0, -3)

    def top(self) -> TopLogits:
        """The largest logits of every row, with `History(..., top=m)`: those of all epochs as `jaxcal.top_logits` has
        them, the epochs the last batch axis. Their log-probabilities are exact."""
        if self._top is None:
            raise ValueError("all logits are kept: history.logits() has them; top=m keeps the m largest of a row")
        self._require_kept()
        kept = [z for _, z in self._logits]
        lanes = kept[0].inverse_temperature.ndim
        return jax.tree.map(lambda *epochs: np.stack(epochs, axis=lanes), *kept)

    def decompose(self, **options) -> Decomposition:
        """All epochs decomposed at once, fields `(..., epochs)`; options are those of `jaxcal.decompose`.

        Loss, calibrator and weights are the history's own where no others are given. Other `weights` take a part of the
        rows, or draw them anew as a bootstrap does. With `top=m` they are the only option: the log loss and a
        temperature can be had, the risk exactly, T and refinement nearly so (`jaxcal.top_logits` says how nearly).

        Examples:
            >>> import jax
            >>> import jaxcal
            >>> truth = 2 * jax.random.normal(jax.random.key(0), (500, 100))
            >>> labels = jax.random.categorical(jax.random.key(1), truth)
            >>> history = jaxcal.History(labels, top=8)
            >>> for epoch in range(3):  # better from one to the next
            ...     noise = jax.random.normal(jax.random.key(2 + epoch), truth.shape)
            ...     numbers = history.record(truth + noise / (1 + epoch))
            >>> draws = jax.random.poisson(jax.random.key(5), 1.0, (200, 1, 500))
            >>> refinement = history.decompose(weights=draws).refinement  # (200, 3)
            >>> print(jax.numpy.quantile(refinement[:, 2] - refinement[:, 0], jax.numpy.array([0.025, 0.975])) < 0)
            [ True  True]
        """
        options = {"weights": self._weights, "loss": self._loss, "calibrator": self._calibrator} | options
        if self.kept != "top":
            return decompose(self.logits(), self._labels, **options)
        others = {name for name, value in options.items() if name not in ("weights", "loss") and value is not None}
        others |= {"loss"} if options["loss"] is not log_loss else set()
        if others:
            raise ValueError(
                f"{', '.join(sorted(others))}: of the {self._top} largest logits of a row only the log loss after a "
                "temperature can be had (loss=jaxcal.log_loss, calibrator=None); keep all logits for others"
            )
        return self.top().decompose(self._labels, weights=options["weights"])

    def to_pandas(self):
        """A data frame with one row an epoch and lane; lanes are columns "lane", "lane 1", ... where there are some."""
        import pandas

        records = []
        for row in self._rows:
            for at in np.ndindex(np.shape(row["risk"])):
                lanes = {"lane" if i == 0 else f"lane {i}": j for i, j in enumerate(at)}
                take = {name: np.asarray(v)[at] if name in FIELDS + ("status",) else v for name, v in row.items()}
                records.append({"step": row["step"]} | lanes | take)
        return pandas.DataFrame.from_records(records)

    def to_xarray(self):
        """An `xarray.Dataset` with the dimensions "lane", "lane 1", ... and "step"."""
        import xarray

        if not self._rows:
            raise ValueError("nothing has been recorded yet")
        names = [name for name in dict.fromkeys(k for row in self._rows for k in row) if name != "step"]
        arrays = {name: self.array(name) for name in names}
        lanes = ["lane" if i == 0 else f"lane {i}" for i in range(arrays["risk"].ndim - 1)]
        dims = {name: (*lanes[: a.ndim - 1], "step") for name, a in arrays.items()}
        return xarray.Dataset({name: (dims[name], a) for name, a in arrays.items()}, {"step": self.steps})

    def _require_kept(self):
        if self.kept == "nothing" or not self._logits:
            raise ValueError("logits are not kept: the budget was too small, or the file is of an earlier process")

    def _require_unchanged(self):
        if self._path is None:
            return
        size = self._path.stat().st_size if self._path.exists() else None
        if size != self._size:
            raise RuntimeError(f"{self._path} was changed by another process; a history is written by one at a time")

    def _keep(self, step, logits, labels, temperature):
        self._logits = [(s, z) for s, z in self._logits if s < step]
        if self.kept == "nothing":
            return
        if self.kept == "top":
            logits = thin(self._top, logits, labels, 1 / temperature)
            logits = jax.tree.map(lambda a: np.asarray(a, np.int32 if a.dtype.kind == "i" else np.float32), logits)
        else:
            logits = np.array(logits, np.float32)  # a copy: the caller may use its memory again
        size = sum(_bytes(z) for _, z in self._logits)
        if self.kept == "float32" and size + logits.nbytes > self._budget:
            self._logits, self.kept = [(s, _Half.of(z)) for s, z in self._logits], "float16"
            size = sum(_bytes(z) for _, z in self._logits)
        logits = _Half.of(logits) if self.kept == "float16" else logits
        if size + _bytes(logits) > self._budget:
            self._logits, self.kept = [], "nothing"
            warnings.warn(f"logits exceed the budget of {self._budget} bytes and are kept no longer", stacklevel=3)
            return
        self._logits.append((step, logits))

    def _fingerprint(self) -> str:
        parts = [self._labels.astype(np.int64)] + ([] if self._weights is None else [self._weights.astype(float)])
        return hashlib.sha256(b"".join(a.tobytes() for a in parts)).hexdigest()[:16]

    def _rewrite(self):
        if self._path is None:
            return
        beside = self._path.with_name(self._path.name + ".new")
        with beside.open("w") as file:
            header = {"jaxcal history": 1, "rows": len(self._labels), "data": self._fingerprint()} | self._of
            header |= {} if self._classes is None else {"classes": self._classes}
            self._size = _write(file, [header, *self._rows])
        beside.replace(self._path)


def _name(function) -> str:
    function = getattr(function, "func", function)  # of a partial
    return getattr(function, "__name__", None) or getattr(function, "name", None) or type(function).__name__


def read_history(path) -> tuple[dict, list[dict]]:
    """Header and records of a file of `History`, without the last line where a killed process left a part of it."""
    header, *rows = list(_lines(Path(path))) or [{}]
    if "jaxcal history" not in header:
        raise ValueError(f"{path} is no history of jaxcal")
    last = -1
    for row in rows:
        if not {"step", *FIELDS} <= set(row) or not isinstance(row["step"], int) or row["step"] <= last:
            raise ValueError(f"{path} holds a line that is no epoch after step {last}: {str(row)[:60]}")
        last = row["step"]
    return header, rows


def _lines(path: Path) -> Iterator[dict]:
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise ValueError(f"{path} holds a line that is no JSON object: {line[:60]!r}")
            yield {name: _number(value) for name, value in found.items()}


def _number(value):
    """JSON has neither NaN nor infinities: they are null and words there."""
    if isinstance(value, list):
        return [_number(v) for v in value]
    return _WORDS.get(value, value) if value is None or isinstance(value, str) else value


def _plain(value):
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _write(file, rows) -> int:
    """Write lines to the disk; returns the size of the file."""
    file.write("".join(json.dumps({name: _plain(v) for name, v in row.items()}) + "\n" for row in rows))
    file.flush()
    os.fsync(file.fileno())
    return os.fstat(file.fileno()).st_size


def _bytes(kept) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(kept))


class _Half(NamedTuple):
    """Gaps of logits to the largest of their row, `(..., n, k)` in float16, in a unit of each lane."""

    gaps: np.ndarray
    unit: np.ndarray  # (..., 1, 1), a power of two near the median gap to the second largest, or up to 2^10 larger

    @staticmethod
    def of(logits: np.ndarray) -> "_Half":
        peak = logits.max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):
            gaps = logits - np.where(np.isfinite(peak), peak, 0)
        gaps = np.where(np.isneginf(logits), -np.inf, np.maximum(gaps, np.finfo(np.float32).min))
        nearest = np.min(-gaps, axis=-1, where=gaps < 0, initial=np.inf)
        nearest = np.where(np.isfinite(nearest), nearest, np.nan)
        told = ~np.isnan(nearest).all(-1)
        median = np.ones(told.shape, np.float32)
        median[told] = np.nanmedian(nearest[told], axis=-1)
        largest = -np.min(gaps, axis=(-2, -1), where=np.isfinite(gaps), initial=0)
        power = np.round(np.log2(median))
        wider = np.ceil(np.log2(np.maximum(largest, np.finfo(np.float32).tiny) / _HALF_MAX))
        unit = np.exp2(np.clip(wider, power, np.minimum(power + 10, 110))).astype(np.float32)[..., None, None]
        half = np.maximum(gaps / unit, -_HALF_MAX)  # a finite gap is no mask
        return _Half(np.where(np.isneginf(gaps), -np.inf, half).astype(np.float16), unit)

    def whole(self) -> np.ndarray:
        return self.gaps.astype(np.float32) * self.unit


@partial(jax.jit, static_argnums=(0, 1))
def _numbers(loss, calibrator, logits, labels, weights):
    parts = decompose(logits, labels, loss=loss, calibrator=calibrator, weights=weights)
    shape = parts.risk.shape
    temperature = getattr(parts.fit, "temperature", jnp.nan)
    hits = accuracy(logits, labels, weights=weights)
    return {
        "risk": parts.risk,
        "calibration": parts.calibration,
        "refinement": parts.refinement,
        "temperature": jnp.broadcast_to(temperature, shape),
        "accuracy": jnp.broadcast_to(hits, shape),
        "status": parts.status,
    }
