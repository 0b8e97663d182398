"""One Parquet file: its image and label columns, read a few rows at a time.

A row group can be as large as the file, so nothing here reads a whole one.
"""

from __future__ import annotations

import importlib
import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from kedge.data.files.archives import LARGEST_GROWTH
from kedge.data.files.file_tree import damage_as_error, damaged, reject_failed_download
from kedge.errors import KedgeError

PARQUET_IMAGE_COLUMNS = ("image", "img", "images", "picture", "photo", "jpg", "png", "bytes")
LABEL_COLUMNS = (
    *("label", "labels", "fine_label", "class", "class_label", "class_name", "target", "category"),
    *("label_name", "cls", "targets", "y"),
)
PARQUET_READ_BYTES = 1 << 20  # of the read buffer: without a limit pyarrow reads a whole row group
PARQUET_BATCH_BYTES = 4 << 20  # of images held in memory
MAX_BATCH = 32  # images; a repeated image counts only once in the file's byte counts
LABEL_BATCH = 1 << 16
MAX_ROWS = 20_000_000  # all of ImageNet has 14 million; a damaged file may claim any number


@dataclass(frozen=True, eq=False)
class Shard:
    """What the metadata of a file says."""

    path: Path
    part: str
    image: str  # column
    label: str  # column
    is_text: bool  # whether labels are text
    names: tuple[str, ...]  # of classes, by label; empty if the file has none
    ends: tuple[int, ...]  # of the row groups, in rows
    batch_size: int  # images read at once
    rows: range | Int64[np.ndarray, " kept"]  # those with a label

    @property
    def n_rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    def labels(self, number_of: dict[int | str, int]) -> Int64[np.ndarray, " rows"]:
        """The number of each row's class in `number_of`, which grows; −1 for rows without one."""
        numbers, at = np.full(self.n_rows, -1, dtype=np.int64), 0
        dictionary = [self.label] if self.is_text else None
        with open_parquet(self.path, dictionary) as file, damage_as_error(self.path):
            for batch in file.iter_batches(LABEL_BATCH, columns=[self.label], use_threads=False):
                column = batch.column(0)
                if not hasattr(column, "indices"):
                    column = column if self.is_text else column.cast("int64", safe=False)
                    column = column.dictionary_encode()
                known = [
                    -1 if v is None else number_of.setdefault(v, len(number_of))
                    for v in map(self._class, column.dictionary.to_pylist())
                ]
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


class ImageCursor:
    """A position in a file's images: reading on is cheap, going back re-reads the row group."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._group = -1
        self._at = 0  # first row of the current batch, within the group
        self._column: Any = ()
        try:
            self._file: Any = open_parquet(shard.path)
        except KedgeError:  # the file has changed since it was listed
            self._file = None

    def image(self, row: int) -> bytes:
        """The encoded image of a row; empty if there is none or the file is damaged."""
        ends = self.shard.ends
        group = bisect_right(ends, row)
        row -= ends[group - 1] if group else 0
        try:
            if group != self._group or row < self._at:
                columns, size = [self.shard.image], self.shard.batch_size
                self._batches = self._file.iter_batches(
                    size, row_groups=[group], columns=columns, use_threads=False
                )
                self._group, self._at, self._column = group, 0, ()
            while row >= self._at + len(self._column):
                self._at += len(self._column)
                self._column = ()
                self._column = next(self._batches).column(0)
            value = self._column[row - self._at].as_py()
        except Exception:  # the end, or whatever pyarrow raises on damaged files
            return b""
        value = value.get("bytes") if isinstance(value, dict) else value
        return value if isinstance(value, bytes) else b""


def open_parquet(path: Path, as_dictionary: Sequence[str] | None = None) -> Any:
    """pyarrow's `ParquetFile`, after checks of the file's first and last bytes."""
    reject_failed_download(path)
    with open(path, "rb") as file:
        start, size = file.read(4), file.seek(0, 2)
        file.seek(max(size - 8, 0))
        end = file.read(8)
    length = int.from_bytes(end[:4], "little")  # of the metadata
    if start != b"PAR1" or end[4:] != b"PAR1" or not 0 < length <= size - 12:
        raise damaged(path, "encrypted, or no Parquet file")
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # slow, so only when needed
    except ImportError:
        raise KedgeError(f"{path}: needs pyarrow; run 'pip install pyarrow'.") from None
    with damage_as_error(path):
        return parquet.ParquetFile(
            path,
            read_dictionary=as_dictionary,
            buffer_size=PARQUET_READ_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            arrow_extensions_enabled=False,
        )


def open_shard(path: Path, part: str) -> Shard:
    """Reads and checks the metadata of a file."""
    with open_parquet(path) as file, damage_as_error(path):
        schema = file.schema_arrow
        features = _features(schema)
        image, label = _image_column(schema), _label_column(schema, features)
        if not image or not label:
            columns = ", ".join(schema.names[:12])
            expected = "columns of encoded images and of labels (such as image and label)"
            raise KedgeError(f"{path}: expected {expected} but found {columns}.")
        kind = schema.field(label).type
        kind = str(kind.value_type if str(kind).startswith("dictionary") else kind)
        is_text = kind in ("string", "large_string", "string_view", "binary", "large_binary")
        if not is_text and not re.fullmatch(r"u?int(8|16|32|64)|bool", kind):
            found = f"the labels in column '{label}' are of type {kind[:40]}"
            raise KedgeError(f"{path}: {found}; expected whole numbers or text.")
        ends, size = _row_groups(file.metadata)
        if size > LARGEST_GROWTH * max(path.stat().st_size, 1 << 20):
            raise KedgeError(f"{path}: not read, it claims to hold {size} bytes.")
        n = ends[-1] if ends else 0
        batch_size = min(max(PARQUET_BATCH_BYTES * n // max(size, 1), 1), MAX_BATCH)
        names = () if is_text else _names(features.get(label))
        return Shard(path, part, image, label, is_text, names, ends, batch_size, rows=range(n))


def is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def holds_images(path: Path) -> bool:
    """Whether a Parquet file has a column of images."""
    with open_parquet(path) as file, damage_as_error(path):
        return _image_column(file.schema_arrow) is not None


def _image_column(schema: Any) -> str | None:
    """The column of encoded images: the first usual name, else the only binary column."""
    structs, plain = {}, {}
    for field in schema:
        if str(field.type) in ("binary", "large_binary", "binary_view"):
            plain[field.name.lower()] = field.name
        elif str(field.type).startswith("struct<") and any(
            child.name == "bytes" and "binary" in str(child.type) for child in field.type
        ):
            structs[field.name.lower()] = f"{field.name}.bytes"
    usual = (structs.get(name) or plain.get(name) for name in PARQUET_IMAGE_COLUMNS)
    others = [*structs.values()] or [plain[name] for name in plain if name not in LABEL_COLUMNS]
    return next(filter(None, usual), others[0] if len(others) == 1 else None)


def _label_column(schema: Any, features: dict[str, Any]) -> str | None:
    names = {name.lower(): name for name in schema.names}
    with_names = [name for name in schema.names if _names(features.get(name))]
    usual = (names[name] for name in LABEL_COLUMNS if name in names)
    return next(usual, with_names[0] if len(with_names) == 1 else None)


def _features(schema: Any) -> dict[str, Any]:
    """Hugging Face's description of the columns."""
    try:
        value = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    except (ValueError, RecursionError):
        return {}
    for key in ("info", "features"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _names(feature: Any) -> tuple[str, ...]:
    names = feature.get("names") if isinstance(feature, dict) else None
    if not isinstance(names, list) or not all(isinstance(n, str) and n.strip() for n in names):
        return ()
    return tuple(names)


def _row_groups(metadata: Any) -> tuple[tuple[int, ...], int]:
    """The last row of each row group, and the bytes of all; raises on impossible counts."""
    # The metadata of a group's columns is not read: pyarrow ends the process if it is damaged.
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows or sum(rows) > MAX_ROWS:
        raise ValueError(f"it claims to have {metadata.num_rows} rows")
    return tuple(accumulate(rows)), sum(max(group.total_byte_size, 0) for group in groups)
