"""One round of meta-training, from top to bottom.

A round is the same for every method: episodes from the images that the method may read, a step
on each, validation after every epoch, the learning rate halved on a plateau until it is too small
to matter, the best weights kept, and at the end one anchor for each class. It can be stopped at any
moment: its state is on disk, and the plan of an epoch depends on (seed, round, epoch) alone.
Several processes draw the same plan and share the episodes of each step (`kedge.engine`).
"""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from kedge import engine
from kedge.alignment import Memory
from kedge.config import Schedule, TrainConfig, require, to_dict
from kedge.durable import digest, load_tensors, save_tensors, under
from kedge.episodes import check_pool, plan_episodes
from kedge.errors import KedgeError
from kedge.evaluation import episode_accuracies
from kedge.methods import Method
from kedge.model import LineageEntry, Model
from kedge.pixels import Pixels
from kedge.pools import Delivery, Pool, union
from kedge.practice import Practice
from kedge.progress import Tick, silent
from kedge.seeding import generator
from kedge.step import TrainStep

QUICK = 0.25  # seconds of saving that do not matter
LEAST_RATE = 1 / 1000  # of the learning rate at the start; ten halvings lie below it


@dataclass(frozen=True)
class Epoch:
    """One line of a training curve. Accuracy in per cent, losses in nats."""

    epoch: int
    loss: float
    cross_entropy: float
    penalty: float
    val_accuracy: float
    lr: float


@dataclass(frozen=True)
class RoundResult:
    model: Model
    history: tuple[Epoch, ...] = ()
    seconds: float = 0.0  # of training and validation, also before it was stopped


def training_pool(method: Method, delivery: Delivery) -> Pool:
    """The images that the method trains on; asking for more than its due raises."""
    if method.trains_on == "everything" and delivery.round > 0:
        return union("old and new", [delivery.old, delivery.new])
    return delivery.new


def check_batch(schedule: Schedule) -> None:
    """Every process must have as many episodes of a step as the others."""
    n = engine.n_processes()
    require(
        schedule.batch % n == 0,
        f"--batch is {schedule.batch}: it must be a multiple of the {n} processes, which share the "
        "episodes of each step.",
    )


def train_round(
    start: Model,
    delivery: Delivery,
    method: Method,
    config: TrainConfig,
    checkpoint: Path | None = None,
    tick: Tick = silent,
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
    student = replace(
        start,
        embedding=copy.deepcopy(start.embedding).requires_grad_(True),
        head=copy.deepcopy(start.head).requires_grad_(True),
    )
    frozen = copy.deepcopy(start.head).eval().requires_grad_(False)
    teacher = replace(start, embedding=start.embedding.eval(), head=frozen)
    rows = start.head.rows(start.class_features(pool)) if start.head.learns_rows else None
    if rows is not None:
        rows = engine.agreed(rows.cpu()).to(start.device)
    step = TrainStep(student, teacher, method, config.schedule.lr, rows, memory)
    identity = _identity(start, pool, delivery, method, config, memory)
    require(
        engine.agreed(identity) == identity,
        "The processes were given different images or settings: start all with the same command "
        "on the same files.",
    )
    state = State(step, config.schedule.lr)
    if checkpoint is not None and checkpoint.exists():
        state.load(checkpoint, identity)
        tick(len(state.history) * config.schedule.episodes)
    practice = Practice(step, pool, start.anchors, config, delivery.round)
    validation = Validation(delivery.val, config, start.device)
    around = time.perf_counter() - began  # what a round needs before and after its epochs
    while not state.ended(config.schedule):
        epoch = len(state.history)
        step.set_lr(state.lr)
        began = time.perf_counter()
        losses = practice.epoch(epoch, tick)
        if not math.isfinite(sum(losses)):
            raise KedgeError(
                f"Round {delivery.round} ({method.label}) diverged in epoch {epoch + 1}: the loss "
                "is not a number any more. Start again with a lower --lr and another --out; the "
                "state of the last good epoch is kept."
            )
        accuracy = engine.agreed(validation(student))
        state.record(Epoch(epoch + 1, *losses, accuracy, state.lr), config.schedule.patience)
        state.seconds += time.perf_counter() - began
        if checkpoint is not None and engine.agreed(state.worth_saving):
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
    model = replace(model, anchors=engine.agreed(model.anchors.cpu()).to(model.device))
    seconds = state.seconds + around + time.perf_counter() - began
    return RoundResult(model, tuple(state.history), seconds)


def remember(
    method: Method, model: Model, delivery: Delivery, before: Memory, config: TrainConfig
) -> Memory:
    """What the method keeps for its next round, besides the model, once this one has ended."""
    if method.alignment is None:
        return {}
    return method.alignment.remember(model, training_pool(method, delivery), before, config.seed)


class Validation:
    """Accuracy on the validation classes, always on the same episodes."""

    def __init__(self, pool: Pool, config: TrainConfig, device: torch.device) -> None:
        self.pool, self.pixels = pool, Pixels(pool, device)
        rng = generator("validation", config.seed)
        self.plan = plan_episodes(pool, config.episode, config.schedule.val_episodes, rng)

    def __call__(self, model: Model) -> float:
        pool, there = self.pool, self.pixels.on_device
        features = model.embed_rows(pool.table, pool.rows) if there is None else model.embed(there)
        return float(episode_accuracies(model.head, features, self.plan).mean())


class State:
    """All that a round needs to go on: weights, optimizer, rate, curve, and the best so far."""

    def __init__(self, step: TrainStep, lr: float) -> None:
        self.step, self.lr = step, lr
        self.best, self.best_epoch = -math.inf, 0
        self.stale = 0  # epochs since the best, or since the rate was last halved
        self.history: list[Epoch] = []
        self.seconds = 0.0
        self.saved_at, self.saving = 0.0, 0.0  # of these seconds, and how long it took
        self.best_weights: dict[str, Tensor] = {}

    def ended(self, schedule: Schedule) -> bool:
        """Also where the rate has been halved so often that nothing moves any more."""
        return len(self.history) >= schedule.epochs or self.lr < schedule.lr * LEAST_RATE

    def record(self, epoch: Epoch, patience: int) -> None:
        self.history.append(epoch)
        self.stale += 1
        if epoch.val_accuracy > self.best:
            self.best, self.best_epoch, self.stale = epoch.val_accuracy, epoch.epoch, 0
            self.best_weights = {k: v.clone() for k, v in self._weights().items()}
        if self.stale > patience:
            self.lr, self.stale = self.lr / 2, 0

    def restore_best(self) -> None:
        self._set_weights(self.best_weights)

    @property
    def worth_saving(self) -> bool:
        """Where saving takes long, only one part in fifty of the time is spent on it."""
        return self.saving < QUICK or 50 * self.saving < self.seconds - self.saved_at

    def save(self, path: Path, identity: str) -> None:
        began = time.perf_counter()
        tensors = {
            **{f"now.{k}": v for k, v in self._weights().items()},
            **{f"best.{k}": v for k, v in self.best_weights.items()},
            **self._moments(),
        }
        about = {
            "identity": identity,
            "lr": self.lr,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "stale": self.stale,
            "seconds": self.seconds,
            "history": [asdict(epoch) for epoch in self.history],
        }
        save_tensors(path, tensors, about)
        self.saved_at, self.saving = self.seconds, time.perf_counter() - began

    def load(self, path: Path, identity: str) -> None:
        about, mapped = load_tensors(path, "state of a stopped run", "; delete it to start again")
        tensors = {key: value.clone() for key, value in mapped.items()}
        if about.get("identity") != identity:
            raise KedgeError(
                f"{path}: a stopped run with other options or other images lies here; repeat its "
                "command to continue it, or delete this file to start anew."
            )
        self.lr, self.stale, self.seconds = about["lr"], about["stale"], about["seconds"]
        self.best, self.best_epoch = about["best"], about["best_epoch"]
        self.history = [Epoch(**epoch) for epoch in about["history"]]
        self._set_weights(under("now.", tensors))
        self.best_weights = under("best.", tensors)
        self._set_moments(under("adam.", tensors))

    def _weights(self) -> dict[str, Tensor]:
        parts = {"embedding": self.step.student.embedding, "head": self.step.student.head}
        weights = {f"{p}.{k}": v for p, m in parts.items() for k, v in m.state_dict().items()}
        return weights if self.step.rows is None else {**weights, "rows": self.step.rows.detach()}

    def _set_weights(self, weights: dict[str, Tensor]) -> None:
        own = self._weights()
        with torch.no_grad():
            for key, value in weights.items():
                own[key].copy_(value)

    def _moments(self) -> dict[str, Tensor]:
        state = self.step.optimizer.state_dict()["state"]
        return {f"adam.{i}.{k}": v for i, moments in state.items() for k, v in moments.items()}

    def _set_moments(self, moments: dict[str, Tensor]) -> None:
        optimizer = self.step.optimizer
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in moments.items():
            i, name = key.split(".", 1)
            # Fused Adam walks through memory: a moment must lie there as its weight does.
            like = weights[int(i)]
            laid_out = torch.empty_like(like).copy_(value) if value.ndim else value
            state.setdefault(int(i), {})[name] = laid_out
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _as_the_first(start: Model) -> Model:
    """The very weights that the first process starts from: a backbone of one's own may be random.

    The model that is given stays as it is.
    """
    if engine.n_processes() == 1:
        return start
    copied = replace(
        start, embedding=copy.deepcopy(start.embedding), head=copy.deepcopy(start.head)
    )
    for module in (copied.embedding, copied.head):
        own = {key: value.cpu() for key, value in module.state_dict().items()}
        module.load_state_dict(engine.agreed(own))
    return replace(copied, anchors=engine.agreed(start.anchors.cpu()).to(start.device))


def _identity(
    start: Model,
    pool: Pool,
    delivery: Delivery,
    method: Method,
    config: TrainConfig,
    memory: Memory,
) -> str:
    """Two runs with this in common do the same thing, so one may continue the other."""
    return json.dumps(
        {
            "config": to_dict(config),
            "model": to_dict(start.config),
            "method": method.label,
            "round": delivery.round,
            "start": start.fingerprint,
            "device": start.device.type,  # the GPU computes in another precision
            "images": pool.table.fingerprint,
            "classes": pool.classes,
            "validation": delivery.val.classes,
            "validation images": delivery.val.table.fingerprint,
            "rows": digest({"training": pool.rows, "validation": delivery.val.rows}),
            "memory": digest(memory),
        }
    )
