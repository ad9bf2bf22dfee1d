"""rankECE and its tests, against exact fractions, enumeration and published formulas."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, gamma, norm

import jaxcal
from jaxcal.metrics.rank_test import gamma_tail

D10B = np.array([0, 1, 1, 1, 0, 1, 1, 1, 1, 1])


def _by_definition(p, y):
    """Mean of R over all orders of equal scores, in exact arithmetic: rows (score, outcome) of one small data set."""
    rows = sorted(zip((Fraction(x).limit_denominator(1000) for x in p), (int(v) for v in y), strict=True))
    blocks = [[v - x for x, v in block] for _, block in itertools.groupby(rows, key=lambda row: row[0])]
    values = []
    for orders in itertools.product(*(list(itertools.permutations(block)) for block in blocks)):
        r = [x for block in orders for x in block]
        values.append(sum(a * b for a, b in itertools.pairwise(r)) / len(r))
    return sum(values) / len(values)


def test_ten_forecasts(d10, eps):
    np.testing.assert_allclose(jaxcal.rank_ece(*d10), -761 / 12500, rtol=16 * eps)
    np.testing.assert_allclose(jaxcal.rank_ece(d10[0], D10B), 0.12012, rtol=16 * eps)


def test_metrics_compiled_together_sort_once(d10):
    """The estimate and both tests in one program; on a CPU a sort is a call of the host."""

    @jax.jit
    def all_three(p, y):
        return jaxcal.rank_ece(p, y), jaxcal.rank_ece_test(p, y), jaxcal.rank_ece_test(p, y, method="finite")

    program = all_three.lower(*d10).compile().as_text()
    if jax.default_backend() == "cpu":
        assert sum("custom-call(" in line for line in program.splitlines()) == 1
    else:
        assert sum(" sort(" in line for line in program.splitlines()) == 1


def test_three_tied_rows_by_enumeration(eps):
    p, y = [0.2, 0.5, 0.5, 0.5, 0.9], [0, 1, 0, 1, 1]
    assert _by_definition(p, y) == Fraction(-11, 300)
    np.testing.assert_allclose(jaxcal.rank_ece(p, y), -11 / 300, rtol=32 * eps)


@pytest.mark.parametrize("seed", range(8))
def test_ties_by_enumeration(seed, eps):
    rng = np.random.default_rng(seed)
    p, y = rng.choice([0.0, 0.1, 0.4, 0.75, 1.0], 8), rng.integers(0, 2, 8)
    exact = float(_by_definition(p, y))
    np.testing.assert_allclose(jaxcal.rank_ece(p, y), exact, atol=8 * eps)
    weights = rng.integers(0, 3, 5)
    weights[0] = 1
    repeated = float(_by_definition(np.repeat(p[:5], weights), np.repeat(y[:5], weights)))
    np.testing.assert_allclose(jaxcal.rank_ece(p[:5], y[:5], weights=weights), repeated, atol=8 * eps)


@pytest.mark.parametrize(
    "forecast, n, expected",
    [
        # (n - 1) times the integral of g(u) g(v) (1 - (v - u))^(n - 2) over u < v, exact rational integration
        (lambda z: 0.8 * z**2 - 0.2 * z + 0.2, 4, 71 / 3500),
        (lambda z: 0.8 * z**2 - 0.2 * z + 0.2, 100, 0.034246320870719944),
        (lambda z: 0.5 * z + 0.3, 10, 749 / 44000),
    ],
)
def test_mean_over_data_sets(forecast, n, expected):
    draws = 4000
    z, u = jax.random.uniform(jax.random.key(0), (2, draws, n))
    values = np.asarray(jaxcal.rank_ece(z, u < forecast(z)), np.float64)
    assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(draws)


def test_many_rows_in_float32():
    """A million rows, a third of them tied: against float64 sums of the definition over groups."""
    rng = np.random.default_rng(0)
    p = rng.random(10**6).astype(np.float32)
    y = rng.random(10**6) < p**2
    score, group = np.unique(p, return_inverse=True)
    m, s = np.bincount(group), np.bincount(group, y)
    z = score.astype(np.float64)
    gap, squares = s - m * z, s * (1 - z) ** 2 + (m - s) * z**2
    exact = (((gap**2 - squares) / m).sum() + ((gap / m)[1:] * (gap / m)[:-1]).sum()) / len(p)
    np.testing.assert_allclose(jaxcal.rank_ece(jnp.asarray(p), y), exact, rtol=1e-5)


def test_equal_scores_and_one_row():
    assert jnp.isnan(jaxcal.rank_ece([0.3], [1]))  # no neighbour
    exact = float(_by_definition([0.3, 0.3, 0.3], [1, 0, 1]))
    np.testing.assert_allclose(jaxcal.rank_ece([0.3, 0.3, 0.3], [1, 0, 1]), exact, rtol=1e-5)
    assert jaxcal.rank_ece([-0.0, 0.0, 1.0], [1, 0, 1]) == jaxcal.rank_ece([0.0, 0.0, 1.0], [1, 0, 1])


def test_interval_is_that_of_bounded_differences(d10):
    lower, upper = jaxcal.rank_ece_interval(*d10, level=0.9)
    half = np.sqrt(81 * np.log(2 / 0.1) / (32 * 10))
    np.testing.assert_allclose([lower, upper], [-0.06088 - half, -0.06088 + half], rtol=1e-5)
    with pytest.raises(ValueError, match="level"):
        jaxcal.rank_ece_interval(*d10, level=95)


# --- tests ---


def test_references_of_ten_forecasts(d10, eps):
    p, y = d10
    result = jaxcal.rank_ece_test(p, D10B)
    np.testing.assert_allclose(
        [result.statistic, result.p_value], [2.097558274564397, 0.01797209213474206], rtol=64 * eps
    )
    result = jaxcal.rank_ece_test(p, D10B, variance="paper")
    np.testing.assert_allclose(
        [result.statistic, result.p_value], [2.051145592512635, 0.02012638523001966], rtol=64 * eps
    )
    result = jaxcal.rank_ece_test(p, y, variance="paper")
    np.testing.assert_allclose(
        [result.statistic, result.p_value], [-1.03957495564576416, 0.850731291315354058], rtol=64 * eps
    )
    assert jaxcal.rank_ece_test(p, D10B, method="finite").p_value == 1  # 2 exp(-0.5397) > 1
    assert jaxcal.rank_ece_test(p, y, method="finite").p_value == 1


def test_finite_p_value_is_where_the_threshold_meets_the_statistic():
    p = jnp.linspace(0.3, 0.7, 4000)
    y = np.random.default_rng(0).random(4000) < 0.6
    result = jaxcal.rank_ece_test(p, y, method="finite")
    v = np.asarray(p, np.float64) * (1 - np.asarray(p, np.float64))
    variance = (v[1:] * v[:-1]).sum() / 4000
    log_term = np.log(2 / float(result.p_value))
    threshold = 2 * np.sqrt(variance * log_term / 4000) + 2 * log_term / (3 * 4000)
    assert 0 < result.p_value < 0.05
    np.testing.assert_allclose(threshold, result.statistic, rtol=1e-4)


def test_variance_and_third_moment_under_ties_by_enumeration(eps):
    """All outcomes of scores in groups of 4, 1 and 3 with their probabilities: what the gamma law is matched to."""
    p = np.repeat([0.3, 0.5, 0.8], [4, 1, 3])
    outcomes = np.array(list(itertools.product([0, 1], repeat=8)))
    probability = np.prod(np.where(outcomes, p, 1 - p), axis=1)
    values = 8 * np.asarray(jaxcal.rank_ece(p, outcomes), np.float64)
    assert abs(probability @ values) < 64 * eps
    sd = np.sqrt(probability @ values**2)
    result = jaxcal.rank_ece_test(p, outcomes)
    np.testing.assert_allclose(np.asarray(result.statistic) * sd, values, atol=64 * eps)
    v, m = np.array([0.21, 0.25, 0.16]), np.array([4, 1, 3])
    skewness = (8 * v**3 * (m - 1) * (m - 2) / m**2).sum() / sd**3
    shape = 4 / skewness**2
    expected = gamma.sf(shape + 2 * values / sd / skewness, shape)
    np.testing.assert_allclose(result.p_value, expected, rtol=1000 * eps, atol=32 * eps)


def test_gamma_tail_becomes_the_normal_one(x64):
    x = jnp.linspace(-3.0, 5.0, 17)
    wide = np.asarray(x, np.float64)
    np.testing.assert_allclose(gamma_tail(x, jnp.zeros(17)), norm.sf(wide), rtol=1e-5)
    for skewness in (1e-4, 0.009, 0.011, 0.06, 0.09, 0.11, 0.5, 2.0):
        shape = 4 / skewness**2
        exact = gamma.sf(shape + 2 * wide / skewness, shape)
        # JAX's gamma law loses digits in float32 near its median
        np.testing.assert_allclose(gamma_tail(x, jnp.full(17, skewness)), exact, atol=2e-7 if x64 else 1e-4)


def test_simulation_approaches_the_exact_conditional_law(d10):
    """P(R* >= R) over all 1024 outcomes is .019995746926806; 20,000 draws."""
    result = jaxcal.rank_ece_test(d10[0], D10B, method="simulation", key=jax.random.key(3), num_simulations=20_000)
    assert abs(result.p_value - 0.019995746926806) < 4 * np.sqrt(0.02 * 0.98 / 20_000)
    np.testing.assert_allclose(result.statistic, 0.12012, rtol=1e-5)


def test_simulation_with_counts():
    """One score, 20 rows of which 14 positive: R grows with |14 - 20 p|, so its law is the binomial one."""
    result = jaxcal.rank_ece_test(
        [0.5, 0.5], [1, 0], weights=[14, 6], method="simulation", key=jax.random.key(1), num_simulations=20_000
    )
    exact = 2 * binom.sf(13, 20, 0.5)
    assert abs(result.p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 20_000)


def test_simulation_draws_lanes_for_themselves(d10):
    p, y = np.broadcast_to(np.asarray(d10[0]), (3, 10)), np.stack([D10B] * 3)
    options = {"method": "simulation", "key": jax.random.key(0), "num_simulations": 499}
    lanes = jaxcal.rank_ece_test(p, y, **options).p_value
    assert len(set(lanes.tolist())) > 1
    assert jax.jit(lambda p, y: jaxcal.rank_ece_test(p, y, **options).p_value)(p, y).shape == (3,)
    p = p.copy()
    p[1, 0] = np.nan
    assert jnp.isnan(jaxcal.rank_ece_test(p, y, **options).p_value).tolist() == [False, True, False]


def test_reliable_is_false_where_the_law_is_poor():
    rng = np.random.default_rng(0)
    uniform, extreme = rng.random(200), 0.02 * rng.random(200)
    assert jaxcal.rank_ece_test(uniform, uniform > 0.5).reliable
    assert not jaxcal.rank_ece_test(extreme, extreme > 0.01).reliable
    ties = np.round(uniform, 1)
    assert jaxcal.rank_ece_test(ties, ties > 0.5).reliable
    assert not jaxcal.rank_ece_test(ties, ties > 0.5, variance="paper").reliable
    assert jaxcal.rank_ece_test(extreme, extreme > 0.01, method="finite").reliable


def test_few_rows_are_not_reliable(d10):
    assert not jaxcal.rank_ece_test(*d10).reliable
    assert jaxcal.rank_ece_test(*d10, weights=np.full(10, 3)).reliable


def test_weights_that_are_no_counts():
    p, y = np.linspace(0.1, 0.9, 6), [0, 1, 0, 1, 1, 0]
    bad = np.array([[1.0] * 6, [1, 1, 0.5, 1, 1, 1]])
    for call in (
        jaxcal.rank_ece,
        lambda *a, **kw: jaxcal.rank_ece_interval(*a, **kw).lower,
        lambda *a, **kw: jaxcal.rank_ece_test(*a, **kw).p_value,
        lambda *a, **kw: jaxcal.rank_ece_test(*a, method="finite", **kw).p_value,
        lambda *a, **kw: jaxcal.skce(*a, **kw),
        lambda *a, **kw: jaxcal.skce_test(*a, key=jax.random.key(0), num_resamples=9, **kw).p_value,
        lambda *a, **kw: jaxcal.debiased_ece(*a, num_bins=1, **kw),
        lambda p, y, **kw: jaxcal.corp_consistency_band(jax.random.key(0), p, num_resamples=19, **kw).lower[..., 0],
    ):
        assert jnp.isnan(call(p, y, weights=bad)).tolist() == [False, True]
        with pytest.raises(ValueError, match="weights must be whole numbers.* got 0.5 in row 2"):
            call(p, y, weights=bad[1])


def test_no_random_outcome():
    result = jaxcal.rank_ece_test([0.0, 1.0, 1.0], [0, 1, 1])
    assert jnp.isnan(result.p_value) and jnp.isnan(result.statistic)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "exact"}, "method must be one of"),
        ({"variance": "robust"}, "variance must be one of"),
        ({"method": "simulation"}, "needs a key"),
        ({"method": "simulation", "key": 0, "num_simulations": 0}, "num_simulations must be"),
    ],
)
def test_options(d10, options, message):
    if "key" in options:
        options = options | {"key": jax.random.key(0)}
    with pytest.raises(ValueError, match=message):
        jaxcal.rank_ece_test(*d10, **options)
