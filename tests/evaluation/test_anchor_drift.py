"""Drift of classes away from their anchors, against slow references."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from kedge.config import BackboneConfig, HeadConfig
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.evaluation.anchor_drift import anchor_drift, true_anchors
from kedge.evaluation.results import AnchorMove
from kedge.experiments.records import MEASURES
from kedge.models.embedding import ModelConfig
from kedge.models.model import Model, new_model

NAMES = tuple(f"class {i}" for i in range(9))
PER_CLASS = 5
TABLE = ImageTable.build(
    torch.randint(0, 256, (45, 1, 16, 16), generator=torch.Generator().manual_seed(0)).byte(),
    torch.arange(9).repeat_interleave(PER_CLASS),
    NAMES,
)
ROUNDS = tuple(Pool.all(f"round_{i}", TABLE, NAMES[4 * i : 4 * i + 4]) for i in range(2))  # 4 + 4
BASE, LATER = ROUNDS
HEADS = ("prototype", "ecm", "ridge")
Drift = tuple[dict[str, float], tuple[AnchorMove, ...]]


def model_of(head: str = "prototype", width: int = 6, seed: int = 0) -> Model:
    config = ModelConfig(BackboneConfig("conv4", width), HeadConfig(head), 1, 16)
    return new_model(config, BASE, seed)


def drift_of(today: Model, *before: Model) -> Drift:
    """Of the classes of one round under each of these models, up to today's."""
    pools = ROUNDS[: len(before)]
    then = [true_anchors(model, pool) for model, pool in zip(before, pools, strict=True)]
    now = [true_anchors(today, pool) for pool in pools]
    names = [name for pool in pools for name in pool.classes]
    return anchor_drift(names, torch.cat(then), torch.cat(now), then[0])


def true_mean(model: Model, name: str) -> Tensor:
    images = TABLE.images[TABLE.rows_of(name)]
    return torch.stack([model.embed(image[None])[0] for image in images]).mean(0)


def test_it_is_the_mean_distance_between_then_and_now() -> None:
    """The class means of two rounds, image by image."""
    first, second, today = (model_of(seed=seed) for seed in range(3))
    found, moves = drift_of(today, first, second)
    then = [true_mean(first, name) for name in NAMES[:4]]
    then += [true_mean(second, name) for name in NAMES[4:8]]
    now = [true_mean(today, name) for name in NAMES[:8]]
    distances = [float((a - b).norm()) for a, b in zip(then, now, strict=True)]
    between = [float((a - b).norm()) for a, b in itertools.combinations(now, 2)]
    assert found["anchor_drift"] == pytest.approx(sum(distances) / 8, rel=1e-4)
    assert found["anchor_spread"] == pytest.approx(sum(between) / 28, rel=1e-4)
    assert found["anchor_drift"] > 0.01
    assert set(found) == {name for name in MEASURES if name.startswith("anchor")}
    assert [move.name for move in moves] == list(NAMES[:8])


@pytest.mark.parametrize("head", HEADS)
def test_a_model_that_has_not_moved_has_not_moved_its_classes(head: str) -> None:
    model = model_of(head)
    found, moves = drift_of(model, model)
    assert found["anchor_drift"] == 0
    assert all(move.stored == move.now for move in moves)
    assert drift_of(model_of(head, seed=1), model)[0]["anchor_drift"] > 0.01


def test_a_class_that_moved_by_a_known_vector() -> None:
    """The base spans a plane on purpose, and the vector lies in it."""
    u, v = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(1))).Q.T
    base = torch.stack([3 * u, -3 * u, 2 * v, -2 * v])
    now = base.clone()
    now[2] += 3 * u + 4 * v
    found, moves = anchor_drift(NAMES[:4], base, now, base)
    assert found["anchor_drift"] == pytest.approx(5 / 4, rel=1e-4)
    assert found["anchor_plane"] == pytest.approx(1, abs=1e-5)
    steps = [torch.tensor(move.now) - torch.tensor(move.stored) for move in moves]
    assert [float(step.norm()) for step in steps] == pytest.approx([0, 0, 5, 0], abs=1e-4)
    assert steps[2].abs().tolist() == pytest.approx([3, 4], rel=1e-3), "u is the main direction"
    stored = torch.tensor([move.stored for move in moves])
    assert torch.pdist(stored).tolist() == pytest.approx(torch.pdist(base).tolist(), rel=1e-3)


def test_the_plane_depends_on_the_base_alone_and_not_on_its_order() -> None:
    """An axis may point either way; it must be the same in every round and for every method."""
    first, second, today = (model_of(seed=seed) for seed in range(3))
    once = drift_of(today, first, second)
    assert drift_of(today, first, second) == once
    then = torch.cat([true_anchors(first, BASE), true_anchors(second, LATER)])
    now = torch.cat([true_anchors(today, pool) for pool in ROUNDS])
    for seed in range(2):
        order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
        _, moves = anchor_drift(NAMES[:8], then, now, true_anchors(first, BASE)[order])
        for a, b in zip(once[1], moves, strict=True):
            assert a.stored == pytest.approx(b.stored, abs=1e-3)
            assert a.now == pytest.approx(b.now, abs=1e-3)
    assert drift_of(second, first)[1] != once[1][:4]
    stored = [move.stored for move in drift_of(second, first)[1]]
    assert stored == [move.stored for move in once[1][:4]], "the same in every round"


def test_a_single_feature_spans_a_line() -> None:
    first, today = (model_of(width=1, seed=seed) for seed in range(2))
    assert first.config.n_features == 1
    found, moves = drift_of(today, first)
    assert found["anchor_plane"] == pytest.approx(1)
    assert all(move.stored[1] == move.now[1] == 0 for move in moves)
    assert any(move.stored[0] != move.now[0] for move in moves)
