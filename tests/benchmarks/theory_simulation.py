"""Speed and accuracy of the simulated fits, beside scikit-learn and beside the limits.

    python -m tests.benchmarks.theory_simulation [fits] [hard] [memory] [limits]

from the top of the repository; without arguments all sections run, in about three minutes on two cores. It only prints.

Data: Figure 7 of Berta et al. (2025), n = 2000, p = 1000, eigenvalues 1e-3 + U(0, 1) in the quantile design, Bayes
error 0.1, lambda = 10^l with l in 20 equal steps from 0 to -3 (end excluded). Fits are timed on 3 seeds, not 50:
every seed costs the same, so the ratio is that of the full experiment, whose time is the one shown times 50/3.

scikit-learn solves the same problems, C = 1/(lambda n) without intercept, from large to small lambda, with and without
warm starts. Its tolerance is lowered from 1e-8 in steps of sqrt(10) until every gradient norm, computed here for all
solvers alike, is at most 1e-8. A solver that takes three times as long as the fastest is shown with its first trial, on
one seed: it would need more time to get further.
"""

import contextlib
import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from tests.benchmarks.timing import Timing, alternate, at_least, at_most, once, run_sections, show
from theory import simulation
from theory.limits import separation
from theory.logistic import solve_logistic
from theory.spectra import BetaSpectrum

SPECTRUM = BetaSpectrum(1.0, 1.0)
BAYES_ERROR = 0.1
LAMBDAS = 10 ** np.linspace(0, -3, 20, endpoint=False)
SIZE = (2000, 1000)
SEEDS = 3
TARGET = 3.0
TOLERANCE = 1e-8


def problem(n: int, p: int, seed: int):
    """y_i x_i and the diagonal of Sigma, float64."""
    rng = np.random.default_rng(seed)
    sigma = SPECTRUM.quantiles(p)
    mu = separation(BAYES_ERROR, SPECTRUM) / np.sqrt(p) * rng.choice([-1, 1], p)
    return mu + np.sqrt(sigma) * rng.standard_normal((n, p)), sigma


def largest_gradient(samples: np.ndarray, weights: np.ndarray, lambdas: np.ndarray) -> float:
    gradients = lambdas[:, None] * weights - expit(-weights @ samples.T) @ samples / len(samples)
    return float(np.linalg.norm(gradients, axis=1).max())


def fit(data, lambdas=LAMBDAS) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return [np.asarray(simulation.fit(*(jnp.asarray(a) for a in (*pair, lambdas)))[0]) for pair in data]


# --- the peer --------------------------------------------------------------------------------------------------------


def scikit_learn(data, solver: str, warm: bool, tolerance: float) -> list[np.ndarray]:
    """The weights of every lambda, data set by data set."""
    from sklearn.linear_model import LogisticRegression

    found = []
    for samples, _ in data:
        labels = np.where(np.arange(len(samples)) % 2, 1, -1)
        features = samples * labels[:, None]
        model = LogisticRegression(solver=solver, tol=tolerance, fit_intercept=False, warm_start=warm, max_iter=10_000)
        path = [model.set_params(C=1 / (lam * len(samples))).fit(features, labels).coef_[0].copy() for lam in LAMBDAS]
        found.append(np.array(path))
    return found


def tuned(data, solver: str, warm: bool, limit: float):
    """The loosest tolerance that reaches the gradient norm on a seed, its seconds and the norm; gives up at `limit`."""
    for tolerance in TOLERANCE * 10 ** (-np.arange(9) / 2):
        seconds, (weights,) = once(partial(scikit_learn, data, solver, warm, tolerance))
        reached = largest_gradient(data[0][0], weights, LAMBDAS)
        if reached <= TOLERANCE or seconds > limit:
            break
    return tolerance, seconds, reached


# --- sections --------------------------------------------------------------------------------------------------------


def fits() -> None:
    data = [problem(*SIZE, seed) for seed in range(SEEDS)]
    reached = max(largest_gradient(d[0], w, LAMBDAS) for d, w in zip(data, fit(data), strict=True))
    settings = {}
    with contextlib.suppress(ImportError):
        import sklearn  # noqa: F401

        for solver in ("newton-cg", "lbfgs", "newton-cholesky"):
            for warm in (True, False):
                settings[f"{solver}, {'warm' if warm else 'cold'}"] = (solver, warm)
    trials, limit = {}, float("inf")
    for name, setting in settings.items():
        trials[name] = tuned(data[:1], *setting, limit)
        if trials[name][2] <= TOLERANCE:
            limit = min(limit, 3 * trials[name][1])
    equal = [name for name, (_, _, norm) in trials.items() if norm <= TOLERANCE]
    calls = {"theory.simulate's fits": partial(fit, data)}
    for name in equal:
        if trials[name][1] <= limit:
            calls[name] = partial(scikit_learn, data, *settings[name], trials[name][0])
    times = alternate(calls, rounds=3, settle=0.02)
    own = times["theory.simulate's fits"]
    times |= {name: Timing(SEEDS * trials[name][1], 1, 0) for name in settings if name not in times}
    fastest = min((name for name in calls if name in trials), key=lambda name: times[name].seconds, default=None)

    rows = [["theory.simulate's fits", f"{own.seconds:.2f}", own.count, f"{reached:.0e}", "", "", "", ""]]
    for name in settings:
        tolerance, _, norm = trials[name]
        ratio = times[name].seconds / own.seconds
        verdict = ["", "" if name in equal else "not equal"]
        if name == fastest:
            verdict = [f">= {TARGET:g}", at_least(ratio, TARGET)]
        rows.append(
            [name, f"{times[name].seconds:.2f}", times[name].count, f"{norm:.0e}", f"{tolerance:.0e}", f"{ratio:.1f}"]
            + verdict
        )
    header = ["", "s", "quiet", "gradient", "tol", "/ours", "target", ""]
    notes = () if settings else ("scikit-learn is not installed",)
    show(f"{SEEDS} seeds x {LAMBDAS.size} lambdas, n = {SIZE[0]}, p = {SIZE[1]}", header, rows, notes)


def hard() -> None:
    """Small lambda and few samples: the gradient norm is reached, at what cost."""
    rows = []
    for n, p in ((200, 1000), (400, 76), (1000, 500), SIZE):
        lambdas = 10.0 ** -np.arange(0, 9)
        data = [problem(n, p, 1)]
        fit(data, lambdas)
        seconds, (weights,) = once(partial(fit, data, lambdas))
        reached = largest_gradient(data[0][0], weights, lambdas)
        rows.append([f"{n} x {p}", f"{seconds:.2f}", f"{reached:.0e}", "<= 1e-8", at_most(reached, TOLERANCE)])
    show("9 lambdas from 1 to 1e-8", ["n x p", "s", "gradient", "target", ""], rows)


def memory() -> None:
    n, p = SIZE
    with jax.enable_x64(True):
        shapes = [(n, p), (p,), (LAMBDAS.size,)]
        fitted = simulation.fit.lower(*(jax.ShapeDtypeStruct(s, jnp.float64) for s in shapes)).compile()
        vector = jax.ShapeDtypeStruct((p,), jnp.float64)
        drawn = simulation.draw.lower(jax.eval_shape(lambda: jax.random.key(0)), vector, vector, n).compile()
    rows = []
    for name, compiled in (("draw", drawn), ("fit", fitted)):
        used = compiled.memory_analysis()
        parts = [used.argument_size_in_bytes, used.output_size_in_bytes, used.temp_size_in_bytes]
        rows.append([name, *(f"{part / (8 * n * p):.2f}" for part in (*parts, sum(parts)))])
    show("Memory of a seed, in data sets (16 MB)", ["", "arguments", "result", "temporaries", "sum"], rows)


def limits() -> None:
    """Figure 7: 50 seeds beside the limits, in standard errors of the mean."""
    options = {"num_samples": SIZE[0], "ratio": SIZE[1] / SIZE[0], "bayes_error": BAYES_ERROR, "spectrum": SPECTRUM}
    call = partial(simulation.simulate, jax.random.key(0), regularizations=LAMBDAS, **options)
    call(num_seeds=1)
    solution = solve_logistic(LAMBDAS, 0.5, separation(BAYES_ERROR, SPECTRUM), SPECTRUM)
    parts = solution.decompose()
    seconds, simulated = once(partial(call, num_seeds=50))
    rows = []
    for name in ("mean", "variance", "risk", "calibration", "refinement", "error_rate"):
        values = np.asarray(getattr(simulated, name))
        expected = np.asarray(getattr(solution if name in ("mean", "variance") else parts, name))
        errors = (values.mean(axis=0) - expected) / (values.std(axis=0, ddof=1) / np.sqrt(len(values)))
        worst = float(np.abs(errors).max())
        row = [f"{errors[i]:+.1f}" for i in (0, 6, 13, 19)]
        rows.append([name, *row, f"{worst:.1f}", "<= 4", at_most(worst, 4)])
    header = ["", *(f"{LAMBDAS[i]:.2g}" for i in (0, 6, 13, 19)), "worst of 20", "target", ""]
    largest = float(np.max(simulated.gradient_norm))
    note = f"{seconds:.1f} s for 50 seeds, {1e3 * seconds / 50:.0f} ms a seed; largest gradient norm {largest:.1e}"
    show("50 seeds: (mean - limit) / standard error, by lambda", header, rows, (note,))


SECTIONS = {"fits": fits, "hard": hard, "memory": memory, "limits": limits}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="sklearn")
    run_sections(SECTIONS, sys.argv[1:], ("jax", "jaxlib", "scikit-learn", "numpy", "scipy"))
