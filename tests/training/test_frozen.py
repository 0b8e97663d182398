"""What does not train stays the same to the last bit; a round may train nothing at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.small_round import (
    BASE,
    CONFIG,
    FIRST,
    NEW,
    OLD,
    SECOND,
    SIDE,
    TABLE,
    VAL,
    Stopped,
    base_model,
    memory_of,
    quick,
    round_data,
    same,
    scheduled,
    stop_after,
    untrained,
    weights,
)
from torch import Tensor, nn

from kedge.data.pools import Pool, RoundData
from kedge.errors import KedgeError
from kedge.methods.registry import ALIGNMENTS, parse_method
from kedge.models.model import Model
from kedge.models.trainable import frozen_names, trained_names
from kedge.training.round import Validator, memory_after_round, train_round
from kedge.training.step import StepInputs, TrainStep


def bits(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    """Not only equal: 0 and −0 differ."""
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def changed(before: Model, after: Model) -> set[str]:
    """Names of weights and statistics that are not the same bits."""
    old, new = bits(before.state_dict()), bits(after.state_dict())
    return {name for name, value in new.items() if value != old[name]}


def with_negative_zeros(model: Model) -> Model:
    """Statistics that an addition of 0 would change."""
    for name, value in model.state_dict().items():
        if name.endswith("running_mean"):
            value[0] = -0.0
    return model


@pytest.mark.parametrize("n_tasks", [1, 3])
@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_only_the_last_layers_change(n_tasks: int, ema: float) -> None:
    start = with_negative_zeros(untrained())
    config = scheduled(train="last", tasks_per_step=n_tasks, ema=ema)
    model = train_round(start, FIRST, BASE, config).model
    # The last two convolutions and their BatchNorms.
    last = {"8.weight", "9.weight", "9.bias", "12.weight", "13.weight", "13.bias"}
    names = ("running_mean", "running_var", "num_batches_tracked")
    statistics = {f"{layer}.{name}" for layer in (9, 13) for name in names}
    assert changed(start, model) == {f"embedding.backbone.blocks.{n}" for n in last | statistics}


@pytest.mark.parametrize("n_tasks", [1, 3])
@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_frozen_statistics_do_not_move_though_all_weights_train(n_tasks: int, ema: float) -> None:
    start = with_negative_zeros(base_copy())
    config = scheduled(batch_norm="frozen", tasks_per_step=n_tasks, ema=ema)
    model = train_round(start, SECOND, parse_method("IDA"), config).model
    assert changed(start, model) == set(start.weights())


def base_copy() -> Model:
    return train_round(untrained(), FIRST, BASE, scheduled(epochs=1)).model


def own_backbone() -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Linear(n, 6) for n in (SIDE * SIDE, 6, 6)]
    norms = [nn.BatchNorm1d(6) for _ in parts]
    pairs = zip(parts, norms, strict=True)
    return nn.Sequential(nn.Flatten(), *(layer for pair in pairs for layer in (*pair, nn.Tanh())))


@pytest.mark.parametrize("name", ["FT", *sorted(ALIGNMENTS)])
def test_what_a_user_froze_stays_through_rounds_of_every_method(name: str) -> None:
    backbone = own_backbone()
    backbone[1].requires_grad_(False)
    backbone[2].requires_grad_(False)
    backbone[4].weight.requires_grad_(False)
    start = untrained("custom", network=backbone)
    start = replace(start, config=replace(start.config, frozen=frozen_names(backbone)))
    still = {"1.weight", "1.bias", "2.weight", "2.bias", "4.weight"}
    still |= {"2.running_mean", "2.running_var", "2.num_batches_tracked"}
    still = {f"embedding.backbone.{key}" for key in still} | {"embedding.mean", "embedding.std"}
    first = train_round(start, FIRST, BASE, CONFIG).model
    assert changed(start, first) == set(start.state_dict()) - still
    method, memory = quick(name), memory_of(name, first)
    if name == "EWC":
        trained = {f"fisher.{key}" for key in trained_names(first, "all")}
        assert set(memory) == trained < {f"fisher.{key}" for key in first.weights()}
        method.alignment.check_memory(memory, first)
    second = train_round(first, SECOND, method, CONFIG, memory=memory).model
    assert changed(first, second) == set(start.state_dict()) - still


def test_last_layers_are_those_of_the_whole_network() -> None:
    """Though the round itself runs on the outputs of the layers before them."""
    sizes = (SIDE * SIDE, 6, 6, 6, 6)  # of five blocks, the last four are selected
    blocks = [nn.Sequential(*(nn.Linear(m, 6) for m in (n, 6, 6))) for n in sizes]
    start = untrained("custom", network=nn.Sequential(nn.Flatten(), *blocks))
    start = replace(start, config=replace(start.config, frozen=("2",)))
    model = train_round(start, FIRST, BASE, scheduled(train="last")).model
    names = [f"{block}.{i}" for block in (3, 4, 5) for i in range(3)]
    last = {f"embedding.backbone.{name}.{w}" for name in names for w in ("weight", "bias")}
    assert changed(start, model) == last
    assert model.lineage[-1].source == TABLE.source


# ── rounds in which nothing trains ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("head", ["prototype", "ecm", "ridge"])
@pytest.mark.parametrize("nothing", [{"epochs": 0}, {"train": "none"}, {"ema": 0.5, "epochs": 0}])
def test_round_without_training_only_adds_anchors(
    head: str, nothing: dict[str, int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = train_round(untrained(head=head), FIRST, BASE, scheduled(epochs=1)).model
    accuracy = Validator(SECOND.val, CONFIG, start.device)(start)
    monkeypatch.setattr(TrainStep, "__init__", lambda *_: pytest.fail("trains"))
    ticks: list[int] = []
    config = scheduled(**nothing)
    result = train_round(start, SECOND, parse_method("IDA"), config, tick=ticks.append)
    assert changed(start, result.model) == set()
    assert result.model.classes == OLD + NEW
    assert torch.equal(result.model.anchors[:4], start.anchors)
    if head == "prototype":
        expected = start.with_anchors_of(SECOND.train).anchors
        assert torch.equal(result.model.anchors, expected)
    assert result.history == ()
    assert sum(ticks) == config.schedule.epochs * 3
    entry = result.model.lineage[-1]
    assert (entry.best_epoch, entry.val_accuracy, entry.method) == (0, accuracy, "anchors only")
    modules = (*result.model.embedding.modules(), *result.model.head.modules())
    assert not any(module.training for module in modules)
    assert not any(weight.requires_grad for weight in result.model.weights().values())


def test_round_without_training_needs_no_validation_and_few_images(tmp_path: Path) -> None:
    one = Pool("training", TABLE, ("new0",), (TABLE.rows_of("new0")[:1],))
    data = RoundData(1, one, Pool("validation", TABLE, (), ()))
    model = train_round(base_model(), data, parse_method("EWC"), scheduled(epochs=0)).model
    assert model.classes == (*OLD, "new0")
    assert model.lineage[-1].val_accuracy is None
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert loaded.lineage == model.lineage
    assert same(weights(loaded), weights(model))


def test_round_without_training_does_not_end_a_stopped_one(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train_round(untrained(), FIRST, BASE, CONFIG, tmp_path / "state", stop_after(4))
    for nothing in ({"epochs": 0}, {"train": "none"}):
        with pytest.raises(KedgeError, match=r"state: .* stopped run"):
            train_round(untrained(), FIRST, BASE, scheduled(**nothing), tmp_path / "state")


def test_training_a_head_without_weights_is_an_error() -> None:
    with pytest.raises(KedgeError, match=r"--train head: there is nothing to train"):
        train_round(untrained(), FIRST, BASE, scheduled(train="head"))
    frozen = tuple(name for name, _ in untrained().embedding.backbone.named_children())
    start = untrained()
    start = replace(start, config=replace(start.config, frozen=frozen))
    with pytest.raises(KedgeError, match=r"--train all: there is nothing to train"):
        train_round(start, FIRST, BASE, CONFIG)


@pytest.mark.parametrize("head", ["ecm", "ridge"])
def test_a_head_can_train_alone(head: str) -> None:
    start = untrained(head=head)
    model = train_round(start, FIRST, BASE, scheduled(train="head")).model
    assert changed(start, model) == {name for name in start.weights() if name.startswith("head.")}


# ── methods ──────────────────────────────────────────────────────────────────────────────────


def test_fisher_information_of_what_trains_now_is_enough() -> None:
    """Measured for all weights in round 0; then only the last layers train, and later all."""
    ewc, base, last = quick("EWC"), base_model(), scheduled(train="last")
    memory = memory_of("EWC", base)
    second = train_round(base, SECOND, ewc, last, memory=memory).model
    after = memory_after_round(ewc, second, SECOND, memory, last)
    ewc.alignment.check_memory(after, second)
    assert after.keys() == memory.keys()
    grown = {key for key in memory if not torch.equal(after[key], memory[key])}
    assert grown <= {f"fisher.{name}" for name in trained_names(second, "last")}
    assert grown
    train_round(second, round_data(2, VAL), ewc, CONFIG, memory=after)
    only_last = memory_after_round(ewc, second, SECOND, {}, last)
    with pytest.raises(KedgeError, match=r"EWC: .*--train"):
        train_round(second, round_data(2, VAL), ewc, CONFIG, memory=only_last)


@pytest.mark.parametrize(
    ("classes", "expected"), [(NEW, 1.0), ((*NEW, "old1"), 3 / 5), (NEW[:3], 4 / 3), (OLD, 0.0)]
)
def test_automatic_weight_is_old_classes_for_each_new_one(
    classes: tuple[str, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, original = [], TrainStep.backward

    def spy(self: TrainStep, inputs: StepInputs) -> Tensor:
        found.append(self.penalty_weight)
        return original(self, inputs)

    monkeypatch.setattr(TrainStep, "backward", spy)
    data, config = round_data(1, classes), scheduled(epochs=1)
    auto = train_round(base_model(), data, parse_method("IDA anchors=all lambda=auto"), config)
    assert set(found) == {expected}
    assert auto.model.lineage[-1].method == "IDA lambda=auto anchors=all"
    by_hand = parse_method(f"IDA lambda={expected} anchors=all") if expected else parse_method("FT")
    given = train_round(base_model(), data, by_hand, config)
    assert given.history == auto.history
    assert same(weights(given.model), weights(auto.model))


# ── the average of the weights ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_tasks", [1, 3])
@pytest.mark.parametrize("head", ["prototype", "ecm"])
def test_average_is_that_of_a_slow_loop(
    n_tasks: int, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weights, statistics and class embeddings after every step; it is validated and kept."""
    slow: dict[str, Tensor] = {}
    validated: list[dict[str, Tensor]] = []
    original = TrainStep.update

    def update(self: TrainStep) -> None:
        if not slow:
            slow.update({k: v.clone() for k, v in self.averaged_state().items()})
            starts = untrained(head=head).state_dict()
            assert same(slow, {**starts, **({"rows": slow["rows"]} if "rows" in slow else {})})
        original(self)
        for name, now in self.state().items():
            mean = 0.8 * slow[name].double() + 0.2 * now.double()
            slow[name] = mean.float() if now.is_floating_point() else now.clone()

    def validate(_: Validator, model: Model) -> float:
        validated.append(weights(model))
        return float(len(validated))

    monkeypatch.setattr(TrainStep, "update", update)
    monkeypatch.setattr(Validator, "__call__", validate)
    config = scheduled(ema=0.8, tasks_per_step=n_tasks, episodes=6)
    model = train_round(untrained(head=head), FIRST, BASE, config).model
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, slow[name], rtol=1e-5, atol=1e-6, msg=name)
        assert torch.equal(validated[-1][name], value)
    if head == "ecm":
        torch.testing.assert_close(model.anchors, slow["rows"], rtol=1e-5, atol=1e-6)
    last = train_round(untrained(head=head), FIRST, BASE, replace_ema(config)).model
    assert not same(weights(last), weights(model))


def replace_ema(config: object) -> object:
    return replace(config, schedule=replace(config.schedule, ema=0.0))  # type: ignore[attr-defined]
