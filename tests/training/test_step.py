"""One optimizer step equals plain autograd and Adam, for one episode and for several."""

import copy
from dataclasses import fields

import pytest
import torch
from tests.training.small_round import (
    BASE,
    FIRST,
    SIDE,
    TABLE,
    Linear,
    base_model,
    memory_of,
    same,
    scheduled,
    second_round,
    untrained,
)
from torch import Tensor, nn

from kedge.data.augment import Augmentation, padding
from kedge.episodes.sampler import EpisodeBatch
from kedge.errors import KedgeError
from kedge.evaluation.results import EpochResult
from kedge.methods.base import Memory
from kedge.methods.registry import ALIGNMENTS, parse_method
from kedge.models.model import Model
from kedge.training.round import train_round
from kedge.training.step import MultiEpisodeStep, StepInputs, StepMetrics, TrainStep

METHODS = ["FT", *sorted(ALIGNMENTS)]
WAYS, SHOTS, N_IMAGES = 3, 2, 15
LAMBDA = 0.7


# ── a slow reference ─────────────────────────────────────────────────────────────────────────


def slow_logits(z: Tensor, representatives: Tensor) -> Tensor:
    rows = [torch.stack([-(x - c).square().sum() / 2 for c in representatives]) for x in z]
    return torch.stack(rows)


def slow_kl(old: Tensor, new: Tensor) -> Tensor:
    p, q = old.softmax(1), new.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def slow_prototypes(z: Tensor) -> Tensor:
    return torch.stack([of_class[:SHOTS].mean(0) for of_class in z.split(len(z) // WAYS)])


def slow_queries(z: Tensor) -> Tensor:
    return torch.cat([of_class[SHOTS:] for of_class in z.split(len(z) // WAYS)])


def slow_loss(
    name: str,
    networks: tuple[nn.Module, nn.Module],
    images: Tensor,
    anchors: Tensor,
    memory: Memory,
    old_images: Tensor,
) -> Tensor:
    """L_CE + λ · penalty as the papers state them."""
    student, teacher = networks
    pixels, old_pixels = images.float() / 255, old_images.float() / 255
    z, old = student(pixels), teacher(pixels).detach()
    prototypes = slow_prototypes(z)
    losses = [
        -row.softmax(0)[way].log()
        for way, of_class in enumerate(z.split(len(z) // WAYS))
        for row in slow_logits(of_class[SHOTS:], prototypes)
    ]
    loss = torch.stack(losses).mean()
    if name == "DFA":
        pairs = zip(z, old, strict=True)
        loss = loss + LAMBDA * torch.stack([(a - b).square().mean() for a, b in pairs]).mean()
    if name == "IDA":
        loss = loss + LAMBDA * slow_kl(slow_logits(old, anchors), slow_logits(z, anchors))
    if name == "EWC":
        pairs = zip(student.named_parameters(), teacher.parameters(), strict=True)
        parts = [
            (memory[f"fisher.embedding.{key}"] * (new - before).square()).sum()
            for (key, new), before in pairs
        ]
        loss = loss + LAMBDA / 2 * torch.stack(parts).sum()
    if name == "EIML":
        before, now = teacher(old_pixels).detach(), student(old_pixels)
        c_old, c_new = slow_prototypes(before), slow_prototypes(now)
        queries = slow_queries(before), slow_queries(now)
        rehearsed = slow_kl(slow_logits(queries[0], c_old), slow_logits(queries[1], c_new))
        loss = loss + LAMBDA * (rehearsed + slow_kl(slow_logits(old, c_old), slow_logits(z, c_old)))
    return loss


class Setting:
    """A student that differs from its teacher, and a copy of it for the reference."""

    def __init__(self, name: str) -> None:
        base = base_model()
        self.name, self.anchors, self.memory = name, base.anchors[:3], memory_of(name, base)
        self.method = parse_method(name if name == "FT" else f"{name} lambda={LAMBDA}")
        student = untrained(seed=1)
        self.network = student.embedding.train()
        self.step = TrainStep(student, base, self.method, 1e-2, None, self.memory)
        self.reference = copy.deepcopy(self.network)
        self.networks = (self.reference, copy.deepcopy(base.embedding).eval())

    def episode(self, first: int) -> tuple[StepInputs, Tensor]:
        """Inputs of a step without augmentation, and the reference's loss of them."""
        images = TABLE.images[torch.arange(first, first + 5 * N_IMAGES, 5)]
        old_images = TABLE.images[torch.arange(first + 1, first + 1 + N_IMAGES)]
        middle = torch.full((N_IMAGES,), padding(SIDE))
        mirrored = torch.zeros(N_IMAGES, dtype=torch.bool)
        untouched = Augmentation(middle, middle, mirrored, torch.ones(N_IMAGES, 3), 0 * middle)
        batch, old_batch = (
            EpisodeBatch(x, untouched, torch.arange(WAYS), SHOTS) for x in (images, old_images)
        )
        inputs = StepInputs(
            batch,
            self.anchors if self.name == "IDA" else None,
            old_batch if self.name == "EIML" else None,
        )
        loss = slow_loss(self.name, self.networks, images, self.anchors, self.memory, old_images)
        return inputs, loss

    def assert_same_gradients(self) -> None:
        named = zip(self.network.named_parameters(), self.reference.parameters(), strict=True)
        for (key, got), expected in named:
            assert got.grad is not None
            torch.testing.assert_close(got.grad, expected.grad, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", METHODS)
def test_step_is_that_of_autograd_and_adam(name: str) -> None:
    setting = Setting(name)
    network, reference = setting.network, setting.reference
    adam = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for i in range(3):
        reference.load_state_dict(network.state_dict())
        inputs, loss = setting.episode(i)
        metrics = StepMetrics(*setting.step(inputs).tolist())
        adam.zero_grad()
        loss.backward()
        assert metrics.loss == pytest.approx(loss.item(), rel=1e-4)
        parts = metrics.cross_entropy + setting.method.weight * metrics.penalty
        assert metrics.loss == pytest.approx(parts, rel=1e-5)
        setting.assert_same_gradients()
        for got, expected in zip(network.parameters(), reference.parameters(), strict=True):
            expected.grad = got.grad.clone()  # Adam amplifies rounding errors
        adam.step()
        for key, expected_value in reference.state_dict().items():
            got_value = network.state_dict()[key]
            torch.testing.assert_close(got_value, expected_value, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", ["FT", "IDA", "EIML", "EWC"])
def test_step_on_several_is_one_backward_on_the_mean_loss(name: str) -> None:
    setting = Setting(name)
    network, reference = setting.network, setting.reference
    multi = MultiEpisodeStep(setting.step)
    for i in range(2):
        reference.load_state_dict(network.state_dict())
        before = {key: value.clone() for key, value in reference.named_buffers()}
        multi.begin()
        losses, statistics, vectors = [], [], []
        for j in range(3):
            for key, value in reference.named_buffers():
                value.data = before[key].clone()
            inputs, loss = setting.episode(i + j)
            losses.append(loss)
            statistics.append({key: value.clone() for key, value in reference.named_buffers()})
            vectors.append(multi.episode(inputs))
        reference.zero_grad()
        (torch.stack(losses).sum() / 3).backward()
        metrics = StepMetrics(*multi.end(torch.stack(vectors).sum(0), 3).tolist())
        assert metrics.loss == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
        setting.assert_same_gradients()
        assert all(w.grad.stride() == w.stride() for w in network.parameters()), "for fused Adam"
        for key, got in network.named_buffers():
            values = torch.stack([moved[key] for moved in statistics])
            mean = values.mean(0) if values.is_floating_point() else values[0]
            torch.testing.assert_close(got, mean, msg=key)
            if key in ("mean", "std"):
                assert torch.equal(got, before[key]), "a constant has no rounding error"


# ── metrics, learning rates, errors ──────────────────────────────────────────────────────────


def test_every_metric_is_a_field_of_the_training_curve() -> None:
    assert set(StepMetrics._fields) < {field.name for field in fields(EpochResult)}


@pytest.mark.parametrize("name", sorted(ALIGNMENTS))
def test_penalty_is_zero_until_the_first_update(name: str) -> None:
    """Student and teacher see the same augmented pixels and start from the same weights."""
    untrained_linear = untrained("custom", network=Linear())
    start = train_round(untrained_linear, FIRST, BASE, scheduled(epochs=1, lr=1e-4)).model
    penalties = [
        second_round(name, start, scheduled(epochs=1, episodes=n)).history[0].penalty
        for n in (1, 3)
    ]
    assert penalties[0] == pytest.approx(0, abs=1e-6)
    assert penalties[1] > max(1e-7, 100 * abs(penalties[0]))


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_class_embeddings_have_a_learning_rate_of_their_own(n_tasks: int) -> None:
    """Adam's first step changes everything that has a gradient by the learning rate."""
    start = untrained(head="ecm lr_scale=3")
    initial = start.head.initial_class_embeddings(start.class_features(FIRST.train))
    config = scheduled(epochs=1, episodes=n_tasks, tasks_per_step=n_tasks)
    model = train_round(start, FIRST, BASE, config).model
    assert (model.anchors - initial).abs().max().item() == pytest.approx(3e-2, rel=1e-2)
    moved = model.head.get_parameter("lift") - start.head.get_parameter("lift")
    assert moved.abs().max().item() == pytest.approx(1e-2, rel=1e-2)


def test_model_without_weights_is_refused_unless_its_head_has_some() -> None:
    def flat(head: str) -> Model:
        return untrained("custom", head=head, network=nn.Flatten())

    for n_tasks in (1, 3):
        with pytest.raises(KedgeError, match="nothing to train"):
            train_round(flat("prototype"), FIRST, BASE, scheduled(tasks_per_step=n_tasks))
    learned = train_round(flat("ridge"), FIRST, BASE, scheduled()).model
    assert not same(learned.head.state_dict(), flat("ridge").head.state_dict())
