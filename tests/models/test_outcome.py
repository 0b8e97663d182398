"""The outcome of a round: what files hold of it, and what they must not hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.config import EpisodeShape
from kedge.errors import KedgeError
from kedge.models.model_file import LineageEntry
from kedge.models.outcome import FewShotChange, NamingChange, RoundOutcome
from kedge.utils.config_io import from_dict, to_dict

OLD = NamingChange(0, 50, 0, before=92.5, untrained=91.0, after=92.0)
NEW = NamingChange(1, 12, 36, before=None, untrained=80.5, after=88.25)
FEW_SHOT = FewShotChange(EpisodeShape(5, 5, 5), 10, 500, before=90.0, after=91.5, interval=0.5)


def test_outcome_survives_a_file() -> None:
    entry = LineageEntry(1, "IDA+", ("rose",), 30, "photos", {}, 8, 90.0, ())
    for outcome in (None, RoundOutcome((OLD, NEW), FEW_SHOT), RoundOutcome((NEW,), None)):
        before = LineageEntry(**{**vars(entry), "outcome": outcome})
        assert from_dict(LineageEntry, json.loads(json.dumps(to_dict(before)))) == before
    assert OLD.estimated
    assert not NEW.estimated


def test_an_interval_is_that_of_the_images_or_of_the_estimate() -> None:
    """Files of early versions have none for estimates."""
    assert "interval" not in to_dict(NEW)
    assert "interval" not in to_dict(OLD)
    assert OLD.half_width is None
    known = NamingChange(**{**vars(OLD), "interval": 3.5, "displacement": 0.25})
    assert from_dict(NamingChange, json.loads(json.dumps(to_dict(known)))) == known
    assert known.half_width == 3.5
    many, few = (NamingChange(1, 12, n, None, 50.0, 50.0).half_width for n in (400, 4))
    assert many == pytest.approx(4.9, abs=0.1)
    assert few > 35
    perfect = NamingChange(1, 12, 36, None, 100.0, 100.0).half_width
    assert 2 < perfect < 8


@pytest.mark.parametrize(
    "change",
    [
        {"after": 100.5},
        {"before": -1.0},
        {"untrained": 1e400},
        {"classes": 0},
        {"interval": -1.0},
        {"displacement": float("nan")},
    ],
)
def test_numbers_outside_their_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KedgeError):
        NamingChange(**{**vars(OLD), **change})
