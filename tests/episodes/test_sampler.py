"""Plans: which images form each episode."""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pytest
import torch

from kedge.config import Count, EpisodeShape
from kedge.data.pools import Pool, whole
from kedge.data.table import ImageTable
from kedge.episodes.sampler import (
    check_pool,
    sample_anchors,
    sample_episodes,
)
from kedge.errors import KedgeError
from kedge.utils.seeding import generator


def pool(sizes: Sequence[int]) -> Pool:
    """Classes c0, c1, … of these sizes; only the indices matter here."""
    labels = [i for i, n in enumerate(sizes) for _ in range(n)]
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return whole("training", ImageTable.build(images, labels, [f"c{i}" for i in range(len(sizes))]))


def looks_uniform(seen: Iterable[Hashable], cells: Sequence[Hashable], factor: float = 1) -> bool:
    """Chi-square, within the 0.1% and the 99.9% quantile (Wilson and Hilferty's approximation).

    `factor` makes up for draws without replacement, whose counts vary less.
    """
    counts = Counter(seen)
    assert set(counts) <= set(cells), "something outside the cells was drawn"
    expected, df = sum(counts.values()) / len(cells), len(cells) - 1
    assert expected >= 5, "too few draws for this test to mean anything"
    statistic = factor * sum((counts[cell] - expected) ** 2 for cell in cells) / expected
    low, high = (df * (1 - 2 / (9 * df) + z * (2 / (9 * df)) ** 0.5) ** 3 for z in (-3.09, 3.09))
    return low <= statistic <= high


def without_replacement(n: int, k: int) -> float:
    return (n - 1) / (n - k)


@pytest.mark.parametrize("cells", [[0, 1, 2, 3], list(range(50))])
def test_the_chi_square_itself_tells_fair_from_loaded_dice(cells: list[int]) -> None:
    fair = np.random.default_rng(0).integers(0, len(cells), 4000).tolist()
    assert looks_uniform(fair, cells)
    assert not looks_uniform([*fair, *([1] * 200)], cells)
    assert not looks_uniform(cells * 80, cells), "this even would be no accident"


# ── what an episode is ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(2, 1, 1), (5, 1, 15), (5, 5, 15), (20, 5, 3), (3, 10, 2)])
def test_any_shape_gives_distinct_classes_and_distinct_images_of_them(
    shape: tuple[int, int, int],
) -> None:
    k, s, q = shape
    images = pool([s + q + 7 * i for i in range(20)])  # c0 has just enough
    plan = sample_episodes(images, EpisodeShape(k, s, q), 50, generator("test", 0))
    assert plan.positions.shape == (50, k, s + q)
    assert plan.classes.shape == (50, k)
    assert (plan.n_way, plan.n_shot, len(plan)) == ((k,) * 50, (s,) * 50, 50)
    labels = images.table.labels[images.rows[plan.positions]]
    assert torch.equal(labels, plan.classes[..., None].expand_as(labels)), "an image of another way"
    for classes, positions in zip(plan.classes.tolist(), plan.positions.tolist(), strict=True):
        assert len(set(classes)) == k
        for of_class in positions:
            assert len(set(of_class)) == s + q, "support and query share an image"


def test_all_classes_and_all_images_are_drawn_eventually() -> None:
    images = pool([4, 9, 30, 5, 6])
    plan = sample_episodes(images, EpisodeShape(2, 1, 3), 800, generator("test", 1))
    support, query = plan.positions[..., :1], plan.positions[..., 1:]
    for part in (support, query):
        assert part.unique().tolist() == list(range(len(images)))


def test_a_class_with_just_enough_images_gives_all_of_them() -> None:
    images = pool([6, 50])
    plan = sample_episodes(images, EpisodeShape(2, 2, 4), 30, generator("test", 2))
    tight = plan.positions[plan.classes == 0]
    assert tight.sort(1).values.tolist() == [list(range(6))] * 30


def test_a_pool_that_is_part_of_a_table_gives_its_own_rows_only() -> None:
    table = pool([9, 9, 9]).table
    part = Pool("part", table, ("c2", "c0"), (table.rows_of("c2")[4:], table.rows_of("c0")[1:6]))
    plan = sample_episodes(part, EpisodeShape(2, 2, 2), 100, generator("test", 3))
    rows = part.rows[plan.positions]
    assert rows.unique().tolist() == [1, 2, 3, 4, 5, 22, 23, 24, 25, 26]
    assert torch.equal(table.labels[rows][..., 0], torch.tensor([2, 0])[plan.classes])


# ── how it is drawn ──────────────────────────────────────────────────────────────────────────


def test_classes_are_uniform_whatever_their_sizes() -> None:
    images = pool([4, 200, 5, 17, 4, 90, 8])
    plan = sample_episodes(images, EpisodeShape(3, 1, 3), 3000, generator("test", 4))
    cells = range(7)
    assert looks_uniform(plan.classes.flatten().tolist(), cells, without_replacement(7, 3))
    for way in range(3):
        assert looks_uniform(plan.classes[:, way].tolist(), cells)


def test_every_combination_of_classes_is_as_likely() -> None:
    plan = sample_episodes(pool([2] * 6), EpisodeShape(3, 1, 1), 4000, generator("test", 5))
    drawn = [tuple(sorted(classes)) for classes in plan.classes.tolist()]
    assert looks_uniform(drawn, list(itertools.combinations(range(6), 3)))


def test_images_within_a_class_are_uniform_in_support_and_in_query() -> None:
    images = pool([40, 11])
    plan = sample_episodes(images, EpisodeShape(2, 2, 4), 3000, generator("test", 6))
    for name, size, start in ((0, 40, 0), (1, 11, 40)):
        within = plan.positions[plan.classes == name] - start
        cells = range(size)
        assert looks_uniform(within[:, :2].flatten().tolist(), cells, without_replacement(size, 2))
        assert looks_uniform(within[:, 2:].flatten().tolist(), cells, without_replacement(size, 4))
        for place in range(6):
            assert looks_uniform(within[:, place].tolist(), cells)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_arrangement_of_support_and_query_is_as_likely(size: int) -> None:
    plan = sample_episodes(pool([size, size]), EpisodeShape(2, 1, 2), 3000, generator("test", 7))
    drawn = [tuple(images) for images in plan.positions[plan.classes == 0].tolist()]
    assert looks_uniform(drawn, list(itertools.permutations(range(size), 3)))


def test_ways_and_episodes_are_drawn_independently() -> None:
    plan = sample_episodes(pool([5, 5]), EpisodeShape(2, 1, 1), 4000, generator("test", 8))
    first = plan.positions[:, :, 0].sort(1).values  # the support image of c0 and that of c1
    cells = [(a, b) for a in range(5) for b in range(5, 10)]
    assert looks_uniform(map(tuple, first.tolist()), cells)
    following = zip(first[0:-1:2, 0].tolist(), first[1::2, 0].tolist(), strict=True)
    assert looks_uniform(following, [(a, b) for a in range(5) for b in range(5)])


def test_a_plan_depends_on_its_key_alone() -> None:
    images, shape = pool([9, 12, 30, 10]), EpisodeShape(3, 2, 3)

    def plan(*key: int | str) -> list:
        return sample_episodes(images, shape, 20, generator(*key)).positions.tolist()

    first = plan("train", 0, 1, 2)
    np.random.seed(1)
    torch.manual_seed(1)
    plan("train", 5, 5, 5)
    assert plan("train", 0, 1, 2) == first
    others = [("train", 0, 1, 3), ("train", 0, 2, 2), ("train", 1, 1, 2), ("test", 0, 1, 2)]
    assert all(plan(*key) != first for key in others)


# ── what is refused ──────────────────────────────────────────────────────────────────────────


def test_too_few_classes_names_the_pool_and_the_option() -> None:
    with pytest.raises(KedgeError, match=r"training pool has 2 classes.* needs 3 .*--n-way"):
        check_pool(pool([9, 9]), EpisodeShape(3, 1, 1))
    with pytest.raises(KedgeError, match="has 1 class,"):
        check_pool(pool([9]), EpisodeShape(3, 1, 1))
    with pytest.raises(KedgeError, match="has 0 classes,"):
        check_pool(pool([]), EpisodeShape(3, 1, 1))


def test_a_class_with_too_few_images_is_named_with_what_it_lacks() -> None:
    images, shape = pool([9, 3, 9, 4]), EpisodeShape(2, 2, 3)
    with pytest.raises(KedgeError, match=r"'c1' has 3 images in the training pool.* needs 5 .*"):
        check_pool(images, shape)
    with pytest.raises(
        KedgeError, match=r"1 image in .* needs 2 of each class \(1 shot \+ 1 query\)"
    ):
        check_pool(pool([9, 1]), EpisodeShape(2, 1, 1))
    with pytest.raises(KedgeError, match="'c1'"):
        sample_episodes(images, shape, 10, generator("test", 9))
    check_pool(pool([5, 5]), shape)


# ── anchors ──────────────────────────────────────────────────────────────────────────────────


def test_anchors_of_a_step_are_distinct_and_uniform() -> None:
    drawn = sample_anchors(12, 5, 3000, generator("anchors", 0))
    assert drawn.shape == (3000, 5)
    assert all(len(set(step)) == 5 for step in drawn.tolist())
    assert looks_uniform(drawn.flatten().tolist(), range(12), without_replacement(12, 5))
    pairs = [tuple(sorted(step)) for step in sample_anchors(7, 2, 3000, generator("a", 1)).tolist()]
    assert looks_uniform(pairs, list(itertools.combinations(range(7), 2)))


def test_all_anchors_are_used_where_there_are_few() -> None:
    drawn = sample_anchors(3, 5, 10, generator("anchors", 0))
    assert drawn.sort(1).values.tolist() == [[0, 1, 2]] * 10


@pytest.mark.parametrize("n_anchors", [0, 8])
def test_no_anchors_are_drawn_where_none_are_asked_for(n_anchors: int) -> None:
    assert sample_anchors(n_anchors, 0, 10, generator("anchors", 0)).shape == (10, 0)


# ── ways and shots that are drawn for each episode ───────────────────────────────────────────


def test_each_episode_draws_its_own_ways_and_shots() -> None:
    images = pool([30 + i for i in range(12)])
    shape = EpisodeShape((3, 8), (1, 5), 4)
    plan = sample_episodes(images, shape, 400, generator("test", 0))
    assert set(plan.n_way) == set(range(3, 9))
    assert set(plan.n_shot) == set(range(1, 6))
    assert len(set(zip(plan.n_way, plan.n_shot, strict=True))) == 30, "independent of each other"
    for i in range(len(plan)):
        positions, classes = plan.episode(i)
        assert positions.shape == (plan.n_way[i], plan.n_shot[i] + 4)
        assert len(set(classes.tolist())) == plan.n_way[i]
        for row, c in zip(positions, classes, strict=True):
            start = int(images.starts[c])
            assert all(start <= p < start + int(images.counts[c]) for p in row.tolist())
            assert len(set(row.tolist())) == len(row)


def test_episodes_of_one_shape_come_together_and_none_is_lost() -> None:
    plan = sample_episodes(pool([30] * 12), EpisodeShape((2, 4), (1, 3), 2), 60, generator("x"))
    seen = []
    for which, positions, n_shot in plan.alike():
        for i, episode in zip(which.tolist(), positions, strict=True):
            assert torch.equal(episode, plan.episode(i)[0])
            assert n_shot == plan.n_shot[i]
            seen.append(i)
    assert sorted(seen) == list(range(60))


def test_a_range_of_one_is_a_number() -> None:
    plans = [
        sample_episodes(pool([30] * 12), EpisodeShape(way, shot, 3), 20, generator("x"))
        for way, shot in ((5, 2), ((5, 5), (2, 2)))
    ]
    assert torch.equal(plans[0].positions, plans[1].positions)
    assert plans[0].n_shot == plans[1].n_shot


@pytest.mark.parametrize(
    ("way", "shot", "said"),
    [((2, 13), 1, "episode needs 13"), (5, (1, 40), "needs 43 of each class")],
)
def test_a_pool_must_hold_the_most_of_a_range(way: Count, shot: Count, said: str) -> None:
    with pytest.raises(KedgeError, match=said):
        sample_episodes(pool([30] * 12), EpisodeShape(way, shot, 3), 1, generator("x"))


# ── hard tasks ───────────────────────────────────────────────────────────────────────────────


def test_every_other_episode_is_made_of_near_classes() -> None:
    """Class i and its nearest ones stand on a line: i ± 1, i ± 2, …"""
    n, k = 40, 5
    lines = [sorted((j for j in range(n) if j != i), key=lambda j: abs(i - j)) for i in range(n)]
    nearest = torch.tensor(lines)
    plan = sample_episodes(pool([10] * n), EpisodeShape(k, 1, 1), 4000, generator("x"), nearest)
    near = [set(row[1:]) <= set(lines[row[0]][: 2 * (k - 1)]) for row in plan.classes.tolist()]
    assert 0.47 < sum(near) / len(near) < 0.53
    assert all(len(set(row)) == k for row in plan.classes.tolist())
    firsts = plan.classes[:, 0].bincount(minlength=n)
    assert firsts.min() > 60, "every class gets its turn"


def test_hard_episodes_of_few_classes_use_all_there_are() -> None:
    nearest = torch.tensor([[1, 2], [0, 2], [1, 0]])
    plan = sample_episodes(pool([10] * 3), EpisodeShape(3, 1, 1), 50, generator("x"), nearest)
    assert all(sorted(row) == [0, 1, 2] for row in plan.classes.tolist())
