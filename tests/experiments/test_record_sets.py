"""A record set on disk: a folder of records with an index, recipe.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kedge.errors import KedgeError
from kedge.experiments.records import Record, RecordSet

RECORD = Record("tiny", "Small images.", {}, {}, (), ())
INDEX = {"format": 1, "name": "n", "title": "t", "paper": None, "parts": {"1-shot": "1-shot"}}


@pytest.mark.parametrize("parts", [("1-shot", "5-shot"), ("",)])
def test_a_record_set_comes_back_from_its_folder_as_it_was(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    record_set = RecordSet("tiny-pn", "One round", "mini-pn", dict.fromkeys(parts, RECORD))
    for part in parts:
        RECORD.save(tmp_path / RecordSet.folder_of(part) / "record.json")
    record_set.save_index(tmp_path)
    assert RecordSet.load(tmp_path) == record_set


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 0}',
        *(
            json.dumps({**INDEX, **wrong})
            for wrong in (
                {"parts": {}},
                {"parts": {"1-shot": "../1-shot"}},
                {"paper": 1},
                {"name": None},
            )
        ),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(KedgeError, match=r"recipe\.json"):
        RecordSet.load(tmp_path)


def test_a_missing_index_or_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KedgeError, match=r"recipe\.json"):
        RecordSet.load(tmp_path)
    (tmp_path / "recipe.json").write_text(json.dumps(INDEX))
    with pytest.raises(KedgeError, match=r"1-shot/record\.json"):
        RecordSet.load(tmp_path)


def test_parts_need_folders_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(KedgeError, match="folders"):
        RecordSet("n", "t", None, {"a b": RECORD, "a/b": RECORD}).save_index(tmp_path)
