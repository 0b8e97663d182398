"""Progress and notes: as lines for logs, and what Python users see of them and may turn off."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import kedge
from kedge.errors import KedgeError, KedgeWarning
from kedge.utils import progress
from kedge.utils.config_io import as_in_python

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 16), dtype=np.uint8)
GOOD = {"ant": IMAGES[:3] / 255, "bat": IMAGES[3:]}  # the note: floats
FAULTY = {"ant": IMAGES[:3], "bat": IMAGES[2:5]}  # the problem: a picture in both


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
        with progress.task("images", 2) as inner:
            progress.status("half of them")
            inner(1)
        tick(1)
    assert capsys.readouterr().err.splitlines() == [
        "images: 1 of 2; half of them",
        "episodes: 1 of 2; loss 0.5",
    ]


# ── from Python ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def as_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_verbosity", None)
    monkeypatch.delenv(progress.VERBOSITY_VARIABLE, raising=False)


def test_notes_are_shown_and_problems_are_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    kedge.open_images(GOOD)
    assert capsys.readouterr().err.startswith("images given in memory: floats")
    with pytest.warns(KedgeWarning, match="several classes") as caught:
        kedge.open_images(FAULTY)
    assert [warning.filename for warning in caught] == [__file__]
    assert "several classes" not in capsys.readouterr().err


def test_warning_points_at_the_line_that_called_a_method(first: Any) -> None:
    model = kedge.train(first, epochs=0, width=4)
    with pytest.warns(KedgeWarning) as caught:
        model.classifier(FAULTY)
    assert [warning.filename for warning in caught] == [__file__]


def test_commands_print_problems(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(), warnings.catch_warnings(action="error"):
        kedge.open_images(FAULTY)
    assert "  problem: 1 picture is in several classes" in capsys.readouterr().err


def test_all_but_warnings_can_be_turned_off(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_quiet() -> bool:
        caplog.clear()
        with caplog.at_level(logging.INFO, "kedge"):
            kedge.open_images(GOOD)
        logged = any("floats" in message for message in caplog.messages)
        shown = bool(capsys.readouterr().err)
        assert logged != shown
        return logged

    assert not is_quiet()
    kedge.set_verbosity("warning")
    assert is_quiet()
    with pytest.warns(KedgeWarning):
        kedge.open_images(FAULTY)
    monkeypatch.setenv(progress.VERBOSITY_VARIABLE, "warning")
    kedge.set_verbosity("info")
    assert not is_quiet()
    monkeypatch.setattr(progress, "_verbosity", None)
    assert is_quiet()
    with progress.display():  # a command
        kedge.open_images(GOOD)
    assert "floats" in capsys.readouterr().err
    monkeypatch.setenv(progress.VERBOSITY_VARIABLE, "silent")
    with pytest.raises(KedgeError, match="KEDGE_VERBOSITY is 'silent'"):
        kedge.open_images(GOOD)


@pytest.mark.usefixtures("unchecked")
def test_wrong_verbosity_is_refused() -> None:
    with pytest.raises(KedgeError, match="'debug'"):
        kedge.set_verbosity("debug")  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_first_rank_shows_anything(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kedge.open_images(GOOD)
        kedge.open_images(FAULTY)
    shown = len(caught), bool(capsys.readouterr().err)
    assert shown == ((1, True) if rank == "0" else (0, False))


def test_worker_processes_show_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of scikit-learn's n_jobs, say."""
    monkeypatch.setattr(progress.multiprocessing, "parent_process", object)
    kedge.open_images(GOOD)
    assert capsys.readouterr().err == ""


def test_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    kedge.open_images(GOOD)
    assert "reading images" in terminal.getvalue()
    assert "━" in terminal.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--n-way 5: classes", "n_way=5: classes"),
        ("--backbone conv4: small", "backbone='conv4': small"),
        ("--epochs 20 --ema 0.9: takes", "epochs=20 ema=0.9: takes"),
        ("--method 'IDA lambda=auto': keeps", "method='IDA lambda=auto': keeps"),
        ("validation: some are set apart (--val gives others)", None),
    ],
)
def test_options_in_python(text: str, expected: str | None) -> None:
    assert as_in_python(text) == (expected or text.replace("--val", "val=…"))
