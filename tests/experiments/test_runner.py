"""Experiments that are stopped, killed, extended and damaged: the numbers stay the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from safetensors.torch import load_file

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule
from kedge.errors import KedgeError
from kedge.experiments import seed_run
from kedge.experiments.experiment import Experiment
from kedge.experiments.records import Record
from kedge.experiments.runner import run_experiment
from kedge.methods import registry
from kedge.utils import atomic_io
from kedge.utils.config_io import to_dict

TINY = Experiment(
    methods=("NU", "FT", "IDA"),
    episode=EpisodeShape(n_way=3, n_shot=1, n_query=2),
    schedule=Schedule(epochs=2, episodes=3, val_episodes=2, lr=1e-2),
    backbone=BackboneConfig(width=4),
    eval_episodes=10,
)
pytestmark = pytest.mark.usefixtures("few")


def tiny(**changes: Any) -> Experiment:
    return replace(TINY, **{"protocol": "few-2", **changes})  # a protocol of conftest.py


def numbers(record: Record | Path) -> dict[str, Any]:
    """A record without when and how fast it was made, and at which commit."""
    loaded = Record.load(record) if isinstance(record, Path) else record
    data = json.loads(json.dumps(asdict(loaded)))
    for run in data["runs"]:
        del run["seconds"], run["peak_memory_mb"]
        del run["environment"]["date"], run["environment"]["commit"]
    return data


def models(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.kedge")}


def times(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*.kedge")}


@pytest.fixture(scope="module")
def done(few: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny experiment, never disturbed."""
    folder = tmp_path_factory.mktemp("experiment") / "done"
    run_experiment(tiny(), folder)
    return folder


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "copy")


# ── what is in the record ────────────────────────────────────────────────────────────────────


def test_record_holds_every_method_round_and_pool(done: Path) -> None:
    record = Record.load(done / "record.json")
    assert record.methods == ("NU", "FT", "IDA")
    assert record.rounds == (0, 1)
    bases = [record.select(method, 0)[0].scores for method in record.methods]
    assert bases[0] == bases[1] == bases[2], "the base round is shared"
    for method in record.methods:
        [run] = record.select(method, 1)
        assert set(run.scores) == {pool.name for pool in run.pools} == {"old", "new", "unseen"}
        assert all(score.n == 10 for score in run.scores.values())
        assert len(run.history) == (0 if method == "NU" else 2)
    assert [len(names) for names in record.splits["0"]["rounds"]] == [4, 4]


def test_pairs_are_differences_episode_by_episode(done: Path) -> None:
    record = Record.load(done / "record.json")
    methods = (("NU", "FT"), ("NU", "IDA"), ("FT", "IDA"))
    expected = {(pool, a, b) for pool in ("old", "new", "unseen") for a, b in methods}
    assert {(pair.pool, pair.a, pair.b) for pair in record.pairs} == expected
    assert len(record.pairs) == len(expected)
    for pair in record.pairs:
        a, b = (
            load_file(done / f"seed-0/{method}/round-1/episodes.safetensors")[pair.pool]
            for method in (pair.a, pair.b)
        )
        assert record.score(pair.a, 1, pair.pool).mean == pytest.approx(a.mean().item())
        assert pair.difference.mean == pytest.approx((a - b).mean().item())
        assert pair.difference.ci == pytest.approx(1.96 * (a - b).std().item() / 10**0.5)
    assert any(pair.difference.mean != 0 for pair in record.pairs)


# ── extended and repeated ────────────────────────────────────────────────────────────────────


def test_method_that_is_added_later_changes_nothing_else(done: Path, tmp_path: Path) -> None:
    folder = tmp_path / "added"
    run_experiment(tiny(methods=("NU", "FT")), folder)
    before = times(folder)
    run_experiment(tiny(methods=("IDA",)), folder)
    assert numbers(folder / "record.json") == numbers(done / "record.json")
    assert {name: times(folder)[name] for name in before} == before, "nothing is trained twice"


def test_finished_experiment_is_not_done_again(
    copy: Path, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Record.load(copy / "record.json")
    monkeypatch.setattr(seed_run, "environment", lambda: {"commit": "another"})
    monkeypatch.setattr(seed_run, "train_round", lambda *_: pytest.fail("it trained"))
    monkeypatch.setattr(seed_run, "evaluate_pools", lambda *_: pytest.fail("it tested"))
    assert run_experiment(tiny(), copy) == before


def test_run_that_another_process_works_on_is_waited_for(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was given up for lost may still work: nothing is done a second time."""
    before, run = (copy / "record.json").read_bytes(), copy / "seed-0" / "FT" / "round-1"
    result, told = (run / "run.json").read_bytes(), SimpleQueue[str]()
    (run / "run.json").unlink()
    monkeypatch.setattr(seed_run, "train_round", lambda *_: pytest.fail("it trained"))
    monkeypatch.setattr(seed_run, "_tell_waiting", lambda _, holder: told.put(holder))
    with ThreadPoolExecutor() as pool:
        with atomic_io.exclusive(run):
            second = pool.submit(run_experiment, tiny(), copy)
            assert told.get(timeout=60) == f" (process {os.getpid()} on {socket.gethostname()})"
            (run / "run.json").write_bytes(result)
        second.result(timeout=60)
    assert (copy / "record.json").read_bytes() == before


def test_seeds_that_are_added_later_have_other_classes(copy: Path) -> None:
    record = run_experiment(tiny(methods=("NU",), seeds=(1,)), copy)
    assert record.seeds == (0, 1)
    assert record.methods == ("NU", "FT", "IDA")
    assert len(record.runs) == 2 * 3 * 2  # seeds × methods × rounds
    assert record.splits["0"]["rounds"] != record.splits["1"]["rounds"]
    one, two = (run.scores for run in record.select("FT", 1))
    assert one != two


# ── refused ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"protocol": "few-3"}, "other images"),
        ({"schedule": replace(TINY.schedule, episodes=4)}, "--episodes 3, not 4"),
        ({"schedule": replace(TINY.schedule, sampling="hard")}, "--sampling uniform, not hard"),
        ({"episode": EpisodeShape(3, 2, 2)}, "--n-shot 1, not 2"),
        ({"backbone": BackboneConfig(width=5)}, "--width 4, not 5"),
        ({"eval_episodes": 20}, "--eval-episodes 10, not 20"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    copy: Path, change: dict[str, Any], word: str
) -> None:
    before = (copy / "record.json").read_bytes()
    with pytest.raises(KedgeError, match=word):
        run_experiment(tiny(**change), copy)
    assert (copy / "record.json").read_bytes() == before


def test_a_method_that_meant_something_else_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_experiment(tiny(methods=("IDA+",)), copy)
    monkeypatch.setitem(registry.PRESETS, "IDA+", "IDA lambda=auto")
    with pytest.raises(KedgeError, match=r"'IDA\+' was another method"):
        run_experiment(tiny(), copy)


def test_folder_that_cannot_be_used_is_named(copy: Path, tmp_path: Path) -> None:
    with (
        atomic_io.exclusive(copy),
        pytest.raises(KedgeError, match="another kedge process"),
    ):
        run_experiment(tiny(), copy)
    with pytest.raises(KedgeError, match="'vgg'"):
        run_experiment(tiny(backbone=BackboneConfig("vgg")), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (copy / "experiment.json").unlink()
    with pytest.raises(KedgeError, match=r"experiment\.json: is missing"):
        run_experiment(tiny(), copy)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("experiment.json", ""),
        ("experiment.json", "[]"),
        ("seed-0/FT/round-1/run.json", "[]"),
        ("seed-0/FT/round-1/episodes.safetensors", ""),
        ("seed-0/split.json", "{}"),
        ("seed-0/base/model.kedge", ""),
    ],
)
def test_damaged_file_is_named(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)
    if file.endswith(".kedge"):  # read only if something has to be trained
        shutil.rmtree(copy / "seed-0/IDA")
    with pytest.raises(KedgeError, match=Path(file).name) as caught:
        run_experiment(tiny(), copy)
    assert "\n" not in str(caught.value)


# ── classes that change their roles ──────────────────────────────────────────────────────────


def test_run_is_not_continued_with_classes_in_other_roles(
    tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    """The images are the same, but some that were trained on would be tested on."""
    data, folder = tmp_path / "data", tmp_path / "run"
    for part, numbers in (("train", range(10)), ("val", range(10, 15)), ("test", range(15, 20))):
        draw_classes(data / part, [f"{i:02}" for i in numbers], per_class=8)
    experiment = tiny(protocol="folder", methods=("NU",), data=str(data))
    run_experiment(experiment, folder)
    split = json.loads((folder / "seed-0" / "split.json").read_text())
    assert sorted(split["unseen"]["unseen"]) == [f"{i:02}" for i in range(15, 20)]
    (data / "train" / "03").rename(data / "test" / "03")
    (data / "test" / "17").rename(data / "train" / "17")
    more = replace(experiment, methods=("NU", "FT"))
    with pytest.raises(KedgeError, match="other images"):
        run_experiment(more, folder)
    about = json.loads((folder / "experiment.json").read_text())
    del about["images"]  # as in runs of early versions
    (folder / "experiment.json").write_text(json.dumps(about))
    with pytest.raises(KedgeError, match=r"split\.json: .*another split"):
        run_experiment(more, folder)
    assert not (folder / "seed-0" / "FT").exists()


def test_run_of_an_early_version_is_not_continued_with_another_dfa(tmp_path: Path) -> None:
    """Its default was the sum over the features."""
    run_experiment(tiny(methods=("NU",)), tmp_path)
    path = tmp_path / "experiment.json"
    about = json.loads(path.read_text())
    del about["format"]
    path.write_text(json.dumps(about))
    run_experiment(tiny(methods=("NU", "DFA lambda=0")), tmp_path)
    path.write_text(json.dumps({**about, "methods": ["NU", "DFA"]}))
    with pytest.raises(KedgeError, match="DFA reduction=sum"):
        run_experiment(tiny(methods=("NU",)), tmp_path)


# ── stopped and killed ───────────────────────────────────────────────────────────────────────


class Stopped(Exception):
    pass


STOPPED: dict[str, dict[str, Any]] = {
    "exemplars": {"methods": ("EIML exemplars=7",)},
    "Fisher information": {"methods": ("EWC episodes=2",)},
    "class embeddings": {"methods": ("IDA",), "head": HeadConfig("ecm inner_steps=2")},
    "hard tasks": {"methods": ("FT",), "schedule": Schedule(2, 2, 2, 1e-2, sampling="hard")},
}


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "exemplars" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in STOPPED
    ],
)
def test_stopped_after_any_write_it_continues_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one write, then after two more, and so on, until it is done."""
    experiment = tiny(protocol="few-3", **STOPPED[kind])
    whole = run_experiment(experiment, tmp_path / "whole")
    left = 0

    def write_then_stop(*args: Any) -> None:
        nonlocal left
        original(*args)
        left -= 1
        if left == 0:
            raise Stopped

    original = atomic_io.write_atomically
    monkeypatch.setattr(atomic_io, "write_atomically", write_then_stop)
    stops, record = 0, None
    while record is None:
        left = stops + 1
        try:
            record = run_experiment(experiment, tmp_path / "stopped")
        except Stopped:
            stops += 1
    assert stops > 4
    assert numbers(record) == numbers(whole)
    for path in (tmp_path / "whole").rglob("*"):
        if path.suffix in (".kedge", ".safetensors"):
            stopped = tmp_path / "stopped" / path.relative_to(tmp_path / "whole")
            assert stopped.read_bytes() == path.read_bytes(), path.name


PROGRAM = """
import json
from pathlib import Path
from kedge.experiments.experiment import Experiment
from kedge.experiments.runner import run_experiment
from kedge.utils.config_io import from_dict
run_experiment(from_dict(Experiment, json.loads({experiment!r})), Path({folder!r}))
"""
MOMENTS = (  # files whose appearance is the signal to kill
    "base/training.safetensors",
    "base/model.kedge",
    "NU/round-1/run.json",
    "IDA/round-1/training.safetensors",
)


@pytest.mark.slow
def test_killed_again_and_again_it_continues_to_the_same_bits(
    tmp_path: Path, ready: Any, signal_when: Callable[..., None]
) -> None:
    experiment = tiny(protocol="drawings", schedule=Schedule(2, 10, 20), eval_episodes=40)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_experiment(experiment, whole)
    code = PROGRAM.format(experiment=json.dumps(to_dict(experiment)), folder=str(killed))
    for file in MOMENTS:
        signal_when(ready.start(code), killed / "seed-0" / file, signal.SIGKILL)
        assert ready.wait().rc == -signal.SIGKILL, file
        assert not (killed / "record.json").exists()
    (killed / "seed-0" / "NU" / "round-1" / ".lock").touch()  # killed before it was removed
    assert numbers(run_experiment(experiment, killed)) == numbers(whole / "record.json")
    assert models(killed) == models(whole)
    assert not list(killed.rglob("training.safetensors")) + list(killed.rglob(".lock"))
