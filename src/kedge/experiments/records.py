"""Records: the results of an experiment in one JSON file.

A record holds the configuration, the classes of every split, versions and machine, and for each
(seed, method, round) the scores, the training curve and the cost. Reports are made from records
alone.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, Seed
from kedge.errors import KedgeError, require
from kedge.evaluation.results import AnchorMove, EpochResult, Score
from kedge.utils.atomic_io import write_text_atomically
from kedge.utils.config_io import from_dict, parse_json
from kedge.utils.ranges import Amount, Round, Total
from kedge.utils.regular_file import read_text
from kedge.utils.text import folder_name

RECORD_FORMAT = 2
EARLIER_METHODS = {"DFA": "DFA reduction=sum"}  # of format 1: what they are called now
INDEX = "recipe.json"  # of a record set
# Parts of a record's config, and the keys that reports need.
SETTINGS: dict[str, tuple[type, set[str]]] = {
    "episode": (EpisodeShape, {"n_way", "n_shot", "n_query"}),
    "schedule": (Schedule, {"epochs", "episodes"}),
    "backbone": (BackboneConfig, {"backbone"}),
    "head": (HeadConfig, {"head"}),
}


@dataclass(frozen=True)
class PoolInfo:
    """A set of classes that were tested together, in one shape of test episodes.

    With several shapes, the names of all but the first contain the shape: "unseen" is the pool in
    the first shape, "unseen at 20-way 1-shot" the same pool in another.
    """

    name: str  # "old", "new", "unseen", "unseen_both", … or "round_0", "round_1", …
    label: str  # for people: "unseen, old domain"
    n_classes: Total
    shape: EpisodeShape | None = None  # of the test episodes; None in records of early versions

    @property
    def pool(self) -> str:
        """The name without the shape."""
        return self.name.partition(" at ")[0]

    @property
    def first_shape(self) -> bool:
        return self.pool == self.name


MEASURES = {  # keys of Run.measures
    "anchor_drift": "mean ‖stored anchor − anchor recomputed now‖ over classes of earlier rounds",
    "anchor_spread": "mean distance between two anchors recomputed now",
    "anchor_plane": "share of the base anchors' variance that the plane of AnchorMove shows",
    "naming": "% of the held-out images of all classes so far that are named correctly among these "
    "classes, with the anchors as they were stored",
    "naming_true_means": "the same with anchors recomputed now from the training images",
    "naming_round_*": "the part of `naming` on the classes of one round: naming_round_0, …",
}


@dataclass(frozen=True)
class Run:
    """One method after one round, under one seed."""

    seed: Seed
    method: str  # its label: "IDA", "IDA anchors=all", …
    round: Round  # 0 is the base round
    pools: tuple[PoolInfo, ...]  # "old" and "new" depend on the round
    scores: dict[str, Score]  # by pool name, in %
    history: tuple[EpochResult, ...]  # training curve; empty for NU after round 0
    seconds: Amount
    peak_memory_mb: Amount
    kept_bytes_per_class: Amount  # kept of each class for the next round
    environment: dict[str, str]  # commit, versions and machine that made it
    measures: dict[str, float] = field(default_factory=dict)  # see MEASURES
    anchors: tuple[AnchorMove, ...] = ()  # some classes of earlier rounds


@dataclass(frozen=True)
class PairedDifference:
    """Method `a` minus method `b`, paired by test episode."""

    seed: Seed
    round: Round
    pool: str
    a: str
    b: str
    difference: Score  # percentage points


@dataclass(frozen=True)
class Record:
    """The set-up of an experiment and the results of all its runs."""

    name: str  # of the protocol, such as "drawings"
    sentence: str  # what the protocol is, and where it differs from the paper
    config: dict[str, Any]
    splits: dict[str, dict[str, Any]]  # seed → roles of the classes
    runs: tuple[Run, ...]
    pairs: tuple[PairedDifference, ...]
    images: str = ""  # their fingerprint; empty in early records
    format: int = field(default=RECORD_FORMAT)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.method for run in self.runs))

    @property
    def environment(self) -> dict[str, str]:
        """Versions and machines of all runs, joined where they differ; of dates first and last."""
        found: dict[str, list[str]] = {}
        for key, value in (item for run in self.runs for item in run.environment.items()):
            found.setdefault(key, []).append(value)
        if dates := found.get("date"):
            found["date"] = [min(dates), max(dates)]
        return {key: " / ".join(dict.fromkeys(values)) for key, values in found.items()}

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(sorted({run.round for run in self.runs}))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    def select(self, method: str, round: int) -> tuple[Run, ...]:
        """The runs of a method after a round, one per seed."""
        return tuple(r for r in self.runs if r.method == method and r.round == round)

    def pools(self, round: int) -> tuple[PoolInfo, ...]:
        return next(run.pools for run in self.runs if run.round == round)

    def score(self, method: str, round: int, pool: str) -> Score:
        """Mean over seeds; its interval is over all episodes of all seeds."""
        runs = self.select(method, round)
        return average(run.scores[pool] for run in runs if pool in run.scores)

    def difference(self, a: str, b: str, round: int, pool: str) -> Score:
        """a − b in points, paired by episode, over all seeds."""
        at = [p for p in self.pairs if (p.round, p.pool) == (round, pool)]
        forward = [p.difference for p in at if (p.a, p.b) == (a, b)]
        reverse = [p.difference for p in at if (p.a, p.b) == (b, a)]
        return average(forward or [replace(d, mean=-d.mean) for d in reverse])

    def _with_current_methods(self) -> Record:
        """This record of format 1 with the names that its methods have now."""

        def now(method: str) -> str:
            return EARLIER_METHODS.get(method, method)

        config = dict(self.config)
        if isinstance(methods := config.get("methods"), list):
            config["methods"] = [now(x) if isinstance(x, str) else x for x in methods]
        runs = tuple(replace(run, method=now(run.method)) for run in self.runs)
        pairs = tuple(replace(pair, a=now(pair.a), b=now(pair.b)) for pair in self.pairs)
        return replace(self, config=config, runs=runs, pairs=pairs)

    def save(self, path: str | Path) -> None:
        # One line per run and pair, so that diffs are readable.
        to_json = functools.partial(json.dumps, ensure_ascii=False)
        parts = []
        for key, value in asdict(self).items():
            is_list = isinstance(value, list | tuple)
            lines = "[\n" + ",\n".join(map(to_json, value)) + "\n]" if is_list else to_json(value)
            parts.append(f"{to_json(key)}: {lines}")
        write_text_atomically(Path(path), "{\n" + ",\n".join(parts) + "\n}\n")

    @classmethod
    def load(cls, path: str | Path) -> Record:
        data = _read_json(Path(path), "record")
        try:
            record = from_dict(cls, {**data, "format": RECORD_FORMAT})
            if data["format"] == 1:
                record = record._with_current_methods()
            for name in SETTINGS.keys() & record.config.keys():
                kind, needed = SETTINGS[name]
                from_dict(kind, record.config[name])
                lacking = needed - set(record.config[name])
                require(not lacking, f"its {name} lacks {', '.join(sorted(lacking))}")
            return record
        except KedgeError as error:
            reason = str(error).rstrip(".")
            raise KedgeError(f"{path}: this kedge record is damaged ({reason}).") from None


@dataclass(frozen=True)
class RecordSet:
    """The records of a recipe: one for each part, such as "1-shot" and "5-shot" of one table.

    A recipe without parts has a single record, whose part is "". On disk it is a folder of records
    with an index, recipe.json.
    """

    name: str
    title: str
    paper: str | None  # id of the paper's table that it repeats
    parts: dict[str, Record]

    @staticmethod
    def folder_of(part: str) -> str:
        """The folder of a part within that of the record set."""
        return folder_name(part, "-").strip("-.") or "."

    @classmethod
    def folders_of(cls, name: str, parts: Iterable[str]) -> dict[str, str]:
        folders = {part: cls.folder_of(part) for part in parts}
        if len(set(folders.values())) < len(folders):
            raise KedgeError(f"The parts of '{name}' need names that give different folders.")
        return folders

    def save_index(self, folder: str | Path) -> None:
        """Write recipe.json; the records themselves are saved by whoever makes them."""
        index = {
            "format": RECORD_FORMAT,
            "name": self.name,
            "title": self.title,
            "paper": self.paper,
            "parts": self.folders_of(self.name, self.parts),
        }
        text = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
        path = Path(folder) / INDEX
        write_text_atomically(path, text)

    @classmethod
    def load(cls, folder: str | Path) -> RecordSet:
        path = Path(folder) / INDEX
        index = _read_json(path, "recipe")
        name, title, paper = (index.get(key) for key in ("name", "title", "paper"))
        folders = index.get("parts")
        texts = all(isinstance(text, str) for text in (name, title))
        texts = texts and (paper is None or isinstance(paper, str))
        if not (texts and isinstance(folders, dict) and folders) or any(
            cls.folder_of(part) != inner for part, inner in folders.items()
        ):
            raise KedgeError(f"{path}: damaged; it must name the recipe and each part's folder.")
        records = (Record.load(path.parent / sub / "record.json") for sub in folders.values())
        return cls(str(name), str(title), paper, dict(zip(folders, records, strict=True)))


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        data = parse_json(read_text(path))
    except FileNotFoundError:
        raise KedgeError(f"{path}: no {what} here; 'kedge bench' writes one.") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KedgeError(f"{path}: not a readable kedge {what} ({reason}).") from None
    if not isinstance(data, dict) or data.get("format") not in (1, RECORD_FORMAT):
        raise KedgeError(f"{path}: not a kedge {what} of format 1 to {RECORD_FORMAT}.")
    return data


def load_run(path: Path) -> Run:
    try:
        return from_dict(Run, parse_json(read_text(path)))
    except (OSError, ValueError, RecursionError, KedgeError) as error:
        raise KedgeError(f"{path}: damaged ({error}); delete it to do this run again.") from None


def average(scores: Iterable[Score]) -> Score:
    """Mean of independent scores, of several seeds say, with the interval of that mean."""
    parts = list(scores)
    if not parts:
        raise KedgeError("This record has no such run.")
    n = len(parts)
    ci = math.sqrt(sum(part.ci**2 for part in parts)) / n
    return Score(sum(part.mean for part in parts) / n, ci, sum(part.n for part in parts))
