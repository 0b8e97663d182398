"""Commands that say what images are there, and pack them."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from kedge.cli.arguments import (
    Data,
    as_json,
    say,
)
from kedge.errors import KedgeError
from kedge.utils.progress import printable
from kedge.utils.text import sized

if TYPE_CHECKING:
    from kedge.data.index import ImageIndex
    from kedge.data.inspect import Inspection


@dataclass(frozen=True)
class Inspect:
    """Say what images are there: classes, sizes, split, and what is wrong with them.

    The form is found out from the files. Known are, as folders, in a .zip or .tar or as they are:

    - CLASS/IMAGE and {train,val,test}/CLASS/IMAGE, images of any type and size
    - a CSV or JSON Lines file of images and classes, Ravi's miniImageNet lists among them
    - Parquet files of images, as Hugging Face has them
    - miniImageNet: mini-imagenet-cache-*.pkl, miniImageNet_category_split_*.pickle
    - tieredImageNet: *_images_png.pkl or *_images.npz with *_labels.pkl
    - CIFAR-FS: CIFAR_FS_*.pickle, cifar100/data with its splits; CIFAR-100: cifar-100-python
    - Omniglot: images_background and images_evaluation
    - Tiny-ImageNet: tiny-imagenet-200
    - what 'kedge data pack' wrote

    Nothing is changed, and nothing that a file holds is ever run.
    """

    data: Positional[Data]
    all: bool = False
    """Decode every image, not 10,000 of them, to find each damaged one and each exact copy."""
    format: Literal["table", "json"] = "table"
    """A table for people, or one JSON object for programs."""

    def run(self, console: Console) -> None:
        from kedge.utils import progress

        with progress.display():
            examination = _examined(self.data, self.all)
        if self.format == "json":
            print(as_json(asdict(examination), indent=1))
        else:
            _show(console, examination)


@dataclass(frozen=True)
class Pack:
    """Decode all images once, into one file that every command takes as DATA.

    The originals are only read. Images that cannot be read are counted, named and left out. A
    stopped command continues when it is given again; when the file is there, it says so at once.
    """

    data: Positional[Data]
    out: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="The file to write; an existing one is never overwritten.",
            help_behavior_hint="(default: NAME-SIZEpx.images in this folder)",
        ),
    ] = None
    image_size: Annotated[
        int | None,
        arg(
            metavar="PIXELS",
            help="Side to which images are brought, with antialiasing.",
            help_behavior_hint="(default: that of small images, 84 for large ones)",
        ),
    ] = None
    channels: Literal["auto", "grey", "colour"] = "auto"
    """Whether to pack grey or colour images; by itself grey, if 200 of them, spread evenly, are."""
    fit: Literal["crop", "stretch"] = "crop"
    """Of an image that is not square: the square in its middle, or all of it, straightened."""
    without: Annotated[
        tuple[str, ...],
        arg(
            metavar="CLASS ...",
            help="Classes to leave out, such as BACKGROUND_Google.",
            help_behavior_hint="(default: none)",
        ),
    ] = ()

    def run(self, console: Console) -> None:
        from kedge.data.open import (
            is_embedded,
            is_store,
            open_images,
        )
        from kedge.data.pack import pack
        from kedge.data.parallel_decode import suited
        from kedge.data.readers import read_index
        from kedge.utils import progress

        path = Path(self.data)
        if is_store(path) or is_embedded(self.data):
            open_images(self.data)  # a sentence, if it is another file of that kind
            raise KedgeError(f"{self.data}: these images are packed already.")
        with progress.display():
            found = _without(read_index(path), self.without)
            channels = {"auto": None, "grey": 1, "colour": 3}[self.channels]
            look = suited(found, self.image_size, channels, self.fit)
            out = self.out or Path(f"{_stem(path)}-{look.image_size}px.images")
            there = out.exists()
            table = pack(found, look, out)
        remarks = _about(out).get("remarks", [])
        for remark in map(str, remarks) if isinstance(remarks, list) else ():
            print(f"kedge: {printable(remark, one_line=True)}.", file=sys.stderr)
        size = out.stat().st_size
        say(
            console,
            f"{out}: {len(table):,} images of {len(table.classes):,} classes, "
            f"{table.n_channels}×{table.image_size}×{table.image_size}, {sized(size)}"
            + (", packed before" if there else ""),
        )


def _stem(path: Path) -> str:
    """Without the ending of a file; a folder has none, whatever its name."""
    path = path.resolve()
    if not path.is_file():
        return path.name or "images"
    return path.stem[:-4] if path.stem.lower().endswith(".tar") else path.stem


def _without(found: ImageIndex, given: tuple[str, ...]) -> ImageIndex:
    from kedge.utils.text import plain_name

    names = [plain_name(name) for name in given]
    unknown = [name for name in names if name not in found.classes]
    if unknown:
        raise KedgeError(f"--without: {found.path} has no class '{unknown[0]}'.")
    if not names:
        return found
    kept = set(found.classes) - set(names)
    if not kept:
        raise KedgeError(f"--without: these are all classes of {found.path}; leave some to pack.")
    return found.only(kept)


def _about(path: Path) -> dict[str, object]:
    from kedge.utils.atomic_io import load_tensors

    return load_tensors(path, "packed image file")[0]


def _examined(data: str, everything: bool) -> Inspection:
    from kedge.data.inspect import inspect_index, inspect_table
    from kedge.data.open import is_store, open_images
    from kedge.data.readers import read_index

    path = Path(data)
    if path.is_file() and is_store(path):
        return inspect_table(open_images(path), _about(path), path.stat().st_size)
    if path.exists():
        return inspect_index(read_index(path), everything)
    table = open_images(data)  # embedded, or a sentence that nothing is there
    return inspect_table(table, {}, table.images.numel())


def _show(console: Console, found: Inspection) -> None:
    say(console, f"{found.path}: {found.form}")
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    rows.add_row("  classes", f"{found.n_classes:,}")
    rows.add_row("  images", f"{found.n_images:,}")
    rows.add_row("  per class", escape(printable(_per_class(found), one_line=True)))
    rows.add_row("  size", _sizes(found))
    rows.add_row("  split", escape(_split(found)))
    look, colour = found.look, "grey" if found.look.n_channels == 1 else "colour"
    packed = f"{look.image_size} px, {colour}{', inverted' if look.inverted else ''}"
    rows.add_row("  packed", f"{packed}: {sized(found.n_bytes)}")
    console.print(rows)
    seen = (
        "all images were looked at"
        if found.n_seen >= found.n_images
        else f"{found.n_seen:,} of the images were looked at, --all looks at each"
    )
    if not found.remarks:
        say(console, f"  Nothing is wrong with it ({seen}).")
        return
    say(console, f"  What is wrong with it, or worth knowing ({seen}):")
    for remark in found.remarks:
        say(console, f"  - {printable(remark, one_line=True)}.")


def _per_class(found: Inspection) -> str:
    if found.least == found.most:
        return f"{found.least:,}, all alike"
    median = f"{found.median:,.1f}".removesuffix(".0")
    return (
        f"least {found.least:,} ({found.smallest_class}), median {median}, "
        f"most {found.most:,} ({found.largest_class})"
    )


def _sizes(found: Inspection) -> str:
    if len(found.sizes) == 1:
        return f"{next(iter(found.sizes))} px"
    if not found.sizes:
        return "none could be read"
    sides = [tuple(map(int, size.split("×"))) for size in found.sizes]
    low, high = (f"{pick(w for w, _ in sides)}×{pick(h for _, h in sides)}" for pick in (min, max))
    return (
        f"from {low} to {high} px, {len(found.sizes)} sizes, most often {next(iter(found.sizes))}"
    )


def _split(found: Inspection) -> str:
    if not found.parts:
        return "none"
    return ", ".join(
        f"{part.name} {part.n_images:,} images of {part.n_classes:,} "
        f"{'class' if part.n_classes == 1 else 'classes'}"
        for part in found.parts
    )
