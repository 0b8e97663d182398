"""Our numbers beside the paper's: each in its place, and only like compared with like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.report.made_up import MAIN, POOLS, in_terminal, make_record, make_runs, rows_of

from kedge.experiments import paper
from kedge.experiments.recipes import load_recipe, recipe_names
from kedge.experiments.records import Record, RecordSet
from kedge.report.paper_comparison import agreement, counterparts, paper_comparison_table
from kedge.report.queries import Measurement
from kedge.report.render import to_latex, to_markdown
from kedge.report.summary import headlines

MINI = {  # made up; old classes at 1 shot are in another order than in the paper
    "NU": (60.0, 50.0, 48.0), "FT": (70.0, 71.0, 52.0), "DFA": (61.0, 70.0, 53.0),
    "EIML": (68.0, 70.5, 54.0), "IDA": (66.0, 70.6, 55.0), "PAR": (74.0, 75.0, 56.0),
}  # fmt: skip
SHAPES = [(1, 5), (1, 10), (5, 5), (5, 10)]  # shots, ways


def record_of(
    rows: Mapping[str, Sequence[float]],
    pools: Sequence[str] = MAIN,
    shape: tuple[int, int] = (5, 1),
    **more: int,
) -> Record:
    return make_record(make_runs(rows, pools, shape, **more), shape=shape)


def table_1() -> RecordSet:
    """The paper's table 1: a part for 1 shot and one for 5, without EIML."""
    rows = {m: [v + 12.34 for v in values] for m, values in MINI.items() if m != "EIML"}
    parts = {"1-shot": record_of(MINI), "5-shot": record_of(rows, shape=(5, 5))}
    return RecordSet("tiny-pn", "One round, prototypes", "mini-pn", parts)


def table_14() -> RecordSet:
    """The paper's table 14: trained at four shapes, tested at six."""
    parts = {}
    for at, (shots, ways) in enumerate(SHAPES):
        tests = [(n, k) for n in (5, 1) for k in (20, 5, 10)]
        names = [f"unseen at {k}-way {n}-shot" if i else "unseen" for i, (n, k) in enumerate(tests)]
        values = tuple(90.0 - 2 * k + 3 * n + at * (1 + k / 10) for n, k in tests)
        runs = make_runs({"NU": values}, names, (20, 5), round=0)
        parts[f"{shots}-shot {ways}-way"] = make_record(runs, shape=(ways, shots))
    return RecordSet("shapes", "Other ways and shots", "ways-shots-pn", parts)


def alone(record: Record) -> RecordSet:
    return RecordSet("t", "T", None, {"": record})


@pytest.mark.parametrize("record_set", [table_1(), table_14()], ids=lambda r: r.name)
def test_every_number_of_the_paper_is_shown_as_printed_with_its_faults(
    record_set: RecordSet,
) -> None:
    printed = paper.table(str(record_set.paper))
    table = paper_comparison_table(record_set, printed)
    rows = rows_of(table)
    for row, column, cell in printed.walk():
        shown = rows[f"{row.label}, paper"][printed.columns.index(column)]
        assert shown.text.replace("± ", "±") == str(cell)
        assert len(shown.note) == len(cell.faults)
    assert [s for _, s in table.notes] == [paper.faults()[f].sentence for f in printed.faults]


def test_our_numbers_are_those_of_the_record_and_missing_ones_are_dashes() -> None:
    table = paper_comparison_table(table_1(), paper.table("mini-pn"))
    rows = rows_of(table)
    for method, values in MINI.items():
        assert [c.text for c in rows[method][:3]] == [f"{v:.2f} ± 0.40" for v in values]
        five = [f"{v + 12.34:.2f} ± 0.40" for v in values] if method != "EIML" else ["–"] * 3
        assert [c.text for c in rows[method][3:]] == five
    assert table.columns[0].note == "36 / 32 classes"
    for difference in ("Backbone", "Training in each round", "Seeds"):
        assert f"{difference}: ours" in table.caption
    assert "Head:" not in table.caption, "it is the same"


def test_a_sweep_of_shapes_has_its_own_range_unless_a_shape_is_missing() -> None:
    record_set, printed = table_14(), paper.table("ways-shots-pn")
    rows = rows_of(paper_comparison_table(record_set, printed))
    for at, (shots, ways) in enumerate(SHAPES):
        for cell, column in zip(rows[f"{shots}-shot {ways}-way"], printed.columns, strict=True):
            value = 90.0 - 2 * column.n_way + 3 * column.n_shot + at * (1 + column.n_way / 10)
            assert cell.text == f"{value:.2f} ± 0.40"
    ranges = [f"{3 * (1 + column.n_way / 10):.2f}" for column in printed.columns]
    assert [cell.text for cell in rows["range"]] == ranges
    del record_set.parts["1-shot 10-way"]
    rows = rows_of(paper_comparison_table(record_set, printed))
    assert {cell.text for cell in rows["range"]} == {"–"}


def test_rounds_of_one_record_and_parts_by_data_set_are_told_apart() -> None:
    runs = [
        run
        for t in (1, 2)
        for run in make_runs({"IDA": (80.0 + t, 70.0 + t, 60.0 + t)}, MAIN, (5, 5), round=t)
    ]
    two = paper_comparison_table(alone(make_record(runs, shape=(5, 5))), paper.table("6"))
    values = [cell.value for cell in rows_of(two)["IDA"]]
    assert values == ["81.00", "71.00", "61.00", "82.00", "72.00", "62.00"]
    parts = {
        "DomainImageNet 1-shot": record_of({"IDA": (60.0, 61.0, 62.0, 63.0, 64.0)}, POOLS),
        "miniImageNet": record_of({"EIML": (50.0, 51.0, 52.0)}, shape=(5, 5)),
    }
    table = paper_comparison_table(RecordSet("e", "E", None, parts), paper.table("7"))
    sections = {
        s.title: {r.label: [c.value for c in r.cells] for r in s.rows} for s in table.sections
    }
    assert sections["DomainImageNet"]["IDA"] == ["60.00", "61.00", "64.00", "–", "–", "–"]
    assert sections["miniImageNet"]["EIML"] == ["–", "–", "–", "50.00", "51.00", "52.00"]
    assert set(sections["tieredImageNet"]["IDA"]) == {"–"}


def test_our_data_sets_stand_for_the_papers_in_its_order_and_are_named() -> None:
    parts = {
        f"{name} {n}-shot": record_of({"IDA": (i + 0.1, i + 0.2, i + 0.3)}, shape=(5, n))
        for i, name in enumerate(("random", "many", "domains"), start=60)
        for n in (1, 5)
    }
    table = paper_comparison_table(RecordSet("e", "E", None, parts), paper.table("7"))
    ours = [(section.title, section.rows[2].cells[0].value) for section in table.sections]
    assert ours == [
        ("miniImageNet; ours: random", "60.10"),
        ("tieredImageNet; ours: many", "61.10"),
        ("DomainImageNet; ours: domains", "62.10"),
    ]


def test_test_episodes_of_another_shape_are_not_compared() -> None:
    record = record_of(MINI, shape=(5, 5))
    early = make_record(make_runs(MINI, MAIN, None), shape=(5, 5))  # tested as it was trained
    for one in (record, early):
        rows = rows_of(paper_comparison_table(alone(one), paper.table("1")))
        assert [cell.value for cell in rows["NU"]] == ["–", "–", "–", "60.00", "50.00", "48.00"]
    other = record_of({"X": (1.0, 2.0, 3.0)}, shape=(3, 1))
    rows = rows_of(paper_comparison_table(alone(other), paper.table("1")))
    assert {cell.value for method in MINI for cell in rows[method]} == {"–"}


def test_only_pairs_that_differ_clearly_count_towards_the_order() -> None:
    record_set, printed = table_1(), paper.table("mini-pn")
    ours = counterparts(record_set, printed)
    old, new, unseen = printed.columns[:3]
    # Old: FT is above DFA, EIML and IDA, and NU below all but PAR, unlike in the paper.
    assert agreement(ours, printed, [old]) == (8, 15)
    # New: DFA, EIML and IDA are within 0.3 of a neighbour; EIML − DFA 0.5 is not as in the paper.
    assert agreement(ours, printed, [new]) == (12, 14)
    # Unseen: the paper's values of EIML and IDA are in doubt, so pairs with them do not count.
    assert agreement(ours, printed, [unseen]) == (6, 6)
    rows = rows_of(paper_comparison_table(record_set, printed))
    assert [c.value for c in rows["same order"]][:3] == ["8 of 15", "12 of 14", "6 of 6"]
    same, clear = agreement(ours, printed, printed.columns)
    assert headlines(record_set)[0].startswith(f"{same} of the {clear} pairs of methods")
    vague = {p: make_record(r.runs, shape=(5, 1), ci=99.0) for p, r in record_set.parts.items()}
    table = paper_comparison_table(replace(record_set, parts=vague), printed)
    assert "same order" not in rows_of(table)


def test_records_with_the_same_seeds_are_compared_by_seed_and_others_as_independent() -> None:
    def measured(values: Sequence[float]) -> Measurement:
        runs = [r for s, v in enumerate(values) for r in make_runs({"NU": (v,)}, ("old",), seed=s)]
        return Measurement(make_record(runs), "NU", 1, runs[0].pools[0])

    paired = measured([70.0, 72.0, 74.0]).minus(measured([69.0, 71.0, 73.0]))
    assert paired is not None
    assert (paired.mean, paired.ci) == (1.0, 0.0)
    apart = measured([70.0]).minus(measured([69.0]))
    assert apart is not None
    assert (apart.mean, apart.ci) == (1.0, pytest.approx(0.4 * 2**0.5))


def test_all_renderings_hold_the_footnotes_and_latex_is_ascii() -> None:
    table = paper_comparison_table(table_1(), paper.table("mini-pn"))
    assert all(cell.text in to_markdown(table) for cell in table.cells)
    wrapped = " ".join(in_terminal(table_1(), 80).split())
    assert all(sentence in wrapped for _, sentence in table.notes)
    assert to_latex(table, "x").count(r"\textsuperscript{\textdagger{}}") == 2
    for printed in paper.tables().values():
        assert to_latex(paper_comparison_table(table_1(), printed), "x").isascii()


@pytest.mark.parametrize("name", [n for n in recipe_names() if load_recipe(n).paper])
def test_a_recipe_of_a_table_has_a_counterpart_for_each_of_its_cells(name: str) -> None:
    recipe = load_recipe(name)
    printed = paper.table(str(recipe.paper))
    experiments = recipe.experiments(replace(recipe.base(), data="."))
    parts = {}
    for part, experiment in experiments.items():
        first, shape = experiment.test_shapes[0], experiment.episode
        pools = [
            f"{pool} at {test}" if number else pool
            for pool in dict.fromkeys(column.pool for column in printed.columns)
            for number, test in enumerate(experiment.test_shapes)
        ]
        rows = {method: [50.0] * len(pools) for method in experiment.methods}
        runs = [
            run
            for t in (0, 1, 2)
            for run in make_runs(rows, pools, (first.ways[0], first.shots[0]), round=t)
        ]
        parts[part] = make_record(runs, shape=(shape.ways[0], shape.shots[0]))
    ours = counterparts(RecordSet(recipe.name, recipe.title, recipe.paper, parts), printed)
    shots = {test.shots[0] for each in experiments.values() for test in each.test_shapes}
    missing = [  # half a table may have a recipe of its own
        (row.dataset, row.label, column.key)
        for row, column, _ in printed.walk()
        if row.label != "range" and column.n_shot in shots and (row, column) not in ours
    ]
    assert missing == []
