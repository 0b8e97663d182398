"""`*.parquet` as Hugging Face writes it: a column of encoded images and a column of labels.

Labels are read at once; images when they are fetched, a few rows at a time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

import numpy as np

from kedge.data.decode import RawImage, looks_like_image
from kedge.data.files import parquet_file
from kedge.data.files.file_tree import FileTree, FolderTree
from kedge.data.index import (
    PART_NAMES,
    ImageIndex,
    ImageSource,
    names_of_numbers,
    tree_stamp,
    unique_names,
    unread_remarks,
)
from kedge.data.parquet_worker import MAX_ROWS
from kedge.data.readers.base import Reader
from kedge.data.remarks import Remark, lost
from kedge.errors import KedgeError
from kedge.utils.text import pluralize

SHARD_NUMBER = re.compile(r"[-_.]?(\d{1,9})-of-(\d{1,9})")


class ParquetReader(Reader):
    form = "Parquet"

    def recognises(self, tree: FileTree) -> bool:
        files = _parquet_files(tree)
        if not files or not any("/" in name and looks_like_image(name) for name in tree.names):
            return bool(files)
        # Beside folders of images, a Parquet file may be a table that describes them.
        if not isinstance(tree, FolderTree):
            return False
        try:
            return parquet_file.holds_images(tree.local_path(files[0]))
        except KedgeError:
            return True  # `read` tells the user what is wrong

    def read(self, tree: FileTree) -> ImageIndex:
        files = _parquet_files(tree)
        no_part = [name for name in files if not _part(name)]
        remarks: list[str] = []
        if 0 < len(no_part) < len(files):
            files = [name for name in files if _part(name)]
            remarks += lost(no_part, "file", "in no part of the split")
        remarks += _missing_shards(tree, files)
        shards = [parquet_file.open_shard(tree.local_path(name), _part(name)) for name in files]
        _check_agreement(shards)
        n_rows, most = sum(shard.n_rows for shard in shards), MAX_ROWS
        if n_rows > most:
            raise KedgeError(f"{tree.path}: {n_rows} images are too many, at most {most}.")
        if any(len(set(shard.names)) < len(shard.names) for shard in shards):
            remarks.append("some classes have the same name, so their label was added to it")
            shards = [replace(shard, names=unique_names(shard.names)) for shard in shards]
        label_numbers: dict[int | str, int] = {}
        labels = [shard.labels(label_numbers) for shard in shards]
        for k, of_shard in enumerate(labels):
            if (of_shard < 0).any():
                rows = np.flatnonzero(of_shard >= 0)
                shards[k], labels[k] = replace(shards[k], rows=rows), of_shard[rows]
        if n_skipped := n_rows - sum(map(len, labels)):
            skipped = f"{pluralize(n_skipped, 'image')} skipped (no label, or an invalid one)"
            remarks.append(Remark(skipped, "lost"))
        names = np.array(names_of_numbers(list(label_numbers)), dtype=object)
        classes, class_of_number = np.unique(names, return_inverse=True)
        with_parts = [shard for shard in shards if shard.part and len(shard.rows)]
        used = {shard.part for shard in with_parts}
        parts = [part for part in dict.fromkeys(PART_NAMES.values()) if part in used]
        form = f"{self.form}, split in {', '.join(parts)}" if parts else self.form
        return ImageIndex(
            tree.path,
            form,
            tuple(classes),
            class_of_number[np.concatenate(labels)],
            ParquetImages(shards),
            tree_stamp(tree, files),
            tuple(parts),
            np.repeat(
                np.array([parts.index(shard.part) for shard in with_parts], dtype=np.uint8),
                [len(shard.rows) for shard in with_parts],
            ),
            (*tree.remarks, *remarks, *unread_remarks(tree, form, _parquet_files(tree))),
        )


class ParquetImages(ImageSource):
    """The images of several files."""

    def __init__(self, shards: Sequence[parquet_file.Shard]) -> None:
        self.shards = shards
        self.ends = list(accumulate(len(shard.rows) for shard in shards))
        self._images = [parquet_file.ShardImages(shard) for shard in shards]

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, i: int) -> str:
        k, row = self._locate(i)
        return f"{self.shards[k].path}, row {row}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        for k, run in groupby(map(self._locate, numbers), lambda place: place[0]):
            yield from self._images[k].fetch([row for _, row in run])

    def _locate(self, i: int) -> tuple[int, int]:
        """The number of the file and the row in it."""
        k = bisect_right(self.ends, i)
        return k, int(self.shards[k].rows[i - (self.ends[k - 1] if k else 0)])


def _parquet_files(tree: FileTree) -> list[str]:
    return sorted(name for name in tree.names if parquet_file.is_parquet(name))


def _part(name: str) -> str:
    """The part, from the first word of the file's name, else its folders, else the last word."""
    *folders, last = name.lower().removesuffix(".parquet").split("/")
    words = re.findall("[a-z]+", SHARD_NUMBER.split(last)[0]) or [""]
    parents = [folder.removeprefix("partial-") for folder in reversed(folders)]
    hints = (words[0], *parents, words[-1])
    return next((PART_NAMES[hint] for hint in hints if hint in PART_NAMES), "")


def _missing_shards(tree: FileTree, files: list[str]) -> list[str]:
    """Remarks on shards that are missing, judged by the names of the others."""
    numbers: dict[tuple[str, int], set[int]] = {}
    first_of: dict[tuple[str, str], str] = {}
    for name in files:
        folder = name.rfind("/") + 1
        if not (match := SHARD_NUMBER.search(name, folder)):
            continue
        numbers.setdefault((name[: match.start()], int(match[2])), set()).add(int(match[1]))
        if part := _part(name):
            twin = first_of.setdefault((part, name[folder : match.end()]), name)
            if twin != name:
                both = f"{twin} and {name} are the same shard of two data sets"
                raise KedgeError(f"{tree.path}: {both}; give the folder of one of them.")
    return [
        f"{stem}: only {len(shards)} of {total} shards found"
        for (stem, total), shards in numbers.items()
        if len(shards) < total
    ]


def _check_agreement(shards: list[parquet_file.Shard]) -> None:
    """Shards of a part must have the same columns and classes."""
    # Parts may have different classes, if these have names.
    firsts: dict[str, parquet_file.Shard] = {}
    for shard in shards:
        first, very_first = firsts.setdefault(shard.part, shard), shards[0]
        agrees = (shard.image, shard.label, shard.names) == (first.image, first.label, first.names)
        same_type = shard.is_text == very_first.is_text
        if not agrees or not same_type or bool(shard.names) != bool(very_first.names):
            other = (very_first if agrees else first).path
            both = f"this file and {other} have different columns, class names or types of labels"
            raise KedgeError(f"{shard.path}: {both}; give the files of one data set.")
