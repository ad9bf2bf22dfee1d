"""What every metric of a binary event promises: one trace a shape, lanes, weights as counts, dtypes, bad input.

Compilation is what takes time here: of every metric few programs are made, of two lanes where one would do.
"""

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
COUNTS = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3])  # N rows a lane, whose calibration line exists
COUNTS = np.random.default_rng(0).permuted(np.stack([COUNTS] * 2), axis=1)


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
        return jax.vmap(metric.call)(p, y)

    assert_close(compiled(P, Y), together, metric)
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
    assert jax.eval_shape(metric.call, jnp.asarray(P, jnp.float16), Y).dtype == jnp.float32


@once
def test_outcomes_of_any_dtype():
    """All metrics read them in one place."""
    for outcomes in (Y.astype(bool), Y.astype(np.float32), Y.astype(np.int8)):
        np.testing.assert_array_equal(jaxcal.rank_ece(P, outcomes), jaxcal.rank_ece(P, Y))


@once
def test_many_data_sets_share_one_set_of_weights():
    """All metrics align them in one place."""
    shared, repeated = (jaxcal.rank_ece(P, Y, weights=w) for w in (COUNTS[0], COUNTS[[0, 0]]))
    np.testing.assert_allclose(shared, repeated, rtol=4 * np.finfo(np.float32).eps)


@metrics
def test_weights_are_counts(metric):
    repeated = metric.call(*(np.stack([*map(np.repeat, a, COUNTS)]) for a in (P, Y)))
    counted = metric.call(P, Y, weights=COUNTS)
    assert jnp.isfinite(counted).all()  # two NaN would count as equal
    assert_close(counted, repeated, metric)
    assert_close(metric.call(P, Y, weights=np.ones((2, N))), metric.call(P, Y), metric)


@once
@families
def test_many_weights_share_one_data_set_and_rows_of_weight_0_are_absent_whatever_they_hold(metric):
    absent = COUNTS[0] == 0
    weights = np.where(absent, 0, [COUNTS[0], COUNTS[0] ** 2])
    value = metric.call(P[0], Y[0], weights=weights)
    assert jnp.isfinite(value).all()
    assert_close(value, metric.call(P[[0, 0]], Y[[0, 0]], weights=weights), metric)
    p, y = np.where(absent, np.nan, P[0]), np.where(absent, -1, Y[0])
    assert absent.any()
    assert_close(metric.call(p, y, weights=weights), value, metric)
    if metric.differentiable:  # the slope of one data set under many weights is the sum over them
        slope = jax.grad(lambda p: metric.call(p, jnp.asarray(y), weights=weights).sum())(jnp.asarray(p))
        assert slope.shape == (N,) and jnp.isfinite(slope).all() and (slope[absent] == 0).all()


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
        w[1, 5] = bad
        with pytest.raises(ValueError, match="weights must be finite and >= 0"):
            metric.call(P, Y, weights=w)
    with pytest.raises(ValueError, match="weights are all zero"):
        metric.call(P, Y, weights=np.zeros((2, N)))


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
    w = COUNTS[0] + 1.0
    w[0] += 5  # 29 rows: no edge of equal-mass bins falls between two of them
    y, direction = jnp.asarray(Y[0]), jnp.cos(jnp.arange(N))
    by = (0, 1) if metric.differentiable != "p" else (0,)

    @jax.jit
    def all_of(p, w):
        """Values and slopes with weights and, of a family, without; last the derivative along `direction`."""
        weighted = lambda p, w: metric.call(p, y, weights=w)  # noqa: E731
        value, slopes = jax.value_and_grad(weighted, by)(p, w)
        found = [(value, slope) for slope in slopes]
        if metric.variant:
            return found, None
        plain = jax.value_and_grad(lambda p: metric.call(p, y))(p)
        if len(by) == 2:
            return [*found, plain], jax.jvp(lambda w: weighted(p, w), (w,), (direction,))[1]
        return [*found, plain], jax.jvp(lambda p: metric.call(p, y), (p,), (direction,))[1]

    found, along = all_of(p, w)
    h, steps = 1e-6, 1e-6 * np.eye(N)
    of_p, of_w = (
        [(all_of(*at(s))[0], all_of(*at(-s))[0]) for s in steps] for at in (lambda s: (p + s, w), lambda s: (p, w + s))
    )
    for k, (_, slope) in enumerate(found):
        ends = of_w if k == 1 and len(by) == 2 else of_p
        differences = [(above[k][0] - below[k][0]) / (2 * h) for above, below in ends]
        np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)
    if along is not None:  # forward as reverse
        slope = found[-2 if len(by) == 2 else -1][1]
        np.testing.assert_allclose(along, slope @ direction, rtol=1e-9, atol=1e-12)
