"""What holds for every multi-class calibrator and any data, however degenerate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcal
from jaxcal import Status

FITS = {
    "temperature": jaxcal.fit_temperature,
    "temperature, Brier": functools.partial(jaxcal.fit_temperature, loss=jaxcal.brier_loss),
    "ensemble temperature": jaxcal.fit_ensemble_temperature,
    "vector": jaxcal.fit_vector_scaling,
    "matrix": jaxcal.fit_matrix_scaling,
    "dirichlet": jaxcal.fit_dirichlet,
    "structured matrix": jaxcal.fit_structured_matrix,
    "structured vector": jaxcal.fit_structured_vector,
    "Platt": jaxcal.one_vs_rest(jaxcal.fit_platt),
    "beta": jaxcal.one_vs_rest(jaxcal.fit_beta),
    "isotonic": jaxcal.one_vs_rest(jaxcal.fit_isotonic),
    "histogram": jaxcal.one_vs_rest(jaxcal.fit_histogram),
}
N, K = 8, 3  # one shape, two lanes: the data and the same with the classes permuted
ORDER = np.array([2, 0, 1])
values = st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 30.0, -200.0, 1e-3, 1e4])
data = st.tuples(
    st.lists(values, min_size=N * K, max_size=N * K),
    st.lists(st.integers(0, K - 1), min_size=N, max_size=N),
    st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0]), min_size=N, max_size=N).filter(any),
)


@functools.cache
def _compiled(name):
    @jax.jit
    def run(logits, labels, weights):
        fit = FITS[name](logits, labels, weights=weights)
        return fit(logits), fit.status

    return run


@pytest.mark.once
@pytest.mark.parametrize("name", FITS)
def test_any_data(name, eps):
    @settings(derandomize=True, max_examples=25, deadline=None, database=None)
    @given(data)
    def check(drawn):
        z, y, w = (np.array(a) for a in drawn)
        z = z.reshape(N, K)
        logits = jnp.asarray(np.stack([z, z[:, ORDER]]))
        found, status = _compiled(name)(logits, jnp.asarray([y, np.argsort(ORDER)[y]]), jnp.asarray([w, w]))
        found, status = np.asarray(found, np.float64), [Status(int(s)) for s in status]
        for rows, s in zip(found, status, strict=True):
            assert s != Status.INVALID_INPUT
            assert np.isnan(rows).all() if s >= Status.NOT_CONVERGED else not np.isnan(rows).any(), s
            if s < Status.NOT_CONVERGED:
                np.testing.assert_allclose(np.log(np.exp(rows).sum(-1)), 0, atol=4 * eps)
        if "temperature" in name:  # the predicted class stays one of the largest probability
            np.testing.assert_array_equal(found[0][np.arange(N), z.argmax(-1)], found[0].max(-1))
        if status[0] == status[1] == Status.CONVERGED:
            # an objective that is exact to eps leaves the root of it to a flat optimum
            np.testing.assert_allclose(np.exp(found[1]), np.exp(found[0][:, ORDER]), atol=64 * eps**0.5)

    check()
