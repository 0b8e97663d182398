"""Files that survive a crash, a full disk or a second process: atomic writes, locks, checksums.

Models, memories and checkpoints are safetensors with one JSON text in the metadata: reading them
runs no code, and equal content gives equal bytes. The text begins with a checksum of the file and a
version (docs/model-file.md). Packed images have a fingerprint of their pixels instead.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from kedge.errors import KedgeError, require
from kedge.utils import distributed
from kedge.utils.config_io import parse_json

if TYPE_CHECKING:  # records are read without PyTorch, which takes seconds to load
    from torch import Tensor

VERSION = 2  # of files that `save_tensors` writes; version 1 had neither version nor checksum
# Limits for hostile files: a header of 8 MiB holds the names of some 100,000 classes.
LONGEST_HEADER, MOST_TENSORS = 1 << 23, 10_000
CHECKSUM_DIGITS = 64
CHECKSUM_KEY = rb"\"sha256\": \""  # precedes the digits in a header, where quotes are escaped
READ_BYTES = 1 << 20  # at a time


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, flush it and rename it. Collective: rank 0 writes."""
    distributed.barrier()  # another rank may still check whether the file exists
    if distributed.rank() == 0:
        write_on_this_rank(path, write)
    distributed.barrier()


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text in UTF-8. Collective, like `write_atomically`."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_on_this_rank(path: Path, write: Callable[[Path], object]) -> None:
    """Write atomically, independently of other ranks."""
    part = sibling(path, f".{path.name}.{os.getpid()}.part")
    try:
        make_folder(path.parent)
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            if not _is_running(stale.suffixes[-2].removeprefix(".")):
                stale.unlink(missing_ok=True)
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        move_into_place(part, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KedgeError(
            f"{path}: could not be written ({reason}); an existing file is unchanged. Solve the "
            "problem and run the command again."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def sibling(path: Path, name: str) -> Path:
    """A file in the same folder. Raises KedgeError if `path` cannot be a file, like '.' and '/'."""
    require(bool(path.name), f"{path}: this is a folder; give the name of a file to write in it.")
    return path.with_name(name)


def _is_running(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    with suppress(OSError):  # a killed process keeps its id until its parent has waited for it
        status = Path("/proc", process_id, "stat").read_text(errors="replace")
        return status.rpartition(")")[2].split()[0] != "Z"
    return True


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each flushed to disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)  # raises OSError if it is a file
        fsync_folder(folder.parent)


def move_into_place(part: Path, path: Path) -> None:
    """Rename a complete and flushed file."""
    os.replace(part, path)
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """A new name is only safe once its folder is on disk too."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write tensors and metadata with a version and a checksum. Collective."""
    from safetensors.torch import save

    plain = {key: tensors[key].detach().cpu().contiguous() for key in sorted(tensors)}
    text = to_json({"sha256": "0" * CHECKSUM_DIGITS, "version": VERSION, **metadata})

    def write(part: Path) -> None:
        # Not `save_file`: it writes a temporary file of its own, which a kill would leave behind.
        content = save(plain, {"kedge": text})
        header = _read_header(BytesIO(content))  # raises if it is too long to be read again
        with open(part, "wb") as file:
            file.write(content)
            file.seek(8 + header.index(CHECKSUM_KEY) + len(CHECKSUM_KEY))
            file.write(_checksum(BytesIO(content), header).encode())

    write_atomically(path, write)


def to_json(metadata: dict[str, Any]) -> str:
    """JSON in valid UTF-8; characters that have no encoding, as in odd file names, become '?'."""
    text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace").decode()


def load_tensors(
    path: Path, what: str, advice: str = ""
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and memory-mapped tensors. `what` and `advice` appear in error messages."""
    with reading(path, what, advice), _open(path) as file, safe_open(path, "pt") as tensor_file:
        metadata = parse_json((tensor_file.metadata() or {}).get("kedge", "null"))
        require(isinstance(metadata, dict), f"{path}: not a {what} that kedge wrote.")
        # A file without a version is of version 1, or packed images, and has no checksum.
        if "version" in metadata or next(iter(metadata), None) == "sha256":
            _check_version(path, what, advice, file, metadata)
        if len(names := tensor_file.keys()) > MOST_TENSORS:
            raise ValueError(f"it says that it holds {len(names)} tensors")
        return metadata, {key: tensor_file.get_tensor(key) for key in sorted(names)}


def file_version(path: Path) -> int:
    """The version of a file that `load_tensors` has accepted."""
    with safe_open(path, "pt") as tensor_file:
        version = parse_json(tensor_file.metadata()["kedge"]).get("version", 1)
    return int(version)


@contextmanager
def reading(path: Path, what: str, advice: str = "") -> Iterator[None]:
    """Turn errors while reading a safetensors file into one sentence."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise KedgeError(f"{path}: there is no {what} here{advice}.") from None
    except (SafetensorError, ValueError, OSError, RecursionError, MemoryError) as error:
        reason = textwrap.shorten(str(getattr(error, "strerror", None) or error), 300)
        message = f"{path}: not readable as a {what}, or damaged ({reason}){advice}."
        raise KedgeError(message) from None


def _check_version(
    path: Path, what: str, advice: str, file: BinaryIO, metadata: dict[str, Any]
) -> None:
    """Remove checksum and version from the metadata and check them."""
    checksum, version = metadata.pop("sha256", None), metadata.pop("version", None)
    intact = checksum == _checksum(file, _read_header(file))
    require(intact, f"{path}: the checksum does not match; the file is damaged{advice}.")
    if type(version) is not int or version < VERSION:
        raise ValueError(f"it says that its version is {version!r}")
    require(
        version == VERSION,
        f"{path}: this {what} was written by a newer kedge (file version {version}, this kedge "
        f"reads up to {VERSION}); update kedge to read it.",
    )


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """A regular file with a header of acceptable length."""
    # Without O_NONBLOCK opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no file")
        _read_header(file)
        yield file


def _read_header(file: BinaryIO | BytesIO) -> bytes:
    """The JSON header of a safetensors file, without the 8 bytes of its length."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= LONGEST_HEADER:  # an image or a text, say
        raise OSError(f"its header has {length} bytes, not 2 to {LONGEST_HEADER}")
    return file.read(length)


def _checksum(file: BinaryIO | BytesIO, header: bytes) -> str:
    """SHA-256 of the file with zeros in place of the checksum's own digits."""
    before, key, rest = header.partition(CHECKSUM_KEY)
    zeros = b"0" * CHECKSUM_DIGITS if key else b""
    sha = hashlib.sha256(len(header).to_bytes(8, "little"))
    sha.update(before + key + zeros + rest[len(zeros) :])
    file.seek(8 + len(header))
    while block := file.read(READ_BYTES):
        sha.update(block)
    return sha.hexdigest()


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, under the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and every byte."""
    import torch

    sha = hashlib.sha256()
    for key in sorted(tensors):
        value = tensors[key].detach().cpu().contiguous()
        sha.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        sha.update(value.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def exclusive(
    folder: Path, name: str = ".lock", file: Path | None = None
) -> AbstractContextManager[None]:
    """A `file_lock` that rank 0 holds for all ranks."""
    return file_lock(folder, name, file=file) if distributed.rank() == 0 else nullcontext()


@contextmanager
def file_lock(
    folder: Path, name: str, timeout: float = 0.0, file: Path | None = None
) -> Iterator[None]:
    """Hold a lock, after at most `timeout` seconds (forever if negative); errors name `file`."""
    lock_file = folder / name
    try:
        make_folder(folder)
        lock = FileLock(lock_file, timeout=timeout)
        try:
            lock.acquire()
        except Timeout:
            # FileLock also times out if no file can be created, as in /proc; this raises OSError.
            with TemporaryFile(dir=folder):
                raise KedgeError(
                    f"{file or folder}: another kedge process is working here; wait for it or use "
                    "another --out."
                ) from None
    except OSError as error:
        raise KedgeError(f"{folder}: cannot write here ({error.strerror or error}).") from None
    try:
        yield
    finally:
        with suppress(OSError):  # the folder may have become read-only
            lock_file.unlink(missing_ok=True)
        lock.release()
