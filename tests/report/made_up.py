"""Made-up records for the tests of reports."""

from __future__ import annotations

import io
import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence

from rich.console import Console

from kedge.config import EpisodeShape, TrainConfig
from kedge.evaluation.results import AnchorMove, EpochResult, Score
from kedge.experiments.records import PairedDifference, PoolInfo, Record, RecordSet, Run
from kedge.models.model_file import LineageEntry
from kedge.models.outcome import FewShotChange, NamingChange, RoundOutcome
from kedge.report.record_report import terminal_tables
from kedge.report.table import Cell, Table
from kedge.utils.config_io import to_dict

POOLS = ("old", "new", "unseen_old_domain", "unseen_new_domain", "unseen_both")
MAIN = ("old", "new", "unseen")
ROWS = {
    "NU": (69.2, 68.3, 68.7, 66.9, 69.2),
    "FT": (66.6, 79.4, 66.0, 74.9, 74.0),
    "DFA": (69.8, 69.9, 69.1, 67.8, 69.8),
    "IDA": (70.0, 79.7, 69.3, 75.2, 75.4),
    "PAR": (72.0, 81.0, 71.1, 76.3, 76.5),
}
LAMBDAS = (0, 0.25, 0.5, 1, 2, 5)
SWEEP = ("NU", "FT", *(f"IDA lambda={v:g}" for v in LAMBDAS if v != 1), "IDA", "PAR")
HOSTILE = r"<script>alert(1)</script> a_b&50%$x^2~{\c}|d #[e]*"


def pool_info(name: str, shape: tuple[int, int] | None) -> PoolInfo:
    other = re.search(r"(\d+)-way (\d+)-shot", name)
    counts = tuple(map(int, other.groups())) if other else shape
    kind, _, rest = name.partition(" at ")[0].partition("_")
    label = f"{kind}, {rest.replace('_', ' ')}" if rest and kind != "round" else name
    return PoolInfo(name, label, 36, EpisodeShape(*counts) if counts else None)


def make_runs(
    rows: Mapping[str, Sequence[float]],
    pools: Sequence[str] = POOLS,
    shape: tuple[int, int] | None = (5, 1),
    *,
    round: int = 1,
    seed: int = 0,
) -> tuple[Run, ...]:
    """A run per method with these means, and with curves and anchors that look like real ones."""
    runs = []
    for number, (method, means) in enumerate(rows.items()):
        chance = random.Random(f"{method} {round} {seed}")
        history = tuple(
            EpochResult(
                e + 1, 1.6 * math.exp(-e / 5) + number / 10, 0.4, 0.1, 60.0 + e + number, 1e-3
            )
            for e in range(6)
        )
        moves = tuple(
            AnchorMove(name, (x, -x), (x + chance.random(), chance.random() - x))
            for x, name in ((0.0, "cat"), (1.0, "dog"), (2.0, "oak"))
        )
        runs.append(
            Run(
                seed=seed,
                method=method,
                round=round,
                pools=tuple(pool_info(pool, shape) for pool in pools),
                scores={p: Score(m, 0.4, 2000) for p, m in zip(pools, means, strict=True)},
                history=() if method == "NU" else history,
                seconds=0.1 if method == "NU" else 93.0 + 40 * number,
                peak_memory_mb=812.0,
                kept_bytes_per_class={"IDA": 256.0, "PAR": 54880.0}.get(method.split()[0], 0.0),
                environment={"date": "2024-05-01T12:00:00+00:00", "torch": "2.11"},
                measures={"anchor_drift": 1.5 * round, "anchor_spread": 6.0, "anchor_plane": 0.412}
                if round
                else {},
                anchors=moves if round else (),
            )
        )
    return tuple(runs)


def make_record(runs: Sequence[Run], *, shape: tuple[int, int] = (5, 1), ci: float = 0.3) -> Record:
    """Every pair of methods differs by their means, ± `ci`."""
    pairs = [
        PairedDifference(
            a.seed,
            a.round,
            pool,
            a.method,
            b.method,
            Score(a.scores[pool].mean - b.scores[pool].mean, ci, 2000),
        )
        for a, b in itertools.combinations(runs, 2)
        if (a.seed, a.round) == (b.seed, b.round)
        for pool in a.scores.keys() & b.scores.keys()
    ]
    config = {
        "episode": {"n_way": shape[0], "n_shot": shape[1], "n_query": 15},
        "schedule": {"epochs": 12, "episodes": 100, "lr": 0.001},
        "backbone": {"backbone": "conv4", "width": 64},
        "head": {"head": "prototype", "temperature": 2.0},
    }
    classes = {"rounds": [["cat", "sea & sand"], ["<b>bus</b>"]], "val": ["leaf"], "held_out": 30}
    return Record(
        name="drawings",
        sentence="Drawings, from natural things to man-made ones: 64 old and 64 new classes.",
        config=config,
        splits={str(seed): classes for seed in sorted({run.seed for run in runs})},
        runs=tuple(runs),
        pairs=tuple(pairs),
    )


def one_round(methods: Sequence[str] = tuple(ROWS)) -> Record:
    return make_record(make_runs({m: ROWS[m] for m in methods}))


def several_rounds(n_rounds: int = 2, seeds: Sequence[int] = (0,)) -> Record:
    """Base and later rounds; fine-tuning forgets the classes of earlier rounds."""
    slopes = {"NU": 0.0, "FT": -2.4, "IDA": -0.5, "PAR": 0.3}
    own = tuple(f"round_{i}" for i in range(n_rounds + 1))
    runs: list[Run] = []
    for seed, t in itertools.product(seeds, range(n_rounds + 1)):
        rows = {}
        for method, slope in slopes.items():
            parts = [75.0 + seed + slope * (t - i) if i <= t else 67.0 for i in range(len(own))]
            old = sum(parts[: max(t, 1)]) / max(t, 1)
            unseen = 66.0 + seed + {"NU": 0.0, "FT": 0.2, "IDA": 1.0, "PAR": 1.2}[method] * t
            rows[method] = (old, *([parts[t]] if t else []), unseen, *parts)
        runs += make_runs(rows, (*(MAIN if t else ("old", "unseen")), *own), round=t, seed=seed)
    return make_record(runs)


def several_seeds(seeds: Sequence[int] = (0, 1, 2)) -> Record:
    shifts = {0: 0.0, 1: 0.9, 2: -0.6}
    runs: list[Run] = []
    for seed in seeds:
        rows = {m: [v + shifts[seed] for v in means] for m, means in ROWS.items()}
        runs += make_runs(rows, seed=seed)
    return make_record(runs)


def sweep(methods: Sequence[str] = SWEEP, pools: Sequence[str] = MAIN) -> Record:
    rows = {m: [60.0 + n + 5 * p for p in range(len(pools))] for n, m in enumerate(methods)}
    return make_record(make_runs(rows, pools))


def rows_of(table: Table) -> dict[str, tuple[Cell, ...]]:
    """Cells by label; a row of the paper has the label of the row above it and ", paper"."""
    rows: dict[str, tuple[Cell, ...]] = {}
    for row in (row for section in table.sections for row in section.rows):
        last = next(reversed(rows), "")
        rows[f"{last}, paper" if row.label == "paper" else row.label] = row.cells
    return rows


def in_terminal(result: Record | RecordSet, width: int = 220) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(terminal_tables(result))
    return console.export_text()


def make_lineage(n_rounds: int, few_shot: bool = True) -> tuple[LineageEntry, ...]:
    """Rounds that were measured: of old classes each keeps all but one point."""
    lineage = []
    for t in range(n_rounds):
        old = [NamingChange(r, 10, 0, 80.0 + r, 79.5 + r, 79.0 + r) for r in range(t)]
        new = NamingChange(t, 10, 200, None, 70.0, 90.0)
        few = FewShotChange(EpisodeShape(5, 5, 15), 5, 600, 70.0, 71.25 + t, 0.5)
        lineage.append(
            LineageEntry(
                round=t,
                method="IDA" if t else "base",
                classes=tuple(f"round {t} class {i}" for i in range(10)),
                images=300,
                source=f"delivery-{t}/",
                config=to_dict(TrainConfig()),
                best_epoch=3,
                val_accuracy=95.0,
                outcome=RoundOutcome((*old, new), few if few_shot else None),
            )
        )
    return tuple(lineage)
