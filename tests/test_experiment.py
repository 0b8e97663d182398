"""Experiments that are stopped, killed, added to and damaged: the numbers stay the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kedge.config import BackboneConfig, EpisodeShape, Schedule, to_dict
from kedge.errors import KedgeError
from kedge.experiment import Experiment, run_experiment
from kedge.records import Record

TINY = Experiment(
    protocol="drawings",
    methods=("NU", "FT", "IDA"),
    episode=EpisodeShape(n_way=5, n_shot=1, n_query=5),
    schedule=Schedule(epochs=2, episodes=10, val_episodes=20),
    backbone=BackboneConfig(width=4),
    eval_episodes=40,
)
FOUR_ROUNDS = replace(
    TINY,
    protocol="drawings-4-rounds",
    methods=("NU", "FT"),
    schedule=Schedule(epochs=1, episodes=3, val_episodes=10),
)
# The experiment as a process of its own, which can be killed.
PROGRAM = """
import json, sys
from pathlib import Path
from kedge.config import from_dict
from kedge.errors import KedgeError
from kedge.experiment import Experiment, run_experiment
try:
    run_experiment(from_dict(Experiment, json.loads({experiment!r})), Path({folder!r}))
except KedgeError as error:
    sys.exit(f"kedge: {{error}}")
"""
Ready = Any  # of conftest.py, which cannot be imported
SignalWhen = Callable[[int, Path, signal.Signals], None]


def numbers(record: Record | Path) -> dict[str, Any]:
    """All of a record but when and how fast it was made, and in which state of the checkout."""
    path = record if isinstance(record, Path) else None
    loaded = Record.load(path) if path else record
    assert isinstance(loaded, Record)
    plain = json.loads(json.dumps(to_dict(loaded)))
    for run in plain["runs"]:
        del run["seconds"], run["peak_memory_mb"]
        del run["environment"]["date"], run["environment"]["commit"]
    return plain


def models(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.kedge")}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny experiment, never disturbed."""
    folder = tmp_path_factory.mktemp("experiment") / "done"
    run_experiment(TINY, folder)
    return folder


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "copy")


# ── what is in the record ────────────────────────────────────────────────────────────────────


def test_record_holds_every_method_round_and_pool(done: Path) -> None:
    record = Record.load(done / "record.json")
    assert record.methods == ("NU", "FT", "IDA")
    assert record.rounds == (0, 1)
    for method in record.methods:
        [run] = record.select(method, 1)
        assert set(run.scores) == {pool.name for pool in run.pools}
        assert set(run.scores) >= {"old", "new", "unseen_old_domain", "unseen_both"}
        assert all(score.n == 40 and 0 < score.mean < 100 for score in run.scores.values())
        assert len(run.history) == (0 if method == "NU" else 2)
    assert len(record.splits["0"]["rounds"][0]) == 64


def test_methods_share_the_base_round(done: Path) -> None:
    record = Record.load(done / "record.json")
    scores = [record.select(method, 0)[0].scores for method in record.methods]
    assert scores[0] == scores[1] == scores[2]


def test_no_update_scores_the_same_in_every_round(done: Path, tmp_path: Path) -> None:
    record = Record.load(done / "record.json")
    for pool in ("unseen_old_domain", "unseen_new_domain", "unseen_both"):
        assert record.score("NU", 0, pool) == record.score("NU", 1, pool)
    four = run_experiment(FOUR_ROUNDS, tmp_path)
    assert four.rounds == (0, 1, 2, 3, 4)
    for pool in ("unseen", "round_0", "round_1", "round_4"):
        assert len({four.score("NU", round, pool) for round in four.rounds}) == 1
    assert len({four.score("FT", round, "unseen") for round in four.rounds}) > 1
    kept = {str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("model.kedge")}
    assert kept >= {f"seed-0/FT/round-{round}" for round in (1, 2, 3, 4)}


def test_same_experiment_twice_gives_the_same_bits(done: Path, tmp_path: Path) -> None:
    again = run_experiment(replace(TINY, methods=("IDA",)), tmp_path / "again")
    once = numbers(done / "record.json")
    assert numbers(again)["runs"] == [run for run in once["runs"] if run["method"] == "IDA"]
    assert numbers(again)["splits"] == once["splits"]
    for file in ("base/model.kedge", "IDA/round-1/model.kedge", "IDA/round-1/episodes.safetensors"):
        one, two = done / "seed-0" / file, tmp_path / "again" / "seed-0" / file
        assert one.read_bytes() == two.read_bytes()


def test_seed_draws_other_classes_and_weights(done: Path, tmp_path: Path) -> None:
    other = run_experiment(replace(TINY, methods=("NU",), seeds=(1,)), tmp_path / "other")
    record = Record.load(done / "record.json")
    assert other.splits["1"]["rounds"] != record.splits["0"]["rounds"]
    assert other.score("NU", 1, "unseen_both") != record.score("NU", 1, "unseen_both")


# ── killed ───────────────────────────────────────────────────────────────────────────────────

MOMENTS = {
    "in the middle of the base's second epoch": "base/training.safetensors",
    "while the base is tested": "base/model.kedge",
    "between two methods": "NU/round-1/run.json",
    "in the middle of IDA's second epoch": "IDA/round-1/training.safetensors",
}


def test_killed_again_and_again_is_never_killed(
    done: Path, tmp_path: Path, ready: Ready, signal_when: SignalWhen
) -> None:
    """SIGKILL at four moments, each in the run that goes on from the one before."""
    folder = tmp_path / "killed"
    code = PROGRAM.format(experiment=json.dumps(to_dict(TINY)), folder=str(folder))
    for moment, file in MOMENTS.items():
        signal_when(ready.start(code), folder / "seed-0" / file, signal.SIGKILL)
        assert ready.wait().rc == -signal.SIGKILL, moment
        assert not (folder / "record.json").exists()
    record = run_experiment(TINY, folder)
    assert numbers(record) == numbers(done / "record.json")
    assert numbers(folder / "record.json") == numbers(done / "record.json")
    assert models(folder) == models(done)
    assert not list(folder.rglob("training.safetensors"))


# ── added to ─────────────────────────────────────────────────────────────────────────────────


def times(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*.kedge")}


def test_method_added_later_is_as_if_it_had_been_there(done: Path, tmp_path: Path) -> None:
    folder = tmp_path / "added"
    run_experiment(replace(TINY, methods=("NU", "FT")), folder)
    before = times(folder)
    run_experiment(TINY, folder)
    assert numbers(folder / "record.json") == numbers(done / "record.json")
    assert {name: times(folder)[name] for name in before} == before  # nothing is trained twice


def test_finished_experiment_is_not_done_again(copy: Path, done: Path) -> None:
    before = times(copy)
    run_experiment(TINY, copy)
    assert times(copy) == before
    assert numbers(copy / "record.json") == numbers(done / "record.json")


def test_naming_the_new_method_alone_keeps_the_others_in_the_record(copy: Path) -> None:
    """'Methods and seeds can be added to a finished run.'"""
    run_experiment(replace(TINY, methods=("DFA",)), copy)
    assert set(Record.load(copy / "record.json").methods) == {"NU", "FT", "IDA", "DFA"}


def test_seed_named_twice_counts_once(copy: Path) -> None:
    """Two equal runs are no second opinion: the interval must not shrink."""
    with contextlib.suppress(KedgeError):
        run_experiment(replace(TINY, seeds=(0, 0)), copy)
    assert len(Record.load(copy / "record.json").select("FT", 1)) == 1


# ── refused ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"protocol": "drawings-random"}, "protocol"),
        ({"schedule": Schedule(2, 11, 20)}, "schedule"),
        ({"episode": EpisodeShape(5, 2, 5)}, "episode"),
        ({"backbone": BackboneConfig(width=5)}, "backbone"),
        ({"eval_episodes": 50}, "eval"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    copy: Path, done: Path, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(KedgeError, match=named):
        run_experiment(replace(TINY, **change), copy)
    assert numbers(copy / "record.json") == numbers(done / "record.json")


def test_second_process_is_refused(tmp_path: Path, ready: Ready, signal_when: SignalWhen) -> None:
    """While the first one works; when it is gone, however it went, the folder is free again."""
    folder = tmp_path / "run"
    slow = replace(TINY, schedule=Schedule(epochs=100, episodes=10, val_episodes=20))
    process = ready.start(PROGRAM.format(experiment=json.dumps(to_dict(slow)), folder=str(folder)))
    signal_when(process, folder / "experiment.json", signal.SIGCONT)  # it has begun
    with pytest.raises(KedgeError, match=r"run: another kedge process is working here"):
        run_experiment(slow, folder)
    os.kill(process, signal.SIGKILL)
    assert ready.wait().rc == -signal.SIGKILL
    with pytest.raises(KedgeError, match="schedule"):
        run_experiment(TINY, folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("experiment.json", ""),
        ("experiment.json", "[]"),
        ("seed-0/FT/round-1/run.json", ""),
        ("seed-0/FT/round-1/run.json", "[]"),
        ("seed-0/FT/round-1/run.json", '{"round": 1}'),
        ("seed-0/FT/round-1/episodes.safetensors", ""),
        ("seed-0/FT/round-1/episodes.safetensors", "[]"),
    ],
)
def test_damaged_file_is_named(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)
    with pytest.raises(KedgeError, match=Path(file).name) as caught:
        run_experiment(TINY, copy)
    assert "\n" not in str(caught.value)


def test_damaged_model_is_named_by_what_needs_it(copy: Path) -> None:
    (copy / "seed-0/base/model.kedge").write_bytes(b"")
    shutil.rmtree(copy / "seed-0/IDA")
    with pytest.raises(KedgeError, match=r"base/model\.kedge: not a kedge model, or damaged"):
        run_experiment(TINY, copy)


@pytest.mark.parametrize("content", ["", '{"format": 1', "[]", "null", '{"format": 1}', "\x00"])
def test_damaged_record_is_named_and_can_be_made_again(
    copy: Path, done: Path, content: str
) -> None:
    (copy / "record.json").write_text(content)
    with pytest.raises(KedgeError, match=r"record\.json: ") as caught:
        Record.load(copy / "record.json")
    assert "\n" not in str(caught.value)
    run_experiment(TINY, copy)
    assert numbers(copy / "record.json") == numbers(done / "record.json")


def test_record_with_a_damaged_part_is_named(copy: Path) -> None:
    data = json.loads((copy / "record.json").read_text())
    for key, value in (("runs", 3), ("runs", [3]), ("pairs", [{}]), ("extra", 1)):
        (copy / "record.json").write_text(json.dumps({**data, key: value}))
        with pytest.raises(KedgeError, match=r"record\.json: this kedge record is damaged"):
            Record.load(copy / "record.json")


def test_missing_record_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(KedgeError, match="no record here; 'kedge bench' writes one"):
        Record.load(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"protocol": "imagenet"}, "no protocol 'imagenet'.*drawings-4-rounds"),
        ({"methods": ()}, "at least one"),
        ({"methods": ("IDA", "ida")}, "twice"),
        ({"methods": ("LwF",)}, "no method 'LwF'.*IDA"),
        ({"seeds": (-1,)}, "negative"),
        ({"seeds": ()}, "at least one"),
        ({"eval_episodes": 1}, "eval-episodes"),
    ],
)
def test_impossible_experiment_is_refused_when_it_is_built(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(KedgeError, match=complaint):
        replace(TINY, **change)


# ── the folder, the bar and where numbers come from ──────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"episode": EpisodeShape(n_way=5, n_shot=20, n_query=15)}, "has 30 images"),
        ({"backbone": BackboneConfig("vgg")}, "no backbone 'vgg'"),
    ],
)
def test_what_cannot_work_is_found_before_the_folder_is_claimed(
    tmp_path: Path, change: dict[str, Any], fault: str
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KedgeError, match=fault):
        run_experiment(replace(TINY, **change), folder)
    assert not folder.exists()


def test_seeds_that_are_asked_for_later_join_the_record(copy: Path) -> None:
    record = run_experiment(replace(TINY, methods=("NU",), seeds=(1,)), copy)
    assert record.seeds == (0, 1)
    assert record.methods == ("NU", "FT", "IDA")
    assert len(record.runs) == 2 * 3 * 2  # seeds × methods × rounds


def test_the_bar_counts_what_is_trained(
    monkeypatch: pytest.MonkeyPatch, copy: Path, tmp_path: Path
) -> None:
    bars: dict[str, list[int]] = {}

    @contextlib.contextmanager
    def task(description: str, total: int) -> Any:
        bar = bars[description] = [total, 0]

        def tick(n: int) -> None:
            bar[1] += n

        yield tick

    monkeypatch.setattr("kedge.progress.task", task)
    run_experiment(replace(TINY, methods=("NU", "FT")), tmp_path / "fresh")
    assert bars["drawings: training episodes"] == [40, 40]  # the base round and FT
    run_experiment(TINY, copy)
    assert bars["drawings: training episodes"] == [0, 0]


def test_a_second_look_does_not_change_who_made_the_numbers(
    monkeypatch: pytest.MonkeyPatch, copy: Path
) -> None:
    before = Record.load(copy / "record.json").environment
    monkeypatch.setattr("kedge.experiment.environment", lambda: {"commit": "another"})
    assert run_experiment(TINY, copy).environment == before
