"""ACE, debiased and sweep estimates of the calibration error, against exact fractions and published software."""

import functools
import pathlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.metrics import binned

DATA = pathlib.Path(__file__).parent / "data"
ESTIMATORS = ("kumar", "u", "tcal")


def _load(name):
    with np.load(DATA / f"{name}.npz") as data:
        return data["p"], data["y"]


def _width_bins(p, num_bins):
    return [min(int(Fraction(float(x)) * num_bins), num_bins - 1) for x in p]


def _mass_bins(p, w, num_bins):
    mass = sum(map(int, w))
    return [num_bins * sum(int(v) for q, v in zip(p, w, strict=True) if q < x) // mass for x in p]


def _rows_by_bin(p, y, w, bins):
    """(probability, outcome) of every present row, repeated, in exact numbers, a list for each occupied bin."""
    rows = {}
    for x, o, c, b in zip(p, y, w, bins, strict=True):
        rows.setdefault(b, []).extend([(Fraction(float(x)), int(o))] * int(c))
    return [rows[b] for b in sorted(rows) if rows[b]]


def _exact_debiased(rows, estimator):
    total = Fraction(0)
    for row in rows:
        m, gap = len(row), sum(o - x for x, o in row)
        f = Fraction(sum(o for _, o in row), m)
        noise = sum((o - x) ** 2 for x, o in row)
        if estimator == "kumar":
            total += m * ((gap / m) ** 2 - f * (1 - f) / (m - 1))
        else:
            total += (gap**2 - noise) / (m if estimator == "tcal" else m - 1)
    return float(total / sum(map(len, rows)))


@pytest.fixture
def events():
    """60 rows with ties and weights; enough a bin that the debiased estimates exist."""
    rng = np.random.default_rng(3)
    p = rng.integers(1, 32, 60) / 32
    return p, (rng.random(60) < p).astype(int), rng.integers(0, 4, 60)


# --- equal-width bins: floor with a correction is the comparison with the edges ---


@pytest.mark.parametrize("num_bins", [1, 3, 10, 15, 49, 1000])
def test_scores_next_to_an_edge(num_bins):
    edges = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
    p = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
    index, _ = binned.assign(jnp.asarray(p), None, binned.bin_rule("width", num_bins))
    np.testing.assert_array_equal(index, np.searchsorted(edges[1:-1], p, side="right"))


@pytest.mark.parametrize("dtype, num_bins", [("float16", 200), ("bfloat16", 60), ("bfloat16", 300)])
def test_every_half_precision_score(dtype, num_bins):
    one = np.array(1, jnp.dtype(dtype)).view(np.uint16)
    p = np.arange(one + 1, dtype=np.uint16).view(jnp.dtype(dtype))  # floats in [0, 1] are ordered as their bits
    edges = (np.arange(num_bins + 1) / num_bins).astype(p.dtype)
    index, _ = binned.assign(jnp.asarray(p), None, binned.bin_rule("width", num_bins))
    wide = [a.astype(np.float32) for a in (edges[1:-1], p)]
    np.testing.assert_array_equal(index, np.searchsorted(*wide, side="right"))


# --- ACE ---


@pytest.mark.parametrize("num_bins", [4, 7])
def test_ace_is_the_mean_gap_of_occupied_ranges(num_bins, events, eps):
    p, y, w = events
    rows = _rows_by_bin(p, y, w, _mass_bins(p, w, num_bins))
    gaps = [abs(sum(o - x for x, o in row)) / len(row) for row in rows]
    expected = float(sum(gaps) / len(gaps))
    np.testing.assert_allclose(jaxcal.ace(p, y, num_bins=num_bins, weights=w), expected, rtol=16 * eps)


def test_ace_is_ece_where_ranges_are_equal(eps):
    """1,000 rows in 10 ranges of 100; in 15 they have 66 or 67 rows, and the two means differ."""
    p, y = _load("binary_over_1000")
    ece = functools.partial(jaxcal.ece, p, y, bins="mass")
    np.testing.assert_allclose(jaxcal.ace(p, y, num_bins=10), ece(num_bins=10), rtol=16 * eps)
    assert 1e-6 < abs(jaxcal.ace(p, y, num_bins=15) - ece(num_bins=15)) < 1e-3


def test_ace_is_not_that_of_netcal(eps):
    """netcal 1.4.0 calls the unweighted mean over equal-width bins ACE: .16878364723223438 with 15 bins."""
    p, y = _load("binary_over_1000")
    curve = jaxcal.reliability_curve(p, y, num_bins=15)
    np.testing.assert_allclose(
        jnp.nanmean(jnp.abs(curve.frequency - curve.confidence)), 0.16878364723223438, rtol=16 * eps
    )
    assert abs(jaxcal.ace(p, y, num_bins=15) - 0.16878364723223438) > 1e-3


def test_ace_of_classes_is_their_mean(m8, eps):
    p, y = (np.asarray(a) for a in jaxcal.class_wise(*m8))
    each = []
    for q, o in zip(p, y, strict=True):
        rows = _rows_by_bin(q, o, np.ones(8, int), _mass_bins(q, np.ones(8, int), 4))
        each.append(float(np.mean([abs(sum(o - x for x, o in row)) / len(row) for row in rows])))
    np.testing.assert_allclose(jaxcal.ace(p, y, num_bins=4).mean(0), np.mean(each), rtol=32 * eps)


# --- debiased ---


@pytest.mark.parametrize("estimator, nine", [("kumar", -0.02242), ("u", -0.02198), ("tcal", None)])
def test_debiased_of_ten_forecasts(estimator, nine, d10, eps):
    """Values in exact fractions, five and ten bins. The last of five holds one row, and so do more of ten: the values
    that let such a bin count as 0, -.02242 and -.02198, are those of the other nine rows."""
    p, y = map(np.asarray, d10)
    value = functools.partial(jaxcal.debiased_ece, estimator=estimator)
    if estimator == "tcal":
        np.testing.assert_allclose(value(p, y, num_bins=5), -0.0180433333333333, rtol=64 * eps)
        np.testing.assert_allclose(value(p, y, num_bins=10), 0.0114, rtol=64 * eps)
        return
    assert np.isnan(value(p, y, num_bins=5)) and np.isnan(value(p, y, num_bins=10))
    np.testing.assert_allclose(value(p[:9], y[:9], num_bins=5) * 0.9, nine, rtol=64 * eps)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bins", ["width", "mass"])
def test_debiased_with_ties_and_weights(estimator, bins, events, eps):
    p, y, w = events
    index = _width_bins(p, 6) if bins == "width" else _mass_bins(p, w, 6)
    expected = _exact_debiased(_rows_by_bin(p, y, w, index), estimator)
    value = jaxcal.debiased_ece(p, y, num_bins=6, bins=bins, estimator=estimator, weights=w)
    np.testing.assert_allclose(value, expected, atol=16 * eps)


def test_debiased_against_uncertainty_calibration(eps):
    """uncertainty-calibration 0.1.4, squared and not clipped at 0, in equal-mass bins.

    Ten bins of 1,000 rows and the nine values of the tied data are the same bins there and here. Fifteen are not: it
    splits rows by numpy.array_split, ten times 67 and five times 66, while ours are [67, 67, 66, 67, 67, 66, ...].
    """
    over, ties = _load("binary_over_1000"), _load("binary_ties_500")
    debiased = functools.partial(jaxcal.debiased_ece, bins="mass")
    np.testing.assert_allclose(debiased(*over, num_bins=10), 0.03189151708031504, rtol=64 * eps)
    np.testing.assert_allclose(debiased(*ties, num_bins=15), 0.01850635610808862, rtol=64 * eps)
    fifteen = jaxcal.reliability_curve(*over, bins="mass", num_bins=15).count
    np.testing.assert_array_equal(fifteen[:6], [67, 67, 66, 67, 67, 66])
    assert 1e-6 < abs(debiased(*over, num_bins=15) - 0.030532466898064572) < 1e-4
    blocks = np.array_split(np.argsort(over[0]), 15)  # its bins, by the formula
    rows = [[(Fraction(float(over[0][i])), int(over[1][i])) for i in block] for block in blocks]
    np.testing.assert_allclose(_exact_debiased(rows, "kumar"), 0.030532466898064572, rtol=1e-12)


def test_what_is_unbiased_for_what():
    """Mean over 20,000 data sets of 60 rows in two bins, against the law's own residual means."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 1, (20_000, 60))
    truth = np.where(p < 0.5, p - 0.1 * (p > 0.1), p + 0.2 * (p < 0.8))
    y = rng.random(p.shape) < truth
    # E[y - p | bin]: -.1 on 4/5 of the lower bin, .2 on 3/5 of the upper one
    target = 0.5 * (0.08**2 + 0.12**2)
    means, errors = {}, {}
    for estimator in ESTIMATORS:
        values = np.asarray(jaxcal.debiased_ece(p, y, num_bins=2, estimator=estimator))
        means[estimator], errors[estimator] = values.mean(), values.std() / np.sqrt(len(values))
    plug_in = np.mean(np.asarray(jaxcal.ece(p, y, num_bins=2, norm="l2")) ** 2)
    assert abs(means["u"] - target) < 4 * errors["u"] and plug_in > target + 20 * errors["u"]
    # tcal: (n_b - 1) for n_b
    assert abs(means["tcal"] - target * (1 - 2 / 60)) < 4 * errors["tcal"]
    # kumar leaves out what forecasts and outcomes share: here Var(r | b) - Var(y | b) < 0
    assert means["u"] - 1 / (4 * 2 * 60) * 1.5 < means["kumar"] < means["u"]


@pytest.mark.parametrize(
    "options, match", [({"estimator": "none"}, "estimator must be"), ({"bins": "x"}, "bins must be")]
)
def test_debiased_options(options, match, d10):
    with pytest.raises(ValueError, match=match):
        jaxcal.debiased_ece(*d10, **options)


# --- sweep ---


def _exact_sweep(p, y, w):
    """The rule as it is written, in exact fractions: number of bins and sum of |gap| over n."""
    mass = int(sum(w))
    best = _rows_by_bin(p, y, w, _mass_bins(p, w, 1))
    number = 1
    for b in range(2, mass + 1):
        rows = _rows_by_bin(p, y, w, _mass_bins(p, w, b))
        frequencies = [Fraction(sum(o for _, o in row), len(row)) for row in rows]
        if any(f > g for f, g in zip(frequencies, frequencies[1:], strict=False)):
            break
        number, best = b, rows
    return number, float(sum(abs(sum(o - x for x, o in row)) for row in best) / mass)


def test_sweep_against_the_rule():
    rng = np.random.default_rng(0)
    p = np.where(np.arange(30)[:, None] % 2, rng.random((30, 40)), rng.integers(1, 16, (30, 40)) / 16)
    p = p.astype(np.float32)
    sharp = np.clip(p + 3 * (p - 0.5) * (np.arange(30)[:, None] % 3 > 0), 0, 1)
    y, w = (rng.random(p.shape) < sharp).astype(int), rng.integers(0, 4, p.shape)
    for weights in (None, w):
        result = jaxcal.ece_sweep(p, y, weights=weights)
        exact = [_exact_sweep(*lane) for lane in zip(p, y, np.ones_like(w) if weights is None else w, strict=True)]
        np.testing.assert_array_equal(result.num_bins, [number for number, _ in exact])
        np.testing.assert_allclose(result.ece, [value for _, value in exact], rtol=4e-6, atol=1e-7)
    assert len(set(np.asarray(result.num_bins).tolist())) > 5


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_sweep_is_ece_with_its_bins(norm, eps):
    p, y = _load("binary_over_1000")
    result = jaxcal.ece_sweep(p, y, norm=norm)
    assert result.num_bins.dtype == jnp.int32
    expected = jaxcal.ece(p, y, norm=norm, bins="mass", num_bins=int(result.num_bins))
    np.testing.assert_allclose(result.ece, expected, rtol=64 * eps)


def test_sweep_goes_on_beyond_one_chunk_of_bins():
    """Separated but for four rows in the middle, the wrong way round: they must get bins of their own."""
    n = 1000
    p = (np.arange(n) + 0.5) / n
    y = np.arange(n) >= n // 2
    y[n // 2 - 2 : n // 2 + 2] ^= True
    result = jaxcal.ece_sweep(p, y)
    assert 128 < result.num_bins < 600
    bins = [b * np.arange(n) // n for b in range(1, 600)]
    frequency = [np.bincount(b, y) / np.bincount(b) for b in bins]
    monotone = [bool((np.diff(f) >= 0).all()) for f in frequency]
    assert result.num_bins == monotone.index(False)


def test_sweep_of_separated_classes_uses_every_row():
    p = np.linspace(0.01, 0.99, 50)
    result = jaxcal.ece_sweep(p, p > 0.3)
    assert result.num_bins == 50
    np.testing.assert_allclose(result.ece, np.mean(np.abs((p > 0.3) - p)), rtol=1e-6)
    assert jaxcal.ece_sweep(p, np.zeros(50)).num_bins == 50
    assert jaxcal.ece_sweep(p, p < 0.3).num_bins == 1


def test_sweep_of_an_invalid_lane_has_no_bins():
    p = np.array([[0.2, 0.4], [0.2, np.nan]])
    result = jax.jit(jaxcal.ece_sweep)(p, np.array([0, 1]))
    assert result.num_bins.tolist() == [2, 0] and np.isnan(result.ece[1])


def test_sweep_norm(d10):
    with pytest.raises(ValueError, match="norm must be one of"):
        jaxcal.ece_sweep(*d10, norm="l3")


def test_sweep_ends_at_once_where_frequencies_do_not_decrease():
    """Sorted frequencies and one rare score: every number of bins is monotone, so the last one is the answer."""
    n = 32_000
    k = [12_800, 3200, 5760, 3840, 2560]
    k += [n - 1 - sum(k), 1]
    p = np.repeat(np.float32([0.2, 0.2, 0.4, 0.4, 0.6, 0.6, 0.8]), k)
    y = np.repeat([0, 1, 0, 1, 0, 1, 1], k)
    result = jaxcal.ece_sweep(p, y)
    score, group = np.unique(p, return_inverse=True)
    m = np.bincount(group)
    expected = np.abs(np.bincount(group, y) - m * score.astype(float)).sum() / n
    assert result.num_bins == n
    np.testing.assert_allclose(result.ece, expected, atol=1e-6)
