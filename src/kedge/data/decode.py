"""One image (a file, its bytes or an array) decoded to uint8 pixels of a given shape.

Imports neither PyTorch nor the rest of kedge, so that decode workers start quickly.
"""

from __future__ import annotations

import functools
import io
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

ResizeMode = Literal["crop", "stretch"]
Interpolation = Literal["bicubic", "bilinear", "lanczos", "nearest"]
# An image before decoding; arrays are height, width[, 3], uint8, RGB. A new kind (a crop, say) is
# handled in `decode` and `read_header` here, and where images are hashed to find copies.
RawImage = Path | bytes | np.ndarray
FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_UNSUPPORTED = """
    heic heics heif heifs hif avif jxl jxr mpo ico icns cur tga pcx svg svgz eps psd psb xcf exr hdr
    dds dcm raw dng cr2 cr3 crw nef nrw arw sr2 srf srw orf rw2 raf pef rwl 3fr iiq x3f
"""
_NOT_IMAGES = """
    readme license licence copying copyright notice authors changelog labels classes makefile
    md5sums sha1sums sha256sums
"""
UNSUPPORTED_TYPES = frozenset(_UNSUPPORTED.split())  # image types that Pillow does not read here
NOT_IMAGES = frozenset((*_NOT_IMAGES.split(), "icon\r"))  # known files without a suffix
HEIF_TYPES = ("heic", "heics", "heif", "heifs", "hif")
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
NEEDS_HEIF = "HEIC: pip install 'kedge[heif]' to read it"
# Larger images are refused: some files are made to exhaust memory. Transparency needs two copies.
MOST_PIXELS, MOST_TRANSPARENT = 50_000_000, 25_000_000
ARRAY_MODES = {2: "L", 3: "RGB"}  # Pillow's mode by the number of axes
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


@dataclass(frozen=True)
class ImageSpec:
    """The size, channels and treatment that every image is decoded to."""

    image_size: int  # px, both sides
    n_channels: int  # 1 or 3
    resize: ResizeMode = "crop"  # "crop": the centre square; "stretch": the whole image
    inverted: bool = False  # dark on white becomes white on dark
    interpolation: Interpolation = "bicubic"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.n_channels, self.image_size, self.image_size

    def to_dict(self) -> dict[str, Any]:
        """As saved in packed files and hashed into their keys, where `resize` is called "fit"."""
        shape = {"image_size": self.image_size, "n_channels": self.n_channels}
        return shape | self.treatment()

    def treatment(self) -> dict[str, Any]:
        """The part of `to_dict` that the shape of the images does not show."""
        added = {} if self.interpolation == "bicubic" else {"interpolation": self.interpolation}
        return {"fit": self.resize, "inverted": self.inverted, **added}


@dataclass(frozen=True)
class ImageHeader:
    """What is known of an image without decoding it."""

    width: int
    height: int
    mode: str  # Pillow's name: RGB, L, P, CMYK, I;16 …
    turned: bool  # the EXIF orientation is not the normal one

    @property
    def grey(self) -> bool:
        return self.mode in ("1", "L", "LA", "I", "F") or self.mode.startswith("I;16")


def decode(raw: RawImage, spec: ImageSpec) -> UInt8[np.ndarray, "c h w"]:
    """Pixels as the spec says. Raises ValueError with a reason, or whatever Pillow raises."""
    with _open(raw) as image:
        # A large JPEG is decoded at a fraction of its size, which is faster.
        image.draft(None, (2 * spec.image_size, 2 * spec.image_size))
        most = MOST_TRANSPARENT if image.has_transparency_data else MOST_PIXELS
        if image.width * image.height > most:
            raise ValueError(f"{image.width}×{image.height} px are too many")
        # Pillow's own conversion would clip more than 8 bits and mistreat transparency.
        if (bits := bit_depth(image)) > 8:
            converted = to_8_bits(image, bits)
        else:
            converted = on_white(image) if image.has_transparency_data else image
        converted = converted.convert("RGB" if spec.n_channels == 3 else "L")
        turn = TURNS.get(_orientation(image))
    if converted.size != spec.shape[1:]:
        box = _resize_box(converted, spec.resize)
        resample = Image.Resampling[spec.interpolation.upper()]
        converted = converted.resize(spec.shape[1:], resample, box)
    if turn is not None:  # after resizing, since the small square is cheaper to turn
        converted = converted.transpose(turn)
    pixels = np.asarray(converted)
    pixels = 255 - pixels if spec.inverted else pixels
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if pixels.ndim == 3 else pixels[None]


def read_header(raw: RawImage) -> ImageHeader:
    if isinstance(raw, np.ndarray):
        return ImageHeader(raw.shape[1], raw.shape[0], ARRAY_MODES[raw.ndim], False)
    with _open(raw) as image:
        turned = _orientation(image) in TURNS
        return ImageHeader(image.width, image.height, image.mode, turned)


def ignore_size_warnings() -> AbstractContextManager[Any]:
    """Silence Pillow's warning about large images, which `decode` refuses by itself."""
    return warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)


def looks_like_image(name: str) -> bool:
    """Whether the file's suffix, in any case, is of a supported type."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in _suffixes()


def looks_like_unsupported_image(name: str) -> bool:
    """Whether a file may be an image of an unsupported type: by its suffix, or lack of one."""
    file = name.rpartition("/")[2].lower()
    stem, _, suffix = file.rpartition(".")
    if not stem:
        return file not in NOT_IMAGES
    return suffix in UNSUPPORTED_TYPES and not looks_like_image(name)


def is_heif_name(name: str) -> bool:
    """Whether a file's suffix is one of HEIC, the photographs of many telephones."""
    return name.rpartition(".")[2].lower() in HEIF_TYPES


@functools.cache
def _formats() -> tuple[str, ...]:
    """The formats that can be read here: HEIF needs a package that not everybody has."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        pass
    else:
        register_heif_opener()
    Image.init()
    return tuple(format for format in FORMATS if format in Image.OPEN)


@functools.cache
def _suffixes() -> frozenset[str]:
    formats, registered = _formats(), Image.registered_extensions().items()
    return frozenset(suffix for suffix, format in registered if format in formats)


def _open(raw: RawImage) -> Image.Image:
    if isinstance(raw, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(raw))
    try:
        return Image.open(io.BytesIO(raw) if isinstance(raw, bytes) else raw, formats=_formats())
    except UnidentifiedImageError:
        if "HEIF" not in _formats() and _is_heif(raw):
            raise ValueError(NEEDS_HEIF) from None
        raise


def _is_heif(raw: Path | bytes) -> bool:
    """Whether a file begins like HEIC, whatever its name: telephones call it .jpg, too."""
    start = raw[:12] if isinstance(raw, bytes) else b""
    if isinstance(raw, Path):
        with open(raw, "rb") as file:
            start = file.read(12)
    return start[4:8] == b"ftyp" and start[8:12] in HEIF_BRANDS


def bit_depth(image: Image.Image) -> int:
    """Bits per value as the file says, never guessed from values: images must stay comparable."""
    if image.mode.startswith("I;16"):
        return int(getattr(image, "tag_v2", {}).get(BITS_TAG, (16,))[0])  # some scans have 12
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        return 16
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "32-bit or signed numbers"
        raise ValueError(f"{kind}: save it with 8 or 16 bits")
    return 8


def to_8_bits(image: Image.Image, bits: int) -> Image.Image:
    """Scale values to 0…255; Pillow would clip them."""
    return Image.fromarray((np.asarray(image) >> (bits - 8)).clip(0, 255).astype(np.uint8))


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
