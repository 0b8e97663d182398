"""Labels and class names as Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kedge.data.in_memory.images import is_array, to_numpy, wrong
from kedge.data.index import unique_names

Label = int | str  # all labels of a data set are of one type


def to_label(value: Any) -> Label:
    if is_array(value) and to_numpy(value).size == 1:
        value = to_numpy(value).reshape(()).item()
    if isinstance(value, str) and value.strip():
        return str(value)
    if isinstance(value, int):
        return int(value)
    raise wrong(f"a label is {str(value)[:40]!r}; expected a whole number or text per image")


def to_labels(values: Any) -> list[Label]:
    """Labels from an array or a sequence; all are text, or all are numbers from 0."""
    if is_array(values):
        array = to_numpy(values)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1 or array.dtype.kind not in "iubUO":
            found = f"the labels are of {array.dtype} in the shape {array.shape}"
            raise wrong(f"{found}; expected one whole number or text per image")
        values = array.tolist()
    elif isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise wrong(f"labels are of type {type(values).__name__}; expected an array or a list")
    labels = [to_label(value) for value in values]
    if len({type(label) for label in labels}) > 1:
        raise wrong("labels must be all numbers or all text")
    for i, label in enumerate(labels):
        if isinstance(label, int) and label < 0:
            raise wrong(f"image {i} has the label {label}; labels count from 0")
    return labels


def to_class_names(values: Any) -> tuple[str, ...] | None:
    """Class names from a list of texts, or of tuples of words as for ImageNet; else None."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, list | tuple) or not values:
        return None
    names = [", ".join(map(str, v)) if isinstance(v, list | tuple) else v for v in values]
    return unique_names(names) if all(isinstance(n, str) and n.strip() for n in names) else None


def names_cover(names: tuple[str, ...], labels: Sequence[Label]) -> bool:
    """Whether every label is a position in `names` or one of them."""
    known = set(names)
    return all(x < len(names) if isinstance(x, int) else x in known for x in labels)
