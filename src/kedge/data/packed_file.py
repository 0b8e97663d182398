"""The packed image file as bytes: a safetensors file whose pixels are not loaded.

safetensors itself can only map all of a file or load it, and only save what is in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.data.lazy_images import LazyImages, OpenFile
from kedge.errors import KedgeError
from kedge.utils.atomic_io import as_text, write_atomically

LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it
BLOCK = 1 << 23  # bytes of pixels that are read at a time
KINDS = {"U8": torch.uint8, "I64": torch.int64}


@dataclass(frozen=True)
class Entry:
    """One tensor of the file."""

    kind: str
    shape: tuple[int, ...]
    start: int  # in the file
    end: int

    def holds(self, kind: str) -> bool:
        size = math.prod(self.shape) * KINDS[kind].itemsize
        return self.kind == kind and self.end - self.start == size


class PackedFile:
    """What a packed file says of itself; pixels and labels are still to be read."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = OpenFile(path)
            self.about, self.entries = _header(self.file)
        except FileNotFoundError:
            raise KedgeError(f"{path}: there is no packed image file here.") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise KedgeError(f"{path}: not a packed image file, or damaged ({reason}).") from None
        if not isinstance(self.about, dict):
            raise KedgeError(f"{path}: not a packed image file that kedge wrote.")

    def images(self, checksum: str) -> LazyImages:
        entry = self._entry("images")
        if len(entry.shape) != 4 or not entry.holds("U8"):
            raise KedgeError(f"{self.file.path}: images must be uint8 of shape N×C×H×W.")
        if entry.start == entry.end:
            raise KedgeError(f"{self.file.path}: this packed image file holds no image.")
        n, *image = entry.shape
        numbers = np.arange(n, dtype=np.int64)
        return LazyImages(self.file, entry.start, tuple(image), numbers, checksum)

    def vector(self, name: str, kind: str, n: int) -> Tensor:
        """A tensor of so many numbers of a kind."""
        entry = self._entry(name)
        if entry.shape != (n,) or not entry.holds(kind):
            raise KedgeError(f"{self.file.path}: there must be one {kind} of '{name}' per image.")
        content = self.file.read(entry.end - entry.start, entry.start)
        return torch.frombuffer(content, dtype=KINDS[kind])

    def _entry(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except KeyError:
            raise KedgeError(f"{self.file.path}: this packed image file lacks '{name}'.") from None


def write_packed(
    path: Path, tensors: Mapping[str, Tensor], images: Tensor | LazyImages, about: dict[str, Any]
) -> None:
    """Byte for byte the file that safetensors would write, but pixels pass by block by block."""
    kinds = {dtype: kind for kind, dtype in KINDS.items()}
    everything: dict[str, Tensor | LazyImages] = {**tensors, "images": images}
    entries: dict[str, Any] = {"__metadata__": {"kedge": as_text(about)}}
    at, order = 0, sorted(everything, key=lambda k: (-everything[k].dtype.itemsize, k))
    for name in order:
        some = everything[name]
        end = at + some.numel() * some.dtype.itemsize
        shape = list(some.shape)
        entries[name] = {"dtype": kinds[some.dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)

    def write(part: Path) -> None:
        with open(part, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in order:
                for block in blocks(everything[name]):
                    file.write(block)

    write_atomically(path, write)


def blocks(values: Tensor | LazyImages) -> Iterable[memoryview]:
    """The bytes of a tensor or of images in a file, some rows at a time."""
    row = math.prod(values.shape[1:]) * values.dtype.itemsize
    for some in values.split(max(1, BLOCK // max(1, row))):
        yield some.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def fingerprint_of(
    shape: tuple[int, ...],
    blocks: Iterable[bytes | memoryview],
    labels: Int64[Tensor, " n"],
    classes: Sequence[str],
    split: tuple[Sequence[str], Tensor] | None = None,
) -> str:
    """The blocks hold all pixels of all images, one after the other; a split is the names of its
    parts and the part of each image."""
    sha = hashlib.sha256(f"images {torch.uint8} {shape}".encode())
    for block in blocks:
        sha.update(block)
    sha.update(f"labels {labels.dtype} {tuple(labels.shape)}".encode())
    sha.update(labels.contiguous().view(torch.uint8).numpy().data)
    if split is not None:
        sha.update(json.dumps(split[0]).encode())
        sha.update(split[1].contiguous().numpy().data)
    names = hashlib.sha256(json.dumps(classes).encode()).hexdigest()
    return f"{sha.hexdigest()[:16]}-{names[:16]}"


def _header(file: OpenFile) -> tuple[Any, dict[str, Entry]]:
    """The text that kedge has put there, and the tensors. What is wrong raises anything."""
    if file.size < 8:
        raise ValueError("the file ends in its header")
    length = int.from_bytes(file.read(8, 0), "little")
    if length > LONGEST_HEADER or length > file.size - 8:
        raise ValueError("the file ends in its header, or has none")
    said = json.loads(file.read(length, 8).decode())
    if not isinstance(said, dict):
        raise ValueError("the header is no object")
    metadata = said.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError("the header has metadata that are no object")
    entries = {name: _entry(each, 8 + length) for name, each in said.items()}
    at = 8 + length
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != at or entry.end < at:
            raise ValueError("the header has tensors in wrong places")
        at = entry.end
    if at != file.size:
        raise ValueError(f"the file has {file.size} bytes, but its header says {at}")
    return json.loads(metadata.get("kedge", "null")), entries


def _entry(said: Any, base: int) -> Entry:
    start, end = said["data_offsets"]
    shape = said["shape"]
    if not isinstance(shape, list) or not all(type(n) is int for n in (start, end, *shape)):
        raise ValueError("the header has a tensor without shape or place")
    if min(start, end, *shape) < 0:
        raise ValueError("the header has a tensor of negative size")
    return Entry(str(said["dtype"]), tuple(shape), base + start, base + end)
