"""The model as one safetensors file, written atomically. It holds no image, and loading it runs no
code.

    embedding.*   float32   the backbone's weights, and the mean and std of the training images
    head.*                  the head's own parameters, if it has any
    anchors       C × r     one row per class that was ever learned, in the order of `classes`
    places        C × d     where the means of these classes are by now, if the anchors are not that
    metadata["kedge"]       JSON: sha256 of the file, version, format, config, classes, lineage

docs/model-file.md says all of it, for those who read it without kedge.
"""

from __future__ import annotations

import copy
import hashlib
import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kedge.config import (
    TrainConfig,
    from_dict,
    to_dict,
)
from kedge.errors import KedgeError
from kedge.models.backbones import build_backbone
from kedge.models.heads import build_head
from kedge.models.model import (
    CUSTOM,
    Embedding,
    LineageEntry,
    Model,
    ModelConfig,
)
from kedge.utils.atomic_io import (
    digest,
    load_tensors,
    save_tensors,
    under,
)

FORMAT = "kedge-model"
FIRST_FORMAT = "kedge-model-1"  # before all of kedge's files had a version and a checksum
PARTS = {"format", "config", "classes", "lineage"}  # of what a file says
# What may come of a file whose checksum is right but whose content is not.
FORGED = (KedgeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)


def save(model: Model, path: Path) -> None:
    about = {
        "format": FORMAT,
        "config": to_dict(model.config),
        "classes": model.classes,
        "lineage": [asdict(entry) for entry in model.lineage],
    }
    save_tensors(path, model.tensors(), about)


def load(path: Path, backbone: nn.Module | None) -> Model:
    """A model, or one sentence. A backbone of one's own has to be handed in."""
    about, mapped = load_tensors(path, "kedge model")
    if about.get("format") not in (FORMAT, FIRST_FORMAT):
        raise KedgeError(f"{path}: not a kedge model; 'kedge train' makes one.")
    if about["format"] == FIRST_FORMAT:
        checksum = about.pop("sha256", None)
        if checksum != _first_checksum(about, mapped):
            raise KedgeError(f"{path}: the checksum does not match; the file is damaged.")
    tensors = {key: value.clone() for key, value in mapped.items()}
    try:
        return _rebuild(about, tensors, backbone)
    except FORGED as error:
        reason = textwrap.shorten(str(error.args[0] if error.args else error), 300)
        raise KedgeError(f"{path}: this model cannot be rebuilt ({reason.rstrip('.')}).") from None


def _rebuild(
    about: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None
) -> Model:
    if set(about) != PARTS:
        raise ValueError(f"its text must hold {', '.join(sorted(PARTS))} and nothing else")
    if "anchors" not in tensors:
        raise ValueError("it holds no anchors")
    config = from_dict(ModelConfig, about["config"])
    if config.backbone.backbone == CUSTOM and backbone is None:
        raise KeyError("it has a backbone of your own; hand it to Model.load(path, backbone=…)")
    own = copy.deepcopy(backbone)  # it stays what it is, and can be handed in for another file
    # On the meta device nothing is allocated, so a forged size costs an error and no memory.
    with torch.device("meta"):
        network = own or build_backbone(config.backbone, config.n_channels, config.image_size)
        embedding = Embedding(network, config.n_channels)
        said = getattr(network, "n_features", None)
        if backbone is None and callable(said) and said(config.image_size) != config.n_features:
            raise ValueError(f"its backbone does not give {config.n_features} features")
        head = build_head(config.head, config.n_features)
    classes, anchors = _names(about["classes"]), tensors.pop("anchors")
    places = tensors.pop("places", None)
    if anchors.dtype != torch.float32 or anchors.ndim != 2:
        raise TypeError("its anchors are no rows of float32")
    checked = [anchors, *(tensors.values() if backbone is None else ())]
    if places is not None:
        if places.dtype != torch.float32 or places.shape != (len(classes), config.n_features):
            raise TypeError("its places are no rows of float32 for each class")
        checked.append(places)
    if not all(bool(value.isfinite().all()) for value in checked):
        raise ValueError("some of its weights or anchors are no finite numbers")
    _fill(embedding, "embedding.", tensors)
    _fill(head, "head.", tensors)
    if tensors:
        raise KeyError(f"it holds '{next(iter(tensors))}', which is no part of a model")
    if len(classes) != len(anchors):
        raise KeyError("classes and anchors differ in number")
    if classes:  # what does not fit together raises here rather than later
        head.logits(torch.zeros(1, config.n_features), anchors)
    lineage = tuple(_entry(entry) for entry in about["lineage"])
    embedding.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    embedding.eval().requires_grad_(False)
    head.eval().requires_grad_(False)
    return Model(config, embedding, head, classes, anchors, lineage, places)


def _fill(module: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> None:
    """With those whose names start so, which are taken out."""
    own = under(prefix, tensors)
    for key, value in module.state_dict().items():
        if key in own and own[key].dtype != value.dtype:
            raise TypeError(f"{prefix}{key} holds {own[key].dtype}, not {value.dtype}")
    module.load_state_dict(own, assign=True)
    for key in own:
        del tensors[f"{prefix}{key}"]


def _entry(said: Any) -> LineageEntry:
    """With all settings of a round, where an early file lacks some that came later."""
    entry = from_dict(LineageEntry, said)
    settings = to_dict(from_dict(TrainConfig, entry.config))
    return replace(entry, config=json.loads(json.dumps(settings)))  # ranges as lists, as before


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise TypeError("its classes are no list of names")
    if len(set(given)) < len(given):
        raise ValueError("two of its classes have the same name")
    return tuple(given)


def _first_checksum(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """As a model file of the first version has it in its text."""
    text = json.dumps(about, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256((digest(tensors) + text).encode(errors="surrogatepass")).hexdigest()
