"""Methods × rounds × seeds over a protocol: resumable, and every number ends in a record.

The folder of a run:

    experiment.json                      the settings; a folder belongs to one experiment
    seed-0/base/                         round 0, shared by every method
    seed-0/IDA/round-1/model.kedge       the model
                       run.json          its scores, curve and cost
                       episodes.safetensors   the accuracy of every test episode
                       training.safetensors   the state while it trains; gone when it is done
    record.json                          all of it together, written when all is done
"""

from __future__ import annotations

import itertools
import json
import re
import resource
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kedge import progress
from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
    require,
    to_dict,
)
from kedge.durable import only_one_process, write_atomically
from kedge.errors import KedgeError
from kedge.evaluation import Score, evaluate, paired
from kedge.methods import Method, parse_method
from kedge.model import Model, ModelConfig, new_model
from kedge.progress import Tick
from kedge.protocol import Benchmark, Protocol, label, protocol
from kedge.records import Pair, PoolInfo, Record, Run, environment, run_from_dict
from kedge.seeding import torch_seed
from kedge.step import default_device
from kedge.training import RoundResult, train_round, training_pool


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what, and for how long."""

    protocol: str = "drawings"
    methods: tuple[str, ...] = ("NU", "FT", "DFA", "IDA", "PAR")
    seeds: tuple[int, ...] = (0,)
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = field(default_factory=Schedule)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000

    def __post_init__(self) -> None:
        protocol(self.protocol)
        require(len(self.methods) > 0, "Name at least one method.")
        require(len(self.seeds) > 0 and min(self.seeds) >= 0, "Seeds must not be negative.")
        require(self.eval_episodes >= 2, "--eval-episodes must be at least 2.")
        labels = tuple(parse_method(text).label for text in self.methods)
        require(len(set(labels)) == len(labels), "A method is named twice.")
        object.__setattr__(self, "methods", labels)

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change within a folder; methods and seeds may be added later."""
        return {k: v for k, v in to_dict(self).items() if k not in ("methods", "seeds")}


def run_experiment(experiment: Experiment, folder: Path) -> Record:
    """Do whatever of the experiment is not done yet, and return the record of all of it."""
    with only_one_process(folder):
        _claim(experiment, folder)
        chosen = protocol(experiment.protocol)
        methods = [parse_method(text) for text in experiment.methods]
        n_rounds = len(chosen.draw(0).rounds) - 1
        trained = sum(method.trains_on != "nothing" for method in methods)
        total = len(experiment.seeds) * (1 + trained * n_rounds) * _episodes(experiment)
        runs: list[Run] = []
        pairs: list[Pair] = []
        splits: dict[str, Any] = {}
        with progress.task(f"{experiment.protocol}: training episodes", total) as tick:
            for seed in experiment.seeds:
                work = _Seed(experiment, chosen, seed, folder / f"seed-{seed}", tick)
                runs += work.runs(methods)
                pairs += work.pairs(methods)
                splits[str(seed)] = asdict(work.benchmark.split)
        record = Record(
            name=chosen.name,
            sentence=chosen.sentence,
            config=to_dict(experiment),
            splits=splits,
            environment=environment(),
            runs=tuple(runs),
            pairs=tuple(pairs),
        )
        record.save(folder / "record.json")
        return record


def _claim(experiment: Experiment, folder: Path) -> None:
    """A folder holds one experiment; another one must not continue from its parts."""
    path = folder / "experiment.json"
    ours = json.loads(json.dumps(experiment.identity))
    if path.exists():
        theirs = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key in ours if ours[key] != theirs.get(key)]
        if differing:
            raise KedgeError(
                f"{folder}: an experiment with another {' and another '.join(differing)} lies "
                "here; give this one a folder of its own with --out."
            )
        return
    text = json.dumps(ours, indent=1) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def _episodes(experiment: Experiment) -> int:
    return experiment.schedule.epochs * experiment.schedule.episodes


class _Seed:
    """One seed of an experiment: its classes, its base model, and each method on top of it."""

    def __init__(
        self, experiment: Experiment, chosen: Protocol, seed: int, folder: Path, tick: Tick
    ) -> None:
        self.experiment, self.seed, self.folder, self.tick = experiment, seed, folder, tick
        self.benchmark: Benchmark = chosen.benchmark(seed)
        self.config = TrainConfig(experiment.episode, experiment.schedule, seed)
        self.rounds = range(1, self.benchmark.n_rounds)

    def runs(self, methods: list[Method]) -> list[Run]:
        base = Method("base", "new")
        runs = [replace(self._run(base, 0, None), method=method.label) for method in methods]
        for method in methods:
            previous = self._place(base, 0)
            for round in self.rounds:
                runs.append(self._run(method, round, previous))
                previous = self._place(method, round)
        return runs

    def pairs(self, methods: list[Method]) -> list[Pair]:
        """Every pair of methods on every pool; the same episodes, so the same places."""
        found = []
        for round in self.rounds:
            values = {m.label: load_file(self._place(m, round) / "episodes.safetensors")
                      for m in methods}  # fmt: skip
            for a, b in itertools.permutations(values, 2):
                for pool in values[a]:
                    difference = paired(values[a][pool], values[b][pool])
                    found.append(Pair(self.seed, round, pool, a, b, difference))
        return found

    def _place(self, method: Method, round: int) -> Path:
        name = re.sub(r"[^\w.=+-]+", "_", method.label)
        return self.folder / name if round == 0 else self.folder / name / f"round-{round}"

    def _run(self, method: Method, round: int, previous: Path | None) -> Run:
        """Train and test, unless that was done before."""
        place = self._place(method, round)
        done = place / "run.json"
        if done.exists():
            if method.trains_on != "nothing":
                self.tick(_episodes(self.experiment))
            return run_from_dict(json.loads(done.read_text(encoding="utf-8")))
        began = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        result = self._train(method, round, previous, place)
        seconds = time.perf_counter() - began
        run = self._test(method, round, result, place, seconds)
        text = json.dumps(asdict(run), indent=1) + "\n"
        write_atomically(done, lambda part: part.write_text(text, encoding="utf-8"))
        (place / "training.safetensors").unlink(missing_ok=True)
        val = f", validation {max(e.val_accuracy for e in run.history):.1f}%" if run.history else ""
        progress.note(f"seed {self.seed}, round {round}, {method.label}: {seconds:.0f} s{val}")
        return run

    def _train(self, method: Method, round: int, previous: Path | None, place: Path) -> RoundResult:
        device = default_device()
        if method.trains_on == "nothing":
            assert previous is not None
            model = Model.load(previous / "model.kedge").to(device)
            model.save(place / "model.kedge")
            return RoundResult(model, ())
        everything = method.trains_on == "everything"
        delivery = self.benchmark.delivery(round, with_old=everything)
        if previous is None or everything:
            table = self.benchmark.table
            config = ModelConfig(
                self.experiment.backbone,
                self.experiment.head,
                table.n_channels,
                table.image_size,
            )
            pool = training_pool(method, delivery)
            start = new_model(config, pool, torch_seed("weights", self.seed)).to(device)
        else:
            start = Model.load(previous / "model.kedge").to(device)
        checkpoint = place / "training.safetensors"
        result = train_round(start, delivery, method, self.config, checkpoint, self.tick)
        result.model.save(place / "model.kedge")
        return result

    def _test(
        self, method: Method, round: int, result: RoundResult, place: Path, seconds: float
    ) -> Run:
        experiment = self.experiment
        pools = self.benchmark.test_pools(round)
        accuracies = evaluate(
            result.model, pools, experiment.episode, experiment.eval_episodes, self.seed
        )
        write_atomically(place / "episodes.safetensors", lambda part: save_file(accuracies, part))
        return Run(
            seed=self.seed,
            method=method.label,
            round=round,
            pools=tuple(PoolInfo(p.name, label(p.name), len(p.classes)) for p in pools),
            scores={name: Score.of(values) for name, values in accuracies.items()},
            history=result.history,
            seconds=seconds,
            peak_memory_mb=_peak_memory_mb(),
            kept_bytes_per_class=self._kept_bytes(method, result.model),
        )

    def _kept_bytes(self, method: Method, model: Model) -> float:
        """What the method has to keep of each class behind it to do its next round."""
        if method.trains_on == "everything":
            old = self.benchmark.delivery(1, with_old=True).old
            return len(old) / len(old.classes) * old.table.images[0].numel()
        shape = self.experiment.episode
        uses = method.alignment and method.alignment.anchors_per_step(shape.n_way, shape.n_way)
        return model.anchors[0].numel() * 4.0 if uses else 0.0


def _peak_memory_mb() -> float:
    """On the device that trains: of this run on a GPU, of the process so far on the CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss: bytes there, KiB here
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
