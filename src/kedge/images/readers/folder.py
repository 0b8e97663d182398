"""`<class>/*`: one sub-folder per class, images of any type and size in it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from kedge import progress
from kedge.errors import KedgeError
from kedge.images.table import ImageTable

LARGEST = 84  # px: the size chosen for photographs, as in the paper
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def read_folder(
    folder: Path, image_size: int | None = None, n_channels: int | None = None
) -> ImageTable:
    """Decode every image; those that cannot be read are counted, named and left out."""
    if image_size is not None and not 16 <= image_size <= 4096:
        raise KedgeError(f"--image-size is {image_size}: it must be from 16 to 4096 px.")
    for sub in folder.iterdir():
        if not sub.name.isprintable() and "\udc80" <= max(sub.name) <= "\udcff":
            raise KedgeError(f"{str(sub)!a}: this name is not UTF-8; rename the folder.")
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
            f"{folder}: {len(bad)} of {len(files)} images could not be read and were left out, "
            f"the first is {unreadable[0]}"
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
    endings = {e for e, format in Image.registered_extensions().items() if format in FORMATS}
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in endings
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
        except Exception:  # a damaged file makes Pillow's decoders raise anything
            return None

    pixels = np.empty((len(files), n_channels, image_size, image_size), dtype=np.uint8)
    unreadable: list[Path] = []
    filled = 0
    with ThreadPoolExecutor() as pool, progress.task("reading images", len(files)) as tick:
        for file, image in zip(files, pool.map(decode, files), strict=True):
            if image is None:
                unreadable.append(file)
            else:
                pixels[filled] = image
                filled += 1
            tick(1)
    if filled == 0:
        raise KedgeError(f"{files[0]}: cannot be read as an image, nor can any other file.")
    return torch.from_numpy(pixels[:filled]), unreadable


def _decode(file: Path, image_size: int, n_channels: int) -> np.ndarray:
    """The centre square, resized with antialiasing. Shape: channels, height, width."""
    with Image.open(file, formats=FORMATS) as image:
        upright = _upright(image)
        if upright.mode.startswith("I;16"):  # 16 bit: Pillow would clip it instead of scaling
            upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
        if upright.has_transparency_data:  # what shows through is white, as on paper
            upright = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
        plain = upright.convert("RGB" if n_channels == 3 else "L")
    if plain.size != (image_size, image_size):
        plain = ImageOps.fit(plain, (image_size, image_size), Image.Resampling.BICUBIC)
    pixels = np.asarray(plain)
    return pixels.transpose(2, 0, 1) if n_channels == 3 else pixels[None]


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the picture may be fine where what the camera wrote of it is not
        return image


def _look(files: Sequence[Path], most: int = 200) -> tuple[int, int]:
    """Size and channels that suit the images: those of small ones are kept as they are."""
    sides, grey = [], True
    for file in files[:: max(1, len(files) // most)]:
        try:
            with Image.open(file, formats=FORMATS) as image:
                sides.append(min(image.size))
                grey = grey and (image.mode in ("1", "L", "LA") or image.mode.startswith("I;16"))
        except Exception:  # counted when all of them are decoded
            continue
    if not sides:
        raise KedgeError(f"{files[0].parent.parent}: none of the images could be read.")
    return min(LARGEST, max(16, int(np.median(sides)))), 1 if grey else 3


def _visible(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")
