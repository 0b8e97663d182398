"""Packing: every image decoded once, into one file from which any image can be read quickly.

The file is written in a folder beside its final path, with a journal of finished chunks: a stopped
packing continues where it was, and the file appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from kedge.data.copies import Signatures
from kedge.data.decode import ImageSpec
from kedge.data.index import ImageIndex
from kedge.data.open_file import OpenFile
from kedge.data.packed_file import (
    DIGEST_IMAGES,
    DIGESTS,
    PACKED_FORMAT,
    LazyImages,
    blocks,
    digests_layout,
    fingerprint_of,
    header_entries,
    runs,
)
from kedge.data.parallel_decode import (
    CHUNK,
    class_sorted_rows,
    decode_images,
    delivery_remarks,
    leave_out,
)
from kedge.data.pixel_digests import DigestWriter, images_per_digest
from kedge.data.remarks import remarks_to_json
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.utils import atomic_io, progress
from kedge.utils.part_file import open_new, without_links

DECODER_VERSION = 2  # increase when decoding an image gives other pixels than before
JOURNAL_SECONDS = 2.0  # between two writes of the journal
REMARKS_BYTES = 1 << 15  # reserved in the header
MOST_NAMED = 20  # unreadable images that the file names


@dataclass(frozen=True)
class PackJob:
    """What is packed and how. Equal keys mean equal files."""

    index: ImageIndex
    spec: ImageSpec

    @property
    def key(self) -> str:
        index = self.index
        content = [PACKED_FORMAT, DECODER_VERSION, index.stamp, index.classes, self.spec.to_dict()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def bytes_per_image(self) -> int:
        return self.spec.n_bytes

    @property
    def n_bytes(self) -> int:
        return len(self.index) * self.bytes_per_image

    @property
    def header_bytes(self) -> int:
        """Size reserved for the header, which is written last but precedes the pixels."""
        names = json.dumps(json.dumps([self.index.classes, self.index.parts]))
        return (len(names.encode()) + 2 * REMARKS_BYTES) // 4096 * 4096 + 4096 - 8

    def pixels_offset(self, n: int) -> int:
        """Where pixels begin in a file of n images: behind header, labels and parts."""
        return 8 + self.header_bytes + n * (9 if self.index.parts else 8)


@dataclass
class _Journal:
    """What a packing has finished, as saved on disk."""

    path: Path
    key: str
    chunks: set[int] = field(default_factory=set)
    unreadable: dict[int, str] = field(default_factory=dict)  # number of an image → reason

    def load(self) -> bool:
        """Whether there is a journal of the same job."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if (saved["key"], saved["chunk"]) == (self.key, CHUNK):
                unreadable = {int(k): str(v) for k, v in saved["unreadable"].items()}
                self.chunks, self.unreadable = set(map(int, saved["done"])), unreadable
                return True
        return False

    def save(self, file: BinaryIO) -> None:
        _flush(file)  # pixels must be on disk before the journal says so
        done, unreadable = sorted(self.chunks), self.unreadable
        text = json.dumps({"key": self.key, "chunk": CHUNK, "done": done, "unreadable": unreadable})
        atomic_io.write_on_this_rank(self.path, lambda file: file.write(text.encode()))


def pack_images(index: ImageIndex, spec: ImageSpec, out: Path, timeout: float = 0.0) -> ImageTable:
    """The packed file at `out`, made or completed if necessary. Ranks call it independently."""
    job = PackJob(index, spec)
    folder = atomic_io.sibling(out, f"{out.name}.packing")
    lock = f".{out.name}.lock"
    if not _is_packed(job, out):
        with atomic_io.file_lock(out.parent, lock, timeout):
            if not _is_packed(job, out):  # another process may have been faster
                _pack(job, folder, out)
    elif folder.is_dir() or (out.parent / lock).exists():  # stopped after the file was complete
        with suppress(OSError, KedgeError), atomic_io.file_lock(out.parent, lock):
            _discard(folder)
    return ImageTable.load(out)


def _is_packed(job: PackJob, out: Path) -> bool:
    """Whether the file exists. Raises KedgeError if it was made from something else."""
    if not out.exists():
        return False
    with suppress(KedgeError):
        if atomic_io.load_tensors(out, "packed image file")[0].get("key") == job.key:
            return True
    raise KedgeError(
        f"{out}: already exists with other images or another size, and is not overwritten; choose "
        "another --out or delete it."
    )


def _pack(job: PackJob, folder: Path, out: Path) -> None:
    pixels, journal = folder / "images", _Journal(folder / "journal.json", job.key)
    try:
        if not (_is_own_folder(folder) and journal.load() and pixels.is_file()):
            journal = _Journal(journal.path, job.key)
            _start_folder(job, folder)
            open_new(pixels).close()
        with open(pixels, "r+b", opener=without_links) as file:
            try:
                _write_pixels(job, file, journal)
            finally:  # also when interrupted
                journal.save(file)
            if len(journal.unreadable) == len(job.index):
                _discard(folder)  # nothing to continue from
            _complete(job, file, journal)
            _flush(file)
        atomic_io.move_into_place(pixels, out, replace=False)
        _discard(folder)
    except OSError as error:
        raise KedgeError(
            f"{out}: could not be packed ({error.strerror or error}). What was packed is kept in "
            f"{folder}, and the same command continues from there."
        ) from error


def _start_folder(job: PackJob, folder: Path) -> None:
    """An empty folder for a new packing, if there is enough space."""
    if os.path.lexists(folder):
        present = set(folder.iterdir()) if _is_own_folder(folder) else {folder}
        for path in present - {path for path in _own_files(folder) if path.is_file()}:
            raise KedgeError(
                f"{path}: is not a file of kedge, but in the place where packing keeps its "
                "temporary files; move it away or choose another --out."
            )
    _discard(folder)  # of other data, or stopped in a step that cannot be continued
    free, needed = shutil.disk_usage(folder.parent).free, job.n_bytes
    require(
        needed <= free,
        f"{folder.parent}: {needed / 1e9:.1f} GB are needed to pack these images, but "
        f"{free / 1e9:.1f} GB are free; free some space, or choose another --out or a smaller "
        "--image-size.",
    )
    folder.mkdir()


def _is_own_folder(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink()


def _discard(folder: Path) -> None:
    """Delete the files of a packing, and the folder unless it holds others."""
    for path in _own_files(folder):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _own_files(folder: Path) -> list[Path]:
    return [folder / "images", folder / "journal.json", *folder.glob(".journal.json.*.part")]


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_pixels(job: PackJob, file: BinaryIO, journal: _Journal) -> None:
    """Decode the chunks that the journal lacks and write each image to its row."""
    index, size = job.index, job.bytes_per_image
    rows, base = class_sorted_rows(index), job.pixels_offset(len(index))
    left = np.flatnonzero(~np.isin(np.arange(len(index)) // CHUNK, list(journal.chunks))).tolist()
    saved = time.monotonic()
    with progress.task("packing images", len(index)) as tick:
        tick(len(index) - len(left))
        for batch in decode_images(index.images, job.spec, left):
            batch_rows = rows[batch.numbers]
            for first, last in runs(batch_rows):
                file.seek(base + int(batch_rows[first]) * size)
                file.write(batch.pixels[first:last].data)
            journal.unreadable |= batch.unreadable
            tick(len(batch))
            if (batch.last + 1) % CHUNK and batch.last + 1 < len(index):
                continue  # more batches of this chunk follow
            journal.chunks.add(batch.last // CHUNK)
            if time.monotonic() - saved > JOURNAL_SECONDS:
                journal.save(file)
                saved = time.monotonic()


def _complete(job: PackJob, file: BinaryIO, journal: _Journal) -> None:
    """Close the gaps that unreadable images left, and write header, labels and parts."""
    index, spec, size = job.index, job.spec, job.bytes_per_image
    readable, rows, remarks = leave_out(index, journal.unreadable)
    n, opened = len(readable), OpenFile(Path(file.name))
    base = job.pixels_offset(n)
    if journal.unreadable:
        journal.path.unlink(missing_ok=True)  # moving rows cannot be continued, only restarted
        atomic_io.fsync_folder(journal.path.parent)
        file.seek(base)  # never behind what is still to be read
        file.writelines(blocks(LazyImages(opened, job.pixels_offset(len(index)), spec.shape, rows)))
    file.truncate(base + n * size)
    file.flush()
    signatures, digests = Signatures(n), DigestWriter(size)

    def pixels() -> Iterator[memoryview]:
        row = 0
        for block in blocks(LazyImages(opened, base, spec.shape, np.arange(n))):
            yield block
            digests.update(block)
            images = np.frombuffer(block, np.uint8).reshape(-1, *spec.shape)
            signatures.set(np.arange(row, row + len(images)), images)
            row += len(images)

    labels, classes, parts = torch.from_numpy(readable.labels), readable.classes, index.parts
    part = torch.from_numpy(readable.part) if parts else None
    fingerprint = fingerprint_of((n, *spec.shape), pixels(), labels, classes, parts, part)
    unreadable = sorted(journal.unreadable)[:MOST_NAMED]
    metadata = {
        "format": PACKED_FORMAT,
        "classes": classes,
        "source": str(index.path),
        "fingerprint": fingerprint,
        "parts": parts,
        "key": job.key,
        "form": index.form,
        "look": spec.to_dict(),
        DIGEST_IMAGES: images_per_digest(size),
        **remarks_to_json(delivery_remarks(index, readable, remarks, signatures)),
        "unreadable": {index.images.name(i): journal.unreadable[i] for i in unreadable},
    }
    vectors = readable.labels.tobytes() + (readable.part.tobytes() if parts else b"")
    file.seek(base + n * size)
    file.write(digests.finish().data)
    file.seek(0)
    file.write(_header(job, metadata, n) + vectors)


def _header(job: PackJob, metadata: dict[str, Any], n: int) -> bytes:
    """The safetensors header, padded with spaces. If it is too long, it loses its remarks."""
    layout: dict[str, tuple[str, tuple[int, ...]]] = {"labels": ("I64", (n,)), "part": ("U8", (n,))}
    layout["images"] = ("U8", (n, *job.spec.shape))
    if not job.index.parts:
        del layout["part"]
    layout[DIGESTS] = digests_layout(n, job.bytes_per_image)
    entries = header_entries(layout)
    for dropped in ((), ("unreadable",), ("unreadable", "remarks", "remark_kinds")):
        kept = {key: value for key, value in metadata.items() if key not in dropped}
        text = json.dumps({"__metadata__": {"kedge": atomic_io.to_json(kept)}, **entries}).encode()
        if len(text) <= job.header_bytes:
            break
    return job.header_bytes.to_bytes(8, "little") + text.ljust(job.header_bytes)
