"""Timings on a machine that other programs may share: calls take turns, medians and ratios come from one run."""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

# Seconds that short calls are repeated in a turn.
_TURN = 0.1


class Timing(NamedTuple):
    """Runs of one call."""

    seconds: float  # median of the quiet runs, or of all where fewer than 7 were quiet
    runs: int
    quiet: int  # runs whose threads waited for a core less than a tenth of the time

    @property
    def ms(self) -> str:
        return milliseconds(self.seconds)

    @property
    def count(self) -> str:
        return f"{self.quiet} of {self.runs}"


def alternate(calls: Mapping[str, Callable], *, rounds=7, budget=6.0, settle=0.0) -> dict[str, Timing]:
    """Time calls in turns: in a round every call runs once, so that a busy moment hits all of them.

    Args:
        calls: name to a function of no arguments, whose first call is not timed; what it returns is waited for.
        rounds: fewest rounds; more are run, up to 301, while they fit into `budget` seconds.
        settle: seconds of rest before each turn, for the threads of the call before it to stop spinning. Calls shorter
            than a tenth of a second are then run untimed for that long, for their own threads have slept, and timed
            as many times in a row as fit into it: a turn counts as the mean.
    """
    for call in calls.values():
        once(call)
    number = {name: max(1, int(_TURN / once(call)[0])) if settle else 1 for name, call in calls.items()}
    taken = {name: [] for name in calls}
    waited = {name: [] for name in calls}
    gc.collect()
    begin, done = time.perf_counter(), 0
    while done < rounds or (done < 301 and time.perf_counter() - begin < budget):
        for name, call in calls.items():
            if settle:
                time.sleep(settle)
                for _ in range(number[name] - 1):
                    once(call)
            before = _waiting()
            taken[name].append(sum(once(call)[0] for _ in range(number[name])) / number[name])
            waited[name].append((_waiting() - before) / number[name])
        done += 1
    return {name: _summary(np.array(taken[name]), np.array(waited[name])) for name in calls}


def _summary(taken: np.ndarray, waited: np.ndarray) -> Timing:
    quiet = waited < 0.1 * taken
    kept = taken[quiet] if quiet.sum() >= 7 else taken
    return Timing(float(np.median(kept)), len(taken), int(quiet.sum()))


def _waiting() -> float:
    """Seconds that the threads of this process have been ready to run without a core (Linux; 0 elsewhere)."""
    total = 0
    for entry in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            total += int(entry.read_text().split()[1])
    return 1e-9 * total


def once(call: Callable) -> tuple[float, object]:
    """Seconds of one call, and what it returned."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def load() -> str:
    """What other programs take of the machine now (a fifth of a second of rest is watched), and the load average."""
    cores = os.cpu_count()
    average = os.getloadavg()[0]
    if not Path("/proc/stat").exists():
        return f"{cores} cores, load average {average:.1f}"

    def ticks():
        values = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(values), values[3] + values[4]  # all, and idle or waiting for a disk

    all_before, idle_before = ticks()
    time.sleep(0.2)
    all_after, idle_after = ticks()
    busy = cores * (1 - (idle_after - idle_before) / max(1, all_after - all_before))
    warning = "  <- BUSY: repeat on a quiet machine" if busy > 0.3 else ""
    return f"others use {busy:.1f} of {cores} cores, load average {average:.1f}{warning}"


def milliseconds(seconds: float) -> str:
    """In milliseconds, three digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def at_most(value: float, target: float) -> str:
    """Verdict for a column beside a target."""
    return "ok" if value <= target else "MISSED"


def at_least(value: float, target: float) -> str:
    """Verdict for a column beside a target."""
    return "ok" if value >= target else "MISSED"


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Print a table, first column left, the others right, with the load of the machine under it."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(row):
        first, *others = (str(cell) for cell in row)
        return "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))])

    print(f"\n{title}", line(header), "-" * (sum(widths) + 2 * len(widths) - 2), *map(line, rows), sep="\n")
    for note in (*notes, load()):
        print(f"  {note}")
    print(end="", flush=True)


def run_sections(sections: Mapping[str, Callable], names: Sequence[str], packages: Sequence[str]) -> None:
    """Run the named sections of a benchmark, or all, under a line of versions."""
    unknown = sorted(set(names) - set(sections))
    if unknown:
        sys.exit(f"unknown section {', '.join(unknown)}; choose from {', '.join(sections)}")
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    print(", ".join(versions))
    print(f"{jax.devices()[0].platform}, x64 {'on' if jax.config.jax_enable_x64 else 'off'}, {load()}")
    for name in names or sections:
        sections[name]()
