"""From what a classifier returns to logits, and from logits to a fit and its forecasts.

The work is done in float64, as it is in scikit-learn, whatever `jax_enable_x64` says. Rows are filled up to one of a
few sizes by rows of weight 0, so that the folds of a cross-validation share their compiled programs.
"""

from collections.abc import Callable

import jax
import numpy as np

from jaxcal.inputs import binary_logits, logits_from_probs

RESPONSES = ("decision_function", "predict_proba", "predict_log_proba")

# Up to this many rows a pass costs nothing beside the call of a compiled program.
_LEAST_ROWS = 512


def response_of(estimator, response_method: str) -> str:
    """The name of the method to call; scikit-learn's order for "auto". Without an estimator: what the scores are."""
    if response_method == "auto":
        if estimator is None:
            return "decision_function"
        response_method = next((name for name in RESPONSES if hasattr(estimator, name)), None)
        if response_method is None:
            raise TypeError(f"{type(estimator).__name__} has none of {', '.join(RESPONSES)}, so there are no scores")
    if response_method not in RESPONSES:
        raise ValueError(f"response_method must be 'auto' or one of {RESPONSES}, got {response_method!r}")
    return response_method


def class_logits(values, response: str, num_classes: int, floor: float | None = None) -> np.ndarray:
    """Logits `(n, k)` of decision values, probabilities or their logs; one column stands for the second class of two.

    Args:
        values: `(n,)`, `(n, 1)` or `(n, k)`.
        response: one of `RESPONSES`, which says what the values are.
        num_classes: k.
        floor: probabilities below it are raised to it (`jaxcal.logits_from_probs`).
    """
    values = np.asarray(values, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    columns = values.shape[1]
    if columns != num_classes and not (columns == 1 and num_classes == 2):
        needed = "1 or 2 columns" if num_classes == 2 else f"{num_classes} columns"
        raise ValueError(f"{num_classes} classes need scores of {needed}, got {response} of shape {values.shape}")
    n = len(values)
    with jax.enable_x64(True):
        if response == "predict_proba":
            values = np.hstack([1 - values, values]) if columns == 1 else values
            return np.asarray(logits_from_probs(_filled(values, 1 / num_classes), floor=floor))[:n]
        if columns == 1 and response == "predict_log_proba":
            log_p = values[:, 0]
            with np.errstate(divide="ignore"):
                return np.stack([np.log(-np.expm1(log_p)), log_p], axis=1)
        return np.asarray(binary_logits(_filled(values[:, 0], 0)))[:n] if columns == 1 else values


def fit_logits(calibrator: Callable, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray):
    """The fit, with leaves that are NumPy arrays: JAX would round those of float64 where the caller's x64 is off."""
    rows = _filled(logits, 0), _filled(labels.astype(np.int32), 0)
    with jax.enable_x64(True):
        try:
            fit = calibrator(*rows, weights=_filled(weights, 0))
            if hasattr(fit, "check"):
                fit.check()
        except ValueError as error:
            own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
            if not (np.isneginf(own) & (weights > 0)).any():
                raise
            raise ValueError(f"{error}. For an estimator that gives probability 0: floor=1e-6, say") from error
    return jax.tree.map(np.asarray, fit)


def log_forecasts(fit, logits: np.ndarray) -> np.ndarray:
    """Calibrated log-probabilities `(n, k)`; the fit normalizes them, to the rounding of float64."""
    with jax.enable_x64(True):
        return np.asarray(fit(_filled(logits, 0)))[: len(logits)]


def _filled(rows: np.ndarray, value) -> np.ndarray:
    """Rows and as many of `value` as make their number a multiple of its third leading binary digit: a quarter more at
    most."""
    n = len(rows)
    step = 1 << max(n.bit_length() - 3, 0)
    extra = max(-(-n // step) * step, _LEAST_ROWS) - n
    return np.concatenate([rows, np.full((extra, *rows.shape[1:]), value, rows.dtype)]) if extra else rows
