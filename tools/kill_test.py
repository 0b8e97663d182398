"""Kill kedge at random moments, give the command again, and see that not a bit is different.

    python tools/kill_test.py --kills 100         # every method and head; 45 min on 2 busy cores
    python tools/kill_test.py --kills 5 --seed 1  # other moments

'kedge train', 'kedge update' and 'kedge bench' run as processes of their own on some of the
embedded drawings. Each gets SIGKILL in one of two ways, in turn: after a random time, which is
spread over all of its life, from the first import to the end; or at a random one of the moments at
which it is about to touch a file of its result (make, move, remove, ...), which are too short to be
hit by chance. Every third process that goes on is killed too. After each kill every file that lies
there must load. In the end, models, memories, scores and training curves must be those of a command
that nobody disturbed, to the last bit, and no other file may be left.
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
from typing import Any

from PIL import Image

from kedge.data.drawings import load_drawings
from kedge.models.model import Model
from kedge.utils.atomic_io import digest, load_tensors

# Before a process touches a file in `folder` for the n-th time, it is killed, or something else is
# done with the file. `told` is where it says how often that was.
WATCH = """
import os, re, shutil, signal, sys
TOUCHES = ("open", "os.mkdir", "os.rename", "os.remove")
def kill(path):
    os.kill(os.getpid(), signal.SIGKILL)
def watch(folder, at, told=None, events=TOUCHES, named="", do=kill):
    seen = 0
    def touched(event, args):
        nonlocal seen
        path = str(args[0]) if args else ""
        if event in events and path.startswith(folder) and re.search(named, path):
            seen += 1
            if told:
                with open(told, "w") as file:
                    file.write(str(seen))
            if seen == at:
                do(path)
    sys.addaudithook(touched)
def keep_state(folder):  # as it is at the end, for it says more than the model: all epochs
    def keep(path):
        shutil.copy(path, folder + ".state")
    watch(folder, 1, events=["os.remove"], named="kedge.training.round$", do=keep)
"""
KEDGE = """
folder, at, told = sys.argv[1:4]
watch(folder, int(at), told)
keep_state(folder)
sys.argv[:4] = ["kedge"]
from kedge.cli import main
main()
"""
SHORT = shlex.split("--epochs 3 --episodes 6 --val-episodes 12 --n-way 3 --n-shot 2 --n-query 3")
HEADS = ("prototype", "ecm", "ridge")
MEMORIES = {"EIML": "EIML exemplars=6", "EWC": "EWC episodes=4"}
METHODS = ("FT", "DFA", "EWC", "EIML", "IDA")
FIXED = ("experiment.json", "split.json")
OUT = "result"  # what a command leaves behind, in a folder of this name


@dataclass(frozen=True)
class Case:
    """A command, and what it leaves if nobody disturbs it."""

    name: str
    words: tuple[str, ...]
    files: dict[str, bytes]
    seconds: float
    touches: int


def export(folder: Path, first: int, n_classes: int, per_class: int = 16) -> Path:
    """Some of the embedded drawings, as one's own images would be."""
    table = load_drawings()
    for name in table.classes[first : first + n_classes]:
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(table.take(table.rows_of(name)[:per_class])):
            Image.fromarray(pixels[0].numpy()).save(folder / name / f"{number:02}.png")
    return folder


def commands(work: Path) -> dict[str, tuple[str, ...]]:
    """What is killed, by name. An update goes on from the model that a train has left."""
    data = {
        "first": export(work / "first", 0, 6),
        "second": export(work / "second", 100, 6),
        "many": export(work / "many", 200, 20),
    }
    words: dict[str, tuple[str, ...]] = {}
    fresh = ("--width", "8", *SHORT)
    for head in HEADS:
        for method, keep in MEMORIES.items():
            how = ("train", str(data["first"]), "--head", head, "--keep", keep, *fresh)
            words[base_of(head, method)] = how
        for method in METHODS:
            base = str(work / base_of(head, method) / OUT / "model.kedge")
            named = MEMORIES.get(method, method)
            how = ("update", base, str(data["second"]), "--method", named, *SHORT)
            words[f"update, {head}, {method}"] = how
    for head in HEADS:
        how = ("bench", "folder", "--data", str(data["many"]), "--head", head, *fresh)
        methods = ("NU", "FT", "DFA", *MEMORIES.values(), "IDA", "PAR")
        words[f"bench, {head}"] = (*how, "--methods", *methods, "--eval-episodes", "20")
    return words


def base_of(head: str, method: str) -> str:
    return f"train, {head}, for {method if method in MEMORIES else 'EIML'}"


def start(words: tuple[str, ...], folder: Path, kill_at: int = 0) -> subprocess.Popen[str]:
    """The command as a process; what it prints goes into files beside its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / OUT
    file = out if words[0] == "bench" else out / "model.kedge"
    program = [sys.executable, "-c", WATCH + KEDGE, str(out), str(kill_at), str(folder / "touches")]
    with open(folder / "printed", "w") as printed:
        return subprocess.Popen(
            [*program, *words, "--out", str(file)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            text=True,
        )


class Cases:
    """Each command is done once without being disturbed, when it is first asked for."""

    def __init__(self, work: Path) -> None:
        self.work, self.words = work, commands(work)
        self.done: dict[str, Case] = {}

    def __getitem__(self, name: str) -> Case:
        if name not in self.done:
            kind, *rest = name.split(", ")
            if kind == "update":
                self[base_of(*rest)]
            self.done[name] = self._undisturbed(name)
        return self.done[name]

    def _undisturbed(self, name: str) -> Case:
        words, folder, began = self.words[name], self.work / name, time.monotonic()
        process = start(words, folder)
        if process.wait() != 0:
            sys.exit(f"{name}: ended with {process.returncode}: {(folder / 'printed').read_text()}")
        seconds, touches = time.monotonic() - began, int((folder / "touches").read_text())
        print(f"     {name:28} undisturbed: {seconds:.1f} s, {touches} touches", flush=True)
        files = content(folder / OUT) | end_of(folder / OUT)
        return Case(name, words, files, seconds, touches)


def content(folder: Path) -> dict[str, bytes]:
    """Every file that is the same whenever it is made; of the others only that they are there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            same = path.suffix in (".kedge", ".memory", ".safetensors") or path.name in FIXED
            numbers = path.name in ("run.json", "record.json")
            found[str(path.relative_to(folder))] = (
                path.read_bytes() if same else _numbers(path) if numbers else b""
            )
    return found


def end_of(folder: Path) -> dict[str, bytes]:
    """What a round had come to when it ended: curve, weights and moments, but for its seconds."""
    path = Path(f"{folder}.state")
    if not path.exists():  # of a bench: its records have the curve
        return {}
    about, tensors = load_tensors(path, "state")
    del about["seconds"]
    return {"the state at the end": (json.dumps(about) + digest(tensors)).encode()}


def _numbers(path: Path) -> bytes:
    """Of a record, without when, where and how fast it was made."""
    about = json.loads(path.read_text(encoding="utf-8"))
    for run in about.get("runs", [about]):
        for key in ("seconds", "peak_memory_mb", "environment"):
            del run[key]
    return json.dumps(about).encode()


def damaged(folder: Path) -> list[str]:
    """Files that do not load. What is half written has a name that nobody reads."""
    found = []
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
            found.append(f"{path.relative_to(folder)}: {error}")
    return found


def lying_there(folder: Path) -> str:
    """In a word, how far the command had come."""
    names = [path.name for path in folder.rglob("*")] if folder.exists() else []
    kinds = {
        "half a file": any(name.endswith(".part") for name in names),
        "state": any(name.endswith((".training", "training.safetensors")) for name in names),
        "memory": any("memory" in name for name in names),
        "model": any(name == "model.kedge" for name in names),
    }
    return ", ".join(kind for kind, there in kinds.items() if there) or "nothing"


def killed(case: Case, folder: Path, rng: random.Random, by_clock: bool) -> str | None:
    """Start the command and kill it. Returns when; None if it had ended before."""
    at = 0 if by_clock else rng.randint(1, case.touches)
    process = start(case.words, folder, at)
    if by_clock:
        delay = rng.uniform(0, case.seconds)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
    return_code = process.wait()
    if return_code != -signal.SIGKILL:
        return None
    return f"after {delay:.2f} s" if by_clock else f"at touch {at} of {case.touches}"


def trial(case: Case, folder: Path, rng: random.Random, by_clock: bool) -> dict[str, Any]:
    """One kill, perhaps more, and then whatever is needed until the command has ended."""
    moments: list[str] = []
    faults: list[str] = []
    there = ""
    while not moments or rng.random() < 1 / 3:
        moment = killed(case, folder, rng, by_clock or bool(moments))
        if moment is None:
            if moments:
                break  # this time it came to its end
            shutil.rmtree(folder)  # a busy moment was over: another one
            continue
        there = there or lying_there(folder / OUT)
        moments.append(moment)
        faults += [f"damaged: {each}" for each in damaged(folder / OUT)]
    process = start(case.words, folder)
    process.wait()
    printed = (folder / "printed").read_text()
    done_before = "already exists and is not overwritten" in printed
    if process.returncode != 0 and not done_before:
        faults.append(f"given again, it ended with {process.returncode}: {printed}")
    now = content(folder / OUT) | end_of(folder / OUT)
    faults += [f"left over: {name}" for name in now.keys() - case.files.keys()]
    faults += [f"missing: {name}" for name in case.files.keys() - now.keys()]
    shared = now.keys() & case.files.keys()
    faults += [f"different: {name}" for name in sorted(shared) if now[name] != case.files[name]]
    return {"moments": moments, "there": there, "faults": faults}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="how many commands are killed")
    parser.add_argument("--seed", type=int, default=0, help="which moments are drawn")
    parser.add_argument("--only", default="", help="commands whose name holds this, such as ridge")
    given = parser.parse_args()
    rng, bad, corrupt = random.Random(given.seed), 0, 0
    kills, where = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kedge-kills-") as name:
        work = Path(name)
        cases = Cases(work)
        chosen = [each for each in cases.words if given.only in each]
        if not chosen:
            parser.error(f"--only: there are {'; '.join(cases.words)}.")
        # A bench takes longer than the others, so it has its turn less often.
        order = [each for each in chosen for _ in range(1 if each.startswith("bench") else 3)]
        rng.shuffle(order)
        for number in range(given.kills):
            case, folder = cases[order[number % len(order)]], work / f"kill-{number}"
            result = trial(case, folder, rng, by_clock=number % 2 == 0)
            kills[case.words[0]] += len(result["moments"])
            where[result["there"]] += 1
            bad += bool(result["faults"])
            corrupt += sum(fault.startswith("damaged") for fault in result["faults"])
            said = "; ".join(result["faults"]) or "identical"
            when = ", then ".join(result["moments"])
            print(
                f"{number + 1:4} {case.name:28} killed {when}; there lay {result['there']}: {said}",
                flush=True,
            )
            shutil.rmtree(folder)
    print("\nWhat lay there at the first kill of a command:")
    for what, n in where.most_common():
        print(f"{n:4} times {what}")
    each = ", ".join(f"{n} of {kind}" for kind, n in kills.items())
    print(f"{given.kills} commands were killed, by {kills.total()} kills: {each}.")
    print(f"{given.kills - bad} identical results, {corrupt} corrupt files.")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
