"""The model as one safetensors file, written atomically. It holds no image, and loading it runs no
code.

    embedding.*   float32   weights of the backbone; mean and std of the training images
    head.*                  parameters of the head, if it has any
    anchors       C × r     one row for each class ever learned, in the order of `classes`
    places        C × d     current class means, if they are not the anchors
    metadata["kedge"]       JSON: sha256 of the file, version, format, config, classes, lineage

docs/model-file.md is the full description, for readers without kedge.
"""

from __future__ import annotations

import copy
import hashlib
import json
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kedge.config import ADDED, TrainConfig
from kedge.errors import KedgeError, require
from kedge.models.embedding import CUSTOM, Embedding, ModelConfig
from kedge.models.heads import build_head
from kedge.utils.atomic_io import load_tensors, tensors_digest
from kedge.utils.config_io import from_dict, to_dict

MODEL_FORMAT = "kedge-model"
FORMAT_1 = "kedge-model-1"  # before all of kedge's files had a version and a checksum
KEYS = {"format", "config", "classes", "lineage"}  # of the JSON
# What a file whose checksum is right but whose content is not may cause.
INVALID_CONTENT = (KedgeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)
# Options as files of earlier versions name them. Commands and functions take the new names only.
RENAMED_OPTIONS = {
    "ecm": {"steps": "inner_steps", "rate": "inner_lr", "pull": "l2", "pace": "lr_scale"},
    "DFA": {"dimensions": "reduction"},
}


def current_spec(text: str) -> str:
    """A head or method as a file has it, with the current names of its options."""
    name, *options = text.split() or [""]
    renamed = RENAMED_OPTIONS.get(name)
    if renamed is None:
        return text
    pairs = (option.partition("=") for option in options)
    return " ".join([name, *(renamed.get(key, key) + equals + v for key, equals, v in pairs)])


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
    untrained: tuple[str, ...] = field(default=(), metadata=ADDED)  # delivered, not trained on


def load(path: Path, backbone: nn.Module | None) -> tuple[Any, ...]:
    """The fields of a `Model` in their order, validated. A backbone of the caller's is copied."""
    about, mapped = load_tensors(path, "kedge model")
    known = about.get("format") in (MODEL_FORMAT, FORMAT_1)
    require(known, f"{path}: not a kedge model; 'kedge train' makes one.")
    if about["format"] == FORMAT_1:
        checksum = about.pop("sha256", None)
        text = tensors_digest(mapped) + json.dumps(about, ensure_ascii=False, sort_keys=True)
        expected = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        require(checksum == expected, f"{path}: the checksum does not match; the file is damaged.")
    tensors = {key: value.clone() for key, value in mapped.items()}
    try:
        return _rebuild(about, tensors, backbone)
    except INVALID_CONTENT as error:
        reason = textwrap.shorten(str(error.args[0] if error.args else error), 300)
        raise KedgeError(f"{path}: this model cannot be rebuilt ({reason.rstrip('.')}).") from None


def _rebuild(
    about: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None
) -> tuple[Any, ...]:
    require(set(about) == KEYS, f"its JSON must have the keys {', '.join(sorted(KEYS))} only")
    config = from_dict(ModelConfig, about["config"])
    config = replace(config, head=replace(config.head, head=current_spec(config.head.head)))
    found = config.backbone.backbone != CUSTOM or backbone is not None
    require(found, "it has a backbone of your own; pass it to Model.load(path, backbone=…)")
    own = copy.deepcopy(backbone)
    # Nothing is allocated on the meta device, so a forged size costs an error and no memory.
    with torch.device("meta"):
        embedding = Embedding(config, own)
        n_features = getattr(embedding.backbone, "n_features", None) if backbone is None else None
        fits = not callable(n_features) or n_features(config.image_size) == config.n_features
        require(fits, f"its backbone does not give {config.n_features} features")
        head = build_head(config.head, config.n_features)
    classes = about["classes"]
    valid = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    require(valid and len(set(classes)) == len(classes), "its classes are not different names")
    anchors, class_means = tensors.pop("anchors", torch.empty(0)), tensors.pop("places", None)
    valid = anchors.dtype == torch.float32 and anchors.ndim == 2 and len(anchors) == len(classes)
    require(valid, "its anchors are not one row of float32 for each class")
    checked = [anchors, *(tensors.values() if backbone is None else ())]
    if class_means is not None:
        valid = class_means.shape == (len(classes), config.n_features)
        valid = valid and class_means.dtype == torch.float32
        require(valid, "its places are not one row of float32 for each class")
        checked.append(class_means)
    finite = all(bool(value.isfinite().all()) for value in checked)
    require(finite, "some of its weights or anchors are not finite numbers")
    network = nn.ModuleDict({"embedding": embedding, "head": head})
    for key, value in network.state_dict().items():
        dtype = tensors.get(key, value).dtype
        require(dtype == value.dtype, f"{key} holds {dtype}, not {value.dtype}")
    network.load_state_dict(tensors, assign=True)  # raises if names or shapes differ
    if classes:  # anchors that do not fit the head raise here rather than later
        head.logits(torch.zeros(1, config.n_features), anchors)
    lineage = tuple(_lineage_entry(entry) for entry in about["lineage"])
    embedding.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.eval().requires_grad_(False)
    return config, embedding, head, tuple(classes), anchors, lineage, class_means


def _lineage_entry(data: Any) -> LineageEntry:
    """An entry in which settings that its version did not have get their default values."""
    entry = from_dict(LineageEntry, data)
    settings = to_dict(from_dict(TrainConfig, entry.config))
    return replace(entry, config=json.loads(json.dumps(settings)))  # ranges as lists, as in files
