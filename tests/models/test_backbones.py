"""Networks from images to features."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kedge.config import BackboneConfig
from kedge.errors import KedgeError
from kedge.models.backbones import BACKBONES, Conv4, DropBlock, ResNet12, build_backbone


def images(n: int, channels: int, size: int) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(0))


def with_statistics(network: nn.Module) -> nn.Module:
    """In eval mode, with random BatchNorm statistics, so that the order of layers matters."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()  # type: ignore[union-attr, operator]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return network.eval()


@pytest.mark.parametrize(
    ("name", "parameters", "features"),
    [("resnet12", 7_996_800, 512), ("resnet12-wide", 12_424_320, 640)],
)
def test_resnet12_has_the_papers_number_of_parameters(
    name: str, parameters: int, features: int
) -> None:
    network = build_backbone(BackboneConfig(name), 3, 84).eval()
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(images(1, 3, 32)).shape == (1, features)


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_image_size_from_16_px_gives_features(name: str) -> None:
    for size in (16, 31, 84):
        network = build_backbone(BackboneConfig(name, 2), 1, size)
        for training in (True, False):
            features = network.train(training)(images(3, 1, size))
            assert features.shape == (3, network.n_features(size)), size
            assert features.isfinite().all(), size


def test_below_16_px_is_refused_and_so_is_an_unknown_name() -> None:
    for name in BACKBONES:
        with pytest.raises(KedgeError, match="15 px"):
            build_backbone(BackboneConfig(name, 2), 1, 15)
    with pytest.raises(KedgeError, match="vgg"):
        build_backbone(BackboneConfig("vgg"), 3, 84)


def test_conv4_equals_the_reference() -> None:
    network = with_statistics(Conv4(3, 5))
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(convolutions) == len(norms) == 4
    x = images(2, 3, 35)
    expected = x
    for convolution, norm in zip(convolutions, norms, strict=True):
        expected = F.conv2d(expected, convolution.weight, padding=1)
        expected = F.max_pool2d(F.relu(norm(expected)), 2)
    torch.testing.assert_close(network(x), expected.flatten(1), rtol=1e-4, atol=1e-5)


def test_resnet12_blocks_equal_the_reference() -> None:
    network = with_statistics(ResNet12(3, (4, 5, 6, 7)))
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(convolutions) == len(norms) == 16
    assert [c.kernel_size for c in convolutions] == [(3, 3), (3, 3), (3, 3), (1, 1)] * 4
    x = images(2, 3, 35)
    out = x
    for block in range(4):
        layers = list(zip(convolutions, norms, strict=True))[4 * block : 4 * block + 4]
        branch = out
        for i, (convolution, norm) in enumerate(layers[:3]):
            branch = norm(F.conv2d(branch, convolution.weight, padding=1))
            branch = F.leaky_relu(branch, 0.1) if i < 2 else branch
        shortcut = layers[3][1](F.conv2d(out, layers[3][0].weight))
        out = F.max_pool2d(F.leaky_relu(branch + shortcut, 0.1), 2)
    torch.testing.assert_close(network(x), out.mean((2, 3)), rtol=1e-3, atol=1e-4)


# ── DropBlock ────────────────────────────────────────────────────────────────────────────────


def drop(x: Tensor, seed: int = 0, **options: float) -> Tensor:
    torch.manual_seed(seed)
    return DropBlock(**options).train()(x)


def test_dropblock_does_nothing_in_eval_mode_or_when_all_is_kept() -> None:
    x = images(4, 3, 10)
    assert torch.equal(DropBlock().eval()(x), x)
    assert torch.equal(drop(x, keep=1.0), x)


@pytest.mark.parametrize("side", [1, 4, 10, 42])
def test_dropblock_drops_a_tenth_and_keeps_the_mean(side: int) -> None:
    n = max(8, 200 // side)
    dropped = drop(torch.ones(n, 64, side, side))
    share = (dropped == 0).float().mean().item()
    assert 0.085 < share < 0.115, "blocks may overlap, so a little less than a tenth is right"
    assert dropped.mean().item() == pytest.approx(1, abs=1e-4)
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - share)), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("h", "w", "block"), [(9, 14, 5), (7, 2, 2)])
def test_dropblock_drops_whole_blocks_within_the_map(h: int, w: int, block: int) -> None:
    """Every dropped entry lies in a dropped square, and single squares occur."""
    gone = (drop(torch.ones(6, 16, h, w), block=block) == 0).flatten(0, 1)
    assert gone.any()
    for channel in gone:
        explained = torch.zeros(h, w, dtype=torch.bool)
        for y in range(h - block + 1):
            for x in range(w - block + 1):
                if channel[y : y + block, x : x + block].all():
                    explained[y : y + block, x : x + block] = True
        assert torch.equal(explained, channel)
    assert block**2 in gone.sum((1, 2)).tolist()


def test_dropblock_is_finite_even_where_nothing_is_left() -> None:
    results = torch.cat([drop(torch.ones(1, 1, 1, 1), seed) for seed in range(50)])
    assert set(results.flatten().tolist()) == {0.0, 1.0}
