"""Boosting round by round, against the packages' own predictions from the first trees."""

import jax
import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import AdaBoostClassifier, GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.model_selection import GridSearchCV

import jaxcal
from jaxcal import boosting

ROUNDS = 12
NAMES = np.array(["ant", "bee", "cat"])


def _data(k, n=400):
    X, y = make_classification(n, 10, n_informative=5, n_classes=k, flip_y=0.2, random_state=0)
    return X[: n // 2], y[: n // 2], X[n // 2 :], y[n // 2 :]


def _xgboost(k):
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    X, y, *_ = _data(k)
    model = xgboost.XGBClassifier(n_estimators=ROUNDS, base_score=0.3 if k == 2 else None, n_jobs=1).fit(X, y)
    return model, lambda X, i: model.predict(X, output_margin=True, iteration_range=(0, i))


def _lightgbm(k):
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    X, y, *_ = _data(k)
    model = lightgbm.LGBMClassifier(n_estimators=ROUNDS, n_jobs=1, verbose=-1).fit(X, y)
    return model, lambda X, i: model.predict(X, raw_score=True, num_iteration=i)


def _histogram(k):
    X, y, *_ = _data(k)
    model = HistGradientBoostingClassifier(max_iter=ROUNDS, early_stopping=False).fit(X, NAMES[y])
    return model, lambda X, i: list(model.staged_decision_function(X))[i - 1]


def _gradient(k):
    X, y, *_ = _data(k)
    model = GradientBoostingClassifier(n_estimators=ROUNDS).fit(X, NAMES[y])
    return model, lambda X, i: list(model.staged_decision_function(X))[i - 1]


@pytest.mark.once
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("train", [_xgboost, _lightgbm, _histogram, _gradient])
def test_every_round_is_the_package_s_own_prefix(train, k):
    model, prefix = train(k)
    _, _, X, y = _data(k)
    stages = np.stack(list(boosting.staged_logits(model, X)))
    assert stages.shape == (ROUNDS, len(X), k) and stages.dtype == np.float32
    for i in (1, 2, ROUNDS):
        margin = np.asarray(prefix(X, i))
        expected = np.stack([0 * margin.ravel(), margin.ravel()], axis=-1) if k == 2 else margin
        np.testing.assert_allclose(stages[i - 1], expected, rtol=1e-5, atol=1e-5)

    labels = y if model.classes_.dtype.kind == "i" else NAMES[y]
    expected = jaxcal.decompose(stages, y)
    found = boosting.decompose_rounds(model, X, labels)
    np.testing.assert_allclose(found.refinement, expected.refinement, rtol=1e-6)
    np.testing.assert_allclose(found.fit.temperature, expected.fit.temperature, rtol=1e-5)
    np.testing.assert_allclose(boosting.refinement_curve(model, X, labels), expected.refinement, rtol=1e-6)


@pytest.mark.once
def test_blocks_of_rounds_weights_and_folds(monkeypatch):
    model, _ = _gradient(3)
    _, _, X, y = _data(3)
    weights = np.arange(len(y)) % 3
    key = jax.random.key(0)
    stages = np.stack(list(boosting.staged_logits(model, X)))
    expected = jaxcal.decompose(stages, y, weights=weights, folds=4, key=key)
    monkeypatch.setattr(boosting, "_BLOCK", 5 * stages[0].size)  # 5 + 5 + 2
    found = boosting.decompose_rounds(model, X, NAMES[y], weights=weights, folds=4, key=key)
    for field in ("risk", "refinement", "uncertainty", "status"):
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=1e-6)


def test_metric_of_probabilities():
    _, _, X, y = _data(3)
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), len(y)).astype(np.float32)
    weights = np.arange(len(y)) % 3
    expected = jaxcal.decompose(np.log(p), y, weights=weights).refinement
    np.testing.assert_allclose(
        boosting.refinement_metric(y.astype(float), p, sample_weight=weights), expected, rtol=1e-5
    )
    two = (y > 0).astype(float)
    logits = np.log(np.stack([p[:, 0], 1 - p[:, 0]], axis=-1))
    expected = jaxcal.decompose(logits, two.astype(int)).refinement
    np.testing.assert_allclose(boosting.refinement_metric(two, 1 - p[:, 0]), expected, rtol=1e-5)
    name, value, larger = boosting.lightgbm_metric(y, p)
    assert name == "refinement" and not larger
    np.testing.assert_allclose(value, jaxcal.decompose(np.log(p), y).refinement, rtol=1e-5)
    certain = np.eye(3, dtype=np.float32)[y]
    certain[0] = np.roll(certain[0], 1)  # a certain forecast that failed costs much, but not all
    assert np.isfinite(boosting.refinement_metric(y, certain))


@pytest.mark.once
@pytest.mark.parametrize("k", [2, 3])
def test_xgboost_stops_on_it(k):
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    X, y, X_val, y_val = _data(k)
    model = xgboost.XGBClassifier(
        n_estimators=80, learning_rate=0.5, eval_metric=boosting.refinement_metric, early_stopping_rounds=10, n_jobs=1
    ).fit(X, y, eval_set=[(X_val, y_val)], verbose=False)
    curve = boosting.refinement_curve(model, X_val, y_val)
    recorded = model.evals_result()["validation_0"]["refinement_metric"]
    np.testing.assert_allclose(recorded, curve, rtol=1e-4)
    assert model.best_iteration == np.argmin(recorded) and len(curve) == model.best_iteration + 11


@pytest.mark.once
@pytest.mark.parametrize("weighted", [False, True])
def test_custom_metric_of_xgboost_train(weighted):
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    X, y, X_val, y_val = _data(3)
    weights = np.arange(len(y)) % 3 if weighted else None
    validation = xgboost.DMatrix(X_val, y_val, weight=weights)
    recorded = {}
    booster = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "nthread": 1, "disable_default_eval_metric": True},
        xgboost.DMatrix(X, y),
        5,
        evals=[(validation, "val")],
        custom_metric=lambda p, d: ("refinement", boosting.refinement_metric(d.get_label(), p, d.get_weight())),
        evals_result=recorded,
        verbose_eval=False,
    )
    curve = boosting.refinement_curve(booster, validation, y_val, weights=weights)
    np.testing.assert_allclose(recorded["val"]["refinement"], curve, rtol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize("k", [2, 3])
def test_lightgbm_stops_on_it(k):
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    X, y, X_val, y_val = _data(k)
    model = lightgbm.LGBMClassifier(n_estimators=80, learning_rate=0.5, metric="none", n_jobs=1, verbose=-1)
    stop = lightgbm.early_stopping(10, verbose=False)
    model.fit(X, y, eval_X=X_val, eval_y=y_val, eval_metric=boosting.lightgbm_metric, callbacks=[stop])
    recorded = model.evals_result_["valid_0"]["refinement"]
    assert model.best_iteration_ == np.argmin(recorded) + 1
    np.testing.assert_allclose(
        recorded[: model.best_iteration_], boosting.refinement_curve(model, X_val, y_val), rtol=1e-4
    )


@pytest.mark.once
def test_scikit_learn_stops_and_searches_on_it():
    X, y, X_val, y_val = _data(3)
    model = HistGradientBoostingClassifier(
        max_iter=60,
        learning_rate=0.5,
        early_stopping=True,
        scoring=boosting.refinement_scorer,
        n_iter_no_change=5,
        random_state=0,
    )
    model.fit(X, NAMES[y])
    assert model.n_iter_ < 60 and len(model.validation_score_) == model.n_iter_ + 1
    search = GridSearchCV(
        GradientBoostingClassifier(n_estimators=5), {"max_depth": [1, 3]}, scoring=boosting.refinement_scorer, cv=2
    )
    search.fit(X, NAMES[y])
    expected = -jaxcal.decompose(np.log(search.predict_proba(X_val)), y_val).refinement
    np.testing.assert_allclose(boosting.refinement_scorer(search, X_val, NAMES[y_val]), expected, rtol=1e-5)


@pytest.mark.once
def test_what_has_no_rounds_is_refused():
    X, y, *_ = _data(2)
    with pytest.raises(TypeError, match="model must be a fitted classifier of XGBoost"):
        list(boosting.staged_logits(AdaBoostClassifier(n_estimators=2).fit(X, y), X))
    model, _ = _gradient(3)
    with pytest.raises(ValueError, match="y holds 'dog', which is none of the classes"):
        boosting.refinement_curve(model, X, np.full(len(X), "dog"))
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    with pytest.raises(ValueError, match="margins of the objective 'reg:squarederror' are no logits"):
        list(boosting.staged_logits(xgboost.XGBRegressor(n_estimators=2, n_jobs=1).fit(X, y), X))
    dart = xgboost.XGBClassifier(n_estimators=2, booster="dart", n_jobs=1).fit(X, y)
    with pytest.raises(ValueError, match="rounds of a booster 'dart'"):
        list(boosting.staged_logits(dart, X))
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    forest = lightgbm.LGBMClassifier(
        n_estimators=2, boosting_type="rf", subsample=0.5, subsample_freq=1, verbose=-1, n_jobs=1
    ).fit(X, y)
    with pytest.raises(ValueError, match="rounds of random forests and DART"):
        list(boosting.staged_logits(forest, X))
    for objective in ("regression", "multiclassova"):
        options = {"objective": objective, "num_class": 2} if objective == "multiclassova" else {"objective": objective}
        model = lightgbm.train(options | {"verbosity": -1, "num_threads": 1}, lightgbm.Dataset(X, y), 2)
        with pytest.raises(ValueError, match=f"margins of the objective '{objective}' are no logits"):
            list(boosting.staged_logits(model, X))
    dart = lightgbm.LGBMClassifier(n_estimators=2, boosting_type="dart", verbose=-1, n_jobs=1).fit(X, y)
    with pytest.raises(ValueError, match="rounds of random forests and DART"):
        list(boosting.staged_logits(dart, X))

    def squares(y_true, y_pred):
        return y_pred - y_true, np.ones_like(y_true, float)

    for model in (
        lightgbm.LGBMClassifier(n_estimators=2, objective=squares, verbose=-1, n_jobs=1),
        xgboost.XGBClassifier(n_estimators=2, objective=squares, n_jobs=1),
    ):
        with pytest.raises(ValueError, match="margins of the objective 'custom' are no logits"):
            list(boosting.staged_logits(model.fit(X, y), X))
    several = xgboost.XGBClassifier(n_estimators=2, n_jobs=1).fit(X, np.stack([y, 1 - y, y], axis=-1))
    with pytest.raises(ValueError, match="the model has 3 labels a row"):
        list(boosting.staged_logits(several, X))
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(X, y), 2)
    with pytest.raises(ValueError, match="y must hold the numbers of the classes, got 0.7"):
        boosting.decompose_rounds(booster, X, np.full(len(X), 0.7))
    exponential = GradientBoostingClassifier(n_estimators=2, loss="exponential").fit(X, y)
    with pytest.raises(ValueError, match="margins of the objective 'exponential' are no logits"):
        list(boosting.staged_logits(exponential, X))


@pytest.mark.once
@pytest.mark.parametrize("train", [_xgboost, _lightgbm, _histogram, _gradient])
def test_columns_that_are_not_there_are_no_missing_values(train):
    model, _ = train(3)
    _, _, X, y = _data(3)
    for columns in (X[:, :3], np.c_[X, X]):
        with pytest.raises(Exception, match=r"X has \d+|number of features"):  # LightGBM has an error of its own
            boosting.decompose_rounds(model, columns, model.classes_[y])


def test_what_is_no_probability_is_refused():
    y, p = np.arange(30) % 2, np.linspace(0.01, 0.99, 30)
    both = np.stack([1 - p, p], axis=-1)
    for bad in (10 * p - 5, 2 * p, -p, np.where(p > 0.5, np.inf, p), 0 * both, 1.1 * both, both - 1, np.log(both)):
        with pytest.raises(ValueError, match="y_pred must be probabilities"):
            boosting.refinement_metric(y, bad)
    with pytest.raises(ValueError, match=r"y_pred must be probabilities \(n, k\)"):
        boosting.refinement_metric(y, both[None])
    for labels in (y + 2**32, y - 1, y * 9, np.uint64(2**63) + y.astype(np.uint64)):
        with pytest.raises(ValueError, match=r"y_true holds -?\d+, y_pred \(30,\) the probabilities of 2 classes"):
            boosting.refinement_metric(labels, p)
    for labels in (0.1 + 0.8 * y, np.where(y == 1, np.nan, y)):
        with pytest.raises(ValueError, match="y must hold the numbers of the classes"):
            boosting.refinement_metric(labels, p)
    assert np.isnan(boosting.refinement_metric(y, np.where(p > 0.5, np.nan, p)))
    half = both.astype(np.float16)
    np.testing.assert_allclose(boosting.refinement_metric(y, half), boosting.refinement_metric(y, both), rtol=1e-3)
    weights = np.arange(30) % 3
    absent = np.where(weights == 0, 7, y)
    assert boosting.refinement_metric(absent, p, weights) == boosting.refinement_metric(y, p, weights)


@pytest.mark.once
def test_training_does_not_go_on_without_probabilities():
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    options = {"n_estimators": 5, "n_jobs": 1, "early_stopping_rounds": 2, "eval_metric": boosting.refinement_metric}

    def logistic(y_true, margin):
        p = 1 / (1 + np.exp(-margin))
        return p - y_true, p * (1 - p)

    for k, objective, message in (
        (2, "binary:logitraw", "y_pred must be probabilities"),
        (2, logistic, "y_pred must be probabilities"),
        (3, "multi:softmax", 'y_pred must be probabilities.* take "multi:softprob"'),
    ):
        X, y, X_val, y_val = _data(k)
        model = xgboost.XGBClassifier(objective=objective, learning_rate=3.0, **options)
        with pytest.raises(ValueError, match=message):
            model.fit(X, y, eval_set=[(X_val, y_val)], verbose=False)


@pytest.mark.once
def test_scorer_takes_weights():
    X, y, X_val, y_val = _data(3)
    weights = np.arange(len(y)) % 3
    model = HistGradientBoostingClassifier(max_iter=5, early_stopping=True, scoring=boosting.refinement_scorer)
    model.fit(X, NAMES[y], sample_weight=1.0 + weights)
    expected = -jaxcal.decompose(np.log(model.predict_proba(X_val)), y_val, weights=weights).refinement
    found = boosting.refinement_scorer(model, X_val, NAMES[y_val], sample_weight=weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.once
def test_labels_and_rows_that_are_none():
    model, _ = _gradient(3)
    _, _, X, y = _data(3)
    for other in (None, np.nan):
        labels = NAMES[y].astype(object)
        labels[4] = other
        with pytest.raises(ValueError, match=f"y holds {other}, which is none of the classes"):
            boosting.refinement_curve(model, X, labels)
    for options, name in (
        ({"y": np.stack([NAMES[y]] * 2)}, "y"),
        ({"y": NAMES[y], "weights": np.ones((2, len(y)))}, "w"),
    ):
        with pytest.raises(ValueError, match=name + r".* must have shape \(n,\), got \(2, 200\)"):
            boosting.refinement_curve(model, X, **options)
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    two, _ = _xgboost(2)
    _, _, X, y = _data(2)
    with pytest.raises(ValueError, match="X has no rows"):
        boosting.refinement_curve(two, X[:0], y[:0])
    with pytest.raises(ValueError, match="X has 7 columns, the model was trained on 10"):
        boosting.refinement_curve(two, xgboost.DMatrix(X[:, :7]), y)
    with pytest.raises(ValueError, match="labels must be integers in"):
        boosting.refinement_curve(two.get_booster(), X, y + 2**32)


@pytest.mark.once
def test_lightgbm_refuses_columns_in_another_order():
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    X, y, *_ = _data(2)
    frame = pandas.DataFrame(X, columns=list("abcdefghij"))
    model = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1, n_jobs=1).fit(frame, y)
    assert boosting.refinement_curve(model, frame, y).shape == (2,)
    with pytest.raises(lightgbm.basic.LightGBMError, match="Expected 'a' at position 0"):
        boosting.refinement_curve(model, frame[list("jihgfedcba")], y)
    with pytest.raises(ValueError, match="fit"):
        boosting.refinement_curve(lightgbm.LGBMClassifier(), X, y)


@pytest.mark.once
def test_lightgbm_with_a_steeper_sigmoid():
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    X, y, X_val, y_val = _data(2)
    model = lightgbm.LGBMClassifier(n_estimators=3, sigmoid=2.0, verbose=-1, n_jobs=1).fit(X, y)
    own = -np.log(model.predict_proba(X_val)[np.arange(len(y_val)), y_val]).mean()
    np.testing.assert_allclose(boosting.decompose_rounds(model, X_val, y_val).risk[-1], own, rtol=1e-5)


@pytest.mark.once
def test_absent_rows_may_have_any_label():
    model, _ = _gradient(3)
    _, _, X, y = _data(3)
    weights = np.arange(len(y)) % 3
    expected = boosting.refinement_curve(model, X, NAMES[y], weights=weights)
    for other in ("dog", None, np.nan):
        labels = np.where(weights == 0, np.array(other, object), NAMES[y].astype(object))
        np.testing.assert_array_equal(boosting.refinement_curve(model, X, labels, weights=weights), expected)
