"""Which epoch to keep: offline selection on a whole curve, as an online stopping rule would act."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks


def select_epoch(curve, *, patience: int | None = None, min_delta: float = 0.0) -> jax.Array:
    """The epoch an early-stopping rule keeps: the last improvement of a curve before patience ran out.

    Read left to right, epoch e is an improvement if curve[e] < best - min_delta, where best is the value at the
    last improvement; the first finite value always is one. The rule stops after `patience` consecutive epochs without.

    Args:
        curve: `(..., epochs)`, smaller is better: risk, refinement, 1 - accuracy. NaN and +inf never improve.
        patience: epochs without improvement after which the rule stops, >= 1; None reads to the end.
        min_delta: how much smaller counts, >= 0, in the units of the curve.

    Returns:
        int32 index along the last axis, `(...)`; -1 if no value is finite. With the defaults it is the first arg min.

    Piecewise constant in the curve, so not differentiable. Cost O(size), one scan.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> curve = jnp.array([0.9, 0.5, 0.6, 0.7, 0.4])
        >>> int(jaxcal.select_epoch(curve)), int(jaxcal.select_epoch(curve, patience=2))
        (4, 1)
    """
    curve = checks.as_floats(curve, "curve")
    if curve.ndim == 0 or curve.shape[-1] == 0:
        raise ValueError(f"curve must have shape (..., epochs) with at least one epoch, got {curve.shape}")
    if patience is not None and (
        not isinstance(patience, int | np.integer) or isinstance(patience, bool) or patience < 1
    ):
        raise ValueError(f"patience must be an integer >= 1 or None, got {patience!r}")
    if not checks.is_traced(min_delta) and not (float(min_delta) >= 0 and math.isfinite(float(min_delta))):
        raise ValueError(f"min_delta must be finite and >= 0, got {min_delta}")
    return _scan(
        curve, jnp.asarray(min_delta, checks.compute_dtype(curve)), None if patience is None else int(patience)
    )


@jax.jit(static_argnums=2)
def _scan(curve, min_delta, patience):
    epochs = curve.shape[-1]
    limit = epochs if patience is None else patience
    values = jnp.moveaxis(curve.astype(min_delta.dtype), -1, 0)

    def step(state, inputs):
        best, chosen, waited = state
        epoch, value = inputs
        running = waited < limit
        improves = running & jnp.isfinite(value) & ((chosen < 0) | (value < best - min_delta))
        waited = jnp.where(improves, 0, waited + (chosen >= 0))
        return (jnp.where(improves, value, best), jnp.where(improves, epoch, chosen), waited), None

    shape = values.shape[1:]
    start = (jnp.full(shape, jnp.inf, values.dtype), jnp.full(shape, -1, jnp.int32), jnp.zeros(shape, jnp.int32))
    (_, chosen, _), _ = lax.scan(step, start, (jnp.arange(epochs, dtype=jnp.int32), values))
    return chosen
