"""Classes with few examples beside classes with many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kedge import api
from kedge.config import BackboneConfig, HeadConfig
from kedge.data.drawings import load_drawings
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.calibration import Calibration, calibration_after
from kedge.models.embedding import ModelConfig
from kedge.models.heads import build_head
from kedge.models.model import VIRTUAL_SAMPLES, Model, new_model

D, SIGMA, T = 200, 0.3, 0.5
ROUND = {"width": 8, "n_way": 3, "n_shot": 2, "n_query": 2, "epochs": 1, "episodes": 5}
ROUND |= {"val_episodes": 4}


def drawings(counts: dict[str, int], first: int = 0) -> ImageTable:
    table = load_drawings()
    rows = [table.rows_of(name)[first : first + n] for name, n in counts.items()]
    labels = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(r) for r in rows]))
    return ImageTable.build(table.images[torch.cat(rows)], labels, tuple(counts))


NAMES = load_drawings().classes[:14]


@pytest.fixture(scope="module")
def model() -> Model:
    return api.train(drawings(dict.fromkeys(NAMES[:9], 20)), **ROUND)


def noisy(centre: Tensor, n: int, seed: int) -> Tensor:
    noise = torch.randn(n, D, generator=torch.Generator().manual_seed(seed))
    return centre + SIGMA * noise


@pytest.mark.parametrize("head", ["prototype", "unit", "unit distance=cosine", "ecm"])
def test_expected_score_of_own_images_does_not_depend_on_the_number_of_examples(head: str) -> None:
    """But for the part that `MEAN_ERROR_PRIOR` leaves: with 4 examples about a tenth."""
    torch.manual_seed(0)
    kind = build_head(HeadConfig(head, T), D)
    scale = torch.nn.functional.normalize if kind.unit_features else (lambda z, dim: z)
    centre = 3 * torch.nn.functional.normalize(torch.ones(D), dim=0)
    images = scale(noisy(centre, 2000, 1), dim=1)
    calibration = calibration_after(None, kind, ["a"], [images])
    assert calibration is not None
    scores = {}
    for n in (4, 1000):
        examples = [scale(noisy(centre, n, seed), dim=1) for seed in range(2, 60 if n == 4 else 4)]
        with torch.no_grad():
            points = kind.representatives_from(examples)
            scores[n] = float(kind.logits(images, points).mean())
    few, many = kind.offsets(torch.tensor([4.0, 1000.0]), calibration.variance).tolist()
    before, after = scores[1000] - scores[4], (scores[1000] + many) - (scores[4] + few)
    assert before > 0
    assert abs(after) < 0.15 * before


def test_variance_is_pooled_over_classes_and_rounds() -> None:
    head = build_head(HeadConfig("prototype"), 2)
    wide, narrow, one = torch.tensor([[0.0, 0], [4, 0]]), torch.zeros(3, 2), torch.ones(1, 2)
    first = calibration_after(None, head, ["a", "b"], [wide, narrow])
    assert first == Calibration(4.0, {"a": 2, "b": 3})
    second = calibration_after(first, head, ["c", "a"], [one, 2 * wide])
    assert second == Calibration((2 * 4.0 + 32.0) / 3, {"a": 2, "b": 3, "c": 1})
    assert calibration_after(None, head, ["c"], [one]) is None
    assert calibration_after(first, head, ["c"], [one]) == first.with_counts({"c": 1})


def test_model_knows_how_many_images_each_class_mean_comes_from(model: Model) -> None:
    """Of all that a round trains on, of those too few to train on, and of those delivered again."""
    counts = {NAMES[0]: 7, NAMES[9]: 2, **dict.fromkeys(NAMES[10:14], 20)}
    later = api.update(model, drawings(counts, 40), **{k: ROUND[k] for k in ROUND if k != "width"})
    assert model.calibration is not None
    assert later.calibration is not None
    assert set(later.calibration.counts) == set(later.classes)
    assert later.calibration.counts[NAMES[0]] == 7 + VIRTUAL_SAMPLES
    assert later.calibration.counts[NAMES[9]] == 2
    assert later.calibration.counts[NAMES[1]] == model.calibration.counts[NAMES[1]] <= 20
    assert NAMES[9] in later.lineage[1].untrained
    assert not set(later.lineage[1].untrained) & set(later.lineage[1].classes)


def test_new_class_with_few_examples_gets_its_images(model: Model) -> None:
    few, images = drawings(dict.fromkeys(NAMES[9:14], 3)), drawings(dict.fromkeys(NAMES, 30), 60)
    new = images.labels >= 9

    def accuracies(model: Model) -> tuple[float, float]:
        predicted = model.classifier(few, known=True).predict(images.images)
        correct = torch.tensor(
            [images.classes[i] == p for i, p in zip(images.labels, predicted, strict=True)]
        ).double()
        return float(correct[new].mean()), float(correct[~new].mean())

    after, before = accuracies(model), accuracies(replace(model, calibration=None))
    assert after[0] > before[0] + 0.05
    assert after[1] > before[1] - 0.15


def test_equal_numbers_and_early_files_are_unchanged_to_the_last_bit(
    model: Model, tmp_path: Path
) -> None:
    early = replace(model, calibration=None)
    equal, unequal = (
        {name: drawings({name: n + i * extra}).images for i, name in enumerate(NAMES[9:12])}
        for n, extra in ((5, 0), (1, 4))
    )
    images = drawings(dict.fromkeys(NAMES, 10), 60).images
    for how in ({"support": equal}, {"known": model.lineage[0].classes}):
        assert model.classifier(**how).offsets is None
        given, wanted = (m.classifier(**how).predict_proba(images) for m in (model, early))
        assert torch.equal(given, wanted)
    assert early.classifier(unequal, known=True).offsets is None
    classifier, offsets = model.classifier(unequal), model.classifier(unequal).offsets
    assert offsets is not None
    assert offsets.diff().lt(0).all(), "more for fewer examples"
    expected = early.classifier(unequal).logits(model.embed(images)) + offsets
    torch.testing.assert_close(classifier.logits(model.embed(images)), expected)
    early.save(tmp_path / "early")
    assert b"calibration" not in (tmp_path / "early").read_bytes()
    model.save(tmp_path / "model")
    assert Model.load(tmp_path / "model").calibration == model.calibration
    assert Model.load(tmp_path / "early").fingerprint == model.fingerprint


@pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")  # of copies
def test_class_embeddings_and_fitted_points_have_no_offsets() -> None:
    table = drawings(dict.fromkeys(NAMES[:3], 5))
    unequal = {name: table.images[: 1 + i] for i, name in enumerate(table.classes)}
    for head in ("ridge", "ecm training=inner", "ecm"):
        config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig(head), 1, 28)
        model = new_model(config, Pool.all("all", table), 0).with_anchors_of(Pool.all("all", table))
        assert model.classifier(unequal).offsets is None
        assert model.anchor_classifier().offsets is None
