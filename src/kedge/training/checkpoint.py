"""The state of a round in training: its learning rate, and the file from which it continues."""

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
OTHER_RUN = (
    "{}: this is a stopped run with other options, images or starting weights. "
    "Repeat its command to continue it, or delete this file to start again."
)
MIN_LR_FRACTION = 1 / 1000  # of the initial learning rate; ten halvings are below it
SAVED_NUMBERS = ("lr", "best", "best_epoch", "stale", "seconds")  # attributes, and keys in the file


class Checkpoint:
    """Weights, optimizer state, learning rate, training curve and the best weights so far.

    With the annealing "cosine" the best weights are the last ones. If the step averages weights,
    the best weights are averages. After the last epoch they are merged with those of the teacher,
    which get the share `merge`.
    """

    def __init__(self, step: TrainStep, schedule: Schedule, merge: float = 0.0) -> None:
        self.step, self.schedule, self.lr, self.merge = step, schedule, schedule.lr, merge
        self.best, self.best_epoch = -math.inf, 0  # validation accuracy
        self.stale = 0  # epochs since the best one, or since the learning rate was last halved
        self.history: list[EpochResult] = []
        self.seconds = 0.0  # of training so far
        self.saved_at, self.save_duration = 0.0, 0.0  # `seconds` at the last save; its duration
        self.best_weights: dict[str, Tensor] = {}

    def ended(self) -> bool:
        """Whether all epochs are done, or plateaus made the rate too small to change anything."""
        by_plateaus = self.schedule.annealing == "plateau"
        negligible = by_plateaus and self.lr < self.schedule.lr * MIN_LR_FRACTION
        return len(self.history) >= self.schedule.epochs or negligible

    def record(self, epoch: EpochResult) -> None:
        """Add an epoch: keep its weights if it is the best, and lower the learning rate if due."""
        self.history.append(epoch)
        self.stale += 1
        cosine = self.schedule.annealing == "cosine"
        if cosine or epoch.val_accuracy > self.best:
            self.best, self.best_epoch, self.stale = epoch.val_accuracy, epoch.epoch, 0
            self.best_weights = {k: v.clone() for k, v in self.step.averaged_state().items()}
        if cosine:
            part_done = len(self.history) / self.schedule.epochs
            self.lr = self.schedule.lr * (1 + math.cos(math.pi * part_done)) / 2
        elif self.stale > self.schedule.patience:
            self.lr, self.stale = self.lr / 2, 0
        if self.merge and self.ended():
            self._merge_with_teacher()

    def _merge_with_teacher(self) -> None:
        """Interpolate weights and statistics. Embeddings of new classes, which the teacher does not
        have, stay as they are, and so do counters."""
        for name, old in self.step.teacher.state_dict().items():
            best = self.best_weights[name]
            if old.is_floating_point():  # what has not changed keeps its bits
                merged = best.lerp(old.to(best), self.merge)
                self.best_weights[name] = torch.where(best == old, best, merged)

    def restore_best(self) -> None:
        _copy_into(self.step.averaged_state(), self.best_weights)

    @property
    def worth_saving(self) -> bool:
        """Whether saving is cheap, or would take at most 1/50 of the time since the last save."""
        since_save = self.seconds - self.saved_at
        return self.save_duration < CHEAP_SAVE or 50 * self.save_duration < since_save

    def save(self, path: Path, identity: str) -> None:
        """Write a file that only a run with the same `identity` can continue."""
        began = time.perf_counter()
        tensors = {
            **{
                f"{prefix}{k}": v
                for prefix, state in self._states().items()
                for k, v in state.items()
            },
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

    def load(self, path: Path, identity: str) -> None:
        """Continue from a file. Raises KedgeError if it is damaged or of another run."""
        about, mapped = load_tensors(path, FILE_KIND, "; delete it to start again")
        tensors = {key: value.clone() for key, value in mapped.items()}
        if _with_current_options(about.get("identity")) != identity:
            raise KedgeError(OTHER_RUN.format(path))
        try:
            self._set_state(about, tensors)
        except (KedgeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
            raise KedgeError(f"{path}: damaged {FILE_KIND}; delete it to start again.") from None
        n_done, epochs = len(self.history), self.schedule.epochs
        require(
            n_done <= epochs,
            f"{path}: this stopped run has done {n_done} epochs, but --epochs is {epochs}. Give "
            f"{n_done} or more to continue it, or delete this file to start again.",
        )

    def _set_state(self, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over the contents of a file. Unexpected contents raise one of various errors."""
        states = self._states()
        saved = {prefix: strip_prefix(prefix, tensors) for prefix in (*states, "best.")}
        expected = {k: (v.shape, v.dtype) for k, v in self.step.state().items()}
        for weights in saved.values():
            if {k: (v.shape, v.dtype) for k, v in weights.items()} != expected:
                raise ValueError("weights of another network")
        self.history = [from_dict(EpochResult, epoch) for epoch in about["history"]]
        for name in SAVED_NUMBERS:
            setattr(self, name, type(getattr(self, name))(about[name]))
        for prefix, state in states.items():
            _copy_into(state, saved[prefix])
        self.best_weights = saved["best."]
        self._set_moments(strip_prefix("adam.", tensors))

    def _states(self) -> dict[str, dict[str, Tensor]]:
        """What continues to change, by its prefix in the file; not copied."""
        step, now = self.step, {"now.": self.step.state()}
        return now if step.average is None else {**now, "average.": step.averaged_state()}

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


@torch.no_grad()
def _copy_into(state: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for key, value in values.items():
        state[key].copy_(value)


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
    # A round on maps of frozen layers has only the other layers.
    known = bool(best) and best.keys() <= weights.keys()
    return known and all(torch.equal(best[k], weights[k]) for k in best)
