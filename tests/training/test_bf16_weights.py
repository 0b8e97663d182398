"""Casting all weights at once gives the bits that autocast gives."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kedge.models.backbones import Conv4, ResidualBlock
from kedge.training.bf16_weights import with_bf16_weights


@pytest.mark.parametrize("n_frozen", [0, 1, 100])
@pytest.mark.parametrize("build", [lambda: Conv4(3, 8), lambda: ResidualBlock(8, 16)])
def test_results_gradients_and_statistics_are_those_of_autocast(
    build: Callable[[], nn.Module], n_frozen: int
) -> None:
    torch.manual_seed(0)
    network = build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for weight in list(network.parameters())[:n_frozen]:
        weight.requires_grad_(False)
    plain, found = copy.deepcopy(network), []
    pixels = torch.randn(4, _channels(network), 16, 16)
    for compute, of in ((with_bf16_weights(network), network), (plain, plain)):
        for _ in range(2):  # gradients add up
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16):
                y = compute(pixels)
            if y.requires_grad:
                y.float().square().sum().backward()
        found.append([y, *(w.grad for w in of.parameters()), *of.buffers()])
    for got, expected in zip(*found, strict=True):
        if expected is None:
            assert got is None
        else:
            assert got.dtype == expected.dtype
            assert got.stride() == expected.stride()
            assert torch.equal(got, expected)


def test_weights_that_train_are_cast_in_every_call() -> None:
    network = nn.Conv2d(1, 1, 1, bias=False)
    compute, pixels = with_bf16_weights(network), torch.ones(1, 1, 1, 1)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for value in (1.0, 2.0):
            network.weight.fill_(value)
            assert compute(pixels).item() == value


def _channels(network: nn.Module) -> int:
    return next(part for part in network.modules() if isinstance(part, nn.Conv2d)).in_channels
