"""Model files, memories and checkpoints that are damaged, or forged with a correct checksum.

Each must give one sentence that names the file, or a model that works, within bounded time and
memory. All go through the real commands in one watched process (see conftest.py).
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.forged import DEEP, ForgedFile, forged_json, signed

from kedge import api
from kedge.utils.atomic_io import load_tensors, save_tensors

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[1] / "golden"
SECONDS, MEGABYTES = 5, 700  # limits for one case
SHORT = {"n_way": 2, "n_shot": 1, "n_query": 2, "epochs": 1, "episodes": 1, "val_episodes": 2}
OPTIONS = [w for name, n in SHORT.items() for w in (f"--{name.replace('_', '-')}", str(n))]
TIMM_IMPORT = str(Path(__file__).with_name("timm_import.py"))
IMPORT_TIMM = """
import builtins, importlib.util, runpy
builtins.kept = runpy.run_path({!r})  # what it defines must stay
if importlib.util.find_spec("timm") is not None:
    kept["define_torchvision_ops"]()
    import timm
"""


# ── forging safetensors files ────────────────────────────────────────────────────────────────


def damaged(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    for _ in range(3):
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        yield "flipped bit", bytes(changed)
    for cut in (0, 7, 9, rng.randrange(10, len(content)), len(content) - 1):
        yield f"cut at {cut}", content[:cut]
    yield "longer", content + b"\0"


def forged_tensors(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    changes: list[dict[str, Any]] = [{"dtype": d} for d in ("F64", "BF16", "U8", "F4", "Q9", None)]
    changes += [{"shape": s} for s in ([0], [-1], [2**62], [2**40, 2**40], [1] * 1000, "x", None)]
    changes += [{"data_offsets": o} for o in ([0, 0], [0, 2**62], [5, 3], [0], "x", None)]
    for change in changes:
        file = ForgedFile(content)
        file.header[rng.choice(file.names)] |= change
        yield str(change)[:40], file.joined()
    file = ForgedFile(content)
    del file.header[rng.choice(file.names)]
    yield "missing tensor", file.joined()
    for extra in ("images", "embedding.more", "", "a" * 3000):
        file = ForgedFile(content)
        end = len(file.data)
        file.header[extra] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}
        file.data += bytes(8)
        yield f"extra tensor {extra[:9]}", file.joined()
    for number in (np.nan, np.inf):
        file = ForgedFile(content)
        floats = [name for name in file.names if file.header[name]["dtype"] == "F32"]
        start = file.header[rng.choice(floats)]["data_offsets"][0]
        bad = np.float32(number).tobytes()
        file.data = file.data[:start] + bad + file.data[start + 4 :]
        yield f"{number}", file.joined()


def absurd_headers(content: bytes) -> Iterator[tuple[str, bytes]]:
    file = ForgedFile(content)
    header = json.dumps(file.header, separators=(",", ":")).encode()
    for length in (0, 7, len(header) - 1, len(header) + 1, 10**8, 2**64 - 1):
        yield f"length {length}", signed(header, file.data, length)
    for text in (b"[]", b"{}", b"[" * 100_000, header[:200], b'{"__metadata__":{"kedge":7}}'):
        yield f"header {text[:9]!r}", signed(text, file.data)
    text = json.dumps(file.about)
    texts = {
        "empty": "",
        "null": "null",
        "deep": "[" * 10**6,
        "deep config": json.dumps({**file.about, "config": DEEP}),
        "NaN": json.dumps({**file.about, "more": float("nan")}),
        "duplicate key": text[:-1] + ', "classes": ["a"]}',
        "version 0": json.dumps({**file.about, "version": 0}),
        "no checksum": json.dumps({k: v for k, v in file.about.items() if k != "sha256"}),
        "long number": text[:-1] + ', "more": ' + "9" * 10**5 + "}",
        "many lists": text[:-1] + ', "more": [' + "[]," * 20_000_000 + "[]]}",
    }
    for name, forged in texts.items():
        yield name, file.joined(forged)
    end = len(file.data)
    for i in range(100_000):
        file.header[f"t{i}"] = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    yield "many tensors", file.joined()


NETWORKS = (  # names that would be fetched, read, imported or huge, and size of images
    *(("timm:hf-hub:timm/resnet18", 224), ("timm:local-dir:/tmp", 224), ("timm:", 224)),
    *(("timm:resnet18", 224), ("timm:vit_7b_patch16_dinov3", 224), ("os:getcwd", 224)),
    *(("timm:swinv2_cr_giant_384", 4096), ("timm:vit_base_patch8_224", 4096)),
    *(("efficientnet-lite0", 224), ("custom", 224), ("my_net:build", 224)),
)


def forged_networks(content: bytes) -> Iterator[tuple[str, bytes]]:
    for name, size in NETWORKS:
        file = ForgedFile(content)
        config = file.about["config"]
        file.about["config"] = config | {"n_channels": 3, "image_size": size}
        config["backbone"]["backbone"] = name
        yield f"network {name} {size}", file.joined()


# ── cases ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Case:
    must: str  # "work", "fail", or "either"
    command: list[str]
    file: Path  # the hostile one, in a folder of its own


class Cases(dict[str, Case]):
    def __init__(self, root: Path) -> None:
        self.root, self.rng = root, random.Random(20241103)

    def add(
        self, name: str, must: str, content: bytes | None, command: list[Any], file: str = ""
    ) -> Path:
        """In the command, MODEL stands for a model file of the case's folder."""
        name = f"{len(self):03} {re.sub('[^a-z0-9.]+', ' ', name.lower())[:50].strip()}"
        folder = self.root / name
        folder.mkdir()
        model = folder / "file.kedge"
        words = [str(word).replace("MODEL", str(model)) for word in command]
        self[name] = Case(must, words, folder / f"file.kedge{file}")
        if content is not None:
            self[name].file.write_bytes(content)
        return folder


def add_models(cases: Cases, folder: Path, first: Path) -> None:
    support = folder / "support"
    for name in ("first 0", "first 1"):
        (support / name).mkdir(parents=True)
        shutil.copy(first / name / "00.png", support / name)
    image = next(support.rglob("*.png"))
    predict = ["predict", "MODEL", image, "--support", support, "--format", "json"]
    contents = {"format 1": (GOLDEN / "format-1.kedge").read_bytes()}
    for head in ("prototype", "ecm inner_steps=3", "ridge"):
        api.train(first, width=2, head=head, **SHORT).save(folder / "model")
        contents[head] = (folder / "model").read_bytes()
    for name, content in contents.items():
        cases.add(name, "work", content, predict)
        for how, bad in damaged(cases.rng, content):
            cases.add(f"{name} {how}", "either" if name == "format 1" else "fail", bad, predict)
        if name == "format 1":
            continue
        for i in range(15):
            file = ForgedFile(content)
            file.about = forged_json(cases.rng, file.about)
            command = ["show", "MODEL"] if i % 3 else predict
            cases.add(f"{name} forged", "either", file.joined(), command)
        for how, bad in forged_tensors(cases.rng, content):
            cases.add(f"{name} {how}", "fail", bad, predict)
    for how, bad in forged_networks(contents["prototype"]):
        must = "either" if how == "network custom 224" else "fail"  # 'show' needs no network
        cases.add(how, must, bad, ["show", "MODEL"])
        cases.add(how, "fail", bad, predict)
    for how, bad in absurd_headers(contents["prototype"]):
        cases.add(how, "fail", bad, predict)
    # The anchors fit the config, but the backbone gives fewer features.
    path = cases.add("n_features", "fail", contents["prototype"], predict) / "file.kedge"
    about, tensors = load_tensors(path, "model")
    about["config"]["n_features"] = 9
    save_tensors(path, {**tensors, "anchors": torch.zeros(len(about["classes"]), 9)}, about)
    file = ForgedFile(contents["prototype"])
    for key, section, value in (
        ("width", file.about["config"]["backbone"], 2**20),
        ("head", file.about["config"]["head"], "ecm inner_steps=1000000000"),
        ("fit", file.about["config"], "fill"),
        ("inverted", file.about["config"], "no"),
        ("config", file.about["lineage"][0], {"speed": 3}),
    ):
        section[key], honest = value, section[key]
        cases.add(f"forged {key}", "fail", file.joined(), predict)
        section[key] = honest
    for shape in ([0, 2**64 - 1], [2**64 - 1, 0], [2**63, 0]):  # no bytes, so any size fits
        file = ForgedFile(contents["prototype"])
        end = len(file.data)
        file.header["more"] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end]}
        cases.add(f"shape {shape}", "fail", file.joined(), ["show", "MODEL"])
    for key, value in (("round", -5), ("val_accuracy", 10**400), ("images", 10**30)):
        file = ForgedFile(contents["prototype"])
        file.about["lineage"][0][key] = value
        cases.add(f"{key} {str(value)[:9]}", "fail", file.joined(), ["show", "MODEL", "--json"])
    cases.add("missing", "fail", None, predict)
    (cases.add("folder", "fail", None, predict) / "file.kedge").mkdir()
    os.mkfifo(cases.add("pipe", "fail", None, predict) / "file.kedge")
    (cases.add("device", "fail", None, predict) / "file.kedge").symlink_to("/dev/zero")
    large = cases.add("sparse", "fail", contents["prototype"], predict) / "file.kedge"
    os.truncate(large, 1 << 30)


def add_memories_and_checkpoints(cases: Cases, folder: Path, first: Path, second: Path) -> None:
    model = api.train(first, width=2, checkpoint=folder / "state", **SHORT)
    model.save(folder / "base.kedge")
    contents = {"state": (folder / "state").read_bytes()}
    for method in ("EIML exemplars=3", "EWC episodes=2"):
        about = {"method": method, "model": model.fingerprint}
        save_tensors(folder / "memory", api.remember(model, first, method=method), about)
        contents[method] = (folder / "memory").read_bytes()
    for name, content in contents.items():
        variants = [("", "work", content)]
        variants += [(how, "fail", bad) for how, bad in damaged(cases.rng, content)]
        for _ in range(15):
            file = ForgedFile(content)
            file.about = forged_json(cases.rng, file.about)
            variants.append(("forged", "either", file.joined()))
        forged = forged_tensors(cases.rng, content) if name != "EIML exemplars=3" else ()
        variants += [(how, "either", bad) for how, bad in forged]
        for how, must, bad in variants:
            if name == "state":
                command = ["train", first, "--out", "MODEL", "--width", "2", *OPTIONS]
                cases.add(f"{name} {how}", must, bad, command, ".training")
            else:
                command = ["update", "MODEL", second, "--out", "MODEL.next", "--method", name]
                to = cases.add(f"{name} {how}", must, bad, [*command, *OPTIONS], ".memory")
                shutil.copy(folder / "base.kedge", to / "file.kedge")


def test_hostile_files_give_one_sentence_or_work(
    watched: Callable[..., dict[str, Any]],
    first: Path,
    second: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root, folder, empty = (tmp_path_factory.mktemp(name) for name in ("cases", "made", "empty"))
    cases = Cases(root)
    add_models(cases, folder, first)
    add_memories_and_checkpoints(cases, folder, first, second)
    # The memory limit starts after the cases that must work, which load all modules.
    commands = [["timm", "-c", IMPORT_TIMM.format(TIMM_IMPORT)]]
    commands += [[name, *case.command] for name, case in cases.items() if case.must == "work"]
    commands.append(["limit"])
    commands += [[name, *case.command] for name, case in cases.items() if case.must != "work"]
    problems = []
    for name, ended in watched(commands, folder, empty).items():
        if name == "timm":
            assert ended.rc == 0, ended.err
            continue
        case = cases[name]
        if case.command[0] in ("train", "update"):  # these print their settings first
            ended = replace(ended, err="".join(ended.err.splitlines(True)[-1:]))
        if ended.seconds > SECONDS or ended.grown > MEGABYTES:
            problems.append(f"{name}: {ended.seconds:.1f} s, {ended.grown} MiB")
        if ended.rc == 0:
            if case.must == "fail" or not ended.out or "Traceback" in ended.err:
                problems.append(f"{name}: worked: {ended.err} {ended.out[-200:]}")
            continue
        subjects = (str(case.file), *(("EIML", "EWC") if case.file.suffix == ".memory" else ()))
        if case.must == "work":
            problems.append(f"{name}: {ended.err[-1500:]}")
        elif fault := ended.fault(*subjects):
            problems.append(f"{name}: {fault}")
        files = {path.name for path in case.file.parent.iterdir()}
        if not files <= {case.file.name, "file.kedge"}:
            problems.append(f"{name}: left {files}")
    assert not problems, f"{len(problems)} of {len(cases)}\n" + "\n".join(problems)
    assert list(empty.iterdir()) == []
    shutil.rmtree(root)
