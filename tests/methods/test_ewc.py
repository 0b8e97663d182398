"""Elastic weight consolidation: the Fisher information against its definition."""

import itertools
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
)
from kedge.data.augment import plain
from kedge.data.pools import Pool, whole
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.methods import ElasticWeightConsolidation
from kedge.methods.base import AlignmentInputs, Memory
from kedge.methods.ewc import _answers, _within
from kedge.models.heads import HEADS, PrototypeHead
from kedge.models.model import (
    Model,
    ModelConfig,
    new_model,
)
from kedge.utils.seeding import generator

Ready = Any  # of conftest.py, which cannot be imported
K, N, D = 2, 3, 4  # classes, images of each, features


def some_pool(counts: list[int]) -> Pool:
    pixels = generator("pool", 0).integers(0, 256, (sum(counts), 1, 16, 16))
    labels = [k for k, n in enumerate(counts) for _ in range(n)]
    images = torch.from_numpy(pixels).to(torch.uint8)
    return whole(
        "old", ImageTable.build(images, labels, [f"class {k}" for k in range(len(counts))])
    )


def some_model(head: str, pool: Pool) -> Model:
    """Its BatchNorm has statistics of its own, so that eval mode differs from train mode."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(D)
    norm.running_mean, norm.running_var = 0.1 * torch.randn(D), 0.1 + 0.1 * torch.rand(D)
    nn.init.constant_(norm.weight, 8)  # sure of itself, and often wrong
    backbone = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(4, D), norm, nn.Softplus())
    config = ModelConfig(BackboneConfig(), HeadConfig(head), 1, 16)
    return new_model(config, pool, 0, backbone).with_anchors_of(pool)


POOL = some_pool([N] * K)


@cache
def exact(head: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The definition, each answer by itself, over every way to part the three images of each class
    into one example and two queries. Weighted by the answer's probability; and for the right
    answers alone, which is another thing."""
    model = some_model(head, POOL)
    model.embedding.eval().requires_grad_(True)
    model.head.eval().requires_grad_(True)
    weights = model.weights()
    fisher, empirical = (
        {f"fisher.{name}": torch.zeros_like(weight) for name, weight in weights.items()}
        for _ in range(2)
    )
    n_answers = 0
    for first in itertools.product(range(N), repeat=K):
        order = [[k * N + (f + i) % N for i in range(N)] for k, f in enumerate(first)]
        features = model.embedding(plain(POOL.table.images[torch.tensor(order).flatten()]))
        rows = model.anchors if model.head.learns_class_embeddings else None
        logits, right = model.head.episode_logits(features.unflatten(0, (K, N)), 1, rows)
        log_p = logits.log_softmax(-1)
        for i, y in itertools.product(range(len(logits)), range(K)):
            slopes = torch.autograd.grad(
                log_p[i, y], list(weights.values()),
                retain_graph=True, allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            for name, slope in zip(weights, slopes, strict=True):
                fisher[f"fisher.{name}"] += log_p[i, y].detach().exp() * slope.square()
                empirical[f"fisher.{name}"] += (right[i] == y) * slope.square()
        n_answers += len(logits)
    return tuple({k: v / n_answers for k, v in sums.items()} for sums in (fisher, empirical))


def error(found: Memory, true: dict[str, Tensor]) -> float:
    """Of all weights together, relative to the length of the truth."""
    assert found.keys() == true.keys()
    off = sum((found[key] - true[key]).square().sum().item() for key in true)
    return (off / sum(value.square().sum().item() for value in true.values())) ** 0.5


@pytest.mark.parametrize("head", [*HEADS, "ecm training=inner steps=2"])
def test_the_estimate_converges_to_the_fisher_information(head: str) -> None:
    """Without bias: the mean of several estimates is within their own standard error."""
    model, ewc = some_model(head, POOL), ElasticWeightConsolidation(episodes=50)
    runs = [ewc.remember(model, POOL, {}, seed) for seed in range(12)]
    mean = {key: torch.stack([run[key] for run in runs]).mean(0) for key in runs[0]}
    fisher, empirical = exact(head)
    if not model.head.learns_class_embeddings:  # rows know the answers already
        assert error(empirical, fisher) > 0.5, "this model cannot tell the two apart"
    errors = sorted(error(run, fisher) for run in runs)
    assert error(mean, fisher) < errors[6], "more episodes are no better than few"
    for key, value in fisher.items():
        totals = torch.stack([run[key].sum() for run in runs])
        standard_error = totals.std().item() / len(runs) ** 0.5
        assert abs(totals.mean() - value.sum()).item() < 4 * standard_error, key
        assert standard_error < 0.2 * value.sum().item(), "too rough to say anything"


def test_names_are_those_of_the_weights_and_buffers_have_none() -> None:
    model = some_model("ecm", POOL)
    memory = ElasticWeightConsolidation(episodes=1).remember(model, POOL, {}, 0)
    assert set(memory) == {f"fisher.{name}" for name in model.weights()}
    assert {"fisher.embedding.backbone.2.weight", "fisher.head.lift"} <= set(memory)
    assert not [key for key in memory if "running" in key or key.endswith(("mean", "std"))]
    for name, weight in model.weights().items():
        assert memory[f"fisher.{name}"].shape == weight.shape
        assert (memory[f"fisher.{name}"] >= 0).all()


def test_it_is_measured_in_eval_mode_whatever_the_mode_of_the_model() -> None:
    model, ewc = some_model("prototype", POOL), ElasticWeightConsolidation(episodes=5)
    model.embedding.eval()
    still = ewc.remember(model, POOL, {}, 0)
    model.embedding.train()
    with torch.no_grad():  # nor does it need a caller who allows gradients
        busy = ewc.remember(model, POOL, {}, 0)
    assert all(torch.equal(still[key], busy[key]) for key in still)
    assert any(
        (still[key] != value).any() for key, value in ewc.remember(model, POOL, {}, 1).items()
    )


def test_episodes_add_up_in_half_precision_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a sum of bfloat16, what is less than 1/256 of it would add nothing."""
    model = some_model("prototype", POOL)
    model.embedding.to(torch.bfloat16)

    def slopes(model: Model, *_: object) -> tuple[list[Tensor], int]:
        return [torch.full_like(weight, 0.5) for weight in model.weights().values()], 1

    monkeypatch.setattr("kedge.methods.ewc._slopes", slopes)
    memory = ElasticWeightConsolidation(episodes=1000).remember(model, POOL, {}, 0)
    assert {value.dtype for value in memory.values()} == {torch.bfloat16}
    assert all((value == 0.25).all() for value in memory.values())


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
def test_that_of_earlier_rounds_is_added_with_its_decay(decay: float) -> None:
    model, ewc = some_model("prototype", POOL), ElasticWeightConsolidation(episodes=3, decay=decay)
    first, alone = ewc.remember(model, POOL, {}, 0), ewc.remember(model, POOL, {}, 1)
    both = ewc.remember(model, POOL, first, 1)
    for key in alone:
        torch.testing.assert_close(both[key], decay * first[key] + alone[key])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([100] * 64, EpisodeShape(5, 5, 15)),
        ([20] * 5, EpisodeShape(5, 5, 15)),
        ([100, 12, 100], EpisodeShape(3, 5, 7)),
        ([6] * 9, EpisodeShape(5, 3, 3)),
        ([3, 3], EpisodeShape(2, 1, 2)),
        ([2, 50], EpisodeShape(2, 1, 1)),
    ],
)
def test_episodes_are_as_large_as_the_pool_allows(
    counts: list[int], expected: EpisodeShape
) -> None:
    pool = some_pool(counts)
    assert _within(pool) == expected
    memory = ElasticWeightConsolidation(episodes=2).remember(some_model("ecm", pool), pool, {}, 0)
    assert all(value.isfinite().all() for value in memory.values())


@pytest.mark.parametrize("counts", [[1, 5], [9]])
def test_a_pool_that_is_too_small_is_a_sentence(counts: list[int]) -> None:
    pool = some_pool(counts)
    with pytest.raises(KedgeError, match=r"EWC .* the old pool, .* at least 2 classes of 2 images"):
        ElasticWeightConsolidation().remember(some_model("prototype", pool), pool, {}, 0)


def test_answers_come_as_often_as_they_are_likely() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    drawn = _answers(p.log().clamp(min=-1e4).repeat(20_000, 1), generator("test", 0))
    shares = [(drawn[i::3] == y).double().mean().item() for i in range(3) for y in range(3)]
    assert shares == pytest.approx(p.flatten().tolist(), abs=0.01)
    assert shares[3:] == p.flatten().tolist()[3:], "what cannot be is never drawn"


# ── the penalty ──────────────────────────────────────────────────────────────────────────────


def sight() -> AlignmentInputs:
    old = {"embedding.a": torch.tensor([1.0, 2.0]), "head.b": torch.tensor(3.0)}
    new = {"embedding.a": torch.tensor([1.5, 1.0]), "head.b": torch.tensor(5.0)}
    fisher = {
        "fisher.embedding.a": torch.tensor([4.0, 0.5]),
        "fisher.head.b": torch.tensor(0.25),
    }
    features = torch.randn(4, D)
    return AlignmentInputs(
        features + 1, features, PrototypeHead(D, 2.0),
        memory=fisher, new_weights=new, old_weights=old,
    )  # fmt: skip


def test_penalty_is_half_of_the_squared_moves_weighted_by_the_information() -> None:
    expected = (4 * 0.5**2 + 0.5 * 1**2 + 0.25 * 2**2) / 2
    assert ElasticWeightConsolidation().penalty(sight()).item() == pytest.approx(expected)


def test_gradient_is_the_information_times_the_move() -> None:
    seen = sight()
    new = {key: value.requires_grad_() for key, value in seen.new_weights.items()}
    ElasticWeightConsolidation().penalty(seen).backward()
    torch.testing.assert_close(new["embedding.a"].grad, torch.tensor([2.0, -0.5]))
    torch.testing.assert_close(new["head.b"].grad, torch.tensor(0.5))


def test_what_the_images_show_does_not_matter() -> None:
    seen, ewc = sight(), ElasticWeightConsolidation()
    assert ewc.penalty(seen) == ewc.penalty(replace(seen, new=seen.old))
    assert ewc.penalty(replace(seen, new_weights=seen.old_weights)) == 0


def test_without_fisher_information_there_is_a_sentence() -> None:
    with pytest.raises(KedgeError, match="EWC needs the Fisher information"):
        ElasticWeightConsolidation().rehearse({}, EpisodeShape())


@pytest.mark.parametrize("value", [None, 1, math.nan, math.inf, -1.0, [0.5, 0.5, 0.5]])
def test_a_forged_memory_is_a_sentence_when_it_is_read(value: Any) -> None:
    """A weight without a number, or one that is no such number, or of another shape or type."""
    model, ewc = some_model("prototype", POOL), ElasticWeightConsolidation(episodes=1)
    memory = ewc.remember(model, POOL, {}, 0)
    ewc.check_memory(memory, model)
    key, kept = next(iter(memory.items()))
    number = isinstance(value, float)
    memory[key] = torch.full_like(kept, value) if number else torch.tensor(value or 0)
    if value is None:
        del memory[key]
    with pytest.raises(KedgeError, match=r"^EWC: the Fisher information was not .* is damaged\.$"):
        ewc.check_memory(memory, model)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"episodes": 0}, "EWC: episodes must be a number of at least 1"),
        ({"episodes": 2.5}, "EWC: episodes must be"),
        ({"episodes": True}, "EWC: episodes must be"),
        ({"episodes": "many"}, "EWC: episodes must be"),
        ({"decay": -0.1}, "EWC: decay must be a number from 0 to 1"),
        ({"decay": 2}, "EWC: decay must be"),
        ({"decay": float("nan")}, "EWC: decay must be"),
        ({"decay": "slow"}, "EWC: decay must be"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict, reason: str) -> None:
    with pytest.raises(KedgeError, match=reason):
        ElasticWeightConsolidation(**options)


# ── several processes ────────────────────────────────────────────────────────────────────────

TWO = """
import json, os, torch
from torch import distributed
from kedge.methods import ElasticWeightConsolidation
from kedge.config import BackboneConfig, HeadConfig
from kedge.utils.distributed import n_processes, rank
from kedge.data.table import ImageTable
from kedge.models.model import ModelConfig, new_model
from kedge.data.pools import whole

torch.manual_seed(0)
images = torch.randint(0, 256, (60, 1, 16, 16), dtype=torch.uint8)
pool = whole("old", ImageTable.build(images, [i // 10 for i in range(60)], list("abcdef")))
config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig("ecm"), 1, 16)
model = new_model(config, pool, 0).with_anchors_of(pool)
model.embedding.to(memory_format=torch.channels_last)
ewc = ElasticWeightConsolidation(episodes=7)

child = os.fork()
me = 0 if child else 1
meet = "file://" + os.path.abspath("meet")
distributed.init_process_group("gloo", init_method=meet, rank=me, world_size=2)
assert (rank(), n_processes()) == (me, 2)
ours = ewc.remember(model, pool, {}, 0)
distributed.barrier()
distributed.destroy_process_group()
assert (rank(), n_processes()) == (0, 1)
alone = ewc.remember(model, pool, {}, 0)
for key, value in alone.items():
    torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-6 * value.max().item())
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(json.dumps({key: value.sum().item() for key, value in ours.items()}))
"""


def test_two_processes_find_what_one_finds(ready: Ready, tmp_path: Path) -> None:
    """Seven episodes: one process has more of them than the other."""
    ended = ready(TWO, tmp_path)
    assert ended.rc == 0, ended.err
    assert sum(json.loads(ended.out).values()) > 0
