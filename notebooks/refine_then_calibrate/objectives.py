"""Training on the refinement itself: the loss of a batch is risk + a * calibration, of which a = -1 is refinement."""

import time

import data_sets
import jax
import jax.numpy as jnp
import networks
import stopping
import vision

WEIGHTS = (-1.0, -0.5, 0.0, 1.0, 4.0)
IMAGES = ("digits", "mnist5k")
TABLES = ("flights late", "diamonds cut", "movies drama", "affairs")


def units(quick: bool) -> list[dict]:
    """Perceptrons on images with a tenth of the labels noisy, and on tables."""
    if quick:
        return [{"data": "digits", "a": -1.0}]
    return [{"data": data, "a": a} for data in (*IMAGES, *TABLES) for a in WEIGHTS]


def run(unit: dict, quick: bool) -> tuple[list[dict], dict]:
    seeds = 2 if quick else 10
    start = time.perf_counter()
    if unit["data"] in IMAGES:
        recipe = networks.Recipe("mlp", (128, 128), 128, 4 if quick else 60, "adamw", objective=unit["a"])
        split = vision.stack_of_seeds(unit["data"], 0.1, seeds)
        num_classes = 10
    else:
        recipe = networks.Recipe("mlp", (64, 64), 256, 60, "adamw", objective=unit["a"])
        encoded = [data_sets.tabular_split(unit["data"], seed) for seed in range(seeds)]
        split = jax.tree.map(lambda *parts: jnp.stack(parts), *(data.scaled for data in encoded))
        num_classes = encoded[0].num_classes
    same = jnp.ones(seeds)
    knobs = networks.Knobs(1e-3 * same, 0 * same, 0 * same)
    logits, test = networks.train_stack(recipe, knobs, jax.random.split(jax.random.key(2), seeds), split, num_classes)
    trained = time.perf_counter() - start
    rows = []
    for seed in range(seeds):
        z, y, y_test = logits[seed], split.validation.y[seed], split.test.y[seed]
        found = stopping.curves(z, y, stopping.LOSSES)
        for criterion in ("log loss", "refinement"):
            _, epoch = stopping.choose(found[criterion][None])
            values = stopping.scores(z[epoch], y, test(seed, epoch), y_test)
            rows.append({"seed": seed, "criterion": criterion, "epoch": epoch + 1} | values)
    return rows, {"epochs": recipe.epochs, "training seconds": round(trained, 1)}
