"""The commands as functions: train once, update with each delivery, classify from a few examples.

base = kedge.train("first-delivery/")
better = kedge.update(base, "second-delivery/")   # the first is not needed, and not read
better.classifier(support).predict(images)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
    checked,
    from_dict,
    require,
)
from kedge.data.open import (
    is_embedded,
    is_store,
    open_images,
)
from kedge.data.parallel_decode import LARGEST
from kedge.data.pools import whole
from kedge.data.table import ImageTable
from kedge.episodes.defaults import (
    AnyEpisode,
    AnySchedule,
    BackboneWish,
    EpisodeWish,
    ScheduleWish,
    choose_backbone,
    choose_schedule,
)
from kedge.episodes.train_val_split import (
    TrainValSplit,
    open_validation,
    split_train_val,
    test_part,
    test_pool,
    train_part,
)
from kedge.evaluation import accuracy
from kedge.evaluation.results import Score
from kedge.methods.base import Memory
from kedge.methods.registry import (
    ALIGNMENTS,
    Method,
    parse_method,
)
from kedge.models.model import (
    CUSTOM,
    Model,
    ModelConfig,
    new_model,
)
from kedge.training.round import check_batch
from kedge.training.step import default_device, load_compiler_in_background
from kedge.training.user_round import one_round, rehearsable
from kedge.utils import distributed, progress
from kedge.utils.seeding import torch_seed

Images = Any  # whatever `open_images` takes: a path, a table, arrays, a data set
MADE_UP = re.compile(r"(\w+ )?class \d{4,}")  # names of classes that came without any
NAMED_AT_ONCE = 1000  # images: with thousands of classes each has thousands of scores
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "model": ((Model,), "a kedge.Model, as kedge.Model.load(FILE) reads it"),
    "episode": (
        (EpisodeWish, EpisodeShape),
        "a kedge.EpisodeWish, which leaves open what is not given, or a kedge.EpisodeShape",
    ),
    "schedule": (
        (ScheduleWish, Schedule),
        "a kedge.ScheduleWish, which leaves open what is not given, or a kedge.Schedule",
    ),
}
NO_WISH, AS_USUAL = EpisodeWish(), ScheduleWish()


def train(
    images: Images,
    *,
    val: Images | None = None,
    backbone: str | nn.Module | None = None,
    width: int | None = None,
    head: str = "prototype",
    temperature: float = 2.0,
    image_size: int | None = None,
    episode: AnyEpisode = NO_WISH,
    schedule: AnySchedule = AS_USUAL,
    seed: int = 0,
    checkpoint: str | Path | None = None,
) -> Model:
    """Round 0: a model from the first images. With a checkpoint, a stopped call can be repeated.

    Images are a path, a table, a pair of arrays (images, labels), or a data set: see `open_images`.
    Where they come split, the part "train" is trained on and "test" is left alone. What is not
    given is chosen to suit them: see `kedge.episodes.defaults`.
    """
    distributed.start()
    seed = _check(episode, schedule, seed)
    if image_size is not None:
        image_size = checked("--image-size", int, image_size)
    load_compiler_in_background()
    table, apart = train_part(_called(images, open_images(images, image_size)), val is None)
    height, width_px = table.images.shape[2:]
    require(height == width_px, f"{table.source}: images are {height}×{width_px}, not square.")
    why = _why_size(images, table) if image_size is None else []
    module = backbone if isinstance(backbone, nn.Module) else None
    described = BackboneConfig(CUSTOM)
    require(
        module is None or width is None,
        f"width is {width}: it is that of a backbone which kedge makes, and a module of your own "
        "has its own; leave it out.",
    )
    if module is not None and not all(weight.requires_grad for weight in module.parameters()):
        progress.note(
            "some weights of the backbone are frozen (requires_grad is False): a round trains all "
            "of them, these too"
        )
    if not isinstance(backbone, nn.Module):
        wish, n_images = BackboneWish(backbone, width), len(table)
        described, reasons = choose_backbone(wish, n_images, table.image_size, _on_gpu())
        why += reasons
    shape = ModelConfig(
        described,
        HeadConfig(head, temperature),
        table.n_channels,
        table.image_size,
        fit=table.fit,
        inverted=table.inverted,
    )
    shared = _shared(table, val, apart, episode, seed)
    start = new_model(shape, shared.train, torch_seed("weights", seed), module)
    config = _settled(table, shared, schedule, seed, why)
    return one_round(start, shared, Method("base", "new"), config, checkpoint, table)


def update(
    model: Model,
    images: Images,
    *,
    method: str = "IDA",
    val: Images | None = None,
    episode: AnyEpisode = NO_WISH,
    schedule: AnySchedule = AS_USUAL,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    memory: Memory | None = None,
) -> Model:
    """One more round from new classes only. The model that is given is not changed.

    Some methods (EIML, EWC) need what `remember` kept when the round before had ended. What is not
    given is chosen to suit the new images.
    """
    distributed.start()
    _check_kinds(model=model)
    seed = _check(episode, schedule, seed)
    chosen = parse_method(method)
    require(
        chosen.trains_on == "new",
        f"'{method}' cannot update a model from new images alone; use FT or "
        f"{' or '.join(ALIGNMENTS)}.",
    )
    load_compiler_in_background()
    table, apart = train_part(_called(images, model.open(images)), val is None)
    require(
        len(table.classes) > 1,
        f"{table.source}: a round needs at least 2 classes, and here is 1: wait for more. Without "
        "an update, 'kedge predict --support FOLDER --known' names it beside those that are known.",
    )
    back = _coming_back(model, table)
    shared = _shared(table, val, apart, episode, seed)
    shared = rehearsable(shared, chosen, memory or {}, episode)
    if memory and chosen.alignment is not None:
        chosen.alignment.check_memory(memory, model)
    why = []
    if back:
        why.append(
            f"{len(back)} of {len(table.classes)} classes are known to the model: they keep their "
            "names, and these images add to what is remembered of them"
        )
    config = _settled(table, shared, schedule, seed, why)
    return one_round(model, shared, chosen, config, checkpoint, table, memory)


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
    distributed.start()
    _check_kinds(model=model)
    seed = TrainConfig(seed=seed).seed  # checked as that of a round is
    chosen = parse_method(method)
    if chosen.alignment is None or not chosen.remembers:
        return {}  # and no image is read
    table, _ = train_part(model.open(images), validate=False)
    missing = [name for name in table.classes if name not in model.classes]
    require(
        not missing,
        f"{table.source}: the model has not learned class '{(missing or ['?'])[0]}'; give the "
        "images of its last round.",
    )
    # A class that was too small to practise on cannot be practised again.
    shape = from_dict(EpisodeShape, model.lineage[-1].config["episode"])
    need = shape.shots[1] + shape.n_query
    enough = (table.counts >= need).tolist()
    names = [name for name, fits in zip(table.classes, enough, strict=True) if fits]
    require(
        bool(names),
        f"{table.source}: no class has the {need} images of an episode of the model's last round; "
        "give all images of that round.",
    )
    on_device, pool = model.to(default_device()), whole("delivered", table, names)
    kept = chosen.alignment.remember(on_device, pool, before or {}, seed)
    return distributed.broadcast({name: tensor.cpu() for name, tensor in kept.items()})


def evaluate(
    model: Model,
    images: Images,
    *,
    known: bool = False,
    episode: AnyEpisode = NO_WISH,
    n_episodes: int = 2000,
    seed: int = 0,
) -> Score:
    """How well the model tells these classes apart from a few examples of each, in per cent.

    With `known`, how many of these images it names right among all classes that it knows, without
    any example; images of other classes are left aside.
    """
    _check_kinds(model=model, episode=episode)
    seed, n_episodes = checked("--seed", int, seed), checked("--n-episodes", int, n_episodes)
    require(seed >= 0, f"--seed is {seed}: it must not be negative.")
    require(n_episodes >= 2, f"--n-episodes is {n_episodes}: an interval needs at least 2.")
    table = test_part(model.open(images))
    on_device = model.to(default_device())
    if known:
        return _naming(on_device, table)
    pool, shape, unusual = test_pool(table, episode)
    _say(table, unusual)
    test = accuracy.EvalSpec("test", pool, shape)
    return Score.of(accuracy.evaluate(on_device, [test], n_episodes, seed)["test"])


def _naming(model: Model, table: ImageTable) -> Score:
    place = {name: i for i, name in enumerate(model.classes)}
    names = [name for name in table.classes if name in place]
    require(
        bool(names),
        f"{table.source}: the model knows none of these {len(table.classes)} classes, such as "
        f"'{table.classes[0]}'; 'kedge show' lists those that it knows.",
    )
    pool = whole("test", table, names)
    truth = torch.tensor([place[name] for name in names]).repeat_interleave(pool.counts)
    points = model.classifier().representatives
    features = torch.cat(model.class_features(pool)).split(NAMED_AT_ONCE)
    said = torch.cat([model.head.logits(some, points).argmax(1).cpu() for some in features])
    return Score.of_right(said == truth)


def _check(episode: AnyEpisode, schedule: AnySchedule, seed: int) -> int:
    """What can never work is said before any image is read. Returns the seed as a plain number."""
    _check_kinds(episode=episode, schedule=schedule)
    given = {name: value for name, value in asdict(episode).items() if value is not None}
    config = TrainConfig(EpisodeShape(**given), choose_schedule(schedule, 2, gpu=False)[0], seed)
    check_batch(config.schedule)
    return config.seed


def _check_kinds(**given: object) -> None:
    for name, value in given.items():
        kinds, give = KINDS[name]
        require(isinstance(value, kinds), f"{name} is a {type(value).__name__}: give {give}.")


def _called(images: Images, table: ImageTable) -> ImageTable:
    """By the name that its owner has given; what is large may lie in a file that is temporary."""
    return replace(table, source=str(images)) if isinstance(images, str | Path) else table


def _why_size(images: Images, table: ImageTable) -> list[str]:
    """The reader has chosen, by `decoding.suited`, unless the images had one size already."""
    size = table.image_size
    if isinstance(images, ImageTable):
        return []
    if isinstance(images, str | Path) and (is_embedded(images) or is_store(Path(images))):
        return []
    if size == LARGEST:
        why = "larger images are reduced to that"
    elif table.inverted:
        why = "what is usual for these characters"
    else:
        why = "about as large as the images are"
    return [f"--image-size {size}: {why}"]


def _shared(
    table: ImageTable, val: Images | None, apart: ImageTable | None, episode: AnyEpisode, seed: int
) -> TrainValSplit:
    given = open_validation(val, table)
    shared = split_train_val(table, given or apart, episode, seed)
    trained = set(shared.train.classes)
    both = [name for name in shared.val.classes if name in trained]
    if given is None or not both:
        return shared
    # Two classes that only have a number, and the same one, are hardly the same.
    if not all(map(MADE_UP.fullmatch, both)) or given.fingerprint == table.fingerprint:
        progress.note(
            f"{given.source}: {len(both)} of {len(shared.val.classes)} classes that validate are "
            "trained on; if these are the same images, the number flatters"
        )
    return shared


def _settled(
    table: ImageTable, shared: TrainValSplit, schedule: AnySchedule, seed: int, why: Sequence[str]
) -> TrainConfig:
    """All settings of a round, and every choice told with its reason."""
    chosen, reasons = choose_schedule(schedule, len(shared.train.classes), _on_gpu())
    _say(table, [*why, *shared.reasons, *reasons])
    return TrainConfig(shared.shape, chosen, seed)


def _say(table: ImageTable, reasons: Sequence[str]) -> None:
    if not reasons:
        return
    least, most = int(table.counts.min()), int(table.counts.max())
    counts = f"{least}" if least == most else f"{least} to {most}"
    look = f"taken at {table.image_size} px in {'colour' if table.n_channels == 3 else 'grey'}"
    progress.note(
        f"{table.source}: {len(table.classes)} classes of {counts} images, {look}. Chosen for "
        "these, unless an option says otherwise:"
    )
    for reason in reasons:
        progress.note(f"  {reason}")


def _on_gpu() -> bool:
    return default_device().type == "cuda"


def _coming_back(model: Model, table: ImageTable) -> list[str]:
    """The classes that the model knows already."""
    known = set(model.classes)
    back = [name for name in table.classes if name in known]
    alike = {name.casefold(): name for name in model.classes}
    similar = [n for n in table.classes if n not in known and n.casefold() in alike]
    if similar:
        name, more = similar[0], f" (and {len(similar) - 1} more)" if similar[1:] else ""
        progress.note(
            f"{table.source}: '{name}'{more} becomes a class of its own beside "
            f"'{alike[name.casefold()]}', which the model knows; if they are the same, give them "
            "the same name"
        )
    require(
        len(back) < len(table.classes) or not all(map(MADE_UP.fullmatch, back)),
        f"{table.source}: the classes have no names, only numbers, and all of these numbers are "
        "those of classes that the model knows, so nobody knows whether these are the same; give "
        "them names, in the files or as in (images, labels, names).",
    )
    return back
