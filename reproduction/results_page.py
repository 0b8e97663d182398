"""The results page: one Markdown file for many records, the paper's claims first.

It is a function of the records and of where they lie: their pictures and files are linked, not
copied. A picture of all comparisons lies beside the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from kedge.errors import KedgeError
from kedge.experiments.records import Record, RecordSet
from kedge.report import captions, queries
from reproduction.claims import CLAIMS, LATER
from reproduction.evidence import (
    FAMILIES,
    Comparison,
    Finding,
    Outcome,
    of_family,
)
from kedge.report.format import counted, listing
from reproduction.claims_figure import (
    CAPTION,
    judged,
    overview_figure,
)
from kedge.report.page import heading
from kedge.report.render import markdown, slug
from reproduction.sections import Entry, section
from kedge.report.style import encode
from kedge.report.summary import legends
from kedge.utils.atomic_io import write_atomically

MARK = "<!-- Written by 'kedge report --results' from records: change those, not this page. -->"
INTRODUCTION = (
    "A model learns to tell apart **old** classes from a few examples of each. Then their images "
    "are gone, and it is improved from **new** classes alone: by **IDA**, the method of the paper "
    "(*Incremental Meta-Learning via Indirect Discriminant Alignment*, Liu et al., 2020), and by "
    "others. **NU** leaves the model as it was, **FT** fine-tunes it, **DFA** holds its features, "
    "**EWC** its weights, **EIML** keeps images of every old class, and **PAR**, the paragon, is "
    "trained on everything ([more](#the-methods)). All are tested on thousands of small "
    "classification problems (episodes), made of old, of new and of **unseen** classes, with "
    "images that were never trained on. *Prototypes*, *ECM* and *ridge* are ways to make a "
    "classifier of a few examples; at *5-shot* it gets five of each class."
)
RULES = (
    "A claim **held** if, in every comparison that decides it, the difference lies clearly on the "
    "side that the paper says; it **did not hold** if in any of them it lies clearly on the other "
    "side; otherwise it is **undecided**. Where the paper says that something is no worse, up to 1 "
    "point counts as no worse. The methods of one table answer the very same episodes, and their "
    "differences are taken episode by episode. From three seeds on, the 95% interval is over "
    "seeds, that is over other classes and other weights, and *clearly* means that all of it lies "
    "on that side. With one seed it is over episodes, and tells two models apart rather than two "
    "methods: another training or other classes would change more than that. So with one seed a "
    "difference has to be clear by a further point, a rough allowance: between seeds IDA − FT on "
    "unseen classes differs by about as much, other differences by more (where there are three, "
    "each is shown by itself). Where one seed has to show that something is no worse, the two "
    "points cancel, and it has to be clearly above 0. What stands beside a claim decides nothing. "
    "Runs of more than two updates stand there, since the paper’s claims are about one or two, and "
    "under the claim about EIML those of two, since the paper has it in one; where such a run "
    "shows clearly what none of the tables that count does, the claim’s line says so."
)
READING = (
    "Accuracy in per cent ± 95% interval, over test episodes or, from three seeds on, over seeds. "
    "**Bold**: the best incremental method of the column, and all that cannot be told apart from "
    "it; *NU* and *PAR* are references and do not compete. Differences are in percentage points, "
    "episode by episode: ▲ ahead and ▼ behind, with an interval that is clear of zero."
)
NUMBER = r"=[\d.e+-]+$"  # the value of an option


def write_results(runs: Sequence[Path], page: Path) -> Path:
    """The page, written anew. A file that is no results page is left alone."""
    try:
        ours = not page.exists() or page.read_text(encoding="utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        ours = False
    if not ours:
        raise KedgeError(
            f"{page}: is there already and is no results page; give --results another name."
        )
    entries = _entries(runs)
    families = _families(entries)
    drawn = {_picture(page, one): overview_figure(one.findings) for one in families}
    files = {path: encode(figure, "svg") for path, figure in drawn.items() if figure}
    files[page] = _text(entries, families, page).encode()
    for path, content in files.items():
        write_atomically(path, partial(Path.write_bytes, data=content))
    return page


def results_page(runs: Sequence[Path], page: Path) -> str:
    """The text of a page at this place, with all records of these folders."""
    entries = _entries(runs)
    return _text(entries, _families(entries), page)


@dataclass(frozen=True)
class _Family:
    key: str  # "tiny"
    name: str  # "Tiny-ImageNet"
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]


def _entries(runs: Sequence[Path]) -> list[Entry]:
    entries = sorted(map(Entry.load, dict.fromkeys(runs)), key=lambda entry: entry.rank)
    _refuse_twice(entries)
    return entries


def _families(entries: Sequence[Entry]) -> list[_Family]:
    """Those of which there are records, and what these say."""
    families = []
    for key, name in FAMILIES.items():
        if found := of_family(key, [entry.collection for entry in entries]):
            records = tuple(record for one in found.values() for record in one.parts.values())
            findings = tuple(claim.judge(found) for claim in CLAIMS)
            families.append(_Family(key, name, records, findings))
    return families


def _picture(page: Path, family: _Family) -> Path:
    return page.parent / "figures" / f"{page.stem}-{family.key}.svg"


def _text(entries: Sequence[Entry], families: Sequence[_Family], page: Path) -> str:
    collections = [entry.collection for entry in entries]
    title = f"Results on {families[0].name}" if len(families) == 1 else "Results"
    blocks = [MARK, f"# {title}", INTRODUCTION]
    for family in families:
        blocks += [f"## The paper’s claims on {family.name}", _setup(family.records)]
        blocks += _claims(family.findings)
        if judged(family.findings):
            path = _picture(page, family).relative_to(page.parent).as_posix()
            blocks += [f"![All comparisons, claim by claim]({quote(path)})", CAPTION]
    if families:
        blocks += ["## How the verdicts come about", RULES, LATER]
        blocks += [_details(family.name, family.findings) for family in families]
    blocks += ["## The methods", _methods(collections)]
    blocks += ["## The records", READING, _contents(collections)]
    for entry in entries:
        blocks += section(entry, page)
    return "\n\n".join(blocks) + "\n"


def _refuse_twice(entries: Sequence[Entry]) -> None:
    folders: dict[str, Path] = {}
    for entry in entries:
        name = entry.collection.name
        if name in folders:
            raise KedgeError(
                f"RUN: {folders[name]} and {entry.folder} are both of {name}; a results page has "
                "one of each."
            )
        folders[name] = entry.folder


# ── claims and methods ───────────────────────────────────────────────────────────────────────


def _claims(findings: Sequence[Finding]) -> list[str]:
    outcomes = [finding.outcome for finding in findings]
    counts = [f"{outcomes.count(one)} {one}" for one in Outcome if one in outcomes]
    rows = [
        (
            f"{markdown(found.claim.sentence)}<br>({markdown(found.claim.source)})",
            f"**{found.outcome}**",
            "<br>".join(_unbroken(markdown(sentence)) for sentence in found.sentences) or "–",
        )
        for found in findings
    ]
    return [
        f"Of {counted(len(findings), 'claims')}: {listing(counts)}.",
        _grid(("the paper says", "here", "measured, in percentage points"), rows),
    ]


def _setup(records: Sequence[Record]) -> str:
    """With what they were made."""
    lengths = {(s["epochs"], s["episodes"]) for r in records if (s := r.config.get("schedule"))}
    networks = sorted({markdown(network) for r in records if (network := captions.backbone(r))})
    ends = sorted(lengths, key=math.prod)
    rounds = [
        f"{epochs} × {episodes}" for epochs, episodes in dict.fromkeys((*ends[:1], *ends[-1:]))
    ]
    return (
        f"Networks: {listing(networks)}. A round has {' to '.join(rounds)} episodes (epochs × "
        "episodes; the paper’s have 200 × 800). The tables behind each line, with their settings, "
        "are [below](#the-records)."
    )


def _unbroken(text: str) -> str:
    """No line ends within '− FT +3.4 ± 0.3'."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace("− ", "−\u00a0")


def _details(name: str, findings: Sequence[Finding]) -> str:
    """Too long to be read by all, and there for whoever wants to check."""
    blocks = [f"<details><summary>Rule and comparisons of each claim on {name}</summary>"]
    for found in findings:
        blocks.append(f"**{markdown(found.claim.sentence)}** {markdown(found.claim.rule)}")
        rows = [
            (
                f"[{markdown(str(one.where))}](#{slug(one.where.record)})",
                markdown(f"{one.what}, {one.on}"),
                markdown(one.value),
                _standing(one),
            )
            for one in found.comparisons
        ]
        if rows:
            blocks.append(_grid(("table", "difference", "points", "the claim"), rows))
    return "\n\n".join([*blocks, "</details>"])


def _standing(one: Comparison) -> str:
    if one.decides:
        return str(one.outcome)
    return f"stands beside it: {one.outcome}" if one.aside else "stands beside it"


def _methods(collections: Iterable[RecordSet]) -> str:
    """Each family of methods once, and below it each of its options, whatever its number."""
    labels = [m for one in collections for record in one.parts.values() for m in record.methods]
    families = dict.fromkeys(map(queries.family, labels))
    options = dict.fromkeys(
        f"{queries.family(label)} {re.sub(NUMBER, '=N', option)}"
        for label in labels
        for option in label.split()[1:]
    )
    names = [
        name
        for family in families
        for name in (family, *(one for one in options if queries.family(one) == family))
    ]
    rows = [
        (f"**{markdown(name)}**", markdown(one.name), markdown(one.does), markdown(one.keeps))
        for name, one in legends(names).items()
    ]
    return _grid(("", "name", "what it does", "what it keeps of old classes"), rows)


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, all to the left."""
    lines = [heads, [":---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _contents(collections: Iterable[RecordSet]) -> str:
    return "\n".join(f"- [{markdown(heading(one))}](#{slug(one.name)})" for one in collections)
