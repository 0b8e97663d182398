"""One picture, as it lies on disk, to pixels. Knows nothing of PyTorch.

A picture is encoded (a file, or the bytes of one) or an array of pixels already. Whatever its
mode, size and orientation, it becomes uint8 of the shape that is asked for.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image

ResizeMode = Literal["crop", "stretch"]
Picture = Path | bytes | np.ndarray  # arrays: height, width[, 3], uint8, RGB
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# Types that people have beside those. What else lies there (texts, lists, films) is no picture.
OTHER_TYPES = frozenset(
    (
        *("heic", "heif", "hif", "avif", "jxl", "jxr", "mpo", "ico", "icns", "cur", "tga", "pcx"),
        *("svg", "svgz", "eps", "psd", "psb", "xcf", "exr", "hdr", "dds", "dcm"),
        *("raw", "dng", "cr2", "cr3", "crw", "nef", "nrw", "arw", "sr2", "srf", "srw"),
        *("orf", "rw2", "raf", "pef", "rwl", "3fr", "iiq", "x3f"),
    )
)
NO_IMAGES = frozenset(
    (
        *("readme", "license", "licence", "copying", "copyright", "notice", "authors", "changelog"),
        *("labels", "classes", "makefile", "md5sums", "sha1sums", "sha256sums", "icon\r"),
    )
)
# More is not decoded: some files are made to fill the memory. What is transparent is decoded twice.
MOST_PIXELS, MOST_TRANSPARENT = 50_000_000, 25_000_000
ARRAYS = {2: "L", 3: "RGB"}  # modes, by the number of axes
BITS = 0x0102  # the TIFF tag that says how many a pixel has
ORIENTATION = 0x0112  # the EXIF tag in which a camera says how it was turned
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class ImageSpec:
    """What every picture is brought to."""

    image_size: int  # px, of both sides
    n_channels: int  # 1 or 3
    fit: ResizeMode = "crop"  # the centre square, or all of it, straight
    inverted: bool = False  # dark on white becomes white on dark


@dataclass(frozen=True)
class Measured:
    """What is known of a picture without decoding it."""

    width: int
    height: int
    mode: str  # Pillow's name: RGB, L, P, CMYK, I;16 …
    turned: bool  # by what the camera wrote

    @property
    def grey(self) -> bool:
        return self.mode in ("1", "L", "LA", "I", "F") or self.mode.startswith("I;16")


def decode(picture: Picture, look: ImageSpec) -> UInt8[np.ndarray, "c h w"]:
    """Raises whatever Pillow raises where a picture is damaged, or ValueError where it is huge, or
    where nothing says which of its numbers is white."""
    side = (look.image_size, look.image_size)
    with _opened(picture) as image:
        twice = (2 * look.image_size, 2 * look.image_size)
        image.draft(None, twice)  # a large JPEG is decoded at a fraction of its size at once
        most = MOST_TRANSPARENT if image.has_transparency_data else MOST_PIXELS
        if image.width * image.height > most:
            raise ValueError(f"{image.width}×{image.height} px are too many")
        plain = _plain(image).convert("RGB" if look.n_channels == 3 else "L")
        turn = TURNS.get(_orientation(image))
    if plain.size != side:
        plain = plain.resize(side, Image.Resampling.BICUBIC, _box(plain, look.fit))
    if turn is not None:  # of a square, so the small one can be turned as well as the large one
        plain = plain.transpose(turn)
    pixels = np.asarray(plain)
    pixels = 255 - pixels if look.inverted else pixels
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if pixels.ndim == 3 else pixels[None]


def measure(picture: Picture) -> Measured:
    """From the header alone."""
    if isinstance(picture, np.ndarray):
        return Measured(picture.shape[1], picture.shape[0], ARRAYS[picture.ndim], False)
    with _opened(picture) as image:
        turned = _orientation(image) in TURNS
        return Measured(image.width, image.height, image.mode, turned)


@contextmanager
def huge_ones_without_warning() -> Iterator[None]:
    """Pillow warns of large images; here they are refused, reduced or counted instead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def looks_like_image(name: str) -> bool:
    """By its ending, in capitals or not."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in _endings()


def looks_like_other_image(name: str) -> bool:
    """By its ending, one of a type that is not read here. What has no ending may be one, too."""
    file = name.rpartition("/")[2].lower()
    stem, _, ending = file.rpartition(".")
    if not stem:
        return file not in NO_IMAGES
    return ending in OTHER_TYPES and not looks_like_image(name)


def _endings() -> frozenset[str]:
    global _known
    if not _known:
        registered = Image.registered_extensions().items()
        _known = frozenset(ending for ending, format in registered if format in FORMATS)
    return _known


_known: frozenset[str] = frozenset()


def _opened(picture: Picture) -> Image.Image:
    if isinstance(picture, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(picture))
    source = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    return Image.open(source, formats=FORMATS)


def _plain(image: Image.Image) -> Image.Image:
    """Without what a plain conversion would get wrong: depth, and transparency."""
    if (bits := depth(image)) > 8:
        return in_8_bits(image, bits)
    return on_paper(image) if image.has_transparency_data else image


def depth(image: Image.Image) -> int:
    """Bits of a pixel's value, as the file says: never from the values, since then two pictures of
    a class could not be compared. Raises ValueError where nothing says which value is white."""
    if image.mode.startswith("I;16"):
        return int(getattr(image, "tag_v2", {}).get(BITS, (16,))[0])  # some scans have 12
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        return 16
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "32-bit or signed numbers"
        raise ValueError(f"{kind}: save it with 8 or 16 bits")
    return 8


def in_8_bits(image: Image.Image, bits: int) -> Image.Image:
    """Scaled; Pillow would clip it."""
    return Image.fromarray((np.asarray(image) >> (bits - 8)).clip(0, 255).astype(np.uint8))


def on_paper(image: Image.Image) -> Image.Image:
    """What shows through is white."""
    layer = image if image.mode == "RGBA" else image.convert("RGBA")
    paper = Image.new("RGB", layer.size, "white")
    paper.paste(layer, mask=layer.getchannel("A"))
    return paper


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # the picture may be fine where what the camera wrote of it is not
        return 1


def _box(image: Image.Image, fit: str) -> tuple[float, float, float, float]:
    """The part of an image that is kept."""
    wide, high = image.size
    if fit == "stretch":
        return 0.0, 0.0, float(wide), float(high)
    side = min(wide, high)
    left, top = (wide - side) / 2, (high - side) / 2
    return left, top, left + side, top + side
