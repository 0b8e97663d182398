"""kedge against a baseline loop, in one run on the same images.

    python perf/compare.py --out speed-cpu.json
    python perf/compare.py --noise 64x600 --backbone resnet12 --width 64 --seconds 2    # a GPU

Both take turns, so that other load on the machine affects both; the median of all turns counts.
On a CPU a second baseline runs with kedge's settings for threads and memory: its ratio is due to
the code alone. The record has every turn, the machine and the rate of the best matrix product.
"""

from __future__ import annotations

import json
import os
import statistics
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from baseline_process import (
    FILES_PER_CLASS,
    KEDGE_SETTINGS,
    BaselineProcess,
    baseline_config,
    default_workers,
    image_files,
    precision,
)
from roofline import flops_per_image, peak_matmul_rate
from workload import Workload, parser, use_kedge_settings, workload

from kedge.models.model import Model
from kedge.training.speed import (
    MAX_EPISODES,
    MIN_EPISODES,
    TEST_EPISODES,
    TimedTraining,
    evaluation_seconds,
)
from kedge.utils.config_io import to_dict
from kedge.utils.env import environment, peak_memory_mb, peak_rss_mb, reset_peak_memory

TURNS, TEST_TURNS = 5, 3
MAX_BASELINE_TESTS = 100  # episodes; the baseline's time is scaled to kedge's 2000
METHODS = ("FT", "IDA")


def compare(work: Workload, seconds: float, workers: int) -> dict[str, Any]:
    """A JSON record; each measurement takes about `seconds`."""
    load = os.getloadavg()[0]  # before our own
    model = work.start_model()
    device, (train, test) = model.device, work.pools
    with ExitStack() as stack:
        reset_peak_memory()
        trainings = {
            m: TimedTraining(model, m, train, work.shape, seconds / TURNS) for m in METHODS
        }
        memory = {"resident_mb": peak_rss_mb()}
        if device.type == "cuda":
            memory["gpu_mb"] = peak_memory_mb()
        mode = trainings["FT"].step.mode
        folder = stack.enter_context(image_files(work))
        config = baseline_config(work, model, folder, workers)
        ways = {"as_it_comes": {}, "with_settings": KEDGE_SETTINGS}
        if device.type == "cuda":
            del ways["with_settings"]  # they matter on a CPU only
        baselines = {name: BaselineProcess(config, settings) for name, settings in ways.items()}
        for process in baselines.values():
            stack.callback(process.close)
        record: dict[str, Any] = {
            "what": "kedge beside a plain loop",
            "images": {
                "source": work.table.source,
                "image_size": work.table.image_size,
                "n_channels": work.table.n_channels,
                "trained": [len(train.classes), len(train)],  # classes, images
                "tested": [len(test.classes), len(test)],
            },
            "network": to_dict(work.backbone),
            "episode": to_dict(work.shape),
            "images_per_step": work.images_per_step,
            "device": device.type,
            "seconds": seconds,
            "load_average_before": load,
            "kedge": {"pace": asdict(mode), "peak_memory": memory},
            "plain": {
                "workers": workers,
                "precision": precision(device),
                "files_per_class": FILES_PER_CLASS,
            },
            "limit": peak_matmul_rate(device, mode.bf16, seconds / TURNS),
        }
        _train_in_turns(record, work, model, trainings, baselines, seconds)
        _test_in_turns(record, work, model, baselines, seconds)
    record["ratio"] = _ratios(record, list(baselines))
    return {**record, "environment": environment()}


def _train_in_turns(
    record: dict[str, Any],
    work: Workload,
    model: Model,
    trainings: dict[str, TimedTraining],
    baselines: dict[str, BaselineProcess],
    seconds: float,
) -> None:
    """Baseline, FT, IDA, baseline, FT, IDA, …"""
    n = {k: _n_episodes(p, "train", seconds / TURNS, MAX_EPISODES) for k, p in baselines.items()}
    ms: dict[str, list[float]] = {name: [] for name in (*baselines, *trainings)}
    for _ in range(TURNS):
        for name, process in baselines.items():
            ms[name].append(1000 * process("train", n[name]) / n[name])
        for name, training in trainings.items():
            ms[name].append(training.ms_per_step())
    forward, both = flops_per_image(model.embedding, work.table.n_channels, work.table.image_size)
    record["flops_per_image"] = {"forward": forward, "forward_and_backward": both}
    for name, training in trainings.items():
        flops = both if name == "FT" else both + forward  # the teacher's forward pass
        rates = _rates(ms[name], training.n_episodes, work.images_per_step)
        rates["tflops"] = flops * rates["images_per_s"] / 1e12
        rates["part_of_limit"] = rates["tflops"] / record["limit"]["tflops"]
        record["kedge"][name] = {**rates, "first_step_s": training.first_step_s}
    for name in baselines:
        record["plain"][name] = _rates(ms[name], n[name], work.images_per_step)


def _test_in_turns(
    record: dict[str, Any],
    work: Workload,
    model: Model,
    baselines: dict[str, BaselineProcess],
    seconds: float,
) -> None:
    per_turn, most = seconds / TEST_TURNS, MAX_BASELINE_TESTS
    n = {name: _n_episodes(p, "test", per_turn, most) for name, p in baselines.items()}
    evaluation_seconds(model, work.pools[1], work.shape)  # warm-up
    times: dict[str, list[float]] = {name: [] for name in ("kedge", *baselines)}
    for _ in range(TEST_TURNS):
        for name, process in baselines.items():
            times[name].append(process("test", n[name]) / n[name] * TEST_EPISODES)
        times["kedge"].append(evaluation_seconds(model, work.pools[1], work.shape))
    record["test_episodes"] = TEST_EPISODES
    for name, each in times.items():
        part = record["kedge"] if name == "kedge" else record["plain"][name]
        part |= {"evaluation_s": statistics.median(each), "evaluation_s_each": each}
    for name in baselines:
        record["plain"][name]["evaluation_scaled_from"] = n[name]


def _n_episodes(process: BaselineProcess, request: str, seconds: float, most: int) -> int:
    """How many episodes fit into `seconds`, after a warm-up of the workers and the page cache."""
    process(request, MIN_EPISODES)
    each = process(request, MIN_EPISODES) / MIN_EPISODES
    return round(min(max(seconds / each, MIN_EPISODES), most))


def _rates(ms: list[float], n_episodes: int, n_images: int) -> dict[str, Any]:
    median = statistics.median(ms)
    return {
        "ms_per_step": median,
        "ms_per_step_each": ms,
        "episodes_per_turn": n_episodes,
        "episodes_per_s": 1000 / median,
        "images_per_s": 1000 * n_images / median,
    }


def _ratios(record: dict[str, Any], baselines: list[str]) -> dict[str, Any]:
    kedge, plain = record["kedge"], record["plain"]
    ft, ida = (kedge[method]["ms_per_step"] for method in METHODS)
    ratios: dict[str, Any] = {"IDA_over_FT": ida / ft}
    for name in baselines:
        ratios[name] = {
            "training": plain[name]["ms_per_step"] / ft,
            "evaluation": plain[name]["evaluation_s"] / kedge["evaluation_s"],
        }
    return ratios


if __name__ == "__main__":
    use_kedge_settings()
    options = parser(__doc__)
    options.add_argument("--workers", type=int, default=default_workers(), help="num_workers")
    given = options.parse_args()
    text = json.dumps(compare(workload(given), given.seconds, given.workers), indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
