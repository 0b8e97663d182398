"""Commands that inspect images and pack them into one file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    Data,
    ImageSize,
    Json,
    ReadingArguments,
    as_json,
    load_pytorch,
    option,
    say,
)
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.progress import printable
from kedge.utils.text import format_bytes, pluralize

if TYPE_CHECKING:
    from kedge.data.delivery import Delivery
    from kedge.data.index import ImageIndex
    from kedge.data.inspect import Inspection


@dataclass(frozen=True)
class Inspect:
    """Describe images on disk: classes, sizes, split, and what is wrong with them.

    The format is detected from the files. These are known, as folders, in a .zip or .tar, or bare:

    - CLASS/IMAGE and {train,val,test}/CLASS/IMAGE, images of any type and size
    - a CSV or JSON Lines file of images and classes, Ravi's miniImageNet lists among them
    - Parquet files of images, as Hugging Face datasets write them
    - miniImageNet: mini-imagenet-cache-*.pkl, miniImageNet_category_split_*.pickle
    - tieredImageNet: *_images_png.pkl or *_images.npz with *_labels.pkl
    - CIFAR-FS: CIFAR_FS_*.pickle, cifar100/data with its splits; CIFAR-100: cifar-100-python
    - Omniglot: images_background and images_evaluation
    - Tiny-ImageNet: tiny-imagenet-200
    - packed image files, written by 'kedge data pack'

    Nothing is changed, and no code in any file is ever executed.
    """

    data: Positional[Data]
    all: bool = False
    """Decode every image, not only 10,000, to find every damaged image and every copy."""
    strict: Annotated[
        FlagCreatePairsOff[bool],
        arg(help="End with 1 if there is any problem that can spoil a model."),
    ] = False
    reading: ReadingArguments = field(default_factory=ReadingArguments)
    json: Json = False

    def run(self, console: Console) -> None:
        from kedge.data.remarks import refuse_problems

        load_pytorch(images=[self.data])
        with progress.display():
            inspection = _inspection(self.reading.delivery(self.data), self.all)
        if self.json:
            print(as_json(inspection.to_dict(), indent=1))
        else:
            _show(console, inspection)
        if self.strict:
            refuse_problems(self.data, inspection.remarks)


@dataclass(frozen=True)
class Pack:
    """Decode all images once, into one file that every command takes as DATA.

    The originals are not changed. Images that cannot be read are counted, named and left out. A
    stopped command continues when it is given again.
    """

    data: Positional[Data]
    out: Annotated[Path | None, option("FILE", "NAME-SIZEpx.images in this folder")] = None
    """The file to write; an existing one is never overwritten."""
    image_size: ImageSize = None
    channels: Literal["auto", "grey", "colour"] = "auto"
    """Grey or colour; auto is grey if 200 images, evenly spread, all are."""
    resize: Literal["crop", "stretch"] = "crop"
    """What to take of an image that is not square: the centre square, or all of it, distorted."""
    exclude: Annotated[tuple[str, ...], option("CLASS ...", "none")] = ()
    """Classes to leave out, such as BACKGROUND_Google."""
    reading: ReadingArguments = field(default_factory=ReadingArguments)

    def run(self, console: Console) -> None:
        load_pytorch(images=[self.data])
        from kedge.data.delivery import is_embedded
        from kedge.data.open import is_packed_file, open_images, open_index
        from kedge.data.pack import pack_images
        from kedge.data.parallel_decode import infer_spec
        from kedge.data.remarks import kind_of, tell

        path = Path(self.data)
        if is_packed_file(path) or is_embedded(self.data):
            with progress.display(hidden=True):
                open_images(self.data)  # raises if it is damaged
            raise KedgeError(f"{self.data}: these images are already packed.")
        with progress.display():
            index = _excluded(open_index(self.reading.delivery(path)), self.exclude)
            channels = {"auto": None, "grey": 1, "colour": 3}[self.channels]
            spec = infer_spec(index, self.image_size, channels, self.resize)
            out = self.out or Path(f"{_stem(path)}-{spec.image_size}px.images")
            existed = out.exists()
            table = pack_images(index, spec, out)
            names = [remark for remark in index.remarks if kind_of(remark) == "name"]
            tell(path, (*names, *table.remarks))
        size, side = format_bytes(out.stat().st_size), table.image_size
        counts = f"{len(table):,} images of {len(table.classes):,} classes"
        earlier = ", packed earlier" if existed else ""
        say(console, f"{out}: {counts}, {table.n_channels}×{side}×{side}, {size}{earlier}")


def _stem(path: Path) -> str:
    """The name without a file's suffixes; a folder's name has none."""
    path = path.resolve()
    if not path.is_file():
        return path.name or "images"
    return path.stem[:-4] if path.stem.lower().endswith(".tar") else path.stem


def _excluded(index: ImageIndex, given: tuple[str, ...]) -> ImageIndex:
    from kedge.utils.text import normalize_name

    names = {normalize_name(name) for name in given}
    if unknown := sorted(names - set(index.classes)):
        raise KedgeError(f"--exclude: {index.path} has no class '{unknown[0]}'.")
    if names >= set(index.classes):
        raise KedgeError(f"--exclude: these are all classes of {index.path}; leave some to pack.")
    return index.select_classes(set(index.classes) - names) if names else index


def _about(path: Path) -> dict[str, object]:
    from kedge.utils.atomic_io import load_tensors

    return load_tensors(path, "packed image file")[0]


def _inspection(delivery: Delivery, everything: bool) -> Inspection:
    from kedge.data.inspect import inspect_index, inspect_table
    from kedge.data.open import is_packed_file, open_index, open_table, settle_names

    table, path = open_table(delivery), Path(delivery.images)
    if table is None:
        return inspect_index(open_index(delivery), everything)
    table = settle_names(delivery, table)
    if is_packed_file(path):
        return inspect_table(table, _about(path), path.stat().st_size)
    return inspect_table(table, {}, table.images.numel())  # embedded


def _show(console: Console, found: Inspection) -> None:
    from kedge.data.remarks import list_lines

    spec, colour = found.spec, "grey" if found.spec.n_channels == 1 else "colour"
    packed = f"{spec.image_size} px, {colour}{', inverted' if spec.inverted else ''}"
    parts = (
        f"{part.name} {part.n_images:,} images of {pluralize(part.n_classes, 'class', 'classes')}"
        for part in found.parts
    )
    lines = {
        "classes": f"{found.n_classes:,}",
        "images": f"{found.n_images:,}",
        "per class": _per_class(found),
        "size": _sizes(found),
        "split": ", ".join(parts) or "none",
        "as packed": f"{packed}: {format_bytes(found.n_bytes)}",
    }
    say(console, f"{found.path}: {found.form}")
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for title, text in lines.items():
        rows.add_row(f"  {title}", escape(printable(text, one_line=True)))
    console.print(rows)
    seen = f"{found.n_seen:,} of the images were examined; --all examines each"
    if found.n_seen >= found.n_images:
        seen = "all images were examined"
    counts, *remarks = list_lines(found.remarks)
    for line in (f"{found.path}: {counts} ({seen})", *remarks):
        say(console, line)


def _per_class(found: Inspection) -> str:
    if found.least == found.most:
        return f"{found.least:,} each"
    least, most = f"{found.least:,} ({found.smallest_class})", f"{found.most:,}"
    median = f"{found.median:,.1f}".removesuffix(".0")
    return f"least {least}, median {median}, most {most} ({found.largest_class})"


def _sizes(found: Inspection) -> str:
    if not found.sizes:
        return "none could be read"
    most_often, n = next(iter(found.sizes)), len(found.sizes)
    if n == 1:
        return f"{most_often} px"
    widths, heights = zip(*(map(int, size.split("×")) for size in found.sizes), strict=True)
    low, high = (f"{pick(widths)}×{pick(heights)}" for pick in (min, max))
    return f"from {low} to {high} px, {n} sizes, most often {most_often}"
