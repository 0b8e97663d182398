"""Uploaded bytes decoded by worker processes of the service, and thumbnails of what they decode.

The workers are those of `kedge.data.decode_pool`, with differences for strangers' files: nothing
in a file tells for certain how long decoding takes, so a picture is given little time and memory
first, which most need, and then more and more in further attempts, of which fewer run at once.
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

NICE = 5  # below the server, above a round
CRASHED, TOO_LONG = "damaged: it makes the decoder crash", "it takes too long to decode"
THUMBNAIL = ImageSpec(192, 3)
QUALITY = 80


class PatientWorker(DecodeWorker):
    """A decode worker that leaves the processors to others."""

    def __init__(self) -> None:
        super().__init__()
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self.pid, NICE)


@dataclass
class Attempt:
    """What the decoding of one picture may take."""

    pool: ProcessPool[DecodeWorker]
    memory: int  # bytes
    seconds: float
    processor: float  # seconds
    most: int  # pictures of one token that are in this or a later attempt at once


# Processor time on two cores of 2026: JPEG of 12 or 24 megapixels 0.03 to 0.2 s; PNG, WebP and HEIC
# of 12 megapixels 0.3 to 0.5 s; 50 megapixels up to 2 s.
N_WORKERS = 4
SMALL, USUAL, LARGE = 128 << 20, 256 << 20, 448 << 20
POOLS = (
    ProcessPool[DecodeWorker](DecodeWorker, N_WORKERS * SMALL),
    ProcessPool[DecodeWorker](DecodeWorker, N_WORKERS * USUAL),
    ProcessPool[DecodeWorker](PatientWorker, 3 * LARGE),  # one for each token
)
ATTEMPTS = (
    Attempt(POOLS[0], SMALL, seconds=5.0, processor=0.12, most=3),
    Attempt(POOLS[1], USUAL, seconds=10.0, processor=0.4, most=2),
    Attempt(POOLS[2], LARGE, seconds=20.0, processor=1.3, most=1),
    Attempt(POOLS[2], LARGE, seconds=30.0, processor=5.0, most=1),
)
QUICK_FORMATS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8")  # how files begin
SCAN, USUAL_SCANS = b"\xff\xda", 20  # of a JPEG, each of which goes through all of it; usual: 1, 10


@dataclass(frozen=True)
class DecodedPicture:
    """A picture as the model takes it, or why it cannot be read."""

    pixels: UInt8[np.ndarray, "c h w"] | None
    width: int = 0
    height: int = 0
    thumbnail: bytes = b""  # JPEG; empty unless it was asked for
    reason: str = ""  # why there are no pixels
    stopped: bool = False  # whether it ended its worker, as hostile files do
    unfinished: bool = False  # whether it may do with more time or memory


def decode_picture(content: bytes, spec: ImageSpec, thumbnail: bool) -> DecodedPicture:
    """Decode one picture; never raises because of its content."""
    for n in range(first_attempt(content), len(ATTEMPTS)):
        decoded = attempt(n, content, spec, thumbnail)
        if not decoded.unfinished:
            break
    return decoded


def first_attempt(content: bytes) -> int:
    """The first attempt that may do for a picture."""
    is_quick = content.startswith(QUICK_FORMATS) and content.count(SCAN) <= USUAL_SCANS
    return 0 if is_quick else 1


def attempt(n: int, content: bytes, spec: ImageSpec, thumbnail: bool) -> DecodedPicture:
    """Decode one picture with what the n-th attempt may take."""
    limits = ATTEMPTS[n]
    results: list[Decoded] = []
    with limits.pool.process(limits.memory) as worker:
        for each in (spec, THUMBNAIL) if thumbnail else (spec,):
            taken = sum(each.seconds for each in results)
            stopped = worker.decode(
                [content],
                each,
                limits.memory,
                results,
                most_seconds=limits.seconds,
                most_processor_seconds=max(limits.processor - taken, 0.01),
            )
            if stopped:
                # A worker may have been ended by somebody else, or by the memory that it lacked.
                reason = CRASHED if stopped == "crash" else TOO_LONG
                return DecodedPicture(None, reason=reason, stopped=True, unfinished=True)
            if results[-1].pixels is None:
                reason = results[-1].reason
                return DecodedPicture(None, reason=reason or DAMAGED, unfinished=not reason)
    header = results[0].header
    assert header is not None
    small = _as_jpeg(results[1].pixels) if thumbnail else b""
    return DecodedPicture(results[0].pixels, header.width, header.height, small)


def _as_jpeg(pixels: np.ndarray | None) -> bytes:
    assert pixels is not None
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(
        file, "JPEG", quality=QUALITY
    )
    return file.getvalue()


def start_worker() -> None:
    """Start a worker that the first picture would have to wait for."""
    POOLS[0].prepare()


def close() -> None:
    for pool in POOLS:
        pool.close()
