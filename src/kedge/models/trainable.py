"""Which weights of a model train in a round, and which of its modules run in train mode.

`Schedule.train` selects weights; those that `ModelConfig.frozen` names never train. What does not
train stays the same to the last bit, the statistics of its BatchNorms too.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from torch import nn

from kedge.config import Schedule, Trained
from kedge.models.backbones import DropBlock
from kedge.models.model import Model

BACKBONE, HEAD = "embedding.backbone", "head"  # prefixes of the names in `Model.weights`
N_LAST = 4  # groups of layers that train with "last"


def trained_names(model: Model, train: Trained) -> set[str]:
    """Names, as in `Model.weights`, of the weights that train in a round."""
    prefixes = {"none": [], "head": [HEAD], "all": [""]}.get(train)
    if prefixes is None:
        last = layer_groups(model.embedding.backbone)[-N_LAST:]
        names = [name for group in last for name in ([group] if isinstance(group, str) else group)]
        prefixes = [HEAD, *(_join(BACKBONE, name) for name in names)]
    frozen = [_join(BACKBONE, name) for name in model.config.frozen]
    return {n for n in model.weights() if _within(n, prefixes) and not _within(n, frozen)}


def trainable_copy(model: Model, trained: Collection[str] | None = None) -> Model:
    """A model with copies of embedding and head, of whose weights those `trained` need gradients:
    names from `trained_names`, by default all but the frozen ones."""
    embedding, head = copy.deepcopy(model.embedding), copy.deepcopy(model.head)
    copied = replace(model, embedding=embedding, head=head)
    names = trained_names(model, "all") if trained is None else trained
    for name, weight in copied.weights().items():
        weight.requires_grad_(name in names)
    return copied


def set_train_mode(model: Model, schedule: Schedule) -> None:
    """Put embedding and head into train mode, except what does not train.

    In eval mode, with all that they contain, are modules with weights none of which needs a
    gradient; in an `nn.Sequential` also modules without weights between such modules and the first
    one that trains; with `batch_norm` "frozen" every BatchNorm; and with `dropout` "off" every
    dropout and DropBlock.
    """
    fixed: list[type[nn.Module]] = []
    if schedule.batch_norm == "frozen":
        fixed.append(nn.modules.batchnorm._BatchNorm)
    if schedule.dropout == "off":
        fixed += [nn.modules.dropout._DropoutNd, DropBlock]
    for root in (model.embedding, model.head):
        root.train()
        for module in root.modules():
            if _is_frozen(module) or isinstance(module, tuple(fixed)):
                module.eval()
            elif isinstance(module, nn.Sequential):
                for child in _frozen_start(module):
                    child.eval()


def layer_groups(backbone: nn.Module) -> Sequence[str | Sequence[str]]:
    """Prefixes of the names of its weights, one or several for each layer, from input to output:
    the backbone's `layer_groups()`, else its children that have weights, or those of its only child
    that has any."""
    own = getattr(backbone, "layer_groups", None)
    if callable(own):
        return tuple(own())
    prefix, module = "", backbone
    while True:
        children = [n for n, child in module.named_children() if _has_weights(child)]
        direct = any(True for _ in module.parameters(recurse=False))
        if not children:
            return (prefix,) if direct else ()
        if direct or len(children) > 1:
            return tuple(_join(prefix, name) for name in children)
        prefix, module = _join(prefix, children[0]), module.get_submodule(children[0])


def frozen_names(module: nn.Module) -> tuple[str, ...]:
    """The parts of a module that a user has frozen by `requires_grad=False`, for
    `ModelConfig.frozen`: modules all of whose weights are so, and single weights of others."""
    return tuple(_frozen_parts(module, ""))


def _frozen_parts(module: nn.Module, prefix: str) -> Iterator[str]:
    for name, weight in module.named_parameters(prefix, recurse=False):
        if not weight.requires_grad:
            yield name
    for name, child in module.named_children():
        path = _join(prefix, name)
        if _is_frozen(child):
            yield path
        else:
            yield from _frozen_parts(child, path)


def _frozen_start(layers: nn.Sequential) -> list[nn.Module]:
    """Children before the first that trains, if any of them has weights."""
    start: list[nn.Module] = []
    for child in layers:
        if any(weight.requires_grad for weight in child.parameters()):
            return start if any(map(_has_weights, start)) else []
        start.append(child)
    return []


def _is_frozen(module: nn.Module) -> bool:
    """Whether the module has weights, and none of them needs a gradient."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _within(name: str, prefixes: Sequence[str]) -> bool:
    """Whether a weight is one of these, or in one of these modules; "" is the whole network."""
    return any(p in ("", name) or name.startswith(f"{p}.") for p in prefixes)
