"""What isotonic regression, histogram binning, BBQ and Venn-Abers have in common, checked for each in the same way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcal
from jaxcal import Status

N = 24
FITS = {
    "isotonic": jaxcal.fit_isotonic,
    "width": functools.partial(jaxcal.fit_histogram, num_bins=6),
    "mass": functools.partial(jaxcal.fit_histogram, num_bins=6, bins="mass"),
    "bbq": functools.partial(jaxcal.fit_bbq, num_bins=(1, 2, 3, 5)),
    "venn_abers": jaxcal.fit_venn_abers,
}
VARIANTS = {
    "step": functools.partial(jaxcal.fit_isotonic, interpolate="step"),
    "centred": functools.partial(jaxcal.fit_isotonic, variant="centred"),
    "strict": functools.partial(jaxcal.fit_isotonic, variant="strict"),
    "brier": functools.partial(jaxcal.fit_venn_abers, merge="brier"),
}
every_fit = pytest.mark.parametrize("fit_binary", FITS.values(), ids=FITS)
every_variant = pytest.mark.parametrize("fit_binary", (FITS | VARIANTS).values(), ids=FITS | VARIANTS)
NEW = np.linspace(-3, 3, N)
apply = jax.jit(lambda fit, score: (fit(score), fit.log_probabilities(score)))


def _data(seed=0, lanes=()):
    """Tied scores that float32 holds exactly, outcomes of either kind, whole weights with zeros."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-8, 9, (*lanes, N)) / 4
    outcomes = (rng.random((*lanes, N)) < 1 / (1 + np.exp(-score))).astype(int)
    return score, outcomes, rng.integers(0, 4, (*lanes, N)).astype(float)


def assert_same(a, b, eps):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=16 * eps, atol=16 * eps)


@every_fit
def test_a_weight_is_a_number_of_copies(fit_binary, eps):
    score, outcomes, weights = _data()
    fit = fit_binary(score, outcomes, weights=weights)
    copies = np.repeat(np.arange(N), weights.astype(int))
    order = np.random.default_rng(1).permutation(copies)
    assert_same(apply(fit, NEW), apply(fit_binary(score[order], outcomes[order]), NEW), eps)


@every_fit
def test_absent_rows_may_hold_anything(fit_binary):
    score, outcomes, weights = _data()
    weights[[2, 5, 7]] = 0

    def evaluate(score, outcomes):
        fit = lambda w, s: jnp.sum(fit_binary(s, outcomes, weights=w)(NEW))  # noqa: E731
        return jax.value_and_grad(fit, (0, 1))(jnp.asarray(weights), jnp.asarray(score))

    score[[2, 5, 7]] = 0.0, 9.0, -9.0
    value, slopes = evaluate(score, outcomes)
    outcomes[2], score[[2, 5, 7]] = -1, (np.nan, np.inf, 0.25)
    dirty, dirty_slopes = evaluate(score, outcomes)
    assert value == dirty and np.isfinite(value)
    for a, b in zip(slopes, dirty_slopes, strict=True):
        assert np.isfinite(a).all() and np.isfinite(b).all()
        present = weights > 0
        np.testing.assert_array_equal(np.asarray(a)[present], np.asarray(b)[present])
    assert (np.asarray(dirty_slopes[1])[[2, 5, 7]] == 0).all()


@every_fit
def test_lanes(fit_binary, eps):
    score, outcomes, weights = _data(2, (3,))
    alone = [apply(fit_binary(s, y, weights=w), NEW) for s, y, w in zip(score, outcomes, weights, strict=True)]
    alone = [np.stack(parts) for parts in zip(*alone, strict=True)]
    together = fit_binary(score, outcomes, weights=weights)
    assert together.status.shape == together.num_steps.shape == together.gradient_norm.shape == (3,)
    assert_same(apply(together, NEW), alone, eps)
    mapped = jax.jit(jax.vmap(lambda s, y, w: fit_binary(s, y, weights=w)))(score, outcomes, weights)
    assert_same(jax.tree.leaves(mapped), jax.tree.leaves(together), eps)
    # weights of a bootstrap: one set of scores
    shared = apply(fit_binary(score[0], outcomes[0], weights=weights), np.stack([NEW, NEW, NEW]))
    expected = [apply(fit_binary(score[0], outcomes[0], weights=w), NEW) for w in weights]
    assert_same(shared, [np.stack(parts) for parts in zip(*expected, strict=True)], eps)
    # one fit for several lanes of scores, and for a number
    single = fit_binary(score[0], outcomes[0], weights=weights[0])
    assert_same(apply(single, np.stack([NEW, NEW, NEW])), [np.stack([part[0]] * 3) for part in alone], eps)
    np.testing.assert_array_equal(single(NEW[4]), single(NEW)[4])


@every_fit
def test_bad_lanes_are_nan_and_say_why(fit_binary):
    score, outcomes, weights = _data(3, (5,))
    weights[:] = 1
    score[0, 1], outcomes[1, 2], weights[2, 3], weights[3] = np.nan, 2, -1, 0
    fit = fit_binary(score, outcomes, weights=weights)
    assert fit.status.tolist() == [Status.INVALID_INPUT] * 4 + [Status.CONVERGED]
    assert np.isnan(fit(NEW)[:4]).all() and np.isfinite(fit(NEW)[4]).all()
    assert np.isnan(fit.log_probabilities(NEW)[:4]).all()
    for lane, message in enumerate(["score must", "outcomes must be 0 or 1", "weights must be finite", "all zero"]):
        with pytest.raises(ValueError, match=message):
            fit_binary(score[lane], outcomes[lane], weights=weights[lane])
    limits = jnp.finfo(jnp.result_type(float))
    with pytest.raises(ValueError, match="too large or too small for sums"):
        fit_binary(score[4], outcomes[4], weights=np.full(N, limits.max * limits.eps))
    with pytest.raises(ValueError, match="outcomes must have shape"):
        fit_binary(np.zeros((N, 2)), outcomes[0])
    with pytest.raises(TypeError, match="floating point"):
        fit_binary(np.arange(N), outcomes[0])


@every_fit
def test_new_scores_that_are_nan(fit_binary):
    fit = fit_binary(*_data(lanes=())[:2])
    score = NEW.copy()
    score[3] = np.nan
    result = np.asarray(fit(score))
    assert np.isnan(result).tolist() == [i == 3 for i in range(N)]
    slope = jax.grad(lambda fit: jnp.nansum(fit(score)), allow_int=True)(fit)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(slope) if a.dtype.kind == "f")
    with pytest.raises(ValueError, match="scores must not be NaN"):
        fit(np.full(N, np.nan))


@every_fit
def test_dtypes(fit_binary, x64):
    score, outcomes, _ = _data()
    fit = fit_binary(jnp.asarray(score, jnp.bfloat16), outcomes.astype(bool))
    assert fit(jnp.asarray(NEW, jnp.bfloat16)).dtype == jnp.bfloat16
    assert fit(jnp.asarray(NEW, jnp.float32)).dtype == jnp.float32
    single = fit_binary(jnp.asarray(score, jnp.float32), outcomes)
    assert {a.dtype.name for a in jax.tree.leaves(single)} == {"float32", "int32"}
    np.testing.assert_array_equal(fit(jnp.asarray(NEW, jnp.float32)), single(jnp.asarray(NEW, jnp.float32)))
    if x64:
        assert fit_binary(score, outcomes)(NEW).dtype == np.float64
        assert single(NEW).dtype == np.float64


@every_fit
def test_traced_once_a_shape(fit_binary):
    traces = []

    @jax.jit
    def run(score, outcomes, weights):
        traces.append(None)
        return fit_binary(score, outcomes, weights=weights)(NEW)

    for seed in range(3):
        run(*_data(seed))
    assert len(traces) == 1


@every_fit
def test_both_probabilities_are_whole_sums(fit_binary):
    """One outcome among eleven million: 1 - p has no digits left in float32, the sum of the others has them all."""
    score = np.repeat([-1.0, 2.0], N // 2).astype(np.float32)
    outcomes, weights = np.repeat([0, 1], N // 2), np.full(N, 1e6, np.float32)
    outcomes[[0, -1]], weights[[0, -1]] = (1, 0), 1
    fit = fit_binary(score, outcomes, weights=weights)
    pair = np.asarray(fit.log_probabilities(np.array([-1.0, 2.0], np.float32)))
    if isinstance(fit, jaxcal.BBQFit):  # with a prior of other outcomes in every bin
        np.testing.assert_allclose(np.exp(pair.astype(np.float64)).sum(-1), 1, rtol=1e-6)
        assert (np.exp(pair[[0, 1], [1, 0]]) < 1e-6).all() and (pair[[0, 1], [0, 1]] < 0).all()
        return
    rare = 1 / (11e6 + 1)
    if isinstance(fit, jaxcal.VennAbersFit):  # p0 and p1 with one more row, merged
        rare = (2 / (11e6 + 2)) / (1 + 1 / (11e6 + 2))
    np.testing.assert_allclose(pair[[0, 1], [1, 0]], np.log(rare), rtol=1e-6)
    np.testing.assert_allclose(pair[[0, 1], [0, 1]], np.log1p(-rare), rtol=1e-6)


@every_fit
def test_on_disk(fit_binary, tmp_path):
    for lanes in ((), (2,)):
        score, outcomes, weights = _data(4, lanes)
        fit = fit_binary(score, outcomes, weights=weights)
        fit.save(tmp_path / "fit.npz")
        again = jaxcal.load(tmp_path / "fit.npz")
        assert jax.tree.structure(again) == jax.tree.structure(fit)
        np.testing.assert_array_equal(again.log_probabilities(NEW), fit.log_probabilities(NEW))


def _three_classes():
    rng = np.random.default_rng(5)
    labels = np.arange(30) % 3
    return 2 * rng.standard_normal((30, 3)) + (labels[:, None] == np.arange(3)), labels


@every_fit
def test_one_vs_rest(fit_binary, eps):
    """As a multi-class calibrator: alone, out of fold, and in a decomposition; bare it is refused."""
    logits, labels = _three_classes()
    calibrator = jaxcal.one_vs_rest(fit_binary)
    fit = calibrator(logits, labels)
    p = np.exp(np.asarray(fit(logits), np.float64))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=4 * eps)
    # by hand: a fit a class on its log-odds against the rest
    z = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    odds = [jnp.asarray(z[:, c] - np.log(np.exp(np.delete(z, c, 1)).sum(1))) for c in range(3)]
    single = np.stack([fit_binary(s, labels == c)(s) for c, s in enumerate(odds)], axis=-1).astype(np.float64)
    total = single.sum(-1, keepdims=True)
    np.testing.assert_allclose(p, np.where(total > 0, single / np.where(total > 0, total, 1), 1 / 3), atol=64 * eps)

    held_out = np.asarray(jaxcal.cross_fit(calibrator, logits, labels, folds=3, key=jax.random.key(0)))
    np.testing.assert_allclose(np.exp(held_out.astype(np.float64)).sum(-1), 1, rtol=4 * eps)
    parts = jaxcal.decompose(logits, labels, calibrator=calibrator, loss=jaxcal.brier_loss)
    assert parts.status == Status.CONVERGED and np.isfinite(parts.refinement)
    np.testing.assert_allclose(parts.risk, parts.calibration + parts.refinement, rtol=8 * eps)
    assert parts.calibration > 0 and parts.sharpness > 0
    with pytest.raises(TypeError, match="one_vs_rest"):
        jaxcal.decompose(logits, labels, calibrator=fit_binary)
    two = jaxcal.one_vs_rest(fit_binary)(logits[:, :2], labels % 2)
    np.testing.assert_allclose(np.exp(np.asarray(two(logits[:, :2]), np.float64)).sum(-1), 1, rtol=4 * eps)


@pytest.mark.once
@every_variant
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([-np.inf, -3e38, -2.0, 0.0, 1e-40, 0.5, 3e38, np.inf]),
            st.integers(0, 1),
            st.sampled_from([0.0, 1.0, 2.5]),
        ),
        min_size=N,
        max_size=N,
    ),
    same=st.booleans(),
)
def test_degenerate_data(fit_binary, rows, same):
    """Constant scores, a single row or outcome, extreme scores: always probabilities, with two that sum to 1."""
    score, outcomes, weights = (np.array(a) for a in zip(*rows, strict=True))
    weights[0] = 1.0
    if same:
        score[:] = score[0]
    fit = fit_binary(score.astype(np.float32), outcomes, weights=weights)
    new = np.array([-np.inf, -3e38, -1e30, -2, -1e-40, 0, 1e-40, 0.1, 0.5, 1, 1e30, 3e38, np.inf], np.float32)
    p, pair = (np.asarray(a, np.float64) for a in apply(fit, new))
    assert fit.status == Status.CONVERGED and not np.isnan(p).any()
    np.testing.assert_allclose(np.exp(pair).sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.exp(pair[:, 1]), p, rtol=1e-5)
    seen = set(outcomes[weights > 0])
    if "isotonic" in type(fit).__name__.lower():
        assert (np.diff(p) >= 0).all()
        assert len(seen) == 2 or (p == seen.pop()).all()
    if isinstance(fit, jaxcal.VennAbersFit):
        lower, upper = fit.interval(new)
        assert (np.diff(p) >= 0).all() and (lower < upper).all() and ((p > 0) & (p < 1)).all()
