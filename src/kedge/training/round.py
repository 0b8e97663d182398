"""One round of meta-training, top to bottom.

Every method has the same round: episodes of the images that the method may use, a step on each,
validation after every epoch, a learning rate that falls on plateaus or along a cosine, the best or
last weights in the end, and one anchor per class. A round in which nothing trains only makes
anchors. A stopped round continues from its checkpoint, since the episodes of an epoch depend on
(seed, round, epoch) alone. Several processes draw the same episodes and share those of each step
(`kedge.utils.distributed`).
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from kedge.config import Schedule, TrainConfig
from kedge.data.pools import Pool, RoundData
from kedge.episodes.sampler import check_n_episodes, check_pool
from kedge.errors import KedgeError, require
from kedge.evaluation.results import EpochResult
from kedge.methods.base import Memory
from kedge.methods.registry import Method
from kedge.models.frozen_layers import FrozenLayers
from kedge.models.model import Model
from kedge.models.model_file import LineageEntry
from kedge.models.trainable import trainable_copy, trained_names
from kedge.training.checkpoint import OTHER_RUN, Checkpoint
from kedge.training.loggers import log_epoch
from kedge.training.loop import EpochRunner
from kedge.training.step import ExecutionMode, TrainStep
from kedge.training.validation import (
    NOT_FINITE,
    Validator,
    divergence_advice,
    divergence_fault,
)
from kedge.utils import distributed, progress
from kedge.utils.atomic_io import tensors_digest
from kedge.utils.config_io import to_dict
from kedge.utils.progress import Tick, no_tick, task

ANCHORS_ONLY = "anchors only"  # in place of a method, where nothing trained
NO_WEIGHT_TRAINS = (
    "--train {}: there is nothing to train, since this selects no weight of the backbone that is "
    "not frozen, and the head has no weights. Use --train last or all, or --train none to make "
    "anchors only."
)


@dataclass(frozen=True)
class RoundResult:
    """What a round gives: the model, its training curve, and how long it took."""

    model: Model
    history: tuple[EpochResult, ...] = ()
    seconds: float = 0.0  # of training and validation, including those before a stop


def train_round(
    start: Model,
    round_data: RoundData,
    method: Method,
    config: TrainConfig,
    checkpoint: Path | None = None,
    tick: Tick = no_tick,
    memory: Memory | None = None,
    n_episodes: int = 0,
) -> RoundResult:
    """Train a copy of `start`, which is also the frozen teacher, on the images of a round.

    A stopped round continues from its checkpoint file. `tick` is called with the number of episodes
    just trained. `memory` is what the method kept of earlier rounds, from `memory_after_round`.
    `n_episodes` are those of all rounds in this process, which share what is compiled; by default
    those of this round.
    """
    began, memory, config = time.perf_counter(), memory or {}, method.apply_schedule(config)
    schedule = config.schedule
    check_tasks_per_step(schedule.tasks_per_step)
    pool = training_pool(method, round_data)
    if not trains(schedule):
        if schedule.epochs:
            tick(schedule.epochs * schedule.episodes)
        return _round_without_training(start, pool, round_data, method, config, checkpoint)
    check_pool(pool, config.episode)
    check_pool(round_data.val, config.episode)
    check_n_episodes("--episodes", schedule.episodes, pool, config.episode)
    check_n_episodes("--val-episodes", schedule.val_episodes, round_data.val, config.episode)
    if method.alignment is not None:
        method.alignment.check(config.episode)
    start = _broadcast_model(start)
    delivered = round_data.train.classes
    method = method.for_classes(len(set(start.classes) - set(delivered)), len(delivered))
    identity = _identity(start, pool, round_data, method, config, memory)
    require(
        distributed.broadcast(identity) == identity,
        "The processes were given different images or settings: start all of them with the same "
        "command on the same files.",
    )
    entry = _lineage_entry(round_data, pool, method, config)
    trained = _check_trained(start, schedule)
    layers, round_data = _compute_frozen_layers(start, round_data, trained, config.seed)
    if layers is not None:  # what follows sees their outputs in place of images
        start, pool = layers.shorten(start), training_pool(method, round_data)
    n_episodes = n_episodes or schedule.epochs * schedule.episodes
    mode = ExecutionMode.best(start.embedding, start.device, n_episodes)
    step = _build_step(start, pool, method, trained, schedule, memory, mode)
    state = Checkpoint(step, schedule, method.fixed_merge)
    if checkpoint is not None and distributed.broadcast(checkpoint.exists()):
        state.load(checkpoint, identity)
        _show_last(state.history)
        if not state.ended():
            progress.note(f"continues after epoch {len(state.history)} of {schedule.epochs}")
        tick(len(state.history) * schedule.episodes)
    runner = EpochRunner(step, pool, start.anchors, config, round_data.round, layers)
    validator = Validator(round_data.val, config, start.device)
    setup_seconds = time.perf_counter() - began

    while not state.ended():
        began, epoch = time.perf_counter(), len(state.history)
        step.set_lr(state.lr)
        metrics = runner.epoch(epoch, tick)
        fault = distributed.broadcast(divergence_fault(metrics, step))
        accuracy = math.nan if fault else distributed.broadcast(validator(step.averaged))
        if math.isnan(accuracy):
            advice = divergence_advice(epoch, config, merges=method.fixed_merge > 0)
            raise KedgeError(
                f"Round {round_data.round} ({method.label}) diverged in epoch {epoch + 1}: "
                f"{fault or NOT_FINITE.format('features')}. {advice}"
            )
        point = EpochResult(
            epoch=epoch + 1, **metrics._asdict(), val_accuracy=accuracy, lr=state.lr
        )
        state.record(point)
        _show_last(state.history)
        state.seconds += time.perf_counter() - began
        # The last epoch is always saved: anchors and tests, which follow, may take long.
        if checkpoint is not None and (state.ended() or distributed.broadcast(state.worth_saving)):
            state.save(checkpoint, identity)
        log_epoch(config.seed, method.label, round_data.round, point)
    if (n_skipped := schedule.epochs - len(state.history)) > 0:
        tick(n_skipped * schedule.episodes)

    began = time.perf_counter()
    state.restore_best()
    accuracy = distributed.broadcast(validator(step.averaged)) if method.merge else state.best
    entry = replace(entry, best_epoch=state.best_epoch, val_accuracy=accuracy)
    step.optimizer.zero_grad()
    model = _with_new_anchors(step.averaged, pool, step.averaged_embeddings, entry)
    model = model if layers is None else layers.restore(model)
    seconds = state.seconds + setup_seconds + time.perf_counter() - began
    return RoundResult(model, tuple(state.history), seconds)


def _show_last(history: Sequence[EpochResult]) -> None:
    """Show loss and validation of the last epoch beside the progress bar."""
    if history:
        progress.status(f"loss {history[-1].loss:.3g}, val {history[-1].val_accuracy:.1f}%")


def _compute_frozen_layers(
    start: Model, data: RoundData, trained: set[str], seed: int
) -> tuple[FrozenLayers | None, RoundData]:
    """The layers that this round does not train, and their outputs in place of images; None and the
    images if there are no such layers, or their outputs would be too large."""
    layers = FrozenLayers.of(start, trained)
    if layers is None:
        return None, data
    with task("computing the frozen layers: images", layers.n_embedded(data)) as tick:
        mapped = layers.map_round(data, seed, tick)
    return (None, data) if mapped is None else (layers, mapped)


def trains(schedule: Schedule) -> bool:
    """Whether a round with this schedule trains anything; otherwise it only makes anchors."""
    return schedule.epochs > 0 and schedule.train != "none"


def _round_without_training(
    start: Model,
    pool: Pool,
    round_data: RoundData,
    method: Method,
    config: TrainConfig,
    checkpoint: Path | None,
) -> RoundResult:
    """The same network with anchors of the new classes; its validation accuracy is that of epoch 0,
    or None if there are no images to validate on."""
    began = time.perf_counter()
    if checkpoint is not None and distributed.broadcast(checkpoint.exists()):
        raise KedgeError(OTHER_RUN.format(checkpoint))  # such a round writes none
    model, accuracy = trainable_copy(_broadcast_model(start), set()), None
    if round_data.val.classes:
        validator = Validator(round_data.val, config, start.device)
        accuracy = distributed.broadcast(validator(model))
        finite = not math.isnan(accuracy)
        require(finite, f"The network cannot be used: {NOT_FINITE.format('features')}.")
    embeddings = _initial_embeddings(model, pool)
    entry = _lineage_entry(round_data, pool, method, config)
    entry = replace(entry, method=ANCHORS_ONLY, val_accuracy=accuracy)
    model = _with_new_anchors(model, pool, embeddings, entry)
    return RoundResult(model, (), time.perf_counter() - began)


def _lineage_entry(
    data: RoundData, pool: Pool, method: Method, config: TrainConfig
) -> LineageEntry:
    """The entry of a round before anything has trained."""
    return LineageEntry(
        round=data.round,
        method=method.label,
        classes=pool.classes,
        images=len(pool),
        source=pool.table.source,
        config=to_dict(config),
        best_epoch=0,
        val_accuracy=None,
    )


def training_pool(method: Method, round_data: RoundData) -> Pool:
    """The images that the method trains on. Raises EntitlementError if it may not use them."""
    if method.trains_on == "everything" and round_data.round > 0:
        return Pool.concat("old and new", [round_data.old, round_data.train])
    return round_data.train


def check_tasks_per_step(tasks_per_step: int) -> None:
    """Raise KedgeError unless all processes get the same number of episodes in each step."""
    n = distributed.world_size()
    require(
        tasks_per_step % n == 0,
        f"--tasks-per-step is {tasks_per_step}: it must be a multiple of the number of processes, "
        f"which is {n}.",
    )


def memory_after_round(
    method: Method, model: Model, round_data: RoundData, before: Memory, config: TrainConfig
) -> Memory:
    """What the method keeps for its next round besides the model, at the end of a round."""
    if method.alignment is None:
        return {}
    return method.alignment.remember(model, training_pool(method, round_data), before, config.seed)


def _check_trained(start: Model, schedule: Schedule) -> set[str]:
    """Names of the weights that train. Raises KedgeError if nothing does."""
    trained = trained_names(start, schedule.train)
    some = bool(trained) or start.head.learns_class_embeddings
    require(some, NO_WEIGHT_TRAINS.format(schedule.train))
    return trained


def _build_step(
    start: Model,
    pool: Pool,
    method: Method,
    trained: set[str],
    schedule: Schedule,
    memory: Memory,
    mode: ExecutionMode,
) -> TrainStep:
    student = trainable_copy(start, trained)
    frozen_head = copy.deepcopy(start.head).eval().requires_grad_(False)
    teacher = replace(start, embedding=start.embedding.eval(), head=frozen_head)
    embeddings = _initial_embeddings(start, pool)
    return TrainStep(
        student, teacher, method, schedule.lr, embeddings, memory, mode, ema=schedule.ema
    )


def _initial_embeddings(start: Model, pool: Pool) -> Float[Tensor, "classes r"] | None:
    """Where the head's class embeddings start; None if it learns none."""
    if not start.head.learns_class_embeddings:
        return None
    embeddings = start.head.initial_class_embeddings(start.class_features(pool))
    return distributed.broadcast(embeddings.cpu()).to(start.device)


def _with_new_anchors(
    model: Model,
    pool: Pool,
    class_embeddings: Float[Tensor, "classes r"] | None,
    entry: LineageEntry,
) -> Model:
    """The model of a round, ready for use, with anchors of the classes of this round."""
    model.embedding.eval().requires_grad_(False)
    model.head.eval().requires_grad_(False)
    learned = None if class_embeddings is None else class_embeddings.detach()
    lineage = (*model.lineage, entry)
    model = replace(model.with_anchors_of(pool, learned), lineage=lineage)
    return replace(model, anchors=distributed.broadcast(model.anchors.cpu()).to(model.device))


def _broadcast_model(start: Model) -> Model:
    """A copy with the weights of the first process: a user's backbone may be random in each."""
    if distributed.world_size() == 1:
        return start
    copied = copy.deepcopy(start)
    for module in (copied.embedding, copied.head):
        state = {key: value.cpu() for key, value in module.state_dict().items()}
        module.load_state_dict(distributed.broadcast(state))
    return replace(copied, anchors=distributed.broadcast(start.anchors.cpu()).to(start.device))


def _identity(
    start: Model, pool: Pool, data: RoundData, method: Method, config: TrainConfig, memory: Memory
) -> str:
    """Everything that decides what a round computes: with the same, one run may continue another.

    On a plateau schedule the number of epochs is left out: no epoch depends on how many follow,
    unless the last one is merged with the old weights.
    """
    settings, rules = to_dict(config), method.rules
    if config.schedule.annealing == "plateau" and not method.merge:
        del settings["schedule"]["epochs"]
    return json.dumps(
        {
            "config": settings,
            "model": to_dict(start.config),
            "method": method.label,
            **({"rules": rules} if rules else {}),
            "round": data.round,
            "start": start.fingerprint,
            "device": start.device.type,  # a GPU computes in another precision
            "images": pool.table.fingerprint,
            "classes": pool.classes,
            "validation": data.val.classes,
            "validation images": data.val.table.fingerprint,
            "rows": tensors_digest({"training": pool.rows, "validation": data.val.rows}),
            "memory": tensors_digest(memory),
        }
    )
