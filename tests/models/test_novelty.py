"""Novelty of images, and classifiers that say "none of these"."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kedge.errors import KedgeError
from kedge.models.calibration import ENOUGH_REFERENCES, MOST_REFERENCES, Calibration
from kedge.models.novelty import ClassSpace, typicality
from kedge.models.spread import (
    IMAGES_PER_DIRECTION,
    MOST_DIRECTIONS,
    Whitening,
    deviations,
    pooled_spread,
)

GEN = torch.Generator().manual_seed(0)
K, N, D = 6, 40, 8


def clusters(stretch: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images by class, with this standard deviation along the first axis, and their means."""
    centres = 4 * torch.randn(K, D, generator=GEN)
    noise = torch.randn(K, N, D, generator=GEN)
    noise[..., 0] *= stretch
    images = centres[:, None] + noise
    return images, images.mean(1)


def spread_of(images: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(len(images)).repeat_interleave(images.shape[1])
    spread = pooled_spread(None, 1.0, deviations(images.flatten(0, 1), labels))
    assert spread is not None
    return spread


def space_of(images: torch.Tensor, means: torch.Tensor, *, spread: bool = True) -> ClassSpace:
    variance = float(images.var(1).sum(-1).mean())
    counts = torch.full((len(means),), torch.inf)
    return ClassSpace.of(means, counts, variance, spread_of(images) if spread else None)


@pytest.mark.parametrize("spread", [True, False])
def test_novelty_is_low_within_classes_and_near_one_between_them(spread: bool) -> None:
    images, means = clusters()
    space = space_of(images, means, spread=spread)
    known = space.novelty(images.flatten(0, 1))
    between = space.novelty(means.mean(0, keepdim=True))
    assert float(known.max()) < float(between) <= 1


def test_distances_count_less_along_the_directions_in_which_images_of_a_class_differ() -> None:
    images, means = clusters(stretch=5.0)
    axes = torch.eye(D)
    along, beside = means[0] + 5 * axes[0], means[0] + 5 * axes[1]
    aware, plain = (space_of(images, means, spread=yes) for yes in (True, False))
    moved = torch.stack([along, beside])
    assert torch.allclose(plain.distances(moved)[:, 0], torch.tensor(25.0), rtol=1e-3)
    near, far = aware.distances(moved)[:, 0].tolist()
    assert near < far / 2


def test_a_space_without_a_spread_is_that_of_the_features() -> None:
    images, means = clusters()
    z = images.flatten(0, 1)
    expected = torch.cdist(z, means).square()
    assert torch.allclose(space_of(images, means, spread=False).distances(z), expected, atol=1e-3)


def test_images_far_from_the_space_of_the_means_are_novel() -> None:
    images, means = clusters()
    means, images = means[:3], images[:3]
    means[:, 4:] = 0
    images[..., 4:] *= 0.1
    space = space_of(images, means)
    outside = means[:1] + 1000 * torch.eye(D)[-1]
    assert float(space.novelty(outside)) > 0.9 > float(space.novelty(images.flatten(0, 1)).mean())


def test_more_classes_than_features_need_no_projection() -> None:
    centres = 4 * torch.randn(3 * D, D, generator=GEN)
    images = centres[:, None] + torch.randn(3 * D, 10, D, generator=GEN)
    novelty = space_of(images, images.mean(1)).novelty(images[:, 0])
    assert bool(novelty.isfinite().all())
    assert float(novelty.mean()) < 0.5


def test_few_examples_do_not_make_a_class_look_far() -> None:
    images, means = clusters()
    variance, spread = float(images.var(1).sum(-1).mean()), spread_of(images)
    noisy = means.clone()
    distances = []
    for _ in range(200):
        noisy[0] = (means[0] + torch.randn(2, D, generator=GEN)).mean(0)
        space = ClassSpace.of(noisy, torch.tensor([2.0] + 5 * [torch.inf]), variance, spread)
        distances.append(space.distances(images[0]).mean(0)[0])
    true = space_of(images, means).distances(images[0]).mean(0)[0]
    assert float(torch.stack(distances).mean()) == pytest.approx(float(true), rel=0.15)


def test_the_spread_is_the_covariance_within_classes() -> None:
    images, means = clusters(stretch=3.0)
    spread = spread_of(images)
    around = (images - means[:, None]).flatten(0, 1)
    expected = around.mT @ around / (K * (N - 1))
    assert torch.allclose(spread.mT @ spread, expected, atol=1e-4)
    white = Whitening.of(spread, float(expected.trace()))
    z = white(around)
    assert float(z.square().sum(1).mean()) == pytest.approx(white.variance * (N - 1) / N, rel=1e-3)
    ratios = [x.diagonal().max() / x.diagonal().min() for x in (expected, z.mT @ z)]
    assert ratios[1] < ratios[0] / 2


def test_the_spread_of_rounds_is_pooled() -> None:
    first, second = (spread_of(clusters(stretch)[0]) for stretch in (1.0, 3.0))
    images = clusters(3.0)[0]
    labels = torch.arange(K).repeat_interleave(N)
    around = deviations(images.flatten(0, 1), labels)
    pooled = pooled_spread(first, 0.25, around)
    alone = pooled_spread(None, 1.0, around)
    assert pooled is not None
    assert alone is not None
    expected = 0.75 * first.mT @ first + 0.25 * alone.mT @ alone
    assert torch.allclose(pooled.mT @ pooled, expected, atol=1e-4)
    assert len(second) == D


def test_no_direction_of_the_spread_is_that_of_one_image() -> None:
    around = torch.randn(11, 500, generator=GEN)
    spread = pooled_spread(None, 1.0, around)
    assert spread is not None
    assert len(spread) == 11 // IMAGES_PER_DIRECTION
    assert pooled_spread(None, 1.0, around[:3]) is None
    assert pooled_spread(spread, 0.5, around[:3]) is spread
    many = pooled_spread(spread, 0.5, torch.randn(2000, 500, generator=GEN))
    assert many is not None
    assert len(many) == MOST_DIRECTIONS
    assert pooled_spread(spread, 0.5, torch.full((9, 500), torch.inf)) is spread


def test_a_share_p_of_known_images_has_a_typicality_of_at_most_p() -> None:
    references, scores = torch.rand(199, generator=GEN).double(), torch.rand(4000, generator=GEN)
    for share in (0.05, 0.5):
        refused = float((typicality(scores, references) <= share).double().mean())
        assert refused == pytest.approx(share, abs=0.08)
    lowest, highest = typicality(torch.tensor([2.0, -1.0]), references).tolist()
    assert (lowest, highest) == (1 / 200, 1.0)


def test_scores_of_a_round_replace_those_of_earlier_ones() -> None:
    before = Calibration(1.0, {}, tuple(i / 100 for i in range(100)))
    after = before.with_novelty([5.0] * ENOUGH_REFERENCES)
    assert after.novelty == (5.0,) * ENOUGH_REFERENCES
    many = after.with_novelty([i / 1000 for i in range(1000)]).novelty
    assert len(many) == MOST_REFERENCES
    assert sum(many) / len(many) == pytest.approx(0.5, abs=0.01), "an even sample"
    with pytest.raises(KedgeError):
        replace(before, novelty=(float("nan"),))


def test_few_scores_are_completed_by_earlier_ones_large_and_small() -> None:
    before = Calibration(1.0, {}, tuple(i / 100 for i in range(100)))
    after = before.with_novelty([5.0] * 20).novelty
    assert len(after) == ENOUGH_REFERENCES
    earlier = [score for score in after if score < 5]
    assert len(earlier) == ENOUGH_REFERENCES - 20
    assert sum(earlier) / len(earlier) == pytest.approx(0.495, abs=0.01)
    assert max(earlier) > 0.97
