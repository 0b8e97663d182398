"""Plain objects and NumPy arrays that a pickle may ask for, built without importing anything.

`GLOBALS` lists every name that a pickle may use. Arrays are views of the mapped file.
"""

from __future__ import annotations

import codecs
import math
import mmap
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kedge.errors import KedgeError

SPILL_CHUNK = 4 << 20  # bytes of text that are converted at once
MAX_PICKLE_DEPTH = 100  # of nested containers; data sets have fewer than ten levels
MAX_CONTAINERS = 1_500_000  # a byte of the file may make one of 90 bytes, and 150 to look at it
MAX_KEY_LENGTH = 1024
# Numbers, unlike text, can be chosen so that their hashes collide, which takes quadratic time.
# Few numbers of 64 bits share a hash; any number of tuples may.
MAX_NUMBER_KEYS, MAX_TUPLE_KEYS = 1 << 16, 1 << 10
TOO_DEEP = f"containers nested more than {MAX_PICKLE_DEPTH} deep"

_DTYPES = re.compile(r"b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,3}|O[48]?")
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_LEAVES = _SCALARS | {memoryview, np.ndarray}
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


class Global(NamedTuple):
    """A name that the file uses; `build` stands in for calling the object of that name."""

    name: str
    build: Callable[[ObjectBuilder, tuple], Any]


@dataclass(slots=True, eq=False)
class Pending:
    """An array or a dtype that is in the memo before its state has been read."""

    value: Any = None


class LongText(NamedTuple):
    """Long text, which usually stands for the bytes of an array and is left in the file."""

    utf8: memoryview


class ObjectBuilder:
    """Builds the objects of one pickle, within limits on memory and time.

    A ValueError, TypeError, LookupError or ArithmeticError means that the file is damaged.
    """

    def __init__(self, path: str | Path, n_bytes: int) -> None:
        self.path = path
        self._n_number_keys = self._n_tuple_keys = self._n_containers = 0
        # A file that has the same bytes copied again and again would fill the memory.
        self._copy_budget = 4 * n_bytes + 100_000

    def refused(self, what: str) -> KedgeError:
        unsafe = f"this pickle asks for {what}, which no image data set needs, and was not run"
        return KedgeError(f"{self.path}: {unsafe}; get it from a source you trust.")

    def spend_copy(self, n_bytes: int) -> None:
        self._copy_budget -= n_bytes
        if self._copy_budget < 0:
            raise self.refused("the same data to be copied many times")

    def count_containers(self, n: int) -> None:
        self._n_containers += n
        if self._n_containers > MAX_CONTAINERS:
            raise self.refused(f"more than {MAX_CONTAINERS} lists, tuples and dicts")

    def check_plain(self, value: Any) -> None:
        """Refuse results that hold anything but plain data."""
        # Goes level by level: no recursion for deep nesting, linear time for shared containers.
        level, seen = [value], set[int]()
        for _ in range(MAX_PICKLE_DEPTH):
            types = set(map(type, level)) - _LEAVES
            if not all(issubclass(kind, np.generic | np.dtype) for kind in types - _CONTAINERS):
                raise self.refused("something that is no plain data")
            if not types & _CONTAINERS:
                return
            self.count_containers(sum(type(x) in _CONTAINERS for x in level))
            inside = {id(x): x for x in level if type(x) in _CONTAINERS and id(x) not in seen}
            seen.update(inside)
            level = [y for x in inside.values() for y in (x.values() if type(x) is dict else x)]
        raise self.refused(TOO_DEEP)

    def key(self, value: Any) -> Any:
        """A key of a dict or set whose hash is quick; NumPy scalars become Python's."""
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) not in (str, bytes):
            self._n_number_keys += 1
        items = value if type(value) is tuple else (value,)
        self._n_tuple_keys += items is value
        too_many = self._n_number_keys > MAX_NUMBER_KEYS or self._n_tuple_keys > MAX_TUPLE_KEYS
        too_many = too_many or len(items) > 16
        if too_many or not all(map(_is_key, items)):
            raise self.refused("keys of a dict or set other than short text and some numbers")
        return value

    def array(self, raw: Any, dtype: Any, shape: Any, fortran: int) -> Any:
        """A view of the bytes; an array of objects becomes a list."""
        check(isinstance(dtype, np.dtype) and type(shape) is tuple and len(shape) <= 32)
        check(all(type(n) is int and n >= 0 for n in shape))
        if dtype.kind == "O":
            if type(raw) is not list or shape != (len(raw),):
                raise self.refused("an array of objects with other than one axis")
            return raw
        if type(raw) is str:  # a short string of Python 2
            raw = raw.encode("latin1")
        check(type(raw) in (bytes, memoryview) and len(raw) == math.prod(shape) * dtype.itemsize)
        if dtype.kind == "U" and len(raw) > 0:  # NumPy fails only later on an invalid code point
            self.spend_copy(len(raw))
            check(bool(np.frombuffer(raw, dtype.str[0] + "u4").max() <= 0x10FFFF))
        return np.ndarray(shape, dtype, raw, order="F" if fortran else "C")

    def with_state(self, value: Any, state: tuple) -> Any:
        """The array or dtype that a pending object becomes by its state."""
        if value is None:
            shape, dtype, fortran, raw = state[-4:]  # most files have a version before these
            return self.array(raw, dtype, shape, type(fortran) in (bool, int) and fortran)
        _, order, *records = state[:5]
        check(isinstance(value, np.dtype) and type(order) is str)
        if any(part is not None for part in records):
            raise self.refused("an array of records")
        return value.newbyteorder(order)

    # The methods below are the `build` of a Global.

    def array_from_buffer(self, args: tuple) -> np.ndarray:
        raw, dtype, shape, order, axes = (*args[:5], None)[:5]
        array = self.array(raw, dtype, shape, type(order) is str and order == "F")
        check(type(array) is np.ndarray)
        return array.transpose(axes) if type(axes) is tuple else array

    def pending_array(self, args: tuple) -> Pending:
        check(len(args) == 3 and args[0] is GLOBALS["numpy", "ndarray"])
        return Pending()

    def pending_dtype(self, args: tuple) -> Pending:
        check(len(args) > 0 and type(args[0]) is str)
        if not _DTYPES.fullmatch(args[0]):
            raise self.refused("an array of something else than numbers or short text")
        return Pending(np.dtype("O" if args[0][0] == "O" else args[0]))

    def scalar(self, args: tuple) -> np.generic:
        dtype, raw = args
        array = self.array(raw, dtype, (), False)
        self.spend_copy(array.nbytes)
        return array[()]

    def encode(self, args: tuple) -> bytes | memoryview:
        """Bytes that Python 3 wrote as latin1 text, for readers of Python 2."""
        value, codec = args
        if type(codec) is not str or codec not in ("latin1", "latin-1"):
            raise self.refused("another codec than latin1")
        check(type(value) in (str, LongText))
        self.spend_copy(len(value) if type(value) is str else len(value.utf8))
        return value.encode("latin1") if type(value) is str else self._encode_on_disk(value.utf8)

    def _encode_on_disk(self, utf8: memoryview) -> memoryview:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with tempfile.TemporaryFile() as file:
                for start in range(0, len(utf8), SPILL_CHUNK):
                    chunk = bytes(utf8[start : start + SPILL_CHUNK])
                    file.write(
                        decoder.decode(chunk, start + SPILL_CHUNK >= len(utf8)).encode("latin1")
                    )
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            what = f"{len(utf8) >> 20} MiB did not fit in a temporary file ({error.strerror})"
            raise KedgeError(f"{self.path}: {what}; set TMPDIR to a larger disk.") from None

    def plain_bytes(self, args: tuple) -> bytes | memoryview:
        if len(args) == 1 and type(args[0]) in (bytes, memoryview):
            return args[0]
        return self.encode(args) if args else b""

    def items(self, args: tuple) -> list[Any] | tuple:
        check(len(args) == 0 or (len(args) == 1 and type(args[0]) in (list, tuple)))
        self.spend_copy(sum(map(len, args)))
        return args[0] if args else ()

    def plain_dict(self, args: tuple) -> dict[Any, Any]:
        """A dict, also from an OrderedDict, which Python 2 writes as a list of pairs."""
        pairs = self.items(args)
        check(all(type(pair) in (list, tuple) for pair in pairs))
        return {self.key(key): value for key, value in pairs}

    def default_dict(self, args: tuple) -> dict[Any, Any]:
        check(len(args) == 0 or (len(args) == 1 and type(args[0]) in (Global, type(None))))
        return {}

    def not_callable(self, args: tuple) -> None:
        raise self.refused("a class to be called")


def check(condition: bool) -> None:
    """Raise the ValueError that means a damaged file."""
    if not condition:
        raise ValueError


def _is_key(value: Any) -> bool:
    if type(value) in (str, bytes):
        return len(value) <= MAX_KEY_LENGTH
    return type(value) in _SCALARS and not (type(value) is int and value.bit_length() > 64)


_BUILDERS: list[tuple[str, str, Callable[[ObjectBuilder, tuple], Any]]] = [
    ("numpy.core.multiarray numpy._core.multiarray", "_reconstruct", ObjectBuilder.pending_array),
    ("numpy.core.multiarray numpy._core.multiarray", "scalar", ObjectBuilder.scalar),
    ("numpy.core.numeric numpy._core.numeric", "_frombuffer", ObjectBuilder.array_from_buffer),
    ("numpy", "ndarray", ObjectBuilder.not_callable),
    ("numpy", "dtype", ObjectBuilder.pending_dtype),
    ("_codecs", "encode", ObjectBuilder.encode),
    ("collections", "OrderedDict", ObjectBuilder.plain_dict),
    ("collections", "defaultdict", ObjectBuilder.default_dict),
    ("builtins __builtin__", "dict", ObjectBuilder.plain_dict),
    ("builtins __builtin__", "list", lambda b, args: list(b.items(args))),
    ("builtins __builtin__", "tuple", lambda b, args: tuple(b.items(args))),
    ("builtins __builtin__", "set", lambda b, args: set(map(b.key, b.items(args)))),
    ("builtins __builtin__", "frozenset", lambda b, args: frozenset(map(b.key, b.items(args)))),
    ("builtins __builtin__", "bytes", ObjectBuilder.plain_bytes),
    ("builtins __builtin__", "bytearray", ObjectBuilder.plain_bytes),
    # A defaultdict names these types; data has no need to call them.
    *(
        ("builtins __builtin__", name, ObjectBuilder.not_callable)
        for name in ("int", "float", "bool", "str", "long", "unicode")
    ),
]
GLOBALS = {(m, n): Global(f"{m}.{n}", build) for ms, n, build in _BUILDERS for m in ms.split()}
