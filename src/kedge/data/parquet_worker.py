"""The program of the process that reads Parquet files: pyarrow's parser is C++ that a damaged file
can crash or make take any memory, whatever the file says of its sizes.

A request is LENGTH and JSON: the name of a function below and its arguments. The reply is LENGTH
and JSON (the result or an error, and how many bytes each part has), and the parts. The parent's
side is files/parquet_file.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from io import BufferedReader, BufferedWriter
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data import limited_process
from kedge.data.damage import damage_as_error, damaged, reject_failed_download, unreadable
from kedge.errors import KedgeError
from kedge.utils.regular_file import open_regular

LENGTH = struct.Struct("<I")
LARGEST_GROWTH = 200  # a file that unpacks to more than this many times its size is a bomb
SMALL_FILE = 1 << 18  # bytes; smaller ones may grow as these do
PARQUET_IMAGE_COLUMNS = ("image", "img", "images", "picture", "photo", "jpg", "png", "bytes")
LABEL_COLUMNS = (
    *("label", "labels", "fine_label", "class", "class_label", "class_name", "target", "category"),
    *("label_name", "cls", "targets", "y"),
)
READ_BYTES = 1 << 20  # of the read buffer: without a limit pyarrow reads a whole row group
BATCH_BYTES = 4 << 20  # of images held in memory
MAX_BATCH = 32  # images; a repeated image counts only once in the file's byte counts
LABEL_BATCH = 1 << 16
MAX_ROWS = 20_000_000  # all of ImageNet has 14 million; a damaged file may claim any number
SECONDS, BYTES_PER_SECOND = 3.0, 1 << 20  # of processor time for a request, by the file's size

Reply = tuple[Any, Sequence[bytes]]


def serve() -> None:
    """The process's main loop."""
    limited_process.write_no_files()
    memory: list[limited_process.MemoryLimit] = []
    cursors: dict[tuple[str, str], ImageCursor] = {}  # the last one

    def answer(requests: BufferedReader, replies: BufferedWriter) -> None:
        length = LENGTH.unpack(limited_process.read_exactly(requests, LENGTH.size))[0]
        asked = json.loads(limited_process.read_exactly(requests, length))
        _import_parquet(asked["path"])
        if not memory:  # what pyarrow takes by itself does not count
            memory.append(limited_process.MemoryLimit())
        os.chdir(asked.pop("folder"))
        memory[0].set(asked.pop("memory"))
        limited_process.limit_processor_time(asked.pop("seconds"))
        parts: Sequence[bytes] = ()
        try:
            result, parts = FUNCTIONS[asked.pop("function")](cursors, **asked)
            reply = {"result": result, "parts": [len(part) for part in parts]}
        except KedgeError as error:
            reply = {"error": str(error)}
        except MemoryError:
            reply = {"error": ""}
        limited_process.limit_processor_time(0)
        text = json.dumps(reply).encode()
        replies.write(LENGTH.pack(len(text)) + text)
        for part in parts:
            replies.write(part)

    limited_process.serve(answer)


def has_images(cursors: Any, path: str) -> Reply:
    """Whether a Parquet file has a column of images."""
    with open_parquet(Path(path)) as file, damage_as_error(path):
        return _image_column(file.schema_arrow) is not None, ()


def describe(cursors: Any, path: str) -> Reply:
    """The checked metadata of a file: fields of `Shard`."""
    with open_parquet(Path(path)) as file, damage_as_error(path):
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
        if size > LARGEST_GROWTH * max(Path(path).stat().st_size, SMALL_FILE):
            raise KedgeError(f"{path}: not read, it claims to hold {size} bytes.")
        n = ends[-1] if ends else 0
        batch_size = min(max(BATCH_BYTES * n // max(size, 1), 1), MAX_BATCH)
        names = () if is_text else _names(features.get(label))
        shard = {"image": image, "label": label, "is_text": is_text, "names": names, "ends": ends}
        return {**shard, "batch_size": batch_size}, ()


def labels(cursors: Any, path: str, label: str, is_text: bool, n_names: int, n_rows: int) -> Reply:
    """The distinct labels, and for each row the number of its label among them or −1."""
    number_of: dict[int | str, int] = {}
    numbers, at = np.full(n_rows, -1, dtype=np.int32), 0
    dictionary = [label] if is_text else None
    with open_parquet(Path(path), dictionary) as file, damage_as_error(path):
        for batch in file.iter_batches(LABEL_BATCH, columns=[label], use_threads=False):
            column = batch.column(0)
            if not hasattr(column, "indices"):
                column = column if is_text else column.cast("int64", safe=False)
                column = column.dictionary_encode()
            known = [
                -1 if v is None else number_of.setdefault(v, len(number_of))
                for v in (_label(value, n_names) for value in column.dictionary.to_pylist())
            ]
            codes = column.indices.cast("int64").fill_null(len(known)).to_numpy()
            numbers[at : at + len(codes)] = np.array([*known, -1], dtype=np.int32)[codes]
            at += len(codes)
    if at != n_rows:
        raise damaged(path, f"{n_rows} rows have {at} labels")
    return list(number_of), [numbers.tobytes()]


def _label(label: int | str | bytes | None, n_names: int) -> int | str | None:
    if isinstance(label, bytes):
        label = label.decode()
    if isinstance(label, str):
        return label if label.strip() else None
    return None if label is None or label < 0 or (n_names and label >= n_names) else int(label)


def images(
    cursors: dict[tuple[str, str], ImageCursor],
    path: str,
    image: str,
    ends: Sequence[int],
    batch_size: int,
    rows: Sequence[int],
) -> Reply:
    """The encoded images of some rows, in order, the first few only if they are large; and the
    processor time that was taken."""
    began, key = time.process_time(), (path, image)
    cursor = cursors.pop(key, None) or ImageCursor(Path(path), image, ends, batch_size)
    cursors.clear()
    cursors[key] = cursor
    found: list[bytes] = []
    for row in rows:
        found.append(cursor.image(row))
        if sum(map(len, found)) > BATCH_BYTES:
            break
    return time.process_time() - began, found


FUNCTIONS: dict[str, Callable[..., Reply]] = {
    function.__name__: function for function in (has_images, describe, labels, images)
}


class ImageCursor:
    """A position in a file's images: reading on is cheap, going back re-reads the row group."""

    def __init__(self, path: Path, image: str, ends: Sequence[int], batch_size: int) -> None:
        self._path, self._image, self._ends, self._batch_size = path, image, ends, batch_size
        self._group = -1
        self._at = 0  # first row of the current batch, within the group
        self._column: Any = ()
        self._file: Any = open_parquet(path)

    def image(self, row: int) -> bytes:
        """The encoded image of a row; empty if there is none or its row group is damaged."""
        ends = self._ends
        group = bisect_right(ends, row)
        row -= ends[group - 1] if group else 0
        try:
            if group != self._group or row < self._at:
                self._batches = self._file.iter_batches(
                    self._batch_size, row_groups=[group], columns=[self._image], use_threads=False
                )
                self._group, self._at, self._column = group, 0, ()
            while row >= self._at + len(self._column):
                self._at += len(self._column)
                self._column = ()
                self._column = next(self._batches).column(0)
            value = self._column[row - self._at].as_py()
        except MemoryError:
            raise
        except Exception as error:  # the end, or whatever pyarrow raises on damaged files
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self._path, error) from None
            return b""
        value = value.get("bytes") if isinstance(value, dict) else value
        return value if isinstance(value, bytes) else b""


def open_parquet(path: Path, as_dictionary: Sequence[str] | None = None) -> Any:
    """pyarrow's `ParquetFile`, after checks of the file's first and last bytes."""
    reject_failed_download(path)
    with damage_as_error(path), open_regular(path) as file:
        start, size = file.read(4), file.seek(0, 2)
        file.seek(max(size - 8, 0))
        end = file.read(8)
    length = int.from_bytes(end[:4], "little")  # of the metadata
    if start != b"PAR1" or end[4:] != b"PAR1" or not 0 < length <= size - 12:
        raise damaged(path, "encrypted, or no Parquet file")
    with damage_as_error(path):
        return _import_parquet(path).ParquetFile(
            path,
            read_dictionary=as_dictionary,
            buffer_size=READ_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            arrow_extensions_enabled=False,
        )


def _import_parquet(path: object) -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise KedgeError(f"{path}: needs pyarrow; run 'pip install pyarrow'.") from None


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
