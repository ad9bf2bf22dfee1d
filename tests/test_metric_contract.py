"""What every metric of a binary event promises: one trace a shape, lanes, weights as counts, dtypes, bad input."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

N = 12
RNG = np.random.default_rng(7)
# two lanes with ties, no score on a bin edge of 5 bins
P = np.array([RNG.choice([0.07, 0.13, 0.31, 0.33, 0.55, 0.71, 0.88, 0.93], N) for _ in range(2)]).astype(np.float32)
Y = (RNG.random((2, N)) < 0.5).astype(np.int32)
COUNTS = np.stack([RNG.permutation([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3]) for _ in range(2)])  # 16 rows a lane


class Metric(NamedTuple):
    """One entry: the call, what it promises, and how far float32 may be off in units of eps."""

    call: Callable  # (p, y, weights=None) to one array (...)
    differentiable: bool | str = True  # "p": not in the weights, which must be whole
    rounding: float = 64
    exists: bool = True  # on the data above, for every lane
    variant: bool = False  # of an entry above, with which it shares what comes before and after the formula


def _p_value(test, **options):
    return lambda p, y, **kw: test(p, y, **options, **kw).p_value


def _fields(metric, **options):
    """All result arrays in one number, with a factor of its own for each; each is tested for its value elsewhere."""

    def call(p, y, **kw):
        arrays = [a for a in jax.tree.leaves(metric(p, y, **options, **kw)) if jnp.issubdtype(a.dtype, jnp.floating)]
        return sum((0.5 + 0.1 * k) * a for k, a in enumerate(arrays))

    return call


METRICS = {
    "ece": Metric(lambda p, y, **kw: jaxcal.ece(p, y, num_bins=5, **kw)),
    "smooth_ece": Metric(jaxcal.smooth_ece),
    "smooth_ece, bandwidth": Metric(lambda p, y, **kw: jaxcal.smooth_ece(p, y, bandwidth=0.07, **kw), variant=True),
    "smooth_reliability_curve": Metric(
        lambda p, y, **kw: jaxcal.smooth_reliability_curve(p, y, bandwidth=0.1, num_points=2, **kw).frequency[..., 1],
        differentiable=False,
    ),
    "cutoff_calibration_error": Metric(jaxcal.cutoff_calibration_error),
    "kolmogorov_smirnov_calibration": Metric(
        _p_value(jaxcal.kolmogorov_smirnov_calibration), differentiable=False, rounding=300
    ),
    "spiegelhalter_test": Metric(_p_value(jaxcal.spiegelhalter_test), differentiable=False, rounding=300),
    "ace": Metric(lambda p, y, **kw: jaxcal.ace(p, y, num_bins=7, **kw)),
    "debiased_ece": Metric(lambda p, y, **kw: jaxcal.debiased_ece(p, y, num_bins=2, **kw), differentiable="p"),
    "debiased_ece, u": Metric(
        lambda p, y, **kw: jaxcal.debiased_ece(p, y, num_bins=2, estimator="u", **kw), differentiable="p", variant=True
    ),
    "debiased_ece, tcal": Metric(
        lambda p, y, **kw: jaxcal.debiased_ece(p, y, num_bins=5, estimator="tcal", **kw),
        differentiable="p",
        variant=True,
    ),
    "ece_sweep": Metric(lambda p, y, **kw: jaxcal.ece_sweep(p, y, **kw).ece),
    "rank_ece": Metric(jaxcal.rank_ece, differentiable="p"),
    "rank_ece_interval": Metric(
        lambda p, y, **kw: jaxcal.rank_ece_interval(p, y, **kw).upper,
        differentiable="p",
        variant=True,
    ),
    "rank_ece_test": Metric(_p_value(jaxcal.rank_ece_test), differentiable=False, rounding=1000),
    "rank_ece_test, paper": Metric(
        _p_value(jaxcal.rank_ece_test, variance="paper"), differentiable=False, variant=True
    ),
    "rank_ece_test, finite": Metric(
        _p_value(jaxcal.rank_ece_test, method="finite"), differentiable=False, variant=True
    ),
    "murphy_decomposition": Metric(_fields(jaxcal.murphy_decomposition, num_bins=5)),
    "murphy_decomposition, corrected": Metric(
        _fields(jaxcal.murphy_decomposition, num_bins=4, bins="mass", bias_corrected=True),
        differentiable=False,
        variant=True,
    ),
    "corp_decomposition": Metric(_fields(jaxcal.corp_decomposition)),
    "corp_decomposition, log loss": Metric(_fields(jaxcal.corp_decomposition, loss=jaxcal.log_loss), variant=True),
    "calibration_intercept": Metric(_fields(jaxcal.calibration_intercept)),
    "calibration_slope": Metric(_fields(jaxcal.calibration_slope), rounding=500),  # the data have a poor slope
    "weak_calibration_test": Metric(_p_value(jaxcal.weak_calibration_test)),
    "observed_expected_ratio": Metric(jaxcal.observed_expected_ratio),
    # the median bandwidth is held fixed, so the derivative is not that of the values
    "skce": Metric(jaxcal.skce, differentiable=False),
    "skce, laplace": Metric(
        lambda p, y, **kw: jaxcal.skce(p, y, bandwidth=0.3, **kw), differentiable="p", variant=True
    ),
    "skce, gaussian": Metric(
        lambda p, y, **kw: jaxcal.skce(p, y, bandwidth=0.3, kernel="gaussian", **kw), differentiable="p", variant=True
    ),
    "skce, biased": Metric(
        lambda p, y, **kw: jaxcal.skce(p, y, estimator="biased", bandwidth=0.3, **kw), differentiable="p", variant=True
    ),
    "skce_test, free": Metric(
        _p_value(jaxcal.skce_test, method="distribution_free"), differentiable=False, variant=True
    ),
    "ici": Metric(_fields(jaxcal.ici), differentiable="p"),
}
metrics = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


def assert_close(a, b, metric, dtype=None):
    eps = np.finfo(dtype or np.asarray(a).dtype).eps
    np.testing.assert_allclose(a, b, rtol=metric.rounding * eps, atol=metric.rounding * eps)


# what does not depend on the precision, or on the formula, is tested once
once = pytest.mark.skipif(jax.config.jax_enable_x64, reason="tested with x64 off")
families = pytest.mark.parametrize(
    "metric", [m for m in METRICS.values() if not m.variant], ids=[k for k, m in METRICS.items() if not m.variant]
)


@once
@families
def test_lanes_jit_and_vmap_give_what_one_call_gives(metric):
    together = metric.call(P, Y)
    assert together.shape == (2,) and jnp.isfinite(together).all() == metric.exists
    traces = []

    @jax.jit
    def compiled(p, y):
        traces.append(1)
        return metric.call(p, y)

    for value in (compiled(P, Y), jax.vmap(metric.call)(P, Y)):
        assert_close(value, together, metric)
    assert_close([metric.call(p, y) for p, y in zip(P, Y, strict=True)], together, metric)
    assert_close(compiled(P[::-1], Y[::-1])[::-1], together, metric)
    assert len(traces) == 1  # one for each shape
    order = np.random.default_rng(3).permutation(N)
    assert_close(metric.call(P[:, order], Y[:, order]), together, metric)
    bad = P.copy()
    bad[0, 3] = np.nan
    assert jnp.isnan(compiled(bad, Y)).tolist() == [True, False]


@metrics
def test_dtypes(metric, x64):
    value = metric.call(P, Y)
    assert value.dtype == jnp.float32
    if x64:
        wide = metric.call(P.astype(np.float64), Y)
        assert wide.dtype == jnp.float64
        assert_close(value, wide, metric, np.float32)
        return
    assert metric.call(jnp.asarray(P, jnp.float16), Y).dtype == jnp.float32


@once
def test_outcomes_of_any_dtype():
    """All metrics read them in one place."""
    for outcomes in (Y.astype(bool), Y.astype(np.float32), Y.astype(np.int8)):
        np.testing.assert_array_equal(jaxcal.rank_ece(P, outcomes), jaxcal.rank_ece(P, Y))


@metrics
def test_weights_are_counts(metric):
    repeated = [metric.call(np.repeat(p, c), np.repeat(y, c)) for p, y, c in zip(P, Y, COUNTS, strict=True)]
    counted = metric.call(P, Y, weights=COUNTS)
    assert jnp.isfinite(counted).all()  # two NaN would count as equal
    assert_close(counted, repeated, metric)
    assert_close(metric.call(P, Y, weights=np.ones((2, N))), metric.call(P, Y), metric)


@once
@families
def test_a_row_of_weight_0_is_absent_whatever_it_holds(metric):
    p, y, w = P[0].copy(), Y[0].copy(), COUNTS[0].copy()
    value = metric.call(p, y, weights=w)
    p[w == 0], y[w == 0] = np.nan, -1
    assert (w == 0).any()
    assert_close(metric.call(p, y, weights=w), value, metric)
    if metric.differentiable:
        slope = jax.grad(lambda p: metric.call(p, jnp.asarray(y), weights=w))(jnp.asarray(p))
        assert jnp.isfinite(slope).all() and (slope[w == 0] == 0).all()


@once
@families
def test_many_weights_share_one_data_set(metric):
    value = metric.call(P[0], Y[0], weights=COUNTS)
    assert_close(value, [metric.call(P[0], Y[0], weights=c) for c in COUNTS], metric)
    if metric.differentiable:  # the slope of one data set under many weights is the sum over them
        slope = jax.grad(lambda p: metric.call(p, Y[0], weights=COUNTS).sum())(jnp.asarray(P[0]))
        assert slope.shape == (N,) and jnp.isfinite(slope).all()


@once
@families
def test_invalid_lanes_are_nan_and_leave_the_others_alone(metric):
    for index, p_bad, y_bad in ((0, np.nan, 0), (1, 1.5, 1), (2, -0.1, 0), (3, 0.5, 2)):
        p, y = P.copy(), Y.copy()
        p[0, index], y[0, index] = p_bad, y_bad
        value = metric.call(p, y)
        assert jnp.isnan(value[0])
        assert_close(value[1], metric.call(P, Y)[1], metric)
        with pytest.raises(ValueError, match=r"(probabilities must be in \[0, 1\]|outcomes must be 0 or 1).* in row"):
            metric.call(p[0], y[0])


@once
@families
def test_bad_weights(metric):
    for bad in (-1.0, np.nan, np.inf):
        w = np.ones((2, N))
        w[0, 3] = bad
        assert jnp.isnan(metric.call(P, Y, weights=w)).tolist() == [True, False]
        with pytest.raises(ValueError, match="weights must be finite and >= 0"):
            metric.call(P[0], Y[0], weights=w[0])
    with pytest.raises(ValueError, match="weights are all zero"):
        metric.call(P, Y, weights=np.zeros(N))


@once
@pytest.mark.parametrize(
    "call", [jaxcal.ece, jaxcal.debiased_ece, jaxcal.reliability_curve, jaxcal.murphy_decomposition]
)
def test_bins_that_are_none_name_the_argument(call):
    for bins in (None, "a", [1, 2], [0, 1j]):
        with pytest.raises((TypeError, ValueError), match="bins"):
            call(P, Y, bins=bins)


@once
@families
@pytest.mark.parametrize(
    "p, y, error, message",
    [
        ([], [], ValueError, "not be empty"),
        (0.5, 1, ValueError, r"shape \(\.\.\., n\)"),
        (P[0], Y[0, 1:], ValueError, "with the n of p"),
        (np.ones((2, 3), np.float32), np.ones((3, 3)), ValueError, "do not broadcast"),
        ([0, 1], [0, 1], TypeError, "p must be floating point"),
        (["a"], [1], TypeError, "array of numbers"),
    ],
)
def test_shapes_and_types_raise_at_once(metric, p, y, error, message):
    with pytest.raises(error, match=message):
        metric.call(p, y)


@pytest.mark.parametrize(
    "metric",
    [m for m in METRICS.values() if m.differentiable],
    ids=[k for k, m in METRICS.items() if m.differentiable],
)
def test_derivatives_are_those_of_the_values(metric, x64):
    """Against central differences, without ties, where the order of the rows does not change."""
    if not x64:
        pytest.skip("finite differences need float64")
    p = np.sort(np.random.default_rng(11).uniform(0.03, 0.97, N)).round(3)
    assert np.diff(p).min() > 5e-4
    p, y, h = jnp.asarray(p), jnp.asarray(Y[0]), 1e-6
    w = jnp.asarray(COUNTS[0] + 1.0).at[0].add(1)  # 29 rows: no edge of equal-mass bins falls between two of them
    functions = [(lambda x: metric.call(x, y, weights=w), p)]
    if not metric.variant:
        functions.append((lambda x: metric.call(x, y), p))
    if metric.differentiable != "p":
        functions.append((lambda x: metric.call(p, y, weights=x), w))
    for f, x in functions:
        slope = jax.grad(f)(x)
        differences = [(f(x.at[i].add(h)) - f(x.at[i].add(-h))) / (2 * h) for i in range(N)]
        np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)
    if not metric.variant:  # forward as reverse
        direction = jnp.cos(jnp.arange(N))
        np.testing.assert_allclose(jax.jvp(f, (x,), (direction,))[1], slope @ direction, rtol=1e-9, atol=1e-12)
