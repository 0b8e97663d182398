"""A baseline: episodic training and testing as they are usually written.

Images are files. A DataLoader decodes those of each episode with Pillow in worker processes and
augments them one by one, as torchvision does; the network computes in PyTorch's default precision
and memory layout; the loss is read after every step; a test goes episode by episode.

compare.py runs this file in a process of its own, so that none of kedge's settings reach it. It
reads requests from its standard input, one line of JSON each, and answers with one line.
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

from kedge.config import BackboneConfig
from kedge.models.backbones import build_backbone
from kedge.models.trainable import layer_groups
from kedge.utils.config_io import from_dict


@dataclass(frozen=True)
class BaselineConfig:
    """The settings of the loop: the first line of its input."""

    folder: str  # with train/CLASS/FILE and test/CLASS/FILE
    backbone: BackboneConfig
    n_channels: int
    image_size: int
    padding: int  # pixels around an image before the random crop
    n_way: int
    n_shot: int
    n_query: int
    temperature: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str
    workers: int
    trained_groups: int | None = None  # the last groups of layers that train; None: all


class ImageFiles(Dataset):
    """Images that are decoded when they are indexed."""

    def __init__(
        self, folder: Path, n_channels: int, augment: Callable[[Image.Image], Image.Image] | None
    ) -> None:
        self.mode, self.augment = "RGB" if n_channels == 3 else "L", augment
        self.files: list[Path] = []
        self.class_indices: list[list[int]] = []
        for each in sorted(folder.iterdir()):
            names = sorted(each.iterdir())
            self.class_indices.append(list(range(len(self.files), len(self.files) + len(names))))
            self.files += names

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Float[Tensor, "c h w"]:
        with Image.open(self.files[index]) as file:
            image = file.convert(self.mode)
        return to_tensor(image if self.augment is None else self.augment(image))


@dataclass(frozen=True)
class RandomAugmentation:
    """Random crop of the padded image, random flip and, in colour, colour jitter."""

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
    """Yields the image indices of an episode, class by class, support before queries."""

    def __init__(self, class_indices: list[list[int]], n_way: int, n_images: int) -> None:
        self.class_indices, self.n_way, self.n_images = class_indices, n_way, n_images
        self.n_episodes = 1

    def __len__(self) -> int:
        return self.n_episodes

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.n_episodes):
            classes = random.sample(self.class_indices, self.n_way)
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


def train_last_groups(backbone: nn.Module, n_groups: int) -> None:
    """Let only the last groups of layers train, as timm groups them."""
    groups = layer_groups(backbone)[-n_groups:]
    trained = {name for group in groups for name in group}
    for name, weight in backbone.named_parameters():
        weight.requires_grad_(name in trained)


def neg_sq_dist(
    support: Float[Tensor, "k s d"], queries: Float[Tensor, "n d"], temperature: float
) -> Float[Tensor, "n k"]:
    """Negative squared distances to the class means, divided by the temperature."""
    prototypes = support.mean(1)
    return -(queries[:, None] - prototypes[None]).pow(2).sum(2) / temperature


def episode_loss(
    network: nn.Module, images: Float[Tensor, "b c h w"], n_way: int, n_shot: int, t: float
) -> Float[Tensor, ""]:
    features = network(images).view(n_way, len(images) // n_way, -1)
    n_query = features.shape[1] - n_shot
    logits = neg_sq_dist(features[:, :n_shot], features[:, n_shot:].flatten(0, 1), t)
    return F.cross_entropy(logits, query_labels(n_way, n_query, images.device))


def query_labels(n_way: int, n_query: int, device: torch.device) -> Int64[Tensor, " n"]:
    return torch.arange(n_way, device=device).repeat_interleave(n_query)


class BaselineLoop:
    """Trains and tests a prototypical network, and times both."""

    def __init__(self, config: BaselineConfig) -> None:
        self.config, self.device = config, torch.device(config.device)
        torch.manual_seed(0)
        backbone = build_backbone(config.backbone, config.n_channels, config.image_size)
        if config.trained_groups is not None:
            train_last_groups(backbone, config.trained_groups)
        mean, std = (torch.tensor(values)[:, None, None] for values in (config.mean, config.std))
        self.network = Network(backbone, mean, std).to(self.device)
        weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(weights, lr=1e-3)
        self.train_loader = self._loader("train", RandomAugmentation(config.padding))
        self.test_loader = self._loader("test", None)

    def _loader(self, part: str, augment: RandomAugmentation | None) -> DataLoader:
        config = self.config
        images = ImageFiles(Path(config.folder) / part, config.n_channels, augment)
        sampler = EpisodeSampler(images.class_indices, config.n_way, config.n_shot + config.n_query)
        return DataLoader(
            images,
            batch_sampler=sampler,
            num_workers=config.workers,
            persistent_workers=config.workers > 0,  # their start is not part of the time
            pin_memory=self.device.type == "cuda",
        )

    def train(self, n_episodes: int) -> tuple[float, float]:
        """Returns seconds and the mean loss."""
        self.network.train()
        return self._timed(self.train_loader, n_episodes, self._train_one)

    def _train_one(self, images: Float[Tensor, "b c h w"]) -> float:
        config = self.config
        loss = episode_loss(self.network, images, config.n_way, config.n_shot, config.temperature)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test(self, n_episodes: int) -> tuple[float, float]:
        """Returns seconds and the mean accuracy in %."""
        self.network.eval()
        return self._timed(self.test_loader, n_episodes, self._test_one)

    def _test_one(self, images: Float[Tensor, "b c h w"]) -> float:
        config = self.config
        episode = images.unflatten(0, (config.n_way, -1))
        support = self.network(episode[:, : config.n_shot].flatten(0, 1))
        queries = self.network(episode[:, config.n_shot :].flatten(0, 1))
        logits = neg_sq_dist(support.unflatten(0, (config.n_way, -1)), queries, config.temperature)
        right = logits.argmax(1) == query_labels(config.n_way, config.n_query, self.device)
        return 100 * right.float().mean().item()

    def _timed(
        self, loader: DataLoader, n_episodes: int, one: Callable[[Tensor], float]
    ) -> tuple[float, float]:
        """The first episode is not timed: nothing has been decoded ahead for it."""
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
    """Read the settings, then one request per line, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    warnings.simplefilter("ignore")  # Python 3.12 warns about the fork of a DataLoader
    replies, sys.stdout = sys.stdout, sys.stderr  # other output must not mix with the replies
    loop = BaselineLoop(from_dict(BaselineConfig, json.loads(sys.stdin.readline())))
    for line in sys.stdin:
        request, n_episodes = json.loads(line)
        result = loop.train(n_episodes) if request == "train" else loop.test(n_episodes)
        print(json.dumps(result), file=replies, flush=True)


if __name__ == "__main__":
    serve()
