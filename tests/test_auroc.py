"""Area under the ROC curve against all pairs in exact fractions, and against published software."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

N = 24
RNG = np.random.default_rng(11)
# two lanes with ties, negative, infinite and large scores
S = RNG.choice([-np.inf, -1e30, -2.5, -0.0, 0.0, 0.25, 3.0, 1e30, np.inf], (2, N)).astype(np.float32)
Y = (RNG.random((2, N)) < 0.5).astype(np.int32)
COUNTS = RNG.integers(0, 4, (2, N))


def _pairs(scores, y, weights):
    """The definition, over all pairs of an event and a non-event."""
    won, pairs = Fraction(0), 0
    for s1, y1, w1 in zip(scores, y, weights, strict=True):
        for s0, y0, w0 in zip(scores, y, weights, strict=True):
            if y1 == 1 and y0 == 0:
                won += int(w1 * w0) * (Fraction(1) if s1 > s0 else Fraction(1, 2) if s1 == s0 else Fraction(0))
                pairs += int(w1 * w0)
    return float(won / pairs)


def test_all_pairs_with_ties_and_counts(eps):
    eps = max(eps, np.finfo(np.float32).eps)
    ones = np.ones((2, N), int)
    for weights, given in ((ones, None), (COUNTS, COUNTS)):
        expected = [_pairs(*lane) for lane in zip(S, Y, weights, strict=True)]
        np.testing.assert_allclose(jaxcal.auroc(S, Y, weights=given), expected, rtol=4 * eps)
    shared = [_pairs(S[0], Y[0], c) for c in COUNTS]
    np.testing.assert_allclose(jaxcal.auroc(S[0], Y[0], weights=COUNTS), shared, rtol=4 * eps)


def test_ten_forecasts(d10, eps):
    """20 of the 25 pairs are in order, as scikit-learn 1.9.1 roc_auc_score says too (0.8)."""
    p, y = d10
    np.testing.assert_allclose(jaxcal.auroc(p, y), 0.8, rtol=4 * eps)
    # ranking only: increasing maps leave it alone, a decreasing one mirrors it
    np.testing.assert_allclose(jaxcal.auroc(jaxcal.log_odds(p), y), 0.8, rtol=4 * eps)
    np.testing.assert_allclose(jaxcal.auroc(-p, y), 0.2, rtol=4 * eps)
    assert float(jaxcal.auroc(jnp.zeros(10), y)) == 0.5
    assert float(jaxcal.auroc(y.astype(jnp.float32), y)) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64)
def test_dtypes(dtype):
    scores = jnp.asarray(np.round(S.clip(-3, 3), 2), dtype)
    value = jaxcal.auroc(scores, Y)
    assert value.dtype == jnp.promote_types(dtype, jnp.float32)
    expected = [_pairs(*lane) for lane in zip(np.asarray(scores, float), Y, np.ones((2, N), int), strict=True)]
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_array_equal(jaxcal.auroc(scores, Y.astype(bool)), value)


def test_transformations(eps):
    value, traces = jaxcal.auroc(S, Y, weights=COUNTS), []

    @jax.jit
    def call(s, y, w):
        traces.append(1)
        return jaxcal.auroc(s, y, weights=w)

    np.testing.assert_allclose(call(S, Y, COUNTS), value, rtol=4 * eps)
    call(S[::-1], Y, COUNTS)
    assert len(traces) == 1
    np.testing.assert_allclose(jax.vmap(call)(S, Y, COUNTS), value, rtol=4 * eps)
    np.testing.assert_array_equal(jax.grad(lambda s: jaxcal.auroc(s, Y[0]))(jnp.asarray(S[0])), np.zeros(N))


def test_derivative_in_the_weights(x64):
    if not x64:
        pytest.skip("finite differences need float64")
    w, h = jnp.asarray(COUNTS[0] + 0.5), 1e-6
    value = lambda w: jaxcal.auroc(S[0].astype(float), Y[0], weights=w)  # noqa: E731
    differences = [(value(w.at[i].add(h)) - value(w.at[i].add(-h))) / (2 * h) for i in range(N)]
    np.testing.assert_allclose(jax.grad(value)(w), differences, atol=1e-9)


def test_no_pair_is_nan_and_not_an_error():
    assert jnp.isnan(jaxcal.auroc(S[0], np.ones(N)))
    assert jnp.isnan(jaxcal.auroc(S, np.zeros(N))).all()
    assert jnp.isnan(jaxcal.auroc(S[0], Y[0], weights=Y[0]))


def test_bad_input():
    s = S.copy()
    s[0, 3] = np.nan
    value = jaxcal.auroc(s, Y)
    assert jnp.isnan(value[0]) and value[1] == jaxcal.auroc(S, Y)[1]
    with pytest.raises(ValueError, match="auroc: scores must not be NaN, got nan in row 3"):
        jaxcal.auroc(s[0], Y[0])
    assert jnp.isnan(jax.jit(jaxcal.auroc)(s[0], Y[0]))
    with pytest.raises(ValueError, match="auroc: outcomes must be 0 or 1, got 3.0 in row 0"):
        jaxcal.auroc(S[0], Y[0] + 2)
    for bad in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="weights must be finite and >= 0"):
            jaxcal.auroc(S[0], Y[0], weights=np.full(N, bad))
    with pytest.raises(ValueError, match="weights are all zero"):
        jaxcal.auroc(S, Y, weights=np.zeros(N))
    for bad in (2e38, 1e-40):  # the sum overflows, or products vanish
        with pytest.raises(ValueError, match="auroc: weights are too large or too small for float32"):
            jaxcal.auroc(S[0], Y[0], weights=jnp.full(N, bad, jnp.float32))
        lanes = jaxcal.auroc(S, Y, weights=jnp.ones((2, N), jnp.float32).at[0].set(bad))
        assert jnp.isnan(lanes[0]) and lanes[1] == jaxcal.auroc(S, Y)[1]
    weights = np.ones(N)
    weights[3] = 0
    np.testing.assert_allclose(jaxcal.auroc(s, Y, weights=weights), jaxcal.auroc(S, Y, weights=weights), rtol=1e-6)
    for call, error, message in (
        (lambda: jaxcal.auroc([1, 2], [0, 1]), TypeError, "scores must be floating point"),
        (lambda: jaxcal.auroc(0.5, 1), ValueError, r"scores must have shape \(\.\.\., n\)"),
        (lambda: jaxcal.auroc(S[0], Y[0, 1:]), ValueError, "with the n of scores"),
        (lambda: jaxcal.auroc(np.ones((2, 3)), np.ones((3, 3))), ValueError, "leading axes of scores .* do not broad"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_float32_at_a_million():
    """Against ranks in float64."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    scores = rng.normal(size=n).astype(np.float32).round(3)
    y = rng.random(n) < 0.2 + 0.05 * np.tanh(scores)
    values, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    events = np.bincount(group, weights=y, minlength=len(values))
    others = counts - events
    exact = np.sum(events * (np.cumsum(others) - others / 2)) / events.sum() / others.sum()
    np.testing.assert_allclose(jaxcal.auroc(scores, y), exact, rtol=1e-6)
    weights = np.full(n, 0.1, np.float32)
    np.testing.assert_allclose(jaxcal.auroc(scores, y, weights=weights), exact, rtol=1e-6)
