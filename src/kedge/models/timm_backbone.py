"""Networks of timm (Wightman, PyTorch Image Models) without their classifiers.

timm is imported when such a network is asked for and not before. Nothing is ever fetched: a name
must be in timm's own registry, and weights come from the user's file or from a model file.
"""

from __future__ import annotations

import re
import sys
import textwrap
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kedge.data.decode import Interpolation
from kedge.errors import KedgeError, require
from kedge.utils.text import pip_install

TIMM = "timm:"  # precedes the name of the network
NAME = re.compile(
    r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?"
)  # and a tag: vit_tiny_patch16_224.augreg_in21k


class TimmPreprocessing(NamedTuple):
    """What a network of timm expects of its images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int
    interpolation: Interpolation


class TimmBackbone(nn.Module):
    """A network of timm from images to its pooled features, with random weights."""

    def __init__(self, name: str, in_channels: int, image_size: int | None = None) -> None:
        """`name` is timm's, without the prefix; the default size is that of the pretraining."""
        super().__init__()
        require(
            in_channels == 3, f"{TIMM}{name} takes images in colour, not {in_channels} channel."
        )
        timm = import_timm()
        known = NAME.fullmatch(name) is not None and timm.is_model(name)
        require(known, f"--backbone {TIMM}{name[:80]}: timm has no network of this name.")
        try:
            config = timm.get_pretrained_cfg(name)
            # Networks with an embedding of positions are built for one size of images.
            fixed = image_size is not None and bool(getattr(config, "fixed_input_size", False))
            size = {"img_size": image_size} if fixed else {}
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                self.network = timm.create_model(name, pretrained=False, num_classes=0, **size)
        except Exception as error:  # of any of a thousand constructors
            raise KedgeError(
                f"--backbone {TIMM}{name}: timm cannot build this network for images of "
                f"{image_size} px ({_reason(error)})."
            ) from None

    def n_features(self, image_size: int) -> int:
        """The same for every image size."""
        return int(getattr(self.network, "head_hidden_size", self.network.num_features))

    def layer_groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the weights, layer by layer from input to output, as timm groups them."""
        from timm.models import group_parameters

        groups = group_parameters(self.network, self.network.group_matcher(coarse=False))
        return tuple(tuple(f"network.{name}" for name in groups[i]) for i in sorted(groups))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.network(images)

    def preprocessing(self) -> TimmPreprocessing:
        """Statistics, size and interpolation that the pretraining used."""
        from timm.data import resolve_model_data_config

        config: dict[str, Any] = resolve_model_data_config(self.network)
        interpolation = config["interpolation"]
        return TimmPreprocessing(
            tuple(config["mean"]),
            tuple(config["std"]),
            int(config["input_size"][-1]),
            interpolation if interpolation in get_args(Interpolation) else "bicubic",
        )

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of a file for `network`: under timm's names, with positions resampled to the
        size of its images, without the classifier."""
        # A family that has published weights in other forms has this function in its module.
        module = sys.modules[type(self.network).__module__]
        filter_fn = getattr(module, "checkpoint_filter_fn", None)
        converted = dict(state)
        if callable(filter_fn):
            try:
                with warnings.catch_warnings(action="ignore"):
                    converted = dict(filter_fn(converted, self.network))
            except Exception as error:  # a file of another network
                raise KedgeError(f"timm cannot convert these weights ({_reason(error)})") from None
        classifier = self.network.pretrained_cfg.get("classifier") or ()
        prefixes = [classifier] if isinstance(classifier, str) else list(classifier)
        outside = tuple(f"{prefix.split('.')[0]}." for prefix in prefixes)  # "head." of "head.fc"
        own = self.network.state_dict()
        return {k: v for k, v in converted.items() if k in own or not k.startswith(outside)}


def import_timm() -> ModuleType:
    """timm, or an error that says how to get it."""
    try:
        import timm
    except ImportError as error:
        absent = error.name == "timm"
        why = "is not installed" if absent else f"cannot be imported ({_reason(error)})"
        raise KedgeError(f"timm {why}: {pip_install('timm')}.") from None
    except Exception as error:  # a torchvision of another build than torch raises RuntimeError
        raise KedgeError(
            f"timm cannot be imported ({_reason(error)}); install torch and torchvision of the "
            "same release and build."
        ) from None
    return timm


def _reason(error: Exception) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, 200).rstrip(".")
