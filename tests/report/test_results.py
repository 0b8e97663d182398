"""The results page: that of the repository agrees with its records, and any other with its own."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kedge.config import EpisodeShape
from kedge.errors import KedgeError
from kedge.evaluation.results import Score
from kedge.experiments.records import (
    PairedDifference,
    PoolInfo,
    Record,
    RecordSet,
    Run,
)
from kedge.report.claims import CLAIMS
from kedge.report.evidence import (
    FAMILIES,
    Comparison,
    of_family,
)
from kedge.report.extra_tables import (
    ages_table,
    drift_table,
    seed_differences_table,
    standing_table,
    variants_table,
)
from kedge.report.overview import mark
from kedge.report.results import (
    MARK,
    results_page,
    write_results,
)
from kedge.report.sections import Entry
from kedge.report.table import Table
from kedge.report.tables import accuracy_table
from kedge.training.round import Epoch

ROOT = Path(__file__).parents[2]
PAGES = {"results.md": "records/tiny-*/", "results-drawings.md": "records/drawings*/"}

# ── the page of this repository ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_committed_records_give(name: str) -> None:
    page = ROOT / "docs" / name
    rendered = results_page(sorted(ROOT.glob(PAGES[name])), page)
    there = page.read_text(encoding="utf-8")
    lines = itertools.zip_longest(there.splitlines(), rendered.splitlines())
    differ = [(number, *pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]]
    anew = f"write it anew with: kedge report {PAGES[name]} --results docs/{name}"
    assert not differ, f"{name}, line {differ[0]}; {anew}"
    assert there == rendered, f"{name}: {anew}"


def deciding(folders: Iterable[Path]) -> list[Comparison]:
    collections = [Entry.load(folder).collection for folder in folders]
    families = [found for key in FAMILIES if (found := of_family(key, collections))]
    return [one for found in families for claim in CLAIMS for one in claim.judge(found).deciding]


def marks(picture: Path) -> list[str]:
    ids = re.findall(r'<g id="([^"]* − [^"]*)"', picture.read_text(encoding="utf-8"))
    return sorted(map(html.unescape, ids))


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_picture_shows_the_committed_records(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    (picture,) = re.findall(r"\(figures/(\S+)\.svg\)", text)
    assert marks(ROOT / "docs" / "figures" / f"{picture}.svg") == sorted(
        map(mark, deciding(ROOT.glob(PAGES[name])))
    )


def test_every_record_is_on_a_page() -> None:
    shown = {folder for folders in PAGES.values() for folder in ROOT.glob(folders)}
    assert shown == {path for path in (ROOT / "records").iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_the_page_leads_somewhere(name: str) -> None:
    page = ROOT / "docs" / name
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    files = [link for link in links if not link.startswith("#")]
    assert any(link.endswith(".svg") for link in files)
    assert [link for link in files if not (page.parent / link).exists()] == []
    marks = re.findall(r'<a id="([^"]+)">', text)
    assert len(set(marks)) == len(marks)
    assert {link[1:] for link in links if link.startswith("#")} == {
        *marks, "the-methods", "the-records",
    }  # fmt: skip


# ── made-up records ──────────────────────────────────────────────────────────────────────────

ROWS = {
    "NU": (76.0, 60.0, 64.0),
    "FT": (64.0, 84.0, 65.0),
    "DFA": (66.0, 83.0, 66.0),
    "IDA": (73.0, 83.0, 69.0),
    "PAR": (77.0, 86.0, 69.5),
}
SEEN = ("old", "new", "unseen")


def a_run(
    seed: int, method: str, round: int, scores: dict[str, float], ci: float = 0.4, **more: Any
) -> Run:
    pools = tuple(PoolInfo(name, name, 20, EpisodeShape()) for name in scores)
    epochs = () if method == "NU" else (Epoch(1, 1.0, 0.9, 0.1, 60.0, 1e-3),)
    return Run(
        seed=seed,
        method=method,
        round=round,
        pools=pools,
        scores={name: Score(value, ci, 2000) for name, value in scores.items()},
        history=epochs,
        seconds=60.0,
        peak_memory_mb=100.0,
        kept_bytes_per_class=0.0,
        environment={"gpu": "Some GPU", "torch": "2.11.0", "commit": "abc123"},
        **more,
    )


def a_record(runs: list[Run], ci: float = 0.3) -> Record:
    pairs = [
        PairedDifference(a.seed, a.round, pool, a.method, b.method,
             Score(a.scores[pool].mean - b.scores[pool].mean, ci, 2000))
        for a, b in itertools.combinations(runs, 2)
        if (a.seed, a.round) == (b.seed, b.round)
        for pool in a.scores
    ]  # fmt: skip
    config = {
        "episode": {"n_way": 5, "n_shot": 5, "n_query": 15},
        "schedule": {"epochs": 40, "episodes": 400},
        "backbone": {"backbone": "resnet12", "width": 64},
        "head": {"head": "prototype"},
    }
    splits = {str(run.seed): {"unseen": {"unseen": ["bee"]}} for run in runs}
    return Record("made-up", "Made-up photographs.", config, splits, tuple(runs), tuple(pairs))


def one_update(seeds: tuple[int, ...] = (0,), step: float = 0.0) -> Record:
    """In each further seed IDA is so much better."""
    runs = []
    for seed in seeds:
        for method, values in ROWS.items():
            better = step * seed * (method == "IDA")
            scores = {name: value + better for name, value in zip(SEEN, values, strict=True)}
            runs += [a_run(seed, method, 0, {"old": 70.0, "unseen": 60.0})]
            runs += [a_run(seed, method, 1, scores)]
    return a_record(runs)


LOSS = {"NU": 0.0, "FT": 4.0, "EIML": 0.5, "IDA": 2.0, "IDA anchors=all": 1.0, "PAR": 0.0}


def long_run(updates: int = 4) -> Record:
    """Classes are learned at 80 + their round, and every later round costs what LOSS says."""
    runs = []
    for t, (method, loss) in itertools.product(range(updates + 1), LOSS.items()):
        known = {f"round_{i}": 80.0 + i - loss * max(0, t - i) for i in range(updates + 1)}
        seen = {"old": 80.0 - loss * t, "new": 80.0 + t, "unseen": 60.0 + t - loss}
        moved = {"anchor_drift": loss * t, "anchor_spread": 8.0} if t and method != "PAR" else {}
        runs.append(a_run(0, method, t, {**seen, **known}, measures=moved))
    return a_record(runs)


def without_references(record: Record) -> Record:
    """Those whose device time has ended before NU and PAR were done."""
    runs = [run for run in record.runs if run.method not in ("NU", "PAR")]
    return a_record(runs)


def save(folder: Path, name: str, parts: dict[str, Record], paper: str | None = None) -> Path:
    collection = RecordSet(name, f"All about {name}.", paper, parts)
    for part, record in parts.items():
        record.save(folder / name / RecordSet.folder_of(part) / "record.json")
    collection.save_index(folder / name)
    return folder / name


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Some of Tiny-ImageNet, of the drawings, and of nobody's."""
    for figure in ("5-shot-accuracy", "1-shot-accuracy", "1-shot-training"):
        path = tmp_path / "tiny-pn" / "figures" / f"{figure}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    parts = {"1-shot": one_update(), "5-shot": one_update()}
    return [
        save(tmp_path, "drawings-two-rounds", {"": long_run(2)}),
        save(tmp_path, "mine", {"": one_update()}),
        save(tmp_path, "tiny-rounds", {"": long_run()}),
        save(tmp_path, "tiny-pn", parts, "mini-pn"),
    ]


def rows(text: str) -> list[list[str]]:
    lines = (line for line in text.splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def cells(table: Table) -> dict[str, list[str]]:
    """By label; under a title the label comes after it."""
    return {
        f"{section.title} {row.label}".strip(): [
            f"{cell.text} {cell.mark}".strip() for cell in row.cells
        ]
        for section in table.sections
        for row in section.rows
    }


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def test_claims_come_first_by_family_and_each_has_its_verdict(
    runs: list[Path], tmp_path: Path
) -> None:
    text = results_page(runs, tmp_path / "page.md")
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    assert heads[:5] == [
        "Results",
        "The paper’s claims on Tiny-ImageNet",
        "The paper’s claims on the drawings",
        "How the verdicts come about",
        "The methods",
    ]
    tiny = text.split("claims on Tiny-ImageNet")[1].split("## ")[0]
    verdicts = {row[0].partition("<br>")[0]: row[1:] for row in rows(tiny)[2:]}
    assert list(verdicts) == [claim.sentence for claim in CLAIMS]
    best, numbers = verdicts["On unseen classes IDA is better than every baseline."]
    assert best == "**held**"
    assert "− FT +4.0 ± 0.3" in numbers.replace("\u00a0", " ")
    assert verdicts["More exemplars do not help EIML."] == ["**no record yet**", "–"]
    counts = [row[1].strip("*") for row in rows(tiny)[2:]]
    said = ["held", "did not hold", "undecided", "no record yet"]
    told = [f"{counts.count(one)} {one}" for one in said if one in counts]
    assert all(one in tiny.split("|")[0] for one in told)


def test_records_stand_in_reading_order_whatever_the_order_given(
    runs: list[Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    text = results_page(runs, page)
    names = ["tiny-pn", "tiny-rounds", "drawings-two-rounds", "mine"]
    assert re.findall(r'<a id="([^"]+)">', text) == names
    assert re.findall(r"^- \[All about (\S+)\]\(#", text, re.M) == names
    assert results_page(runs[::-1], page) == text


def test_a_section_has_settings_links_words_tables_and_figures(
    runs: list[Path], tmp_path: Path
) -> None:
    text = results_page(runs, tmp_path / "pages" / "page.md")
    section = text.split('<a id="tiny-pn">')[1].split("<a id=")[0]
    assert (
        "40 epochs of 400 episodes; seed 0; resnet12 of width 64; head prototype; Some GPU; "
        "trained in 10 min; torch 2.11.0; commit abc123; "
        "[record of 1-shot](../tiny-pn/1-shot/record.json); "
        "[record of 5-shot](../tiny-pn/5-shot/record.json)."
    ) in section
    assert "in the same order as in the paper’s table 1" in section
    assert "**5-shot: accuracy.** IDA keeps 73.0% on old classes where fine-tuning" in section
    assert ["IDA", "**73.0 ± 0.4**", "83.0 ± 0.4", "**69.0 ± 0.4**"] in rows(section)
    assert ["IDA − FT", "+9.0 ± 0.3 ▲", "−1.0 ± 0.3 ▼", "+4.0 ± 0.3 ▲"] in rows(section)
    assert re.findall(r"!\[(.*)\]\((\S+\.svg)\)", section) == [
        (f"{part}: Accuracy by method and pool", f"../tiny-pn/figures/{part}-accuracy.svg")
        for part in ("1-shot", "5-shot")
    ]


def test_sweeps_and_rounds_take_the_place_of_the_plain_figure(tmp_path: Path) -> None:
    folder = save(tmp_path, "tiny-rounds", {"": long_run()})
    page = tmp_path / "page.md"
    (folder / "figures").mkdir()
    names = {
        "accuracy": "Accuracy by method and pool",
        "drift": "How far classes drift from their anchors",
        "rounds": "Accuracy after each round",
        "sweep-lambda": "Accuracy as λ changes",
        "sweep-lambda-plane": "What is kept and learned as λ changes",
    }

    def drawn() -> list[tuple[str, str]]:
        return re.findall(r"!\[(.*)\]\(.*/(.*)\.svg\)", results_page([folder], page))

    def shown(*keys: str) -> list[tuple[str, str]]:
        return [(names[key], key) for key in keys]

    assert drawn() == []
    for added, expected in (
        ("accuracy", shown("accuracy")),
        ("drift", shown("drift")),
        ("rounds", shown("rounds", "drift")),
        ("sweep-lambda-plane", shown("sweep-lambda-plane")),
        ("sweep-lambda", shown("sweep-lambda", "sweep-lambda-plane")),
    ):
        (folder / "figures" / f"{added}.svg").touch()
        assert drawn() == expected


def test_every_number_of_the_main_table_is_on_the_page(runs: list[Path], tmp_path: Path) -> None:
    text = results_page(runs, tmp_path / "page.md").replace("**", "")
    for values in cells(accuracy_table(long_run(), 4)).values():
        assert f"| {' | '.join(values)} |" in text


def test_free_text_cannot_break_the_page(tmp_path: Path) -> None:
    folder = save(tmp_path, "mine", {"": one_update()})
    hostile = RecordSet("mine", "<script>| a_b", None, {"": one_update()})
    hostile.save_index(folder)
    text = results_page([folder], tmp_path / "page.md")
    assert "<script>" not in text
    assert "### &lt;script&gt;\\| a\\_b" in text


# ── the tables that only this page has ───────────────────────────────────────────────────────


def test_each_seed_is_shown_by_itself() -> None:
    table = seed_differences_table(one_update((0, 1, 2), step=-2.2))
    assert table is not None
    shown = cells(table)
    assert shown["IDA − FT seed 0"] == ["+9.0 ± 0.3 ▲", "−1.0 ± 0.3 ▼", "+4.0 ± 0.3 ▲"]
    assert shown["IDA − FT seed 2"] == ["+4.6 ± 0.3 ▲", "−5.4 ± 0.3 ▼", "−0.4 ± 0.3 ▼"]
    assert seed_differences_table(one_update()) is None


def test_classes_are_shown_by_age_with_what_they_have_lost() -> None:
    table = ages_table(long_run())
    assert table is not None
    assert [column.label for column in table.columns] == list(LOSS)
    shown = {
        age: [cell.replace("\u00a0", " ") for cell in row] for age, row in cells(table).items()
    }
    assert list(shown) == ["0", "1", "2", "3", "4"]
    # After rounds 1 to 4, on the classes of the round before: 80, 81, 82, 83, less the loss.
    assert shown["1"][:2] == ["81.5 (0.0)", "77.5 (−4.0)"]
    assert shown["4"] == [
        "80.0 (0.0)", "64.0 (−16.0)", "78.0 (−2.0)", "72.0 (−8.0)", "76.0 (−4.0)", "80.0 (0.0)"
    ]  # fmt: skip
    assert shown["0"][0] == "82.0"
    assert ages_table(long_run(2)) is None
    assert "NU has seen none of them" in table.caption
    without = ages_table(without_references(long_run()))
    assert without is not None
    assert "NU" not in without.caption


def test_drift_is_shown_round_by_round_and_only_for_those_that_drift() -> None:
    table = drift_table(long_run())
    assert table is not None
    assert [column.label for column in table.columns] == ["FT", "EIML", "IDA", "IDA anchors=all"]
    assert cells(table)["3"] == ["1.50", "0.19", "0.75", "0.38"]
    assert drift_table(one_update()) is None


def test_variants_are_held_against_plain_ida() -> None:
    table = variants_table(long_run())
    assert table is not None
    assert cells(table) == {"IDA anchors=all − IDA": ["+4.0 ± 0.3 ▲", "0.0 ± 0.3", "+1.0 ± 0.3 ▲"]}
    assert variants_table(one_update()) is None


def test_where_ida_stands_is_shown_after_every_round() -> None:
    table = standing_table(long_run())
    assert table is not None
    assert [column.heading for column in table.columns] == [
        f"{pool}, IDA − {other}" for pool in ("old", "unseen") for other in ("FT", "EIML", "PAR")
    ]
    assert cells(table)["2"][:3] == ["+4.0 ± 0.3 ▲", "−3.0 ± 0.3 ▼", "−4.0 ± 0.3 ▼"]
    assert list(cells(table)) == ["1", "2", "3", "4"]


def test_the_long_run_has_all_of_them_on_the_page(runs: list[Path], tmp_path: Path) -> None:
    text = results_page(runs, tmp_path / "page.md")
    section = text.split('<a id="tiny-rounds">')[1].split("<a id=")[0]
    for make in (standing_table, variants_table, ages_table, drift_table):
        table = make(long_run())
        assert table is not None
        assert f"**{table.title}.**" in section


def test_no_sentence_of_a_section_is_about_methods_that_are_not_there(tmp_path: Path) -> None:
    folder = save(tmp_path, "tiny-rounds", {"": without_references(long_run())})
    section = results_page([folder], tmp_path / "page.md").split('<a id="tiny-rounds">')[1]
    assert re.findall(r"\b(NU|PAR)\b", section) == []
    assert "gap closed" not in section.lower()


def test_the_options_of_the_methods_are_explained_once(tmp_path: Path) -> None:
    labels = ("IDA", "IDA lambda=5 anchors=all", "IDA lambda=0.5", "PAR", "PAR start=last")
    record = a_record([a_run(0, method, 1, {"old": 70.0}) for method in labels])
    text = results_page([save(tmp_path, "mine", {"": record})], tmp_path / "page.md")
    shown = rows(text.split("## The methods")[1].split("## ")[0])
    assert [row[0] for row in shown[2:]] == [
        "**IDA**", "**IDA lambda=N**", "**IDA anchors=all**", "**PAR**", "**PAR start=last**"
    ]  # fmt: skip
    assert shown[3][2] == (
        "as IDA, but λ, the weight of the penalty that holds it, is N (otherwise 1)"
    )
    assert shown[6][2].startswith("as PAR, but each round goes on from the model of its last one")


# ── the command ──────────────────────────────────────────────────────────────────────────────


def test_the_command_writes_the_page_and_writes_it_anew(ready: Any, tmp_path: Path) -> None:
    folder = save(tmp_path, "tiny-pn", {"": one_update()})
    before = sorted(tmp_path.rglob("*"))
    ended = ready.kedge("report", "tiny-pn/", "--results", "docs/page.md", cwd=tmp_path)
    assert (ended.rc, ended.out) == (0, "Results: docs/page.md\n"), ended.err
    page = tmp_path / "docs" / "page.md"
    text = page.read_text(encoding="utf-8")
    assert text == results_page([folder], page)
    picture = page.parent / "figures" / "page-tiny.svg"
    written = [page.parent, page, picture.parent, picture]  # and no report
    assert sorted(tmp_path.rglob("*")) == sorted([*before, *written])
    page.write_text(f"{MARK}\nold", encoding="utf-8")
    assert ready.kedge("report", "--results", "docs/page.md", "tiny-pn", cwd=tmp_path).rc == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_file_that_is_no_results_page_is_left_alone(tmp_path: Path) -> None:
    folder = save(tmp_path, "tiny-pn", {"": one_update()})
    page = tmp_path / "README.md"
    for content in (b"# Mine\n", b"\xff\xfe"):
        page.write_bytes(content)
        with pytest.raises(KedgeError, match=r"README\.md: is there already and is no results"):
            write_results([folder], page)
        assert page.read_bytes() == content
    with pytest.raises(KedgeError, match="is there already"):
        write_results([folder], tmp_path)


def test_what_cannot_be_shown_is_refused_in_a_sentence(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    folder = save(tmp_path, "tiny-pn", {"": one_update()})
    again = save(tmp_path / "again", "tiny-pn", {"": one_update()})
    with pytest.raises(KedgeError, match=r"RUN: \S+ and \S+ are both of tiny-pn; a results page"):
        write_results([folder, again], page)
    with pytest.raises(KedgeError, match="no record here"):
        write_results([tmp_path], page)
    assert not page.exists()


def test_a_record_without_an_index_goes_by_its_folder_or_its_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    one_update().save(tmp_path / "drawings-3-seeds" / "record.json")
    one_update().save(tmp_path / "monday.json")
    text = results_page([tmp_path / "drawings-3-seeds", tmp_path / "monday.json"], page)
    assert re.findall(r"^### (.*)$", text, re.M) == [
        f"{name}: Made-up photographs, with prototypes, 5-way 5-shot"
        for name in ("drawings-3-seeds", "monday")
    ]
    assert "The paper’s claims on the drawings" in text
