"""Hundreds of damaged and hostile files: each is refused in one sentence or read with a remark.

No code of theirs is run, nothing is written, and time and memory are bounded. The files are made
from small data sets with a fixed seed and go through the real command, in one watched process.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from kedge.data.packed_file import fingerprint_of

SECONDS = 5  # of the processor, for one command
GROWTH = 400  # MiB that one command may take for a while
PACKED = 3  # of so many cases one is packed too
Ended = Any  # Watched of conftest.py, which cannot be imported
pytestmark = pytest.mark.slow

# ── cases ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cases:
    """`refused`: one sentence. `noticed`: that, or a remark, or other numbers. `either`: that, or
    it is read, as what was changed may be a pixel. `whole`: it must be read."""

    root: Path
    canary: Path
    rng: random.Random = field(default_factory=lambda: random.Random(20240607))
    given: dict[str, Path] = field(default_factory=dict)
    must: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, must: str, files: dict[str, bytes], give: str = "") -> Path:
        name = f"{len(self.given):03} {re.sub('[^a-z0-9.]+', ' ', name.lower())[:60].strip()}"
        folder = self.root / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            place = folder / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        self.given[name] = folder / give
        self.must[name] = must
        return folder


@dataclass(frozen=True)
class Seed:
    """A whole data set, and that of its files which is to be spoilt."""

    files: dict[str, bytes]
    target: str
    give: str = ""

    @property
    def content(self) -> bytes:
        return self.files[self.target]

    def with_(self, content: bytes) -> dict[str, bytes]:
        return {**self.files, self.target: content}


def seeds(forms: dict[str, Any], folder: Path) -> dict[str, Seed]:
    """Of each form a part that is small."""
    # The form, which of its files are kept, the file to spoil, and whether that is what is given.
    kinds = {
        "cache": ("mini-cache", "mini-imagenet-cache-val.pkl", "mini-imagenet-cache-val.pkl"),
        "category": ("mini-category-split", "*_split_val.pickle", "*_split_val.pickle"),
        "tiered png": ("tiered-png", "val_*", "val_images_png.pkl"),
        "tiered labels": ("tiered-png-bytes", "val_*", "val_labels.pkl"),
        "tiered npz": ("tiered-npz", "train_*", "train_images.npz"),
        "tiered deflated": ("tiered-npz", "val_*", "val_images.npz"),
        "cifar-fs": ("cifar-fs", "CIFAR_FS_val.pickle", "CIFAR_FS_val.pickle"),
        "cifar-100": ("cifar-100", "**/*", "cifar-100-python/train"),
        "cifar-100 meta": ("cifar-100", "**/*", "cifar-100-python/meta"),
        "cifar lists": ("cifar-folders", "**/*", "cifar100/splits/bertinetto/train.txt"),
        "omniglot": ("omniglot-zips", "*.zip", "images_background.zip"),
        "tiny": ("tiny-imagenet", "**/*", "tiny-imagenet-200/val/val_annotations.txt"),
        "parquet": ("parquet", "data/validation-*", "data/validation-00000-of-00001.parquet"),
        "zip": ("zip", "*", "pets.zip"),
        "tar": ("tar", "*", "pets.tar"),
        "tar.gz": ("tar-gz", "*", "pets.tar.gz"),
        "csv": ("csv-alone", "**/*", "list.csv"),
        "jsonl": ("json-lines-alone", "**/*", "list.jsonl"),
        "ravi": ("ravi", "**/*", "val.csv"),
        "folder": ("class-folders", "cat/*", "cat/0.png"),
    }
    found = {}
    for name, (form, kept, target) in kinds.items():
        written = forms[form](folder / name)
        place = folder / name
        [target] = [str(path.relative_to(place)) for path in place.glob(target)]
        paths = [path for path in place.glob(kept) if path.is_file()]
        files = {str(path.relative_to(place)): path.read_bytes() for path in paths}
        found[name] = Seed(files, target, target if written.data.is_file() else "")
    found["store"] = Seed({"packed.images": store()}, "packed.images", "packed.images")
    return found


# Where a byte may be changed without anyone noticing: in pixels, in names, in lines of text.
TEXTS = ("cifar lists", "tiny", "csv", "jsonl", "ravi")


def spoilt(cases: Cases, seed_of: dict[str, Seed]) -> None:
    """Truncated, with changed bytes, with something before or behind."""
    for name, seed in seed_of.items():
        content, rng = seed.content, cases.rng
        cuts = {1, len(content) - 1, *(rng.randrange(2, len(content)) for _ in range(3))}
        for cut in sorted(cuts):
            # Some end with what nobody needs, and these have all images nevertheless.
            spare = 26 if name == "folder" else name not in ("parquet", "store", "cache")
            if cut >= len(content.rstrip(b"\0")) - spare:
                must = "either"
            else:
                must = "either" if name in TEXTS else "noticed"
            cases.add(f"{name} cut at {cut}", must, seed.with_(content[:cut]), seed.give)
        for _ in range(4):
            changed = bytearray(content)
            for _ in range(8):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            cases.add(f"{name} flipped", "either", seed.with_(bytes(changed)), seed.give)
        start = rng.randrange(len(content))
        zeros = content[:start] + bytes(min(100, len(content) - start)) + content[start + 100 :]
        cases.add(f"{name} zeros", "either", seed.with_(zeros), seed.give)
        cases.add(f"{name} behind", "either", seed.with_(content + b"\0more" * 9), seed.give)
        cases.add(f"{name} before", "either", seed.with_(b"\n\n" + content), seed.give)


def swapped(cases: Cases, seed_of: dict[str, Seed]) -> None:
    """Something else under the name."""
    others = {
        "png": png(),
        "pickle": pickle.dumps({"some": ["thing", "else"]}),
        "zip": zipped({"a/b.png": png()}),
        "parquet": seed_of["parquet"].content,
        "gzip": gzip.compress(b"something " * 50),
        "random": cases.rng.randbytes(3000),
        "zeros": bytes(4096),
        "text": b"Not found\n",
        "json": b'{"error": "not found"}',
        "store": store(),
        "tar": tarred({"a/b.txt": b"text"}),
        "npy": b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }",
    }
    kinds = list(others)
    for k, (name, seed) in enumerate(seed_of.items()):
        partly = ("cifar-100 meta", "cifar lists", "tiny", "ravi", "folder")  # others are whole
        must = "either" if name in partly else "refused"
        for i in range(4):
            kind = kinds[(k + 3 * i) % len(kinds)]
            fine = (kind, name) in (("zip", "zip"), ("store", "store"), ("parquet", "parquet"))
            # A packed file is known by how it begins, whatever its name.
            if fine or (kind == "store" and seed.give):
                continue
            cases.add(f"{name} is a {kind}", must, seed.with_(others[kind]), seed.give)


def hostile(canary: Path) -> dict[str, bytes]:
    """Pickles that would make a file, each by another way."""
    at = str(canary).encode()
    code = b"open(%r,'w').close()" % str(canary)
    touch = b"touch '" + at + b"'"

    def text(value: bytes) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value

    def call(where: bytes, *args: bytes) -> bytes:
        module, _, name = where.rpartition(b".")
        return b"c%s\n%s\n(" % (module, name) + b"".join(args) + b"tR"

    def newer(module: bytes, name: bytes, *args: bytes) -> bytes:
        return text(module) + text(name) + b"\x93(" + b"".join(args) + b"tR"

    inner = b"\x80\x02" + call(b"os.system", text(touch)) + b"."
    array = b"cnumpy.core.multiarray\n_reconstruct\n("
    return {
        "os.system": call(b"os.system", text(touch)),
        "exec": call(b"builtins.exec", text(code)),
        "open": call(b"builtins.open", text(at), text(b"w")),
        "inst": b"(" + text(touch) + b"ios\nsystem\n",
        "stack global": newer(b"os", b"system", text(touch)),
        "by numpy": newer(b"numpy", b"f2py.os.system", text(touch)),
        "runstring": call(b"numpy.testing._private.utils.runstring", text(code), b"}"),
        "pickle": call(b"_pickle.loads", b"B" + struct.pack("<I", len(inner)) + inner),
        "reconstruct": array + b"csubprocess\nPopen\n(K\0tU\1btR",
        "object array": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR(K\1"
        b"(K\1tcnumpy\ndtype\n(U\2O8K\0K\1tR(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]"
        + call(b"os.system", text(touch)) + b"atb",
        "state": b"cpathlib\nPath\n)R}" + text(b"x") + call(b"os.system", text(touch)) + b"sb",
    }  # fmt: skip


PICKLES = (
    *("cache", "category", "tiered png", "tiered labels", "cifar-fs", "cifar-100"),
    "cifar-100 meta",
)


def hostiles(cases: Cases, seed_of: dict[str, Seed]) -> None:
    """In place of each pickle, and before the data of one."""
    programs = hostile(cases.canary)
    usual = ("os.system", "exec", "open", "stack global", "inst", "object array")
    for k, name in enumerate(PICKLES):
        seed = seed_of[name]
        for i, (kind, program) in enumerate(programs.items()):
            if kind in usual or i % len(PICKLES) == k:
                content = b"\x80\4" + program + b"."
                cases.add(f"{name} hostile {kind}", "refused", seed.with_(content))
        ahead = b"\x80\4" + programs["exec"] + b"0" + seed.content
        cases.add(f"{name} hostile before the data", "refused", seed.with_(ahead))
        both = b"\x80\4(" + programs["open"] + seed.content[:-1] + b"t."
        cases.add(f"{name} hostile beside the data", "refused", seed.with_(both))


def tables(cases: Cases, seed_of: dict[str, Seed]) -> None:
    """Parquet files that are whole but hold other things."""
    image = pa.array([{"bytes": png(i), "path": "x"} for i in range(4)])
    plain = pa.array([png(i) for i in range(4)])
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "lists": ("refused", {"image": image, "label": pa.array([[1], [2], [3], [4]])}),
        "nulls": ("refused", {"image": image, "label": pa.array([None] * 4, pa.int64())}),
        "no pictures": ("refused", {"image": pa.array([b"x"] * 4), "label": pa.array([0] * 4)}),
        "one bad": ("noticed", {"image": pa.array([png(), png(1), b"x"]), "label": [0, 1, 0]}),
        "large labels": ("either", {"image": plain, "label": pa.array([(1 << 63) - 1, 0, 1, 2])}),
        "odd names": ("either", {"image": plain, "label": ["a\nb", "\x1b[31m", "a" * 100_000, ""]}),
    }
    for name, (must, columns) in wrong.items():
        cases.add(f"parquet {name}", must, {"x.parquet": parquet(columns)}, "x.parquet")
    for text in (b"[" * 100_000, b"{", b"\xff"):
        content = parquet({"image": plain, "label": pa.array([0, 1, 2, 3])}, {"huggingface": text})
        cases.add("parquet metadata", "either", {"x.parquet": content}, "x.parquet")
    good = seed_of["parquet"].content
    size = int.from_bytes(good[-8:-4], "little")
    for _ in range(16):
        changed = bytearray(good)
        for _ in range(3):
            changed[len(good) - 8 - cases.rng.randrange(1, size)] = cases.rng.randrange(256)
        cases.add("parquet footer", "either", {"x.parquet": bytes(changed)}, "x.parquet")
    for length in (0, 1, size + 1, len(good), 0x7FFFFFFF, 0xFFFFFFFF):
        content = good[:-8] + length.to_bytes(4, "little") + b"PAR1"
        cases.add("parquet footer's length", "refused", {"x.parquet": content}, "x.parquet")
    zeros = pa.array([bytes(1 << 20)] * 220)
    bomb = parquet({"image": zeros, "label": pa.array([0] * 220)}, None, "zstd")
    cases.add("parquet bomb", "refused", {"x.parquet": bomb}, "x.parquet")


def archives(cases: Cases) -> None:
    image = png()
    out = str(cases.canary)
    slips = {
        "up": {"../canary.png": image},
        "far up": {"a/../../../canary.png": image},
        "root": {out: image, f"{out}.png": image},
        "drive": {"C:\\canary.png": image, "C:/canary.png": image},
        "backslashes": {"..\\..\\canary.png": image},
        "nothing": {},
        "no images": {"a/readme.txt": b"text"},
        "no class": {"a.png": image},
        "bad list": {"li\nst.csv": b"path\nx\n"},
        "hidden": {".a/b.png": image, "__MACOSX/a/b.png": image},
        "pickles": {"mini-imagenet-cache-train.pkl": pickle.dumps({})},
        "a zip within": {"images_background.zip": zipped({"a/b.png": image})},
    }
    for name, members in slips.items():
        cases.add(f"zip {name}", "refused", {"x.zip": zipped(members)}, "x.zip")
        cases.add(f"tar {name}", "refused", {"x.tar": tarred(members)}, "x.tar")
    zeros = bytes(1 << 26)
    packed = deflated(zeros)
    bomb = zip_of([(f"a/{i}.png", packed, len(zeros), 0) for i in range(8)])
    cases.add("zip bomb", "refused", {"x.zip": bomb}, "x.zip")
    black = b"BM" + struct.pack(
        "<IHHIIiiHHIIiiII", 12_000_054, 0, 0, 54, 40, 2000, 2000, 1, 24, *[0] * 6
    )
    black += bytes(12_000_000)
    packed, check = deflated(black), zlib.crc32(black)
    many = [(f"{i % 2}/{i}.bmp", packed, len(black), check) for i in range(40)]
    filling = cases.rng.randbytes(5 << 20)  # so that it is no bomb by its size
    many.append(("noise.bin", deflated(filling), len(filling), zlib.crc32(filling)))
    cases.add("zip of large images", "either", {"x.zip": zip_of(many)}, "x.zip")
    cases.add("tar.gz bomb", "refused", {"x.tar.gz": gzip.compress(zeros, 1) * 8}, "x.tar.gz")
    long = tarred({"a" * 90_000 + ".png": image})
    cases.add("tar long name", "refused", {"x.tar": long}, "x.tar")
    odd = zipped({"a/b.png": image, "e\x1b[31m\nvil/c.png": b"no image", "e\nvil/d.png": b""})
    cases.add("zip odd names", "noticed", {"x.zip": odd}, "x.zip")


def lists(cases: Cases) -> None:
    images = {"a.png": png(0), "b.png": png(1)}
    good = "path,class\na.png,cat\nb.png,dog\n"
    csvs: dict[str, tuple[str, bytes]] = {  # test_image_list_readers.py has simpler ones
        "NUL": ("either", b"path,class\na.png,c\0at\nb.png,dog\0\n"),
        "NUL in a path": ("noticed", b"path,class\na.png\0,cat\nb.png,dog\n"),
        "no header": ("whole", b"a.png,cat\nb.png,dog\n"),
        "a long line": ("refused", b"path,class\n" + b"x" * 1_000_000 + b",cat\n"),
        "a long header": ("refused", b"path," * 200_000 + b"class\n"),
        "a long class": ("either", b"path,class\na.png," + b"y" * 130_000 + b"\n"),
        "open quote": ("either", b'path,class\na.png,cat\n"b.png,dog\n' * 2),
        "leads up": ("refused", b"path,class\n../../canary.png,cat\n"),
        "is not there": ("refused", b"path,class\nx.png,cat\n" * 20_000),
        "holds itself": ("refused", b"path,class\nlist.csv,cat\n"),
        "surrogate": ("refused", b"path,class\na.png,\xed\xa0\x80\n"),
        "escape": ("either", b"path,class\na.png,\x1b[2J\nb.png,dog\n"),
        "carriage returns": ("either", good.replace("\n", "\r").encode()),
    }
    for name, (must, content) in csvs.items():
        cases.add(f"csv {name}", must, {**images, "list.csv": content}, "list.csv")
        cases.add(f"csv {name}, folder", must, {**images, "list.csv": content})
    jsons: dict[str, tuple[str, bytes]] = {
        "deep within": ("refused", b'{"path": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001),
        "many digits": ("refused", b'{"path": "a.png", "class": ' + b"9" * 10_000 + b"}"),
        "infinity": ("refused", b'{"path": "a.png", "class": 1e999}'),
        "surrogate path": ("refused", b'{"path": "\\ud800.png", "class": "cat"}'),
        "objects": ("refused", b'{"path": {"a": 1}, "class": ["cat"]}'),
        "long": ("refused", b'{"path": "' + b"x" * 1_000_000 + b'", "class": "cat"}'),
        "odd class": ("either", b'{"path": "a.png", "class": "a\\n\\u001b[2J"}'),
    }
    for name, (must, content) in jsons.items():
        cases.add(f"json {name}", must, {**images, "list.jsonl": content}, "list.jsonl")


def pictures(cases: Cases) -> None:
    """One that is enormous, or says so, beside one that is fine; then alone."""
    wide = struct.pack(">II", 100_000, 100_000)
    claims = png_of(wide + b"\1\0\0\0\0", b"\0" * 100)
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\0\0" + b"\0" * 6
    gif += b",\0\0\0\0" + struct.pack("<HH", 65535, 65535) + b"\0\2\2\x4c\1\0;"
    tiff = io.BytesIO()
    Image.new("L", (4, 4)).save(tiff, "TIFF")
    large_tiff = bytearray(tiff.getvalue())
    for tag in (256, 257):
        at = large_tiff.find(struct.pack("<HHI", tag, 4, 1))
        at = at if at >= 0 else large_tiff.find(struct.pack("<HHI", tag, 3, 1))
        assert at >= 0
        large_tiff[at : at + 12] = struct.pack("<HHII", tag, 4, 1, 1 << 30)
    jpeg = io.BytesIO()
    Image.new("RGB", (16, 16)).save(jpeg, "JPEG")
    large_jpeg = bytearray(jpeg.getvalue())
    at = large_jpeg.index(b"\xff\xc0")
    large_jpeg[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    row = b"\0" + bytes(12_500)
    bits = zlib.compressobj(1)
    real = bits.compress(row * 5_000) + bits.flush()
    text = b"k\0\0" + zlib.compress(bytes(1 << 27), 1)
    whole = png()
    bad = {
        "claims.png": claims,
        "bits.png": png_of(wide + b"\1\0\0\0\0", real, raw=True),
        "text.png": whole[:33] + chunk(b"zTXt", text) + whole[33:],
        "chunk.png": whole[:33] + struct.pack(">I", 0x7FFFFFFF) + b"zTXt" + whole[33:],
        "none.png": png_of(struct.pack(">II", 0, 0) + b"\x08\2\0\0\0", b""),
        "large.gif": gif,
        "large.tif": bytes(large_tiff),
        "large.jpg": bytes(large_jpeg),
        "large.ppm": b"P6 99999 99999 255\n" + bytes(100),
        "digits.ppm": b"P6 " + b"9" * 100_000 + b" 4 255\n",
        "large.bmp": b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 100, 0, 0, 54, 40, 1 << 30, 1 << 30, 1, 24, *([0] * 6)),
        "large.webp": b"RIFF\x1a\0\0\0WEBPVP8L\x0e\0\0\0/\xff\xff\xff\x0f" + bytes(9),
        "large.jp2": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(60),
        "large.heic": b"\0\0\0\x1cftypheic\0\0\0\0mif1heic" + bytes(200),
        "large.avif": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(200),
        "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) (w) file\n",
        "vector.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    }
    for name, content in bad.items():
        good = {"a/good.png": png(0), "b/good.png": png(1)}
        cases.add(f"image {name}", "noticed", {**good, f"a/{name}": content})
        cases.add(f"image {name} alone", "refused", {f"a/{name}": content})
    cases.add("image that ends early, alone", "noticed", {"a/b.png": whole[:-60]})
    large = struct.pack(">II", 7000, 7000) + b"\x08\6\0\0\0"  # red, green, blue and alpha
    layers = png_of(large, zlib.compress(bytes(7000 * 28_001), 1), raw=True)
    cases.add("image of 49 million pixels", "either", {"a/b.png": layers})


def arrays(cases: Cases, seed_of: dict[str, Seed]) -> None:
    """.npz whose headers say anything."""
    labels = seed_of["tiered deflated"].files["val_labels.pkl"]
    shapes = (
        *("(1000000000000000000, 84, 84, 3)", "(-3, 84, 84, 3)", "(3, 0, 0, 3)", "(3, 84, 84)"),
        *("(" + "9" * 5000 + ", 84, 84, 3)", "(3, 84, 84, 3", "(3, 99999999, 99999999, 3)", "()"),
        *("(True, 84, 84, 3)", "(3, 84, 84, 3, 1)", "(0, 84, 84, 3)", "(" * 9000 + ")" * 9000),
    )
    headers = [f"{{'descr': '|u1', 'fortran_order': False, 'shape': {s}, }}" for s in shapes]
    program = f"__import__('os').system('touch {cases.canary}')"
    headers += [
        program,
        f"{{'descr': {program}, 'fortran_order': False, 'shape': (3, 84, 84, 3), }}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3, 84, 84, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 84, 84, 3), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 84, 84, 3), }",
    ]
    for i, header in enumerate(headers):
        array = b"\x93NUMPY\2\0" + struct.pack("<I", len(header)) + header.encode() + bytes(100)
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[: 1 + i % 2]:
            files = {
                "val_images.npz": zipped({"images.npy": array}, method),
                "val_labels.pkl": labels,
            }
            cases.add(f"npz header {header}", "refused", files)
    for what, members in {
        "other key": {"other.npy": b""},
        "no header": {"images.npy": b""},
        "a long header": {"images.npy": b"\x93NUMPY\2\0\xff\xff\xff\xff{"},
        "bomb": {"images.npy": bytes(1 << 27)},
    }.items():
        files = {"val_images.npz": zipped(members), "val_labels.pkl": labels}
        cases.add(f"npz {what}", "refused", files)


def stores(cases: Cases) -> None:
    """Packed files with forged headers."""

    def add(what: str, must: str, content: bytes) -> None:
        cases.add(f"store {what}", must, {"x.images": content}, "x.images")

    whole = store()
    for length in (0, 1, 10, len(whole), 1 << 26, 1 << 62, (1 << 64) - 1):
        add(f"header of {length}", "refused", length.to_bytes(8, "little") + whole[8:])
    abouts: dict[str, tuple[str, Any]] = {
        "another format": ("refused", {"format": "kedge-images-99"}),
        "classes as text": ("refused", {"classes": "ab"}),
        "classes as numbers": ("refused", {"classes": [1, 2]}),
        "too few classes": ("refused", {"classes": ["a"]}),
        "the same class twice": ("refused", {"classes": ["a", "a"]}),
        "no class": ("refused", {"classes": []}),
        "a class without images": ("either", {"classes": ["a", "b", "c"]}),
        "parts without images": ("refused", {"parts": ["train"]}),
        "parts as a number": ("refused", {"parts": 3}),
        "fingerprint as a number": ("either", {"fingerprint": 3}),
        "fingerprint as a list": ("either", {"fingerprint": []}),
        "remarks as text": ("either", {"remarks": "nothing"}),
        "remarks as objects": ("either", {"remarks": [{"a": 1}, None, ["x"]]}),
        "remarks for terminals": ("either", {"remarks": ["\x1b[2Jcleared\nand a line"]}),
        "names for terminals": ("either", {"classes": ["\x1b[2J", "b\nc"]}),
        "source for terminals": ("either", {"source": "\x1b[2J\nx"}),
        "source as a number": ("either", {"source": 3}),
        "half a character": ("either", {"classes": ["\ud800", "b"]}),
    }
    for what, (must, about) in abouts.items():
        add(what, must, store(about))
    for key in ("format", "classes", "fingerprint", "parts", "source"):
        must = "either" if key in ("parts", "source") else "refused"
        add(f"without {key}", must, store(without=key))
    for what, text in {"deep": "[" * 100_000, "no JSON": "{", "null": "null", "list": "[]"}.items():
        add(f"about {what}", "refused", store(text=text))
    U8, I64 = np.uint8, np.int64
    images, labels = np.zeros((4, 3, 16, 16), U8), np.array([0, 0, 1, 1], I64)
    tensors: dict[str, dict[str, np.ndarray]] = {
        "fractions": {"images": images.astype(np.float32), "labels": labels},
        "four channels": {"images": np.zeros((4, 4, 16, 16), U8), "labels": labels},
        "no channel": {"images": np.zeros((4, 0, 16, 16), U8), "labels": labels},
        "no images": {"images": images[:0], "labels": labels[:0]},
        "no pixels": {"images": images[:, :, :0], "labels": labels},
        "not square": {"images": images[:, :, :8], "labels": labels},
        "flat": {"images": images[0], "labels": labels},
        "unsorted": {"images": images, "labels": labels[::-1].copy()},
        "negative": {"images": images, "labels": labels - 1},
        "beyond": {"images": images, "labels": labels + 1},
        "too many": {"images": images, "labels": np.zeros(9, I64)},
        "small labels": {"images": images, "labels": labels.astype(np.int32)},
        "no labels": {"images": images},
        "part alone": {"images": images, "labels": labels, "part": np.zeros(4, U8)},
    }
    for what, some in tensors.items():
        add(what, "either" if what == "not square" else "refused", store(tensors=some))
    part = {"images": images, "labels": labels, "part": np.full(4, 7, U8)}
    add("part beyond", "refused", store({"parts": ["train"]}, tensors=part))
    add(
        "part of another type",
        "refused",
        store({"parts": ["train"]}, tensors={**part, "part": labels}),
    )
    for what, offsets in {"beyond": [0, 1 << 40], "backwards": [9, 3], "negative": [-1, 5]}.items():
        header = {"images": {"dtype": "U8", "shape": [4, 3, 16, 16], "data_offsets": offsets}}
        text = json.dumps(header).encode()
        add(f"offsets {what}", "refused", len(text).to_bytes(8, "little") + text + bytes(3072))
    shape = {"images": {"dtype": "U8", "shape": [1 << 40, 1 << 40, 3, 3], "data_offsets": [0, 9]}}
    text = json.dumps(shape).encode()
    add("shape", "refused", len(text).to_bytes(8, "little") + text + bytes(9))


def odd_folders(cases: Cases) -> None:
    folder = cases.add("fifo", "refused", {})
    (folder / "a").mkdir()
    os.mkfifo(folder / "a" / "b.png")
    folder = cases.add("fifo given", "refused", {}, "b.pkl")
    os.mkfifo(folder / "b.pkl")
    folder = cases.add("fifo beside", "refused", {"train": b"\x80\2}."}, "train")
    os.mkfifo(folder / "meta")
    folder = cases.add("fifo for a list", "refused", {"a.png": png()}, "")
    os.mkfifo(folder / "list.csv")
    folder = cases.add("device", "refused", {})
    (folder / "a").mkdir()
    (folder / "a" / "b.png").symlink_to("/dev/zero")
    cases.add("folder called .png", "refused", {"a/b.png/c.txt": b"text"})
    cases.add("folder called .parquet", "refused", {"a.parquet/c.txt": b"text"})
    cases.add("folder called .pkl", "refused", {"mini-imagenet-cache-train.pkl/c.txt": b"text"})
    folder = cases.add("name that is no text", "refused", {"a/b.png": png()})
    with open(os.fsencode(folder) + b"/a/\xff.png", "wb") as file:
        file.write(png())
    folder = cases.add("link to itself", "refused", {})
    (folder / "a.png").symlink_to("a.png")
    folder = cases.add("maze", "either", {"a/b.png": png()})
    for i in range(6):
        (folder / f"m{i}").mkdir()
    for i in range(6):
        for j in range(6):
            (folder / f"m{i}" / f"l{j}").symlink_to(folder / f"m{j}")
    cases.add("nothing", "refused", {})
    cases.add("not there", "refused", {}, "gone.zip")
    deep = "/".join(["d"] * 300)
    cases.add("deep", "either", {f"{deep}/a.png": png()})


# ── small writers ────────────────────────────────────────────────────────────────────────────


def png(seed: int = 0) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def png_of(header: bytes, pixels: bytes, raw: bool = False) -> bytes:
    packed = pixels if raw else zlib.compress(pixels)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, compresslevel=1) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.filename = name  # as it is, whatever Python thinks of it
            info.compress_type = method
            archive.writestr(info, content)
    return file.getvalue()


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def zip_of(members: list[tuple[str, bytes, int, int]]) -> bytes:
    """Of what is deflated already: names, bytes, sizes and checksums."""
    content, directory = b"", b""
    for name, packed, size, check in members:
        about = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, check, len(packed), size, len(name), 0)
        place = struct.pack("<HHHII", 0, 0, 0, 0, len(content))
        directory += b"PK\1\2\x14\0" + about + place + name.encode()
        content += b"PK\3\4" + about + name.encode() + packed
    end = struct.pack("<HHHHIIH", 0, 0, *[len(members)] * 2, len(directory), len(content), 0)
    return content + directory + b"PK\5\6" + end


def tarred(members: dict[str, bytes], size: int | None = None, **about: Any) -> bytes:
    """`size` is what the last entry says of itself."""
    file = io.BytesIO()
    last = list(members)[-1:]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in about.items():
                setattr(info, key, value)
            if [name] == last and size is not None:
                info.size = size
                file.write(info.tobuf(tarfile.GNU_FORMAT))
                file.write(content)
            else:
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def parquet(
    columns: dict[str, Any], metadata: dict[str, bytes] | None = None, how: str = "none"
) -> bytes:
    file = io.BytesIO()
    table = pa.table(columns)
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, file, compression=how, use_dictionary=False, write_statistics=False)
    return file.getvalue()


def store(
    about: dict[str, Any] | None = None,
    *,
    without: str = "",
    text: str | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> bytes:
    """A packed file, by hand: the length of a header, the header, the bytes of tensors."""
    said = {
        "format": "kedge-images-1",
        "classes": ["a", "b"],
        "source": "pets",
        "fingerprint": "0123456789abcdef-0123456789abcdef",
        "parts": [],
        **(about or {}),
    }
    said.pop(without, None)
    if tensors is None:
        pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), np.uint8)
        tensors = {"images": pixels, "labels": np.array([0, 0, 1, 1])}
        if said.get("fingerprint") == "0123456789abcdef-0123456789abcdef":
            labels = torch.from_numpy(tensors["labels"])
            parts = pixels.shape, [pixels.data], labels, said.get("classes"), [], None
            said["fingerprint"] = fingerprint_of(*parts)
    kinds = {"uint8": "U8", "int64": "I64", "int32": "I32", "float32": "F32"}
    header: dict[str, Any] = {"__metadata__": {"kedge": json.dumps(said) if text is None else text}}
    at, content = 0, b""
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": kinds[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
        content += tensor.tobytes()
    start = json.dumps(header).encode()
    return len(start).to_bytes(8, "little") + start + content


# ── the tests ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outcome:
    cases: Cases
    whole: dict[str, Ended]  # the same data sets before anything was done to them
    inspected: dict[str, Ended]
    shown: dict[str, Ended]  # some of them as a table
    packed: dict[str, Ended]
    places: dict[str, Path]  # where the packed ones would be
    before: dict[str, tuple[int, int]]
    empty: tuple[Path, ...]  # folders in which nothing may appear


def below(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for where, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            info = os.lstat(os.path.join(where, name))
            found[ascii(os.path.join(where, name))] = info.st_size, info.st_mtime_ns
    return found


@pytest.fixture(scope="module")
def outcome(
    forms: dict[str, Any],
    watched: Callable[..., dict[str, Ended]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    root = tmp_path_factory.mktemp("bad")
    canary = root / "canary"
    cases = Cases(root / "cases", canary)
    seed_of = seeds(forms, root / "seeds")
    whole = {}
    for name, seed in seed_of.items():
        cases.add(f"{name} whole", "whole", seed.files, seed.give)
        whole[name] = list(cases.given)[-1]
    spoilt(cases, seed_of)
    swapped(cases, seed_of)
    hostiles(cases, seed_of)
    tables(cases, seed_of)
    archives(cases)
    lists(cases)
    pictures(cases)
    arrays(cases, seed_of)
    stores(cases)
    odd_folders(cases)
    before = below(cases.root)
    packed = tmp_path_factory.mktemp("packed")
    empty = tuple(tmp_path_factory.mktemp(name) for name in ("cwd", "tmp", "cache"))
    commands = [
        [name, "data", "inspect", str(path), "--json"] for name, path in cases.given.items()
    ]
    start = len(seed_of)  # whole ones load all that is needed, and then memory is limited
    commands.insert(start, ["limit"])
    # `kedge data pack` still waits for a pipe that nobody writes to; `inspect` does not.
    some = [name for name in cases.given if "fifo given" not in name]
    chosen = [n for i, n in enumerate(some) if i % PACKED == 0 or n[4:].startswith("image")]
    places = {}
    odd = [n for n in cases.given if re.search("terminals|odd|escape|nul|half a char", n)]
    commands += [[f"show {name}", "data", "inspect", str(cases.given[name])] for name in odd]
    for name in chosen:
        places[name] = packed / name / "x.images"
        places[name].parent.mkdir()
        command = ["data", "pack", str(cases.given[name]), "--out", str(places[name])]
        commands.append([f"pack {name}", *command])
    ended = watched(commands, root, empty[0], TMPDIR=str(empty[1]), KEDGE_CACHE=str(empty[2]))
    yield Outcome(
        cases,
        {name: ended[case] for name, case in whole.items()},
        {name: ended[name] for name in cases.given},
        {name: ended[f"show {name}"] for name in odd},
        {name: ended[f"pack {name}"] for name in chosen},
        places,
        before,
        empty,
    )
    for name in canary.parent.glob("canary*"):
        name.unlink()


def test_whole_ones_are_read(outcome: Outcome) -> None:
    for name, ended in outcome.whole.items():
        assert ended.rc == 0, (name, ended.err)
        assert not ended.err
        assert json.loads(ended.out)["n_images"] >= 3


def test_each_is_one_sentence_or_is_read(outcome: Outcome) -> None:
    problems = []
    for name, ended in outcome.inspected.items():
        must, path = outcome.cases.must[name], outcome.cases.given[name]
        if ended.rc == 0:
            if must == "refused":
                problems.append(f"{name}: was read: {ended.out[-200:]}")
                continue
            if ended.err:
                problems.append(f"{name}: said {ended.err}")
            found = json.loads(ended.out)
            if must == "noticed" and not noticed(outcome, name, found):
                problems.append(f"{name}: nothing was noticed: {found['remarks']}")
        elif wrong := ended.fault(str(path), str(path.parent)):
            problems.append(f"{name}: {wrong}")
    assert not problems, f"{len(problems)}\n" + "\n".join(problems)


def noticed(outcome: Outcome, name: str, found: dict[str, Any]) -> bool:
    """A remark that the whole data set does not get, if there is such a one."""
    usual = [
        json.loads(ended.out)
        for kind, ended in outcome.whole.items()
        if name[4:].startswith(f"{kind} ")
    ]
    known = {remark for whole in usual for remark in whole["remarks"]}
    few = "have fewer than 20 images"
    return any(remark not in known and few not in remark for remark in found["remarks"])


def test_no_name_reaches_the_terminal_as_it_is(outcome: Outcome) -> None:
    """It could move the cursor, or look like another line."""
    assert len(outcome.shown) > 10
    problems = []
    for name, ended in outcome.shown.items():
        lines = (ended.out + ended.err).split("\n")[:-1]
        if ended.rc not in (0, 1) or not all(line.isprintable() for line in lines):
            problems.append(f"{name}: {ended.rc} {ended.out!a} {ended.err[-500:]!a}")
    assert not problems, f"{len(problems)}\n" + "\n".join(problems)


def test_nothing_is_run(outcome: Outcome) -> None:
    assert not list(outcome.cases.canary.parent.glob("canary*"))


def test_nothing_is_written(outcome: Outcome) -> None:
    assert below(outcome.cases.root) == outcome.before
    for folder in outcome.empty:
        assert list(folder.iterdir()) == []


def test_time_and_memory_are_bounded(outcome: Outcome) -> None:
    both = {**outcome.inspected, **{f"pack {k}": v for k, v in outcome.packed.items()}}
    slow = {name: ended.seconds for name, ended in both.items() if ended.seconds > SECONDS}
    large = {name: ended.grown for name, ended in both.items() if ended.grown > GROWTH}
    assert (slow, large) == ({}, {})


def test_packing_leaves_nothing_where_it_fails(outcome: Outcome) -> None:
    problems = []
    for name, ended in outcome.packed.items():
        place, path = outcome.places[name], outcome.cases.given[name]
        there = sorted(file.name for file in place.parent.iterdir())
        if there != ([place.name] if ended.rc == 0 else []):
            problems.append(f"{name}: ended with {ended.rc} and left {there}: {ended.err[-300:]}")
        if ended.rc == 0:
            if outcome.inspected[name].rc != 0:
                problems.append(f"{name}: packed, but {outcome.inspected[name].err}")
            if not all(line.isprintable() for line in ended.err.splitlines()):
                problems.append(f"{name}: said {ended.err!a}")
        elif wrong := ended.fault(str(path), str(path.parent)):
            problems.append(f"{name}: {wrong}")
    assert not problems, f"{len(problems)}\n" + "\n".join(problems)


@pytest.mark.parametrize("kind", ["exec", "open", "stack global", "inst", "pickle"])
def test_python_itself_would_run_them(tmp_path: Path, kind: str) -> None:
    """So that the others are known to be what they are said to be."""
    canary = tmp_path / "canary"
    program = b"\x80\4" + hostile(canary)[kind] + b"."
    made = pickle.loads(program)
    if kind == "open":
        made.close()
    assert canary.exists()
