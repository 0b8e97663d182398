"""Kill kedge at random moments, repeat the command, and compare the result bit by bit.

    python tools/kill_test.py --kills 100         # every method and head; 45 min on 2 busy cores
    python tools/kill_test.py --kills 5 --seed 1  # other moments

'kedge train', 'kedge update' and 'kedge bench' run as processes on some of the embedded drawings.
Each gets SIGKILL either after a random time, or just before a random one of its file operations
(create, rename, remove), which are too short to be hit by chance. Every third repeated process is
killed too. After each kill every file must load. In the end models, memories, scores and training
curves must be those of an undisturbed command, to the last bit, and no other file may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from kedge.data.drawings import load_drawings
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
COMMAND = """
folder, at, count = sys.argv[1:4]
watch(folder, int(at), count)
keep_checkpoint(folder)
sys.argv[:4] = ["kedge"]
from kedge.cli import main
main()
"""
SHORT = shlex.split("--epochs 3 --episodes 6 --val-episodes 12 --n-way 3 --n-shot 2 --n-query 3")
HEADS = ("prototype", "ecm", "ridge")
MEMORIES = {"EIML": "EIML exemplars=6", "EWC": "EWC episodes=4"}
METHODS = ("FT", "DFA", "EWC", "EIML", "IDA")
DETERMINISTIC = (".kedge", ".memory", ".safetensors")
OUT = "result"  # the folder that a command writes to


@dataclass(frozen=True)
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


def commands(work: Path) -> dict[str, tuple[str, ...]]:
    """The commands to kill, by name. An update starts from the model that a train has written."""
    first, second = export(work / "first", 0, 6), export(work / "second", 100, 6)
    many = export(work / "many", 200, 20)
    new = ("--width", "8", *SHORT)
    args: dict[str, tuple[str, ...]] = {}
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


def start(args: tuple[str, ...], folder: Path, kill_at: int = 0) -> subprocess.Popen[str]:
    """Start the command; its output goes to a file in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / OUT
    file = out if args[0] == "bench" else out / "model.kedge"
    watched = [sys.executable, "-c", WATCH + COMMAND, str(out), str(kill_at), str(folder / "count")]
    with open(folder / "output", "w") as output:
        return subprocess.Popen(
            [*watched, *args, "--out", str(file)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


class Cases:
    """Runs each command undisturbed when its case is first asked for."""

    def __init__(self, work: Path) -> None:
        self.work, self.args = work, commands(work)
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
        process = start(args, folder)
        if process.wait() != 0:
            sys.exit(f"{name}: ended with {process.returncode}: {(folder / 'output').read_text()}")
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
            elif path.suffix in (".training", ".memory", ".safetensors"):
                for tensor in load_tensors(path, "file")[1].values():
                    tensor.sum()  # reads every byte
            elif path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
        except Exception as error:
            faults.append(f"{path.relative_to(folder)}: {error}")
    return faults


def kill(case: Case, folder: Path, rng: random.Random, by_clock: bool) -> str | None:
    """Start the command and kill it. Returns the moment; None if the command ended before."""
    at = 0 if by_clock else rng.randint(1, case.n_operations)
    process = start(case.args, folder, at)
    delay = rng.uniform(0, case.seconds) if by_clock else None
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.kill()
    if process.wait() != -signal.SIGKILL:
        return None
    return f"at {delay:.2f} s" if by_clock else f"at operation {at} of {case.n_operations}"


def trial(case: Case, folder: Path, rng: random.Random, by_clock: bool) -> tuple[list[str], str]:
    """Kill the command once or more, then let it finish. Returns the moments and what is wrong."""
    moments: list[str] = []
    faults: list[str] = []
    while not moments or rng.random() < 1 / 3:
        moment = kill(case, folder, rng, by_clock or bool(moments))
        if moment is None:
            if moments:
                break  # the repeated command has finished
            shutil.rmtree(folder)  # it was faster than before: try another moment
            continue
        moments.append(moment)
        faults += [f"damaged: {fault}" for fault in damaged(folder / OUT)]
    process = start(case.args, folder)
    process.wait()
    output = (folder / "output").read_text()
    if process.returncode != 0 and "already exists" not in output:
        faults.append(f"the repeated command ended with {process.returncode}: {output}")
    files = written(folder / OUT)
    names = sorted(files.keys() | case.files.keys())
    faults += [f"differs: {name}" for name in names if files.get(name) != case.files.get(name)]
    return moments, "; ".join(faults)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="how many commands are killed")
    parser.add_argument("--seed", type=int, default=0, help="selects the moments")
    parser.add_argument("--only", default="", help="commands whose name contains this")
    options = parser.parse_args()
    rng, n_bad, kills = random.Random(options.seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kedge-kills-") as name:
        work = Path(name)
        cases = Cases(work)
        chosen = [name for name in cases.args if options.only in name]
        if not chosen:
            parser.error(f"--only: choose from {'; '.join(cases.args)}.")
        # A bench takes longer than the others, so it is chosen less often.
        order = [name for name in chosen for _ in range(1 if name.startswith("bench") else 3)]
        rng.shuffle(order)
        for number in range(options.kills):
            case, folder = cases[order[number % len(order)]], work / f"kill-{number}"
            moments, faults = trial(case, folder, rng, by_clock=number % 2 == 0)
            kills[case.args[0]] += len(moments)
            n_bad += bool(faults)
            when = ", then ".join(moments)
            print(f"{number + 1:4} {case.name:28} killed {when}: {faults or 'same'}", flush=True)
            shutil.rmtree(folder)
    each = ", ".join(f"{n} of {kind}" for kind, n in kills.items())
    print(f"{options.kills} commands, {kills.total()} kills ({each}), {n_bad} with faults.")
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
