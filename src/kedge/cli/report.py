"""The command that writes reports of finished runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import say
from kedge.errors import KedgeError
from kedge.utils import progress


@dataclass(frozen=True)
class Report:
    """Write the report of finished runs again: terminal table, Markdown, LaTeX and HTML."""

    runs: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            metavar="RUN ...",
            help="Folders that 'kedge bench' wrote, or record.json files.",
            help_behavior_hint="(at least one)",
        ),
    ]

    def run(self, console: Console) -> None:
        from kedge.cli.run_recipe import load_finished
        from kedge.report import terminal_tables, write_record_set

        if not self.runs:
            raise KedgeError("RUN: name at least one folder that 'kedge bench' has written.")
        for record_set, folder in list(map(load_finished, self.runs)):  # all, before any is written
            with progress.display():
                page = write_record_set(record_set, folder)
            console.print(terminal_tables(record_set))
            say(console, f"Report: {page}")
