"""Pickles of data as Python 2 and 3 write them, against Python's own reader; then hostile ones."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kedge.data.files import pickle_objects, unpickle
from kedge.data.files.unpickle import load_pickle
from kedge.errors import KedgeError

PROTOCOLS = (0, 2, 5)
Read = Callable[[bytes], Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """What a file of these bytes holds."""

    def read(raw: bytes) -> Any:
        (tmp_path / "data.pkl").write_bytes(raw)
        return load_pickle(tmp_path / "data.pkl")

    return read


@pytest.fixture
def refusal(read: Read, tmp_path: Path) -> Callable[[bytes], str]:
    """The sentence about a file of these bytes, less its name."""

    def refusal(raw: bytes) -> str:
        with pytest.raises(KedgeError) as caught:
            read(raw)
        sentence = str(caught.value)
        assert sentence.startswith(f"{tmp_path / 'data.pkl'}: ")
        assert sentence.endswith(".")
        return sentence.removeprefix(f"{tmp_path / 'data.pkl'}: ")

    return refusal


def same(one: Any, other: Any) -> bool:
    """Equal, where an array of objects is a list, and long bytes are a view of them."""
    if isinstance(other, np.ndarray) and other.dtype == object:
        other = list(other)
    if isinstance(other, np.ndarray):
        return (
            type(one) is np.ndarray
            and one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
            and np.array_equal(one, other)
            and not one.flags.writeable
        )
    if isinstance(other, dict):
        return type(one) is dict and same(list(one.items()), list(other.items()))
    if isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, bytes | bytearray):
        return isinstance(one, bytes | memoryview) and bytes(one) == other
    return type(one) is type(other) and bool(one == other)


# ── arrays ───────────────────────────────────────────────────────────────────────────────────


def of(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2 if dtype == "?" else 100, shape).astype(dtype)


DTYPES = ("?", "i1", "u1", "<i2", ">i2", "<u4", ">u8", "<i8", "<f2", ">f4", "<f8")
ARRAYS = {
    **{f"of {kind}": of(kind, 3, 4) for kind in DTYPES},
    "of text": np.array(["ant", "bät", "日本"]),
    "of text in the other byte order": np.array(["ant", "bät"]).astype(">U4"),
    "of bytes": np.array([b"ant", b"\xff\x00b"]),
    "long": of("u1", 70_000),
    "of many axes": of("u1", 2, 3, 4, 5),
    "without axes": np.array(7, "u1"),
    "empty": np.zeros((0, 3, 2), "u1"),
    "empty text": np.zeros(0, "U5"),
    "in Fortran order": np.asfortranarray(of("u1", 5, 7, 3)),
    "in Fortran order and big-endian": np.asfortranarray(of(">f4", 5, 7)),
    "with its axes in another order": of("u1", 5, 7, 3).transpose(1, 2, 0),
    "with its outer axes exchanged": of("u1", 5, 7, 3).transpose(1, 0, 2),
    "with gaps": of("u1", 6, 6)[::2, ::3],
    "mirrored": of("u1", 6, 6)[::-1],
    "broadcast": np.broadcast_to(of("u1", 6), (4, 6)),
    "read-only": np.frombuffer(b"abc", "u1"),
    "of arrays": np.array([of("u1", 3, 1), of("u1", 4, 1), None], dtype=object),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_array_as_python_itself_reads_it(read: Read, kind: str, protocol: int) -> None:
    raw = pickle.dumps(ARRAYS[kind], protocol)
    assert same(read(raw), pickle.loads(raw))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scalars_of_numpy(read: Read, protocol: int) -> None:
    scalars = [np.uint8(7), np.float32(0.5), np.bool_(True), np.str_("bät"), np.bytes_(b"a\xff")]
    scalars += [np.array(3, ">i4")[()], np.int64(-(2**63)), np.float16(0.5)]
    assert same(read(pickle.dumps(scalars, protocol)), scalars)
    assert read(pickle.dumps({np.str_("a"): 1, np.int64(5): 2}, protocol)) == {"a": 1, 5: 2}
    assert read(pickle.dumps(np.dtype(">f4"), protocol)) == np.dtype(">f4")


@pytest.mark.parametrize("protocol", [4, 5])
def test_large_array_is_a_view_of_the_file(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "large.pkl"
    with open(path, "wb") as file:
        head = io.BytesIO()
        pickle.dump({"image_data": of("u1", 1, 1000, 1000)}, head, protocol)
        raw = head.getvalue()
        # As if it were of 200 images: with holes in the file for most of them.
        length, n = (1_000_000).to_bytes(4, "little"), 200
        wide = length + bytes(4) if protocol == 5 else length
        start = raw.index(wide) + len(wide)
        shape = b"K\x01M\xe8\x03M\xe8\x03"
        assert raw.count(shape) == 1
        many = shape.replace(b"K\x01", bytes([75, n]))
        file.write(raw[: start - len(wide)].replace(shape, many))
        file.write((n * 1_000_000).to_bytes(len(wide), "little") + raw[start : start + 1_000_000])
        file.seek((n - 1) * 1_000_000, os.SEEK_CUR)
        file.write(raw[start + 1_000_000 :].replace(shape, many))
    tracemalloc.start()
    try:
        images = load_pickle(path)["image_data"]
        first = images[0].copy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert images.shape == (200, 1000, 1000)
    assert np.array_equal(first, of("u1", 1000, 1000))
    assert not images[-1].any()
    assert not images.flags.owndata
    assert peak < 5_000_000


@pytest.mark.parametrize("protocol", [1, 2])
def test_text_that_stands_for_bytes_is_spilled_to_the_disk(
    read: Read, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickle, "LONG_TEXT", 1000)
    monkeypatch.setattr(
        pickle_objects, "SPILL_CHUNK", 7
    )  # cuts between the two bytes of a character
    array = np.arange(3000).astype("u1").reshape(30, 100)
    found = read(pickle.dumps([array, array + 1], protocol))
    assert same(found, [array, array + 1])


def test_full_disk_under_the_spilled_text_is_said(
    refusal: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpickle, "LONG_TEXT", 1000)
    monkeypatch.setattr(pickle_objects.tempfile, "TemporaryFile", full)
    said = refusal(pickle.dumps(of("u1", 3000), 2))
    assert "No space left on device" in said
    assert "TMPDIR" in said


# ── plain things ─────────────────────────────────────────────────────────────────────────────

SHARED = ["shared", b"bytes"]
PLAIN = {
    "scalars": [None, True, False, 0, 1, -1, 255, 256, 65_536, -(2**31), 2**31, 2**70, -(2**400)],
    "floats": [0.0, -1.5, 1e300, float("inf"), 5e-324],
    "text": ["", "a", "bät", "日本\n\\x", "x" * 300, "\ud800", "\\u0041"],
    "bytes": [b"", b"a", b"\xff\x00\n", b"x" * 300, bytearray(b""), bytearray(b"ab\xe9")],
    "containers": [[], (), {}, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[[]]], {"a": {b"b": ()}}],
    "sets": [set(), {1, "a", b"a"}, frozenset(), frozenset({(1, "a"), None, 2.5})],
    "keys": {"a": 1, b"a": 2, 3: 4, 2.5: 5, None: 6, True: 7, (1, "b"): 8},
    "dicts of other kinds": [
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.defaultdict(list, {"n01": [1, 2]}),
        collections.defaultdict(int),
        collections.defaultdict(None, {1: 2}),
    ],
    "many": [list(range(1500)), {str(i): i for i in range(1001)}, tuple("abc" * 400)],
    "shared": [SHARED, (SHARED, SHARED), {"again": SHARED}],
    "frames around what is large": ["a", b"x" * 100_000, "b", "y" * 100_000, [b"z" * 70_000] * 2],
    "shared arrays": [of("u1", 3)] * 3 + [np.float32(2)] * 2,
}


def plainly(value: Any) -> Any:
    """Python's own result, less the kinds of dict."""
    if isinstance(value, dict):
        return {key: plainly(inner) for key, inner in value.items()}
    return type(value)(map(plainly, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_things_as_python_itself_reads_them(read: Read, kind: str, protocol: int) -> None:
    raw = pickle.dumps(PLAIN[kind], protocol)
    expected = plainly(pickle.loads(raw))
    assert same(read(raw), expected)
    assert same(read(pickletools.optimize(raw)), expected)
    in_python = io.BytesIO()
    pickle._Pickler(in_python, protocol).dump(PLAIN[kind])  # other framing than the one in C
    assert same(read(in_python.getvalue()), expected)


def test_what_is_shared_stays_shared(read: Read) -> None:
    array = of("u1", 5)
    one, two, three = read(pickle.dumps([array, array, array.copy()]))
    assert one is two
    assert one is not three


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_container_that_holds_itself(read: Read, protocol: int) -> None:
    ring: list[Any] = [1]
    ring += [ring, {"ring": ring}, (ring,)]
    found = read(pickle.dumps(ring, protocol))
    assert found[0] == 1
    assert found[1] is found
    assert found[2]["ring"] is found
    assert found[3][0] is found


# ── Python 2 ─────────────────────────────────────────────────────────────────────────────────


def string2(raw: bytes) -> bytes:
    """As Python 2 pickles a str from protocol 1 on."""
    return (
        b"U" + bytes([len(raw)]) + raw
        if len(raw) < 256
        else b"T" + struct.pack("<i", len(raw)) + raw
    )


def array2(pixels: np.ndarray) -> bytes:
    """As NumPy 1 under Python 2 pickled an array, by protocol 2."""
    kind = pixels.dtype.str
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\nq\x10cnumpy\nndarray\nq\x11",
            b"K\x00\x85" + string2(b"b") + b"\x87Rq\x12(K\x01",
            b"(" + b"".join(b"J" + struct.pack("<i", n) for n in pixels.shape) + b"t",
            b"cnumpy\ndtype\nq\x13" + string2(kind[1:].encode()) + b"K\x00K\x01\x87Rq\x14(K\x03",
            string2(kind[:1].encode()) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89" + string2(pixels.tobytes()) + b"tb",
        ]
    )


@pytest.mark.parametrize(("dtype", "shape"), [("u1", (20, 3, 32)), (">i2", (2, 3))])
def test_dict_of_python_2_with_an_array(read: Read, dtype: str, shape: tuple[int, ...]) -> None:
    pixels = of(dtype, *shape)
    names = [b"n01532829", b"caf\xe9", "日本".encode()]
    raw = (
        b"\x80\x02}q\x01(" + string2(b"data") + b"q\x02" + array2(pixels)
        + string2(b"names") + b"]q\x03(" + b"".join(map(string2, names)) + b"eu."
    )  # fmt: skip
    expected = pickle.loads(raw, encoding="latin1")
    found = read(raw)
    assert same(found["data"], pixels)
    assert same(found["data"], np.array(expected["data"], dtype))
    assert found["names"] == expected["names"] == [name.decode("latin1") for name in names]
    assert found["names"][2].encode("latin1").decode() == "日本"


PIXELS = np.arange(256).astype("u1").repeat(2)
OLD = {
    "protocol 0": b"(dp0\nS'it\\'s'\np1\nI01\nsS\"a\\x00\\xff\\n\\\\\"\nL12345678901234567890L\n"
    b"sVb\\u00e4t\nF0.5\nsS'list'\n(lp2\nI1\naI00\nas.",
    "an array": b"cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n(I0\n"
    b"tp2\nS'b'\np3\ntp4\nRp5\n(I1\n(L512L\ntp6\ncnumpy\ndtype\np7\n(S'u1'\np8\nI0\nI1\ntp9\nRp10\n"
    b"(I3\nS'|'\np11\nNNNI-1\nI-1\nI0\ntp12\nbI00\nS" + repr(PIXELS.tobytes())[1:].encode()
    + b"\np13\ntp14\nb.",
    "an ordered dict": b"\x80\x02ccollections\nOrderedDict\n](](U\x01bK\x01e](U\x01aK\x02ee\x85R.",
}  # fmt: skip


@pytest.mark.parametrize("kind", OLD)
def test_python_2_as_python_itself_reads_it(read: Read, kind: str) -> None:
    assert same(read(OLD[kind]), plainly(pickle.loads(OLD[kind], encoding="latin1")))


# ── hostile ──────────────────────────────────────────────────────────────────────────────────


def unicode4(value: str) -> bytes:
    raw = value.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


def named(module: str, name: str) -> dict[str, bytes]:
    """The ways in which a pickle can name something."""
    return {
        "GLOBAL": f"c{module}\n{name}\n".encode(),
        "STACK_GLOBAL": unicode4(module) + unicode4(name) + b"\x93",
    }


CODE = [("builtins", name) for name in ("eval", "exec", "compile", "getattr", "__import__", "open")]
CODE += [("__builtin__", "eval"), ("__builtin__", "file"), ("os", "system"), ("posix", "system")]
CODE += [("subprocess", "Popen"), ("numpy.testing._private.utils", "runstring"), ("nt", "system")]
CODE += [("numpy", "load"), ("numpy", "memmap"), ("numpy.core.multiarray", "fromfile")]
CODE += [("_codecs", "decode"), ("_codecs", "lookup"), ("codecs", "encode"), ("pickle", "loads")]
CODE += [("numpy", "core.multiarray._reconstruct"), ("numpy.core.multiarray", "scalar.__class__")]
CODE += [("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor"), ("builtins", "complex")]
CODE += [("builtins", "object"), ("numpy", "ndarray.tofile"), ("torch", "load")]


def test_no_other_name_is_looked_up(refusal: Callable[[bytes], str]) -> None:
    for module, name in CODE:
        for raw in named(module, name).values():
            assert f"asks for {module}.{name}," in refusal(b"\x80\x04" + raw + b".")


class Evil:
    """Creates a file where it is load_pickle."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple:
        return self.reduced


def test_nothing_is_run(refusal: Callable[[bytes], str], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    command = f"touch {canary}"
    python = f"open({str(canary)!r}, 'w').close()"
    system = [
        (os.system, (command,)),
        (eval, (python,)),
        (exec, (python,)),
        (open, (str(canary), "w")),
    ]
    evil = [pickle.dumps({"data": Evil(*way)}, p) for way in system for p in PROTOCOLS]
    shell = string2(command.encode())
    evil += [
        b"(S'" + command.encode() + b"'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\n" + shell + b"o.",  # OBJ
        b"\x80\x02cos\nsystem\n" + shell + b"\x85\x81.",  # NEWOBJ
        b"\x80\x04" + named("os", "system")["STACK_GLOBAL"] + shell + b"\x85}\x92.",  # NEWOBJ_EX
        # The state of an object that gets the method to set it from the file
        b"\x80\x02ccollections\nOrderedDict\n)R}(U\x0c__setstate__cos\nsystem\nub" + shell + b"b.",
        b"\x80\x02cnumpy\nndarray\n}U\x0c__setstate__cos\nsystem\nsb" + shell + b"b.",
        b"\x80\x02ccollections\ndefaultdict\ncos\nsystem\n\x85R.",
    ]
    with pytest.raises(FileNotFoundError):
        canary.stat()
    for raw in evil:
        assert "not run" in refusal(raw)
        assert not canary.exists()
    pickle.loads(evil[0])  # so they would have
    assert canary.exists()


NDARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNK\x00K\x00K\x00tb"
ENCODE = b"c_codecs\nencode\n"
BIG = struct.pack("<Q", 2**63)


def array_of(shape: bytes, data: bytes, dtype: bytes = U1) -> bytes:
    return b"\x80\x02" + NDARRAY + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb."


NO_DTYPES = ("V8", "M8[s]", "c8", "u1,u1", "u3", "U0", "S0", "S99999999", "(8,)u1", "x", "f16")
HOSTILE = {
    "nothing": b".",
    "text": b"hello, I am no pickle\n",
    "a page": b"<!DOCTYPE html><html></html>",
    "protocol 6": b"\x80\x06N.",
    "a frame beyond the end": b"\x80\x04\x95" + BIG + b"N.",
    "a persistent id": b"Pabc\n.",
    "an extension": b"\x82\x01.",
    "a buffer from elsewhere": b"\x97.",
    "a read-only buffer": b"B\x01\x00\x00\x00a\x98.",
    "an instance of a known class": b"(icollections\nOrderedDict\n.",
    "absurd bytes": b"B\xff\xff\xff\xff.",
    "absurd bytes of 8": b"\x8e" + BIG + b".",
    "absurd text": b"X\xff\xff\xff\x7fabc.",
    "text that is none": b"X\x01\x00\x00\x00\xff.",
    "an unknown index": b"j\xff\xff\xff\xff.",
    "an index that is none": b"Npx\n.",
    "an index of 1000 digits": b"Np" + b"9" * 1000 + b"\n.",
    "a huge integer": b"\x8b" + struct.pack("<i", 65) + b"\x01" * 65 + b".",
    "an integer of 2 GB": b"\x8b\xff\xff\xff\x7f.",
    "an integer of many digits": b"L" + b"9" * 100_000 + b"L\n.",
    "a float that is none": b"Fx\n.",
    "a string without quotes": b"Sabc\n.",
    "a string with bad escapes": b"S'\\q'\n.",
    "an append to none": b"NNa.",
    "items of a list": b"](K\x01K\x02u.",
    "an odd number of items": b"}(K\x01u.",
    "a pop too many": b"00.",
    "a mark that is missing": b"t.",
    "a mark as the result": b"(.",
    "a name that is no text": b"K\x01K\x02\x93.",
    "a call of none": b"N)R.",
    "a call of int": b"cbuiltins\nint\nU\x019\x85R.",
    "a call of ndarray": b"cnumpy\nndarray\n" + b"J\xff\xff\xff\x7f\x85\x85R.",
    "a call without a tuple": b"cbuiltins\nlist\n]R.",
    "a class as the result": b"cnumpy\nndarray\n.",
    "a class as a key": b"}cnumpy\nndarray\nK\x01s.",
    "bytes of a number": b"cbuiltins\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    "a state for a dict": b"}}b.",
    "an array without a state": NDARRAY + b".",
    "a dtype without a state": b"cnumpy\ndtype\nU\x02u1\x85R.",
    "an array that holds itself": b"\x80\x02" + NDARRAY + b"q\x00(K\x01K\x01\x85"
    + U1.replace(b"U\x02u1", b"U\x02O8") + b"\x89]h\x00atb.",
    "an array of another class": NDARRAY.replace(b"cnumpy\nndarray", b"cbuiltins\nlist") + b".",
    "another codec": ENCODE + b"X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.",
    "a codec that unpacks": ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.",
    "no latin1": ENCODE + "X\x03\x00\x00\x00日X\x06\x00\x00\x00latin1".encode() + b"\x86R.",
    "a negative shape": array_of(b"J\xff\xff\xff\xff\x85", b"U\x03abc"),
    "a shape too large": array_of(b"K\x04\x85", b"U\x03abc"),
    "an absurd shape": array_of(b"\x8a\x20" + b"\x7f" * 32 + b"\x85", b"U\x03abc"),
    "an absurd empty shape": array_of(b"K\x00\x8a\x20" + b"\x7f" * 32 + b"\x86", b"U\x00"),
    "a shape of many axes": array_of(b"(" + b"K\x01" * 70 + b"t", b"U\x01a"),
    "a shape that is none": array_of(b"K\x03", b"U\x03abc"),
    "data that is none": array_of(b"K\x03\x85", b"K\x03"),
    "a dtype that is none": array_of(b"K\x03\x85", b"U\x03abc", b"U\x02u1"),
    "an unfinished array": b"\x80\x02" + NDARRAY + b"K\x03\x85b.",
    **{
        f"a dtype {name}": array_of(
            b"K\x01\x85", b"U\x08abcdefgh", U1.replace(b"U\x02u1", string2(name.encode()))
        )
        for name in NO_DTYPES
    },
    "an array of records": array_of(b"K\x03\x85", b"U\x03abc", U1.replace(b"NNN", b"NU\x01a)")),
    "an odd byte order": array_of(b"K\x03\x85", b"U\x03abc", U1.replace(b"U\x01|", b"U\x01?")),
    "text beyond Unicode": array_of(
        b"K\x01\x85", b"U\x04\xff\xff\xff\xff", U1.replace(b"u1", b"U1").replace(b"|", b"<")
    ),
    "objects with two axes": array_of(
        b"K\x01K\x01\x86", b"]K\x01a", U1.replace(b"U\x02u1", b"U\x02O8")
    ),
    "objects fewer than said": array_of(
        b"K\x02\x85", b"]K\x01a", U1.replace(b"U\x02u1", b"U\x02O8")
    ),
    "axes out of range": b"cnumpy.core.numeric\n_frombuffer\n(U\x03abc" + U1
    + b"K\x03\x85U\x01KK\x07\x85tR.",
    "a list as a key": b"}]K\x01s.",
    "an array as a key": b"}" + array_of(b"K\x03\x85", b"U\x03abc")[2:-1] + b"K\x01s.",
    "a tuple of tuples as a key": b"})\x85K\x01s.",
    "a long key": b"}X\xe8\x0f\x00\x00" + b"x" * 4072 + b"K\x01s.",
    "a large integer as a key": b"}\x8a\x09" + b"\x7f" * 9 + b"K\x01s.",
    "marks nested": b"(" * 1_000_000,
    "marks and tuples nested": b"(" * 1_000_000 + b"t" * 1_000_000 + b".",
    "tuples nested": b")" + b"\x85" * 1_000_000 + b".",
    "lists nested": b"]" + b"]" * 50_000 + b"a" * 50_000 + b".",
    "shared tuples as a key": b"}" + b")" + b"2\x86" * 10_000 + b"K\x01s.",
    "shared tuples as a member": b"\x8f(" + b")" + b"2\x86" * 10_000 + b"\x90.",
    "copies of a copy": b"](" + b"K\x01" * 20_000 + b"e\x85q\x00"
    + b"cbuiltins\nlist\nh\x00R" * 20_000 + b".",
    "encoded again and again": b"X\x50\xc3\x00\x00" + b"x" * 50_000
    + b"X\x06\x00\x00\x00latin1\x86q\x00" + (ENCODE + b"h\x00R") * 10_000 + b".",
}  # fmt: skip


def test_hostile_file_is_refused(refusal: Callable[[bytes], str]) -> None:
    for kind, raw in HOSTILE.items():
        started = time.perf_counter()
        assert refusal(raw), kind
        assert time.perf_counter() - started < 20, kind
    assert "empty" in refusal(b"")
    assert "byte 7 of 10" in refusal(b"\x80\x02B\x10\x00\x00\x00abc")
    assert r"\x1b[31mos.sys\x07tem" in refusal(b"\x80\x02c\x1b[31mos\nsys\x07tem\n.")


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "x"):
        with pytest.raises(KedgeError, match="cannot be read"):
            load_pickle(path)


def test_shared_tuples_are_read_in_linear_time(read: Read, refusal: Callable[[bytes], str]) -> None:
    found = read(b")" + b"2\x86" * 50 + b".")  # 2⁵⁰ empty tuples, if they were not shared
    assert found[0] is found[1]
    assert "nested" in refusal(b")" + b"2\x86" * 10_000 + b".")


def test_only_so_many_keys_are_numbers(
    read: Read, refusal: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their hashes can be chosen so that each costs as much as all before it together."""
    monkeypatch.setattr(pickle_objects, "MAX_NUMBER_KEYS", 1000)
    assert len(read(pickle.dumps({i << 40: i for i in range(1000)}))) == 1000
    assert "keys of a dict" in refusal(pickle.dumps({i << 40: i for i in range(1001)}))
    assert "keys of a dict" in refusal(pickle.dumps([{i} for i in range(1001)]))
    assert len(read(pickle.dumps({str(i): i for i in range(1001)}))) == 1001


SMALL: dict[str, Any] = {
    "image_data": of("u1", 2, 3),
    "text": np.array(["ab", "c"]),
    b"names": ["ant", b"bat", 2**70, 0.5, None, (True, {1, 2})],
    "dict": collections.OrderedDict(a=[np.float32(1)]),
    "objects": np.array([of("i2", 2), None], dtype=object),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_truncated_anywhere(tmp_path: Path, protocol: int) -> None:
    raw = pickle.dumps({"a": of("u1", 2, 3), b"b": ["ant", 2**70, 0.5, (None, {1})]}, protocol)
    path = tmp_path / "data.pkl"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(KedgeError, match="again"):
            load_pickle(path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_changed_bytes_never_do_more_than_be_refused(tmp_path: Path, protocol: int) -> None:
    python2 = b"\x80\x02}(" + string2(b"data") + array2(of("u1", 2, 3)) + b"U\x01aS'b\\x00'\nu."
    originals = [pickle.dumps(SMALL, protocol), python2]
    chosen, path = random.Random(protocol), tmp_path / "data.pkl"
    refused = 0
    for number in range(200):
        raw = bytearray(originals[number % 2])
        for _ in range(chosen.choice((1, 1, 1, 3))):
            raw[chosen.randrange(len(raw))] = chosen.randrange(256)
        path.write_bytes(raw)
        try:
            repr(load_pickle(path))  # what comes out can be looked at, too
        except KedgeError:
            refused += 1
    assert 50 < refused < 200
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.pkl"]


def test_only_so_many_small_things(
    refusal: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a byte in the file and a hundred in memory."""
    assert "copied many times" in refusal(b"\x8f" * 20_000 + b".")
    assert "copied many times" in refusal(b"(\x91" * 20_000 + b".")
    monkeypatch.setattr(pickle_objects, "MAX_CONTAINERS", 1000)
    assert "more than 1000 lists" in refusal(b"]" * 500 + b"}" * 501 + b".")
    assert "more than 1000 lists" in refusal(b"(l" * 500 + b"(d" * 501 + b".")
    assert "more than 1000 lists" in refusal(b"](" + b"N\x85" * 1000 + b"e.")
    monkeypatch.setattr(unpickle, "MAX_OPCODES", 1000)
    assert "more than 1000 small things" in refusal(b"N" * 2000 + b".")
    assert "more than 1000 small things" in refusal(b"I5\n" * 600 + b".")
    monkeypatch.setattr(unpickle, "FEW_OPCODES", 100)
    assert "more than 109 small things" in refusal(b"N" * 590 + b".")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_largest_data_sets_are_within_the_limits(protocol: int) -> None:
    """tieredImageNet's images and labels, and labels that are NumPy's numbers."""
    n, n_tiered = 1000, 448_695
    images = [np.arange(9000, dtype=np.uint8)[:, None] for _ in range(n)]
    numbers = [*range(n)]
    for value in (numbers, [*map(np.int64, numbers)], images) if protocol else (numbers,):
        program = pickle.dumps(value, protocol)
        opcodes = [opcode.arg for opcode, _, _ in pickletools.genops(program)]
        n_opcodes = len(opcodes)
        n_lines = sum(arg is not None and arg.n == pickletools.UP_TO_NEWLINE for arg in opcodes)
        most = unpickle.FEW_OPCODES + len(program) * n_tiered // n // unpickle.BYTES_PER_OPCODE
        most = min(most, unpickle.MAX_OPCODES)
        assert n_opcodes * n_tiered // n < most
        assert n_lines * n_tiered // n < most // 3
