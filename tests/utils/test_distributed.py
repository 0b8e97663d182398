"""Several ranks learn what one process learns; a single process needs no process group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kedge.utils import distributed

Ready = Any  # of conftest.py, which cannot be imported

# What torchrun does, but faster: two forked processes with the environment of two ranks.
TWO = """
import os, sys
from torch.distributed import TCPStore
meet = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
sys.meet = meet  # closing it in a child would wait for a thread that was not forked
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
    """Run code in two ranks; `me` is the rank."""
    return lambda body: ready(TWO.format(body=body), tmp_path)


def test_single_process() -> None:
    distributed.init()
    distributed.barrier()
    tensor = torch.arange(3.0)
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    assert distributed.all_reduce(tensor) is tensor
    assert distributed.broadcast(tensor) is tensor
    assert distributed.is_first_to_fail()
    for n in (1, 6, 7, 8):
        indices = range(5, 5 + n)
        assert distributed.sum_over_ranks(torch.tensor, indices).item() == sum(indices)
        assert sorted(distributed.shard_in_sum_order(indices)) == list(indices)


COLLECTIVES = """
import time, torch
from kedge.utils import distributed
from kedge.utils.distributed import all_reduce, broadcast, rank, sum_over_ranks, world_size

assert (rank(), world_size()) == (0, 1), "not yet"
distributed.init()
distributed.init()
assert (rank(), world_size()) == (me, 2)

like = torch.arange(24.0).reshape(1, 2, 3, 4)
for part in (like, like.to(memory_format=torch.channels_last), like.transpose(2, 3)):
    mine = part * (1 + 9 * me)
    assert torch.equal(all_reduce(mine), 11 * part)
    assert torch.equal(mine, part * (1 + 9 * me)), "unchanged"
assert broadcast({"mine": me}) == {"mine": 0}

computed = []
values = torch.randn(12, 1000, generator=torch.Generator().manual_seed(0)).mul(3).exp()
compute = lambda i: computed.append(i) or values[i]
ranges = (range(2), range(12), range(1, 7))
sums = [sum_over_ranks(compute, indices) for indices in ranges]
order = distributed.shard_in_sum_order(range(12))
assert computed[1:7] == order == [me + i for i in (0, 4, 8, 2, 6, 10)]
distributed.rank, distributed.world_size = (lambda: 0), (lambda: 1)
for got, indices in zip(sums, ranges):
    assert torch.equal(got, sum_over_ranks(compute, indices)), "the bits of one process"
distributed.rank, distributed.world_size = rank, world_size

if me == 1:
    time.sleep(0.3)
    open("late", "w").close()
distributed.barrier()
assert os.path.exists("late")
assert sum(all_reduce(torch.tensor([int(distributed.is_first_to_fail())]))) == 1
"""


@pytest.mark.slow
def test_collectives_of_two_ranks(two: Callable[[str], Any]) -> None:
    ended = two(COLLECTIVES)
    assert ended.rc == 0, ended.err


LEARN = """
import sys, torch
from dataclasses import asdict, replace
from torch import nn
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.errors import KedgeError
from kedge.data.table import ImageTable
from kedge.methods.registry import Method, parse_method
from kedge.models.model import new_model
from kedge.models.embedding import ModelConfig
from kedge.data.pools import Pool, RoundData
from kedge.training.round import memory_after_round, train_round
from kedge.utils import distributed

distributed.init()
seeded = torch.Generator().manual_seed(0)
pixels = torch.randint(256, (12 * 8, 1, 16, 16), generator=seeded, dtype=torch.uint8)
names = [f"class {i:02}" for i in range(12)]
table = ImageTable.build(pixels, [i // 8 for i in range(96)], names)
first, second = (
    RoundData(t, Pool.all("training", table, names[4 * t : 4 * t + 4]),
              Pool.all("validation", table, names[8:]))
    for t in range(2)
)
base = Method("base", "new")

def schedule(tasks_per_step, **more):
    schedule = Schedule(2, 12, 20, 1e-2, tasks_per_step=tasks_per_step, **more)
    return TrainConfig(EpisodeShape(3, 2, 2), schedule, 5)

def two_rounds(method, tasks_per_step, backbone="conv4", head="prototype", **more):
    config, method = schedule(tasks_per_step, **more), parse_method(method)
    shape = ModelConfig(BackboneConfig(backbone, 4), HeadConfig(head), 1, 16)
    results = [train_round(new_model(shape, first.train, 0), first, base, config)]
    memory = memory_after_round(method, results[0].model, first, {}, config)
    results.append(
        train_round(results[0].model, second, method, config, memory=memory)
    )
    return results

def summary(results):
    weights, curve = {}, []
    for t, result in enumerate(results):
        model = result.model
        weights |= {f"{t}.{k}": v for k, v in model.embedding.state_dict().items()}
        weights |= {f"{t}.head.{k}": v for k, v in model.head.state_dict().items()}
        weights[f"{t}.anchors"] = model.anchors
        curve += [asdict(epoch) for epoch in result.history]
    return weights, curve

class Own(nn.Module):
    # Its weights are random and differ between ranks.
    def __init__(self):
        super().__init__()
        self.flat = nn.Linear(256, 4)
        self.register_buffer("never", torch.tensor(-torch.inf))
    def forward(self, x):
        return self.flat(x.flatten(1))

def own():
    torch.manual_seed(distributed.rank())
    shape = ModelConfig(BackboneConfig("custom"), HeadConfig(), 1, 16)
    given = new_model(shape, first.train, distributed.rank(), Own())
    before = {k: v.clone() for k, v in given.embedding.state_dict().items()}
    result = train_round(given, first, base, schedule(6))
    assert all(torch.equal(before[k], v) for k, v in given.embedding.state_dict().items())
    return [result]

CASES = {
    "FT": lambda: two_rounds("FT", 2),
    "EIML": lambda: two_rounds("EIML exemplars=4", 2),
    "IDA, 12 tasks per step, hard": lambda: two_rounds("IDA", 12, head="ecm", sampling="hard"),
    "own backbone": own,
    "average of the last layers": lambda: two_rounds(
        "IDA lambda=auto", 2, train="last", ema=0.8, annealing="cosine"
    ),
}
found = {name: summary(case()) for name, case in CASES.items()}
torch.save(found, f"{distributed.rank()} of {distributed.world_size()}")
"""
DIFFERENT_SEEDS = """
distributed.barrier()
try:
    message = "nothing"
    train_round(new_model(ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 1, 16),
                first.train, 0), first, base, replace(schedule(2), seed=distributed.rank()))
except KedgeError as error:
    message = str(error)
except RuntimeError:  # the other has gone
    pass
print(f"{distributed.rank()}: {message}")
"""
CASES = (
    "FT",
    "EIML",
    "IDA, 12 tasks per step, hard",
    "own backbone",
    "average of the last layers",
)
Found = dict[str, tuple[dict[str, Tensor], list[dict[str, float]]]]


@pytest.fixture(scope="module")
def learned(
    ready: Ready, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Found], list[str]]:
    """Results of one process and of two ranks, and messages of ranks with different settings."""
    folder = tmp_path_factory.mktemp("learned")
    one = ready(LEARN, folder)
    assert one.rc == 0, one.err
    both = ready(TWO.format(body=LEARN + DIFFERENT_SEEDS), folder)
    assert both.rc == 0, both.err
    names = ("0 of 1", "0 of 2", "1 of 2")
    return {name: torch.load(folder / name) for name in names}, sorted(both.out.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_learns_to_the_last_bit(
    case: str, learned: tuple[dict[str, Found], list[str]]
) -> None:
    (one, curve), *others = (found[case] for found in learned[0].values())
    assert all(epoch["loss"] > 0 for epoch in curve)
    for weights, history in others:
        assert history == curve, "the losses are the mean over all episodes"
        assert weights.keys() == one.keys()
        assert [key for key in one if not torch.equal(one[key], weights[key])] == []


@pytest.mark.slow
def test_cases_differ_and_different_settings_are_refused(
    learned: tuple[dict[str, Found], list[str]],
) -> None:
    curves = [curve for _, curve in learned[0]["0 of 1"].values()]
    assert all(curves.count(curve) == 1 for curve in curves)
    assert learned[1][0] == "0: nothing"
    assert "different" in learned[1][1]


COMMAND = "import kedge.cli; sys.argv = {words!r}; kedge.cli.main()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bench --tasks-per-step 3 --episodes 6 --out run", "--tasks-per-step"),
        ("train nowhere --tasks-per-step 2 --out model.kedge", "nowhere"),
        ("evaluate model drawings", "torchrun"),
    ],
)
def test_errors_are_reported_once(
    words: str, expected: str, two: Callable[[str], Any], tmp_path: Path
) -> None:
    ended = two(COMMAND.format(words=["kedge", *words.split()]))
    assert expected in ended.sentence
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was written"


@pytest.mark.slow
def test_folder_in_use_ends_both_ranks(two: Callable[[str], Any], tmp_path: Path) -> None:
    words = ["kedge", "bench", "--tasks-per-step", "2", "--episodes", "2", "--out", str(tmp_path)]
    lock = "from filelock import FileLock; lock = FileLock('.lock'); me or lock.acquire(); "
    ended = two(lock + COMMAND.format(words=words))
    assert ended.sentence.startswith(f"{tmp_path}: another kedge process")


BENCH = (
    "bench --methods NU IDA --epochs 2 --episodes 4 --tasks-per-step 2 --val-episodes 10 "
    "--eval-episodes 10 --width 4 --n-query 5"
)


@pytest.mark.slow
def test_torchrun_writes_the_files_of_one_process(ready: Ready, tmp_path: Path) -> None:
    words = BENCH.split()
    one = ready.kedge(*words, "--out", tmp_path / "one")
    assert one.rc == 0, one.err
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    both = subprocess.run(
        [*launch, "-m", "kedge", *words, "--out", str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert both.returncode == 0, both.stderr
    assert both.stdout.replace("/two", "/one") == one.out, "printed once"
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
