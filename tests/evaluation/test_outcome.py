"""What a round did: measured on images held back, estimated for classes whose images are gone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.evaluation.drawings import NAMES, drawings

from kedge import api
from kedge.config import RoundOptions
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.train_val_split import split_train_val
from kedge.evaluation.old_classes import Drift, OldClasses, SimulatedImages
from kedge.models.classifier import Classifier
from kedge.models.drift_compensation import RIDGE, DeliveredFeatures, drift_residuals
from kedge.models.model import Model
from kedge.models.spread import deviations

GEN = torch.Generator().manual_seed(0)
SHAPE = {"n_way": 4, "n_shot": 3, "n_query": 3}
SCHEDULE = {"epochs": 3, "episodes": 60, "val_episodes": 10}
QUICK = {"width": 16, **SHAPE, **SCHEDULE}


@pytest.fixture(scope="module")
def base() -> Model:
    return api.train(drawings(NAMES[:10]), annealing="cosine", **QUICK)


@pytest.fixture(scope="module")
def updated(base: Model) -> Model:
    return api.update(base, drawings(NAMES[10:16]), **SHAPE, **SCHEDULE)


def share_named(model: Model, table: ImageTable) -> float:
    predicted = model.predict(table.images)
    names = [table.classes[i] for i in table.labels.tolist()]
    return 100 * sum(a == b for a, b in zip(predicted, names, strict=True)) / len(names)


# ── measured ─────────────────────────────────────────────────────────────────────────────────


def test_images_held_back_are_compared_with_means_without_them(base: Model) -> None:
    table = drawings(NAMES[:10])
    held_back = split_train_val(table, None, RoundOptions(**SHAPE), 0).held_back
    [naming] = base.lineage[-1].outcome.naming
    assert (naming.round, naming.classes, naming.images) == (0, 10, len(held_back))
    assert (naming.before, naming.estimated) == (None, False)
    features, right = base.embed(table.images), 0
    for name, rows in zip(held_back.classes, held_back.class_rows, strict=True):
        own = base.classes.index(name)
        for row in rows.tolist():
            others = table.rows_of(name)[table.rows_of(name) != row]
            means = base.anchors.clone()
            means[own] = features[others].mean(0)
            right += int((means - features[row]).square().sum(1).argmin()) == own
    assert naming.after == pytest.approx(100 * right / len(held_back))
    assert naming.after > naming.untrained + 5, "training was for nothing"


def test_what_is_measured_is_near_what_new_images_show(base: Model) -> None:
    [naming] = base.lineage[-1].outcome.naming
    assert naming.after == pytest.approx(share_named(base, drawings(NAMES[:10], 60)), abs=12)


def test_few_shot_accuracy_is_measured_on_classes_that_do_not_train() -> None:
    table = drawings(NAMES[:32], n=12)
    model = api.train(table, **QUICK)
    few, trained = model.lineage[-1].outcome.few_shot, model.lineage[-1].classes
    assert few.classes == 32 - len(trained) == 6
    assert min(few.before, few.after) > 25, "chance is 20"
    assert 0 < few.interval < 5
    again = api.update(model, drawings(NAMES[40:72], n=20), **SHAPE, **SCHEDULE)
    assert again.lineage[-1].outcome.few_shot.shape == few.shape, "so that it is a series"


# ── estimated ────────────────────────────────────────────────────────────────────────────────


def test_old_classes_are_estimated_from_anchors(base: Model, updated: Model) -> None:
    [old, new] = updated.lineage[-1].outcome.naming
    [first] = base.lineage[-1].outcome.naming
    assert (old.round, old.classes, old.estimated, old.before) == (0, 10, True, first.after)
    assert (new.round, new.classes, new.estimated) == (1, 6, False)
    truth = share_named(updated, drawings(NAMES[:10], 60))
    assert old.after == pytest.approx(truth, abs=15)  # small network, few images: noise of 5
    assert old.untrained < old.before, "more classes to choose from"


def test_a_round_that_only_makes_anchors_changes_old_classes_by_the_choice_alone(
    base: Model,
) -> None:
    model = api.update(base, drawings(NAMES[16:20], n=10), epochs=0)
    [old, new] = model.lineage[-1].outcome.naming
    assert old.after == old.untrained < old.before
    assert new.after == pytest.approx(new.untrained)
    assert new.images == 40


def test_what_a_map_misses_of_a_class_is_what_a_fit_to_the_others_misses() -> None:
    before = torch.randn(60, 5, generator=GEN)
    after = before @ torch.randn(5, 5, generator=GEN) + torch.randn(60, 5, generator=GEN)
    labels = torch.arange(6).repeat_interleave(10)
    residuals = drift_residuals(before, after, labels)
    x = (before - before.mean(0)).double()
    drift = (after - after.mean(0)).double() - x
    ridge = RIDGE * (x.mT @ x).diagonal().mean() * torch.eye(5)
    for label in range(6):
        others = labels != label
        fit = torch.linalg.solve(x[others].mT @ x[others] + ridge, x[others].mT @ drift[others])
        expected = drift[~others] - x[~others] @ fit
        assert torch.allclose(residuals[~others].double(), expected, atol=1e-4)


def test_spread_makes_simulated_images_as_hard_as_asked() -> None:
    means = torch.randn(12, 6, generator=GEN)
    around = deviations(torch.randn(90, 6, generator=GEN), torch.arange(90) // 9)
    assert around.square().mean() == pytest.approx(1, abs=0.2), "not smaller for few images"
    images = SimulatedImages.around(NAMES[:12], means, around, GEN)
    head = SimpleNamespace(logits=lambda z, representatives: -torch.cdist(z, representatives))
    nearest = Classifier(SimpleNamespace(head=head), NAMES[:12], means)
    for accuracy in (90.0, 40.0):
        scaled = images.scaled(images.spread_for(nearest, accuracy))
        assert scaled.named(nearest) == pytest.approx(accuracy, abs=1.5)
    near = images.scaled(0.5)
    assert near.displaced(torch.eye(6), 4.0, GEN).named(nearest) < near.named(nearest)


def test_simulated_images_follow_what_new_images_show() -> None:
    """All of a shift and a rotation; what is not affine is added as noise of the same size."""
    means, before = torch.randn(12, 6, generator=GEN), torch.randn(600, 6, generator=GEN)
    labels, turn = torch.arange(600) // 50, torch.linalg.qr(torch.randn(6, 6, generator=GEN)).Q
    before = before + 4 * torch.randn(12, 6, generator=GEN)[labels]
    images = SimulatedImages.around(NAMES[:12], means, deviations(before, labels), GEN)

    def follow(after: torch.Tensor) -> SimulatedImages:
        drift = Drift.of(DeliveredFeatures(torch.arange(600), labels, before, after))
        moved = drift.map(means)
        return drift.follow(images, moved, drift.missed_of(means, moved), GEN)

    still = follow(before + 3)
    assert torch.allclose(still.centres, means + 3, atol=1e-4)
    assert torch.allclose(still.deviations, images.deviations, atol=1e-4)
    noise = torch.randn(600, 6, generator=GEN)
    noisy = follow(before + noise)
    grown = noisy.deviations.square().mean() - images.deviations.square().mean()
    assert float(grown) == pytest.approx(1, abs=0.2)
    # The ridge holds a large rotation back.
    assert follow(before @ turn).deviations.square().mean() < 2 * images.deviations.square().mean()


def test_an_estimate_carries_on_what_is_not_known(base: Model, updated: Model) -> None:
    """How far means are off adds up from round to round, and the interval grows."""
    [first] = base.lineage[-1].outcome.naming
    [old, new] = updated.lineage[-1].outcome.naming
    table = drawings(NAMES[16:22])
    again = api.update(updated, table, **SHAPE, **SCHEDULE)
    oldest, old_now, newest = again.lineage[-1].outcome.naming
    assert 0 == first.displacement < old.displacement < oldest.displacement
    assert first.half_width < old.half_width < oldest.half_width
    assert new.half_width < old_now.half_width
    assert newest.interval is None, "it was measured"
    # The same round, if the means were thought to be exact, and if the accuracy were not known.
    features = DeliveredFeatures.of(updated, again, table)
    known = {name: features.before[features.labels == i] for i, name in enumerate(table.classes)}
    untrained = updated.classifier_from_features(known, updated.classes)
    classes = OldClasses(updated.classifier(), untrained, again.classifier(), features)
    assert classes.change(NAMES[:10], old).after == pytest.approx(oldest.after, abs=0.1)
    exact = classes.change(NAMES[:10], replace(old, displacement=0.0))
    assert exact.displacement == pytest.approx(oldest.displacement - old.displacement, rel=1e-3)
    assert exact.after != oldest.after
    assert classes.change(NAMES[:10], replace(old, interval=None)).interval is None


def test_means_that_are_missed_lower_the_estimate(base: Model, updated: Model) -> None:
    table = drawings(NAMES[10:16])
    features = DeliveredFeatures.of(base, updated, table)
    classes = OldClasses(base.classifier(), base.classifier(), updated.classifier(), features)
    [first] = base.lineage[-1].outcome.naming
    near = classes.change(NAMES[:10], first)
    classes.drift = replace(classes.drift, missed_share=10 * classes.drift.missed_share)
    far = classes.change(NAMES[:10], first)
    assert far.after < near.after - 2
    assert far.interval > near.interval


def test_classes_of_one_image_each_give_no_estimate(base: Model) -> None:
    table = drawings(NAMES[20:23], n=1)
    features = DeliveredFeatures.of(base, base, table)
    classifier = base.classifier()
    old = OldClasses(classifier, classifier, classifier, features)
    [last] = base.lineage[-1].outcome.naming
    assert old.change(base.classes, last) is None
    lonely = api.update(base, table, epochs=0)
    assert lonely.lineage[-1].outcome is None


# ── none of these ────────────────────────────────────────────────────────────────────────────


def test_noise_is_refused_and_known_drawings_are_not(base: Model) -> None:
    known = drawings(NAMES[:10], 60)
    own = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 255, (100, 1, 28, 28), generator=own, dtype=torch.uint8)
    refused = [base.predict(images, reject=0.05).count(None) for images in (known.images, noise)]
    assert refused[0] < 0.15 * len(known)
    assert refused[1] > 80


def test_pool_of_held_back_images_is_small() -> None:
    table = drawings(NAMES[:40], n=100)
    split = split_train_val(table, None, RoundOptions(n_shot=1, n_query=1), 0)
    assert isinstance(split.held_back, Pool)
    assert len(split.held_back) <= 1000
