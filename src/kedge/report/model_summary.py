"""What a model file holds, as plain values for programs, text and pages."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from kedge.evaluation.naming import rounds_of_origin
from kedge.models import model_file
from kedge.models.model import VIRTUAL_SAMPLES, Model
from kedge.models.model_file import ModelContents
from kedge.utils.atomic_io import file_version
from kedge.utils.regular_file import open_regular


def describe_model(file: Path, model: ModelContents) -> dict[str, Any]:
    """Everything but the numbers of weights and anchors. Needs no code of the user's."""
    config, anchors, file = model.config, model.anchors, model_file.find(file)
    status = file.stat()
    if model.own_backbone:
        n_weights = model.n_weights
    else:
        n_weights = sum(weight.numel() for weight in Model.load(file).weights().values())
    rounds, images = rounds_of_origin(model), images_per_class(model)
    return {
        "file": str(file),
        "bytes": status.st_size,
        "sha256": _sha256(file),
        "version": file_version(file),
        "written": datetime.fromtimestamp(status.st_mtime).astimezone().isoformat("T", "seconds"),
        "input": {
            "image_size": config.image_size,
            "colour": config.n_channels == 3,
            "fit": config.resize,
            "inverted": config.inverted,
            "interpolation": config.interpolation,
        },
        "network": config.network_name,
        "backbone": asdict(config.backbone),
        "pretrained": None if config.pretrained is None else asdict(config.pretrained),
        "frozen": list(config.frozen),
        "weights": n_weights,
        "features": config.n_features,
        "head": asdict(config.head),
        "anchors": {
            "number": len(anchors),
            "length": anchors.shape[1],
            "bytes": anchors.numel() * anchors.element_size(),
        },
        "places": model.class_means is not None,
        "private": None if model.privacy is None else asdict(model.privacy),
        "lineage": [asdict(entry) for entry in model.lineage],
        "classes": [
            {"name": name, "round": rounds[name], "images": images.get(name)}
            for name in model.classes
        ],
    }


def _sha256(file: Path) -> str:
    with open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def images_per_class(model: Model | ModelContents) -> dict[str, int]:
    """How many images the mean of each class was computed from, where the file says it; if a class
    was delivered again, images of the last delivery."""
    counts = {} if model.calibration is None else model.calibration.counts
    deliveries = Counter(
        name for entry in model.lineage for name in {*entry.classes, *entry.untrained}
    )
    images = {
        name: n - VIRTUAL_SAMPLES if deliveries[name] > 1 else n for name, n in counts.items()
    }
    return {name: n for name, n in images.items() if n > 0}
