"""Ensembles are averaged first and calibrated then."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status

M, N, K = 4, 30, 3


@pytest.fixture
def data():
    """Members' logits (2, M, N, K) and labels (2, N)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, (2, N))
    clean = 1.0 * (labels[:, None, :, None] == np.arange(K))
    logits = 2 * (clean + rng.normal(0, 1, (2, 1, N, K)) + 0.5 * rng.normal(size=(2, M, N, K)))
    return jnp.asarray(logits), labels


def _log_average(logits):
    z = np.asarray(logits, np.float64)
    p = np.exp(z - z.max(-1, keepdims=True))
    return np.log((p / p.sum(-1, keepdims=True)).mean(-3))


def _signals():
    """Every (y, s_1, s_2) of two conditionally independent signals, right with probability 4/5, and its probability."""
    right = Fraction(4, 5)
    part = lambda s, y: right if s == y else 1 - right  # noqa: E731
    return [(y, (a, b), part(a, y) * part(b, y) / 2) for y in (0, 1) for a in (0, 1) for b in (0, 1)]


def test_averages_of_calibrated_members_are_under_confident(eps):
    """Exact: the average says 4/5 where 16/17 is true; slope 1.470588; calibration after averaging is right."""
    rows = _signals()
    said = lambda s: Fraction(4, 5) if s else Fraction(1, 5)  # noqa: E731
    average = [sum(map(said, s)) / 2 for _, s, _ in rows]
    weight = [w for *_, w in rows]
    outcome = [y for y, *_ in rows]
    both = [i for i, (_, s, _) in enumerate(rows) if s == (1, 1)]
    true = sum(weight[i] * outcome[i] for i in both) / sum(weight[i] for i in both)
    assert true == Fraction(16, 17)
    mean = sum(w * a for w, a in zip(weight, average, strict=True))
    covariance = sum(w * (a - mean) * y for w, a, y in zip(weight, average, outcome, strict=True))
    slope = covariance / sum(w * (a - mean) ** 2 for w, a in zip(weight, average, strict=True))
    np.testing.assert_allclose(float(slope), 1.470588, rtol=1e-6)

    p = jnp.asarray([[float(said(s[m])) for _, s, _ in rows] for m in (0, 1)])
    logits, weights = jnp.log(jnp.stack([1 - p, p], axis=-1)), np.array([float(w) for w in weight])
    fit = jaxcal.calibrate_ensemble(jaxcal.fit_temperature, logits, np.array(outcome), weights=weights)
    np.testing.assert_allclose(jnp.exp(fit(logits))[both[0], 1], 16 / 17, rtol=64 * eps)
    # the other order: members are calibrated already, T = 1, and their average stays where it is
    members = jaxcal.fit_temperature(logits, np.array(outcome), weights=weights)
    np.testing.assert_allclose(members.temperature, 1, rtol=64 * eps)
    np.testing.assert_allclose(jnp.exp(members(logits))[:, both[0], 1].mean(), 0.8, rtol=64 * eps)


def test_is_the_calibrator_of_the_average(data, eps):
    logits, labels = data
    weights = np.random.default_rng(1).integers(0, 3, (2, N))
    average = jnp.asarray(_log_average(logits))
    fit = jaxcal.calibrate_ensemble(jaxcal.fit_temperature, logits, labels, weights=weights)
    direct = jaxcal.fit_temperature(average, labels, weights=weights)
    assert fit.status.shape == (2,) and fit(logits).shape == (2, N, K) and fit(logits).dtype == logits.dtype
    np.testing.assert_allclose(fit.fit.temperature, direct.temperature, rtol=256 * eps)
    np.testing.assert_allclose(fit(logits), direct(average), rtol=256 * eps, atol=64 * eps)
    fewer = fit(logits[:, :2])
    np.testing.assert_allclose(fewer, direct(jnp.asarray(_log_average(logits[:, :2]))), rtol=256 * eps, atol=64 * eps)
    for i in range(2):
        one = jaxcal.calibrate_ensemble(jaxcal.fit_temperature, logits[i], labels[i], weights=weights[i])
        np.testing.assert_allclose(one.fit.temperature, fit.fit.temperature[i], rtol=256 * eps)
    single = jaxcal.calibrate_ensemble(jaxcal.fit_temperature, logits[:, :1], labels, weights=weights)
    plain = jaxcal.fit_temperature(logits[:, 0], labels, weights=weights)
    np.testing.assert_allclose(single.fit.temperature, plain.temperature, rtol=64 * eps)


def test_transformations(data, eps):
    logits, labels = data
    calibrate = functools.partial(jaxcal.calibrate_ensemble, jaxcal.fit_temperature)
    expected = calibrate(logits, labels)(logits)
    result = jax.jit(lambda z, y: calibrate(z, y)(z))(logits, labels)
    np.testing.assert_allclose(result, expected, rtol=64 * eps, atol=8 * eps)
    np.testing.assert_allclose(
        jax.vmap(lambda z, y: calibrate(z, y)(z))(logits, labels), expected, rtol=64 * eps, atol=8 * eps
    )
    if jax.config.jax_enable_x64:
        value = jax.jit(lambda z: jnp.sum(jnp.sin(calibrate(z, labels)(z))))
        way = jnp.asarray(np.random.default_rng(2).normal(size=logits.shape))
        slope = jnp.vdot(jax.grad(value)(logits), way)
        difference = (value(logits + 1e-5 * way) - value(logits - 1e-5 * way)) / 2e-5
        np.testing.assert_allclose(slope, difference, rtol=1e-6)
    half = logits.astype(jnp.bfloat16)
    fit, same = calibrate(half, labels), calibrate(half.astype(jnp.float32), labels)
    np.testing.assert_allclose(fit.fit.temperature, same.fit.temperature, rtol=1e-6)  # nothing between is rounded
    assert fit(half).dtype == jnp.bfloat16
    np.testing.assert_array_equal(fit(half), same(half.astype(jnp.float32)).astype(jnp.bfloat16))


def test_far_below_underflow_and_masks(eps):
    logits = jnp.array([[[0.0, -1000.0, -jnp.inf]], [[0.0, -1001.0, -2.0]]])
    fit = jaxcal.calibrate_ensemble(lambda z, y, *, weights: lambda z: z, logits, np.array([0]))
    result = fit(logits)[0]
    expected = np.log(np.array([1, np.exp(-2)]) / (1 + np.exp(-2)) / 2)
    np.testing.assert_allclose(result[2], expected[1], rtol=8 * eps)
    np.testing.assert_allclose(result[1], -1000 + np.log((1 + np.exp(-1) / (1 + np.exp(-2))) / 2), rtol=8 * eps)
    gradient = jax.grad(lambda z: jnp.sum(fit(z)[0, :2]))(logits)
    assert np.isfinite(gradient).all()


def test_calibrators_nest_and_are_saved(data, tmp_path, eps):
    logits, labels = data
    inside = jaxcal.calibrate_ensemble(jaxcal.laplace(jaxcal.fit_temperature), logits[0], labels[0])
    outside = jaxcal.laplace(functools.partial(jaxcal.calibrate_ensemble, jaxcal.fit_temperature))(logits[0], labels[0])
    np.testing.assert_allclose(inside(logits[0]), outside(logits[0]), rtol=16 * eps, atol=4 * eps)
    assert inside.fit.num_samples == N == outside.num_samples
    inside.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(jaxcal.load(tmp_path / "fit.npz")(logits[0]), inside(logits[0]))


def test_bad_input(data):
    logits, labels = data
    broken = logits.at[1, 2, 5, 0].set(jnp.inf)
    fit = jaxcal.calibrate_ensemble(jaxcal.fit_temperature, broken, labels)
    assert fit.status.tolist() == [0, Status.INVALID_INPUT]
    with pytest.raises(ValueError, match=r"calibrate_ensemble: logits must not be \+inf.*row 5 of lane \(2,\)"):
        jaxcal.calibrate_ensemble(jaxcal.fit_temperature, broken[1], labels[1])
    weights = np.where(np.arange(N) == 5, 0, 1)
    assert jaxcal.calibrate_ensemble(jaxcal.fit_temperature, broken[1], labels[1], weights=weights).status == 0
    with pytest.raises(ValueError, match="members in front of the rows"):
        jaxcal.calibrate_ensemble(jaxcal.fit_temperature, logits[0, 0], labels[0])
    with pytest.raises(ValueError, match="members in front of the rows"):
        fit(logits[0, 0])
    with pytest.raises(TypeError, match="one_vs_rest"):
        jaxcal.calibrate_ensemble(jaxcal.fit_platt, logits[0], labels[0])
