"""Images: perceptrons and convolutional networks on digits, ten seeds side by side, in many settings of training."""

import itertools
import time

import data_sets
import jax
import jax.numpy as jnp
import networks
import numpy as np
import stopping

import jaxcal

SEEDS = 10

# data and network: width, epochs, learning rate of SGD
NETWORKS = {
    ("digits", "mlp"): networks.Recipe("mlp", (128, 128), 64, 60, "sgd"),
    ("digits", "cnn"): networks.Recipe("cnn", (), 64, 60, "sgd"),
    ("mnist5k", "mlp"): networks.Recipe("mlp", (128, 128), 64, 60, "sgd"),
    ("mnist5k", "cnn"): networks.Recipe("cnn", (), 64, 40, "sgd"),
}


def units(quick: bool) -> list[dict]:
    """Settings: data, network, share of noisy labels, weight decay and schedule."""
    names = ("data", "network", "label noise", "weight decay", "schedule")
    if quick:
        return [dict(zip(names, ("digits", "cnn", 0.1, 0.0, "cosine"), strict=True))]
    settings = itertools.product(NETWORKS, (0.0, 0.1, 0.3), (0.0, 1e-3), ("constant", "step", "cosine"))
    return [dict(zip(names, (*network, *others), strict=True)) for network, *others in settings]


def stack_of_seeds(data: str, noise: float, seeds: int) -> data_sets.Split:
    """Every seed has its own split, label noise and start: parts `(seeds, n, ...)`."""
    splits = [data_sets.image_split(data, seed, noise) for seed in range(seeds)]
    return jax.tree.map(lambda *parts: np.stack(parts), *splits)


def train(unit: dict, recipe: networks.Recipe, seeds: int):
    """Networks of all seeds; their split, validation logits `(seeds, epochs, n, k)` and test logits as a function."""
    split = stack_of_seeds(unit["data"], unit["label noise"], seeds)
    same = jnp.ones(seeds)
    knobs = networks.Knobs(0.05 * same, 0 * same, unit["weight decay"] * same)
    keys = jax.random.split(jax.random.key(1), seeds)
    return split, *networks.train_stack(recipe, knobs, keys, split, 10)


def run(unit: dict, quick: bool) -> tuple[list[dict], dict]:
    recipe = NETWORKS[unit["data"], unit["network"]]
    recipe = networks.Recipe(**vars(recipe) | {"schedule": unit["schedule"]} | ({"epochs": 4} if quick else {}))
    seeds = 3 if quick else SEEDS
    start = time.perf_counter()
    split, logits, test = train(unit, recipe, seeds)
    trained = time.perf_counter() - start
    rows = []
    for seed in range(seeds):
        chosen = stopping.compare(
            logits[seed : seed + 1],
            split.validation.y[seed],
            lambda _, epoch, seed=seed: test(seed, epoch),
            split.test.y[seed],
            [split.validation.y.shape[1]],
        )
        for row in chosen:
            del row["validation rows"], row["level"], row["configuration"]
            rows.append({"seed": seed} | row | {"epoch": row["epoch"] + 1})
    sizes = {part: a.y.shape[1] for part, a in zip(split._fields, split, strict=True)}
    curves = mean_curves(logits, split.validation.y)
    return rows, sizes | {"epochs": recipe.epochs, "training seconds": round(trained, 1)} | curves


def mean_curves(logits: np.ndarray, labels: np.ndarray) -> dict[str, str]:
    """Validation risk and refinement of every epoch, means over the seeds, as words of a CSV cell."""
    parts = jaxcal.decompose(jnp.asarray(logits), labels[:, None])
    means = {"validation risk": parts.risk.mean(0), "validation refinement": parts.refinement.mean(0)}
    return {name: " ".join(f"{value:.4g}" for value in values) for name, values in means.items()}
