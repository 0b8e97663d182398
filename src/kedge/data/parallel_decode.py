"""All pictures of a catalogue to pixels, in parallel, over whatever damage there is."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from kedge.data.decode import (
    ImageSpec,
    Measured,
    Picture,
    huge_ones_without_warning,
    measure,
)
from kedge.data.decode_worker import (
    Answers,
    Worker,
    decode_each,
)
from kedge.data.index import (
    ImageIndex,
    ImageSource,
    spread,
)
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import counted

T = TypeVar("T")
CHUNK = 64  # pictures that a worker decodes at a time
LARGEST = 84  # px: the size chosen for photographs, as in the paper
A_FEW = 200  # pictures are looked at to choose size and channels
WORTH_PROCESSES = 2000  # pictures
BATCH_BYTES, WAITING_BYTES = 1 << 23, 1 << 26  # of pictures before they are decoded
NAMED = 20  # unreadable pictures are named, more are counted


@dataclass(frozen=True)
class Decoded:
    """A chunk: the pictures that could be read, and what the matter is with the others."""

    numbers: Int64[np.ndarray, " good"]  # of pictures in the catalogue
    pixels: UInt8[np.ndarray, "good c h w"]
    unreadable: dict[int, str]  # number → reason

    @property
    def last(self) -> int:
        """The number of the last picture."""
        return max([*self.numbers[-1:].tolist(), *self.unreadable])


def suited(
    catalogue: ImageIndex,
    image_size: int | None = None,
    n_channels: int | None = None,
    fit: Literal["crop", "stretch"] = "crop",
) -> ImageSpec:
    """Size and channels that suit the pictures, where they are not given: those of small pictures
    are kept as they are."""
    if image_size is not None and not 16 <= image_size <= 4096:
        raise KedgeError(f"--image-size is {image_size}: it must be from 16 to 4096 px.")
    image_size = image_size or catalogue.image_size
    if image_size is None or n_channels is None:
        seen = [look for look in measured(catalogue, A_FEW) if isinstance(look, Measured)]
        if not seen:
            raise KedgeError(f"{catalogue.path}: none of the images could be read.")
        side = int(np.median([min(look.width, look.height) for look in seen]))
        image_size = image_size or min(LARGEST, max(16, side))
        n_channels = n_channels or (1 if all(look.grey for look in seen) else 3)
    return ImageSpec(image_size, n_channels, fit, catalogue.inverted)


def measured(catalogue: ImageIndex, most: int) -> Iterator[Measured | None]:
    """Of some pictures, spread evenly; None of those that are no pictures."""
    numbers = spread(len(catalogue), most)
    with huge_ones_without_warning():
        for picture in catalogue.pictures.fetch(numbers):
            try:
                yield measure(picture)
            except Exception:  # a damaged file makes Pillow's decoders raise anything
                yield None


def decoded(pictures: ImageSource, look: ImageSpec, chunks: Sequence[int]) -> Iterator[Decoded]:
    """These chunks of the pictures, one after the other. Few are in memory at a time."""
    # Each worker is asked by one thread at a time. Few pictures are not worth starting any.
    n = n_workers() if len(chunks) * CHUNK >= WORTH_PROCESSES else 0
    workers = [Worker() for _ in range(n)]
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def some(batch: Batch) -> Decoded:
        if not workers:
            return _sorted_out(batch, decode_each(batch.pictures, look), look)
        worker = free.get()
        try:
            return _sorted_out(batch, worker(batch.pictures, look), look)
        finally:
            free.put(worker)

    def parts() -> Iterator[Batch]:
        for chunk in chunks:
            yield from batches(pictures, range(chunk * CHUNK, min((chunk + 1) * CHUNK, n_all)))

    n_all = len(pictures)
    found: list[Decoded] = []
    try:
        for part in in_parallel(some, parts()):
            found.append(part)
            if part.last % CHUNK == CHUNK - 1 or part.last == n_all - 1:  # of its chunk
                yield _merged(found)
                found = []
    finally:
        for worker in workers:
            worker.close()


@dataclass(frozen=True)
class Batch:
    """Pictures that are decoded together."""

    numbers: list[int]
    pictures: list[Picture]
    n_bytes: int


def batches(pictures: ImageSource, numbers: Sequence[int]) -> Iterator[Batch]:
    """So many as make a chunk, or fewer if they are large."""
    waiting: list[int] = []
    fetched: list[Picture] = []
    size = 0
    for number, picture in zip(numbers, pictures.fetch(numbers), strict=True):
        waiting.append(number)
        fetched.append(picture)
        size += 0 if isinstance(picture, Path) else _size(picture)
        if len(waiting) == CHUNK or size > BATCH_BYTES:
            yield Batch(waiting, fetched, size)
            waiting, fetched, size = [], [], 0
    if waiting:
        yield Batch(waiting, fetched, size)


def _size(picture: bytes | np.ndarray) -> int:
    return picture.nbytes if isinstance(picture, np.ndarray) else len(picture)


def in_parallel(work: Callable[[Batch], T], batches: Iterator[Batch]) -> Iterator[T]:
    """The work on each batch, in their order. What waits is bounded in number and in bytes."""
    waiting: deque[tuple[Future[T], int]] = deque()
    with huge_ones_without_warning(), ThreadPoolExecutor(n_workers()) as pool:
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


def n_workers() -> int:
    """No more than eight: each takes memory, and together they outrun most disks."""
    mine = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 2)
    )
    return max(2, min(len(mine), 8))


def _sorted_out(batch: Batch, answers: Answers, look: ImageSpec) -> Decoded:
    unreadable = {i: a for i, a in zip(batch.numbers, answers, strict=True) if isinstance(a, str)}
    good = [i for i in batch.numbers if i not in unreadable]
    pixels = np.empty((len(good), look.n_channels, *[look.image_size] * 2), dtype=np.uint8)
    readable = (answer for answer in answers if not isinstance(answer, str))
    for place, answer in zip(pixels, readable, strict=True):
        place[:] = answer
    return Decoded(np.array(good, dtype=np.int64), pixels, unreadable)


def _merged(parts: list[Decoded]) -> Decoded:
    if len(parts) == 1:
        return parts[0]
    return Decoded(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.pixels for part in parts]),
        {i: reason for part in parts for i, reason in part.unreadable.items()},
    )


def n_chunks(pictures: ImageSource) -> int:
    return -(-len(pictures) // CHUNK)


def rows_by_class(catalogue: ImageIndex) -> Int64[np.ndarray, " n"]:
    """Picture → row of the table in which all images of a class stand together."""
    rows = np.empty(len(catalogue), dtype=np.int64)
    rows[np.argsort(catalogue.labels, kind="stable")] = np.arange(len(catalogue))
    return rows


def in_memory(catalogue: ImageIndex, look: ImageSpec) -> ImageTable:
    """All of it. Pictures that cannot be read are counted, named and left out."""
    rows, side = rows_by_class(catalogue), look.image_size
    pixels = np.empty((len(catalogue), look.n_channels, side, side), dtype=np.uint8)
    unreadable: dict[int, str] = {}
    with progress.task("reading images", len(catalogue)) as tick:
        for chunk in decoded(catalogue.pictures, look, range(n_chunks(catalogue.pictures))):
            pixels[rows[chunk.numbers]] = chunk.pixels
            unreadable |= chunk.unreadable
            tick(len(chunk.numbers) + len(chunk.unreadable))
    kept = Kept.of(catalogue, unreadable)
    for remark in kept.remarks:
        progress.remark(f"{catalogue.path}: {remark}")
    if unreadable:
        pixels = pixels[kept.rows]
    return ImageTable(
        torch.from_numpy(pixels),
        torch.from_numpy(kept.labels),
        kept.classes,
        str(catalogue.path),
        catalogue.parts,
        torch.from_numpy(kept.part) if catalogue.parts else None,
        fit=look.fit,
        inverted=look.inverted,
    )


@dataclass(frozen=True)
class Kept:
    """What of a catalogue could be read, in the order of the table."""

    rows: Int64[np.ndarray, " good"]  # of the table that has a place for every picture
    labels: Int64[np.ndarray, " good"]
    part: UInt8[np.ndarray, " parts"]
    classes: tuple[str, ...]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, catalogue: ImageIndex, unreadable: dict[int, str]) -> Kept:
        order = np.argsort(catalogue.labels, kind="stable")
        good = ~np.isin(order, list(unreadable))
        if not good.any():
            first, reason = next(iter(unreadable.items()))
            raise KedgeError(
                f"{catalogue.pictures.name(first)}: cannot be read as an image ({reason}), nor "
                "can any other."
            )
        numbers = order[good]
        there, labels = np.unique(catalogue.labels[numbers], return_inverse=True)
        classes = tuple(catalogue.classes[i] for i in there)
        remarks = []
        if unreadable:
            first = min(unreadable)
            remarks.append(
                f"{len(unreadable)} of {counted(len(catalogue), 'image')} could not be read and "
                f"{'was' if len(unreadable) == 1 else 'were'} left out, the first is "
                f"{catalogue.pictures.name(first)} ({unreadable[first]})"
            )
        lost = [name for name in catalogue.classes if name not in set(classes)]
        if lost:
            what = counted(len(lost), "class has", "classes have")
            remarks.append(
                f"{what} no image that could be read and {'was' if len(lost) == 1 else 'were'} "
                f"left out: {', '.join(lost[:5])}{', …' if len(lost) > 5 else ''}"
            )
        part = catalogue.part[numbers] if catalogue.parts else catalogue.part
        return cls(np.flatnonzero(good), labels.reshape(-1), part, classes, tuple(remarks))
