"""Every method over several rounds: what it learns from, what it keeps, and how it is tested."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kedge.benchmarks import get_protocol
from kedge.benchmarks.base import Benchmark
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.data.pools import Pool
from kedge.evaluation.anchor_drift import true_anchors
from kedge.experiments.experiment import Experiment
from kedge.experiments.records import Record, Run
from kedge.experiments.runner import run_experiment
from kedge.experiments.seed_run import SeedRun
from kedge.methods.registry import parse_method
from kedge.models.model import Model
from kedge.training.round import train_round
from kedge.training.step import StepInputs, TrainStep
from kedge.utils.config_io import to_dict

EIML, EWC = "EIML exemplars=7", "EWC episodes=2"  # some classes have fewer than 7 images
PAR_LAST = "PAR start=last"
EVERY = ("NU", "FT", "DFA", EWC, EIML, "IDA", "PAR", PAR_LAST)
HEADS = [
    "prototype",
    pytest.param("ecm inner_steps=5", marks=pytest.mark.slow),
    pytest.param("ridge", marks=pytest.mark.slow),
]
QUICK = Schedule(epochs=1, episodes=2, val_episodes=2, lr=1e-2)
SMALL = Experiment(
    methods=("NU",),
    episode=EpisodeShape(n_way=3, n_shot=1, n_query=2),
    schedule=QUICK,
    backbone=BackboneConfig(width=4),
    eval_episodes=10,
)
Few = dict[int, str]
Results = tuple[Path, Record]


def folder_of(folder: Path, method: str, round: int) -> Path:
    return folder / "seed-0" / method.replace(" ", "_") / f"round-{round}"


def model_of(folder: Path, method: str, round: int) -> Model:
    return Model.load(folder_of(folder, method, round) / "model.kedge")


def memory_of(folder: Path, method: str, round: int) -> dict[str, Tensor]:
    return load_file(folder_of(folder, method, round) / "memory.safetensors")


# ── every method over two updates ────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=HEADS)
def grown(request: pytest.FixtureRequest, few: Few, tmp_path_factory: Any) -> Results:
    """Every method over a base and two more rounds."""
    folder = tmp_path_factory.mktemp("grown")
    head = HeadConfig(request.param)
    return folder, run_experiment(replace(SMALL, protocol=few[3], methods=EVERY, head=head), folder)


@pytest.fixture(scope="module")
def benchmark(few: Few) -> Benchmark:
    return get_protocol(few[3]).benchmark(0)


def test_every_method_does_every_round(grown: Results) -> None:
    folder, record = grown
    assert record.methods == EVERY
    assert record.rounds == (0, 1, 2)
    pools = {"old", "new", "unseen", *(f"round_{i}" for i in range(3))}
    for method in EVERY:
        for round in record.rounds[1:]:
            [run] = record.select(method, round)
            assert set(run.scores) == pools
            assert all(score.n == 10 and 0 <= score.mean <= 100 for score in run.scores.values())
            assert len(run.history) == (method != "NU")
        model = model_of(folder, method, 2)
        assert len(model.classes) == len(set(model.classes)) == (4 if method == "NU" else 12)
        expected = {"NU": ["base"], "PAR": ["PAR"]}.get(method, ["base", *[method] * 2])
        assert [entry.method for entry in model.lineage] == expected
    fixed = sorted(pools - {"old", "new"})  # the same classes after every round
    scores = {
        method: {tuple(record.score(method, t, pool).mean for pool in fixed) for t in range(3)}
        for method in ("NU", "FT")
    }
    assert len(scores["NU"]) == 1
    assert len(scores["FT"]) > 1


def test_drift_is_measured_where_anchors_are_kept(grown: Results) -> None:
    for run in grown[1].runs:
        if run.round == 0 or run.method in ("PAR", PAR_LAST):  # which make every anchor again
            assert not any(name.startswith("anchor") for name in run.measures)
            assert run.anchors == ()
            continue
        assert len(run.anchors) == (4 if run.method == "NU" else 4 * run.round)
        assert run.measures["anchor_spread"] > 0
        if run.method == "NU":
            assert run.measures["anchor_drift"] == pytest.approx(0, abs=1e-5)
        else:
            assert run.measures["anchor_drift"] > 1e-3, run.method


def named_correctly(model: Model, pools: list[Pool], anchors: Tensor) -> list[float]:
    """% of the images of each pool that get their class, one image at a time."""
    names, shares = [name for pool in pools for name in pool.classes], []
    for pool in pools:
        correct = [
            names[model.head.logits(model.embed(pool.table.take(row[None])), anchors).argmax()]
            == name
            for name, rows in zip(pool.classes, pool.class_rows, strict=True)
            for row in rows
        ]
        shares.append(100 * sum(correct) / len(correct))
    return shares


@pytest.mark.parametrize("method", ["NU", "FT", "PAR"])
def test_naming_is_by_anchors_as_stored_among_all_classes_so_far(
    grown: Results, benchmark: Benchmark, method: str
) -> None:
    folder, record = grown
    model, pools = model_of(folder, method, 2), [benchmark.test_pool(t) for t in range(3)]
    true = [true_anchors(model, benchmark.train_pool(t)) for t in range(3)]
    # The frozen network stores anchors of later classes without training.
    stored = [model.anchors, *true[1:]] if method == "NU" else [model.anchors]
    [run] = record.select(method, 2)
    shares = named_correctly(model, pools, torch.cat(stored))
    assert [run.measures[f"naming_round_{t}"] for t in range(3)] == pytest.approx(shares)
    n_images = [len(pool) for pool in pools]
    assert run.measures["naming"] == pytest.approx(np.average(shares, weights=n_images))
    shares = named_correctly(model, pools, torch.cat(true))
    expected = np.average(shares, weights=n_images)
    assert run.measures["naming_true_means"] == pytest.approx(expected)
    [base] = record.select(method, 0)
    assert {"naming", "naming_true_means", "naming_round_0"} == set(base.measures)


def test_exemplars_are_training_images_of_every_class_so_far(
    grown: Results, benchmark: Benchmark
) -> None:
    held_out = {
        image.numpy().tobytes()
        for pool in benchmark.test_pools(2)
        for image in benchmark.table.images[pool.rows]
    }
    before = torch.empty(0, 1, 16, 16, dtype=torch.uint8)
    for round in range(3):
        kept = memory_of(grown[0], EIML, round)
        assert set(kept) == {"images", "counts", "names"}
        rows_of_classes = [r for t in range(round + 1) for r in benchmark.train_pool(t).class_rows]
        assert kept["counts"].tolist() == [min(7, len(rows)) for rows in rows_of_classes]
        parts = kept["images"].split(kept["counts"].tolist())
        for images, rows in zip(parts, rows_of_classes, strict=True):
            exemplars = {image.numpy().tobytes() for image in images}
            assert exemplars <= {i.numpy().tobytes() for i in benchmark.table.images[rows]}
            assert not exemplars & held_out
            assert len(exemplars) == len(images), "each once"
        assert torch.equal(kept["images"][: len(before)], before), "exemplars are never exchanged"
        before = kept["images"]
    assert set(memory_of(grown[0], EIML, 2)["counts"].tolist()) == {6, 7}


@pytest.mark.parametrize("method", [EIML, EWC])
def test_round_starts_from_the_model_and_memory_of_the_last(
    grown: Results, benchmark: Benchmark, method: str
) -> None:
    folder, _ = grown
    before, config = model_of(folder, method, 1), TrainConfig(SMALL.episode, QUICK, 0)
    prints = [
        train_round(
            before,
            benchmark.round_data(2),
            parse_method(method),
            config,
            memory=memory_of(folder, method, round),
        ).model.fingerprint
        for round in (1, 0)
    ]
    assert prints[0] == model_of(folder, method, 2).fingerprint
    assert prints[1] != prints[0], "an older memory would give another model"


def test_kept_bytes_are_counted(grown: Results, benchmark: Benchmark) -> None:
    folder, record = grown
    kept = {method: record.select(method, 2)[0].kept_bytes_per_class for method in EVERY}
    for method in (EIML, EWC):
        memory = memory_of(folder, method, 2)
        n_bytes = sum(v.numel() * v.element_size() for k, v in memory.items() if k != "names")
        assert kept[method] == pytest.approx(n_bytes / 12)
    assert kept["NU"] == kept["FT"] == kept["DFA"] == 0
    assert kept["IDA"] == 4 * model_of(folder, "IDA", 2).anchors.shape[1]
    n_images = sum(len(benchmark.train_pool(t)) for t in range(3))
    assert kept["PAR"] == pytest.approx(n_images * 16 * 16 / 12)


# ── λ = 0, and ways and shots that each episode draws ────────────────────────────────────────

ZEROS = ("DFA lambda=0", "EWC lambda=0 episodes=1", "EIML lambda=0", "IDA lambda=0")
RANGES = EpisodeShape(n_way=(2, 4), n_shot=(1, 2), n_query=2)


@pytest.fixture(scope="module", params=HEADS)
def ranged(
    request: pytest.FixtureRequest, few: Few, tmp_path_factory: Any
) -> tuple[Path, Record, set[tuple[int, int]]]:
    """λ = 0 over two updates with episodes of several shapes; and (ways, shots) that occurred."""
    folder, seen = tmp_path_factory.mktemp("ranged"), set()
    original = TrainStep.__call__

    def spy(self: TrainStep, inputs: StepInputs) -> Any:
        seen.add((len(inputs.batch.classes), inputs.batch.n_shot))
        return original(self, inputs)

    experiment = replace(
        SMALL,
        protocol=few[3],
        methods=("FT", *ZEROS, "IDA", "EIML"),
        episode=RANGES,
        head=HeadConfig(request.param),
        schedule=replace(QUICK, episodes=4),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", spy)
        record = run_experiment(experiment, folder)
    return folder, record, seen


def test_weight_zero_is_fine_tuning_in_every_round(ranged: tuple[Path, Record, Any]) -> None:
    folder, record, _ = ranged

    def results(run: Run) -> tuple[Any, ...]:
        return run.scores, run.history, run.measures, run.anchors

    for round in (1, 2):
        [tuned], expected = record.select("FT", round), model_of(folder, "FT", round).fingerprint
        for method in ZEROS:
            assert model_of(folder, method, round).fingerprint == expected
            [zero] = record.select(method, round)
            assert results(zero) == results(tuned)
    others = {model_of(folder, method, 1).fingerprint for method in ("FT", "IDA", "EIML")}
    assert len(others) == 3


def test_each_episode_draws_its_ways_and_shots(
    ranged: tuple[Path, Record, set[tuple[int, int]]],
) -> None:
    folder, record, seen = ranged
    assert {ways for ways, _ in seen} == {2, 3, 4}
    assert {shots for _, shots in seen} == {1, 2}
    [run] = record.select("IDA", 2)
    assert {pool.shape for pool in run.pools} == {RANGES}
    values = load_file(folder_of(folder, "IDA", 2) / "episodes.safetensors")
    for accuracy in torch.cat([*values.values()]).tolist():
        correct = [accuracy / 100 * 2 * ways for ways in (2, 3, 4)]
        assert any(abs(n - round(n)) < 1e-6 for n in correct)


# ── other shapes in updates and in tests ─────────────────────────────────────────────────────


def test_update_settings_change_later_rounds_only(few: Few, tmp_path: Path) -> None:
    plain = replace(SMALL, protocol=few[3], methods=("FT",))
    settings = {"update_ways": (2, 4), "update_shots": 2, "update_epochs": 0, "update_lr": 1e-3}
    changes = {"plain": {}, **{name: {name: value} for name, value in settings.items()}}
    for name, change in changes.items():
        experiment = replace(plain, **change)
        record = run_experiment(experiment, tmp_path / name)
        [run] = record.select("FT", 1)
        assert {pool.shape for pool in run.pools} == {SMALL.episode}, "tests stay as they were"
        shapes = [e.config["episode"] for e in model_of(tmp_path / name, "FT", 2).lineage]
        update = json.loads(json.dumps(to_dict(experiment.update_episode)))
        assert shapes == [to_dict(SMALL.episode), update, update]
    bases = {(tmp_path / name / "seed-0/base/model.kedge").read_bytes() for name in changes}
    assert len(bases) == 1
    for round in (1, 2):
        prints = {model_of(tmp_path / name, "FT", round).fingerprint for name in changes}
        assert len(prints) == len(changes)


def test_progress_counts_the_episodes_of_shorter_updates(few: Few, tmp_path: Path) -> None:
    experiment = replace(SMALL, protocol=few[3], methods=("NU", "FT"), update_epochs=3)
    seed = SeedRun(experiment, 0, tmp_path)
    done: list[int] = []
    methods = [parse_method(text) for text in experiment.methods]
    expected = seed.n_episodes_to_train(methods)
    seed.runs(methods, done.append)
    assert sum(done) == expected == (1 + 3 + 3) * QUICK.episodes
    assert seed.n_episodes_to_train(methods) == 0


def test_test_episodes_of_a_shape_do_not_depend_on_other_shapes(few: Few, tmp_path: Path) -> None:
    alone = replace(SMALL, protocol=few[2], test_ways=(3, 2))
    more = replace(alone, test_ways=(3, 4, 2), test_shots=(1, (1, 2)))
    found = []
    for name, experiment in (("alone", alone), ("more", more)):
        record = run_experiment(experiment, tmp_path / name)
        found.append(load_file(folder_of(tmp_path / name, "NU", 1) / "episodes.safetensors"))
        [run] = record.select("NU", 1)
        assert [pool.name for pool in run.pools] == list(run.scores)
        assert set(found[-1]) == set(run.scores)
    assert set(found[0]) < set(found[1])
    for name, values in found[0].items():
        assert torch.equal(values, found[1][name]), name
