"""An untrained model: its normalization and its initial weights."""

import torch

from kedge.config import BackboneConfig, HeadConfig
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.embedding import ModelConfig
from kedge.models.model import new_model


def test_new_model_is_normalized_by_its_pool_and_drawn_from_its_seed() -> None:
    """The table has other images too, and of thousands a sample from all classes is used."""
    levels = torch.arange(0, 250, 10, dtype=torch.uint8).repeat_interleave(200)
    pixels = torch.stack([levels, 255 - levels, levels // 2], 1)[:, :, None, None]
    names = [f"{i:02}" for i in range(25)]
    table = ImageTable.build(pixels.expand(-1, -1, 16, 16), levels.long() // 10, names)
    pool = Pool.all("some", table, names[5:])
    config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 3, 16)
    first, again, other = (new_model(config, pool, seed) for seed in (3, 3, 4))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    seen = pixels[1000:].double().flatten(1) / 255
    embedding = first.embedding
    for got, expected in ((embedding.mean, seen.mean(0)), (embedding.std, seen.std(0))):
        torch.testing.assert_close(got.flatten().double(), expected, rtol=0, atol=2e-3)
    embedding.backbone = torch.nn.Flatten()
    normalized = embedding(table.images[1000:].float() / 255)
    assert abs(normalized.mean().item()) < 1e-2
