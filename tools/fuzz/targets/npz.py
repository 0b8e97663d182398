"""Arrays of tieredImageNet in an .npz, read by kedge beside NumPy."""

from __future__ import annotations

import io
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np

from ..mutate import NUMBERS, change_bytes
from ..target import data_target, put
from . import zip as archives

IMAGES = np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3)
DESCRIPTIONS = (b"|u1", b"<u1", b"u1", b"<f4", b"|O", b"|V3", b"", b"u1', 'x': 'y")


def place(folder: Path, data: bytes) -> Path:
    labels = {"labels": list(range(4))}
    if not (folder / "train_labels.pkl").exists():
        put(folder / "train_labels.pkl", pickle.dumps(labels))
    return put(folder / "train_images.npz", data).parent


def npy(description: bytes, fortran: bytes, shape: bytes, content: bytes, version: int) -> bytes:
    header = b"{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }" % (
        description,
        fortran,
        shape,
    )
    length = (len(header) + 1).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + b"\n" + content


def zipped(name: str, content: bytes, method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def seeds() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        for images in (IMAGES, np.asfortranarray(IMAGES)):
            file = io.BytesIO()
            save(file, images=images, more=np.arange(3))
            found.append(file.getvalue())
    noise = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, images=noise)  # longer than what zipfile reads at once
    found.append(file.getvalue())
    plain = npy(b"|u1", b"False", b"4L, 2L, 3L, 3L", IMAGES.tobytes(), 2)
    return [*found, zipped("images", plain, 0), zipped("images.npy", plain, 8)]


def new_archive(rng: random.Random) -> bytes:
    n, height, width = (rng.choice((1, 2, 4, *NUMBERS)) for _ in "nhw")
    shape = rng.choice(((4, 2, 3, 3), (n, 2, 3, 3), (4, height, width, 3), (n, height, width, 3)))
    size = min(int(np.prod([float(x) for x in shape])), 3000)
    text = b", ".join(b"%d" % x for x in shape)
    text = rng.choice((text, text, b"9" * 5000 + b", 3", b"", b"4,2,3,3,"))
    description, fortran = rng.choice((b"|u1", *DESCRIPTIONS)), rng.choice((b"True", b"False"))
    content = npy(description, fortran, text, rng.randbytes(size), rng.choice((1, 2, 3, 9)))
    return zipped(rng.choice(("images", "images.npy")), content, rng.choice((0, 8, 12)))


def mutate(rng: random.Random, data: bytes) -> bytes:
    members = archives.members_of(data)
    if rng.random() < 0.2 or not members:
        return new_archive(rng)
    if rng.random() < 0.5 and members[0][0][8:10] == b"\0\0":  # not compressed
        member = members[0]
        at = rng.randrange(120)
        head = change_bytes(rng, member[3][at : at + 30])
        member[3] = member[3][:at] + head + member[3][at + 30 :]
        size = len(member[3]).to_bytes(4, "little")
        member[0] = member[0][:18] + size + size + member[0][26:]
        member[4] = member[4][:20] + size + size + member[4][28:]
        return archives.joined(members, b"")
    return archives.mutate(rng, data)


TOKENS = [b"\x93NUMPY", b"'descr'", b"'fortran_order'", b"'shape'", b"images.npy", b"True"]
TARGET = data_target(place, seeds, mutate, [*TOKENS, *archives.TOKENS])
