"""Labels and class names as Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kedge.data.in_memory.images import (
    GIVEN,
    array_of,
    is_array,
)
from kedge.data.index import distinct
from kedge.errors import KedgeError

Label = int | str  # all labels of a set are numbers, or all are text


def label_of(label: Any) -> Label:
    """A `KedgeError` says what it should have been."""
    if is_array(label) and array_of(label).size == 1:
        label = array_of(label).reshape(()).item()
    if isinstance(label, str) and label.strip():
        return str(label)
    if isinstance(label, int):
        return int(label)
    raise KedgeError(
        f"{GIVEN}: a label is {str(label)[:40]!r}; expected a whole number or text for each image."
    )


def labels_of(given: Any) -> list[Label]:
    if is_array(given):
        array = array_of(given)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1 or array.dtype.kind not in "iubUO":
            raise KedgeError(
                f"{GIVEN}: the labels are of {array.dtype} in the shape {array.shape}; expected "
                "one whole number or text for each image."
            )
        return of_one_kind([label_of(label) for label in array.tolist()])
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise KedgeError(
            f"{GIVEN}: the labels are of type {type(given).__name__}; expected an array or a list."
        )
    return of_one_kind([label_of(label) for label in given])


def of_one_kind(labels: list[Label]) -> list[Label]:
    if len({type(label) for label in labels}) > 1:
        raise KedgeError(f"{GIVEN}: some labels are numbers and some are text; give one of them.")
    for i, label in enumerate(labels):
        if isinstance(label, int) and label < 0:
            raise KedgeError(f"{GIVEN}: image {i} has the label {label}; labels count from 0.")
    return labels


def names_of(given: Any) -> tuple[str, ...] | None:
    """Of classes. ImageNet's are tuples of words."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(given, list | tuple) or not given:
        return None
    names = [", ".join(map(str, n)) if isinstance(n, list | tuple) else n for n in given]
    return distinct(names) if all(isinstance(n, str) and n.strip() for n in names) else None


def fit(labels: Sequence[Label], names: tuple[str, ...]) -> bool:
    known = set(names)
    return all(x < len(names) if isinstance(x, int) else x in known for x in labels)
