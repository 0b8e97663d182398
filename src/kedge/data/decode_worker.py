"""A process that decodes images, since Pillow holds Python's lock while it decodes small ones.

The worker is a fresh interpreter without PyTorch. It receives images and returns pixels over pipes,
its memory is limited, and if an image makes it crash, only that image is lost.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kedge.data.decode import ImageSpec, RawImage, decode, ignore_size_warnings

DAMAGED = "no image, or damaged"
CRASHED = "it makes the decoder crash"
MOST_MEMORY = 3 << 30  # bytes of address space of one worker
READY = b"ready"
START = "from kedge.data.decode_worker import serve; serve()"

DecodeResults = list[np.ndarray | str]  # per image: its pixels, or why it could not be decoded


def decode_each(images: Sequence[RawImage], spec: ImageSpec) -> DecodeResults:
    """Decode images one by one in this process."""
    results: DecodeResults = []
    for image in images:
        try:
            results.append(decode(image, spec))
        except Exception as error:  # Pillow's decoders raise anything on damaged files
            # Messages of our own are short; those of libraries do not help users.
            own = isinstance(error, ValueError) and len(str(error)) < 60
            results.append(str(error) if own else DAMAGED)
    return results


class DecodeWorker:
    """Handle of one worker process; not safe for use by two threads at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._can_start: bool | None = None  # not known yet

    def __call__(self, images: Sequence[RawImage], spec: ImageSpec) -> DecodeResults:
        try:
            if self._can_start is not False:
                return self._request(images, spec)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.close()
        if not self._can_start:  # the images are not the reason, so this process can decode them
            self._can_start = False
            return decode_each(images, spec)
        if len(images) == 1:
            return [CRASHED]
        return [result for image in images for result in self([image], spec)]

    def _request(self, images: Sequence[RawImage], spec: ImageSpec) -> DecodeResults:
        if self._process is None:
            # -P: do not import modules from the current folder, which may be the data's.
            command, pipe = [sys.executable, "-P", "-c", START], subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
            assert self._process.stdout is not None
            if self._process.stdout.read(len(READY)) != READY:
                raise EOFError
            self._can_start = True
        requests, results = self._process.stdin, self._process.stdout
        assert requests is not None
        assert results is not None
        pickle.dump((list(images), spec), requests, pickle.HIGHEST_PROTOCOL)
        requests.flush()
        return pickle.load(results)  # safe: written by our own process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Closes the pipes and waits; unwritten requests raise BrokenPipeError.
            with suppress(BrokenPipeError), process:
                pass


def serve() -> None:
    """The worker's main loop; ends when its input is closed, also by the death of its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    requests, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # anything that a decoder prints must not mix with the results
    with ignore_size_warnings(), suppress(EOFError, BrokenPipeError):
        results.write(READY)
        results.flush()
        while True:
            images, spec = pickle.load(requests)
            pickle.dump(decode_each(images, spec), results, pickle.HIGHEST_PROTOCOL)
            results.flush()
