"""The packed image file: safetensors whose pixels are read and written in blocks.

The safetensors library can only map or load a whole file, and only save what is in memory.
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
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kedge.data.lazy_images import LazyImages, OpenFile
from kedge.errors import KedgeError
from kedge.utils.atomic_io import to_json, write_atomically

PACKED_FORMAT = "kedge-images-1"
BLOCK_BYTES = 1 << 23  # pixels that are read, moved or hashed at a time
DTYPES = {"U8": torch.uint8, "I64": torch.int64}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the file, as its header describes it."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in the file
    end: int


class PackedFile:
    """An open packed file whose header has been read; `metadata` is what kedge wrote there."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = OpenFile(path)
            self.metadata, self.entries = _read_header(self.file)
        except FileNotFoundError:
            raise KedgeError(f"{path}: there is no packed image file here.") from None
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise KedgeError(f"{path}: not a packed image file, or damaged ({reason}).") from None
        if not isinstance(self.metadata, dict):
            raise KedgeError(f"{path}: not a packed image file that kedge wrote.")

    def images(self, checksum: str) -> LazyImages:
        entry = self._entry("images")
        if len(entry.shape) != 4 or entry.dtype != "U8":
            raise KedgeError(f"{self.file.path}: images must be uint8 of shape N×C×H×W.")
        if entry.start == entry.end:
            raise KedgeError(f"{self.file.path}: this packed image file holds no image.")
        n, *image_shape = entry.shape
        numbers = np.arange(n, dtype=np.int64)
        return LazyImages(self.file, entry.start, tuple(image_shape), numbers, checksum)

    def vector(self, name: str, dtype: str, n: int) -> Tensor:
        """A tensor that must have n elements of this type."""
        entry = self._entry(name)
        if entry.shape != (n,) or entry.dtype != dtype:
            raise KedgeError(f"{self.file.path}: there must be one {dtype} of '{name}' per image.")
        content = self.file.read(entry.end - entry.start, entry.start)
        return torch.frombuffer(content, dtype=DTYPES[dtype])

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self.entries[name]
        except KeyError:
            raise KedgeError(f"{self.file.path}: this packed image file lacks '{name}'.") from None


def write_packed(
    path: Path, tensors: Mapping[str, Tensor], images: Tensor | LazyImages, metadata: dict[str, Any]
) -> None:
    """Write, block by block, the same bytes that the safetensors library would write."""
    values: dict[str, Tensor | LazyImages] = {**tensors, "images": images}
    order = sorted(values, key=lambda name: (-values[name].dtype.itemsize, name))
    layout = {name: (DTYPE_NAMES[values[name].dtype], values[name].shape) for name in order}
    content = {"__metadata__": {"kedge": to_json(metadata)}, **header_entries(layout)}
    header = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)

    def write(part: Path) -> None:
        with open(part, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in order:
                for block in blocks(values[name]):
                    file.write(block)

    write_atomically(path, write)


def header_entries(layout: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, Any]:
    """The safetensors header of tensors (name → dtype and shape) that follow one another."""
    entries, start = {}, 0
    for name, (dtype, shape) in layout.items():
        end = start + math.prod(shape) * DTYPES[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return entries


def blocks(values: Tensor | LazyImages) -> Iterable[memoryview]:
    """The bytes of a tensor or of images in a file, some rows at a time."""
    row_bytes = math.prod(values.shape[1:]) * values.dtype.itemsize
    for rows in values.split(max(1, BLOCK_BYTES // max(1, row_bytes))):
        yield rows.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def fingerprint_of(
    shape: tuple[int, ...],
    blocks: Iterable[bytes | memoryview],
    labels: Int64[Tensor, " n"],
    classes: Sequence[str],
    split: tuple[Sequence[str], Tensor] | None = None,
) -> str:
    """A hash of pixels, labels and names.

    Args:
        blocks: the pixels of all images, one after the other.
        split: the names of its parts and the part of each image.
    """
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


def _read_header(file: OpenFile) -> tuple[Any, dict[str, TensorEntry]]:
    """The metadata that kedge wrote, and the tensors."""
    with safe_open(file.path, "pt"):  # checks that shapes and offsets fit together and the file
        pass
    length = int.from_bytes(file.read(8, 0), "little")
    header = json.loads(file.read(length, 8).decode())
    metadata = header.pop("__metadata__", None) or {}
    entries = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        entries[name] = TensorEntry(entry["dtype"], tuple(entry["shape"]), start, end)
    return json.loads(metadata.get("kedge", "null")), entries
