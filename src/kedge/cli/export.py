"""The command that exports a model: as ONNX, or as a folder for a model hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    ModelFile,
    OwnBackbone,
    Support,
    check_choice,
    load_model,
    load_pytorch,
    option,
    say,
)
from kedge.errors import KedgeError
from kedge.utils import progress

if TYPE_CHECKING:
    from kedge.models.model import Model


@dataclass(frozen=True)
class Export:
    """Write a model as ONNX (--out), or as a folder for a model hub (--hub).

    ONNX is for programs that have no PyTorch. The graph takes pixels as they are: uint8, images ×
    channels × height × width, any number of images. By default its output is the backbone's
    features. With --support, --include-known or both it is a classifier, and its output is the
    probability of each class. Class names, image size and preprocessing are in the file's metadata,
    which docs/model-file.md explains.
    """

    model: Positional[ModelFile]
    out: Annotated[Path | None, option("FILE.onnx", "none")] = None
    """ONNX file to write; an existing one is never overwritten."""
    hub: Annotated[Path | None, option("FOLDER", "none")] = None
    """Folder to write: the model file, config.json, and a model card in README.md that is filled
    from the lineage, with the names of the Hugging Face Hub. Nothing is sent anywhere."""
    license: Annotated[str, arg(metavar="NAME")] = "other"
    """License of the model for the card, such as apache-2.0."""
    support: Annotated[Support, arg(help_behavior_hint="(default: none)")] = None
    include_known: FlagCreatePairsOff[bool] = False
    """Classify all classes that the model has learned, without examples of them."""
    backbone: OwnBackbone = None

    def run(self, console: Console) -> None:
        if self.out is None and self.hub is not None:
            self._write_hub_folder(console, self.hub)
        elif self.out is not None and self.hub is None:
            self._write_onnx(console, self.out)
        else:
            raise KedgeError("--out, --hub: give one of them, the file or the folder to write.")

    def _write_hub_folder(self, console: Console, folder: Path) -> None:
        if self.support is not None or self.include_known:
            raise KedgeError("--support, --include-known: leave them out, they are for ONNX.")
        load_pytorch(self.model)
        from kedge.report.model_card import write_hub_folder

        write_hub_folder(self.model, folder, license=self.license)
        say(
            console, f"{folder}: kedge.load reads it; README.md is the card: read it, and add to it"
        )

    def _write_onnx(self, console: Console, out: Path) -> None:
        if out.exists():
            raise KedgeError(f"{out}: already exists; choose another --out.")
        load_pytorch(self.model, images=[] if self.support is None else [self.support])
        from kedge.models.classifier import Classifier
        from kedge.models.export import check_installed, export_onnx

        check_installed()
        model = load_model(self.model, self.backbone)
        exported: Model | Classifier = model
        with progress.display():
            if self.support is not None or self.include_known:
                exported = model.classifier(self.support, known=self.include_known)
                check_choice(exported, self.support or self.model)
            export_onnx(exported, out, replace=False)
        output = f"{model.config.n_features} features"
        if isinstance(exported, Classifier):
            output = f"probabilities of {len(exported.classes)} classes"
        side = model.config.image_size
        inputs = f"uint8 pixels, n × {model.config.n_channels} × {side} × {side}"
        say(console, f"{out}: {inputs}, to {output}")
