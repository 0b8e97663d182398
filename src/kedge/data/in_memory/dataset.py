"""Any object with `__len__` and `__getitem__` → (image, label), as torchvision's data sets are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from kedge.data.decode import Picture
from kedge.data.in_memory.images import (
    GIVEN,
    InMemoryImages,
    Some,
    content_of,
    picture_of,
)
from kedge.data.in_memory.labels import (
    Label,
    fit,
    label_of,
    labels_of,
    names_of,
    of_one_kind,
)
from kedge.data.index import spread
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import left_out

LABELS = ("targets", "labels", "_labels")  # where data sets keep them
PROBED = 8  # items, besides the first three


@dataclass(frozen=True, eq=False)
class DataSet:
    """What was found in one."""

    form: str
    items: Some
    labels: list[Label]
    names: tuple[str, ...] | None
    remarks: list[str]
    content: bytes  # a digest of some images


def of_data_set(given: Any) -> DataSet:
    form = f"data set {type(given).__name__}"
    try:
        n = len(given)
    except Exception as error:
        raise KedgeError(f"{GIVEN}: the length of the {form} cannot be had ({error}).") from None
    if n == 0:
        raise KedgeError(f"{GIVEN}: the {form} is empty.")
    probed = _probed(given, n)
    known, sure, names = _known(given, n)
    rows: range | np.ndarray = range(n)
    remarks: list[str] = []
    if sure and known and all(known[i] == label for i, (label, _) in probed.items()):
        labels = known
    else:
        labels, rows, remarks = _all_labels(given, n)
    # Where items have other labels than those at hand, the names are of those.
    other = known is not None and [known[i] for i in rows] != labels
    if names is not None and (other or not fit(labels, names)):
        remarks.append("the class names of the data set do not fit its labels and are not used")
        names = None
    some = Some("item", given, rows, paired=True)
    sha = hashlib.sha256()
    for i, (_, picture) in probed.items():
        again = next(InMemoryImages([Some("", given, [i], paired=True)]).fetch([0]))
        if content_of(again) != content_of(picture):
            sha = hashlib.sha256()
            remarks.append(
                "an image is not the same each time that it is asked for: give the data set "
                "without random transforms"
            )
            break
        sha.update(content_of(picture))
    return DataSet(form, some, labels, names, remarks, sha.digest())


def _probed(given: Any, n: int) -> dict[int, tuple[Label, Picture]]:
    """Label and picture of a few items, without those that raise."""
    there: dict[int, tuple[Label, Picture]] = {}
    first: Exception | None = None
    for i in sorted({*range(min(3, n)), *spread(n, PROBED)}):
        try:
            there[i] = _item(given, i)
        except KedgeError:
            raise
        except Exception as error:
            first = first or error
    if not there:
        raise KedgeError(
            f"{GIVEN}: the items of the data set cannot be had, the first of them raises "
            f"{type(first).__name__} ({str(first)[:120]})."
        )
    return there


def _item(given: Any, i: int) -> tuple[Label, Picture]:
    item = given[i]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise KedgeError(
            f"{GIVEN}: item {i} of the data set is of type {type(item).__name__}; expected "
            "(image, label)."
        )
    return label_of(item[1]), picture_of(item[0])


def _known(given: Any, n: int) -> tuple[list[Label] | None, bool, tuple[str, ...] | None]:
    """Labels that a data set has at hand, or that one has of which it is a part; whether they are
    sure to be those of its items; and class names."""
    labels: list[Label] | None = None
    # What a wrapper passes on, or a transform changes, need not be what the items say.
    own = {*getattr(given, "__dict__", ()), *dir(type(given))}
    sure = getattr(given, "target_transform", None) is None
    for attribute in LABELS:
        try:
            labels = labels_of(getattr(given, attribute))
        except Exception:  # it has none, or something else of this name
            continue
        if len(labels) == n:
            sure = sure and attribute in own
            break
        labels = None
    names = names_of(getattr(given, "classes", None))
    if labels is None and hasattr(given, "dataset") and hasattr(given, "indices"):  # a Subset
        try:
            rows = [int(i) for i in given.indices]
            above, sure, names = _known(given.dataset, len(given.dataset))
            labels = [above[i] for i in rows] if above is not None else None
        except Exception:
            return None, False, None
    return labels, sure, names


def _all_labels(given: Any, n: int) -> tuple[list[Label], np.ndarray, list[str]]:
    """By going through all items, as there is no other way. Those that raise have no label."""
    labels: list[Label] = []
    rows: list[int] = []
    lost: list[str] = []
    with progress.task("reading labels", n) as tick:
        for i in range(n):
            try:
                labels.append(label_of(given[i][1]))
                rows.append(i)
            except KedgeError:
                raise
            except Exception as error:
                lost.append(f"item {i} ({type(error).__name__})")
            tick(1)
    remarks = left_out(lost, "item cannot be had", "items cannot be had")
    return of_one_kind(labels), np.array(rows, dtype=np.int64), [*remarks]
