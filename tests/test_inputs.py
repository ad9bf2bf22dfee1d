"""From probabilities, scores and classes to logits, and from logits to binary events."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal

DTYPES = ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64
EVENTS = {
    "top_label": jaxcal.top_label,
    "class_wise": jaxcal.class_wise,
    "binary_event": lambda logits, labels, **kwargs: jaxcal.binary_event(logits, labels, 1, **kwargs),
}
events = pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())


def _with(array, index, value):
    """A NumPy copy with one place changed (in JAX each `.at[]` compiles)."""
    copy = np.array(array)
    copy[index] = value
    return copy


def _softmax(logits):
    z = np.asarray(logits, np.float64)
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _slopes(fn, x, step=1e-6):
    """Central differences of a scalar function of an array, element by element."""
    x = np.asarray(x, np.float64)
    unit = np.eye(x.size).reshape(x.size, *x.shape) * step
    return np.array([(fn(x + d) - fn(x - d)) / (2 * step) for d in unit]).reshape(x.shape)


# --- probabilities and scores to logits ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_from_probs_takes_logs_in_the_dtype_of_the_caller(dtype):
    p = jnp.array([[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]], dtype)
    logits = jaxcal.logits_from_probs(p)
    assert logits.dtype == p.dtype
    with np.errstate(divide="ignore"):
        expected = np.log(np.asarray(p, np.float64))
    np.testing.assert_allclose(np.asarray(logits, np.float64), expected, rtol=2 * float(jnp.finfo(dtype).eps))
    np.testing.assert_array_equal(jax.jit(jaxcal.logits_from_probs)(p), logits)


def test_rows_may_miss_one_by_float32_rounding_also_in_float64(x64):
    p = np.random.default_rng(0).dirichlet(np.ones(7), 500).astype(np.float32).astype(np.float64)
    assert np.abs(p.sum(-1) - 1).max() > 1e-9
    assert not np.isnan(jaxcal.logits_from_probs(p)).any()
    if x64:
        with pytest.raises(ValueError, match=r"sum to 1 within 1e-12; row \d+ sums to"):
            jaxcal.logits_from_probs(p, atol=1e-12)


BAD_ROWS = [
    pytest.param([0.5, 0.4, 0.0], r"row 1 sums to 0\.(9|89999998) \(pass atol", id="sum"),
    pytest.param([1.2, -0.2, 0.0], r"in \[0, 1\]; row 1 is \[1\.2", id="range"),
    pytest.param([np.nan, 0.5, 0.5], r"row 1 is \[nan", id="nan"),
    pytest.param([np.inf, 0.0, 0.0], r"row 1 is \[inf", id="inf"),
]


@pytest.mark.parametrize("row, message", BAD_ROWS)
def test_rows_that_are_no_probabilities(row, message):
    p = np.array([[0.25, 0.75, 0.0], row])
    with pytest.raises(ValueError, match=message):
        jaxcal.logits_from_probs(p)
    np.testing.assert_array_equal(np.isnan(jax.jit(jaxcal.logits_from_probs)(p)), [[False] * 3, [True] * 3])
    lanes = jaxcal.logits_from_probs(np.stack([p, p[:1].repeat(2, 0)]))
    np.testing.assert_array_equal(np.isnan(lanes).any((-1, -2)), [True, False])


def test_atol_allows_what_it_says_and_floor_clips_what_it_says():
    p = jnp.array([0.5, 0.4, 0.05])
    np.testing.assert_array_equal(jaxcal.logits_from_probs(p, atol=0.06), jnp.log(p))
    clipped = np.exp(jaxcal.logits_from_probs(jnp.array([1.0, 0.0, 0.0]), floor=0.1))
    np.testing.assert_allclose(clipped, np.array([1, 0.1, 0.1]) / 1.2, rtol=1e-6)
    for bad in ({"floor": 0.0}, {"floor": 1 / 3}, {"atol": -1.0}, {"atol": np.nan}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            jaxcal.logits_from_probs(p, **bad)


def test_gradient_of_logits_from_probs_is_zero_at_zero():
    slope = jax.grad(lambda p: jnp.sum(jnp.where(p > 0, jaxcal.logits_from_probs(p), 0)))
    np.testing.assert_array_equal(slope(jnp.array([0.25, 0.75, 0.0])), jnp.array([4, 1 / 0.75, 0]))


def test_binary_logits_hold_the_score_and_its_infinities():
    s = jnp.array([-jnp.inf, -2.0, 0.0, 3.0, jnp.inf])
    logits = jaxcal.binary_logits(s)
    np.testing.assert_array_equal(logits, [[0, -np.inf], [0, -2], [0, 0], [0, 3], [-np.inf, 0]])
    np.testing.assert_allclose(_softmax(logits)[:, 1], 1 / (1 + np.exp(-np.asarray(s, np.float64))), rtol=1e-15)
    np.testing.assert_array_equal(jax.grad(lambda s: jaxcal.binary_logits(s)[..., 1].sum())(s), [1, 1, 1, 1, 0])
    assert jaxcal.binary_logits(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_binary_logits_of_nan():
    s = np.array([1.0, np.nan])
    with pytest.raises(ValueError, match="must not be NaN, got nan in row 1"):
        jaxcal.binary_logits(s)
    expected = [[False, False], [True, True]]
    np.testing.assert_array_equal(np.isnan(jax.jit(jaxcal.binary_logits)(s)), expected)
    np.testing.assert_array_equal(np.isnan(jaxcal.binary_logits(np.stack([s, np.ones(2)]))[0]), expected)


def test_log_odds(eps, x64):
    p = np.array([0.0, 1e-30, 0.25, 0.5, 0.9, 1.0], f"f{8 if x64 else 4}")
    q = p.astype(np.float64)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(jaxcal.log_odds(p), np.log(q) - np.log1p(-q), rtol=2 * eps)
    inside = p[1:-1]
    slopes = jax.grad(lambda p: jaxcal.log_odds(p).sum())(inside)
    np.testing.assert_allclose(slopes, 1 / (q * (1 - q))[1:-1], rtol=4 * eps)
    assert jaxcal.log_odds(jnp.array([0.5], jnp.float16)).dtype == jnp.float16
    bad = np.array([0.5, 1.5])
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got 1.5 in row 1"):
        jaxcal.log_odds(bad)
    np.testing.assert_array_equal(np.isnan(jax.vmap(jaxcal.log_odds)(np.stack([bad, p[2:4]]))), [[0, 1], [0, 0]])


def test_a_probability_survives_the_way_through_logits(d10, eps):
    p, _ = d10
    probabilities = jnp.exp(jaxcal.log_loss(jaxcal.binary_logits(jaxcal.log_odds(p)), jnp.ones(10, int)) * -1)
    np.testing.assert_allclose(probabilities, p, rtol=4 * eps)


# --- logits to binary events ---


def test_events_of_three_classes(m8, eps):
    logits, labels = m8
    p, y = _softmax(logits), np.asarray(labels)
    confidence, correct = jaxcal.top_label(logits, labels)
    np.testing.assert_allclose(confidence, p.max(-1), rtol=4 * eps)
    np.testing.assert_array_equal(correct, p.argmax(-1) == y)
    forecasts, outcomes = jaxcal.class_wise(logits, labels)
    np.testing.assert_allclose(forecasts, p.T, rtol=8 * eps)
    np.testing.assert_array_equal(outcomes, y == np.arange(3)[:, None])
    for c in range(3):
        forecast, outcome = jaxcal.binary_event(logits, labels, c)
        np.testing.assert_array_equal(forecast, forecasts[c])
        np.testing.assert_array_equal(outcome, outcomes[c])


@events
@pytest.mark.parametrize("dtype", DTYPES)
def test_events_keep_the_dtype_and_compute_in_float32(event, dtype, m8):
    logits = m8[0].astype(dtype)
    p, y = event(logits, m8[1])
    assert p.dtype == logits.dtype and y.dtype == bool
    work = logits.astype(jnp.promote_types(dtype, "float32"))
    np.testing.assert_array_equal(p, event(work, m8[1])[0].astype(dtype))


@events
def test_events_broadcast_batch_axes(event, m8):
    logits, labels = map(np.asarray, m8)
    stack, classes = np.stack([logits, 2 * logits])[:, None], np.stack([labels, labels[::-1], 2 - labels])
    p, y = event(stack, classes)
    for i in range(2):
        for j in range(3):
            one_p, one_y = event(stack[i, 0], classes[j])
            np.testing.assert_array_equal(p[..., i, j, :], one_p)
            np.testing.assert_array_equal(y[..., i, j, :], one_y)
    assert event(logits, classes)[0].shape == y[..., 0, :, :].shape
    mapped = jax.vmap(jax.jit(event), in_axes=(None, 0))(logits, classes)
    np.testing.assert_array_equal(np.moveaxis(mapped[1], 0, -2), y[..., 0, :, :])


@events
def test_gradients_of_events(event, m8, x64):
    logits, labels = m8
    mix = np.sin(1 + np.arange(8.0))
    fn = jax.jit(lambda z: jnp.sum(mix * event(z, labels)[0]))
    slopes = jax.grad(fn)(logits)
    assert np.isfinite(slopes).all() and (np.asarray(slopes) != 0).any()
    if x64:
        np.testing.assert_allclose(slopes, _slopes(fn, logits), atol=1e-9)


@events
def test_absent_rows_are_not_checked_and_leave_no_trace(event, m8):
    logits, labels = m8
    weights = _with(np.ones(8), [1, 4], 0)
    broken = _with(_with(logits, 1, np.nan), (4, 0), np.inf)

    def value(z, y):
        p, hit = event(z, y, weights=weights)
        return jnp.sum(jnp.where(weights > 0, p * jnp.where(hit, 2.0, 1.0), 0))

    event(broken, _with(labels, 1, -1), weights=weights)  # does not raise
    evaluate = jax.jit(jax.value_and_grad(value))
    clean, dirty = evaluate(logits, labels), evaluate(broken, _with(labels, 1, -1))
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(a, b)


BAD_EVENTS = [
    pytest.param(lambda z, y: (_with(z, (2, 1), np.nan), y), "logits must not be NaN; row 2", id="nan"),
    pytest.param(lambda z, y: (_with(z, (2, 1), np.inf), y), r"must not be \+inf.* row 2", id="inf"),
    pytest.param(lambda z, y: (_with(z, 2, -np.inf), y), "-inf for every class; row 2", id="masked"),
    pytest.param(lambda z, y: (z, _with(y, 2, 3)), r"in \[0, 3\).* row 2 has label 3", id="label 3"),
    pytest.param(lambda z, y: (z, _with(y, 2, -1)), r"in \[0, 3\).* row 2 has label -1", id="label -1"),
]


@events
@pytest.mark.parametrize("spoil, message", BAD_EVENTS)
def test_bad_rows_raise_eagerly_and_are_nan_under_transformations(event, spoil, message, m8):
    logits, labels = spoil(*m8)
    with pytest.raises(ValueError, match=message):
        event(logits, labels)
    p, hit = jax.jit(event)(logits, labels)
    np.testing.assert_array_equal(np.isnan(p).any(tuple(range(p.ndim - 1))), np.arange(8) == 2)
    assert not hit[..., 2].any()
    p, _ = event(np.stack([logits, m8[0]]), np.stack([labels, m8[1]]))
    np.testing.assert_array_equal(p[..., 1, :], event(*m8)[0])


def test_ties_go_to_the_lowest_class_and_near_ties_to_the_larger_logit():
    logits = np.array([[1.0, 1.0, 0.0], [0.0, 1e-9, -5.0]])  # the second row has equal log-probabilities in float32
    labels = np.array([0, 1])
    assert jaxcal.top_label(logits, labels)[1].tolist() == [True, True]
    assert float(jaxcal.accuracy(logits, labels)) == 1


@pytest.mark.parametrize("positive", [-1, 3])
def test_positive_must_be_a_class(positive, m8):
    with pytest.raises(ValueError, match=r"\[0, 3\)"):
        jaxcal.binary_event(*m8, positive)


# --- what is a logit, what is a label ---


@pytest.mark.parametrize("kind", [list, tuple, np.int64, np.uint8, np.int8, np.uint64, jnp.uint32])
def test_every_integer_type_is_a_label(kind, m8):
    labels = kind(m8[1].tolist()) if kind in (list, tuple) else jnp.asarray(np.array(m8[1]).astype(kind))
    np.testing.assert_array_equal(jaxcal.top_label(m8[0], labels)[1], jaxcal.top_label(*m8)[1])


@pytest.mark.parametrize("wide", [2**32 + 1, -(2**32) + 1, 2**63 + 1])
def test_wide_labels_do_not_wrap_round_to_a_class(wide, m8, x64):
    labels = np.array(m8[1]).astype(np.uint64 if wide > 2**62 else np.int64)
    labels[3] = wide
    end = f"{2**31 - 1} or more" if wide > 0 else f"{-(2**31)} or less"
    shown = wide if x64 else end  # what lies beyond int32 is not known any more
    with pytest.raises(ValueError, match=rf"labels must be integers in \[0, 3\).* row 3 has label {shown} "):
        jaxcal.top_label(m8[0], labels)
    with pytest.raises(ValueError, match=r"labels must be integers in \[0, 3\)"):
        jaxcal.log_loss(m8[0][0], labels[3])


STATIC = [
    pytest.param((8, 3), np.zeros(8), TypeError, "labels must be integers", id="float labels"),
    pytest.param((8, 3), np.zeros(8, bool), TypeError, "labels must be integers", id="bool labels"),
    pytest.param((8, 3), ["a"] * 8, TypeError, "labels must be an array of numbers", id="names"),
    pytest.param((8, 3), np.zeros((8, 3), int), ValueError, "one_hot.argmax", id="one-hot"),
    pytest.param((8, 3), np.zeros(7, int), ValueError, r"labels must have shape \(..., n\).*got \(7,\)", id="n"),
    pytest.param((2, 8, 3), np.zeros((3, 8), int), ValueError, "leading axes of labels", id="batch"),
    pytest.param((8, 1), np.zeros(8, int), ValueError, "jaxcal.binary_logits", id="one class"),
    pytest.param((0, 3), np.zeros(0, int), ValueError, "not be empty", id="empty"),
]


@pytest.mark.parametrize("shape, labels, error, message", STATIC)
def test_static_facts_raise_everywhere(shape, labels, error, message):
    for call in (jaxcal.top_label, jaxcal.risk, jaxcal.accuracy, jaxcal.log_loss):
        with pytest.raises(error, match=message):
            call(np.zeros(shape), labels)
        with pytest.raises(error, match=message):
            jax.jit(lambda z, call=call: call(z, labels))(np.zeros(shape))


@pytest.mark.parametrize("logits", [np.zeros((8, 3), int), np.zeros((8, 3), complex), [["a", "b"]], None])
def test_logits_must_be_floating(logits):
    with pytest.raises(TypeError, match="logits must be"):
        jaxcal.top_label(logits, np.zeros(8, int))


# --- tensors of other libraries ---


class _Tensor:
    """What DLPack asks of a tensor, around an array of NumPy."""

    def __init__(self, array, error=None):
        self.array, self.dtype, self.shape, self.error = array, f"other.{array.dtype}", array.shape, error

    def __dlpack__(self, **options):
        if self.error is not None:
            raise self.error
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


def test_tensors_come_in_by_dlpack():
    z = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    y = np.arange(50) % 3
    expected = jaxcal.fit_temperature(z, y)
    fit = jaxcal.fit_temperature(_Tensor(z), _Tensor(y))
    assert fit.temperature == expected.temperature and fit.risk == expected.risk
    np.testing.assert_array_equal(fit(_Tensor(z)), expected(z))
    wide = _Tensor(z.astype(np.float64) + 1e9)  # float64 is centred before it is rounded, whoever holds it
    np.testing.assert_allclose(jaxcal.risk(wide, y), jaxcal.risk(z, y), rtol=1e-5)
    half = _Tensor(z.astype(np.float16))
    assert jaxcal.fit_temperature(half, y)(half).dtype == np.float16
    with pytest.raises(TypeError, match="logits: Can't export tensors that require gradient"):
        jaxcal.risk(_Tensor(z, BufferError("Can't export tensors that require gradient")), y)


def test_pytorch():
    torch = pytest.importorskip("torch", reason="needs torch")
    z, y = torch.randn(50, 3), torch.arange(50) % 3
    expected = jaxcal.fit_temperature(z.numpy(), y.numpy())
    assert jaxcal.fit_temperature(z, y).temperature == expected.temperature
    with pytest.raises(TypeError, match="detach"):
        jaxcal.risk(z.requires_grad_(), y)
