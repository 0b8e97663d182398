"""A row of peers.py: one library trains and tests prototypical networks, and both are timed.

peers.py runs this file in a process of its own for every row, so that no library's settings reach
another, and one that is missing or breaks costs its own rows only. The settings come as JSON on
standard input; the result leaves as one line of JSON.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import random
import statistics
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from peer_libraries import OWN, PEERS, RowConfig
from torch import nn

import kedge
from kedge.config import BackboneConfig, Schedule, TrainConfig
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.evaluation.accuracy import EvalSpec, evaluate_pools
from kedge.models.model import Model
from kedge.training.loop import EpochRunner
from kedge.training.speed import TimedTraining, synchronized_time, untrained_model
from kedge.utils import progress
from kedge.utils.config_io import from_dict
from kedge.utils.process import keep_freed_memory

TURNS = 3  # of training; the median counts


def row(config: RowConfig) -> dict[str, Any]:
    """The record of a row; its "error" is a sentence if the library is missing or breaks."""
    torch.manual_seed(0)
    random.seed(0)
    try:
        return kedge_row(config) if config.library == "kedge" else peer_row(config)
    except ImportError as error:
        return {"error": f"{config.library} cannot be imported: {first_line(error)}."}
    except Exception as error:  # whatever a library raises costs its own row only
        traceback.print_exc()
        reason = f"{type(error).__name__}: {first_line(error)}"
        return {"error": f"{config.library} with network {config.network} stopped: {reason}."}


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def peer_row(config: RowConfig) -> dict[str, Any]:
    """The record of a library other than kedge."""
    torch.backends.cudnn.benchmark = config.tuned
    kind = PEERS[config.library]
    peer = kind(config)
    losses, ends, turns = [], [], Turns(config)
    for loss in peer.train(config.warm_up + TURNS * config.episodes):
        losses.append(loss)
        ends.append(time.perf_counter())
        if turns.over(ends):
            break
    peer.test(1)  # warm-up
    n_tests, seconds = peer.test(min(config.test_episodes, peer.max_tests))
    return {
        "versions": {name: version_of(name) for name in kind.packages},
        "workers": peer.workers,
        "weights": n_weights(peer.network),
        "first_step_s": ends[0] - peer.began,
        **training_record(config, turns.seconds, turns.episodes),
        "loss": statistics.mean(losses[-turns.episodes[-1] :]),
        "test_s": seconds * config.test_episodes / n_tests,
        "test_episodes_timed": n_tests,
    }


def kedge_row(config: RowConfig) -> dict[str, Any]:
    """The record of kedge, which trains as `kedge bench --methods FT` does."""
    keep_freed_memory()  # as the kedge command does
    began = time.perf_counter()
    table = open_images(str(Path(config.folder) / "train"), config.image_size)
    pool = Pool.all("training", table, table.classes)
    name = "resnet12" if config.network == OWN else config.network
    model = untrained_model(pool, BackboneConfig(name, config.width))
    opened_s = synchronized_time(model.device) - began
    training = TimedTraining(model, "FT", pool, config.shape, 0.0)
    schedule = Schedule(1, config.episodes, 1)
    runner = EpochRunner(
        training.step, pool, model.anchors, TrainConfig(config.shape, schedule, 0), 1
    )
    turns = []
    for turn in range(TURNS + 1):
        began = synchronized_time(model.device)
        metrics = runner.epoch(turn, progress.no_tick)
        turns.append(synchronized_time(model.device) - began)
    first_test_s, test_s = (kedge_test(config, model) for _ in range(2))
    return {
        "versions": {"kedge": kedge.__version__},
        "workers": None,  # it decodes each image once
        "weights": n_weights(model.embedding.backbone),
        "open_s": opened_s,
        "first_step_s": opened_s + training.first_step_s,
        # The first turn captures a CUDA graph.
        **training_record(config, turns[1:], [config.episodes] * TURNS),
        "loss": metrics.loss,
        "first_test_s": first_test_s,
        "test_s": test_s,
        "test_episodes_timed": config.test_episodes,
    }


def kedge_test(config: RowConfig, model: Model) -> float:
    """Seconds for the test episodes, from files to accuracies."""
    began = synchronized_time(model.device)
    table = open_images(str(Path(config.folder) / "test"), config.image_size)
    spec = EvalSpec("test", Pool.all("test", table, table.classes), config.shape)
    evaluate_pools(model, [spec], config.test_episodes, 0)
    return synchronized_time(model.device) - began


class Turns:
    """Turns of training after the warm-up, each as long as `RowConfig` says."""

    def __init__(self, config: RowConfig) -> None:
        self.config, self.first = config, config.warm_up - 1  # the step that the turn follows
        self.seconds: list[float] = []
        self.episodes: list[int] = []

    def over(self, ends: list[float]) -> bool:
        """Whether all turns are over, given when each step has ended, the last one just now."""
        last = len(ends) - 1
        episodes = last - self.first
        if episodes > 0:
            seconds = ends[last] - ends[self.first]
            if episodes == self.config.episodes or seconds > self.config.seconds:
                self.seconds.append(seconds)
                self.episodes.append(episodes)
                self.first = last
        return len(self.seconds) == TURNS


def training_record(config: RowConfig, seconds: list[float], episodes: list[int]) -> dict[str, Any]:
    rates = [n / turn for n, turn in zip(episodes, seconds, strict=True)]
    images = config.images_per_episode
    return {
        "images_per_s": statistics.median(rates) * images,
        "seconds_each": seconds,
        "episodes_each": episodes,
    }


def n_weights(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a folder on the path
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def main() -> None:
    warnings.simplefilter("ignore")  # Python 3.12 warns about the fork of a DataLoader
    replies, sys.stdout = sys.stdout, sys.stderr  # other output must not mix with the reply
    config = from_dict(RowConfig, json.load(sys.stdin))
    print(json.dumps(row(config)), file=replies)


if __name__ == "__main__":
    main()
