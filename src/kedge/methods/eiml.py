"""Exemplar-based incremental meta-learning: old tasks are practised again on images that were kept.

The paper's EIML (Liu et al., 2020; see ida.py), which needs some images of every old class where
IDA needs one anchor. Distillation on kept exemplars is that of iCaRL (Rebuffi et al., 2017); here
whole tasks are drawn from them, and both models learn each task from the same examples.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from kedge.config import (
    Count,
    EpisodeShape,
    parse_json,
    require,
)
from kedge.data.pools import Pool, whole
from kedge.data.table import ImageTable
from kedge.methods.base import (
    Alignment,
    AlignmentInputs,
    Memory,
)
from kedge.methods.divergence import (
    check_divergence,
    divergence,
    temperature_ratio,
)
from kedge.models.model import Model
from kedge.utils.progress import note
from kedge.utils.seeding import generator

LONGEST_NAMES = 1 << 23  # bytes: with longer ones a model could not be saved either
DAMAGED = "the memory beside the model is damaged."


@final
@dataclass(frozen=True)
class ExemplarIncrementalMetaLearning(Alignment):
    """mean over the queries of an old task: KL( p(·|φ_old; C_old) ‖ p(·|φ_new; C_new) )
    + mean_x KL( p(·|φ_old(x); C_old) ‖ p(·|φ_new(x); C_old) )

    C_old and C_new are the representatives of the old task's classes, from its support, under each
    model; x are the new images.
    """

    exemplars: int = 15  # images kept of each class
    choice: Literal["random", "nearest"] = "random"  # nearest to the mean feature of their class
    divergence: str = "kl"
    temperature: float | None = None  # of all softmaxes; None: the head's own

    def __post_init__(self) -> None:
        check_divergence("EIML", self.divergence, self.temperature)
        number = isinstance(self.exemplars, int) and not isinstance(self.exemplars, bool)
        fits = number and 2 <= self.exemplars <= 10_000
        require(fits, "EIML: exemplars must be a number from 2 to 10000.")
        known = self.choice in ("random", "nearest")
        require(known, "EIML: choice must be 'random' or 'nearest'.")

    def check(self, shape: EpisodeShape) -> None:
        most_shots = shape.shots[1]
        # Also where more were kept before: of the new classes no more than this will be.
        require(
            self.exemplars > most_shots,
            f"EIML: {self.exemplars} exemplars of each class are too few for old tasks of "
            f"{most_shots} shots and at least 1 query: write 'EIML exemplars={most_shots + 1}' or "
            "more, or lower --n-shot.",
        )

    def penalty(self, sight: AlignmentInputs) -> Float[Tensor, ""]:
        require(sight.rehearsal is not None, "EIML needs old tasks, and there are none.")
        assert sight.rehearsal is not None
        head, n_shot = sight.head, sight.rehearsal.n_shot
        sharp = temperature_ratio(head, self.temperature)

        def task(episode: Tensor) -> tuple[Tensor, Tensor]:
            """Its representatives, and the verdicts on its queries."""
            representatives = head.fit(episode[:, :n_shot])
            return representatives, head.logits(episode[:, n_shot:].flatten(0, 1), representatives)

        with torch.no_grad():
            c_old, old_verdicts = task(sight.rehearsal.old)
            old = head.logits(sight.old, c_old)
        _, new_verdicts = task(sight.rehearsal.new)
        new = head.logits(sight.new, c_old)
        on_old_task = divergence(self.divergence, old_verdicts, new_verdicts, sharp)
        return on_old_task + divergence(self.divergence, old, new, sharp)

    def rehearse(self, memory: Memory, shape: EpisodeShape) -> tuple[Pool, EpisodeShape]:
        require(
            "images" in memory,
            "EIML needs images of the classes before, and none were kept when this model was made "
            "(--keep EIML); IDA needs none.",
        )
        pool = _pool(_kept(memory))
        n_classes, least = len(pool.classes), int(pool.counts.min())
        require(n_classes >= 2, "EIML needs kept images of at least 2 classes for an old task.")
        most_shots = shape.shots[1]
        # Where a class has fewer than were asked for, it had no more.
        remedy = "keep more exemplars or lower" if least >= self.exemplars else "lower"
        require(
            least > most_shots,
            f"EIML: of some class {least} images were kept, but an old task needs at least "
            f"{most_shots + 1} of each ({most_shots} shots + 1 query): {remedy} --n-shot.",
        )
        n_query = min(shape.n_query, least - most_shots)
        return pool, EpisodeShape(_at_most(shape.n_way, n_classes), shape.n_shot, n_query)

    def check_memory(self, memory: Memory, model: Model) -> None:
        kept, side = _kept(memory), model.config.image_size
        _check_size(kept, (model.config.n_channels, side, side))
        if (n := len(kept.counts)) < (known := len(model.classes)):
            note(f"EIML: images were kept of {n} of the {known} classes that the model knows")

    def remember(self, model: Model, pool: Pool, before: Memory, seed: int) -> Memory:
        """A class that comes back takes the place of what was kept of it before."""
        chosen = self._nearest(model, pool) if self.choice == "nearest" else self._any(pool, seed)
        images = pool.table.take(torch.cat(chosen))
        counts = [len(rows) for rows in chosen]
        names: list[str | None] = [*pool.classes]
        if "images" in before:
            old, back = _kept(before), set(pool.classes)
            _check_size(old, tuple(images.shape[1:]))
            stay = [i for i, name in enumerate(old.names) if name not in back]
            parts = old.images.split(old.counts)
            images = torch.cat([*(parts[i] for i in stay), images])
            counts = [*(old.counts[i] for i in stay), *counts]
            names = [*(old.names[i] for i in stay), *names]
        return {
            "images": images.contiguous(),
            "counts": torch.tensor(counts, dtype=torch.int64),
            "names": _as_bytes(names),
        }

    def _any(self, pool: Pool, seed: int) -> list[Int64[Tensor, " _"]]:
        """Rows of the table. A class's choice depends on the seed and its name alone, and fewer
        exemplars are a part of more."""
        chosen = []
        for name, rows in zip(pool.classes, pool.class_rows, strict=True):
            order = generator("exemplars", seed, name).permutation(len(rows))
            chosen.append(rows[torch.from_numpy(order[: self.exemplars])].sort().values)
        return chosen

    def _nearest(self, model: Model, pool: Pool) -> list[Int64[Tensor, " _"]]:
        chosen = []
        for rows, features in zip(pool.class_rows, model.class_features(pool), strict=True):
            distances = (features - features.mean(0)).square().sum(1).cpu()
            order = distances.argsort(stable=True)
            chosen.append(rows[order[: self.exemplars]].sort().values)
        return chosen


@dataclass(frozen=True)
class Kept:
    """A memory, class by class."""

    images: UInt8[Tensor, "n c h w"]
    counts: list[int]
    names: list[str | None]  # None: kept by an early version, which left them out


def _kept(memory: Memory) -> Kept:
    """A file may hold anything, and numbers that are far too large would fill the memory."""
    images, counts = (memory.get(key, torch.empty(0)).cpu() for key in ("images", "counts"))
    pixels = images.dtype == torch.uint8 and images.ndim == 4
    whole_numbers = counts.dtype == torch.int64 and counts.ndim == 1
    require(
        pixels
        and whole_numbers
        and 1 <= len(counts) <= len(images)
        and bool(((counts >= 1) & (counts <= len(images))).all())
        and int(counts.sum()) == len(images),
        "EIML: the images that were kept are not as many as their classes are said to have; "
        f"{DAMAGED}",
    )
    return Kept(images, counts.tolist(), _names(memory, len(counts)))


def _check_size(kept: Kept, size: tuple[int, ...]) -> None:
    require(
        tuple(kept.images.shape[1:]) == size,
        f"EIML: the images that were kept are of another size; {DAMAGED}",
    )


def _names(memory: Memory, n: int) -> list[str | None]:
    if "names" not in memory:
        return [None] * n
    written = memory["names"].cpu()
    found: Any = None
    if written.dtype == torch.uint8 and written.ndim == 1 and len(written) <= LONGEST_NAMES:
        with suppress(ValueError, RecursionError):
            found = parse_json(written.numpy().tobytes().decode())
    require(
        isinstance(found, list)
        and len(found) == n
        and all(name is None or isinstance(name, str) for name in found),
        f"EIML: the names of the classes of which images were kept do not fit these; {DAMAGED}",
    )
    return list(found)


def _as_bytes(names: list[str | None]) -> UInt8[Tensor, " n"]:
    """As a tensor, since a memory holds nothing else."""
    text = json.dumps(names, ensure_ascii=False)
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _pool(kept: Kept) -> Pool:
    """An old task does not ask for the names of its classes."""
    labels = torch.arange(len(kept.counts)).repeat_interleave(torch.tensor(kept.counts))
    numbers = tuple(f"kept {i}" for i in range(len(kept.counts)))
    return whole("exemplars", ImageTable(kept.images, labels, numbers, "EIML's exemplars"))


def _at_most(count: Count, most: int) -> Count:
    return (
        min(count, most) if isinstance(count, int) else (min(count[0], most), min(count[1], most))
    )
