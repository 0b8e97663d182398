"""Loaders of batches: PyTorch's DataLoader and what is made like it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from PIL import Image

from kedge.data.in_memory import objects
from kedge.data.in_memory.objects import Label, wrong
from kedge.utils import progress
from kedge.utils.progress import Tick, no_tick


def is_loader(value: Any) -> bool:
    """Whether an object gives the batches of a data set, and cannot be indexed itself."""
    return (
        hasattr(value, "dataset")
        and hasattr(value, "__iter__")
        and not hasattr(value, "__getitem__")
    )


def read_batches(loader: Any, *, with_labels: bool) -> tuple[list[Any], list[Label]]:
    """The images of all batches, arrays and tensors as uint8, and their labels if asked for.

    Batches are (images, labels); without labels, images or (images, …).
    """
    items: list[Any] = []
    labels: list[Label] = []
    # Without batch_size or batch_sampler, PyTorch's loader gives single items.
    single = getattr(loader, "batch_size", 1) is None and not getattr(loader, "batch_sampler", 1)
    showing: AbstractContextManager[Tick] = nullcontext(no_tick)
    with suppress(TypeError):  # the loader of an IterableDataset has no length
        showing = progress.task("reading batches", len(loader))
    with showing as tick:
        for number, batch in enumerate(loader):
            images, given = _parts(batch, number, with_labels)
            added = [images] if single else [*images]
            items += map(_compact, added)
            if with_labels:
                labels += [objects.to_label(given)] if single else objects.to_labels(given)
            if with_labels and len(labels) != len(items):
                raise wrong(f"batch {number} of the loader has not one label for each image")
            tick(1)
    if with_labels:
        labels = objects.to_labels(labels)  # all of one type
    return items, labels


def _parts(batch: Any, number: int, with_labels: bool) -> tuple[Any, Any]:
    """Images and labels of a batch."""
    is_pair = isinstance(batch, tuple | list) and len(batch) > with_labels
    if is_pair and isinstance(batch[0], str | Path | Image.Image):  # a list of images
        is_pair = False
    if isinstance(batch, Mapping) or (with_labels and not is_pair):
        expected = "(images, labels)" if with_labels else "images or (images, …)"
        kind = type(batch).__name__
        raise wrong(f"batch {number} of the loader is of type {kind}; expected {expected}")
    return (batch[0], batch[1] if with_labels else None) if is_pair else (batch, None)


def _compact(image: Any) -> Any:
    """An array or tensor as uint8, of which the batch need not be kept; others as they are."""
    return objects.to_raw_image(image) if objects.is_array(image) else image
