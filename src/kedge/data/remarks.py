"""Remarks on a delivery: their kinds, the list that users see, and what `--strict` refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.progress import printable
from kedge.utils.text import display_name, first_example, pluralize, skipped_remark

Kind = Literal["name", "label", "leak", "lost", "note"]
KINDS: tuple[Kind, ...] = (  # the worst first; all but notes are problems, which can spoil a model
    "name",  # one class may have two names
    "label",  # images may have a wrong class
    "leak",  # images that measure accuracy may be trained on
    "lost",  # images of the delivery are not used
    "note",  # nothing is wrong, but worth knowing
)
MOST_REASONS = 4  # why images cannot be read, in one remark


class Remark(str):
    """A sentence about a delivery, without a full stop. A plain `str` is a note."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind = "note") -> Remark:
        remark = super().__new__(cls, text)
        remark.kind = kind
        return remark


def kind_of(remark: str) -> Kind:
    return remark.kind if isinstance(remark, Remark) else "note"


def problems(remarks: Sequence[str]) -> list[str]:
    """The remarks on what can spoil a model."""
    return [remark for remark in remarks if kind_of(remark) != "note"]


def lost(names: Sequence[str], noun: str, reason: str) -> tuple[Remark, ...]:
    """A remark on images that were skipped, which is a problem; see `skipped_remark`."""
    return tuple(Remark(text, "lost") for text in skipped_remark(names, noun, reason))


def unreadable_images(
    reasons: Mapping[int, str], name: Callable[[int], str], n_images: int, verb: str
) -> Remark:
    """A remark on images that cannot be read, with an example for each of the most usual reasons.

    Args:
        reasons: why, by the number of the image; not empty.
        verb: such as "cannot be read".
    """
    by_reason: dict[str, list[str]] = {}
    for i in sorted(reasons):
        by_reason.setdefault(reasons[i], []).append(name(i))
    usual = sorted(by_reason.items(), key=lambda item: -len(item[1]))[:MOST_REASONS]
    start = f"{len(reasons)} of {pluralize(n_images, 'image')} {verb}"
    if len(by_reason) == 1:
        [(reason, names)] = usual
        return Remark(f"{start} ({reason}){first_example(names)}", "lost")
    listed = [f"{len(names)} ({reason}){first_example(names)}" for reason, names in usual]
    more = ["…"] * (len(by_reason) > len(usual))
    return Remark(f"{start}: {'; '.join(listed + more)}", "lost")


def worst_first(remarks: Sequence[str]) -> tuple[str, ...]:
    """The remarks without repetitions, sorted by kind."""
    return tuple(sorted(dict.fromkeys(remarks), key=lambda remark: KINDS.index(kind_of(remark))))


def few_images(counts: Iterable[int], classes: Sequence[str], enough: int) -> tuple[str, ...]:
    """A note on classes with fewer images than `enough`."""
    few = {name: n for name, n in zip(classes, counts, strict=True) if n < enough}
    if not few:
        return ()
    smallest = min(few, key=lambda name: few[name])
    return (
        f"{pluralize(len(few), 'class has', 'classes have')} fewer than {enough} images, the "
        f"smallest is '{display_name(smallest)}' ({few[smallest]})",
    )


def remarks_to_json(remarks: Sequence[str]) -> dict[str, list[str]]:
    """Remarks and their kinds, as saved in the metadata of a packed file. Those on names depend on
    the model that the images are for, and are made anew when the file is opened."""
    ordered = [remark for remark in worst_first(remarks) if kind_of(remark) != "name"]
    return {"remarks": list(map(str, ordered)), "remark_kinds": list(map(kind_of, ordered))}


def remarks_from_json(saved: Mapping[str, Any]) -> tuple[str, ...]:
    """The inverse; earlier files have no kinds. The file may hold anything."""
    texts, kinds = saved.get("remarks"), saved.get("remark_kinds")
    if not isinstance(texts, list):
        return ()
    if not isinstance(kinds, list) or len(kinds) != len(texts):
        kinds = ["note"] * len(texts)
    return tuple(
        Remark(str(text), kind if kind in KINDS else "note")
        for text, kind in zip(texts, kinds, strict=True)
    )


def list_lines(remarks: Sequence[str]) -> list[str]:
    """The list of remarks, the worst first: how many there are, then one line for each."""
    n_problems = len(problems(remarks))
    counts = [pluralize(n_problems, "problem")] if n_problems else []
    if n_notes := len(remarks) - n_problems:
        counts.append(pluralize(n_notes, "note"))
    lines = [" and ".join(counts) or "no problem was found"]
    for remark in worst_first(remarks):
        level = "note" if kind_of(remark) == "note" else "problem"
        lines.append(f"  {level}: {printable(remark, one_line=True)}")
    return lines


def tell(source: object, remarks: Sequence[str]) -> None:
    """Print the list of remarks, without those that the command has told already.

    For functions that are called from Python, problems are Python warnings.
    """
    new = [remark for remark in remarks if progress.is_new(f"{source}: {remark}")]
    if not progress.in_command():
        for problem in problems(worst_first(new)):
            progress.warn(f"{source}: {problem}")
        new = [remark for remark in new if kind_of(remark) == "note"]
        if len(new) == 1:
            progress.note(f"{source}: {new[0]}")
            return
    if new:
        progress.note(f"{source}: " + "\n".join(list_lines(new)))


def refuse_problems(source: object, remarks: Sequence[str]) -> None:
    """Raise KedgeError if one of the remarks is a problem, for `--strict`."""
    if found := problems(worst_first(remarks)):
        raise KedgeError(
            f"{source}: --strict refuses this delivery for {pluralize(len(found), 'problem')}, the "
            f"first: {found[0]}. Correct them ('kedge data inspect' lists all), or leave --strict "
            "out."
        )
