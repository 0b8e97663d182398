"""Archives: kedge's reader of .zip."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from pathlib import Path

from tests.data.hostile import bzip2_of_zeros, lzma_header, png

from ..mutate import NUMBERS, change_bytes, change_list
from ..target import data_target, put

NAMES = (
    *("ant/0.png", "bat/1.png", "train/ant/a.jpg", "../x.png", "/x.png", "ant\\2.png", "ant/"),
    *("a//b/./c.png", "list.csv", "C:/x.png", "a" * 300 + "/x.png", "é/x.png", "\0/x.png", ""),
)
METHODS = (0, 8, 12, 14, 0, 8, 9, 93, 99)
LONGEST = 0xFFFF  # bytes of a name, an extra field or a note
LOCAL, ENTRY = struct.Struct("<4s5H3I2H"), struct.Struct("<4s6H3I5H2I")
Member = list[bytes]  # of each: header, name, extra field, content; entry, name, extra, note


def place(folder: Path, data: bytes) -> Path:
    return put(folder / "x.zip", data)


def written(method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for k, name in enumerate(("ant/0.png", "ant/1.png", "bat/é.png")):
            archive.writestr(zipfile.ZipInfo(name), png(k, 2), method)
        archive.writestr("ant/", b"")
    return file.getvalue()


def seeds() -> list[bytes]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("a/x.png", "w", force_zip64=True) as x:
        x.write(png(0, 2))
        archive.comment = b"a comment"
    return [*map(written, (0, 8, 12, 14)), file.getvalue(), joined([new_member(RNG)], b"")]


def members_of(data: bytes) -> list[Member]:
    """The members that the table of contents lists, as far as it can be read."""
    found, at = list[Member](), data.find(b"PK\1\2")
    while at >= 0 and at + ENTRY.size <= len(data) and data[at : at + 4] == b"PK\1\2":
        fields = ENTRY.unpack_from(data, at)
        n, m, k, start = fields[10], fields[11], fields[12], fields[16]
        names = at + ENTRY.size
        entry = [data[at:names], data[names : names + n], data[names + n : names + n + m]]
        note = data[names + n + m : names + n + m + k]
        at = names + n + m + k
        local = data[start : start + LOCAL.size]
        if len(local) < LOCAL.size:
            continue
        n, m = LOCAL.unpack(local)[-2:]
        first = start + LOCAL.size
        content = data[first + n + m : first + n + m + fields[8]]
        found.append(
            [local, data[first : first + n], data[first + n : first + n + m], content, *entry, note]
        )
    return found


def joined(members: list[Member], comment: bytes) -> bytes:
    """A .zip whose lengths and places are those of the members."""
    content, table = b"", b""
    for local, *texts, entry, entry_name, entry_extra, note in members:
        start, (name, extra, packed) = len(content), texts
        name, extra = name[:LONGEST], extra[:LONGEST]
        entry_name, entry_extra, note = (x[:LONGEST] for x in (entry_name, entry_extra, note))
        content += local[: LOCAL.size - 4] + struct.pack("<2H", len(name), len(extra))
        content += name + extra + packed
        lengths = struct.pack("<3H", len(entry_name), len(entry_extra), len(note))
        table += entry[:28] + lengths + entry[34:42] + struct.pack("<I", start)
        table += entry_name + entry_extra + note
    numbers = (0, 0, len(members), len(members), len(table), len(content), len(comment))
    return content + table + b"PK\5\6" + struct.pack("<4H2IH", *numbers) + comment


def new_member(rng: random.Random) -> Member:
    method, name = rng.choice(METHODS), rng.choice(NAMES).encode()
    content = rng.choice((b"", png(0, 2), rng.randbytes(9), bytes(3000)))
    packed = content if method != 8 else zlib.compress(content)[2:-4]
    if method in (12, 14) and rng.random() < 0.3:
        packed = bzip2_of_zeros() if method == 12 else lzma_header(rng.choice(NUMBERS) % (1 << 32))
    size = len(content) if rng.random() < 0.7 else rng.choice(NUMBERS) % (1 << 32)
    flags, check = rng.choice((0, 0, 0x800, 1, 8)), zlib.crc32(content)
    rest = (flags, method, 0, 33, check, len(packed), size)
    local = LOCAL.pack(b"PK\3\4", 20, *rest, len(name), 0)
    attributes = rng.choice((0, 0, 0o120777 << 16, 0o40755 << 16))
    entry = ENTRY.pack(b"PK\1\2", 20, 20, *rest, len(name), 0, 0, 0, 0, attributes, 0)
    extra = rng.choice(
        (b"", b"", struct.pack("<2H3Q", 1, 24, *(rng.choice(NUMBERS) for _ in "abc")))
    )
    return [local, name, b"", packed, entry, name, extra, b""]


def mutate(rng: random.Random, data: bytes) -> bytes:
    members = members_of(data)
    if not members or rng.random() < 0.2:
        return change_bytes(rng, data)

    def change(member: Member) -> Member:
        at = rng.randrange(len(member))
        changed = change_bytes(rng, member[at])
        fixed = {0: LOCAL.size, 4: ENTRY.size}.get(at)
        if fixed is not None:
            changed = member[at][:4] + changed[4:fixed].ljust(fixed - 4, b"\0")
        whole = [*member[:at], changed, *member[at + 1 :]]
        if at == 3 and rng.random() < 0.7:  # of the size that is said
            size = struct.pack("<I", len(changed))
            whole[4] = whole[4][:20] + size + whole[4][24:]
            if whole[4][10:12] == b"\0\0":  # not compressed
                check = struct.pack("<I", zlib.crc32(changed))
                whole[4] = whole[4][:16] + check + size + size + whole[4][28:]
        return whole

    return joined(change_list(rng, members, change, lambda: new_member(rng)), b"")


RNG = random.Random(0)
TOKENS = [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", *map(str.encode, NAMES[:12])]
TARGET = data_target(place, seeds, mutate, TOKENS)
