"""What a model file says about a model in JSON: its configuration and its lineage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from kedge.config import BackboneConfig, HeadConfig
from kedge.data.decode import ResizeMode
from kedge.errors import require

CUSTOM = "custom"  # the name of a backbone that is the caller's own module


@dataclass(frozen=True)
class ModelConfig:
    """What is needed to rebuild the network before its weights are loaded."""

    backbone: BackboneConfig
    head: HeadConfig
    n_channels: int
    image_size: int
    n_features: int = 0  # known once the network has been built
    resize: ResizeMode = field(default="crop", metadata={"saved_as": "fit"})
    inverted: bool = False  # whether dark and bright are exchanged in the images

    def __post_init__(self) -> None:
        require(self.n_channels in (1, 3), f"Images have {self.n_channels} channels, not 1 or 3.")
        require(
            16 <= self.image_size <= 4096,
            f"Images of {self.image_size} px: they must have 16 to 4096.",
        )
        require(
            self.resize in get_args(ResizeMode) and isinstance(self.inverted, bool),
            f"Images that are made square by '{self.resize}', inverted '{self.inverted}'.",
        )


@dataclass(frozen=True)
class LineageEntry:
    """One round in the training history of a model."""

    round: int
    method: str
    classes: tuple[str, ...]
    images: int
    source: str
    config: dict[str, Any]
    best_epoch: int
    val_accuracy: float
