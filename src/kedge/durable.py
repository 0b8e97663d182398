"""Writing so that a crash, a full disk or a second process never costs what was there before.

All of kedge's own files are safetensors with one JSON text in the metadata: reading them runs no
code, and the same content gives the same bytes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kedge import engine
from kedge.errors import KedgeError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, flush it to the disk, and only then take its place.

    Of several processes, all of which have to come here, the first one writes.
    """
    engine.wait()  # another may still be looking whether the file is there
    if engine.rank() == 0:
        _write_atomically(path, write)
    engine.wait()


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            if not _alive(left.suffixes[-2]):  # killed while it wrote
                left.unlink(missing_ok=True)
        part.touch()
        mode = part.stat().st_mode  # as the user's umask has it; safetensors would give less
        write(part)
        part.chmod(mode)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KedgeError(
            f"{path}: could not be written ({reason}); what was there before is unchanged."
        ) from error
    finally:
        with suppress(OSError):  # where it could not even be made
            part.unlink(missing_ok=True)


def _alive(process: str) -> bool:
    """Whether a process id, written as '.1234', is that of a running process."""
    try:
        os.kill(int(process.removeprefix(".")), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    plain = {key: tensors[key].detach().cpu().contiguous() for key in sorted(tensors)}
    metadata = {"kedge": json.dumps(about, ensure_ascii=False)}
    write_atomically(path, lambda part: save_file(plain, part, metadata))


def load_tensors(
    path: Path, what: str, advice: str = ""
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What was saved. Tensors are mapped into memory and read from the disk when first used."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("kedge", "null"))
            tensors = {key: file.get_tensor(key) for key in sorted(file.keys())}
    except FileNotFoundError:
        raise KedgeError(f"{path}: there is no {what} here.") from None
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise KedgeError(f"{path}: not a {what}, or damaged ({error}){advice}.") from None
    if not isinstance(about, dict):
        raise KedgeError(f"{path}: not a {what} that kedge wrote.")
    return about, tensors


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names start so, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and every byte."""
    sha = hashlib.sha256()
    for key in sorted(tensors):
        value = tensors[key].detach().cpu().contiguous()
        sha.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        sha.update(value.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _flush_folder(folder: Path) -> None:
    """The new name is only safe once the folder that lists it is on the disk too."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def only_one_process(folder: Path, name: str = ".lock", patience: float = 0.0) -> Iterator[None]:
    """Hold a lock while the body runs; a second process is told after so many seconds, not let in.

    The system drops the lock when its holder dies, however it dies, so nothing goes stale.
    Processes that work as one hold it together, by the first of them.
    """
    if engine.rank() != 0:
        yield
        return
    lock_file = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file, timeout=patience)
        lock.acquire()
    except Timeout:
        raise KedgeError(
            f"{folder}: another kedge process is working here; wait for it or use another --out."
        ) from None
    except OSError as error:
        raise KedgeError(f"{folder}: cannot write here ({error.strerror}).") from None
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        lock.release()
