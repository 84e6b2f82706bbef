"""The notebook of first steps, executed from top to bottom in a kernel of its own.

Run as a program, this file executes it and writes it back with what came out.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import nbformat
import pytest
from nbclient import NotebookClient

HERE = pathlib.Path(__file__).resolve().parent
NOTEBOOK = HERE.parent / "examples" / "first_steps.ipynb"
DEMO = HERE.parents[2] / "crates" / "retrievalguard-cli" / "demo"


def program():
    return os.environ.get("RETRIEVALGUARD_PROGRAM") or shutil.which("retrievalguard")


def executed(folder):
    """The notebook with what comes out in a folder where the demo was."""
    demo = folder / "retrievalguard-demo"
    demo.mkdir()
    for part in ("gallery", "queries"):
        subprocess.run(
            [program(), "draw", "products", "--out", demo / "pictures", "--part", part], check=True, capture_output=True
        )
    for name in ("encoder.onnx", "encoder.toml"):
        shutil.copy(DEMO / name, demo / name)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # Figures go into the notebook, whatever backend the tests use.
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    return notebook


def kinds(notebook):
    """What came out of each cell of code: figures, text and tables."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # Text comes in as many pieces as the kernel's timer makes of it.
            found.append({key for output in cell.outputs for key in output.get("data", {"stream": None})})
    return found


def test_the_notebook_runs_from_top_to_bottom_and_is_committed_with_what_came_out(tmp_path):
    committed = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(committed)
    assert NOTEBOOK.stat().st_size < 500_000
    assert sum("image/png" in kind for kind in kinds(committed)) >= 3
    assert all(cell.execution_count for cell in committed.cells if cell.cell_type == "code")
    assert "/tmp" not in NOTEBOOK.read_text() and "/home" not in NOTEBOOK.read_text()
    if program() is None:
        pytest.skip("RETRIEVALGUARD_PROGRAM names no program, which draws the pictures")
    assert kinds(executed(tmp_path)) == kinds(committed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(pathlib.Path(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, NOTEBOOK)
    print(f"{NOTEBOOK.name}: {NOTEBOOK.stat().st_size} bytes", file=sys.stderr)
