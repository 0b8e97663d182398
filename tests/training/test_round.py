"""One round: what it leaves alone, what it makes, and when it gives up."""

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.small_round import (
    BASE,
    CONFIG,
    FIRST,
    NEW,
    OLD,
    PER_CLASS,
    SECOND,
    TABLE,
    VAL,
    Linear,
    Witness,
    base_model,
    memory_of,
    quick,
    round_data,
    same,
    scheduled,
    second_round,
    untrained,
    weights,
)
from torch import Tensor, nn

from kedge.config import EpisodeShape
from kedge.data.pools import RoundData
from kedge.episodes.sampler import EpisodeIndices
from kedge.errors import KedgeError
from kedge.methods.registry import ALIGNMENTS, Method, parse_method
from kedge.models.heads import Head, PrototypeHead
from kedge.models.model import Model
from kedge.training import validation
from kedge.training.round import Validator, memory_after_round, train_round
from kedge.training.step import StepInputs, TrainStep

ALIGNED = sorted(ALIGNMENTS)


# ── λ ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ALIGNED)
def test_weight_of_zero_is_fine_tuning_to_the_last_bit(name: str) -> None:
    tuned = train_round(base_model(), SECOND, parse_method("FT"), CONFIG)
    zero, one = (second_round(f"{name} lambda={weight}", base_model()) for weight in (0, 1))
    assert same(weights(zero.model), weights(tuned.model))
    assert zero.history == tuned.history
    assert not same(weights(one.model), weights(tuned.model))


# ── what a round leaves alone ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["FT", *ALIGNED])
def test_round_does_not_change_its_teacher_nor_earlier_anchors(name: str) -> None:
    base, method = base_model(), quick(name)
    before, lineage = weights(base), base.lineage
    second = second_round(name, base).model
    assert same(weights(base), before), "weights, BatchNorm statistics and anchors"
    assert (base.classes, base.lineage) == (OLD, lineage)
    assert second.classes == OLD + NEW
    assert torch.equal(second.anchors[:4], base.anchors)
    assert not same(second.embedding.state_dict(), base.embedding.state_dict())

    memory = memory_after_round(method, second, SECOND, memory_of(name, base), CONFIG)
    third = train_round(second, round_data(2, VAL), method, CONFIG, memory=memory).model
    assert third.classes == OLD + NEW + VAL
    assert torch.equal(third.anchors[:8], second.anchors)
    assert [entry.round for entry in third.lineage] == [0, 1, 2]


class LiftedHead(Head):
    """A head with parameters: prototypes in a learned space."""

    def __init__(self) -> None:
        super().__init__(4, 2.0)
        self.lift = nn.Linear(4, 5)
        self.prototypes = PrototypeHead(5, 2.0)

    def fit(self, support: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.prototypes.fit(self.lift(support), mask)

    def logits(self, features: Tensor, representatives: Tensor) -> Tensor:
        return self.prototypes.logits(self.lift(features), representatives)

    def anchors(self, features: list[Tensor], class_embeddings: Tensor | None = None) -> Tensor:
        return self.prototypes.anchors([self.lift(of_class) for of_class in features])


def test_alignment_sees_all_images_of_an_episode_and_the_frozen_teacher() -> None:
    torch.manual_seed(0)
    network = copy.deepcopy(base_model().embedding).requires_grad_(True)
    network.zero_grad()
    teacher = replace(base_model(), embedding=network, head=LiftedHead())
    teacher, witness = teacher.with_anchors_of(FIRST.train), Witness(2)
    before = weights(teacher)
    model = train_round(teacher, SECOND, Method("witness", "new", witness), CONFIG).model
    assert same(weights(teacher), before)
    assert not same(model.head.state_dict(), teacher.head.state_dict()), "the head trains"
    parameters = [teacher.anchors, *network.parameters(), *teacher.head.parameters()]
    assert all(parameter.grad is None for parameter in parameters)
    k, s, q = 3, 2, 2
    for inputs in witness.seen:
        assert same(inputs.head.state_dict(), teacher.head.state_dict())
        assert inputs.new.shape == inputs.old.shape == (k * (s + q), 4)
        assert inputs.new.requires_grad
        assert not inputs.old.requires_grad


# ── what a round makes ───────────────────────────────────────────────────────────────────────


def test_anchors_are_means_of_all_training_images_in_eval_mode() -> None:
    base = base_model()
    network = copy.deepcopy(base.embedding).eval()
    with torch.no_grad():
        for name, anchor in zip(base.classes, base.anchors, strict=True):
            pixels = TABLE.images[TABLE.rows_of(name)].float() / 255
            mean = torch.stack([network(image[None])[0] for image in pixels]).mean(0)
            torch.testing.assert_close(anchor, mean, rtol=1e-4, atol=1e-5)


def test_class_that_is_delivered_again_gets_a_new_anchor() -> None:
    base = base_model()
    again = train_round(base, round_data(1, (*NEW, "old1")), parse_method("IDA"), CONFIG).model
    assert again.classes == ("old0", "old2", "old3", *NEW, "old1")
    assert torch.equal(again.anchors[:3], base.anchors[[0, 2, 3]])
    assert not torch.equal(again.anchors[-1], base.anchors[1])


def test_model_is_ready_for_use_and_has_its_lineage() -> None:
    model = train_round(base_model(), SECOND, parse_method("ida lambda=2"), CONFIG).model
    for module in (model.embedding, model.head):
        assert not any(part.training for part in module.modules())
        assert all(not w.requires_grad and w.grad is None for w in module.parameters())
    first, second = model.lineage
    assert (first.method, first.classes) == ("base", OLD)
    assert (second.round, second.method, second.classes) == (1, "IDA lambda=2", NEW)
    assert second.images == 4 * PER_CLASS
    assert second.config["seed"] == CONFIG.seed


def test_training_improves_and_ticks_every_episode() -> None:
    ticks: list[int] = []
    config = scheduled(epochs=6, episodes=12)
    history = train_round(untrained(), FIRST, BASE, config, tick=ticks.append).history
    assert history[-1].cross_entropy < 0.5 * history[0].cross_entropy
    assert max(epoch.val_accuracy for epoch in history) > 60  # chance is 33
    assert sum(ticks) == 6 * 12


@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])  # the latter has DropBlock
def test_identical_rounds_are_identical_to_the_last_bit(backbone: str) -> None:
    config, results = scheduled(epochs=2), []
    for noise in range(2):
        torch.manual_seed(noise)
        results.append(train_round(untrained(backbone), FIRST, BASE, config))
    assert same(weights(results[0].model), weights(results[1].model))
    assert results[0].history == results[1].history
    other = train_round(untrained(backbone), FIRST, BASE, replace(config, seed=6))
    assert not same(weights(other.model), weights(results[0].model))


# ── validation ───────────────────────────────────────────────────────────────────────────────


def test_weights_of_the_best_validation_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies, validated = iter([10, 50, 50, 20]), []

    def validate(_: Validator, model: Model) -> float:
        validated.append(replace(model, embedding=copy.deepcopy(model.embedding)))
        return float(next(accuracies))

    monkeypatch.setattr(Validator, "__call__", validate)
    model = train_round(untrained(), FIRST, BASE, scheduled(epochs=4)).model
    states = [shown.embedding.state_dict() for shown in validated]
    assert same(model.embedding.state_dict(), states[1]), "the first of two equal ones"
    assert not any(same(states[1], states[i]) for i in (0, 2, 3))
    assert (model.lineage[-1].best_epoch, model.lineage[-1].val_accuracy) == (2, 50.0)
    torch.testing.assert_close(model.anchors, validated[1].with_anchors_of(FIRST.train).anchors)


def test_validation_episodes_are_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[Tensor] = []

    def spy(head: Head, features: Tensor, indices: EpisodeIndices) -> Tensor:
        positions.append(indices.positions)
        return torch.zeros(len(indices), dtype=torch.float64)

    base, config = base_model(), scheduled(episodes=1)
    monkeypatch.setattr(validation, "episode_accuracies", spy)
    train_round(untrained(), FIRST, BASE, config)
    train_round(base, SECOND, parse_method("IDA"), config)
    assert len(positions) == 6
    assert all(torch.equal(each, positions[0]) for each in positions)
    train_round(base, SECOND, BASE, replace(config, seed=6))
    assert not torch.equal(positions[-1], positions[0]), "the seed decides"


# ── errors ───────────────────────────────────────────────────────────────────────────────────


def test_divergence_names_round_method_and_remedy() -> None:
    before = weights(base_model())
    with pytest.raises(KedgeError, match=r"Round 1 \(IDA\) diverged in epoch 1.*--lr"):
        train_round(base_model(), SECOND, parse_method("IDA"), scheduled(lr=1e30))
    assert same(weights(base_model()), before)


def test_divergence_keeps_the_last_good_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = TrainStep.__call__, itertools.count()

    def fail_later(self: TrainStep, inputs: StepInputs) -> Tensor:
        metrics = original(self, inputs)
        return metrics * math.nan if next(calls) == CONFIG.schedule.episodes else metrics

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", fail_later)
        with pytest.raises(KedgeError, match=r"diverged in epoch 2.* by --epochs 1 "):
            train_round(untrained(), FIRST, BASE, CONFIG, tmp_path / "state")
    ticks: list[int] = []
    train_round(untrained(), FIRST, BASE, CONFIG, tmp_path / "state", ticks.append)
    assert ticks[0] == CONFIG.schedule.episodes, "the first epoch was not lost"


def test_a_round_that_merges_cannot_be_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last epoch is merged, so that a stopped round with other epochs is another run."""
    calls = itertools.count()
    monkeypatch.setattr(Validator, "__call__", lambda *_: math.nan if next(calls) else 50.0)
    with pytest.raises(KedgeError, match="diverged in epoch 2") as error:
        train_round(base_model(), SECOND, parse_method("IDA merge=0.5"), CONFIG)
    assert "--epochs" not in str(error.value)


class Masked(Linear):
    """A backbone that has an infinite value on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0, -math.inf]))


def test_only_what_becomes_infinite_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    start = untrained("custom", network=Masked())
    assert len(train_round(start, FIRST, BASE, CONFIG).history) == 3
    original = TrainStep.__call__

    def spoil(self: TrainStep, inputs: StepInputs) -> Tensor:
        metrics = original(self, inputs)
        self.student.embedding.get_buffer("backbone.mask")[0] = -math.inf
        return metrics

    monkeypatch.setattr(TrainStep, "__call__", spoil)
    with pytest.raises(KedgeError, match="diverged in epoch 1: some weights"):
        train_round(start, FIRST, BASE, CONFIG)


@pytest.mark.parametrize("starved", [FIRST, SECOND])
def test_too_few_images_are_refused_before_any_training(starved: RoundData) -> None:
    for shape, reason in (
        (EpisodeShape(3, 2, PER_CLASS), "8 images"),
        (EpisodeShape(5), "4 class"),
    ):
        config = replace(CONFIG, episode=shape)
        with pytest.raises(KedgeError, match=reason):
            train_round(untrained(), starved, BASE, config, tick=lambda n: pytest.fail("trained"))
