"""One encoded image decoded by Pillow to a small square, for decode workers.

Imports Pillow alone, neither NumPy nor the rest of kedge, so that a worker starts in 0.05 s. Bytes
that nobody has checked are decoded in workers only; see decode_worker.py.
"""

from __future__ import annotations

import functools
import io
from importlib import import_module
from typing import Literal, NamedTuple

from PIL import Image, UnidentifiedImageError

from kedge.utils.text import pip_install

ResizeMode = Literal["crop", "stretch"]
FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
PLUGINS = ("Avif", "Bmp", "Gif", "Jpeg", "Jpeg2K", "Png", "Ppm", "Tiff", "WebP")
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
NEEDS_HEIF = f"HEIC: {pip_install('heif')} to read it"
# Larger images are refused in words. Memory is limited whatever an image says of its size.
MOST_PIXELS, MOST_TRANSPARENT = 50_000_000, 25_000_000
RUN_LENGTHS, MOST_OF_RUNS = (1, 2), 8_000_000  # BMP: Pillow fills rows pixel by pixel in Python
MOST_CLAIMED = 178_956_970  # of a header, where Pillow takes it for an attack
BITS_TAG = 0x0102  # TIFF: bits per sample
ORIENTATION_TAG = 0x0112  # EXIF
TURNS = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Unreadable(ValueError):
    """Raised with a reason for users; whatever else Pillow raises means a damaged image."""


class Target(NamedTuple):
    """The part of an `ImageSpec` that a decoder needs."""

    image_size: int  # px, both sides
    n_channels: int  # 1 or 3
    resize: ResizeMode
    resample: int  # Pillow's number of the interpolation


def open_image(content: bytes) -> Image.Image:
    """The image with its header parsed and no pixel decoded."""
    try:
        image = Image.open(io.BytesIO(content), formats=readable_formats())
    except UnidentifiedImageError:
        is_heif = content[4:8] == b"ftyp" and content[8:12] in HEIF_BRANDS  # whatever its name
        if is_heif and "HEIF" not in readable_formats():
            raise Unreadable(NEEDS_HEIF) from None
        raise
    if image.width * image.height > MOST_CLAIMED:
        raise Unreadable(f"{image.width}×{image.height} px are too many")
    return image


@functools.cache
def readable_formats() -> tuple[str, ...]:
    """The formats that can be read here: HEIF needs a package that not everybody has."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        pass
    else:
        register_heif_opener()
    for name in PLUGINS:
        import_module(f"PIL.{name}ImagePlugin")
    return tuple(format for format in FORMATS if format in Image.OPEN)


def decode(image: Image.Image, target: Target) -> tuple[Image.Image, bool]:
    """A square in L or RGB, and whether the photograph was turned upright."""
    # A large JPEG is decoded at a fraction of its size, which is faster.
    full = image.size
    image.draft(None, (2 * target.image_size, 2 * target.image_size))
    most = MOST_TRANSPARENT if image.has_transparency_data else MOST_PIXELS
    if image.format == "BMP" and image.info.get("compression") in RUN_LENGTHS:
        most = MOST_OF_RUNS
    if image.width * image.height > most:
        raise Unreadable(f"{full[0]}×{full[1]} px are too many")
    return to_square(image, target)


def to_square(image: Image.Image, target: Target) -> tuple[Image.Image, bool]:
    """The same for an image of acceptable size, such as an array in memory."""
    # Pillow's own conversion would clip more than 8 bits and mistreat transparency.
    if (bits := bit_depth(image)) > 8:
        image_8 = to_8_bits(image, bits)
    else:
        image_8 = on_white(image) if image.has_transparency_data else image
    mode = "RGB" if target.n_channels == 3 else "L"
    image_8.load()
    square = image_8 if image_8.mode == mode else image_8.convert(mode)  # spares a copy
    turn = TURNS.get(_orientation(image))
    size = (target.image_size, target.image_size)
    if square.size != size:
        resample = Image.Resampling(target.resample)
        square = square.resize(size, resample, _resize_box(square, target.resize))
    if turn is not None:  # after resizing, since the small square is cheaper to turn
        square = square.transpose(turn)
    return square, turn is not None


def bit_depth(image: Image.Image) -> int:
    """Bits per value as the file says, never guessed from values: images must stay comparable."""
    if image.mode.startswith("I;16"):
        return int(getattr(image, "tag_v2", {}).get(BITS_TAG, (16,))[0])  # some scans have 12
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        return 16
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "32-bit or signed numbers"
        raise Unreadable(f"{kind}: save it with 8 or 16 bits")
    return 8


def to_8_bits(image: Image.Image, bits: int) -> Image.Image:
    """Scale values to 0…255; Pillow would clip them."""
    # Pillow looks up values of 32 bits only, and clips them to 16 bits before.
    table = [min(value >> (bits - 8), 255) for value in range(1 << 16)]
    return image.convert("I").point(table, "L")


def on_white(image: Image.Image) -> Image.Image:
    """Paste a transparent image on a white background."""
    layer = image if image.mode == "RGBA" else image.convert("RGBA")
    background = Image.new("RGB", layer.size, "white")
    background.paste(layer, mask=layer.getchannel("A"))
    return background


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # damaged EXIF data need not mean a damaged image
        return 1


def _resize_box(image: Image.Image, resize: ResizeMode) -> tuple[float, float, float, float]:
    """The part of an image that is resized to the target: left, top, right, bottom."""
    width, height = image.size
    if resize == "stretch":
        return 0.0, 0.0, float(width), float(height)
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
