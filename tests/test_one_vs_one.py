"""Calibration of pairs of classes, combined by hand in NumPy from one binary fit a pair.

Compilation is what takes time here: rows that a fit lacks have weight 0, so that all have N.
"""

import functools
import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status
from jaxcal.calibrators.fit import Fit

N, K = 40, 4
PAIRS = list(itertools.combinations(range(K), 2))
calibrate = jaxcal.one_vs_one(jaxcal.fit_platt)
apply = jax.jit(lambda fit, logits: fit(logits))


@functools.cache
def _data():
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    logits = 1.5 * rng.standard_normal((N, K)) + 1.5 * (labels[:, None] == np.arange(K))
    return logits.astype(jax.dtypes.canonicalize_dtype("float64")), labels, rng.integers(1, 4, N).astype(float)


@pytest.fixture(scope="module")
def data():
    return _data()


@jax.jit
def risk_and_slopes(weights, logits):
    """The risk of the data after a fit, its derivatives by both arguments, and the status of the fit."""

    def risk(weights, logits):
        fit = calibrate(logits, _data()[1], weights=weights)
        return jaxcal.risk(fit(_data()[0]), _data()[1]), fit.status

    (value, status), slopes = jax.value_and_grad(risk, (0, 1), has_aux=True)(weights, logits)
    return value, slopes, status


@jax.jit
def isotonic(logits, weights):
    """Log-probabilities of the data by pairs of isotonic fits."""
    return jaxcal.one_vs_one(jaxcal.fit_isotonic)(logits, _data()[1], weights=weights)(jnp.asarray(_data()[0]))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Identity(Fit):
    status: jax.Array

    def log_probabilities(self, score):
        return jnp.stack([jax.nn.log_sigmoid(-score), jax.nn.log_sigmoid(score)], axis=-1)


def _combine(odds):
    """p_i = 1 / (sum_j 1 / r_ij - (k - 2)) from P(j) / P(i) of each pair, as it is written."""
    r = np.zeros((K, K, *odds[0, 1].shape))
    for (i, j), value in odds.items():
        r[i, j], r[j, i] = 1 / (1 + value), value / (1 + value)
    p = np.stack([1 / (sum(1 / r[i, j] for j in range(K) if j != i) - (K - 2)) for i in range(K)], axis=-1)
    return p / p.sum(-1, keepdims=True)


def _by_hand(fit_binary, logits, labels, weights, new):
    odds = {}
    for i, j in PAIRS:
        fit = fit_binary(
            logits[:, j] - logits[:, i], labels == j, weights=np.where((labels == i) | (labels == j), weights, 0)
        )
        pair = np.asarray(fit.log_probabilities(new[:, j] - new[:, i]), np.float64)
        odds[i, j] = np.exp(pair[:, 1] - pair[:, 0])
    return _combine(odds)


def test_pair_by_pair(data, eps):
    fit = calibrate(*data[:2], weights=data[2])
    assert fit.status == Status.CONVERGED and fit.observed.tolist() == [True] * 6 and fit.num_classes == K
    new = 2 * data[0]
    result = fit(new)
    assert result.dtype == new.dtype
    np.testing.assert_allclose(
        np.exp(np.asarray(result, np.float64)), _by_hand(jaxcal.fit_platt, *data, new), rtol=5e3 * eps
    )
    np.testing.assert_array_equal(np.asarray(fit(new[3])), np.asarray(result)[3])


def test_pairs_of_one_law_give_it_back(eps):
    """As logarithms, also of probabilities far below any rounding."""
    logits = np.array([[0.0, -1.0, 2.0, 0.5], [0.0, -80.0, -60.0, -75.0], [30.0, 0.0, 29.0, -np.inf], [500.0, 0, 0, 0]])
    fit = jaxcal.one_vs_one(lambda s, y, *, weights: Identity(jnp.zeros(6, int)))(logits, np.array([0, 1, 2, 3]))
    z = logits - logits.max(1, keepdims=True)
    np.testing.assert_allclose(fit(logits), z - np.log(np.exp(z).sum(1, keepdims=True)), rtol=8 * eps, atol=8 * eps)


def test_two_classes_are_one_fit(data):
    logits, labels, weights = data[0][:, :2], data[1] % 2, data[2]
    one = calibrate(logits, labels, weights=weights)
    rest = jaxcal.one_vs_rest(jaxcal.fit_platt)(logits, labels, weights=weights)
    assert one.fit.slope.shape == one.status.shape == one.observed.shape == ()
    np.testing.assert_array_equal(one(logits), rest(logits))
    np.testing.assert_array_equal(one.fit.slope, rest.fit.slope)


def test_lanes_weights_and_absent_rows(data, eps):
    logits, labels, weights = data
    weights = np.stack([weights, np.where(np.arange(N) == 5, 0.0, 1.0), weights])
    dirty, unknown = logits.copy(), labels.copy()
    dirty[5], unknown[5] = np.nan, -1  # absent in the second lane only
    fit = calibrate(dirty, unknown, weights=weights)
    assert fit.status.tolist() == [Status.INVALID_INPUT, Status.CONVERGED, Status.INVALID_INPUT]
    assert fit.observed.shape == (3, 6)
    alone = calibrate(logits, labels, weights=weights[1])
    result = apply(fit, logits)
    assert np.isnan(result[0]).all() and np.isnan(result[2]).all()
    np.testing.assert_allclose(result[1], apply(alone, logits), rtol=1e3 * eps)
    mapped = jax.vmap(lambda w: calibrate(logits, labels, weights=w))(weights)
    together = calibrate(logits, labels, weights=weights)
    for a, b in zip(jax.tree.leaves(mapped), jax.tree.leaves(together), strict=True):
        assert a.shape == b.shape
    np.testing.assert_allclose(apply(mapped, logits), apply(together, logits), rtol=1e3 * eps, atol=64 * eps)
    counts = np.random.default_rng(2).multinomial(N, np.full(N, 1 / N))
    copies = np.repeat(np.arange(N), counts)
    counted = calibrate(logits, labels, weights=counts.astype(float))
    repeated = calibrate(logits[copies], labels[copies], weights=np.ones(N))
    np.testing.assert_allclose(apply(counted, logits), apply(repeated, logits), rtol=5e3 * eps, atol=64 * eps)
    with pytest.raises(ValueError, match="fit_platt"):
        calibrate(dirty, unknown)
    bad = weights[0].copy()
    bad[7] = -1
    assert risk_and_slopes(bad, logits)[2] == Status.INVALID_INPUT


def test_classes_that_were_not_seen(data, eps):
    """Pairs with one class have its rows to fit; pairs with none keep the odds of the logits."""
    logits, labels, weights = data
    seen = labels < 2
    fit = calibrate(logits, labels, weights=np.where(seen, weights, 0))
    assert fit.observed.tolist() == [True] * 5 + [False] and fit.status == Status.NOT_IDENTIFIED
    assert fit.fit.status[-1] == Status.INVALID_INPUT and np.isnan(fit.fit.slope[-1])
    odds = {}
    for pair in PAIRS:
        i, j = pair
        rows = np.isin(labels, pair) & seen
        if pair == (2, 3):
            odds[pair] = np.exp((logits[:, j] - logits[:, i]).astype(np.float64))
            continue
        one = jaxcal.fit_platt(logits[:, j] - logits[:, i], labels == j, weights=np.where(rows, weights, 0))
        log_pair = np.asarray(one.log_probabilities(logits[:, j] - logits[:, i]), np.float64)
        odds[pair] = np.exp(log_pair[:, 1] - log_pair[:, 0])
    np.testing.assert_allclose(np.exp(np.asarray(fit(logits), np.float64)), _combine(odds), rtol=3e4 * eps)
    slope = jax.jit(jax.grad(lambda z: jnp.sum(fit(z)[:, 2])))(logits)
    assert np.isfinite(slope).all() and (slope[:, 3] != 0).any()
    risk, slopes, status = risk_and_slopes(np.where(seen, weights, 0), logits)
    assert status == Status.NOT_IDENTIFIED and all(np.isfinite(a).all() for a in (risk, *slopes))
    # a frequency of 0 stays one, and the classes that were seen are the binary fit
    result = np.asarray(isotonic(logits, np.where(seen, 1.0, 0.0)))
    assert (result[:, 2:] == -np.inf).all()
    pair = jaxcal.fit_isotonic((logits[:, 1] - logits[:, 0])[seen], labels[seen])
    np.testing.assert_allclose(np.exp(result[:, 1]), pair(logits[:, 1] - logits[:, 0]), rtol=32 * eps)
    with pytest.raises(ValueError, match="all zero"):
        calibrate(logits, labels, weights=np.zeros(N))
    assert risk_and_slopes(np.zeros(N), logits)[2] == Status.INVALID_INPUT


def test_probabilities_of_zero():
    """0 against another class is 0; if every class has that, the row is uniform."""
    chain = jnp.array([-jnp.inf, -jnp.inf, -jnp.inf, 0.0, 0.0, 0.0])  # 0 beats all, the others are even
    cycle = jnp.array([-jnp.inf, jnp.inf, -jnp.inf, -jnp.inf, 0.0, 0.0])  # 0 beats 1 and 3, 1 beats 2, 2 beats 0

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Fixed:
        odds: jax.Array

        def log_probabilities(self, score):
            odds = jnp.broadcast_to(self.odds[:, None], score.shape)
            return jnp.stack([jax.nn.log_sigmoid(-odds), jax.nn.log_sigmoid(odds)], axis=-1)

    z, everything = jnp.zeros((1, K)), jnp.ones(6, bool)
    make = lambda odds: jaxcal.OneVsOneFit(Fixed(odds), everything, jnp.int32(0), K)  # noqa: E731
    assert np.exp(make(chain)(z))[0].tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(np.exp(make(cycle)(z))[0], np.full(K, 0.25), rtol=1e-6)
    slope = jax.grad(lambda odds: make(odds)(z)[0, 0])(chain)
    assert np.isfinite(slope).all()


@pytest.mark.once
def test_rows_with_impossible_classes(data):
    logits = data[0].copy()
    logits[0, 2:] = -np.inf
    fit = jaxcal.one_vs_one(jaxcal.fit_beta)(logits, data[1])
    assert fit.status < Status.NOT_CONVERGED
    result = np.asarray(fit(logits))
    assert (result[0, 2:] == -np.inf).all() and np.isfinite(result[0, :2]).all() and np.isfinite(result[1:]).all()


def test_as_any_multiclass_calibrator(data, eps, tmp_path):
    logits, labels, weights = data
    held_out = jaxcal.cross_fit(calibrate, logits, labels, folds=3, key=jax.random.key(0), weights=weights)
    np.testing.assert_allclose(np.exp(np.asarray(held_out, np.float64)).sum(-1), 1, rtol=8 * eps)
    parts = jaxcal.decompose(logits, labels, calibrator=calibrate, weights=weights)
    np.testing.assert_allclose(parts.risk, parts.calibration + parts.refinement, rtol=8 * eps)
    np.testing.assert_allclose(parts.refinement, jaxcal.risk(parts.fit(logits), labels, weights=weights), rtol=64 * eps)
    smooth = jaxcal.laplace(calibrate)(logits, labels, weights=weights)
    assert smooth.num_samples == weights.sum() and np.isfinite(smooth(logits)).all()
    smooth.save(tmp_path / "fit.npz")
    again = jaxcal.load(tmp_path / "fit.npz")
    assert jax.tree.structure(again) == jax.tree.structure(smooth)
    np.testing.assert_array_equal(again(logits), smooth(logits))


def test_derivatives(data, x64):
    if not x64:
        pytest.skip("finite differences need float64")
    logits, _, weights = data
    point = weights, logits
    slopes = risk_and_slopes(*point)[1]
    rng = np.random.default_rng(1)
    for _ in range(3):
        steps = [rng.normal(size=a.shape) for a in point]
        ends = [risk_and_slopes(*(a + h * d for a, d in zip(point, steps, strict=True)))[0] for h in (1e-6, -1e-6)]
        expected = sum(np.sum(a * d) for a, d in zip(slopes, steps, strict=True))
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, expected, rtol=1e-6, atol=1e-9)


def test_what_is_no_calibrator_is_refused(data):
    with pytest.raises(TypeError, match="must be a function"):
        jaxcal.one_vs_one(3.0)
    with pytest.raises(ValueError, match="fitted for 4 classes, got logits of shape"):
        calibrate(*data[:2])(data[0][:, :2])


def test_invalid_lanes_have_no_probabilities(data):
    """Neither those of pairs without rows, nor the zeros of a class that another excludes."""
    logits = data[0]
    infinite = logits.copy()
    infinite[3, 1] = np.inf
    ones = np.ones(N)
    assert np.isnan(isotonic(logits, 0 * ones)).all()
    assert np.isnan(isotonic(infinite, ones)).all()
    assert np.isfinite(np.exp(isotonic(logits, ones))).all()
