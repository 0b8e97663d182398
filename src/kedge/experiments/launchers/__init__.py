"""Launchers by name, and how an option names one: 'local:4', 'slurm:gpu gpus=1', 'ray:auto'."""

from __future__ import annotations

from kedge.errors import KedgeError
from kedge.experiments.launchers.base import Launcher
from kedge.experiments.launchers.local import LocalLauncher
from kedge.experiments.launchers.ray import RayLauncher
from kedge.experiments.launchers.slurm import SlurmLauncher
from kedge.utils.spec import check_options, keyword_defaults, parse_spec

# Each is a class of what follows the colon, and of its options.
LAUNCHERS: dict[str, type[Launcher]] = {
    "local": LocalLauncher,
    "slurm": SlurmLauncher,
    "ray": RayLauncher,
}


def parse_launcher(text: str) -> Launcher:
    """The launcher of a text such as 'slurm:gpu cpus=8 gpus=1'. Raises KedgeError."""
    spec = parse_spec(text, "--on")
    name, _, where = spec.name.partition(":")
    if name not in LAUNCHERS:
        raise KedgeError(f"--on '{text}': there is no '{name}'; use {', '.join(LAUNCHERS)}.")
    kind = LAUNCHERS[name]
    check_options(spec, keyword_defaults(kind), "--on")
    build: type = kind
    launcher: Launcher = build(where, **spec.options)
    return launcher
