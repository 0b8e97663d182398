"""Class names that are almost the same: found, asked about, and joined by `--same-class`."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from kedge.data.remarks import Remark
from kedge.errors import KedgeError, require
from kedge.utils.text import display_name, normalize_name, pluralize

Rest = Literal["all", "none"]  # answers: which of the names that are alike are the same class
SHOWN = 4  # pairs of names in a message
SEPARATORS = r"[\s_\-\u2010-\u2015]+"

SameClassArgument = Mapping[str, str] | Iterable[str] | str | None


@dataclass(frozen=True)
class SameClass:
    """What a user says about names that are alike."""

    renamed: dict[str, str] = field(default_factory=dict)  # name in the delivery → name to use
    rest: Rest | None = None  # of the other names that are alike
    must_exist: bool = True  # whether a name that the delivery lacks is an error

    @classmethod
    def parse(cls, given: SameClassArgument) -> SameClass:
        """From `{"A": "B"}`, "A=B", "all" or "none", or several such texts."""
        if given is None:
            return cls()
        if isinstance(given, Mapping):
            pairs, rest = dict(given), list[Rest]()
        else:
            texts = [given] if isinstance(given, str) else list(given)
            ok = all(isinstance(text, str) for text in texts)
            require(ok, f"same_class is {given!r}: it must be {{'A': 'B'}} or texts 'A=B'.")
            rest = [answer for answer in get_args(Rest) if answer in texts]
            require(len(rest) < 2, "--same-class is both 'all' and 'none': leave one of them out.")
            pairs = {}
            for text in texts:
                name, equals, target = text.partition("=")
                require(
                    text in rest or bool(equals and name and target),
                    f"--same-class is '{text}': it must be 'A=B', which gives the class A the name "
                    "B, or 'all' or 'none' of the names that are alike.",
                )
                if equals:
                    pairs[name] = target
        renamed = {normalize_name(a): normalize_name(b) for a, b in pairs.items()}
        for target in renamed.values():
            require(
                target not in renamed,
                f"--same-class: '{target}' would be renamed and be the new name of another class; "
                "give each class its final name.",
            )
        return cls(renamed, rest[0] if rest else None)

    def apply(self, source: object, classes: Sequence[str], known: Collection[str]) -> list[str]:
        """The name to use for each class. Raises KedgeError for names that do not exist."""
        for name, target in self.renamed.items() if self.must_exist else ():
            for each, where in ((name, {*classes}), (target, {*classes, *known})):
                also = " nor has the model" if each == target and known else ""
                require(
                    each in where,
                    f"--same-class '{name}={target}': {source} has no class '{each}'{also}.",
                )
        return [self.renamed.get(name, name) for name in classes]


def name_key(name: str) -> str:
    """Equal for names that differ only in case, blanks, hyphens, underscores or Unicode form."""
    text = unicodedata.normalize("NFKC", name).casefold().strip()
    text = re.sub(rf"(?<=\d){SEPARATORS}(?=\d)", ".", text)  # 1-2 is not 12
    return re.sub(SEPARATORS, "", text) or name


def alike_names(counts: Mapping[str, int], known: Collection[str] = ()) -> list[tuple[str, str]]:
    """Pairs (name, other) of a delivered class and one that its name is almost the same as.

    The other is a class that the model knows, if there is one, else the delivered one with more
    images. `counts` are the images of each delivered class.
    """
    by_key: dict[str, list[str]] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        by_key.setdefault(name_key(name), []).append(name)
    known_by_key: dict[str, list[str]] = {}
    for name in known:
        known_by_key.setdefault(name_key(name), []).append(name)
    pairs = []
    for key, names in by_key.items():
        others = known_by_key.get(key, [])
        known_names = set(others)
        new = [name for name in names if name not in known_names]
        target = others[0] if others else names[0]
        pairs += [(name, target) for name in new if name != target]
    return pairs


def alike_remark(pairs: Sequence[tuple[str, str]]) -> tuple[Remark, ...]:
    """A remark on names that are alike; empty without any."""
    if not pairs:
        return ()
    name, other = map(display_name, pairs[0])
    n, what = len(pairs), "class name is almost that of another class"
    what = what if n == 1 else "class names are almost those of other classes"
    answers = f"{_answer(*pairs[0])} if they are one class, --same-class none if not"
    return (Remark(f"{n} {what}, such as '{name}' and '{other}': {answers}", "name"),)


def joined_remark(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A note on names that were taken for the same class; empty without any."""
    if not pairs:
        return ()
    shown = ", ".join(f"'{display_name(a)}' with '{display_name(b)}'" for a, b in pairs[:SHOWN])
    more = ", …" if len(pairs) > SHOWN else ""
    joined = pluralize(len(pairs), "class was", "classes were")
    return (f"{joined} joined with one of almost the same name: {shown}{more}",)


def _answer(name: str, other: str) -> str:
    return f"--same-class {shlex.quote(f'{name}={other}')}"


def ask_about_alike_names(
    source: object, pairs: Sequence[tuple[str, str]], known: Collection[str]
) -> None:
    """Raise KedgeError with the question whether these are the same classes, and its answers."""
    if not pairs:
        return
    shown = []
    for name, other in pairs[:SHOWN]:
        which = "the known " if other in known else ""
        shown.append(f"'{display_name(name)}' and {which}'{display_name(other)}'")
    more = f" and {len(pairs) - SHOWN} more pairs" if len(pairs) > SHOWN else ""
    answers = " ".join(_answer(*pair) for pair in pairs[:SHOWN])
    if len(pairs) == 1:
        todo = f"Give {answers} if they are one class, --same-class none if they are two."
    else:
        todo = (
            f"Give --same-class all if each pair is one class, --same-class none if none is, or "
            f"{answers} for single ones."
        )
    raise KedgeError(
        f"{source}: {', '.join(shown)}{more} differ only in case, blanks, hyphens or underscores. "
        + todo
    )
