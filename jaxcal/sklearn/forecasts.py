"""What the estimators share: labels and weights as they come in, and the forecasts that follow from their logs."""

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from jaxcal.sklearn.scores import class_logits, fit_logits, log_forecasts, response_of


class ForecastMixin(ClassifierMixin):
    """`predict_proba` and `predict` of what has `predict_log_proba` and `classes_`."""

    def predict_proba(self, X) -> np.ndarray:
        """Calibrated probabilities.

        Args:
            X: rows, as in `fit`.

        Returns:
            `(n, k)` in float64, columns as `classes_`; rows sum to 1.
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X) -> np.ndarray:
        """The most probable class, `(n,)`; of several the first."""
        p = self.predict_proba(X)
        return self.classes_[np.argmax(p, axis=1)]


def read_labels(y) -> np.ndarray:
    """Class labels `(n,)` of any type."""
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    return y


def read_weights(sample_weight, n: int) -> np.ndarray:
    """Weights `(n,)` in float64, 1 if there are none."""
    if sample_weight is None:
        return np.ones(n)
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.ndim != 1:
        raise ValueError(f"sample_weight must have shape (n,), got {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must be >= 0, got {weights.min()}")
    if not (weights > 0).any():
        raise ValueError("sample_weight must not be zero for all rows: every weight is zero")
    return weights


def places(values, classes) -> np.ndarray:
    """The index in `classes` of each of `values`."""
    index = {label: i for i, label in enumerate(np.asarray(classes).tolist())}
    distinct, inverse = np.unique(values, return_inverse=True)
    unknown = [label for label in distinct.tolist() if label not in index]
    if unknown:
        raise ValueError(f"y has the labels {unknown}, which are none of the classes {list(index)}")
    return np.asarray([index[label] for label in distinct.tolist()], np.int32)[inverse]


def require_two(classes, what: str = "y") -> None:
    """Raise for a single class, which leaves nothing to calibrate."""
    if len(classes) < 2:
        raise ValueError(f"calibration needs 2 classes or more, got 1 class in {what}: {list(classes)}")


def fit_to_scores(model, calibrator, X, y, sample_weight, classes=None):
    """The fit of an estimator whose X are the scores; sets `classes_` and what is known of the columns."""
    y = read_labels(y)
    X = _read_scores(model, X, reset=True)
    weights = read_weights(sample_weight, len(y))
    check_consistent_length(X, y, weights)
    model.classes_ = np.unique(y) if classes is None else np.asarray(classes)
    require_two(model.classes_)
    logits = _logits(model, X)
    return fit_logits(calibrator, logits, places(y, model.classes_), weights)


def forecast_scores(model, X) -> np.ndarray:
    """Log-probabilities of an estimator whose X are the scores."""
    check_is_fitted(model)
    return log_forecasts(model.calibrator_, _logits(model, _read_scores(model, X, reset=False)))


def _logits(model, X):
    return class_logits(X, response_of(None, model.response_method), len(model.classes_), model.floor)


def _read_scores(model, X, *, reset: bool) -> np.ndarray:
    X = np.reshape(X, (-1, 1)) if np.asarray(X).ndim == 1 else X
    X = validate_data(model, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False)
    # a class may be impossible, its logit -inf; one column has no way to say so
    assert_all_finite(np.where(np.isneginf(X), 0, X) if X.shape[1] > 1 else X, input_name="X")
    return X
