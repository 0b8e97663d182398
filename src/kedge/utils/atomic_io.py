"""Writing so that a crash, a full disk or a second process never costs what was there before.

Models, memories and states are safetensors with one JSON text in the metadata: reading them runs no
code, and the same content gives the same bytes. The text begins with a checksum of the whole file
and with its version (docs/model-file.md). Packed images, which may be larger than the memory, have
a fingerprint of their pixels instead, which `kedge data inspect` compares.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from kedge.config import parse_json
from kedge.errors import KedgeError
from kedge.utils import distributed

VERSION = 2  # of what `save_tensors` writes. The first one said no version and had no checksum
# Bytes: names of some 100,000 classes. What is longer could fill the memory when it is read.
LONGEST_HEADER = 1 << 23
MOST_TENSORS = 10_000  # more would take long, for nothing
DIGITS = 64  # of a checksum
SUM = rb"\"sha256\": \""  # what stands before them in a header, where quotes are escaped
BLOCK = 1 << 20  # bytes read at a time


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, flush it to the disk, and only then take its place.

    Of several processes, all of which have to come here, the first one writes.
    """
    distributed.barrier()  # another may still be looking whether the file is there
    if distributed.rank() == 0:
        write_alone(path, write)
    distributed.barrier()


def write_alone(path: Path, write: Callable[[Path], object]) -> None:
    """The same by one of several processes, whatever the others do."""
    part = neighbour(path, f".{path.name}.{os.getpid()}.part")
    try:
        make_folder(path.parent)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            if not _alive(left.suffixes[-2]):  # killed while it wrote
                left.unlink(missing_ok=True)
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        take_place(part, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KedgeError(
            f"{path}: could not be written ({reason}); what was there before is unchanged. When "
            "that is mended, give the command again."
        ) from error
    finally:
        with suppress(OSError):  # where it could not even be made
            part.unlink(missing_ok=True)


def neighbour(path: Path, name: str) -> Path:
    """Another file in the folder of one that is to be written; '.' and '/' can be no file."""
    if not path.name:
        raise KedgeError(f"{path}: this is a folder; give the name of a file to write in it.")
    return path.with_name(name)


def _alive(process: str) -> bool:
    """Whether a process id, written as '.1234', is that of a running process."""
    number = process.removeprefix(".")
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    with suppress(OSError):  # one that was killed has a number until its parent has asked for it
        status = Path("/proc", number, "stat").read_text(errors="replace")
        return status.rpartition(")")[2].split()[0] != "Z"
    return True


def make_folder(folder: Path) -> None:
    """With those above it. Each that is new is only safe once the one that lists it is."""
    if folder.is_dir():
        return
    if folder.exists():
        raise OSError(f"{folder} is no folder")
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)


def take_place(part: Path, path: Path) -> None:
    """Give a file that is complete and flushed its name."""
    os.replace(part, path)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """The new name is only safe once the folder that lists it is on the disk too."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Tensors, and what there is to say about them, with a checksum of it all."""
    plain = {key: tensors[key].detach().cpu().contiguous() for key in sorted(tensors)}
    said = {"sha256": "0" * DIGITS, "version": VERSION, **about}
    metadata = {"kedge": as_text(said)}

    def write(part: Path) -> None:
        # Its own way to a file goes by another one, of a random name, which a kill would leave.
        content = save(plain, metadata)
        header = _header(BytesIO(content))  # one that is too long could not be read again
        with open(part, "wb") as file:
            file.write(content)
            file.seek(8 + header.index(SUM) + len(SUM))
            file.write(_checksum(BytesIO(content), header).encode())

    write_atomically(path, write)


def as_text(about: dict[str, Any]) -> str:
    """JSON that can be read again: where images came from may be a name that is no text."""
    text = json.dumps(about, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace").decode()


def load_tensors(
    path: Path, what: str, advice: str = ""
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What was saved. Tensors are mapped into memory and read from the disk when first used.

    A file that says no version is of the first one, or of another part of kedge: its checksum, if
    it has any, is for others to compare.
    """
    try:
        with _opened(path) as file, safe_open(path, framework="pt") as opened:
            about = parse_json((opened.metadata() or {}).get("kedge", "null"))
            if not isinstance(about, dict):
                raise KedgeError(f"{path}: not a {what} that kedge wrote.")
            if "version" in about or next(iter(about), None) == "sha256":
                _check(path, what, advice, file, about)
            if len(names := opened.keys()) > MOST_TENSORS:
                raise ValueError(f"it says that it holds {len(names)} tensors")
            tensors = {key: opened.get_tensor(key) for key in sorted(names)}
    except (FileNotFoundError, NotADirectoryError):
        raise KedgeError(f"{path}: there is no {what} here{advice}.") from None
    except IsADirectoryError:
        raise KedgeError(f"{path}: this is a folder and not a {what}.") from None
    except PermissionError:
        raise KedgeError(
            f"{path}: you have no permission to read this file; its owner can give it."
        ) from None
    except (SafetensorError, ValueError, OSError, RecursionError, MemoryError) as error:
        reason = textwrap.shorten(str(getattr(error, "strerror", None) or error), 300)
        raise KedgeError(f"{path}: not a {what}, or damaged ({reason}){advice}.") from None
    return about, tensors


def _check(path: Path, what: str, advice: str, file: BinaryIO, about: dict[str, Any]) -> None:
    """Takes checksum and version out of `about`."""
    checksum, version = about.pop("sha256", None), about.pop("version", None)
    if checksum != _checksum(file, _header(file)):
        raise KedgeError(f"{path}: the checksum does not match; the file is damaged{advice}.")
    if type(version) is not int or version < VERSION:
        raise ValueError(f"it says that its version is {version!r}")
    if version > VERSION:
        raise KedgeError(
            f"{path}: this {what} was written by a newer kedge (version {version} of the file; "
            f"this kedge knows those up to {VERSION}): update kedge to read it."
        )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read whose header is not too long, and no pipe, device or folder."""
    # Without O_NONBLOCK a named pipe would wait for somebody to write into it.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError("it is no file")
        _header(file)
        yield file


def _header(file: BinaryIO | BytesIO) -> bytes:
    """Of a safetensors file: JSON, behind its length in 8 bytes."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > 1 << 40:  # an image or a text begins so
        raise OSError("it does not begin as such a file does")
    if not 2 <= length <= LONGEST_HEADER:
        raise OSError(f"its header has {length} bytes, not 2 to {LONGEST_HEADER}")
    return file.read(length)


def _checksum(file: BinaryIO | BytesIO, header: bytes) -> str:
    """SHA-256 of the file, in which the digits of the checksum itself are zeros."""
    before, mark, rest = header.partition(SUM)
    zeros = b"0" * DIGITS if mark else b""
    sha = hashlib.sha256(len(header).to_bytes(8, "little"))
    sha.update(before + mark + zeros + rest[len(zeros) :])
    file.seek(8 + len(header))
    while block := file.read(BLOCK):
        sha.update(block)
    return sha.hexdigest()


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


@contextmanager
def only_one_process(folder: Path, name: str = ".lock", file: Path | None = None) -> Iterator[None]:
    """Hold a lock while the body runs; processes that work as one do so together, by the first."""
    if distributed.rank() == 0:
        with locked(folder, name, file=file):
            yield
    else:
        yield


@contextmanager
def locked(
    folder: Path, name: str, patience: float = 0.0, file: Path | None = None
) -> Iterator[None]:
    """Hold a lock while the body runs; a second process is told after so many seconds, not let in.

    It is told of the folder, or of the file in it that is being made. The system drops the lock
    when its holder dies, however it dies, so nothing goes stale.
    """
    lock_file = folder / name
    try:
        make_folder(folder)
        lock = FileLock(lock_file, timeout=patience)
        try:
            lock.acquire()
        except Timeout:
            # It also waits where no file can be made, as in /proc.
            with TemporaryFile(dir=folder):
                raise KedgeError(
                    f"{file or folder}: another kedge process is working here; wait for it or use "
                    "another --out."
                ) from None
    except OSError as error:
        reason = error.strerror or error
        raise KedgeError(f"{folder}: cannot write here ({reason}).") from None
    try:
        yield
    finally:
        with suppress(OSError):  # where nothing can be written any more
            lock_file.unlink(missing_ok=True)
        lock.release()
