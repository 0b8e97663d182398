"""Shared by `kedge train` and `kedge update`: the new model's file, checkpoint and memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kedge.cli.arguments import say
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from kedge.methods.base import Memory
    from kedge.models.model import Model


def check_save_memory(method: str | None) -> None:
    """Raise before training, not after it, if the method keeps nothing."""
    from kedge.methods.registry import method_names, parse_method

    if method is None or parse_method(method).remembers:
        return
    keeping = " and ".join(name for name in method_names() if parse_method(name).remembers)
    raise KedgeError(
        f"--save-memory {method}: only {keeping} keep anything for updates; the other methods need "
        "nothing but the model, so leave --save-memory out."
    )


def checkpoint_path(out: Path) -> Path:
    """The file with the state of the training, until the model is written."""
    from kedge.training.checkpoint import is_checkpoint_of
    from kedge.utils.atomic_io import sibling

    checkpoint = sibling(out, f"{out.name}.training")
    if is_checkpoint_of(out, checkpoint):
        checkpoint.unlink(missing_ok=True)  # the command was killed just before it did this
    for path in (out, memory_path(out)):
        # A memory beside the checkpoint of a stopped command belongs to that command.
        if path.exists() and (path == out or not checkpoint.exists()):
            raise KedgeError(
                f"{path}: already exists and is not overwritten; choose another --out."
            )
    return checkpoint


def load_memory(file: Path, model: Model) -> tuple[str, Memory]:
    """The memory beside a model file, and the name of the method that it is for."""
    from kedge.utils import progress
    from kedge.utils.atomic_io import load_tensors

    path = memory_path(file)
    if not path.exists():
        return "", {}
    advice = "; copy it again, or move it away: IDA, DFA and FT need none"
    about, kept = load_tensors(path, "memory of a method", advice)
    if about.get("model") != model.fingerprint:  # an earlier model had the same name
        progress.note(f"{path}: was saved with another model than {file}, and is not used")
        return "", {}
    return str(about.get("method")).partition(" ")[0], kept


def method_name(method: str) -> str:
    from kedge.methods.registry import parse_method

    return parse_method(method).label.partition(" ")[0]


def check_memory(method: str, memory: Memory, model: Model) -> None:
    from kedge.methods.registry import parse_method

    alignment = parse_method(method).alignment
    if alignment is not None:
        alignment.check_memory(memory, model)


def save_memory(
    model: Model, data: str, method: str, before: Memory | None, seed: int, out: Path
) -> None:
    from kedge import api
    from kedge.methods.registry import parse_method
    from kedge.utils import progress
    from kedge.utils.atomic_io import save_tensors
    from kedge.utils.text import format_bytes

    kept = api.remember(model, data, method=method, before=before, seed=seed)
    if kept:
        label, path = parse_method(method).label, memory_path(out)
        save_tensors(path, kept, {"method": label, "model": model.fingerprint})
        size = format_bytes(path.stat().st_size)
        progress.note(f"{path}: what {label} keeps of the images for later updates, {size}")


def memory_path(model: Path) -> Path:
    return model.with_name(f"{model.name}.memory")


def lock(out: Path) -> AbstractContextManager[None]:
    from kedge.utils.atomic_io import exclusive

    return exclusive(out.parent, f".{out.name}.lock", file=out)


def finish(console: Console, model: Model, out: Path, checkpoint: Path) -> None:
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    entry = model.lineage[-1]
    say(
        console,
        f"{out}: round {entry.round} ({entry.method}), {len(model.classes)} classes known; "
        f"validation accuracy {entry.val_accuracy:.1f}% in epoch {entry.best_epoch}",
    )
