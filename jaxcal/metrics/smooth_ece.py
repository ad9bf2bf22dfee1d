"""Smooth calibration error: the width at which smoothed residuals are as small as the smoothing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap

from jaxcal import checks
from jaxcal.metrics.events import Events, as_events, clean, report
from jaxcal.metrics.groups import group
from jaxcal.metrics.smoothing import enough_cells, lay_out, smoothed_mass, spectrum
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import argsort, bracketed_root, total

# Cells of the grid that serves ordinary data (bandwidths above 5e-4, where calibrated forecasts come with n = 1e8, or
# less where the scores are concentrated), and of the one that serves all: its 4 cells a bandwidth are 1.9e-6, and half
# of that is an answer for everything below.
_GRID, _FINE_GRID = 1 << 13, 1 << 21

# A derivative takes one bandwidth, so that one grid is enough: bandwidths from 2.4e-4.
_DERIVATIVE_GRID = 1 << 14

# Below this bandwidth nothing is worth telling apart: a tenth of the accuracy.
_SMALLEST_TOP = 1e-7

# The secant iteration takes 5 to 8 evaluations; bisection from 1 to 1e-7 to the last digit of float64 would take 60.
_MAX_STEPS = 60


@without_bootstrap("its bias is of the order of its spread; take debiased_ece with method='centred'")
def smooth_ece(p, y, *, bandwidth=None, weights=None) -> jax.Array:
    r"""Smooth calibration error (smECE).

    smECE_s = int_0^1 |(1/n) sum_i (y_i - p_i) K_s(t, p_i)| dt,   smECE = the one s with smECE_s = s,

    K_s the Gaussian kernel of standard deviation s, reflected at 0 and 1 as often as needed. smECE_s decreases in s,
    from sum |sum of residuals| / n over groups of equal scores at s = 0 to |mean residual| at s = inf.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        bandwidth: None for smECE; or s > 0, a number or `(...)`, for smECE_s.
        weights: counts `(..., n)`.

    Returns:
        `(...)`, within 1e-6 of the exact value for all data and bandwidths from 2e-6, in float32 as well. NaN in
        invalid lanes (an eager call raises `ValueError` if no lane is valid) and for smaller bandwidths, unless the
        scores are so few or concentrated that they are resolved.

    Estimates a consistent measure of calibration: up to constants between the distance to the nearest calibrated
    forecast and its square root. Its bias is positive, 0.3 n^(-1/3) for calibrated forecasts, p uniform. No bins to
    choose, and continuous in p. Differentiable in p, y, weights and bandwidth, once, by the implicit function theorem;
    the derivative is NaN at 0, a kink, and below 2.4e-4 where the scores are spread out.
    Cost O(n log n), and 10 transforms of 2^14 points (2 ms) a lane. Values below 5e-4 of scores that are spread out
    are found on a finer grid, one lane after the other, in up to some seconds.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p = jnp.array([0.05, 0.12, 0.21, 0.30, 0.38, 0.47, 0.55, 0.68, 0.79, 0.93])
        >>> y = jnp.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1])
        >>> print(f"{jaxcal.smooth_ece(p, y):.5f} {jaxcal.smooth_ece(p, y, bandwidth=0.05):.5f}")
        0.09497 0.23026

    References:
        Blasiok and Nakkiran, "Smooth ECE", ICLR 2024.
    """
    p, y, weights = as_events(p, y, weights)
    bandwidth = as_bandwidth(bandwidth, p, y, weights)
    return report(_smooth_ece(p, y, weights, bandwidth), p, y, weights, "smooth_ece")


def as_bandwidth(bandwidth, p, y, weights):
    """Positive, in the dtype of the work, with a shape that broadcasts against the leading axes; None stays None."""
    if bandwidth is None:
        return None
    bandwidth = checks.as_array(bandwidth, "bandwidth")
    if jnp.issubdtype(bandwidth.dtype, jnp.complexfloating):
        raise TypeError(f"bandwidth must be real, got dtype {bandwidth.dtype}")
    lanes = np.broadcast_shapes(*(a.shape[:-1] for a in (p, y, weights) if a is not None))
    try:
        np.broadcast_shapes(bandwidth.shape, lanes)
    except ValueError as error:
        raise ValueError(f"bandwidth must broadcast against the batch axes {lanes}, got {bandwidth.shape}") from error
    if not checks.is_traced(bandwidth) and not (np.asarray(bandwidth) > 0).all():
        raise ValueError(f"bandwidth must be > 0, got {bandwidth}")
    return bandwidth.astype(checks.compute_dtype(p))


@jax.jit
def _smooth_ece(p, y, weights, bandwidth):
    events = clean(p, y, weights)
    return smooth_value(events, bandwidth) * events.poison


def smooth_value(events: Events, bandwidth) -> jax.Array:
    """smECE, or smECE_s for a bandwidth, inside a compiled function; without poison."""
    lanes = jnp.broadcast_shapes(events.p.shape[:-1], events.y.shape[:-1], events.w.shape[:-1])
    if bandwidth is None:
        return _value(events.p, events.y, events.weights, jnp.zeros(lanes, events.p.dtype), False)
    bandwidth = jnp.broadcast_to(bandwidth, jnp.broadcast_shapes(lanes, bandwidth.shape))
    return _value(events.p, events.y, events.weights, bandwidth, True)


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _value(p, y, w, bandwidth, fixed):
    groups = group(Events(p, y, w, None))
    n, shape = p.shape[-1], (*bandwidth.shape, p.shape[-1])
    share = groups.gap / _mass(p, w)[..., None]
    score, share = (jnp.broadcast_to(a, shape).reshape(-1, n) for a in (groups.score, share))
    limit = total(jnp.abs(share))  # smECE_s at s = 0, so it is an upper bound
    top = bandwidth.reshape(-1) if fixed else jnp.maximum(limit, _SMALLEST_TOP)
    value, bottom = _on_grid(score, share, top, _GRID, fixed)
    again = sequential_vmap(partial(_again, enough_cells(n, _FINE_GRID, _GRID), fixed))
    value, bottom = jax.vmap(again)(score, share, top, value, bottom)
    rest = jnp.nan if fixed else jnp.minimum(limit, bottom / 2)
    return jnp.where(jnp.isnan(value), rest, value).reshape(bandwidth.shape)


def _on_grid(score, share, top, num_cells, fixed):
    """The value, NaN where the grid does not resolve it, and the smallest bandwidth that it resolves."""
    layout = lay_out(score, num_cells, top)
    bottom = layout.smallest_bandwidth
    coefficients = spectrum(layout, score, share)
    if fixed:
        return jnp.where(top >= bottom, smoothed_mass(layout, coefficients, top), jnp.nan), bottom
    close = 4 * jnp.finfo(top.dtype).eps
    root = bracketed_root(
        lambda s: (smoothed_mass(layout, coefficients, s) - s, ()),
        jnp.maximum(top / 4, bottom),
        jnp.full_like(top, -1.5),  # between -1 (bias) and -1.5 (noise)
        bottom,
        jnp.maximum(top, bottom),
        accept=lambda value, step, aux: jnp.abs(step) <= close * top,
        active=top >= 0,
        max_steps=_MAX_STEPS,
    )
    return jnp.where(root.at_lower, jnp.nan, root.x), bottom


def _again(num_cells, fixed, score, share, top, value, bottom):
    """One lane on a finer grid, if it needs one."""
    finer = top if fixed else jnp.minimum(top, bottom)
    return lax.cond(
        jnp.isnan(value) & ~jnp.isnan(top),  # not for weights that are not finite
        lambda: _on_grid(score, share, finer, num_cells, fixed),
        lambda: (value, bottom),
    )


@_value.defjvp
def _(fixed, primals, tangents):
    """Row by row: tied rows move apart. Positions are differentiated through the moments of their cells."""
    p, y, w, bandwidth = primals
    value = _value(*primals, fixed)
    width = bandwidth if fixed else value
    order, n = argsort(p), p.shape[-1]
    dw = tangents[2]
    if w is None:
        w, dw = jnp.ones_like(p), jnp.zeros_like(p)

    def rows(a):
        return jnp.broadcast_to(jnp.take_along_axis(a, order, axis=-1), (*width.shape, n))

    data, directions = [[rows(a) for a in group] for group in ((p, y, w), (*tangents[:2], dw))]
    layout = lay_out(data[0], enough_cells(n, _DERIVATIVE_GRID, _DERIVATIVE_GRID), width)

    def smoothed(z, y, w, s):
        share = w * (y - z) / _mass(z, w)[..., None]
        return smoothed_mass(layout, spectrum(layout, z, share), s)

    still = [jnp.zeros_like(a) for a in data]
    slope = jax.jvp(smoothed, (*data, width), (*directions, tangents[3] if fixed else jnp.zeros_like(width)))[1]
    if not fixed:
        slope = slope / (1 - jax.jvp(smoothed, (*data, width), (*still, jnp.ones_like(width)))[1])
    return value, slope * jnp.where(width >= layout.smallest_bandwidth, 1, jnp.nan)


def _mass(p, w):
    """Sum of the weights `(...)`, 1 if they are all 0."""
    if w is None:
        return jnp.full((1,) * (p.ndim - 1), p.shape[-1], p.dtype)
    mass = total(w)
    return jnp.where(mass > 0, mass, 1)
