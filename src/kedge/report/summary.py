"""The result in plain words. Every sentence is chosen by the numbers, whoever wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kedge.experiments import paper
from kedge.experiments.records import (
    PoolInfo,
    Record,
    RecordSet,
)
from kedge.report import queries
from kedge.report.format import (
    listing,
    number,
    place,
    signed,
)
from kedge.report.paper_comparison import order_sentence
from kedge.report.queries import Difference
from kedge.report.shapes import spans, trained_scores
from kedge.report.style import default_of


@dataclass(frozen=True)
class Legend:
    """A method for a reader who has not read the paper."""

    name: str
    does: str
    keeps: str


KNOWN = {
    "NU": Legend(
        "no update",
        "the base model, left as it is; shows what doing nothing gives",
        "nothing",
    ),
    "FT": Legend(
        "fine-tuning",
        "goes on training with the new classes, and nothing holds it to what it knew",
        "nothing",
    ),
    "DFA": Legend(
        "direct feature alignment",
        "fine-tuning in which each new image has to keep the feature that the old model gave it",
        "no data of old classes; the old model, during the update",
    ),
    "IDA": Legend(
        "indirect discriminant alignment",
        "fine-tuning in which each new image has to keep its likeness to the anchors of the old "
        "classes, and is free in all else",
        "one anchor (a short vector) per old class; the old model, during the update",
    ),
    "EIML": Legend(
        "exemplar-based incremental meta-learning",
        "fine-tuning that also rehearses stored images of the old classes",
        "some images of every old class",
    ),
    "EWC": Legend(
        "elastic weight consolidation",
        "fine-tuning that holds back the weights which mattered for the old classes",
        "no data of old classes; old weights and how much each mattered",
    ),
    "PAR": Legend(
        "paragon",
        "trained afresh on the images of all classes so far, which the others may not see; with "
        "a long enough schedule the upper bound",
        "every image of every class",
    ),
}


SETTINGS = {  # what an option does, {} being its value
    "lambda": "λ, the weight of the penalty that holds it, is {}",
    "anchors": "each step is held against {} anchors",
    "anchors=ways": "each step is held against as many anchors as an episode has classes",
    "anchors=all": "each step is held against all anchors, not just some of them",
    "divergence": "verdicts are compared by another divergence, {}",
    "temperature": "verdicts are compared at the temperature {}",
    "dimensions=sum": "the penalty is summed over the dimensions of a feature",
    "dimensions=mean": "the penalty is averaged over the dimensions of a feature",
    "exemplars": "{} images of every old class are kept",
    "choice=random": "the images to keep are drawn at random",
    "choice=nearest": "the images nearest to the mean of their class are kept",
    "episodes": "how much each weight mattered is measured on {} episodes",
    "decay": "what mattered in earlier rounds counts {} times as much with every further one",
    "start=scratch": "each round starts with new weights",
    "start=last": "each round goes on from the model of its last one, not from new weights",
}


def legends(labels: Sequence[str]) -> dict[str, Legend]:
    """A line for each method. A variant of one that is described already says what differs."""
    found: dict[str, Legend] = {}
    for label in labels:
        name, *options = label.split() or [label]
        known, said = KNOWN.get(name), listing([_setting(name, one) for one in options] or [""])
        if known is None:
            found[label] = Legend("", "not known to this report; see the configuration", "")
        elif not options:
            found[label] = known
        elif name in labels or any(queries.family(other) == name for other in found):
            found[label] = Legend("", f"as {name}, but {said}", "")
        else:
            found[label] = replace(known, does=f"{known.does}; {said}")
    return found


def _setting(name: str, option: str) -> str:
    """An option in words: 'lambda=5'. A number comes with what it is where none is given."""
    key, _, value = option.partition("=")
    said = SETTINGS.get(option, SETTINGS.get(key, f"{key} is {{}}")).replace("{}", value)
    default = default_of(name, key)
    return said if default is None else f"{said} (otherwise {default:g})"


def spoken(label: str) -> str:
    """'fine-tuning (FT)'; a variant and an unknown method go by their label."""
    if label not in KNOWN:
        return label
    words = {"NU": "the model left as it was", "PAR": "the paragon"}
    return f"{words.get(label, KNOWN[label].name)} ({label})"


# ── the verdict ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Verdict:
    headline: str
    details: tuple[str, ...]  # one line for each further method, over all pools


def verdict(record: Record) -> Verdict:
    round = queries.final_round(record)
    lead = queries.leads(record)[0]
    others = [m for m in queries.methods_after(record, round) if m != lead]
    if not others:
        return Verdict(_alone(record, lead, round), ())
    rival = _rival(others)
    headline = _duel(record, lead, rival, round)
    if len(queries.incremental_rounds(record)) > 1:
        lowered = f"o{headline[1:]}" if headline.startswith("On ") else headline
        headline = f"After round {round}, {lowered}"
    details = tuple(_overview(record, lead, m, round) for m in others if m != rival)
    return Verdict(headline, details)


def joint_verdict(collection: RecordSet) -> Verdict:
    """Of all parts together: the paper's order, if it is to be repeated, and each part's result."""
    said = {part: verdict(record).headline for part, record in collection.parts.items()}
    details = tuple(f"{part}: {headline}" if part else headline for part, headline in said.items())
    if scores := trained_scores(collection.parts):
        least, most = (number(pick(spans(scores))) for pick in (min, max))
        details = (
            f"What the model was trained at changes its accuracy by {least} to {most} points, "
            "depending on the ways and shots of the test.",
        )
    if collection.paper is not None:
        return Verdict(order_sentence(collection, paper.table(collection.paper)), details)
    return Verdict(details[0], details[1:])


def _rival(others: Sequence[str]) -> str:
    """Fine-tuning is what one would do without this work; failing that, whoever competes."""
    order = ("FT", *(m for m in others if not queries.is_reference(m)), queries.BASE)
    return next((m for m in order if m in others), others[0])


def _alone(record: Record, lead: str, round: int) -> str:
    parts = []
    for pool in queries.table_pools(record, round):
        found = queries.score(record, lead, round, pool.name)
        if found is not None:
            parts.append(f"{number(found.mean)}% on {place(pool)}")
    reached = f"{lead} reaches {listing(parts)}. " if parts else ""
    return f"{reached}The record holds no other method, so there is nothing to compare it with."


def _duel(record: Record, lead: str, rival: str, round: int) -> str:
    """Old and new classes get a sentence each; all further pools share one."""
    sentences: list[str] = []
    rest: list[tuple[PoolInfo, Difference]] = []
    for pool in queries.table_pools(record, round):
        found = queries.difference(record, lead, rival, round, pool.name)
        a = queries.score(record, lead, round, pool.name)
        b = queries.score(record, rival, round, pool.name)
        if found is None or a is None or b is None:
            continue
        if pool.name in ("old", "new"):
            verb = "keeps" if pool.name == "old" else "reaches"
            only = "only " if found.behind else ""
            ours, theirs = f"{number(a.mean)}%", f"{number(b.mean)}%"
            gap = f"(difference {_gap(found)})"
            if sentences and found.clear:
                said = (
                    f"On {place(pool)} {lead} {verb} {only}{ours} where {rival} {verb} "
                    f"{theirs} {gap}."
                )
            elif sentences:
                said = (
                    f"On {place(pool)} the two cannot be told apart: {ours} against {theirs} {gap}."
                )
            elif found.clear:
                said = (
                    f"{lead} {verb} {only}{ours} on {place(pool)} where {spoken(rival)} {verb} "
                    f"{theirs} {gap}."
                )
            else:
                said = (
                    f"On {place(pool)}, {lead} ({ours}) and {spoken(rival)} ({theirs}) cannot be "
                    f"told apart {gap}."
                )
            sentences.append(said)
        else:
            rest.append((pool, found))
    if rest and sentences:
        sentences.append(f"{_outcomes(rest, lead)}.")
    elif rest:
        sentences.append(f"Against {spoken(rival)}, {_outcomes(rest, lead, 'there')}.")
    return " ".join(sentences) or f"{lead} and {spoken(rival)} were not tested on the same classes."


def _overview(record: Record, lead: str, other: str, round: int) -> str:
    found = [
        (pool, queries.difference(record, lead, other, round, pool.name))
        for pool in queries.table_pools(record, round)
    ]
    known = [(pool, one) for pool, one in found if one is not None]
    if not known:
        return f"{lead} and {spoken(other)} were not tested on the same classes."
    outcome = _everywhere([one for _, one in known], lead) or _outcomes(known, lead, "there")
    return f"Against {spoken(other)}, {outcome}."


def _everywhere(found: Sequence[Difference], who: str) -> str:
    """One phrase when all pools agree; the table has the single numbers."""
    if len(found) < 2:
        return ""
    sizes = sorted(abs(one.score.mean) for one in found)
    by = f"by {number(sizes[0])} to {number(sizes[-1])} points"
    if all(one.ahead for one in found):
        return f"{who} is ahead everywhere, {by}"
    if all(one.behind for one in found):
        return f"{who} is behind everywhere, {by}"
    return "" if any(one.clear for one in found) else "there is no clear difference anywhere"


def _outcomes(found: Sequence[tuple[PoolInfo, Difference]], who: str, there: str = "There") -> str:
    """'IDA is ahead on old classes (+3.4 ± 0.3) but behind on …; there is no clear …'."""
    ahead = [(p, d) for p, d in found if d.ahead]
    behind = [(p, d) for p, d in found if d.behind]
    unclear = [(p, d) for p, d in found if not d.clear]
    both = (("ahead", ahead), ("behind", behind))
    sides = [f"{word} on {_places(some)}" for word, some in both if some]
    clauses = [f"{who} is {' but '.join(sides)}"] if sides else []
    if unclear:
        start = "there" if clauses else there
        clauses.append(f"{start} is no clear difference on {_places(unclear)}")
    return "; ".join(clauses)


def _places(found: Sequence[tuple[PoolInfo, Difference]]) -> str:
    return listing([f"{place(pool)} ({_gap(one)})" for pool, one in found])


def _gap(found: Difference) -> str:
    return " ± ".join(signed(found.score))
