"""`kedge speed`: what it counts, what it compares, and that both sides do the same work."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from kedge import speed
from kedge.cli.speed import Speed, show
from kedge.config import BackboneConfig, EpisodeShape
from kedge.data.augment import Augmentation, padding
from kedge.errors import KedgeError
from kedge.methods.registry import parse_method
from kedge.models.model import Model
from kedge.speed import (
    beside,
    growth,
    limits,
    ours,
    plain,
)
from kedge.speed.limits import best_matrix_product, flops_per_image
from kedge.speed.plain import PlainLoop
from kedge.speed.subject import Subject, noise
from kedge.training.step import (
    EpisodeBatch,
    ExecutionMode,
    TrainStep,
)
from kedge.utils.progress import silent

SHAPE = EpisodeShape(3, 2, 4)
SMALL = BackboneConfig("conv4", 4)
CPU = torch.device("cpu")
Kedge = Any  # of conftest.py, which cannot be imported


@pytest.fixture(scope="module")
def grey() -> Subject:
    return Subject(noise(5, 8, 16, 1), SMALL, SHAPE)


@pytest.fixture(scope="module")
def colour() -> Subject:
    return Subject(noise(4, 8, 20, 3), SMALL, SHAPE)


@pytest.fixture
def loop(grey: Subject) -> Iterator[plain.Loop]:
    with beside.files_of(grey) as folder:
        yield beside.loop_of(grey, grey.start(CPU), folder, workers=0)


# ── the command ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def record(kedge: Kedge, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """As the real command writes it, in seconds."""
    out = tmp_path_factory.mktemp("speed") / "speed.json"
    options = ["--n-way", "3", "--n-shot", "2", "--n-query", "4", "--width", "4", "--workers", "1"]
    quick = ["--noise", "5x8", "--image-size", "16", "--seconds", "0.05", "--format", "json"]
    ended = kedge("speed", *quick, *options, "--out", out)
    assert ended.rc == 0, ended.err
    assert out.read_text(encoding="utf-8") == ended.out
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_the_record_says_what_was_measured_and_where(record: dict[str, Any]) -> None:
    assert record["device"] == "cpu"
    assert record["network"] == {"backbone": "conv4", "width": 4}
    assert record["episode"] == {"n_way": 3, "n_shot": 2, "n_query": 4}
    assert record["images"]["trained"] == record["images"]["tested"] == [5, 40]
    assert record["images"]["image_size"] == 16
    assert record["images_per_step"] == 18
    assert record["kedge"]["pace"]["bf16"] is False
    assert record["plain"]["workers"] == 1
    assert {"torch", "cpu", "gpu", "cores", "commit"} <= record["environment"].keys()


def test_rates_follow_from_the_median_turn(record: dict[str, Any]) -> None:
    parts = [record["kedge"][m] for m in ("FT", "IDA")]
    parts += [record["plain"][m] for m in ("as_it_comes", "with_settings")]
    for part in parts:
        ms = sorted(part["ms_per_step_each"])
        assert len(ms) == 5
        assert part["ms_per_step"] == ms[2] > 0
        assert math.isclose(part["episodes_per_s"], 1000 / ms[2])
        assert math.isclose(part["images_per_s"], 18_000 / ms[2])
        assert part["episodes_per_turn"] >= 4
    both, forward = (record["flops_per_image"][k] for k in ("forward_and_backward", "forward"))
    for part, flops in zip(parts, (both, both + forward), strict=False):
        assert math.isclose(part["tflops"], flops * part["images_per_s"] / 1e12)
        assert math.isclose(part["part_of_limit"], part["tflops"] / record["limit"]["tflops"])
        assert part["first_step_s"] >= 0
    assert record["kedge"]["peak_memory"]["resident_mb"] > 10


def test_ratios_follow_from_the_parts(record: dict[str, Any]) -> None:
    kedge, ratio = record["kedge"], record["ratio"]
    assert ratio["IDA_over_FT"] == kedge["IDA"]["ms_per_step"] / kedge["FT"]["ms_per_step"]
    for name in ("as_it_comes", "with_settings"):
        loop = record["plain"][name]
        assert ratio[name] == {
            "training": loop["ms_per_step"] / kedge["FT"]["ms_per_step"],
            "evaluation": loop["evaluation_s"] / kedge["evaluation_s"],
        }
        for part in (loop, kedge):
            assert part["evaluation_s"] == sorted(part["evaluation_s_each"])[1]


class Clockwork(beside.PlainProcess):
    """A loop that takes 20 ms for each episode, whatever it does."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, what: str, n_episodes: int) -> float:
        self.asked.append(n_episodes)
        return 0.02 * n_episodes


def test_times_are_those_of_as_many_episodes_on_both_sides(
    grey: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain loop does fewer test episodes, and its time is scaled to kedge's 2000."""
    start, loop = grey.start(CPU), Clockwork()
    training = ours.Training(start, "FT", grey.trained, SHAPE, 0.01)
    training.n_episodes = 10
    monkeypatch.setattr(training, "_epoch", lambda _: 0.3)
    monkeypatch.setattr(ours, "evaluation_seconds", lambda *_: 5.0)
    record: dict[str, Any] = {"kedge": {}, "plain": {}, "limit": {"tflops": 1.0}}
    trainings, setting = {"FT": training, "IDA": training}, speed.Setting(seconds=30.0)
    speed._take_turns(record, grey, start, trainings, {"as_it_comes": loop}, setting, silent)
    speed._compare(record, ["as_it_comes"])
    assert record["kedge"]["FT"]["ms_per_step"] == pytest.approx(30)
    theirs = record["plain"]["as_it_comes"]
    assert theirs["ms_per_step"] == pytest.approx(20)
    assert theirs["evaluation_s"] == pytest.approx(0.02 * 2000)
    assert theirs["evaluation_scaled_from"] == loop.asked[-1] == 100
    ratio = record["ratio"]["as_it_comes"]
    assert ratio == {"training": pytest.approx(2 / 3), "evaluation": pytest.approx(8)}


def test_the_table_shows_the_ratios_and_how_time_grows(record: dict[str, Any]) -> None:
    grown = {"against": "ways", "cost": "FT step, ms", "sizes": [5, 20], "costs": [1.0, 4.0]}
    console = Console(width=200, file=io.StringIO())
    show(console, {**record, "growth": [{**grown, "exponent": 1.0}]})
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    ratio = record["ratio"]["as_it_comes"]
    for shown in (
        "conv4 of width 4, 16 px, 3-way 2-shot, 18 images a step; cpu, fp32",
        f"{ratio['training']:.1f} times as fast as the plain loop in training",
        f"{ratio['evaluation']:.0f} times in evaluation",
        "kedge's settings for threads and memory",
        "num_workers=1, fp32",
        "5 · 20",
    ):
        assert shown in text


MISTAKES: dict[str, tuple[Speed, str]] = {
    "no data": (Speed("gone"), "gone: nothing is there"),
    "both": (Speed("drawings", noise="5x8"), "leave out 'drawings' or --noise"),
    "no numbers": (Speed(noise="many"), "'many'.*such as 64x600"),
    "no image": (Speed(noise="64x0"), "such as 64x600"),
    "tiny": (Speed(noise="5x8", image_size=8), "16 to 4096 px"),
    "no time": (Speed(seconds=0.0), "--seconds is 0: it must be above 0"),
    "workers": (Speed(workers=-1), "--workers must be from 0"),
    "range": (Speed(episode=EpisodeShape((3, 5))), "--n-way: .*give one number"),
    "few classes": (Speed(noise="4x20", image_size=16), "has 4 classes.*--n-way"),
    "few images": (Speed(noise="5x19", image_size=16), "19 images.*--n-shot"),
    "backbone": (
        Speed(noise="5x20", image_size=16, backbone=BackboneConfig("vgg", 4)),
        "no backbone 'vgg'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_a_sentence(name: str) -> None:
    command, sentence = MISTAKES[name]
    with pytest.raises(KedgeError, match=sentence):
        command.run(Console())


def test_a_record_is_never_overwritten(kedge: Kedge, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    out.write_text("kept")
    assert "another --out" in kedge("speed", "--out", out).sentence
    assert out.read_text() == "kept"


# ── both do the same work ────────────────────────────────────────────────────────────────────


def obvious_loss(features: Tensor, k: int, s: int, temperature: float) -> float:
    """Cross-entropy of squared distances to class means, number by number."""
    episode = features.detach().double().reshape(k, len(features) // k, -1).tolist()
    means = [[sum(column) / s for column in zip(*way[:s], strict=True)] for way in episode]
    losses = []
    for answer, way in enumerate(episode):
        for query in way[s:]:
            scores = [
                -sum((a - b) ** 2 for a, b in zip(query, mean, strict=True)) / temperature
                for mean in means
            ]
            most = max(scores)
            total = math.log(sum(math.exp(score - most) for score in scores)) + most
            losses.append(total - scores[answer])
    return sum(losses) / len(losses)


def kedges_loss(start: Model, images: Tensor, shape: EpisodeShape) -> float:
    """Of its step in fp32, where nothing is moved, mirrored or coloured."""
    student = replace(start, embedding=start.embedding.train().requires_grad_(True))
    step = TrainStep(student, start, parse_method("FT"), 1e-3, None, {}, ExecutionMode())
    b, pad = len(images), padding(images.shape[-1])
    middle = torch.full((b,), pad)
    how = Augmentation(middle, middle, torch.zeros(b, dtype=torch.bool), torch.ones(b, 3))
    task = EpisodeBatch(images, how, torch.arange(shape.ways[1]), shape.shots[1])
    return float(step(task, None, None)[0])


@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_the_plain_loop_and_kedge_compute_the_same_loss(
    kind: str, request: pytest.FixtureRequest
) -> None:
    subject: Subject = request.getfixturevalue(kind)
    start = subject.start(CPU)
    rows = torch.tensor([8 * c + i for c in (2, 0, 3) for i in (5, 1, 0, 7, 2, 3)])
    images = subject.table.take(rows)
    as_tensors = torch.stack(
        [
            plain.to_tensor(Image.fromarray(np.squeeze(image.permute(1, 2, 0).numpy())))
            for image in images
        ]
    )
    backbone = start.embedding.backbone
    network = plain.Network(
        nn.Sequential(backbone), start.embedding.mean, start.embedding.std
    ).train()
    t = start.head.temperature
    theirs = plain.episode_loss(network, as_tensors, 3, 2, t)
    features = start.embedding.train()(images.float() / 255)
    expected = obvious_loss(features, 3, 2, t)
    assert float(theirs.detach()) == pytest.approx(expected, rel=1e-4)
    assert kedges_loss(start, images, SHAPE) == pytest.approx(expected, rel=1e-4)


def test_files_hold_the_images(loop: plain.Loop, grey: Subject) -> None:
    for part, pool in (("train", grey.trained), ("test", grey.tested)):
        files = plain.ImageFiles(Path(loop.folder) / part, 1, None)
        assert [len(images) for images in files.of_class] == pool.counts.tolist()
        for i in (0, 7, 8, 39):
            pixels = grey.table.take(pool.rows[i : i + 1])[0]
            assert torch.equal(255 * files[i], pixels.float())


def test_the_plain_loop_learns_and_tests(loop: plain.Loop) -> None:
    running = PlainLoop(loop)
    before = [weight.clone() for weight in running.network.parameters()]
    seconds, loss = running.train(2)
    assert seconds > 0
    assert 0 < loss < 100
    after = list(running.network.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(weight.is_contiguous() for weight in after)
    seconds, accuracy = running.test(3)
    assert seconds > 0
    assert 0 <= accuracy <= 100


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_changed_image_is_a_crop_of_the_padded_one(mode: str) -> None:
    random.seed(0)
    change = plain.RandomChange(2)
    seen = set()
    for _ in range(60):
        image = Image.new(mode, (16, 16), "white")
        pixels = np.asarray(change(image).convert("L"))
        assert pixels.shape == (16, 16)
        dark = pixels == 0
        seen.add((int(dark.all(1).sum()), int(dark.all(0).sum())))
    assert seen <= set(itertools.product(range(3), repeat=2))  # rows and columns of the border
    assert len(seen) > 4


def test_an_episode_has_distinct_images_class_by_class() -> None:
    of_class = [list(range(10 * c, 10 * c + 10)) for c in range(6)]
    sampler = plain.EpisodeSampler(of_class, 4, 5)
    sampler.n_episodes = 20
    episodes = list(sampler)
    assert len(episodes) == len(sampler) == 20
    for episode in episodes:
        assert len(set(episode)) == 20
        ways = [{i // 10 for i in episode[k : k + 5]} for k in range(0, 20, 5)]
        assert all(len(way) == 1 for way in ways)
        assert len(set.union(*ways)) == 4


def test_a_plain_loop_that_stops_is_told_in_a_sentence(
    loop: plain.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "START", "input(); raise ValueError('no memory.')")
    process = beside.PlainProcess(loop, {})
    with pytest.raises(KedgeError, match=r"plain loop .* has stopped: ValueError: no memory\.$"):
        process("train", 1)
    process.close()
    process.close()


def test_the_plain_loop_takes_no_module_of_the_current_folder(
    loop: plain.Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    process = beside.PlainProcess(loop, {})
    assert process("train", 1) > 0
    process.close()


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────


def convolutions(widths: list[int], side: int) -> Iterator[tuple[int, int, int, int]]:
    """Of a ResNet-12: channels in and out, side of the kernel, side of the map."""
    for before, width in itertools.pairwise(widths):
        for i in range(3):
            yield (width if i else before), width, 3, side
        yield before, width, 1, side
        side //= 2


@pytest.mark.parametrize(("width", "side"), [(64, 84), (4, 32)])
def test_flops_are_those_of_the_convolutions(width: int, side: int) -> None:
    shape = EpisodeShape(2, 1, 1)
    subject = Subject(noise(2, 2, side, 3), BackboneConfig("resnet12", width), shape)
    start = subject.start(CPU)
    forward, both = flops_per_image(start.embedding, 3, side)
    layers = list(convolutions([3, width, 2 * width, 4 * width, 8 * width], side))
    each = [2 * a * b * k * k * s * s for a, b, k, s in layers]
    assert forward == sum(each)
    first = each[0] + each[3]  # the image itself needs no gradient
    assert both == 3 * sum(each) - first
    if width == 64:
        assert 14e9 < both < 15.5e9
    assert not any(p.is_meta for p in start.embedding.parameters())


def test_the_limit_is_a_rate_of_products() -> None:
    limit = best_matrix_product(CPU, False, 0.03)
    assert limit["precision"] == "fp32"
    assert limit["side"] in (512, 1024, 2048)
    assert 1e-4 < float(limit["tflops"]) < 1000


def test_a_product_of_matrices_is_two_operations_for_each_of_its_terms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticking = itertools.count(step=0.25)  # so long does a product take, by this clock
    monkeypatch.setattr(limits, "time", SimpleNamespace(perf_counter=lambda: next(ticking)))
    monkeypatch.setattr(limits, "SIDES", {"cpu": (4, 16, 8)})
    found = best_matrix_product(CPU, False, 1.0)
    assert found == {"tflops": 2 * 16**3 / 0.25 / 1e12, "side": 16, "precision": "fp32"}


def test_the_exponent_of_a_power_is_found() -> None:
    sizes = [2.0, 8.0, 64.0]
    assert growth.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert growth.exponent(sizes, [7.0, 7.0, 7.0]) == pytest.approx(0)


def test_growth_is_measured_on_every_axis(grey: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sizes in {"CLASSES": (4, 8), "WAYS": (2, 4), "TIMES": (1, 2)}.items():
        monkeypatch.setattr(growth, name, sizes)
    monkeypatch.setattr(growth, "SIDES", (1.0, 1.5))
    monkeypatch.setattr(growth, "TURNS", 1)
    ticks: list[int] = []
    rows = growth.Growth(grey, CPU, 0.001, ticks.append).measure()
    assert [(row["against"], row["sizes"]) for row in rows[::2]] == [
        ("classes", [4, 8]),
        ("images per class", [6, 12]),
        ("image size, px", [16, 24]),
        ("ways", [2, 4]),
        ("anchors", [64, 128]),
    ]
    for row in rows:
        assert len(row["costs"]) == 2
        assert row["exponent"] == pytest.approx(growth.exponent(row["sizes"], row["costs"]))
    assert sum(ticks) == 10


def test_noise_is_the_same_every_time_and_no_two_images_are_alike() -> None:
    table, again = noise(4, 8, 20, 3), noise(4, 8, 20, 3)
    rows = torch.arange(32)
    assert torch.equal(table.take(rows), again.take(rows))
    assert len(table.take(rows).flatten(1).unique(dim=0)) == 32


def test_noise_weighs_as_much_as_photographs() -> None:
    """miniImageNet's files of 84 px have about 3 to 6 kB."""
    sizes = []
    with beside.files_of(Subject(noise(2, 4, 84, 3), SMALL, EpisodeShape(2, 1, 1))) as folder:
        sizes = [file.stat().st_size for file in folder.rglob("*.jpg")]
    assert len(sizes) == 16
    assert 2500 < sum(sizes) / len(sizes) < 7500
