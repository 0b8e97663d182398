"""Triton kernels equal the modules that they replace.

They run on a GPU if KEDGE_TEST_GPU is set, and otherwise in Triton's interpreter, in which
`test_interpreter.py` starts this file.
"""

from __future__ import annotations

import copy
import importlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kedge.data.augment import augment, draw_augmentation
from kedge.models import backbones, efficientnet
from kedge.models.backbones import Conv4, DropBlock, ResidualBlock
from kedge.models.efficientnet import ConvNorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and "TRITON_INTERPRET" not in os.environ,
    reason="there is no GPU; test_interpreter.py runs these tests without",
)
SHAPES = [(3, 6, 5, 7), (2, 16, 4, 4), (2, 160, 7, 5), (1, 64, 2, 3)]  # b c h w
SLOPE = 0.1


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    """The functions of `kedge.kernels`."""
    names = {
        "norm_act": "norm_act",
        "pool_act": "pool_act",
        "drop_block": "drop_block_mask",
        "augment": "fused_augment",
    }
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            _interpret_with_new_numpy(patch)
        modules = {name: importlib.import_module(f"kedge.kernels.{name}") for name in names}
        yield SimpleNamespace(**{f: getattr(modules[name], f) for name, f in names.items()})


def _interpret_with_new_numpy(patch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 makes integers of arrays of shape (1,), which NumPy 2.4 refuses."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture
def with_kernels(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks use the kernels, also without a GPU."""
    for module in (backbones, efficientnet):
        monkeypatch.setattr(module, "use_for", lambda x, *norms: True)


def activation(shape: Sequence[int], seed: int = 0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2 + 3
    return x.to(DEVICE, memory_format=torch.channels_last).requires_grad_()


def random_norm(channels: int, training: bool, seed: int = 0) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    rng = torch.Generator().manual_seed(seed)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        assert tensor is not None
        tensor.data.normal_(generator=rng)
    assert norm.running_var is not None
    norm.running_var.uniform_(0.5, 2, generator=rng)
    return norm.to(DEVICE).train(training)


def assert_equal(
    compute: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    norms: Sequence[nn.BatchNorm2d],
    rtol: float = 1e-5,
) -> None:
    """Compare the result, all gradients and the running statistics with a reference in float64."""
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    exact_norms = [copy.deepcopy(norm).double() for norm in norms]
    found = []
    for f, xs, ns in ((compute, inputs, norms), (reference, exact_inputs, exact_norms)):
        y = f(*xs, *ns)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
        weights = [w for norm in ns for w in norm.parameters()]
        gradients = torch.autograd.grad(y, [*xs, *weights], dy)
        found.append([y, *gradients, *(b for norm in ns for b in norm.buffers())])
    for got, expected in zip(*found, strict=True):
        scale = expected.double().abs().max().item()
        torch.testing.assert_close(got.double(), expected.double(), rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("slope", "upper"), [(SLOPE, math.inf), (0.0, 1.0), (1.0, math.inf)])
def test_norm_act(
    ops: Any, shape: tuple[int, ...], training: bool, slope: float, upper: float
) -> None:
    assert_equal(
        lambda x, n: ops.norm_act(x, n, slope, upper),
        lambda x, n: F.leaky_relu(n(x), slope).clamp(max=upper),
        [activation(shape)],
        [random_norm(shape[1], training)],
    )


def test_statistics_of_large_values_do_not_cancel(ops: Any) -> None:
    x = (activation((40, 6, 5, 7)) + 1e4).detach().requires_grad_()
    assert_equal(
        lambda x, n: ops.norm_act(x, n, SLOPE),
        lambda x, n: F.leaky_relu(n(x), SLOPE),
        [x],
        [random_norm(6, True)],
        rtol=1e-3,
    )


def mask_of(ops: Any, shape: Sequence[int], rate: float = 0.1) -> tuple[Tensor, Tensor]:
    """What a kernel makes of uniform numbers, and what `DropBlock` makes of the same."""
    b, c, h, w = shape
    block = min(5, h, w)
    drawn = torch.rand(
        b, h - block + 1, w - block + 1, c, generator=torch.Generator().manual_seed(2)
    )
    drawn = drawn.to(DEVICE)
    kept, n_kept = ops.drop_block_mask(drawn, rate, block, 5)
    centres = (drawn < rate).permute(0, 3, 1, 2)
    expected = ~backbones._dilate(backbones._dilate(centres, 2, block), 3, block)
    assert torch.equal(kept.permute(0, 3, 1, 2) != 0, expected)
    assert n_kept.item() == expected.sum().item()
    return kept, n_kept


@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 16, 21, 33), (2, 70, 13, 5)])
@pytest.mark.parametrize("rate", [0.02, 1.0])
def test_drop_block_mask(ops: Any, shape: tuple[int, ...], rate: float) -> None:
    mask_of(ops, shape, rate)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("has_shortcut", "drops"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_pool_act(
    ops: Any, shape: tuple[int, ...], training: bool, has_shortcut: bool, drops: bool
) -> None:
    b, c, h, w = shape
    drop = mask_of(ops, (b, c, h // 2, w // 2)) if drops else None
    n_inputs = 2 if has_shortcut else 1

    def compute(*given: Any) -> Tensor:
        (x, *others), (norm, *norms) = given[:n_inputs], given[n_inputs:]
        shortcut = (others[0], norms[0]) if has_shortcut else None
        result: Tensor = ops.pool_act(x, norm, SLOPE, shortcut, drop)
        return result

    def reference(*given: Any) -> Tensor:
        z = sum(norm(x) for x, norm in zip(given[:n_inputs], given[n_inputs:], strict=True))
        y = F.leaky_relu(F.max_pool2d(z, 2), SLOPE)
        if drop is None:
            return y
        kept = drop[0].permute(0, 3, 1, 2) != 0
        return y * kept * (kept.numel() / kept.sum().clamp(min=1))

    assert_equal(
        compute,
        reference,
        [activation(shape, seed) for seed in range(n_inputs)],
        [random_norm(c, training, seed) for seed in range(n_inputs)],
    )


def test_of_equal_maxima_the_first_has_the_gradient(ops: Any) -> None:
    x = torch.randint(0, 2, (4, 16, 6, 6), generator=torch.Generator().manual_seed(0)).float()
    assert_equal(
        lambda x, n: ops.pool_act(x, n, SLOPE),
        lambda x, n: F.leaky_relu(F.max_pool2d(n(x), 2), SLOPE),
        [x.to(DEVICE, memory_format=torch.channels_last).requires_grad_()],
        [random_norm(16, True)],
    )


def test_a_value_that_is_not_finite_reaches_the_result(ops: Any) -> None:
    x = activation((2, 16, 4, 4)).detach()
    x[0, 3, 1, 1] = torch.nan
    y = ops.pool_act(x, random_norm(16, False), SLOPE)
    assert y[0, 3, 0, 0].isnan()
    assert y.isnan().sum() == 1
    assert ops.norm_act(x, random_norm(16, True), SLOPE, 6.0)[:, 3].isnan().all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ResidualBlock(8, 16),
        lambda: Conv4(8, 16),
        lambda: nn.Sequential(
            ConvNorm(8, 16), ConvNorm(16, 16, 3, 2, 16), ConvNorm(16, 8, relu=False)
        ),
    ],
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("frozen_norms", [True, False])
@pytest.mark.usefixtures("with_kernels")
def test_networks_are_the_same_with_kernels(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[], nn.Module],
    training: bool,
    frozen_norms: bool,
) -> None:
    """Also their draws of blocks to drop, gradients and statistics."""
    torch.manual_seed(0)
    network = build().to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.train(training)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and frozen_norms:
            module.eval()
    plain = copy.deepcopy(network)
    images = torch.randn(3, 8, 22, 18).to(DEVICE)
    results = []
    for each in (network, plain):
        torch.manual_seed(1)
        y = each(images)
        (y - 1).square().sum().backward()  # no gradient is 0
        results.append([y, *(w.grad for w in each.parameters()), *each.buffers()])
        for module in (backbones, efficientnet):
            monkeypatch.setattr(module, "use_for", lambda x, *norms: False)
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(
            got, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item()
        )


@pytest.mark.usefixtures("with_kernels")
def test_without_training_nothing_is_dropped_or_changed() -> None:
    block = ResidualBlock(8, 16).to(DEVICE).eval()
    before = copy.deepcopy(block.state_dict())
    with torch.no_grad():
        y = block(torch.randn(2, 8, 9, 9).to(DEVICE))
    assert not y.requires_grad
    assert all(torch.equal(before[key], value) for key, value in block.state_dict().items())
    assert DropBlock().eval().mask((2, 16, 4, 4), torch.device(DEVICE)) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_augmentation(ops: Any, channels: int) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (6, channels, 37, 37), dtype=np.uint8))
    drawn = draw_augmentation(rng, 1, 6, 37).of(0, 6).to(torch.device(DEVICE))
    got, expected = ops.fused_augment(images.to(DEVICE), drawn), augment(images.to(DEVICE), drawn)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert got.stride() == expected.stride()
