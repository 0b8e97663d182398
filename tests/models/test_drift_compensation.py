"""Old classes are named by where they are now, which the new images tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kedge import api
from kedge.config import EpisodeShape, Schedule
from kedge.data.drawings import load_drawings
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.drift_compensation import compensate_drift, compensated_means
from kedge.models.model import Model
from kedge.utils.atomic_io import load_tensors, save_tensors

OLD = ["apple", "axe", "bicycle", "cactus", "ladder", "moon", "snake", "The Eiffel Tower"]
NEW = ["banana", "bed", "fish", "key", "pants", "star"]
HOW = {"episode": EpisodeShape(5, 3, 3), "schedule": Schedule(3, 40, 10)}


def drawings(kinds: list[str], first: int, n: int) -> ImageTable:
    table = load_drawings()
    rows = torch.cat([table.rows_of(kind)[first : first + n] for kind in sorted(kinds)])
    return ImageTable.build(table.images[rows], np.repeat(range(len(kinds)), n), sorted(kinds))


def together(a: ImageTable, b: ImageTable) -> ImageTable:
    labels = torch.cat([a.labels, b.labels + len(a.classes)])
    return ImageTable.build(
        torch.cat([a.images, b.images]), labels.numpy(), [*a.classes, *b.classes]
    )


def named(model: Model, kinds: list[str]) -> float:
    return api.evaluate(model, drawings(kinds, 60, 40), known=True).mean


@pytest.fixture(scope="module", params=["prototype", "ecm", "ridge"])
def models(request: pytest.FixtureRequest) -> tuple[Model, Model]:
    """Before and after an update."""
    base = api.train(drawings(OLD, 0, 40), width=16, head=request.param, **HOW)
    return base, api.update(base, drawings(NEW, 0, 40), **HOW)


def test_old_classes_are_named_after_an_update(models: tuple[Model, Model]) -> None:
    base, better = models
    assert named(base, OLD) > 50  # a guess is right in 13%
    by_anchors = replace(better, places=None)
    if base.config.head.head != "ridge":  # whose rows do not go stale as soon
        assert named(better, OLD) > named(by_anchors, OLD) + 10
    assert named(better, OLD) > 30  # a guess is right in 7%
    assert named(better, NEW) > 40


def test_a_single_image_of_old_classes_takes_nothing_away(models: tuple[Model, Model]) -> None:
    """With as many images as new classes have they count, and their anchors are fresh."""
    base, better = models
    one, new = drawings(OLD, 40, 1), drawings(NEW, 0, 40)
    again = api.update(base, together(new, one), **HOW)
    assert named(again, OLD) > named(better, OLD) - 5
    assert torch.equal(again.anchors_of(OLD), base.anchors_of(OLD))
    many = api.update(base, together(new, drawings(OLD, 0, 40)), **HOW)
    assert named(many, OLD) > named(better, OLD)
    assert not torch.isclose(many.anchors_of(OLD), base.anchors_of(OLD)).all(1).any()


def test_what_is_remembered_counts_as_ten_images(models: tuple[Model, Model]) -> None:
    """The network stays as it is, so that places do not move."""
    base, _ = models
    some = drawings(OLD, 40, 30)
    means = torch.stack([each.mean(0) for each in base.embed(some.images).split(30)])
    was = base.places_of(some.classes)
    now = replace(base, places=compensated_means(base, base, some)).places_of(some.classes)
    torch.testing.assert_close(now, (30 * means + 10 * was) / 40, rtol=1e-4, atol=1e-4)


def test_anchors_stay_as_they_were_made(models: tuple[Model, Model]) -> None:
    base, better = models
    assert torch.equal(better.anchors_of(base.classes), base.anchors)
    if base.config.head.head == "prototype":
        assert base.places is None
        assert torch.equal(better.places_of(NEW), better.anchors_of(NEW))
        assert not torch.allclose(better.places_of(OLD), base.anchors_of(OLD), atol=1e-2)


def test_examples_add_to_what_is_remembered(models: tuple[Model, Model]) -> None:
    """Of a class of which there are both, the place counts as ten examples."""
    _, better = models
    support = drawings(OLD[:3], 60, 5)
    both = better.classifier(support, known=OLD[:5])
    assert both.classes == (*OLD[3:5], *sorted(OLD[:3]))
    compensated_means = better.places_of(both.classes)
    features = better.embed(support.images).split(5)
    examples = [compensated_means[:1], compensated_means[1:2]]
    examples += [
        torch.cat([*some.split(1), *[p[None]] * 10])
        for some, p in zip(features, compensated_means[2:], strict=True)
    ]
    wanted = better.head.from_images(examples)
    torch.testing.assert_close(both.representatives, wanted, rtol=1e-4, atol=1e-4)


def test_places_are_saved(models: tuple[Model, Model], tmp_path: Path) -> None:
    for model in models:
        model.save(tmp_path / "m.kedge")
        loaded = Model.load(tmp_path / "m.kedge")
        assert (loaded.places is None) == (model.places is None)
        assert torch.equal(loaded.places_of(OLD), model.places_of(OLD))
        assert loaded.fingerprint == model.fingerprint
        moved = model.to("cpu").to("meta")
        assert moved.places is None or moved.places.device.type == "meta"


def test_places_that_do_not_fit_are_refused(models: tuple[Model, Model], tmp_path: Path) -> None:
    file, anchors = tmp_path / "m.kedge", models[1].anchors
    models[1].save(file)
    about, mapped = load_tensors(file, "model")
    tensors = {name: tensor.clone() for name, tensor in mapped.items()}
    for wrong in (anchors[:-1], anchors.double(), anchors + torch.inf):
        save_tensors(file, {**tensors, "places": wrong.clone()}, about)
        with pytest.raises(KedgeError, match="cannot be rebuilt"):
            Model.load(file)


def test_places_go_the_way_of_the_images() -> None:
    """Exactly, where the way is a shift; most of it, where it is a turn."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(5000, 6, generator=generator)
    compensated_means = torch.randn(4, 6, generator=generator)
    shift = torch.randn(6, generator=generator)
    assert torch.allclose(
        compensate_drift(compensated_means, images, images + shift),
        compensated_means + shift,
        atol=1e-5,
    )
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    stayed, went = (
        compensate_drift(compensated_means, images, images),
        compensate_drift(compensated_means, images, images @ turn),
    )
    assert torch.allclose(stayed, compensated_means, atol=1e-5)
    assert (went - compensated_means @ turn).norm() < 0.6 * (
        compensated_means - compensated_means @ turn
    ).norm()


def test_few_images_move_places_in_no_unknown_direction() -> None:
    images = torch.zeros(10, 3)
    images[:, 0] = torch.arange(10.0)
    went = compensate_drift(torch.eye(3), images, images * torch.tensor([2.0, 1, 1]))
    assert torch.allclose(went[1:, 1:], torch.eye(2), atol=1e-5)
