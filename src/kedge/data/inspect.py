"""What `kedge data inspect` says of images: how many of what, and what is wrong with them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.decode import (
    ImageSpec,
    Measured,
    Picture,
    measure,
)
from kedge.data.decode_worker import DAMAGED, decode_each
from kedge.data.index import ImageIndex, spread
from kedge.data.pack import Packing, twins_remark
from kedge.data.parallel_decode import (
    Batch,
    batches,
    in_parallel,
    suited,
)
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import counted

MOST = 10_000  # images are decoded unless all shall be
ENOUGH = 20  # images of a class: 5 shots and 15 queries


@dataclass(frozen=True)
class Part:
    """One part of the split that images come with."""

    name: str
    n_images: int
    n_classes: int
    n_shared: int  # classes that an earlier part has too


@dataclass(frozen=True)
class Inspection:
    path: str
    form: str
    n_images: int
    n_classes: int
    least: int  # images of a class that can be read
    median: float
    most: int
    smallest_class: str
    largest_class: str
    sizes: dict[str, int]  # "64×64" → how many of those that were looked at
    modes: dict[str, int]  # Pillow's names
    look: ImageSpec  # to which they would be brought, or were
    n_bytes: int  # packed
    n_seen: int  # images that were decoded
    parts: tuple[Part, ...] = ()
    remarks: tuple[str, ...] = field(default=())  # what is wrong


@dataclass(frozen=True)
class _Seen:
    measured: Measured | None
    mark: bytes
    wrong: str = ""  # why it cannot be read


def inspect_index(catalogue: ImageIndex, everything: bool = False) -> Inspection:
    """Decode some of the images, or all, and say what is there."""
    look = suited(catalogue)
    numbers = spread(len(catalogue), len(catalogue) if everything else MOST)
    seen = _look_at(catalogue, numbers, look)
    known = [each.measured for each in seen if each.measured is not None]
    bad = [number for number, each in zip(numbers, seen, strict=True) if each.wrong]
    # Of the images that can be read, as far as they were looked at: the others cannot be used.
    counts = catalogue.counts - np.bincount(catalogue.labels[bad], minlength=len(catalogue.classes))
    parts = _parts(catalogue)
    return Inspection(
        str(catalogue.path),
        catalogue.form,
        len(catalogue),
        len(catalogue.classes),
        *_spread_of(counts, catalogue.classes),
        sizes=_counted(f"{each.width}×{each.height}" for each in known),
        modes=_counted(each.mode for each in known),
        look=look,
        n_bytes=Packing(catalogue, look).n_bytes,
        n_seen=len(seen),
        parts=parts,
        remarks=(
            *catalogue.noticed,
            *_of_parts(parts),
            *_of_counts(counts, catalogue.classes),
            *_of_images(catalogue, numbers, seen),
        ),
    )


def inspect_table(table: ImageTable, about: dict[str, Any], n_bytes: int) -> Inspection:
    """Of images that are packed: what was wrong with them, and whether they are still whole."""
    _, channels, high, wide = table.images.shape
    whole = table.pixel_fingerprint() == table.fingerprint
    changed = "the checksum does not fit: the file was changed or damaged, pack it again"
    counts, remarks = table.counts.numpy(), about.get("remarks")
    return Inspection(
        table.source,
        f"packed images of {about['source']}" if "source" in about else "packed images",
        len(table),
        len(table.classes),
        *_spread_of(counts, table.classes),
        sizes={f"{wide}×{high}": len(table)},
        modes={"RGB" if channels == 3 else "L": len(table)},
        look=ImageSpec(high, channels, table.fit, table.inverted),
        n_bytes=n_bytes,
        n_seen=len(table),
        parts=_parts(table),
        remarks=(
            *(() if whole else (changed,)),
            *(map(str, remarks) if isinstance(remarks, list) else ()),
            *_of_counts(counts, table.classes),
        ),
    )


def _look_at(catalogue: ImageIndex, numbers: list[int], look: ImageSpec) -> list[_Seen]:
    def some(batch: Batch) -> list[_Seen]:
        return [_one(picture, look) for picture in batch.pictures]

    seen: list[_Seen] = []
    with progress.task("looking at images", len(numbers)) as tick:
        for batch in in_parallel(some, batches(catalogue.pictures, numbers)):
            seen += batch
            tick(len(batch))
    return seen


def _one(picture: Picture, look: ImageSpec) -> _Seen:
    try:
        if isinstance(picture, Path):
            picture = picture.read_bytes()
        content = picture if isinstance(picture, bytes) else np.ascontiguousarray(picture).data
        mark = hashlib.blake2b(content, digest_size=16).digest()
        measured = measure(picture)
    except Exception:  # a damaged file makes Pillow's decoders raise anything
        return _Seen(None, b"", DAMAGED)
    (answer,) = decode_each([picture], look)
    return _Seen(measured, mark, answer if isinstance(answer, str) else "")


def _spread_of(counts: np.ndarray, classes: tuple[str, ...]) -> tuple[int, float, int, str, str]:
    if len(counts) == 0:
        raise KedgeError("There is no class here.")
    low, high = int(counts.argmin()), int(counts.argmax())
    median = float(np.median(counts))
    return int(counts[low]), median, int(counts[high]), classes[low], classes[high]


def _parts(images: ImageIndex | ImageTable) -> tuple[Part, ...]:
    labels, part = np.asarray(images.labels), np.asarray(images.part)
    found: list[Part] = []
    before: set[int] = set()
    for i, name in enumerate(images.parts):
        of_part = labels[part == i]
        there = set(np.unique(of_part).tolist())
        found.append(Part(name, len(of_part), len(there), len(there & before)))
        before |= there
    return tuple(found)


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _of_parts(parts: tuple[Part, ...]) -> list[str]:
    # Further parts (Gidaris' held-out images) are of the training classes on purpose.
    shared = [part for part in parts if part.n_shared and part.name in ("train", "val", "test")]
    return [
        f"{part.n_shared} of the {counted(part.n_classes, 'class', 'classes')} of {part.name} "
        f"{'is' if part.n_shared == 1 else 'are'} in an earlier part too: this split is by image "
        "and not by class, so it cannot test on unseen classes; the protocols of kedge put the "
        "parts together and split by class"
        for part in shared
    ]


def _of_counts(counts: np.ndarray, classes: tuple[str, ...]) -> list[str]:
    few = np.flatnonzero(counts < ENOUGH)
    if len(few) == 0:
        return []
    fewest = few[counts[few].argmin()]
    return [
        f"{counted(len(few), 'class has', 'classes have')} fewer than {ENOUGH} images, which "
        f"5 shots and 15 queries need; the fewest has '{classes[fewest]}' ({counts[fewest]}): "
        "'kedge train' makes do with fewer, to 'kedge bench' give --n-shot or --n-query"
    ]


def _of_images(catalogue: ImageIndex, numbers: list[int], seen: list[_Seen]) -> list[str]:
    remarks = []
    bad = [(i, each.wrong) for i, each in zip(numbers, seen, strict=True) if each.wrong]
    if bad:
        first, wrong = bad[0]
        remarks.append(
            f"{len(bad)} of {counted(len(seen), 'image')} cannot be read and will be left out, the "
            f"first is {catalogue.pictures.name(first)} ({wrong})"
        )
    twins = Counter(
        int(catalogue.labels[number])
        for number, first in zip(numbers, _is_first(catalogue, numbers, seen), strict=True)
        if not first
    )
    if twins:
        label, _ = twins.most_common(1)[0]
        remarks.append(twins_remark(twins.total(), len(twins), catalogue.classes[label]))
    known = [each.measured for each in seen if each.measured is not None]
    modes = _counted(each.mode for each in known)
    if len(modes) > 1:
        listed = ", ".join(f"{n} {mode}" for mode, n in modes.items())
        remarks.append(f"images of several modes ({listed}): all are brought to the same")
    turned = sum(each.turned for each in known)
    if turned:
        remarks.append(
            f"{counted(turned, 'photograph was', 'photographs were')} taken with a turned camera: "
            f"{'it is' if turned == 1 else 'they are'} set upright"
        )
    return remarks


def _is_first(catalogue: ImageIndex, numbers: list[int], seen: list[_Seen]) -> list[bool]:
    """Whether no image of the same class before has the same content."""
    known: set[tuple[int, bytes]] = set()
    first = []
    for number, each in zip(numbers, seen, strict=True):
        key = (int(catalogue.labels[number]), each.mark)
        first.append(not each.mark or key not in known)
        known.add(key)
    return first
