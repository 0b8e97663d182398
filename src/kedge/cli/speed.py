"""The command that measures how fast kedge is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.table import Column, Table
from tyro.conf import Positional, arg

from kedge.cli.arguments import ImageSize, say
from kedge.cli.bench import SMALL
from kedge.config import BackboneConfig, EpisodeShape
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from kedge.data.table import ImageTable

PLAIN = {"as_it_comes": "plain loop", "with_settings": "tuned plain loop"}
NOISE_SIZE = 84  # px, as the paper's images have them


@dataclass(frozen=True)
class Speed:
    """Measure how fast kedge trains and tests on this machine, beside a plain loop.

    The plain loop is episodic training as it is usually written: image files, a DataLoader
    that decodes and changes them one by one with Pillow, an eager network in PyTorch's
    default precision, the loss read after every step, and a test that goes episode by
    episode. It runs in a process of its own, on the same images, network and episodes, and
    takes turns with kedge; of all turns the median counts. On a CPU a second one has
    kedge's settings for threads and memory, so that the code alone makes the difference.

    Without options: Conv-4 on the drawings that come with kedge, in two or three minutes.
    """

    data: Annotated[
        Positional[str | None],
        arg(
            metavar="[DATA]",
            help="Images in any form that 'kedge data inspect' knows, or a packed image file.",
            help_behavior_hint="(default: drawings)",
        ),
    ] = None
    noise: Annotated[
        str | None,
        arg(
            metavar="CLASSESxIMAGES",
            help="Measure on made up images instead of DATA: 64x600 are as many as "
            "miniImageNet's for training.",
            help_behavior_hint="(in colour, 84 px unless --image-size says otherwise)",
        ),
    ] = None
    image_size: ImageSize = None
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    backbone: BackboneConfig = SMALL
    seconds: float = 10.0
    """How long each single thing is measured."""
    workers: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Processes of the plain loop's DataLoader.",
            help_behavior_hint="(default: 4 on 8 cores or more, otherwise 2)",
        ),
    ] = None
    growth: bool = False
    """Also measure how time grows with classes, images, image size, ways and rounds."""
    out: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="Also write every number, the settings and the machine to this file, as JSON; an "
            "existing one is never overwritten.",
            help_behavior_hint="(default: none)",
        ),
    ] = None
    format: Literal["table", "json"] = "table"
    """A table for people, or all numbers as JSON."""

    def run(self, console: Console) -> None:
        if self.out is not None and self.out.exists():
            raise KedgeError(
                f"{self.out}: already exists and is not overwritten; choose another --out."
            )
        from kedge.speed import Setting, measure
        from kedge.training.step import load_compiler_in_background
        from kedge.utils import progress
        from kedge.utils.atomic_io import write_atomically

        setting = Setting(self.seconds, self.workers, self.growth)
        with progress.display():
            load_compiler_in_background()
            record = measure(self._images(), self.backbone, self.episode, setting)
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        if self.out is not None:
            write_atomically(self.out, lambda part: part.write_text(text, encoding="utf-8"))
        if self.format == "json":
            print(text, end="")
        else:
            show(console, record)

    def _images(self) -> ImageTable:
        from kedge.data.open import open_images
        from kedge.speed.subject import noise

        if self.noise is None:
            return open_images(self.data or "drawings", self.image_size)
        if self.data is not None:
            raise KedgeError(
                f"--noise takes the place of DATA: leave out '{self.data}' or --noise."
            )
        size = NOISE_SIZE if self.image_size is None else self.image_size
        found = re.fullmatch(r"(\d{1,6})x(\d{1,6})", self.noise, re.ASCII)
        numbers = [int(number) for number in found.groups()] if found else [0]
        if not all(numbers) or not 16 <= size <= 4096:
            raise KedgeError(
                f"--noise '{self.noise}' of {size} px: write classes x images per class, such as "
                "64x600, and a side of 16 to 4096 px."
            )
        return noise(numbers[0], numbers[1], size, 3)


def show(console: Console, record: dict[str, Any]) -> None:
    kedge, plain = record["kedge"], record["plain"]
    columns = {"kedge, FT": kedge["FT"], "kedge, IDA": kedge["IDA"]}
    columns |= {title: plain[name] for name, title in PLAIN.items() if name in plain}
    right = [Column(title, justify="right") for title in columns]
    table = Table("training", *right, title=_title(record), title_justify="left")
    lines = {
        "ms per step": ("ms_per_step", "{:.1f}"),
        "episodes/s": ("episodes_per_s", "{:.1f}"),
        "images/s": ("images_per_s", "{:,.0f}"),
        "TFLOP/s": ("tflops", "{:.3g}"),
        "part of the limit": ("part_of_limit", "{:.1%}"),
        "first step done after, s": ("first_step_s", "{:.1f}"),
    }
    for title, (key, form) in lines.items():
        table.add_row(title, *(form.format(c[key]) if key in c else "" for c in columns.values()))
    console.print(table)
    for sentence in _sentences(record):
        say(console, sentence)
    if "growth" in record:
        console.print(_growth(record["growth"]))


def _title(record: dict[str, Any]) -> str:
    network, images, shape = record["network"], record["images"], record["episode"]
    pace = record["kedge"]["pace"]
    ways = [name for name in ("compiled", "captured") if pace[name]]
    how = ", ".join(["bf16" if pace["bf16"] else "fp32", *ways])
    return (
        f"{network['backbone']} of width {network['width']}, {images['image_size']} px, "
        f"{shape['n_way']}-way {shape['n_shot']}-shot, {record['images_per_step']} images a step; "
        f"{record['device']}, {how}"
    )


def _sentences(record: dict[str, Any]) -> list[str]:
    kedge, plain, ratio, limit = (record[k] for k in ("kedge", "plain", "ratio", "limit"))
    n, images = record["test_episodes"], record["images"]["tested"]
    tested = f"{n} test episodes of {images[0]} classes, {images[1]} images"
    names = [name for name in PLAIN if name in ratio]
    scaled = min(plain[name]["evaluation_scaled_from"] for name in names)
    theirs = ", ".join(f"{PLAIN[name]} {plain[name]['evaluation_s']:.0f} s" for name in names)
    memory = ", ".join(
        f"{kedge['peak_memory'][key]:,.0f} MiB {where}"
        for key, where in (("resident_mb", "resident"), ("gpu_mb", "on the GPU"))
        if key in kedge["peak_memory"]
    )
    said = [
        f"{tested}: kedge {kedge['evaluation_s']:.2f} s, {theirs} (scaled from {scaled} episodes "
        "or more).",
        *(
            f"kedge is {ratio[name]['training']:.1f} times as fast as the {PLAIN[name]} in training"
            f" (FT), {ratio[name]['evaluation']:.0f} times in evaluation."
            for name in names
        ),
        f"An IDA step takes {ratio['IDA_over_FT']:.2f} times as long as an FT step.",
        f"The limit is the best matrix product here: {limit['tflops']:.3g} TFLOP/s in "
        f"{limit['precision']}.",
        f"Peak memory of kedge in training: {memory}.",
        f"The plain loop: num_workers={plain['workers']}, {plain['precision']}.",
    ]
    if "with_settings" in names:
        said.append("The tuned one has kedge's settings for threads and memory.")
    return said


def _growth(rows: list[dict[str, Any]]) -> Table:
    right = [Column(title, justify="right") for title in ("sizes", "times", "exponent")]
    title = "How time grows (a round adds 64 anchors)"
    table = Table("with", "time of", *right, title=title, title_justify="left")
    for row in rows:
        sizes = " · ".join(map(str, row["sizes"]))
        costs = " · ".join(f"{cost:.3g}" for cost in row["costs"])
        table.add_row(row["against"], row["cost"], sizes, costs, f"{row['exponent']:.2f}")
    return table
