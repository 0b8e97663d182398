"""One Parquet file: where its images and labels are, and reading them a few rows at a time.

A row group can be as large as the file, so nothing here reads a whole one.
"""

from __future__ import annotations

import importlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from kedge.data.files.archives import LARGEST_GROWTH
from kedge.data.files.sniff import reject_failed_download
from kedge.errors import KedgeError

IMAGE_COLUMNS = ("image", "img", "images", "picture", "photo", "jpg", "png", "bytes")
LABEL_COLUMNS = (
    *("label", "labels", "fine_label", "class", "class_label", "class_name", "target", "category"),
    *("label_name", "cls", "targets", "y"),
)
READ_BYTES = 1 << 20  # at once: without a limit pyarrow reads a whole row group
BATCH_BYTES = 4 << 20  # of images that are held at once
MOST_AT_ONCE = 32  # images, as one that is there many times counts but once among the bytes
LABELS_AT_ONCE = 1 << 16
MOST_ROWS = 20_000_000  # all of ImageNet has 14 million; a damaged file may say anything


@dataclass(frozen=True, eq=False)
class Shard:
    """All that is known of a file without its labels and images."""

    path: Path
    part: str
    image: str  # the columns
    label: str
    text: bool  # labels are text and not numbers
    names: tuple[str, ...]  # of the classes, by label; none where the file does not hold them
    ends: tuple[int, ...]  # of the row groups
    at_once: int  # rows of images
    rows: range | Int64[np.ndarray, " kept"]  # that have a label

    @property
    def n_rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    def labels(self, seen: dict[int | str, int]) -> Int64[np.ndarray, " rows"]:
        """Of each row the number that `seen` has, or gets, for its class; −1 where it has none."""
        numbers, at = np.full(self.n_rows, -1, dtype=np.int64), 0
        with opened(self.path, [self.label] if self.text else None) as file, sound(self.path):
            for batch in file.iter_batches(LABELS_AT_ONCE, columns=[self.label], use_threads=False):
                column = batch.column(0)
                if not hasattr(column, "indices"):
                    column = column if self.text else column.cast("int64", safe=False)
                    column = column.dictionary_encode()
                values = [self._class(value) for value in column.dictionary.to_pylist()]
                known = [-1 if v is None else seen.setdefault(v, len(seen)) for v in values]
                codes = column.indices.cast("int64").fill_null(len(known)).to_numpy()
                numbers[at : at + len(codes)] = np.array([*known, -1], dtype=np.int64)[codes]
                at += len(codes)
        if at != self.n_rows:
            raise damaged(self.path, f"{self.n_rows} rows have {at} labels")
        return numbers

    def _class(self, label: int | str | bytes | None) -> int | str | None:
        if isinstance(label, bytes):
            label = label.decode()
        if isinstance(label, str):
            return label if label.strip() else None
        if label is None or label < 0 or (self.names and label >= len(self.names)):
            return None
        return self.names[label] if self.names else int(label)


class Cursor:
    """A place in a file's images. Going on from it is cheap; going back begins the row group."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._group = -1
        self._at = 0  # the first row, in the group, of the batch at hand
        self._column: Any = ()
        try:
            self._file: Any = opened(shard.path)
        except KedgeError:  # it is no longer what it was
            self._file = None

    def image(self, row: int) -> bytes:
        """Empty where there is none, or where the file is damaged."""
        ends = self.shard.ends
        group = bisect_right(ends, row)
        row -= ends[group - 1] if group else 0
        if group != self._group or row < self._at:
            self._group, self._at, self._column = group, 0, ()
            self._batches = self._begin(group)
        while row >= self._at + len(self._column):
            self._at += len(self._column)
            self._column = ()
            try:
                self._column = next(self._batches).column(0)
            except Exception:  # the end, or whatever pyarrow raises: the rest is not to be had
                return b""
        try:
            value = self._column[row - self._at].as_py()
        except Exception:
            return b""
        value = value.get("bytes") if isinstance(value, dict) else value
        return value if isinstance(value, bytes) else b""

    def _begin(self, group: int) -> Iterator[Any]:
        """Lazily, so that what it raises is raised where it is expected."""
        yield from self._file.iter_batches(
            self.shard.at_once, row_groups=[group], columns=[self.shard.image], use_threads=False
        )


def opened(path: Path, as_dictionary: Sequence[str] | None = None) -> Any:
    """pyarrow's `ParquetFile`, of a file that begins and ends as one must."""
    reject_failed_download(path)
    with open(path, "rb") as file:
        start, size = file.read(4), file.seek(0, 2)
        file.seek(max(size - 8, 0))
        end = file.read(8)
    if start == b"PARE":
        raise KedgeError(f"{path}: this Parquet file is encrypted; decrypt it first.")
    if start != b"PAR1":
        raise KedgeError(f"{path}: this is no Parquet file, although its name says so.")
    if end[4:] != b"PAR1" or not 0 < int.from_bytes(end[:4], "little") <= size - 12:
        raise damaged(path, "it does not end as it must")
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # takes a while, so only here
    except ImportError:
        raise KedgeError(
            f"{path}: Parquet files are read with pyarrow; install it with 'pip install pyarrow'."
        ) from None
    with sound(path):
        return parquet.ParquetFile(
            path,
            read_dictionary=as_dictionary,
            buffer_size=READ_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            arrow_extensions_enabled=False,
        )


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Whatever pyarrow raises of a damaged file becomes one sentence."""
    try:
        yield
    except KedgeError:
        raise
    except Exception as error:
        raise damaged(path, (str(error).splitlines() or [type(error).__name__])[0]) from None


def damaged(path: Path, reason: str) -> KedgeError:
    return KedgeError(
        f"{path}: this Parquet file is truncated or damaged ({reason[:120].rstrip('.')}); get it "
        "again."
    )


def examined(path: Path, part: str) -> Shard:
    """What the end of a file says of it."""
    with opened(path) as file, sound(path):
        schema = file.schema_arrow
        features = _features(schema)
        image, label = image_column(schema), _label_column(schema, features)
        if not image or not label:
            what = "labels (such as 'label')" if image else "encoded images (such as 'image')"
            raise KedgeError(
                f"{path}: expected one column of {what}, but the columns are "
                f"{', '.join(schema.names[:12])}."
            )
        kind = schema.field(label).type
        kind = str(kind.value_type if str(kind).startswith("dictionary") else kind)
        text = kind in ("string", "large_string", "string_view", "binary", "large_binary")
        if not text and not re.fullmatch(r"u?int(8|16|32|64)|bool", kind):
            raise KedgeError(
                f"{path}: the labels in column '{label}' are of type {kind[:40]}; expected whole "
                "numbers or text, one for each image."
            )
        ends, size = _row_groups(file.metadata)
        if size > LARGEST_GROWTH * max(path.stat().st_size, 1 << 20):
            raise KedgeError(
                f"{path}: this file says that it unpacks to {size} bytes; that is no file of "
                "images, and it was not read."
            )
        n = ends[-1] if ends else 0
        at_once = min(max(BATCH_BYTES * n // max(size, 1), 1), MOST_AT_ONCE)
        names = () if text else _names(features.get(label))
        return Shard(path, part, image, label, text, names, ends, at_once, rows=range(n))


def is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def holds_images(path: Path) -> bool:
    """Or it is a table of something else."""
    with opened(path) as file, sound(path):
        return image_column(file.schema_arrow) is not None


def image_column(schema: Any) -> str | None:
    """The one with the bytes of images: a usual name, else the only one that it can be."""
    within, plain = {}, {}
    for field in schema:
        if str(field.type) in ("binary", "large_binary", "binary_view"):
            plain[field.name.lower()] = field.name
        elif str(field.type).startswith("struct<") and any(
            child.name == "bytes" and "binary" in str(child.type) for child in field.type
        ):
            within[field.name.lower()] = f"{field.name}.bytes"
    for name in IMAGE_COLUMNS:
        if found := within.get(name) or plain.get(name):
            return found
    plain = {name: column for name, column in plain.items() if name not in LABEL_COLUMNS}
    only = within or plain
    return next(iter(only.values())) if len(only) == 1 else None


def _label_column(schema: Any, features: dict[str, Any]) -> str | None:
    names = {name.lower(): name for name in schema.names}
    for name in LABEL_COLUMNS:
        if name in names:
            return names[name]
    said = [name for name in schema.names if _names(features.get(name))]
    return said[0] if len(said) == 1 else None


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face says of the columns."""
    said: Any = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        said = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    for key in ("info", "features"):
        said = said.get(key) if isinstance(said, dict) else None
    return said if isinstance(said, dict) else {}


def _names(feature: Any) -> tuple[str, ...]:
    names = feature.get("names") if isinstance(feature, dict) else None
    if not isinstance(names, list) or not all(isinstance(n, str) and n.strip() for n in names):
        return ()
    return tuple(names)


def _row_groups(metadata: Any) -> tuple[tuple[int, ...], int]:
    """Where row groups end, and the bytes of all. Refuses counts that cannot be.

    What is said of a group's columns is not asked for: where that is damaged, pyarrow does not
    raise but ends the process.
    """
    ends, total, size = [], 0, 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        if group.num_rows < 0:
            raise ValueError(f"row group {i} has {group.num_rows} rows")
        total += group.num_rows
        size += max(group.total_byte_size, 0)
        ends.append(total)
    if total != metadata.num_rows or total > MOST_ROWS:
        raise ValueError(f"it says that it has {metadata.num_rows} rows")
    return tuple(ends), size
