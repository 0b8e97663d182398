"""Digests of the pixels of a packed file, one for some images each: damage is found when an image
is first read, without reading a large file as a whole to open it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.errors import KedgeError, require

DIGEST_BYTES = 16
CHUNK_BYTES = 1 << 20  # pixels of one digest: reading one image for the first time reads as many


def images_per_digest(image_bytes: int) -> int:
    return max(1, CHUNK_BYTES // image_bytes)


class DigestWriter:
    """Takes all pixels in order, in pieces of any length, and makes their digests."""

    def __init__(self, image_bytes: int) -> None:
        self._n_bytes = images_per_digest(image_bytes) * image_bytes
        self._current, self._filled = hashlib.sha256(), 0
        self._digests = bytearray()

    def update(self, block: memoryview) -> None:
        while block:
            piece = block[: self._n_bytes - self._filled]
            self._current.update(piece)
            self._filled += len(piece)
            block = block[len(piece) :]
            if self._filled == self._n_bytes:
                self._end_chunk()

    def finish(self) -> UInt8[np.ndarray, "chunks 16"]:
        if self._filled:
            self._end_chunk()
        return np.frombuffer(bytes(self._digests), np.uint8).reshape(-1, DIGEST_BYTES)

    def _end_chunk(self) -> None:
        self._digests += self._current.digest()[:DIGEST_BYTES]
        self._current, self._filled = hashlib.sha256(), 0


class PixelVerifier:
    """Compares the pixels of a file with their digests, each chunk once."""

    def __init__(
        self,
        path: Path,
        read: Callable[[int, int], bytearray],
        n_images: int,
        image_bytes: int,
        per_digest: int,
        digests: UInt8[np.ndarray, "chunks 16"],
    ) -> None:
        """`read` gives so many bytes from an offset, counted from the first pixel."""
        self._path, self._read, self._digests = path, read, digests
        self._n_images, self._image_bytes, self._per_digest = n_images, image_bytes, per_digest
        n_chunks = -(-n_images // per_digest) if per_digest > 0 else -1
        ok = digests.shape == (n_chunks, DIGEST_BYTES)
        require(ok, f"{path}: damaged; pack the images again.")
        self._verified = np.zeros(n_chunks, bool)

    def verify(self, numbers: Int64[np.ndarray, " n"]) -> None:
        """Raise KedgeError if the file is damaged near one of these images."""
        chunks = numbers // self._per_digest
        for chunk in np.unique(chunks[~self._verified[chunks]]).tolist():
            first = chunk * self._per_digest
            last = min(first + self._per_digest, self._n_images)
            size = self._image_bytes
            pixels = self._read((last - first) * size, first * size)
            found = hashlib.sha256(pixels).digest()[:DIGEST_BYTES]
            if found != self._digests[chunk].tobytes():
                raise KedgeError(
                    f"{self._path}: damaged, the pixels of images {first} to {last - 1} are not "
                    "those that were packed; pack the images again."
                )
            self._verified[chunk] = True
