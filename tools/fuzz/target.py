"""What is fuzzed: a parser, inputs to begin with, and changes that keep their structure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.delivery import Delivery
from kedge.data.index import evenly_spaced
from kedge.data.open import open_index

# In the order of their risk: parsers in Python first, then those that have a process of their own.
TARGETS = ("pickle", "tar", "zip", "npz", "lists", "records", "model", "image", "parquet")
FEW_IMAGES = 5


@dataclass(frozen=True)
class Target:
    """A parser, and what it is given."""

    run: Callable[[Path, bytes], object]  # writes an input into the folder and reads it
    seeds: Callable[[], Sequence[bytes]]
    mutate: Callable[[random.Random, bytes], bytes]
    tokens: Sequence[bytes] = ()  # that occur in this format
    most_bytes: int = 1 << 16  # of an input
    children: bool = False  # whether it is read in a child process
    # Writes an input into the folder; what a user would give to `kedge data inspect`.
    place: Callable[[Path, bytes], Path] | None = None
    # What the child process does with an input, in this one: whatever it raises is no finding, but
    # its coverage guides and is reported.
    inside: Callable[[Path, bytes], object] | None = None


def load_target(name: str) -> Target:
    return import_module(f"{__package__}.targets.{name}").TARGET


def read_data(path: Path) -> None:
    """What `kedge data inspect` does with a data set, but for the encoded images."""
    index = open_index(Delivery.of(path))
    assert all(isinstance(remark, str) for remark in index.all_remarks)
    numbers = evenly_spaced(len(index), FEW_IMAGES)
    for number, image in zip(numbers, index.images.fetch(numbers), strict=True):
        index.short_name(number)
        if isinstance(image, np.ndarray):
            decode_each([image], ImageSpec(16, 3))
    list(index.images.fetch([*numbers[-1:], *numbers[:1]]))  # once more, and back


def data_target(
    place: Callable[[Path, bytes], Path],
    seeds: Callable[[], Sequence[bytes]],
    mutate: Callable[[random.Random, bytes], bytes],
    tokens: Sequence[bytes] = (),
    children: bool = False,
    inside: Callable[[Path, bytes], object] | None = None,
) -> Target:
    """A target whose inputs are data sets, or a file of one."""

    def run(folder: Path, data: bytes) -> None:
        read_data(place(folder, data))

    return Target(run, seeds, mutate, tokens, children=children, place=place, inside=inside)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
