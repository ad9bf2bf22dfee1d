"""Venn-Abers calibration: two isotonic fits for every new score, one of which is calibrated."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxcal.calibrators.binary import clean_rows, prepare_binary, report_binary
from jaxcal.calibrators.frequencies import FrequencyFit, count_up_to, levels, read, usable
from jaxcal.calibrators.one_vs_rest import binary_calibrator
from jaxcal.solvers import inserted_steps
from jaxcal.status import Status

_MERGES = ("log", "brier")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VennAbersFit(FrequencyFit):
    """Both probabilities of every place a new score can have among the calibration scores.

    Attributes:
        scores: the distinct scores in increasing order, `(..., n)` for n calibration rows, +inf after the last.
        lower: p0 by the number of scores <= the new one, `(..., n + 1)`, non-decreasing.
        upper: p1 by the number of scores < the new one, `(..., n + 1)`, non-decreasing.
        lower_complement: 1 - p0.
        upper_complement: 1 - p1.
        status: `jaxcal.Status`, int32 `(...)`.
        num_steps: 0, for the fit is exact.
        gradient_norm: 0.
        merge: "log" or "brier", static.
    """

    scores: jax.Array
    lower: jax.Array
    upper: jax.Array
    lower_complement: jax.Array
    upper_complement: jax.Array
    status: jax.Array
    num_steps: jax.Array
    gradient_norm: jax.Array
    merge: str = jax.tree.static()

    def interval(self, score) -> tuple[jax.Array, jax.Array]:
        """The two probabilities of outcome 1, p0 < p1, of which one is calibrated.

        Args:
            score: `(..., n)`, or a number for a single fit; the batch shape of the fit broadcasts against the leading
                axes.

        Returns:
            (p0, p1), each of the broadcast shape: the isotonic fit at the score when it is added to the calibration
            set with outcome 0, and with outcome 1.
        """
        both = self._apply(partial(_interval, self), score, lambda lower, upper: jnp.stack([lower, upper]))
        return both[0], both[1]

    def _pair(self, score):
        return _merged(self, score)


def fit_venn_abers(score, outcomes, *, weights=None, merge: str = "log") -> VennAbersFit:
    r"""Inductive Venn-Abers calibration.

    p_c(s) = isotonic fit at s of the calibration set with one more row (s, c), c = 0, 1

    `fit.interval(score)` gives both. `fit(score)` is the one probability whose loss exceeds that of the better of the
    two by the least in the worst case: p1 / (1 - p0 + p1) for the log loss, p1 - (p1^2 - p0^2) / 2 for the Brier score.

    Args:
        score: `(..., n)`, any real numbers, larger where outcome 1 is likelier; outcomes: `(..., n)` in {0, 1}.
        weights: counts `(..., n)`; repeating a row equals doubling its weight. The new row weighs 1.
        merge: "log" or "brier", static.

    Returns:
        `VennAbersFit` over the broadcast of the leading axes. One row, equal scores or a single outcome are no special
        cases. INVALID_INPUT, NaN, for NaN scores, other outcomes and bad weights (or such that the square of their sum
        overflows); an eager call raises `ValueError` if no lane is usable.

    If the calibration rows and the new one are exchangeable, that of p0 and p1 which belongs to the true outcome is
    perfectly calibrated, for every n and every law. The interval is as wide as the data are few: about
    1 / (rows of the block). The merged probability is never 0 or 1, so that every log loss is finite, and is shrunk
    towards 1/2. It does not decrease with the score, and steps at the calibration scores.

    Differentiable in the weights with the blocks held fixed; the derivative by scores is 0. Cost O(n log n) for the
    tables of all scores at once; a new score O(log n).

    Examples:
        >>> import jax.numpy as jnp
        >>> import jaxcal
        >>> score = jnp.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
        >>> fit = jaxcal.fit_venn_abers(score, jnp.array([0, 0, 1, 0, 1, 1]))
        >>> p0, p1 = fit.interval(0.35)
        >>> print(f"{p0:.3f} {p1:.3f} {fit(0.35):.3f}")
        0.333 0.667 0.500

    References:
        Vovk and Petej, "Venn-Abers predictors", UAI 2014. Vovk, Petej and Fedorova, "Large-scale probabilistic
        predictors with and without guarantees of validity", NeurIPS 2015.
    """
    if merge not in _MERGES:
        raise ValueError(f"merge must be one of {_MERGES}, got {merge!r}")
    score, outcomes, weights = prepare_binary(score, outcomes, weights)
    return report_binary(_fit(score, outcomes, weights, merge), score, outcomes, weights, "fit_venn_abers")


binary_calibrator(fit_venn_abers)


@partial(jax.jit, static_argnums=3)
def _fit(score, outcomes, weights, merge):
    rows = clean_rows(score, outcomes, weights)
    scores, zeros, ones = levels(rows)
    dtype = ones.dtype
    ok = usable(rows) & (jnp.sum(rows.weight, axis=-1) < jnp.sqrt(jnp.finfo(dtype).max))
    zeros, ones = (jnp.where(ok[..., None], a, 0) for a in (zeros, ones))
    # a 0 is a 1 of the other outcome, in the reverse order
    forth_and_back = [jnp.stack([a, jnp.flip(b, -1)]) for a, b in ((zeros, ones), (ones, zeros))]
    against, own = inserted_steps(*forth_and_back)
    share, rest = own / (against + own), against / (against + own)
    upper, upper_complement = share[0], rest[0]
    lower_complement, lower = jnp.flip(share[1], -1), jnp.flip(rest[1], -1)
    tables = [scores, lower, upper, lower_complement, upper_complement]
    status = jnp.where(ok, Status.CONVERGED, Status.INVALID_INPUT).astype(jnp.int32)
    nothing = jnp.zeros_like(status)
    tables = [jnp.where(ok[..., None], a, jnp.nan) for a in tables]
    return VennAbersFit(*tables, status, nothing, nothing.astype(dtype), merge=merge)


def _places(fit, score):
    return (count_up_to(fit.scores, score, equal=equal) for equal in (True, False))


@jax.jit
def _interval(fit, score):
    lower, upper = _places(fit, score)
    return read(fit.lower, lower), read(fit.upper, upper)


@jax.jit
def _merged(fit, score):
    lower, upper = _places(fit, score)
    p0, q0 = read(fit.lower, lower), read(fit.lower_complement, lower)
    p1, q1 = read(fit.upper, upper), read(fit.upper_complement, upper)
    if fit.merge == "brier":  # p1 - (p1^2 - p0^2) / 2 and its complement as sums of terms >= 0
        return q0 * (1 - q0 / 2) + q1**2 / 2, p1 * (1 - p1 / 2) + p0**2 / 2
    return q0 / (q0 + p1), p1 / (q0 + p1)
