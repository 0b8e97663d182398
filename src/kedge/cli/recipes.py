"""The command that lists and prints recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional

from kedge.cli.arguments import load_pytorch, option
from kedge.errors import KedgeError
from kedge.utils.text import printable


@dataclass(frozen=True)
class Recipes:
    """List the ready experiments, or print one, to be copied and changed.

    'kedge bench NAME' runs a recipe; a changed copy is run by its path. Below the recipes are the
    protocols, which say which classes play which role; 'kedge bench' runs them by name, too.
    """

    recipe: Annotated[Positional[str | None], option("[NAME]", "list them")] = None
    """Name of a recipe, such as drawings-mini-pn."""

    def run(self, console: Console) -> None:
        load_pytorch()
        from kedge.benchmarks import PROTOCOLS
        from kedge.experiments import recipes

        names = recipes.recipe_names()
        if self.recipe in PROTOCOLS and self.recipe not in names:
            raise KedgeError(
                f"{self.recipe}: this is a protocol, not a recipe. Run it with 'kedge bench "
                f'{self.recipe}\', or name it in a recipe: protocol = "{self.recipe}".'
            )
        if self.recipe is not None:
            print(printable(recipes.text(self.recipe).expandtabs()), end="")
            return
        table = Table(Column("recipe", no_wrap=True), "what it shows")
        for name in names:
            table.add_row(name, escape(recipes.load_recipe(name).title))
        table.add_section()
        for protocol in PROTOCOLS.values():
            if protocol.name not in names:  # else the name runs the recipe
                table.add_row(protocol.name, escape(protocol.description))
        console.print(table)
