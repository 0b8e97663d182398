"""Triton kernels of training on a GPU, for what lies between the convolutions.

A training step of a small network is limited by memory: each kernel here reads and writes the
activations as few times as possible, so that a step needs neither many small kernels nor a
compiler. They give the results of the modules that they replace up to rounding, and the same bits
in every run. Triton is imported only once a GPU is there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kedge.data.augment import draw_augmentation
from kedge.utils import progress

MAX_NUMEL = 2**31  # offsets are computed in int32
N_THREADS = 5  # that build kernels at a time
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
    """Load CUDA's libraries, and build the kernels of ResNet-12 as far as Triton's cache does not
    have them, several at a time: the C compiler and the assembler are processes of their own."""
    if not torch.cuda.is_available():
        return
    with ThreadPoolExecutor(N_THREADS) as threads:
        parts = [threads.submit(_load_libraries)]
        if available():
            each = (_build_norm_act, _build_pool_act, _build_drop_block, _build_augment)
            parts += [threads.submit(part) for part in each]
    for part in parts:
        part.result()


def _load_libraries() -> None:
    """cuDNN, cuBLAS, and a part of PyTorch that an optimizer imports when it is built."""
    import torch._dynamo

    x = _example().requires_grad_()
    weight = torch.zeros(64, 64, 3, 3, dtype=x.dtype, device=x.device, requires_grad=True)
    F.conv2d(x, weight).flatten(1).matmul(x.new_ones(64 * 8 * 8, 1)).sum().backward()


def _build_norm_act() -> None:
    from kedge.kernels.norm_act import norm_act

    _backward(norm_act(_example(), nn.BatchNorm2d(64).cuda(), 0.0))


def _build_pool_act() -> None:
    """With constant statistics, since the kernels of others are those of `norm_act`."""
    from kedge.kernels.pool_act import pool_act

    x, (norm, norm_2) = _example(), (nn.BatchNorm2d(64).cuda().eval() for _ in range(2))
    kept = torch.ones(2, 5, 5, 64, dtype=torch.uint8, device=x.device)
    drop = (kept, torch.ones(1, dtype=torch.int32, device=x.device))
    pool_act(x, norm, 0.0, (x, norm_2))
    _backward(pool_act(x, norm, 0.0, (x, norm_2), drop))


def _build_drop_block() -> None:
    from kedge.kernels.drop_block import drop_block_mask

    drop_block_mask(torch.zeros(2, 1, 1, 64, device="cuda"), 0.0, 5, 5)


def _build_augment() -> None:
    from kedge.kernels.augment import fused_augment

    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8, device="cuda")
    drawn = draw_augmentation(np.random.default_rng(0), 1, 1, 16).of(0, 1).to(images.device)
    fused_augment(images, drawn)


def _backward(y: Tensor) -> None:
    """In the calling thread: otherwise one thread would build the kernels of all of them."""
    with torch.autograd.set_multithreading_enabled(False):
        y.sum().backward()


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
