"""The command that updates a model with a delivery of new classes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional

from kedge.cli.arguments import (
    Data,
    Json,
    ModelFile,
    NewModelFile,
    OwnBackbone,
    Picture,
    PrivacyArguments,
    ReadingArguments,
    RoundArguments,
    Strict,
    TensorBoard,
    Validation,
    load_model,
    load_pytorch,
    option,
)
from kedge.utils import progress


@dataclass(frozen=True)
class Update:
    """Improve a model from new classes (one more round), without the images of the old ones.

    The old images are not needed and not read: each old class is remembered by its anchor, a
    vector in the model file. If a known class is delivered again, it keeps its name, and its new
    images are pooled with what the model remembers of it. The given model is not changed. A
    stopped command continues when it is given again.
    """

    model: Positional[ModelFile]
    data: Positional[Data]
    out: NewModelFile
    method: Annotated[
        str | None,
        option(
            "METHOD",
            "IDA+",
            "What stays aligned with the old model: IDA+ (the softmax over the anchors), IDA (the "
            "same as in the paper, for one or two updates), DFA (every feature), EIML (tasks of "
            "kept images), EWC (the weights) or FT (nothing). Options in quotes: 'IDA lambda=5 "
            "anchors=all'. EIML and EWC need MODEL.memory, which 'kedge train --save-memory' and "
            "'kedge update' write.",
        ),
    ] = None
    save_memory: Annotated[
        str | None,
        option(
            "METHOD",
            "what --method needs",
            "Save what this method will need for later updates, in MODEL.memory beside the new "
            "model, together with what was saved beside the old one.",
        ),
    ] = None
    val: Validation = None
    backbone: OwnBackbone = None
    strict: Strict = False
    picture: Picture = True
    tensorboard: TensorBoard = None
    json: Json = False
    reading: ReadingArguments = field(default_factory=ReadingArguments)
    privacy: PrivacyArguments = field(default_factory=PrivacyArguments)
    training: RoundArguments = field(default_factory=RoundArguments)

    def run(self, console: Console) -> None:
        images = [self.data, *([] if self.val is None else [self.val])]
        load_pytorch(self.model, images=images, line=True)
        from kedge import api
        from kedge.cli import model_output
        from kedge.defaults import DEFAULT_METHOD
        from kedge.methods.registry import parse_method
        from kedge.training.loggers import log_to_tensorboard

        model_output.check_save_memory(self.save_memory)
        model = load_model(self.model, self.backbone)
        method = self.method or DEFAULT_METHOD
        save_for = self.save_memory or method
        privacy = self.privacy.privacy(model)
        model_output.check_memory_is_allowed(save_for, privacy)
        options = asdict(self.training) | {"method": self.method, "val": self.val}
        options |= {"private": privacy or False}
        with (
            progress.display(),
            log_to_tensorboard(self.tensorboard),
            model_output.lock_output(self.out, self.picture) as output,
        ):
            owner, kept = model_output.load_memory(self.model, model)
            memory, before = (
                kept if model_output.method_name(each) == owner else {}
                for each in (method, save_for)
            )
            saving = parse_method(save_for).alignment
            if before and not memory and saving is not None:  # else `api.update` checks it
                saving.check_memory(before, model)
            data = self.reading.delivery(self.data, self.strict)
            updated = api.update(
                model, data, checkpoint=output.checkpoint, memory=memory, **options
            )
            seed = self.training.seed
            model_output.save_memory(updated, data, save_for, before, seed, output)
            if owner and not before:
                progress.note(
                    f"{model_output.memory_path(self.model)}: the memory of {owner} is not carried "
                    f"over to the new model; '--save-memory {owner}' would do that"
                )
            how = {"picture": self.picture, "json": self.json}
            model_output.finish(console, updated, output, **how)
