"""Open images from any source: a data set on disk, a packed file, the embedded drawings, memory."""

from __future__ import annotations

import tempfile
from collections.abc import Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kedge.data.class_names import SameClassArgument
from kedge.data.decode import ImageSpec
from kedge.data.delivery import ClassFolders, Delivery, check_exists, is_embedded
from kedge.data.drawings import load_drawings
from kedge.data.index import ImageIndex
from kedge.data.pack import PackJob, pack_images
from kedge.data.parallel_decode import decode_to_table, infer_spec
from kedge.data.readers import read_index
from kedge.data.remarks import few_images, kind_of, refuse_problems, tell
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.utils import progress
from kedge.utils.env import cache_folder
from kedge.utils.regular_file import open_regular

T = TypeVar("T", ImageIndex, ImageTable)
IN_MEMORY_BYTES = 1 << 30  # of pixels; more are packed into a file and stay there
WORTH_CACHING = 1 << 26  # bytes of pixels
FEW_IMAGES = 5  # of a class that is trained on; fewer are remarked upon


@progress.shown
def open_images(
    source: Any,
    image_size: int | None = None,
    n_channels: int | None = None,
    *,
    spec: ImageSpec | None = None,
    only_classes: Set[str] | None = None,
    cache: bool = False,
    photograph_size: int | None = None,
    classes: ClassFolders | None = None,
    same_class: SameClassArgument = None,
    strict: bool = False,
) -> ImageTable:
    """Images as a table of one size and number of channels.

    What is remarkable about them is told in one list, and kept in the table's `remarks`.

    Args:
        source: a path of any form that `kedge data inspect` knows, a packed file or the name of
            embedded images; or in memory: a pair of images and labels, a mapping from class names
            to images, a data set with `__len__` and `__getitem__` → (image, label), or PyTorch's
            DataLoader of batches (images, labels).
        image_size, n_channels: inferred from the images by default.
        spec: decode images to this instead. Arrays and tensors are never inverted, since they may
            come from another table.
        only_classes: decode only images of these classes. A packed file is opened as a whole.
        photograph_size: side of photographs (in colour, 64 px or more) if `image_size` is not
            given; by default 84.
        cache: pack a large data set on disk once, for later calls. By default nothing is kept.
        classes: which of nested folders are the classes: "top" (the outer ones), "leaf" (the inner
            ones, of which those with the same name are one class) or "path" (the inner ones, with
            the outer ones in their names).
        same_class: {"A": "B"} gives the class A the name B; "all" says that names which are almost
            the same are the same classes, "none" that they are not.
        strict: raise KedgeError if a remark is on something that can spoil a model.
    """
    delivery = Delivery.of(source, classes, same_class, strict)
    told: tuple[str, ...] = ()
    if (table := open_table(delivery)) is not None:
        _check_ready(delivery, table, image_size, n_channels, spec, only_classes)
        _tell_classes_option(delivery, table.source)
        if delivery.path is None:  # a table, whose remarks were told when it was opened
            told = table.remarks
        table = settle_names(delivery, table)
    else:
        arrays_inverted = spec is not None and spec.inverted
        index = open_index(delivery, arrays_inverted)
        if only_classes is not None:
            index = index.select_classes(only_classes)
        if spec is None:
            spec = infer_spec(index, image_size, n_channels, photograph_size=photograph_size)
        table = _decode(index, spec, cache and delivery.path is not None)
    few = few_images(table.counts.tolist(), table.classes, FEW_IMAGES) if delivery.ask else ()
    name = delivery.path or table.source  # large images may lie in a temporary file
    remarks = [remark for remark in (*table.remarks, *few) if remark not in told]
    if not delivery.labelled:
        remarks = [remark for remark in remarks if kind_of(remark) == "lost"]
    tell(name, remarks)
    if delivery.strict:
        refuse_problems(name, table.remarks)
    return table


def open_index(delivery: Delivery, arrays_inverted: bool = False) -> ImageIndex:
    """The images of a delivery before decoding, with the class names that the user wants.

    `arrays_inverted`: see `InMemoryImages`.
    """
    if delivery.path is None:
        from kedge.data.in_memory import index_in_memory

        index = index_in_memory(delivery.images, arrays_inverted)
        _tell_classes_option(delivery, index.path)
    else:
        index = read_index(delivery.path, delivery.classes)
    return settle_names(delivery, index)


def settle_names(delivery: Delivery, images: T) -> T:
    """The images with the class names that the user wants, and a remark on names that are alike."""
    source = images.path if isinstance(images, ImageIndex) else images.source
    names: list[str]
    alike: tuple[str, ...]
    names, alike = delivery.settle_names(source, images.classes, images.counts.tolist())
    settled: Any = images if names == list(images.classes) else images.rename(names)
    if delivery.images is images and not delivery.ask:  # a table whose names were settled before
        return settled
    return replace(settled, remarks=(*images.remarks, *alike)) if alike else settled


def _tell_classes_option(delivery: Delivery, source: object) -> None:
    if delivery.classes is not None:
        progress.note_once(f"{source}: --classes has no effect, since these are no folders")


def is_packed_file(path: Path) -> bool:
    """Whether a file begins like a safetensors file: the header's length, then JSON."""
    start = b""
    with suppress(OSError), open_regular(path) as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 27


def open_table(delivery: Delivery) -> ImageTable | None:
    """Images that need no decoding, with the class names that the file has; or None."""
    source = delivery.images
    if isinstance(source, ImageTable):
        return source
    if not isinstance(source, str | Path):
        return None
    path = Path(source)
    if path.is_file() and is_packed_file(path):
        return ImageTable.load(path)
    if is_embedded(source):
        return load_drawings()
    check_exists(source)
    return None


def _check_ready(
    delivery: Delivery,
    table: ImageTable,
    image_size: int | None,
    n_channels: int | None,
    spec: ImageSpec | None,
    only_classes: Set[str] | None,
) -> None:
    """Raise if images that need no decoding are not as they are needed."""
    if delivery.path is None:  # a table
        _check_shape(table, image_size, n_channels)
        return
    embedded = str(delivery.path) if is_embedded(delivery.path) else ""
    if spec is not None:
        image_size, n_channels = spec.image_size, spec.n_channels
    _check_shape(table, image_size, n_channels, embedded)
    if spec is not None and not embedded:
        _check_treatment(table, spec)
    ok = only_classes is None or bool(only_classes & set(table.classes))
    require(ok, f"{delivery.path}: holds none of the classes that are needed.")


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
        out = cache_folder() / name
        if out.exists():  # its remarks were told when it was packed
            return replace(pack_images(index, spec, out, timeout=-1.0), remarks=())
        progress.note(
            f"{index.path}: packed once into {out} ({job.n_bytes / 1e9:.1f} GB), by this "
            "process or another; it may be deleted at any time"
        )
        return pack_images(index, spec, out, timeout=-1.0)
    if job.n_bytes <= IN_MEMORY_BYTES:
        return decode_to_table(index, spec)
    # The table keeps the file open, so it can be read after the folder is deleted.
    with tempfile.TemporaryDirectory(prefix="kedge-") as folder:
        table = pack_images(index, spec, Path(folder) / "images")
    names = tuple(remark for remark in index.remarks if kind_of(remark) == "name")  # not packed
    return replace(table, remarks=names + table.remarks, empty_classes=index.empty_classes)
