"""Studies: the tables of our records and of the paper in one form, to be compared and pooled.

A study is one setting: classes, head, episode shape, schedule and network. Records of the same
setting (further seeds, replicates, sweeps that share a base) are one study with several trainings.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kedge.evaluation.results import Score
from kedge.experiments import paper
from kedge.experiments.records import INDEX, PairedDifference, Record, RecordSet
from reproduction.pooling import Effect

RECORDS = Path(__file__).parent / "records"
SOURCES = {"tiny": "Tiny-ImageNet", "drawings": "drawings", "paper": "the paper"}
POOLS = ("old", "new", "unseen")
AVERAGE = "average"  # of old, new and unseen
FIRST, LAST = "first update", "last update"
LONG = "many updates"  # the paper has at most two
LEFT_OUT = {"swapped-columns", "domain-ida-new"}  # faults: cells that the paper's others disprove
HEADS = {"prototype": "prototypes", "ecm": "ECM", "ridge": "ridge"}
PAPER_SETTINGS = {"miniImageNet": "random", "tieredImageNet": "many", "DomainImageNet": "domain"}

Comparison = tuple[str, str, str, str]  # method, other method, pool, FIRST or LAST


@dataclass
class Study:
    """All differences between methods that one setting gives, one score per training."""

    source: str  # key of SOURCES
    setting: str  # "random", "many", "domain", "reverse", "two rounds", "hard tasks" or LONG
    head: str
    n_shot: str
    name: str  # "prototypes, 5-shot"
    links: list[str] = field(default_factory=list)  # folders of its records, or "table 1"
    scores: dict[Comparison, list[Score]] = field(default_factory=dict)

    def trainings(self, a: str, b: str, pool: str) -> list[Score]:
        """a − b after the last update, once per training.

        Old classes against NU are taken after the first update: NU was never trained on the
        classes of the first update, which are old after the second.
        """
        stage = FIRST if "NU" in (a, b) and pool == "old" else LAST
        if found := self.scores.get((a, b, pool, stage)):
            return found
        turned = self.scores.get((b, a, pool, stage), [])
        return [Score(-score.mean, score.ci, score.n) for score in turned]

    def effect(self, a: str, b: str, pool: str) -> Effect | None:
        """a − b, the mean over trainings; None if the study does not compare the two."""
        if pool == AVERAGE:
            parts = [self.effect(a, b, each) for each in POOLS]
            given = [part for part in parts if part is not None]
            if len(given) < len(POOLS):
                return None
            ci = math.hypot(*(part.ci for part in given)) / len(given)
            n = min(part.n_trainings for part in given)
            return Effect(self.name, sum(part.mean for part in given) / len(given), ci, n)
        scores = self.trainings(a, b, pool)
        return mean_effect(self.name, scores) if scores else None

    def add(self, comparison: Comparison, score: Score) -> None:
        """Add a training, unless two records share it."""
        scores = self.scores.setdefault(comparison, [])
        if all(score.mean != other.mean for other in scores):
            scores.append(score)


def mean_effect(name: str, scores: list[Score], independent: bool = False) -> Effect:
    n = len(scores)
    ci = math.hypot(*(score.ci for score in scores)) / n
    return Effect(name, sum(score.mean for score in scores) / n, ci, n, independent)


# ── our records ──────────────────────────────────────────────────────────────────────────────


def load_records(folder: Path = RECORDS) -> dict[str, RecordSet]:
    """Every committed record by its folder's name."""
    records = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (path / INDEX).exists():
            records[path.name] = RecordSet.load(path)
        else:
            parts = {"": Record.load(path / "record.json")}
            records[path.name] = RecordSet(path.name, path.name, None, parts)
    return records


def record_studies(records: dict[str, RecordSet]) -> list[Study]:
    """The records, those of one setting together."""
    studies: dict[str, Study] = {}
    for folder, record_set in records.items():
        for record in record_set.parts.values():
            if not record.pairs:  # one method: nothing to compare
                continue
            study = studies.setdefault(_setting_key(folder, record), _empty_study(folder, record))
            if folder not in study.links:
                study.links.append(folder)
            for comparison, score in _record_scores(record):
                study.add(comparison, score)
    return list(studies.values())


def _setting_key(folder: str, record: Record) -> str:
    config = {key: record.config.get(key) for key in ("episode", "backbone", "head")}
    schedule = record.config.get("schedule", {})
    length = [schedule.get(key) for key in ("epochs", "episodes", "tasks")]
    return json.dumps([folder.split("-")[0], record.name, length, config], sort_keys=True)


def _empty_study(folder: str, record: Record) -> Study:
    head = HEADS[record.config["head"]["head"]]
    n_shot = str(record.config["episode"]["n_shot"])
    setting = _setting(record)
    schedule = record.config["schedule"]
    about = {"random": [], LONG: [f"{record.rounds[-1]} updates"]}.get(setting, [setting])
    length = f"{schedule['epochs']} × {schedule['episodes']}"
    name = ", ".join([head, f"{n_shot}-shot", *about, length])
    return Study(folder.split("-")[0], setting, head, n_shot, name)


def _setting(record: Record) -> str:
    if record.rounds[-1] > 2:
        return LONG
    if record.rounds[-1] == 2:
        return "two rounds"
    if record.config["schedule"].get("tasks") == "hard":
        return "hard tasks"
    if record.name.endswith("-reverse"):
        return "reverse"
    if record.name in ("drawings", "tiny-imagenet-domain"):
        return "domain"
    return "many" if record.name.endswith("-many") else "random"


def _record_scores(record: Record) -> Iterator[tuple[Comparison, Score]]:
    stages = {1: [FIRST], record.rounds[-1]: [LAST]}
    if record.rounds[-1] == 1:
        stages = {1: [FIRST, LAST]}
    for pair in record.pairs:
        for stage in stages.get(pair.round, ()):
            yield (pair.a, pair.b, _pool(pair), stage), pair.difference


def _pool(pair: PairedDifference) -> str:
    return "unseen" if pair.pool == "unseen_both" else pair.pool


# ── the paper ────────────────────────────────────────────────────────────────────────────────


def paper_studies() -> list[Study]:
    """The paper's tables as printed, but for cells that others of its own disprove.

    A result that two tables print (EIML and IDA in tables 1 and 7) is taken from the first.
    Its intervals are of single methods, so that a difference has a wider one than ours, which are
    paired by episode.
    """
    studies: dict[tuple[str, ...], Study] = {}
    for table in paper.tables().values():
        if any(column.by_ways for column in table.columns):
            continue
        for dataset in table.datasets:
            for shots in dict.fromkeys(column.n_shot for column in table.columns):
                setting = _paper_setting(table, dataset)
                head = HEADS[table.head]
                key = (setting, head, str(shots))
                name = ", ".join(
                    [head, f"{shots}-shot", *([] if setting == "random" else [setting])]
                )
                study = studies.setdefault(key, Study("paper", setting, head, str(shots), name))
                study.links.append(f"table {table.number}")
                for comparison, score in _paper_scores(table, dataset, shots):
                    study.scores.setdefault(comparison, [score])
    return list(studies.values())


def _paper_setting(table: paper.PaperTable, dataset: str) -> str:
    if table.id == "two-rounds":
        return "two rounds"
    return "reverse" if table.id.startswith("domain-reverse") else PAPER_SETTINGS[dataset]


def _paper_scores(
    table: paper.PaperTable, dataset: str, shots: int
) -> Iterator[tuple[Comparison, Score]]:
    rows = [row for row in table.rows if row.dataset == dataset]
    for i, column in enumerate(table.columns):
        if column.n_shot != shots:
            continue
        stages = {"round I": [FIRST], "round II": [LAST]}.get(column.group, [FIRST, LAST])
        pool = "unseen" if column.pool == "unseen_both" else column.pool
        for a, b in itertools.combinations(rows, 2):
            cells = (a.cells[i], b.cells[i])
            if any(LEFT_OUT & set(cell.faults) for cell in cells):
                continue
            ci = math.hypot(*(cell.ci or 0.0 for cell in cells))
            score = Score(cells[0].mean - cells[1].mean, ci, 2000)
            for stage in stages:
                yield (a.label, b.label, pool, stage), score


# ── comparisons that are no difference of two methods in one table ───────────────────────────


def two_rounds_effects(source: str, records: dict[str, RecordSet]) -> list[Effect]:
    """IDA on unseen classes: the new classes in two updates − in one, trained apart."""
    name = "two updates − one"
    if source == "paper":
        once, twice = paper.table("mini-pn"), paper.table("two-rounds")
        cells = (twice.cell("IDA", "round II unseen"), once.cell("IDA", "5-shot unseen"))
        ci = math.hypot(*(cell.ci or 0.0 for cell in cells))
        return [Effect(name, cells[0].mean - cells[1].mean, ci, 1, independent=True)]
    single = records["tiny-pn" if source == "tiny" else "drawings-mini-pn"].parts
    (one,) = (r for r in single.values() if r.config["episode"]["n_shot"] == 5)
    b = one.score("IDA", 1, "unseen")
    scores = []
    for folder in (f for f in records if f.split(".")[0] == f"{source}-two-rounds"):
        a = records[folder].parts[""].score("IDA", 2, "unseen")
        scores.append(Score(a.mean - b.mean, math.hypot(a.ci, b.ci), a.n))
    return [mean_effect(name, scores, independent=True)]


def shape_effects(source: str, records: dict[str, RecordSet]) -> list[Effect]:
    """Range of accuracy over training shapes with prototypes − the range with ECM.

    On unseen classes; the mean over the shapes of the test episodes.
    """
    by_head = [_shape_ranges(source, head, records) for head in ("pn", "ecm")]
    if not all(by_head) or by_head[0].keys() != by_head[1].keys():
        return []
    scores = [(pn, by_head[1][shape]) for shape, pn in by_head[0].items()]
    mean = sum(pn.mean - ecm.mean for pn, ecm in scores) / len(scores)
    ci = sum(math.hypot(pn.ci, ecm.ci) for pn, ecm in scores) / len(scores)
    return [Effect("ways and shots", mean, ci, 1, independent=True)]


def _shape_ranges(source: str, head: str, records: dict[str, RecordSet]) -> dict[str, Score]:
    """Test shape → largest minus smallest accuracy over the training shapes."""
    by_shape: dict[str, list[Score]] = {}
    if source == "paper":
        for row, column, cell in paper.table(f"ways-shots-{head}").walk():
            if row.label != "range":
                by_shape.setdefault(column.key, []).append(Score(cell.mean, cell.ci or 0.0, 2000))
    else:
        for record in records[f"{source}-ways-shots-{head}"].parts.values():
            last = record.rounds[-1]
            for info in record.pools(last):
                if info.pool == "unseen" and info.shape is not None:
                    score = record.score("NU", last, info.name)
                    by_shape.setdefault(f"{info.shape.n_way}/{info.shape.n_shot}", []).append(score)
    return {shape: _range(scores) for shape, scores in by_shape.items()}


def _range(scores: Iterable[Score]) -> Score:
    ordered = sorted(scores, key=lambda score: score.mean)
    low, high = ordered[0], ordered[-1]
    return Score(high.mean - low.mean, math.hypot(high.ci, low.ci), high.n)
