"""Pickles of data sets: kedge's pickle machine, and the readers of what comes out of it.

The first byte of an input chooses the file; the others are its content.
"""

from __future__ import annotations

import pickle
import pickletools
import random
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from tests.data.conftest import in_bytes, python2
from tests.data.hostile import png

from kedge.data.files.pickle_objects import GLOBALS
from kedge.data.files.unpickle import load_pickle

from ..mutate import change_bytes, change_list
from ..target import Target, put, read_data

PIXELS = np.arange(4 * 2 * 2 * 3, dtype=np.uint8).reshape(4, 2, 2, 3)
LABELS = {"label_specific": np.arange(4), "label_specific_str": ["a", "b", "c", "d"]}
ROWS = {
    "data": np.zeros((2, 3072), np.uint8),
    "fine_labels": [0, 1],
    "batch_label": "training batch 1 of 1",
}
FILES: dict[str, Any] = {
    "mini/mini-imagenet-cache-train.pkl": {
        "image_data": PIXELS,
        "class_dict": {"n01": [0, 1], "n02": [2, 3]},
    },
    "category/miniImageNet_category_split_val.pickle": {
        "data": PIXELS,
        "labels": [64, 64, 65, 65],
        "catname2label": {"n01": 64, "n02": 65},
    },
    "fs/CIFAR_FS_test.pickle": {"data": PIXELS, "labels": [0, 0, 1, 1]},
    "labels/val_labels.pkl": LABELS,
    "png/val_images_png.pkl": [np.frombuffer(png(k, 2), np.uint8)[:, None] for k in range(4)],
    "cifar/cifar-100-python/train": ROWS,
    "names/cifar-100-python/meta": {"fine_label_names": ["ant", "bat"]},
    "any/any.pkl": [
        {"a": (1, 2.5, None, True), b"b": {1, 2}, "c": frozenset("x"), 3: bytearray(b"d")},
        OrderedDict(e=[np.float64(1.5), np.int8(-1), np.str_("f")]),
        defaultdict(list, g=[np.array(["h", "é"]), np.array([1, "i"], object)]),
        np.asfortranarray(np.ones((2, 3), ">f4")),
        "é" * 300,
    ],
}
BESIDE = {  # other files of a data set, which are as they should be
    "labels/val_images_png.pkl": FILES["png/val_images_png.pkl"],
    "png/val_labels.pkl": LABELS,
    "cifar/cifar-100-python/test": ROWS,
    "names/cifar-100-python/train": ROWS,
    "names/cifar-100-python/test": ROWS,
}
NAMES = list(FILES)
TOKENS = [text.encode() for name in GLOBALS for text in name]
TOKENS += [b"image_data", b"class_dict", b"data", b"labels", b"catname2label", b"fine_labels"]
TOKENS += [b"u1", b"O8", b"latin1", b"U3", b"S2"]


def place(folder: Path, data: bytes) -> Path:
    for name, value in BESIDE.items():
        if not (folder / name).exists():
            put(folder / name, pickle.dumps(value))
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    path = put(folder / name, data[1:])
    return path if name.startswith("any/") else folder / name.partition("/")[0]


def run(folder: Path, data: bytes) -> None:
    path = place(folder, data)
    if path.is_file():
        load_pickle(path)
    else:
        read_data(path)


def seeds() -> list[bytes]:
    found = []
    for k, value in enumerate(FILES.values()):
        programs = [pickle.dumps(value, protocol) for protocol in range(6)]
        programs.append(pickle.dumps(in_bytes(value) if type(value) is dict else value, 4))
        programs += [python2(value)] if type(value) is dict else []
        found += [bytes([k]) + program for program in programs]
    return found


def instructions(program: bytes) -> list[bytes]:
    """The opcodes of a pickle with their arguments, as far as they can be read."""
    starts: list[int] = []
    try:
        starts = [at for _, _, at in pickletools.genops(program) if at is not None]
    except Exception:  # pickletools raises anything
        starts = [*starts, 0][:1]
    ends = [*starts[1:], len(program)]
    return [program[a:b] for a, b in zip(starts, ends, strict=True)] or [program]


def new_instruction(rng: random.Random) -> bytes:
    opcode = rng.choice(pickletools.opcodes)
    code = opcode.code.encode("latin1")
    if opcode.arg is None:
        return code
    token = rng.choice((*TOKENS, b"", b"1", b"-1", b"0", b"1e5", b"00", rng.randbytes(9)))
    n = opcode.arg.n
    if n == pickletools.UP_TO_NEWLINE:
        lines = 2 if opcode.name in ("GLOBAL", "INST") else 1
        return code + b"".join(rng.choice((token, *TOKENS)) + b"\n" for _ in range(lines))
    if n < 0:
        length = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT8U: 8}
        return code + len(token).to_bytes(length.get(n, 4), "little") + token
    return code + rng.choice((bytes(n), b"\1" + bytes(n - 1), b"\xff" * n, rng.randbytes(n)))


def mutate(rng: random.Random, data: bytes) -> bytes:
    kind, program = data[:1] or b"\0", data[1:]
    if rng.random() < 0.05:
        kind = rng.randbytes(1)
    other = rng.choice(SEEDS)[1:] if rng.random() < 0.1 else b""
    donor = instructions(other or program)

    def new() -> bytes:
        return rng.choice(donor) if rng.random() < 0.4 else new_instruction(rng)

    changed = change_list(rng, instructions(program), lambda x: change_bytes(rng, x), new)
    return kind + b"".join(changed)


SEEDS = seeds()
TARGET = Target(run, lambda: SEEDS, mutate, TOKENS, place=place)
