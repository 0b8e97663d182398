"""Uploaded bytes decoded by worker processes of the service, and thumbnails of what they decode.

The workers are those of `kedge.data.decode_pool`, with two differences for strangers' files. A
picture that fails is not tried again with more memory, and one that takes long is given up after
seconds: either would let one sender keep all others waiting.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import DAMAGED, Decoded, DecodeWorker
from kedge.data.process_pool import ProcessPool

N_WORKERS = 4
WORKER_BYTES = 320 << 20  # 50 million pixels in colour, and what decoding needs besides
SECONDS = 6.0  # of wall time for one picture
CRASHED, TOO_LONG = "damaged: it makes the decoder crash", "it takes too long to decode"
THUMBNAIL = ImageSpec(192, 3)
QUALITY = 80
_POOL = ProcessPool(DecodeWorker, N_WORKERS * WORKER_BYTES)


@dataclass(frozen=True)
class DecodedPicture:
    """A picture as the model takes it, or why it cannot be read."""

    pixels: UInt8[np.ndarray, "c h w"] | None
    width: int = 0
    height: int = 0
    thumbnail: bytes = b""  # JPEG; empty unless it was asked for
    reason: str = ""  # why there are no pixels
    stopped: bool = False  # whether it ended its worker, as hostile files do


def decode_picture(content: bytes, spec: ImageSpec, thumbnail: bool) -> DecodedPicture:
    """Decode one picture; never raises because of its content."""
    decoded = _decode(content, spec, thumbnail)
    # A worker may have been ended by somebody else, or by the memory that it lacked.
    return _decode(content, spec, thumbnail) if decoded.reason == CRASHED else decoded


def _decode(content: bytes, spec: ImageSpec, thumbnail: bool) -> DecodedPicture:
    specs = [spec, *([THUMBNAIL] if thumbnail else [])]
    results: list[Decoded] = []
    width = height = 0
    with _POOL.process(WORKER_BYTES) as worker:
        for each in specs:
            stopped = worker.decode([content], each, WORKER_BYTES, results, SECONDS)
            if stopped:
                reason = CRASHED if stopped == "crash" else TOO_LONG
                return DecodedPicture(None, reason=reason, stopped=True)
            header, pixels, reason = results[-1]
            if header is None or pixels is None:
                return DecodedPicture(None, reason=reason or DAMAGED)
            width, height = header.width, header.height
    small = _as_jpeg(results[1].pixels) if thumbnail else b""
    return DecodedPicture(results[0].pixels, width, height, small)


def _as_jpeg(pixels: np.ndarray | None) -> bytes:
    assert pixels is not None
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(
        file, "JPEG", quality=QUALITY
    )
    return file.getvalue()


def start_worker() -> None:
    """Start a worker that the first picture would have to wait for."""
    _POOL.prepare()


def close() -> None:
    _POOL.close()
