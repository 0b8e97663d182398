"""The commands as functions: train once, update with each delivery, classify from a few examples.

base = kedge.train("first-delivery/", epochs=20)
better = kedge.update(base, "second-delivery/")   # the first delivery is not needed, and not read
better.classifier(support).predict(images)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from kedge.config import (
    BackboneConfig,
    DataSummary,
    EpisodeOptions,
    EpisodeShape,
    HeadConfig,
    RoundOptions,
    TrainConfig,
    TrainOptions,
    options_from,
)
from kedge.data.open import is_embedded, is_packed_file, open_images
from kedge.data.parallel_decode import LARGEST
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.train_val_split import (
    TrainValSplit,
    open_validation,
    select_test_part,
    select_test_pool,
    select_train_part,
    split_train_val,
)
from kedge.errors import require
from kedge.evaluation import accuracy
from kedge.evaluation.naming import naming_results
from kedge.evaluation.results import Score
from kedge.methods.base import Memory
from kedge.methods.registry import ALIGNMENTS, Method, parse_method
from kedge.models.embedding import CUSTOM, ModelConfig
from kedge.models.model import Model, new_model
from kedge.training.round import check_tasks_per_step
from kedge.training.step import default_device, load_compiler_in_background
from kedge.training.user_round import limit_shots_to_memory, train_user_round
from kedge.utils import distributed, progress
from kedge.utils.config_io import from_dict, validated
from kedge.utils.seeding import torch_seed

Images = Any  # whatever `open_images` takes: a path, a table, arrays, a dataset
NUMBERED_CLASS = re.compile(r"(\w+ )?class \d{4,}")  # names of classes that came without names


def train(
    images: Images,
    *,
    val: Images | None = None,
    backbone: str | nn.Module | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Model:
    """A model trained on the first images (round 0).

    Args:
        images: a path, an ImageTable, a pair of arrays (images, labels) or a dataset; see
            `open_images`. If they come split, the part "train" is used.
        val: images to validate on; by default some of `images` are set apart.
        backbone: conv4, resnet12, resnet12-wide, or a module from images to features.
        checkpoint: a file that lets a stopped call be repeated and continue.
        options: n_way, n_shot, n_query, epochs, episodes, val_episodes, lr, patience, sampling,
            tasks_per_step, seed, image_size, width, head, temperature: see `TrainOptions`. What is
            not given is inferred from the images, and told with the reason.
    """
    module = backbone if isinstance(backbone, nn.Module) else None
    named = {} if backbone is None or module is not None else {"backbone": backbone}
    settings = options_from(TrainOptions, {**named, **options})
    _prepare(settings)
    opened = _named_after(images, open_images(images, settings.image_size))
    table, val_part = select_train_part(opened, val is None)
    height, width = table.images.shape[2:]
    require(height == width, f"{table.source}: images are {height}×{width}, not square.")
    reasons = _why_size(images, table) if settings.image_size is None else []
    network = BackboneConfig(CUSTOM)
    if module is not None:
        _check_module(module, settings)
    else:
        data = DataSummary(n_images=len(table), image_size=table.image_size, gpu=_on_gpu())
        network, why = settings.resolve_backbone(data)
        reasons += why
    model_config = ModelConfig(
        network,
        HeadConfig(settings.head or "prototype", settings.temperature or 2.0),
        table.n_channels,
        table.image_size,
        resize=table.resize,
        inverted=table.inverted,
    )
    split = _split(table, val, val_part, settings)
    start = new_model(model_config, split.train, torch_seed("weights", settings.seed), module)
    config = _resolve(table, split, settings, reasons)
    return train_user_round(start, split, Method("base", "new"), config, checkpoint, table)


def update(
    model: Model,
    images: Images,
    *,
    method: str = "IDA",
    val: Images | None = None,
    checkpoint: str | Path | None = None,
    memory: Memory | None = None,
    **options: Any,
) -> Model:
    """The model after one more round, from new classes only; `model` itself is not changed.

    Args:
        method: IDA, DFA, EIML, EWC or FT, with options: "IDA lambda=5".
        memory: what `remember` returned after the last round; EIML and EWC need it.
        options: n_way, n_shot, n_query, epochs, episodes, val_episodes, lr, patience, sampling,
            tasks_per_step, seed: see `RoundOptions`. What is not given is inferred.

    `images`, `val` and `checkpoint` are as in `train`.
    """
    _check_model(model)
    settings, chosen = options_from(RoundOptions, options), parse_method(method)
    methods = " or ".join(("FT", *ALIGNMENTS))
    require(chosen.trains_on == "new", f"'{method}' cannot update a model; use {methods}.")
    _prepare(settings)
    table, val_part = select_train_part(_named_after(images, model.open(images)), val is None)
    require(
        len(table.classes) > 1,
        f"{table.source}: a round needs at least 2 classes, and there is only 1. Wait for more, or "
        "name it beside the known ones with 'kedge predict --support FOLDER --include-known'.",
    )
    reasons = _compare_with_known_classes(model, table)
    split = _split(table, val, val_part, settings)
    split = limit_shots_to_memory(split, chosen, memory or {}, settings)
    if memory and chosen.alignment is not None:
        chosen.alignment.check_memory(memory, model)
    config = _resolve(table, split, settings, reasons)
    return train_user_round(model, split, chosen, config, checkpoint, table, memory)


def remember(
    model: Model, images: Images, *, method: str, before: Memory | None = None, seed: int = 0
) -> Memory:
    """What a method must keep of the images of the model's last round, before they are deleted.

    Exemplars for EIML, the Fisher information for EWC, nothing for other methods. `before` is what
    was kept after the earlier rounds.
    """
    distributed.init()
    _check_model(model)
    seed = TrainConfig(seed=seed).seed  # validated
    chosen = parse_method(method)
    if chosen.alignment is None or not chosen.remembers:
        return {}  # without reading any image
    table, _ = select_train_part(model.open(images), validate=False)
    for name in table.classes:
        require(
            name in model.classes,
            f"{table.source}: the model has not learned class '{name}'; give the images of its "
            "last round.",
        )
    # A class that was too small to train on cannot be rehearsed either.
    need = from_dict(EpisodeShape, model.lineage[-1].config["episode"]).min_images
    counts = zip(table.classes, table.counts.tolist(), strict=True)
    names = [name for name, count in counts if count >= need]
    require(
        bool(names),
        f"{table.source}: no class has the {need} images of an episode of the model's last round; "
        "give all images of that round.",
    )
    pool = Pool.all("delivered", table, names)
    kept = chosen.alignment.remember(model.to(default_device()), pool, before or {}, seed)
    return distributed.broadcast({name: tensor.cpu() for name, tensor in kept.items()})


def evaluate(
    model: Model,
    images: Images,
    *,
    known: bool = False,
    n_episodes: int = 2000,
    seed: int = 0,
    **options: Any,
) -> Score:
    """Accuracy in % on few-shot episodes of these images' classes, with its 95% interval.

    With `known`, instead the accuracy of naming these images among all classes that the model has
    learned, without examples; images of other classes are left out. `kedge.evaluation.naming`
    also has it by the round in which a class was learned.

    Args:
        options: n_way, n_shot, n_query of the test episodes; 5-way 5-shot where images suffice.
    """
    _check_model(model)
    settings = options_from(EpisodeOptions, options)
    seed = validated("--seed", int, seed)
    n_episodes = validated("--n-episodes", int, n_episodes)
    require(seed >= 0, f"--seed is {seed}: it must not be negative.")
    require(n_episodes >= 2, f"--n-episodes is {n_episodes}: an interval needs at least 2.")
    table = select_test_part(model.open(images))
    on_device = model.to(default_device())
    if known:
        return naming_results(on_device, table).overall
    pool, shape, reasons = select_test_pool(table, settings)
    _tell(table, reasons)
    spec = accuracy.EvalSpec("test", pool, shape)
    return Score.of(accuracy.evaluate_pools(on_device, [spec], n_episodes, seed)["test"])


def _check_model(model: object) -> None:
    require(
        isinstance(model, Model),
        f"model is a {type(model).__name__}: give a kedge.Model, as kedge.Model.load(FILE) reads.",
    )


def _check_module(module: nn.Module, options: TrainOptions) -> None:
    require(
        options.width is None,
        f"width is {options.width}: it is for kedge's own backbones; a module of your own has its "
        "own width, so leave it out.",
    )
    if not all(weight.requires_grad for weight in module.parameters()):
        progress.note(
            "some weights of the backbone have requires_grad=False: a round trains them, too"
        )


def _prepare(options: RoundOptions) -> None:
    """Join other processes, reject what cannot work, and load the compiler while images load."""
    distributed.init()
    check_tasks_per_step(options.tasks_per_step)
    load_compiler_in_background()


def _named_after(images: Images, table: ImageTable) -> ImageTable:
    """The table with the path that the user gave; a large one may lie in a temporary file."""
    return replace(table, source=str(images)) if isinstance(images, str | Path) else table


def _why_size(images: Images, table: ImageTable) -> list[str]:
    """Why the images have this size; nothing for those that already had it."""
    packed = isinstance(images, str | Path) and (
        is_embedded(images) or is_packed_file(Path(images))
    )
    if packed or isinstance(images, ImageTable):
        return []
    why = (
        "the usual size for these characters" if table.inverted else "about the size of the images"
    )
    why = "larger images are reduced to that" if table.image_size == LARGEST else why
    return [f"--image-size {table.image_size}: {why}"]


def _split(
    table: ImageTable, val: Images | None, val_part: ImageTable | None, options: RoundOptions
) -> TrainValSplit:
    given = open_validation(val, table)
    split = split_train_val(table, given or val_part, options, options.seed)
    both = set(split.val.classes) & set(split.train.classes)
    # Two classes that only have the same number are hardly the same class.
    named = not all(map(NUMBERED_CLASS.fullmatch, both))
    if given is not None and both and (named or given.fingerprint == table.fingerprint):
        progress.note(
            f"{given.source}: {len(both)} of {len(split.val.classes)} validation classes are "
            "trained on; if these are the same images, validation accuracy is too high"
        )
    return split


def _resolve(
    table: ImageTable, split: TrainValSplit, options: RoundOptions, reasons: Sequence[str]
) -> TrainConfig:
    """The complete settings of a round; everything inferred is told with its reason."""
    data = DataSummary(n_classes=len(split.train.classes), shape=split.shape, gpu=_on_gpu())
    config, why = options.resolve(data)
    _tell(table, [*reasons, *split.reasons, *why])
    return config


def _tell(table: ImageTable, reasons: Sequence[str]) -> None:
    if not reasons:
        return
    least, most = int(table.counts.min()), int(table.counts.max())
    counts = f"{least}" if least == most else f"{least} to {most}"
    colour = "colour" if table.n_channels == 3 else "grey"
    progress.note(
        f"{table.source}: {len(table.classes)} classes of {counts} images, at {table.image_size} "
        f"px in {colour}. Inferred from the data, unless an option is given:"
    )
    for reason in reasons:
        progress.note(f"  {reason}")


def _on_gpu() -> bool:
    return default_device().type == "cuda"


def _compare_with_known_classes(model: Model, table: ImageTable) -> list[str]:
    """Notes on classes that are delivered again, or whose names are almost the same."""
    new, n_classes = [n for n in table.classes if n not in set(model.classes)], len(table.classes)
    by_case = {name.casefold(): name for name in model.classes}
    similar = [name for name in new if name.casefold() in by_case]
    if similar:
        name, more = similar[0], f" (and {len(similar) - 1} more)" if similar[1:] else ""
        progress.note(
            f"{table.source}: '{name}'{more} becomes a new class beside the known "
            f"'{by_case[name.casefold()]}'; if they are the same, give them the same name"
        )
    require(
        bool(new) or not all(map(NUMBERED_CLASS.fullmatch, table.classes)),
        f"{table.source}: the classes have only numbers, and all of them are numbers of classes "
        "that the model knows, which may be others. Give the classes names, in the files or as "
        "(images, labels, names).",
    )
    if len(new) == n_classes:
        return []
    return [
        f"{n_classes - len(new)} of {n_classes} classes are known to the model: they keep their "
        "names, and these images are pooled with what the model remembers of them"
    ]
