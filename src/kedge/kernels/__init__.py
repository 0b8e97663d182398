"""Triton kernels of training on a GPU, for what lies between the convolutions.

A training step of a small network is limited by memory: each kernel here reads and writes the
activations as few times as possible, so that a step needs neither many small kernels nor a
compiler. They give the results of the modules that they replace up to rounding, and the same bits
in every run. Triton is imported only once a GPU is there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from kedge.data.augment import draw_augmentation
from kedge.utils import progress

MAX_NUMEL = 2**31  # offsets are computed in int32
_enabled = True


@contextmanager
def enabled(value: bool) -> Iterator[None]:
    """Whether networks use the kernels, if these are available: by default they do."""
    global _enabled
    before, _enabled = _enabled, value
    try:
        yield
    finally:
        _enabled = before


@functools.cache
def available() -> bool:
    """Whether there is a GPU that the kernels can be built for; notes once why not."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    try:
        from kedge.kernels.norm_act import norm_act

        norm_act(_example(), nn.BatchNorm2d(64).cuda().eval(), 0.0)
    except ImportError:
        progress.note("triton is not installed: training steps are slower")
        return False
    except Exception as error:  # no C compiler, a GPU that is too old, …
        reason = f"{type(error).__name__}: {progress.printable(str(error), one_line=True)[:200]}"
        progress.note(f"Triton kernels cannot be built, training steps are slower: {reason}")
        return False
    return True


def build() -> None:
    """Build the kernels of ResNet-12, as far as Triton's cache does not have them."""
    if not available():
        return
    from kedge.kernels.augment import fused_augment
    from kedge.kernels.drop_block import drop_block_mask
    from kedge.kernels.norm_act import norm_act
    from kedge.kernels.pool_act import pool_act

    x, (norm, norm_2) = _example(), (nn.BatchNorm2d(64).cuda() for _ in range(2))
    drop = drop_block_mask(torch.zeros(2, 1, 1, 64, device="cuda"), 0.0, 5, 5)
    y = pool_act(norm_act(x, norm, 0.0), norm, 0.0, (x, norm_2), drop)
    y.sum().backward()
    pool_act(x, norm.eval(), 0.0, (x, norm_2.eval()))
    drawn = draw_augmentation(np.random.default_rng(0), 1, 1, 16).of(0, 1).to(x.device)
    fused_augment(torch.zeros(1, 3, 16, 16, dtype=torch.uint8, device="cuda"), drawn)


def _example() -> Tensor:
    half = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype = torch.bfloat16 if half else torch.float32
    return torch.zeros(2, 64, 10, 10, dtype=dtype, device="cuda")


def use_for(x: Tensor, *norms: nn.BatchNorm2d) -> bool:
    """Whether kernels compute a block with this input and these norms."""
    return (
        x.is_cuda
        and not torch.compiler.is_compiling()
        and _enabled
        and x.numel() // x.shape[1] * norms[0].num_features < MAX_NUMEL
        and len({norm.training for norm in norms}) == 1
        and available()
    )
