"""The command that prints the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Paper:
    """Print the tables of the paper that kedge implements, with their known faults marked.

    Without a name, the tables are listed.
    """

    table: Annotated[
        Positional[str | None],
        arg(
            metavar="[TABLE]",
            help="Name or number of a table, such as mini-pn or 1.",
            help_behavior_hint="(default: list them)",
        ),
    ] = None

    def run(self, console: Console) -> None:
        from kedge.experiments import paper

        if self.table is None:
            console.print(paper.overview())
        else:
            console.print(paper.render(paper.table(self.table)))
