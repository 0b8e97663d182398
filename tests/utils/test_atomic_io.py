"""Atomic files: a write happens completely or not at all, and damage is noticed."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from kedge.errors import KedgeError
from kedge.utils.atomic_io import (
    exclusive,
    file_lock,
    load_tensors,
    save_tensors,
    tensors_digest,
    write_atomically,
    write_text_atomically,
)


def test_new_file_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "note"
    write_text_atomically(path, "one")
    write_text_atomically(path, "two")
    assert path.read_text() == "two"
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode, "the usual permissions"
    assert [p.name for p in path.parent.iterdir()] == ["note"]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ValueError, KeyboardInterrupt])
def test_failed_write_leaves_the_old_file(
    tmp_path: Path, error: type[BaseException] | BaseException
) -> None:
    path = tmp_path / "note"
    path.write_text("old")

    def fail(file: BinaryIO) -> None:
        file.write(b"ne")
        raise error

    expected = KedgeError if isinstance(error, OSError) else error
    with pytest.raises(expected):  # type: ignore[arg-type]
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """Writing beyond a limit fails in the middle of the file, as on a full disk."""
    path, (soft, hard) = tmp_path / "numbers", resource.getrlimit(resource.RLIMIT_FSIZE)
    save_tensors(path, {"few": torch.arange(3)}, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(KedgeError, match="could not be written"):
            save_tensors(path, {"numbers": torch.arange(500_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_tensors(path, "file")[1]["few"].tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_contents_are_flushed_before_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before the name, and the name of each new folder too."""
    seen, fsync, replace = [], os.fsync, os.replace

    def flush(number: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def rename(part: Path, path: Path) -> None:
        seen.append(path)
        replace(part, path)

    if not Path("/proc/self/fd").exists():
        pytest.skip("only Linux says which file is flushed")
    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", rename)
    folder = tmp_path / "new" / "folder"
    save_tensors(folder / "file", {"a": torch.ones(2)}, {})
    *folders, part, file, after = seen
    assert folders == [tmp_path, tmp_path / "new"]
    assert part.name.endswith(".part")
    assert [part.parent, file, after] == [folder, folder / "file", folder]


def test_impossible_path_and_header_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for name in ("file/below", "n" * 300):
        with pytest.raises(KedgeError, match="could not be written"):
            write_text_atomically(tmp_path / name, "new")
    with pytest.raises(KedgeError, match=r"could not be written \(its header has"):
        save_tensors(tmp_path / "file", {"x": torch.ones(3)}, {"names": ["n" * 1000] * 10_000})
    assert (tmp_path / "file").read_text() == "old"


def test_tensors_come_back_with_names_and_bits(tmp_path: Path) -> None:
    tensors = {
        "b": torch.tensor([float("nan"), -0.0, 1e-45]),
        "a.c": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }
    about = {"text": "größe 猫", "list": [1, None, 0.1]}
    save_tensors(tmp_path / "file", tensors, about | {"undecodable": "\udcff"})
    read_about, read = load_tensors(tmp_path / "file", "file")
    assert read_about == about | {"undecodable": "?"}
    assert tensors_digest(read) == tensors_digest(tensors)
    assert torch.equal(read["a.c"], tensors["a.c"])


def flipped(path: Path, place: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(
        path, {"images": torch.arange(40, dtype=torch.uint8), "x": torch.ones(3)}, {"lr": 1}
    )
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content)
        flipped(path, place, 1 << (place % 8))
        with pytest.raises(KedgeError, match=r"damaged|that kedge wrote"):
            load_tensors(path, "file")


def test_error_messages_contain_the_advice(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {"x": torch.ones(3)}, {})
    flipped(tmp_path / "file", -1)
    for path in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / "gone"):
        with pytest.raises(KedgeError, match=f"{path}: .*; delete it"):
            load_tensors(path, "checkpoint", "; delete it")
    with pytest.raises(KedgeError, match="directory"):
        load_tensors(tmp_path, "checkpoint")


@pytest.mark.parametrize("name", ["format-1.kedge.memory", "format-1.training"])
def test_files_of_the_first_version_are_read(name: str) -> None:
    about, tensors = load_tensors(Path(__file__).parents[1] / "golden" / name, "file")
    if name.endswith(".memory"):
        assert about["method"] == "EIML exemplars=3"
        assert (tensors["images"].shape, tensors["counts"].tolist()) == ((24, 1, 16, 16), [3] * 8)
    else:
        assert about["best_epoch"] == 1
        assert "now.embedding.backbone.blocks.0.weight" in tensors


def test_newer_version_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    with monkeypatch.context() as patch:
        patch.setattr("kedge.utils.atomic_io.VERSION", 3)
        save_tensors(path, {"x": torch.ones(3)}, {"more": 1})
    with pytest.raises(KedgeError, match="newer kedge"):
        load_tensors(path, "memory")
    flipped(path, -1)
    with pytest.raises(KedgeError, match="the checksum does not match"):
        load_tensors(path, "memory")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {}, {})
    (tmp_path / "file").chmod(0)
    with pytest.raises(KedgeError, match=r"file: .*Permission"):
        load_tensors(tmp_path / "file", "kedge model")


def test_digest_sees_names_types_shapes_and_bits() -> None:
    variants = [
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0])},
    ]
    assert len({tensors_digest(tensors) for tensors in variants}) == len(variants)


def test_lock_excludes_a_second_user_and_is_released(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "run"):
        raise ZeroDivisionError
    with (
        exclusive(tmp_path / "run"),
        pytest.raises(KedgeError, match="run: another kedge process"),
        exclusive(tmp_path / "run"),
    ):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(KedgeError, match="cannot write here"), exclusive(tmp_path / "file" / "run"):
        pass


def test_error_names_the_holder_of_a_lock(tmp_path: Path) -> None:
    """Its process and its host, since several hosts may share the folder."""
    holder = f"{os.getpid()} on {socket.gethostname()}"
    for _ in range(2):  # who is refused leaves the name of the holder
        with exclusive(tmp_path), pytest.raises(KedgeError, match=holder), exclusive(tmp_path):
            pass


@pytest.mark.slow
def test_lock_excludes_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the lock then; filelock breaks one after 2 seconds whose words are not its own.
    Its process may run on another host, so that none here has its id."""

    def no_flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    lock = tmp_path / ".lock"
    with warnings.catch_warnings(action="ignore"), exclusive(tmp_path):
        for holder in (f"{os.getpid()}\n{socket.gethostname()}", f"{2**22 + 1}\nanother.host"):
            words = rf"process {holder.replace(chr(10), ' on ')}"
            with pytest.raises(KedgeError, match=words), file_lock(tmp_path, ".lock", 3.0):
                pass
            lock.write_text("".join(f"{line}\n" for line in (2**22 + 1, "another.host")))


@pytest.mark.parametrize("target", ["old", "missing"])
def test_lock_is_no_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / ".lock").symlink_to(tmp_path / target)
    with pytest.raises(KedgeError), exclusive(tmp_path):
        pass
    assert (tmp_path / "old").read_text() == "old"
    assert not (tmp_path / "missing").exists()


def test_second_user_waits_for_the_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with file_lock(tmp_path, "lock"):
            waiting = pool.submit(file_lock(tmp_path, "lock", -1.0).__enter__)
            time.sleep(0.2)
            assert not waiting.done()
        waiting.result(timeout=10)
