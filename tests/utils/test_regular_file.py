"""Only plain files are opened."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kedge.utils.regular_file import open_regular


def test_a_file_and_a_link_to_it_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in {
            tmp_path / "pipe": "pipe",
            tmp_path / "link": "pipe",
            tmp_path / "socket": "socket",
            Path("/dev/zero"): "device",
        }.items():
            with pytest.raises(OSError, match=str(path)) as caught:
                open_regular(path)
            assert kind in caught.value.strerror


@pytest.mark.parametrize(("name", "error"), [("", IsADirectoryError), ("gone", FileNotFoundError)])
def test_other_errors_are_those_of_open(tmp_path: Path, name: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        open_regular(tmp_path / name)
