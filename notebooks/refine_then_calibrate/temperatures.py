"""Implementations of temperature scaling: time to fit the validation rows, and loss on the test rows.

Peers take part where they are installed: scikit-learn from 1.8 on, and probmetrics, which brings those of Guo et al.,
TorchUncertainty, torchcal and AutoGluon.
"""

import importlib.metadata
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import data_sets
import jax
import numpy as np
import stopping
import trees

import jaxcal

PROBMETRICS = {
    "probmetrics, bisection": "temp-scaling",
    "Guo et al.": "guo-ts",
    "AutoGluon": "autogluon-ts",
    "AutoGluon, inverse": "autogluon-inv-ts",
    "TorchUncertainty": "torchunc-ts",
    "torchcal": "torchcal-ts",
}


def units(quick: bool) -> list[dict]:
    names = ("affairs",) if quick else tuple(d.name for d in data_sets.TABLES)
    return [{"data": name} for name in names]


def _jaxcal(calibrator: Callable, logits, labels, test):
    start = time.perf_counter()
    fit = jax.block_until_ready(calibrator(logits, labels))
    return time.perf_counter() - start, np.asarray(fit(test))


def _probmetrics(name: str, logits, labels, test):
    import torch
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    given = CategoricalLogits(torch.tensor(logits)), torch.tensor(labels, dtype=torch.long)
    calibrator = get_calibrator(name)
    start = time.perf_counter()
    calibrator.fit_torch(*given)
    seconds = time.perf_counter() - start
    return seconds, calibrator.predict_proba_torch(CategoricalLogits(torch.tensor(test))).get_logits().numpy()


def _scikit_learn(logits, labels, test):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Scores(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(logits.shape[1])

        def __sklearn_is_fitted__(self):
            return True

        def fit(self, x, y):
            return self

        def decision_function(self, x):
            return x[:, 1] - x[:, 0] if x.shape[1] == 2 else x

        def predict(self, x):
            return x.argmax(axis=1)

    calibrator = CalibratedClassifierCV(FrozenEstimator(Scores()), method="temperature")
    start = time.perf_counter()
    calibrator.fit(logits, labels)
    return time.perf_counter() - start, np.log(calibrator.predict_proba(test))


def implementations() -> dict[str, Callable]:
    """By name, functions of validation logits, labels and test logits: seconds of the fit, calibrated test logits."""
    isotonic = jaxcal.laplace(jaxcal.one_vs_rest(jaxcal.fit_isotonic))
    found = {
        "jaxcal": partial(_jaxcal, jaxcal.fit_temperature),
        "jaxcal, smoothed": partial(_jaxcal, jaxcal.laplace(jaxcal.fit_temperature)),
        "jaxcal, isotonic, smoothed": partial(_jaxcal, isotonic),
        "scikit-learn": _scikit_learn,
    }
    try:
        importlib.metadata.version("probmetrics")
    except importlib.metadata.PackageNotFoundError:
        return found
    return found | {label: partial(_probmetrics, name) for label, name in PROBMETRICS.items()}


def run(unit: dict, quick: bool) -> tuple[list[dict], dict]:
    data = data_sets.tabular_split(unit["data"], 0)
    logits, test = trees.train(data, 0, 0, 50 if quick else 200)
    split = data.codes
    y, y_test = split.validation.y, split.test.y
    _, epoch = stopping.choose(stopping.curves(logits, y, ("log loss",))["log loss"])
    given, asked = logits[0, epoch], test(0, epoch)
    frequencies = np.log(np.bincount(y_test, minlength=data.num_classes) / len(y_test))
    constant = {"constant forecast": float(jaxcal.log_loss.entropy(frequencies))}
    constant["constant Brier"] = float(jaxcal.brier_loss.entropy(frequencies))
    rows = [
        {"implementation": "none", "log loss": _risk(asked, y_test), "Brier": _risk(asked, y_test, jaxcal.brier_loss)}
    ]
    for name, fit in implementations().items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runs = [fit(given, y, asked) for _ in range(2 if quick else 6)]
        except ImportError as error:
            print(f"  {name} is left out: {error}")
            continue
        seconds = statistics.median(seconds for seconds, _ in runs[1:])  # the first run compiles
        log_p = runs[-1][1]
        losses = {"log loss": _risk(log_p, y_test), "Brier": _risk(log_p, y_test, jaxcal.brier_loss)}
        rows.append({"implementation": name, "fit seconds": seconds} | losses)
    return rows, {"validation": len(y), "classes": data.num_classes} | constant


def _risk(logits, labels, loss=jaxcal.log_loss) -> float:
    return float(jaxcal.risk(logits, labels, loss=loss))
