"""Files in folders with lists beside them: any CSV, CIFAR-FS, Tiny-ImageNet, Omniglot."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kedge.data.decode import ImageSpec, decode
from kedge.data.files import open_tree
from kedge.data.index import ImageIndex
from kedge.data.readers.base import Reader
from kedge.data.readers.image_list import ImageListReader
from kedge.data.readers.listed_folders import CifarFoldersReader, TinyImageNetReader
from kedge.data.readers.omniglot import OmniglotReader
from kedge.errors import KedgeError

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "omniglot"


def draw(path: Path, colour: int) -> Path:
    """An image of one colour, by which it is known again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lossless = path.suffix.lower() == ".png"
    Image.new("L" if lossless else "RGB", (8, 8), colour if lossless else (colour,) * 3).save(
        path, format="PNG" if lossless else "JPEG", **({} if lossless else {"quality": 100})
    )
    return path


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def read(path: Path, reader: Reader) -> ImageIndex:
    tree = open_tree(path)
    assert reader.recognises(tree)
    return reader.read(tree)


def contents(index: ImageIndex) -> set[tuple[str, str, int]]:
    """Part, class and colour of every image."""
    raws = index.images.fetch(range(len(index)))
    parts = [index.parts[k] for k in index.part] if index.parts else [""] * 10**4
    return {
        (part, index.classes[label], int(decode(raw, ImageSpec(8, 1)).mean().round()))
        for part, label, raw in zip(parts, index.labels, raws, strict=False)
    }


def packed(folder: Path, ending: str) -> Path:
    """The same in an archive, with the folder's own name in front of all names."""
    target = folder.parent / f"{folder.name}{ending}"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    if ending == ".zip":
        with zipfile.ZipFile(target, "w") as archive:
            for file in files:
                archive.write(file, file.relative_to(folder.parent))
    else:
        with tarfile.open(target, "w:gz") as tar:
            for file in files:
                tar.add(file, file.relative_to(folder.parent))
    return target


WHERE = pytest.mark.parametrize("ending", ["", ".zip"])


def somewhere(folder: Path, ending: str) -> Path:
    return packed(folder, ending) if ending else folder


# ── a CSV or JSON Lines file ─────────────────────────────────────────────────────────────────


@pytest.fixture
def ravi(tmp_path: Path) -> Path:
    """miniImageNet as Ravi's repository has it."""
    root = tmp_path / "mini"
    colour = 10
    for part, wnids in (
        ("train", ("n01532829", "n01558993")),
        ("val", ("n01855672",)),
        ("test", ("n01930112",)),
    ):
        root.mkdir(exist_ok=True)
        with open(root / f"{part}.csv", "w") as f:
            rows = csv.writer(f, lineterminator="\n")
            rows.writerow(["filename", "label"])
            for wnid in wnids:
                for i in (5, 6):
                    colour += 10
                    draw(root / "images" / f"{wnid}{i:08}.jpg", colour)
                    rows.writerow([f"{wnid}{i:08}.jpg", wnid])
    return root


RAVI = {
    *(("train", "n01532829", c) for c in (20, 30)),
    *(("train", "n01558993", c) for c in (40, 50)),
    *(("val", "n01855672", c) for c in (60, 70)),
    *(("test", "n01930112", c) for c in (80, 90)),
}


def test_one_of_the_lists_given_alone(ravi: Path) -> None:
    index = read(ravi / "val.csv", ImageListReader())
    assert contents(index) == {("val", "n01855672", 60), ("val", "n01855672", 70)}
    stamp = index.stamp
    draw(ravi / "images" / "n0185567200000005.jpg", 99)
    os.utime(ravi / "images" / "n0185567200000005.jpg", ns=(1, 1))
    assert read(ravi / "val.csv", ImageListReader()).stamp != stamp


@pytest.mark.parametrize(
    ("below", "alone"), [("", False), ("train", True), ("ILSVRC/Data/CLS-LOC/train", True)]
)
def test_ravi_by_rank_in_the_folders_of_imagenet(tmp_path: Path, below: str, alone: bool) -> None:
    """The files of a class by their numbers: 2, 5, 10, 100, 1000. As text 10 is before 2."""
    for wnid, base in (("n01532829", 0), ("n01558993", 100)):
        for colour, number in ((10, 2), (20, 5), (30, 10), (40, 100), (50, 1000)):
            draw(tmp_path / below / wnid / f"{wnid}_{number}.JPEG", base + colour)
    write(
        tmp_path / "train.csv",
        "filename,label\n"
        "n0153282900000001.jpg,n01532829\n"
        "n0153282900000003.jpg,n01532829\n"
        "n0155899300000005.jpg,n01558993\n"
        "n0155899300000006.jpg,n01558993\n"
        "n0155899300000000.jpg,n01558993\n",
    )
    index = read(tmp_path / "train.csv" if alone else tmp_path, ImageListReader())
    assert contents(index) == {
        ("train", "n01532829", 10),
        ("train", "n01532829", 30),
        ("train", "n01558993", 150),
    }
    assert "n01532829_10.JPEG" in {index.images.name(i).rpartition("/")[2] for i in range(3)}
    assert index.remarks[0].startswith("2 images skipped")
    assert "rank" in index.form


@pytest.mark.parametrize(
    ("header", "below"),
    [("class_name,image_name", ""), ("Class Name,Image-Name", "train/"), ("class,file", "a/b/")],
)
def test_class_and_image_in_class_folders(tmp_path: Path, header: str, below: str) -> None:
    draw(tmp_path / f"{below}n01/n01_5.png", 10)
    draw(tmp_path / f"{below}n02/n02_5.png", 20)
    draw(tmp_path / f"{below}n03/unlisted.png", 30)
    write(tmp_path / "train.csv", f"{header}\nn01,n01_5.png\nn02,n02_5.png\n")
    assert contents(read(tmp_path, ImageListReader())) == {
        ("train", "n01", 10),
        ("train", "n02", 20),
    }


@pytest.mark.parametrize(
    ("image", "of_class", "kind"),
    [("filename", "label", "csv"), ("path", "category", "jsonl"), ("image", "name", "ndjson")],
)
def test_names_of_columns(tmp_path: Path, image: str, of_class: str, kind: str) -> None:
    draw(tmp_path / "x" / "a.png", 10)
    draw(tmp_path / "x" / "b.png", 20)
    rows = [("x/a.png", "cat"), (".\\x\\b.png", "dog")]
    if kind == "csv":
        text = f"id,{of_class.upper()},{image.title()}\n" + "".join(
            f"{i},{c},{f}\n" for i, (f, c) in enumerate(rows)
        )
    else:
        text = "".join(json.dumps({"id": 1, image: f, of_class: c}) + "\n" for f, c in rows)
    for path in (write(tmp_path / f"anything.{kind}", text), tmp_path):
        assert contents(read(path, ImageListReader())) == {("", "cat", 10), ("", "dog", 20)}


@pytest.mark.parametrize(("separator", "end"), [(",", "\n"), (";", "\r\n"), ("\t", "\r")])
def test_separators_quotes_and_ends_of_lines(tmp_path: Path, separator: str, end: str) -> None:
    odd = f'odd{separator}"name"\nof two lines'
    draw(tmp_path / "images" / f"a{separator}b.png", 10)
    draw(tmp_path / "images" / "c.png", 20)
    stream = io.StringIO(newline="")
    table = csv.writer(stream, delimiter=separator, lineterminator=end)
    table.writerows([["Filename", " LABEL "], [f"a{separator}b.png", odd], [], ["c.png", " cat "]])
    mark = codecs.BOM_UTF8 if end == "\r\n" else b""
    (tmp_path / "labels.csv").write_bytes(mark + stream.getvalue().encode())
    assert contents(read(tmp_path, ImageListReader())) == {("", odd, 10), ("", "cat", 20)}


def test_column_of_the_split(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "Valid", "test")):
        draw(tmp_path / part / f"{i}.png", 10 * i)
    write(tmp_path / "all.csv", "file,label,split\n0.png,a,train\n1.png,b,Valid\n2.png,c,test\n")
    assert contents(read(tmp_path, ImageListReader())) == {
        ("train", "a", 0),
        ("val", "b", 10),
        ("test", "c", 20),
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_numbers_become_names_that_sort(tmp_path: Path, as_json: bool) -> None:
    for i in (2, 10):
        draw(tmp_path / f"{i}.png", i)
    if as_json:
        write(tmp_path / "l.jsonl", '{"file":"2.png","label":2}\n\n{"file":"10.png","label":10}')
    else:
        write(tmp_path / "l.csv", "file,label\n2.png,2\n10.png,10\n")
    assert contents(read(tmp_path, ImageListReader())) == {
        ("", "class 0002", 2),
        ("", "class 0010", 10),
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_a_first_line_without_a_class_is_left_out_as_any_other(
    tmp_path: Path, as_json: bool
) -> None:
    """It does not make the list one that has no column of classes."""
    for i in (1, 2):
        draw(tmp_path / f"{i}.png", i)
    if as_json:
        write(tmp_path / "l.jsonl", '{"path": "1.png"}\n{"path": "2.png", "class": "ant"}\n')
    else:
        write(tmp_path / "l.csv", "path,class\n1.png\n2.png,ant\n")
    found = read(tmp_path, ImageListReader())
    assert contents(found) == {("", "ant", 2)}
    assert any(remark.startswith("1 line skipped") for remark in found.remarks)


def test_remarks_on_lines(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 10)
    draw(tmp_path / "b.png", 20)
    write(
        tmp_path / "l.csv",
        "file,label\na.png,cat\na.png,cat\n./a.png,dog\nb.png,dog\nb.png\n,dog\nno.png,dog\n",
    )
    index = read(tmp_path, ImageListReader())
    assert contents(index) == {("", "cat", 10), ("", "dog", 20)}
    starts = ["1 image skipped", "2 lines skipped", "1 image skipped", "1 image skipped"]
    assert [remark.partition(" (")[0] for remark in index.remarks] == starts


def test_list_without_classes_among_the_parts(ravi: Path) -> None:
    """As competitions have it."""
    write(ravi / "test.csv", "filename\nn0193011200000005.jpg\n")
    index = read(ravi, ImageListReader())
    assert index.parts == ("train", "val")
    assert [remark.partition(" (")[0] for remark in index.remarks] == [
        "1 list skipped",
        "2 images skipped",
    ]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("by_link", [False, True])
def test_full_paths_within_the_folder(
    tmp_path: Path, alone: bool, by_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program writes them; by the path that was given, or by the one that links lead to."""
    data = tmp_path / "data"
    names = [draw(data / "a.png", 10), draw(data / "deep" / "b.png", 20)]
    draw(data / "deep" / "a.png", 99)
    names += [data / "deep" / ".." / "c.png", data / "gone.png"]
    draw(data / "c.png", 30)
    lines = [json.dumps({"path": str(name), "class": "cat"}) for name in names]
    write(data / "deep" / "train.jsonl" if not alone else data / "train.jsonl", "\n".join(lines))
    (tmp_path / "link").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    given = Path("link" if by_link else "data")
    index = read(given / "train.jsonl" if alone else given, ImageListReader())
    assert contents(index) == {("train", "cat", colour) for colour in (10, 20, 30)}
    assert index.remarks[0].endswith(f": {data}/gone.png")


OUTSIDE = ("/etc/passwd.png", "../secret.png", "a/../../secret.png", "..\\x.png", "C:\\x.png")
IN_FULL = ("-other/a.png", "/../secret.png", "/deep/../../secret.png", "")


def test_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    draw(tmp_path / "secret.png", 10)
    draw(tmp_path / "data-other" / "a.png", 10)
    draw(tmp_path / "data" / "a.png", 10)
    for name in (*OUTSIDE, *(f"{tmp_path}/data{name}" for name in IN_FULL)):
        file = write(tmp_path / "data" / "l.csv", f"file,label\na.png,cat\n{name},cat\n")
        for path in (file, tmp_path / "data"):
            with pytest.raises(KedgeError, match=r"l\.csv: line 3 .*outside"):
                read(path, ImageListReader())


def test_class_does_not_lead_out_either(tmp_path: Path) -> None:
    draw(tmp_path / "secret.png", 10)
    for name in ("..", "../..", "x/../..", ".", "a\0b", "n" * 5000, "/tmp"):
        line = json.dumps({"file": "secret.png", "label": name})
        file = write(tmp_path / "data" / "deep" / "l.jsonl", line)
        with pytest.raises(KedgeError, match=r"exists.*secret\.png"):
            ImageListReader().read(open_tree(file))


@pytest.mark.parametrize(
    "text",
    [
        "remark,person\nbad light,me\n",
        "file,label\nelsewhere/photo.png,cat\n",
        "file,label\n/home/me/cat/1.png,cat\n",
        "file,label\nnotes.txt,cat\n",
        "file,label\n",
        "",
        "\0\1\2",
        "\udcff",
    ],
)
@pytest.mark.parametrize("name", ["train.csv", "notes.jsonl"])
def test_table_beside_class_folders_is_not_mistaken(tmp_path: Path, text: str, name: str) -> None:
    draw(tmp_path / "cat" / "1.png", 10)
    draw(tmp_path / "dog" / "1.png", 10)
    write(tmp_path / "notes.txt", "")
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert not ImageListReader().recognises(open_tree(tmp_path))


def test_several_lists(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 10)
    write(tmp_path / "one.csv", "file,label\na.png,cat\n")
    write(tmp_path / "two.csv", "file,label\na.png,dog\n")
    write(tmp_path / "other.csv", "file,label\nelsewhere.png,dog\n")
    with pytest.raises(KedgeError, match=r"one\.csv, two\.csv"):
        read(tmp_path, ImageListReader())
    assert read(tmp_path / "two.csv", ImageListReader()).classes == ("dog",)
    (tmp_path / "two.csv").unlink()
    assert read(tmp_path, ImageListReader()).classes == ("cat",)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("l.csv", b"file,label\n", "no line"),
        ("l.csv", b"a,b\n1,2\n", "a, b"),
        ("l.csv", b"filename\nx.png\n", "classes"),
        ("l.csv", b'file,label\n"a.png,cat\n', "line 2"),
        ("l.csv", "file,label\na.png,cat\n".encode("utf-16"), "UTF-8"),
        ("l.jsonl", b'{"file": "a.png", "label": "cat"}\n[1]', "line 2"),
        ("l.jsonl", b"[" * 100_000, "line 1"),
        ("l.jsonl", b'{"file": "a.png", "label": true}', "no line"),
        ("l.jsonl", b'{"file": "a.png", "label": "\\ud800"}', "class name"),
        ("l.jsonl", b'{"file": "a\\u0000.png", "label": "x"}', "exists"),
        ("l.jsonl", b'{"x": 1}', "expected a column of images"),
    ],
)
def test_wrong_lists(tmp_path: Path, name: str, content: bytes, word: str) -> None:
    draw(tmp_path / "a.png", 10)
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(KedgeError, match=word):
            read(path, ImageListReader())


# ── CIFAR-FS ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    root = tmp_path / "cifar100"
    for i, name in enumerate(("apple", "bear", "clock", "dolphin", "elm tree")):
        draw(root / "data" / name / "0001.png", 10 * i)
    splits = root / "splits"
    for part, names in (("train", "apple\nbear\n"), ("val", "clock\r\n\r\n"), ("test", "elm tree")):
        write(splits / "bertinetto" / f"{part}.txt", names)
    write(splits / "a-another" / "train.txt", "dolphin\n")
    return root


@WHERE
def test_cifar_folders(cifar: Path, ending: str) -> None:
    index = read(somewhere(cifar, ending), CifarFoldersReader())
    assert contents(index) == {
        ("train", "apple", 0),
        ("train", "bear", 10),
        ("val", "clock", 20),
        ("test", "elm tree", 40),
    }
    unlisted, several = index.remarks
    assert unlisted.endswith("dolphin")
    assert "bertinetto" in several


def test_cifar_class_in_two_parts(cifar: Path) -> None:
    write(cifar / "splits" / "bertinetto" / "val.txt", "clock\napple\n")
    with pytest.raises(KedgeError, match=r"val\.txt: the class apple"):
        read(cifar, CifarFoldersReader())


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_cifar_wrong_lists(cifar: Path, content: bytes) -> None:
    shutil.rmtree(cifar / "splits" / "a-another")
    for part in ("train", "val", "test"):
        (cifar / "splits" / "bertinetto" / f"{part}.txt").write_bytes(content)
    with pytest.raises(KedgeError, match=r"\.txt: (none of the classes|not UTF-8)"):
        read(cifar, CifarFoldersReader())


# ── Tiny-ImageNet ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate(("n01443537", "n01629819")):
        for i in range(2):
            draw(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 + 20 * k + 10 * i)
        write(root / "train" / wnid / f"{wnid}_boxes.txt", f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    draw(root / "val" / "images" / "val_0.JPEG", 100)
    draw(root / "val" / "images" / "val_1.JPEG", 110)
    write(
        root / "val" / "val_annotations.txt",
        "val_0.JPEG\tn01629819\t0\t32\t44\t62\nval_1.JPEG\tn01443537\t52\t55\t57\t59\n",
    )
    draw(root / "test" / "images" / "test_0.JPEG", 200)
    write(root / "wnids.txt", "n01629819\nn01443537\n")
    write(root / "words.txt", "n01443537\tgoldfish, Carassius auratus\n")
    return root


TINY = {
    ("train", "n01443537", 10),
    ("train", "n01443537", 20),
    ("train", "n01629819", 30),
    ("train", "n01629819", 40),
    ("val", "n01629819", 100),
    ("val", "n01443537", 110),
}


def only_test_is_skipped(index: ImageIndex) -> bool:
    return [r[-11:] for r in index.remarks] == ["test_0.JPEG"]


@WHERE
def test_tiny_imagenet(tiny: Path, ending: str) -> None:
    index = read(somewhere(tiny, ending) if ending else tiny.parent, TinyImageNetReader())
    assert contents(index) == TINY
    assert index.parts == ("train", "val")
    assert only_test_is_skipped(index)


@pytest.mark.parametrize(("inner", "annotated"), [("", True), ("images", False)])
def test_tiny_imagenet_rearranged(tiny: Path, inner: str, annotated: bool) -> None:
    for file, wnid in (("val_0.JPEG", "n01629819"), ("val_1.JPEG", "n01443537")):
        (tiny / "val" / wnid / inner).mkdir(parents=True)
        (tiny / "val" / "images" / file).rename(tiny / "val" / wnid / inner / file)
    (tiny / "val" / "images").rmdir()
    if not annotated:
        (tiny / "val" / "val_annotations.txt").unlink()
    index = read(tiny.parent, TinyImageNetReader())
    assert contents(index) == TINY
    assert only_test_is_skipped(index)


def test_tiny_imagenet_with_gaps(tiny: Path) -> None:
    write(tiny / "val" / "val_annotations.txt", "val_0.JPEG\tn01629819\nval_7.JPEG\tn01443537\n\n")
    write(tiny / "wnids.txt", "n01629819\nn01443537\nn07777777\n")
    index = read(tiny.parent, TinyImageNetReader())
    assert contents(index) == TINY - {("val", "n01443537", 110)}
    ends = [remark.rpartition(" ")[2].rpartition("/")[2] for remark in index.remarks]
    assert ends == ["val_1.JPEG", "test_0.JPEG", "val_7.JPEG", "n07777777"]


@pytest.mark.parametrize("content", [b"val_0.JPEG\n", b"val_0.JPEG\t../x\n"])
def test_tiny_imagenet_with_wrong_annotations(tiny: Path, content: bytes) -> None:
    (tiny / "val" / "val_annotations.txt").write_bytes(content)
    index = read(tiny.parent, TinyImageNetReader())
    assert index.parts == ("train",)
    assert index.remarks[0].startswith("2 images skipped (val")


def test_imagenet_is_not_tiny(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "n01443537" / "n01443537_1.JPEG", 10)
    write(tmp_path / "words.txt", "n01443537\tgoldfish\n")
    assert not TinyImageNetReader().recognises(open_tree(tmp_path))


# ── Omniglot ─────────────────────────────────────────────────────────────────────────────────


OMNIGLOT = {
    ("train", "Greek/character01", 10),
    ("train", "Greek/character02", 20),
    ("train", "Korean/character01", 30),
    ("test", "Tengwar/character01", 40),
}


@pytest.fixture
def omniglot(tmp_path: Path) -> Path:
    root = tmp_path / "omniglot"
    for half, name, colour in (
        ("images_background", "Greek/character01/0394_01", 10),
        ("images_background", "Greek/character02/0395_01", 20),
        ("images_background", "Korean/character01/0540_01", 30),
        ("images_evaluation", "Tengwar/character01/1573_01", 40),
    ):
        draw(root / half / f"{name}.png", colour)
    return root


def zip_half(root: Path, half: str, inner: str = "") -> None:
    with zipfile.ZipFile(root / f"{half}.zip", "w") as archive:
        for file in sorted((root / half).rglob("*.png")):
            archive.write(file, file.relative_to(root / half if inner == "bare" else root))
    shutil.rmtree(root / half)


HALVES = ("images_background", "images_evaluation")


@pytest.mark.parametrize(("zipped", "inner"), [((), ""), (HALVES[:1], "bare"), (HALVES, "")])
def test_omniglot(omniglot: Path, zipped: tuple[str, ...], inner: str) -> None:
    for half in zipped:
        zip_half(omniglot, half, inner)
    for path in (omniglot, omniglot.parent):
        index = read(path, OmniglotReader())
        assert contents(index) == OMNIGLOT
        assert (index.image_size, index.inverted) == (28, True)
        assert index.parts == ("train", "test")
        assert index.remarks == ()
        assert "1573_01.png" in index.images.name(3)


@pytest.mark.parametrize("inner", ["", "bare"])
def test_one_half_of_omniglot(omniglot: Path, inner: str) -> None:
    expected = {("test", "Tengwar/character01", 40)}
    assert contents(read(omniglot / "images_evaluation", OmniglotReader())) == expected
    zip_half(omniglot, "images_evaluation", inner)
    index = read(omniglot / "images_evaluation.zip", OmniglotReader())
    assert contents(index) == expected
    assert "images_background" in index.remarks[0]


def _page(file: Path) -> None:
    file.write_text("<!DOCTYPE html><html>Not found</html>")


def _half_of_it(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _another(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [(_page, "web page"), (_half_of_it, "truncated"), (_another, "expected <Alphabet>")],
)
def test_spoilt_half(omniglot: Path, spoil: Callable[[Path], None], sentence: str) -> None:
    zip_half(omniglot, "images_evaluation")
    spoil(omniglot / "images_evaluation.zip")
    with pytest.raises(KedgeError, match=rf"images_evaluation\.zip: .*{sentence}"):
        read(omniglot, OmniglotReader())


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real archives")
def test_the_real_omniglot() -> None:
    index = read(SHARED, OmniglotReader())
    assert len(index.classes) == 1623
    assert set(index.counts.tolist()) == {20}
    assert [len(index.classes_of(part)) for part in index.parts] == [964, 659]
    assert index.remarks == ()
    first, last = index.images.fetch([0, len(index) - 1])
    for half, raw in (("images_background", first), ("images_evaluation", last)):
        with zipfile.ZipFile(SHARED / f"{half}.zip") as archive:
            names = [n for n in archive.namelist() if n.endswith(".png")]
            name = names[0] if half == "images_background" else names[-1]
            with Image.open(archive.open(name)) as image:
                expected = np.asarray(image.convert("L"))
        assert (decode(raw, ImageSpec(105, 1))[0] == expected).all()


@pytest.mark.parametrize("odd", [" ", "trian"])
def test_odd_cell_does_not_end_the_split(tmp_path: Path, odd: str) -> None:
    """To put such an image anywhere might put a test image into training."""
    text = "path,class,split\n"
    for i in range(12):
        draw(tmp_path / "images" / f"{i:02}.png", 10 * i)
        part = odd if i == 9 else ("train", "Val", "test")[i % 3]
        text += f"{i:02}.png,k{i % 3},{part}\n"
    write(tmp_path / "list.csv", text)
    index = read(tmp_path, ImageListReader())
    assert index.parts == ("train", "val", "test")
    assert contents(index) == {
        (("train", "val", "test")[i % 3], f"k{i % 3}", 10 * i) for i in range(12) if i != 9
    }
    (remark,) = index.remarks
    assert remark.startswith("1 image skipped")
    assert "09.png" in remark
