"""The command that compares two data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import ClassFolderOption, Json, as_json, load_pytorch, say
from kedge.utils import progress
from kedge.utils.progress import printable
from kedge.utils.text import pluralize

if TYPE_CHECKING:
    from kedge.data.compare import Comparison, Pair

SHOWN = 8  # names in a list

First = Annotated[str, arg(metavar="A", help="Images in any form that 'kedge data inspect' knows.")]
Second = Annotated[str, arg(metavar="B", help="Images that may be in A, too, in any form.")]


@dataclass(frozen=True)
class Compare:
    """Find images and classes that two data sets have in common.

    Before training, compare a new delivery with the earlier ones, or test images with those that
    are trained on. Exact copies have the same pixels once decoded. Nearly the same are images in
    another size, quality or brightness, but not other crops of them. Pictures that only look very
    much alike may be among these.
    """

    a: Positional[First]
    b: Positional[Second]
    classes: ClassFolderOption = None
    json: Json = False

    def run(self, console: Console) -> None:
        load_pytorch(images=[self.a, self.b])
        from kedge.data.compare import compare
        from kedge.data.delivery import Delivery

        with progress.display():
            found = compare(Delivery(self.a, self.classes), Delivery(self.b, self.classes))
        if self.json:
            print(as_json(found.to_dict(), indent=1))
        else:
            _show(console, found)


def _show(console: Console, found: Comparison) -> None:
    for side in (found.a, found.b):
        unreadable = f", {side.n_unreadable} unreadable" if side.n_unreadable else ""
        classes = pluralize(side.n_classes, "class", "classes")
        say(
            console, f"{side.path}: {side.n_images:,} images of {classes}{unreadable} ({side.form})"
        )
    exact = _pairs(found, found.copies, "which is")
    if not found.same_size:
        exact = "cannot be found, since both are packed, in different sizes"
    alike = [f"'{b}' and '{a}'" for b, a in found.alike_names]
    lines = {
        "exact copies": exact,
        "nearly the same": _pairs(found, found.near_copies, "which is like"),
        "classes in common": _listed(found.common_classes),
        "names that are alike": _listed(alike),
    }
    for title, text in lines.items():  # long paths are neither cut nor wrapped
        say(console, f"  {title:<22}{printable(text, one_line=True)}")


def _pairs(found: Comparison, pairs: Sequence[Pair], relation: str) -> str:
    """How many images of B are in A, and one of them; rather one that has another class there."""
    if not pairs:
        return "none"
    others = [pair for pair in pairs if pair.a_class != pair.b_class]
    first = (others or pairs)[0]
    other = f" ({len(others)} with another class there)" if others else ""
    return (
        f"{len(pairs):,} of the {found.b.n_images:,} images of {found.b.path}{other}, such as "
        f"{first.b} ({first.b_class}), {relation} {first.a} ({first.a_class})"
    )


def _listed(names: Sequence[str]) -> str:
    more = ", …" if len(names) > SHOWN else ""
    return f"{len(names)}: {', '.join(names[:SHOWN])}{more}" if names else "none"
