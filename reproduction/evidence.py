"""What bears on a claim: comparisons between methods, found in the records of one family.

A family is a data set: its recipes' names begin alike ("tiny-pn", "tiny-ecm", …), and what follows
says what a recipe is about. So the same question can be put to every family.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kedge.config import written
from kedge.evaluation.results import Score
from kedge.experiments import metrics
from kedge.experiments.records import Record, RecordSet
from kedge.report import captions, queries
from kedge.report.format import (
    listing,
    number,
    signed,
)
from kedge.report.paper_comparison import Place
from kedge.report.queries import BASE

FAMILIES = {"tiny": "Tiny-ImageNet", "drawings": "the drawings"}  # what names begin with
PN, NATURAL, MANMADE = "prototypes", "natural → man-made", "man-made → natural"
LABELS = {  # how names go on: how the record is called; in reading order
    "pn": PN, "pn-1shot": PN, "mini-pn": PN, "pn-seeds": PN, "pn-seeds-1shot": PN,
    "pn-long": f"{PN}, trained long", "pn-long-again": f"{PN}, trained long from another base",
    "tiered-pn": f"{PN}, many classes",
    "": f"{NATURAL}, {PN}", "3-seeds": f"{NATURAL}, {PN}",
    "ecm": "ECM", "mini-ecm": "ECM", "ridge": "ridge", "heads-ridge": "ridge",
    **{
        f"domain{turn}-{head}{shots}": f"{way}, {name}"
        for turn, way in (("", NATURAL), ("-reverse", MANMADE))
        for head, name in (("pn", PN), ("ecm", "ECM"))
        for shots in ("", "-5shot", "-1shot")
    },
    "two-rounds": PN, "two-rounds-again": f"{PN}, trained again", "rounds": PN, "16-rounds": PN,
    "lambda-sweep": PN, "eiml-vs-ida": "", "exemplar-sweep": PN,
    "ways-shots-pn": PN, "ways-shots-ecm": "ECM",
}  # fmt: skip
AVERAGE = "average"  # over old, new and unseen classes, each counting the same
ONE_SEED = 1.0  # points, by which a difference has to be clearer where seeds are too few
FIRST = f"{queries.ROUND_POOL}0"  # of what the base has learned, where rounds are several
Found = Mapping[str, RecordSet]  # of one family, by how the names go on
Wanted = tuple[str, str, str]  # a method, minus a method, on which classes


@dataclass(frozen=True)
class Where:
    """A table of a family."""

    about: str  # "prototypes, 5-shot"
    seeds: int = 1
    length: str = ""  # of its rounds
    record: str = ""  # the name under which it is on the page

    def __str__(self) -> str:
        return f"{self.about}, {self.draws}"

    @property
    def draws(self) -> str:
        return "one seed" if self.seeds == 1 else f"{self.seeds} seeds"


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
    where: Where
    score: Score  # percentage points
    bound: float = 0.0
    decides: bool = True  # else it stands beside the others, to be read
    aside: bool = False  # what the claim asks, of a run that the paper has no counterpart of

    @property
    def outcome(self) -> Outcome:
        reach = self.score.ci + (0.0 if self.where.seeds >= metrics.ENOUGH_SEEDS else ONE_SEED)
        if self.score.mean - reach > self.bound:
            return Outcome.HELD
        return Outcome.FAILED if self.score.mean + reach < self.bound else Outcome.OPEN

    @property
    def question(self) -> tuple[str, ...]:
        return self.what, self.on, self.where.about, self.where.length

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
        """What was done with one seed does not count beside the same with several."""
        every = self.compare(found)
        most: dict[tuple[str, ...], int] = {}
        for one in every:
            most[one.question] = max(one.where.seeds, most.get(one.question, 0))
        return Finding(self, tuple(one for one in every if one.where.seeds == most[one.question]))


@dataclass(frozen=True)
class Finding:
    claim: Claim
    comparisons: tuple[Comparison, ...]

    @property
    def deciding(self) -> list[Comparison]:
        return [one for one in self.comparisons if one.decides]

    @property
    def _asked(self) -> list[Comparison]:
        return [one for one in self.comparisons if not one.aside]

    @property
    def outcome(self) -> Outcome:
        outcomes = {one.outcome for one in self.deciding}
        if not self._asked:
            return Outcome.MISSING
        if Outcome.FAILED in outcomes:
            return Outcome.FAILED
        return Outcome.HELD if outcomes == {Outcome.HELD} else Outcome.OPEN

    @property
    def sentences(self) -> list[str]:
        """The numbers of one table, and of several also how they went and the worst; last, what
        longer runs show that none of those that count does."""
        if not self._asked:
            return []
        places = list(dict.fromkeys(one.where.about for one in self.deciding or self._asked))
        main = next((place for place in places if "5-shot" in place), places[0])
        lowest = min((one.bound for one in self.deciding), default=0.0)
        slack = f"; down to {number(lowest, digits=0)} counts as no worse" if lowest < 0 else ""
        said = [f"{main[0].upper()}{main[1:]}, {self._numbers(main)}{slack}."]
        if not self.deciding:
            said = [self.claim.moot, *said]
        elif len(places) > 1:
            worst = min(self.deciding, key=lambda one: one.score.mean - one.bound)
            said.append(f"{self._counts()} Least favourable ({worst.where}): {_told([worst])}.")
        return [*said, *self._otherwise()]

    def _numbers(self, about: str) -> str:
        """'3 seeds: IDA − FT +2.4 ± 1.3 on unseen; one seed: …'."""
        there = [one for one in self._asked if one.where.about == about]
        there.sort(key=lambda one: -one.where.seeds)
        by_draws = itertools.groupby(there, key=lambda one: one.where.draws)
        return "; ".join(f"{draws}: {_told(list(some))}" for draws, some in by_draws)

    def _otherwise(self) -> list[str]:
        """What goes clearly one way in a longer run, and in no table that counts."""
        known = {(one.what, one.on, one.outcome) for one in self.deciding}
        found = [
            one
            for one in self.comparisons
            if one.aside
            and one.outcome != Outcome.OPEN
            and (one.what, one.on, one.outcome) not in known
        ]
        places = dict.fromkeys(one.where for one in found)
        told = {where: _told([one for one in found if one.where == where]) for where in places}
        return [
            f"Not counted, but clear in a run of several updates ({where}): {numbers}."
            for where, numbers in told.items()
        ]

    def _counts(self) -> str:
        outcomes = [one.outcome for one in self.deciding]
        against, unclear = (outcomes.count(one) for one in (Outcome.FAILED, Outcome.OPEN))
        rest = [f"{against} against" if against else "", f"{unclear} unclear" if unclear else ""]
        parts = [f"{outcomes.count(Outcome.HELD)} of {len(outcomes)} for it", *filter(None, rest)]
        return f"Comparisons that count: {listing(parts)}."


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


def of_family(family: str, collections: Iterable[RecordSet]) -> dict[str, RecordSet]:
    own = [one for one in collections if family_of(one.name) == family]
    return {suffix_of(one.name): one for one in own}


def tables(found: Found, suffixes: Sequence[str]) -> Iterator[tuple[Where, Record]]:
    """Every record of these recipes, and how it is called: 'prototypes, 5-shot, 15 updates'."""
    for suffix in (suffix for suffix in suffixes if suffix in found):
        for record in found[suffix].parts.values():
            shape = queries.trained(record)
            shots = [f"{written(shape.n_shot)}-shot"] if shape else []
            n_updates = len(queries.incremental_rounds(record))
            updates = [f"{n_updates} updates"] if n_updates > 1 else []
            about = ", ".join([LABELS[suffix] or record.name, *shots, *updates])
            schedule = record.config.get("schedule")
            length = captions.length(schedule) if schedule else ""
            yield Where(about, len(record.seeds), length, found[suffix].name), record


def pool_of(record: Record, kind: str) -> str:
    """Of all unseen classes, by whichever name the record has them; else as it is."""
    if kind != "unseen":
        return kind
    pools = queries.unseen_pools(record, queries.final_round(record))
    return next((pool.name for pool in pools if pool.first_shape), kind)


def of_base(record: Record) -> str:
    """The pool of what the base had learned: after two updates, the first one's classes are old,
    too."""
    there = {pool.name for pool in record.pools(queries.final_round(record))}
    return FIRST if FIRST in there else "old"


def minus(record: Record, a: str, b: str, kind: str) -> Score | None:
    """After the last round, if the record compares the two."""
    kinds = ("old", "new", "unseen") if kind == AVERAGE else (kind,)
    pools = [pool_of(record, one) for one in kinds]
    return metrics.average_difference(record, a, b, queries.final_round(record), pools)


def compared(
    where: Where, record: Record, wanted: Iterable[Wanted], bound: float = 0.0, decides: bool = True
) -> list[Comparison]:
    """Those that the record can answer."""
    scores = {(a, b, kind): minus(record, a, b, kind) for a, b, kind in wanted}
    return [
        Comparison(f"{_short(a)} − {_short(b)}", _on(kind), where, score, bound, decides)
        for (a, b, kind), score in scores.items()
        if score is not None
    ]


def lost(where: Where, record: Record, method: str) -> list[Comparison]:
    """On the classes that the base had learned, against NU; where that was not run, against the
    model before the update, if it was tested on the same classes. These are two tests, and count
    as independent."""
    last = queries.final_round(record)
    if BASE in record.methods or 0 not in record.rounds:
        return compared(where, record, [(method, BASE, of_base(record))], decides=False)
    same = [pool for pool in record.pools(0) if pool.name == "old" and pool in record.pools(last)]
    found = [
        Place(record, method, last, pool).minus(Place(record, method, 0, pool)) for pool in same
    ]
    what = f"{method} − the model before (NU was not run)"
    return [Comparison(what, "old", where, one.score, decides=False) for one in found if one]


def _on(kind: str) -> str:
    return "those of the base" if kind == FIRST else kind


def _short(label: str) -> str:
    """What differs within a sweep."""
    return label.replace("IDA lambda=", "λ=").replace("EIML exemplars=", "EIML with ")
