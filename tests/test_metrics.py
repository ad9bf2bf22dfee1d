"""Accuracy, binned calibration error and reliability curves, against exact arithmetic and published software."""

import functools
import pathlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import jaxcal
from jaxcal import checks
from jaxcal.metrics import binned

DATA = pathlib.Path(__file__).parent / "data"
DTYPES = ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64
METRICS = {
    "l2": lambda *args, **kwargs: jaxcal.ece(*args, norm="l2", **kwargs),
    "max": lambda *args, **kwargs: jaxcal.ece(*args, norm="max", **kwargs),
    "l1, mass": lambda *args, **kwargs: jaxcal.ece(*args, bins="mass", **kwargs),
    "curve": lambda *args, **kwargs: _flat(jaxcal.reliability_curve(*args, **kwargs)),
}
metrics = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


def _flat(curve):
    """All five arrays of a curve in one, (..., 5 b), empty bins 0."""
    xp = np if isinstance(curve.count, np.ndarray) or not checks.is_traced(curve) else jnp
    rest = [xp.where(curve.count == 0, 0, a) for a in (curve.confidence, curve.frequency, curve.lower, curve.upper)]
    return xp.concatenate([curve.count, *rest], axis=-1)


def _with(array, index, value):
    copy = np.array(array)
    copy = copy.astype(np.result_type(copy, np.asarray(value)))
    copy[index] = value
    return copy


def _exact_bin(p, weights, num_bins, mass):
    """Bins in rational arithmetic: of i/b exactly, or floor(b * weight of smaller scores / total weight)."""
    p, w = [Fraction(float(x)) for x in p], [Fraction(float(x)) for x in weights]
    if not mass:
        return [min(int(x * num_bins), num_bins - 1) for x in p]
    return [int(num_bins * sum(v for q, v in zip(p, w, strict=True) if q < x) / sum(w)) for x in p]


def _exact_gaps(p, y, bins, num_bins):
    p = [Fraction(float(x)) for x in p]
    gaps = [Fraction(0)] * num_bins
    for x, outcome, b in zip(p, y, bins, strict=True):
        gaps[b] += int(outcome) - x
    return gaps, [bins.count(j) for j in range(num_bins)]


# --- values ---

# exact rationals: gaps of ten forecasts without ties
D10 = [
    ({"num_bins": 5}, 9 / 50),
    ({"num_bins": 5, "norm": "l2"}, (18421 / 300000) ** 0.5),
    ({"num_bins": 5, "norm": "max"}, 0.49),
    ({"num_bins": 10}, 0.358),
    ({"num_bins": 15, "norm": "l2"}, 0.18702**0.5),
    ({"num_bins": 5, "bins": "mass"}, 0.132),
    ({"num_bins": 5, "bins": "mass", "norm": "max"}, 0.245),
    ({"bins": [0, 0.2, 0.4, 0.6, 0.8, 1]}, 9 / 50),
]


@pytest.mark.parametrize("options, expected", D10)
def test_ece_of_ten_forecasts(options, expected, d10, eps):
    np.testing.assert_allclose(jaxcal.ece(*d10, **options), expected, rtol=8 * eps)


def test_ece_of_eight_softmax_rows(m8, eps):
    """Values from exact softmax of the 8 x 3 logits, 16 digits."""
    top, each = jaxcal.top_label(*m8), jaxcal.class_wise(*m8)
    for options, expected in (
        ({"num_bins": 5}, 0.3225021209377582),
        ({"num_bins": 5, "norm": "l2"}, 0.3516504321058409),
        ({"num_bins": 15}, 0.355611327303334),
    ):
        np.testing.assert_allclose(jaxcal.ece(*top, **options), expected, rtol=8 * eps)
    expected = [0.2041650822331399, 0.2928417563419591, 0.2323984514405063]
    np.testing.assert_allclose(jaxcal.ece(*each, num_bins=5), expected, rtol=8 * eps)


def test_bins_are_closed_on_the_left_and_the_last_on_both_sides(eps):
    p, y = np.array([0, 0.2, 0.4, 0.5, 1]), np.array([0, 1, 0, 1, 1])
    np.testing.assert_allclose(jaxcal.ece(p, y, num_bins=5), 0.18, rtol=8 * eps)  # closed on the right: .34


# What scikit-learn, torchmetrics, netcal, uncertainty-calibration and a direct NumPy sum agree on (left-closed bins,
# quantile edges for equal mass, float64), for the data in tests/data. Equal-mass bins that ignore ties give .17065 for
# the fourth; with heavy ties every peer differs, and the two values are the docstring's rule in exact fractions.
PARITY = [
    ("binary_over_1000", {"num_bins": 15}, 0.17646692279268908),
    ("binary_over_1000", {"num_bins": 10, "bins": "mass"}, 0.17636693341992174),
    ("binary_over_1000", {"num_bins": 15, "bins": "mass"}, 0.17010407234044445),
    ("binary_over_1000", {"num_bins": 15, "norm": "l2"}, 0.1873652700772904),
    ("binary_over_1000", {"num_bins": 15, "norm": "max"}, 0.29004428371266666),
    ("binary_ties_500", {"num_bins": 10}, 0.1236),
    ("binary_ties_500", {"num_bins": 10, "bins": "mass"}, 0.1236),
    ("binary_ties_500", {"num_bins": 15, "bins": "mass"}, 0.1236),
    ("multi4_800", {"num_bins": 15}, 0.15558429288749978),
    ("multi4_800", {"num_bins": 15, "norm": "max"}, 0.6870491557661023),
]


@pytest.mark.parametrize("name, options, expected", PARITY)
def test_parity_with_published_software(name, options, expected, eps):
    with np.load(DATA / f"{name}.npz") as data:
        event = jaxcal.top_label(data["logits"], data["y"]) if "logits" in data else (data["p"], data["y"])
    # forecasts of one or two digits lie on edges; both are rounded to the dtype, so no bin changes
    np.testing.assert_allclose(jaxcal.ece(*event, **options), expected, rtol=16 * eps)


@pytest.mark.parametrize("num_bins, dtype", [(15, dtype) for dtype in DTYPES] + [(10, "bfloat16"), (49, "float32")])
def test_a_score_on_an_edge_is_in_the_bin_it_opens(num_bins, dtype):
    edges = jnp.asarray(np.arange(num_bins + 1) / num_bins, dtype)
    curve = jaxcal.reliability_curve(edges, np.ones(num_bins + 1, int), num_bins=num_bins)
    assert curve.count.dtype == jnp.promote_types(dtype, "float32")
    np.testing.assert_array_equal(curve.count, [1] * (num_bins - 1) + [2])
    np.testing.assert_array_equal(np.asarray(curve.confidence)[:-1], np.asarray(edges)[:-2].astype(curve.count.dtype))


@pytest.mark.parametrize("num_bins", [7, 49])
def test_equal_mass_bins_of_distinct_scores_are_equal(num_bins):
    n = 3 * num_bins
    p = np.random.default_rng(0).permutation(n) / n
    curve = jaxcal.reliability_curve(p, p > 0.5, num_bins=num_bins, bins="mass")
    np.testing.assert_array_equal(curve.count, np.full(num_bins, 3))
    np.testing.assert_allclose(np.asarray(curve.confidence) * num_bins, np.arange(num_bins) + 1 / 3, rtol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    p=st.lists(st.sampled_from([0, 0.125, 0.25, 0.375, 0.5, 0.75, 1]), min_size=12, max_size=12),
    y=st.lists(st.booleans(), min_size=12, max_size=12),
    weights=st.lists(st.integers(0, 4), min_size=12, max_size=12).filter(sum),
    mass=st.booleans(),
)
def test_ece_in_exact_arithmetic_with_ties_and_counts(p, y, weights, mass):
    repeated = [(a, b) for a, b, w in zip(p, y, weights, strict=True) for _ in range(w)]
    q, o = zip(*repeated, strict=True)
    bins = _exact_bin(q, [1] * len(q), 8, mass)
    gaps, counts = _exact_gaps(q, o, bins, 8)
    options = {"num_bins": 8, "bins": "mass" if mass else "width", "weights": np.array(weights)}
    eps = np.finfo(np.float32).eps
    exact = float(sum(map(abs, gaps)) / len(q))
    np.testing.assert_allclose(jaxcal.ece(np.array(p, float), np.array(y), **options), exact, atol=4 * eps)
    np.testing.assert_array_equal(jaxcal.reliability_curve(np.array(p, float), np.array(y), **options).count, counts)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_intervals_of_other_levels_against_scipy(d10, eps, level):
    curve = jaxcal.reliability_curve(*d10, num_bins=2, level=level)
    for i, (hits, rows) in enumerate([(2, 6), (3, 4)]):
        expected = binomtest(hits, rows).proportion_ci(level, method="wilson")
        np.testing.assert_allclose((curve.lower[i], curve.upper[i]), expected, rtol=16 * eps)
    with pytest.raises(ValueError, match="level must be in"):
        jaxcal.reliability_curve(*d10, level=95)


def test_reliability_curve_of_ten_forecasts(d10, eps):
    curve = jaxcal.reliability_curve(*d10, num_bins=5)
    np.testing.assert_array_equal(curve.count, [2, 3, 2, 2, 1])
    p, y = np.asarray(d10[0], np.float64), np.asarray(d10[1])
    bins = np.array(_exact_bin(p, np.ones(10), 5, False))
    for j in range(5):
        hits, n = int(y[bins == j].sum()), int((bins == j).sum())
        interval = binomtest(hits, n).proportion_ci(0.95, method="wilson")
        expected = [p[bins == j].mean(), hits / n, interval.low, interval.high]
        values = [a[j] for a in (curve.confidence, curve.frequency, curve.lower, curve.upper)]
        np.testing.assert_allclose(values, expected, rtol=8 * eps, atol=4 * eps)
    assert ((curve.lower >= 0) & (curve.lower <= curve.frequency) & (curve.frequency <= curve.upper)).all()
    empty = jaxcal.reliability_curve(*d10, bins=[0, 0.01, 1])
    for field in (empty.confidence, empty.frequency, empty.lower, empty.upper):
        np.testing.assert_array_equal(np.isnan(field), [True, False])
    assert empty.count.tolist() == [0, 10]


def test_edges_are_those_of_the_comparison():
    for dtype in ("bfloat16", "float32"):
        p = jnp.array([0.3, 0.7], dtype)
        expected = jnp.asarray(np.arange(16) / 15, dtype).astype(np.float32)
        np.testing.assert_array_equal(jaxcal.reliability_curve(p, [0, 1]).edges, expected)
    edges = jaxcal.reliability_curve(np.array([[0.3, 0.7], [0.3, 2]]), [0, 1], bins=[0, 0.01, 1]).edges
    np.testing.assert_allclose(edges, [[0, 0.01, 1], [np.nan] * 3], rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    p=st.lists(st.sampled_from([0, 0.125, 0.25, 0.375, 0.5, 0.75, 1]), min_size=12, max_size=12),
    weights=st.lists(st.integers(0, 4), min_size=12, max_size=12).filter(sum),
)
def test_edges_of_equal_mass_bins(p, weights):
    """A bin begins at the least score of it and of those above it, if there is one, and rows of weight 0 are none."""
    present = [(x, w) for x, w in zip(p, weights, strict=True) if w]
    bins = _exact_bin([x for x, _ in present], [w for _, w in present], 8, True)
    least = [min([x for (x, _), b in zip(present, bins, strict=True) if b >= j], default=1) for j in range(1, 8)]
    curve = jaxcal.reliability_curve(np.array(p), np.zeros(12), num_bins=8, bins="mass", weights=np.array(weights))
    np.testing.assert_array_equal(curve.edges, [0, *least, 1])


def test_edges_of_lanes():
    p = jnp.asarray(np.random.default_rng(0).random((3, 1, 20)), jnp.float32).at[2, 0, 5].set(-1)
    y, weights = np.ones((2, 20)), np.ones(20)
    curve = lambda p: jaxcal.reliability_curve(p, y, num_bins=4, bins="mass", weights=weights).edges  # noqa: E731
    edges = np.asarray(curve(p))
    assert edges.shape == (3, 2, 5) and np.isnan(edges[2]).all()
    np.testing.assert_array_equal(edges[:2, 0, 1:4], np.sort(p[:2, 0])[:, [5, 10, 15]])
    np.testing.assert_array_equal(edges[:, 0], edges[:, 1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(curve))(p), edges)


def test_accuracy(m8):
    logits, labels = map(np.asarray, m8)
    assert float(jaxcal.accuracy(logits, labels)) == 0.5
    assert float(jaxcal.accuracy(logits, labels, weights=[1, 0, 0, 1, 0, 2, 0, 0])) == 0.75
    assert jaxcal.accuracy(logits.astype(np.float16), labels).dtype == jnp.float32
    np.testing.assert_array_equal(jax.grad(jaxcal.accuracy)(logits, labels), 0)
    stack = np.stack([logits, -logits])[:, None]
    np.testing.assert_array_equal(
        jax.vmap(jaxcal.accuracy, in_axes=(0, None))(stack, np.stack([labels, 2 - labels])),
        jaxcal.accuracy(stack, np.stack([labels, 2 - labels])),
    )
    masked = _with(_with(logits, (0, 1), -np.inf), 4, np.nan)
    with pytest.raises(ValueError, match="accuracy: logits must not be NaN; row 4"):
        jaxcal.accuracy(masked, labels)
    assert np.isnan(jax.jit(jaxcal.accuracy)(masked, labels))
    weights = _with(np.ones(8), 4, 0.0)
    np.testing.assert_allclose(jaxcal.accuracy(masked, _with(labels, 4, -1), weights=weights), 4 / 7, rtol=1e-6)


# --- every metric under every transformation ---


@metrics
def test_a_weight_is_a_repetition(metric, d10, eps):
    p, y = map(np.asarray, d10)
    counts = np.array([2, 0, 1, 3, 1, 0, 1, 2, 4, 1])
    repeated = metric(p.repeat(counts), y.repeat(counts), num_bins=5)
    np.testing.assert_allclose(metric(p, y, weights=counts, num_bins=5), repeated, rtol=16 * eps)


@metrics
def test_a_row_of_weight_zero_leaves_no_trace(metric, d10):
    p, y = map(np.asarray, d10)
    weights = np.array([1.0, 0, 2, 3, 0, 1, 0, 1, 1, 1])
    broken, outcomes = _with(_with(p, 1, np.nan), [4, 6], [7.0, -np.inf]), _with(y, [1, 4], -1)
    mix = np.cos(np.arange(25.0))

    def scalar(p, w, y):
        values = metric(p, y, weights=w, num_bins=5)
        return jnp.sum(values * mix[: values.size])

    evaluate = jax.jit(jax.value_and_grad(scalar, argnums=(0, 1)))
    value, slopes = evaluate(broken, weights, outcomes)
    clean, clean_slopes = evaluate(p, weights, y)
    assert value == clean
    metric(broken, outcomes, weights=weights, num_bins=5)  # does not raise
    for slope, clean_slope in zip(slopes, clean_slopes, strict=True):
        np.testing.assert_array_equal(slope, clean_slope)
        np.testing.assert_array_equal(np.asarray(slope)[weights == 0], 0)


@pytest.mark.parametrize("metric", list(METRICS.values())[:3], ids=list(METRICS)[:3])
def test_derivatives_with_the_bins_held_fixed(metric, d10, x64):
    p, y = map(np.asarray, d10)
    weights = np.arange(1.0, 11.0)
    value = jax.jit(lambda p, w: metric(p, y, weights=w, num_bins=5))
    slopes = jax.jit(jax.grad(value, argnums=(0, 1)))(p, weights)
    for i, slope in enumerate(slopes):
        assert (np.asarray(slope) != 0).any()
        if x64:  # no score is nearer than .005 to an edge, so small steps leave the bins alone
            args = [p, weights]
            for j in range(10):
                step = np.eye(10)[j] * 1e-6
                up, down = ([a + s * step if k == i else a for k, a in enumerate(args)] for s in (1, -1))
                np.testing.assert_allclose(slope[j], (value(*up) - value(*down)) / 2e-6, atol=1e-9)


@pytest.mark.parametrize("metric", [METRICS[name] for name in ("l1, mass", "curve")], ids=["l1, mass", "curve"])
def test_leading_axes_broadcast(metric, d10, eps):
    p, y = map(np.asarray, d10)
    stack, outcomes = np.stack([p, p**2, 1 - p])[:, None], np.stack([y, 1 - y])
    weights = np.random.default_rng(0).multinomial(10, np.full(10, 0.1), (3, 2)).astype(p.dtype)
    values = np.asarray(metric(stack, outcomes, weights=weights, num_bins=5))
    one = jax.jit(lambda p, y, w: metric(p, y, weights=w, num_bins=5))
    for i in range(3):
        for j in range(2):
            np.testing.assert_allclose(values[i, j], one(stack[i, 0], outcomes[j], weights[i, j]), rtol=16 * eps)
    bootstrap = np.asarray(metric(p, y, weights=weights[:, 0], num_bins=5))
    np.testing.assert_allclose(bootstrap[0], values[0, 0], rtol=16 * eps)
    mapped = jax.vmap(one, in_axes=(None, None, 0))(p, y, weights[:, 0])
    np.testing.assert_allclose(mapped, bootstrap, rtol=16 * eps)


BAD_EVENTS = [
    pytest.param({"p": np.nan}, r"probabilities must be in \[0, 1\], got nan in row 3", id="nan"),
    pytest.param({"p": 1.5}, r"in \[0, 1\], got 1.5 in row 3", id="p"),
    pytest.param({"p": -0.25}, r"in \[0, 1\], got -0.25 in row 3", id="negative p"),
    pytest.param({"y": -1}, r"outcomes must be 0 or 1, got -1.0 in row 3", id="y"),
    pytest.param({"y": 2**32 + 1}, r"outcomes must be 0 or 1", id="wide y"),
    pytest.param({"y": 0.5}, r"outcomes must be 0 or 1, got 0.5 in row 3", id="fraction"),
    pytest.param({"weights": -1.0}, r"weights must be finite and >= 0, got -1.0 in row 3", id="negative weight"),
    pytest.param({"weights": np.inf}, "weights must be finite", id="infinite weight"),
]


@pytest.mark.parametrize("call", [jaxcal.ece, jaxcal.reliability_curve], ids=["ece", "curve"])
@pytest.mark.parametrize("spoil, message", BAD_EVENTS)
def test_bad_events(call, spoil, message, d10):
    good = {"p": np.asarray(d10[0]), "y": np.asarray(d10[1]), "weights": np.ones(10)}
    call = functools.partial(call, num_bins=5)
    bad = {name: _with(a, 3, spoil[name]) if name in spoil else a for name, a in good.items()}
    with pytest.raises(ValueError, match=message):
        call(**bad)
    lanes = jax.tree.leaves(call(**{name: np.stack([bad[name], good[name]]) for name in good}))
    both_good = jax.tree.leaves(call(**{name: np.stack([a, a]) for name, a in good.items()}))
    for array, expected in zip(lanes, both_good, strict=True):
        assert np.isnan(array[0]).all()
        np.testing.assert_array_equal(array[1], expected[1])


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_a_bad_event_makes_the_gradient_nan(norm, d10):
    evaluate = jax.jit(jax.value_and_grad(lambda p, y: jaxcal.ece(p, y, num_bins=5, norm=norm)))
    for p, y in ((_with(d10[0], 3, np.nan), d10[1]), (d10[0], _with(d10[1], 3, -1))):
        value, slope = evaluate(p, y)
        assert np.isnan(value) and np.isnan(slope).any()


def test_all_weights_zero(d10):
    with pytest.raises(ValueError, match="weights are all zero"):
        jaxcal.ece(*d10, weights=np.zeros(10))


STATIC = [
    pytest.param({"norm": "l3"}, ValueError, "norm must be one of", id="norm"),
    pytest.param({"num_bins": 0}, ValueError, "num_bins must be an integer >= 1", id="no bins"),
    pytest.param({"num_bins": 2.5}, ValueError, "num_bins must be an integer >= 1", id="bins"),
    pytest.param({"bins": "quantile"}, ValueError, "bins must be", id="rule"),
    pytest.param({"bins": [0, 0.5, 0.5, 1]}, ValueError, "increase strictly from 0 to 1", id="edges"),
    pytest.param({"bins": [0.1, 1]}, ValueError, "increase strictly from 0 to 1", id="ends"),
    pytest.param({"y": np.zeros(9)}, ValueError, r"y must have shape \(\.\.\., n\)", id="n"),
    pytest.param({"y": np.zeros((3, 10)), "p": np.zeros((2, 10))}, ValueError, "do not broadcast", id="batch"),
    pytest.param({"y": ["a"] * 10}, TypeError, "y must be an array of numbers", id="names"),
    pytest.param({"p": np.zeros(10, int)}, TypeError, "p must be floating point", id="integers"),
    pytest.param({"p": np.zeros((0,)), "y": np.zeros((0,))}, ValueError, "not be empty", id="empty"),
    pytest.param({"weights": np.ones(9)}, ValueError, "weights must have shape", id="weights"),
]


@pytest.mark.parametrize("arguments, error, message", STATIC)
def test_static_facts(arguments, error, message, d10):
    arguments = {"p": d10[0], "y": d10[1], **arguments}
    with pytest.raises(error, match=message):
        jaxcal.ece(**arguments)


def test_one_trace_a_shape(monkeypatch):
    traces, sums = [], binned.bin_sums
    monkeypatch.setattr(binned, "bin_sums", lambda *args: traces.append(args) or sums(*args))
    rng = np.random.default_rng(0)
    for _ in range(3):
        jaxcal.ece(rng.random(23), rng.random(23) < 0.5, weights=rng.random(23), num_bins=7)
    assert len(traces) == 1
