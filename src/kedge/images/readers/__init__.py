"""From what lies on disk to an ImageTable. One file per format; detection is here."""

from __future__ import annotations

from pathlib import Path

from kedge.errors import KedgeError
from kedge.images.drawings import load_drawings
from kedge.images.readers.folder import read_folder
from kedge.images.table import ImageTable

EMBEDDED = {"drawings": load_drawings}


def open_images(
    source: str | Path, image_size: int | None = None, n_channels: int | None = None
) -> ImageTable:
    """Images from a folder of class folders, a packed file, or the embedded `drawings`.

    Folders are decoded to `image_size` and `n_channels`, which follow from the images if not
    given. Packed images are as they are.
    """
    path = Path(source)
    if path.is_dir():
        return read_folder(path, image_size, n_channels)
    if path.is_file() or str(source) in EMBEDDED:
        table = ImageTable.load(path) if path.is_file() else EMBEDDED[str(source)]()
        if image_size not in (None, table.image_size):
            raise KedgeError(
                f"{source}: these images are packed at {table.image_size} px and cannot be "
                f"brought to {image_size} px."
            )
        return table
    raise KedgeError(
        f"{path}: nothing is there; give a folder with one sub-folder of images per class, a "
        f"packed image file, or one of the embedded sets ({', '.join(EMBEDDED)})."
    )
