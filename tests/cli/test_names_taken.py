"""Files that appear under the name of a result while a command runs: they are kept, and no trained
weight is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.made_up import make_lineage

from kedge import api
from kedge.cli import model_output
from kedge.data import pack
from kedge.models.model import Model
from kedge.utils import atomic_io
from kedge.utils.atomic_io import load_tensors

Cli = Any  # of conftest.py
THEIRS = "of another program"


def appearing(path: Path, before: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but first another program writes a file."""

    def changed(*args: Any, **options: Any) -> Any:
        path.write_text(THEIRS)
        return before(*args, **options)

    return changed


@pytest.fixture
def measured(by_command: dict[str, Path]) -> Model:
    """A model whose last round has a picture."""
    model = Model.load(by_command["base"])
    [entry], outcome = model.lineage, make_lineage(1)[0].outcome
    return replace(model, lineage=(replace(entry, outcome=outcome),))


@pytest.mark.parametrize(
    ("when", "name"),
    [
        ("training", "m.kedge"),
        ("training", "m.kedge.memory"),
        ("memory", "m.kedge.memory"),
        ("model", "m.kedge"),
    ],
)
def test_new_model_gets_a_free_name(
    cli: Cli,
    measured: Model,
    first: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    when: str,
) -> None:
    """Whenever the other file has come; the memory and the picture go with the model."""
    taken, out = tmp_path / name, tmp_path / "m.kedge"
    (tmp_path / "m-2.kedge.png").touch()  # not free either
    monkeypatch.setattr(api, "train", lambda *args, **options: measured)
    place, function = {
        "training": (api, "train"),
        "memory": (model_output, "save_tensors"),
        "model": (model_output, "_draw_picture"),
    }[when]
    monkeypatch.setattr(place, function, appearing(taken, getattr(place, function)))
    method = "EIML exemplars=3"
    ended = cli("train", first, "--out", out, "--save-memory", method, "--json")
    new = tmp_path / "m-3.kedge"
    error = ended.err.splitlines()[-1]
    assert (ended.rc, str(out) in error, str(new) in error) == (1, True, True), ended.err
    assert taken.read_text() == THEIRS
    assert Model.load(new).fingerprint == measured.fingerprint
    assert load_tensors(Path(f"{new}.memory"), "")[0]["model"] == measured.fingerprint
    about = json.loads(ended.out)
    assert (about["file"], about["picture"]) == (str(new), f"{new}.png")
    names = {name, "m-2.kedge.png", *(new.name + end for end in ("", ".memory", ".png"))}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_picture_that_appears_is_kept(
    cli: Cli, measured: Model, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        api, "train", appearing(tmp_path / "m.kedge.png", lambda *args, **options: measured)
    )
    ended = cli("train", first, "--out", tmp_path / "m.kedge")
    assert ended.rc == 0
    assert "m.kedge.png: no picture was drawn" in ended.err
    assert (tmp_path / "m.kedge.png").read_text() == THEIRS


def commands(model: Path, data: Path, folder: Path) -> dict[str, tuple[list[Any], Path]]:
    """Commands and the files that they write."""
    csv, onnx, images = (folder / name for name in ("matrix.csv", "m.onnx", "new.images"))
    shape = ["--n-way", "3", "--n-shot", "2", "--n-query", "3", "--n-episodes", "2"]
    return {
        "confusion": (["evaluate", model, data, *shape, "--confusion", csv], csv),
        "export": (["export", model, "--out", onnx], onnx),
        "report": (["report", model], Path(f"{model}.html")),
        "pack": (["data", "pack", data, "--out", images], images),
    }


@pytest.mark.parametrize("name", ["confusion", "export", "report", "pack"])
def test_other_results_leave_it_alone(
    cli: Cli,
    by_command: dict[str, Path],
    first: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The file appears at the last moment."""
    if name == "export":
        pytest.importorskip("onnxscript")
    model = tmp_path / "m.kedge"
    model.write_bytes(by_command["base"].read_bytes())
    command, file = commands(model, first, tmp_path)[name]
    for module, function in ((atomic_io, "move_into_place"), (pack, "_complete")):
        monkeypatch.setattr(module, function, appearing(file, getattr(module, function)))
    assert str(file) in cli(*command).err.splitlines()[-1]
    assert file.read_text() == THEIRS
    monkeypatch.undo()
    file.unlink()
    assert cli(*command).rc == 0
    assert file.read_bytes() != THEIRS.encode()
