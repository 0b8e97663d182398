"""A version's model file as others get it: its classes have the names that people see now."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from kedge.models.model import Model
from kedge.models.model_file import LineageEntry
from kedge.serve.project import Project

PART = 1 << 20  # bytes that are sent at a time


def open_model(project: Project, version: int) -> BinaryIO:
    """The model file of a version, open for reading; a temporary one if classes were renamed."""
    model, path = project.versions.load(version), project.versions.path(version)
    names = {
        each["key"]: each["name"]
        for each in project.database.rows("SELECT key, name FROM classes WHERE key != name")
    }
    if not set(names) & set(model.classes):
        return path.open("rb")
    with tempfile.TemporaryDirectory(prefix="kedge-") as folder:
        path = Path(folder) / "model.kedge"
        renamed(model, names).save(path)
        return path.open("rb")  # it can be read to its end though its name is gone


def parts(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while part := file.read(PART):
            yield part


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
