"""Numbered images for tests of benchmarks: which image a pool holds can be read from its pixels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kedge.benchmarks import get_protocol
from kedge.benchmarks.base import Benchmark, Split
from kedge.benchmarks.class_lists import load_class_lists
from kedge.data.drawings import drawing_domains
from kedge.data.pools import Pool
from kedge.data.table import ImageTable

CHARACTERS = {
    "train": [f"Alphabet {i // 33:02}/character{i % 33:02}" for i in range(964)],
    "test": [f"Other {i // 33:02}/character{i % 33:02}" for i in range(659)],
}


def numbered_table(
    classes: Sequence[str], per_class: int, size: tuple[int, int] = (1, 4)
) -> ImageTable:
    """The first four pixels of each image are its number."""
    n = len(classes) * per_class
    pixels = torch.zeros(n, 1, *size, dtype=torch.uint8)
    pixels[:, 0, 0, :4] = torch.arange(n, dtype=torch.int32)[:, None].view(torch.uint8)
    return ImageTable.build(pixels, [i // per_class for i in range(n)], classes)


def numbers(images: Tensor) -> list[int]:
    return images[:, 0, 0, :4].contiguous().view(torch.int32).flatten().tolist()


def numbers_in(pool: Pool, name: str | None = None) -> list[int]:
    """The images of a pool, or of one class in it."""
    rows = pool.rows if name is None else pool.class_rows[pool.classes.index(name)]
    return numbers(pool.table.images[rows])


def with_parts(table: ImageTable, parts: Sequence[str]) -> ImageTable:
    """The table with a part of the split for every image."""
    names = tuple(dict.fromkeys(parts))
    part = torch.tensor([names.index(each) for each in parts], dtype=torch.uint8)
    return dataclasses.replace(table, parts=names, part=part)


def table_of_parts(parts: Mapping[str, Sequence[str]], per_class: int) -> ImageTable:
    """A numbered table of classes that are each in one part of the split."""
    classes = sorted((name, part) for part, names in parts.items() for name in names)
    table = numbered_table([name for name, _ in classes], per_class)
    return with_parts(table, [part for _, part in classes for _ in range(per_class)])


def all_names(lists: Mapping[str, Sequence[str]]) -> list[str]:
    return sorted(name for names in lists.values() for name in names)


@functools.cache
def _table_of_dataset(dataset: str) -> ImageTable:
    if dataset == "Omniglot":
        return table_of_parts(CHARACTERS, 20)
    if dataset == "flowers":
        return numbered_table([f"flower {i:03}" for i in range(102)], 40)
    lists = drawing_domains() if dataset == "drawings" else load_class_lists(dataset)
    return numbered_table(all_names(lists), 100)


def table_of(protocol: str) -> ImageTable:
    """Numbered images of all classes of a protocol's data set."""
    if protocol.startswith("tiny-imagenet"):
        return _table_of_dataset("Tiny-ImageNet")
    if "imagenet" in protocol:
        return _table_of_dataset("ImageNet")
    if protocol.startswith("flowers"):
        return _table_of_dataset("flowers")
    named = {"cifar-fs": "CIFAR-FS", "omniglot": "Omniglot"}
    return _table_of_dataset(named.get(protocol, "drawings"))


def split_of(protocol: str, seed: int) -> Split:
    return get_protocol(protocol).draw(seed, table_of(protocol))


def numbered_benchmark(protocol: str, seed: int) -> Benchmark:
    return Benchmark(table_of(protocol), split_of(protocol, seed))
