"""Means of old classes follow the drift that new images show, so that old classes are predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kedge import api
from kedge.data.drawings import load_drawings
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.drift_compensation import (
    DeliveredFeatures,
    compensate_drift,
    compensated_means,
)
from kedge.models.model import Model
from kedge.utils.atomic_io import load_tensors, save_tensors

OLD = ["apple", "axe", "bicycle", "cactus", "ladder", "moon", "snake", "The Eiffel Tower"]
NEW = ["banana", "bed", "fish", "key", "pants", "star"]
SHAPE = {"n_way": 5, "n_shot": 3, "n_query": 3}
SHORT = {**SHAPE, "epochs": 3, "episodes": 40, "val_episodes": 10}


def drawings(classes: list[str], first: int, n: int) -> ImageTable:
    table = load_drawings()
    rows = torch.cat([table.rows_of(name)[first : first + n] for name in sorted(classes)])
    labels = np.repeat(range(len(classes)), n)
    return ImageTable.build(table.images[rows], labels, sorted(classes))


def accuracy(model: Model, classes: list[str]) -> float:
    return api.evaluate(model, drawings(classes, 60, 40), known=True).mean


@pytest.fixture(scope="module", params=["prototype", "ecm", "ridge"])
def models(request: pytest.FixtureRequest) -> tuple[Model, Model]:
    """Before and after an update."""
    base = api.train(drawings(OLD, 0, 40), width=16, head=request.param, **SHORT)
    return base, api.update(base, drawings(NEW, 0, 40), **SHORT)


@pytest.mark.slow
def test_old_classes_are_predicted_after_an_update(models: tuple[Model, Model]) -> None:
    base, updated = models
    assert accuracy(base, OLD) > 50  # chance: 13
    if base.config.head.head != "ridge":  # whose anchors become useless more slowly
        by_anchors = replace(updated, class_means=None)
        assert accuracy(updated, OLD) > accuracy(by_anchors, OLD) + 10
    assert accuracy(updated, OLD) > 30  # chance: 7
    assert accuracy(updated, NEW) > 40


@pytest.mark.slow
def test_one_new_image_of_an_old_class_does_not_replace_its_mean(
    models: tuple[Model, Model],
) -> None:
    base, updated = models
    one, new = drawings(OLD, 40, 1), drawings(NEW, 0, 40)
    labels = torch.cat([new.labels, one.labels + len(NEW)]).numpy()
    images = torch.cat([new.images, one.images])
    both = ImageTable.build(images, labels, [*new.classes, *one.classes])
    again = api.update(base, both, **SHORT)
    assert accuracy(again, OLD) > accuracy(updated, OLD) - 5
    assert torch.equal(again.anchors_of(OLD), base.anchors_of(OLD))


@pytest.mark.slow
def test_means_are_pooled_saved_and_moved(models: tuple[Model, Model], tmp_path: Path) -> None:
    base, updated = models
    again = drawings(OLD, 40, 30)  # by the same network, so that nothing drifts
    image_means = torch.stack([z.mean(0) for z in base.embed(again.images).split(30)])
    stored = base.class_means_of(again.classes)
    features = DeliveredFeatures.of(base, base, again)
    pooled = replace(base, class_means=compensated_means(base, base, again, features))
    means = pooled.class_means_of(again.classes)
    torch.testing.assert_close(means, (30 * image_means + 10 * stored) / 40, rtol=1e-4, atol=1e-4)

    assert torch.equal(updated.anchors_of(base.classes), base.anchors)
    if base.config.head.head == "prototype":
        assert base.class_means is None
        assert torch.equal(updated.class_means_of(NEW), updated.anchors_of(NEW))
        assert not torch.allclose(updated.class_means_of(OLD), base.anchors_of(OLD), atol=1e-2)

    file = tmp_path / "m.kedge"
    updated.save(file)
    loaded = Model.load(file)
    assert torch.equal(loaded.class_means_of(OLD), updated.class_means_of(OLD))
    assert loaded.fingerprint == updated.fingerprint
    assert updated.to("meta").class_means.device.type == "meta"
    about, mapped = load_tensors(file, "model")
    tensors, anchors = {k: v.clone() for k, v in mapped.items()}, updated.anchors
    for wrong in (anchors[:-1], anchors.double(), anchors + torch.inf):
        save_tensors(file, {**tensors, "places": wrong.clone()}, about)
        with pytest.raises(KedgeError, match=r"m\.kedge"):
            Model.load(file)


@pytest.mark.slow
def test_stored_means_count_as_ten_examples(models: tuple[Model, Model]) -> None:
    _, updated = models
    support = drawings(OLD[:3], 60, 5)
    both = updated.classifier(support, known=OLD[:5])
    assert both.classes == (*OLD[3:5], *sorted(OLD[:3]))
    means = updated.class_means_of(both.classes)
    examples = [means[:1], means[1:2]]
    for features, mean in zip(updated.embed(support.images).split(5), means[2:], strict=True):
        examples.append(torch.cat([features, *[mean[None]] * 10]))
    expected = updated.head.representatives_from(examples)
    torch.testing.assert_close(both.representatives, expected, rtol=1e-4, atol=1e-4)


def test_drift_is_exact_for_a_shift_and_approximate_for_a_rotation() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(5000, 6, generator=generator)
    means = torch.randn(4, 6, generator=generator)
    shift = torch.randn(6, generator=generator)
    shifted = compensate_drift(means, images, images + shift)
    torch.testing.assert_close(shifted, means + shift, rtol=0, atol=1e-5)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    rotated = compensate_drift(means, images, images @ rotation)
    assert (rotated - means @ rotation).norm() < 0.6 * (means - means @ rotation).norm()
