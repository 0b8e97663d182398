"""A list of images and their classes, as text or JSON Lines, and the images in folders around it.

`{train,val,test}.csv` are the parts of a split, as in Ravi's miniImageNet; otherwise there is one
list of any name, perhaps with a column for the part.
"""

from __future__ import annotations

from pathlib import Path

from kedge.data.decode import looks_like_image
from kedge.data.files import list_file
from kedge.data.files.file_tree import FileTree
from kedge.data.index import PART_NAMES, ImageIndex, names_of_numbers
from kedge.data.readers.base import Reader, index_files
from kedge.data.remarks import Remark, lost
from kedge.errors import KedgeError
from kedge.utils.text import display_name, skipped_remark

MOST_LINES = 16_000_000  # also of empty ones
MAX_LISTS = 32  # files that are tried; more are something else than lists of images


class ImageListReader(Reader):
    form = "images and a list of their classes"

    def recognises(self, tree: FileTree) -> bool:
        lists, _ = _find_lists(tree)
        # Several folders of images may be classes, unless a list refers to the images.
        return bool(lists) and (len(_image_folders(tree)) < 2 or bool(_with_images(tree, lists)))

    def read(self, tree: FileTree) -> ImageIndex:
        lists, list_remarks = _find_lists(tree)
        has_split = all(_part_of_list(name) for name in lists)
        if not has_split and len(lists) > 1:
            lists = _with_images(tree, lists) or lists
        if not lists or (not has_split and len(lists) > 1):
            found = ", ".join(map(display_name, lists[:4])) or "none"
            raise KedgeError(f"{tree.path}: expected one list but found {found}; give its path.")
        locator = list_file.ImageLocator(tree)
        labels, row_remarks = _read_lists(tree, lists, locator)
        if locator.list_given_alone:
            names, unlisted = sorted(labels), []
        else:
            names = [name for name in tree.names if name in labels]
            # Lists of ImageNet's images name only some of them on purpose.
            others = [n for n in tree.names if n not in labels and looks_like_image(n)]
            unlisted = [name for name in others if not list_file.IMAGENET_NAME.search(name)]
        part_of = {name: PART_NAMES.get(labels[name][1].lower(), "") for name in names}
        has_split = has_split or any(part_of.values())
        # The part of an image is never guessed: test images could end up in training.
        no_part = [name for name in names if has_split and not part_of[name]]
        names = [name for name in names if part_of[name]] if no_part else names
        classes = _sortable([labels[name][0] for name in names])
        return index_files(
            tree,
            self.form + (", by rank in the folders of ImageNet" if locator.by_rank else ""),
            {name: (c, part_of[name]) for name, c in zip(names, classes, strict=True)},
            files=[*lists, *names],
            ignored=[name for name in tree.names if looks_like_image(name)],
            remarks=(
                *list_remarks,
                *row_remarks,
                *lost(no_part, "image", "in no part of the list's split"),
                *lost(unlisted, "image", "in no list"),
            ),
        )


def _find_lists(tree: FileTree) -> tuple[list[str], tuple[str, ...]]:
    """The lists of images to read, and remarks on others."""
    candidates = [name for name in tree.names if name.lower().endswith(list_file.SUFFIXES)]
    texts = [name for name in tree.names if name.lower().endswith(list_file.TEXT_SUFFIXES)]
    if not candidates and texts:
        if len(tree.names) == 1:
            return texts, ()
        # Beside folders of classes such files may describe anything.
        candidates = _with_images(tree, texts[:MAX_LISTS]) if len(_image_folders(tree)) < 2 else []
    if len(candidates) == 1:
        folder = candidates[0].rpartition("/")[0]
        if _image_folders(tree) <= {folder, f"{folder}/images".lstrip("/")}:
            return candidates, ()  # even if it is damaged: `read` tells the user what is wrong
    candidates = sorted(candidates, key=lambda name: (name.count("/"), name))[:MAX_LISTS]
    usable = [name for name in candidates if list_file.peek_rows(tree, name)]
    of_parts = [name for name in usable if _part_of_list(name)]
    if not of_parts:
        return usable, ()
    folder = of_parts[0].rpartition("/")[0]
    lists = [name for name in of_parts if name.rpartition("/")[0] == folder]
    others = [name for name in candidates if _part_of_list(name) and name not in lists]
    return lists, skipped_remark(others, "list", "in another folder, or without classes")


def _image_folders(tree: FileTree) -> set[str]:
    return {name.rpartition("/")[0] for name in tree.names if looks_like_image(name)}


def _part_of_list(name: str) -> str:
    """The part that a list is named after, in lower case as written ("valid"), or nothing."""
    stem = name.rpartition("/")[2].rpartition(".")[0].lower()
    return stem if stem in PART_NAMES else ""


def _with_images(tree: FileTree, lists: list[str]) -> list[str]:
    """The lists of which at least one of the first images exists."""
    locator = list_file.ImageLocator(tree)

    def exists(row: list_file.ListRow, name: str) -> bool:
        if locator.is_outside(row.image):
            return False
        return looks_like_image(locator.find(row, name, _folder_of_part(row, name)) or "")

    rows_of = {name: list_file.peek_rows(tree, name) for name in lists}
    return [name for name in lists if any(exists(row, name) for row in rows_of[name])]


def _folder_of_part(row: list_file.ListRow, list_name: str) -> str:
    """The name that a folder with the images of the row's part would have."""
    return _part_of_list(list_name) or (row.part if row.part.lower() in PART_NAMES else "")


def _read_lists(
    tree: FileTree, lists: list[str], locator: list_file.ImageLocator
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Class and part of each listed image that exists, and remarks on other rows."""
    labels: dict[str, tuple[str, str]] = {}
    interned: dict[tuple[str, str], tuple[str, str]] = {}  # saves memory on long lists
    missing, incomplete, repeated, contradictory = (list[str]() for _ in range(4))
    for name in lists:
        path, part_of_list = tree.path / name, _part_of_list(name)
        text = tree.read_text(name)
        if max(text.count("\n"), text.count("\r")) > MOST_LINES:
            raise KedgeError(f"{path}: more than {MOST_LINES:,} lines; divide it into parts.")
        for row in list_file.read_rows(text, path):
            if not row.image or not row.class_name:
                incomplete.append(f"line {row.line} of {name}")
            else:
                _check_row(row, locator, path)
                image = locator.find(row, name, part_of_list or _folder_of_part(row, name))
                label = (row.class_name, part_of_list or row.part)
                if image is None:
                    missing.append(row.image)
                elif (known := labels.get(image)) is None:
                    labels[image] = interned.setdefault(label, label)
                    continue
                else:
                    (repeated if known == label else contradictory).append(image)
            if not locator.count_line():
                what = f"line {row.line} is reached with only {len(labels)} images found"
                todo = "put the images beside the list, or remove the lines without one"
                raise KedgeError(f"{path}: {what}; {todo}.")
    if not labels:
        first = f", the first missing one is {display_name(missing[0])}" if missing else ""
        what = f"no line has both a class and an image that exists{first}"
        raise KedgeError(f"{tree.path / lists[0]}: {what}; put the images beside the list.")
    other = "listed again, other class or part"
    return labels, [
        *lost(missing, "image", "listed, but missing"),
        *lost(incomplete, "line", "no image or no class"),
        *skipped_remark(repeated, "image", "listed again"),
        *(Remark(text, "label") for text in skipped_remark(contradictory, "image", other)),
    ]


def _check_row(row: list_file.ListRow, locator: list_file.ImageLocator, path: Path) -> None:
    if locator.is_outside(row.image):
        what = f"line {row.line} names {display_name(row.image)}, outside of this folder"
        raise KedgeError(f"{path}: {what}; expected paths relative to the list.")
    try:
        row.class_name.encode()
    except UnicodeEncodeError:
        what = f"line {row.line} has an invalid class name, {row.class_name!a:.100}"
        raise KedgeError(f"{path}: {what}.") from None


def _sortable(names: list[str]) -> list[str]:
    """Class names that are all numbers get leading zeros, the same in every list, so that they
    sort and the classes of a later list can be matched."""
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in set(names)):
        return names
    return names_of_numbers([int(name) for name in names])
