"""Weights of a network from a file that somebody else made. Reading it runs no code."""

from __future__ import annotations

import hashlib
import pickle
import pickletools
import textwrap
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from kedge.errors import KedgeError, require
from kedge.utils.regular_file import open_regular

NESTED = ("state_dict", "model", "model_ema")  # where training programs put the state dict
PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
# An instruction is a byte of the file, and may be 230 of memory. A tensor takes some forty of them.
MOST_INSTRUCTIONS = 1_000_000
MOST_CHARACTERS = 1 << 16  # of a name: PyTorch's message about 2 million takes 50 s
LEGACY_PICKLES = 5  # which a file of PyTorch before 1.6 begins with
N_NAMED = 3  # weights that an error names


class WeightsFile(NamedTuple):
    """The content of a file of weights."""

    state: dict[str, Tensor]
    sha256: str


def read_weights(path: Path) -> WeightsFile:
    """The state dict in a safetensors or PyTorch file, and the SHA-256 of the file."""
    require(path.exists(), f"{path}: there is no such file; give a file of weights.")
    require(path.is_file(), f"{path}: this is no file; give a file of weights.")
    try:
        with open_regular(path) as file:
            start = file.read(16)
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        content = _read_safetensors(path) if start[8:9] == b"{" else _read_torch(path, start)
    except pickle.UnpicklingError as error:
        if not start.startswith((b"\x80", b"PK")):  # an image, say, is read as a pickle, too
            raise _damaged(path, ValueError("it begins like neither")) from None
        if "nsupported" not in str(error):  # what is read before a global or an operand
            raise _damaged(path, error) from None
        raise KedgeError(
            f"{path}: it holds more than tensors, and loading the rest would run code from the "
            "file; save the tensors alone: torch.save(network.state_dict(), FILE)."
        ) from None
    except Exception as error:  # PyTorch's reader raises anything on damaged files
        raise _damaged(path, error) from None
    return WeightsFile(_state_dict(content, path), sha256)


def _damaged(path: Path, error: Exception) -> KedgeError:
    text = str(getattr(error, "strerror", None) or error).split("\n")[0]
    reason = textwrap.shorten(text or type(error).__name__, 200).rstrip(".")
    return KedgeError(
        f"{path}: not readable as weights in safetensors or PyTorch's format, or damaged "
        f"({reason}); fetch or save it again."
    )


def _read_safetensors(path: Path) -> Any:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def _read_torch(path: Path, start: bytes) -> Any:
    in_place = start.startswith(b"PK")  # a zip file; PyTorch before 1.6 wrote another format
    with open_regular(path) as file:
        if in_place:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if member.compress_type != zipfile.ZIP_STORED:
                        raise ValueError("a part of it is compressed, which PyTorch never does")
                    if member.filename.endswith("data.pkl"):
                        with archive.open(member) as program:
                            _check_length(program, 1)
        elif start.startswith(b"\x80"):
            _check_length(file, LEGACY_PICKLES)
    with warnings.catch_warnings(action="ignore"):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=in_place)


def _check_length(file: Any, n_pickles: int) -> None:
    """Raise ValueError if pickles in an open file have so many instructions that PyTorch would fill
    the memory, or names so long that it takes minutes to say what is wrong with them."""
    programs = chain.from_iterable(pickletools.genops(file) for _ in range(n_pickles))
    n = longest = 0
    with suppress(ValueError):  # damaged: PyTorch's reader says how
        for _, argument, _ in islice(programs, MOST_INSTRUCTIONS):
            n += 1
            longest = max(longest, len(argument) if isinstance(argument, str) else 0)
    if n == MOST_INSTRUCTIONS:
        raise ValueError(f"its list of tensors takes {n:,} steps or more")
    if longest > MOST_CHARACTERS:
        raise ValueError(f"a name in it has {longest:,} characters")


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    for _ in NESTED:
        inner = content if isinstance(content, dict) else {}
        name = next((name for name in NESTED if isinstance(inner.get(name), dict)), None)
        content = content if name is None else inner[name]
    valid = isinstance(content, dict) and bool(content)
    valid = valid and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    require(
        valid,
        f"{path}: this is no state dict, which has a tensor for each name; write one with "
        "torch.save(network.state_dict(), FILE).",
    )
    state = dict(content)
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    for name, value in state.items():
        # A forged tensor may repeat a few stored numbers to any size.
        dense = value.layout == torch.strided and not value.is_quantized
        whole = dense and value.nbytes <= value.untyped_storage().nbytes()
        require(whole, f"{path}: '{name[:80]}' is no ordinary tensor; save it as one.")
    return state


def load_into(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Load weights of the same names and shapes. If one differs, raise and load nothing."""
    own = module.state_dict()
    # Files from before BatchNorm counted its batches lack these counts.
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in state if k not in own]
    shapes = {k: (tuple(state[k].shape), tuple(v.shape)) for k, v in own.items() if k in state}
    faults = {
        "without": missing,
        "with the unknown": unexpected,
        "with other shapes of": [
            f"{k} ({_shape(theirs)}, not {_shape(ours)})"
            for k, (theirs, ours) in shapes.items()
            if theirs != ours
        ],
        "with other types of": [
            k for k in shapes if state[k].is_floating_point() != own[k].is_floating_point()
        ],
    }
    texts = [f"{how} {_first_few(names)}" for how, names in faults.items() if names]
    require(
        not texts,
        f"{path}: these are not weights of this network: {'; '.join(texts)}. Give the file that "
        "belongs to --backbone.",
    )
    infinite = [k for k, v in state.items() if not bool(v.isfinite().all())]
    require(not infinite, f"{path}: not all numbers are finite in {_first_few(infinite)}.")
    module.load_state_dict(dict(state), strict=False)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1 number"


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - N_NAMED} more" if names[N_NAMED:] else ""
    return ", ".join(textwrap.shorten(name, 100) for name in names[:N_NAMED]) + more
