"""EIML: the penalty against its definition, and the stored exemplars."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import sample_episodes
from kedge.errors import KedgeError
from kedge.methods.base import AlignmentInputs, Memory, Rehearsal
from kedge.methods.eiml import ExemplarIncrementalMetaLearning
from kedge.models.embedding import ModelConfig
from kedge.models.heads import PrototypeHead
from kedge.models.model import Model, new_model
from kedge.utils.seeding import generator

T = 2.0
N, D = 4, 6  # new images, features
EIML = ExemplarIncrementalMetaLearning()


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ── the penalty ──────────────────────────────────────────────────────────────────────────────


def some_inputs(k: int = 3, s: int = 2, q: int = 2) -> AlignmentInputs:
    new, old = normal(N, D, seed=0), normal(N, D, seed=1)
    task = Rehearsal(normal(k, s + q, D, seed=2), normal(k, s + q, D, seed=3), s)
    return AlignmentInputs(new, old, PrototypeHead(D, T), rehearsal=task)


def reference(inputs: AlignmentInputs, temperature: float = T) -> float:
    """Both terms: on the queries of the old task, and on the new images."""
    assert inputs.rehearsal is not None
    task, s = inputs.rehearsal, inputs.rehearsal.n_shot
    c_old, c_new = task.old[:, :s].mean(1), task.new[:, :s].mean(1)

    def log_p(z: Tensor, c: Tensor) -> Tensor:
        return (-(z[..., None, :] - c).square().sum(-1) / temperature).log_softmax(-1)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p.exp() * (p - q)).sum(-1).mean()

    on_queries = kl(log_p(task.old[:, s:], c_old), log_p(task.new[:, s:], c_new))
    return (on_queries + kl(log_p(inputs.old, c_old), log_p(inputs.new, c_old))).item()


@pytest.mark.parametrize(("k", "s", "q"), [(3, 2, 2), (5, 1, 3)])
def test_penalty_equals_its_definition(k: int, s: int, q: int) -> None:
    inputs = some_inputs(k, s, q)
    assert EIML.penalty(inputs).item() == pytest.approx(reference(inputs), rel=1e-9)
    cold = ExemplarIncrementalMetaLearning(temperature=0.5)
    assert cold.penalty(inputs).item() == pytest.approx(reference(inputs, 0.5), rel=1e-9)


def test_no_gradient_reaches_the_teacher() -> None:
    inputs = some_inputs()
    assert inputs.rehearsal is not None
    old, task = inputs.old.clone().requires_grad_(), inputs.rehearsal.old.clone().requires_grad_()
    new = inputs.new.clone().requires_grad_()
    aware = replace(inputs, new=new, old=old, rehearsal=replace(inputs.rehearsal, old=task))
    EIML.penalty(aware).backward()
    assert new.grad is not None
    assert old.grad is None
    assert task.grad is None


# ── what is kept ─────────────────────────────────────────────────────────────────────────────


def some_pool(name: str, counts: list[int], seed: int) -> Pool:
    """Of noise; no two images are equal. The table has a class that is not in the pool."""
    sizes = [3, *counts]
    pixels = generator("pool", seed).integers(0, 256, (sum(sizes), 1, 16, 16))
    labels = [k for k, n in enumerate(sizes) for _ in range(n)]
    classes = ["other", *(f"{name} {k}" for k in range(len(counts)))]
    table = ImageTable.build(torch.from_numpy(pixels).to(torch.uint8), labels, classes)
    return Pool.all(name, table, classes[1:])


def some_model(pool: Pool) -> Model:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, D), nn.Tanh())
    config = ModelConfig(BackboneConfig(), HeadConfig(), 1, 16)
    return new_model(config, pool, 0, backbone).with_anchors_of(pool)


OLD, NEW = some_pool("old", [20, 7, 30, 15], 0), some_pool("new", [4, 40], 1)
MODEL = some_model(OLD)


def names_in(memory: Memory) -> list[str | None]:
    return json.loads(memory["names"].numpy().tobytes())


def indices_of(images: Tensor, pool: Pool, k: int) -> list[int]:
    """Which images of a class these are."""
    own = pool.table.images[pool.class_rows[k]].flatten(1)
    return [int((own == image.flatten()).all(1).nonzero().item()) for image in images]


@pytest.mark.parametrize("choice", ["random", "nearest"])
@pytest.mark.parametrize("exemplars", [2, 15])
def test_number_of_exemplars_of_each_class(choice: str, exemplars: int) -> None:
    eiml = ExemplarIncrementalMetaLearning(exemplars=exemplars, choice=choice)
    memory = eiml.remember(MODEL, OLD, {}, 0)
    assert set(memory) == {"images", "counts", "names"}
    assert memory["images"].dtype == torch.uint8
    assert memory["images"].shape[1:] == (1, 16, 16)
    assert memory["counts"].tolist() == [min(n, exemplars) for n in (20, 7, 30, 15)]
    assert names_in(memory) == list(OLD.classes)
    for k, images in enumerate(memory["images"].split(memory["counts"].tolist())):
        kept = indices_of(images, OLD, k)
        assert len(set(kept)) == len(kept)


def test_random_exemplars_depend_on_the_seed_and_are_nested() -> None:
    def kept(exemplars: int, seed: int) -> list[set[int]]:
        memory = ExemplarIncrementalMetaLearning(exemplars).remember(MODEL, OLD, {}, seed)
        parts = memory["images"].split(memory["counts"].tolist())
        return [set(indices_of(images, OLD, k)) for k, images in enumerate(parts)]

    assert kept(5, 0) == kept(5, 0)
    assert kept(5, 0) != kept(5, 1)
    assert all(few < many for few, many in zip(kept(5, 0), kept(6, 0), strict=True))


def test_nearest_exemplars() -> None:
    memory = ExemplarIncrementalMetaLearning(4, "nearest").remember(MODEL, OLD, {}, 0)
    for k, images in enumerate(memory["images"].split(memory["counts"].tolist())):
        features = MODEL.embed(OLD.table.images[OLD.class_rows[k]])
        centre = features.mean(0)
        far = [float((z - centre).norm()) for z in features]
        assert sorted(indices_of(images, OLD, k)) == sorted(
            sorted(range(len(far)), key=far.__getitem__)[:4]
        )


def part_of(pool: Pool, *classes: int) -> Pool:
    names, rows = ([each[k] for k in classes] for each in (pool.classes, pool.class_rows))
    return replace(pool, classes=tuple(names), class_rows=tuple(rows))


def test_exemplars_of_a_class_that_is_delivered_again_are_replaced() -> None:
    memory = EIML.remember(MODEL, OLD, {}, 0)
    kept = dict(zip(OLD.classes, memory["images"].split(memory["counts"].tolist()), strict=True))
    for back in ((1, 3), (3, 1), (2,)):
        pool = part_of(some_pool("old", [9, 12, 5, 40], sum(back)), *back)
        memory = EIML.remember(MODEL, pool, memory, 0)
        alone = EIML.remember(MODEL, pool, {}, 0)
        kept = {name: images for name, images in kept.items() if name not in pool.classes}
        parts = alone["images"].split(alone["counts"].tolist())
        kept |= dict(zip(pool.classes, parts, strict=True))
        assert names_in(memory) == list(kept)
        assert memory["counts"].tolist() == [len(images) for images in kept.values()]
        assert torch.equal(memory["images"], torch.cat(list(kept.values())))
    assert len(EIML.rehearsal_pool(memory, EpisodeShape(2, 1, 2))[0].classes) == 4


def test_memory_of_an_early_version_without_names() -> None:
    """Which of its classes are delivered again cannot be known, so all are kept."""
    named = EIML.remember(MODEL, OLD, {}, 0)
    early = {key: value for key, value in named.items() if key != "names"}
    assert torch.equal(
        *(EIML.rehearsal_pool(each, EpisodeShape())[0].table.images for each in (named, early))
    )
    both = EIML.remember(MODEL, part_of(OLD, 0, 1), early, 0)
    assert names_in(both) == [None] * 4 + ["old 0", "old 1"]
    again = EIML.remember(MODEL, part_of(OLD, 0, 1), both, 0)
    assert all(torch.equal(again[key], value) for key, value in both.items())


# ── old tasks ────────────────────────────────────────────────────────────────────────────────


def memory_of(*counts: int) -> Memory:
    images = torch.arange(sum(counts), dtype=torch.uint8)[:, None, None, None]
    return {"images": images.expand(-1, 1, 16, 16), "counts": torch.tensor(counts)}


def written(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


HUGE = 1 << 62
FORGED: dict[str, Memory] = {
    "no counts": {"counts": torch.empty(0, dtype=torch.int64)},
    "counts that wrap around": {"counts": torch.tensor([HUGE, HUGE, HUGE, HUGE, 12])},
    "counts below none": {"counts": torch.tensor([-1, 8, 5])},
    "one number for images": {"images": torch.tensor(3, dtype=torch.uint8)},
    "images that are no bytes": {"images": torch.zeros(12, 1, 16, 16)},
    "too few names": {"names": written('["a", "b"]')},
    "names that are none": {"names": written('["a", "b", 3]')},
    "no JSON": {"names": written('["a", "b", ')},
    "no text": {"names": torch.full((9,), 255, dtype=torch.uint8)},
    "a maze": {"names": written("[" * 100_000)},
    "names without end": {"names": torch.zeros(1, dtype=torch.uint8).expand(1 << 40)},
}


@pytest.mark.parametrize("how", FORGED)
def test_forged_memory_is_an_error(how: str) -> None:
    """When it is read, when it is rehearsed, and when exemplars are added to it."""
    valid = {**memory_of(4, 3, 5), "names": written('["a", "b", null]')}
    EIML.rehearsal_pool(valid, EpisodeShape(2, 1, 2))
    EIML.check_memory(valid, MODEL)
    memory = {**valid, **FORGED[how]}
    for use in (
        lambda: EIML.check_memory(memory, MODEL),
        lambda: EIML.rehearsal_pool(memory, EpisodeShape(2, 1, 2)),
        lambda: EIML.remember(MODEL, OLD, memory, 0),
    ):
        with pytest.raises(KedgeError, match=r"EIML: .* damaged"):
            use()


@pytest.mark.parametrize(
    ("shape", "counts", "expected"),
    [
        (EpisodeShape(5, 5, 15), [15] * 6, EpisodeShape(5, 5, 10)),
        (EpisodeShape(5, 5, 15), [60, 9, 60], EpisodeShape(3, 5, 4)),
        (EpisodeShape(2, 1, 15), [2, 15], EpisodeShape(2, 1, 1)),
        (EpisodeShape((5, 10), (1, 5), 15), [15] * 7, EpisodeShape((5, 7), (1, 5), 10)),
    ],
)
def test_shape_of_old_tasks(shape: EpisodeShape, counts: list[int], expected: EpisodeShape) -> None:
    pool, found = EIML.rehearsal_pool(memory_of(*counts), shape)
    assert found == expected
    sample_episodes(pool, found, 20, generator("test", 0))


def test_too_few_exemplars_are_an_error() -> None:
    with pytest.raises(KedgeError, match="--n-shot"):
        EIML.rehearsal_pool(memory_of(15, 3), EpisodeShape(2, (1, 5), 15))
    other = {**memory_of(4, 3, 5), "images": torch.zeros(12, 3, 16, 16, dtype=torch.uint8)}
    for use in (
        lambda: EIML.remember(MODEL, OLD, other, 0),
        lambda: EIML.check_memory(other, MODEL),
    ):
        with pytest.raises(KedgeError, match="damaged"):
            use()
    with pytest.raises(KedgeError, match="exemplars=21"):
        EIML.check(EpisodeShape(5, (1, 20), 15))
    ExemplarIncrementalMetaLearning(21).check(EpisodeShape(5, (1, 20), 15))


def test_missing_exemplars_are_an_error() -> None:
    with pytest.raises(KedgeError, match="--save-memory EIML"):
        EIML.rehearsal_pool({}, EpisodeShape())
    with pytest.raises(KedgeError, match="2 classes"):
        EIML.rehearsal_pool(memory_of(15), EpisodeShape())
    with pytest.raises(KedgeError, match="old tasks"):
        EIML.penalty(replace(some_inputs(), rehearsal=None))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value"), [("exemplars", 1), ("exemplars", True), ("choice", "best")]
)
def test_bad_option_is_named(name: str, value: object) -> None:
    with pytest.raises(KedgeError, match=name):
        ExemplarIncrementalMetaLearning(**{name: value})
