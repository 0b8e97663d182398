"""The program of a decode worker: it is sent encoded images and sends back pixels and numbers.

A request is REQUEST, one LENGTH for each image, and their bytes. For each image a REPLY comes back,
followed by its pixels (height × width × channels) or by the reason why there are none. The parent's
side is decode_pool.py. An image that takes too long ends the worker, so its reply never comes.
"""

from __future__ import annotations

import struct
import time
from io import BufferedReader, BufferedWriter

from PIL import Image

from kedge.data import limited_process
from kedge.data.image_codec import Target, Unreadable, decode, open_image, readable_formats

# Of the squares: side in px (0: only headers are wanted), channels, whether to stretch, Pillow's
# number of the interpolation. Then bytes of memory beyond those of the images, the most seconds of
# processor time for one image (it may have fewer), and their number.
REQUEST = struct.Struct("<HB?BQfI")
LENGTH = struct.Struct("<Q")
# Whether there are pixels; width, height and mode as the file says (zeros if that is unknown);
# whether the photograph was turned; seconds of processor time; how many bytes follow.
REPLY = struct.Struct("<?II8s?fI")
SECONDS = 2.0  # of processor time for one image: flat ones of 50 million pixels take up to 1.3
BYTES_PER_SECOND = 1 << 20  # more time for large files, which take 0.1 s or less per MB
LONGEST_REASON = 200  # bytes


def seconds_for(n_bytes: int) -> float:
    """The processor time that an image of so many bytes may take."""
    return SECONDS + n_bytes / BYTES_PER_SECOND


def serve() -> None:
    """The worker's main loop."""
    Image.MAX_IMAGE_PIXELS = None  # no warnings: size and memory are limited otherwise
    readable_formats()  # loads Pillow's plugins
    limited_process.write_no_files()
    memory = limited_process.MemoryLimit()

    def answer(requests: BufferedReader, replies: BufferedWriter) -> None:
        side, n_channels, stretch, resample, room, seconds, n = REQUEST.unpack(
            limited_process.read_exactly(requests, REQUEST.size)
        )
        lengths = [
            LENGTH.unpack(limited_process.read_exactly(requests, LENGTH.size))[0] for _ in range(n)
        ]
        memory.set(room + 2 * sum(lengths))
        target = Target(side, n_channels, "stretch" if stretch else "crop", resample)
        # All are read first: otherwise both sides could wait for each other to read.
        contents = [limited_process.read_exactly(requests, length) for length in lengths]
        for content in contents:
            limited_process.limit_processor_time(min(seconds, seconds_for(len(content))))
            reply = _reply(content, target if side else None)
            limited_process.limit_processor_time(0)
            replies.write(reply)
            replies.flush()

    limited_process.serve(answer)


def _reply(content: bytes, target: Target | None) -> bytes:
    """The reply to one image; `target` is None if only the header is wanted."""
    began, width, height, mode, turned, reason = time.process_time(), 0, 0, "", False, ""
    try:
        with open_image(content) as image:
            (width, height), mode = image.size, image.mode
            if target is not None:
                square, turned = decode(image, target)
                return _packed(True, width, height, mode, turned, began, square.tobytes())
    except Unreadable as error:
        reason = str(error)
    except Exception:  # Pillow's decoders raise anything on damaged files; MemoryError as well
        pass
    return _packed(False, width, height, mode, turned, began, reason.encode()[:LONGEST_REASON])


def _packed(
    decoded: bool, width: int, height: int, mode: str, turned: bool, began: float, follows: bytes
) -> bytes:
    seconds = time.process_time() - began
    numbers = (min(width, 0xFFFFFFFF), min(height, 0xFFFFFFFF), mode.encode()[:8])
    return REPLY.pack(decoded, *numbers, turned, seconds, len(follows)) + follows
