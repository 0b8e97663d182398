"""Heads: how class representatives come from examples, and how a feature scores against them.

A new head is one file with a final subclass of `Head`, and one line in `HEADS`. The contract
suite in tests/heads runs over everything that is listed there.

Shapes: e episodes (any leading dimensions), k ways, s shots, n images, d features,
r numbers in a class's representative.
"""

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.models.heads.base import Head, flatten_with_targets
from kedge.models.heads.ecm import ECMHead
from kedge.models.heads.prototype import PrototypeHead
from kedge.models.heads.ridge import RidgeHead
from kedge.utils.spec import (
    check_options,
    keywords_of,
    parse_spec,
)

__all__ = ["HEADS", "ECMHead", "Head", "PrototypeHead", "RidgeHead", "asked", "build_head"]

HEADS: dict[str, type[Head]] = {
    "prototype": PrototypeHead,
    "ecm": ECMHead,
    "ridge": RidgeHead,
}


def build_head(config: HeadConfig, n_features: int) -> Head:
    """From a text such as 'prototype' or 'ecm training=inner'."""
    named = parse_spec(config.head, "Head")
    if named.name not in HEADS:
        known = ", ".join(HEADS)
        raise KedgeError(f"There is no head '{named.name}'; the known ones are {known}.")
    kind = HEADS[named.name]
    check_options(named, keywords_of(kind), "Head")
    return kind(n_features, config.temperature, **named.options)
