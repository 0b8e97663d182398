"""Which version is in use: taking over what a round has made, giving it up, going back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kedge.models.model import Model
from kedge.serve import events
from kedge.serve.database import Row
from kedge.serve.decoding import decode_picture
from kedge.serve.embedding import TAUGHT
from kedge.serve.intake import Intake
from kedge.serve.limits import Refused
from kedge.serve.teaching import Teaching
from kedge.training.step import default_device

AT_ONCE = 32  # pictures that are embedded and stored together


class Deciding:
    def __init__(self, teaching: Teaching, intake: Intake) -> None:
        self.teaching, self.intake = teaching, intake
        self.project = teaching.project

    def activate(self, role: str, version: int) -> dict[str, Any]:
        """Use a version. Those who ask are answered by the one before until all is ready."""
        model = self.project.versions.load(version)
        self._embed_missing(version, model)
        with self.teaching.lock:
            self._embed_missing(version, model)  # what was taught in between
            before = self.project.versions.active
            with self.project.database.transaction():
                if self.project.versions.get(version).state == "discarded":
                    raise Refused(409, f"Version {version} was discarded meanwhile.")
                self.project.classes.add_known(model.classes)
                self.project.versions.set_active(version)
                detail = {"version": version, "before": before}
                events.record(self.project.database, role, "version taken over", **detail)
            self.teaching.active.load(version, model)
        return {"version": version, "lost_classes": self.lost_classes(model)}

    def lost_classes(self, model: Model) -> list[str]:
        """Classes that can no longer be named: the version has not learned them, and their pictures
        are gone."""
        known = set(model.classes)
        taught = {
            row[0] for row in self.project.database.rows("SELECT DISTINCT class FROM pictures")
        }
        later = {
            key
            for each in self.project.versions.all()
            if each.state == "accepted"
            for key in each.keys
        }
        return [
            each.name
            for each in self.project.classes.all()
            if each.key not in known and each.id not in taught and each.key in later
        ]

    def discard(self, role: str, version: int) -> None:
        with self.teaching.lock:
            row = self.project.versions.get(version)
            if row.state != "candidate":
                raise Refused(409, f"Version {version} does not wait for a decision.")
            self.project.versions.discard(version)
            events.record(self.project.database, role, "version discarded", version=version)

    def _embed_missing(self, version: int, model: Model) -> None:
        """Compute features under a version for pictures that it was not trained on."""
        project = self.project
        trained = project.versions.trained_pictures(project.versions.ancestry(version))
        ids = [row[0] for row in project.database.rows("SELECT id FROM pictures")]
        wanted = [id for id in ids if id not in trained]
        missing = project.pictures.without_features(version, wanted)
        on_device = model.to(default_device())
        for start in range(0, len(missing), AT_ONCE):
            self._embed(version, model, on_device, missing[start : start + AT_ONCE])

    def _embed(self, version: int, model: Model, on_device: Model, rows: Sequence[Row]) -> None:
        def pixels(row: Row) -> np.ndarray | None:
            try:
                content = self.project.pictures.path(row["sha256"]).read_bytes()
            except FileNotFoundError:  # deleted meanwhile
                return None
            decoded = decode_picture(content, model.image_spec, thumbnail=False)
            if decoded.pixels is None:
                why = f"A picture could not be read again ({decoded.reason})"
                raise Refused(503, f"{why}; try again, or delete it: {row['sha256']}.")
            return decoded.pixels

        found = self.intake.reading_again.map(pixels, rows)
        readable = [
            (row["id"], each) for row, each in zip(rows, found, strict=True) if each is not None
        ]
        futures = [self.intake.embedder.embed(on_device, each, TAUGHT) for _, each in readable]
        features = [future.result() for future in futures]
        self.project.pictures.add_features(version, [id for id, _ in readable], features)
