"""Dataclasses of settings from and to JSON, which may be damaged or hostile; their validation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import reprlib
import types
import typing
from typing import Any, NoReturn, TypeVar

from kedge.errors import KedgeError, require

T = TypeVar("T")
MAX_DEPTH = 30  # lists and objects within each other


def option_name(name: str) -> str:
    """A field as the command line's option: 'n_way' → '--n-way'."""
    return f"--{name.replace('_', '-')}"


def as_in_python(text: str) -> str:
    """The text with options as keyword arguments: 'n_way=5: …' for '--n-way 5: …'."""

    def keyword(option: re.Match[str]) -> str:
        name, value = option[1].replace("-", "_"), option[2]
        if value is None:
            return f"{name}=…"
        plain = value.startswith("'") or re.fullmatch(r"[\d.]+", value)
        return f"{name}={value}" if plain else f"{name}='{value}'"

    return re.sub(r"--([a-z]+(?:-[a-z]+)*)(?: (\S+|'[^']*')(?=: ))?", keyword, text)


def normalize(config: Any) -> None:
    """Convert the fields of a config to Python's own types (from NumPy's, say), or raise."""
    kind: type = type(config)
    for name, hint in _hints(kind).items():
        if not dataclasses.is_dataclass(hint):
            value = validated(option_name(name), hint, getattr(config, name))
            object.__setattr__(config, name, value)


def validated(option: str, hint: Any, value: Any) -> Any:
    """The value as the type that the hint says, or an error that names the option."""
    try:
        return _convert(hint, _as_python(value))
    except KedgeError:
        is_list = typing.get_origin(hint) is tuple
        each = typing.get_args(hint)[0] if is_list else hint
        kinds = typing.get_args(each) or (each,)
        kind = "a number" if float in kinds else "a whole number" if int in kinds else "a word"
        also = " or two, a range" if any(typing.get_origin(k) is tuple for k in kinds) else ""
        kind = f"{'a list, each entry ' if is_list else ''}{kind}{also}"
        raise KedgeError(f"{option} is {reprlib.repr(value)}: it must be {kind}.") from None


def _as_python(value: Any) -> Any:
    if isinstance(value, tuple | list | range):
        return [_as_python(each) for each in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def to_dict(config: Any) -> dict[str, Any]:
    """A config as it is saved in JSON. Keys of renamed fields stay as they were ("saved_as");
    fields that were added later are left out at their default ("omit_default")."""
    saved = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if not (f.metadata.get("omit_default") and value == f.default):
            saved[f.metadata.get("saved_as", f.name)] = _as_saved(value)
    return saved


def _as_saved(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    is_list = isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value))
    return [to_dict(each) for each in value] if is_list else value


def from_dict(kind: type[T], data: Any) -> T:
    """A config from JSON, validated; unknown keys are named. Fields may have their saved names."""
    require(isinstance(data, dict), f"{kind.__name__} must be an object with names and values.")
    fields = dataclasses.fields(typing.cast(Any, kind))
    saved = {f.metadata["saved_as"]: f.name for f in fields if "saved_as" in f.metadata}
    data = {saved.get(name, name): value for name, value in data.items()}
    unknown = sorted(set(data) - {f.name for f in fields})
    short = (name if len(name) < 40 else f"{name[:30]}…" for name in unknown[:3])
    require(not unknown, f"{kind.__name__} has no setting named {', '.join(short)}.")
    hints = _hints(typing.cast(type, kind))
    try:
        return kind(**{name: _convert(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise KedgeError(f"{kind.__name__} cannot be built from this file: {error}.") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _convert(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for kind in inner:  # the first that fits
            with contextlib.suppress(KedgeError):
                return _convert(kind, value)
        names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in inner)
        raise KedgeError(f"{reprlib.repr(value)} must be of type {names}.")
    if origin is tuple and isinstance(value, list):
        each = inner[:1] * len(value) if Ellipsis in inner else inner
        require(len(each) == len(value), f"{reprlib.repr(value)} must hold {len(inner)} values.")
        return tuple(_convert(kind, item) for kind, item in zip(each, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _convert(inner[1], each) for key, each in value.items()}
    if hint in (int, float, str, types.NoneType) or origin in (tuple, dict):
        wanted = (int, float) if hint is float else origin or hint
        fits = isinstance(value, wanted) and not isinstance(value, bool)
        require(fits, f"{reprlib.repr(value)} must be of type {(origin or hint).__name__}.")
    return value


def parse_json(text: str) -> Any:
    """The value of a JSON text without NaN, repeated keys and deep nesting, or ValueError."""
    value = json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_unique_keys)
    check_depth(value)
    if re.search(r"\\u[dD][89a-fA-F]", text):  # a lone surrogate parses, but cannot be printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def check_depth(value: Any, most: int = MAX_DEPTH) -> None:
    """Raise ValueError if lists and objects are nested too deeply."""
    if most == 0:
        raise ValueError(f"lists and objects are nested more than {MAX_DEPTH} times")
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            check_depth(inner, most - 1)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(values := dict(pairs)) < len(pairs):
        raise ValueError("a key is repeated")
    return values
