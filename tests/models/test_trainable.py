"""Which weights train, and which modules then run in train mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kedge.config import BackboneConfig, BatchNormMode, DropoutMode, HeadConfig, Schedule
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.backbones import Conv4, ResNet12
from kedge.models.efficientnet import EfficientNetLite0
from kedge.models.embedding import CUSTOM, ModelConfig
from kedge.models.model import Model, new_model
from kedge.models.trainable import (
    frozen_names,
    layer_groups,
    set_train_mode,
    trainable_copy,
    trained_names,
)


def block(n: int, m: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n, m), nn.BatchNorm1d(m), nn.Dropout(0.5))


class Own(nn.Module):
    """All weights but one are in a single child."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.flatten = nn.Flatten()
        self.stem, self.middle, self.end = block(256, 4), block(4, 4), block(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.end(self.middle(self.stem(self.flatten(images)) + self.token))


class Grouped(Own):
    def layer_groups(self) -> Sequence[str]:
        return ["stem", "middle.0", "middle.1", "end"]


def model_of(backbone: nn.Module, head: str = "ecm", frozen: tuple[str, ...] = ()) -> Model:
    images = torch.randint(256, (8, 1, 16, 16), dtype=torch.uint8)
    pool = Pool.all("all", ImageTable.build(images, [i // 4 for i in range(8)], ["a", "b"]))
    config = ModelConfig(BackboneConfig(CUSTOM), HeadConfig(head), 1, 16, frozen=frozen)
    return new_model(config, pool, 0, backbone)


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        (EfficientNetLite0(), [str(i) for i in range(18)]),  # without the average, which is "18"
        (Conv4(1, 4), [f"blocks.{i}" for i in (0, 1, 4, 5, 8, 9, 12, 13)]),
        (ResNet12(1, (4, 4, 4, 4)), [f"blocks.{i}" for i in range(4)]),
        (nn.Sequential(nn.Flatten(), block(4, 4)), ["1.0", "1.1"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), ["1"]),
        (nn.Linear(4, 4), [""]),
        (nn.Flatten(), []),
        (Own(), ["stem", "middle", "end"]),
        (Grouped(), ["stem", "middle.0", "middle.1", "end"]),
    ],
)
def test_groups_of_layers_from_input_to_output(backbone: nn.Module, expected: list[str]) -> None:
    assert list(layer_groups(backbone)) == expected


def in_backbone(*modules: str) -> set[str]:
    return {f"embedding.backbone.{m}.{i}.{w}" for m in modules for i in (0, 1) for w in WEIGHTS}


WEIGHTS = ("weight", "bias")
TOKEN, LIFT = {"embedding.backbone.token"}, {"head.lift"}


@pytest.mark.parametrize(
    ("train", "frozen", "expected"),
    [
        ("none", (), set()),
        ("head", (), LIFT),
        ("last", (), LIFT | in_backbone("middle", "end")),
        ("last", ("end",), LIFT | in_backbone("middle")),
        ("all", (), LIFT | TOKEN | in_backbone("stem", "middle", "end")),
        ("all", ("stem", "token"), LIFT | in_backbone("middle", "end")),
        (
            "all",
            ("stem", "mid", "middle.0.weight"),  # a part of a name is not a name
            LIFT | TOKEN | in_backbone("middle", "end") - {"embedding.backbone.middle.0.weight"},
        ),
    ],
)
def test_weights_that_train(
    train: str, frozen: tuple[str, ...], expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.models.trainable.N_LAST", 2)  # of the three layers
    model = model_of(Own(), frozen=frozen)
    assert trained_names(model, train) == expected
    copied = trainable_copy(model, trained_names(model, train))
    assert {n for n, w in copied.weights().items() if w.requires_grad} == expected
    assert all(weight.requires_grad for weight in model.weights().values()), "it was changed"


def test_own_groups_decide_which_layers_are_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.models.trainable.N_LAST", 2)
    last = trained_names(model_of(Grouped(), "prototype"), "last")
    norm = {f"embedding.backbone.middle.1.{w}" for w in WEIGHTS}
    assert last == norm | in_backbone("end")


def test_what_a_user_has_frozen_is_named_by_its_largest_parts() -> None:
    backbone = Own()
    assert frozen_names(backbone) == ()
    backbone.stem.requires_grad_(False)
    backbone.token.requires_grad_(False)
    backbone.middle[1].weight.requires_grad_(False)
    assert frozen_names(backbone) == ("token", "stem", "middle.1.weight")
    model = model_of(backbone, frozen=frozen_names(backbone))
    still = {name for name, w in model.weights().items() if not w.requires_grad}
    assert set(model.weights()) - still == trained_names(model, "all")
    frozen = frozen_names(backbone.requires_grad_(False))
    assert frozen == ("token", "stem", "middle", "end")
    assert trained_names(replace(model, config=replace(model.config, frozen=frozen)), "all") == LIFT


@pytest.mark.parametrize(("batch_norm", "dropout"), [("batch", "off"), ("frozen", "on")])
def test_modules_that_do_not_train_are_in_eval_mode(
    batch_norm: BatchNormMode, dropout: DropoutMode
) -> None:
    still, free = block(256, 4), nn.Sequential(nn.Dropout(), block(4, 4))
    backbone = nn.Sequential(nn.Flatten(), still, nn.BatchNorm1d(4, affine=False), free, nn.ReLU())
    model = trainable_copy(model_of(backbone, frozen=("1",)))
    set_train_mode(model, Schedule(batch_norm=batch_norm, dropout=dropout))
    flatten, still, norm, free, relu = model.embedding.backbone
    assert not any(m.training for m in (flatten, *still.modules(), norm))
    assert model.head.training
    first_dropout, (linear, last_norm, last_dropout) = free
    assert all(m.training for m in (relu, free, linear))
    assert first_dropout.training == last_dropout.training == (dropout == "on")
    assert last_norm.training == (batch_norm == "batch")

    nothing = trainable_copy(model, ())
    set_train_mode(nothing, Schedule())
    assert not any(m.training for m in nothing.embedding.modules())
    everything = trainable_copy(model_of(backbone))
    set_train_mode(everything, Schedule())
    assert all(m.training for m in everything.embedding.modules())
