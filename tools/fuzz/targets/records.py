"""Records and recipes of experiments: JSON and TOML, validated, and the tables made of them.

The first byte of an input chooses the file; the others are its text.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.models.forged import VALUES, forged_json

from kedge.experiments import recipes
from kedge.experiments.experiment import Experiment
from kedge.experiments.records import Record, RecordSet, load_run
from kedge.report.page import render_page
from kedge.report.record_report import terminal_tables
from kedge.report.render import to_latex, to_markdown
from kedge.report.summary import headlines, report_title
from kedge.report.tables import all_tables
from kedge.utils.config_io import from_dict, parse_json, to_dict
from kedge.utils.regular_file import read_text

from ..mutate import change_bytes, change_list
from ..target import Target, put

RECORDS = Path(__file__).resolve().parents[3] / "reproduction" / "records"
NAMES = ("record.json", "recipe.json", "run.json", "experiment.json", "own.toml")
LINES = (
    *(b'title = "x"', b'paper = "1"', b'protocol = "drawings"', b'[parts."1-shot"]', b"[a.b.c]"),
    *(b"[[parts]]", b"n_way = 5", b"lr = 1e400", b"seeds = [0, 1]", b'methods = ["IDA lambda=5"]'),
    *(b"date = 1979-05-27T07:32:00Z", b"a.b.c.d = {x = 1}", b'data = "x"', b"[schedule]"),
    *(b"[backbone]", b"[head]", b'head = "ecm"', b"[episode]", b"n_shot = inf", b'"""', b"'''"),
)


def run(folder: Path, data: bytes) -> None:
    if not (folder / "good" / "record.json").exists():
        put(folder / "good" / "record.json", json.dumps(small_record()).encode())
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    path = put(folder / name, data[1:])
    if name == "record.json":
        _report(RecordSet("x", "x", None, {"": Record.load(path)}))
    elif name == "recipe.json":
        _report(RecordSet.load(folder))
    elif name == "run.json":
        load_run(path)
    elif name == "own.toml":
        recipe = recipes.load_recipe(path)
        recipe.experiments(recipe.base())
    else:
        try:
            saved = parse_json(read_text(path))
        except (ValueError, RecursionError):  # its readers turn these into a KedgeError
            return
        from_dict(Experiment, saved)


def _report(record_set: RecordSet) -> None:
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        Console(file=nowhere, width=80).print(terminal_tables(record_set))
    parts = record_set.parts
    tables = [table for record in parts.values() for table in all_tables(record)]
    for table in tables:
        to_markdown(table)
        to_latex(table, record_set.name)
    render_page(report_title(record_set), [], headlines(record_set), parts, tables, [])


def small_record() -> dict[str, Any]:
    """A committed record with fewer methods, rounds, classes and epochs."""
    record = json.loads((RECORDS / "drawings" / "record.json").read_text("utf-8"))
    runs = [run for run in record["runs"] if run["method"] in ("NU", "FT", "IDA")]
    for each in runs:
        each["history"], each["anchors"] = each["history"][:2], each.get("anchors", [])[:2]
        each["environment"] = dict([*each["environment"].items()][:2])
    pairs = [p for p in record["pairs"] if {p["a"], p["b"]} <= {"NU", "FT", "IDA"}]
    splits: dict[str, Any] = {seed: {} for seed in record["splits"]}
    return record | {"runs": runs, "pairs": pairs[:4], "splits": splits}


def seeds() -> list[bytes]:
    record = small_record()
    index = {"format": 1, "name": "x", "title": "x", "paper": None, "parts": {"good": "good"}}
    values = (record, index, record["runs"][-1], to_dict(Experiment()))
    texts = [json.dumps(value).encode() for value in values]
    own = [recipes.text(name).encode() for name in recipes.recipe_names()[::9]]
    return [bytes([k]) + text for k, text in enumerate(texts)] + [b"\4" + text for text in own]


def mutate(rng: random.Random, data: bytes) -> bytes:
    kind, text = data[:1] or b"\0", data[1:]
    if kind[0] % len(NAMES) == len(NAMES) - 1:

        def change(line: bytes) -> bytes:
            name, equals, _ = line.partition(b"=")
            new = json.dumps(rng.choice(VALUES), default=str).encode()
            return rng.choice((change_bytes(rng, line), name + equals + new, name + b"." + line))

        lines = change_list(rng, text.split(b"\n"), change, lambda: rng.choice(LINES))
        return kind + b"\n".join(lines)
    try:
        value = json.loads(text)
        for _ in range(rng.choice((1, 1, 2))):
            value = forged_json(rng, value)
        return kind + json.dumps(value).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return kind + change_bytes(rng, text)


TOKENS = [b"runs", b"pairs", b"scores", b"round", b"history", b"1e308", b"-1", b"null", *LINES]
TARGET = Target(run, seeds, mutate, TOKENS)
