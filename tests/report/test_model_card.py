"""A model as a folder for a hub: it loads back to the same bits, and its card is valid."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from tests.report.made_up import make_lineage

import kedge
from kedge.errors import KedgeError
from kedge.models.model import Model

Cli = Any  # of conftest.py
GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = (
    "a | b",
    "---\nlicense: mit",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![](https://example.org/a.png)",
    "`code`",
    "# heading",
    "&lt; *bold* ~~no~~",
    "{{ 7 * 7 }} ${HOME}",
    "\u202etxt.exe\x07",
    '"quoted": yes',
    "猫 🐈 é",
    "\\|",
    " ",
)


def hostile() -> Model:
    """A model whose classes and data have these names, with measured rounds."""
    model = Model.load(GOLDEN / "ida.kedge")
    classes = (*HOSTILE, *model.classes[len(HOSTILE) :])
    lineage = tuple(replace(entry, source="| [x](y) <b>\n---") for entry in make_lineage(2))
    return replace(model, classes=classes, lineage=lineage)


def card(folder: Path) -> tuple[dict[str, Any], str]:
    """Front matter and Markdown of a card."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    empty, front, body = text.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(front), body


def test_folder_loads_back_to_the_same_bits_offline(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = GOLDEN / "ida.kedge", tmp_path / "new" / "hub"
    assert cli("export", file, "--hub", folder, "--license", "cc-by-4.0").rc == 0
    assert sorted(os.listdir(folder)) == ["README.md", "config.json", "model.safetensors"]
    assert os.listdir(folder.parent) == ["hub"]
    assert (folder / "model.safetensors").read_bytes() == file.read_bytes()

    def refuse(*_: object) -> None:
        pytest.fail("it opened a connection")

    monkeypatch.setattr(socket, "socket", refuse)
    before, after = kedge.load(file), kedge.load(folder)
    images = torch.arange(2 * 28 * 28).view(2, 1, 28, 28).to(torch.uint8)
    assert after.fingerprint == before.fingerprint
    assert torch.equal(after.predict_proba(images), before.predict_proba(images))
    front, body = card(folder)
    assert front["license"] == "cc-by-4.0"
    assert (front["library_name"], front["pipeline_tag"]) == ("kedge", "image-classification")
    assert "was not measured" in body
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["label_names"] == list(before.classes)
    assert config["pretrained_cfg"]["input_size"] == [1, 28, 28]
    assert cli("show", folder).rc == 0


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    model = hostile()
    folder = kedge.write_hub_folder(model, tmp_path / "a `b` <i>")
    assert kedge.load(folder).classes == model.classes
    front, body = card(folder)
    assert front == {
        "license": "other",
        "library_name": "kedge",
        "pipeline_tag": "image-classification",
        "tags": ["kedge", "few-shot-learning", "incremental-learning"],
    }
    tokens = MarkdownIt().enable("table").parse(body)
    every = [inner for token in tokens for inner in (token, *(token.children or ()))]
    kinds = {token.type for token in every}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "hr", "lheading_open"}
    headings = [tokens[i + 1].content for i, t in enumerate(tokens) if t.type == "heading_open"]
    titles = ["Use", "Intended use", "Data and training", "Accuracy", "Limits", "Classes", "File"]
    assert headings[1:] == titles
    rows = [line for line in body.split("## Classes")[1].splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(model.classes)
    shown = [
        tokens[i + 2].children[0].content if tokens[i + 2].children else ""
        for i, token in enumerate(tokens)
        if token.type == "tr_open"
    ]
    assert "<script>alert(1)</script>" in shown
    assert "[x](javascript:alert(1))" in shown
    assert "\x07" not in body
    assert "\u202e" not in body
    assert "estimate" in body


def test_nothing_is_overwritten_and_half_a_folder_is_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = Model.load(GOLDEN / "ida.kedge"), tmp_path / "hub"
    folder.mkdir()
    kedge.write_hub_folder(model, folder)  # an empty folder is no loss
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(KedgeError, match="already exists"):
        kedge.write_hub_folder(hostile(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(KedgeError, match="already exists"):
        kedge.write_hub_folder(model, tmp_path / "file")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / ".other.part").mkdir()  # of a command that was killed
    monkeypatch.setattr("kedge.report.model_card.model_card", full)
    with pytest.raises(KedgeError, match=r"other: could not be written .*No space"):
        kedge.write_hub_folder(model, tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["file", "hub"]


@pytest.mark.parametrize("license", ["", "MIT\nx: y", "a" * 100, "é"])
def test_license_is_an_identifier(license: str, tmp_path: Path) -> None:
    with pytest.raises(KedgeError, match="--license"):
        kedge.write_hub_folder(GOLDEN / "ida.kedge", tmp_path / "hub", license=license)
    assert os.listdir(tmp_path) == []


def test_one_of_both_outputs_is_named(cli: Cli, tmp_path: Path) -> None:
    file = GOLDEN / "ida.kedge"
    both = ("--out", tmp_path / "a.onnx", "--hub", tmp_path / "a")
    assert cli("export", file).sentence.startswith("--out, --hub")
    assert cli("export", file, *both).sentence.startswith("--out, --hub")
    for_onnx = cli("export", file, "--hub", tmp_path / "a", "--include-known")
    assert for_onnx.sentence.startswith("--support, --include-known")
    assert os.listdir(tmp_path) == []


def test_model_of_a_network_of_ones_own(tmp_path: Path, first: Path) -> None:
    """Its card needs no code; loading it does."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16, 3))
    model = kedge.train(first, backbone=network, epochs=0)
    folder = kedge.write_hub_folder(model, tmp_path / "own")
    assert "backbone=…" in card(folder)[1]
    assert kedge.load(folder, network).fingerprint == model.fingerprint
    with pytest.raises(KedgeError, match="your own"):
        kedge.load(folder)
