"""Named class splits: they never change, and no class plays two roles."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json

import pytest
import torch
from tests.benchmarks.numbered import (
    CHARACTERS,
    all_names,
    numbered_benchmark,
    numbered_table,
    numbers_in,
    split_of,
    table_of,
    table_of_parts,
    with_parts,
)

from kedge.benchmarks import PROTOCOLS, get_protocol
from kedge.benchmarks.base import Benchmark, Split, pool_label
from kedge.benchmarks.class_lists import load_class_lists
from kedge.data.drawings import drawing_domains, load_drawings
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils.config_io import from_dict

# Hashes of the split of seed 0 and of its training images, made by earlier versions.
GOLDEN = {
    "drawings": "b08b8dea94260d60",
    "drawings-reverse": "c01442382252375e",
    "drawings-random": "22bb2b962105d33c",
    "drawings-many": "30a1d24459f423c3",
    "drawings-2-rounds": "4df5fac9aa6239e2",
    "drawings-4-rounds": "f46a2b2cacca64d3",
    "drawings-16-rounds": "27948adb091df442",
    "mini-imagenet": "1f2e275d4ae85d47",
    "mini-imagenet-2-rounds": "f8b4378fcbc241a1",
    "tiered-imagenet": "c4544e9fc78513da",
    "domain-imagenet": "ace6e146e8300eb2",
    "domain-imagenet-reverse": "8f0772124ec7b0e7",
    "tiny-imagenet": "bead0a694ef56f83",
    "tiny-imagenet-2-rounds": "2bbde56171b11250",
    "tiny-imagenet-16-rounds": "ca9280db3d548301",
    "tiny-imagenet-domain": "aaea596ce2f357a9",
    "tiny-imagenet-domain-reverse": "bc54de7fc42712ed",
    "cifar-fs": "dcba8a3320d785ac",
    "omniglot": "7ff55b644fecb1d8",
    "flowers": "fb33b3a9f9493e81",
    "flowers-10-updates": "fdd314426e2ca244",
    "flowers-tuning": "d48baba71667bce9",
    "flowers-tuning-5-updates": "81cd866929948262",
    "folder": "0a404b15d82e51c5",
}
OFFICIAL = {
    "mini-imagenet": "miniImageNet",
    "tiered-imagenet": "tieredImageNet",
    "cifar-fs": "CIFAR-FS",
}
DOMAIN_SHIFTS = ["drawings", "domain-imagenet", *(n for n in PROTOCOLS if n.endswith("reverse"))]
MINI = load_class_lists("miniImageNet")
TINY = all_names(load_class_lists("Tiny-ImageNet"))


@pytest.fixture(params=PROTOCOLS)
def benchmark(request: pytest.FixtureRequest) -> Benchmark:
    return numbered_benchmark(request.param, 3)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_splits_never_change(name: str) -> None:
    benchmark = numbered_benchmark(name, 0)
    sha = hashlib.sha256(json.dumps(dataclasses.asdict(benchmark.split)).encode())
    for round in range(benchmark.n_rounds):
        sha.update(json.dumps(numbers_in(benchmark.train_pool(round))).encode())
    assert sha.hexdigest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_seed_fixes_the_split_and_another_changes_it(name: str) -> None:
    assert split_of(name, 7) == split_of(name, 7)
    for a, b in itertools.combinations([split_of(name, seed) for seed in range(3)], 2):
        pairs = list(zip(a.rounds, b.rounds, strict=True))
        fixed_base = name in ("flowers", "flowers-10-updates")
        if fixed_base:  # settings were chosen on the first classes, which always train
            assert pairs.pop(0) == (a.val, b.val)
        assert all(set(x) != set(y) for x, y in pairs)
        fixed = name.removesuffix("-2-rounds") in OFFICIAL
        assert (a.val == b.val) == (fixed or fixed_base)
        assert (a.unseen == b.unseen) == (fixed or name == "omniglot")


def test_protocols_are_described() -> None:
    for name, protocol in PROTOCOLS.items():
        assert protocol.name == name
        assert "paper" in protocol.description
        assert protocol.description.endswith(".")
        assert bool(protocol.required_data) == (not name.startswith("drawings"))
        if protocol.required_data:
            with pytest.raises(KedgeError, match=f"--data.*{name}"):
                protocol.benchmark(0)
        else:
            assert protocol.benchmark(3) == Benchmark(load_drawings(), split_of(name, 3))
            with pytest.raises(KedgeError, match=r"--data.*photos"):
                protocol.benchmark(0, "photos")
    with pytest.raises(KedgeError, match=r"'mini'.*drawings-random"):
        get_protocol("mini")


def test_roles_share_no_class(benchmark: Benchmark) -> None:
    split = benchmark.split
    unseen = [classes for name, classes in split.unseen.items() if name != "unseen_both"]
    # The flowers have no classes left to validate on: training images of the first ones do.
    val = () if split.val == split.rounds[0] else split.val
    names = [name for role in (*split.rounds, val, *unseen) for name in role]
    assert len(names) == len(set(names))
    assert set(names) <= set(benchmark.table.classes)
    saved = json.loads(json.dumps(dataclasses.asdict(split)))
    assert from_dict(Split, saved) == split


def test_images_of_trained_classes_are_trained_on_or_held_out(benchmark: Benchmark) -> None:
    last = benchmark.n_rounds - 1
    for round, classes in enumerate(benchmark.split.rounds):
        train = benchmark.round_data(round).train
        assert train.classes == classes
        later = benchmark.round_data(last, with_old=True).old if round < last else train
        tests = [
            p for t in {round, last} for p in benchmark.test_pools(t) if classes[0] in p.classes
        ]
        for name in classes[::7]:
            trained, held_out = numbers_in(train, name), numbers_in(tests[0], name)
            assert numbers_in(later, name) == trained
            assert all(numbers_in(pool, name) == held_out for pool in tests)
            assert sorted([*trained, *held_out]) == benchmark.table.rows_of(name).tolist()


def test_no_test_image_was_trained_or_validated_on(benchmark: Benchmark) -> None:
    last = benchmark.round_data(benchmark.n_rounds - 1, with_old=True)
    used = {*numbers_in(last.old), *numbers_in(last.train), *numbers_in(last.val)}
    assert numbers_in(benchmark.round_data(0).val) == numbers_in(last.val)
    for round in range(benchmark.n_rounds):
        for pool in benchmark.test_pools(round):
            assert not used & set(numbers_in(pool)), pool.name


def test_pools_after_each_round() -> None:
    benchmark = numbered_benchmark("drawings-4-rounds", 0)
    rounds = benchmark.split.rounds
    for round in range(5):
        pools = {pool.name: pool.classes for pool in benchmark.test_pools(round)}
        assert pools["old"] == sum(rounds[: max(round, 1)], ())
        assert pools.get("new") == (rounds[round] if round else None)
        assert pools["unseen"] == benchmark.split.unseen["unseen"]
        assert {f"round_{t}" for t in range(5)} <= set(pools)
    names = [pool.name for pool in numbered_benchmark("drawings", 0).test_pools(1)]
    assert names == ["old", "new", "unseen_old_domain", "unseen_new_domain", "unseen_both"]
    labels = [pool_label(name) for name in ("unseen_old_domain", "round_3", "old")]
    assert labels == ["unseen, old domain", "classes of round 3", "old"]


@pytest.mark.parametrize(
    "name", [name for name in PROTOCOLS if "domain" in name or "reverse" in name]
)
def test_domain_benchmarks_go_from_one_domain_to_the_other(name: str) -> None:
    split = split_of(name, 1)
    domains = load_class_lists("ImageNet") if "imagenet" in name else drawing_domains()
    old, new = set(domains["natural"]), set(domains["manmade"])
    old, new = (new, old) if name.endswith("reverse") else (old, new)
    assert set(split.rounds[0]) | set(split.unseen["unseen_old_domain"]) <= old
    assert set(split.rounds[1]) | set(split.unseen["unseen_new_domain"]) <= new
    assert (len(set(split.val) & old), len(set(split.val) & new)) == (8, 8)


def test_packaged_lists_have_their_official_sizes() -> None:
    for dataset, sizes in {
        "miniImageNet": [64, 16, 20],
        "tieredImageNet": [351, 97, 160],
        "ImageNet": [449, 551],
        "Tiny-ImageNet": [72, 128],
        "CIFAR-FS": [64, 16, 20],
    }.items():
        lists = load_class_lists(dataset)
        assert [len(names) for names in lists.values()] == sizes
        assert len(set(all_names(lists))) == sum(sizes)


def unequal_table(counts: dict[str, int]) -> ImageTable:
    labels = [i for i, n in enumerate(counts.values()) for _ in range(n)]
    return ImageTable.build(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, [*counts])


def unnamed(*sizes: int) -> dict[str, list[str]]:
    """Classes without known names in the parts train, val and test."""
    names = iter(f"class {i:04}" for i in range(sum(sizes)))
    parts = zip(("train", "val", "test"), sizes, strict=True)
    return {part: list(itertools.islice(names, n)) for part, n in parts if n}


@pytest.mark.parametrize(
    ("smallest", "held_out"), [(900, 300), (899, 149), (100, 20), (30, 15), (1, 0)]
)
def test_number_of_held_out_images_follows_from_the_smallest_class(
    smallest: int, held_out: int
) -> None:
    counts = dict.fromkeys(MINI["train"], 1300) | dict.fromkeys(MINI["val"] + MINI["test"], 1)
    counts[MINI["train"][9]] = smallest
    assert get_protocol("mini-imagenet").draw(0, unequal_table(counts)).held_out == held_out


def test_other_classes_and_their_order_change_nothing() -> None:
    more = numbered_table(["n00000000", *reversed(all_names(MINI)), "others"], 100)
    assert get_protocol("mini-imagenet").draw(3, more) == split_of("mini-imagenet", 3)
    classes = table_of("domain-imagenet").classes
    for name in ("domain-imagenet", "folder"):
        draw = get_protocol(name).draw
        assert draw(3, numbered_table(classes[::-1], 100)) == draw(3, table_of("domain-imagenet"))


@pytest.mark.parametrize("name", OFFICIAL)
def test_unnamed_classes_are_used_if_their_parts_have_the_official_sizes(name: str) -> None:
    lists, draw = load_class_lists(OFFICIAL[name]), get_protocol(name).draw
    sizes = [len(names) for names in lists.values()]
    parts = unnamed(*sizes)
    split = draw(0, table_of_parts(parts, 6))
    assert sorted(sum(split.rounds, ())) == parts["train"]
    assert (split.val, split.unseen) == (tuple(parts["val"]), {"unseen": tuple(parts["test"])})
    by_image = numbered_table(all_names(parts), 3)
    other_sizes = unnamed(sizes[0] - 1, sizes[1] + 1, sizes[2])
    one_known = {**parts, "train": [*parts["train"][1:], lists["test"][0]]}
    for table in (
        table_of_parts(other_sizes, 2),
        with_parts(by_image, ["train", "val", "test"] * sum(sizes)),
        table_of_parts(one_known, 2),
    ):
        with pytest.raises(KedgeError, match=f"classes of {OFFICIAL[name]} are missing"):
            draw(0, table)
    named, n = table_of(name), len(table_of(name).classes)
    parts_by_image = (["train"] * 60 + ["val"] * 20 + ["test"] * 20) * n
    assert draw(0, with_parts(named, parts_by_image)) == split_of(name, 0)


def paper_table(exception: str = "") -> ImageTable:
    """miniImageNet with two further images of each training class, but for the exception."""
    further = ["train"] * 4 + ["held out", "another", "held out"]
    parts = []
    for name in all_names(MINI):
        parts += further if name in MINI["train"] and name != exception else ["train"] * 7
    return with_parts(numbered_table(all_names(MINI), 7), parts)


def test_further_images_of_all_trained_classes_are_held_out() -> None:
    table, draw = paper_table(), get_protocol("mini-imagenet").draw
    benchmark = Benchmark(table, draw(0, table))
    assert benchmark.split == dataclasses.replace(split_of("mini-imagenet", 0), held_out="held out")
    old, new = benchmark.round_data(1).train, benchmark.test_pools(1)[1]
    assert set(old.counts.tolist()) == {4}
    assert set(new.counts.tolist()) == {2}
    start = int(table.rows_of(new.classes[0])[0])
    assert numbers_in(new, new.classes[0]) == [start + 4, start + 6]
    assert draw(0, paper_table(exception=MINI["train"][5])).held_out == 3


@pytest.mark.parametrize("n", [20, 37, 1000])
def test_folder_is_split_in_fifths_and_tenths(n: int) -> None:
    table = numbered_table([f"class {i}" for i in range(n)], 6)
    split = get_protocol("folder").draw(0, table)
    roles = [*split.rounds, split.val, split.unseen["unseen"]]
    assert sorted(sum(roles, ())) == sorted(table.classes)
    old, new, val, unseen = map(len, roles)
    assert 0 <= old - new <= 1
    assert val == unseen == max(5, round(n / 10))
    with pytest.raises(KedgeError, match="19 classes"):
        get_protocol("folder").draw(0, numbered_table(table.classes[:19], 6))


def test_folder_uses_the_data_s_own_class_split_if_it_is_large_enough() -> None:
    draw, parts = get_protocol("folder").draw, unnamed(11, 5, 6)
    split = draw(0, table_of_parts(parts, 12))
    assert tuple(map(len, split.rounds)) == (6, 5)
    assert sorted(sum(split.rounds, ())) == parts["train"]
    assert (split.val, split.unseen) == (tuple(parts["val"]), {"unseen": tuple(parts["test"])})
    by_image = numbered_table([f"class {i:02}" for i in range(30)], 3)
    tables = [table_of_parts(unnamed(*sizes), 6) for sizes in ((9, 6, 6), (20, 4, 6), (21, 6, 0))]
    for table in (*tables, with_parts(by_image, ["train", "val", "test"] * 30)):
        plain = dataclasses.replace(table, parts=(), part=None)
        assert draw(4, table) == draw(4, plain)


def test_domains_and_tiny_imagenet_need_enough_classes() -> None:
    domains = load_class_lists("ImageNet")
    few = numbered_table([*domains["natural"][::7], *domains["manmade"][:59]], 1)
    with pytest.raises(KedgeError, match="59 of ImageNet's 551 man-made"):
        get_protocol("domain-imagenet").draw(0, few)
    draw, named = get_protocol("tiny-imagenet").draw, split_of("tiny-imagenet", 0)
    assert draw(0, table_of("domain-imagenet")) == named
    other_names = numbered_table([f"class {i:03}" for i in range(200)], 100)
    expected = tuple(tuple(f"class {TINY.index(n):03}" for n in names) for names in named.rounds)
    assert draw(0, other_names).rounds == expected
    with pytest.raises(KedgeError, match="150 of the 200"):
        draw(0, numbered_table([*TINY[:150], *(f"class {i}" for i in range(49))], 2))
    assert draw(0, unequal_table(dict.fromkeys(TINY, 550))).held_out == 150


def test_omniglot_needs_both_archives() -> None:
    split, draw = split_of("omniglot", 0), get_protocol("omniglot").draw
    assert sorted(sum((*split.rounds, split.val), ())) == sorted(CHARACTERS["train"])
    assert split.held_out == 10
    for part, archive in (("train", "images_background"), ("test", "images_evaluation")):
        with pytest.raises(KedgeError, match=archive):
            draw(0, table_of_parts(CHARACTERS | {part: CHARACTERS[part][1:]}, 2))
    table = table_of_parts(CHARACTERS | {"train": CHARACTERS["train"][1:]}, 2)
    assert table.part is not None
    shared, part = CHARACTERS["test"][0], table.part.clone()
    part[table.rows_of(shared)[0]] = table.parts.index("train")
    with pytest.raises(KedgeError, match=shared):
        draw(0, dataclasses.replace(table, part=part))
