"""Weights of convolutions in bf16, all cast at once instead of each when autocast meets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call


def with_bf16_weights(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network, for use under autocast, in which only convolutions have weights of four
    dimensions: the same results and gradients. Weights that do not train are cast once, here."""
    weights = {name: w for name, w in network.named_parameters() if w.ndim == 4}
    trained = {name: w for name, w in weights.items() if w.requires_grad}
    frozen = {name: w.detach() for name, w in weights.items() if name not in trained}
    constant = dict(zip(frozen, _cast([*frozen.values()], torch.bfloat16), strict=True))

    def compute(pixels: Tensor) -> Tensor:
        copies = _Bf16.apply(*trained.values()) if trained else ()
        replaced = {**constant, **dict(zip(trained, copies, strict=True))}
        result: Tensor = functional_call(network, replaced, (pixels,))
        return result

    return compute


class _Bf16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(_cast(weights, torch.bfloat16))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(_cast(gradients, torch.float32))


def _cast(tensors: list[Tensor] | tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    """Copies in the same memory layouts; on a GPU by one kernel for many tensors."""
    copies = [torch.empty_like(each, dtype=dtype) for each in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
