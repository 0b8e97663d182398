"""Figures from made-up records: which there are, that they show the record, and can be read."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from kedge.alignment import ALIGNMENTS
from kedge.evaluation import Score
from kedge.records import AnchorMove, PoolInfo, Record, Run
from kedge.report.anchors import anchors_figure, class_ways
from kedge.report.figures import accuracy_figure, all_drawings, training_figure
from kedge.report.labels import spread_out
from kedge.report.rounds import drift, drift_figure, matrix_figure, rounds_figure
from kedge.report.style import default_of, encode, looks, shown, sweeps
from kedge.report.sweeps import curves, plane_figure, sweep_figure
from kedge.training import Epoch

SEVEN = ("NU", "FT", "DFA", "EWC", "EIML", "IDA", "PAR")
LAMBDAS = (0, 0.25, 0.5, 0.75, 1, 2, 5, 10)
LAMBDA_SWEEP = ("NU", "FT", *(f"IDA lambda={v:g}" for v in LAMBDAS if v != 1), "IDA", "PAR")
EXEMPLARS = tuple(f"EIML exemplars={n}" for n in (15, 30, 60, 120))
MAIN = ("old", "new", "unseen")
DOMAINS = ("old", "new", "unseen_old_domain", "unseen_new_domain", "unseen_both")
CLASSES = ("cat", "sea turtle", "oak", "bee", "leaf", "cloud", "sun", "river", "owl", "snail",
           "strawberry", "whale")  # fmt: skip
KEEPS = {"NU": 1.0, "FT": 0.0, "DFA": 0.95, "EWC": 0.3, "EIML": 0.75, "IDA": 0.7, "PAR": 1.3}
LEARNS = {"NU": 0.0, "FT": 1.0, "DFA": 0.1, "EWC": 0.7, "EIML": 0.9, "IDA": 0.95, "PAR": 1.1}


def option(label: str, name: str) -> float | None:
    found = [word for word in label.split()[1:] if word.startswith(f"{name}=")]
    return float(found[0].partition("=")[2]) if found else None


def traits(label: str) -> tuple[float, float]:
    """How much a method keeps and learns: λ moves IDA from FT towards NU, exemplars help EIML."""
    family = label.split()[0]
    keeps, learns = KEEPS.get(family, 0.5), LEARNS.get(family, 0.5)
    weight, images = option(label, "lambda"), option(label, "exemplars")
    if weight is not None:
        keeps, learns = 1.1 * weight / (weight + 0.6), 1 - 0.05 * weight**0.9
    if images is not None:
        keeps += 0.1 * math.log2(images / 15)
    return keeps + 0.03 * ("anchors=all" in label), learns


def a_run(
    label: str, round: int, seed: int, rounds: int, pools: Sequence[str], *, moves: bool
) -> Run:
    """Numbers in the order of real ones, the same for the same arguments."""
    chance = random.Random(f"{label} {round} {seed}")
    keeps, learns = traits(label)
    level = {
        "old": 64.0 - 1.2 * round + 6.0 * keeps + 0.6 * round * keeps,
        "new": 68.0 + 11.0 * learns - 0.5 * round,
        **{f"round_{i}": 66.0 + (8.0 * learns if 0 < i <= round else 4.0 * keeps) for i in range(9)},
    }
    unseen = 66.0 + (3.0 * keeps + 5.0 * learns) * (0.6 + 0.2 * round)
    own = [f"round_{i}" for i in range(rounds + 1)] if rounds > 1 else []
    named = [p for p in pools if round or p != "new"] + own
    infos = tuple(PoolInfo(p, spoken(p), 36) for p in named)
    still = 0.0 if label.startswith("NU") else 1.2 - keeps
    return Run(
        seed=seed,
        method=label,
        round=round,
        pools=infos,
        scores={
            p: Score(level.get(p, unseen) + seed / 2 + chance.uniform(-0.4, 0.4), 0.4, 2000)
            for p in named
        },
        history=() if label == "NU" else a_history(unseen, chance),
        seconds=90.0,
        peak_memory_mb=812.0,
        kept_bytes_per_class=256.0,
        environment={"date": "2024-05-01T12:00:00+00:00"},
        measures={
            "anchor_drift": 4.0 * still * round + chance.uniform(0, 0.4),
            "anchor_spread": 16.0,
            "anchor_plane": 0.412,
        } if moves and round else {},
        anchors=some_moves(label, round, seed, still) if moves and round else (),
    )  # fmt: skip


def some_moves(label: str, round: int, seed: int, size: float) -> tuple[AnchorMove, ...]:
    """Every class starts where its anchor is, and walks in a direction of its own."""
    found = []
    for number, name in enumerate(CLASSES):
        start = random.Random(f"{name} {seed}")
        x, y = start.gauss(0, 8), start.gauss(0, 6)
        walk = random.Random(f"{label} {name} {seed}")
        steps = [(walk.gauss(2.0 * size, size), walk.gauss(-size, size)) for _ in range(round)]
        now = (x + sum(dx for dx, _ in steps), y + sum(dy for _, dy in steps))
        found.append(AnchorMove(name, (x, y), now))
        assert number < 12
    return tuple(found)


def a_history(level: float, chance: random.Random) -> tuple[Epoch, ...]:
    return tuple(
        Epoch(e + 1, 1.5 * math.exp(-e / 4) + chance.uniform(0.4, 0.5), 0.5, 0.1,
              level - 9 * math.exp(-e / 3) + chance.uniform(-0.5, 0.5), 1e-3)
        for e in range(8)
    )  # fmt: skip


def spoken(pool: str) -> str:
    kind, _, rest = pool.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind


def made_up(
    methods: Sequence[str],
    *,
    rounds: int = 1,
    seeds: Sequence[int] = (0,),
    pools: Sequence[str] = MAIN,
    moves: bool = True,
) -> Record:
    first = 0 if rounds > 1 else 1
    return Record(
        name="drawings",
        sentence="Drawings, from natural things to man-made ones.",
        config={},
        splits={},
        runs=tuple(
            a_run(label, t, seed, rounds, pools, moves=moves)
            for seed in seeds
            for label in methods
            for t in range(first, rounds + 1)
        ),
        pairs=(),
    )
