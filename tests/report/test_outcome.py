"""What a round did, in words, tables and figures."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.report.made_up import make_lineage, rows_of

from kedge.models.outcome import FewShotChange, NamingChange, RoundOutcome
from kedge.report.outcome import history_table, outcome_sentence, outcome_table
from kedge.report.outcome_figures import (
    few_shot_figure,
    model_picture,
    naming_figure,
    outcome_figure,
)
from kedge.report.render import to_rich
from kedge.report.style import encode


def sentence(naming: list[NamingChange], few_shot: FewShotChange | None = None) -> str:
    entry = replace(make_lineage(2)[-1], outcome=RoundOutcome(tuple(naming), few_shot))
    return outcome_sentence(entry)


@pytest.mark.parametrize(
    ("before", "after", "images", "words"),
    [
        (90.0, 88.5, 0, "classes kept (90.0 → 88.5%, estimate)"),
        (
            90.0,
            70.0,
            0,
            "lost 20.0 points (90.0 → 70.0%, estimate), all of them by training",
        ),
        (80.0, 90.0, 0, "classes gained 10.0 points"),
        (90.0, 88.0, 100, "classes not clearly changed (90.0 → 88.0% of 100 images)"),
        (90.0, 70.0, 100, "classes lost 20.0 points"),
        (100.0, 99.0, 100, "classes not clearly changed"),
    ],
)
def test_the_sentence_says_whether_old_classes_were_kept(
    before: float, after: float, images: int, words: str
) -> None:
    assert words in sentence([NamingChange(0, 10, images, before, before, after)])


@pytest.mark.parametrize(
    ("untrained", "after", "images", "words"),
    [
        (
            70.0,
            90.0,
            200,
            "90.0% of 200 images named correctly, 20.0 ± 7.6 points more than by adding",
        ),
        (90.0, 70.0, 200, "20.0 ± 7.6 points less than"),
        (88.0, 90.0, 200, "not clearly more or less (+2.0 ± 6.2) than"),
        (70.0, 90.0, 10, "not clearly more or less"),
    ],
)
def test_the_sentence_says_whether_training_was_worth_it(
    untrained: float, after: float, images: int, words: str
) -> None:
    assert words in sentence([NamingChange(1, 5, images, None, untrained, after)])


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (91.0, "rose (+1.0 ± 0.5 points)"),
        (89.0, "fell (−1.0 ± 0.5 points)"),
        (90.4, "not clearly changed (+0.4 ± 0.5 points)"),
    ],
)
def test_the_sentence_says_whether_unseen_classes_gained(after: float, words: str) -> None:
    few = make_lineage(1)[0].outcome.few_shot
    assert words in sentence([], replace(few, before=90.0, after=after, interval=0.5))


def test_the_sentence_says_what_old_classes_lost_to_new_ones() -> None:
    assert "20.0 points (90.0 → 70.0%, estimate), 15.0 of them since there are more" in sentence(
        [NamingChange(0, 10, 0, 90.0, 75.0, 70.0)]
    )
    assert "all of them since there are more" in sentence([NamingChange(0, 9, 0, 90.0, 65.0, 70.0)])


def test_nothing_is_said_of_a_round_that_was_not_measured() -> None:
    entry = replace(make_lineage(1)[0], outcome=None)
    assert (outcome_sentence(entry), outcome_table(entry)) == ("", None)
    assert history_table([entry]) is None
    assert [model_picture([entry]), model_picture([]), outcome_figure(entry)] == [None] * 3


def test_the_table_has_every_number_and_marks_estimates() -> None:
    rows = rows_of(outcome_table(make_lineage(2)[-1]))
    texts = {label: [cell.text for cell in cells] for label, cells in rows.items()}
    assert texts == {
        "10 classes of round 0": ["80.0", "79.5", "79.0", "estimate"],
        "10 classes of round 1": ["–", "70.0", "90.0", "200 images"],
        "5 classes held back": ["70.0", "–", "72.2", "600 episodes"],
    }


def test_an_estimate_has_its_interval_where_it_is_known() -> None:
    """Errors of several rounds of origin count as independent: 6 and 8 over equal parts give 5."""
    known = [NamingChange(t, 10, 0, 80.0, 75.0, 70.0, interval=6.0 + 2 * t) for t in (0, 1)]
    entry = replace(make_lineage(3)[-1], outcome=RoundOutcome(tuple(known), None))
    rows = rows_of(outcome_table(entry))
    assert [cells[-1].text for cells in rows.values()] == ["estimate, ± 6.0", "estimate, ± 8.0"]
    assert all(cells[-1].muted for cells in rows.values())
    assert "(80.0 → 70.0 ± 5.0%, estimate)" in sentence(known)
    early = replace(known[0], interval=None)
    assert "(80.0 → 70.0%, estimate)" in sentence([early, known[1]])


@pytest.mark.parametrize("n", [1, 3, 16])
def test_the_history_fits_a_terminal(n: int) -> None:
    """With many rounds, the classes of those between the first and the last share a column."""
    console = Console(file=io.StringIO(), width=80)
    console.print(to_rich(history_table(make_lineage(n))))
    lines = console.file.getvalue().splitlines()
    rows = [line.split() for line in lines if line[:2].strip().isdecimal()]
    assert [row[:3] for row in rows] == [[str(t), "70.0", f"{71.25 + t:.1f}"] for t in range(n)]
    assert rows[0][3] == "90.0"
    assert "few-shot" not in str(history_table(make_lineage(n, few_shot=False)))
    if n > 1:
        assert rows[-1][3] == "~79.0"
        assert rows[-1][-1] == "90.0"
    if n == 16:
        assert rows[-1][4] == f"~{sum(79.0 + r for r in range(1, 15)) / 14:.1f}"


@pytest.mark.parametrize("n", [1, 2, 16])
def test_figures_of_one_round_and_of_many(n: int) -> None:
    lineage = make_lineage(n)
    history = [naming_figure(lineage), few_shot_figure(lineage)]
    assert all(figure is None for figure in history) == (n == 1), "one point is no history"
    for figure in (outcome_figure(lineage[-1]), *history):
        if figure is not None:
            assert ElementTree.fromstring(encode(figure.figure, "svg")).tag.endswith("svg")
    assert encode(model_picture(lineage), "png").startswith(b"\x89PNG")
    assert model_picture(make_lineage(n, few_shot=False)) is not None
