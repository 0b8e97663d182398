"""The numbers and marks of the tables of a record, and the sentence with the result."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from tests.report.made_up import (
    POOLS,
    ROWS,
    make_record,
    make_runs,
    one_round,
    rows_of,
    several_rounds,
    several_seeds,
)

from kedge.evaluation.results import Score
from kedge.experiments.records import Record
from kedge.methods.registry import method_names
from kedge.report.format import duration, number, signed
from kedge.report.summary import METHODS, headline
from kedge.report.table import Table
from kedge.report.tables import all_tables


def tables_of(record: Record) -> dict[str, Table]:
    return {table.key: table for table in all_tables(record)}


def bold(record: Record) -> dict[str, list[str]]:
    """Pool → methods in bold."""
    rows = rows_of(all_tables(record)[0])
    return {p: [m for m, cells in rows.items() if cells[i].strong] for i, p in enumerate(POOLS)}


def test_accuracy_shows_every_score_with_references_in_sections_of_their_own() -> None:
    table = all_tables(one_round())[0]
    shown = {label: [cell.text for cell in cells] for label, cells in rows_of(table).items()}
    assert shown == {m: [f"{v} ± 0.4" for v in row] for m, row in ROWS.items()}
    assert [[row.label for row in section.rows] for section in table.sections] == [
        ["NU"],
        ["FT", "DFA", "IDA"],
        ["PAR"],
    ]
    assert table.groups() == (("", 1), ("", 1), ("unseen", 3))
    for fact in ("5-way 1-shot", "15 query images", "2,000 episodes", "12 epochs", "conv4"):
        assert fact in table.caption


def test_bold_marks_the_best_competitor_and_those_not_clearly_worse() -> None:
    assert bold(one_round()) == {
        "old": ["DFA", "IDA"],  # 0.2 ± 0.3 apart
        "new": ["FT", "IDA"],
        "unseen_old_domain": ["DFA", "IDA"],
        "unseen_new_domain": ["FT", "IDA"],
        "unseen_both": ["IDA"],
    }
    runs = make_runs(ROWS)
    assert bold(make_record(runs, ci=0.1))["old"] == ["IDA"]
    assert bold(make_record(runs, ci=5.0))["old"] == ["FT", "DFA", "IDA"]
    unpaired = replace(make_record(runs), pairs=())
    assert not any(bold(unpaired).values())


def test_differences_are_marked_where_the_interval_excludes_zero() -> None:
    rows = rows_of(tables_of(one_round())["differences"])
    assert list(rows) == ["IDA − NU", "IDA − FT", "IDA − DFA", "IDA − PAR"]
    first = {label: (cells[0].text, cells[0].mark) for label, cells in rows.items()}
    assert first["IDA − FT"] == ("+3.4 ± 0.3", "▲")
    assert first["IDA − DFA"] == ("+0.2 ± 0.3", "")
    assert first["IDA − PAR"] == ("−2.0 ± 0.3", "▼")


def with_naming(record: Record) -> Record:
    """Stored anchors lose 10 points a round under FT; true means are 5 points above IDA's."""
    runs = []
    for run in record.runs:
        lost = {"FT": 10.0}.get(run.method, 1.0) * run.round
        named = {"naming": 80 + run.seed - lost, "naming_true_means": 84.0 + run.seed}
        runs.append(replace(run, measures={**run.measures, **named}))
    return replace(record, runs=tuple(runs))


def test_naming_is_shown_after_each_round_where_records_have_it() -> None:
    assert "naming" not in tables_of(several_rounds())
    table = tables_of(with_naming(several_rounds()))["naming"]
    assert table.groups() == (("stored anchors", 3), ("true means", 1))
    rows = {label: [cell.text for cell in cells] for label, cells in rows_of(table).items()}
    assert rows["FT"] == ["80.0", "70.0", "60.0", "84.0"]
    assert rows["IDA"] == ["80.0", "79.0", "78.0", "84.0"]
    over_seeds = tables_of(with_naming(several_rounds(seeds=(0, 1, 2))))["naming"]
    assert rows_of(over_seeds)["FT"][2].text == "61.0 ± 2.5"  # 4.303 / √3
    many = tables_of(with_naming(several_rounds(8)))["naming"]
    assert [column.label for column in many.columns] == [f"after round {t}" for t in (0, 8, 8)]


def test_variants_of_ida_are_compared_with_the_others_and_with_plain_ida() -> None:
    rows = {"IDA anchors=all": ROWS["IDA"], **ROWS}
    table = tables_of(make_record(make_runs(rows)))["differences"]
    assert {s.title: [r.label for r in s.rows] for s in table.sections} == {
        "IDA": ["− NU", "− FT", "− DFA", "− PAR"],
        "IDA anchors=all": ["− NU", "− FT", "− DFA", "− IDA", "− PAR"],
    }


def test_rounding_never_hides_whether_an_interval_includes_zero() -> None:
    assert signed(Score(0.24, 0.17, 40)) == ("+0.24", "0.17")
    assert signed(Score(-0.1668, 0.1663, 40)) == ("−0.167", "0.166")
    assert signed(Score(3.44, 0.31, 40)) == ("+3.4", "0.3")
    assert number(-0.04) == "0.0"
    assert [duration(s) for s in (0, 3.21, 93, 3000, 9000)] == [
        "–",
        "3.2 s",
        "93 s",
        "50 min",
        "2 h 30 min",
    ]


def test_the_headline_follows_the_numbers() -> None:
    text = headline(one_round())
    assert "fine-tuning (FT)" in text
    assert "ahead on old classes (70.0% against 66.6%: +3.4 ± 0.3)" in text
    assert "not clearly different on new classes" not in text.split(";")[0]
    swapped = headline(make_record(make_runs({**ROWS, "IDA": ROWS["FT"], "FT": ROWS["IDA"]})))
    assert "behind on old classes" in swapped
    assert "ahead" not in swapped
    unclear = headline(make_record(make_runs(ROWS), ci=9.0))
    assert "ahead" not in unclear
    assert "behind" not in unclear
    assert "After round 2" in headline(several_rounds())
    assert headline(one_round(["NU", "FT"])).count("FT") == 1, "without IDA it is about FT"


def test_one_method_alone_is_reported_without_a_comparison() -> None:
    record = one_round(["IDA"])
    assert list(tables_of(record)) == ["accuracy", "cost"]
    assert "70.0% on old classes" in headline(record)


def test_every_method_has_a_description() -> None:
    assert set(method_names()) == set(METHODS)


def test_several_rounds_have_a_matrix_metrics_and_an_accuracy_table_each() -> None:
    tables = tables_of(several_rounds())
    assert list(tables) == [
        "accuracy", "differences", "metrics", "accuracy-round-1", "matrix", "cost",
    ]  # fmt: skip
    ft = next(section for section in tables["matrix"].sections if section.title == "FT")
    assert [row.cells[0].value for row in ft.rows] == ["75.0", "72.6", "70.2"]
    assert [cell.muted for cell in ft.rows[1].cells] == [False, False, True]
    metrics = {m: [c.text for c in cells] for m, cells in rows_of(tables["metrics"]).items()}
    # FT: 70.2, 72.6 and 75.0 after round 2, each 75.0 in its own round; 66.4 on unseen classes,
    # IDA 68.0 and PAR 68.4.
    assert metrics["FT"] == ["72.6", "+3.6", "−3.6", "0%", "0.50"]
    assert metrics["IDA"] == ["74.5", "+0.8", "−0.8", "80%", "0.50"]
    costs = {m: [c.text for c in cells] for m, cells in rows_of(tables["cost"]).items()}
    assert costs["IDA"] == ["346 s", "851.4 MB", "256 B"]
    assert costs["NU"] == ["–", "851.4 MB", "–"]


@pytest.mark.parametrize("missing", ["FT", "PAR"])
def test_gap_closed_needs_both_ft_and_par(missing: str) -> None:
    runs = [run for run in several_rounds().runs if run.method != missing]
    table = tables_of(make_record(runs))["metrics"]
    assert "gap closed" not in [column.label for column in table.columns]
    assert "Gap closed" not in table.caption
    assert {len(row.cells) for row in table.sections[0].rows} == {len(table.columns)}


def test_two_seeds_have_intervals_over_episodes_and_three_over_seeds() -> None:
    few, many = (tables_of(several_seeds(seeds)) for seeds in ((0, 1), (0, 1, 2)))
    assert rows_of(few["accuracy"])["NU"][0].text == f"69.7 ± {0.4 / math.sqrt(2):.1f}"
    spread = statistics.stdev([69.2, 70.1, 68.6]) / math.sqrt(3)
    assert rows_of(many["accuracy"])["NU"][0].text == f"69.3 ± {4.303 * spread:.1f}"
    assert "3 seeds (Student’s t)" in many["accuracy"].caption
    # All methods of a seed are shifted alike, so the paired difference does not vary.
    assert rows_of(many["differences"])["IDA − FT"][0].text == "+3.4 ± 0.0"
    rows = many["seeds"].sections[0].rows
    assert [row.cells[0].value for row in rows] == ["69.2", "70.1", "68.6", "0.8"]


def test_several_test_shapes_have_a_table() -> None:
    pools = ("old", "unseen", "unseen at 20-way 1-shot", "unseen at 5-way 5-shot", "round_0")
    rows = {"FT": (70.0, 60.0, 40.0, 75.0, 70.0), "IDA": (71.0, 61.0, 40.1, 76.0, 71.0)}
    tables = tables_of(make_record(make_runs(rows, pools)))
    assert [column.label for column in tables["accuracy"].columns] == ["old", "unseen"]
    shapes = tables["shapes"]
    assert [(c.group, c.label) for c in shapes.columns] == [
        ("1-shot", "5-way"), ("1-shot", "20-way"), ("5-shot", "5-way"),
    ]  # fmt: skip
    assert [cell.value for cell in rows_of(shapes)["IDA"]] == ["61.0", "40.1", "76.0"]
    assert [cell.strong for cell in rows_of(shapes)["FT"]] == [False, True, False]


def test_missing_values_are_dashes() -> None:
    runs = make_runs(ROWS)
    scores = {"old": Score(66.6, math.inf, 1), "new": runs[1].scores["new"]}
    record = make_record((runs[0], replace(runs[1], scores=scores), *runs[2:]))
    record = replace(record, config={}, splits={})
    row = rows_of(all_tables(record)[0])["FT"]
    assert [cell.text for cell in row] == ["66.6 ± ?", "79.4 ± 0.4", "–", "–", "–"]
