"""Models, memories, checkpoints, packed images and weights: files of tensors.

The first byte of an input chooses the kind of file; the others are its content.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import torch
from tests.models.forged import VALUES, ForgedFile, forged_json, signed
from torch import nn

from kedge.cli.model_output import load_memory
from kedge.config import EpisodeShape
from kedge.data.inspect import inspect_table
from kedge.data.table import ImageTable
from kedge.methods.registry import parse_method
from kedge.models import model_file
from kedge.models.model import Model
from kedge.models.weights_file import load_into, read_weights
from kedge.report.model_summary import describe_model
from kedge.training.checkpoint import is_checkpoint_of
from kedge.utils.atomic_io import load_tensors, save_tensors

from ..mutate import NUMBERS, change_bytes, change_list
from ..target import Target, put
from . import pickle as pickles
from . import zip as archives

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden"
SAVED = {"model": GOLDEN / "base.kedge", "memory": GOLDEN / "base.kedge.memory"}
KINDS = ("model", "memory", "checkpoint", "packed", "weights")
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "Q9", None)


def run(folder: Path, data: bytes) -> None:
    kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    model = folder / "base.kedge"
    if not model.exists():
        put(model, SAVED["model"].read_bytes())
    if kind == "model":
        path = put(folder / "x.kedge", data[1:])
        describe_model(path, model_file.read(path))
        repr(Model.load(path))
    elif kind == "memory":
        put(folder / "base.kedge.memory", data[1:])
        loaded = Model.load(model)
        name, memory = load_memory(model, loaded)
        if memory and name in ("EIML", "EWC"):
            alignment = parse_method(name).alignment
            assert alignment is not None
            alignment.check_memory(memory, loaded)
            alignment.rehearsal_pool(memory, EpisodeShape(2, 1, 1))
    elif kind == "checkpoint":
        path = put(folder / "x.training", data[1:])
        load_tensors(path, "checkpoint")
        is_checkpoint_of(model, path)
    elif kind == "packed":
        path = put(folder / "x.images", data[1:])
        table = ImageTable.load(path)
        inspect_table(table, load_tensors(path, "packed image file")[0], len(data))
        table.images[:2]
    else:
        path = put(folder / "x.pth", data[1:])
        load_into(nn.Linear(3, 2), read_weights(path).state, path)


def seeds() -> list[bytes]:
    folder = Path("/dev/shm" if Path("/dev/shm").exists() else "/tmp", "kedge-fuzz-seed")
    models = [GOLDEN / name for name in ("base.kedge", "ecm.kedge", "format-1.kedge")]
    found = [b"\0" + path.read_bytes() for path in models]
    model = Model.load(SAVED["model"])
    weights = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    about = {"method": "EWC", "model": model.fingerprint}
    save_tensors(folder, weights, about)
    found += [b"\1" + SAVED["memory"].read_bytes(), b"\1" + folder.read_bytes()]
    found.append(b"\2" + (GOLDEN / "format-1.training").read_bytes())
    images = np.arange(4 * 16 * 16, dtype=np.uint8).reshape(4, 16, 16)
    ImageTable.build(images, [0, 0, 1, 1], ["ant", "bat"]).save(folder)
    found.append(b"\3" + folder.read_bytes())
    folder.unlink()
    for new in (True, False):
        file = io.BytesIO()
        torch.save({"model": weights}, file, _use_new_zipfile_serialization=new)
        found.append(b"\4" + file.getvalue())
    return [*found, b"\4" + found[-3][1:]]


def mutate(rng: random.Random, data: bytes) -> bytes:
    kind, content = data[:1] or b"\0", data[1:]
    if rng.random() < 0.05:
        kind = rng.randbytes(1)
    if content.startswith(b"PK"):
        members = archives.members_of(content)
        for member in members:
            if member[1].endswith(b"data.pkl"):
                member[3] = _change_program(rng, member[3])
        return kind + archives.joined(members, b"")
    if KINDS[kind[0] % len(KINDS)] == "weights" and content[:1] == b"\x80":
        return kind + _change_program(rng, content)
    try:
        return kind + _forged(rng, ForgedFile(content))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return kind + change_bytes(rng, content)


def _change_program(rng: random.Random, program: bytes) -> bytes:
    """Of a pickle, which may be followed by other data."""
    items = pickles.instructions(program)
    donor = rng.choice((items, [pickles.new_instruction(rng)]))
    changed = change_list(rng, items, lambda x: change_bytes(rng, x), lambda: rng.choice(donor))
    return b"".join(changed)


def _forged(rng: random.Random, file: ForgedFile) -> bytes:
    where = rng.randrange(4)
    if where == 0:
        file.about = forged_json(rng, file.about)
    elif where == 1:
        file.header = forged_json(rng, file.header)
        file.header.setdefault("__metadata__", {})
    elif where == 2:
        name, n = rng.choice(file.names), rng.choice((0, 1, 3, *NUMBERS))
        shapes = (*VALUES, [n], [n, 0], [0, n], [n, n], [1] * 70)
        change = ({"dtype": rng.choice(DTYPES)}, {"shape": rng.choice(shapes)})
        file.header[name] |= rng.choice(change)
        if rng.random() < 0.3:
            file.header[name]["data_offsets"] = [0, rng.choice((0, n, len(file.data)))]
    else:
        file.data = change_bytes(rng, file.data)
    if rng.random() < 0.1:
        header = change_bytes(rng, json.dumps(file.header).encode())
        return signed(header, file.data, rng.choice((len(header), *NUMBERS)) % (1 << 64))
    return file.joined()


TOKENS = [b'"dtype":"F32"', b'"shape":[', b'"data_offsets":[', b"__metadata__", b"sha256"]
TOKENS += [name.encode() for name in ("classes", "lineage", "config", "anchors", "places")]
TARGET = Target(run, seeds, mutate, TOKENS, most_bytes=1 << 17)
