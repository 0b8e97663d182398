"""timm for tests, where the build of torchvision may not be that of torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None,
    reason="timm or torchvision is not installed",
)
_library = None


def define_torchvision_ops() -> None:
    """Define the operators without which torchvision cannot be imported beside a CPU torch."""
    global _library
    if _library is None and not hasattr(torch.ops.torchvision, "nms"):
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def save_random_weights(name: str, file: Path) -> None:
    """A file of random weights of a network of timm, classifier included."""
    define_torchvision_ops()
    import timm

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = timm.create_model(name, pretrained=False)
    state = {key: value.contiguous() for key, value in network.state_dict().items()}
    if file.suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(state, file)
