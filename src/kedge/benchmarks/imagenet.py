"""Benchmarks drawn from ImageNet: miniImageNet, tieredImageNet and DomainImageNet.

Their official class lists, by WordNet id, are in imagenet.json.
"""

from __future__ import annotations

import functools
from functools import partial

from kedge.benchmarks.base import Protocol
from kedge.benchmarks.class_lists import (
    Lists,
    OfficialLists,
    packaged,
)
from kedge.benchmarks.disk import what_is_held_out
from kedge.benchmarks.domains import Domains

SIDE = 84  # px
USUAL = 300  # images of each trained class that are held out
BY_WORDNET_ID = (
    "in any form that 'kedge data inspect' knows, or a folder of class folders named by WordNet id "
    "(n01532829 and so on)"
)


def official(name: str) -> Lists:
    """Of miniImageNet or tieredImageNet: the classes of "train", "val" and "test"."""
    return dict(_lists()[name])


def imagenet_domains() -> Lists:
    """All 1000 classes of ILSVRC in two parts: "natural" and "manmade"."""
    return dict(_lists()["domains"])


def tiny_imagenet_domains() -> Lists:
    """All 200 classes of Tiny-ImageNet in two parts: "natural" and "manmade"."""
    return dict(_lists()["tinyImageNet"])


@functools.cache
def _lists() -> dict[str, Lists]:
    return packaged("imagenet.json")


_MINI, _TIERED = (
    OfficialLists(name, partial(official, name), SIDE, f"{name} {BY_WORDNET_ID}", USUAL)
    for name in ("miniImageNet", "tieredImageNet")
)
_DOMAINS = Domains("ImageNet", imagenet_domains, SIDE, f"ImageNet {BY_WORDNET_ID}", USUAL)

_MINI_HELD_OUT = (
    "where the data come with 300 further images of each trained class, these are held out, as in "
    f"the paper; otherwise {what_is_held_out(USUAL)} (the paper trains on all 600)"
)
_NOT_LISTED = (
    f"{what_is_held_out(USUAL)} (the paper does not list its classes: these are drawn, with all "
    "their images, from ImageNet's 449 natural and 551 man-made ones)"
)

IMAGENET = (
    Protocol(
        "mini-imagenet",
        "miniImageNet, its 64 training classes split at random: 32 old and 32 new, 16 to "
        f"validate, 20 unseen, {SIDE} px; {_MINI_HELD_OUT}.",
        _MINI.load,
        partial(_MINI.draw, (32, 32)),
        _MINI.needs,
    ),
    Protocol(
        "mini-imagenet-2-rounds",
        "miniImageNet, its 64 training classes split at random: 32 old ones, then two rounds of "
        f"16 new ones, 16 to validate, 20 unseen, {SIDE} px; {_MINI_HELD_OUT}.",
        _MINI.load,
        partial(_MINI.draw, (32, 16, 16)),
        _MINI.needs,
    ),
    Protocol(
        "tiered-imagenet",
        "tieredImageNet, its 351 training classes split at random: 176 old and 175 new, 97 to "
        f"validate, 160 unseen, {SIDE} px; {what_is_held_out(USUAL)} (the paper tests on about "
        "1000 further images of each trained class, which not every class has).",
        _TIERED.load,
        partial(_TIERED.draw, (176, 175)),
        _TIERED.needs,
    ),
    Protocol(
        "domain-imagenet",
        "DomainImageNet, from natural things to man-made ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {_NOT_LISTED}.",
        _DOMAINS.load,
        partial(_DOMAINS.draw, "natural", "manmade"),
        _DOMAINS.needs,
    ),
    Protocol(
        "domain-imagenet-reverse",
        "DomainImageNet, from man-made things to natural ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {_NOT_LISTED}.",
        _DOMAINS.load,
        partial(_DOMAINS.draw, "manmade", "natural"),
        _DOMAINS.needs,
    ),
)
