"""Who plays which role, and who may read whose images."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kedge.benchmarks import (
    PROTOCOLS,
    disk,
    protocol,
)
from kedge.benchmarks.base import (
    Benchmark,
    Split,
    pool_label,
)
from kedge.benchmarks.cifar_fs import cifar_fs_lists
from kedge.benchmarks.disk import opened
from kedge.benchmarks.imagenet import (
    imagenet_domains,
    official,
    tiny_imagenet_domains,
)
from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
)
from kedge.data import table as table_module
from kedge.data.drawings import domains, load_drawings
from kedge.data.pools import (
    Pool,
    RoundData,
    union,
    whole,
)
from kedge.data.table import ImageTable
from kedge.errors import EntitlementError, KedgeError
from kedge.methods.base import Alignment, AlignmentInputs
from kedge.methods.registry import Method, parse_method
from kedge.models.model import (
    Model,
    ModelConfig,
    new_model,
)
from kedge.training.round import train_round, training_pool

ROUNDS = {
    "drawings": (64, 64),
    "drawings-reverse": (64, 64),
    "drawings-random": (64, 64),
    "drawings-many": (128, 128),
    "drawings-2-rounds": (64, 32, 32),
    "drawings-4-rounds": (64, 16, 16, 16, 16),
    "drawings-16-rounds": (5,) * 16,
    "mini-imagenet": (32, 32),
    "mini-imagenet-2-rounds": (32, 16, 16),
    "tiered-imagenet": (176, 175),
    "domain-imagenet": (32, 32),
    "domain-imagenet-reverse": (32, 32),
    "tiny-imagenet": (32, 32),
    "tiny-imagenet-2-rounds": (32, 16, 16),
    "tiny-imagenet-16-rounds": (5,) * 16,
    "tiny-imagenet-domain": (32, 32),
    "tiny-imagenet-domain-reverse": (32, 32),
    "cifar-fs": (32, 32),
    "omniglot": (432, 432),
    "folder": (139, 138),  # of 345 classes
}
OFFICIAL = {
    "mini-imagenet": "miniImageNet",
    "mini-imagenet-2-rounds": "miniImageNet",
    "tiered-imagenet": "tieredImageNet",
    "cifar-fs": "CIFAR-FS",
}
ILSVRC = sorted(name for part in imagenet_domains().values() for name in part)
TINY = sorted(name for part in tiny_imagenet_domains().values() for name in part)
CHARACTERS = {
    "train": [f"Alphabet {i // 33:02}/character{i % 33:02}" for i in range(964)],
    "test": [f"Other {i // 33:02}/character{i % 33:02}" for i in range(659)],
}


def marked_table(classes: Sequence[str], per_class: int, size: tuple[int, int]) -> ImageTable:
    """No two images are alike: the first four pixels of each are its number."""
    n = len(classes) * per_class
    pixels = torch.zeros(n, 1, *size, dtype=torch.uint8)
    pixels[:, 0, 0, :4] = torch.arange(n, dtype=torch.int32)[:, None].view(torch.uint8)
    return ImageTable.build(pixels, [i // per_class for i in range(n)], classes)


def in_parts(table: ImageTable, parts: Sequence[str]) -> ImageTable:
    """With the part of every image, in the order of the rows."""
    names = tuple(dict.fromkeys(parts))
    part = torch.tensor([names.index(each) for each in parts], dtype=torch.uint8)
    return dataclasses.replace(table, parts=names, part=part)


def by_class(parts: Mapping[str, Sequence[str]], per_class: int) -> ImageTable:
    """A marked table of classes that are each in one part of the data."""
    classes = sorted((name, part) for part, names in parts.items() for name in names)
    table = marked_table([name for name, _ in classes], per_class, (1, 4))
    return in_parts(table, [part for _, part in classes for _ in range(per_class)])


def lists(name: str) -> dict[str, tuple[str, ...]]:
    """The official ones of a data set."""
    return dict(cifar_fs_lists()) if name == "CIFAR-FS" else official(name)


def numbers(images: Tensor) -> list[int]:
    """Which images of a marked table these are, wherever they have been copied to."""
    return images[:, 0, 0, :4].contiguous().view(torch.int32).flatten().tolist()


def shown(pool: Pool, name: str | None = None) -> list[int]:
    """The images of a pool, or of one class in it."""
    rows = pool.rows if name is None else pool.class_rows[pool.classes.index(name)]
    return numbers(pool.table.images[rows])


@functools.cache
def marked(kind: str) -> ImageTable:
    """All classes of a data set, each with 100 numbers for images, or 20."""
    if kind == "omniglot":
        return by_class(CHARACTERS, 20)
    drawings = [name for part in domains().values() for name in part]
    cifar = [name for part in cifar_fs_lists().values() for name in part]
    kinds = {"drawings": drawings, "imagenet": ILSVRC, "tiny-imagenet": TINY, "cifar-fs": cifar}
    return marked_table(sorted(kinds[kind]), 100, (1, 4))


def table_of(name: str) -> ImageTable:
    """Numbers for the images of a named benchmark."""
    if name.startswith("tiny-imagenet"):
        return marked("tiny-imagenet")
    if "imagenet" in name:
        return marked("imagenet")
    return marked(name if name in ("cifar-fs", "omniglot") else "drawings")


def split_of(name: str, seed: int) -> Split:
    return protocol(name).draw(seed, table_of(name))


def marked_benchmark(name: str, seed: int) -> Benchmark:
    """A named benchmark whose images are replaced by numbers."""
    return Benchmark(table_of(name), split_of(name, seed))


@pytest.fixture(params=sorted(PROTOCOLS))
def drawn(request: pytest.FixtureRequest) -> Benchmark:
    return marked_benchmark(request.param, 3)


# ── the named benchmarks ─────────────────────────────────────────────────────────────────────


def test_every_named_benchmark_is_covered_here() -> None:
    assert set(PROTOCOLS) == set(ROUNDS)
    for name, chosen in PROTOCOLS.items():
        assert chosen.name == name
        assert chosen.sentence.endswith(".")
        assert tuple(map(len, split_of(name, 0).rounds)) == ROUNDS[name]
        assert chosen.needs_data == (not name.startswith("drawings"))
        if not chosen.needs_data:
            bench = chosen.benchmark(3)
            assert bench.table is load_drawings()
            assert bench.split == chosen.draw(3, load_drawings()) == split_of(name, 3)


def test_roles_share_no_class(drawn: Benchmark) -> None:
    split = drawn.split
    apart = {name: classes for name, classes in split.unseen.items() if name != "unseen_both"}
    roles = [*split.rounds, split.val, *apart.values()]
    names = [name for role in roles for name in role]
    assert len(names) == len(set(names))
    assert set(names) <= set(drawn.table.classes)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("drawings", "natural", "manmade"),
        ("drawings-reverse", "manmade", "natural"),
        ("domain-imagenet", "natural", "manmade"),
        ("domain-imagenet-reverse", "manmade", "natural"),
        ("tiny-imagenet-domain", "natural", "manmade"),
        ("tiny-imagenet-domain-reverse", "manmade", "natural"),
    ],
)
def test_domain_benchmarks_go_from_one_domain_to_the_other(
    name: str, first: str, second: str, seed: int
) -> None:
    split = split_of(name, seed)
    parts = (
        imagenet_domains() if "imagenet" in name else domains()
    )  # Tiny-ImageNet's are among them
    old, new = (set(parts[domain]) for domain in (first, second))
    assert set(split.rounds[0]) <= old
    assert set(split.rounds[1]) <= new
    assert (len(set(split.val) & old), len(set(split.val) & new)) == (8, 8)
    unseen_old, unseen_new = split.unseen["unseen_old_domain"], split.unseen["unseen_new_domain"]
    assert len(unseen_old) == len(unseen_new) == (20 if "imagenet" in name else 36)
    assert set(unseen_old) <= old
    assert set(unseen_new) <= new
    assert set(split.unseen["unseen_both"]) == {*unseen_old, *unseen_new}


@pytest.mark.parametrize(
    "name",
    [
        "drawings-random",
        "drawings-many",
        "drawings-2-rounds",
        "drawings-4-rounds",
        "drawings-16-rounds",
        "tiny-imagenet",
        "tiny-imagenet-2-rounds",
        "tiny-imagenet-16-rounds",
    ],
)
def test_random_benchmarks_mix_the_domains(name: str) -> None:
    split, tiny = split_of(name, 0), name.startswith("tiny")
    assert (len(split.val), len(split.unseen["unseen"])) == (16, 20 if tiny else 72)
    natural = set((tiny_imagenet_domains() if tiny else domains())["natural"])
    for role in (*split.rounds, split.val, split.unseen["unseen"]):
        assert len(role) == 5 or natural & set(role)
        assert len(role) == 5 or set(role) - natural


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_seed_fixes_the_split_and_another_changes_it(name: str) -> None:
    assert split_of(name, 7) == split_of(name, 7)
    splits = [split_of(name, seed) for seed in range(4)]
    for a, b in itertools.combinations(splits, 2):
        others = [*zip((a.val, *a.unseen.values()), (b.val, *b.unseen.values()), strict=True)]
        if name in OFFICIAL:
            assert all(one == other for one, other in others)
            others = []
        if name == "omniglot":
            one, other = others.pop()
            assert one == other == tuple(CHARACTERS["test"])
        roles = [*zip(a.rounds, b.rounds, strict=True), *others]
        assert all(set(one) != set(other) for one, other in roles)


@pytest.mark.parametrize(
    ("one", "several"),
    [
        ("mini-imagenet", "mini-imagenet-2-rounds"),
        ("drawings-random", "drawings-2-rounds"),
        ("tiny-imagenet", "tiny-imagenet-2-rounds"),
    ],
)
def test_more_rounds_share_the_old_classes_and_divide_the_new_ones(one: str, several: str) -> None:
    a, b = split_of(one, 5), split_of(several, 5)
    assert a.rounds == (b.rounds[0], b.rounds[1] + b.rounds[2])
    assert (a.val, a.unseen) == (b.val, b.unseen)


def test_a_seed_changes_which_images_are_held_out() -> None:
    a, b = (marked_benchmark("drawings", seed) for seed in (0, 1))
    name = min(set(a.split.rounds[0]) & set(b.split.rounds[0]))
    assert shown(a.test_pools(0)[0], name) != shown(b.test_pools(0)[0], name)


GOLDEN = {  # of seed 0, and of the images that are trained on; they were made by the first version
    "drawings": "b08b8dea94260d60",
    "drawings-reverse": "c01442382252375e",
    "drawings-random": "22bb2b962105d33c",
    "drawings-many": "30a1d24459f423c3",
    "drawings-2-rounds": "4df5fac9aa6239e2",
    "drawings-4-rounds": "f46a2b2cacca64d3",
    "mini-imagenet": "1f2e275d4ae85d47",
    "mini-imagenet-2-rounds": "f8b4378fcbc241a1",
    "tiered-imagenet": "c4544e9fc78513da",
    "domain-imagenet": "ace6e146e8300eb2",
    "domain-imagenet-reverse": "8f0772124ec7b0e7",
    "folder": "0a404b15d82e51c5",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_splits_never_change(name: str) -> None:
    """Results of different versions are on the same classes and images."""
    bench = marked_benchmark(name, 0)
    sha = hashlib.sha256(json.dumps(dataclasses.asdict(bench.split)).encode())
    for round in range(bench.n_rounds):
        sha.update(json.dumps(shown(bench.trained(round))).encode())
    assert sha.hexdigest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_split_is_read_back_as_it_was_saved(name: str) -> None:
    split = split_of(name, 1)
    for each in (split, dataclasses.replace(split, held_out="held out")):
        saved = json.loads(json.dumps(dataclasses.asdict(each)))
        assert Split.from_dict(saved) == each


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(KedgeError, match=r"no protocol 'mini'.*drawings-random"):
        protocol("mini")


# ── images on disk ───────────────────────────────────────────────────────────────────────────


def unequal_table(counts: dict[str, int]) -> ImageTable:
    labels = [i for i, n in enumerate(counts.values()) for _ in range(n)]
    return ImageTable.build(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, [*counts])


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_classes_keep_their_official_roles(name: str) -> None:
    split, parts = split_of(name, 2), lists(OFFICIAL[name])
    assert sorted(c for classes in split.rounds for c in classes) == sorted(parts["train"])
    assert (split.val, split.unseen) == (parts["val"], {"unseen": parts["test"]})


def test_the_packaged_class_lists_are_whole() -> None:
    sizes = {name: [len(part) for part in lists(name).values()] for name in OFFICIAL.values()}
    assert sizes == {
        "miniImageNet": [64, 16, 20],
        "tieredImageNet": [351, 97, 160],
        "CIFAR-FS": [64, 16, 20],
    }
    assert {part: len(names) for part, names in imagenet_domains().items()} == {
        "natural": 449,
        "manmade": 551,
    }
    assert len(set(ILSVRC)) == 1000
    for name in OFFICIAL.values():
        names = [c for part in lists(name).values() for c in part]
        assert len(names) == len(set(names))
        assert (set(names) <= set(ILSVRC)) == (name != "CIFAR-FS")
    for part, n in (("natural", 72), ("manmade", 128)):
        names = [*tiny_imagenet_domains()[part]]
        assert len(set(names)) == len(names) == n
        assert set(names) <= set(imagenet_domains()[part])
    assert {"aquarium_fish", "lawn_mower", "willow_tree"} <= set(lists("CIFAR-FS")["train"])


def test_the_packaged_class_lists_are_the_official_ones() -> None:
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not on this machine")
    files = {
        "imagenet/mini_imagenet_classes": official("miniImageNet"),
        "imagenet/tiered_imagenet_classes": official("tieredImageNet"),
        "imagenet/ilsvrc_natural_manmade": imagenet_domains(),
        "tiny-imagenet/classes": tiny_imagenet_domains(),
    }
    for name, ours in files.items():
        theirs = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        theirs.pop("names", None)
        assert {part: list(names) for part, names in ours.items()} == theirs


@pytest.mark.parametrize(
    ("smallest", "held_out"),
    [(1300, 300), (900, 300), (899, 149), (600, 100), (100, 20), (40, 20), (30, 15), (1, 0)],
)
def test_held_out_images_follow_from_the_smallest_trained_class(
    smallest: int, held_out: int
) -> None:
    mini = official("miniImageNet")
    counts = dict.fromkeys(mini["train"], 1300) | dict.fromkeys(mini["val"] + mini["test"], 1)
    counts[mini["train"][9]] = smallest
    assert protocol("mini-imagenet").draw(0, unequal_table(counts)).held_out == held_out


def test_other_classes_and_their_order_change_nothing() -> None:
    names = [c for part in official("miniImageNet").values() for c in part]
    more = marked_table(["n00000000", *reversed(names), "others"], 100, (1, 4))
    assert protocol("mini-imagenet").draw(3, more) == split_of("mini-imagenet", 3)
    shuffled = marked_table(ILSVRC[::-1], 100, (1, 4))
    for name in ("domain-imagenet", "folder"):
        chosen = protocol(name)
        assert chosen.draw(3, shuffled) == chosen.draw(3, marked("imagenet"))


def test_domains_are_drawn_from_the_classes_that_are_there() -> None:
    natural, manmade = imagenet_domains()["natural"][::7], imagenet_domains()["manmade"][::9]
    table = marked_table([*natural, *manmade, "none of them"], 40, (1, 4))
    split = protocol("domain-imagenet").draw(0, table)
    roles = [*split.rounds, split.val, split.unseen["unseen_both"]]
    assert {c for role in roles for c in role} <= {*natural, *manmade}
    few = marked_table([*natural, *manmade[:59]], 1, (1, 4))
    with pytest.raises(KedgeError, match=r"59 of ImageNet's 551 man-made classes.*needs 60;"):
        protocol("domain-imagenet-reverse").draw(0, few)


@pytest.mark.parametrize("n", [20, 21, 37, 55, 100, 1000])
def test_any_folder_of_classes_is_split_by_fifths_and_tenths(n: int) -> None:
    table = marked_table([f"class {i}" for i in range(n)], 6, (1, 4))
    split = protocol("folder").draw(0, table)
    roles = [*split.rounds, split.val, split.unseen["unseen"]]
    assert sorted(c for role in roles for c in role) == sorted(table.classes)
    old, new, val, unseen = map(len, roles)
    assert 0 <= old - new <= 1
    assert val == unseen == max(5, round(n / 10))
    assert new >= 5


def test_too_few_classes_for_a_split_are_counted() -> None:
    table = marked_table([f"class {i}" for i in range(19)], 6, (1, 4))
    with pytest.raises(KedgeError, match=r"there are 19 classes, but the protocol needs 20: 5 old"):
        protocol("folder").draw(0, table)


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., str]:
    """Write a packed file of two images per class, of 84 pixels unless told otherwise."""

    def write(classes: Sequence[str], side: int = 84, parts: Sequence[str] = ()) -> str:
        path = tmp_path / "images.safetensors"
        table = marked_table(classes, 2, (side, side))
        table = dataclasses.replace(table, images=table.images.repeat(1, 3, 1, 1))
        (in_parts(table, [part for part in parts for _ in range(2)]) if parts else table).save(path)
        return str(path)

    return write


def test_images_on_disk_are_read_once_for_all_seeds(pack: Callable[..., str]) -> None:
    mini = official("miniImageNet")
    data = pack([c for part in mini.values() for c in part])
    first, second = (protocol("mini-imagenet").benchmark(seed, data) for seed in (0, 1))
    assert first.table is second.table
    assert first.table.source == data
    assert first.split != second.split
    assert set(first.split.rounds[0]) < set(mini["train"])
    assert first.split.held_out == 1
    assert len(first.delivery(1).new) == 32


def test_a_folder_of_classes_is_a_benchmark(
    tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    folder = draw_classes(tmp_path / "mine", [f"class {i}" for i in range(20)], per_class=4)
    bench = protocol("folder").benchmark(0, str(folder))
    assert bench.table.image_size == 16
    assert [len(pool.classes) for pool in bench.test_pools(1)] == [5, 5, 5]
    assert bench.split.held_out == 2


def test_missing_data_is_asked_for() -> None:
    for chosen in PROTOCOLS.values():
        if chosen.needs_data:
            what = {
                "folder": "a folder .*per class",
                "omniglot": r"Omniglot: .*images_background and images_evaluation.*\.zip",
                "cifar-fs": "CIFAR-FS or CIFAR-100 in any form.*aquarium_fish",
            }.get(chosen.name, r"\S*ImageNet in any form that 'kedge data inspect' .*WordNet id")
            with pytest.raises(KedgeError, match=rf"^--data: .* {chosen.name} needs {what}.*\.$"):
                chosen.benchmark(0)


def test_data_that_nobody_reads_is_refused() -> None:
    with pytest.raises(KedgeError, match=r"^--data: .*drawings brings its own.*photos.*folder"):
        protocol("drawings").benchmark(0, "photos")


def test_missing_official_classes_are_counted_and_named(pack: Callable[..., str]) -> None:
    names = [c for part in official("miniImageNet").values() for c in part]
    with pytest.raises(KedgeError, match=r"1 of the 100 classes of miniImageNet.*\(n01532829\)"):
        protocol("mini-imagenet").benchmark(0, pack(names[1:]))
    table = marked_table([*official("tieredImageNet")["val"], "more"], 1, (1, 4))
    with pytest.raises(KedgeError, match=r"511 of the 608 .*\((n\d{8}, ){3}…\); --data"):
        protocol("tiered-imagenet").draw(0, table)


def test_images_packed_at_another_size_are_refused(pack: Callable[..., str]) -> None:
    with pytest.raises(KedgeError, match=r"packed at 64 px and cannot be brought to 84 px"):
        protocol("domain-imagenet").benchmark(0, pack(ILSVRC[:2], side=64))


def test_every_protocol_says_where_it_differs_from_the_paper() -> None:
    for chosen in PROTOCOLS.values():
        assert "paper" in chosen.sentence
        assert "\n" not in chosen.sentence


# ── the split that the data come with ────────────────────────────────────────────────────────

SIZES = {"mini-imagenet": (64, 16, 20), "tiered-imagenet": (351, 97, 160), "cifar-fs": (64, 16, 20)}


def numbered(sizes: Sequence[int]) -> dict[str, list[str]]:
    """Classes without names, in parts."""
    names = iter(f"class {i:04}" for i in range(sum(sizes)))
    return {
        part: list(itertools.islice(names, n))
        for part, n in zip(("train", "val", "test"), sizes, strict=True)
    }


@pytest.mark.parametrize("name", SIZES)
def test_parts_of_the_official_sizes_stand_for_the_lists_where_names_are_unknown(name: str) -> None:
    parts = numbered(SIZES[name])
    table = by_class(parts, 6)
    splits = [protocol(name).draw(seed, table) for seed in (0, 0, 1)]
    for split in splits:
        assert tuple(map(len, split.rounds)) == ROUNDS[name]
        assert sorted(c for classes in split.rounds for c in classes) == parts["train"]
        assert (split.val, split.unseen) == (tuple(parts["val"]), {"unseen": tuple(parts["test"])})
        assert split.held_out == 3
    assert splits[0] == splits[1] != splits[2]


@pytest.mark.parametrize("name", SIZES)
def test_parts_of_other_sizes_or_with_classes_in_common_do_not(name: str) -> None:
    train, val, test = SIZES[name]
    expected = rf"{sum(SIZES[name])} of the {sum(SIZES[name])} classes of .* are missing"
    with pytest.raises(KedgeError, match=expected):
        protocol(name).draw(0, by_class(numbered((train - 1, val + 1, test)), 2))
    cut_by_image = marked_table([f"class {i:04}" for i in range(train + val + test)], 3, (1, 4))
    table = in_parts(cut_by_image, ["train", "val", "test"] * (train + val + test))
    with pytest.raises(KedgeError, match=expected):
        protocol(name).draw(0, table)


@pytest.mark.parametrize("name", SIZES)
def test_names_decide_where_they_are_known_whatever_the_parts(name: str) -> None:
    plain = table_of(name)
    n = len(plain.classes)
    cut_by_image = in_parts(plain, (["train"] * 60 + ["val"] * 20 + ["test"] * 20) * n)
    assert protocol(name).draw(0, cut_by_image) == split_of(name, 0)


def test_a_data_set_that_knows_some_names_must_know_them_all() -> None:
    parts = numbered(SIZES["mini-imagenet"])
    parts["train"][3] = official("miniImageNet")["test"][0]
    with pytest.raises(KedgeError, match="99 of the 100 classes of miniImageNet are missing"):
        protocol("mini-imagenet").draw(0, by_class(parts, 2))


def with_further_images(but: str = "") -> ImageTable:
    """miniImageNet as in the paper, on a small scale: of the training classes 2 further images,
    and one that is in neither part."""
    mini = official("miniImageNet")
    classes = sorted(name for part in mini.values() for name in part)
    own = {
        name: ["train"] * 4 + ["held out", "another", "held out"]
        if name in mini["train"] and name != but
        else ["train" if name == but else "test"] * 7
        for name in classes
    }
    return in_parts(marked_table(classes, 7, (1, 4)), [p for name in classes for p in own[name]])


@pytest.mark.parametrize("name", ["mini-imagenet", "mini-imagenet-2-rounds"])
def test_further_images_of_the_trained_classes_are_the_held_out_ones(name: str) -> None:
    table = with_further_images()
    bench = Benchmark(table, protocol(name).draw(0, table))
    assert bench.split.held_out == "held out"
    assert bench.split == dataclasses.replace(split_of(name, 0), held_out="held out")
    trained, tested = set(), set()
    for round in range(bench.n_rounds):
        new = bench.delivery(round).new
        assert shown(new) == shown(bench.trained(round))
        assert set(new.counts.tolist()) == {4}
        trained |= set(shown(new))
        for pool in bench.test_pools(round):
            assert set(pool.counts.tolist()) == {7 if pool.name == "unseen" else 2}
            if pool.name != "unseen":
                tested |= set(shown(pool))
    train = sorted(official("miniImageNet")["train"])
    starts = [int(table.rows_of(c)[0]) for c in train]
    assert trained == {start + i for start in starts for i in range(4)}
    assert tested == {start + i for start in starts for i in (4, 6)}
    older = bench.delivery(bench.n_rounds - 1, with_old=True).old
    assert set(shown(older)) < trained


def test_further_images_of_some_classes_only_are_images_like_the_others() -> None:
    table = with_further_images(but=official("miniImageNet")["train"][5])
    bench = Benchmark(table, protocol("mini-imagenet").draw(0, table))
    assert bench.split.held_out == 3
    assert set(bench.delivery(1).new.counts.tolist()) == {4}


def test_classes_in_parts_are_a_split_of_one_s_own() -> None:
    parts = numbered((11, 5, 6))
    table = by_class(parts, 12)
    split = protocol("folder").draw(0, table)
    assert tuple(map(len, split.rounds)) == (6, 5)
    assert sorted(c for classes in split.rounds for c in classes) == parts["train"]
    assert (split.val, split.unseen) == (tuple(parts["val"]), {"unseen": tuple(parts["test"])})
    assert split.held_out == 6
    assert protocol("folder").draw(0, table) == split
    assert protocol("folder").draw(1, table).rounds != split.rounds


@pytest.mark.parametrize("sizes", [(9, 6, 6), (20, 4, 6), (20, 6, 4), (21, 6, 0)])
def test_parts_of_too_few_classes_are_no_split(sizes: tuple[int, int, int]) -> None:
    table = by_class({part: names for part, names in numbered(sizes).items() if names}, 6)
    plain = dataclasses.replace(table, parts=(), part=None)
    assert protocol("folder").draw(4, table) == protocol("folder").draw(4, plain)


def test_parts_that_are_cut_by_image_are_no_split_of_classes() -> None:
    plain = marked_table([f"class {i:02}" for i in range(30)], 6, (1, 4))
    table = in_parts(plain, ["train", "train", "train", "val", "test", "test"] * 30)
    assert protocol("folder").draw(4, table) == protocol("folder").draw(4, plain)


# ── Tiny-ImageNet and Omniglot ───────────────────────────────────────────────────────────────


def test_of_550_images_of_tiny_imagenet_150_are_held_out() -> None:
    for name in PROTOCOLS:
        if name.startswith("tiny-imagenet"):
            assert protocol(name).draw(0, unequal_table(dict.fromkeys(TINY, 550))).held_out == 150
    cifar = [name for part in cifar_fs_lists().values() for name in part]
    table = unequal_table(dict.fromkeys(sorted(cifar), 600))
    assert protocol("cifar-fs").draw(0, table).held_out == 100


def test_tiny_imagenet_is_200_classes_by_whatever_name() -> None:
    named = split_of("tiny-imagenet", 0)
    assert protocol("tiny-imagenet").draw(0, marked("imagenet")) == named
    others = marked_table([f"class {i:03}" for i in range(200)], 100, (1, 4))
    split = protocol("tiny-imagenet").draw(0, others)
    places = {name: i for i, name in enumerate(TINY)}
    assert split.rounds == tuple(
        tuple(f"class {places[name]:03}" for name in classes) for classes in named.rounds
    )
    few = marked_table([*TINY[:150], *(f"class {i}" for i in range(49))], 2, (1, 4))
    with pytest.raises(KedgeError, match=r"150 of the 200 classes of Tiny-ImageNet are here; --da"):
        protocol("tiny-imagenet-16-rounds").draw(0, few)
    with pytest.raises(KedgeError, match=r"0 of Tiny-ImageNet's 72 natural classes are here, but"):
        protocol("tiny-imagenet-domain").draw(0, others)


def test_omniglot_is_split_within_its_background_alphabets() -> None:
    split = split_of("omniglot", 0)
    assert (len(split.val), len(split.unseen["unseen"]), split.held_out) == (100, 659, 10)
    roles = [*split.rounds, split.val]
    assert sorted(c for role in roles for c in role) == sorted(CHARACTERS["train"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": []}, "images_background with its 964 characters is missing"),
        ({"test": []}, "images_evaluation with its 659 characters is missing"),
        ({"train": CHARACTERS["train"][1:]}, "images_background has 963 characters here instead"),
        ({"test": CHARACTERS["test"][1:]}, "images_evaluation has 658 characters here instead"),
    ],
)
def test_omniglot_needs_both_archives(change: dict[str, list[str]], said: str) -> None:
    table = by_class({k: v for k, v in (CHARACTERS | change).items() if v}, 2)
    with pytest.raises(KedgeError, match=rf"{said}.*--data needs Omniglot: one folder .*\.$"):
        protocol("omniglot").draw(0, table)


def test_omniglot_without_parts_is_refused() -> None:
    with pytest.raises(KedgeError, match="images_background with its 964 characters is missing"):
        protocol("omniglot").draw(0, dataclasses.replace(marked("omniglot"), parts=(), part=None))


def test_omniglot_s_archives_have_no_character_in_common() -> None:
    table = by_class(CHARACTERS | {"train": CHARACTERS["train"][1:]}, 2)
    assert table.part is not None
    part, both = table.part.clone(), CHARACTERS["test"][0]
    part[table.rows_of(both)[0]] = table.parts.index("train")
    with pytest.raises(KedgeError, match=f"'{both}' is in images_background and in images_eval"):
        protocol("omniglot").draw(0, dataclasses.replace(table, part=part))


# ── opening ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def photos(tmp_path: Path, draw_classes: Callable[..., Path]) -> str:
    return str(draw_classes(tmp_path / "photos", ["ape", "bee", "cat", "dog"], per_class=3))


def test_only_the_classes_of_the_protocol_are_read(photos: str) -> None:
    table = opened(photos, 16, 1, frozenset(["bee", "dog", "elk"]))
    assert table.classes == ("bee", "dog")
    assert len(table) == 6
    assert opened(photos, 16, 1, None).classes == ("ape", "bee", "cat", "dog")


def test_as_many_classes_under_other_names_will_do_where_that_is_allowed(photos: str) -> None:
    others = frozenset(["n1", "n2", "n3", "n4"])
    assert len(opened(photos, 16, 1, others, by_number=True).classes) == 4
    said = r"none of the 3 classes of the protocol \(n1, …\) is here, but 4 others \(ape, …\)\.$"
    with pytest.raises(KedgeError, match=said):
        opened(photos, 16, 1, others - {"n4"}, by_number=True)
    with pytest.raises(KedgeError, match="none of the 4 classes"):
        opened(photos, 32, 1, others)


def test_what_is_wrong_with_the_images_is_said_as_it_is(photos: str, tmp_path: Path) -> None:
    with pytest.raises(KedgeError, match="nothing is there"):
        opened(str(tmp_path / "gone"), 16, 1, frozenset(["ape"]))
    store = tmp_path / "store"
    marked_table(["ape", "bee"], 2, (16, 16)).save(store)
    with pytest.raises(KedgeError, match="packed at 16 px and cannot be brought to 32 px"):
        opened(str(store), 32, 1, frozenset(["ape"]))
    with pytest.raises(KedgeError, match=r"none of the 1 classes .*but 2 others \(ape, …\)"):
        opened(str(store), 16, 1, frozenset(["cat"]))


def test_numbers_alone_are_a_benchmark_by_their_parts(pack: Callable[..., str]) -> None:
    parts = numbered((64, 16, 20))
    of = [part for part, names in parts.items() for _ in names]
    data = pack([c for names in parts.values() for c in names], parts=of)
    bench = protocol("mini-imagenet").benchmark(0, data)
    assert set(bench.split.rounds[0]) < set(parts["train"])
    assert protocol("mini-imagenet").benchmark(1, data).table is bench.table


def test_few_tables_in_memory_are_kept_open_and_more_that_are_mapped(
    photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_tables", OrderedDict())
    store = str(tmp_path / "store")
    marked_table(["ape", "bee"], 2, (16, 16)).save(store)
    monkeypatch.setattr(table_module, "SMALL", 0)  # it stays in its file

    def in_turn() -> list[ImageTable]:
        """One that is mapped, and two in memory."""
        wanted = ((store, 16), (photos, 16), (photos, 32))
        return [opened(path, side, 1, None) for path, side in wanted]

    def still_open() -> list[bool]:
        return [a is b for a, b in zip(first, in_turn(), strict=True)]

    first = in_turn()
    assert still_open() == [True, True, True]
    monkeypatch.setattr(disk, "KEPT_BYTES", 12 * 32 * 32)
    in_turn()
    assert len(disk._tables) == 2, "there is room for one of those in memory"
    monkeypatch.setattr(disk, "KEPT_BYTES", 0)
    assert still_open() == [True, False, False]
    assert in_turn()[2] is opened(photos, 32, 1, None), "the latest stays in any case"
    monkeypatch.setattr(disk, "KEPT_OPEN", 1)
    in_turn()
    assert len(disk._tables) == 1


# ── images: trained on, or held out ──────────────────────────────────────────────────────────


def test_some_images_of_every_trained_class_are_held_out_for_good(drawn: Benchmark) -> None:
    last = drawn.n_rounds - 1
    n_images = len(drawn.table) // len(drawn.table.classes)
    n_held_out = 10 if n_images == 20 else 30 if drawn.split.held_out == 30 else 20
    for round, classes in enumerate(drawn.split.rounds):
        trained = drawn.delivery(round).new
        assert trained.classes == classes
        later = [drawn.delivery(t, with_old=True).old for t in {round + 1, last} if round < last]
        tests = [
            pool
            for t in {round, last}
            for pool in drawn.test_pools(t)
            if set(classes) & set(pool.classes)
        ]
        for name in classes[::7]:
            images = shown(trained, name)
            assert len(set(images)) == n_images - n_held_out
            assert all(shown(pool, name) == images for pool in later)
            held_out = shown(tests[0], name)
            assert all(shown(pool, name) == held_out for pool in tests)
            assert sorted([*images, *held_out]) == drawn.table.rows_of(name).tolist()


def test_no_test_ever_shows_an_image_that_was_trained_or_validated_on(
    drawn: Benchmark,
) -> None:
    last = drawn.delivery(drawn.n_rounds - 1, with_old=True)
    touched = {*shown(last.old), *shown(last.new), *shown(last.val)}
    for round in range(drawn.n_rounds):
        for pool in drawn.test_pools(round):
            assert not touched & set(shown(pool)), pool.name


def test_validation_is_the_same_in_every_round(drawn: Benchmark) -> None:
    pools = [drawn.delivery(round).val for round in range(drawn.n_rounds)]
    assert all(pool.classes == drawn.split.val for pool in pools)
    assert all(shown(pool) == shown(pools[0]) for pool in pools)


def test_old_and_new_are_as_they_stand_after_each_round() -> None:
    bench = marked_benchmark("drawings-4-rounds", 0)
    for round in range(5):
        pools = {pool.name: pool for pool in bench.test_pools(round)}
        old = [name for classes in bench.split.rounds[: max(round, 1)] for name in classes]
        assert list(pools["old"].classes) == old
        assert ("new" in pools) == (round > 0)
        if round:
            assert pools["new"].classes == bench.split.rounds[round]
        assert {f"round_{t}" for t in range(5)} <= set(pools)
        assert pools["unseen"].classes == bench.split.unseen["unseen"]


def test_two_rounds_are_tested_on_old_new_and_unseen() -> None:
    bench = marked_benchmark("drawings", 0)
    unseen = ["unseen_old_domain", "unseen_new_domain", "unseen_both"]
    assert [pool.name for pool in bench.test_pools(0)] == ["old", *unseen]
    assert [pool.name for pool in bench.test_pools(1)] == ["old", "new", *unseen]


def test_labels_are_for_people() -> None:
    assert pool_label("unseen_old_domain") == "unseen, old domain"
    assert pool_label("round_3") == "classes of round 3"
    assert pool_label("old") == "old"


# ── pools ────────────────────────────────────────────────────────────────────────────────────


def test_positions_run_through_a_pool_class_by_class() -> None:
    table = marked_table([f"c{i}" for i in range(4)], 8, (1, 4))
    pool = Pool("p", table, ("c3", "c1"), (table.rows_of("c3")[2:], table.rows_of("c1")[:1]))
    assert pool.counts.tolist() == [6, 1]
    assert pool.starts.tolist() == [0, 6]
    assert pool.rows.tolist() == [26, 27, 28, 29, 30, 31, 8]
    assert len(pool) == 7
    both = union("both", [pool, whole("w", table, ["c0"])])
    assert both.classes == ("c3", "c1", "c0")
    assert both.rows.tolist() == [*pool.rows.tolist(), *range(8)]


# ── entitlement ──────────────────────────────────────────────────────────────────────────────

CONFIG = TrainConfig(EpisodeShape(2, 1, 2), Schedule(1, 2, 2), 0)


@pytest.fixture
def small() -> Benchmark:
    """Rounds of 3, 3 and 2 classes; of 8 images each, 5 are trained on and 3 held out."""
    names = tuple(f"c{i}" for i in range(12))
    rounds = (names[:3], names[3:6], names[6:8])
    split = Split(0, rounds, names[8:10], {"unseen": names[10:]}, held_out=3)
    return Benchmark(marked_table(names, 8, (16, 16)), split)


def tensors_in(thing: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor that can be reached from an object by attributes, items and elements."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | int | float | type(None)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_in(value, seen)
    elif isinstance(thing, tuple | list):
        for value in thing:
            yield from tensors_in(value, seen)
    elif hasattr(thing, "__dict__"):
        yield from tensors_in(vars(thing), seen)


def images_in(thing: Any) -> set[int]:
    """Every image that is held anywhere within."""
    found = [t for t in tensors_in(thing) if t.dtype == torch.uint8 and t.ndim == 4]
    assert found, "no images at all: this would prove nothing"
    return {number for images in found for number in numbers(images)}


def test_a_delivery_without_entitlement_refuses_old_images(small: Benchmark) -> None:
    for round in range(3):
        with pytest.raises(EntitlementError, match=f"before round {round}"):
            _ = small.delivery(round).old
        assert small.delivery(round).earlier is None


@pytest.mark.parametrize("round", [1, 2])
def test_a_delivery_without_entitlement_holds_no_old_image_anywhere(
    small: Benchmark, round: int
) -> None:
    names = [name for classes in small.split.rounds[:round] for name in classes]
    old = set(shown(whole("all of their images", small.table, names)))
    assert not old & images_in(small.delivery(round))


@pytest.mark.parametrize("with_old", [False, True])
def test_no_delivery_holds_a_test_image_or_one_of_a_later_round(
    small: Benchmark, with_old: bool
) -> None:
    tested = {image for pool in small.test_pools(1) for image in shown(pool)}
    later = set(shown(small.delivery(2).new))
    assert not (tested | later) & images_in(small.delivery(1, with_old=with_old))


def test_an_entitled_delivery_holds_all_training_images_of_earlier_rounds(
    small: Benchmark,
) -> None:
    old = small.delivery(2, with_old=True).old
    assert old.classes == small.split.rounds[0] + small.split.rounds[1]
    assert shown(old) == [*shown(small.delivery(0).new), *shown(small.delivery(1).new)]


def test_only_a_method_that_is_due_everything_trains_on_old_images(small: Benchmark) -> None:
    entitled = small.delivery(1, with_old=True)
    for name in ("FT", "DFA", "IDA"):
        assert training_pool(parse_method(name), entitled) is entitled.new
    everything = training_pool(parse_method("PAR"), entitled)
    assert everything.classes == small.split.rounds[0] + small.split.rounds[1]
    with pytest.raises(EntitlementError):
        training_pool(parse_method("PAR"), small.delivery(1))
    first = small.delivery(0)
    assert training_pool(parse_method("PAR"), first) is first.new


@dataclasses.dataclass(frozen=True)
class Thief(Alignment):
    """Written to rehearse old images, which it is not entitled to."""

    delivery: RoundData

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return 0

    def penalty(self, sight: AlignmentInputs) -> Tensor:
        return self.delivery.old.table.images.float().mean()


@dataclasses.dataclass(frozen=True)
class Witness(Alignment):
    """Remembers all that it was shown."""

    sights: list[AlignmentInputs] = dataclasses.field(default_factory=list)

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return n_anchors

    def penalty(self, sight: AlignmentInputs) -> Tensor:
        self.sights.append(sight)
        return (sight.new - sight.old).square().sum(1).mean()


@pytest.fixture
def base(small: Benchmark) -> Model:
    config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 1, 16)
    delivery = small.delivery(0)
    start = new_model(config, delivery.new, 0)
    return train_round(start, delivery, Method("base", "new"), CONFIG).model


def test_an_alignment_that_reads_old_images_fails(small: Benchmark, base: Model) -> None:
    delivery = small.delivery(1)
    thief = Method("thief", "new", Thief(delivery))
    with pytest.raises(EntitlementError, match="anchors only"):
        train_round(base, delivery, thief, CONFIG)


def test_a_method_that_trains_on_old_images_without_being_due_them_fails(
    small: Benchmark, base: Model
) -> None:
    with pytest.raises(EntitlementError):
        train_round(base, small.delivery(1), Method("thief", "everything"), CONFIG)


def test_an_alignment_is_shown_features_weights_and_anchors_and_no_pixel(
    small: Benchmark, base: Model
) -> None:
    witness = Witness()
    train_round(base, small.delivery(1), Method("witness", "new", witness), CONFIG)
    assert len(witness.sights) == 2
    for sight in witness.sights:
        assert all(t.dtype != torch.uint8 for t in tensors_in(sight))
        weights = {id(w) for part in (sight.new_weights, sight.old_weights) for w in part.values()}
        assert all(t.ndim <= 2 for t in tensors_in(sight) if id(t) not in weights)
        assert torch.equal(sight.anchors.sort(0).values, base.anchors.sort(0).values)
        assert sight.new.shape == sight.old.shape == (2 * 3, 4)


# ── data that change while the process lives ─────────────────────────────────────────────────


@pytest.mark.parametrize("change", ["written", "added", "removed", "moved"])
def test_changed_folder_is_seen_in_the_same_process(
    tmp_path: Path, draw_classes: Callable[..., Path], change: str
) -> None:
    """As in a notebook, where images are mended between two runs."""
    folder = tmp_path / "mine"
    draw_classes(folder / "train", ["a", "b"], per_class=4)
    draw_classes(folder / "test", ["c", "d"], per_class=4)
    before = opened(str(folder), None, None, None)
    assert opened(str(folder), None, None, None) is before
    image = folder / "train" / "a" / "00.png"
    if change == "written":
        image.write_bytes((folder / "train" / "b" / "01.png").read_bytes())
    elif change == "added":
        (folder / "train" / "a" / "new.png").write_bytes(image.read_bytes())
    elif change == "removed":
        image.unlink()
    else:
        (folder / "train" / "a").rename(folder / "test" / "a")
    after = opened(str(folder), None, None, None)
    assert after.fingerprint != before.fingerprint
    assert len(after) == len(before) + {"added": 1, "removed": -1}.get(change, 0)


def test_changed_packed_file_is_seen_in_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "images"
    table = marked_table("abcd", 3, (16, 16))
    table.save(path)
    before = opened(str(path), None, None, None)
    assert before.fingerprint == table.fingerprint
    other = dataclasses.replace(table, images=255 - table.images)
    other.save(path)
    later = path.stat().st_mtime + 2
    os.utime(path, (later, later))
    assert opened(str(path), None, None, None).fingerprint == other.fingerprint
