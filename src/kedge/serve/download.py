"""A version's model file as others get it: its classes have the names that people see now."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kedge.models.model import Model
from kedge.models.model_file import LineageEntry
from kedge.serve.limits import Refused
from kedge.serve.project import Project


def model_file(project: Project, version: int) -> tuple[Path, bool]:
    """A file with the model, and whether it is a temporary one that has to be deleted."""
    row = project.versions.get(version)
    if row.state == "discarded":
        raise Refused(409, f"Version {version} was discarded, and its file is gone.")
    path = project.versions.path(version)
    names = {
        each["key"]: each["name"]
        for each in project.database.rows("SELECT key, name FROM classes WHERE key != name")
    }
    if not set(names) & set(row.keys):
        return path, False
    with tempfile.NamedTemporaryFile(prefix="kedge-", suffix=".kedge", delete=False) as file:
        temporary = Path(file.name)
    renamed(Model.load(path), names).save(temporary)
    return temporary, True


def renamed(model: Model, names: Mapping[str, str]) -> Model:
    """The model with other names for some classes, in its history too."""

    def new(keys: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(key, key) for key in keys)

    def entry(each: LineageEntry) -> LineageEntry:
        return replace(each, classes=new(each.classes), untrained=new(each.untrained))

    calibration = model.calibration
    if calibration is not None:
        counts = {names.get(key, key): n for key, n in calibration.counts.items()}
        calibration = replace(calibration, counts=counts)
    return replace(
        model,
        classes=new(model.classes),
        lineage=tuple(map(entry, model.lineage)),
        calibration=calibration,
    )
