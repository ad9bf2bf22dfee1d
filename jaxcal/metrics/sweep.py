"""Monotone sweep: as many equal-mass bins as leave the observed frequencies increasing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal.metrics.binned import norm_of, require_norm
from jaxcal.metrics.events import as_events, clean, report
from jaxcal.metrics.groups import Groups, group
from jaxcal.resampling import without_bootstrap
from jaxcal.solvers import mass_bin, run_totals

# Bins whose frequencies are compared in one step: most sweeps end below it, and a longer one gains nothing.
_CHUNK = 128

# The number of bins is an int32 and at most the number of rows; more are never looked at.
_MOST_BINS = 1 << 30

# Steps of 128 bins after which the search gives up, about 10 seconds; it takes b^2 / 256 of them to b bins.
_MOST_STEPS = 1 << 22


class SweepResult(NamedTuple):
    """Calibration error and the number of bins that the sweep chose; arrays `(...)`."""

    ece: jax.Array
    num_bins: jax.Array  # int32; 0 in invalid lanes


@without_bootstrap("its bias is of the order of its spread; take debiased_ece with method='centred'")
def ece_sweep(p, y, *, norm: str = "l1", weights=None) -> SweepResult:
    r"""Calibration error from the largest number of equal-mass bins up to which frequencies increase (monotone sweep).

    b* = max {b <= n: the frequencies ybar_1 <= ybar_2 <= ... of b' bins do not decrease, for every b' <= b}

    Args:
        p: probabilities `(..., n)` in [0, 1]; y: outcomes `(..., n)` in {0, 1}.
        norm: "l1", "l2" or "max" as for `jaxcal.ece`, static.
        weights: counts `(..., n)`; their sum stands for n.

    Returns:
        `SweepResult(ece, num_bins)`, each `(...)`; `ece` is that of `ece(num_bins=b*, bins="mass")`: equal scores stay
        together, and empty bins are passed over. NaN and 0 bins where frequencies still increase in some 30,000 bins,
        as the search then gives up. Invalid lanes are NaN; an eager call raises `ValueError` if no lane is valid.

    A plug-in estimate of the calibration error: still biased upwards for calibrated forecasts, less so than with a
    fixed number of bins, because noise soon breaks the order. It supposes that the true frequency increases with p.
    Differentiable in p and weights with bins held fixed. Cost O(n log n) and b* steps of the comparison, of which only
    the bins between the lowest score with an outcome 1 and the highest with an outcome 0 are looked at.

    Examples:
        >>> import jaxcal
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(100_000)
        >>> y = rng.random(p.shape) < p**2
        >>> result = jaxcal.ece_sweep(p, y)
        >>> print(f"{result.ece:.2f} {result.num_bins}")  # E (p - p^2) = 1/6, standard error 0.001
        0.17 38

    References:
        Roelofs, Cain, Shlens and Mozer, "Mitigating Bias in Calibration Error Estimation", AISTATS 2022, algorithm 1.
    """
    require_norm(norm)
    p, y, weights = as_events(p, y, weights)
    return report(_sweep(p, y, weights, norm), p, y, weights, "ece_sweep")


@jax.jit(static_argnums=3)
def _sweep(p, y, weights, norm):
    events = clean(p, y, weights)
    groups = group(events)
    n, lanes = groups.score.shape[-1], groups.weight.shape[:-1]
    groups = Groups(*(jnp.broadcast_to(a, (*lanes, n)) for a in groups))
    most = jnp.clip(jnp.floor(events.mass), 1, _MOST_BINS).astype(jnp.int32)
    flat = (a.reshape(-1, n) for a in lax.stop_gradient(groups))
    num_bins, run, ended = jax.vmap(_choose)(*flat, jnp.broadcast_to(most, lanes).reshape(-1))
    num_bins, run = jnp.where(ended, num_bins, 0).reshape(lanes), run.reshape(*lanes, n)
    weight, gap = run_totals(groups.weight, run, n), run_totals(groups.gap, run, n)
    value = norm_of(weight, gap, events.mass, norm) * events.poison
    value = jnp.where(ended.reshape(lanes), value, jnp.nan)
    return SweepResult(value, jnp.where(jnp.isnan(events.poison), 0, num_bins))


def _choose(score, weight, positive, most):
    """Number of bins of one lane, at most `most`, and the number of the bin of each group, empty ones not counted."""
    n = score.shape[-1]
    zero = jnp.zeros(1, weight.dtype)
    # weight and outcomes 1 below each group; the last entry is all there is
    below, hits = (jnp.concatenate([zero, jnp.cumsum(a)]) for a in (weight, positive))
    mass = below[-1]
    # frequencies are 0 before the first outcome 1 and 1 after the last outcome 0: nothing to compare there
    first = jnp.argmax(positive > 0)
    last = n - 1 - jnp.argmax((weight > positive)[::-1])
    always = (last <= first) | ~jnp.any(positive > 0) | ~jnp.any(weight > positive)

    def start(b, bins):
        """First group of each bin, n for what is beyond the last."""

        def halve(_, ends):
            low, high = ends  # the first group with bin >= j is in [low, high]
            middle = (low + high) // 2
            found = mass_bin(below[middle], mass, b) >= bins
            return jnp.where(found, low, middle + 1), jnp.where(found, middle, high)

        ends = (jnp.zeros_like(bins), jnp.full_like(bins, n))
        low, _ = lax.fori_loop(0, n.bit_length(), lambda i, e: _where(e[0] < e[1], halve(i, e), e), ends)
        return jnp.where(bins < b, low, n)

    # groups whose frequencies do not decrease stay so in any bins
    held = lax.cummax(jnp.where(weight > 0, jnp.arange(n), 0))
    before = jnp.concatenate([held[:1], held[:-1]])
    always |= ~jnp.any((weight > 0) & (positive[before] * weight > positive * weight[before]))
    # from here on every group is alone in its bin, and more bins change nothing
    lightest = jnp.min(jnp.where(weight > 0, weight, jnp.inf))
    enough = jnp.minimum(jnp.ceil(2 * mass / lightest) + 1, most.astype(mass.dtype)).astype(jnp.int32)

    def keep_going(state):
        b, *_, broken, steps = state
        return ~broken & (b <= enough) & (steps < _MOST_STEPS)

    def advance(state):
        b, j, count, ones, _, steps = state
        j = jnp.where(j < 0, mass_bin(below[first], mass, b), j)  # a new number of bins
        ends = start(b, j + jnp.arange(_CHUNK + 1, dtype=jnp.int32))
        counts, outcomes = jnp.diff(below[ends]), jnp.diff(hits[ends])
        # each occupied bin is compared with the last occupied one before it
        counts, outcomes = jnp.append(count, counts), jnp.append(ones, outcomes)
        place = lax.cummax(jnp.where(counts > 0, jnp.arange(_CHUNK + 1), 0))
        counts, outcomes = counts[place], outcomes[place]
        broken = jnp.any(outcomes[:-1] * counts[1:] > outcomes[1:] * counts[:-1])
        j = j + _CHUNK
        through = j > mass_bin(below[last], mass, b)
        nothing = jnp.zeros_like(count)
        following = _where(through, (b + 1, jnp.int32(-1), nothing, nothing), (b, j, counts[-1], outcomes[-1]))
        return *_where(broken, (b, j, count, ones), following), broken, steps + 1

    state = (jnp.int32(2), jnp.int32(-1), jnp.zeros_like(mass), jnp.zeros_like(mass), always, jnp.int32(0))
    reached, *_, broken, _ = lax.while_loop(keep_going, advance, state)
    b = jnp.where(always | (reached > enough), most, reached - 1)
    ended = always | broken | (reached > enough)
    bins = mass_bin(below[:-1], mass, b)
    new = jnp.concatenate([jnp.zeros(1, jnp.int32), (bins[1:] != bins[:-1]).astype(jnp.int32)])
    return b, jnp.cumsum(new), ended


def _where(condition, yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
