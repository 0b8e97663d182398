"""Benchmarks drawn from ImageNet: miniImageNet, tieredImageNet and DomainImageNet.

Their class lists, by WordNet id, are in imagenet.json.
"""

from functools import partial

from kedge.benchmarks.class_lists import ListedDataset
from kedge.benchmarks.disk import held_out_rule

SIZE = 84  # px
BY_WORDNET_ID = (
    "in any form that 'kedge data inspect' knows, or a folder of class folders named by WordNet id "
    "(n01532829 and so on)"
)
_MINI, _TIERED, _IMAGENET = (
    ListedDataset(name, SIZE, n_held_out=300, required_data=f"{name} {BY_WORDNET_ID}")
    for name in ("miniImageNet", "tieredImageNet", "ImageNet")
)
_RULE = held_out_rule(300)
_MINI_RULE = (
    "where the data come with 300 further images of each trained class, these are held out, as in "
    f"the paper; otherwise {_RULE} (the paper trains on all 600)"
)
_DOMAIN_RULE = (
    f"32 old and 32 new classes, 8 + 8 to validate, 20 + 20 unseen, {SIZE} px; {_RULE} (the paper "
    "does not list its classes: these are drawn, with all their images, from ImageNet's 449 "
    "natural and 551 man-made ones)"
)

IMAGENET = (
    _MINI.protocol(
        "mini-imagenet",
        "miniImageNet, its 64 training classes split at random: 32 old and 32 new, 16 to "
        f"validate, 20 unseen, {SIZE} px; {_MINI_RULE}.",
        partial(_MINI.draw_official, (32, 32)),
    ),
    _MINI.protocol(
        "mini-imagenet-2-rounds",
        "miniImageNet, its 64 training classes split at random: 32 old ones, then two rounds of "
        f"16 new ones, 16 to validate, 20 unseen, {SIZE} px; {_MINI_RULE}.",
        partial(_MINI.draw_official, (32, 16, 16)),
    ),
    _TIERED.protocol(
        "tiered-imagenet",
        "tieredImageNet, its 351 training classes split at random: 176 old and 175 new, 97 to "
        f"validate, 160 unseen, {SIZE} px; {_RULE} (the paper tests on about 1000 further images "
        "of each trained class, which not every class has).",
        partial(_TIERED.draw_official, (176, 175)),
    ),
    _IMAGENET.protocol(
        "domain-imagenet",
        f"DomainImageNet, from natural things to man-made ones: {_DOMAIN_RULE}.",
        partial(_IMAGENET.draw_domain_shift, "natural", "manmade"),
        any_names=False,
    ),
    _IMAGENET.protocol(
        "domain-imagenet-reverse",
        f"DomainImageNet, from man-made things to natural ones: {_DOMAIN_RULE}.",
        partial(_IMAGENET.draw_domain_shift, "manmade", "natural"),
        any_names=False,
    ),
)
