"""What each criterion chooses on validation rows, an epoch and a configuration, and what it is worth on test rows."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal

# Logits that are decomposed at once: 16 MB in float32.
_BLOCK = 1 << 22

# Rows are filled up to a multiple of this with rows of weight 0: few shapes, so that little is compiled.
_ROWS = 500

FOLDS = "refinement, 5 folds"
LOSSES = ("log loss", "refinement", FOLDS)  # what is also asked of few validation rows
CRITERIA = (*LOSSES, "Brier", "Brier refinement", "error", "1 - AUROC")


@jax.jit
def _in_sample(logits, labels, weights):
    parts = jaxcal.decompose(logits, labels, weights=weights)
    brier = partial(jaxcal.risk, labels=labels, loss=jaxcal.brier_loss, weights=weights)
    return {
        "log loss": parts.risk,
        "refinement": parts.refinement,
        "Brier": brier(logits),
        "Brier refinement": brier(parts.fit(logits)),  # with the temperature of the log loss, as in the paper
        "error": 1 - jaxcal.accuracy(logits, labels, weights=weights),
    }


@jax.jit
def _out_of_fold(logits, labels, weights):
    return jaxcal.decompose(logits, labels, weights=weights, folds=5, key=jax.random.key(0)).refinement


@jax.jit
def _one_minus_auroc(logits, labels, weights):
    scores = jax.nn.log_softmax(logits)
    if logits.shape[-1] == 2:
        return 1 - jaxcal.auroc(scores[..., 1], labels, weights=weights)
    scores = jnp.moveaxis(scores, -1, 0)
    of_class = jax.lax.map(lambda c: 1 - jaxcal.auroc(scores[c], labels == c, weights=weights), jnp.arange(len(scores)))
    return jnp.nanmean(of_class, axis=0)  # a class may be missing


def _fill(rows: np.ndarray, size: int) -> np.ndarray:
    """`(..., n, k)` or `(n,)` with zeros up to `size` rows."""
    axis = max(0, rows.ndim - 2)
    return np.pad(rows, [(0, size - rows.shape[axis] if i == axis else 0) for i in range(rows.ndim)])


def curves(logits: np.ndarray, labels: np.ndarray, criteria=CRITERIA) -> dict[str, np.ndarray]:
    """Every criterion, smaller is better, of logits `(..., n, k)`: `(...)`."""
    n, k = logits.shape[-2:]
    rows = -(-n // _ROWS) * _ROWS
    weights = _fill(np.ones(n, np.float32), rows)
    labels = _fill(labels, rows)
    lanes = logits.reshape(-1, n, k)
    size = min(len(lanes), max(1, _BLOCK // (rows * k)))
    found = {name: [] for name in criteria}
    for start in range(0, len(lanes), size):
        block = _fill(lanes[start : start + size], rows)
        full = np.concatenate([block, block[:1].repeat(size - len(block), axis=0)])  # one shape for all blocks
        for name, values in _criteria(full, labels, weights, criteria).items():
            found[name].append(np.asarray(values)[: len(block)])
    return {name: np.concatenate(blocks).reshape(logits.shape[:-2]) for name, blocks in found.items()}


def _criteria(logits, labels, weights, criteria) -> dict[str, jax.Array]:
    data = (jnp.asarray(logits), labels, weights)
    values = _in_sample(*data)
    others = {FOLDS: _out_of_fold, "1 - AUROC": _one_minus_auroc}
    values |= {name: of(*data) for name, of in others.items() if name in criteria}
    return {name: values[name] for name in criteria}


def choose(curve: np.ndarray) -> tuple[int, int]:
    """Configuration and epoch of the smallest value; the earliest epoch of the first configuration on ties."""
    epochs = np.asarray(jaxcal.select_epoch(curve))
    best = np.where(epochs >= 0, np.take_along_axis(curve, epochs[:, None], axis=1)[:, 0], np.inf)
    return int(best.argmin()), int(epochs[best.argmin()])


def scores(validation: np.ndarray, validation_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> dict:
    """A chosen model on test rows: as it is, and with a temperature from the validation rows, whose log loss is said
    with and without Laplace smoothing. Logits `(..., n, k)`; values `(...)`."""
    arrays = []
    for logits, labels in ((validation, validation_labels), (test, test_labels)):
        n = labels.shape[-1]
        rows = -(-n // _ROWS) * _ROWS
        arrays += [_fill(logits, rows), _fill(labels, rows), _fill(np.ones(n, np.float32), rows)]
    return {name: np.asarray(value) for name, value in _scores(*arrays).items()}


@jax.jit
def _scores(validation, validation_labels, validation_weights, test, labels, weights):
    fit = jaxcal.fit_temperature(validation, validation_labels, weights=validation_weights)
    smoothed = jaxcal.laplace(jaxcal.fit_temperature)(validation, validation_labels, weights=validation_weights)
    scaled = fit(test)
    confidence, correct = jaxcal.top_label(scaled, labels)
    return {
        "T": fit.temperature,
        "log loss as it is": jaxcal.risk(test, labels, weights=weights),
        "log loss": jaxcal.risk(smoothed(test), labels, weights=weights),
        "log loss unsmoothed": jaxcal.risk(scaled, labels, weights=weights),
        "Brier as it is": jaxcal.risk(test, labels, loss=jaxcal.brier_loss, weights=weights),
        "Brier": jaxcal.risk(scaled, labels, loss=jaxcal.brier_loss, weights=weights),
        "error": 1 - jaxcal.accuracy(test, labels, weights=weights),
        "1 - AUROC": _one_minus_auroc(scaled, labels, weights),
        "ECE": jaxcal.ece(confidence, correct, weights=weights),
        "smECE": jaxcal.smooth_ece(confidence, correct, weights=weights),
    }


def compare(
    validation: np.ndarray,
    validation_labels: np.ndarray,
    test: Callable[[int, int], np.ndarray],
    test_labels: np.ndarray,
    sizes: list[int],
) -> list[dict]:
    """A row for each number of validation rows, criterion, and for the first configuration ("default") or all of
    them ("tuned").

    Args:
        validation: logits `(configurations, epochs, n, k)`; the first configuration is the default one, and is not
            among those that are searched.
        test: logits of the test rows by configuration and epoch.
        sizes: validation rows used, the first of each; the largest is asked for every criterion.
    """
    rows, seen = [], {}
    for size in sizes:
        y = validation_labels[:size]
        found = curves(validation[..., :size, :], y, CRITERIA if size == max(sizes) else LOSSES)
        for name, curve in found.items():
            for level in ("default", "tuned"):
                first = 0 if level == "default" else 1
                if len(curve) <= first:
                    continue
                configuration, epoch = choose(curve[:1] if level == "default" else curve[1:])
                at = (configuration + first, epoch)
                if (size, at) not in seen:
                    logits = test(*at)
                    values = scores(validation[at][:size], y, logits, test_labels)
                    seen[size, at] = {quantity: float(value) for quantity, value in values.items()}
                chosen = {"validation rows": size, "criterion": name, "level": level, "configuration": at[0]}
                rows.append(chosen | {"epoch": epoch, "value": float(curve[at[0], epoch])} | seen[size, at])
    return rows
