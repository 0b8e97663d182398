"""`*.parquet` as Hugging Face writes it: a column of encoded images and a column of labels.

Labels are read at once, column-wise; images when they are fetched, a few rows at a time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from kedge.data.decode import Picture, looks_like_image
from kedge.data.files.file_tree import FileTree, FolderTree
from kedge.data.files.parquet_file import (
    MOST_ROWS,
    Cursor,
    Shard,
    examined,
    holds_images,
    is_parquet,
)
from kedge.data.index import (
    PART_NAMES,
    ImageIndex,
    ImageSource,
    distinct,
    not_read,
    numbered,
    stamped,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import left_out

SHARD = re.compile(r"[-_.]?(\d{1,9})-of-(\d{1,9})")


class ParquetReader(Reader):
    form = "Parquet"

    def recognises(self, tree: FileTree) -> bool:
        files = _files(tree)
        if not files or not any("/" in name and looks_like_image(name) for name in tree.names):
            return bool(files)
        # Beside folders of images, a Parquet file may be but a table that describes them.
        if not isinstance(tree, FolderTree):
            return False
        try:
            return holds_images(tree.local(files[0]))
        except KedgeError:
            return True  # `read` will say what is wrong with it

    def read(self, tree: FileTree) -> ImageIndex:
        files, remarks = _of_the_split(_files(tree))
        remarks += _absent(tree, files)
        shards = [examined(tree.local(name), _part(name)) for name in files]
        _refuse_mixture(shards)
        n = sum(shard.n_rows for shard in shards)
        if n > MOST_ROWS:
            raise KedgeError(f"{tree.path}: {n} images are too many, {MOST_ROWS} can be read.")
        if any(len(set(shard.names)) < len(shard.names) for shard in shards):
            remarks.append("some classes have the same name, so their label was added to it")
            shards = [replace(shard, names=distinct(shard.names)) for shard in shards]
        seen: dict[int | str, int] = {}
        labels = [shard.labels(seen) for shard in shards]
        for k, there in enumerate(labels):
            if (there < 0).any():
                rows = np.flatnonzero(there >= 0)
                shards[k], labels[k] = replace(shards[k], rows=rows), there[rows]
        if lost := n - sum(map(len, labels)):
            have, were = ("image has", "was") if lost == 1 else ("images have", "were")
            remarks.append(f"{lost} {have} no label, or none of a class, and {were} left out")
        names = numbered(list(seen))
        classes = tuple(sorted(names))
        order = {name: i for i, name in enumerate(classes)}
        number = np.array([order[name] for name in names], dtype=np.int64)
        with_parts = [shard for shard in shards if shard.part and len(shard.rows)]
        parts = [p for p in dict.fromkeys(PART_NAMES.values()) if p in {s.part for s in with_parts}]
        form = f"{self.form}, split in {', '.join(parts)}" if parts else self.form
        return ImageIndex(
            tree.path,
            form,
            classes,
            number[np.concatenate(labels)],
            ParquetImages(shards),
            stamped(tree, files),
            tuple(parts),
            np.repeat(
                np.array([parts.index(shard.part) for shard in with_parts], dtype=np.uint8),
                [len(shard.rows) for shard in with_parts],
            ),
            (*tree.remarks, *remarks, *not_read(tree, form, _files(tree))),
        )


class ParquetImages(ImageSource):
    """Rows of files. The place where the last call ended is kept: the next goes on from there."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.ends = list(accumulate(len(shard.rows) for shard in shards))
        self._cursor: Cursor | None = None

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, i: int) -> str:
        shard, row = self._place(i)
        return f"{shard.path}, row {row}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        cursor, self._cursor = self._cursor, None  # taken: two calls at a time have one each
        try:
            for i in numbers:
                shard, row = self._place(i)
                if cursor is None or cursor.shard is not shard:
                    cursor = Cursor(shard)
                yield cursor.image(row)
        finally:
            self._cursor = cursor

    def _place(self, i: int) -> tuple[Shard, int]:
        k = bisect_right(self.ends, i)
        return self.shards[k], int(self.shards[k].rows[i - (self.ends[k - 1] if k else 0)])


def _files(tree: FileTree) -> list[str]:
    return sorted(name for name in tree.names if is_parquet(name))


def _part(name: str) -> str:
    """From how the file's name begins, else from its folders, else from how the name ends."""
    *folders, last = name.lower().removesuffix(".parquet").split("/")
    words = re.findall("[a-z]+", SHARD.split(last)[0]) or [""]
    above = [folder.removeprefix("partial-") for folder in reversed(folders)]
    hints = (words[0], *above, words[-1])
    return next((PART_NAMES[hint] for hint in hints if hint in PART_NAMES), "")


def _of_the_split(files: list[str]) -> tuple[list[str], list[str]]:
    """All files if there is no split; otherwise those of it, and a remark on the others."""
    strays = [name for name in files if not _part(name)]
    if not strays or len(strays) == len(files):
        return files, []
    remarks = left_out(
        strays,
        "file belongs to no part of the split",
        "files belong to no part of the split",
    )
    return [name for name in files if _part(name)], [*remarks]


def _absent(tree: FileTree, files: list[str]) -> list[str]:
    """What the names of shards say of those that are not there."""
    there: dict[tuple[str, int], set[int]] = {}
    known: dict[tuple[str, str], str] = {}
    for name in files:
        folder = name.rfind("/") + 1
        if not (found := SHARD.search(name, folder)):
            continue
        there.setdefault((name[: found.start()], int(found[2])), set()).add(int(found[1]))
        if part := _part(name):
            twin = known.setdefault((part, name[folder : found.end()]), name)
            if twin != name:
                raise KedgeError(
                    f"{tree.path}: {twin} and {name} are the same shard of two data sets; give "
                    "the folder of one of them."
                )
    return [
        f"only {len(shards)} of the {total} shards of {stem} {'is' if len(shards) == 1 else 'are'} "
        "there"
        for (stem, total), shards in there.items()
        if len(shards) < total
    ]


def _refuse_mixture(shards: list[Shard]) -> None:
    """Shards of one part must agree. Parts may have classes of their own, if these have names."""
    firsts: dict[str, Shard] = {}
    for shard in shards:
        first = firsts.setdefault(shard.part, shard)
        if (shard.image, shard.label) != (first.image, first.label):
            what = "have other columns"
        elif shard.names != first.names:
            what = "name the classes differently"
        elif shard.text != shards[0].text or bool(shard.names) != bool(shards[0].names):
            first, what = shards[0], "have other labels"
        else:
            continue
        raise KedgeError(
            f"{shard.path}: this file and {first.path} {what}; give the files of one data set."
        )
