"""Private models: what their files leave out, which classes are refused, and the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kedge
from kedge.data.drawings import load_drawings
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.utils.atomic_io import load_tensors

Cli = Any  # of conftest.py
QUICK = {"width": 4, "epochs": 0}
KINDS = ("apple", "axe", "bicycle", "cactus")
NEW = ("pants", "star")


def drawings(counts: dict[str, int], source: str = "secret/place") -> ImageTable:
    table = load_drawings()
    rows = [table.rows_of(name)[:n] for name, n in sorted(counts.items())]
    labels = np.repeat(np.arange(len(rows)), [len(of_class) for of_class in rows])
    pixels = table.images[torch.cat(rows)]
    return ImageTable.build(pixels, labels, sorted(counts), source)


def train(private: bool | kedge.Privacy, n: int = 20, **options: Any) -> Model:
    return kedge.train(drawings(dict.fromkeys(KINDS, n)), private=private, **QUICK, **options)


@pytest.fixture(scope="module")
def plain() -> Model:
    return train(False)


@pytest.fixture(scope="module")
def private() -> Model:
    return train(True)


# ── what is left out ─────────────────────────────────────────────────────────────────────────


def test_no_path_is_in_the_files(
    cli: Cli, draw_classes: Callable[..., Path], tmp_path: Path
) -> None:
    """Neither in that of a first round nor in that of an update of a model that was not private."""
    first = draw_classes(tmp_path / "hidden-1", ["a", "b", "c", "d"], per_class=6)
    second = draw_classes(tmp_path / "hidden-2", ["e", "f"], per_class=6)
    weights = tmp_path / "hidden-weights.pt"
    (tmp_path / "net.py").write_text(NETWORK)
    torch.save(network().state_dict(), weights)
    own = ["--backbone", "net:network", "--weights", weights, "--epochs", 0, "--no-picture"]
    how = ["--epochs", 0, "--no-picture", "--backbone", "net:network"]
    limit = ["--private", "--min-images", 5]
    for file, options in (("plain.kedge", []), ("base.kedge", limit)):
        ended = cli("train", first, "--out", file, *own, *options, cwd=tmp_path)
        assert ended.rc == 0, ended.err
    for old, new, options in (("base", "next", []), ("plain", "scrubbed", limit)):
        command = ["update", f"{old}.kedge", second, "--out", f"{new}.kedge", *how, *options]
        ended = cli(*command, cwd=tmp_path)
        assert ended.rc == 0, ended.err
    held = {path.stem: b"hidden" in path.read_bytes() for path in tmp_path.glob("*.kedge")}
    assert held == {"plain": True, "base": False, "next": False, "scrubbed": False}
    shown = cli("show", "next.kedge", cwd=tmp_path).out
    assert "written with --private: no paths, 5 images of each class or more, no noise" in shown
    assert "private" not in cli("show", "plain.kedge", cwd=tmp_path).out


NETWORK = """
import torch

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 8))
"""


def network() -> torch.nn.Module:
    names: dict[str, Any] = {}
    exec(NETWORK, names)
    return names["network"]()


def test_everything_else_is_that_of_a_model_that_is_not_private(
    plain: Model, private: Model, tmp_path: Path
) -> None:
    """The same bits but for the spread; and a file that is not private has no new key."""
    assert plain.spread is not None
    assert private.spread is None, "it is computed from differences of single images"
    assert private.calibration is not None
    same = {"spread": plain.spread, "calibration": plain.calibration}
    unmarked = replace(private, privacy=None, lineage=plain.lineage, **same)
    assert unmarked.fingerprint == plain.fingerprint
    for name, model in (("plain", plain), ("unmarked", unmarked), ("private", private)):
        model.save(tmp_path / name)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "unmarked").read_bytes()
    assert "private" not in load_tensors(tmp_path / "plain", "model")[0]
    assert Model.load(tmp_path / "private").privacy == kedge.Privacy()


def test_a_file_that_says_something_else_is_refused(private: Model, tmp_path: Path) -> None:
    wrong = replace(private)
    object.__setattr__(wrong, "privacy", Unchecked(-1, 0.0))
    wrong.save(tmp_path / "wrong.kedge")
    with pytest.raises(KedgeError, match=r"wrong\.kedge: .*min_images is -1"):
        Model.load(tmp_path / "wrong.kedge")


class Unchecked(kedge.Privacy):
    def __post_init__(self) -> None:
        pass


# ── what is refused ──────────────────────────────────────────────────────────────────────────


def test_class_of_few_images_is_refused(private: Model, plain: Model) -> None:
    few = {"pants": 20, "star": 19}
    for call in (
        lambda: kedge.train(drawings(few), private=True, **QUICK),
        lambda: kedge.update(private, drawings(few), epochs=0),  # stays private
        lambda: kedge.update(plain, drawings(few), epochs=0, private=True),
    ):
        with pytest.raises(KedgeError, match=r"secret/place: .*'star' .* 19 different images"):
            call()
    assert "star" in kedge.update(plain, drawings(few), epochs=0).classes


def test_copies_of_an_image_count_once() -> None:
    table = drawings(dict.fromkeys(KINDS, 20))
    images = table.images.clone()
    images[1] = images[0]
    with pytest.raises(KedgeError, match=r"'apple' .* 19 different images"):
        kedge.train(replace(table, images=images), private=True, **QUICK)


def test_images_that_only_validate_are_no_part_of_a_mean() -> None:
    """Of 20 images some choose the epoch; the anchor is of the others."""
    schedule = {"epochs": 1, "episodes": 2, "val_episodes": 2}
    with pytest.raises(KedgeError, match=r"'apple' would come from 1\d different images"):
        kedge.train(drawings(dict.fromkeys(KINDS, 20)), private=True, width=4, **schedule)


def test_model_with_small_or_unknown_classes_cannot_become_private(plain: Model) -> None:
    delivery = drawings(dict.fromkeys(NEW, 20))
    with pytest.raises(KedgeError, match="'apple' of 19 images"):
        kedge.update(train(False, 19), delivery, epochs=0, private=True)
    again = kedge.update(plain, drawings(dict.fromkeys(KINDS, 20)), epochs=0)
    for unknown in (replace(plain, calibration=None), again):
        with pytest.raises(KedgeError, match="does not say how many images"):
            kedge.update(unknown, delivery, epochs=0, private=True)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["--min-images", "5"], "--min-images"),
        (["--noise", "0.1"], "--noise"),
        (["--private", "--save-memory", "EIML"], "EIML"),
        (["--private", "--min-images", "1"], "--min-images"),
    ],
)
def test_options_that_do_not_fit(
    command: list[str], named: str, cli: Cli, first: Path, tmp_path: Path
) -> None:
    ended = cli("train", first, "--out", tmp_path / "base.kedge", *command)
    assert named in ended.sentence
    assert not [*tmp_path.iterdir()]


def test_private_update_keeps_no_images_beside_it(
    cli: Cli, private: Model, second: Path, tmp_path: Path
) -> None:
    private.save(tmp_path / "base.kedge")
    command = ["update", "base.kedge", second, "--method", "EIML", "--out", "next.kedge"]
    assert "EIML" in cli(*command, cwd=tmp_path).sentence
    assert {path.name for path in tmp_path.iterdir()} == {"base.kedge"}


def test_noise_is_for_means() -> None:
    with pytest.raises(KedgeError, match="--noise"):
        train(kedge.Privacy(noise=0.1), head="ridge")


# ── noise ────────────────────────────────────────────────────────────────────────────────────


def test_noise_has_its_length_and_does_not_follow_from_the_seed() -> None:
    exact = train(False, head="unit", image_size=28)
    noisy = [train(kedge.Privacy(noise=0.5), head="unit", image_size=28) for _ in range(8)]
    lengths = torch.stack([(model.anchors - exact.anchors).norm(dim=1) for model in noisy])
    assert float(lengths.square().mean() ** 0.5) == pytest.approx(0.5, rel=0.2)
    assert not torch.equal(noisy[0].anchors, noisy[1].anchors)
    assert torch.equal(
        next(iter(noisy[0].weights().values())), next(iter(exact.weights().values()))
    )


def test_older_classes_get_the_noise_that_they_lack() -> None:
    """An old class has the noise of its round; one whose round had none gets all of it. The mean of
    a new class is its anchor, so that their difference does not tell the noise."""
    delivery, much = drawings(dict.fromkeys(NEW, 20)), kedge.Privacy(noise=50.0)
    exact = train(False, head="unit")
    for before, changed in ((kedge.Privacy(), True), (much, False)):
        base = train(before, head="unit")
        updated = kedge.update(base, delivery, epochs=0, private=much)
        assert updated.privacy == much
        moved = (updated.anchors_of(KINDS) - base.anchors_of(KINDS)).norm(dim=1)
        assert bool((moved > 5).all()) == changed
        assert bool(((updated.anchors_of(KINDS) - exact.anchors).norm(dim=1) > 5).all())
        means = updated.class_means_of(NEW)
        assert means is not None
        assert torch.equal(means, updated.anchors_of(NEW))
        assert bool((means.norm(dim=1) > 5).all())
