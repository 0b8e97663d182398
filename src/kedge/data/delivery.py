"""A user's images together with how to read them, as the options of the commands say."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from kedge.data.class_names import (
    SameClass,
    SameClassArgument,
    alike_names,
    alike_remark,
    ask_about_alike_names,
    joined_remark,
)
from kedge.errors import require

ClassFolders = Literal["top", "leaf", "path"]
EMBEDDED = ("drawings",)  # images that come with kedge


def is_embedded(source: str | Path) -> bool:
    """Whether a source names images that come with kedge. A file of that name takes precedence."""
    return str(source) in EMBEDDED and not Path(source).exists()


def check_exists(source: str | Path) -> None:
    """Raise KedgeError if there are no images of this path or name; without loading PyTorch."""
    require(
        is_embedded(source) or os.path.exists(source),
        f"{source}: there is nothing here; give a folder with one sub-folder of images per class, "
        "a data set in another form that 'kedge data inspect --help' lists, a packed image file, "
        f"or one of the embedded sets ({', '.join(EMBEDDED)}).",
    )


@dataclass(frozen=True)
class Delivery:
    """Images in any form that `open_images` takes, and the answers to questions about them."""

    images: Any
    classes: ClassFolders | None = None
    """Which of nested folders are the classes: top (the outer ones), leaf (the inner ones, of which
    those with the same name are one class) or path (the inner ones, named with the outer ones)."""
    same_class: SameClass = field(default_factory=SameClass)
    strict: bool = False
    """Refuse images with any problem that can spoil a model."""
    known_classes: tuple[str, ...] = ()  # of a model: names that are almost the same are found
    ask: bool = False  # whether names that are alike are a question, or only a remark
    labelled: bool = True  # False for images to classify: only lost ones are remarked upon

    def __post_init__(self) -> None:
        kinds = get_args(ClassFolders)
        require(
            self.classes is None or self.classes in kinds,
            f"--classes is '{self.classes}': it must be {', '.join(kinds[:-1])} or {kinds[-1]}.",
        )

    @classmethod
    def of(
        cls,
        images: Any,
        classes: ClassFolders | None = None,
        same_class: SameClassArgument = None,
        strict: bool = False,
    ) -> Delivery:
        """The images as a delivery, unless they are one already."""
        if isinstance(images, cls):
            return images
        return cls(images, classes, SameClass.parse(same_class), strict)

    @property
    def path(self) -> str | Path | None:
        """The path or name that the user gave; None for images in memory."""
        return self.images if isinstance(self.images, str | Path) else None

    def to_validate(self, images: Any, trained: Sequence[str]) -> Delivery | None:
        """Validation images, if there are any, read in the same way; they may lack classes that
        were named. `trained` are the classes of this delivery."""
        if images is None:
            return None
        same_class, known = replace(self.same_class, must_exist=False), tuple(trained)
        return replace(self, images=images, same_class=same_class, known_classes=known, ask=False)

    def settle_names(
        self, source: object, classes: Sequence[str], counts: Sequence[int]
    ) -> tuple[list[str], tuple[str, ...]]:
        """The name to use for each class, and a remark on those that are alike.

        Raises KedgeError with a question instead if this delivery asks, or for wrong names in
        `same_class`. `counts` are the images of each class.
        """
        names = self.same_class.apply(source, classes, self.known_classes)
        merged: Counter[str] = Counter()
        for name, count in zip(names, counts, strict=True):
            merged[name] += count
        pairs = alike_names(merged, self.known_classes)
        if self.same_class.rest == "none":
            pairs = []
        if self.same_class.rest == "all":
            new_name = dict(pairs)
            return [new_name.get(name, name) for name in names], joined_remark(pairs)
        if self.ask and not self.strict:  # which refuses them, together with all other problems
            ask_about_alike_names(source, pairs, self.known_classes)
        return names, alike_remark(pairs)
