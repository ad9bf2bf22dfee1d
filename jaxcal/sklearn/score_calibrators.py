"""One estimator a calibrator, for scores: the last step of a pipeline whose other steps end in logits."""

import inspect
from functools import partial

from sklearn.base import BaseEstimator

from jaxcal import calibrators
from jaxcal.losses import ProperLoss
from jaxcal.sklearn.forecasts import ForecastMixin, fit_to_scores, forecast_scores
from jaxcal.sklearn.methods import calibrator_of, loss_of


class ScoreCalibrator(ForecastMixin, BaseEstimator):
    """Base of the estimators that calibrate scores. A subclass names its calibrator:
    `class PlattScaling(ScoreCalibrator, calibrator=fit_platt)`.

    X are decision values or logits, of shape `(n,)` or `(n, 1)` for two classes (log-odds of the second), or `(n, k)`
    with columns as `classes_`; a class that cannot happen has -inf. A binary calibrator works on more than two classes
    by `jaxcal.one_vs_rest`.

    Parameters: the options of the calibrator, by their names there (None: its default), and

        classes: labels of the columns, in their order. None: those of y, sorted.
        response_method: what X holds: "decision_function" for scores and logits, "predict_proba" for probabilities,
            "predict_log_proba" for their logs.
        floor: probabilities below it are raised to it. None: they are taken as they are, 0 being impossible.

    Attributes: `classes_`; `calibrator_`, the fit of jaxcal, e.g. to save; `n_features_in_`; `feature_names_in_` where
    X has names.

    Examples:
        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from jaxcal.sklearn import TemperatureScaling
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(0, 2, (1000, 3))
        >>> y = np.array(["cat", "dog", "fox"])[(logits + rng.gumbel(size=logits.shape)).argmax(1)]
        >>> model = TemperatureScaling().fit(2 * logits, y)
        >>> print(f"{model.calibrator_.temperature:.1f}", model.predict_proba(2 * logits).shape)
        2.0 (1000, 3)
    """

    _options: tuple[str, ...] = ()

    def __init_subclass__(cls, calibrator=None, **kwargs):
        super().__init_subclass__(**kwargs)
        if calibrator is None:
            return
        cls._fit_scores = staticmethod(calibrator)
        options = [p for p in inspect.signature(calibrator).parameters.values() if p.kind is p.KEYWORD_ONLY]
        options = [_plain(p) for p in options if p.name != "weights"]
        cls._options = tuple(p.name for p in options)
        cls.__init__ = _constructor([*options, *_SHARED])  # scikit-learn reads the parameters off its signature

    def _calibrator(self):
        options = {name: getattr(self, name) for name in self._options}
        options = {name: value for name, value in options.items() if value is not None}
        if "loss" in options:
            options["loss"] = loss_of(options["loss"])
        return calibrator_of(partial(self._fit_scores, **options))

    def fit(self, X, y, sample_weight=None):
        """Fit the calibrator.

        Args:
            X: scores, `(n,)`, `(n, 1)` or `(n, k)`.
            y: labels `(n,)` of any type.
            sample_weight: counts `(n,)`; a weight of 2 is the row twice.

        Returns:
            The estimator.
        """
        self.calibrator_ = fit_to_scores(self, self._calibrator(), X, y, sample_weight, self.classes)
        return self

    def predict_log_proba(self, X):
        """Logs of the calibrated probabilities, `(n, k)`, those of tiny ones too."""
        return forecast_scores(self, X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        return tags


def _parameter(name, default):
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


_SHARED = [
    _parameter("classes", None),
    _parameter("response_method", "decision_function"),
    _parameter("floor", None),
]


def _plain(parameter):
    """Objects are no defaults in scikit-learn, which copies them."""
    return _parameter(parameter.name, None if isinstance(parameter.default, ProperLoss) else parameter.default)


def _constructor(parameters):
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([own, *parameters])

    def __init__(self, **values):
        bound = signature.bind(self, **values)
        bound.apply_defaults()
        for name in signature.parameters.keys() - {"self"}:
            setattr(self, name, bound.arguments[name])

    __init__.__signature__ = signature
    return __init__


class BayesianBinning(ScoreCalibrator, calibrator=calibrators.fit_bbq):
    """Bayesian binning into quantiles of log-odds, `jaxcal.fit_bbq`; see `ScoreCalibrator`."""


class BetaCalibration(ScoreCalibrator, calibrator=calibrators.fit_beta):
    """Beta calibration of log-odds, `jaxcal.fit_beta`; see `ScoreCalibrator`."""


class DirichletCalibration(ScoreCalibrator, calibrator=calibrators.fit_dirichlet):
    """Dirichlet calibration, `jaxcal.fit_dirichlet`; see `ScoreCalibrator`."""


class EnsembleTemperatureScaling(ScoreCalibrator, calibrator=calibrators.fit_ensemble_temperature):
    """Ensemble temperature scaling, `jaxcal.fit_ensemble_temperature`; see `ScoreCalibrator`."""


class HistogramBinning(ScoreCalibrator, calibrator=calibrators.fit_histogram):
    """Histogram binning of log-odds, `jaxcal.fit_histogram`; see `ScoreCalibrator`."""


class IsotonicCalibration(ScoreCalibrator, calibrator=calibrators.fit_isotonic):
    """Isotonic regression on the score, `jaxcal.fit_isotonic`; see `ScoreCalibrator`."""


class MatrixScaling(ScoreCalibrator, calibrator=calibrators.fit_matrix_scaling):
    """Matrix scaling, `jaxcal.fit_matrix_scaling`; see `ScoreCalibrator`."""


class PlattScaling(ScoreCalibrator, calibrator=calibrators.fit_platt):
    """Platt scaling, `jaxcal.fit_platt`; see `ScoreCalibrator`."""


class QuadraticScaling(ScoreCalibrator, calibrator=calibrators.fit_quadratic):
    """Quadratic scaling of log-odds, `jaxcal.fit_quadratic`; see `ScoreCalibrator`."""


class StructuredMatrixScaling(ScoreCalibrator, calibrator=calibrators.fit_structured_matrix):
    """Structured matrix scaling, `jaxcal.fit_structured_matrix`; see `ScoreCalibrator`."""


class StructuredVectorScaling(ScoreCalibrator, calibrator=calibrators.fit_structured_vector):
    """Structured vector scaling, `jaxcal.fit_structured_vector`; see `ScoreCalibrator`."""


class TemperatureScaling(ScoreCalibrator, calibrator=calibrators.fit_temperature):
    """Temperature scaling, `jaxcal.fit_temperature`, `loss` a name or a proper loss; see `ScoreCalibrator`."""


class VectorScaling(ScoreCalibrator, calibrator=calibrators.fit_vector_scaling):
    """Vector scaling, `jaxcal.fit_vector_scaling`; see `ScoreCalibrator`."""


class VennAbersCalibration(ScoreCalibrator, calibrator=calibrators.fit_venn_abers):
    """Venn-Abers calibration, `jaxcal.fit_venn_abers`; see `ScoreCalibrator`."""
