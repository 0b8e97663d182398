"""Exemplar-based incremental meta-learning: old tasks against loops, and what is kept for them."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
)
from kedge.data.pools import Pool, whole
from kedge.data.table import ImageTable
from kedge.episodes.sampler import sample_episodes
from kedge.errors import KedgeError
from kedge.methods import ExemplarIncrementalMetaLearning
from kedge.methods.base import (
    AlignmentInputs,
    Memory,
    Rehearsal,
)
from kedge.methods.registry import parse_method
from kedge.models.heads import PrototypeHead
from kedge.models.model import (
    Model,
    ModelConfig,
    new_model,
)
from kedge.utils.seeding import generator

T = 2.0
N, D = 4, 6  # new images, features
EIML = ExemplarIncrementalMetaLearning()


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ── the penalty ──────────────────────────────────────────────────────────────────────────────


def sight(k: int = 3, s: int = 2, q: int = 2) -> AlignmentInputs:
    new, old = normal(N, D, seed=0), normal(N, D, seed=1)
    task = Rehearsal(normal(k, s + q, D, seed=2), normal(k, s + q, D, seed=3), s)
    return AlignmentInputs(new, old, PrototypeHead(D, T), rehearsal=task)


def mean(points: list[list[float]]) -> list[float]:
    return [sum(values) / len(points) for values in zip(*points, strict=True)]


def verdict(z: list[float], centres: list[list[float]], temperature: float) -> list[float]:
    scores = [-sum((x - y) ** 2 for x, y in zip(z, c, strict=True)) / temperature for c in centres]
    odds = [math.exp(s - max(scores)) for s in scores]
    return [o / sum(odds) for o in odds]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def slow(seen: AlignmentInputs, temperature: float = T) -> tuple[float, float]:
    """Both terms: on the queries of the old task, and on the new images."""
    assert seen.rehearsal is not None
    s = seen.rehearsal.n_shot
    old_task, new_task = seen.rehearsal.old.tolist(), seen.rehearsal.new.tolist()
    c_old = [mean(images[:s]) for images in old_task]
    c_new = [mean(images[:s]) for images in new_task]
    queries = [
        (old, new)
        for of_old, of_new in zip(old_task, new_task, strict=True)
        for old, new in zip(of_old[s:], of_new[s:], strict=True)
    ]
    on_queries = [
        kl(verdict(old, c_old, temperature), verdict(new, c_new, temperature))
        for old, new in queries
    ]
    on_new = [
        kl(verdict(old, c_old, temperature), verdict(new, c_old, temperature))
        for old, new in zip(seen.old.tolist(), seen.new.tolist(), strict=True)
    ]
    return sum(on_queries) / len(on_queries), sum(on_new) / len(on_new)


@pytest.mark.parametrize(("k", "s", "q"), [(3, 2, 2), (2, 1, 1), (5, 1, 3), (4, 5, 1)])
def test_penalty_is_that_of_the_old_task_and_that_of_the_new_images(k: int, s: int, q: int) -> None:
    seen = sight(k, s, q)
    assert EIML.penalty(seen).item() == pytest.approx(sum(slow(seen)), rel=1e-9)


def test_each_term_is_0_when_only_the_other_side_has_moved() -> None:
    seen = sight()
    assert seen.rehearsal is not None
    on_task, on_new = slow(seen)
    assert min(on_task, on_new) > 0.1
    still_task = replace(seen, rehearsal=replace(seen.rehearsal, new=seen.rehearsal.old))
    still_new = replace(seen, new=seen.old)
    assert EIML.penalty(still_task).item() == pytest.approx(on_new, rel=1e-9)
    assert EIML.penalty(still_new).item() == pytest.approx(on_task, rel=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 5.0])
def test_the_temperature_is_that_of_every_softmax(temperature: float) -> None:
    value = ExemplarIncrementalMetaLearning(temperature=temperature).penalty(sight()).item()
    assert value == pytest.approx(sum(slow(sight(), temperature)), rel=1e-9)


def test_the_divergence_is_that_of_both_terms() -> None:
    def swapped(seen: AlignmentInputs) -> AlignmentInputs:
        assert seen.rehearsal is not None
        task = Rehearsal(seen.rehearsal.old, seen.rehearsal.new, seen.rehearsal.n_shot)
        return replace(seen, new=seen.old, old=seen.new, rehearsal=task)

    reverse = ExemplarIncrementalMetaLearning(divergence="reverse")
    task_only = replace(sight(), new=sight().old)
    there, back = reverse.penalty(task_only), EIML.penalty(swapped(task_only))
    assert there.item() == pytest.approx(back.item(), rel=1e-9)
    assert there.item() != pytest.approx(EIML.penalty(task_only).item(), rel=1e-2)
    js = ExemplarIncrementalMetaLearning(divergence="js").penalty(sight())
    assert 0 < js.item() <= 2 * math.log(2)


def test_the_students_examples_are_held_through_its_representatives() -> None:
    seen = sight()
    assert seen.rehearsal is not None
    new = seen.rehearsal.new.clone().requires_grad_()
    value = EIML.penalty(replace(seen, rehearsal=replace(seen.rehearsal, new=new)))
    (slope,) = torch.autograd.grad(value, new)
    assert (slope.abs().sum(-1) > 0).all()
    for place in [(0, 0, 0), (1, 1, 3), (2, 3, 5)]:  # support, support, query
        step = torch.zeros_like(new)
        step[place] = 1e-5
        ends = [
            sum(slow(replace(seen, rehearsal=replace(seen.rehearsal, new=new.detach() + sign))))
            for sign in (step, -step)
        ]
        assert slope[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_no_gradient_reaches_the_teacher_even_if_it_could() -> None:
    seen = sight()
    assert seen.rehearsal is not None
    old, task = seen.old.clone().requires_grad_(), seen.rehearsal.old.clone().requires_grad_()
    new = seen.new.clone().requires_grad_()
    aware = replace(seen, new=new, old=old, rehearsal=replace(seen.rehearsal, old=task))
    EIML.penalty(aware).backward()
    assert new.grad is not None
    assert old.grad is None
    assert task.grad is None


def test_without_an_old_task_there_is_a_sentence() -> None:
    with pytest.raises(KedgeError, match="EIML needs old tasks"):
        EIML.penalty(replace(sight(), rehearsal=None))


# ── what is kept ─────────────────────────────────────────────────────────────────────────────


def some_pool(name: str, counts: list[int], seed: int) -> Pool:
    """Of noise; no two images are equal. The table has a class that is not in the pool."""
    sizes = [3, *counts]
    pixels = generator("pool", seed).integers(0, 256, (sum(sizes), 1, 16, 16))
    labels = [k for k, n in enumerate(sizes) for _ in range(n)]
    classes = ["other", *(f"{name} {k}" for k in range(len(counts)))]
    table = ImageTable.build(torch.from_numpy(pixels).to(torch.uint8), labels, classes)
    return whole(name, table, classes[1:])


def some_model(pool: Pool) -> Model:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, D), nn.Tanh())
    config = ModelConfig(BackboneConfig(), HeadConfig(), 1, 16)
    return new_model(config, pool, 0, backbone).with_anchors_of(pool)


OLD, NEW = some_pool("old", [20, 7, 30, 15], 0), some_pool("new", [4, 40], 1)
MODEL = some_model(OLD)


def names_in(memory: Memory) -> list[str | None]:
    return json.loads(memory["names"].numpy().tobytes())


def places(images: Tensor, pool: Pool, k: int) -> list[int]:
    """Which images of a class these are."""
    own = pool.table.images[pool.class_rows[k]].flatten(1)
    return [int((own == image.flatten()).all(1).nonzero().item()) for image in images]


@pytest.mark.parametrize("choice", ["random", "nearest"])
@pytest.mark.parametrize("exemplars", [2, 15, 10_000])
def test_so_many_images_of_each_class_are_kept_and_all_where_there_are_fewer(
    choice: str, exemplars: int
) -> None:
    eiml = ExemplarIncrementalMetaLearning(exemplars=exemplars, choice=choice)
    memory = eiml.remember(MODEL, OLD, {}, 0)
    assert set(memory) == {"images", "counts", "names"}
    assert memory["images"].dtype == torch.uint8
    assert memory["images"].shape[1:] == (1, 16, 16)
    assert memory["counts"].tolist() == [min(n, exemplars) for n in (20, 7, 30, 15)]
    assert names_in(memory) == list(OLD.classes)
    for k, images in enumerate(memory["images"].split(memory["counts"].tolist())):
        kept = places(images, OLD, k)
        assert len(set(kept)) == len(kept)


def test_random_exemplars_follow_from_the_seed_and_fewer_are_a_part_of_more() -> None:
    def kept(exemplars: int, seed: int) -> list[set[int]]:
        memory = ExemplarIncrementalMetaLearning(exemplars).remember(MODEL, OLD, {}, seed)
        parts = memory["images"].split(memory["counts"].tolist())
        return [set(places(images, OLD, k)) for k, images in enumerate(parts)]

    assert kept(5, 0) == kept(5, 0)
    assert kept(5, 0) != kept(5, 1)
    assert all(few < many for few, many in zip(kept(5, 0), kept(6, 0), strict=True))


def test_the_nearest_are_nearest_to_the_mean_feature_of_their_class() -> None:
    memory = ExemplarIncrementalMetaLearning(4, "nearest").remember(MODEL, OLD, {}, 0)
    for k, images in enumerate(memory["images"].split(memory["counts"].tolist())):
        features = MODEL.embed(OLD.table.images[OLD.class_rows[k]])
        centre = features.mean(0)
        far = [float((z - centre).norm()) for z in features]
        assert sorted(places(images, OLD, k)) == sorted(
            sorted(range(len(far)), key=far.__getitem__)[:4]
        )


def test_exemplars_of_several_rounds_are_joined_as_they_were() -> None:
    first = EIML.remember(MODEL, OLD, {}, 0)
    both = EIML.remember(MODEL.with_anchors_of(NEW), NEW, first, 0)
    alone = EIML.remember(MODEL.with_anchors_of(NEW), NEW, {}, 0)
    assert both["counts"].tolist() == [15, 7, 15, 15, 4, 15]
    assert torch.equal(both["images"], torch.cat([first["images"], alone["images"]]))
    assert names_in(both) == [*OLD.classes, *NEW.classes]


def part_of(pool: Pool, *classes: int) -> Pool:
    names, rows = ([each[k] for k in classes] for each in (pool.classes, pool.class_rows))
    return replace(pool, classes=tuple(names), class_rows=tuple(rows))


def test_a_class_that_comes_back_takes_the_place_of_what_was_kept_of_it() -> None:
    """However often: the memory grows with the classes alone."""
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
    assert len(EIML.rehearse(memory, EpisodeShape(2, 1, 2))[0].classes) == 4


def test_a_memory_without_names_goes_on_and_keeps_all_that_it_has() -> None:
    """Those of earlier versions: which of its classes have come back cannot be told."""
    named = EIML.remember(MODEL, OLD, {}, 0)
    early = {key: value for key, value in named.items() if key != "names"}
    assert torch.equal(
        *(EIML.rehearse(each, EpisodeShape())[0].table.images for each in (named, early))
    )
    both = EIML.remember(MODEL, part_of(OLD, 0, 1), early, 0)
    assert names_in(both) == [None] * 4 + ["old 0", "old 1"]
    again = EIML.remember(MODEL, part_of(OLD, 0, 1), both, 0)
    assert all(torch.equal(again[key], value) for key, value in both.items())


@pytest.mark.parametrize("name", ["größe", "猫", 'quotes "', "two\nlines"])
def test_names_of_any_kind_are_kept(name: str) -> None:
    pool = replace(OLD, classes=(name, *OLD.classes[1:]))
    memory = EIML.remember(MODEL, pool, {}, 0)
    assert len(EIML.rehearse(memory, EpisodeShape())[0].classes) == 4
    assert names_in(memory)[0] == name


# ── old tasks ────────────────────────────────────────────────────────────────────────────────


def memory_of(*counts: int) -> Memory:
    images = torch.arange(sum(counts), dtype=torch.uint8)[:, None, None, None]
    return {"images": images.expand(-1, 1, 16, 16), "counts": torch.tensor(counts)}


def test_old_tasks_are_drawn_from_the_kept_images_class_by_class() -> None:
    pool, shape = EIML.rehearse(memory_of(4, 3, 5), EpisodeShape(2, 1, 2))
    assert pool.counts.tolist() == [4, 3, 5]
    assert len(set(pool.classes)) == 3
    assert pool.table.images[pool.rows][:, 0, 0, 0].tolist() == list(range(12))
    plan = sample_episodes(pool, shape, 50, generator("test", 0))
    assert set(plan.positions.flatten().tolist()) == set(range(12))


def written(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


HUGE = 1 << 62
FORGED: dict[str, Memory] = {
    "no counts": {"counts": torch.empty(0, dtype=torch.int64)},
    "a class of none": {"counts": torch.tensor([0, 12, 0])},
    "counts that wrap around": {"counts": torch.tensor([HUGE, HUGE, HUGE, HUGE, 12])},
    "counts below none": {"counts": torch.tensor([-1, 8, 5])},
    "fractions": {"counts": torch.tensor([4.0, 3.0, 5.0])},
    "one number for images": {"images": torch.tensor(3, dtype=torch.uint8)},
    "images that are no bytes": {"images": torch.zeros(12, 1, 16, 16)},
    "too few names": {"names": written('["a", "b"]')},
    "too many names": {"names": written('["a", "b", "c", "d"]')},
    "names that are none": {"names": written('["a", "b", 3]')},
    "a table of names": {"names": written('{"a": 1, "b": 2, "c": 3}')},
    "no list": {"names": written("3")},
    "no names": {"names": written("")},
    "no JSON": {"names": written('["a", "b", ')},
    "no text": {"names": torch.full((9,), 255, dtype=torch.uint8)},
    "half a sign": {"names": written(r'["a", "b", "\ud800"]')},
    "a maze": {"names": written("[" * 100_000)},
    "names as numbers": {"names": torch.zeros(3)},
    "names in rows": {"names": written('["a", "b", "c"]')[None]},
    "names without end": {"names": torch.zeros(1, dtype=torch.uint8).expand(1 << 40)},
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_memory_is_a_sentence(how: str) -> None:
    """When it is read, when it is practised on, and when more is to be kept with it."""
    whole = {**memory_of(4, 3, 5), "names": written('["a", "b", null]')}
    EIML.rehearse(whole, EpisodeShape(2, 1, 2))
    EIML.check_memory(whole, MODEL)
    memory = {**whole, **FORGED[how]}
    with pytest.raises(KedgeError, match=r"^EIML: .*the memory beside the model is damaged\.$"):
        EIML.check_memory(memory, MODEL)
    with pytest.raises(KedgeError, match=r"^EIML: .*the memory beside the model is damaged\.$"):
        EIML.rehearse(memory, EpisodeShape(2, 1, 2))
    with pytest.raises(KedgeError, match=r"^EIML: .*the memory beside the model is damaged\.$"):
        EIML.remember(MODEL, OLD, memory, 0)


def test_kept_images_of_another_size_are_a_sentence() -> None:
    other = {**memory_of(4, 3, 5), "images": torch.zeros(12, 3, 16, 16, dtype=torch.uint8)}
    with pytest.raises(KedgeError, match=r"another size; the memory beside the model is damaged"):
        EIML.remember(MODEL, OLD, other, 0)
    with pytest.raises(KedgeError, match=r"another size; the memory beside the model is damaged"):
        EIML.check_memory(other, MODEL)


def test_a_memory_that_lost_its_images_is_a_sentence() -> None:
    with pytest.raises(KedgeError, match="the memory beside the model is damaged"):
        EIML.check_memory({"counts": torch.tensor([4, 3, 5])}, MODEL)


@pytest.mark.parametrize(
    ("shape", "counts", "expected"),
    [
        (EpisodeShape(5, 5, 15), [15] * 6, EpisodeShape(5, 5, 10)),
        (EpisodeShape(5, 1, 15), [15] * 6, EpisodeShape(5, 1, 14)),
        (EpisodeShape(5, 5, 15), [60] * 6, EpisodeShape(5, 5, 15)),
        (EpisodeShape(5, 5, 15), [60, 9, 60], EpisodeShape(3, 5, 4)),
        (EpisodeShape(2, 1, 15), [2, 15], EpisodeShape(2, 1, 1)),
        (EpisodeShape((5, 10), (1, 5), 15), [15] * 20, EpisodeShape((5, 10), (1, 5), 10)),
        (EpisodeShape((5, 10), (1, 5), 15), [15] * 7, EpisodeShape((5, 7), (1, 5), 10)),
        (EpisodeShape((5, 10), (2, 3), 4), [15] * 3, EpisodeShape((3, 3), (2, 3), 4)),
    ],
)
def test_an_old_task_is_as_large_as_a_new_one_if_there_are_enough_images(
    shape: EpisodeShape, counts: list[int], expected: EpisodeShape
) -> None:
    pool, found = EIML.rehearse(memory_of(*counts), shape)
    assert found == expected
    sample_episodes(pool, found, 20, generator("test", 0))


@pytest.mark.parametrize(
    ("exemplars", "counts", "shots", "remedy"),
    [
        (15, [15] * 5, 15, "keep more exemplars or lower --n-shot"),
        (5, [5] * 5, 5, "keep more exemplars or lower --n-shot"),
        (15, [15, 3], (1, 5), "query\\): lower --n-shot"),
    ],
)
def test_too_few_for_even_one_query_is_a_sentence_with_the_option_to_change(
    exemplars: int, counts: list[int], shots: int | tuple[int, int], remedy: str
) -> None:
    """Keeping more does not help where a class had no more."""
    eiml = ExemplarIncrementalMetaLearning(exemplars)
    with pytest.raises(KedgeError, match=f"^EIML: .*{remedy}\\.$"):
        eiml.rehearse(memory_of(*counts), EpisodeShape(2, shots, 15))


def test_too_few_to_be_kept_is_a_sentence_with_what_to_write() -> None:
    """Whatever was kept before: the tasks of the next round need as many of the new classes."""
    with pytest.raises(KedgeError, match=r"write 'EIML exemplars=21' or more, or lower --n-shot"):
        EIML.check(EpisodeShape(5, (1, 20), 15))
    method = parse_method("EIML exemplars=21").alignment
    assert method is not None
    method.check(EpisodeShape(5, (1, 20), 15))


def test_without_kept_images_there_is_a_sentence() -> None:
    with pytest.raises(KedgeError, match="EIML needs images of the classes before"):
        EIML.rehearse({}, EpisodeShape())
    with pytest.raises(KedgeError, match="at least 2 classes"):
        EIML.rehearse(memory_of(15), EpisodeShape())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exemplars": 1}, "EIML: exemplars must be a number from 2 to 10000"),
        ({"exemplars": 10_001}, "EIML: exemplars must be"),
        ({"exemplars": 2.5}, "EIML: exemplars must be"),
        ({"exemplars": "all"}, "EIML: exemplars must be"),
        ({"exemplars": True}, "EIML: exemplars must be"),
        ({"choice": "best"}, "EIML: choice must be 'random' or 'nearest'"),
        ({"divergence": "cosine"}, "EIML: divergence must be one of kl"),
        ({"temperature": 0}, "EIML: temperature must be a number above 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict, reason: str) -> None:
    with pytest.raises(KedgeError, match=reason):
        ExemplarIncrementalMetaLearning(**options)
