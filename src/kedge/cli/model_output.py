"""Shared by `kedge train` and `kedge update`: the new model's file, checkpoint and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from kedge import api
from kedge.cli.arguments import say, validation_text
from kedge.errors import KedgeError
from kedge.methods.base import Memory
from kedge.methods.registry import method_names, parse_method
from kedge.models.model import Model
from kedge.training.checkpoint import is_checkpoint_of
from kedge.utils import progress
from kedge.utils.atomic_io import exclusive, load_tensors, save_tensors, sibling
from kedge.utils.text import format_bytes


def check_save_memory(method: str | None) -> None:
    """Raise before training, not after it, if the method keeps nothing."""
    if method is None or parse_method(method).remembers:
        return
    keeping = " and ".join(name for name in method_names() if parse_method(name).remembers)
    raise KedgeError(
        f"--save-memory {method}: only {keeping} keep anything for updates; the other methods need "
        "nothing but the model, so leave --save-memory out."
    )


@contextmanager
def lock_output(out: Path) -> Iterator[Path]:
    """Lock the file of a new model; gives the file with the state of its training."""
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
        yield checkpoint


def finish(console: Console, model: Model, out: Path, checkpoint: Path) -> None:
    """Write the model, delete the checkpoint and print the result."""
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    entry = model.lineage[-1]
    say(
        console,
        f"{out}: round {entry.round} ({entry.method}), {len(model.classes)} classes known; "
        + validation_text(entry.val_accuracy, entry.best_epoch),
    )


def memory_path(model: Path) -> Path:
    return model.with_name(f"{model.name}.memory")


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
    model: Model, data: str, method: str, before: Memory | None, seed: int, out: Path
) -> None:
    """Save what the method keeps of the images, if anything, beside the new model."""
    kept = api.remember(model, data, method=method, before=before, seed=seed)
    if kept:
        label, path = parse_method(method).label, memory_path(out)
        save_tensors(path, kept, {"method": label, "model": model.fingerprint})
        size = format_bytes(path.stat().st_size)
        progress.note(f"{path}: what {label} keeps of the images for later updates, {size}")
