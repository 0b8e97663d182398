"""The image store: uint8 images sorted by class, in memory or in one packed file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from kedge.data.decode import ImageSpec, Interpolation
from kedge.data.image_codec import ResizeMode
from kedge.data.packed_file import LazyImages, blocks, fingerprint_of, read_packed, write_packed
from kedge.data.remarks import remarks_from_json, remarks_to_json
from kedge.errors import KedgeError, require
from kedge.utils.text import list_some, normalize_name, pluralize

EAGER_BYTES = 1 << 28  # files with fewer bytes of pixels are loaded into memory
N_NAMES = 6  # of classes that are shown


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Images of one size with class names, sorted by label. Wrong fields raise KedgeError."""

    images: UInt8[Tensor, "n c h w"] | LazyImages
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    source: str  # where the images come from, for messages
    parts: tuple[str, ...] = ()  # of the data set's own split: "train", "val", "test"
    part: UInt8[Tensor, " n"] | None = None  # of each image, if there are parts
    checksum: str = ""  # of the file that the table was loaded from
    resize: ResizeMode = "crop"  # how images were made square; new ones must be treated alike
    inverted: bool = False  # whether dark and bright were exchanged
    interpolation: Interpolation = "bicubic"  # with which they were resized
    remarks: tuple[str, ...] = ()  # problems and notes on what was read, the worst first
    empty_classes: tuple[str, ...] = ()  # of which no image could be read

    def __post_init__(self) -> None:
        images, labels, part, n = self.images, self.labels, self.part, len(self.classes)
        self._check_images()
        ok = labels.dtype == torch.int64 and labels.shape == images.shape[:1]
        self._require(ok, "there must be one label for each image")
        self._require(len(set(self.classes)) == n, "two classes have the same name")
        ok = torch.equal(labels, torch.repeat_interleave(torch.arange(n), self.counts))
        self._require(ok, f"labels must be sorted, from 0 to {n - 1}: one for each class name")
        ok = bool(self.parts) == (part is not None)
        if part is not None:
            ok = ok and part.dtype == torch.uint8 and part.shape == labels.shape
            ok = ok and int(part.max()) < len(self.parts)
        self._require(ok, "every image must be in one part of the split")

    def _check_images(self) -> None:
        ok = self.images.dtype == torch.uint8 and self.images.ndim == 4
        self._require(ok, "images must be uint8 of shape N×C×H×W")
        self._require(self.images.shape[1] in (1, 3), "images must have 1 or 3 channels")

    def _require(self, holds: bool, sentence: str) -> None:
        require(holds, f"{self.source}: {sentence}.")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"kedge.ImageTable: {self.summary}\n  {list_some(self.classes, N_NAMES)}"

    @property
    def summary(self) -> str:
        """Where the images come from, how many there are, and of which size."""
        least, most = (int(n) for n in self.counts.aminmax()) if self.classes else (0, 0)
        counts = pluralize(most, "image") if least == most else f"{least} to {most} images"
        colour = "colour" if self.n_channels == 3 else "grey"
        return (
            f"{self.source}: {pluralize(len(self.classes), 'class', 'classes')} of {counts}, at "
            f"{self.image_size} px in {colour}"
        )

    @property
    def n_channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        return self.images.shape[2]

    @property
    def n_views(self) -> int:
        """How many augmented views of each image the table has: none but the image itself."""
        return 1

    @property
    def image_spec(self) -> ImageSpec:
        """How these images were made; new ones for the same model must be made alike."""
        size, channels = self.image_size, self.n_channels
        return ImageSpec(size, channels, self.resize, self.inverted, self.interpolation)

    @cached_property
    def counts(self) -> Int64[Tensor, " classes"]:
        """Images per class."""
        valid = self.labels[(self.labels >= 0) & (self.labels < len(self.classes))]
        return torch.bincount(valid, minlength=len(self.classes))

    @cached_property
    def _row_ranges(self) -> dict[str, tuple[int, int]]:
        ends = [0, *self.counts.cumsum(0).tolist()]
        return dict(zip(self.classes, pairwise(ends), strict=True))

    def rows_of(self, name: str) -> Int64[Tensor, " images"]:
        """The rows that hold the images of a class."""
        self._require(name in self._row_ranges, f"there is no class named '{name}' here")
        return torch.arange(*self._row_ranges[name])

    def in_part(self, name: str) -> Bool[Tensor, " n"]:
        """A mask of the images in a part of the split."""
        if self.part is None or name not in self.parts:
            return torch.zeros(len(self), dtype=torch.bool)
        return self.part == self.parts.index(name)

    def take(self, rows: Int64[Tensor, " rows"]) -> UInt8[Tensor, "rows c h w"]:
        """The pixels of these rows, in any order."""
        if isinstance(self.images, LazyImages):
            return self.images[rows]
        return self.images.index_select(0, rows)  # about 8 times as fast as [rows] for uint8

    def subset(self, rows: Int64[Tensor, " rows"]) -> ImageTable:
        """A table of these images (rows ascending) and their classes, which can read no others."""
        kept, labels = self.labels[rows].unique(return_inverse=True)
        images = self.images
        images = images.subset(rows) if isinstance(images, LazyImages) else self.take(rows)
        classes = tuple(self.classes[i] for i in kept.tolist())
        part = None if self.part is None else self.part[rows]
        return replace(self, images=images, labels=labels, classes=classes, part=part, checksum="")

    def rename(self, names: Sequence[str]) -> ImageTable:
        """The table with other class names; classes that get the same name are one class."""
        distinct = {name: label for label, name in enumerate(dict.fromkeys(names))}
        labels = torch.tensor([distinct[name] for name in names])[self.labels]
        labels, rows = torch.sort(labels, stable=True)
        images, classes = self.images, tuple(distinct)
        if not torch.equal(rows, torch.arange(len(rows))):
            images = images.subset(rows) if isinstance(images, LazyImages) else self.take(rows)
        part = None if self.part is None else self.part[rows]
        return replace(self, images=images, labels=labels, classes=classes, part=part, checksum="")

    @classmethod
    def build(
        cls,
        images: np.ndarray | Tensor,
        labels: Sequence[int] | np.ndarray | Tensor,
        classes: Sequence[str],
        source: str = "images given in memory",
    ) -> ImageTable:
        """A table from uint8 arrays N×C×H×W, N×H×W×C or N×H×W, which need not be sorted."""
        if isinstance(images, np.ndarray):
            # PyTorch takes neither negative strides nor read-only arrays.
            images = np.require(images, requirements=("C", "W"))
        pixels = torch.as_tensor(images)
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        elif pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[3] in (1, 3):
            pixels = pixels.permute(0, 3, 1, 2)
        labels = torch.as_tensor(labels, dtype=torch.int64)
        counts = f"{len(pixels)} images but {len(labels)} labels"
        require(labels.shape == pixels.shape[:1], f"{source}: {counts}.")
        if bool((labels[1:] < labels[:-1]).any()):
            labels, rows = torch.sort(labels, stable=True)
            pixels = pixels[rows]
        return cls(pixels.contiguous(), labels, tuple(map(normalize_name, classes)), source)

    def save(self, path: str | Path) -> None:
        """Write a packed file, atomically. Unlike the commands this replaces an existing file."""
        metadata = {
            "classes": self.classes,
            "source": self.source,
            "fingerprint": self.checksum or self.pixel_fingerprint(),
            "parts": self.parts,
            "look": self.image_spec.treatment(),
        }
        if self.remarks:
            metadata |= remarks_to_json(self.remarks)
        tensors = {"labels": self.labels} | ({} if self.part is None else {"part": self.part})
        write_packed(Path(path), tensors, self.images, metadata)

    @classmethod
    def load(cls, path: str | Path) -> ImageTable:
        """Open a packed file. A small one is loaded; pixels of a large one are read on access."""
        saved, images, vectors = read_packed(Path(path))
        try:
            treatment = dict(saved.get("look", {}))
            interpolation: Any = treatment.get("interpolation")
            table = cls(
                images[:] if images.numel() <= EAGER_BYTES else images,
                vectors["labels"],
                _parse_names(saved["classes"]),
                str(path),
                _parse_names(saved.get("parts", [])),
                vectors.get("part"),
                str(saved["fingerprint"]),
                "stretch" if treatment.get("fit") == "stretch" else "crop",
                treatment.get("inverted") is True,
                interpolation if interpolation in get_args(Interpolation) else "bicubic",
                remarks_from_json(saved),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KedgeError(f"{path}: this packed image file lacks {error}.") from None
        if not images.is_verified and isinstance(table.images, Tensor):
            unchanged = table.pixel_fingerprint() == table.checksum
            require(unchanged, f"{path}: damaged, the checksum does not match; pack it again.")
        return table

    @cached_property
    def fingerprint(self) -> str:
        """A hash of pixels, labels and names; of part of a file: its checksum and their numbers."""
        if isinstance(self.images, LazyImages) and self.images.origin[0] and not self.checksum:
            checksum, numbers = self.images.origin
            return self._fingerprint([f"rows of {checksum}".encode(), numbers])
        return self.checksum or self.pixel_fingerprint()

    def pixel_fingerprint(self) -> str:
        """The fingerprint computed from all pixels."""
        return self._fingerprint(blocks(self.images))

    def _fingerprint(self, pixels: Iterable[bytes | memoryview]) -> str:
        shape, labels, classes = self.images.shape, self.labels, self.classes
        return fingerprint_of(shape, pixels, labels, classes, self.parts, self.part)


def _parse_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("names of classes")
    "".join(names).encode()  # raises ValueError if they cannot be encoded
    return tuple(names)
