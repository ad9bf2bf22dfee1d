"""decompose: identities, reference values, batches, folds, other calibrators, bad input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status

LOSSES = [jaxcal.log_loss, jaxcal.brier_loss, jaxcal.half_brier_loss, jaxcal.spherical_loss]


def _random(seed, n=60, k=4):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * np.exp(rng.standard_normal())
    return jnp.asarray(z), jnp.asarray(np.argmax(z + rng.gumbel(size=z.shape), -1))


def _check_identities(parts, eps):
    for total, one, other in (
        (parts.risk, parts.calibration, parts.refinement),
        (parts.refinement, parts.uncertainty, -parts.sharpness),
    ):
        scale = np.maximum(np.abs(one), np.abs(other))
        np.testing.assert_array_less(np.abs(one + other - total), 2 * eps * scale + 1e-300)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_identities_on_random_data(loss, eps):
    z = jnp.stack([_random(s)[0] for s in range(5)])
    y = _random(0)[1]
    parts = jaxcal.decompose(z, y, loss=loss)
    _check_identities(parts, eps)
    assert (np.asarray(parts.calibration) >= 0).all()
    np.testing.assert_array_equal(parts.risk, jaxcal.risk(z, y, loss=loss))
    np.testing.assert_allclose(parts.refinement, jaxcal.risk(parts.fit(z), y, loss=loss), rtol=16 * eps, atol=8 * eps)


@pytest.mark.parametrize("loss", LOSSES[:2], ids=repr)
def test_identities_on_degenerate_data(loss, eps):
    z, y = _random(1)
    right = 5 * jax.nn.one_hot(y, 4) + 0 * z
    lanes = jnp.stack([0 * z, right, -right, z.at[:, 3].set(-1e9), 1e6 * z, 1e-6 * z, 40 * right])
    parts = jaxcal.decompose(lanes, jnp.where(y == 3, 0, y), loss=loss)
    _check_identities(parts, eps)
    assert (np.asarray(parts.calibration) >= 0).all()


def test_reference_values(m8, x64):
    # mpmath, 40 digits
    parts = jaxcal.decompose(*m8)
    rtol = 1e-12 if x64 else 1e-6
    np.testing.assert_allclose(parts.risk, 0.77750662674239475336, rtol=rtol)
    np.testing.assert_allclose(parts.refinement, 0.77612008225523837431, rtol=rtol)
    np.testing.assert_allclose(parts.calibration, 0.0013865444871563790424, rtol=1e-11 if x64 else 3e-4)
    frequencies = np.array([3, 2, 3]) / 8
    np.testing.assert_allclose(parts.uncertainty, -(frequencies * np.log(frequencies)).sum(), rtol=rtol)
    brier = jaxcal.decompose(*m8, loss=jaxcal.brier_loss)
    np.testing.assert_allclose([brier.risk, brier.refinement], [0.486288442128157178, 0.479838474236664081], rtol=rtol)
    np.testing.assert_allclose(brier.uncertainty, 1 - (frequencies**2).sum(), rtol=rtol)
    smoothed = jaxcal.decompose(*m8, calibrator=jaxcal.laplace(jaxcal.fit_temperature))
    np.testing.assert_allclose(smoothed.refinement, 0.791106271831888478, rtol=rtol)
    assert float(smoothed.calibration) < 0


def test_population_identity_by_enumeration(x64):
    # four inputs of probability (.1, .2, .3, .4), P(Y=1|X) = (.9, .6, .3, .1), forecasts (.8, .8, .2, .2); with one
    # temperature a value of the forecast, the map C = E[Y|f] is the isotonic one, so it is passed as the calibrator
    mass, truth, f = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.9, 0.6, 0.3, 0.1]), np.array([0.8, 0.8, 0.2, 0.2])
    p, y = np.repeat(f, 2), np.tile([0, 1], 4)
    w = (mass[:, None] * np.stack([1 - truth, truth], -1)).ravel()
    logits = jaxcal.binary_logits(jaxcal.log_odds(jnp.asarray(p)))

    def conditional(logits, labels, *, weights):
        high = logits[:, 1] > 0
        rate = lambda m: jnp.sum(m * weights * labels) / jnp.sum(m * weights)  # noqa: E731
        p1 = jnp.where(high, rate(high), rate(~high))
        return lambda logits: jnp.log(jnp.stack([1 - p1, p1], -1))

    parts = jaxcal.decompose(logits, jnp.asarray(y), weights=w, calibrator=conditional)
    rtol = 1e-12 if x64 else 1e-5
    np.testing.assert_allclose(parts.risk, 0.5281283107605857, rtol=rtol)
    np.testing.assert_allclose(parts.calibration, 0.008904989845259723, rtol=1e-11 if x64 else 1e-4)
    np.testing.assert_allclose(parts.refinement, 0.519223320915326, rtol=rtol)
    np.testing.assert_allclose(parts.sharpness, 0.1218121569658297, rtol=rtol)
    np.testing.assert_allclose(parts.uncertainty, 0.6410354778811556, rtol=rtol)
    brier = jaxcal.decompose(logits, jnp.asarray(y), weights=w, calibrator=conditional, loss=jaxcal.brier_loss)
    terms = [brier.risk, brier.calibration, brier.refinement, brier.sharpness, brier.uncertainty]
    expected = [0.344, 0.006285714285714286, 0.3377142857142857, 0.1110857142857143, 0.4488]
    np.testing.assert_allclose(terms, expected, rtol=1e-11 if x64 else 1e-4)


def test_any_proper_loss(m8, eps):
    spherical = jaxcal.proper_loss(lambda p: 1 - jnp.sqrt(jnp.sum(p**2)))
    ours, built_in = jaxcal.decompose(*m8, loss=spherical), jaxcal.decompose(*m8, loss=jaxcal.spherical_loss)
    np.testing.assert_allclose(ours.refinement, built_in.refinement, rtol=20 * eps)
    np.testing.assert_allclose(ours.fit.temperature, built_in.fit.temperature, rtol=eps**0.5 * 4)


def test_epochs_seeds_and_bootstrap_weights_in_one_call(eps):
    z, y = _random(2)
    lanes = jnp.stack([jnp.stack([z * s + 0.1 * e for e in range(3)]) for s in (0.5, 2.0)])
    parts = jaxcal.decompose(lanes, y)
    assert parts.risk.shape == parts.status.shape == parts.fit.temperature.shape == (2, 3)
    one = jaxcal.decompose(lanes[1, 2], y)
    np.testing.assert_allclose(parts.refinement[1, 2], one.refinement, rtol=4 * eps)
    counts = jax.random.multinomial(jax.random.key(0), 60, jnp.full(60, 1 / 60), shape=(5, 60))
    resampled = jaxcal.decompose(z, y, weights=counts)
    assert resampled.risk.shape == (5,)
    rows = np.repeat(np.arange(60), np.asarray(counts[3]).astype(int))
    repeated = jaxcal.decompose(z[rows], y[rows])
    for name in ("risk", "refinement", "uncertainty", "sharpness"):
        np.testing.assert_allclose(getattr(resampled, name)[3], getattr(repeated, name), rtol=16 * eps)


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_are_out_of_fold(folds, eps):
    z, y = _random(3, n=31)
    key = jax.random.key(4)
    parts = jaxcal.decompose(z, y, folds=folds, key=key)
    log_p = jaxcal.cross_fit(jaxcal.fit_temperature, z, y, folds=folds, key=key)
    np.testing.assert_allclose(parts.refinement, jaxcal.risk(log_p, y), rtol=8 * eps)
    assert parts.fit is None
    in_sample = jaxcal.decompose(z, y)
    assert parts.refinement > in_sample.refinement
    _check_identities(parts, eps)
    # every lane has the same split
    lanes = jaxcal.decompose(jnp.stack([z, 2 * z, z]), y, folds=folds, key=key)
    np.testing.assert_allclose(lanes.refinement, np.full(3, parts.refinement), rtol=eps**0.75)


def test_in_sample_refinement_is_optimistic_by_one_half_over_n():
    # mean over 400 samples of n = 200 calibrated rows: E[risk - in-sample refinement] = 1/(2n) (one parameter)
    n = 200
    z = 2 * jax.random.normal(jax.random.key(0), (400, n, 3))
    y = jax.random.categorical(jax.random.key(1), z)
    gain = np.asarray(jaxcal.decompose(z, y).calibration)
    assert abs(gain.mean() - 1 / (2 * n)) < 4 * gain.std() / np.sqrt(400)


def test_infinite_risk():
    z = jnp.asarray([[0.0, 1.0], [2.0, -jnp.inf], [0.0, 2.0]])
    y = jnp.asarray([0, 1, 1])
    with pytest.raises(ValueError, match="row 1 gives its own class 1 the logit -inf"):
        jaxcal.decompose(z, y)
    parts = jax.jit(lambda z: jaxcal.decompose(z, y))(z)
    assert int(parts.status) == Status.IMPOSSIBLE_EVENT
    assert np.isinf(float(parts.risk)) and np.isnan(float(parts.calibration))
    # a calibrator that makes the refinement finite leaves all of the infinity to the calibration
    uniform = jaxcal.decompose(z, y, calibrator=lambda z, y, *, weights: lambda z: jnp.full(z.shape, -jnp.log(2.0)))
    assert float(uniform.calibration) == np.inf and np.isfinite(float(uniform.refinement))


def test_bad_lanes_and_bad_input(m8):
    z, y = m8
    lanes = jnp.stack([z, z.at[0, 0].set(jnp.nan)])
    parts = jaxcal.decompose(lanes, y)
    assert parts.status.tolist() == [Status.CONVERGED, Status.INVALID_INPUT]
    for name in ("risk", "calibration", "refinement", "sharpness", "uncertainty"):
        np.testing.assert_array_equal(np.isnan(getattr(parts, name)), [False, True])
    with pytest.raises(ValueError, match="row 0 is"):
        jaxcal.decompose(lanes[1], y)
    with pytest.raises(ValueError, match="need a key"):
        jaxcal.decompose(z, y, folds=2)
    with pytest.raises(ValueError, match="pass folds=K"):
        jaxcal.decompose(z, y, key=jax.random.key(0))
    for folds in (1, 9, 2.0, True):
        with pytest.raises(ValueError, match=r"folds must be an integer in \[2, n = 8\]"):
            jaxcal.decompose(z, y, folds=folds, key=jax.random.key(0))
    with pytest.raises(TypeError, match="calibrator must be a function"):
        jaxcal.decompose(z, y, calibrator=1.5)


def test_a_bare_binary_calibrator_is_named(m8):
    from jaxcal.calibrators.one_vs_rest import binary_calibrator

    @binary_calibrator
    def fit_threshold(score, outcomes, *, weights=None):
        raise AssertionError("must not be called")

    with pytest.raises(TypeError, match=r"jaxcal.one_vs_rest\(fit_threshold\)"):
        jaxcal.decompose(*m8, calibrator=functools.partial(fit_threshold))


def test_one_trace_a_shape(m8):
    z, y = m8
    traces = []

    @jax.jit
    def both(z, key):
        traces.append(z.shape)
        inside = jaxcal.decompose(z, y, folds=3, key=key)
        return jaxcal.decompose(z, y).refinement + inside.refinement

    for i in range(3):
        both(i * z, jax.random.key(i))
    assert traces == [z.shape]
