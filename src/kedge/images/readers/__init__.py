"""From what lies on disk to a catalogue of pictures. One file per format; detection is here."""

from __future__ import annotations

from pathlib import Path

from kedge.errors import KedgeError
from kedge.images.readers.contract import Catalogue, Reader, refuse_impostor
from kedge.images.readers.folder import FolderReader
from kedge.images.trees import tree_of

# The first that recognises the files reads them: particular forms stand before general ones.
READERS: tuple[Reader, ...] = (FolderReader(),)


def catalogue(source: str | Path) -> Catalogue:
    """What is there, whatever its form."""
    path = Path(source)
    if path.is_file():
        refuse_impostor(path)
    elif not path.is_dir():
        raise KedgeError(f"{path}: nothing is there.")
    tree = tree_of(path)
    for reader in READERS:
        if reader.recognises(tree):
            return reader.read(tree)
    what = "this folder holds" if path.is_dir() else "this is"
    raise KedgeError(
        f"{path}: {what} no form of images that kedge knows; expected one sub-folder per class "
        "with images in it, or what 'kedge data inspect --help' lists."
    )
