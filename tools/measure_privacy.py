"""Measure what a model file reveals of single images: docs/privacy.json, and the page's tables.

    python tools/measure_privacy.py FLOWERS [CACHE]     # measure: 25 minutes on 2 cores
    python tools/measure_privacy.py --render            # write the tables of docs/privacy.md only

FLOWERS is Flowers-102 with 40 photographs of each kind (Nilsback and Zisserman, 2008), as a folder
or a .zip; drawings are the embedded ones. Models and features are kept in the folder CACHE.

Inversion finds pixels whose features are the stored mean (Mahendran and Vedaldi, Understanding deep
image representations by inverting them, CVPR 2015), or maps the mean to pixels by a regression that
was fitted to images of other classes (a linear form of Dosovitskiy and Brox, Inverting visual
representations with convolutional networks, CVPR 2016). Membership compares the likelihoods of an
image and the stored mean if the image is a part of it and if not (Homer et al., Resolving
individuals contributing trace amounts of DNA to highly complex mixtures, PLoS Genetics 2008;
Sankararaman et al., Genomic privacy and limits of individual detection in a pool, Nature Genetics
2009), and through weights the losses of trained and other images (Yeom et al., Privacy risk in
machine learning, CSF 2018).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import kedge
from kedge.config import BackboneConfig, HeadConfig
from kedge.data.drawings import load_drawings
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.embedding import eval_mode
from kedge.models.model import Model
from kedge.models.start import given_network, start_model
from kedge.utils.seeding import generator

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[1]
RESULT, PAGE = ROOT / "docs" / "privacy.json", ROOT / "docs" / "privacy.md"
PICTURE = ROOT / "docs" / "figures" / "privacy-drawings.png"
SIZES = (1, 5, 20, 100)  # images of a class
NOISES = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
DRAWS = 10  # of the images of each class that are members
N_REFERENCE = 10  # further images of each class that an attacker has
SHRINKAGE = 0.3  # of the covariance of a class towards a multiple of the identity
DELTA = 1e-5
N_TRAINED, N_VALIDATED = 40, 12  # classes
N_DRAWINGS, N_FLOWERS = 40, 8  # classes whose images are reconstructed
STEPS, RESTARTS, SCREENING = {"drawings": 300, "flowers": 120}, 3, 0.15
TOTAL_VARIATION = {"drawings": 0.05, "flowers": 0.02}
COMPARED_SIDE = {"drawings": 28, "flowers": 32}  # px: larger images are reduced to it
RIDGE = 0.1  # of the decoder, relative to the mean variance of the features


@dataclass(frozen=True)
class Subject:
    """A network, the images of many classes, and their features by class."""

    name: str
    model: Model
    table: ImageTable
    features: Array  # classes × images × d; every class has as many images
    join: int  # classes that are joined where one has too few images

    @property
    def per_class(self) -> int:
        return self.features.shape[1]

    def classes_of(self, n: int) -> tuple[Array, NDArray[np.int64]]:
        """Features and rows of classes that have more than n images: groups × images × d."""
        rows = np.arange(len(self.table)).reshape(-1, self.per_class)
        if 2 * n <= self.per_class:
            return self.features, rows
        order = generator("privacy", "joined", self.name).permutation(len(rows))
        order = order[: len(order) // self.join * self.join]
        joined = [each[order].reshape(-1, self.join * self.per_class, *each.shape[2:])
                  for each in (self.features, rows)]  # fmt: skip
        return joined[0], joined[1]


# ── networks and features ────────────────────────────────────────────────────────────────────


def prepare(flowers: str, cache: Path) -> tuple[list[Subject], list[Subject]]:
    """Subjects whose networks have not seen the images, and subjects that were trained on them."""
    fresh, trained = [], []
    for name, table, n_members, join in (
        ("drawings", load_drawings(), 50, 2),
        ("flowers", open_images(flowers, 160, 3), 20, 5),
    ):
        order = generator("privacy", name).permutation(len(table.classes))
        used, val = np.split(order[: N_TRAINED + N_VALIDATED], [N_TRAINED])
        others = order[N_TRAINED + N_VALIDATED :]
        model = trained_model(cache / f"{name}.kedge", table, used, val, n_members)
        trained.append(subject(name, model, table, used, join, cache / f"{name}-trained.npy"))
        if name == "flowers":  # the network as it comes has seen no flower of these kinds
            others, model = order, frozen_model(table)
        fresh.append(subject(name, model, table, others, join, cache / f"{name}.npy"))
    return fresh, trained


# The short training of the drawings keeps the measurement within minutes.
OPTIONS: dict[str, dict[str, Any]] = {
    "drawings": {"epochs": 10, "episodes": 60},
    "flowers": {"epochs": 10},
}


def trained_model(
    file: Path, table: ImageTable, used: Array, val: Array, n_members: int
) -> Model:
    """A model trained by `kedge train` on the first images of some classes."""
    if not file.exists():
        members = torch.cat([table.rows_of(table.classes[i])[:n_members] for i in sorted(used)])
        rows = Pool.all("validation", table, [table.classes[i] for i in sorted(val)]).rows
        kedge.train(table.subset(members), val=table.subset(rows.sort().values), **OPTIONS[file.stem]).save(file)
    return Model.load(file)


def frozen_model(table: ImageTable) -> Model:
    config = BackboneConfig("efficientnet-lite0")
    network = given_network(config, None, 160)
    return start_model(config, HeadConfig("unit", 1 / 64), Pool.all("x", table), 0, network)


def subject(
    name: str, model: Model, table: ImageTable, chosen: Any, join: int, cache: Path
) -> Subject:
    pool = Pool.all("all", table, [table.classes[i] for i in sorted(chosen)])
    kept = table.subset(pool.rows.sort().values)
    if not cache.exists():
        np.save(cache, model.embed(kept.images).numpy())
    features = np.load(cache).astype(np.float64).reshape(len(pool.classes), -1, model.config.n_features)
    return Subject(name, model, kept, features, join)


# ── statistics ───────────────────────────────────────────────────────────────────────────────


def mean_and_interval(values: Any, digits: int = 3) -> dict[str, Any]:
    """The mean over classes with its 95% interval (bootstrap over classes)."""
    values = np.asarray(values, np.float64)
    drawn = generator("privacy", "bootstrap").integers(0, len(values), (4000, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
    mean, low, high = (round(float(each), digits) for each in (values.mean(), low, high))
    return {"mean": mean, "low": low, "high": high, "n": len(values)}


def auroc(members: Array, others: Array) -> float:
    """The probability that a member has a higher score than another image."""
    ranked = np.sort(others)
    below, upto = (np.searchsorted(ranked, members, side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(others))


def found_at(members: Array, others: Array, rate: float = 0.01) -> float:
    """The share of members with a higher score than all but this share of other images."""
    return float((members > np.quantile(others, 1 - rate)).mean())


# ── membership ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Attack:
    """Compares the likelihoods that an image is a part of a stored mean and that it is not, where
    images of a class are normally distributed with a covariance that all classes share."""

    axes: Array  # eigenvectors of the covariance
    variances: Array

    @classmethod
    def fit(cls, reference: Array) -> Attack:
        """From images, classes × images × d, none of which is a member."""
        centred = (reference - reference.mean(1, keepdims=True)).reshape(-1, reference.shape[2])
        covariance = centred.T @ centred / (len(reference) * (reference.shape[1] - 1))
        values, axes = np.linalg.eigh(covariance)
        return cls(axes, (1 - SHRINKAGE) * values.clip(0) + SHRINKAGE * values.mean())

    def scores(self, images: Array, mean: Array, reference: Array, n: int, noise: float) -> Array:
        """Log-likelihood ratios up to a constant. `noise` is its variance in each direction."""
        centre, n_reference = reference.mean(0), len(reference)
        u, v = (images - centre) @ self.axes, (mean - centre) @ self.axes
        a, shared = self.variances * (1 + 1 / n_reference), self.variances / n_reference
        b = self.variances * (1 / n + 1 / n_reference) + noise
        b = b + 1e-6 * self.variances  # a mean of one image without noise is the image
        result = np.zeros(len(images))
        for c, sign in ((shared, 1), (shared + self.variances / n, -1)):
            squares = (b * u**2 - 2 * c * u * v + a * v**2) / (a * b - c**2)
            result += sign * squares.sum(1) / 2
        return result


def membership(subject: Subject, n: int, length: float = 0.0, joined: bool = False) -> dict[str, Any]:
    """How well members of stored means of n images are told from other images of their classes.
    `length` is that of the noise, relative to the features."""
    images = subject.classes_of(100 if joined else n)[0]
    n_classes, per_class, d = images.shape
    n_tested = min(20, per_class - n - N_REFERENCE)
    noise = (length * feature_length(subject.features)) ** 2 / d
    draws: list[tuple[Array, ...]] = []
    for draw in range(DRAWS):
        rng = generator("privacy", "membership", subject.name, n, draw)
        order = rng.permuted(np.tile(np.arange(per_class), (n_classes, 1)), axis=1)
        shuffled = np.take_along_axis(images, order[:, :, None], 1)
        used, tested, reference = np.split(shuffled[:, : n + n_tested + N_REFERENCE], [n, n + n_tested], 1)
        attack = Attack.fit(reference)
        for k in range(n_classes):
            mean = used[k].mean(0) + rng.normal(0, noise**0.5, d)
            pair = (used[k][:n_tested], tested[k])
            near = [-np.square(z - mean).sum(1) for z in pair]
            ratio = [attack.scores(z, mean, reference[k], n, noise) for z in pair]
            draws.append((*near, *ratio))
    by_class = [draws[k::n_classes] for k in range(n_classes)]
    columns = {"distance": 0, "likelihood": 2}
    result: dict[str, Any] = {"images": n, "noise": length}
    for name, i in columns.items():
        values = [np.mean([auroc(d[i], d[i + 1]) for d in each]) for each in by_class]
        result[name] = mean_and_interval(values)
    pooled = [np.concatenate([d[i] for d in draws]) for i in (2, 3)]
    result["found at 1%"] = round(found_at(pooled[0], pooled[1]), 3)
    return result


def feature_length(features: Array) -> float:
    """Root mean square length of features."""
    return float(np.square(features).sum(-1).mean() ** 0.5)


def membership_through_weights(subject: Subject, n: int) -> dict[str, Any]:
    """The same for the images that a network was trained on."""
    images, model = subject.features, subject.model
    used, tested, reference = np.split(images, [n, subject.per_class - N_REFERENCE], 1)
    anchors = model.anchors_of(subject.table.classes).double().numpy()
    attack = Attack.fit(reference)

    def losses(z: Array, means: Array) -> Array:
        logits = model.head.logits(*(torch.from_numpy(each).float() for each in (z.reshape(-1, z.shape[2]), means)))
        targets = torch.arange(len(z)).repeat_interleave(z.shape[1])
        return F.cross_entropy(logits, targets, reduction="none").double().numpy().reshape(z.shape[:2])

    scores: dict[str, Callable[[Array], Array]] = {
        "weights, loss": lambda z: -losses(z, reference.mean(1)),
        "anchor, distance": lambda z: -np.square(z - anchors[:, None]).sum(2),
        "anchor, likelihood": lambda z: np.stack(
            [attack.scores(z[k], anchors[k], reference[k], n, 0.0) for k in range(len(z))]
        ),
    }
    result: dict[str, Any] = {"images": n, "classes": len(images)}
    for name, score in scores.items():
        members, others = score(used), score(tested)
        pairs = zip(members, others, strict=True)
        result[name] = mean_and_interval([auroc(a, b) for a, b in pairs])
        result[name]["found at 1%"] = round(found_at(members.ravel(), others.ravel()), 3)
    right = (losses(tested, reference.mean(1)) < np.log(2)).mean()
    result["accuracy"] = round(100 * float(right), 1)
    return result


# ── inversion ────────────────────────────────────────────────────────────────────────────────


def reconstruct(subject: Subject, means: Tensor) -> Tensor:
    """Pixels whose features come near these means, by gradient descent from several starts; the
    best starts continue."""
    name, config, n = subject.name, subject.model.config, len(means)
    shape = (config.n_channels, config.image_size, config.image_size)
    seeded = torch.Generator().manual_seed(0)
    best_start, best_loss = torch.empty(n, *shape), torch.full((n,), torch.inf)
    for _ in range(RESTARTS):
        coarse = torch.randn(n, shape[0], 7, 7, generator=seeded)
        start = F.interpolate(coarse, shape[1:], mode="bicubic")
        start, loss = descend(subject, start, means, int(SCREENING * STEPS[name]))
        better = loss < best_loss
        best_start[better], best_loss[better] = start[better], loss[better]
    return descend(subject, best_start, means, STEPS[name])[0].sigmoid()


def descend(subject: Subject, start: Tensor, means: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.01)
    scale = means.square().sum(1)
    final = torch.empty(len(x))
    with eval_mode(subject.model.embedding):
        for _ in range(steps):
            optimizer.zero_grad()
            for rows in torch.arange(len(x)).split(64):
                pixels = x[rows].sigmoid()
                error = (subject.model.embedding(pixels) - means[rows]).square().sum(1) / scale[rows]
                variation = sum(pixels.diff(dim=k).abs().mean((1, 2, 3)) for k in (2, 3))
                loss = error + TOTAL_VARIATION[subject.name] * variation
                loss.sum().backward()
                final[rows] = loss.detach()
            optimizer.step()
            schedule.step()
    return x.detach(), final


def decoder(features: Array, pixels: Array) -> Callable[[Array], Array]:
    """A ridge regression from features to pixels."""
    z_mean, x_mean = features.mean(0), pixels.mean(0)
    z = features - z_mean
    gram = z.T @ z
    gram[np.diag_indices(len(gram))] += RIDGE * gram.diagonal().mean()
    weights = np.linalg.solve(gram, z.T @ (pixels - x_mean))
    return lambda given: (given - z_mean) @ weights + x_mean


def reduced(images: Tensor, side: int) -> Array:
    """Images as rows of pixels, at the size at which they are compared."""
    floats = images.float() / (255 if images.dtype == torch.uint8 else 1)
    return F.adaptive_avg_pool2d(floats, side).flatten(1).double().numpy()


def correlations(a: Array, b: Array) -> Array:
    """Between each row of one and each row of the other."""
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-9) for x in (a, b))
    return a @ b.T


def inversion(subject: Subject, n_classes: int) -> tuple[list[dict[str, Any]], list[Array]]:
    """How much reconstructions from means resemble the images of these means, for each size; and
    for means of one image the images and both reconstructions."""
    side, plans = COMPARED_SIDE[subject.name], []
    for n in SIZES:
        features, rows = subject.classes_of(n)
        rng = generator("privacy", "inversion", subject.name, n)
        groups = rng.permutation(len(features))[:n_classes]
        orders = [rng.permutation(features.shape[1]) for _ in groups]
        means = np.stack([features[g][o[:n]].mean(0) for g, o in zip(groups, orders, strict=True)])
        others = np.delete(np.arange(len(features)), groups)
        pixels = reduced(subject.table.take(torch.from_numpy(rows[others].ravel())), side)
        decode = decoder(features[others].reshape(len(pixels), -1), pixels)
        plans.append((n, rows[groups], orders, means, decode(means)))
    started = torch.from_numpy(np.concatenate([plan[3] for plan in plans])).float()
    by_gradient = reduced(reconstruct(subject, started), side).reshape(len(SIZES), n_classes, -1)
    results, shown = [], list[Array]()
    for (n, rows, orders, _, decoded), gradient in zip(plans, by_gradient, strict=True):
        measured: dict[str, list[Array]] = {"gradient": [], "decoder": [], "average": []}
        for k, order in enumerate(orders):
            pixels = reduced(subject.table.take(torch.from_numpy(rows[k][order])), side)
            guesses = np.stack([gradient[k], decoded[k], pixels[n:].mean(0)])
            for name, r in zip(measured, correlations(guesses, pixels), strict=True):
                measured[name].append(np.array([r[:n].max(), r[n : 2 * n].max()]))
            if n == 1:
                shown.append(np.stack([pixels[0], gradient[k], decoded[k]]))
        result: dict[str, Any] = {"images": n}
        for name, pairs in measured.items():
            near, other = np.array(pairs).T
            result[name] = {
                "used": mean_and_interval(near),
                "unused": mean_and_interval(other),
                "difference": mean_and_interval(near - other),
                "nearest is used": mean_and_interval(100 * (near > other), 1),
            }
        results.append(result)
    return results, shown


# ── noise ────────────────────────────────────────────────────────────────────────────────────


def naming(subject: Subject, n: int, length: float) -> dict[str, Any]:
    """Accuracy in % of naming by means of n images with noise, over draws of the noise; the first
    images are the members, as those of a trained network are."""
    means, tested = subject.features[:, :n].mean(1), subject.features[:, n:]
    scale = length * feature_length(subject.features) / means.shape[1] ** 0.5
    shares = []
    for draw in range(DRAWS):
        rng = generator("privacy", "noise", subject.name, draw)
        noisy = means + scale * rng.normal(size=means.shape)
        distances = np.square(noisy).sum(1) - 2 * tested @ noisy.T
        shares.append(100 * float((distances.argmin(2) == np.arange(len(means))[:, None]).mean()))
    accuracy = {"accuracy": round(float(np.mean(shares)), 1), "sd": round(float(np.std(shares)), 2)}
    return {"noise": length, **accuracy, "classes": len(means), "tested": tested[..., 0].size}


def epsilon(length: float, n: int, d: int) -> float | None:
    """ε of the mean of n features of length 1, one of which may be another, with DELTA (Balle and
    Wang, Improving the Gaussian mechanism for differential privacy, ICML 2018)."""
    if length == 0:
        return None
    ratio = 2 / n / (length / d**0.5)  # sensitivity / standard deviation in each direction

    def delta(e: float) -> float:
        a, b = ratio / 2 - e / ratio, -ratio / 2 - e / ratio
        # e^ε Φ(b) in logarithms, since e^ε overflows
        log_b = torch.special.log_ndtr(torch.tensor(b, dtype=torch.float64)).item()
        return NormalDist().cdf(a) - math.exp(e + log_b)

    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    return round(high, 1)


# ── all of it ────────────────────────────────────────────────────────────────────────────────


def measure(flowers: str, cache: Path) -> dict[str, Any]:
    cache.mkdir(parents=True, exist_ok=True)
    fresh, trained = prepare(flowers, cache)
    result: dict[str, Any] = {"membership": {}, "weights": {}, "inversion": {}, "noise": {}}
    for each, tuned in zip(fresh, trained, strict=True):
        name, n_members = each.name, 50 if each.name == "drawings" else 20
        print(name, "membership", flush=True)
        result["membership"][name] = [membership(each, n) for n in SIZES]
        result["membership"][name].append(membership(each, 20, joined=True) | {"joined": True})
        result["weights"][name] = membership_through_weights(tuned, n_members)
        print(name, "noise", flush=True)
        result["noise"][name] = [
            {
                "noise": length,
                "frozen": naming(each, 20, length) if name == "flowers" else None,
                "trained": naming(tuned, n_members, length),
                "membership": {n: membership(each, n, length)["likelihood"] for n in (1, 20, 100)},
                "epsilon": {n: epsilon(length, n, each.features.shape[2]) for n in (20, 100)}
                if name == "flowers"
                else None,
            }
            for length in NOISES
        ]
        print(name, "inversion", flush=True)
        n_classes = N_DRAWINGS if name == "drawings" else N_FLOWERS
        result["inversion"][name], shown = inversion(each, n_classes)
        if name == "drawings":
            draw(shown[:12])
    return result


def draw(shown: Sequence[Array]) -> None:
    """Drawings above what was reconstructed from their features, by both attacks."""
    columns = [np.concatenate([normalized(row).reshape(28, 28) for row in each]) for each in shown]
    pixels = np.pad(np.stack(columns), ((0, 0), (2, 2), (2, 2)), constant_values=1)
    picture = Image.fromarray((255 * np.concatenate(list(pixels), 1)).astype(np.uint8))
    size = (2 * picture.width, 2 * picture.height)
    picture.resize(size, Image.Resampling.NEAREST).save(PICTURE, optimize=True)


def normalized(row: Array) -> Array:
    row = (row - row.min()) / max(float(np.ptp(row)), 1e-9)
    return 1 - row  # ink black on white


if __name__ == "__main__":
    if sys.argv[1:] != ["--render"]:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else "build/privacy")
        torch.set_num_threads(2)
        RESULT.write_text(json.dumps(measure(sys.argv[1], folder), indent=1) + "\n")
