"""How often the predicted class is right."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.losses import weighted_mean
from jaxcal.solvers import has_softmax


def accuracy(logits, labels, *, weights=None) -> jax.Array:
    """Share of rows whose arg max is the label.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        weights: counts `(..., n)`; rows of weight 0 are absent.

    Returns:
        `(...)` in [0, 1], float32 for half-precision logits. Ties go to the lowest class. Invalid lanes are NaN; an
        eager call raises `ValueError` if no lane is valid.

    Unbiased; piecewise constant, so its derivative is 0. Cost O(nk).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> float(jaxcal.accuracy(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([0, 0])))
        0.5
    """
    logits = checks.as_logits(logits)
    checks.require_rows(logits, "accuracy")
    labels = checks.as_labels(labels, logits)
    weights = checks.as_weights(weights, checks.rows(logits, labels), checks.compute_dtype(logits))
    value = _accuracy(logits, labels, weights)
    if not checks.is_traced(value):
        checks.raise_if_unusable(
            np.isnan(value), lambda: checks.explain_multiclass(logits, labels, weights, call="accuracy")
        )
    return value


@jax.jit
def _accuracy(logits, labels, weights):
    valid = (labels >= 0) & (labels < logits.shape[-1]) & has_softmax(logits)
    hit = (jnp.argmax(logits, axis=-1) == labels).astype(checks.compute_dtype(logits))
    return weighted_mean(jnp.where(valid, hit, jnp.nan), weights)
