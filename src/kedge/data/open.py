"""Images from wherever they are: any form on disk, a store, the embedded drawings, or memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import Any

from kedge.data.decode import ImageSpec
from kedge.data.drawings import load_drawings
from kedge.data.index import ImageIndex
from kedge.data.pack import Packing, pack
from kedge.data.parallel_decode import in_memory, suited
from kedge.data.readers import read_index
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils import progress

EMBEDDED = {"drawings": load_drawings}
IN_MEMORY = 1 << 30  # bytes of pixels; more are packed into a file and stay there
WORTH_KEEPING = 1 << 26  # bytes of pixels


def open_images(
    source: Any,
    image_size: int | None = None,
    n_channels: int | None = None,
    *,
    look: ImageSpec | None = None,
    classes: Set[str] | None = None,
    keep: bool = False,
) -> ImageTable:
    """Images as a table, brought to a size and channels, which follow from them if not given.

    `source` is a path of any form that `kedge data inspect` knows, a packed file, or the name of
    embedded images; or in memory: a pair of images and labels, a mapping from class names to
    images, or a data set with `__len__` and `__getitem__` → (image, label).

    With a `look` they are brought to that, whatever would suit them; but arrays and tensors are
    never inverted, since they may come from another table. Only those of `classes` are decoded, if
    given; what is packed is taken whole. With `keep` a large set on disk is packed once and found
    again by the next call; otherwise nothing is left behind.
    """
    if isinstance(source, ImageTable):
        _check(source, image_size, n_channels)
        return source
    if not isinstance(source, str | Path):
        from kedge.data.in_memory import index_in_memory

        found, keep = index_in_memory(source, look is not None and look.inverted), False
    elif (table := _ready(source)) is not None:
        embedded = str(source) if is_embedded(source) else ""
        _check(
            table,
            *((image_size, n_channels) if look is None else (look.image_size, look.n_channels)),
            embedded=embedded,
        )
        if look is not None and not embedded:
            _check_treatment(table, look)
        if classes is not None and not classes & set(table.classes):
            raise KedgeError(f"{source}: none of the classes that are needed is here.")
        return table
    else:
        found = read_index(source)
    if classes is not None:
        found = found.only(classes)
    return _decoded(found, look or suited(found, image_size, n_channels), keep)


def is_embedded(source: str | Path) -> bool:
    """Whether images that come with kedge are meant; what lies here under their name goes first."""
    return str(source) in EMBEDDED and not Path(source).exists()


def is_store(path: Path) -> bool:
    """Whether a file begins as a safetensors file does: the header's length, then JSON."""
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError:
        return False
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 27


def cache_folder() -> Path:
    """Where stores are kept that nobody has given a name: $KEDGE_CACHE if it is set."""
    if chosen := os.environ.get("KEDGE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kedge"


def _ready(source: str | Path) -> ImageTable | None:
    """Images that need no decoding."""
    path = Path(source)
    if path.is_file() and is_store(path):
        return ImageTable.load(path)
    if is_embedded(source):
        return EMBEDDED[str(source)]()
    if not path.exists():
        raise KedgeError(
            f"{path}: nothing is there; give a folder with one sub-folder of images per class, a "
            "data set in another form that 'kedge data inspect --help' lists, a packed image "
            f"file, or one of the embedded sets ({', '.join(EMBEDDED)})."
        )
    return None


def _check(
    table: ImageTable, image_size: int | None, n_channels: int | None, embedded: str = ""
) -> None:
    if image_size not in (None, table.image_size):
        if embedded:  # there are no originals to pack
            raise KedgeError(
                f"{embedded}: these images come with kedge at {table.image_size} px and cannot be "
                f"brought to {image_size} px; use {table.image_size} px, or other images."
            )
        raise KedgeError(
            f"{table.source}: these images are packed at {table.image_size} px and cannot be "
            f"brought to {image_size} px; pack the originals with --image-size {image_size}."
        )
    if n_channels not in (None, table.n_channels):
        kinds = {1: "grey", 3: "colour"}
        raise KedgeError(
            f"{table.source}: these images are packed in {kinds[table.n_channels]}, but "
            f"{kinds.get(n_channels or 0, n_channels)} ones are needed."
        )


def _check_treatment(table: ImageTable, look: ImageSpec) -> None:
    """Packed pixels stay as they are, so they must have been treated as the look says."""
    if table.inverted != look.inverted:
        how = {False: "as they are", True: "with dark and bright exchanged"}
        raise KedgeError(
            f"{table.source}: these images are packed {how[table.inverted]}, but the model was "
            f"trained on images {how[look.inverted]}; give the originals, which are then treated "
            "as those were."
        )
    if table.fit != look.fit:
        progress.note(
            f"{table.source}: here pictures became squares by {table.fit}, in training by "
            f"{look.fit}; give the originals to have them treated alike"
        )


def _decoded(found: ImageIndex, look: ImageSpec, keep: bool) -> ImageTable:
    packing = Packing(found, look)
    if keep and packing.n_bytes > WORTH_KEEPING:
        name = f"{found.path.resolve().name}-{look.image_size}px-{packing.key[:12]}.images"
        out = cache_folder() / name
        if not out.exists():
            progress.note(
                f"{found.path}: packed once into {out} ({packing.n_bytes / 1e9:.1f} GB), by this "
                "process or another; it may be deleted at any time"
            )
        return pack(found, look, out, patience=-1.0)  # without end
    for remark in found.noticed:
        progress.remark(f"{found.path}: {remark}")
    if packing.n_bytes <= IN_MEMORY:
        return in_memory(found, look)
    with tempfile.TemporaryDirectory(prefix="kedge-") as folder:  # open, it outlives its name
        return pack(found, look, Path(folder) / "images")
