"""How fast kedge is on this machine, beside a plain loop, in one run on the same images.

Both take turns, so that whatever else the machine does hits both; of all turns the median counts.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    require,
    to_dict,
)
from kedge.data.table import ImageTable
from kedge.models.model import Model
from kedge.speed import (
    beside,
    limits,
    ours,
)
from kedge.speed.beside import SETTINGS, PlainProcess
from kedge.speed.growth import N_POINTS, Growth
from kedge.speed.ours import (
    LEAST,
    TEST_EPISODES,
    Training,
)
from kedge.speed.subject import Subject
from kedge.training.step import default_device
from kedge.utils import progress
from kedge.utils.env import (
    environment,
    forget_peak_memory,
    peak_memory_mb,
    resident_peak_mb,
)

TURNS, TEST_TURNS = 5, 3
PLAIN_TESTS = 100  # episodes at most; the plain loop's time is scaled to those of kedge
METHODS = ("FT", "IDA")


@dataclass(frozen=True)
class Setting:
    """How it is measured."""

    seconds: float = 10.0  # for each measurement
    workers: int | None = None  # processes of the plain loop's DataLoader
    growth: bool = False

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"--seconds is {self.seconds:g}: it must be above 0.")
        workers = self.workers
        require(workers is None or 0 <= workers <= 256, "--workers must be from 0 to 256.")


def measure(
    table: ImageTable, backbone: BackboneConfig, shape: EpisodeShape, setting: Setting
) -> dict[str, Any]:
    """A record of everything: JSON, with every turn beside its median."""
    subject, device = Subject(table, backbone, shape), default_device()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before any of our own
    start = subject.start(device)
    workers = beside.default_workers() if setting.workers is None else setting.workers
    n_turns = TURNS + TEST_TURNS + N_POINTS * setting.growth
    with ExitStack() as stack:
        tick = stack.enter_context(progress.task("measuring: turns", n_turns))
        forget_peak_memory()
        per_turn = setting.seconds / TURNS
        trained = subject.trained
        fine_tuning = Training(start, "FT", trained, shape, per_turn)
        memory = {"resident_mb": resident_peak_mb()}
        if device.type == "cuda":
            memory["gpu_mb"] = peak_memory_mb()
        trainings = {"FT": fine_tuning, "IDA": Training(start, "IDA", trained, shape, per_turn)}
        bf16 = fine_tuning.step.pace.bf16
        limit = limits.best_matrix_product(device, bf16, setting.seconds / TURNS)
        folder = stack.enter_context(beside.files_of(subject))
        loop = beside.loop_of(subject, start, folder, workers)
        plain = {}
        for name, settings in _ways_to_start(device).items():
            plain[name] = PlainProcess(loop, settings)
            stack.callback(plain[name].close)
        record = {
            "what": "kedge beside a plain loop",
            "images": _images(subject),
            "network": to_dict(backbone),
            "episode": to_dict(shape),
            "images_per_step": subject.n_images,
            "device": device.type,
            "seconds": setting.seconds,
            "load_average_before": load,
            "kedge": {"pace": asdict(fine_tuning.step.pace), "peak_memory": memory},
            "plain": {
                "workers": workers,
                "precision": beside.precision(device),
                "files_per_class": beside.PER_CLASS,
            },
            "limit": limit,
        }
        _take_turns(record, subject, start, trainings, plain, setting, tick)
        _compare(record, list(plain))
        for process in plain.values():
            process.close()
        if setting.growth:
            del trainings, fine_tuning
            record["growth"] = Growth(subject, device, setting.seconds / 5, tick).measure()
    return {**record, "environment": environment()}


def _ways_to_start(device: torch.device) -> dict[str, dict[str, str]]:
    """What kedge sets for threads and memory matters on a CPU, so there the plain loop also has
    it once: the lesser of the two ratios is due to the code alone."""
    as_it_comes: dict[str, dict[str, str]] = {"as_it_comes": {}}
    return as_it_comes if device.type == "cuda" else {**as_it_comes, "with_settings": SETTINGS}


def _images(subject: Subject) -> dict[str, Any]:
    table = subject.table
    return {
        "source": table.source,
        "image_size": table.image_size,
        "n_channels": table.n_channels,
        "trained": [len(subject.trained.classes), len(subject.trained)],  # classes, images
        "tested": [len(subject.tested.classes), len(subject.tested)],
    }


def _take_turns(
    record: dict[str, Any],
    subject: Subject,
    start: Model,
    trainings: dict[str, Training],
    plain: dict[str, PlainProcess],
    setting: Setting,
    tick: progress.Tick,
) -> None:
    """plain, FT, IDA, plain, FT, IDA, …; then plain and kedge in evaluation."""
    for process in plain.values():  # warm: workers are there, files are in the page cache
        process("train", LEAST)
    once = {name: process("train", LEAST) / LEAST for name, process in plain.items()}
    n = {name: ours.episodes_for(setting.seconds / TURNS, s) for name, s in once.items()}
    ms: dict[str, list[float]] = {name: [] for name in (*plain, *trainings)}
    for _ in range(TURNS):
        for name, process in plain.items():
            ms[name].append(1000 * process("train", n[name]) / n[name])
        for name, training in trainings.items():
            ms[name].append(training.turn())
        tick(1)
    forward, both = limits.flops_per_image(
        start.embedding, subject.table.n_channels, subject.table.image_size
    )
    record["flops_per_image"] = {"forward": forward, "forward_and_backward": both}
    for name, training in trainings.items():
        flops = both if training.step.alignment is None else both + forward  # the teacher's
        rates = _rates(ms[name], training.n_episodes, subject.n_images)
        tflops = flops * rates["images_per_s"] / 1e12
        part = {"tflops": tflops, "part_of_limit": tflops / record["limit"]["tflops"]}
        first = {"first_step_s": training.first_step_s}
        record["kedge"][name] = {**rates, **part, **first}
    for name in plain:
        record["plain"][name] = _rates(ms[name], n[name], subject.n_images)
    _test_in_turns(record, subject, start, plain, setting, tick)


def _test_in_turns(
    record: dict[str, Any],
    subject: Subject,
    start: Model,
    plain: dict[str, PlainProcess],
    setting: Setting,
    tick: progress.Tick,
) -> None:
    pool, shape = subject.tested, subject.shape
    for process in plain.values():
        process("test", LEAST)
    once = {name: process("test", LEAST) / LEAST for name, process in plain.items()}
    per_turn = setting.seconds / TEST_TURNS
    n = {name: ours.episodes_for(per_turn, s, PLAIN_TESTS) for name, s in once.items()}
    ours.evaluation_seconds(start, pool, shape)
    seconds: dict[str, list[float]] = {name: [] for name in ("kedge", *plain)}
    for _ in range(TEST_TURNS):
        for name, process in plain.items():
            seconds[name].append(process("test", n[name]) / n[name] * TEST_EPISODES)
        seconds["kedge"].append(ours.evaluation_seconds(start, pool, shape))
        tick(1)
    record["test_episodes"] = TEST_EPISODES
    for name, each in seconds.items():
        into = record["kedge"] if name == "kedge" else record["plain"][name]
        into["evaluation_s"] = statistics.median(each)
        into["evaluation_s_each"] = each
    for name in plain:
        record["plain"][name]["evaluation_scaled_from"] = n[name]


def _rates(ms: list[float], n_episodes: int, n_images: int) -> dict[str, Any]:
    median = statistics.median(ms)
    return {
        "ms_per_step": median,
        "ms_per_step_each": ms,
        "episodes_per_turn": n_episodes,
        "episodes_per_s": 1000 / median,
        "images_per_s": 1000 * n_images / median,
    }


def _compare(record: dict[str, Any], plain: list[str]) -> None:
    ours, step = record["kedge"], {name: record["kedge"][name]["ms_per_step"] for name in METHODS}
    record["ratio"] = {"IDA_over_FT": step["IDA"] / step["FT"]}
    for name in plain:
        theirs = record["plain"][name]
        record["ratio"][name] = {
            "training": theirs["ms_per_step"] / step["FT"],
            "evaluation": theirs["evaluation_s"] / ours["evaluation_s"],
        }
