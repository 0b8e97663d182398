"""Folders of classes as people have them: wrapped, split, linked, and with things that do not
belong there."""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from kedge.data.decode import ImageSpec, decode
from kedge.data.files import open_tree
from kedge.data.index import ImageIndex
from kedge.data.readers import folder as folder_reader
from kedge.errors import KedgeError
from kedge.utils.text import normalize_name


def draw(path: Path, colour: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), colour).save(path, "PNG")


def made(root: Path, *names: str) -> Path:
    """Empty files: what they are called is what counts here."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def read(path: Path) -> ImageIndex:
    tree = open_tree(path)
    reader = folder_reader.FolderReader()
    assert reader.recognises(tree)
    return reader.read(tree)


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


@pytest.mark.parametrize(
    ("wrapper", "val"), [("", "val"), ("data/", "Validation"), ("a/b/c/", "VAL")]
)
def test_split(tmp_path: Path, wrapper: str, val: str) -> None:
    names = ("train/a/1.png", "train/b/2.png", f"{val}/c/3.png", "test/d/e/4.png")
    made(tmp_path, *(wrapper + name for name in names))
    assert found(tmp_path) == {
        ("train", "a", "1.png"),
        ("train", "b", "2.png"),
        ("val", "c", "3.png"),
        ("test", "d", "4.png"),
    }
    assert read(tmp_path).form == "folders of classes, split in train, val, test"


@pytest.mark.parametrize(
    ("part", "unlabelled"),
    [("train", "unlabeled/"), ("w/Training", "w/unlabeled/images/"), ("train", "val/")],
)
def test_one_part_beside_unlabelled_images(tmp_path: Path, part: str, unlabelled: str) -> None:
    made(tmp_path, *(f"{part}/c{i}/1.png" for i in range(4)))
    made(tmp_path, *(f"{unlabelled}{i}.png" for i in range(5)))
    assert found(tmp_path) == {("train", f"c{i}", "1.png") for i in range(4)}
    (remark,) = read(tmp_path).remarks
    assert remark.startswith("5 images skipped")
    assert remark.endswith(f"{unlabelled}0.png")


@pytest.mark.parametrize("wrapper", ["", "w/"])
def test_class_called_train_with_folders_in_it_among_others(tmp_path: Path, wrapper: str) -> None:
    """It may be a part, so that is said."""
    names = ("train/steam/1.png", "train/diesel/1.png", "plane/1.png", "car/1.png")
    made(tmp_path, *(wrapper + name for name in names))
    assert classes(tmp_path) == ("car", "plane", "train")
    (remark,) = read(tmp_path).remarks
    assert remark.endswith(f"if diesel is a class, give {tmp_path / wrapper / 'train'}")
    made(tmp_path, f"{wrapper}train/1.png")
    assert classes(tmp_path) == ("car", "plane", "train")
    assert read(tmp_path).remarks == ()


@pytest.mark.parametrize("wrapper", ["", "w/"])
def test_class_that_is_called_train(tmp_path: Path, wrapper: str) -> None:
    made(tmp_path, *(f"{wrapper}{name}/1.png" for name in ("train", "plane", "car")))
    assert classes(tmp_path) == ("car", "plane", "train")
    assert read(tmp_path).parts == ()
    made(tmp_path, f"{wrapper}train/steam/1.png", f"{wrapper}plane/jet/1.png")
    assert classes(tmp_path) == ("car", "plane", "train")


def test_class_that_is_called_train_within_a_split(tmp_path: Path) -> None:
    made(tmp_path, "train/train/1.png", "train/car/1.png", "test/plane/1.png", "test/bus/1.png")
    assert found(tmp_path) == {
        ("train", "train", "1.png"),
        ("train", "car", "1.png"),
        ("test", "plane", "1.png"),
        ("test", "bus", "1.png"),
    }


@pytest.mark.parametrize("wrapper", ["w/", "a wrapper/train station/"])
def test_wrapper(tmp_path: Path, wrapper: str) -> None:
    made(tmp_path, f"{wrapper}ant/1.png", f"{wrapper}ant/more/2.png", f"{wrapper}bat/1.png")
    made(tmp_path, f"{wrapper}loose.png", "top.png", f"{wrapper}readme.txt")
    assert classes(tmp_path) == ("ant", "bat")
    assert read(tmp_path).remarks[0].startswith("2 images skipped")


def test_one_class(tmp_path: Path) -> None:
    made(tmp_path, "w/ant/1.png", "w/ant/2.png")
    assert classes(tmp_path) == ("ant",)
    assert classes(tmp_path / "w") == ("ant",)
    assert not folder_reader.FolderReader().recognises(open_tree(tmp_path / "w" / "ant"))


def test_parts_within_classes_are_no_split(tmp_path: Path) -> None:
    made(tmp_path, "cat/train/1.png", "cat/test/2.png", "dog/train/1.png")
    assert found(tmp_path) == {("", "cat", "1.png"), ("", "cat", "2.png"), ("", "dog", "1.png")}


def test_folder_that_was_given_one_level_too_high(tmp_path: Path) -> None:
    deliveries = [f"{month}/{name}/1.png" for month in ("jan", "feb") for name in ("ant", "bee")]
    made(tmp_path / "all", *deliveries)
    assert classes(tmp_path / "all") == ("feb", "jan")  # it may be meant
    (remark,) = read(tmp_path / "all").remarks
    assert remark.endswith(f"if ant is a class, give {tmp_path / 'all' / 'feb'}")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in deliveries:
            archive.writestr(f"all/{name}", b"x")
    assert "give all/feb alone, unpacked" in read(tmp_path / "all.zip").remarks[0]
    made(
        tmp_path / "split", *(f"{part}/{name}" for part in ("train", "val") for name in deliveries)
    )
    (remark,) = read(tmp_path / "split").remarks
    assert remark.endswith(f"if ant is a class, give {tmp_path / 'split' / 'train' / 'feb'}")
    made(tmp_path / "ids", "jan/n01440764/1.png", "jan/n01443537/1.png", "feb/n01440764/1.png")
    assert "n01440764 is a class" in read(tmp_path / "ids").remarks[0]


@pytest.mark.parametrize(
    "names",
    [
        ("ant/images/1.png", "bee/images/1.png"),  # as Tiny-ImageNet has it
        ("ant/images/1.png", "bee/raws/1.png"),
        ("ant/2023/may/1.png", "ant/2024/june/1.png", "bee/2023/may/1.png", "bee/2024/may/1.png"),
        ("Greek/character01/1.png", "Greek/character02/1.png", "Latin/character01/1.png"),
        ("ant/train/1.png", "ant/test/1.png", "ant/masks/1.png", "bee/train/1.png"),
        ("ant/young/1.png", "ant/old/1.png", "bee/young/1.png", "bee/old/1.png", "bee/1.png"),
        ("ant/young/1.png", "ant/old/1.png", "bee/all/1.png", "cat/all/1.png"),
    ],
)
def test_deeper_folders_that_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    made(tmp_path, *names)
    assert read(tmp_path).remarks == ()


# ── what does not count ──────────────────────────────────────────────────────────────────────


def test_hidden_files_and_those_of_systems(tmp_path: Path) -> None:
    made(tmp_path, "ant/1.png", "bat/1.png")
    odd = (".hidden.png", ".git/1.png", "ant/.1.png", "ant/.thumbs/1.png", "ant/@eaDir/1.png")
    made(tmp_path, *odd, "__MACOSX/ant/1.png", "lost+found/1.png", "ant/Thumbs.db")
    assert found(tmp_path) == {("", "ant", "1.png"), ("", "bat", "1.png")}
    assert read(tmp_path).remarks == ()


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
    draw(tmp_path / composed / "1.png", 10)
    draw(tmp_path / apart / "2.png", 20)
    draw(tmp_path / "cafz" / "3.png", 30)
    draw(tmp_path / "Bee" / "4.png", 40)
    draw(tmp_path / "Bee " / "5.png", 50)
    index = read(tmp_path)
    assert index.classes == ("Bee", "cafz", composed)
    pixels = [int(decode(p, ImageSpec(8, 1)).mean()) for p in index.images.fetch(range(5))]
    by_class: dict[str, set[int]] = {}
    for label, value in zip(index.labels, pixels, strict=True):
        by_class.setdefault(index.classes[label], set()).add(value)
    assert by_class == {"Bee": {40, 50}, "cafz": {30}, composed: {10, 20}}
    assert len(index.remarks) == 1


def test_class_in_two_parts_under_two_names_is_one(tmp_path: Path) -> None:
    """Or it would be tested on as unseen."""
    made(tmp_path, "train/caf\u00e9/1.png", "test/cafe\u0301/2.png", "test/ant/1.png")
    index = read(tmp_path)
    assert index.classes_of("train") == ("caf\u00e9",)
    assert index.classes_of("test") == ("ant", "caf\u00e9")


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
