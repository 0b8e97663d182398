"""Shared by `kedge train` and `kedge update`: the new model's file, checkpoint and memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from PIL import Image
from rich.console import Console

from kedge import api
from kedge.cli.arguments import as_json, say, validation_text
from kedge.config import Privacy
from kedge.data.delivery import Delivery
from kedge.errors import KedgeError, NameTakenError, require
from kedge.methods.base import Memory
from kedge.methods.registry import method_names, parse_method
from kedge.models.model import Model
from kedge.report.outcome import outcome_sentence, outcome_table
from kedge.report.render import to_rich
from kedge.training.checkpoint import is_checkpoint_of
from kedge.utils import distributed, progress
from kedge.utils.atomic_io import (
    exclusive,
    load_tensors,
    save_tensors,
    sibling,
    write_on_this_rank,
)
from kedge.utils.part_file import rename_new
from kedge.utils.text import format_bytes

Name = Callable[[Path], Path]  # of a file beside a model, by the name of the model


def check_memory_is_allowed(method: str, privacy: Privacy | None) -> None:
    """Raise if a private model would have a memory beside it."""
    require(
        privacy is None or not parse_method(method).remembers,
        f"--private: {method} keeps images, or what was computed from them, in a file beside the "
        "model; use IDA, DFA or FT without --save-memory.",
    )


def check_save_memory(method: str | None, privacy: Privacy | None = None) -> None:
    """Raise before training, not after it, if the method keeps nothing, or may not."""
    if method is None:
        return
    check_memory_is_allowed(method, privacy)
    if parse_method(method).remembers:
        return
    keeping = " and ".join(name for name in method_names() if parse_method(name).remembers)
    raise KedgeError(
        f"--save-memory {method}: only {keeping} keep anything for updates; the other methods need "
        "nothing but the model, so leave --save-memory out."
    )


class Output:
    """Where a command writes a new model, its memory and its picture.

    Training takes hours, in which another program may create a file of the same name. No file is
    overwritten and no trained weight lost: the three then get another name.
    """

    def __init__(self, asked: Path, checkpoint: Path) -> None:
        self.asked, self.checkpoint = asked, checkpoint
        self.path = asked  # of the model
        self.written: list[Name] = []

    def write(self, name: Name, write: Callable[[Path], object]) -> None:
        """Write one of the three files; if its name is taken, all get another name."""
        while True:
            try:
                write(name(self.path))
            except NameTakenError:
                self._choose_free_name()
            else:
                self.written.append(name)
                return

    def _choose_free_name(self) -> None:
        before, asked = self.path, self.asked
        names = (asked.with_name(f"{asked.stem}-{n}{asked.suffix}") for n in itertools.count(2))
        free = (p for p in names if not any(name(p).exists() for name in NAMES))
        self.path = distributed.broadcast(next(free))
        if distributed.rank() == 0:
            for name in self.written:
                rename_new(name(before), name(self.path))

    def check_name(self) -> None:
        """Raise if the model has another name than was asked for."""
        if self.path != self.asked:
            raise KedgeError(
                f"{self.asked}: another file has got this name during the training and is not "
                f"overwritten; the new model is {self.path}."
            )


@contextmanager
def lock_output(out: Path, picture: bool) -> Iterator[Output]:
    """Lock the file of a new model. Raises if one of the files to be written exists; `picture`
    says whether there will be one."""
    with exclusive(out.parent, f".{out.name}.lock", file=out):
        checkpoint = sibling(out, f"{out.name}.training")
        if is_checkpoint_of(out, checkpoint):
            checkpoint.unlink(missing_ok=True)  # the command was killed just before it did this
        # A memory beside the checkpoint of a stopped command belongs to that command.
        for path in (out,) if checkpoint.exists() else (out, memory_path(out)):
            if path.exists():
                raise KedgeError(
                    f"{path}: already exists and is not overwritten; choose another --out."
                )
        if picture and not _may_draw(picture_path(out)):
            raise KedgeError(
                f"{picture_path(out)}: already exists, is no picture of {out.name} and is not "
                "overwritten; move it away, or draw no picture with --no-picture."
            )
        yield Output(out, checkpoint)


def finish(console: Console, model: Model, output: Output, *, picture: bool, json: bool) -> None:
    """Write the picture and the model, delete the checkpoint and print what the round did."""
    # The model last: where it exists, a killed command has written everything.
    drawn = picture and _draw_picture(model, output)
    output.write(model_path, partial(model.save, replace=False))
    output.checkpoint.unlink(missing_ok=True)
    _tell(console, model, output.path, drawn=drawn, json=json)
    output.check_name()


def _tell(console: Console, model: Model, out: Path, *, drawn: bool, json: bool) -> None:
    entry = model.lineage[-1]
    if json:
        about = {"file": str(out), "known_classes": len(model.classes), **asdict(entry)}
        about["picture"] = str(picture_path(out)) if drawn else None
        about["memory"] = str(memory_path(out)) if memory_path(out).exists() else None
        print(as_json(about, indent=1))
        return
    say(
        console,
        f"{out}: round {entry.round} ({entry.method}), {len(model.classes)} classes known; "
        + validation_text(entry.val_accuracy, entry.best_epoch),
    )
    if (table := outcome_table(entry)) is not None:
        console.print(to_rich(table))
        say(console, outcome_sentence(entry))
    if drawn:
        say(console, f"{picture_path(out)}: the same as a picture")


def _draw_picture(model: Model, output: Output) -> bool:
    """Draw what the rounds of a model did; False if it was not measured, or cannot be written,
    which is no reason to lose the model."""
    from kedge.report.outcome_figures import model_picture
    from kedge.report.style import encode

    path = picture_path(output.path)
    about = {"Software": "kedge", "Title": path.stem}
    try:
        if (figure := model_picture(model.lineage)) is None:
            return False
        if distributed.rank() == 0:
            content = encode(figure, "png", metadata=about)
            write_on_this_rank(path, lambda file: file.write(content), _may_draw)
    except Exception as error:
        progress.note(f"{path}: no picture was drawn ({error.__cause__ or error})")
        return False
    output.written.append(picture_path)
    return True


def _may_draw(path: Path) -> bool:
    """Whether there is no file here, or a picture that kedge drew of a model of this name."""
    if not path.exists():
        return True
    try:
        with Image.open(path) as image:
            return (image.info.get("Software"), image.info.get("Title")) == ("kedge", path.stem)
    except (OSError, ValueError, Image.DecompressionBombError):
        return False


def model_path(model: Path) -> Path:
    return model


def picture_path(model: Path) -> Path:
    return model.with_name(f"{model.name}.png")


def memory_path(model: Path) -> Path:
    return model.with_name(f"{model.name}.memory")


NAMES = (model_path, picture_path, memory_path)


def method_name(method: str) -> str:
    return parse_method(method).label.partition(" ")[0]


def load_memory(file: Path, model: Model) -> tuple[str, Memory]:
    """The memory beside a model file, and the name of the method that it is for."""
    path = memory_path(file)
    if not path.exists():
        return "", {}
    advice = "; copy it again, or move it away: IDA, DFA and FT need none"
    about, kept = load_tensors(path, "memory of a method", advice)
    if about.get("model") != model.fingerprint:  # an earlier model had the same name
        progress.note(f"{path}: was saved with another model than {file}, and is not used")
        return "", {}
    return str(about.get("method")).partition(" ")[0], kept


def save_memory(
    model: Model, data: Delivery, method: str, before: Memory | None, seed: int, output: Output
) -> None:
    """Save what the method keeps of the images, if anything, beside the new model."""
    kept = api.remember(model, data, method=method, before=before, seed=seed)
    if kept:
        label, fingerprint = parse_method(method).label, model.fingerprint

        def is_own(path: Path) -> bool:  # of this command, which was killed after it had written it
            with suppress(KedgeError):
                return load_tensors(path, "memory of a method")[0].get("model") == fingerprint
            return False

        def save(path: Path) -> None:
            save_tensors(path, kept, {"method": label, "model": fingerprint}, is_own)

        output.write(memory_path, save)
        path = memory_path(output.path)
        size = format_bytes(path.stat().st_size)
        progress.note(f"{path}: what {label} keeps of the images for later updates, {size}")
