"""What the interface shows of a project, as JSON."""

from __future__ import annotations

from typing import Any

from kedge.serve.active import ActiveModel
from kedge.serve.limits import Limits
from kedge.serve.project import Project
from kedge.serve.rounds import Rounds
from kedge.serve.versions import VersionRow

SHOWN = 8  # pictures of a class in the list of classes


class Views:
    def __init__(
        self, project: Project, active: ActiveModel, rounds: Rounds, limits: Limits
    ) -> None:
        self.project, self.active = project, active
        self.rounds, self.limits = rounds, limits
        self._kept: tuple[int, dict[str, Any]] | None = None  # by revision

    def state(self, role: str) -> dict[str, Any]:
        """Everything small. What takes time is computed once for each revision of the database."""
        revision = self.project.database.revision
        kept = self._kept
        if kept is None or kept[0] != revision:
            kept = self._kept = (revision, self._slow_state())
        job = self.project.jobs.latest()
        about = None
        if job is not None:
            about = self.rounds.describe(job)
            decided = job["state"] == "done" and kept[1]["candidate"] is None
            if decided or job["state"] == "cancelled":
                about = None
        return {"role": role, "job": about, "revision": revision, **kept[1]}

    def _slow_state(self) -> dict[str, Any]:
        project, snapshot = self.project, self.active.snapshot()
        version = project.versions.get(snapshot.version)
        candidate = project.versions.candidate()
        n = project.database.value("SELECT COUNT(*) FROM pictures")
        limits = self.limits
        return {
            "project": {"name": project.name},
            "active_version": {
                "id": version.id,
                "number": version.id,
                "created": version.created,
            },
            "counts": {"classes": len(project.classes.all()), "pictures": n},
            "disk": {"used": project.used_bytes(), "quota": limits.quota},
            "limits": {
                "picture_bytes": limits.picture_bytes,
                "request_bytes": limits.request_bytes,
                "request_pictures": limits.request_pictures,
            },
            "improve": self.rounds.possible(),
            "candidate": None if candidate is None else self.version(candidate, version.id),
            "ask_possible": snapshot.classifier is not None and len(snapshot.classes) > 1,
            "reject_possible": snapshot.can_refuse,
        }

    def classes(self, with_pictures: bool) -> list[dict[str, Any]]:
        """All classes; without their pictures' names for those who may only ask."""
        snapshot = self.active.snapshot()
        learned_in = self.project.versions.learned_in(snapshot.version)
        rows = self.project.database.rows(
            "SELECT class, sha256, n FROM (SELECT class, sha256, COUNT(*) OVER (PARTITION BY class)"
            " AS n, ROW_NUMBER() OVER (PARTITION BY class ORDER BY id DESC) AS number"
            " FROM pictures) WHERE number <= ? ORDER BY class, number",
            (SHOWN,),
        )
        shown: dict[int, list[str]] = {}
        counts: dict[int, int] = {}
        for row in rows:
            shown.setdefault(row["class"], []).append(row["sha256"])
            counts[row["class"]] = row["n"]
        calibration = snapshot.model.calibration
        examples = {} if calibration is None else calibration.counts
        found = []
        for each in self.project.classes.all():
            learned, n = learned_in.get(each.key), counts.get(each.id, 0)
            about = {
                "id": each.id,
                "name": each.name,
                "state": "new" if learned is None else "learned",
                "n_pictures": n,
                "pictures": shown.get(each.id, []) if with_pictures else [],
                "learned_in": learned,
                "forgotten": learned is not None and n == 0,
                "n_examples_learned": examples.get(each.key) if learned is not None else None,
            }
            found.append(about)
        return found

    def one_class(self, class_id: int, with_pictures: bool = True) -> dict[str, Any]:
        self.project.classes.get(class_id)  # raises if there is none
        return next(each for each in self.classes(with_pictures) if each["id"] == class_id)

    def pictures(self, class_id: int, offset: int, limit: int) -> dict[str, Any]:
        self.project.classes.get(class_id)
        rows = self.project.database.rows(
            "SELECT * FROM pictures WHERE class = ? ORDER BY id DESC LIMIT ? OFFSET ?",
            (class_id, limit, offset),
        )
        total = "SELECT COUNT(*) FROM pictures WHERE class = ?"
        trained = self.active.trained
        return {
            "pictures": [
                {
                    "sha256": row["sha256"],
                    "name": row["name"],
                    "width": row["width"],
                    "height": row["height"],
                    "uploaded_at": row["uploaded"],
                    "trained": row["id"] in trained,
                }
                for row in rows
            ],
            "total": self.project.database.value(total, (class_id,)),
        }

    def versions(self) -> list[dict[str, Any]]:
        active = self.project.versions.active
        return [self.version(each, active) for each in self.project.versions.all()]

    def version(self, row: VersionRow, active: int) -> dict[str, Any]:
        names = {
            each["key"]: each["name"]
            for each in self.project.database.rows("SELECT key, name FROM classes")
        }
        new = [names.get(key, key) for key in row.summary["new_classes"]]
        return {
            "id": row.id,
            "number": row.id,
            "created": row.created,
            "parent": row.parent,
            "state": row.state,
            "active": row.id == active,
            "method": row.method,
            "n_classes": len(row.keys),
            "new_classes": new,
            "outcome": row.summary["outcome"],
            "pictures_left": len(self.project.versions.trained_pictures([row.id])),
            "bytes": row.bytes,
        }

    def map(self) -> dict[str, Any]:
        snapshot = self.active.snapshot()
        if (drawn := snapshot.map) is None:
            return {"classes": [], "explained": 0.0}
        return {
            "classes": [
                {"id": each.id, "name": each.name, "position": drawn.positions[each.id]}
                for each in snapshot.classes
            ],
            "explained": round(drawn.explained, 4),
        }
