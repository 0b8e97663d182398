"""The Triton kernels of a training step on a GPU: errors, times, and the step beside others.

    python perf/kernels.py            # ResNet-12 of width 64 at 84 and 64 px, within three minutes

Errors are relative to modules in float64. Rates count each activation that a kernel must read or
write once. Steps take turns in one process: with kernels, with plain modules, and compiled.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import tempfile
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
BEGAN = time.perf_counter()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--first-step", choices=MODES, help="only the seconds until its end")
    options.add_argument("--seconds", type=float, default=0.5, help="for each turn of a step")
    options.add_argument("--no-compile", action="store_true", help="leave out compiled steps")
    options.add_argument("--steps-only", action="store_true", help="leave out errors and kernels")
    given = options.parse_args()
    if given.first_step:
        first_step(MODES[given.first_step])
        return
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    torch.manual_seed(0)
    for part in () if given.steps_only else (errors, step_errors, times, first_steps, losses):
        with section(part.__name__):
            part()
    modes = [name for name in MODES if name != "compiled" or not given.no_compile]
    for size, methods in ((84, ("FT", "IDA")), (64, ("FT", "IDA"))):
        with section(f"steps at {size} px"):
            steps(size, methods, modes, given.seconds)
    with section("variants"):
        variants()


@contextmanager
def section(title: str) -> Iterator[None]:
    """A failure does not stop what follows."""
    print(f"\n== {title} (after {time.perf_counter() - BEGAN:.0f} s)", flush=True)
    try:
        yield
    except Exception:
        print("".join(traceback.format_exc().splitlines(True)[-12:])[-1500:], flush=True)


# ── errors ───────────────────────────────────────────────────────────────────────────────────


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


def compare(
    compute: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: list[Tensor],
    norms: list[nn.BatchNorm2d],
) -> str:
    """Relative errors of the result, of all gradients, and of the running statistics."""
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    exact_norms = [copy.deepcopy(norm).double() for norm in norms]
    results = []
    for f, xs, ns in ((compute, inputs, norms), (reference, exact_inputs, exact_norms)):
        y = f(*xs, *ns)
        weights = [w for norm in ns for w in norm.parameters()]
        dy = torch.randn(y.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        dy = dy.to(torch.bfloat16).to(y.dtype)
        gradients = torch.autograd.grad(y, [*xs, *weights], dy)
        results.append([y, *gradients, *(b for norm in ns for b in norm.buffers())])
    found = [
        ((a.double() - b).norm() / b.double().norm().clamp(min=1e-30)).item()
        for a, b in zip(*results, strict=True)
    ]
    return " ".join(f"{error:.0e}" for error in found)


def errors() -> None:
    from kedge.kernels.augment import fused_augment
    from kedge.kernels.norm_act import norm_act
    from kedge.kernels.pool_act import pool_act

    for training in (True, False):
        for c, side in BLOCKS if training else BLOCKS[2:3]:
            x, shortcut = activation(c, side), activation(c, side)
            norm, norm_2 = random_norm(c).train(training), random_norm(c).train(training)
            half = side // 2
            drop_block = DropBlock().train()
            torch.manual_seed(0)
            drop = drop_block.mask((100, c, half, half), x.device)
            torch.manual_seed(0)
            ones = torch.ones(100, c, half, half, device="cuda", dtype=torch.float64)
            kept = drop_block(ones)
            assert drop is not None
            same = torch.equal(kept != 0, drop[0].permute(0, 3, 1, 2) != 0)
            count = int((kept != 0).sum()) == drop[1].item()

            def end(
                a: Tensor, b: Tensor, n: nn.Module, m: nn.Module, kept: Tensor = kept
            ) -> Tensor:
                return F.leaky_relu(F.max_pool2d(n(a) + m(b), 2), 0.1) * kept

            norms = [norm, norm_2]
            print(
                f"{c:4} {side:3} {'train' if training else 'eval'}: norm_act",
                compare(
                    lambda a, n: norm_act(a, n, 0.1),
                    lambda a, n: F.leaky_relu(n(a), 0.1),
                    [x],
                    norms[:1],
                ),
                "| pool_act",
                compare(
                    lambda a, b, n, m, drop=drop: pool_act(a, n, 0.1, (b, m), drop),
                    end,
                    [x, shortcut],
                    norms,
                ),
                "| mask" if same and count else "| MASK DIFFERS",
            )
    images = torch.randint(0, 256, (100, 3, 84, 84), dtype=torch.uint8, device="cuda")
    drawn = draw_augmentation(generator("augment", 0), 1, 100, 84).of(0, 100).to(images.device)
    difference = fused_augment(images, drawn) - augment(images, drawn)
    print("augmentation: largest difference", f"{difference.abs().max().item():.1e}")


def step_errors() -> None:
    """Gradients of a whole network beside those of modules in float32."""
    torch.manual_seed(0)
    network = build_backbone(BACKBONE, 3, 84).cuda()
    pixels = torch.randn(100, 3, 84, 84, device="cuda").to(memory_format=torch.channels_last)
    direction = torch.randn(100, 512, device="cuda")
    found = {}
    for name, half, fused in (
        ("exact", 0, 0),
        ("modules", 1, 0),
        ("kernels", 1, 1),
        ("again", 1, 1),
    ):
        copied = copy.deepcopy(network)
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16, bool(half)), kernels.enabled(bool(fused)):
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


def microseconds(f: Callable[[], object], n: int = 10) -> float:
    """The median of graph replays with n calls each."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):  # gradients are added up on the stream of their first use
        for _ in range(2):
            f()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(n):
            f()
    each = []
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        each.append(1000 * start.elapsed_time(end) / n)
    return statistics.median(each)


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


def times() -> None:
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


def variants() -> None:
    """Other sizes of tiles; the sum of a block's operations."""
    from kedge.kernels import common, norm_act, pool_act

    modules = (common, norm_act, pool_act)
    changes = [("", 0), ("NORM_ROWS", 16), ("NORM_ROWS", 64), ("SUM_ROWS", 32), ("SUM_ROWS", 128)]
    changes += [("POOL_ROWS", 8), ("POOL_ROWS", 32), ("N_PARTS", 128), ("N_PARTS", 512)]
    changes += [("N_PARTS", 1024)]
    for name, value in changes:
        before = {m: getattr(m, name) for m in modules if name and hasattr(m, name)}
        for module in before:
            setattr(module, name, value)
        try:
            for c, side in (BLOCKS[0], BLOCKS[2]):
                found = {k: round(us) for k, (us, _) in block_times(c, side).items()}
                print(name or "as it is", value or "", c, side, found, flush=True)
        finally:
            for module, old in before.items():
                setattr(module, name, old)
        if time.perf_counter() - BEGAN > 175:
            print("no time left")
            return


# ── whole steps ──────────────────────────────────────────────────────────────────────────────


def model_of(size: int, table: ImageTable | None = None) -> Model:
    table = synthetic_images(64, 60, size, 3) if table is None else table
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


def first_step(mode: ExecutionMode) -> None:
    """Seconds in which kernels are built, and from built pools and kernels to the first step.

    The commands build kernels while images are read.
    """
    model, began = model_of(84), time.perf_counter()
    if mode.fused:
        kernels.build()
    torch.cuda.synchronize()
    built = time.perf_counter() - began
    training = timed(model, "FT", mode, 0.1)
    print(f"kernels {built:.1f} s, first step {training.first_step_s:.1f} s")


def first_steps() -> None:
    """In fresh processes."""
    for name, caches in (("kernels", ("empty", "filled")), ("modules", ("unused",))):
        with tempfile.TemporaryDirectory() as folder:
            for cache in caches:
                environment = {**os.environ, "TRITON_CACHE_DIR": folder}
                command = [sys.executable, __file__, "--first-step", name]
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=100
                )
                result = done.stdout.strip() or done.stderr[-600:]
                print(f"{name}, Triton's cache {cache}: {result}", flush=True)


def losses() -> None:
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


def steps(size: int, methods: tuple[str, ...], modes: list[str], seconds: float) -> None:
    model = model_of(size)
    trainings: dict[tuple[str, str], TimedTraining] = {}
    for name in modes:
        for method in methods:
            if name == "compiled" and time.perf_counter() - BEGAN > 110:
                continue  # compiling takes half a minute
            training = timed(model, method, MODES[name], seconds)
            trainings[name, method] = training
            print(f"{name}, {method}: first step {training.first_step_s:.1f} s", flush=True)
    found: dict[tuple[str, str], list[float]] = {key: [] for key in trainings}
    for _ in range(3):
        for key, training in trainings.items():
            found[key].append(training.ms_per_step())
    for (name, method), each in found.items():
        ms = statistics.median(each)
        turns = " ".join(f"{one:.3f}" for one in each)
        print(f"{method} {name}: {ms:.3f} ms, {1e5 / ms:,.0f} images/s ({turns})", flush=True)
    if size == 84:
        for (name, method), training in trainings.items():
            if method == "FT" and name != "modules":
                with section(f"kernels of an FT step: {name}"):
                    profile(training)


def profile(training: TimedTraining, n_rows: int = 22) -> None:
    """The kernels of a step by their time."""
    assert training.runner.graph is not None
    graph, n = training.runner.graph, 4
    graph.number.zero_()  # of the episode that is trained on
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(n):
            graph.graph.replay()
        torch.cuda.synchronize()
    rows = {
        row.key: (row.self_device_time_total / n, row.count / n) for row in found.key_averages()
    }
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


if __name__ == "__main__":
    main()
