"""The folder of a project: how it is made, opened by one server at a time, and tidied up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from kedge.config import BackboneConfig, BackboneOptions
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.defaults import PRETRAINED_BACKBONE, PRETRAINED_HEAD, photograph_size
from kedge.errors import KedgeError, require
from kedge.models.model import Model
from kedge.models.start import given_network, start_model
from kedge.serve.classes import Classes
from kedge.serve.database import Database, now
from kedge.serve.jobs import Jobs
from kedge.serve.limits import Limits, Refused
from kedge.serve.pictures import Pictures
from kedge.serve.security import FILE as TOKENS
from kedge.serve.versions import Versions
from kedge.training.step import default_device
from kedge.utils.atomic_io import file_lock, make_folder
from kedge.utils.text import format_bytes

DATABASE, LOCK, JOBS = "project.sqlite", "project.lock", "jobs"
START = "start"  # the method of a version that no round of this project has made


class Project:
    """An open project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database(folder / DATABASE)
        self.classes = Classes(self.database)
        self.pictures = Pictures(folder, self.database)
        self.versions = Versions(folder, self.database)
        self.jobs = Jobs(self.database)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def job_folder(self, job: int) -> Path:
        return self.folder / JOBS / str(job)

    def used_bytes(self) -> int:
        """Of pictures, versions and the database, which has features of each picture."""
        pictures, versions = self.pictures.bytes_used(), self.versions.bytes_used()
        return pictures + versions + self.database.bytes_used()

    def check_room(self, limits: Limits) -> None:
        """Raise Refused if the project or the disk is full."""
        used, free = self.used_bytes(), shutil.disk_usage(self.folder).free
        if used >= limits.quota:
            raise Refused(
                507,
                f"This project holds {format_bytes(used)}, and its limit is "
                f"{format_bytes(limits.quota)}: forget pictures that have been learned, or raise "
                "the limit with --quota.",
            )
        if free < limits.free_bytes:
            raise Refused(507, f"The disk is nearly full ({format_bytes(free)} are left).")

    def tidy(self) -> None:
        """Remove what a killed server left behind."""
        self.pictures.remove_orphans()
        self.versions.remove_orphans()
        unfinished = self.jobs.unfinished()
        keep = None if unfinished is None else str(unfinished["id"])
        for folder in (self.folder / JOBS).glob("*"):
            if folder.name.isdecimal() and folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.database.close()


def is_project(folder: Path) -> bool:
    return (folder / DATABASE).is_file()


@contextmanager
def open_project(folder: Path, model: Path | None = None) -> Iterator[Project]:
    """The project in a folder, made if there is none: from a model file, or empty with a network
    pretrained on photographs. Raises KedgeError if another server has it open."""
    check_folder(folder, model)
    with file_lock(folder, LOCK, advice="only one server can use a project"):
        project = Project(folder)
        try:
            if not project.versions.active:
                require(
                    not project.pictures.any_files(),
                    f"{folder}: there are pictures, but {DATABASE} is empty; put a copy of it "
                    "back, or give a new folder.",
                )
                _start(project, model)
            project.tidy()
            yield project
        finally:
            project.close()


def check_folder(folder: Path, model: Path | None) -> None:
    """Raise KedgeError for a folder that is no project and not empty, so that a mistyped path
    changes nothing; or if a start is given for a project that has one."""
    if is_project(folder):
        started = model is None or not _has_start(folder)
        require(started, f"{folder}: this project has its model; leave --model out.")
        return
    require(not folder.exists() or folder.is_dir(), f"{folder}: this is a file, not a folder.")
    others = [p for p in folder.glob("*") if p.name not in (LOCK, TOKENS)]
    require(
        not others,
        f"{folder}: this folder is no project of kedge and not empty; give a new folder. Pictures "
        "to start with are given with --pictures.",
    )


def _has_start(folder: Path) -> bool:
    database = Database(folder / DATABASE)
    try:
        return database.setting("active_version") is not None
    finally:
        database.close()


def _start(project: Project, file: Path | None) -> None:
    """Make the first version."""
    started = Model.load(file) if file is not None else untaught_model()
    if started.classes and started.class_means_of(started.classes) is None:
        raise KedgeError(
            f"{file}: of an early version that cannot compare its classes with taught ones; update "
            "it with 'kedge update' first."
        )
    folder = project.job_folder(0)
    make_folder(folder)
    path = folder / "model.kedge"
    started.save(path)
    summary: dict[str, Any] = {
        "classes": list(started.classes),
        "new_classes": list(started.classes),
        "outcome": None,
    }
    with project.database.transaction():
        if project.database.setting("created") is None:
            project.database.set_setting("created", str(now()))
        version = project.versions.add(path, None, None, START, summary, "accepted")
        project.classes.add_known(started.classes)
        project.versions.set_active(version)
    with suppress(OSError):
        shutil.rmtree(folder)


def untaught_model() -> Model:
    """The network pretrained on photographs, without any class."""
    network = given_network(BackboneOptions(backbone=PRETRAINED_BACKBONE))
    assert network is not None
    size = photograph_size(default_device().type == "cuda")
    # The pixels are not looked at, since the network comes with its normalization.
    pixels = torch.zeros(1, len(network.mean), size, size, dtype=torch.uint8)
    pool = Pool.all("nothing", ImageTable.build(pixels, [0], ["nothing"]))
    config = BackboneConfig(PRETRAINED_BACKBONE)
    model = start_model(config, PRETRAINED_HEAD, pool, 0, network)
    model.embedding.eval().requires_grad_(False)
    model.head.eval().requires_grad_(False)
    return model
