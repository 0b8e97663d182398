"""The one image store: uint8 images sorted by class, in memory or in one packed file.

The file is safetensors: loading it runs no code, and of a large one no pixel is read until it is
asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from kedge.data.decode import ResizeMode
from kedge.data.lazy_images import LazyImages
from kedge.data.packed_file import (
    PackedFile,
    blocks,
    fingerprint_of,
    write_packed,
)
from kedge.errors import KedgeError
from kedge.utils.text import counted, plain_name

STORE_FORMAT = "kedge-images-1"
SMALL = 1 << 28  # bytes of pixels: fewer are read into memory, where small images are had sooner


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Images with labels and class names. Rows of one class stand together, sizes may differ."""

    images: UInt8[Tensor, "n c h w"] | LazyImages
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    source: str
    parts: tuple[str, ...] = ()  # of the split that the images came with: "train", "val", "test"
    part: UInt8[Tensor, " n"] | None = None  # of each image, where there are parts
    checksum: str = ""  # of the file it was loaded from; `fingerprint` where it was not
    fit: ResizeMode = "crop"  # how pictures became squares: new ones must be treated alike
    inverted: bool = False  # whether dark and bright were exchanged

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise KedgeError(f"{self.source}: images must be uint8 of shape N×C×H×W.")
        if self.images.shape[1] not in (1, 3):
            raise KedgeError(f"{self.source}: images must have 1 or 3 channels.")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise KedgeError(f"{self.source}: there must be one label for each image.")
        if len(set(self.classes)) != len(self.classes):
            raise KedgeError(f"{self.source}: two classes have the same name.")
        expected = torch.repeat_interleave(torch.arange(len(self.classes)), self.counts)
        if int(self.counts.sum()) != len(self) or not torch.equal(self.labels, expected):
            raise KedgeError(
                f"{self.source}: labels must be sorted, and numbers from 0 to "
                f"{len(self.classes) - 1}: there are so many names of classes."
            )
        if bool(self.parts) != (self.part is not None):
            raise KedgeError(f"{self.source}: parts of a split need names, and images in them.")
        if self.part is not None and (
            self.part.shape != self.labels.shape or int(self.part.max()) >= len(self.parts)
        ):
            raise KedgeError(f"{self.source}: every image must be in one part of the split.")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n_channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        return self.images.shape[2]

    @cached_property
    def counts(self) -> Int64[Tensor, " classes"]:
        """Images per class."""
        inside = self.labels[(self.labels >= 0) & (self.labels < len(self.classes))]
        return torch.bincount(inside, minlength=len(self.classes))

    @cached_property
    def _first_row(self) -> dict[str, tuple[int, int]]:
        ends = self.counts.cumsum(0).tolist()
        counts = self.counts.tolist()
        return {c: (e - n, e) for c, e, n in zip(self.classes, ends, counts, strict=True)}

    def rows_of(self, name: str) -> Int64[Tensor, " images"]:
        """The rows that hold the images of a class."""
        try:
            first, end = self._first_row[name]
        except KeyError:
            raise KedgeError(f"{self.source}: there is no class named '{name}' here.") from None
        return torch.arange(first, end)

    def in_part(self, name: str) -> Bool[Tensor, " n"]:
        """Which images are in a part of the split."""
        if self.part is None or name not in self.parts:
            return torch.zeros(len(self), dtype=torch.bool)
        return self.part == self.parts.index(name)

    def take(self, rows: Int64[Tensor, " rows"]) -> UInt8[Tensor, "rows c h w"]:
        """The pixels of some rows, in any order."""
        if isinstance(self.images, LazyImages):
            return self.images[rows]
        return self.images.index_select(0, rows)  # for bytes some eight times as fast as [rows]

    def only(self, rows: Int64[Tensor, " rows"]) -> ImageTable:
        """Some of the images (rows ascending), with the classes that they are of.

        Those of a file stay there, but no other of its images can be had from this table.
        """
        kept, labels = self.labels[rows].unique(return_inverse=True)
        classes = tuple(self.classes[i] for i in kept.tolist())
        part = None if self.part is None else self.part[rows]
        images = self.images.rows(rows) if isinstance(self.images, LazyImages) else self.take(rows)
        return replace(self, images=images, labels=labels, classes=classes, part=part, checksum="")

    @classmethod
    def build(
        cls,
        images: np.ndarray | Tensor,
        labels: Sequence[int] | np.ndarray | Tensor,
        classes: Sequence[str],
        source: str = "images given in memory",
    ) -> ImageTable:
        """From arrays in any order: N×C×H×W, N×H×W×C or N×H×W, uint8; rows are sorted by class."""
        # A copy only where PyTorch cannot take an array: mirrored or read-only ones.
        if isinstance(images, np.ndarray) and (
            min(images.strides, default=0) < 0 or not images.flags.writeable
        ):
            images = images.copy()
        pixels = torch.as_tensor(images)
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        elif pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[3] in (1, 3):
            pixels = pixels.permute(0, 3, 1, 2)
        order = torch.as_tensor(labels, dtype=torch.int64)
        if order.shape != pixels.shape[:1]:
            raise KedgeError(
                f"{source}: {counted(len(pixels), 'image')} but {counted(len(order), 'label')}."
            )
        if bool((order[1:] < order[:-1]).any()):
            order, rows = torch.sort(order, stable=True)
            pixels = pixels[rows]
        return cls(pixels.contiguous(), order, tuple(map(plain_name, classes)), source)

    def save(self, path: str | Path) -> None:
        """Pack into one file, from which `load` reads what is asked for. Unlike the commands it
        takes the place of what lies there, but only once it is complete."""
        about = {
            "format": STORE_FORMAT,
            "classes": self.classes,
            "source": self.source,
            "fingerprint": self.checksum or self.pixel_fingerprint(),
            "parts": self.parts,
            "look": {"fit": self.fit, "inverted": self.inverted},
        }
        tensors = {"labels": self.labels}
        if self.part is not None:
            tensors["part"] = self.part
        write_packed(Path(path), tensors, self.images, about)

    @classmethod
    def load(cls, path: str | Path) -> ImageTable:
        """Open a packed file. A small one is read; of others, what is asked for when it is."""
        file = PackedFile(Path(path))
        about = file.about
        if about.get("format") != STORE_FORMAT:
            is_model = about.get("format") == "kedge-model"
            what = "a model" if is_model else "another file of kedge's, and no packed images"
            raise KedgeError(
                f"{path}: this is {what}; give images, or a file of 'kedge data pack'."
            )
        try:
            checksum = str(about["fingerprint"])
            look = dict(about.get("look", {}))
            images = file.images(checksum)
            return cls(
                images[:] if images.numel() <= SMALL else images,
                file.vector("labels", "I64", len(images)),
                _names(about["classes"]),
                str(path),
                _names(about.get("parts", [])),
                file.vector("part", "U8", len(images)) if "part" in file.entries else None,
                checksum,
                "stretch" if look.get("fit") == "stretch" else "crop",
                look.get("inverted") is True,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KedgeError(f"{path}: this packed image file lacks {error}.") from None

    @cached_property
    def fingerprint(self) -> str:
        """Of pixels, labels and names: a stopped run must be continued on the same data.

        Some rows of a packed file are known by its checksum and their numbers, since reading
        their pixels may take minutes.
        """
        if self.checksum:
            return self.checksum
        if isinstance(self.images, LazyImages) and self.images.origin[0]:
            checksum, numbers = self.images.origin
            named = [f"rows of {checksum}".encode(), numbers]
            return self._fingerprint(named)
        return self.pixel_fingerprint()

    def pixel_fingerprint(self) -> str:
        """The fingerprint as the pixels have it now, all of which are read."""
        return self._fingerprint(blocks(self.images))

    def _fingerprint(self, pixels: Iterable[bytes | memoryview]) -> str:
        split = (self.parts, self.part) if self.part is not None else None
        return fingerprint_of(tuple(self.images.shape), pixels, self.labels, self.classes, split)


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise TypeError("names of classes")
    try:
        "".join(given).encode()
    except UnicodeEncodeError:
        raise TypeError("names of classes that are UTF-8") from None
    return tuple(given)
