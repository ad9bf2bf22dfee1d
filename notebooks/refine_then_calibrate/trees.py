"""Boosted trees (XGBoost): logits of the validation rows after rounds 1, 2, 3, ... and ever rarer ones."""

from collections.abc import Callable

import numpy as np
from data_sets import Encoded

import jaxcal
from jaxcal import boosting


def looked_at(rounds: int) -> np.ndarray:
    """Rounds whose forecasts are compared, the "epochs" of boosting: each of the first twenty or so, then every 6 %."""
    return np.unique(np.geomspace(1, rounds, 100).round().astype(int))


def configurations(count: int, seed: int) -> list[dict]:
    """The defaults of XGBoost, then random ones from the space of the paper's Table F.1, but for the slowest learning
    rates (below 0.005), which need more rounds."""
    rng = np.random.default_rng([2, seed])

    def log_uniform(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    drawn = [
        {
            "max_depth": int(rng.integers(1, 12)),
            "eta": log_uniform(5e-3, 0.7),
            "subsample": rng.uniform(0.5, 1),
            "colsample_bytree": rng.uniform(0.5, 1),
            "colsample_bylevel": rng.uniform(0.5, 1),
            "min_child_weight": log_uniform(1e-5, 100),
            "alpha": log_uniform(1e-5, 5),
            "lambda": log_uniform(1e-5, 5),
            "gamma": log_uniform(1e-5, 5),
        }
        for _ in range(count)
    ]
    return [{}, *drawn]


def train(data: Encoded, seed: int, count: int, rounds: int) -> tuple[np.ndarray, Callable]:
    """The default and `count` random configurations.

    Returns:
        Validation logits `(1 + count, epochs, n, k)` of the rounds `looked_at`, and a function of configuration and
        epoch for those of the test rows.
    """
    import xgboost

    types = ["c" if c else "q" for c in data.categorical]
    matrices = [
        xgboost.DMatrix(part.x, part.y, feature_types=types, enable_categorical=True, nthread=1) for part in data.codes
    ]
    objective = {"objective": "binary:logistic"}
    if data.num_classes > 2:
        objective = {"objective": "multi:softprob", "num_class": data.num_classes}
    common = {"tree_method": "hist", "nthread": 1, "seed": seed} | objective
    boosters, logits, looked = [], [], looked_at(rounds)
    for configuration in configurations(count, seed):
        boosters.append(xgboost.train(common | configuration, matrices[0], rounds))
        stages = boosting.staged_logits(boosters[-1], matrices[1])
        logits.append([z for i, z in enumerate(stages, 1) if i in looked])

    def test(configuration, epoch):
        kept = (0, int(looked[epoch]))
        margin = boosters[configuration].predict(matrices[2], output_margin=True, iteration_range=kept)
        return np.asarray(jaxcal.binary_logits(margin)) if margin.ndim == 1 else margin

    return np.array(logits), test
