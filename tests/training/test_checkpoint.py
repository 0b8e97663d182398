"""A stopped round continues to the same last bit; files of other runs are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_round import (
    BASE,
    CONFIG,
    FIRST,
    NEW,
    OLD,
    SECOND,
    TABLE,
    VAL,
    Stopped,
    base_model,
    images,
    round_data,
    same,
    scheduled,
    stop_after,
    untrained,
    weights,
)
from torch import Tensor, nn

from kedge.data.pools import Pool
from kedge.errors import KedgeError
from kedge.methods.registry import WEIGHT_RULES, parse_method
from kedge.models.model import Model
from kedge.training.checkpoint import Checkpoint, is_checkpoint_of
from kedge.training.round import RoundResult, Validator, train_round
from kedge.training.step import StepInputs, TrainStep
from kedge.utils.atomic_io import load_tensors, save_tensors


def assert_same_result(a: RoundResult, b: RoundResult) -> None:
    assert a.history == b.history
    assert same(weights(a.model), weights(b.model))
    assert a.model.lineage == b.model.lineage


def steps_taken(_: Validator, model: Model) -> float:
    """A validation accuracy that rises with every epoch."""
    state = model.embedding.state_dict()
    return float(next(value for key, value in state.items() if key.endswith("tracked")))


@pytest.mark.parametrize(
    ("name", "head", "stops"),
    [
        ("base", "prototype", (1,)),
        ("base", "prototype", (5, 4, 8)),
        ("base", "ecm", (4,)),
        ("IDA", "prototype", (9,)),
    ],
)
def test_stopped_round_continues_to_the_same_last_bit(
    name: str, head: str, stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within an epoch or at its end, after so many of 3 × 3 episodes."""
    monkeypatch.setattr(Validator, "__call__", steps_taken)
    start, data, method = base_model(), SECOND, parse_method("IDA")
    if name == "base":
        start, data, method = untrained(head=head), FIRST, BASE
    uninterrupted = train_round(start, data, method, CONFIG)
    checkpoint = tmp_path / "state"
    for stop in stops:
        with pytest.raises(Stopped):
            train_round(start, data, method, CONFIG, checkpoint, stop_after(stop))
        assert checkpoint.exists() == (stop > 3), "an epoch is saved when it has been validated"
    ticks: list[int] = []
    resumed = train_round(start, data, method, CONFIG, checkpoint, ticks.append)
    assert sum(ticks) == 9
    assert_same_result(resumed, uninterrupted)


@pytest.mark.parametrize(
    "more", [{"ema": 0.7}, {"annealing": "cosine"}, {"ema": 0.7, "annealing": "cosine"}]
)
@pytest.mark.parametrize(("head", "n_tasks"), [("ecm", 1), ("prototype", 3)])
def test_stopped_round_continues_its_average_and_cosine(
    head: str, n_tasks: int, more: dict[str, float | str], tmp_path: Path
) -> None:
    config = scheduled(train="last", tasks_per_step=n_tasks, **more)
    run = (untrained(head=head), FIRST, BASE, config)
    uninterrupted = train_round(*run)
    for stop in (4, 7):
        with pytest.raises(Stopped):
            train_round(*run, tmp_path / "state", stop_after(stop))
    resumed = train_round(*run, tmp_path / "state")
    assert_same_result(resumed, uninterrupted)
    resumed.model.save(tmp_path / "model")
    assert is_checkpoint_of(tmp_path / "model", tmp_path / "state")


@pytest.mark.parametrize("stop", [2, 4, 5])
def test_stopped_round_remembers_its_plateau(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validator, "__call__", lambda *_: 50.0)
    config = scheduled(epochs=6, episodes=1, patience=1)
    uninterrupted = train_round(untrained(), FIRST, BASE, config)
    assert [epoch.lr for epoch in uninterrupted.history] == [1e-2] * 3 + [5e-3] * 2 + [2.5e-3]
    with pytest.raises(Stopped):
        train_round(untrained(), FIRST, BASE, config, tmp_path / "state", stop_after(stop))
    resumed = train_round(untrained(), FIRST, BASE, config, tmp_path / "state")
    assert_same_result(resumed, uninterrupted)


def test_finished_round_is_not_trained_again_but_can_be_made_longer(tmp_path: Path) -> None:
    checkpoint, ticks = tmp_path / "state", []
    done = train_round(untrained(), FIRST, BASE, CONFIG, checkpoint)
    again = train_round(untrained(), FIRST, BASE, CONFIG, checkpoint, ticks.append)
    assert ticks == [9], "told at once"
    assert_same_result(again, done)
    longer = train_round(untrained(), FIRST, BASE, scheduled(epochs=5), checkpoint)
    assert longer.history == train_round(untrained(), FIRST, BASE, scheduled(epochs=5)).history
    with pytest.raises(KedgeError, match="5 epochs, but --epochs is 4"):
        train_round(untrained(), FIRST, BASE, scheduled(epochs=4), checkpoint)


# ── the plateau schedule ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_learning_rate_is_halved_as_by_torch(
    patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = [50, 60, 60, 59, 60, 60, 58, 61, 61, 61, 60, 40, 20, 61, 61, 61, 70, 70, 70.0]
    values, original, used = iter(accuracies), TrainStep.__call__, []

    def spy(self: TrainStep, inputs: StepInputs) -> Tensor:
        used.extend(group["lr"] for group in self.optimizer.param_groups)
        return original(self, inputs)

    monkeypatch.setattr(TrainStep, "__call__", spy)
    monkeypatch.setattr(Validator, "__call__", lambda *_: float(next(values)))
    config = scheduled(epochs=len(accuracies), episodes=1, patience=patience)
    history = train_round(untrained(), FIRST, BASE, config).history
    assert [epoch.lr for epoch in history] == used
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-2)
    torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        sgd, "max", factor=0.5, patience=patience, threshold=0
    )
    for epoch in history:
        assert epoch.lr == pytest.approx(sgd.param_groups[0]["lr"])
        torchs.step(epoch.val_accuracy)
    # A round ends early, after ten halvings: nothing would change any more.
    assert (len(history) < len(accuracies)) == (patience == 0)
    assert history[-1].lr > 1e-5


# ── the cosine schedule ──────────────────────────────────────────────────────────────────────


def test_cosine_lowers_the_rate_to_zero_and_keeps_the_last_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies, validated = iter([60.0, 70.0, 50.0, 50.0, 50.0, 40.0]), []

    def validate(_: Validator, model: Model) -> float:
        validated.append(weights(model))
        return next(accuracies)

    monkeypatch.setattr(Validator, "__call__", validate)
    config = scheduled(epochs=6, episodes=1, patience=0, annealing="cosine")
    result = train_round(untrained(), FIRST, BASE, config, tmp_path / "state")
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-2)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=6)
    for epoch in result.history:
        assert epoch.lr == pytest.approx(sgd.param_groups[0]["lr"])
        sgd.step()
        torchs.step()
    assert len(result.history) == 6
    state = result.model.state_dict()
    assert all(torch.equal(state[key], validated[-1][key]) for key in state)
    entry = result.model.lineage[-1]
    assert (entry.best_epoch, entry.val_accuracy) == (6, 40.0)
    longer = scheduled(epochs=7, episodes=1, patience=0, annealing="cosine")
    with pytest.raises(KedgeError, match=r"state: .* other options"):
        train_round(untrained(), FIRST, BASE, longer, tmp_path / "state")


# ── saving ───────────────────────────────────────────────────────────────────────────────────


def test_state_that_takes_long_to_save_is_saved_seldom() -> None:
    state = Checkpoint(TrainStep(untrained(), untrained(), BASE, 1e-2, None, {}), CONFIG.schedule)
    state.seconds, state.saved_at, state.save_duration = 100.0, 90.0, 0.01
    assert state.worth_saving
    state.save_duration = 0.3
    assert not state.worth_saving
    state.seconds = 106.0
    assert state.worth_saving


def test_the_end_is_always_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "worth_saving", False)
    train_round(untrained(), FIRST, BASE, CONFIG, tmp_path / "state")
    about, _ = load_tensors(tmp_path / "state", "state")
    assert len(about["history"]) == 3


# ── files that do not fit ────────────────────────────────────────────────────────────────────

FEWER_IMAGES = replace(SECOND.train, class_rows=tuple(r[2:] for r in SECOND.train.class_rows))
OTHER_RUNS: dict[str, dict[str, Any]] = {
    "seed": {"config": replace(CONFIG, seed=6)},
    "learning rate": {"config": scheduled(lr=2e-2)},
    "average": {"config": scheduled(ema=0.5)},
    "what trains": {"config": scheduled(train="last")},
    "tasks per step": {"config": scheduled(tasks_per_step=3)},
    "method": {"method": parse_method("IDA lambda=2")},
    "round": {"data": replace(SECOND, round=2)},
    "start": {"start": untrained(seed=9).with_anchors_of(FIRST.train)},
    "images": {"data": round_data(1, NEW, images(seed=1))},
    "choice of images": {"data": replace(SECOND, train=FEWER_IMAGES)},
    "validation classes": {"data": replace(SECOND, val=Pool.all("validation", TABLE, OLD))},
    "validation images": {
        "data": replace(SECOND, val=Pool.all("validation", images(VAL, seed=1), VAL))
    },
}


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "state"
    run = {"start": base_model(), "data": SECOND, "method": parse_method("IDA"), "config": CONFIG}
    with pytest.raises(Stopped):
        train_round(*run.values(), checkpoint, stop_after(4))
    content = checkpoint.read_bytes()
    for other in OTHER_RUNS.values():
        with pytest.raises(KedgeError, match=r"state: .* other options"):
            train_round(*(run | other).values(), checkpoint, stop_after(99))
        assert checkpoint.read_bytes() == content, "its own run can still continue it"


def test_checkpoint_of_a_method_that_meant_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = base_model(), SECOND, parse_method("IDA lambda=sqrt"), CONFIG, tmp_path / "state"
    with pytest.raises(Stopped):
        train_round(*run, stop_after(4))
    with monkeypatch.context() as patch:
        patch.setitem(WEIGHT_RULES, "sqrt", lambda ratio: 7.0)
        with pytest.raises(KedgeError, match=r"state: .* other options"):
            train_round(*run)
    train_round(*run)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda about, tensors: tensors.pop(min(k for k in tensors if k.startswith("now."))),
        lambda about, tensors: tensors.update({"best.embedding.mean": torch.zeros(7)}),
        lambda about, tensors: tensors.update({"adam.999.exp_avg": torch.zeros(2)}),
        lambda about, tensors: about.pop("lr"),
        lambda about, tensors: about.update(history=[{"epoch": "one"}]),
    ],
)
def test_content_that_does_not_fit_is_refused(
    spoil: Callable[[dict[str, Any], dict[str, Tensor]], object], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "state"
    with pytest.raises(Stopped):
        train_round(untrained(), FIRST, BASE, CONFIG, checkpoint, stop_after(5))
    about, mapped = load_tensors(checkpoint, "state")
    tensors = {key: value.clone() for key, value in mapped.items()}
    spoil(about, tensors)
    save_tensors(checkpoint, tensors, about)
    with pytest.raises(KedgeError, match=r"state: damaged"):
        train_round(untrained(), FIRST, BASE, CONFIG, checkpoint)
