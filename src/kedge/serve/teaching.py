"""Pictures and classes that are taught: stored, and used at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from kedge.serve import events
from kedge.serve.active import ActiveModel
from kedge.serve.intake import Taken
from kedge.serve.limits import Refused
from kedge.serve.pictures import NewPicture
from kedge.serve.project import Project


class OtherVersion(Exception):
    """Another version is in use than the one that features were computed with."""


class Teaching:
    """Everything that changes classes and pictures, one change at a time."""

    def __init__(self, project: Project, active: ActiveModel) -> None:
        self.project, self.active = project, active
        self.lock = threading.RLock()  # also held while the version in use is exchanged

    def already_stored(self, class_id: int, sha256: str) -> str | None:
        """Why a picture is not stored again: "" if it is in this class; None if it is new."""
        found = self.project.pictures.class_of(sha256)
        if found is None:
            return None
        return "" if found[0] == class_id else f"it is in the class '{found[1]}' already"

    def store(self, class_id: int, taken: Sequence[Taken], version: int) -> list[Taken]:
        """Store pictures and use them; returns those that are new. Raises OtherVersion if their
        features are of another version than the one in use."""
        with self.lock:
            if self.active.version != version:
                raise OtherVersion
            self.project.classes.get(class_id)  # raises if it was deleted meanwhile
            unique = {each.sha256: each for each in taken}
            new = [
                each
                for each in unique.values()
                if self.project.pictures.class_of(each.sha256) is None
            ]
            rows = [_new_picture(each) for each in new]
            self.project.pictures.add(class_id, rows, version)
            self.active.add(version, class_id, [row.features for row in rows])
        return new

    def make_class(self, role: str, name: str) -> int:
        with self.lock, self.project.database.transaction():
            made = self.project.classes.make(name)
            events.record(self.project.database, role, "class made", id=made.id, name=made.name)
        self.active.changed()
        return made.id

    def rename_class(self, role: str, class_id: int, name: str) -> None:
        with self.lock, self.project.database.transaction():
            before = self.project.classes.get(class_id).name
            after = self.project.classes.rename(class_id, name).name
            detail = {"id": class_id, "name": after, "before": before}
            events.record(self.project.database, role, "class renamed", **detail)
        self.active.changed()

    def delete_class(self, role: str, class_id: int) -> dict[str, Any]:
        """Delete a class with its pictures; versions that have learned it go on knowing it, but do
        not name it."""
        project = self.project
        with self.lock:
            row = project.classes.get(class_id)
            ids = [
                each[0]
                for each in project.database.rows(
                    "SELECT id FROM pictures WHERE class = ?", (class_id,)
                )
            ]
            project.jobs.check_unused(ids)
            learned_in = [
                each.id
                for each in project.versions.all()
                if each.state != "discarded" and row.key in each.keys
            ]
            with project.database.transaction():
                gone = project.pictures.rows_of(ids)
                for each in gone:
                    project.database.change("DELETE FROM pictures WHERE id = ?", (each["id"],))
                project.classes.remove(class_id, bool(learned_in))
                detail = {"id": class_id, "name": row.name, "pictures": len(ids)}
                events.record(project.database, role, "class deleted", **detail)
            project.pictures.delete_files([each["sha256"] for each in gone])
            project.database.scrub()
            self.active.reload_class(class_id)
        return {"deleted_pictures": len(ids), "remains_in_versions": learned_in}

    def delete_picture(self, role: str, sha256: str) -> None:
        project = self.project
        with self.lock:
            row = project.database.row("SELECT id, class FROM pictures WHERE sha256 = ?", (sha256,))
            if row is None:
                raise Refused(404, "There is no such picture.")
            project.jobs.check_unused([row["id"]])
            with project.database.transaction():
                project.database.change("DELETE FROM pictures WHERE id = ?", (row["id"],))
                detail = {"class": row["class"], "pictures": 1}
                events.record(project.database, role, "pictures deleted", **detail)
            project.pictures.delete_files([sha256])
            project.database.scrub()
            self.active.reload_class(row["class"])


def _new_picture(taken: Taken) -> NewPicture:
    assert taken.decoded is not None
    assert taken.features is not None
    decoded, upload = taken.decoded, taken.upload
    return NewPicture(
        taken.sha256,
        upload.name,
        upload.content,
        decoded.thumbnail,
        decoded.width,
        decoded.height,
        taken.features,
    )
