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

import kedge.experiment
import kedge.records
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kedge.benchmarks import protocol
from kedge.benchmarks.base import Benchmark
from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
    to_dict,
)
from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment
from kedge.experiments.records import Record, Run
from kedge.experiments.runner import run_experiment
from kedge.methods.registry import parse_method
from kedge.models.model import Model
from kedge.training.round import train_round
from kedge.training.step import EpisodeBatch, TrainStep
from kedge.utils import atomic_io

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
from kedge.experiments.experiment import Experiment, run_experiment
try:
    run_experiment(from_dict(Experiment, json.loads({experiment!r})), Path({folder!r}))
except KedgeError as error:
    sys.exit(f"kedge: {{error}}")
"""
Ready = Any  # of conftest.py, which cannot be imported
Plainly = Callable[[dict[str, str]], dict[str, dict[str, Any]]]  # likewise
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


FROM_PYTHON = """[
    (np := __import__("numpy")),
    (given := kedge.Experiment(
        seeds=range(2), eval_episodes=np.int64(40), test_ways=[5, (3, np.int64(8))],
        data=__import__("pathlib").Path("images"),
    )),
    given.seeds, given.test_ways, json.dumps([given.eval_episodes, given.data]),
][-3:]"""


def test_settings_from_python_become_what_a_file_can_hold(plainly: Plainly) -> None:
    said = plainly({"given": FROM_PYTHON})["given"]["said"]
    assert said == "gave [(0, 1), (5, (3, 8)), '[40, \"images\"]']"


def test_settings_of_a_wrong_kind_are_refused_at_once(plainly: Plainly) -> None:
    expected = {
        "seeds=0": "--seeds is 0: it must be a list, each entry a whole number.",
        "seeds=(0.5,)": "--seeds is (0.5,): it must be a list, each entry a whole number.",
        "methods='IDA'": "--methods is 'IDA': it must be a list, each entry a word.",
        "eval_episodes='40'": "--eval-episodes is '40': it must be a whole number.",
        "test_ways=('5',)": (
            "--test-ways is ('5',): it must be a list, each entry a whole number or two, a range."
        ),
    }
    found = plainly({given: f"kedge.Experiment({given})" for given in expected})
    assert {k: v["said"] for k, v in found.items()} == {
        given: f"KedgeError: {said}" for given, said in expected.items()
    }


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


def test_pairs_are_differences_of_the_first_and_the_second_episode_by_episode(done: Path) -> None:
    record = Record.load(done / "record.json")
    [run] = record.select("FT", 1)
    expected = {
        (pool, a, b) for pool in run.scores for a, b in (("NU", "FT"), ("NU", "IDA"), ("FT", "IDA"))
    }
    assert len(record.pairs) == len(expected)
    assert {(pair.pool, pair.a, pair.b) for pair in record.pairs} == expected
    for pair in record.pairs:
        a, b = (
            load_file(done / f"seed-0/{method}/round-1/episodes.safetensors")[pair.pool]
            for method in (pair.a, pair.b)
        )
        assert record.score(pair.a, 1, pair.pool).mean == pytest.approx(a.mean().item())
        assert pair.difference.mean == pytest.approx((a - b).mean().item())
        assert pair.difference.ci == pytest.approx(1.96 * (a - b).std().item() / 40**0.5)
    assert any(pair.difference.mean != 0 for pair in record.pairs)


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
        ({"protocol": "drawings-random"}, "protocol drawings, not drawings-random"),
        ({"schedule": Schedule(2, 11, 20)}, "--episodes 10, not 11"),
        ({"episode": EpisodeShape(5, 2, 5)}, "--n-shot 1, not 2"),
        ({"backbone": BackboneConfig(width=5)}, "--width 4, not 5"),
        ({"eval_episodes": 50}, "--eval-episodes 40, not 50"),
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
    with pytest.raises(KedgeError, match="--epochs 100, not 2"):
        run_experiment(TINY, folder)


def test_runs_of_which_nobody_knows_the_options_are_refused(copy: Path) -> None:
    """Otherwise they would be given those of the command."""
    (copy / "experiment.json").unlink()
    with pytest.raises(KedgeError, match=r"experiment\.json: is missing, .* use another --out"):
        run_experiment(replace(TINY, schedule=Schedule(3, 10, 20)), copy)


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

    monkeypatch.setattr("kedge.utils.progress.task", task)
    run_experiment(replace(TINY, methods=("NU", "FT")), tmp_path / "fresh")
    assert bars["drawings: training episodes"] == [40, 40]  # the base round and FT
    run_experiment(TINY, copy)
    assert bars["drawings: training episodes"] == [0, 0]


def test_a_second_look_does_not_change_who_made_the_numbers(
    monkeypatch: pytest.MonkeyPatch, copy: Path
) -> None:
    before = Record.load(copy / "record.json").environment
    monkeypatch.setattr("kedge.experiments.experiment.environment", lambda: {"commit": "another"})
    assert run_experiment(TINY, copy).environment == before


# ── every method, round after round, with every head ─────────────────────────────────────────

EIML, EWC = "EIML exemplars=7", "EWC episodes=2"  # some of these classes have fewer than 7 images
ON = "PAR start=last"
EVERY = ("NU", "FT", "DFA", EWC, EIML, "IDA", "PAR", ON)
HEADS = ("prototype", "ecm steps=5", "ridge")
QUICK = Schedule(epochs=1, episodes=2, val_episodes=2, lr=1e-2)
FEW = Experiment(
    methods=("NU",),
    episode=EpisodeShape(n_way=3, n_shot=1, n_query=2),
    schedule=QUICK,
    backbone=BackboneConfig(width=4),
    eval_episodes=10,
)
Few = dict[int, str]


def of_method(folder: Path, method: str) -> Path:
    return folder / "seed-0" / method.replace(" ", "_")


@pytest.fixture(scope="module", params=HEADS)
def grown(request: pytest.FixtureRequest, few: Few, tmp_path_factory: Any) -> tuple[Path, Record]:
    """Every method over a base and four more rounds."""
    folder = tmp_path_factory.mktemp("grown")
    head = HeadConfig(request.param)
    return folder, run_experiment(replace(FEW, protocol=few[5], methods=EVERY, head=head), folder)


@pytest.fixture(scope="module")
def benchmark(few: Few) -> Benchmark:
    return protocol(few[5]).benchmark(0)


def test_every_method_goes_through_every_round(grown: tuple[Path, Record]) -> None:
    folder, record = grown
    assert record.methods == EVERY
    assert record.rounds == (0, 1, 2, 3, 4)
    for method in EVERY:
        for round in record.rounds[1:]:
            [run] = record.select(method, round)
            rounds = {f"round_{i}" for i in record.rounds}
            assert set(run.scores) == {"old", "new", "unseen", *rounds}
            assert all(score.n == 10 and 0 <= score.mean <= 100 for score in run.scores.values())
            assert len(run.history) == (method != "NU")
        model = Model.load(of_method(folder, method) / "round-4" / "model.kedge")
        known = {"NU": 4}.get(method, 20)
        assert len(model.classes) == len(set(model.classes)) == known
        lineage = [entry.method for entry in model.lineage]
        ways = {"NU": ["base"], "PAR": ["PAR"]}.get(method, ["base", *[method] * 4])
        assert lineage == ways, "PAR starts from scratch, all others from the round before"


def test_no_update_has_the_same_scores_in_every_round(grown: tuple[Path, Record]) -> None:
    _, record = grown
    fixed = ("unseen", *(f"round_{i}" for i in range(5)))

    def scores(method: str) -> list[list[float]]:
        return [[record.score(method, t, pool).mean for pool in fixed] for t in record.rounds]

    assert all(row == scores("NU")[0] for row in scores("NU"))
    assert not all(row == scores("FT")[0] for row in scores("FT"))


def test_drift_is_of_what_keeps_its_anchors(grown: tuple[Path, Record]) -> None:
    _, record = grown
    for run in record.runs:
        if run.round == 0 or run.method in ("PAR", ON):  # which makes every anchor anew
            assert run.measures == {}
            assert run.anchors == ()
            continue
        assert len(run.anchors) == (4 if run.method == "NU" else min(12, 4 * run.round))
        assert run.measures["anchor_spread"] > 0
        if run.method != "NU":
            assert run.measures["anchor_drift"] > 1e-3, run.method
        else:
            assert run.measures["anchor_drift"] == pytest.approx(0, abs=1e-5)


def memory(folder: Path, method: str, round: int) -> dict[str, Tensor]:
    return load_file(of_method(folder, method) / f"round-{round}" / "memory.safetensors")


def test_exemplars_are_training_images_of_every_class_so_far(
    grown: tuple[Path, Record], benchmark: Benchmark
) -> None:
    folder, _ = grown
    held_out = {
        image.numpy().tobytes()
        for pool in benchmark.test_pools(4)
        for image in benchmark.table.images[pool.rows]
    }
    before = torch.empty(0, 1, 16, 16, dtype=torch.uint8)
    sizes = []
    for round in range(5):
        kept = memory(folder, EIML, round)
        assert set(kept) == {"images", "counts", "names"}
        own = [rows for t in range(round + 1) for rows in benchmark.trained(t).class_rows]
        assert kept["counts"].tolist() == [min(7, len(rows)) for rows in own]
        sizes += kept["counts"].tolist()
        parts = kept["images"].split(kept["counts"].tolist())
        for images, rows in zip(parts, own, strict=True):
            theirs = {image.numpy().tobytes() for image in benchmark.table.images[rows]}
            kept_ones = {image.numpy().tobytes() for image in images}
            assert kept_ones <= theirs
            assert not kept_ones & held_out
            assert len(kept_ones) == len(images), "each once"
        assert torch.equal(kept["images"][: len(before)], before), "what was kept is kept"
        before = kept["images"]
    assert set(sizes) == {6, 7}, "of some classes there are fewer"


def test_the_fisher_information_grows_from_round_to_round(grown: tuple[Path, Record]) -> None:
    folder, _ = grown
    weights = Model.load(folder / "seed-0" / "base" / "model.kedge").weights()
    before: dict[str, Tensor] = {}
    for round in range(5):
        kept = memory(folder, EWC, round)
        assert {k: v.shape for k, v in kept.items()} == {
            f"fisher.{k}": v.shape for k, v in weights.items()
        }
        assert all((value >= before.get(key, 0)).all() for key, value in kept.items())
        assert any((value > before.get(key, 0)).any() for key, value in kept.items())
        before = kept


@pytest.mark.parametrize("method", [EIML, EWC])
def test_a_round_goes_on_from_model_and_memory_of_the_round_before(
    grown: tuple[Path, Record], benchmark: Benchmark, method: str
) -> None:
    folder, _ = grown
    before = Model.load(of_method(folder, method) / "round-2" / "model.kedge")
    config = TrainConfig(FEW.episode, QUICK, 0)
    chosen, given = parse_method(method), benchmark.delivery(3)
    made = train_round(before, given, chosen, config, memory=memory(folder, method, 2))
    assert made.model.fingerprint == weights(folder, method, 3)
    other = train_round(before, given, chosen, config, memory=memory(folder, method, 1))
    assert other.model.fingerprint != weights(folder, method, 3), "an older memory would differ"


def test_what_is_kept_is_counted(grown: tuple[Path, Record], benchmark: Benchmark) -> None:
    folder, record = grown
    model = Model.load(folder / "seed-0" / "base" / "model.kedge")
    for round in range(1, 5):
        kept = {m: record.select(m, round)[0].kept_bytes_per_class for m in EVERY}
        n_classes = 4 * (round + 1)
        for method in (EIML, EWC):
            there = sum(
                v.numel() * v.element_size()
                for k, v in memory(folder, method, round).items()
                if k != "names"
            )
            assert kept[method] == pytest.approx(there / n_classes)
        assert kept["NU"] == kept["FT"] == kept["DFA"] == 0
        assert kept["IDA"] == 4 * model.anchors.shape[1]
        images = sum(len(benchmark.trained(t)) for t in range(round + 1))
        assert kept["PAR"] == pytest.approx(images * 16 * 16 / n_classes)


# ── λ = 0, and ways and shots that are drawn for each episode ────────────────────────────────

ZEROS = ("DFA lambda=0", "EWC lambda=0 episodes=1", "EIML lambda=0", "IDA lambda=0")
RANGES = replace(FEW, episode=EpisodeShape(n_way=(2, 4), n_shot=(1, 2), n_query=2))


@pytest.fixture(scope="module", params=HEADS)
def ranged(
    request: pytest.FixtureRequest, few: Few, tmp_path_factory: Any
) -> tuple[Path, Record, set[tuple[int, int]]]:
    """λ = 0 through three rounds of episodes that differ; and which ways and shots they had."""
    folder, seen = tmp_path_factory.mktemp("ranged"), set()
    original = TrainStep.__call__

    def spy(self: TrainStep, task: EpisodeBatch, *rest: Any) -> Tensor:
        seen.add((len(task.classes), task.n_shot))
        return original(self, task, *rest)

    experiment = replace(
        RANGES,
        protocol=few[3],
        methods=("FT", *ZEROS, "IDA", "EIML"),
        head=HeadConfig(request.param),
        schedule=replace(QUICK, episodes=4),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", spy)
        record = run_experiment(experiment, folder)
    return folder, record, seen


def weights(folder: Path, method: str, round: int) -> str:
    return Model.load(of_method(folder, method) / f"round-{round}" / "model.kedge").fingerprint


def outcome(run: Run) -> tuple[Any, ...]:
    return run.scores, run.history, run.measures, run.anchors


@pytest.mark.parametrize("method", ZEROS)
def test_a_weight_of_zero_is_fine_tuning_in_every_round(
    ranged: tuple[Path, Record, Any], method: str
) -> None:
    folder, record, _ = ranged
    for round in (1, 2):
        assert weights(folder, method, round) == weights(folder, "FT", round)
        [zero], [tuned] = (record.select(each, round) for each in (method, "FT"))
        assert outcome(zero) == outcome(tuned)


def test_other_weights_are_not_fine_tuning(ranged: tuple[Path, Record, Any]) -> None:
    """So that the test above can fail."""
    folder, _, _ = ranged
    prints = {weights(folder, method, 1) for method in ("FT", "IDA", "EIML")}
    assert len(prints) == 3


def test_ways_and_shots_are_drawn_for_each_episode(
    ranged: tuple[Path, Record, set[tuple[int, int]]],
) -> None:
    folder, record, seen = ranged
    assert {ways for ways, _ in seen} == {2, 3, 4}
    assert {shots for _, shots in seen} == {1, 2}
    [run] = record.select("IDA", 2)
    assert {pool.shape for pool in run.pools} == {RANGES.episode}
    values = load_file(of_method(folder, "IDA") / "round-2" / "episodes.safetensors")
    queries = [2 * k for k in (2, 3, 4)]
    for accuracy in torch.cat([*values.values()]).tolist():
        assert any(abs(accuracy / 100 * n - round(accuracy / 100 * n)) < 1e-6 for n in queries)


# ── other shapes in updates and in tests ─────────────────────────────────────────────────────


def test_shapes_of_updates_change_later_rounds_only(few: Few, tmp_path: Path) -> None:
    plain = replace(FEW, protocol=few[3], methods=("FT", "PAR"))
    changes = {"plain": {}, "ways": {"update_ways": (2, 4)}, "shots": {"update_shots": 2}}
    records = {
        name: run_experiment(replace(plain, **change), tmp_path / name)
        for name, change in changes.items()
    }
    bases = {(tmp_path / name / "seed-0/base/model.kedge").read_bytes() for name in changes}
    assert len(bases) == 1
    for method in ("FT", "PAR"):
        for round in (1, 2):
            assert len({weights(tmp_path / name, method, round) for name in changes}) == 3
    for name, record in records.items():
        [run] = record.select("FT", 1)
        assert {pool.shape for pool in run.pools} == {FEW.episode}, "tests stay as they were"
        model = Model.load(tmp_path / name / "seed-0/FT/round-2/model.kedge")
        shapes = [entry.config["episode"] for entry in model.lineage]
        assert shapes[0] == to_dict(FEW.episode)
        said = json.loads(json.dumps(to_dict(replace(plain, **changes[name]).update_episode)))
        assert shapes[1] == shapes[2] == said


def test_every_pool_is_tested_in_every_shape(few: Few, tmp_path: Path) -> None:
    shaped = replace(FEW, protocol=few[2], test_ways=(3, 2), test_shots=(1, (1, 2)))
    record = run_experiment(shaped, tmp_path)
    [run] = record.select("NU", 1)
    names = ["", " at 2-way 1-shot", " at 3-way 1–2-shot", " at 2-way 1–2-shot"]
    assert list(run.scores) == [
        f"{pool}{name}" for name in names for pool in ("old", "new", "unseen")
    ]
    shapes = [EpisodeShape(k, s, 2) for s in (1, (1, 2)) for k in (3, 2)]
    assert [pool.shape for pool in run.pools] == [shape for shape in shapes for _ in range(3)]
    assert [pool.name for pool in run.pools] == list(run.scores)
    assert [pool.pool for pool in run.pools] == ["old", "new", "unseen"] * 4
    assert [pool.first_shape for pool in run.pools] == [True] * 3 + [False] * 9
    assert Record.load(tmp_path / "record.json") == record
    assert {pair.pool for pair in record.pairs} <= set(run.scores)


def test_episodes_of_a_shape_do_not_depend_on_other_shapes(few: Few, tmp_path: Path) -> None:
    alone = replace(FEW, protocol=few[2], test_ways=(3, 2))
    more = replace(alone, test_ways=(3, 4, 2), test_shots=(1, 2))
    found = []
    for number, experiment in enumerate((alone, more)):
        run_experiment(experiment, tmp_path / str(number))
        place = of_method(tmp_path / str(number), "NU") / "round-1" / "episodes.safetensors"
        found.append(load_file(place))
    assert set(found[0]) < set(found[1])
    for name, values in found[0].items():
        assert torch.equal(values, found[1][name]), name


def test_a_shape_that_a_pool_has_not_the_classes_for_is_found_at_once(
    few: Few, tmp_path: Path
) -> None:
    for change in ({"test_ways": (3, 5)}, {"update_ways": (3, 5)}, {"test_shots": (1, 9)}):
        with pytest.raises(KedgeError, match=r"4 class|images in the"):
            run_experiment(replace(FEW, protocol=few[2], **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ── stopped at every write ───────────────────────────────────────────────────────────────────


class Stopped(Exception):
    pass


STOPPED: dict[str, dict[str, Any]] = {
    "exemplars": {"methods": (EIML,)},
    "Fisher information": {"methods": (EWC,)},
    "learned rows": {"methods": ("IDA",), "head": HeadConfig("ecm steps=2")},
    "hard tasks": {"methods": ("FT",), "schedule": Schedule(2, 2, 2, 1e-2, tasks="hard")},
}


@pytest.mark.parametrize("kept", STOPPED)
def test_stopped_after_any_write_it_goes_on_to_the_same_bits(
    kept: str, few: Few, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one write, then after two more, and so on, until it is done."""
    two = {"schedule": replace(QUICK, epochs=2)} | STOPPED[kept]
    experiment = replace(FEW, protocol=few[3], **two)
    whole = run_experiment(experiment, tmp_path / "whole")
    left = [0]

    def write_then_stop(path: Path, write: Callable[[Path], object]) -> None:
        original(path, write)
        left[0] -= 1
        if left[0] == 0:
            raise Stopped

    original = atomic_io.write_atomically
    for module in (atomic_io, kedge.experiment, kedge.records):
        monkeypatch.setattr(module, "write_atomically", write_then_stop)
    stops, stopped = 0, tmp_path / "stopped"
    while True:
        left[0] = stops + 1
        try:
            record = run_experiment(experiment, stopped)
            break
        except Stopped:
            stops += 1
    assert stops > 4
    assert numbers(record) == numbers(whole)
    files = {
        str(path.relative_to(tmp_path / "whole")): path.read_bytes()
        for path in (tmp_path / "whole").rglob("*")
        if path.suffix in (".kedge", ".safetensors")
    }
    remembers = kept in ("exemplars", "Fisher information")
    assert not remembers or any("memory" in name for name in files)
    assert {name: (stopped / name).read_bytes() for name in files} == files


# ── classes that change their roles ──────────────────────────────────────────────────────────

PARTED = replace(
    TINY,
    protocol="folder",
    methods=("NU",),
    episode=EpisodeShape(n_way=3, n_shot=1, n_query=2),
    schedule=Schedule(epochs=1, episodes=2, val_episodes=2),
    eval_episodes=4,
)


@pytest.fixture
def begun(tmp_path: Path, draw_classes: Callable[..., Path]) -> tuple[Experiment, Path, Path]:
    """A run on class folders in split folders, done with one method; data and the run's folder."""
    data, run = tmp_path / "data", tmp_path / "run"
    for part, numbers in (("train", range(10)), ("val", range(10, 15)), ("test", range(15, 20))):
        draw_classes(data / part, [f"{i:02}" for i in numbers], per_class=8)
    experiment = replace(PARTED, data=str(data))
    run_experiment(experiment, run)
    return experiment, data, run


def exchange(data: Path) -> None:
    """One class that was trained on becomes one to test on, and the other way round."""
    (data / "train" / "03").rename(data / "test" / "03")
    (data / "test" / "17").rename(data / "train" / "17")


def test_run_is_not_continued_on_classes_in_other_parts(
    begun: tuple[Experiment, Path, Path],
) -> None:
    """The images are the same to the last bit, but some of the base's would be tested on."""
    experiment, data, run = begun
    kept = models(run)
    exchange(data)
    more = replace(experiment, methods=("NU", "FT"))
    with pytest.raises(KedgeError, match=r"run: holds an experiment on other images"):
        run_experiment(more, run)
    assert models(run) == kept
    assert Record.load(run / "record.json").methods == ("NU",)
    (data / "test" / "03").rename(data / "train" / "03")
    (data / "train" / "17").rename(data / "test" / "17")
    assert run_experiment(more, run).methods == ("NU", "FT")


def test_every_seed_keeps_its_classes_in_their_roles(begun: tuple[Experiment, Path, Path]) -> None:
    """Also where nothing is known of the images, as in the run of an early version."""
    experiment, data, run = begun
    split = json.loads((run / "seed-0" / "split.json").read_text())
    assert sorted(split["unseen"]["unseen"]) == [f"{i:02}" for i in range(15, 20)]
    about = json.loads((run / "experiment.json").read_text())
    del about["images"]
    (run / "experiment.json").write_text(json.dumps(about))
    exchange(data)
    with pytest.raises(KedgeError, match=r"split\.json: this run began with other classes"):
        run_experiment(replace(experiment, methods=("NU", "FT")), run)
    assert json.loads((run / "seed-0" / "split.json").read_text()) == split
    assert not (run / "seed-0" / "FT").exists()
