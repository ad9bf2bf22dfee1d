"""Derivatives of T, refinement and calibration: forward, reverse and second order, against central differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

LOSSES = [jaxcal.log_loss, jaxcal.brier_loss]


def _fold_refinement(z, w, y):
    return jaxcal.decompose(z, y, weights=w, folds=2, key=jax.random.key(0)).refinement


def _smoothed_calibration(z, w, y):
    return jaxcal.decompose(z, y, weights=w, calibrator=jaxcal.laplace(jaxcal.fit_temperature)).calibration


QUANTITIES = {
    "log T": lambda z, w, y: jnp.log(jaxcal.fit_temperature(z, y, weights=w).temperature),
    "T by Brier": lambda z, w, y: jaxcal.fit_temperature(z, y, weights=w, loss=jaxcal.brier_loss).temperature,
    "refinement": lambda z, w, y: jaxcal.decompose(z, y, weights=w).refinement,
    "calibration": lambda z, w, y: jaxcal.decompose(z, y, weights=w).calibration,
    "sharpness": lambda z, w, y: jaxcal.decompose(z, y, weights=w).sharpness,
    "Brier calibration": lambda z, w, y: jaxcal.decompose(z, y, weights=w, loss=jaxcal.brier_loss).calibration,
    "smoothed calibration": _smoothed_calibration,
    "out-of-fold refinement": _fold_refinement,
    "forecasts": lambda z, w, y: jnp.sum(jnp.exp(jaxcal.fit_temperature(z, y, weights=w)(z))[:, 0] ** 2),
}


@pytest.fixture
def data(m8):
    z, y = m8
    z = z.at[0, 2].set(-jnp.inf)  # a masked class
    w = jnp.asarray([1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.0, 2.0])
    return z, w, y


def _directions(z, w, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(z.shape)), jnp.asarray(rng.uniform(0.5, 1.0, w.shape))


@pytest.mark.parametrize("name", QUANTITIES)
def test_against_central_differences(data, name, x64):
    if not x64:
        pytest.skip("central differences need float64; the float32 run checks pinned values below")
    z, w, y = data
    fn = functools.partial(QUANTITIES[name], y=y)
    dz, dw = _directions(z, w)

    def line(t):
        return fn(z + t * dz, w + t * dw)

    # two programs: the value and its slope, forward; the reverse slope along the line and how it changes
    forward = jax.jit(lambda t: jax.jvp(line, (t,), (1.0,)))
    reverse = jax.jit(lambda t: jax.jvp(jax.grad(line), (t,), (1.0,)))
    h = 1e-4
    at = {s: forward(s * h) for s in (-2, -1, 0, 1, 2)}
    # Richardson: the error of the central difference is O(h^4)
    central, second = ((8 * (at[1][i] - at[-1][i]) - (at[2][i] - at[-2][i])) / (12 * h) for i in (0, 1))
    slope, curvature = reverse(0.0)
    np.testing.assert_allclose(at[0][1], central, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(slope, central, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(curvature, second, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("order", ["jacfwd(jacrev)", "jacrev(jacrev)", "jacrev(jacfwd)"])
def test_hessian_of_refinement(m8, order, eps):
    z, y = m8
    outer, inner = (getattr(jax, name) for name in order.rstrip(")").split("("))
    hessian = jax.jit(outer(inner(lambda z: jaxcal.decompose(z, y).refinement)))(z)
    # mpmath, 40 digits
    np.testing.assert_allclose(float(hessian[4, 2, 4, 2]), -0.0227247662507587251, rtol=1e3 * eps)


def test_pinned_first_derivatives(m8, x64):
    # mpmath, 40 digits; float32 derivatives carry the error of T
    z, y = m8
    rtol = 1e-12 if x64 else 2e-5
    log_t = jax.grad(lambda z: jnp.log(jaxcal.fit_temperature(z, y).temperature))(z)
    np.testing.assert_allclose([log_t[3, 1], log_t[4, 2]], [0.159283902998780151, -0.283397056079552745], rtol=rtol)
    refinement = jax.grad(lambda z: jaxcal.decompose(z, y).refinement)(z)
    expected = [0.0555337215881578055, -0.100657784734148713]
    np.testing.assert_allclose([refinement[3, 1], refinement[4, 2]], expected, rtol=rtol)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_envelope_gradient_is_exact_at_the_bounds(m8, loss, eps):
    z, y = m8
    anti = -3 * jax.nn.one_hot(y, 3) + 0.1 * z
    fit, parts = jaxcal.fit_temperature(anti, y, loss=loss), jaxcal.decompose(anti, y, loss=loss)
    assert int(fit.status) == int(parts.status) == jaxcal.Status.AT_LOWER_BOUND
    slopes = jax.grad(lambda z: jaxcal.fit_temperature(z, y, loss=loss).inverse_temperature)(anti)
    assert not slopes.any()
    slopes = jax.grad(lambda z: jaxcal.fit_temperature(z, y, loss=loss).temperature)(anti)
    assert not slopes.any()  # T = inf there
    assert not jax.grad(lambda z: jaxcal.decompose(z, y, loss=loss).refinement)(anti).any()  # u = 0 ignores the logits

    right = 3 * jax.nn.one_hot(y, 3) + 0.1 * z
    u = jaxcal.fit_temperature(right, y, loss=loss).inverse_temperature
    ours = jax.grad(lambda z: jaxcal.decompose(z, y, loss=loss).refinement)(right)
    # 1 - p is of order sqrt(eps) at the Brier bound, and a rounding of p is eps
    rtol = 2 * eps**0.5
    np.testing.assert_allclose(ours, jax.grad(lambda z: jaxcal.risk(u * z, y, loss=loss))(right), rtol=rtol, atol=1e-30)


def test_gradients_of_a_batch_are_those_of_its_lanes(m8, eps):
    z, y = m8
    lanes = jnp.stack([z, 2 * z, z[::-1]])
    together = jax.grad(lambda z: jaxcal.decompose(z, y).refinement.sum())(lanes)
    single = jax.grad(lambda z: jaxcal.decompose(z, y).refinement)
    mapped = jax.vmap(single)(lanes)
    for i in range(3):
        np.testing.assert_allclose(together[i], single(lanes[i]), rtol=eps**0.5, atol=eps)
        np.testing.assert_allclose(mapped[i], together[i], rtol=eps**0.5, atol=eps)


def test_refinement_can_be_trained_on(m8):
    z, y = m8
    step = jax.jit(lambda z: z - 0.5 * jax.grad(lambda z: jaxcal.decompose(z, y).refinement)(z))
    before = jaxcal.decompose(z, y).refinement
    for _ in range(5):
        z = step(z)
    assert jaxcal.decompose(z, y).refinement < 0.9 * before
