"""`kedge evaluate`, `kedge predict` and `kedge show`: what a model is used for."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import kedge.cli.evaluate
from kedge.errors import KedgeError
from kedge.models.model import Model

SHAPE = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]
JSON = ["--format", "json"]
CLASSES = [f"{round} {i}" for round in ("first", "second") for i in range(6)]
ODD = ["[red] fox", "größe", "[bold]"]
Cli = Any  # of conftest.py


@pytest.fixture(scope="module")
def model(by_command: dict[str, Path]) -> Path:
    return by_command["next"]


@pytest.fixture(scope="module")
def desk(second: Path, draw_classes: Callable[..., Path], tmp_path_factory: Any) -> Path:
    """A folder of images with odd names, of odd kinds, and damaged ones."""
    desk = tmp_path_factory.mktemp("desk")
    draw_classes(desk / "odd", ODD)
    for name in ("broken.png", "broken too.jpg"):
        (desk / name).write_bytes(b"no image")
    drawn = Image.open(second / "second 0" / "00.png")
    drawn.convert("RGBA").resize((40, 60)).save(desk / "photo.webp")
    draw_classes(desk / "lacking", ["a", "b", "c"])
    for file in (desk / "lacking" / "c").iterdir():
        file.write_bytes(b"no image")
    shutil.copytree(second / "second 0", desk / "one" / "second 0")
    return desk


def predictions(ended: Any) -> list[dict[str, Any]]:
    assert ended.rc == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def accuracy(lines: list[dict[str, Any]]) -> float:
    return float(np.mean([line["class"] == Path(line["image"]).parent.name for line in lines]))


# ── evaluate ─────────────────────────────────────────────────────────────────────────────────


def test_evaluate_prints_mean_and_interval(cli: Cli, model: Path, first: Path) -> None:
    ended = cli("evaluate", model, first, *SHAPE, "--n-episodes", "50")
    assert ended.rc == 0, ended.err
    line = ended.out.splitlines()[0]
    mean, _, interval, *words = line.split()
    assert 34 < float(mean) <= 100  # chance is 33%
    assert 0 < float(interval.rstrip("%")) < 20
    assert " ".join(words).endswith("3-way, 2-shot, 50 episodes over 6 classes")
    assert "6 of these classes" not in ended.out, "warnings are not in the result"
    assert "6 of these classes are known" in ended.err


def test_evaluate_infers_the_shape_and_takes_ranges(cli: Cli, model: Path, desk: Path) -> None:
    ended = cli("evaluate", model, desk / "odd", "--n-episodes", "20")
    assert "3-way, 5-shot, 20 episodes over 3 classes\n" in ended.out
    assert "--n-way 3: there are 3 classes" in ended.err
    assert "--n-query 7: few, since a class has 12 images" in ended.err
    assert "trained on" not in ended.err
    shape = ["--n-way", "2", "3", "--n-shot", "1", "2", "--n-query", "3"]
    ended = cli("evaluate", model, desk / "odd", "--n-episodes", "20", *shape)
    assert "2–3-way, 1–2-shot, 20 episodes over 3 classes\n" in ended.out


def test_evaluate_known_names_images(cli: Cli, model: Path, second: Path, desk: Path) -> None:
    ended = cli("evaluate", model, second, "--known")
    assert 30 < float(ended.out.split()[0]) <= 100  # chance is 8%
    assert "72 images" in ended.out
    assert "6 classes, among the 12" in ended.out
    assert "6 of these classes are known" in ended.err
    assert "learned in round" not in ended.out, "all of them in one"
    ended = cli("evaluate", model, "one", "--known", cwd=desk)
    assert "1 class, among the 12" in ended.out
    assert "1 of these classes is known" in ended.err


def test_evaluate_known_is_told_by_round_and_by_anchors(
    cli: Cli, model: Path, first: Path, second: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    for folder in (first, second):
        shutil.copytree(folder, both, dirs_exist_ok=True)
    result = json.loads(cli("evaluate", model, both, "--known", "--json").out)
    loaded = Model.load(model)
    for each, classifier in (
        (result, loaded.classifier()),
        (result["stored_anchors"], loaded.anchor_classifier()),
    ):
        of_rounds = []
        for folder in (first, second):
            table = loaded.open(folder)
            predicted = classifier.predict(table.images)
            correct = [table.classes[i] == p for i, p in zip(table.labels, predicted, strict=True)]
            of_rounds.append(100 * float(np.mean(correct)))
        assert [part["accuracy"] for part in each["rounds"]] == pytest.approx(of_rounds)
        assert [(part["round"], part["images"]) for part in each["rounds"]] == [(0, 72), (1, 72)]
        assert each["accuracy"] == pytest.approx(np.mean(of_rounds))
    assert (result["classes"], result["known_classes"]) == (12, 12)
    printed = cli("evaluate", model, both, "--known").out.splitlines()
    assert f"round 1: {result['rounds'][1]['accuracy']:.2f} ±" in printed[2]
    assert f"{result['stored_anchors']['accuracy']:.2f} ±" in printed[3]


@pytest.mark.parametrize("how", [["--known"], [*SHAPE, "--n-episodes", "20"]])
def test_evaluate_says_which_classes_are_weak_and_which_are_confused(
    cli: Cli, model: Path, second: Path, tmp_path: Path, how: list[str]
) -> None:
    command = ["evaluate", model, second, *how]
    ended = cli(*command, "--json", "--confusion", tmp_path / "matrix.csv")
    result = json.loads(ended.out)
    classes, confused = result["per_class"], result["confusions"]
    n = sum(each["of"] for each in classes)
    n_wrong = n - sum(each["correct"] for each in classes)
    assert n == (72 if "--known" in how else 20 * 3 * 3)
    assert 100 * (1 - n_wrong / n) == pytest.approx(result["accuracy"])
    assert sum(each["count"] for each in confused) == n_wrong > 0
    assert classes == sorted(classes, key=lambda each: each["accuracy"])
    assert confused == sorted(confused, key=lambda each: -each["count"])
    with open(tmp_path / "matrix.csv", encoding="utf-8") as file:
        rows = {row["class"]: row for row in csv.DictReader(file)}
    assert len(rows) == 6
    for each in confused:
        share = float(rows[each["true"]][each["predicted"]])
        assert share == pytest.approx(100 * each["count"] / each["of"], rel=1e-3)
    printed = cli(*command).out
    worst, most = classes[0], confused[0]
    assert f"{worst['class']}  " in printed
    assert f"{most['true']} → {most['predicted']}" in printed
    assert len(cli(*command, "--all").out.splitlines()) > len(printed.splitlines())
    refused = cli(*command, "--confusion", tmp_path / "matrix.csv").sentence
    assert "matrix.csv: already exists" in refused


def test_the_confusion_matrix_is_written_though_nobody_reads_the_output(
    cli: Cli, model: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*args: object, **how: object) -> str:
        raise KedgeError("closed")

    monkeypatch.setattr(kedge.cli.evaluate, "as_json", closed)
    cli("evaluate", model, second, "--known", "--json", "--confusion", tmp_path / "matrix.csv")
    assert (tmp_path / "matrix.csv").exists()


# ── predict ──────────────────────────────────────────────────────────────────────────────────


def test_predict_names_classes_of_examples(cli: Cli, model: Path, second: Path) -> None:
    ended = cli("predict", model, second, "--support", second, *JSON)
    lines = predictions(ended)
    assert ended.err == ""
    assert [line["image"] for line in lines] == sorted(map(str, second.rglob("*.png")))
    assert all(1 / 6 <= line["probability"] <= 1 for line in lines)
    assert accuracy(lines) > 0.6  # chance is 17%
    with_known = cli("predict", model, second, "--support", second, "--include-known", *JSON)
    assert len(predictions(with_known)) == len(lines)
    assert "6 known classes" in with_known.err


def test_predict_names_known_classes_without_examples(
    cli: Cli, model: Path, second: Path, desk: Path
) -> None:
    lines = predictions(cli("predict", model, second, "--top", "2", *JSON))
    assert accuracy(lines) > 0.3  # chance is 8%
    for line in lines:
        best, other = line["top"]
        assert best == {"class": line["class"], "probability": line["probability"]}
        assert best["probability"] >= other["probability"] > 0
        assert best["class"] != other["class"]
    both = cli("predict", model, "odd", "--support", "odd", "--include-known", *JSON, cwd=desk)
    named = {line["class"] for line in predictions(both)}
    assert named & set(ODD)
    assert named <= {*ODD, *CLASSES}


def test_predict_takes_patterns_and_standard_input(
    cli: Cli, model: Path, second: Path, desk: Path
) -> None:
    patterns = [f"{second}/**/*[01]1.png", "odd/größe/0?.png"]
    found = [
        line["image"] for line in predictions(cli("predict", model, *patterns, *JSON, cwd=desk))
    ]
    assert found == [
        *sorted(str(file) for file in second.rglob("*.png") if file.stem in ("01", "11")),
        *(f"odd/größe/{i:02}.png" for i in range(10)),
    ]
    files = sorted(map(str, (second / "second 1").iterdir()))[:3]
    for end in ("\n", "\0"):
        given = "".join(file + end for file in files).encode()
        lines = predictions(cli("predict", model, "-", *JSON, stdin=given))
        assert [line["image"] for line in lines] == files


def test_predict_names_every_file_that_it_cannot_read(
    cli: Cli, model: Path, second: Path, desk: Path
) -> None:
    mixed = [second / "second 3" / "00.png", "broken.png", "photo.webp"]
    ended = cli("predict", model, *mixed, *JSON, cwd=desk)
    assert "broken.png: " in ended.sentence
    images = [Path(json.loads(line)["image"]).name for line in ended.out.splitlines()]
    assert images == ["00.png", "photo.webp"]
    ended = cli("predict", model, *mixed, "gone.png", "broken too.jpg", cwd=desk)
    assert ended.rc == 1
    told = ended.err.splitlines()
    assert [line.split(":")[1].strip() for line in told[:3]] == [
        "broken.png",
        "gone.png",
        "broken too.jpg",
    ]
    assert "3 of 5 images" in told[3]
    assert "photo.webp" in ended.out
    ended = cli("predict", model, "broken.png", "--format", "csv", cwd=desk)
    assert (ended.rc, ended.out) == (1, "image,rank,class,probability,typicality\n")
    ended = cli("predict", model, second, "--support", "lacking", cwd=desk)
    assert (ended.rc, ended.out) == (1, "")
    assert "kedge: lacking: class 'c'" in ended.err, "its images would be named as others"


def test_predict_prints_tables_and_csv(cli: Cli, model: Path, desk: Path) -> None:
    table = cli("predict", model, "odd", "--support", "odd", cwd=desk)
    assert table.rc == 0, table.err
    assert all(word in table.out for word in ("image", "class", "probability", *ODD))
    ended = cli("predict", model, "odd/größe/00.png", "--top", "3", "--format", "csv", cwd=desk)
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [(row["image"], row["rank"]) for row in rows] == [
        ("odd/größe/00.png", rank) for rank in "123"
    ]
    probabilities = [float(row["probability"]) for row in rows]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) <= 1.00001


@pytest.mark.slow
def test_file_names_that_are_no_text_are_printed_as_they_are(
    kedge: Any, cli: Cli, model: Path, second: Path, tmp_path: Path
) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    shutil.copy(second / "second 1" / "00.png", file)
    [line] = predictions(cli("predict", model, file, *JSON))
    assert line["image"] == str(file)
    ended = subprocess.run(
        [kedge.path, "predict", model, "-", "--format", "csv"],
        input=os.fsencode(file),
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.splitlines()[1].startswith(os.fsencode(file) + b",1,")


# ── show ─────────────────────────────────────────────────────────────────────────────────────


def test_show_describes_a_model(cli: Cli, model: Path, first: Path, second: Path) -> None:
    ended = cli("show", model)
    assert (ended.rc, ended.err) == (0, "")
    for words in (
        str(model),
        "16×16 px, grey",
        "conv4 of width 4, 500 weights, 4 features",
        "12, one per class",
        "and class means",
        f"base: 6 classes, 42 images of {first}; validation accuracy ",
        f"IDA+: 6 classes, 42 images of {second}; ",
        "3-way, 2-shot, 3 queries, 3 epochs, 20 episodes each, learning rate 0.001, seed 3",
        "12 classes known: first 0, first 1,",
        "(--all lists the other 2)",
    ):
        assert words in ended.out, words


def test_show_prints_json(cli: Cli, model: Path) -> None:
    about = json.loads(cli("show", model, "--json").out)
    loaded = Model.load(model)
    assert about["bytes"] == model.stat().st_size
    assert [each["name"] for each in about["classes"]] == list(loaded.classes) == CLASSES
    assert about["anchors"] == {"number": 12, "length": 4, "bytes": 12 * 4 * 4}
    assert about["features"] == loaded.config.n_features == 4
    assert [entry["method"] for entry in about["lineage"]] == ["base", "IDA+"]
    assert about["lineage"][1]["val_accuracy"] == loaded.lineage[1].val_accuracy
    assert about["weights"] == sum(weight.numel() for weight in loaded.weights().values())
    look = {"fit": "crop", "inverted": False, "interpolation": "bicubic"}
    assert about["input"] == {"image_size": 16, "colour": False, **look}
    assert about["pretrained"] is None
