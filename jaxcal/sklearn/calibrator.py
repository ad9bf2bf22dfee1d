"""`Calibrator`: a classifier and the calibrator of its scores, as one scikit-learn classifier."""

import warnings
from collections.abc import Iterator
from numbers import Integral

import numpy as np
from sklearn import clone, get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing, check_consistent_length, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from jaxcal.sklearn.forecasts import (
    ForecastMixin,
    fit_to_scores,
    forecast_scores,
    places,
    read_labels,
    read_weights,
    require_two,
)
from jaxcal.sklearn.methods import calibrator_of, takes_masks
from jaxcal.sklearn.scores import class_logits, fit_logits, log_forecasts, response_of


class Calibrator(ForecastMixin, MetaEstimatorMixin, BaseEstimator):
    r"""A classifier with calibrated probabilities.

    By default the classifier is fitted on K - 1 of K folds and scores the fold left out; one calibrator is fitted to
    the scores of all rows, and the classifier that it is put on is fitted on all rows. With `ensemble` a calibrator is
    fitted for each of the K classifiers, and the K calibrated forecasts are averaged; such an average is
    under-confident where its members disagree.

    Parameters:
        estimator: a classifier. None: X are the scores themselves, as for `jaxcal.sklearn.TemperatureScaling`.
        method: "temperature", "ensemble_temperature", "vector", "matrix", "dirichlet", "structured_vector",
            "structured_matrix"; "platt" (or "sigmoid"), "beta", "quadratic", "isotonic", "venn_abers", "histogram",
            "bbq", which for more than two classes work by `jaxcal.one_vs_rest`; "none"; or a calibrator of jaxcal, e.g.
            `functools.partial(jaxcal.fit_histogram, num_bins=10)`. It is called with weights, 0 for absent rows.
        cv: number of folds (stratified; None: 5), a splitter or a list of `(train, test)`, or "prefit": the estimator
            is fitted, and all rows are for the calibrator. So it is for a `FrozenEstimator`, which, other than
            "prefit", outlives `sklearn.clone` and with it a grid search. A row that is held out m times counts 1/m.
        ensemble: the average over the folds.
        response_method: the scores: "decision_function", "predict_proba", "predict_log_proba", or "auto", the first of
            them that there is. Decision values are read as log-odds of the second class, or as logits; where they are
            on another scale, as margins are, beta, quadratic, histogram and bbq depend on it.
        floor: probabilities below it are raised to it. None: 0 is impossible, and methods with a log loss refuse a row
            whose own class is.
        loss: for method "temperature": "log_loss" (None), "brier_loss", "spherical_loss" or a proper loss of jaxcal.
        smooth: mix with the uniform forecast by `jaxcal.laplace`, lest a probability be 0.
        random_state: shuffles the rows before they are cut into `cv` folds. None: no shuffling.

    Attributes:
        classes_: the labels, `(k,)`.
        calibrator_: the fit of jaxcal on logits `(n, k)`, with `save`. Not with `ensemble`.
        estimator_: the fitted classifier under it. Not with `ensemble`.
        calibrators_, estimators_: lists of them, for an ensemble too.
        n_features_in_, feature_names_in_: those of the classifier, where it has them.

    A fold whose training rows lack a class does not break the fit. For the one calibrator, the logit of such a class is
    unknown in that fold: the temperature methods, vector scaling and "none" take it as -inf and leave out the rows of
    the class; for the other methods the whole fold is left out. A member of an ensemble knows the classes of its
    training rows, and gives 0 to others. Folds with fewer than two classes to train on are left out. What is left must
    hold a row, or the fit raises `ValueError`.

    Computed in float64 whatever `jax_enable_x64` says. There is no `decision_function`: `predict_log_proba` keeps the
    order of the rows where probabilities round to 1. With a prefitted
    estimator a weight equals repeating the row exactly; with folds, if the repeated rows are in the same fold.

    Examples:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.metrics import log_loss
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from jaxcal.sklearn import Calibrator
        >>> X, y = make_classification(2000, n_informative=4, n_redundant=8, random_state=0)
        >>> raw = GaussianNB().fit(X[:1000], y[:1000])
        >>> model = Calibrator(GaussianNB(), method="temperature").fit(X[:1000], y[:1000])
        >>> print(f"{model.calibrator_.temperature:.1f}")
        3.7
        >>> [f"{log_loss(y[1000:], m.predict_proba(X[1000:])):.2f}" for m in (raw, model)]
        ['0.87', '0.57']

    References:
        Platt, "Probabilistic outputs for support vector machines", 1999 (cross-fitting). Guo et al., ICML 2017.
    """

    def __init__(
        self,
        estimator=None,
        *,
        method="temperature",
        cv=None,
        ensemble=False,
        response_method="auto",
        floor=None,
        loss=None,
        smooth=False,
        random_state=None,
    ):
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.response_method = response_method
        self.floor = floor
        self.loss = loss
        self.smooth = smooth
        self.random_state = random_state

    @property
    def calibrator_(self):
        return self._only("calibrators_")

    @property
    def estimator_(self):
        return self._only("estimators_")

    def fit(self, X, y, sample_weight=None, **fit_params):
        """Fit the classifier, unless it is fitted, and the calibrator.

        Args:
            X: rows, whatever the classifier takes.
            y: labels `(n,)` of any type.
            sample_weight: counts `(n,)`, for the calibrator and, where its `fit` takes them, for the classifier.
            **fit_params: for `estimator.fit`, as `svc__sample_weight` of a step of a pipeline; with metadata routing
                also for the splitter.

        Returns:
            The estimator.
        """
        calibrator = calibrator_of(self.method, self.loss, self.smooth)
        if self.estimator is None:
            if fit_params:
                raise ValueError(f"without an estimator there is no use for {sorted(fit_params)}")
            self.estimators_, self.calibrators_ = [], [fit_to_scores(self, calibrator, X, y, sample_weight)]
            return self
        y = read_labels(y)
        check_consistent_length(X, y, sample_weight)
        (X,) = indexable(X)
        weights = read_weights(sample_weight, len(y))
        if self._is_prefit():
            self._fit_prefit(calibrator, X, y, weights)
        else:
            require_two(np.unique(y[weights > 0]), "the rows of weight > 0")
            given = None if sample_weight is None else weights
            fit = self._fit_ensemble if self.ensemble else self._fit_single
            fit(calibrator, X, y, weights, *self._routed(given, fit_params))
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))
        return self

    def predict_log_proba(self, X) -> np.ndarray:
        """Logs of the calibrated probabilities, `(n, k)`, those of tiny ones too."""
        if self.estimator is None:
            return forecast_scores(self, X)
        check_is_fitted(self)
        members = []
        for estimator, calibrator in zip(self.estimators_, self.calibrators_, strict=True):
            log_p = log_forecasts(calibrator, self._logits(estimator, X))
            members.append(_in_columns(log_p, places(estimator.classes_, self.classes_), len(self.classes_)))
        return np.logaddexp.reduce(members) - np.log(len(members)) if len(members) > 1 else members[0]

    def get_metadata_routing(self):
        """Who gets which metadata: `fit` passes them to the classifier's `fit` and the splitter's `split`."""
        router = MetadataRouter(owner=self).add_self_request(self)
        if self.estimator is not None:
            router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        return router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if self.estimator is None:
            tags.input_tags.one_d_array = True
        else:
            below = get_tags(self.estimator).input_tags
            tags.input_tags.sparse, tags.input_tags.allow_nan = below.sparse, below.allow_nan
        return tags

    def __sklearn_is_fitted__(self):
        return hasattr(self, "calibrators_")

    def _only(self, name):
        members = self.__dict__.get(name, ())
        if len(members) != 1:
            raise AttributeError(f"{name[:-2]}_ is there after a fit, and not for an ensemble; see {name}")
        return members[0]

    def _is_prefit(self):
        return isinstance(self.estimator, FrozenEstimator) or (isinstance(self.cv, str) and self.cv == "prefit")

    def _logits(self, estimator, X):
        response = response_of(estimator, self.response_method)
        return class_logits(getattr(estimator, response)(X), response, len(estimator.classes_), self.floor)

    def _fit_prefit(self, calibrator, X, y, weights):
        check_is_fitted(self.estimator)
        require_two(self.estimator.classes_, "the estimator")
        self._put(self.estimator, calibrator, self._logits(self.estimator, X), y, weights)

    def _put(self, estimator, calibrator, logits, y, weights):
        """Put one calibrator on a classifier that knows all classes."""
        self.classes_ = np.asarray(estimator.classes_)
        self.estimators_ = [estimator]
        self.calibrators_ = [fit_logits(calibrator, logits, places(y, self.classes_), weights)]

    def _fit_single(self, calibrator, X, y, weights, params, split_params):
        estimator = clone(self.estimator).fit(X, y, **params)
        k = len(estimator.classes_)
        labels = places(y, estimator.classes_)
        logits, rows, scored = [], [], []
        for member, test in self._folds(X, y, weights, params, split_params):
            columns = places(member.classes_, estimator.classes_)
            logits.append(_in_columns(self._logits(member, _safe_indexing(X, test)), columns, k))
            rows.append(test)
            scored.append(np.isin(labels[test], columns) & (takes_masks(self.method) | (len(columns) == k)))
        self._require_rows(any((weights[test] * known).any() for test, known in zip(rows, scored, strict=True)))
        rows = np.concatenate(rows)
        # the rows that were not scored stay and weigh nothing
        share = weights[rows] * np.concatenate(scored) / np.bincount(rows)[rows]
        self._put(estimator, calibrator, np.concatenate(logits), y[rows], share)

    def _fit_ensemble(self, calibrator, X, y, weights, params, split_params):
        self.classes_ = np.unique(y)
        self.estimators_, self.calibrators_ = [], []
        for member, test in self._folds(X, y, weights, params, split_params):
            known = np.isin(y[test], member.classes_) & (weights[test] > 0)
            if known.any():
                test = test[known]
                logits = self._logits(member, _safe_indexing(X, test))
                fit = fit_logits(calibrator, logits, places(y[test], member.classes_), weights[test])
                self.estimators_.append(member)
                self.calibrators_.append(fit)
        self._require_rows(self.estimators_)

    def _folds(self, X, y, weights, params, split_params) -> Iterator[tuple]:
        """Classifiers fitted on the training rows, and the test rows, of the folds that train on two classes."""
        for train, test in self._splitter(y).split(X, y, **split_params):
            train, test = (np.arange(len(y))[part] for part in (train, test))
            if len(np.unique(y[train][weights[train] > 0])) > 1:
                given = {name: _part(value, train, len(y)) for name, value in params.items()}
                yield clone(self.estimator).fit(_safe_indexing(X, train), y[train], **given), test

    def _splitter(self, y):
        folds = 5 if self.cv is None else self.cv
        if isinstance(folds, Integral) and self.random_state is not None:
            return StratifiedKFold(folds, shuffle=True, random_state=self.random_state)
        return check_cv(folds, y, classifier=True)

    def _require_rows(self, any_left) -> None:
        if not any_left:
            raise ValueError(
                "no row is left to calibrate by: the training rows of the folds lack classes; use fewer folds, "
                "ensemble=True, or cv='prefit' with rows of their own"
            )

    def _routed(self, sample_weight, fit_params):
        """Parameters of the classifier's `fit` and of the splitter's `split`."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=sample_weight, **fit_params)
            return routed.estimator.fit, routed.splitter.split
        if sample_weight is not None and has_fit_parameter(self.estimator, "sample_weight"):
            return {**fit_params, "sample_weight": sample_weight}, {}
        if sample_weight is not None and not any(name.endswith("__sample_weight") for name in fit_params):
            warnings.warn(
                f"{type(self.estimator).__name__}.fit takes no sample_weight: only the calibrator sees the weights "
                "(those of the last step of a pipeline: <step>__sample_weight)",
                stacklevel=3,
            )
        return fit_params, {}


def _in_columns(values, columns, k: int):
    """Logits or log-probabilities of some classes, `(n, c)`, among those of all, `(n, k)`: -inf for the others."""
    result = np.full((len(values), k), -np.inf, values.dtype)
    result[:, columns] = values
    return result


def _part(value, rows, n: int):
    """The rows of a parameter that has one value a row."""
    per_row = hasattr(value, "__len__") and not isinstance(value, str | dict) and len(value) == n
    return _safe_indexing(value, rows) if per_row else value
