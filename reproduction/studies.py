"""Studies: the tables of our records and of the paper in one form, to be compared and pooled.

A study is one setting: classes, head, episode shape, schedule and network. Records of the same
setting (further seeds, replicates, sweeps that share a base) are one study with several trainings.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kedge.evaluation.results import Score
from kedge.experiments import paper
from kedge.experiments.records import EARLIER_METHODS, INDEX, Record, RecordSet
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
        if turned := self.scores.get((b, a, pool, stage)):
            return [Score(-score.mean, score.ci, score.n) for score in turned]
        # The paper does not say how DFA reduces its distance, so an earlier default will do.
        before_a, before_b = EARLIER_METHODS.get(a, a), EARLIER_METHODS.get(b, b)
        return [] if (before_a, before_b) == (a, b) else self.trainings(before_a, before_b, pool)

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


def minus(a: Score, b: Score) -> Score:
    """a − b of two independent scores."""
    return Score(a.mean - b.mean, math.hypot(a.ci, b.ci), a.n)


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
    """The records, those of one setting together; a pretrained start is not what the paper did."""
    studies: dict[str, Study] = {}
    for folder, record_set in records.items():
        for record in record_set.parts.values():
            # With one method there is nothing to compare.
            if not record.pairs or record.name.startswith("flowers"):
                continue
            study = studies.setdefault(_setting_key(folder, record), _empty_study(folder, record))
            if folder not in study.links:
                study.links.append(folder)
            for comparison, score in _record_scores(record):
                study.add(comparison, score)
    return list(studies.values())


def _setting_key(folder: str, record: Record) -> str:
    """Equal for records of one study: learning rates and the like are never varied here."""
    config = [record.config[key] for key in ("episode", "backbone", "head")]
    # Early records do not name these.
    schedule = {"tasks": "uniform", "annealing": "plateau"} | record.config["schedule"]
    schedule = [schedule[key] for key in ("epochs", "episodes", "tasks", "annealing")]
    return json.dumps([folder.split("-")[0], record.name, schedule, config], sort_keys=True)


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
        pool = "unseen" if pair.pool == "unseen_both" else pair.pool
        for stage in stages.get(pair.round, ()):
            yield (pair.a, pair.b, pool, stage), pair.difference


# ── the paper ────────────────────────────────────────────────────────────────────────────────


def paper_studies() -> list[Study]:
    """The paper's tables as printed, but for cells that others of its own disprove.

    A result that two tables print (EIML and IDA in tables 1 and 7) is taken from the first.
    Its intervals are of single methods, so that a difference has a wider one than ours, which are
    paired by episode.
    """
    studies: dict[str, Study] = {}
    for table in paper.tables().values():
        if any(column.by_ways for column in table.columns):
            continue
        for dataset in table.datasets:
            for shots in dict.fromkeys(column.n_shot for column in table.columns):
                setting, head = _paper_setting(table, dataset), HEADS[table.head]
                name = f"{head}, {shots}-shot" + ("" if setting == "random" else f", {setting}")
                study = Study("paper", setting, head, str(shots), name)
                study = studies.setdefault(name, study)
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
            if LEFT_OUT.isdisjoint((*a.cells[i].faults, *b.cells[i].faults)):
                score = minus(_printed(a.cells[i]), _printed(b.cells[i]))
                for stage in stages:
                    yield (a.label, b.label, pool, stage), score


def _printed(cell: paper.PaperCell) -> Score:
    return Score(cell.mean, cell.ci or 0.0, 2000)


# ── comparisons that are no difference of two methods in one table ───────────────────────────


def two_rounds_effects(source: str, records: dict[str, RecordSet]) -> list[Effect]:
    """IDA on unseen classes: the new classes in two updates − in one, trained apart."""
    name = "two updates − one"
    if source == "paper":
        once = _printed(paper.table("mini-pn").cell("IDA", "5-shot unseen"))
        twice = [_printed(paper.table("two-rounds").cell("IDA", "round II unseen"))]
    else:
        parts = records["tiny-pn" if source == "tiny" else "drawings-mini-pn"].parts
        (record,) = (r for r in parts.values() if r.config["episode"]["n_shot"] == 5)
        once = record.score("IDA", 1, "unseen")
        folders = [folder for folder in records if folder.split(".")[0] == f"{source}-two-rounds"]
        twice = [records[folder].parts[""].score("IDA", 2, "unseen") for folder in folders]
    return [mean_effect(name, [minus(score, once) for score in twice], independent=True)]


def shape_effects(source: str, records: dict[str, RecordSet]) -> list[Effect]:
    """Range of accuracy over training shapes with prototypes − the range with ECM.

    On unseen classes; the mean over the shapes of the test episodes.
    """
    by_head = [shape_ranges(source, head, records) for head in ("pn", "ecm")]
    gaps = [minus(pn, by_head[1][shape]) for shape, pn in by_head[0].items()]
    mean, ci = (sum(each) / len(gaps) for each in zip(*((g.mean, g.ci) for g in gaps), strict=True))
    return [Effect("ways and shots", mean, ci, 1, independent=True)]


def shape_ranges(source: str, head: str, records: dict[str, RecordSet]) -> dict[str, Score]:
    """ "1-shot 5-way" (of the test) → largest minus smallest accuracy over the training shapes."""
    by_shape: dict[str, list[Score]] = {}
    if source == "paper":
        for row, column, cell in paper.table(f"ways-shots-{head}").walk():
            if row.label != "range":
                by_shape.setdefault(column.key, []).append(_printed(cell))
    else:
        for record in records[f"{source}-ways-shots-{head}"].parts.values():
            last = record.rounds[-1]
            for info in record.pools(last):
                if info.pool == "unseen" and info.shape is not None:
                    score = record.score("NU", last, info.name)
                    key = f"{info.shape.n_shot}-shot {info.shape.n_way}-way"
                    by_shape.setdefault(key, []).append(score)
    ordered = {s: sorted(scores, key=lambda one: one.mean) for s, scores in by_shape.items()}
    return {shape: minus(scores[-1], scores[0]) for shape, scores in ordered.items()}
