"""Elastic weight consolidation: each weight is held as firmly as the old tasks depend on it.

Kirkpatrick et al.: Overcoming catastrophic forgetting in neural networks, PNAS 2017. Over several
rounds the Fisher information is summed up and the pull is towards the latest weights, as in online
EWC (Schwarz et al.: Progress & Compress, ICML 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kedge.config import EpisodeShape, require
from kedge.data.augment import plain
from kedge.data.pools import Pool
from kedge.episodes.sampler import EpisodeIndices, sample_episodes
from kedge.methods.base import (
    Alignment,
    AlignmentInputs,
    Memory,
)
from kedge.models.model import Model, trainable_copy
from kedge.utils.distributed import all_reduce, shard
from kedge.utils.progress import task
from kedge.utils.seeding import generator

DAMAGED = (
    "EWC: the Fisher information was not measured on this model; the memory beside it is damaged."
)
SHAPE = EpisodeShape(n_way=5, n_shot=5, n_query=15)  # what the Fisher information is measured on


@final
@dataclass(frozen=True)
class ElasticWeightConsolidation(Alignment):
    """½ · Σ_i F_i (θ_i − w_i)², with F the diagonal of the Fisher information"""

    default_weight: ClassVar[float] = 10.0  # chosen on validation classes; see LOG.md

    episodes: int = 200  # to measure the Fisher information on
    decay: float = 1.0  # what that of earlier rounds is multiplied by when a new one is added

    def __post_init__(self) -> None:
        many = isinstance(self.episodes, int) and not isinstance(self.episodes, bool)
        require(many and self.episodes >= 1, "EWC: episodes must be a number of at least 1.")
        fits = isinstance(self.decay, int | float) and 0 <= self.decay <= 1
        require(fits, "EWC: decay must be a number from 0 to 1.")

    def rehearse(self, memory: Memory, shape: EpisodeShape) -> None:
        """No old task; but here is the first moment to see what is lacking."""
        require(
            any(key.startswith("fisher.") for key in memory),
            "EWC needs the Fisher information, and none was measured when this model was made "
            "(--keep EWC); IDA needs none.",
        )

    def penalty(self, sight: AlignmentInputs) -> Float[Tensor, ""]:
        require(_fits(sight.memory, sight.new_weights), DAMAGED)
        pulls = [
            (sight.memory[f"fisher.{name}"] * (new - sight.old_weights[name]).square()).sum()
            for name, new in sight.new_weights.items()
        ]
        return torch.stack(pulls).sum() / 2

    def check_memory(self, memory: Memory, model: Model) -> None:
        weights = model.weights()
        require(_fits(memory, weights), DAMAGED)
        kept = [memory[f"fisher.{name}"] for name in weights]
        require(all(bool(((f >= 0) & f.isfinite()).all()) for f in kept), DAMAGED)

    def remember(self, model: Model, pool: Pool, before: Memory, seed: int) -> Memory:
        fresh = {f"fisher.{k}": v.cpu() for k, v in self._fisher(model, pool, seed).items()}
        return {
            key: value + self.decay * before[key].cpu() if key in before else value
            for key, value in fresh.items()
        }

    def _fisher(self, model: Model, pool: Pool, seed: int) -> dict[str, Tensor]:
        """By name of the weight: the mean over the answers of E[(∂ log p(y)/∂θ_i)²]."""
        # A copy, so that the model keeps its modes, its flags and its lack of gradients.
        model = trainable_copy(model)
        model.embedding.eval()
        model.head.eval()
        weights = model.weights()
        # To a sum in half precision, later episodes would add less and less.
        sums = {
            name: torch.zeros(
                w.shape, dtype=torch.promote_types(w.dtype, torch.float32), device=w.device
            )
            for name, w in weights.items()
        }
        n_answers = 0
        plan = sample_episodes(pool, _within(pool), self.episodes, generator("fisher", seed))
        mine = shard(range(self.episodes))
        with task("measuring the Fisher information: episodes", len(mine)) as tick:
            for i in mine:
                slopes, n = _slopes(model, pool, plan, i, generator("answers", seed, i))
                for total, slope in zip(sums.values(), slopes, strict=True):
                    total += slope.to(total.dtype).square()
                n_answers += n
                tick(1)
        of_all = all_reduce(torch.tensor(n_answers, device=model.device))
        return {
            name: (all_reduce(total) / of_all).to(weights[name].dtype)
            for name, total in sums.items()
        }


def _fits(memory: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> bool:
    """Whether it has a number for each number of each weight."""
    kept = {name: memory.get(f"fisher.{name}") for name in weights}
    return all(
        f is not None and (f.shape, f.dtype) == (weights[name].shape, weights[name].dtype)
        for name, f in kept.items()
    )


@torch.enable_grad()
def _slopes(
    model: Model, pool: Pool, plan: EpisodeIndices, i: int, rng: np.random.Generator
) -> tuple[tuple[Tensor, ...], int]:
    """The gradient of an episode's log-likelihood for each weight, and the number of answers.

    The answers are drawn from the model's own softmax. Then each has a gradient of mean 0 and none
    knows of another, so the square of the sum is on average the sum of the squares: one backward
    pass serves all.
    """
    positions, classes = plan.episode(i)
    pixels = plain(pool.table.take(pool.rows[positions.flatten()]).to(model.device))
    episode = model.embedding(pixels).unflatten(0, positions.shape)
    names = [pool.classes[c] for c in classes.tolist()]
    rows = model.anchors_of(names) if model.head.learns_class_embeddings else None
    logits, _ = model.head.episode_logits(episode, plan.n_shot[i], rows)
    answers = _answers(logits.detach(), rng)
    likelihood = logits.log_softmax(-1).gather(1, answers[:, None]).sum()
    weights = list(model.weights().values())
    slopes = torch.autograd.grad(likelihood, weights, allow_unused=True, materialize_grads=True)
    return slopes, len(answers)


def _answers(logits: Float[Tensor, "n k"], rng: np.random.Generator) -> Int64[Tensor, " n"]:
    """One class for each row, drawn from its softmax: where a uniform number falls among the
    cumulated probabilities."""
    ends = logits.double().softmax(-1).cumsum(-1)[:, :-1]
    drawn = torch.from_numpy(rng.random((len(logits), 1))).to(logits.device)
    return (ends <= drawn).sum(-1)


def _within(pool: Pool) -> EpisodeShape:
    """As much of the usual episode as the pool has: at least half of each class are queries."""
    least = int(pool.counts.min()) if len(pool.classes) else 0
    require(
        len(pool.classes) >= 2 and least >= 2,
        f"EWC measures the Fisher information on the {pool.name} pool, which needs at least 2 "
        f"classes of 2 images each; it has {len(pool.classes)}, the smallest of {least}.",
    )
    n_shot = min(SHAPE.shots[1], least // 2)
    return EpisodeShape(
        n_way=min(SHAPE.ways[1], len(pool.classes)),
        n_shot=n_shot,
        n_query=min(SHAPE.n_query, least - n_shot),
    )
