"""Files that survive: a write happens wholly or not at all, and failures are one sentence."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kedge.errors import KedgeError
from kedge.utils.atomic_io import (
    digest,
    load_tensors,
    only_one_process,
    save_tensors,
    write_atomically,
)

BIG = {"numbers": torch.arange(500_000)}  # 4 MB


def write_text(text: str) -> Callable[[Path], object]:
    return lambda part: part.write_text(text)


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """Writing beyond this fails in the middle of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "note"
    write_atomically(path, write_text("one"))
    write_atomically(path, write_text("two"))
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["note"]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ValueError, KeyboardInterrupt])
def test_failure_in_the_middle_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException] | BaseException
) -> None:
    path = tmp_path / "note"
    path.write_text("old")

    def fail(part: Path) -> None:
        part.write_text("ne")
        raise error

    expected = KedgeError if isinstance(error, OSError) else error
    with pytest.raises(expected):  # type: ignore[arg-type]
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("old")

    def look(part: Path) -> None:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.parent == path.parent  # a rename across disks would be a copy

    write_atomically(path, look)
    assert path.read_text() == "new"


def test_full_disk_is_a_sentence_and_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers.safetensors"
    save_tensors(path, {"few": torch.arange(3)}, {})
    with files_of_at_most(1_000_000), pytest.raises(KedgeError, match="could not be written"):
        save_tensors(path, BIG, {})
    assert load_tensors(path, "file")[1]["few"].tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


NARROW = """
import subprocess, sys
from pathlib import Path
import torch
from kedge.utils.atomic_io import load_tensors, only_one_process, save_tensors
from kedge.errors import KedgeError

place = Path(sys.argv[1])
file = place / "numbers"

def tried(n):
    try:
        save_tensors(file, {"numbers": torch.arange(n)}, {})
    except KedgeError as error:
        print(error)
    print(len(load_tensors(file, "file")[1]["numbers"]), [path.name for path in place.iterdir()])

tried(3)
tried(500_000)
subprocess.run(["mount", "-o", "remount,ro", place], check=True)
tried(4)
try:
    with only_one_process(place / "run"):
        pass
except KedgeError as error:
    print(error)
"""


def test_disk_that_is_full_and_then_read_only(tmp_path: Path) -> None:
    """A real one, of 200 kB, which nobody else sees."""
    mount = 'mount -t tmpfs -o size=200k tmpfs "$0" && exec "$@"'
    alone = ["unshare", "-rm", "sh", "-c"]
    try:
        subprocess.run([*alone, mount, tmp_path, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    command = [*alone, mount, tmp_path, sys.executable, "-c", NARROW, tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    there = "3 ['numbers']"
    first, full, second, read_only, third, locked = ended.stdout.splitlines()
    assert (first, second, third) == (there, there, there)
    for sentence, why in ((full, "No space left"), (read_only, "Read-only file system")):
        assert sentence.startswith(f"{tmp_path / 'numbers'}: could not be written (")
        assert why in sentence
        assert sentence.endswith(
            "what was there before is unchanged. When that is mended, give the command again."
        )
    assert locked == f"{tmp_path / 'run'}: cannot write here (Read-only file system)."


def test_file_and_folders_are_flushed_in_the_order_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_half_a_file_of_a_process_that_was_killed_is_removed(tmp_path: Path) -> None:
    """Also while its parent has not asked how it ended. One that is being written stays."""
    path, alive = tmp_path / "file", tmp_path / f".file.{os.getppid()}.part"
    with subprocess.Popen(["sleep", "60"]) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for part in (alive, tmp_path / f".file.{process.pid}.part"):
            part.write_text("half")
        write_atomically(path, write_text("new"))
    assert set(tmp_path.iterdir()) == {path, alive}


KILLED_IN_THE_MIDDLE = """
import resource, signal, sys
from pathlib import Path
import torch
from kedge.utils.atomic_io import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
save_tensors(Path(sys.argv[1]), {"numbers": torch.arange(500_000)}, {})
"""


def test_killed_in_the_middle_of_a_file_nothing_is_left_of_it(tmp_path: Path) -> None:
    """The system kills the process at the first byte beyond 1 MiB."""
    path = tmp_path / "file"
    save_tensors(path, {"a": torch.ones(2)}, {})
    before = path.read_bytes()
    ended = subprocess.run([sys.executable, "-c", KILLED_IN_THE_MIDDLE, path], check=False)
    assert ended.returncode == -signal.SIGXFSZ
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2, "half a file lies beside it"
    save_tensors(path, BIG, {})
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["file/below", "file/below/that", "n" * 300])
def test_impossible_place_is_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(KedgeError, match="could not be written"):
        write_atomically(tmp_path / name, write_text("new"))
    assert (tmp_path / "file").read_text() == "old"


def test_tensors_come_back_with_names_and_bits(tmp_path: Path) -> None:
    tensors = {
        "b": torch.tensor([float("nan"), -0.0, 1e-45]),
        "a.c": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }
    about = {"text": "größe 猫", "list": [1, None, 0.1]}
    save_tensors(tmp_path / "file", tensors, about)
    read_about, read = load_tensors(tmp_path / "file", "file")
    assert read_about == about
    assert digest(read) == digest(tensors)
    assert torch.equal(read["a.c"], tensors["a.c"])


def flipped(path: Path, place: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)


@pytest.mark.parametrize(
    "about", [{}, {"method": "EIML", "model": "0"}, {"identity": "{}", "lr": 1}]
)
def test_every_flipped_bit_is_noticed(tmp_path: Path, about: dict[str, object]) -> None:
    """In whatever is kept so: memories, states of stopped commands, accuracies."""
    path = tmp_path / "file"
    save_tensors(path, {"images": torch.arange(40, dtype=torch.uint8), "x": torch.ones(3)}, about)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content)
        flipped(path, place, 1 << (place % 8))
        with pytest.raises(KedgeError, match=r"damaged|that kedge wrote"):
            load_tensors(path, "file")


def test_damage_comes_with_advice(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {"x": torch.ones(3)}, {})
    flipped(tmp_path / "file", -1)
    with pytest.raises(
        KedgeError, match=r"file: the checksum does not match; the file is damaged;"
    ):
        load_tensors(tmp_path / "file", "state", "; delete it to start again")


@pytest.mark.parametrize("name", ["format-1.kedge.memory", "format-1.training"])
def test_files_of_the_first_version_are_read(name: str) -> None:
    about, tensors = load_tensors(Path(__file__).parent / "data" / name, "file")
    if name.endswith(".memory"):
        assert about["method"] == "EIML exemplars=3"
        assert (tensors["images"].shape, tensors["counts"].tolist()) == ((24, 1, 16, 16), [3] * 8)
    else:
        assert about["best_epoch"] == 1
        assert "now.embedding.backbone.blocks.0.weight" in tensors


def test_file_of_a_newer_version_is_told_from_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    with monkeypatch.context() as patch:
        patch.setattr("kedge.utils.atomic_io.VERSION", 3)
        save_tensors(path, {"x": torch.ones(3)}, {"more": 1})
    with pytest.raises(KedgeError, match=r"this memory was written by a newer kedge \(version 3"):
        load_tensors(path, "memory")
    flipped(path, -1)
    with pytest.raises(KedgeError, match="the checksum does not match"):
        load_tensors(path, "memory")


def test_text_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(path, {"x": torch.ones(3)}, {"n": 1})
    with pytest.raises(KedgeError, match=r"could not be written \(its header has"):
        save_tensors(path, {"x": torch.ones(3)}, {"names": ["n" * 1000] * 10_000})
    assert load_tensors(path, "file")[0] == {"n": 1}


def test_name_that_is_no_text_does_not_cost_the_model(tmp_path: Path) -> None:
    """Such as that of the folder where images came from."""
    save_tensors(tmp_path / "file", {"x": torch.ones(3)}, {"source": "pictures \udcff"})
    assert load_tensors(tmp_path / "file", "file")[0] == {"source": "pictures ?"}


def test_a_folder_in_the_place_of_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(KedgeError) as caught:
        load_tensors(tmp_path, "kedge model")
    assert str(caught.value) == f"{tmp_path}: this is a folder and not a kedge model."


def test_a_file_below_a_file_is_not_there(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {}, {})
    with pytest.raises(KedgeError, match=r"file/x: there is no kedge model here\."):
        load_tensors(tmp_path / "file" / "x", "kedge model")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {}, {})
    (tmp_path / "file").chmod(0)
    with pytest.raises(KedgeError, match=r"file: you have no permission to read this file"):
        load_tensors(tmp_path / "file", "kedge model")


def test_digest_sees_names_types_shapes_and_bits() -> None:
    variants = [
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0])},
    ]
    assert len({digest(tensors) for tensors in variants}) == len(variants)


def test_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    save_tensors(tmp_path / "one", {"a": torch.ones(2), "b": torch.zeros(3)}, {"x": 1})
    save_tensors(tmp_path / "two", {"b": torch.zeros(3), "a": torch.ones(2)}, {"x": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    """A model is handed on: its file has the rights that any new file gets."""
    (tmp_path / "plain").touch()
    save_tensors(tmp_path / "model", {"a": torch.ones(2)}, {})
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_lock_is_given_back(tmp_path: Path) -> None:
    with only_one_process(tmp_path / "run"):
        pass
    with pytest.raises(ZeroDivisionError), only_one_process(tmp_path / "run"):
        raise ZeroDivisionError
    with only_one_process(tmp_path / "run"):
        pass


def test_second_user_is_told(tmp_path: Path) -> None:
    with (
        only_one_process(tmp_path / "run"),
        pytest.raises(KedgeError, match="another kedge process is working here"),
        only_one_process(tmp_path / "run"),
    ):
        pass


def test_lock_in_an_impossible_place_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "run"
    with pytest.raises(KedgeError, match="cannot write here"), only_one_process(place):
        pass
