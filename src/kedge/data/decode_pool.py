"""Images decoded by worker processes, which are kept for the next images of this process.

Encoded images never reach a decoder in this process, however few they are: decoders are C programs
that a file can crash, hang or make take any memory. An image that does so is lost with a reason,
and the others of its batch are decoded nevertheless. Arrays need no decoder and stay here.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from kedge.data.damage import failed_download
from kedge.data.decode import ImageHeader, ImageSpec, RawImage, array_header, decode_array
from kedge.data.decode_worker import LENGTH, LONGEST_REASON, REPLY, REQUEST, seconds_for
from kedge.data.image_codec import MOST_PIXELS
from kedge.data.limited_process import ChildStopped, LimitedProcess
from kedge.data.process_pool import ProcessPool
from kedge.errors import KedgeError
from kedge.utils.regular_file import open_regular

DAMAGED = "no image, or damaged"
MEMORY = 448 << 20  # bytes for all decoders together, beyond their start
# The slowest honest images, which are large and nearly empty, take no longer on the average.
USUAL_SECONDS, USUAL_BYTES_PER_SECOND = 0.005, 50_000
WALL_SECONDS = 30.0  # for one image, and more for those that may take more processor time
LARGEST_IMAGE = 1 << 28  # bytes of a file
REQUEST_BYTES = 1 << 23  # of images that are read before they are sent to a worker
HEAD_BYTES = 1 << 16  # the start of a file, which usually has its whole header
# Errors that tell something of one file. All others (a failing disk, say) may be over tomorrow, so
# the image must not be left out for good.
OF_ONE_FILE = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EACCES: "no permission to read it",
    errno.EPERM: "no permission to read it",
    errno.EISDIR: "a folder",
    errno.ELOOP: "links in a circle",
    errno.ENAMETOOLONG: "its name is too long",
}


class Decoded(NamedTuple):
    """What is known of one image."""

    header: ImageHeader | None
    pixels: UInt8[np.ndarray, "c h w"] | None
    reason: str = ""  # why there are no pixels
    seconds: float = 0.0  # of processor time, of an image that was decoded or not


Charge = Callable[[int, float], None]


def ignore(position: int, overtime: float) -> None:
    """Nothing happens, however long an image takes."""


def n_workers() -> int:
    """At most eight: each takes memory, and together they are faster than most disks."""
    has_affinity = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 2
    return max(2, min(n_cores, 8))


def decode_each(
    images: Sequence[RawImage], spec: ImageSpec, charge: Charge = ignore
) -> list[Decoded]:
    """Decode images; the worker's death, an exceeded limit or damage costs one of them.

    `charge` is called with the position of each image that a worker was given, and with its
    processor time beyond what images of so many bytes take (all of it, if it was not decoded);
    infinity, if it ended its worker. It may raise. Raises KedgeError if a file cannot be read for a
    reason that may not last, or if no worker can be started.
    """
    return _decode_each(images, spec, charge)


def read_headers(images: Sequence[RawImage], charge: Charge = ignore) -> list[ImageHeader | None]:
    """Headers only, without `turned`; None for an image that has none."""
    heads = _decode_each(images, None, charge, HEAD_BYTES)
    retried = [i for i, head in enumerate(heads) if head.header is None and not head.reason]
    again = _decode_each([images[i] for i in retried], None, lambda i, t: charge(retried[i], t))
    for i, whole in zip(retried, again, strict=True):
        heads[i] = whole
    return [head.header for head in heads]


def start_worker() -> None:
    """Start a worker that the first image would have to wait for, if there is none."""
    _POOL.prepare()


def _decode_each(
    images: Sequence[RawImage],
    spec: ImageSpec | None,
    charge: Charge,
    n_bytes: int = LARGEST_IMAGE + 1,
) -> list[Decoded]:
    results: dict[int, Decoded] = {}
    encoded: dict[int, bytes] = {}

    def decode_encoded() -> None:
        numbers, contents = list(encoded), list(encoded.values())
        decoded = _decode_encoded(contents, spec, lambda i, t: charge(numbers[i], t), n_bytes)
        results.update(zip(numbers, decoded, strict=True))
        encoded.clear()

    for i, image in enumerate(images):
        if isinstance(image, np.ndarray):
            pixels = None if spec is None else decode_array(image, spec)
            results[i] = Decoded(array_header(image), pixels)
            continue
        try:
            encoded[i] = image[:n_bytes] if isinstance(image, bytes) else _read(image, n_bytes)
        except _OneFile as error:
            results[i] = Decoded(None, None, str(error))
        if sum(map(len, encoded.values())) > REQUEST_BYTES:
            decode_encoded()
    decode_encoded()
    return [results[i] for i in range(len(images))]


class _OneFile(Exception):
    """A file cannot be read, and the next attempt would not differ."""


def _read(path: Path, n_bytes: int) -> bytes:
    """The first bytes of a file, or all of it."""
    try:
        with open_regular(path) as file:
            content = file.read(n_bytes)
    except OSError as error:
        if error.errno == errno.EINVAL and error.strerror:  # from open_regular
            raise _OneFile(error.strerror) from None
        if error.errno in OF_ONE_FILE:
            raise _OneFile(OF_ONE_FILE[error.errno]) from None
        raise KedgeError(
            f"{path}: could not be read ({error.strerror or error}); see to the disk and run the "
            "command again."
        ) from error
    except ValueError:  # a NUL in the name
        raise _OneFile("no such file") from None
    if len(content) > LARGEST_IMAGE:
        raise _OneFile(f"more than {LARGEST_IMAGE >> 20} MiB")
    return content


def _decode_encoded(
    contents: Sequence[bytes], spec: ImageSpec | None, charge: Charge, n_bytes: int
) -> list[Decoded]:
    """Decode images in a worker with the usual memory, and those that fail alone with more."""
    results: list[Decoded] = []
    usual = MEMORY // n_workers()
    while len(results) < len(contents):
        with _POOL.process(usual) as worker:
            stopped = worker.decode(contents[len(results) :], spec, usual, results, charge)
        if stopped in ("hang", "take too long"):
            results.append(Decoded(None, None, f"it makes the decoder {stopped}"))
            charge(len(results) - 1, math.inf)
        elif stopped:
            results.append(Decoded(None, None))  # what the worker did before may be the reason
    for i, result in enumerate(results):
        if spec is None and (result.header or len(contents[i]) >= n_bytes):
            continue  # known, or to be tried with the whole file
        if result.pixels is None and not result.reason:
            results[i] = _decode_alone(contents[i], spec, partial(charge, i))
    return results


def _decode_alone(
    content: bytes, spec: ImageSpec | None, charge: Callable[[float], None]
) -> Decoded:
    """Decode one image with all the memory that decoders may take."""
    alone: list[Decoded] = []
    with _POOL.process(MEMORY) as worker:
        stopped = worker.decode([content], spec, MEMORY, alone, lambda _, t: charge(t))
    if stopped:
        charge(math.inf)
        return Decoded(None, None, f"it makes the decoder {stopped}")
    [result] = alone
    if result.pixels is not None or result.reason:
        return result
    header, reason = result.header, failed_download(content[:512]) or DAMAGED
    if header is not None and header.width * header.height > MOST_PIXELS:
        reason = f"{header.width}×{header.height} px are too many"
    return result._replace(reason=reason)


class DecodeWorker(LimitedProcess):
    """A decode worker; see decode_worker.py for what is sent."""

    def __init__(self) -> None:
        super().__init__("kedge.data.decode_worker", ("PIL", "pillow_heif"))

    def decode(
        self,
        contents: Sequence[bytes],
        spec: ImageSpec | None,
        memory: int,
        results: list[Decoded],
        charge: Charge = ignore,
        most_seconds: float = math.inf,
        most_processor_seconds: float = math.inf,
    ) -> str:
        """Append the result of each image and charge for it; returns why the worker stopped at the
        next, or "".

        An image may take `most_seconds` of wall time and so many of processor time, or less if it
        is small.
        """
        try:
            lengths = b"".join(LENGTH.pack(len(content)) for content in contents)
            request = _request(spec, memory, most_processor_seconds, len(contents))
            self.send(request + lengths, WALL_SECONDS)
            for content in contents:
                self.send(content, WALL_SECONDS)
            for content in contents:
                seconds = WALL_SECONDS + 10 * seconds_for(len(content))
                results.append(self._receive(spec, min(seconds, most_seconds)))
                usual = USUAL_SECONDS + len(content) / USUAL_BYTES_PER_SECOND
                # One that fails, before it is tried again, must not make up for others.
                done = spec is None or results[-1].pixels is not None
                charge(len(results) - 1, results[-1].seconds - done * usual)
        except ChildStopped as stopped:
            self.close()
            return stopped.reason
        return ""

    def _receive(self, spec: ImageSpec | None, seconds: float) -> Decoded:
        """One reply. A decoder that was taken over may send anything, so all of it is checked."""
        reply = self.receive(REPLY.size, seconds)
        decoded, width, height, mode, turned, seconds_taken, n_bytes = REPLY.unpack(reply)
        header = None
        if not 0 <= seconds_taken < math.inf:
            raise ChildStopped("crash")
        if width and height:
            text = mode.rstrip(b"\0").decode("ascii", "replace")
            header = ImageHeader(width, height, text if text.isprintable() else "?", turned)
        if not decoded:
            if n_bytes > LONGEST_REASON:
                raise ChildStopped("crash")
            reason = self.receive(n_bytes, seconds).decode(errors="replace")
            reason = reason if reason.isprintable() else DAMAGED
            return Decoded(header, None, reason, seconds_taken)
        if spec is None or header is None or n_bytes != spec.n_bytes:
            raise ChildStopped("crash")
        pixels = spec.finish(self.receive(n_bytes, seconds))
        return Decoded(header, pixels, seconds=seconds_taken)


def _request(spec: ImageSpec | None, memory: int, seconds: float, n: int) -> bytes:
    if spec is None:
        return REQUEST.pack(0, 1, False, 0, memory, seconds, n)
    side, n_channels, resize, resample = spec.target
    return REQUEST.pack(side, n_channels, resize == "stretch", resample, memory, seconds, n)


_POOL = ProcessPool(DecodeWorker, MEMORY)
