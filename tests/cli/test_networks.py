"""Commands with networks and weights from outside: timm's, EfficientNet-lite0, a user's own."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.timm_import import needs_timm, save_random_weights
from torch import nn

from kedge.models.model import Model

SHAPE = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]
SHORT = [*SHAPE, "--epochs", "1", "--episodes", "2", "--val-episodes", "2"]
OWN = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
"""
Cli = Any  # of conftest.py


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def live(cli: Cli, folder: Path, first: Path, second: Path, options: list[Any]) -> dict[str, Any]:
    """A model's life by the commands alone: train, update, predict, evaluate, show, export."""
    base, later = folder / "base.kedge", folder / "later.kedge"
    again = options[:2] if options[1].startswith("own_net") else []  # --backbone module:function
    ended = cli("train", first, "--out", base, *options, *SHORT)
    assert ended.rc == 0, ended.err
    for weights in folder.glob("weights*"):
        weights.unlink()  # no other command needs them
    commands: dict[str, list[Any]] = {
        "update": [base, second, "--out", later, *SHORT],
        "predict": [later, second / "second 0" / "00.png", "--format", "json"],
        "evaluate": [later, first, *SHAPE, "--n-episodes", "5"],
        "export": [later, "--out", folder / "later.onnx", "--include-known"],
    }
    for name, arguments in commands.items():
        ended = cli(name, *arguments, *again)
        assert ended.rc == 0, ended.err
        if name == "predict":
            assert json.loads(ended.out)["class"].split()[0] in ("first", "second")
    assert cli("show", later).rc == 0
    assert cli("report", later).rc == 0, "its page needs no code either"
    shown = cli("show", later, "--json")
    assert shown.rc == 0, shown.err
    about: dict[str, Any] = json.loads(shown.out)
    assert len(about["classes"]) == 12
    assert len(about["lineage"]) == 2
    return about


@needs_timm
@pytest.mark.slow
def test_life_of_a_vit_of_timm(
    cli: Cli, first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.safetensors"
    save_random_weights("vit_tiny_patch16_224", weights)
    options = ["--backbone", "timm:vit_tiny_patch16_224", "--weights", weights]
    about = live(cli, tmp_path, first, second, [*options, "--image-size", "32"])
    assert about["pretrained"]["architecture"] == "timm:vit_tiny_patch16_224"
    assert about["pretrained"]["file"] == "weights.safetensors"
    assert about["input"]["image_size"] == 32
    assert about["features"] == 192
    shown = cli("show", tmp_path / "later.kedge").out
    assert about["pretrained"]["sha256"] in shown
    # The graph computes what the model does.
    model = Model.load(tmp_path / "later.kedge")
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(tmp_path / "later.onnx")
    given = torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])
    torch.testing.assert_close(given, model.classifier().predict_proba(pixels), rtol=0, atol=1e-4)
    about = session.get_modelmeta().custom_metadata_map
    assert about["interpolation"] == "bicubic"


@pytest.mark.slow
def test_life_of_a_network_of_the_users_own(
    cli: Cli, first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net_in_a_test.py").write_text(OWN)
    own = ["--backbone", "own_net_in_a_test:build"]
    about = live(cli, tmp_path, first, second, own)
    assert about["pretrained"]["architecture"] == own[1]
    later = tmp_path / "later.kedge"
    shown = cli("show", later).out
    assert f"your own: {own[1]}" in shown
    assert "started" not in shown  # from random weights
    # The name in the file does not suffice: commands import nothing because of a file.
    for command in (["predict", later, first], ["update", later, second, "--out", "x.kedge"]):
        assert "--backbone" in cli(*command).sentence
    assert str(later) in cli("predict", later, first, "--backbone", "torch.nn:Identity").sentence


def test_backbone_is_only_for_models_with_a_network_of_the_users_own(
    cli: Cli, by_command: dict[str, Path], first: Path, tmp_path: Path
) -> None:
    base = by_command["base"]
    said = cli("predict", base, first, "--backbone", "no_such_module:build").sentence
    assert str(base) in said


class Harmful:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def truncated(file: Path) -> None:
    torch.save(nn.Linear(50, 50).state_dict(), file)
    file.write_bytes(file.read_bytes()[:-500])


@pytest.mark.parametrize(
    "write",
    [
        lambda file: None,
        lambda file: file.write_bytes(pickle.dumps(Harmful(file.with_name("harmed")))),
        lambda file: torch.save({"x": Harmful(file.with_name("harmed"))}, file),
        lambda file: torch.save(nn.Linear(50, 50).state_dict(), file),
        truncated,
    ],
    ids=["absent", "pickle", "code", "other network", "truncated"],
)
@pytest.mark.parametrize("network", ["efficientnet-lite0", "own_net_for_weights:build"])
def test_wrong_weights_give_one_sentence_and_nothing_is_written(
    cli: Cli,
    first: Path,
    tmp_path: Path,
    write: Callable[[Path], object],
    network: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net_for_weights.py").write_text(OWN)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    weights = tmp_path / "weights.pt"
    write(weights)
    before = names(tmp_path)
    out = tmp_path / "base.kedge"
    said = cli("train", first, "--out", out, "--backbone", network, "--weights", weights)
    assert str(weights) in said.sentence
    assert names(tmp_path) == before
