"""The notebooks run from top to bottom, and are stored with the outputs of such a run."""

import json
import pathlib
import re

import jax
import nbclient
import nbformat
import pytest

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"
NAMES = (
    "choosing_a_calibrator",
    "next_token_logits",
    "rank_calibration",
    "refine_then_calibrate",
    "theory_learning_curves",
    "theory_maps",
    "theory_on_real_spectra",
)
# Compilation is most of the time on a small budget: 30 to 60 s of CPU; shared machines are several times slower.
_TIMEOUT = 600
# No output of these notebooks names a file or a user.
_PATHS = re.compile(
    r"(?<![\w.])/(?:home|root|tmp|usr|opt|var|work|Users|private|mnt)/|\b[A-Z]:\\\\(?:\\\\)?[A-Z]|site-packages|ipykernel_"
)

pytestmark = [
    pytest.mark.skipif(jax.config.jax_enable_x64, reason="notebooks choose their own precision"),
    pytest.mark.parametrize("name", NAMES),
]


def stored(name):
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_runs_from_top_to_bottom(name, monkeypatch):
    monkeypatch.setenv("NOTEBOOK_BUDGET", "small")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    # raises CellExecutionError, which shows the cell, if one fails
    nbclient.NotebookClient(notebook, timeout=_TIMEOUT, kernel_name="python3", resources=resources).execute()
    errors = [output for cell in code_cells(notebook) for output in cell["outputs"] if output["output_type"] == "error"]
    warnings = [o["text"] for cell in code_cells(notebook) for o in cell["outputs"] if o.get("name") == "stderr"]
    assert not errors and not warnings


def test_is_stored_as_executed(name):
    notebook = stored(name)
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    # what only imports or defines has nothing to show
    shows = [bool(re.search(r"^\s*(print\(|plt\.show\()", "".join(cell["source"]), re.M)) for cell in cells]
    assert [bool(cell["outputs"]) for cell in cells] == shows
    assert sum(shows) >= 4
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


def test_figures_are_small(name):
    images = [
        output["data"]["image/png"]
        for cell in code_cells(stored(name))
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    assert images
    assert max(len(image) * 3 / 4 for image in images) <= 150_000


def test_names_no_file_of_a_machine(name):
    notebook = stored(name)
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            output.get("data", {}).pop("image/png", None)
    found = _PATHS.search(json.dumps(notebook))
    assert found is None, found
