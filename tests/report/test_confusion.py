"""The confusion matrix as a picture."""

from __future__ import annotations

import csv
import io
import itertools
import random
from xml.etree import ElementTree

import pytest

from kedge.evaluation.by_class import Evaluation
from kedge.evaluation.results import ClassAccuracy, Confusion, Score
from kedge.report import confusion
from kedge.report.confusion import confusion_csv, confusion_matrix, confusion_picture

ODD = ["<script>alert(1)</script>", "猫", "🐈", "שלום", "x$^2$", "long " * 20]


def evaluation(groups: list[list[str]]) -> Evaluation:
    """Classes of a group are often confused with each other, and all rarely with one other."""
    names = [name for group in groups for name in group]
    pairs = {pair: 3 for group in groups for pair in itertools.permutations(group, 2)}
    pairs |= {(name, names[0]): 1 for name in names if (name, names[0]) not in pairs}
    confusions = [Confusion(*pair, n, 30) for pair, n in pairs.items() if pair[0] != pair[1]]
    per_class = tuple(ClassAccuracy(name, 20, 30) for name in names)
    return Evaluation(Score(66.7, 1.0, 30 * len(names)), len(names), per_class, tuple(confusions))


def test_classes_that_are_confused_are_neighbours() -> None:
    names = [f"class {i}" for i in range(24)]
    random.Random(0).shuffle(names)
    groups = [names[i : i + 4] for i in range(0, 24, 4)]
    matrix = confusion_matrix(evaluation(groups))
    found = [matrix.classes[i : i + 4] for i in range(0, 24, 4)]
    assert {frozenset(group) for group in found} == {frozenset(group) for group in groups}
    first, second = groups[0][:2]
    row, column = matrix.classes.index(first), matrix.names.index(second)
    assert matrix.shares[row, column] == pytest.approx(10)
    assert matrix.shares[row, row] == pytest.approx(100 * 20 / 30)


def test_any_class_name_can_be_drawn() -> None:
    """Warnings about missing characters are errors in tests."""
    matrix = confusion_matrix(evaluation([ODD]))
    svg = confusion_picture(matrix, "svg")
    texts = {text.text for text in ElementTree.fromstring(svg).iter() if text.tag.endswith("text")}
    assert set(ODD[:-1]) <= texts, "a browser has characters that the font of figures lacks"
    assert not any(e.tag.endswith("script") for e in ElementTree.fromstring(svg).iter())
    assert confusion_picture(matrix, "png").startswith(b"\x89PNG")


def test_long_names_that_differ_at_the_end_are_told_apart() -> None:
    names = [f"{'very ' * 10}long name {i}" for i in range(3)]
    svg = confusion_picture(confusion_matrix(evaluation([names])), "svg")
    texts = [t.text or "" for t in ElementTree.fromstring(svg).iter() if t.tag.endswith("text")]
    assert len({text for text in texts if text.startswith("very")}) == 3


def test_class_names_hold_no_control_characters_and_no_formulas() -> None:
    matrix = confusion_matrix(evaluation([["a\x1b[2J", "b\u202egpj", "c\nd", "=1+1"]]))
    svg, table = confusion_picture(matrix, "svg").decode(), confusion_csv(matrix)
    for text in (svg, table):
        assert all(line.isprintable() for line in text.splitlines())
        assert r"a\x1b[2J" in text
        assert r"c\nd" in text
    ElementTree.fromstring(svg)
    rows = list(csv.reader(io.StringIO(table)))
    assert {row[0] for row in rows} == {"class", *rows[0][1:]}
    assert "'=1+1" in rows[0]
    assert confusion_picture(matrix, "png").startswith(b"\x89PNG")


def test_some_classes_have_a_label_where_there_is_no_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def n_labels(n: int) -> int:
        matrix = confusion_matrix(evaluation([[f"class {i}"] for i in range(n)]))
        return confusion_picture(matrix, "svg").count(b">class ")

    assert n_labels(1) == 2
    monkeypatch.setattr(confusion, "LARGEST", 1.0)  # inch
    assert 20 < n_labels(40) < 40 * 2
