"""How much arithmetic a network needs, and how fast this device could do it at best."""

from __future__ import annotations

import copy
import time

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SIDES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}  # of the matrices


def flops_per_image(embedding: nn.Module, n_channels: int, image_size: int) -> tuple[int, int]:
    """Of a forward pass, and of a forward and a backward pass. A product and a sum are two."""
    network = copy.deepcopy(embedding).to("meta").train().requires_grad_(True)  # computes nothing
    n = 2  # one image alone might have no variance
    images = torch.empty(n, n_channels, image_size, image_size, device="meta")
    with FlopCounterMode(display=False) as forward:
        features = network(images)
    with FlopCounterMode(display=False) as backward:
        features.sum().backward()
    once = forward.get_total_flops() // n
    return once, once + backward.get_total_flops() // n


def best_matrix_product(device: torch.device, bf16: bool, seconds: float) -> dict[str, float | str]:
    """The highest rate of a square matrix product in the precision of the convolutions."""
    kind = torch.bfloat16 if bf16 else torch.float32
    rates = {}
    for side in SIDES[device.type]:
        a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
        best, began = float("inf"), time.perf_counter()
        for i in range(1000):
            synchronize(device)
            before = time.perf_counter()
            a @ b
            synchronize(device)
            now = time.perf_counter()
            best = min(best, now - before) if i else best  # the first may set something up
            if i and now - began > seconds / len(SIDES[device.type]):
                break
        rates[side] = 2 * side**3 / best / 1e12
    side = max(rates, key=lambda side: rates[side])
    return {"tflops": rates[side], "side": side, "precision": "bf16" if bf16 else "fp32"}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
