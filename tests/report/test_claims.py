"""The claims of the paper on made-up records: every verdict is reached, and none is invented."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kedge.config import EpisodeShape
from kedge.evaluation.results import Score
from kedge.experiments import paper
from kedge.experiments.recipes import load_recipe, recipe_names
from kedge.experiments.records import (
    PairedDifference,
    PoolInfo,
    Record,
    RecordSet,
    Run,
)
from kedge.report.claims import (
    BODY,
    CLAIMS,
    MAIN,
    PROTOTYPES,
)
from kedge.report.claims import DOMAINS as DOMAIN_TABLES
from kedge.report.evidence import (
    FAMILIES,
    LABELS,
    Claim,
    Comparison,
    Finding,
    Outcome,
    Where,
    family_of,
    of_family,
    suffix_of,
)
from kedge.report.sections import Entry

RECORDS = Path(__file__).parents[2] / "records"
HELD, FAILED, OPEN, MISSING = Outcome
SEEN = ("old", "new", "unseen")
DOMAINS = ("old", "new", "unseen_old_domain", "unseen_new_domain", "unseen_both")
Rows = dict[str, tuple[float, ...]]
ROWS: Rows = {  # all that the paper says is so
    "NU": (76.0, 60.0, 64.0),
    "FT": (64.0, 84.0, 66.0),
    "DFA": (66.0, 83.5, 66.0),
    "EIML": (74.0, 82.0, 67.0),
    "IDA": (73.0, 82.0, 69.0),
    "PAR": (77.0, 86.0, 68.6),
}


def a_record(
    rows: Rows = ROWS,
    pools: tuple[str, ...] = SEEN,
    *,
    shots: int = 5,
    ci: float = 0.3,
    seeds: dict[int, Rows] | None = None,
    rounds: tuple[int, ...] = (1,),
    unseen: str = "bee",
    epochs: int = 20,
) -> Record:
    """Each seed may change some rows."""
    shape = EpisodeShape(5, shots)
    infos = tuple(PoolInfo(pool, pool.replace("_", ", ", 1), 20, shape) for pool in pools)
    runs = [
        Run(seed, method, round, infos,
            {pool: Score(v, 0.4, 2000) for pool, v in zip(pools, values, strict=True)},
            (), 60.0, 100.0, 0.0, {"gpu": "none"})
        for seed, changed in (seeds or {0: {}}).items()
        for round in rounds
        for method, values in {**rows, **changed}.items()
    ]  # fmt: skip
    pairs = [
        PairedDifference(a.seed, a.round, pool, a.method, b.method,
             Score(a.scores[pool].mean - b.scores[pool].mean, ci, 2000))
        for a, b in itertools.combinations(runs, 2)
        if (a.seed, a.round) == (b.seed, b.round)
        for pool in pools
    ]  # fmt: skip
    config = {
        "episode": {"n_way": 5, "n_shot": shots, "n_query": 15},
        "schedule": {"epochs": epochs, "episodes": 400},
    }
    splits = {str(run.seed): {"unseen": {"unseen": [unseen]}} for run in runs}
    return Record("made-up", "Made up.", config, splits, tuple(runs), tuple(pairs))


def with_rows(**changed: tuple[float, ...]) -> Record:
    return a_record({**ROWS, **changed})


def in_three_seeds(**changed: tuple[float, ...]) -> Record:
    """Which all say the same."""
    return a_record({**ROWS, **changed}, seeds={0: {}, 1: {}, 2: {}})


def found(**records: Record | dict[str, Record]) -> dict[str, RecordSet]:
    """By suffix, with underscores for hyphens: found(pn=record) is a family with tiny-pn alone."""
    named = {name.replace("_", "-"): one for name, one in records.items()}
    return {
        suffix: RecordSet(f"tiny-{suffix}", "x", None, one if isinstance(one, dict) else {"": one})
        for suffix, one in named.items()
    }


def claim(start: str) -> Claim:
    (one,) = (claim for claim in CLAIMS if claim.sentence.startswith(start))
    return one


# ── the rule ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mean", "ci", "bound", "expected"),
    [
        (1.0, 0.9, 0.0, HELD),
        (1.0, 1.0, 0.0, OPEN),  # the interval touches the bound
        (-1.0, 0.9, 0.0, FAILED),
        (-0.5, 0.2, -1.0, HELD),  # clearly behind, but by less than counts
        (-0.9, 0.2, -1.0, OPEN),
        (-1.5, 0.2, -1.0, FAILED),
        (5.0, float("inf"), 0.0, OPEN),
    ],
)
def test_a_comparison_is_decided_by_the_whole_interval(
    mean: float, ci: float, bound: float, expected: Outcome
) -> None:
    three = Where("x", seeds=3)
    assert Comparison("a − b", "old", three, Score(mean, ci, 9), bound).outcome == expected


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_few_seeds_a_difference_has_to_be_clear_by_a_further_point(seeds: int) -> None:
    for mean, expected in [(1.6, HELD), (1.4, OPEN), (-1.4, OPEN), (-1.6, FAILED)]:
        one = Comparison("a − b", "old", Where("x", seeds), Score(mean, 0.5, 9))
        assert one.outcome == expected


def comparison(mean: float, *, decides: bool = True) -> Comparison:
    return Comparison("a − b", "old", Where("x", 3), Score(mean, 0.5, 9), decides=decides)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((1.0, 2.0), HELD),
        ((1.0, 0.1), OPEN),
        ((1.0, 0.1, -1.0), FAILED),  # one against it is enough
        ((), MISSING),
    ],
)
def test_a_claim_needs_all_of_its_comparisons(means: tuple[float, ...], expected: Outcome) -> None:
    some = tuple(map(comparison, means))
    assert Finding(CLAIMS[0], some).outcome == expected


def test_what_stands_beside_a_comparison_decides_nothing() -> None:
    held, beside = comparison(1.0), comparison(-1.0, decides=False)
    assert Finding(CLAIMS[0], (held, beside)).outcome == HELD
    assert Finding(CLAIMS[0], (beside,)).outcome == OPEN


# ── every verdict of every claim ─────────────────────────────────────────────────────────────


def domain(**changed: tuple[float, ...]) -> Record:
    rows = {
        "NU": (76.0, 60.0, 64.0, 62.0, 63.0),
        "FT": (64.0, 84.0, 60.0, 70.0, 66.0),
        "DFA": (66.0, 83.0, 61.0, 70.0, 66.5),
        "IDA": (73.0, 83.0, 66.0, 71.0, 69.0),
    }
    return a_record({**rows, **changed}, DOMAINS)


def sweep(**changed: tuple[float, ...]) -> Record:
    rows = {"0": (64.0, 84.0, 65.0), "1": (73.0, 83.0, 69.0), "10": (75.0, 70.0, 66.0)}
    values = {**rows, **{key.removeprefix("at_"): value for key, value in changed.items()}}
    return a_record({"NU": ROWS["NU"], **{f"IDA lambda={k}": v for k, v in values.items()}})


def exemplars(most: tuple[float, ...], more: tuple[float, ...] = (74.0, 83.0, 68.0)) -> Record:
    few = (74.0, 83.0, 68.0)
    rows = {"EIML exemplars=15": few, "EIML exemplars=30": more, "EIML exemplars=60": most}
    return a_record({**rows, "IDA": ROWS["IDA"]})


def shapes(*, step: float) -> dict[str, Record]:
    """Base models trained at three shapes, each so much better than the one before."""
    tests = ("unseen", "unseen at 10-way 1-shot")
    parts = {}
    for at, (shots, ways) in enumerate([(1, 5), (1, 10), (5, 10)]):
        pools = (
            PoolInfo(tests[0], "unseen", 20, EpisodeShape(5, 5)),
            PoolInfo(tests[1], "unseen", 20, EpisodeShape(10, 1)),
        )
        scores = {test: Score(50.0 + step * at, 0.4, 2000) for test in tests}
        run = Run(0, "NU", 0, pools, scores, (), 60.0, 100.0, 0.0, {})
        config = {"episode": {"n_way": ways, "n_shot": shots, "n_query": 15}}
        parts[f"{shots}-shot {ways}-way"] = Record("x", "X.", config, {}, (run,), ())
    return parts


def twice(unseen: float, **more: str) -> Record:
    rows = {**ROWS, "IDA": (73.0, 83.0, unseen)}
    return a_record(rows, rounds=(1, 2), **more)


CASES: dict[str, dict[Outcome, Callable[[], dict[str, RecordSet]]]] = {
    "On unseen": {
        HELD: lambda: found(pn=a_record(), ecm=a_record()),
        FAILED: lambda: found(pn=a_record(), ecm=with_rows(EIML=(74.0, 83.0, 71.0))),
        OPEN: lambda: found(pn=with_rows(DFA=(66.0, 83.0, 68.9)), ecm=a_record()),
        MISSING: lambda: found(rounds=a_record()),
    },
    "IDA forgets less than fine": {
        HELD: lambda: found(pn=a_record()),
        FAILED: lambda: found(pn=a_record(), ecm=with_rows(IDA=(62.0, 83.0, 69.0))),
        OPEN: lambda: found(pn=with_rows(IDA=(64.2, 83.0, 69.0))),
        MISSING: lambda: found(pn=a_record({"NU": ROWS["NU"], "IDA": ROWS["IDA"]})),
    },
    "IDA forgets less than direct": {
        HELD: lambda: found(pn=a_record()),
        FAILED: lambda: found(pn=with_rows(DFA=(76.0, 65.0, 66.0))),
        OPEN: lambda: found(pn=with_rows(DFA=(73.1, 65.0, 66.0))),
        MISSING: lambda: found(pn_seeds=a_record({m: ROWS[m] for m in ("NU", "FT", "IDA")})),
    },
    "On new": {
        HELD: lambda: found(pn=a_record()),
        FAILED: lambda: found(pn=a_record(), ecm=with_rows(DFA=(76.0, 65.0, 66.0))),
        OPEN: lambda: found(pn=with_rows(FT=(64.0, 82.2, 66.0))),
        MISSING: lambda: found(pn=a_record({"NU": ROWS["NU"], "IDA": ROWS["IDA"]})),
    },
    "On average": {
        HELD: lambda: found(pn=with_rows(EIML=(70.0, 80.0, 68.0)), domain_pn=domain()),
        FAILED: lambda: found(pn=with_rows(EIML=(76.0, 85.0, 69.0))),  # by 2 points
        OPEN: lambda: found(pn=with_rows(EIML=(76.0, 82.0, 69.0))),
        MISSING: lambda: found(rounds=a_record()),
    },
    "IDA approaches": {
        HELD: lambda: found(pn=a_record()),
        FAILED: lambda: found(pn=a_record(), pn_long=with_rows(PAR=(77.0, 86.0, 72.0))),
        OPEN: lambda: found(pn=with_rows(PAR=(77.0, 86.0, 64.0))),  # PAR is behind FT
        MISSING: lambda: found(pn=a_record({m: ROWS[m] for m in ("FT", "PAR")})),
    },
    "EIML": {
        # Three seeds: EIML is ahead, by less than 1.
        HELD: lambda: found(pn=in_three_seeds(EIML=(76.0, 83.0, 69.5))),
        FAILED: lambda: found(pn=a_record(), domain_pn=with_rows(EIML=(74.0, 83.0, 72.0))),
        OPEN: lambda: found(pn=with_rows(EIML=(74.0, 83.0, 70.0))),
        MISSING: lambda: found(ecm=a_record()),
    },
    "Every update": {
        HELD: lambda: found(pn=a_record()),
        FAILED: lambda: found(pn=with_rows(FT=(64.0, 84.0, 62.0))),
        OPEN: lambda: found(pn=with_rows(DFA=(76.0, 60.2, 66.0))),
        MISSING: lambda: found(pn=a_record({"FT": ROWS["FT"], "IDA": ROWS["IDA"]})),
    },
    "FT and DFA": {
        HELD: lambda: found(pn=a_record()),
        FAILED: lambda: found(pn=with_rows(DFA=(78.0, 70.0, 66.0))),
        OPEN: lambda: found(pn=with_rows(DFA=(75.9, 70.0, 66.0))),
        MISSING: lambda: found(pn=a_record({"FT": ROWS["FT"], "IDA": ROWS["IDA"]})),
    },
    "Nothing is lost": {
        HELD: lambda: found(pn=a_record(), two_rounds=twice(69.8)),
        FAILED: lambda: found(pn=a_record(), two_rounds=twice(66.0)),
        OPEN: lambda: found(pn=a_record(), two_rounds=twice(68.2)),
        MISSING: lambda: found(two_rounds=twice(69.2)),
    },
    "λ": {
        HELD: lambda: found(lambda_sweep=sweep()),
        FAILED: lambda: found(lambda_sweep=sweep(at_10=(60.0, 70.0, 66.0))),
        OPEN: lambda: found(lambda_sweep=sweep(at_0=(64.0, 84.0, 69.1))),
        MISSING: lambda: found(pn=a_record()),
    },
    "More exemplars": {
        HELD: lambda: found(exemplar_sweep=exemplars((73.5, 82.5, 67.5), more=(73.0, 82.0, 67.0))),
        FAILED: lambda: found(exemplar_sweep=exemplars((77.0, 83.0, 68.0))),
        OPEN: lambda: found(exemplar_sweep=exemplars((74.0, 84.0, 68.0))),
        MISSING: lambda: found(pn=a_record()),
    },
    "ECM": {
        HELD: lambda: found(ways_shots_pn=shapes(step=3), ways_shots_ecm=shapes(step=0.5)),
        FAILED: lambda: found(ways_shots_pn=shapes(step=3), ways_shots_ecm=shapes(step=2.5)),
        OPEN: lambda: found(ways_shots_pn=shapes(step=3), ways_shots_ecm=shapes(step=1.5)),
        MISSING: lambda: found(ways_shots_ecm=shapes(step=0)),
    },
    "New classes": {
        HELD: lambda: found(domain_pn=domain(), domain_reverse_ecm=domain()),
        # The gain over NU is larger in the old domain.
        FAILED: lambda: found(domain_pn=domain(IDA=(73.0, 83.0, 76.0, 71.0, 69.0))),
        OPEN: lambda: found(domain_pn=domain(FT=(64.0, 84.0, 60.0, 70.0, 68.9))),
        MISSING: lambda: found(pn=a_record()),
    },
}


def test_every_claim_has_its_cases() -> None:
    assert [claim(start) for start in CASES] == list(CLAIMS)
    assert all(set(cases) == set(Outcome) for cases in CASES.values())


@pytest.mark.parametrize(
    ("start", "expected"), [(start, outcome) for start in CASES for outcome in Outcome]
)
def test_every_verdict_of_every_claim_is_reached(start: str, expected: Outcome) -> None:
    finding = claim(start).judge(CASES[start][expected]())
    assert finding.outcome == expected
    assert bool(finding.sentences) == (expected != MISSING)


# ── what a finding says ──────────────────────────────────────────────────────────────────────


def test_the_numbers_are_those_of_the_record_and_nothing_is_said_twice() -> None:
    (said,) = claim("On unseen").judge(found(pn=a_record())).sentences
    assert said == (
        "Prototypes, 5-shot, one seed: IDA − NU +5.0 ± 0.3, − FT +3.0 ± 0.3, − DFA +3.0 ± 0.3, "
        "− EIML +2.0 ± 0.3 on unseen."
    )


def test_of_several_tables_the_counts_and_the_worst_are_told() -> None:
    worse = with_rows(EIML=(74.0, 83.0, 71.0), FT=(64.0, 84.0, 69.1))
    one, all_of_them = claim("On unseen").judge(found(pn=a_record(), ecm=worse)).sentences
    assert one.startswith("Prototypes, 5-shot, one seed: ")
    assert all_of_them == (
        "Comparisons that count: 6 of 8 for it, 1 against and 1 unclear. Least favourable (ECM, "
        "5-shot, one seed): IDA − EIML −2.0 ± 0.3 on unseen."
    )


def test_one_seed_does_not_count_beside_several() -> None:
    """What only the one has is told as well."""
    several = a_record(
        {m: ROWS[m] for m in ("NU", "FT", "IDA")},
        seeds={0: {}, 1: {"FT": (64.0, 84.0, 65.0)}, 2: {"FT": (64.0, 84.0, 67.0)}},
    )
    finding = claim("On unseen").judge(found(pn=a_record(), pn_seeds=several))
    assert finding.sentences == [
        "Prototypes, 5-shot, 3 seeds: IDA − NU +5.0 ± 0.0, − FT +3.0 ± 2.5 on unseen; one seed: "
        "IDA − DFA +3.0 ± 0.3, − EIML +2.0 ± 0.3 on unseen."
    ]
    assert len(finding.deciding) == 4


def test_what_was_lost_stands_beside_what_was_kept() -> None:
    (said,) = claim("IDA forgets less than fine").judge(found(pn=a_record())).sentences
    assert said.endswith("IDA − FT +9.0 ± 0.3, FT − NU −12.0 ± 0.3, IDA − NU −3.0 ± 0.3 on old.")


def test_what_was_lost_is_told_of_what_the_base_had_learned() -> None:
    """After two updates the first one's classes are old, too, and NU never learned them."""
    rows = {"NU": (60.0, 60.0, 64.0, 76.0), "FT": (64.0, 84.0, 65.0, 58.0),
            "IDA": (70.0, 82.0, 69.0, 73.0)}  # fmt: skip
    record = a_record(rows, (*SEEN, "round_0"), rounds=(1, 2))
    (said,) = claim("IDA forgets less than fine").judge(found(two_rounds=record)).sentences
    assert said.endswith(
        "IDA − FT +6.0 ± 0.3 on old, FT − NU −18.0 ± 0.3, IDA − NU −3.0 ± 0.3 on those of the base."
    )
    assert claim("FT and DFA").judge(found(two_rounds=record)).outcome == HELD


def test_an_average_is_over_pools_and_then_over_seeds() -> None:
    seeds = {0: {}, 1: {"FT": (67.0, 84.0, 66.0)}, 2: {"FT": (61.0, 84.0, 66.0)}}
    rows = {m: ROWS[m] for m in ("NU", "FT", "IDA")}
    average = claim("On average")
    one, several = (
        {c.what: c.score for c in average.judge(found(pn=record)).comparisons}["IDA − FT"]
        for record in (a_record(rows), a_record(rows, seeds=seeds))
    )
    assert (one.mean, one.ci) == pytest.approx(((9 - 2 + 3) / 3, 0.3 * 3**0.5 / 3))
    # The seeds have 10/3, 10/3 − 1 and 10/3 + 1.
    assert (several.mean, several.ci) == pytest.approx((10 / 3, 4.3027 / 3**0.5), rel=1e-4)


def test_where_nothing_was_forgotten_nothing_was_kept() -> None:
    same = with_rows(FT=(75.0, 84.0, 65.0), IDA=(77.0, 83.0, 69.0))
    finding = claim("IDA forgets less than fine").judge(found(pn=same))
    assert finding.outcome == OPEN
    assert finding.sentences[0].startswith("No table that repeats one of the paper’s tables 1 to 6")
    both = claim("IDA forgets less than fine").judge(found(pn=same, ecm=a_record()))
    assert both.outcome == HELD
    assert both.sentences[0].startswith("ECM, 5-shot")


def without_nu(classes: int = 20, seeds: dict[int, Rows] | None = None) -> Record:
    """FT and IDA, and round 0, in which both are what NU would still be."""
    after = a_record({m: ROWS[m] for m in ("FT", "IDA")}, seeds=seeds)
    before = a_record(dict.fromkeys(("FT", "IDA"), ROWS["NU"]), rounds=(0,), seeds=seeds)
    known = (PoolInfo("old", "old", classes, EpisodeShape(5, 5)),)
    return replace(after, runs=(*(replace(run, pools=known) for run in before.runs), *after.runs))


def test_without_nu_what_was_lost_is_told_from_round_0() -> None:
    keeps = claim("IDA forgets less than fine")
    finding = keeps.judge(found(pn=without_nu()))
    assert finding.outcome == HELD
    assert finding.sentences == [
        "Prototypes, 5-shot, one seed: IDA − FT +9.0 ± 0.3, FT − the model before (NU was not run) "
        "−12.0 ± 0.6, IDA − the model before (NU was not run) −3.0 ± 0.6 on old."
    ]
    by_seed = keeps.judge(found(pn_seeds=without_nu(seeds={0: {}, 1: {}, 2: {}})))
    assert [one.score.ci for one in by_seed.comparisons] == [0.0, 0.0, 0.0]  # the seeds agree


def test_what_was_not_run_is_missed_in_several_seeds_too() -> None:
    """Where intervals are over seeds."""
    seeds: dict[int, Rows] = {0: {}, 1: {}, 2: {}}
    some = {m: ROWS[m] for m in ("NU", "FT", "IDA")}
    once, twice = (a_record(some, seeds=seeds, rounds=r) for r in ((1,), (1, 2)))
    for each in CLAIMS:
        each.judge(found(**{"pn": once, "two-rounds": twice}))
    (said,) = claim("Nothing is lost").judge(found(**{"pn": once, "two-rounds": twice})).sentences
    assert "DFA" not in said


def test_round_0_tells_nothing_where_other_classes_are_old_by_now() -> None:
    finding = claim("IDA forgets less than fine").judge(found(pn=without_nu(classes=5)))
    assert finding.outcome == OPEN
    assert [one.what for one in finding.comparisons] == ["IDA − FT"]
    assert " shows FT clearly behind the model before the update" in finding.sentences[0]


def test_a_paragon_that_is_not_ahead_of_fine_tuning_is_none() -> None:
    finding = claim("IDA approaches").judge(found(pn=with_rows(PAR=(77.0, 86.0, 65.1))))
    assert finding.outcome == OPEN
    assert finding.sentences[0].startswith("In no table that repeats the paper’s table 1 or 6")


def test_two_rounds_count_where_the_paragon_is_approached() -> None:
    behind = longer(2, PAR=(80.0, 86.0, 90.0))
    finding = claim("IDA approaches").judge(found(**{"pn": a_record(), "two-rounds": behind}))
    assert finding.outcome == FAILED


def test_table_1_trained_again_counts() -> None:
    behind = {"pn": a_record(), "pn-long-again": with_rows(PAR=(80.0, 86.0, 90.0))}
    _, against = claim("IDA approaches").judge(found(**behind)).deciding
    assert (against.outcome, against.where.record) == (FAILED, "tiny-pn-long-again")


def test_table_6_trained_again_counts_and_of_eiml_stands_beside() -> None:
    """Of whom the paper has one update alone."""
    again = longer(2, EIML=(80.0, 86.0, 90.0))
    both = found(**{"pn": a_record(), "two-rounds": longer(2), "two-rounds-again": again})
    (against,) = [one for one in claim("On unseen").judge(both).deciding if one.outcome == FAILED]
    assert (against.what, against.where.record) == ("IDA − EIML", "tiny-two-rounds-again")
    beside = claim("EIML").judge(both)
    assert beside.outcome == claim("EIML").judge(found(pn=a_record())).outcome
    assert "(prototypes, trained again, 5-shot, 2 updates, one seed)" in beside.sentences[-1]


def test_what_counts_as_no_worse_is_said() -> None:
    (said,) = claim("EIML").judge(found(pn=with_rows(EIML=(74.0, 83.0, 69.2)))).sentences
    assert said.endswith("on new; down to −1 counts as no worse.")
    (said,) = claim("On unseen").judge(found(pn=a_record())).sentences
    assert "no worse" not in said


# ── longer runs than the paper's ─────────────────────────────────────────────────────────────


def longer(updates: int = 15, **changed: tuple[float, ...]) -> Record:
    return a_record({**ROWS, **changed}, rounds=tuple(range(1, updates + 1)))


def test_a_long_run_decides_nothing_and_is_told_where_it_says_otherwise() -> None:
    eiml = claim("EIML")
    against = longer(EIML=(80.0, 83.0, 78.0))
    finding = eiml.judge(found(pn=a_record(), rounds=against))
    assert finding.outcome == HELD
    assert finding.sentences[-1] == (
        "Not counted, but clear in a run of several updates (prototypes, 5-shot, 15 "
        "updates, one seed): IDA − EIML −9.0 ± 0.3 on unseen."
    )
    last = finding.comparisons[-1]
    assert (last.decides, last.aside, last.outcome) == (False, True, FAILED)
    assert len(eiml.judge(found(pn=a_record(), rounds=longer())).sentences) == 1  # it agrees
    level = longer(EIML=(74.0, 83.0, 70.0))
    assert len(eiml.judge(found(pn=a_record(), rounds=level)).sentences) == 1  # it is unclear
    assert eiml.judge(found(rounds=against)).outcome == MISSING


@pytest.mark.parametrize(
    ("start", "counted", "long", "told"),
    [
        ("On unseen", {}, {"EIML": (74.0, 83.0, 71.0)}, "IDA − EIML −2.0 ± 0.3 on unseen."),
        ("IDA forgets less than fine", {}, {"FT": (75.0, 84.0, 65.0)}, "FT −2.0 ± 0.3 on old."),
        ("IDA forgets less than dir", {"DFA": (75.0, 65.0, 66.0)}, {}, "DFA +7.0 ± 0.3 on old."),
        ("IDA approaches", {}, {"PAR": (77.0, 86.0, 72.0)}, "IDA − PAR −3.0 ± 0.3 on unseen."),
    ],
)
def test_every_claim_about_methods_has_the_long_runs_beside_it(
    start: str, counted: Rows, long: Rows, told: str
) -> None:
    short = claim(start).judge(found(pn=with_rows(**counted)))
    both = claim(start).judge(found(pn=with_rows(**counted), **{"16_rounds": longer(**long)}))
    assert both.outcome == short.outcome
    assert both.sentences[:-1] == short.sentences
    assert both.sentences[-1].endswith(told)
    assert "runs of more than two updates" in claim(start).rule


def test_a_long_run_whose_paragon_is_none_is_left_out() -> None:
    behind = longer(PAR=(77.0, 86.0, 60.0))
    finding = claim("IDA approaches").judge(found(pn=a_record(), rounds=behind))
    assert [one.where for one in finding.comparisons if one.aside] == []
    goes_on = longer(PAR=(77.0, 86.0, 60.0), **{"PAR start=last": (77.0, 86.0, 75.0)})
    finding = claim("IDA approaches").judge(found(pn=a_record(), rounds=goes_on))
    assert finding.sentences[-1].endswith("IDA − PAR start=last −6.0 ± 0.3 on unseen.")


# ── what a rule says is what is counted ──────────────────────────────────────────────────────


def repeated(numbers: Iterable[int]) -> set[str]:
    """The recipes of both families that repeat one of these tables of the paper."""
    ours = (name for name in recipe_names() if family_of(name))
    tables = {name: load_recipe(name).paper for name in ours}
    return {
        suffix_of(name)
        for name, table in tables.items()
        if table is not None and paper.table(table).number in numbers
    }


@pytest.mark.parametrize(
    ("counted", "numbers"),
    [
        (MAIN, {1}),
        (BODY, range(1, 7)),
        (DOMAIN_TABLES, {4, 5, *range(8, 14)}),
        (PROTOTYPES, {1, 7}),
    ],
)
def test_all_that_repeats_a_table_which_a_rule_names_is_counted(
    counted: tuple[str, ...], numbers: Iterable[int]
) -> None:
    assert repeated(numbers)
    assert repeated(numbers) - set(counted) == set()


def test_every_record_of_one_update_with_prototypes_counts_for_eiml() -> None:
    missing = []
    for folder in (path for path in RECORDS.iterdir() if path.is_dir()):
        entry = Entry.load(folder).collection
        for record in entry.parts.values():
            plain = {"IDA", "EIML"} <= set(record.methods)
            if plain and record.rounds[-1] == 1 and record.config["head"]["head"] == "prototype":
                missing += [entry.name] if suffix_of(entry.name) not in PROTOTYPES else []
    assert missing == []


def test_from_three_seeds_on_the_interval_is_over_seeds() -> None:
    """Each seed is clear by itself, and they disagree."""
    seeds = {0: {}, 1: {"IDA": (73.0, 83.0, 75.0)}, 2: {"IDA": (73.0, 83.0, 66.6)}}
    record = a_record({m: ROWS[m] for m in ("NU", "FT", "IDA")}, seeds=seeds)
    finding = claim("On unseen").judge(found(pn_seeds=record))
    assert finding.outcome == OPEN
    assert {str(one.where) for one in finding.comparisons} == {"prototypes, 5-shot, 3 seeds"}
    two = a_record({m: ROWS[m] for m in ("NU", "FT", "IDA")}, seeds={0: {}, 1: seeds[2]})
    assert claim("On unseen").judge(found(pn_seeds=two)).outcome == HELD


def test_tables_are_called_by_head_shots_and_domain() -> None:
    records = found(
        pn={"1-shot": a_record(shots=1), "5-shot": a_record()}, ecm=a_record(), domain_pn=domain()
    )
    finding = claim("On unseen").judge(records)
    assert list(dict.fromkeys(one.where.about for one in finding.comparisons)) == [
        "prototypes, 1-shot",
        "prototypes, 5-shot",
        "ECM, 5-shot",
        "natural → man-made, prototypes, 5-shot",
    ]
    assert finding.sentences[0].startswith("Prototypes, 5-shot, one seed: ")


# ── what may be compared ─────────────────────────────────────────────────────────────────────


def test_two_rounds_are_held_against_one_only_where_all_else_is_alike() -> None:
    nothing = claim("Nothing is lost")
    assert nothing.judge(found(pn=a_record(unseen="pan"), two_rounds=twice(69.2))).outcome == (
        MISSING
    )
    for other in (a_record(shots=1), a_record(epochs=40)):
        assert nothing.judge(found(pn=other, two_rounds=twice(69.2))).outcome == MISSING
    finding = nothing.judge(found(pn=a_record(), two_rounds=twice(69.2)))
    assert [(one.what, one.decides) for one in finding.comparisons] == [
        ("IDA in two rounds − in one", True),
        ("FT in two rounds − in one", False),
        ("DFA in two rounds − in one", False),
        ("EIML in two rounds − in one", False),
        ("PAR in two rounds − in one", False),
    ]
    ours = finding.comparisons[0].score
    assert (ours.mean, ours.ci) == pytest.approx((0.2, 0.4 * 2**0.5))  # trained apart


def test_ranges_are_taken_over_the_same_training_shapes() -> None:
    fewer = shapes(step=0.5)
    del fewer["1-shot 10-way"]
    records = found(ways_shots_pn=shapes(step=3), ways_shots_ecm=fewer)
    assert claim("ECM").judge(records).outcome == MISSING


def test_a_family_is_told_by_how_its_names_begin() -> None:
    named = {name: RecordSet(name, "x", None, {"": a_record()}) for name in
             ("tiny", "tiny-pn", "tinyish-pn", "drawings-mini-pn", "mine")}  # fmt: skip
    assert list(of_family("tiny", named.values())) == ["", "pn"]
    assert list(of_family("drawings", named.values())) == ["mini-pn"]
    assert [family_of(name) for name in ("tinyish-pn", "mine")] == [None, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_claim_has_recipes_in_every_family(family: str) -> None:
    """Each of the records that would decide it is asked for by a recipe of that name."""
    there = {suffix_of(name) for name in recipe_names() if family_of(name) == family}
    for start, cases in CASES.items():
        needed = cases[HELD]().keys()
        twins = {s: {s, f"mini-{s}", f"{s}-5shot", f"heads-{s}"} for s in needed}
        missing = [suffix for suffix in needed if not twins[suffix] & there]
        assert missing == [], start


def test_every_recipe_on_tiny_imagenet_is_known_by_name() -> None:
    tiny = {suffix_of(name) for name in recipe_names() if family_of(name) == "tiny"}
    assert tiny <= set(LABELS)
