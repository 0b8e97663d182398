"""A record on the results page: what it is, its tables, and its figures where they lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kedge.experiments import paper
from kedge.experiments.records import (
    INDEX,
    Record,
    RecordSet,
)
from kedge.report import captions, queries
from kedge.report.evidence import (
    FAMILIES,
    LABELS,
    family_of,
    suffix_of,
)
from kedge.report.extra_tables import (
    ages_table,
    drift_table,
    seed_differences_table,
    standing_table,
    variants_table,
)
from kedge.report.figures import named
from kedge.report.format import duration
from kedge.report.page import heading, part_table
from kedge.report.paper_comparison import order_sentence
from kedge.report.render import (
    markdown,
    markdown_grid,
    slug,
)
from kedge.report.shapes import trained_shapes_table
from kedge.report.summary import verdict
from kedge.report.table import Table
from kedge.report.tables import (
    accuracy_table,
    differences_table,
    metrics_table,
)


@dataclass(frozen=True)
class Entry:
    """A collection, and where it lies."""

    folder: Path
    collection: RecordSet

    @classmethod
    def load(cls, path: Path) -> Entry:
        """A folder that 'kedge bench' wrote, or a record by itself, which has the folder's name."""
        if (path / INDEX).exists():
            return cls(path, RecordSet.load(path))
        file = path / "record.json" if path.is_dir() else path
        name = file.resolve().parent.name if file.name == "record.json" else file.stem
        return cls(file.parent, RecordSet(name, name, None, {"": Record.load(file)}))

    @property
    def rank(self) -> tuple[int, int]:
        """Families as they are listed, then what a reader wants to see first."""
        name = self.collection.name
        families, suffixes = [*FAMILIES, None], [*LABELS, suffix_of(name)]
        return families.index(family_of(name)), suffixes.index(suffix_of(name))


def section(entry: Entry, page: Path) -> list[str]:
    """The blocks of a page about one collection."""
    collection = entry.collection
    records = list(collection.parts.values())
    sentences = dict.fromkeys(record.sentence for record in records)
    blocks = [
        f'<a id="{slug(collection.name)}"></a>',
        f"### {markdown(heading(collection))}",
        markdown(" ".join(sentences)),
        f"{'; '.join([*map(markdown, _settings(records)), *_links(entry, page)])}.",
    ]
    if collection.paper:
        blocks.append(markdown(order_sentence(collection, paper.table(collection.paper))))
    if shapes := trained_shapes_table(collection.parts):
        blocks += [markdown_grid(shapes), markdown(shapes.caption)]
    else:
        for part, record in collection.parts.items():
            blocks += _record(part, record)
    return [*blocks, *_figures(entry, page)]


def _record(part: str, record: Record) -> list[str]:
    """Its result in words, its main table and the differences; more where there is more."""
    main = part_table(part, record) if part else accuracy_table(record, queries.final_round(record))
    plain = queries.leads(record)[:1]
    blocks = [f"**{markdown(main.title)}.** {markdown(verdict(record).headline)}"]
    blocks.append(markdown_grid(main))
    if differences := differences_table(record, plain):
        blocks.append(markdown_grid(differences))
    further = [seed_differences_table(record)]
    if len(queries.incremental_rounds(record)) > 1:
        tables = (metrics_table, standing_table, variants_table, ages_table, drift_table)
        further += [table(record) for table in tables]
    return [*blocks, *(block for table in further if table for block in _captioned(table))]


def _captioned(table: Table) -> list[str]:
    return [f"**{markdown(table.title)}.** {markdown(table.caption)}", markdown_grid(table)]


def _settings(records: Sequence[Record]) -> list[str]:
    """Schedule, seeds, network, machine, time, versions and commit."""
    seconds = sum(map(_seconds, records))
    seeds = dict.fromkeys(", ".join(map(str, record.seeds)) for record in records)
    configs = [record.config for record in records]
    environments = [record.environment for record in records]
    facts = [
        _unique(captions.length(config["schedule"]) for config in configs if "schedule" in config),
        f"seed{'s' if any(',' in one for one in seeds) else ''} {_unique(seeds)}",
        _unique(map(captions.backbone, records)),
        _unique(f"head {config['head']['head']}" for config in configs if "head" in config),
        _unique(map(_machine, environments)),
        f"trained in {duration(seconds)}",
        _unique(f"torch {env['torch']}" for env in environments if "torch" in env),
        _unique(f"commit {env['commit']}" for env in environments if "commit" in env),
    ]
    return [fact for fact in facts if fact]


def _seconds(record: Record) -> float:
    """Of all that was trained. The base round of a seed is trained once, for all methods."""
    base = {run.seed: run.seconds for run in record.runs if run.round == 0}
    return sum(base.values()) + sum(r.seconds for r in record.runs if r.round > 0 and r.history)


def _machine(environment: dict[str, str]) -> str:
    gpu = environment.get("gpu", "none")
    if gpu != "none":
        return gpu
    threads = f", {environment['threads']} threads" if "threads" in environment else ""
    return f"{environment.get('cpu', '')}{threads}"


def _unique(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(value for value in values if value))


def _links(entry: Entry, page: Path) -> list[str]:
    """Files beside the record that say more, and the record itself."""
    files = {"all tables": entry.folder / "table.md"}
    for part in entry.collection.parts:
        inner = entry.folder / RecordSet.folder_of(part)
        files[markdown(f"record of {part}" if part else "record")] = inner / "record.json"
    return [f"[{name}]({_link(file, page)})" for name, file in files.items() if file.exists()]


def _figures(entry: Entry, page: Path) -> list[str]:
    """Those that lie beside the record: its sweeps, or how the rounds went, or the result."""
    there = {path.stem: path for path in (entry.folder / "figures").glob("*.svg")}
    parts = {f"{slug(part)}-": f"{part}: " for part in entry.collection.parts if part}
    found = [  # the figure, of which part, and where
        (stem.removeprefix(prefix), part, there[stem])
        for prefix, part in (parts or {"": ""}).items()
        for stem in sorted(there)
        if stem.startswith(prefix)
    ]
    kinds = [kind for kind, *_ in found]
    sweep = [kind for kind in dict.fromkeys(kinds) if kind.startswith("sweep-")]
    rounds = [kind for kind in ("rounds", "drift") if kind in kinds]
    titled = [
        (markdown(f"{part}{named(kind)}"), path)
        for wanted in sweep or rounds or ["accuracy"]
        for kind, part, path in found
        if kind == wanted
    ]
    return [f"**{title}.**\n\n![{title}]({_link(path, page)})" for title, path in titled]


def _link(file: Path, page: Path) -> str:
    """From the folder of the page, in the signs of an address."""
    return quote(Path(os.path.relpath(file, page.parent)).as_posix())
