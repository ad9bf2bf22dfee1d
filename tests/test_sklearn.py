"""The scikit-learn estimators: the contract of scikit-learn 1.9.1, its own calibrators, and sums written out in NumPy.

They compute in float64 whatever the run's precision is, so that nearly all of this is run once.
"""

import functools
import pickle

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn import clone, config_context
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneOut, RepeatedStratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import jaxcal
import jaxcal.sklearn as estimators
from jaxcal.sklearn import Calibrator, HistogramBinning, IsotonicCalibration, PlattScaling, TemperatureScaling
from jaxcal.sklearn.methods import METHODS, calibrator_of, loss_of

once = pytest.mark.once
NAMES = np.array(["cat", "dog", "fox"])


class DecisionValues(TransformerMixin, BaseEstimator):
    """A step of a pipeline that ends in scores."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self.model_ = LogisticRegression().fit(X, y)
        return self

    def transform(self, X):
        check_is_fitted(self)
        return self.model_.decision_function(validate_data(self, X, reset=False))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose decision values are the columns of X."""

    def __init__(self, classes=(0, 1, 2)):
        self.classes = classes

    @property
    def classes_(self):
        return np.asarray(self.classes)

    def fit(self, X, y):
        return self

    def decision_function(self, X):
        return X[:, 0] if X.shape[1] == 1 else X

    def predict(self, X):
        """Not called; scikit-learn's calibration asks for it."""

    def __sklearn_is_fitted__(self):
        return True


def draw(n, k, seed=0):
    """Logits twice too large and labels 0 to k - 1."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (n, k))
    return 2 * z, (z + rng.gumbel(size=z.shape)).argmax(1).astype(np.int32)


def best_inverse_temperature(logits, labels, weights=None):
    """By a scalar search of SciPy on the mean log loss; masked rows and weights by hand."""
    weights = np.ones(len(labels)) if weights is None else weights

    def loss(u):
        with np.errstate(invalid="ignore"):
            log_p = log_softmax(np.where(np.isneginf(logits), -np.inf, u * logits), axis=1)
        return np.sum(weights * -log_p[np.arange(len(labels)), labels]) / weights.sum()

    return minimize_scalar(loss, bounds=(1e-3, 10), method="bounded", options={"xatol": 1e-9}).x


# ---------------------------------------------------------------- the contract


def fail_by_design(estimator):
    """A pipeline fits the steps it was given, not copies of them; `Calibrator` passes everything."""
    if isinstance(estimator, Calibrator):
        return {}
    reason = "a pipeline changes its parameter `steps`"
    return {"check_estimators_overwrite_params": reason, "check_dont_overwrite_parameters": reason}


# The score calibrators stand in pipelines: the checks draw any number of features, which they would read as classes.
@once
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        Calibrator(LogisticRegression(C=1), cv=2),
        make_pipeline(DecisionValues(), TemperatureScaling()),
        make_pipeline(DecisionValues(), HistogramBinning(num_bins=5)),
    ],
    expected_failed_checks=fail_by_design,
)
def test_contract_of_scikit_learn(estimator, check):
    """Each check is a test of scikit-learn's own, with its own assertions."""
    check(estimator)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_temperature_is_that_of_scipy_in_any_precision(dtype):
    """SciPy's search finds u to 1e-8 or so, the root of the rounding of the loss."""
    z, y = draw(300, 3)
    z = z.astype(dtype)
    fit = TemperatureScaling().fit(z, y).calibrator_
    assert fit.inverse_temperature.dtype == np.float64
    np.testing.assert_allclose(fit.inverse_temperature, best_inverse_temperature(z.astype(float), y), rtol=3e-8)


@once
@pytest.mark.parametrize(("method", "rtol"), [("sigmoid", 1e-4), ("isotonic", 1e-12), ("temperature", 1e-6)])
def test_binary_methods_are_those_of_scikit_learn(method, rtol):
    """With scikit-learn's solvers: L-BFGS for the sigmoid, a scalar search for the temperature."""
    z, y = draw(300, 2)
    s = (z[:, 1] - z[:, 0])[:, None]
    base = FrozenEstimator(Given((0, 1)))
    theirs = CalibratedClassifierCV(base, method=method).fit(s, y)
    ours = Calibrator(base, method=method).fit(s, y)
    np.testing.assert_allclose(ours.predict_proba(s), theirs.predict_proba(s), rtol=rtol, atol=1e-12)
    if method == "temperature":  # their scores are (-s, s)
        beta = theirs.calibrated_classifiers_[0].calibrators[0].beta_
        np.testing.assert_allclose(ours.calibrator_.inverse_temperature, 2 * beta, rtol=rtol)


@once
def test_temperature_of_three_classes_is_that_of_scikit_learn():
    z, y = draw(300, 3)
    base = FrozenEstimator(Given())
    theirs = CalibratedClassifierCV(base, method="temperature").fit(z, y)
    ours = Calibrator(base).fit(z, y)
    np.testing.assert_allclose(ours.predict_proba(z), theirs.predict_proba(z), rtol=1e-6)


CALIBRATORS = {
    "bbq": (jaxcal.fit_bbq, estimators.BayesianBinning),
    "beta": (jaxcal.fit_beta, estimators.BetaCalibration),
    "dirichlet": (jaxcal.fit_dirichlet, estimators.DirichletCalibration),
    "ensemble_temperature": (jaxcal.fit_ensemble_temperature, estimators.EnsembleTemperatureScaling),
    "histogram": (jaxcal.fit_histogram, HistogramBinning),
    "isotonic": (jaxcal.fit_isotonic, IsotonicCalibration),
    "matrix": (jaxcal.fit_matrix_scaling, estimators.MatrixScaling),
    "platt": (jaxcal.fit_platt, PlattScaling),
    "quadratic": (jaxcal.fit_quadratic, estimators.QuadraticScaling),
    "structured_matrix": (jaxcal.fit_structured_matrix, estimators.StructuredMatrixScaling),
    "structured_vector": (jaxcal.fit_structured_vector, estimators.StructuredVectorScaling),
    "temperature": (jaxcal.fit_temperature, TemperatureScaling),
    "vector": (jaxcal.fit_vector_scaling, estimators.VectorScaling),
    "venn_abers": (jaxcal.fit_venn_abers, estimators.VennAbersCalibration),
}


@once
@pytest.mark.parametrize("method", ["histogram", "platt", "temperature"])
def test_forecasts_are_those_of_jaxcal(method):
    """512 rows are not filled up, so that the direct call shares the compiled program."""
    z, y = draw(512, 2)
    s = z[:, 1] - z[:, 0]
    model = Calibrator(FrozenEstimator(Given((0, 1))), method=method).fit(s[:, None], y)
    fit, score_class = CALIBRATORS[method]
    fit = fit if method == "temperature" else jaxcal.one_vs_rest(fit)
    with jax.enable_x64(True):
        logits = np.stack([0 * s, s], axis=1)
        expected = np.exp(np.asarray(fit(logits, y, weights=np.ones(512))(logits)))
    p = model.predict_proba(s[:, None])
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-15 * 8)
    np.testing.assert_array_equal(score_class().fit(s, y).predict_proba(s), p)


@once
def test_names_and_classes_of_the_calibrators():
    fits = {name: fit for name, (fit, _) in CALIBRATORS.items()}
    assert fits | {"sigmoid": jaxcal.fit_platt} == {name: fit for name, fit in METHODS.items() if name != "none"}
    assert all(score_class._fit_scores is fit for fit, score_class in CALIBRATORS.values())
    names = {score_class.__name__ for _, score_class in CALIBRATORS.values()}
    assert set(estimators.__all__) == names | {"Calibrator", "ScoreCalibrator"}


@once
def test_one_vs_rest_and_smoothing():
    """n/(n+1) p + 1/((n+1) k) of the same forecast; n counts no rows that fill up."""
    z, y = draw(300, 3)
    plain = Calibrator(method="histogram").fit(z, y).predict_proba(z)
    smooth = Calibrator(method="histogram", smooth=True).fit(z, y).predict_proba(z)
    np.testing.assert_allclose(smooth, plain * 300 / 301 + 1 / (301 * 3), rtol=1e-12)
    np.testing.assert_allclose(plain, HistogramBinning().fit(z, y).predict_proba(z), rtol=0)


@once
def test_none_leaves_the_forecasts():
    z, y = draw(300, 3)
    model = Calibrator(method="none").fit(z, y)
    # SciPy takes log(1 + x), off by a rounding of 1
    np.testing.assert_allclose(model.predict_log_proba(z), log_softmax(z, axis=1), rtol=1e-12, atol=4e-16)
    np.testing.assert_allclose(model.calibrator_.risk, -log_softmax(z, axis=1)[np.arange(300), y].mean(), rtol=1e-12)


@once
def test_losses_by_name_and_after_cloning():
    z, y = draw(512, 3)
    model = Calibrator(loss="brier_loss").fit(z, y)
    again = clone(Calibrator(loss=jaxcal.brier_loss)).fit(z, y)
    by_class = TemperatureScaling(loss="brier_loss").fit(z, y)
    with jax.enable_x64(True):
        expected = jaxcal.fit_temperature(z, y, weights=np.ones(512), loss=jaxcal.brier_loss)
    for fit in (model, again, by_class):
        assert fit.calibrator_.inverse_temperature == np.asarray(expected.inverse_temperature)
    assert loss_of(clone(Calibrator(loss=jaxcal.log_loss)).loss) is jaxcal.log_loss  # which has a solver of its own
    with pytest.raises(ValueError, match="option of method='temperature'"):
        calibrator_of("platt", loss="log_loss")


# ---------------------------------------------------------------- weights


@once
@pytest.mark.parametrize("method", ["temperature", "platt", "isotonic"])
def test_weights_are_repetitions(method):
    z, y = draw(300, 2)
    weights = np.random.default_rng(1).integers(0, 4, 300)
    model = Calibrator(FrozenEstimator(Given((0, 1))), method=method, smooth=True)
    weighted = clone(model).fit(z, y, sample_weight=weights)
    repeated = clone(model).fit(np.repeat(z, weights, 0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_proba(z), repeated.predict_proba(z), rtol=1e-9)


@once
def test_weights_go_to_the_classifier_that_takes_them():
    X, y = draw(200, 2)
    weights = np.random.default_rng(1).integers(1, 4, 200)
    model = Calibrator(GaussianNB(), cv=2).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(model.estimator_.theta_, GaussianNB().fit(X, y, weights).theta_)
    with pytest.warns(UserWarning, match="Given.fit takes no sample_weight"):
        Calibrator(Given((0, 1)), cv=2).fit(X[:, 1:] - X[:, :1], y, sample_weight=weights)
    # a step of a pipeline is named, and nothing is warned of
    inside = Calibrator(make_pipeline(GaussianNB()), cv=2)
    inside.fit(X, y, sample_weight=weights, gaussiannb__sample_weight=weights)
    np.testing.assert_array_equal(inside.predict_proba(X), model.predict_proba(X))


# ---------------------------------------------------------------- cross-fitting


@once
def test_one_calibrator_of_pooled_scores():
    """Every row is scored by the classifier that has not seen it; held out twice, it counts one half each time."""
    X, labels = draw(150, 3)
    y = NAMES[labels]
    cv = RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    weights = np.random.default_rng(2).uniform(0, 2, 150)
    model = Calibrator(GaussianNB(), cv=cv).fit(X, y, sample_weight=weights)
    scores, rows = [], []
    for train, test in cv.split(X, y):
        scores.append(GaussianNB().fit(X[train], y[train], weights[train]).predict_proba(X[test]))
        rows.append(test)
    rows = np.concatenate(rows)
    u = best_inverse_temperature(np.log(np.concatenate(scores)), labels[rows], weights[rows] / 2)
    np.testing.assert_allclose(model.calibrator_.inverse_temperature, u, rtol=1e-7)
    full = GaussianNB().fit(X, y, weights)
    expected = np.exp(log_softmax(u * full.predict_log_proba(X), axis=1))
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-6)
    assert model.estimator_.n_features_in_ == model.n_features_in_ == 3
    np.testing.assert_array_equal(model.predict(X), NAMES[expected.argmax(1)])


@once
def test_ensemble_is_the_average_of_its_members():
    X, y = draw(150, 3)
    model = Calibrator(GaussianNB(), cv=3, ensemble=True).fit(X, y)
    members = [
        np.exp(log_softmax(c.inverse_temperature * e.predict_log_proba(X), axis=1))
        for e, c in zip(model.estimators_, model.calibrators_, strict=True)
    ]
    assert len(members) == 3
    np.testing.assert_allclose(model.predict_proba(X), np.mean(members, axis=0), rtol=1e-12)
    with pytest.raises(AttributeError, match="see calibrators_"):
        _ = model.calibrator_


@once
def test_random_state_shuffles_the_folds():
    X, y = draw(150, 3)
    temperatures = [Calibrator(GaussianNB(), random_state=seed).fit(X, y).calibrator_.risk for seed in (None, 0, 1, 0)]
    assert temperatures[1] == temperatures[3] and len(set(map(float, temperatures))) == 3


RARE = pytest.mark.filterwarnings("ignore:The least populated class:UserWarning")


@once
@RARE
def test_a_class_of_one_row():
    """The fold that holds the row of class 2 was scored without it. scikit-learn 1.9.1 refuses such data."""
    X, labels = draw(150, 2)
    X, labels = np.vstack([X, [9.0, -9.0]]), np.append(labels, 2)
    y = NAMES[labels]
    with pytest.raises(ValueError, match="less than 5 examples"):
        CalibratedClassifierCV(LogisticRegression(), method="temperature", cv=5).fit(X, y)

    model = Calibrator(LogisticRegression(), cv=5).fit(X, y)
    scores, rows = np.full((151, 3), -np.inf), np.arange(151)
    lacking = []
    for train, test in model._splitter(y).split(X, y):
        member = LogisticRegression().fit(X[train], y[train])
        if len(member.classes_) == 3:
            scores[test] = member.decision_function(X[test])
        else:
            assert list(member.classes_) == ["cat", "dog"] and 150 in test
            scores[test, 1], scores[test, 0] = member.decision_function(X[test]), 0
            lacking = test
    known = rows != 150
    u = best_inverse_temperature(scores[known], labels[known])
    np.testing.assert_allclose(model.calibrator_.inverse_temperature, u, rtol=1e-7)

    # other methods need a score of every class
    platt = Calibrator(LogisticRegression(), method="platt", cv=5).fit(X, y)
    rest = np.setdiff1d(rows, lacking)
    direct = PlattScaling(classes=NAMES).fit(scores[rest], y[rest])
    # no outcome of class 2 is left: its slope is 0 but for rounding
    np.testing.assert_allclose(platt.calibrator_.fit.slope, direct.calibrator_.fit.slope, rtol=1e-9, atol=1e-12)

    # a member that has never seen the class gives it 0
    ensemble = Calibrator(LogisticRegression(), cv=5, ensemble=True).fit(X, y)
    assert sorted(len(e.classes_) for e in ensemble.estimators_) == [2, 3, 3, 3, 3]
    p = ensemble.predict_proba(X)
    assert p[150, 2] < 0.8 + 1e-12 and p[150, 2] > 0.1
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-14)


@once
@RARE
def test_folds_with_one_class_to_train_on_are_left_out():
    X, y = draw(40, 2)
    y = (np.arange(40) == 7).astype(int)  # the training rows of the fold of row 7 are of one class
    model = Calibrator(LogisticRegression(), cv=4).fit(X, y)
    assert model.predict_proba(X).shape == (40, 2)
    two = [(np.flatnonzero(y == 0), np.flatnonzero(y == 1))]
    with pytest.raises(ValueError, match="no row is left to calibrate by"):
        Calibrator(LogisticRegression(), cv=two, ensemble=True).fit(X, y)
    with pytest.raises(ValueError, match="no row is left to calibrate by"):
        Calibrator(LogisticRegression(), cv=two).fit(X, y)


@once
def test_leave_one_out():
    X, y = draw(30, 2)
    model = Calibrator(GaussianNB(), cv=LeaveOneOut()).fit(X, y)
    assert np.isfinite(model.calibrator_.temperature)


# ---------------------------------------------------------------- what comes in


@once
@pytest.mark.parametrize("classes", [NAMES, np.array([-7, 0, 3]), np.array([0.5, 1.5, 2.5]).astype(str)])
def test_labels_of_any_type(classes):
    z, y = draw(300, 3)
    model = TemperatureScaling().fit(z, classes[y])
    np.testing.assert_array_equal(model.classes_, classes)
    np.testing.assert_array_equal(model.predict(z), classes[z.argmax(1)])


@once
def test_boolean_labels_and_classes_that_are_absent():
    z, y = draw(300, 2)
    model = PlattScaling().fit(z[:, 1] - z[:, 0], y == 1)
    assert model.predict(np.array([50.0])).dtype == bool and model.predict(np.array([50.0]))[0]
    z, y = draw(300, 3)
    z, y = z[y < 2], y[y < 2]
    with pytest.raises(ValueError, match="2 classes need scores of 1 or 2 columns, got decision_function of shape"):
        TemperatureScaling().fit(z, y)
    assert TemperatureScaling(classes=[0, 1, 2]).fit(z, y).predict_proba(z).shape == (len(z), 3)
    with pytest.raises(ValueError, match=r"labels \[1\], which are none of the classes \[0, 2, 5\]"):
        TemperatureScaling(classes=[0, 2, 5]).fit(z, y)


@once
def test_what_scores_are_is_said_and_not_guessed():
    """The same forecasts as scores, logits, probabilities and logs of them."""
    z, y = draw(300, 2)
    s = z[:, 1] - z[:, 0]
    p = np.exp(log_softmax(z, axis=1))
    fits = [
        TemperatureScaling().fit(s, y),
        TemperatureScaling().fit(z, y),
        TemperatureScaling(response_method="predict_proba").fit(p, y),
        TemperatureScaling(response_method="predict_proba").fit(p[:, 1], y),
        TemperatureScaling(response_method="predict_log_proba").fit(np.log(p), y),
        TemperatureScaling(response_method="predict_log_proba").fit(np.log(p[:, 1]), y),
    ]
    for fit in fits:
        np.testing.assert_allclose(fit.calibrator_.temperature, fits[0].calibrator_.temperature, rtol=1e-7)
    assert not np.isclose(TemperatureScaling().fit(p, y).calibrator_.temperature, fits[0].calibrator_.temperature)
    with pytest.raises(ValueError, match="response_method must be"):
        TemperatureScaling(response_method="logits").fit(z, y)


@once
def test_certain_forecasts():
    """Leaves of a tree are pure: held-out rows have probability 0 for their own class."""
    X, y = draw(150, 3)
    with pytest.raises(ValueError, match="gives its own class .* floor=1e-6"):
        Calibrator(DecisionTreeClassifier(random_state=0)).fit(X, y)
    model = Calibrator(DecisionTreeClassifier(random_state=0), floor=1e-3).fit(X, y)
    assert model.calibrator_.temperature > 2
    isotonic = Calibrator(DecisionTreeClassifier(random_state=0), method="isotonic").fit(X, y)
    assert np.isfinite(isotonic.predict_proba(X)).all()
    none = Calibrator(DecisionTreeClassifier(random_state=0), method="none").fit(X, y)
    assert none.calibrator_.risk == np.inf


@once
def test_masked_classes_and_infinite_scores():
    z, y = draw(300, 3)
    z[y == 0, 2] = -np.inf
    p = TemperatureScaling().fit(z, y).predict_proba(z)
    assert (p[y == 0, 2] == 0).all()
    for bad in (np.nan, np.inf):
        z[3, 1] = bad
        with pytest.raises(ValueError, match="Input X contains"):
            TemperatureScaling().fit(z, y)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        PlattScaling().fit(np.array([1.0, -np.inf, 2.0]), [0, 1, 1])


@once
def test_tiny_probabilities_keep_their_logs():
    z, y = draw(300, 2)
    model = Calibrator(method="none").fit(z, y)
    np.testing.assert_allclose(model.predict_log_proba([[0.0, -900.0]]), [[0, -900]], rtol=1e-12)


@once
def test_errors():
    z, y = draw(60, 3)
    with pytest.raises(ValueError, match="method must be one of .* got 'temp'"):
        Calibrator(method="temp").fit(z, y)
    with pytest.raises(NotFittedError):
        Calibrator(GaussianNB(), cv="prefit").fit(z, y)
    with pytest.raises(NotFittedError):
        Calibrator().predict(z)
    with pytest.raises(NotFittedError):
        Calibrator(GaussianNB()).predict(z)
    with pytest.raises(ValueError, match="got 1 class in y"):
        TemperatureScaling().fit(z, 0 * y)
    with pytest.raises(ValueError, match="without an estimator there is no use for"):
        Calibrator().fit(z, y, groups=y)
    with pytest.raises(ValueError, match="sample_weight must be >= 0, got -1.0"):
        Calibrator().fit(z, y, sample_weight=-np.ones(60))
    with pytest.raises(TypeError, match="none of decision_function"):
        Calibrator(FrozenEstimator(_Silent().fit(z, y))).fit(z, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bins_number'"):
        HistogramBinning(bins_number=3)
    with pytest.raises(ValueError, match="got 1 class in the estimator"):
        Calibrator(FrozenEstimator(DummyClassifier().fit(z, 0 * y))).fit(z, 0 * y)


class _Silent(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self


# ---------------------------------------------------------------- together with the rest of scikit-learn


@once
def test_grid_search_cross_validation_and_pipeline():
    X, y = draw(150, 3)
    base = FrozenEstimator(GaussianNB().fit(X, y))
    search = GridSearchCV(Calibrator(base), {"method": ["none", "temperature"]}, scoring="neg_log_loss", cv=3)
    search.fit(np.vstack([X, X]), np.append(y, y))
    assert search.best_params_ == {"method": "temperature"}
    p = cross_val_predict(Calibrator(GaussianNB(), cv=2), X, NAMES[y], method="predict_proba", cv=3)
    assert p.shape == (150, 3)
    pipeline = make_pipeline(DecisionValues(), TemperatureScaling()).fit(X, NAMES[y])
    assert pipeline.score(X, NAMES[y]) > 0.6
    search = GridSearchCV(HistogramBinning(), {"num_bins": [2, 30]}, cv=2).fit(X, y)
    assert search.best_params_["num_bins"] in (2, 30)


@once
def test_parameters_clones_and_pickles(tmp_path):
    assert HistogramBinning(num_bins=7).get_params() == {
        "num_bins": 7,
        "bins": "width",
        "classes": None,
        "response_method": "decision_function",
        "floor": None,
    }
    z, y = draw(300, 2)
    s = z[:, 1] - z[:, 0]
    bins = HistogramBinning().set_params(num_bins=7)
    assert clone(bins).fit(s, y).calibrator_.fit.values.shape == (7,)
    bound = functools.partial(jaxcal.fit_histogram, num_bins=7)
    model = clone(Calibrator(method=bound)).fit(s, y)
    np.testing.assert_array_equal(model.predict_proba(s), bins.fit(s, y).predict_proba(s))
    for fitted in (model, bins):
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict_proba(s), fitted.predict_proba(s))
    model.calibrator_.save(tmp_path / "histogram.npz")
    with jax.enable_x64(True):
        loaded = jaxcal.load(tmp_path / "histogram.npz")
        p = np.exp(loaded(np.stack([0 * s, s], axis=1)))
    np.testing.assert_allclose(p, model.predict_proba(s), rtol=1e-12)


@once
def test_names_of_features():
    pandas = pytest.importorskip("pandas")
    z, y = draw(300, 3)
    table = pandas.DataFrame(z, columns=list("abc"))
    for model in (TemperatureScaling(), Calibrator(), Calibrator(GaussianNB(), cv=2)):
        assert list(model.fit(table, y).feature_names_in_) == ["a", "b", "c"]
        assert model.n_features_in_ == 3
    np.testing.assert_array_equal(PlattScaling().fit(table["a"], y == 0).n_features_in_, 1)


@once
def test_metadata_are_routed():
    X, y = draw(150, 3)
    groups = np.arange(150) % 5
    weights = np.random.default_rng(0).uniform(1, 2, 150)
    with config_context(enable_metadata_routing=True):
        base = GaussianNB().set_fit_request(sample_weight=True)
        model = Calibrator(base, cv=GroupKFold(3)).fit(X, y, sample_weight=weights, groups=groups)
        np.testing.assert_array_equal(model.estimator_.theta_, GaussianNB().fit(X, y, weights).theta_)
        plain = Calibrator(GaussianNB().set_fit_request(sample_weight=False), cv=GroupKFold(3))
        plain.fit(X, y, sample_weight=weights, groups=groups)
        np.testing.assert_array_equal(plain.estimator_.theta_, GaussianNB().fit(X, y).theta_)
    splits = list(GroupKFold(3).split(X, y, groups))
    same = Calibrator(GaussianNB(), cv=splits).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(same.calibrator_.temperature, model.calibrator_.temperature, rtol=1e-9)
