"""The command that prints the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rich.console import Console
from rich.table import Column, Table
from tyro.conf import Positional

from kedge.cli.arguments import option


@dataclass(frozen=True)
class Paper:
    """Print the tables of the paper that kedge implements, with their known faults marked.

    Without a name, the tables are listed.
    """

    table: Annotated[Positional[str | None], option("[TABLE]", "list them")] = None
    """Name or number of a table, such as mini-pn or 1."""

    def run(self, console: Console) -> None:
        from kedge.experiments import paper
        from kedge.report.paper_comparison import paper_table
        from kedge.report.render import to_rich

        if self.table is not None:
            console.print(to_rich(paper_table(paper.table(self.table))))
            return
        name = Column("name", no_wrap=True)
        listing = Table("table", name, "in the paper", "what it shows", "faults")
        for each in paper.tables().values():
            faults = str(len(each.faults) or "-")
            listing.add_row(str(each.number), each.id, each.place, each.caption, faults)
        console.print(listing)
