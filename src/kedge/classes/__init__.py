"""The official class lists of the benchmarks over ImageNet, by WordNet id (see imagenet.json)."""

from __future__ import annotations

import functools
import json
from importlib import resources

Lists = dict[str, tuple[str, ...]]


def official(name: str) -> Lists:
    """Of miniImageNet or tieredImageNet: the classes of "train", "val" and "test"."""
    return dict(_lists()[name])


def imagenet_domains() -> Lists:
    """All 1000 classes of ILSVRC in two parts: "natural" and "manmade"."""
    return dict(_lists()["domains"])


@functools.cache
def _lists() -> dict[str, Lists]:
    text = resources.files("kedge.classes").joinpath("imagenet.json").read_text(encoding="utf-8")
    parts = json.loads(text)
    del parts["origin"]
    return {
        name: {role: tuple(ids.split()) for role, ids in part.items()}
        for name, part in parts.items()
    }
