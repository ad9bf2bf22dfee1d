"""The calibrators by their names, and what a method needs of its scores."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from jaxcal.calibrators import (
    TemperatureFit,
    fit_bbq,
    fit_beta,
    fit_dirichlet,
    fit_ensemble_temperature,
    fit_histogram,
    fit_isotonic,
    fit_matrix_scaling,
    fit_platt,
    fit_quadratic,
    fit_structured_matrix,
    fit_structured_vector,
    fit_temperature,
    fit_vector_scaling,
    fit_venn_abers,
    laplace,
    one_vs_rest,
)
from jaxcal.losses import ProperLoss, brier_loss, log_loss, risk, spherical_loss
from jaxcal.status import Status


def fit_nothing(logits, labels, *, weights=None) -> TemperatureFit:
    """The forecasts as they are, T = 1."""
    found = risk(logits, labels, weights=weights)
    zero = jnp.zeros((), jnp.int32)
    return TemperatureFit(jnp.ones_like(found), found, zero + Status.CONVERGED, zero, jnp.full_like(found, jnp.nan))


METHODS: dict[str, Callable] = {
    "bbq": fit_bbq,
    "beta": fit_beta,
    "dirichlet": fit_dirichlet,
    "ensemble_temperature": fit_ensemble_temperature,
    "histogram": fit_histogram,
    "isotonic": fit_isotonic,
    "matrix": fit_matrix_scaling,
    "none": fit_nothing,
    "platt": fit_platt,
    "quadratic": fit_quadratic,
    "sigmoid": fit_platt,  # scikit-learn's name
    "structured_matrix": fit_structured_matrix,
    "structured_vector": fit_structured_vector,
    "temperature": fit_temperature,
    "vector": fit_vector_scaling,
    "venn_abers": fit_venn_abers,
}

# Their parameters are not touched by the classes that a row leaves out; others would take "no score" for a low one.
_TAKE_MASKS = {"ensemble_temperature", "none", "temperature", "vector"}

_LOSSES = {loss.name: loss for loss in (log_loss, brier_loss, spherical_loss)}


def calibrator_of(method, loss=None, smooth: bool = False) -> Callable:
    """The multi-class calibrator `(logits, labels, *, weights)` that a name or a calibrator stands for."""
    if callable(method):
        calibrator = method
    elif isinstance(method, str) and method in METHODS:
        calibrator = METHODS[method]
    else:
        raise ValueError(f"method must be one of {sorted(METHODS)} or a calibrator of jaxcal, got {method!r}")
    if loss is not None:
        if method != "temperature":
            raise ValueError(f"loss is an option of method='temperature', got method={method!r}")
        calibrator = partial(calibrator, loss=loss_of(loss))
    if _is_binary(calibrator):
        calibrator = one_vs_rest(calibrator)
    return laplace(calibrator) if smooth else calibrator


def takes_masks(method) -> bool:
    """Whether rows in which some classes have no score are of use to a method."""
    return isinstance(method, str) and method in _TAKE_MASKS


def loss_of(loss) -> ProperLoss:
    """A loss by its name. One that went through `sklearn.clone` is a copy, equal to the original but not the same."""
    if isinstance(loss, str) and loss in _LOSSES:
        return _LOSSES[loss]
    if isinstance(loss, ProperLoss):
        return next((known for known in _LOSSES.values() if known == loss), loss)
    raise ValueError(f"loss must be one of {sorted(_LOSSES)} or a proper loss of jaxcal, got {loss!r}")


def _is_binary(calibrator) -> bool:
    while isinstance(calibrator, partial):
        calibrator = calibrator.func
    return getattr(calibrator, "is_binary", False)
