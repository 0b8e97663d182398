"""One seed of an experiment: its classes, its base model, and each method trained from that base.

The folder of a seed:

    split.json                     which classes play which role
    base/                          round 0, shared by all methods
    IDA/round-1/model.kedge        the model
                run.json           its scores, training curve and cost
                episodes.safetensors   the accuracy of every test episode
                memory.safetensors     what the method keeps for its next round, if anything
                places.safetensors     anchors of its classes, to measure later drift
                training.safetensors   the checkpoint, deleted when the round is done
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kedge.benchmarks.base import pool_label
from kedge.config import TrainConfig
from kedge.errors import KedgeError
from kedge.evaluation.accuracy import PoolFeatures, evaluate_pools
from kedge.evaluation.anchor_drift import anchor_drift, true_anchors
from kedge.evaluation.naming import naming_measures
from kedge.evaluation.results import AnchorMove, Score
from kedge.experiments.experiment import Experiment
from kedge.experiments.jobs import Job
from kedge.experiments.records import PairedDifference, PoolInfo, Run, load_run
from kedge.methods.base import Memory
from kedge.methods.registry import Method
from kedge.models.model import Model
from kedge.models.start import given_network, start_model
from kedge.training.round import RoundResult, memory_after_round, train_round, training_pool
from kedge.training.step import default_device
from kedge.utils import distributed, progress
from kedge.utils.atomic_io import exclusive, load_tensors, save_tensors, write_text_atomically
from kedge.utils.env import environment, peak_memory_mb, reset_peak_memory
from kedge.utils.progress import Tick
from kedge.utils.regular_file import read_text
from kedge.utils.seeding import torch_seed
from kedge.utils.text import folder_name

BASE = Method("base", "new", from_scratch=True)  # round 0, shared by all methods


class SeedRun:
    """Trains and tests the methods of an experiment under one seed; what is done is read back."""

    def __init__(self, experiment: Experiment, seed: int, folder: Path, n_jobs: int = 1) -> None:
        self.experiment, self.seed, self.folder, self.n_jobs = experiment, seed, folder, n_jobs
        self.benchmark = experiment.benchmark(seed)
        self._check_or_save_split()
        self.rounds = range(1, self.benchmark.n_rounds)

    def _check_or_save_split(self) -> None:
        """Raise if the classes now have other roles than when this run began."""
        path = self.folder / "split.json"
        text = json.dumps(asdict(self.benchmark.split), ensure_ascii=False) + "\n"
        try:
            saved = read_text(path)
        except FileNotFoundError:
            write_text_atomically(path, text)
            return
        except (OSError, UnicodeDecodeError) as error:
            raise KedgeError(f"{path}: cannot be read ({error}); use another --out.") from None
        if saved != text:
            raise KedgeError(
                f"{path}: this run began with another split of the classes than the data and the "
                "protocol give now; choose another folder with --out."
            )

    def n_episodes_to_train(self, methods: list[Method]) -> int:
        """The training episodes of all rounds that are not done yet."""
        trained = [method for method in (BASE, *methods) if method.trains_on != "nothing"]
        rounds = [round for method in trained for round in self._open_rounds(method)]
        schedules = [self._config(round).schedule for round in rounds]
        return sum(schedule.epochs * schedule.episodes for schedule in schedules)

    def open_jobs(self, methods: list[Method]) -> list[Job]:
        """A job for each method that has something left to train or test."""
        base = Job(self.seed, BASE.label, result=self.result_of(BASE))
        return [
            Job(
                self.seed,
                method.label,
                after=None if method.from_scratch else base,
                result=self.result_of(method),
            )
            for method in methods
            if self._open_rounds(method)
        ]

    def result_of(self, method: Method) -> Path:
        """The file that is written when all rounds of a method are done."""
        return self._folder_of(method, self._rounds_of(method)[-1]) / "run.json"

    def _open_rounds(self, method: Method) -> list[int]:
        folders = {round: self._folder_of(method, round) for round in self._rounds_of(method)}
        return [round for round, path in folders.items() if not (path / "run.json").exists()]

    def _rounds_of(self, method: Method) -> range:
        return range(1) if method is BASE else self.rounds

    def runs(self, methods: list[Method], tick: Tick) -> list[Run]:
        """All runs; the base round is listed once for each method."""
        [base] = self.runs_of(BASE, tick)
        runs = [replace(base, method=method.label) for method in methods]
        return runs + [run for method in methods for run in self.runs_of(method, tick)]

    def runs_of(self, method: Method, tick: Tick) -> list[Run]:
        """The runs of one method. Unless it starts from scratch, the base must be done."""
        return [self._run(method, round, tick) for round in self._rounds_of(method)]

    def paired_differences(self, methods: list[Method]) -> list[PairedDifference]:
        """Every pair of methods on every pool, episode by episode."""
        found = []
        for round in self.rounds:
            values = {}
            for method in methods:
                path = self._folder_of(method, round) / "episodes.safetensors"
                advice = f"; delete {path.parent} to do this run again"
                _, values[method.label] = load_tensors(path, "list of accuracies", advice)
            for a, b in itertools.combinations(values, 2):
                for pool in values[a]:
                    difference = Score.of(values[a][pool] - values[b][pool])
                    found.append(PairedDifference(self.seed, round, pool, a, b, difference))
        return found

    def _folder_of(self, method: Method, round: int) -> Path:
        folder = self.folder / folder_name(method.label)
        return folder if round == 0 else folder / f"round-{round}"

    def _config(self, round: int) -> TrainConfig:
        own = self.experiment
        if round == 0:
            return TrainConfig(own.episode, own.schedule, self.seed)
        other: dict[str, Any] = {"epochs": own.update_epochs, "lr": own.update_lr}
        given = {name: value for name, value in other.items() if value is not None}
        return TrainConfig(own.update_episode, replace(own.schedule, **given), self.seed)

    def _run(self, method: Method, round: int, tick: Tick) -> Run:
        """Train and test, unless that was done before."""
        folder = self._folder_of(method, round)
        if not (folder / "run.json").exists():
            # A worker that was given up for lost, on another machine, may still be at it.
            with exclusive(folder, on_wait=partial(_tell_waiting, folder)):
                if not distributed.broadcast((folder / "run.json").exists()):
                    return self._train_and_test(method, round, folder, tick)
        # The run may have been killed just before it removed these.
        for name in ("training.safetensors", ".lock"):
            (folder / name).unlink(missing_ok=True)
        return load_run(folder / "run.json")

    def _train_and_test(self, method: Method, round: int, folder: Path, tick: Tick) -> Run:
        reset_peak_memory()
        result = self._train(method, round, folder, tick)
        peak = peak_memory_mb() if result.history else 0.0
        run = self._test(method, round, result, peak, folder)
        text = json.dumps(asdict(run), indent=1) + "\n"
        write_text_atomically(folder / "run.json", text)
        (folder / "training.safetensors").unlink(missing_ok=True)
        best = max((epoch.val_accuracy for epoch in run.history), default=0.0)
        took = f"{run.seconds:.0f} s, validation {best:.1f}%"
        summary = took if run.history else "no training"
        progress.note(f"seed {self.seed}, round {round}, {method.label}: {summary}")
        return run

    def _train(self, method: Method, round: int, folder: Path, tick: Tick) -> RoundResult:
        if method.trains_on == "nothing":
            model = self._model(method, round - 1)
            model.save(folder / "model.kedge")
            return RoundResult(model)
        round_data = self.benchmark.round_data(round, with_old=method.trains_on == "everything")
        if method.from_scratch:
            backbone, seed = self.experiment.backbone, torch_seed("weights", self.seed)
            network = given_network(backbone, image_size=self.benchmark.table.image_size)
            pool = training_pool(method, round_data)
            start = start_model(backbone, self.experiment.head, pool, seed, network)
            start = start.to(default_device())
        else:
            start = self._model(method, round - 1)
        memory = self._memory(method, round - 1) if round else {}
        checkpoint, config = folder / "training.safetensors", self._config(round)
        schedule, n_rounds = config.schedule, len(self._rounds_of(method))
        n_episodes = n_rounds * schedule.epochs * schedule.episodes
        given = (start, round_data, method, config, checkpoint, tick, memory, n_episodes)
        result = train_round(*given)
        result.model.save(folder / "model.kedge")
        began = time.perf_counter()
        if method.remembers:
            self._save_memory(method, round, result.model)
        return replace(result, seconds=result.seconds + time.perf_counter() - began)

    def _model(self, method: Method, round: int) -> Model:
        """The model of a method after a round; after round 0 the shared base."""
        folder = self._folder_of(method if round else BASE, round)
        return Model.load(folder / "model.kedge").to(default_device())

    def _memory(self, method: Method, round: int) -> Memory:
        """What the method kept after a round. The base is shared, but each has its own memory."""
        if not method.remembers:
            return {}
        path = self._memory_path(method, round)
        if not path.exists() and round == 0:
            self._save_memory(method, 0, self._model(method, 0))
        return load_tensors(path, "memory of a method")[1]

    def _save_memory(self, method: Method, round: int, model: Model) -> None:
        before = self._memory(method, round - 1) if round else {}
        round_data = self.benchmark.round_data(round)
        kept = memory_after_round(method, model, round_data, before, self._config(round))
        save_tensors(self._memory_path(method, round), kept, {"method": method.label})

    def _memory_path(self, method: Method, round: int) -> Path:
        return self._folder_of(method, 1).with_name(f"round-{round}") / "memory.safetensors"

    def _test(
        self, method: Method, round: int, result: RoundResult, peak: float, folder: Path
    ) -> Run:
        specs = self.experiment.eval_specs(self.benchmark.test_pools(round))
        by_round = [self.benchmark.test_pool(t) for t in range(round + 1)]
        features = PoolFeatures(result.model, [*(spec.pool for spec in specs), *by_round])
        n_episodes = self.experiment.eval_episodes
        accuracies = evaluate_pools(result.model, specs, n_episodes, self.seed, features)
        save_tensors(folder / "episodes.safetensors", accuracies, {"seed": self.seed})
        train_pools = [self.benchmark.train_pool(t) for t in range(round + 1)]
        now = [true_anchors(result.model, pool) for pool in train_pools]
        measures, moves = self._drift(method, round, result.model, now)
        measures |= naming_measures(result.model, by_round, features, now)
        shared = {"processes": distributed.world_size(), "jobs": self.n_jobs}
        pools = (
            PoolInfo(spec.name, pool_label(spec.pool.name), len(spec.pool.classes), spec.shape)
            for spec in specs
        )
        return Run(
            seed=self.seed,
            method=method.label,
            round=round,
            pools=tuple(pools),
            scores={name: Score.of(values) for name, values in accuracies.items()},
            history=result.history,
            seconds=result.seconds,
            peak_memory_mb=peak,
            kept_bytes_per_class=self._kept_bytes(method, round, result.model),
            environment=environment() | {key: str(n) for key, n in shared.items() if n > 1},
            measures=measures,
            anchors=moves,
        )

    def _drift(
        self, method: Method, round: int, model: Model, true: Sequence[Tensor]
    ) -> tuple[dict[str, float], tuple[AnchorMove, ...]]:
        """How far the classes of earlier rounds have moved since their anchors were made. `true`
        are the anchors of each round's classes made anew under this model."""
        if method.trains_on == "everything":  # it makes all anchors again in every round
            return {}, ()
        own = self.benchmark.split.rounds[round]
        if set(own) <= set(model.classes):
            path = self._folder_of(method, round) / "places.safetensors"
            save_tensors(path, {"places": true[round]}, {"classes": own})
        if round == 0 or not (self._folder_of(BASE, 0) / "places.safetensors").exists():
            return {}, ()  # bases of early versions have no such file
        names: list[str] = []
        then, now = [], []
        for t in range(round):
            path = self._folder_of(method if t else BASE, t) / "places.safetensors"
            if path.exists():  # NU never learns the classes of later rounds
                then.append(load_tensors(path, "list of anchors")[1]["places"])
                now.append(true[t])
                names += self.benchmark.split.rounds[t]
        return anchor_drift(names, torch.cat(then), torch.cat(now), then[0])

    def _kept_bytes(self, method: Method, round: int, model: Model) -> float:
        """Bytes per class that the method keeps for its next round, besides the weights."""
        if method.trains_on == "everything":
            entry = model.lineage[-1]
            return entry.images / len(entry.classes) * self.benchmark.table.images[0].numel()
        if method.alignment is None or method is BASE:
            return 0.0
        memory = self._memory(method, round)
        # Class names do not count: every method keeps them, in the model.
        kept = sum(t.numel() * t.element_size() for key, t in memory.items() if key != "names")
        shape = self.experiment.episode
        uses = method.alignment.anchors_per_step(shape.ways[1], shape.ways[1])
        return kept / len(model.classes) + (model.anchors[0].numel() * 4.0 if uses else 0.0)


def _tell_waiting(folder: Path, holder: str) -> None:
    progress.note(f"{folder}: waiting for another kedge process{holder}, which works here")
