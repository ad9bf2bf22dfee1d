"""Risk = calibration + refinement: what post-hoc scaling will remove from a loss, and what it will not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators.one_vs_rest import reject_binary
from jaxcal.calibrators.temperature import TemperatureFit, aligned, fit_temperature, optimum, prepare, raise_if_failed
from jaxcal.cross_fit import fit_folds, out_of_fold
from jaxcal.losses import ProperLoss, hide_absent, log_loss, mean_loss, require_loss, rescaled
from jaxcal.solvers import segment_totals
from jaxcal.status import Status, check_status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decomposition:
    """The terms of a proper loss; every array has the batch shape, in the units of the loss (nats for the log loss).

    Attributes:
        risk: mean loss of the forecasts as they are; = calibration + refinement.
        calibration: what the calibrator removes, risk - refinement.
        refinement: mean loss after calibration; = uncertainty - sharpness.
        sharpness: what the calibrated forecasts gain on the class frequencies, uncertainty - refinement.
        uncertainty: entropy of the class frequencies, the loss of the best constant forecast.
        status: `jaxcal.Status` as int32.
        fit: the fitted calibrator (None with folds).
    """

    risk: jax.Array
    calibration: jax.Array
    refinement: jax.Array
    sharpness: jax.Array
    uncertainty: jax.Array
    status: jax.Array
    fit: Any

    def check(self) -> None:
        """Raise `ValueError` with a written message if a lane failed (status 4 to 6). For concrete results."""
        check_status(self.status)


def decompose(
    logits,
    labels,
    *,
    loss: ProperLoss = log_loss,
    calibrator: Callable | None = None,
    weights=None,
    folds: int | None = None,
    key=None,
) -> Decomposition:
    r"""Split the mean loss of forecasts into calibration and refinement error.

    refinement = min_g mean loss(g(z), y) over the maps g of the calibrator,   calibration = risk - refinement,
    uncertainty = entropy of the class frequencies,   sharpness = uncertainty - refinement

    All leading axes are decomposed in one call: the validation logits of 10 seeds and 300 epochs are
    `decompose(logits, labels)` with logits `(10, 300, n, k)` and labels `(n,)`.

    Args:
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        loss: any `jaxcal.ProperLoss`.
        calibrator: how to calibrate; default temperature scaling fitted to `loss`. Otherwise a function called as
            `calibrator(logits, labels, weights=weights)`, with batch axes in front, that returns a map from logits to
            log-probabilities: `jaxcal.laplace(jaxcal.fit_temperature)`, a `functools.partial`, your own.
        weights: counts `(..., n)`, non-negative.
        folds: None fits and evaluates on the same rows: the refinement is optimistic by about 1/(2n) a parameter. An
            integer K >= 2 takes the mean out-of-fold loss instead, over the same random split in every lane: nearly
            unbiased for a calibrator fitted on n (K-1)/K rows, and above the in-sample value.
        key: `jax.random` key of the split; required with folds. Folds are of rows, whatever their weights.

    Returns:
        `Decomposition` over the broadcast of the leading axes. risk = calibration + refinement and refinement =
        uncertainty - sharpness to rounding. Calibration is >= 0 in-sample for the default calibrator; it may be
        negative with folds, smoothing, or a calibrator fitted to another loss. Where only the risk is inf,
        calibration is inf; where both are, NaN. Failed lanes are NaN and flagged; an eager call raises `ValueError`
        if no lane is usable.

    The refinement estimates the loss no temperature can remove; it is consistent for the population refinement where
    the optimal map is in the calibrator's class. Differentiable in logits and weights, to second order, forward and
    reverse: by the envelope theorem for the default calibrator in-sample, through the implicit derivative of the fit
    otherwise. Cost: one log-loss pass more than the fit.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> z = 3.0 * jax.random.normal(jax.random.key(0), (4, 1000, 5))  # 4 epochs
        >>> y = jax.random.categorical(jax.random.key(1), z[2] / 3.0)
        >>> parts = jaxcal.decompose(z, y)
        >>> parts.refinement.shape, int(jaxcal.select_epoch(parts.refinement))
        ((4,), 2)

    References:
        Berta, Holzmueller, Jordan and Bach, arXiv 2501.19195, eq. 1, 2, 4 and Theorem 3.4. Brocker, "Reliability,
        sufficiency, and the decomposition of proper scores", QJRMS 2009.
    """
    require_loss(loss)
    logits, labels, weights = prepare(logits, labels, weights, "decompose")
    if folds is None and key is not None:
        raise ValueError("key is for the random split: pass folds=K with it, or leave it out")
    if calibrator is not None:
        reject_binary(calibrator)
    if folds is None and calibrator is None:
        result = _with_temperature(loss, logits, labels, weights)
    elif folds is None:
        fit = calibrator(logits, labels, weights=weights)  # any object: it does not enter the compiled part
        mapped = fit(hide_absent(logits, weights))  # a row of weight 0 may hold NaN, at which a fit would raise
        result = _with_map(loss, logits, labels, weights, mapped, getattr(fit, "status", None))
        result = replace(result, fit=fit)
    else:
        calibrator = partial(fit_temperature, loss=loss) if calibrator is None else calibrator
        split, fits = fit_folds(calibrator, logits, labels, weights, folds=folds, key=key, call="decompose")
        status = getattr(fits, "status", None)
        worst = None if status is None else jnp.max(status, axis=-1)
        result = _with_map(loss, logits, labels, weights, out_of_fold(split, fits, logits), worst)
    if not checks.is_traced(result):
        raise_if_failed(result.status, logits, labels, weights, "decompose")
    return result


@partial(jax.jit, static_argnums=0)
def _with_temperature(loss, logits, labels, weights):
    z, y, w = aligned(logits, labels, weights)
    fit = TemperatureFit(*optimum(loss, z, y, w))
    risk = jnp.broadcast_to(mean_loss(loss, z, y, w), fit.risk.shape)
    # T = 1 is among the temperatures, so rounding must not put the refinement above the risk
    at_one = jax.lax.stop_gradient(risk) + (
        fit.risk - jax.lax.stop_gradient(fit.risk)
    )  # with the derivative of the fit
    refinement = jnp.where(fit.risk > risk, at_one, fit.risk)
    return assemble(loss, z.shape[-1], y, w, risk, refinement, fit.status, fit)


@partial(jax.jit, static_argnums=0)
def _with_map(loss, logits, labels, weights, log_probabilities, status):
    z, y, w = aligned(logits, labels, weights)
    g, _, _ = aligned(log_probabilities, labels, weights)
    risk, refinement = jnp.broadcast_arrays(mean_loss(loss, z, y, w), mean_loss(loss, g.astype(z.dtype), y, w))
    status = jnp.full(risk.shape, Status.CONVERGED, jnp.int32) if status is None else status
    status = jnp.broadcast_to(jnp.asarray(status, jnp.int32), risk.shape)
    status = jnp.where(jnp.isnan(risk), Status.INVALID_INPUT, status)
    return assemble(loss, z.shape[-1], y, w, risk, refinement, status, None)


def assemble(loss, num_classes, labels, weights, risk, refinement, status, fit) -> Decomposition:
    """All terms from risk and refinement `(...)`: the uncertainty is the entropy of the weighted class frequencies."""
    frequencies = _class_frequencies(labels, weights, num_classes, risk.dtype)
    uncertainty = jnp.broadcast_to(loss._entropy(frequencies), risk.shape)
    invalid = status == Status.INVALID_INPUT
    risk, refinement, uncertainty = (jnp.where(invalid, jnp.nan, a) for a in (risk, refinement, uncertainty))
    return Decomposition(risk, risk - refinement, refinement, uncertainty - refinement, uncertainty, status, fit)


def _class_frequencies(labels, weights, num_classes, dtype):
    """log of the weighted class frequencies, `(..., k)`; absent classes are -inf with derivative 0."""
    if weights is None:
        counts = segment_totals(jnp.ones(labels.shape[-1:], jnp.int32), labels, num_classes).astype(dtype)
    else:
        counts = segment_totals(jnp.where(weights > 0, rescaled(weights), 0), labels, num_classes)
    frequencies = counts / jnp.sum(counts, axis=-1, keepdims=True)
    seen = frequencies > 0
    return jnp.where(
        seen, jnp.log(jnp.where(seen, frequencies, 1)), jnp.where(jnp.isnan(frequencies), jnp.nan, -jnp.inf)
    )
