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

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig
from kedge.data.augment import to_float
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.methods.base import AlignmentInputs, Memory
from kedge.methods.ewc import ElasticWeightConsolidation
from kedge.models.embedding import ModelConfig
from kedge.models.heads import PrototypeHead
from kedge.models.model import Model, new_model
from kedge.utils.seeding import generator

Ready = Any  # of conftest.py, which cannot be imported
K, N, D = 2, 3, 4  # classes, images of each, features


def some_pool(counts: list[int]) -> Pool:
    pixels = generator("pool", 0).integers(0, 256, (sum(counts), 1, 16, 16))
    labels = [k for k, n in enumerate(counts) for _ in range(n)]
    images = torch.from_numpy(pixels).to(torch.uint8)
    return Pool.all(
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
    """The definition, label by label, over every split of the images into 1 shot and 2 queries.

    Weighted by the probability of the label; and for the true labels only, which is not the same.
    """
    model = some_model(head, POOL)
    model.embedding.eval().requires_grad_(True)
    model.head.eval().requires_grad_(True)
    weights = model.weights()
    fisher, empirical = (
        {f"fisher.{name}": torch.zeros_like(weight) for name, weight in weights.items()}
        for _ in range(2)
    )
    n_labels = 0
    for first in itertools.product(range(N), repeat=K):
        order = [[k * N + (f + i) % N for i in range(N)] for k, f in enumerate(first)]
        features = model.embedding(to_float(POOL.table.images[torch.tensor(order).flatten()]))
        embeddings = model.anchors if model.head.learns_class_embeddings else None
        logits, targets = model.head.episode_logits(features.unflatten(0, (K, N)), 1, embeddings)
        log_p = logits.log_softmax(-1)
        for i, y in itertools.product(range(len(logits)), range(K)):
            gradients = torch.autograd.grad(
                log_p[i, y], list(weights.values()),
                retain_graph=True, allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            for name, gradient in zip(weights, gradients, strict=True):
                fisher[f"fisher.{name}"] += log_p[i, y].detach().exp() * gradient.square()
                empirical[f"fisher.{name}"] += (targets[i] == y) * gradient.square()
        n_labels += len(logits)
    return tuple({k: v / n_labels for k, v in sums.items()} for sums in (fisher, empirical))


def error(found: Memory, true: dict[str, Tensor]) -> float:
    """Of all weights together, relative to the length of the truth."""
    assert found.keys() == true.keys()
    off = sum((found[key] - true[key]).square().sum().item() for key in true)
    return (off / sum(value.square().sum().item() for value in true.values())) ** 0.5


@pytest.mark.parametrize("head", ["prototype", "ecm"])
def test_the_estimate_converges_to_the_fisher_information(head: str) -> None:
    """Without bias: the mean of several estimates is within their own standard error."""
    model, ewc = some_model(head, POOL), ElasticWeightConsolidation(episodes=20)
    runs = [ewc.remember(model, POOL, {}, seed) for seed in range(12)]
    mean = {key: torch.stack([run[key] for run in runs]).mean(0) for key in runs[0]}
    fisher, empirical = exact(head)
    if not model.head.learns_class_embeddings:  # learned embeddings fit the targets already
        assert error(empirical, fisher) > 0.5, "this model cannot tell the two apart"
    errors = sorted(error(run, fisher) for run in runs)
    assert error(mean, fisher) < errors[6], "more episodes are no better than few"
    for key, value in fisher.items():
        totals = torch.stack([run[key].sum() for run in runs])
        standard_error = totals.std().item() / len(runs) ** 0.5
        assert abs(totals.mean() - value.sum()).item() < 4 * standard_error, key
        assert standard_error < 0.2 * value.sum().item(), "too rough to say anything"


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

    def gradients(model: Model, *_: object) -> tuple[list[Tensor], int]:
        return [torch.full_like(weight, 0.5) for weight in model.weights().values()], 1

    monkeypatch.setattr("kedge.methods.ewc._gradients", gradients)
    memory = ElasticWeightConsolidation(episodes=1000).remember(model, POOL, {}, 0)
    assert {value.dtype for value in memory.values()} == {torch.bfloat16}
    assert all((value == 0.25).all() for value in memory.values())


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_that_of_earlier_rounds_is_added_with_its_decay(decay: float) -> None:
    model, ewc = some_model("prototype", POOL), ElasticWeightConsolidation(episodes=3, decay=decay)
    first, alone = ewc.remember(model, POOL, {}, 0), ewc.remember(model, POOL, {}, 1)
    both = ewc.remember(model, POOL, first, 1)
    for key in alone:
        torch.testing.assert_close(both[key], decay * first[key] + alone[key])


@pytest.mark.parametrize("counts", [[100, 12, 100], [6] * 9, [2, 50]])
def test_episodes_fit_small_pools(counts: list[int]) -> None:
    pool = some_pool(counts)
    memory = ElasticWeightConsolidation(episodes=2).remember(some_model("ecm", pool), pool, {}, 0)
    assert all(value.isfinite().all() for value in memory.values())


@pytest.mark.parametrize("counts", [[1, 5], [9]])
def test_too_small_a_pool_is_an_error(counts: list[int]) -> None:
    pool = some_pool(counts)
    with pytest.raises(KedgeError, match=r"EWC .* the old pool"):
        ElasticWeightConsolidation().remember(some_model("prototype", pool), pool, {}, 0)


# ── the penalty ──────────────────────────────────────────────────────────────────────────────


def some_inputs() -> AlignmentInputs:
    old = {"embedding.a": torch.tensor([1.0, 2.0]), "head.b": torch.tensor(3.0)}
    new = {"embedding.a": torch.tensor([1.5, 1.0]), "head.b": torch.tensor(5.0)}
    fisher = {"fisher.embedding.a": torch.tensor([4.0, 0.5]), "fisher.head.b": torch.tensor(0.25)}
    features = torch.randn(4, D)
    return AlignmentInputs(
        features + 1, features, PrototypeHead(D, 2.0),
        memory=fisher, new_weights=new, old_weights=old,
    )  # fmt: skip


def test_penalty_and_gradient() -> None:
    inputs, ewc = some_inputs(), ElasticWeightConsolidation()
    new = {key: value.requires_grad_() for key, value in inputs.new_weights.items()}
    penalty = ewc.penalty(inputs)
    assert penalty.item() == pytest.approx((4 * 0.5**2 + 0.5 * 1**2 + 0.25 * 2**2) / 2)
    penalty.backward()
    torch.testing.assert_close(new["embedding.a"].grad, torch.tensor([2.0, -0.5]))
    torch.testing.assert_close(new["head.b"].grad, torch.tensor(0.5))
    assert ewc.penalty(replace(inputs, new_weights=inputs.old_weights)) == 0


def test_missing_fisher_information_is_an_error() -> None:
    with pytest.raises(KedgeError, match="--save-memory EWC"):
        ElasticWeightConsolidation().rehearsal_pool({}, EpisodeShape())


@pytest.mark.parametrize("value", [None, 1, math.nan, -1.0, [0.5, 0.5, 0.5]])
def test_forged_memory_is_an_error_when_it_is_read(value: Any) -> None:
    model, ewc = some_model("prototype", POOL), ElasticWeightConsolidation(episodes=1)
    memory = ewc.remember(model, POOL, {}, 0)
    ewc.check_memory(memory, model)
    key, kept = next(iter(memory.items()))
    number = isinstance(value, float)
    memory[key] = torch.full_like(kept, value) if number else torch.tensor(value or 0)
    if value is None:
        del memory[key]
    with pytest.raises(KedgeError, match="damaged"):
        ewc.check_memory(memory, model)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value"), [("episodes", 0), ("episodes", True), ("decay", 2), ("decay", math.nan)]
)
def test_bad_option_is_named(name: str, value: object) -> None:
    with pytest.raises(KedgeError, match=name):
        ElasticWeightConsolidation(**{name: value})


# ── several processes ────────────────────────────────────────────────────────────────────────

TWO = """
import json, os, torch
from torch import distributed
from kedge.methods.ewc import ElasticWeightConsolidation
from kedge.config import BackboneConfig, HeadConfig
from kedge.utils.distributed import rank, world_size
from kedge.data.table import ImageTable
from kedge.models.model import new_model
from kedge.models.embedding import ModelConfig
from kedge.data.pools import Pool

torch.manual_seed(0)
images = torch.randint(0, 256, (60, 1, 16, 16), dtype=torch.uint8)
pool = Pool.all("old", ImageTable.build(images, [i // 10 for i in range(60)], list("abcdef")))
config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig("ecm"), 1, 16)
model = new_model(config, pool, 0).with_anchors_of(pool)
model.embedding.to(memory_format=torch.channels_last)
ewc = ElasticWeightConsolidation(episodes=7)

child = os.fork()
me = 0 if child else 1
meet = "file://" + os.path.abspath("meet")
distributed.init_process_group("gloo", init_method=meet, rank=me, world_size=2)
assert (rank(), world_size()) == (me, 2)
ours = ewc.remember(model, pool, {}, 0)
distributed.barrier()
distributed.destroy_process_group()
assert (rank(), world_size()) == (0, 1)
alone = ewc.remember(model, pool, {}, 0)
for key, value in alone.items():
    torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-6 * value.max().item())
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(json.dumps({key: value.sum().item() for key, value in ours.items()}))
"""


@pytest.mark.slow
def test_two_processes_measure_what_one_measures(ready: Ready, tmp_path: Path) -> None:
    """Seven episodes: one process has more of them than the other."""
    ended = ready(TWO, tmp_path)
    assert ended.rc == 0, ended.err
    assert sum(json.loads(ended.out).values()) > 0
