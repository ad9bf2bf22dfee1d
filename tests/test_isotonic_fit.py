"""Isotonic calibration against scikit-learn, published examples and a minimization written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

import jaxcal

N = 24

# Ten rows with ties and weights. Blocks {.1}: 0, {.2, .3}: 1/4, {.4}: 1/2, {.5, .6}: 2/3, {.7, .9}: 1, in fractions.
T10_SCORE = np.array([0.1, 0.2, 0.2, 0.3, 0.4, 0.4, 0.5, 0.6, 0.7, 0.9])
T10_OUTCOMES = np.array([0, 1, 0, 0, 1, 0, 1, 0, 1, 1])
T10_WEIGHTS = np.array([1, 1, 2, 1, 1, 1, 2, 1, 1, 1])


def _t10(**options):
    return jaxcal.fit_isotonic(T10_SCORE, T10_OUTCOMES, weights=T10_WEIGHTS, **options)


def _data(seed, n=N):
    rng = np.random.default_rng(seed)
    score = rng.integers(-20, 21, n) / 8
    outcomes = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)
    return score, outcomes, rng.integers(1, 16, n) / 4


def _blocks(score, outcomes, weights):
    """Distinct scores, their weights and the isotonic fit by the max-min formula."""
    u = np.unique(score)
    w = np.array([weights[score == x].sum() for x in u])
    s = np.array([(weights * outcomes)[score == x].sum() for x in u])
    mean = lambda a, b: s[a : b + 1].sum() / w[a : b + 1].sum()  # noqa: E731
    k = range(len(u))
    fit = np.array([max(min(mean(a, b) for b in k if b >= i) for a in k if a <= i) for i in k])
    return u, w, fit


def test_blocks_of_ties_and_weights(eps):
    new = np.array([0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.6, 0.65, 0.7, 0.9, 5.0])
    close = lambda fit, expected: np.testing.assert_allclose(fit(new), expected, rtol=16 * eps)  # noqa: E731
    close(_t10(), [0, 0, 1 / 4, 1 / 4, 1 / 4, 3 / 8, 1 / 2, 7 / 12, 2 / 3, 5 / 6, 1, 1, 1])
    close(_t10(interpolate="step"), [0, 0, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 2 / 3, 2 / 3, 1, 1, 1])
    # knots (.1, 0) (.225, 1/4) (.4, 1/2) (8/15, 2/3) and, at frequency 1, the block from .7 to .9
    centred = [0, 0, 1 / 5, 2 / 7, 5 / 14, 3 / 7, 1 / 2, 9 / 16, 4 / 5, 9 / 10, 1, 1, 1]
    close(_t10(variant="centred"), centred)
    # the last block at its centre .8: .6 and .65 are 1/4 and 7/16 of the way there, .7 is 5/8
    strict = [*centred[:8], 3 / 4, 13 / 16, 7 / 8, 1, 1]
    close(_t10(variant="strict"), strict)


@pytest.mark.parametrize(
    ("score", "outcomes", "new", "expected"),
    [
        # one answer each where software was seen to differ: ties, clamping, both ends of a block are knots
        ([0, 1, 1, 1, 2], [0, 1, 1, 0, 0], [0, 1, 2], [0, 0.5, 0.5]),
        ([0, 0.1, 0.3, 0.4], [0, 0, 1, 1], [0.5, -1], [1, 0]),
        ([0, 1, 2, 3, 4], [0, 1, 0, 0, 1], [2.5, 0.5, 3.5], [1 / 3, 1 / 6, 2 / 3]),
    ],
)
def test_small_cases(score, outcomes, new, expected, eps):
    result = jaxcal.fit_isotonic(np.array(score, float), np.array(outcomes))(np.array(new, float))
    np.testing.assert_allclose(result, expected, rtol=4 * eps)


def test_centred_example_of_oron_and_flournoy(eps):
    """x = 1, 2, 3, 4, means 1, 21, 41, 34, fitted 1, 21, 32, 37.5; here of 50."""
    score, outcomes = np.repeat(np.arange(1.0, 5), 2), np.tile([1, 0], 4)
    means = np.array([1, 21, 41, 34])
    weights = np.stack([means, 50 - means], axis=-1).reshape(-1)
    for variant in ("centred", "strict"):
        fit = jaxcal.fit_isotonic(score, outcomes, weights=weights, variant=variant)
        np.testing.assert_allclose(50 * fit(np.arange(1.0, 5)), [1, 21, 32, 37.5], rtol=8 * eps)


@pytest.mark.parametrize("seed", range(8))
def test_linear_is_scikit_learns(seed, eps):
    score, outcomes, weights = _data(seed)
    new = np.linspace(-4, 4, 257)
    peer = IsotonicRegression(out_of_bounds="clip").fit(score, outcomes, sample_weight=weights)
    result = jaxcal.fit_isotonic(score, outcomes, weights=weights)(new)
    np.testing.assert_allclose(result, peer.predict(new), rtol=16 * eps, atol=16 * eps)


@pytest.mark.parametrize("seed", range(8))
def test_step_and_centres_by_the_max_min_formula(seed, eps):
    score, outcomes, weights = _data(seed)
    u, w, values = _blocks(score, outcomes, weights)
    new = np.linspace(-4, 4, 257)
    fit = lambda **options: jaxcal.fit_isotonic(score, outcomes, weights=weights, **options)(new)  # noqa: E731
    place = np.maximum(np.searchsorted(u, new, side="right") - 1, 0)
    np.testing.assert_allclose(fit(interpolate="step"), values[place], rtol=8 * eps)
    for variant in ("centred", "strict"):
        knots = []
        for rounded in np.unique(values.round(12)):
            block = np.isclose(values, rounded, atol=1e-9)
            value = values[block][0]
            ends = u[block][[0, -1]]
            if variant == "centred" and value in (0, 1):
                knots += [(ends[0], value), (ends[1], value)]
            else:
                knots.append((np.average(u[block], weights=w[block]), value))
        np.testing.assert_allclose(
            fit(variant=variant), np.interp(new, *zip(*knots, strict=True)), rtol=32 * eps, atol=32 * eps
        )


def test_strict_increases_strictly():
    fit = jaxcal.fit_isotonic(*_data(0)[:2], variant="strict")
    knots = np.unique(np.asarray(fit.knots)[np.isfinite(fit.knots)])
    assert len(knots) >= 3 and (np.diff(fit(np.linspace(knots[0], knots[-1], 101))) > 0).all()


def test_infinite_scores():
    """They count in their blocks; on the way to them stands the value of the finite neighbour."""
    inf = np.inf
    score, outcomes = np.array([-inf, 0.0, 1.0, 2.0, inf]), np.array([0, 1, 0, 1, 1])
    new = np.array([-inf, -9.0, 0.0, 1.0, 1.5, 2.0, 9.0, inf])
    fit = jaxcal.fit_isotonic(score, outcomes)
    np.testing.assert_array_equal(fit(new), [0, 0.5, 0.5, 0.5, 0.75, 1, 1, 1])
    # the first block is {-inf, 0}, centred at 0; the last {1, inf}, at 1
    tied = (np.array([-inf, 0.0, 1.0, inf]), np.array([1, 0, 1, 0]))
    np.testing.assert_array_equal(jaxcal.fit_isotonic(*tied)(new), np.full(8, 0.5))
    rows = (np.array([-inf, 0.0, 0.0, 1.0, 1.0, inf]), np.array([1, 0, 0, 1, 1, 0]))
    new = np.array([-inf, -1.0, 0.0, 0.5, 1.0, 2.0, inf])
    for variant in ("centred", "strict"):
        np.testing.assert_allclose(
            jaxcal.fit_isotonic(*rows, variant=variant)(new), np.array([2, 2, 2, 3, 4, 4, 4]) / 6, rtol=1e-6
        )
    ends = jaxcal.fit_isotonic(np.array([-inf, inf]), np.array([0, 1]))
    np.testing.assert_array_equal(ends(np.array([-inf, 3.0, inf])), [0, 0.5, 1])
    near = jaxcal.fit_isotonic(np.array([-3e38, 3e38], np.float32), np.array([0, 1]))
    np.testing.assert_allclose(near(np.array([-1.5e38, 0, 2.4e38], np.float32)), [0.25, 0.5, 0.9], rtol=1e-6)


def test_unusual_sizes():
    assert jaxcal.fit_isotonic(np.array([1.0]), np.array([1]))(np.array([0.0, 1.0, 2.0])).tolist() == [1, 1, 1]
    for outcome in (0, 1):
        fit = jaxcal.fit_isotonic(np.arange(5.0), np.full(5, outcome))
        assert fit(np.linspace(-1, 6, 9)).tolist() == [outcome] * 9
    constant = jaxcal.fit_isotonic(np.full(8, 0.3), np.arange(8) % 2)
    assert constant(np.array([0.0, 0.3, 1.0])).tolist() == [0.5] * 3


@pytest.mark.parametrize("variant", [None, "centred"])
def test_derivatives(variant, x64):
    if not x64:
        pytest.skip("finite differences need float64")
    rng = np.random.default_rng(7)
    score, weights = rng.normal(size=N), rng.uniform(0.5, 2, N)
    outcomes = (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int)
    data = jnp.stack([score, weights, np.linspace(-2.5, 2.5, N) + 1e-3])

    @jax.jit
    def calibrated(data):
        fit = jaxcal.fit_isotonic(data[0], outcomes, weights=data[1], variant=variant)
        return jnp.concatenate([fit(data[2]), fit.log_probabilities(data[2]).clip(-50).reshape(-1)])

    h, unit = 1e-6, np.eye(3 * N).reshape(-1, 3, N)
    differences = np.stack([(calibrated(data + h * d) - calibrated(data - h * d)) / (2 * h) for d in unit], -1)
    differences = differences.reshape(-1, 3, N)
    assert (np.abs(differences).max((0, 2)) > 0.01).all()
    reverse = jax.jit(jax.jacrev(calibrated))(data)
    np.testing.assert_allclose(reverse, differences, atol=1e-7)
    direction = jnp.asarray(rng.normal(size=data.shape))
    forward = jax.jvp(calibrated, (data,), (direction,))[1]
    np.testing.assert_allclose(forward, jnp.tensordot(reverse, direction, 2), atol=1e-12)


def test_rows_of_equal_scores_share_their_derivative(x64):
    """Moving all of them together is what the sum of their derivatives says."""
    score = jnp.array([0.0, 1.0, 1.0, 1.0, 2.0, 3.0])
    outcomes, weights = np.array([0, 1, 0, 0, 1, 1]), jnp.array([1.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    value = lambda s: jaxcal.fit_isotonic(s, outcomes, weights=weights)(jnp.array([0.5]))[0]  # noqa: E731
    slope = jax.grad(value)(score)
    # value = v (t - s_0) / (s_1 - s_0) with v = 1/4
    np.testing.assert_allclose(slope, [-0.125, -0.125 / 4, -0.125 / 2, -0.125 / 4, 0, 0], rtol=1e-6)


def test_options():
    data = np.arange(4.0), np.array([0, 1, 0, 1])
    with pytest.raises(ValueError, match="interpolate must be one of"):
        jaxcal.fit_isotonic(*data, interpolate="cubic")
    with pytest.raises(ValueError, match="variant must be one of"):
        jaxcal.fit_isotonic(*data, variant="centered")
    with pytest.raises(ValueError, match="interpolate="):
        jaxcal.fit_isotonic(*data, variant="strict", interpolate="step")
