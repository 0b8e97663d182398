"""Private model files: no source of the images, no class of few images, noise on class means.

What a model file reveals all the same, and what these settings change, is measured in
docs/privacy.md.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kedge.config import Privacy, TrainConfig
from kedge.data.table import ImageTable
from kedge.episodes.train_val_split import TrainValSplit
from kedge.errors import require
from kedge.models.drift_compensation import IMAGES_PER_CLASS
from kedge.models.model import Model
from kedge.utils import distributed
from kedge.utils.text import pluralize

SOURCE = "private data"  # in place of the path or name of the images


def check_privacy(
    privacy: Privacy,
    start: Model,
    split: TrainValSplit,
    table: ImageTable,
    config: TrainConfig,
) -> None:
    """Raise KedgeError if the mean of a delivered or known class would come from too few images."""
    require(
        privacy.noise == 0 or start.head.anchors_are_means,
        f"--noise is {privacy.noise:g}: it is for the heads prototype and unit, whose anchors are "
        "means; leave it out.",
    )
    least = f"fewer than the {privacy.min_images} that a private model needs"
    if start.privacy is None:
        _check_known(privacy, start, least)
    # Where validation chooses an epoch, anchors of trained classes are of training images only.
    of_all = config.schedule.annealing == "cosine" and not start.head.learns_class_embeddings
    trained = {} if of_all else dict(zip(split.train.classes, split.train.class_rows, strict=True))
    for name in table.classes:
        everything = table.rows_of(name)
        parts = (everything, trained.get(name, everything))
        n = min(_count_distinct(table, rows) for rows in parts)
        require(
            n >= privacy.min_images,
            f"{table.source}: the mean of class '{name}' would come from "
            f"{pluralize(n, 'different image')}, {least}; add images, leave the class out, or give "
            "a lower --min-images.",
        )


def _check_known(privacy: Privacy, start: Model, least: str) -> None:
    """Raise KedgeError unless all classes of a model that is not private have enough images."""
    counts = {} if start.calibration is None else start.calibration.counts
    rounds = Counter(name for e in start.lineage for name in {*e.classes, *e.untrained})
    # Of a class that was delivered several times, the numbers of earlier images are not known.
    known = {name: n for name, n in counts.items() if rounds[name] == 1}
    for name in start.classes:
        require(
            name in known,
            f"The model does not say how many images its class '{name}' comes from, as a private "
            "model must; train a new one with --private.",
        )
        require(
            known[name] >= privacy.min_images,
            f"The model has a class '{name}' of {pluralize(known[name], 'image')}, {least}; train "
            "a new one with --private, or give a lower --min-images.",
        )


def _count_distinct(table: ImageTable, rows: Int64[Tensor, " n"]) -> int:
    """How many different images are among those that some class means come from."""
    images = table.take(rows[:IMAGES_PER_CLASS])
    return len({image.numpy().tobytes() for image in images})


def with_noise(model: Model, start: Model, delivered: Collection[str], privacy: Privacy) -> Model:
    """The model with noise on anchors and class means. Those of older classes have the noise of
    their rounds; they get what is missing.

    The noise is the operating system's, not drawn from the seed, which is in the file.
    """
    if privacy.noise == 0:
        return model
    before = 0.0 if start.privacy is None else start.privacy.noise
    missing = max(privacy.noise**2 - before**2, 0.0) ** 0.5  # variances of noise add up
    known = set(start.classes)
    old = known - set(delivered)
    lengths = [missing if name in old else privacy.noise for name in model.classes]
    scale = torch.tensor(lengths)[:, None] * _feature_length(model) / model.config.n_features**0.5
    scale = scale.to(model.device)
    anchors, means = model.anchors + scale * _normal(model.anchors), model.class_means
    if means is not None:
        first = torch.tensor([name not in known for name in model.classes])
        # The mean of a new class is its anchor.
        moved = means + scale * _normal(means)
        means = torch.where(first[:, None].to(model.device), anchors, moved)
    return replace(model, anchors=anchors, class_means=means)


def _feature_length(model: Model) -> float:
    """Root mean square length of the features."""
    means = model.class_means_of(model.classes)
    if model.head.unit_features or means is None:
        return 1.0
    variance = 0.0 if model.calibration is None else model.calibration.variance
    return float(means.square().sum(1).mean() + variance) ** 0.5


def _normal(like: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    source = random.SystemRandom()
    drawn = torch.tensor([source.gauss() for _ in range(like.numel())]).view_as(like)
    return distributed.broadcast(drawn).to(like)


def without_sources(model: Model, start: Model, privacy: Privacy) -> Model:
    """The model as it is saved in a private file."""
    if start.privacy is not None:  # what holds of the classes of all rounds
        least = min(privacy.min_images, start.privacy.min_images)
        privacy = replace(privacy, min_images=least)
    origin = model.config.pretrained
    config = replace(model.config, pretrained=origin and replace(origin, file=""))
    lineage = tuple(replace(entry, source=SOURCE) for entry in model.lineage)
    return replace(model, config=config, lineage=lineage, privacy=privacy)
