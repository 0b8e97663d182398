"""How images are decoded: the spec, what is known of an image, and which files are images.

Encoded images are decoded by worker processes (decode_pool.py), arrays here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kedge.data.image_codec import ResizeMode, Target, readable_formats, to_square

Interpolation = Literal["bicubic", "bilinear", "lanczos", "nearest"]
# An image before decoding; arrays are height, width[, 3], uint8, RGB. A new kind (a crop, say) is
# handled in decode_pool.py, and where images are hashed to find copies.
RawImage = Path | bytes | np.ndarray
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
ARRAY_MODES = {2: "L", 3: "RGB"}  # Pillow's mode by the number of axes


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

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape)

    @property
    def target(self) -> Target:
        """What a decoder needs of it."""
        resample = Image.Resampling[self.interpolation.upper()]
        return Target(self.image_size, self.n_channels, self.resize, resample)

    def finish(self, pixels: bytes | bytearray) -> UInt8[np.ndarray, "c h w"]:
        """The image from the pixels (height × width × channels) of a decoded square."""
        array = np.frombuffer(pixels, np.uint8).reshape(*self.shape[1:], self.n_channels)
        array = 255 - array if self.inverted else array
        return np.ascontiguousarray(array.transpose(2, 0, 1))

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


def decode_array(
    array: UInt8[np.ndarray, "h w *rgb"], spec: ImageSpec
) -> UInt8[np.ndarray, "c h w"]:
    """Pixels as the spec says."""
    square, _ = to_square(Image.fromarray(np.ascontiguousarray(array)), spec.target)
    return spec.finish(square.tobytes())


def array_header(array: UInt8[np.ndarray, "h w *rgb"]) -> ImageHeader:
    return ImageHeader(array.shape[1], array.shape[0], ARRAY_MODES[array.ndim], False)


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
def _suffixes() -> frozenset[str]:
    formats, registered = readable_formats(), Image.registered_extensions().items()
    return frozenset(suffix for suffix, format in registered if format in formats)
