"""Dataclasses from and to JSON, which may be damaged or hostile; validation by types of fields.

A number in a field whose type has no `Range` must be within WHOLE or FINITE (utils/ranges).
"""

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
from kedge.utils.ranges import number_type

T = TypeVar("T")
MAX_DEPTH = 30  # lists and objects within each other
MAX_VALUES = 3_000_000  # in a text; the largest record of an experiment has some 200,000


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

    return re.sub(r"--([a-z]+(?:-[a-z]+)*)(?: (?!--)(\S+|'[^']*')(?=: | --))?", keyword, text)


def normalize(config: Any) -> None:
    """Convert the fields of a config to Python's own types (from NumPy's, say), or raise."""
    kind: type = type(config)
    for name, hint in _hints(kind).items():
        if not dataclasses.is_dataclass(hint):
            value = validated(option_name(name), hint, getattr(config, name))
            object.__setattr__(config, name, value)


def validated(name: str, hint: Any, value: Any) -> Any:
    """The value as the type that the hint says, or an error that begins with the name."""
    return _convert(name, hint, _as_python(value))


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
        return kind(**{name: _convert(name, hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise KedgeError(f"{kind.__name__} cannot be built from this file: {error}.") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _convert(name: str, hint: Any, value: Any) -> Any:
    """The value as the type that the hint says. Raises KedgeError that begins with the name."""
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        return value if isinstance(value, kind) else from_dict(kind, value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        objects = [kind for kind in inner if dataclasses.is_dataclass(kind)]
        if isinstance(value, dict) and len(objects) == 1:  # for its own error
            return from_dict(typing.cast(type, objects[0]), value)
        for each in inner:  # the first that fits
            with contextlib.suppress(KedgeError):
                return _convert(name, each, value)
        raise _unfit(name, hint, value)
    if origin is tuple and isinstance(value, list | tuple):
        hints = inner[:1] * len(value) if Ellipsis in inner else inner
        if len(hints) != len(value):
            raise _unfit(name, hint, value)
        return tuple(_convert(name, each, item) for each, item in zip(hints, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {
            key: _convert(f"{name} of {key!a:.100}", inner[1], each) for key, each in value.items()
        }
    kind, limits = number_type(hint)
    if limits is not None:
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        fits = is_number and value in limits
    elif origin is typing.Literal:
        fits = isinstance(value, str) and value in inner
    else:
        known = hint in (str, bool, types.NoneType) or origin in (tuple, dict)
        fits = not known or isinstance(value, origin or hint)
    if not fits:
        raise _unfit(name, hint, value)
    return value


def _unfit(name: str, hint: Any, value: Any) -> KedgeError:
    try:
        shown = reprlib.repr(value)
    except ValueError:  # Python prints no number of more than 4300 digits
        shown = "a number of thousands of digits"
    return KedgeError(f"{name} is {shown}: it must be {_in_words(hint)}.")


def _in_words(hint: Any) -> str:
    kind, limits = number_type(hint)
    if limits is not None:
        return f"{'a whole number' if kind is int else 'a number'}{limits}"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in inner if each is not types.NoneType]
        ranges = [each for each in kinds if typing.get_origin(each) is tuple]
        words = [_in_words(each) for each in kinds if each not in ranges]
        return " or ".join([*words, *["two, a range"] * bool(ranges)])
    if origin is tuple and Ellipsis in inner:
        return f"a list, each entry {_in_words(inner[0])}"
    if origin is tuple:
        return f"{len(inner)} values, each {_in_words(inner[0])}"
    if origin is typing.Literal:
        return " or ".join(inner)
    return {bool: "true or false", types.NoneType: "null"}.get(
        hint, "an object" if origin is dict else "a word"
    )


def parse_json(text: str) -> Any:
    """The value of a JSON text without NaN, repeated keys and deep nesting, or ValueError."""
    if sum(map(text.count, ",[{")) > MAX_VALUES:  # a hundred times the memory of the text
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
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
