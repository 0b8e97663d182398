"""Files that survive a crash, a full disk or a second process: atomic writes, locks, checksums.

Models, memories and checkpoints are safetensors with one JSON text in the metadata: reading them
runs no code, and equal content gives equal bytes. The text begins with a checksum of the file and a
version (docs/model-file.md). Packed images have a fingerprint of their pixels instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import FileLock, SoftFileLock, Timeout
from safetensors import SafetensorError, safe_open

from kedge.errors import KedgeError, NameTakenError, require
from kedge.utils import distributed
from kedge.utils.config_io import parse_json
from kedge.utils.part_file import open_part, remove_stale_parts, rename_new, without_links
from kedge.utils.regular_file import open_regular

if TYPE_CHECKING:  # records are read without PyTorch, which takes seconds to load
    from torch import Tensor

VERSION = 2  # of files that `save_tensors` writes; version 1 had neither version nor checksum
# Limits for hostile files: a header of 8 MiB holds the names of some 100,000 classes.
LONGEST_HEADER, MOST_TENSORS = 1 << 23, 10_000
CHECKSUM_DIGITS = 64
CHECKSUM_KEY = rb"\"sha256\": \""  # precedes the digits in a header, where quotes are escaped
READ_BYTES = 1 << 20  # at a time
# PyTorch raises a RuntimeError or TypeError for shapes such as 0 × 2⁶⁴−1, which safetensors allows.
UNREADABLE = (SafetensorError, ValueError, OSError, RuntimeError, TypeError, MemoryError)
Write = Callable[[BinaryIO], object]  # fills an open file
OnWait = Callable[[str], object]  # gets ' (process 123 on HOST)', or '' if that is unknown
Replace = bool | Callable[[Path], bool]  # whether an existing file may be replaced


def write_atomically(path: Path, write: Write, replace: Replace = True) -> None:
    """Let `write` fill a temporary file, flush it and rename it. Collective: rank 0 writes.

    Where `replace` is False, or a function that is so for the existing file, an existing file is
    kept and NameTakenError raised on all ranks.
    """
    distributed.barrier()  # another rank may still check whether the file exists
    taken = ""
    if distributed.rank() == 0:
        try:
            write_on_this_rank(path, write, replace)
        except NameTakenError as error:
            taken = str(error)
    if taken := distributed.broadcast(taken):
        raise NameTakenError(taken)


def write_bytes_atomically(path: Path, content: bytes, replace: Replace = True) -> None:
    """Write some bytes. Collective, like `write_atomically`."""
    write_atomically(path, lambda file: file.write(content), replace)


def write_text_atomically(path: Path, text: str, replace: Replace = True) -> None:
    """Write a text in UTF-8. Collective, like `write_atomically`."""
    write_bytes_atomically(path, text.encode(), replace)


def write_on_this_rank(
    path: Path, write: Write, replace: Replace = True, mode: int = 0o666
) -> None:
    """Write atomically, independently of other ranks; `mode` is that of a new file."""
    _check_name(path)
    part: Path | None = None
    try:
        make_folder(path.parent)
        remove_stale_parts(path)
        part, file = open_part(path, mode)
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        move_into_place(part, path, replace)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KedgeError(
            f"{path}: could not be written ({reason}); an existing file is unchanged. Solve the "
            "problem and run the command again."
        ) from error
    finally:
        with suppress(OSError):
            if part is not None:
                part.unlink(missing_ok=True)


def sibling(path: Path, name: str) -> Path:
    """A file in the same folder. Raises KedgeError if `path` cannot be a file, like '.' and '/'."""
    _check_name(path)
    return path.with_name(name)


def _check_name(path: Path) -> None:
    require(bool(path.name), f"{path}: this is a folder; give the name of a file to write in it.")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each flushed to disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)  # raises OSError if it is a file
        fsync_folder(folder.parent)


def move_into_place(part: Path, path: Path, replace: Replace = True) -> None:
    """Rename a complete and flushed file; `replace` is that of `write_atomically`."""
    if replace is True:
        os.replace(part, path)
    else:
        try:
            rename_new(part, path)
        except FileExistsError:
            if not (replace and replace(path)):
                raise NameTakenError(
                    f"{path}: already exists and is not overwritten; choose another name."
                ) from None
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


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, Any], replace: Replace = True
) -> None:
    """Write tensors and metadata with a version and a checksum. Collective; `replace` is that of
    `write_atomically`."""
    from safetensors.torch import save

    plain = {key: tensors[key].detach().cpu().contiguous() for key in sorted(tensors)}
    text = to_json({"sha256": "0" * CHECKSUM_DIGITS, "version": VERSION, **metadata})

    def write(file: BinaryIO) -> None:
        # Not `save_file`: it writes a temporary file of its own, which a kill would leave behind.
        content = save(plain, {"kedge": text})
        header = _read_header(BytesIO(content))  # raises if it is too long to be read again
        file.write(content)
        file.seek(8 + header.index(CHECKSUM_KEY) + len(CHECKSUM_KEY))
        file.write(_checksum(BytesIO(content), header).encode())

    write_atomically(path, write, replace)


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
    except UNREADABLE as error:
        text = str(getattr(error, "strerror", None) or error).partition("\n")[0]
        reason = textwrap.shorten(text, 300)
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
    with open_regular(path) as file:
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
    folder: Path, name: str = ".lock", file: Path | None = None, on_wait: OnWait | None = None
) -> AbstractContextManager[None]:
    """A `file_lock` that rank 0 holds for all ranks."""
    if distributed.rank() != 0:
        return nullcontext()
    return file_lock(folder, name, file=file, on_wait=on_wait)


@contextmanager
def file_lock(
    folder: Path,
    name: str,
    timeout: float = 0.0,
    file: Path | None = None,
    advice: str = "wait for it or use another --out",
    on_wait: OnWait | None = None,
) -> Iterator[None]:
    """Hold a lock, after at most `timeout` seconds (forever if negative); errors name `file`. With
    `on_wait`, wait forever after having told it who holds the lock."""
    lock_file = folder / name
    try:
        make_folder(folder)
        lock = FileLock(lock_file, timeout=timeout)
        try:
            lock.acquire()
        except Timeout:
            # FileLock also times out if no file can be created, as in /proc; this raises OSError.
            with TemporaryFile(dir=folder):
                holder = _holder(lock_file)
            if on_wait is None:
                raise KedgeError(
                    f"{file or folder}: another kedge process{holder} is working here; {advice}."
                ) from None
            on_wait(holder)
            lock.acquire(timeout=-1, poll_interval=1)
        # Without flock in the file system the file itself is the lock, and filelock's own words in
        # it say who holds it; with others it would count as abandoned after two seconds.
        own_words = isinstance(lock, SoftFileLock)
        if not own_words:
            _sign(lock_file)
    except OSError as error:
        raise KedgeError(f"{folder}: cannot write here ({error.strerror or error}).") from None
    try:
        yield
    finally:
        if not own_words:
            with suppress(OSError):  # the folder may have become read-only
                lock_file.unlink(missing_ok=True)
        lock.release()


def _sign(lock_file: Path) -> None:
    """Say in a lock that this process holds who holds it: the folder may be shared by hosts."""
    with suppress(OSError), open(lock_file, "wb", opener=without_links) as file:
        file.write(f"{os.getpid()}\n{socket.gethostname()}\n".encode())


def _holder(lock_file: Path) -> str:
    """' (process 123 on HOST)'; empty for a lock of an earlier version."""
    with suppress(OSError, ValueError), open_regular(lock_file) as file:
        process, host, *_ = file.read(500).decode().split("\n")
        return f" (process {process} on {host})"
    return ""
