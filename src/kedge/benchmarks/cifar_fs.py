"""CIFAR-FS (Bertinetto et al. 2019): CIFAR-100 cut by class. The lists are in cifar_fs.json."""

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


@functools.cache
def cifar_fs_lists() -> Lists:
    """The classes of "train", "val" and "test", as CIFAR-100 names them."""
    return packaged("cifar_fs.json")


_CIFAR_FS = OfficialLists(
    "CIFAR-FS",
    cifar_fs_lists,
    side=32,
    needs="CIFAR-FS or CIFAR-100 in any form that 'kedge data inspect' knows, or a folder of "
    "class folders named as in CIFAR-100 (aquarium_fish and so on)",
    usual=100,
)

CIFAR_FS = (
    Protocol(
        "cifar-fs",
        "CIFAR-FS, its 64 training classes split at random: 32 old and 32 new, 16 to validate, 20 "
        f"unseen, 32 px; {what_is_held_out(100)} (not in the paper, which splits miniImageNet "
        "into as many at 84 px).",
        _CIFAR_FS.load,
        partial(_CIFAR_FS.draw, (32, 32)),
        _CIFAR_FS.needs,
    ),
)
