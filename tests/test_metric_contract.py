"""What every metric of a binary event promises: one compiled function a shape, lanes, weights as counts, dtypes, bad input."""

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
COUNTS = RNG.integers(0, 4, (2, N))


class Metric(NamedTuple):
    """One entry: the call, what it promises, and how far float32 may be off in units of eps."""

    call: Callable  # (p, y, weights=None) to one array (...)
    weights: bool = True
    differentiable: bool = True
    rounding: float = 64
    exists: bool = True  # on the data above, for every lane


def _p_value(test, **options):
    return lambda p, y, **kw: test(p, y, **options, **kw).p_value


METRICS = {
    "ece": Metric(lambda p, y, **kw: jaxcal.ece(p, y, num_bins=5, **kw)),
    "ace": Metric(lambda p, y, **kw: jaxcal.ace(p, y, num_bins=7, **kw)),
    "debiased_ece": Metric(lambda p, y, **kw: jaxcal.debiased_ece(p, y, num_bins=2, **kw)),
    "debiased_ece, u": Metric(lambda p, y, **kw: jaxcal.debiased_ece(p, y, num_bins=2, estimator="u", **kw)),
    "debiased_ece, tcal": Metric(lambda p, y, **kw: jaxcal.debiased_ece(p, y, num_bins=5, estimator="tcal", **kw)),
    "ece_sweep": Metric(lambda p, y, **kw: jaxcal.ece_sweep(p, y, **kw).ece),
    "rank_ece": Metric(jaxcal.rank_ece),
    "rank_ece_interval": Metric(lambda p, y, **kw: jaxcal.rank_ece_interval(p, y, **kw).upper),
    "rank_ece_test": Metric(_p_value(jaxcal.rank_ece_test), differentiable=False, rounding=1000),
    "rank_ece_test, paper": Metric(_p_value(jaxcal.rank_ece_test, variance="paper"), differentiable=False),
    "rank_ece_test, finite": Metric(_p_value(jaxcal.rank_ece_test, method="finite"), differentiable=False),
}
metrics = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
weighted = pytest.mark.parametrize(
    "metric", [m for m in METRICS.values() if m.weights], ids=[k for k, m in METRICS.items() if m.weights]
)


def _close(a, b, metric, dtype=None):
    eps = np.finfo(dtype or np.asarray(a).dtype).eps
    np.testing.assert_allclose(a, b, rtol=metric.rounding * eps, atol=metric.rounding * eps)


@metrics
def test_lanes_jit_and_vmap_give_what_one_call_gives(metric):
    together = metric.call(P, Y)
    assert together.shape == (2,) and jnp.isfinite(together).all() == metric.exists
    for value in (jax.jit(metric.call)(P, Y), jax.vmap(metric.call)(P, Y)):
        _close(value, together, metric)
    _close([metric.call(p, y) for p, y in zip(P, Y, strict=True)], together, metric)


@metrics
def test_one_trace_a_shape(metric):
    traces = []

    @jax.jit
    def call(p, y):
        traces.append(1)
        return metric.call(p, y)

    call(P, Y), call(P[::-1], Y[::-1])
    assert len(traces) == 1


@metrics
def test_rows_may_come_in_any_order(metric):
    order = RNG.permutation(N)
    _close(metric.call(P[:, order], Y[:, order]), metric.call(P, Y), metric)


@metrics
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64)
def test_dtypes(metric, dtype):
    value = metric.call(jnp.asarray(P, dtype), Y)
    assert value.dtype == jnp.promote_types(dtype, jnp.float32)
    for outcomes in (Y.astype(bool), Y.astype(np.float32)):
        np.testing.assert_array_equal(metric.call(jnp.asarray(P, dtype), outcomes), value)
    if dtype == "float64":
        _close(metric.call(P, Y), value, metric, np.float32)


@weighted
def test_weights_are_counts(metric):
    repeated = [metric.call(np.repeat(p, c), np.repeat(y, c)) for p, y, c in zip(P, Y, COUNTS, strict=True)]
    _close(metric.call(P, Y, weights=COUNTS), repeated, metric)
    _close(metric.call(P, Y, weights=np.ones(N)), metric.call(P, Y), metric)


@weighted
def test_a_row_of_weight_0_is_absent_whatever_it_holds(metric):
    p, y, w = P[0].copy(), Y[0].astype(np.float32), COUNTS[0].copy()
    value = metric.call(p, y, weights=w)
    p[w == 0], y[w == 0] = np.nan, -1
    assert (w == 0).any()
    _close(metric.call(p, y, weights=w), value, metric)
    if metric.differentiable:
        slope = jax.grad(lambda p: metric.call(p, jnp.asarray(y), weights=w))(jnp.asarray(p))
        assert jnp.isfinite(slope).all() and (slope[w == 0] == 0).all()


@weighted
def test_many_weights_share_one_data_set(metric):
    value = metric.call(P[0], Y[0], weights=COUNTS)
    _close(value, [metric.call(P[0], Y[0], weights=c) for c in COUNTS], metric)


@metrics
def test_invalid_lanes_are_nan_and_leave_the_others_alone(metric):
    for index, p_bad, y_bad in ((0, np.nan, 0), (1, 1.5, 1), (2, -0.1, 0), (3, 0.5, 2)):
        p, y = P.copy(), Y.copy()
        p[0, index], y[0, index] = p_bad, y_bad
        value = metric.call(p, y)
        assert jnp.isnan(value[0])
        _close(value[1], metric.call(P, Y)[1], metric)
        with pytest.raises(ValueError, match=r"(probabilities must be in \[0, 1\]|outcomes must be 0 or 1).* in row"):
            metric.call(p[0], y[0])
        assert jnp.isnan(jax.jit(metric.call)(p[0], y[0]))


@weighted
def test_bad_weights(metric):
    for bad in (-1.0, np.nan, np.inf):
        w = np.ones((2, N))
        w[0, 3] = bad
        assert jnp.isnan(metric.call(P, Y, weights=w)).tolist() == [True, False]
        with pytest.raises(ValueError, match="weights must be finite and >= 0"):
            metric.call(P[0], Y[0], weights=w[0])
    with pytest.raises(ValueError, match="weights are all zero"):
        metric.call(P, Y, weights=np.zeros(N))


@metrics
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
    p, y = jnp.asarray(np.sort(RNG.uniform(0.03, 0.97, N)).round(3)), jnp.asarray(Y[0])
    w, h = jnp.asarray(COUNTS[0] + 1.0), 1e-6
    functions = [(lambda x: metric.call(x, y), p)]
    if metric.weights:
        functions += [(lambda x: metric.call(x, y, weights=w), p), (lambda x: metric.call(p, y, weights=x), w)]
    for f, x in functions:
        slope = jax.grad(f)(x)
        differences = [(f(x.at[i].add(h)) - f(x.at[i].add(-h))) / (2 * h) for i in range(N)]
        np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)
        direction = jnp.cos(jnp.arange(N))
        np.testing.assert_allclose(jax.jvp(f, (x,), (direction,))[1], slope @ direction, rtol=1e-9, atol=1e-12)
