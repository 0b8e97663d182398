"""Bars and lines in the output of a notebook's cell."""

from __future__ import annotations

import io
import time
from typing import Any

from IPython.display import display
from rich import progress as bars
from rich.console import Console

FIRST_AFTER, REDRAW_EVERY = 1.0, 0.3  # seconds until there are bars
WIDTH = 110  # characters


class NotebookProgress(bars.Progress):
    """One output that holds the lines so far and the bars below them, and is changed in place.

    rich's own output needs ipywidgets, and is not shown where a saved notebook is only displayed.
    """

    def __init__(self, *columns: bars.ProgressColumn) -> None:
        self._lines = io.StringIO()
        self._handle: Any = None  # of the output, once there is one
        self._shown, self._next_redraw = "", time.monotonic() + FIRST_AFTER
        console = Console(file=self._lines, width=WIDTH, force_jupyter=False, color_system=None)
        super().__init__(*columns, console=console, auto_refresh=False)

    def start(self) -> None:
        """Nothing: bars are drawn when they have been there for a moment."""

    def stop(self) -> None:
        """Leave the lines, without bars."""
        self._show(self._lines.getvalue())

    def advance(self, task_id: bars.TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self.refresh()

    def refresh(self) -> None:
        """Draw lines at once, and bars every now and then."""
        lines, now = self._lines.getvalue(), time.monotonic()
        if now >= self._next_redraw:
            self._next_redraw = now + REDRAW_EVERY
            with self.console.capture() as drawn:
                self.console.print(self.get_renderable())
            self._show(lines + drawn.get())
        elif not self._shown.startswith(lines):
            self._show(lines)

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        content = {"text/plain": text.rstrip()}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown = text
