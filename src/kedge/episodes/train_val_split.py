"""Own images shared out: what is practised on, what measures progress, and what is too little.

Progress on classes that are not trained on says most, but costs classes, and of these a model
cannot have enough: of 10 kinds of drawings, to set 5 apart costs 2 to 9 points on unseen kinds, of
20 about 1, of 30 none (LOG.md). So of few classes, some images of each are set apart instead.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from kedge.config import EpisodeShape, require
from kedge.data.decode import ImageSpec
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.defaults import (
    USUAL,
    AnyEpisode,
    Fit,
    Reasons,
    choose_ways,
    fit_images,
    most,
    say_shape,
)
from kedge.episodes.sampler import check_pool
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.seeding import generator
from kedge.utils.text import counted

MANY = 30  # classes, of which some can be spared
MOST_VAL = 64  # classes that validate
MOST_VAL_IMAGES = 2000  # all of them are looked at after every epoch
INSTEAD = "to measure progress (--val gives others)"


@dataclass(frozen=True)
class TrainValSplit:
    """The images of a delivery by their use, and the episodes that they suffice for."""

    train: Pool
    val: Pool
    shape: EpisodeShape
    reasons: Reasons


def split_train_val(
    table: ImageTable, val: ImageTable | None, wish: AnyEpisode, seed: int
) -> TrainValSplit:
    """With images to validate on, all others train; without, some are set apart.

    Classes with too few images for an episode are neither practised on nor validated with.
    """
    _check_classes(table, wish)
    if val is not None:
        return _with_val(table, val, wish)
    fit = fit_images([table.counts.numpy()], wish)
    many = fit is not None and len(fit.usable[0]) >= max(MANY, 4 * _ways(wish))
    # At last with small episodes, where large ones would leave too few classes.
    small = functools.partial(_by_image, n_way=_ways(wish))
    for share in (_by_class, _by_image, small) if many else (_by_image, _by_class, small):
        if (shared := share(table, wish, seed)) is not None:
            return shared
    raise _too_few(table, wish, twice=True)


def test_pool(table: ImageTable, wish: AnyEpisode) -> tuple[Pool, EpisodeShape, Reasons]:
    """The usual episodes, as far as there are classes and images; reasons for what is unusual."""
    _check_classes(table, wish)
    fit = fit_images([table.counts.numpy()], wish, _ways(wish))
    if fit is None:
        raise _too_few(table, wish)
    pool = _pool("test", table, fit.usable[0])
    ways = choose_ways(wish, fit.need, len(pool.classes), USUAL.ways[1])
    shape = EpisodeShape(ways, fit.n_shot, fit.n_query)
    unusual = [
        f"{option} {value}: {why}"
        for option, wished, value, usual, why in (
            ("--n-way", wish.n_way, ways, USUAL.n_way, f"there are {len(pool.classes)} classes"),
            ("--n-shot", wish.n_shot, shape.n_shot, USUAL.n_shot, _few(table, fit)),
            ("--n-query", wish.n_query, shape.n_query, USUAL.n_query, _few(table, fit)),
        )
        if wished is None and value != usual
    ]
    return pool, shape, unusual + _left_out(table, fit, "test with")


def test_part(table: ImageTable) -> ImageTable:
    """The part "test" of images that come split (or "val"), otherwise all of them."""
    part = next((part for part in ("test", "val") if part in table.parts), None)
    if part is None:
        return table
    progress.note(f"{table.source}: of its parts, {part} is used")
    return _part(table, table.in_part(part))


def train_part(table: ImageTable, validate: bool = True) -> tuple[ImageTable, ImageTable | None]:
    """The part "train" of images that come split, and what of "val" has classes of its own, if
    that is to validate."""
    if "train" not in table.parts:
        return table, None
    training = _part(table, table.in_part("train"))
    trained = set(training.classes)
    known = torch.tensor([name in trained for name in table.classes])
    others = table.in_part("val") & ~known[table.labels]
    validates = validate and bool(others.any())
    progress.note(
        f"{table.source}: of its parts, train is trained on"
        + (" and val validates" if validates else "")
    )
    return training, _part(table, others) if validates else None


def _part(table: ImageTable, chosen: Bool[Tensor, " n"]) -> ImageTable:
    """Images that are no longer parts of a whole."""
    return replace(table.only(chosen.nonzero().flatten()), parts=(), part=None)


def open_validation(val: object, table: ImageTable) -> ImageTable | None:
    if val is None:
        return None
    look = ImageSpec(table.image_size, table.n_channels, table.fit, table.inverted)
    opened = open_images(val, look=look)
    theirs, ours = ("×".join(map(str, t.images.shape[1:])) for t in (opened, table))
    require(
        theirs == ours,
        f"{opened.source}: images to validate on are {theirs} (channels, height, width), but those "
        f"to train on are {ours}.",
    )
    parts = ["val"] if "val" in opened.parts else [p for p in opened.parts if p != "test"]
    if not parts or parts == list(opened.parts):
        return opened
    progress.note(f"{opened.source}: of its parts, {' and '.join(parts)} validates")
    chosen = functools.reduce(torch.logical_or, (opened.in_part(part) for part in parts))
    return _part(opened, chosen)


def _with_val(table: ImageTable, val: ImageTable, wish: AnyEpisode) -> TrainValSplit:
    _check_classes(val, wish)
    tables = (table, val)
    fit = fit_images([each.counts.numpy() for each in tables], wish, _ways(wish))
    if fit is None:
        need = _least(wish)
        raise _too_few(min(tables, key=lambda each: int((each.counts >= need).sum())), wish)
    train, validation = map(_pool, ("training", "validation"), tables, fit.usable)
    why = f"validation: {val.source} measures progress"
    return _shared(table, train, validation, fit, wish, why)


def _by_class(table: ImageTable, wish: AnyEpisode, seed: int) -> TrainValSplit | None:
    fit = fit_images([table.counts.numpy()], wish)
    if fit is None:
        return None
    usable, ways = fit.usable[0], _ways(wish)
    n_val = max(ways, min(USUAL.ways[1], len(usable) // 2), min(MOST_VAL, len(usable) // 5))
    if len(usable) - n_val < ways:
        return None
    order = generator("validation classes", seed).permutation(len(usable))
    rest, chosen = (np.sort(usable[part]) for part in (order[n_val:], order[:n_val]))
    val = _pool("validation", table, chosen, seed, max(fit.need, MOST_VAL_IMAGES // n_val))
    validation = f"validation: {n_val} of the classes are set apart {INSTEAD}"
    return _shared(table, _pool("training", table, rest), val, fit, wish, validation)


def _by_image(
    table: ImageTable, wish: AnyEpisode, seed: int, n_way: int = 1
) -> TrainValSplit | None:
    counts = table.counts.numpy()
    # Rather a quarter of a class than a third or half of it, where the episode leaves the choice.
    part = np.maximum(counts // 4, np.minimum(counts // 3, 2 * USUAL.shots[1]))
    fit = fit_images([part], wish, n_way) or fit_images([counts // 2], wish, n_way)
    if fit is None:
        return None
    usable = np.flatnonzero(counts // 2 >= fit.need)
    if len(usable) < _ways(wish):
        return None
    fit = Fit(fit.n_shot, fit.n_query, (usable,))
    largest = max(fit.need, MOST_VAL_IMAGES // len(usable))
    n_val = np.clip(counts // 4, fit.need, largest)
    drawn = [
        _drawn(table, i, seed).split([n_val[i], counts[i] - n_val[i]]) for i in usable.tolist()
    ]
    names = tuple(table.classes[i] for i in usable)
    val, train = (
        Pool(name, table, names, tuple(rows.sort().values for rows in part))
        for name, part in zip(("validation", "training"), zip(*drawn, strict=True), strict=True)
    )
    validation = (
        f"validation: {len(val)} images, some of each class, are set apart {INSTEAD}; the classes "
        "are too few to spare any"
    )
    return _shared(table, train, val, fit, wish, validation)


def _shared(
    table: ImageTable, train: Pool, val: Pool, fit: Fit, wish: AnyEpisode, validation: str
) -> TrainValSplit:
    ways = choose_ways(wish, fit.need, min(len(train.classes), len(val.classes)))
    shape = EpisodeShape(ways, fit.n_shot, fit.n_query)
    check_pool(train, shape)
    check_pool(val, shape)
    why = "as usual" if fit.n_shot == USUAL.n_shot else _few(table, fit)
    small = "practise on; the model knows such a class by its anchor alone"
    left_out = _left_out(table, fit, small)
    return TrainValSplit(train, val, shape, [*say_shape(wish, shape, why), validation, *left_out])


def _pool(
    name: str,
    table: ImageTable,
    classes: Int64[np.ndarray, " _"],
    seed: int = 0,
    largest: int | None = None,
) -> Pool:
    """Of each class all images, or at most so many."""
    rows = (_drawn(table, i, seed)[:largest].sort().values for i in classes.tolist())
    return Pool(name, table, tuple(table.classes[i] for i in classes), tuple(rows))


def _drawn(table: ImageTable, i: int, seed: int) -> Int64[Tensor, " _"]:
    """The rows of a class in an order that depends on the seed and its name alone."""
    rows = table.rows_of(table.classes[i])
    order = generator("validation images", seed, table.classes[i]).permutation(len(rows))
    return rows[torch.from_numpy(order)]


def _ways(wish: AnyEpisode) -> int:
    """How many classes there must be."""
    return 2 if wish.n_way is None else most(wish.n_way)


def _least(wish: AnyEpisode) -> int:
    """How many images of each class there must be."""
    return most(wish.n_shot or 1) + (wish.n_query or 1)


def _few(table: ImageTable, fit: Fit) -> str:
    return f"few, since a class has {int(table.counts.numpy()[fit.usable[0]].min())} images"


def _left_out(table: ImageTable, fit: Fit, what_for: str) -> Reasons:
    counts, n = table.counts.numpy(), len(table.classes) - len(fit.usable[0])
    if n == 0:
        return []
    few = int(counts.argmin())
    which = f"{n} of {len(counts)} classes (such as '{table.classes[few]}' with {counts[few]}) have"
    if n == 1:
        which = f"class '{table.classes[few]}' ({counts[few]}) has"
    return [f"{which} too few images to {what_for}"]


def _check_classes(table: ImageTable, wish: AnyEpisode) -> None:
    n, ways = len(table.classes), _ways(wish)
    remedy = "add classes" if wish.n_way is None else "add classes or lower --n-way"
    require(
        n >= ways,
        f"{table.source}: there {'is 1 class' if n == 1 else f'are {n} classes'}, but an episode "
        f"needs {ways} to tell apart: {remedy}.",
    )


def _too_few(table: ImageTable, wish: AnyEpisode, twice: bool = False) -> KedgeError:
    """What is missing, as the owner of the images counts them."""
    counts = table.counts.numpy()
    shots, queries = most(wish.n_shot or 1), wish.n_query or 1
    need, largest = _least(wish), int(counts.argmax())
    given = wish.n_shot is not None or wish.n_query is not None
    remedy = "add images, or lower --n-shot or --n-query" if given else "add images"
    said = (
        f"{table.source}: the largest class, '{table.classes[largest]}', has "
        f"{counted(int(counts[largest]), 'image')}, but an episode needs {need} of each class "
        f"({counted(shots, 'shot')} + {counted(queries, 'query', 'queries')})"
    )
    if counts[largest] < need:
        return KedgeError(f"{said}: {remedy}.")
    again = " and, of so few classes, as many again to validate with" if twice else ""
    all_told = 2 * need if twice else need
    fewer = "" if wish.n_way is None else " or lower --n-way"
    return KedgeError(
        f"{said}{again}; {all_told} images have {int((counts >= all_told).sum())} of the "
        f"{len(counts)} classes: {remedy}, or add classes{fewer}."
    )
