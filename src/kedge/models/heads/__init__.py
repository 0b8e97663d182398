"""Heads: representatives of classes from examples, and scores of features against them.

To add a head, for example one with the L1 distance:
1. Write heads/l1.py: a final subclass of `Head` with `fit`, `logits` and `anchors`
   (prototype.py is the shortest example; override `episode_logits` only if training does not
   classify the queries). Keyword-only arguments of its constructor become options of `--head`.
2. Add it to `HEADS` below. tests/models/heads/test_contract.py then runs over it as it is.

Words: a *representative* is what features are scored against, one per class of an episode. A
*class embedding* is a representative that a round learns, if the head has such. An *anchor* is the
representative of a class that is kept when its round ends. A *class mean* is the mean feature.

Shapes: e episodes (any leading dimensions), k ways, s shots, n images, d features,
r numbers in the representative of a class.
"""

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.models.heads.base import Head
from kedge.models.heads.ecm import ECMHead
from kedge.models.heads.prototype import PrototypeHead
from kedge.models.heads.ridge import RidgeHead
from kedge.models.heads.unit import UnitHead
from kedge.utils.spec import check_options, keyword_defaults, parse_spec
from kedge.utils.text import display_name

__all__ = ["HEADS", "ECMHead", "Head", "PrototypeHead", "RidgeHead", "UnitHead", "build_head"]

HEADS: dict[str, type[Head]] = {
    "prototype": PrototypeHead,
    "unit": UnitHead,
    "ecm": ECMHead,
    "ridge": RidgeHead,
}


def head_kind(config: HeadConfig) -> type[Head]:
    name = parse_spec(config.head, "Head").name
    if name not in HEADS:
        raise KedgeError(
            f"There is no head '{display_name(name)}'; choose one of {', '.join(HEADS)}."
        )
    return HEADS[name]


def build_head(config: HeadConfig, n_features: int) -> Head:
    """The head of a spec such as 'prototype' or 'ecm training=inner'."""
    spec, kind = parse_spec(config.head, "Head"), head_kind(config)
    defaults = keyword_defaults(kind)
    check_options(spec, defaults, "Head")
    options = {  # 'scale=20' is an int, also where the option is a float
        name: float(value) if isinstance(defaults[name], float) else value
        for name, value in spec.options.items()
    }
    return kind(n_features, config.temperature, **options)
