"""Follow the README with a wheel in an empty environment: train, update, predict, show, serve.

    python tools/try_wheel.py dist/kedge-0.1.0-py3-none-any.whl [--quick]

The photographs are embedded drawings, coloured, enlarged and saved as JPEG files. pip installs the
wheel and what it needs, in the versions of constraints.txt. With --quick, which a test uses, other
packages are those of the interpreter that runs this script, and training is as short as it can be:
that still finds what the wheel lacks of kedge itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
START_SECONDS, STOP_SECONDS = 120, 30  # for the server
PHOTOGRAPHS = """
import itertools, pathlib
from PIL import Image, ImageOps
import kedge
from kedge.data.drawings import load_drawings

assert pathlib.Path(kedge.__file__).is_relative_to({environment!r}), kedge.__file__
table, inks = load_drawings(), itertools.cycle(("navy", "darkred", "darkgreen", "black"))

def save(row, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = Image.fromarray(255 - table.take(row)[0, 0].numpy())
    ImageOps.colorize(grey, next(inks), "beige").resize((96, 96)).save(path)

for delivery, classes in {{"first": table.classes[:8], "second": table.classes[8:12]}}.items():
    for name in classes:
        for i, row in enumerate(table.rows_of(name)[:12]):
            save(row[None], pathlib.Path(delivery + "-delivery", name, f"{{i}}.jpg"))
save(table.rows_of(table.classes[0])[20][None], pathlib.Path("photo1.jpg"))
save(table.rows_of(table.classes[9])[20][None], pathlib.Path("photo2.jpg"))
"""


def readme_commands(quick: bool) -> list[list[str]]:
    """The commands of the README's first block, and `show`."""
    block = README.split("```")[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if line]
    assert [line[:2] for line in lines] == [["kedge", w] for w in ("train", "update", "predict")]
    if quick:
        for line in lines[:2]:
            line += ["--epochs", "1", "--episodes", "2"]
    return [*lines, ["kedge", "show", "next.kedge"]]


def serve(kedge: str, folder: Path, environment: dict[str, str]) -> None:
    """The README's line with the model made before: the page is there, a question is answered, and
    the server stops when it is told to."""
    [line] = [each for each in README.splitlines() if each.startswith("kedge serve ")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = shlex.split(line, comments=True)[1:]
    options = ["--model", "next.kedge", "--listen", address]
    server = subprocess.Popen([kedge, *words, *options], cwd=folder, env=environment)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                said = urlopen(f"http://{address}/healthz", timeout=10).read()
                break
            except (URLError, ConnectionError):
                assert server.poll() is None, "the server does not start"
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.2)
        print(f"/healthz: {said.decode()}")
        for path in ("/", "/static/main.js", "/api/openapi.json"):
            assert urlopen(f"http://{address}{path}", timeout=10).read()
        headers = {"X-Kedge": "1", "Content-Type": "image/jpeg"}
        picture = (folder / "photo2.jpg").read_bytes()
        asked = Request(f"http://{address}/api/ask", picture, headers)
        [answer] = json.load(urlopen(asked, timeout=60))["answers"]
        print(f"/api/ask about photo2.jpg: {answer['answer']}")
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOP_SECONDS) == 0, "the server does not stop gracefully"
    finally:
        server.kill()
        server.wait()


def install(wheel: Path, environment: Path, quick: bool) -> None:
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if quick:
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        [packages] = environment.glob("lib/python*/site-packages")
        lent = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "borrowed.pth").write_text("\n".join(lent), encoding="utf-8")
    else:
        wanted = [f"{wheel}[pretrained,serve]", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "--only-binary", ":all:", *wanted], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, environment = Path(temporary, "work"), Path(temporary, "environment").resolve()
        folder.mkdir()
        start = time.monotonic()
        install(args.wheel.resolve(), environment, args.quick)
        print(f"installed in {time.monotonic() - start:.0f} s", flush=True)
        bin_folder = environment / "bin"
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "CUDA_VISIBLE_DEVICES": ""}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        photographs = PHOTOGRAPHS.format(environment=str(environment))
        for words in [["python", "-c", photographs], *readme_commands(args.quick)]:
            start = time.monotonic()
            program = str(bin_folder / words[0])
            subprocess.run([program, *words[1:]], cwd=folder, env=kept | variables, check=True)
            shown = " ".join(words[:2]) if words[0] == "python" else " ".join(words)
            print(f"— {shown}: {time.monotonic() - start:.0f} s\n", flush=True)
        serve(str(bin_folder / "kedge"), folder, kept | variables)


if __name__ == "__main__":
    main()
