"""The examples of docs/extending.md: they pass the contract suites, train, and open images."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.experiments.records import Record

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))
DIFFS = re.findall(r"```diff\n# (\S+)\n(.*?)```", PAGE, re.S)
TINY = "schedule=Schedule(epochs=1, episodes=3, val_episodes=4), eval_episodes=10"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extension")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, *args: str, cwd: Path | None = None) -> str:
    path = os.pathsep.join([str(folder), str(ROOT / "src")])  # before any installed kedge
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *args],
        cwd=cwd or folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


@pytest.mark.parametrize(
    ("plugin", "suite", "name"),
    [("cosine", "models/heads", "cosine"), ("direction", "methods", "DIR")],
)
def test_contract_suites_pass(folder: Path, plugin: str, suite: str, name: str) -> None:
    options = ("-o", "addopts=--import-mode=importlib", "-p", plugin, "-p", "no:cacheprovider")
    path = f"tests/{suite}/test_contract.py"
    output = run(folder, "-m", "pytest", *options, "-k", name, path, cwd=ROOT)
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None, output
    assert int(passed[1]) > 5, "the suite did not run over the example"


def test_experiment_trains_with_all_of_them(folder: Path) -> None:
    code = re.sub(r"schedule=Schedule\(.*?\)", TINY, FILES["experiment.py"])
    run(folder, "-c", code)
    record = Record.load(folder / "runs" / "mine" / "record.json")
    penalty = {run.method: run.history[0].penalty for run in record.runs if run.round == 1}
    assert penalty["FT"] == 0
    assert penalty["DIR power=2"] > 0


def test_reader_opens_images(folder: Path, first: Path) -> None:
    flat = folder / "flat"
    flat.mkdir()
    for file in first.glob("*/*.png"):
        shutil.copy(file, flat / f"{file.parent.name}_{file.name}")
    code = f"import flat_names, kedge; print(*kedge.open_images({str(flat)!r}).classes, sep='|')"
    assert run(folder, "-c", code).strip() == "|".join(sorted(p.name for p in first.iterdir()))


STUB = """
import json, sys, types

def tell(metrics, step=None):
    assert all(re.fullmatch(r"[\\w./ -]+", name) for name in metrics) or step is None
    print(json.dumps([metrics, step]))

class Run:
    log = staticmethod(tell)
    __enter__ = __exit__ = lambda *_: None

import re
sys.modules["wandb"] = types.SimpleNamespace(init=lambda project: Run)
sys.modules["mlflow"] = types.SimpleNamespace(start_run=Run, log_metrics=tell)
"""


@pytest.mark.parametrize("name", ["to_wandb.py", "to_mlflow.py"])
def test_loggers_pass_on_every_epoch(folder: Path, first: Path, name: str) -> None:
    """With stand-ins for the two packages; in MLflow names have letters, digits and _./ - only."""
    tiny = f"{str(first)!r}, width=4, n_way=2, n_shot=1, n_query=1, epochs=3, episodes=2"
    code = FILES[name].replace('"first-delivery/"', tiny)
    logged = [json.loads(line) for line in run(folder, "-c", STUB + code).splitlines()]
    assert len(logged) == 3
    for n, (metrics, step) in enumerate(logged, 1):
        assert step == n if name == "to_mlflow.py" else metrics["seed-0/base/round-0/epoch"] == n
        assert metrics["seed-0/base/round-0/loss"] > 0


def test_a_new_number_is_in_the_training_curve(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "kedge", tmp_path / "kedge")
    for name, diff in DIFFS:
        file = tmp_path / Path(name).relative_to("src")
        text = file.read_text(encoding="utf-8")
        for hunk in diff.split("...\n"):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            new = "".join(line[1:] for line in lines if line[0] in " +")
            assert old in text, f"{name} has no lines\n{old}"
            text = text.replace(old, new, 1)
        file.write_text(text, encoding="utf-8")
    assert len(DIFFS) == 2
    (tmp_path / "few_drawings.py").write_text(FILES["few_drawings.py"], encoding="utf-8")
    code = f"""import few_drawings, kedge
from kedge.config import BackboneConfig, Schedule
experiment = kedge.Experiment("few-drawings", ("FT",), backbone=BackboneConfig(width=4), {TINY})
record = kedge.run_experiment(experiment, "run")
print(record.runs[-1].history[0].feature_norm)"""
    assert float(run(tmp_path, "-c", code).split()[-1]) > 0
