"""Triton kernels of training on a GPU, for what lies between the convolutions.

A training step of a small network is limited by memory: each kernel here reads and writes the
activations as few times as possible, so that a step needs neither many small kernels nor a
compiler. They give the results of the modules that they replace up to rounding, and the same bits
in every run. Hooks on the modules that they replace do not run; `with enabled(False)` they do.
Triton is imported only once a GPU is there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kedge.data.augment import draw_augmentation
from kedge.utils import progress

MAX_NUMEL = 2**31  # offsets are computed in int32
_enabled = ContextVar("_enabled", default=True)
_one_at_a_time = threading.Lock()  # a thread may build kernels while another asks for them


@contextmanager
def enabled(value: bool) -> Iterator[None]:
    """Let networks use the kernels, or not, within a `with`. By default they do if they can."""
    token = _enabled.set(value)
    try:
        yield
    finally:
        _enabled.reset(token)


def available() -> bool:
    """Whether there is a GPU that the kernels can be built for; notes once why not."""
    with _one_at_a_time:
        return _can_be_built()


@functools.cache
def _can_be_built() -> bool:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    try:
        with torch.inference_mode(False), torch.enable_grad():  # what asks may be an evaluation
            _build_norm_act()
            _build_pool_act()
    except ImportError:
        progress.note("triton is not installed: PyTorch's own kernels are used, which are slower")
        return False
    except Exception as error:  # no C compiler, a GPU that is too old, …
        reason = f"{type(error).__name__}: {progress.printable(str(error), one_line=True)[:200]}"
        progress.note(f"Triton's kernels cannot be built, PyTorch's slower ones are used: {reason}")
        return False
    return True


def build() -> None:
    """Load CUDA's libraries, and build the kernels of ResNet-12 as far as Triton's cache does not
    have them."""
    if torch.cuda.is_available():
        _load_libraries()
        if available():
            _build_drop_block()
            _build_augment()


def _load_libraries() -> None:
    """cuDNN, cuBLAS, and a part of PyTorch that an optimizer imports when it is built."""
    import torch._dynamo

    x = _example().requires_grad_()
    weight = torch.zeros(64, 64, 3, 3, dtype=x.dtype, device=x.device, requires_grad=True)
    F.conv2d(x, weight).flatten(1).matmul(x.new_ones(64 * 8 * 8, 1)).sum().backward()


def _build_norm_act() -> None:
    from kedge.kernels.norm_act import norm_act

    norm_act(_example(), nn.BatchNorm2d(64).cuda(), 0.0).sum().backward()


def _build_pool_act() -> None:
    """With constant statistics: others need only kernels that `_build_norm_act` builds."""
    from kedge.kernels.pool_act import pool_act

    x, (norm, norm_2) = _example(), (nn.BatchNorm2d(64).cuda().eval() for _ in range(2))
    kept = torch.ones(2, 5, 5, 64, dtype=torch.uint8, device=x.device)
    drop = (kept, torch.ones(1, dtype=torch.int32, device=x.device))
    pool_act(x, norm, 0.0, (x, norm_2))
    pool_act(x, norm, 0.0, (x, norm_2), drop).sum().backward()


def _build_drop_block() -> None:
    from kedge.kernels.drop_block import drop_block_mask

    drop_block_mask(torch.zeros(2, 1, 1, 64, device="cuda"), 0.0, 5, 5)


def _build_augment() -> None:
    from kedge.kernels.augment import fused_augment

    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8, device="cuda")
    drawn = draw_augmentation(np.random.default_rng(0), 1, 1, 16).of(0, 1).to(images.device)
    fused_augment(images, drawn)


def _example() -> Tensor:
    half = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype = torch.bfloat16 if half else torch.float32
    return torch.zeros(2, 64, 10, 10, dtype=dtype, device="cuda")


def use_for(x: Tensor, *norms: nn.BatchNorm2d) -> bool:
    """Whether kernels compute a block with this input and these norms."""
    return (
        x.is_cuda
        and x.device.index == torch.cuda.current_device()  # where Triton starts kernels
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and not torch.compiler.is_compiling()
        and _enabled.get()
        and all(n.affine and n.track_running_stats and n.momentum is not None for n in norms)
        and len({norm.training for norm in norms}) == 1
        and x.numel() // x.shape[1] * norms[0].num_features < MAX_NUMEL
        and available()
    )
