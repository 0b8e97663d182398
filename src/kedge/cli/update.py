"""The command that updates a model with a delivery of new classes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import Data, ModelFile, NewModelFile, RoundArguments, Validation
from kedge.cli.model_output import (
    check_memory,
    check_save_memory,
    checkpoint_path,
    finish,
    load_memory,
    lock,
    memory_path,
    method_name,
    save_memory,
)


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
        str,
        arg(
            help="What stays aligned with the old model: IDA (the softmax over the anchors), DFA "
            "(every feature), EIML (tasks of kept images), EWC (the weights) or FT (nothing). "
            "Options in quotes: 'IDA lambda=5 anchors=all'. EIML and EWC need MODEL.memory, which "
            "'kedge train --save-memory' and 'kedge update' write.",
        ),
    ] = "IDA"
    save_memory: Annotated[
        str | None,
        arg(
            metavar="METHOD",
            help="Save what this method will need for later updates, in MODEL.memory beside the "
            "new model, together with what was saved beside the old one.",
            help_behavior_hint="(default: what --method needs)",
        ),
    ] = None
    val: Validation = None
    training: RoundArguments = field(default_factory=RoundArguments)

    def run(self, console: Console) -> None:
        from kedge import api
        from kedge.models.model import Model
        from kedge.utils import progress

        check_save_memory(self.save_memory)
        model = Model.load(self.model)
        save_for = self.save_memory or self.method
        with progress.display(), lock(self.out):
            checkpoint = checkpoint_path(self.out)
            owner, kept = load_memory(self.model, model)
            memory, before = (
                kept if method_name(each) == owner else {} for each in (self.method, save_for)
            )
            if before and not memory:  # otherwise `api.update` checks it
                check_memory(owner, kept, model)
            updated = api.update(
                model,
                self.data,
                method=self.method,
                val=self.val,
                checkpoint=checkpoint,
                memory=memory,
                **dataclasses.asdict(self.training),
            )
            save_memory(updated, self.data, save_for, before, self.training.seed, self.out)
            if owner and not before:
                progress.note(
                    f"{memory_path(self.model)}: the memory of {owner} is not carried over to the "
                    f"new model; '--save-memory {owner}' would do that"
                )
            finish(console, updated, self.out, checkpoint)
