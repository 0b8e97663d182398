"""Data sets with `__len__` and `__getitem__` → (image, label), such as torchvision's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kedge.data.decode import RawImage
from kedge.data.in_memory.images import InMemoryImages, image_digest, to_raw_image, wrong
from kedge.data.in_memory.labels import Label, names_cover, to_class_names, to_label, to_labels
from kedge.data.index import evenly_spaced
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import skipped_remark

LABEL_ATTRIBUTES = ("targets", "labels", "_labels")
N_PROBES = 8  # items that are read to check labels and images, besides the first three


@dataclass(frozen=True, eq=False)
class Contents:
    """What objects in memory hold, before class names are made unique and sorted."""

    form: str
    sources: list[InMemoryImages]
    labels: list[Label]
    names: tuple[str, ...] | None = None  # of classes, by label
    remarks: Sequence[str] = ()
    digest: bytes | None = None  # of some images, if they have been read


def read_dataset(dataset: Any) -> Contents:
    form = f"data set {type(dataset).__name__}"
    try:
        n = len(dataset)
    except Exception as error:
        raise wrong(f"the {form} has no length ({error})") from None
    if n == 0:
        raise wrong(f"the {form} is empty")
    probes = _probe(dataset, n)
    known, reliable, names = _known_labels(dataset, n)
    rows: range | np.ndarray = range(n)
    remarks: list[str] = []
    if reliable and known and all(known[i] == label for i, (label, _) in probes.items()):
        labels = known
    else:
        labels, rows, remarks = _read_all_labels(dataset, n)
    # If the items have other labels than the attribute, the names may belong to those.
    differ = known is not None and [known[i] for i in rows] != labels
    if names is not None and (differ or not names_cover(names, labels)):
        remarks.append("the class names of the data set do not fit its labels and are not used")
        names = None
    digest = hashlib.sha256()
    for i, (_, raw) in probes.items():
        again = next(InMemoryImages("", dataset, [i], has_labels=True).fetch([0]))
        if image_digest(again) != image_digest(raw):
            digest = hashlib.sha256()
            remarks.append(
                "an image differs each time it is read: give the data set without random transforms"
            )
            break
        digest.update(image_digest(raw))
    images = InMemoryImages("item", dataset, rows, has_labels=True)
    return Contents(form, [images], labels, names, remarks, digest.digest())


def _probe(dataset: Any, n: int) -> dict[int, tuple[Label, RawImage]]:
    """Label and image of a few items, without those that raise."""
    probes: dict[int, tuple[Label, RawImage]] = {}
    first_error: Exception | None = None
    for i in sorted({*range(min(3, n)), *evenly_spaced(n, N_PROBES)}):
        try:
            item = dataset[i]
            if not isinstance(item, tuple | list) or len(item) < 2:
                kind = type(item).__name__
                raise wrong(f"item {i} of the data set is of type {kind}, not (image, label)")
            probes[i] = to_label(item[1]), to_raw_image(item[0])
        except KedgeError:
            raise
        except Exception as error:
            first_error = first_error or error
    if not probes:
        why = f"{type(first_error).__name__} ({str(first_error)[:120]})"
        raise wrong(f"no item of the data set could be read, the first raises {why}")
    return probes


def _known_labels(dataset: Any, n: int) -> tuple[list[Label] | None, bool, tuple[str, ...] | None]:
    """Labels from an attribute of the data set, or of the one it is a subset of; whether they are
    reliable; and class names."""
    labels: list[Label] | None = None
    # A wrapper's inherited attribute, or a transform, may differ from what the items say.
    own = {*getattr(dataset, "__dict__", ()), *dir(type(dataset))}
    reliable = getattr(dataset, "target_transform", None) is None
    for attribute in LABEL_ATTRIBUTES:
        try:
            labels = to_labels(getattr(dataset, attribute))
        except Exception:  # no such attribute, or something else
            continue
        if len(labels) == n:
            reliable = reliable and attribute in own
            break
        labels = None
    names = to_class_names(getattr(dataset, "classes", None))
    if labels is None and hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a Subset
        try:
            rows = [int(i) for i in dataset.indices]
            of_all, reliable, names = _known_labels(dataset.dataset, len(dataset.dataset))
            labels = [of_all[i] for i in rows] if of_all is not None else None
        except Exception:
            return None, False, None
    return labels, reliable, names


def _read_all_labels(dataset: Any, n: int) -> tuple[list[Label], np.ndarray, list[str]]:
    """Labels and positions of all items that can be read, and remarks on the others."""
    labels: list[Label] = []
    rows: list[int] = []
    unreadable: list[str] = []
    with progress.task("reading labels", n) as tick:
        for i in range(n):
            try:
                labels.append(to_label(dataset[i][1]))
                rows.append(i)
            except KedgeError:
                raise
            except Exception as error:
                unreadable.append(f"item {i} ({type(error).__name__})")
            tick(1)
    remarks = skipped_remark(unreadable, "item", "could not be read")
    return to_labels(labels), np.array(rows, dtype=np.int64), [*remarks]
