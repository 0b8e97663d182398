"""What bears on a claim: comparisons between methods, found in the records of one family.

A family is a data set: its recipes' names begin alike ("tiny-pn", "tiny-ecm", …), and what follows
says what a recipe is about. So the same question can be put to every family.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kedge.config import counted
from kedge.evaluation import Score
from kedge.records import Collection, Record
from kedge.report import reading
from kedge.report.notation import listing, signed

FAMILIES = {"tiny": "Tiny-ImageNet", "drawings": "the drawings"}  # what names begin with
PN, NATURAL, MANMADE = "prototypes", "natural → man-made", "man-made → natural"
LABELS = {  # how names go on: how the record is called; in reading order
    "pn": PN, "pn-1shot": PN, "mini-pn": PN, "pn-seeds": PN, "pn-seeds-1shot": PN,
    "pn-long": f"{PN}, trained long", "tiered-pn": f"{PN}, many classes",
    "": f"{NATURAL}, {PN}", "3-seeds": f"{NATURAL}, {PN}",
    "ecm": "ECM", "mini-ecm": "ECM", "ridge": "ridge", "heads-ridge": "ridge",
    **{
        f"domain{turn}-{head}{shots}": f"{way}, {name}"
        for turn, way in (("", NATURAL), ("-reverse", MANMADE))
        for head, name in (("pn", PN), ("ecm", "ECM"))
        for shots in ("", "-5shot", "-1shot")
    },
    "two-rounds": f"two rounds, {PN}", "rounds": f"many rounds, {PN}",
    "lambda-sweep": PN, "eiml-vs-ida": "", "exemplar-sweep": PN,
    "ways-shots-pn": PN, "ways-shots-ecm": "ECM",
}  # fmt: skip
Found = Mapping[str, Collection]  # of one family, by how the names go on
Wanted = tuple[str, str, str]  # a method, minus a method, on which classes


class Outcome(StrEnum):
    HELD = "held"
    FAILED = "did not hold"
    OPEN = "undecided"
    MISSING = "no record yet"


@dataclass(frozen=True)
class Comparison:
    """A difference with its interval, of which a claim says that it lies above a bound."""

    what: str  # "IDA − FT"
    on: str  # "old": the classes
    where: str  # "prototypes, 5-shot": the table
    score: Score  # percentage points
    bound: float = 0.0
    decides: bool = True  # else it stands beside the others, to be read

    @property
    def outcome(self) -> Outcome:
        if self.score.mean - self.score.ci > self.bound:
            return Outcome.HELD
        return Outcome.FAILED if self.score.mean + self.score.ci < self.bound else Outcome.OPEN

    @property
    def value(self) -> str:
        return " ± ".join(signed(self.score))


@dataclass(frozen=True)
class Claim:
    sentence: str
    source: str  # where the paper says it
    rule: str  # what has to be so
    compare: Callable[[Found], list[Comparison]]
    moot: str = ""  # why records may be there and none of them decides

    def judge(self, found: Found) -> Finding:
        return Finding(self, tuple(self.compare(found)))


@dataclass(frozen=True)
class Finding:
    claim: Claim
    comparisons: tuple[Comparison, ...]

    @property
    def deciding(self) -> list[Comparison]:
        return [one for one in self.comparisons if one.decides]

    @property
    def outcome(self) -> Outcome:
        outcomes = {one.outcome for one in self.deciding}
        if not self.comparisons:
            return Outcome.MISSING
        if Outcome.FAILED in outcomes:
            return Outcome.FAILED
        return Outcome.HELD if outcomes == {Outcome.HELD} else Outcome.OPEN

    @property
    def sentences(self) -> list[str]:
        """The numbers of one table, and of several also how they went and the worst."""
        if not self.comparisons:
            return []
        places = list(dict.fromkeys(one.where for one in self.deciding or self.comparisons))
        main = next((place for place in places if "5-shot" in place), places[0])
        numbers = _told([one for one in self.comparisons if one.where == main])
        said = f"{main[0].upper()}{main[1:]}: {numbers}."
        if not self.deciding:
            return [self.claim.moot, said]
        if len(places) == 1:
            return [said]
        worst = min(self.deciding, key=lambda one: one.score.mean - one.bound)
        return [said, f"{self._counts()} Least favourable ({worst.where}): {_told([worst])}."]

    def _counts(self) -> str:
        outcomes = [one.outcome for one in self.deciding]
        against, unclear = (outcomes.count(one) for one in (Outcome.FAILED, Outcome.OPEN))
        rest = [f"{against} against" if against else "", f"{unclear} unclear" if unclear else ""]
        parts = [f"{outcomes.count(Outcome.HELD)} of {len(outcomes)} for it", *filter(None, rest)]
        return f"All comparisons: {listing(parts)}."


def _told(comparisons: Sequence[Comparison]) -> str:
    """'IDA − NU +5.3 ± 0.2, − FT +0.3 ± 0.2 on unseen, +1.1 ± 0.2 on old': nothing twice."""
    parts, before = [], ""
    for one, after in itertools.zip_longest(comparisons, comparisons[1:]):
        first, minus, other = one.what.partition(" − ")
        alike = bool(minus) and before.startswith(f"{first}{minus}")
        what = f"− {other} " if alike else f"{one.what} "
        on = f" on {one.on}" if after is None or after.on != one.on else ""
        parts.append(f"{'' if one.what == before else what}{one.value}{on}")
        before = one.what
    return ", ".join(parts)


# ── in the records ───────────────────────────────────────────────────────────────────────────


def family_of(name: str) -> str | None:
    return next((f for f in FAMILIES if name == f or name.startswith(f"{f}-")), None)


def suffix_of(name: str) -> str:
    """What a name is about, without its family."""
    return name.removeprefix(family_of(name) or "").removeprefix("-")


def of_family(family: str, collections: Iterable[Collection]) -> dict[str, Collection]:
    own = [one for one in collections if family_of(one.name) == family]
    return {suffix_of(one.name): one for one in own}


def tables(found: Found, suffixes: Sequence[str]) -> Iterator[tuple[str, Record]]:
    """Every record of these recipes, and how it is called: 'prototypes, 5-shot, 3 seeds'."""
    for suffix in (suffix for suffix in suffixes if suffix in found):
        for record in found[suffix].parts.values():
            shape = reading.trained(record)
            shots = [f"{counted(shape.n_shot)}-shot"] if shape else []
            several = reading.intervals_over_seeds(record)
            seeds = [f"{len(record.seeds)} seeds"] if several else []
            yield ", ".join([LABELS[suffix] or record.name, *shots, *seeds]), record


def pool_of(record: Record, kind: str) -> str:
    """Of all unseen classes, by whichever name the record has them; else as it is."""
    if kind != "unseen":
        return kind
    pools = reading.unseen_pools(record, reading.final_round(record))
    return next((pool.name for pool in pools if pool.first_shape), kind)


def minus(record: Record, a: str, b: str, kind: str) -> Score | None:
    """After the last round, if the record compares the two."""
    found = reading.difference(record, a, b, reading.final_round(record), pool_of(record, kind))
    return found.score if found else None


def compared(
    where: str, record: Record, wanted: Iterable[Wanted], bound: float = 0.0, decides: bool = True
) -> list[Comparison]:
    """Those that the record can answer."""
    scores = {(a, b, kind): minus(record, a, b, kind) for a, b, kind in wanted}
    return [
        Comparison(f"{_short(a)} − {_short(b)}", kind, where, score, bound, decides)
        for (a, b, kind), score in scores.items()
        if score is not None
    ]


def _short(label: str) -> str:
    """What differs within a sweep."""
    return label.replace("IDA lambda=", "λ=").replace("EIML exemplars=", "EIML with ")
