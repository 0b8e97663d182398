"""Safetensors files of kedge that are forged, with a correct checksum, and JSON that is.

For several tests and for tools/fuzz: `from tests.models.forged import ForgedFile`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from typing import Any

SHA256 = rb'(\\"sha256\\": \\")[0-9a-f]{64}'


def signed(header: bytes, data: bytes, length: int | None = None) -> bytes:
    """A file with a correct checksum."""
    zeros = re.sub(SHA256, rb"\g<1>" + b"0" * 64, header, count=1)
    content = (len(header) if length is None else length).to_bytes(8, "little") + zeros + data
    checksum = hashlib.sha256(content).hexdigest().encode()
    return re.sub(SHA256, rb"\g<1>" + checksum, content, count=1)


class ForgedFile:
    """A safetensors file, taken apart."""

    def __init__(self, content: bytes) -> None:
        length = int.from_bytes(content[:8], "little")
        self.header, self.data = json.loads(content[8 : 8 + length]), content[8 + length :]
        self.about = json.loads(self.header["__metadata__"]["kedge"])
        self.names = [name for name in self.header if name != "__metadata__"]

    def joined(self, text: str | None = None) -> bytes:
        self.header["__metadata__"]["kedge"] = json.dumps(self.about) if text is None else text
        return signed(json.dumps(self.header, separators=(",", ":")).encode(), self.data)


DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -5, 17, 10**6, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan")),
    *("", "x" * 200, "\n" * 5000, "\x1b[2J\n\0", "\ud800"),
    *("ecm inner_steps=1000000000", "resnet12"),
    *([], {}, [None], ["a", "a"], {"a": 1}, list(range(1000)), DEEP),
)


KEYS = ("more", "", "\n" * 5000, "\ud800", "1")  # of what is added


def forged_json(rng: random.Random, value: Any) -> Any:
    """A copy in which one value, at any depth, is replaced, removed or added."""
    value = inner = json.loads(json.dumps(value))
    while True:
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.3:
            break
        inner = inner[key]
    kind = rng.choice(("set", "set", "set", "drop", "add"))
    if kind == "drop":
        del inner[key]
    elif kind == "add" and isinstance(inner, list):
        inner.append(rng.choice(VALUES))
    else:
        inner[key if kind == "set" else rng.choice(KEYS)] = rng.choice(VALUES)
    return value
