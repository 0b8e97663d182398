"""The commands as functions: train once, update with each delivery, classify from a few examples.

base = kedge.train("first-delivery/", epochs=20)
better = kedge.update(base, "second-delivery/")   # the first delivery is not needed, and not read
better.classifier(support).predict(images)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from kedge.config import (
    BackboneConfig,
    EpisodeOptions,
    EpisodeShape,
    Privacy,
    RoundOptions,
    Seed,
    TestEpisodes,
    TrainConfig,
    TrainOptions,
    options_from,
)
from kedge.data.class_names import SameClassArgument
from kedge.data.delivery import ClassFolders, Delivery
from kedge.data.pools import Pool
from kedge.defaults import infer_backbone, infer_head
from kedge.episodes.sampler import check_n_episodes
from kedge.episodes.train_val_split import (
    select_test_part,
    select_test_pool,
    select_train_part,
)
from kedge.errors import require
from kedge.evaluation.accuracy import EvalSpec
from kedge.evaluation.by_class import Evaluation, evaluate_episodes
from kedge.evaluation.naming import evaluate_naming
from kedge.evaluation.results import Score
from kedge.methods.base import Memory
from kedge.methods.registry import ALIGNMENTS, PRESETS, Method, parse_method
from kedge.models.embedding import CUSTOM
from kedge.models.model import Model
from kedge.models.start import given_network, start_model
from kedge.training.round import ANCHORS_ONLY, check_tasks_per_step
from kedge.training.step import build_kernels_in_background, default_device
from kedge.training.user_round import limit_shots_to_memory, train_user_round
from kedge.training.user_settings import (
    Images,
    compare_with_known_classes,
    default_method,
    explain_size,
    named_after,
    only_anchors,
    open_for_training,
    resolve_settings,
    split_images,
    summarize,
    summarize_update,
    tell_inferred,
)
from kedge.utils import distributed, progress
from kedge.utils.config_io import from_dict, option_name, validated
from kedge.utils.seeding import torch_seed


@progress.shown
def train(
    images: Images,
    *,
    val: Images | None = None,
    backbone: str | nn.Module | None = None,
    checkpoint: str | Path | None = None,
    classes: ClassFolders | None = None,
    same_class: SameClassArgument = None,
    strict: bool = False,
    private: bool | Privacy = False,
    **options: Any,
) -> Model:
    """A model trained on the first images (round 0).

    Args:
        images: a path, an ImageTable, a pair of arrays (images, labels), a dataset or a loader; see
            `open_images`. If they come split, the part "train" is used.
        val: images to validate on; by default some of `images` are set apart.
        backbone: efficientnet-lite0 (pretrained), timm:NAME (with `weights`), conv4, resnet12,
            resnet12-wide, or a module from images to features, of which weights with
            `requires_grad=False` stay as they are. By default the pretrained one for photographs.
        checkpoint: a file that lets a stopped call be repeated and continue.
        classes: which of nested folders are the classes, "top", "leaf" or "path"; see
            `open_images`. Where several may be, it has to be given.
        same_class: {"A": "B"} gives the class A the name B; "all" says that names which are almost
            the same are the same classes, "none" that they are not. If there are such names, it has
            to be given.
        strict: refuse images with any problem that can spoil a model.
        private: leave out where the images came from, and refuse classes of few images; with
            `kedge.Privacy(noise=…)`, add noise to the class means. docs/privacy.md says what a
            model file reveals all the same.
        options: n_way, n_shot, n_query, epochs, episodes, val_episodes, lr, annealing, patience,
            train, batch_norm, dropout, ema, sampling, tasks_per_step, seed, image_size, width,
            weights, head, temperature: see `TrainOptions`. What is not given is inferred from the
            images, and told with the reason.
    """
    module = backbone if isinstance(backbone, nn.Module) else None
    named = {} if backbone is None or module is not None else {"backbone": backbone}
    settings, privacy = options_from(TrainOptions, {**named, **options}), Privacy.of(private)
    _prepare(settings)
    network = given_network(settings, module, settings.image_size)
    delivery = replace(Delivery.of(images, classes, same_class, strict), ask=True)
    opened = named_after(delivery, open_for_training(delivery, settings, network))
    table, val_part = select_train_part(opened, val is None)
    height, width = table.images.shape[2:]
    require(height == width, f"{table.source}: images are {height}×{width}, not square.")
    data = summarize(table, settings, network)
    reasons = explain_size(delivery, table, data, network) if settings.image_size is None else []
    backbone_config, why = BackboneConfig(CUSTOM), list[str]()
    if module is None:
        backbone_config, why = infer_backbone(settings, data)
        if network is None:
            network = given_network(backbone_config, None, table.image_size)
    data = replace(data, pretrained=network is not None and network.is_pretrained)
    head, why_head = infer_head(settings, data)
    split = split_images(table, delivery.to_validate(val, table.classes), val_part, settings, data)
    start_seed = torch_seed("weights", settings.seed)
    start = start_model(backbone_config, head, split.train, start_seed, network)
    config = resolve_settings(table, split, settings, data, [*reasons, *why, *why_head])
    base = Method("base", "new")
    model = train_user_round(start, split, base, config, checkpoint, table, privacy=privacy)
    return _tell_outcome(model)


@progress.shown
def update(
    model: Model,
    images: Images,
    *,
    method: str | None = None,
    val: Images | None = None,
    checkpoint: str | Path | None = None,
    memory: Memory | None = None,
    classes: ClassFolders | None = None,
    same_class: SameClassArgument = None,
    strict: bool = False,
    private: bool | Privacy = False,
    **options: Any,
) -> Model:
    """The model after one more round, from new classes only; `model` itself is not changed.

    Args:
        method: IDA, IDA+, DFA, EIML, EWC or FT, with options: "IDA lambda=5". By default IDA+.
        memory: what `remember` returned after the last round; EIML and EWC need it.
        options: n_way, n_shot, n_query, epochs, episodes, val_episodes, lr, annealing, patience,
            train, batch_norm, dropout, ema, sampling, tasks_per_step, seed: see `RoundOptions`.
            What is not given is inferred.

    `images`, `val`, `checkpoint`, `classes` and `strict` are as in `train`. So is `same_class`,
    which is also needed for names that are almost those of classes that the model knows, and
    `private`; an update of a private model is always private.
    """
    _check_model(model)
    settings = options_from(RoundOptions, options)
    privacy = model.privacy if isinstance(private, bool) and model.privacy else Privacy.of(private)
    chosen = parse_method(method or default_method(settings))
    methods = " or ".join(("FT", *ALIGNMENTS, *PRESETS))
    require(chosen.trains_on == "new", f"'{method}' cannot update a model; use {methods}.")
    settings = _with_settings_of(chosen, settings)
    _prepare(settings)
    delivery = replace(Delivery.of(images, classes, same_class, strict), ask=True)
    table, val_part = select_train_part(named_after(delivery, model.open(delivery)), val is None)
    reasons = compare_with_known_classes(model, table)
    data = summarize_update(model)
    if not only_anchors(settings, data):
        if method is None:
            reasons.append(f"--method '{chosen.label}': made for many updates")
        require(
            len(table.classes) > 1,
            f"{table.source}: a round needs at least 2 classes, and there is only 1. Wait for "
            "more, or learn its anchor alone with --epochs 0.",
        )
    split = split_images(table, delivery.to_validate(val, table.classes), val_part, settings, data)
    split = limit_shots_to_memory(split, chosen, memory or {}, settings)
    if memory and chosen.alignment is not None:
        chosen.alignment.check_memory(memory, model)
    config = resolve_settings(table, split, settings, data, reasons)
    updated = train_user_round(model, split, chosen, config, checkpoint, table, memory, privacy)
    return _tell_outcome(updated)


def _with_settings_of(method: Method, options: RoundOptions) -> RoundOptions:
    """The options with what the method itself sets. Raises if they ask for something else."""
    for name, value in method.schedule.items():
        given = getattr(options, name)
        require(
            given in (None, value),
            f"{option_name(name)} is {given}, but the method {method.label} has {name}={value}; "
            f"leave {option_name(name)} out, or give {name}={given} as an option of the method.",
        )
    return replace(options, **method.schedule)


def load(path: str | Path, backbone: nn.Module | None = None) -> Model:
    """The model in a file, or in a folder that `write_hub_folder` wrote. A backbone of your own has
    to be passed in again."""
    return Model.load(path, backbone)


@progress.shown
def remember(
    model: Model,
    images: Images,
    *,
    method: str,
    before: Memory | None = None,
    seed: int = 0,
    classes: ClassFolders | None = None,
    same_class: SameClassArgument = None,
) -> Memory:
    """What a method must keep of the images of the model's last round, before they are deleted.

    Exemplars for EIML, the Fisher information for EWC, nothing for other methods. `before` is what
    was kept after the earlier rounds; `classes` and `same_class` are as in `train`.
    """
    distributed.init()
    _check_model(model)
    seed = TrainConfig(seed=seed).seed  # validated
    chosen = parse_method(method)
    if chosen.alignment is None or not chosen.remembers:
        return {}  # without reading any image
    delivery = Delivery.of(images, classes, same_class)
    table, _ = select_train_part(model.open(delivery), validate=False)
    known = set(model.classes)
    for name in table.classes:
        require(
            name in known,
            f"{table.source}: the model has not learned class '{name}'; give the images of its "
            "last round.",
        )
    # A class that was too small to train on cannot be rehearsed either. A round that only made
    # anchors had no episodes.
    shapes = [entry.config["episode"] for entry in model.lineage if entry.method != ANCHORS_ONLY]
    need = from_dict(EpisodeShape, shapes[-1]).min_images if shapes else 2
    counts = zip(table.classes, table.counts.tolist(), strict=True)
    names = [name for name, count in counts if count >= need]
    if not names and model.lineage[-1].method == ANCHORS_ONLY:
        return before or {}
    require(
        bool(names),
        f"{table.source}: no class has the {need} images of an episode of the model's last round; "
        "give all images of that round.",
    )
    pool = Pool.all("delivered", table, names)
    kept = chosen.alignment.remember(model.to(default_device()), pool, before or {}, seed)
    return distributed.broadcast({name: tensor.cpu() for name, tensor in kept.items()})


@progress.shown
def evaluate(
    model: Model,
    images: Images,
    *,
    known: bool = False,
    n_episodes: int = 2000,
    seed: int = 0,
    classes: ClassFolders | None = None,
    same_class: SameClassArgument = None,
    **options: Any,
) -> Score:
    """Accuracy in % on few-shot episodes of these images' classes, with its 95% interval.

    With `known`, instead the accuracy of naming these images among all classes that the model has
    learned, without examples; images of other classes are left out. `evaluate_by_class` says more.

    Args:
        classes, same_class: how to read the images; see `open_images`.
        options: n_way, n_shot, n_query of the test episodes; 5-way 5-shot where images suffice.
    """
    reading = {"classes": classes, "same_class": same_class}
    given = {"known": known, "n_episodes": n_episodes, "seed": seed, **reading, **options}
    return evaluate_by_class(model, images, **given).score


@progress.shown
def evaluate_by_class(
    model: Model,
    images: Images,
    *,
    known: bool = False,
    n_episodes: int = 2000,
    seed: int = 0,
    classes: ClassFolders | None = None,
    same_class: SameClassArgument = None,
    **options: Any,
) -> Evaluation:
    """The accuracy that `evaluate` gives, that of each class, and the classes that are confused.

    Takes the same arguments. With `known`, also by the round in which a class was learned.
    """
    _check_model(model)
    settings = options_from(EpisodeOptions, options)
    seed = validated("--seed", Seed, seed)
    n_episodes = validated("--n-episodes", TestEpisodes, n_episodes)
    table = select_test_part(model.open(Delivery.of(images, classes, same_class)))
    on_device = model.to(default_device())
    if known:
        return evaluate_naming(on_device, table)
    pool, shape, reasons = select_test_pool(table, settings)
    check_n_episodes("--n-episodes", n_episodes, pool, shape)
    tell_inferred(table, reasons)
    return evaluate_episodes(on_device, EvalSpec("test", pool, shape), n_episodes, seed)


def _tell_outcome(model: Model) -> Model:
    """Show what the last round did; the commands show it in their own output."""
    entry = model.lineage[-1]
    if entry.outcome is not None and not progress.in_command():
        from kedge.report.outcome import outcome_sentence, outcome_table
        from kedge.report.render import to_rich

        if (table := outcome_table(entry)) is not None:
            progress.show(to_rich(table))
        progress.note(outcome_sentence(entry))
    return model


def _check_model(model: object) -> None:
    require(
        isinstance(model, Model),
        f"model is a {type(model).__name__}: give a kedge.Model, as kedge.load(FILE) reads.",
    )


def _prepare(options: RoundOptions) -> None:
    """Join other processes, reject what cannot work, and build kernels while images load."""
    distributed.init()
    check_tasks_per_step(options.tasks_per_step)
    build_kernels_in_background()
