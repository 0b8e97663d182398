"""One Parquet file: its image and label columns, read a few rows at a time.

Another process parses it, with limits on memory and time: see data/parquet_worker.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from kedge.data.damage import unreadable
from kedge.data.limited_process import ChildStopped, LimitedProcess
from kedge.data.parquet_worker import BYTES_PER_SECOND, LENGTH, MAX_ROWS, SECONDS
from kedge.data.process_pool import ProcessPool
from kedge.errors import KedgeError, require

MEMORY = 448 << 20  # bytes for reading one file, beyond those of pyarrow itself
WALL_SECONDS = 60.0  # for an answer, and more for large files
LONGEST_JSON = 16 << 20  # bytes of labels and class names
LARGEST_IMAGE = 1 << 28  # bytes
MOST_CRASHES = 3  # of the reader by one file, before it is refused as a whole


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
        given, [content] = _ask(
            self.path,
            "labels",
            label=self.label,
            is_text=self.is_text,
            n_names=len(self.names),
            n_rows=self.n_rows,
        )
        classes = [self.names[label] if self.names else label for label in given]
        known = [number_of.setdefault(name, len(number_of)) for name in classes]
        numbers = np.frombuffer(content, np.int32)
        ok = len(numbers) == self.n_rows and int(numbers.max(initial=-1)) < len(known)
        require(ok, f"{self.path}: its labels could not be read.")
        return np.array([*known, -1], dtype=np.int64)[numbers]


class ShardImages:
    """The encoded images of a file."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._damaged_until = 0  # row up to which nothing more is tried
        self._n_crashes = 0
        # For all images together: a small file may have many parts that unpack to much.
        self._seconds = _seconds_for(shard.path) - 1

    def fetch(self, rows: Sequence[int]) -> Iterator[bytes]:
        """The images of these rows, which ascend; empty for those that cannot be read."""
        shard, rows = self.shard, list(rows)
        columns = {"image": shard.image, "ends": shard.ends, "batch_size": shard.batch_size}
        while rows:
            if rows[0] < self._damaged_until:
                rows.pop(0)
                yield b""
                continue
            require(self._seconds > 0, _refusal(shard.path, "take too long"))
            try:
                took, images = _ask(shard.path, "images", self._seconds, **columns, rows=rows)
                self._seconds -= took
            except _TooLong as error:
                raise KedgeError(str(error)) from None
            except _Crashed:
                self._n_crashes += 1
                if self._n_crashes > MOST_CRASHES:
                    raise
                self._damaged_until = next(end for end in shard.ends if end > rows[0])
                continue
            require(0 < len(images) <= len(rows), f"{shard.path}: its images could not be read.")
            rows = rows[len(images) :]
            yield from images


def open_shard(path: Path, part: str) -> Shard:
    """Reads and checks the metadata of a file."""
    about, _ = _ask(path, "describe")
    about |= {"names": tuple(about["names"]), "ends": tuple(about["ends"])}
    shard = Shard(path, part, **about, rows=range(0))
    require(shard.n_rows <= MAX_ROWS, f"{path}: claims to have {shard.n_rows} rows.")
    object.__setattr__(shard, "rows", range(shard.n_rows))
    return shard


def is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def holds_images(path: Path) -> bool:
    """Whether a Parquet file has a column of images."""
    return bool(_ask(path, "has_images")[0])


class _Crashed(KedgeError):
    """The file ended the process that read it."""


class _TooLong(_Crashed):
    """It used up its processor time."""


class _ParquetProcess(LimitedProcess):
    def __init__(self) -> None:
        super().__init__("kedge.data.parquet_worker", ("numpy", "pyarrow"))

    def ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], list[bytes]]:
        text = json.dumps(request).encode()
        self.send(LENGTH.pack(len(text)) + text, seconds)
        length = LENGTH.unpack(self.receive(LENGTH.size, seconds))[0]
        if length > LONGEST_JSON:
            raise ChildStopped("send too much text")
        reply = json.loads(self.receive(length, seconds))
        sizes = reply.get("parts", [])
        if max(sizes, default=0) > LARGEST_IMAGE:
            raise ChildStopped("send too large an image")
        return reply, [bytes(self.receive(n, seconds)) for n in sizes]


_POOL = ProcessPool(_ParquetProcess, MEMORY)


def _seconds_for(path: Path) -> float:
    """The processor time that a request may take."""
    try:
        return SECONDS + os.stat(path).st_size / BYTES_PER_SECOND
    except OSError as error:
        raise unreadable(path, error) from None


def _refusal(path: Path, reason: str) -> str:
    what = f"this Parquet file makes its reader {reason}, and was not read"
    return f"{path}: {what}; get it from a source you trust."


def _ask(
    path: Path, function: str, seconds: float = 0.0, **arguments: Any
) -> tuple[Any, list[bytes]]:
    """The result of a function of parquet_worker.py, and the bytes that come with it.

    `seconds` of processor time may be taken, by default as many as suit the size of the file.
    """
    seconds = seconds or _seconds_for(path)
    # The folder of this process may have changed since the other was started.
    folder = "/" if path.is_absolute() else os.getcwd()
    limits = {"memory": MEMORY, "seconds": seconds}
    request = {"function": function, "folder": folder, "path": str(path), **limits}
    try:
        with _POOL.process(MEMORY) as process:
            reply, parts = process.ask({**request, **arguments}, WALL_SECONDS + 10 * seconds)
    except ChildStopped as stopped:
        kind = _TooLong if stopped.reason == "take too long" else _Crashed
        raise kind(_refusal(path, stopped.reason)) from None
    if "error" in reply:
        more = f"{path}: more than {MEMORY >> 20} MiB are needed to read this Parquet file."
        raise KedgeError(reply["error"] or more)
    return reply["result"], parts
