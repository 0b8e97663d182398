"""Commands that make a model from one's own images, and improve it with each delivery."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import (
    Data,
    ImageSize,
    ModelFile,
    NewModelFile,
    Seed,
    Validation,
    say,
)
from kedge.cli.wishes import (
    Backbone,
    Episode,
    Schedule,
)
from kedge.config import HeadConfig
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from torch import Tensor

    from kedge.models.model import Model


@dataclass(frozen=True)
class Train:
    """Train a first model (round 0) on your own images.

    What is not given is chosen to suit the images, and every choice is told with its reason before
    training starts. Some images, or whole classes where there are many, are set apart to measure
    progress; the best model by that measure is kept. A stopped command continues when it is given
    again.
    """

    data: Positional[Data]
    out: NewModelFile
    val: Validation = None
    image_size: ImageSize = None
    episode: Episode = field(default_factory=Episode)
    schedule: Schedule = field(default_factory=Schedule)
    backbone: Backbone = field(default_factory=Backbone)
    head: HeadConfig = field(default_factory=HeadConfig)
    keep: Annotated[
        str | None,
        arg(
            metavar="METHOD",
            help="Also keep what this method will need for updates, in MODEL.memory beside the "
            "model: 'EIML exemplars=30' keeps images, EWC how much each weight matters. IDA "
            "needs nothing but the model.",
            help_behavior_hint="(default: nothing)",
        ),
    ] = None
    seed: Seed = 0

    def run(self, console: Console) -> None:
        from kedge import api
        from kedge.utils import progress

        _check_keep(self.keep)
        with progress.display(), _alone(self.out):
            checkpoint = _claim(self.out)
            model = api.train(
                self.data,
                val=self.val,
                backbone=self.backbone.backbone,
                width=self.backbone.width,
                head=self.head.head,
                temperature=self.head.temperature,
                image_size=self.image_size,
                episode=self.episode,
                schedule=self.schedule,
                seed=self.seed,
                checkpoint=checkpoint,
            )
            if self.keep is not None:
                _keep(model, self.data, self.keep, None, self.seed, self.out)
            _finish(console, model, self.out, checkpoint)


@dataclass(frozen=True)
class Update:
    """Improve a model from new classes (one more round), without the images of the old ones.

    The old images are not needed and not read: each old class is remembered by its anchor,
    one point in feature space that the model file holds. A class that comes back keeps its
    name, and its new images add to what is remembered of it. The model that is given stays as
    it is. A stopped command continues when it is given again.
    """

    model: Positional[ModelFile]
    data: Positional[Data]
    out: NewModelFile
    method: Annotated[
        str,
        arg(
            help="What holds the model to what it knew: IDA (its verdicts relative to the "
            "anchors), DFA (every feature), EIML (images that were kept), EWC (its weights) or FT "
            "(nothing). With options in quotes: 'IDA lambda=5 anchors=all'. EIML and EWC need "
            "MODEL.memory, which 'kedge train --keep' and 'kedge update' write.",
        ),
    ] = "IDA"
    keep: Annotated[
        str | None,
        arg(
            metavar="METHOD",
            help="Keep what this method will need for later updates, in MODEL.memory beside the "
            "new model, and what lies beside the old one with it.",
            help_behavior_hint="(default: what --method needs)",
        ),
    ] = None
    val: Validation = None
    episode: Episode = field(default_factory=Episode)
    schedule: Schedule = field(default_factory=Schedule)
    seed: Seed = 0

    def run(self, console: Console) -> None:
        from kedge import api
        from kedge.models.model import Model
        from kedge.utils import progress

        _check_keep(self.keep)
        model = Model.load(self.model)
        kept_for = self.keep or self.method
        with progress.display(), _alone(self.out):
            checkpoint = _claim(self.out)
            name, kept = _kept(self.model, model)
            memory, before = (
                kept if _name(each) == name else {} for each in (self.method, kept_for)
            )
            if before and not memory:  # which is looked at below
                _check_memory(name, kept, model)
            better = api.update(
                model,
                self.data,
                method=self.method,
                val=self.val,
                episode=self.episode,
                schedule=self.schedule,
                seed=self.seed,
                checkpoint=checkpoint,
                memory=memory,
            )
            _keep(better, self.data, kept_for, before, self.seed, self.out)
            if name and not before:
                progress.note(
                    f"{_memory_of(self.model)}: what {name} kept is not carried on to the new "
                    f"model; with '--keep {name}' it is"
                )
            _finish(console, better, self.out, checkpoint)


def _check_keep(method: str | None) -> None:
    """A mistake shall not be told after hours of training."""
    from kedge.methods.registry import method_names, parse_method

    if method is None or parse_method(method).remembers:
        return
    keeping = " and ".join(name for name in method_names() if parse_method(name).remembers)
    raise KedgeError(
        f"--keep {method}: only {keeping} keep anything for updates; the other methods need "
        "nothing but the model, so leave --keep out."
    )


def _claim(out: Path) -> Path:
    """Where the state of the training is kept until the model is there."""
    from kedge.training.checkpoint import is_checkpoint_of
    from kedge.utils.atomic_io import neighbour

    checkpoint = neighbour(out, f"{out.name}.training")
    if is_checkpoint_of(out, checkpoint):
        checkpoint.unlink(missing_ok=True)  # of a command that was killed just before it did this
    for path in (out, _memory_of(out)):
        # A memory beside the state of a stopped command is that command's own.
        if path.exists() and (path == out or not checkpoint.exists()):
            raise KedgeError(
                f"{path}: already exists and is not overwritten; choose another --out."
            )
    return checkpoint


def _kept(file: Path, model: Model) -> tuple[str, dict[str, Tensor]]:
    """What was kept when the model was made, and the name of the method that needs it."""
    from kedge.utils import progress
    from kedge.utils.atomic_io import load_tensors

    path = _memory_of(file)
    if not path.exists():
        return "", {}
    advice = "; copy it again, or move it away: IDA, DFA and FT need none"
    about, kept = load_tensors(path, "memory of a method", advice)
    if about.get("model") != model.fingerprint:  # of one that was there before under this name
        progress.note(f"{path}: was kept with another model than {file}, and is not used")
        return "", {}
    return str(about.get("method")).partition(" ")[0], kept


def _name(method: str) -> str:
    from kedge.methods.registry import parse_method

    return parse_method(method).label.partition(" ")[0]


def _check_memory(method: str, memory: dict[str, Tensor], model: Model) -> None:
    """Now, and not after hours of training, when more is to be kept with it."""
    from kedge.methods.registry import parse_method

    alignment = parse_method(method).alignment
    if alignment is not None:
        alignment.check_memory(memory, model)


def _keep(
    model: Model, data: str, method: str, before: dict[str, Tensor] | None, seed: int, out: Path
) -> None:
    from kedge import api
    from kedge.methods.registry import parse_method
    from kedge.utils import progress
    from kedge.utils.atomic_io import save_tensors
    from kedge.utils.text import sized

    kept = api.remember(model, data, method=method, before=before, seed=seed)
    if kept:
        label, path = parse_method(method).label, _memory_of(out)
        save_tensors(path, kept, {"method": label, "model": model.fingerprint})
        much = sized(path.stat().st_size)
        progress.note(f"{path}: what {label} keeps of the images for later updates, {much}")


def _memory_of(model: Path) -> Path:
    return model.with_name(f"{model.name}.memory")


def _alone(out: Path) -> AbstractContextManager[None]:
    from kedge.utils.atomic_io import only_one_process

    return only_one_process(out.parent, f".{out.name}.lock", file=out)


def _finish(console: Console, model: Model, out: Path, checkpoint: Path) -> None:
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    entry = model.lineage[-1]
    say(
        console,
        f"{out}: round {entry.round} ({entry.method}), {len(model.classes)} classes known; "
        f"validation accuracy {entry.val_accuracy:.1f}% in epoch {entry.best_epoch}",
    )
