"""Hundreds of model files, memories and states that are damaged, or forged with a checksum that is
right: each is one sentence, or a model that works. Nothing of them is run, and neither time nor
memory runs away. So it is with recipes, experiments and records.

They are made here from small real files, seeded, and all go through the real commands in one
process that is watched from within.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kedge import api
from kedge.config import EpisodeShape, Schedule
from kedge.data.open import open_images
from kedge.data.table import ImageTable
from kedge.utils.atomic_io import load_tensors, save_tensors

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "golden"
SECONDS = 5  # of the processor, for one case
GROWTH = 700  # MiB that one case may take for a while
SHORT = {"episode": EpisodeShape(2, 1, 2), "schedule": Schedule(1, 1, 2)}
WORDS = shlex.split("--n-way 2 --n-shot 1 --n-query 2 --epochs 1 --episodes 1 --val-episodes 2")
SUM = rb'(\\"sha256\\": \\")[0-9a-f]{64}'
Watched = Any  # of conftest.py, which cannot be imported


# ── files by hand ────────────────────────────────────────────────────────────────────────────


@dataclass
class Parts:
    """A safetensors file, taken apart."""

    header: dict[str, Any]
    data: bytes

    @classmethod
    def of(cls, content: bytes) -> Parts:
        length = int.from_bytes(content[:8], "little")
        return cls(json.loads(content[8 : 8 + length]), content[8 + length :])

    @property
    def about(self) -> dict[str, Any]:
        return json.loads(self.header["__metadata__"]["kedge"])

    @about.setter
    def about(self, value: Any) -> None:
        self.header["__metadata__"]["kedge"] = json.dumps(value)

    def names(self) -> list[str]:
        return [name for name in self.header if name != "__metadata__"]

    def joined(self) -> bytes:
        """With a checksum that is right."""
        return signed(json.dumps(self.header, separators=(",", ":")).encode(), self.data)


def signed(header: bytes, data: bytes, length: int | None = None) -> bytes:
    zeros = re.sub(SUM, rb"\g<1>" + b"0" * 64, header, count=1)
    said = len(header) if length is None else length
    content = said.to_bytes(8, "little") + zeros + data
    checksum = hashlib.sha256(content).hexdigest().encode()
    return re.sub(SUM, rb"\g<1>" + checksum, content, count=1)


@dataclass
class Cases:
    """`refused`: one sentence. `either`: that, or it works. `whole`: it must work."""

    root: Path
    rng: random.Random = field(default_factory=lambda: random.Random(20241103))
    must: dict[str, str] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    file: dict[str, Path] = field(default_factory=dict)

    def new(self, name: str, must: str) -> tuple[str, Path]:
        name = f"{len(self.must):03} {re.sub('[^a-z0-9.]+', ' ', name.lower())[:60].strip()}"
        self.must[name] = must
        (self.root / name).mkdir(parents=True)
        return name, self.root / name

    def give(self, name: str, must: str, content: bytes | None, words: list[str | Path]) -> Path:
        """A file in a folder of its own; in the words, FILE and FOLDER stand for them."""
        name, folder = self.new(name, must)
        file = folder / "file.kedge"
        if content is not None:
            file.write_bytes(content)
        known = {"FILE": file, "FOLDER": folder}
        self.words[name] = [str(known.get(str(word), word)) for word in words]
        self.file[name] = file
        return folder

    def code(self, name: str, must: str, file: str, content: str | bytes, code: str) -> None:
        """A file of any name, and a piece of code that reads it from the folder PLACE."""
        name, folder = self.new(name, must)
        raw = content.encode(errors="surrogatepass") if isinstance(content, str) else content
        (folder / file).write_bytes(raw)
        self.words[name] = [
            "-c",
            f"from pathlib import Path\nPLACE = Path({str(folder)!r})\n{code}",
        ]
        self.file[name] = folder / file


# ── damage ───────────────────────────────────────────────────────────────────────────────────


def damaged(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Flipped bits, cuts, and something too much."""
    for _ in range(6):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 8))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        yield "flipped", bytes(changed)
    for cut in (0, 7, 9, rng.randrange(10, len(content)), len(content) - 1):
        yield f"cut at {cut}", content[:cut]
    start = rng.randrange(len(content) - 100)
    yield "random", content[:start] + rng.randbytes(100) + content[start + 100 :]
    yield "behind", content + b"\0"
    yield "before", b" " + content


# ── forgery ──────────────────────────────────────────────────────────────────────────────────

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 17, 1000, 10**6, 10**9, 2**31, 2**63, 10**300),
    *(0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "x" * 200,
        "\x1b[2J\n\0",
        "\ud800",
        "ecm steps=1000000000",
        "os.system",
        "resnet12",
    ),
    *([], {}, [[]], [None], ["a", "a"], {"a": 1}, [1, 2], list(range(1000)), DEEP),
)


def forged(rng: random.Random, value: Any) -> tuple[str, Any]:
    """A copy in which one thing is another, is missing, or is added, near the top or far down."""
    value = inner = json.loads(json.dumps(value))
    path = []
    while True:
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        path.append(key)
        below = inner[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.3:
            break
        inner = below
    kind = rng.choice(("set", "set", "set", "set", "drop", "add"))
    if kind == "set":
        inner[key] = rng.choice(VALUES)
    elif kind == "drop":
        del inner[key]
    elif isinstance(inner, dict):
        inner["more"] = rng.choice(VALUES)
    else:
        inner.append(rng.choice(VALUES))
    return f"{kind} {' '.join(map(str, path))}", value


def forged_tensors(rng: random.Random, content: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Whether it must be refused, and the file: one tensor is not what it should be."""

    def of(kind: str, must: str = "refused", **change: Any) -> tuple[str, str, bytes]:
        parts = Parts.of(content)
        name = rng.choice(parts.names())
        parts.header[name] |= change
        return f"{kind} {name}", must, parts.joined()

    for dtype in ("F64", "I64", "BF16", "U8", "BOOL", "F8_E4M3", "F4", "C64", "Q9", "", None, 7):
        yield of(f"type {dtype}", "refused" if dtype != "I64" else "either", dtype=dtype)
    shapes = ([], [0], [-1], [2**62], [2**40, 2**40], [1] * 1000, [1.5], "x", None, [[1]], [2**70])
    for shape in shapes:
        yield of(f"shape {str(shape)[:9]}", "either" if shape == [] else "refused", shape=shape)
    for place in (
        [0, 0],
        [0, 2**62],
        [2**63, 2**64],
        [-1, 3],
        [5, 3],
        [0],
        [],
        "x",
        None,
        [0.5, 1],
    ):
        yield of(f"offsets {place}", data_offsets=place)
    parts = Parts.of(content)
    gone = rng.choice(parts.names())
    del parts.header[gone]
    yield f"without {gone}", "refused", parts.joined()
    for other in ("images", "embedding.more", "head.more", "", "a" * 3000, "\x1b[2J"):
        parts = Parts.of(content)
        end = len(parts.data)
        parts.header[other] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}
        parts.data += bytes(8)
        yield f"with {other[:9]}", "refused", parts.joined()
    parts = Parts.of(content)
    one, two = rng.sample(parts.names(), 2)
    parts.header[one], parts.header[two] = parts.header[two], parts.header[one]
    yield f"{one} for {two}", "either", parts.joined()
    for number in (np.nan, np.inf, -np.inf):
        parts = Parts.of(content)
        floats = [name for name in parts.names() if parts.header[name]["dtype"] == "F32"]
        if not floats:
            break
        start, _ = parts.header[rng.choice(floats)]["data_offsets"]
        bad = np.float32(number).tobytes()
        parts.data = parts.data[:start] + bad + parts.data[start + 4 :]
        yield f"{number}", "refused", parts.joined()
    for _ in range(4):  # any anchors make a model, if not a good one
        parts = Parts.of(content)
        if "anchors" not in parts.header:
            return
        start, _ = parts.header["anchors"]["data_offsets"]
        numbers = np.frombuffer(rng.randbytes(64), np.uint8).astype(np.float32).tobytes()
        parts.data = parts.data[:start] + numbers[:16] + parts.data[start + 16 :]
        yield "other anchors", "whole", parts.joined()


def absurd(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Headers that nobody writes."""
    parts = Parts.of(content)
    header = json.dumps(parts.header, separators=(",", ":")).encode()
    for length in (
        0,
        1,
        7,
        len(header) - 1,
        len(header) + 1,
        2**24,
        10**8,
        2**31,
        2**63,
        2**64 - 1,
    ):
        yield f"length {length}", signed(header, parts.data, length)
    for name, text in {
        "no object": b"[]",
        "nothing": b"{}",
        "a number": b"7",
        "deep": b"[" * 100_000,
        "deep objects": b'{"a":' * 50_000,
        "half": header[: len(header) // 2],
        "not UTF-8": header.replace(b"conv4", b"\xff\xfe\xfd5v"),
        "metadata of numbers": b'{"__metadata__":{"kedge":7}}',
        "metadata twice": header.replace(b"{", b'{"__metadata__":{"a":"b"},', 1),
        "tensor twice": header.replace(b'"anchors":', b'"embedding.mean":', 1),
        "other metadata": b'{"__metadata__":{"format":"pt"}}',
    }.items():
        yield name, signed(text, parts.data)
    texts = {
        "empty text": "",
        "text of a list": "[]",
        "null": "null",
        "deep text": "[" * 900 + "]" * 900,
        "deeper text": "[" * 10**6,
        "deep settings": json.dumps({**parts.about, "config": DEEP}),
        "text with NaN": json.dumps({**parts.about, "more": float("nan")}),
        "key twice": json.dumps(parts.about)[:-1] + ', "classes": ["a"]}',
        "checksum twice": '{"sha256": "' + "0" * 64 + '", ' + json.dumps(parts.about)[1:],
        "no checksum": json.dumps({k: v for k, v in parts.about.items() if k != "sha256"}),
        "no version": json.dumps({k: v for k, v in parts.about.items() if k != "version"}),
        "version 0": json.dumps({**parts.about, "version": 0}),
        "version true": json.dumps({**parts.about, "version": True}),
        "version in words": json.dumps({**parts.about, "version": "2"}),
        "long number": json.dumps(parts.about)[:-1] + ', "more": ' + "9" * 10**5 + "}",
        "many lists": json.dumps(parts.about)[:-1] + ', "more": [' + "[]," * 1_000_000 + "[]]}",
        "many objects": json.dumps(parts.about)[:-1] + ', "more": [' + "{}," * 1_000_000 + "{}]}",
        "far too many": json.dumps(parts.about)[:-1] + ', "more": [' + "[]," * 20_000_000 + "[]]}",
        "many classes": json.dumps({**parts.about, "classes": [str(i) for i in range(300_000)]}),
    }
    for name, text in texts.items():
        parts.header["__metadata__"]["kedge"] = text
        yield name, parts.joined()
    parts = Parts.of(content)
    end = len(parts.data)
    for i in range(100_000):
        parts.header[f"t{i}"] = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    yield "many tensors", parts.joined()


# ── settings and records ─────────────────────────────────────────────────────────────────────

RECIPE = """
from kedge.experiments.recipes import load_recipe
recipe = load_recipe(PLACE / "mine.toml")
print(len(recipe.experiments(recipe.base())))
"""
EXPERIMENT = """
from kedge.experiments.experiment import Experiment, _claim
print(_claim(Experiment(), PLACE, "the images").methods)
"""
RUN = """
from kedge.experiments.records import load_run
print(load_run(PLACE / "run.json").method)
"""
RECORD = """
from rich.console import Console
from kedge.experiments.records import Record
from kedge.report import terminal_table
Console(width=200).print(terminal_table(Record.load(PLACE / "record.json")))
"""
COLLECTION = """
from kedge.experiments.records import Collection
print(Collection.load(PLACE).name)
"""


def as_toml(value: Any) -> str:
    """Within a line; what TOML does not know is an empty text."""
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return (
        json.dumps("" if value is None else value) if not isinstance(value, float) else repr(value)
    )


def settings(cases: Cases) -> None:
    """Recipes, and what `kedge bench` has written and reads again."""
    rng = cases.rng
    folder = ROOT / "src" / "kedge" / "recipes"
    recipes = {
        name: (folder / f"{name}.toml").read_text() for name in ("mini-pn", "drawings-rounds")
    }
    for name, text in recipes.items():
        cases.code(f"recipe {name}", "whole", "mine.toml", text, RECIPE)
        for _ in range(20):
            how, settings = forged(rng, tomllib.loads(text))
            lines = "\n".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in settings.items())
            cases.code(f"recipe {how}", "either", "mine.toml", lines, RECIPE)
    for name, bad in {
        "deep list": f"title = 'x'\nseeds = {'[' * 10**5}",
        "deep table": f"title = 'x'\na = {'{a = ' * 10**5}",
        "deep name": f"title = 'x'\n{'.'.join('a' * 10**4)} = 1",
        "long number": f"title = 'x'\neval_episodes = {'9' * 10**5}",
        "half a line": "title = ",
        "not text": b"title = '\xff'",
        "nul": "title = '\0'",
        "nothing": "",
    }.items():
        cases.code(f"recipe {name}", "refused", "mine.toml", bad, RECIPE)
    of_json(cases)


def of_json(cases: Cases) -> None:
    from kedge.config import to_dict
    from kedge.experiments.experiment import Experiment

    record = json.loads((ROOT / "records" / "drawings" / "record.json").read_text())
    index = {"format": 1, "name": "x", "title": "x", "paper": None, "parts": {"": "."}}
    maze = {**record, "config": {**record["config"], "more": DEEP}}
    cases.code("record.json maze", "refused", "record.json", json.dumps(maze), RECORD)
    seeds: dict[str, tuple[Any, str, int]] = {
        "experiment.json": ({**to_dict(Experiment()), "images": "the images"}, EXPERIMENT, 30),
        "record.json": (record, RECORD, 40),
        "run.json": (record["runs"][-1], RUN, 20),
        "recipe.json": (index, COLLECTION, 10),
    }
    for file, (content, code, n) in seeds.items():
        if file != "recipe.json":  # which lies beside records
            cases.code(f"{file} whole", "whole", file, json.dumps(content), code)
        for _ in range(n):
            how, settings = forged(cases.rng, content)
            cases.code(f"{file} {how}", "either", file, json.dumps(settings), code)
        for name, bad in {
            "deep": "[" * 10**6,
            "deep but whole": '{"format": 1, "a":' * 5000 + "1" + "}" * 5000,
            "long number": '{"format": 1, "a": ' + "9" * 10**5 + "}",
            "a list": "[]",
            "half": json.dumps(content)[:-5],
            "not text": b"\xff\xfe",
            "nothing": "",
        }.items():
            cases.code(f"{file} {name}", "refused", file, bad, code)


# ── the cases ────────────────────────────────────────────────────────────────────────────────


def table_of(n_channels: int, side: int) -> ImageTable:
    rng = np.random.default_rng(side)
    pixels = rng.integers(0, 256, (24, n_channels, side, side), dtype=np.uint8)
    return ImageTable.build(pixels, np.repeat(np.arange(4), 6), [f"class {i}" for i in range(4)])


def models(folder: Path, first: Path) -> dict[str, bytes]:
    kinds = {
        "prototype": ("conv4", "prototype"),
        "ecm": ("conv4", "ecm steps=3"),
        "ridge": ("conv4", "ridge"),
        "resnet": ("resnet12", "prototype"),
    }
    found = {}
    for name, (backbone, head) in kinds.items():
        table = open_images(first) if backbone == "conv4" else table_of(3, 16)
        api.train(table, backbone=backbone, width=2, head=head, **SHORT).save(folder / name)
        found[name] = (folder / name).read_bytes()
    return {**found, "first version": (DATA / "format-1.kedge").read_bytes()}


def model_cases(cases: Cases, seeds: dict[str, bytes], support: Path) -> None:
    picture = next(support.rglob("*.png"))
    words: list[str | Path] = ["predict", "FILE", picture, "--support", support, "--format", "json"]
    for name, content in seeds.items():
        cases.give(f"{name} whole", "whole", content, words)
        must = "either" if name == "first version" else "refused"
        for how, bad in damaged(cases.rng, content):
            cases.give(f"{name} {how}", must, bad, words)
        if name == "first version":
            continue
        for i in range(25):
            parts = Parts.of(content)
            how, parts.about = forged(cases.rng, parts.about)
            cases.give(
                f"{name} {how}", "either", parts.joined(), ["show", "FILE"] if i % 3 else words
            )
        for how, must, bad in forged_tensors(cases.rng, content):
            cases.give(f"{name} {how}", must, bad, words)
    for how, bad in absurd(seeds["prototype"]):
        cases.give(how, "refused", bad, words)
    parts = Parts.of(seeds["ecm"])
    head = {**parts.about["config"]["head"], "head": f"ecm steps={10**9}"}
    parts.about = {**parts.about, "config": {**parts.about["config"], "head": head}}
    cases.give("ecm for years", "refused", parts.joined(), words)
    # Its anchors are as its settings say, but its backbone gives fewer features.
    place = cases.give("other features", "refused", seeds["prototype"], words) / "file.kedge"
    about, tensors = load_tensors(place, "model")
    about["config"]["n_features"] = 9
    save_tensors(place, {**tensors, "anchors": torch.zeros(len(about["classes"]), 9)}, about)
    cases.give("missing", "refused", None, words)
    (cases.give("folder", "refused", None, words) / "file.kedge").mkdir()
    os.mkfifo(cases.give("pipe", "refused", None, words) / "file.kedge")
    (cases.give("device", "refused", None, words) / "file.kedge").symlink_to("/dev/zero")
    (cases.give("link to itself", "refused", None, words) / "file.kedge").symlink_to("file.kedge")
    large = cases.give("sparse", "refused", seeds["prototype"], words) / "file.kedge"
    os.truncate(large, 1 << 30)


def changed(rng: random.Random, content: bytes, n: int) -> list[tuple[str, str, bytes]]:
    """As it was, damaged, and forged in so many ways and some more."""
    made = [("whole", "whole", content)]
    made += [(how, "refused", bad) for how, bad in damaged(rng, content)]
    for _ in range(n):
        parts = Parts.of(content)
        how, parts.about = forged(rng, parts.about)
        made.append((how, "either", parts.joined()))
    return made + [(how, "either", bad) for how, _, bad in forged_tensors(rng, content)][::2]


def kept_cases(cases: Cases, folder: Path, first: Path, second: Path) -> None:
    """What lies beside a model: what a method keeps, and the state of a stopped command."""
    model = api.train(first, width=2, **SHORT)
    model.save(folder / "base.kedge")
    for method in ("EIML exemplars=3", "EWC episodes=2"):
        kept = api.remember(model, first, method=method)
        about = {"method": method, "model": model.fingerprint}
        save_tensors(folder / "memory", kept, about)
        content = (folder / "memory").read_bytes()
        words: list[str | Path] = ["update", "FILE", second, "--out", "FOLDER/next.kedge"]
        words += ["--method", method, *WORDS]
        for how, must, bad in changed(cases.rng, content, 8):
            place = cases.give(f"{method} {how}", must, (folder / "base.kedge").read_bytes(), words)
            name = list(cases.must)[-1]
            cases.words[name] = [w.replace("FOLDER", str(place)) for w in cases.words[name]]
            cases.file[name] = place / "file.kedge.memory"
            cases.file[name].write_bytes(bad)
    api.train(first, width=2, checkpoint=folder / "state", **SHORT)
    content = (folder / "state").read_bytes()
    words = ["train", first, "--out", "FILE", "--width", "2", *WORDS]
    for how, must, bad in changed(cases.rng, content, 60):
        place = cases.give(f"state {how}", must, None, words)
        name = list(cases.must)[-1]
        cases.file[name] = place / "file.kedge.training"
        cases.file[name].write_bytes(bad)


@dataclass(frozen=True)
class Outcome:
    cases: Cases
    ended: dict[str, Watched]
    empty: Path  # a folder in which nothing may appear


@pytest.fixture(scope="module")
def outcome(
    watched: Callable[..., dict[str, Watched]],
    first: Path,
    second: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    root = tmp_path_factory.mktemp("hostile")
    folder, empty = (tmp_path_factory.mktemp(name) for name in ("whole", "empty"))
    support = folder / "support"
    for name in ("first 0", "first 1"):
        (support / name).mkdir(parents=True)
        shutil.copy(first / name / "00.png", support / name)
    cases = Cases(root)
    model_cases(cases, models(folder, first), support)
    kept_cases(cases, folder, first, second)
    settings(cases)
    whole = [[name, *cases.words[name]] for name, must in cases.must.items() if must == "whole"]
    others = [[name, *cases.words[name]] for name, must in cases.must.items() if must != "whole"]
    commands = [*whole, ["limit"], *others]
    yield Outcome(cases, watched(commands, folder, empty), empty)
    shutil.rmtree(root)


def test_there_are_many(outcome: Outcome) -> None:
    n_settings = sum(words[0] == "-c" for words in outcome.cases.words.values())
    assert n_settings > 100
    assert len(outcome.ended) - n_settings > 300


def test_each_is_one_sentence_or_works(outcome: Outcome) -> None:
    problems = []
    for name, ended in outcome.ended.items():
        must, file = outcome.cases.must[name], outcome.cases.file[name]
        command = outcome.cases.words[name][0]
        if command in ("train", "update"):  # which say beforehand what they have chosen
            ended = replace(ended, err="".join(ended.err.splitlines(True)[-1:]))
        if ended.rc == 0:
            if must == "refused":
                problems.append(f"{name}: was taken: {ended.out[-200:]}")
            elif not ended.out or "Traceback" in ended.err:
                problems.append(f"{name}: said {ended.err} {ended.out}")
        elif must == "whole":
            problems.append(f"{name}: {ended.err[-1500:]}")
        elif wrong := ended.fault(*where(command, file)):
            problems.append(f"{name}: {wrong}")
    assert not problems, f"{len(problems)}\n" + "\n".join(problems)


def where(command: str, file: Path) -> tuple[str, ...]:
    """What a sentence must name: the file, or the folder of an experiment, or the record; and of
    a memory that can be read but is not what a method kept, the method."""
    if command == "-c":
        return str(file.parent), "The record 'drawings'"
    return (str(file), "EIML", "EWC") if file.name.endswith(".memory") else (str(file),)


def test_time_and_memory_are_bounded(outcome: Outcome) -> None:
    slow = {name: ended.seconds for name, ended in outcome.ended.items() if ended.seconds > SECONDS}
    large = {name: ended.grown for name, ended in outcome.ended.items() if ended.grown > GROWTH}
    assert (slow, large) == ({}, {})


def test_nothing_is_made_of_what_is_refused(outcome: Outcome) -> None:
    assert list(outcome.empty.iterdir()) == []
    for name, ended in outcome.ended.items():
        folder, file = outcome.cases.root / name, outcome.cases.file[name]
        known = {file.name, "file.kedge"} if file.name != "file.kedge.training" else {file.name}
        if ended.rc != 0:
            assert {path.name for path in folder.iterdir()} <= known, name
