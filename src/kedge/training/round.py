"""One round of meta-training, from top to bottom.

A round is the same for every method: episodes from the images that the method may read, a step
on each, validation after every epoch, the learning rate halved on a plateau until it is too small
to matter, the best weights kept, and at the end one anchor for each class. It can be stopped at any
moment: its state is on disk, and the plan of an epoch depends on (seed, round, epoch) alone.
Several processes draw the same plan and share the episodes of each step (`kedge.utils.distributed`).
"""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kedge.config import Schedule, TrainConfig
from kedge.data.pools import (
    Pool,
    RoundData,
    Pool.concat,
)
from kedge.episodes.loader import ImageLoader
from kedge.episodes.sampler import check_pool, sample_episodes
from kedge.errors import KedgeError, require
from kedge.evaluation.accuracy import episode_accuracies
from kedge.evaluation.results import Epoch
from kedge.methods.base import Memory
from kedge.methods.registry import Method
from kedge.models.model import (
    LineageEntry,
    Model,
    state_of,
    trainable_copy,
)
from kedge.training.checkpoint import Checkpoint
from kedge.training.loop import EpochRunner
from kedge.training.step import TrainStep
from kedge.utils import distributed
from kedge.utils.atomic_io import tensors_digest
from kedge.utils.config_io import to_dict
from kedge.utils.progress import Tick, no_tick
from kedge.utils.seeding import generator

BROKEN = "some {} are infinite or no numbers any more"
LOST = 1e6  # nats of cross-entropy; where something is learned there are a few, or some hundred


@dataclass(frozen=True)
class RoundResult:
    model: Model
    history: tuple[Epoch, ...] = ()
    seconds: float = 0.0  # of training and validation, also before it was stopped


def training_pool(method: Method, delivery: RoundData) -> Pool:
    """The images that the method trains on; asking for more than its due raises."""
    if method.trains_on == "everything" and delivery.round > 0:
        return Pool.concat("old and new", [delivery.old, delivery.new])
    return delivery.new


def check_batch(schedule: Schedule) -> None:
    """Every process must have as many episodes of a step as the others."""
    n = distributed.world_size()
    require(
        schedule.tasks_per_step % n == 0,
        f"--tasks-per-step is {schedule.tasks_per_step}: it must be a multiple of the {n} processes, which share the "
        "episodes of each step.",
    )


def train_round(
    start: Model,
    delivery: RoundData,
    method: Method,
    config: TrainConfig,
    checkpoint: Path | None = None,
    tick: Tick = no_tick,
    memory: Memory | None = None,
) -> RoundResult:
    """Train `start` on a delivery. `start` itself is not changed: it is the teacher.

    `memory` is what the method has kept of earlier rounds, as `remember` gave it.
    """
    memory, began = memory or {}, time.perf_counter()
    check_batch(config.schedule)
    pool = training_pool(method, delivery)
    check_pool(pool, config.episode)
    check_pool(delivery.val, config.episode)
    if method.alignment is not None:
        method.alignment.check(config.episode)
    start = _as_the_first(start)
    student = trainable_copy(start)
    frozen = copy.deepcopy(start.head).eval().requires_grad_(False)
    teacher = replace(start, embedding=start.embedding.eval(), head=frozen)
    rows = (
        start.head.rows(start.class_features(pool)) if start.head.learns_class_embeddings else None
    )
    if rows is not None:
        rows = distributed.broadcast(rows.cpu()).to(start.device)
    step = TrainStep(student, teacher, method, config.schedule.lr, rows, memory)
    identity = _identity(start, pool, delivery, method, config, memory)
    require(
        distributed.broadcast(identity) == identity,
        "The processes were given different images or settings: start all with the same command "
        "on the same files.",
    )
    state = Checkpoint(step, config.schedule.lr)
    if checkpoint is not None and distributed.broadcast(checkpoint.exists()):
        state.load(checkpoint, identity, config.schedule.epochs)
        tick(len(state.history) * config.schedule.episodes)
    practice = EpochRunner(step, pool, start.anchors, config, delivery.round)
    validation = Validation(delivery.val, config, start.device)
    around = time.perf_counter() - began  # what a round needs before and after its epochs
    while not state.ended(config.schedule):
        epoch = len(state.history)
        step.set_lr(state.lr)
        began = time.perf_counter()
        losses = practice.epoch(epoch, tick)
        fault = distributed.broadcast(_fault(losses, step))
        accuracy = math.nan if fault else distributed.broadcast(validation(student))
        if math.isnan(accuracy):
            raise KedgeError(
                f"Round {delivery.round} ({method.label}) diverged in epoch {epoch + 1}: "
                f"{fault or BROKEN.format('features')}. {_advice(epoch, config)}"
            )
        state.record(Epoch(epoch + 1, *losses, accuracy, state.lr), config.schedule.patience)
        state.seconds += time.perf_counter() - began
        ended = state.ended(config.schedule)  # what comes then, anchors and tests, may take long
        if checkpoint is not None and (ended or distributed.broadcast(state.worth_saving)):
            state.save(checkpoint, identity)
    if (left := config.schedule.epochs - len(state.history)) > 0:
        tick(left * config.schedule.episodes)
    began = time.perf_counter()
    state.restore_best()
    step.optimizer.zero_grad()
    student.embedding.eval().requires_grad_(False)
    student.head.eval().requires_grad_(False)
    entry = LineageEntry(
        round=delivery.round,
        method=method.label,
        classes=pool.classes,
        images=len(pool),
        source=pool.table.source,
        config=to_dict(config),
        best_epoch=state.best_epoch,
        val_accuracy=state.best,
    )
    learned = None if step.rows is None else step.rows.detach()
    model = replace(student.with_anchors_of(pool, learned), lineage=(*start.lineage, entry))
    model = replace(model, anchors=distributed.broadcast(model.anchors.cpu()).to(model.device))
    seconds = state.seconds + around + time.perf_counter() - began
    return RoundResult(model, tuple(state.history), seconds)


def remember(
    method: Method, model: Model, delivery: RoundData, before: Memory, config: TrainConfig
) -> Memory:
    """What the method keeps for its next round, besides the model, once this one has ended."""
    if method.alignment is None:
        return {}
    return method.alignment.remember(model, training_pool(method, delivery), before, config.seed)


class Validation:
    """Accuracy on the validation classes, always on the same episodes; NaN where there is none."""

    def __init__(self, pool: Pool, config: TrainConfig, device: torch.device) -> None:
        self.pool, self.pixels = pool, ImageLoader(pool, device)
        rng = generator("validation", config.seed)
        self.plan = sample_episodes(pool, config.episode, config.schedule.val_episodes, rng)

    def __call__(self, model: Model) -> float:
        pool, there = self.pool, self.pixels.on_device
        features = model.embed_rows(pool.table, pool.rows) if there is None else model.embed(there)
        if not features.isfinite().all():  # some class would still be the likeliest
            return math.nan
        return float(episode_accuracies(model.head, features, self.plan).mean())


def _fault(losses: tuple[float, float, float], step: TrainStep) -> str:
    """Why nothing can be built on an epoch; empty if all is well."""
    if not math.isfinite(sum(losses)):
        return "the loss is not a number any more"
    if losses[1] > LOST:
        return f"the cross-entropy is {losses[1]:.0e}, far worse than that of guessing"
    # The last step may have spoilt weights when its loss was still good, and where statistics are
    # infinite, all features are alike. What a backbone of one's own had as infinite may stay so.
    pairs = [*zip(state_of(step.teacher).values(), state_of(step.student).values(), strict=True)]
    if step.rows is not None:
        pairs.append((torch.zeros_like(step.rows), step.rows))
    spoilt = [(now.isfinite() < was.isfinite()).any() for was, now in pairs]
    return BROKEN.format("weights") if torch.stack(spoilt).any() else ""


def _advice(epoch: int, config: TrainConfig) -> str:
    usual = min(Schedule().lr, config.schedule.lr / 10)
    lower = f"Start again with a lower --lr, such as {usual:g}, and another --out"
    if epoch == 0:
        return f"{lower}."
    return (
        f"{lower}; or keep what it had learned until then: the same command with --epochs {epoch} "
        "(of 'kedge bench': and another --out) ends before that."
    )


def _as_the_first(start: Model) -> Model:
    """The very weights that the first process starts from: a backbone of one's own may be random.

    The model that is given stays as it is.
    """
    if distributed.world_size() == 1:
        return start
    copied = replace(
        start, embedding=copy.deepcopy(start.embedding), head=copy.deepcopy(start.head)
    )
    for module in (copied.embedding, copied.head):
        own = {key: value.cpu() for key, value in module.state_dict().items()}
        module.load_state_dict(distributed.broadcast(own))
    return replace(copied, anchors=distributed.broadcast(start.anchors.cpu()).to(start.device))


def _identity(
    start: Model,
    pool: Pool,
    delivery: RoundData,
    method: Method,
    config: TrainConfig,
    memory: Memory,
) -> str:
    """Two runs with this in common do the same thing, so one may continue the other.

    For as long as both last: what an epoch does, does not depend on how many follow.
    """
    settings = to_dict(config)
    del settings["schedule"]["epochs"]
    return json.dumps(
        {
            "config": settings,
            "model": to_dict(start.config),
            "method": method.label,
            "round": delivery.round,
            "start": start.fingerprint,
            "device": start.device.type,  # the GPU computes in another precision
            "images": pool.table.fingerprint,
            "classes": pool.classes,
            "validation": delivery.val.classes,
            "validation images": delivery.val.table.fingerprint,
            "rows": tensors_digest({"training": pool.rows, "validation": delivery.val.rows}),
            "memory": tensors_digest(memory),
        }
    )
