"""The command that writes reports of finished runs and of models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import load_pytorch, say
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.regular_file import open_regular


@dataclass(frozen=True)
class Report:
    """Write the report of a model, or of finished runs again.

    Of a model: MODEL.html beside it, one page of its rounds and what they did, its classes,
    network and settings. Of a run: terminal table, Markdown, LaTeX and HTML.
    """

    given: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            name="MODEL|RUN",
            metavar="MODEL|RUN ...",
            help="Model files; folders that 'kedge bench' wrote, or record.json files.",
            help_behavior_hint="(at least one)",
        ),
    ]

    def run(self, console: Console) -> None:
        if not self.given:
            raise KedgeError("MODEL|RUN: name a model, or a folder that 'kedge bench' has written.")
        for path in self.given:
            if not path.exists():
                raise KedgeError(f"{path}: there is no such model or folder.")
        load_pytorch()
        models = [path for path in self.given if _is_model(path)]
        _report_runs(console, [path for path in self.given if path not in models])
        _report_models(console, models)


def _is_model(path: Path) -> bool:
    """Whether a file is named like a model or begins like a safetensors file, with a length that
    no JSON begins with."""
    if path.is_dir():
        return False
    try:
        with open_regular(path) as file:
            return path.suffix == ".kedge" or file.read(8).endswith(b"\0")
    except OSError as error:
        raise KedgeError(f"{path}: cannot be read ({error.strerror}).") from None


def _report_runs(console: Console, runs: list[Path]) -> None:
    from kedge.cli.run_recipe import load_finished
    from kedge.report.record_report import terminal_tables, write_record_set

    for record_set, folder in list(map(load_finished, runs)):  # all, before any is written
        with progress.display():
            page = write_record_set(record_set, folder)
        console.print(terminal_tables(record_set))
        say(console, f"Report: {page}")


def _report_models(console: Console, models: list[Path]) -> None:
    from kedge.report.model_report import write_model_report

    for model in models:
        say(console, f"Report: {write_model_report(model)}")
