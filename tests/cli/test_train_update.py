"""`kedge train` and `kedge update`: checkpoints, memories, locks and temporary files."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kedge.models.model import Model
from kedge.utils import atomic_io
from kedge.utils.atomic_io import exclusive, load_tensors, save_tensors

SHAPE = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]
SHORT = [*SHAPE, "--epochs", "1", "--episodes", "2", "--val-episodes", "4", "--no-picture"]
LONGER = [*SHAPE, "--epochs", "3", "--episodes", "20", "--val-episodes", "40", "--seed", "3"]
LONGER += ["--no-picture"]
Cli = Kedge = Ready = Any  # of conftest.py
Draw = Callable[..., Path]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ── stopped and continued ────────────────────────────────────────────────────────────────────


def test_stopped_training_is_continued_by_the_same_command(
    cli: Cli,
    first: Path,
    by_command: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C after the first epoch. The name of the file is not taken for markup."""
    out = tmp_path / "[v2] base.kedge"
    command = ["train", first, "--out", out, *LONGER, "--width", "4"]
    original = atomic_io.write_atomically

    def write_then_stop(*args: Any) -> None:
        original(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic_io, "write_atomically", write_then_stop)
        stopped = cli(*command)
    assert (stopped.rc, stopped.out) == (130, "")
    assert stopped.err.endswith("continues from the last saved epoch, if there is one.\n")
    assert names(tmp_path) == {"[v2] base.kedge.training"}
    other = cli(*command, "--seed", "4")
    assert other.rc == 1
    assert "[v2] base.kedge.training: this is a stopped run with other options" in other.err
    ended = cli(*command)
    assert ended.rc == 0, ended.err
    assert ended.out.startswith(f"{out}: round 0")
    assert out.read_bytes() == by_command["base"].read_bytes()
    assert names(tmp_path) == {"[v2] base.kedge"}


@pytest.mark.parametrize("command", [["train"], ["update", "base.kedge"]])
def test_file_that_another_process_writes_is_refused(
    cli: Cli, by_command: dict[str, Path], first: Path, tmp_path: Path, command: list[str]
) -> None:
    shutil.copy(by_command["base"], tmp_path)
    with exclusive(tmp_path, ".next.kedge.lock"):
        ended = cli(*command, first, "--out", "next.kedge", *SHORT, cwd=tmp_path)
    assert "next.kedge: another kedge process" in ended.sentence
    assert names(tmp_path) == {"base.kedge"}


LARGE_IMAGES = """
import signal, tempfile, kedge.data.open
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts its background jobs
tempfile.tempdir = {temporary!r}
kedge.data.open.IN_MEMORY_BYTES = 0
"""


@pytest.mark.slow
def test_sigterm_leaves_no_temporary_file(
    ready: Ready, first: Path, tmp_path: Path, signal_when: Callable[..., None]
) -> None:
    """Images larger than memory are packed into a temporary file."""
    temporary, checkpoint = tmp_path / "temporary", tmp_path / "m.kedge.training"
    temporary.mkdir()
    words = ["kedge", "train", str(first), "--out", str(tmp_path / "m.kedge"), "--width", "4"]
    words += [*SHAPE, "--epochs", "1000", "--episodes", "20", "--val-episodes", "4"]
    code = f"import sys, kedge.cli; sys.argv = {words!r}; kedge.cli.main()"
    code = LARGE_IMAGES.format(temporary=str(temporary)) + code
    signal_when(ready.start(code, tmp_path), checkpoint, signal.SIGTERM)
    ended = ready.wait()
    assert ended.rc == 130
    assert ended.err.endswith("continues from the last saved epoch, if there is one.\n")
    assert list(temporary.iterdir()) == []
    assert names(tmp_path) == {"temporary", checkpoint.name}


# ── methods with a memory ────────────────────────────────────────────────────────────────────

METHODS = {"EIML": "eiml exemplars=4", "EWC": "EWC episodes=3"}  # upper or lower case
Chain = tuple[str, Path, dict[str, Any]]


@pytest.fixture(scope="module", params=METHODS)
def chain(
    request: pytest.FixtureRequest,
    cli: Cli,
    draw_classes: Draw,
    tmp_path_factory: pytest.TempPathFactory,
) -> Chain:
    """Trained and updated twice; images are deleted as soon as a command has read them."""
    folder, method = tmp_path_factory.mktemp("chain"), METHODS[request.param]
    ended = {}
    models = ["base.kedge", "next.kedge", "last.kedge"]
    for number, model in enumerate(models):
        images = draw_classes(folder / "images", [f"{model} {i}" for i in range(6)])
        if not number:  # remarks on images are made once, though images are read twice
            shutil.copy(images / "base.kedge 0" / "00.png", images / "stray.png")
            (images / "base.kedge 0" / "broken.png").write_bytes(b"no image")
        how = ["train", "images", "--width", "4", "--save-memory", method]
        if number:
            how = ["update", models[number - 1], "images", "--method", method]
        ended[model] = cli(*how, "--out", model, *SHORT, cwd=folder)
        shutil.rmtree(images)
    return request.param, folder, ended


@pytest.fixture
def base(chain: Chain, tmp_path: Path) -> Path:
    """A folder with a copy of the first model and its memory."""
    for file in ("base.kedge", "base.kedge.memory"):
        shutil.copy(chain[1] / file, tmp_path)
    return tmp_path


def test_updates_use_what_was_saved_of_deleted_images(chain: Chain) -> None:
    name, folder, ended = chain
    assert [each.rc for each in ended.values()] == [0, 0, 0], [each.err for each in ended.values()]
    assert names(folder) == {f"{model}{end}" for model in ended for end in ("", ".memory")}
    lineage = Model.load(folder / "last.kedge").lineage
    assert [entry.method.split()[0] for entry in lineage] == ["base", name, name]
    saved = [load_tensors(folder / f"{model}.memory", "memory")[1] for model in ended]
    if name == "EIML":
        assert [memory["counts"].tolist() for memory in saved] == [[4] * 6, [4] * 12, [4] * 18]
        assert (saved[2]["images"][:24] == saved[0]["images"]).all()
    else:
        assert all((saved[2][key] >= saved[1][key]).all() for key in saved[0])
    for model, each in ended.items():
        assert f"{model}.memory: what {name} " in each.err
        assert "not carried over" not in each.err
    for remark in ("stray.png", "could not be read"):
        assert ended["base.kedge"].err.count(remark) == 1


def test_memory_that_is_not_carried_over_is_told(
    chain: Chain, base: Path, cli: Cli, second: Path
) -> None:
    name, how = chain[0], [second, *SHORT]
    lost = cli("update", "base.kedge", *how, "--out", "lost.kedge", cwd=base)
    assert f"base.kedge.memory: the memory of {name} is not carried over" in lost.err
    assert not (base / "lost.kedge.memory").exists()
    if name == "EIML":  # from now on images of the new classes only
        again = [*how, "--save-memory", name]
        assert cli("update", "lost.kedge", *again, "--out", "part.kedge", cwd=base).rc == 0
        part = cli("update", "part.kedge", *again, "--out", "x.kedge", "--method", name, cwd=base)
        assert "6 of the 12 classes" in part.err


def test_memory_of_another_method_or_model_is_not_used(
    chain: Chain, base: Path, cli: Cli, second: Path
) -> None:
    name, folder, _ = chain
    how = ["update", "base.kedge", second, "--out", "new.kedge", *SHORT, "--method"]
    other = "EWC" if name == "EIML" else "EIML"
    ended = cli(*how, other, cwd=base)
    assert ended.rc == 1
    assert f"kedge: {other} needs " in ended.err
    shutil.copy(folder / "next.kedge", base / "base.kedge")
    ended = cli(*how, name, cwd=base)
    assert ended.rc == 1
    assert "base.kedge.memory: was saved with another model than base.kedge" in ended.err
    assert f"kedge: {name} needs " in ended.err
    (base / "base.kedge.memory").write_bytes(b"damaged")
    assert "base.kedge.memory: " in cli(*how, name, cwd=base).sentence
    assert names(base) == {"base.kedge", "base.kedge.memory"}


def test_forged_memory_is_refused_before_training(
    chain: Chain, base: Path, cli: Cli, second: Path
) -> None:
    """Also if the update itself does not need it, and it would only be saved again."""
    name = chain[0]
    about, saved = load_tensors(base / "base.kedge.memory", "memory")
    forged = {key: torch.zeros(1, dtype=value.dtype) for key, value in saved.items()}
    save_tensors(base / "base.kedge.memory", forged, about)
    how = ["update", "base.kedge", second, "--out", "new.kedge", *SHORT]
    assert cli(*how, "--save-memory", name, cwd=base).sentence.startswith(f"{name}: ")
    save_tensors(base / "base.kedge.memory", forged, {**about, "method": ""})
    ended = cli(*how, "--method", name, cwd=base)
    assert ended.rc == 1
    assert f"kedge: {name} needs " in ended.err
    assert names(base) == {"base.kedge", "base.kedge.memory"}


# ── one life of a model, by the installed command ────────────────────────────────────────────


@pytest.mark.slow
def test_life_of_a_model(
    kedge: Kedge, by_command: dict[str, Path], first: Path, second: Path, tmp_path: Path
) -> None:
    """Real processes write the same bits as the command in the process of the tests."""
    packed = kedge("data", "pack", first, "--out", "first.images", cwd=tmp_path)
    assert packed.out.startswith("first.images: 72 images of 6 classes, 1×16×16")
    steps = [
        ["train", first, "--out", "base.kedge", "--width", "4", *LONGER],
        ["update", "base.kedge", second, "--out", "next.kedge", *LONGER],
        ["evaluate", "next.kedge", "first.images", "--known"],
        ["predict", "next.kedge", second / "second 0", "--format", "csv"],
        ["show", "next.kedge"],
    ]
    for step in steps:
        ended = kedge(*step, cwd=tmp_path)
        assert ended.rc == 0, ended.err
    for name in ("base", "next"):
        assert (tmp_path / f"{name}.kedge").read_bytes() == by_command[name].read_bytes()
