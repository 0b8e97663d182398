"""What `kedge data inspect` reports: counts, sizes, split, and problems of images."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kedge.data.decode import ImageHeader, ImageSpec, RawImage, read_header
from kedge.data.decode_worker import DAMAGED, decode_each
from kedge.data.index import ImageIndex, evenly_spaced
from kedge.data.pack import DuplicateCounter, PackJob
from kedge.data.parallel_decode import batches, infer_spec, map_batches
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
    remarks: tuple[str, ...] = ()  # problems

    def to_dict(self) -> dict[str, Any]:
        """As printed in JSON, where the spec is called "look"."""
        fields = asdict(self) | {"spec": self.spec.to_dict()}
        return {"look" if name == "spec" else name: value for name, value in fields.items()}


class _Examined(NamedTuple):
    """One image after decoding."""

    header: ImageHeader | None
    digest: bytes  # of the undecoded image
    problem: str  # why it cannot be read, or ""


def inspect_index(index: ImageIndex, everything: bool = False) -> Inspection:
    """Decode some of the images, or all, and report on them."""
    spec = infer_spec(index)
    numbers = evenly_spaced(len(index), len(index) if everything else MOST_DECODED)
    examined: list[_Examined] = []
    with progress.task("examining images", len(numbers)) as tick:
        raw = batches(index.images, numbers)
        for done in map_batches(lambda batch: [_examine(x, spec) for x in batch.images], raw):
            examined += done
            tick(len(done))
    headers = [each.header for each in examined if each.header is not None]
    bad = [number for number, each in zip(numbers, examined, strict=True) if each.problem]
    # Images that are known to be unreadable do not count.
    counts = index.counts - np.bincount(index.labels[bad], minlength=len(index.classes))
    remarks = [*index.all_remarks, *_part_remarks(index), *_count_remarks(counts, index.classes)]
    return Inspection(
        str(index.path),
        index.form,
        len(index),
        len(index.classes),
        *_count_range(counts, index.classes),
        sizes=dict(Counter(f"{h.width}×{h.height}" for h in headers).most_common()),
        modes=dict(Counter(header.mode for header in headers).most_common()),
        spec=spec,
        n_bytes=PackJob(index, spec).n_bytes,
        n_seen=len(examined),
        parts=_summarize_parts(index),
        remarks=(*remarks, *_image_remarks(index, numbers, examined)),
    )


def inspect_table(table: ImageTable, metadata: dict[str, Any], n_bytes: int) -> Inspection:
    """Report on packed images: remarks made when packing, and whether the file is unchanged."""
    _, n_channels, height, width = table.images.shape
    damaged = "the checksum does not match: the file was changed or damaged, pack it again"
    counts, saved = table.counts.numpy(), metadata.get("remarks")
    remarks = [] if table.pixel_fingerprint() == table.fingerprint else [damaged]
    remarks += map(str, saved) if isinstance(saved, list) else ()
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
        remarks=(*remarks, *_count_remarks(counts, table.classes)),
    )


def _examine(image: RawImage, spec: ImageSpec) -> _Examined:
    try:
        image = image.read_bytes() if isinstance(image, Path) else image
        content = image if isinstance(image, bytes) else np.ascontiguousarray(image).data
        digest = hashlib.blake2b(content, digest_size=16).digest()
        header = read_header(image)
    except Exception:  # Pillow's decoders raise anything on damaged files
        return _Examined(None, b"", DAMAGED)
    (result,) = decode_each([image], spec)
    return _Examined(header, digest, result if isinstance(result, str) else "")


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
    n_few, fewest = int((counts < ENOUGH_IMAGES).sum()), int(counts.argmin())
    return [
        f"{pluralize(n_few, 'class has', 'classes have')} fewer than the {ENOUGH_IMAGES} images "
        f"that 5 shots and 15 queries need, the smallest is '{classes[fewest]}' "
        f"({counts[fewest]}): 'kedge train' adapts to it, 'kedge bench' needs --n-shot or --n-query"
    ] * (n_few > 0)


def _image_remarks(index: ImageIndex, numbers: list[int], examined: list[_Examined]) -> list[str]:
    remarks, duplicates = [], DuplicateCounter()
    bad = [(i, each.problem) for i, each in zip(numbers, examined, strict=True) if each.problem]
    if bad:
        remarks.append(
            f"{len(bad)} of {pluralize(len(examined), 'image')} cannot be read and will be left "
            f"out, the first is {index.images.name(bad[0][0])} ({bad[0][1]})"
        )
    for i in np.argsort(index.labels[numbers], kind="stable"):
        if examined[i].digest:
            duplicates.add(int(index.labels[numbers[i]]), examined[i].digest)
    remarks += duplicates.remarks(index.classes)
    headers = [each.header for each in examined if each.header is not None]
    modes = Counter(header.mode for header in headers).most_common()
    if len(modes) > 1:
        listed = ", ".join(f"{n} {mode}" for mode, n in modes)
        remarks.append(f"images of several modes ({listed}): all are converted to one")
    if turned := sum(header.turned for header in headers):
        were = pluralize(turned, "photograph was", "photographs were")
        remarks.append(f"{were} taken with a turned camera and turned upright")
    return remarks
