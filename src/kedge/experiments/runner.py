"""Methods × rounds × seeds over a protocol: resumable, and every number ends in a record.

The folder of a run:

    experiment.json                      the settings; a folder belongs to one experiment
    seed-0/base/                         round 0, shared by every method
    seed-0/IDA/round-1/model.kedge       the model
                       run.json          its scores, curve and cost
                       episodes.safetensors   the accuracy of every test episode
                       memory.safetensors     what the method keeps for its next round, if anything
                       places.safetensors     where its classes are, to see how they move later
                       training.safetensors   the state while it trains; gone when it is done
    record.json                          all of it together, written when all is done
"""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kedge.benchmarks import protocol
from kedge.benchmarks.base import Benchmark, pool_label
from kedge.config import (
    TrainConfig,
    from_dict,
    parse_json,
    require,
    to_dict,
)
from kedge.errors import KedgeError
from kedge.evaluation.accuracy import evaluate
from kedge.evaluation.anchor_drift import anchor_drift, true_anchors
from kedge.evaluation.results import (
    AnchorMove,
    Score,
    paired_difference,
)
from kedge.experiments.experiment import Experiment, check
from kedge.experiments.jobs import Job, work_off
from kedge.experiments.records import (
    PairedDifference,
    PoolInfo,
    Record,
    Run,
    load_run,
)
from kedge.methods.base import Memory
from kedge.methods.registry import Method, parse_method
from kedge.models.model import (
    Model,
    ModelConfig,
    new_model,
)
from kedge.training.round import (
    RoundResult,
    remember,
    train_round,
    training_pool,
)
from kedge.training.step import default_device, load_compiler_in_background
from kedge.utils import distributed, progress
from kedge.utils.atomic_io import (
    load_tensors,
    only_one_process,
    save_tensors,
    write_atomically,
)
from kedge.utils.env import (
    environment,
    forget_peak_memory,
    peak_memory_mb,
)
from kedge.utils.progress import Tick
from kedge.utils.seeding import torch_seed


def run_experiment(experiment: Experiment, folder: str | Path, jobs: int = 1) -> Record:
    """Do whatever of the experiment is not done yet, and return the record of all of it.

    With several jobs, so many methods and seeds are trained at the same time.
    """
    distributed.start()
    require(jobs >= 1, f"--jobs is {jobs}: it must be at least 1.")
    require(jobs == 1 or distributed.world_size() == 1, "--jobs: start it without torchrun.")
    folder = Path(folder)
    if jobs == 1 and not (folder / "record.json").exists():  # something is to be trained
        load_compiler_in_background()
    images = check(experiment).fingerprint
    with only_one_process(folder):
        whole = _claim(experiment, folder, images)
        methods = [parse_method(text) for text in whole.methods]
        seeds = [_Seed(whole, seed, folder / f"seed-{seed}") for seed in whole.seeds]
        left = sum(seed.rounds_to_train(methods) for seed in seeds)
        name = f"{whole.protocol}: training episodes"
        with progress.task(name, left * whole.episodes_per_round) as tick:
            if jobs > 1:
                bases_first = [(some, seed) for some in ([BASE], methods) for seed in seeds]
                left_over = [job for some, seed in bases_first for job in seed.jobs(some)]
                work_off(folder, left_over, jobs, tick)
            runs = [run for seed in seeds for run in seed.runs(methods, tick)]
        chosen = protocol(whole.protocol)
        record = Record(
            name=chosen.name,
            sentence=chosen.sentence,
            config=to_dict(whole),
            splits={str(seed.seed): asdict(seed.benchmark.split) for seed in seeds},
            runs=tuple(runs),
            pairs=tuple(pair for seed in seeds for pair in seed.pairs(methods)),
            images=images,
        )
        record.save(folder / "record.json")
        return Record.load(folder / "record.json")  # whoever reads it later has the very same


def work(folder: Path, job: Job, beside: int, tick: Tick) -> None:
    """One method of the experiment in a folder, for another process, which holds the folder."""
    load_compiler_in_background()
    said = parse_json((folder / "experiment.json").read_text(encoding="utf-8"))
    del said["images"]
    seed = _Seed(from_dict(Experiment, said), job.seed, folder / f"seed-{job.seed}", beside)
    seed.runs_of(BASE if job.method == BASE.label else parse_method(job.method), tick)


def _claim(experiment: Experiment, folder: Path, images: str) -> Experiment:
    """A folder holds one experiment on the same images, wherever they lie. Methods and seeds that
    are asked for later join it."""
    path = folder / "experiment.json"
    if path.exists():
        try:
            said = parse_json(path.read_text(encoding="utf-8"))
            require(isinstance(said, dict), "it holds no settings")
            known = said.pop("images", images)
            there = from_dict(Experiment, said)
        except (OSError, ValueError, RecursionError, KedgeError) as error:
            raise KedgeError(f"{path}: damaged ({error}); use another --out.") from None
        if known != images:
            raise KedgeError(
                f"{folder}: holds an experiment on other images than those of "
                f"{experiment.data or experiment.protocol} now; give this one a folder of its own "
                "with --out."
            )
        joined = replace(
            experiment,
            methods=tuple(dict.fromkeys([*there.methods, *experiment.methods])),
            seeds=tuple(dict.fromkeys([*there.seeds, *experiment.seeds])),
        )
        ours, theirs = _options(joined), _options(there)
        for option in ours:
            if ours[option] != theirs[option]:
                raise KedgeError(
                    f"{folder}: holds an experiment with {option} {theirs[option]}, not "
                    f"{ours[option]}; give this one a folder of its own with --out."
                )
        experiment = joined
    elif run := next(folder.glob("seed-*/*/**/run.json"), None):
        raise KedgeError(
            f"{path}: is missing, so nobody knows with which options {run} was made; use another "
            "--out."
        )
    text = json.dumps({**to_dict(experiment), "images": images}, indent=1) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
    return experiment


def _options(experiment: Experiment) -> dict[str, Any]:
    """What must be the same, by the option that says it."""
    said = {k: v for k, v in to_dict(experiment).items() if k not in ("methods", "seeds", "data")}
    for part in [k for k, v in said.items() if isinstance(v, dict)]:
        said |= said.pop(part)
    return {
        key if key == "protocol" else f"--{key.replace('_', '-')}": value
        for key, value in said.items()
    }


BASE = Method("base", "new", from_scratch=True)  # round 0, which all methods share


class _Seed:
    """One seed of an experiment: its classes, its base model, and each method on top of it."""

    def __init__(self, experiment: Experiment, seed: int, folder: Path, beside: int = 1) -> None:
        self.experiment, self.seed, self.folder, self.beside = experiment, seed, folder, beside
        chosen = protocol(experiment.protocol)
        self.benchmark: Benchmark = chosen.benchmark(seed, experiment.data)
        self._keep_split()
        self.rounds = range(1, self.benchmark.n_rounds)

    def _keep_split(self) -> None:
        """A run that goes on must have the classes in the roles in which it began."""
        path = self.folder / "split.json"
        text = json.dumps(asdict(self.benchmark.split), ensure_ascii=False) + "\n"
        try:
            there = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
            return
        except (OSError, UnicodeDecodeError) as error:
            raise KedgeError(f"{path}: cannot be read ({error}); use another --out.") from None
        if there != text:
            raise KedgeError(
                f"{path}: this run began with other classes in other roles than the data and the "
                "protocol give now; give a folder of its own with --out."
            )

    def rounds_to_train(self, methods: list[Method]) -> int:
        train = [method for method in (BASE, *methods) if method.trains_on != "nothing"]
        return sum(map(self._left, train))

    def jobs(self, methods: list[Method]) -> list[Job]:
        """Of those methods that have something left to train or to test."""
        base = Job(self.seed, BASE.label)
        return [
            Job(self.seed, method.label, after=None if method.from_scratch else base)
            for method in methods
            if self._left(method)
        ]

    def _left(self, method: Method) -> int:
        """Rounds that are not done yet."""
        places = [self._place(method, round) for round in self._rounds(method)]
        return sum(not (place / "run.json").exists() for place in places)

    def _rounds(self, method: Method) -> range:
        return range(1) if method is BASE else self.rounds

    def runs(self, methods: list[Method], tick: Tick) -> list[Run]:
        [base] = self.runs_of(BASE, tick)
        runs = [replace(base, method=method.label) for method in methods]
        return runs + [run for method in methods for run in self.runs_of(method, tick)]

    def runs_of(self, method: Method, tick: Tick) -> list[Run]:
        """One method alone. Unless it starts afresh, the base round has to be there."""
        return [self._run(method, round, tick) for round in self._rounds(method)]

    def pairs(self, methods: list[Method]) -> list[PairedDifference]:
        """Every pair of methods on every pool; the same episodes, so the same places."""
        found = []
        for round in self.rounds:
            values = {}
            for method in methods:
                path = self._place(method, round) / "episodes.safetensors"
                again = f"; delete {path.parent} to do this run again"
                _, values[method.label] = load_tensors(path, "list of accuracies", again)
            for a, b in itertools.combinations(values, 2):
                for pool in values[a]:
                    difference = paired_difference(values[a][pool], values[b][pool])
                    found.append(PairedDifference(self.seed, round, pool, a, b, difference))
        return found

    def _place(self, method: Method, round: int) -> Path:
        name = re.sub(r"[^\w.=+-]+", "_", method.label)
        return self.folder / name if round == 0 else self.folder / name / f"round-{round}"

    def _config(self, round: int) -> TrainConfig:
        shape = self.experiment.update_episode if round else self.experiment.episode
        return TrainConfig(shape, self.experiment.schedule, self.seed)

    def _run(self, method: Method, round: int, tick: Tick) -> Run:
        """Train and test, unless that was done before."""
        place = self._place(method, round)
        done, state = place / "run.json", place / "training.safetensors"
        if done.exists():
            state.unlink(missing_ok=True)  # of a run that was killed just before it did this
            return load_run(done)
        forget_peak_memory()
        result = self._train(method, round, place, tick)
        peak = peak_memory_mb() if result.history else 0.0
        run = self._test(method, round, result, peak, place)
        text = json.dumps(asdict(run), indent=1) + "\n"
        write_atomically(done, lambda part: part.write_text(text, encoding="utf-8"))
        state.unlink(missing_ok=True)
        best = max((epoch.val_accuracy for epoch in run.history), default=None)
        said = f"{run.seconds:.0f} s, validation {best:.1f}%" if best is not None else "no training"
        progress.note(f"seed {self.seed}, round {round}, {method.label}: {said}")
        return run

    def _train(self, method: Method, round: int, place: Path, tick: Tick) -> RoundResult:
        if method.trains_on == "nothing":
            model = self._model(method, round - 1)
            model.save(place / "model.kedge")
            return RoundResult(model)
        delivery = self.benchmark.delivery(round, with_old=method.trains_on == "everything")
        if method.from_scratch:
            table = self.benchmark.table
            config = ModelConfig(
                self.experiment.backbone,
                self.experiment.head,
                table.n_channels,
                table.image_size,
                fit=table.fit,
                inverted=table.inverted,
            )
            pool = training_pool(method, delivery)
            start = new_model(config, pool, torch_seed("weights", self.seed)).to(default_device())
        else:
            start = self._model(method, round - 1)
        memory = self._memory(method, round - 1) if round else {}
        checkpoint = place / "training.safetensors"
        shaped = self._config(round)
        result = train_round(start, delivery, method, shaped, checkpoint, tick, memory)
        result.model.save(place / "model.kedge")
        began = time.perf_counter()
        if method.remembers:
            self._keep(method, round, result.model)
        return replace(result, seconds=result.seconds + time.perf_counter() - began)

    def _model(self, method: Method, round: int) -> Model:
        """That of a method after a round. That of the base round is shared."""
        place = self._place(method if round else BASE, round)
        return Model.load(place / "model.kedge").to(default_device())

    def _memory(self, method: Method, round: int) -> Memory:
        """What the method kept after a round. The base round is shared, but its memory is not."""
        if not method.remembers:
            return {}
        path = self._memory_path(method, round)
        if not path.exists() and round == 0:
            self._keep(method, 0, self._model(method, 0))
        return load_tensors(path, "memory of a method")[1]

    def _keep(self, method: Method, round: int, model: Model) -> None:
        """From the images of this round, which the method will not see again."""
        before = self._memory(method, round - 1) if round else {}
        delivery = self.benchmark.delivery(round)
        kept = remember(method, model, delivery, before, self._config(round))
        save_tensors(self._memory_path(method, round), kept, {"method": method.label})

    def _memory_path(self, method: Method, round: int) -> Path:
        folder = self._place(method, 1).parent / f"round-{round}"
        return folder / "memory.safetensors"

    def _test(
        self, method: Method, round: int, result: RoundResult, peak: float, place: Path
    ) -> Run:
        trials = self.experiment.trials(self.benchmark.test_pools(round))
        accuracies = evaluate(result.model, trials, self.experiment.eval_episodes, self.seed)
        save_tensors(place / "episodes.safetensors", accuracies, {"seed": self.seed})
        measures, moves = self._drift(method, round, result.model)
        shared = {"processes": distributed.world_size(), "jobs": self.beside}
        return Run(
            seed=self.seed,
            method=method.label,
            round=round,
            pools=tuple(
                PoolInfo(
                    trial.name, pool_label(trial.pool.name), len(trial.pool.classes), trial.shape
                )
                for trial in trials
            ),
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
        self, method: Method, round: int, model: Model
    ) -> tuple[dict[str, float], tuple[AnchorMove, ...]]:
        """How far the classes of earlier rounds have moved since their anchors were made."""
        if method.trains_on == "everything":  # it makes every anchor anew
            return {}, ()
        own = self.benchmark.trained(round)
        if set(own.classes) <= set(model.classes):
            path = self._place(method, round) / "places.safetensors"
            save_tensors(path, {"places": true_anchors(model, own)}, {"classes": own.classes})
        if round == 0 or not (self._place(BASE, 0) / "places.safetensors").exists():
            return {}, ()  # the base of an early version has none
        names: list[str] = []
        then, now = [], []
        for t in range(round):
            path = self._place(method if t else BASE, t) / "places.safetensors"
            if path.exists():  # NU never learned the classes of later rounds
                pool = self.benchmark.trained(t)
                then.append(load_tensors(path, "list of places")[1]["places"])
                now.append(true_anchors(model, pool))
                names += pool.classes
        return anchor_drift(names, torch.cat(then), torch.cat(now), then[0])

    def _kept_bytes(self, method: Method, round: int, model: Model) -> float:
        """What the method has to keep of each class behind it to do its next round."""
        if method.trains_on == "everything":
            entry = model.lineage[-1]
            return entry.images / len(entry.classes) * self.benchmark.table.images[0].numel()
        if method.alignment is None or method is BASE:
            return 0.0
        memory = self._memory(method, round)
        # Names are kept by every method, with the model.
        kept = sum(t.numel() * t.element_size() for key, t in memory.items() if key != "names")
        shape = self.experiment.episode
        uses = method.alignment.anchors_per_step(shape.ways[1], shape.ways[1])
        return kept / len(model.classes) + (model.anchors[0].numel() * 4.0 if uses else 0.0)
