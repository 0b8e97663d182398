"""Images on disk for benchmarks: opened once, but again when they change."""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.benchmarks.numbered import all_names, numbered_table

from kedge.benchmarks import disk, get_protocol
from kedge.benchmarks.class_lists import load_class_lists
from kedge.benchmarks.disk import open_cached
from kedge.data import table as table_module
from kedge.data.table import ImageTable
from kedge.errors import KedgeError


@pytest.fixture
def photos(tmp_path: Path, draw_classes: Callable[..., Path]) -> str:
    return str(draw_classes(tmp_path / "photos", ["ape", "bee", "cat", "dog"], per_class=3))


@pytest.fixture
def packed(tmp_path: Path) -> str:
    numbered_table(["ape", "bee"], 2, (16, 16)).save(tmp_path / "packed")
    return str(tmp_path / "packed")


def test_images_are_read_once_for_all_seeds(tmp_path: Path) -> None:
    mini, data = load_class_lists("miniImageNet"), str(tmp_path / "images")
    table = numbered_table(all_names(mini), 2, (84, 84))
    dataclasses.replace(table, images=table.images.repeat(1, 3, 1, 1)).save(data)
    first, second = (get_protocol("mini-imagenet").benchmark(seed, data) for seed in (0, 1))
    assert first.table is second.table
    assert first.split != second.split
    assert len(first.round_data(1).train) == 32


def test_folder_of_classes_is_a_benchmark(
    tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    folder = draw_classes(tmp_path / "mine", [f"class {i}" for i in range(20)], per_class=4)
    benchmark = get_protocol("folder").benchmark(0, str(folder))
    assert benchmark.table.image_size == 16
    assert [len(pool.classes) for pool in benchmark.test_pools(1)] == [5, 5, 5]


def test_only_the_wanted_classes_are_read(photos: str) -> None:
    assert open_cached(photos, 16, 1, frozenset(["bee", "dog", "elk"])).classes == ("bee", "dog")
    assert len(open_cached(photos, 16, 1)) == 12
    others = frozenset(["n1", "n2", "n3", "n4"])
    assert len(open_cached(photos, 16, 1, others, any_names=True).classes) == 4
    for classes, any_names in ((others - {"n4"}, True), (others, False)):
        with pytest.raises(KedgeError, match=r"photos: .*n1.*4 others"):
            open_cached(photos, 32, 1, classes, any_names=any_names)


def test_unusable_data_are_refused(packed: str, tmp_path: Path) -> None:
    for path, size, classes in (
        ("gone", 16, ["ape"]),
        (packed, 16, ["cat"]),
    ):
        with pytest.raises(KedgeError, match=Path(path).name):
            open_cached(str(tmp_path / path), size, 1, frozenset(classes))


def test_packed_images_keep_their_size(packed: str, tmp_path: Path) -> None:
    assert open_cached(str(tmp_path / packed), 32, 1).image_size == 16


def test_old_tables_are_evicted(photos: str, packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_tables", OrderedDict())
    monkeypatch.setattr(table_module, "EAGER_BYTES", 0)  # the packed file is not loaded

    def open_all() -> list[ImageTable]:
        wanted = ((packed, 16), (photos, 16), (photos, 32))
        return [open_cached(path, size, 1) for path, size in wanted]

    first = open_all()
    assert all(a is b for a, b in zip(first, open_all(), strict=True))
    monkeypatch.setattr(disk, "MOST_BYTES", 0)
    assert [a is b for a, b in zip(first, open_all(), strict=True)] == [True, False, False]
    assert open_all()[2] is open_cached(photos, 32, 1), "the latest is always kept"
    monkeypatch.setattr(disk, "MOST_TABLES", 1)
    open_all()
    assert len(disk._tables) == 1


@pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")  # of copies
def test_changed_data_are_read_again(photos: str, packed: str) -> None:
    image, found = Path(photos, "ape", "00.png"), [open_cached(photos, None, None).fingerprint]
    image.write_bytes(Path(photos, "bee", "01.png").read_bytes())
    found.append(open_cached(photos, None, None).fingerprint)
    image.rename(image.parents[1] / "bee" / "new.png")
    found.append(open_cached(photos, None, None).fingerprint)
    assert len(set(found)) == 3
    before = open_cached(packed, None, None)
    other = dataclasses.replace(before, images=255 - before.images[:], checksum="")
    other.save(packed)
    later = Path(packed).stat().st_mtime + 2
    os.utime(packed, (later, later))
    assert open_cached(packed, None, None).fingerprint == other.fingerprint
