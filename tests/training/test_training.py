"""One round: what it minimises, what it keeps, and what it never touches."""

import copy
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kedge import benchmarks
from kedge.benchmarks import Protocol
from kedge.benchmarks.base import Split
from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
)
from kedge.data import table as table_module
from kedge.data.augment import Augmentation, padding
from kedge.data.lazy_images import LazyImages
from kedge.data.pools import RoundData, whole
from kedge.data.table import ImageTable
from kedge.episodes.sampler import EpisodeIndices
from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment
from kedge.experiments.runner import run_experiment
from kedge.methods.base import (
    Alignment,
    AlignmentInputs,
    Memory,
)
from kedge.methods.registry import (
    ALIGNMENTS,
    Method,
    parse_method,
)
from kedge.models.heads import Head, PrototypeHead
from kedge.models.model import (
    Model,
    ModelConfig,
    new_model,
)
from kedge.training import round
from kedge.training.checkpoint import Checkpoint
from kedge.training.loop import EpisodeSampler
from kedge.training.round import (
    Validation,
    remember,
    train_round,
)
from kedge.training.step import (
    EpisodeBatch,
    MultiEpisodeStep,
    TrainStep,
)
from kedge.utils.atomic_io import load_tensors, save_tensors
from kedge.utils.seeding import torch_seed

SIDE, PER_CLASS = 16, 8
OLD, NEW, VAL = (tuple(f"{role}{i}" for i in range(4)) for role in ("old", "new", "val"))
BASE = Method("base", "new")
CONFIG = TrainConfig(EpisodeShape(3, 2, 2), Schedule(3, 3, 20, 1e-2), seed=5)
ALIGNED = sorted(ALIGNMENTS)


def images(classes: tuple[str, ...] = OLD + NEW + VAL, seed: int = 0) -> ImageTable:
    """Each class a coarse pattern of its own under noise."""
    seeded = torch.Generator().manual_seed(seed)
    n = len(classes)
    coarse = torch.rand(n, 1, 1, 4, 4, generator=seeded)
    patterns = coarse.repeat_interleave(SIDE // 4, 3).repeat_interleave(SIDE // 4, 4)
    noise = torch.rand(n, PER_CLASS, 1, SIDE, SIDE, generator=seeded)
    pixels = (255 * (0.4 * patterns + 0.6 * noise)).to(torch.uint8).flatten(0, 1)
    return ImageTable.build(pixels, [i // PER_CLASS for i in range(n * PER_CLASS)], classes)


TABLE = images()


def delivery(round: int, classes: tuple[str, ...], table: ImageTable = TABLE) -> RoundData:
    return RoundData(round, whole("training", table, classes), whole("validation", table, VAL))


FIRST, SECOND = delivery(0, OLD), delivery(1, NEW)


def fresh(backbone: str = "conv4", seed: int = 0) -> Model:
    config = ModelConfig(BackboneConfig(backbone, 4), HeadConfig(), 1, SIDE)
    return new_model(config, FIRST.new, seed)


@pytest.fixture(scope="module")
def base() -> Model:
    """Round 0."""
    return train_round(fresh(), FIRST, BASE, CONFIG).model


def kept(method: str, model: Model) -> Memory:
    """What a method keeps of the first round; 4 of the 8 images of each class for EIML."""
    text = f"{method} exemplars=4" if method == "EIML" else method
    return remember(parse_method(text), model, FIRST, {}, CONFIG)


def second_round(method: str, base: Model, config: TrainConfig = CONFIG) -> round.RoundResult:
    memory = kept(method.split()[0], base)
    return train_round(base, SECOND, parse_method(method), config, memory=memory)


def scheduled(**changes: float | str) -> TrainConfig:
    return replace(CONFIG, schedule=replace(CONFIG.schedule, **changes))


def weights(model: Model) -> dict[str, Tensor]:
    parts = {**model.embedding.state_dict(), **model.head.state_dict(), "anchors": model.anchors}
    return {key: value.clone() for key, value in parts.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """To the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def validation_says(monkeypatch: pytest.MonkeyPatch, values: Iterator[float]) -> list[Model]:
    """Let validation give these accuracies; returns copies of the models that it was shown."""
    models: list[Model] = []

    def validate(_: Validation, model: Model) -> float:
        models.append(replace(model, embedding=copy.deepcopy(model.embedding)))
        return float(next(values))

    monkeypatch.setattr(Validation, "__call__", validate)
    return models


# ── one step ─────────────────────────────────────────────────────────────────────────────────


def slow_logits(z: Tensor, representatives: Tensor) -> Tensor:
    rows = [torch.stack([-(x - c).square().sum() / 2 for c in representatives]) for x in z]
    return torch.stack(rows)


def slow_kl(old: Tensor, new: Tensor) -> Tensor:
    p, q = old.softmax(1), new.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def slow_prototypes(z: Tensor, k: int, s: int) -> Tensor:
    return torch.stack([of_class[:s].mean(0) for of_class in z.split(len(z) // k)])


def slow_queries(z: Tensor, k: int, s: int) -> Tensor:
    return torch.cat([of_class[s:] for of_class in z.split(len(z) // k)])


def slow_loss(
    name: str,
    weight: float,
    networks: tuple[nn.Module, nn.Module],
    pixels: Tensor,
    anchors: Tensor,
    memory: Memory,
    old_pixels: Tensor,
    k: int,
    s: int,
) -> Tensor:
    """L_CE + λ · penalty, as the table of the method states them."""
    slow, teacher = networks
    z, old = slow(pixels), teacher(pixels).detach()
    of_class = z.split(len(z) // k)
    prototypes = torch.stack([features[:s].mean(0) for features in of_class])
    losses = []
    for way, features in enumerate(of_class):
        for row in slow_logits(features[s:], prototypes):
            losses.append(-row.softmax(0)[way].log())
    loss = torch.stack(losses).mean()
    if name == "DFA":
        pairs = zip(z, old, strict=True)
        loss = loss + weight * torch.stack([(a - b).square().sum() for a, b in pairs]).mean()
    if name == "IDA":
        loss = loss + weight * slow_kl(slow_logits(old, anchors), slow_logits(z, anchors))
    if name == "EWC":
        weights = zip(slow.named_parameters(), teacher.parameters(), strict=True)
        parts = [
            (memory[f"fisher.embedding.{key}"] * (new - before).square()).sum()
            for (key, new), before in weights
        ]
        loss = loss + weight / 2 * torch.stack(parts).sum()
    if name == "EIML":
        before, now = teacher(old_pixels).detach(), slow(old_pixels)
        c_old, c_new = slow_prototypes(before, k, s), slow_prototypes(now, k, s)
        queries = slow_queries(before, k, s), slow_queries(now, k, s)
        again = slow_kl(slow_logits(queries[0], c_old), slow_logits(queries[1], c_new))
        loss = loss + weight * (again + slow_kl(slow_logits(old, c_old), slow_logits(z, c_old)))
    return loss


def untouched(n: int) -> Augmentation:
    pad = torch.full((n,), padding(SIDE))
    return Augmentation(pad, pad, torch.zeros(n, dtype=torch.bool), torch.ones(n, 3))


@pytest.mark.parametrize("name", ["FT", *ALIGNED])
def test_a_step_is_that_of_plain_autograd_and_adam(name: str, base: Model) -> None:
    method = parse_method(name) if name == "FT" else parse_method(f"{name} lambda=0.7")
    student = fresh(seed=1)  # away from its teacher, so that the penalty matters from the start
    network = student.embedding.train()
    memory = kept(name, base)
    step = TrainStep(student, base, method, 1e-2, None, memory)
    slow, teacher = copy.deepcopy(network), copy.deepcopy(base.embedding).eval()
    adam = torch.optim.Adam(slow.parameters(), lr=1e-2)
    anchors, k, s, n = base.anchors[:3], 3, 2, 15
    asked = method.alignment and method.alignment.anchors_per_step(k, 4)
    for i in range(3):
        slow.load_state_dict(network.state_dict())
        batch = TABLE.images[torch.arange(i, i + 5 * n, 5)]
        task = EpisodeBatch(batch, untouched(n), torch.arange(k), s)
        again = TABLE.images[torch.arange(i + 1, i + 1 + n)]
        old_task = EpisodeBatch(again, untouched(n), torch.arange(k), s) if name == "EIML" else None
        shown = step(task, anchors if asked else None, old_task)

        pixels, old_pixels = batch.float() / 255, again.float() / 255
        adam.zero_grad()
        networks = (slow, teacher)
        loss = slow_loss(name, 0.7, networks, pixels, anchors, memory, old_pixels, k, s)
        loss.backward()
        assert shown[0].item() == pytest.approx(loss.item(), rel=1e-4)
        parts = shown[1].item() + method.weight * shown[2].item()
        assert shown[0].item() == pytest.approx(parts, rel=1e-5)
        for (key, got), expected in zip(network.named_parameters(), slow.parameters(), strict=True):
            torch.testing.assert_close(got.grad, expected.grad, rtol=1e-3, atol=1e-4, msg=key)
            expected.grad = got.grad.clone()  # Adam makes whole steps of rounding errors, too
        adam.step()
        for key, expected_value in slow.state_dict().items():
            got_value = network.state_dict()[key]
            torch.testing.assert_close(got_value, expected_value, rtol=1e-4, atol=1e-5, msg=key)


class Linear(nn.Module):
    """Without BatchNorm, training mode and eval mode are one."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(SIDE * SIDE, 6)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.flat(pixels.flatten(1))


@pytest.mark.parametrize("name", ALIGNED)
def test_the_penalty_is_zero_until_the_first_update(name: str) -> None:
    """Student and teacher see the very same augmented pixels and start from the same weights."""
    config = ModelConfig(BackboneConfig("custom"), HeadConfig(), 1, SIDE)
    start = train_round(
        new_model(config, FIRST.new, 0, Linear()), FIRST, BASE, scheduled(epochs=1, lr=1e-4)
    ).model
    penalties = [
        second_round(name, start, scheduled(epochs=1, episodes=n)).history[0].penalty
        for n in (1, 3)
    ]
    assert penalties[0] == pytest.approx(0, abs=1e-6)
    assert penalties[1] > 1e-7
    assert penalties[1] > 100 * abs(penalties[0])


# ── several episodes in a step ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["FT", "IDA", "EIML", "EWC"])
def test_a_step_on_several_is_that_of_one_backward_on_the_mean_of_their_losses(
    name: str, base: Model
) -> None:
    method = parse_method(name) if name == "FT" else parse_method(f"{name} lambda=0.7")
    student, memory, n, k, s = fresh(seed=1), kept(name, base), 15, 3, 2
    network = student.embedding.train()
    step = TrainStep(student, base, method, 1e-2, None, memory)
    shared = MultiEpisodeStep(step)
    slow, teacher = copy.deepcopy(network), copy.deepcopy(base.embedding).eval()
    anchors = base.anchors[:3]
    for i in range(2):
        slow.load_state_dict(network.state_dict())
        before = {key: value.clone() for key, value in slow.named_buffers()}
        batches = [TABLE.images[torch.arange(i + j, i + j + 5 * n, 5)] for j in range(3)]
        again = [TABLE.images[torch.arange(i + j, i + j + n)] for j in range(3)]
        losses, statistics, vectors = [], [], []
        for batch, old in zip(batches, again, strict=True):
            for key, value in slow.named_buffers():
                value.data = before[key].clone()
            pixels = (batch.float() / 255, old.float() / 255)
            losses.append(
                slow_loss(name, 0.7, (slow, teacher), pixels[0], anchors, memory, pixels[1], k, s)
            )
            statistics.append({key: value.clone() for key, value in slow.named_buffers()})
        slow.zero_grad()
        (torch.stack(losses).sum() / 3).backward()

        shared.begin()
        for batch, old in zip(batches, again, strict=True):
            task, old_task = (
                EpisodeBatch(x, untouched(n), torch.arange(k), s) for x in (batch, old)
            )
            asked = anchors if name == "IDA" else None
            vectors.append(shared.episode(task, asked, old_task if name == "EIML" else None))
        shown = shared.end(torch.stack(vectors).sum(0), 3)
        assert shown[0].item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
        for (key, got), wanted in zip(network.named_parameters(), slow.parameters(), strict=True):
            assert got.grad is not None
            assert got.grad.stride() == got.stride()
            torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-4, msg=key)
        for key, got_value in network.named_buffers():
            values = torch.stack([moved[key] for moved in statistics])
            mean = values.mean(0) if values.is_floating_point() else values[0]
            torch.testing.assert_close(got_value, mean, msg=key)
            if key in ("mean", "std"):
                assert torch.equal(got_value, before[key]), "what is constant has no rounding error"


@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])
def test_a_batch_of_one_is_one_step_after_another_with_noise_as_it_comes(backbone: str) -> None:
    config = scheduled(epochs=1)
    student, start = fresh(backbone), fresh(backbone)
    step = TrainStep(student, start, BASE, 1e-2, None, {})
    source = EpisodeSampler("", FIRST.new, config.episode, 3, student.device)
    plan = source.plan((config.seed, 0, 0))
    student.embedding.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed("dropblock", config.seed, 0, 0))
        losses = [step(task, None, None) for task in plan.tasks(range(3))]
    by_round = train_round(start, FIRST, BASE, config)
    assert by_round.history[0].loss == (torch.zeros(3) + sum(losses))[0].div(3).item()
    assert same(dict(student.embedding.state_dict()), dict(by_round.model.embedding.state_dict()))


def test_a_batch_has_fewer_steps_and_tells_of_every_episode() -> None:
    ticks: list[int] = []
    result = train_round(fresh(), FIRST, BASE, scheduled(batch=3, lr=1e-9), tick=ticks.append)
    counters = [v for k, v in result.model.embedding.state_dict().items() if k.endswith("tracked")]
    assert {int(value) for value in counters} == {result.model.lineage[0].best_epoch}
    assert ticks == [3, 3, 3]
    one_by_one = train_round(fresh(), FIRST, BASE, scheduled(lr=1e-9)).history
    for together, alone in zip(result.history, one_by_one, strict=True):
        assert together.loss == pytest.approx(alone.loss, rel=1e-5), "the mean over all episodes"


@pytest.mark.parametrize("shape", [EpisodeShape((2, 3), 1, 2), EpisodeShape(2, (1, 2), 2)])
def test_episodes_that_are_alike_by_chance_are_no_graph(shape: EpisodeShape, base: Model) -> None:
    """The next epoch has others, and a graph would take all the room that there is for ways."""
    pool = whole("all", TABLE)
    few = EpisodeSampler("", pool, shape, 1, base.device).plan((0, 0, 0))
    with pytest.raises(KedgeError, match="ways and shots are drawn for each episode"):
        few.planned()
    fixed = EpisodeShape((2, 2), (1, 1), 2)
    planned = EpisodeSampler("", pool, fixed, 1, base.device).plan((0, 0, 0)).planned()
    assert planned.positions.shape == (1, 2 * 3)


def test_an_epoch_is_a_whole_number_of_batches() -> None:
    with pytest.raises(
        KedgeError, match=r"--episodes is 10: .* multiple of --batch, which is 3\.$"
    ):
        Schedule(episodes=10, batch=3)
    with pytest.raises(KedgeError, match=r"^--batch is 0: it must be at least 1\.$"):
        Schedule(batch=0)


def test_noise_belongs_to_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was drawn before it, as other processes draw other noise."""
    config = scheduled(epochs=1, episodes=4, batch=4)
    plain = train_round(fresh("resnet12"), FIRST, BASE, config)
    original, seeds = MultiEpisodeStep.episode, []

    def noisy(self: MultiEpisodeStep, *episode: Any) -> torch.Tensor:
        seeds.append(torch.initial_seed())
        return original(self, *episode)

    monkeypatch.setattr(MultiEpisodeStep, "episode", noisy)
    again = train_round(fresh("resnet12"), FIRST, BASE, config)
    assert seeds == [torch_seed("dropblock", config.seed, 0, 0, i) for i in (0, 2, 1, 3)]
    assert same(weights(again.model), weights(plain.model))


# ── λ ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ALIGNED)
def test_a_weight_of_zero_is_fine_tuning_to_the_last_bit(name: str, base: Model) -> None:
    tuned = train_round(base, SECOND, parse_method("FT"), CONFIG)
    zero = second_round(f"{name} lambda=0", base)
    one = second_round(name, base)
    assert same(weights(zero.model), weights(tuned.model))
    assert zero.history == tuned.history
    assert not same(weights(one.model), weights(tuned.model)), "with λ = 1 it would differ"


@pytest.mark.parametrize("name", ALIGNED)
def test_a_larger_weight_holds_the_features_closer(name: str, base: Model) -> None:
    def moved(weight: float) -> float:
        method = f"{name} lambda={weight}"
        return second_round(method, base, scheduled(episodes=8)).history[-1].penalty

    assert moved(1e5 if name == "EWC" else 100) < moved(1e-6) / 2


# ── what a round leaves alone ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["FT", *ALIGNED])
def test_a_round_does_not_change_its_teacher_nor_earlier_anchors(name: str, base: Model) -> None:
    before, lineage = weights(base), base.lineage
    second = second_round(name, base).model
    assert same(weights(base), before), "weights, BatchNorm statistics and anchors"
    assert (base.classes, base.lineage) == (OLD, lineage)
    assert second.classes == OLD + NEW
    assert torch.equal(second.anchors[:4], base.anchors)
    assert not same(second.embedding.state_dict(), base.embedding.state_dict())

    first_two = second.anchors.clone()
    memory = remember(parse_method(name), second, SECOND, kept(name, base), CONFIG)
    third = train_round(second, delivery(2, VAL), parse_method(name), CONFIG, memory=memory).model
    assert third.classes == OLD + NEW + VAL
    assert torch.equal(third.anchors[:8], first_two)
    assert [entry.round for entry in third.lineage] == [0, 1, 2]


class Lifted(Head):
    """A head with parameters of its own: prototypes in a learned space."""

    def __init__(self) -> None:
        super().__init__(4, 2.0)
        self.lift = nn.Linear(4, 5)
        self.plain = PrototypeHead(5, 2.0)

    def fit(self, support: Tensor, present: Tensor | None = None) -> Tensor:
        return self.plain.fit(self.lift(support), present)

    def logits(self, features: Tensor, representatives: Tensor) -> Tensor:
        return self.plain.logits(self.lift(features), representatives)

    def episode_logits(
        self, episode: Tensor, n_shot: int, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.plain.episode_logits(self.lift(episode), n_shot, rows)

    def anchors(self, features: list[Tensor], rows: Tensor | None = None) -> Tensor:
        return self.plain.anchors([self.lift(of_class) for of_class in features])


@pytest.mark.parametrize("name", ALIGNED)
def test_no_gradient_reaches_teacher_or_anchors(name: str, base: Model) -> None:
    torch.manual_seed(0)
    network = copy.deepcopy(base.embedding).requires_grad_(True)
    network.zero_grad()
    teacher = replace(base, embedding=network, head=Lifted()).with_anchors_of(FIRST.new)
    before = weights(teacher)
    model = second_round(name, teacher).model
    assert same(weights(teacher), before)
    assert not same(dict(model.head.state_dict()), dict(teacher.head.state_dict())), "it trains"
    assert teacher.anchors.grad is None
    left = [*teacher.embedding.parameters(), *teacher.head.parameters()]
    assert all(parameter.grad is None for parameter in left)


@dataclass(frozen=True)
class Witness(Alignment):
    """Pulls the features about, and remembers all that it was shown."""

    per_step: int
    sights: list[AlignmentInputs] = field(default_factory=list)

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return self.per_step

    def penalty(self, sight: AlignmentInputs) -> Tensor:
        self.sights.append(replace(sight, head=copy.deepcopy(sight.head)))
        return sight.new.square().mean()


def test_every_step_draws_anchors_of_its_own_without_replacement(base: Model) -> None:
    witness = Witness(2)
    train_round(base, SECOND, Method("witness", "new", witness), scheduled(episodes=8))
    drawn = []
    for sight in witness.sights:
        assert sight.anchors is not None
        matches = [(base.anchors == anchor).all(1).nonzero().item() for anchor in sight.anchors]
        drawn.append(frozenset(matches))
    assert len(drawn) == 24
    assert set(drawn) == {frozenset(pair) for pair in itertools.combinations(range(4), 2)}


def test_both_sides_of_an_alignment_use_the_teachers_head(base: Model) -> None:
    torch.manual_seed(0)
    teacher = replace(base, head=Lifted()).with_anchors_of(FIRST.new)
    witness = Witness(2)
    model = train_round(teacher, SECOND, Method("witness", "new", witness), CONFIG).model
    own = dict(teacher.head.state_dict())
    assert not same(dict(model.head.state_dict()), own), "the student's head trains"
    assert all(same(dict(sight.head.state_dict()), own) for sight in witness.sights)


def test_support_and_queries_are_aligned_and_the_teacher_has_no_graph(base: Model) -> None:
    witness = Witness(2)
    train_round(base, SECOND, Method("witness", "new", witness), scheduled(epochs=1, episodes=2))
    k, s, q = 3, 2, 2
    for sight in witness.sights:
        assert sight.new.shape == sight.old.shape == (k * (s + q), 4)
        assert sight.new.requires_grad
        assert not sight.old.requires_grad


def test_a_class_that_comes_back_gets_a_fresh_anchor(base: Model) -> None:
    again = train_round(base, delivery(1, (*NEW, "old1")), parse_method("IDA"), CONFIG).model
    assert again.classes == ("old0", "old2", "old3", *NEW, "old1")
    assert torch.equal(again.anchors[:3], base.anchors[[0, 2, 3]])
    assert not torch.equal(again.anchors[-1], base.anchors[1])


def test_training_leaves_the_global_random_state_alone(base: Model) -> None:
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    train_round(base, SECOND, parse_method("FT"), CONFIG)
    assert torch.equal(torch.random.get_rng_state(), state)


# ── the start ────────────────────────────────────────────────────────────────────────────────


def test_a_fresh_model_is_normalised_by_its_pool_and_drawn_from_its_seed() -> None:
    pixels = TABLE.images[FIRST.new.rows].double() / 255
    embedding = fresh().embedding
    assert embedding.mean.item() == pytest.approx(pixels.mean().item(), abs=1e-5)
    assert embedding.std.item() == pytest.approx(pixels.std().item(), abs=1e-4)
    seen = embedding.backbone.register_forward_hook(lambda m, args, out: args[0].flatten(1))
    normalised = embedding(pixels.float())
    seen.remove()
    assert normalised.mean().item() == pytest.approx(0, abs=1e-4)
    assert normalised.std().item() == pytest.approx(1, abs=1e-3)
    assert same(weights(fresh(seed=3)), weights(fresh(seed=3)))
    assert not same(weights(fresh(seed=3)), weights(fresh(seed=4)))


def test_a_fresh_model_is_normalised_by_its_own_images_however_many() -> None:
    """The table has others, too, and of thousands a part is looked at, from all classes alike."""
    levels = torch.arange(0, 250, 10, dtype=torch.uint8).repeat_interleave(200)
    pixels = torch.stack([levels, 255 - levels, levels // 2], 1)[:, :, None, None]
    table = ImageTable.build(
        pixels.expand(-1, -1, SIDE, SIDE), levels.long() // 10, [f"{i:02}" for i in range(25)]
    )
    pool = whole("some", table, table.classes[5:])
    config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 3, SIDE)
    embedding = new_model(config, pool, 0).embedding
    seen = pixels[1000:].double().flatten(1) / 255
    for got, expected in ((embedding.mean, seen.mean(0)), (embedding.std, seen.std(0))):
        torch.testing.assert_close(got.flatten().double(), expected, rtol=0, atol=2e-3)


# ── what a round makes ───────────────────────────────────────────────────────────────────────


def test_anchors_are_representatives_of_all_training_images_in_eval_mode(base: Model) -> None:
    network = copy.deepcopy(base.embedding).eval()
    with torch.no_grad():
        for name, anchor in zip(base.classes, base.anchors, strict=True):
            pixels = TABLE.images[TABLE.rows_of(name)].float() / 255
            mean = torch.stack([network(image[None])[0] for image in pixels]).mean(0)
            torch.testing.assert_close(anchor, mean, rtol=1e-4, atol=1e-5)


def test_the_model_is_ready_for_use_and_says_where_it_comes_from(base: Model) -> None:
    model = train_round(base, SECOND, parse_method("ida lambda=2"), CONFIG).model
    for part in (model.embedding, model.head):
        assert not any(module.training for module in part.modules())
        assert not any(parameter.requires_grad for parameter in part.parameters())
        assert all(parameter.grad is None for parameter in part.parameters())
    first, second = model.lineage
    assert (first.method, first.classes) == ("base", OLD)
    assert (second.round, second.method, second.classes) == (1, "IDA lambda=2", NEW)
    assert second.images == 4 * PER_CLASS
    assert second.config["seed"] == CONFIG.seed


def test_practice_makes_better() -> None:
    result = train_round(fresh(), FIRST, BASE, scheduled(epochs=6, episodes=12))
    losses = [epoch.cross_entropy for epoch in result.history]
    assert losses[-1] < 0.5 * losses[0]
    assert max(epoch.val_accuracy for epoch in result.history) > 60  # chance is 33


def test_every_episode_is_ticked() -> None:
    ticks: list[int] = []
    train_round(fresh(), FIRST, BASE, CONFIG, tick=ticks.append)
    assert sum(ticks) == CONFIG.schedule.epochs * CONFIG.schedule.episodes


# ── validation decides ───────────────────────────────────────────────────────────────────────


def slow_rates(accuracies: list[float], lr: float, patience: int) -> list[float]:
    """The rate of each epoch: halved after MORE than `patience` epochs without improvement."""
    rates, best, since = [], -math.inf, 0
    for accuracy in accuracies:
        rates.append(lr)
        if accuracy > best:
            best, since = accuracy, 0
        else:
            since += 1
        if since == patience + 1:
            lr, since = lr / 2, 0
    return rates


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_the_rate_is_halved_on_a_plateau(patience: int, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = [50, 60, 60, 59, 60, 60, 58, 61, 61, 61, 60, 40, 20, 61, 61, 61, 70, 70, 70.0]
    validation_says(monkeypatch, iter(accuracies))
    config = scheduled(epochs=len(accuracies), episodes=1, patience=patience)
    history = train_round(fresh(), FIRST, BASE, config).history
    rates = slow_rates(accuracies, 1e-2, patience)
    if patience == 0:
        n = sum(rate > 1e-5 for rate in rates)  # after ten halvings it ends: nothing would move
        assert n < len(rates)
        del accuracies[n:], rates[n:]
    assert [epoch.val_accuracy for epoch in history] == accuracies
    assert [epoch.lr for epoch in history] == rates

    parameter = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([parameter], lr=1e-2)
    torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        sgd, "max", factor=0.5, patience=patience, threshold=0
    )
    for epoch in history:
        assert epoch.lr == pytest.approx(sgd.param_groups[0]["lr"])
        torchs.step(epoch.val_accuracy)


def test_the_halved_rate_is_the_one_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    original = TrainStep.__call__

    def spy(self: TrainStep, *args: object) -> Tensor:
        rates.extend(group["lr"] for group in self.optimizer.param_groups)
        return original(self, *args)

    monkeypatch.setattr(TrainStep, "__call__", spy)
    validation_says(monkeypatch, itertools.repeat(50.0))
    train_round(fresh(), FIRST, BASE, scheduled(epochs=4, episodes=2, patience=0))
    assert rates == [1e-2, 1e-2, 1e-2, 1e-2, 5e-3, 5e-3, 2.5e-3, 2.5e-3]


@pytest.mark.parametrize("batch", [1, 2])
def test_rows_learn_at_the_pace_of_their_head(batch: int) -> None:
    """Adam's first step moves whatever has a slope by the whole rate."""
    config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig("ecm pace=3"), 1, SIDE)
    start = new_model(config, FIRST.new, 0)
    rows = start.head.rows(start.class_features(FIRST.new))
    model = train_round(start, FIRST, BASE, scheduled(epochs=1, episodes=batch, batch=batch)).model
    assert (model.anchors - rows).abs().max().item() == pytest.approx(3e-2, rel=1e-2)
    moved = model.head.get_parameter("lift") - start.head.get_parameter("lift")
    assert moved.abs().max().item() == pytest.approx(1e-2, rel=1e-2)


def test_the_weights_of_the_best_validation_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = validation_says(monkeypatch, iter([10, 50, 50, 20]))
    model = train_round(fresh(), FIRST, BASE, scheduled(epochs=4)).model
    states = [dict(seen.embedding.state_dict()) for seen in shown]
    assert same(dict(model.embedding.state_dict()), states[1]), "the first of two equal ones"
    assert not any(same(states[1], states[i]) for i in (0, 2, 3))
    assert (model.lineage[-1].best_epoch, model.lineage[-1].val_accuracy) == (2, 50.0)
    torch.testing.assert_close(
        model.anchors, shown[1].with_anchors_of(FIRST.new).anchors, msg="anchors of the best, too"
    )


def test_validation_episodes_are_the_same_in_every_epoch_round_and_model(
    base: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Tensor] = []

    def remember(head: Head, features: Tensor, plan: EpisodeIndices) -> Tensor:
        plans.append(plan.positions)
        return torch.zeros(len(plan), dtype=torch.float64)

    monkeypatch.setattr(round, "episode_accuracies", remember)
    train_round(fresh(), FIRST, BASE, scheduled(episodes=1))
    train_round(base, SECOND, parse_method("IDA"), scheduled(episodes=1))
    assert len(plans) == 6
    assert all(torch.equal(plan, plans[0]) for plan in plans)
    train_round(base, SECOND, BASE, replace(scheduled(episodes=1), seed=6))
    assert not torch.equal(plans[-1], plans[0]), "the seed decides"


# ── when it goes wrong ───────────────────────────────────────────────────────────────────────


def test_divergence_is_an_error_that_names_round_method_and_remedy(base: Model) -> None:
    before = weights(base)
    with pytest.raises(KedgeError, match=r"Round 1 \(IDA\) diverged in epoch 1.*--lr"):
        train_round(base, SECOND, parse_method("IDA"), scheduled(lr=1e30))
    assert same(weights(base), before)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_without_weights_is_refused_unless_its_head_has_some(batch: int) -> None:
    first = delivery(0, OLD)
    models = {
        head: new_model(
            ModelConfig(BackboneConfig(), HeadConfig(head), 1, SIDE), first.new, 0, nn.Flatten()
        )
        for head in ("prototype", "ridge")
    }
    with pytest.raises(KedgeError, match=r"nothing to train: .* use another backbone"):
        train_round(models["prototype"], first, BASE, scheduled(batch=batch))
    learned = train_round(models["ridge"], first, BASE, scheduled(batch=batch)).model
    assert not same(learned.head.state_dict(), models["ridge"].head.state_dict())


def test_divergence_keeps_the_last_good_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "state"
    original = TrainStep.__call__
    calls = itertools.count()

    def fail_later(self: TrainStep, *args: object) -> Tensor:
        losses = original(self, *args)
        return losses * math.nan if next(calls) == CONFIG.schedule.episodes else losses

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", fail_later)
        with pytest.raises(KedgeError, match="diverged in epoch 2"):
            train_round(fresh(), FIRST, BASE, CONFIG, checkpoint)
    ticks: list[int] = []
    train_round(fresh(), FIRST, BASE, CONFIG, checkpoint, ticks.append)
    assert ticks[0] == CONFIG.schedule.episodes, "the first epoch was not lost"


class Masked(Linear):
    """What is infinite in a backbone from the start is meant so."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0, -math.inf]))


def test_only_what_becomes_infinite_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(BackboneConfig("custom"), HeadConfig(), 1, SIDE)
    start = new_model(config, FIRST.new, 0, Masked())
    assert len(train_round(start, FIRST, BASE, CONFIG).history) == 3
    original = TrainStep.__call__

    def spoil(self: TrainStep, *args: object) -> Tensor:
        losses = original(self, *args)
        self.student.embedding.get_buffer("backbone.mask")[0] = -math.inf
        return losses

    monkeypatch.setattr(TrainStep, "__call__", spoil)
    with pytest.raises(KedgeError, match="diverged in epoch 1: some weights are infinite"):
        train_round(start, FIRST, BASE, CONFIG)


@pytest.mark.parametrize("starved", [FIRST, SECOND])
def test_too_few_images_are_refused_before_any_training(starved: RoundData) -> None:
    config = replace(CONFIG, episode=EpisodeShape(3, 2, PER_CLASS))
    with pytest.raises(KedgeError, match=r"Class '.*' has 8 images"):
        train_round(fresh(), starved, BASE, config, tick=lambda n: pytest.fail("it trained"))
    config = replace(CONFIG, episode=EpisodeShape(5, 1, 1))
    with pytest.raises(KedgeError, match="4 classes"):
        train_round(fresh(), starved, BASE, config, tick=lambda n: pytest.fail("it trained"))


# ── the same again ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])  # the latter has DropBlock
def test_two_identical_rounds_are_identical_to_the_last_bit(backbone: str) -> None:
    config = scheduled(epochs=2)
    results = []
    for noise in range(2):
        torch.manual_seed(noise)
        results.append(train_round(fresh(backbone), FIRST, BASE, config))
    assert same(weights(results[0].model), weights(results[1].model))
    assert results[0].history == results[1].history
    other = train_round(fresh(backbone), FIRST, BASE, replace(config, seed=6))
    assert not same(weights(other.model), weights(results[0].model))


def test_rounds_and_epochs_see_different_episodes() -> None:
    """With no update worth the name, only the episodes and augmentations differ."""
    still = scheduled(lr=1e-12)
    first = train_round(fresh(), FIRST, BASE, still).history
    later = train_round(fresh(), replace(FIRST, round=1), BASE, still).history
    losses = [epoch.loss for epoch in (*first, *later)]
    assert len(set(losses)) == len(losses)


def test_rounds_epochs_and_rehearsals_crop_images_differently() -> None:
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    device = torch.device("cpu")
    drawn = [
        EpisodeSampler(name, FIRST.new, CONFIG.episode, 3, device).plan(key)
        for name in ("", "old ")
        for key in keys
    ]
    for what in ("top", "left", "mirrored", "colour"):
        seen = {str(getattr(plan.how, what).tolist()) for plan in drawn}
        assert len(seen) == len(drawn), what
    assert len({str(plan.plan.positions.tolist()) for plan in drawn}) == len(drawn)


class Stopped(Exception):
    pass


def stop_after(n: int) -> Callable[[int], None]:
    done = 0

    def tick(episodes: int) -> None:
        nonlocal done
        done += episodes
        if done >= n:
            raise Stopped

    return tick


def rising(_: Validation, model: Model) -> float:
    """A validation to which every epoch is better than the last: the steps taken so far."""
    counters = [v for k, v in model.embedding.state_dict().items() if k.endswith("tracked")]
    return float(counters[0])


@pytest.mark.parametrize(
    ("name", "stops"),
    [("base", (1,)), ("base", (3,)), ("base", (4,)), ("base", (5, 4, 8)), ("IDA", (9,))],
)
def test_a_stopped_round_continues_to_the_same_last_bit(
    stops: tuple[int, ...], name: str, base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within an epoch or at its end, once or more, after so many of 3 × 3 episodes."""
    monkeypatch.setattr(Validation, "__call__", rising)
    start, given = (fresh(), FIRST) if name == "base" else (base, SECOND)
    method = BASE if name == "base" else parse_method(name)
    uninterrupted = train_round(start, given, method, CONFIG)
    checkpoint = tmp_path / "state"
    for stop in stops:
        with pytest.raises(Stopped):
            train_round(start, given, method, CONFIG, checkpoint, stop_after(stop))
        assert checkpoint.exists() == (stop > 3), "an epoch is kept when it has been validated"
    ticks: list[int] = []
    resumed = train_round(start, given, method, CONFIG, checkpoint, ticks.append)
    assert sum(ticks) == 9
    assert resumed.history == uninterrupted.history
    assert same(weights(resumed.model), weights(uninterrupted.model))
    assert resumed.model.lineage == uninterrupted.model.lineage


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
def test_a_stopped_round_remembers_how_long_it_has_been_on_a_plateau(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validation, "__call__", lambda *_: 50.0)
    config = scheduled(epochs=6, episodes=1, patience=1)
    uninterrupted = train_round(fresh(), FIRST, BASE, config)
    assert [epoch.lr for epoch in uninterrupted.history] == [1e-2] * 3 + [5e-3] * 2 + [2.5e-3]
    with pytest.raises(Stopped):
        train_round(fresh(), FIRST, BASE, config, tmp_path / "state", stop_after(stop))
    resumed = train_round(fresh(), FIRST, BASE, config, tmp_path / "state")
    assert resumed.history == uninterrupted.history, "on from the last weights, not the best"
    assert same(weights(resumed.model), weights(uninterrupted.model)), "of the first epoch"
    assert resumed.model.lineage == uninterrupted.model.lineage


def test_a_round_that_was_finished_but_not_saved_is_not_trained_again(
    base: Model, tmp_path: Path
) -> None:
    method, checkpoint = parse_method("IDA"), tmp_path / "state"
    done = train_round(base, SECOND, method, CONFIG, checkpoint)
    ticks: list[int] = []
    again = train_round(base, SECOND, method, CONFIG, checkpoint, ticks.append)
    assert ticks == [9], "told at once"
    assert again.history == done.history
    assert same(weights(again.model), weights(done.model))


def test_the_end_is_saved_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint, "worth_saving", False)
    saved: list[int] = []
    original = Checkpoint.save

    def save(self: Checkpoint, path: Path, identity: str) -> None:
        saved.append(len(self.history))
        original(self, path, identity)

    monkeypatch.setattr(Checkpoint, "save", save)
    train_round(fresh(), FIRST, BASE, CONFIG, tmp_path / "state")
    assert saved == [3]


def test_a_stopped_round_can_be_made_longer(tmp_path: Path) -> None:
    checkpoint = tmp_path / "state"
    train_round(fresh(), FIRST, BASE, CONFIG, checkpoint)
    longer = train_round(fresh(), FIRST, BASE, scheduled(epochs=5), checkpoint)
    assert longer.history == train_round(fresh(), FIRST, BASE, scheduled(epochs=5)).history
    with pytest.raises(KedgeError, match=r"has done 5 epochs, and --epochs is 4: give 5 or more"):
        train_round(fresh(), FIRST, BASE, scheduled(epochs=4), checkpoint)


def retold(**changes: object) -> RoundData:
    return replace(SECOND, **changes)


OTHERS: dict[str, dict] = {
    "seed": {"config": replace(CONFIG, seed=6)},
    "learning rate": {"config": scheduled(lr=2e-2)},
    "patience": {"config": scheduled(patience=1)},
    "episodes": {"config": scheduled(episodes=4)},
    "batch": {"config": scheduled(batch=3)},
    "shape of the episodes": {"config": replace(CONFIG, episode=EpisodeShape(3, 1, 3))},
    "method": {"method": parse_method("FT")},
    "weight of the penalty": {"method": parse_method("IDA lambda=2")},
    "tasks": {"config": scheduled(tasks="hard")},
    "round": {"given": retold(round=2)},
    "start": {"start": fresh(seed=9).with_anchors_of(FIRST.new)},
    "classes": {"given": retold(new=whole("training", TABLE, NEW[:3]))},
    "images": {"given": delivery(1, NEW, images(seed=1))},
    "validation classes": {"given": retold(val=whole("validation", TABLE, OLD))},
    "validation images": {"given": retold(val=whole("validation", images(VAL, seed=1), VAL))},
    "choice of images": {
        "given": retold(
            new=replace(SECOND.new, class_rows=tuple(r[2:] for r in SECOND.new.class_rows))
        )
    },
}


@pytest.fixture(scope="module")
def stopped(base: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of an IDA round after its first epoch."""
    checkpoint = tmp_path_factory.mktemp("stopped") / "state"
    with pytest.raises(Stopped):
        train_round(base, SECOND, parse_method("IDA"), CONFIG, checkpoint, stop_after(4))
    return checkpoint


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_run_is_refused(other: str, base: Model, stopped: Path) -> None:
    same_run = {"start": base, "given": SECOND, "method": parse_method("IDA"), "config": CONFIG}
    content = stopped.read_bytes()
    with pytest.raises(KedgeError, match="other options, images or starting weights"):
        train_round(*(same_run | OTHERS[other]).values(), stopped, stop_after(99))
    assert stopped.read_bytes() == content, "it can still be continued by its own run"


# ── no update ────────────────────────────────────────────────────────────────────────────────


def test_no_update_is_the_base_model_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a whole experiment of three rounds, next to a method that does change."""
    rounds = (OLD, NEW[:3], ("new3", "val2", "val3"))
    split = Split(0, rounds, ("val0", "val1"), {"unseen": ("more0", "more1", "more2")}, 4)
    table = images(OLD + NEW + VAL + split.unseen["unseen"])
    tiny = Protocol(
        "tiny", "For this test.", lambda data: table, lambda seed, table: replace(split, seed=seed)
    )
    monkeypatch.setitem(benchmarks.PROTOCOLS, "tiny", tiny)
    experiment = Experiment(
        "tiny",
        ("NU", "FT"),
        episode=EpisodeShape(2, 1, 3),
        schedule=Schedule(1, 4, 2, 3e-2),
        backbone=BackboneConfig("conv4", 4),
        eval_episodes=40,
    )
    record = run_experiment(experiment, tmp_path)

    def scores(method: str) -> list[dict]:
        runs = [record.select(method, round)[0] for round in range(3)]
        fixed = ("round_0", "round_1", "round_2", "unseen")  # "old" grows from round to round
        return [{pool: run.scores[pool] for pool in fixed} for run in runs]

    assert scores("NU")[0] == scores("NU")[1] == scores("NU")[2]
    assert scores("FT")[0] == scores("NU")[0], "both start from the base"
    assert scores("FT")[2] != scores("NU")[2]
    models = {
        name: [weights(Model.load(tmp_path / "seed-0" / name / f"round-{t}" / "model.kedge"))
               for t in (1, 2)]
        for name in ("NU", "FT")
    }  # fmt: skip
    base = weights(Model.load(tmp_path / "seed-0" / "base" / "model.kedge"))
    assert all(same(model, base) for model in models["NU"])
    assert not any(same(model, base) for model in models["FT"])
    tuned = Model.load(tmp_path / "seed-0" / "FT" / "round-2" / "model.kedge")
    assert [entry.classes for entry in tuned.lineage] == list(rounds), "each round on the last"


# ── images larger than the memory ────────────────────────────────────────────────────────────


@pytest.fixture
def in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageTable:
    monkeypatch.setattr(table_module, "SMALL", 0)
    TABLE.save(tmp_path / "all.images")
    table = ImageTable.load(tmp_path / "all.images")
    assert isinstance(table.images, LazyImages)
    return table


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["base", "EIML exemplars=4"])
def test_images_that_stay_in_their_file_train_to_the_same_last_bit(
    name: str, batch: int, base: Model, in_a_file: ImageTable
) -> None:
    """They are read ahead, which must not change their order."""
    config = scheduled(episodes=24, batch=batch)
    method = BASE if name == "base" else parse_method(name)
    trained = []
    for given in (TABLE, in_a_file):
        old, new = delivery(0, OLD, given), delivery(1, NEW, given)
        start, wanted = (fresh(), old) if name == "base" else (base, new)
        kept = remember(method, start, old, {}, config) if name != "base" else {}
        trained.append(train_round(start, wanted, method, config, memory=kept))
    assert trained[0].history == trained[1].history
    assert same(weights(trained[0].model), weights(trained[1].model))


def test_reading_ahead_ends_with_the_training(in_a_file: ImageTable) -> None:
    with pytest.raises(Stopped):
        train_round(fresh(), delivery(0, OLD, in_a_file), BASE, CONFIG, tick=stop_after(2))
    assert not [t for t in threading.enumerate() if t.name.startswith("kedge reads ahead")]


def test_a_state_that_takes_long_to_save_is_saved_seldom() -> None:
    state = Checkpoint(TrainStep(fresh(), fresh(), BASE, 1e-2, None, {}), 1e-2)
    state.seconds, state.saved_at, state.saving = 100.0, 90.0, 0.01  # 10 s would be lost
    assert state.worth_saving
    state.saving = 0.3
    assert not state.worth_saving
    state.seconds = 106.0
    assert state.worth_saving


@pytest.mark.parametrize(
    "spoil",
    [
        lambda about, tensors: tensors.pop(min(k for k in tensors if k.startswith("now."))),
        lambda about, tensors: tensors.update({"best.embedding.mean": torch.zeros(7)}),
        lambda about, tensors: tensors.update({"adam.999.exp_avg": torch.zeros(2)}),
        lambda about, tensors: about.pop("lr"),
        lambda about, tensors: about.update(history=[{"epoch": "one"}]),
        lambda about, tensors: about.update(history=7),
    ],
)
def test_a_state_that_does_not_fit_is_refused_in_a_sentence(
    spoil: Callable[[dict[str, Any], dict[str, Tensor]], object], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "state"
    with pytest.raises(Stopped):
        train_round(fresh(), FIRST, BASE, CONFIG, checkpoint, stop_after(5))
    about, mapped = load_tensors(checkpoint, "state")
    tensors = {key: value.clone() for key, value in mapped.items()}
    spoil(about, tensors)
    save_tensors(checkpoint, tensors, about)
    with pytest.raises(KedgeError, match=r"state of a stopped run is damaged; delete it"):
        train_round(fresh(), FIRST, BASE, CONFIG, checkpoint)
