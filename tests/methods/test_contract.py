"""The contract of an alignment, with every head. A new one is tested by being listed."""

import copy
import dataclasses
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import sample_episodes
from kedge.methods.base import Alignment, AlignmentInputs, Memory, Rehearsal
from kedge.methods.registry import ALIGNMENTS
from kedge.models.embedding import ModelConfig
from kedge.models.heads import HEADS
from kedge.models.model import Model, new_model
from kedge.utils.seeding import generator

N, D = 12, 6  # images of the episode, features
SHAPE = EpisodeShape(n_way=3, n_shot=2, n_query=4)
QUICK = {"EWC": {"episodes": 10}}  # options that save time and change nothing that is asked here
HOLD_IMAGES = sorted(set(ALIGNMENTS) - {"EWC"})  # which holds weights, whatever images show


@dataclass(frozen=True, eq=False)
class Past:
    """A round that has ended, and what an alignment has kept of it."""

    alignment: Alignment
    model: Model
    pool: Pool
    memory: Memory


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def some_pool(name: str = "old", n_classes: int = 6, n_images: int = 12, seed: int = 0) -> Pool:
    """Noise on a pattern of each class's own."""
    patterns = normal(n_classes, 1, 1, 4, 4, seed=seed).repeat_interleave(4, 3)
    pixels = patterns.repeat_interleave(4, 4) + normal(
        n_classes, n_images, 1, 16, 16, seed=seed + 1
    )
    images = (128 + 40 * pixels).clamp(0, 255).to(torch.uint8).flatten(0, 1)
    labels = [k for k in range(n_classes) for _ in range(n_images)]
    return Pool.all(
        name, ImageTable.build(images, labels, [f"{name} {k}" for k in range(n_classes)])
    )


def some_model(head: str, pool: Pool) -> Model:
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, D), nn.BatchNorm1d(D), nn.Tanh()
    )
    config = ModelConfig(BackboneConfig(), HeadConfig(head), 1, 16)
    model = new_model(config, pool, 0, backbone).with_anchors_of(pool)
    model.embedding.eval().requires_grad_(False)
    model.head.eval().requires_grad_(False)
    return model


@cache
def past_of(name: str, head: str) -> Past:
    alignment, pool = ALIGNMENTS[name](**QUICK.get(name, {})), some_pool()
    model = some_model(head, pool)
    return Past(alignment, model, pool, alignment.remember(model, pool, {}, 0))


@pytest.fixture(params=sorted(HEADS))
def head(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=sorted(ALIGNMENTS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def past(name: str, head: str) -> Past:
    return past_of(name, head)


def some_inputs(
    past: Past, n_anchors: int = 5, seed: int = 0, move: float = 0.5
) -> AlignmentInputs:
    """A step in which everything trainable has moved, with all that the method asks for."""
    alignment, model = past.alignment, past.model
    old = normal(N, D, seed=seed)
    anchors = model.head.anchors(list(normal(n_anchors, 7, D, seed=seed + 2)))
    shown = alignment.anchors_per_step(5, n_anchors)
    weights = {key: value.detach() for key, value in model.weights().items()}
    task = None
    if (rehearsed := alignment.rehearsal_pool(past.memory, SHAPE)) is not None:
        _, shape = rehearsed
        task = normal(shape.ways[1], shape.shots[1] + shape.n_query, D, seed=seed + 3)
    return at_rest(
        AlignmentInputs(
            new=old,
            old=old,
            head=model.head,
            anchors=anchors[:shown] if shown else None,
            memory=past.memory,
            new_weights=weights,
            old_weights=weights,
            rehearsal=None if task is None else Rehearsal(task, task, SHAPE.shots[1]),
        ),
        move,
        seed,
    )


def at_rest(inputs: AlignmentInputs, move: float = 0.0, seed: int = 0) -> AlignmentInputs:
    """The same step, with everything trainable at the teacher's values plus a random move."""
    old = dict(inputs.old_weights, new=inputs.old)
    if inputs.rehearsal is not None:
        old["rehearsal"] = inputs.rehearsal.old
    return put(
        inputs,
        {
            key: (value + move * normal(*value.shape, seed=seed + 10 + i)).requires_grad_()
            for i, (key, value) in enumerate(old.items())
        },
    )


def trained(inputs: AlignmentInputs) -> dict[str, Tensor]:
    """Everything trainable, by name."""
    task = {} if inputs.rehearsal is None else {"rehearsal": inputs.rehearsal.new}
    return {**inputs.new_weights, "new": inputs.new, **task}


def put(inputs: AlignmentInputs, values: dict[str, Tensor]) -> AlignmentInputs:
    """The same step with other values of everything trainable."""
    task = inputs.rehearsal and replace(inputs.rehearsal, new=values["rehearsal"])
    weights = {key: values[key] for key in inputs.new_weights}
    return replace(inputs, new=values["new"], new_weights=weights, rehearsal=task)


def slopes(penalty: Tensor, inputs: AlignmentInputs) -> dict[str, Tensor]:
    leaves = trained(inputs)
    found = torch.autograd.grad(
        penalty, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


# ── the penalty ──────────────────────────────────────────────────────────────────────────────


def test_penalty_is_zero_and_flat_if_nothing_has_changed(past: Past) -> None:
    inputs = at_rest(some_inputs(past))
    penalty = past.alignment.penalty(inputs)
    assert penalty.item() == pytest.approx(0, abs=1e-6)
    for key, slope in slopes(penalty, inputs).items():
        torch.testing.assert_close(
            slope, torch.zeros_like(slope), rtol=0, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.parametrize("seed", range(2))
def test_penalty_is_a_scalar_above_zero_once_something_has_moved(past: Past, seed: int) -> None:
    penalty = past.alignment.penalty(some_inputs(past, seed=100 * seed))
    assert penalty.shape == ()
    assert penalty.isfinite()
    assert penalty.item() > 1e-3


def test_gradient_reaches_only_what_is_trained(past: Past) -> None:
    inputs = some_inputs(past)
    task = {} if inputs.rehearsal is None else {"old task": inputs.rehearsal.old}
    anchors = {} if inputs.anchors is None else {"anchors": inputs.anchors}
    kept = {"old": inputs.old, **anchors, **task, **inputs.memory, **inputs.old_weights}
    kept |= {f"{key} of the head": value for key, value in past.model.head.state_dict().items()}
    before = {key: value.clone() for key, value in kept.items()}
    past.alignment.penalty(inputs).backward()
    reached = [value.grad for value in trained(inputs).values() if value.grad is not None]
    assert all(grad.isfinite().all() for grad in reached)
    assert any(grad.any() for grad in reached)
    for key, value in before.items():
        assert kept[key].grad is None, f"a gradient reaches {key}"
        assert torch.equal(value, kept[key]), f"{key} was changed"
    assert all(p.grad is None for p in past.model.weights().values())


@pytest.mark.parametrize("name", HOLD_IMAGES)
def test_every_image_is_held(name: str, head: str) -> None:
    past = past_of(name, head)
    inputs = some_inputs(past)
    found = slopes(past.alignment.penalty(inputs), inputs)
    for key in {"new", "rehearsal"} & set(found):
        assert (found[key].abs().sum(-1) > 0).all(), f"some image of {key} is not held"


# ── what is kept ─────────────────────────────────────────────────────────────────────────────


def test_remembering_leaves_the_model_as_it_was(past: Past) -> None:
    """Weights, statistics, modes and flags, whatever they were."""
    model = copy.deepcopy(past.model)
    model.embedding.train()
    model.embedding.backbone[3].eval()
    for i, weight in enumerate(model.weights().values()):
        weight.requires_grad_(i % 2 == 0)
    modules = [*model.embedding.modules(), *model.head.modules()]
    before = model.fingerprint, [m.training for m in modules]
    flags = {key: weight.requires_grad for key, weight in model.weights().items()}
    past.alignment.remember(model, past.pool, {}, 0)
    assert (model.fingerprint, [m.training for m in modules]) == before
    assert {key: weight.requires_grad for key, weight in model.weights().items()} == flags
    assert all(weight.grad is None for weight in model.weights().values())


def test_memory_follows_from_the_seed_and_is_ready_for_a_file(past: Past) -> None:
    past.alignment.check_memory(past.memory, past.model)
    again = past.alignment.remember(past.model, past.pool, {}, 0)
    assert again.keys() == past.memory.keys()
    for key, value in past.memory.items():
        assert torch.equal(value, again[key])
        assert value.device.type == "cpu"
        assert value.is_contiguous()
        assert not value.requires_grad
        assert value.isfinite().all()


def test_memories_of_several_rounds_are_as_good_as_one(past: Past) -> None:
    before = {key: value.clone() for key, value in past.memory.items()}
    pool = some_pool("new", n_classes=3, n_images=9, seed=5)
    both = past.alignment.remember(past.model.with_anchors_of(pool), pool, past.memory, 1)
    for key, value in before.items():
        assert torch.equal(past.memory[key], value), f"{key} was changed"
    penalty = past.alignment.penalty(some_inputs(replace(past, memory=both)))
    assert penalty.isfinite()
    assert penalty.item() > 1e-3


@pytest.mark.parametrize("ways", [2, (2, 4), 20])
@pytest.mark.parametrize("shots", [1, (1, 5)])
def test_old_tasks_can_be_drawn_for_any_ways_and_shots(
    name: str, ways: int | tuple[int, int], shots: int | tuple[int, int]
) -> None:
    past = past_of(name, "prototype")
    rehearsed = past.alignment.rehearsal_pool(past.memory, EpisodeShape(ways, shots, 15))
    if rehearsed is not None:
        plan = sample_episodes(*rehearsed, 20, generator("test", 0))
        assert max(plan.n_shot) <= plan.positions.shape[2] - 1


# ── the class itself ─────────────────────────────────────────────────────────────────────────


def test_an_alignment_is_final_and_its_options_are_frozen(name: str) -> None:
    alignment = ALIGNMENTS[name]()
    assert type(alignment).__bases__ == (Alignment,)
    assert getattr(type(alignment), "__final__", False)
    for option in dataclasses.fields(alignment):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(alignment, option.name, None)
