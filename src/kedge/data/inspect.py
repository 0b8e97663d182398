"""What `kedge data inspect` reports: counts, sizes, split, and problems of images."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from kedge.data.copies import Signatures, copy_remarks
from kedge.data.decode import ImageHeader, ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.index import ImageIndex, evenly_spaced
from kedge.data.pack import PackJob
from kedge.data.parallel_decode import RawBatch, StopGuard, batches, infer_spec, map_batches
from kedge.data.remarks import Remark, few_images, problems, unreadable_images, worst_first
from kedge.data.table import ImageTable
from kedge.utils import progress
from kedge.utils.text import pluralize

MOST_DECODED = 10_000  # images, unless all are asked for
ENOUGH_IMAGES = 20  # of a class: 5 shots and 15 queries


@dataclass(frozen=True)
class PartSummary:
    """One part of the data set's own split."""

    name: str
    n_images: int
    n_classes: int
    n_shared: int  # classes that an earlier part has too


@dataclass(frozen=True)
class Inspection:
    """The report on a data set or a packed file."""

    path: str
    form: str
    n_images: int
    n_classes: int
    least: int  # readable images of the smallest class
    median: float
    most: int
    smallest_class: str
    largest_class: str
    sizes: dict[str, int]  # "64×64" → number of examined images
    modes: dict[str, int]  # Pillow's mode → number of examined images
    spec: ImageSpec  # to which images were or would be decoded
    n_bytes: int  # packed
    n_seen: int  # examined images
    parts: tuple[PartSummary, ...] = ()
    remarks: tuple[str, ...] = ()  # the worst first

    def to_dict(self) -> dict[str, Any]:
        """As printed in JSON, where the spec is called "look"."""
        fields = asdict(self) | {"spec": self.spec.to_dict(), "problems": problems(self.remarks)}
        return {"look" if name == "spec" else name: value for name, value in fields.items()}


class _Examined(NamedTuple):
    """Images of a batch after decoding."""

    headers: list[ImageHeader | None]
    reasons: list[str]  # why an image cannot be read, or ""
    signatures: Signatures


def inspect_index(index: ImageIndex, everything: bool = False) -> Inspection:
    """Decode some of the images, or all, and report on them."""
    spec = infer_spec(index)
    numbers = evenly_spaced(len(index), len(index) if everything else MOST_DECODED)
    headers: list[ImageHeader | None] = []
    reasons: list[str] = []
    signatures = Signatures(len(numbers))
    with progress.task("examining images", len(numbers)) as tick:
        raw = batches(index.images, numbers)
        guard = StopGuard(index.images, len(numbers))
        for done in map_batches(lambda batch: _examine(batch, spec, guard), raw):
            signatures.put(len(headers), done.signatures)
            headers += done.headers
            reasons += done.reasons
            tick(len(done.headers))
    bad = {number: reason for number, reason in zip(numbers, reasons, strict=True) if reason}
    good = np.array([i for i, reason in enumerate(reasons) if not reason], np.int64)
    # Images that are known to be unreadable do not count.
    counts = index.counts - np.bincount(index.labels[list(bad)], minlength=len(index.classes))
    sizes = Counter(f"{h.width}×{h.height}" for h in headers if h is not None)
    modes = Counter(h.mode for h in headers if h is not None)
    readable = index.select(np.array(numbers)[good]) if len(good) else None
    verb = "cannot be read and will be left out"
    left_out = [unreadable_images(bad, index.images.name, len(numbers), verb)] if bad else []
    return Inspection(
        str(index.path),
        index.form,
        len(index),
        len(index.classes),
        *_count_range(counts, index.classes),
        sizes=dict(sizes.most_common()),
        modes=dict(modes.most_common()),
        spec=spec,
        n_bytes=PackJob(index, spec).n_bytes,
        n_seen=len(numbers),
        parts=_summarize_parts(index),
        remarks=worst_first(
            (
                *index.all_remarks,
                *left_out,
                *(copy_remarks(readable, signatures.select(good), True) if readable else ()),
                *_part_remarks(index),
                *_count_remarks(counts, index.classes),
                *_header_remarks(index, numbers, headers, spec),
            )
        ),
    )


def inspect_table(table: ImageTable, metadata: dict[str, Any], n_bytes: int) -> Inspection:
    """Report on packed images: remarks made when packing, and whether the file is unchanged."""
    _, n_channels, height, width = table.images.shape
    damaged = "the checksum does not match: the file was changed or damaged, pack it again"
    unchanged = table.pixel_fingerprint() == table.fingerprint
    counts, remarks = table.counts.numpy(), () if unchanged else (Remark(damaged, "label"),)
    return Inspection(
        table.source,
        f"packed images of {metadata['source']}" if "source" in metadata else "packed images",
        len(table),
        len(table.classes),
        *_count_range(counts, table.classes),
        sizes={f"{width}×{height}": len(table)},
        modes={"RGB" if n_channels == 3 else "L": len(table)},
        spec=table.image_spec,
        n_bytes=n_bytes,
        n_seen=len(table),
        parts=_summarize_parts(table),
        remarks=worst_first((*remarks, *table.remarks, *_count_remarks(counts, table.classes))),
    )


def _examine(batch: RawBatch, spec: ImageSpec, guard: StopGuard) -> _Examined:
    examined = _Examined([], [], Signatures(len(batch.images)))
    for row, decoded in enumerate(decode_each(batch.images, spec, guard.of(batch))):
        if decoded.pixels is not None:
            examined.signatures.set(np.array([row]), decoded.pixels[None])
        examined.headers.append(decoded.header)
        examined.reasons.append(decoded.reason)
    return examined


def _count_range(counts: np.ndarray, classes: tuple[str, ...]) -> tuple[int, float, int, str, str]:
    """Least, median and most images of a class; the smallest and the largest class."""
    low, high = int(counts.argmin()), int(counts.argmax())
    median = float(np.median(counts))
    return int(counts[low]), median, int(counts[high]), classes[low], classes[high]


def _summarize_parts(images: ImageIndex | ImageTable) -> tuple[PartSummary, ...]:
    summaries: list[PartSummary] = []
    earlier: set[int] = set()
    for i, name in enumerate(images.parts):
        labels = np.asarray(images.labels)[np.asarray(images.part) == i]
        own = set(labels.tolist())
        summaries.append(PartSummary(name, len(labels), len(own), len(own & earlier)))
        earlier |= own
    return tuple(summaries)


def _part_remarks(index: ImageIndex) -> list[str]:
    return [
        f"{part.n_shared} of the {pluralize(part.n_classes, 'class', 'classes')} of {part.name} "
        f"{'is' if part.n_shared == 1 else 'are'} in an earlier part too: the split is by image, "
        "so it cannot test on unseen classes; kedge's protocols join the parts and split by class"
        for part in _summarize_parts(index)
        # Further parts (Gidaris' held-out images) share the training classes on purpose.
        if part.n_shared and part.name in ("train", "val", "test")
    ]


def _count_remarks(counts: np.ndarray, classes: tuple[str, ...]) -> list[str]:
    advice = "'kedge train' adapts to it, 'kedge bench' needs --n-shot or --n-query"
    few = few_images(counts.tolist(), classes, ENOUGH_IMAGES)
    return [f"{text}, for 5 shots and 15 queries: {advice}" for text in few]


def _header_remarks(
    index: ImageIndex, numbers: list[int], headers: list[ImageHeader | None], spec: ImageSpec
) -> list[str]:
    remarks, seen = [], [header for header in headers if header is not None]
    modes = Counter(header.mode for header in seen).most_common()
    if len(modes) > 1:
        listed = ", ".join(f"{n} {mode}" for mode, n in modes)
        remarks.append(f"images of several modes ({listed}): all are converted to one")
    if turned := sum(header.turned for header in seen):
        were = pluralize(turned, "photograph was", "photographs were")
        remarks.append(f"{were} taken with a turned camera and turned upright")
    sides = {
        i: min(header.width, header.height)
        for i, header in zip(numbers, headers, strict=True)
        if header is not None
    }
    small = [i for i, side in sides.items() if 2 * side < spec.image_size]
    if small:
        least = min(small, key=lambda i: sides[i])
        remarks.append(
            f"{pluralize(len(small), 'image is', 'images are')} smaller than half of "
            f"{spec.image_size} px, the smallest is {index.short_name(least)} ({sides[least]} px)"
        )
    return remarks
