"""The model that a first round starts from: a new network, a pretrained one, or the user's own."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from kedge.config import BackboneConfig, BackboneOptions, HeadConfig
from kedge.data.pools import Pool
from kedge.errors import require
from kedge.models.backbones import PRETRAINED
from kedge.models.embedding import CUSTOM, ModelConfig, WeightsOrigin
from kedge.models.model import Model, new_model
from kedge.models.pretrained import PretrainedNetwork, describe_module, load_pretrained
from kedge.models.timm_backbone import TIMM
from kedge.models.trainable import frozen_names
from kedge.utils.atomic_io import tensors_digest


def given_network(
    options: BackboneOptions, module: nn.Module | None = None, image_size: int | None = None
) -> PretrainedNetwork | None:
    """The network that the options name, or the caller's module; None for one of kedge's own that
    starts from scratch, or if no network is named."""
    network = load_pretrained(options, image_size) if module is None else describe_module(module)
    if network is None:
        return None
    require(
        options.width is None or isinstance(options, BackboneConfig),
        f"width is {options.width}: it is for conv4 and resnet12; leave it out.",
    )
    origin, frozen = network.origin, frozen_names(network.module)
    # Frozen weights, or a normalization to follow, show that a module is pretrained.
    if (origin is None or not origin.sha256) and (frozen or network.mean):
        name = type(network.module).__name__ if origin is None else origin.architecture
        digest = tensors_digest(network.module.state_dict())
        return network._replace(origin=WeightsOrigin(name, "", "", digest))
    return network


def start_model(
    backbone: BackboneConfig,
    head: HeadConfig,
    pool: Pool,
    seed: int,
    network: PretrainedNetwork | None = None,
) -> Model:
    """A model without classes for images like those of the pool. New weights depend on the seed
    only; a given network is copied."""
    table, module, statistics = pool.table, None, None
    config = ModelConfig(
        replace(backbone, weights=None),
        head,
        table.n_channels,
        table.image_size,
        resize=table.resize,
        inverted=table.inverted,
        interpolation=table.interpolation,
    )
    if network is not None:
        module = network.module
        statistics = (network.mean, network.std) if network.mean else None
        rebuilt = backbone.backbone == PRETRAINED or backbone.backbone.startswith(TIMM)
        config = replace(
            config,
            backbone=config.backbone if rebuilt else BackboneConfig(CUSTOM),
            pretrained=network.origin,
            frozen=frozen_names(module),
        )
    return new_model(config, pool, seed, module, statistics)
