"""The rounds of a project, as rows: what they start from, how far they are, what they made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kedge.serve.database import Database, Row, now
from kedge.serve.limits import Refused

UNFINISHED = ("queued", "running", "interrupted")


class Jobs:
    def __init__(self, database: Database) -> None:
        self.database = database

    def make(self, parent: int, pictures: Sequence[int], settings: dict[str, Any]) -> int:
        """A queued round on these pictures. Raises Refused if another one is unfinished."""
        with self.database.transaction():
            self.check_none_unfinished()
            job = self.database.change(
                "INSERT INTO jobs (kind, state, parent, settings, n_pictures, created) "
                "VALUES ('round', 'queued', ?, ?, ?, ?)",
                (parent, json.dumps(settings), len(pictures), now()),
            )
            self.database.change_many(
                "INSERT INTO job_pictures VALUES (?, ?)", [(job, id) for id in pictures]
            )
        return job

    def check_none_unfinished(self) -> None:
        if (other := self.unfinished()) is not None:
            what = "was interrupted" if other["state"] == "interrupted" else "is running"
            raise Refused(
                409, f"Round {other['id']} {what}: wait for it, or continue or cancel it first."
            )

    def get(self, job: int) -> Row:
        row = self.database.row("SELECT * FROM jobs WHERE id = ?", (job,))
        if row is None:
            raise Refused(404, f"There is no round with the number {job}.")
        return row

    def all(self) -> list[Row]:
        return self.database.rows("SELECT * FROM jobs ORDER BY id DESC")

    def latest(self) -> Row | None:
        return self.database.row("SELECT * FROM jobs ORDER BY id DESC LIMIT 1")

    def unfinished(self) -> Row | None:
        states = ",".join("?" * len(UNFINISHED))
        return self.database.row(f"SELECT * FROM jobs WHERE state IN ({states})", UNFINISHED)

    def set(self, job: int, state: str, **columns: Any) -> None:
        columns |= {"state": state}
        if state not in UNFINISHED:
            columns |= {"ended": now()}
        names = ", ".join(f"{name} = ?" for name in columns)
        self.database.change(f"UPDATE jobs SET {names} WHERE id = ?", (*columns.values(), job))

    def pictures(self, job: int) -> list[Row]:
        """id, sha256 and class key of the pictures of a round, in the order of their upload."""
        return self.database.rows(
            "SELECT pictures.id, sha256, classes.key FROM job_pictures "
            "JOIN pictures ON pictures.id = picture JOIN classes ON classes.id = class "
            "WHERE job = ? ORDER BY pictures.id",
            (job,),
        )

    def check_unused(self, pictures: Sequence[int]) -> None:
        """Raise Refused if an unfinished round uses one of these pictures."""
        job = self.unfinished()
        if job is None:
            return
        rows = self.database.rows("SELECT picture FROM job_pictures WHERE job = ?", (job["id"],))
        if {row[0] for row in rows} & set(pictures):
            raise Refused(
                409,
                "A round uses these pictures: wait until it has ended, or cancel it, and delete "
                "them then.",
            )

    def seconds_per_picture(self) -> float | None:
        """How long the latest finished round took for each of its pictures."""
        row = self.database.row(
            "SELECT seconds / n_pictures FROM jobs WHERE state = 'done' ORDER BY id DESC LIMIT 1"
        )
        return None if row is None else float(row[0])
