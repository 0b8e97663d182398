"""Folders as people have them: every kind of image, odd names, and files that are no images."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from kedge.data import decode as decode_module
from kedge.data import limited_process
from kedge.data.inspect import inspect_index
from kedge.data.open import open_images
from kedge.data.readers import read_index
from kedge.data.remarks import kind_of
from kedge.errors import KedgeError
from kedge.utils import progress

# What is wrong with images is asserted by their remarks; warnings are tested in test_progress.py.
pytestmark = pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")

# Dark at the left, bright at the right: shows whether an image was turned, cropped or clipped.
RAMP = np.tile(np.linspace(0, 255, 32).astype(np.uint8), (32, 1))
LETTER_L = np.zeros((32, 32), np.uint8)  # differs from itself under every turn and mirroring
LETTER_L[4:28, 6:10] = LETTER_L[24:28, 6:24] = 255


def save(image: Image.Image, path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with one good image each."""
    for name in ("ant", "bat"):
        save(Image.fromarray(RAMP), tmp_path / "data" / name / "good.png")
    return tmp_path / "data"


def first_of(folder: Path, name: str, **options: int) -> np.ndarray:
    table = open_images(folder, **options)
    return table.images[table.rows_of(name)[0]].numpy().astype(int)


# ── what a pixel becomes ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "CMYK", "1"])
def test_every_mode_shows_the_same_picture(folder: Path, mode: str) -> None:
    n_channels = 1 if mode in "LA" else 3
    name = "x.tif" if mode == "CMYK" else "x.png"
    save(Image.fromarray(RAMP).convert(mode), folder / "new" / name)
    image = first_of(folder, "new", image_size=32, n_channels=n_channels)
    assert image.shape == (n_channels, 32, 32)
    tolerance = 255 if mode == "1" else 3  # one bit is dithered: right on average only
    assert np.abs(image - RAMP).max() <= tolerance
    assert np.abs(image[:, :, :8].mean() - RAMP[:, :8].mean()) < 20
    assert np.abs(image[:, :, 24:].mean() - RAMP[:, 24:].mean()) < 20


def test_16_bits_are_16_bits_however_dark_the_picture(folder: Path) -> None:
    for most in (200, 300, 65535):
        deep = np.linspace(0, most, 32).astype(np.uint16)[None].repeat(32, 0)
        for ending in ("png", "tif"):
            save(Image.fromarray(deep), folder / f"{most} {ending}" / f"x.{ending}")
            image = first_of(folder, f"{most} {ending}", n_channels=1)[0]
            np.testing.assert_array_equal(image, deep >> 8)


def test_depth_is_what_the_file_says(folder: Path) -> None:
    """PGM has any greatest value, and scans have 12 bits: neither is 65535."""
    dark = RAMP.astype(int) * 1000 // 255
    (folder / "pgm").mkdir()
    (folder / "pgm" / "x.pgm").write_bytes(b"P5 32 32 1000\n" + dark.astype(">u2").tobytes())
    np.testing.assert_allclose(first_of(folder, "pgm", n_channels=1)[0], RAMP, atol=1)
    (folder / "tif").mkdir()
    (folder / "tif" / "x.tif").write_bytes(tiff_of_12_bits(RAMP.astype(np.uint16) * 16))
    np.testing.assert_array_equal(first_of(folder, "tif", n_channels=1)[0], RAMP)


def tiff_of_12_bits(pixels: np.ndarray) -> bytes:
    """Two pixels in three bytes."""
    left, right = pixels[:, ::2], pixels[:, 1::2]
    rows = np.stack([left >> 4, (left & 15) << 4 | right >> 8, right & 255], 2).astype(np.uint8)
    high, wide = pixels.shape
    tags = {256: wide, 257: high, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: high}
    tags[279] = rows.size
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = struct.pack("<2sHI", b"II", 42, 8 + rows.size)
    return head + rows.tobytes() + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(("kind", "most"), [(np.float32, 1), (np.int32, 300)])
def test_values_without_a_white_are_left_out_with_the_reason(
    folder: Path, kind: type, most: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scaled by its own values, each raw of a class would be scaled otherwise."""
    strange = folder / "ant" / "strange.tif"
    save(Image.fromarray((RAMP / 255 * most).astype(kind)), strange)
    with progress.display():
        assert open_images(folder).counts.tolist() == [1, 1]
    assert str(strange) in capsys.readouterr().err
    assert any(str(strange) in remark for remark in inspect_index(read_index(folder)).remarks)


def test_what_is_transparent_is_not_what_lies_beneath_it(folder: Path) -> None:
    """A black sign on nothing, as icons are stored: without its alpha it is all black."""
    sign = np.zeros((32, 32, 4), np.uint8)
    sign[8:24, 8:24, 3] = 255
    save(Image.fromarray(sign), folder / "sign" / "x.png")
    image = first_of(folder, "sign", n_channels=1)[0]
    assert abs(int(image[16, 16]) - int(image[2, 2])) > 100


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_stand_upright(folder: Path, orientation: int) -> None:
    """A camera that was turned stores the raw turned, and says so."""
    stored = {
        1: LETTER_L,
        2: LETTER_L[:, ::-1],
        3: LETTER_L[::-1, ::-1],
        4: LETTER_L[::-1],
        5: LETTER_L.T,
        6: np.rot90(LETTER_L),
        7: LETTER_L[::-1, ::-1].T,
        8: np.rot90(LETTER_L, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(Image.fromarray(np.ascontiguousarray(stored)), folder / "new" / "x.png", exif=exif)
    np.testing.assert_array_equal(first_of(folder, "new", n_channels=1)[0], LETTER_L)


@pytest.mark.parametrize("shape", [(32, 96), (96, 32)])
def test_the_centre_square_is_kept(folder: Path, shape: tuple[int, int]) -> None:
    image = np.full(shape, 255, np.uint8)
    high, wide = shape[0] // 2, shape[1] // 2
    image[high - 16 : high + 16, wide - 16 : wide + 16] = RAMP
    save(Image.fromarray(image), folder / "new" / "x.png")
    np.testing.assert_array_equal(first_of(folder, "new")[0], RAMP)


@pytest.mark.parametrize("side", [64, 256])
def test_a_large_jpeg_is_as_sharp_as_any_other_picture(folder: Path, side: int) -> None:
    """It is decoded at a fraction of its size, but not at less than twice what is asked for."""
    fine = Image.fromarray((np.indices((32, 32)).sum(0) % 2 * 255).astype(np.uint8))
    large = fine.resize((side, side), Image.Resampling.NEAREST)
    save(large, folder / "jpg" / "x.jpg", quality=95)
    save(large, folder / "png" / "x.png")
    jpg, png = (first_of(folder, name, image_size=32, n_channels=1) for name in ("jpg", "png"))
    assert png.std() > 50
    assert np.abs(jpg - png).mean() < 11


# ── size and channels ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("side", "expected"), [(28, 28), (84, 84), (300, 84), (9, 16)])
def test_small_images_keep_their_size(tmp_path: Path, side: int, expected: int) -> None:
    save(Image.new("RGB", (side, 2 * side)), tmp_path / "d" / "a" / "x.png")
    table = open_images(tmp_path / "d")
    assert (table.n_channels, table.image_size) == (3, expected)


def test_one_colour_image_makes_all_colour(folder: Path) -> None:
    assert open_images(folder).n_channels == 1
    save(Image.new("RGB", (32, 32), "red"), folder / "bat" / "red.png")
    table = open_images(folder)
    assert table.n_channels == 3
    assert table.images[table.rows_of("bat")[-1], :, 0, 0].tolist() == [255, 0, 0]


# ── which files count ────────────────────────────────────────────────────────────────────────


OTHERS = ("3.ico", "4.svg", "5.psd", "6.NEF", "7.dng", "8.jxl", "IMG_0009")
NO_IMAGES = ("Thumbs.db", "desktop.ini", "notes.txt", "list.csv", "a.json", "b.xml", "c.html")


def test_images_of_other_types_are_counted_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*NO_IMAGES, "README", "LICENSE", "Icon\r", "film.mov", "d.md", ".1.heic"):
        (folder / "ant" / name).write_text("x")
    assert read_index(folder).remarks == ()
    for name in OTHERS:
        (folder / "ant" / name).write_bytes(b"x")
    (folder / "figure.psd").write_bytes(b"x")  # in no class folder
    with progress.display():
        assert open_images(folder).counts.tolist() == [1, 1]
    assert "7 files skipped" in capsys.readouterr().err
    assert any("ant/3.ico" in remark for remark in inspect_index(read_index(folder)).remarks)


def test_class_of_other_types_only(folder: Path) -> None:
    (folder / "cat").mkdir()
    (folder / "cat" / "1.psd").write_bytes(b"x")
    assert [remark[:8] for remark in read_index(folder).remarks] == ["1 folder", "1 file s"]
    for name in ("ant", "bat"):
        (folder / name / "good.png").unlink()
    with pytest.raises(KedgeError, match=r"cat/1\.psd"):
        open_images(folder)


@pytest.fixture
def heic() -> bytes:
    """A photograph as telephones store it: on its side, which HEIC says in its own way."""
    pillow_heif = pytest.importorskip("pillow_heif")
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(LETTER_L))).convert("RGB")
    pillow_heif.from_pillow(stored).save(file, quality=100, exif=exif.tobytes())
    return file.getvalue()


@pytest.mark.parametrize("name", ["x.HEIC", "x.heif", "really.jpg"])
def test_heic(folder: Path, heic: bytes, name: str) -> None:
    (folder / "new").mkdir()
    (folder / "new" / name).write_bytes(heic)
    assert np.abs(first_of(folder, "new", image_size=32, n_channels=1)[0] - LETTER_L).max() < 60


@pytest.mark.usefixtures("own_workers")
def test_without_its_package_heic_is_named(
    folder: Path, heic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tuple(format for format in decode_module.readable_formats() if format != "HEIF")
    monkeypatch.setattr(decode_module, "readable_formats", lambda: known)
    decode_module._suffixes.cache_clear()
    without = "sys.modules['pillow_heif'] = None; from"
    monkeypatch.setattr(limited_process, "START", limited_process.START.replace("from", without))
    try:
        for name in ("x.HEIC", "really.jpg"):
            (folder / "ant" / name).write_bytes(heic)
        table = open_images(folder)
        assert table.counts.tolist() == [1, 1]
        lost = [remark for remark in table.remarks if kind_of(remark) == "lost"]
        assert ["kedge[heif]" in remark for remark in lost] == [True, True]
        for name in ("ant", "bat"):
            (folder / name / "good.png").unlink()
        (folder / "ant" / "really.jpg").unlink()
        with pytest.raises(KedgeError, match=r"x\.HEIC.*kedge\[heif\]"):
            open_images(folder)
    finally:
        decode_module._suffixes.cache_clear()


def test_order_does_not_depend_on_when_files_were_written(tmp_path: Path) -> None:
    images = {f"{i}.png": np.full((16, 16), 9 * i, np.uint8) for i in range(20)}
    for folder, names in (("one", list(images)), ("two", list(images)[::-1])):
        for name in names:
            save(Image.fromarray(images[name]), tmp_path / folder / "a" / name)
    one, two = (open_images(tmp_path / folder) for folder in ("one", "two"))
    assert one.fingerprint == two.fingerprint


# ── files that cannot be read ────────────────────────────────────────────────────────────────


def damaged(kind: str) -> bytes:
    """Bytes of an image file in which something is wrong."""
    file = io.BytesIO()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    if kind == "text":
        return b"<html>404 Not Found</html>"
    if kind == "empty":
        return b""
    if kind in ("jpg", "png", "webp", "avif", "tif", "gif"):
        noise.convert("RGB").save(file, {"jpg": "JPEG", "tif": "TIFF"}.get(kind, kind.upper()))
        kept = 0.95 if kind == "avif" else 0.67  # enough for it to look like an image at first
        return file.getvalue()[: int(len(file.getvalue()) * kept)]
    assert kind == "avif without an image"
    noise.convert("RGB").save(file, "AVIF")
    return file.getvalue().replace(b"pitm", b"xxxx")


BROKEN = ["text", "empty", "jpg", "png", "webp", "avif", "avif without an image", "tif", "gif"]


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_image_is_left_out(folder: Path, kind: str) -> None:
    ending = "jpg" if kind in ("text", "empty") else kind.split()[0]
    if ending in ("webp", "avif") and not features.check(ending):
        pytest.skip(f"this Pillow knows no {ending}")
    (folder / "ant" / f"broken.{ending}").write_bytes(damaged(kind))
    assert open_images(folder).counts.tolist() == [1, 1]


def test_image_with_broken_exif_is_read(folder: Path) -> None:
    """The raw is fine; only what the camera wrote about it is not."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "hello"  # turned, with a description
    written = exif.tobytes()
    image = Image.fromarray(RAMP)
    save(image, folder / "ant" / "header.png", exif=written.replace(b"\x00\x2a", b"\x00\xf1"))
    save(image, folder / "ant" / "types.png", exif=written.replace(b"\x01\x0e", b"\x01\x09"))
    assert open_images(folder).counts.tolist() == [3, 1]


@pytest.mark.parametrize("name", ["[bold]x", "["])
def test_brackets_in_names_are_shown_as_they_are(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Image.fromarray(RAMP), folder / name / "good.png")
    (folder / name / "b].png").write_bytes(b"broken")  # "[" and "b]" make a tag: [/b]
    with progress.display():
        open_images(folder)
    assert str(folder / name / "b].png") in capsys.readouterr().err


def test_class_of_which_nothing_can_be_read_is_named_and_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bat" / "good.png").write_bytes(b"")
    with progress.display():
        assert open_images(folder).classes == ("ant",)
    assert "bat" in capsys.readouterr().err


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"")
    with pytest.raises(KedgeError, match=rf"{tmp_path}.*is empty"):
        open_images(tmp_path)


def test_images_that_cannot_be_read_are_counted_by_reason(folder: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1"
    contents = {"a": b"", "b": pointer, "c": pointer, "d": b"<html>404</html>", "e": b"no image"}
    for name, content in contents.items():
        (folder / "ant" / f"{name}.png").write_bytes(content)
    [lost] = [remark for remark in open_images(folder).remarks if kind_of(remark) == "lost"]
    assert lost.startswith("5 of 7 images could not be read and were left out: 2 (a Git LFS")
    for reason in ("b.png", "1 (this file is empty", "1 (a web page", "1 (no image, or damaged"):
        assert reason in lost


# ── what else can be opened ──────────────────────────────────────────────────────────────────


def test_drawings_are_embedded_but_a_folder_of_that_name_comes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(open_images("drawings").classes) == 345
    folder.rename(tmp_path / "drawings")
    assert open_images("drawings").classes == ("ant", "bat")
