"""Defaults inferred from the data and the device, each with its reason.

The same options, data and kind of device always give the same settings.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from kedge.config import (
    DEFAULT_SHAPE,
    BackboneConfig,
    BackboneOptions,
    EpisodeShape,
    HeadConfig,
    HeadOptions,
    RoundOptions,
    Schedule,
    TrainConfig,
)
from kedge.errors import require
from kedge.utils.config_io import option_name

MAX_WAYS = 20  # largest number of ways that is inferred; a user may ask for more
MIN_SIZE_FOR_RESNET = 32  # px: of a smaller image, four poolings leave a single position
MIN_IMAGES_FOR_RESNET = 1000
FAST_SIZE_WITHOUT_GPU = 32  # px: larger images get a narrower Conv-4
# Epochs and episodes that take minutes, for few classes, for 20 or more, for 200 or more.
MINUTES_ON_CPU = ((20, 50), (20, 100), (30, 100))
MINUTES_ON_GPU = ((20, 200), (40, 400), (60, 400))

# For a pretrained network; chosen on validation classes (LOG.md).
PRETRAINED_BACKBONE = "efficientnet-lite0"
PRETRAINED_SIZE_ON_CPU, PRETRAINED_SIZE_ON_GPU = 160, 224  # px
PRETRAINED_SHAPE = EpisodeShape(10, 5, 5)  # it solves 5 ways too easily to learn from them
PRETRAINED_HEAD = HeadConfig("unit", 1 / 64)  # squared distances of unit vectors are at most 4
PRETRAINED_SCHEDULE = Schedule(
    lr=1e-4, annealing="cosine", train="last", batch_norm="frozen", ema=0.99
)
PRETRAINED_EPOCHS = ((20, 20), (8, 20))  # and episodes: of the first round, of updates
PRETRAINED_UPDATE_LR = 3e-5  # at 1e-4 stored anchors go stale over many updates
DEFAULT_METHOD = "IDA+"  # of updates
INFERRED = ("lr", "annealing", "batch_norm", "dropout", "ema")


@dataclass(frozen=True)
class DataSummary:
    """Facts about the data, the network and the device, from which settings are inferred."""

    n_classes: int = 0  # that are trained on
    shape: EpisodeShape = DEFAULT_SHAPE  # as the train/validation split allows
    n_images: int = 0
    image_size: int = 0
    gpu: bool = False
    photographs: bool = False
    pretrained: bool = False  # whether the network is
    last_train: str = ""  # what trained in the last round; empty before the first


def photograph_size(gpu: bool) -> int:
    """Side in px to which photographs are resized for a pretrained network."""
    return PRETRAINED_SIZE_ON_GPU if gpu else PRETRAINED_SIZE_ON_CPU


def usual_shape(data: DataSummary) -> EpisodeShape:
    """Ways, shots and queries of training episodes where there are enough images."""
    return PRETRAINED_SHAPE if data.pretrained else DEFAULT_SHAPE


def infer_backbone(options: BackboneOptions, data: DataSummary) -> tuple[BackboneConfig, list[str]]:
    """A pretrained network for photographs; otherwise ResNet-12 where it trains in minutes and has
    enough images, else Conv-4."""
    name, width, size, reasons = options.backbone, options.width, data.image_size, []
    if name is None:
        name = "conv4"
        if data.photographs:
            name = PRETRAINED_BACKBONE
            why = "pretrained on ImageNet, since these are photographs (colour, 64 px or more)"
        elif not data.gpu:
            why = "a small network, since there is no GPU"
        elif size < MIN_SIZE_FOR_RESNET:
            why = f"a small network, since images of {size} px are too small for a deeper one"
        elif data.n_images < MIN_IMAGES_FOR_RESNET:
            why = f"a small network, since {data.n_images} images are few for a larger one"
        else:
            name, why = "resnet12", "a large network, since there are a GPU and many images"
        reasons.append(f"--backbone {name}: {why}")
    if width is None and name not in ("conv4", "resnet12", "resnet12-wide"):
        return BackboneConfig(name), reasons
    if width is None:
        narrow = name == "conv4" and not data.gpu and size > FAST_SIZE_WITHOUT_GPU
        width = 32 if narrow else 64
        why = f"half the usual, since {size} px are slow without a GPU" if narrow else "default"
        reasons.append(f"--width {width}: channels of the first block, {why}")
    return BackboneConfig(name, width), reasons


def infer_head(options: HeadOptions, data: DataSummary) -> tuple[HeadConfig, list[str]]:
    """Unit features for a pretrained network, otherwise the paper's prototypes."""
    usual = PRETRAINED_HEAD if data.pretrained else HeadConfig()
    head, temperature, reasons = options.head, options.temperature, []
    if head is None:
        head = usual.head
        if data.pretrained:
            reasons.append(f"--head {head}: features of length 1, for a pretrained network")
    if temperature is None:
        # Of unit features squared distances are at most 4; of others there is no such limit.
        unit = head.split()[0] == PRETRAINED_HEAD.head
        temperature = PRETRAINED_HEAD.temperature if unit else HeadConfig().temperature
    return HeadConfig(head, temperature), reasons


def infer_round(options: RoundOptions, data: DataSummary) -> tuple[TrainConfig, list[str]]:
    """The complete settings of a round on this data."""
    usual = PRETRAINED_SCHEDULE if data.pretrained else Schedule()
    if data.pretrained and data.last_train:
        usual = replace(usual, lr=PRETRAINED_UPDATE_LR)
    settings: dict[str, Any] = {
        f.name: getattr(options, f.name) for f in dataclasses.fields(Schedule)
    }
    reasons = []
    if settings["train"] is None:
        train = settings["train"] = data.last_train or usual.train
        if train == "none" or (data.pretrained and settings["epochs"] != 0):
            again = ", as before" if data.last_train else ""
            reasons.append(f"--train {train}: {WHY_TRAIN[train]}{again}")
    if settings["train"] == "none":
        require(
            not settings["epochs"],
            f"--epochs {settings['epochs']}: no layer trains with --train none, which is also the "
            "setting of a model that was made so; add --train last, or leave --epochs out.",
        )
        settings["epochs"] = 0
    chosen = [name for name in INFERRED if settings[name] is None]
    settings |= {name: getattr(usual, name) for name in chosen}
    unusual = [name for name in chosen if settings[name] != getattr(Schedule(), name)]
    if unusual and settings["epochs"] != 0:
        values = (
            f"{option_name(name)} {settings[name]:g}"
            if isinstance(settings[name], float)
            else f"{option_name(name)} {settings[name]}"
            for name in unusual
        )
        reasons.append(f"{' '.join(values)}: so that a pretrained network moves gently")
    if data.pretrained:
        epochs, episodes = PRETRAINED_EPOCHS[bool(data.last_train)]
    else:
        minutes = MINUTES_ON_GPU if data.gpu else MINUTES_ON_CPU
        epochs, episodes = minutes[(data.n_classes >= 20) + (data.n_classes >= 200)]
    episodes += -episodes % options.tasks_per_step
    inferred = []
    for name, value in (("epochs", epochs), ("episodes", episodes)):
        if settings[name] is None:
            settings[name] = value
            inferred.append(f"{option_name(name)} {value}")
    if inferred and settings["epochs"] != 0:
        device = "with a GPU" if data.gpu else "without a GPU"
        reasons.append(f"{' '.join(inferred)}: takes minutes {device}; more may be better")
    return TrainConfig(data.shape, Schedule(**settings), options.seed), reasons


WHY_TRAIN = {
    "none": "nothing, only anchors are made",
    "head": "the head only",
    "last": "the last four layers, which takes minutes on a CPU",
    "all": "every layer",
}
