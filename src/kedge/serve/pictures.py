"""The pictures of a project: files under their SHA-256, and their rows.

A picture's file is on disk before its row is committed, and is deleted after its row. So a file
without a row is what a kill left behind, and is deleted when the project is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kedge.errors import KedgeError
from kedge.serve.database import Database, Row, now
from kedge.serve.limits import Refused
from kedge.utils.atomic_io import fsync_folder, write_on_this_rank
from kedge.utils.part_file import without_links

SHA256 = re.compile(r"[0-9a-f]{64}")
OURS = re.compile(r"\.?([0-9a-f]{64})(\.jpg)?(\..*\.part)?")  # names of files, also unfinished ones
MOST_VALUES = 500  # in one SQL statement


@dataclass(frozen=True)
class NewPicture:
    """A picture that has been decoded and embedded."""

    sha256: str
    name: str
    content: bytes
    thumbnail: bytes
    width: int
    height: int
    features: np.ndarray  # float32


class Pictures:
    def __init__(self, folder: Path, database: Database) -> None:
        self.database = database
        self.originals, self.thumbnails = folder / "pictures", folder / "thumbnails"

    def path(self, sha256: str) -> Path:
        return self.originals / sha256[:2] / sha256

    def thumbnail_path(self, sha256: str) -> Path:
        return self.thumbnails / sha256[:2] / f"{sha256}.jpg"

    def add(self, class_id: int, pictures: Sequence[NewPicture], version: int) -> list[int]:
        """Store pictures; when this returns they are on disk. Returns their ids."""
        try:
            for each in pictures:
                _write(self.path(each.sha256), each.content)
                _write(self.thumbnail_path(each.sha256), each.thumbnail)
            return self._add_rows(class_id, pictures, version)
        except BaseException:  # the disk is full, say
            self.delete_files([each.sha256 for each in pictures])
            raise

    def _add_rows(self, class_id: int, pictures: Sequence[NewPicture], version: int) -> list[int]:
        ids = []
        with self.database.transaction():
            for each in pictures:
                size = len(each.content) + len(each.thumbnail)
                ids.append(
                    self.database.change(
                        "INSERT INTO pictures (sha256, class, name, bytes, width, height, uploaded)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (*(each.sha256, class_id, each.name, size, each.width, each.height), now()),
                    )
                )
            features = [each.features for each in pictures]
            self.add_features(version, ids, features)
        return ids

    def class_of(self, sha256: str) -> tuple[int, str] | None:
        """The class that a picture is in, as id and name; None if it is not stored."""
        row = self.database.row(
            "SELECT classes.id, classes.name FROM pictures JOIN classes ON classes.id = class "
            "WHERE sha256 = ?",
            (sha256,),
        )
        return None if row is None else (row["id"], row["name"])

    def delete_files(self, sha256s: Iterable[str]) -> None:
        """Delete the files of pictures whose rows are gone."""
        for sha256 in sha256s:
            for path in (self.path(sha256), self.thumbnail_path(sha256)):
                with suppress(FileNotFoundError):
                    path.unlink()
                    fsync_folder(path.parent)

    def _select(self, sql: str, ids: Sequence[int]) -> Iterator[Row]:
        for start in range(0, len(ids), MOST_VALUES):
            part = ids[start : start + MOST_VALUES]
            yield from self.database.rows(f"{sql} ({','.join('?' * len(part))})", part)

    def rows_of(self, ids: Sequence[int]) -> list[Row]:
        """id, sha256 and class of these pictures."""
        return [*self._select("SELECT id, sha256, class FROM pictures WHERE id IN", ids)]

    def add_features(
        self, version: int, ids: Sequence[int], features: Sequence[np.ndarray]
    ) -> None:
        """Keep features under a version; pictures that have been deleted meanwhile are left out."""
        self.database.change_many(
            "INSERT OR REPLACE INTO features SELECT ?, ?, ? WHERE EXISTS "
            "(SELECT 1 FROM pictures WHERE id = ?)",
            [
                (id, version, vector.astype("<f4").tobytes(), id)
                for id, vector in zip(ids, features, strict=True)
            ],
        )

    def without_features(self, version: int, ids: Sequence[int]) -> list[Row]:
        """Rows of those pictures that have no features under a version."""
        have = {
            row[0]
            for row in self.database.rows(
                "SELECT picture FROM features WHERE version = ?", (version,)
            )
        }
        return self.rows_of([id for id in ids if id not in have])

    def bytes_used(self) -> int:
        return int(self.database.value("SELECT COALESCE(SUM(bytes), 0) FROM pictures"))

    def any_files(self) -> bool:
        return any(path.is_file() for path in self.originals.rglob("*"))

    def thumbnail(self, sha256: str) -> bytes | None:
        """A JPEG; None if there is none, or a link in its place."""
        try:
            with open(self.thumbnail_path(sha256), "rb", opener=without_links) as file:
                return file.read()
        except OSError:
            return None

    def remove_orphans(self) -> int:
        """Delete files of ours that no row names; returns how many there were. Files that somebody
        else has put there are left alone."""
        known = {row[0] for row in self.database.rows("SELECT sha256 FROM pictures")}
        n = 0
        for top in (self.originals, self.thumbnails):
            for folder, _, names in os.walk(top):
                for name in names:
                    ours = OURS.fullmatch(name)
                    if ours is not None and (ours[3] or ours[1] not in known):
                        Path(folder, name).unlink()
                        n += 1
        return n


def _write(path: Path, content: bytes) -> None:
    try:
        write_on_this_rank(path, lambda file: file.write(content))
    except KedgeError as error:
        reason = getattr(error.__cause__, "strerror", None) or "its file cannot be written"
        raise Refused(507, f"A picture could not be stored ({reason}).") from error
