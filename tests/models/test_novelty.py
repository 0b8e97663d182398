"""Novelty of images, and classifiers that say "none of these"."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kedge.errors import KedgeError
from kedge.models.calibration import Calibration
from kedge.models.novelty import MOST_REFERENCES, novelty, typicality

GEN = torch.Generator().manual_seed(0)


def features(n_classes: int = 6, n: int = 40, d: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Clusters around random means: images by class, and the means of these images."""
    centres = 4 * torch.randn(n_classes, d, generator=GEN)
    images = centres[:, None] + torch.randn(n_classes, n, d, generator=GEN)
    return images, images.mean(1)


def test_novelty_is_low_within_classes_and_near_one_between_them() -> None:
    images, means = features()
    none = torch.zeros(len(means))
    known = novelty(images.flatten(0, 1), means, none)
    between = novelty(means.mean(0, keepdim=True), means, none)
    assert float(known.max()) < float(between) <= 1


@pytest.mark.parametrize("n", [2, 3, 40])
def test_an_image_is_compared_with_the_mean_of_the_others(n: int) -> None:
    images, means = features(n=n)
    errors = torch.full((len(means),), 0.1)
    own = (torch.tensor([2]), torch.tensor([float(n)]))
    without = means.clone()
    without[2] = images[2, 1:].mean(0)
    expected = novelty(images[2, :1], without, errors)
    assert torch.allclose(novelty(images[2, :1], means, errors, own), expected, rtol=1e-4)
    apart = (own[0], torch.tensor([torch.inf]))
    assert torch.equal(
        novelty(images[2, :1], means, errors, apart), novelty(images[2, :1], means, errors)
    )


def test_a_share_p_of_known_images_has_a_typicality_of_at_most_p() -> None:
    references, scores = torch.rand(199, generator=GEN).double(), torch.rand(4000, generator=GEN)
    for share in (0.05, 0.5):
        refused = float((typicality(scores, references) <= share).double().mean())
        assert refused == pytest.approx(share, abs=0.08)
    lowest, highest = typicality(torch.tensor([2.0, -1.0]), references).tolist()
    assert (lowest, highest) == (1 / 200, 1.0)


def test_the_latest_scores_replace_the_oldest() -> None:
    before = Calibration(1.0, {}, (0.5,) * 150)
    after = before.with_novelty([0.25] * 100)
    assert len(after.novelty) == MOST_REFERENCES
    assert after.novelty.count(0.25) == 100
    many = after.with_novelty([i / 1000 for i in range(1000)]).novelty
    assert len(many) == MOST_REFERENCES
    assert sum(many) / len(many) == pytest.approx(0.5, abs=0.01), "an even sample"
    with pytest.raises(KedgeError):
        replace(before, novelty=(float("nan"),))
