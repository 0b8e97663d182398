"""Pictures of a folder taught to a project, as a first start or later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from kedge.data.readers import read_index
from kedge.errors import KedgeError, require
from kedge.serve.limits import Client
from kedge.serve.service import Service
from kedge.serve.uploads import Upload
from kedge.utils import progress
from kedge.utils.regular_file import open_regular
from kedge.utils.text import pluralize

TOGETHER = 200  # pictures


def import_pictures(service: Service, source: str) -> None:
    """Teach all pictures of a folder of class folders. May be repeated: pictures that are there
    already are left out."""
    require(os.path.isdir(source), f"{source}: give a folder with one sub-folder per class.")
    files = files_by_class(source)
    by_name = {each.name: each for each in service.project.classes.all()}
    total = sum(map(len, files.values()))
    added, refused = 0, list[str]()
    with progress.display(), progress.task("reading pictures", total) as tick:
        for name, paths in files.items():
            row = by_name.get(name)
            class_id = service.teaching.make_class("improve", name) if row is None else row.id
            for start in range(0, len(paths), TOGETHER):
                part = paths[start : start + TOGETHER]
                said = asyncio.run(_teach(service, class_id, part))
                added += len(said["added"])
                refused += [f"{each['name']} ({each['reason']})" for each in said["refused"]]
                tick(len(part))
        progress.note(f"{source}: {pluralize(added, 'picture')} added")
        if refused:
            what = pluralize(len(refused), "picture was", "pictures were")
            progress.note(f"{source}: {what} refused, the first is {refused[0]}")


def files_by_class(source: str) -> dict[str, list[Path]]:
    """The image files of each class."""
    index = read_index(source)
    files: dict[str, list[Path]] = {name: [] for name in index.classes}
    for number, raw in enumerate(index.images.fetch(range(len(index)))):
        if not isinstance(raw, Path):
            raise KedgeError(f"{source}: give a folder with one sub-folder of pictures per class.")
        files[index.classes[int(index.labels[number])]].append(raw)
    return files


async def _teach(service: Service, class_id: int, paths: Sequence[Path]) -> dict[str, list]:
    async def uploads() -> AsyncGenerator[Upload, None]:
        for path in paths:
            with open_regular(path) as file:
                content = file.read(service.limits.picture_bytes + 1)
            if len(content) > service.limits.picture_bytes:
                yield Upload(path.name, refused="larger than a picture may be")
                continue
            held.set(held.n + len(content))
            yield Upload(path.name, content)

    with service.budget.holding(Client("improve", "import")) as held:
        return await service.teach(uploads(), held, "improve", class_id)
