"""CIFAR-FS (Bertinetto et al. 2019): CIFAR-100 split by class. The lists are in cifar_fs.json."""

from functools import partial

from kedge.benchmarks.class_lists import ListedDataset
from kedge.benchmarks.disk import held_out_rule

_DATASET = ListedDataset(
    "CIFAR-FS",
    image_size=32,
    n_held_out=100,
    required_data="CIFAR-FS or CIFAR-100 in any form that 'kedge data inspect' knows, or a folder "
    "of class folders named as in CIFAR-100 (aquarium_fish and so on)",
)
CIFAR_FS = _DATASET.protocol(
    "cifar-fs",
    "CIFAR-FS, its 64 training classes split at random: 32 old and 32 new, 16 to validate, 20 "
    f"unseen, 32 px; {held_out_rule(100)} (not in the paper, which splits miniImageNet into as "
    "many at 84 px).",
    partial(_DATASET.draw_official, (32, 32)),
)
