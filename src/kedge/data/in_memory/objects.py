"""Images (arrays, tensors, Pillow images, bytes or paths) and labels as Python objects.

PyTorch is not imported: a tensor is recognised by its methods.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from kedge.data.decode import RawImage
from kedge.data.image_codec import bit_depth, on_white, to_8_bits
from kedge.data.index import ImageSource, unique_names
from kedge.errors import KedgeError

IN_MEMORY = Path("images given in memory")  # in place of a path in errors and indexes
CHANNELS = (1, 3, 4)
TOLERANCE = 0.02  # resized floats overshoot [0, 1] a little
Label = int | str  # all labels of a data set are of one type


@dataclass(frozen=True, eq=False)
class InMemoryImages(ImageSource):
    """The images of one array, list or data set, which are taken from it when fetched."""

    noun: str  # what to call an item in messages
    items: Any  # array, list or data set
    rows: Sequence[int]  # positions in `items`
    has_labels: bool = False  # items are (image, label)
    # Arrays and tensors may come from a table that is inverted already: inverting them here leaves
    # them as they are when the index is decoded with inversion.
    arrays_inverted: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, i: int) -> str:
        if isinstance(self.items, list | tuple) and isinstance(self.item(i), str | Path):
            return str(self.item(i))
        return f"{self.noun} {self.rows[i]}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        for i in numbers:
            try:
                item = self.item(i)
                raw = to_raw_image(item)
            except Exception:  # a data set may raise anything
                item = raw = b""
            invert = self.arrays_inverted and not isinstance(item, Image.Image)
            yield 255 - raw if invert and isinstance(raw, np.ndarray) else raw

    def item(self, i: int) -> Any:
        item = self.items[self.rows[i]]
        return item[0] if self.has_labels else item


def wrong(message: str) -> KedgeError:
    """The error about objects in memory, which have no path to name."""
    return KedgeError(f"{IN_MEMORY}: {message}.")


def is_array(value: Any) -> bool:
    return hasattr(value, "detach") or hasattr(value, "__array__")


def to_numpy(value: Any) -> np.ndarray:
    """An array or tensor as a NumPy array, without copying if possible."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def to_raw_image(image: Any) -> RawImage:
    """The image as `decode` takes it; a `KedgeError` if it has the wrong type or shape."""
    if isinstance(image, str | Path):
        if not Path(image).is_file():
            raise FileNotFoundError(f"{image}: no such file")
        return Path(image)
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return _from_pillow(image)
    if not is_array(image):
        raise wrong(f"an image is of type {type(image).__name__}; expected an array or a path")
    pixels = to_uint8(_channels_last(to_numpy(image), is_tensor=hasattr(image, "detach")))
    return np.asarray(on_white(Image.fromarray(pixels))) if pixels.shape[2:] == (4,) else pixels


def several_images(images: Any, noun: str) -> InMemoryImages:
    """The images of an array or a list; a `KedgeError` if it is neither, or is a single image."""
    if isinstance(images, InMemoryImages):
        return images
    shape = tuple(getattr(images, "shape", ()))
    if is_array(images) and len(shape) == 1 and to_numpy(images).dtype.kind in "OU":
        images = to_numpy(images).tolist()  # images of different sizes, or paths
    if is_array(images):
        # The shape alone is checked: converting HDF5 would read all of it.
        if len(shape) not in (3, 4) or (len(shape) == 3 and shape[-1] in CHANNELS):
            shapes = "N×H×W, N×H×W×3 or N×3×H×W"
            raise wrong(f"the array has the shape {shape}; expected several images, {shapes}")
        return InMemoryImages(noun, images, range(shape[0]))
    if isinstance(images, str | bytes | Path) or not isinstance(images, Sequence):
        kinds = "an array of several images, or a list of arrays, Pillow images or paths"
        raise wrong(f"images are of type {type(images).__name__}; expected {kinds}")
    return InMemoryImages(noun, images, range(len(images)))


def image_digest(raw: RawImage) -> bytes:
    """A digest of the content; for a path, of its name, size and modification time."""
    if isinstance(raw, Path):
        info = raw.stat()
        return f"{raw}\0{info.st_size} {info.st_mtime_ns}".encode()
    if isinstance(raw, bytes):
        return hashlib.blake2b(raw).digest()
    return hashlib.blake2b(str(raw.shape).encode() + raw.tobytes()).digest()


def _channels_last(array: np.ndarray, is_tensor: bool) -> np.ndarray:
    """H×W or H×W×{3,4}; if both the first and the last axis fit, a tensor's channels are first."""
    last_fits = array.ndim == 3 and array.shape[2] in CHANNELS
    if array.ndim == 3 and array.shape[0] in CHANNELS and (is_tensor or not last_fits):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in CHANNELS):
        raise wrong(f"an image has the shape {array.shape}; expected H×W, H×W×C or C×H×W")
    return array


def to_uint8(pixels: np.ndarray) -> np.ndarray:
    """Pixels as uint8; a `KedgeError` unless they are, or are floats from 0 to 1."""
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        todo = "images.astype('uint8') makes them so if white is 255"
        raise wrong(f"an image is of {pixels.dtype}; expected uint8, or floats from 0 to 1; {todo}")
    if not pixels.size:
        return pixels.astype(np.uint8)
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        todo = "leave out Normalize" if low < 0 else "divide them by their white, such as 255"
        todo = todo if np.isfinite([low, high]).all() else "replace what is not finite"
        raise wrong(f"an image has floats from {low:.3g} to {high:.3g}; expected 0 to 1, so {todo}")
    return np.rint(pixels.clip(0, 1) * 255).astype(np.uint8)


def _from_pillow(image: Image.Image) -> RawImage:
    try:
        bits = bit_depth(image)
    except ValueError:  # let `decode` refuse it, with the reason, as it refuses such files
        return _encode(image, "TIFF")
    with suppress(Exception):  # EXIF may be damaged in an intact image
        image = ImageOps.exif_transpose(image)
    if bits > 8:
        return np.asarray(to_8_bits(image, bits))
    if image.mode in ("L", "RGB") and not image.has_transparency_data:
        return np.asarray(image)
    keep_mode = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA")
    return _encode(image if keep_mode else image.convert("RGB"), "PNG", compress_level=1)


def _encode(image: Image.Image, format: str, **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def to_label(value: Any) -> Label:
    if is_array(value) and to_numpy(value).size == 1:
        value = to_numpy(value).reshape(()).item()
    if isinstance(value, str) and value.strip():
        return str(value)
    if isinstance(value, int):
        return int(value)
    raise wrong(f"a label is {str(value)[:40]!r}; expected a whole number or text per image")


def to_labels(values: Any) -> list[Label]:
    """Labels from an array or a sequence; all are text, or all are numbers from 0."""
    if is_array(values):
        array = to_numpy(values)
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        values = array.tolist() if array.ndim == 1 and array.dtype.kind in "iubUO" else None
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise wrong("the labels are no list or array with one whole number or text per image")
    labels = [to_label(value) for value in values]
    negative = any(isinstance(label, int) and label < 0 for label in labels)
    if negative or len(set(map(type, labels))) > 1:
        raise wrong("labels must be all text, or all whole numbers from 0")
    return labels


def to_class_names(values: Any) -> tuple[str, ...] | None:
    """Class names from a list of texts, or of tuples of words as for ImageNet; else None."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, list | tuple) or not values:
        return None
    names = [", ".join(map(str, v)) if isinstance(v, list | tuple) else v for v in values]
    return unique_names(names) if all(isinstance(n, str) and n.strip() for n in names) else None


def names_cover(names: tuple[str, ...], labels: Sequence[Label]) -> bool:
    """Whether every label is a position in `names` or one of them."""
    known = set(names)
    return all(x < len(names) if isinstance(x, int) else x in known for x in labels)
