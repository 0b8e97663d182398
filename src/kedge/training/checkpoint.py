"""The state of a round in training: its plateau schedule, and the file from which it continues."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kedge.config import Schedule
from kedge.errors import KedgeError, require
from kedge.evaluation.results import EpochResult
from kedge.models.model import Model
from kedge.models.model_file import current_spec
from kedge.training.step import TrainStep
from kedge.utils.atomic_io import load_tensors, save_tensors, strip_prefix
from kedge.utils.config_io import from_dict

FILE_KIND = "state of a stopped run"
CHEAP_SAVE = 0.25  # seconds; a save that takes less is made after every epoch
MIN_LR_FRACTION = 1 / 1000  # of the initial learning rate; ten halvings are below it
SAVED_NUMBERS = ("lr", "best", "best_epoch", "stale", "seconds")  # attributes, and keys in the file


class Checkpoint:
    """Weights, optimizer state, learning rate, training curve and the best weights so far."""

    def __init__(self, step: TrainStep, lr: float) -> None:
        self.step, self.lr = step, lr
        self.best, self.best_epoch = -math.inf, 0  # validation accuracy
        self.stale = 0  # epochs since the best one, or since the learning rate was last halved
        self.history: list[EpochResult] = []
        self.seconds = 0.0  # of training so far
        self.saved_at, self.save_duration = 0.0, 0.0  # `seconds` at the last save; its duration
        self.best_weights: dict[str, Tensor] = {}

    def ended(self, schedule: Schedule) -> bool:
        """Whether all epochs are done, or the learning rate is too small to change anything."""
        return len(self.history) >= schedule.epochs or self.lr < schedule.lr * MIN_LR_FRACTION

    def record(self, epoch: EpochResult, patience: int) -> None:
        """Add an epoch: keep its weights if it is the best, halve the rate on a plateau."""
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
        """Whether saving is cheap, or would take at most 1/50 of the time since the last save."""
        since_save = self.seconds - self.saved_at
        return self.save_duration < CHEAP_SAVE or 50 * self.save_duration < since_save

    def save(self, path: Path, identity: str) -> None:
        """Write a file that only a run with the same `identity` can continue."""
        began = time.perf_counter()
        tensors = {
            **{f"now.{k}": v for k, v in self._weights().items()},
            **{f"best.{k}": v for k, v in self.best_weights.items()},
            **self._moments(),
        }
        about = {
            "identity": identity,
            **{name: getattr(self, name) for name in SAVED_NUMBERS},
            "history": [asdict(epoch) for epoch in self.history],
        }
        save_tensors(path, tensors, about)
        self.saved_at, self.save_duration = self.seconds, time.perf_counter() - began

    def load(self, path: Path, identity: str, epochs: int) -> None:
        """Continue from a file. Raises KedgeError if it is damaged or of another run."""
        about, mapped = load_tensors(path, FILE_KIND, "; delete it to start again")
        tensors = {key: value.clone() for key, value in mapped.items()}
        if _with_current_options(about.get("identity")) != identity:
            raise KedgeError(
                f"{path}: this is a stopped run with other options, images or starting weights. "
                "Repeat its command to continue it, or delete this file to start again."
            )
        try:
            self._set_state(about, tensors)
        except (KedgeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
            raise KedgeError(f"{path}: damaged {FILE_KIND}; delete it to start again.") from None
        n_done = len(self.history)
        require(
            n_done <= epochs,
            f"{path}: this stopped run has done {n_done} epochs, but --epochs is {epochs}. Give "
            f"{n_done} or more to continue it, or delete this file to start again.",
        )

    def _set_state(self, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over the contents of a file. Unexpected contents raise one of various errors."""
        now, best = (strip_prefix(prefix, tensors) for prefix in ("now.", "best."))
        expected = {k: (v.shape, v.dtype) for k, v in self._weights().items()}
        if any({k: (v.shape, v.dtype) for k, v in w.items()} != expected for w in (now, best)):
            raise ValueError("weights of another network")
        self.history = [from_dict(EpochResult, epoch) for epoch in about["history"]]
        for name in SAVED_NUMBERS:
            setattr(self, name, type(getattr(self, name))(about[name]))
        self._set_weights(now)
        self.best_weights = best
        self._set_moments(strip_prefix("adam.", tensors))

    def _weights(self) -> dict[str, Tensor]:
        weights, embeddings = self.step.student.state_dict(), self.step.class_embeddings
        return weights if embeddings is None else {**weights, "rows": embeddings.detach()}

    def _set_weights(self, weights: dict[str, Tensor]) -> None:
        current = self._weights()
        with torch.no_grad():
            for key, value in weights.items():
                current[key].copy_(value)

    def _moments(self) -> dict[str, Tensor]:
        state = self.step.optimizer.state_dict()["state"]
        return {f"adam.{i}.{k}": v for i, moments in state.items() for k, v in moments.items()}

    def _set_moments(self, moments: dict[str, Tensor]) -> None:
        optimizer = self.step.optimizer
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in moments.items():
            i, name = key.split(".", 1)
            # Fused Adam reads memory in order: a moment must have the layout of its weight.
            layout = torch.empty_like(weights[int(i)])
            state.setdefault(int(i), {})[name] = layout.copy_(value) if value.ndim else value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _with_current_options(identity: Any) -> Any:
    """The identity of a stopped run, with the current names of options renamed since."""
    try:
        data = json.loads(identity)
        data["method"], head = current_spec(data["method"]), data["model"]["head"]
        head["head"] = current_spec(head["head"])
    except (AttributeError, KeyError, TypeError, ValueError):  # damaged, or of another program
        return identity
    return json.dumps(data)


def is_checkpoint_of(model_path: Path, checkpoint: Path) -> bool:
    """Whether both files exist and the checkpoint is of the round that made the model.

    A command leaves both if it is killed after it has saved the model.
    """
    if not (model_path.exists() and checkpoint.exists()):
        return False
    try:
        model, (_, tensors) = Model.load(model_path), load_tensors(checkpoint, FILE_KIND)
    except KedgeError:  # unreadable files are not touched
        return False
    weights, best = model.state_dict(), strip_prefix("best.", tensors)
    best.pop("rows", None)  # class embeddings, which a model has as anchors
    return best.keys() == weights.keys() and all(torch.equal(best[k], weights[k]) for k in best)
