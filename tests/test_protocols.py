"""Who plays which role, and who may read whose images."""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kedge.alignment import Alignment, Sight
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.errors import EntitlementError, KedgeError
from kedge.images.drawings import domains, load_drawings
from kedge.images.table import ImageTable
from kedge.methods import Method, parse_method
from kedge.model import Model, ModelConfig, new_model
from kedge.pools import Benchmark, Delivery, Pool, Split, label, union, whole
from kedge.protocols import PROTOCOLS, protocol
from kedge.protocols.imagenet import imagenet_domains, official
from kedge.training import train_round, training_pool

ROUNDS = {
    "drawings": (64, 64),
    "drawings-reverse": (64, 64),
    "drawings-random": (64, 64),
    "drawings-many": (128, 128),
    "drawings-2-rounds": (64, 32, 32),
    "drawings-4-rounds": (64, 16, 16, 16, 16),
    "mini-imagenet": (32, 32),
    "mini-imagenet-2-rounds": (32, 16, 16),
    "tiered-imagenet": (176, 175),
    "domain-imagenet": (32, 32),
    "domain-imagenet-reverse": (32, 32),
    "folder": (139, 138),  # of 345 classes
}
OFFICIAL = {
    "mini-imagenet": "miniImageNet",
    "mini-imagenet-2-rounds": "miniImageNet",
    "tiered-imagenet": "tieredImageNet",
}
ILSVRC = sorted(name for part in imagenet_domains().values() for name in part)


def marked_table(classes: Sequence[str], per_class: int, size: tuple[int, int]) -> ImageTable:
    """No two images are alike: the first four pixels of each are its number."""
    n = len(classes) * per_class
    pixels = torch.zeros(n, 1, *size, dtype=torch.uint8)
    pixels[:, 0, 0, :4] = torch.arange(n, dtype=torch.int32)[:, None].view(torch.uint8)
    return ImageTable.build(pixels, [i // per_class for i in range(n)], classes)


def numbers(images: Tensor) -> list[int]:
    """Which images of a marked table these are, wherever they have been copied to."""
    return images[:, 0, 0, :4].contiguous().view(torch.int32).flatten().tolist()


def shown(pool: Pool, name: str | None = None) -> list[int]:
    """The images of a pool, or of one class in it."""
    rows = pool.rows if name is None else pool.class_rows[pool.classes.index(name)]
    return numbers(pool.table.images[rows])


@functools.cache
def marked(of_imagenet: bool) -> ImageTable:
    """All classes of ImageNet or of the drawings, each with 100 numbers for images."""
    drawings = sorted(name for part in domains().values() for name in part)
    return marked_table(ILSVRC if of_imagenet else drawings, 100, (1, 4))


def split_of(name: str, seed: int) -> Split:
    return protocol(name).draw(seed, marked("imagenet" in name))


def marked_benchmark(name: str, seed: int) -> Benchmark:
    """A named benchmark whose images are replaced by numbers."""
    return Benchmark(marked("imagenet" in name), split_of(name, seed))


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
    ],
)
def test_domain_benchmarks_go_from_one_domain_to_the_other(
    name: str, first: str, second: str, seed: int
) -> None:
    split = split_of(name, seed)
    parts = imagenet_domains() if "imagenet" in name else domains()
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
    "name", ["drawings-random", "drawings-many", "drawings-2-rounds", "drawings-4-rounds"]
)
def test_random_benchmarks_mix_the_domains(name: str) -> None:
    split = split_of(name, 0)
    assert (len(split.val), len(split.unseen["unseen"])) == (16, 72)
    natural = set(domains()["natural"])
    for role in (*split.rounds, split.val, split.unseen["unseen"]):
        assert natural & set(role)
        assert set(role) - natural


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_seed_fixes_the_split_and_another_changes_it(name: str) -> None:
    assert split_of(name, 7) == split_of(name, 7)
    splits = [split_of(name, seed) for seed in range(4)]
    for a, b in itertools.combinations(splits, 2):
        others = [*zip((a.val, *a.unseen.values()), (b.val, *b.unseen.values()), strict=True)]
        if name in OFFICIAL:
            assert all(one == other for one, other in others)
            others = []
        roles = [*zip(a.rounds, b.rounds, strict=True), *others]
        assert all(set(one) != set(other) for one, other in roles)


@pytest.mark.parametrize(
    ("one", "several"),
    [("mini-imagenet", "mini-imagenet-2-rounds"), ("drawings-random", "drawings-2-rounds")],
)
def test_more_rounds_share_the_old_classes_and_divide_the_new_ones(one: str, several: str) -> None:
    a, b = split_of(one, 5), split_of(several, 5)
    assert a.rounds == (b.rounds[0], b.rounds[1] + b.rounds[2])
    assert (a.val, a.unseen) == (b.val, b.unseen)


def test_a_seed_changes_which_images_are_held_out() -> None:
    a, b = (marked_benchmark("drawings", seed) for seed in (0, 1))
    name = min(set(a.split.rounds[0]) & set(b.split.rounds[0]))
    assert shown(a.test_pools(0)[0], name) != shown(b.test_pools(0)[0], name)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(KedgeError, match=r"no protocol 'mini'.*drawings-random"):
        protocol("mini")


# ── images on disk ───────────────────────────────────────────────────────────────────────────


def unequal_table(counts: dict[str, int]) -> ImageTable:
    labels = [i for i, n in enumerate(counts.values()) for _ in range(n)]
    return ImageTable.build(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, [*counts])


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_classes_keep_their_official_roles(name: str) -> None:
    split, lists = split_of(name, 2), official(OFFICIAL[name])
    assert sorted(c for classes in split.rounds for c in classes) == sorted(lists["train"])
    assert (split.val, split.unseen) == (lists["val"], {"unseen": lists["test"]})


def test_the_packaged_class_lists_are_whole() -> None:
    sizes = {name: [len(part) for part in official(name).values()] for name in OFFICIAL.values()}
    assert sizes == {"miniImageNet": [64, 16, 20], "tieredImageNet": [351, 97, 160]}
    assert {part: len(names) for part, names in imagenet_domains().items()} == {
        "natural": 449,
        "manmade": 551,
    }
    assert len(set(ILSVRC)) == 1000
    for name in OFFICIAL.values():
        names = [c for part in official(name).values() for c in part]
        assert len(names) == len(set(names))
        assert set(names) <= set(ILSVRC)


def test_the_packaged_class_lists_are_the_official_ones() -> None:
    folder = Path(__file__).parents[2] / "shared" / "data" / "imagenet"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not on this machine")
    files = {
        "mini_imagenet_classes": official("miniImageNet"),
        "tiered_imagenet_classes": official("tieredImageNet"),
        "ilsvrc_natural_manmade": imagenet_domains(),
    }
    for name, ours in files.items():
        theirs = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert {part: list(names) for part, names in ours.items()} == theirs


@pytest.mark.parametrize(
    ("smallest", "held_out"),
    [(1300, 300), (900, 300), (899, 149), (600, 100), (100, 20), (40, 20), (30, 15), (1, 0)],
)
def test_held_out_images_follow_from_the_smallest_trained_class(
    smallest: int, held_out: int
) -> None:
    lists = official("miniImageNet")
    counts = dict.fromkeys(lists["train"], 1300) | dict.fromkeys(lists["val"] + lists["test"], 1)
    counts[lists["train"][9]] = smallest
    assert protocol("mini-imagenet").draw(0, unequal_table(counts)).held_out == held_out


def test_other_classes_and_their_order_change_nothing() -> None:
    names = [c for part in official("miniImageNet").values() for c in part]
    more = marked_table(["n00000000", *reversed(names), "others"], 100, (1, 4))
    assert protocol("mini-imagenet").draw(3, more) == split_of("mini-imagenet", 3)
    shuffled = marked_table(ILSVRC[::-1], 100, (1, 4))
    for name in ("domain-imagenet", "folder"):
        chosen = protocol(name)
        assert chosen.draw(3, shuffled) == chosen.draw(3, marked(True))


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

    def write(classes: Sequence[str], side: int = 84) -> str:
        path = tmp_path / "images.safetensors"
        marked_table(classes, 2, (side, side)).save(path)
        return str(path)

    return write


def test_images_on_disk_are_read_once_for_all_seeds(pack: Callable[..., str]) -> None:
    lists = official("miniImageNet")
    data = pack([c for part in lists.values() for c in part])
    first, second = (protocol("mini-imagenet").benchmark(seed, data) for seed in (0, 1))
    assert first.table is second.table
    assert first.table.source == data
    assert first.split != second.split
    assert set(first.split.rounds[0]) < set(lists["train"])
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
            what = "per class" if chosen.name == "folder" else "WordNet id"
            with pytest.raises(
                KedgeError, match=rf"^--data: .* {chosen.name} needs a folder.*{what}"
            ):
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


# ── images: trained on, or held out ──────────────────────────────────────────────────────────


def test_of_100_images_some_are_held_out_for_good(drawn: Benchmark) -> None:
    last = drawn.n_rounds - 1
    n_held_out = 30 if drawn.split.held_out == 30 else 20
    for round, classes in enumerate(drawn.split.rounds):
        trained = drawn.delivery(round).new
        assert trained.classes == classes
        later = [drawn.delivery(t, with_old=True).old for t in range(round + 1, last + 1)]
        tests = [
            pool
            for t in range(round, last + 1)
            for pool in drawn.test_pools(t)
            if set(classes) & set(pool.classes)
        ]
        for name in classes[::7]:
            images = shown(trained, name)
            assert len(set(images)) == 100 - n_held_out
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
    assert label("unseen_old_domain") == "unseen, old domain"
    assert label("round_3") == "classes of round 3"
    assert label("old") == "old"


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

    delivery: Delivery

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return 0

    def penalty(self, sight: Sight) -> Tensor:
        return self.delivery.old.table.images.float().mean()


@dataclasses.dataclass(frozen=True)
class Witness(Alignment):
    """Remembers all that it was shown."""

    sights: list[Sight] = dataclasses.field(default_factory=list)

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return n_anchors

    def penalty(self, sight: Sight) -> Tensor:
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
