"""Which epoch an early-stopping rule keeps, against the rule written as a training loop would run it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxcal
from jaxcal import early_stopping

EPOCHS = 9
VALUES = st.sampled_from([0.0, 0.125, 0.25, 0.375, 0.5, 1.0, -1.0, math.nan, math.inf])


def _online(curve, patience, min_delta):
    """One epoch after the other, in exact arithmetic (the values are binary fractions)."""
    best, chosen, without = None, -1, 0
    for epoch, value in enumerate(curve):
        if math.isfinite(value) and (best is None or value < best - min_delta):
            best, chosen, without = value, epoch, 0
        elif best is not None:
            without += 1
        if patience is not None and without == patience:
            break
    return chosen


@settings(deadline=None, max_examples=200)
@given(
    curve=st.lists(VALUES, min_size=EPOCHS, max_size=EPOCHS),
    patience=st.sampled_from([None, 1, 2, 3, EPOCHS]),
    min_delta=st.sampled_from([0.0, 0.125, 0.25]),
)
@example([math.nan] * 3 + [0.5, 0.25] + [1.0] * 4, 2, 0.0)  # patience runs from the first finite value
@example([0.5, 0.375, 0.25, 0.125] + [0.0] * 5, 2, 0.25)  # slow progress adds up: compared with the last improvement
@example([math.inf] * EPOCHS, 1, 0.0)
def test_it_is_the_online_rule(curve, patience, min_delta):
    chosen = jaxcal.select_epoch(np.array(curve), patience=patience, min_delta=min_delta)
    assert chosen.dtype == jnp.int32
    assert int(chosen) == _online(curve, patience, min_delta)


def test_with_the_defaults_it_is_the_first_minimum():
    curves = np.random.default_rng(0).integers(0, 6, (50, EPOCHS)) / 4
    np.testing.assert_array_equal(jaxcal.select_epoch(curves), curves.argmin(-1))


@pytest.mark.parametrize("patience", [None, 2])
def test_leading_axes_jit_and_vmap(patience):
    curves = np.random.default_rng(1).integers(0, 6, (3, 4, EPOCHS)) / 4
    select = lambda curve: jaxcal.select_epoch(curve, patience=patience, min_delta=0.25)  # noqa: E731
    expected = [[_online(curve, patience, 0.25) for curve in row] for row in curves]
    np.testing.assert_array_equal(select(curves), expected)
    np.testing.assert_array_equal(jax.jit(select)(curves), expected)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(select))(curves), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_half_precision_differences_are_taken_in_float32(dtype):
    curve = jnp.asarray([1.0, 0.75], dtype)
    assert int(jaxcal.select_epoch(curve, min_delta=0.25)) == 0
    assert int(jaxcal.select_epoch(curve, min_delta=0.25 - 2.0**-20)) == 1  # .25 in half precision


def test_min_delta_may_be_traced_and_one_shape_is_one_trace(monkeypatch):
    curve = np.array([1.0, 0.75, 0.5, 0.5, 0.375])
    deltas = np.array([0.0, 0.25, 0.375])
    chosen = jax.vmap(lambda d: jaxcal.select_epoch(curve, min_delta=d))(deltas)
    assert chosen.tolist() == [4, 2, 2] and chosen.tolist() == [_online(curve, None, d) for d in deltas]

    traces, scan = [], early_stopping.lax.scan
    monkeypatch.setattr(early_stopping.lax, "scan", lambda *args: traces.append(1) or scan(*args))
    for i in range(3):
        jaxcal.select_epoch(np.full(17, float(i)), patience=5, min_delta=0.1 * i)
    assert len(traces) == 1


BAD = [
    pytest.param({"curve": [1, 2]}, TypeError, "curve must be floating point", id="integers"),
    pytest.param({"curve": 1.0}, ValueError, r"curve must have shape \(\.\.\., epochs\)", id="scalar"),
    pytest.param({"curve": np.zeros((2, 0))}, ValueError, "at least one epoch", id="empty"),
    pytest.param({"patience": 0}, ValueError, "patience must be an integer >= 1 or None, got 0", id="patience 0"),
    pytest.param({"patience": 2.5}, ValueError, "patience must be an integer >= 1 or None", id="patience 2.5"),
    pytest.param({"patience": True}, ValueError, "patience must be an integer >= 1 or None", id="patience True"),
    pytest.param({"min_delta": -0.1}, ValueError, "min_delta must be finite and >= 0, got -0.1", id="negative"),
    pytest.param({"min_delta": math.nan}, ValueError, "min_delta must be finite and >= 0, got nan", id="nan"),
    pytest.param({"min_delta": math.inf}, ValueError, "min_delta must be finite and >= 0, got inf", id="inf"),
]


@pytest.mark.parametrize("arguments, error, message", BAD)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        jaxcal.select_epoch(**{"curve": [0.5, 0.25], **arguments})
