"""The paper's numbers: copied exactly, consistent, and every fault shown from the numbers."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from kedge.errors import KedgeError
from kedge.experiments import paper
from kedge.experiments.paper import PaperCell, PaperColumn, PaperRow, PaperTable
from kedge.report.paper_comparison import paper_table
from kedge.report.render import to_rich

TABLES = paper.tables()

# Written down by hand from the LaTeX source: mean, interval, whether printed in bold.
BY_HAND = [
    ("mini-pn", "IDA", "1-shot unseen", (55.52, 0.43, True)),
    ("mini-pn", "PAR", "5-shot unseen", (75.27, 0.13, False)),
    ("mini-ecm", "DFA", "5-shot new", (89.70, 0.21, True)),
    ("tiered-pn", "IDA", "5-shot old", (89.13, 0.15, True)),
    ("domain-ecm-5shot", "IDA", "5-shot unseen_both", (72.64, 0.33, True)),
    ("two-rounds", "IDA", "round II new", (93.25, 0.17, True)),
    ("domain-ecm-1shot", "FT", "1-shot unseen_old_domain", (39.37, 0.35, False)),
    ("domain-reverse-pn-1shot", "IDA", "1-shot old", (58.98, 0.47, True)),
    ("domain-reverse-ecm-1shot", "PAR", "1-shot unseen_both", (58.00, 0.43, False)),
    ("ways-shots-pn", "5-shot 10-way", "1-shot 20-way", (19.90, None, False)),
    ("ways-shots-ecm", "range", "5-shot 5-way", (1.2455, None, False)),
    ("tiered-ecm", "PAR", "1-shot new", (74.99, 0.45, False)),
]


FAULT_KINDS = ("value", "columns", "interval", "bold", "claim")
CellId = tuple[str, str | None, str, str]  # table, dataset, row, column
Predicate = Callable[[PaperTable, PaperRow, PaperColumn, PaperCell], bool]


def numbers(cell: PaperCell) -> tuple[float, float | None, bool]:
    return cell.mean, cell.ci, cell.bold


def cells_where(predicate: Predicate) -> set[CellId]:
    return {
        (table.id, row.dataset, row.label, column.key)
        for table in TABLES.values()
        for row, column, cell in table.walk()
        if predicate(table, row, column, cell)
    }


def cells_of(fault: str) -> set[CellId]:
    return cells_where(lambda table, row, column, cell: fault in cell.faults)


def below(low: PaperCell, high: PaperCell) -> bool:
    """Lower, with intervals that do not overlap."""
    return low.mean + low.ci < high.mean - high.ci


def printed(table: PaperTable, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(to_rich(paper_table(table)))
    return stream.getvalue().replace("± ", "±")


# ── paper.json ───────────────────────────────────────────────────────────────────────────────


def test_numbers_are_those_of_the_source() -> None:
    assert [table.number for table in TABLES.values()] == list(range(1, 17))
    sizes = [len(list(table.walk())) for table in TABLES.values()]
    assert sizes == [36, 30, 30, 25, 25, 30, 36, 25, 25, 25, 25, 25, 25, 30, 30, 12]
    for table, row, column, expected in BY_HAND:
        assert numbers(TABLES[table].cell(row, column)) == expected
    comparison = TABLES["eiml-vs-ida"]
    assert comparison.datasets == ("miniImageNet", "tieredImageNet", "DomainImageNet")
    assert numbers(comparison.cell("EIML", "1-shot old", "tieredImageNet")) == (72.50, 0.51, False)
    assert numbers(comparison.cell("IDA", "5-shot new", "DomainImageNet")) == (65.78, 0.41, False)
    with pytest.raises(KeyError):
        comparison.cell("PAR", "1-shot old")


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_well_formed(name: str) -> None:
    table = TABLES[name]
    assert table.head == ("ecm" if "ecm" in name else "prototype")
    assert table.old_domain in (None, "natural", "man-made")
    keys = [column.key for column in table.columns]
    assert len(set(keys)) == len(keys)
    rows = [(row.dataset, row.label) for row in table.rows]
    assert len(set(rows)) == len(rows)
    methods = {"NU", "FT", "DFA", "EIML", "IDA", "PAR", "range"}
    for row in table.rows:
        assert len(row.cells) == len(keys)
        assert row.label in methods or re.fullmatch(r"\d-shot \d+-way", row.label)
    for column in table.columns:
        assert column.pool in paper.POOLS
        assert column.n_shot >= 1
        assert column.n_way >= 2
        assert column.n_classes is None or column.n_classes >= column.n_way
    for row, column, cell in table.walk():
        assert 0 < cell.mean < 100, (row.label, column.key)
        assert cell.ci is None or 0 < cell.ci < 1, (row.label, column.key)
        assert len(set(cell.faults)) == len(cell.faults)
        assert set(cell.faults) <= set(paper.faults())


def test_faults_are_well_formed() -> None:
    for name, fault in paper.faults().items():
        assert fault.id == name
        assert fault.kind in FAULT_KINDS
        assert fault.sentence.endswith(".")
        assert cells_of(name), f"{name} is in no cell"


def test_setting_is_the_papers() -> None:
    setting = paper.setting()
    assert (setting.epochs, setting.episodes_per_epoch, setting.n_query) == (200, 800, 15)
    assert (setting.lr, setting.temperature, setting.lam) == (0.001, 2.0, 1.0)
    assert setting.lam_values == [0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0]
    assert setting.exemplar_values == [15, 30, 60, 120]
    assert setting.lam in setting.lam_values
    assert setting.exemplars in setting.exemplar_values
    assert setting.evaluation_episodes == 2000


# ── faults that the numbers themselves show ──────────────────────────────────────────────────


def test_only_the_known_bold_marks_are_wrong() -> None:
    wrong = cells_where(lambda table, row, column, c: c.bold and not table.is_best(row, column))
    assert wrong == cells_of("wrong-bold")


def test_only_the_known_intervals_are_narrower_than_independent_answers_allow() -> None:
    queries = paper.setting().evaluation_episodes * paper.setting().n_way * paper.setting().n_query

    def narrow(_: PaperTable, __: PaperRow, ___: PaperColumn, cell: PaperCell) -> bool:
        least = 1.96 * math.sqrt(cell.mean * (100 - cell.mean) / queries)
        return cell.ci is not None and cell.ci < least

    assert cells_where(narrow) == cells_of("interval-too-narrow")


def test_only_the_known_cells_exceed_the_upper_bound() -> None:
    def above(table: PaperTable, _: PaperRow, column: PaperColumn, cell: PaperCell) -> bool:
        has_bound = any(row.label == "PAR" for row in table.rows)
        return has_bound and below(table.cell("PAR", column.key), cell)

    assert cells_where(above) == cells_of("par-exceeded")


def test_only_the_known_methods_fall_below_the_base_model_on_unseen_classes() -> None:
    """Unseen classes of the old domain do not count: the text describes how they are forgotten."""

    def fallen(table: PaperTable, _: PaperRow, column: PaperColumn, cell: PaperCell) -> bool:
        counts = table.rows[0].label == "NU" and column.pool in ("unseen", "unseen_both")
        return counts and below(cell, table.cell("NU", column.key))

    assert cells_where(fallen) == cells_of("worse-than-base")


# ── tables for a terminal ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", TABLES)
def test_rendered_table_loses_no_number(name: str) -> None:
    table = TABLES[name]
    text, narrow = (printed(table, width) for width in (100, 80))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text + narrow
    for _, _, cell in table.walk():
        assert all(part in text and part in narrow for part in str(cell).split())
    for fault in table.faults:
        assert paper.faults()[fault].sentence in " ".join(text.split())


def test_faults_are_marked_and_the_best_value_is_bold() -> None:
    text = printed(TABLES["domain-pn-5shot"])
    assert "71.16 ±0.32†" in text
    assert "70.61 ±0.32‡" in text
    assert "\n† " in text
    assert "\n‡ " in text
    assert "†" not in printed(TABLES["domain-pn-1shot"])
    bold = {cell.value for cell in paper_table(TABLES["mini-pn"]).cells if cell.strong}
    assert "72.61" in bold  # FT
    assert "71.92" not in bold  # IDA, bold in the paper


def test_table_is_found_by_name_or_number() -> None:
    assert paper.table("two-rounds") is paper.table("6") is TABLES["two-rounds"]
    hints = {"mini": "mini-pn or mini-ecm", "tierd-pn": "tiered-pn", "17": "mini-pn", "": "mini-pn"}
    for typed, hint in hints.items():
        with pytest.raises(KedgeError, match=f"{typed!r}.*{hint}"):
            paper.table(typed)
