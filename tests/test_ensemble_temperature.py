"""Ensemble temperature scaling, held to the conditions of its optimum in NumPy and to SciPy."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxcal
from jaxcal import Status

N, K = 60, 3


@pytest.fixture
def data():
    """Logits (3, N, K), labels and whole weights; a third of the labels of the first lane is noise."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((3, N, K))
    labels = np.argmax(np.array([1.5, 0.8, 0.3])[:, None, None] * logits + rng.gumbel(size=(3, N, K)), axis=-1)
    labels[0, : N // 3] = rng.integers(0, K, N // 3)
    return jnp.asarray(logits), labels, rng.integers(0, 4, (3, N))


def _log_softmax(z):
    z = np.asarray(z, np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def _components(logits, temperature):
    z = np.asarray(logits, np.float64)
    uniform = np.full(z.shape, 1 / z.shape[-1])
    return np.stack([np.exp(_log_softmax(z / float(temperature))), np.exp(_log_softmax(z)), uniform], axis=-1)


def _own(parts, labels):
    return parts[np.arange(len(labels)), labels]


def test_optimum_of_every_lane(data, eps):
    logits, labels, weights = data
    fit = jaxcal.fit_ensemble_temperature(logits, labels, weights=weights)
    plain = jaxcal.fit_temperature(logits, labels, weights=weights)
    np.testing.assert_allclose(fit.temperature, plain.temperature, rtol=64 * eps)
    assert (fit.status == Status.CONVERGED).all() and (fit.gap <= 16 * eps).all()
    np.testing.assert_allclose(fit.mixture.sum(-1), 1, rtol=4 * eps)
    assert (fit.risk <= fit.fit.risk + 8 * eps).all()
    for i in range(3):
        parts = _components(logits[i], fit.temperature[i])
        q, v, w = _own(parts, labels[i]), weights[i] / weights[i].sum(), np.asarray(fit.mixture[i], np.float64)
        slope = (v / (q @ w)) @ q
        assert slope.max() <= 1 + 64 * eps  # no other w is better by more than that
        np.testing.assert_allclose(fit.risk[i], -v @ np.log(q @ w), rtol=64 * eps)
        loss = lambda w: -v @ np.log(q @ w)  # noqa: E731, B023
        sums = {"type": "eq", "fun": lambda w: w.sum() - 1}
        peer = minimize(loss, np.full(3, 1 / 3), method="SLSQP", bounds=[(0, 1)] * 3, constraints=sums)
        assert loss(w / w.sum()) <= peer.fun + 4 * eps
        np.testing.assert_allclose(np.exp(fit(logits)[i]), parts @ w, rtol=64 * eps, atol=8 * eps)
    assert (np.asarray(fit.mixture) == 0).any()  # some faces of the simplex are among them


def test_weights_are_counts_and_absent_rows_hold_anything(data, eps):
    logits, labels, _ = (np.array(a[0]) for a in data)
    weights = np.random.default_rng(0).multinomial(N, np.full(N, 1 / N))
    absent = weights == 0
    dirty, other = np.where(absent[:, None], np.nan, logits), np.where(absent, -1, labels)
    weighted = jaxcal.fit_ensemble_temperature(dirty, other, weights=weights)
    repeated = jaxcal.fit_ensemble_temperature(
        np.repeat(logits, weights, 0), np.repeat(labels, weights), weights=np.ones(N)
    )
    np.testing.assert_allclose(weighted.mixture, repeated.mixture, atol=eps**0.7)  # flat: the risk is sharper
    np.testing.assert_allclose(weighted.risk, repeated.risk, rtol=64 * eps)
    gradient = jax.grad(lambda z: jaxcal.fit_ensemble_temperature(z, other, weights=weights).risk)(dirty)
    assert np.isfinite(gradient).all() and (gradient[absent] == 0).all()


def test_lanes_jit_and_vmap(data, eps):
    logits, labels, weights = data
    fit = functools.partial(jaxcal.fit_ensemble_temperature)
    stacked = fit(logits, labels, weights=weights)
    close = functools.partial(np.testing.assert_allclose, rtol=256 * eps, atol=64 * eps)
    for i in range(3):
        close(fit(logits[i], labels[i], weights=weights[i])(logits[i]), stacked(logits)[i])
    count = 0

    @jax.jit
    def compiled(z, y, w):
        nonlocal count
        count += 1
        return fit(z, y, weights=w)(z)

    close(compiled(logits, labels, weights), stacked(logits))
    compiled(logits + 1, labels, weights)
    assert count == 1
    close(jax.vmap(lambda z, y, w: fit(z, y, weights=w)(z))(logits, labels, weights), stacked(logits))
    close(stacked(logits[0])[1], jax.tree.map(lambda a: a[1], stacked)(logits[0]))
    close(jax.tree.map(lambda a: a[0], stacked)(logits[0, 3]), stacked(logits)[0, 3])


def test_order_of_the_classes_is_kept(data):
    logits, labels, _ = data
    fit = jaxcal.fit_ensemble_temperature(logits, labels, weights=np.ones((3, N)))
    result = np.asarray(fit(logits))
    predicted = np.take_along_axis(result, np.asarray(logits).argmax(-1)[..., None], axis=-1)[..., 0]
    np.testing.assert_array_equal(predicted, result.max(-1))
    # no information at all: T = inf, and the forecasts are uniform
    away = jaxcal.fit_ensemble_temperature(logits[0], np.argmin(logits[0], -1), weights=np.ones(N))
    assert away.status == Status.AT_LOWER_BOUND
    np.testing.assert_allclose(np.exp(away(logits[0])), 1 / K, rtol=1e-5)


def test_perfect_accuracy_and_constant_rows(data, eps):
    logits, ones = data[0][0], np.ones(N)
    sure = jaxcal.fit_ensemble_temperature(logits, np.argmax(logits, -1), weights=ones)
    assert sure.status == Status.AT_UPPER_BOUND and sure.risk <= 8 * eps
    assert sure.mixture[2] <= 8 * eps and np.isfinite(sure(logits)).all()
    flat = jaxcal.fit_ensemble_temperature(jnp.zeros((N, K)), data[1][0], weights=ones)
    assert flat.status == Status.NOT_IDENTIFIED
    np.testing.assert_allclose(flat(jnp.zeros((N, K))), -np.log(K), rtol=8 * eps)


def test_far_below_underflow(eps):
    """One row in N is wrong by 1000 nats; every row says the same, so that several w give the frequencies."""
    logits = np.zeros((N, K)) + [0, -1000, -1000]
    labels = np.where(np.arange(N) == 7, 1, 0)
    fit = jaxcal.fit_ensemble_temperature(logits, labels, weights=np.ones(N))
    assert fit.status == Status.NOT_IDENTIFIED and np.isfinite(fit.mixture).all()
    frequency = np.array([N - 1, 1]) / N
    # the other two classes share what class 0 leaves
    expected = -frequency[0] * np.log(frequency[0]) - frequency[1] * np.log(frequency[1] / 2)
    np.testing.assert_allclose(fit.risk, expected, rtol=64 * eps)


def test_masked_classes_share_the_uniform_part(data, eps):
    logits, labels, weights = (np.array(a[0]) for a in data)
    fit = jaxcal.fit_ensemble_temperature(logits, labels, weights=weights)
    masked = np.where(np.arange(K) == 1, -np.inf, logits)
    np.testing.assert_allclose(np.exp(fit(masked))[:, 1], fit.mixture[2] / K, rtol=16 * eps)
    gradient = jax.grad(lambda z: jnp.sum(fit(z)[:, 0]))(jnp.asarray(masked))
    assert np.isfinite(gradient).all()
    smooth = jaxcal.laplace(jaxcal.fit_ensemble_temperature)(logits, labels, weights=weights)
    n = weights.sum()
    expected = n / (n + 1) * np.exp(np.asarray(fit(logits), np.float64)) + 1 / (n + 1) / K
    np.testing.assert_allclose(np.exp(smooth(logits)), expected, rtol=16 * eps)


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="finite differences need float64")
def test_derivatives(data):
    logits, labels, weights = data[0][0], data[1][0], jnp.linspace(0.5, 2, N)
    new = logits[:5]

    @jax.jit
    def value(logits, weights):
        fit = jaxcal.fit_ensemble_temperature(logits, labels, weights=weights)
        return jnp.sum(jnp.sin(fit(new))) + fit.risk + jnp.array([1.0, 2.0, -1.0]) @ fit.mixture

    gradients = jax.jit(jax.grad(value, (0, 1)))(logits, weights)
    rng = np.random.default_rng(1)
    for j, gradient in enumerate(gradients):
        way = jnp.asarray(rng.standard_normal(gradient.shape))
        step = lambda s: value(*[a + s * way if i == j else a for i, a in enumerate((logits, weights))])  # noqa: E731, B023
        np.testing.assert_allclose(jnp.vdot(gradient, way), (step(1e-6) - step(-1e-6)) / 2e-6, rtol=1e-5)


def test_half_precision_and_files(data, tmp_path):
    logits, labels, weights = data[0][0].astype(jnp.bfloat16), data[1][0], data[2][0]
    fit = jaxcal.fit_ensemble_temperature(logits, labels, weights=weights)
    assert fit.mixture.dtype == jnp.float32 and fit(logits).dtype == jnp.bfloat16
    fit.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(jaxcal.load(tmp_path / "fit.npz")(logits), fit(logits))


def test_bad_input(data):
    logits, labels, _ = data
    ones = np.ones((3, N))
    broken = logits.at[1, 3, 0].set(jnp.nan)
    fit = jaxcal.fit_ensemble_temperature(broken, labels, weights=ones)
    assert fit.status[1] == Status.INVALID_INPUT and np.isnan(fit.mixture[1]).all() and np.isnan(fit.risk[1])
    assert np.isnan(fit(logits)[1]).all() and np.isfinite(fit(logits)[0]).all()
    with pytest.raises(ValueError, match="fit_ensemble_temperature: logits must not be NaN; row 3"):
        jaxcal.fit_ensemble_temperature(broken[1], labels[1], weights=ones[1])
    with pytest.raises(ValueError, match="INVALID_INPUT"):
        jax.tree.map(lambda a: a[1], fit)(logits[0])
    impossible = np.where(np.arange(K) == labels[0][:, None], -np.inf, logits[0])
    with pytest.raises(ValueError, match="the logit -inf"):
        jaxcal.fit_ensemble_temperature(impossible, labels[0], weights=ones[0])
    stacked = jaxcal.fit_ensemble_temperature(jnp.stack([logits[0], impossible, logits[2]]), labels[:1], weights=ones)
    assert stacked.status[1] == Status.IMPOSSIBLE_EVENT and stacked.risk[1] == np.inf
    assert np.isnan(stacked.mixture[1]).all() and np.isfinite(stacked.risk[0])


def test_a_weight_near_0_whose_slack_is_as_small():
    """1,000 flights, late or not, as a small network forecasts them: the identity has all but 3e-4 of the weight."""
    with np.load(pathlib.Path(__file__).parent / "data" / "flights_1000.npz") as stored:
        logits, labels = (np.stack([stored[name]] * 2) for name in ("logits", "labels"))
    fit = jax.jit(jaxcal.fit_ensemble_temperature)(logits, labels)
    assert (np.asarray(fit.status) == Status.CONVERGED).all() and int(fit.num_steps.max()) < 20
