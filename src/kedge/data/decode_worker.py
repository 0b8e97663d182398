"""Decoding in processes of its own: Pillow holds Python's lock while it decodes a small image.

A worker is a fresh interpreter that knows Pillow and NumPy alone. It takes pictures and gives
pixels back over pipes, may not take more than a few gigabytes, and where a picture makes it crash
only that picture is lost.
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

from kedge.data.decode import (
    ImageSpec,
    Picture,
    decode,
    huge_ones_without_warning,
)

DAMAGED = "no image, or damaged"
CRASHED = "it makes the decoder crash"
MOST_MEMORY = 3 << 30  # bytes of one worker's addresses
READY = b"ready"
START = "from kedge.data.decode_worker import serve; serve()"

Answers = list[np.ndarray | str]  # pixels, or why there are none


def decode_each(pictures: Sequence[Picture], look: ImageSpec) -> Answers:
    """In this process, one after the other."""
    return [_decoded(picture, look) for picture in pictures]


def _decoded(picture: Picture, look: ImageSpec) -> np.ndarray | str:
    try:
        return decode(picture, look)
    except Exception as error:  # a damaged file makes Pillow's decoders raise anything
        # Our own reasons are short; those of libraries are of use to nobody.
        return str(error) if isinstance(error, ValueError) and len(str(error)) < 60 else DAMAGED


class Worker:
    """One process. Not to be used by two threads at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False  # whether a process has ever answered
        self._useless = False  # none can be started here: all is done in this process

    def __call__(self, pictures: Sequence[Picture], look: ImageSpec) -> Answers:
        if self._useless:
            return decode_each(pictures, look)
        try:
            return self._asked(pictures, look)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.close()
        if not self._ready:  # it is not the pictures
            self._useless = True
            return decode_each(pictures, look)
        if len(pictures) == 1:
            return [CRASHED]
        return [answer for picture in pictures for answer in self([picture], look)]

    def _asked(self, pictures: Sequence[Picture], look: ImageSpec) -> Answers:
        if self._process is None:
            self._process = subprocess.Popen(
                # -P: no module is looked for in the current folder, which may be the data's.
                [sys.executable, "-P", "-c", START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdout is not None
            if self._process.stdout.read(len(READY)) != READY:
                raise EOFError
            self._ready = True
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        pickle.dump((list(pictures), look), to, pickle.HIGHEST_PROTOCOL)
        to.flush()
        return pickle.load(back)  # of our own process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Closes the pipes and waits. What was still to be written has nowhere to go.
            with suppress(BrokenPipeError), process:
                pass


def serve() -> None:
    """What a worker does until its pipe is closed, be it by the death of whoever started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it says when it ends
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a decoder prints must not get among the answers
    with huge_ones_without_warning(), suppress(EOFError, BrokenPipeError):
        answers.write(READY)
        answers.flush()
        while True:
            pictures, look = pickle.load(given)
            pickle.dump(decode_each(pictures, look), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
