"""`theory` against mpmath: values over the whole box, derivatives of first and second order.

data/make_theory_reference.py says where the numbers come from. Largest errors measured: values 5e-14 relative, over
the box and its corners. Derivatives above 1e-3 of |f / x| or |f / (x x')|, relative to themselves: 3e-13 (first) and
3e-11 (second) for logistic regression, 4e-14 and 1e-11 for ridge regression and LDA. The others are small because
large terms cancel; relative to |f / x| or |f / (x x')| the error of every derivative is below 2e-14 and 2e-13.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import theory

pytestmark = pytest.mark.once

DATA = Path(__file__).parent / "data"
# Second derivatives run for 0.1 s and compile for many: this halves the compilation.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def _load(name):
    return json.loads((DATA / name).read_text())


def _floats(points, key):
    return np.array([p[key] for p in points]).astype(np.float64)


def test_sweep():
    data = _load("theory_sweep.json")
    lam, ratio, error, alpha, beta = _floats(data["points"], "inputs").T
    spectrum = theory.BetaSpectrum(alpha, beta, data["shift"])
    separation = theory.separation(error, spectrum)
    np.testing.assert_allclose(separation, _floats(data["points"], "separation"), rtol=1e-14)
    solution = theory.solve_logistic(lam, ratio, separation, spectrum)
    assert np.all(np.asarray(solution.status) == 0)
    values = _floats(data["points"], "values")
    for column, name in enumerate(data["outputs"]):
        np.testing.assert_allclose(getattr(solution, name), values[:, column], rtol=1e-11, err_msg=name)


def _fields(solver, data):
    """The outputs, stacked, as a function of the five inputs of one point."""

    def fields(x):
        lam, ratio, error, alpha, beta = x
        spectrum = theory.BetaSpectrum(alpha, beta, data["shift"])
        solution = solver(lam, ratio, theory.separation(error, spectrum), spectrum)
        return jnp.stack([getattr(solution, name) for name in data["outputs"]])

    return fields


def _up_to_second(fields):
    """First derivatives by forward mode and second ones; values and first derivatives by reverse mode. All in one."""

    def reverse(x):
        value, pull = jax.vjp(fields, x)
        (jacobian,) = jax.vmap(pull)(jnp.eye(len(value)))
        return (value, jacobian), (value, jacobian)

    return jax.jacfwd(reverse, has_aux=True)


def _run(function, x):
    with jax.enable_x64(True):
        lowered = jax.jit(jax.vmap(function)).lower(x)
        try:
            compiled = lowered.compile(QUICK_TO_COMPILE)
        except jax.errors.JaxRuntimeError:  # a jaxlib without these options
            compiled = lowered.compile()
        return jax.tree.map(np.asarray, compiled(x))


def _reference(data, model):
    """Inputs, values, and first and second derivatives (points, outputs, ...), each with its natural size."""
    points = [p for p in data["points"] if p["model"] == model]
    x, value = _floats(points, "inputs"), _floats(points, "values")
    rows, columns = np.array([[data["inputs"].index(name) for name in pair] for pair in data["pairs"]]).T
    first, second = (_floats(points, key).swapaxes(1, 2) for key in ("first", "second"))
    size = np.abs(value)[..., None]
    return x, value, (first, size / x[:, None]), (second, size / (x[:, rows] * x[:, columns])[:, None]), (rows, columns)


def _compare(got, expected, size, relative, of_size):
    """Error relative to the derivative where no cancellation makes it small, and to its natural size everywhere."""
    error = np.abs(got - expected)
    plain = np.abs(expected) > 1e-3 * size
    assert np.mean(plain) > 0.5
    assert np.max(error[plain] / np.abs(expected[plain])) < relative
    assert np.max(error / size) < of_size


@pytest.mark.parametrize("model", ["logistic", "ridge"])
def test_derivatives(model):
    data = _load("theory_derivatives.json")
    x, value, first, second, (rows, columns) = _reference(data, model)
    function = _up_to_second(_fields(getattr(theory, f"solve_{model}"), data))
    (forward, hessian), (got, reverse) = _run(function, x)
    np.testing.assert_allclose(got, value, rtol=1e-12)
    _compare(forward, *first, relative=1e-11, of_size=1e-12)
    _compare(reverse, *first, relative=1e-11, of_size=1e-12)
    _compare(hessian[..., rows, columns], *second, relative=1e-9, of_size=1e-11)
    _compare(hessian[..., columns, rows], *second, relative=1e-9, of_size=1e-11)


def test_derivatives_of_lda():
    # first ones only: ridge regression is a multiple of LDA
    data = _load("theory_derivatives.json")
    x, value, first, _, _ = _reference(data, "lda")
    fields = _fields(theory.solve_lda, data)
    forward, got = _run(jax.jacfwd(lambda x: (fields(x),) * 2, has_aux=True), x)
    np.testing.assert_allclose(got, value, rtol=1e-12)
    _compare(forward, *first, relative=1e-11, of_size=1e-12)
