"""Small networks, many side by side: one compiled epoch trains all configurations, or all seeds, at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from data_sets import Encoded, Split

import jaxcal


@dataclass(frozen=True)
class Recipe:
    """What all networks of a stack share.

    `kind` is "mlp" or "cnn" (two convolutions of 3 x 3 and a hidden layer), `optimizer` "adamw" or "sgd" (momentum
    0.9), `schedule` "constant", "step" (a tenth after each third of the epochs) or "cosine". `objective` is a, for the
    loss risk + a * calibration of a batch: 0 is log loss, -1 its refinement.
    """

    kind: str = "mlp"
    hidden: tuple[int, ...] = (64, 64, 64)
    batch_size: int = 256
    epochs: int = 50
    optimizer: str = "adamw"
    schedule: str = "constant"
    objective: float = 0.0


class Knobs(NamedTuple):
    """What differs between the networks of a stack, arrays `(networks,)`."""

    learning_rate: jax.Array
    dropout: jax.Array
    weight_decay: jax.Array


def _patches(x, stride: int):
    """The 3 x 3 neighbourhoods of the pixels of `x` `(n, side, side, c)` as channels: a convolution is their product
    with a matrix, which batches over networks better than a convolution does."""
    side = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + side : stride, j : j + side : stride] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


def _shapes(recipe: Recipe, shape: tuple[int, ...], num_classes: int) -> list[tuple[int, int]]:
    if recipe.kind == "mlp":
        widths = (math.prod(shape), *recipe.hidden, num_classes)
        return list(zip(widths[:-1], widths[1:], strict=True))
    side = -(-shape[0] // (_first_stride(shape[0]) * 2))
    return [(9 * shape[-1], 16), (9 * 16, 32), (side * side * 32, 64), (64, num_classes)]


def _first_stride(side: int) -> int:
    return 2 if side > 16 else 1  # small images keep their pixels in the first layer


def _start(recipe: Recipe, key, shape: tuple[int, ...], num_classes: int):
    shapes = _shapes(recipe, shape, num_classes)
    keys = jax.random.split(key, len(shapes))
    return [
        (jax.random.normal(k, (a, b)) * math.sqrt(2 / a), jnp.zeros(b)) for k, (a, b) in zip(keys, shapes, strict=True)
    ]


def _forward(recipe: Recipe, params, x, dropout=0.0, key=None):
    layers = list(params)
    if recipe.kind == "cnn":
        for stride in (_first_stride(x.shape[1]), 2):
            w, b = layers.pop(0)
            x = jax.nn.relu(_patches(x, stride) @ w + b)
    x = x.reshape(len(x), -1)
    *hidden, (w_out, b_out) = layers
    for i, (w, b) in enumerate(hidden):
        x = jax.nn.relu(x @ w + b)
        if key is not None:
            dropped = jax.random.bits(jax.random.fold_in(key, i), x.shape, jnp.uint8) < 256 * dropout
            x = jnp.where(dropped, 0, x / (1 - dropout))
    return x @ w_out + b_out


def _objective(recipe: Recipe, params, x, y, dropout, key):
    logits = _forward(recipe, params, x, dropout, key)
    if recipe.objective == 0:
        return jaxcal.risk(logits, y)
    parts = jaxcal.decompose(logits, y)
    return parts.risk + recipe.objective * parts.calibration


def _rate(recipe: Recipe, epoch):
    """Learning rate of an epoch as a share of the first."""
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "step":
        return 10.0 ** -(3 * epoch // recipe.epochs)
    return (1 + jnp.cos(jnp.pi * epoch / recipe.epochs)) / 2


def _scale(recipe: Recipe):
    return optax.scale_by_adam() if recipe.optimizer == "adamw" else optax.trace(decay=0.9)


def _epoch(recipe: Recipe, params, state, knobs: Knobs, x, y, key, epoch):
    """One network, one epoch; rows that do not fill a batch wait for the next epoch."""
    key = jax.random.fold_in(key, epoch)
    order = jax.random.permutation(key, len(y))
    size = min(recipe.batch_size, len(y))
    rate = knobs.learning_rate * _rate(recipe, epoch)
    plain = recipe.kind == "mlp" and recipe.optimizer == "adamw"

    def step(carry, batch):
        params, state = carry
        rows, number = batch
        drop = jax.random.fold_in(key, number) if plain else None
        grads = jax.grad(partial(_objective, recipe))(params, x[rows], y[rows], knobs.dropout, drop)
        if recipe.optimizer == "sgd":  # there decay is part of the gradient, in AdamW it is not
            grads = jax.tree.map(lambda g, p: g + knobs.weight_decay * p, grads, params)
        updates, state = _scale(recipe).update(grads, state)
        if recipe.optimizer == "adamw":
            updates = jax.tree.map(lambda u, p: u + knobs.weight_decay * p, updates, params)
        return (jax.tree.map(lambda p, u: p - rate * u, params, updates), state), None

    count = len(y) // size
    batches = (order[: count * size].reshape(count, size), jnp.arange(count))
    return jax.lax.scan(step, (params, state), batches)[0]


@partial(jax.jit, static_argnames=("recipe", "lanes"), donate_argnames=("params", "state"))
def _epochs_of_all(recipe, params, state, knobs, x, y, x_validation, key, epoch, lanes):
    axes = (0, 0, 0, 0, 0, 0, None) if lanes else (0, 0, 0, None, None, None, None)
    params, state = jax.vmap(partial(_epoch, recipe), axes)(params, state, knobs, x, y, key, epoch)
    logits = jax.vmap(partial(_forward, recipe), (0, 0 if lanes else None))(params, x_validation)
    return params, state, logits


@partial(jax.jit, static_argnames="recipe")
def _logits(recipe, params, x):
    return _forward(recipe, params, x)


def train_stack(recipe: Recipe, knobs: Knobs, keys, split: Split, num_classes: int):
    """Networks side by side, `keys` one a network.

    Args:
        split: rows `(n, ...)` that all networks share, or `(networks, n, ...)`, which are split by network.

    Returns:
        Validation logits `(networks, epochs, n, k)`, and a function of network and epoch for those of its test rows.
    """
    lanes = split.train.y.ndim == 2
    x, y, x_validation = (jnp.asarray(a) for a in (split.train.x, split.train.y, split.validation.x))
    params = jax.vmap(lambda key: _start(recipe, key, x.shape[1 + lanes :], num_classes))(keys)
    state = jax.vmap(_scale(recipe).init)(params)
    logits, kept = [], []
    for epoch in range(recipe.epochs):
        of_epoch = keys if lanes else keys[0]
        params, state, z = _epochs_of_all(recipe, params, state, knobs, x, y, x_validation, of_epoch, epoch, lanes)
        logits.append(np.asarray(z))
        kept.append(jax.tree.map(np.asarray, params))

    def test(network, epoch):
        its = jax.tree.map(lambda a: a[network], kept[epoch])
        return np.asarray(_logits(recipe, its, split.test.x[network] if lanes else split.test.x))

    return np.stack(logits, axis=1), test


def configurations(count: int, seed: int) -> Knobs:
    """The default of the paper's Table F.3, then random ones from the space of Table F.4."""
    rng = np.random.default_rng([1, seed])
    rate = np.exp(rng.uniform(np.log(1e-4), np.log(1e-2), count))
    dropout = rng.choice([0.0, 0.1, 0.2, 0.3], count)
    decay = rng.choice([0.0, 1e-5, 1e-4, 1e-3], count)
    columns = ([1e-3, *rate], [0, *dropout], [0, *decay])
    return Knobs(*(jnp.asarray(column, jnp.float32) for column in columns))


def train(data: Encoded, seed: int, count: int, epochs: tuple[int, int]) -> tuple[np.ndarray, Callable]:
    """The default and `count` random configurations: 3,000 steps, but at least and at most so many epochs."""
    rows = len(data.scaled.train.y)
    recipe = Recipe(epochs=int(np.clip(3000 * 256 // rows, *epochs)))
    keys = jax.random.split(jax.random.key(seed), 1 + count)
    return train_stack(recipe, configurations(count, seed), keys, data.scaled, data.num_classes)
