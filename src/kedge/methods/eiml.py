"""Exemplar-based incremental meta-learning (the EIML baseline of Liu et al., 2020; see ida.py):

mean over the queries of an old task: KL( p(·|φ_old; C_old) ‖ p(·|φ_new; C_new) )
+ mean_x KL( p(·|φ_old(x); C_old) ‖ p(·|φ_new(x); C_old) )   over the new images x.

C_old and C_new are the representatives of the old task's classes, from its support, under each
model. Old tasks are made of stored images: some of every old class, where IDA stores one anchor.
Distillation on stored exemplars is from iCaRL (Rebuffi et al., 2017).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.methods.base import Alignment, AlignmentInputs, Memory
from kedge.methods.divergence import check_divergence, divergence
from kedge.models.model import Model
from kedge.utils.config_io import parse_json
from kedge.utils.progress import note
from kedge.utils.seeding import generator

MAX_NAME_BYTES = 1 << 23  # of all class names: with more, a model could not be saved either
DAMAGED_MEMORY = "EIML: the stored exemplars do not fit this model; its memory file is damaged."


@final
@dataclass(frozen=True)
class ExemplarIncrementalMetaLearning(Alignment):
    """Predictions on old tasks, and on new images among old classes, stay what they were."""

    exemplars: int = 15  # images stored of each class
    choice: Literal["random", "nearest"] = "random"  # nearest: to the mean feature of their class
    divergence: str = "kl"
    temperature: float | None = None  # of all softmaxes; None: the head's own

    def __post_init__(self) -> None:
        check_divergence("EIML", self.divergence, self.temperature)
        valid = isinstance(self.exemplars, int) and 2 <= self.exemplars <= 10_000
        require(valid, "EIML: exemplars must be a number from 2 to 10000.")
        valid = self.choice in ("random", "nearest")
        require(valid, "EIML: choice must be 'random' or 'nearest'.")

    def check(self, shape: EpisodeShape) -> None:
        n_shot = shape.shots[1]
        require(
            self.exemplars > n_shot,
            f"EIML: {self.exemplars} exemplars of each class are too few for old tasks of {n_shot} "
            f"shots and 1 query. Use 'EIML exemplars={n_shot + 1}' or more, or lower --n-shot.",
        )

    def penalty(self, inputs: AlignmentInputs) -> Float[Tensor, ""]:
        require(inputs.rehearsal is not None, "EIML needs old tasks, and there are none.")
        assert inputs.rehearsal is not None
        head, n_shot = inputs.head, inputs.rehearsal.n_shot

        def fit_and_classify(episode: Tensor) -> tuple[Tensor, Tensor]:
            """Representatives of an old task, and the logits of its queries."""
            representatives = head.fit(episode[:, :n_shot])
            return representatives, head.logits(episode[:, n_shot:].flatten(0, 1), representatives)

        def distance(old: Tensor, new: Tensor) -> Tensor:
            return divergence(self.divergence, old, new, head, self.temperature)

        with torch.no_grad():
            c_old, old_queries = fit_and_classify(inputs.rehearsal.old)
            old = head.logits(inputs.old, c_old)
        _, new_queries = fit_and_classify(inputs.rehearsal.new)
        new = head.logits(inputs.new, c_old)
        return distance(old_queries, new_queries) + distance(old, new)

    def rehearsal_pool(self, memory: Memory, shape: EpisodeShape) -> tuple[Pool, EpisodeShape]:
        require(
            "images" in memory,
            "EIML needs images of earlier classes, which were not saved with this model. Train it "
            "again with --save-memory EIML, or use IDA.",
        )
        images, counts, _ = _exemplars(memory)
        n_classes, smallest, n_shot = len(counts), int(counts.min()), shape.shots[1]
        require(n_classes >= 2, "EIML needs exemplars of at least 2 classes for an old task.")
        require(
            smallest > n_shot,
            f"EIML: some class has {smallest} exemplars, but an old task needs at least "
            f"{n_shot + 1} of each ({n_shot} shots + 1 query): store more or lower --n-shot.",
        )
        least, most = (min(n, n_classes) for n in shape.ways)
        n_way = most if isinstance(shape.n_way, int) else (least, most)
        labels = torch.arange(n_classes).repeat_interleave(counts)
        names = tuple(f"kept {i}" for i in range(n_classes))
        pool = Pool.all("exemplars", ImageTable(images, labels, names, "EIML's exemplars"))
        return pool, EpisodeShape(n_way, shape.n_shot, min(shape.n_query, smallest - n_shot))

    def check_memory(self, memory: Memory, model: Model) -> None:
        images, counts, _ = _exemplars(memory)
        config = model.config
        require(images.shape[1:] == (config.n_channels, *2 * (config.image_size,)), DAMAGED_MEMORY)
        if (n := len(counts)) < (known := len(model.classes)):
            note(f"EIML: there are exemplars of {n} of the {known} classes that the model knows")

    def remember(self, model: Model, pool: Pool, before: Memory, seed: int) -> Memory:
        """Exemplars of all classes. Those of a class that is delivered again are replaced."""
        chosen = self._choose(model, pool, seed)
        new = pool.table.take(torch.cat(chosen))
        names: list[str | None] = [*pool.classes]
        parts = [*new.split([len(rows) for rows in chosen])]
        if "images" in before:
            images, counts, old_names = _exemplars(before)
            require(images.shape[1:] == new.shape[1:], DAMAGED_MEMORY)
            replaced = set(pool.classes)
            kept = [i for i, name in enumerate(old_names) if name not in replaced]
            old_parts = images.split(counts.tolist())
            names = [*(old_names[i] for i in kept), *names]
            parts = [*(old_parts[i] for i in kept), *parts]
        encoded_names = json.dumps(names, ensure_ascii=False).encode()
        return {
            "images": torch.cat(parts).contiguous(),
            "counts": torch.tensor([len(part) for part in parts]),
            "names": torch.tensor(list(encoded_names), dtype=torch.uint8),  # tensors only
        }

    def _choose(self, model: Model, pool: Pool, seed: int) -> list[Int64[Tensor, " _"]]:
        """Rows of each class. A random choice depends on the seed and the name of the class alone,
        and a smaller number of exemplars is a subset of a larger one."""
        if self.choice == "random":
            orders = [
                torch.from_numpy(generator("exemplars", seed, name).permutation(len(rows)))
                for name, rows in zip(pool.classes, pool.class_rows, strict=True)
            ]
        else:
            orders = [
                (z - z.mean(0)).square().sum(1).cpu().argsort(stable=True)
                for z in model.class_features(pool)
            ]
        pairs = zip(pool.class_rows, orders, strict=True)
        return [rows[order[: self.exemplars]].sort().values for rows, order in pairs]


def _exemplars(
    memory: Memory,
) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " k"], list[str | None]]:
    """Stored images, class after class; how many of each class; names of the classes (None: of an
    early version). Validated, since a file may hold anything, such as counts of 2**60."""
    images, counts = (memory.get(key, torch.empty(0)).cpu() for key in ("images", "counts"))
    require(
        (images.dtype, images.ndim, counts.dtype, counts.ndim) == (torch.uint8, 4, torch.int64, 1)
        and 1 <= len(counts) <= len(images)
        and bool(((counts >= 1) & (counts <= len(images))).all())
        and int(counts.sum()) == len(images),
        DAMAGED_MEMORY,
    )
    if "names" not in memory:
        return images, counts, [None] * len(counts)
    encoded, names = memory["names"].cpu(), None
    if encoded.dtype == torch.uint8 and encoded.ndim == 1 and len(encoded) <= MAX_NAME_BYTES:
        with suppress(ValueError, RecursionError):
            names = parse_json(encoded.numpy().tobytes().decode())
    valid = isinstance(names, list) and all(isinstance(name, str | None) for name in names)
    require(valid and len(names or ()) == len(counts), DAMAGED_MEMORY)
    return images, counts, list(names or ())
