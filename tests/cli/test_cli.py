"""The commands as people type them: real processes, real files, and mistakes of every kind."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from kedge.benchmarks import PROTOCOLS
from kedge.experiments.recipes import recipe_names
from kedge.experiments.records import Record
from kedge.models.model import Model
from kedge.utils.atomic_io import (
    load_tensors,
    exclusive,
    save_tensors,
)

SHORT = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]
QUICK = ["--epochs", "1", "--episodes", "2", "--val-episodes", "4"]
COMMANDS = ["bench", "train", "update", "evaluate", "predict", "show", "report", "paper"]
Kedge = Ready = Any  # of conftest.py, which cannot be imported


# ── help ─────────────────────────────────────────────────────────────────────────────────────

HELP = {
    "": [*COMMANDS, "kedge --version"],
    "bench": [
        "NAME",
        "drawings-4-rounds",
        "kedge recipes",
        "EIML",
        "EWC",
        "--methods",
        "IDA",
        "PAR",
        "--seeds",
        "--out",
    ],
    "train": ["DATA", "--out", "--val", "--image-size", "--n-way", "--epochs", "--seed"],
    "update": ["MODEL", "DATA", "--out", "--method", "IDA", "DFA", "FT", "not needed"],
    "evaluate": ["MODEL", "DATA", "--known", "--n-episodes", "--n-shot", "95%"],
    "predict": ["MODEL", "IMAGE", "--support", "--known", "--top", "--format", "json", "csv"],
    "show": ["MODEL", "--all", "--format", "json"],
    "report": ["RUN", "record.json", "LaTeX"],
    "paper": ["TABLE", "faults"],
}


@pytest.fixture(scope="module")
def helped(kedge: Kedge) -> dict[str, Any]:
    return {name: kedge(*name.split(), "--help") for name in HELP}


@pytest.mark.parametrize("name", HELP)
def test_help_says_what_there_is(helped: dict[str, Any], name: str) -> None:
    assert helped[name].rc == 0
    assert helped[name].err == ""
    text = " ".join(helped[name].out.replace("│", " ").split())
    assert [word for word in HELP[name] if word not in text] == []
    assert max(map(len, helped[name].out.splitlines()[1:])) <= 80


def without_choices(ended: Any) -> Any:
    """What train and update have chosen is told before the work begins, and is no error."""
    lines = ended.err.splitlines()
    told = [line for line in lines if line.startswith("  ") or line.endswith("says otherwise:")]
    rest = [line for line in lines if line not in told]
    return type(ended)(ended.rc, ended.out, "\n".join(rest))


def refused(ended: Any) -> str:
    return without_choices(ended).sentence


# ── one sentence for every mistake ───────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def desk(
    tmp_path_factory: pytest.TempPathFactory,
    draw_classes: Callable[..., Path],
    first: Path,
    by_command: dict[str, Path],
) -> Path:
    """A folder in which everything lies that the mistakes below need."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copytree(first, desk / "first")
    draw_classes(desk / "one-class", ["alone"])
    draw_classes(desk / "four-classes", list("abcd"))
    draw_classes(desk / "latin", ["plain", os.fsdecode(b"caf\xe9")])  # from an old Windows disk
    (desk / "text.txt").write_text("no model, no image\n")
    model = by_command["base"].read_bytes()
    (desk / "base.kedge").write_bytes(model)
    (desk / "half.kedge").write_bytes(model[: len(model) // 2])
    return desk


def train(data: str, *options: str) -> list[str]:
    return ["train", data, "--out", "new.kedge", *QUICK, *options]


def update(model: str, *options: str) -> list[str]:
    return ["update", model, "first", "--out", "new.kedge", *SHORT, *QUICK, *options]


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    # what is wrong: (the command, words that its sentence must have)
    "missing folder": (train("gone"), ["gone", "one sub-folder of images per class"]),
    "one class": (train("one-class"), ["one-class", "1 class", "add classes"]),
    "more ways than classes": (train("first", "--n-way", "7"), ["6 classes", "7", "--n-way"]),
    "too few images": (
        train("first", "--n-way", "3", "--n-shot", "9", "--n-query", "4"),
        ["12 images", "13 of each class (9 shots + 4 queries)", "--n-query"],
    ),
    "too few images to share": (
        train("four-classes", "--n-way", "3", "--n-shot", "2", "--n-query", "6"),
        ["12 images", "--n-query"],
    ),
    "unknown backbone": (train("first", *SHORT, "--backbone", "vgg"), ["'vgg'", "resnet12"]),
    "unknown head": (train("first", *SHORT, "--head", "svm"), ["'svm'", "prototype"]),
    "unknown option of a head": (
        train("first", *SHORT, "--head", "ecm step=5"),
        ["'ecm step=5'", "inner_steps", "inner_lr"],
    ),
    "wrong option of a head": (train("first", *SHORT, "--head", "ecm inner_steps=0"), ["ECM", "inner_steps"]),
    "wrong training of a head": (
        train("first", *SHORT, "--head", "ecm training=outer"),
        ["ECM", "joint", "inner"],
    ),
    "options that a head has not": (
        train("first", *SHORT, "--head", "prototype inner_steps=5"),
        ["prototype", "no options"],
    ),
    "option without a value": (train("first", *SHORT, "--head", "ecm steps"), ["name=value"]),
    "unknown method to keep for": (train("first", *SHORT, "--keep", "LwF"), ["'LwF'", "EIML"]),
    "wrong option of what to keep": (
        train("first", *SHORT, "--keep", "EIML exemplars=1"),
        ["EIML", "exemplars"],
    ),
    "to keep what is never needed": (
        train("first", *SHORT, "--keep", "ida lambda=5"),
        ["--keep ida lambda=5", "EWC and EIML", "nothing but the model", "leave --keep out"],
    ),
    "to keep for what is no update": (train("first", "--keep", "PAR"), ["--keep PAR", "EIML"]),
    "to keep nothing later on": (update("base.kedge", "--keep", "FT"), ["--keep FT", "EIML"]),
    "range that starts with the greater": (train("first", "--n-way", "5", "3"), ["--n-way", "5 3"]),
    "no memory": (update("base.kedge", "--method", "EIML"), ["EIML needs images", "IDA"]),
    "no Fisher information": (update("base.kedge", "--method", "EWC"), ["EWC needs the Fisher"]),
    "no way": (train("first", "--n-way", "1"), ["--n-way", "at least 2"]),
    "negative seed": (train("first", *SHORT, "--seed", "-1"), ["--seed is -1"]),
    "no batch": (train("first", "--batch", "0"), ["--batch is 0", "at least 1"]),
    "no size": (train("first", *SHORT, "--image-size", "0", "--width", "1"), ["--image-size"]),
    "vast network": (train("first", *SHORT, "--width", "400000"), ["--width", "memory"]),
    "existing result": (["train", "first", "--out", "base.kedge"], ["base.kedge", "another --out"]),
    "this folder as a recipe": (["bench", "."], ["no recipe", "'.'"]),
    "empty result": (["train", "first", "--out", ""], ["empty word behind --out", "variable"]),
    "empty result, joined": (["train", "first", "--out="], ["empty word behind --out"]),
    "empty support": (
        ["predict", "base.kedge", "--support", "", "first"],
        ["empty word behind --support"],
    ),
    "empty data": (["data", "inspect", ""], ["empty word:"]),
    "result below a file": (
        ["train", "first", "--out", "text.txt/new.kedge", *SHORT, *QUICK, "--width", "1"],
        ["text.txt", "write"],
    ),
    "name that is not UTF-8": (
        train("latin", "--n-way", "2", "--n-shot", "1", "--n-query", "1", "--width", "1"),
        ["latin", "UTF-8"],
    ),
    "unknown method": (update("base.kedge", "--method", "LwF"), ["'LwF'", "IDA"]),
    "half a model": (update("half.kedge"), ["half.kedge", "damaged"]),
    "text as a model": (["evaluate", "text.txt", "first"], ["text.txt", "not a kedge model"]),
    "images of another size": (
        ["evaluate", "base.kedge", "drawings"],
        ["drawings: these images come with kedge", "to 16 px; use 28 px, or other images."],
    ),
    "embedded images at another size": (
        train("drawings", "--image-size", "20"),
        ["drawings: these images come with kedge", "to 20 px; use 28 px, or other images."],
    ),
    "no episodes": (["evaluate", "base.kedge", "first", "--n-episodes", "0"], ["--n-episodes"]),
    "negative test seed": (["evaluate", "base.kedge", "first", *SHORT, "--seed", "-1"], ["seed"]),
    "missing image": (["predict", "base.kedge", "x.png", "--support", "first"], ["x.png", "no "]),
    "no image": (["predict", "base.kedge", "--support", "first"], ["IMAGE"]),
    "pattern of nothing": (["predict", "base.kedge", "first/*.gif"], ["first/*.gif", "pattern"]),
    "nothing on standard input": (["predict", "base.kedge", "-"], ["standard input"]),
    "no place": (["predict", "base.kedge", "first", "--top", "0"], ["--top"]),
    "missing support": (["predict", "base.kedge", "first", "--support", "gone"], ["gone"]),
    "one class to choose from": (
        ["predict", "base.kedge", "first", "--support", "one-class"],
        ["one-class", "'alone'", "--known"],
    ),
    "known classes of which none is there": (
        ["evaluate", "base.kedge", "four-classes", "--known"],
        ["four-classes", "none of these 4 classes", "'a'", "kedge show"],
    ),
    "episodes where none are drawn": (
        ["evaluate", "base.kedge", "first", "--known", "--n-way", "3", "--seed", "0"],
        ["--n-way, --seed", "--known", "no episode"],
    ),
    "number of episodes where none are drawn": (
        ["evaluate", "base.kedge", "first", "--known", "--n-episodes", "2000"],
        ["--n-episodes:", "--known"],
    ),
    "folder as a model": (["show", "first"], ["first", "a folder and not a kedge model"]),
    "text as a model to show": (["show", "text.txt"], ["text.txt", "not a kedge model"]),
    "unknown protocol": (["bench", "imagenet"], ["'imagenet'", "mini-imagenet"]),
    "run without a record": (["report", "first"], ["first", "kedge bench"]),
    "no run": (["report"], ["RUN"]),
    "unknown table": (["paper", "17"], ["'17'", "mini-pn"]),
}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def before(desk: Path) -> dict[str, bytes | None]:
    return contents(desk)


@pytest.fixture(scope="module")
def mistaken(ready: Ready, desk: Path, before: object) -> dict[str, Any]:
    return {
        name: ready.kedge(*(w.replace("new.kedge", f"{name}.kedge") for w in command), cwd=desk)
        for name, (command, _) in MISTAKES.items()
    }


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_gets_one_sentence(mistaken: dict[str, Any], mistake: str) -> None:
    sentence = refused(mistaken[mistake])
    assert [word for word in MISTAKES[mistake][1] if word not in sentence] == [], sentence
    assert mistaken[mistake].out == ""


def test_mistakes_leave_everything_as_it_was(
    mistaken: dict[str, Any], desk: Path, before: dict[str, bytes | None]
) -> None:
    after = contents(desk)
    assert set(after) - set(before) == set()
    assert [name for name in before if after.get(name, b"gone") != before[name]] == []


TYPOS = {
    "no number": (["train", "first", "--out", "x", "--epochs", "many"], "--epochs"),
    "unknown option": (["train", "first", "--out", "x", "--epoch-count", "3"], "--epoch-count"),
    "missing option": (["train", "first"], "--out"),
    "unknown command": (["trian", "first"], "trian"),
    "unknown format": (["predict", "m", "x", "--support", "s", "--format", "xml"], "json"),
}


@pytest.mark.parametrize("typo", TYPOS)
def test_typo_names_what_was_typed(kedge: Kedge, typo: str, tmp_path: Path) -> None:
    command, word = TYPOS[typo]
    ended = kedge(*command, cwd=tmp_path)
    assert ended.rc == 2
    assert "Traceback" not in ended.err
    assert word in ended.err
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == []


# ── stopped and continued ────────────────────────────────────────────────────────────────────


CTRL_C = """
import os, signal, kedge.utils.atomic_io
write = kedge.utils.atomic_io.write_atomically
def write_then_stop(path, fill):
    write(path, fill)
    os.kill(os.getpid(), signal.SIGINT)
kedge.utils.atomic_io.write_atomically = write_then_stop
"""


@pytest.fixture(scope="module")
def stopped(ready: Ready, first: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Ctrl-C after the first epoch, then the same command again."""
    folder = tmp_path_factory.mktemp("stopped")
    out = folder / "[v2] base.kedge"
    command = ["train", first, "--out", out, *SHORT, "--epochs", "3", "--episodes", "20"]
    command += ["--val-episodes", "40", "--width", "4", "--seed", "3"]
    stopped = ready.kedge(*command, first=CTRL_C)
    left = [path.name for path in folder.iterdir()]
    other = ready.kedge(*command[:-1], "4")
    again = ready.kedge(*command)
    return {"stopped": stopped, "left": left, "out": out, "other": other, "again": again}


def test_stopped_training_says_so_and_keeps_its_state(stopped: dict[str, Any]) -> None:
    assert stopped["stopped"].rc == 130
    assert stopped["stopped"].out == ""
    said = without_choices(stopped["stopped"]).err
    assert said == "kedge: stopped; the same command continues from here."
    assert stopped["left"] == ["[v2] base.kedge.training"]


def test_stopped_training_is_not_continued_by_another_command(stopped: dict[str, Any]) -> None:
    assert "other options" in refused(stopped["other"])


def test_stopped_training_goes_on_to_the_same_model(
    stopped: dict[str, Any], by_command: dict[str, Path]
) -> None:
    assert stopped["again"].rc == 0, stopped["again"].err
    assert stopped["out"].read_bytes() == by_command["base"].read_bytes()
    assert [path.name for path in stopped["out"].parent.iterdir()] == [stopped["out"].name]


def test_brackets_in_the_name_of_a_model_are_printed(stopped: dict[str, Any]) -> None:
    assert stopped["again"].out.startswith(f"{stopped['out']}: round 0")


# ── using a model ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def used(
    ready: Ready,
    by_command: dict[str, Path],
    first: Path,
    second: Path,
    draw_classes: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What evaluate and predict say."""
    cwd = tmp_path_factory.mktemp("use")
    odd = draw_classes(cwd / "odd", ["[red] fox", "größe", "[bold]"])
    (cwd / "broken.png").write_bytes(b"no image")
    # Size, colour and transparency are not those of the training images.
    drawn = Image.open(second / "second 0" / "00.png")
    drawn.convert("RGBA").resize((40, 60)).save(cwd / "photo.webp")
    shutil.copy(cwd / "broken.png", cwd / "broken too.jpg")
    draw_classes(cwd / "lacking", ["a", "b", "c"])
    for file in (cwd / "lacking" / "c").iterdir():
        file.write_bytes(b"no image")
    fox = cwd / os.fsdecode(b"caf\xe9.png")  # from an old Windows disk
    shutil.copy(odd / "[red] fox" / "00.png", fox)
    shutil.copytree(second / "second 0", cwd / "one" / "second 0")
    model, support = by_command["next"], ["--support", second]
    mixed = [second / "second 3" / "00.png", "broken.png", "photo.webp"]
    lines = ["--format", "json"]
    commands = {
        "evaluate": ["evaluate", model, first, *SHORT, "--n-episodes", "50"],
        "evaluate unknown": ["evaluate", model, odd, *SHORT, "--n-episodes", "50"],
        "evaluate freely": ["evaluate", model, odd, "--n-episodes", "50"],
        "evaluate known": ["evaluate", model, second, "--known"],
        "evaluate one": ["evaluate", model, "one", "--known"],
        "folder": ["predict", model, second, *support, *lines],
        "mixed": ["predict", model, *mixed, *support, *lines],
        "several broken": ["predict", model, *mixed, "gone.png", "broken too.jpg", *support],
        "all broken": ["predict", model, "broken.png", "broken too.jpg", "--format", "csv"],
        "odd names": ["predict", model, "--support", odd, odd],
        "odd file": ["predict", model, fox, *lines],
        "known": ["predict", model, second, *lines, "--top", "2"],
        "both": ["predict", model, odd, "--support", odd, "--known", *lines],
        "twice": ["predict", model, second, *support, "--known", *lines],
        "pattern": ["predict", model, f"{second}/**/*[01]1.png", "odd/größe/0?.png", *lines],
        "csv": ["predict", model, odd / "größe" / "00.png", *support, "--top", "3"],
        "lacking": ["predict", model, second, "--support", "lacking"],
        "show": ["show", model],
        "show all": ["show", model, "--all"],
        "show json": ["show", model, "--format", "json"],
    }
    commands["csv"] += ["--format", "csv"]
    return {name: ready.kedge(*command, cwd=cwd) for name, command in commands.items()}


def test_evaluate_prints_mean_and_interval(used: dict[str, Any]) -> None:
    assert used["evaluate"].rc == 0, used["evaluate"].err
    mean, sign, interval, *words = used["evaluate"].out.splitlines()[0].split()
    assert 34 < float(mean) <= 100  # a guess is right in 33%
    assert sign == "±"
    assert 0 < float(interval.rstrip("%")) < 20
    assert " ".join(words).endswith("3-way, 2-shot, 50 episodes over 6 classes")


def test_evaluate_warns_of_classes_that_were_trained_on(used: dict[str, Any]) -> None:
    def words(name: str) -> str:
        return " ".join((used[name].out + used[name].err).split())

    assert "6 of these classes were trained on" in words("evaluate")
    assert "trained on" not in words("evaluate unknown")


def test_result_of_evaluate_is_one_line(used: dict[str, Any]) -> None:
    """Standard output is for the result; a warning is for people, and not for `>> results`."""
    assert len(used["evaluate"].out.splitlines()) == 1


def test_evaluate_chooses_what_the_images_allow_and_says_so(used: dict[str, Any]) -> None:
    """There are three classes of twelve images, where 5 ways and 20 images are usual."""
    assert used["evaluate freely"].out.endswith("3-way, 5-shot, 50 episodes over 3 classes\n")
    told = used["evaluate freely"].err
    assert "--n-way 3: there are 3 classes" in told
    assert "--n-query 7: few, since a class has 12 images" in told


def test_evaluate_measures_names_by_anchors(used: dict[str, Any]) -> None:
    assert used["evaluate known"].rc == 0, used["evaluate known"].err
    mean, *words = used["evaluate known"].out.split()
    assert 30 < float(mean) <= 100  # a guess is right in 8%
    said = " ".join(words)
    assert "72 images named right: 6 classes, among the 12 that the model has learned" in said
    assert "6 of these classes were trained on" in used["evaluate known"].err


def test_evaluate_speaks_of_one_class_as_of_one(used: dict[str, Any]) -> None:
    assert "named right: 1 class, among the 12 " in used["evaluate one"].out
    warning = "1 of these classes was trained on; if its images were too, the number flatters."
    assert warning in used["evaluate one"].err


def predictions(ended: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def test_predict_prints_json_for_programs(used: dict[str, Any], second: Path) -> None:
    assert used["folder"].rc == 0, used["folder"].err
    assert used["folder"].err.strip() == ""
    said = predictions(used["folder"])
    assert [line["image"] for line in said] == sorted(map(str, second.rglob("*.png")))
    assert all(1 / 6 <= line["probability"] <= 1 for line in said)
    right = sum(line["class"] == Path(line["image"]).parent.name for line in said)
    assert right > 0.6 * len(said)  # a guess is right in 17%


def test_predict_says_which_image_it_cannot_read_and_does_the_others(used: dict[str, Any]) -> None:
    assert "broken.png" in used["mixed"].sentence
    assert [Path(line["image"]).name for line in predictions(used["mixed"])] == [
        "00.png",
        "photo.webp",
    ]


def test_predict_names_every_image_that_it_cannot_read(used: dict[str, Any]) -> None:
    ended = used["several broken"]
    assert ended.rc == 1
    assert ended.err.splitlines() == [
        "kedge: broken.png: cannot be read as an image (no image, or damaged).",
        "kedge: gone.png: there is no such image.",
        "kedge: broken too.jpg: cannot be read as an image (no image, or damaged).",
        "kedge: 3 of 5 images could not be read.",
    ]
    assert "photo.webp" in ended.out
    assert used["all broken"].rc == 1
    assert used["all broken"].out == "image,rank,class,probability\n"


def test_predict_names_known_classes_without_examples(used: dict[str, Any], second: Path) -> None:
    assert used["known"].rc == 0, used["known"].err
    said = predictions(used["known"])
    assert len(said) == 72
    right = sum(line["class"] == Path(line["image"]).parent.name for line in said)
    assert right > 0.3 * len(said)  # a guess is right in 8%
    for line in said:
        best, other = line["top"]
        assert best == {"class": line["class"], "probability": line["probability"]}
        assert best["probability"] >= other["probability"] > 0
        assert best["class"] != other["class"]


def test_predict_chooses_among_known_and_new_classes(used: dict[str, Any]) -> None:
    assert used["both"].rc == 0, used["both"].err
    new = {"[red] fox", "größe", "[bold]"}
    said = {line["class"] for line in predictions(used["both"])}
    assert said & new
    assert said <= new | {f"{round} {i}" for round in ("first", "second") for i in range(6)}


def test_examples_of_known_classes_are_told(used: dict[str, Any]) -> None:
    assert used["twice"].err.startswith("of 6 of the known classes there are examples")
    images = [line["image"] for line in predictions(used["folder"])]
    assert [line["image"] for line in predictions(used["twice"])] == images


def test_predict_takes_patterns(used: dict[str, Any], second: Path) -> None:
    assert used["pattern"].rc == 0, used["pattern"].err
    images = [line["image"] for line in predictions(used["pattern"])]
    assert images == [
        *sorted(map(str, (file for file in second.rglob("*.png") if file.stem in ("01", "11")))),
        *(f"odd/größe/{i:02}.png" for i in range(10)),
    ]


@pytest.mark.parametrize("end", [b"\n", b"\0"])
def test_predict_reads_paths_from_standard_input(
    kedge: Kedge, by_command: dict[str, Path], second: Path, tmp_path: Path, end: bytes
) -> None:
    """And writes them as they are, also what is no text."""
    files = [*sorted((second / "second 1").iterdir())[:3], tmp_path / os.fsdecode(b"caf\xe9.png")]
    shutil.copy(files[0], files[-1])
    ended = subprocess.run(
        [kedge.path, "predict", by_command["next"], "-", "--format", "csv"],
        input=b"".join(os.fsencode(file) + end for file in files),
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    rows = [line.split(b",") for line in ended.stdout.splitlines()]
    assert [row[0] for row in rows] == [b"image", *map(os.fsencode, files)]


def test_predict_prints_csv_for_programs(used: dict[str, Any]) -> None:
    assert used["csv"].rc == 0, used["csv"].err
    rows = list(csv.DictReader(io.StringIO(used["csv"].out)))
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert {Path(row["image"]).name for row in rows} == {"00.png"}
    odds = [float(row["probability"]) for row in rows]
    assert odds == sorted(odds, reverse=True)
    assert sum(odds) <= 1.00001


def test_a_file_whose_name_is_no_text_can_be_found_again(used: dict[str, Any]) -> None:
    (line,) = predictions(used["odd file"])
    assert os.fsencode(line["image"]).endswith(b"/caf\xe9.png")


def test_an_example_class_that_cannot_be_read_is_an_error(used: dict[str, Any]) -> None:
    """Its images would all be named as others."""
    assert used["lacking"].rc == 1
    assert used["lacking"].out == ""
    said = used["lacking"].err.splitlines()[-1]
    assert said.startswith("kedge: lacking/c: this class has no example that can be read")


def test_show_says_what_a_model_is(
    used: dict[str, Any], by_command: dict[str, Path], first: Path, second: Path
) -> None:
    shown = used["show"].out
    assert (used["show"].rc, used["show"].err) == (0, "")
    for words in (
        str(by_command["next"]),
        "16×16 px, grey",
        "conv4 of width 4, 500 weights, 4 features",
        "12, one per class",
        f"round 0  base: 6 classes, 42 images of {first}; validation accuracy ",
        f"round 1  IDA: 6 classes, 42 images of {second}; ",
        "3-way, 2-shot, 3 queries, 3 epochs, 20 episodes each, rate 0.001, seed 3",
        "12 classes known: first 0, first 1,",
        "(--all lists the other 2)",
    ):
        assert words in shown, words
    listed = used["show all"].out.splitlines()
    assert listed[-12:] == [f"{name} {i}" for name in ("first", "second") for i in range(6)]


def test_show_prints_json_for_programs(used: dict[str, Any], by_command: dict[str, Path]) -> None:
    about = json.loads(used["show json"].out)
    model = Model.load(by_command["next"])
    assert about["bytes"] == by_command["next"].stat().st_size
    assert about["classes"] == list(model.classes)
    assert about["anchors"] == {"number": 12, "length": 4, "bytes": 12 * 4 * 4}
    assert about["features"] == model.config.n_features == 4
    assert [entry["method"] for entry in about["lineage"]] == ["base", "IDA"]
    assert about["lineage"][1]["val_accuracy"] == model.lineage[1].val_accuracy
    assert about["weights"] == sum(weight.numel() for weight in model.weights().values())
    assert about["input"] == {"image_size": 16, "colour": False, "fit": "crop", "inverted": False}


def test_predict_prints_a_table_for_people_with_odd_names(used: dict[str, Any]) -> None:
    assert used["odd names"].rc == 0, used["odd names"].err
    for word in ("image", "class", "probability", "[red] fox", "größe", "[bold]"):
        assert word in used["odd names"].out


PLAIN = {  # a command, and what it prints of the class "größe" where there is only ASCII
    "table": (["predict", "odd.kedge", "größe/00.png"], "gr\\xf6\\xdfe/00.png"),
    "csv": (["predict", "odd.kedge", "größe", "--format", "csv"], "gr\\xf6\\xdfe/00.png,1,"),
    "json": (["predict", "odd.kedge", "größe/00.png", "--format", "json"], "gr\\u00f6\\u00dfe/00"),
    "show": (["show", "odd.kedge", "--all"], "gr\\xf6\\xdfe\n"),
    "show json": (["show", "odd.kedge", "--format", "json"], '"gr\\u00f6\\u00dfe"'),
    "inspect": (["data", "inspect", "."], "(gr\\xf6\\xdfe)"),
    "inspect json": (["data", "inspect", ".", "--format", "json"], '"gr\\u00f6\\u00dfe"'),
}


@pytest.fixture(scope="module")
def odd(
    ready: Ready, draw_classes: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = draw_classes(tmp_path_factory.mktemp("odd") / "odd", ["größe", "猫"])
    (folder / "größe" / "01.png").unlink()  # the smallest class is named
    how = ["--n-way", "2", "--n-shot", "1", "--n-query", "1", *QUICK, "--width", "1"]
    ended = ready.kedge("train", ".", "--out", "odd.kedge", *how, cwd=folder)
    assert ended.rc == 0, ended.err
    return folder


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("what", PLAIN)
def test_what_the_output_cannot_have_is_escaped(
    odd: Path, kedge: Kedge, what: str, encoding: str
) -> None:
    """JSON in its own way, so that it can be read."""
    words, expected = PLAIN[what]
    ended = subprocess.run(
        [kedge.path, *words],
        cwd=odd,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.decode(encoding)
    assert expected in said or encoding != "ascii"
    assert "json" not in what or json.loads(said)


def test_show_counts_one_as_one(odd: Path, ready: Ready) -> None:
    shown = ready.kedge("show", "odd.kedge", cwd=odd).out
    assert "2-way, 1-shot, 1 query, 1 epoch, 2 episodes each, rate" in shown


INTERRUPTED = """
import os, signal, sys
class Now:
    def find_spec(self, name, *_):
        if name == "tyro":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Now())
sys.argv = ["kedge", "paper"]
from kedge.cli import main
main()
"""


def test_ctrl_c_while_it_starts_is_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "kedge: stopped.\n")


# ── benchmark and report ─────────────────────────────────────────────────────────────────────

TINY = [*SHORT, *QUICK, "--width", "4", "--eval-episodes", "20"]


@pytest.fixture(scope="module")
def bench(kedge: Kedge, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("bench") / "run"
    command = ["bench", "--methods", "NU", "IDA", *TINY, "--out", folder]
    return folder, kedge(*command)


def test_bench_prints_the_table_and_leaves_the_report(bench: tuple[Path, Any]) -> None:
    folder, ended = bench
    assert ended.rc == 0, ended.err
    assert "IDA" in ended.out
    assert str(folder / "report.html") in ended.out
    record = Record.load(folder / "record.json")
    mean = record.score("IDA", 1, "old").mean
    for file in ("report.html", "table.md", "table.tex"):
        assert f"{mean:.1f}" in (folder / file).read_text()
    assert list((folder / "figures").glob("*.svg"))
    assert ended.err.count("\n") < 10  # progress bars are for terminals


@pytest.fixture(scope="module")
def reports(
    ready: Ready, bench: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """Of a folder with nothing but a record, and of two records in one folder."""
    folder = tmp_path_factory.mktemp("reports")
    record = (bench[0] / "record.json").read_text()
    (folder / "run").mkdir()
    (folder / "run" / "record.json").write_text(record)
    for name in ("monday", "tuesday"):
        (folder / f"{name}.json").write_text(json.dumps(json.loads(record) | {"name": name}))
    return folder, ready.kedge("report", "run", "monday.json", "tuesday.json", cwd=folder)


def test_report_is_rendered_again_from_the_record_alone(
    reports: tuple[Path, Any], bench: tuple[Path, Any]
) -> None:
    folder, ended = reports
    assert ended.out.splitlines()[:8] == bench[1].out.splitlines()[:8]
    for file in ("report.html", "table.md", "table.tex"):
        assert (folder / "run" / file).read_bytes() == (bench[0] / file).read_bytes()


def test_no_report_is_written_where_one_of_the_runs_is_not_there(
    ready: Ready, bench: tuple[Path, Any], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(bench[0] / "record.json", tmp_path / "run")
    before = contents(tmp_path)
    ended = ready.kedge("report", "run", "gone", cwd=tmp_path)
    assert (ended.sentence.startswith("gone: no record here"), ended.out) == (True, "")
    assert contents(tmp_path) == before


def test_reports_of_two_records_do_not_overwrite_each_other(reports: tuple[Path, Any]) -> None:
    pages = [page.read_text() for page in reports[0].rglob("*.html")]
    for name in ("monday", "tuesday"):
        assert any(f">{name}<" in page or f"{name}:" in page for page in pages), name


# ── the paper, and pipes ─────────────────────────────────────────────────────────────────────


def test_paper_lists_and_prints_tables(kedge: Kedge) -> None:
    listed, printed = kedge("paper"), kedge("paper", "1")
    assert listed.rc == printed.rc == 0
    assert listed.err == printed.err == ""
    assert "mini-pn" in listed.out
    assert "Table 1" in printed.out
    assert "75.11" in printed.out
    assert kedge("paper", "mini-pn").out == printed.out


@pytest.mark.parametrize(
    "command", [["paper"], ["paper", "1"], ["bench", "--help"], ["predict", "--format", "json"]]
)
def test_reader_that_goes_away_is_no_error(
    kedge: Kedge, command: list[str], by_command: dict[str, Path], first: Path
) -> None:
    """As in `kedge paper | head -1`, at its worst: nobody reads a single line."""
    if command[0] == "predict":
        command = [*command, str(by_command["base"]), str(first), "--support", str(first)]
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [kedge.path, *command], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(write)
    assert ended.stderr.strip() == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [["paper"], ["recipes"], ["show"], ["predict"], ["csv"]])
def test_output_that_cannot_be_written_is_told(
    kedge: Kedge,
    command: list[str],
    unbuffered: str,
    by_command: dict[str, Path],
    first: Path,
    tmp_path: Path,
) -> None:
    """A script must not believe that it has it all."""
    base = str(by_command["base"])
    if command == ["show"]:
        command = ["show", base]
    elif command in (["predict"], ["csv"]):
        form = ["--format", "csv"] if command == ["csv"] else []
        command = ["predict", base, str(first), *form]
    with open(tmp_path / "out", "w") as out:
        ended = subprocess.run(
            [kedge.path, *command],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1, ended.stderr
    said = ended.stderr.strip().splitlines()[-1]
    assert said.startswith("kedge: standard output could not be written (File too large)")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("out", [".", "/"])
@pytest.mark.parametrize("command", [["train"], ["data", "pack"]])
def test_a_folder_without_a_name_is_no_file_to_write(
    ready: Ready, first: Path, tmp_path: Path, command: list[str], out: str
) -> None:
    ended = ready.kedge(*command, first, "--out", out, cwd=tmp_path)
    assert ended.sentence == f"{out}: this is a folder; give the name of a file to write in it."
    assert not list(tmp_path.iterdir())


# ── one process at a time ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", [["train"], ["update", "base.kedge"]])
def test_a_second_process_is_told_of_the_file(
    ready: Ready, by_command: dict[str, Path], first: Path, tmp_path: Path, command: list[str]
) -> None:
    shutil.copy(by_command["base"], tmp_path)
    with exclusive(tmp_path, ".next.kedge.lock"):
        ended = ready.kedge(*command, first, "--out", "next.kedge", *SHORT, *QUICK, cwd=tmp_path)
    said = "next.kedge: another kedge process is working here; wait for it or use another --out."
    assert ended.sentence == said
    assert [path.name for path in tmp_path.iterdir()] == ["base.kedge"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder of Linux")
def test_a_folder_that_takes_no_file_is_not_in_use(ready: Ready, first: Path) -> None:
    ended = ready.kedge("train", first, "--out", "/proc/next.kedge", *SHORT, *QUICK)
    assert ended.sentence.startswith("/proc: cannot write here (")


# ── methods with a memory, by the command ────────────────────────────────────────────────────

REMEMBER = {"EIML": "eiml exemplars=4", "EWC": "EWC episodes=3"}  # small letters do as well


@pytest.fixture(scope="module", params=REMEMBER)
def chain(
    request: pytest.FixtureRequest,
    ready: Ready,
    draw_classes: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path, dict[str, Any]]:
    """Trained and updated twice; images are deleted as soon as a command has read them."""
    folder, method = tmp_path_factory.mktemp("chain"), REMEMBER[request.param]
    ended = {}
    models = ["base.kedge", "next.kedge", "last.kedge"]
    for number, model in enumerate(models):
        draw_classes(folder / "images", [f"{model} {i}" for i in range(6)])
        how = ["train", "images", "--width", "4", "--keep", method]
        if number:
            how = ["update", models[number - 1], "images", "--method", method]
        ended[model] = ready.kedge(*how, "--out", model, *SHORT, *QUICK, cwd=folder)
        shutil.rmtree(folder / "images")
    return request.param, folder, ended


def test_updates_go_on_from_what_was_kept_after_the_images_are_gone(
    chain: tuple[str, Path, dict[str, Any]],
) -> None:
    name, folder, ended = chain
    assert [each.rc for each in ended.values()] == [0, 0, 0], [each.err for each in ended.values()]
    files = {f"{model}{end}" for model in ended for end in ("", ".memory")}
    assert {path.name for path in folder.iterdir()} == files
    model = Model.load(folder / "last.kedge")
    assert [entry.method.split()[0] for entry in model.lineage] == ["base", name, name]
    kept = [load_file(folder / f"{model}.memory") for model in ended]
    if name == "EIML":
        assert [memory["counts"].tolist() for memory in kept] == [[4] * 6, [4] * 12, [4] * 18]
        assert (kept[2]["images"][:24] == kept[0]["images"]).all()
    else:
        for key in kept[0]:
            assert (kept[2][key] >= kept[1][key]).all()


def test_what_is_kept_and_what_is_not_is_told(
    chain: tuple[str, Path, dict[str, Any]], ready: Ready, second: Path, tmp_path: Path
) -> None:
    name, folder, ended = chain
    for model, each in ended.items():
        assert f"{model}.memory: what {name} " in each.err
        assert "not carried on" not in each.err
        assert "images were kept of" not in each.err
    for file in ("base.kedge", "base.kedge.memory"):
        shutil.copy(folder / file, tmp_path)
    how = [second, *SHORT, *QUICK]
    lost = ready.kedge("update", "base.kedge", *how, "--out", "lost.kedge", cwd=tmp_path)
    assert f"base.kedge.memory: what {name} kept is not carried on" in lost.err
    if name == "EIML":  # from now on of the new classes alone
        again = [*how, "--keep", name]
        ready.kedge("update", "lost.kedge", *again, "--out", "part.kedge", cwd=tmp_path)
        part = ready.kedge("update", "part.kedge", *again, "--out", "next.kedge", cwd=tmp_path)
        n = len(list(second.iterdir()))
        assert f"images were kept of {n} of the {n + 6} classes" in part.err


def test_remarks_on_images_are_made_once_though_these_are_read_again_to_keep_some(
    ready: Ready, draw_classes: Callable[..., Path], tmp_path: Path
) -> None:
    images = draw_classes(tmp_path / "images", ["a", "b", "c", "d", "e", "f"])
    shutil.copy(images / "a" / "00.png", images / "stray.png")
    (images / "a" / "broken.png").write_bytes(b"no image")
    how = ["--width", "4", "--keep", REMEMBER["EIML"], "--out", "m.kedge", *SHORT, *QUICK]
    ended = ready.kedge("train", "images", *how, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    for remark in ("stray.png", "could not be read"):
        assert ended.err.count(remark) == 1


def test_a_memory_that_is_not_for_this_is_not_used(
    chain: tuple[str, Path, dict[str, Any]], ready: Ready, second: Path, tmp_path: Path
) -> None:
    """Of the other method, and of a model that lay under this name before."""
    name, folder, _ = chain
    for file in ("base.kedge", "base.kedge.memory"):
        shutil.copy(folder / file, tmp_path)
    how = [second, "--out", "new.kedge", *SHORT, *QUICK]
    other = "EWC" if name == "EIML" else "EIML"
    said = refused(ready.kedge("update", "base.kedge", *how, "--method", other, cwd=tmp_path))
    assert said.startswith(f"{other} needs ")
    assert "when this model was made" in said
    shutil.copy(folder / "next.kedge", tmp_path / "base.kedge")
    ended = ready.kedge("update", "base.kedge", *how, "--method", name, cwd=tmp_path)
    assert "base.kedge.memory: was kept with another model than base.kedge" in ended.err
    assert f"kedge: {name} needs " in ended.err
    assert ended.rc == 1
    (tmp_path / "base.kedge.memory").write_bytes(b"damaged")
    said = refused(ready.kedge("update", "base.kedge", *how, "--method", name, cwd=tmp_path))
    assert "base.kedge.memory" in said
    assert said.endswith("copy it again, or move it away: IDA, DFA and FT need none.")
    assert {path.name for path in tmp_path.iterdir()} == {"base.kedge", "base.kedge.memory"}


def test_a_forged_memory_is_told_before_training(
    chain: tuple[str, Path, dict[str, Any]], ready: Ready, second: Path, tmp_path: Path
) -> None:
    """Also where the update itself does not need it, and it is only to be kept."""
    name, folder, _ = chain
    about, kept = load_tensors(folder / "base.kedge.memory", "memory of a method")
    forged = {key: torch.zeros(1, dtype=value.dtype) for key, value in kept.items()}
    shutil.copy(folder / "base.kedge", tmp_path)
    save_tensors(tmp_path / "base.kedge.memory", forged, about)
    how = ["update", "base.kedge", second, "--out", "new.kedge", *SHORT, *QUICK, "--keep", name]
    said = ready.kedge(*how, cwd=tmp_path).sentence
    assert said.startswith(f"{name}: ")
    assert said.endswith(" is damaged.")
    save_tensors(tmp_path / "base.kedge.memory", forged, {**about, "method": ""})
    said = refused(ready.kedge(*how[:-2], "--method", name, cwd=tmp_path))
    assert said.startswith(f"{name} needs ")
    assert {path.name for path in tmp_path.iterdir()} == {"base.kedge", "base.kedge.memory"}


# ── recipes by the command ───────────────────────────────────────────────────────────────────

OWN = """
title = "Three ways, for tests."
protocol = "folder"
methods = ["NU", "FT"]
eval_episodes = 20
test_ways = [3, [2, 4]]

[episode]
n_way = [3, 4]
n_shot = 2
n_query = 3

[schedule]
epochs = 1
episodes = 2
val_episodes = 4

[backbone]
width = 4
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, draw_classes: Callable[..., Path]) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    draw_classes(path.parent / "images", [f"class {i}" for i in range(20)])
    return path


def test_recipes_are_listed_and_printed_to_be_copied(ready: Ready, tmp_path: Path) -> None:
    listed = ready.kedge("recipes", cwd=tmp_path)
    assert (listed.rc, listed.err) == (0, "")
    for name in ("mini-pn", "drawings-mini-pn", "drawings-hard-tasks", "lambda-sweep"):
        assert name in listed.out
    names = re.findall(r"^│ (\S+)", listed.out, re.MULTILINE)
    assert len(names) == len(set(names)), "one name runs one thing"
    assert set(names) == {*recipe_names(), *PROTOCOLS}
    printed = ready.kedge("recipes", "drawings-any-shape", cwd=tmp_path)
    assert (printed.rc, printed.err) == (0, "")
    (tmp_path / "mine.toml").write_text(printed.out, encoding="utf-8")
    helped = ready.kedge("bench", "mine.toml", "--help", cwd=tmp_path)
    assert (helped.rc, helped.err) == (0, "")
    assert ready.kedge("bench", "drawings-any-shape", "--help", cwd=tmp_path).out == helped.out
    assert "'mini-np'" in ready.kedge("recipes", "mini-np", cwd=tmp_path).sentence


def test_a_protocol_is_not_said_to_be_none_where_a_recipe_is_printed(
    ready: Ready, tmp_path: Path
) -> None:
    """It stands in the list of recipes."""
    said = ready.kedge("recipes", "folder", cwd=tmp_path).sentence
    assert said.startswith("folder: this is a protocol, and no recipe")
    assert "'kedge bench folder' runs it" in said


def test_help_of_a_recipe_shows_its_values(ready: Ready, own: Path) -> None:
    text = " ".join(ready.kedge("bench", own, "--help").out.replace("│", " ").split())
    for said in ("default: NU FT", "default: 20", "default: 3 4", "default: 0.001"):
        assert said in text
    plain = " ".join(ready.kedge("bench", "--help").out.replace("│", " ").split())
    assert "default: NU FT DFA IDA PAR" in plain
    assert "default: 2000" in plain


@pytest.mark.parametrize("name_first", [True, False])
def test_a_recipe_is_run_by_its_path_and_options_change_it(
    ready: Ready, own: Path, tmp_path: Path, name_first: bool
) -> None:
    """Wherever its name stands among the options."""
    without_figures = "import kedge.report; kedge.report.all_figures = lambda record: []\n"
    data = ["--data", own.parent / "images"]
    options = ["--eval-episodes", "10", "--head", "ecm inner_steps=5", *data]
    command = ["bench", own, *options] if name_first else ["bench", *options, own]
    ended = ready.kedge(*command, cwd=tmp_path, first=without_figures)
    assert ended.rc == 0, ended.err
    record = Record.load(tmp_path / "runs" / "own" / "record.json")
    assert record.methods == ("NU", "FT")
    assert record.config["episode"] == {"n_way": [3, 4], "n_shot": 2, "n_query": 3}
    assert record.config["schedule"]["episodes"] == 2
    assert record.config["eval_episodes"] == 10
    assert record.config["head"]["head"] == "ecm inner_steps=5"
    assert record.config["test_ways"] == [3, [2, 4]]
    assert record.score("FT", 1, "old at 2–4-way 2-shot").n == 10
    assert "FT" in ended.out


def test_a_range_of_ways_in_evaluate(
    ready: Ready, by_command: dict[str, Path], first: Path
) -> None:
    command = ["evaluate", by_command["base"], first, "--n-episodes", "20", "--n-query", "3"]
    ended = ready.kedge(*command, "--n-way", "3", "5", "--n-shot", "1", "2")
    assert ended.rc == 0, ended.err
    assert ended.out.endswith("3–5-way, 1–2-shot, 20 episodes over 6 classes\n")
    assert "lesser" in ready.kedge(*command, "--n-way", "5", "3").sentence
    assert "6 classes" in ready.kedge(*command, "--n-way", "3", "7").sentence


# ── images as training saw them, a polite kill, and what cannot be packed ────────────────────


def test_predict_sees_images_as_training_did(
    ready: Ready, tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    """Omniglot is dark on white and shown the other way round; so must be what is asked later."""
    half = tmp_path / "omniglot" / "images_background"
    draw_classes(half / "Greek", [f"character{i:02}" for i in range(6)], side=28)
    draw_classes(tmp_path / "support", ["a", "b", "c"], side=28)
    for path in tmp_path.rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    how = ["train", "omniglot", "--out", "m.kedge", "--width", "4", *SHORT, *QUICK]
    trained = ready.kedge(*how, cwd=tmp_path)
    assert trained.rc == 0, trained.err
    how = ["predict", "m.kedge", "support", "--support", "support", "--format", "json"]
    ended = ready.kedge(*how, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    files = sorted((tmp_path / "support").rglob("*.png"))
    bright = np.stack([255 - np.asarray(Image.open(file)) for file in files])
    classifier = Model.load(tmp_path / "m.kedge").classifier(
        (bright, [file.parent.name for file in files])
    )
    expected = classifier.probabilities(bright).max(1)
    said = predictions(ended)
    assert [line["image"] for line in said] == [str(f.relative_to(tmp_path)) for f in files]
    assert [line["class"] for line in said] == [classifier.classes[i] for i in expected.indices]
    probable = [line["probability"] for line in said]
    assert probable == pytest.approx(expected.values.tolist(), abs=2e-6)


LARGE = """
import signal, tempfile, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts its background jobs
from pathlib import Path
import kedge.data.open as s, kedge.data.parallel_decode as d
tempfile.tempdir = {temporary!r}
s.IN_MEMORY_BYTES = 0
"""
SLOW = """
fast = d.decode_each
def slow(*args):
    Path({begun!r}).touch()
    time.sleep(30)
    return fast(*args)
d.decode_each = slow
"""


@pytest.mark.parametrize("when", ["packing", "training"])
def test_polite_kill_leaves_nothing_temporary(
    ready: Ready, first: Path, tmp_path: Path, signal_when: Callable[..., None], when: str
) -> None:
    """Images that do not fit into memory are packed into a file for as long as the command runs."""
    temporary, begun = tmp_path / "temporary", tmp_path / "begun"
    temporary.mkdir()
    before = LARGE.format(temporary=str(temporary))
    if when == "packing":
        # A thread that sleeps would be waited for, so this one is in the main thread.
        before += SLOW.format(begun=str(begun))
        before += "d.map_batches = lambda work, batches: map(work, batches)\n"
    else:
        begun = tmp_path / "m.kedge.training"
    words = ["kedge", "train", str(first), "--out", str(tmp_path / "m.kedge"), "--width", "4"]
    words += [*SHORT, "--epochs", "1000", "--episodes", "20", "--val-episodes", "4"]
    code = f"{before}import sys, kedge.cli; sys.argv = {words!r}; kedge.cli.main()"
    process = ready.start(code, tmp_path)
    signal_when(process, begun, signal.SIGTERM)
    ended = ready.wait()
    assert ended.rc == 130
    assert ended.err.endswith("kedge: stopped; the same command continues from here.\n")
    assert list(temporary.iterdir()) == []
    left = {"temporary", begun.name}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_what_is_no_image_file_is_not_packed_already(
    ready: Ready, by_command: dict[str, Path], tmp_path: Path
) -> None:
    said = ready.kedge("data", "pack", by_command["base"], cwd=tmp_path).sentence
    assert "base.kedge: this is a model; give images" in said
    assert "already" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["data", "pack"], ["data", "inspect"], ["train"]])
def test_one_class_given_alone_is_told_of_the_folder_above(
    ready: Ready, first: Path, tmp_path: Path, command: list[str]
) -> None:
    out = ["--out", "x"] if command[-1] != "inspect" else []
    said = ready.kedge(*command, first / "first 0", *out, cwd=tmp_path).sentence
    assert "first 0: images lie here, but not in class folders" in said
    assert said.endswith("if this is one class, give the folder above it.")
    assert list(tmp_path.iterdir()) == []


def test_kinds_of_channels_are_listed(ready: Ready, first: Path, tmp_path: Path) -> None:
    ended = ready.kedge("data", "pack", first, "--channels", "red", cwd=tmp_path)
    assert ended.rc == 2
    assert "Traceback" not in ended.err
    for word in ("red", "auto", "grey", "colour"):
        assert word in ended.err
    assert list(tmp_path.iterdir()) == []
