"""The operations that a network needs, and the highest rate at which this device can do them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kedge.training.speed import synchronized_time

MATRIX_SIDES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}


def flops_per_image(embedding: nn.Module, n_channels: int, image_size: int) -> tuple[int, int]:
    """Operations of a forward pass, and of a forward and a backward pass.

    A multiplication and an addition count as two.
    """
    network = copy.deepcopy(embedding).to("meta").train().requires_grad_(True)  # computes nothing
    n = 2  # BatchNorm needs a variance
    images = torch.empty(n, n_channels, image_size, image_size, device="meta")
    with FlopCounterMode(display=False) as forward:
        features = network(images)
    with FlopCounterMode(display=False) as backward:
        features.sum().backward()
    forward_flops = forward.get_total_flops() // n
    return forward_flops, forward_flops + backward.get_total_flops() // n


def peak_matmul_rate(device: torch.device, bf16: bool, seconds: float) -> dict[str, float | str]:
    """The highest rate of a square matrix product in the precision of the convolutions."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    rates = {}
    for side in MATRIX_SIDES[device.type]:
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        best, began = float("inf"), synchronized_time(device)
        for i in range(1000):
            before = synchronized_time(device)
            a @ b
            now = synchronized_time(device)
            best = min(best, now - before) if i else best  # the first may include set-up
            if i and now - began > seconds / len(MATRIX_SIDES[device.type]):
                break
        rates[side] = 2 * side**3 / best / 1e12
    side = max(rates, key=lambda side: rates[side])
    return {"tflops": rates[side], "side": side, "precision": "bf16" if bf16 else "fp32"}
