"""Packing: every picture decoded once, into one file from which any can be read at once.

The file is the safetensors file that `ImageTable.load` takes. It grows in a folder beside its
place: a stopped packing goes on where it was, and the file appears only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kedge.data.decode import ImageSpec
from kedge.data.index import ImageIndex
from kedge.data.packed_file import fingerprint_of
from kedge.data.parallel_decode import (
    CHUNK,
    NAMED,
    Kept,
    decoded,
    n_chunks,
    rows_by_class,
)
from kedge.data.table import STORE_FORMAT, ImageTable
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.atomic_io import (
    as_text,
    flush_folder,
    load_tensors,
    locked,
    neighbour,
    take_place,
    write_alone,
)
from kedge.utils.text import counted

BLOCK = 1 << 23  # bytes that are moved or summed at a time
DECODER = 2  # counts up when a picture becomes other pixels than before
NOTE_EVERY = 2.0  # seconds between two notes of how far it is
ROOM_FOR_REMARKS = 1 << 15  # bytes


@dataclass(frozen=True)
class Packing:
    """What is packed, and how: the same key gives the same file."""

    catalogue: ImageIndex
    look: ImageSpec

    @property
    def key(self) -> str:
        about = [
            STORE_FORMAT,
            DECODER,
            self.catalogue.stamp,
            self.catalogue.classes,
            asdict(self.look),
        ]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    @property
    def bytes_per_image(self) -> int:
        return self.look.n_channels * self.look.image_size**2

    @property
    def n_bytes(self) -> int:
        return len(self.catalogue) * self.bytes_per_image

    @property
    def header_room(self) -> int:
        """Of the file's header, which is written last: its size must be known at the start."""
        names = json.dumps(json.dumps([self.catalogue.classes, self.catalogue.parts]))
        return (len(names.encode()) + 2 * ROOM_FOR_REMARKS) // 4096 * 4096 + 4096 - 8

    def images_at(self, n: int) -> int:
        """Where pixels begin in a file of n images: behind header, labels and parts."""
        return 8 + self.header_room + n * (9 if self.catalogue.parts else 8)


def pack(catalogue: ImageIndex, look: ImageSpec, out: Path, patience: float = 0.0) -> ImageTable:
    """The store at `out`: at once if it is there, from where it was if it was stopped.

    Where another process is packing it, wait so many seconds for that. Also of processes that work
    as one each comes here when it will: nothing below waits for all of them.
    """
    packing = Packing(catalogue, look)
    folder = neighbour(out, f"{out.name}.packing")
    if not _there(packing, out):
        with locked(out.parent, f".{out.name}.lock", patience):
            if not _there(packing, out):  # another process may have been faster
                _make(packing, folder, out)
    elif folder.is_dir():  # it was stopped when all was done
        with suppress(OSError):
            _discard(folder)
    return ImageTable.load(out)


def _there(packing: Packing, out: Path) -> bool:
    if not out.exists():
        return False
    if key_of(out) == packing.key:
        return True
    raise KedgeError(
        f"{out}: already exists, of other images or another size, and is not overwritten; choose "
        "another --out or delete it."
    )


def key_of(out: Path) -> str | None:
    """What a store was packed from; None if it is no store, or one that was not packed here."""
    with suppress(KedgeError):
        return load_tensors(out, "packed image file")[0].get("key")
    return None


def _make(packing: Packing, folder: Path, out: Path) -> None:
    catalogue = packing.catalogue
    pixels, journal = folder / "images", folder / "journal.json"
    rows, step = rows_by_class(catalogue), packing.bytes_per_image
    base = packing.images_at(len(catalogue))
    try:
        done, unreadable = _begin(packing, folder, pixels, journal)
        file = os.open(pixels, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            left = [chunk for chunk in range(n_chunks(catalogue.pictures)) if chunk not in done]
            noted = time.monotonic()
            try:
                with progress.task("packing images", len(catalogue)) as tick:
                    tick(min(CHUNK * len(done), len(catalogue)))
                    chunks = decoded(catalogue.pictures, packing.look, left)
                    for chunk, some in zip(left, chunks, strict=True):
                        for first, last in _runs(rows[some.numbers]):
                            row = int(rows[some.numbers[first]])
                            _write(file, some.pixels[first:last].data, base + row * step)
                        done.add(chunk)
                        unreadable |= some.unreadable
                        tick(len(some.numbers) + len(some.unreadable))
                        if time.monotonic() - noted > NOTE_EVERY:
                            _note(journal, packing.key, file, done, unreadable)
                            noted = time.monotonic()
            finally:  # when it is stopped, too
                _note(journal, packing.key, file, done, unreadable)
            if len(unreadable) == len(catalogue):
                _discard(folder)  # there is nothing to go on from
            kept = Kept.of(catalogue, unreadable)
            _complete(packing, file, kept, unreadable, journal)
            os.fsync(file)
        finally:
            os.close(file)
        take_place(pixels, out)
        _discard(folder)
    except OSError as error:
        raise KedgeError(
            f"{out}: could not be packed ({error.strerror or error}); what was packed is kept in "
            f"{folder}, and the same command goes on from there."
        ) from error


def _begin(
    packing: Packing, folder: Path, pixels: Path, journal: Path
) -> tuple[set[int], dict[int, str]]:
    """The chunks that are done and the pictures that could not be read, as far as it came."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        said = json.loads(journal.read_text(encoding="utf-8"))
        if (said["key"], said["chunk"]) == (packing.key, CHUNK) and pixels.is_file():
            done = {int(chunk) for chunk in said["done"]}
            return done, {int(k): str(v) for k, v in said["unreadable"].items()}
    _refuse_others(folder)
    _discard(folder)  # of other data, or stopped in a step that cannot be continued
    folder.mkdir(parents=True)
    free, needed = shutil.disk_usage(folder).free, packing.n_bytes
    if needed > free:
        folder.rmdir()
        raise KedgeError(
            f"{folder.parent}: {needed / 1e9:.1f} GB are needed to pack these images, but "
            f"{free / 1e9:.1f} GB are free; make room, choose another place with --out or a "
            "smaller --image-size."
        )
    return set(), {}


def _refuse_others(folder: Path) -> None:
    """Where there is something that packing has not made, it is somebody's."""
    if not folder.exists():
        return
    there = list(folder.iterdir()) if folder.is_dir() else [folder]
    others = sorted(set(there) - {path for path in _made_in(folder) if path.is_file()})
    if others:
        raise KedgeError(
            f"{others[0]}: is not of kedge's making, but lies where packing keeps what is not yet "
            "complete; move it away or choose another --out."
        )


def _discard(folder: Path) -> None:
    """What packing has made, and nothing else."""
    for own in _made_in(folder):
        own.unlink(missing_ok=True)
    with suppress(OSError):  # somebody has put something there meanwhile
        folder.rmdir()


def _made_in(folder: Path) -> list[Path]:
    return [folder / "images", folder / "journal.json", *folder.glob(".journal.json.*.part")]


def _note(journal: Path, key: str, file: int, done: set[int], unreadable: dict[int, str]) -> None:
    """Pixels reach the disk before the note that they are there."""
    os.fsync(file)
    said = json.dumps({"key": key, "chunk": CHUNK, "done": sorted(done), "unreadable": unreadable})
    write_alone(journal, lambda part: part.write_text(said, encoding="utf-8"))


def _complete(
    packing: Packing, file: int, kept: Kept, unreadable: dict[int, str], journal: Path
) -> None:
    """Close the gaps that unreadable pictures left, and write what stands before the pixels."""
    n, step, look = len(kept.rows), packing.bytes_per_image, packing.look
    base = packing.images_at(n)
    if unreadable:
        journal.unlink(missing_ok=True)  # from here on only a new start is safe
        flush_folder(journal.parent)
        old = packing.images_at(len(packing.catalogue))
        for first, last in _runs(kept.rows, BLOCK // step + 1):
            moved = os.pread(file, (last - first) * step, old + int(kept.rows[first]) * step)
            _write(file, moved, base + first * step)
    os.ftruncate(file, base + n * step)
    labels = torch.from_numpy(kept.labels)
    shape = (n, look.n_channels, look.image_size, look.image_size)
    twins = _Twins(kept.labels, step)
    blocks = twins.seen(_blocks(file, base, n * step, step))
    parts = packing.catalogue.parts
    split = (parts, torch.from_numpy(kept.part)) if parts else None
    fingerprint = fingerprint_of(shape, blocks, labels, kept.classes, split)
    about = {
        "format": STORE_FORMAT,
        "classes": kept.classes,
        "source": str(packing.catalogue.path),
        "fingerprint": fingerprint,
        "parts": packing.catalogue.parts,
        "key": packing.key,
        "form": packing.catalogue.form,
        "look": asdict(look),
        "remarks": [*packing.catalogue.noticed, *kept.remarks, *twins.remarks(kept.classes)],
        "unreadable": {
            packing.catalogue.pictures.name(i): unreadable[i] for i in sorted(unreadable)[:NAMED]
        },
    }
    tensors: dict[str, np.ndarray] = {"labels": kept.labels}
    if packing.catalogue.parts:
        tensors["part"] = kept.part
    _write(file, _header(packing, about, shape, tensors), 0)
    at = 8 + packing.header_room
    for tensor in tensors.values():
        _write(file, np.ascontiguousarray(tensor).view(np.uint8).data, at)
        at += tensor.nbytes


def _header(
    packing: Packing,
    about: dict[str, Any],
    shape: tuple[int, ...],
    tensors: dict[str, np.ndarray],
) -> bytes:
    """As safetensors has it: its length in 8 bytes, then JSON, here filled up with spaces."""
    kinds = {"int64": "I64", "uint8": "U8"}
    entries: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors.items():
        size = [at, at + tensor.nbytes]
        entries[name] = {
            "dtype": kinds[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": size,
        }
        at += tensor.nbytes
    size = [at, at + shape[0] * packing.bytes_per_image]
    entries["images"] = {"dtype": "U8", "shape": list(shape), "data_offsets": size}
    for dropped in ((), ("unreadable",), ("unreadable", "remarks")):
        said = {k: v for k, v in about.items() if k not in dropped}
        said = {"kedge": as_text(said)}
        text = json.dumps({"__metadata__": said, **entries}).encode()
        if len(text) <= packing.header_room:
            break
    room = packing.header_room
    return room.to_bytes(8, "little") + text.ljust(room)


class _Twins:
    """Exact duplicates within a class, found while all pixels pass by."""

    def __init__(self, labels: np.ndarray, step: int) -> None:
        self.labels, self.step = labels, step
        self.count = np.zeros(int(labels.max()) + 1, dtype=np.int64)

    def seen(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        row, current = 0, -1
        known: set[bytes] = set()
        for block in blocks:
            yield block
            for start in range(0, len(block), self.step):
                label = int(self.labels[row])
                if label != current:
                    current, known = label, set()
                mark = hashlib.blake2b(block[start : start + self.step], digest_size=16).digest()
                self.count[label] += mark in known
                known.add(mark)
                row += 1

    def remarks(self, classes: tuple[str, ...]) -> list[str]:
        total = int(self.count.sum())
        if total == 0:
            return []
        most = int(self.count.argmax())
        return [twins_remark(total, int((self.count > 0).sum()), classes[most])]


def twins_remark(n: int, n_classes: int, example: str) -> str:
    """What is said of exact duplicates within classes."""
    what = counted(n, "image is an exact copy", "images are exact copies")
    where = f"in '{example}'" if n_classes == 1 else f"{n_classes} classes, most in '{example}'"
    return (
        f"{what} of another of the same class ({where}): an example to learn from may then be "
        "asked as a query too"
    )


def _blocks(file: int, start: int, size: int, step: int) -> Iterator[bytes]:
    """Whole images, as many as fit in a block."""
    block = max(1, BLOCK // step) * step
    for at in range(0, size, block):
        yield os.pread(file, min(block, size - at), start + at)


def _runs(rows: np.ndarray, most: int = CHUNK) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) places of neighbours in ascending rows, so many at most."""
    first = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1 or i - first == most:
            yield first, i
            first = i


def _write(file: int, content: bytes | memoryview, at: int) -> None:
    left = memoryview(content).cast("B")
    while left:
        n = os.pwrite(file, left, at)
        left, at = left[n:], at + n
