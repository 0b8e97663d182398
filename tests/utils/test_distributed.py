"""Several processes as one, and one process as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from kedge.utils.distributed import (
    all_reduce,
    barrier,
    broadcast,
    first_to_fail,
    rank,
    start,
    sum_over_ranks,
    world_size,
)

Ready = Any  # of conftest.py, which cannot be imported

# What torchrun does: two processes, told by their environment, and a place where they meet.
TWO = """
import os, sys
import lightning_fabric
from torch.distributed import TCPStore
meet = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
sys.meet = meet  # in a child its end would wait for a thread that has stayed behind
children = []
for me in range(2):
    if (child := os.fork()) == 0:
        os.environ |= {{
            "RANK": str(me), "LOCAL_RANK": str(me), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meet.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }}
        exec({body!r})
        break
    children.append(child)
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.fixture
def two(ready: Ready, tmp_path: Path) -> Callable[[str], Any]:
    """Run a piece of code in two processes, of which each knows that there are two."""
    return lambda body: ready(TWO.format(body=body), tmp_path)


def test_one_process_is_the_first_of_one_and_adds_nothing() -> None:
    start()
    barrier()
    tensor = torch.arange(3.0)
    assert (rank(), world_size()) == (0, 1)
    assert all_reduce(tensor) is tensor
    assert broadcast(tensor) is tensor
    assert first_to_fail()
    assert first_to_fail()


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 8, 100])
def test_a_total_has_every_number_once(n: int) -> None:
    asked: list[int] = []

    def of(i: int) -> Tensor:
        asked.append(i)
        return torch.tensor(i)

    assert sum_over_ranks(of, range(5, 5 + n)).item() == sum(range(5, 5 + n))
    assert sorted(asked) == list(range(5, 5 + n))


BASICS = """
import time, torch
from kedge import engine
from kedge.utils.distributed import add_up, agreed, n_processes, rank, total

assert (rank(), n_processes()) == (0, 1), "not yet"
engine.start()
engine.start()
assert (rank(), n_processes()) == (me, 2)

number = torch.tensor(me + 1)
assert add_up(number).item() == 3
assert number.item() == me + 1, "the part is still a part"

like = torch.arange(24.0).reshape(1, 2, 3, 4)
for part in (like, like.to(memory_format=torch.channels_last), like.transpose(2, 3)):
    mine = part * (1 + 9 * me)
    assert torch.equal(add_up(mine), 11 * part)
    assert torch.equal(mine, part * (1 + 9 * me))
grown = add_up(torch.ones(2, requires_grad=True))
assert grown.tolist() == [2, 2] and not grown.requires_grad

assert agreed({"mine": me}) == {"mine": 0}
asked = []
values = torch.randn(12, 1000, generator=torch.Generator().manual_seed(0)).mul(3).exp()
of = lambda i: asked.append(i) or values[i]
sums = [total(of, range(a, b)) for a, b in ((0, 2), (0, 12), (1, 7))]
assert asked[1:7] == [0, 4, 8, 2, 6, 10] if me == 0 else asked[1:7] == [1, 5, 9, 3, 7, 11], asked
engine.rank, engine.n_processes = (lambda: 0), (lambda: 1)  # and all of it alone
for got, (a, b) in zip(sums, ((0, 2), (0, 12), (1, 7))):
    assert torch.equal(got, total(of, range(a, b)))
engine.rank, engine.n_processes = rank, n_processes

if me == 1:
    time.sleep(0.3)
    open("late", "w").close()
engine.wait()
assert os.path.exists("late")
assert sum(add_up(torch.tensor([int(engine.first_to_fail())]))) == 1
"""


def test_two_processes_add_up_agree_and_wait(two: Callable[[str], Any]) -> None:
    ended = two(BASICS)
    assert ended.rc == 0, ended.err


# ── training ─────────────────────────────────────────────────────────────────────────────────

LEARN = """
import sys, torch
from dataclasses import asdict, replace
from torch import nn
from kedge import engine
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.errors import KedgeError
from kedge.data.table import ImageTable
from kedge.methods.registry import Method, parse_method
from kedge.models.model import ModelConfig, new_model
from kedge.data.pools import Delivery, whole
from kedge.training.round import remember, train_round

engine.start()
seeded = torch.Generator().manual_seed(0)
pixels = torch.randint(256, (12 * 8, 1, 16, 16), generator=seeded, dtype=torch.uint8)
names = [f"class {i:02}" for i in range(12)]
table = ImageTable.build(pixels, [i // 8 for i in range(96)], names)
first, second = (
    Delivery(t, whole("training", table, names[4 * t : 4 * t + 4]),
             whole("validation", table, names[8:]))
    for t in range(2)
)
base = Method("base", "new")

def schedule(batch, **more):
    return TrainConfig(EpisodeShape(3, 2, 2), Schedule(2, 12, 20, 1e-2, batch=batch, **more), 5)

def two_rounds(method, batch, backbone="conv4", head="prototype", **more):
    config, method = schedule(batch, **more), parse_method(method)
    shape = ModelConfig(BackboneConfig(backbone, 4), HeadConfig(head), 1, 16)
    results = [train_round(new_model(shape, first.new, 0), first, base, config)]
    memory = remember(method, results[0].model, first, {}, config)
    results.append(
        train_round(results[0].model, second, method, config, memory=memory)
    )
    return results

def told(results):
    weights, curve = {}, []
    for t, result in enumerate(results):
        model = result.model
        weights |= {f"{t}.{k}": v for k, v in model.embedding.state_dict().items()}
        weights |= {f"{t}.head.{k}": v for k, v in model.head.state_dict().items()}
        weights[f"{t}.anchors"] = model.anchors
        curve += [asdict(epoch) for epoch in result.history]
    return weights, curve

class Own(nn.Module):
    # Its weights are random, and other ones in every process.
    def __init__(self):
        super().__init__()
        self.flat = nn.Linear(256, 4)
        self.register_buffer("never", torch.tensor(-torch.inf))
    def forward(self, x):
        return self.flat(x.flatten(1))

def own():
    torch.manual_seed(engine.rank())
    shape = ModelConfig(BackboneConfig("custom"), HeadConfig(), 1, 16)
    given = new_model(shape, first.new, engine.rank(), Own())
    before = {k: v.clone() for k, v in given.embedding.state_dict().items()}
    result = train_round(given, first, base, schedule(6))
    assert all(torch.equal(before[k], v) for k, v in given.embedding.state_dict().items())
    return [result]

CASES = {
    "FT": lambda: two_rounds("FT", 2),
    "IDA": lambda: two_rounds("IDA", 2),
    "EIML": lambda: two_rounds("EIML exemplars=4", 2),
    "resnet12": lambda: two_rounds("IDA", 2, "resnet12"),
    "4 a step": lambda: two_rounds("FT", 4),
    "12 a step, hard": lambda: two_rounds("IDA", 12, head="ecm", tasks="hard"),
    "own backbone": own,
}
found = {name: told(case()) for name, case in CASES.items()}
torch.save(found, f"{engine.rank()} of {engine.n_processes()}")
"""
APART = """
engine.wait()
try:
    told = "nothing"
    train_round(new_model(ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 1, 16),
                first.new, 0), first, base, replace(schedule(2), seed=engine.rank()))
except KedgeError as error:
    told = str(error)
except RuntimeError:  # the other has gone
    pass
print(f"{engine.rank()}: {told}")
"""
CASES = ("FT", "IDA", "EIML", "resnet12", "4 a step", "12 a step, hard", "own backbone")
Found = dict[str, tuple[dict[str, Tensor], list[dict[str, float]]]]


@pytest.fixture(scope="module")
def learned(
    ready: Ready, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Found], list[str]]:
    """What one process has learned, and each of two; and what two say that are given different
    settings."""
    folder = tmp_path_factory.mktemp("learned")
    one = ready(LEARN, folder)
    assert one.rc == 0, one.err
    both = ready(TWO.format(body=LEARN + APART), folder)
    assert both.rc == 0, both.err
    names = ("0 of 1", "0 of 2", "1 of 2")
    return {name: torch.load(folder / name) for name in names}, sorted(both.out.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_learns_to_the_last_bit(
    case: str, learned: tuple[dict[str, Found], list[str]]
) -> None:
    (one, curve), *others = (found[case] for found in learned[0].values())
    assert all(epoch["loss"] > 0 for epoch in curve)
    for weights, history in others:
        assert history == curve, "the losses are the mean over all episodes"
        assert weights.keys() == one.keys()
        assert [key for key in one if not torch.equal(one[key], weights[key])] == []


def test_cases_differ(learned: tuple[dict[str, Found], list[str]]) -> None:
    """Else they would show nothing."""
    curves = [curve for _, curve in learned[0]["0 of 1"].values()]
    assert all(curves.count(curve) == 1 for curve in curves)


def test_processes_with_different_settings_are_told(
    learned: tuple[dict[str, Found], list[str]],
) -> None:
    assert learned[1][0] == "0: nothing"
    assert learned[1][1].startswith("1: The processes were given different images or settings: ")


# ── the commands ─────────────────────────────────────────────────────────────────────────────

COMMAND = "import kedge.cli; sys.argv = {words!r}; kedge.cli.main()"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "bench --batch 3 --episodes 6 --out run",
            "--batch is 3: it must be a multiple of the 2 processes, which share the episodes of "
            "each step.",
        ),
        ("bench", "--batch is 1: it must be a multiple of the 2 processes, which share the "
                  "episodes of each step."),
        ("train nowhere --batch 2 --out model.kedge", "nowhere: "),
        ("evaluate model drawings", "'kedge evaluate' needs one process only: start it without "
                                    "torchrun."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_once(
    words: str, sentence: str, two: Callable[[str], Any], tmp_path: Path
) -> None:
    ended = two(COMMAND.format(words=["kedge", *words.split()]))
    assert ended.sentence.startswith(sentence)
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_a_folder_in_use_ends_both(two: Callable[[str], Any], tmp_path: Path) -> None:
    """Only the first process notices."""
    words = ["kedge", "bench", "--batch", "2", "--episodes", "2", "--out", str(tmp_path)]
    lock = "from filelock import FileLock; lock = FileLock('.lock'); me or lock.acquire(); "
    ended = two(lock + COMMAND.format(words=words))
    assert ended.sentence.startswith(f"{tmp_path}: another kedge process is working here")


PACKING = """
from pathlib import Path
from kedge import engine
from kedge.data import store
from kedge.data.decode import Look
from kedge.data.readers import read_index
engine.start()
store.NOTE_EVERY = (-1.0, 1e9)[me]  # one notes all the time, the other only at the end
shared = store.pack(read_index("photographs"), Look(8, 3), Path("shared.images"), patience=-1.0)
own = store.pack(read_index("photographs"), Look(8, 3), Path(f"own{me}") / "images")
assert shared.pixel_fingerprint() == own.pixel_fingerprint() == shared.fingerprint
engine.wait()
"""


def test_processes_that_work_as_one_pack_by_themselves(
    two: Callable[[str], Any], tmp_path: Path
) -> None:
    """Each at its own pace; where it is one file, one of them makes it."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        (folder := tmp_path / "photographs" / f"class {i % 4}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    ended = two(PACKING)
    assert ended.rc == 0, ended.err
    assert not [path.name for path in tmp_path.iterdir() if "packing" in path.name]


BENCH = [
    *("bench", "--methods", "NU", "IDA", "--epochs", "2", "--episodes", "4", "--batch", "2"),
    *("--val-episodes", "10", "--eval-episodes", "10", "--width", "4", "--n-query", "5"),
]


def test_torchrun_leaves_the_folder_that_one_process_leaves(ready: Ready, tmp_path: Path) -> None:
    one = ready.kedge(*BENCH, "--out", tmp_path / "one")
    assert one.rc == 0, one.err
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    both = subprocess.run(
        [*launch, "-m", "kedge", *BENCH, "--out", str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert both.returncode == 0, both.stderr
    assert both.stdout.replace("/two", "/one") == one.out, "said once"
    assert both.stderr.count("round 1, IDA: ") == 1

    def files(folder: Path) -> dict[str, Path]:
        found = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path for path in found}

    ours, theirs = files(tmp_path / "two"), files(tmp_path / "one")
    assert ours.keys() == theirs.keys()
    for name, path in ours.items():
        if path.suffix in (".safetensors", ".kedge"):
            mine, other = load_file(path), load_file(theirs[name])
            assert all(torch.equal(mine[key], other[key]) for key in mine | other), name
    records = [json.loads(found["record.json"].read_text("utf-8")) for found in (ours, theirs)]
    for record, processes in zip(records, ("2", None), strict=True):
        for run in record["runs"]:
            del run["seconds"], run["peak_memory_mb"]
            assert run.pop("environment").get("processes") == processes
    assert records[0] == records[1]
