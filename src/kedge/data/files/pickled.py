"""What readers of pickled arrays check alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.data.decode import MOST_PIXELS
from kedge.data.files.file_tree import FileTree
from kedge.data.files.sniff import reject_failed_download
from kedge.data.files.unpickle import (
    keys_as_text,
    text,
    unpickled,
)
from kedge.errors import KedgeError
from kedge.utils.text import counted, left_out


def uppermost(tree: FileTree, wanted: Collection[str]) -> dict[str, str]:
    """Where the files of these names are, in whatever folder; the uppermost of several."""
    found: dict[str, list[str]] = {}
    for name in tree.names:
        if (file := name.rpartition("/")[2]) in wanted:
            found.setdefault(file, []).append(name)
    return {
        file: min(found[file], key=lambda name: (name.count("/"), name))
        for file in wanted
        if file in found
    }


def copies_left_out(tree: FileTree, found: dict[str, str]) -> list[str]:
    """A remark, if there are other files of the names that were found."""
    read = set(found.values())
    copies = [n for n in tree.names if n.rpartition("/")[2] in found and n not in read]
    return [*left_out(copies, "file has the name of another", "files have the names of others")]


def fields(path: Path, *required: str) -> dict[Any, Any]:
    """The dict that a pickle holds, with text as its keys."""
    reject_failed_download(path)
    record = unpickled(path)
    if not isinstance(record, dict):
        raise KedgeError(
            f"{path}: expected a dict{' with ' * bool(required)}{_listed(required)} but found a "
            f"{type(record).__name__}; this is another form, or another file of that name."
        )
    record = keys_as_text(record)
    if missing := [key for key in required if key not in record]:
        has = _listed(map(str, list(record)[:6])) or "nothing"
        raise KedgeError(f"{path}: expected {_listed(missing)} in it but found {has:.200}.")
    return record


def pixels_of(value: Any, path: Path, key: str) -> UInt8[np.ndarray, "n h w 3"]:
    """Checked, not copied."""
    if not isinstance(value, np.ndarray):
        found = f"a {type(value).__name__}"
    elif value.dtype != np.uint8 or value.ndim != 4 or value.shape[3] != 3:
        found = f"{value.dtype} of shape {'×'.join(map(str, value.shape)) or 'none'}"
    elif not 0 < value.shape[1] * value.shape[2] <= MOST_PIXELS:
        found = f"images of {value.shape[1]}×{value.shape[2]} px"
    else:
        return value
    raise KedgeError(
        f"{path}: expected '{key}' to be uint8 of shape images×height×width×3 but found {found}."
    )


def whole_numbers(value: Any, path: Path, key: str) -> Int64[np.ndarray, " n"]:
    """Labels or indices, from a list or an array, none of them negative."""
    numbers = None
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        if value.size == max(value.shape, default=0) and (value.size == 0 or value.max() < 1 << 63):
            numbers = value.reshape(-1).astype(np.int64)
    elif isinstance(value, list | tuple) and all(map(is_whole, value)):
        numbers = np.fromiter(map(int, value), np.int64, len(value))
    if numbers is None or numbers.min(initial=0) < 0:
        raise KedgeError(
            f"{path}: expected {key} to be a list of whole numbers, 0 or more; this is another "
            "form, or the file is damaged."
        )
    return numbers


def is_whole(value: Any) -> bool:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        return False
    return -(1 << 63) <= int(value) < 1 << 63


def same_length(path: Path, images: int, labels: int) -> None:
    if images != labels:
        raise KedgeError(
            f"{path}: expected a label for each image but found {counted(images, 'image')} and "
            f"{counted(labels, 'label')}; get it again."
        )


def class_name(value: Any) -> str:
    """The name of a class, as Python 2 or 3 wrote it; nothing if that is no text."""
    if not isinstance(value, str | bytes | memoryview) or len(value) > 1000:
        return ""
    name = text(value)
    try:
        name.encode()
    except UnicodeEncodeError:  # half a character
        return ""
    return name


def names_by_number(value: Any, labels: Int64[np.ndarray, " n"]) -> list[str]:
    """A list of names, if it has a different one for each label."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.ndim == 1 and value.dtype.kind in "SU" else None
    if not isinstance(value, list | tuple) or len(value) <= labels.max(initial=0):
        return []
    names = [class_name(name) for name in value]
    return names if all(names) and len(set(names)) == len(names) else []


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(ascii, keys))  # in one line, whatever they hold
