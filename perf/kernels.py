"""The Triton kernels of a training step on a GPU: errors, times, and the step beside others.

    python perf/kernels.py                          # ResNet-12 of width 64 at 84 and 64 px
    python perf/kernels.py --first-step kernels     # where the time until the first step goes

Errors are relative to modules in float32. Rates count each activation that a kernel must read or
write once. Steps take turns in one process: with kernels, with plain modules, and compiled.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workload import synthetic_images

from kedge import kernels
from kedge.config import BackboneConfig, EpisodeShape, Schedule, TrainConfig
from kedge.data.augment import augment, draw_augmentation
from kedge.data.table import ImageTable
from kedge.methods.registry import parse_method
from kedge.models.backbones import DropBlock, build_backbone
from kedge.models.model import Model
from kedge.models.trainable import trainable_copy
from kedge.training import cuda_graph
from kedge.training.cuda_graph import GraphedStep
from kedge.training.loop import EpochRunner
from kedge.training.speed import TimedTraining, train_and_test_pool, untrained_model
from kedge.training.step import ExecutionMode, TrainStep
from kedge.utils import progress
from kedge.utils.seeding import generator

SHAPE = EpisodeShape(5, 5, 15)
BACKBONE = BackboneConfig("resnet12", 64)
BLOCKS = ((64, 84), (128, 42), (256, 21), (512, 10))  # channels and side
MODES = {
    "kernels": ExecutionMode(bf16=True, captured=True, fused=True),
    "modules": ExecutionMode(bf16=True, captured=True),
    "compiled": ExecutionMode(bf16=True, compiled=True, captured=True),
}
STAGES: tuple[tuple[Any, str], ...] = (  # of the first step
    (TrainStep, "__init__"),
    (TrainStep, "backward"),
    (Tensor, "backward"),
    (TrainStep, "update"),
    (torch.cuda.graph, "__enter__"),
    (torch.cuda.graph, "__exit__"),
    (GraphedStep, "__init__"),
    (torch.cuda.CUDAGraph, "replay"),
)
BEGAN = time.perf_counter()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--first-step", choices=MODES, help="only the seconds until its end")
    options.add_argument(
        "--plans", type=int, help="ways to convolve that cuDNN tries; 0: its guess"
    )
    options.add_argument("--profile", action="store_true", help="kernels of a step, by their time")
    options.add_argument("--seconds", type=float, default=0.5, help="for each turn of a step")
    options.add_argument("--no-compile", action="store_true", help="leave out compiled steps")
    options.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    given = options.parse_args()
    if given.plans is not None:
        cuda_graph.N_PLANS = given.plans
    if given.first_step:
        first_step(MODES[given.first_step], given.profile, given.seconds)
        return
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    torch.manual_seed(0)
    for name in given.only:
        with section(name):
            PARTS[name](given)


@contextmanager
def section(title: str) -> Iterator[None]:
    """A failure does not stop what follows."""
    print(f"\n== {title} (after {time.perf_counter() - BEGAN:.0f} s)", flush=True)
    try:
        yield
    except Exception:
        print("".join(traceback.format_exc().splitlines(True)[-12:])[-1500:], flush=True)


# ── errors ───────────────────────────────────────────────────────────────────────────────────


def errors(_: argparse.Namespace) -> None:
    """Features and gradients of a whole network beside those of modules in float32."""
    network = build_backbone(BACKBONE, 3, 84).cuda()
    pixels = torch.randn(100, 3, 84, 84, device="cuda").to(memory_format=torch.channels_last)
    direction = torch.randn(100, 512, device="cuda")
    found = {}
    for name in ("exact", "modules", "kernels", "again"):
        copied = copy.deepcopy(network)
        torch.manual_seed(1)
        half, fused = name != "exact", name in ("kernels", "again")
        with torch.autocast("cuda", torch.bfloat16, half), kernels.enabled(fused):
            features = copied(pixels).float()
        (features * direction).sum().backward()
        gradients = torch.cat([w.grad.flatten() for w in copied.parameters() if w.grad is not None])
        found[name] = (features.detach(), gradients)
    exact = found.pop("exact")
    for name, each in found.items():
        error = [((a - b).norm() / b.norm()).item() for a, b in zip(each, exact, strict=True)]
        print(f"{name}: features {error[0]:.4f}, gradients {error[1]:.4f}")
    same = [torch.equal(a, b) for a, b in zip(found["kernels"], found["again"], strict=True)]
    print("the same bits in a second run (features, gradients):", same)


# ── times of kernels ─────────────────────────────────────────────────────────────────────────


def device_times(f: Callable[[], object], n: int) -> dict[str, tuple[float, float]]:
    """Microseconds and calls of each kernel that a call of f runs, means over n calls."""
    f()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(n):
            f()
        torch.cuda.synchronize()
    rows = found.key_averages()
    return {row.key: (row.self_device_time_total / n, row.count / n) for row in rows}


def microseconds(f: Callable[[], object], n: int = 10) -> float:
    return sum(us for us, _ in device_times(f, n).values())


def random_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).cuda()
    for tensor in (norm.weight, norm.bias):
        nn.init.normal_(tensor)
    return norm


def activation(channels: int, side: int, n: int = 100) -> Tensor:
    """With another mean and scale for each channel."""
    shape = (n, channels, side, side)
    x = torch.randn(shape, device="cuda") * torch.rand(channels, 1, 1, device="cuda")
    x += 3 * torch.randn(channels, 1, 1, device="cuda")
    x = x.to(torch.bfloat16, memory_format=torch.channels_last)
    return x.requires_grad_()


def block_times(c: int, side: int) -> dict[str, tuple[float, float]]:
    """Microseconds and counted bytes of each operation of a block, at its shape."""
    from kedge.kernels.norm_act import norm_act
    from kedge.kernels.pool_act import pool_act

    x, shortcut, norm, norm_2 = (
        activation(c, side),
        activation(c, side),
        random_norm(c),
        random_norm(c),
    )
    size, half = x.numel() * 2, side // 2
    drop_block = DropBlock().train()

    def mask() -> Any:
        return drop_block.mask((100, c, half, half), x.device)

    drop = mask()
    out = norm_act(x, norm, 0.1)
    pooled = pool_act(x, norm, 0.1, (shortcut, norm_2), drop)
    dy, d_pooled = torch.randn_like(out), torch.randn_like(pooled)
    weights = [norm.weight, norm.bias]
    others = [norm_2.weight, norm_2.bias]
    quarter = pooled.numel() * 2

    def both(f: Callable[[], Tensor], inputs: list[Tensor], d: Tensor) -> tuple[float, float]:
        """Forward, and backward as the difference to forward and backward together."""
        with torch.no_grad():
            forward = microseconds(f)
        return forward, microseconds(lambda: torch.autograd.grad(f(), inputs, d)) - forward

    norm_us = both(lambda: norm_act(x, norm, 0.1), [x, *weights], dy)
    pool_us = both(
        lambda: pool_act(x, norm, 0.1, (shortcut, norm_2), drop),
        [x, shortcut, *weights, *others],
        d_pooled,
    )
    return {
        "norm": (norm_us[0], 3 * size),
        "norm'": (norm_us[1], 5 * size),
        "pool": (pool_us[0], 4 * size + 1.5 * quarter),
        "pool'": (pool_us[1], 6 * size + 3 * quarter),
        "mask": (microseconds(mask), 5 * quarter),
    }


def times(_: argparse.Namespace) -> None:
    """In a step each block has norm twice, and pool and mask once."""
    total = 0.0
    for c, side in BLOCKS:
        found = block_times(c, side)
        total += sum(us * (2 if name.startswith("norm") else 1) for name, (us, _) in found.items())
        rates = (f"{k} {us:.0f} us {n / us / 1e6:.2f} TB/s" for k, (us, n) in found.items())
        print(f"{c:4} {side:3}: {'; '.join(rates)}")
    print(f"all of a step: {total / 1000:.2f} ms")
    from kedge.kernels.augment import fused_augment

    images = torch.randint(0, 256, (100, 3, 84, 84), dtype=torch.uint8, device="cuda")
    drawn = draw_augmentation(generator("augment", 0), 1, 100, 84).of(0, 100).to(images.device)
    a, b = (
        microseconds(lambda: fused_augment(images, drawn)),
        microseconds(lambda: augment(images, drawn)),
    )
    print(f"augmentation: {a:.0f} us, by PyTorch's operations {b:.0f} us")
    y = torch.empty(100, 64, 84, 84, device="cuda", dtype=torch.bfloat16)
    us = microseconds(lambda: y.clone())
    print(f"copying an activation: {us:.0f} us, {4 * y.numel() / us / 1e6:.2f} TB/s")


# ── whole steps ──────────────────────────────────────────────────────────────────────────────


def model_of(size: int, table: ImageTable | None = None) -> Model:
    table = synthetic_images(64, 30, size, 3) if table is None else table
    train, _ = train_and_test_pool(table, SHAPE)
    POOLS[size] = train
    return untrained_model(train, BACKBONE)


POOLS: dict[int, Any] = {}


def build_step(model: Model, method: str, mode: ExecutionMode) -> TrainStep:
    embedding = copy.deepcopy(model.embedding).eval().requires_grad_(False)
    teacher, student = replace(model, embedding=embedding), trainable_copy(model)
    return TrainStep(student, teacher, parse_method(method), 1e-3, None, {}, mode)


def timed(model: Model, method: str, mode: ExecutionMode, seconds: float) -> TimedTraining:
    began = time.perf_counter()
    step = build_step(model, method, mode)
    building = time.perf_counter() - began
    pool = POOLS[model.config.image_size]
    training = TimedTraining(model, method, pool, SHAPE, seconds, step)
    training.first_step_s += building
    return training


def first_step(mode: ExecutionMode, profiled: bool, seconds: float) -> None:
    """Seconds from built pools to the first step, with its stages, and then the time of a step.

    The commands build kernels while images are read.
    """
    began = time.perf_counter()
    torch.zeros(1, device="cuda")
    context = time.perf_counter() - began
    model, began = model_of(84), time.perf_counter()
    if mode.fused:
        kernels.build()
    torch.cuda.synchronize()
    built = time.perf_counter() - began
    with stages() as found:
        training = timed(model, "FT", mode, seconds)
    turns = [training.ms_per_step() for _ in range(3)]
    print(f"CUDA {context:.2f} s, kernels {built:.2f} s,", end=" ")
    print(f"first step {training.first_step_s:.2f} s, then", end=" ")
    print(f"{statistics.median(turns):.3f} ms a step; N_PLANS {cuda_graph.N_PLANS}")
    for name, each in found.items():
        print(f"  {name}:", " ".join(f"{one:.3f}" for one in each[:5]))
    if profiled:
        profile(training)


@contextmanager
def stages() -> Iterator[dict[str, list[float]]]:
    """Seconds of each call of what a first step consists of; some contain others."""
    found: dict[str, list[float]] = {}
    before = [(owner, name, getattr(owner, name)) for owner, name in STAGES]
    for owner, name, call in before:
        setattr(owner, name, _clocked(call, found.setdefault(f"{owner.__name__}.{name}", [])))
    try:
        yield found
    finally:
        for owner, name, call in before:
            setattr(owner, name, call)


def _clocked(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    @functools.wraps(call)
    def clocked(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **options)
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        return result

    return clocked


def losses(_: argparse.Namespace) -> None:
    """Mean losses of epochs of 60 steps of FT: classes that differ by a coarse pattern."""
    rng = torch.Generator().manual_seed(0)
    patterns = torch.rand(64, 1, 3, 7, 7, generator=rng)
    noise = torch.rand(64, 60, 3, 7, 7, generator=rng)
    coarse = F.interpolate(
        (0.35 * patterns + 0.65 * noise).flatten(0, 1), (84, 84), mode="bilinear"
    )
    labels = torch.arange(64).repeat_interleave(60)
    names = tuple(f"class {i:02}" for i in range(64))
    table = ImageTable((255 * coarse).to(torch.uint8), labels, names, "patterns")
    model = model_of(84, table)
    config = TrainConfig(SHAPE, Schedule(1, 60, 1), 0)
    for name in ("kernels", "modules"):
        step = build_step(model, "FT", MODES[name])
        runner = EpochRunner(step, POOLS[84], model.anchors, config, 1)
        found = [runner.epoch(i, progress.no_tick).cross_entropy for i in range(6)]
        print(f"{name}:", " ".join(f"{loss:.4f}" for loss in found), flush=True)


def steps(given: argparse.Namespace) -> None:
    for size in (84, 64):
        model, found = model_of(size), {}
        for name, mode in MODES.items():
            if name != "compiled" or not given.no_compile:
                for method in ("FT", "IDA"):
                    found[method, name] = timed(model, method, mode, given.seconds)
        turns = [[each.ms_per_step() for each in found.values()] for _ in range(3)]
        for (key, training), each in zip(found.items(), zip(*turns, strict=True), strict=True):
            ms, first = statistics.median(each), training.first_step_s
            print(f"{size} px, {', '.join(key)}: {ms:.3f} ms, {1e5 / ms:,.0f} images/s", end="; ")
            print(f"first step {first:.1f} s", flush=True)
        if given.profile and size == 84:
            for key, training in found.items():
                print(*key)
                profile(training)


def profile(training: TimedTraining, n_rows: int = 40) -> None:
    """The kernels of a step by their time."""
    assert training.runner.graph is not None
    graph = training.runner.graph
    graph.number.zero_()  # of the episode that is trained on
    rows = device_times(graph.graph.replay, 3)
    ordered = sorted(rows.items(), key=lambda row: -row[1][0])
    total, count = (sum(row[i] for row in rows.values()) for i in (0, 1))
    print(f"{count:.0f} kernels, {total / 1000:.3f} ms of work")
    for name, (us, calls) in ordered[:n_rows]:
        print(f"{us:7.1f} us {calls:4.0f} x {short(name)}")
    rest = sum(us for _, (us, _) in ordered[n_rows:])
    print(f"{rest:7.1f} us {sum(row[1] for _, row in ordered[n_rows:]):4.0f} x others")


def short(name: str) -> str:
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "cutlass::", "sm90_xmma_"):
        name = name.replace(noise, "")
    return name[:70]


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "errors": errors,
    "times": times,
    "losses": losses,
    "steps": steps,
}


if __name__ == "__main__":
    main()
