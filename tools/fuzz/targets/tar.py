"""Archives: kedge's reader of .tar. The first byte of an input chooses how the rest is packed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.data.hostile import png, tar_header

from kedge.data.files.tar_archive import BLOCK

from ..mutate import NUMBERS, change_bytes, change_list
from ..target import data_target, put

PACK: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("x.tar", bytes),
    ("x.tgz", partial(gzip.compress, compresslevel=1, mtime=0)),
    ("x.tar.bz2", partial(bz2.compress, compresslevel=1)),
    ("x.tar.xz", partial(lzma.compress, preset=0)),
    ("x.tar.gz", bytes),  # compressed already, or something else
)
NAMES = (
    *("ant/0.png", "bat/1.png", "train/ant/a.jpg", "../x.png", "/x.png", "a" * 300 + "/x.png"),
    *("a//b/./c.png", "list.csv", "ant", "é/\udcff.png", "C:/x.png", ".hidden/x.png", ""),
)
KINDS = b"0123456757xXLKgS\0DMNV"
RECORDS = (b"path=bat/2.png", b"size=5", b"size=-1", b"GNU.sparse.major=1", b"a=", b"=", b"path=")


def place(folder: Path, data: bytes) -> Path:
    name, pack = PACK[data[0] % len(PACK)] if data else PACK[0]
    return put(folder / name, pack(data[1:]))


def written(format: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for k, name in enumerate(
            ("ant/0.png", "ant/1.png", "bat/" + "d" * 90 + "/" + "c" * 60 + ".png")
        ):
            info = tarfile.TarInfo(name)
            content = png(k, 2)
            info.size, info.mtime = len(content), 0.5 if format == tarfile.PAX_FORMAT else 0
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("ant/2.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0.png"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("empty.png"))
    content = file.getvalue().rstrip(b"\0")  # there are many empty blocks at the end
    return content + bytes(-len(content) % BLOCK + 2 * BLOCK)


def seeds() -> list[bytes]:
    plain = [written(f) for f in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    packed = [bytes([k]) + content for content in plain for k in range(len(PACK) - 1)]
    ready = [b"\4" + pack(plain[0]) for _, pack in PACK[1:-1]]
    return packed + ready


def new_member(rng: random.Random) -> bytes:
    name, kind = rng.choice(NAMES).encode(errors="surrogateescape"), bytes([rng.choice(KINDS)])
    content = rng.choice((b"", png(0, 2), rng.randbytes(9), name * 20))
    if kind in b"xXg":
        records = [rng.choice(RECORDS) for _ in range(rng.choice((1, 2, 40)))]
        lengths = [len(record) + 1 + rng.choice((2, 3, 3, 4)) for record in records]
        pairs = zip(lengths, records, strict=True)
        content = b"".join(b"%d %s\n" % pair for pair in pairs)
    size = len(content) if rng.random() < 0.8 else rng.choice(NUMBERS) & 0o77777777777
    return tar_header(name[:100], size, kind) + content + bytes(-len(content) % BLOCK)


def with_checksum(block: bytes) -> bytes:
    plain = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(plain) + block[156:]


def mutate(rng: random.Random, data: bytes) -> bytes:
    kind, content = data[:1] or b"\0", data[1:]
    if rng.random() < 0.05:
        kind = rng.randbytes(1)
    if kind[0] % len(PACK) == len(PACK) - 1:
        return kind + change_bytes(rng, content)
    blocks = [content[i : i + BLOCK] for i in range(0, len(content), BLOCK)]

    def change(block: bytes) -> bytes:
        block = change_bytes(rng, block)
        if len(block) < BLOCK or rng.random() < 0.1:
            return block
        fields = ((0, 100), (124, 12), (156, 1), (257, 6), (345, 155), (482, 1))
        at, n = rng.choice(fields)
        new = rng.choice((bytes(n), rng.randbytes(n), b"7" * n, b"\x80" + b"\xff" * (n - 1)))
        return with_checksum((block[:at] + new[:n] + block[at + n :])[:BLOCK])

    changed = change_list(rng, blocks, change, lambda: new_member(rng))
    return kind + b"".join(changed)


TOKENS = [b"ustar\x0000", b"ustar  \0", b"path=", b"size=", b"GNU.sparse"]
TARGET = data_target(place, seeds, mutate, TOKENS)
