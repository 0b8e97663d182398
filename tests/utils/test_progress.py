"""Progress as lines, for logs."""

from __future__ import annotations

import pytest

from kedge.utils import progress


def test_time_left_does_not_count_what_came_before_the_first_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as frozen layers, or the epochs of a stopped run, which are told as done at once."""
    now, notes = [0.0], list[str]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "note", notes.append)
    tick = progress._LineTick("episodes", 400)
    for seconds, n in ((500.0, 100), (520.0, 10), (540.0, 10)):
        now[0] = seconds
        tick(n)
    assert notes == ["episodes: 100 of 400", "episodes: 120 of 400, about 560 s left"]


def test_status_belongs_to_the_innermost_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0)
    progress.status("nowhere")
    with progress.display(), progress.task("episodes", 2) as tick:
        progress.status("loss 0.5")
        with progress.task("images", 1) as inner:
            progress.status("half of them")
            inner(1)
        tick(1)
    assert capsys.readouterr().err.splitlines() == [
        "images: 1 of 1; half of them",
        "episodes: 1 of 2; loss 0.5",
    ]
