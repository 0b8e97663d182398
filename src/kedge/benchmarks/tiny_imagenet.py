"""Benchmarks on Tiny-ImageNet: 200 classes of ImageNet at 64 px, 550 images of each.

Its classes by WordNet id are in imagenet.json.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kedge.benchmarks.base import Protocol, Split
from kedge.benchmarks.class_lists import ListedDataset
from kedge.benchmarks.disk import held_out_rule
from kedge.benchmarks.imagenet import BY_WORDNET_ID
from kedge.data.table import ImageTable

SIZE = 64  # px
_DATASET = ListedDataset("Tiny-ImageNet", SIZE, 150, f"Tiny-ImageNet {BY_WORDNET_ID}")


def _protocol(
    name: str, split: str, paper: str, draw: Callable[[int, ImageTable], Split]
) -> Protocol:
    text = f"Tiny-ImageNet, {split} unseen, {SIZE} px; {held_out_rule(150)} ({paper})."
    # Names do not matter if classes are drawn at random from both domains.
    return _DATASET.protocol(name, text, draw, any_names="domain" not in name)


_DOMAIN_SIZES = "32 old and 32 new classes, 8 + 8 to validate, 20 + 20"
_PAPER_MINI = "not in the paper, which splits miniImageNet into as many at 84 px"
_PAPER_DOMAIN = "not in the paper, whose DomainImageNet is drawn from all of ImageNet at 84 px"

TINY_IMAGENET = (
    _protocol(
        "tiny-imagenet",
        "100 of its 200 classes split at random: 32 old and 32 new, 16 to validate, 20",
        _PAPER_MINI,
        partial(_DATASET.draw_mixed, (32, 32)),
    ),
    _protocol(
        "tiny-imagenet-2-rounds",
        "100 of its 200 classes split at random: 32 old ones, then two rounds of 16 new ones, 16 "
        "to validate, 20",
        _PAPER_MINI,
        partial(_DATASET.draw_mixed, (32, 16, 16)),
    ),
    _protocol(
        "tiny-imagenet-16-rounds",
        "116 of its 200 classes split at random: 16 rounds of 5 classes each, of which the first "
        "is the base, 16 to validate, 20",
        "after the long runs of Wang et al.'s episodic replay distillation; the paper has two "
        "rounds of 16 on miniImageNet",
        partial(_DATASET.draw_mixed, (5,) * 16),
    ),
    _protocol(
        "tiny-imagenet-domain",
        f"from natural things to man-made ones: {_DOMAIN_SIZES}",
        _PAPER_DOMAIN,
        partial(_DATASET.draw_domain_shift, "natural", "manmade"),
    ),
    _protocol(
        "tiny-imagenet-domain-reverse",
        f"from man-made things to natural ones: {_DOMAIN_SIZES}",
        _PAPER_DOMAIN,
        partial(_DATASET.draw_domain_shift, "manmade", "natural"),
    ),
)
