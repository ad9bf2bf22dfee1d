"""Speed of the limits: solutions, curves and maps, and the time that compiling them takes.

    python -m tests.benchmarks.theory [curve] [map] [sweep]

from the top of the repository; without arguments all sections run, in about two minutes on two cores. It only prints.
Public code for comparison, measured once on two cores: 0.6 to 1.1 s for a curve, 476 s for a map of 252 cells, whose
minimizers are points of a grid. Times are wall-clock, warm, float64, eager calls with x64 off, as a user has them.
"""

import sys
from functools import partial

import numpy as np

import theory
from tests.benchmarks.timing import alternate, at_most, milliseconds, once, run_sections, show

LAMBDAS = 10 ** np.linspace(0, -3, 20, endpoint=False)
RATIOS = 10 ** np.linspace(-1, 1, 21)
BAYES_ERRORS = [0.001, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45]
UNIFORM = theory.BetaSpectrum(1.0, 1.0)


def curve() -> None:
    """The 20 points of Figure 7."""
    data = np.random.default_rng(0).uniform(0.1, 2, 500)
    calls = {
        f"{model}, {name}": lambda model=model, spectrum=spectrum: theory.learning_curve(
            LAMBDAS, ratio=0.5, bayes_error=0.1, spectrum=spectrum, model=model
        )
        for model in ("logistic", "ridge", "lda")
        for name, spectrum in (("Beta", UNIFORM), ("500 eigenvalues", theory.DiscreteSpectrum(data)))
    }
    first = {name: once(call)[0] for name, call in calls.items()}
    times = alternate(calls)
    rows = [
        [name, milliseconds(first[name]), milliseconds(t.seconds), "<= 10", at_most(t.seconds, 0.010)]
        for name, t in times.items()
    ]
    show("a curve of 20 points", ["", "first call, ms", "ms", "target", ""], rows)


def map() -> None:
    """A column of Figure 8: 252 problems, three exact minimizers each."""
    rows = []
    for shapes in ((1.0, 5.0), (2.0, 2.0), (5.0, 1.0)):
        call = partial(theory.minimizer_map, RATIOS, BAYES_ERRORS, theory.BetaSpectrum(*shapes))
        first, found = once(call)
        seconds = alternate({"map": call}, rounds=3)["map"].seconds
        gain = f"{100 * found.gain.max():.1f}"
        rows.append([f"Beta{shapes}", f"{first:.2f}", f"{seconds:.2f}", "<= 5", at_most(seconds, 5.0), gain])
    show("a map of 252 cells", ["", "first call, s", "s", "target", "", "largest gain, %"], rows)


def sweep() -> None:
    """10,000 random problems: lambda, r, e*, alpha and beta log-uniform in their ranges."""
    rng, n = np.random.default_rng(0), 10_000
    lam, ratio = 10 ** rng.uniform(-10, 6, n), 10 ** rng.uniform(-2, 2, n)
    error = np.exp(rng.uniform(np.log(1e-4), np.log(0.49), n))
    spectrum = theory.BetaSpectrum(*(0.3 * 100 ** rng.uniform(0, 1, (2, n))))
    c = theory.separation(error, spectrum)
    rows = []
    for solver in (theory.solve_logistic, theory.solve_ridge, theory.solve_lda):
        solver(lam[:64], ratio[:64], c[:64], theory.BetaSpectrum(spectrum.alpha[:64], spectrum.beta[:64]))
        seconds, found = once(lambda solver=solver: solver(lam, ratio, c, spectrum))
        steps = np.quantile(found.num_steps, [0.5, 0.99, 1])
        failed = int(np.sum(np.asarray(found.status) != 0))
        rows.append(
            [
                solver.__name__,
                f"{seconds:.2f}",
                failed,
                f"{np.max(found.residual):.0e}",
                "/".join(f"{s:.0f}" for s in steps),
            ]
        )
    show("10,000 random problems", ["", "s", "failed", "largest residual", "steps: median/99 %/most"], rows)


if __name__ == "__main__":
    run_sections({"curve": curve, "map": map, "sweep": sweep}, sys.argv[1:], ("jax", "jaxlib", "numpy"))
