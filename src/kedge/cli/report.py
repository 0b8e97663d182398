"""The command that writes reports of finished runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import say
from kedge.errors import KedgeError


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
        from kedge.cli.run_recipe import finished, report_again
        from kedge.utils import progress

        if not self.runs:
            raise KedgeError("RUN: name at least one folder that 'kedge bench' has written.")
        for found, folder in [finished(path) for path in self.runs]:  # read all before writing any
            with progress.display():
                shown, page = report_again(found, folder)
            console.print(shown)
            say(console, f"Report: {page}")
