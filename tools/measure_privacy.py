"""Measure what a model file reveals of single images: docs/privacy.json.

    python tools/measure_privacy.py FLOWERS [CACHE]

Then `python tools/write_privacy.py` writes the page. It takes about 20 minutes of one core.

FLOWERS is Flowers-102 with 40 photographs of each kind (Nilsback and Zisserman, 2008), as a folder
or a .zip; drawings are the embedded ones. Models and features are kept in the folder CACHE.

Inversion finds pixels whose features are the stored mean (Mahendran and Vedaldi, Understanding deep
image representations by inverting them, CVPR 2015), or decodes the mean by a network that was
trained on images of other classes (as Dosovitskiy and Brox, Inverting visual representations with
convolutional networks, CVPR 2016). Membership compares the likelihoods of an
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
from torch import Tensor, nn

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
RESULT = ROOT / "docs" / "privacy.json"
PICTURE = ROOT / "docs" / "figures" / "privacy-drawings.png"
SIZES = (1, 5, 20, 100)  # images of a class
NOISES = (0.0, 0.1, 0.2, 0.5, 1.0)
DRAWS = 3  # of the images of each class that are members
N_REFERENCE = 10  # further images of each class that an attacker has
SHRINKAGE = 0.3  # of the covariance of a class towards a multiple of the identity
DELTA = 1e-5
N_TRAINED, N_VALIDATED = 40, 12  # classes
N_ATTACKED = {"drawings": 80, "flowers": 40}  # classes whose images are reconstructed, …
N_GRADIENT = {"drawings": 40, "flowers": 5}  # … and how many of each size by gradient descent
STEPS, RESTARTS, SCREENING = {"drawings": 300, "flowers": 60}, 3, 0.15
TOTAL_VARIATION = 0.5
COMPARED_SIDE = {"drawings": 28, "flowers": 32}  # px: larger images are reduced to it
DECODER_IMAGES = {"drawings": 250_000, "flowers": 80_000}  # that it is trained on, repeated
DROPOUT = {"drawings": 0.1, "flowers": 0.5}


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


def large_classes(n: int, join: int, *arrays: Array) -> list[Array]:
    """Arrays by class and image, of classes with at least 2 n images: several classes are joined if
    each has fewer."""
    if arrays[0].shape[1] >= 2 * n:
        return [*arrays]
    order = generator("privacy", "joined").permutation(len(arrays[0]))
    order = order[: len(order) // join * join]
    return [each[order].reshape(len(order) // join, -1, each.shape[2]) for each in arrays]


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


def trained_model(file: Path, table: ImageTable, used: Any, val: Any, n_members: int) -> Model:
    """A model trained by `kedge train` on the first images of some classes."""
    if not file.exists():
        rows = [table.rows_of(table.classes[i]) for i in sorted(used)]
        members = table.subset(torch.cat([each[:n_members] for each in rows]))
        others = table.subset(torch.cat([table.rows_of(table.classes[i]) for i in sorted(val)]))
        kedge.train(members, val=others, **OPTIONS[file.stem]).save(file)
    return Model.load(file)


def frozen_model(table: ImageTable) -> Model:
    config = BackboneConfig("efficientnet-lite0")
    network = given_network(config, None, 160)
    return start_model(config, HeadConfig("unit", 1 / 64), Pool.all("x", table), 0, network)


def subject(
    name: str, model: Model, table: ImageTable, chosen: Any, join: int, cache: Path
) -> Subject:
    kept = table.subset(torch.cat([table.rows_of(table.classes[i]) for i in sorted(chosen)]))
    if not cache.exists():
        np.save(cache, model.embed(kept.images).numpy())
    features = np.load(cache).astype(np.float64)
    by_class = features.reshape(len(kept.classes), -1, features.shape[1])
    return Subject(name, model, kept, by_class, join)


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


def spread_axes(reference: Array) -> tuple[Array, Array]:
    """Variances of images around their class mean, and their directions, from classes × images × d;
    all classes are taken to have the same covariance."""
    centred = (reference - reference.mean(1, keepdims=True)).reshape(-1, reference.shape[2])
    covariance = centred.T @ centred / (len(reference) * (reference.shape[1] - 1))
    values, axes = np.linalg.eigh(covariance)
    return (1 - SHRINKAGE) * values.clip(0) + SHRINKAGE * values.mean(), axes


def likelihood_ratios(
    images: Array, means: Array, reference: Array, variances: Array, n: int, noise: float
) -> Array:
    """Log-likelihood ratio, up to a constant of the class, of an image being one of the n images of
    a mean and not; of normal distributions, in directions that are independent.

    Args:
        images: classes × images × d; `means` have one for each class.
        reference: other images of each class.
        noise: its variance in each direction.
    """
    n_reference = reference.shape[1]
    centres = reference.mean(1, keepdims=True)
    u, v = images - centres, means[:, None] - centres
    a, shared = variances * (1 + 1 / n_reference), variances / n_reference
    # A mean of one image without noise is the image: the last term keeps that finite.
    b = variances * (1 / n + 1 / n_reference) + noise + 1e-6 * variances
    result = np.zeros(images.shape[:2])
    for c, sign in ((shared, 1), (shared + variances / n, -1)):
        squares = (b * u**2 - 2 * c * u * v + a * v**2) / (a * b - c**2)
        result += sign * squares.sum(2) / 2
    return result


def membership(
    subject: Subject,
    n: int,
    lengths: Sequence[float] = (0.0,),
    *,
    joined: bool = False,
    n_reference: int = N_REFERENCE,
) -> list[dict[str, Any]]:
    """How well members of stored means of n images are told from other images of their classes,
    for lengths of the noise relative to the features."""
    [images] = large_classes(100 if joined else n, subject.join, subject.features)
    n_classes, per_class, d = images.shape
    ends = np.cumsum([n, min(20, per_class - n - n_reference), n_reference])
    scale = feature_length(subject.features) / d**0.5
    scores: dict[tuple[float, str], list[tuple[Array, Array]]] = {}
    for draw in range(DRAWS):
        rng = generator("privacy", "membership", subject.name, n, draw)
        order = rng.permuted(np.tile(np.arange(per_class), (n_classes, 1)), axis=1)
        shuffled = np.take_along_axis(images, order[:, :, None], 1)
        variances, axes = spread_axes(shuffled[:, ends[1] : ends[2]])
        used, tested, reference, _ = np.split(shuffled @ axes, ends, 1)
        exact, pair = used.mean(1), (used[:, :20], tested)
        for length in lengths:
            means = exact + length * scale * rng.normal(size=exact.shape)
            noise = (length * scale) ** 2
            near, other = (-np.square(z - means[:, None]).sum(2) for z in pair)
            scores.setdefault((length, "distance"), []).append((near, other))
            near, other = (
                likelihood_ratios(z, means, reference, variances, n, noise) for z in pair
            )
            scores.setdefault((length, "likelihood"), []).append((near, other))
    results = []
    for length in lengths:
        result: dict[str, Any] = {"images": n, "reference": n_reference, "noise": length}
        for attack in ("distance", "likelihood"):
            draws = scores[length, attack]
            areas = [[auroc(m[k], o[k]) for m, o in draws] for k in range(n_classes)]
            result[attack] = mean_and_interval(np.mean(areas, 1))
        members, others = (np.concatenate([pair[i].ravel() for pair in draws]) for i in (0, 1))
        result["found at 1%"] = round(100 * found_at(members, others), 1)
        results.append(result)
    return results


def feature_length(features: Array) -> float:
    """Root mean square length of features."""
    return float(np.square(features).sum(-1).mean() ** 0.5)


def membership_through_weights(subject: Subject, n: int) -> dict[str, Any]:
    """The same for the images that a network was trained on."""
    images, model = subject.features, subject.model
    used, tested, reference = np.split(images, [n, subject.per_class - N_REFERENCE], 1)
    anchors = model.anchors_of(subject.table.classes).double().numpy()
    variances, axes = spread_axes(reference)

    def losses(z: Array, means: Array) -> Array:
        flat, points = (
            torch.from_numpy(each).float() for each in (z.reshape(-1, z.shape[2]), means)
        )
        targets = torch.arange(len(z)).repeat_interleave(z.shape[1])
        losses = F.cross_entropy(model.head.logits(flat, points), targets, reduction="none")
        return losses.double().numpy().reshape(z.shape[:2])

    scores: dict[str, Callable[[Array], Array]] = {
        "weights, loss": lambda z: -losses(z, reference.mean(1)),
        "anchor, distance": lambda z: -np.square(z - anchors[:, None]).sum(2),
        "anchor, likelihood": lambda z: likelihood_ratios(
            z @ axes, anchors @ axes, reference @ axes, variances, n, 0.0
        ),
    }
    result: dict[str, Any] = {"images": n, "classes": len(images)}
    for name, score in scores.items():
        members, others = score(used), score(tested)
        pairs = zip(members, others, strict=True)
        result[name] = mean_and_interval([auroc(a, b) for a, b in pairs])
        result[name]["found at 1%"] = round(100 * found_at(members.ravel(), others.ravel()), 1)
    return result


# ── inversion ────────────────────────────────────────────────────────────────────────────────


def reconstruct(subject: Subject, means: Tensor, prior: Tensor) -> Tensor:
    """Pixels whose features come near these means, by gradient descent from several starts around
    the average of other images; the best starts continue."""
    name, size, n = subject.name, subject.model.config.image_size, len(means)
    seeded = torch.Generator().manual_seed(0)
    best_start, best_loss = torch.empty(n, len(prior), size, size), torch.full((n,), torch.inf)
    for _ in range(RESTARTS):
        noise = 0.5 * torch.randn(n, len(prior), 7, 7, generator=seeded)
        start = prior.clamp(0.02, 0.98).logit() + F.interpolate(noise, size, mode="bicubic")
        start, loss = descend(subject, start, means, int(SCREENING * STEPS[name]))
        better = loss < best_loss
        best_start[better], best_loss[better] = start[better], loss[better]
    return descend(subject, best_start, means, STEPS[name])[0].sigmoid()


def descend(subject: Subject, start: Tensor, means: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The logits of pixels after some steps, and their losses."""
    x, scale, final = start.clone().requires_grad_(), means.square().sum(1), torch.empty(len(start))
    optimizer = torch.optim.Adam([x], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.01)
    embedding = subject.model.embedding
    with eval_mode(embedding):
        for _ in range(steps):
            optimizer.zero_grad()
            for rows in torch.arange(len(x)).split(40):
                pixels = x[rows].sigmoid()
                error = (embedding(pixels) - means[rows]).square().sum(1) / scale[rows]
                variation = sum(pixels.diff(dim=k).abs().mean((1, 2, 3)) for k in (2, 3))
                loss = error + TOTAL_VARIATION * variation
                loss.sum().backward()
                final[rows] = loss.detach()
            optimizer.step()
            schedule.step()
    return x.detach(), final


def decoder(name: str, features: Array, pixels: Array) -> Callable[[Array], Array]:
    """A network from features to pixels."""
    z, x = (torch.from_numpy(each).float() for each in (features, pixels))
    centre, scale = z.mean(0), z.std(0).clamp(min=1e-3)
    torch.manual_seed(0)
    layers = [nn.Linear(z.shape[1], 512), nn.ReLU(), nn.Dropout(DROPOUT[name]), nn.Linear(512, 512)]
    network = nn.Sequential(
        *layers, nn.ReLU(), nn.Dropout(DROPOUT[name]), nn.Linear(512, x.shape[1])
    )
    optimizer = torch.optim.Adam(network.parameters())
    n_steps = DECODER_IMAGES[name] // 128
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, n_steps)
    for _ in range(n_steps):
        rows = torch.randint(len(z), (128,))
        optimizer.zero_grad()
        F.mse_loss(network((z[rows] - centre) / scale), x[rows]).backward()
        optimizer.step()
        schedule.step()
    network.eval().requires_grad_(False)
    return lambda given: (
        network((torch.from_numpy(given).float() - centre) / scale).double().numpy()
    )


def reduced(images: Tensor, side: int) -> Array:
    """Images as rows of pixels, at the size at which they are compared."""
    floats = images.float() / (255 if images.dtype == torch.uint8 else 1)
    return F.adaptive_avg_pool2d(floats, side).flatten(1).double().numpy()


def correlations(a: Array, b: Array) -> Array:
    """Between each row of one and each row of the other."""
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-9) for x in (a, b))
    return a @ b.T


def inversion(subject: Subject) -> tuple[list[dict[str, Any]], list[Array]]:
    """How much reconstructions from means resemble the images of these means, for each size; and
    some images with both reconstructions."""
    name, table, features = subject.name, subject.table, subject.features
    side, n_gradient = COMPARED_SIDE[name], N_GRADIENT[name]
    pixels = reduced(table.take(torch.arange(len(table))), side).reshape(*features.shape[:2], -1)
    order = generator("privacy", "attacked", name).permutation(len(features))
    attacked, others = np.split(order, [N_ATTACKED[name]])
    decode = decoder(
        name, *(each[others].reshape(-1, each.shape[2]) for each in (features, pixels))
    )
    shuffled, starts = [], []
    for n in SIZES:
        z, x = large_classes(n, subject.join, features[attacked], pixels[attacked])
        rng = generator("privacy", "members", name, n)
        orders = rng.permuted(np.tile(np.arange(z.shape[1]), (len(z), 1)), axis=1)[:, :, None]
        z, x = (np.take_along_axis(each, orders, 1) for each in (z, x))
        shuffled.append((n, z[:, :n].mean(1), x))
        starts.append(z[:n_gradient, :n].mean(1))
    size = subject.model.config.image_size
    prior = pixels[others].mean((0, 1)).reshape(1, -1, side, side)
    prior = F.interpolate(torch.from_numpy(prior).float(), size, mode="bicubic")[0]
    found = reconstruct(subject, torch.from_numpy(np.concatenate(starts)).float(), prior)
    gradients = reduced(found, side).reshape(len(SIZES), n_gradient, -1)
    results = []
    for (n, means, x), gradient in zip(shuffled, gradients, strict=True):
        guesses = {"gradient": gradient, "decoder": decode(means), "average": x[:, n:].mean(1)}
        pairs = {attack: resemblance(guess, x, n) for attack, guess in guesses.items()}
        results.append({"images": n, **pairs})
    n, means, x = shuffled[0]
    shown = [x[:, 0], gradients[0], decode(means)]
    return results, [np.stack(rows) for rows in zip(*shown, strict=False)]


def resemblance(guesses: Array, images: Array, n: int) -> dict[str, Any]:
    """Correlation of each guess with the most similar of the n images of the mean, which are the
    first of the class, and with that of n other images of the class."""
    r = [correlations(guess[None], images[k])[0] for k, guess in enumerate(guesses)]
    near, other = (np.array([row[part].max() for row in r]) for part in (slice(n), slice(n, 2 * n)))
    return {
        "used": mean_and_interval(near),
        "unused": mean_and_interval(other),
        "difference": mean_and_interval(near - other),
        "nearest is used": mean_and_interval(100 * (near > other), 1),
    }


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
    """The content of docs/privacy.json; what was measured before a stop is in CACHE."""
    cache.mkdir(parents=True, exist_ok=True)
    parts: dict[str, dict[str, Any]] = {}
    for fresh, trained in zip(*prepare(flowers, cache), strict=True):
        done = cache / f"{fresh.name}.json"
        if not done.exists():
            done.write_text(json.dumps(measure_subject(fresh, trained)))
        for part, value in json.loads(done.read_text()).items():
            parts.setdefault(part, {})[fresh.name] = value
    return parts


def measure_subject(fresh: Subject, trained: Subject) -> dict[str, Any]:
    n_members = 50 if fresh.name == "drawings" else 20
    d, unit = fresh.features.shape[2], fresh.model.head.unit_features
    noisy = {n: membership(fresh, n, NOISES if n >= 20 else (0.0,)) for n in SIZES}
    joined = membership(fresh, 20, joined=True)
    many = membership(fresh, 100, n_reference=80)
    noise = [
        {
            "noise": length,
            "frozen": naming(fresh, 20, length) if unit else None,
            "trained": naming(trained, n_members, length),
            "likelihood": {n: noisy[n][i]["likelihood"] for n in (20, 100)},
            "epsilon": {n: epsilon(length, n, d) for n in (20, 100)} if unit else None,
        }
        for i, length in enumerate(NOISES)
    ]
    print(f"{fresh.name}: membership measured", flush=True)
    reconstructed, shown = inversion(fresh)
    if fresh.name == "drawings":
        draw(shown[:12])
    return {
        "membership": [noisy[n][0] for n in SIZES] + [joined[0] | {"joined": True}, *many],
        "weights": membership_through_weights(trained, n_members),
        "inversion": reconstructed,
        "noise": noise,
    }


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
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "build/privacy")
    RESULT.write_text(json.dumps(measure(sys.argv[1], folder), indent=1) + "\n")
