"""What the Python API takes in place of a path: arrays, lists of images, or a data set.

Nothing is copied or kept but labels; pictures are asked for again when they are fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.in_memory.dataset import of_data_set
from kedge.data.in_memory.images import (
    GIVEN,
    InMemoryImages,
    Some,
    array_of,
    content_of,
    is_array,
    refuse_batch,
)
from kedge.data.in_memory.labels import (
    Label,
    fit,
    label_of,
    labels_of,
    names_of,
)
from kedge.data.index import (
    ImageIndex,
    numbered,
    spread,
)
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import counted, left_out

LOOKED_AT = 10_000  # images at most, for the stamp and for what is wrong with them


def index_in_memory(images: object, negative: bool = False) -> ImageIndex:
    """Of `(images, labels)`, `(images, labels, class names)`, `{class name: images}`, or of any
    data set with `__len__` and `__getitem__` → (image, label).

    What `negative` does, `GivenPictures` says.
    """
    found = _found(images)
    if negative and isinstance(found.pictures, InMemoryImages):
        return replace(found, pictures=InMemoryImages(found.pictures.sources, negative))
    return found


def _found(images: object) -> ImageIndex:
    if isinstance(images, Mapping):
        return _of_mapping(images)
    if isinstance(images, tuple) and len(images) in (2, 3) and not isinstance(images[0], tuple):
        return _of_pair(*images)
    if hasattr(images, "__len__") and hasattr(images, "__getitem__") and not is_array(images):
        found = of_data_set(images)
        return _catalogue(
            found.form, [found.items], found.labels, found.names, found.remarks, found.content
        )
    raise KedgeError(
        f"{GIVEN}: {type(images).__name__} is nothing that holds images and labels; expected "
        "(images, labels), {class name: images}, or a data set with __len__ and __getitem__ → "
        "(image, label)."
    )


def _of_pair(images: Any, labels: Any, classes: Any = None) -> ImageIndex:
    some = _several(images, "image")
    found = labels_of(labels)
    if len(found) != len(some.rows):
        raise KedgeError(
            f"{GIVEN}: {counted(len(some.rows), 'image')} but {counted(len(found), 'label')}."
        )
    known = None if classes is None else names_of(classes)
    if classes is not None and known is None:
        raise KedgeError(f"{GIVEN}: the class names must be a list of texts.")
    if known and not fit(found, known):
        raise KedgeError(
            f"{GIVEN}: some labels are not among the {len(known)} classes; labels count from 0."
        )
    return _catalogue("images and labels", [some], found, known)


def _of_mapping(given: Mapping[Any, Any]) -> ImageIndex:
    sources: list[Some] = []
    labels: list[Label] = []
    empty: list[str] = []
    keys = [label_of(key) for key in given]
    for key, images in zip(numbered(keys), given.values(), strict=True):
        some = _several(images, f"image of '{key}',")
        if not len(some.rows):
            empty.append(key)
        sources.append(some)
        labels += [key] * len(some.rows)
    remarks = left_out(empty, "class has no image", "classes have no image")
    return _catalogue("images by class", sources, labels, None, remarks)


def _several(images: Any, what: str) -> Some:
    shape = tuple(getattr(images, "shape", ()))
    if is_array(images) and len(shape) == 1 and array_of(images).dtype.kind in "OU":
        images = array_of(images).tolist()  # of images of different sizes, or of paths
    if is_array(images):
        # By its shape alone: tensors are laid out otherwise, and HDF5 would be read as a whole.
        refuse_batch(shape)
        return Some(what, images, range(shape[0]))
    if isinstance(images, str | bytes | Path) or not isinstance(images, Sequence):
        raise KedgeError(
            f"{GIVEN}: images are of type {type(images).__name__}; expected an array of several "
            "images, or a list of arrays, Pillow images or paths."
        )
    return Some(what, images, range(len(images)))


def _catalogue(
    form: str,
    sources: list[Some],
    labels: list[Label],
    names: tuple[str, ...] | None,
    remarks: Sequence[str] = (),
    content: bytes | None = None,
) -> ImageIndex:
    """`content` stands for the pixels in the stamp; if it is not given, they are looked at."""
    there = list(dict.fromkeys(labels))
    called = numbered([names[x] if names and isinstance(x, int) else x for x in there])
    classes = tuple(sorted(called))
    order = {name: i for i, name in enumerate(classes)}
    number = {label: order[name] for label, name in zip(there, called, strict=True)}
    numbers = np.fromiter((number[label] for label in labels), np.int64, len(labels))
    pictures = InMemoryImages(sources)
    if content is None:
        content = _looked_at(pictures)
    if any(_floats(some) for some in sources if len(some.rows)):
        remarks = (*remarks, "floats from 0 to 1 were brought to whole numbers from 0 to 255")
    sha = hashlib.sha256("\0".join((form, *classes)).encode())
    sha.update(numbers.tobytes() + content)
    return ImageIndex(
        GIVEN, form, classes, numbers, pictures, sha.hexdigest(), remarks=tuple(remarks)
    )


def _looked_at(pictures: InMemoryImages) -> bytes:
    """A digest of the images. Raises where some are no images that can be used."""
    sha = hashlib.sha256()
    numbers = spread(len(pictures), LOOKED_AT)
    lost = 0
    first: Exception | None = None
    with progress.task("looking at images", len(numbers)) as tick:
        for i in numbers:
            try:
                sha.update(content_of(pictures.one(i)))
            except KedgeError:
                raise
            except Exception as error:
                first, lost = first or error, lost + 1
            tick(1)
    if numbers and lost == len(numbers):
        raise KedgeError(f"{GIVEN}: none of the images can be had ({str(first)[:120]}).")
    return sha.digest()


def _floats(some: Some) -> bool:
    try:
        image = some.image(0)
        return is_array(image) and array_of(image).dtype.kind == "f"
    except Exception:
        return False
