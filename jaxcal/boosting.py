"""Boosted trees round by round: logits of every prefix of an ensemble, its decomposition, and metrics to stop on."""

import json
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.decomposition import Decomposition, decompose
from jaxcal.early_stopping import refinement
from jaxcal.losses import ProperLoss, log_loss

# Numbers of the logits that are decomposed at once: 64 MB in float32.
_BLOCK = 1 << 24

# Single precision, in which boosters compute probabilities, has none between this far from 1 and 1.
_FLOOR = 2.0**-24

# What rounding in half precision leaves of a sum of probabilities.
_SLACK = 5e-3

_SCIKIT_LEARN = ("HistGradientBoostingClassifier", "GradientBoostingClassifier")

# Objectives whose margins are log-odds, up to the factor `sigmoid` of LightGBM, or logits of a softmax.
_XGBOOST = ("binary:logistic", "binary:logitraw", "reg:logistic", "multi:softprob", "multi:softmax")
_LIGHTGBM = ("binary", "cross_entropy", "multiclass")


def staged_logits(model, X) -> Iterator[np.ndarray]:
    """Logits `(n, k)`, float32, of the ensemble after each round, in the order of the rounds.

    Args:
        model: a fitted classifier of XGBoost (`XGBClassifier` or a `Booster` of trees), LightGBM (`LGBMClassifier` or
            `Booster`) or scikit-learn (`HistGradientBoostingClassifier`, `GradientBoostingClassifier`), with two
            classes or a softmax over more. DART and random forests, whose earlier trees change with later ones, and
            objectives whose margins are no log-odds (exponential loss, hinge, regression, one-vs-all) raise.
        X: features as the model takes them; for a `Booster` of XGBoost also a `DMatrix`.

    Base margins and init scores given to `fit` are no part of the model, and not of these logits: only those of a
    `DMatrix` are. A saved model of XGBoost has forgotten an objective of your own and looks like a logistic one: load
    no such model. LightGBM's early stopping drops the rounds after the best one; the curve ends there.

    Every tree is evaluated once: all rounds together cost about one prediction of the whole ensemble. Margins of two
    classes are the log-odds of the second one and become `[0, margin]`.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.ensemble import GradientBoostingClassifier
        >>> from jaxcal import boosting
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(X, y)
        >>> [logits.shape for logits in boosting.staged_logits(model, X)]
        [(150, 3), (150, 3), (150, 3), (150, 3), (150, 3)]
    """
    if np.shape(X)[:1] == (0,):
        raise ValueError("X has no rows")
    package = type(model).__module__.partition(".")[0]
    if package == "xgboost":
        margins = _xgboost_margins(model, X)
    elif package == "lightgbm":
        margins = _lightgbm_margins(model, X)
    elif package == "sklearn" and type(model).__name__ in _SCIKIT_LEARN:
        _require_objective(model.loss, ("log_loss",))
        margins = model.staged_decision_function(X)
    else:
        raise TypeError(
            f"model must be a fitted classifier of XGBoost, LightGBM or scikit-learn's gradient boosting, got {model!r}"
        )
    for margin in margins:
        margin = np.asarray(margin, np.float32)
        if margin.ndim == 1 or margin.shape[1] == 1:
            margin = margin.reshape(-1, 1) * np.array([0, 1], np.float32)
        yield margin


def decompose_rounds(
    model,
    X,
    y,
    *,
    weights=None,
    loss: ProperLoss = log_loss,
    calibrator: Callable | None = None,
    folds: int | None = None,
    key=None,
) -> Decomposition:
    """Risk, calibration and refinement of a boosted ensemble after each round; every field is `(rounds,)`.

    Args:
        model, X: as for `staged_logits`.
        y: classes `(n,)` of the rows, as the model knows them (`model.classes_`), or whole numbers in [0, k) for a bare
            `Booster`.
        weights: counts `(n,)`.
        loss, calibrator, folds, key: as for `jaxcal.decompose`.

    Returns:
        `jaxcal.Decomposition` with the rounds as its only batch axis. Keep the first
        `jaxcal.select_epoch(parts.refinement) + 1` rounds.

    Cost: about one prediction of the whole ensemble, and of the decomposition of all rounds.
    """
    for name, values in (("y", y), ("weights", weights)):
        if values is not None and np.ndim(values) != 1:
            raise ValueError(f"{name} must have shape (n,), got {np.shape(values)}")
    labels = _class_numbers(model, y, weights)
    options = {"loss": loss, "calibrator": calibrator, "weights": weights, "folds": folds, "key": key}
    block, parts = [], []

    def finish():
        if block:
            full = block + [block[-1]] * (size - len(block))  # one shape, one compilation
            found = decompose(np.stack(full), labels, **options)
            parts.append(jax.tree.map(lambda a: a[: len(block)], found))
            block.clear()

    size = 1
    for logits in staged_logits(model, X):
        size = max(1, _BLOCK // max(1, logits.size))
        block.append(logits)
        if len(block) == size:
            finish()
    if not parts:
        size = len(block)
    finish()
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


def refinement_curve(model, X, y, **options) -> jax.Array:
    """Refinement of a boosted ensemble after each round, `(rounds,)`; arguments are those of `decompose_rounds`.

    Examples:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.ensemble import HistGradientBoostingClassifier
        >>> import jaxcal
        >>> from jaxcal import boosting
        >>> X, y = make_classification(2000, 20, n_informative=3, flip_y=0.2, random_state=0)
        >>> model = HistGradientBoostingClassifier(max_iter=100, early_stopping=False, random_state=0)
        >>> model = model.fit(X[:1000], y[:1000])
        >>> parts = boosting.decompose_rounds(model, X[1000:], y[1000:])
        >>> bool(jaxcal.select_epoch(parts.risk) <= jaxcal.select_epoch(parts.refinement))
        True
    """
    return decompose_rounds(model, X, y, **options).refinement


def refinement_metric(y_true, y_pred, sample_weight=None) -> float:
    """Refinement of validation forecasts, for `XGBClassifier(eval_metric=refinement_metric, ...)`.

    Args:
        y_true: integers `(n,)` in [0, k).
        y_pred: probabilities, `(n, k)`, or `(n,)` of class 1. In single precision the largest below 1 is 1 - 2^-24:
            what is nearer to 0 or 1 is moved to that distance.
        sample_weight: counts `(n,)`.

    Returns:
        Log loss after temperature scaling, smaller is better; NaN where probabilities are NaN.

    Raises:
        ValueError: for numbers outside [0, 1] and rows whose sum is not 1, such as the margins that
            "binary:logitraw" and objectives of your own hand to a metric (map them first), and for labels that are no
            classes, such as those of "multi:softmax", whose predictions are classes: take "multi:softprob". Predicted
            classes 0 and 1 ("binary:hinge") cannot be told from certain forecasts.

    With `xgboost.train` pass
    `custom_metric=lambda p, d: ("refinement", refinement_metric(d.get_label(), p, d.get_weight()))`.
    """
    p = _probabilities(y_pred)
    # a DMatrix without weights has none, of shape (0,)
    weights = None if sample_weight is None or not np.size(sample_weight) else np.asarray(sample_weight, np.float32)
    labels = _whole(np.asarray(y_true), weights)
    bad = (labels < 0) | (labels >= p.shape[-1])
    bad &= True if weights is None else weights != 0
    if bad.any():
        raise ValueError(
            f"y_true holds {labels[bad][0]}, y_pred {np.shape(y_pred)} the probabilities of {p.shape[-1]} classes"
        )
    return float(_refinement(np.log(np.clip(p, _FLOOR, 1)).astype(np.float32), labels, weights))


def _probabilities(y_pred) -> np.ndarray:
    """Probabilities `(n, k)`, checked as far as they can be told from other numbers."""
    p = np.asarray(y_pred)
    if p.ndim not in (1, 2):
        raise ValueError(f"y_pred must be probabilities (n, k), or (n,) of class 1, got shape {p.shape}")
    bad = (p < 0) | (p > 1)
    if p.ndim == 2:
        with np.errstate(invalid="ignore"):
            bad |= np.abs(p.sum(-1, keepdims=True) - 1) > _SLACK
    if bad.any():
        raise ValueError(
            f"y_pred must be probabilities, whose rows sum to 1, got {p[np.argwhere(bad)[0][0]]}; objectives of your "
            'own and "binary:logitraw" give margins, which a sigmoid or softmax makes probabilities; "multi:softmax" '
            'gives classes: take "multi:softprob"'
        )
    return np.stack([1 - p, p], axis=-1) if p.ndim == 1 else p


def lightgbm_metric(y_true, y_pred, weight=None) -> tuple[str, float, bool]:
    """`refinement_metric` for `LGBMClassifier(metric="none").fit(..., eval_metric=lightgbm_metric)`."""
    return "refinement", refinement_metric(y_true, y_pred, weight), False


def refinement_scorer(estimator, X, y, sample_weight=None) -> float:
    """Minus the refinement of a fitted classifier's forecasts, larger is better, as scikit-learn's scorers are.

    For `HistGradientBoostingClassifier(early_stopping=True, scoring=refinement_scorer)`, `GridSearchCV(...,
    scoring=refinement_scorer)`, or as the value of an objective of Optuna (its pruning epoch by epoch: README, "In your
    training loop").

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.ensemble import GradientBoostingClassifier
        >>> from sklearn.model_selection import cross_val_score
        >>> from jaxcal import boosting
        >>> def objective(trial):  # optuna.create_study(direction="maximize").optimize(objective, n_trials=100)
        ...     model = GradientBoostingClassifier(max_depth=trial.suggest_int("max_depth", 1, 4), n_estimators=5)
        ...     X, y = load_iris(return_X_y=True)
        ...     return cross_val_score(model, X, y, cv=3, scoring=boosting.refinement_scorer).mean()
    """
    numbers = _class_numbers(estimator, y, sample_weight)
    return -refinement_metric(numbers, estimator.predict_proba(X), sample_weight)


@jax.jit
def _refinement(logits, labels, weights):
    return refinement(logits, labels, weights=weights)


def _require_objective(name: str, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        raise ValueError(f"margins of the objective {name!r} are no logits; those of {', '.join(allowed)} are")


def _class_numbers(model, y, weights=None) -> np.ndarray:
    """Numbers of the classes; rows of weight 0 are absent, whatever they hold."""
    y = np.asarray(y)
    classes = getattr(model, "classes_", None)
    if classes is None:
        return _whole(y, weights) if y.dtype.kind in "iufb" else y
    number = {value: i for i, value in enumerate(np.asarray(classes).tolist())}
    numbers = np.array([number.get(value, -1) for value in y.tolist()], np.int32)
    numbers = np.where(_absent(y, weights), 0, numbers)
    if (numbers < 0).any():
        raise ValueError(f"y holds {y[numbers < 0].tolist()[0]!r}, which is none of the classes {list(number)}")
    return numbers


def _whole(y: np.ndarray, weights) -> np.ndarray:
    """Whole numbers in int32; those outside stay outside any range of classes."""
    bad = ~_absent(y, weights) & ~(np.isfinite(y) & (y == np.round(y)))
    if bad.any():
        raise ValueError(f"y must hold the numbers of the classes, got {y[bad].tolist()[0]!r}")
    largest = np.iinfo(np.int32).max
    return np.where(_absent(y, weights), 0, np.where(y > largest, largest, np.where(y < -1, -1, y))).astype(np.int32)


def _absent(y: np.ndarray, weights) -> np.ndarray:
    return np.zeros(y.shape, bool) if np.shape(weights) != y.shape else np.asarray(weights) == 0


def _xgboost_margins(model, X):
    import xgboost

    booster = model if isinstance(model, xgboost.Booster) else model.get_booster()
    learner = json.loads(booster.save_config())["learner"]
    own = callable(getattr(model, "objective", None))  # of which the booster knows nothing
    name = "custom" if own else learner["objective"]["name"]
    _require_objective(name, _XGBOOST)
    kind = learner["gradient_booster"]["name"]
    if kind != "gbtree":
        raise ValueError(f"rounds of a booster {kind!r} are no prefixes of the ensemble; gbtree's are")
    if not isinstance(X, xgboost.DMatrix):
        options = {} if model is booster else {"missing": model.missing, "enable_categorical": model.enable_categorical}
        X = xgboost.DMatrix(X, **options)
    if X.num_col() != booster.num_features():  # XGBoost would take those that are not there for missing values
        raise ValueError(f"X has {X.num_col()} columns, the model was trained on {booster.num_features()}")

    def margin(first, last):
        return booster.predict(X, output_margin=True, iteration_range=(first, last)).astype(np.float64)

    rounds = booster.num_boosted_rounds()
    total = margin(0, 1)
    if total.ndim == 2 and total.shape[1] > 1 and not name.startswith("multi:"):
        raise ValueError(f"the model has {total.shape[1]} labels a row, each with a probability of its own: no softmax")
    yield total
    if rounds > 1:
        base = total + margin(1, 2) - margin(0, 2)  # every margin has the base score in it
    for i in range(1, rounds):
        total = total + (margin(i, i + 1) - base)
        yield total


def _lightgbm_margins(model, X):
    import lightgbm

    booster = model if isinstance(model, lightgbm.Booster) else model.booster_
    text = booster.model_to_string(num_iteration=1)
    if "average_output" in text.partition("Tree=")[0] or "[boosting: dart]" in text:
        raise ValueError("rounds of random forests and DART are no prefixes of the ensemble")
    # there is no such line for an objective of the user's own
    objective = next((line for line in text.splitlines() if line.startswith("objective=")), "objective=custom")
    name, *options = objective.removeprefix("objective=").split()
    _require_objective(name, _LIGHTGBM)
    factor = next((float(o.removeprefix("sigmoid:")) for o in options if o.startswith("sigmoid:")), 1.0)
    total = 0.0
    for i in range(booster.current_iteration()):
        options = {"start_iteration": i, "num_iteration": 1, "validate_features": True}
        total = total + factor * booster.predict(X, raw_score=True, **options)
        yield total
