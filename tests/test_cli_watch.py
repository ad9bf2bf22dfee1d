"""`jaxcal watch`: what it shows of a history, and that it follows a file that grows."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import numpy as np
import pytest

import jaxcal
from jaxcal.cli import main
from jaxcal.cli.watch import sparkline

N = 100


def _history(path, epochs, lanes=(2,)):
    labels = np.arange(N) % 3
    history = jaxcal.History(labels, path=path)
    noise = np.random.default_rng(0).normal(size=(*lanes, N, 3))
    for e in range(epochs):
        history.record(((1 + e) * (np.eye(3)[labels] + noise)).astype(np.float32), train_loss=1 / (1 + e))
    return history


def test_sparklines():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, np.nan, 1.0]) == "▁ ▁" and sparkline([np.inf, np.nan]) == "  "
    assert sparkline(np.repeat([0, 7], 40), width=4) == "▁▁██"


@pytest.mark.once
def test_a_page_and_a_figure(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    history = _history(path, 5)
    assert main(["watch", str(path), "--once", "--plot", str(tmp_path / "run.png")]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    for name in ("risk", "calibration", "refinement"):
        mean = history.array(name).mean(0)
        assert lines[name][1:4] == [f"{mean[-1]:#.4g}", f"{mean.min():#.4g}", str(mean.argmin())]
    assert lines["train_loss"][1] == "0.2000" and lines["risk"][4] == sparkline(history.array("risk").mean(0))
    assert "5 epochs, the last one is 4; 100 validation rows, mean of 2 seeds" in text
    assert max(map(len, text.splitlines())) <= 80 + len(str(tmp_path))
    assert (tmp_path / "run.png").stat().st_size > 10_000


@pytest.mark.once
def test_nothing_yet_and_a_diverged_run(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    jaxcal.History(np.arange(N) % 3, path=path)
    assert main(["watch", str(path), "--once"]) == 0
    assert "no epoch yet (100 validation rows)" in capsys.readouterr().out
    jaxcal.History(np.arange(N) % 3, path=path).record(np.full((N, 3), np.nan, np.float32))
    figure = tmp_path / "run.png"
    assert main(["watch", str(path), "--once", "--plot", str(figure)]) == 0
    assert "smallest so far: risk at no epoch" in capsys.readouterr().out and not figure.exists()
    labels = np.arange(N) % 3
    history = jaxcal.History(labels, path=path)
    for logits in (np.eye(3)[labels], 9 * np.eye(3)[labels[::-1]], np.full((N, 3), np.nan)):
        history.record(logits.astype(np.float32))
    assert main(["watch", str(path), "--once", "--plot", str(figure)]) == 0
    assert "smallest so far: risk at 1, refinement at 1" in capsys.readouterr().out and figure.exists()


@pytest.mark.once
def test_it_follows_the_file_in_a_terminal(tmp_path):
    path = tmp_path / "run.jsonl"
    history = _history(path, 2, lanes=())
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "jaxcal", "watch", str(path), "--interval", "0.1"]
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=inner, stderr=subprocess.PIPE, env=environment) as process:
        os.close(inner)
        shown = _read_until(outer, "2 epochs")
        history.record(np.zeros((N, 3), np.float32))
        shown = _read_until(outer, "3 epochs")
        assert "\x1b[H\x1b[2J" in shown
        process.send_signal(2)  # Ctrl-C
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""
    os.close(outer)


def _read_until(terminal, text, seconds=120):
    found, end = "", time.monotonic() + seconds
    while text not in found:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise AssertionError(f"{text!r} was not shown, but {found!r}")
        found += os.read(terminal, 65536).decode()
    return found


@pytest.mark.parametrize(
    "content, arguments, message",
    [
        (None, [], "cannot read"),
        ("{}\n", [], "is no history of jaxcal"),
        ("not json\n", [], "holds a line that is no JSON object"),
        (json.dumps({"jaxcal history": 1, "rows": 3}) + "\n", ["--interval", "0"], "--interval must be > 0"),
        (json.dumps({"jaxcal history": 1, "rows": 3}) + "\n", ["--plot", "x.txt"], "the name must end in .png"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, content, arguments, message):
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["watch", str(path), "--once", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
