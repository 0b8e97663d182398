"""Parquet files, by their reader in a child process with limits.

The coverage is that of kedge's side: pyarrow is not instrumented.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.data.hostile import png

from kedge.data import parquet_worker

from ..mutate import change_bytes
from ..target import data_target, put

IMAGES = [png(k, 2) for k in range(6)]
STRUCTS = [{"bytes": image, "path": f"{k}.png"} for k, image in enumerate(IMAGES)]
NAMES = {"label": {"names": ["ant", "bat"], "_type": "ClassLabel"}}
FEATURES = {"huggingface": json.dumps({"info": {"features": NAMES}})}
LABELS = (
    pa.array([0, 1, 0, 1, 0, 1]),
    pa.array(["ant", "bat", "ant", None, "", "é"]),
    pa.array([b"ant", b"bat"] * 3),
    pa.array([True, False] * 3),
    pa.array(["ant", "bat"] * 3).dictionary_encode(),
    pa.array([0, 1, 2**63, 2**64 - 1, 5, 0], pa.uint64()),
    pa.array([0.5, 1, 2, 3, 4, 5]),
    pa.array([[0], [1]] * 3),
)


def place(folder: Path, data: bytes) -> Path:
    return put(folder / "x.parquet", data)


def inside(folder: Path, data: bytes) -> None:
    """What its reader's process does."""
    path = str(place(folder, data))
    parquet_worker.has_images({}, path)
    shard, _ = parquet_worker.describe({}, path)
    n_rows = shard["ends"][-1]
    names = len(shard["names"])
    parquet_worker.labels({}, path, shard["label"], shard["is_text"], names, n_rows)
    rows = sorted({0, n_rows // 2, n_rows - 1})
    parquet_worker.images({}, path, shard["image"], shard["ends"], shard["batch_size"], rows)


def table(images: Any, labels: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    columns = pa.table({"image": images, "label": labels}).replace_schema_metadata(FEATURES)
    pq.write_table(columns, file, row_group_size=4, **options)
    return file.getvalue()


def seeds() -> list[bytes]:
    found = [table(pa.array(IMAGES), labels) for labels in LABELS]
    found.append(table(pa.array(STRUCTS), LABELS[0]))
    found.append(table(pa.array(IMAGES).dictionary_encode(), LABELS[0]))
    for compression in ("NONE", "GZIP", "ZSTD", "BROTLI", "LZ4"):
        found.append(table(pa.array(IMAGES), LABELS[0], compression=compression))
    found.append(table(pa.array(IMAGES), LABELS[1], data_page_version="2.0"))
    return [*found, table(pa.array(IMAGES), LABELS[0], write_page_checksum=True)]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Mostly the metadata at the end are changed, with their length as it is then."""
    length = int.from_bytes(data[-8:-4], "little")
    if rng.random() < 0.2 or not 0 < length <= len(data) - 12:
        return change_bytes(rng, data)
    pages, footer = data[: -8 - length], data[-8 - length : -8]
    if rng.random() < 0.5:
        at = rng.randrange(len(footer))
        footer = footer[:at] + change_bytes(rng, footer[at : at + 4]) + footer[at + 4 :]
    else:
        pages = b"PAR1" + change_bytes(rng, pages[4:])
    return pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


TOKENS = [b"PAR1", b"huggingface", b"names"]
TARGET = data_target(place, seeds, mutate, TOKENS, children=True, inside=inside)
