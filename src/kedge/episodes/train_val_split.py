"""A user's images split into training and validation, with the episodes that they suffice for.

Validation on classes that are not trained on says most, but costs classes. Of 10 kinds of
drawings, setting 5 apart costs 2 to 9 points on unseen kinds, of 20 about 1, of 30 nothing
(LOG.md). So where classes are few, some images of each class validate instead.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from kedge.config import DEFAULT_SHAPE, EpisodeOptions, EpisodeShape
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import check_pool
from kedge.episodes.shape_fit import (
    ShapeFit,
    explain_shape,
    fit_shape,
    fit_ways,
    lower_queries,
)
from kedge.errors import KedgeError, require
from kedge.utils import progress
from kedge.utils.config_io import option_name
from kedge.utils.seeding import generator
from kedge.utils.text import pluralize

MANY_CLASSES = 30  # from here on some classes are set apart for validation
MAX_VAL_CLASSES = 64
MAX_VAL_IMAGES = 2000  # all of them are embedded after every epoch
HELD_BACK = 5  # at most one of so many images of a class tells how well it is named
MAX_HELD_BACK = 1000  # of a delivery
MIN_TO_HOLD_BACK = 10  # images of a class
FOR_VALIDATION = "to measure progress (--val gives others)"


@dataclass(frozen=True)
class TrainValSplit:
    """The images that train, those that validate, and the episodes that both suffice for."""

    train: Pool
    val: Pool
    shape: EpisodeShape
    reasons: list[str]
    held_back: Pool  # images that do not train, to measure how well their classes are named

    @property
    def few_shot(self) -> Pool:
        """Classes that do not train at all, to measure how well new ones are learned; may be
        empty."""
        trained = set(self.train.classes)
        chosen = [i for i, name in enumerate(self.val.classes) if name not in trained]
        return self.val.select("held back", chosen)

    @classmethod
    def without_validation(cls, table: ImageTable) -> TrainValSplit:
        """All images, for a round that only makes anchors."""
        everything, nothing = Pool.all("training", table), Pool("validation", table, (), ())
        return cls(everything, nothing, EpisodeShape(), [], _some(everything))


def split_train_val(
    table: ImageTable,
    val: ImageTable | None,
    options: EpisodeOptions,
    seed: int,
    usual: EpisodeShape = DEFAULT_SHAPE,
) -> TrainValSplit:
    """Training and validation pools, and episodes of the usual shape where images suffice. With a
    table to validate on, all other images train.

    Classes with too few images for an episode are in neither pool.
    """
    _require_classes(table, options)
    if val is not None:
        return _split_with_val(table, val, options, seed, usual)
    fit = fit_shape([table.counts.numpy()], options, usual=usual)
    many = fit is not None and len(fit.usable[0]) >= max(MANY_CLASSES, 4 * options.min_ways)
    # As a last resort small episodes, where large ones would leave too few classes.
    small = functools.partial(_split_by_image, n_way=options.min_ways)
    strategies = (_split_by_class, _split_by_image) if many else (_split_by_image, _split_by_class)
    for split in (*strategies, small):
        if (result := split(table, options, seed, usual)) is not None:
            return result
    raise _too_few_images(table, options, twice=True)


def select_test_pool(
    table: ImageTable, options: EpisodeOptions
) -> tuple[Pool, EpisodeShape, list[str]]:
    """The pool and the shape of test episodes, and reasons where the shape is not the default.

    A class with few images lowers the number of queries rather than being left out.
    """
    _require_classes(table, options)
    counts = table.counts.numpy()
    fit = fit_shape([counts], options, options.min_ways)
    if fit is None:
        raise _too_few_images(table, options)
    fit = lower_queries(fit, counts, options)
    pool = _pool("test", table, fit.usable[0])
    ways = fit_ways(options, fit.images_per_class, len(pool.classes), DEFAULT_SHAPE.ways[1])
    shape = EpisodeShape(ways, fit.n_shot, fit.n_query)
    few, n_classes = _few(table, fit), f"there are {len(pool.classes)} classes"
    unusual = [
        f"{option_name(name)} {getattr(shape, name)}: {why}"
        for name, why in (("n_way", n_classes), ("n_shot", few), ("n_query", few))
        if getattr(options, name) is None and getattr(shape, name) != getattr(DEFAULT_SHAPE, name)
    ]
    return pool, shape, unusual + _left_out(table, fit, "test with")


def select_test_part(table: ImageTable) -> ImageTable:
    """The part "test" (or else "val") of images that come split, otherwise all of them."""
    for part in ("test", "val"):
        if part in table.parts:
            progress.note(f"{table.source}: using its part {part}")
            return _only(table, table.in_part(part))
    return table


def select_train_part(
    table: ImageTable, validate: bool = True
) -> tuple[ImageTable, ImageTable | None]:
    """The part "train" of images that come split, and with `validate` those classes of "val" that
    are not trained on."""
    if "train" not in table.parts:
        return table, None
    training = _only(table, table.in_part("train"))
    trained = set(training.classes)
    known = torch.tensor([name in trained for name in table.classes])
    others = table.in_part("val") & ~known[table.labels]
    val = _only(table, others) if validate and bool(others.any()) else None
    also = ", and part val to validate" if val is not None else ""
    progress.note(f"{table.source}: using its part train to train{also}")
    return training, val


def open_validation(val: object, table: ImageTable) -> ImageTable | None:
    """The images that a user gives to validate on, of the same size as the training images."""
    if val is None:
        return None
    opened = open_images(val, spec=table.image_spec)
    theirs, ours = ("×".join(map(str, t.images.shape[1:])) for t in (opened, table))
    require(
        theirs == ours,
        f"{opened.source}: validation images are {theirs} (channels, height, width), but the "
        f"training images are {ours}.",
    )
    parts = ["val"] if "val" in opened.parts else [p for p in opened.parts if p != "test"]
    if not parts or parts == list(opened.parts):
        return opened
    progress.note(f"{opened.source}: using its part {' and '.join(parts)} to validate")
    return _only(opened, functools.reduce(torch.logical_or, map(opened.in_part, parts)))


def _only(table: ImageTable, chosen: Bool[Tensor, " n"]) -> ImageTable:
    """Some rows of a table, without its parts."""
    return replace(table.subset(chosen.nonzero().flatten()), parts=(), part=None)


def _split_with_val(
    table: ImageTable, val: ImageTable, options: EpisodeOptions, seed: int, usual: EpisodeShape
) -> TrainValSplit:
    _require_classes(val, options)
    tables = (table, val)
    counts = [each.counts.numpy() for each in tables]
    fit = fit_shape(counts, options, options.min_ways, usual)
    if fit is None:
        fewest = min(tables, key=lambda each: int((each.counts >= options.min_images).sum()))
        raise _too_few_images(fewest, options)
    train, validation = map(_pool, ("training", "validation"), tables, fit.usable)
    trained = set(train.classes)
    both = [i for i, name in enumerate(validation.classes) if name in trained]
    if both:
        held_back = _some(validation.select("held back", both))
    else:
        most = MAX_HELD_BACK // len(train.classes)
        train, held_back = _hold_back(train, most, fit.images_per_class, seed)
    reason = f"validation: on {val.source}"
    return _split(table, train, validation, held_back, fit, options, usual, reason)


def _split_by_class(
    table: ImageTable, options: EpisodeOptions, seed: int, usual: EpisodeShape
) -> TrainValSplit | None:
    """Some classes validate."""
    fit = fit_shape([table.counts.numpy()], options, usual=usual)
    if fit is None:
        return None
    usable, ways = fit.usable[0], options.min_ways
    most = min(MAX_VAL_CLASSES, len(usable) // 5)
    n_val = max(ways, min(DEFAULT_SHAPE.ways[1], len(usable) // 2), most)
    if len(usable) - n_val < ways:
        return None
    order = generator("validation classes", seed).permutation(len(usable))
    rest, chosen = (np.sort(usable[part]) for part in (order[n_val:], order[:n_val]))
    largest = max(fit.images_per_class, MAX_VAL_IMAGES // n_val)
    val = _pool("validation", table, chosen, seed, largest)
    most = MAX_HELD_BACK // len(usable)
    train, of_trained = _hold_back(_pool("training", table, rest), most, fit.images_per_class, seed)
    _, of_others = _hold_back(_pool("validation", table, chosen), most, 0, seed)
    held_back = _some(Pool.concat("held back", [of_trained, of_others]))
    reason = f"validation: {n_val} of the classes are set apart {FOR_VALIDATION}"
    return _split(table, train, val, held_back, fit, options, usual, reason)


def _split_by_image(
    table: ImageTable, options: EpisodeOptions, seed: int, usual: EpisodeShape, n_way: int = 1
) -> TrainValSplit | None:
    """Some images of each class validate."""
    counts = table.counts.numpy()
    # A quarter of a class rather than a third or half of it, where the episode leaves the choice.
    part = np.maximum(counts // 4, np.minimum(counts // 3, 2 * DEFAULT_SHAPE.shots[1]))
    fit = fit_shape([part], options, n_way, usual)
    fit = fit or fit_shape([counts // 2], options, n_way, usual)
    if fit is None:
        return None
    need = fit.images_per_class
    usable = np.flatnonzero(counts // 2 >= need)
    if len(usable) < options.min_ways:
        return None
    fit = ShapeFit(fit.n_shot, fit.n_query, (usable,))
    n_val = np.clip(counts // 4, need, max(need, MAX_VAL_IMAGES // len(usable)))
    names = tuple(table.classes[i] for i in usable)
    orders = (_shuffled_rows(table, name, seed) for name in names)
    shuffled = list(zip(n_val[usable].tolist(), orders, strict=True))
    val = Pool("validation", table, names, tuple(rows[:n].sort().values for n, rows in shuffled))
    train = Pool("training", table, names, tuple(rows[n:].sort().values for n, rows in shuffled))
    reason = f"validation: {len(val)} images, some of each class, are set apart {FOR_VALIDATION}"
    return _split(table, train, val, _some(val), fit, options, usual, reason)


def _split(
    table: ImageTable,
    train: Pool,
    val: Pool,
    held_back: Pool,
    fit: ShapeFit,
    options: EpisodeOptions,
    usual: EpisodeShape,
    reason: str,
) -> TrainValSplit:
    n_classes = min(len(train.classes), len(val.classes))
    ways = fit_ways(options, fit.images_per_class, n_classes, usual=usual)
    shape = EpisodeShape(ways, fit.n_shot, fit.n_query)
    check_pool(train, shape)
    check_pool(val, shape)
    why = "default" if fit.n_shot == usual.n_shot else _few(table, fit)
    left_out = _left_out(table, fit, "train on; the model knows such a class by its anchor alone")
    if held_back.table is not val.table or set(held_back.classes) != set(val.classes):
        n = pluralize(len(held_back), "image is", "images are")
        reason += f"; {n} held back to measure what the round does"
    reasons = [*explain_shape(options, shape, why, usual), reason, *left_out]
    return TrainValSplit(train, val, shape, reasons, held_back)


def _hold_back(pool: Pool, most: int, need: int, seed: int) -> tuple[Pool, Pool]:
    """The pool without a few images of each class, of which at least `need` are left; and these, at
    most so many of a class, or one."""
    kept, held = list[Tensor](), list[Tensor]()
    for name, rows in zip(pool.classes, pool.class_rows, strict=True):
        share = len(rows) // HELD_BACK if len(rows) >= MIN_TO_HOLD_BACK else 0
        n = max(0, min(share, max(1, most), len(rows) - need))
        rows = _shuffled_rows(pool.table, name, seed)
        kept.append(rows[n:].sort().values)
        held.append(rows[:n].sort().values)
    train = Pool(pool.name, pool.table, pool.classes, tuple(kept))
    return train, Pool("held back", pool.table, pool.classes, tuple(held))


def _some(pool: Pool) -> Pool:
    """At most MAX_HELD_BACK images of a pool, the same share of each class."""
    stride = -(-len(pool) // MAX_HELD_BACK)
    rows = tuple(rows[::stride] for rows in pool.class_rows) if stride > 1 else pool.class_rows
    return Pool("held back", pool.table, pool.classes, rows)


Classes = Int64[np.ndarray, " _"]  # their indices


def _pool(
    name: str, table: ImageTable, classes: Classes, seed: int = 0, largest: int | None = None
) -> Pool:
    """All images of these classes, or at most `largest` of each."""
    names = tuple(table.classes[i] for i in classes)
    rows = (_shuffled_rows(table, each, seed)[:largest].sort().values for each in names)
    return Pool(name, table, names, tuple(rows))


def _shuffled_rows(table: ImageTable, name: str, seed: int) -> Int64[Tensor, " _"]:
    """The rows of a class in an order that depends on the seed and the class's name alone."""
    rows = table.rows_of(name)
    order = generator("validation images", seed, name).permutation(len(rows))
    return rows[torch.from_numpy(order)]


def _few(table: ImageTable, fit: ShapeFit) -> str:
    counts, usable = table.counts.numpy(), fit.usable[0]
    smallest = usable[counts[usable].argmin()]
    which = (
        "a class" if counts[usable].max() == counts[smallest] else f"'{table.classes[smallest]}'"
    )
    return f"few, since {which} has {counts[smallest]} images"


def _left_out(table: ImageTable, fit: ShapeFit, purpose: str) -> list[str]:
    counts, n = table.counts.numpy(), len(table.classes) - len(fit.usable[0])
    smallest = f"'{table.classes[counts.argmin()]}' with {counts.min()}"
    which = f"{n} of {len(counts)} classes (such as {smallest}) have"
    which = f"class {smallest} has" if n == 1 else which
    return [f"{which} too few images to {purpose}"] if n else []


def _require_classes(table: ImageTable, options: EpisodeOptions) -> None:
    remedy = "add classes" if options.n_way is None else "add classes or lower --n-way"
    n = pluralize(len(table.classes), "class", "classes")
    require(
        len(table.classes) >= options.min_ways,
        f"{table.source}: it has {n}, but an episode needs {options.min_ways}: {remedy}.",
    )


def _too_few_images(table: ImageTable, options: EpisodeOptions, twice: bool = False) -> KedgeError:
    """`twice`: some images of each class would have to validate as well."""
    counts, need = table.counts.numpy(), options.min_images
    n_enough = int((counts >= (2 * need if twice else need)).sum())
    given = [n for n in ("n_way", "n_shot", "n_query") if getattr(options, n) is not None]
    remedy = f", or lower {' or '.join(map(option_name, given))}" if given else ""
    again = " and as many again for validation" if twice else ""
    remedy += ", or make anchors alone with --train none" if twice else ""
    return KedgeError(
        f"{table.source}: the largest class, '{table.classes[counts.argmax()]}', has "
        f"{pluralize(int(counts.max()), 'image')}; an episode needs {need} of each class{again}, "
        f"and {n_enough} of {len(counts)} classes have enough: add images or classes{remedy}."
    )
