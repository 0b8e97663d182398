"""The paper's numbers: copied exactly, and every fault shown from the numbers themselves."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

from kedge.errors import KedgeError
from kedge.experiments import paper
from kedge.experiments.paper import (
    Cell,
    Place,
    Row,
)

TABLES = paper.tables()

# Written down by hand from the LaTeX source: mean, interval, whether printed in bold.
BY_HAND = [
    ("mini-pn", "NU", "1-shot old", (73.84, 0.50, False)),
    ("mini-pn", "IDA", "1-shot unseen", (55.52, 0.43, True)),
    ("mini-pn", "PAR", "5-shot unseen", (75.27, 0.13, False)),
    ("mini-ecm", "DFA", "5-shot new", (89.70, 0.21, True)),
    ("mini-ecm", "PAR", "1-shot unseen", (59.02, 0.39, False)),
    ("tiered-pn", "NU", "1-shot new", (66.18, 0.43, False)),
    ("tiered-pn", "IDA", "5-shot old", (89.13, 0.15, True)),
    ("domain-pn-5shot", "FT", "5-shot unseen_new_domain", (71.16, 0.32, False)),
    ("domain-ecm-5shot", "IDA", "5-shot unseen_both", (72.64, 0.33, True)),
    ("two-rounds", "NU", "round II old", (82.25, 0.37, False)),
    ("two-rounds", "IDA", "round II new", (93.25, 0.17, True)),
    ("domain-pn-1shot", "PAR", "1-shot unseen_both", (54.57, 0.48, False)),
    ("domain-ecm-1shot", "FT", "1-shot unseen_old_domain", (39.37, 0.35, False)),
    ("domain-reverse-pn-5shot", "DFA", "5-shot unseen_new_domain", (59.64, 0.42, False)),
    ("domain-reverse-pn-1shot", "IDA", "1-shot old", (58.98, 0.47, True)),
    ("domain-reverse-ecm-5shot", "NU", "5-shot new", (91.91, 0.16, False)),
    ("domain-reverse-ecm-1shot", "PAR", "1-shot unseen_both", (58.00, 0.43, False)),
    ("ways-shots-pn", "5-shot 10-way", "1-shot 20-way", (19.90, None, False)),
    ("ways-shots-ecm", "range", "5-shot 5-way", (1.2455, None, False)),
]


def numbers(cell: Cell) -> tuple[float, float | None, bool]:
    return cell.mean, cell.ci, cell.bold


def touched(fault: str) -> set[Place]:
    return set(paper.faults()[fault].cells)


def below(low: Cell, high: Cell) -> bool:
    """Lower, and by so much that the intervals do not overlap."""
    assert low.ci is not None
    assert high.ci is not None
    return low.mean + low.ci < high.mean - high.ci


def printed(table: Table, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


@pytest.mark.parametrize(("table", "row", "column", "expected"), BY_HAND)
def test_numbers_are_those_of_the_source(
    table: str, row: str, column: str, expected: tuple[float, float | None, bool]
) -> None:
    assert numbers(TABLES[table].cell(row, column)) == expected


def test_comparison_has_rows_for_every_data_set() -> None:
    table = TABLES["eiml-vs-ida"]
    assert table.datasets == ("miniImageNet", "tieredImageNet", "DomainImageNet")
    assert numbers(table.cell("EIML", "1-shot old", "tieredImageNet")) == (72.50, 0.51, False)
    assert numbers(table.cell("IDA", "5-shot new", "DomainImageNet")) == (65.78, 0.41, False)
    with pytest.raises(KeyError):
        table.cell("PAR", "1-shot old")


def test_all_tables_are_there_with_all_their_cells() -> None:
    assert [table.number for table in TABLES.values()] == list(range(1, 16))
    sizes = [len(list(table.walk())) for table in TABLES.values()]
    assert sizes == [36, 30, 30, 25, 25, 30, 36, 25, 25, 25, 25, 25, 25, 30, 30]
    for name, table in TABLES.items():
        assert table.head == ("ecm" if "ecm" in name else "prototype")
    tiered = TABLES["tiered-pn"].columns[:3]
    assert [(c.pool, c.n_classes) for c in tiered] == [("old", 176), ("new", 175), ("unseen", 160)]


def test_setting_is_the_papers() -> None:
    setting = paper.setting()
    assert (setting.epochs, setting.episodes_per_epoch, setting.n_query) == (200, 800, 15)
    assert (setting.lr, setting.temperature, setting.lam) == (0.001, 2.0, 1.0)
    assert setting.lam_values == (0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
    assert setting.exemplar_values == (15, 30, 60, 120)
    assert setting.evaluation_episodes == 2000


def test_every_fault_touches_cells_that_name_it() -> None:
    for fault in paper.faults().values():
        for place in fault.cells:
            cell = TABLES[place.table].cell(place.row, place.column, place.dataset)
            assert fault.id in cell.faults


def test_bold_marks_are_right_except_for_the_known_ones() -> None:
    wrong = {
        Place(table.id, row.dataset, row.label, column.key)
        for table in TABLES.values()
        for row, column, cell in table.walk()
        if cell.bold and not table.is_best(row, column)
    }
    assert wrong == touched("wrong-bold")


def test_only_the_known_intervals_are_below_what_independent_answers_would_give() -> None:
    queries = paper.setting().evaluation_episodes * paper.setting().n_way * paper.setting().n_query
    narrow = {
        Place(table.id, row.dataset, row.label, column.key)
        for table in TABLES.values()
        for row, column, cell in table.walk()
        if cell.ci is not None
        and cell.ci < 1.96 * math.sqrt(cell.mean * (100 - cell.mean) / queries)
    }
    assert narrow == touched("interval-too-narrow")


def test_only_the_known_cells_exceed_the_upper_bound() -> None:
    above = {
        Place(table.id, row.dataset, row.label, column.key)
        for table in TABLES.values()
        if any(row.label == "PAR" for row in table.rows)
        for row, column, cell in table.walk()
        if below(table.cell("PAR", column.key), cell)
    }
    assert above == touched("par-exceeded")


def test_only_the_known_methods_fall_below_the_base_model_on_unseen_classes() -> None:
    # Forgetting on the unseen classes of the old domain is no news: the text describes it.
    fallen = {
        Place(table.id, row.dataset, row.label, column.key)
        for table in TABLES.values()
        if table.rows[0].label == "NU"
        for row, column, cell in table.walk()
        if column.pool in ("unseen", "unseen_both") and below(cell, table.cell("NU", column.key))
    }
    assert fallen == touched("worse-than-base")


def test_base_model_prefers_its_own_classes_except_in_the_swapped_tables() -> None:
    swapped = set()
    for name, table in TABLES.items():
        if table.rows[0].label == "NU":
            group = table.columns[0].group
            if table.cell("NU", f"{group} old").mean < table.cell("NU", f"{group} new").mean:
                swapped.add(name)
    assert swapped == {place.table for place in touched("swapped-columns")}
    assert len(touched("swapped-columns")) == 2 * 2 * 5  # two tables, two columns, five methods


def test_comparison_repeats_the_other_tables_except_where_marked() -> None:
    comparison = TABLES["eiml-vs-ida"]
    sources = {
        ("miniImageNet", 1): "mini-pn",
        ("miniImageNet", 5): "mini-pn",
        ("tieredImageNet", 1): "tiered-pn",
        ("tieredImageNet", 5): "tiered-pn",
        ("DomainImageNet", 1): "domain-pn-1shot",
        ("DomainImageNet", 5): "domain-pn-5shot",
    }
    for row, column, cell in comparison.walk():
        source = TABLES[sources[str(row.dataset), column.n_shot]]
        if row.label == "IDA":
            pools = {c.pool for c in source.columns}
            pool = column.pool if column.pool in pools else "unseen_both"
            there = source.cell("IDA", f"{column.group} {pool}")
            assert (there.mean == cell.mean) == (not cell.faults), (row.dataset, column.key)


def test_ranges_are_those_of_their_columns() -> None:
    for name in ("ways-shots-pn", "ways-shots-ecm"):
        *trained, spread = TABLES[name].rows
        for at, cell in enumerate(spread.cells):
            means = [row.cells[at].mean for row in trained]
            # The paper took the range before it rounded the means to two decimals.
            assert cell.mean == pytest.approx(max(means) - min(means), abs=0.0101)


@pytest.mark.parametrize("name", TABLES)
def test_rendered_table_fits_and_is_whole(name: str) -> None:
    table = TABLES[name]
    text = printed(paper.render(table))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for _, _, cell in table.walk():
        assert str(cell) in text
    flat = " ".join(text.split())
    for fault in table.faults:
        assert paper.faults()[fault].sentence in flat


@pytest.mark.parametrize("name", TABLES)
def test_narrow_terminal_loses_no_number(name: str) -> None:
    text = printed(paper.render(TABLES[name]), width=80)
    assert "…" not in text
    for _, _, cell in TABLES[name].walk():
        assert all(part in text for part in str(cell).split())


def test_marks_stand_at_the_cell_and_at_the_footnote() -> None:
    text = printed(paper.render(TABLES["domain-pn-5shot"]))
    assert "71.16 ±0.32†" in text
    assert "70.61 ±0.32‡" in text
    assert "\n† The text" in text
    assert "\n‡ The paper prints IDA in bold" in text
    assert "†" not in printed(paper.render(TABLES["domain-pn-1shot"]))


def test_best_value_is_bold_and_not_the_papers_mark() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system="standard")
    console.print(paper.render(TABLES["mini-pn"]))
    assert "\x1b[1m72.61 ±0.51\x1b[0m" in stream.getvalue()  # FT
    assert "\x1b[1m71.92 ±0.51" not in stream.getvalue()  # IDA, bold in the paper


def test_overview_lists_every_table() -> None:
    text = printed(paper.overview())
    assert max(map(len, text.splitlines())) <= 100
    assert all(f" {name} " in text for name in TABLES)


def test_table_is_found_by_name_or_number() -> None:
    assert paper.table("two-rounds") is paper.table("6") is TABLES["two-rounds"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("mini", "did you mean mini-pn or mini-ecm?"),
        ("tierd-pn", "did you mean tiered-pn"),
        ("16", "choose from mini-pn, "),
        ("", "choose from mini-pn, "),
    ],
)
def test_unknown_table_is_one_sentence_with_names(typed: str, hint: str) -> None:
    with pytest.raises(KedgeError) as caught:
        paper.table(typed)
    message = str(caught.value)
    assert repr(typed) in message
    assert hint in message
    assert "\n" not in message


def test_wrong_data_is_refused_when_built() -> None:
    with pytest.raises(ValueError, match="no accuracy"):
        Cell(mean=173.84, ci=0.5, bold=False, faults=())
    with pytest.raises(ValueError, match="who is"):
        Row(label="IFA", dataset=None, cells=())
    with pytest.raises(ValueError, match="touches no cell"):
        paper.Fault(id="x", kind="value", sentence="A sentence.", cells=())


def test_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import kedge.experiments.paper as p; p.tables()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
