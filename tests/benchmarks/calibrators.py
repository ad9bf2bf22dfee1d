"""Speed of the calibrators against the Python programs that people use.

    python -m tests.benchmarks.calibrators [logistic] [bbq] [histogram] [isotonic] [lanes] [venn_abers] [multiclass]
        [many_classes]

from the top of the repository; without arguments all sections run, in about three minutes on two cores. It only prints.
Times are wall-clock, warm, float32, eager calls with x64 off, as a user has them. A peer and ours take turns of
a tenth of a second, resting between, for the threads of linear algebra libraries go on spinning after a call. A call on
its own, whose threads are asleep, takes up to a millisecond longer. Peers that are not installed are left out.
"""

import contextlib
import importlib
import io
import sys
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import isotonic_regression

import jaxcal
from tests.benchmarks.timing import alternate, run_sections, show


def events(n: int, lanes=()):
    """Log-odds that are twice as extreme as they should be, for JAX and for NumPy."""
    rng = np.random.default_rng(0)
    score = rng.normal(0, 2, (*lanes, n)).astype(np.float32)
    y = (rng.random((*lanes, n)) < 1 / (1 + np.exp(-score / 2))).astype(np.float32)
    return jnp.asarray(score), jnp.asarray(y), score.astype(np.float64), y


def peer(module: str) -> object | None:
    """The module, or None and a line that says so."""
    try:
        return importlib.import_module(module)
    except ImportError:
        print(f"\n{module} is not installed: left out")
        return None


def quietly(call: Callable) -> Callable:
    """The call without its progress bars."""

    def silent():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return call()

    return silent


def compare(title: str, ours: Callable, peers: dict[str, Callable], *, rounds=7, scale=1) -> None:
    """Show both, and how many times as long a peer takes; `scale` is how much larger our data are."""
    calls = {"jaxcal": ours} | {name: quietly(call) for name, call in peers.items()}
    times = alternate(calls, rounds=rounds, settle=0.2)
    rows = [[name, t.ms, t.count, f"{t.seconds / times['jaxcal'].seconds:.2f}"] for name, t in times.items()]
    notes = [f"the peer has 1/{scale} of our rows"] if scale > 1 else []
    show(title, ["", "ms", "quiet runs", "of ours"], rows, notes)


def logistic() -> None:
    """Platt, beta and quadratic calibration at n = 10,000."""
    score, y, s, outcomes = events(10_000)
    p = 1 / (1 + np.exp(-s))
    platt, beta, quadratic = {}, {}, {}
    if (calibration := peer("sklearn.calibration")) is not None:
        platt["scikit-learn"] = lambda: calibration._sigmoid_calibration(s, outcomes)
    if (betacal := peer("betacal")) is not None:
        beta["betacal"] = lambda: betacal.BetaCalibration("abm").fit(p[:, None], outcomes)
    if (scaling := peer("netcal.scaling")) is not None:
        beta["netcal"] = lambda: scaling.BetaCalibration().fit(p, outcomes)
    if (calibrators := peer("probmetrics.calibrators")) is not None:
        both, labels = np.stack([1 - p, p], axis=1), outcomes.astype(int)
        for kind, calls in (("affine", platt), ("beta", beta), ("quadratic", quadratic)):
            calls["probmetrics"] = lambda kind=kind: calibrators.BinaryLogisticCalibrator(type=kind).fit(both, labels)
    compare("Platt scaling, n = 10,000", lambda: jaxcal.fit_platt(score, y), platt)
    compare("beta calibration, n = 10,000", lambda: jaxcal.fit_beta(score, y), beta)
    compare("quadratic scaling, n = 10,000", lambda: jaxcal.fit_quadratic(score, y), quadratic)


def bbq() -> None:
    """213 binnings of 10,000 rows; netcal's are of equal width and weighted by AIC."""
    score, y, s, outcomes = events(10_000)
    peers = {}
    if (binning := peer("netcal.binning")) is not None:
        peers["netcal"] = lambda: binning.BBQ().fit(1 / (1 + np.exp(-s)), outcomes.astype(int))
    compare("BBQ, n = 10,000", lambda: jaxcal.fit_bbq(score, y), peers, rounds=3)


def histogram() -> None:
    """15 bins at n = 1e6 against NumPy, which is given the log-odds of the edges."""
    score, y, *_ = events(10**6)
    s, outcomes = np.asarray(score), np.asarray(y)
    inner = np.arange(1, 15) / 15
    cuts = (np.log(inner) - np.log1p(-inner)).astype(np.float32)

    def width():
        b = np.searchsorted(cuts, s, side="right")
        return np.bincount(b, outcomes, 15) / np.bincount(b, minlength=15)

    def mass():
        order = np.argsort(s)
        return [rows.mean() for rows in np.array_split(outcomes[order], 15)], s[order][:: len(s) // 15]

    compare("histogram, equal width, n = 1e6", lambda: jaxcal.fit_histogram(score, y), {"numpy": width})
    ours = partial(jaxcal.fit_histogram, score, y, bins="mass")
    compare("histogram, equal mass, n = 1e6", ours, {"numpy": mass})


def isotonic() -> None:
    """Isotonic calibration of 10,000 and of 1e6 rows against SciPy, which knows no ties, and scikit-learn."""
    sklearn = peer("sklearn.isotonic")
    for n in (10_000, 10**6):
        score, y, s, outcomes = events(n)
        single = np.asarray(score)
        peers = {"scipy": lambda s=single, y=outcomes: isotonic_regression(y[np.argsort(s)]).x}
        if sklearn is not None:
            peers["scikit-learn"] = partial(sklearn.IsotonicRegression(out_of_bounds="clip").fit, single, outcomes)
        compare(f"isotonic, n = {n:,}", partial(jaxcal.fit_isotonic, score, y), peers)


def lanes() -> None:
    """300 isotonic fits of 5,000 rows as one call against 300 calls of SciPy."""
    score, y, *_ = events(5_000, (300,))
    s, outcomes = np.asarray(score), np.asarray(y)

    def each():
        return [isotonic_regression(b[np.argsort(a)]).x for a, b in zip(s, outcomes, strict=True)]

    compare("isotonic, 300 lanes of 5,000", lambda: jaxcal.fit_isotonic(score, y), {"scipy": each})


def venn_abers() -> None:
    """Tables and predictions for 1e6 rows; the package gets a tenth of the rows."""
    score, y, s, outcomes = events(10**6)
    ours = jax.block_until_ready(jaxcal.fit_venn_abers(score, y))
    fits, predictions = {}, {}
    if (package := peer("venn_abers")) is not None:
        p = 1 / (1 + np.exp(-s[: 10**5]))
        both, labels = np.stack([1 - p, p], axis=1), outcomes[: 10**5].astype(int)
        fitted = package.VennAbers()
        fitted.fit(both, labels)
        fits["venn-abers"] = lambda: package.VennAbers().fit(both, labels)
        predictions["venn-abers"] = lambda: fitted.predict_proba(both)
    compare("Venn-Abers fit, n = 1e6", lambda: jaxcal.fit_venn_abers(score, y), fits, rounds=5, scale=10)
    compare("Venn-Abers prediction of 1e6", lambda: ours(score), predictions, rounds=5, scale=10)


def classes(n: int, k: int):
    """Logits that are twice as extreme as they should be and a shift of the classes, float32, and labels."""
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 1.5, (n, k)).astype(np.float32)
    y = np.argmax(truth + rng.gumbel(size=truth.shape), axis=-1)
    return 2 * truth + np.linspace(-0.5, 0.5, k, dtype=np.float32), y


def multiclass() -> None:
    """Vector, matrix and structured scaling at n = 10,000 and k = 10."""
    z, y = classes(10_000, 10)
    logits, labels = jnp.asarray(z), jnp.asarray(y)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    vector, matrix, svs, sms = {}, {}, {}, {}
    if (linear := peer("sklearn.linear_model")) is not None:
        matrix["scikit-learn"] = lambda: linear.LogisticRegression(C=np.inf, max_iter=1000).fit(z, y)
    if (calibrators := peer("probmetrics.calibrators")) is not None:
        kinds = (("VectorScaling", vector), ("MatrixScaling", matrix), ("SVS", svs), ("SMS", sms))
        for kind, calls in kinds:
            make = getattr(calibrators, f"{kind}Calibrator")
            calls["probmetrics"] = lambda make=make: make().fit(p, y)
    for name, fit, peers in (
        ("vector scaling", jaxcal.fit_vector_scaling, vector),
        ("matrix scaling", jaxcal.fit_matrix_scaling, matrix),
        ("Dirichlet calibration", jaxcal.fit_dirichlet, {}),
        ("structured vector scaling", jaxcal.fit_structured_vector, svs),
        ("structured matrix scaling", jaxcal.fit_structured_matrix, sms),
    ):
        compare(f"{name}, n = 10,000, k = 10", partial(fit, logits, labels), peers, rounds=3)


def many_classes() -> None:
    """Structured matrix scaling at n = 50,000 and k = 100, 10,100 coefficients: at most 10 seconds."""
    z, y = classes(50_000, 100)
    ours = partial(jaxcal.fit_structured_matrix, jnp.asarray(z), jnp.asarray(y))
    jax.block_until_ready(ours())
    compare("structured matrix scaling, n = 50,000, k = 100", ours, {}, rounds=3)


SECTIONS = {
    "logistic": logistic,
    "bbq": bbq,
    "histogram": histogram,
    "isotonic": isotonic,
    "lanes": lanes,
    "venn_abers": venn_abers,
    "multiclass": multiclass,
    "many_classes": many_classes,
}

if __name__ == "__main__":
    run_sections(
        SECTIONS, sys.argv[1:], ("jax", "scipy", "scikit-learn", "betacal", "netcal", "probmetrics", "venn-abers")
    )
