"""The program of a round's process: `python -m kedge.serve.improve FOLDER`.

    job.json         what to do: the model to start from, pictures by class, settings
    checkpoint       from which a stopped round continues
    progress.json    how far it is, for whoever looks
    model.kedge      the result, complete when it is there
    result.json      its method and what it did
    error.txt        why there is no result, in one sentence

Nothing but this folder and the pictures is read, and nothing but this folder is written. The
process ends when its standard input is closed, so it does not outlive the server.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedge.errors import KedgeError

if TYPE_CHECKING:
    from kedge.models.model import Model

JOB, CHECKPOINT, PROGRESS = "job.json", "checkpoint", "progress.json"
MODEL, RESULT, ERROR = "model.kedge", "result.json", "error.txt"
LOCK_SECONDS = 30.0  # for a process of before to end
NICE = 15
TELL_EVERY = 0.5  # seconds
# Tasks by the beginnings of their names: what people are told, and the part of a round that they
# take, which is rough: it depends on the network and on the pictures.
PHASES = (
    ("reading images", "reading", 0.0, 0.1),
    ("computing the frozen layers", "preparing", 0.1, 0.35),
    ("round", "training", 0.35, 0.95),
    ("embedding every class", "finishing", 0.95, 1.0),
)


class ProgressFile:
    """Progress in a file that is always complete, though not always the latest after a crash."""

    def __init__(self, path: Path) -> None:
        self.path, self.told, self.task = path, 0.0, ""
        self.began, self.first = 0.0, 0
        self.fraction = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        now = time.monotonic()
        if task != self.task:
            self.task, self.began, self.first = task, now, done
        elif self.first == 0 and done:  # what was done before a stop counts at once
            self.began, self.first = now, done
        elif now - self.told < TELL_EVERY and done < total:
            return
        self.told = now
        phase = next((p for p in PHASES if task.startswith(p[0])), None)
        if phase is None:
            return
        _, name, start, end = phase
        if name != "training" or done:  # that task begins before layers are prepared
            self.fraction = max(self.fraction, start + (end - start) * done / max(total, 1))
        left = None
        if done > self.first:
            left = (now - self.began) / (done - self.first) * (total - done)
        self.write(name, done, total, left)

    def write(self, phase: str, done: int, total: int, left: float | None) -> None:
        text = json.dumps(
            {
                "phase": phase,
                "done": done,
                "total": total,
                "fraction": round(self.fraction, 3),
                "seconds_left": None if left is None else round(left, 1),
            }
        )
        part = self.path.with_name(f".{self.path.name}.part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.path)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(OSError, AttributeError):
        os.nice(NICE)  # whoever asks goes first
    tempfile.tempdir = str(folder)  # what large rounds write goes with the folder
    try:
        run(folder)
    except KedgeError as error:
        _write(folder / ERROR, str(error))
        sys.exit(1)
    except MemoryError:
        _write(folder / ERROR, "There is not enough memory for this round.")
        sys.exit(1)


def run(folder: Path) -> None:
    from kedge.utils import progress
    from kedge.utils.atomic_io import file_lock

    with file_lock(folder, "round.lock", LOCK_SECONDS), progress.display():
        if (folder / MODEL).exists() and (folder / RESULT).exists():
            return  # it was stopped at the last moment
        job = json.loads((folder / JOB).read_text(encoding="utf-8"))
        tell = ProgressFile(folder / PROGRESS)
        tell.write("starting", 0, 1, None)
        with progress.observed_by(tell):
            model = improved_model(job, folder / CHECKPOINT)
        _write(folder / RESULT, json.dumps(summary(model)))
        model.save(folder / MODEL)


def improved_model(job: dict[str, Any], checkpoint: Path) -> Model:
    """The model after a round on the pictures; a stopped round continues from its checkpoint."""
    from kedge import api
    from kedge.defaults import PRETRAINED_BACKBONE
    from kedge.models.model import Model

    start = Model.load(job["start"])
    pictures = {key: [Path(path) for path in paths] for key, paths in job["pictures"].items()}
    # Names that are alike were refused when they were given, unless somebody wanted them.
    options = {"same_class": "none", "checkpoint": checkpoint, **job["settings"]}
    if start.classes:
        return api.update(start, pictures, **options)
    size = start.config.image_size
    return api.train(pictures, backbone=PRETRAINED_BACKBONE, image_size=size, **options)


def summary(model: Model) -> dict[str, Any]:
    """What the interface says of a version that a round has made."""
    from kedge.report.outcome import outcome_sentence
    from kedge.utils.config_io import to_dict

    entry = model.lineage[-1]
    outcome = None
    if entry.outcome is not None:
        outcome = to_dict(entry.outcome)
        for change, each in zip(outcome["naming"], entry.outcome.naming, strict=True):
            change["estimated"] = each.estimated
        outcome["sentence"] = outcome_sentence(entry)
    return {
        "method": entry.method,
        "classes": list(model.classes),
        "new_classes": [*entry.classes, *entry.untrained],
        "round": entry.round,
        "outcome": outcome,
    }


def _write(path: Path, text: str) -> None:
    from kedge.utils.atomic_io import write_text_atomically

    write_text_atomically(path, text)


def _end_with_parent() -> None:
    # Not sys.stdin: a thread that waits in it would break the end of the interpreter.
    while os.read(0, 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    main()
