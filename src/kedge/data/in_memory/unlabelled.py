"""Images to classify, in any form that training takes, and single images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kedge.data.decode import ImageSpec
from kedge.data.in_memory import objects
from kedge.data.in_memory.loader import is_loader, read_batches
from kedge.data.in_memory.objects import InMemoryImages, several_images, wrong

CONVERTED = 1000  # images of floats at a time


def unlabelled_images(images: Any, n_channels: int) -> InMemoryImages:
    """One image or several, in any form that training takes. Labels are ignored.

    A model of colour images takes an array or tensor 3×H×W for one image.
    """
    if isinstance(images, str | bytes | Path | Image.Image) or is_one_image(images, n_channels):
        images = [images]
    elif is_loader(images):
        images, _ = read_batches(images, with_labels=False)
    elif not objects.is_array(images) and not isinstance(images, Sequence):
        if hasattr(images, "__len__") and hasattr(images, "__getitem__"):  # a data set
            has_labels = len(images) > 0 and isinstance(images[0], tuple)
            return InMemoryImages("item", images, range(len(images)), has_labels)
        if not isinstance(images, Iterable):
            raise wrong(f"a {type(images).__name__} is no image; expected an array or a path")
        images = [*images]
    if isinstance(images, list) and images and isinstance(images[0], tuple):
        return InMemoryImages("item", images, range(len(images)), has_labels=True)
    return several_images(images, "image")


def is_one_image(images: Any, n_channels: int) -> bool:
    shape = tuple(getattr(images, "shape", ()))
    if not objects.is_array(images) or len(shape) not in (2, 3):
        return False
    return len(shape) == 2 or shape[2] in objects.CHANNELS or shape[0] == n_channels == 3


def ready_pixels(images: Any, spec: ImageSpec) -> np.ndarray | None:
    """An array or tensor of several images as uint8 N×C×H×W, if it has the size and the number of
    channels that the spec says, in any layout; otherwise None, and its images must be decoded."""
    shape = tuple(getattr(images, "shape", ()))
    c, h, w = spec.shape
    layouts = {(c, h, w): (0, 1, 2, 3), (h, w, c): (0, 3, 1, 2)}
    if not objects.is_array(images) or is_one_image(images, c):
        return None
    if shape[1:] not in layouts and not (shape[1:] == (h, w) and c == 1):
        return None
    array = objects.to_numpy(images)
    array = array.transpose(layouts[shape[1:]]) if array.ndim == 4 else array[:, None]
    if array.dtype == np.uint8:
        return array
    pixels = np.empty(array.shape, np.uint8)
    for start in range(0, len(array), CONVERTED):
        pixels[start : start + CONVERTED] = objects.to_uint8(array[start : start + CONVERTED])
    return pixels
