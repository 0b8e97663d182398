"""Training from a pretrained network, against plain loops with timm's network.

    python perf/pretrained.py --out pretrained-cpu.json            # a whole round
    python perf/pretrained.py --gpu --out pretrained-gpu.json      # steps and embeddings
    python perf/pretrained.py --table pretrained-gpu.json

The round is that of `kedge train` on photographs: EfficientNet-lite0 at 160 px, of which the last
layers train on the outputs of the others, computed once. The loop is `baseline_loop.py` with timm's
EfficientNet-lite0, of which the same layers train; it decodes and augments JPEG files and runs the
whole network in every step. Both take turns. Weights are random, which makes no difference to time.

With --gpu: images per second of steps and of embeddings at 224 px (`pretrained_steps.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from baseline_process import (
    KEDGE_SETTINGS,
    BaselineProcess,
    baseline_config,
    default_workers,
    image_files,
)
from pretrained_steps import CASES, TRAINED_GROUPS, measure, table
from workload import Workload, synthetic_images, use_kedge_settings

from kedge.config import BackboneConfig, TrainConfig
from kedge.data.pools import Pool, RoundData
from kedge.defaults import (
    PRETRAINED_EPOCHS,
    PRETRAINED_HEAD,
    PRETRAINED_SCHEDULE,
    PRETRAINED_SHAPE,
    photograph_size,
)
from kedge.methods.registry import parse_method
from kedge.models.backbones import build_backbone
from kedge.models.embedding import ModelConfig
from kedge.models.model import Model, new_model
from kedge.models.trainable import trained_names
from kedge.training.round import train_round
from kedge.utils.atomic_io import write_text_atomically
from kedge.utils.env import environment

KEDGE, TIMM = BackboneConfig("efficientnet-lite0"), BackboneConfig("timm:efficientnet_lite0")
TURNS = 3


def main() -> None:
    use_kedge_settings()
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--classes", type=int, default=30)
    options.add_argument("--images", type=int, default=30, help="of each class")
    options.add_argument("--image-size", type=int, help="side in pixels (default: kedge's)")
    options.add_argument("--epochs", type=int, default=PRETRAINED_EPOCHS[0][0])
    options.add_argument("--steps", type=int, default=10, help="of the loop, in each turn")
    options.add_argument("--gpu", action="store_true", help="steps and embeddings of --cases")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--compiled", action="store_true", help="as in a round of many steps")
    options.add_argument("--profile", action="store_true", help="add the slowest kernels")
    options.add_argument("--out", type=Path, help="also write the JSON record to this file")
    options.add_argument("--table", type=Path, metavar="FILE", help="only show that record's table")
    given = options.parse_args()
    if given.table is not None:
        print(table(json.loads(given.table.read_text(encoding="utf-8"))))
        return
    side = given.image_size or photograph_size(given.gpu)
    if given.gpu:
        gpu_record(given, side)
        return
    record = compare(given.classes, given.images, side, given.epochs, given.steps)
    text = json.dumps(record, indent=1)
    if given.out is not None:
        write_text_atomically(given.out, f"{text}\n", replace=False)
    print(text)


def compare(classes: int, images: int, side: int, epochs: int, steps: int) -> dict[str, Any]:
    """A JSON record of both, their ratios, and the machine."""
    load = os.getloadavg()[0]  # before our own
    shape = PRETRAINED_SHAPE
    n_val = shape.ways[1]
    table = synthetic_images(classes + n_val, images, side, 3)
    work = Workload(table, TIMM, shape, (classes, n_val))
    start = start_model(work.pools[0], side)
    check_same_layers(start)
    seconds: dict[str, list[float]] = {"round": [], "loop_step": []}
    with image_files(work) as folder:
        config = baseline_config(work, start, folder, default_workers())
        config = replace(config, trained_groups=TRAINED_GROUPS)
        loop = BaselineProcess(config, KEDGE_SETTINGS)
        try:
            for _ in range(TURNS):
                seconds["loop_step"].append(loop("train", steps) / steps)
                seconds["round"].append(round_seconds(start, work, epochs))
        finally:
            loop.close()
    n_steps = epochs * PRETRAINED_EPOCHS[0][1]
    n_images = n_steps * work.images_per_step
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    rates = {
        "kedge": n_images / medians["round"],
        "loop": work.images_per_step / medians["loop_step"],
    }
    return {
        "what": "a round from a pretrained network beside a plain loop with timm",
        "images": [classes, images, side],
        "steps": n_steps,
        "images_per_step": work.images_per_step,
        "seconds": seconds,
        "images_per_s": rates,
        "ratio": rates["kedge"] / rates["loop"],
        "load_average_before": load,
        "environment": environment(),
    }


def gpu_record(given: argparse.Namespace, side: int) -> None:
    """Measure the cases, show the table, and write the record after each of them."""
    images = synthetic_images(given.classes + PRETRAINED_SHAPE.ways[1], given.images, side, 3)
    work = Workload(images, TIMM, PRETRAINED_SHAPE, (given.classes, PRETRAINED_SHAPE.ways[1]))
    record: dict[str, Any] = {
        "what": "steps and embeddings of pretrained networks beside plain loops with timm",
        "images": [given.classes, given.images, side],
        "images_per_step": work.images_per_step,
        "steps_per_turn": given.steps,
        "load_average_before": os.getloadavg()[0],
        "environment": environment(),
        "cases": [],
    }
    for case in measure(
        work, given.cases, given.steps, given.epochs, given.compiled, given.profile
    ):
        record["cases"].append(case)
        for name, slowest in case.get("kernels", {}).items():
            print(f"{case['case']}, {name}: µs, share and name of kernels", file=sys.stderr)
            for key, microseconds, share in slowest:
                print(f"{microseconds:9.1f} {share:6.1%} {key}", file=sys.stderr)
        if given.out is not None:  # a run that is stopped leaves the cases that it has measured
            write_text_atomically(given.out, f"{json.dumps(record, indent=1)}\n")
    print(table(record))


def start_model(pool: Pool, side: int) -> Model:
    """The network with random weights, before its first round."""
    return new_model(ModelConfig(KEDGE, PRETRAINED_HEAD, 3, side), pool, 0)


def check_same_layers(model: Model) -> None:
    """Raise unless as many weights train in timm's network as in kedge's."""
    from baseline_loop import train_last_groups

    weights, network = model.weights(), build_backbone(TIMM, 3, model.config.image_size)
    ours = sum(weights[name].numel() for name in trained_names(model, "last"))
    train_last_groups(network, TRAINED_GROUPS)
    theirs = sum(w.numel() for w in network.parameters() if w.requires_grad)
    assert ours == theirs, f"{ours} weights train here, {theirs} in timm's network"


def round_seconds(start: Model, work: Workload, epochs: int) -> float:
    """Seconds of a whole round: frozen layers, steps, validation and anchors."""
    train, val = work.pools
    data = RoundData(0, *Pool.isolate(train, val))
    schedule = replace(PRETRAINED_SCHEDULE, epochs=epochs, episodes=PRETRAINED_EPOCHS[0][1])
    config = TrainConfig(work.shape, replace(schedule, val_episodes=100), 0)
    began = time.perf_counter()
    train_round(start, data, parse_method("FT"), config)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
