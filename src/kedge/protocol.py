"""Which classes play which role, and who may read whose images.

A protocol names a benchmark. Its split, drawn from a seed and saved with every result, says
which classes are trained in which round, which validate and which stay unseen; some images of
every trained class are held out, so that no test ever shows an image that was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.classes import Lists, imagenet_domains, official
from kedge.errors import EntitlementError, KedgeError
from kedge.images.drawings import domains, load_drawings
from kedge.images.readers import open_images
from kedge.images.table import ImageTable
from kedge.seeding import generator


@dataclass(frozen=True, eq=False)
class Pool:
    """The images of some classes in one role. Positions run through all of them, class by class."""

    name: str
    table: ImageTable
    classes: tuple[str, ...]
    class_rows: tuple[Int64[Tensor, " _"], ...]  # rows of the table, one vector per class

    @cached_property
    def rows(self) -> Int64[Tensor, " positions"]:
        """Position → row of the table."""
        return torch.cat(self.class_rows) if self.class_rows else torch.empty(0, dtype=torch.int64)

    @cached_property
    def counts(self) -> Int64[Tensor, " classes"]:
        return torch.tensor([len(rows) for rows in self.class_rows], dtype=torch.int64)

    @cached_property
    def starts(self) -> Int64[Tensor, " classes"]:
        """Position of the first image of each class."""
        return self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.rows)


def whole(name: str, table: ImageTable, classes: Sequence[str] | None = None) -> Pool:
    """All images of the given classes (of every class, if none are given)."""
    chosen = table.classes if classes is None else tuple(classes)
    return Pool(name, table, chosen, tuple(table.rows_of(c) for c in chosen))


def union(name: str, pools: Sequence[Pool]) -> Pool:
    assert all(pool.table is pools[0].table for pool in pools), "pools of one table"
    return Pool(
        name,
        pools[0].table,
        tuple(c for pool in pools for c in pool.classes),
        tuple(rows for pool in pools for rows in pool.class_rows),
    )


def alone(*pools: Pool) -> list[Pool]:
    """The same pools on a table that holds their images and no other."""
    table = pools[0].table
    rows = torch.cat([pool.rows for pool in pools]).sort().values
    kept, labels = table.labels[rows].unique(return_inverse=True)
    classes = tuple(table.classes[i] for i in kept.tolist())
    part = ImageTable(table.images[rows], labels, classes, table.source)
    return [
        replace(
            pool, table=part, class_rows=tuple(torch.searchsorted(rows, r) for r in pool.class_rows)
        )
        for pool in pools
    ]


@dataclass(frozen=True)
class Split:
    """Class names by role. Saved with every result."""

    seed: int
    rounds: tuple[tuple[str, ...], ...]  # round 0 is the base
    val: tuple[str, ...]
    unseen: dict[str, tuple[str, ...]]  # pool name → classes
    held_out: int  # images of each trained class that are kept for testing


@dataclass(frozen=True)
class Delivery:
    """What a method is handed in a round, and nothing more.

    The images of earlier rounds are not merely hidden: a method that is not entitled to them
    gets a delivery that does not hold them.
    """

    round: int
    new: Pool
    val: Pool
    earlier: Pool | None = None

    @property
    def old(self) -> Pool:
        if self.earlier is None:
            raise EntitlementError(
                f"Images of the rounds before round {self.round} are gone: this method is "
                "entitled to the new images and to the anchors only."
            )
        return self.earlier


@dataclass(frozen=True)
class Benchmark:
    """A split on its images: hands out deliveries round by round, and the test pools."""

    table: ImageTable
    split: Split

    @property
    def n_rounds(self) -> int:
        return len(self.split.rounds)

    def delivery(self, round: int, *, with_old: bool = False) -> Delivery:
        new = self._seen("new" if round else "old", round, held_out=False)
        val = whole("validation", self.table, self.split.val)
        if not (with_old and round):
            return Delivery(round, *alone(new, val))
        earlier = [self._seen("old", t, held_out=False) for t in range(round)]
        return Delivery(round, *alone(new, val, union("old", earlier)))

    def trained(self, round: int) -> Pool:
        """The training images of a round, as long as they were there; for oracles only."""
        return self._seen(f"round_{round}", round, held_out=False)

    def test_pools(self, round: int) -> tuple[Pool, ...]:
        """Old, new and unseen as they stand after this round; of several, each round's too."""
        seen = [self._seen(f"round_{t}", t, held_out=True) for t in range(self.n_rounds)]
        pools = [union("old", seen[: max(round, 1)])]
        if round:
            pools.append(union("new", [seen[round]]))
        for name, classes in self.split.unseen.items():
            pools.append(whole(name, self.table, classes))
        return (*pools, *seen) if self.n_rounds > 2 else tuple(pools)

    def _seen(self, name: str, round: int, *, held_out: bool) -> Pool:
        classes = self.split.rounds[round]
        rows = tuple(self._part(c, held_out=held_out) for c in classes)
        return Pool(name, self.table, classes, rows)

    def _part(self, name: str, *, held_out: bool) -> Int64[Tensor, " images"]:
        """The images of a class that are held out for testing, or those that are trained on."""
        rows = self.table.rows_of(name)
        order = generator("held out", self.split.seed, name).permutation(len(rows))
        n = self.split.held_out
        chosen = order[:n] if held_out else order[n:]
        return rows[torch.from_numpy(np.sort(chosen))]


def label(pool_name: str) -> str:
    """A pool's name as people read it: 'unseen, old domain', 'classes of round 2'."""
    kind, _, rest = pool_name.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind


# ── the named benchmarks ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Protocol:
    """A named benchmark: where the images come from and how the classes get their roles."""

    name: str
    sentence: str  # what it is, and where it differs from the paper
    load: Callable[[str | None], ImageTable]  # of images on disk, or of None
    draw: Callable[[int, ImageTable], Split]  # seed, images → split
    needs: str = ""  # what a user has to give; nothing where the images come with kedge

    @property
    def needs_data(self) -> bool:
        return bool(self.needs)

    def benchmark(self, seed: int, data: str | None = None) -> Benchmark:
        if self.needs_data and data is None:
            raise KedgeError(f"--data: the protocol {self.name} needs {self.needs}.")
        if data is not None and not self.needs_data:
            others = ", ".join(each.name for each in PROTOCOLS.values() if each.needs_data)
            raise KedgeError(
                f"--data: the protocol {self.name} brings its own images and reads no others; "
                f"leave {data} out, or choose a protocol that reads it ({others})."
            )
        table = self.load(data)
        return Benchmark(table, self.draw(seed, table))


def _shuffled(classes: Sequence[str], *key: int | str) -> list[str]:
    return [classes[i] for i in generator(*key).permutation(len(classes))]


def _dealt(names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """So many names for each role, one role after the other."""
    ends = np.cumsum(sizes).tolist()
    return [tuple(names[end - n : end]) for end, n in zip(ends, sizes, strict=True)]


def _across(
    seed: int, old: Sequence[str], new: Sequence[str], sizes: Sequence[int], held_out: int
) -> Split:
    """From one domain to another; `sizes` of each: to train, to validate, unseen."""
    (trained_old, val_old, unseen_old) = _dealt(old, sizes)
    (trained_new, val_new, unseen_new) = _dealt(new, sizes)
    return Split(
        seed=seed,
        rounds=(trained_old, trained_new),
        val=val_old + val_new,
        unseen={
            "unseen_old_domain": unseen_old,
            "unseen_new_domain": unseen_new,
            "unseen_both": unseen_old + unseen_new,
        },
        held_out=held_out,
    )


# ── drawings, which come with kedge

HELD_OUT_DRAWINGS = 30  # of the 100 drawings of each trained class


def _drawings(data: str | None) -> ImageTable:
    return load_drawings()


def _drawings_across(first: str, second: str, seed: int, table: ImageTable) -> Split:
    """64 old classes of the first domain, 64 new ones of the second, 8 + 8 to validate."""
    old, new = (_shuffled(domains()[part], "split", part, seed) for part in (first, second))
    return _across(seed, old, new, (64, 8, 36), HELD_OUT_DRAWINGS)


def _drawings_mixed(sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """Classes of both domains mixed: `sizes` of each round, then 16 to validate, 72 unseen."""
    names = _shuffled(table.classes, "split", "random", seed)
    *rounds, val, unseen = _dealt(names, (*sizes, 16, 72))
    return Split(seed, tuple(rounds), val, {"unseen": unseen}, HELD_OUT_DRAWINGS)


# ── images on disk

SIDE = 84  # px, of everything drawn from ImageNet
LEAST = 5  # classes in each role of a folder: those of one episode
BY_WORDNET_ID = (
    "a folder of class folders named by WordNet id (n01532829 and so on), or a packed image file "
    "of classes with such names"
)
HELD_OUT = (
    "of each trained class 300 images are held out where all have 900, otherwise a sixth of the "
    "smallest, or 20 if that is less"
)


@lru_cache(maxsize=1)  # every seed asks again, and reading takes minutes
def _opened(data: str, image_size: int | None, n_channels: int | None) -> ImageTable:
    return open_images(data, image_size, n_channels)


def _photographs(data: str | None) -> ImageTable:
    assert data is not None, "Protocol.benchmark asks for it"
    return _opened(data, SIDE, 3)


def _own(data: str | None) -> ImageTable:
    """Size and channels follow from the images."""
    assert data is not None, "Protocol.benchmark asks for it"
    return _opened(data, None, None)


def _held_out(table: ImageTable, classes: Sequence[str]) -> int:
    """300 as in the paper where there are 900; else a sixth of the smallest class, but no fewer
    than an episode needs (5 shots and 15 queries) unless that were more than half of it."""
    least = min(len(table.rows_of(name)) for name in classes)
    return 300 if least >= 900 else max(least // 6, min(20, least // 2))


def _official(name: str, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """The official training classes at random: `sizes` of each round. The others as they are."""
    lists = official(name)
    _check_classes(table, name, lists)
    rounds = _dealt(_shuffled(lists["train"], "split", name, seed), sizes)
    held_out = _held_out(table, lists["train"])
    return Split(seed, tuple(rounds), lists["val"], {"unseen": lists["test"]}, held_out)


def _check_classes(table: ImageTable, name: str, lists: Lists) -> None:
    there = set(table.classes)
    wanted = [each for part in lists.values() for each in part]
    missing = [each for each in wanted if each not in there]
    if missing:
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise KedgeError(
            f"{table.source}: {len(missing)} of the {len(wanted)} classes of {name} are missing "
            f"({first}); --data needs {BY_WORDNET_ID}."
        )


def _imagenet_across(first: str, second: str, seed: int, table: ImageTable) -> Split:
    """32 old classes of the first domain, 32 new ones of the second, 8 + 8 to validate."""
    sizes, there = (32, 8, 20), set(table.classes)
    known = {
        part: [name for name in names if name in there]
        for part, names in imagenet_domains().items()
    }
    for part, names in known.items():
        if len(names) < sum(sizes):
            raise KedgeError(
                f"{table.source}: {len(names)} of ImageNet's {len(imagenet_domains()[part])} "
                f"{'man-made' if part == 'manmade' else part} classes are here, but the protocol "
                f"needs {sum(sizes)}; --data needs {BY_WORDNET_ID}."
            )
    old, new = (_shuffled(known[part], "split", "ImageNet", part, seed) for part in (first, second))
    return _across(seed, old, new, sizes, _held_out(table, known[first] + known[second]))


def _any_classes(seed: int, table: ImageTable) -> Split:
    """A tenth each to validate and unseen; of the others one half is old and one half new."""
    n = len(table.classes)
    if n < 4 * LEAST:
        raise KedgeError(
            f"{table.source}: there are {n} classes, but the protocol needs {4 * LEAST}: {LEAST} "
            f"old, {LEAST} new, {LEAST} to validate and {LEAST} unseen."
        )
    tenth = max(LEAST, round(n / 10))
    new = (n - 2 * tenth) // 2
    names = _shuffled(sorted(table.classes), "split", "folder", seed)
    old, *later, val, unseen = _dealt(names, (n - 2 * tenth - new, new, tenth, tenth))
    held_out = _held_out(table, table.classes)
    return Split(seed, (old, *later), val, {"unseen": unseen}, held_out)


_ALL = (
    Protocol(
        "drawings",
        "Quick, Draw! drawings, from natural things to man-made ones: 64 old and 64 new classes, "
        "36 + 36 unseen, 28 px (the paper's domain shift has 32 + 32 ImageNet classes at 84 px).",
        _drawings,
        partial(_drawings_across, "natural", "manmade"),
    ),
    Protocol(
        "drawings-reverse",
        "Quick, Draw! drawings, from man-made things to natural ones: 64 old and 64 new classes, "
        "36 + 36 unseen, 28 px (the paper's domain shift has 32 + 32 ImageNet classes at 84 px).",
        _drawings,
        partial(_drawings_across, "manmade", "natural"),
    ),
    Protocol(
        "drawings-random",
        "Quick, Draw! drawings, classes split at random: 64 old, 64 new and 72 unseen, 28 px "
        "(the paper splits miniImageNet into 32, 32 and 20 at 84 px).",
        _drawings,
        partial(_drawings_mixed, (64, 64)),
    ),
    Protocol(
        "drawings-many",
        "Quick, Draw! drawings, many classes split at random: 128 old, 128 new and 72 unseen, "
        "28 px (the paper splits tieredImageNet into 176, 175 and 160 at 84 px).",
        _drawings,
        partial(_drawings_mixed, (128, 128)),
    ),
    Protocol(
        "drawings-2-rounds",
        "Quick, Draw! drawings, classes split at random: 64 old ones, then two rounds of 32 new "
        "ones, 72 unseen, 28 px (the paper has two rounds of 16 on miniImageNet at 84 px).",
        _drawings,
        partial(_drawings_mixed, (64, 32, 32)),
    ),
    Protocol(
        "drawings-4-rounds",
        "Quick, Draw! drawings, classes split at random: 64 old ones, then four rounds of 16 new "
        "ones, 72 unseen, 28 px (the paper has two rounds of 16 on miniImageNet at 84 px).",
        _drawings,
        partial(_drawings_mixed, (64, 16, 16, 16, 16)),
    ),
    Protocol(
        "mini-imagenet",
        "miniImageNet, its 64 training classes split at random: 32 old and 32 new, 16 to "
        f"validate, 20 unseen, {SIDE} px; {HELD_OUT} (the paper tests on 300 further images of "
        "each trained class, and trains on all 600).",
        _photographs,
        partial(_official, "miniImageNet", (32, 32)),
        BY_WORDNET_ID,
    ),
    Protocol(
        "mini-imagenet-2-rounds",
        "miniImageNet, its 64 training classes split at random: 32 old ones, then two rounds of "
        f"16 new ones, 16 to validate, 20 unseen, {SIDE} px; {HELD_OUT} (the paper tests on 300 "
        "further images of each trained class, and trains on all 600).",
        _photographs,
        partial(_official, "miniImageNet", (32, 16, 16)),
        BY_WORDNET_ID,
    ),
    Protocol(
        "tiered-imagenet",
        "tieredImageNet, its 351 training classes split at random: 176 old and 175 new, 97 to "
        f"validate, 160 unseen, {SIDE} px; {HELD_OUT} (the paper tests on about 1000 further "
        "images of each trained class, which not every class has).",
        _photographs,
        partial(_official, "tieredImageNet", (176, 175)),
        BY_WORDNET_ID,
    ),
    Protocol(
        "domain-imagenet",
        "DomainImageNet, from natural things to man-made ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {HELD_OUT} (the paper does not list its "
        "classes: these are drawn, with all their images, from ImageNet's 449 natural and 551 "
        "man-made ones).",
        _photographs,
        partial(_imagenet_across, "natural", "manmade"),
        BY_WORDNET_ID,
    ),
    Protocol(
        "domain-imagenet-reverse",
        "DomainImageNet, from man-made things to natural ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {HELD_OUT} (the paper does not list its "
        "classes: these are drawn, with all their images, from ImageNet's 449 natural and 551 "
        "man-made ones).",
        _photographs,
        partial(_imagenet_across, "manmade", "natural"),
        BY_WORDNET_ID,
    ),
    Protocol(
        "folder",
        "Classes of one's own, split at random: two fifths old, two fifths new, a tenth to "
        f"validate, a tenth unseen, {LEAST} of each at least; {HELD_OUT} (not in the paper).",
        _own,
        _any_classes,
        "a folder with one sub-folder of images per class, or a packed image file",
    ),
)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}


def protocol(name: str) -> Protocol:
    try:
        return PROTOCOLS[name]
    except KeyError:
        known = ", ".join(PROTOCOLS)
        raise KedgeError(f"There is no protocol '{name}'; the known ones are {known}.") from None
