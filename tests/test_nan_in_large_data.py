"""One NaN among thousands of numbers: a compiled maximum may forget it, and nothing that is public may."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import Status, streaming

K = 5


def _data(shape):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(*shape, K))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return logits.astype(np.float32), labels


def _streamed(z, y):
    return streaming.decompose(streaming.update(streaming.init(z, y), z, y)).refinement


FITS = {
    "temperature": jaxcal.fit_temperature,
    "vector": jaxcal.fit_vector_scaling,
    "matrix": jaxcal.fit_matrix_scaling,
    "dirichlet": jaxcal.fit_dirichlet,
    "structured vector": jaxcal.fit_structured_vector,
    "structured matrix": jaxcal.fit_structured_matrix,
    "ensemble temperature": jaxcal.fit_ensemble_temperature,
    "identity": jaxcal.fit_identity,
    "one against rest": jaxcal.one_vs_rest(jaxcal.fit_platt),
}

# one number, or one a class, of all rows
NUMBERS = {
    "risk": jaxcal.risk,
    "accuracy": jaxcal.accuracy,
    "confidence": lambda z, y: jnp.mean(jaxcal.top_label(z, y)[0], axis=-1),
    "largest confidence": lambda z, y: jnp.max(jnp.square(jaxcal.top_label(z, y)[0] - 2), axis=-1),
    "class-wise": lambda z, y: jnp.mean(jaxcal.class_wise(z, y)[0], axis=-1),
    "event": lambda z, y: jnp.mean(jaxcal.binary_event(z, y, 1)[0], axis=-1),
    "ECE": lambda z, y: jaxcal.ece(*jaxcal.top_label(z, y)),
    "refinement": lambda z, y: jaxcal.decompose(z, y, calibrator=jaxcal.fit_vector_scaling).refinement,
    "out of fold": lambda z, y: jaxcal.decompose(z, y, folds=3, key=jax.random.key(0)).refinement,
    "variational": lambda z, y: jaxcal.variational_calibration_error(z, y, key=jax.random.key(0)),
    "prior": lambda z, y: jaxcal.estimate_prior(z, np.full(K, 1 / K, np.float32)).new_prior,
    "streaming": _streamed,
}


@pytest.mark.parametrize("name", FITS)
def test_fits_are_invalid(name):
    z, y = _data((40, 60))
    z[7, 30, 3] = np.nan
    np.testing.assert_array_equal(FITS[name](z, y).status == Status.INVALID_INPUT, np.arange(40) == 7)
    z, y = _data((1000,))
    z[500, 2] = np.nan
    with pytest.raises(ValueError, match="NaN; row 500|got nan in row 500"):
        FITS[name](z, y)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_nan(name):
    of = jax.jit(NUMBERS[name])
    z, y = _data((1000,))
    assert np.isfinite(of(z, y)).all()
    for row in (0, 500, 999):
        spoilt = z.copy()
        spoilt[row, 2] = np.nan
        assert np.isnan(of(spoilt, y)).all()


def test_skce_is_nan():
    z, y = _data((1000,))
    z[500, 2] = np.nan
    assert np.isnan(jax.jit(jaxcal.skce_multiclass)(z, y))
