"""kedge beside other few-shot libraries: prototypical networks on the same JPEG files.

    python perf/peers.py --out peers.json                                 # a GPU, many minutes
    PYTHONPATH=PACKAGES python perf/peers.py --libraries kedge easyfsl    # packages in a folder

Each library trains a ResNet-12 on episodes of the same shape, with the data loader, the sampler
and the optimizer of its own examples: as they are documented, and tuned (a worker process for each
core, cuDNN may choose its algorithms). The network is the library's own or one of kedge's. Every
row has a process of its own; a library that is missing or breaks costs its own rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from baseline_process import FILES_PER_CLASS, KEDGE_SETTINGS, image_files, precision
from peer_libraries import OWN, PEERS, TIME_LIMIT_S, RowConfig
from workload import Workload, synthetic_images

from kedge.config import BackboneConfig, EpisodeShape
from kedge.training.step import default_device
from kedge.utils.atomic_io import write_text_atomically
from kedge.utils.config_io import to_dict
from kedge.utils.env import environment

ROW = Path(__file__).with_name("peer_row.py")
LIBRARIES = ("kedge", *PEERS)
WIDE = "resnet12-wide"  # 64, 160, 320 and 640 filters, as the ResNet-12 of most peers


def main() -> None:
    options = parser()
    given = options.parse_args()
    if given.table is not None:
        print(table(json.loads(given.table.read_text(encoding="utf-8"))))
        return
    if given.out is not None and given.out.exists():
        options.error(f"{given.out}: already exists; choose another --out.")
    shape = EpisodeShape(given.n_way, given.n_shot, given.n_query)
    with files(given.data, given.classes, given.image_size, shape) as folder:
        base = RowConfig(
            library="kedge",
            network=OWN,
            tuned=False,
            folder=str(folder),
            image_size=given.image_size,
            width=given.width,
            shape=shape,
            warm_up=max(given.warm_up, 1),
            episodes=given.episodes,
            test_episodes=given.test_episodes,
            seconds=given.seconds,
        )
        record = compare(base, given.libraries, given.networks, given.out)
    print(table(record))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--data",
        type=Path,
        help="folder with train/CLASS/FILE.jpg and test/CLASS/FILE.jpg, of --image-size pixels; "
        "by default synthetic images in a temporary folder",
    )
    options.add_argument(
        "--classes", type=int, nargs=2, default=(64, 20), help="synthetic, of training and test"
    )
    options.add_argument("--image-size", type=int, default=84)
    options.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    options.add_argument(
        "--networks", nargs="+", default=(OWN, WIDE), help="'own' or backbones of kedge"
    )
    options.add_argument("--width", type=int, default=64, help="of kedge's backbones")
    options.add_argument("--n-way", type=int, default=5)
    options.add_argument("--n-shot", type=int, default=5)
    options.add_argument("--n-query", type=int, default=15)
    options.add_argument("--warm-up", type=int, default=20, help="episodes that are not timed")
    options.add_argument("--episodes", type=int, default=200, help="of training, three times")
    options.add_argument("--test-episodes", type=int, default=2000)
    options.add_argument(
        "--seconds",
        type=float,
        default=TIME_LIMIT_S,
        help="of a peer: end each of the three turns and the test after them, too",
    )
    options.add_argument("--out", type=Path, help="also write the JSON record to this file")
    options.add_argument(
        "--table", type=Path, metavar="FILE", help="only show the table of this JSON record"
    )
    return options


def compare(
    base: RowConfig, libraries: list[str], networks: list[str], out: Path | None
) -> dict[str, Any]:
    """A JSON record with a row for each library, network and way to use it."""
    of_row = ("library", "network", "tuned", "folder")
    folder = Path(base.folder)
    record: dict[str, Any] = {
        "what": "kedge beside other libraries: prototypical networks from JPEG files",
        "images": {part: count_files(folder / part) for part in ("train", "test")},
        "settings": {k: v for k, v in to_dict(base).items() if k not in of_row},
        "precision_of_peers": precision(default_device()),
        "load_average_before": os.getloadavg()[0],
        "environment": environment(),
        "rows": [],
    }
    for config in configs(base, libraries, networks):
        record["rows"].append(measured(config))
        print(markdown_row(record["rows"][-1]), file=sys.stderr, flush=True)
        if out is not None:  # a run that is stopped leaves the rows that it has measured
            write_text_atomically(out, f"{json.dumps(record, indent=1)}\n")
    return record


@contextmanager
def files(
    data: Path | None, classes: tuple[int, int], image_size: int, shape: EpisodeShape
) -> Iterator[Path]:
    """The folder that every library reads; made for the time of the run unless one is given."""
    if data is not None:
        for part in ("train", "test"):
            if not (data / part).is_dir():
                raise SystemExit(f"{data}: --data needs the folders train and test.")
        yield data
        return
    per_class = max(FILES_PER_CLASS, shape.shots[1] + shape.n_query)
    images = synthetic_images(sum(classes), per_class, image_size, 3)
    with image_files(Workload(images, BackboneConfig(), shape, classes)) as folder:
        yield folder


def count_files(folder: Path) -> dict[str, int]:
    each = [len(list(of_class.iterdir())) for of_class in folder.iterdir() if of_class.is_dir()]
    return {"classes": len(each), "files": sum(each)}


def configs(base: RowConfig, libraries: list[str], networks: list[str]) -> Iterator[RowConfig]:
    """The rows in the order of the table."""
    for library, network, tuned in product(libraries, networks, (False, True)):
        if library != "kedge" or not tuned:  # kedge has one way only
            yield replace(base, library=library, network=network, tuned=tuned)


def measured(config: RowConfig) -> dict[str, Any]:
    """The record of a row, measured in a process of its own."""
    given = {k: v for k, v in os.environ.items() if KEDGE_SETTINGS.get(k) != v}
    settings = KEDGE_SETTINGS if config.library == "kedge" else {}
    try:
        done = subprocess.run(
            [sys.executable, str(ROW)],
            env={**given, **settings},
            input=json.dumps(to_dict(config)),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        result = {"error": f"{config.library} took more than {TIME_LIMIT_S} s."}
    else:
        result = reply(config, done)
    about = {"library": config.library, "network": config.network}
    return {**about, "settings": settings_name(config), **result}


def reply(config: RowConfig, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the process of a row has answered, or why it has not."""
    if done.returncode == 0 and done.stdout:
        return dict(json.loads(done.stdout))
    last = (done.stderr.strip().splitlines() or ["without a message"])[-1]
    return {"error": f"{config.library} ended with status {done.returncode}: {last}"}


def settings_name(config: RowConfig) -> str:
    return "default" if config.library == "kedge" else "tuned" if config.tuned else "documented"


def table(record: dict[str, Any]) -> str:
    """The rows as Markdown, the date, the machine and the reason of each missing row."""
    n_tests = record["settings"]["test_episodes"]
    errors = dict.fromkeys(row["error"] for row in record["rows"] if "error" in row)
    machine = "{date}, PyTorch {torch}, Python {python}, GPU: {gpu}, {cores} cores."
    lines = [
        "| library | network | settings | workers | images/s | first step after, s | "
        f"{n_tests} test episodes, s |",
        "| :--- | :--- | :--- | ---: | ---: | ---: | ---: |",
        *(markdown_row(row) for row in record["rows"]),
        "",
        *(f"{error}\n" for error in errors),
        machine.format(**record["environment"]),
    ]
    return "\n".join(lines)


def markdown_row(row: dict[str, Any]) -> str:
    version = row.get("versions", {}).get(row["library"], "")
    cells = [f"{row['library']} {version}".strip(), row["network"], row["settings"]]
    if "error" in row:
        cells += ["–"] * 4
    else:
        workers = "–" if row["workers"] is None else str(row["workers"])
        cells += [workers, f"{row['images_per_s']:,.0f}"]
        cells += [f"{row['first_step_s']:.1f}", f"{row['test_s']:.2f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
