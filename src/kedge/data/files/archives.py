"""Members of an archive, read in place: nothing is ever unpacked to disk.

An archive's headers are not trusted: sizes and counts are bounded before memory or time is spent,
and so are the bytes that come out of a decompressor. Python and its decompressors read archives in
this process, since what they take is bounded by construction.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kedge.data.damage import damage_as_error
from kedge.data.decode import RawImage
from kedge.data.files.file_tree import LARGEST_FILE, FileTree, is_hidden, stamp_of
from kedge.data.remarks import lost
from kedge.errors import KedgeError
from kedge.utils.regular_file import check_regular
from kedge.utils.text import display_name, skipped_remark

LARGEST_GROWTH = 200  # a file that unpacks to more than this many times its size is a bomb
SMALL_FILE = 1 << 18  # bytes; smaller ones may grow as these do
LONGEST_PATH = 4096  # characters; no file system has longer ones
DRIVE = re.compile("[A-Za-z]:/")


class DamagedMember(Exception):
    """One member is damaged or too large, and the others may be whole."""


class Archive(FileTree):
    """The members of an archive; `names` are in the order of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with damage_as_error(path):
            check_regular(path)
            info = os.stat(path)
            self._bytes, self._stamp = info.st_size, stamp_of(info)
            self._open()

    @abstractmethod
    def _open(self) -> None:
        """List the members; may raise any exception if the file is damaged."""

    @abstractmethod
    def _content(self, name: str) -> bytes:
        """The bytes of a member. Raises DamagedMember if the others may be whole, or any exception
        if the archive is damaged."""

    def read_bytes(self, name: str) -> bytes:
        with damage_as_error(f"{self.path}: {display_name(name)} in it"):
            return self._content(name)

    def image(self, name: str) -> RawImage:
        with damage_as_error(f"{self.path}: {display_name(name)} in it"):
            try:
                return self._content(name)
            except DamagedMember:
                return b""

    def local_path(self, name: str) -> Path:
        raise KedgeError(f"{self.path}: {name} cannot be read within an archive; unpack it first.")

    def stamp(self, name: str) -> str:
        return self._stamp

    def _safe_members(self, members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """The members that are not hidden and stay below the archive's root, by normalized name."""
        kept: dict[str, Any] = {}
        outside, repeated, too_long = [], [], []
        for name, member in members:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise KedgeError(
                    f"{self.path}: the name {name!a:.100} in it is not UTF-8."
                ) from None
            if len(name) > LONGEST_PATH:
                too_long.append(name)
                continue
            parts = [part for part in name.split("/") if part not in ("", ".")]
            if ".." in parts or "\\" in name or name.startswith("/") or DRIVE.match(name):
                outside.append(name)
            elif parts and not any(map(is_hidden, parts)):
                normalized = "/".join(parts)
                if kept.pop(normalized, None) is not None:
                    repeated.append(normalized)
                kept[normalized] = member
        self.remarks += lost(too_long, "member", "its name is too long")
        self.remarks += lost(outside, "member", "its name leads out of the archive")
        self.remarks += skipped_remark(repeated, "member", "a later one has the same name")
        return kept

    def _refuse_bomb(self, total: int) -> None:
        if total > LARGEST_GROWTH * max(self._bytes, SMALL_FILE):
            raise KedgeError(f"{self.path}: not unpacked, it claims to hold {total} bytes or more.")

    def _refuse_large(self, size: int, packed_size: int) -> None:
        if size > min(LARGEST_FILE, LARGEST_GROWTH * max(packed_size, SMALL_FILE)):
            raise DamagedMember(f"it is too large ({size} bytes)")
