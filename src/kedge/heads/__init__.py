"""Heads: how class representatives come from examples, and how a feature scores against them.

A new head is one file with a final subclass of `Head`, and one line in `HEADS`. The contract
suite in tests/heads runs over everything that is listed there.

Shapes: e episodes (any leading dimensions), k ways, s shots, n images, d features,
r numbers in a class's representative.
"""

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.heads.contract import Head
from kedge.heads.prototype import PrototypeHead

__all__ = ["HEADS", "Head", "PrototypeHead", "build_head"]

HEADS: dict[str, type[Head]] = {
    "prototype": PrototypeHead,
}


def build_head(config: HeadConfig, n_features: int) -> Head:
    if config.head not in HEADS:
        known = ", ".join(HEADS)
        raise KedgeError(f"There is no head '{config.head}'; the known ones are {known}.")
    return HEADS[config.head](n_features, config.temperature)
