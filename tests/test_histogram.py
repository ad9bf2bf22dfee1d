"""Histogram binning against bins counted one row at a time in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

N = 60


def _logit(p):
    return np.log(p) - np.log1p(-np.asarray(p, float))


def test_ten_rows_by_hand(d10, eps):
    score, outcomes = _logit(np.asarray(d10[0], np.float64)), d10[1]
    fit = jaxcal.fit_histogram(score, outcomes, num_bins=5)
    assert fit.counts.tolist() == [2, 3, 2, 2, 1]
    np.testing.assert_allclose(fit.values, [0, 1 / 3, 1, 1 / 2, 1], rtol=2 * eps)
    mass = jaxcal.fit_histogram(score, outcomes, num_bins=5, bins="mass")
    assert mass.counts.tolist() == [2] * 5 and mass.values.tolist() == [0, 0.5, 0.5, 0.5, 1]
    # halfway between .12 and .21, .30 and .38, .47 and .55, .68 and .79
    edges = 1 / (1 + np.exp(-np.asarray(mass.edges, np.float64)[1:-1]))
    np.testing.assert_allclose(edges, [0.165, 0.34, 0.51, 0.735], rtol=8 * eps)
    assert mass.edges[0] == -np.inf and mass.edges[-1] == np.inf
    new = _logit(np.array([0.01, 0.16, 0.17, 0.339, 0.341, 0.6, 0.73, 0.74, 0.999]))
    assert mass(new).tolist() == [0, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 1]


def test_empty_bins_have_their_midpoint(eps):
    score = _logit(np.array([0.55, 0.58]))
    fit = jaxcal.fit_histogram(score, np.array([0, 1]), num_bins=5)
    np.testing.assert_allclose(fit.values, [0.1, 0.3, 0.5, 0.7, 0.9], rtol=2 * eps)
    np.testing.assert_allclose(fit.complements, [0.9, 0.7, 0.5, 0.3, 0.1], rtol=2 * eps)
    assert fit.counts.tolist() == [0, 0, 2, 0, 0]
    ends = fit(np.array([-np.inf, np.inf]))
    np.testing.assert_allclose(ends, [0.1, 0.9], rtol=2 * eps)
    edges = jaxcal.fit_histogram(score, np.array([1, 1]), bins=[0, 0.5, 0.57, 1])
    assert edges.values.tolist() == [0.25, 1, 1]


def test_ties_stay_together_and_leave_no_gaps():
    """Bins without rows cannot be hit, by no score at all."""
    for score in (np.zeros(8), np.repeat([-1.0, 1.0], 4), np.repeat([-np.inf, 0.0, np.inf, np.inf], 2)):
        fit = jaxcal.fit_histogram(score, np.arange(8) % 2, num_bins=5, bins="mass")
        assert fit.counts.sum() == 8 and np.isin(fit.counts, [0, 2, 4, 8]).all()
        new = np.array([-np.inf, -1e30, -1.0, -0.5, 0.0, 0.5, 1.0, 1e30, np.inf])
        assert fit(new).tolist() == [0.5] * 9
    fit = jaxcal.fit_histogram(np.array([0.0, np.inf]), np.array([0, 1]), num_bins=2, bins="mass")
    assert fit(np.array([0.0, 1.0, 2.0, np.inf])).tolist() == [0, 0, 1, 1]  # the edge is that of p = .75
    one = jaxcal.fit_histogram(np.array([0.0, 1.0, 2.0]), np.array([0, 1, 1]), num_bins=1, bins="mass")
    np.testing.assert_allclose(one(np.array([-9.0, 9.0])), 2 / 3, rtol=1e-6)


def test_scores_beyond_the_rounding_of_probabilities():
    """Half of the scores are forecasts of 1 in float32; as log-odds they are as far apart as others."""
    score = np.array([20.0, 30.0, 40.0, 60.0], np.float32)
    fit = jaxcal.fit_histogram(score, np.array([0, 0, 1, 1]), num_bins=2, bins="mass")
    assert fit(np.array([20, 30, 40, 90], np.float32)).tolist() == [0, 0, 1, 1]
    # 1 - p is e^-30 and e^-40, their mean e^-30 / 2
    np.testing.assert_allclose(fit.edges[1], 30 + np.log(2), rtol=1e-5)


@pytest.mark.parametrize("rule", ["width", "mass", "edges"])
@pytest.mark.parametrize("seed", range(3))
def test_frequencies_of_bins_row_by_row(rule, seed, eps):
    rng = np.random.default_rng(seed)
    score = rng.integers(-24, 25, N) / 8 + 1 / 16  # no edge of the bins is hit
    outcomes = (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int)
    weights = rng.integers(0, 4, N).astype(float)
    edges = [0, 0.1, 0.4, 0.75, 1]
    options = {"bins": edges} if rule == "edges" else {"bins": rule, "num_bins": 7}
    fit = jaxcal.fit_histogram(score, outcomes, weights=weights, **options)
    p = 1 / (1 + np.exp(-score))
    if rule == "mass":
        smaller = np.array([weights[score < s].sum() for s in score])
        index = np.floor(7 * smaller / weights.sum() + 1e-9).astype(int)
        num_bins = 7
    else:
        cuts = np.array(edges if rule == "edges" else np.arange(8) / 7)
        index, num_bins = np.searchsorted(cuts, p, side="right") - 1, len(cuts) - 1
    counts = np.array([weights[index == b].sum() for b in range(num_bins)])
    np.testing.assert_array_equal(fit.counts, counts)
    expected = np.array([np.average(outcomes[index == b], weights=weights[index == b]) for b in index])
    present = weights > 0
    np.testing.assert_allclose(np.asarray(fit(score))[present], expected[present], rtol=2 * eps)


def test_derivatives_by_weights(x64):
    score, outcomes = jnp.array([0.0, 0.1, 0.2, 2.0]), np.array([0, 1, 1, 1])
    for bins in ("width", "mass"):

        def value(score, weights, bins=bins):
            fit = jaxcal.fit_histogram(score, outcomes, weights=weights, num_bins=2, bins=bins)
            return fit(jnp.array([0.3]))[0] if bins == "width" else fit(jnp.array([-1.0]))[0]

        rows = 4 if bins == "width" else 2  # all scores are >= 0; the lower half by weight
        frequency = outcomes[:rows].mean()
        slopes = jax.grad(value, (0, 1))(score, jnp.ones(4))
        np.testing.assert_array_equal(slopes[0], np.zeros(4))
        # d (sum w y / sum w) / dw_i = (y_i - frequency) / sum w
        expected = np.where(np.arange(4) < rows, (outcomes - frequency) / rows, 0)
        np.testing.assert_allclose(slopes[1], expected, atol=1e-7)


def test_options():
    data = np.arange(4.0), np.array([0, 1, 0, 1])
    for options, message in (
        ({"bins": "quantile"}, "bins must be"),
        ({"num_bins": 0}, "num_bins must be an integer >= 1"),
        ({"bins": [0.1, 0.5, 1]}, "edges must increase strictly from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            jaxcal.fit_histogram(*data, **options)
