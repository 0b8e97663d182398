"""The packed image file: safetensors whose pixels are read and written in blocks.

The safetensors library can only map or load a whole file, and only save what is in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kedge.data.lazy_images import LazyImages, OpenFile
from kedge.errors import KedgeError, require
from kedge.utils.atomic_io import to_json, write_atomically

PACKED_FORMAT = "kedge-images-1"
BLOCK_BYTES = 1 << 23  # pixels that are read, moved or hashed at a time
DTYPES = {"U8": torch.uint8, "I64": torch.int64}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
VECTORS = ("labels", "part")  # tensors beside the images


def read_packed(path: Path) -> tuple[dict[str, Any], LazyImages, dict[str, Tensor]]:
    """What kedge wrote in the metadata, the images (not loaded), and labels and parts."""
    try:
        file = OpenFile(path)
        # Opening checks that the header's shapes and offsets fit together and the file.
        with safe_open(path, "pt") as tensors:
            metadata = json.loads((tensors.metadata() or {}).get("kedge", "null"))
            vectors = {k: tensors.get_tensor(k).clone() for k in VECTORS if k in tensors.keys()}
        length = int.from_bytes(file.read(8, 0), "little")
        images = json.loads(file.read(length, 8)).get("images")
    except FileNotFoundError:
        raise KedgeError(f"{path}: there is no packed image file here.") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise KedgeError(f"{path}: not a packed image file, or damaged ({reason}).") from None
    require(isinstance(metadata, dict), f"{path}: not a packed image file that kedge wrote.")
    kind = "a model" if metadata.get("format") == "kedge-model" else "another file"
    require(
        metadata.get("format") == PACKED_FORMAT,
        f"{path}: this is {kind} of kedge, not packed images; give images, or a file written by "
        "'kedge data pack'.",
    )
    require(images is not None, f"{path}: this packed image file lacks 'images'.")
    ok = images["dtype"] == "U8" and len(images["shape"]) == 4
    require(ok, f"{path}: images must be uint8 of shape N×C×H×W.")
    require(0 not in images["shape"], f"{path}: this packed image file holds no image.")
    n, *image_shape = images["shape"]
    offset, numbers = 8 + length + images["data_offsets"][0], np.arange(n, dtype=np.int64)
    checksum = str(metadata.get("fingerprint", ""))
    return metadata, LazyImages(file, offset, tuple(image_shape), numbers, checksum), vectors


def write_packed(
    path: Path, tensors: Mapping[str, Tensor], images: Tensor | LazyImages, metadata: dict[str, Any]
) -> None:
    """Write, block by block, the same bytes that the safetensors library would write."""
    values: dict[str, Tensor | LazyImages] = {**tensors, "images": images}
    order = sorted(values, key=lambda name: (-values[name].dtype.itemsize, name))
    layout = {name: (DTYPE_NAMES[values[name].dtype], values[name].shape) for name in order}
    content = {"__metadata__": {"kedge": to_json(metadata)}, **header_entries(layout)}
    header = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)

    def write(part: Path) -> None:
        with open(part, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in order:
                for block in blocks(values[name]):
                    file.write(block)

    write_atomically(path, write)


def header_entries(layout: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, Any]:
    """The safetensors header of tensors (name → dtype and shape) that follow one another."""
    entries, start = {}, 0
    for name, (dtype, shape) in layout.items():
        end = start + math.prod(shape) * DTYPES[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return entries


def blocks(values: Tensor | LazyImages) -> Iterable[memoryview]:
    """The bytes of a tensor or of images in a file, some rows at a time."""
    row_bytes = math.prod(values.shape[1:]) * values.dtype.itemsize
    for rows in values.split(max(1, BLOCK_BYTES // max(1, row_bytes))):
        yield rows.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def fingerprint_of(
    shape: tuple[int, ...],
    blocks: Iterable[bytes | memoryview],
    labels: Int64[Tensor, " n"],
    classes: Sequence[str],
    split: tuple[Sequence[str], Tensor] | None = None,
) -> str:
    """A hash of pixels (in blocks), labels, names, and a split: its parts and each image's part."""
    sha = hashlib.sha256(f"images {torch.uint8} {shape}".encode())
    for block in blocks:
        sha.update(block)
    sha.update(f"labels {labels.dtype} {tuple(labels.shape)}".encode())
    sha.update(labels.contiguous().view(torch.uint8).numpy().data)
    if split is not None:
        sha.update(json.dumps(split[0]).encode())
        sha.update(split[1].contiguous().numpy().data)
    names = hashlib.sha256(json.dumps(classes).encode()).hexdigest()
    return f"{sha.hexdigest()[:16]}-{names[:16]}"
