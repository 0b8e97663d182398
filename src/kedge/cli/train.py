"""The command that trains a first model on a user's images."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional

from kedge.cli.arguments import (
    Data,
    Json,
    NewModelFile,
    Picture,
    PrivacyArguments,
    ReadingArguments,
    Strict,
    TensorBoard,
    TrainArguments,
    Validation,
    load_pytorch,
    option,
)
from kedge.utils import progress


@dataclass(frozen=True)
class Train:
    """Train a first model (round 0) on your own images.

    What is not given is inferred from the images, and told with the reason before training starts.
    Photographs start from a network pretrained on ImageNet, other images from scratch. Some images,
    or whole classes where there are many, are set apart to measure progress. A stopped command
    continues when it is given again.
    """

    data: Positional[Data]
    out: NewModelFile
    val: Validation = None
    save_memory: Annotated[
        str | None,
        option(
            "METHOD",
            "nothing",
            "Also save what this method will need for updates, in MODEL.memory beside the model: "
            "'EIML exemplars=30' keeps images, EWC the Fisher information of each weight. IDA "
            "needs nothing but the model.",
        ),
    ] = None
    strict: Strict = False
    picture: Picture = True
    tensorboard: TensorBoard = None
    json: Json = False
    reading: ReadingArguments = field(default_factory=ReadingArguments)
    privacy: PrivacyArguments = field(default_factory=PrivacyArguments)
    training: TrainArguments = field(default_factory=TrainArguments)

    def run(self, console: Console) -> None:
        load_pytorch(images=[self.data, *([] if self.val is None else [self.val])], line=True)
        from kedge import api
        from kedge.cli.model_output import check_save_memory, finish, lock_output, save_memory
        from kedge.training.loggers import log_to_tensorboard

        privacy = self.privacy.privacy()
        check_save_memory(self.save_memory, privacy)
        with (
            progress.display(),
            log_to_tensorboard(self.tensorboard),
            lock_output(self.out, self.picture) as output,
        ):
            options = asdict(self.training) | {"private": privacy or False}
            data = self.reading.delivery(self.data, self.strict)
            model = api.train(data, val=self.val, checkpoint=output.checkpoint, **options)
            if self.save_memory is not None:
                save_memory(model, data, self.save_memory, None, options["seed"], output)
            how = {"picture": self.picture, "json": self.json}
            finish(console, model, output, **how)
