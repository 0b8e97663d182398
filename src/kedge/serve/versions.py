"""The versions of a project's model: rows, and model files that never change."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from kedge.errors import require
from kedge.models.model import Model
from kedge.serve.database import Database, Row, now
from kedge.serve.limits import Refused
from kedge.utils.atomic_io import fsync_folder, make_folder, write_on_this_rank

ACTIVE = "active_version"  # the setting
OURS = re.compile(r"\.?([0-9]+)\.kedge(\..*\.part)?")  # names of files, also unfinished ones


@dataclass(frozen=True)
class VersionRow:
    id: int  # also its number, as people see it
    parent: int | None
    job: int | None
    state: str
    method: str
    summary: dict[str, Any]
    bytes: int
    created: float

    @classmethod
    def of(cls, row: Row) -> VersionRow:
        return cls(**{**dict(row), "summary": json.loads(row["summary"])})

    @property
    def keys(self) -> list[str]:
        """The classes that it knows, by their names in the model file."""
        return list(self.summary["classes"])


class Versions:
    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder / "versions", database

    def path(self, version: int) -> Path:
        return self.folder / f"{version}.kedge"

    @property
    def active(self) -> int:
        return int(self.database.setting(ACTIVE) or 0)

    def set_active(self, version: int) -> None:
        with self.database.transaction():
            self.database.set_setting(ACTIVE, str(version))
            accept = "UPDATE versions SET state = 'accepted' WHERE id = ?"
            self.database.change(accept, (version,))

    def all(self) -> list[VersionRow]:
        return [VersionRow.of(r) for r in self.database.rows("SELECT * FROM versions ORDER BY id")]

    def get(self, version: int) -> VersionRow:
        row = self.database.row("SELECT * FROM versions WHERE id = ?", (version,))
        if row is None:
            raise Refused(404, f"There is no version {version}.")
        return VersionRow.of(row)

    def load(self, version: int) -> Model:
        """The model of a version. Raises KedgeError if its file is gone, damaged or another."""
        row, path = self.get(version), self.path(version)
        if row.state == "discarded":
            raise Refused(409, f"Version {version} was discarded, and its file is gone.")
        model = Model.load(path)
        ours = list(model.classes) == row.keys
        require(ours, f"{path}: not the model of version {version}; put its file back.")
        return model

    def candidate(self) -> VersionRow | None:
        """The version that waits for a decision."""
        row = self.database.row("SELECT * FROM versions WHERE state = 'candidate'")
        return None if row is None else VersionRow.of(row)

    def add(
        self,
        file: Path,
        parent: int | None,
        job: int | None,
        method: str,
        summary: dict[str, Any],
        state: str,
    ) -> int:
        """A new version from a complete model file, which stays where it is, too."""
        with self.database.transaction():
            version = 1 + (self.database.value("SELECT MAX(id) FROM versions") or 0)
            path = self.path(version)
            make_folder(self.folder)
            with suppress(FileNotFoundError):
                path.unlink()  # of a kill before the commit
            try:
                os.link(file, path)
                fsync_folder(self.folder)
            except OSError:  # a file system without links
                write_on_this_rank(path, partial(_copy, file))
            self.database.change(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(version, parent, job, state, method),
                    *(json.dumps(summary), path.stat().st_size, now()),
                ),
            )
        return version

    def discard(self, version: int) -> None:
        """Give a candidate up: its file is deleted, its row stays in the history."""
        with self.database.transaction():
            self.database.change("DELETE FROM features WHERE version = ?", (version,))
            sql = "UPDATE versions SET state = 'discarded', bytes = 0 WHERE id = ?"
            self.database.change(sql, (version,))
        with suppress(FileNotFoundError):
            self.path(version).unlink()

    def ancestry(self, version: int) -> list[int]:
        """A version and those that it came from, the latest first."""
        parents = dict(map(tuple, self.database.rows("SELECT id, parent FROM versions")))
        found: list[int] = []
        current: int | None = version
        while current is not None:
            found.append(current)
            current = parents.get(current)
        return found

    def trained_pictures(self, versions: Sequence[int]) -> set[int]:
        """Pictures that these versions were trained on, as far as they are still stored."""
        marks = ",".join("?" * len(versions))
        rows = self.database.rows(
            "SELECT picture FROM job_pictures JOIN versions ON versions.job = job_pictures.job "
            f"WHERE versions.id IN ({marks})",
            versions,
        )
        return {row[0] for row in rows}

    def learned_in(self, version: int) -> dict[str, int]:
        """For each class that a version knows, the first version of its line that knew it."""
        first: dict[str, int] = {}
        for each in reversed(self.ancestry(version)):
            for key in self.get(each).keys:
                first.setdefault(key, each)
        return first

    def bytes_used(self) -> int:
        return int(self.database.value("SELECT COALESCE(SUM(bytes), 0) FROM versions"))

    def remove_orphans(self) -> None:
        """Delete model files of ours that no row names."""
        known = {
            row[0]
            for row in self.database.rows("SELECT id FROM versions WHERE state != 'discarded'")
        }
        for path in self.folder.glob("*"):
            ours = OURS.fullmatch(path.name)
            if ours is not None and (ours[2] or int(ours[1]) not in known):
                path.unlink()


def _copy(source: Path, target: BinaryIO) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target)
