"""`kedge bench`, `recipes`, `report` and `paper`: recipes from beginning to end."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kedge.benchmarks import PROTOCOLS
from kedge.experiments import paper, seed_run
from kedge.experiments.recipes import recipe_names
from kedge.experiments.records import Record, RecordSet

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
"""
PARTS = """
[parts."1 shot".episode]
n_shot = 1

[parts."(1–2) shots".episode]
n_shot = [1, 2]
"""
PAGES = {"report.html", "table.md", "table.tex"}
Cli = Any  # of conftest.py
pytestmark = pytest.mark.usefixtures("few")


def written(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def reports(folder: Path) -> dict[str, bytes]:
    kinds = (".html", ".md", ".tex", ".svg", ".png")
    return {name: text for name, text in written(folder).items() if name.endswith(kinds)}


def squeezed(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "own.toml"
    path.write_text(OWN + PARTS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(recipe: Path, few: object, cli: Cli, tmp_path_factory: Any) -> tuple[Path, Any]:
    """The folder of a recipe with two parts, and what the command printed."""
    folder = tmp_path_factory.mktemp("bench") / "own"
    return folder, cli("bench", recipe, "--out", folder)


@pytest.fixture
def copy(done: tuple[Path, Any], tmp_path: Path) -> Path:
    return shutil.copytree(done[0], tmp_path / "copy")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and are tested with the report."""
    monkeypatch.setattr("kedge.report.record_report.all_figures", lambda record: [])


# ── bench ────────────────────────────────────────────────────────────────────────────────────


def test_each_part_has_a_folder_and_all_have_one_report(done: tuple[Path, Any]) -> None:
    folder, ended = done
    assert ended.rc == 0, ended.err
    assert str(folder / "report.html") in ended.out.replace("\n", "")
    records = RecordSet.load(folder)
    assert (records.name, records.title) == ("own", "Two parts, for tests.")
    assert list(records.parts) == ["1 shot", "(1–2) shots"]
    folders = {"1 shot": folder / "1-shot", "(1–2) shots": folder / "1-2-shots"}
    assert {p for p in folder.iterdir() if p.is_dir()} - {folder / "figures"} == {*folders.values()}
    page = (folder / "report.html").read_text(encoding="utf-8")
    for part, record in records.parts.items():
        assert {file.name for file in folders[part].iterdir()} >= {"record.json", *PAGES}
        assert record.methods == ("NU", "IDA")
        assert record.score("IDA", 1, "old at 2–4-way 1–2-shot" if "2" in part else "old").n == 10
        score = f"{record.score('IDA', 1, 'old').mean:.1f}"
        for text in (page, (folders[part] / "report.html").read_text(encoding="utf-8")):
            assert score in text
        assert part in page
        assert part in ended.out
    for number, part in enumerate(records.parts, 1):
        prefix = f"part {number} of 2, {part}: "
        lines = [line for line in ended.err.splitlines() if line.startswith(prefix)]
        assert [line.removeprefix(prefix).split(":")[0] for line in lines] == [
            "seed 0, round 0, base",
            "seed 0, round 1, NU",
            "seed 0, round 1, IDA",
        ]
    assert all(line.startswith("part ") for line in ended.err.splitlines())


@pytest.mark.usefixtures("no_figures")
def test_second_time_nothing_is_trained(
    copy: Path, recipe: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(copy).items() - reports(copy).items()
    monkeypatch.setattr(seed_run, "train_round", lambda *_: pytest.fail("it trained"))
    monkeypatch.setattr(seed_run, "evaluate_pools", lambda *_: pytest.fail("it tested"))
    assert cli("bench", recipe, "--out", copy).rc == 0
    assert written(copy).items() - reports(copy).items() == before


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name_first", [True, False])
def test_options_override_a_recipe(cli: Cli, tmp_path: Path, name_first: bool) -> None:
    """Wherever its name stands among them."""
    (tmp_path / "plain.toml").write_text(OWN, encoding="utf-8")
    options = ["--seeds", "1", "--eval-episodes", "20", "--head", "ecm inner_steps=5"]
    words = ["plain.toml", *options] if name_first else [*options, "plain.toml"]
    ended = cli("bench", *words, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    folder = tmp_path / "runs" / "plain"
    assert {file.name for file in folder.iterdir()} >= {"record.json", "recipe.json", *PAGES}
    record = Record.load(folder / "record.json")
    assert (record.methods, record.seeds) == (("NU", "IDA"), (1,))
    assert record.config["episode"] == {"n_way": [2, 3], "n_shot": 2, "n_query": 2}
    assert record.config["eval_episodes"] == 20
    assert record.config["head"]["head"] == "ecm inner_steps=5"
    assert record.config["test_ways"] == [3, [2, 4]]


def test_help_shows_the_values_of_a_recipe(cli: Cli, recipe: Path) -> None:
    text = squeezed(cli("bench", recipe, "--help").out)
    for words in ("default: NU IDA", "default: 10", "default: 2 3", "default: 0.001"):
        assert words in text
    plain = squeezed(cli("bench", "--help").out)
    assert "default: NU FT DFA IDA IDA+ PAR" in plain


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("[parts.late.episode]\nn_shot = 99", "images"),
        ("[parts.late]\nupdate_ways = 5", "4 classes"),
        ("[parts.late]\ntest_ways = [5]", "4 classes"),
        ('[parts.late.backbone]\nbackbone = "vgg"', "'vgg'"),
        ("[parts.late]\ndata = 'images'", "--data"),
    ],
)
def test_part_that_cannot_work_is_found_before_any_is_trained(
    change: str, word: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "own.toml").write_text(f"{OWN}{PARTS}\n{change}\n", encoding="utf-8")
    assert word in cli("bench", "own.toml", cwd=tmp_path).sentence
    assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]


@pytest.mark.parametrize("name", ["report.html", "record.json", "figures/mine.png"])
@pytest.mark.parametrize("parts", ["", PARTS])
def test_other_files_in_the_folder_are_not_overwritten(
    name: str, parts: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(OWN + parts, encoding="utf-8")
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    sentence = cli("bench", "own.toml", "--out", "run", cwd=tmp_path).sentence
    assert re.match(r"run/(report|record|figures).*--out", sentence)
    assert written(tmp_path / "run") == {name: b"mine"}


# ── report ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_report_is_written_again_from_records_alone(copy: Path, cli: Cli, tmp_path: Path) -> None:
    expected = reports(copy)
    for file in expected:
        (copy / file).unlink()
    ended = cli("report", copy)
    assert ended.rc == 0, ended.err
    assert reports(copy) == expected
    for words in ("Two parts, for tests", "NU", "IDA", "1 shot", "(1–2) shots"):
        assert words in ended.out
    (tmp_path / "alone").mkdir()
    shutil.copy(copy / "1-shot" / "record.json", tmp_path / "alone")
    assert cli("report", tmp_path / "alone").rc == 0
    assert reports(tmp_path / "alone") == reports(copy / "1-shot")


@pytest.mark.usefixtures("no_figures")
def test_reports_of_record_files_have_folders_of_their_own(
    done: tuple[Path, Any], cli: Cli, tmp_path: Path
) -> None:
    record = done[0] / "1-shot" / "record.json"
    for name in ("record.json", "monday.json", "tuesday.json", "wednesday"):
        shutil.copy(record, tmp_path / name)
    assert cli("report", "record.json", "monday.json", cwd=tmp_path).rc == 0
    assert cli("report", "monday.json", cwd=tmp_path).rc == 0, "its own report is written again"
    pages = {*PAGES, *(f"monday/{page}" for page in PAGES)}
    files = {"record.json", "monday.json", "tuesday.json", "wednesday"}
    assert set(written(tmp_path)) == files | pages
    assert "wednesday.json" in cli("report", "wednesday", cwd=tmp_path).sentence
    before = written(tmp_path)
    assert "gone" in cli("report", "tuesday.json", "gone", cwd=tmp_path).sentence
    assert written(tmp_path) == before, "all records are read before a report is written"


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["report.html", "table.md", "figures/mine.png", "record.json"])
def test_report_overwrites_nothing_but_itself(
    name: str, done: tuple[Path, Any], cli: Cli, tmp_path: Path
) -> None:
    shutil.copy(done[0] / "1-shot" / "record.json", tmp_path / "monday.json")
    file = tmp_path / "monday" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert "monday/" in cli("report", "monday.json", cwd=tmp_path).sentence
    assert written(tmp_path / "monday") == {name: b"mine"}


# ── recipes and the paper ────────────────────────────────────────────────────────────────────


def test_recipes_are_listed_and_printed(cli: Cli, tmp_path: Path) -> None:
    listed = cli("recipes")
    assert (listed.rc, listed.err) == (0, "")
    names = re.findall(r"^│ (\S+)", listed.out, re.MULTILINE)
    assert len(names) == len(set(names)), "one name runs one thing"
    assert set(names) == {*recipe_names(), *PROTOCOLS}
    printed = cli("recipes", "drawings-any-shape")
    (tmp_path / "mine.toml").write_text(printed.out, encoding="utf-8")
    both = ("mine.toml", "drawings-any-shape")
    mine, original = (cli("bench", name, "--help", cwd=tmp_path) for name in both)
    assert mine == original


def test_paper_lists_and_prints_tables(cli: Cli) -> None:
    listed, printed = cli("paper"), cli("paper", "1")
    assert (listed.rc, listed.err) == (printed.rc, printed.err) == (0, "")
    assert all(f" {name} " in listed.out for name in paper.tables())
    assert "Table 1" in printed.out
    assert "75.11" in printed.out
    assert cli("paper", "mini-pn").out == printed.out
