"""What early stopping and the record of a training cost, against an epoch of the demo's training.

    python -m tests.benchmarks.training [stopping] [streaming]

from the top of the repository. It only prints. Times are warm; calls take turns.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from jaxcal import early_stopping, streaming
from jaxcal.cli import training
from tests.benchmarks.timing import alternate, at_most, run_sections, show

SEEDS = 8


def stopping() -> None:
    """Update after an epoch of 8 networks on digits: at most 5 % of the epoch, evaluation of the logits included."""
    split = training.make_split(training.DATA_SETS["digits"], train_size=150, label_noise=0.0, seed=0)
    recipe = training.Recipe()
    keys = training._fold_in(jax.random.key(0), jnp.arange(SEEDS))
    split = jax.device_put(split)
    (params, _), logits = training._epoch_step(recipe, training._start(recipe, keys, split), keys, split)
    labels = split.validation.labels
    rules = {
        "refinement": early_stopping.init(batch_shape=(SEEDS,)),
        "refinement, best parameters": early_stopping.init(params, batch_shape=(SEEDS,)),
    }
    history = jaxcal.History(np.asarray(labels), budget=0)

    def epoch():
        return training._epoch_step(recipe, training._start(recipe, keys, split), keys, split)

    calls = {"epoch": epoch, "start of it": lambda: training._start(recipe, keys, split)}
    for name, rule in rules.items():
        kept = params if "parameters" in name else None
        calls[name] = lambda rule=rule, kept=kept: early_stopping.update(rule, logits.validation, labels, kept)
    calls["record of a history"] = lambda: history.record(logits.validation)
    times = alternate(calls, settle=0.05)
    whole = times["epoch"].seconds - times["start of it"].seconds
    rows = [["epoch, 8 networks", f"{1e3 * whole:.3g}", "", ""]]
    for name in [*rules, "record of a history"]:
        share = times[name].seconds / whole
        rows.append([name, times[name].ms, f"{100 * share:.1f} %", at_most(share, 0.05) if name in rules else ""])
    show("early stopping beside an epoch of the demo", ["", "ms", "of the epoch", "<= 5 %"], rows)


def streaming_passes() -> None:
    """A chunk of next-token logits against one evaluation of its log loss."""
    for k in (50_000, 128_000):
        rng = np.random.default_rng(0)
        z = jnp.asarray(2 * rng.normal(size=(256, k)).astype(np.float32))
        y = jnp.asarray(rng.integers(0, k, len(z)))
        state = streaming.init(z, y)
        calls = {
            "log loss": lambda z=z, y=y: jaxcal.risk(z, y),
            "streaming.update": lambda state=state, z=z, y=y: streaming.update(state, z, y),
            "fit_temperature": lambda z=z, y=y: jaxcal.fit_temperature(z, y),
        }
        times = alternate(calls, settle=0.05)
        rows = [[name, t.ms, f"{t.seconds / times['log loss'].seconds:.2g}"] for name, t in times.items()]
        show(f"256 x {k:,} logits", ["", "ms", "passes"], rows)


SECTIONS = {"stopping": stopping, "streaming": streaming_passes}

if __name__ == "__main__":
    run_sections(SECTIONS, sys.argv[1:], ("jax", "optax"))
