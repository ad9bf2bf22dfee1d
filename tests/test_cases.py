"""Small inputs on which existing software goes wrong (tests/data/cases.json says what was seen and why)."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status

CASES = {
    case["id"]: case
    for case in json.loads((pathlib.Path(__file__).parent / "data" / "cases.json").read_text())["cases"]
}


def _case(name):
    """The inputs as arrays, the expected value and its tolerance."""
    case = CASES[name]
    inputs = {key: np.array(value) if isinstance(value, list) else value for key, value in case["inputs"].items()}
    return inputs, case["expected"], case["tol"]


@pytest.mark.parametrize("dtype", ["float32"] + ["float64"] * jax.config.jax_enable_x64)
@pytest.mark.parametrize("name", ["C01", "C02", "X01", "X18"])
def test_binary_ece(name, dtype):
    inputs, expected, tolerance = _case(name)
    p, weights = jnp.asarray(inputs["p"], dtype), inputs.get("w")
    for ece in (jaxcal.ece, jax.jit(jaxcal.ece, static_argnames="num_bins")):
        value = ece(p, inputs["y"], num_bins=inputs["n_bins"], weights=weights)
        assert value.dtype == p.dtype
        np.testing.assert_allclose(value, expected, atol=tolerance)
    if weights is not None:
        repeats = weights.astype(int)
        repeated = jaxcal.ece(p.repeat(repeats), inputs["y"].repeat(repeats), num_bins=inputs["n_bins"])
        np.testing.assert_allclose(repeated, expected, atol=tolerance)


def test_c01_a_saturated_sigmoid_is_in_the_last_bin():
    p = jax.nn.sigmoid(jnp.array([0.92, 17.5], jnp.float32)).at[0].set(0.92)
    assert p[1] == 1
    np.testing.assert_allclose(jaxcal.ece(p, np.array([1, 0]), num_bins=10), 0.46, atol=1e-6)


def test_c03_logits_in_the_unit_interval_are_logits():
    inputs, expected, tolerance = _case("C03")
    scores, outcomes = inputs["logit_batches"].reshape(-1), inputs["y_batches"].reshape(-1)
    event = jaxcal.binary_event(jaxcal.binary_logits(scores), outcomes, 1)
    np.testing.assert_allclose(jaxcal.ece(*event, num_bins=inputs["n_bins"]), expected, atol=tolerance)
    batches = [
        jaxcal.binary_event(jaxcal.binary_logits(z), y, 1)
        for z, y in zip(inputs["logit_batches"], inputs["y_batches"], strict=True)
    ]
    joined = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    np.testing.assert_allclose(jaxcal.ece(*joined, num_bins=inputs["n_bins"]), expected, atol=tolerance)


def test_c04_the_inverse_temperature_is_not_negative():
    inputs, expected, tolerance = _case("C04")
    fit = jaxcal.fit_temperature(jaxcal.binary_logits(inputs["z"]), inputs["y"])
    calibrated = jnp.exp(fit(jaxcal.binary_logits(np.array([inputs["query"]]))))[0, 1]
    np.testing.assert_allclose(calibrated, expected, atol=tolerance)
    assert fit.status == Status.AT_LOWER_BOUND and fit.inverse_temperature == 0 and fit.temperature == np.inf
    np.testing.assert_allclose(fit.risk, np.log(2), rtol=1e-6)


def test_c07_nan_is_not_a_probability():
    inputs, expected, _ = _case("C07")
    assert expected == "error"
    call = lambda p: jaxcal.ece(p, inputs["y"], num_bins=inputs["n_bins"])  # noqa: E731
    with pytest.raises(ValueError, match=r"ece: probabilities must be in \[0, 1\], got nan in row 1"):
        call(inputs["p"])
    value, slope = jax.jit(jax.value_and_grad(call))(inputs["p"])
    assert np.isnan(value) and np.isnan(slope).any()
    assert np.isnan(jax.vmap(call)(inputs["p"][None])).all()


@pytest.mark.parametrize("label", [-1, 4])
def test_c08_a_label_out_of_range_is_an_error(label):
    inputs, expected, _ = _case("C08")
    assert expected == "error" and inputs["y"].tolist() == [-1]
    logits, labels = inputs["logits"], np.array([label])
    for call in (jaxcal.log_loss, jaxcal.risk, jaxcal.fit_temperature, jaxcal.decompose, jaxcal.accuracy):
        with pytest.raises(ValueError, match=rf"labels must be integers in \[0, 4\).*row 0 has label {label}"):
            call(logits, labels)
    assert np.isnan(jax.jit(jaxcal.log_loss)(logits, labels)).all()
    assert np.isnan(jax.jit(jaxcal.risk)(logits, labels))
    slopes = jax.jit(jax.grad(jaxcal.risk))(logits.repeat(2, 0), np.array([label, 0]))
    assert np.isnan(slopes[1]).all()  # a step must not go on with the rows that are left
    assert jax.jit(jaxcal.fit_temperature)(logits, labels).status == Status.INVALID_INPUT


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64)
def test_c10_the_log_loss_of_an_impossible_event_is_infinite(dtype):
    inputs, expected, _ = _case("C10")
    p = jnp.asarray(inputs["p"], dtype)
    assert expected == np.inf
    for logits in (
        jaxcal.binary_logits(jaxcal.log_odds(p)),
        jaxcal.logits_from_probs(jnp.stack([1 - p, p], -1)),
    ):
        assert jaxcal.risk(logits, inputs["y"]) == expected
        assert jaxcal.log_loss(logits, inputs["y"])[0] == expected


def test_x03_class_one_and_top_label_are_two_estimands():
    inputs, expected, tolerance = _case("X03")
    logits = jaxcal.binary_logits(jaxcal.log_odds(inputs["p"]))
    values = [
        jaxcal.ece(*jaxcal.binary_event(logits, inputs["y"], 1), num_bins=inputs["n_bins"]),
        jaxcal.ece(*jaxcal.top_label(logits, inputs["y"]), num_bins=inputs["n_bins"]),
    ]
    np.testing.assert_allclose(values, expected, atol=tolerance)


def test_x04_the_temperature_of_equal_scores_has_a_closed_form():
    inputs, expected, tolerance = _case("X04")
    fit = jaxcal.fit_temperature(jaxcal.binary_logits(inputs["z"]), inputs["y"])
    np.testing.assert_allclose([fit.inverse_temperature, fit.risk], expected, atol=tolerance)


def test_x06_a_masked_class_does_not_poison_the_derivative_in_the_temperature():
    inputs, expected, tolerance = _case("X06")
    logits, label, beta = inputs["logits"], inputs["y"], inputs["beta"]
    zero = jnp.zeros(())

    def loss(beta):
        return -jaxcal.TemperatureFit(beta, zero, zero.astype(int), zero.astype(int), zero)(logits)[label]

    np.testing.assert_allclose(jax.grad(loss)(beta), expected, atol=tolerance)
    # written by hand the product beta * logits is the caller's: forward mode is exact there too
    by_hand = jax.jvp(lambda b: jaxcal.log_loss(b * logits, label), (beta,), (1.0,))[1]
    np.testing.assert_allclose(by_hand, expected, atol=tolerance)


def test_x08_equal_scores_are_one_point_of_the_isotonic_fit():
    inputs, expected, tolerance = _case("X08")
    curve = jaxcal.corp_reliability_curve(inputs["x"] / 2, inputs["y"])  # increasing in x, so that the fit is the same
    np.testing.assert_array_equal(curve.confidence[:3], inputs["query"] / 2)
    np.testing.assert_allclose(curve.frequency[:3], expected, atol=tolerance)


@pytest.mark.parametrize("name", ["X12", "X13"])
def test_the_debiased_squared_error_is_signed(name):
    inputs, expected, tolerance = _case(name)
    value = jaxcal.debiased_ece(inputs["p"], inputs["y"], num_bins=inputs["n_bins"])
    np.testing.assert_allclose(value, expected, atol=tolerance)


def test_x21_labels_of_plus_and_minus_one_are_refused():
    inputs, _, _ = _case("X21")
    logits = jaxcal.binary_logits(jaxcal.log_odds(inputs["p"]))
    with pytest.raises(ValueError, match=r"labels must be integers in \[0, 2\).*row 0 has label -1"):
        jaxcal.risk(logits, inputs["y"], loss=jaxcal.half_brier_loss)
    with pytest.raises(ValueError, match="outcomes must be 0 or 1, got -1.0 in row 0"):
        jaxcal.ece(inputs["p"], inputs["y"])
    mapped = jaxcal.risk(logits, (inputs["y"] + 1) // 2, loss=jaxcal.half_brier_loss)
    np.testing.assert_allclose(mapped, CASES["X21"]["expected"], atol=1e-7)
