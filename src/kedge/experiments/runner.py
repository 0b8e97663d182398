"""Running an experiment: what is not done yet, and the record of everything.

The folder of a run:

    experiment.json                      the settings; a folder belongs to one experiment
    seed-0/                              see `kedge.experiments.seed_run`
    record.json                          all results together, written at the end
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from kedge.benchmarks import get_protocol
from kedge.errors import KedgeError, require
from kedge.experiments.experiment import Experiment, check_experiment
from kedge.experiments.jobs import run_jobs
from kedge.experiments.launchers import parse_launcher
from kedge.experiments.records import EARLIER_METHODS, RECORD_FORMAT, Record
from kedge.experiments.seed_run import BASE, SeedRun
from kedge.methods.registry import parse_method
from kedge.models.model_file import current_spec
from kedge.training.step import build_kernels_in_background
from kedge.utils import distributed, progress
from kedge.utils.atomic_io import exclusive, write_text_atomically
from kedge.utils.config_io import from_dict, option_name, parse_json, to_dict
from kedge.utils.regular_file import read_text

TESTED_ON = {  # what is added to the description of a protocol
    "unseen": "",
    "validation": "; tested on half of the validation classes in place of the unseen ones",
}


@progress.shown
def run_experiment(experiment: Experiment, folder: str | Path, on: str = "local") -> Record:
    """Do what is not done yet of an experiment, and return the record of all of it.

    Args:
        on: where methods and seeds are trained: "local", in this process; "local:4", in four
            processes of this machine; "slurm:PARTITION gpus=1" or "ray:ADDRESS", on the machines of
            a cluster, which share the folder.
    """
    distributed.init()
    launcher = parse_launcher(on)
    alone = launcher.in_this_process
    require(alone or distributed.world_size() == 1, f"--on {on}: start it without torchrun.")
    folder = Path(folder)
    if alone and not (folder / "record.json").exists():
        build_kernels_in_background()
    images = check_experiment(experiment).fingerprint
    with exclusive(folder):
        joined = _claim_folder(experiment, folder, images)
        methods = [parse_method(text) for text in joined.methods]
        seeds = [SeedRun(joined, seed, folder / f"seed-{seed}") for seed in joined.seeds]
        n_episodes = sum(seed.n_episodes_to_train(methods) for seed in seeds)
        with progress.task(f"{joined.protocol}: episodes", n_episodes) as tick:
            if not alone:
                bases_first = [(some, seed) for some in ([BASE], methods) for seed in seeds]
                open_jobs = [job for some, seed in bases_first for job in seed.open_jobs(some)]
                if open_jobs:
                    run_jobs(folder.resolve(), open_jobs, launcher, tick)
            runs = [run for seed in seeds for run in seed.runs(methods, tick)]
        protocol = get_protocol(joined.protocol)
        record = Record(
            name=protocol.name,
            sentence=protocol.description + TESTED_ON[joined.test_on],
            config=to_dict(joined),
            splits={str(seed.seed): asdict(seed.benchmark.split) for seed in seeds},
            runs=tuple(runs),
            pairs=tuple(pair for seed in seeds for pair in seed.paired_differences(methods)),
            images=images,
        )
        record.save(folder / "record.json")
        return Record.load(folder / "record.json")  # exactly what later readers get


def _claim_folder(experiment: Experiment, folder: Path, images: str) -> Experiment:
    """The experiment joined with the methods and seeds that the folder already has.

    A folder belongs to one experiment on the same images: with other settings this raises.
    """
    path = folder / "experiment.json"
    if path.exists():
        experiment = _join(experiment, path, images)
    elif run := next(folder.glob("seed-*/*/**/run.json"), None):
        raise KedgeError(
            f"{path}: is missing, so the options with which {run} was made are unknown; use "
            "another --out."
        )
    settings = {
        **to_dict(experiment),
        "images": images,
        "rules": _rules(experiment),
        "format": RECORD_FORMAT,
    }
    write_text_atomically(path, json.dumps(settings, indent=1) + "\n")
    return experiment


def _rules(experiment: Experiment) -> dict[str, Any]:
    """What the methods' labels stand for in this version."""
    return {method.label: method.rules for method in map(parse_method, experiment.methods)}


class SavedExperiment(NamedTuple):
    """The experiment of a folder, and what else is saved beside its settings."""

    experiment: Experiment
    images: str | None  # their fingerprint; None in early versions
    rules: dict[str, Any]  # by the label of a method; empty in early versions
    format: int  # of its records


def read_experiment(path: Path) -> SavedExperiment:
    try:
        saved = parse_json(read_text(path))
        require(isinstance(saved, dict), "it holds no settings")
        images, format = saved.pop("images", None), saved.pop("format", 1)
        rules = saved.pop("rules", {})
        with suppress(LookupError, TypeError, AttributeError):  # from_dict names what is wrong
            saved["head"]["head"] = current_spec(saved["head"]["head"])
            saved["methods"] = [*map(current_spec, saved["methods"])]
        require(isinstance(rules, dict), "its rules are none")
        return SavedExperiment(from_dict(Experiment, saved), images, rules, format)
    except (OSError, ValueError, RecursionError, KedgeError) as error:
        raise KedgeError(f"{path}: damaged ({error}); use another --out.") from None


def _join(experiment: Experiment, path: Path, images: str) -> Experiment:
    earlier, saved_images, saved_rules, format = read_experiment(path)
    if saved_images not in (None, images):
        raise KedgeError(
            f"{path.parent}: holds an experiment on other images than "
            f"{experiment.data or experiment.protocol} has now; choose another folder with --out."
        )
    if renamed := (EARLIER_METHODS.keys() & set(earlier.methods) if format == 1 else ()):
        name = min(renamed)
        raise KedgeError(
            f"{path.parent}: began with an earlier version, where {name} was what is now "
            f"'{EARLIER_METHODS[name]}'; choose another folder with --out."
        )
    rules = _rules(earlier)
    if changed := [name for name in rules if saved_rules.get(name, rules[name]) != rules[name]]:
        raise KedgeError(
            f"{path.parent}: began with an earlier version, where '{changed[0]}' was another "
            "method; choose another folder with --out."
        )
    joined = replace(
        experiment,
        methods=tuple(dict.fromkeys([*earlier.methods, *experiment.methods])),
        seeds=tuple(dict.fromkeys([*earlier.seeds, *experiment.seeds])),
    )
    ours, theirs = _fixed_options(joined), _fixed_options(earlier)
    for option in ours:
        if ours[option] != theirs[option]:
            raise KedgeError(
                f"{path.parent}: holds an experiment with {option} {theirs[option]}, not "
                f"{ours[option]}; choose another folder with --out."
            )
    return joined


def _fixed_options(experiment: Experiment) -> dict[str, Any]:
    """The settings that all runs in a folder share, by their option."""
    settings = asdict(experiment)
    for name in ("methods", "seeds", "data"):
        del settings[name]
    for group in ("episode", "schedule", "backbone", "head"):
        settings |= settings.pop(group)
    protocol = {"protocol": settings.pop("protocol")}
    return protocol | {option_name(name): value for name, value in settings.items()}
