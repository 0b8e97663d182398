"""A recipe from beginning to end: its experiments, one after the other, and its report.

The folder of a recipe with parts has a folder for each of them (see `kedge.experiments.experiment`), and a
report of all of them together; without parts it is the folder of the one experiment.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from rich.console import RenderableType

from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment, check
from kedge.experiments.recipes import Recipe
from kedge.experiments.records import Record, RecordSet
from kedge.experiments.runner import run_experiment
from kedge.report import (
    collection_terminal,
    is_report,
    terminal_table,
    write_collection,
    write_report,
)
from kedge.utils import progress

RESULT = ("record.json", "recipe.json")
REPORT = ("report.html", "table.md", "table.tex", "figures")


def run_recipe(
    recipe: Recipe, base: Experiment, folder: str | Path, jobs: int = 1
) -> tuple[RecordSet, Path]:
    """Do whatever is not done yet. `base` is what the parts share; returns the page as well."""
    folder = Path(folder)
    experiments = recipe.experiments(base)
    folders = RecordSet.folders_of(recipe.name, experiments)
    _check_folder(folder, [folder / inner for inner in folders.values()], experiments.values())
    for experiment in experiments.values():
        check(experiment)
    records = {}
    for number, (part, experiment) in enumerate(experiments.items(), 1):
        said = f"part {number} of {len(experiments)}, {part}"
        with progress.part(said) if part else nullcontext():
            records[part] = run_experiment(experiment, folder / folders[part], jobs)
    collection = RecordSet(recipe.name, recipe.title, recipe.paper, records)
    collection.save_index(folder)
    return collection, write_collection(collection, folder)


def _check_folder(folder: Path, inner: list[Path], experiments: Iterable[Experiment]) -> None:
    """What others have there is not overwritten, and no figure becomes an image of a class."""
    if any((each / "experiment.json").exists() for each in inner):
        return
    for data in (Path(each.data) for each in experiments if each.data is not None):
        if data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
            raise KedgeError(
                f"{folder}: lies in {data}, with the images, and its figures would be read as some "
                "of them; give --out a folder elsewhere."
            )
    for path in (folder / name for name in (*REPORT, *RESULT)):
        if path.exists():
            raise KedgeError(
                f"{path}: is there already, not by this recipe, and is not overwritten; give --out "
                "a folder of its own."
            )


def finished(path: Path) -> tuple[RecordSet | Record, Path]:
    """What lies in a folder or in a record.json, and the folder of its report."""
    if (path / "recipe.json").exists():
        return RecordSet.load(path), path
    file = path / "record.json" if path.is_dir() else path
    return Record.load(file), _folder_of_report(file)


def report_again(found: RecordSet | Record, folder: Path) -> tuple[RenderableType, Path]:
    """The report of what is finished, written anew."""
    if isinstance(found, RecordSet):
        return collection_terminal(found), write_collection(found, folder)
    return terminal_table(found), write_report(found, folder)


def _folder_of_report(file: Path) -> Path:
    """Several records may lie in one folder: each but record.json gets one of its own.

    What others have in that is not overwritten.
    """
    if file.name == "record.json":
        return file.parent
    own = file.with_suffix("")
    if own == file:
        raise KedgeError(
            f"{file}: expected a name with an ending, as its report goes into a folder that is "
            f"called so without it; rename it to {file.name}.json."
        )
    for name in RESULT if is_report(own / "report.html") else (*REPORT, *RESULT):
        if (own / name).exists():
            raise KedgeError(
                f"{own / name}: is there already, perhaps not from {file}, and is not overwritten; "
                f"move it away, or give {file.name} another name, and so its report another folder."
            )
    return own
