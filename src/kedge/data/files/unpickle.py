"""Data sets that are traded as pickles, read without running anything and with little memory.

A pickle is a program: Python's own reader imports and calls whatever the file names, and copies
every byte string. This machine knows the opcodes that data needs, imports nothing, and has makers
of plain things for the few names that data sets use; any other name ends the reading. Long byte
strings are views of the mapped file, so an array costs no memory until it is touched.

What comes out is made of None, bool, int, float, str, bytes (long ones and bytearrays as read-only
`memoryview`), list, tuple, dict, set, frozenset, read-only arrays, NumPy's scalars and dtypes. An
array of objects comes as a list. A Python 2 string cannot be told from bytes: short ones come as
str by latin1, of which `encode("latin1")` gives the bytes.
"""

from __future__ import annotations

import codecs
import math
import mmap
import re
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kedge.errors import KedgeError

SHORT = 255  # bytes; longer strings are not copied out of the file (Python 2's opcodes part here)
SPILL = 64 << 20  # bytes; longer text that stands for bytes is turned into them on the disk
CHUNK = 4 << 20
DEPTH = 100  # of containers in containers: data sets have less than ten
KEY_LENGTH = 1024
# The hashes of numbers, unlike those of text, can be chosen to collide: quadratic time.
NUMBER_KEYS = 1 << 16
# A small thing takes some 80 bytes, whose opcode may be one byte: this many take a gigabyte. The
# 448,695 arrays of tieredImageNet, the largest of these data sets, take 13 million at most.
MOST_OPCODES = 15_000_000

_DTYPES = re.compile(r"b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,3}|O[48]?")
_ESCAPED = re.compile(rb"(?:[^\\]|\\(?:[\\'\"abfnrtv]|x[0-9a-fA-F]{2}))*+")
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_LEAVES = _SCALARS | {memoryview, np.ndarray}
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_TOO_DEEP = f"containers nested more than {DEPTH} deep"


def unpickled(path: str | Path) -> Any:
    """What a pickle of plain things and arrays holds. No code of the file's choosing is run."""
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise KedgeError(f"{path}: could not be read ({error.strerror}).") from None
    except ValueError:
        raise KedgeError(f"{path}: this file is empty; download it again.") from None
    machine = _Machine(path, data)
    try:
        return machine.run()
    except (LookupError, TypeError, ValueError, ArithmeticError):
        raise machine.damaged() from None


def text(value: str | bytes | memoryview) -> str:
    """A name, however Python 2 or 3 wrote it."""
    return value if isinstance(value, str) else str(value, "latin1")


def keys_as_text(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same with `"data"` in the place of `b"data"`; other keys and all values are as before."""
    return {text(k) if isinstance(k, bytes) else k: v for k, v in mapping.items()}


class _Global(NamedTuple):
    """Stands for something that the file names; `make` is what calling it comes to here."""

    name: str
    make: Callable[[_Machine, tuple], Any]


@dataclass(slots=True, eq=False)
class _Pending:
    """An array or a dtype whose state follows: the memo has it before it is complete."""

    value: Any = None


@dataclass(slots=True, eq=False)
class _LongText:
    """Text that most likely stands for an array's bytes, so it is left in the file."""

    utf8: memoryview


class _Machine:
    """The stack, the marks and the memo of one pickle. ValueError and the like mean damage."""

    def __init__(self, path: str | Path, data: mmap.mmap) -> None:
        self.path, self.data, self.view = path, data, memoryview(data)
        self.pos, self.size = 0, len(data)
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks below the marks
        self.memo: dict[int, Any] = {}
        self.number_keys = 0
        # What is copied was read before; copies of the same again and again would fill the memory.
        self.to_copy = 4 * self.size + 100_000

    def run(self) -> Any:
        data, table = self.data, _TABLE
        for _ in range(MOST_OPCODES):
            code = data[self.pos]
            if code == 46:  # STOP
                self.check_plain(self.stack[-1])
                return self.stack[-1]
            self.pos += 1
            table[code](self)
        raise self.refused(f"more than {MOST_OPCODES} small things")

    # ── what can be wrong ────────────────────────────────────────────────────────────────────

    def damaged(self, short: bool = False) -> KedgeError:
        where = f"byte {min(self.pos, self.size)} of {self.size}"
        if short or self.pos >= self.size:
            what = f"the pickle ends too early, at {where}"
        else:
            what = f"not a pickle, or damaged: what stands near {where} makes no sense"
        return KedgeError(f"{self.path}: {what}; download it again.")

    def refused(self, what: str) -> KedgeError:
        return KedgeError(
            f"{self.path}: this pickle asks for {what}, which no image data set needs; it was not "
            "run. Get the file from a source you trust."
        )

    def check_plain(self, value: Any) -> None:
        """Level by level, since nesting must not cost recursion, nor sharing exponential time."""
        level, seen = [value], set[int]()
        for _ in range(DEPTH):
            kinds = set(map(type, level)) - _LEAVES
            if not all(issubclass(kind, np.generic | np.dtype) for kind in kinds - _CONTAINERS):
                raise self.refused("something that is no plain data")
            if not kinds & _CONTAINERS:
                return
            inside = {id(x): x for x in level if type(x) in _CONTAINERS and id(x) not in seen}
            seen.update(inside)
            level = [y for x in inside.values() for y in (x.values() if type(x) is dict else x)]
        raise self.refused(_TOO_DEEP)

    def copying(self, n: int) -> None:
        self.to_copy -= n
        if self.to_copy < 0:
            raise self.refused("the same data to be copied many times")

    def key(self, value: Any) -> Any:
        """A key of a dict or a set, if its hash is quick; NumPy's scalars become plain ones."""
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) not in (str, bytes):
            self.number_keys += 1
        parts = value if type(value) is tuple else (value,)
        if self.number_keys > NUMBER_KEYS or len(parts) > 16 or not all(map(_is_key, parts)):
            raise self.refused("keys of a dict or set other than short text and some numbers")
        return value

    # ── arguments of opcodes ─────────────────────────────────────────────────────────────────

    def expect(self, n: int) -> None:
        if n > self.size - self.pos:
            raise self.damaged(short=True)

    def view_of(self, n: int) -> memoryview:
        self.expect(n)
        start, self.pos = self.pos, self.pos + n
        return self.view[start : self.pos]

    def number(self, n: int, signed: bool = False) -> int:
        start = self.pos
        self.pos = end = start + n
        if end > self.size:
            raise self.damaged()
        return int.from_bytes(self.data[start:end], "little", signed=signed)

    def line(self, limit: int | None = 300) -> bytes:
        stop = self.size if limit is None else min(self.pos + limit, self.size)
        start, end = self.pos, self.data.find(b"\n", self.pos, stop)
        if end < 0:
            raise self.damaged(short=stop == self.size)
        self.pos = end + 1
        return self.data[start:end]

    def till_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    # ── opcodes that are more than a line ────────────────────────────────────────────────────

    def mark(self) -> None:
        if len(self.below) >= DEPTH:
            raise self.refused(_TOO_DEEP)
        self.below.append(self.stack)
        self.stack = []

    def push(self, value: Any) -> None:
        self.stack.append(value)  # the stack as it is once the value is made

    def push_bytes(self, n: int) -> None:
        raw = self.view_of(n)
        self.stack.append(bytes(raw) if n <= SHORT else raw)

    def push_python2(self, raw: bytes | memoryview) -> None:
        self.stack.append(text(raw) if len(raw) <= SHORT else raw)

    def push_text(self, n: int) -> None:
        raw = self.view_of(n)
        self.stack.append(_LongText(raw) if n > SPILL else str(raw, "utf-8", "surrogatepass"))

    def python2_line(self) -> None:
        """Quoted and escaped, as Python 2's repr() has it."""
        line = self.line(None).strip()
        _need(len(line) > 1 and line[:1] in (b"'", b'"') and line[-1:] == line[:1])
        _need(bool(_ESCAPED.fullmatch(line, 1, len(line) - 1)))  # Python would warn of others
        self.push_python2(codecs.escape_decode(line[1:-1])[0])

    def integer_line(self) -> None:
        line = self.line(202)
        booleans = {b"00": False, b"01": True}
        self.stack.append(booleans[line] if line in booleans else int(line.removesuffix(b"L")))

    def long(self, n: int) -> None:
        if n > 64:
            raise self.refused(f"an integer of {n} bytes")
        self.stack.append(self.number(n, signed=True))

    def find(self, module: Any, name: Any) -> _Global:
        _need(type(module) is str and type(name) is str)
        if (found := _GLOBALS.get((module, name))) is None:
            raise self.refused(ascii(f"{module[:80]}.{name[:80]}")[1:-1])
        return found

    def call(self) -> None:
        args, called = self.stack.pop(), self.stack.pop()
        _need(type(called) is _Global and type(args) is tuple)
        self.stack.append(called.make(self, args))

    def build(self) -> None:
        state, pending = self.stack.pop(), self.stack[-1]
        if type(pending) is not _Pending or type(state) is not tuple:
            raise self.refused("an object to be given a state")
        if pending.value is None:
            shape, dtype, fortran, raw = state[-4:]  # behind a version, in most files
            pending.value = self.array(raw, dtype, shape, type(fortran) in (bool, int) and fortran)
        else:
            _, order, *records = state[:5]
            _need(isinstance(pending.value, np.dtype) and type(order) is str)
            if any(part is not None for part in records):
                raise self.refused("an array of records")
            pending.value = pending.value.newbyteorder(order)
        self.stack[-1] = pending.value

    def get(self, index: int) -> None:
        value = self.memo[index]
        if type(value) is _Pending and value.value is not None:
            value = value.value
        self.stack.append(value)

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def empty_set(self) -> set[Any]:
        self.copying(20)  # an empty one is large, and its opcode is a byte
        return set()

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            target.update(map(self.key, items))
        else:
            raise ValueError

    def update(self, items: list[Any], new: bool = False) -> None:
        if new:
            self.stack.append({})
        _need(type(self.stack[-1]) is dict)
        self.stack[-1].update(zip(map(self.key, items[::2]), items[1::2], strict=True))

    # ── what stands in for the names ─────────────────────────────────────────────────────────

    def array(self, raw: Any, dtype: Any, shape: Any, fortran: int) -> Any:
        """A view of the bytes; an array of objects is the list of them."""
        _need(isinstance(dtype, np.dtype) and type(shape) is tuple and len(shape) <= 32)
        _need(all(type(n) is int and n >= 0 for n in shape))
        if dtype.kind == "O":
            if type(raw) is not list or shape != (len(raw),):
                raise self.refused("an array of objects with other than one axis")
            return raw
        if type(raw) is str:  # a short one of Python 2
            raw = raw.encode("latin1")
        _need(type(raw) in (bytes, memoryview) and len(raw) == math.prod(shape) * dtype.itemsize)
        if dtype.kind == "U" and len(raw) > 0:  # NumPy would fail later, where a character is none
            self.copying(len(raw))
            _need(bool(np.frombuffer(raw, dtype.str[0] + "u4").max() <= 0x10FFFF))
        return np.ndarray(shape, dtype, raw, order="F" if fortran else "C")

    def array_of_buffer(self, args: tuple) -> np.ndarray:
        raw, dtype, shape, order, axes = (*args[:5], None)[:5]
        array = self.array(raw, dtype, shape, type(order) is str and order == "F")
        _need(type(array) is np.ndarray)
        return array.transpose(axes) if type(axes) is tuple else array

    def pending_array(self, args: tuple) -> _Pending:
        _need(len(args) == 3 and args[0] is _GLOBALS["numpy", "ndarray"])
        return _Pending()

    def pending_dtype(self, args: tuple) -> _Pending:
        _need(len(args) > 0 and type(args[0]) is str)
        if not _DTYPES.fullmatch(args[0]):
            raise self.refused("an array of something else than numbers or short text")
        return _Pending(np.dtype("O" if args[0][0] == "O" else args[0]))

    def scalar(self, args: tuple) -> np.generic:
        dtype, raw = args
        array = self.array(raw, dtype, (), False)
        self.copying(array.nbytes)
        return array[()]

    def encoded(self, args: tuple) -> bytes | memoryview:
        """Python 3 writes bytes so for readers of Python 2."""
        value, codec = args
        if type(codec) is not str or codec not in ("latin1", "latin-1"):
            raise self.refused("another codec than latin1")
        _need(type(value) in (str, _LongText))
        self.copying(len(value) if type(value) is str else len(value.utf8))
        return value.encode("latin1") if type(value) is str else self.spilled(value.utf8)

    def spilled(self, utf8: memoryview) -> memoryview:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with tempfile.TemporaryFile() as file:
                for start in range(0, len(utf8), CHUNK):
                    part = bytes(utf8[start : start + CHUNK])
                    file.write(decoder.decode(part, start + CHUNK >= len(utf8)).encode("latin1"))
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise KedgeError(
                f"{self.path}: {len(utf8) >> 20} MiB of this pickle must be turned into bytes in a "
                f"temporary file, which failed ({error.strerror}); let TMPDIR name a larger disk."
            ) from None

    def plain_bytes(self, args: tuple) -> bytes | memoryview:
        if len(args) == 1 and type(args[0]) in (bytes, memoryview):
            return args[0]
        return self.encoded(args) if args else b""

    def items(self, args: tuple) -> list[Any] | tuple:
        _need(len(args) == 0 or (len(args) == 1 and type(args[0]) in (list, tuple)))
        self.copying(sum(map(len, args)))
        return args[0] if args else ()

    def plain_dict(self, args: tuple) -> dict[Any, Any]:
        """Python 2's OrderedDict comes with a list of pairs."""
        pairs = self.items(args)
        _need(all(type(pair) in (list, tuple) and len(pair) == 2 for pair in pairs))
        return {self.key(key): value for key, value in pairs}

    def default_dict(self, args: tuple) -> dict[Any, Any]:
        _need(len(args) == 0 or (len(args) == 1 and type(args[0]) in (_Global, type(None))))
        return {}

    def uncallable(self, args: tuple) -> None:
        raise self.refused("a class to be called")


def _need(fact: bool) -> None:
    if not fact:
        raise ValueError


def _is_key(value: Any) -> bool:
    if type(value) in (str, bytes):
        return len(value) <= KEY_LENGTH
    return type(value) in _SCALARS and not (type(value) is int and value.bit_length() > 64)


_MAKERS: list[tuple[str, str, Callable[[_Machine, tuple], Any]]] = [
    ("numpy.core.multiarray numpy._core.multiarray", "_reconstruct", _Machine.pending_array),
    ("numpy.core.multiarray numpy._core.multiarray", "scalar", _Machine.scalar),
    ("numpy.core.numeric numpy._core.numeric", "_frombuffer", _Machine.array_of_buffer),
    ("numpy", "ndarray", _Machine.uncallable),
    ("numpy", "dtype", _Machine.pending_dtype),
    ("_codecs", "encode", _Machine.encoded),
    ("collections", "OrderedDict", _Machine.plain_dict),
    ("collections", "defaultdict", _Machine.default_dict),
    ("builtins __builtin__", "dict", _Machine.plain_dict),
    ("builtins __builtin__", "list", lambda m, args: list(m.items(args))),
    ("builtins __builtin__", "tuple", lambda m, args: tuple(m.items(args))),
    ("builtins __builtin__", "set", lambda m, args: set(map(m.key, m.items(args)))),
    ("builtins __builtin__", "frozenset", lambda m, args: frozenset(map(m.key, m.items(args)))),
    ("builtins __builtin__", "bytes", _Machine.plain_bytes),
    ("builtins __builtin__", "bytearray", _Machine.plain_bytes),
    # A defaultdict names these, in Python 2's words too; data has no need to call them.
    *(("builtins __builtin__", n, _Machine.uncallable) for n in ("int", "float", "bool", "str")),
    *(("__builtin__", n, _Machine.uncallable) for n in ("long", "unicode")),
]
_GLOBALS = {(m, n): _Global(f"{m}.{n}", make) for ms, n, make in _MAKERS for m in ms.split()}

_OPCODES: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: _need(m.number(1) <= 5),  # PROTO
    b"\x95": lambda m: m.expect(m.number(8)),  # FRAME
    # The stack and the memo
    b"(": _Machine.mark,
    b"0": lambda m: m.stack.pop() if m.stack else m.till_mark(),
    b"1": _Machine.till_mark,
    b"2": lambda m: m.stack.append(m.stack[-1]),
    b"g": lambda m: m.get(int(m.line())),
    b"h": lambda m: m.get(m.number(1)),
    b"j": lambda m: m.get(m.number(4)),
    b"p": lambda m: m.put(int(m.line())),
    b"q": lambda m: m.put(m.number(1)),
    b"r": lambda m: m.put(m.number(4)),
    b"\x94": lambda m: m.put(len(m.memo)),
    # Numbers
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"I": _Machine.integer_line,
    b"L": _Machine.integer_line,
    b"J": lambda m: m.stack.append(m.number(4, signed=True)),
    b"K": lambda m: m.stack.append(m.number(1)),
    b"M": lambda m: m.stack.append(m.number(2)),
    b"\x8a": lambda m: m.long(m.number(1)),
    b"\x8b": lambda m: m.long(m.number(4)),
    b"F": lambda m: m.stack.append(float(m.line())),
    b"G": lambda m: m.stack.append(struct.unpack(">d", m.view_of(8))[0]),
    # Strings
    b"S": _Machine.python2_line,
    b"T": lambda m: m.push_python2(m.view_of(m.number(4))),
    b"U": lambda m: m.push_python2(m.view_of(m.number(1))),
    b"V": lambda m: m.stack.append(str(m.line(None), "raw-unicode-escape")),
    b"X": lambda m: m.push_text(m.number(4)),
    b"\x8c": lambda m: m.push_text(m.number(1)),
    b"\x8d": lambda m: m.push_text(m.number(8)),
    b"B": lambda m: m.push_bytes(m.number(4)),
    b"C": lambda m: m.push_bytes(m.number(1)),
    b"\x8e": lambda m: m.push_bytes(m.number(8)),
    b"\x96": lambda m: m.push_bytes(m.number(8)),
    # Containers
    b")": lambda m: m.stack.append(()),
    b"]": lambda m: m.stack.append([]),
    b"}": lambda m: m.stack.append({}),
    b"\x8f": lambda m: m.stack.append(m.empty_set()),
    b"t": lambda m: m.push(tuple(m.till_mark())),
    b"\x85": lambda m: m.stack.append((m.stack.pop(),)),
    b"\x86": lambda m: m.stack.append((m.stack.pop(-2), m.stack.pop())),
    b"\x87": lambda m: m.stack.append((m.stack.pop(-3), m.stack.pop(-2), m.stack.pop())),
    b"l": lambda m: m.push(m.till_mark()),
    b"d": lambda m: m.update(m.till_mark(), new=True),
    b"\x91": lambda m: m.push(frozenset(map(m.key, m.till_mark()))),
    b"a": lambda m: m.extend([m.stack.pop()]),
    b"e": lambda m: m.extend(m.till_mark()),
    b"\x90": lambda m: m.extend(m.till_mark()),
    b"s": lambda m: m.update([m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: m.update(m.till_mark()),
    # Names and what is made by them
    b"c": lambda m: m.stack.append(m.find(text(m.line()), text(m.line()))),
    b"\x93": lambda m: m.stack.append(m.find(m.stack.pop(-2), m.stack.pop())),
    b"i": lambda m: m.uncallable(m.find(text(m.line()), text(m.line()))),
    b"R": _Machine.call,
    b"\x81": _Machine.call,
    b"b": _Machine.build,
}


def _unknown(machine: _Machine) -> None:
    """Persistent ids, registered extensions, instances and buffers outside of the file."""
    code = machine.data[machine.pos - 1]
    if code in b"PQo\x82\x83\x84\x92\x97\x98":
        raise machine.refused(f"what the opcode {code:#04x} does")
    raise machine.damaged()


_TABLE = [_OPCODES.get(bytes([code]), _unknown) for code in range(256)]
