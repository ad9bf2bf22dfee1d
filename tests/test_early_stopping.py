"""The online rule: the decisions of `select_epoch`, in every kind of loop, and what it keeps."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import jaxcal
from jaxcal import early_stopping

EPOCHS = 9
VALUES = st.sampled_from([0.0, 0.1, 0.125, 0.25, 0.3, 0.5, 1.0, -1.0, math.nan, math.inf])


def _epochs(lanes=(), n=60, k=3, epochs=EPOCHS):
    """Validation logits `(epochs, *lanes, n, k)` that grow over-confident, most informative at 6, 5, ...; labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, k, n)
    epoch = np.arange(epochs).reshape(-1, *(1,) * len(lanes))
    away = abs(epoch - 6 + np.arange(math.prod(lanes)).reshape(lanes))
    signal = np.eye(k)[labels] + (0.8 + 0.1 * away[..., None, None]) * rng.normal(size=(n, k))
    return ((1 + epoch)[..., None, None] * signal).astype(np.float32), labels


def _run(values, patience, min_delta, params=None):
    """As a training loop does it: it ends when the rule stops."""
    state = early_stopping.init(params, patience=patience, min_delta=min_delta)
    for epoch, value in enumerate(values):
        state = early_stopping.update_value(state, value, None if params is None else {"epoch": epoch})
        if state.stopped:
            break
    return state


@settings(deadline=None, max_examples=150)
@given(
    curve=st.lists(VALUES, min_size=EPOCHS, max_size=EPOCHS),
    patience=st.sampled_from([None, 1, 2, 3, EPOCHS]),
    min_delta=st.sampled_from([0.0, 0.1, 0.125, 0.25]),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
)
def test_a_loop_decides_as_select_epoch(curve, patience, min_delta, dtype):
    curve = jnp.asarray(np.array(curve), jax.dtypes.canonicalize_dtype(dtype) if dtype == "float64" else dtype)
    state = _run(curve, patience, min_delta, {"epoch": -1})
    chosen = int(jaxcal.select_epoch(curve, patience=patience, min_delta=min_delta))
    assert int(state.best_step) == int(state.best_params["epoch"]) == chosen
    assert float(state.best_value) == (float(curve[chosen]) if chosen >= 0 else math.inf)
    if patience is None:
        assert not state.stopped and int(state.step) == EPOCHS


def test_what_the_state_says_on_the_way():
    state = early_stopping.init(patience=2)
    seen = []
    for value in (math.nan, 0.5, 0.5, 0.25, 0.75, math.inf, 0.0):
        state = early_stopping.update_value(state, value)
        seen.append((int(state.best_step), int(state.waited), bool(state.improved), bool(state.stopped)))
    assert seen == [
        (-1, 0, False, False),
        (1, 0, True, False),
        (1, 1, False, False),
        (3, 0, True, False),
        (3, 1, False, False),
        (3, 2, False, True),
        (3, 3, False, True),  # too late
    ]
    assert int(state.step) == 7 and float(state.best_value) == 0.25


def _expected(z, labels, patience):
    curve = jaxcal.decompose(z, labels).refinement
    return np.asarray(jaxcal.select_epoch(jnp.moveaxis(curve, 0, -1), patience=patience))


@pytest.mark.parametrize("patience", [2, None])
def test_the_metric_is_the_refinement_after_temperature_scaling(patience):
    z, labels = _epochs()
    state = early_stopping.init(patience=patience)
    for logits in z:
        state = early_stopping.update(state, logits, labels)
    expected = _expected(z, labels, patience)
    assert int(state.best_step) == expected != jaxcal.select_epoch(jaxcal.risk(z, labels))
    np.testing.assert_allclose(state.best_value, jaxcal.decompose(z[expected], labels).refinement, rtol=1e-6)


def test_lanes_stop_for_themselves_in_scan_while_loop_and_vmap():
    z, labels = _epochs((4,))
    expected = _expected(z, labels, 2)
    assert len(set(expected.tolist())) > 1
    params = {"epoch": np.full((4, 2), -1, np.int32)}

    def epoch_of(e):
        return {"epoch": jnp.full((4, 2), e, jnp.int32)}

    @jax.jit
    def scanned(z):
        def step(state, inputs):
            e, logits = inputs
            return early_stopping.update(state, logits, labels, epoch_of(e)), None

        start = early_stopping.init(params, patience=2, batch_shape=(4,))
        return jax.lax.scan(step, start, (jnp.arange(EPOCHS), z))[0]

    @jax.jit
    def looped(z):
        def step(state):
            return early_stopping.update(state, z[state.step], labels, epoch_of(state.step))

        start = early_stopping.init(params, patience=2, batch_shape=(4,))
        return jax.lax.while_loop(lambda state: ~state.stopped.all() & (state.step < EPOCHS), step, start)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=1)
    def mapped(z):
        def step(state, inputs):
            e, logits = inputs
            return early_stopping.update(state, logits, labels, {"epoch": jnp.full(2, e, jnp.int32)}), None

        start = early_stopping.init({"epoch": jnp.full(2, -1, jnp.int32)}, patience=2)
        return jax.lax.scan(step, start, (jnp.arange(EPOCHS), z))[0]

    for run in (scanned, looped, mapped):
        state = run(z)
        np.testing.assert_array_equal(state.best_step, expected)
        np.testing.assert_array_equal(state.best_params["epoch"], np.stack([expected] * 2, axis=-1))
    assert int(looped(z).step) <= EPOCHS

    state = early_stopping.init(params, patience=2, batch_shape=(4,))
    for e, logits in enumerate(z):
        state = early_stopping.update(state, logits, labels, epoch_of(e))
    np.testing.assert_array_equal(state.best_step, expected)


def test_other_metrics_and_weights():
    z, labels = _epochs()
    weights = np.arange(len(labels)) % 3
    key = jax.random.key(0)
    folded = functools.partial(early_stopping.refinement, folds=5, key=key)
    wrong = lambda logits, labels, weights: 1 - jaxcal.accuracy(logits, labels, weights=weights)  # noqa: E731
    for metric, curve in (
        (jaxcal.risk, jaxcal.risk(z, labels, weights=weights)),
        (folded, jaxcal.decompose(z, labels, weights=weights, folds=5, key=key).refinement),
        (early_stopping.refinement, jaxcal.decompose(z, labels, weights=weights).refinement),
        (wrong, 1 - jaxcal.accuracy(z, labels, weights=weights)),
    ):
        state = early_stopping.init()
        for logits in z:
            state = early_stopping.update(state, logits, labels, weights=weights, metric=metric)
        assert int(state.best_step) == jaxcal.select_epoch(curve)
        np.testing.assert_allclose(state.best_value, curve.min(), rtol=1e-5)


def test_one_trace_for_all_epochs(monkeypatch):
    traces, advance = [], early_stopping._advance
    monkeypatch.setattr(early_stopping, "_advance", lambda *args: traces.append("rule") or advance(*args))

    def metric(logits, labels, weights):
        traces.append("metric")
        return jaxcal.risk(logits, labels, weights=weights)

    z, labels = _epochs(n=61)
    state = early_stopping.init({"w": np.zeros(7)}, patience=3, min_delta=0.5)
    for e, logits in enumerate(z):
        state = early_stopping.update(state, logits, labels, {"w": np.full(7, e)}, metric=metric)
    other = early_stopping.init({"w": np.zeros(7)}, patience=5)
    early_stopping.update(other, z[0], labels, {"w": np.full(7, 0)}, metric=metric)
    assert sorted(traces) == ["metric", "rule"]


def test_parameters_may_be_donated_and_models_may_hold_functions():
    train = jax.jit(lambda p: p + 1, donate_argnums=0)
    p = jnp.zeros(3)
    state = early_stopping.init({"p": p, "activation": jnp.tanh, "name": "net", "rate": 0.5})
    for value in (0.5, 0.25, 0.75):
        p = train(p)
        state = early_stopping.update_value(
            state, value, {"p": p, "activation": jnp.tanh, "name": "net", "rate": value}
        )
    p = train(p)
    np.testing.assert_array_equal(state.best_params["p"], [2, 2, 2])
    assert state.best_params["activation"] is jnp.tanh and state.best_params["name"] == "net"
    assert float(state.best_params["rate"]) == 0.25


class _Tensor:
    """As another library has it."""

    def __init__(self, value):
        self.value = np.asarray(value, np.float32)

    def __dlpack__(self, **options):
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()


class _Module:
    """What a module of PyTorch has."""

    def state_dict(self):
        return {}


def test_other_objects_are_those_of_the_best_epoch():
    state = early_stopping.init({"name": "start", "rule": (1, None)}, patience=2)
    for value, name in ((3.0, "a"), (1.0, "b"), (2.0, "c")):
        state = early_stopping.update_value(state, value, {"name": name, "rule": (1, None)})
    assert state.best_params["name"] == "b" and int(state.best_step) == 1
    tensor = {"net": {"w": _Tensor([1.0])}}
    for call in (
        lambda: early_stopping.init(tensor),
        lambda: early_stopping.update_value(early_stopping.init({"net": {"w": jnp.zeros(1)}}), 0.5, tensor),
    ):
        with pytest.raises(TypeError, match=r"params\['net'\]\['w'\] is a .*_Tensor, .* where state.improved"):
            call()
    for model in (LogisticRegression(), _Module()):
        with pytest.raises(TypeError, match="which may change in place; give no params"):
            early_stopping.init(model)


def test_whole_numbers_are_kept_or_refused(x64):
    small, large = np.array([2**31 - 1, -(2**31)]), np.array([2**40 + 3])
    state = early_stopping.update_value(early_stopping.init({"n": small}), 0.5, {"n": small})
    np.testing.assert_array_equal(state.best_params["n"], small)
    if x64:
        np.testing.assert_array_equal(early_stopping.init({"n": large}).best_params["n"], large)
        return
    for bad in (large, np.uint64(2**63), 2**40):
        with pytest.raises(ValueError, match=r"params\['n'\] holds whole numbers beyond u?int32"):
            early_stopping.init({"n": bad})
    with pytest.raises(ValueError, match=r"params\['n'\] holds whole numbers beyond int32"):
        early_stopping.update_value(early_stopping.init({"n": np.array([1])}), 0.5, {"n": large})


def test_a_network_that_diverges_is_no_improvement():
    z, labels = _epochs()
    state = early_stopping.update(early_stopping.init(patience=2), z[0], labels)
    for bad in (np.nan, np.inf):
        state = early_stopping.update(state, np.full_like(z[0], bad), labels)
    assert bool(state.stopped) and int(state.best_step) == 0


BAD = [
    (lambda z, y: early_stopping.init(patience=0), "patience must be an integer >= 1 or None, got 0"),
    (lambda z, y: early_stopping.init(min_delta=-1), "min_delta must be finite and >= 0"),
    (lambda z, y: early_stopping.init({"w": np.zeros(3)}, batch_shape=(2,)), r"begin with the batch shape \(2,\)"),
    (lambda z, y: early_stopping.update(early_stopping.init(), z, y + 3), r"labels must be integers in \[0, 3\)"),
    (lambda z, y: early_stopping.update(early_stopping.init(), z, y[:-1]), "labels must have shape"),
    (lambda z, y: early_stopping.update(early_stopping.init(), z, y, weights=0 * y), "weights are all zero"),
    (lambda z, y: early_stopping.update(early_stopping.init(), [z, z], y), r"the state, \(\), got \(2,\)"),
    (lambda z, y: early_stopping.update(early_stopping.init({"w": 0.0}), z, y), "a pytree as init has it"),
    (
        lambda z, y: early_stopping.update(early_stopping.init(), z, y, {"w": 0.0}),
        "a pytree as init has it",
    ),
    (
        lambda z, y: early_stopping.update_value(
            early_stopping.init({"w": [jnp.zeros(2), jnp.zeros(1)]}), 0.5, {"w": [jnp.zeros(2), jnp.zeros(3)]}
        ),
        r"params\['w'\]\[1\] has shape \(3,\), init had \(1,\)",
    ),
    (
        lambda z, y: _then(z, y, z[:-1], y[:-1]),
        r"validation logits had n = 60 rows and k = 3 classes before, got shape \(59, 3\)",
    ),
    (lambda z, y: _then(z, y, z[:, :2], y % 2), r"n = 60 rows and k = 3 classes before, got shape \(60, 2\)"),
    (
        lambda z, y: early_stopping.update(early_stopping.init(), z[0], y[0]),
        r"logits of shape \(..., n, k\), got \(3,\)",
    ),
]


def _then(z, labels, more, other_labels):
    state = early_stopping.update(early_stopping.init(), z, labels)
    early_stopping.update(state, more, other_labels)


@pytest.mark.parametrize("call, message", BAD)
def test_bad_arguments(call, message):
    z, labels = _epochs()
    with pytest.raises(ValueError, match=message):
        call(z[0], labels)
    with pytest.raises(TypeError, match="value must be floating point"):
        early_stopping.update_value(early_stopping.init(), 1)
    for value in (10, 0.5, np.float32(3)):
        with pytest.raises(
            TypeError, match=r"params must be a pytree of arrays or None, got .*; patience is a keyword"
        ):
            early_stopping.init(value)
    with pytest.raises(TypeError, match=r"metric must be a function metric\(logits, .*, got 'risk'"):
        early_stopping.update(early_stopping.init(), z[0], labels, metric="risk")


def test_sizes_of_states_of_vmap_and_of_compiled_loops():
    """They are remembered there too, for the eager update that comes next."""
    z, labels = _epochs((4,))
    step = lambda state, logits: (early_stopping.update(state, logits, labels), None)  # noqa: E731
    start = early_stopping.init(patience=2, batch_shape=(4,))
    scanned = jax.jit(lambda z: jax.lax.scan(step, start, z)[0])(z)
    mapped = jax.vmap(lambda logits: early_stopping.update(early_stopping.init(patience=2), logits, labels))(z[0])
    for state in (scanned, mapped):
        same = early_stopping.update(state, z[0], labels)
        assert same.best_value.shape == (4,) and same.sizes.shape == state.sizes.shape
        with pytest.raises(ValueError, match=r"n = 60 rows and k = 3 classes before, got shape \(4, 50, 3\)"):
            early_stopping.update(state, z[0][:, :50], labels[:50])
