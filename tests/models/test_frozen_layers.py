"""Frozen layers: their outputs in place of images give the same features and never change."""

from dataclasses import replace

import pytest
import torch

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.data.pools import Pool, RoundData
from kedge.data.table import ImageTable
from kedge.methods.registry import parse_method
from kedge.models.frozen_layers import N_VIEWS, FrozenLayers
from kedge.models.model import Model
from kedge.models.start import given_network, start_model
from kedge.models.trainable import trained_names
from kedge.training.round import train_round

SIZE, N = 32, 6


@pytest.fixture(scope="module")
def table() -> ImageTable:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6 * N, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    return ImageTable.build(images, [i // N for i in range(6 * N)], list("abcdef"))


@pytest.fixture(scope="module")
def lite0(table: ImageTable) -> Model:
    """With the ImageNet weights: in a deep random network all features are nearly equal."""
    backbone, pool = BackboneConfig("efficientnet-lite0"), Pool.all("all", table)
    return start_model(backbone, HeadConfig("unit", 1 / 16), pool, 0, given_network(backbone))


def layers_of(model: Model, train: str) -> FrozenLayers | None:
    return FrozenLayers.of(model, trained_names(model, train))


@pytest.mark.parametrize("train", ["last", "head"])
def test_features_of_maps_are_those_of_the_images(
    table: ImageTable, lite0: Model, train: str
) -> None:
    layers = layers_of(lite0, train)
    assert layers is not None
    rows = torch.arange(len(table))
    mapped = layers.map_table(table, rows[:3], N_VIEWS, seed=0)
    assert mapped.images.dtype == torch.float16
    short = layers.shorten(lite0)
    expected = lite0.embed_rows(table, rows)
    torch.testing.assert_close(short.embed_rows(mapped, rows), expected, rtol=0.01, atol=1e-3)
    differs = [not torch.equal(each[0], each[1]) for each in mapped.images]
    assert differs == [True] * 3 + [False] * (len(table) - 3)


def test_large_values_stay_finite_wherever_they_come(
    table: ImageTable, lite0: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, batches = layers_of(lite0, "last"), [1.0, 2.0, 1e5]
    assert layers is not None
    monkeypatch.setattr(layers, "maps", lambda x: x.new_full((len(x), 2, 1, 1), batches.pop(0)))
    monkeypatch.setattr(Model, "embed_batch_size", len(table) // 3)
    mapped = layers.map_table(table, torch.arange(0), N_VIEWS, seed=0)
    assert not batches
    assert mapped.images.unique().tolist() == [1.0, 2.0, 1e5]


def test_nothing_is_computed_in_advance_if_every_layer_trains(lite0: Model) -> None:
    assert layers_of(lite0, "all") is None


@pytest.mark.parametrize("method", ["FT", "IDA lambda=auto anchors=all", "DFA"])
def test_a_round_of_the_last_layers_leaves_the_bits_of_all_others(
    table: ImageTable, lite0: Model, method: str
) -> None:
    shape, schedule = EpisodeShape(3, 2, 2), Schedule(1, 2, 2, train="last", ema=0.9)
    config = TrainConfig(shape, replace(schedule, annealing="cosine", batch_norm="frozen"))
    first, second = (Pool.all("new", table, names) for names in ("abc", "def"))
    base = train_round(lite0, RoundData(0, first, first), parse_method("FT"), config).model
    model = train_round(base, RoundData(1, second, second), parse_method(method), config).model
    assert model.classes == tuple("abcdef")
    trained = trained_names(base, "last")
    after = model.state_dict()
    changed = {k for k, before in base.state_dict().items() if not torch.equal(before, after[k])}
    assert changed <= trained
    assert len(changed) > len(trained) / 2
