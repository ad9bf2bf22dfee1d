"""Area under the ROC curve, ties counted half."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.metrics.events import as_events, clean, report
from jaxcal.solvers import argsort, run_totals, runs, total


def auroc(scores, y, *, weights=None) -> jax.Array:
    r"""Area under the ROC curve: how often an event outscores a non-event.

    P(s_1 > s_0) + P(s_1 = s_0) / 2 over all pairs of a row with y = 1 and a row with y = 0 (Mann-Whitney).

    Args:
        scores: `(..., n)`, any real numbers, -inf and inf too: probabilities, log-odds, ...
        y: outcomes `(..., n)` in {0, 1}.
        weights: counts `(..., n)`; a pair counts the product of the weights.

    Returns:
        `(...)`, in [0, 1], float32 for half-precision input; NaN where one of the two classes is missing, as no pair
        exists. Lanes with NaN scores, other outcomes or bad weights are NaN; an eager call raises `ValueError` if all
        lanes are invalid. float32 keeps 1e-6 at n = 1e6.

    Unbiased. It measures ranking, not calibration: strictly increasing maps of the scores leave it alone. Piecewise
    constant in the scores (derivative 0), differentiable in the weights. Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> float(jaxcal.auroc(jnp.array([-1.0, 0.5, 0.5, 3.0]), jnp.array([0, 0, 1, 1])))
        0.875

    References:
        Hanley and McNeil, Radiology 1982.
    """
    scores, y, weights = as_events(scores, y, weights, name="scores")
    return report(_auroc(scores, y, weights), scores, y, weights, "auroc", scores=True)


@jax.jit
def _auroc(scores, y, weights):
    events = clean(scores, y, weights, scores=True)
    s, y, w = events.p, events.y, events.w
    order = argsort(s)
    s = jnp.take_along_axis(s, order, axis=-1)
    y, w = (_ordered(a, order) for a in (y, w))
    n = s.shape[-1]
    run = runs(s)
    # shares of the classes a score, so that no product of counts is rounded or overflows
    positive, negative = (run_totals(w * c, run, n) for c in (y, 1 - y))
    positive, negative = (c / jnp.where(total(c) > 0, total(c), jnp.nan)[..., None] for c in (positive, negative))
    below = lax.cumsum(negative, axis=negative.ndim - 1) - negative / 2
    return total(positive * below) * events.poison


def _ordered(values, order):
    shape = jnp.broadcast_shapes(values.shape, order.shape)
    return jnp.take_along_axis(jnp.broadcast_to(values, shape), jnp.broadcast_to(order, shape), axis=-1)
