"""The novelty of images held back, as if class means and spread were computed without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.evaluation.drawings import NAMES, drawings

from kedge import api
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.evaluation.known_novelty import FOLDS, RoundSpread, known_novelty
from kedge.models.drift_compensation import DeliveredFeatures
from kedge.models.model import Model
from kedge.models.novelty import ClassSpace
from kedge.models.spread import deviations
from kedge.utils.atomic_io import load_tensors, save_tensors

N = 40
QUICK = {"epochs": 0, "width": 16}


@pytest.fixture(scope="module")
def table() -> ImageTable:
    return drawings(NAMES[:8])


@pytest.fixture(scope="module")
def model(table: ImageTable) -> Model:
    return api.train(table, **QUICK)


def test_an_image_is_compared_with_means_and_a_spread_without_it(
    model: Model, table: ImageTable
) -> None:
    features = DeliveredFeatures.of(model, model, table)
    spread = RoundSpread.of(replace(model, spread=None, classes=()), model, features)
    z, targets = features.after, torch.tensor([model.classes.index(c) for c in table.classes])
    labels, counts = targets[features.labels], torch.full((len(z),), float(N))
    scores = known_novelty(model.classifier(), z, labels, counts, spread, features.rows)
    out = torch.arange(len(z)) % N % FOLDS == 2
    rest, of_rest = z[~out], labels[~out]
    means = torch.stack([rest[of_rest == i].mean(0) for i in range(8)])
    around = deviations(rest, of_rest)
    assert model.calibration is not None
    space = ClassSpace.of(
        means,
        torch.full((8,), N * (1 - 1 / FOLDS)),
        model.calibration.variance,
        replace(spread, features=rest, labels=of_rest, rows=features.rows[~out]).spread(),
    )
    assert len(around) == len(rest)
    assert torch.allclose(torch.tensor(scores)[out], space.novelty(z[out]), atol=1e-4)


def test_images_that_are_no_part_of_a_mean_leave_it_as_it_is(model: Model) -> None:
    others = drawings(NAMES[:8], N)
    classifier = model.classifier()
    labels = torch.tensor([classifier.classes.index(c) for c in others.classes])[others.labels]
    z, none = model.embed(others.images), torch.full((len(others),), torch.inf)
    spread = RoundSpread(model.spread, 0.0, torch.arange(0), z[:0], labels[:0])
    scores = known_novelty(classifier, z, labels, none, spread, None)
    assert torch.allclose(torch.tensor(scores), classifier.class_space.novelty(z), atol=1e-5)


def test_about_the_share_that_is_asked_for_is_refused(model: Model) -> None:
    new = drawings(NAMES[:8], N, 60)
    for share in (0.05, 0.2):
        refused = model.predict(new.images, reject=share).count(None) / len(new)
        assert refused == pytest.approx(share, abs=0.05)


def test_a_round_pools_the_spread(model: Model, tmp_path: Path) -> None:
    after = api.update(model, drawings(NAMES[8:12]), epochs=0)
    assert model.spread is not None
    assert after.spread is not None
    before, now = (each.spread.mT @ each.spread for each in (model, after))
    z = after.embed(drawings(NAMES[8:12]).images)
    around = deviations(z, torch.arange(4).repeat_interleave(N))
    expected = 2 / 3 * before + 1 / 3 * around.mT @ around / len(around)
    assert torch.allclose(now, expected, atol=float(1e-3 * expected.abs().max()))
    after.save(tmp_path / "model.kedge")
    assert torch.equal(Model.load(tmp_path / "model.kedge").spread, after.spread)


def test_scores_of_a_file_without_a_spread_are_not_mixed_with_others(model: Model) -> None:
    early = replace(model, spread=None)
    assert early.calibration is not None
    early = replace(early, calibration=replace(early.calibration, novelty=(77.0,) * 90))
    assert None not in early.predict(drawings(NAMES[:2]).images, reject=0.05)
    after = api.update(early, drawings(NAMES[8:10], n=10), epochs=0)
    assert after.calibration is not None
    assert len(after.calibration.novelty) == 20
    assert 77.0 not in after.calibration.novelty


def test_a_file_with_another_spread_is_refused(model: Model, tmp_path: Path) -> None:
    assert model.spread is not None
    path = tmp_path / "model.kedge"
    model.save(path)
    about, tensors = load_tensors(path, "model")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    about = {key: about[key] for key in ("format", "config", "classes", "lineage", "calibration")}
    spread = tensors["spread"]
    save_tensors(path, tensors, about, True)
    Model.load(path)
    for wrong in (spread[:, 1:], spread[0], spread.double(), spread / 0, spread.repeat(40, 1)):
        save_tensors(path, tensors | {"spread": wrong.contiguous()}, about, True)
        with pytest.raises(KedgeError, match=r"model\.kedge"):
            Model.load(path)
