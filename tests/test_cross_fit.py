"""Out-of-fold calibration: who is calibrated by whom, in which order, under which transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.cross_fit import split_rows

N, K, FOLDS = 13, 3, 4
KEY = jax.random.key(7)


@pytest.fixture
def data():
    """Small data whose temperature is an interior optimum whichever fold is left out."""
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    logits = 2 * rng.standard_normal((N, K)) + 2 * (labels[:, None] == np.arange(K))
    return logits.astype(jax.dtypes.canonicalize_dtype("float64")), labels


def _cross_fit(logits, labels, calibrator=jaxcal.fit_temperature, folds=FOLDS, key=KEY, weights=None):
    return jaxcal.cross_fit(calibrator, logits, labels, folds=folds, key=key, weights=weights)


def _with(array, index, value):
    copy = np.array(array)
    copy[index] = value
    return copy


@pytest.mark.parametrize("n, folds", [(13, 4), (12, 4), (5, 5), (7, 2)])
def test_folds_partition_the_rows_evenly(n, folds):
    split = jax.tree.map(np.asarray, split_rows(KEY, n, folds))
    sizes = np.bincount(split.fold, minlength=folds)
    assert len(sizes) == folds and sizes.max() - sizes.min() <= 1
    for f in range(folds):
        assert set(split.rows[f, : sizes[f]].tolist()) == set(np.flatnonzero(split.fold == f).tolist())
    np.testing.assert_array_equal(split.rows.reshape(-1)[split.place], np.arange(n))


def test_folds_depend_on_the_key_only():
    a, b, c = (split_rows(key, 50, 5).fold for key in (KEY, KEY, jax.random.key(8)))
    np.testing.assert_array_equal(a, b)
    assert (np.asarray(a) != np.asarray(c)).any()


@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weights"])
def test_each_row_is_mapped_by_a_fit_on_the_other_folds(data, weighted, eps):
    logits, labels = data
    weights = np.random.default_rng(1).integers(1, 4, N).astype(logits.dtype) if weighted else None
    fold = np.asarray(split_rows(KEY, N, FOLDS).fold)
    result = np.asarray(_cross_fit(*data, weights=weights))
    assert result.shape == logits.shape and result.dtype == logits.dtype
    for f in range(FOLDS):
        fit = jaxcal.fit_temperature(logits, labels, weights=(fold != f) * (1 if weights is None else weights))
        assert fit.status == jaxcal.Status.CONVERGED
        np.testing.assert_allclose(result[fold == f], np.asarray(fit(logits))[fold == f], rtol=64 * eps**0.75)
    np.testing.assert_allclose(np.exp(np.asarray(result, np.float64)).sum(-1), 1, rtol=8 * eps)


def test_a_row_does_not_see_its_own_label(data):
    logits, labels = data
    fold = np.asarray(split_rows(KEY, N, FOLDS).fold)
    row = int(np.flatnonzero(fold == 2)[0])
    before = np.asarray(_cross_fit(logits, labels))
    after = np.asarray(_cross_fit(logits, _with(labels, row, (labels[row] + 1) % K)))
    np.testing.assert_array_equal(before[fold == 2], after[fold == 2])
    assert (before[fold != 2] != after[fold != 2]).any(-1).all()


def test_the_calibrator_is_called_once_with_a_stack_of_weights(data):
    calls = []

    def spy(logits, labels, *, weights):
        calls.append((logits.shape, labels.shape, weights))
        return jax.nn.log_softmax  # a map without status

    result = _cross_fit(*data, calibrator=spy)
    np.testing.assert_allclose(result, jax.nn.log_softmax(data[0]), rtol=1e-6)
    ((shape, label_shape, weights),) = calls
    assert shape == (N, K) and label_shape == (N,)
    fold = np.asarray(split_rows(KEY, N, FOLDS).fold)
    np.testing.assert_array_equal(weights, fold != np.arange(FOLDS)[:, None])


def test_leading_axes_share_the_split(data, eps):
    logits, labels = data
    stack, classes = (
        np.stack([logits, 3 * logits])[:, None],
        np.stack([labels, _with(labels, 0, 2), _with(labels, 1, 2)]),
    )
    weights = np.random.default_rng(1).integers(1, 4, (2, 3, N)).astype(logits.dtype)
    result = np.asarray(_cross_fit(stack, classes, weights=weights))
    for i, j in np.ndindex(2, 3):
        one = _cross_fit(stack[i, 0], classes[j], weights=weights[i, j])
        np.testing.assert_allclose(result[i, j], one, rtol=64 * eps**0.75)
    mapped = jax.vmap(lambda y, w: _cross_fit(logits, y, weights=w))(classes, weights[0])
    np.testing.assert_allclose(mapped, result[0], rtol=64 * eps**0.75)
    bootstrap = np.asarray(_cross_fit(logits, labels, weights=weights[0]))
    np.testing.assert_allclose(bootstrap[0], result[0, 0], rtol=64 * eps**0.75)


def test_half_precision_comes_back(data):
    logits = jnp.asarray(data[0], jnp.bfloat16)
    result = _cross_fit(logits, data[1])
    assert result.dtype == logits.dtype
    wide = _cross_fit(np.asarray(logits).astype(data[0].dtype), data[1])
    np.testing.assert_allclose(np.asarray(result, np.float32), wide, rtol=2 * float(jnp.finfo(jnp.bfloat16).eps))


def test_jit_traces_once_and_gradients_go_through_the_fit(data, x64):
    traces = []
    mix = np.sin(np.arange(N * K)).reshape(N, K)

    @jax.jit
    def objective(z, y):
        traces.append(1)
        return jnp.sum(mix * _cross_fit(z, y))

    logits, labels = data
    value = objective(logits, labels)
    np.testing.assert_allclose(value, np.sum(mix * np.asarray(_cross_fit(logits, labels))), rtol=1e-5)
    assert np.isnan(objective(logits, _with(labels, 5, -1)))
    assert len(traces) == 1
    slope = jax.jit(jax.grad(objective))(logits, labels)
    assert np.isfinite(slope).all()
    if x64:
        rng = np.random.default_rng(2)
        for along in rng.standard_normal((3, N, K)):
            up, down = (objective(logits + s * 1e-5 * along, labels) for s in (1, -1))
            np.testing.assert_allclose(np.sum(slope * along), (up - down) / 2e-5, rtol=1e-6)


def test_absent_rows_may_hold_anything(data):
    logits, labels = data
    weights = _with(np.ones(N), [3, 8], 0.0)
    broken = _with(_with(logits, 3, np.nan), 8, -np.inf)
    kept = np.delete(np.arange(N), [3, 8])
    result = np.asarray(_cross_fit(broken, _with(labels, 3, -1), weights=weights))
    np.testing.assert_array_equal(result[kept], np.asarray(_cross_fit(logits, labels, weights=weights))[kept])
    assert np.isnan(result[3]).all()


BAD = [
    pytest.param({"labels": -1}, r"cross_fit: labels must be integers in \[0, 3\).* row 5 has label -1", id="label"),
    pytest.param({"logits": np.nan}, "cross_fit: logits must not be NaN; row 5", id="nan"),
    pytest.param({"weights": -1.0}, r"weights must be finite and >= 0, got -1.0 in row 5", id="weight"),
]


@pytest.mark.parametrize("spoil, message", BAD)
def test_a_bad_row_raises_although_its_own_fold_has_not_seen_it(spoil, message, data):
    good = {"logits": data[0], "labels": data[1], "weights": np.ones(N)}
    bad = {name: _with(a, 5, spoil[name]) if name in spoil else a for name, a in good.items()}
    with pytest.raises(ValueError, match=message):
        _cross_fit(**bad)
    lanes = np.asarray(_cross_fit(**{name: np.stack([bad[name], good[name]]) for name in good}))
    assert np.isnan(lanes[0]).all()
    assert not np.isnan(lanes[1]).any()


@pytest.mark.parametrize("folds", [1, N + 1, 2.0, True, None])
def test_folds_must_be_a_number_of_folds(folds, data):
    with pytest.raises(ValueError, match=rf"cross_fit: folds must be an integer in \[2, n = {N}\]"):
        _cross_fit(*data, folds=folds)


def test_a_key_is_needed(data):
    with pytest.raises(ValueError, match=r"key=jax\.random\.key\(0\)"):
        _cross_fit(*data, key=None)


@pytest.mark.once
def test_faults_are_told_for_any_calibrator():
    """Not in terms of a temperature where another map is fitted, and with the remedy for binary scores."""
    fit = jaxcal.one_vs_rest(jaxcal.fit_platt)
    logits, key = np.array([[0.0, -np.inf], [1.0, 0.0], [0.0, 1.0], [0.5, 0.0]]), jax.random.key(0)
    with pytest.raises(ValueError, match="row 0 gives its own class 1 the logit -inf") as caught:
        jaxcal.cross_fit(fit, logits, [1, 0, 1, 0], folds=2, key=key)
    assert "temperature" not in str(caught.value)
    for call in (jaxcal.fit_temperature, fit, jaxcal.accuracy, jaxcal.skce_multiclass):
        with pytest.raises(ValueError, match=r"needs logits of shape .*, got \(4,\); .*jaxcal\.binary_logits"):
            call(logits[:, 1], [1, 0, 1, 0])
    with pytest.raises(TypeError, match=r"fit_platt calibrates binary scores; pass jaxcal.one_vs_rest\(fit_platt\)"):
        jaxcal.cross_fit(jaxcal.fit_platt, logits, [1, 0, 1, 0], folds=2, key=key)
