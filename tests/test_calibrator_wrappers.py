"""Laplace smoothing, one against rest, and calibrators on disk."""

import functools
import json
import pickle
import zipfile
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.calibrators.fit import Fit
from jaxcal.calibrators.one_vs_rest import binary_calibrator

N, K = 12, 3


def _with(array, index, value):
    copy = np.array(array)
    copy[index] = value
    return copy


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    logits = 2 * rng.standard_normal((N, K)) + (labels[:, None] == np.arange(K))
    return logits.astype(jax.dtypes.canonicalize_dtype("float64")), labels


# --- a binary calibrator to check by hand: the shift that moves the mean score to the observed log-odds ---


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShiftFit(Fit):
    shift: jax.Array
    status: jax.Array

    @jax.jit
    def log_probabilities(self, score):
        shift = self.shift[..., None] if self.shift.ndim else self.shift
        s = score + shift
        return jnp.stack([jax.nn.log_sigmoid(-s), jax.nn.log_sigmoid(s)], axis=-1)


@functools.partial(jax.jit, static_argnames="prior")
def fit_shift(score, outcomes, *, weights=None, prior=0.0):
    w = jnp.ones(score.shape[-1:]) if weights is None else weights
    mean = lambda a: jnp.sum(jnp.where(w > 0, jnp.where(w > 0, a, 0) * w, 0), -1) / jnp.sum(w, -1)  # noqa: E731
    frequency = mean(outcomes)
    shift = prior + jnp.log(frequency) - jnp.log1p(-frequency) - mean(score)
    failed = jnp.isnan(shift)
    return ShiftFit(shift, jnp.where(failed, int(jaxcal.Status.INVALID_INPUT), 0).astype(jnp.int32))


def _by_hand(logits, labels, weights, new):
    """One against rest with the shift calibrator in NumPy."""
    log_odds = lambda z: np.stack(  # noqa: E731
        [z[:, c] - np.log(np.exp(np.delete(z, c, 1)).sum(1)) for c in range(z.shape[1])], axis=1
    )
    events = labels[:, None] == np.arange(logits.shape[1])
    frequency = np.average(events, axis=0, weights=weights)
    shift = np.log(frequency / (1 - frequency)) - np.average(log_odds(logits), axis=0, weights=weights)
    p = 1 / (1 + np.exp(-(log_odds(new) + shift)))
    return np.log(p / p.sum(1, keepdims=True))


def test_one_vs_rest_of_three_classes(data, eps):
    logits, labels = data
    weights = np.arange(1.0, N + 1)
    fit = jaxcal.one_vs_rest(fit_shift)(logits, labels, weights=weights)
    expected = _by_hand(logits.astype(np.float64), labels, weights, 2 * logits.astype(np.float64))
    result = fit(2 * logits)
    assert result.dtype == logits.dtype and fit.num_classes == 3 and fit.status == 0
    np.testing.assert_allclose(result, expected, rtol=32 * eps, atol=32 * eps)
    np.testing.assert_allclose(np.exp(np.asarray(result, np.float64)).sum(-1), 1, rtol=4 * eps)


def test_one_vs_rest_of_two_classes_is_one_fit(data, eps):
    logits, labels = data[0][:, :2], data[1] % 2
    fit = jaxcal.one_vs_rest(fit_shift)(logits, labels)
    direct = fit_shift(logits[:, 1] - logits[:, 0], labels)
    assert fit.fit.shift.shape == () and fit.status.shape == ()
    np.testing.assert_allclose(fit.fit.shift, direct.shift, rtol=8 * eps)
    np.testing.assert_allclose(fit(logits), direct.log_probabilities(logits[:, 1] - logits[:, 0]), rtol=16 * eps)


@pytest.mark.parametrize("k", [2, 3])
def test_one_vs_rest_over_leading_axes(k, data, eps):
    logits, labels = data[0][:, :k], data[1] % k
    calibrator = jax.jit(jaxcal.one_vs_rest(fit_shift))
    stack = np.stack([logits, 2 * logits, -logits])  # as many lanes as classes: nothing may mix them up
    weights = np.random.default_rng(0).integers(1, 5, (3, N)).astype(logits.dtype)
    apply = jax.jit(lambda fit, z: fit(z))
    one = [calibrator(logits, labels, weights=w) for w in weights]
    close = functools.partial(np.testing.assert_allclose, rtol=64 * eps, atol=8 * eps)
    for fit in (
        jaxcal.one_vs_rest(fit_shift)(logits, labels, weights=weights),
        jax.vmap(lambda w: calibrator(logits, labels, weights=w))(weights),
        jax.tree.map(lambda *leaves: np.stack(leaves), *one),
    ):
        assert fit.fit.shift.shape == ((3,) if k == 2 else (3, k)) and fit.status.shape == (3,)
        close(apply(fit, logits), [apply(f, logits) for f in one])
        close(apply(fit, stack), [apply(f, z) for f, z in zip(one, stack, strict=True)])
    close(apply(one[0], stack), [apply(one[0], z) for z in stack])
    close(apply(one[0], logits[4]), np.asarray(apply(one[0], logits))[4])
    stacked = calibrator(stack, labels, weights=weights[0])
    close(apply(stacked, stack), [apply(calibrator(z, labels, weights=weights[0]), z) for z in stack])


def test_one_vs_rest_ignores_absent_rows(data):
    logits, labels = data
    weights = _with(np.ones(N), [2, 5], 0.0)

    def value(z, y):
        return jnp.sum(jaxcal.one_vs_rest(fit_shift)(z, y, weights=weights)(logits)[:, 0])

    evaluate = jax.jit(jax.value_and_grad(value))
    clean = evaluate(logits, labels)
    dirty = evaluate(_with(_with(logits, 2, np.nan), 5, np.inf), _with(labels, 2, -1))
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(a, b)
    fit = jax.jit(jaxcal.one_vs_rest(fit_shift))(logits, np.stack([labels, _with(labels, 2, -1)]))
    assert fit.status.tolist() == [0, jaxcal.Status.INVALID_INPUT]


def test_one_vs_rest_with_masked_classes(data):
    logits = np.array([[0.0, -np.inf, -np.inf], [0.0, 1.0, -np.inf]])
    fit = jaxcal.one_vs_rest(fit_shift)(*data)
    np.testing.assert_array_equal(np.isneginf(fit(logits)), np.isneginf(logits))
    slope = jax.jit(jax.grad(lambda z: jnp.sum(fit(z)[:, 0])))(logits)
    assert np.isfinite(slope).all() and slope[1, 0] > 0
    impossible = jaxcal.OneVsRestFit(ShiftFit(jnp.full(3, -jnp.inf), jnp.zeros(3, int)), jnp.int32(0), 3)
    np.testing.assert_allclose(np.exp(impossible(data[0])), 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("wrap", [jaxcal.one_vs_rest, jaxcal.laplace])
def test_options_are_bound_with_partial(wrap, data):
    inner = functools.partial(fit_shift, prior=0.5)
    calibrator = wrap(inner if wrap is jaxcal.one_vs_rest else jaxcal.one_vs_rest(inner))
    plain = wrap(fit_shift if wrap is jaxcal.one_vs_rest else jaxcal.one_vs_rest(fit_shift))
    assert (np.asarray(calibrator(*data)(data[0])) != np.asarray(plain(*data)(data[0]))).all()


def test_what_is_no_calibrator_is_refused(data):
    bare = binary_calibrator(lambda score, outcomes, *, weights=None: None)
    for calibrator in (bare, functools.partial(bare)):
        with pytest.raises(TypeError, match="one_vs_rest"):
            jaxcal.laplace(calibrator)
        with pytest.raises(TypeError, match="one_vs_rest"):
            jaxcal.decompose(*data, calibrator=calibrator)
    for wrap in (jaxcal.one_vs_rest, jaxcal.laplace):
        with pytest.raises(TypeError, match="must be a function"):
            wrap(3.0)
    with pytest.raises(ValueError, match="fitted for 3 classes, got logits of shape"):
        jaxcal.one_vs_rest(fit_shift)(*data)(data[0][:, :2])


# --- Laplace ---


def test_laplace_mixes_with_the_uniform_law(data, eps):
    logits, labels = data
    plain, fit = jaxcal.fit_temperature(*data), jaxcal.laplace(jaxcal.fit_temperature)(*data)
    assert fit.num_samples == N and fit.status == plain.status
    expected = N / (N + 1) * np.exp(np.asarray(plain(logits), np.float64)) + 1 / (N + 1) / K
    np.testing.assert_allclose(np.exp(np.asarray(fit(logits), np.float64)), expected, rtol=8 * eps)
    masked = fit(_with(logits, (0, 1), -np.inf))
    np.testing.assert_allclose(np.exp(np.asarray(masked)[0, 1]), 1 / (N + 1) / K, rtol=8 * eps)
    assert fit(jnp.asarray(logits, jnp.bfloat16)).dtype == jnp.bfloat16


def test_laplace_counts_weights_and_keeps_lanes(data, eps):
    logits, labels = data
    weights = np.stack([np.full(N, 2.0), _with(np.ones(N), 3, 0)])
    fit = jaxcal.laplace(jaxcal.fit_temperature)(logits, _with(labels, 3, 0), weights=weights)
    assert fit.num_samples.tolist() == [2 * N, N - 1]
    one = jaxcal.laplace(jaxcal.fit_temperature)(logits.repeat(2, 0), labels.repeat(2))
    np.testing.assert_allclose(np.asarray(fit(logits))[0], one(logits), rtol=256 * eps**0.75)
    assert fit(np.stack([logits, logits])).shape == (2, N, K)
    bare = jaxcal.laplace(lambda z, y, *, weights: jax.nn.log_softmax)(logits, labels, weights=weights)
    assert bare.num_samples.shape == bare.status.shape == (2,)
    expected = (N - 1) / N * np.asarray(jax.nn.softmax(logits)) + 1 / N / K
    np.testing.assert_allclose(np.exp(bare(logits))[1], expected, rtol=16 * eps)


def test_laplace_keeps_the_loss_finite_at_perfect_accuracy():
    logits, labels = np.array([[5.0, 0.0, 0.0], [0.0, 7.0, 0.0]]), np.array([0, 1])
    fit = jaxcal.laplace(jaxcal.fit_temperature)(logits, labels)
    assert fit.status == jaxcal.Status.AT_UPPER_BOUND
    wrong = jaxcal.risk(fit(logits), 1 - labels)
    np.testing.assert_allclose(wrong, np.log(9), rtol=1e-5)  # probability 1/(n+1)/k


# --- on disk ---


def _fits(data):
    logits, labels = data
    temperature = jaxcal.fit_temperature(np.stack([logits, 2 * logits]), labels)
    bfloat16 = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if a.dtype.kind == "f" else a, temperature)
    laplace = jaxcal.laplace(jaxcal.fit_temperature)(logits, labels)
    nested = jaxcal.OneVsRestFit(jaxcal.LaplaceFit(laplace, laplace.num_samples, laplace.status), laplace.status, 3)
    return {"temperature": temperature, "bfloat16": bfloat16, "laplace": laplace, "nested": nested}


@pytest.mark.parametrize("name", ["temperature", "bfloat16", "laplace", "nested"])
def test_a_fit_comes_back_as_it_was(name, data, tmp_path):
    fit = _fits(data)[name]
    path = tmp_path / "a name without suffix"
    fit.save(path)
    assert [f.name for f in tmp_path.iterdir()] == [path.name]  # exactly this file and no other
    again = jaxcal.load(str(path))
    assert jax.tree.structure(again) == jax.tree.structure(fit)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(fit), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)
    if name == "temperature":
        np.testing.assert_array_equal(again(data[0]), fit(data[0]))
    fit.save(path)  # over an old file


def _rewrite(path, change):
    """Change the members of a saved calibrator: {name: bytes of the npy}."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _npy(array, pickled=False):
    path = zipfile.io.BytesIO()
    np.lib.format.write_array(path, np.asarray(array), allow_pickle=pickled)
    return path.getvalue()


def _header(change):
    def rewrite(members):
        raw = members["header.npy"]
        header = json.loads(raw[raw.index(b'{"format"') :])
        change(header)
        members["header.npy"] = _npy(np.frombuffer(json.dumps(header).encode(), np.uint8))

    return rewrite


def _claim_huge(members):
    raw = members["fit.risk.npy"]
    start, claim = raw.index(b"(2,), }"), b"(999999999999,), }"
    members["fit.risk.npy"] = raw[:start] + claim + raw[start + len(claim) :]  # over the padding of the header


def _pickled(members):
    members["fit.risk.npy"] = _npy(np.array([_Bomb(), 1], object), pickled=True)


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


FIELDS = "the fields of its TemperatureFit"
CORRUPT = [
    pytest.param(_header(lambda h: h.update(version=2)), "format version 2, this jaxcal reads 1", id="version"),
    pytest.param(_header(lambda h: h.update(format="other")), "not that of a jaxcal calibrator", id="format"),
    pytest.param(_header(lambda h: h["fit"].update({"class": "Popen"})), "holds a Popen, unknown", id="class"),
    pytest.param(_header(lambda h: h["fit"]["fields"].pop("risk")), FIELDS, id="missing field"),
    pytest.param(_header(lambda h: h["fit"]["fields"].update(more={"value": 1})), FIELDS, id="extra field"),
    pytest.param(_header(lambda h: h["fit"].update(fields=list(h["fit"]["fields"]))), "", id="fields no table"),
    pytest.param(_header(lambda h: h["fit"]["fields"]["risk"].update(shape=[3])), "header says", id="shape"),
    pytest.param(_header(lambda h: h["fit"]["fields"]["risk"].update(array="no")), "", id="no such array"),
    pytest.param(lambda m: m.update({"header.npy": _npy(np.zeros(1 << 21, np.uint8))}), "no header", id="huge header"),
    pytest.param(lambda m: m.update({"header.npy": _npy(np.frombuffer(b"[" * 99999, np.uint8))}), "", id="deep header"),
    pytest.param(lambda m: m.pop("header.npy"), "no header", id="no header"),
    pytest.param(_claim_huge, "is not its size", id="huge array"),
    pytest.param(_pickled, "not numbers", id="pickle"),
]


@pytest.mark.parametrize("change, message", CORRUPT)
def test_a_file_that_is_no_calibrator_is_refused(change, message, data, tmp_path):
    path = tmp_path / "fit.npz"
    _fits(data)["temperature"].save(path)
    _rewrite(path, lambda members: None)
    jaxcal.load(path)  # rewriting alone does no harm
    _rewrite(path, change)
    with pytest.raises(ValueError, match=f"fit.npz is not a calibrator saved by jaxcal: .*{message}"):
        jaxcal.load(path)


def test_truncated_and_damaged_files_are_refused(data, tmp_path):
    path = tmp_path / "fit.npz"
    _fits(data)["laplace"].save(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="not a calibrator saved by jaxcal"):
            jaxcal.load(path)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            jaxcal.load(path)  # a byte that nobody reads
        except ValueError as error:
            refused += "not a calibrator saved by jaxcal" in str(error)
    assert refused > 200


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, header=np.zeros(1 << 19, np.uint8), x=np.zeros(1 << 22))
    with pytest.raises(ValueError, match="larger than the file"):
        jaxcal.load(path)
    path.write_bytes(pickle.dumps({"format": "jaxcal-calibrator"}))
    with pytest.raises(ValueError, match="not a calibrator saved by jaxcal"):
        jaxcal.load(path)
    with pytest.raises(FileNotFoundError):
        jaxcal.load(tmp_path / "nothing.npz")


def test_what_cannot_be_saved_leaves_no_file(data, tmp_path):
    fit = jaxcal.one_vs_rest(fit_shift)(*data)
    with pytest.raises(TypeError, match="ShiftFit cannot be saved"):
        fit.save(tmp_path / "fit.npz")
    with pytest.raises(TypeError, match=r"fit\.risk is a object"):
        jaxcal.TemperatureFit(*[jnp.zeros(())], object(), *[jnp.zeros(())] * 3).save(tmp_path / "fit.npz")
    assert not list(tmp_path.iterdir())
