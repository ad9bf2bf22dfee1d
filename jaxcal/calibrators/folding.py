"""Calibration at no cost: scalings of the logits folded into the last linear layer."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcal import checks
from jaxcal.calibrators.matrix_scaling import MatrixScalingFit
from jaxcal.calibrators.temperature import TemperatureFit
from jaxcal.calibrators.vector_scaling import VectorScalingFit
from jaxcal.status import Status

_product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)  # accelerators would round float32 to 10 bits


def fold_temperature(fit: TemperatureFit, weight, bias, *, class_axis: int) -> tuple[jax.Array, jax.Array | None]:
    """Last linear layer whose logits are already divided by the temperature: (weight / T, bias / T).

    Args:
        fit: `TemperatureFit`; a stack of fits folds into a stack of layers.
        weight: `(..., features, classes)` or `(..., classes, features)`.
        bias: `(..., classes)` or None.
        class_axis: axis of the classes in the weight of one layer, never guessed from the shape: -1 for a kernel
            (features, classes) as in Flax, 0 for (classes, features) as in Equinox and PyTorch.

    Returns:
        `(weight, bias)` in their dtypes, the batch shape of the fit broadcast against their leading axes; no bias stays
        None. NaN for failed fits; an eager call raises `ValueError` if no fit is usable.

    Exact to rounding. For T = inf all logits are 0. Differentiable.

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> h, weight = jnp.array([[3.0], [1.0], [-0.5]]), jnp.array([[1.0, -1.0]])
        >>> fit = jaxcal.fit_temperature(h @ weight, jnp.array([0, 0, 0]))
        >>> folded, bias = jaxcal.fold_temperature(fit, weight, None, class_axis=-1)
        >>> bool(jnp.allclose(h @ folded, h @ weight / fit.temperature)), bias
        (True, None)

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
    """
    if not isinstance(fit, TemperatureFit):
        raise TypeError(f"fold_temperature needs a TemperatureFit, got {type(fit).__name__}")
    weight, bias, _ = _layer(weight, bias, class_axis)
    u = _usable(fit, jnp.asarray(fit.inverse_temperature), 0)
    return _scaled(u[..., None, None], weight), None if bias is None else _scaled(u[..., None], bias)


def fold_affine(
    fit: VectorScalingFit | MatrixScalingFit, weight, bias, *, class_axis: int
) -> tuple[jax.Array, jax.Array]:
    """Last linear layer whose logits are already calibrated by an affine map of the logits.

    z' = scale * z + b, or z' = matrix z + b:  weight' = scale * weight or matrix weight,  bias' = map(bias) + b

    Args:
        fit: `VectorScalingFit` or `MatrixScalingFit`; a stack of fits folds into a stack of layers. Maps of
            log-probabilities (Dirichlet calibration, structured scaling) are no linear layer.
        weight: `(..., features, classes)` or `(..., classes, features)`.
        bias: `(..., classes)`; None counts as 0.
        class_axis: axis of the classes in the weight of one layer, never guessed from the shape: -1 for a kernel
            (features, classes) as in Flax, 0 for (classes, features) as in Equinox and PyTorch.

    Returns:
        `(weight, bias)` in the dtype of the weight, the batch shape of the fit broadcast against their leading axes.
        NaN for failed fits; an eager call raises `ValueError` if no fit is usable.

    Exact to rounding. Differentiable. Cost O(features k), with a matrix O(features k^2).

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import jaxcal
        >>> h, weight = jnp.array([[3.0], [1.0], [-0.5], [-2.0]]), jnp.array([[1.0, -1.0]])
        >>> fit = jaxcal.fit_vector_scaling(h @ weight, jnp.array([0, 1, 0, 1]))
        >>> folded, bias = jaxcal.fold_affine(fit, weight, None, class_axis=-1)
        >>> bool(jnp.allclose(jax.nn.softmax(h @ folded + bias), jnp.exp(fit(h @ weight)), atol=1e-5))
        True

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
    """
    if isinstance(fit, TemperatureFit):
        raise TypeError("a temperature is folded by jaxcal.fold_temperature")
    if not isinstance(fit, VectorScalingFit | MatrixScalingFit):
        raise TypeError(f"fold_affine needs an affine map of the logits; {type(fit).__name__} is not one")
    vector = isinstance(fit, VectorScalingFit)
    weight, bias, axis = _layer(weight, bias, class_axis)
    k = weight.shape[axis]
    slope = _usable(fit, jnp.asarray(fit.scale if vector else fit.matrix), 1 if vector else 2)
    shift = _usable(fit, jnp.asarray(fit.bias), 1)
    if shift.shape[-1] != k or slope.shape[-1] != k:
        raise ValueError(f"a fit of {shift.shape[-1]} classes does not fold into a layer of {k} classes")
    bias = jnp.zeros(k, weight.dtype) if bias is None else bias
    if vector:
        folded = _scaled(jnp.expand_dims(slope, -2 if axis == -1 else -1), weight)
        moved = _work(slope) * _work(bias)
    else:
        across = jnp.swapaxes(slope, -1, -2)
        folded = _product(_work(weight), _work(across)) if axis == -1 else _product(_work(slope), _work(weight))
        moved = _product(_work(bias)[..., None, :], _work(across))[..., 0, :]
    return folded.astype(weight.dtype), (moved + _work(shift)).astype(weight.dtype)


def _layer(weight, bias, class_axis):
    """The arrays of a layer and the axis of its classes, counted from the end."""
    weight = checks.as_floats(weight, "weight")
    if weight.ndim < 2:
        raise ValueError(f"weight must have two axes, features and classes, got {weight.shape}")
    if class_axis not in (-1, 0, 1, -2) or isinstance(class_axis, bool):
        raise ValueError(
            f"class_axis must be -1 for (features, classes) or 0 for (classes, features), got {class_axis!r}"
        )
    axis = -1 if class_axis in (-1, 1) else -2
    if bias is not None:
        bias = checks.as_floats(bias, "bias")
        if bias.ndim == 0 or bias.shape[-1] != weight.shape[axis]:
            raise ValueError(
                f"bias must have shape (..., classes), but weight {weight.shape} has {weight.shape[axis]} classes on "
                f"axis {class_axis} of a layer and bias {bias.shape}"
            )
    return weight, bias, axis


def _usable(fit, values, ndim):
    """NaN in failed lanes; `ndim` axes of the values are not of the batch."""
    failed = jnp.asarray(getattr(fit, "status", Status.CONVERGED)) >= Status.NOT_CONVERGED
    if not checks.is_traced(failed):
        checks.raise_if_unusable(failed, lambda: f"{type(fit).__name__} has failed, so there is nothing to fold")
    return jnp.where(failed.reshape(failed.shape + (1,) * ndim), jnp.nan, values)


def _work(array):
    return array.astype(checks.compute_dtype(array))


def _scaled(factor, array):
    return (_work(factor) * _work(array)).astype(array.dtype)
