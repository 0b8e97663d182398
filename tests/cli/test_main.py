"""The command line itself: help, mistakes, encodings, pipes and signals."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kedge as package
from kedge.cli.commands import COMMANDS

SHAPE = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]
QUICK = ["--epochs", "1", "--episodes", "2", "--val-episodes", "4"]
Cli = Kedge = Any  # of conftest.py


# ── help ─────────────────────────────────────────────────────────────────────────────────────

HELP = {
    "bench": ["NAME", "kedge recipes", "EIML", "--methods", "--seeds", "--out", "--test-ways"],
    "train": ["DATA", "--out", "--val", "--image-size", "--n-way", "--epochs", "--save-memory"],
    "update": ["MODEL", "DATA", "--method", "IDA", "DFA", "FT", "--sampling", "--tasks-per-step"],
    "evaluate": ["MODEL", "DATA", "--known", "--n-episodes", "--n-shot", "95%", "--confusion"],
    "predict": ["MODEL", "IMAGE", "--support", "--include-known", "--top", "--format", "csv"],
    "show": ["MODEL", "--all", "--verify", "--json"],
    "sign": ["MODEL", "--key", "--new-key", "KEY.pub"],
    "serve": ["FOLDER", "--model", "--pictures", "--listen", "--quota", "--new-tokens"],
    "export": ["MODEL", "ONNX", "--include-known"],
    "data inspect": ["DATA", "--all", "Parquet", "Omniglot"],
    "data pack": ["DATA", "--resize", "--exclude", "--channels", "--classes", "--same-class"],
    "data compare": ["A", "B", "--json"],
    "report": ["MODEL|RUN", "record.json", "LaTeX"],
    "recipes": ["NAME", "kedge bench"],
    "paper": ["TABLE", "faults"],
    "speed": ["DATA", "--seconds", "--json"],
}


@pytest.mark.parametrize("name", HELP)
def test_help_of_a_command(cli: Cli, name: str) -> None:
    ended = cli(*name.split(), "--help")
    assert (ended.rc, ended.err) == (0, "")
    text = " ".join(ended.out.replace("│", " ").split())
    assert [word for word in HELP[name] if word not in text] == []
    assert max(map(len, ended.out.splitlines()[1:])) <= 80


def test_help_lists_every_command(cli: Cli) -> None:
    assert set(HELP) == set(COMMANDS)
    ended = cli("--help")
    assert all(name.split()[0] in ended.out for name in COMMANDS)
    assert "inspect" in cli("data", "--help").out
    assert cli("--version").out == f"kedge {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["train", "first"], "--out"),
        (["train", "first", "--out", "x", "--seed", "many"], "--seed"),
        (["train", "first", "--out", "x", "--sampling", "easy"], "hard"),
        (["predict", "m", "x", "--format", "xml"], "json"),
        (["data", "pack", "first", "--channels", "red"], "colour"),
    ],
)
def test_typing_error_is_named(cli: Cli, words: list[str], word: str, tmp_path: Path) -> None:
    ended = cli(*words, cwd=tmp_path)
    assert (ended.rc, ended.out) == (2, "")
    assert word in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --epoch 3 first --out x", "--epoch'; did you mean '--epochs'?"),
        ("train first --out x --no-pictur", "--no-pictur'; did you mean '--no-picture'?"),
        ("bench --frobnicate=3", "--frobnicate'; 'kedge bench --help' lists them."),
    ],
)
def test_mistyped_option_suggests_the_right_one(cli: Cli, words: str, sentence: str) -> None:
    """Before tyro takes the next argument for its value and says that DATA is missing."""
    ended = cli(*words.split())
    assert (ended.rc, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.rstrip().endswith(sentence)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--epochs many", "--epochs is 'many': it must be a whole number"),
        ("--n-way 5 x", "--n-way is [5, 'x']"),
        ("--n-way 7 5", "--n-way: the range 7 5"),
        ("--annealing linear", "--annealing is 'linear': it must be plateau or cosine"),
        ("--image-size 8k", "--image-size is '8k': it must be a whole number"),
    ],
)
def test_mistyped_value_is_one_sentence(cli: Cli, words: str, expected: str) -> None:
    ended = cli("train", "first", "--out", "x", *words.split())
    assert expected in ended.sentence


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("updat base.kedge", "'update'"),
        ("updat --help", "'update'"),
        ("inspect first", "'data inspect'"),
        ("data inspct first", "'data inspect'"),
        ("dta pack first", "'data pack'"),
        ("dat", "'data'"),
        ("frobnicate", "'kedge --help'"),
        ("data frobnicate", "'kedge data --help'"),
    ],
)
def test_mistyped_command_suggests_the_right_one(cli: Cli, words: str, meant: str) -> None:
    ended = cli(*words.split())
    assert (ended.rc, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("kedge: There is no command '")
    assert meant in ended.err


def test_help_is_also_a_command(cli: Cli) -> None:
    assert cli("help", "data", "pack").out == cli("data", "pack", "--help").out
    assert cli("help").out == cli("--help").out


QUICK_COMMANDS = """
import sys, kedge.cli
for words in (
    "", "--version", "--help", "help train", "train --help", "bench --help", "data --help", "updat",
    "train gone --out x", "train gone", "predict gone x", "show gone", "report gone", "paper 1",
    "evaluate gone gone", "data inspect gone", "data compare gone gone", "export gone --out x",
):
    sys.argv = ["kedge", *words.split()]
    try:
        kedge.cli.main()
    except SystemExit:
        pass
    slow = {"torch", "numpy", "pyarrow", "matplotlib", "PIL", "jinja2"} & sys.modules.keys()
    if slow:
        sys.exit(f"'{words}' has loaded {slow}")
"""


def test_help_and_mistakes_do_not_wait_for_pytorch(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", QUICK_COMMANDS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr[-1000:]
    assert "Traceback" not in ended.stderr


# ── one sentence for every mistake ───────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def desk(
    tmp_path_factory: pytest.TempPathFactory,
    draw_classes: Callable[..., Path],
    first: Path,
    by_command: dict[str, Path],
) -> Path:
    """A folder with everything that the mistakes below need."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copytree(first, desk / "first")
    draw_classes(desk / "one-class", ["alone"])
    draw_classes(desk / "four-classes", list("abcd"))
    draw_classes(desk / "latin", ["plain", os.fsdecode(b"caf\xe9")])  # from an old Windows disk
    (desk / "text.txt").write_text("no model, no image\n")
    model = by_command["base"].read_bytes()
    (desk / "base.kedge").write_bytes(model)
    (desk / "half.kedge").write_bytes(model[: len(model) // 2])
    return desk


def train(data: str, *options: str) -> list[str]:
    return ["train", data, "--out", "new.kedge", *QUICK, *options]


def update(*options: str) -> list[str]:
    return ["update", "base.kedge", "first", "--out", "new.kedge", *SHAPE, *QUICK, *options]


MISTAKES: list[tuple[list[str], str]] = [  # a command, and words of its error in this order
    (train("gone"), "gone"),
    (train("one-class"), "one-class 1 class"),
    (train("first/first 0"), "first/first 0 class"),
    (train("first", "--n-way", "7"), "6 classes 7 --n-way"),
    (train("first", "--n-way", "3", "--n-shot", "9", "--n-query", "4"), "12 images 13 --n-query"),
    (train("four-classes", "--n-way", "3", "--n-query", "6", "--n-shot", "2"), "12 --n-query"),
    (train("first", *SHAPE, "--image-size", "0"), "--image-size"),
    (train("first", *SHAPE, "--width", "400000"), "--width"),
    (train("first", *SHAPE, "--backbone", "vgg"), "'vgg' resnet12"),
    (train("first", *SHAPE, "--head", "svm"), "'svm' prototype"),
    (train("first", *SHAPE, "--head", "ecm steps=5"), "'ecm steps=5' inner_steps"),
    (train("first", *SHAPE, "--save-memory", "IDA"), "--save-memory IDA EIML"),
    (train("latin", "--n-way", "2", "--n-shot", "1", "--n-query", "1"), "latin UTF-8"),
    (train("drawings", "--image-size", "20"), "drawings 20 px"),
    (["train", "first", "--out", "base.kedge"], "base.kedge --out"),
    (["train", "first", "--out", "."], "folder"),
    (["train", "first", "--out", ""], "--out"),
    (["train", "first", "--out", "text.txt/x.kedge", *SHAPE, *QUICK], "text.txt"),
    (update("--method", "LwF"), "'LwF' IDA"),
    (update("--method", "EIML"), "EIML needs images"),
    (update("--method", "DFA dimensions=mean"), "dimensions reduction"),
    (["update", "half.kedge", "first", "--out", "new.kedge"], "half.kedge damaged"),
    (["evaluate", "text.txt", "first"], "text.txt"),
    (["evaluate", "base.kedge", "drawings"], "drawings 16 px"),
    (["evaluate", "base.kedge", "first", "--n-episodes", "0"], "--n-episodes"),
    (["evaluate", "base.kedge", "four-classes", "--known"], "four-classes 4 classes 'a'"),
    (
        ["evaluate", "base.kedge", "first", "--known", "--n-way", "3", "--seed", "0"],
        "--n-way --seed",
    ),
    (["predict", "base.kedge", "x.png", "--support", "first"], "x.png"),
    (["predict", "base.kedge", "--support", "first"], "IMAGE"),
    (["predict", "base.kedge", "first/*.gif"], "first/*.gif"),
    (["predict", "base.kedge", "-"], "standard input"),
    (["predict", "base.kedge", "first", "--top", "0"], "--top"),
    (["predict", "base.kedge", "first", "--support", "gone"], "gone"),
    (["predict", "base.kedge", "first", "--support", "one-class"], "'alone' --include-known"),
    (["export", "base.kedge", "--out", "text.txt"], "text.txt"),
    (["show", "first"], "first model"),
    (["data", "pack", "base.kedge"], "base.kedge model"),
    (["data", "pack", "first", "--exclude", "cat"], "--exclude 'cat'"),
    (["data", "pack", "first", "--out", "/"], "folder"),
    (["data", "inspect", ""], "empty"),
    (["bench", "."], "'.'"),
    (["bench", "imagenet"], "'imagenet' mini-imagenet"),
    (["bench", "--test-ways", "3-x"], "--test-ways 3-x"),
    (["report", "first"], "first kedge bench"),
    (["report"], "RUN"),
    (["recipes", "folder"], "folder protocol"),
    (["paper", "17"], "'17' mini-pn"),
]


@pytest.mark.parametrize(("command", "words"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_mistake_is_one_sentence_and_changes_nothing(
    cli: Cli, desk: Path, command: list[str], words: str
) -> None:
    before = sorted(desk.rglob("*"))
    ended = cli(*command, cwd=desk)
    # Lines that begin with a path or two spaces tell what was inferred before.
    told = [line for line in ended.err.splitlines() if line.startswith("kedge: ")]
    assert (ended.rc, ended.out, len(told)) == (1, "", 1), ended
    assert told[0].endswith((".", "?"))
    rest = told[0]
    for word in words.split(" "):
        assert word in rest, told[0]
        rest = rest.partition(word)[2]
    assert sorted(desk.rglob("*")) == before


# ── encodings ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def odd(cli: Cli, draw_classes: Callable[..., Path], tmp_path_factory: Any) -> Path:
    folder = draw_classes(tmp_path_factory.mktemp("odd") / "odd", ["größe", "猫"])
    (folder / "größe" / "01.png").unlink()  # the smallest class is named
    shape = ["--n-way", "2", "--n-shot", "1", "--n-query", "1"]
    ended = cli("train", ".", "--out", "odd.kedge", *shape, *QUICK, "--width", "1", cwd=folder)
    assert ended.rc == 0, ended.err
    return folder


@pytest.mark.slow
def test_characters_that_the_output_lacks_are_escaped(odd: Path, kedge: Kedge) -> None:
    """JSON escapes them in its own way, so that it can be read."""
    expected = {
        "predict odd.kedge größe/00.png": "gr\\xf6\\xdfe/00.png",
        "predict odd.kedge größe --format csv": "gr\\xf6\\xdfe/00.png,1,",
        "predict odd.kedge größe/00.png --format json": "gr\\u00f6\\u00dfe/00",
        "show odd.kedge --all": "gr\\xf6\\xdfe  ",
        "show odd.kedge --json": '"gr\\u00f6\\u00dfe"',
        "data inspect .": "(gr\\xf6\\xdfe)",
        "data inspect . --json": '"gr\\u00f6\\u00dfe"',
    }
    for command, text in expected.items():
        ended = subprocess.run(
            [kedge.path, *command.split()],
            cwd=odd,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        printed = ended.stdout.decode("ascii")
        assert text in printed, command
        assert "json" not in command or json.loads(printed)


# ── pipes, full disks and signals, which need real processes ─────────────────────────────────


@pytest.mark.slow
def test_reader_that_goes_away_is_no_error(
    kedge: Kedge, by_command: dict[str, Path], first: Path
) -> None:
    """As in `kedge paper | head -1`, at its worst: nobody reads a single line."""
    predict = ["predict", by_command["base"], first, "--format", "json"]
    for command in (["paper", "1"], ["bench", "--help"], predict):
        read, write = os.pipe()
        os.close(read)
        try:
            ended = subprocess.run(
                [kedge.path, *command], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60
            )
        finally:
            os.close(write)
        assert ended.stderr.strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error(
    kedge: Kedge, unbuffered: str, by_command: dict[str, Path], first: Path, tmp_path: Path
) -> None:
    """A script must not believe that it has all of it."""
    for command in (["recipes"], ["predict", by_command["base"], first, "--format", "csv"]):
        with open(tmp_path / "out", "w") as out:
            ended = subprocess.run(
                [kedge.path, *command],
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
                stdout=out,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                text=True,
                timeout=60,
            )
        assert ended.returncode == 1, ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.stderr.strip().splitlines()[-1].startswith("kedge: standard output")


INTERRUPTED = """
import os, signal, sys
class Now:
    def find_spec(self, name, *_):
        if name == "tyro":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Now())
sys.argv = ["kedge", "paper"]
from kedge.cli import main
main()
"""


def test_ctrl_c_while_the_command_starts_is_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "kedge: stopped.\n")
