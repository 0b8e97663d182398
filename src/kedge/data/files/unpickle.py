"""A reader of data sets in pickle files that runs no code of the file and needs little memory.

A pickle is a program: Python's own reader imports and calls whatever the file names, and copies
every byte string. This one knows the opcodes that data needs and builds only what `pickle_objects`
lists, within limits, so it needs no process of its own. Long byte strings are views of the mapped
file, so an array takes no memory until it is used.

The result consists of None, bool, int, float, str, bytes (long ones and bytearrays as read-only
`memoryview`), list, tuple, dict, set, frozenset, read-only arrays, NumPy scalars and dtypes; an
array of objects becomes a list. Python 2 strings may be text or bytes: short ones become str, and
`encode("latin1")` restores their bytes.
"""

from __future__ import annotations

import codecs
import mmap
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kedge.data.damage import damage_as_error, reject_failed_download
from kedge.data.files.mapped_file import MappedFile
from kedge.data.files.pickle_objects import (
    GLOBALS,
    MAX_PICKLE_DEPTH,
    TOO_DEEP,
    Global,
    LongText,
    ObjectBuilder,
    Pending,
    check,
)
from kedge.errors import KedgeError

SHORT_BYTES = 255  # bytes; longer strings are not copied out of the file
LONG_TEXT = 64 << 20  # bytes; longer text that stands for bytes is converted on disk
# A small object may be one byte in the file and 80 in memory, and take a microsecond; a line takes
# two. tieredImageNet, the largest of these data sets, has 448,695 arrays, which take 13 million
# opcodes but gigabytes, and labels, which take 6 million at most.
FEW_OPCODES, BYTES_PER_OPCODE, MAX_OPCODES = 6_000_000, 64, 15_000_000

_MISSING = object()  # in the memo
_ESCAPED = re.compile(rb"(?:[^\\]|\\(?:[\\'\"abfnrtv]|x[0-9a-fA-F]{2}))*+")


def load_pickle(path: Path) -> Any:
    """The plain objects and arrays that a pickle file holds."""
    reject_failed_download(path)
    with damage_as_error(path):
        data = MappedFile.open(path)
    machine = _Machine(path, data)
    try:
        return machine.run()
    except (LookupError, TypeError, ValueError, ArithmeticError):
        raise machine.damaged() from None


def as_text(value: str | bytes | memoryview) -> str:
    """A string that Python 2 or 3 wrote, as text."""
    return value if isinstance(value, str) else str(value, "latin1")


class _Machine:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.view = path, data, memoryview(data)
        self.pos, self.size = 0, len(data)
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []  # those below the marks
        # No dict: its time is quadratic if hashes collide, which numbers can be chosen to do.
        self.memo: list[Any] = []
        self.objects = ObjectBuilder(path, self.size)
        self.most_opcodes = min(FEW_OPCODES + self.size // BYTES_PER_OPCODE, MAX_OPCODES)
        self.n_lines = 0

    def run(self) -> Any:
        data, table = self.data, _TABLE
        for _ in range(self.most_opcodes):
            code = data[self.pos]
            if code == 46:  # STOP
                self.objects.check_plain(self.stack[-1])
                return self.stack[-1]
            self.pos += 1
            table[code](self)
        raise self.too_many()

    def too_many(self) -> KedgeError:
        return self.objects.refused(f"more than {self.most_opcodes} small things")

    def damaged(self) -> KedgeError:
        where = f"byte {min(self.pos, self.size)} of {self.size}"
        what = f"not a pickle, or truncated or damaged near {where}"
        return KedgeError(f"{self.path}: {what}; download it again.")

    def expect(self, n: int) -> None:
        if n > self.size - self.pos:
            raise self.damaged()

    def view_of(self, n: int) -> memoryview:
        self.expect(n)
        start, self.pos = self.pos, self.pos + n
        return self.view[start : self.pos]

    def byte(self) -> int:
        value = self.data[self.pos]  # an IndexError at the end
        self.pos += 1
        return value

    def number(self, n: int, signed: bool = False) -> int:
        return int.from_bytes(self.short(n), "little", signed=signed)

    def line(self, limit: int | None = 300) -> bytes:
        self.n_lines += 1
        if self.n_lines > self.most_opcodes // 3:
            raise self.too_many()
        stop = self.size if limit is None else min(self.pos + limit, self.size)
        start, end = self.pos, self.data.find(b"\n", self.pos, stop)
        if end < 0:
            raise self.damaged()
        self.pos = end + 1
        return self.data[start:end]

    def pop_mark(self) -> list[Any]:
        """The items above the last mark."""
        items, self.stack = self.stack, self.outer_stacks.pop()
        return items

    def mark(self) -> None:
        if len(self.outer_stacks) >= MAX_PICKLE_DEPTH:
            raise self.objects.refused(TOO_DEEP)
        self.outer_stacks.append(self.stack)
        self.stack = []

    def push(self, value: Any) -> None:
        """For values made by `pop_mark`, which replaces `self.stack`."""
        self.stack.append(value)

    def push_bytes(self, n: int) -> None:
        self.stack.append(self.short(n) if n <= SHORT_BYTES else self.view_of(n))

    def short(self, n: int) -> bytes:
        """A copy of the next bytes, which is made sooner than a view of few bytes."""
        raw = self.data[self.pos : self.pos + n]
        check(len(raw) == n)
        self.pos += n
        return raw

    def push_python2(self, raw: bytes | memoryview) -> None:
        self.stack.append(as_text(raw) if len(raw) <= SHORT_BYTES else raw)

    def push_text(self, n: int) -> None:
        if n > LONG_TEXT:
            self.stack.append(LongText(self.view_of(n)))
        else:
            raw = self.short(n) if n <= SHORT_BYTES else self.view_of(n)
            self.stack.append(str(raw, "utf-8", "surrogatepass"))

    def python2_line(self) -> None:
        """A string with the quotes and escapes of Python 2's repr()."""
        line = self.line(None).strip()
        check(len(line) > 1 and line[:1] in (b"'", b'"') and line[-1:] == line[:1])
        check(bool(_ESCAPED.fullmatch(line, 1, len(line) - 1)))  # Python warns about other escapes
        self.push_python2(codecs.escape_decode(line[1:-1])[0])

    def integer_line(self) -> None:
        line = self.line(202)
        booleans = {b"00": False, b"01": True}
        self.stack.append(booleans[line] if line in booleans else int(line.removesuffix(b"L")))

    def long(self, n: int) -> None:
        if n > 64:
            raise self.objects.refused(f"an integer of {n} bytes")
        self.stack.append(self.number(n, signed=True))

    def find_global(self, module: Any, name: Any) -> Global:
        check(type(module) is str and type(name) is str)
        if (found := GLOBALS.get((module, name))) is None:
            raise self.objects.refused(ascii(f"{module[:80]}.{name[:80]}")[1:-1])
        return found

    def call(self) -> None:
        args, called = self.stack.pop(), self.stack.pop()
        check(type(called) is Global and type(args) is tuple)
        self.stack.append(called.build(self.objects, args))

    def set_state(self) -> None:
        state, pending = self.stack.pop(), self.stack[-1]
        if type(pending) is not Pending or type(state) is not tuple:
            raise self.objects.refused("an object to be given a state")
        pending.value = self.objects.with_state(pending.value, state)
        self.stack[-1] = pending.value

    def get(self, index: int) -> None:
        check(index >= 0)
        value = self.memo[index]
        check(value is not _MISSING)
        if type(value) is Pending and value.value is not None:
            value = value.value
        self.stack.append(value)

    def put(self, index: int) -> None:
        """Numbers may have gaps, where tools have removed what is not used."""
        check(0 <= index < min(self.size, MAX_OPCODES))
        if index >= len(self.memo):
            self.memo += [_MISSING] * (index + 1 - len(self.memo))
        self.memo[index] = self.stack[-1]

    def push_container(
        self, container: list[Any] | dict[Any, Any] | set[Any] | frozenset[Any]
    ) -> None:
        self.objects.count_containers(1)
        if type(container) in (set, frozenset):
            self.objects.spend_copy(20)  # an empty one is large, and its opcodes are a byte or two
        self.stack.append(container)

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            target.update(map(self.objects.key, items))
        else:
            raise ValueError

    def update(self, items: list[Any], new: bool = False) -> None:
        if new:
            self.push_container({})
        check(type(self.stack[-1]) is dict)
        self.stack[-1].update(zip(map(self.objects.key, items[::2]), items[1::2], strict=True))


_OPCODES: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: check(m.number(1) <= 5),  # PROTO
    b"\x95": lambda m: m.expect(m.number(8)),  # FRAME
    # The stack and the memo
    b"(": _Machine.mark,
    b"0": lambda m: m.stack.pop() if m.stack else m.pop_mark(),
    b"1": _Machine.pop_mark,
    b"2": lambda m: m.stack.append(m.stack[-1]),
    b"g": lambda m: m.get(int(m.line())),
    b"h": lambda m: m.get(m.byte()),
    b"j": lambda m: m.get(m.number(4)),
    b"p": lambda m: m.put(int(m.line())),
    b"q": lambda m: m.put(m.byte()),
    b"r": lambda m: m.put(m.number(4)),
    b"\x94": lambda m: m.put(len(m.memo)),
    # Numbers
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"I": _Machine.integer_line,
    b"L": _Machine.integer_line,
    b"J": lambda m: m.stack.append(m.number(4, signed=True)),
    b"K": lambda m: m.stack.append(m.byte()),
    b"M": lambda m: m.stack.append(m.number(2)),
    b"\x8a": lambda m: m.long(m.byte()),
    b"\x8b": lambda m: m.long(m.number(4)),
    b"F": lambda m: m.stack.append(float(m.line())),
    b"G": lambda m: m.stack.append(struct.unpack(">d", m.short(8))[0]),
    # Strings
    b"S": _Machine.python2_line,
    b"T": lambda m: m.push_python2(m.view_of(m.number(4))),
    b"U": lambda m: m.push_python2(m.short(m.byte())),
    b"V": lambda m: m.stack.append(str(m.line(None), "raw-unicode-escape")),
    b"X": lambda m: m.push_text(m.number(4)),
    b"\x8c": lambda m: m.push_text(m.byte()),
    b"\x8d": lambda m: m.push_text(m.number(8)),
    b"B": lambda m: m.push_bytes(m.number(4)),
    b"C": lambda m: m.push_bytes(m.byte()),
    b"\x8e": lambda m: m.push_bytes(m.number(8)),
    b"\x96": lambda m: m.push_bytes(m.number(8)),
    # Containers
    b")": lambda m: m.stack.append(()),
    b"]": lambda m: m.push_container([]),
    b"}": lambda m: m.push_container({}),
    b"\x8f": lambda m: m.push_container(set()),
    b"t": lambda m: m.push(tuple(m.pop_mark())),
    b"\x85": lambda m: m.stack.append((m.stack.pop(),)),
    b"\x86": lambda m: m.stack.append((m.stack.pop(-2), m.stack.pop())),
    b"\x87": lambda m: m.stack.append((m.stack.pop(-3), m.stack.pop(-2), m.stack.pop())),
    b"l": lambda m: m.push_container(m.pop_mark()),
    b"d": lambda m: m.update(m.pop_mark(), new=True),
    b"\x91": lambda m: m.push_container(frozenset(map(m.objects.key, m.pop_mark()))),
    b"a": lambda m: m.extend([m.stack.pop()]),
    b"e": lambda m: m.extend(m.pop_mark()),
    b"\x90": lambda m: m.extend(m.pop_mark()),
    b"s": lambda m: m.update([m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: m.update(m.pop_mark()),
    # Names, and calls of them
    b"c": lambda m: m.stack.append(m.find_global(as_text(m.line()), as_text(m.line()))),
    b"\x93": lambda m: m.stack.append(m.find_global(m.stack.pop(-2), m.stack.pop())),
    b"i": lambda m: m.objects.not_callable(m.find_global(as_text(m.line()), as_text(m.line()))),
    b"R": _Machine.call,
    b"\x81": _Machine.call,
    b"b": _Machine.set_state,
}


def _unknown(machine: _Machine) -> None:
    """Opcodes for persistent ids, extensions, instances and buffers outside the file."""
    code = machine.data[machine.pos - 1]
    if code in b"PQo\x82\x83\x84\x92\x97\x98":
        raise machine.objects.refused(f"the opcode {code:#04x}")
    raise machine.damaged()


_TABLE = [_OPCODES.get(bytes([code]), _unknown) for code in range(256)]
