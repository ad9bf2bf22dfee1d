"""Variational calibration errors, against direct sums and known populations."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

KEY = jax.random.key(0)


def half(logits, labels, weights=None):
    """A calibrator that learns nothing: g proportional to sqrt(f)."""
    return lambda z: jax.nn.log_softmax(z / 2)


@pytest.mark.parametrize(
    "norm, expected",
    # eight softmax rows with g proportional to sqrt(f): direct sums, 15 digits
    [(1, 0.205763281656723), (2, 0.08467903225026038), (math.inf, 0.1028816408283615)],
)
def test_eight_rows(m8, eps, norm, expected):
    value = jaxcal.variational_calibration_error(*m8, norm=norm, calibrator=half, folds=2, key=KEY)
    np.testing.assert_allclose(value, expected, rtol=64 * eps)


def test_any_norm_is_the_directional_sum(m8, eps):
    logits, labels = np.asarray(m8[0], np.float64), np.asarray(m8[1])
    f = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    d = np.sqrt(f) / np.sqrt(f).sum(1, keepdims=True) - f
    s = np.abs(d) ** 2 * np.sign(d) / (np.abs(d) ** 3).sum(1, keepdims=True) ** (2 / 3)
    expected = np.mean(np.sum(s * (np.eye(3)[labels] - f), axis=1))
    value = jaxcal.variational_calibration_error(*m8, norm=3, calibrator=half, folds=2, key=KEY)
    np.testing.assert_allclose(value, expected, rtol=256 * eps)


@pytest.mark.parametrize("norm, factor", [(1, 2), (2, math.sqrt(2)), (math.inf, 1)])
def test_two_classes_are_a_multiple_of_the_event(norm, factor, eps):
    """f = .9 where .8 of the labels are 1, and f = .6 where .3 are: |f - C| = .1 and .3, on both sides of 1 - f."""
    p = np.repeat([0.9, 0.6], 10)
    y = np.array([1] * 8 + [0] * 2 + [1] * 3 + [0] * 7)
    logits = jaxcal.logits_from_probs(np.stack([1 - p, p], axis=-1))
    known = np.repeat([0.8, 0.3], 10)

    def recalibrate(logits, labels, weights=None):
        def apply(z):
            c = jnp.where(jax.nn.softmax(z)[..., 1] > 0.75, 0.8, 0.3)
            return jnp.log(jnp.stack([1 - c, c], axis=-1)).astype(z.dtype)

        return apply

    options = {"calibrator": recalibrate, "folds": 2, "key": KEY}
    value = jaxcal.variational_calibration_error(logits, y, norm=norm, **options)
    np.testing.assert_allclose(value, factor * np.mean(np.abs(known - p)), rtol=64 * eps)
    found = jaxcal.variational_confidence_error(logits, y, **options)
    np.testing.assert_allclose(found.error, 0.2, rtol=64 * eps)
    np.testing.assert_allclose(found.over_confidence + found.under_confidence, found.error, rtol=64 * eps)


def test_over_and_under_confidence_of_known_populations():
    z = 1.5 * jax.random.normal(KEY, (20_000, 3))
    y = jax.random.categorical(jax.random.key(1), z)
    known = np.max(jax.nn.softmax(z), axis=-1)
    for scale in (2.0, 0.5):
        found = jaxcal.variational_confidence_error(scale * z, y, key=jax.random.key(2))
        f, correct = (np.asarray(a, np.float64) for a in jaxcal.top_label(scale * z, y))
        error = 4 * np.std(correct - f) / np.sqrt(len(f))
        over = (f - 0.5) * (known - f) < 0
        for value, part in (
            (found.error, np.abs(known - f)),
            (found.over_confidence, np.where(over, np.abs(known - f), 0)),
            (found.under_confidence, np.where(over, 0, np.abs(known - f))),
        ):
            assert abs(value - part.mean()) < error


def test_no_calibrator_exceeds_the_error_on_average():
    """Forecasts that are calibrated: 300 data sets, the mean is below 0 or at 0 whatever g does."""
    z = 2 * jax.random.normal(KEY, (300, 100, 3))
    y = jax.random.categorical(jax.random.key(1), z)
    values = np.asarray(jaxcal.variational_calibration_error(z, y, key=jax.random.key(2)), np.float64)
    assert values.mean() < 4 * values.std() / np.sqrt(len(values))


def test_transformations(m8):
    call = lambda z, y, w=None: jaxcal.variational_calibration_error(z, y, folds=2, key=KEY, weights=w)  # noqa: E731
    logits, labels = m8
    stack = jnp.stack([logits, 2 * logits])
    value = call(stack, labels)
    np.testing.assert_allclose(jax.jit(call)(stack, labels), value, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(call, (0, None))(stack, labels), value, rtol=1e-5)
    np.testing.assert_allclose(call(stack, labels, jnp.ones(8)), value, rtol=1e-5)
    slope = jax.grad(lambda z: call(z, labels))(logits)
    assert jnp.isfinite(slope).all() and jnp.any(slope != 0)
    assert call(stack.astype(jnp.float16), labels).dtype == jnp.float32


def test_absent_and_repeated_rows(m8):
    logits, labels = (np.asarray(a) for a in m8)
    weights = np.array([1, 2, 0, 3, 1, 1, 0, 2])
    options = {"calibrator": half, "folds": 2, "key": KEY}
    repeated = jaxcal.variational_confidence_error(np.repeat(logits, weights, 0), np.repeat(labels, weights), **options)
    broken = np.where(weights[:, None] == 0, np.nan, logits)
    found = jaxcal.variational_confidence_error(broken, np.where(weights == 0, -1, labels), weights=weights, **options)
    np.testing.assert_allclose(jax.tree.leaves(found), jax.tree.leaves(repeated), rtol=1e-5, atol=1e-7)


def test_bad_input(m8):
    logits, labels = m8
    for norm in (0.5, math.nan, "a", None, [2]):
        with pytest.raises(ValueError, match="norm must be a number >= 1"):
            jaxcal.variational_calibration_error(logits, labels, norm=norm, key=KEY)
    with pytest.raises(TypeError, match="calibrator must be a function"):
        jaxcal.variational_confidence_error(logits, labels, calibrator="a", key=KEY)
    for function in (jaxcal.variational_calibration_error, jaxcal.variational_confidence_error):
        with pytest.raises(ValueError, match="labels must be integers in"):
            function(logits, labels + 1, folds=2, key=KEY)
        bad = jnp.stack([logits, logits.at[0, 0].set(jnp.nan)])
        values = jax.tree.leaves(function(bad, labels, folds=2, key=KEY))
        assert all(jnp.isnan(v).tolist() == [False, True] for v in values)
