"""The numerical building blocks against mpmath, NumPy and brute force."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special

from jaxcal.solvers import (
    argsort,
    bracketed_root,
    class_features,
    log_normalizer,
    log_softmax,
    row_sums,
    scaled,
    segment_totals,
    total,
)

FLOATS = ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64


# --- bracketed root ---

# decreasing functions on [0, 100] with one root: f, f', root, first guess
ROOTS = {
    "linear": (lambda x: 3 - x, lambda x: -1 + 0 * x, 3.0),
    "exponential": (lambda x: jnp.exp(-x) - 1e-3, lambda x: -jnp.exp(-x), np.log(1e3)),
    "flat cubic": (lambda x: (2 - x) ** 3, lambda x: -3 * (2 - x) ** 2, 2.0),
    "steep": (lambda x: jnp.tanh(50 * (7 - x)), lambda x: -50 / jnp.cosh(jnp.clip(50 * (7 - x), -40, 40)) ** 2, 7.0),
    "step": (lambda x: jnp.where(x < 11.3, 1.0, -1.0) - 1e-3 * x, lambda x: -1e-3 + 0 * x, 11.3),
    "wrong slope": (lambda x: 60 - x, lambda x: -1e-4 + 0 * x, 60.0),
}
GUESSES = np.array([0.0, 0.5, 2.5, 40.0, 100.0])


def _solve(fn, slope, guess, max_steps=400, accept=None, active=None):
    @jax.jit
    def solve(guess, active):
        return bracketed_root(
            lambda x: (fn(x), (2 * x, x > 1)),
            guess,
            jnp.minimum(slope(guess), -1e-6),
            0.0,
            100.0,
            accept=accept or (lambda value, step, aux: jnp.zeros(value.shape, bool)),
            active=active,
            max_steps=max_steps,
        )

    return jax.tree.map(np.asarray, solve(guess, np.ones(len(guess), bool) if active is None else active))


@pytest.mark.parametrize("fn, slope, expected", ROOTS.values(), ids=ROOTS.keys())
def test_roots_from_every_side(fn, slope, expected, eps):
    root = _solve(fn, slope, GUESSES)
    assert root.converged.all() and not root.at_lower.any()
    assert (root.num_steps <= 5 * np.log2(100 / eps)).all()  # bisection alone takes a fifth of it
    np.testing.assert_allclose(root.x, expected, rtol=16 * eps)
    np.testing.assert_array_equal(root.value, jax.jit(fn)(root.x))
    np.testing.assert_array_equal(root.aux[0], 2 * root.x)
    np.testing.assert_array_equal(root.aux[1], root.x > 1)


def test_a_linear_function_takes_two_evaluations_and_lanes_do_not_wait_for_each_other():
    root = _solve(lambda x: 3 - x, lambda x: -1 + 0 * x, np.array([1.0, 2.0, 3.0]))
    assert root.num_steps.tolist() == [2, 2, 1]


def test_the_lower_end_is_found_when_the_function_is_negative_there():
    root = _solve(lambda x: -1 - x, lambda x: -1 + 0 * x, np.array([0.5, 50.0]))
    np.testing.assert_array_equal(root.x, 0)
    assert root.at_lower.all() and root.converged.all()
    beyond = _solve(lambda x: 1 + 0 * x, lambda x: -1 + 0 * x, np.array([0.5, 50.0]))
    np.testing.assert_array_equal(beyond.x, 100)
    assert not beyond.at_lower.any()


def test_steps_lanes_and_values_that_are_no_numbers():
    fn, slope, _ = ROOTS["exponential"]
    short = _solve(fn, slope, GUESSES, max_steps=2)
    assert not short.converged.any() and (short.num_steps == 2).all()
    guessed = np.exp(-GUESSES) - 1e-3
    assert (np.abs(short.value) <= np.abs(guessed) * (1 + 1e-5)).all()  # never worse than the guess
    active = np.array([True, False, True, False, True])
    some = _solve(fn, slope, GUESSES, active=active)
    np.testing.assert_array_equal(some.x[~active], GUESSES[~active].astype(some.x.dtype))
    np.testing.assert_array_equal(some.converged, active)
    np.testing.assert_array_equal(some.num_steps > 0, active)
    broken = _solve(lambda x: jnp.where(x < 3, jnp.nan, 5 - x), lambda x: -1 + 0 * x, np.array([1.0, 4.0]))
    assert broken.converged.tolist() == [False, True] and broken.x[1] == 5


def test_accept_ends_a_lane():
    fn, slope, expected = ROOTS["exponential"]
    loose = _solve(fn, slope, GUESSES, accept=lambda value, step, aux: jnp.abs(value) < 1e-5)
    tight = _solve(fn, slope, GUESSES)
    assert loose.converged.all() and (loose.num_steps <= tight.num_steps).all()
    assert loose.num_steps.sum() < tight.num_steps.sum()
    np.testing.assert_allclose(loose.x, expected, atol=0.011)


# --- softmax ---


_log_softmax, _log_normalizer, _total = jax.jit(log_softmax), jax.jit(log_normalizer), jax.jit(total)
_segment_totals = jax.jit(segment_totals, static_argnums=2)


def _exact_log_softmax(row):
    with mpmath.workdps(60):
        z = [mpmath.mpf(float(x)) for x in row]
        norm = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in z))
        return [float(x - norm) for x in z]


ROWS = {
    "ordinary": [0.3, -1.2, 2.0, 0.1],
    "confident": [30.0, 0.0, -1.0, 2.0],
    "certain": [90.0, 0.0, 0.0, 0.0],
    "two at the top": [5.0, 5.0, -20.0, 4.0],
    "all equal": [0.7, 0.7, 0.7, 0.7],
    "offset": [1000.0, 1001.0, 999.0, 996.0],
    "masked": [0.5, -np.inf, 1.5, -np.inf],
    "one left": [-np.inf, -3.0, -np.inf, -np.inf],
    "close": [1.0, 1.0 + 2.0**-20, 1.0 - 2.0**-21, 0.0],
}


@pytest.mark.parametrize("many", [1, 10], ids=["few classes", "many classes"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_log_softmax_to_rounding(row, many, eps):
    row = row + [row[-1]] * (4 * (many - 1))  # above a few classes the sums are written differently
    expected = np.array(_exact_log_softmax(row))
    z = np.array(row)
    tiny = 1e-37 if eps > 1e-10 else 0  # float32 flushes smaller numbers to 0
    np.testing.assert_allclose(_log_softmax(z), expected, rtol=4 * eps, atol=tiny)
    normalizer = _log_normalizer((z - z.max()).astype(_log_softmax(z).dtype))
    np.testing.assert_allclose(normalizer, -expected[int(np.argmax(row))], rtol=4 * eps, atol=tiny)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_no_logits_are_nan(bad):
    rows = np.array([[0.0, bad, 1.0], [-np.inf] * 3, [0.0, 1.0, 2.0]])
    np.testing.assert_array_equal(np.isnan(_log_softmax(rows)), [[True] * 3, [True] * 3, [False] * 3])


@pytest.mark.parametrize("k", [3, 40])
@pytest.mark.parametrize("peak", [-1, 0, 1])
def test_log_normalizer_of_a_peak_that_was_rounded_otherwise(k, peak, eps):
    # compiled together with what made the logits, the row maximum may differ by an ulp from the entry that it was
    gaps = np.full((5, k), -2.5)
    gaps[:, 1] = peak * eps * np.arange(5)
    # off by the gap itself, which is rounding
    np.testing.assert_allclose(
        _log_normalizer(jnp.asarray(gaps)), special.logsumexp(gaps, axis=1), atol=8 * eps, rtol=0
    )


def test_derivatives_of_log_softmax(x64, eps):
    z = np.array([[0.3, -1.2, 2.0], [40.0, 0.0, 1.0], [0.5, 0.5, -3.0]])
    z = z.astype(np.float64 if x64 else np.float32)
    p = np.exp(np.array([_exact_log_softmax(row) for row in z]))

    @jax.jit
    @jax.vmap
    def derivatives(z):
        return jax.jacrev(log_softmax)(z), jax.jacfwd(log_softmax)(z), jax.hessian(lambda z: log_softmax(z)[0])(z)

    reverse, forward, hessian = derivatives(z)
    np.testing.assert_allclose(reverse, np.eye(3) - p[:, None, :], atol=2 * eps)
    np.testing.assert_allclose(forward, np.eye(3) - p[:, None, :], atol=2 * eps)
    exact = p[:, :, None] * p[:, None, :] - p[:, :, None] * np.eye(3)
    np.testing.assert_allclose(hessian, exact, atol=4 * eps)
    z[2, 1] = -np.inf
    for jacobian in derivatives(z)[:2]:
        assert np.isfinite(jacobian).all()
        np.testing.assert_array_equal(np.asarray(jacobian)[2, [0, 2], 1], 0)


@pytest.mark.parametrize("k", [3, 40])
def test_row_sums(k, eps):
    a, b = np.random.default_rng(0).random((2, 5, k))
    first, second = jax.jit(lambda a, b: row_sums(lambda: (a, b), (5, k), lambda: b))(a, b)
    np.testing.assert_allclose(first, a.sum(-1), rtol=8 * eps)
    np.testing.assert_allclose(second, b.sum(-1), rtol=8 * eps)


def test_scaled_keeps_masks_at_zero_and_has_their_derivative():
    z = jnp.array([[1.0, -jnp.inf, 3.0], [1e30, 0.0, 1e30]])
    np.testing.assert_array_equal(scaled(z, jnp.zeros(2)), [[0, -np.inf, 0], [0, 0, 0]])
    np.testing.assert_array_equal(scaled(z[0], jnp.array(0.5)), [-1, -np.inf, 0])
    slope = jax.grad(lambda u: log_softmax(scaled(z[0], u))[2])(1.0)
    np.testing.assert_allclose(slope, 2 / (1 + np.exp(2.0)), rtol=1e-6)


# --- sorting ---


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_argsort_is_stable_over_the_last_axis_with_nan_last(dtype):
    values = np.random.default_rng(0).integers(-3, 3, (4, 5, 33)).astype(np.float64)
    if dtype != "int32":
        values[0, 0, ::7] = np.nan
        values[1, :, 3] = -np.inf
    values = jnp.asarray(values, dtype)
    wide = np.asarray(values).astype(np.float64)
    expected = np.argsort(wide, axis=-1, kind="stable")
    order = jax.jit(argsort)(values)
    assert order.dtype == jnp.int32
    np.testing.assert_array_equal(order, expected)
    if dtype == "float32":
        np.testing.assert_array_equal(argsort(values), expected)
        np.testing.assert_array_equal(jax.vmap(argsort)(values), expected)


_SORT_IN_A_LOOP = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jaxcal.solvers import argsort
x = np.random.default_rng(0).normal(size=(600, 3200)).astype(np.float32)
found = jax.jit(lambda x: jax.lax.map(lambda c: argsort(c * x), jnp.array([1.0, -1.0])))(x)
print(bool((np.take_along_axis(-x, np.asarray(found[1]), 1) == np.sort(-x)).all()))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be confined to one core here")
def test_argsort_in_a_loop_ends_on_a_single_core():
    # a callback that gives its argument back to the device waits for the only thread, which waits for it
    done = subprocess.run([sys.executable, "-c", _SORT_IN_A_LOOP], capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n", done.stderr


def test_argsort_is_constant_for_derivatives():
    x = np.array([0.3, -1.0, 2.0, 0.0])
    slope = jax.jit(jax.grad(lambda x: jnp.sum(jnp.arange(4.0) * jnp.take_along_axis(x, argsort(x), -1))))(x)
    np.testing.assert_array_equal(slope, [2, 0, 3, 1])
    assert argsort(jnp.zeros((3, 0))).shape == (3, 0)


# --- sums ---


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_total_is_the_sum(n, eps):
    values = np.random.default_rng(n).standard_normal((2, 3, n))
    np.testing.assert_allclose(_total(values), values.sum(-1), atol=4 * eps * np.abs(values).sum(-1).max())
    counts = np.arange(n, dtype=np.int32)
    assert _total(counts).dtype == np.int32 and int(_total(counts)) == counts.sum()


def test_long_float32_sums_keep_their_digits():
    values = np.full(1 << 21, np.float32(0.1))
    exact = float(values[0]) * len(values)
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(_total(values), exact, rtol=4 * eps)
    sums = _segment_totals(values, np.arange(len(values), dtype=np.int32) % 2, 2)
    np.testing.assert_allclose(sums, exact / 2, rtol=32 * eps)


@pytest.mark.parametrize("n", [1, 64, 300])
def test_segment_totals(n, eps):
    rng = np.random.default_rng(n)
    values, segment = rng.standard_normal((2, 3, n)), rng.integers(-1, 6, (3, n))
    expected = [[[v[s == j].sum() for j in range(5)] for v, s in zip(lane, segment, strict=True)] for lane in values]
    sums = _segment_totals(values, segment, 5)  # segments -1 and 5 are dropped
    np.testing.assert_allclose(sums, expected, atol=32 * eps)
    counts = _segment_totals(np.ones(n, np.int32), segment, 5)
    assert counts.dtype == jnp.int32
    np.testing.assert_array_equal(counts, [np.bincount(s[(s >= 0) & (s < 5)], minlength=5) for s in segment])


def test_derivative_of_segment_totals_and_nan_in_one_segment():
    segment = np.array([0, 1, 0, 2, 7])
    values = np.array([1.0, np.nan, 2.0, 3.0, np.nan])
    np.testing.assert_array_equal(_segment_totals(values, segment, 3), [3, np.nan, 3])
    slope = jax.jit(jax.grad(lambda v: segment_totals(v, segment, 3) @ np.array([1.0, 2.0, 3.0])))(values)
    np.testing.assert_array_equal(slope, [1, 2, 1, 3, 0])


# --- over classes ---


@pytest.mark.parametrize("form", [class_features._class_by_class, class_features._at_once])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_sums_and_maxima_over_the_classes_in_the_form_of_each_device(form, k):
    x = np.random.default_rng(k).integers(-9, 9, (k, 50)).astype(np.float32)
    seen = x > -8
    floor = jnp.arange(50.0)

    def terms(x, seen):
        return jnp.where(seen, x, 0), jnp.maximum(x, floor)

    for op, over in ((jnp.add, np.sum), (jnp.maximum, np.max)):
        first, second = jax.jit(lambda *arrays, op=op: form(op, terms, *arrays))(x, seen)
        np.testing.assert_array_equal(first, over(np.where(seen, x, 0), axis=0))
        np.testing.assert_array_equal(second, over(np.maximum(x, np.arange(50)), axis=0))
