"""The state of a round on disk: what it needs to go on when it was stopped, at whatever moment."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kedge.config import (
    Schedule,
    from_dict,
    require,
)
from kedge.errors import KedgeError
from kedge.evaluation.results import Epoch
from kedge.models.model import Model, state_of
from kedge.training.step import TrainStep
from kedge.utils.atomic_io import (
    load_tensors,
    save_tensors,
    under,
)

WHAT = "state of a stopped run"
QUICK = 0.25  # seconds of saving that do not matter
LEAST_RATE = 1 / 1000  # of the learning rate at the start; ten halvings lie below it


class Checkpoint:
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

    def load(self, path: Path, identity: str, epochs: int) -> None:
        about, mapped = load_tensors(path, WHAT, "; delete it to start again")
        tensors = {key: value.clone() for key, value in mapped.items()}
        if about.get("identity") != identity:
            raise KedgeError(
                f"{path}: a stopped run with other options, images or starting weights lies "
                "here; repeat its command to continue it, or delete this file to start anew."
            )
        try:
            self._take(about, tensors)
        except (KedgeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
            raise KedgeError(f"{path}: this {WHAT} is damaged; delete it to start again.") from None
        done = len(self.history)
        require(
            done <= epochs,
            f"{path}: a stopped run lies here that has done {done} epochs, and --epochs is "
            f"{epochs}: give {done} or more to continue it, or delete this file to start anew.",
        )

    def _take(self, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """A file may hold anything: what does not fit raises one thing or another."""
        now, best = (under(prefix, tensors) for prefix in ("now.", "best."))
        own = {key: (value.shape, value.dtype) for key, value in self._weights().items()}
        if any({k: (v.shape, v.dtype) for k, v in each.items()} != own for each in (now, best)):
            raise ValueError("weights of another network")
        self.history = [from_dict(Epoch, epoch) for epoch in about["history"]]
        self.lr, self.best, self.seconds = (float(about[k]) for k in ("lr", "best", "seconds"))
        self.stale, self.best_epoch = int(about["stale"]), int(about["best_epoch"])
        self._set_weights(now)
        self.best_weights = best
        self._set_moments(under("adam.", tensors))

    def _weights(self) -> dict[str, Tensor]:
        weights = state_of(self.step.student)
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


def is_checkpoint_of(file: Path, checkpoint: Path) -> bool:
    """Whether a model is there and beside it the state of the very round that made it.

    A command leaves both if it is killed when the model is in its place and its state is not yet
    removed.
    """
    if not (file.exists() and checkpoint.exists()):
        return False
    try:
        model, (_, state) = Model.load(file), load_tensors(checkpoint, WHAT)
    except KedgeError:  # whatever they are, they are to be left alone
        return False
    made, best = state_of(model), under("best.", state)
    best.pop("rows", None)  # a model has them as anchors
    return best.keys() == made.keys() and all(torch.equal(best[key], made[key]) for key in made)
