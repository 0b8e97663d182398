"""All images of an index decoded in parallel; damaged ones are counted and left out."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from kedge.data.decode import (
    ImageHeader,
    ImageSpec,
    RawImage,
    ResizeMode,
    ignore_size_warnings,
    read_header,
)
from kedge.data.decode_worker import DecodeWorker, decode_each
from kedge.data.index import ImageIndex, ImageSource, evenly_spaced
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import pluralize

T = TypeVar("T")
CHUNK = 64  # images that a worker decodes at a time; saved in the journal of a packing
LARGEST = 84  # px: the inferred size of photographs, as in the paper
PROBED = 200  # images whose headers are read to infer size and channels
WORTH_PROCESSES = 2000  # images; fewer are decoded by threads
BATCH_BYTES, WAITING_BYTES = 1 << 23, 1 << 26  # of undecoded images


@dataclass(frozen=True)
class DecodedChunk:
    """Consecutive images of an index: those that could be decoded, and why others could not."""

    numbers: Int64[np.ndarray, " good"]  # in the index
    pixels: UInt8[np.ndarray, "good c h w"]
    unreadable: dict[int, str]  # number → reason

    @property
    def last(self) -> int:
        """The number of the last image."""
        return max([*self.numbers[-1:].tolist(), *self.unreadable])

    def __len__(self) -> int:
        return len(self.numbers) + len(self.unreadable)


def infer_spec(
    index: ImageIndex,
    image_size: int | None = None,
    n_channels: int | None = None,
    resize: ResizeMode = "crop",
) -> ImageSpec:
    """The spec for these images: what is not given follows from the images' headers.

    Small images keep their size, large ones get 84 px.
    """
    if image_size is not None and not 16 <= image_size <= 4096:
        raise KedgeError(f"--image-size is {image_size}: it must be from 16 to 4096 px.")
    image_size = image_size or index.image_size
    if image_size is None or n_channels is None:
        headers = [header for header in read_headers(index, PROBED) if header is not None]
        if not headers:
            raise KedgeError(f"{index.path}: no image could be loaded.")
        side = int(np.median([min(header.width, header.height) for header in headers]))
        image_size = image_size or min(LARGEST, max(16, side))
        n_channels = n_channels or (1 if all(header.grey for header in headers) else 3)
    return ImageSpec(image_size, n_channels, resize, index.inverted)


def read_headers(index: ImageIndex, most: int) -> Iterator[ImageHeader | None]:
    """Headers of at most `most` evenly spaced images; None for files that are no images."""
    with ignore_size_warnings():
        for image in index.images.fetch(evenly_spaced(len(index), most)):
            try:
                yield read_header(image)
            except Exception:  # Pillow's decoders raise anything on damaged files
                yield None


def decode_chunks(
    images: ImageSource, spec: ImageSpec, chunks: Sequence[int]
) -> Iterator[DecodedChunk]:
    """The chunks with these numbers, in order. Only a few are in memory at a time."""
    # One thread at a time talks to a worker. A few images are not worth starting any.
    n = n_workers() if len(chunks) * CHUNK >= WORTH_PROCESSES else 0
    workers = [DecodeWorker() for _ in range(n)]
    idle: SimpleQueue[DecodeWorker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def decode_batch(batch: RawBatch) -> DecodedChunk:
        if not workers:
            return _decoded(batch, decode_each(batch.images, spec), spec)
        worker = idle.get()
        try:
            return _decoded(batch, worker(batch.images, spec), spec)
        finally:
            idle.put(worker)

    def all_batches() -> Iterator[RawBatch]:
        for chunk in chunks:
            numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(images)))
            yield from batches(images, numbers)

    pending: list[DecodedChunk] = []  # batches of an unfinished chunk
    try:
        for part in map_batches(decode_batch, all_batches()):
            pending.append(part)
            if part.last % CHUNK == CHUNK - 1 or part.last == len(images) - 1:
                yield _merge(pending)
                pending = []
    finally:
        for worker in workers:
            worker.close()


@dataclass(frozen=True)
class RawBatch:
    """Undecoded images that are decoded together."""

    numbers: list[int]
    images: list[RawImage]
    n_bytes: int


def batches(images: ImageSource, numbers: Sequence[int]) -> Iterator[RawBatch]:
    """Batches of CHUNK images, or fewer if they are large."""
    batch = RawBatch([], [], 0)
    for number, image in zip(numbers, images.fetch(numbers), strict=True):
        if isinstance(image, np.ndarray):
            n_bytes = image.nbytes
        else:
            n_bytes = 0 if isinstance(image, Path) else len(image)
        batch = RawBatch([*batch.numbers, number], [*batch.images, image], batch.n_bytes + n_bytes)
        if len(batch.numbers) == CHUNK or batch.n_bytes > BATCH_BYTES:
            yield batch
            batch = RawBatch([], [], 0)
    if batch.numbers:
        yield batch


def map_batches(work: Callable[[RawBatch], T], batches: Iterator[RawBatch]) -> Iterator[T]:
    """Results of the work on each batch, in order. Few batches and bytes wait at a time."""
    waiting: deque[tuple[Future[T], int]] = deque()
    with ignore_size_warnings(), ThreadPoolExecutor(n_workers()) as pool:
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
    """At most eight: each takes memory, and together they are faster than most disks."""
    has_affinity = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 2
    return max(2, min(n_cores, 8))


def _decoded(batch: RawBatch, results: Sequence[np.ndarray | str], spec: ImageSpec) -> DecodedChunk:
    unreadable = {i: r for i, r in zip(batch.numbers, results, strict=True) if isinstance(r, str)}
    numbers = np.array([i for i in batch.numbers if i not in unreadable], dtype=np.int64)
    pixels = np.empty((len(numbers), spec.n_channels, *[spec.image_size] * 2), dtype=np.uint8)
    decoded = (result for result in results if not isinstance(result, str))
    for target, result in zip(pixels, decoded, strict=True):
        target[:] = result
    return DecodedChunk(numbers, pixels, unreadable)


def _merge(parts: list[DecodedChunk]) -> DecodedChunk:
    if len(parts) == 1:
        return parts[0]
    return DecodedChunk(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.pixels for part in parts]),
        {i: reason for part in parts for i, reason in part.unreadable.items()},
    )


def n_chunks(images: ImageSource) -> int:
    return -(-len(images) // CHUNK)


def class_sorted_rows(index: ImageIndex) -> Int64[np.ndarray, " n"]:
    """Number of an image → its row in a table that is sorted by class."""
    rows = np.empty(len(index), dtype=np.int64)
    rows[np.argsort(index.labels, kind="stable")] = np.arange(len(index))
    return rows


def decode_to_table(index: ImageIndex, spec: ImageSpec) -> ImageTable:
    """All images that can be decoded, as a table in memory."""
    rows, size = class_sorted_rows(index), spec.image_size
    pixels = np.empty((len(index), spec.n_channels, size, size), dtype=np.uint8)
    unreadable: dict[int, str] = {}
    with progress.task("reading images", len(index)) as tick:
        for chunk in decode_chunks(index.images, spec, range(n_chunks(index.images))):
            pixels[rows[chunk.numbers]] = chunk.pixels
            unreadable |= chunk.unreadable
            tick(len(chunk))
    readable = ReadableRows.of(index, unreadable)
    for remark in readable.remarks:
        progress.note_once(f"{index.path}: {remark}")
    return ImageTable(
        torch.from_numpy(pixels[readable.rows] if unreadable else pixels),
        torch.from_numpy(readable.labels),
        readable.classes,
        str(index.path),
        index.parts,
        torch.from_numpy(readable.part) if index.parts else None,
        resize=spec.resize,
        inverted=spec.inverted,
    )


@dataclass(frozen=True)
class ReadableRows:
    """The images of an index that could be decoded, in the table's order."""

    rows: Int64[np.ndarray, " good"]  # of a table with a row for every image of the index
    labels: Int64[np.ndarray, " good"]
    part: UInt8[np.ndarray, " parts"]
    classes: tuple[str, ...]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, index: ImageIndex, unreadable: dict[int, str]) -> ReadableRows:
        order = np.argsort(index.labels, kind="stable")
        good = ~np.isin(order, list(unreadable))
        if not good.any():
            first, reason = next(iter(unreadable.items()))
            raise KedgeError(
                f"{index.images.name(first)}: cannot be read as an image ({reason}), nor can any "
                "other."
            )
        numbers = order[good]
        used, labels = np.unique(index.labels[numbers], return_inverse=True)
        classes = tuple(index.classes[i] for i in used)
        remarks = []
        if unreadable:
            first, were = min(unreadable), "was" if len(unreadable) == 1 else "were"
            remarks.append(
                f"{len(unreadable)} of {pluralize(len(index), 'image')} could not be read and "
                f"{were} left out, the first is {index.images.name(first)} ({unreadable[first]})"
            )
        if lost := [name for name in index.classes if name not in set(classes)]:
            have = pluralize(len(lost), "class has", "classes have")
            remarks.append(
                f"{have} no image that could be read and {'was' if len(lost) == 1 else 'were'} "
                f"left out: {', '.join(lost[:5])}{', …' if len(lost) > 5 else ''}"
            )
        part = index.part[numbers] if index.parts else index.part
        return cls(np.flatnonzero(good), labels.reshape(-1), part, classes, tuple(remarks))
