"""Running a recipe: its experiments one after the other, and its report.

The folder of a recipe with parts has a folder for each part (see `kedge.experiments.runner`) and
one report for all; without parts it is the folder of the one experiment.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from kedge.errors import KedgeError, require
from kedge.experiments.experiment import Experiment, check_experiment
from kedge.experiments.recipes import Recipe
from kedge.experiments.records import Record, RecordSet
from kedge.experiments.runner import run_experiment
from kedge.report.page import is_report
from kedge.report.record_report import write_record_set
from kedge.utils import progress

RESULT = ("record.json", "recipe.json")
REPORT = ("report.html", "table.md", "table.tex", "figures")


def run_recipe(
    recipe: Recipe, base: Experiment, folder: str | Path, on: str = "local"
) -> tuple[RecordSet, Path]:
    """Do what is not done yet; returns the records and the path of the report."""
    folder = Path(folder)
    experiments = recipe.experiments(base)
    folders = RecordSet.folders_of(recipe.name, experiments)
    _check_folder(folder, [folder / inner for inner in folders.values()], experiments.values())
    for experiment in experiments.values():
        check_experiment(experiment)
    records = {}
    for number, (part, experiment) in enumerate(experiments.items(), 1):
        prefix = f"part {number} of {len(experiments)}, {part}"
        with progress.line_prefix(prefix) if part else nullcontext():
            records[part] = run_experiment(experiment, folder / folders[part], on)
    record_set = RecordSet(recipe.name, recipe.title, recipe.paper, records)
    record_set.save_index(folder)
    return record_set, write_record_set(record_set, folder)


def _check_folder(folder: Path, inner: list[Path], experiments: Iterable[Experiment]) -> None:
    """Raise if the folder has files of others, or lies inside the images."""
    if any((each / "experiment.json").exists() for each in inner):
        return
    for data in (Path(each.data) for each in experiments if each.data is not None):
        if data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
            raise KedgeError(
                f"{folder}: is inside {data}, so its figures would be read as images; choose "
                "another folder with --out."
            )
    _refuse_existing(folder, (*REPORT, *RESULT), "this recipe; choose another folder with --out")


def _refuse_existing(folder: Path, names: Iterable[str], whose: str) -> None:
    for path in (folder / name for name in names):
        if path.exists():
            raise KedgeError(f"{path}: already exists, perhaps not from {whose}.")


def load_finished(path: Path) -> tuple[RecordSet, Path]:
    """The records in a folder or a record's file, and the folder for their report.

    The report of a file that is not named record.json goes to a folder named after the file.
    """
    if (path / "recipe.json").exists():
        return RecordSet.load(path), path
    file = path / "record.json" if path.is_dir() else path
    record, folder = Record.load(file), file.parent
    if file.name != "record.json":
        folder = file.with_suffix("")
        require(folder != file, f"{file}: needs a suffix; rename it to {file.name}.json.")
        names = RESULT if is_report(folder / "report.html") else (*REPORT, *RESULT)
        _refuse_existing(folder, names, f"{file}; move it away, or rename {file.name}")
    return RecordSet(record.name, record.name, None, {"": record}), folder
