"""A recipe from beginning to end: its folders, its joint report, and the same again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kedge.cli.run_recipe import (
    finished,
    report_again,
    run_recipe,
)
from kedge.errors import KedgeError
from kedge.experiments.recipes import load_recipe
from kedge.experiments.records import Record, RecordSet
from kedge.utils import progress

OWN = """
title = "Two parts, for tests."
protocol = "few-2"
methods = ["NU", "IDA"]
eval_episodes = 10
test_ways = [3, [2, 4]]

[episode]
n_way = [2, 3]
n_shot = 2
n_query = 2

[schedule]
epochs = 1
episodes = 2
val_episodes = 2

[backbone]
width = 4

[parts."1 shot".episode]
n_shot = 1

[parts."(1–2) shots".episode]
n_shot = [1, 2]
"""
PAGES = {"report.html", "table.md", "table.tex"}
Few = dict[int, str]


def written(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def reports(folder: Path) -> dict[str, bytes]:
    """What a report consists of."""
    kinds = (".html", ".md", ".tex", ".svg", ".png")
    return {name: text for name, text in written(folder).items() if name.endswith(kinds)}


def again(path: Path) -> tuple[Any, Path]:
    return report_again(*finished(path))


def shown(renderable: Any) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(
    recipe: Path, few: Few, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RecordSet, Path]:
    folder = tmp_path_factory.mktemp("bench") / "own"
    own = load_recipe(recipe)
    return folder, *run_recipe(own, own.base(), folder)


@pytest.fixture
def copy(done: tuple[Path, RecordSet, Path], tmp_path: Path) -> Path:
    return shutil.copytree(done[0], tmp_path / "copy")


def test_each_part_has_a_folder_and_all_have_one_report(
    done: tuple[Path, RecordSet, Path],
) -> None:
    folder, collection, page = done
    assert page == folder / "report.html"
    index = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert list(index["parts"]) == list(collection.parts) == ["1 shot", "(1–2) shots"]
    assert (index["name"], index["title"]) == ("own", "Two parts, for tests.")
    assert {p.name for p in folder.iterdir() if p.is_dir()} == set(index["parts"].values())
    joint = page.read_text(encoding="utf-8")
    assert "Two parts, for tests" in joint
    for part, place in index["parts"].items():
        assert {file.name for file in (folder / place).iterdir()} >= {"record.json", *PAGES}
        assert part in joint
        record = Record.load(folder / place / "record.json")
        assert record.methods == ("NU", "IDA")
        score = f"{collection.parts[part].score('IDA', 1, 'old').mean:.1f}"
        assert score in joint
        assert score in (folder / place / "report.html").read_text(encoding="utf-8")
    shots = [record.config["episode"]["n_shot"] for record in collection.parts.values()]
    assert shots == [1, [1, 2]]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_line_says_of_which_part_it_is(
    jobs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.report.all_figures", lambda record: [])
    monkeypatch.setattr("kedge.utils.progress.LINE_EVERY", 0)
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace("few-2", "drawings"), encoding="utf-8")
    own = load_recipe(path)
    with progress.display():
        run_recipe(own, own.base(), tmp_path / "run", jobs)
    lines = capsys.readouterr().err.splitlines()
    for begin in ("part 1 of 2, 1 shot: ", "part 2 of 2, (1–2) shots: "):
        of_part = [line.removeprefix(begin) for line in lines if line.startswith(begin)]
        done = [line.split(":")[0] for line in of_part if line.startswith("seed")]
        assert sorted(done) == [
            "seed 0, round 0, base",
            "seed 0, round 1, IDA",
            "seed 0, round 1, NU",
        ]
        assert any(line.startswith("drawings: training episodes: 4 of 4, ") for line in of_part)
    assert all(line.startswith("part ") for line in lines)


def test_the_second_time_nothing_is_done_and_all_is_the_same(
    copy: Path,
    done: tuple[Path, RecordSet, Path],
    recipe: Path,
    few: Few,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Figures apart, which take seconds; they follow from the records, see below."""

    def refuse(*args: object) -> None:
        pytest.fail("it trained or tested again")

    before = written(copy).items() - reports(copy).items()
    monkeypatch.setattr("kedge.report.all_figures", lambda record: [])
    monkeypatch.setattr("kedge.experiments.experiment.train_round", refuse)
    monkeypatch.setattr("kedge.experiments.experiment.evaluate", refuse)
    own = load_recipe(recipe)
    collection, page = run_recipe(own, own.base(), copy)
    assert collection == done[1]
    assert page == copy / "report.html"
    assert written(copy).items() - reports(copy).items() == before


def test_the_report_of_a_recipe_is_written_anew_from_its_records_alone(
    copy: Path, done: tuple[Path, RecordSet, Path]
) -> None:
    expected = reports(copy)
    for file in expected:
        (copy / file).unlink()
    table, page = again(copy)
    assert page == copy / "report.html"
    assert reports(copy) == expected
    for name in ("Two parts, for tests", "NU", "IDA", "1 shot", "(1–2) shots"):
        assert name in shown(table)


def test_the_report_of_a_folder_with_a_record_is_written_anew_in_it(
    done: tuple[Path, RecordSet, Path], tmp_path: Path
) -> None:
    folder = done[0]
    place = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["parts"]["1 shot"]
    expected = reports(folder / place)
    record = folder / place / "record.json"
    (tmp_path / "alone").mkdir()
    shutil.copy(record, tmp_path / "alone")
    table, page = again(tmp_path / "alone")
    assert page == tmp_path / "alone" / "report.html"
    assert reports(tmp_path / "alone") == expected
    assert "IDA" in shown(table)


def test_the_report_of_a_record_file_is_written_beside_it(
    done: tuple[Path, RecordSet, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has a name of its own gets a folder of its own: there may be more of them."""
    monkeypatch.setattr("kedge.report.all_figures", lambda record: [])
    place = json.loads((done[0] / "recipe.json").read_text(encoding="utf-8"))["parts"]["1 shot"]
    for name in ("record.json", "monday.json"):
        shutil.copy(done[0] / place / "record.json", tmp_path / name)
    _, page = again(tmp_path / "record.json")
    assert page == tmp_path / "report.html"
    _, page = again(tmp_path / "monday.json")
    assert page == tmp_path / "monday" / "report.html"
    assert set(written(tmp_path)) == {
        "record.json", "monday.json", *PAGES, *(f"monday/{page}" for page in PAGES)
    }  # fmt: skip
    assert page.read_bytes() == (tmp_path / "report.html").read_bytes()


def test_a_record_file_needs_an_ending(done: tuple[Path, RecordSet, Path], tmp_path: Path) -> None:
    """Without one, the folder of its report would have its own name."""
    shutil.copy(next(done[0].glob("*/record.json")), tmp_path / "monday")
    with pytest.raises(KedgeError, match=r"monday: .* rename it to monday\.json\.$"):
        again(tmp_path / "monday")
    assert list(written(tmp_path)) == ["monday"]


@pytest.mark.parametrize("name", ["report.html", "table.md", "figures/mine.png", "record.json"])
def test_the_report_of_a_record_file_overwrites_nothing_but_itself(
    name: str,
    done: tuple[Path, RecordSet, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither what others have in a folder of its name, nor the report of another run."""
    monkeypatch.setattr("kedge.report.all_figures", lambda record: [])
    file, folder = tmp_path / "monday.json", tmp_path / "monday"
    shutil.copy(next(done[0].glob("*/record.json")), file)
    if name == "record.json":
        again(file)
        assert again(file)[1] == folder / "report.html"  # its own is written again
        (folder / "report.html").write_text("<title>another – kedge</title>", encoding="utf-8")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine")
    before = written(tmp_path)
    with pytest.raises(KedgeError, match=r"monday/\S+: is there .* monday\.json another name"):
        again(file)
    assert written(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("[parts.late.episode]\nn_shot = 99", "images in the"),
        ("[parts.late]\nupdate_ways = 5", "4 classes"),
        ("[parts.late]\ntest_ways = [5]", "4 classes"),
        ('[parts.late.backbone]\nbackbone = "vgg"', "no backbone 'vgg'"),
        ('[parts.late.head]\nhead = "ecm stepz=5"', "ecm knows the options"),
        ("[parts.late]\ndata = 'images'", "--data"),
    ],
)
def test_a_part_that_cannot_work_is_found_before_anything_is_trained_or_written(
    change: str, fault: str, few: Few, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kedge.experiments.experiment.train_round", lambda *_: pytest.fail("it trained")
    )
    path, folder = tmp_path / "own.toml", tmp_path / "run"
    path.write_text(f"{OWN}\n{change}\n", encoding="utf-8")
    own = load_recipe(path)
    with pytest.raises(KedgeError, match=fault) as caught:
        run_recipe(own, own.base(), folder)
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_a_recipe_without_parts_lies_in_the_folder_itself(
    few: Few, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.report.all_figures", lambda record: [])
    path, folder = tmp_path / "plain.toml", tmp_path / "run"
    path.write_text(OWN.split("[parts")[0], encoding="utf-8")
    own = load_recipe(path)
    collection, page = run_recipe(own, own.base(), folder)
    assert list(collection.parts) == [""]
    assert page == folder / "report.html"
    assert {file.name for file in folder.iterdir()} >= {"record.json", "recipe.json", *PAGES}
    before = reports(folder)
    assert again(folder)[1] == page
    assert reports(folder) == before


@pytest.mark.parametrize("name", ["report.html", "record.json", "figures/mine.png"])
@pytest.mark.parametrize("parts", [True, False])
def test_what_others_have_in_the_folder_is_not_overwritten(
    name: str, parts: bool, few: Few, tmp_path: Path
) -> None:
    path, folder = tmp_path / "own.toml", tmp_path / "run"
    path.write_text(OWN if parts else OWN.split("[parts")[0], encoding="utf-8")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")
    own = load_recipe(path)
    with pytest.raises(KedgeError, match=r"run/\w+(\.\w+)?: is there already.* --out") as caught:
        run_recipe(own, own.base(), folder)
    assert "\n" not in str(caught.value)
    assert written(folder) == {name: b"mine"}


def test_a_recipe_does_not_mix_with_an_experiment(copy: Path, few: Few, tmp_path: Path) -> None:
    path = tmp_path / "plain.toml"
    path.write_text(OWN.split("[parts")[0], encoding="utf-8")
    own, before = load_recipe(path), written(copy)
    with pytest.raises(KedgeError, match="not by this recipe"):
        run_recipe(own, own.base(), copy)
    assert written(copy) == before


def test_results_do_not_go_among_the_images(
    draw_classes: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the figures would be a class when the command is given again."""
    draw_classes(tmp_path, list("abcdefgh"))
    monkeypatch.chdir(tmp_path)
    own = load_recipe("folder")
    with pytest.raises(KedgeError, match=r"^runs/x: lies in \., .* --out"):
        run_recipe(own, replace(own.base(), data="."), "runs/x")
    assert not Path("runs").exists()


def damaged(folder: Path, content: str) -> None:
    (folder / "recipe.json").write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: damaged(folder, ""),
        lambda folder: damaged(folder, "[]"),
        lambda folder: damaged(folder, '{"format": 1}'),
        lambda folder: damaged(folder, '{"format": 1, "parts": {"x": "../.."}}'),
        lambda folder: shutil.rmtree(next(p for p in folder.iterdir() if "shots" in p.name)),
    ],
)
def test_a_damaged_folder_is_named(copy: Path, spoil: Callable[[Path], None]) -> None:
    spoil(copy)
    with pytest.raises(KedgeError, match=r"(recipe|record)\.json: ") as caught:
        again(copy)
    assert "\n" not in str(caught.value)
