"""Which classes are hard to tell apart: Task2Vec in a cheap form.

Achille, Lam, Tewari, Ravichandran, Maji, Fowlkes, Soatto, Perona: Task2Vec: Task Embedding for
Meta-Learning, ICCV 2019. A class is described by which filters of the last block its images would
move: the diagonal of the Fisher information, averaged within each filter. `plan_episodes` makes
hard tasks of classes that are near each other.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.func import functional_call

from kedge.data.augment import plain
from kedge.data.pools import Pool
from kedge.errors import KedgeError
from kedge.models.model import Model, eval_mode
from kedge.utils.progress import Tick, task
from kedge.utils.seeding import generator

MOST = 100  # images of a class
GROUP = 10  # images in one backward pass
DRAWS = 10  # labels of each image; with one, noise hides many a neighbour
NO_FILTERS = (
    "Hard tasks need the filters of the backbone's last block, and none were found that its "
    "features depend on: give the backbone an attribute last_block."
)


def nearest_classes(
    model: Model,
    pool: Pool,
    key: tuple[int | str, ...],
    representatives: Float[Tensor, "classes r"] | None = None,
) -> Int64[Tensor, "classes others"]:
    """For each class of the pool all others, the nearest first; what is drawn follows from the key.

    Representatives of the pool's classes, if they are at hand, save a forward pass.
    """
    draws = [generator("task2vec", *key, name) for name in pool.classes]
    chosen = [
        rows[torch.from_numpy(np.sort(rng.permutation(len(rows))[:MOST]))]
        for rng, rows in zip(draws, pool.class_rows, strict=True)
    ]
    n_images = sum(map(len, chosen))
    with (
        eval_mode(model.embedding),
        eval_mode(model.head),
        task("looking for hard tasks: images", n_images) as tick,
    ):
        if representatives is None:
            features = [model.embed_rows(pool.table, rows) for rows in chosen]
            with torch.no_grad():
                representatives = model.head.from_images(features)
        fisher = torch.stack(
            [
                class_fisher(model, pool, rows, representatives, rng, tick)
                for rng, rows in zip(draws, chosen, strict=True)
            ]
        )
    between = distances(fisher)
    between.fill_diagonal_(-1)  # itself comes first, and is left out
    return between.argsort(dim=1, stable=True)[:, 1:]


def class_fisher(
    model: Model,
    pool: Pool,
    rows: Int64[Tensor, " n"],
    representatives: Float[Tensor, "classes r"],
    rng: np.random.Generator,
    tick: Tick,
) -> Float64[Tensor, " filters"]:
    """E (∂ log p(y|x) / ∂w)² for each filter of the last block, averaged over its weights w.

    Labels y are drawn from the model's own softmax, so the gradients of different images have
    mean 0 and are independent: the cross terms vanish in expectation, and the square of the sum
    over a group estimates the sum of the squares, for one backward pass instead of many.
    """
    weights = {name: w.detach() for name, w in model.embedding.named_parameters()}
    filters = {name: weights[name].requires_grad_() for name in _filters(model.embedding)}
    n_filters = sum(len(w) for w in filters.values())
    total = torch.zeros(n_filters, dtype=torch.float64, device=model.device)
    heights = torch.from_numpy(rng.random((len(rows), DRAWS)))
    with torch.enable_grad():
        for some, height in zip(rows.split(GROUP), heights.split(GROUP), strict=True):
            pixels = plain(pool.table.take(some).to(model.device))
            features = functional_call(model.embedding, weights, (pixels,))
            if not features.requires_grad:  # a layer may be there and not be used
                raise KedgeError(NO_FILTERS)
            log_p = model.head.logits(features, representatives).log_softmax(1)
            # Backward is cheap, since it ends in the last block: one forward serves all draws.
            for draw in height.T:
                loss = F.nll_loss(log_p, _drawn(log_p, draw), reduction="sum")
                slopes = torch.autograd.grad(
                    loss,
                    list(filters.values()),
                    retain_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )
                total += torch.cat([slope.square().flatten(1).mean(1) for slope in slopes])
            tick(len(some))
    return total.cpu() / heights.numel()


def distances(fisher: Float64[Tensor, "classes filters"]) -> Float64[Tensor, "classes classes"]:
    """1 − cos of F_a/(F_a+F_b) and F_b/(F_a+F_b): a filter counts as much as any other, however
    strongly it answers. Filters that neither class would move do not count."""
    rows = []
    for own in fisher:
        both = (own + fisher).clamp(min=torch.finfo(fisher.dtype).tiny)
        rows.append(1 - F.cosine_similarity(own / both, fisher / both, dim=1))
    return torch.stack(rows)


def _drawn(log_p: Float[Tensor, "n classes"], height: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """A class for each image, by its probability: where the running sum passes a given height."""
    sums = log_p.detach().exp().cumsum(1)
    passed = sums < height.to(sums)[:, None] * sums[:, -1:]
    return passed.sum(1).clamp(max=log_p.shape[1] - 1)


def _filters(embedding: nn.Module) -> list[str]:
    """The names of the last block's weights that are made of filters."""
    backbone = embedding.get_submodule("backbone")
    block = getattr(backbone, "last_block", None)
    if block is None:
        leaves = [m for m in backbone.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        block = leaves[-1] if leaves else nn.Module()
    own = {id(w) for w in block.parameters() if w.ndim >= 2}
    names = [name for name, w in embedding.named_parameters() if id(w) in own]
    if not names:
        raise KedgeError(NO_FILTERS)
    return names
