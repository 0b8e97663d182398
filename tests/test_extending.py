"""docs/extending.md is complete and true: its files pass the contracts, and train."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.experiments.records import Record

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))
TINY = "schedule=Schedule(epochs=1, episodes=3, val_episodes=4), eval_episodes=10"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extension")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, *args: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *args],
        cwd=ROOT if "pytest" in args else folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def test_the_page_has_a_head_an_alignment_and_their_use() -> None:
    assert set(FILES) == {"cosine.py", "direction.py", "experiment.py"}


@pytest.mark.parametrize(
    ("plugin", "suite", "name"), [("cosine", "heads", "cosine"), ("direction", "alignment", "DIR")]
)
def test_the_contract_suites_run_over_the_files_of_the_page(
    folder: Path, plugin: str, suite: str, name: str
) -> None:
    where = f"tests/{suite}/test_contract.py"
    options = ("-o", "addopts=--import-mode=importlib", "-p", plugin, "-p", "no:cacheprovider")
    said = run(folder, "-m", "pytest", *options, "-k", name, where)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) > 10, "the suite did not find it"


def test_both_train_by_their_names(folder: Path) -> None:
    code = FILES["experiment.py"].replace('("FT", "IDA")', '("FT", "DIR power=2", "IDA")')
    code = code.replace("import cosine", "import cosine, direction")
    code = re.sub(r"schedule=Schedule\(.*?\)", TINY, code)
    code += "\nprint(record.config['head'], record.methods)"
    said = run(folder, "-c", code)
    assert "'head': 'cosine'" in said
    record = Record.load(folder / "runs" / "cosine" / "record.json")
    assert record.methods == ("FT", "DIR power=2", "IDA")
    penalty = {run.method: run.history[0].penalty for run in record.runs if run.round == 1}
    assert penalty["FT"] == 0
    assert penalty["DIR power=2"] > 0
