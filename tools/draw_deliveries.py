"""Draw docs/figures/deliveries.png: some drawings of each folder of the tutorial.

python tools/draw_deliveries.py FOLDER    # where the tutorial's deliveries.py was run
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

OUT = Path(__file__).resolve().parents[1] / "docs" / "figures" / "deliveries.png"
FOLDERS = ("first", "second", "third", "unseen")
SIDE, GAP, LABEL, EACH = 56, 10, 96, 10


def main(folder: Path) -> None:
    sheet = Image.new("L", (LABEL + EACH * (SIDE + GAP), GAP + len(FOLDERS) * (SIDE + GAP)), 255)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    for row, name in enumerate(FOLDERS):
        top = GAP + row * (SIDE + GAP)
        pen.text((GAP, top + SIDE / 2), name, fill=60, font=font, anchor="lm")
        classes = sorted(each for each in (folder / name).iterdir() if each.is_dir())
        for column, each in enumerate(classes[:: len(classes) // EACH]):
            image = Image.open(sorted(each.glob("*.png"))[0])
            large = ImageOps.invert(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            sheet.paste(large, (LABEL + column * (SIDE + GAP), top))
    sheet.quantize(16).save(OUT, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
