"""Which calibrator? All are judged on the same rows that they have not seen, and the simplest good one is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import checks
from jaxcal.calibrators.bbq import fit_bbq
from jaxcal.calibrators.beta import fit_beta
from jaxcal.calibrators.dirichlet import fit_dirichlet
from jaxcal.calibrators.ensemble_temperature import fit_ensemble_temperature
from jaxcal.calibrators.histogram import fit_histogram
from jaxcal.calibrators.identity import fit_identity
from jaxcal.calibrators.isotonic import fit_isotonic
from jaxcal.calibrators.laplace import laplace
from jaxcal.calibrators.matrix_scaling import fit_matrix_scaling
from jaxcal.calibrators.one_vs_rest import one_vs_rest, reject_binary
from jaxcal.calibrators.platt import fit_platt
from jaxcal.calibrators.quadratic import fit_quadratic
from jaxcal.calibrators.structured import fit_structured_matrix, fit_structured_vector
from jaxcal.calibrators.temperature import aligned, fit_temperature, prepare
from jaxcal.calibrators.vector_scaling import fit_vector_scaling
from jaxcal.calibrators.venn_abers import fit_venn_abers
from jaxcal.cross_fit import Split, fit_split, out_of_fold, split_of
from jaxcal.losses import (
    ProperLoss,
    half_brier_loss,
    log_loss,
    mean_loss,
    per_example,
    require_loss,
    weighted_mean,
)
from jaxcal.solvers import total
from jaxcal.status import Status

RULES = ("one-standard-error", "best")

# Relative rounding, in eps, of a mean of losses and of the root of a mean of squares.
_ROUNDINGS = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CalibratorSelection:
    """Calibrators side by side, m of them on the last axis, and the one that was chosen.

    Attributes:
        risk: mean out-of-fold loss, `(..., m)`; NaN for a calibrator that failed.
        standard_error: of `risk`, `(..., m)`.
        difference: `risk` minus that of the best calibrator, `(..., m)`, >= 0 to rounding; 0 for the best itself.
        difference_error: standard error of `difference`, from the differences of the losses row by row, `(..., m)`.
        status: the worst `jaxcal.Status` over the folds, int32 `(..., m)`.
        selected: index of the chosen calibrator, int32 `(...)`; -1 where none has a finite risk.
        fit: the chosen calibrator fitted to all rows; None with batch axes and under `jit`, where the choice is data.
        names: of the calibrators, in order, static.
    """

    risk: jax.Array
    standard_error: jax.Array
    difference: jax.Array
    difference_error: jax.Array
    status: jax.Array
    selected: jax.Array
    fit: Any
    names: tuple[str, ...] = jax.tree.static()

    @property
    def name(self) -> str:
        """Name of the chosen calibrator, of a concrete selection without batch axes."""
        if checks.is_traced(self.selected) or jnp.ndim(self.selected):
            raise ValueError(f"a name needs one concrete selection, got batch shape {jnp.shape(self.selected)}")
        if self.selected < 0:
            raise ValueError("no calibrator has a finite out-of-fold loss")
        return self.names[int(self.selected)]

    def table(self) -> str:
        """The comparison as aligned text, the chosen calibrator marked; of a concrete selection without batch axes."""
        chosen = self.name
        rows = [("", "calibrator", "loss", "s.e.", "difference", "s.e.", "status")]
        for i, name in enumerate(self.names):
            numbers = (self.risk, self.standard_error, self.difference, self.difference_error)
            shown = (f"{float(a[i]):#.4g}" for a in numbers)
            rows.append(("*" if name == chosen else "", name, *shown, Status(int(self.status[i])).name))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        left = (0, 1, 6)  # text; what else there is are numbers
        lines = (
            "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)

    def __str__(self) -> str:
        if checks.is_traced(self.selected) or jnp.ndim(self.selected):
            return repr(self)
        return self.table()


@cache  # the same functions at every call: what was compiled for them is found again
def _known(loss: ProperLoss) -> dict[str, Callable]:
    return {
        "none": fit_identity,
        "temperature": fit_temperature if loss is log_loss else partial(fit_temperature, loss=loss),
        "ensemble-temperature": fit_ensemble_temperature,
        "structured-vector": fit_structured_vector,
        "vector": fit_vector_scaling,
        "structured-matrix": fit_structured_matrix,
        "dirichlet": fit_dirichlet,
        "matrix": fit_matrix_scaling,
        "platt": one_vs_rest(fit_platt),
        "beta": one_vs_rest(fit_beta),
        "quadratic": one_vs_rest(fit_quadratic),
        "isotonic": laplace(one_vs_rest(fit_isotonic)),
        "venn-abers": one_vs_rest(fit_venn_abers),
        "histogram": laplace(one_vs_rest(fit_histogram)),
        "bbq": one_vs_rest(fit_bbq),
    }


_OF_TWO = ("none", "temperature", "platt", "beta", "quadratic", "isotonic", "venn-abers")
_OF_MORE = (
    "none",
    "temperature",
    "ensemble-temperature",
    "structured-vector",
    "vector",
    "structured-matrix",
    "dirichlet",
)


def known_calibrators(loss: ProperLoss = log_loss) -> dict[str, Callable]:
    """Every calibrator that has a name here: those of two classes calibrate more of them one against the rest."""
    return dict(_known(loss))


def default_calibrators(num_classes: int, *, loss: ProperLoss = log_loss) -> dict[str, Callable]:
    """The calibrators that `jaxcal.select_calibrator` compares by default, from simple to complex.

    Two classes: "none", "temperature", "platt", "beta", "quadratic", "isotonic" (smoothed by `jaxcal.laplace`) and
    "venn-abers". More: "none", "temperature", "ensemble-temperature", "structured-vector", "vector",
    "structured-matrix" and "dirichlet".

    Args:
        num_classes: k >= 2.
        loss: temperature scaling is fitted to it; the others minimize the log loss (isotonic regression all of them).

    Returns:
        A new dict from name to multi-class calibrator; the functions are the same at every call.

    Examples:
        >>> import jaxcal
        >>> list(jaxcal.default_calibrators(2))
        ['none', 'temperature', 'platt', 'beta', 'quadratic', 'isotonic', 'venn-abers']
        >>> mine = {**jaxcal.default_calibrators(5), "matrix": jaxcal.fit_matrix_scaling}
    """
    require_loss(loss)
    names = _OF_TWO if checks.require_count(num_classes, "num_classes", 2) == 2 else _OF_MORE
    return {name: _known(loss)[name] for name in names}


def select_calibrator(
    calibrators: Mapping[str, Callable] | None,
    logits,
    labels,
    *,
    folds: int = 5,
    key,
    weights=None,
    loss: ProperLoss = log_loss,
    rule: str = "one-standard-error",
) -> CalibratorSelection:
    r"""Compare calibrators by their out-of-fold loss, and choose the simplest that is as good as the best.

    risk_c = mean_i l_ci,   difference_c = mean_i (l_ci - l_bi),   difference_error_c = sd_i(l_ci - l_bi) / sqrt(n)

    l_ci is the loss of row i calibrated by c as fitted to the other folds, the same split for all, and b the calibrator
    of least risk. The rule "one-standard-error" takes the first c with difference_c <= difference_error_c, or with a
    difference that is rounding. The error is that of the *paired* difference. The classical rule takes the standard
    error of the best risk, most of which is the difficulty of the rows, the same for all calibrators: it would keep
    calibrators that are clearly worse.

    Args:
        calibrators: name -> multi-class calibrator `(logits, labels, *, weights) -> fit`, from simple to complex; any
            function that JAX can trace (it is compiled once for each function object, so bind options once).
            None: `jaxcal.default_calibrators(k, loss=loss)`.
        logits: `(..., n, k)`; labels: integers `(..., n)` in [0, k).
        folds: number of folds K, 2 <= K <= n (static).
        key: `jax.random` key of the split; folds are of rows, whatever their weights.
        weights: counts `(..., n)`; their sum is the n of the standard errors.
        loss: any `ProperLoss`, by which calibrators are judged; how they are fitted is theirs.
        rule: "one-standard-error" or "best", the least risk (static).

    Returns:
        `CalibratorSelection` over the broadcast of the leading axes; `print(selection)` shows a table,
        `selection.fit` is the chosen calibrator fitted to all rows. A calibrator that fails (risk NaN) or meets an
        event to which it gave probability 0 (risk inf, as isotonic regression without `laplace`) is never chosen. Where
        all do, `selected` is -1; an eager call raises `ValueError` if no lane has a choice. Under `jit` and with batch
        axes `fit` is None: call the one you want, `calibrators[selection.names[i]](logits, labels)`.

    Risks are nearly unbiased for calibrators fitted to n (K - 1) / K rows; that of the chosen one is slightly
    optimistic because it was chosen. Standard errors take the rows as independent: out-of-fold losses share their
    fits, which no estimate can take into account without bias, so that they are a yardstick, not a test. One row gives
    none (NaN), and the best is chosen. Risks and differences are differentiable where the calibrators are. Cost: K fits
    of each calibrator as one stack and one more of the chosen; a first call mostly compiles, 2 to 6 s each.

    Examples:
        >>> import numpy as np
        >>> import jax, jaxcal
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.normal(0, 2, (1000, 3))
        >>> labels = (truth + rng.gumbel(size=truth.shape)).argmax(-1)
        >>> choices = {"none": jaxcal.fit_identity, "temperature": jaxcal.fit_temperature}
        >>> selection = jaxcal.select_calibrator(choices, (2 * truth).astype("float32"), labels, key=jax.random.key(0))
        >>> selection.name, f"{selection.fit.temperature:.1f}"
        ('temperature', '2.0')

    References:
        Breiman, Friedman, Olshen and Stone, "Classification and regression trees", 1984, section 3.4.3 (the rule).
        Bengio and Grandvalet, "No unbiased estimator of the variance of K-fold cross-validation", JMLR 2004.
    """
    require_loss(loss)
    if rule not in RULES:
        raise ValueError(f"rule must be {' or '.join(map(repr, RULES))}, got {rule!r}")
    logits, labels, weights = prepare(logits, labels, weights, "select_calibrator")
    calibrators = default_calibrators(logits.shape[-1], loss=loss) if calibrators is None else calibrators
    require_calibrators(calibrators)
    split = split_of(logits, folds=folds, key=key, call="select_calibrator")
    losses = [held_out_losses(c, loss, split, logits, labels, weights) for c in calibrators.values()]
    selection = decide(losses, tuple(calibrators), weights, rule)
    if checks.is_traced(selection):
        return selection
    checks.raise_if_unusable(selection.selected < 0, lambda: _explain(selection, logits, labels, weights))
    if selection.selected.ndim:
        return selection
    return replace(selection, fit=calibrators[selection.name](logits, labels, weights=weights))


def require_calibrators(calibrators) -> None:
    """Raise `TypeError` or `ValueError` for what is no mapping from names to multi-class calibrators."""
    if not isinstance(calibrators, Mapping):
        raise TypeError(
            "calibrators must be a mapping from names to calibrators, such as {'temperature': jaxcal.fit_temperature}, "
            f"got {type(calibrators).__name__}"
        )
    if not calibrators:
        raise ValueError("calibrators must not be empty")
    for name, calibrator in calibrators.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of calibrators must be strings, got {name!r}")
        reject_binary(calibrator)


# compiled as a whole, so that a calibrator whose data are no good to it is NaN and does not raise
@partial(jax.jit, static_argnums=(0, 1))
def held_out_losses(calibrator, loss, split: Split, logits, labels, weights) -> tuple[jax.Array, jax.Array]:
    """Out-of-fold loss of each row, `(..., n)`, and worst status, `(...)`, of one calibrator; arguments `prepare`d."""
    fits = fit_split(calibrator, split, logits, labels, weights)
    z, y, w = aligned(out_of_fold(split, fits, logits), labels, weights)
    losses = per_example(loss, z, y)
    if w is not None:
        losses = jnp.where(w == 0, 0, losses)
    status = getattr(fits, "status", None)
    worst = jnp.int32(Status.CONVERGED) if status is None else jnp.max(jnp.asarray(status), axis=-1)
    return losses, worst.astype(jnp.int32)


@partial(jax.jit, static_argnames=("names", "rule"))
def decide(losses, names, weights, rule: str) -> CalibratorSelection:
    """The selection from the `held_out_losses` of all calibrators."""
    shape = np.broadcast_shapes(*(jnp.shape(a) for a in (*(rows for rows, _ in losses), weights) if a is not None))
    rows = jnp.stack([jnp.broadcast_to(rows, shape) for rows, _ in losses])  # (m, ..., n)
    risk, error = _mean_and_error(rows, weights)
    status = jnp.stack([jnp.broadcast_to(status, risk.shape[1:]) for _, status in losses])
    status = jnp.where(jnp.isnan(risk) & (status < Status.NOT_CONVERGED), Status.INVALID_INPUT, status)
    usable = jnp.isfinite(risk)
    best = jnp.argmin(jnp.where(usable, risk, jnp.inf), axis=0)
    of_best = jnp.take_along_axis(rows, best[None, ..., None], axis=0)
    difference, difference_error = _mean_and_error(rows - of_best, weights)
    good = jnp.arange(len(names)).reshape(-1, *(1,) * best.ndim) == best
    if rule == "one-standard-error":
        # where one row differs, difference and error are the same number, rounded otherwise
        rounding = _ROUNDINGS * jnp.finfo(risk.dtype).eps
        least = jnp.take_along_axis(risk, best[None], axis=0)
        good |= usable & (difference <= jnp.maximum((1 + rounding) * difference_error, rounding * least))
    selected = jnp.where(jnp.any(usable, axis=0), jnp.argmax(good, axis=0), -1).astype(jnp.int32)
    last = lambda a: jnp.moveaxis(a, 0, -1)  # noqa: E731
    numbers = (last(a) for a in (risk, error, difference, difference_error, status))
    return CalibratorSelection(*numbers, selected, None, names)


def _mean_and_error(values, weights):
    """Weighted mean over the last axis and its standard error, the weights being counts."""
    mean = weighted_mean(values, weights)
    square = weighted_mean((values - mean[..., None]) ** 2, weights)
    n = values.shape[-1] if weights is None else total(jnp.where(weights > 0, weights, 0))
    left = jnp.asarray(n - 1, mean.dtype)
    variance = jnp.where(left > 0, square / jnp.where(left > 0, left, 1), jnp.nan)
    positive = variance > 0  # the root has no derivative at 0
    return mean, jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), variance)


def _explain(selection, logits, labels, weights) -> str:
    call = "select_calibrator"
    if bool(jnp.isnan(mean_loss(half_brier_loss, *aligned(logits, labels, weights))).all()):  # NaN for bad data only
        return checks.explain_multiclass(logits, labels, weights, call=call)
    risk = np.asarray(selection.risk).reshape(-1, len(selection.names))[0]
    status = np.asarray(selection.status).reshape(-1, len(selection.names))[0]
    said = ", ".join(
        f"{name} {'inf' if np.isinf(r) else Status(int(s)).name}"
        for name, r, s in zip(selection.names, risk, status, strict=True)
    )
    return (
        f"{call}: no calibrator has a finite out-of-fold loss ({said}); a probability of 0 is raised by "
        "jaxcal.logits_from_probs(p, floor=...), that of a calibrator by jaxcal.laplace"
    )
