"""Benchmarks on photographs. Their class lists are in class_lists.json."""

from typing import Any

from kedge.benchmarks.class_lists import ListedDataset


def _imagenet(name: str, image_size: int, n_held_out: int, *others: Any) -> ListedDataset:
    required_data = (
        f"{name} in any form that 'kedge data inspect' knows, or a folder of class folders named "
        "by WordNet id (n01532829 and so on)"
    )
    return ListedDataset(name, image_size, n_held_out, required_data, *others)


_MINI_HELD_OUT = (
    "where the data come with 300 further images of each trained class, these are held out, as in "
    "the paper; otherwise "
)
_MINI = _imagenet("miniImageNet", 84, 300, 16, 20, _MINI_HELD_OUT)
_TIERED = _imagenet("tieredImageNet", 84, 300, 97, 160)
_IMAGENET = _imagenet("ImageNet", 84, 300)
_TINY = _imagenet("Tiny-ImageNet", 64, 150)
_CIFAR_FS = ListedDataset(
    "CIFAR-FS",
    32,
    100,
    "CIFAR-FS or CIFAR-100 in any form that 'kedge data inspect' knows, or a folder of class "
    "folders named as in CIFAR-100 (aquarium_fish and so on)",
)
_ALL_600 = "the paper trains on all 600"
_DRAWN = (
    "the paper does not list its classes: these are drawn, with all their images, from ImageNet's "
    "449 natural and 551 man-made ones"
)
_AS_MINI = "not in the paper, which splits miniImageNet into as many at 84 px"
_NOT_TINY = "not in the paper, whose DomainImageNet is drawn from all of ImageNet at 84 px"

PHOTOGRAPHS = (
    _MINI.official("mini-imagenet", (32, 32), _ALL_600),
    _MINI.official("mini-imagenet-2-rounds", (32, 16, 16), _ALL_600),
    _TIERED.official(
        "tiered-imagenet",
        (176, 175),
        "the paper tests on about 1000 further images of each trained class, which not every class "
        "has",
    ),
    _IMAGENET.domain_shift("domain-imagenet", "natural", "manmade", _DRAWN),
    _IMAGENET.domain_shift("domain-imagenet-reverse", "manmade", "natural", _DRAWN),
    _TINY.mixed("tiny-imagenet", (32, 32), _AS_MINI),
    _TINY.mixed("tiny-imagenet-2-rounds", (32, 16, 16), _AS_MINI),
    _TINY.mixed(
        "tiny-imagenet-16-rounds",
        (5,) * 16,
        "after the long runs of Wang et al.'s episodic replay distillation; the paper has two "
        "rounds of 16 on miniImageNet",
    ),
    _TINY.domain_shift("tiny-imagenet-domain", "natural", "manmade", _NOT_TINY),
    _TINY.domain_shift("tiny-imagenet-domain-reverse", "manmade", "natural", _NOT_TINY),
    _CIFAR_FS.official("cifar-fs", (32, 32), _AS_MINI),
)
