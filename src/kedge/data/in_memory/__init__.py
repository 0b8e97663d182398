"""Objects that the Python API takes in place of a path: arrays, lists of images, data sets.

Only labels are copied; images are taken from their owner again when they are fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.in_memory.dataset import Contents, read_dataset
from kedge.data.in_memory.images import (
    IN_MEMORY,
    InMemoryImages,
    check_batch_shape,
    image_digest,
    is_array,
    to_numpy,
    to_raw_image,
    wrong,
)
from kedge.data.in_memory.labels import Label, names_cover, to_class_names, to_label, to_labels
from kedge.data.index import ConcatImages, ImageIndex, evenly_spaced, names_of_numbers
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import pluralize, skipped_remark

MAX_DIGESTED = 10_000  # images that are read for the stamp and checked


def index_in_memory(images: object, arrays_inverted: bool = False) -> ImageIndex:
    """The index of objects in memory.

    Args:
        images: `(images, labels)`, `(images, labels, class names)`, `{class name: images}`, or a
            data set with `__len__` and `__getitem__` → (image, label).
        arrays_inverted: see `InMemoryImages`.
    """
    contents = _contents(images)
    distinct = list(dict.fromkeys(contents.labels))
    given = contents.names
    names = names_of_numbers([given[x] if given and isinstance(x, int) else x for x in distinct])
    classes = tuple(sorted(names))
    order = {name: i for i, name in enumerate(classes)}
    number = {label: order[name] for label, name in zip(distinct, names, strict=True)}
    labels = np.fromiter((number[x] for x in contents.labels), np.int64, len(contents.labels))
    digest = _digest(contents.sources) if contents.digest is None else contents.digest
    remarks = tuple(contents.remarks)
    if any(_has_floats(source) for source in contents.sources if len(source)):
        remarks += ("floats from 0 to 1 were converted to whole numbers from 0 to 255",)
    form = contents.form
    sha = hashlib.sha256("\0".join((form, *classes)).encode())
    sha.update(labels.tobytes() + digest)
    stamp = sha.hexdigest()
    source = ConcatImages([replace(s, arrays_inverted=arrays_inverted) for s in contents.sources])
    return ImageIndex(IN_MEMORY, form, classes, labels, source, stamp, remarks=remarks)


def _contents(images: Any) -> Contents:
    if isinstance(images, Mapping):
        return _read_mapping(images)
    if isinstance(images, tuple) and len(images) in (2, 3) and not isinstance(images[0], tuple):
        return _read_pair(*images)
    if hasattr(images, "__len__") and hasattr(images, "__getitem__") and not is_array(images):
        return read_dataset(images)
    kinds = "(images, labels), {class name: images}, or a data set with __len__ and __getitem__"
    raise wrong(f"{type(images).__name__} holds no images with labels; expected {kinds}")


def _read_pair(images: Any, labels: Any, classes: Any = None) -> Contents:
    source = _source(images, "image")
    checked = to_labels(labels)
    if len(checked) != len(source):
        n_labels = pluralize(len(checked), "label")
        raise wrong(f"{pluralize(len(source), 'image')} but {n_labels}")
    names = None if classes is None else to_class_names(classes)
    if classes is not None and names is None:
        raise wrong("the class names must be a list of texts")
    if names and not names_cover(names, checked):
        raise wrong(f"some labels are not among the {len(names)} classes; labels count from 0")
    return Contents("images and labels", [source], checked, names)


def _read_mapping(images_of: Mapping[Any, Any]) -> Contents:
    names = names_of_numbers([to_label(key) for key in images_of])
    sources: list[InMemoryImages] = []
    labels: list[Label] = []
    for name, images in zip(names, images_of.values(), strict=True):
        sources.append(_source(images, f"image of '{name}',"))
        labels += [name] * len(sources[-1])
    empty = [name for name, source in zip(names, sources, strict=True) if not len(source)]
    remarks = skipped_remark(empty, "class", "no image")
    return Contents("images by class", sources, labels, remarks=remarks)


def _source(images: Any, noun: str) -> InMemoryImages:
    shape = tuple(getattr(images, "shape", ()))
    if is_array(images) and len(shape) == 1 and to_numpy(images).dtype.kind in "OU":
        images = to_numpy(images).tolist()  # images of different sizes, or paths
    if is_array(images):
        check_batch_shape(shape)  # the shape alone: converting HDF5 would read all of it
        return InMemoryImages(noun, images, range(shape[0]))
    if isinstance(images, str | bytes | Path) or not isinstance(images, Sequence):
        kinds = "an array of several images, or a list of arrays, Pillow images or paths"
        raise wrong(f"images are of type {type(images).__name__}; expected {kinds}")
    return InMemoryImages(noun, images, range(len(images)))


def _digest(sources: list[InMemoryImages]) -> bytes:
    """A digest of some images; raises if one is of a wrong type or none can be read."""
    digest = hashlib.sha256()
    ends = np.cumsum([len(source) for source in sources])
    numbers = evenly_spaced(int(ends[-1]) if len(ends) else 0, MAX_DIGESTED)
    n_failed = 0
    first_error: Exception | None = None
    with progress.task("looking at images", len(numbers)) as tick:
        for i in numbers:
            source = sources[k := int(np.searchsorted(ends, i, side="right"))]
            try:
                raw = to_raw_image(source.item(i - int(ends[k]) + len(source)))
                digest.update(image_digest(raw))
            except KedgeError:
                raise
            except Exception as error:
                first_error, n_failed = first_error or error, n_failed + 1
            tick(1)
    if numbers and n_failed == len(numbers):
        raise wrong(f"no image could be loaded ({str(first_error)[:120]})")
    return digest.digest()


def _has_floats(source: InMemoryImages) -> bool:
    try:
        image = source.item(0)
        return is_array(image) and to_numpy(image).dtype.kind == "f"
    except Exception:
        return False
