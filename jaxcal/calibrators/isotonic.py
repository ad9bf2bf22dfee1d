"""Isotonic calibration: the best non-decreasing map from scores to probabilities."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks, solvers
from jaxcal.calibrators.binary import clean_rows, prepare_binary, report_binary
from jaxcal.calibrators.frequencies import FrequencyFit, count_up_to, in_order, read, usable
from jaxcal.calibrators.one_vs_rest import binary_calibrator
from jaxcal.solvers import run_totals
from jaxcal.status import Status

_INTERPOLATE = ("linear", "step")
_VARIANTS = (None, "centred", "strict")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IsotonicFit(FrequencyFit):
    """A non-decreasing map of scores, by its knots; arrays `(..., n)` for n calibration rows.

    Attributes:
        knots: scores in increasing order; one may be there several times, and after the last they are +inf.
        values: probability of outcome 1 at each knot, non-decreasing.
        complements: probability of outcome 0.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: 0, for the fit is exact.
        gradient_norm: 0.
        interpolate: "linear" or "step", static.
    """

    knots: jax.Array
    values: jax.Array
    complements: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array
    interpolate: str = jax.tree.static()

    def _pair(self, score):
        return (_stairs if self.interpolate == "step" else _polygon)(self, score)


def fit_isotonic(
    score, outcomes, *, weights=None, interpolate: str = "linear", variant: str | None = None
) -> IsotonicFit:
    r"""Isotonic regression of the outcomes on the score.

    min over non-decreasing f of  sum_i w_i (y_i - f(s_i))^2

    Rows of equal scores are pooled first. The minimizer is unique at the scores, constant on blocks of neighbours, with
    the frequency of each as its value, and the same for every proper loss, the log loss included. Between the scores:

    - `interpolate="linear"`: linear interpolation, constant outside the range (scikit-learn with
      `out_of_bounds="clip"`);
    - `interpolate="step"`: the value at the largest calibration score that is not above, or that of the first block.

    Args:
        score: `(..., n)`, any real numbers, larger where outcome 1 is likelier; outcomes: `(..., n)` in {0, 1}.
        weights: counts `(..., n)`; repeating a row equals doubling its weight, rows of weight 0 are absent.
        interpolate: static, see above.
        variant: static, with linear interpolation only. "centred": each block becomes one knot at the weighted mean of
            its scores, so that the map increases between them; blocks of frequency 0 or 1 keep both of their ends.
            "strict": those become one knot, too; the map increases strictly between the first and the last knot.

    Returns:
        `IsotonicFit` over the broadcast of the leading axes. One row, equal scores or a single outcome are no special
        cases. INVALID_INPUT, NaN, for NaN scores, other outcomes and bad weights; an eager call raises `ValueError` if
        no lane is usable.

    Infinite scores are the ends of the order: they count in their block but not in its centre, and the way from a
    finite knot to an infinite one has the value of the finite one (1/2 of both between -inf and +inf).

    Probabilities are exactly 0 below the first outcome 1 and exactly 1 above the last outcome 0, where a log loss of
    new data may be infinite; `jaxcal.laplace` guards against that. Consistent for any non-decreasing truth, at the rate
    n^(-1/3); in-sample it is optimistic, its frequencies biased towards 0 and 1 at the ends. It makes ties, so ranks
    may be lost; "strict" loses none inside. Scores whose difference is a rounding are different scores.

    The map is differentiable in scores and weights of the calibration set with the order and the blocks held fixed,
    and in new scores: for "step" and inside blocks the derivative is 0. Cost O(n log n); a new score O(log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> score, outcomes = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]), jnp.array([0, 1, 0, 1, 1])
        >>> fit = jaxcal.fit_isotonic(score, outcomes)
        >>> print(fit(jnp.array([0.0, 1.5, 2.5, 3.5, 9.0])))
        [0.   0.25 0.5  0.75 1.  ]
        >>> centred = jaxcal.fit_isotonic(score, outcomes, variant="centred")
        >>> print(centred(jnp.array([1.75, 2.5, 3.25])))
        [0.25 0.5  0.75]

    References:
        Zadrozny and Elkan, "Transforming classifier scores into accurate multiclass probability estimates", KDD 2002.
        Oron and Flournoy, "Centered isotonic regression", Statistics in Biopharmaceutical Research 2017.
    """
    if interpolate not in _INTERPOLATE:
        raise ValueError(f"interpolate must be one of {_INTERPOLATE}, got {interpolate!r}")
    if variant not in _VARIANTS:
        raise ValueError(f"variant must be one of {_VARIANTS}, got {variant!r}")
    if variant is not None and interpolate == "step":
        raise ValueError(f'variant {variant!r} is a way to interpolate; it goes with interpolate="linear" only')
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    fit = _fit(score, outcomes, weights, interpolate, variant)
    return report_binary(fit, score, outcomes, weights, "fit_isotonic")


binary_calibrator(fit_isotonic)


def isotonic_regression(values, *, weights=None) -> jax.Array:
    r"""The non-decreasing sequence that is closest to `values` in weighted squares.

    min over x_1 <= ... <= x_n of  sum_i w_i (x_i - values_i)^2

    By pooling adjacent violators: x is constant on blocks of neighbours and is the weighted mean of each. For a
    calibration map of scores, which need sorting and may be tied, use `fit_isotonic`.

    Args:
        values: `(..., n)`, finite, in the order that is asked for; for a decreasing fit negate them before and after.
        weights: `(..., n)`, non-negative. An entry of weight 0 may hold anything, and takes the value of the block it
            lies in, else of the one before it.

    Returns:
        `(..., n)` in the dtype of the values. Lanes with values that are not finite, or weights that are negative, not
        finite or all 0, are NaN; an eager call raises `ValueError` if no lane is valid.

    Differentiable in values and weights with the blocks held fixed, to every order. Cost O(n), about 40 ns an entry on
    CPU; on accelerators O(n log n) in O(log^3 n) steps.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> print(jaxcal.isotonic_regression(jnp.array([1.0, 3.0, 2.0, 5.0, 4.0])))
        [1.  2.5 2.5 4.5 4.5]

    References:
        Ayer, Brunk, Ewing, Reid and Silverman, Annals of Mathematical Statistics 1955.
    """
    values = checks.as_floats(values, "values")
    if values.ndim == 0 or values.size == 0:
        raise ValueError(f"values must have shape (..., n) and not be empty, got {values.shape}")
    weights = checks.as_weights(weights, values.shape, checks.compute_dtype(values), "values")
    result = _regress(values, weights)
    if not checks.is_traced(result):
        checks.raise_if_unusable(np.isnan(result).all(-1), lambda: _explain(values, weights))
    return result


@jax.jit
def _regress(values, weights):
    work = values.astype(checks.compute_dtype(values))
    weights = jnp.ones(work.shape[-1:], work.dtype) if weights is None else weights
    return solvers.isotonic_regression(work, weights).astype(values.dtype)


def _explain(values, weights) -> str:
    values = np.asarray(values).astype(np.float64)
    weights = np.ones(values.shape) if weights is None else np.asarray(weights).astype(np.float64)
    bad = ~(weights >= 0) | (weights == np.inf)
    if bad.any():
        return f"isotonic_regression: weights must be finite and >= 0, got {checks.first(weights, bad)}"
    if (weights.sum(-1) == 0).all():
        return "isotonic_regression: weights are all zero, so there is nothing to fit"
    values, weights = np.broadcast_arrays(values, weights)
    bad = ~np.isfinite(values) & (weights > 0)
    if bad.any():
        return f"isotonic_regression: values must be finite, got {checks.first(values, bad)}"
    return "isotonic_regression: values or weights overflow"


@partial(jax.jit, static_argnums=(3, 4))
def _fit(score, outcomes, weights, interpolate, variant):
    rows = clean_rows(score, outcomes, weights)
    ok = usable(rows)
    knots, y, w, _ = in_order(rows)
    tied = jnp.concatenate([jnp.zeros_like(knots[..., :1], bool), knots[..., 1:] == knots[..., :-1]], axis=-1)
    # a lane without any weight is invalid, and its loops must end
    w = jnp.where(ok[..., None], w, 1)
    one, zero, block = solvers.isotonic_frequencies(y, w, tied, whole=weights is None)
    if variant is not None:
        kept = jnp.zeros(one.shape, bool) if variant == "strict" else (one == 0) | (zero == 0)
        knots = jnp.where(kept | (w == 0), knots, _centres(knots, w, block))
    mark = lambda a: jnp.where(ok[..., None], a, jnp.nan)  # noqa: E731
    status = jnp.where(ok, Status.CONVERGED, Status.INVALID_INPUT).astype(jnp.int32)
    nothing = jnp.zeros_like(status)
    return IsotonicFit(
        mark(knots), mark(one), mark(zero), status, nothing, nothing.astype(one.dtype), interpolate=interpolate
    )


def _centres(score, weight, block):
    """Weighted mean score of the block of each row; scores at infinity are left out where there are others."""
    n = score.shape[-1]
    finite = jnp.isfinite(score)
    weight = jnp.where(finite, weight, 0)
    mass = read(run_totals(weight, block, n), block)
    # shares before products: nothing overflows, and a single score is its own mean
    share = weight / jnp.where(mass > 0, mass, 1)
    centre = read(run_totals(share * jnp.where(finite, score, 0), block, n), block)

    def extremes(score, finite, block):
        empty = jnp.full(n, jnp.inf, score.dtype)
        lowest = empty.at[block].min(jnp.where(finite, score, jnp.inf), indices_are_sorted=True)
        highest = (-empty).at[block].max(jnp.where(finite, score, -jnp.inf), indices_are_sorted=True)
        return lowest[block], highest[block]

    flat = [a.reshape(-1, n) for a in (lax.stop_gradient(score), finite, block)]
    lowest, highest = (a.reshape(score.shape) for a in jax.vmap(extremes)(*flat))
    centre = jnp.where(centre < lowest, lowest, jnp.where(centre > highest, highest, centre))  # rounding
    return jnp.where(mass > 0, centre, score)


@jax.jit
def _stairs(fit, score):
    below = count_up_to(fit.knots, score, equal=True)
    place = jnp.maximum(below - 1, 0)
    return read(fit.complements, place), read(fit.values, place)


@jax.jit
def _polygon(fit, score):
    """Interpolated probabilities of 0 and 1: sums of products >= 0, so that small ones keep their digits."""
    n = fit.knots.shape[-1]
    place = jnp.maximum(count_up_to(fit.knots, score, equal=True) - 1, 0)
    following = jnp.minimum(place + 1, n - 1)
    low, high = read(fit.knots, place), read(fit.knots, following)
    to_low, to_high = _shares(jnp.where(score > low, score, low), low, high)

    def between(table):
        a, b = read(table, place), read(table, following)
        value = to_low * a + to_high * b
        least, most = jnp.where(a < b, a, b), jnp.where(a < b, b, a)
        return jnp.where(value < least, least, jnp.where(value > most, most, value))  # rounding

    return between(fit.complements), between(fit.values)


def _shares(x, low, high):
    """How much of the knots `low` and `high` there is at low <= x < high."""
    start, end = jnp.isfinite(low), jnp.isfinite(high)
    inside = start & end & (low < high)
    # towards an infinite knot all is of the finite one
    far = jnp.where((low == high) | start | (x == low), 0, jnp.where(end, 1, 0.5)).astype(x.dtype)
    x, low, high = jnp.where(inside, x, 0), jnp.where(inside, low, 0), jnp.where(inside, high, 1)
    # the distance of two numbers can overflow, that of their quarters cannot
    huge = jnp.maximum(jnp.abs(low), jnp.abs(high)) > jnp.finfo(x.dtype).max / 4
    x, low, high = (jnp.where(huge, v / 4, v) for v in (x, low, high))
    span = high - low
    inside &= span > 0  # that of two numbers next to 0 may be flushed to 0
    span = jnp.where(inside, span, 1)
    return jnp.where(inside, (high - x) / span, 1 - far), jnp.where(inside, (x - low) / span, far)
