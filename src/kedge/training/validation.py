"""Validation of a round after every epoch, and how it is noticed that training has diverged."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from kedge.config import Schedule, TrainConfig
from kedge.data.pools import Pool
from kedge.episodes.loader import ImageLoader
from kedge.episodes.sampler import sample_episodes
from kedge.evaluation.accuracy import episode_accuracies
from kedge.models.model import Model
from kedge.training.step import StepMetrics, TrainStep
from kedge.utils.progress import no_tick
from kedge.utils.seeding import generator

NOT_FINITE = "some {} are infinite or NaN"
MAX_CROSS_ENTROPY = 1e6  # nats; a few hundred at most where something is learned


class Validator:
    """Mean accuracy in % on fixed validation episodes; NaN if a feature is not finite.

    Only images that some episode draws are embedded.
    """

    def __init__(self, pool: Pool, config: TrainConfig, device: torch.device) -> None:
        rng = generator("validation", config.seed)
        indices = sample_episodes(pool, config.episode, config.schedule.val_episodes, rng)
        drawn, positions = indices.positions.unique(return_inverse=True)
        self.indices = replace(indices, positions=positions)
        self.table, self.rows = pool.table, pool.rows[drawn]
        loader = ImageLoader(pool, device)
        self.images = None if loader.on_device is None else loader.on_device[drawn.to(device)]

    def __call__(self, model: Model) -> float:
        if self.images is not None:
            batches = self.images.split(model.embed_batch_size)
            features = model.embedding.embed_batches(len(self.images), batches, no_tick)
        else:
            features = model.embed_rows(self.table, self.rows)
        if not features.isfinite().all():  # argmax would still name some class
            return math.nan
        return float(episode_accuracies(model.head, features, self.indices).mean())


def divergence_fault(metrics: StepMetrics, step: TrainStep) -> str:
    """Why training cannot continue after an epoch; empty if it can."""
    for name, value in metrics._asdict().items():
        if not math.isfinite(value):
            return f"the {name.replace('_', ' ')} is infinite or NaN"
    if metrics.cross_entropy > MAX_CROSS_ENTROPY:
        return f"the cross-entropy is {metrics.cross_entropy:.0e}, far worse than guessing"
    # The last step may have spoilt weights or statistics after its loss was computed. What was
    # infinite in a user's backbone before training may stay so.
    before = step.teacher.state_dict()
    states = [step.state()] if step.average is None else [step.state(), step.averaged_state()]
    spoilt = [
        (now.isfinite() < (before[name].isfinite() if name in before else True)).any()
        for state in states
        for name, now in state.items()
    ]
    return NOT_FINITE.format("weights") if torch.stack(spoilt).any() else ""


def divergence_advice(epoch: int, config: TrainConfig, merges: bool) -> str:
    """What to do after a divergence in this epoch, counted from 0."""
    lower_lr = min(Schedule().lr, config.schedule.lr / 10)
    keep = f"; or keep the epochs before by --epochs {epoch} (for 'kedge bench' with another --out)"
    advice = f"Start again with a lower --lr, such as {lower_lr:g}, and another --out"
    # Otherwise the epochs before depend on how many there are to be.
    can_keep = epoch and config.schedule.annealing == "plateau" and not merges
    return f"{advice}{keep if can_keep else ''}."
