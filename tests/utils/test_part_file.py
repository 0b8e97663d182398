"""Temporary files in folders that other hosts and other users share; renaming that keeps a file."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from kedge.errors import KedgeError, NameTakenError
from kedge.utils import part_file
from kedge.utils.atomic_io import write_atomically, write_on_this_rank, write_text_atomically

DAY = 24 * 3600


def part_name(path: Path) -> str:
    """That of the part file while `path` is written."""
    names = []
    write_atomically(path, lambda file: names.extend(os.listdir(path.parent)))
    return next(name for name in names if name.endswith(".part"))


def test_stale_part_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a process of this host that has ended, also while its parent has not asked how; and
    those of other hosts and of earlier versions if they are old."""
    path = tmp_path / "file.name"
    own = part_name(path)
    with monkeypatch.context() as patch:
        patch.setattr(part_file, "host_digits", lambda: "0123abcd")
        other = part_name(path)
    with subprocess.Popen(["sleep", "60"]) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        dead = str(process.pid)

        def named(name: str, process_id: str) -> Path:
            return tmp_path / re.sub(rf"\b{os.getpid()}\b", process_id, name)

        earlier = tmp_path / f".file.name.{dead}.part"
        fresh = {named(own, str(os.getppid())), named(other, dead), earlier}
        foreign = {tmp_path / ".file.name.draft.part", tmp_path / ".file.name.a-b.part"}
        for part in {named(own, dead)} | fresh | foreign:
            part.write_text("half")
        write_text_atomically(path, "new")
        assert set(tmp_path.iterdir()) == {path} | fresh | foreign
        for part in fresh | foreign:
            os.utime(part, (time.time() - 2 * DAY,) * 2)
        write_text_atomically(path, "new")
    assert set(tmp_path.iterdir()) == {path, named(own, str(os.getppid()))} | foreign


def test_hosts_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many are called localhost; what differs is the system that runs."""
    digits = set()
    for boot in ("one", "two"):
        (tmp_path / boot).write_text(boot)
        monkeypatch.setattr(part_file, "BOOT_ID", tmp_path / boot)
        digits.add(part_file.host_digits.__wrapped__())
    assert len(digits) == 2


def test_part_file_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user cannot guess its name, and if they could, what they point at is not written."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    assert part_name(path) != part_name(path)
    victim.write_text("old")
    monkeypatch.setattr(part_file.secrets, "token_hex", lambda n: "guessed")
    guessed = tmp_path / part_name(path)
    for target in (victim, tmp_path / "missing"):
        guessed.symlink_to(target)
        with pytest.raises(KedgeError, match="could not be written"):
            write_text_atomically(path, "new")
        assert victim.read_text() == "old"
        assert not (tmp_path / "missing").exists()
        guessed.unlink()


def test_long_names_have_part_files(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_text_atomically(path, "text")
    assert path.read_text() == "text"


# ── without replacing ────────────────────────────────────────────────────────────────────────


def no_system_call(part: Path, path: Path) -> bool:
    return False


def no_link(*args: Any, **options: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.fixture(params=["system call", "link", "neither"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that can do more or less."""
    if request.param != "system call":
        monkeypatch.setattr(part_file, "_rename_exclusively", no_system_call)
    if request.param == "neither":
        monkeypatch.setattr(os, "link", no_link)


@pytest.mark.usefixtures("way")
def test_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"

    def write(file: BinaryIO) -> None:
        file.write(b"ours")
        path.write_text("theirs")

    with pytest.raises(NameTakenError, match=re.escape(str(path))):
        write_atomically(path, write, replace=False)
    link.symlink_to("nowhere")
    with pytest.raises(NameTakenError):
        write_text_atomically(link, "ours", replace=False)
    assert path.read_text() == "theirs"
    assert os.readlink(link) == "nowhere"
    assert set(tmp_path.iterdir()) == {path, link}


@pytest.mark.usefixtures("way")
def test_one_of_many_writers_gets_the_name(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(number: int) -> bool:
        try:
            write_on_this_rank(path, lambda file: file.write(b"%d" % number), replace=False)
        except NameTakenError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, did in enumerate(pool.map(write, range(40))) if did]
    assert [path.read_text()] == [str(number) for number in won]
    assert list(tmp_path.iterdir()) == [path]


def test_own_kind_of_file_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("of another program")

    def is_ours(path: Path) -> bool:
        return path.read_text() == "ours"

    with pytest.raises(NameTakenError):
        write_text_atomically(path, "new", is_ours)
    path.write_text("ours")
    write_text_atomically(path, "new", is_ours)
    assert path.read_text() == "new"
