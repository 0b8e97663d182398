"""perf/: the baseline and kedge do the same work, and the records are consistent."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from kedge.config import BackboneConfig, EpisodeShape
from kedge.data.augment import Augmentation, padding
from kedge.episodes.sampler import EpisodeBatch
from kedge.methods.registry import parse_method
from kedge.models.model import Model
from kedge.training.step import ExecutionMode, StepInputs, TrainStep

PERF = Path(__file__).parents[2] / "perf"
SHAPE = EpisodeShape(3, 2, 4)
TINY = "--noise 5x8 --image-size 16 --n-way 3 --n-shot 2 --n-query 4 --width 4 --seconds 0.05"


def kedge_loss(start: Model, images: Tensor) -> float:
    """The loss of kedge's step in fp32, without any augmentation."""
    student = replace(start, embedding=start.embedding.train().requires_grad_(True))
    step = TrainStep(student, start, parse_method("FT"), 1e-3, None, {}, ExecutionMode())
    n = len(images)
    centre = torch.full((n,), padding(images.shape[-1]))
    unchanged = Augmentation(
        centre, centre, torch.zeros(n, dtype=torch.bool), torch.ones(n, 3), 0 * centre
    )
    batch = EpisodeBatch(images, unchanged, torch.arange(SHAPE.ways[1]), SHAPE.shots[1])
    return float(step(StepInputs(batch))[0])


@pytest.mark.parametrize("n_channels", [1, 3])
def test_baseline_and_kedge_compute_the_same_loss(n_channels: int) -> None:
    import baseline_loop
    import workload

    table = workload.synthetic_images(4, 8, 20, n_channels)
    work = workload.Workload(table, BackboneConfig("conv4", 4), SHAPE)
    start = work.start_model()
    rows = torch.tensor([8 * c + i for c in (2, 0, 3) for i in (5, 1, 0, 7, 2, 3)])
    images = table.take(rows)
    arrays = [image.permute(1, 2, 0).squeeze(2).numpy() for image in images]
    pixels = torch.stack([baseline_loop.to_tensor(Image.fromarray(array)) for array in arrays])
    embedding = start.embedding
    network = baseline_loop.Network(
        nn.Sequential(embedding.backbone), embedding.mean, embedding.std
    ).train()
    loss = baseline_loop.episode_loss(network, pixels, 3, 2, start.head.temperature)
    assert kedge_loss(start, images) == pytest.approx(float(loss.detach()), rel=1e-4)


def test_flops_are_those_of_the_convolutions() -> None:
    import roofline
    import workload

    width, side = 4, 32
    work = workload.Workload(
        workload.synthetic_images(2, 2, side, 3),
        BackboneConfig("resnet12", width),
        EpisodeShape(2, 1, 1),
    )
    forward, both = roofline.flops_per_image(work.start_model().embedding, 3, side)
    each = []
    before = 3
    for channels in (width, 2 * width, 4 * width, 8 * width):
        for inputs, kernel in ((before, 9), (channels, 9), (channels, 9), (before, 1)):
            each.append(2 * inputs * channels * kernel * side * side)
        before, side = channels, side // 2
    assert forward == sum(each)
    assert both == 3 * sum(each) - each[0] - each[3]  # the image itself needs no gradient


def test_exponent_of_a_power_law() -> None:
    import scaling

    sizes = [2.0, 8.0, 64.0]
    assert scaling.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)


@pytest.mark.slow
def test_scaling_measures_every_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    import scaling
    import workload

    for name, sizes in {"CLASSES": (4, 8), "WAYS": (2, 4), "FACTORS": (1, 2)}.items():
        monkeypatch.setattr(scaling, name, sizes)
    monkeypatch.setattr(scaling, "SIDES", (1.0, 1.5))
    monkeypatch.setattr(scaling, "REPEATS", 1)
    table = workload.synthetic_images(5, 8, 16, 1)
    work = workload.Workload(table, BackboneConfig("conv4", 4), SHAPE)
    rows = scaling.Scaling(work, 0.001).measure()
    axes = [row["against"] for row in rows[::2]]
    assert axes == ["classes", "images per class", "image size, px", "ways", "anchors"]


@pytest.mark.slow
def test_compare_writes_a_record(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    command = [sys.executable, *f"{PERF}/compare.py {TINY} --workers 1".split(), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    kedge, plain = record["kedge"], record["plain"]["as_it_comes"]
    assert record["ratio"]["as_it_comes"] == {
        "training": plain["ms_per_step"] / kedge["FT"]["ms_per_step"],
        "evaluation": plain["evaluation_s"] / kedge["evaluation_s"],
    }
    assert kedge["FT"]["ms_per_step"] == sorted(kedge["FT"]["ms_per_step_each"])[2]
