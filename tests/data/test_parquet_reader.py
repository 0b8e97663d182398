"""Parquet as Hugging Face writes it, as others do, and as it is after an accident."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kedge.data import parquet_worker
from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.files import open_tree
from kedge.data.index import ImageIndex
from kedge.data.readers import read_index
from kedge.data.readers.parquet import ParquetReader
from kedge.errors import KedgeError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TINY = Path(__file__).parents[2].parent / "shared" / "data" / "tiny-imagenet"
NAMES = ["ant", "bat", "cat", "dog"]


def png(value: int) -> bytes:
    """One colour, by which an image is known again."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 255 - value, 7)).save(file, "PNG")
    return file.getvalue()


def struct(images: Sequence[bytes | None]) -> Any:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": image, "path": "x.png"} for image in images], kind)


def hub(names: Any = NAMES, label: str = "label") -> dict[bytes, bytes]:
    features = {"image": {"_type": "Image"}, label: {"_type": "ClassLabel", "names": names}}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def write(
    path: Path,
    labels: Sequence[Any],
    first: int = 0,
    metadata: dict[bytes, bytes] | None = None,
    rows: int = 3,
    columns: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Images `first`, `first + 1` … with these labels, in row groups of so many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = struct([png(first + i) for i in range(len(labels))])
    table = pa.table(columns or {"image": images, "label": pa.array(labels)})
    table = table.replace_schema_metadata(hub() if metadata is None else metadata)
    pq.write_table(table, path, row_group_size=rows, **options)
    return path


def read(path: Path) -> ImageIndex:
    tree = open_tree(path)
    assert ParquetReader().recognises(tree)
    return ParquetReader().read(tree)


def values(found: ImageIndex, numbers: Sequence[int] | None = None) -> list[int | None]:
    """By their colour; None for those that are unreadable."""
    raws = found.images.fetch(range(len(found)) if numbers is None else numbers)
    decoded = decode_each([*raws], ImageSpec(4, 3))
    return [None if each.pixels is None else int(each.pixels[0, 0, 0]) for each in decoded]


def named(found: ImageIndex) -> list[str]:
    return [found.classes[i] for i in found.labels]


def sentence(path: Path) -> str:
    with pytest.raises(KedgeError) as caught:
        read(path)
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    return said


# ── as they should be ────────────────────────────────────────────────────────────────────────


def test_shards_of_a_split(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-00000-of-00002.parquet", [0, 1, 2, 3, 0], 10)
    write(tmp_path / "data" / "train-00001-of-00002-0123456789abcdef.parquet", [1, 1], 20)
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", [3], 30)
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [2, 0], 40)
    (tmp_path / "README.md").write_text("of the data")
    found = read(tmp_path)
    assert found.classes == ("ant", "bat", "cat", "dog")
    assert found.parts == ("train", "val", "test")
    parts = [found.parts[i] for i in found.part]
    assert values(found) == [40, 41, 10, 11, 12, 13, 14, 20, 21, 30]  # test stands first by name
    assert parts == ["test"] * 2 + ["train"] * 7 + ["val"]
    assert named(found) == [NAMES[i] for i in (2, 0, 0, 1, 2, 3, 0, 1, 1, 3)]
    assert found.remarks == ()
    assert "train-00000-of-00002.parquet, row 3" in found.images.name(5)
    assert found.classes_of("val") == ("dog",)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train-00000-of-00001.parquet", "train"),
        ("TEST.PARQUET", "test"),
        ("default/partial-train/0000.parquet", "train"),
        ("cub/validation/data-00000-of-00001.parquet", "val"),
        ("mini_imagenet_test.parquet", "test"),
        ("trained.parquet", None),
        ("testing-ground/images.parquet", None),
    ],
)
def test_part_from_the_name(tmp_path: Path, name: str, part: str | None) -> None:
    write(tmp_path / "set" / name, [0, 1])
    found = read(tmp_path / "set")
    assert found.parts == (() if part is None else (part,))
    assert found.part.tolist() == ([] if part is None else [0, 0])


def test_missing_shards_are_counted(tmp_path: Path) -> None:
    for i in (0, 1, 3):
        write(tmp_path / "data" / f"train-0000{i}-of-00005.parquet", [0, 1])
    write(tmp_path / "data" / "extra.parquet", [0, 1])
    skipped, missing = read(tmp_path).remarks
    assert skipped.endswith("data/extra.parquet")
    assert "3 of 5 shards" in missing
    assert len(read(tmp_path / "data" / "train-00001-of-00005.parquet")) == 2


@pytest.mark.parametrize("kind", ["int8", "uint64", "large_string", "categories", "bytes"])
def test_kinds_of_labels(tmp_path: Path, kind: str) -> None:
    if "int" in kind:
        labels, metadata = pa.array([2, 0, 2, 1, 0], getattr(pa, kind)()), hub()
    else:
        labels, metadata = pa.array([NAMES[i] for i in (2, 0, 2, 1, 0)]), {}
        if kind == "categories":
            labels = labels.dictionary_encode()
        else:
            labels = labels.cast({"bytes": pa.binary()}.get(kind) or getattr(pa, kind)())
    images = struct([png(i) for i in range(5)])
    write(tmp_path / "x.parquet", [], metadata=metadata, columns={"image": images, "label": labels})
    found = read(tmp_path / "x.parquet")
    assert named(found) == ["cat", "ant", "cat", "bat", "ant"]
    assert values(found) == [0, 1, 2, 3, 4]


def test_numbers_without_names(tmp_path: Path) -> None:
    found = read(write(tmp_path / "x.parquet", [12, 0, 7], metadata={}))
    assert named(found) == ["class 0012", "class 0000", "class 0007"]
    assert found.classes == ("class 0000", "class 0007", "class 0012")
    many = read(write(tmp_path / "y.parquet", [123456, 9], metadata={}))
    assert many.classes == ("class 000009", "class 123456")


@pytest.mark.parametrize(
    "metadata", [{b"huggingface": b"[" * 100_000}, {b"huggingface": b"[1]"}, hub(["ant", None])]
)
def test_names_that_cannot_be_read_are_not_missed(
    tmp_path: Path, metadata: dict[bytes, bytes]
) -> None:
    found = read(write(tmp_path / "x.parquet", [1, 0], metadata=metadata))
    assert named(found) == ["class 0001", "class 0000"]


def test_two_classes_of_the_same_name(tmp_path: Path) -> None:
    names = ["crane", "dog", "crane"]
    found = read(write(tmp_path / "x.parquet", [0, 1, 2, 0], metadata=hub(names)))
    assert named(found) == ["crane (0)", "dog", "crane (2)", "crane (0)"]
    assert "same name" in found.remarks[0]


@pytest.mark.parametrize(
    ("image", "label", "plain"),
    [
        ("img", "fine_label", False),
        ("jpeg_photo", "class", False),
        ("Image", "Label", False),
        ("content", "target", True),
    ],
)
def test_names_of_columns(tmp_path: Path, image: str, label: str, plain: bool) -> None:
    images = [png(i) for i in range(3)]
    columns = {
        "id": pa.array([1, 2, 3]),
        label: pa.array([0, 1, 0]),
        "coarse_label": pa.array([9, 9, 9]),
        image: pa.array(images) if plain else struct(images),
    }
    path = write(tmp_path / "x.parquet", [], metadata=hub(NAMES, label), columns=columns)
    found = read(path)
    assert named(found) == ["ant", "bat", "ant"]
    assert values(found) == [0, 1, 2]


# ── what is left out ─────────────────────────────────────────────────────────────────────────


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "train-0.parquet", [0, None, 1, -1, 4, 3, 3], 10)
    write(tmp_path / "test-0.parquet", [-1, -1])
    found = read(tmp_path)
    assert named(found) == ["ant", "bat", "dog", "dog"]
    assert values(found) == [10, 12, 15, 16]
    assert values(found, [1, 3]) == [12, 16]
    assert found.parts == ("train",)
    assert found.remarks[0].startswith("5 images skipped")
    assert found.images.name(2) == f"{path}, row 5"
    texts = read(write(tmp_path / "text" / "x.parquet", ["a", None, " ", "b"], metadata={}))
    assert named(texts) == ["a", "b"]
    assert values(texts) == [0, 3]


def test_images_without_bytes_are_unreadable(tmp_path: Path) -> None:
    images = struct([png(0), None, b"", b"junk", png(4)])
    columns = {"image": images, "label": pa.array([0, 1, 2, 3, 0])}
    found = read(write(tmp_path / "x.parquet", [], columns=columns))
    assert len(found) == 5
    raws = list(found.images.fetch(range(5)))
    assert raws == [png(0), b"", b"", b"junk", png(4)]


# ── fetching ─────────────────────────────────────────────────────────────────────────────────


def test_images_of_several_files(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.parquet", [0] * 30, 0, rows=4)
    write(tmp_path / "train-00001-of-00002.parquet", [1] * 30, 100, rows=4)
    found = read(tmp_path)
    for numbers in ([1, 2, 13, 29, 38, 38], [39, 40], [0, 59]):  # on, and back again
        assert values(found, numbers) == [i if i < 30 else 70 + i for i in numbers]


def test_row_groups_that_are_not_asked_for_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, though kedge reads Parquet in another."""
    path = write(tmp_path / "x.parquet", [0] * 30, 0, rows=4)
    asked: list[int] = []
    plain = pq.ParquetFile.iter_batches

    def watched(self: Any, *args: Any, row_groups: Any = None, **options: Any) -> Any:
        asked.extend(row_groups)
        return plain(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    cursor = parquet_worker.ImageCursor(path, "image.bytes", [*range(4, 30, 4), 30], 2)
    rows = [1, 2, 13, 15, 29, 0]
    assert [cursor.image(row) for row in rows] == [png(row) for row in rows]
    assert asked == [0, 3, 7, 0]


def test_two_at_a_time(tmp_path: Path) -> None:
    found = read(write(tmp_path / "x.parquet", [0] * 20, rows=7))
    one, two = found.images.fetch(range(20)), found.images.fetch(range(0, 20, 2))
    pairs = list(zip(one, two, strict=False))
    assert [a for a, _ in pairs] == [png(i) for i in range(10)]
    assert [b for _, b in pairs] == [png(2 * i) for i in range(10)]


def test_a_damaged_row_group_does_not_end_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [0] * 9, compression="zstd", use_dictionary=False)
    found = read(path)
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[start : start + 200] = b"\xff" * 200
    path.write_bytes(content)
    for each in (found, read(path)):
        assert values(each) == [0, 1, 2, None, None, None, 6, 7, 8]


def test_a_file_that_vanishes_is_an_error(tmp_path: Path) -> None:
    found = read(write(tmp_path / "y.parquet", [0] * 9))
    (tmp_path / "y.parquet").unlink()
    with pytest.raises(KedgeError, match=r"y\.parquet"):
        values(found)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_one_large_row_group_does_not_fill_the_memory(tmp_path: Path) -> None:
    """200 MB of images in one row group, in a process that must not grow by half of it."""
    images = [bytes([i]) + np.random.default_rng(i).bytes(20_000) for i in range(250)] * 40
    columns = {"image": struct(images), "label": pa.array([i % 4 for i in range(10_000)])}
    path = write(tmp_path / "x.parquet", [], rows=10_000, columns=columns, use_dictionary=False)
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    del images, columns
    code = """
        import re, sys
        from pathlib import Path
        from kedge.data.readers.parquet import ParquetReader
        from kedge.data.files import open_tree
        def most():
            return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        found = ParquetReader().read(open_tree(Path(sys.argv[1])))
        before = most()
        for start in range(0, len(found), 64):
            numbers = range(start, min(start + 64, len(found)))
            for i, raw in zip(numbers, found.images.fetch(numbers), strict=True):
                assert len(raw) == 20_001 and raw[0] == i % 250
        print(most() - before)
    """
    grown = int(in_process(code, path))
    assert grown < 100_000  # KiB


# ── what is wrong ────────────────────────────────────────────────────────────────────────────


def test_shards_that_differ(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.parquet", [0, 1])
    other = tmp_path / "train-00001-of-00002.parquet"
    write(other, [0, 1], metadata=hub(["x", "y", "z", "w"]))
    said = sentence(tmp_path)
    assert "train-00000" in said
    assert "train-00001" in said
    assert "class names" in said
    write(other, [0, 1], metadata={})
    assert "class names" in sentence(tmp_path)
    write(other, ["a", "b"])
    assert "train-00000" in sentence(tmp_path)
    columns = {"img": struct([png(0)]), "label": pa.array([0])}
    write(other, [], columns=columns)
    assert "columns" in sentence(tmp_path)


def test_parts_may_have_classes_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [0, 1], metadata=hub(["ant", "bat"]))
    write(tmp_path / "test.parquet", [0, 1], metadata=hub(["cat", "bat"]))
    found = read(tmp_path)
    assert found.classes_of("train") == ("ant", "bat")
    assert found.classes_of("test") == ("bat", "cat")
    write(tmp_path / "val.parquet", [0, 1], metadata={})
    assert "labels" in sentence(tmp_path)
    write(tmp_path / "texts" / "train.parquet", [0, 1], metadata={})
    write(tmp_path / "texts" / "test.parquet", ["a", "b"], metadata={})
    assert "labels" in sentence(tmp_path / "texts")


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "small" / "train-00000-of-00001.parquet", [0, 1])
    write(tmp_path / "large" / "train-00000-of-00001.parquet", [0, 1])
    assert "two data sets" in sentence(tmp_path)


WRONG_COLUMNS: list[dict[str, Any]] = [
    {"image": pa.array(["a.png"]), "label": pa.array([1])},
    {"a": pa.array([b"a"]), "b": pa.array([b"b"]), "label": pa.array([1])},
    {"image": struct([b"x"]), "size": pa.array([1])},
    {"image": struct([b"x"]), "label": pa.array([0.5])},
    {"image": struct([b"x"]), "label": pa.array([b"\xff\xfe"])},
    {"image": struct([b"x"]), "label": pa.array([-1])},
    {"image": struct([]), "label": pa.array([], pa.int64())},
]
NO_PARQUET = [
    b"PAR1",
    b"PAR1" + b"\0" * 30 + b"\xff\xff\xff\x7fPAR1",
    b"PAR1" + b"\xff" * 30 + b"\x1e\0\0\0PAR1",
    b"PARE" + b"\0" * 30 + b"\x0a\0\0\0PARE",  # encrypted
    b"PK\3\4" + b"\0" * 100,
]


def test_wrong_files(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001.parquet"
    for columns in WRONG_COLUMNS:
        write(path, [], metadata={}, columns=columns)
        assert str(tmp_path) in sentence(path)
    for content in NO_PARQUET:
        path.write_bytes(content)
        assert str(tmp_path) in sentence(tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    columns = {"image": struct([bytes(1 << 26)]), "label": pa.array([0])}
    path = write(tmp_path / "x.parquet", [], columns=columns, compression="zstd")
    assert path.stat().st_size < 1 << 20
    assert "not read" in sentence(path)


# ── beside other forms ───────────────────────────────────────────────────────────────────────


def test_folders_with_a_table_are_folders(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "1.png").write_bytes(png(1))
    assert not ParquetReader().recognises(open_tree(tmp_path))
    path = tmp_path / "metadata.parquet"
    write(path, [], columns={"file_name": pa.array(["ant/1.png"]), "size": pa.array([3])})
    assert not ParquetReader().recognises(open_tree(tmp_path))
    assert read_index(tmp_path).remarks == ()
    write(path, [0, 1])
    assert ParquetReader().recognises(open_tree(tmp_path))
    path.write_bytes(path.read_bytes()[:-9])
    assert "damaged" in sentence(tmp_path)


# ── accidents ────────────────────────────────────────────────────────────────────────────────


def in_process(code: str, *args: Path) -> str:
    """In a process of its own, as pyarrow might end the one that it is in."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("compression", "text"), [("none", True), ("snappy", False)])
def test_mutations(tmp_path: Path, compression: str, text: bool) -> None:
    labels = [NAMES[i % 4] if text else i % 4 for i in range(12)]
    path = write(tmp_path / "good.parquet", labels, rows=4, compression=compression)
    code = """
        import random, sys
        from pathlib import Path
        from kedge.errors import KedgeError
        from kedge.data.readers.parquet import ParquetReader
        from kedge.data.files import open_tree
        good = Path(sys.argv[1]).read_bytes()
        footer = int.from_bytes(good[-8:-4], "little")
        reader, path = ParquetReader(), Path(sys.argv[1]).with_name("train.parquet")
        refused = 0
        for seed in range(150):
            chance, content = random.Random(seed), bytearray(good)
            if seed % 5 == 0:
                del content[chance.randrange(len(content)) :]
                if seed % 10:
                    content += good[-footer - 8 :]
            elif seed % 5 in (1, 2):  # anywhere
                for _ in range(chance.randint(1, 8)):
                    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            elif seed % 5 == 3:  # in what is said of columns and counts
                for _ in range(chance.randint(1, 3)):
                    content[-9 - chance.randrange(footer)] = chance.choice([0, 127, 128, 255])
            else:  # in the first page
                content[4 + chance.randrange(40)] = chance.randrange(256)
            path.write_bytes(content)
            try:
                tree = open_tree(path)
                assert reader.recognises(tree)
                found = reader.read(tree)
            except KedgeError as error:
                refused += 1
                assert str(error).endswith(".") and "\\n" not in str(error), error
                continue
            raws = list(found.images.fetch(range(len(found))))
            assert len(raws) == len(found) and all(type(p) is bytes for p in raws)
        print(refused)
    """
    assert 20 < int(in_process(code, path)) < 150


# ── real data ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not TINY.is_dir(), reason="Tiny-ImageNet as Parquet is not beside the checkout")
def test_tiny_imagenet() -> None:
    found = read(TINY)
    assert len(found.classes) == 200
    assert set(found.counts.tolist()) == {550}
    assert found.classes[0] == "n01443537"
    assert found.parts == ("train", "val")
    assert np.bincount(found.part).tolist() == [100_000, 10_000]
    assert found.remarks == ()
    numbers = [0, 1, 999, 1000, 54_321, 99_999, 100_000, 109_999]
    images = [decode_each([raw], ImageSpec(64, 3))[0].pixels for raw in found.images.fetch(numbers)]
    assert [image.shape for image in images] == [(3, 64, 64)] * len(numbers)
    assert len({image.tobytes() for image in images}) == len(numbers)
