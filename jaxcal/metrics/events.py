"""What every metric of a binary event does with (probabilities, outcomes, weights) before and after its own part."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.metrics.results import TestResult


class Events(NamedTuple):
    """A cleaned binary data set in the dtype of the work; rows that cannot be read are 0 and absent rows weigh 0."""

    p: jax.Array  # (..., n), in [0, 1]
    y: jax.Array  # (..., n), 0 or 1
    weights: jax.Array | None  # (..., n), >= 0
    poison: jax.Array  # (...), 1, or NaN where the lane is invalid: multiply results by it

    @property
    def w(self) -> jax.Array:
        """The weights, 1 if none were given; the last axis has n."""
        return jnp.ones(self.p.shape[-1:], self.p.dtype) if self.weights is None else self.weights

    @property
    def mass(self) -> jax.Array:
        """Sum of weights `(...)`."""
        if self.weights is None:
            return jnp.asarray(self.p.shape[-1], self.p.dtype)
        return jnp.sum(self.weights, axis=-1)


def as_events(p, y, weights, *, name: str = "p"):
    """Static checks of a binary data set: probabilities (or scores, by their `name`) and outcomes `(..., n)`."""
    remedy = (
        "of probabilities (n, 2) take the column of the event, p[:, 1]; logits (n, k), of probabilities those of "
        "jaxcal.logits_from_probs, become an event by jaxcal.top_label, class_wise or binary_event"
    )
    return checks.as_binary(p, y, weights, name=name, outcomes_name="y", remedy=remedy)


def clean(p, y, weights, *, whole: bool = False, scores: bool = False) -> Events:
    """Values in range, NaN lanes marked: for the compiled part of a metric. Leading axes are aligned, not broadcast.

    With `whole` weights that are no whole numbers are invalid: an estimate that counts pairs of rows needs to know how
    many copies of a row there are. With `scores` p is on the whole line, ends included.
    """
    dtype = checks.compute_dtype(p)
    ndim = max(a.ndim for a in (p, y, weights) if a is not None)
    p, y, weights = checks.align(ndim, p.astype(dtype), y.astype(dtype), weights)
    readable = ~jnp.isnan(p) if scores else (p >= 0) & (p <= 1)
    valid = readable & ((y == 0) | (y == 1))
    if weights is None:
        ok = jnp.all(valid, axis=-1)
    else:
        ok = jnp.all(valid | ~(weights > 0), axis=-1) & jnp.all((weights >= 0) & (weights < jnp.inf), axis=-1)
        # weights whose sum overflows, or whose products vanish, have no mean
        largest, limits = jnp.max(weights, axis=-1), jnp.finfo(dtype)
        ok &= (largest >= limits.tiny / limits.eps**2) & (largest <= limits.max * limits.eps**2 / weights.shape[-1])
        if whole:
            ok &= jnp.all(weights == jnp.round(weights), axis=-1)
        weights = jnp.where((weights > 0) & (weights < jnp.inf), weights, 0)
    # not where(weights > 0): scores that do not depend on the lane's weights are sorted once for all lanes
    p = jnp.where(readable, p, 0)
    y = jnp.where((y == 0) | (y == 1), y, 0)
    return Events(p, y, weights, jnp.where(ok, 1, jnp.nan).astype(dtype))


def report(result, p, y, weights, call: str, *, whole: bool = False, scores: bool = False):
    """`result`, after an eager call without any valid lane has raised; estimates may be NaN where they do not exist."""
    if isinstance(result, TestResult):
        result = replace(result, reliable=result.reliable & ~jnp.isnan(result.p_value))
    if not checks.is_traced(result):
        values = np.asarray(jax.tree.leaves(result)[0])
        reading = {"whole": whole, "scores": scores}
        if values.size and np.isnan(values).all() and np.isnan(clean(p, y, weights, **reading).poison).all():
            fault = checks.find_event_fault(p, y, weights, **reading)
            raise ValueError(f"{call}: {fault or f'weights are too large or too small for {p.dtype}'}")
    return result
