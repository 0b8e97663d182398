"""The page docs/many-updates.md and its figure: fifteen updates from scratch, one, and ten of
flowers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from kedge.evaluation.results import Score
from kedge.experiments.metrics import difference, score, seed_matrix
from kedge.experiments.records import Record
from reproduction.figure import STYLE
from reproduction.flowers import mean_measure
from reproduction.markdown import MARK, RECORDS_LINK, grid, signed
from reproduction.studies import POOLS

TEMPLATE = Path(__file__).parent / "many-updates.md.template"
FIFTEEN, ONE, DRAWINGS = "tiny-rounds-seeds", "tiny-once-seeds", "drawings-3-seeds.replicate-2"
FORMER = "tiny-pn-long"  # one update by the schedule that keeps the best epoch
TEN_OF_FLOWERS = ("flowers-10-updates", "flowers-10-updates.replicate-2")
NAMES = {  # in the order of the table
    "NU": "NU, no update",
    "FT": "FT",
    "DFA": "DFA",
    "IDA": "the paper's IDA",
    "IDA+": "**IDA+**",
    "EIML": "EIML, 15 images of every class kept",
    "PAR start=last": "PAR, all images kept",
}
FLOWERS_NAMES = {
    "NU": NAMES["NU"],
    "IDA lambda=auto anchors=all": "IDA, all anchors, λ = n_old/n_new",
    "IDA+": NAMES["IDA+"],
}
COLOURS = {
    "FT": "#d55e00",
    "DFA": "#e69f00",
    "IDA": "#56b4e9",
    "IDA+": "#0072b2",
    "EIML": "#009e73",
    "PAR start=last": "#777777",
}
RIVALS = ("EIML", "PAR start=last")  # which keep images
PAIRS = tuple(("IDA+", other) for other in ("IDA", *RIVALS))
LEARNED = range(1, 14)  # rounds whose classes two further rounds at least follow
STAGES = ("before their round", "after it", "after the next", "after the last")


def many_updates_page(records: Mapping[str, Record]) -> str:
    """The template with tables and numbers of the records, which are given by name."""
    record = records[FIFTEEN]
    last = record.rounds[-1]
    values = {
        "records": RECORDS_LINK,
        "once_table": once_table(records[ONE], records[DRAWINGS]),
        "most_apart": f"{most_apart(records, ONE):.1f}",
        "former_apart": f"{most_apart(records, FORMER):.1f}",
        "scores_table": scores_table(record),
        "differences_table": differences_table(record),
        "stages_table": stages_table(record),
        "flowers_table": flowers_table([records[name] for name in TEN_OF_FLOWERS]),
    }
    for pool in POOLS:
        values[f"plus_{pool}"] = _cell(difference(record, "IDA+", "IDA", last, pool), signs=True)
    rivals = [difference(record, "IDA+", b, last, p) for b in RIVALS for p in ("old", "unseen")]
    values["most_behind"] = f"{-min(found.mean for found in rivals if found is not None):.1f}"
    for name in ("naming", "naming_true_means"):
        values[name] = f"{mean_measure(record, 'IDA+', last, name):.1f}"
    return f"{MARK}\n\n" + TEMPLATE.read_text(encoding="utf-8").format(**values)


def once_table(photographs: Record, drawings: Record) -> str:
    """IDA+ minus others after one update."""
    rows = []
    for name, record, unseen in (
        ("photographs, ResNet-12", photographs, "unseen"),
        ("drawings, Conv-4", drawings, "unseen_both"),
    ):
        for other in (method for method in ("IDA", "EIML") if method in record.methods):
            found = [difference(record, "IDA+", other, 1, p) for p in ("old", "new", unseen)]
            rows.append((f"{name}: IDA+ − {other}", *(_cell(one, signs=True) for one in found)))
    return grid(("after one update", *POOLS), rows, "lrrr")


def most_apart(records: Mapping[str, Record], name: str) -> float:
    """The largest difference between the accuracies of a record and its replicate, by seed."""
    first, second = (
        {
            (run.seed, run.method, run.round, pool): found.mean
            for run in each.runs
            for pool, found in run.scores.items()
        }
        for each in (records[name], records[f"{name}.replicate-2"])
    )
    return max(abs(first[key] - second[key]) for key in first.keys() & second.keys())


def scores_table(record: Record) -> str:
    """A row for each method: accuracies after the last round, and what it keeps."""
    last = record.rounds[-1]
    rows = []
    for method, name in NAMES.items():
        found = [score(record, method, last, pool) for pool in POOLS]
        runs = record.select(method, last)
        kept = statistics.fmean(run.kept_bytes_per_class for run in runs)
        rows.append((name, *(_cell(one) for one in found), f"{kept / 1000:.1f}" if kept else "–"))
    return grid(("after 15 updates", *POOLS, "kB kept per class"), rows, "lrrrr")


def differences_table(record: Record) -> str:
    """IDA+ minus others after the last round, paired by seed."""
    last = record.rounds[-1]
    rows = [
        (f"{a} − {b}", *(_cell(difference(record, a, b, last, pool), signs=True) for pool in POOLS))
        for a, b in PAIRS
    ]
    return grid(("", *POOLS), rows, "lrrr")


def stages_table(record: Record) -> str:
    """What becomes of the classes of a round: means over rounds and seeds."""
    methods = [method for method in NAMES if method != "NU"]
    rows = [(NAMES[m], *(f"{v:.1f}" for v in class_stages(record, m))) for m in methods]
    return grid((f"classes of rounds {LEARNED[0]} to {LEARNED[-1]}", *STAGES), rows, "lrrrr")


def class_stages(record: Record, method: str) -> Sequence[float]:
    """Accuracy on the classes of a round before it, after it, after the next and after the last
    round; the mean over `LEARNED` and all seeds."""
    last = record.rounds[-1]
    values = []
    for seed in record.seeds:
        # The base round is listed for each method.
        a = seed_matrix(record, method, seed)
        values += [(a[t - 1][t], a[t][t], a[t + 1][t], a[last][t]) for t in LEARNED]
    return [statistics.fmean(column) for column in zip(*values, strict=True)]


def flowers_table(records: Sequence[Record]) -> str:
    """Before the updates and after them, for each method of each record."""
    rows = []
    for record, method in ((r, m) for r in records for m in r.methods):
        last, wide = record.rounds[-1], "at 16-way 5-shot"
        updates = range(1, last)

        def score_of(round: int, pool: str, record: Record = record, method: str = method) -> float:
            return record.score(method, round, pool).mean

        old, unseen = (
            f"{score_of(0, f'{pool} {wide}'):.1f} → {score_of(last, f'{pool} {wide}'):.1f}"
            for pool in ("round_0", "unseen")
        )
        own = statistics.fmean(score_of(t, f"round_{t}") for t in updates)
        end = statistics.fmean(score_of(last, f"round_{t}") for t in updates)
        stored, true = (
            mean_measure(record, method, last, name) for name in ("naming", "naming_true_means")
        )
        named = f"{stored:.1f} ({true:.1f})"
        one = ", one seed" if len(record.seeds) == 1 else ""
        rows.append((FLOWERS_NAMES[method] + one, old, unseen, f"{own:.1f} → {end:.1f}", named))
    head = (
        "before → after ten updates",
        "first 36 kinds, 16-way",
        "unseen kinds, 16-way",
        "kinds of updates 1 to 9, 5-way, since their own",
        "named among all 86 by stored anchors (true means)",
    )
    return grid(head, rows, "lrrrr")


def rounds_figure(record: Record) -> Figure:
    """Accuracy on old and on unseen classes after each round."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((7.6, 3.0), layout="constrained")
        for axes, pool in zip(figure.subplots(1, 2), ("old", "unseen"), strict=True):
            for method, colour in COLOURS.items():
                found = {t: score(record, method, t, pool) for t in record.rounds[1:]}
                means = {t: one.mean for t, one in found.items() if one is not None}
                label = NAMES[method].strip("*")
                axes.plot([*means], [*means.values()], color=colour, label=label, linewidth=1.4)
            axes.set_title(f"{pool} classes", fontsize=9, loc="left")
            axes.set_xlabel("updates by 5 classes each")
            axes.set_ylabel("%")
            axes.grid(axis="y", color="#e4e4e0", linewidth=0.7)
            axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _cell(found: Score | None, signs: bool = False) -> str:
    if found is None:
        return "–"
    mean = signed(found.mean) if signs else f"{found.mean:.1f}"
    return f"{mean} ± {found.ci:.1f}"
