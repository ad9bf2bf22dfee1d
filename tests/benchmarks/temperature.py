"""Speed, memory and import time of temperature scaling and the decomposition, beside the targets and the peers.

    python -m tests.benchmarks.temperature [passes] [peers] [epochs] [memory] [import]

from the top of the repository; without arguments all sections run, in five to eight minutes on two cores. It only
prints. Peers (scikit-learn, probmetrics, netcal) are measured in the same run where they are installed. Times are
medians of at least 7 alternating runs; "quiet" counts the runs that other programs did not disturb.

Data: logits z = 3 * standard normal, labels drawn from softmax(z / 1.6), float32, `jax.random.key(0)`. The 300 epochs
are s_e * (z + noise_e) with 5,000 shared labels and s_e from 0.1 (too careful) to 3 (too confident), as in a training
run. A log-loss pass is the jitted mean of logsumexp(z) - z_y over the same array. Everything is warm, inputs are on the
device, x64 is off. A peer is accurate if the float64 log loss at its temperature exceeds the optimum by less than 1e-6
relative; the fastest accurate one is the one to beat.
"""

import contextlib
import os
import subprocess
import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from tests.benchmarks.timing import Timing, alternate, at_least, at_most, milliseconds, once, run_sections, show

SIZES = {"10k x 10": (10_000, 10), "50k x 100": (50_000, 100), "50k x 1000": (50_000, 1000)}
SPEEDUP = {"10k x 10": 10, "50k x 100": 6, "50k x 1000": 10}
EPOCHS = (300, 5_000, 10)
THREADS = 2

fit = jax.jit(lambda z, y: jaxcal.fit_temperature(z, y))
decompose = jax.jit(lambda z, y: jaxcal.decompose(z, y))


@jax.jit
def log_loss_pass(z, y):
    return jnp.mean(jax.nn.logsumexp(z, axis=-1) - jnp.take_along_axis(z, y[..., None], axis=-1)[..., 0])


def data(n: int, k: int):
    key_z, key_y = jax.random.split(jax.random.key(0))
    z = 3 * jax.random.normal(key_z, (n, k))
    return z, jax.random.categorical(key_y, z / 1.6)


def epoch_data(epochs: int, n: int, k: int):
    z, y = data(n, k)
    noise = jax.random.normal(jax.random.key(1), (epochs, n, k))
    return jnp.geomspace(0.1, 3.0, epochs)[:, None, None] * (z + noise), y


# --- the judge: float64, NumPy, blocks of rows ---------------------------------------------------------------------


def moments(z: np.ndarray, y: np.ndarray, u: float) -> np.ndarray:
    """Mean log loss of softmax(u z), its first and second derivative in u, all in float64."""
    sums = np.zeros(3)
    block = max(1, 2_000_000 // z.shape[1])
    for rows in (slice(i, i + block) for i in range(0, len(z), block)):
        gap = z[rows].astype(np.float64)
        gap -= gap.max(axis=1, keepdims=True)
        own = gap[np.arange(len(gap)), y[rows]]
        p = np.exp(u * gap)
        mass = p.sum(axis=1)
        p *= gap
        mean = p.sum(axis=1) / mass
        square = np.einsum("ij,ij->i", p, gap) / mass
        sums += (np.log(mass) - u * own).sum(), (mean - own).sum(), (square - mean**2).sum()
    return sums / len(z)


def optimum(z: np.ndarray, y: np.ndarray, u: float) -> tuple[float, float]:
    """The minimizing u and the log loss there, by Newton's method in log u from a good start."""
    for _ in range(30):
        _, slope, curvature = moments(z, y, u)
        step = np.clip(slope / (u * curvature), -1, 1)
        u *= np.exp(-step)
        if abs(step) < 1e-9:
            break
    return u, moments(z, y, u)[0]


def excess(z: np.ndarray, y: np.ndarray, u: float, best: float) -> float:
    return moments(z, y, u)[0] / best - 1


# --- the peers: name -> (fit on arrays made beforehand, inverse temperature of what it returns) ----------------------


def peers(z: np.ndarray, y: np.ndarray) -> dict:
    """Only the search for the temperature is in the timed part; tensors and probabilities are made before."""
    found = {}
    try:
        from sklearn.calibration import _TemperatureScaling

        # what CalibratedClassifierCV(FrozenEstimator(model), method="temperature") runs once it has the scores
        found["scikit-learn"] = (lambda: _TemperatureScaling().fit(z, y), lambda fitted: float(fitted.beta_))
    except ImportError:
        pass
    try:
        import torch
        from probmetrics.calibrators import temperature_scaling as ts
        from probmetrics.distributions import CategoricalLogits

        torch.set_num_threads(THREADS)
        logits, labels = CategoricalLogits(torch.tensor(z)), torch.tensor(y, dtype=torch.long)
        fitted_by = lambda make: lambda: make().fit_torch(logits, labels)  # noqa: E731
        bisection = ts.TemperatureScalingCalibrator
        lbfgs = partial(bisection, opt="lbfgs_line_search")
        found["probmetrics, bisection"] = (fitted_by(bisection), lambda fitted: float(fitted.invtemp_))
        found["probmetrics, L-BFGS"] = (fitted_by(lbfgs), lambda fitted: float(fitted.invtemp_))
        torchcal = ts.TorchcalTemperatureScalingCalibrator
        found["torchcal, Newton"] = (fitted_by(torchcal), lambda fitted: 1 / float(fitted.temp_))
    except ImportError:
        pass
    try:
        from netcal.scaling import TemperatureScaling

        p = np.array(jax.nn.softmax(z))
        found["netcal"] = (
            lambda: TemperatureScaling().fit(p, y, random_state=0),
            lambda fitted: 1 / float(np.ravel(fitted.temperature)[0]),
        )
    except ImportError:
        pass
    return found


@jax.jit
def newton_vmap(z, y):
    """The plain way: Newton's method in log u under `vmap`, every epoch waiting for the slowest."""

    def one(z):
        gap = z - jnp.max(z, axis=-1, keepdims=True)
        own = jnp.take_along_axis(gap, y[:, None], axis=-1)[:, 0]

        def step(state):
            i, log_u, _ = state
            u = jnp.exp(log_u)
            p = jax.nn.softmax(u * gap)
            mean = jnp.sum(p * gap, axis=-1)
            slope = u * jnp.mean(mean - own)
            curvature = slope + u**2 * jnp.mean(jnp.sum(p * (gap - mean[:, None]) ** 2, axis=-1))
            move = jnp.where(curvature > 0, jnp.clip(slope / curvature, -1, 1), jnp.sign(slope))
            return i + 1, log_u - move, move

        start = (0, jnp.zeros(()), jnp.ones(()))
        _, log_u, _ = jax.lax.while_loop(lambda s: (s[0] < 50) & (jnp.abs(s[2]) > 1e-5), step, start)
        return jnp.exp(log_u), log_loss_pass(z, y), log_loss_pass(jnp.exp(log_u) * z, y)

    return jax.vmap(one)(z)


# --- sections --------------------------------------------------------------------------------------------------------


def passes() -> None:
    rows = []
    for name, size in SIZES.items():
        z, y = data(*size)
        calls = {
            "pass": partial(log_loss_pass, z, y),
            "fit": partial(fit, z, y),
            "eager": partial(jaxcal.fit_temperature, z, y),
        }
        steps = int([once(call)[1] for call in calls.values()][-1].num_steps)
        times = alternate(calls)
        one_pass, fitted, eager = (times[key].seconds for key in calls)
        allowed = max(one_pass, 0.2e-3)
        rows.append(
            [name, *(times[key].ms for key in calls), steps, f"{fitted / one_pass:.2f}", "<= 8"]
            + [at_most(fitted / one_pass, 8), milliseconds(eager - fitted), f"<= {milliseconds(allowed)}"]
            + [at_most(eager - fitted, allowed), times["fit"].count]
        )
    header = ["n x k", "pass ms", "fit ms", "eager ms", "steps", "fit/pass", "target", ""]
    header += ["checks ms", "target", "", "quiet"]
    show("Temperature scaling in log-loss passes", header, rows)


def against_peers() -> None:
    for name, size in SIZES.items():
        z, y = data(*size)
        z_host, y_host = np.array(z), np.array(y)
        ours = partial(fit, z, y)
        u = float(once(ours)[1].inverse_temperature)
        _, best = optimum(z_host, y_host, u)
        everyone = peers(z_host, y_host)
        first, excesses = {}, {}
        for peer, (call, inverse_temperature) in everyone.items():
            seconds, fitted = once(call)
            if seconds < 3:  # the first call also starts threads, and one call may be disturbed
                seconds = min(once(call)[0] for _ in range(3))
            first[peer] = Timing(seconds, 1, 0)
            excesses[peer] = excess(z_host, y_host, inverse_temperature(fitted), best)
        accurate = [peer for peer in everyone if abs(excesses[peer]) < 1e-6]
        # repeating a peer that is three times slower than the fastest accurate one would change nothing
        limit = 3 * min((first[peer].seconds for peer in accurate), default=0.0)
        repeated = [peer for peer in accurate if first[peer].seconds <= limit]
        times = first | alternate({"jaxcal": ours, **{peer: everyone[peer][0] for peer in repeated}}, settle=0.02)
        own = times["jaxcal"]
        rows = [["jaxcal", own.ms, own.count, f"{excess(z_host, y_host, u, best):.0e}", "", "", ""]]
        fastest = min(repeated, key=lambda peer: times[peer].seconds, default=None)
        for peer in everyone:
            beaten = times[peer].seconds / own.seconds
            target = [f">= {SPEEDUP[name]}", at_least(beaten, SPEEDUP[name])] if peer == fastest else ["", ""]
            if peer not in accurate:
                target = ["", "not accurate"]
            rows.append([peer, times[peer].ms, times[peer].count, f"{excesses[peer]:.0e}", f"{beaten:.1f}", *target])
        header = ["", "ms", "quiet", "excess", "peer/ours", "target", ""]
        notes = () if everyone else ("no peer is installed: pip install scikit-learn probmetrics numba",)
        show(f"Temperature scaling against the peers, {name}", header, rows, notes)


def probmetrics_loop(z: np.ndarray, y: np.ndarray):
    """A function that fits probmetrics epoch by epoch and returns inverse temperatures, risks and refinements."""
    import torch
    from probmetrics.calibrators.temperature_scaling import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    torch.set_num_threads(THREADS)
    logits, labels = torch.tensor(z), torch.tensor(y, dtype=torch.long)

    def one(epoch):
        u = TemperatureScalingCalibrator().fit_torch(CategoricalLogits(epoch), labels).invtemp_
        losses = [torch.nn.functional.cross_entropy(factor * epoch, labels).item() for factor in (1.0, u)]
        return u, *losses

    return lambda: np.array([one(epoch) for epoch in logits]).T


def epochs() -> None:
    z, y = epoch_data(*EPOCHS)
    z_host, y_host = np.array(z), np.array(y)
    calls = {"jaxcal.decompose": partial(decompose, z, y), "vmap of a Newton loop": partial(newton_vmap, z, y)}
    with contextlib.suppress(ImportError):
        calls["probmetrics in a loop"] = probmetrics_loop(z_host, y_host)
    found = {name: once(call)[1] for name, call in calls.items()}
    found["jaxcal.decompose"] = [found["jaxcal.decompose"].fit.inverse_temperature]
    one_pass = partial(jax.jit(jax.vmap(log_loss_pass, (0, None))), z, y)
    times = alternate({**calls, "one log-loss pass": one_pass}, settle=0.02)

    bests = [optimum(epoch, y_host, float(u))[1] for epoch, u in zip(z_host, found["jaxcal.decompose"][0], strict=True)]
    rows = []
    for name, timing in times.items():
        worst, target = "", ["", ""]
        if name in found:
            trio = zip(z_host, np.array(found[name][0]), bests, strict=True)
            worst = f"{max(excess(epoch, y_host, u, best) for epoch, u, best in trio):.0e}"
        if name == "jaxcal.decompose":
            target = ["<= 0.25", at_most(timing.seconds, 0.25)]
        ratio = timing.seconds / times["jaxcal.decompose"].seconds
        rows.append([name, f"{timing.seconds:.3f}", timing.count, worst, f"{ratio:.1f}", *target])
    header = ["", "s", "quiet", "worst excess", "/ours", "target s", ""]
    show("Decomposition of 300 epochs x 5k x 10", header, rows)


def memory() -> None:
    rows = []
    for call, function in {"fit_temperature": fit, "decompose": decompose}.items():
        for name, shape in {**SIZES, "300 x 5k x 10": EPOCHS}.items():
            z = jax.ShapeDtypeStruct(shape, jnp.float32)
            y = jax.ShapeDtypeStruct(shape[-2:-1], jnp.int32)
            used = function.lower(z, y).compile().memory_analysis()
            logits = 4 * np.prod(shape)
            given, extra = used.argument_size_in_bytes / logits, used.temp_size_in_bytes / logits
            total = given + extra
            rows.append([call, name, f"{given:.2f}", f"{extra:.2f}", f"{total:.2f}", "<= 2.5", at_most(total, 2.5)])
    header = ["", "n x k", "arguments", "temporaries", "sum", "target", ""]
    show("Memory of the compiled program, in multiples of the logits", header, rows)


def import_time() -> None:
    def fresh(statement):
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)

    statements = ("import jax", "import jaxcal")
    for statement in statements:
        fresh(statement)  # fills the caches of the disk
    times = np.array([[fresh(statement) for statement in statements] for _ in range(7)])
    jax_s, jaxcal_s = np.median(times, axis=0)
    added = np.median(times[:, 1] - times[:, 0])
    rows = [[f"{jax_s:.3f}", f"{jaxcal_s:.3f}", f"{added:.3f}", "< 0.3", at_most(added, 0.3)]]
    show("Import in a fresh process, median of 7", ["import jax s", "import jaxcal s", "added s", "target", ""], rows)


SECTIONS = {"passes": passes, "peers": against_peers, "epochs": epochs, "memory": memory, "import": import_time}


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # read by the peers when they are imported, in their sections
    warnings.filterwarnings("ignore", module="torch|sklearn|netcal|probmetrics|torchmin|gpytorch|pyro")
    run_sections(SECTIONS, sys.argv[1:], ("jax", "jaxlib", "scikit-learn", "probmetrics", "torch", "netcal", "numpy"))
