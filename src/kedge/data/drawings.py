"""345 classes of 100 drawings of Quick, Draw! (see ATTRIBUTION.md, tools/pack_drawings.py)."""

import functools
import hashlib
import json
import lzma
from importlib import resources
from typing import Any

import torch

from kedge.data.table import ImageTable
from kedge.errors import require

PER_CLASS, SIDE = 100, 28


@functools.cache
def _facts() -> dict[str, Any]:
    file = resources.files("kedge.data").joinpath("drawings.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def drawing_domains() -> dict[str, tuple[str, ...]]:
    """The classes by domain, natural or man-made; drawings.json states the rule."""
    natural, classes = frozenset(_facts()["natural"]), _facts()["classes"]
    manmade = tuple(name for name in classes if name not in natural)
    return {"natural": tuple(name for name in classes if name in natural), "manmade": manmade}


def unpack(packed: bytes) -> torch.Tensor:
    """Grey values N×1×28×28, ink 255 on 0, from the content of the file."""
    pairs = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8)
    pairs = pairs.view(-1, SIDE // 2, SIDE)  # a byte holds a pixel and the one below
    levels = torch.stack([pairs >> 4, pairs & 15], dim=2)  # N x 14 x 2 x 28, each 0..15
    return levels.reshape(-1, 1, SIDE, SIDE) * 17


@functools.cache
def load_drawings() -> ImageTable:
    """All 34,500 drawings. Callers share one table, which they must not change."""
    facts, file = _facts(), resources.files("kedge.data").joinpath("drawings.xz")
    packed = file.read_bytes() if file.is_file() else b""
    intact = hashlib.sha256(packed).hexdigest() == facts["sha256"]
    require(intact, f"{file}: missing or damaged; install kedge again.")
    classes = tuple(facts["classes"])
    labels = torch.arange(len(classes)).repeat_interleave(PER_CLASS)
    return ImageTable(unpack(packed), labels, classes, facts["source"])
