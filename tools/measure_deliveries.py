"""Measure what docs/outcome.md and docs/none-of-these.md say of the life of a model.

    python tools/measure_deliveries.py drawings OMNIGLOT --seed 1 --out FOLDER
    python tools/measure_deliveries.py flowers FLOWERS OTHER-PHOTOGRAPHS --seed 1 --out FOLDER

A base and three updates with the defaults, as a user makes them. After each round, images of every
class that were never given to kedge tell how far the estimates for old classes are from the truth,
and what `--reject 5%` refuses of known classes, of unseen classes of the same kind, and of the
other pictures. FOLDER/result.json has all numbers. A stopped run continues.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import kedge
from kedge.benchmarks.base import deal_classes, shuffled
from kedge.data.drawings import load_drawings
from kedge.evaluation.naming import rounds_of_origin

REJECT = 0.05
N_OTHER = 1500  # pictures of another domain
# Sizes of the base, the updates and the unseen classes; images of each class that train.
DRAWINGS, FLOWERS = ((40, 20, 20, 20, 100), 80), ((50, 12, 12, 12, 16), 30)


@dataclass(frozen=True)
class Life:
    """Deliveries, images of their classes and of unseen ones that train nothing, and others."""

    deliveries: list[kedge.ImageTable]
    tests: list[kedge.ImageTable]  # the last one of the unseen classes
    other: torch.Tensor


def prepare(name: str, paths: Sequence[str], seed: int) -> Life:
    """Classes and images by this seed."""
    flowers = name == "flowers"
    sizes, n_train = FLOWERS if flowers else DRAWINGS
    table = kedge.open_images(paths[0], 160) if flowers else load_drawings()
    groups = deal_classes(shuffled(sorted(table.classes), "deliveries", seed), sizes)
    deliveries, tests = [], []
    for t, names in enumerate(groups):
        halves: list[list[torch.Tensor]] = [[], []]
        for label in sorted(map(table.classes.index, names)):
            rows = table.rows_of(table.classes[label])
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
            halves[0].append(rows[order[:n_train]].sort().values)
            halves[1].append(rows[order[n_train:]].sort().values)
        trained, tested = (table.subset(torch.cat(half)) for half in halves)
        tests.append(tested)
        if t < len(groups) - 1:
            deliveries.append(trained)
    others = kedge.open_images(paths[-1], 160 if flowers else 28)
    chosen = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:N_OTHER]
    return Life(deliveries, tests, others.subset(chosen.sort().values).images[:])


def auroc(known: torch.Tensor, unknown: torch.Tensor) -> float:
    """The probability that an unknown image is less typical than a known one, in %."""
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown.contiguous())
    not_above = torch.searchsorted(ordered, unknown.contiguous(), right=True)
    return 100 - 100 * float((below + not_above).double().mean()) / (2 * len(known))


def refused_when(share: float, known: torch.Tensor, unknown: torch.Tensor) -> float:
    """How many unknown images are refused, in %, when exactly this share of known ones is; between
    two thresholds linearly."""
    thresholds = known.unique()
    refused_known, refused_unknown = (
        np.array([0.0, *(each[:, None] <= thresholds).double().mean(0).tolist()])
        for each in (known, unknown)
    )
    return 100 * float(np.interp(share, refused_known, refused_unknown))


def measure(model: kedge.Model, life: Life, t: int) -> dict[str, object]:
    """All numbers after round t, in %."""
    classifier, origins = model.classifier(), rounds_of_origin(model)
    right: dict[int, list[bool]] = {}
    known = []
    for table in life.tests[: t + 1]:
        answers = classifier.answers(table.images, 1)
        known += [answer.typicality or 0.0 for answer in answers]
        for label, answer in zip(table.labels.tolist(), answers, strict=True):
            name = table.classes[label]
            right.setdefault(origins[name], []).append(answer.ranking[0][0] == name)
    truth = {origin: 100 * sum(each) / len(each) for origin, each in right.items()}
    outcome = model.lineage[-1].outcome
    naming = outcome.naming if outcome else ()
    old = [change for change in naming if change.estimated]
    weights = torch.tensor([float(change.classes) for change in old])
    total: dict[str, float] = {}
    if old:
        said = torch.tensor([change.after for change in old])
        true = torch.tensor([truth[change.round] for change in old])
        total = {
            "estimate": float((said * weights).sum() / weights.sum()),
            "truth": float((true * weights).sum() / weights.sum()),
        }
    scores = torch.tensor(known)
    unknown = {
        name: torch.tensor([a.typicality or 0.0 for a in classifier.answers(images, 1)])
        for name, images in (("unseen", life.tests[-1].images), ("other", life.other))
    }
    return {
        "round": t,
        "named": {change.round: [change.after, truth[change.round]] for change in naming},
        "old": total,
        "refused": {
            name: 100 * float((each <= REJECT).double().mean())
            for name, each in (("known", scores), *unknown.items())
        },
        "refused_at_5": {
            name: refused_when(REJECT, scores, each) for name, each in unknown.items()
        },
        "auroc": {name: auroc(scores, each) for name, each in unknown.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("drawings", "flowers"))
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    life = prepare(given.name, given.paths, given.seed)
    results, model = [], None
    for t, images in enumerate(life.deliveries):
        path = given.out / f"round-{t}.kedge"
        if not path.exists():
            how = {"seed": given.seed, "checkpoint": f"{path}.training"}
            made = kedge.update(model, images, **how) if model else kedge.train(images, **how)
            made.save(path)
            Path(f"{path}.training").unlink(missing_ok=True)
        model = kedge.load(path)
        results.append(measure(model, life, t))
        print(json.dumps(results[-1]), flush=True)
        (given.out / "result.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
