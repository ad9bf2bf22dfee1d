"""The cells of the published map whose refinement minimizer differs from ours: both losses, by mpmath.

    python make_published_exceptions.py

reads `published_map_beta_1_5.csv`, asks the package for its minimizers (squeeze 0.99, as the table was made) and writes
`published_exceptions.csv`: for every cell in which log10 of the refinement minimizer differs by more than 0.011, the
squeezed refinement error at the published lambda and at ours. The fixed points and integrals are those of
`make_theory_reference.py`, 40 digits, nothing of the package is used for the losses. A minimizer of 0 is evaluated at
lambda = 1e-25: below the separability threshold the path is analytic in lambda, so that this is the limit to 20 digits.
"""

import csv
from pathlib import Path

import numpy as np
from make_theory_reference import SWEEP_DIGITS, sweep_entry
from mpmath import mp, mpf

import theory

HERE = Path(__file__).parent
VANISHING = 1e-25


def squeezed_refinement(alignment):
    """E e(0.99 (C - 1/2) + 1/2), C = sigma(a (z + a/2)), z ~ N(0, 1), by the trapezoid rule in z."""
    squeeze = mpf("0.99")

    def entropy(z):
        c = squeeze * (1 / (1 + mp.exp(-alignment * (z + alignment / 2))) - mpf(1) / 2) + mpf(1) / 2
        return -(c * mp.log(c) + (1 - c) * mp.log(1 - c))

    step, reach = mpf(1) / 20, 10
    count = int(reach / step)
    return step * mp.fsum(mp.npdf(step * k) * entropy(step * k) for k in range(-count, count + 1))


def refinement(lam, ratio, error):
    entry, _ = sweep_entry("logistic", (lam, ratio, error, 1.0, 5.0))
    mp.dps = SWEEP_DIGITS
    mean, variance = mpf(entry["values"][4]), mpf(entry["values"][5])
    mp.dps = 25
    return squeezed_refinement(2 * mean / mp.sqrt(variance))


def main():
    with (HERE / "published_map_beta_1_5.csv").open() as file:
        rows = list(csv.DictReader(file))
    ratio, error = np.array([10 ** float(r["log_r"]) for r in rows]), np.array([float(r["sep"]) for r in rows])
    ours = theory.minimizers(ratio, error, theory.BetaSpectrum(1.0, 5.0), squeeze=0.99).lambda_refinement
    lines = [("bayes_error", "log_r", "published_log_lambda", "published_at", "our_lambda", "ours_at")]
    for row, r, e, lam in zip(rows, ratio, error, ours, strict=True):
        published = float(row["ref_mzr"])
        if lam > 0 and abs(np.log10(lam) - published) <= 0.011:
            continue
        losses = (refinement(float(x), float(r), float(e)) for x in (10**published, lam if lam > 0 else VANISHING))
        theirs, mine = (mp.nstr(x, 15) for x in losses)
        lines.append((row["sep"], row["log_r"], row["ref_mzr"], theirs, repr(float(lam)), mine))
    with (HERE / "published_exceptions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)


if __name__ == "__main__":
    main()
