"""The packed image file: safetensors whose pixels are read and written in blocks.

The safetensors library can only map or load a whole file, and only save what is in memory. Pixels
are read with `preadv` when they are indexed: every page of a mapped file that was once touched
counts as memory of this process, and training touches all of them within an hour.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from safetensors import safe_open
from torch import Tensor

from kedge.data.open_file import OpenFile
from kedge.data.pixel_digests import (
    DIGEST_BYTES,
    DigestWriter,
    PixelVerifier,
    images_per_digest,
)
from kedge.errors import require
from kedge.utils.atomic_io import reading, to_json, write_atomically

PACKED_FORMAT = "kedge-images-1"
BLOCK_BYTES = 1 << 23  # pixels that are read, moved or hashed at a time
READAHEAD = 128  # runs of rows that are announced to the system before the first of them is read
DTYPES = {"U8": torch.uint8, "I64": torch.int64}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
DIGESTS = "pixel_digests"  # the tensor of digests; its name lets it follow the images
VECTORS = ("labels", "part", DIGESTS)  # tensors beside the images
DIGEST_IMAGES = "images_per_digest"  # the key in the metadata


class LazyImages:
    """Images of a file, indexed like a tensor N×C×H×W; other images of it cannot be reached."""

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self,
        file: OpenFile,
        offset: int,
        image_shape: Sequence[int],
        numbers: Int64[np.ndarray, " n"],
        checksum: str = "",
        verifier: PixelVerifier | None = None,
    ) -> None:
        """`offset` is where image 0 of the file begins; `numbers` are the images to show."""
        self._file, self._offset, self._numbers, self._checksum = file, offset, numbers, checksum
        self._verifier = verifier
        self.shape = torch.Size((len(numbers), *image_shape))

    def __repr__(self) -> str:
        return f"LazyImages({'×'.join(map(str, self.shape))}, {str(self._file.path)!r})"

    def __len__(self) -> int:
        return len(self._numbers)

    def numel(self) -> int:
        return self.shape.numel()

    def __getitem__(
        self, rows: int | slice | Int64[Tensor, "*rows"] | Bool[Tensor, " n"]
    ) -> UInt8[Tensor, "*rows c h w"]:
        """Rows may come in any order and more than once."""
        numbers = np.asarray(self._numbers[_numpy_index(rows)])
        pixels = torch.empty((*numbers.shape, *self.shape[1:]), dtype=torch.uint8)
        self._read(numbers.ravel(), pixels.view(-1).numpy().data)
        return pixels

    def __iter__(self) -> Iterator[UInt8[Tensor, "c h w"]]:
        return (self[i] for i in range(len(self)))

    def split(self, n: int) -> Iterator[UInt8[Tensor, "_ c h w"]]:
        """All images, n at a time; one empty batch if there are none, as of a tensor."""
        return (self[first : first + n] for first in range(0, max(1, len(self)), n))

    def subset(self, rows: Int64[Tensor, " rows"]) -> LazyImages:
        """Only these images; no pixel is read."""
        numbers = self._numbers[_numpy_index(rows)]
        rest = self._checksum, self._verifier
        return LazyImages(self._file, self._offset, self.shape[1:], numbers, *rest)

    @property
    def is_verified(self) -> bool:
        """Whether damage is found when images are read; earlier files have no digests."""
        return self._verifier is not None

    @property
    def origin(self) -> tuple[str, bytes]:
        """The checksum of the file, or "", and the numbers of these images in it."""
        return self._checksum, self._numbers.tobytes()

    def _read(self, numbers: Int64[np.ndarray, " n"], buffer: memoryview) -> None:
        """Images with consecutive numbers are read in one call."""
        if self._verifier is not None:
            self._verifier.verify(numbers)
        size = math.prod(self.shape[1:])
        reads = [
            (buffer[first * size : last * size], self._offset + int(numbers[first]) * size)
            for first, last in runs(numbers)
        ]
        for group in (reads[i : i + READAHEAD] for i in range(0, len(reads), READAHEAD)):
            if len(group) > 1:
                for part, offset in group:
                    self._file.prefetch(len(part), offset)
            for part, offset in group:
                self._file.fill(part, offset)


def runs(numbers: Int64[np.ndarray, " n"]) -> list[tuple[int, int]]:
    """Start and end (exclusive) of each run of consecutive numbers."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
    return list(pairwise([*starts, len(numbers)]))


def _numpy_index(rows: int | slice | Tensor) -> int | slice | np.ndarray:
    if not isinstance(rows, Tensor):
        return rows
    if rows.dtype not in (torch.int64, torch.bool):
        raise TypeError(f"rows are int64 or a mask, not {rows.dtype}")
    return rows.numpy()


def read_packed(path: Path) -> tuple[dict[str, Any], LazyImages, dict[str, Tensor]]:
    """What kedge wrote in the metadata, the images (not loaded), and labels and parts."""
    with reading(path, "packed image file"):
        file = OpenFile(path)
        # Opening checks that the header's shapes and offsets fit together and the file.
        with safe_open(path, "pt") as tensors:
            metadata = json.loads((tensors.metadata() or {}).get("kedge", "null"))
            vectors = {k: tensors.get_tensor(k).clone() for k in VECTORS if k in tensors.keys()}
        header = file.read(int.from_bytes(file.read(8, 0), "little"), 8)
        images = json.loads(header).get("images")
    require(isinstance(metadata, dict), f"{path}: not a packed image file that kedge wrote.")
    kind = "a model" if metadata.get("format") == "kedge-model" else "another file"
    require(
        metadata.get("format") == PACKED_FORMAT,
        f"{path}: this is {kind} of kedge, not packed images; give images, or a file written by "
        "'kedge data pack'.",
    )
    ok = images is not None and images["dtype"] == "U8" and len(images["shape"]) == 4
    require(ok and 0 not in images["shape"], f"{path}: holds no uint8 images of shape N×C×H×W.")
    n, *image_shape = images["shape"]
    offset, numbers = 8 + len(header) + images["data_offsets"][0], np.arange(n, dtype=np.int64)
    checksum, verifier = str(metadata.get("fingerprint", "")), None
    if (digests := vectors.pop(DIGESTS, None)) is not None:
        per_digest = metadata.get(DIGEST_IMAGES)
        ok = type(per_digest) is int and 0 < per_digest < 1 << 63
        ok = ok and digests.dtype == torch.uint8
        require(ok, f"{path}: damaged; pack the images again.")
        verifier = PixelVerifier(
            path,
            lambda n, start: file.read(n, offset + start),
            n,
            math.prod(image_shape),
            per_digest,
            digests.numpy(),
        )
    return metadata, LazyImages(file, offset, image_shape, numbers, checksum, verifier), vectors


def write_packed(
    path: Path, tensors: Mapping[str, Tensor], images: Tensor | LazyImages, metadata: dict[str, Any]
) -> None:
    """Write, block by block, the same bytes that the safetensors library would write."""
    values: dict[str, Tensor | LazyImages] = {**tensors, "images": images}
    order = sorted(values, key=lambda name: (-values[name].dtype.itemsize, name))
    layout: dict[str, tuple[str, Sequence[int]]] = {
        name: (DTYPE_NAMES[values[name].dtype], values[name].shape) for name in order
    }
    image_bytes = math.prod(images.shape[1:])
    layout[DIGESTS] = digests_layout(len(images), image_bytes)
    per_digest = {DIGEST_IMAGES: images_per_digest(image_bytes)}
    text = to_json({"format": PACKED_FORMAT, **metadata, **per_digest})
    content = {"__metadata__": {"kedge": text}, **header_entries(layout)}
    header = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)

    def write(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little") + header)
        digests = DigestWriter(image_bytes)
        for name in order:
            for block in blocks(values[name]):
                file.write(block)
                if name == "images":
                    digests.update(block)
        file.write(digests.finish().data)

    write_atomically(path, write)


def digests_layout(n_images: int, image_bytes: int) -> tuple[str, tuple[int, int]]:
    """Type and shape of the tensor of digests, which is the last of the file."""
    return "U8", (-(-n_images // images_per_digest(image_bytes)), DIGEST_BYTES)


def header_entries(layout: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, Any]:
    """The safetensors header of tensors (name → dtype and shape) that follow one another."""
    entries, start = {}, 0
    for name, (dtype, shape) in layout.items():
        end = start + math.prod(shape) * DTYPES[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return entries


def blocks(values: Tensor | LazyImages) -> Iterator[memoryview]:
    """The bytes of a tensor or of images in a file, some rows at a time."""
    row_bytes = math.prod(values.shape[1:]) * values.dtype.itemsize
    for rows in values.split(max(1, BLOCK_BYTES // max(1, row_bytes))):
        yield rows.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def fingerprint_of(
    shape: Sequence[int],
    blocks: Iterable[bytes | memoryview],
    labels: Int64[Tensor, " n"],
    classes: Sequence[str],
    parts: Sequence[str],
    part: UInt8[Tensor, " n"] | None,
) -> str:
    """A hash of pixels (in blocks), labels, names, and the part of the split of each image."""
    sha = hashlib.sha256(f"images {torch.uint8} {tuple(shape)}".encode())
    for block in blocks:
        sha.update(block)
    sha.update(f"labels {labels.dtype} {tuple(labels.shape)}".encode())
    sha.update(labels.contiguous().view(torch.uint8).numpy().data)
    if part is not None:
        sha.update(json.dumps(parts).encode())
        sha.update(part.contiguous().numpy().data)
    names = hashlib.sha256(json.dumps(classes).encode()).hexdigest()
    return f"{sha.hexdigest()[:16]}-{names[:16]}"
