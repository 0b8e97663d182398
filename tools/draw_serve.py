"""Draw docs/figures/serve-*.png: the page of `kedge serve` with the embedded drawings.

    python tools/draw_serve.py [FOLDER]

Needs Chromium and Playwright (the extra `test`). A server is started on a new project, taught like
a person would, and photographed on the way; the fonts are those of the machine.
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import (
    FilePayload,
    Locator,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from kedge.data.drawings import PER_CLASS, load_drawings

OUT = Path(__file__).resolve().parents[1] / "docs" / "figures"
FIRST = (
    *("apple", "banana", "bicycle", "butterfly", "cactus", "cat"),
    *("fish", "flower", "house", "sailboat", "snail", "umbrella"),
)
LATER = ("airplane", "guitar", "mushroom", "octopus", "star", "tree")
ONLY_ADD = "Only add the new classes"
EACH = 16  # pictures of each class
SIDE, EDGE = 224, 22  # px: of a picture, and of the paper around its drawing
PAPER, INK = "#f6efdf", "#29304f"
WINDOW = ViewportSize(width=1280, height=800)
ROUND_MS = 1_800_000  # longest wait for a round
COLOURS = 192  # of a file


def drawing(name: str, number: int) -> FilePayload:
    """A drawing as an uploaded file: ink on paper, as large as a photograph."""
    table = load_drawings()
    pixels = table.images[table.classes.index(name) * PER_CLASS + number].numpy()[0]
    ink = Image.fromarray(pixels).resize((SIDE - 2 * EDGE,) * 2, Image.Resampling.BICUBIC)
    ink = ink.point([min(255, max(0, (level - 70) * 3)) for level in range(256)])  # crisp lines
    image = Image.new("RGB", (SIDE, SIDE), PAPER)
    image.paste(INK, (EDGE, EDGE), ink)
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"name": f"{name} {number}.png", "mimeType": "image/png", "buffer": file.getvalue()}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server on a new project."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "kedge", "serve", str(folder), "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                try:
                    urlopen(f"http://{listen}/healthz").close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://{listen}/"
        finally:
            process.terminate()


def photograph(page: Page, out: Path, name: str) -> None:
    page.mouse.move(0, 0)
    expect(page.locator(".toast")).to_have_count(0, timeout=20_000)
    page.wait_for_timeout(500)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    few = image.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(out / f"serve-{name}.png", optimize=True)


def choose(page: Page, button: Locator, files: Sequence[FilePayload]) -> None:
    with page.expect_file_chooser() as chooser:
        button.click()
    chooser.value.set_files(files)


def teach(page: Page, names: Sequence[str]) -> None:
    for name in names:
        page.get_by_label("New class").fill(name)
        page.keyboard.press("Enter")
        button = page.get_by_role("button", name=f"Add pictures to {name}", exact=True)
        choose(page, button, [drawing(name, i) for i in range(EACH)])
    uploads = page.locator(".card .uploading")
    expect(uploads).to_have_count(0, timeout=ROUND_MS)


def ask(page: Page, files: Sequence[FilePayload]) -> None:
    choose(page, page.locator("#ask").get_by_role("button", name="Choose pictures"), files)
    shown = page.locator("#ask .verdict, #ask .row-answer")
    expect(shown).to_have_count(len(files), timeout=ROUND_MS)


def improve(page: Page, button: str, version: int) -> None:
    page.locator("#improve").get_by_role("button", name=button, exact=True).click()
    expect(page.locator("#improve")).to_contain_text(
        f"Version {version} is ready", timeout=ROUND_MS
    )
    page.evaluate("scrollTo(0, 0)")


def main(out: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with (
        tempfile.TemporaryDirectory() as place,
        server(Path(place) / "Drawings") as address,
        sync_playwright() as engine,
        engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport=WINDOW)
        page.goto(address)
        teach(page, FIRST)
        ask(page, [drawing("butterfly", EACH + 4)])
        page.evaluate("scrollTo(0, 0)")
        photograph(page, out, "ask")
        improve(page, "Improve", 2)
        photograph(page, out, "improved")
        page.get_by_role("button", name="Use the new version").click()
        teach(page, LATER)
        improve(page, "Improve", 3)
        if page.get_by_role("button", name=ONLY_ADD).is_visible():  # old classes got worse
            improve(page, ONLY_ADD, 4)
        page.get_by_role("button", name="Use the new version").click()
        ask(page, [drawing("cat", EACH + 1)])
        page.get_by_role("link", name="Map").click()
        expect(page.locator(".map-picture")).to_be_visible()
        photograph(page, out, "map")
        page.get_by_role("link", name="Versions").click()
        photograph(page, out, "versions")
        page.get_by_role("button", name="Delete the pictures").first.click()
        photograph(page, out, "forget")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
