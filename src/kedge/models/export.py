"""A model as an ONNX graph, for programs without PyTorch.

    pixels   uint8, n × channels × size × size   →   features        float32, n × d
                                                 or   probabilities   float32, n × classes

The graph includes scaling and normalization and takes any number of images. The metadata has the
size and channels of images, how they are resized, and the class names (docs/model-file.md).
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import logging
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kedge import __version__
from kedge.data.augment import to_float
from kedge.errors import KedgeError, require
from kedge.models.classifier import Classifier
from kedge.models.model import Model
from kedge.utils.atomic_io import write_bytes_atomically
from kedge.utils.config_io import to_dict
from kedge.utils.text import pip_install

OPSET = 18  # which PyTorch's exporter writes without a conversion
LINEAGE_KEYS = ("round", "method", "classes", "images", "val_accuracy")


class _Graph(nn.Module):
    """The computation of `Model.embed` or `Classifier.predict_proba` on one batch."""

    representatives: Tensor | None
    offsets: Tensor | None

    def __init__(self, model: Model, classifier: Classifier | None) -> None:
        super().__init__()
        representatives = None if classifier is None else classifier.representatives.cpu()
        offsets = None if classifier is None else classifier.offsets
        self.embedding, self.head = model.embedding, model.head
        self.register_buffer("representatives", representatives)
        self.register_buffer("offsets", None if offsets is None else offsets.float().cpu())

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.embedding(to_float(pixels))
        if self.representatives is None:
            return features
        logits = self.head.logits(features, self.representatives)
        return (logits if self.offsets is None else logits + self.offsets).softmax(-1)


def check_installed() -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    names = " and ".join(missing)
    require(not missing, f"Writing ONNX files needs {names}: {pip_install('export')}.")


def export_onnx(what: Model | Classifier, path: str | Path, *, replace: bool = True) -> None:
    """Write the backbone of a model, or a classifier with its classes, to an ONNX file. Without
    `replace` an existing file is kept, and KedgeError raised."""
    check_installed()
    classifier = what if isinstance(what, Classifier) else None
    model: Model = (what.model if isinstance(what, Classifier) else what).to("cpu")
    classes = None if classifier is None else classifier.classes
    size, channels = model.config.image_size, model.config.n_channels
    try:
        with _quiet():
            program = torch.onnx.export(
                _Graph(model, classifier).eval(),
                (torch.zeros(2, channels, size, size, dtype=torch.uint8),),
                dynamo=True,
                opset_version=OPSET,
                input_names=["pixels"],
                output_names=["features" if classes is None else "probabilities"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = textwrap.shorten(str(error.__cause__ or error), 300)
        raise KedgeError(f"{path}: this model cannot be written as ONNX ({reason}).") from error
    assert program is not None
    proto = program.model_proto
    graph = proto.graph
    # The exporter adds lines of source code, with paths on this machine.
    lists = (graph.node, graph.input, graph.output, graph.value_info, graph.initializer)
    for part in (graph, *itertools.chain(*lists)):
        part.ClearField("metadata_props")
    for key, value in metadata(model, classes).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        proto.metadata_props.add(key=key, value=text)
    write_bytes_atomically(Path(path), proto.SerializeToString(), replace)


def metadata(model: Model, classes: Sequence[str] | None) -> dict[str, Any]:
    """What a program that runs the graph has to know. All but texts is stored as JSON."""
    config = model.config
    rounds = [to_dict(entry) | {"classes": len(entry.classes)} for entry in model.lineage]
    return {
        **({} if classes is None else {"classes": classes}),
        "image_size": config.image_size,
        "channels": config.n_channels,
        "inverted": config.inverted,
        "lineage": [{key: entry[key] for key in LINEAGE_KEYS} for entry in rounds],
        "fit": config.resize,
        "interpolation": config.interpolation,
        "model": model.fingerprint,
        "kedge": __version__,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's messages, which are for its own developers."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
