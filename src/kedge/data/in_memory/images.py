"""One image as a Python object: an array, a tensor, a Pillow image, bytes or a path.

PyTorch is not imported: a tensor is known by its methods.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from kedge.data.decode import (
    Picture,
    depth,
    in_8_bits,
    on_paper,
)
from kedge.data.index import ImageSource
from kedge.errors import KedgeError

GIVEN = Path("images given in memory")
CHANNELS = (1, 3, 4)
BEYOND = 0.02  # of [0, 1]: where floats were resized, they overshoot a little


@dataclass(frozen=True, eq=False)
class Some:
    """Images that came together."""

    what: str  # for people
    items: Any  # an array, a list, or a data set
    rows: Sequence[int] | np.ndarray  # those of them that count
    paired: bool = False  # items are (image, label)

    def image(self, i: int) -> Any:
        item = self.items[int(self.rows[i])]
        return item[0] if self.paired else item


class InMemoryImages(ImageSource):
    """Pictures that are asked of their owner when they are fetched.

    With `negative`, arrays and tensors are fetched inverted, so that a look that inverts leaves
    them as they are: they may come from a table, where that was done. Originals are not.
    """

    def __init__(self, sources: Sequence[Some], negative: bool = False) -> None:
        self.sources, self.negative = sources, negative
        self.ends = np.array(list(accumulate(len(some.rows) for some in sources)), dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def name(self, i: int) -> str:
        some, i = self._place(i)
        if isinstance(some.items, list | tuple) and isinstance(some.image(i), str | Path):
            return str(some.image(i))
        return f"{some.what} {int(some.rows[i])}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        for i in numbers:
            try:
                image = self._given(i)
                picture = picture_of(image)
            except Exception:  # whatever a data set of somebody else's raises
                image = picture = b""
            if self.negative and isinstance(picture, np.ndarray) and not _original(image):
                picture = 255 - picture
            yield picture

    def one(self, i: int) -> Picture:
        """Raises what its owner raises, or a `KedgeError` where it is no image."""
        return picture_of(self._given(i))

    def _given(self, i: int) -> Any:
        some, i = self._place(i)
        return some.image(i)

    def _place(self, i: int) -> tuple[Some, int]:
        k = int(np.searchsorted(self.ends, i, side="right"))
        return self.sources[k], i - (int(self.ends[k - 1]) if k else 0)


def is_array(value: Any) -> bool:
    return hasattr(value, "detach") or hasattr(value, "__array__")


def array_of(value: Any) -> np.ndarray:
    """A view, where one can be had."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _original(image: Any) -> bool:
    return isinstance(image, str | Path | bytes | Image.Image)


def picture_of(image: Any) -> Picture:
    """A `KedgeError` says what it should have been."""
    if isinstance(image, str | Path):
        if not Path(image).is_file():
            raise FileNotFoundError(f"{image} is not there")
        return Path(image)
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return _of_pillow(image)
    if not is_array(image):
        raise KedgeError(
            f"{GIVEN}: an image is of type {type(image).__name__}; expected an array, a tensor, a "
            "Pillow image or a path."
        )
    pixels = _bytes(_channels_last(array_of(image), hasattr(image, "detach")))
    return np.asarray(on_paper(Image.fromarray(pixels))) if pixels.shape[2:] == (4,) else pixels


def refuse_batch(shape: tuple[int, ...]) -> None:
    """What cannot be an array of images."""
    if len(shape) not in (3, 4) or (len(shape) == 3 and shape[-1] in CHANNELS):
        raise KedgeError(
            f"{GIVEN}: an array of the shape {shape} was given; expected several images: "
            "N×H×W, N×H×W×3 or N×3×H×W."
        )


def content_of(picture: Picture) -> bytes:
    if isinstance(picture, Path):
        info = picture.stat()
        return f"{picture}\0{info.st_size} {info.st_mtime_ns}".encode()
    if isinstance(picture, bytes):
        return hashlib.blake2b(picture).digest()
    digest = hashlib.blake2b(str(picture.shape).encode())
    digest.update(np.ascontiguousarray(picture).data)
    return digest.digest()


def _channels_last(array: np.ndarray, first: bool) -> np.ndarray:
    """Height×width[×3 or 4]. Where both ends could be the channels, tensors have them first."""
    if array.ndim == 3 and array.shape[0] in CHANNELS and (first or array.shape[2] not in CHANNELS):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in CHANNELS):
        raise KedgeError(
            f"{GIVEN}: an image has the shape {array.shape}; expected height×width, with 1, 3 or 4 "
            "channels at one end."
        )
    return array


def _bytes(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise KedgeError(
            f"{GIVEN}: an image is of {pixels.dtype}; expected uint8, or floats from 0 to 1."
        )
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -BEYOND and high <= 1 + BEYOND):
        raise KedgeError(
            f"{GIVEN}: an image has floats from {low:.3g} to {high:.3g}; expected 0 to 1, so give "
            "the images before they are normalised (without Normalize), or as uint8."
        )
    return np.rint(pixels.clip(0, 1) * 255).astype(np.uint8)


def _of_pillow(image: Image.Image) -> Picture:
    try:
        bits = depth(image)
    except ValueError:  # a file is refused when it is decoded, with the reason: so is this
        return _encoded(image, "TIFF")
    with suppress(Exception):  # what the camera wrote may be damaged where the picture is not
        image = ImageOps.exif_transpose(image)
    if bits > 8:
        return np.asarray(in_8_bits(image, bits))
    if image.mode in ("L", "RGB") and not image.has_transparency_data:
        return np.asarray(image)
    keeps = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA")
    return _encoded(image if keeps else image.convert("RGB"), "PNG", compress_level=1)


def _encoded(image: Image.Image, format: str, **options: int) -> bytes:
    """So that it is treated as a file is."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()
