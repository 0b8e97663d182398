"""Files in folders with lists beside them: any CSV, CIFAR-FS, Tiny-ImageNet, Omniglot."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import put

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.files import list_file, open_tree
from kedge.data.index import ImageIndex
from kedge.data.readers import image_list, read_index
from kedge.data.readers.base import Reader
from kedge.data.readers.image_list import ImageListReader
from kedge.data.readers.listed_folders import CifarFoldersReader, TinyImageNetReader
from kedge.data.readers.omniglot import OmniglotReader
from kedge.data.remarks import problems
from kedge.errors import KedgeError

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "omniglot"
LISTS, CIFAR = ImageListReader(), CifarFoldersReader()
TINY, OMNIGLOT = TinyImageNetReader(), OmniglotReader()
Found = set[tuple[str, str, int]]


def draw(path: Path, colour: int) -> Path:
    """An image of one colour, by which it is known again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.new("L", (8, 8), colour).save(path)
    else:
        Image.new("RGB", (8, 8), (colour,) * 3).save(path, "JPEG", quality=100)
    return path


def draw_all(root: Path, colours: dict[str, int]) -> Path:
    for name, colour in colours.items():
        draw(root / name, colour)
    return root


def read(path: Path, reader: Reader) -> ImageIndex:
    tree = open_tree(path)
    assert reader.recognises(tree)
    return reader.read(tree)


def contents(index: ImageIndex) -> Found:
    """Part, class and colour of every image."""
    raws = list(index.images.fetch(range(len(index))))
    parts = [index.parts[k] for k in index.part] if index.parts else [""] * len(raws)

    def mean_of(raw: Any) -> float:
        return decode_each([raw], ImageSpec(8, 1))[0].pixels.mean()

    return {
        (
            part,
            index.classes[label],
            int(mean_of(raw).round()),
        )
        for part, label, raw in zip(parts, index.labels, raws, strict=True)
    }


def starts(index: ImageIndex) -> list[str]:
    """What the remarks count."""
    return [remark.partition(" (")[0] for remark in index.remarks]


# ── a CSV or JSON Lines file ─────────────────────────────────────────────────────────────────

TWO = {"a.png": 10, "b.png": 20}
CAT_DOG: Found = {("", "cat", 10), ("", "dog", 20)}
# By what is special: the images and their colours, the list, what is found, and the remarks.
FINE: dict[str, tuple[dict[str, int], dict[str, str], Found, list[str]]] = {
    "columns of a CSV": (
        {"x/a.png": 10, "x/b.png": 20},
        {"any.csv": "id,LABEL,Filename\n0,cat,x/a.png\n1,dog,.\\x\\b.png\n"},
        CAT_DOG,
        [],
    ),
    "keys of JSON": (
        TWO,
        {"any.jsonl": '{"path":"a.png","category":"cat"}\n\n{"path":"b.png","category":"dog"}'},
        CAT_DOG,
        [],
    ),
    "semicolons, quotes, a mark of UTF-8": (
        {"images/a;b.png": 10, "images/b.png": 20},
        {"l.csv": '\ufeffImage-Name; Class \r\n"a;b.png";"odd;""x""\ny"\r\n\r\nb.png; dog '},
        {("", 'odd;"x"\ny', 10), ("", "dog", 20)},
        [],
    ),
    "tabs, and lines as of a Mac": (
        TWO,
        {"l.tsv": "file\tlabel\ra.png\tcat\rb.png\tdog"},
        CAT_DOG,
        [],
    ),
    "class folders": (
        {"a/b/n01/n01_5.png": 10, "a/b/n02/n02_5.png": 20, "a/b/n03/unlisted.png": 30},
        {"train.csv": "class_name,image_name\nn01,n01_5.png\nn02,n02_5.png\n"},
        {("train", "n01", 10), ("train", "n02", 20)},
        ["1 image skipped"],
    ),
    "a column of the split": (
        {"train/0.png": 0, "Valid/1.png": 10, "test/2.png": 20},
        {"all.csv": "file,label,split\n0.png,a,train\n1.png,b,Valid\n2.png,c,test\n"},
        {("train", "a", 0), ("val", "b", 10), ("test", "c", 20)},
        [],
    ),
    "an odd part, which is never guessed": (
        {"a.png": 10, "b.png": 20, "c.png": 30, "d.png": 40},
        {"l.csv": "file,label,set\na.png,cat,train\nb.png,dog,trian\nc.png,cow,\nd.png,elk,Val\n"},
        {("train", "cat", 10), ("val", "elk", 40)},
        ["2 images skipped"],
    ),
    "numbers, which get names that sort": (
        TWO,
        {"l.csv": "file,label\na.png,2\nb.png,10\n"},
        {("", "class 0002", 10), ("", "class 0010", 20)},
        [],
    ),
    "numbers of JSON": (
        TWO,
        {"l.jsonl": '{"file":"a.png","label":2}\n{"file":"b.png","label":100}'},
        {("", "class 0002", 10), ("", "class 0100", 20)},
        [],
    ),
    "a first line without a class": (
        TWO,
        {"l.jsonl": '{"path": "a.png"}\n{"path": "b.png", "class": "dog"}\n'},
        {("", "dog", 20)},
        ["1 line skipped", "1 image skipped"],
    ),
    "lines that are wrong": (
        TWO,
        {"l.csv": "file,label\na.png,cat\na.png,cat\n./a.png,x\nb.png,dog\nb.png\n,x\nno.png,x\n"},
        CAT_DOG,
        ["1 image skipped", "2 lines skipped", "1 image skipped", "1 image skipped"],
    ),
    "a part without classes, as competitions have it": (
        TWO,
        {"train.csv": "file,label\na.png,cat\n", "test.csv": "file\nb.png\n"},
        {("train", "cat", 10)},
        ["1 list skipped", "1 image skipped"],
    ),
}


@pytest.mark.parametrize("case", FINE)
def test_lists(tmp_path: Path, case: str) -> None:
    images, lists, expected, remarks = FINE[case]
    draw_all(tmp_path, images)
    paths = [put(tmp_path / name, text) for name, text in lists.items()]
    index = read(tmp_path, LISTS)
    assert contents(index) == expected
    assert starts(index) == remarks
    if len(paths) == 1 and "a/b/" not in str(images):  # its folder is not listed then
        assert contents(read(paths[0], LISTS)) == expected


ROSES: Found = {("", "red rose", 10), ("", "dog", 20)}
# Lists of "a b.png" or "a.png" as "red rose" and "b.png" as "dog", however they are written.
WRITTEN = {
    "no header": "a.png,red rose\nb.png,dog\n",
    "classes first": "red rose;a.png\r\ndog;b.png\r\n",
    "an unknown header": "\ufeffBild|Sorte\r\na.png|red rose\r\nb.png|dog\r\n",
    "bars between blanks": "a.png | red rose\nb.png | dog\n",
    "colons": "a.png: red rose\nb.png: dog\n",
    "tabs": "a.png\tred rose\r\nb.png\tdog",
    "blanks": "a.png red rose\nb.png dog\n",
    "several blanks, and a path with one": "a b.png   red rose\nb.png   dog\n",
    "blanks and quotes": '"a b.png" "red rose"\nb.png dog\n',
    "a header and blanks": "path label\na.png red rose\nb.png dog\n",
    "quotes, and a blank behind the comma": '"a.png", "red rose"\n"b.png", "dog"\n',
    "full paths": "{folder}/a.png;red rose\n{folder}/b.png;dog\n",
}


@pytest.mark.parametrize("name", ["list.csv", "list.txt"])
@pytest.mark.parametrize("case", WRITTEN)
def test_lists_with_any_separator(tmp_path: Path, name: str, case: str) -> None:
    text = WRITTEN[case].replace("{folder}", str(tmp_path))
    draw_all(tmp_path, {"a b.png" if "a b.png" in text else "a.png": 10, "b.png": 20})
    file = put(tmp_path / name, text)
    for path in (file, tmp_path):
        assert contents(read(path, LISTS)) == ROSES


def test_list_that_is_not_understood(tmp_path: Path) -> None:
    """Its columns are named; beside a folder of images it is not silently left out."""
    draw_all(tmp_path, {"pictures/a.png": 10, "pictures/b.png": 20})
    file = put(
        tmp_path / "list.csv", "id;bild;sorte\n1;pictures/a.png;rose\n2;pictures/b.png;dog\n"
    )
    with pytest.raises(KedgeError, match=r"list\.csv: .*but found id, bild, sorte\."):
        read_index(file)
    (remark,) = read_index(tmp_path).remarks
    assert "list.csv" in remark
    assert problems([remark])


@pytest.mark.parametrize("separator", [" ", "\t", ", "])
def test_list_with_parts_and_no_header(tmp_path: Path, separator: str) -> None:
    draw_all(tmp_path, TWO)
    put(tmp_path / "list.txt", "a.png cat train\nb.png dog val\n".replace(" ", separator))
    assert contents(read(tmp_path, LISTS)) == {("train", "cat", 10), ("val", "dog", 20)}


def test_text_beside_class_folders_is_no_list(tmp_path: Path) -> None:
    draw_all(tmp_path, {"cat/1.png": 10, "dog/1.png": 10})
    put(tmp_path / "train.txt", "cat/1.png 0\ndog/1.png 1\n")
    assert not LISTS.recognises(open_tree(tmp_path))
    assert read(tmp_path / "train.txt", LISTS).classes == ("class 0000", "class 0001")


def test_one_of_the_lists_given_alone(forms: dict[str, Any], tmp_path: Path) -> None:
    data = forms["ravi"](tmp_path).data
    index = read(data / "val.csv", LISTS)
    assert (index.parts, len(index)) == (("val",), 3)
    os.utime(index.images.name(0), ns=(1, 1))
    assert read(data / "val.csv", LISTS).stamp != index.stamp


def test_folders_that_a_list_alone_names_but_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was looked for on the disk: 5 MB of such lines took 20 s and a gigabyte."""
    draw_all(tmp_path, {"a/b/0.png": 10, "1.png": 20})
    rows = ["a/b/0.png,ant", "1.png,ant", "a/no/0.png,ant", *(f"{i}/b/0.png,c" for i in range(500))]
    file = put(tmp_path / "list.csv", "\n".join(("path,class", *rows)))
    scanned, real = list[str](), os.scandir

    def scan(path: str) -> Any:
        scanned.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert len(read(file, LISTS)) == 2
    assert len(scanned) < 10


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "line", ["%d/b.png,c", "b.png,%d", "n01532829%08d.jpg,c", "a/0.png,a", ","]
)
def test_lists_of_lines_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, alone: bool
) -> None:
    """A megabyte of such lines took a second. More files allow for more of them."""
    monkeypatch.setattr(list_file, "MOST_WORK", 1000)
    draw_all(tmp_path, {"a/0.png": 10, "a/1.png": 20})
    rows = ["a/0.png,a", "a/1.png,a", *(line % i if "%" in line else line for i in range(200))]
    file = put(tmp_path / "list.csv", "\n".join(("path,class", *rows)))
    with pytest.raises(KedgeError, match=r"list\.csv: line \d+ is reached with only 2 images"):
        read(file if alone else tmp_path, LISTS)
    draw_all(tmp_path, {f"a/{i}.png": 10 for i in range(2, 100)})
    rows[2:2] = [f"a/{i}.png,a" for i in range(2, 100)]
    put(file, "\n".join(("path,class", *rows)))
    assert len(read(file if alone else tmp_path, LISTS)) == 100


def test_lists_of_empty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_list, "MOST_LINES", 1000)
    draw_all(tmp_path, {"0.png": 10})
    for end in ("\n", "\r"):
        file = put(tmp_path / "list.csv", f"path,class{end}0.png,a{end}" + end * 999)
        with pytest.raises(KedgeError, match=r"list\.csv: more than 1,000 lines"):
            read(file, LISTS)


@pytest.mark.parametrize("below", ["", "train", "ILSVRC/Data/CLS-LOC/train"])
def test_ravi_by_rank_in_the_folders_of_imagenet(tmp_path: Path, below: str) -> None:
    """The files of a class by their numbers: 2, 5, 10, 100, 1000. As text 10 is before 2."""
    for wnid, base in (("n01532829", 0), ("n01558993", 100)):
        for colour, number in ((10, 2), (20, 5), (30, 10), (40, 100), (50, 1000)):
            draw(tmp_path / below / wnid / f"{wnid}_{number}.JPEG", base + colour)
    ranks = {"n01532829": (1, 3), "n01558993": (5, 6, 0)}
    rows = [f"{wnid}{i:08}.jpg,{wnid}" for wnid in ranks for i in ranks[wnid]]
    file = put(tmp_path / "train.csv", "\n".join(("filename,label", *rows)))
    index = read(file if below else tmp_path, LISTS)
    of_ant, of_bee = ("train", "n01532829"), ("train", "n01558993")
    assert contents(index) == {(*of_ant, 10), (*of_ant, 30), (*of_bee, 150)}
    assert "n01532829_10.JPEG" in {index.images.name(i).rpartition("/")[2] for i in range(3)}
    assert index.remarks[0].startswith("2 images skipped")
    assert "rank" in index.form


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("given", ["link", "data"])
def test_full_paths_within_the_folder(
    tmp_path: Path, alone: bool, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program writes them; by the path that was given, or by the one that links lead to."""
    data = draw_all(
        tmp_path / "data", {"a.png": 10, "deep/b.png": 20, "deep/a.png": 99, "c.png": 30}
    )
    names = [data / name for name in ("a.png", "deep/b.png", "deep/../c.png", "gone.png")]
    lines = [json.dumps({"path": str(name), "class": "cat"}) for name in names]
    put(data / ("train.jsonl" if alone else "deep/train.jsonl"), "\n".join(lines))
    (tmp_path / "link").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    index = read(Path(given) / "train.jsonl" if alone else Path(given), LISTS)
    assert contents(index) == {("train", "cat", colour) for colour in (10, 20, 30)}
    assert index.remarks[0].endswith(f": {data}/gone.png")


OUTSIDE = ("/etc/passwd.png", "../secret.png", "a/../../secret.png", "..\\x.png", "C:\\x.png")
IN_FULL = ("-other/a.png", "/../secret.png", "/deep/../../secret.png", "")


def test_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    draw_all(tmp_path, {"secret.png": 10, "data-other/a.png": 10, "data/a.png": 10})
    for name in (*OUTSIDE, *(f"{tmp_path}/data{name}" for name in IN_FULL)):
        file = put(tmp_path / "data" / "l.csv", f"file,label\na.png,cat\n{name},cat\n")
        for path in (file, tmp_path / "data"):
            with pytest.raises(KedgeError, match=r"l\.csv: line 3 .*outside"):
                read(path, LISTS)


def test_class_does_not_lead_out_either(tmp_path: Path) -> None:
    draw(tmp_path / "secret.png", 10)
    for name in ("..", "../..", "x/../..", ".", "a\0b", "n" * 5000, "/tmp"):
        line = json.dumps({"file": "secret.png", "label": name})
        file = put(tmp_path / "data" / "deep" / "l.jsonl", line)
        with pytest.raises(KedgeError, match=r"exists.*secret\.png"):
            LISTS.read(open_tree(file))


@pytest.mark.parametrize("name", ["train.csv", "notes.jsonl"])
def test_table_beside_class_folders_is_not_mistaken(tmp_path: Path, name: str) -> None:
    draw_all(tmp_path, {"cat/1.png": 10, "dog/1.png": 10})
    put(tmp_path / "notes.txt", "")
    texts = ("remark,person\nbad light,me\n", "file,label\n", "", "\0\1\2", b"\xff")
    images = ("elsewhere/photo.png", "/home/me/cat/1.png", "notes.txt")
    for text in (*texts, *(f"file,label\n{image},cat\n" for image in images)):
        put(tmp_path / name, text)
        assert not LISTS.recognises(open_tree(tmp_path)), text


def test_several_lists(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 10)
    for name, row in {"one": "a.png,cat", "two": "a.png,dog", "other": "elsewhere.png,dog"}.items():
        put(tmp_path / f"{name}.csv", f"file,label\n{row}\n")
    with pytest.raises(KedgeError, match=r"one\.csv, two\.csv"):
        read(tmp_path, LISTS)
    assert read(tmp_path / "two.csv", LISTS).classes == ("dog",)
    (tmp_path / "two.csv").unlink()
    assert read(tmp_path, LISTS).classes == ("cat",)


WRONG = [
    ("l.csv", b"file,label\n"),
    ("l.csv", b"a,b\n1,2\n"),
    ("l.csv", b"filename\nx.png\n"),
    ("l.csv", b'file,label\n"a.png,cat\n'),
    ("l.csv", "file,label\na.png,cat\n".encode("utf-16")),
    ("l.jsonl", b'{"file": "a.png", "label": "cat"}\n[1]'),
    ("l.jsonl", b"[" * 100_000),
    ("l.jsonl", b'{"file": "a.png", "label": true}'),
    ("l.jsonl", b'{"file": "a.png", "label": "\\ud800"}'),
    ("l.jsonl", b'{"file": "a\\u0000.png", "label": "x"}'),
    ("l.jsonl", b'{"x": 1}'),
]


@pytest.mark.parametrize(("name", "content"), WRONG)
def test_wrong_lists(tmp_path: Path, name: str, content: bytes) -> None:
    draw(tmp_path / "a.png", 10)
    for path in (put(tmp_path / name, content), tmp_path):
        with pytest.raises(KedgeError, match=name):
            read(path, LISTS)


# ── CIFAR-FS ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    root = tmp_path / "cifar100"
    for i, name in enumerate(("apple", "bear", "clock", "dolphin", "elm tree")):
        draw(root / "data" / name / "0001.png", 10 * i)
    for part, names in (("train", "apple\nbear\n"), ("val", "clock\r\n\r\n"), ("test", "elm tree")):
        put(root / "splits" / "bertinetto" / f"{part}.txt", names)
    return root


def test_cifar_folders(cifar: Path) -> None:
    put(cifar / "splits" / "a-another" / "train.txt", "dolphin\n")
    index = read(cifar, CIFAR)
    val_and_test = {("val", "clock", 20), ("test", "elm tree", 40)}
    assert contents(index) == {("train", "apple", 0), ("train", "bear", 10), *val_and_test}
    unlisted, several = index.remarks
    assert unlisted.endswith("dolphin")
    assert "bertinetto" in several


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe", b"clock\napple\n"])
def test_cifar_wrong_lists(cifar: Path, content: bytes) -> None:
    """Empty, no text, and a class in all three."""
    for part in ("train", "val", "test"):
        put(cifar / "splits" / "bertinetto" / f"{part}.txt", content)
    with pytest.raises(KedgeError, match=r"\.txt"):
        read(cifar, CIFAR)


# ── Tiny-ImageNet ────────────────────────────────────────────────────────────────────────────

FISH, NEWT = "n01443537", "n01629819"
OF_TINY: Found = {
    *((("train", FISH, 10), ("train", FISH, 20), ("train", NEWT, 30), ("train", NEWT, 40))),
    *((("val", NEWT, 100), ("val", FISH, 110))),
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate((FISH, NEWT)):
        for i in range(2):
            draw(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 + 20 * k + 10 * i)
    draw_all(root, {"val/images/val_0.JPEG": 100, "val/images/val_1.JPEG": 110})
    put(root / "val" / "val_annotations.txt", f"val_0.JPEG\t{NEWT}\t0\nval_1.JPEG\t{FISH}\t5\n")
    draw(root / "test" / "images" / "test_0.JPEG", 200)
    put(root / "wnids.txt", f"{NEWT}\n{FISH}\n")
    return root


@pytest.mark.parametrize(("inner", "annotated"), [("", True), ("images", False)])
def test_tiny_imagenet_rearranged(tiny: Path, inner: str, annotated: bool) -> None:
    for file, wnid in (("val_0.JPEG", NEWT), ("val_1.JPEG", FISH)):
        (tiny / "val" / wnid / inner).mkdir(parents=True)
        (tiny / "val" / "images" / file).rename(tiny / "val" / wnid / inner / file)
    (tiny / "val" / "images").rmdir()
    if not annotated:
        (tiny / "val" / "val_annotations.txt").unlink()
    index = read(tiny.parent, TINY)
    assert contents(index) == OF_TINY
    assert [r[-11:] for r in index.remarks] == ["test_0.JPEG"]


def test_tiny_imagenet_with_gaps(tiny: Path) -> None:
    put(tiny / "val" / "val_annotations.txt", f"val_0.JPEG\t{NEWT}\nval_7.JPEG\t{FISH}\n\n")
    put(tiny / "wnids.txt", f"{NEWT}\n{FISH}\nn07777777\n")
    index = read(tiny.parent, TINY)
    assert contents(index) == OF_TINY - {("val", FISH, 110)}
    ends = [remark.rpartition(" ")[2].rpartition("/")[2] for remark in index.remarks]
    assert ends == ["val_1.JPEG", "test_0.JPEG", "val_7.JPEG", "n07777777"]
    for content in (b"val_0.JPEG\n", b"val_0.JPEG\t../x\n"):
        put(tiny / "val" / "val_annotations.txt", content)
        assert read(tiny.parent, TINY).parts == ("train",)


def test_imagenet_is_not_tiny(tmp_path: Path) -> None:
    draw(tmp_path / "train" / FISH / f"{FISH}_1.JPEG", 10)
    put(tmp_path / "words.txt", f"{FISH}\tgoldfish\n")
    assert not TINY.recognises(open_tree(tmp_path))


# ── Omniglot ─────────────────────────────────────────────────────────────────────────────────

HALVES = ("images_background", "images_evaluation")
DRAWN = {
    f"{HALVES[0]}/Greek/character01/0394_01.png": 10,
    f"{HALVES[0]}/Greek/character02/0395_01.png": 20,
    f"{HALVES[1]}/Tengwar/character01/1573_01.png": 40,
}
TENGWAR = ("test", "Tengwar/character01", 40)
OF_OMNIGLOT = {("train", "Greek/character01", 10), ("train", "Greek/character02", 20), TENGWAR}


@pytest.fixture
def omniglot(tmp_path: Path) -> Path:
    return draw_all(tmp_path / "omniglot", DRAWN)


def zip_half(root: Path, half: str, bare: bool) -> Path:
    with zipfile.ZipFile(root / f"{half}.zip", "w") as archive:
        for file in sorted((root / half).rglob("*.png")):
            archive.write(file, file.relative_to(root / half if bare else root))
    shutil.rmtree(root / half)
    return root / f"{half}.zip"


@pytest.mark.parametrize(("zipped", "bare"), [((), False), (HALVES[:1], True), (HALVES, False)])
def test_omniglot(omniglot: Path, zipped: tuple[str, ...], bare: bool) -> None:
    for half in zipped:
        zip_half(omniglot, half, bare)
    for path in (omniglot, omniglot.parent):
        index = read(path, OMNIGLOT)
        assert contents(index) == OF_OMNIGLOT
        assert (index.image_size, index.inverted) == (28, True)
        assert (index.parts, index.remarks) == (("train", "test"), ())
        assert "1573_01.png" in index.images.name(2)


@pytest.mark.parametrize("bare", [False, True])
def test_one_half_of_omniglot(omniglot: Path, bare: bool) -> None:
    assert contents(read(omniglot / HALVES[1], OMNIGLOT)) == {TENGWAR}
    index = read(zip_half(omniglot, HALVES[1], bare), OMNIGLOT)
    assert contents(index) == {TENGWAR}
    assert HALVES[0] in index.remarks[0]


def test_spoilt_half(omniglot: Path) -> None:
    path = zip_half(omniglot, HALVES[1], bare=False)
    other = omniglot / "other"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "")
    for content in (b"<!DOCTYPE html>", path.read_bytes()[:-100], other.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(KedgeError, match=path.name):
            read(omniglot, OMNIGLOT)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real archives")
def test_the_real_omniglot() -> None:
    index = read(SHARED, OMNIGLOT)
    assert len(index.classes) == 1623
    assert set(index.counts.tolist()) == {20}
    assert [len(index.classes_of(part)) for part in index.parts] == [964, 659]
    assert index.remarks == ()
    first, last = index.images.fetch([0, len(index) - 1])
    for half, raw, which in ((HALVES[0], first, 0), (HALVES[1], last, -1)):
        with zipfile.ZipFile(SHARED / f"{half}.zip") as archive:
            name = [n for n in archive.namelist() if n.endswith(".png")][which]
            with Image.open(archive.open(name)) as image:
                expected = np.asarray(image.convert("L"))
        assert (decode_each([raw], ImageSpec(105, 1))[0].pixels[0] == expected).all()
