"""What is measured: images, a network, and the shape of the episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    require,
)
from kedge.data.pools import Pool, whole
from kedge.data.table import ImageTable
from kedge.episodes.sampler import check_pool
from kedge.models.model import (
    Model,
    ModelConfig,
    new_model,
)


@dataclass(frozen=True, eq=False)
class Subject:
    table: ImageTable
    backbone: BackboneConfig
    shape: EpisodeShape
    n_trained: int = 64  # classes at most, as miniImageNet has them
    n_tested: int = 20

    def __post_init__(self) -> None:
        for option, (least, most) in (("--n-way", self.shape.ways), ("--n-shot", self.shape.shots)):
            require(
                least == most,
                f"{option}: speed is measured with episodes that are all alike; give one number.",
            )
        for pool in (self.trained, self.tested):
            check_pool(pool, self.shape)

    @cached_property
    def trained(self) -> Pool:
        return whole("training", self.table, self.table.classes[: self.n_trained])

    @cached_property
    def tested(self) -> Pool:
        return whole("test", self.table, self.table.classes[-self.n_tested :])

    @property
    def n_images(self) -> int:
        """In a step."""
        return self.shape.ways[1] * (self.shape.shots[1] + self.shape.n_query)

    def start(self, device: torch.device, n_anchors: int | None = None) -> Model:
        """A fresh model; its anchors are noise, since time does not depend on what they are."""
        head = HeadConfig()
        config = ModelConfig(
            self.backbone, head, self.table.n_channels, image_size=self.table.image_size
        )
        model = new_model(config, self.trained, 0)
        n = len(self.trained.classes) if n_anchors is None else n_anchors
        anchors = torch.randn(n, model.config.n_features, generator=torch.Generator())
        classes = tuple(f"class {i}" for i in range(n))
        return replace(model, classes=classes, anchors=anchors).to(device)


def noise(n_classes: int, per_class: int, image_size: int, n_channels: int) -> ImageTable:
    """Images without meaning. They are smooth, so that as JPEG they are about as large as
    photographs, and take as long to decode."""
    drawn = torch.Generator().manual_seed(0)
    side = (image_size, image_size)
    images = torch.empty((n_classes * per_class, n_channels, *side), dtype=torch.uint8)
    for some in images.split(per_class):
        coarse = torch.rand(len(some), n_channels, 12, 12, generator=drawn)
        fine = torch.rand(1, n_channels, *side, generator=drawn)
        smooth = F.interpolate(coarse, side, mode="bilinear")
        some.copy_((230 * smooth + 25 * fine).to(torch.uint8))
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    names = tuple(f"class {i:04}" for i in range(n_classes))
    return ImageTable(images, labels, names, f"noise, {n_classes} classes of {per_class} images")
