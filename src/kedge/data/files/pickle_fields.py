"""Checked fields of pickled data sets: pixels, labels and class names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.data.files.file_tree import FileTree
from kedge.data.files.unpickle import as_text, load_pickle
from kedge.data.image_codec import MOST_PIXELS
from kedge.errors import KedgeError
from kedge.utils.text import pluralize, skipped_remark


def find_by_name(tree: FileTree, wanted: Collection[str]) -> dict[str, str]:
    """The path in the tree of each wanted file name; of several, the one nearest to the root."""
    paths = [path for path in tree.names if path.rpartition("/")[2] in wanted]
    paths.sort(key=lambda path: (path.count("/"), path), reverse=True)
    nearest = {path.rpartition("/")[2]: path for path in paths}
    return {name: nearest[name] for name in wanted if name in nearest}


def duplicate_remarks(tree: FileTree, found: dict[str, str]) -> tuple[str, ...]:
    """A remark on further files with the names that `find_by_name` has found."""
    read = set(found.values())
    copies = [path for path in tree.names if path.rpartition("/")[2] in found and path not in read]
    return skipped_remark(copies, "file", "same name as a file that was read")


def load_dict(path: Path, *required: str) -> dict[Any, Any]:
    """The dict that a pickle holds, with text keys in place of the bytes of Python 2."""
    record = load_pickle(path)
    found = type(record).__name__
    if isinstance(record, dict):
        record = {as_text(k) if isinstance(k, bytes) else k: v for k, v in record.items()}
        if all(key in record for key in required):
            return record
        found = ", ".join(ascii(key) for key in [*record][:6]) or "nothing"
    keys = " and ".join(map(repr, required)) or "labels"
    raise KedgeError(f"{path}: expected a dict with {keys} but found {found:.200}.")


def check_pixels(value: Any, path: Path, key: str) -> UInt8[np.ndarray, "n h w 3"]:
    """The same array, if it holds RGB images."""
    found = type(value).__name__
    if isinstance(value, np.ndarray):
        found = f"{value.dtype} of shape {value.shape}"
        is_rgb = value.dtype == np.uint8 and value.ndim == 4 and value.shape[3] == 3
        if is_rgb and 0 < value.shape[1] * value.shape[2] <= MOST_PIXELS:
            return value
    expected = f"'{key}' to be uint8 of shape images×height×width×3"
    raise KedgeError(f"{path}: expected {expected} but found {found}.")


def non_negative_ints(
    value: Any, path: Path, what: str, n: int | None = None
) -> Int64[np.ndarray, " n"]:
    """Labels or indices from a list or an array; with `n`, one for each of n images."""
    numbers = None
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        if value.size == max(value.shape, default=0) and (value.size == 0 or value.max() < 1 << 63):
            numbers = value.reshape(-1).astype(np.int64)
    elif isinstance(value, list | tuple) and all(map(is_int64, value)):
        numbers = np.fromiter(map(int, value), np.int64, len(value))
    if numbers is None or numbers.min(initial=0) < 0:
        raise KedgeError(f"{path}: expected {what} to be a list of whole numbers, 0 or more.")
    if n is not None and n != len(numbers):
        found = f"{pluralize(n, 'image')} and {pluralize(len(numbers), 'label')}"
        raise KedgeError(f"{path}: expected one label per image but found {found}.")
    return numbers


def is_int64(value: Any) -> bool:
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_int and -(1 << 63) <= int(value) < 1 << 63


def class_name(value: Any) -> str:
    """A class name that Python 2 or 3 wrote; empty if it is not valid text."""
    if not isinstance(value, str | bytes | memoryview) or len(value) > 1000:
        return ""
    name = as_text(value)
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in name)
    return "" if has_surrogate else name


def class_names(value: Any, labels: Int64[np.ndarray, " n"]) -> list[str]:
    """Class names by label; empty unless there is a distinct one for each label."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.ndim == 1 and value.dtype.kind in "SU" else None
    if not isinstance(value, list | tuple) or len(value) <= labels.max(initial=0):
        return []
    names = [class_name(name) for name in value]
    return names if all(names) and len(set(names)) == len(names) else []
