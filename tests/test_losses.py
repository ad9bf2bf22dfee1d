"""Proper losses: values, identities, derivatives, weights and bad input."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxcal
from jaxcal import brier_loss, half_brier_loss, log_loss, spherical_loss

LOSSES = [log_loss, brier_loss, half_brier_loss, spherical_loss]
losses = pytest.mark.parametrize("loss", LOSSES, ids=repr)
HALF = ["float16", "bfloat16"]


def _boosting(p):
    return 2 * jnp.sqrt(p[0] * p[1])


def _shannon(p):
    return -jnp.sum(jax.scipy.special.xlogy(p, p))


SAVAGE = {
    log_loss: jaxcal.proper_loss(_shannon),
    brier_loss: jaxcal.proper_loss(lambda p: 1 - jnp.sum(p**2)),
    half_brier_loss: jaxcal.proper_loss(lambda p: 0.5 - 0.5 * jnp.sum(p**2)),
    spherical_loss: jaxcal.proper_loss(lambda p: 1 - jnp.sqrt(jnp.sum(p**2))),
}


def _with(array, index, value):
    """A NumPy copy with one place changed."""
    copy = np.array(array)
    copy[index] = value
    return copy


def _slopes(fn, x, step=1e-5):
    """Central differences of a scalar function of an array, element by element."""
    x = np.asarray(x, np.float64)
    unit = np.eye(x.size).reshape(x.size, *x.shape) * step
    return np.array([(fn(x + d) - fn(x - d)) / (2 * step) for d in unit]).reshape(x.shape)


# --- values ---

# mpmath, 30 digits, for the forecast p = (.2, .5, .3) and the truth q = (.1, .6, .3): l(p, .), e(q), d(p, q)
P, Q = np.array([0.2, 0.5, 0.3]), np.array([0.1, 0.6, 0.3])
REFERENCE = {
    log_loss: ([1.6094379124341004, 0.6931471805599453, 1.203972804325936], 0.8979457248567798, 0.04007821602037824),
    brier_loss: ([0.98, 0.38, 0.78], 0.54, 0.02),
    half_brier_loss: ([0.49, 0.19, 0.39], 0.27, 0.01),
    spherical_loss: (
        [0.6755571577384749, 0.1888928943461873, 0.5133357366077124],
        0.3217670016874732,
        0.01312517167640041,
    ),
}


@pytest.mark.parametrize("savage", [False, True], ids=["closed form", "Savage"])
@losses
def test_values_of_three_classes(loss, savage, eps):
    values, entropy, divergence = REFERENCE[loss]
    loss = SAVAGE[loss] if savage else loss
    log_p, log_q = np.log(P), np.log(Q)
    np.testing.assert_allclose(loss(np.stack([log_p] * 3), np.arange(3)), values, rtol=8 * eps)
    np.testing.assert_allclose(loss.entropy(log_q), entropy, rtol=8 * eps)
    # the divergence is a difference of numbers of the size of the entropy
    np.testing.assert_allclose(loss.divergence(log_p, log_q), divergence, atol=8 * eps * (1 if savage else 0.5))
    np.testing.assert_allclose(Q @ np.array(values), entropy + divergence, rtol=1e-14)


# quadrature of the weight function against the closed form, p = .3, q = .6: l(p, 1), l(p, 0), e(q), d(p, q)
BINARY = {
    "log": (log_loss, 1.20397280432594, 0.356674943938732, 0.673011667009256, 0.192041993161798),
    "half Brier": (half_brier_loss, 0.49, 0.09, 0.24, 0.09),
    "boosting": (
        jaxcal.proper_loss(_boosting, name="boosting"),
        1.52752523165195,
        0.654653670707977,
        0.979795897113271,
        0.198580710161088,
    ),
    "spherical": (spherical_loss, 0.606080701420832, 0.0808549699819421, 0.278889744907202, 0.117100663938074),
}


@pytest.mark.parametrize("loss, one, zero, entropy, divergence", BINARY.values(), ids=BINARY.keys())
def test_values_of_two_classes(loss, one, zero, entropy, divergence, eps):
    logits = np.log([[0.7, 0.3], [0.4, 0.6]])
    np.testing.assert_allclose(loss(logits[[0, 0]], np.array([1, 0])), [one, zero], rtol=max(16 * eps, 1e-13))
    np.testing.assert_allclose(loss.entropy(logits[1]), entropy, rtol=max(16 * eps, 1e-13))
    np.testing.assert_allclose(loss.divergence(*logits), divergence, atol=max(16 * eps, 1e-13))


@losses
def test_expected_loss_is_entropy_plus_divergence_and_never_below_the_entropy(loss, eps):
    rng = np.random.default_rng(1)
    log_p, log_q = (np.log(rng.dirichlet(np.full(4, 0.3), 200)) for _ in range(2))
    per_class = loss(np.repeat(log_p[:, None], 4, 1), np.arange(4))
    expected = (np.exp(log_q) * np.asarray(per_class, np.float64)).sum(-1)
    entropy, divergence = loss.entropy(log_q), loss.divergence(log_p, log_q)
    scale = eps * (1 + np.abs(log_p).max())
    np.testing.assert_allclose(entropy + divergence, expected, atol=8 * scale)
    assert (np.asarray(divergence) > 0).all()
    np.testing.assert_allclose(loss.divergence(log_q, log_q), 0, atol=(4 * eps) ** 2)


CONFIDENT = {
    log_loss: lambda e: mpmath.log1p(2 * e),
    brier_loss: lambda e: (2 * e / (1 + 2 * e)) ** 2 + 2 * (e / (1 + 2 * e)) ** 2,
    half_brier_loss: lambda e: 3 * (e / (1 + 2 * e)) ** 2,
    spherical_loss: lambda e: 1 - 1 / mpmath.sqrt(1 + 2 * e * e),
}


@losses
@pytest.mark.parametrize("gap", [3.0, 12.0, 20.0])
def test_confident_rows_keep_their_digits(loss, gap, eps):
    with mpmath.workdps(40):
        expected = float(CONFIDENT[loss](mpmath.exp(-gap)))
    value = loss(np.array([gap + 1024, 1024, 1024]), 0)
    # exp(2 * gap) turns a rounding of the gap into 2 * gap roundings of the loss
    np.testing.assert_allclose(value, expected, rtol=4 * eps * (1 + gap))


@losses
def test_an_offset_of_a_row_changes_nothing(loss, m8):
    logits, labels = np.asarray(m8[0]).round(1) * 0.5, m8[1]
    logits = np.round(logits * 64) / 64  # exact after the shift
    np.testing.assert_array_equal(loss(logits, labels), loss(logits + 256.0 * np.arange(-4, 4)[:, None], labels))


@losses
def test_half_precision_is_computed_in_float32(loss, m8):
    logits = m8[0].astype(jnp.bfloat16)
    wide = np.asarray(logits).astype(np.float32)
    assert loss(logits, m8[1]).dtype == logits.dtype
    np.testing.assert_array_equal(loss(logits, m8[1]), np.asarray(loss(wide, m8[1])).astype(logits.dtype))
    risk = jaxcal.risk(logits, m8[1], loss=loss)
    assert risk.dtype == jnp.float32
    np.testing.assert_array_equal(risk, jaxcal.risk(wide, m8[1], loss=loss))
    assert loss.entropy(logits).dtype == loss.divergence(logits, logits).dtype == logits.dtype


# --- masked classes and impossible events ---


@pytest.mark.parametrize("dtype", [*HALF, "float32", "float64"])
def test_an_impossible_event_is_infinite_in_every_dtype(dtype):
    logits = jnp.asarray([[-jnp.inf, 0.0, 1.0], [0.0, 0.0, 0.0]], jax.dtypes.canonicalize_dtype(dtype))
    assert log_loss(logits, np.array([0, 1]))[0] == jnp.inf
    assert jaxcal.risk(logits, np.array([0, 1])) == jnp.inf
    assert jaxcal.risk(logits, np.array([0, 1]), weights=np.array([0, 1])) < 2
    for loss, cost in ((brier_loss, 2.0), (half_brier_loss, 1.0), (spherical_loss, 1.0)):
        assert loss(jnp.asarray([-jnp.inf, 0.0], logits.dtype), 0) == cost


@pytest.mark.parametrize("loss", [*LOSSES, SAVAGE[log_loss], SAVAGE[spherical_loss]])
def test_a_masked_class_is_no_class(loss, eps):
    logits, labels = np.array([[0.3, -np.inf, 1.0], [2.0, -np.inf, -1.0]]), np.array([2, 0])
    evaluate = jax.jit(jax.value_and_grad(lambda z, y: jaxcal.risk(z, y, loss=loss)))
    value, slope = evaluate(logits, labels)
    two_value, two_slope = evaluate(logits[:, [0, 2]], labels // 2)
    np.testing.assert_allclose(value, two_value, rtol=4 * eps)
    np.testing.assert_array_equal(np.asarray(slope)[:, 1], 0)
    np.testing.assert_allclose(np.asarray(slope)[:, [0, 2]], two_slope, atol=4 * eps)


def test_absent_classes_in_entropy_and_divergence(eps):
    log_p, log_q = np.array([np.log(0.5), np.log(0.5), -np.inf]), np.array([0.0, -np.inf, -np.inf])
    for loss in (*LOSSES, *SAVAGE.values()):
        assert float(loss.entropy(log_q)) == 0
        assert float(loss.divergence(log_q, log_q)) == 0
        evaluate = jax.jit(jax.grad(lambda q, loss=loss: loss.entropy(jax.nn.log_softmax(q))))
        np.testing.assert_allclose(evaluate(np.array([0.5, -np.inf, 0.5])), 0, atol=4 * eps)
    np.testing.assert_allclose(log_loss.divergence(log_p, log_q), np.log(2), rtol=1e-6)
    assert log_loss.divergence(log_q, log_p) == np.inf
    assert SAVAGE[log_loss].divergence(log_q, log_p) == np.inf


def test_infinite_slopes_at_the_boundary_give_infinite_losses():
    boosting = BINARY["boosting"][0]  # its gradient at (0, 1) is (inf, inf * 0)
    logits = np.array([[-np.inf, 0.0], [-np.inf, 0.0], [1.0, 0.0]])
    values = boosting(logits, np.array([0, 1, 1]))
    np.testing.assert_allclose(values, [np.inf, 0, np.exp(0.5)], rtol=1e-6)
    assert boosting.divergence(logits[0], logits[2] - np.logaddexp(1, 0)) == np.inf


@pytest.mark.parametrize("side", [0, 1])
@losses
def test_nan_reaches_entropy_and_divergence(loss, side):
    good, bad = np.log(P), _with(np.log(P), 1, np.nan)
    assert np.isnan(loss.entropy(bad)) and np.isnan(SAVAGE[loss].entropy(bad))
    pair = (bad, good) if side else (good, bad)
    assert np.isnan(loss.divergence(*pair)) and np.isnan(SAVAGE[loss].divergence(*pair))


def test_forecast_and_truth_must_have_the_same_classes():
    with pytest.raises(ValueError, match="number of classes"):
        log_loss.divergence(np.log(P), np.log(P[:2]))


# --- derivatives ---


@losses
def test_gradient_and_hessian(loss, m8, x64, eps):
    logits, labels = m8
    weights = np.arange(1.0, 9.0)
    risk = jax.jit(lambda z, w=weights: jaxcal.risk(z, labels, loss=loss, weights=w))
    slope = jax.jit(jax.grad(risk))
    if loss is log_loss:
        own = np.asarray(labels)[:, None] == np.arange(3)
        expected = weights[:, None] / weights.sum() * (np.asarray(jax.nn.softmax(logits), np.float64) - own)
        np.testing.assert_allclose(slope(logits), expected, atol=4 * eps)
    if x64:
        np.testing.assert_allclose(slope(logits), _slopes(risk, logits), atol=1e-10)
        along = np.sin(np.arange(24.0)).reshape(8, 3)
        curvature = jax.jit(lambda z: jax.jvp(jax.grad(risk), (z,), (along,))[1])(logits)
        steps = (slope(logits + 1e-5 * along) - slope(logits - 1e-5 * along)) / 2e-5
        np.testing.assert_allclose(curvature, steps, atol=1e-10)
        by_weight = jax.grad(lambda w: risk(logits, w))(weights)
        np.testing.assert_allclose(by_weight, _slopes(lambda w: risk(logits, w), weights), atol=1e-10)


# --- risk: weights, batch axes, compilation ---


@losses
def test_a_weight_is_a_repetition(loss, m8, eps):
    logits, labels = map(np.asarray, m8)
    counts = np.array([3, 0, 1, 2, 0, 1, 4, 1])
    repeated = jaxcal.risk(logits.repeat(counts, 0), labels.repeat(counts), loss=loss)
    np.testing.assert_allclose(jaxcal.risk(logits, labels, loss=loss, weights=counts), repeated, rtol=4 * eps)
    tiny = jaxcal.risk(logits, labels, loss=loss, weights=counts * 2.0**-100)
    np.testing.assert_allclose(tiny, repeated, rtol=4 * eps)


@pytest.mark.parametrize("loss", [*LOSSES, SAVAGE[log_loss]])
def test_a_row_of_weight_zero_leaves_no_trace(loss, m8):
    logits, labels = map(np.asarray, m8)
    weights = np.array([1.0, 0, 2, 3, 0, 0, 1, 1])
    broken = _with(_with(_with(logits, 1, np.nan), (4, 0), np.inf), 5, -np.inf)
    evaluate = jax.jit(jax.value_and_grad(lambda z, w, y: jaxcal.risk(z, y, loss=loss, weights=w), argnums=(0, 1)))
    value, (by_logits, by_weight) = evaluate(broken, weights, _with(labels, [1, 4], [-1, 7]))
    clean, (clean_by_logits, clean_by_weight) = evaluate(logits, weights, labels)
    assert value == clean
    eager = jaxcal.risk(broken, _with(labels, [1, 4], [-1, 7]), loss=loss, weights=weights)
    assert eager == jaxcal.risk(logits, labels, loss=loss, weights=weights)
    np.testing.assert_array_equal(by_logits, clean_by_logits)
    np.testing.assert_array_equal(by_logits[weights == 0], 0)
    np.testing.assert_array_equal(by_weight, clean_by_weight)
    np.testing.assert_array_equal(by_weight[weights == 0], 0)


def test_leading_axes_broadcast(m8, eps):
    logits, labels = map(np.asarray, m8)
    stack = np.stack([logits, 2 * logits])[:, None]  # (2, 1, 8, 3)
    classes = np.stack([labels, labels[::-1], 2 - labels])  # (3, 8)
    weights = np.random.default_rng(0).multinomial(8, np.ones(8) / 8, (2, 3)).astype(float)
    values = jaxcal.risk(stack, classes, weights=weights)
    assert values.shape == (2, 3)
    bootstrap = jaxcal.risk(logits, labels, weights=weights[0])
    assert bootstrap.shape == (3,)
    for i in range(2):
        for j in range(3):
            one = jaxcal.risk(stack[i, 0], classes[j], weights=weights[i, j])
            np.testing.assert_allclose(values[i, j], one, rtol=4 * eps)
    np.testing.assert_allclose(bootstrap[0], values[0, 0], rtol=4 * eps)
    mapped = jax.vmap(lambda w: jaxcal.risk(logits, labels, weights=w))(weights[0])
    np.testing.assert_allclose(mapped, bootstrap, rtol=4 * eps)
    assert log_loss(stack, classes).shape == (2, 3, 8)


def test_one_trace_a_shape(m8):
    traces = []

    def counted(p):
        traces.append(p)
        return 1 - jnp.sum(p**2)

    logits, labels = map(np.asarray, m8)
    for scale in (1.0, 2.0, 3.0):
        jaxcal.risk(scale * logits, labels, loss=jaxcal.proper_loss(counted), weights=np.full(8, scale))
        jaxcal.proper_loss(counted)(scale * logits, labels)
        if scale == 1:
            first = len(traces)
    assert first > 0 and len(traces) == first
    assert hash(jaxcal.proper_loss(counted)) == hash(jaxcal.proper_loss(counted))


def test_long_float32_means_keep_their_digits():
    n = 1 << 21  # a running sum of this many float32 loses four digits
    logits = np.tile(np.array([0.1, 0.0], np.float32), (n, 1))
    value = float(jaxcal.risk(logits, np.zeros(n, int)))
    np.testing.assert_allclose(value, np.log1p(np.exp(-np.float64(np.float32(0.1)))), rtol=4 * np.finfo("f").eps)


BAD_WEIGHTS = [(-1.0, r"weights must be finite and >= 0, got -1.0 in row 3"), (np.nan, "got nan"), (np.inf, "got inf")]


@pytest.mark.parametrize("weight, message", BAD_WEIGHTS)
@pytest.mark.parametrize("call", [jaxcal.risk, jaxcal.accuracy], ids=["risk", "accuracy"])
def test_bad_weights(call, weight, message, m8):
    good = np.ones(8)
    bad = _with(good, 3, weight)
    with pytest.raises(ValueError, match=message):
        call(*m8, weights=bad)
    lanes = call(*m8, weights=np.stack([bad, good]))
    assert np.isnan(lanes[0]) and lanes[1] == call(*m8, weights=np.stack([good, good]))[0]
    with pytest.raises(ValueError, match="weights are all zero"):
        call(*m8, weights=np.zeros(8))


def test_a_bad_label_makes_the_risk_and_its_gradient_nan(m8):
    logits, labels = m8[0], _with(m8[1], 2, 3)
    with pytest.raises(ValueError, match=r"risk: labels must be integers in \[0, 3\).* row 2 has label 3"):
        jaxcal.risk(logits, labels)
    for weights in (None, np.ones(8)):
        value, slope = jax.jit(jax.value_and_grad(jaxcal.risk))(logits, labels, weights=weights)
        assert np.isnan(value) and np.isnan(slope).any()
    values = log_loss(np.stack([logits, logits]), np.stack([labels, m8[1]]))
    np.testing.assert_array_equal(np.isnan(values), [np.arange(8) == 2, [False] * 8])


def test_static_facts_of_weights(m8):
    for weights, message in ((np.ones(7), r"weights must have shape.*\(7,\)"), (np.ones((3, 8)), "leading axes")):
        with pytest.raises(ValueError, match=message):
            jaxcal.risk(*m8 if weights.ndim == 1 else (m8[0], np.stack([m8[1]] * 2)), weights=weights)
    with pytest.raises(TypeError, match="weights must be real"):
        jaxcal.risk(*m8, weights=np.ones(8, complex))
    with pytest.raises(ValueError, match="for one example call the loss"):
        jaxcal.risk(m8[0][0], m8[1][0])
