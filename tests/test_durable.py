"""Files that survive: a write happens wholly or not at all, and failures are one sentence."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kedge.durable import digest, load_tensors, only_one_process, save_tensors, write_atomically
from kedge.errors import KedgeError

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
