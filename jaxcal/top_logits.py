"""The largest logits of each row, and of the others what the log loss near a temperature needs.

With gaps g = z - max z and u = 1/T, the other classes enter the log loss only by R(u) = log sum exp(u g). Kept are
R(1), and R, R', R'' at one u, that of the fitted temperature: mean and variance of the gaps under their softmax.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.temperature import TemperatureFit
from jaxcal.decomposition import Decomposition, assemble
from jaxcal.losses import log_loss, own_class, weighted_mean
from jaxcal.solvers import log_softmax
from jaxcal.status import Status

# Temperatures that are looked for lie between half and twice the kept one: R is not known to third order beyond.
_REACH = float(np.log(2))

# Halvings of that interval, to 1e-7 in log u.
_HALVINGS = 24


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TopLogits:
    """The m largest logits of each row and a summary of the rest; batch axes in front.

    Attributes:
        classes: of the m largest logits in descending order, int32 `(..., n, m)`.
        logits: those, less the largest, `(..., n, m)`.
        own: logit of the label, less the largest, `(..., n)`.
        rest: log sum exp of the other logits, less the largest, `(..., n)`.
        rest_scaled: the same of u times the logits, and their mean and variance under that softmax, `(..., n, 3)`.
        inverse_temperature: that u, `(...)`.
        num_classes: k.
    """

    classes: jax.Array
    logits: jax.Array
    own: jax.Array
    rest: jax.Array
    rest_scaled: jax.Array
    inverse_temperature: jax.Array
    num_classes: int = field(metadata={"static": True})

    def log_probabilities(self, *, calibrated: bool = False) -> jax.Array:
        """Log-probabilities of the m classes, `(..., n, m)`, as they are or after the temperature; both are exact."""
        if not calibrated:
            return _log_p(self.logits, self.rest)[..., :-1]
        u = jnp.asarray(self.inverse_temperature)[..., None, None]
        return _log_p(u * self.logits, self.rest_scaled[..., 0])[..., :-1]

    def decompose(self, labels, *, weights=None) -> Decomposition:
        """Risk, calibration and refinement under the log loss after temperature scaling, for these or other weights.

        Args:
            labels: those that the rows were made with, `(n,)`; weights: counts `(..., n)`, 0 for rows left out. Lanes
                of weights are computed at once: with many, a few at a time take less memory.

        Returns:
            `jaxcal.Decomposition` over the broadcast of the batch axes. The risk is exact, and with the weights of the
            fit so are temperature and refinement. With others, at a distance d from u, the loss of a row is off by
            about its probability outside the m classes times |R'''| d^3 / 6: with a quarter of the probability outside,
            by 1e-5 where the temperature moves by 4 % and by 3e-4 where it moves by 15 %, the temperature itself by
            1e-4 and 1e-3 of it. NaN and NOT_CONVERGED where it is not between half and twice the kept one.
        """
        labels, weights = jnp.asarray(labels), None if weights is None else jnp.asarray(weights, self.own.dtype)
        result = _decompose(self, self.num_classes, labels, weights)
        if not checks.is_traced(result):
            bad = np.asarray(result.status) >= Status.INVALID_INPUT
            checks.raise_if_unusable(bad, lambda: "decompose: no usable data: bad weights, or logits that were invalid")
        return result


@partial(jax.jit, static_argnums=0)
def thin(m: int, logits, labels, inverse_temperature) -> TopLogits:
    """The m < k largest of logits `(..., n, k)`; around 1/T = 1 where `inverse_temperature` `(...)` is unusable."""
    z = logits.astype(checks.compute_dtype(logits))
    gaps = z - jnp.max(z, axis=-1, keepdims=True)
    top, classes = lax.top_k(gaps, m)
    others = jnp.put_along_axis(gaps, classes, -jnp.inf, axis=-1, inplace=False)
    usable = jnp.isfinite(inverse_temperature) & (inverse_temperature > 0)
    u = jnp.where(usable, inverse_temperature, 1).astype(z.dtype)
    peak = jnp.max(others, axis=-1)
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    below = others - peak[..., None]  # the largest of them may be a mask of -1e9, whose rounding exceeds every gap
    total = peak + jnp.log(jnp.sum(jnp.exp(below), axis=-1))
    mass = jnp.exp(u[..., None, None] * below)
    at_u = u[..., None] * peak + jnp.log(jnp.sum(mass, axis=-1))
    p = mass / jnp.where(at_u == -jnp.inf, 1, jnp.sum(mass, axis=-1))[..., None]
    mean = jnp.sum(jnp.where(p > 0, p * below, 0), axis=-1)
    variance = jnp.sum(jnp.where(p > 0, p * (below - mean[..., None]) ** 2, 0), axis=-1)
    mean = jnp.where(at_u == -jnp.inf, 0, peak + mean)
    own = own_class(gaps, labels)
    return TopLogits(classes, top, own, total, jnp.stack([at_u, mean, variance], axis=-1), u, z.shape[-1])


def _log_p(top, rest):
    """Log-probabilities of the m classes and of all others together, `(..., n, m + 1)`."""
    rows = np.broadcast_shapes(top.shape[:-1], rest.shape)
    top = jnp.broadcast_to(top, (*rows, top.shape[-1]))
    return log_softmax(jnp.concatenate([top, jnp.broadcast_to(rest, rows)[..., None]], axis=-1))


@partial(jax.jit, static_argnums=1)
def _decompose(top, num_classes, labels, weights):
    batch = np.broadcast_shapes(top.own.shape, () if weights is None else weights.shape)[:-1]
    centre = jnp.broadcast_to(top.inverse_temperature, batch)
    lse, average, variance = jnp.moveaxis(top.rest_scaled, -1, 0)
    mean = lambda values: jnp.broadcast_to(weighted_mean(values, weights), batch)  # noqa: E731

    def at(u):
        """Mean loss and its derivative in u."""
        u = u[..., None]
        away = u - centre[..., None]
        log_p = _log_p(u[..., None] * top.logits, lse + away * (average + 0.5 * away * variance))
        p = jnp.exp(log_p)
        slope = jnp.sum(jnp.where(p[..., :-1] > 0, p[..., :-1] * top.logits, 0), axis=-1)
        slope += p[..., -1] * (average + away * variance) - top.own
        return mean(-log_p[..., 0] - u * top.own), mean(slope)

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        beyond = at(centre * jnp.exp(middle))[1] > 0
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    ends = jnp.full_like(centre, -_REACH), jnp.full_like(centre, _REACH)
    (_, first), (_, last) = (at(centre * jnp.exp(end)) for end in ends)
    low, high = lax.fori_loop(0, _HALVINGS, halve, ends)
    constant = (first == 0) & (last == 0)
    u = jnp.where(constant, 1, centre * jnp.exp((low + high) / 2))
    risk = mean(-_log_p(top.logits, top.rest)[..., 0] - top.own)
    found, slope = at(u)

    status = jnp.where((first <= 0) & (last >= 0), Status.CONVERGED, Status.NOT_CONVERGED)
    status = jnp.where(constant, Status.NOT_IDENTIFIED, status)
    status = jnp.where(risk == jnp.inf, Status.IMPOSSIBLE_EVENT, status)
    status = jnp.where(jnp.isnan(risk), Status.INVALID_INPUT, status).astype(jnp.int32)
    failed = status >= Status.NOT_CONVERGED
    bad = jnp.where(status == Status.IMPOSSIBLE_EVENT, jnp.inf, jnp.nan)
    refinement = jnp.where(failed, bad, jnp.minimum(found, risk))
    u, slope = (jnp.where(failed, jnp.nan, a) for a in (u, u * jnp.abs(slope)))
    fit = TemperatureFit(u, refinement, status, jnp.full_like(status, _HALVINGS), slope)
    return assemble(log_loss, num_classes, labels, weights, risk, refinement, status, fit)
