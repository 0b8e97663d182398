"""The libraries that peers.py runs beside kedge: prototypical networks as each documents them.

Data loaders, networks, classifiers and `evaluate` are the library's own; the optimizer and the
order of the calls are those of the example that a class names.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from kedge.config import BackboneConfig, EpisodeShape
from kedge.models.backbones import build_backbone
from kedge.training.step import default_device

OWN = "own"  # the library's own ResNet-12, instead of one of kedge's backbones
TIME_LIMIT_S = 900  # of a row
MAX_TIMED_TESTS = 400  # the time of more test episodes is scaled from these
_torchvision_operators = None


@dataclass(frozen=True)
class RowConfig:
    """The settings of a row."""

    library: str
    network: str  # OWN or the name of a backbone of kedge
    tuned: bool  # otherwise as the library's documentation does it; kedge has one way only
    folder: str  # with train/CLASS/FILE and test/CLASS/FILE
    image_size: int = 84  # of the files, in pixels
    width: int = 64  # of a backbone of kedge
    shape: EpisodeShape = field(default_factory=EpisodeShape)
    warm_up: int = 20  # episodes
    episodes: int = 200  # in each turn, which ends after them
    test_episodes: int = 2000
    seconds: float = TIME_LIMIT_S  # a turn of training and a test of a peer end after them, too

    @property
    def images_per_episode(self) -> int:
        return self.shape.ways[1] * (self.shape.shots[1] + self.shape.n_query)


class Peer(ABC):
    """A library with its data loaders, its network and its optimizer."""

    packages: ClassVar[tuple[str, ...]]  # whose versions are reported
    network: nn.Module
    workers: int
    began: float  # the time after its modules were imported
    max_tests = MAX_TIMED_TESTS

    @abstractmethod
    def __init__(self, config: RowConfig) -> None: ...

    @abstractmethod
    def train(self, n: int) -> Iterator[float]:
        """Take a step on each of n episodes; yields the loss of each when it is done."""

    @abstractmethod
    def test(self, n: int) -> tuple[int, float]:
        """How many of n test episodes there was time for, and their seconds from files to
        accuracies."""


class EasyFsl(Peer):
    """easyfsl 1.5 as in its notebook `episodic_training`: 12 workers, SGD, deterministic cuDNN.

    Tuned: a worker for each core, cuDNN may choose its algorithms, and test images are embedded
    once, as in the notebook `inference_with_extracted_embeddings`.
    """

    packages = ("easyfsl", "torchvision")

    def __init__(self, config: RowConfig) -> None:
        import_torchvision()
        accept_data_source()
        from easyfsl.methods import PrototypicalNetworks
        from easyfsl.modules import feat_resnet12

        self.began = time.perf_counter()
        torch.backends.cudnn.deterministic = not config.tuned
        self.config, self.device = config, default_device()
        self.workers = n_cores() if config.tuned else 12
        if config.tuned:
            self.max_tests = config.test_episodes  # they cost little: each image is embedded once
        self.network = feat_resnet12() if config.network == OWN else kedge_backbone(config)
        self.model = PrototypicalNetworks(self.network).to(self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-4
        )
        self.images = {part: self._images(part) for part in ("train", "test")}

    def _images(self, part: str) -> Any:
        """The images of a part, which easyfsl finds by a JSON file."""
        from easyfsl.datasets import EasySet

        folders = class_folders(self.config, part)
        names = {"class_names": [f.name for f in folders], "class_roots": [str(f) for f in folders]}
        with tempfile.TemporaryDirectory() as folder:
            specs = Path(folder) / f"{part}.json"
            specs.write_text(json.dumps(names), encoding="utf-8")
            return EasySet(specs, image_size=self.config.image_size, training=part == "train")

    def _episodes(self, images: Any, n: int) -> DataLoader:
        from easyfsl.samplers import TaskSampler

        shape = self.config.shape
        sampler = TaskSampler(images, shape.ways[1], shape.shots[1], shape.n_query, n)
        return DataLoader(
            images,
            batch_sampler=sampler,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            collate_fn=sampler.episodic_collate_fn,
        )

    def train(self, n: int) -> Iterator[float]:
        self.model.train()
        for support, support_labels, queries, labels, _ in self._episodes(self.images["train"], n):
            self.optimizer.zero_grad()
            self.model.process_support_set(support.to(self.device), support_labels.to(self.device))
            loss = F.cross_entropy(self.model(queries.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
            yield loss.item()

    def test(self, n: int) -> tuple[int, float]:
        from easyfsl.utils import evaluate

        if self.config.tuned:
            return n, self._test_on_features(n)
        episodes = Timed(self._episodes(self.images["test"], n + 1), self.config.seconds)
        evaluate(self.model, episodes, device=str(self.device), use_tqdm=False)
        return episodes.timed, episodes.seconds

    def _test_on_features(self, n: int) -> float:
        from easyfsl.datasets import FeaturesDataset
        from easyfsl.methods import PrototypicalNetworks
        from easyfsl.utils import evaluate, predict_embeddings

        began = time.perf_counter()
        self.network.eval()
        batches = DataLoader(
            self.images["test"],
            batch_size=128,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        embeddings = predict_embeddings(batches, self.network, device=str(self.device))
        episodes = self._episodes(FeaturesDataset.from_dataframe(embeddings), n)
        evaluate(PrototypicalNetworks(nn.Identity()), episodes, device="cpu", use_tqdm=False)
        return time.perf_counter() - began


class Learn2Learn(Peer):
    """learn2learn 0.2 as its `examples/vision/protonet_miniimagenet.py` uses it: no workers, Adam.

    The example reads arrays from a pickle; here torchvision's ImageFolder reads the files, and
    the transforms are those of `benchmarks/mini_imagenet_benchmark.py` with augmentation
    ("lee2019"). Tuned: a worker for each core. Tests are without gradients, which the example
    leaves on.
    """

    packages = ("learn2learn", "torchvision")

    def __init__(self, config: RowConfig) -> None:
        import_torchvision()
        import learn2learn

        self.began = time.perf_counter()
        self.library = learn2learn
        self.config, self.device = config, default_device()
        self.workers = n_cores() if config.tuned else 0
        own = config.network == OWN
        self.network = (
            learn2learn.vision.models.ResNet12Backbone() if own else kedge_backbone(config)
        )
        self.network.to(self.device)
        self.classifier = learn2learn.nn.PrototypicalClassifier()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.images = {part: self._images(part) for part in ("train", "test")}

    def _images(self, part: str) -> Any:
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        normalize = transforms.Normalize(
            [120.39586422 / 255, 115.59361427 / 255, 104.54012653 / 255],
            [70.68188272 / 255, 68.27635443 / 255, 72.54505529 / 255],
        )
        steps = [transforms.ToTensor(), normalize]
        if part == "train":
            steps = [
                transforms.RandomCrop(self.config.image_size, padding=8),
                transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4),
                transforms.RandomHorizontalFlip(),
                *steps,
            ]
        images = ImageFolder(str(Path(self.config.folder) / part), transforms.Compose(steps))
        # Otherwise it would decode every image once, to ask for its label.
        labels = dict(enumerate(images.targets))
        return self.library.data.MetaDataset(images, indices_to_labels=labels)

    def _episodes(self, part: str, n: int) -> DataLoader:
        """A loader of n tasks; of one new task, again and again, if n is -1."""
        from learn2learn.data.transforms import KShots, LoadData, NWays, RemapLabels

        images, shape = self.images[part], self.config.shape
        steps = [
            NWays(images, shape.ways[1]),
            KShots(images, shape.shots[1] + shape.n_query),
            LoadData(images),
            RemapLabels(images),
        ]
        tasks = self.library.data.Taskset(images, task_transforms=steps, num_tasks=n)
        pin = self.device.type == "cuda"
        return DataLoader(tasks, pin_memory=pin, shuffle=True, num_workers=self.workers)

    def train(self, n: int) -> Iterator[float]:
        self.network.train()
        for batch in self._train_episodes(n):
            logits, labels = self._logits(batch)
            loss = F.cross_entropy(logits, labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item()

    def _train_episodes(self, n: int) -> Iterator[Any]:
        if self.config.tuned:  # workers load ahead only where the loader has many tasks
            yield from self._episodes("train", n)
        else:
            loader = self._episodes("train", -1)
            for _ in range(n):
                yield next(iter(loader))

    def _logits(self, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and labels of the queries; the loader adds a dimension in front."""
        images, labels = (part.squeeze(0).to(self.device) for part in batch)
        n_way, n_shot = self.config.shape.ways[1], self.config.shape.shots[1]
        labels, order = labels.sort()
        features = self.network(images[order]).unflatten(0, (n_way, -1))
        labels = labels.unflatten(0, (n_way, -1))
        support, queries = (
            part.flatten(0, 1) for part in (features[:, :n_shot], features[:, n_shot:])
        )
        self.classifier.fit_(support, labels[:, :n_shot].flatten())
        return self.classifier(queries), labels[:, n_shot:].flatten()

    @torch.no_grad()
    def test(self, n: int) -> tuple[int, float]:
        self.network.eval()
        episodes, right = Timed(self._episodes("test", n + 1), self.config.seconds), 0.0
        for batch in episodes:
            logits, labels = self._logits(batch)
            right += (logits.argmax(1) == labels).float().mean().item()
        return episodes.timed, episodes.seconds


PEERS: dict[str, type[Peer]] = {"easyfsl": EasyFsl, "learn2learn": Learn2Learn}


class Timed:
    """A loader that takes the time from its first batch on: starting workers does not count. It
    ends after so many seconds, or with its last batch."""

    def __init__(self, loader: DataLoader, limit: float) -> None:
        self.loader, self.limit = loader, limit
        self.timed, self.seconds = 0, 0.0  # batches after the first one, and their time

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        first = next(batches)
        began = time.perf_counter()
        yield first
        for batch in batches:
            yield batch  # and is taken up again when the batch has been used
            self.timed, self.seconds = self.timed + 1, time.perf_counter() - began
            if self.seconds > self.limit:
                return


def kedge_backbone(config: RowConfig) -> nn.Module:
    """A backbone of kedge in PyTorch's default memory layout, which the peers use."""
    network = build_backbone(BackboneConfig(config.network, config.width), 3, config.image_size)
    return network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def class_folders(config: RowConfig, part: str) -> list[Path]:
    return sorted(f for f in (Path(config.folder) / part).iterdir() if f.is_dir())


def n_cores() -> int:
    linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1


def import_torchvision() -> None:
    """Import torchvision, also where its compiled operators are for another build of PyTorch: it
    asks for two of them on import, and nothing here uses them."""
    global _torchvision_operators
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        _torchvision_operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            _torchvision_operators.define(schema)
        importlib.import_module("torchvision")


def accept_data_source() -> None:
    """Let a Sampler be built as easyfsl 1.5 does it: with the argument data_source=None, which
    PyTorch had deprecated, and 2.13 no longer takes."""

    def init(self: Sampler, data_source: None = None) -> None: ...

    if Sampler.__init__ is object.__init__:
        Sampler.__init__ = init  # type: ignore[assignment,method-assign]
