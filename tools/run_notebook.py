"""Run a notebook as it is written, and write the output of its cells into it.

    python tools/run_notebook.py examples/first_steps.ipynb

The kernel is the interpreter that runs this script. Times and ids that differ between two runs are
not saved.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TIMEOUT = 600  # seconds for a cell


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with its output; raises if a cell does."""
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # results depend on them
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
    )
    client.execute()
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        # Bars that were shown for a moment leave an empty text.
        cell.outputs = [o for o in cell.outputs if o.get("data", {}).get("text/plain") != ""]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:]:
        nbformat.write(run(Path(name)), name)
