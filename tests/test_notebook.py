"""Notebooks: that in examples/ runs as it is, and shows what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.test_docs import load_tool

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def kinds_of_output(notebook: Any) -> list[set[str]]:
    """What each cell shows. Numbers, and what depends on them, differ between processors."""
    return [
        {output.output_type for output in cell.outputs}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other packages that run the kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs_and_its_output_is_committed(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    again = load_tool("run_notebook").run(path)
    assert kinds_of_output(again) == kinds_of_output(committed)


CELL = """
import numpy as np, kedge
from kedge.utils import notebook, progress
notebook.FIRST_AFTER = notebook.REDRAW_EVERY = 0
same = np.random.default_rng(0).integers(0, 256, (4, 16, 16), dtype=np.uint8)
table = kedge.open_images({"ant": same / 255, "bat": same[:2] / 255})
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cell_shows_bars_while_it_runs_and_notes_when_it_has_ended() -> None:
    drawn: list[str] = []

    class Client(NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in ("display_data", "update_display_data"):
                drawn.append(msg["content"]["data"]["text/plain"])
            return super().process_message(msg, cell, cell_index)

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    Client(book, kernel_name="python3", timeout=120).execute()
    assert any("reading images ━" in text for text in drawn)
    outputs = {output.output_type: output for output in book.cells[0].outputs}
    notes, warning = outputs.pop("display_data"), outputs.pop("stream")
    assert (outputs, warning.name) == ({}, "stderr")
    assert "KedgeWarning: images given in memory: 2 pictures are in several" in warning.text
    assert "table = kedge.open_images" in warning.text, "the line that called kedge"
    assert notes.data["text/plain"].startswith("images given in memory: floats")
    assert "━" not in notes.data["text/plain"]
