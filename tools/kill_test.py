"""Kill kedge at random moments, repeat the command, and compare the result bit by bit.

    python tools/kill_test.py --kills 1000           # every method and head
    python tools/kill_test.py --kills 5 --seed 1     # other moments
    python tools/kill_test.py --only pack            # commands whose name contains this

'kedge train', 'kedge update', 'kedge bench' and 'kedge data pack' run on some of the embedded
drawings. Each command is a process of its own, forked from one that has imported PyTorch, so that a
kill costs a second and not five. It gets SIGKILL either after a random time, or just before a
random one of its file operations (create, rename, remove), which are too short to be hit by
chance. Half of the repeated processes are killed again. After each kill every file must load. In
the end models, memories, packed images, scores and training curves must be those of an undisturbed
command, to the last bit, and no other file may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from kedge.data.drawings import load_drawings
from kedge.data.open import open_images
from kedge.data.table import ImageTable
from kedge.models.model import Model
from kedge.utils.atomic_io import load_tensors, tensors_digest

# Code for the watched process. Before its n-th file operation in `folder` it calls `do(path)`;
# the number of operations so far is written to the file `count`.
WATCH = """
import os, re, shutil, signal, sys
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove")
def kill(path):
    os.kill(os.getpid(), signal.SIGKILL)
def watch(folder, at, count=None, events=OPERATIONS, pattern="", do=kill):
    seen = 0
    def hook(event, args):
        nonlocal seen
        path = str(args[0]) if args else ""
        if event in events and path.startswith(folder) and re.search(pattern, path):
            seen += 1
            if count:
                with open(count, "w") as file:
                    file.write(str(seen))
            if seen == at:
                do(path)
    sys.addaudithook(hook)
def keep_checkpoint(folder):  # before it is removed: it holds all epochs, the model only the best
    def copy(path):
        shutil.copy(path, folder + ".checkpoint")
    watch(folder, 1, events=["os.remove"], pattern=r"\\.kedge\\.training$", do=copy)
"""
# Code of the process that the commands are forked from. It is sent lines of JSON, and answers each
# with the id of a process, and with how that has ended.
PARENT = """
import json, os, sys, traceback
import torch._dynamo, kedge.api, kedge.experiments.experiment, kedge.data.pack, kedge.cli.commands
import kedge.report.outcome_figures, kedge.report.record_report
kedge.data.pack.JOURNAL_SECONDS = 0  # packing takes a second here, and is to be continued
from kedge.cli import main
for line in sys.stdin:
    args, output, folder, at, count = json.loads(line)
    if (child := os.fork()) == 0:
        rc = 1
        for number, file in ((0, os.devnull), (1, output), (2, output)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
        watch(folder, at, count)
        keep_checkpoint(folder)
        sys.argv = ["kedge", *args]
        try:
            main()
            rc = 0
        except SystemExit as end:
            rc = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(rc)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
SHORT = shlex.split("--epochs 3 --episodes 3 --val-episodes 4 --n-way 3 --n-shot 1 --n-query 2")
HEADS = ("prototype", "ecm", "ridge")
MEMORIES = {"EIML": "EIML exemplars=6", "EWC": "EWC episodes=4"}
METHODS = ("FT", "DFA", "EWC", "EIML", "IDA")
DETERMINISTIC = (".kedge", ".memory", ".safetensors", ".images")
OUT = "result"  # the folder that a command writes to


@dataclass
class Case:
    """A command and what it writes if it is not disturbed."""

    name: str
    args: tuple[str, ...]
    files: dict[str, bytes]
    seconds: float
    n_operations: int


def export(folder: Path, first: int, n_classes: int, per_class: int = 16) -> Path:
    """Write some of the embedded drawings as class folders."""
    table = load_drawings()
    for name in table.classes[first : first + n_classes]:
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(table.take(table.rows_of(name)[:per_class])):
            Image.fromarray(pixels[0].numpy()).save(folder / name / f"{number:02}.png")
    return folder


def packed(folder: Path, path: Path) -> Path:
    open_images(folder).save(path)
    return path


def commands(work: Path) -> dict[str, tuple[str, ...]]:
    """The commands to kill, by name. An update starts from the model that a train has written."""
    # Packed, so that no decoder has to be started: 'data pack' and 'bench' start theirs.
    first, second = (
        packed(export(work / f"{name} images", start, 6), work / f"{name}.images")
        for name, start in (("first", 0), ("second", 100))
    )
    many = export(work / "many", 200, 20)
    large = export(work / "large", 300, 4, 48)  # several parts of a packing
    next(large.rglob("*.png")).write_bytes(b"no image")  # which leaves a gap
    new = ("--width", "4", *SHORT)
    args: dict[str, tuple[str, ...]] = {
        f"pack, {size} px": ("data", "pack", str(large), "--image-size", size)
        for size in ("28", "64")
    }
    for head in HEADS:
        for method, memory in MEMORIES.items():
            options = ("--head", head, "--save-memory", memory, *new)
            args[base_name(head, method)] = ("train", str(first), *options)
        for method in METHODS:
            base = str(work / base_name(head, method) / OUT / "model.kedge")
            spec = MEMORIES.get(method, method)
            args[f"update, {head}, {method}"] = (
                *("update", base, str(second), "--method", spec),
                *SHORT,
            )
        methods = ("NU", "FT", "DFA", *MEMORIES.values(), "IDA", "PAR")
        args[f"bench, {head}"] = (
            *("bench", "folder", "--data", str(many), "--head", head, *new),
            *("--methods", *methods, "--eval-episodes", "20"),
        )
    return args


def base_name(head: str, method: str) -> str:
    return f"train, {head}, for {method if method in MEMORIES else 'EIML'}"


class Parent:
    """The process that the commands are forked from. One runs at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCH + PARENT],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, args: tuple[str, ...], folder: Path, kill_at: int = 0, seconds: float | None = None
    ) -> int:
        """Run a command until it ends, is at a file operation, or has run for so many seconds."""
        folder.mkdir(parents=True, exist_ok=True)
        out = folder / OUT
        name = {"bench": "", "data": "x.images"}.get(args[0], "model.kedge")
        (folder / "output").write_text("")
        request = [*args, "--out", str(out / name)], str(folder / "output"), str(out)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*request, kill_at, str(folder / "count")]) + "\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        if seconds is not None:
            with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(child)) as process:
                if not select.select([process], [], [], seconds)[0]:
                    signal.pidfd_send_signal(process.fileno(), signal.SIGKILL)
        return int(self._process.stdout.readline())


class Cases:
    """Runs each command undisturbed when its case is first asked for."""

    def __init__(self, work: Path, parent: Parent) -> None:
        self.work, self.parent, self.args = work, parent, commands(work)
        self.done: dict[str, Case] = {}

    def __getitem__(self, name: str) -> Case:
        if name not in self.done:
            kind, *rest = name.split(", ")
            if kind == "update":
                self[base_name(*rest)]
            self.done[name] = self._run(name)
        return self.done[name]

    def _run(self, name: str) -> Case:
        args, folder, began = self.args[name], self.work / name, time.monotonic()
        if (rc := self.parent.run(args, folder)) != 0:
            sys.exit(f"{name}: ended with {rc}: {(folder / 'output').read_text()}")
        seconds, n_operations = time.monotonic() - began, int((folder / "count").read_text())
        print(f"     {name:28} {seconds:.1f} s, {n_operations} file operations", flush=True)
        return Case(name, args, written(folder / OUT), seconds, n_operations)


def written(folder: Path) -> dict[str, bytes]:
    """All files of a result, reduced to what must be the same every time."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            same = path.suffix in DETERMINISTIC or path.name in ("experiment.json", "split.json")
            record = path.name in ("run.json", "record.json")
            content = path.read_bytes() if same else _record_numbers(path) if record else b""
            files[str(path.relative_to(folder))] = content
    return files | last_checkpoint(folder)


def last_checkpoint(folder: Path) -> dict[str, bytes]:
    """Curve, weights and moments at the end of a round, without its seconds; {} for a bench."""
    path = Path(f"{folder}.checkpoint")
    if not path.exists():
        return {}
    about, tensors = load_tensors(path, "checkpoint")
    del about["seconds"]
    return {"last checkpoint": (json.dumps(about) + tensors_digest(tensors)).encode()}


def _record_numbers(path: Path) -> bytes:
    """A record without times, memory and machine."""
    about = json.loads(path.read_text(encoding="utf-8"))
    for run in about.get("runs", [about]):
        for key in ("seconds", "peak_memory_mb", "environment"):
            del run[key]
    return json.dumps(about).encode()


def damaged(folder: Path) -> list[str]:
    """Files that do not load; temporary files and locks are not read by anyone."""
    faults = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.suffix in (".part", ".lock"):
            continue
        try:
            if path.suffix == ".kedge":
                Model.load(path)
            elif path.suffix == ".images":
                ImageTable.load(path).images[:]  # verifies the pixels
            elif path.suffix in (".training", ".memory", ".safetensors"):
                for tensor in load_tensors(path, "file")[1].values():
                    tensor.sum()  # reads every byte
            elif path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
        except Exception as error:
            faults.append(f"{path.relative_to(folder)}: {error}")
    return faults


def kill(
    parent: Parent, case: Case, folder: Path, rng: random.Random, by_clock: bool
) -> str | None:
    """Start the command and kill it. Returns the moment; None if the command ended before."""
    at = 0 if by_clock else rng.randint(1, case.n_operations)
    delay = rng.uniform(0, case.seconds) if by_clock else None
    if parent.run(case.args, folder, at, delay) != -signal.SIGKILL:
        case.seconds = min(case.seconds, delay or case.seconds)
        return None
    return f"at {delay:.2f} s" if by_clock else f"at operation {at} of {case.n_operations}"


def trial(
    parent: Parent, case: Case, folder: Path, rng: random.Random, by_clock: bool
) -> tuple[list[str], str]:
    """Kill the command once or more, then let it finish. Returns the moments and what is wrong."""
    moments: list[str] = []
    faults: list[str] = []
    while not moments or rng.random() < 1 / 2:
        moment = kill(parent, case, folder, rng, by_clock)
        if moment is None:
            if moments:
                break  # the repeated command has finished
            shutil.rmtree(folder)  # it was faster than before: try another moment
            continue
        moments.append(moment)
        faults += [f"damaged: {fault}" for fault in damaged(folder / OUT)]
        by_clock = rng.random() < 1 / 2
    rc = parent.run(case.args, folder)
    output = (folder / "output").read_text()
    if rc != 0 and "already exists" not in output:
        faults.append(f"the repeated command ended with {rc}: {output}")
    files = written(folder / OUT)
    names = sorted(files.keys() | case.files.keys())
    faults += [f"differs: {name}" for name in names if files.get(name) != case.files.get(name)]
    return moments, "; ".join(faults)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="how many at least")
    parser.add_argument("--seed", type=int, default=0, help="selects the moments")
    parser.add_argument("--only", default="", help="commands whose name contains this")
    parser.add_argument("--keep", type=Path, help="a folder for results with faults")
    options = parser.parse_args()
    rng, n_trials, n_bad = random.Random(options.seed), 0, 0
    kills, began = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kedge-kills-") as name:
        work = Path(name)
        parent = Parent()
        cases = Cases(work, parent)
        chosen = [name for name in cases.args if options.only in name]
        if not chosen:
            parser.error(f"--only: choose from {'; '.join(cases.args)}.")
        # A bench takes longer than the others, so it is chosen less often. There are two packings.
        times = {"bench": 1, "pack": 12}
        order = [name for name in chosen for _ in range(times.get(name.partition(",")[0], 3))]
        rng.shuffle(order)
        while kills.total() < options.kills:
            case, folder = cases[order[n_trials % len(order)]], work / f"kill-{n_trials}"
            moments, faults = trial(parent, case, folder, rng, by_clock=n_trials % 2 == 0)
            kills[case.name.partition(",")[0]] += len(moments)
            n_trials, n_bad = n_trials + 1, n_bad + bool(faults)
            when = ", then ".join(moments)
            total = kills.total()
            print(f"{total:5} {case.name:28} killed {when}: {faults or 'same'}", flush=True)
            if faults and options.keep is not None:
                shutil.move(folder, options.keep / folder.name)
            else:
                shutil.rmtree(folder)
    each = ", ".join(f"{n} of {kind}" for kind, n in kills.items())
    seconds = time.monotonic() - began
    print(
        f"{kills.total()} kills ({each}) of {n_trials} commands, {n_bad} with faults, in "
        f"{seconds:.0f} s."
    )
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
