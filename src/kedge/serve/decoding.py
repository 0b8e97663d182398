"""Uploaded bytes decoded by worker processes of the service, and thumbnails of what they decode.

The workers are those of `kedge.data.decode_pool`, with differences for strangers' files. Large
pictures, which may take seconds, have one worker of low priority and wait for each other, so that
they keep nobody else waiting. A picture that ends its worker is not tried again with more memory,
and one that takes long is given up.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import DAMAGED, Decoded, DecodeWorker
from kedge.data.process_pool import ProcessPool

N_WORKERS = 4
WORKER_BYTES, LARGE_BYTES = 256 << 20, 448 << 20  # at most
SECONDS, LARGE_SECONDS = 5.0, 30.0  # of wall time for one picture
# The same for a picture of a client whose pictures have ended decoders lately.
SUSPECT_SECONDS, SUSPECT_LARGE_SECONDS = 1.0, 5.0
LARGE_PIXELS = 12_500_000  # more than most telephones take; these wait for each other
NICE = 10
CRASHED, TOO_LONG = "damaged: it makes the decoder crash", "it takes too long to decode"
IS_LARGE = "large"  # as a reason: to be decoded by the worker for these
THUMBNAIL = ImageSpec(192, 3)
QUALITY = 80


class LargeWorker(DecodeWorker):
    """A decode worker that leaves the processors to others."""

    def __init__(self) -> None:
        super().__init__()
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self.pid, NICE)


_POOL = ProcessPool(DecodeWorker, N_WORKERS * WORKER_BYTES)
_LARGE_POOL = ProcessPool[DecodeWorker](LargeWorker, LARGE_BYTES)


@dataclass(frozen=True)
class DecodedPicture:
    """A picture as the model takes it, or why it cannot be read."""

    pixels: UInt8[np.ndarray, "c h w"] | None
    width: int = 0
    height: int = 0
    thumbnail: bytes = b""  # JPEG; empty unless it was asked for
    reason: str = ""  # why there are no pixels
    stopped: bool = False  # whether it ended its worker, as hostile files do


def decode_picture(
    content: bytes, spec: ImageSpec, thumbnail: bool, suspect: bool = False
) -> DecodedPicture:
    """Decode one picture; never raises because of its content. One that is large is not decoded,
    but has the reason IS_LARGE: it is for `decode_large`."""
    seconds = SUSPECT_SECONDS if suspect else SECONDS
    decoded = _decode(content, spec, thumbnail, _POOL, WORKER_BYTES, seconds)
    # A worker may have been ended by somebody else, or by the memory that it lacked.
    if decoded.reason == CRASHED:
        return _decode(content, spec, thumbnail, _POOL, WORKER_BYTES, seconds)
    return decoded


def decode_large(
    content: bytes, spec: ImageSpec, thumbnail: bool, suspect: bool = False
) -> DecodedPicture:
    """Decode one picture of any size, when those before it are done."""
    seconds = SUSPECT_LARGE_SECONDS if suspect else LARGE_SECONDS
    return _decode(content, spec, thumbnail, _LARGE_POOL, LARGE_BYTES, seconds)


def _decode(
    content: bytes,
    spec: ImageSpec,
    thumbnail: bool,
    pool: ProcessPool[DecodeWorker],
    memory: int,
    seconds: float,
) -> DecodedPicture:
    specs = [None, spec, *([THUMBNAIL] if thumbnail else [])]  # None: its header alone
    results: list[Decoded] = []
    width = height = 0
    with pool.process(memory) as worker:
        for each in specs:
            stopped = worker.decode([content], each, memory, results, most_seconds=seconds)
            if stopped:
                reason = CRASHED if stopped == "crash" else TOO_LONG
                return DecodedPicture(None, reason=reason, stopped=True)
            header = results[-1].header
            if header is None or (each is not None and results[-1].pixels is None):
                return DecodedPicture(None, reason=results[-1].reason or DAMAGED)
            width, height = header.width, header.height
            if pool is _POOL and width * height > LARGE_PIXELS:
                return DecodedPicture(None, reason=IS_LARGE)
    small = _as_jpeg(results[2].pixels) if thumbnail else b""
    return DecodedPicture(results[1].pixels, width, height, small)


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
    _LARGE_POOL.close()
