"""Speed of the metrics of binary events against the obvious NumPy programs.

    python -m tests.benchmarks.metrics [rank] [ece] [smooth] [resamples] [kernel]

from the top of the repository; without arguments all sections run, in about two minutes on two cores. It only prints.
Times are wall-clock, warm, float32, eager calls with x64 off, as a user has them; a peer and ours take turns.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from tests.benchmarks.timing import alternate, at_least, at_most, milliseconds, run_sections, show


def events(n: int):
    """Uniform forecasts and outcomes that are half as extreme, for JAX and for NumPy."""
    rng = np.random.default_rng(0)
    p = rng.random(n).astype(np.float32)
    y = (rng.random(n) < 0.25 + 0.5 * p).astype(np.float32)
    return jnp.asarray(p), jnp.asarray(y), p, y


def rank() -> None:
    """The estimate and both tests at n = 1e6, in one program and in three calls, against sort, gather and product."""
    p, y, p_np, y_np = events(10**6)

    def peer():
        r = (y_np - p_np)[np.argsort(p_np)]
        return np.dot(r[1:], r[:-1]) / len(r)

    def ours(p, y):
        finite = jaxcal.rank_ece_test(p, y, method="finite")
        return jaxcal.rank_ece(p, y), jaxcal.rank_ece_test(p, y), finite

    calls = {"numpy": peer, "one program": partial(jax.jit(ours), p, y), "three calls": partial(ours, p, y)}
    times = alternate(calls | {"rank_ece": partial(jaxcal.rank_ece, p, y)}, rounds=15)
    ratio = times["one program"].seconds / times["numpy"].seconds
    rows = [[name, t.ms, t.count] for name, t in times.items()]
    show("rankECE, n = 1e6", ["", "ms", "quiet runs"], rows, [f"ratio {ratio:.2f}, target 2: {at_most(ratio, 2)}"])


def ece() -> None:
    """Plug-in ECE of 15 bins against bincount."""
    rows = []
    for n, target in ((10**6, 1.0), (10**7, 2.0)):
        p, y, p_np, y_np = events(n)

        def peer(p=p_np, y=y_np, n=n):
            b = np.minimum((p * 15).astype(np.int32), 14)
            hits, sums = np.bincount(b, y, 15), np.bincount(b, p, 15)
            return np.abs(hits - sums).sum() / n, np.bincount(b, minlength=15)

        times = alternate({"numpy": peer, "ours": partial(jaxcal.ece, p, y)}, rounds=11)
        ratio = times["numpy"].seconds / times["ours"].seconds
        rows.append([f"{n:.0e}", times["numpy"].ms, times["ours"].ms, f"{ratio:.2f}", target, at_least(ratio, target)])
    show("ECE", ["n", "numpy, ms", "ours, ms", "times faster", "target", ""], rows)


def smooth() -> None:
    """Smooth ECE at n = 1e6; relplot takes 0.25 s on a quiet machine of two cores."""
    p, y, *_ = events(10**6)
    calls = {"smooth_ece": lambda: jaxcal.smooth_ece(p, y), "rank_ece": lambda: jaxcal.rank_ece(p, y)}
    try:
        import relplot
    except ImportError:
        relplot = None
    if relplot is not None:
        p_np, y_np = np.asarray(p), np.asarray(y)
        calls["relplot"] = lambda: relplot.smECE(p_np, y_np)
    times = alternate(calls, rounds=9)
    show("smooth ECE, n = 1e6", ["", "ms", "quiet runs"], [[name, t.ms, t.count] for name, t in times.items()])


def resamples() -> None:
    """1,000 bootstrap resamples of ECE against a loop over resampled rows."""
    rows = []

    def ours(p, y, weights):  # wrapped: no interval of it is valid, so `bootstrap` takes it as a stranger's only
        return jaxcal.ece(p, y, weights=weights)

    for n, target in ((1000, 3.0), (100_000, 1.0)):
        p, y, p_np, y_np = events(n)

        def peer(p=p_np, y=y_np, n=n):
            rng, values = np.random.default_rng(0), np.empty(1000)
            for i in range(1000):
                rows = rng.integers(0, n, n)
                q, o = p[rows], y[rows]
                b = np.minimum((q * 15).astype(np.int32), 14)
                values[i] = np.abs(np.bincount(b, o, 15) - np.bincount(b, q, 15)).sum() / n
            return values

        times = alternate({"numpy": peer, "ours": partial(jaxcal.bootstrap, ours, jax.random.key(0), p, y)})
        ratio = times["numpy"].seconds / times["ours"].seconds
        rows.append([f"{n:,}", times["numpy"].ms, times["ours"].ms, f"{ratio:.2f}", target, at_least(ratio, target)])
    show("1,000 resamples of ECE", ["n", "numpy, ms", "ours, ms", "times faster", "target", ""], rows)


def kernel() -> None:
    """The test of the unbiased kernel estimate, n = 500, 100 resamples, against gathers of the kernel matrix."""
    n = 500
    p, y, p_np, y_np = events(n)

    def peer():
        d = np.abs(p_np[:, None] - p_np)
        r = y_np - p_np
        h = np.exp(-d / np.median(d[np.triu_indices(n, 1)])) * np.outer(r, r)
        centred = h - h.mean(0) - h.mean(1)[:, None] + h.mean()
        rng, draws = np.random.default_rng(0), []
        for _ in range(100):
            rows = rng.integers(0, n, n)
            block = centred[np.ix_(rows, rows)]
            draws.append((block.sum() - np.trace(block)) / n)
        return np.mean(np.array(draws) >= (h.sum() - np.trace(h)) / (n - 1))

    calls = {"numpy": peer}
    for name in ("laplace", "gaussian"):
        calls[name] = partial(jaxcal.skce_test, p, y, kernel=name, key=jax.random.key(0), num_resamples=100)
    times = alternate(calls)
    rows = [[name, t.ms, f"{times['numpy'].seconds / t.seconds:.0f}"] for name, t in times.items()]
    large = jax.random.uniform(jax.random.key(1), (20_000,))
    outcomes = jax.random.bernoulli(jax.random.key(2), large)
    call = partial(jaxcal.skce_test, large, outcomes, key=jax.random.key(0), num_resamples=100)
    jax.block_until_ready(call())
    seconds = alternate({"large": call}, rounds=3)["large"].seconds
    notes = [f"target 20 times; n = 20,000: {milliseconds(seconds)} ms"]
    show("SKCE-U test, n = 500, B = 100", ["", "ms", "times faster"], rows, notes)


SECTIONS = {"rank": rank, "ece": ece, "smooth": smooth, "resamples": resamples, "kernel": kernel}

if __name__ == "__main__":
    run_sections(SECTIONS, sys.argv[1:], ("jax", "numpy", "relplot"))
