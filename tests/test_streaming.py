"""Chunks against `decompose` of all rows together, whose numbers `test_temperature` holds to SciPy and mpmath."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status, streaming

N, CHUNK = 1200, 200
FIELDS = ("risk", "calibration", "refinement", "sharpness", "uncertainty")


def _data(k=6, unit=1.0, truth=1.5, lanes=(), dtype=np.float32):
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(*lanes, N, k))
    y = np.argmax(z[(0,) * len(lanes)] * truth + rng.gumbel(size=(N, k)), axis=-1)
    return (unit * z).astype(dtype), y


def _stream(z, y, weights=None, size=CHUNK):
    w = lambda rows: None if weights is None else weights[..., rows]  # noqa: E731
    first = slice(0, size)
    state = streaming.init(z[..., first, :], y[first], weights=w(first))
    for start in range(0, N, size):
        rows = slice(start, start + size)
        state = streaming.update(state, z[..., rows, :], y[rows], weights=w(rows))
    return streaming.decompose(state)


def _check(found, expected, rtol=1e-6):
    np.testing.assert_allclose(found.fit.temperature, expected.fit.temperature, rtol=rtol)
    np.testing.assert_array_equal(found.status, expected.status)
    for field in FIELDS:
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=2e-6, atol=2e-6, err_msg=field)
    np.testing.assert_allclose(found.fit.risk, found.refinement, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unit", [1.0, 2.0**-30, 2.0**30])
@pytest.mark.parametrize("truth", [0.3, 1.5])
def test_it_is_the_fit_to_all_rows(truth, unit, dtype):
    z, y = _data(unit=unit, truth=truth, dtype=dtype)
    _check(_stream(jnp.asarray(z), y), jaxcal.decompose(jnp.asarray(z), y))


def test_many_classes_masked_ones_and_offsets():
    z, y = _data(k=700)
    z[np.arange(N), (y + 1) % 700] = -np.inf
    z += np.linspace(-50, 50, N, dtype=np.float32)[:, None]
    _check(_stream(z, y), jaxcal.decompose(z, y))


def test_seeds_weights_and_absent_rows():
    z, y = _data(lanes=(3,))
    weights = (np.arange(N) % 4).astype(np.float32)
    z[:, weights == 0] = np.nan
    y = np.where(weights == 0, -1, y)
    found = _stream(z, y, weights)
    assert found.risk.shape == (3,)
    _check(found, jaxcal.decompose(z, y, weights=weights))
    # weights with lanes of their own, as those of a bootstrap
    z, y = _data()
    weights = np.random.default_rng(1).poisson(1.0, (5, N)).astype(np.float32)
    _check(_stream(z, y, weights), jaxcal.decompose(z, y, weights=weights))


def test_a_scan_over_many_chunks_keeps_its_digits():
    """3,000 times the same chunk is one chunk: an ordinary float32 sum of 600,000 losses would lose three digits."""
    z, y = _data()
    z, y = jnp.asarray(z[:CHUNK]), jnp.asarray(y[:CHUNK])
    once = jaxcal.decompose(z, y)

    @jax.jit
    def many(z, y):
        step = lambda state, _: (streaming.update(state, z, y), None)  # noqa: E731
        return streaming.decompose(jax.lax.scan(step, streaming.init(z, y), length=3000)[0])

    _check(many(z, y), once)


def test_the_size_of_the_chunks_and_of_the_state():
    z, y = _data()
    a, b = _stream(z, y), _stream(z, y, size=60)
    np.testing.assert_allclose(a.fit.temperature, b.fit.temperature, rtol=1e-6)
    step = jax.jit(streaming.update)
    state = streaming.init(z, y)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) < 1000
    analysis = step.lower(state, jnp.asarray(z), jnp.asarray(y)).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 8 * z.nbytes


def test_float64_sums():
    if not jax.config.jax_enable_x64:
        pytest.skip("needs float64")
    z, y = _data(dtype=np.float64)
    found, expected = _stream(z, y), jaxcal.decompose(z, y)
    np.testing.assert_allclose(found.fit.temperature, expected.fit.temperature, rtol=1e-7)
    np.testing.assert_allclose(found.refinement, expected.refinement, rtol=1e-9)


def test_what_cannot_be_fitted_is_said():
    z, y = _data()
    # the rest of the data is 3 times as over-confident as the first chunk
    state = streaming.update(streaming.init(z[:CHUNK], y[:CHUNK]), 3 * z, y)
    outside = streaming.decompose(state)
    assert outside.status == Status.NOT_CONVERGED and np.isnan(outside.refinement) and np.isnan(outside.fit.temperature)
    np.testing.assert_allclose(outside.risk, jaxcal.risk(3 * z, y), rtol=1e-6)
    constant = streaming.decompose(streaming.update(streaming.init(0 * z, y), 0 * z, y))
    assert constant.status == Status.NOT_IDENTIFIED and constant.fit.temperature == 1
    np.testing.assert_allclose(constant.refinement, np.log(6), rtol=1e-6)

    # lanes: fine, NaN, a label that is masked
    lanes = np.stack([z, z, z])
    lanes[1, 7, 2] = np.nan
    lanes[2, 7, y[7]] = -np.inf
    mixed = streaming.decompose(streaming.update(streaming.init(np.stack([z, z, z]), y), lanes, y))
    assert mixed.status.tolist() == [Status.CONVERGED, Status.INVALID_INPUT, Status.IMPOSSIBLE_EVENT]
    np.testing.assert_allclose(mixed.risk[0], jaxcal.risk(z, y), rtol=1e-6)
    assert np.isnan(mixed.risk[1]) and mixed.risk[2] == mixed.refinement[2] == np.inf

    # a first chunk that says nothing of the temperature spoils its lane
    spoilt = jax.jit(streaming.init)(lanes[1], y)
    with pytest.raises(ValueError, match="that entered in compiled code was invalid"):
        streaming.decompose(jax.jit(streaming.update)(spoilt, z, y))
    begun = streaming.update(streaming.init(lanes, y), np.stack([z, z, z]), y)
    assert streaming.decompose(begun).status.tolist() == mixed.status.tolist()
    for first, message in ((lanes[1], "streaming.init: logits must not be NaN; row 7"), (lanes[2], "row 7")):
        with pytest.raises(ValueError, match=message):
            streaming.init(first, y)

    state = streaming.init(z, y)
    with pytest.raises(ValueError, match="no row of positive weight has entered"):
        streaming.decompose(state)
    # compiled code says nothing, and later chunks are not at fault
    spoilt = jax.jit(streaming.update)(state, z, y + 6)
    with pytest.raises(ValueError, match="that entered in compiled code was invalid"):
        streaming.decompose(streaming.update(spoilt, z, y))
    for arguments, message in (
        ((lanes[1], y), "logits must not be NaN; row 7"),
        ((z, y + 6), r"labels must be integers in \[0, 6\)"),
        ((z[:, :5], y), "the state is for 6 classes"),
        ((lanes, y), r"batch shape of the state, \(\), got \(3,\)"),
        ((z, y[:-1]), "labels must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            streaming.update(state, *arguments)


@pytest.mark.parametrize("k", [10, 1000])
def test_what_is_not_known_to_a_millionth_is_not_converged(k):
    logits, labels = np.zeros((2, k), np.float64), np.array([0, 1])
    logits[:, 0] = 10
    for error in (1e-6, 1e-4, 1e-2):  # of labels that are hardly ever wrong, and other shares in the first chunk
        weights = np.array([1 - error, error])
        expected = jaxcal.fit_temperature(logits, labels, weights=weights).temperature
        converged = []
        for times in (0.1, 0.5, 1, 1.5, 3, 10, 30):
            state = streaming.init(logits, labels, weights=np.array([1 - times * error, times * error]))
            parts = streaming.decompose(streaming.update(state, logits, labels, weights=weights))
            converged.append(parts.status == Status.CONVERGED)
            if converged[-1]:
                np.testing.assert_allclose(parts.fit.temperature, expected, rtol=2e-6)
            else:
                assert parts.status == Status.NOT_CONVERGED and np.isnan(parts.refinement)
        assert converged[2] and not all(converged)
