"""Reports from small made-up records: the same numbers everywhere, and words that follow them."""

from __future__ import annotations

import html
import io
import itertools
import math
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from kedge.errors import KedgeError
from kedge.evaluation.results import Epoch, Score
from kedge.experiments.records import (
    PairedDifference,
    PoolInfo,
    Record,
    Run,
)
from kedge.methods.registry import ALIGNMENTS
from kedge.report import (
    IN_TERMINAL,
    terminal_table,
    write_report,
)
from kedge.report.figures import (
    Drawing,
    all_drawings,
    old_new_figure,
)
from kedge.report.format import signed
from kedge.report.page import render_page, title_of
from kedge.report.render import to_latex, to_markdown
from kedge.report.style import encode, looks
from kedge.report.summary import (
    KNOWN,
    legends,
    verdict,
)
from kedge.report.table import Table
from kedge.report.tables import all_tables
from kedge.utils.spec import fields_of

POOLS = ("old", "new", "unseen_old_domain", "unseen_new_domain", "unseen_both")
ROWS = {
    "NU": (69.2, 68.3, 68.7, 66.9, 69.2),
    "FT": (66.6, 79.4, 66.0, 74.9, 74.0),
    "DFA": (69.8, 69.9, 69.1, 67.8, 69.8),
    "IDA": (70.0, 79.7, 69.3, 75.2, 75.4),
    "PAR": (72.0, 81.0, 71.1, 76.3, 76.5),
}
CONFIG = {
    "protocol": "drawings",
    "episode": {"n_way": 5, "n_shot": 1, "n_query": 15},
    "schedule": {"epochs": 12, "episodes": 100, "lr": 0.001},
    "backbone": {"backbone": "conv4", "width": 64},
    "head": {"head": "prototype", "temperature": 2.0},
    "eval_episodes": 2000,
}
HOSTILE = r"<script>alert(1)</script> a_b&50%$x^2~{\c}|d #[e]*"


def label(pool: str) -> str:
    kind, _, rest = pool.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind


def history(number: int, level: float, epochs: int = 12) -> tuple[Epoch, ...]:
    """A curve that rises towards a level, a little different for each method."""
    return tuple(
        Epoch(
            epoch=e + 1,
            loss=1.6 * math.exp(-e / (5 + number)) + 0.05 * math.sin(3 * e + number) + 0.4,
            cross_entropy=1.4 * math.exp(-e / (5 + number)) + 0.35,
            penalty=0.1,
            val_accuracy=level - 12 * math.exp(-e / (3 + number)) + 0.4 * math.sin(2 * e + number),
            lr=1e-3,
        )
        for e in range(epochs)
    )


def runs_of(
    rows: dict[str, tuple[float, ...]],
    pools: tuple[str, ...] = POOLS,
    *,
    round: int = 1,
    seed: int = 0,
) -> tuple[Run, ...]:
    infos = tuple(PoolInfo(p, label(p), 72 if p == "unseen_both" else 36) for p in pools)
    return tuple(
        Run(
            seed=seed,
            method=method,
            round=round,
            pools=infos,
            scores={p: Score(m, 0.4, 2000) for p, m in zip(pools, means, strict=True)},
            history=() if method == "NU" else history(number, means[-1]),
            seconds=0.1 if method == "NU" else 93.0 + 40 * number,
            peak_memory_mb=812.0,
            kept_bytes_per_class={"IDA": 256.0, "PAR": 54880.0}.get(method.split()[0], 0.0),
            environment={"date": "2024-05-01T12:00:00+00:00", "torch": "2.11", "gpu": "none"},
        )
        for number, (method, means) in enumerate(rows.items())
    )


def pairs_of(runs: tuple[Run, ...], ci: float = 0.3) -> tuple[PairedDifference, ...]:
    return tuple(
        PairedDifference(a.seed, a.round, p, a.method, b.method,
             Score(a.scores[p].mean - b.scores[p].mean, ci, a.scores[p].n))
        for a, b in itertools.permutations(runs, 2)
        if (a.seed, a.round) == (b.seed, b.round)
        for p in a.scores.keys() & b.scores.keys()
    )  # fmt: skip


def record_of(runs: tuple[Run, ...], pairs: tuple[PairedDifference, ...] | None = None) -> Record:
    return Record(
        name="drawings",
        sentence="Drawings, from natural things to man-made ones: 64 old and 64 new classes.",
        config=CONFIG,
        splits={
            str(seed): {
                "seed": seed,
                "rounds": [["cat", "dog", "sea & sand"], ["car", "<b>bus</b>"]],
                "val": ["leaf"],
                "unseen": {"unseen_both": ["bee", "pan"]},
                "held_out": 30,
            }
            for seed in sorted({run.seed for run in runs})
        },
        runs=runs,
        pairs=pairs_of(runs) if pairs is None else pairs,
    )


@pytest.fixture(scope="module")
def single() -> Record:
    return record_of(runs_of(ROWS))


def several_rounds() -> Record:
    """Base and two rounds; fine-tuning forgets what the rounds before it brought."""
    slope = {"FT": -2.4, "IDA": -0.5, "PAR": 0.3}
    base = {"FT": 76.0, "IDA": 75.8, "PAR": 78.0}
    every: tuple[Run, ...] = ()
    for t in range(3):
        own = tuple(f"round_{i}" for i in range(3))
        pools = (("old", "new", "unseen") if t else ("old", "unseen")) + own
        rows = {}
        for m in slope:
            parts = [
                70.0 + slope[m] * t if i == 0
                else base[m] + slope[m] * (t - i) if 0 < i <= t
                else 67.0 + 0.7 * t + i / 10
                for i in range(3)
            ]  # fmt: skip
            old = sum(parts[: max(t, 1)]) / max(t, 1)
            unseen = 66.0 + 1.2 * t - (m == "FT") * t
            rows[m] = ((old, parts[t], unseen) if t else (old, unseen)) + tuple(parts)
        every += runs_of(rows, pools, round=t)
    return record_of(every)


def several_seeds() -> Record:
    shift = {0: 0.0, 1: 0.9, 2: -0.6}
    every: tuple[Run, ...] = ()
    for seed, by in shift.items():
        rows = {m: tuple(v + by for v in means) for m, means in ROWS.items()}
        every += runs_of(rows, seed=seed)
    return record_of(every)


def hostile() -> Record:
    rows = {**ROWS, HOSTILE: (69.0, 75.0, 68.0, 72.0, 71.0)}
    return replace(record_of(runs_of(rows)), name="draw<i>ings_&", sentence="</style> & $ 5%")


def alone() -> Record:
    return record_of(runs_of({"IDA": ROWS["IDA"]}))


RECORDS = {
    "single": lambda: record_of(runs_of(ROWS)),
    "rounds": several_rounds,
    "seeds": several_seeds,
    "hostile": hostile,
    "alone": alone,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of several rounds with all that belongs to it; drawing takes seconds."""
    folder = tmp_path_factory.mktemp("report")
    assert write_report(several_rounds(), folder) == folder / "report.html"
    return folder


def page_of(record: Record) -> str:
    """The page without its figures, for tests of the words and tables in it."""
    return render_page(record, all_tables(record), [])


# ── readers of what was written ──────────────────────────────────────────────────────────────

VALUE = r"[+−]?\d+\.\d+ ± \d+\.\d+"


class Page(HTMLParser):
    """Table cells by the id of their table, every tag, and every address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[tuple[str, str]] = []
        self.tables: dict[str, list[str]] = {}
        self.strong: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self._key = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = {name: value or "" for name, value in attrs}
        self.addresses += [(tag, given[a]) for a in ("src", "href", "srcset", "data") if a in given]
        if tag == "figure":
            self._key = given.get("id", "")
        if tag == "td":
            self.tables.setdefault(self._key, []).append("")
        if tag not in ("meta", "link", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self._open:
            self.tables[self._key][-1] += data
        if "strong" in self._open:
            self.strong.append(data)
        if "style" not in self._open:
            self.words.append(data)

    def values(self, key: str) -> list[str]:
        return [v for cell in self.tables[key] for v in re.findall(VALUE, cell)]


def described(table: Table) -> list[str]:
    texts = (cell.text for part in table.sections for row in part.rows for cell in row.cells)
    return [text for text in texts if re.fullmatch(VALUE, text)]


def in_markdown(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return re.findall(VALUE, "\n".join(rows).replace("**", ""))


def in_latex(text: str) -> list[str]:
    body = text.partition(r"\toprule")[2]
    for wrapped in (r"\textbf{", r"{\scriptsize", "}"):
        body = body.replace(wrapped, "")
    return re.findall(VALUE, body.replace(r"$\pm$", "± ").replace("$-$", "−").replace("  ", " "))


def in_terminal(record: Record, width: int = 220) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(terminal_table(record))
    return console.export_text()


# ── the numbers ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", RECORDS)
def test_all_renderings_show_the_same_numbers(name: str) -> None:
    record = RECORDS[name]()
    page = Page(page_of(record))
    terminal = re.findall(VALUE, in_terminal(record))
    seen_there = []
    for table in all_tables(record):
        expected = described(table)
        assert in_markdown(to_markdown(table)) == expected
        assert in_latex(to_latex(table, record.name)) == expected
        if expected:
            assert page.values(table.key) == expected
        else:
            assert table.key in ("cost", "cost-rounds", "metrics")
        seen_there += expected if table.key in IN_TERMINAL else []
    assert terminal == seen_there


def test_the_main_table_shows_every_score_and_puts_the_references_apart(single: Record) -> None:
    table = all_tables(single)[0]
    shown = {r.label: tuple(c.text for c in r.cells) for s in table.sections for r in s.rows}
    assert shown == {m: tuple(f"{v} ± 0.4" for v in row) for m, row in ROWS.items()}
    assert [[r.label for r in s.rows] for s in table.sections] == [
        ["NU"],
        ["FT", "DFA", "IDA"],
        ["PAR"],
    ]
    assert [r.muted for s in table.sections for r in s.rows] == [True, False, False, False, True]
    assert table.groups() == (("", 1), ("", 1), ("unseen", 3))
    assert "5-way 1-shot with 15 query images" in table.caption
    assert "2,000 episodes" in table.caption
    assert "12 epochs of 100 episodes" in table.caption


def strong(record: Record) -> dict[str, list[str]]:
    """Pool → methods in bold."""
    rows = [row for section in all_tables(record)[0].sections for row in section.rows]
    return {p: [r.label for r in rows if r.cells[i].strong] for i, p in enumerate(POOLS)}


def test_bold_are_the_best_and_its_ties_but_never_a_reference(
    single: Record,
) -> None:
    assert strong(single) == {
        "old": ["DFA", "IDA"],  # 0.2 ± 0.3 apart
        "new": ["FT", "IDA"],
        "unseen_old_domain": ["DFA", "IDA"],
        "unseen_new_domain": ["FT", "IDA"],
        "unseen_both": ["IDA"],
    }
    page = Page(page_of(single))
    assert page.strong == ["79.4", "74.9", "69.8", "69.1", "70.0", "79.7", "69.3", "75.2", "75.4"]
    table = all_tables(single)[0]
    assert "| 66.6 ± 0.4 | **79.4 ± 0.4** |" in to_markdown(table)
    assert r"66.6 {\scriptsize$\pm$ 0.4} & \textbf{79.4} {\scriptsize$\pm$ 0.4}" in to_latex(
        table, "x"
    )


def test_ties_follow_the_paired_interval() -> None:
    runs = runs_of(ROWS)
    narrow, wide = (record_of(runs, pairs_of(runs, ci)) for ci in (0.1, 5.0))
    assert strong(narrow)["old"] == ["IDA"]
    assert strong(wide)["old"] == ["FT", "DFA", "IDA"]


def test_a_pair_in_one_direction_is_enough_and_without_pairs_nothing_is_claimed() -> None:
    runs = runs_of(ROWS)
    one_way = tuple(p for p in pairs_of(runs, ci=0.1) if p.a < p.b)
    assert strong(record_of(runs, one_way)) == strong(record_of(runs, pairs_of(runs, ci=0.1)))
    unpaired = record_of(runs, ())
    assert not any(strong(unpaired).values())
    assert "Bold" not in all_tables(unpaired)[0].caption


def test_differences_are_marked_when_clear_of_zero(single: Record) -> None:
    table = next(t for t in all_tables(single) if t.key == "differences")
    rows = {r.label: r.cells for s in table.sections for r in s.rows}
    assert list(rows) == ["IDA − NU", "IDA − FT", "IDA − DFA", "IDA − PAR"]
    assert (rows["IDA − FT"][0].text, rows["IDA − FT"][0].mark) == ("+3.4 ± 0.3", "▲")
    assert (rows["IDA − DFA"][0].text, rows["IDA − DFA"][0].mark) == ("+0.2 ± 0.3", "")
    assert (rows["IDA − PAR"][0].text, rows["IDA − PAR"][0].mark) == ("−2.0 ± 0.3", "▼")


def test_rounding_never_hides_on_which_side_of_zero_an_interval_ends() -> None:
    runs = runs_of({"FT": (70.0,), "IDA": (70.24,)}, ("old",))
    record = record_of(runs, pairs_of(runs, ci=0.17))
    table = next(t for t in all_tables(record) if t.key == "differences")
    assert table.sections[0].rows[0].cells[0].text == "+0.24 ± 0.17"
    assert signed(Score(-0.1668, 0.1663, 40)) == ("−0.167", "0.166")


def test_variants_of_ida_are_held_against_the_others_and_plain_ida() -> None:
    rows = {"IDA anchors=all": ROWS["IDA"], **ROWS}
    table = next(t for t in all_tables(record_of(runs_of(rows))) if t.key == "differences")
    assert {s.title: [r.label for r in s.rows] for s in table.sections} == {
        "IDA": ["− NU", "− FT", "− DFA", "− PAR"],
        "IDA anchors=all": ["− NU", "− FT", "− DFA", "− IDA", "− PAR"],
    }


# ── the words ────────────────────────────────────────────────────────────────────────────────


def test_the_verdict_follows_the_numbers(single: Record) -> None:
    said = verdict(single)
    assert said.headline.startswith(
        "IDA keeps 70.0% on old classes where fine-tuning (FT) keeps 66.6% "
        "(difference +3.4 ± 0.3). On new classes the two cannot be told apart: 79.7% against 79.4%"
    )
    assert "ahead on unseen classes of the old domain (+3.3 ± 0.3)" in said.headline
    assert any("(NU), IDA is ahead everywhere, by 0.6 to 11.4" in line for line in said.details)
    assert any("(PAR), IDA is behind everywhere, by 1.1 to 2.0" in line for line in said.details)


def test_the_verdict_flips_when_the_numbers_flip() -> None:
    swapped = {**ROWS, "IDA": ROWS["FT"], "FT": ROWS["IDA"]}
    headline = verdict(record_of(runs_of(swapped))).headline
    assert "IDA keeps only 66.6% on old classes where fine-tuning (FT) keeps 70.0%" in headline
    assert "(difference −3.4 ± 0.3)" in headline
    assert "behind on unseen classes of the old domain (−3.3 ± 0.3)" in headline
    assert "ahead" not in headline


def test_the_verdict_does_not_claim_what_the_interval_leaves_open() -> None:
    runs = runs_of(ROWS)
    headline = verdict(record_of(runs, pairs_of(runs, ci=9.0))).headline
    assert "IDA (70.0%) and fine-tuning (FT) (66.6%) cannot be told apart" in headline
    assert "ahead" not in headline
    assert "behind" not in headline


def test_one_method_alone_is_reported_without_a_comparison() -> None:
    record = alone()
    assert "nothing to compare it with" in verdict(record).headline
    assert [t.key for t in all_tables(record)] == ["accuracy", "cost"]
    assert not any(strong(record).values())
    assert [d.key for d in all_drawings(record)] == ["accuracy", "training"]


def test_a_record_without_ida_is_about_its_first_competitor() -> None:
    record = record_of(runs_of({m: ROWS[m] for m in ("PAR", "NU", "FT")}))
    assert verdict(record).headline.startswith("FT keeps only 66.6% on old classes where the model")


# ── names and options ────────────────────────────────────────────────────────────────────────


def test_a_record_without_a_title_is_told_by_what_it_is() -> None:
    seeds = runs_of(ROWS) + runs_of(ROWS, seed=1) + runs_of(ROWS, round=2)
    about = "Drawings, from natural things to man-made ones"  # up to where it goes into detail
    one = title_of(record_of(runs_of(ROWS)))
    assert one == f"drawings: {about}, with prototypes, 5-way 1-shot"
    assert title_of(record_of(seeds), "mine") == (
        f"mine: {about}, 2 updates, with prototypes, 5-way 1-shot, 2 seeds"
    )
    assert title_of(replace(record_of(seeds[:1]), sentence="", config={})) == "drawings"


def test_the_markdown_is_a_page_with_one_title(written: Path) -> None:
    text = (written / "table.md").read_text(encoding="utf-8")
    first, *rest = re.findall(r"^#+ .*$", text, re.M)
    assert text.startswith(f"{first}\n")
    assert first.startswith("# drawings: Drawings, from natural things to man-made ones, 2 updates")
    assert {re.sub(" .*", "", line) for line in rest} == {"##"}


def test_every_option_of_every_method_is_explained_in_words() -> None:
    options = {name: ["lambda", *fields_of(kind)] for name, kind in ALIGNMENTS.items()}
    options["PAR"] = ["start"]
    values = {"dimensions": "mean", "choice": "nearest", "start": "last"}
    for name, keys in options.items():
        for key in keys:
            label = f"{name} {key}={values.get(key, 'N')}"
            does = legends([name, label])[label].does
            assert does.startswith(f"as {name}, but "), does
            assert f"{key} is" not in does, f"{label} is not explained"
            assert f"{key}=" not in does


def test_a_variant_says_what_it_changes_and_from_what() -> None:
    said = legends(["IDA lambda=5 anchors=all", "IDA", "PAR start=last", "IDA mine=x{}"])
    assert said["IDA lambda=5 anchors=all"].does == (
        "as IDA, but λ, the weight of the penalty that holds it, is 5 (otherwise 1) and each step "
        "is held against all anchors, not just some of them"
    )
    assert said["IDA"] == KNOWN["IDA"]
    assert said["PAR start=last"].does.startswith(KNOWN["PAR"].does)  # there is no plain one
    assert said["PAR start=last"].does.endswith(
        "; each round goes on from the model of its last one, not from new weights"
    )
    assert said["IDA mine=x{}"].does == "as IDA, but mine is x{}"


# ── several rounds, several seeds, gaps ──────────────────────────────────────────────────────


def test_several_rounds_get_their_matrix_and_a_table_each(written: Path) -> None:
    tables = {table.key: table for table in all_tables(several_rounds())}
    assert list(tables) == [
        "accuracy", "differences", "metrics", "accuracy-round-1", "matrix", "cost", "cost-rounds",
    ]  # fmt: skip
    assert tables["accuracy"].title == "Accuracy after round 2"
    assert [c.label for c in tables["accuracy"].columns] == ["old", "new", "unseen"]
    forgetting = next(s for s in tables["matrix"].sections if s.title == "FT")
    assert [row.cells[0].value for row in forgetting.rows] == ["70.0", "67.6", "65.2"]
    assert [cell.muted for cell in forgetting.rows[1].cells] == [False, False, True]
    drawn = {path.stem for path in (written / "figures").glob("*.svg")}
    assert drawn == {"accuracy", "old-new", "training", "rounds", "matrix"}
    for table in tables.values():
        assert to_markdown(table) in (written / "table.md").read_text(encoding="utf-8")
        tex = (written / "table.tex").read_text(encoding="utf-8")
        assert to_latex(table, "drawings") in tex


def test_the_metrics_of_several_rounds_stand_in_one_table() -> None:
    record = several_rounds()
    runs = tuple(
        replace(run, measures={"anchor_drift": 1.5, "anchor_spread": 6.0})
        if (run.method, run.round) == ("IDA", 2)
        else run
        for run in record.runs
    )
    tables = {table.key: table for table in all_tables(replace(record, runs=runs))}
    shown = {r.label: [c.text for c in r.cells] for r in tables["metrics"].sections[0].rows}
    # FT: 65.2, 73.6, 76.0; it was at 70.0 and 76.0. On unseen classes 66.4, IDA and PAR 68.4.
    assert shown == {
        "FT": ["71.6", "+3.6", "−3.6", "0%", "–"],
        "IDA": ["73.4", "+0.8", "−0.8", "100%", "0.25"],
        "PAR": ["75.6", "−0.3", "+0.4", "100%", "–"],
    }
    assert "a negative value means that they got better" in tables["metrics"].caption
    assert "no intervals" in tables["metrics"].caption
    costs = {s.title: s.rows for s in tables["cost-rounds"].sections}
    assert [row.label for row in costs["IDA"]] == ["round 1", "round 2"]
    assert [cell.text for cell in costs["IDA"][0].cells] == ["133 s", "851.4 MB", "256 B"]


@pytest.mark.parametrize("missing", ["FT", "PAR"])
def test_without_both_ends_there_is_no_gap_to_speak_of(missing: str) -> None:
    record = several_rounds()
    left = record_of(tuple(run for run in record.runs if run.method != missing))
    whole, part = (
        next(table for table in all_tables(one) if table.key == "metrics") for one in (record, left)
    )
    assert "Gap closed" in whole.caption
    assert "Gap closed" not in part.caption
    assert [c.label for c in part.columns] == [
        c.label for c in whole.columns if c.label != "gap closed"
    ]
    assert {len(row.cells) for row in part.sections[0].rows} == {len(part.columns)}


def test_captions_speak_of_the_references_that_are_there() -> None:
    rows = {"NU": ROWS["NU"], "FT": ROWS["FT"], "IDA": ROWS["IDA"]}
    both = runs_of(rows) + runs_of(rows, round=2)

    def captions(*methods: str) -> str:
        record = record_of(tuple(run for run in both if run.method in methods))
        return " ".join(drawing.caption for drawing in all_drawings(record))

    with_nu, without = captions("NU", "FT", "IDA"), captions("FT", "IDA")
    assert "Lines down a band, shaded by their interval, are references: NU (dashed) " in with_nu
    assert "NU (dashed, never updated) is drawn without points: it is a reference." in with_nu
    assert "Left of NU’s dashed line" in with_nu
    assert "PAR" not in with_nu
    assert re.findall("NU|PAR|reference", without) == []


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    for record in (several_rounds(), several_seeds()):
        assert "…" not in in_terminal(record, width=80)


def test_two_seeds_have_intervals_over_episodes_and_three_over_seeds() -> None:
    three = several_seeds()
    two = replace(
        three,
        runs=tuple(run for run in three.runs if run.seed < 2),
        pairs=tuple(pair for pair in three.pairs if pair.seed < 2),
    )
    few, many = ({t.key: t for t in all_tables(record)} for record in (two, three))
    first = few["accuracy"].sections[0].rows[0].cells[0]
    assert first.text == f"69.7 ± {0.4 / math.sqrt(2):.1f}"
    assert "2,000 episodes for each seed" in few["accuracy"].caption
    assert "subtracted episode by episode" in few["differences"].caption
    first = many["accuracy"].sections[0].rows[0].cells[0]
    spread = statistics.stdev([69.2, 70.1, 68.6]) / math.sqrt(3)
    assert first.text == f"69.3 ± {4.303 * spread:.1f}"
    assert "interval over 3 seeds (Student’s t), each with 2,000" in many["accuracy"].caption
    assert "over the differences of the 3 seeds" in many["differences"].caption
    differences = {r.label: r.cells for s in many["differences"].sections for r in s.rows}
    assert differences["IDA − FT"][0].text == "+3.4 ± 0.0"  # every seed is shifted as a whole
    assert strong(three)["old"] == ["IDA"]


def test_several_seeds_are_averaged_and_shown_one_by_one() -> None:
    record = several_seeds()
    tables = {table.key: table for table in all_tables(record)}
    rows = tables["seeds"].sections[0].rows
    assert [row.cells[0].value for row in rows] == ["69.2", "70.1", "68.6", "0.8"]


def test_gaps_in_a_record_are_dashes_not_errors() -> None:
    runs = runs_of(ROWS)
    gappy = replace(runs[1], scores={"old": Score(66.6, math.inf, 1), "new": runs[1].scores["new"]})
    record = replace(record_of((runs[0], gappy, *runs[2:])), config={}, splits={})
    row = all_tables(record)[0].sections[1].rows[0]
    assert [cell.text for cell in row.cells] == ["66.6 ± ?", "79.4 ± 0.4", "–", "–", "–"]
    assert "66.6 ± ?" in "".join(Page(page_of(record)).words)
    assert len(all_drawings(record)) == 3


def test_a_record_of_the_base_round_only_can_be_reported() -> None:
    record = record_of(runs_of({"NU": (70.0, 66.0)}, ("old", "unseen"), round=0))
    assert "70.0 ± 0.4" in in_terminal(record)
    assert "NU reaches 70.0% on old classes and 66.0% on unseen" in verdict(record).headline


def test_an_empty_record_says_so(single: Record) -> None:
    with pytest.raises(KedgeError, match="no runs"):
        terminal_table(replace(single, runs=(), pairs=()))


# ── the files ────────────────────────────────────────────────────────────────────────────────


def test_the_page_needs_no_network_and_nothing_beside_it(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    outside = [(tag, url) for tag, url in page.addresses if not url.startswith(("data:", "#"))]
    assert all(tag == "a" and url.startswith("https://arxiv.org/") for tag, url in outside)
    assert "script" not in page.tags
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_every_figure_has_its_place_on_the_page_and_one_of_no_known_key_too() -> None:
    keys = ("training", "other", "anchors", "drift", "sweep-lambda", "accuracy")
    drawings = [(Drawing(key, key, f"Caption of {key}", Figure()), b"<svg/>") for key in keys]
    record = several_rounds()
    page = render_page(record, all_tables(record), drawings)
    shown = re.findall(r'id="figure-([^"]+)"', page)
    assert shown == ["accuracy", "sweep-lambda", "drift", "anchors", "other", "training"]
    assert page.index("Round by round") < page.index("figure-drift") < page.index("What became of")


def test_labels_are_escaped_in_every_rendering() -> None:
    page = page_of(hostile())
    table = all_tables(hostile())[0]
    assert "<script" not in page
    assert "<b>bus</b>" not in page
    assert HOSTILE in "".join(Page(page).words)
    shown = to_markdown(table)
    assert "<script" not in shown
    row = next(line for line in shown.splitlines() if "alert(1)" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 7
    unescaped = re.sub(r"\\([^a-zA-Z0-9\s])", r"\1", html.unescape(row))
    assert HOSTILE in unescaped
    tex = to_latex(table, hostile().name)
    escaped = (
        r"\textless{}script\textgreater{}alert(1)\textless{}/script\textgreater{} a\_b\&50\%\$x"
        r"\textasciicircum{}2\textasciitilde{}\{\textbackslash{}c\}\textbar{}d \#[e]*"
    )
    assert f"{escaped} & 69.0" in tex
    bare = re.sub(r"\\[{}]", "", tex)
    assert bare.count("{") == bare.count("}")
    assert r"\label{tab:draw-i-ings-accuracy}" in tex


def test_equal_records_give_equal_bytes_whatever_the_callers_settings(
    written: Path, tmp_path: Path
) -> None:
    with mpl.rc_context({"font.size": 20, "svg.hashsalt": None, "axes.grid": False}):
        before = dict(mpl.rcParams)
        write_report(several_rounds(), tmp_path)
        assert dict(mpl.rcParams) == before
    names = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert len(names) == 3 + 2 * 5
    for name in names:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes(), name


def test_a_record_read_back_from_its_file_gives_the_same_page(tmp_path: Path) -> None:
    several_seeds().save(tmp_path / "record.json")
    assert page_of(Record.load(tmp_path / "record.json")) == page_of(several_seeds())


# ── the figures ──────────────────────────────────────────────────────────────────────────────


def test_a_method_keeps_its_colour_and_its_variants_share_the_hue() -> None:
    some, more = looks(["IDA", "FT"]), looks(["NU", "X", "FT", "IDA", "IDA anchors=all"])
    assert some["IDA"] == more["IDA"]
    assert some["FT"] == more["FT"]
    assert more["IDA anchors=all"].colour == more["IDA"].colour
    assert more["IDA anchors=all"] != more["IDA"]
    assert len({look.colour for look in more.values()}) == 4


def test_names_in_the_scatter_cover_neither_each_other_nor_a_point() -> None:
    near = {f"IDA lambda={i}": (70.0 + i / 20, 79.5 - i / 15, 69.3, 75.2, 75.4) for i in range(5)}
    figure = old_new_figure(record_of(runs_of({**ROWS, **near})))
    assert figure is not None
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    boxes = {t.get_text(): t.get_window_extent() for t in axes.texts if t.get_text()}
    assert set(boxes) == {*ROWS, *near}
    for a, b in itertools.combinations(boxes, 2):
        assert not boxes[a].overlaps(boxes[b]), (a, b)
    for method, row in {**ROWS, **near}.items():
        x, y = axes.transData.transform(row[:2])
        assert not any(box.contains(x, y) for box in boxes.values()), method
    frame = figure.bbox
    assert all(frame.containsx(b.x0) and frame.containsx(b.x1) for b in boxes.values())


def test_figures_are_well_formed_and_carry_no_date(written: Path) -> None:
    for path in sorted((written / "figures").iterdir()):
        content = path.read_bytes()
        if path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b"<dc:date>" not in content
        else:
            assert content.startswith(b"\x89PNG")
            assert b"Software" not in content


def test_a_label_is_never_read_as_mathematics_in_a_figure() -> None:
    for drawing in all_drawings(hostile())[:2]:
        assert ElementTree.fromstring(encode(drawing.figure, "svg")).tag.endswith("svg")
