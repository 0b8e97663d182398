"""Archives read in place: what they hold comes back bit for bit, and hostile ones do no harm."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import struct
import subprocess
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.files import archives, open_tree
from kedge.data.readers.folder import FolderReader
from kedge.errors import KedgeError

KINDS = {".zip": "", ".tar": "", ".tar.gz": "gz", ".tgz": "gz", ".tar.bz2": "bz2", ".tar.xz": "xz"}
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
Files = dict[str, bytes]


def png(colour: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (8, 8), colour).save(stream, "PNG")
    return stream.getvalue()


GOOD: Files = {
    "wrap/ant/1.png": png(10),
    "wrap/ant/2.png": png(20),
    "wrap/bat/1.png": png(30),
    "wrap/notes.txt": b"text",
}


def pack(path: Path, files: Files, format: int = tarfile.PAX_FORMAT) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return path
    with tarfile.open(path, f"w:{KINDS[''.join(path.suffixes)]}", format=format) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def header(name: bytes, size: bytes, kind: bytes = b"0", rest: bytes = b"") -> bytes:
    """One entry of a .tar, whatever it says."""
    start = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0")
    block = (start + b"0" * 11 + b"\0" + b" " * 8 + kind + rest).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


END = bytes(1024)


@contextmanager
def harmless(seconds: float = 3, mebibytes: float = 48) -> Iterator[None]:
    """Neither long nor large."""
    tracemalloc.start()
    start = time.monotonic()
    try:
        yield
    finally:
        took, peak = time.monotonic() - start, tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
    assert took < seconds
    assert peak < mebibytes


@pytest.fixture(autouse=True)
def nothing_is_written(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Archives are made in `tmp_path`; where the process is, nothing may appear."""
    here = tmp_path_factory.mktemp("here") / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    yield
    assert sorted(here.parents[1].rglob("*")) == [here.parent, here]
    leftovers = [p for p in tmp_path.rglob("*") if p.is_file() and "made" not in p.parts]
    assert all(p.name.startswith("x.") for p in leftovers), leftovers


def refused(path: Path, sentence: str, seconds: float = 3) -> None:
    with harmless(seconds), pytest.raises(KedgeError, match=sentence) as caught:
        open_tree(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


# ── what is fine ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", KINDS)
def test_class_folders_are_read_in_place(tmp_path: Path, ending: str) -> None:
    path = pack(tmp_path / f"x{ending}", GOOD)
    tree = open_tree(path)
    assert tree.names == tuple(GOOD)
    assert {name: tree.read_bytes(name) for name in reversed(GOOD)} == GOOD
    assert tree.read_text("wrap/notes.txt") == "text"
    assert tree.remarks == ()
    index = FolderReader().read(tree)
    assert index.classes == ("ant", "bat")
    assert index.labels.tolist() == [0, 0, 1]
    pixels = [decode_each([p], ImageSpec(8, 1))[0].pixels for p in index.images.fetch([0, 1, 2])]
    assert [np.unique(p).tolist() for p in pixels] == [[10], [20], [30]]
    with pytest.raises(KedgeError, match="unpack it first"):
        tree.local_path("wrap/notes.txt")


@pytest.mark.parametrize(("real", "called"), [(".tar.gz", ".tar"), (".tar", ".tgz")])
def test_ending_need_not_be_right(tmp_path: Path, real: str, called: str) -> None:
    pack(tmp_path / f"x{real}", GOOD).rename(tmp_path / f"x.y{called}")
    assert open_tree(tmp_path / f"x.y{called}").names == tuple(GOOD)


@pytest.mark.parametrize("format", FORMATS)
def test_names_in_every_format_of_tar(tmp_path: Path, format: int) -> None:
    names = ["./a/b.png", f"{'deep/' * 30}b.png", f"{'n' * 90}/{'m' * 90}/b.png", "日本/ü.png"]
    names += ["two\nlines/'\".png", " space /b.png "]
    if format != tarfile.USTAR_FORMAT:
        names.append("/".join(["n" * 200] * 20))
    files = {name: b"2" * (500 + i) for i, name in enumerate(names)}
    tree = open_tree(pack(tmp_path / "x.tar", files, format))
    assert tree.names == tuple(name.removeprefix("./") for name in names)
    assert [tree.read_bytes(name) for name in tree.names] == list(files.values())


def test_size_in_bytes_and_signed_checksum(tmp_path: Path) -> None:
    """As some packers write them."""
    entry = header("ü/1.png".encode(), b"\x80" + (5).to_bytes(11, "big"))
    total = sum(entry[:148]) + sum(entry[156:]) + 256 - 2 * 256  # two bytes are above 127
    total -= 256 * (entry[124] > 127)
    entry = entry[:148] + b"%06o\0 " % total + entry[156:]
    (tmp_path / "x.tar").write_bytes(entry + b"12345".ljust(512, b"\0") + END)
    assert open_tree(tmp_path / "x.tar").read_bytes("ü/1.png") == b"12345"


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    files = {f"a/{i}": bytes([i]) * 3000 for i in range(100)}
    for ending in (".zip", ".tar", ".tar.gz"):
        tree = open_tree(pack(tmp_path / f"x{ending}", files))
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(tree.read_bytes, files)) == list(files.values())


def test_backslashes_of_windows(tmp_path: Path) -> None:
    files = {name.replace("/", "\\"): content for name, content in GOOD.items()}
    tree = open_tree(pack(tmp_path / "x.zip", files))
    assert {name: tree.read_bytes(name) for name in tree.names} == GOOD


# ── names ────────────────────────────────────────────────────────────────────────────────────

OUTSIDE = ("../x.png", "a/../../x.png", "/etc/x.png", "..\\x.png", "C:\\x.png", "\\\\host\\x.png")


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_hidden_members_and_names_that_lead_out(tmp_path: Path, ending: str) -> None:
    hidden = (
        ".hidden.png",
        "ant/.hidden.png",
        "ant/base.kedge.png",
        ".git/1.png",
        "__MACOSX/ant/._1.png",
        "@eaDir/1.png",
    )
    names = ("ant/1.png", *hidden, *OUTSIDE)
    tree = open_tree(pack(tmp_path / f"x{ending}", dict.fromkeys(names, b"")))
    assert tree.names == ("ant/1.png",)
    assert [remark[:17] for remark in tree.remarks] == ["6 members skipped"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tar(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, type_ in (("ant/link.png", kind), ("ant/1.png", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = type_, "/etc/passwd"
            info.size = 5000 if type_ == kind else 0  # which says nothing of links
            tar.addfile(info)
        folder = tarfile.TarInfo("bat/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    tree = open_tree(tmp_path / "x.tar")
    assert tree.names == ("ant/1.png",)
    assert "ant/link.png" in tree.remarks[0]


def test_links_in_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        link = zipfile.ZipInfo("ant/link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("ant/1.png", png(1))
    tree = open_tree(tmp_path / "x.zip")
    assert tree.names == ("ant/1.png",)
    assert "ant/link.png" in tree.remarks[0]


@pytest.mark.parametrize("ending", [".zip", ".tar"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_occur_twice(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    contents = (("ant/1.png", b"old"), ("ant/2.png", b"2"), ("ant//1.png", b"new"))
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in contents:
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w") as tar:
            for name, content in contents:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    tree = open_tree(path)
    assert tree.names == ("ant/2.png", "ant/1.png")
    assert tree.read_bytes("ant/1.png") == b"new"
    assert "same name" in tree.remarks[0]


def test_name_in_tar_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(header(b"caf\xe9/1.png", b"0") + END)
    refused(tmp_path / "x.tar", "not UTF-8")


# ── what is damaged ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", KINDS)
def test_truncated(tmp_path: Path, ending: str) -> None:
    """At every length that has a reason to be special, and at others."""
    whole = pack(tmp_path / f"x{ending}", GOOD).read_bytes()
    chance = random.Random(0)
    lengths = {0, 1, 5, 6, 100, 511, 512, 513, *range(1024, 5120, 512), *range(1, 40)}
    lengths |= {len(whole) - i for i in (1, 2, 3, 4, 8, 9, 12, 21, 22, 23)}
    lengths |= {chance.randrange(len(whole)) for _ in range(40)}
    path = tmp_path / f"x.cut{ending}"
    for length in sorted(n for n in lengths if 0 <= n < len(whole)):
        path.write_bytes(whole[:length])
        if ending == ".tar" and not whole[length:].strip(b"\0") and length >= 4608:
            assert open_tree(path).names == tuple(GOOD)  # without zeros that say nothing new
        else:
            refused(path, "truncated")


@pytest.mark.parametrize("ending", KINDS)
def test_damaged_anywhere(tmp_path: Path, ending: str) -> None:
    """Whatever bytes are wrong: a sentence, or images that are unreadable; no other exception."""
    whole = pack(tmp_path / f"x{ending}", GOOD).read_bytes()
    chance = random.Random(1)
    path = tmp_path / f"x.bad{ending}"
    for _ in range(100):
        spoilt = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4, 50))):
            spoilt[chance.randrange(len(whole))] = chance.choice((0, 255, chance.randrange(256)))
        path.write_bytes(spoilt)
        with suppress(KedgeError):
            tree = open_tree(path)
            assert all(isinstance(tree.image(name), bytes) for name in tree.names)


def test_entry_in_the_middle_that_is_damaged(tmp_path: Path) -> None:
    """Python's tarfile would end here without a word, with half of the images."""
    whole = bytearray(pack(tmp_path / "x.tar", GOOD).read_bytes())
    whole[2048] ^= 1  # in the name of the third of the four
    (tmp_path / "x.tar").write_bytes(whole)
    refused(tmp_path / "x.tar", "wrong checksum")


def test_wrong_checksum_of_one_image(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in GOOD.items():
            archive.writestr(name, content)
    spoilt = bytearray(path.read_bytes())
    spoilt[spoilt.index(GOOD["wrap/ant/2.png"]) + 45] ^= 1
    path.write_bytes(spoilt)
    index = FolderReader().read(open_tree(path))
    raws = list(index.images.fetch([0, 1, 2]))
    assert raws == [GOOD["wrap/ant/1.png"], b"", GOOD["wrap/bat/1.png"]]
    with pytest.raises(KedgeError, match=r"wrap/ant/2\.png"):
        open_tree(path).read_bytes("wrap/ant/2.png")


def test_archive_that_vanishes_or_shrinks(tmp_path: Path) -> None:
    for ending in (".zip", ".tar"):
        path = pack(tmp_path / f"x{ending}", GOOD)
        tree = open_tree(path)
        with open(path, "r+b") as file:
            file.truncate(600 if ending == ".tar" else 40)
        with pytest.raises(KedgeError, match=r"x\.(zip|tar): .*ends too early"):
            tree.image("wrap/bat/1.png")


def patched(path: Path, change: Callable[[bytearray, int, int], None]) -> Path:
    """With another word at the offsets of one member, in its own header and in the table."""
    content = bytearray(path.read_bytes())
    change(content, content.rindex(b"PK\3\4"), content.rindex(b"PK\1\2"))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("own", "table", "value", "word"), [(6, 8, 1, "encrypted"), (8, 10, 99, "method")]
)
def test_encrypted_or_unknown_method(
    tmp_path: Path, own: int, table: int, value: int, word: str
) -> None:
    def change(content: bytearray, own_header: int, table_entry: int) -> None:
        struct.pack_into("<H", content, own_header + own, value)
        struct.pack_into("<H", content, table_entry + table, value)

    refused(patched(pack(tmp_path / "x.zip", GOOD), change), word)


# ── what is hostile ──────────────────────────────────────────────────────────────────────────


def test_zip_that_claims_much(tmp_path: Path) -> None:
    def claim(content: bytearray, own: int, table: int) -> None:
        struct.pack_into("<I", content, own + 22, 0xFFFFFFF0)
        struct.pack_into("<I", content, table + 24, 0xFFFFFFF0)

    refused(patched(pack(tmp_path / "x.zip", GOOD), claim), "not unpacked")


def test_bomb_that_claims_little(tmp_path: Path) -> None:
    def lie(content: bytearray, own: int, table: int) -> None:
        struct.pack_into("<I", content, own + 22, 1000)
        struct.pack_into("<I", content, table + 24, 1000)

    path = pack(tmp_path / "x.zip", {"ant/1.png": bytes(100 << 20)})
    tree = open_tree(patched(path, lie))
    with harmless():
        assert tree.image("ant/1.png") == b""


def test_members_that_overlap(tmp_path: Path) -> None:
    """One member that many entries of the table of contents share."""
    path = pack(tmp_path / "x.zip", {"ant/00000.png": bytes(1 << 20)})
    content = path.read_bytes()
    table, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entries = b"".join(content[table:end].replace(b"00000", b"%05d" % i) for i in range(1000))
    tail = bytearray(content[end:])
    struct.pack_into("<HHI", tail, 8, 1000, 1000, len(entries))
    path.write_bytes(content[:table] + entries + tail)
    refused(path, "overlap")


def test_enormous_table(tmp_path: Path) -> None:
    """A file with a hole, and a table of contents that covers all of it."""
    path = tmp_path / "x.zip"
    size = (1 << 28) + 4096
    with open(path, "wb") as file:
        file.write(b"PK\1\2")
        file.seek(size)
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, size, 0, 0))
    refused(path, "table of contents")


def test_crowd_in_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files pack so well that a small archive holds millions of them."""
    monkeypatch.setattr(archives, "LARGEST_GROWTH", 1)
    with gzip.open(tmp_path / "x.tar.gz", "wb") as file:
        for i in range(2_500):
            file.write(header(b"a/%d.png" % i, b"0"))
        file.write(END)
    refused(tmp_path / "x.tar.gz", "not unpacked", seconds=10)


BOMBS = {
    "a large file": header(b"a/1.png", b"%o" % (1 << 32)),
    "a huge file": header(b"a/1.png", b"\x80" + b"\xff" * 11),
    "a negative file": header(b"a/1.png", b"\xff" * 12),
    "a negative file in digits": header(b"a/1.png", b"-1000"),
    "a size that is no number": header(b"a/1.png", b"many"),
    "a large name": header(b"././@LongLink", b"%o" % (1 << 32), b"L"),
    "a negative name": header(b"././@LongLink", b"-1000", b"L"),
    "a large link": header(b"././@LongLink", b"%o" % (1 << 32), b"K"),
    "a large table of names": header(b"pax", b"%o" % (1 << 32), b"x"),
    "a large table for all": header(b"pax", b"%o" % (1 << 32), b"g"),
    "a table without lengths": header(b"pax", b"%o" % 512, b"x") + b"9" * 512,
    "a table with length 0": header(b"pax", b"%o" % 7, b"x") + b"0 a=bc\n".ljust(512, b"\0"),
    "a table with length -9": header(b"pax", b"%o" % 7, b"x") + b"-9 a=bc\n".ljust(512, b"\0"),
    "a table that is too short": header(b"pax", b"%o" % 9, b"x") + b"99 a=bc\n".ljust(512, b"\0"),
    "a negative size in a table": header(b"pax", b"%o" % 12, b"x")
    + b"12 size=-99\n".ljust(512, b"\0")
    + header(b"a/1.png", b"0"),
    "a huge size in a table": header(b"pax", b"%o" % 111, b"x")
    + (b"111 size=" + b"9" * 101 + b"\n").ljust(512, b"\0")
    + header(b"a/1.png", b"0"),
    "a file with endless holes": header(b"a/1.png", b"0", b"S", bytes(325) + b"\1")
    + (bytes(504) + b"\1" + bytes(7)) * 4,
}


@cache
def many_zeros() -> bytes:
    """As another member of a .gz: more than an archive of a mebibyte may hold."""
    pressed = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(pressed.compress(bytes(1 << 20)) for _ in range(201)) + pressed.flush()


@pytest.mark.parametrize("what", BOMBS)
def test_hostile_headers(tmp_path: Path, what: str) -> None:
    for name in ("x.tar", "x.tar.gz"):
        packed = gzip.compress(BOMBS[what]) + many_zeros() if name == "x.tar.gz" else BOMBS[what]
        (tmp_path / name).write_bytes(packed)
        refused(tmp_path / name, "truncated|not unpacked", seconds=10)


def test_zeros_after_the_end(tmp_path: Path) -> None:
    packed = gzip.compress(header(b"a/1.png", b"0") + END) + many_zeros()
    (tmp_path / "x.tar.gz").write_bytes(packed)
    refused(tmp_path / "x.tar.gz", "not unpacked", seconds=10)


@pytest.mark.parametrize("more", [False, True])
def test_files_with_holes_are_left_out(tmp_path: Path, more: bool) -> None:
    entry = header(b"a/holes.png", b"%o" % 5, b"S", bytes(325) + (b"\1" if more else b"\0"))
    entry += bytes(512) * more + b"12345".ljust(512, b"\0")
    (tmp_path / "x.tar").write_bytes(entry + header(b"a/1.png", b"0") + END)
    tree = open_tree(tmp_path / "x.tar")
    assert tree.names == ("a/1.png",)
    assert "a/holes.png" in tree.remarks[0]


def test_images_that_are_too_large_are_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST_FILE", 1000)
    for ending in (".zip", ".tar"):
        tree = open_tree(pack(tmp_path / f"x{ending}", {"a/1.png": bytes(1001), "a/2.png": b"1"}))
        assert [tree.image(name) for name in tree.names] == [b"", b"1"]
        with pytest.raises(KedgeError, match="too large"):
            tree.read_bytes("a/1.png")


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize("option", ["--format=v7", "--format=oldgnu", "--format=ustar", "-S"])
def test_archives_of_tar_itself(tmp_path: Path, option: str) -> None:
    for name, content in GOOD.items():
        file = tmp_path / "made" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    command = ["tar", option, "-cf", str(tmp_path / "x.tar"), "-C", str(tmp_path / "made"), "wrap"]
    subprocess.run(command, check=True)
    tree = open_tree(tmp_path / "x.tar")
    assert {name: tree.read_bytes(name) for name in tree.names} == GOOD
