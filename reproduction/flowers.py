"""Table and figure of the flowers: what a pretrained start gives, from the committed records."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from kedge.experiments.records import Record, RecordSet
from reproduction.figure import STYLE
from reproduction.studies import RECORDS

IDA = "IDA lambda=auto anchors=all"
DFA = "DFA reduction=sum"
ROWS = {  # label → part of the record, method
    "trained from scratch (Conv-4), then IDA": ("scratch", "IDA"),
    "frozen, class means only": ("the network stays frozen", "NU"),
    "tuned on the first 50, then nothing": ("the last layers train", "NU"),
    "… then FT": ("the last layers train", "FT"),
    "… then DFA, summed over the features": ("the last layers train", DFA),
    "… then EIML, 15 images of each old kind kept": ("the last layers train", "EIML"),
    "… then the paper's IDA": ("the last layers train", "IDA"),
    "**… then IDA**, all anchors, λ = n_old/n_new": ("the last layers train", IDA),
}
LINES = {
    "frozen": ("the network stays frozen", "NU", "#777777"),
    "FT": ("the last layers train", "FT", "#d55e00"),
    "DFA": ("the last layers train", DFA, "#e69f00"),
    "EIML (keeps images)": ("the last layers train", "EIML", "#009e73"),
    "IDA, all anchors": ("the last layers train", IDA, "#0072b2"),
}
WIDE = "at 16-way 5-shot"
MARKERS = ("<!-- flowers: begin -->", "<!-- flowers: end -->")


def load_flowers() -> dict[str, Record]:
    """The parts of the record, and the network that was trained from scratch."""
    scratch = RecordSet.load(RECORDS / "flowers-scratch").parts[""]
    return {**RecordSet.load(RECORDS / "flowers").parts, "scratch": scratch}


def mean_measure(record: Record, method: str, round: int, name: str) -> float:
    runs = record.select(method, round)
    return sum(run.measures[name] for run in runs) / len(runs)


def flowers_table(records: dict[str, Record]) -> str:
    """One row for each way to learn; accuracies in % after the last delivery."""
    lines = [
        "| | unseen kinds, 5-way / 16-way | first 50 kinds, 16-way: before → after the updates | "
        "named among all 86 by stored anchors (by true means) | seconds per update |",
        "| :--- | ---: | ---: | ---: | ---: |",
    ]
    for label, (part, method) in ROWS.items():
        record = records[part]
        last = max(record.rounds)

        def score(pool: str, round: int, record: Record = record, method: str = method) -> str:
            return f"{record.score(method, round, pool).mean:.1f}"

        unseen = f"{score('unseen', last)} / {score(f'unseen {WIDE}', last)}"
        old = f"{score(f'round_0 {WIDE}', 0)} → {score(f'round_0 {WIDE}', last)}"
        stored, true = (
            mean_measure(record, method, last, name) for name in ("naming", "naming_true_means")
        )
        runs = record.select(method, last)
        seconds = sum(run.seconds for run in runs) / len(runs)
        took = "–" if seconds == 0 else f"{seconds:.0f}"
        lines.append(f"| {label} | {unseen} | {old} | {stored:.1f} ({true:.1f}) | {took} |")
    return "\n".join(lines)


def flowers_section(records: dict[str, Record]) -> str:
    """The table with its caption, for docs/is-this-for-me.md."""
    main, scratch = records["the last layers train"], records["scratch"]
    n_seeds, n_scratch = len(main.seeds), len(scratch.seeds)
    gpu = main.environment["gpu"].removeprefix("NVIDIA ")
    caption = (
        f"5-shot accuracies and shares of named photographs in %, means over {n_seeds} seeds "
        f"(from scratch: {n_scratch}), on photographs never trained on. Seconds: one {gpu} that "
        "eight trainings share; from scratch on one CPU core. Record: reproduction/records/flowers."
    )
    return f"{MARKERS[0]}\n{flowers_table(records)}\n\n{caption}\n{MARKERS[1]}"


def insert_section(page: str, section: str) -> str:
    """A page with the section in place of what is between the markers."""
    before, rest = page.split(MARKERS[0])
    return before + section + rest.split(MARKERS[1])[1]


def flowers_figure(records: dict[str, Record]) -> Figure:
    """Naming among all known kinds, and accuracy on unseen ones, after each delivery."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((7.6, 3.0), layout="constrained")
        naming, unseen = figure.subplots(1, 2)
        for label, (part, method, colour) in LINES.items():
            record = records[part]
            rounds = list(record.rounds)
            named = [mean_measure(record, method, t, "naming") for t in rounds]
            scores = [record.score(method, t, f"unseen {WIDE}").mean for t in rounds]
            style = {"color": colour, "marker": "o", "markersize": 3.5, "label": label}
            naming.plot(rounds, named, **style)
            unseen.plot(rounds, scores, **style)
        naming.set_title("named among all kinds learned so far", fontsize=9, loc="left")
        unseen.set_title("unseen kinds, 16-way 5-shot", fontsize=9, loc="left")
        for axes in (naming, unseen):
            axes.set_xticks(rounds, ["50 kinds", "+12", "+12", "+12"])
            axes.set_ylabel("%")
            axes.grid(axis="y", color="#e4e4e0", linewidth=0.7)
            axes.set_axisbelow(True)
        naming.legend(frameon=False, fontsize=8)
    return figure
