"""Small files that break limits of time or memory in programs that trust what a file says.

Each generator writes one data set into a folder and returns the path to give to kedge. All are in
`GENERATORS`; other tests may import them: `from tests.data.hostile import GENERATORS`.
"""

from __future__ import annotations

import base64
import gzip
import io
import lzma
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Generator = Callable[[Path], Path]
GENERATORS: dict[str, Generator] = {}
BZIP2_OF_ZEROS = (
    "c-nJ{%CIzaj8qGb<l}sFpE17Af#CoH1BU{GL4&WG(*o6%Tn*Dl<wxa*zPv|G{7Htcpc5c@7O;vlteVRvDmf>*bn=T"
    "AxmpBF_}1}+2>|5%?Ck"
)
LZMA_OF_ZEROS = (
    "c-"
    "pJD_4cf{mnZ`RgG2Kh=UHAX+b%F^pLNI<o|37!uv215KxY%Hnn;^emafb11s$wenI7F{K@&C8Cb)%2XbL8&2u4g;ny"
    "Jv@B4`&_DZ7ySOiY54)2V6A2hTMoq}_Vh`~3Snt6yK-"
    "4)vdFyUJaBd1JVp3jh1t`;~UD|CSpZ>{pcjWBIP?`|FRpKCM07FSjmh)-Hh;`K!6Dtt|p)hT51$&-"
    "h;P^v9ot8`@nTJ~v8Bj|(^FyJL0l?tJ4)wPiVmyA3y))Gqnxkm&LGxANZG!nd@{mYe0z)!AQczwSl)A&<Wi)$YN$Nw"
    "44kSoPDld9_uM)wJW)_S;-|a!+&r$-TST`pdh;J2!<twVaulyf!e_Ry}#%-"
    "q+pzdS~)y=$^FwShQ`Ib$!(`g_5&}W}mn9?%rvw?VilNZHa!(NpIda8ga9WGF3Kyc|CbbytDqKu3bu(HhEu)He18*c"
    "8@0{<_!NDY2Iz>DK0h<t7b;**{l8XMndu5`Kzb1`>(#5wKZyO*eEqhQJ4BxU%OUq##bAOm<)S~Py9u^*E0dP+7eL"
)
MODULUS = (1 << 61) - 1  # Python's hash of a whole number is its remainder


def generator(write: Generator) -> Generator:
    GENERATORS[write.__name__] = write
    return write


def png(seed: int = 0, side: int = 16) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def folder_with(folder: Path, name: str, content: bytes) -> Path:
    """A folder of two classes; the image is the second of the first."""
    for k, class_name in enumerate(("ant", "bat")):
        (folder / class_name).mkdir(parents=True)
        (folder / class_name / "0.png").write_bytes(png(k))
    (folder / "ant" / name).write_bytes(content)
    return folder


# ── images ───────────────────────────────────────────────────────────────────────────────────


def png_file(width: int, height: int, kind: int, packed: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def jpeg_segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def jpeg_start(width: int, height: int, n_channels: int, progressive: bool = True) -> bytes:
    """Up to the first scan: one table of each kind and the size."""
    one_code = bytes([1] + [0] * 15 + [0])  # lengths of Huffman codes, and the symbol 0
    channels = b"".join(bytes([i + 1, 0x11, 0]) for i in range(n_channels))
    size = struct.pack(">BHHB", 8, height, width, n_channels) + channels
    return (
        b"\xff\xd8"
        + jpeg_segment(0xDB, bytes([0] + [1] * 64))
        + jpeg_segment(0xC2 if progressive else 0xC0, size)
        + jpeg_segment(0xC4, b"\x00" + one_code)
        + jpeg_segment(0xC4, b"\x10" + one_code)
    )


def jpeg_scan(channels: list[int], first: int, last: int) -> bytes:
    which = b"".join(bytes([channel, 0]) for channel in channels)
    return jpeg_segment(0xDA, bytes([len(channels)]) + which + bytes([first, last, 0]))


@generator
def png_of_tall_rows(folder: Path) -> Path:
    """69 bytes, 1 × 50,000,000 px: 8 bytes of bookkeeping for each row."""
    return folder_with(folder, "x.png", png_file(1, 50_000_000, 0, zlib.compress(b"")))


@generator
def png_of_wide_rows(folder: Path) -> Path:
    return folder_with(folder, "x.png", png_file(50_000_000, 1, 6, zlib.compress(b"")))


@generator
def png_of_zeros(folder: Path) -> Path:
    """As many transparent pixels as are read, in 100 kB."""
    packer = zlib.compressobj(9)
    row = bytes(1 + 4 * 5000)
    packed = b"".join(packer.compress(row) for _ in range(5000)) + packer.flush()
    return folder_with(folder, "x.png", png_file(5000, 5000, 6, packed))


@generator
def bmp_of_short_rows(folder: Path) -> Path:
    """49 million px in run lengths, of which each row has one; Pillow adds the others singly."""
    rows = b"\x01\x05\x00\x00" * 12 + b"\x00\x01"
    sizes = struct.pack("<IIIHHIIIIII", 40, 4_100_000, 12, 1, 8, 1, len(rows), 0, 0, 256, 0)
    start = struct.pack("<2sIHHI", b"BM", 1078 + len(rows), 0, 0, 1078)
    return folder_with(folder, "x.bmp", start + sizes + bytes(1024) + rows)


@generator
def jpeg_progressive_cmyk(folder: Path) -> Path:
    """13,300 × 13,300 px in four channels, whose coefficients are all kept until the end."""
    content = jpeg_start(13_300, 13_300, 4) + jpeg_scan([1, 2, 3, 4], 0, 0) + b"\xff\xd9"
    return folder_with(folder, "x.jpg", content)


@generator
def jpeg_of_empty_scans(folder: Path) -> Path:
    """1,000 scans of 14 bytes, each of which goes through the whole image."""
    return folder_with(folder, "x.jpg", jpeg_of_scans())


def jpeg_of_scans(n: int = 1000) -> bytes:
    return jpeg_start(7000, 7000, 3) + jpeg_scan([1, 2, 3], 0, 0) * n + b"\xff\xd9"


@generator
def many_bad_jpegs(folder: Path) -> Path:
    """One after the other, each of which takes as long as one image may."""
    scans = jpeg_of_scans()
    data = folder_with(folder, "x.jpg", scans)
    for i in range(40):
        (data / "ant" / f"x{i}.jpg").write_bytes(scans)
    return data


@generator
def many_slow_jpegs(folder: Path) -> Path:
    """300 of 600 bytes, each of which takes a third of a second, and none too long."""
    folder.mkdir(parents=True)
    image = jpeg_of_scans(30)
    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        for i in range(300):
            archive.writestr(f"{'ab'[i % 2]}/{i}.jpg", image)
    return folder / "x.zip"


@generator
def tiff_of_one_strip(folder: Path) -> Path:
    """A strip that claims 4 GiB."""
    values = {
        256: 7000, 257: 7000, 258: 8, 259: 5, 262: 1, 273: 8, 277: 1, 278: 7000, 279: 0xFFFFFFF0
    }  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
    content = b"II*\0" + struct.pack("<IH", 8, len(values)) + entries + bytes(4)
    return folder_with(folder, "x.tif", content)


@generator
def gif_of_a_large_screen(folder: Path) -> Path:
    screen = b"GIF89a" + struct.pack("<HHBBB", 7000, 7000, 0xF0, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, 7000, 7000, 0) + b"\x02\x02\x44\x01\x00;"
    return folder_with(folder, "x.gif", screen + frame)


# ── archives ─────────────────────────────────────────────────────────────────────────────────


def zip_file(members: list[tuple[str, bytes, int, int, int]]) -> bytes:
    """Of members that are packed already: name, bytes, method, size and checksum."""
    content, table = b"", b""
    for name, packed, method, size, check in members:
        about = struct.pack(
            "<HHHHHIIIHH", 20, 0, method, 0, 33, check, len(packed), size, len(name), 0
        )
        place = struct.pack("<HHHII", 0, 0, 0, 0, len(content))
        table += b"PK\1\2\x14\0" + about + place + name.encode()
        content += b"PK\3\4" + about + name.encode() + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(table), len(content), 0)
    return content + table + b"PK\5\6" + end


def zip_with(folder: Path, packed: bytes, method: int, size: int) -> Path:
    """A .zip of two good images and one member that unpacks to much more than it says."""
    folder.mkdir(parents=True)
    good = [(f"{name}/0.png", png(k), 0) for k, name in enumerate(("ant", "bat"))]
    members = [(name, image, 0, len(image), zlib.crc32(image)) for name, image, _ in good]
    members.append(("ant/1.png", packed, method, size, 0))
    (folder / "x.zip").write_bytes(zip_file(members))
    return folder / "x.zip"


def bzip2_of_zeros() -> bytes:
    """A gigabyte, which takes too long to be packed here: 785 bytes, packed again."""
    return zlib.decompress(base64.b85decode(BZIP2_OF_ZEROS))


@generator
def zip_bzip2(folder: Path) -> Path:
    return zip_with(folder, bzip2_of_zeros(), zipfile.ZIP_BZIP2, 1 << 20)


def lzma_of_zeros() -> bytes:
    """The same by LZMA, packed twice again."""
    return zlib.decompress(zlib.decompress(base64.b85decode(LZMA_OF_ZEROS)))


def lzma_header(dictionary: int) -> bytes:
    return struct.pack("<BBHBI", 9, 4, 5, 93, dictionary)


@generator
def zip_lzma(folder: Path) -> Path:
    return zip_with(folder, lzma_header(1 << 16) + lzma_of_zeros(), zipfile.ZIP_LZMA, 1 << 20)


@generator
def zip_lzma_dictionary(folder: Path) -> Path:
    """A dictionary of 4 GiB for 50 MB, as much as a small archive may claim to hold."""
    content = lzma_header(0xFFFFFFFF) + lzma_of_zeros()
    return zip_with(folder, content, zipfile.ZIP_LZMA, 50 << 20)


@generator
def xz_dictionary(folder: Path) -> Path:
    """A .tar.xz that asks for 1.5 GiB."""
    folder.mkdir(parents=True)
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 3 << 29, "mf": lzma.MF_HC3, "nice_len": 8}]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for k, name in enumerate(("ant", "bat")):
            info = tarfile.TarInfo(f"{name}/0.png")
            info.size = len(png(k))
            tar.addfile(info, io.BytesIO(png(k)))
    small = [{**filters[0], "dict_size": 1 << 16}]
    content = bytearray(lzma.compress(plain.getvalue(), lzma.FORMAT_XZ, filters=small))
    # The header of the block: its size, flags, the filter, the length of its properties (one
    # byte, the dictionary's size) and a checksum.
    assert content[12:16] == b"\x02\x00\x21\x01"
    content[16] = 2 * (30 - 11) - 1 + 1  # 1.5 GiB
    content[20:24] = struct.pack("<I", zlib.crc32(content[12:20]))
    (folder / "x.tar.xz").write_bytes(content)
    return folder / "x.tar.xz"


def tar_header(name: bytes, size: int, kind: bytes) -> bytes:
    header = bytearray(name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2)
    header += b"%011o\0" % size + b"00000000000\0" + b" " * 8 + kind
    header = header.ljust(257, b"\0") + b"ustar\x0000"
    header = header.ljust(512, b"\0")
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@generator
def tar_extended_headers(folder: Path) -> Path:
    """Extended headers of the shortest records, compressed."""
    folder.mkdir(parents=True)
    records = b"4 a=" * (1 << 14)
    headers = (tar_header(b"x", len(records), b"x") + records) * 600
    content = headers + tar_header(b"ant/0.png", 0, b"0") + bytes(1024)
    (folder / "x.tar.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    return folder / "x.tar.gz"


@generator
def tar_of_records(folder: Path) -> Path:
    """Extended headers of 15 times the bytes of the file, most of which are noise."""
    folder.mkdir(parents=True)
    noise, records = random.Random(0).randbytes(4 << 20), b"4 a=" * (1 << 14)
    content = tar_header(b"ant/0.png", len(noise), b"0") + noise
    content += (tar_header(b"x", len(records), b"x") + records) * (15 * len(noise) // len(records))
    content += tar_header(b"bat/0.png", 0, b"0") + bytes(1024)
    (folder / "x.tar.gz").write_bytes(gzip.compress(content, 1, mtime=0))
    return folder / "x.tar.gz"


@generator
def tar_of_headers(folder: Path) -> Path:
    """As many empty members as a compressed archive holds."""
    folder.mkdir(parents=True)
    content = tar_header(b"ant/0.png", 0, b"0") * 380_000 + bytes(1024)
    (folder / "x.tar.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    return folder / "x.tar.gz"


@generator
def tar_of_splits(folder: Path) -> Path:
    """Many lists of splits, each in a folder of its own, for which all files could be searched."""
    folder.mkdir(parents=True)
    names = [b"%d/splits/a/train.txt" % i for i in range(20_000)]
    content = b"".join(tar_header(name, 0, b"0") for name in names) + bytes(1024)
    (folder / "x.tar.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    return folder / "x.tar.gz"


@generator
def zip_of_lists(folder: Path) -> Path:
    """A list deep in folders, whose images could be searched in each of these."""
    folder.mkdir(parents=True)
    rows = b"path,class\n" + b"".join(b"%d.png,a\n" % i for i in range(30_000))
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("d/" * 1000 + "list.csv", rows)
        for i in range(3000):
            archive.writestr(f"{i}/a/x.png", b"")
    return folder / "x.zip"


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────


def understated(content: bytes, size: int) -> bytes:
    """The file with 1 in place of a size in its metadata, in as many bytes."""
    number, encoded = 2 * size, bytearray()  # zigzag, in groups of 7 bits
    while number:
        encoded.append(number & 0x7F | (0x80 if number >> 7 else 0))
        number >>= 7
    one = bytes([0x82] + [0x80] * (len(encoded) - 2) + [0])
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length :]
    assert bytes(encoded) in footer
    return content[: -8 - length] + footer.replace(bytes(encoded), one)


@generator
def parquet_repeated_image(folder: Path) -> Path:
    """One image of 64 MiB that 32 rows share, in a row group that says it has one byte."""
    folder.mkdir(parents=True)
    images = pa.DictionaryArray.from_arrays(pa.array([0] * 32), pa.array([bytes(1 << 26)]))
    file = io.BytesIO()
    table = pa.table({"image": images, "label": pa.array([0, 1] * 16)})
    pq.write_table(table, file, compression="zstd", use_dictionary=["image"], store_schema=False)
    size = pq.ParquetFile(file).metadata.row_group(0).total_byte_size
    (folder / "x.parquet").write_bytes(understated(file.getvalue(), size))
    return folder / "x.parquet"


@generator
def parquet_large_page(folder: Path) -> Path:
    """A page of 640 MB."""
    folder.mkdir(parents=True)
    file = io.BytesIO()
    images = pa.array([bytes(1 << 26)] * 10)
    table = pa.table({"image": images, "label": pa.array([0, 1] * 5)})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, write_statistics=False)
    size = pq.ParquetFile(file).metadata.row_group(0).total_byte_size
    (folder / "x.parquet").write_bytes(understated(file.getvalue(), size))
    return folder / "x.parquet"


@generator
def parquet_many_large_pages(folder: Path) -> Path:
    """Pages of 128 MB in 40 row groups, in 200 kB: each is read within the limits."""
    folder.mkdir(parents=True)
    file = io.BytesIO()
    images = pa.array([bytes(1 << 26)] * 2, pa.binary())
    table = pa.table({"image": images, "label": pa.array([0, 1])})
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    with pq.ParquetWriter(file, table.schema, **options) as writer:
        for _ in range(40):
            writer.write_table(table)
    size = pq.ParquetFile(file).metadata.row_group(0).total_byte_size
    (folder / "x.parquet").write_bytes(understated(file.getvalue(), size))
    return folder / "x.parquet"


@generator
def parquet_many_rows(folder: Path) -> Path:
    """Twenty million rows of one label and one image."""
    folder.mkdir(parents=True)
    n = 19_000_000
    indices = pa.array(np.zeros(n, np.int8))
    image = pa.DictionaryArray.from_arrays(indices, pa.array([png()]))
    table = pa.table({"image": image, "label": np.zeros(n, np.int8)})
    pq.write_table(table, folder / "x.parquet", compression="zstd", row_group_size=n)
    return folder / "x.parquet"


# ── pickles ──────────────────────────────────────────────────────────────────────────────────


def cache_with(folder: Path, program: bytes) -> Path:
    """miniImageNet's file, with a program before the data."""
    folder.mkdir(parents=True)
    images = np.zeros((2, 84, 84, 3), np.uint8)
    value = pickle.dumps({"image_data": images, "class_dict": {"a": [0], "b": [1]}}, 2)
    path = folder / "mini-imagenet-cache-train.pkl"
    path.write_bytes(value[:2] + program + value[2:])
    return path


@generator
def pickle_memo(folder: Path) -> Path:
    """Numbers of the memo that have the same hash."""
    puts = b"".join(b"p%d\n" % (i * MODULUS) for i in range(45_000))
    return cache_with(folder, b"N" + puts + b"0")


@generator
def pickle_gaps_in_memo(folder: Path) -> Path:
    return cache_with(folder, b"Nr\xff\xff\xff\xff0")


@generator
def pickle_tuple_keys(folder: Path) -> Path:
    """Keys that are tuples of the same hash, which Python computes without a secret."""
    keys = colliding_pairs(20_000)
    pairs = b"".join(_pickled(a) + _pickled(b) + b"\x86N" for a, b in keys)
    return cache_with(folder, b"}(" + pairs + b"u0")


@generator
def pickle_of_dicts(folder: Path) -> Path:
    """As many empty dicts as the file has bytes."""
    return cache_with(folder, b"(" + b"}" * 14_900_000 + b"1")


@generator
def pickle_of_frozen_sets(folder: Path) -> Path:
    """Two bytes for each, which takes 216."""
    return cache_with(folder, b"((" + b"(\x91" * 7_400_000 + b"11")


@generator
def pickle_of_texts(folder: Path) -> Path:
    """Four bytes for each, which takes 80."""
    texts = b"".join(b"\x8c\2%c%c" % (i & 127, i >> 7) for i in range(1 << 14))
    return cache_with(folder, b"(" + texts * 850 + b"1")


@generator
def pickle_of_lines(folder: Path) -> Path:
    """Texts as Python 2 wrote them, whose escapes are looked at."""
    return cache_with(folder, b"(" + b"S'ab'\n" * 10_000_000 + b"1")


@generator
def pickle_of_tuples(folder: Path) -> Path:
    """Two bytes for each, and much more to look at it."""
    path = cache_with(folder, b"")
    path.write_bytes(b"\x80\2](" + b"N\x85" * 7_000_000 + b"e.")
    return path


def _pickled(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


def colliding_pairs(n: int) -> list[tuple[int, int]]:
    """Pairs of numbers with equal hashes, from the inverse of Python's hash of tuples (xxHash)."""
    prime1, prime2, prime5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
    word = (1 << 64) - 1

    def turned(value: int) -> int:
        return (value << 31 | value >> 33) & word

    inverse1, inverse2 = pow(prime1, -1, 1 << 64), pow(prime2, -1, 1 << 64)
    target, found = 123456789, []
    a = 0
    while len(found) < n:
        a += 1
        state = turned((prime5 + a * prime2) & word) * prime1 & word
        # The state after b is turned((state + b * prime2)) * prime1; solve for b.
        before = target * inverse1 & word
        before = (before >> 31 | before << 33) & word
        b = (before - state) * inverse2 & word
        if b < MODULUS:
            found.append((a, b))
    assert len({hash(pair) for pair in found}) == 1
    return found


# ── folders ──────────────────────────────────────────────────────────────────────────────────


@generator
def maze(folder: Path) -> Path:
    """60 folders, each with links to all of them."""
    data = folder_with(folder, "x.png", png(2))
    for i in range(60):
        (data / f"m{i}").mkdir()
    for i in range(60):
        for j in range(60):
            (data / f"m{i}" / f"l{j}").symlink_to(data / f"m{j}")
    return data


@generator
def npz_bzip2(folder: Path) -> Path:
    """An array that unpacks to much more than it says, where its header is read."""
    folder.mkdir(parents=True)
    content = zip_file([("images.npy", bzip2_of_zeros(), zipfile.ZIP_BZIP2, 1 << 20, 0)])
    (folder / "train_images.npz").write_bytes(content)
    (folder / "train_labels.pkl").write_bytes(pickle.dumps({"labels": [0, 1]}))
    return folder


@generator
def npz_interleaved(folder: Path) -> Path:
    """5 MB whose values could be read one by one."""
    folder.mkdir(parents=True)
    np.savez(folder / "train_images.npz", images=np.zeros((2, 900, 900, 3), np.uint8, order="F"))
    (folder / "train_labels.pkl").write_bytes(pickle.dumps({"labels": [0, 1]}))
    return folder


# ── lists ────────────────────────────────────────────────────────────────────────────────────


def list_with(folder: Path, name: str, text: bytes) -> Path:
    """A list beside the images of two classes."""
    folder_with(folder, "1.png", png(2))
    (folder / name).write_bytes(text)
    return folder / name


@generator
def csv_wide_header(folder: Path) -> Path:
    """Columns that no row has, for each of which every row could be searched."""
    columns = b"".join(b",%d" % i for i in range(35_000))
    return list_with(folder, "list.csv", b"path,label" + columns + b"\n" + b"x\n" * 50_000)


@generator
def csv_of_missing_folders(folder: Path) -> Path:
    """Each line names a folder, which could be looked for in several places on the disk."""
    rows = b"path,label\nant/0.png,a\nbat/0.png,b\n"
    return list_with(folder, "list.csv", rows + b"".join(b"%x/b,c\n" % i for i in range(300_000)))


@generator
def csv_of_missing_classes(folder: Path) -> Path:
    """Each line names another class, for which a folder could be looked for, too."""
    rows = b"path,label\nant/0.png,a\nbat/0.png,b\n"
    rows += b"".join(b"%x/b,%x\n" % (i, i) for i in range(800_000))
    return list_with(folder, "list.csv", rows)


@generator
def csv_of_missing_ranks(folder: Path) -> Path:
    """Names in the form of Ravi's lists, whose classes could be looked for among the folders."""
    rows = b"path,label\nant/0.png,a\nbat/0.png,b\n"
    return list_with(folder, "list.csv", rows + b"n0153282900000001.jpg,c\n" * 800_000)


@generator
def jsonl_of_empty_objects(folder: Path) -> Path:
    """Three bytes for each line, which could take much to be told of."""
    row = b'{"path": "ant/0.png", "label": 1}\n'
    return list_with(folder, "list.jsonl", row + b"{}\n" * 3_000_000)


@generator
def zip_of_empty_lines(folder: Path) -> Path:
    """As many lines as the list of a small archive may have, in a hundred kilobytes."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", png())
        archive.writestr("list.csv", b"path,class\n" + b"\n" * 52_000_000)
    return folder / "x.zip"


@generator
def csv_of_commas(folder: Path) -> Path:
    """A first line of as many columns as there are bytes."""
    return list_with(folder, "list.csv", b"," * 8_000_000)


@generator
def jsonl_of_lists(folder: Path) -> Path:
    """An object that takes 30 times as much memory as its text."""
    return list_with(folder, "list.jsonl", b'{"path": [' + b"[]," * 12_000_000 + b"[]]}\n")
