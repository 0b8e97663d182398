"""Rounds in the background: started, watched, cancelled, continued after a stop, and decided on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.config import RoundOptions, options_from
from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.serve import events, improve
from kedge.serve.database import Row, now
from kedge.serve.limits import Refused
from kedge.serve.monitoring import log
from kedge.serve.project import Project
from kedge.serve.teaching import Teaching
from kedge.utils.atomic_io import write_text_atomically
from kedge.utils.text import pluralize

STOP_SECONDS = 5.0
MOST_STARTS = 3  # of one round by starts of the server, which may be what its memory ends
LEAST_CLASSES, LEAST_PICTURES = 2, 4  # of a round, and of each of these classes
LOG = "log.txt"
SHOWN = ("id", "kind", "state", "parent", "version", "message", "created", "started", "ended")
SETTINGS = ("epochs", "episodes", "train", "lr", "seed")  # that a request may set


class Rounds:
    def __init__(self, project: Project, teaching: Teaching) -> None:
        self.project, self.teaching = project, teaching
        self.lock = threading.RLock()
        self.process: subprocess.Popen[bytes] | None = None
        self.job: int | None = None  # whose process this is
        self.began = 0.0
        self.stopping = False
        self.thread: threading.Thread | None = None

    # ── what is there to learn ───────────────────────────────────────────────────────────────

    def untrained(self) -> list[Row]:
        """id and class of the pictures that the version in use was not trained on."""
        trained = self.teaching.active.trained
        rows = self.project.database.rows(
            "SELECT pictures.id, class FROM pictures JOIN classes ON classes.id = class "
            "WHERE NOT removed ORDER BY pictures.id"
        )
        return [row for row in rows if row["id"] not in trained]

    def possible(self) -> dict[str, Any]:
        """Whether a round can start now, and why not."""
        rows = self.untrained()
        counts = Counter(row["class"] for row in rows)
        keys = {each.id: each.key for each in self.project.classes.all()}
        known = set(self.teaching.active.model.classes)
        n_new = sum(keys[each] not in known for each in counts)
        enough = sum(n >= LEAST_PICTURES for n in counts.values())
        reason = ""
        if self.project.jobs.unfinished() is not None:
            reason = "Another round has not ended yet."
        elif self.project.versions.candidate() is not None:
            reason = "Decide first whether to take over the version that is waiting."
        elif not rows:
            reason = "There are no new pictures since the last round."
        elif enough < LEAST_CLASSES:
            reason = (
                f"Add pictures first: at least {pluralize(LEAST_CLASSES, 'class', 'classes')} need "
                f"{LEAST_PICTURES} or more new ones each."
            )
        each = self.project.jobs.seconds_per_picture()
        return {
            "possible": not reason,
            "reason": reason,
            "n_new_classes": n_new,
            "n_pictures": len(rows),
            "estimated_seconds": None if each is None else round(each * len(rows)),
        }

    # ── start, continue, cancel ──────────────────────────────────────────────────────────────

    def start(self, role: str, settings: dict[str, Any]) -> int:
        settings = checked_settings(settings)
        with self.teaching.lock, self.lock:
            self.project.jobs.check_none_unfinished()
            possible = self.possible()
            if not possible["possible"]:
                raise Refused(409, possible["reason"])
            pictures = [row["id"] for row in self.untrained()]
            with self.project.database.transaction():
                job = self.project.jobs.make(self.teaching.active.version, pictures, settings)
                detail = {"job": job, "pictures": len(pictures)}
                events.record(self.project.database, role, "round started", **detail)
            self._launch(job)
        return job

    def resume_after_start(self) -> None:
        """Continue a round that the last server was working on."""
        job = self.project.jobs.unfinished()
        if job is None or job["state"] == "interrupted":
            return
        if job["attempts"] >= MOST_STARTS:
            message = "The round was stopped several times; continue it, or cancel it."
            self.project.jobs.set(job["id"], "interrupted", message=message)
            return
        with self.lock:
            self._launch(job["id"])

    def resume(self, role: str, job: int) -> None:
        """Continue an interrupted round from its checkpoint."""
        with self.lock:
            row = self.project.jobs.get(job)
            if row["state"] != "interrupted":
                raise Refused(409, f"Round {job} is not interrupted, but {row['state']}.")
            events.record(self.project.database, role, "round continued", job=job)
            self.project.jobs.set(job, "queued", attempts=0)
            self._launch(job)

    def cancel(self, role: str, job: int) -> None:
        with self.lock:
            row = self.project.jobs.get(job)
            if row["state"] not in ("queued", "running", "interrupted"):
                raise Refused(409, f"Round {job} has ended already.")
            # First, so that the watching thread takes the end of the process for what it is.
            self.project.jobs.set(job, "cancelled", message="")
            events.record(self.project.database, role, "round cancelled", job=job)
            if self.job == job:
                self._stop_process()
            shutil.rmtree(self.project.job_folder(job), ignore_errors=True)

    def _launch(self, job: int) -> None:
        """Start the process of a round, and a thread that watches it."""
        row, folder = self.project.jobs.get(job), self.project.job_folder(job)
        pictures: dict[str, list[str]] = {}
        for each in self.project.jobs.pictures(job):
            path = str(self.project.pictures.path(each["sha256"]).resolve())
            pictures.setdefault(each["key"], []).append(path)
        about = {
            "start": str(self.project.versions.path(row["parent"]).resolve()),
            "pictures": pictures,
            "settings": json.loads(row["settings"]),
        }
        try:
            write_text_atomically(folder / improve.JOB, json.dumps(about))
            (folder / improve.ERROR).unlink(missing_ok=True)
            process = start_process(folder)
        except (KedgeError, OSError) as error:  # the disk is full, say
            log("round not started", job=job, error=str(error))
            message = "It could not be started; the log has more. Continue it to try again."
            self.project.jobs.set(job, "interrupted", message=message)
            return
        attempts = row["attempts"] + 1
        self.project.jobs.set(job, "running", started=now(), attempts=attempts, message="")
        self.process, self.job, self.began = process, job, time.monotonic()
        name = f"round {job}"
        self.thread = threading.Thread(target=self._watch, args=(job, process), name=name)
        self.thread.daemon = True
        self.thread.start()
        log("round started", job=job, process=process.pid, attempt=attempts)

    # ── while it runs ────────────────────────────────────────────────────────────────────────

    def describe(self, row: Row) -> dict[str, Any]:
        """A round as the interface shows it."""
        return {**{name: row[name] for name in SHOWN}, "progress": self._progress(row)}

    def _progress(self, row: Row) -> dict[str, Any]:
        """How far a round is: of a running one, what its process says."""
        if row["state"] in ("running", "interrupted"):
            path = self.project.job_folder(row["id"]) / improve.PROGRESS
            with suppress(OSError, ValueError):
                return dict(json.loads(path.read_text(encoding="utf-8")))
        return dict(json.loads(row["progress"]))

    def _watch(self, job: int, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with self.lock:
            seconds = time.monotonic() - self.began
            if self.job == job:
                self.process = self.job = None
            if process.stdin is not None:
                process.stdin.close()
            if self.stopping or self.project.jobs.get(job)["state"] != "running":
                return  # the server ends, and its next start continues; or it was cancelled
        try:
            self._ended(job, process.returncode, seconds)
        except Exception as error:  # the disk is full, say: the result stays for the next start
            log("round not finished", job=job, error=str(error))
            message = f"Its result could not be stored ({error}); continue it to try again."
            with suppress(Exception), self.lock:
                if self.project.jobs.get(job)["state"] == "running":  # not cancelled meanwhile
                    self.project.jobs.set(job, "interrupted", message=message)

    def _ended(self, job: int, code: int, seconds: float) -> None:
        folder = self.project.job_folder(job)
        row = self.project.jobs.get(job)
        log("round ended", job=job, code=code, seconds=round(seconds, 1))
        total = row["seconds"] + seconds
        if code == 0:
            self._finish(job, total)
        elif (folder / improve.ERROR).exists():
            message = (folder / improve.ERROR).read_text(encoding="utf-8")
            self.project.jobs.set(job, "failed", message=_for_people(message), seconds=total)
            shutil.rmtree(folder, ignore_errors=True)
        elif code > 0:
            log("round failed", job=job, log=_tail(folder / LOG))
            message = "The round has failed because of a fault of kedge; the log has more."
            self.project.jobs.set(job, "failed", message=message, seconds=total)
            shutil.rmtree(folder, ignore_errors=True)
        else:  # killed: by somebody, or since the memory did not suffice
            message = "The round was stopped from outside, perhaps since memory ran out."
            self.project.jobs.set(job, "interrupted", message=message, seconds=total)

    def _finish(self, job: int, seconds: float) -> None:
        """Make the result a version that waits for a decision."""
        folder, project = self.project.job_folder(job), self.project
        model = Model.load(folder / improve.MODEL)  # raises if it is damaged
        about = json.loads((folder / improve.RESULT).read_text(encoding="utf-8"))
        known = set(Model.load(project.versions.path(project.jobs.get(job)["parent"])).classes)
        about["new_classes"] = [key for key in model.classes if key not in known]
        method = about.pop("method")
        with self.teaching.lock, project.database.transaction():
            if project.jobs.get(job)["state"] != "running":
                return
            parent = project.jobs.get(job)["parent"]
            path = folder / improve.MODEL
            version = project.versions.add(path, parent, job, method, about, "candidate")
            done = {"fraction": 1.0, "phase": "done"}
            project.jobs.set(
                job, "done", version=version, seconds=seconds, progress=json.dumps(done)
            )
            events.record(project.database, "", "round ended", job=job, version=version)
        shutil.rmtree(folder, ignore_errors=True)

    # ── the end of the server ────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop the process of a round; its row stays "running", so the next start continues it."""
        with self.lock:
            self.stopping = True
            if self.job is not None:
                # A stop that was asked for is not an attempt.
                self.project.jobs.set(self.job, "running", attempts=0)
            self._stop_process()
        if self.thread is not None:
            self.thread.join(STOP_SECONDS)

    def _stop_process(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_process(folder: Path) -> subprocess.Popen[bytes]:
    """The process of a round; it ends when this process does. With -P it imports nothing from the
    current folder, which may be anybody's."""
    threads = str(max(1, (os.cpu_count() or 2) // 2))
    with open(folder / LOG, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "kedge.serve.improve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )


def checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a round. Raises Refused for what a request may not set."""
    if unknown := set(settings) - set(SETTINGS):
        names = ", ".join(SETTINGS)
        raise Refused(422, f"'{min(unknown)}' is no setting of a round; these are: {names}.")
    try:
        options_from(RoundOptions, settings)
    except KedgeError as error:
        raise Refused(422, str(error)) from None
    return settings


def _for_people(message: str) -> str:
    """An error without the paths of the server."""
    return message.replace("images given in memory: ", "The pictures: ")


def _tail(path: Path, n: int = 4000) -> str:
    with suppress(OSError):
        return path.read_bytes()[-n:].decode(errors="replace")
    return ""
