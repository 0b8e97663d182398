"""Images that stay in their packed file are indexed like a tensor and never resident."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kedge import api
from kedge.benchmarks.base import Benchmark, Split
from kedge.data import packed_file, pixel_digests
from kedge.data import table as table_module
from kedge.data.inspect import inspect_table
from kedge.data.open import open_images
from kedge.data.packed_file import LazyImages
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randint(0, 256, (60, 3, 10, 10), dtype=torch.uint8, generator=GENERATOR)
LABELS = torch.arange(6).repeat_interleave(10)
PART = (torch.arange(60) % 3).to(torch.uint8)
TABLE = ImageTable(
    PIXELS, LABELS, tuple(f"größe {i}\n" for i in range(6)), "here", ("train", "val", "test"), PART
)
SOME = torch.tensor([3, 4, 5, 17, 29, 30, 31, 32, 58])


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packed file with a digest for every two images."""
    monkeypatch.setattr(pixel_digests, "CHUNK_BYTES", 2 * 300)
    TABLE.save(tmp_path / "packed.images")
    return tmp_path / "packed.images"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every packed file counts as too large for the memory."""
    monkeypatch.setattr(table_module, "EAGER_BYTES", 0)


@pytest.fixture
def table(path: Path, large: None) -> ImageTable:
    return ImageTable.load(path)


def rows_of(table: ImageTable) -> LazyImages:
    assert isinstance(table.images, LazyImages)
    return table.images


def test_only_small_files_are_loaded(path: Path, table: ImageTable) -> None:
    assert isinstance(table.images, LazyImages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "EAGER_BYTES", PIXELS.numel())
        assert torch.equal(ImageTable.load(path).images, PIXELS)


def test_looks_like_a_tensor(table: ImageTable) -> None:
    rows = rows_of(table)
    assert (rows.shape, rows.dtype, rows.ndim) == (PIXELS.shape, PIXELS.dtype, PIXELS.ndim)
    assert (len(rows), rows.numel()) == (len(PIXELS), PIXELS.numel())
    assert rows[0].numel() == 300
    assert repr(rows).startswith("LazyImages(60×3×10×10, '/")


INDICES: dict[str, Any] = {
    "last": -1,
    "beyond": slice(50, 99),
    "strided": slice(None, None, 7),
    "empty": torch.empty(0, dtype=torch.int64),
    "negative": torch.tensor([-1, 59, -60]),
    "scalar": torch.tensor(7),
    "grid": torch.randint(0, 60, (4, 5), generator=GENERATOR),
    "mask": LABELS == 2,
    "neighbours": torch.arange(10, 40),
    "random": torch.randint(0, 60, (1000,), generator=GENERATOR),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_every_index_gives_what_a_tensor_gives(table: ImageTable, index: Any) -> None:
    found, expected = rows_of(table)[index], PIXELS[index]
    assert found.shape == expected.shape
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_take_and_subset(table: ImageTable) -> None:
    rows = torch.tensor([5, 0, 8, 5])
    for each in (table, TABLE):
        assert torch.equal(each.take(rows), PIXELS[rows])
        assert torch.equal(each.subset(SOME).take(rows), PIXELS[SOME][rows])


def test_split_gives_what_a_tensor_gives(table: ImageTable) -> None:
    found, expected = list(rows_of(table).split(7)), PIXELS.split(7)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    nothing = rows_of(table).subset(torch.empty(0, dtype=torch.int64))
    assert [len(each) for each in nothing.split(7)] == [0]
    assert torch.equal(torch.stack(list(rows_of(table))), PIXELS)


def test_missing_rows_and_rows_of_another_type_are_refused(table: ImageTable) -> None:
    for index in (60, -61, torch.tensor([0, 60]), torch.tensor([-61])):
        with pytest.raises(IndexError):
            rows_of(table)[index]
    with pytest.raises(TypeError):
        rows_of(table)[torch.tensor([0, 1]).to(torch.uint8)]


def test_reading_continues_after_the_file_is_replaced_or_deleted(
    path: Path, table: ImageTable
) -> None:
    table.save(path)
    assert torch.equal(rows_of(ImageTable.load(path))[:], PIXELS)
    ImageTable(255 - PIXELS, LABELS, TABLE.classes, "other").save(path)
    assert torch.equal(rows_of(table)[:], PIXELS)
    path.unlink()
    assert torch.equal(table.subset(SOME).take(torch.arange(9)), PIXELS[SOME])


def test_truncated_file_is_reported(path: Path, table: ImageTable) -> None:
    os.truncate(path, path.stat().st_size - 30 * 16 - 60 - 301)  # parts and digests stand last
    assert torch.equal(rows_of(table)[57], PIXELS[57])
    for index in (58, slice(None), torch.tensor([59, 0])):
        with pytest.raises(KedgeError, match=r"packed\.images: the file has become shorter"):
            rows_of(table)[index]


def change(path: Path, image: int) -> None:
    """Zero some bytes of an image, as a failing disk may."""
    content = bytearray(path.read_bytes())
    start = content.index(PIXELS[0].numpy().tobytes()) + 300 * image
    content[start + 100 : start + 150] = bytes(50)
    path.write_bytes(content)


def test_damaged_pixels_are_found_when_they_are_read(path: Path, large: None) -> None:
    change(path, 21)
    images = rows_of(ImageTable.load(path))
    assert torch.equal(images[:20], PIXELS[:20])
    assert torch.equal(images[22:], PIXELS[22:])
    for index in (20, 21, slice(None), torch.tensor([59, 21])):
        with pytest.raises(KedgeError, match=r"packed\.images: damaged.*20 to 21"):
            images[index]
    with pytest.raises(KedgeError, match=r"packed\.images: damaged"):
        images.subset(torch.tensor([5, 21]))[1]


def test_damaged_pixels_of_a_small_file_are_found_at_once(path: Path) -> None:
    change(path, 21)
    with pytest.raises(KedgeError, match=r"packed\.images: damaged"):
        ImageTable.load(path)


def test_files_of_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no digests: small ones are compared with their fingerprint."""
    path = tmp_path / "packed.images"
    about = {"format": "kedge-images-1", "classes": TABLE.classes, "parts": TABLE.parts}
    about |= {"fingerprint": TABLE.fingerprint}
    tensors = {"images": PIXELS, "labels": LABELS, "part": PART}
    save_file(tensors, path, {"kedge": json.dumps(about)})
    assert torch.equal(torch.as_tensor(ImageTable.load(path).images[:]), PIXELS)
    with monkeypatch.context() as patch:
        patch.setattr(table_module, "EAGER_BYTES", 0)
        assert torch.equal(rows_of(ImageTable.load(path))[:], PIXELS)
    change(path, 21)
    with pytest.raises(KedgeError, match=r"packed\.images: damaged"):
        ImageTable.load(path)


def test_short_reads_continue(table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives 2 GiB at most, and some file systems far less or no advice."""
    whole = os.preadv
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.setattr(packed_file, "READAHEAD", 2)
    monkeypatch.setattr(os, "preadv", lambda file, into, at: whole(file, [into[0][:77]], at))
    assert torch.equal(rows_of(table)[SOME], PIXELS[SOME])


def test_disk_error_is_reported(table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(KedgeError, match=r"packed\.images: could not be read \(Input/output"):
        rows_of(table)[0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_file_is_closed_with_its_last_reader(path: Path, large: None) -> None:
    def n_open() -> int:
        gc.collect()
        links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return sum(os.path.exists(link) and os.path.samefile(link, path) for link in links)

    table = ImageTable.load(path)
    part = table.subset(SOME).subset(torch.tensor([1, 2]))
    assert n_open() == 1
    del table
    assert n_open() == 1
    assert torch.equal(part.take(torch.tensor([1])), PIXELS[[5]])
    del part
    assert n_open() == 0
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(KedgeError):
        ImageTable.load(path)
    assert n_open() == 0


def test_threads_read_at_once(table: ImageTable) -> None:
    def read(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        draws = [torch.randint(0, 60, (20,), generator=generator) for _ in range(100)]
        return all(torch.equal(rows_of(table)[some], PIXELS[some]) for some in draws)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_an_open_file_is_not_copied(table: ImageTable) -> None:
    with pytest.raises(KedgeError, match="open the images there"):
        pickle.dumps(rows_of(table))


def test_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KedgeError, match=r"pipe: .*damaged"):
        ImageTable.load(tmp_path / "pipe")


IMAGES = {"dtype": "U8", "shape": [2, 1, 16, 16], "data_offsets": [16, 528]}
TWO = {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}
ABOUT = {"format": "kedge-images-1", "classes": ["a", "b"], "fingerprint": ""}
METADATA = {"kedge": json.dumps(ABOUT)}
ENTRIES: dict[str, dict[str, Any]] = {
    "beyond the file": {"data_offsets": [16, 529]},
    "of a negative size": {"shape": [-2, -1, 16, 16]},
    "flat": {"shape": [512]},
    "very huge": {"shape": [10**4000] * 200},
    "signed": {"dtype": "I8"},
}
HEADERS: dict[str, Any] = {
    **{f"images {what}": {"images": IMAGES | change} for what, change in ENTRIES.items()},
    "images that are a list": {"images": [1, 2]},
    "no metadata": {"__metadata__": None},
    "about that is no JSON": {"__metadata__": {"kedge": "{"}},
    "about of others": {"__metadata__": {"other": "{}"}},
    "one tensor more": {"more": TWO},
}


def forged(path: Path, change: dict[str, Any], size: int = 528) -> Path:
    said = {"__metadata__": METADATA, "labels": TWO, "images": IMAGES} | change
    header = json.dumps(said).encode()
    labels = bytes(8) + bytes([1]) + bytes(7)
    path.write_bytes(len(header).to_bytes(8, "little") + header + labels + bytes(size - 16))
    return path


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS)
def test_invalid_header_is_refused(tmp_path: Path, large: None, change: dict[str, Any]) -> None:
    assert len(ImageTable.load(forged(tmp_path / "right", {}))) == 2
    with pytest.raises(KedgeError) as caught:
        ImageTable.load(forged(tmp_path / "wrong", change))
    assert str(caught.value).startswith(f"{tmp_path / 'wrong'}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("n_classes", "with_parts"), [(1, True), (2, False), (5, True)])
def test_saved_file_is_that_of_safetensors(
    tmp_path: Path, with_parts: bool, n_classes: int
) -> None:
    n = 10 * n_classes  # for headers of several lengths
    tensors = {"images": PIXELS[:n], "labels": LABELS[:n]}
    parts = TABLE.parts if with_parts else ()
    part = PART[:n] if with_parts else None
    table = ImageTable(*tensors.values(), TABLE.classes[:n_classes], 'a "name" \x1f\\', parts, part)
    table.save(tmp_path / "ours")
    about = {
        "format": "kedge-images-1",
        "classes": table.classes,
        "source": table.source,
        "fingerprint": table.fingerprint,
        "parts": parts,
        "look": {"fit": "crop", "inverted": False},
        "images_per_digest": (1 << 20) // 300,
    }
    tensors |= {} if part is None else {"part": part}
    digest = hashlib.sha256(tensors["images"].numpy()).digest()[:16]
    tensors["pixel_digests"] = torch.tensor([[*digest]], dtype=torch.uint8)
    text = {"kedge": json.dumps(about, ensure_ascii=False)}
    save_file(tensors, tmp_path / "theirs", text)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_subset_of_a_file_is_saved_like_one_in_memory(table: ImageTable, tmp_path: Path) -> None:
    in_file, in_memory = table.subset(SOME), TABLE.subset(SOME)
    in_file.save(tmp_path / "a")
    replace(in_memory, source=in_file.source).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = ImageTable.load(tmp_path / "a")
    assert torch.equal(rows_of(again)[:], PIXELS[SOME])
    assert again.fingerprint == in_memory.fingerprint
    assert not [remark for remark in inspect_table(again, {}, 0).remarks if "checksum" in remark]


def test_fingerprint_of_a_subset_identifies_rows_and_file(
    table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ImageTable(255 - PIXELS, LABELS, TABLE.classes, "other")
    other.save(tmp_path / "other")
    reached = table.subset(torch.arange(60)).subset(SOME)
    expected = table.subset(SOME).fingerprint
    parts = [
        table.subset(SOME[1:]),
        table.subset(SOME + 1),
        ImageTable.load(tmp_path / "other").subset(SOME),
        ImageTable(rows_of(table).subset(SOME), torch.zeros(9, dtype=torch.int64), ("a",), ""),
        TABLE.subset(SOME),
    ]
    assert len({expected, *(part.fingerprint for part in parts)}) == 6
    monkeypatch.delattr(os, "preadv")  # no pixel is needed for it
    assert reached.fingerprint == expected


def test_round_data_of_a_file_reach_their_images_only(table: ImageTable) -> None:
    split = Split(0, (TABLE.classes[:2], TABLE.classes[2:4]), TABLE.classes[4:5], {}, 3)
    benchmark, in_memory = Benchmark(table, split), Benchmark(TABLE, split)
    data, expected = (each.round_data(1) for each in (benchmark, in_memory))
    assert data.train.table is data.val.table
    rows = rows_of(data.train.table)
    given = {image.numpy().tobytes() for image in rows}
    assert len(given) == len(rows) == 2 * 7 + 10
    for ours, theirs in ((data.train, expected.train), (data.val, expected.val)):
        assert torch.equal(ours.rows, theirs.rows)
        assert torch.equal(ours.table.take(ours.rows), theirs.table.take(theirs.rows))

    everything = rows.subset(torch.arange(len(rows)).repeat(2))
    assert {image.numpy().tobytes() for part in everything.split(5) for image in part} == given
    for index in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            rows[index]
        with pytest.raises(IndexError):
            rows.subset(torch.tensor([index]))
    assert len(rows[-999:999]) == len(rows)
    public = {name for name in dir(rows) if not name.startswith("_")}
    assert public == {
        *("dtype", "is_verified", "ndim", "numel", "origin", "shape", "split", "subset")
    }
    assert {type(each) for each in rows.origin} == {str, bytes}


SHORT = {"n_way": 3, "n_shot": 2, "n_query": 3, "epochs": 2, "episodes": 6, "val_episodes": 10}


@pytest.mark.slow
def test_training_from_a_file_gives_the_same_models_to_the_last_bit(
    first: Path, second: Path, tmp_path: Path, large: None
) -> None:
    in_memory, in_files = [open_images(first), open_images(second)], []
    for i, table in enumerate(in_memory):
        table.save(tmp_path / str(i))
        in_files.append(ImageTable.load(tmp_path / str(i)))
    found: list[list[str]] = []
    for base, new in (in_memory, in_files):
        models = [api.train(base, width=4, **SHORT)]
        for method in ("IDA", "EIML exemplars=4", "EWC episodes=3"):
            memory = api.remember(models[0], base, method=method)
            models.append(api.update(models[0], new, method=method, memory=memory, **SHORT))
        said = models[1].classifier(new).predict(new.images)
        found.append([*(model.fingerprint for model in models), *said])
    assert all(isinstance(table.images, LazyImages) for table in in_files)
    assert found[0] == found[1]
    assert len(set(found[0][:4])) == 4


MEMORY = """
import json, re, torch, kedge
from kedge.data.pools import Pool

def memory(what):
    with open("/proc/self/status") as file:
        return int(re.search(what + r":\\s+(\\d+) kB", file.read())[1]) / 1024

before = memory("VmRSS")
table = kedge.ImageTable.load({path!r})
[pool] = Pool.isolate(Pool.all("training", table, table.classes[1:]))
pool.table.fingerprint
seen = torch.zeros(len(pool), dtype=torch.bool)
for i in range(3000):
    rows = torch.randint(0, len(pool), (30,))
    assert pool.table.images[rows].shape == (30, 3, 64, 64)
    seen[rows] = True
for batch in table.images.split(500):
    assert len(batch) <= 500
read = int(seen.sum()) * table.images[0].numel() / 2**20
print(json.dumps([memory("VmHWM") - before, read, table.images.numel() / 2**20]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_stays_small(tmp_path: Path, ready: Any) -> None:
    n, n_classes = 50_000, 50
    per_class = n // n_classes
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    about = ABOUT | {"classes": [f"{i}" for i in range(n_classes)], "fingerprint": "noise"}
    end = 8 * n + n * 3 * 64 * 64
    said = {
        "__metadata__": {"kedge": json.dumps(about)},
        "labels": {"dtype": "I64", "shape": [n], "data_offsets": [0, 8 * n]},
        "images": {"dtype": "U8", "shape": [n, 3, 64, 64], "data_offsets": [8 * n, end]},
    }
    header, path = json.dumps(said).encode(), tmp_path / "large.images"
    start = len(header).to_bytes(8, "little") + header
    path.write_bytes(start + labels.numpy().tobytes())
    os.truncate(path, len(start) + end)  # zeros, which take no room on the disk
    ended = ready(MEMORY.format(path=str(path)))
    assert ended.rc == 0, ended.err
    grown, read, size = json.loads(ended.out)
    assert size > 580
    assert read > 450
    assert grown < 150
