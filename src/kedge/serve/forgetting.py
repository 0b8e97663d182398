"""Forgetting the pictures of a round: they and all that shows them are deleted, and the model goes
on naming their classes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.serve import events
from kedge.serve.intake import Intake
from kedge.serve.limits import Refused
from kedge.serve.teaching import Teaching

FLOAT_BYTES = 4


def forget(teaching: Teaching, intake: Intake, role: str, version: int) -> dict[str, Any]:
    """Delete the pictures that a version was trained on; returns how many, and what remains.

    Files, thumbnails, rows and stored features are deleted, and the database is written anew, so
    that no part of its file or of its log holds a trace of them.
    """
    project = teaching.project
    with teaching.lock:
        row = project.versions.get(version)
        active = project.versions.active
        if row.state == "candidate":
            raise Refused(409, f"Take version {version} over first, or discard it.")
        if version not in project.versions.ancestry(active):
            raise Refused(
                409,
                f"Version {version} is not in use, so its classes would be lost: go to it first, "
                "or delete the pictures of these classes.",
            )
        ids = sorted(project.versions.trained_pictures([version]))
        project.jobs.check_unused(ids)
        remains = what_remains(teaching, version)
        gone = project.pictures.rows_of(ids)
        with project.database.transaction():
            project.database.change_many("DELETE FROM pictures WHERE id = ?", [(i,) for i in ids])
            detail = {"version": version, "pictures": len(ids)}
            events.record(project.database, role, "pictures forgotten", **detail)
        project.pictures.delete_files([each["sha256"] for each in gone])
        intake.cache.clear()
        project.database.purge()
        for class_id in {each["class"] for each in gone}:
            teaching.active.reload_class(class_id)
    return {"deleted": len(gone), "remains": remains}


def what_remains(teaching: Teaching, version: int) -> dict[str, Any]:
    """What the model in use holds of the classes that a version was trained on."""
    project, model = teaching.project, teaching.active.model
    ids = sorted(project.versions.trained_pictures([version]))
    of_class: dict[int, int] = {}
    for row in project.pictures.rows_of(ids):
        of_class[row["class"]] = of_class.get(row["class"], 0) + 1
    known = set(model.classes)
    counts, counts_then = _counts(model), dict[str, int]()
    with suppress(KedgeError):  # its file may be gone
        counts_then = _counts(project.versions.load(version))
    classes = []
    for each in project.classes.all():
        if each.id in of_class and each.key in known:
            n, then = counts.get(each.key), counts_then.get(each.key)
            # Then its mean, in this model or in that of the version, is the picture's feature.
            about = {"name": each.name, "examples": n, "one_picture": 1 in (n, then)}
            classes.append(about)
    return {
        "pictures": len(ids),
        "classes": classes,
        "numbers_per_class": numbers_per_class(model),
        "bytes_in_model": len(classes) * numbers_per_class(model) * FLOAT_BYTES,
        "spread": None if model.calibration is None else model.calibration.variance,
        "shared_numbers": 0 if model.spread is None else model.spread.numel(),
    }


def _counts(model: Model) -> dict[str, int]:
    """How many pictures the mean of each class comes from."""
    return {} if model.calibration is None else dict(model.calibration.counts)


def numbers_per_class(model: Model) -> int:
    """How many numbers a model holds of each class: its anchor, and its mean if that is another."""
    n = model.anchors.shape[1]
    return n if model.class_means is None else n + model.class_means.shape[1]
