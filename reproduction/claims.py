"""The paper's claims, each as differences that have to lie above a bound, and their verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from kedge.experiments.records import RecordSet
from reproduction.pooling import Effect, Pooled, Verdict, decide, pool, training_sd
from reproduction.studies import (
    AVERAGE,
    LONG,
    POOLS,
    SOURCES,
    Study,
    load_records,
    paper_studies,
    record_studies,
    shape_effects,
    two_rounds_effects,
)

MARGIN = 1.0  # points; a loss up to this counts as "no worse"
RIVALS = ("NU", "FT", "DFA", "EIML", "PAR")
BASELINES = ("NU", "FT", "DFA")  # EIML keeps images, and has a claim of its own
Scope = Callable[[Study], bool]


class Evidence:
    """All studies: those of our records by source, and the paper's."""

    def __init__(self, records: dict[str, RecordSet] | None = None) -> None:
        self.records = load_records() if records is None else records
        studies = [*record_studies(self.records), *paper_studies()]
        self.studies = {key: [s for s in studies if s.source == key] for key in SOURCES}

    @cached_property
    def training_sd(self) -> dict[str, float]:
        """How much IDA − another method differs between trainings of one study, by pool."""
        own = [s for s in (*self.studies["tiny"], *self.studies["drawings"]) if s.setting != LONG]
        by_pool = {
            kind: training_sd(
                [score.mean for score in study.trainings("IDA", rival, kind)]
                for study in own
                for rival in RIVALS
            )
            for kind in POOLS
        }
        # Of the mean of three pools, as if they varied together: the cautious choice.
        return {**by_pool, AVERAGE: sum(by_pool.values()) / len(by_pool)}

    def pooled(self, effects: Sequence[Effect], kind: str) -> Pooled | None:
        return pool(effects, self.training_sd[kind]) if effects else None

    def effects(self, source: str, a: str, b: str, kind: str, scope: Scope) -> list[Effect]:
        found = [s.effect(a, b, kind) for s in self.studies[source] if scope(s)]
        return [effect for effect in found if effect is not None]


# ── which tables count ───────────────────────────────────────────────────────────────────────


def short(study: Study) -> bool:
    """One or two updates, as in the paper."""
    return study.setting != LONG


def tables_1_to_6(study: Study) -> bool:
    """Repeats one of the paper's tables 1 to 6."""
    domain = study.setting == "domain" and study.n_shot == "5"
    return _as_in_paper(study) and (domain or study.setting in ("random", "many", "two rounds"))


def tables_1_and_7(study: Study) -> bool:
    """One update with prototypes, where the paper has EIML."""
    prototypes = study.head == "prototypes" and _as_in_paper(study)
    return prototypes and study.setting in ("random", "many", "domain")


def paragon_ahead(study: Study) -> bool:
    """Repeats table 1 or 6, and PAR is ahead of FT: else there is nothing to approach."""
    lead = study.effect("PAR", "FT", "unseen")
    repeats = study.head == "prototypes" and study.setting in ("random", "two rounds")
    return repeats and lead is not None and lead.mean > 0


def other_domain(study: Study) -> bool:
    """Repeats one of tables 4, 5 and 8 to 13."""
    return _as_in_paper(study) and study.setting in ("domain", "reverse")


def _as_in_paper(study: Study) -> bool:
    """The paper has neither ridge nor episodes that vary in shape."""
    return study.head != "ridge" and study.n_shot in ("1", "5")


# ── claims ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Part:
    """A difference of which a claim says that it lies above a bound."""

    label: str  # "IDA − FT"
    kind: str  # pool, or AVERAGE
    effects: Callable[[Evidence, str], list[Effect]]
    bound: float = 0.0


@dataclass(frozen=True)
class Claim:
    sentence: str
    place: str  # where the paper says it
    parts: tuple[Part, ...]

    def judge(self, evidence: Evidence, source: str) -> Finding:
        pooled = [evidence.pooled(part.effects(evidence, source), part.kind) for part in self.parts]
        return Finding(source, tuple(zip(self.parts, pooled, strict=True)))


@dataclass(frozen=True)
class Finding:
    """What one source says to a claim."""

    source: str
    parts: tuple[tuple[Part, Pooled | None], ...]

    @property
    def verdict(self) -> Verdict:
        return decide(p.verdict(part.bound) if p else Verdict.NO_TABLE for part, p in self.parts)

    @property
    def weakest(self) -> tuple[Part, Pooled] | None:
        """The part that is least in favour of the claim."""
        known = [(part, pooled) for part, pooled in self.parts if pooled]
        return min(known, key=lambda pair: pair[1].low - pair[0].bound) if known else None


def _parts(
    a: str | Sequence[str],
    b: str | Sequence[str],
    kinds: str | Sequence[str],
    scope: Scope,
    bound: float = 0.0,
) -> tuple[Part, ...]:
    """a − b for every method in `a` and `b` and every pool in `kinds`."""
    lists = [[each] if isinstance(each, str) else each for each in (kinds, a, b)]
    return tuple(
        Part(f"{_short(x)} − {_short(y)}", kind, partial(_effects, x, y, kind, scope), bound)
        for kind, x, y in itertools.product(*lists)
    )


def _effects(
    a: str, b: str, kind: str, scope: Scope, evidence: Evidence, source: str
) -> list[Effect]:
    return evidence.effects(source, a, b, kind, scope)


def _short(method: str) -> str:
    return method.replace("IDA lambda=", "λ=").replace("EIML exemplars=", "EIML with ")


def _two_rounds(evidence: Evidence, source: str) -> list[Effect]:
    return two_rounds_effects(source, evidence.records)


def _shapes(evidence: Evidence, source: str) -> list[Effect]:
    return shape_effects(source, evidence.records)


def _domain_gain(evidence: Evidence, source: str) -> list[Effect]:
    """Gain over NU on unseen classes of the new domain − on those of the old one."""
    effects = []
    for study in filter(other_domain, evidence.studies[source]):
        new, old = (study.effect("IDA", "NU", f"unseen_{one}_domain") for one in ("new", "old"))
        if new and old:
            ci = math.hypot(new.ci, old.ci)
            effects.append(Effect(study.name, new.mean - old.mean, ci, new.n_trainings))
    return effects


CLAIMS = (
    Claim(
        "On unseen classes IDA is better than NU, FT and DFA.",
        "tables 1 to 6",
        _parts("IDA", BASELINES, "unseen", tables_1_to_6),
    ),
    Claim("IDA forgets less than FT.", "tables 1 to 6", _parts("IDA", "FT", "old", tables_1_to_6)),
    Claim(
        "IDA forgets less than DFA.", "tables 1 to 6", _parts("IDA", "DFA", "old", tables_1_to_6)
    ),
    Claim(
        "On new classes IDA trails FT and DFA.",
        "tables 1 to 6",
        _parts(("FT", "DFA"), "IDA", "new", tables_1_to_6),
    ),
    Claim(
        "On average over old, new and unseen classes IDA is best.",
        "tables 1 to 6",
        _parts("IDA", BASELINES, AVERAGE, tables_1_to_6),
    ),
    Claim(
        "On unseen classes IDA matches PAR, which sees all data.",
        "tables 1 and 6",
        _parts("IDA", "PAR", "unseen", paragon_ahead, -MARGIN),
    ),
    Claim(
        "On unseen classes IDA is no worse than EIML, which keeps images.",
        "tables 1 and 7",
        _parts("IDA", "EIML", "unseen", tables_1_and_7, -MARGIN),
    ),
    Claim(
        "Every update helps new and unseen classes.",
        "tables 1 to 6",
        _parts(("FT", "DFA", "IDA"), "NU", ("new", "unseen"), tables_1_to_6)
        + _parts("EIML", "NU", ("new", "unseen"), tables_1_and_7),
    ),
    Claim(
        "FT and DFA, which keep nothing of old classes, forget them.",
        "tables 1 to 6",
        _parts("NU", ("FT", "DFA"), "old", tables_1_to_6),
    ),
    Claim(
        "Nothing is lost when the new classes come in two updates.",
        "tables 1 and 6",
        (Part("IDA, two updates − one", "unseen", _two_rounds, -MARGIN),),
    ),
    Claim(
        "λ trades old classes for new ones, and unseen ones are best in between.",
        "appendix C",
        _parts("IDA lambda=10", "IDA lambda=0", "old", short)
        + _parts("IDA lambda=0", "IDA lambda=10", "new", short)
        + _parts("IDA lambda=1", ("IDA lambda=0", "IDA lambda=10"), "unseen", short),
    ),
    Claim(
        "More exemplars do not help EIML.",
        "appendix D",
        _parts("EIML exemplars=15", "EIML exemplars=60", POOLS, short, -MARGIN),
    ),
    Claim(
        "ECM depends less than prototypes on the ways and shots of its training.",
        "tables 14 and 15",
        (Part("range, prototypes − ECM", "unseen", _shapes),),
    ),
    Claim(
        "New classes of another domain help unseen ones, most of all those of that domain.",
        "tables 4, 5 and 8 to 13",
        (
            *_parts("IDA", "NU", "unseen", other_domain),
            Part("gain, new − old domain", "unseen", _domain_gain),
        ),
    ),
)
