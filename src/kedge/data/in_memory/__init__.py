"""Objects that the Python API takes in place of a path: arrays, lists of images, data sets.

Only labels are copied; images are taken from their owner again when they are fetched. A loader of
batches is read once, into memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kedge.data.decode import RawImage
from kedge.data.in_memory import objects
from kedge.data.in_memory.loader import is_loader, read_batches
from kedge.data.in_memory.objects import InMemoryImages, Label, several_images, wrong
from kedge.data.index import ConcatImages, ImageIndex, evenly_spaced, names_of_numbers
from kedge.data.remarks import lost
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import pluralize

MAX_DIGESTED = 10_000  # images that are read for the stamp and checked
LABEL_ATTRIBUTES = ("targets", "labels", "_labels")  # of data sets
N_PROBES = 8  # items of a data set that are read to check it, besides the first three


T = TypeVar("T")


class Contents(NamedTuple):
    """What objects in memory hold, before class names are made unique and sorted."""

    form: str
    sources: list[InMemoryImages]
    labels: list[Label]
    names: tuple[str, ...] | None = None  # of classes, by label
    remarks: Sequence[str] = ()
    digest: bytes | None = None  # of some images, if they have been read
    empty_classes: tuple[str, ...] = ()


def index_in_memory(images: object, arrays_inverted: bool = False) -> ImageIndex:
    """The index of objects in memory.

    Args:
        images: `(images, labels)`, `(images, labels, class names)`, `{class name: images}`, or a
            data set with `__len__` and `__getitem__` → (image, label), such as torchvision's; or
            PyTorch's DataLoader of batches (images, labels).
        arrays_inverted: see `InMemoryImages`.
    """
    is_sized = hasattr(images, "__len__") and not objects.is_array(images)
    if isinstance(images, Mapping):
        contents = _read_mapping(images)
    elif isinstance(images, tuple) and len(images) in (2, 3) and not isinstance(images[0], tuple):
        contents = _read_pair(*images)
    elif is_loader(images):
        contents = _read_loader(images)
    elif is_sized and hasattr(images, "__getitem__"):
        contents = _read_dataset(images)
    else:
        kinds = "(images, labels), {class name: images}, a data set or a DataLoader"
        raise wrong(f"{type(images).__name__} holds no images with labels; expected {kinds}")
    form, sources, given_labels, given, remarks, digest, empty = contents
    distinct = list(dict.fromkeys(given_labels))
    names = names_of_numbers([given[x] if given and isinstance(x, int) else x for x in distinct])
    classes = tuple(sorted(names))
    order = {name: i for i, name in enumerate(classes)}
    number = {label: order[name] for label, name in zip(distinct, names, strict=True)}
    labels = np.fromiter((number[x] for x in given_labels), np.int64, len(given_labels))
    digest = _digest(sources) if digest is None else digest
    if any(_has_floats(source) for source in sources if len(source)):
        remarks = (*remarks, "floats from 0 to 1 were converted to whole numbers from 0 to 255")
    sha = hashlib.sha256("\0".join((form, *classes)).encode())
    sha.update(labels.tobytes() + digest)
    source = ConcatImages([replace(s, arrays_inverted=arrays_inverted) for s in sources])
    path, stamp = objects.IN_MEMORY, sha.hexdigest()
    return ImageIndex(
        path, form, classes, labels, source, stamp, remarks=tuple(remarks), empty_classes=empty
    )


def _read_pair(images: Any, labels: Any, classes: Any = None) -> Contents:
    source, checked = several_images(images, "image"), objects.to_labels(labels)
    if len(checked) != len(source):
        n_labels = pluralize(len(checked), "label")
        raise wrong(f"{pluralize(len(source), 'image')} but {n_labels}")
    names = objects.to_class_names(classes)
    if classes is not None and (names is None or not objects.names_cover(names, checked)):
        raise wrong("the class names must be a list of texts, one for each label from 0")
    return Contents("images and labels", [source], checked, names)


def _read_mapping(images_of: Mapping[Any, Any]) -> Contents:
    names = names_of_numbers([objects.to_label(key) for key in images_of])
    sources: list[InMemoryImages] = []
    labels: list[Label] = []
    for name, images in zip(names, images_of.values(), strict=True):
        sources.append(several_images(images, f"image of '{name}',"))
        labels += [name] * len(sources[-1])
    empty = tuple(name for name, source in zip(names, sources, strict=True) if not len(source))
    remarks = lost(empty, "class", "no image")
    return Contents("images by class", sources, labels, remarks=remarks, empty_classes=empty)


def _read_loader(loader: Any) -> Contents:
    items, labels = read_batches(loader, with_labels=True)
    names = objects.to_class_names(getattr(loader.dataset, "classes", None))
    remarks = []
    if names is not None and not objects.names_cover(names, labels):
        remarks.append("the class names of the data set do not fit its labels and are not used")
        names = None
    if type(getattr(loader, "sampler", None)).__name__ == "RandomSampler":
        remarks.append(
            "the loader shuffles: what is learned depends on the order, so with shuffle=False a "
            "repeated call gives the same model"
        )
    return Contents(type(loader).__name__, [several_images(items, "image")], labels, names, remarks)


def _digest(sources: list[InMemoryImages]) -> bytes:
    """A digest of some images; raises if one is of a wrong type or none can be read."""
    ends = np.cumsum([len(source) for source in sources])
    numbers = evenly_spaced(int(ends[-1]) if len(ends) else 0, MAX_DIGESTED)

    def digest_of(i: int) -> bytes:
        source = sources[k := int(np.searchsorted(ends, i, side="right"))]
        return objects.image_digest(
            objects.to_raw_image(source.item(i - int(ends[k]) + len(source)))
        )

    digests, errors = _read_each(digest_of, numbers, "looking at images")
    if errors and not digests:
        raise wrong(f"no image could be loaded, the first is {errors[0]}")
    return hashlib.sha256(b"".join(digests.values())).digest()


def _read_each(
    read: Callable[[int], T], numbers: Sequence[int], title: str
) -> tuple[dict[int, T], list[str]]:
    """Results of reading items by number, and errors: a data set may raise anything."""
    results: dict[int, T] = {}
    errors: list[str] = []
    with progress.task(title, len(numbers)) as tick:
        for i in numbers:
            try:
                results[i] = read(i)
            except KedgeError:
                raise
            except Exception as error:
                errors.append(f"item {i} ({type(error).__name__} {str(error)[:120]})")
            tick(1)
    return results, errors


def _has_floats(source: InMemoryImages) -> bool:
    try:
        image = source.item(0)
        return objects.is_array(image) and objects.to_numpy(image).dtype.kind == "f"
    except Exception:
        return False


def _read_dataset(dataset: Any) -> Contents:
    form = f"data set {type(dataset).__name__}"
    try:
        n = len(dataset)
    except Exception:
        n = 0
    if n == 0:
        raise wrong(f"the {form} is empty or has no length")
    probes = _probe(dataset, n)
    known, reliable, names = _known_labels(dataset, n)
    rows: Sequence[int] = range(n)
    remarks: list[str] = []
    if reliable and known and all(known[i] == label for i, (label, _) in probes.items()):
        labels = known
    else:
        labels_of, errors = _read_each(
            lambda i: objects.to_label(dataset[i][1]), range(n), "reading labels"
        )
        labels, rows = objects.to_labels([*labels_of.values()]), [*labels_of]
        remarks += lost(errors, "item", "could not be read")
    # If the items have other labels than the attribute, the names may belong to those.
    differ = known is not None and [known[i] for i in rows] != labels
    if names is not None and (differ or not objects.names_cover(names, labels)):
        remarks.append("the class names of the data set do not fit its labels and are not used")
        names = None
    digest = hashlib.sha256()
    for i, (_, raw) in probes.items():
        again = next(InMemoryImages("", dataset, [i], has_labels=True).fetch([0]))
        if objects.image_digest(again) != objects.image_digest(raw):
            digest = hashlib.sha256()
            remarks.append(
                "an image differs each time it is read: give the data set without random transforms"
            )
            break
        digest.update(objects.image_digest(raw))
    images = InMemoryImages("item", dataset, rows, has_labels=True)
    return Contents(form, [images], labels, names, remarks, digest.digest())


def _probe(dataset: Any, n: int) -> dict[int, tuple[Label, RawImage]]:
    """Label and image of a few items, without those that raise."""

    def read(i: int) -> tuple[Label, RawImage]:
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) < 2:
            kind = type(item).__name__
            raise wrong(f"item {i} of the data set is of type {kind}, not (image, label)")
        return objects.to_label(item[1]), objects.to_raw_image(item[0])

    numbers = sorted({*range(min(3, n)), *evenly_spaced(n, N_PROBES)})
    probes, errors = _read_each(read, numbers, "reading the data set")
    if not probes:
        raise wrong(f"no item of the data set could be read, the first is {errors[0]}")
    return probes


def _known_labels(dataset: Any, n: int) -> tuple[list[Label] | None, bool, tuple[str, ...] | None]:
    """Labels from an attribute of the data set, or of the one it is a subset of; whether they are
    reliable; and class names."""
    labels: list[Label] | None = None
    # A wrapper's inherited attribute, or a transform, may differ from what the items say.
    own = {*getattr(dataset, "__dict__", ()), *dir(type(dataset))}
    reliable = getattr(dataset, "target_transform", None) is None
    for attribute in LABEL_ATTRIBUTES:
        try:
            labels = objects.to_labels(getattr(dataset, attribute))
        except Exception:  # no such attribute, or something else
            continue
        if len(labels) == n:
            reliable = reliable and attribute in own
            break
        labels = None
    names = objects.to_class_names(getattr(dataset, "classes", None))
    if labels is None and hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a Subset
        try:
            rows = [int(i) for i in dataset.indices]
            of_all, reliable, names = _known_labels(dataset.dataset, len(dataset.dataset))
            labels = [of_all[i] for i in rows] if of_all is not None else None
        except Exception:
            return None, False, None
    return labels, reliable, names
