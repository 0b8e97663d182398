"""perf/pretrained.py: its record of a GPU as a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_table_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pretrained

    case = {"backbone": "net", "train": "all", "channels_first": False}
    cases = [
        {
            **case,
            "method": "FT",
            "training": {"images_per_s": {"kedge": 3000.0, "bf16": 2000.0, "fp32": 1000.0}},
            "embedding": {"images_per_s": {"kedge": 5000.0, "bf16": 4000.0, "fp32": 3500.0}},
            "round_s": 12.34,
        },
        {**case, "method": "IDA+", "training": {"images_per_s": {"kedge": 2500.0}}},
    ]
    machine = {"date": "today", "torch": "2", "python": "3", "gpu": "none", "cores": "2"}
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"cases": cases, "environment": machine}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["pretrained.py", "--table", str(file)])
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")  # otherwise it would start once more
    pretrained.main()
    lines = capsys.readouterr().out.splitlines()
    both = "| net | all | FT | 3,000 | 2,000 | 1,000 | 1.5 | 5,000 | 4,000 | 3,500 | 12.3 |"
    assert lines[2] == both
    assert lines[3].startswith("| net | all | IDA+ | 2,500 | – |")
