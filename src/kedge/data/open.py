"""Open images from any source: a data set on disk, a packed file, the embedded drawings, memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.data.decode import ImageSpec
from kedge.data.drawings import load_drawings
from kedge.data.index import ImageIndex
from kedge.data.pack import PackJob, pack_images
from kedge.data.parallel_decode import decode_to_table, infer_spec
from kedge.data.readers import read_index
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.utils import progress

EMBEDDED = {"drawings": load_drawings}
IN_MEMORY_BYTES = 1 << 30  # of pixels; more are packed into a file and stay there
WORTH_CACHING = 1 << 26  # bytes of pixels


def open_images(
    source: Any,
    image_size: int | None = None,
    n_channels: int | None = None,
    *,
    spec: ImageSpec | None = None,
    classes: Set[str] | None = None,
    cache: bool = False,
    photograph_size: int | None = None,
) -> ImageTable:
    """Images as a table of one size and number of channels.

    Args:
        source: a path of any form that `kedge data inspect` knows, a packed file or the name of
            embedded images; or in memory: a pair of images and labels, a mapping from class names
            to images, or a data set with `__len__` and `__getitem__` → (image, label).
        image_size, n_channels: inferred from the images by default.
        spec: decode images to this instead. Arrays and tensors are never inverted, since they may
            come from another table.
        classes: decode only images of these classes. A packed file is opened as a whole.
        photograph_size: side of photographs (in colour, 64 px or more) if `image_size` is not
            given; by default 84.
        cache: pack a large data set on disk once, for later calls. By default nothing is kept.
    """
    if isinstance(source, ImageTable):
        _check_shape(source, image_size, n_channels)
        return source
    if not isinstance(source, str | Path):
        from kedge.data.in_memory import index_in_memory

        index, cache = index_in_memory(source, spec is not None and spec.inverted), False
    elif (table := _open_table(source)) is not None:
        embedded = str(source) if is_embedded(source) else ""
        if spec is not None:
            image_size, n_channels = spec.image_size, spec.n_channels
        _check_shape(table, image_size, n_channels, embedded)
        if spec is not None and not embedded:
            _check_treatment(table, spec)
        ok = classes is None or bool(classes & set(table.classes))
        require(ok, f"{source}: holds none of the classes that are needed.")
        return table
    else:
        index = read_index(source)
    if classes is not None:
        index = index.select_classes(classes)
    if spec is None:
        spec = infer_spec(index, image_size, n_channels, photograph_size=photograph_size)
    return _decode(index, spec, cache)


def is_embedded(source: str | Path) -> bool:
    """Whether a source names images that come with kedge. A file of that name takes precedence."""
    return str(source) in EMBEDDED and not Path(source).exists()


def is_packed_file(path: Path) -> bool:
    """Whether a file begins like a safetensors file: the header's length, then JSON."""
    start = b""
    with suppress(OSError), open(path, "rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 27


def _open_table(source: str | Path) -> ImageTable | None:
    """Images that need no decoding, or None."""
    path = Path(source)
    if path.is_file() and is_packed_file(path):
        return ImageTable.load(path)
    if is_embedded(source):
        return EMBEDDED[str(source)]()
    require(
        path.exists(),
        f"{path}: there is nothing here; give a folder with one sub-folder of images per class, a "
        "data set in another form that 'kedge data inspect --help' lists, a packed image file, or "
        f"one of the embedded sets ({', '.join(EMBEDDED)}).",
    )
    return None


def _check_shape(
    table: ImageTable, image_size: int | None, n_channels: int | None, embedded: str = ""
) -> None:
    todo = f"pack the originals with --image-size {image_size}"
    require(
        image_size in (None, table.image_size),
        f"{embedded or table.source}: these images have {table.image_size} px and cannot be made "
        f"{image_size} px; {'choose other images' if embedded else todo}.",
    )
    kinds = {1: "grey", 3: "colour"}
    require(
        n_channels in (None, table.n_channels),
        f"{table.source}: these images are packed in {kinds[table.n_channels]}, but "
        f"{kinds.get(n_channels or 0, n_channels)} ones are needed.",
    )


def _check_treatment(table: ImageTable, spec: ImageSpec) -> None:
    """Packed pixels cannot be treated again, so they must have been treated as the spec says."""
    treated = {False: "as they are", True: "inverted (dark and bright exchanged)"}
    require(
        table.inverted == spec.inverted,
        f"{table.source}: these images are packed {treated[table.inverted]}, but the model was "
        f"trained on images {treated[spec.inverted]}; give the original images instead.",
    )
    if table.resize != spec.resize:
        progress.note(
            f"{table.source}: these images were made square by '{table.resize}', those that the "
            f"model was trained on by '{spec.resize}'; give the original images to treat them alike"
        )


def _decode(index: ImageIndex, spec: ImageSpec, cache: bool) -> ImageTable:
    job = PackJob(index, spec)
    if cache and job.n_bytes > WORTH_CACHING:
        name = f"{index.path.resolve().name}-{spec.image_size}px-{job.key[:12]}.images"
        cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        out = Path(os.environ.get("KEDGE_CACHE") or cache_home / "kedge") / name
        if not out.exists():
            progress.note(
                f"{index.path}: packed once into {out} ({job.n_bytes / 1e9:.1f} GB), by this "
                "process or another; it may be deleted at any time"
            )
        return pack_images(index, spec, out, timeout=-1.0)
    for remark in index.all_remarks:
        progress.note_once(f"{index.path}: {remark}")
    if job.n_bytes <= IN_MEMORY_BYTES:
        return decode_to_table(index, spec)
    # The table keeps the file open, so it can be read after the folder is deleted.
    with tempfile.TemporaryDirectory(prefix="kedge-") as folder:
        return pack_images(index, spec, Path(folder) / "images")
