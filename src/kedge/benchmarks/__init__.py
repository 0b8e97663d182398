"""The named benchmarks: where the images come from, and which classes play which role.

A new one is a `Protocol` in a file of this folder, and one line in `PROTOCOLS`.
"""

from kedge.benchmarks.base import Protocol
from kedge.benchmarks.cifar_fs import CIFAR_FS
from kedge.benchmarks.drawings import DRAWINGS
from kedge.benchmarks.folder import FOLDER
from kedge.benchmarks.imagenet import IMAGENET
from kedge.benchmarks.omniglot import OMNIGLOT
from kedge.benchmarks.tiny_imagenet import TINY_IMAGENET
from kedge.errors import KedgeError

__all__ = ["PROTOCOLS", "Protocol", "protocol"]

PROTOCOLS = {
    each.name: each
    for each in (*DRAWINGS, *IMAGENET, *TINY_IMAGENET, *CIFAR_FS, *OMNIGLOT, *FOLDER)
}


def protocol(name: str) -> Protocol:
    try:
        return PROTOCOLS[name]
    except KeyError:
        known = ", ".join(PROTOCOLS)
        raise KedgeError(f"There is no protocol '{name}'; the known ones are {known}.") from None
