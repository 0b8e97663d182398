"""Accuracy over episodes, with its interval."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kedge.config import BackboneConfig, Count, EpisodeShape, HeadConfig
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import EpisodeIndices, sample_episodes
from kedge.evaluation import accuracy
from kedge.evaluation.accuracy import EvalSpec, episode_accuracies, evaluate_pools
from kedge.evaluation.results import Score
from kedge.models.embedding import ModelConfig
from kedge.models.heads import HEADS, Head, build_head
from kedge.models.model import Model, new_model
from kedge.utils.seeding import generator

SIDE, SIZES = 16, (20, 12, 35, 12, 18, 27, 14)
SHAPE = EpisodeShape(3, 2, 5)


@pytest.fixture(scope="module")
def table() -> ImageTable:
    """Classes of unequal size, each a pattern of its own under much noise."""
    seeded = torch.Generator().manual_seed(0)
    patterns = torch.rand(len(SIZES), 1, SIDE, SIDE, generator=seeded)
    labels = [i for i, n in enumerate(SIZES) for _ in range(n)]
    noise = torch.rand(len(labels), 1, SIDE, SIDE, generator=seeded)
    pixels = (255 * (0.2 * patterns[labels] + 0.8 * noise)).to(torch.uint8)
    return ImageTable.build(pixels, labels, [f"c{i}" for i in range(len(SIZES))])


def model(table: ImageTable, seed: int = 0) -> Model:
    config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 1, SIDE)
    return new_model(config, Pool.all("all", table), seed)


@pytest.fixture(params=sorted(HEADS))
def head(request: pytest.FixtureRequest) -> Head:
    torch.manual_seed(0)
    return build_head(HeadConfig(request.param), 8).eval()


def specs(*pools: Pool) -> list[EvalSpec]:
    return [EvalSpec(pool.name, pool, SHAPE) for pool in pools]


def features(table: ImageTable) -> Tensor:
    """Of every image: its class, half hidden by noise."""
    seeded = torch.Generator().manual_seed(1)
    centres = torch.randn(len(SIZES), 8, generator=seeded)
    return centres[table.labels] + 1.5 * torch.randn(len(table), 8, generator=seeded)


def slow_accuracies(head: Head, z: Tensor, plan: EpisodeIndices) -> list[float]:
    """One episode, one query at a time."""
    accuracies = []
    for number, n_shot in enumerate(plan.n_shot):
        episode, _ = plan.episode(number)
        representatives = head.fit(z[episode[:, :n_shot]])
        queries = [(way, i) for way, row in enumerate(episode) for i in row[n_shot:]]
        right = [
            head.logits(z[i][None], representatives)[0].argmax().item() == way for way, i in queries
        ]
        accuracies.append(100 * sum(right) / len(right))
    return accuracies


@pytest.mark.parametrize("shape", [(3, 2, 5), (7, 1, 9), ((2, 5), (1, 4), 3)])
def test_batched_accuracies_equal_a_loop_over_single_queries(
    head: Head, table: ImageTable, shape: tuple[Count, Count, int]
) -> None:
    plan = sample_episodes(Pool.all("all", table), EpisodeShape(*shape), 15, generator("test", 0))
    fast = episode_accuracies(head, features(table), plan)
    assert fast.tolist() == pytest.approx(slow_accuracies(head, features(table), plan), abs=1e-9)
    assert fast.dtype == torch.float64
    assert fast.unique().numel() > 1, "all episodes alike would prove nothing"


@pytest.mark.parametrize("chunk", [1, 500])
def test_the_size_of_a_chunk_changes_nothing(
    head: Head, table: ImageTable, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sample_episodes(Pool.all("all", table), SHAPE, 23, generator("test", 0))
    expected = episode_accuracies(head, features(table), plan)
    monkeypatch.setattr(accuracy, "CHUNK_NUMEL", chunk)
    assert torch.equal(episode_accuracies(head, features(table), plan), expected)


# ── of a model, on pools ─────────────────────────────────────────────────────────────────────


def test_a_model_is_scored_on_the_images_of_each_pool(table: ImageTable) -> None:
    """Features come from each image alone; pools are parts of the table in any order."""
    network = model(table)
    rows = tuple(table.rows_of(c)[3:] for c in ("c5", "c0", "c2", "c4"))
    pools = [Pool.all("all", table), Pool("part", table, ("c5", "c0", "c2", "c4"), rows)]
    got = evaluate_pools(network, specs(*pools), 30, seed=4)
    assert list(got) == ["all", "part"]
    for pool in pools:
        z = torch.cat([network.embed(table.images[row][None]) for row in pool.rows])
        plan = sample_episodes(pool, SHAPE, 30, generator("test", pool.name, 4))
        expected = episode_accuracies(network.head, z, plan)
        torch.testing.assert_close(got[pool.name], expected, rtol=0, atol=1e-9)


def test_every_model_is_tested_on_the_same_episodes(
    table: ImageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[EpisodeIndices] = []

    def remember(head: Head, z: Tensor, plan: EpisodeIndices) -> Tensor:
        plans.append(plan)
        return torch.zeros(len(plan), dtype=torch.float64)

    monkeypatch.setattr(accuracy, "episode_accuracies", remember)
    pool = Pool.all("unseen", table)
    for seed in range(2):
        torch.manual_seed(seed)
        evaluate_pools(model(table, seed), specs(pool), 50, seed=3)
    evaluate_pools(model(table), specs(pool), 50, seed=4)
    assert torch.equal(plans[0].positions, plans[1].positions)
    assert not torch.equal(plans[0].positions, plans[2].positions), "the seed changes them"


def test_evaluation_leaves_the_model_as_it_was(table: ImageTable) -> None:
    network = model(table)
    network.embedding.train()
    before = network.fingerprint
    first = evaluate_pools(network, specs(Pool.all("all", table)), 20, 0)["all"]
    assert network.fingerprint == before, "BatchNorm statistics included"
    assert network.embedding.training
    network.embedding.eval()
    assert torch.equal(evaluate_pools(network, specs(Pool.all("all", table)), 20, 0)["all"], first)


# ── intervals ────────────────────────────────────────────────────────────────────────────────


def accuracies(n: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(60, 9, n))


@pytest.mark.parametrize("n", [2, 50, 2000])
def test_a_score_is_mean_and_standard_error_as_numpy_has_them(n: int) -> None:
    values = accuracies(n)
    score = Score.of(values)
    assert score.n == n
    assert score.mean == pytest.approx(np.mean(values.numpy()))
    assert score.ci == pytest.approx(1.96 * np.std(values.numpy(), ddof=1) / n**0.5)
    assert str(score) == f"{score.mean:.2f} ± {score.ci:.2f}"
    assert Score.of(accuracies(1)).ci == math.inf


def test_wilson_interval() -> None:
    none, all_right = (Score.of_correct(torch.full((9,), right)) for right in (False, True))
    assert (none.mean, all_right.mean) == (0, 100)
    assert none.ci == pytest.approx(29.9, abs=0.1)  # 1.96² / (9 + 1.96²), after Wilson (1927)
    assert all_right.ci == pytest.approx(none.ci)
    many = torch.arange(10_000) % 3 == 0
    usual = Score.of(100 * many.double())
    assert Score.of_correct(many).mean == pytest.approx(usual.mean)
    assert Score.of_correct(many).ci == pytest.approx(usual.ci, rel=0.02)
