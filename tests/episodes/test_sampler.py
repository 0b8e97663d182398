"""Which images form each episode: distinct, uniform, and a function of the key alone."""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pytest
import torch

from kedge.config import Count, EpisodeShape
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import EpisodeSampler, check_pool, sample_anchors, sample_episodes
from kedge.errors import KedgeError
from kedge.utils.seeding import generator


def pool(sizes: Sequence[int]) -> Pool:
    """Classes c0, c1, … of these sizes; an image is one pixel, the number of its row."""
    labels = [i for i, n in enumerate(sizes) for _ in range(n)]
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None]
    names = [f"c{i}" for i in range(len(sizes))]
    return Pool.all("training", ImageTable.build(pixels, labels, names))


def looks_uniform(seen: Iterable[Hashable], cells: Sequence[Hashable], factor: float = 1) -> bool:
    """Chi-square, within the 0.1% and the 99.9% quantile (Wilson and Hilferty's approximation).

    `factor` corrects for draws without replacement, whose counts vary less.
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


# ── what an episode is ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(2, 1, 1), (5, 5, 15), (20, 5, 3)])
def test_classes_and_images_of_an_episode_are_distinct(shape: tuple[int, int, int]) -> None:
    k, s, q = shape
    images = pool([s + q + 7 * i for i in range(20)])  # c0 has just enough
    indices = sample_episodes(images, EpisodeShape(k, s, q), 50, generator("test", 0))
    assert (indices.n_way, indices.n_shot, len(indices)) == ((k,) * 50, (s,) * 50, 50)
    labels = images.table.labels[images.rows[indices.positions]]
    assert torch.equal(labels, indices.classes[..., None].expand(50, k, s + q))
    for classes, positions in zip(indices.classes, indices.positions, strict=True):
        assert len(classes.unique()) == k
        assert len(positions.unique()) == k * (s + q), "support and query share an image"


def test_pool_that_is_part_of_a_table_gives_all_of_its_own_rows() -> None:
    table = pool([9, 9, 9]).table
    part = Pool("part", table, ("c2", "c0"), (table.rows_of("c2")[4:], table.rows_of("c0")[1:6]))
    indices = sample_episodes(part, EpisodeShape(2, 2, 2), 100, generator("test", 3))
    rows = part.rows[indices.positions]
    for images in (rows[..., :2], rows[..., 2:]):
        assert images.unique().tolist() == [1, 2, 3, 4, 5, 22, 23, 24, 25, 26]
    assert torch.equal(table.labels[rows][..., 0], torch.tensor([2, 0])[indices.classes])


# ── how it is drawn ──────────────────────────────────────────────────────────────────────────


def test_classes_are_uniform_whatever_their_sizes() -> None:
    images = pool([4, 200, 5, 17, 4, 90, 8])
    indices = sample_episodes(images, EpisodeShape(3, 1, 3), 3000, generator("test", 4))
    factor = without_replacement(7, 3)
    assert looks_uniform(indices.classes.flatten().tolist(), range(7), factor)
    for way in range(3):
        assert looks_uniform(indices.classes[:, way].tolist(), range(7))
    sets = [tuple(sorted(classes)) for classes in indices.classes.tolist()]
    assert looks_uniform(sets, list(itertools.combinations(range(7), 3)))


def test_images_within_a_class_are_uniform_in_support_and_in_query() -> None:
    indices = sample_episodes(pool([40, 11]), EpisodeShape(2, 2, 4), 3000, generator("test", 6))
    for label, size, start in ((0, 40, 0), (1, 11, 40)):
        within = indices.positions[indices.classes == label] - start
        for column in range(6):
            assert looks_uniform(within[:, column].tolist(), range(size))


@pytest.mark.parametrize("size", [3, 5])
def test_every_arrangement_of_support_and_query_is_equally_likely(size: int) -> None:
    images = pool([size, size])
    indices = sample_episodes(images, EpisodeShape(2, 1, 2), 3000, generator("test", 7))
    drawn = [tuple(row) for row in indices.positions[indices.classes == 0].tolist()]
    assert looks_uniform(drawn, list(itertools.permutations(range(size), 3)))


def test_ways_and_episodes_are_independent() -> None:
    indices = sample_episodes(pool([5, 5]), EpisodeShape(2, 1, 1), 4000, generator("test", 8))
    first = indices.positions[:, :, 0].sort(1).values  # the support image of c0 and that of c1
    assert looks_uniform(map(tuple, first.tolist()), [(a, b + 5) for a, b in np.ndindex(5, 5)])
    following = zip(first[0:-1:2, 0].tolist(), first[1::2, 0].tolist(), strict=True)
    assert looks_uniform(following, list(np.ndindex(5, 5)))


def test_draws_depend_on_the_key_alone() -> None:
    images, shape = pool([9, 12, 30, 10]), EpisodeShape(3, 2, 3)

    def positions(*key: int | str) -> list:
        return sample_episodes(images, shape, 20, generator(*key)).positions.tolist()

    first = positions("train", 0, 1, 2)
    np.random.seed(1)
    torch.manual_seed(1)
    assert positions("train", 0, 1, 2) == first
    others = [("train", 0, 1, 3), ("train", 0, 2, 2), ("train", 1, 1, 2), ("test", 0, 1, 2)]
    assert all(positions(*key) != first for key in others)


# ── ways and shots that vary ─────────────────────────────────────────────────────────────────


def test_each_episode_draws_its_own_ways_and_shots() -> None:
    images = pool([30 + i for i in range(12)])
    indices = sample_episodes(images, EpisodeShape((3, 8), (1, 5), 4), 400, generator("test", 0))
    shapes = set(zip(indices.n_way, indices.n_shot, strict=True))
    assert shapes == set(itertools.product(range(3, 9), range(1, 6)))
    for i in range(len(indices)):
        positions, classes = indices.episode(i)
        assert positions.shape == (indices.n_way[i], indices.n_shot[i] + 4)
        assert torch.equal(images.table.labels[positions], classes[:, None].expand_as(positions))
        assert len(positions.unique()) == positions.numel()


def test_grouping_by_shape_loses_no_episode() -> None:
    shape = EpisodeShape((2, 4), (1, 3), 2)
    indices = sample_episodes(pool([30] * 12), shape, 60, generator("x"))
    seen = []
    for numbers, positions, n_shot in indices.by_shape():
        for i, episode in zip(numbers.tolist(), positions, strict=True):
            assert torch.equal(episode, indices.episode(i)[0])
            assert n_shot == indices.n_shot[i]
            seen.append(i)
    assert sorted(seen) == list(range(60))


def test_range_of_one_is_a_number() -> None:
    one, other = (
        sample_episodes(pool([30] * 12), EpisodeShape(way, shot, 3), 20, generator("x"))
        for way, shot in ((5, 2), ((5, 5), (2, 2)))
    )
    assert torch.equal(one.positions, other.positions)


# ── training episodes ────────────────────────────────────────────────────────────────────────


def test_sampler_loads_the_images_of_its_episodes() -> None:
    images, device = pool([12, 9, 10]), torch.device("cpu")
    sampler = EpisodeSampler("", images, EpisodeShape((2, 3), (1, 2), 2), 8, device)
    indices = sampler.sample((0, 0, 0))
    for i, batch in zip([5, 2], sampler.batches(indices, [5, 2]), strict=True):
        positions, classes = indices.episode(i)
        assert batch.images.flatten().tolist() == positions.flatten().tolist()
        assert torch.equal(batch.classes, classes)
        assert batch.n_shot == indices.n_shot[i]
        assert torch.equal(
            batch.augmentation.colour, indices.augmentation.colour[i, : len(batch.images)]
        )


def test_samplers_rounds_and_epochs_draw_independently() -> None:
    """Both the episodes and their augmentation."""
    images, device = pool([12, 9, 10]), torch.device("cpu")
    drawn = [
        EpisodeSampler(name, images, EpisodeShape(2, 2, 2), 3, device).sample(key)
        for name in ("", "old ")
        for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    ]
    assert len({str(indices.positions.tolist()) for indices in drawn}) == 8
    for name in ("mirrored", "colour"):
        assert len({str(getattr(each.augmentation, name).tolist()) for each in drawn}) == 8


def test_half_of_hard_episodes_are_made_of_near_classes() -> None:
    """Class i and its nearest ones are on a line: i ± 1, i ± 2, …"""
    n, k = 40, 5
    lines = [sorted((j for j in range(n) if j != i), key=lambda j: abs(i - j)) for i in range(n)]
    nearest, images = torch.tensor(lines), pool([10] * n)
    indices = sample_episodes(images, EpisodeShape(k, 1, 1), 4000, generator("x"), nearest)
    near = [set(row[1:]) <= set(lines[row[0]][: 2 * (k - 1)]) for row in indices.classes.tolist()]
    assert 0.47 < sum(near) / len(near) < 0.53
    assert all(len(set(row)) == k for row in indices.classes.tolist())
    assert looks_uniform(indices.classes[:, 0].tolist(), range(n))
    few = torch.tensor([[1, 2], [0, 2], [1, 0]])
    indices = sample_episodes(pool([10] * 3), EpisodeShape(3, 1, 1), 50, generator("x"), few)
    assert all(sorted(row) == [0, 1, 2] for row in indices.classes.tolist())


# ── anchors and errors ───────────────────────────────────────────────────────────────────────


def test_anchors_of_a_step_are_distinct_and_uniform() -> None:
    drawn = sample_anchors(7, 2, 3000, generator("a", 1))
    pairs = [tuple(sorted(step)) for step in drawn.tolist()]
    assert looks_uniform(pairs, list(itertools.combinations(range(7), 2)))
    everything = sample_anchors(3, 5, 10, generator("anchors", 0))
    assert everything.sort(1).values.tolist() == [[0, 1, 2]] * 10
    assert sample_anchors(0, 0, 10, generator("anchors", 0)).shape == (10, 0)


@pytest.mark.parametrize(
    ("sizes", "way", "shot", "message"),
    [
        ([9, 9], 3, 1, r"training pool has 2 classes.* needs 3 .*--n-way"),
        ([], 3, 1, "0 classes"),
        ([30] * 12, (2, 13), 1, "needs 13"),
        ([9, 3, 9, 4], 2, 2, r"'c1' has 3 images in the training pool.* needs 5"),
        ([9, 1], 2, 1, r"1 image in .* needs 4 of each class \(1 shot \+ 3 queries\)"),
        ([30] * 12, 5, (1, 40), "needs 43"),
    ],
)
def test_pool_that_is_too_small_is_refused(
    sizes: list[int], way: Count, shot: Count, message: str
) -> None:
    with pytest.raises(KedgeError, match=message):
        check_pool(pool(sizes), EpisodeShape(way, shot, 3))
    with pytest.raises(KedgeError, match=message):
        sample_episodes(pool(sizes), EpisodeShape(way, shot, 3), 1, generator("x"))


def test_pool_with_just_enough_images_is_used_up() -> None:
    indices = sample_episodes(pool([6, 50]), EpisodeShape(2, 2, 4), 30, generator("test", 2))
    tight = indices.positions[indices.classes == 0]
    assert tight.sort(1).values.tolist() == [list(range(6))] * 30
