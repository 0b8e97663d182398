"""The plain loop: episodic training and testing as they are usually written.

Images are files. A DataLoader decodes those of each episode with Pillow in some worker processes
and changes them one by one, as torchvision does; the network computes in PyTorch's default
precision and memory layout; the loss is read after every step; a test goes episode by episode.

It runs in a process of its own, so that none of kedge's settings reach it: `serve` reads a line of
JSON, does what it says, and answers with one.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from kedge.config import BackboneConfig, from_dict
from kedge.models.backbones import build_backbone


@dataclass(frozen=True)
class Loop:
    """What the loop is told before it starts."""

    folder: str  # with train/CLASS/FILE and test/CLASS/FILE
    backbone: BackboneConfig
    n_channels: int
    image_size: int
    padding: int  # of a crop
    n_way: int
    n_shot: int
    n_query: int
    temperature: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str
    workers: int


class ImageFiles(Dataset):
    """An image is decoded when it is asked for."""

    def __init__(
        self, folder: Path, n_channels: int, change: Callable[[Image.Image], Image.Image] | None
    ) -> None:
        self.mode, self.change = "RGB" if n_channels == 3 else "L", change
        self.files: list[Path] = []
        self.of_class: list[list[int]] = []
        for each in sorted(folder.iterdir()):
            names = sorted(each.iterdir())
            self.of_class.append(list(range(len(self.files), len(self.files) + len(names))))
            self.files += names

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Float[Tensor, "c h w"]:
        with Image.open(self.files[index]) as file:
            image = file.convert(self.mode)
        return to_tensor(image if self.change is None else self.change(image))


@dataclass(frozen=True)
class RandomChange:
    """Crop from the padded image, mirror, and jitter the colours of those that have some."""

    padding: int

    def __call__(self, image: Image.Image) -> Image.Image:
        wide, high = image.size
        image = ImageOps.expand(image, self.padding)
        left, top = (random.randint(0, 2 * self.padding) for _ in range(2))
        image = image.crop((left, top, left + wide, top + high))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if image.mode == "RGB":
            kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
            for kind in random.sample(kinds, 3):
                image = kind(image).enhance(random.uniform(0.6, 1.4))
        return image


def to_tensor(image: Image.Image) -> Float[Tensor, "c h w"]:
    pixels = torch.from_numpy(np.array(image))
    pixels = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
    return pixels.float().div(255)


class EpisodeSampler:
    """The images of an episode, class by class, support before queries."""

    def __init__(self, of_class: list[list[int]], n_way: int, n_images: int) -> None:
        self.of_class, self.n_way, self.n_images = of_class, n_way, n_images
        self.n_episodes = 1

    def __len__(self) -> int:
        return self.n_episodes

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.n_episodes):
            classes = random.sample(self.of_class, self.n_way)
            yield [i for images in classes for i in random.sample(images, self.n_images)]


class Network(nn.Module):
    """Normalised images to features, in PyTorch's default memory layout."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.backbone = backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.backbone((images - self.mean) / self.std)


def scores(
    support: Float[Tensor, "k s d"], queries: Float[Tensor, "n d"], temperature: float
) -> Float[Tensor, "n k"]:
    """Negative squared distances to the mean of each class."""
    prototypes = support.mean(1)
    return -(queries[:, None] - prototypes[None]).pow(2).sum(2) / temperature


def episode_loss(
    network: nn.Module, images: Float[Tensor, "b c h w"], n_way: int, n_shot: int, t: float
) -> Float[Tensor, ""]:
    features = network(images).view(n_way, len(images) // n_way, -1)
    n_query = features.shape[1] - n_shot
    logits = scores(features[:, :n_shot], features[:, n_shot:].flatten(0, 1), t)
    return F.cross_entropy(logits, answers(n_way, n_query, images.device))


def answers(n_way: int, n_query: int, device: torch.device) -> Int64[Tensor, " n"]:
    return torch.arange(n_way, device=device).repeat_interleave(n_query)


class PlainLoop:
    def __init__(self, told: Loop) -> None:
        self.told, self.device = told, torch.device(told.device)
        torch.manual_seed(0)
        backbone = build_backbone(told.backbone, told.n_channels, told.image_size)
        mean, std = (torch.tensor(values)[:, None, None] for values in (told.mean, told.std))
        self.network = Network(backbone, mean, std).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.train_loader = self._loader("train", RandomChange(told.padding))
        self.test_loader = self._loader("test", None)

    def _loader(self, part: str, change: RandomChange | None) -> DataLoader:
        told = self.told
        images = ImageFiles(Path(told.folder) / part, told.n_channels, change)
        sampler = EpisodeSampler(images.of_class, told.n_way, told.n_shot + told.n_query)
        return DataLoader(
            images,
            batch_sampler=sampler,
            num_workers=told.workers,
            persistent_workers=told.workers > 0,  # starting them again is not counted
            pin_memory=self.device.type == "cuda",
        )

    def train(self, n_episodes: int) -> tuple[float, float]:
        """Seconds, and the mean loss."""
        self.network.train()
        return self._timed(self.train_loader, n_episodes, self._train_one)

    def _train_one(self, images: Float[Tensor, "b c h w"]) -> float:
        told = self.told
        loss = episode_loss(self.network, images, told.n_way, told.n_shot, told.temperature)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test(self, n_episodes: int) -> tuple[float, float]:
        """Seconds, and the mean accuracy in per cent."""
        self.network.eval()
        return self._timed(self.test_loader, n_episodes, self._test_one)

    def _test_one(self, images: Float[Tensor, "b c h w"]) -> float:
        told = self.told
        episode = images.unflatten(0, (told.n_way, -1))
        support = self.network(episode[:, : told.n_shot].flatten(0, 1))
        queries = self.network(episode[:, told.n_shot :].flatten(0, 1))
        logits = scores(support.unflatten(0, (told.n_way, -1)), queries, told.temperature)
        right = logits.argmax(1) == answers(told.n_way, told.n_query, self.device)
        return 100 * right.float().mean().item()

    def _timed(
        self, loader: DataLoader, n_episodes: int, one: Callable[[Tensor], float]
    ) -> tuple[float, float]:
        """One more goes before, uncounted: an epoch starts with nothing decoded yet."""
        loader.batch_sampler.n_episodes = n_episodes + 1  # type: ignore[union-attr]
        total, began = 0.0, 0.0
        for i, images in enumerate(loader):
            value = one(images.to(self.device))
            if i == 0:
                began = time.perf_counter()
            else:
                total += value
        return time.perf_counter() - began, total / n_episodes


def serve() -> None:
    """First a line with the loop's settings; then, in each, what to do and for how many episodes.

    Ends with the pipe, be it by the death of whoever started it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it says when it ends
    warnings.simplefilter("ignore")  # Python 3.12 warns of a DataLoader's fork
    replies, sys.stdout = sys.stdout, sys.stderr  # what else is printed must not get among them
    loop = PlainLoop(from_dict(Loop, json.loads(sys.stdin.readline())))
    for line in sys.stdin:
        what, n_episodes = json.loads(line)
        timed = loop.train(n_episodes) if what == "train" else loop.test(n_episodes)
        print(json.dumps(timed), file=replies, flush=True)
