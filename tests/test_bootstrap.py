"""Bootstrap: exact multinomial counts, intervals against NumPy and enumeration, weights, pytrees, bad input."""

import inspect
import itertools
import math
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, multinomial, norm, poisson

import jaxcal
from jaxcal.resampling import multinomial as draw
from jaxcal.resampling import units
from jaxcal.solvers import scaled_to, threefry

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.exponential(size=40).astype(np.float32)
EPS = float(np.finfo(np.float32).eps)  # of the results: the data are float32 in every run
COUNTS = RNG.integers(0, 4, 40)
counts_of = jax.jit(draw, static_argnums=1)  # in whole numbers and float32 whatever the precision
# Every public function that returns a `TestResult`.
TESTS = [
    function
    for function in map(partial(getattr, jaxcal), jaxcal.__all__)
    if inspect.isfunction(function) and inspect.signature(function).return_annotation is jaxcal.TestResult
]


def mean(x, weights):
    weights = jnp.ones(x.shape[-1:], x.dtype) if weights is None else weights
    return jnp.sum(weights * x, axis=-1) / jnp.sum(weights)


def parts(x, weights):
    """A pytree with a leaf that is no number of its own, one that sometimes is NaN, and a batch."""
    middle = mean(x, weights)
    return {
        "mean": middle,
        "steps": jnp.int32(3),
        "root": jnp.sqrt(middle - 1),
        "many": jnp.stack([middle, 2 * middle]),
    }


# --- random words and counts ---


def test_threefry_is_the_published_generator():
    """Known answers of the reference implementation (Random123, kat_vectors: threefry2x32 20)."""
    for counter, key, expected in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ):
        words = threefry(tuple(map(jnp.uint32, key)), tuple(map(jnp.uint32, counter)))
        assert tuple(map(int, words)) == expected


def test_scaling_words_is_exact():
    words, sizes = RNG.integers(0, 2**32, 500, dtype=np.uint32), RNG.integers(1, 2**32, 500, dtype=np.uint32)
    words[:3], sizes[:3] = 2**32 - 1, [1, 2**16, 2**32 - 1]
    expected = [int(a) * int(b) >> 32 for a, b in zip(words, sizes, strict=True)]
    np.testing.assert_array_equal(scaled_to(jnp.asarray(words), jnp.asarray(sizes)), np.array(expected, np.uint32))


def _words(number, seed=0):
    return jax.random.bits(jax.random.key(seed), (number, 2), jnp.uint32)


def _fits(observed, expected):
    """Pearson's chi-square statistic below its 1 - 1e-6 quantile."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    assert expected.min() > 5
    return np.sum((observed - expected) ** 2 / expected) < chi2.ppf(1 - 1e-6, len(expected) - 1)


@pytest.mark.once
@pytest.mark.parametrize("count", [None, (1, 1, 1), (2, 0, 1), (1, 2, 2)])
def test_counts_of_three_rows_have_the_multinomial_law(count):
    number = 40_000
    base = (1, 1, 1) if count is None else count
    total = sum(base)
    drawn = np.asarray(counts_of(_words(number), 3, None if count is None else jnp.asarray(count, jnp.int32)))
    assert (drawn.sum(1) == total).all() and drawn.dtype == np.int32
    places = [c for c in itertools.product(range(total + 1), repeat=3) if sum(c) == total]
    law = multinomial.pmf(places, total, np.array(base) / total)
    possible = law > 0
    seen = [(drawn == place).all(1).sum() for place in places]
    assert _fits(np.array(seen)[possible], law[possible] * number) and sum(np.array(seen)[possible]) == number


@pytest.mark.once
@pytest.mark.parametrize("count", [None, 1, 2, 30], ids=str)
def test_counts_of_many_rows_have_the_multinomial_law(count):
    """One row and the first third of 300 rows are binomial; the two are compared with the exact law by chi-square."""
    n, number = 300, 2000
    total = n * (count or 1)
    drawn = np.asarray(counts_of(_words(number, 1), n, None if count is None else jnp.full(n, count, jnp.int32)))
    assert (drawn.sum(1) == total).all()
    z = (drawn[:, :100].sum(1) - total / 3) / math.sqrt(total * 2 / 9)
    assert abs(z.mean()) < 5 / math.sqrt(number) and abs(z.var() - 1) < 5 * math.sqrt(2 / number)
    # variance and covariance of rows: a multinomial's, not that of independent counts
    share = 1 / n
    np.testing.assert_allclose(drawn.var(0).mean(), total * share * (1 - share), rtol=5 * math.sqrt(2 / drawn.size))
    if count in (None, 1):
        k = np.arange(5)
        binomial = [math.comb(n, int(j)) * share**j * (1 - share) ** (n - j) for j in k]
        observed = np.bincount(drawn.ravel(), minlength=6)
        expected = np.array([*binomial, 1 - sum(binomial)]) * drawn.size
        assert _fits([*observed[:5], observed[5:].sum()], expected)


@pytest.mark.once
@pytest.mark.parametrize("count", [(20_000, 60_000), (10**8, 10**8), (5 * 10**8, 3)], ids=str)
def test_heavy_counts_have_the_right_variance(count):
    """Two rows are binomial."""
    number, total = 4000, sum(count)
    drawn = np.asarray(counts_of(_words(number, 3), 2, jnp.asarray(count, jnp.int32)))
    assert (drawn.sum(1, dtype=np.int64) == total).all() and (drawn >= 0).all()
    share = count[1] / total
    scale = math.sqrt(total * share * (1 - share))
    z = (drawn[:, 1] - total * share) / scale
    kurtosis = 3 + 1 / scale**2  # of a binomial, to leading order
    assert abs(z.mean()) < 5 / math.sqrt(number)
    assert abs(z.var() - 1) < 5 * math.sqrt((kurtosis - 1) / number)


@pytest.mark.once
def test_a_lane_with_too_many_starts_from_nothing(monkeypatch):
    """With a margin of 0 half of the Poisson totals are too large, and the law must not notice."""
    from jaxcal import resampling

    monkeypatch.setattr(resampling, "_MARGIN", 0.05)
    number, n = 4000, 30
    totals = poisson.sf(n, n * (1 - 0.05 / math.sqrt(n)))
    assert 0.3 < totals < 0.6
    drawn = np.asarray(draw(_words(number, 2), n, None))
    assert (drawn.sum(1) == n).all()
    first = np.bincount(drawn[:, 0], minlength=4)
    law = [math.comb(n, j) * (1 / n) ** j * (1 - 1 / n) ** (n - j) for j in range(4)]
    assert _fits([*first[:4], first[4:].sum()], np.array([*law, 1 - sum(law)]) * number)


def test_units():
    for weights, count, unit in (
        ([2.0, 0.0, 3.0], [2, 0, 3], [1, 1, 1]),
        ([0.5, 0.0, 2.0], [1, 0, 1], [0.5, 0, 2]),
        ([np.nan, 1.0, -1.0], [0, 1, 0], [1, 1, 1]),
        ([2.0**30, 2.0**30, 0.0], [1, 1, 0], [2.0**30, 2.0**30, 0.0]),  # more than can be counted
    ):
        got_count, got_unit = units(jnp.asarray(weights))
        assert got_count.tolist() == count and np.broadcast_to(got_unit, 3).tolist() == unit


# --- intervals ---


@pytest.mark.parametrize("method", ["percentile", "basic", "centred", "bca"])
def test_ends_are_those_of_the_draws(method):
    """Each method written again in NumPy, from the draws and, for bca, the 40 leave-one-out means."""
    result = jaxcal.bootstrap(mean, KEY, X, num_resamples=499, method=method, level=0.9)
    t, draws = float(X.astype(np.float64).mean()), np.sort(np.asarray(result.draws, np.float64))
    low, high = draws[[24, 474]]  # .05 and .95 of 498 steps, outward
    if method == "basic":
        low, high = 2 * t - high, 2 * t - low
    if method == "centred":
        low, high = low + t - draws.mean(), high + t - draws.mean()
    if method == "bca":
        influence = t - (X.astype(np.float64).sum() - X) / 39
        influence = influence - influence.mean()
        acceleration = np.sum(influence**3) / (6 * np.sum(influence**2) ** 1.5)
        bias = norm.ppf(np.mean(draws < t))
        levels = [
            norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (norm.ppf(0.05), norm.ppf(0.95))
        ]
        low, high = draws[math.floor(levels[0] * 498)], draws[math.ceil(levels[1] * 498)]
    np.testing.assert_allclose(result.lower, low, rtol=64 * EPS)
    np.testing.assert_allclose(result.upper, high, rtol=64 * EPS)
    np.testing.assert_allclose(result.standard_error, draws.std(ddof=1), rtol=1e-4)
    assert result.num_failed == 0 and result.draws.shape == (499,)


@pytest.mark.once
def test_the_draws_have_the_mean_and_variance_of_the_bootstrap():
    """Of a mean both are known: the sample mean, and the sample variance over n."""
    result = jaxcal.bootstrap(mean, KEY, X, num_resamples=20_000)
    z = (np.asarray(result.draws, np.float64) - X.mean()) / (X.std() / math.sqrt(40))
    assert abs(z.mean()) < 5 / math.sqrt(20_000) and abs(z.var() - 1) < 0.06


@pytest.mark.once
def test_whole_weights_are_repeated_rows():
    """Same law: mean and variance of the draws are those of the repeated rows, sum(weights) of them."""
    repeated = np.repeat(X, COUNTS)
    result = jaxcal.bootstrap(mean, KEY, X, num_resamples=20_000, weights=COUNTS)
    np.testing.assert_allclose(result.estimate, repeated.mean(), rtol=1e-6)
    z = (np.asarray(result.draws, np.float64) - repeated.mean()) / (repeated.std() / math.sqrt(len(repeated)))
    assert abs(z.mean()) < 5 / math.sqrt(20_000) and abs(z.var() - 1) < 0.06
    kw = {"num_resamples": 20_000, "method": "bca"}
    bca, again = jaxcal.bootstrap(mean, KEY, X, weights=COUNTS, **kw), jaxcal.bootstrap(mean, KEY, repeated, **kw)
    np.testing.assert_allclose(
        # 4 standard errors of the difference of two such ends: quantile 0.019, bias correction 0.018 of the error each
        [bca.lower, bca.upper],
        [again.lower, again.upper],
        atol=0.15 * float(again.standard_error),
    )


def test_other_weights_stay_with_their_row():
    weights = np.where(COUNTS > 0, COUNTS + 0.5, 0).astype(np.float32)
    result = jaxcal.bootstrap(total_weight, KEY, X, num_resamples=200, weights=weights)
    rows = (weights > 0).sum()
    # as many rows as have weight are drawn, so the totals scatter round that of the weights
    spread = weights[weights > 0].std() * math.sqrt(rows)
    assert abs(np.mean(result.draws) - weights.sum()) < 5 * spread / math.sqrt(200)
    assert np.isclose(np.std(result.draws), spread, rtol=0.3)


def total_weight(x, weights):
    return jnp.sum(jnp.ones(x.shape[-1:]) if weights is None else weights)


def test_pytrees_failures_and_leaves_without_an_interval():
    result = jaxcal.bootstrap(parts, KEY, X, num_resamples=499)
    assert result.estimate["steps"] == 3 and result.lower["steps"] is None and result.draws["steps"] is None
    assert result.lower["many"].shape == (2,) and result.draws["many"].shape == (499, 2)
    np.testing.assert_allclose(result.upper["many"], result.upper["mean"] * np.array([1, 2]), rtol=1e-6)
    failed = np.isnan(np.asarray(result.draws["root"]))
    assert 0 < result.num_failed["root"] == failed.sum() < 499
    ordered = np.sort(np.asarray(result.draws["root"])[~failed])
    outside = int(0.025 * (len(ordered) - 1))
    assert result.lower["root"] == ordered[outside] and result.upper["root"] == ordered[len(ordered) - 1 - outside]
    np.testing.assert_allclose(result.standard_error["root"], ordered.std(ddof=1), rtol=1e-3)


def infinite(x, weights):
    middle = mean(x, weights)
    return jnp.where(middle > 1.1, jnp.inf, middle), jnp.full((), jnp.nan)


def test_infinite_and_missing_estimates():
    result = jaxcal.bootstrap(infinite, KEY, X, num_resamples=499)
    assert result.upper[0] == np.inf and np.isfinite(result.lower[0]) and result.standard_error[0] == np.inf
    assert np.isnan([result.lower[1], result.upper[1], result.standard_error[1]]).all()
    assert result.num_failed[1] == 499


@pytest.mark.parametrize("method", ["percentile", "basic", "centred", "bca"])
def test_an_estimate_that_does_not_exist_has_no_interval(method):
    """A bin that holds one row: resamples that draw it twice, or not at all, have an estimate."""
    p = np.array([0.1] * 30 + [0.9], np.float32)
    result = jaxcal.bootstrap(jaxcal.debiased_ece, KEY, p, np.arange(31) % 5 == 0, num_resamples=50, method=method)
    assert np.isnan(result.estimate) and 0 < result.num_failed < 50 and np.isfinite(result.draws).any()
    assert np.isnan(result.lower) and np.isnan(result.upper)


def temperature(logits, labels, weights):
    return jaxcal.fit_temperature(logits, labels, weights=weights).temperature


@pytest.mark.once
def test_a_temperature_and_its_standard_error():
    """The sandwich formula for the standard error of T, computed in NumPy at the fit."""
    z = np.asarray(2.0 * jax.random.normal(jax.random.key(1), (1000, 3)))
    y = np.asarray(jax.random.categorical(jax.random.key(2), z / 1.5))
    result = jaxcal.bootstrap(temperature, KEY, z, y, num_resamples=300)
    u = 1 / float(result.estimate)
    q = np.exp(u * z) / np.exp(u * z).sum(1, keepdims=True)
    score = (q * z).sum(1) - z[np.arange(1000), y]
    curvature = ((q * z**2).sum(1) - (q * z).sum(1) ** 2).mean()
    expected = math.sqrt((score**2).mean() / 1000) / curvature / u**2
    np.testing.assert_allclose(result.standard_error, expected, rtol=0.15)
    assert result.lower < result.estimate < result.upper


def pair(logits, labels, weights):
    risk = jaxcal.risk(logits, labels, weights=weights)
    return risk, risk[1] - risk[0]


def test_leading_axes_share_their_draws_and_blocks_change_nothing(monkeypatch):
    import sys

    z = RNG.normal(size=(2, 100, 3)).astype(np.float32)
    y = RNG.integers(0, 3, 100)
    risk, difference = jaxcal.bootstrap(pair, KEY, z, y, num_resamples=50).draws
    np.testing.assert_allclose(risk[:, 1] - risk[:, 0], difference, atol=64 * EPS)
    monkeypatch.setattr(sys.modules["jaxcal.bootstrap"], "_BLOCK", 1000)
    again = jaxcal.bootstrap(lambda z, y, weights: pair(z, y, weights), KEY, z, y, num_resamples=50).draws
    np.testing.assert_allclose(again[1], difference, atol=64 * EPS)


@pytest.mark.once
def test_groups_of_rows_for_the_jackknife():
    """The acceleration of a mean is skewness / (6 sqrt n); the ends differ from it by the noise of the groups."""
    x = np.random.default_rng(1).exponential(size=3000).astype(np.float32)
    result = jaxcal.bootstrap(mean, KEY, x, num_resamples=2000, method="bca")
    skewness = np.mean((x - x.mean()) ** 3) / x.std() ** 3
    draws = np.sort(np.asarray(result.draws))
    bias, acceleration = norm.ppf(np.mean(draws < x.mean())), skewness / 6 / math.sqrt(3000)
    for z, end in ((-1.959964, result.lower), (1.959964, result.upper)):
        expected = norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))
        assert abs(np.mean(draws <= end) - expected) < 0.006


def test_under_jit_and_with_another_key():
    call = jax.jit(lambda key, x: jaxcal.bootstrap(mean, key, x, num_resamples=499))
    result, eager = call(KEY, X), jaxcal.bootstrap(mean, KEY, X, num_resamples=499)
    np.testing.assert_allclose(result.draws, eager.draws, rtol=1e-6)
    assert (call(jax.random.key(1), X).draws != result.draws).any()
    assert len(jax.tree.leaves(result)) == 6


def test_one_compilation_a_metric_and_shape():
    traces = []

    def metric(x, weights):
        traces.append(1)
        return mean(x, weights)

    for seed in range(3):
        jaxcal.bootstrap(metric, jax.random.key(seed), X, num_resamples=20)
    assert len(traces) <= 3 + 2  # an eager call each, and the traces of one compilation


@pytest.mark.once
@pytest.mark.parametrize(
    "metric, remedy",
    [
        (jaxcal.ece, "debiased_ece"),
        (jaxcal.ace, "debiased_ece"),
        (jaxcal.ece_sweep, "debiased_ece"),
        (jaxcal.smooth_ece, "debiased_ece"),
        (jaxcal.ici, "debiased_ece"),
        (jaxcal.rank_ece, "rank_ece_interval"),
        (jaxcal.skce, "skce_test"),
        (jaxcal.skce_multiclass, "skce_multiclass_test"),
        (jaxcal.cutoff_calibration_error, "kolmogorov_smirnov_calibration"),
        (jaxcal.corp_decomposition, "murphy_decomposition"),
        (jaxcal.variational_calibration_error, "decompose"),
        (jaxcal.variational_confidence_error, "decompose"),
        (jaxcal.murphy_decomposition, "bias_corrected=True"),
        (jaxcal.rank_ece_interval, "rank_ece"),
        (jaxcal.reliability_curve, "lower and upper"),
        (jaxcal.corp_reliability_curve, "corp_consistency_band"),
        (jaxcal.corp_consistency_band, "calibrated forecasts"),
        *((test, "bootstrap an estimate") for test in TESTS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_estimates_without_an_interval_are_refused(metric, remedy):
    """Before anything is computed, by whatever name; what is wrapped in a function is the caller's own."""
    for call in (metric, partial(metric), partial(partial(metric), weights=None), jax.jit(partial(metric))):
        with pytest.raises(ValueError, match=rf"no bootstrap interval of {metric.__name__} is valid: .* {remedy}"):
            jaxcal.bootstrap(call, KEY, X, X > 1)


@pytest.mark.once
def test_all_tests_were_found():
    """As many as the README's table of tests names."""
    table = (
        (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").partition("| test of calibration |")[2]
    )
    rows = re.findall(r"^\| (`.*?`) \|", table.partition("\n\n")[0], flags=re.MULTILINE)
    assert {test.__name__ for test in TESTS} == set(re.findall(r"`(\w+)`", " ".join(rows)))


@pytest.mark.once
def test_the_corrected_decomposition_is_not_refused():
    """Options bound at any depth are seen, and the last one holds."""
    p, y = RNG.random(200).astype(np.float32), RNG.random(200) < 0.5
    corrected = partial(jaxcal.murphy_decomposition, bias_corrected=True, num_bins=2)
    compiled = jax.jit(partial(corrected, bins="mass"))
    result = jaxcal.bootstrap(compiled, KEY, p, y, num_resamples=20, method="centred")
    assert result.lower.reliability < result.estimate.reliability < result.upper.reliability
    with pytest.raises(ValueError, match="no bootstrap interval of murphy_decomposition"):
        jaxcal.bootstrap(partial(corrected, bias_corrected=False), KEY, p, y)


@pytest.mark.once
def test_a_metric_that_wraps_itself_ends():
    def mean(x, weights=None):
        return jnp.average(x, weights=weights)

    mean.__wrapped__ = mean
    assert jaxcal.bootstrap(mean, KEY, X, num_resamples=20).num_failed == 0


@pytest.mark.once
def test_a_smooth_curve_has_its_points_in_every_resample():
    """Its grid is fixed, so that entries of resamples can be compared; it is not refused."""
    p, y = RNG.random(200).astype(np.float32), RNG.random(200) < 0.5
    result = jaxcal.bootstrap(partial(jaxcal.smooth_reliability_curve, num_points=5), KEY, p, y, num_resamples=20)
    assert (result.draws.points == result.estimate.points).all()
    assert (result.lower.frequency < result.upper.frequency).all()


@pytest.mark.once
def test_a_lambda_is_the_callers_own():
    p, y = RNG.random(40).astype(np.float32), RNG.random(40) < 0.5
    result = jaxcal.bootstrap(lambda p, y, weights: jaxcal.ece(p, y, weights=weights), KEY, p, y, num_resamples=20)
    assert result.lower <= result.upper


def test_bad_input():
    labels = np.array([0, 1, 2, 5])
    with pytest.raises(ValueError, match="labels must be integers in"):
        jaxcal.bootstrap(temperature, KEY, np.eye(4, 3), labels)
    assert np.isnan(jaxcal.bootstrap(mean, KEY, X, num_resamples=20, weights=np.full(40, -1.0)).upper)
    for kw, match in (
        ({"method": "normal"}, "method must be one of"),
        ({"num_resamples": 1}, "num_resamples must be"),
        ({"level": 1.0}, "level must be in"),
        ({"level": "95"}, "level must be in"),
        ({"weights": np.ones(39)}, "weights must have shape"),
        ({"weights": np.ones((1, 40))}, "weights"),
    ):
        with pytest.raises(ValueError, match=match):
            jaxcal.bootstrap(mean, KEY, X, **kw)
    with pytest.raises(ValueError, match="needs the data"):
        jaxcal.bootstrap(mean, KEY)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., n\)"):
        jaxcal.bootstrap(mean, KEY, np.float32(1))
    with pytest.raises(ValueError, match="at most 512 rows"):
        jaxcal.bootstrap(mean, KEY, np.ones(600, np.float32), weights=np.ones(600), method="bca")
    with pytest.raises(TypeError, match="floating point"):
        jaxcal.bootstrap(lambda x, weights: jnp.int32(1), KEY, X)


@jax.jit
def forgetful(x, weights):
    """Gets the weights and does nothing with them, inside a compiled function."""
    return jnp.mean(x), jnp.max(x) + 0 * x[0]


def flat(x, weights):
    """The same for all weights, but computed from them: as the accuracy of a faultless classifier."""
    return jnp.max(jnp.where(jnp.ones_like(x) if weights is None else weights >= 0, x, -jnp.inf))


@pytest.mark.once
@pytest.mark.parametrize("metric", [lambda x, weights: jnp.mean(x), forgetful], ids=["plain", "compiled"])
def test_a_metric_that_ignores_its_weights_is_refused(metric):
    for weights in (None, COUNTS):
        with pytest.raises(ValueError, match="metric ignores its weights"):
            jaxcal.bootstrap(metric, KEY, X, num_resamples=20, weights=weights)


@pytest.mark.once
def test_a_metric_that_is_constant_is_not():
    """Every one of these looks at its weights, and finds the same in all resamples."""
    p = np.where(X > 1, 0.9, 0.1).astype(np.float32)
    for metric, data, value in (
        (flat, (X,), X.max()),
        (jaxcal.accuracy, (np.eye(4, dtype=np.float32), np.arange(4)), 1),
        (jaxcal.auroc, (p, X > 1), 1),
        (lambda x, weights: jnp.sum(0 * x if weights is None else weights * 0 * x), (X,), 0),
    ):
        result = jaxcal.bootstrap(metric, KEY, *data, num_resamples=20)
        assert result.lower == result.upper == value


@pytest.mark.once
def test_one_key_is_taken():
    p, y = jnp.asarray(RNG.random(10).astype(np.float32)), jnp.arange(10) % 2
    z = jnp.stack([-p, p], -1)
    calls = {
        "bootstrap": lambda key: jaxcal.bootstrap(mean, key, X, num_resamples=20),
        "corp_consistency_band": lambda key: jaxcal.corp_consistency_band(key, p, num_resamples=19),
        "rank_ece_test": lambda key: jaxcal.rank_ece_test(p, y, method="simulation", key=key, num_simulations=5),
        "skce_test": lambda key: jaxcal.skce_test(p, y, key=key, num_resamples=5),
        "skce_multiclass_test": lambda key: jaxcal.skce_multiclass_test(z, y, key=key, num_resamples=5),
        "cross_fit": lambda key: jaxcal.cross_fit(jaxcal.fit_identity, z, y, folds=2, key=key),
        "decompose": lambda key: jaxcal.decompose(z, y, folds=2, key=key),
        "select_calibrator": lambda key: jaxcal.select_calibrator({"none": jaxcal.fit_identity}, z, y, key=key),
    }
    for name, call in calls.items():
        for keys in (jax.random.split(KEY, 3), jax.random.split(jax.random.PRNGKey(0), 3)):
            with pytest.raises(ValueError, match=rf"{name}: key must be a single key, got \(3,\) of them"):
                call(keys)
        for none in (0, jnp.zeros(2), np.float32(1)):
            with pytest.raises(TypeError, match=f"{name}: key must be a JAX random key"):
                call(none)
    for old in (jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))):
        new = jax.random.wrap_key_data(jax.random.PRNGKey(0))
        assert calls["bootstrap"](old).lower == calls["bootstrap"](new).lower
    assert jax.vmap(calls["bootstrap"])(jax.random.split(KEY, 3)).lower.shape == (3,)
