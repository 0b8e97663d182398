"""A delivery with many faults gets one list, the worst first, and `--strict` refuses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.data.test_copies import photograph, save

from kedge import api
from kedge.data.open import open_images
from kedge.data.remarks import KINDS, Remark, kind_of, remarks_from_json, worst_first
from kedge.errors import KedgeError

# What is wrong with images is asserted by their remarks; warnings are tested in test_progress.py.
pytestmark = pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")

Cli = Any  # of conftest.py


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """Everything that goes wrong when several people collect photographs."""
    folder = tmp_path / "delivery"
    train, test = folder / "train", folder / "test"
    for i in range(36):
        part, name = train if i < 27 else test, ("elm", "fir", "oak")[i % 3]
        save(photograph(i), part / name / f"{i:02}.png")
    shutil.copy(train / "elm" / "00.png", train / "fir" / "copy.png")  # 1: two classes
    shutil.copy(train / "fir" / "01.png", test / "fir" / "copy.png")  # 2: two parts
    shutil.copy(train / "oak" / "02.png", train / "oak" / "copy.png")  # 3: the same class
    again = Image.open(train / "elm" / "03.png").resize((240, 180))
    save(again, train / "elm" / "again.jpg", quality=60)  # 4: nearly the same
    save(photograph(50), train / "Oak" / "1.png")  # 5: almost the same name, and 6: one image
    save(photograph(51), train / "BACKGROUND_Google" / "1.png")  # 7
    (train / "elm" / "broken.png").write_bytes(b"<html>404</html>")  # 8
    (train / "ash").mkdir()  # 9: empty
    save(photograph(52), train / "stray.png")  # 10: in no class
    (train / "fir" / "raw.NEF").write_bytes(b"x")  # 11: a type that is not read
    (train / "fir" / "gone.png").symlink_to(tmp_path / "gone.png")  # 12
    save(photograph(53).convert("CMYK"), train / "oak" / "print.tif")  # 13: another mode
    return folder


# Some words of each problem, in the order in which they are told.
ALIKE = "'Oak' and 'oak'"
LABELS = ("BACKGROUND_Google", "several classes, such as train/elm/00.png")
LEAKS = ("several parts of the split, such as train/fir/01.png", "of another of the same class")
LOST = ("train/fir/gone.png", "train/ash", "train/stray.png", "raw.NEF", "elm/broken.png")
TRAINED = (*LABELS, *LEAKS, *LOST)  # once the question about the name is answered


def told(text: str, level: str = "problem") -> list[str]:
    """The lines of a list of remarks."""
    return [line for line in text.split("\n") if line.startswith(f"  {level}: ")]


def has_words(lines: list[str], words: tuple[str, ...]) -> bool:
    return len(lines) == len(words) and all(w in line for w, line in zip(words, lines, strict=True))


def test_one_list_the_worst_first(cli: Cli, faulty: Path) -> None:
    ended = cli("data", "inspect", faulty)
    assert ended.rc == 0
    headline = f"{faulty}: 10 problems and 4 notes (all images were examined)\n  problem: "
    assert headline in ended.out
    assert has_words(told(ended.out), (ALIKE, *TRAINED)), ended.out
    notes = ("elm/again.jpg", "are in an earlier part", "fewer than 20", "CMYK")
    assert has_words(told(ended.out, "note"), notes), ended.out
    inspected = json.loads(cli("data", "inspect", faulty, "--json").out)
    assert [f"  problem: {text}" for text in inspected["problems"]] == told(ended.out)
    assert len(inspected["remarks"]) == 14


def test_training_tells_the_same_problems_once(cli: Cli, faulty: Path, tmp_path: Path) -> None:
    train = ["train", faulty, "--train", "none", "--backbone", "conv4", "--out"]
    assert "--same-class Oak=oak" in cli(*train, tmp_path / "m.kedge").sentence
    answers = {"none": "5 classes known", "Oak=oak": "4 classes known"}
    for answer, known in answers.items():
        out = tmp_path / f"{answer}.kedge"
        # The images are read twice.
        ended = cli(*train, out, "--same-class", answer, "--save-memory", "EIML exemplars=2")
        assert known in ended.out
        assert ended.err.startswith(f"{faulty}: 9 problems and 1 note\n"), ended.err
        assert has_words(told(ended.err), TRAINED), ended.err


def test_strict_refuses_it(cli: Cli, faulty: Path, tmp_path: Path) -> None:
    ended = cli("data", "inspect", faulty, "--strict")
    assert ended.rc == 1
    assert "--strict refuses this delivery for 10 problems" in ended.err
    ended = cli("train", faulty, "--out", "m.kedge", "--strict", cwd=tmp_path)
    assert "--strict refuses this delivery for 10 problems" in ended.err
    ended = cli("train", faulty, "--out", "m.kedge", "--strict", "--same-class=none", cwd=tmp_path)
    assert ended.rc == 1
    assert has_words(told(ended.err), TRAINED)
    assert "--strict refuses this delivery for 9 problems" in ended.err
    assert not (tmp_path / "m.kedge").exists()
    # A packed file has the same problems.
    assert cli("data", "pack", faulty, "--out", "x.images", cwd=tmp_path).rc == 0
    assert len(told(cli("data", "inspect", "x.images", cwd=tmp_path).out)) == 10
    with pytest.raises(KedgeError, match="refuses this delivery for 10 problems"):
        open_images(tmp_path / "x.images", strict=True)


def test_strict_accepts_notes(cli: Cli, tmp_path: Path) -> None:
    for i in range(4):
        save(photograph(i), tmp_path / "few" / ("elm" if i % 2 else "oak") / f"{i}.png")
    train = ["train", "few", "--train", "none", "--backbone", "conv4", "--out", "m.kedge"]
    ended = cli(*train, "--strict", cwd=tmp_path)
    assert ended.rc == 0, ended.err
    assert ended.err.startswith("few: 1 note\n  note: 2 classes have fewer than 5 images")


def test_validation_images_that_are_trained_on(tmp_path: Path) -> None:
    """Without a fault of their own, but three of them are in both."""
    for i in range(30):
        name = f"{'train' if i < 20 else 'val'}/{'abcd'[i % 4]}/{i}.png"
        save(photograph(i), tmp_path / name)
    for i in range(3):
        save(photograph(i), tmp_path / "val" / "a" / f"copy {i}.png")
    how: dict[str, Any] = {"backbone": "conv4", "width": 4, "epochs": 1, "episodes": 1}
    with pytest.raises(KedgeError, match=r"val: .*3 of 13 validation images are exact copies"):
        api.train(tmp_path / "train", val=tmp_path / "val", strict=True, val_episodes=2, **how)


def test_kinds_survive_a_file() -> None:
    remarks = [Remark(kind, kind) for kind in reversed(KINDS)]
    assert [kind_of(remark) for remark in worst_first([*remarks, "a note"])] == [*KINDS, "note"]
    for saved in ({}, {"remarks": "text"}, {"remarks": ["x"], "remark_kinds": [["y"]]}):
        assert all(kind_of(remark) == "note" for remark in remarks_from_json(saved))
