"""What the scripts in this folder measure: images, a backbone and the shape of the episodes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F

from kedge.config import BackboneConfig, EpisodeShape
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.model import Model
from kedge.training.speed import train_and_test_pool, untrained_model
from kedge.utils.process import keep_freed_memory


@dataclass(frozen=True, eq=False)
class Workload:
    """By default at most 64 classes to train on and 20 to test on, as in miniImageNet."""

    table: ImageTable
    backbone: BackboneConfig
    shape: EpisodeShape
    max_classes: tuple[int, int] = (64, 20)  # of the training and the test pool

    @cached_property
    def pools(self) -> tuple[Pool, Pool]:
        """Training and test pool."""
        return train_and_test_pool(self.table, self.shape, *self.max_classes)

    @property
    def images_per_class(self) -> int:
        return self.shape.shots[1] + self.shape.n_query

    @property
    def images_per_step(self) -> int:
        return self.shape.ways[1] * self.images_per_class

    def start_model(self) -> Model:
        return untrained_model(self.pools[0], self.backbone)


def synthetic_images(
    n_classes: int, per_class: int, image_size: int, n_channels: int
) -> ImageTable:
    """Random images. They are smooth, so that as JPEG they have the size of photographs and take
    as long to decode."""
    generator = torch.Generator().manual_seed(0)
    side = (image_size, image_size)
    images = torch.empty((n_classes * per_class, n_channels, *side), dtype=torch.uint8)
    for one_class in images.split(per_class):
        coarse = torch.rand(len(one_class), n_channels, 12, 12, generator=generator)
        fine = torch.rand(1, n_channels, *side, generator=generator)
        smooth = F.interpolate(coarse, side, mode="bilinear")
        one_class.copy_((230 * smooth + 25 * fine).to(torch.uint8))
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    names = tuple(f"class {i:04}" for i in range(n_classes))
    return ImageTable(images, labels, names, f"noise, {n_classes} classes of {per_class} images")


def use_kedge_settings() -> None:
    """Run with the settings for threads and memory that the kedge command gives itself."""
    if "GOMP_SPINCOUNT" not in os.environ:  # read when torch is loaded: start once more
        environment = {**os.environ, "GOMP_SPINCOUNT": "1000"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    keep_freed_memory()


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that choose a workload; `workload` reads them."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("data", nargs="?", default="drawings")
    options.add_argument(
        "--noise", metavar="CLASSESxIMAGES", help="synthetic images, such as 64x600"
    )
    options.add_argument("--image-size", type=int, help="side in pixels (default with --noise: 84)")
    options.add_argument("--backbone", default="conv4")
    options.add_argument("--width", type=int, default=32)
    options.add_argument("--n-way", type=int, default=5)
    options.add_argument("--n-shot", type=int, default=5)
    options.add_argument("--n-query", type=int, default=15)
    options.add_argument("--seconds", type=float, default=10.0, help="for each measurement")
    options.add_argument("--out", type=Path, help="also write the JSON record to this file")
    return options


def workload(options: argparse.Namespace) -> Workload:
    if options.noise is None:
        table = open_images(options.data, options.image_size)
    else:
        numbers = re.fullmatch(r"(\d+)x(\d+)", options.noise)
        if numbers is None:
            raise SystemExit("--noise: write classes x images per class, such as 64x600.")
        table = synthetic_images(int(numbers[1]), int(numbers[2]), options.image_size or 84, 3)
    backbone = BackboneConfig(options.backbone, options.width)
    return Workload(table, backbone, EpisodeShape(options.n_way, options.n_shot, options.n_query))
