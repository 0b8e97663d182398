"""Which classes are hard to tell apart: Task2Vec in a cheap form.

Achille, Lam, Tewari, Ravichandran, Maji, Fowlkes, Soatto, Perona: Task2Vec: Task Embedding for
Meta-Learning, ICCV 2019. A class is described by the diagonal of the Fisher information of the last
block, averaged within each filter. `sample_episodes` makes hard episodes of near classes.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.func import functional_call

from kedge.data.augment import to_float
from kedge.data.pools import Pool
from kedge.errors import KedgeError
from kedge.models.embedding import eval_mode
from kedge.models.model import Model
from kedge.utils.progress import Tick, task
from kedge.utils.seeding import generator

MAX_CLASS_IMAGES = 100  # of each class
BATCH_SIZE = 10  # images in one backward pass
N_LABEL_DRAWS = 10  # for each image; with one, noise hides many neighbours
NO_FILTERS = (
    "Hard episodes need the filters of the backbone's last block, and its features depend on none. "
    "Give the backbone an attribute last_block."
)


def nearest_classes(
    model: Model, pool: Pool, key: tuple[int | str, ...]
) -> Int64[Tensor, "classes others"]:
    """For each class of the pool all others, nearest first. All random draws depend on `key`."""
    rngs = [generator("task2vec", *key, name) for name in pool.classes]
    chosen = [
        rows[torch.from_numpy(np.sort(rng.permutation(len(rows))[:MAX_CLASS_IMAGES]))]
        for rng, rows in zip(rngs, pool.class_rows, strict=True)
    ]
    with (
        eval_mode(model.embedding),
        eval_mode(model.head),
        task("measuring class distances: images", sum(map(len, chosen))) as tick,
    ):
        features = [model.embed_rows(pool.table, rows) for rows in chosen]
        with torch.no_grad():
            representatives = model.head.representatives_from(features)
        pairs = zip(chosen, rngs, strict=True)
        fisher = [class_fisher(model, pool, *pair, representatives, tick) for pair in pairs]
    distances = fisher_distances(torch.stack(fisher))
    distances.fill_diagonal_(-1)  # sorts each class before the others, and is cut off
    return distances.argsort(dim=1, stable=True)[:, 1:]


def class_fisher(
    model: Model,
    pool: Pool,
    rows: Int64[Tensor, " n"],
    rng: np.random.Generator,
    representatives: Float[Tensor, "classes r"],
    tick: Tick,
) -> Float64[Tensor, " filters"]:
    """E (∂ log p(y|x) / ∂w)² for each filter of the last block, averaged over its weights w.

    Labels y are drawn from the model's softmax, so the gradients of different images are
    independent with mean 0. Hence the squared gradient of a batch's sum estimates the sum of the
    images' squared gradients, with one backward pass.
    """
    weights = {name: w.detach() for name, w in model.embedding.named_parameters()}
    filters = {name: weights[name].requires_grad_() for name in _filter_names(model.embedding)}
    n_filters = sum(len(w) for w in filters.values())
    total = torch.zeros(n_filters, dtype=torch.float64, device=model.device)
    uniform = torch.from_numpy(rng.random((len(rows), N_LABEL_DRAWS)))
    with torch.enable_grad():
        batches = zip(rows.split(BATCH_SIZE), uniform.split(BATCH_SIZE), strict=True)
        for batch_rows, batch_uniform in batches:
            pixels = to_float(pool.table.take(batch_rows).to(model.device))
            features = functional_call(model.embedding, weights, (pixels,))
            if not features.requires_grad:  # the last layer may exist and not be used
                raise KedgeError(NO_FILTERS)
            log_p = model.head.logits(features, representatives).log_softmax(1)
            # Backward is cheap, since it ends in the last block: one forward serves all draws.
            for draw in batch_uniform.T:
                loss = F.nll_loss(log_p, _sample_labels(log_p, draw), reduction="sum")
                gradients = torch.autograd.grad(
                    loss, list(filters.values()), retain_graph=True, materialize_grads=True
                )
                total += torch.cat([g.square().flatten(1).mean(1) for g in gradients])
            tick(len(batch_rows))
    return total.cpu() / uniform.numel()


def fisher_distances(
    fisher: Float64[Tensor, "classes filters"],
) -> Float64[Tensor, "classes classes"]:
    """1 − cos of F_a/(F_a+F_b) and F_b/(F_a+F_b), so that all filters have equal weight.

    A filter whose information is 0 for both classes has no effect.
    """
    rows = []
    for own in fisher:
        both = (own + fisher).clamp(min=torch.finfo(fisher.dtype).tiny)
        rows.append(1 - F.cosine_similarity(own / both, fisher / both, dim=1))
    return torch.stack(rows)


def _sample_labels(
    log_p: Float[Tensor, "n classes"], uniform: Float64[Tensor, " n"]
) -> Int64[Tensor, " n"]:
    """A class for each image by its probability: inverts the cumulative sum at uniform numbers."""
    sums = log_p.detach().exp().cumsum(1)
    passed = sums < uniform.to(sums)[:, None] * sums[:, -1:]
    return passed.sum(1).clamp(max=log_p.shape[1] - 1)


def _filter_names(embedding: nn.Module) -> list[str]:
    """Names of the weights with filters in the last block: its matrices and convolutions."""
    backbone = embedding.get_submodule("backbone")
    block = getattr(backbone, "last_block", None)
    if block is None:
        layers = [m for m in backbone.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        block = layers[-1] if layers else nn.Module()
    in_block = {id(w) for w in block.parameters() if w.ndim >= 2}
    names = [name for name, w in embedding.named_parameters() if id(w) in in_block]
    if not names:
        raise KedgeError(NO_FILTERS)
    return names
