"""Folders of classes as people have them: wrapped, split, linked, and with things that do not
belong there."""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kedge.data.files import open_tree
from kedge.data.index import ImageIndex
from kedge.data.readers import folder as folder_reader
from kedge.data.readers import read_index
from kedge.data.remarks import kind_of
from kedge.errors import KedgeError
from kedge.utils.text import normalize_name


def made(root: Path, *names: str) -> Path:
    """Empty files: what they are called is what counts here."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def read(path: Path, classes: Any = None) -> ImageIndex:
    tree = open_tree(path)
    reader = folder_reader.FolderReader()
    assert reader.recognises(tree)
    return reader.read(tree, classes)


def found(path: Path) -> set[tuple[str, str, str]]:
    """Part, class and file of each image."""
    index = read(path)
    parts = [index.parts[k] for k in index.part] or [""] * len(index)
    return {
        (part, index.classes[label], Path(index.images.name(i)).name)
        for i, (part, label) in enumerate(zip(parts, index.labels, strict=True))
    }


def classes(path: Path) -> tuple[str, ...]:
    return read(path).classes


# ── parts of a split, and wrappers ───────────────────────────────────────────────────────────

A_TO_D = {("train", "a"), ("train", "b"), ("val", "c"), ("test", "d")}
TRAIN_AB = {("train", "a"), ("train", "b")}
TRAIN_CAR_PLANE = {("", "train"), ("", "car"), ("", "plane")}
# By what is special: files without ".png", the part and class of each that counts, and how many
# remarks there are.
LAYOUTS: dict[str, tuple[str, set[tuple[str, str]], int]] = {
    "a split": ("train/a/1 train/b/2 Validation/c/3 test/d/e/4", A_TO_D, 0),
    "a split in folders": ("x/y/train/a/1 x/y/train/b/2 x/y/VAL/c/3 x/y/test/d/4", A_TO_D, 0),
    "one part alone": ("x/train/a/1 x/train/b/2", TRAIN_AB, 0),
    "a class called train": ("train/1 car/1 plane/1", TRAIN_CAR_PLANE, 0),
    "a class called train, with folders": ("train/x/1 train/1 car/1 plane/y/1", TRAIN_CAR_PLANE, 0),
    "a class called train within a split": (
        "train/train/1 train/car/1 test/plane/1 test/bus/1",
        {("train", "train"), ("train", "car"), ("test", "plane"), ("test", "bus")},
        0,
    ),
    "a part beside unlabelled images": ("w/Training/a/1 w/Training/b/1 w/rest/x/1", TRAIN_AB, 1),
    "a part beside images of another": ("train/a/1 train/b/1 val/1 val/2", TRAIN_AB, 1),
    "wrappers": ("w/x_y/a/1 w/x_y/a/more/2 w/x_y/b/1 w/x_y/loose top", {("", "a"), ("", "b")}, 1),
    "one class": ("w/a/1 w/a/2", {("", "a")}, 0),
    "parts within classes": ("cat/train/1 cat/test/2 dog/train/1", {("", "cat"), ("", "dog")}, 0),
    "hidden files": (
        ".1 .git/1 a/1 a/.1 a/.x/1 a/@eaDir/1 __MACOSX/a/1 lost+found/1 b/1",
        {("", "a"), ("", "b")},
        0,
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: str) -> None:
    files, expected, n_remarks = LAYOUTS[layout]
    made(tmp_path, *(f"{name}.png" for name in files.split()))
    assert {(part, name) for part, name, _ in found(tmp_path)} == expected
    assert len(read(tmp_path).remarks) == n_remarks


@pytest.mark.parametrize(
    "names",
    [
        ("ant/images/1.png", "bee/images/1.png"),  # as Tiny-ImageNet has it
        ("ant/images/1.png", "bee/raws/1.png"),
        ("ant/2023/may/1.png", "ant/2024/june/1.png", "bee/2023/may/1.png", "bee/2024/may/1.png"),
        ("ant/2023-05/1.png", "ant/20240617/1.png", "ant/July 2024/1.png", "bee/1.png"),
        ("ant/train/1.png", "ant/test/1.png", "ant/masks/1.png", "bee/train/1.png"),
    ],
)
def test_deeper_folders_that_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    made(tmp_path, *names)
    assert classes(tmp_path) == ("ant", "bee")
    assert read(tmp_path).remarks == ()


def test_numbered_folders_are_remarked_upon(tmp_path: Path) -> None:
    """They may be characters of an alphabet, but also parts of a film."""
    made(tmp_path, "Greek/character01/1.png", "Greek/character02/1.png", "Latin/character01/1.png")
    assert classes(tmp_path) == ("Greek", "Latin")
    (remark,) = read(tmp_path).remarks
    assert "Greek/character01" in remark
    assert "leaf would read 2 classes" in remark


# ── which of nested folders are the classes ──────────────────────────────────────────────────

# By what is special: files without ".png", and the classes of each reading.
NESTED: dict[str, tuple[str, dict[str, str]]] = {
    "a taxonomy": (
        "birds/robin/1 birds/wren/1 fish/cod/1",
        {"top": "birds fish", "leaf": "cod robin wren"},
    ),
    "names in two branches": (
        "birds/red/1 birds/blue/1 cars/red/1",
        {"top": "birds cars", "leaf": "blue red", "path": "birds/blue birds/red cars/red"},
    ),
    "deliveries": (
        "w/2026-01/ant/1 w/2026-01/bee/1 w/2026-02/ant/1 w/2026-02/images/cow/1",
        {"top": "2026-01 2026-02", "leaf": "ant bee cow"},
    ),
    "deliveries of one class each": ("jan/ant/1 feb/bee/1", {"top": "feb jan", "leaf": "ant bee"}),
    "a mixture": (
        "ant/1 birds/robin/1 birds/wren/1",
        {"top": "ant birds", "leaf": "ant robin wren"},
    ),
    "images on both levels": (
        "ant/1 ant/young/1 ant/old/1 bee/1",
        {"top": "ant bee", "leaf": "ant bee old young"},
    ),
    "a class that may be a part": (
        "train/steam/1 train/diesel/1 plane/1 car/1",
        {"top": "car plane train", "leaf": "car diesel plane steam"},
    ),
    "ids of WordNet": (
        "jan/n01440764/1 jan/n01443537/1 feb/n01440764/1",
        {"top": "feb jan", "leaf": "n01440764 n01443537"},
    ),
}


@pytest.mark.parametrize("case", NESTED)
def test_nested_folders_are_asked_about(tmp_path: Path, case: str) -> None:
    files, readings = NESTED[case]
    made(tmp_path, *(f"{name}.png" for name in files.split()))
    with pytest.raises(KedgeError, match="--classes top") as caught:
        read(tmp_path)
    for reading, expected in readings.items():
        names = expected.split()
        assert f"--classes {reading}: {len(names)} classes ({', '.join(names)})" in str(
            caught.value
        )
        assert read(tmp_path, reading).classes == tuple(names)
        assert len(read(tmp_path, reading)) == len(files.split())
    assert len({read(tmp_path, reading).stamp for reading in readings}) == len(readings)


def test_nested_folders_within_a_split(tmp_path: Path) -> None:
    """The split is inside or outside; if only some deliveries have one, nothing is guessed."""
    inside = made(
        tmp_path / "a", "jan/train/ant/1.png", "jan/test/bee/1.png", "feb/train/bee/1.png"
    )
    outside = made(
        tmp_path / "b", "train/jan/ant/1.png", "test/jan/bee/1.png", "train/feb/bee/1.png"
    )
    for folder in (inside, outside):
        index = read(folder, "leaf")
        assert index.classes_of("train") == ("ant", "bee")
        assert index.classes_of("test") == ("bee",)
    index = read(made(inside, "mar/ant/1.png"), "leaf")
    assert index.parts == ()
    assert {kind_of(remark) for remark in index.remarks} == {"leak", "note"}


def test_nested_folders_in_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("jan/ant", "jan/bee", "feb/ant"):
            archive.writestr(f"all/{name}/1.png", b"x")
    with pytest.raises(KedgeError, match=r"all\.zip: .*--classes leaf: 2 classes \(ant, bee\)"):
        read(tmp_path / "all.zip")


# ── what does not count ──────────────────────────────────────────────────────────────────────


def test_empty_folders_are_named(tmp_path: Path) -> None:
    made(tmp_path, "ant/1.png", "bat/1.png", "texts/1.txt", "apples/.DS_Store")
    (tmp_path / "empty").mkdir()
    assert classes(tmp_path) == ("ant", "bat")
    empty, no_image = read(tmp_path).remarks
    assert empty.startswith("2 folders skipped")
    assert no_image.endswith("texts")


def test_images_without_folders_are_not_recognised(tmp_path: Path) -> None:
    made(tmp_path, "1.png", "2.png")
    assert not folder_reader.FolderReader().recognises(open_tree(tmp_path))
    assert not folder_reader.FolderReader().recognises(open_tree(tmp_path / "1.png"))
    with pytest.raises(KedgeError, match="no class found"):
        folder_reader.FolderReader().read(open_tree(tmp_path))


# ── names ────────────────────────────────────────────────────────────────────────────────────

ODD = (
    *("two\nlines", "'single' and \"double\"", "🦊 fox", " spaces ", "ends with a dot."),
    *("back\\slash", "[red]markup", "-option", "--", "tab\t", "%s {0} $HOME `ls`", "n" * 255),
    *("é", "e\u0301", "C:", "~", "*?", "\x1b[31m", "\u202eright to left"),
)


def test_class_names_of_any_characters(tmp_path: Path) -> None:
    made(tmp_path, *(f"{name}/1.png" for name in ODD))
    assert set(classes(tmp_path)) == {normalize_name(name) for name in ODD}
    assert len(read(tmp_path)) == len(ODD)
    for name in ODD:
        made(tmp_path / "texts", "ant/1.png", "bat/1.png", f"{name}/1.txt")
    assert all(remark.isprintable() for remark in read(tmp_path / "texts").remarks)


def test_names_that_differ_in_blanks_or_accents_are_one_class(tmp_path: Path) -> None:
    """As macOS writes "é", and as others do. Two classes of one name would learn nonsense."""
    composed, apart = "caf\u00e9", "cafe\u0301"
    made(tmp_path, f"train/{composed}/1.png", f"test/{apart}/2.png", "test/cafz/3.png")
    made(tmp_path, "test/Bee/4.png", "test/Bee /5.png")
    index = read(tmp_path)
    assert index.classes == ("Bee", "cafz", composed)
    assert index.classes_of("train") == (composed,)
    assert index.classes_of("test") == index.classes
    assert {(name, file) for _, name, file in found(tmp_path)} == {
        *((composed, "1.png"), (composed, "2.png"), ("cafz", "3.png")),
        *(("Bee", "4.png"), ("Bee", "5.png")),
    }
    assert len(index.remarks) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs names of bytes")
@pytest.mark.parametrize("name", [b"caf\xe9/1.png", b"cafe/\xff.png"])
def test_name_that_is_not_utf8(tmp_path: Path, name: bytes) -> None:
    made(tmp_path, "ant/1.png")
    file = os.path.join(os.fsencode(tmp_path), name)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "wb"):
        pass
    with pytest.raises(KedgeError, match="not UTF-8") as caught:
        open_tree(tmp_path)
    assert str(caught.value).isprintable()


# ── links ────────────────────────────────────────────────────────────────────────────────────


def test_links_to_class_folders_and_images_are_followed(tmp_path: Path) -> None:
    """As splits are made: the images lie elsewhere, once."""
    made(tmp_path / "all", "ant/1.png", "bat/1.png", "cow/1.png")
    for part, name in (("train", "ant"), ("train", "bat"), ("test", "cow")):
        (tmp_path / "split" / part).mkdir(parents=True, exist_ok=True)
        (tmp_path / "split" / part / name).symlink_to(tmp_path / "all" / name)
    (tmp_path / "split" / "test" / "dog").mkdir()
    (tmp_path / "split" / "test" / "dog" / "2.png").symlink_to(tmp_path / "all" / "cow" / "1.png")
    assert found(tmp_path / "split") == {
        ("train", "ant", "1.png"),
        ("train", "bat", "1.png"),
        ("test", "cow", "1.png"),
        ("test", "dog", "2.png"),
    }
    assert read(tmp_path / "split").remarks == ()


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    made(tmp_path, "ant/1.png", "bat/1.png")
    (tmp_path / "ant" / "gone.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "bat" / "self.png").symlink_to(tmp_path / "bat" / "self.png")
    (tmp_path / "cow").symlink_to(tmp_path / "elsewhere")
    assert len(read(tmp_path)) == 2
    assert read(tmp_path).remarks[0].startswith("3 links skipped")


def test_maze_of_links(tmp_path: Path) -> None:
    """Every folder links to every other: there are millions of ways without a circle."""
    for i in range(12):
        made(tmp_path, f"c{i:02}/1.png")
        for k in range(12):
            (tmp_path / f"c{i:02}" / f"to{k:02}").symlink_to(tmp_path / f"c{k:02}")
    index = read(tmp_path)
    assert len(index.classes) == 12
    assert "circle" in index.remarks[0]


def test_archives_in_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "delivery.zip").write_bytes(b"")
    with pytest.raises(KedgeError, match=r"delivery\.zip: give one of them, or unpack"):
        read_index(tmp_path)


def test_special_files_do_not_block(tmp_path: Path) -> None:
    made(tmp_path, "ant/1.png")
    os.mkfifo(tmp_path / "ant" / "pipe.png")
    assert found(tmp_path) == {("", "ant", "1.png")}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folder_that_may_not_be_read(tmp_path: Path) -> None:
    made(tmp_path, "ant/1.png", "bat/1.png")
    (tmp_path / "bat").chmod(0)
    try:
        with pytest.raises(KedgeError, match=r"bat/?: cannot be read \(Permission denied\)"):
            open_tree(tmp_path)
    finally:
        (tmp_path / "bat").chmod(0o700)


# ── the tree itself ──────────────────────────────────────────────────────────────────────────


def test_order_is_that_of_the_names(tmp_path: Path) -> None:
    names = [f"{c}{s}{i}.png" for c in "ab" for s in ("/", "-x/", "/x/", ".x/") for i in range(5)]
    made(tmp_path, *random.Random(0).sample(names, len(names)))
    assert open_tree(tmp_path).names == tuple(sorted(names))


def test_files_that_vanish(tmp_path: Path) -> None:
    made(tmp_path, "ant/1.png", "ant/2.png")
    tree = open_tree(tmp_path)
    (tmp_path / "ant" / "2.png").unlink()
    with pytest.raises(KedgeError, match=r"2\.png: cannot be read"):
        folder_reader.FolderReader().read(tree)
    with pytest.raises(KedgeError, match=r"2\.png: cannot be read"):
        tree.read_bytes("ant/2.png")


def test_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf\xc3\xa9")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    tree = open_tree(tmp_path)
    assert tree.read_text("a.txt") == "é"
    with pytest.raises(KedgeError, match=r"b\.txt: not UTF-8"):
        tree.read_text("b.txt")


def test_many_files_are_not_looked_at_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, *(f"{c}/{i}.png" for c in "ab" for i in range(200)))
    looked = []
    stat = os.stat
    monkeypatch.setattr(
        os, "stat", lambda *args, **more: looked.append(args) or stat(*args, **more)
    )
    open_tree(tmp_path)
    assert len(looked) < 10
