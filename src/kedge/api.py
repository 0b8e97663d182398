"""The commands as functions: train once, update with each delivery, classify from a few examples.

base = kedge.train("first-delivery/")
better = kedge.update(base, "second-delivery/")   # the first is not needed, and not read
better.classifier(support).predict(images)
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from kedge import engine, evaluation, progress
from kedge.alignment import ALIGNMENTS, Memory
from kedge.config import (
    OWN_IMAGES,
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
    require,
)
from kedge.episodes import check_pool
from kedge.evaluation import Score
from kedge.images.pictures import Look
from kedge.images.sources import open_images
from kedge.images.table import ImageTable
from kedge.methods import Method, parse_method
from kedge.model import CUSTOM, Model, ModelConfig, new_model
from kedge.pools import Delivery, Pool, whole
from kedge.seeding import generator, torch_seed
from kedge.step import default_device
from kedge.training import check_batch, train_round

Images = Any  # whatever `open_images` takes: a path, a table, arrays, a data set
MADE_UP = re.compile(r"(\w+ )?class \d{4,}")  # names of classes that came without any
FIVE_WAY_FIVE_SHOT = EpisodeShape()


def train(
    images: Images,
    *,
    val: Images | None = None,
    backbone: str | nn.Module = "conv4",
    width: int = 64,
    head: str = "prototype",
    temperature: float = 2.0,
    image_size: int | None = None,
    episode: EpisodeShape = FIVE_WAY_FIVE_SHOT,
    schedule: Schedule = OWN_IMAGES,
    seed: int = 0,
    checkpoint: str | Path | None = None,
) -> Model:
    """Round 0: a model from the first images. With a checkpoint, a stopped call can be repeated.

    Images are a path, a table, a pair of arrays (images, labels), or a data set: see `open_images`.
    Where they come split, the part "train" is trained on and "test" is left alone.
    """
    engine.start()
    check_batch(schedule)
    config = TrainConfig(episode, schedule, seed)
    table, apart = _to_train_on(open_images(images, image_size))
    height, width_px = table.images.shape[2:]
    require(height == width_px, f"{table.source}: images are {height}×{width_px}, not square.")
    module = backbone if isinstance(backbone, nn.Module) else None
    described = BackboneConfig(CUSTOM if module else str(backbone), width)
    shape = ModelConfig(
        described,
        HeadConfig(head, temperature),
        table.n_channels,
        table.image_size,
        fit=table.fit,
        inverted=table.inverted,
    )
    delivery = deliver(table, config, 0, _validation(val, table) or apart)
    start = new_model(shape, delivery.new, torch_seed("weights", seed), module)
    return _round(start, delivery, Method("base", "new"), config, checkpoint, table)


def update(
    model: Model,
    images: Images,
    *,
    method: str = "IDA",
    val: Images | None = None,
    episode: EpisodeShape = FIVE_WAY_FIVE_SHOT,
    schedule: Schedule = OWN_IMAGES,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    memory: Memory | None = None,
) -> Model:
    """One more round from new classes only. The model that is given is not changed.

    Some methods (EIML, EWC) need what `remember` kept when the round before had ended.
    """
    engine.start()
    check_batch(schedule)
    chosen = parse_method(method)
    require(
        chosen.trains_on == "new",
        f"'{method}' cannot update a model from new images alone; use FT or "
        f"{' or '.join(ALIGNMENTS)}.",
    )
    config = TrainConfig(episode, schedule, seed)
    table, apart = _to_train_on(model.open(images))
    back = _coming_back(model, table)
    round = model.lineage[-1].round + 1
    delivery = deliver(table, config, round, _validation(val, table) or apart)
    better = _round(model, delivery, chosen, config, checkpoint, table, memory)
    if back:
        progress.note(
            f"{table.source}: {len(back)} of {len(table.classes)} classes were known to the model; "
            "their anchors were made anew"
        )
    return better


def remember(
    model: Model,
    images: Images,
    *,
    method: str,
    before: Memory | None = None,
    seed: int = 0,
) -> Memory:
    """What a method needs to keep of the images of the model's last round, which may be deleted
    afterwards: exemplars for EIML, the Fisher information for EWC, nothing for the others.

    `before` is what it kept when the rounds before had ended.
    """
    engine.start()
    chosen = parse_method(method)
    if chosen.alignment is None:
        return {}
    table, _ = _to_train_on(model.open(images))
    missing = [name for name in table.classes if name not in model.classes]
    require(
        not missing,
        f"{table.source}: the model has not learned class '{(missing or ['?'])[0]}'; give the "
        "images of its last round.",
    )
    on_device, pool = model.to(default_device()), whole("delivered", table)
    kept = chosen.alignment.remember(on_device, pool, before or {}, seed)
    return engine.agreed({name: tensor.cpu() for name, tensor in kept.items()})


def evaluate(
    model: Model,
    images: Images,
    *,
    episode: EpisodeShape = FIVE_WAY_FIVE_SHOT,
    n_episodes: int = 2000,
    seed: int = 0,
) -> Score:
    """How well the model tells these classes apart from a few examples of each, in per cent."""
    require(seed >= 0, f"--seed is {seed}: it must not be negative.")
    require(n_episodes >= 2, f"--n-episodes is {n_episodes}: an interval needs at least 2.")
    table = to_test_on(model.open(images))
    test = evaluation.Trial("test", whole("test", table), episode)
    on_device = model.to(default_device())
    return Score.of(evaluation.evaluate(on_device, [test], n_episodes, seed)["test"])


def deliver(table: ImageTable, config: TrainConfig, round: int, val: ImageTable | None) -> Delivery:
    """Own images as a delivery. Without images to validate on, a fifth of the classes is set apart.

    Where that would leave too few classes to train on, a quarter of each class's images is.
    """
    if val is not None:
        return Delivery(round, whole("training", table), whole("validation", val))
    n_way, n_shot = config.episode.ways[1], config.episode.shots[1]
    if len(table.classes) < n_way:
        check_pool(whole("training", table), config.episode)
    n_val = max(n_way, len(table.classes) // 5)
    if len(table.classes) - n_val >= n_way:
        order = generator("validation classes", config.seed).permutation(len(table.classes))
        names = [table.classes[i] for i in order]
        apart, rest = sorted(names[:n_val]), sorted(names[n_val:])
        return Delivery(round, whole("training", table, rest), whole("validation", table, apart))
    train_rows, val_rows = [], []
    for name in table.classes:
        rows = table.rows_of(name)
        order = generator("validation images", config.seed, name).permutation(len(rows))
        need = n_shot + config.episode.n_query
        require(
            len(rows) >= 2 * need,
            f"Class '{name}' has {len(rows)} images, but with so few classes each must give {need} "
            f"({n_shot} shots + {config.episode.n_query} queries) to training and "
            "as many to validation: add images or classes, or lower --n-shot or --n-query.",
        )
        n = max(need, len(rows) // 4)
        val_rows.append(rows[torch.from_numpy(np.sort(order[:n]))])
        train_rows.append(rows[torch.from_numpy(np.sort(order[n:]))])
    return Delivery(
        round,
        Pool("training", table, table.classes, tuple(train_rows)),
        Pool("validation", table, table.classes, tuple(val_rows)),
    )


def _round(
    start: Model,
    delivery: Delivery,
    method: Method,
    config: TrainConfig,
    checkpoint: str | Path | None,
    table: ImageTable,
    memory: Memory | None = None,
) -> Model:
    path = None if checkpoint is None else Path(checkpoint)
    total = config.schedule.epochs * config.schedule.episodes
    start = start.to(default_device())
    with progress.task(f"round {delivery.round}: training episodes", total) as tick:
        model = train_round(start, delivery, method, config, path, tick, memory).model
    # Classes that only validated were delivered too: the model shall know them.
    rest = [name for name in table.classes if name not in delivery.new.classes]
    model = model.with_anchors_of(whole("validated", table, rest)) if rest else model
    order = (*(name for name in model.classes if name not in table.classes), *table.classes)
    model = replace(model, classes=order, anchors=model.anchors_of(order)).to("cpu")
    return replace(model, anchors=engine.agreed(model.anchors))


def _coming_back(model: Model, table: ImageTable) -> list[str]:
    """The classes that the model knows already."""
    back = [name for name in table.classes if name in model.classes]
    require(
        len(back) < len(table.classes) or not all(map(MADE_UP.fullmatch, back)),
        f"{table.source}: the classes have no names, only numbers, and all of these numbers are "
        "those of classes that the model knows; give them names, as in (images, labels, names).",
    )
    return back


def to_test_on(table: ImageTable) -> ImageTable:
    """The part "test" of images that come split (or "val"), otherwise all of them."""
    part = next((part for part in ("test", "val") if part in table.parts), None)
    if part is None:
        return table
    progress.note(f"{table.source}: of its parts, {part} is used")
    return _some(table, table.in_part(part))


def _to_train_on(table: ImageTable) -> tuple[ImageTable, ImageTable | None]:
    """The part "train" of images that come split, and what of "val" has classes of its own."""
    if "train" not in table.parts:
        return table, None
    training = _some(table, table.in_part("train"))
    known = torch.tensor([name in training.classes for name in table.classes])
    others = table.in_part("val") & ~known[table.labels]
    validates = bool(others.any())
    progress.note(
        f"{table.source}: of its parts, train is trained on"
        + (" and val validates" if validates else "")
    )
    return training, _some(table, others) if validates else None


def _some(table: ImageTable, chosen: Bool[Tensor, " n"]) -> ImageTable:
    """Images that are no longer parts of a whole."""
    return replace(table.only(chosen.nonzero().flatten()), parts=(), part=None)


def _validation(val: Images | None, table: ImageTable) -> ImageTable | None:
    if val is None:
        return None
    look = Look(table.image_size, table.n_channels, table.fit, table.inverted)
    opened = open_images(val, look=look)
    theirs, ours = ("×".join(map(str, t.images.shape[1:])) for t in (opened, table))
    require(
        theirs == ours,
        f"{opened.source}: images to validate on are {theirs} (channels, height, width), but those "
        f"to train on are {ours}.",
    )
    return opened
