"""Loggers are called once for each epoch, between epochs; event files hold the training curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.training.small_round import BASE, CONFIG, FIRST, second_round, untrained

import kedge
from kedge.errors import KedgeError
from kedge.evaluation.results import EpochResult
from kedge.experiments.jobs import Job, run_jobs
from kedge.experiments.launchers import parse_launcher
from kedge.training.loggers import TensorBoardLogger, log_to_tensorboard
from kedge.training.round import train_round
from kedge.utils.progress import no_tick

Cli = Any  # of conftest.py


def test_logger_gets_every_epoch_of_every_training() -> None:
    seen: list[tuple[str, EpochResult]] = []
    with kedge.log_epochs(lambda name, epoch: seen.append((name, epoch))):
        base = train_round(untrained(), FIRST, BASE, CONFIG)
        update = second_round("IDA lambda=5", base.model)
    train_round(untrained(), FIRST, BASE, CONFIG)  # not in the body
    expected = [("seed-5/base/round-0", epoch) for epoch in base.history]
    expected += [("seed-5/IDA_lambda=5/round-1", epoch) for epoch in update.history]
    assert seen == expected


def test_training_that_its_logger_ends_continues_after_that_epoch(tmp_path: Path) -> None:
    """The checkpoint is written before, and no number depends on the logger."""

    def end(name: str, epoch: EpochResult) -> None:
        raise ConnectionError("no route to the server")

    checkpoint, seen = tmp_path / "checkpoint", list[int]()
    with pytest.raises(ConnectionError), kedge.log_epochs(end):
        train_round(untrained(), FIRST, BASE, CONFIG, checkpoint)
    with kedge.log_epochs(lambda _, epoch: seen.append(epoch.epoch)):
        continued = train_round(untrained(), FIRST, BASE, CONFIG, checkpoint)
    assert seen == [2, 3]
    assert continued.history == train_round(untrained(), FIRST, BASE, CONFIG).history


def scalars(file: Path) -> dict[str, list[tuple[int, float]]]:
    """What an event file holds, by the name of the curve."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401 (fails with a reason)
    from tensorboardX.proto.event_pb2 import Event

    content, found = file.read_bytes(), dict[str, list[tuple[int, float]]]()
    while content:  # length, its checksum, an event, its checksum
        length = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_event_files_hold_the_training_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="pip install 'kedge[tensorboard]'")
    with log_to_tensorboard(tmp_path):
        result = train_round(untrained(), FIRST, BASE, CONFIG)
    [file] = (tmp_path / "seed-5" / "base" / "round-0").iterdir()
    curves = scalars(file)
    assert set(curves) == {"loss", "cross_entropy", "penalty", "val_accuracy", "lr"}
    for name, points in curves.items():
        expected = [(each.epoch, getattr(each, name)) for each in result.history]
        assert points == [(step, pytest.approx(value)) for step, value in expected]


def test_command_writes_event_files(cli: Cli, first: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="pip install 'kedge[tensorboard]'")
    short = "--width 4 --n-way 2 --n-shot 1 --n-query 1 --epochs 1 --episodes 2 --val-episodes 4"
    out, events = tmp_path / "base.kedge", tmp_path / "events"
    ended = cli("train", first, "--out", out, "--tensorboard", events, *short.split())
    assert ended.rc == 0, ended.err
    assert [len(scalars(file)["loss"]) for file in events.rglob("*tfevents*")] == [1]


def test_only_tensorboard_can_log_from_other_processes(tmp_path: Path) -> None:
    with kedge.log_epochs(print), pytest.raises(KedgeError, match="--on"):
        run_jobs(tmp_path, [Job(0, "base")], parse_launcher("local:2"), no_tick)


def test_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KedgeError, match=r"kedge\[tensorboard\]"):
        TensorBoardLogger("events")
    for on, extra in (("slurm:gpu", "slurm"), ("ray:auto", "ray")):
        with pytest.raises(KedgeError, match=rf"kedge\[{extra}\]"):
            parse_launcher(on).open(Path("run"))
