"""The data of a smooth reliability diagram: kernel regression of the outcome on the forecast."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import group
from jaxcal.metrics.kernels import positive_or_nan
from jaxcal.metrics.smooth_ece import as_bandwidth, smooth_value
from jaxcal.metrics.smoothing import lay_out, spectrum

# No plot shows more, and 8 cells of the grid a bandwidth are right to 1e-9 of the mass.
_SMALLEST_BANDWIDTH = 2.0**-10
_CELLS = 1 << 13

# exp(-(k pi s)^2 / 2) < 1e-14 beyond, for the smallest bandwidth s.
_WAVES = 2624

# Beyond, exp(-(pi s)^2 / 2) < 1e-214: nothing but the mean is left.
_LARGEST_BANDWIDTH = 10.0

# Share of the data in reach of a point below which rounding of float32 (1e-7) would show in the frequency.
_SMALLEST_SHARE = 1e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SmoothReliabilityCurve:
    """Smooth reliability of a binary event; arrays are `(..., num_points)` unless said otherwise.

    Attributes:
        points: where the curves are taken, evenly from 0 to 1.
        frequency: smoothed mean outcome there, NaN where no forecasts are near.
        density: smoothed density of the forecasts, integral 1.
        bandwidth: standard deviation of the kernel that was used `(...)`.
        count: rows (sum of weights) `(...)`.
    """

    points: jax.Array
    frequency: jax.Array
    density: jax.Array
    bandwidth: jax.Array
    count: jax.Array


def smooth_reliability_curve(p, y, *, bandwidth=None, num_points: int = 201, weights=None) -> SmoothReliabilityCurve:
    r"""Frequency of the event as a smooth function of the forecast, and the density of the forecasts.

    mu_s(t) = sum_i y_i K_s(t, p_i) / sum_i K_s(t, p_i), with the reflected Gaussian kernel of `smooth_ece`.

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        bandwidth: standard deviation s > 0 of the kernel, a number or `(...)`; None takes smECE. Less than 1/1024, what
            a plot can show, counts as that; at inf the frequency is the mean outcome.
        num_points: number of points t from 0 to 1, static.
        weights: counts `(..., n)`.

    Returns:
        `SmoothReliabilityCurve`. The frequency is NaN where less than 1e-5 of the data are in reach (weighted by the
        kernel, 1 at no distance). All is NaN in invalid lanes; an eager call raises `ValueError` if no lane is valid.

    The integral of |mu_s(t) - t| density(t) is near smECE_s, not equal to it (that smooths the residual y - p, not y).
    Kernel regression is biased towards the mean of its neighbourhood, by about s^2. Data for a plot: not
    differentiable. Cost O(n log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> p, y = jnp.array([0.1, 0.2, 0.7, 0.9]), jnp.array([0, 0, 1, 1])
        >>> curve = jaxcal.smooth_reliability_curve(p, y, bandwidth=0.2, num_points=3)
        >>> [f"{x:.3f}" for x in curve.frequency.tolist()]
        ['0.001', '0.614', '1.000']

    References:
        Blasiok and Nakkiran, "Smooth ECE", ICLR 2024.
    """
    num_points = checks.require_count(num_points, "num_points", 2)
    p, y, weights = as_events(p, y, weights)
    curve = _curve(p, y, weights, as_bandwidth(bandwidth, p, y, weights), num_points)
    report(curve.density, p, y, weights, "smooth_reliability_curve")
    return curve


@jax.jit(static_argnums=4)
def _curve(p, y, weights, bandwidth, num_points):
    events = jax.lax.stop_gradient(clean(p, y, weights))
    width = smooth_value(events, None) if bandwidth is None else positive_or_nan(bandwidth, events.p.dtype)
    width = jnp.maximum(width, _SMALLEST_BANDWIDTH) * events.poison
    groups = group(events)
    layout = lay_out(groups.score, _CELLS, jnp.ones(groups.score.shape[:-1], groups.score.dtype))  # nothing is cut
    sigma = jnp.minimum(width, _LARGEST_BANDWIDTH)[..., None]
    damping = jnp.exp(-((jnp.arange(_WAVES) * (math.pi * sigma)) ** 2) / 2)
    all_rows, positive = (
        _at_points(spectrum(layout, groups.score, a)[..., :_WAVES] * damping, num_points)
        for a in (groups.weight, groups.positive)
    )
    mass = events.mass[..., None]
    near = all_rows * width[..., None] * math.sqrt(2 * math.pi) >= _SMALLEST_SHARE * mass
    frequency = jnp.where(near, jnp.clip(positive / jnp.where(near, all_rows, 1), 0, 1), jnp.nan)
    points = jnp.asarray(np.arange(num_points) / (num_points - 1), frequency.dtype)
    return SmoothReliabilityCurve(
        jnp.broadcast_to(points, frequency.shape),
        frequency,
        jnp.maximum(all_rows, 0) / mass,
        jnp.broadcast_to(width, frequency.shape[:-1]),
        jnp.broadcast_to(events.mass * events.poison, frequency.shape[:-1]),
    )


def _at_points(coefficients, num_points):
    """c_0 + 2 sum_k c_k cos(k pi t) at evenly spaced points; angles are reduced as integers."""
    half = num_points - 1
    angle = jnp.arange(_WAVES)[:, None] * jnp.arange(num_points) % (2 * half)
    waves = jnp.asarray(np.cos(np.pi * np.arange(2 * half) / half), coefficients.dtype)[angle]
    return 2 * jnp.matmul(coefficients, waves, precision="highest") - coefficients[..., :1]
