"""Uploaded bytes decoded by worker processes of the service, and thumbnails of what they decode.

The workers are those of `kedge.data.decode_pool`, with differences for strangers' files. Pictures
of the usual formats and sizes, which can be made to take about a second, have workers of their
own. All others may be slow: they have two workers of low priority. A picture that ends its worker
is not tried again with more memory, and one that takes long is given up.
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

N_WORKERS, N_SLOW_WORKERS = 4, 2
# By how files begin: the most pixels of those that are decoded quickly. The time for these formats
# is bounded by pixels, bytes and, for JPEG, scans; in others a small file can hold any work.
QUICK_PIXELS = {
    b"\xff\xd8\xff": 12_500_000,  # JPEG; most telephones take fewer
    b"\x89PNG\r\n\x1a\n": 12_500_000,
    b"GIF8": 12_500_000,
    b"RIFF": 6_250_000,  # WebP takes twice as long
}
SCAN, QUICK_SCANS = b"\xff\xda", 20  # of a JPEG, each of which goes through all of it; usual: 1, 10
NICE = 5  # below the server, above a round
CRASHED, TOO_LONG = "damaged: it makes the decoder crash", "it takes too long to decode"
IS_SLOW = "slow"  # as a reason: it is for `decode_slow`
THUMBNAIL = ImageSpec(192, 3)
QUALITY = 80


class SlowWorker(DecodeWorker):
    """A decode worker that leaves the processors to others."""

    def __init__(self) -> None:
        super().__init__()
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self.pid, NICE)


class Decoders:
    """Workers, and what each may take for one picture."""

    def __init__(
        self, start: type[DecodeWorker], n: int, memory: int, seconds: float, processor: float
    ) -> None:
        self.pool = ProcessPool[DecodeWorker](start, n * memory)
        self.memory, self.seconds, self.processor = memory, seconds, processor


_QUICK = Decoders(DecodeWorker, N_WORKERS, memory=256 << 20, seconds=5.0, processor=2.0)
_SLOW = Decoders(SlowWorker, N_SLOW_WORKERS, memory=448 << 20, seconds=30.0, processor=5.0)
SUSPECT = 0.4  # share of the time for a client whose pictures have ended decoders lately


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
    """Decode one picture; never raises because of its content. One that may be slow is not decoded,
    but has the reason IS_SLOW."""
    most_pixels = quick_pixels(content)
    if not most_pixels:
        return DecodedPicture(None, reason=IS_SLOW)
    decoded = _decode(content, spec, thumbnail, suspect, _QUICK, most_pixels)
    # A worker may have been ended by somebody else, or by the memory that it lacked.
    if decoded.reason == CRASHED:
        return _decode(content, spec, thumbnail, suspect, _QUICK, most_pixels)
    return decoded


def decode_slow(
    content: bytes, spec: ImageSpec, thumbnail: bool, suspect: bool = False
) -> DecodedPicture:
    """Decode one picture of any format and size."""
    return _decode(content, spec, thumbnail, suspect, _SLOW)


def quick_pixels(content: bytes) -> int:
    """How many pixels a picture may have to be decoded quickly; 0 if it may be slow anyway."""
    if content.startswith(b"\xff\xd8") and content.count(SCAN) > QUICK_SCANS:
        return 0
    return next((n for start, n in QUICK_PIXELS.items() if content.startswith(start)), 0)


def _decode(
    content: bytes,
    spec: ImageSpec,
    thumbnail: bool,
    suspect: bool,
    decoders: Decoders,
    most_pixels: int | None = None,
) -> DecodedPicture:
    specs = [None, spec, *([THUMBNAIL] if thumbnail else [])]  # None: its header alone
    results: list[Decoded] = []
    width = height = 0
    most = decoders.processor * (SUSPECT if suspect else 1)
    with decoders.pool.process(decoders.memory) as worker:
        for each in specs:
            stopped = worker.decode(
                [content],
                each,
                decoders.memory,
                results,
                most_seconds=decoders.seconds,
                most_processor_seconds=max(most - sum(each.seconds for each in results), 0.01),
            )
            if stopped:
                reason = CRASHED if stopped == "crash" else TOO_LONG
                return DecodedPicture(None, reason=reason, stopped=True)
            header = results[-1].header
            if header is None or (each is not None and results[-1].pixels is None):
                return DecodedPicture(None, reason=results[-1].reason or DAMAGED)
            width, height = header.width, header.height
            if most_pixels is not None and width * height > most_pixels:
                return DecodedPicture(None, reason=IS_SLOW)
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
    _QUICK.pool.prepare()


def close() -> None:
    _QUICK.pool.close()
    _SLOW.pool.close()
