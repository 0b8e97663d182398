"""Elastic weight consolidation (Kirkpatrick et al.: Overcoming catastrophic forgetting in neural
networks, PNAS 2017):

½ · Σ_i F_i (θ_i − w_i)²   with F the diagonal of the Fisher information on the old tasks.

Over several rounds F is summed up and w are the latest weights, as in online EWC (Schwarz et al.:
Progress & Compress, ICML 2018). F is measured for the weights that trained in the round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kedge.config import EpisodeShape, TrainConfig, Trained
from kedge.data.augment import to_float
from kedge.data.pools import Pool
from kedge.episodes.sampler import EpisodeIndices, sample_episodes
from kedge.errors import require
from kedge.methods.base import Alignment, AlignmentInputs, Memory
from kedge.models.model import Model
from kedge.models.trainable import trainable_copy, trained_names
from kedge.utils.config_io import from_dict
from kedge.utils.distributed import all_reduce, shard
from kedge.utils.progress import task
from kedge.utils.seeding import generator

N_WAY, N_SHOT, N_QUERY = 5, 5, 15  # of the episodes that measure the Fisher information


@final
@dataclass(frozen=True)
class ElasticWeightConsolidation(Alignment):
    """Each weight is held as firmly as the old tasks depend on it."""

    default_weight: ClassVar[float] = 10.0  # chosen on validation classes; see LOG.md

    episodes: int = 200  # on which the Fisher information is measured
    decay: float = 1.0  # factor of the earlier rounds' Fisher information when a new one is added

    def __post_init__(self) -> None:
        number = isinstance(self.episodes, int) and not isinstance(self.episodes, bool)
        valid = number and 1 <= self.episodes <= 100_000
        require(valid, "EWC: episodes must be a number from 1 to 100000.")
        valid = isinstance(self.decay, int | float) and 0 <= self.decay <= 1
        require(valid, "EWC: decay must be a number from 0 to 1.")

    def rehearsal_pool(self, memory: Memory, shape: EpisodeShape) -> None:
        require(
            any(key.startswith("fisher.") for key in memory),
            "EWC needs the Fisher information, which was not saved with this model. Train it again "
            "with --save-memory EWC, or use IDA.",
        )

    def penalty(self, inputs: AlignmentInputs) -> Float[Tensor, ""]:
        for name in inputs.new_weights:
            require(
                f"fisher.{name}" in inputs.memory,
                f"EWC: the Fisher information of {name}, which trains now, was not measured. Give "
                "the --train of the model's last round, or less.",
            )
        terms = [
            (inputs.memory[f"fisher.{name}"] * (new - inputs.old_weights[name]).square()).sum()
            for name, new in inputs.new_weights.items()
        ]
        return torch.stack(terms).sum() / 2

    def check_memory(self, memory: Memory, model: Model) -> None:
        weights, missing = model.weights(), torch.empty(0)
        kept = {key.removeprefix("fisher.") for key in memory}  # also of what trained in the past
        for name in trained_names(model, _last_trained(model)) | kept:
            weight, fisher = weights.get(name, missing), memory.get(f"fisher.{name}", missing)
            valid = (fisher.shape, fisher.dtype) == (weight.shape, weight.dtype)
            require(
                valid and bool(((fisher >= 0) & fisher.isfinite()).all()),
                "EWC: the Fisher information does not fit this model; the memory beside it is "
                "damaged.",
            )

    def remember(self, model: Model, pool: Pool, before: Memory, seed: int) -> Memory:
        """For each weight θ_i that trained: the mean of (∂ log p(y)/∂θ_i)² over sampled labels y,
        plus that of earlier rounds."""
        # The original keeps its modes and has no gradients.
        model = trainable_copy(model, trained_names(model, _last_trained(model)))
        model.embedding.eval()
        model.head.eval()
        weights = _trained_weights(model)
        # In half precision, the later terms of a sum would be rounded away.
        sums = {
            name: w.new_zeros(w.shape, dtype=torch.promote_types(w.dtype, torch.float32))
            for name, w in weights.items()
        }
        n_labels = 0
        plan = sample_episodes(pool, _episode_shape(pool), self.episodes, generator("fisher", seed))
        indices = shard(range(self.episodes))
        with task("measuring the Fisher information: episodes", len(indices)) as tick:
            for i in indices:
                gradients, n = _gradients(model, pool, plan, i, generator("answers", seed, i))
                for total, gradient in zip(sums.values(), gradients, strict=True):
                    total += gradient.to(total.dtype).square()
                n_labels += n
                tick(1)
        n_total = all_reduce(torch.tensor(n_labels, device=model.device))
        memory = {key: self.decay * old.cpu() for key, old in before.items()}
        for name, total in sums.items():
            key, fisher = f"fisher.{name}", (all_reduce(total) / n_total).to(weights[name].dtype)
            memory[key] = fisher.cpu() + memory[key] if key in memory else fisher.cpu()
        return memory


def _last_trained(model: Model) -> Trained:
    """What trained in the last round; "all" if that is unknown or was nothing, since the next round
    may train any weight then."""
    last = model.lineage[-1].config if model.lineage else {}
    train = from_dict(TrainConfig, last).schedule.train
    return "all" if train == "none" else train


def _trained_weights(model: Model) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.weights().items() if weight.requires_grad}


@torch.enable_grad()
def _gradients(
    model: Model, pool: Pool, plan: EpisodeIndices, i: int, rng: np.random.Generator
) -> tuple[tuple[Tensor, ...], int]:
    """The gradient of an episode's log-likelihood for each weight, and the number of labels.

    The labels are sampled from the model's own softmax. So their gradients are independent and have
    mean 0, and the expected square of their sum is the sum of the expected squares: one backward
    pass is enough for all.
    """
    positions, classes = plan.episode(i)
    pixels = to_float(pool.table.take(pool.rows[positions.flatten()]).to(model.device))
    episode = model.embedding(pixels).unflatten(0, positions.shape)
    names = [pool.classes[c] for c in classes.tolist()]
    class_embeddings = model.anchors_of(names) if model.head.learns_class_embeddings else None
    logits, _ = model.head.episode_logits(episode, plan.n_shot[i], class_embeddings)
    # Sampled by inverting the cumulative sum of the softmax.
    ends = logits.detach().double().softmax(-1).cumsum(-1)[:, :-1]
    uniform = torch.from_numpy(rng.random((len(logits), 1))).to(logits.device)
    labels = (ends <= uniform).sum(-1, keepdim=True)
    log_likelihood = logits.log_softmax(-1).gather(1, labels).sum()
    weights = list(_trained_weights(model).values())
    gradients = torch.autograd.grad(
        log_likelihood, weights, allow_unused=True, materialize_grads=True
    )
    return gradients, len(labels)


def _episode_shape(pool: Pool) -> EpisodeShape:
    """The usual episode, reduced to what the pool has: at least half of each class are queries."""
    n_classes, smallest = len(pool.classes), min(pool.counts.tolist(), default=0)
    require(
        n_classes >= 2 and smallest >= 2,
        f"EWC measures the Fisher information on the {pool.name} pool, which needs at least 2 "
        f"classes of 2 images each; it has {n_classes}, the smallest of {smallest}.",
    )
    n_shot = min(N_SHOT, smallest // 2)
    return EpisodeShape(min(N_WAY, n_classes), n_shot, min(N_QUERY, smallest - n_shot))
