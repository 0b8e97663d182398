"""All images of an index decoded in parallel; damaged ones are counted and left out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from kedge.data.copies import Signatures, copy_remarks
from kedge.data.decode import ImageSpec, RawImage
from kedge.data.decode_pool import Charge, decode_each, n_workers, read_headers
from kedge.data.image_codec import ResizeMode
from kedge.data.index import ImageIndex, ImageSource, evenly_spaced
from kedge.data.remarks import Remark, unreadable_images, worst_first
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.utils import progress
from kedge.utils.text import list_some, pluralize

T = TypeVar("T")
CHUNK = 64  # images that a worker decodes at a time; saved in the journal of a packing
LARGEST = 84  # px: the inferred size of photographs, as in the paper
MIN_PHOTOGRAPH = 64  # px: colour images of at least this side are taken for photographs
MOST_STOPS = 1  # images that may end their decoder, or 1% of them
MOST_OVERTIME = 2.0  # seconds of processor time by which all images may be slower than is usual
PROBED = 200  # images whose headers are read to infer size and channels
BATCH_BYTES, WAITING_BYTES = 1 << 23, 1 << 26  # of undecoded images


@dataclass(frozen=True)
class RawBatch:
    """Undecoded images of an index that are decoded together."""

    numbers: list[int]  # in the index
    images: list[RawImage]

    @property
    def n_bytes(self) -> int:
        """Bytes of the images that are in memory."""
        loaded = (image for image in self.images if not isinstance(image, Path))
        return sum(x.nbytes if isinstance(x, np.ndarray) else len(x) for x in loaded)


@dataclass(frozen=True)
class DecodedBatch:
    """The images of a batch that could be decoded, and why others could not."""

    last: int  # number of the last image
    numbers: Int64[np.ndarray, " good"]
    pixels: UInt8[np.ndarray, "good c h w"]
    unreadable: dict[int, str]  # number → reason

    def __len__(self) -> int:
        return len(self.numbers) + len(self.unreadable)


def infer_spec(
    index: ImageIndex,
    image_size: int | None = None,
    n_channels: int | None = None,
    resize: ResizeMode = "crop",
    photograph_size: int | None = None,
) -> ImageSpec:
    """A spec from the images' headers: small ones keep their size, large ones get 84 px, and
    photographs (in colour, 64 px or more) get `photograph_size` if that is given."""
    ok = image_size is None or 16 <= image_size <= 4096
    require(ok, f"--image-size is {image_size}: it must be from 16 to 4096 px.")
    image_size = image_size or index.image_size
    if image_size is None or n_channels is None:
        probes = batches(index.images, evenly_spaced(len(index), PROBED))
        guard = StopGuard(index.images, PROBED)
        read = map_batches(lambda batch: read_headers(batch.images, guard.of(batch)), probes)
        headers = [header for headers in read for header in headers if header is not None]
        if not headers:
            first = next(batches(index.images, [0]))
            reason = decode_each(first.images, ImageSpec(LARGEST, 3))[0].reason
            raise KedgeError(
                f"{index.path}: no image could be loaded, the first is {index.images.name(0)} "
                f"({reason})."
            )
        side = int(np.median([min(header.width, header.height) for header in headers]))
        n_channels = n_channels or (1 if all(header.grey for header in headers) else 3)
        if n_channels == 3 and side >= MIN_PHOTOGRAPH:
            image_size = image_size or photograph_size
        image_size = image_size or min(LARGEST, max(16, side))
    return ImageSpec(image_size, n_channels, resize, index.inverted)


def decode_images(
    images: ImageSource, spec: ImageSpec, numbers: Sequence[int]
) -> Iterator[DecodedBatch]:
    """The images with these numbers in order, in batches. Only a few are in memory at a time."""

    guard = StopGuard(images, len(numbers))

    def decode_batch(batch: RawBatch) -> DecodedBatch:
        results = decode_each(batch.images, spec, guard.of(batch))
        decoded = dict(zip(batch.numbers, results, strict=True))
        good = {i: each.pixels for i, each in decoded.items() if each.pixels is not None}
        pixels = np.array([*good.values()], np.uint8).reshape(-1, *spec.shape)
        unreadable = {i: each.reason for i, each in decoded.items() if each.pixels is None}
        return DecodedBatch(batch.numbers[-1], np.array([*good], np.int64), pixels, unreadable)

    return map_batches(decode_batch, batches(images, numbers))


class StopGuard:
    """Refuses images of which more than a few end their decoder, or which take much longer than
    images of so many bytes do: together they look like an attack or a broken decoder."""

    def __init__(self, images: ImageSource, n: int) -> None:
        self._images, self._left = images, max(MOST_STOPS, n // 100)
        self._overtime = 0.0
        self._lock = Lock()

    def of(self, batch: RawBatch) -> Charge:
        """What to call with the position of an image in the batch, and with its overtime."""

        def charge(position: int, overtime: float) -> None:
            with self._lock:
                if overtime == math.inf:
                    self._left -= 1
                else:
                    self._overtime += overtime
                if self._left < 0 or self._overtime > MOST_OVERTIME:
                    raise KedgeError(
                        f"{self._images.name(batch.numbers[position])}: too many images, of which "
                        "this is one, make the decoder crash or take too long; get them from a "
                        "source you trust, or leave these out."
                    )

        return charge


def batches(images: ImageSource, numbers: Sequence[int]) -> Iterator[RawBatch]:
    """Batches of CHUNK images; several batches of such a chunk if the images are large."""
    for start in range(0, len(numbers), CHUNK):
        chunk, batch = numbers[start : start + CHUNK], RawBatch([], [])
        for number, image in zip(chunk, images.fetch(chunk), strict=True):
            batch.numbers.append(number)
            batch.images.append(image)
            if batch.n_bytes > BATCH_BYTES or number == chunk[-1]:
                yield batch
                batch = RawBatch([], [])


def map_batches(work: Callable[[RawBatch], T], batches: Iterator[RawBatch]) -> Iterator[T]:
    """Results of the work on each batch, in order. Few batches and bytes wait at a time."""
    waiting: deque[tuple[Future[T], int]] = deque()
    with ThreadPoolExecutor(n_workers()) as pool:
        try:
            for batch in batches:
                waiting.append((pool.submit(work, batch), batch.n_bytes))
                while len(waiting) > n_workers() + 1 or sum(n for _, n in waiting) > WAITING_BYTES:
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            for future, _ in waiting:
                future.cancel()


def class_sorted_rows(index: ImageIndex) -> Int64[np.ndarray, " n"]:
    """Number of an image → its row in a table that is sorted by class."""
    return np.argsort(np.argsort(index.labels, kind="stable"), kind="stable")


def decode_to_table(index: ImageIndex, spec: ImageSpec) -> ImageTable:
    """All images that can be decoded, as a table in memory."""
    rows = class_sorted_rows(index)
    pixels = np.empty((len(index), *spec.shape), dtype=np.uint8)
    signatures = Signatures(len(index))
    unreadable: dict[int, str] = {}
    with progress.task("reading images", len(index)) as tick:
        for batch in decode_images(index.images, spec, range(len(index))):
            pixels[rows[batch.numbers]] = batch.pixels
            signatures.set(rows[batch.numbers], batch.pixels)
            unreadable |= batch.unreadable
            tick(len(batch))
    readable, rows, remarks = leave_out(index, unreadable)
    return ImageTable(
        torch.from_numpy(pixels[rows] if unreadable else pixels),
        torch.from_numpy(readable.labels),
        readable.classes,
        str(index.path),
        index.parts,
        torch.from_numpy(readable.part) if index.parts else None,
        resize=spec.resize,
        inverted=spec.inverted,
        interpolation=spec.interpolation,
        remarks=delivery_remarks(index, readable, remarks, signatures.select(rows)),
        empty_classes=(*index.empty_classes, *lost_classes(index, readable)),
    )


def delivery_remarks(
    index: ImageIndex, readable: ImageIndex, left_out: Sequence[str], signatures: Signatures
) -> tuple[str, ...]:
    """All remarks on images that have been decoded; `readable` are those that could be."""
    return worst_first((*index.all_remarks, *left_out, *copy_remarks(readable, signatures)))


def lost_classes(index: ImageIndex, readable: ImageIndex) -> list[str]:
    """The classes of which no image could be decoded."""
    present = set(readable.classes)
    return [name for name in index.classes if name not in present]


def leave_out(
    index: ImageIndex, unreadable: dict[int, str]
) -> tuple[ImageIndex, Int64[np.ndarray, " good"], list[Remark]]:
    """The other images sorted by class, their rows of a table of all images, and remarks."""
    order = np.argsort(index.labels, kind="stable")
    good = ~np.isin(order, list(unreadable))
    first = index.images.name(min(unreadable)) if unreadable else ""
    reason = unreadable[min(unreadable)] if unreadable else ""
    require(bool(good.any()), f"{first}: cannot be read as an image ({reason}), nor can any other.")
    readable, remarks = index.select(order[good]), list[Remark]()
    if unreadable:
        verb = f"could not be read and {'was' if len(unreadable) == 1 else 'were'} left out"
        remarks.append(unreadable_images(unreadable, index.images.name, len(index), verb))
    if lost := lost_classes(index, readable):
        remark = (
            f"{pluralize(len(lost), 'class has', 'classes have')} no image that could be read and "
            f"{'was' if len(lost) == 1 else 'were'} left out: {list_some(lost, 5)}"
        )
        remarks.append(Remark(remark, "lost"))
    return readable, np.flatnonzero(good), remarks
