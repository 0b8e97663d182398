"""Lists of images and classes: CSV, JSON Lines and the lists of known data sets.

The first byte of an input chooses the file; the others are its text.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.data.hostile import png

from ..mutate import change_bytes, change_list
from ..target import data_target, put

PICTURES = ("a/0.png", "a/1.png", "b/2.png")
BASE = "tiny-imagenet-200"
FILES: dict[str, bytes] = {
    "csv/list.csv": b"path,label,split\na/0.png,ant,train\na/1.png,ant,val\nb/2.png,bat,train\n",
    "tsv/list.tsv": b"image\tclass\na/0.png\tant\nb/2.png\tbat\n",
    "psv/list.psv": b'"file name"|"class"\n"a/0.png"|"an|t"\n',
    "part/train.csv": b"filename;label\r\n0.png;1\r\n2.png;2\r\n",
    "text/list.txt": b"a/0.png 0\na/1.png 0\nb/2.png 1\n",
    "json/list.jsonl": b'{"path": "a/0.png", "label": 1}\n{"file": "b/2.png", "class": "x"}\n',
    "alone/list.csv": b"image,class\n0.png,n01\nimages/1.png,n01\n",
    "imagenet/val.csv": b"filename,label\nn0153282900000001.jpg,n01532829\nn01532829_7.JPEG,n1\n",
    f"tiny/{BASE}/words.txt": b"n01532829\thouse finch\nn02\tcrane, bird\n",
    f"tiny/{BASE}/wnids.txt": b"n01532829\nn02\n",
    f"tiny/{BASE}/val/val_annotations.txt": b"val_0.JPEG\tn01532829\t0\t32\nval_1.JPEG\tn02\n",
    "cifar/cifar100/splits/bertinetto/train.txt": b"ant\nbat\n",
}
FOLDERS = ("csv", "tsv", "psv", "part", "text", "json", "alone")
BESIDE = [f"{folder}/{name}" for folder in FOLDERS for name in PICTURES]
BESIDE += ["alone/images/1.png", "imagenet/x/n01532829/n01532829_7.JPEG"]
BESIDE += [f"tiny/{BASE}/train/{n}/images/{n}_0.JPEG" for n in ("n01532829", "n02")]
BESIDE += [f"tiny/{BASE}/val/images/val_{k}.JPEG" for k in range(2)]
BESIDE += [f"cifar/cifar100/data/{name}/0.png" for name in ("ant", "bat")]
KEPT = ("tiny/", "cifar/")  # of these sets several lists belong together
NAMES = list(FILES)
CELLS = (
    *(b"path", b"label", b"split", b"filename", b"class", b"image", b"ant", b"a/0.png", b"b/2.png"),
    *(b"train", b"val", b"test", b"0", b"", b'"', b'""', b'" x"', b"../x.png", b"/x.png", b"\0"),
    *(b"n01532829", b"n0153282900000001.jpg", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"C:/x.png"),
)
SEPARATORS = (b",", b";", b"\t", b"|", b":", b" ", b"\n", b"\r\n", b"\r")
JSON = (
    *(
        b'{"path": ',
        b'"label": ',
        b"1e999",
        b"NaN",
        b"[[",
        b"]]",
        b"{}",
        b"null",
        b'"\\ud800"',
        b"}",
    ),
)


def place(folder: Path, data: bytes) -> Path:
    for picture in BESIDE:
        if not (folder / picture).exists():
            put(folder / picture, png())
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    for other in NAMES:
        if other.startswith(KEPT) and not (folder / other).exists():
            put(folder / other, FILES[other])
    path = put(folder / name, data[1:])
    return path if name.startswith("alone/") else folder / name.partition("/")[0]


def seeds() -> list[bytes]:
    return [bytes([k]) + text for k, text in enumerate(FILES.values())]


def mutate(rng: random.Random, data: bytes) -> bytes:
    kind, text = data[:1] or b"\0", data[1:]
    if rng.random() < 0.1:
        kind = rng.randbytes(1)
    separator = rng.choice(SEPARATORS)
    known = (*CELLS, *SEPARATORS, *(JSON if rng.random() < 0.3 else CELLS))

    def new() -> bytes:
        return rng.choice(known) * rng.choice((1, 1, 1, 1, 30, 3000))

    cells = change_list(rng, text.split(separator), lambda cell: change_bytes(rng, cell), new)
    joint = separator if rng.random() < 0.95 else rng.choice(SEPARATORS)
    return kind + joint.join(cells)


TARGET = data_target(place, seeds, mutate, [*CELLS, *JSON, *SEPARATORS])
