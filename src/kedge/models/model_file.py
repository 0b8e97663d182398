"""The model as one safetensors file, written atomically. It holds no image, and loading it runs no
code.

    embedding.*   float32   weights of the backbone; mean and std of the training images
    head.*                  parameters of the head, if it has any
    anchors       C × r     one row for each class ever learned, in the order of `classes`
    places        C × d     current class means, if they are not the anchors
    spread        q × r     directions in which images differ from their class means
    metadata["kedge"]       JSON: sha256 of the file, version, format, config, classes, lineage,
                            calibration, private

docs/model-file.md is the full description, for readers without kedge.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kedge.config import ADDED, Epochs, Privacy, TrainConfig
from kedge.errors import KedgeError, require
from kedge.models.calibration import Calibration
from kedge.models.embedding import CUSTOM, Embedding, ModelConfig
from kedge.models.heads import Head, build_head
from kedge.models.outcome import RoundOutcome
from kedge.models.spread import MOST_DIRECTIONS
from kedge.utils.atomic_io import load_tensors, tensors_digest
from kedge.utils.config_io import from_dict, to_dict
from kedge.utils.ranges import Percent, Round, Total

MODEL_FORMAT = "kedge-model"
HUB_FILE = "model.safetensors"  # its name in a folder for a model hub
FORMAT_1 = "kedge-model-1"  # before all of kedge's files had a version and a checksum
KEYS = {"format", "config", "classes", "lineage"}  # of the JSON
# What a file whose checksum is right but whose content is not may cause.
INVALID_CONTENT = (KedgeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)
MOST_ROUNDS = 10_000  # each of which takes 0.3 ms to be read and shown
MOST_TABLE_BYTES = 1 << 30  # of tables that a network computes when it is built
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

    round: Round
    method: str
    classes: tuple[str, ...]
    images: Total
    source: str
    config: dict[str, Any]
    best_epoch: Epochs  # 0: nothing trained
    val_accuracy: Percent | None  # None: there were no images to validate on
    untrained: tuple[str, ...] = field(default=(), metadata=ADDED)  # delivered, not trained on
    outcome: RoundOutcome | None = field(default=None, metadata=ADDED)  # None: not measured


@dataclass(frozen=True, eq=False)
class ModelContents:
    """The content of a model file, validated as far as possible without the network's code."""

    config: ModelConfig
    classes: tuple[str, ...]
    anchors: Tensor
    lineage: tuple[LineageEntry, ...]
    class_means: Tensor | None
    calibration: Calibration | None
    privacy: Privacy | None
    spread: Tensor | None
    weights: dict[str, Tensor]  # of embedding and head

    @property
    def own_backbone(self) -> bool:
        """Whether the network is the user's own, so that its code is not kedge's."""
        return self.config.backbone.backbone == CUSTOM

    @property
    def n_weights(self) -> int:
        """Numbers that a network of this file has, statistics of BatchNorm among them."""
        return sum(value.numel() for value in self.weights.values() if value.is_floating_point())


def load(path: Path, backbone: nn.Module | None) -> tuple[Any, ...]:
    """The fields of a `Model` in their order, validated. A backbone of the caller's is copied."""
    contents = read(path)
    with _rebuilding(path):
        embedding, head = _build(contents, backbone)
    fields = (contents.classes, contents.anchors, contents.lineage, contents.class_means)
    others = (contents.calibration, contents.privacy, contents.spread)
    return contents.config, embedding, head, *fields, *others


def describe(
    config: ModelConfig,
    classes: Sequence[str],
    lineage: Sequence[LineageEntry],
    calibration: Calibration | None,
    privacy: Privacy | None,
) -> dict[str, Any]:
    """The JSON of a model file, without checksum and version."""
    optional = {"calibration": calibration, "private": privacy}
    return {
        "format": MODEL_FORMAT,
        "config": to_dict(config),
        "classes": classes,
        "lineage": [to_dict(entry) for entry in lineage],
        **{key: to_dict(value) for key, value in optional.items() if value is not None},
    }


def find(path: Path) -> Path:
    """The model file of a path, which may be a folder that `kedge export --hub` wrote."""
    return path / HUB_FILE if path.is_dir() else path


def read(path: Path) -> ModelContents:
    """The content of a model file, without a network."""
    path = find(path)
    about, mapped = load_tensors(path, "kedge model")
    known = about.get("format") in (MODEL_FORMAT, FORMAT_1)
    require(known, f"{path}: not a kedge model; 'kedge train' makes one.")
    if about["format"] == FORMAT_1:
        checksum = about.pop("sha256", None)
        text = tensors_digest(mapped) + json.dumps(about, ensure_ascii=False, sort_keys=True)
        expected = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        require(checksum == expected, f"{path}: the checksum does not match; the file is damaged.")
    tensors = {key: value.clone() for key, value in mapped.items()}
    with _rebuilding(path):
        return _parse(about, tensors)


@contextmanager
def _rebuilding(path: Path) -> Iterator[None]:
    """Turn errors caused by the content of a file into one sentence."""
    try:
        yield
    except INVALID_CONTENT as error:
        reason = textwrap.shorten(str(error.args[0] if error.args else error), 300)
        raise KedgeError(f"{path}: this model cannot be rebuilt ({reason.rstrip('.')}).") from None


def _parse(about: dict[str, Any], tensors: dict[str, Tensor]) -> ModelContents:
    keys = set(about) - {"calibration", "private"}  # which not every file has
    require(keys == KEYS, f"its JSON must have the keys {', '.join(sorted(KEYS))} only")
    config = from_dict(ModelConfig, about["config"])
    config = replace(config, head=replace(config.head, head=current_spec(config.head.head)))
    classes = about["classes"]
    valid = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    require(valid and len(set(classes)) == len(classes), "its classes are not different names")
    anchors, class_means = tensors.pop("anchors", torch.empty(0)), tensors.pop("places", None)
    valid = anchors.dtype == torch.float32 and anchors.ndim == 2 and len(anchors) == len(classes)
    require(valid, "its anchors are not one row of float32 for each class")
    if class_means is not None:
        valid = class_means.shape == (len(classes), config.n_features)
        valid = valid and class_means.dtype == torch.float32
        require(valid, "its places are not one row of float32 for each class")
    spread = tensors.pop("spread", None)
    if spread is not None:
        valid = (
            spread.dtype == torch.float32 and spread.ndim == 2 and len(spread) <= MOST_DIRECTIONS
        )
        require(valid, f"its spread is not at most {MOST_DIRECTIONS} directions in float32")
    _check_finite(*(given for given in (anchors, class_means, spread) if given is not None))
    n_rounds = len(about["lineage"])
    require(n_rounds <= MOST_ROUNDS, f"it has {n_rounds:,} rounds, more than {MOST_ROUNDS:,}")
    lineage = tuple(_lineage_entry(entry) for entry in about["lineage"])
    ascending = all(a.round < b.round for a, b in itertools.pairwise(lineage))
    require(ascending, "its rounds are not in ascending order")
    given, private = about.get("calibration"), about.get("private")
    calibration = None if given is None else from_dict(Calibration, given)
    privacy = None if private is None else from_dict(Privacy, private)
    classes = tuple(classes)
    remembered = (class_means, calibration, privacy, spread)
    return ModelContents(config, classes, anchors, lineage, *remembered, tensors)


def _build(contents: ModelContents, backbone: nn.Module | None) -> tuple[Embedding, Head]:
    """The network with its weights, in eval mode."""
    config, tensors = contents.config, contents.weights
    found = not contents.own_backbone or backbone is not None
    require(
        found,
        f"its network is your own{_name_of(config)}; give it with --backbone module:function, or "
        "in Python as kedge.load(path, backbone=…)",
    )
    if backbone is None:
        _check_finite(*tensors.values())
    # Nothing is allocated on the meta device, so a forged size costs an error and no memory.
    with torch.device("meta"):
        embedding = Embedding(config, copy.deepcopy(backbone))
        n_features = getattr(embedding.backbone, "n_features", None) if backbone is None else None
        fits = not callable(n_features) or n_features(config.image_size) == config.n_features
        require(fits, f"its backbone does not give {config.n_features} features")
        head = build_head(config.head, config.n_features)
    network = _load_weights(embedding, head, tensors)
    if left := [buffer for buffer in network.buffers() if buffer.is_meta]:
        # Some networks of timm compute tables that no file holds: these are built once more, now
        # that the weights in the file are known to be as large as theirs.
        fits = sum(buffer.nbytes for buffer in left) <= MOST_TABLE_BYTES
        require(fits, f"its network would need too much memory at {config.image_size} px")
        embedding = Embedding(config)
        network = _load_weights(embedding, head, tensors)
    if contents.classes:  # anchors that do not fit the head raise here rather than later
        nothing = torch.zeros(1, config.n_features)
        head.logits(nothing, contents.anchors)
        if contents.spread is not None:
            fits = contents.spread.shape[1] == head.distance_features(nothing).shape[1]
            require(fits, "its spread is not of the features that distances are measured with")
    embedding.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.eval().requires_grad_(False)
    return embedding, head


def _load_weights(embedding: Embedding, head: Head, tensors: dict[str, Tensor]) -> nn.ModuleDict:
    network = nn.ModuleDict({"embedding": embedding, "head": head})
    for key, value in network.state_dict().items():
        dtype = tensors.get(key, value).dtype
        require(dtype == value.dtype, f"{key} holds {dtype}, not {value.dtype}")
    network.load_state_dict(tensors, assign=True)  # raises if names or shapes differ
    return network


def _check_finite(*tensors: Tensor) -> None:
    finite = all(bool(value.isfinite().all()) for value in tensors)
    require(finite, "some of its weights or anchors are not finite numbers")


def _name_of(config: ModelConfig) -> str:
    return "" if config.pretrained is None else f" ({config.pretrained.architecture})"


def _lineage_entry(data: Any) -> LineageEntry:
    """An entry in which settings that its version did not have get their default values."""
    entry = from_dict(LineageEntry, data)
    settings = to_dict(from_dict(TrainConfig, entry.config))
    return replace(entry, config=json.loads(json.dumps(settings)))  # ranges as lists, as in files
