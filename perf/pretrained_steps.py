"""Steps and embeddings of pretrained networks on a GPU, for pretrained.py.

kedge is measured beside plain loops with timm's network, which are eager: in PyTorch's default
precision and memory layout, and in bf16 by autocast, channels-last. Their training images are on
the device before the clock starts, and are not augmented; their optimizer is PyTorch's Adam, and
they wait for the device only at the end of a turn. Images to embed come from host memory.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from baseline_loop import episode_loss, train_last_groups
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from workload import Workload

from kedge.config import BackboneConfig, TrainConfig, Trained
from kedge.data.pools import Pool, RoundData
from kedge.defaults import PRETRAINED_EPOCHS, PRETRAINED_HEAD, PRETRAINED_SCHEDULE
from kedge.methods.registry import parse_method
from kedge.models.backbones import build_backbone
from kedge.models.embedding import ModelConfig
from kedge.models.frozen_layers import FrozenLayers
from kedge.models.model import Model, new_model
from kedge.models.trainable import trainable_copy, trained_names
from kedge.training.loop import EpochRunner
from kedge.training.round import train_round
from kedge.training.speed import synchronized_time
from kedge.training.step import (
    MIN_EPISODES_TO_COMPILE,
    ExecutionMode,
    TrainStep,
    default_device,
)
from kedge.utils.progress import no_tick

TURNS = 3  # the median counts
TRAINED_GROUPS = 3  # timm counts the final convolution of EfficientNet-lite0 to the last block
LOOP_BATCH = 256  # images that a loop embeds at a time
BATCHES = (64, 256, 500)  # at which kedge's embedding is measured besides its own
PRECISIONS = ("fp32", "bf16")  # of the loops; on a GPU convolutions of "fp32" are in TF32
ROUND_EPISODES = PRETRAINED_EPOCHS[0][1]  # of an epoch
N_KERNELS, NAME_LENGTH = 12, 160  # of a profile
LITE0 = ("efficientnet-lite0", "efficientnet_lite0")


@dataclass(frozen=True)
class Case:
    """A network, what of it trains, and the method."""

    backbone: str
    timm: str  # timm's network, for the loops
    train: Trained
    method: str = "FT"
    channels_first: bool = False  # kedge's network in PyTorch's default memory layout


CASES = {
    "default": Case(*LITE0, "last"),
    "update": Case(*LITE0, "last", "IDA+"),
    "all": Case(*LITE0, "all"),
    "all-channels-first": Case(*LITE0, "all", channels_first=True),
    "vit": Case("timm:vit_small_patch16_224", "vit_small_patch16_224", "all"),
}


class ChannelsFirst(nn.Module):
    """A network in PyTorch's default memory layout, whatever layout its images have."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.contiguous())


class KedgeTraining:
    """Steps as a round takes them: the outputs of the frozen layers are computed once."""

    def __init__(self, case: Case, work: Workload, steps: int, compiled: bool) -> None:
        self.case, self.work, self.steps, self.n_epochs = case, work, steps, 0
        device = default_device()
        self.start = start_model(case, work)
        trained = trained_names(self.start, case.train)
        self.data = RoundData(0, *Pool.isolate(*work.pools))
        layers, short, data = FrozenLayers.of(self.start, trained), self.start, self.data
        self.frozen_images_per_s = None
        if layers is not None:
            layers.map_pool(data.val, 0)  # warm-up
            began = synchronized_time(device)
            mapped = layers.map_round(data, 0)
            seconds = synchronized_time(device) - began
            assert mapped is not None, "the outputs of the frozen layers take too much memory"
            self.frozen_images_per_s = layers.n_embedded(data) / seconds
            data, short = mapped, layers.shorten(self.start)
        pool, method = data.train, parse_method(case.method)
        method = method.for_classes(len(self.start.classes), len(pool.classes))
        config = method.apply_schedule(self._config(1, steps))
        schedule = config.schedule
        n_episodes = MIN_EPISODES_TO_COMPILE if compiled else 1
        began = synchronized_time(device)
        self.step = TrainStep(
            trainable_copy(short, trained),
            short,
            method,
            schedule.lr,
            None,
            {},
            ExecutionMode.best(short.embedding, device, n_episodes),
            schedule.ema,
        )
        self.runner = EpochRunner(self.step, pool, short.anchors, config, 1, layers)
        self.train()
        self.first_epoch_s = synchronized_time(device) - began  # with the capture of the step

    def _config(self, epochs: int, steps: int) -> TrainConfig:
        schedule = replace(
            PRETRAINED_SCHEDULE, train=self.case.train, epochs=epochs, episodes=steps
        )
        return TrainConfig(self.work.shape, schedule, 0)

    def train(self) -> float:
        """Seconds of a step, the sampling of its epoch included."""
        began = synchronized_time(self.start.device)
        self.runner.epoch(self.n_epochs, no_tick)
        self.n_epochs += 1
        return (synchronized_time(self.start.device) - began) / self.steps

    def embed(self, rows: Tensor, batch: int | None = None, ahead: bool = False) -> float:
        """Seconds for an image, from host memory to its features on the device. With `ahead`, a
        thread reads the next batches into pinned memory."""
        model = self.start
        batches: Iterable[Tensor] = map(
            self.work.table.take, rows.split(batch or model.embed_batch_size)
        )
        if ahead:
            batches = read_ahead(batches, model.device)
        began = synchronized_time(model.device)
        model.embedding.embed_batches(len(rows), batches, no_tick)
        return (synchronized_time(model.device) - began) / len(rows)

    def round_seconds(self, epochs: int) -> float:
        """Seconds of a first round as `kedge train` does it, with validation and anchors."""
        start = replace(self.start, classes=(), anchors=self.start.anchors[:0])
        began = synchronized_time(start.device)
        train_round(start, self.data, parse_method("FT"), self._config(epochs, ROUND_EPISODES))
        return synchronized_time(start.device) - began


def read_ahead(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The batches on the device; a thread reads up to three of them before they are needed."""

    def read(source: Iterator[Tensor]) -> Tensor | None:
        batch = next(source, None)
        return batch if batch is None or device.type == "cpu" else batch.pin_memory()

    source = iter(batches)
    with ThreadPoolExecutor(1) as reader:
        pending = deque(reader.submit(read, source) for _ in range(3))
        while (batch := pending.popleft().result()) is not None:
            pending.append(reader.submit(read, source))
            yield batch.to(device, non_blocking=True)


def start_model(case: Case, work: Workload) -> Model:
    """The network with random weights on the default device. Its anchors are noise."""
    pool = work.pools[0]
    config = ModelConfig(BackboneConfig(case.backbone), PRETRAINED_HEAD, 3, work.table.image_size)
    model = new_model(config, pool, 0)
    if case.channels_first:
        model.embedding.backbone = ChannelsFirst(model.embedding.backbone)
    anchors = torch.randn(len(pool.classes), model.config.n_features)
    anchors = torch.nn.functional.normalize(anchors, dim=1)
    model = replace(model, classes=tuple(pool.classes), anchors=anchors).to(default_device())
    model.embedding.eval().requires_grad_(False)
    return model


class TimmLoop:
    """A plain loop with timm's network, of which the same layers train. BatchNorms are frozen, as
    kedge's are."""

    def __init__(self, case: Case, work: Workload, precision: str) -> None:
        self.work, self.device, self.bf16 = work, default_device(), precision == "bf16"
        self.layout = torch.channels_last if self.bf16 else torch.contiguous_format
        backbone = BackboneConfig(f"timm:{case.timm}")
        network = build_backbone(backbone, 3, work.table.image_size).eval()
        if case.train == "last":
            train_last_groups(network, TRAINED_GROUPS)
        self.network = network.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload]
        weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(weights, lr=1e-4)
        ways, each = work.shape.ways[1], work.images_per_class
        rows = [of_class[:each] for of_class in work.pools[0].class_rows[:ways]]
        self.images = self._pixels(torch.cat(rows))

    def _pixels(self, rows: Tensor) -> Tensor:
        images = self.work.table.take(rows).to(self.device)
        return images.float().div(255).sub(0.45).div(0.22).contiguous(memory_format=self.layout)

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def train(self, steps: int) -> float:
        """Seconds of a step."""
        ways, shots = self.work.shape.ways[1], self.work.shape.shots[1]
        began = synchronized_time(self.device)
        for _ in range(steps):
            with self._autocast():
                loss = episode_loss(self.network, self.images, ways, shots, 1.0)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return (synchronized_time(self.device) - began) / steps

    @torch.inference_mode()
    def embed(self, rows: Tensor) -> float:
        """Seconds for an image, from host memory to its features on the device."""
        began = synchronized_time(self.device)
        for part in rows.split(LOOP_BATCH):
            with self._autocast():
                self.network(self._pixels(part))
        return (synchronized_time(self.device) - began) / len(rows)


def measure(
    work: Workload, names: list[str], steps: int, epochs: int, compiled: bool, profiled: bool
) -> Iterator[dict[str, Any]]:
    """The record of each case, as soon as it has been measured."""
    rows = torch.arange(len(work.table)).repeat(2)
    for name in names:
        case = CASES[name]
        kedge = KedgeTraining(case, work, steps, compiled)
        record: dict[str, Any] = {
            "case": name,
            **asdict(case),
            "execution": asdict(kedge.step.mode),
            "first_epoch_s": kedge.first_epoch_s,
            "frozen_layers_images_per_s": kedge.frozen_images_per_s,
        }
        compared = case.method == "FT" and not case.channels_first
        loops = {p: TimmLoop(case, work, p) for p in PRECISIONS} if compared else {}
        for loop in loops.values():  # warm-up
            loop.train(2)
        of_loops = {p: partial(loop.train, steps) for p, loop in loops.items()}
        record["training"] = rates({"kedge": kedge.train, **of_loops}, work.images_per_step)
        if case.method == "FT":  # of an update nothing differs in what follows
            of_loops = {p: partial(loop.embed, rows) for p, loop in loops.items()}
            record["embedding"] = rates({"kedge": partial(kedge.embed, rows), **of_loops}, 1)
            record["embed_batch_size"] = kedge.start.embed_batch_size
        if compared:
            each = {
                f"{n}{', read ahead' if ahead else ''}": partial(kedge.embed, rows, n, ahead)
                for ahead in (False, True)
                for n in BATCHES
            }
            record["embedding_by_batch"] = rates(each, 1)
            record["round_s"] = kedge.round_seconds(epochs)
            record["round_steps"] = epochs * ROUND_EPISODES
        if profiled:
            record["kernels"] = {"training": kernels(kedge.train, steps)}
            if compared:
                record["kernels"]["embedding"] = kernels(lambda: kedge.embed(rows), len(rows))  # noqa: B023
        print(summary(record), file=sys.stderr, flush=True)
        yield record


def summary(record: dict[str, Any]) -> str:
    """A line of the rates of a case."""
    parts = []
    for name in ("training", "embedding", "embedding_by_batch"):
        if name in record:
            each = ", ".join(f"{k} {v:,.0f}" for k, v in record[name]["images_per_s"].items())
            parts.append(f"{name}: {each}")
    for name in ("first_epoch_s", "frozen_layers_images_per_s", "round_s"):
        if record.get(name) is not None:
            parts.append(f"{name} {record[name]:,.1f}")
    return f"{record['case']}: {'; '.join(parts)}"


def rates(each: Mapping[str, Callable[[], float]], n_images: int) -> dict[str, Any]:
    """Images per second: the medians of all turns, and every turn. Each function returns seconds
    for so many images."""
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for call in each.values():
        call()  # warm-up
    for _ in range(TURNS):
        for name, call in each.items():
            seconds[name].append(call())
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    return {
        "images_per_s": {name: n_images / median for name, median in medians.items()},
        "seconds_each": seconds,
    }


def kernels(call: Callable[[], object], n: int) -> list[list[Any]]:
    """The slowest kernels of a call: name, microseconds for each of n, share of all kernels."""
    gpu = default_device().type == "cuda"
    activities = [ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        call()
    time_of = "self_device_time_total" if gpu else "self_cpu_time_total"
    times = sorted(((getattr(e, time_of), e.key) for e in profiler.key_averages()), reverse=True)
    total = sum(time for time, _ in times) or 1.0
    top = [[key[:NAME_LENGTH], time / n, time / total] for time, key in times[:N_KERNELS]]
    return [["all", total / n, 1.0], *top]


def table(record: dict[str, Any]) -> str:
    """The rates as Markdown, the date and the machine."""
    machine = "{date}, PyTorch {torch}, Python {python}, GPU: {gpu}, {cores} cores."
    lines = [
        "| network | trained | method | kedge | loop, bf16 | loop, fp32 | × loop | "
        "embedding: kedge | loop, bf16 | loop, fp32 | first round, s |",
        f"| :--- | :--- | :--- |{' ---: |' * 8}",
    ]
    for row in record["cases"]:
        name = f"{row['backbone']}{', channels-first' if row['channels_first'] else ''}"
        cells = [name, row["train"], row["method"]]
        training = row["training"]["images_per_s"]
        embedding = row.get("embedding", {"images_per_s": {}})["images_per_s"]
        names = ("kedge", "bf16", "fp32")
        cells += [_number(training.get(name)) for name in names]
        cells.append(f"{training['kedge'] / training['bf16']:.1f}" if "bf16" in training else "–")
        cells += [_number(embedding.get(name)) for name in names]
        cells.append(f"{row['round_s']:.1f}" if "round_s" in row else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", machine.format(**record["environment"])])


def _number(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"
