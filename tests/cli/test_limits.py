"""Absurd numbers of options, and files of numbers that no command writes: one sentence each, before
anything is trained."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.report.made_up import make_lineage, one_round

from kedge.errors import KedgeError, NotFiniteError
from kedge.models.model import Model
from kedge.models.model_file import LineageEntry
from kedge.utils.atomic_io import load_tensors, save_tensors
from kedge.utils.config_io import MAX_VALUES, from_dict, parse_json

Cli = Any  # of conftest.py
MODEL = Path(__file__).parents[1] / "golden" / "ida.kedge"  # of drawings
HUGE = str(10**20)
OPTIONS = {
    "train drawings": (
        *("--epochs", "--episodes", "--val-episodes", "--n-way", "--n-shot", "--n-query"),
        *("--patience", "--tasks-per-step", "--seed", "--width", "--image-size", "--ema"),
    ),
    "bench drawings": ("--eval-episodes", "--seeds", "--update-epochs", "--test-ways"),
    "evaluate MODEL drawings": ("--n-episodes", "--seed", "--n-way"),
    "speed": ("--seconds",),
}


@pytest.mark.parametrize(
    ("command", "option"), [(words, option) for words, all in OPTIONS.items() for option in all]
)
def test_huge_counts(cli: Cli, tmp_path: Path, command: str, option: str) -> None:
    words = command.replace("MODEL", str(MODEL)).split()
    out = ["--out", tmp_path / "out"] if words[0] in ("train", "bench") else []
    assert cli(*words, *out, option, HUGE, cwd=tmp_path).sentence.startswith(option)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["inf", "nan", "1e-320", "1e300", "-1"])
@pytest.mark.parametrize("option", ["--temperature", "--lr", "--ema"])
def test_numbers_that_would_spoil_the_training(
    cli: Cli, tmp_path: Path, option: str, value: str
) -> None:
    if (option, value) in (("--lr", "1e-320"), ("--ema", "1e-320")):
        return  # as good as 0
    ended = cli("train", "drawings", "--out", tmp_path / "m.kedge", f"{option}={value}")
    assert ended.sentence.startswith(option)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--episodes", "--val-episodes"])
def test_episodes_that_do_not_fit_into_memory(cli: Cli, tmp_path: Path, option: str) -> None:
    """All episodes of an epoch are drawn at once."""
    for command in ("train", "bench"):
        ended = cli(command, "drawings", "--out", tmp_path / "out", option, "1000000")
        assert ended.err.splitlines()[-1].startswith(f"kedge: {option}")


def test_test_episodes_that_do_not_fit_into_memory(cli: Cli, tmp_path: Path) -> None:
    bench = cli("bench", "--out", tmp_path / "out", "--eval-episodes", "1000000")
    assert bench.sentence.startswith("--eval-episodes")
    evaluate = cli("evaluate", MODEL, "drawings", "--n-episodes", "1000000")
    assert evaluate.sentence.startswith("--n-episodes")


# ── numbers in files ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", -5),
        ("round", 10**20),
        ("images", -1),
        ("images", 10**30),
        ("best_epoch", -1),
        ("val_accuracy", 10**400),
        ("val_accuracy", float("inf")),
        ("val_accuracy", -1),
        ("val_accuracy", "90"),
    ],
)
def test_lineage_has_plausible_numbers(field: str, value: Any) -> None:
    entry = json.loads(json.dumps(asdict(make_lineage(1)[0])))
    assert from_dict(LineageEntry, entry) == make_lineage(1)[0]
    with pytest.raises(KedgeError, match=f"{field} is "):
        from_dict(LineageEntry, entry | {field: value})


RECORD_NUMBERS = {
    "mean": ("1e308", "-1e308", "1e999", "101", str(10**400)),
    "ci": ("1e308", "-1"),
    "n": ("-1", HUGE, "1.5"),
    "seed": ("-1", HUGE),
    "round": ("-1", "1e3", HUGE),
    "seconds": ("1e308", "-1"),
    "kept_bytes_per_class": ("1e308",),
    "anchor_drift": ("1e308",),
    "lr": ("1e308", "-1"),
    "epoch": ("-1", HUGE),
    "n_classes": ("-1", HUGE),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in RECORD_NUMBERS.items() for value in values]
)
def test_records_have_plausible_numbers(cli: Cli, tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "record.json"
    one_round().save(path)
    text = path.read_text(encoding="utf-8")
    forged, n = re.subn(rf'("{key}": )[-\d.e]+', rf"\g<1>{value}", text)
    assert n > 0
    path.write_text(forged, encoding="utf-8")
    sentence = cli("report", tmp_path).sentence
    assert str(path) in sentence
    assert key in sentence
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_equal_scores_of_a_record_can_be_drawn(cli: Cli, tmp_path: Path) -> None:
    """All runs alike, also at the ends of what is allowed."""
    for value in ("0.0", "100.0"):
        folder = tmp_path / value
        one_round(("NU", "FT", "IDA")).save(folder / "record.json")
        text = (folder / "record.json").read_text(encoding="utf-8")
        text = re.sub(r'("(mean|ci)": )[-\d.e]+', rf"\g<1>{value}", text)
        (folder / "record.json").write_text(text.replace('"round": 1', '"round": 0'))
        assert cli("report", folder).rc == 0


def test_rounds_of_a_model_ascend(cli: Cli, by_command: dict[str, Path], tmp_path: Path) -> None:
    about, tensors = load_tensors(by_command["next"], "model")
    for entry in about["lineage"]:
        entry["round"] = 3
    save_tensors(tmp_path / "m.kedge", tensors, about)
    for command in ("show", "report"):
        assert "m.kedge" in cli(command, tmp_path / "m.kedge").sentence


def test_json_of_too_many_values_is_refused() -> None:
    """It would take a hundred times the memory of the text."""
    with pytest.raises(ValueError, match="values"):
        parse_json(f"[{'[],' * MAX_VALUES}[]]")


@pytest.mark.parametrize("scale", [1e20, 3e38])
def test_absurd_weights_give_no_numbers(
    cli: Cli, by_command: dict[str, Path], first: Path, tmp_path: Path, scale: float
) -> None:
    about, tensors = load_tensors(by_command["base"], "model")
    huge = {k: v if v.dtype != torch.float32 else v.sign() * scale for k, v in tensors.items()}
    path = tmp_path / "m.kedge"
    save_tensors(path, huge, about)
    image = next(first.rglob("*.png"))
    commands = [["predict", path, image, "--format", "json"]]
    commands += [["evaluate", path, first, "--known", "--json"]]
    for command in commands:
        assert str(path) in cli(*command).sentence
    with pytest.raises(NotFiniteError):
        Model.load(path).classifier().predict(np.zeros((2, 1, 16, 16), np.uint8))
