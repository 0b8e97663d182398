"""How verdicts come about: pooling by hand-computed cases, and which tables count for a claim."""

from __future__ import annotations

import pytest
from reproduction.claims import CLAIMS, MARGIN, Claim, Evidence
from reproduction.pooling import Effect, Verdict, decide, pool, training_sd
from reproduction.studies import FIRST, LAST, Study

from kedge.evaluation.results import Score

HELD, FAILED, UNDECIDED, NO_TABLE = Verdict


def claim(start: str) -> Claim:
    (found,) = (one for one in CLAIMS if one.sentence.startswith(start))
    return found


def effects(*means: float, ci: float = 1.96) -> list[Effect]:
    return [Effect(str(i), mean, ci) for i, mean in enumerate(means)]


# ── pooling ──────────────────────────────────────────────────────────────────────────────────


def test_random_effects_mean_of_equal_variances() -> None:
    """Weights 1, Q = 8, variance between tables (8 − 2) / 2 = 3, interval 1.96 / √(3 / 4)."""
    pooled = pool(effects(1.0, 3.0, 5.0), 0.0)
    assert pooled.mean == pytest.approx(3.0)
    assert pooled.between_sd == pytest.approx(3**0.5)
    assert pooled.ci == pytest.approx(1.96 / 0.75**0.5)


def test_random_effects_mean_of_unequal_variances() -> None:
    """Variances 1 and 4: Q = 3.2, between (3.2 − 1) / 0.4 = 5.5, weights 1 / 6.5 and 1 / 9.5."""
    pooled = pool([Effect("a", 0.0, 1.96), Effect("b", 4.0, 2 * 1.96)], 0.0)
    assert pooled.between_sd**2 == pytest.approx(5.5)
    assert pooled.mean == pytest.approx(4 * 6.5 / 16.0)


def test_another_training_is_part_of_the_variance() -> None:
    assert Effect("a", 1.0, 1.96).variance(2.0) == pytest.approx(1 + 4)
    assert Effect("a", 1.0, 1.96, n_trainings=2).variance(2.0) == pytest.approx(1 + 2)
    apart = Effect("a", 1.0, 1.96, n_trainings=2, independent=True)
    assert apart.variance(2.0) == pytest.approx(1 + 2 + 4)


def test_standard_deviation_within_groups() -> None:
    """Squares 2 with one degree of freedom and 6 with two; a single training tells nothing."""
    assert training_sd([[1.0, 3.0], [2.0, 2.0, 5.0], [7.0]]) == pytest.approx((8 / 3) ** 0.5)
    assert training_sd([[1.0]]) == 0.0


def test_one_outlier_among_many_tables_does_not_decide() -> None:
    assert pool(effects(*[3.0] * 9, -3.0, ci=0.3), 1.0).verdict() == HELD


def test_no_worse_can_be_reached_and_missed() -> None:
    assert pool(effects(*[-0.1] * 6, ci=0.3), 1.0).verdict(-MARGIN) == HELD
    assert pool(effects(*[-0.1] * 3, ci=0.3), 1.0).verdict(-MARGIN) == UNDECIDED
    assert pool(effects(*[-3.0] * 6, ci=0.3), 1.0).verdict(-MARGIN) == FAILED


def test_a_claim_holds_if_all_its_parts_do() -> None:
    assert decide([HELD, HELD]) == HELD
    assert decide([HELD, NO_TABLE]) == HELD
    assert decide([HELD, UNDECIDED]) == UNDECIDED
    assert decide([HELD, UNDECIDED, FAILED]) == FAILED
    assert decide([NO_TABLE]) == NO_TABLE


# ── studies ──────────────────────────────────────────────────────────────────────────────────


def test_a_study_averages_trainings_and_turns_signs() -> None:
    study = Study("tiny", "random", "prototypes", "5", "x")
    for mean in (2.0, 4.0, 4.0):  # the last is a run that two records share
        study.add(("IDA", "FT", "old", LAST), Score(mean, 3.0, 2000))
    effect = study.effect("FT", "IDA", "old")
    assert effect is not None
    assert (effect.mean, effect.n_trainings) == (-3.0, 2)
    assert effect.ci == pytest.approx(18**0.5 / 2)
    assert study.effect("IDA", "FT", "average") is None


def test_against_nu_old_classes_are_those_of_the_base() -> None:
    study = Study("tiny", "two rounds", "prototypes", "5", "x")
    study.add(("IDA", "NU", "old", FIRST), Score(-1.0, 0.1, 2000))
    study.add(("IDA", "NU", "old", LAST), Score(9.0, 0.1, 2000))
    effect = study.effect("IDA", "NU", "old")
    assert effect is not None
    assert effect.mean == -1.0


def test_seeds_and_replicates_are_trainings_of_one_study(evidence: Evidence) -> None:
    by_folder = {folder: s for s in evidence.studies["tiny"] for folder in s.links}
    assert by_folder["tiny-pn"] is by_folder["tiny-pn-seeds"]
    assert by_folder["tiny-pn-long"] is by_folder["tiny-pn-long.replicate-2"]
    assert by_folder["tiny-pn"] is not by_folder["tiny-pn-long"]
    assert len(by_folder["tiny-pn"].trainings("IDA", "FT", "old")) == 3
    assert len(by_folder["tiny-pn"].trainings("IDA", "EIML", "old")) == 1
    assert len(by_folder["tiny-pn-long"].trainings("IDA", "FT", "old")) == 2


def test_an_effect_is_the_mean_of_the_pairs_of_its_records(evidence: Evidence) -> None:
    record = evidence.records["tiny-pn-seeds"].parts[""]
    pairs = [p.difference.mean for p in record.pairs if (p.a, p.b, p.pool) == ("FT", "IDA", "old")]
    (study,) = (s for s in evidence.studies["tiny"] if "tiny-pn-seeds" in s.links)
    effect = study.effect("IDA", "FT", "old")
    assert effect is not None
    assert effect.mean == pytest.approx(-sum(pairs) / 3)


# ── which tables count ───────────────────────────────────────────────────────────────────────


def counted(start: str, evidence: Evidence, source: str) -> set[str]:
    finding = claim(start).judge(evidence, source)
    return {effect.table for _, pooled in finding.parts if pooled for effect in pooled.effects}


def test_no_comparison_that_the_paper_does_not_make_decides(evidence: Evidence) -> None:
    for source in ("tiny", "drawings"):
        eiml = counted("On unseen classes IDA is no worse", evidence, source)
        assert eiml
        assert not any("two rounds" in table or "updates" in table for table in eiml)
        for one in CLAIMS:
            tables = counted(one.sentence, evidence, source)
            assert not any("ridge" in t or "hard tasks" in t or "updates," in t for t in tables)


def test_the_paper_is_judged_by_its_own_tables(evidence: Evidence) -> None:
    assert len(counted("IDA forgets less than FT", evidence, "paper")) == 9  # tables 1 to 6
    assert len(counted("On unseen classes IDA is no worse", evidence, "paper")) == 6
    finding = claim("IDA forgets less than FT").judge(evidence, "paper")
    (_, pooled), *_ = finding.parts
    assert pooled is not None
    means = {effect.table: effect.mean for effect in pooled.effects}
    assert means["prototypes, 5-shot"] == pytest.approx(89.14 - 82.25)
    (reverse,) = (s for s in evidence.studies["paper"] if s.name == "ECM, 5-shot, reverse")
    assert reverse.effect("IDA", "NU", "old") is None  # its columns are swapped in print
    assert reverse.effect("IDA", "NU", "unseen") is not None


def test_every_claim_has_a_verdict_and_the_weakest_part_explains_it(evidence: Evidence) -> None:
    for one in CLAIMS:
        for source in evidence.studies:
            finding = one.judge(evidence, source)
            assert (finding.weakest is None) == (finding.verdict == NO_TABLE)
            if finding.weakest:
                part, pooled = finding.weakest
                assert (pooled.verdict(part.bound) == HELD) == (finding.verdict == HELD)
