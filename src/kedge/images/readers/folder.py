"""`<class>/*`: one sub-folder per class, images of any type and size in it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from kedge import progress
from kedge.errors import KedgeError
from kedge.images.table import ImageTable

LARGEST = 84  # px: the size chosen for photographs, as in the paper
UNREADABLE = (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError)


def read_folder(
    folder: Path, image_size: int | None = None, n_channels: int | None = None
) -> ImageTable:
    """Decode every image; those that cannot be read are counted, named and left out."""
    by_class = {sub.name: images_in(sub) for sub in sorted(folder.iterdir()) if _visible(sub)}
    by_class = {name: files for name, files in by_class.items() if files}
    if not by_class:
        raise KedgeError(
            f"{folder}: no class was found; expected one sub-folder per class with images in it."
        )
    files = [file for of_class in by_class.values() for file in of_class]
    labels = [i for i, of_class in enumerate(by_class.values()) for _ in of_class]
    if image_size is None or n_channels is None:
        size_seen, channels_seen = _look(files)
        image_size, n_channels = image_size or size_seen, n_channels or channels_seen
    pixels, unreadable = read_files(files, image_size, n_channels)
    if unreadable:
        bad = set(unreadable)
        labels = [label for file, label in zip(files, labels, strict=True) if file not in bad]
        progress.note(
            f"[yellow]{folder}: {len(bad)} of {len(files)} images could not be read and were left "
            f"out, the first is {unreadable[0]}[/yellow]"
        )
    names = list(by_class)
    empty = sorted(set(range(len(names))) - set(labels))
    if empty:
        raise KedgeError(f"{folder / names[empty[0]]}: no image of this class could be read.")
    return ImageTable.build(pixels, labels, names, str(folder))


def images_in(folder: Path) -> list[Path]:
    """Files below a folder that look like images, in a fixed order; hidden ones do not count."""
    if not folder.is_dir():
        return []
    known = Image.registered_extensions()
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in known
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def read_files(
    files: Sequence[Path], image_size: int, n_channels: int
) -> tuple[UInt8[Tensor, "n c h w"], list[Path]]:
    """Decode in parallel; returns the images and the files that could not be read."""

    def decode(file: Path) -> np.ndarray | None:
        try:
            return _decode(file, image_size, n_channels)
        except UNREADABLE:
            return None

    images = []
    with ThreadPoolExecutor() as pool, progress.task("reading images", len(files)) as advance:
        for image in pool.map(decode, files):
            images.append(image)
            advance(1)
    unreadable = [file for file, image in zip(files, images, strict=True) if image is None]
    readable = [image for image in images if image is not None]
    if not readable:
        raise KedgeError(f"{files[0] if files else 'support'}: no image could be read.")
    return torch.from_numpy(np.stack(readable)), unreadable


def _decode(file: Path, image_size: int, n_channels: int) -> np.ndarray:
    """The centre square, resized with antialiasing. Shape: channels, height, width."""
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16"):  # 16 bit: Pillow would clip it instead of scaling
            upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
        plain = upright.convert("RGB" if n_channels == 3 else "L")
    if plain.size != (image_size, image_size):
        plain = ImageOps.fit(plain, (image_size, image_size), Image.Resampling.BICUBIC)
    pixels = np.asarray(plain)
    return pixels.transpose(2, 0, 1) if n_channels == 3 else pixels[None]


def _look(files: Sequence[Path], most: int = 200) -> tuple[int, int]:
    """Size and channels that suit the images: those of small ones are kept as they are."""
    sides, grey = [], True
    for file in files[:: max(1, len(files) // most)]:
        try:
            with Image.open(file) as image:
                sides.append(min(image.size))
                grey = grey and image.mode in ("1", "L", "LA", "I;16")
        except UNREADABLE:
            continue
    if not sides:
        raise KedgeError(f"{files[0].parent.parent}: none of the images could be read.")
    return min(LARGEST, max(16, int(np.median(sides)))), 1 if grey else 3


def _visible(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")
