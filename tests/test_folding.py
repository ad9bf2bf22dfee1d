"""Scalings folded into the last linear layer give the calibrated logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

D, K, N, M = 4, 3, 12, 2


def _fit(slope, shift):
    """A vector or matrix scaling with these numbers."""
    kind = jaxcal.MatrixScalingFit if slope.shape[-2:] == (K, K) else jaxcal.VectorScalingFit
    batch = shift.shape[:-1]
    zero, none = jnp.zeros(batch), jnp.zeros(batch, jnp.int32)
    return kind(slope, shift, zero, none, none, zero)


@pytest.fixture
def layers():
    """Features (N, D), kernels (M, D, K), biases (M, K), logits (M, N, K) and labels."""
    rng = np.random.default_rng(0)
    h, kernel, bias = rng.normal(size=(N, D)), rng.normal(size=(M, D, K)), rng.normal(size=(M, K))
    logits = h @ kernel + bias[:, None]
    labels = np.argmax(logits[0] + 2 * rng.gumbel(size=(N, K)), axis=-1)
    return (*(jnp.asarray(a) for a in (h, kernel, bias, logits)), labels)


def _forward(h, weight, bias, class_axis):
    """Logits (..., N, K) of a layer in either layout, in float64."""
    h, weight = np.asarray(h, np.float64), np.asarray(weight, np.float64)
    z = h @ (weight if class_axis == -1 else np.swapaxes(weight, -1, -2))
    return z if bias is None else z + np.asarray(bias, np.float64)[..., None, :]


def _layout(kernel, class_axis):
    return kernel if class_axis == -1 else jnp.swapaxes(kernel, -1, -2)


def _log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


@pytest.mark.parametrize("class_axis", [-1, 0])
def test_temperature(class_axis, layers, eps):
    h, kernel, bias, logits, labels = layers
    stacked = jaxcal.fit_temperature(logits, labels)
    weight = _layout(kernel, class_axis)
    folded, moved = jaxcal.fold_temperature(stacked, weight, bias, class_axis=class_axis)
    assert folded.shape == weight.shape and moved.shape == bias.shape and folded.dtype == weight.dtype
    np.testing.assert_allclose(
        _log_softmax(_forward(h, folded, moved, class_axis)), stacked(logits), rtol=64 * eps, atol=64 * eps
    )
    first = jax.tree.map(lambda a: a[0], stacked)
    one, none = jaxcal.fold_temperature(first, weight[0], None, class_axis=class_axis)
    np.testing.assert_array_equal(one, folded[0])
    assert none is None
    many, _ = jaxcal.fold_temperature(stacked, weight[0], bias[0], class_axis=class_axis)  # one layer, two fits
    np.testing.assert_allclose(many[1], weight[0] / stacked.temperature[1], rtol=4 * eps)


@pytest.mark.parametrize("class_axis", [-1, 0])
@pytest.mark.parametrize("kind", ["vector", "matrix"])
def test_affine(kind, class_axis, layers, eps):
    h, kernel, bias, _, _ = layers
    rng = np.random.default_rng(1)
    shift = jnp.asarray(rng.normal(size=(M, K)))
    slope = jnp.asarray(rng.normal(size=(M, K) if kind == "vector" else (M, K, K)))
    fit = _fit(slope, shift)
    weight = _layout(kernel, class_axis)
    fold = jax.jit(lambda fit, weight, bias: jaxcal.fold_affine(fit, weight, bias, class_axis=class_axis))
    for b in (bias, None):
        folded, moved = fold(fit, weight, b)
        assert folded.shape == weight.shape and moved.shape == (M, K)
        z = _forward(h, weight, b, class_axis)
        a = np.asarray(slope, np.float64)
        mapped = z * a[:, None] if kind == "vector" else z @ np.swapaxes(a, -1, -2)
        expected = mapped + np.asarray(shift, np.float64)[:, None]
        np.testing.assert_allclose(_forward(h, folded, moved, class_axis), expected, rtol=64 * eps, atol=64 * eps)
    one = jax.tree.map(lambda a: a[1], fit)
    folded, _ = jaxcal.fold_affine(one, weight[1], None, class_axis=class_axis)
    np.testing.assert_allclose(folded, fold(fit, weight, None)[0][1], rtol=16 * eps, atol=8 * eps)
    half, _ = jaxcal.fold_affine(one, weight[1].astype(jnp.bfloat16), None, class_axis=class_axis)
    assert half.dtype == jnp.bfloat16


def test_square_layers_are_not_guessed(layers, eps):
    square = layers[1][0][:K]
    fit = _fit(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(K))
    columns, _ = jaxcal.fold_affine(fit, square, None, class_axis=-1)
    rows, _ = jaxcal.fold_affine(fit, square, None, class_axis=0)
    np.testing.assert_allclose(columns, square * jnp.array([1.0, 2.0, 3.0]), rtol=eps)
    np.testing.assert_allclose(rows, square * jnp.array([[1.0], [2.0], [3.0]]), rtol=eps)


def test_infinite_temperature_and_derivatives(layers):
    h, kernel, bias, logits, labels = layers
    flat = jaxcal.fit_temperature(logits[0], np.argmin(logits[0], -1))
    assert flat.inverse_temperature == 0
    folded, moved = jaxcal.fold_temperature(flat, kernel[0], bias[0], class_axis=-1)
    assert (folded == 0).all() and (moved == 0).all()

    def size(kernel):
        fit = jaxcal.fit_temperature(jnp.asarray(h) @ kernel, labels)
        return jnp.sum(jaxcal.fold_temperature(fit, kernel, None, class_axis=-1)[0] ** 2)

    # the folded layer does not depend on the scale of the kernel
    gradient = jax.grad(size)(kernel[0])
    np.testing.assert_allclose(jnp.vdot(gradient, kernel[0]) / jnp.linalg.norm(gradient), 0, atol=1e-4)


def test_bad_input(layers):
    h, kernel, bias, logits, labels = layers
    fit = jaxcal.fit_temperature(logits, labels)
    vector = _fit(jnp.ones(K), jnp.ones(K))
    with pytest.raises(TypeError, match="class_axis"):
        jaxcal.fold_temperature(fit, kernel, bias)
    for axis in (2, None, True):
        with pytest.raises(ValueError, match="class_axis must be -1"):
            jaxcal.fold_temperature(fit, kernel, bias, class_axis=axis)
    with pytest.raises(ValueError, match="has 4 classes on axis 0"):
        jaxcal.fold_temperature(fit, kernel, bias, class_axis=0)
    with pytest.raises(ValueError, match="two axes"):
        jaxcal.fold_temperature(fit, bias[0], None, class_axis=-1)
    with pytest.raises(ValueError, match="3 classes does not fold into a layer of 4"):
        jaxcal.fold_affine(vector, kernel[0], None, class_axis=0)
    with pytest.raises(TypeError, match="fold_temperature"):
        jaxcal.fold_affine(fit, kernel, bias, class_axis=-1)
    laplace = jaxcal.laplace(jaxcal.fit_temperature)(logits, labels)
    with pytest.raises(TypeError, match="LaplaceFit"):
        jaxcal.fold_affine(laplace, kernel, bias, class_axis=-1)
    with pytest.raises(TypeError, match="LaplaceFit"):
        jaxcal.fold_temperature(laplace, kernel, bias, class_axis=-1)
    dirichlet = jaxcal.fit_dirichlet(logits, labels)
    with pytest.raises(TypeError, match="DirichletFit"):  # a map of log-probabilities
        jaxcal.fold_affine(dirichlet, kernel, bias, class_axis=-1)
    broken = jaxcal.fit_temperature(logits.at[1].set(jnp.nan), labels)
    folded, moved = jaxcal.fold_temperature(broken, kernel, bias, class_axis=-1)
    assert np.isnan(folded[1]).all() and np.isnan(moved[1]).all() and np.isfinite(folded[0]).all()
    with pytest.raises(ValueError, match="has failed"):
        jaxcal.fold_temperature(jax.tree.map(lambda a: a[1], broken), kernel[1], None, class_axis=-1)
