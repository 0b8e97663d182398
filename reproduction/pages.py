"""The generated pages: docs/results.md for readers, reproduction/claims.md with every number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reproduction.claims import CLAIMS, MARGIN, RIVALS, Evidence, Finding, short
from reproduction.markdown import MARK, RECORDS_LINK, grid, signed
from reproduction.pooling import Pooled, Verdict, Z
from reproduction.studies import LONG, POOLS, SOURCES, Study, shape_ranges

TEMPLATE = Path(__file__).parent / "results.md.template"


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def interval(pooled: Pooled) -> str:
    return f"{signed(pooled.mean)} ± {pooled.ci:.1f}"


def span(pooled: Pooled) -> str:
    means = [effect.mean for effect in pooled.effects]
    return f"{signed(min(means))} to {signed(max(means))}"


# ── docs/results.md ──────────────────────────────────────────────────────────────────────────


def results_page(evidence: Evidence) -> str:
    """The template with its numbers and tables."""
    findings = {key: [claim.judge(evidence, key) for claim in CLAIMS] for key in SOURCES}
    sd, noise = evidence.training_sd, Z * evidence.training_sd["unseen"]
    values = {
        "records": RECORDS_LINK,
        "effects_table": _effects_table(evidence),
        "counts": _counts(findings),
        "claims_table": _claims_table(findings),
        "margin": f"{MARGIN:g}",
        "sd": "{old:.1f}, {new:.1f} and {unseen:.1f}".format(**sd),
        "one_table": f"{noise:.1f}",
        "no_worse": str(round((noise / MARGIN) ** 2)),  # tables whose interval is the margin
    }
    return TEMPLATE.read_text(encoding="utf-8").format(**values, **_numbers_in_text(evidence))


def effects_grid(evidence: Evidence) -> dict[tuple[str, str, str], Pooled]:
    """IDA − each method by (method, source, pool): what table and figure show."""
    found = {}
    for rival in RIVALS:
        for source in SOURCES:
            for kind in POOLS:
                effects = evidence.effects(source, "IDA", rival, kind, short)
                if pooled := evidence.pooled(effects, kind):
                    found[rival, source, kind] = pooled
    return found


def _effects_table(evidence: Evidence) -> str:
    effects = effects_grid(evidence)
    rows = []
    for rival in RIVALS:
        for source, name in SOURCES.items():
            pooled = [effects[rival, source, kind] for kind in POOLS]
            cells = [f"**{interval(one)}**<br>{span(one)}" for one in pooled]
            n_tables = max(len(one.effects) for one in pooled)
            n_trainings = max(one.n_trainings for one in pooled)
            first = f"IDA − {rival}" if source == "tiny" else ""
            rows.append((first, f"{name} ({n_tables} / {n_trainings})", *cells))
    return grid(("", "data", *POOLS), rows, "llrrr")


def _numbers_in_text(evidence: Evidence) -> dict[str, str]:
    """Numbers that the template's sentences name."""

    def mean(study: Study, rival: str, kind: str, method: str = "IDA") -> str:
        effect = study.effect(method, rival, kind)
        if effect is None:
            raise ValueError(f"{study.name} does not compare {method} with {rival} on {kind}")
        return signed(effect.mean)

    pooled = effects_grid(evidence)
    tiny = evidence.studies["tiny"]
    (one_shot,) = (s for s in tiny if s.n_shot == "1" and s.setting == "random")
    (long_schedule,) = (s for s in tiny if "45 × 800" in s.name)
    (two,) = (s for s in tiny if s.setting == "two rounds")
    (many,) = (s for s in tiny if s.setting == LONG)
    (many_drawings,) = (s for s in evidence.studies["drawings"] if "15 updates" in s.name)
    return {
        "ft_old": signed(pooled["FT", "tiny", "old"].mean),
        "ft_new": interval(pooled["FT", "tiny", "new"]),
        "ft_unseen": signed(pooled["FT", "tiny", "unseen"].mean),
        "nu_old": interval(pooled["NU", "tiny", "old"]),
        "ft_old_drawings": signed(pooled["FT", "drawings", "old"].mean),
        "ft_unseen_drawings": signed(pooled["FT", "drawings", "unseen"].mean),
        "dfa_old": signed(pooled["DFA", "tiny", "old"].mean),
        "dfa_new": signed(pooled["DFA", "tiny", "new"].mean),
        "one_shot_ft_old": mean(one_shot, "FT", "old"),
        "one_shot_ft_unseen": mean(one_shot, "FT", "unseen"),
        "long_par_old": mean(long_schedule, "PAR", "old"),
        "long_par_unseen": mean(long_schedule, "PAR", "unseen"),
        "two_par_unseen": mean(two, "PAR", "unseen"),
        "many_eiml_old": mean(many, "EIML", "old"),
        "many_eiml_unseen": mean(many, "EIML", "unseen"),
        "many_drawings_eiml_unseen": mean(many_drawings, "EIML", "unseen"),
    }


def _counts(findings: dict[str, list[Finding]]) -> str:
    sentences = []
    for key, name in SOURCES.items():
        counts = Counter(finding.verdict for finding in findings[key])
        parts = [f"{counts[v]} {v}" for v in Verdict if counts[v] and v != Verdict.NO_TABLE]
        sentences.append(f"{name} {', '.join(parts)}")
    return f"Of {len(CLAIMS)} claims: {'; '.join(sentences)}."


def _claims_table(findings: dict[str, list[Finding]]) -> str:
    names = [SOURCES[key] if key != "paper" else "the paper's numbers" for key in SOURCES]
    rows = []
    for i, claim in enumerate(CLAIMS):
        cells = [_verdict_cell(findings[key][i]) for key in SOURCES]
        rows.append((f"{i + 1}. {claim.sentence} ({claim.place})", *cells))
    return grid(("the paper says", *names), rows, "llll")


def _verdict_cell(finding: Finding) -> str:
    if finding.weakest is None:
        return "*no table*"
    part, pooled = finding.weakest
    difference = f"{part.label}, {part.kind}: {interval(pooled)}"
    return f"**{finding.verdict}**<br>{difference} ({len(pooled.effects)})"


# ── reproduction/claims.md ───────────────────────────────────────────────────────────────────


def claims_page(evidence: Evidence) -> str:
    """Every difference behind a verdict: pooled, and table by table."""
    blocks = [
        MARK,
        "# The claims, table by table",
        "Differences in percentage points ± 95% interval over test episodes; *pooled* is the "
        "random-effects mean, which has to lie above the bound. The rule is in "
        "[the results](../docs/results.md#rule).",
    ]
    for i, claim in enumerate(CLAIMS, 1):
        blocks += [f"## {i}. {claim.sentence}", f"In the paper: {claim.place}."]
        rows = []
        for source, name in SOURCES.items():
            finding = claim.judge(evidence, source)
            links = {study.name: study.links for study in evidence.studies[source]}
            for part, pooled in finding.parts:
                if pooled is None:
                    continue
                verdict = f"**{pooled.verdict(part.bound)}**"
                about = f"{part.label}, {part.kind}, above {signed(part.bound)}"
                spread = f"*pooled*, spread between tables {pooled.between_sd:.1f}"
                rows.append((name, about, spread, "", interval(pooled), verdict))
                for effect in pooled.effects:
                    value = f"{signed(effect.mean)} ± {effect.ci:.1f}"
                    table = _linked(effect.table, links.get(effect.table, []), source)
                    rows.append(("", "", table, str(effect.n_trainings), value, ""))
        head = ("data", "difference", "table", "trainings", "points", "verdict")
        blocks.append(grid(head, rows, "lllrrl"))
    blocks += ["## Ranges over training shapes, by the shape of the test", _ranges_table(evidence)]
    return "\n\n".join(blocks) + "\n"


def _ranges_table(evidence: Evidence) -> str:
    rows = []
    for source, name in SOURCES.items():
        for key, head in (("pn", "prototypes"), ("ecm", "ECM")):
            ranges = shape_ranges(source, key, evidence.records)
            shapes = sorted(ranges, key=lambda shape: [int(n) for n in re.findall(r"\d+", shape)])
            rows.append((name, head, *(f"{ranges[shape].mean:.1f}" for shape in shapes)))
    return grid(("data", "head", *shapes), rows, "ll" + "r" * len(shapes))


def _linked(name: str, links: Sequence[str], source: str) -> str:
    if source == "paper" or not links:
        return f"{name} ({', '.join(dict.fromkeys(links))})" if links else name
    return f"{name}: " + ", ".join(f"[{one}](records/{one}/table.md)" for one in links)
