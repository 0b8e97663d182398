"""`kedge speed`: how fast this machine trains and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Column, Table
from tyro.conf import Positional, arg

from kedge.cli.arguments import ImageSize, Json, as_json, load_pytorch, option, say
from kedge.cli.bench import SMALL
from kedge.config import BackboneConfig, EpisodeShape
from kedge.errors import KedgeError
from kedge.utils import progress


@dataclass(frozen=True)
class Speed:
    """Measure how fast this machine trains and tests.

    Reports training steps (fine-tuning and IDA), the time of 2000 test episodes, the device
    and how the step is executed. Without options: Conv-4 on the embedded drawings, in less
    than a minute. For the paper's network: --image-size 84 --backbone resnet12 --width 64.
    """

    data: Annotated[Positional[str], arg(metavar="[DATA]")] = "drawings"
    """Images in any form that 'kedge data inspect' knows, or a packed image file."""
    image_size: ImageSize = None
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    backbone: BackboneConfig = SMALL
    seconds: float = 10.0
    """Time for each measurement."""
    out: Annotated[Path | None, option("FILE", "none")] = None
    """Also write the record to this file, as JSON; an existing one is never overwritten."""
    json: Json = False

    def run(self, console: Console) -> None:
        if self.out is not None and self.out.exists():
            raise KedgeError(f"{self.out}: already exists; choose another --out.")
        load_pytorch(images=[self.data])
        from kedge.data.open import open_images
        from kedge.training.speed import measure
        from kedge.training.step import build_kernels_in_background
        from kedge.utils.atomic_io import write_text_atomically

        with progress.display():
            build_kernels_in_background()
            table = open_images(self.data, self.image_size)
            record = measure(table, self.backbone, self.episode, self.seconds)
        text = as_json(record, indent=1)
        if self.out is not None:
            write_text_atomically(self.out, f"{text}\n", replace=False)
        if self.json:
            print(text)
        else:
            show(console, record)


def show(console: Console, record: dict[str, Any]) -> None:
    training, evaluation, execution = (record[k] for k in ("training", "evaluation", "execution"))
    precision = "bf16" if execution["bf16"] else "fp32"
    mode = [precision, *(name for name in ("compiled", "fused", "captured") if execution[name])]
    title = "{backbone} of width {width}".format(**record["backbone"])
    title += f", {record['images']['image_size']} px; {record['device']}, {', '.join(mode)}"
    right = [Column(f"{method} step", justify="right") for method in training]
    table = Table("training", *right, title=title, title_justify="left")
    for label, key, form in (
        ("episodes/s", "episodes_per_s", "{:.1f}"),
        ("images/s", "images_per_s", "{:,.0f}"),
        ("first step, s", "first_step_s", "{:.1f}"),
    ):
        table.add_row(label, *(form.format(rates[key]) for rates in training.values()))
    console.print(table)
    say(console, f"{evaluation['episodes']} test episodes: {evaluation['seconds']:.2f} s.")
