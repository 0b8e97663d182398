"""The commands as people type them: real processes, real files, and mistakes of every kind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kedge.records import Record

SHORT = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]
QUICK = ["--epochs", "1", "--episodes", "2", "--val-episodes", "4"]
COMMANDS = ["bench", "train", "update", "evaluate", "predict", "report", "paper"]
Kedge = Ready = Any  # of conftest.py, which cannot be imported


# ── help ─────────────────────────────────────────────────────────────────────────────────────

HELP = {
    "": COMMANDS,
    "bench": ["NAME", "drawings-4-rounds", "kedge recipes", "EIML", "EWC", "--methods", "IDA", "PAR", "--seeds", "--out"],
    "train": ["DATA", "--out", "--val", "--image-size", "--n-way", "--epochs", "--seed"],
    "update": ["MODEL", "DATA", "--out", "--method", "IDA", "DFA", "FT", "not needed"],
    "evaluate": ["MODEL", "DATA", "--n-episodes", "--n-shot", "95%"],
    "predict": ["MODEL", "IMAGE", "--support", "--format", "json"],
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
    "one class": (train("one-class"), ["1 class", "--n-way"]),
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
    "no way": (train("first", "--n-way", "1"), ["--n-way", "at least 2"]),
    "negative seed": (train("first", *SHORT, "--seed", "-1"), ["seed", "-1"]),
    "no size": (train("first", *SHORT, "--image-size", "0", "--width", "1"), ["--image-size"]),
    "vast network": (train("first", *SHORT, "--width", "400000"), ["--width", "memory"]),
    "existing result": (["train", "first", "--out", "base.kedge"], ["base.kedge", "another --out"]),
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
    "images of another size": (["evaluate", "base.kedge", "drawings"], ["28", "16"]),
    "no episodes": (["evaluate", "base.kedge", "first", "--n-episodes", "0"], ["--n-episodes"]),
    "negative test seed": (["evaluate", "base.kedge", "first", *SHORT, "--seed", "-1"], ["seed"]),
    "missing image": (["predict", "base.kedge", "x.png", "--support", "first"], ["x.png", "no "]),
    "no image": (["predict", "base.kedge", "--support", "first"], ["IMAGE"]),
    "missing support": (["predict", "base.kedge", "first", "--support", "gone"], ["gone"]),
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
    sentence = mistaken[mistake].sentence
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
import os, signal, kedge.durable
write = kedge.durable.write_atomically
def write_then_stop(path, fill):
    write(path, fill)
    os.kill(os.getpid(), signal.SIGINT)
kedge.durable.write_atomically = write_then_stop
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
    said = stopped["stopped"].err.strip()
    assert said == "kedge: stopped; the same command continues from here."
    assert stopped["left"] == ["[v2] base.kedge.training"]


def test_stopped_training_is_not_continued_by_another_command(stopped: dict[str, Any]) -> None:
    assert "other options" in stopped["other"].sentence


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
    model, support = by_command["next"], ["--support", second]
    mixed = [second / "second 3" / "00.png", "broken.png", "photo.webp"]
    commands = {
        "evaluate": ["evaluate", model, first, *SHORT, "--n-episodes", "50"],
        "evaluate unknown": ["evaluate", model, odd, *SHORT, "--n-episodes", "50"],
        "folder": ["predict", model, second, *support, "--format", "json"],
        "mixed": ["predict", model, *mixed, *support, "--format", "json"],
        "odd names": ["predict", model, "--support", odd, odd],
    }
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


def test_predict_prints_a_table_for_people_with_odd_names(used: dict[str, Any]) -> None:
    assert used["odd names"].rc == 0, used["odd names"].err
    for word in ("image", "class", "probability", "[red] fox", "größe", "[bold]"):
        assert word in used["odd names"].out


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
