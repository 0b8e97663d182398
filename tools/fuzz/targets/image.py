"""Images of all types that are read, by their decoders in child processes with limits.

The coverage is that of kedge's side: Pillow's decoders are not instrumented.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image
from tests.data.hostile import jpeg_scan, jpeg_segment, jpeg_start, png, png_file

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each, read_headers
from kedge.data.image_codec import Target as Square
from kedge.data.image_codec import decode, open_image

from ..mutate import NUMBERS, change_bytes, change_list
from ..target import Target, put

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
MOST_PIXELS = 1 << 16  # that are decoded without limits
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 9, 4), np.uint8)


def place(folder: Path, data: bytes) -> Path:
    """In a class folder, beside an image of another class."""
    put(folder / "bat" / "0.png", png())
    return put(folder / "ant" / "0.png", data).parents[1]


def run(folder: Path, data: bytes) -> None:
    read_headers([data])
    decode_each([data], ImageSpec(16, 3))


def inside(folder: Path, data: bytes) -> None:
    """What a decoder does, unless there are many pixels."""
    with open_image(data) as image:
        if image.width * image.height <= MOST_PIXELS:
            decode(image, Square(16, 3, "crop", Image.Resampling.BILINEAR))


def seeds() -> list[bytes]:
    found = []
    for format in FORMATS:
        for mode in ("RGB", "L", "RGBA", "P", "CMYK", "I;16"):
            image = Image.fromarray(PIXELS, "RGBA") if mode != "I;16" else Image.new(mode, (9, 12))
            file, options = io.BytesIO(), {"progressive": True} if mode == "L" else {}
            try:
                changed = image if mode == "I;16" else image.convert("RGB").convert(mode)
                changed.save(file, format, **options)
            except (OSError, ValueError, KeyError):  # not in this format
                continue
            found.append(file.getvalue())
    exif = Image.Exif()
    exif[0x0112] = 6
    for packing in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        file = io.BytesIO()
        Image.fromarray(PIXELS[..., :3]).save(file, "TIFF", compression=packing, exif=exif)
        found.append(file.getvalue())
    return found


def new_file(rng: random.Random) -> bytes:
    width, height = (rng.choice((1, 7, 255, *NUMBERS)) % (1 << 31) for _ in "wh")
    if rng.random() < 0.5:
        content = zlib.compress(bytes(rng.choice((0, 10, 100_000))))
        return png_file(width, height, rng.choice((0, 2, 3, 4, 6, 7)), content)
    n = rng.choice((1, 3, 4))
    start = jpeg_start(width % 65536, height % 65536, n, rng.random() < 0.7)
    scans = jpeg_scan([*range(1, n + 1)], 0, rng.choice((0, 63))) * rng.choice((0, 1, 5, 500))
    return (
        start
        + scans
        + jpeg_segment(rng.choice((0xE1, 0xDA, 0xC4, 0xC2)), b"Exif\0\0")
        + b"\xff\xd9"
    )


def chunks(content: bytes) -> list[bytes]:
    """Names and contents of the chunks of a PNG."""
    found, at = [], 8
    while at + 8 <= len(content):
        n = int.from_bytes(content[at : at + 4], "big")
        found.append(content[at + 4 : at + 8 + n])
        at += n + 12
    return found


def mutate(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.1:
        return new_file(rng)
    if not data.startswith(b"\x89PNG") or rng.random() < 0.2:
        return change_bytes(rng, data)
    changed = change_list(
        rng, chunks(data), lambda chunk: change_bytes(rng, chunk), lambda: b"tEXta\0" + bytes(9)
    )
    return data[:8] + b"".join(
        struct.pack(">I", max(len(c) - 4, 0)) + c + struct.pack(">I", zlib.crc32(c))
        for c in changed
    )


TOKENS = [b"\xff\xda", b"\xff\xc2", b"\xff\xc4", b"IHDR", b"IDAT", b"iCCP", b"Exif\0\0", b"eXIf"]
TARGET = Target(run, seeds, mutate, TOKENS, children=True, place=place, inside=inside)
