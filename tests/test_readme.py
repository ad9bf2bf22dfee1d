"""Every code block of the README is executed, in order, in one folder; the set-up block is executed by `.ci/run`."""

import os
import pathlib
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import jaxcal

OPTIONAL = ("equinox", "flax", "optuna", "torch", "xgboost")
ROOT = pathlib.Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)


@pytest.mark.once
def test_readme_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scripts = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    names: dict = {}
    ran, absent = [], []
    for language, block in BLOCKS:
        if "pip install" in block:
            continue
        if language == "python":
            missing = [m for m in OPTIONAL if re.search(rf"^(import|from) {m}\b", block, re.M) and find_spec(m) is None]
            if missing:
                absent += missing
                continue
            exec(compile(block, "README.md", "exec"), names)
            if "early_stopping.update" in block:
                assert names["state"].stopped and names["state"].best_step >= 0
        else:
            done = subprocess.run(
                ["bash", "-euc", block],
                env={**os.environ, "PATH": scripts},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
        ran.append(language)
    assert ran.count("python") == 16 - len(absent) and ran.count("bash") == 2
    assert set(absent) <= {"torch", "xgboost"}  # the others are installed with the tests
    assert (names["by_refinement"] > names["by_risk"]).all()  # what the comments of the example say
    best = names["best"]  # the numbers in the comment of the theory example
    found = [best.lambda_calibration, best.lambda_risk, best.lambda_refinement, best.gain]
    assert [f"{x:.2g}" for x in found] == ["0.07", "0.053", "0.0044", "0.022"]
    written = ("temperature.npz", "predictions.csv", "reliability.png", "calibrator.npz", "calibrated.csv")
    for name in (*written, "run.jsonl", "run.png"):
        assert (tmp_path / name).stat().st_size > 0
    np.testing.assert_array_equal(names["history"].select(), names["by_refinement"])
    whole = jaxcal.fit_temperature(names["kept"], names["labels"])
    np.testing.assert_allclose(names["parts"].fit.temperature, whole.temperature, rtol=1e-6)
    if "optuna" not in absent:
        assert len(names["study"].trials) == 6 and names["study"].best_value < 1.6  # log 5, a constant forecast


def test_set_up_commands_are_those_that_ci_runs():
    (set_up,) = [block for _, block in BLOCKS if "pip install" in block]
    assert len(set_up.splitlines()) == 2
    assert "README.md" in (ROOT / ".ci" / "run").read_text()  # it takes both commands from there


def test_the_picture_exists():
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / picture).is_file()
