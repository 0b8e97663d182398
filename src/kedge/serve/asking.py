"""Answers about pictures that are not stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kedge.serve.active import Snapshot
from kedge.serve.intake import Taken
from kedge.utils.text import csv_line

MOST_RANKED = 100
DIGITS = 6


def answers(
    snapshot: Snapshot, taken: list[Taken], top: int, reject: float | None
) -> dict[str, Any]:
    """What the interface says of pictures; those without features are refused."""
    classifier = snapshot.check_can_answer()
    known = [(each, each.features) for each in taken if each.features is not None]
    found: list[dict[str, Any]] = []
    if known:
        features = torch.from_numpy(np.stack([features for _, features in known]))
        predictions = classifier.answers_from_features(features, top)
        names = {each.key: each.name for each in snapshot.classes}
        ids = {each.key: each.id for each in snapshot.classes}
        z = classifier.model.head.distance_features(features)
        places = snapshot.map.place(z) if snapshot.map is not None else [None] * len(known)
        for (each, _), (ranking, typicality), place in zip(known, predictions, places, strict=True):
            refused = reject is not None and (typicality or 0) <= reject
            ranked = [
                {"class": names[key], "id": ids[key], "probability": round(p, DIGITS)}
                for key, p in ranking
            ]
            found.append(
                {
                    "name": each.upload.name,
                    "sha256": each.sha256,
                    "answer": None if refused else ranked[0]["class"],
                    "ranking": ranked,
                    "typicality": None if typicality is None else round(typicality, 4),
                    "position": place,
                }
            )
    refused_files = [
        {"name": each.upload.name, "reason": each.refused}
        for each in taken
        if each.features is None
    ]
    return {"version": snapshot.version, "answers": found, "refused": refused_files}


def as_csv(said: dict[str, Any]) -> str:
    """The answers as a table, as `kedge predict --format csv` has them; no cell is a formula."""
    lines = [csv_line("image", "rank", "class", "probability", "typicality")]
    for answer in said["answers"]:
        typicality = "" if answer["typicality"] is None else f"{answer['typicality']:.4f}"
        ranking = [(each["class"], f"{each['probability']:.6f}") for each in answer["ranking"]]
        if answer["answer"] is None:
            ranking = [("", "")]
        for rank, (name, probability) in enumerate(ranking, 1):
            lines.append(csv_line(answer["name"], rank, name, probability, typicality))
    return "".join(lines)
