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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from kedge import progress
from kedge.backbones import build_backbone
from kedge.config import (
    SHORT,
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
    from_dict,
    require,
    to_dict,
)
from kedge.durable import load_tensors, only_one_process, save_tensors, write_atomically
from kedge.episodes import check_pool
from kedge.errors import KedgeError
from kedge.evaluation import Score, evaluate, paired
from kedge.heads import build_head
from kedge.methods import Method, parse_method
from kedge.model import Model, ModelConfig, new_model
from kedge.progress import Tick
from kedge.protocol import Benchmark, label, protocol
from kedge.records import Pair, PoolInfo, Record, Run, environment, load_run
from kedge.seeding import torch_seed
from kedge.step import default_device
from kedge.training import RoundResult, train_round, training_pool


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what, and for how long. The defaults are those of `kedge bench`."""

    protocol: str = "drawings"
    methods: tuple[str, ...] = ("NU", "FT", "DFA", "IDA", "PAR")
    seeds: tuple[int, ...] = (0,)
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = SHORT
    backbone: BackboneConfig = BackboneConfig(width=32)  # noqa: RUF009
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000

    def __post_init__(self) -> None:
        protocol(self.protocol)
        require(len(self.methods) > 0, "--methods: name at least one method.")
        require(len(self.seeds) > 0, "--seeds: name at least one seed.")
        require(min(self.seeds) >= 0, f"--seeds: {min(self.seeds)} must not be negative.")
        require(len(set(self.seeds)) == len(self.seeds), "--seeds: one is named twice.")
        require(self.eval_episodes >= 2, "--eval-episodes: an interval needs at least 2.")
        labels = tuple(parse_method(text).label for text in self.methods)
        require(len(set(labels)) == len(labels), "--methods: one is named twice.")
        object.__setattr__(self, "methods", labels)

    @property
    def episodes_per_round(self) -> int:
        return self.schedule.epochs * self.schedule.episodes


def run_experiment(experiment: Experiment, folder: str | Path) -> Record:
    """Do whatever of the experiment is not done yet, and return the record of all of it."""
    folder = Path(folder)
    check(experiment)
    with only_one_process(folder):
        whole = _claim(experiment, folder)
        methods = [parse_method(text) for text in whole.methods]
        seeds = [_Seed(whole, seed, folder / f"seed-{seed}") for seed in whole.seeds]
        left = sum(seed.rounds_to_train(methods) for seed in seeds)
        name = f"{whole.protocol}: training episodes"
        with progress.task(name, left * whole.episodes_per_round) as tick:
            runs = [run for seed in seeds for run in seed.runs(methods, tick)]
        chosen = protocol(whole.protocol)
        record = Record(
            name=chosen.name,
            sentence=chosen.sentence,
            config=to_dict(whole),
            splits={str(seed.seed): asdict(seed.benchmark.split) for seed in seeds},
            runs=tuple(runs),
            pairs=tuple(pair for seed in seeds for pair in seed.pairs(methods)),
        )
        record.save(folder / "record.json")
        return record


def check(experiment: Experiment) -> None:
    """Find what cannot work before anything is written or trained."""
    benchmark = protocol(experiment.protocol).benchmark(experiment.seeds[0])
    table = benchmark.table
    with torch.device("meta"):
        build_backbone(experiment.backbone, table.n_channels, table.image_size)
        build_head(experiment.head, 1)
    for round in range(benchmark.n_rounds):
        delivery = benchmark.delivery(round)
        for pool in (delivery.new, delivery.val, *benchmark.test_pools(round)):
            check_pool(pool, experiment.episode)


def _claim(experiment: Experiment, folder: Path) -> Experiment:
    """A folder holds one experiment. Methods and seeds that are asked for later join it."""
    path = folder / "experiment.json"
    if path.exists():
        try:
            there = from_dict(Experiment, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KedgeError) as error:
            raise KedgeError(f"{path}: damaged ({error}); use another --out.") from None
        joined = replace(
            experiment,
            methods=tuple(dict.fromkeys([*there.methods, *experiment.methods])),
            seeds=tuple(dict.fromkeys([*there.seeds, *experiment.seeds])),
        )
        ours, theirs = to_dict(joined), to_dict(there)
        for key in set(ours) - {"methods", "seeds"}:
            if ours[key] != theirs[key]:
                raise KedgeError(
                    f"{folder}: holds an experiment whose {key} is {theirs[key]}, not {ours[key]}; "
                    "give this one a folder of its own with --out."
                )
        experiment = joined
    text = json.dumps(to_dict(experiment), indent=1) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
    return experiment


BASE = Method("base", "new")  # round 0, which all methods share


class _Seed:
    """One seed of an experiment: its classes, its base model, and each method on top of it."""

    def __init__(self, experiment: Experiment, seed: int, folder: Path) -> None:
        self.experiment, self.seed, self.folder = experiment, seed, folder
        self.benchmark: Benchmark = protocol(experiment.protocol).benchmark(seed)
        self.config = TrainConfig(experiment.episode, experiment.schedule, seed)
        self.rounds = range(1, self.benchmark.n_rounds)

    def rounds_to_train(self, methods: list[Method]) -> int:
        places = [self._place(BASE, 0)]
        for method in methods:
            if method.trains_on != "nothing":
                places += [self._place(method, round) for round in self.rounds]
        return sum(not (place / "run.json").exists() for place in places)

    def runs(self, methods: list[Method], tick: Tick) -> list[Run]:
        base = self._run(BASE, 0, None, tick)
        runs = [replace(base, method=method.label) for method in methods]
        for method in methods:
            previous = self._place(BASE, 0)
            for round in self.rounds:
                runs.append(self._run(method, round, previous, tick))
                previous = self._place(method, round)
        return runs

    def pairs(self, methods: list[Method]) -> list[Pair]:
        """Every pair of methods on every pool; the same episodes, so the same places."""
        found = []
        for round in self.rounds:
            values = {}
            for method in methods:
                path = self._place(method, round) / "episodes.safetensors"
                _, values[method.label] = load_tensors(path, "list of accuracies")
            for a, b in itertools.combinations(values, 2):
                for pool in values[a]:
                    difference = paired(values[a][pool], values[b][pool])
                    found.append(Pair(self.seed, round, pool, a, b, difference))
        return found

    def _place(self, method: Method, round: int) -> Path:
        name = re.sub(r"[^\w.=+-]+", "_", method.label)
        return self.folder / name if round == 0 else self.folder / name / f"round-{round}"

    def _run(self, method: Method, round: int, previous: Path | None, tick: Tick) -> Run:
        """Train and test, unless that was done before."""
        place = self._place(method, round)
        done = place / "run.json"
        if done.exists():
            return load_run(done)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        result = self._train(method, round, previous, place, tick)
        run = self._test(method, round, result, place)
        text = json.dumps(asdict(run), indent=1) + "\n"
        write_atomically(done, lambda part: part.write_text(text, encoding="utf-8"))
        (place / "training.safetensors").unlink(missing_ok=True)
        best = max((epoch.val_accuracy for epoch in run.history), default=None)
        said = f"{run.seconds:.0f} s, validation {best:.1f}%" if best is not None else "no training"
        progress.note(f"seed {self.seed}, round {round}, {method.label}: {said}")
        return run

    def _train(
        self, method: Method, round: int, previous: Path | None, place: Path, tick: Tick
    ) -> RoundResult:
        device = default_device()
        if method.trains_on == "nothing":
            assert previous is not None
            model = Model.load(previous / "model.kedge").to(device)
            model.save(place / "model.kedge")
            return RoundResult(model)
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
        result = train_round(start, delivery, method, self.config, checkpoint, tick)
        result.model.save(place / "model.kedge")
        return result

    def _test(self, method: Method, round: int, result: RoundResult, place: Path) -> Run:
        experiment = self.experiment
        pools = self.benchmark.test_pools(round)
        accuracies = evaluate(
            result.model, pools, experiment.episode, experiment.eval_episodes, self.seed
        )
        save_tensors(place / "episodes.safetensors", accuracies, {"seed": self.seed})
        return Run(
            seed=self.seed,
            method=method.label,
            round=round,
            pools=tuple(PoolInfo(p.name, label(p.name), len(p.classes)) for p in pools),
            scores={name: Score.of(values) for name, values in accuracies.items()},
            history=result.history,
            seconds=result.seconds,
            peak_memory_mb=_peak_memory_mb(),
            kept_bytes_per_class=self._kept_bytes(method, result.model),
            environment=environment(),
        )

    def _kept_bytes(self, method: Method, model: Model) -> float:
        """What the method has to keep of each class behind it to do its next round."""
        if method.trains_on == "everything":
            entry = model.lineage[-1]
            return entry.images / len(entry.classes) * self.benchmark.table.images[0].numel()
        shape = self.experiment.episode
        uses = method.alignment and method.alignment.anchors_per_step(shape.n_way, shape.n_way)
        return model.anchors[0].numel() * 4.0 if uses else 0.0


def _peak_memory_mb() -> float:
    """On the device that trains: of this run on a GPU, of the process so far on the CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss: bytes there, KiB here
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
